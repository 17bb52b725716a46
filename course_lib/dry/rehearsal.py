"""The dry run itself, in its own process: setup and step as one rank of the mesh, under the meter."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.dry.absent import become
from course_lib.dry.floats import FakeFloats, addresses, conversions
from course_lib.dry.meter import Meter, objects_of, storage_bytes
from course_lib.dry.plan import Plan
from course_lib.dry.result import DryRun
from course_lib.dry.traffic import by_axis
from course_lib.ledger import read, rows
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.ledger.recorder import Recorder
from course_lib.mesh import Mesh
from course_lib.runtime import wire
from course_lib.runtime.rank import describe_error, refuse_open_work

Setup = Callable[[Any, Mesh, int], Any]
Step = Callable[[Any, Mesh, list[tuple[Tensor, Tensor]]], Any]


def perform(header: dict, buffers: list[memoryview], rank: int) -> tuple[dict, list]:
    """The entry of the process. It describes an error, and the process that asked raises it again."""
    try:
        plan, setup, step = wire.loads(buffers)
        return {"error": None}, wire.dumps(rehearse(plan, setup, step))
    except BaseException as error:  # also SystemExit, as in any rank
        return {"error": describe_error(error)}, []


def rehearse(plan: Plan, setup: Setup, step: Step) -> DryRun:
    """Run setup and step as the plan's rank. The process remains this rank, so nothing else can follow."""
    began = time.monotonic()
    torch.set_default_dtype(plan.dtype)
    recorder = become(plan.rank, plan.world_size)
    mesh = Mesh(plan.sizes, device="cpu")
    floats = FakeFloats()
    with addresses(), conversions(floats), floats, Meter() as meter:
        stages = setup(plan.model, mesh, plan.microbatches)
        setup_peak = meter.peak
        batch = batch_of(plan)
        params: list[nn.Parameter] = objects_of(nn.Parameter)
        gradients = Gradients(params)
        first = recorder.state.rows
        meter.begin()
        step(stages, mesh, batch)
        refuse_open_work(recorder)
        peak, kept, flops = meter.peak, meter.peak_kept, meter.flops
        kinds = {
            "weights": storage_bytes(params),
            "gradients": gradients.at_the_end(),
            "optimizer": storage_bytes(optimizer_state(params)),
            "activations": kept,
        }
    operations = operations_of(recorder, began)
    sent, calls = by_axis(operations[first:], plan.sizes)
    ranks: list[Sequence[Operation]] = [[] for _ in range(plan.world_size)]
    ranks[plan.rank] = operations[first:]
    return DryRun(
        plan=plan, bytes=sent, calls=calls, peak_bytes=peak, by_kind=kinds, flops=flops,
        setup_peak=setup_peak, setup_calls=by_axis(operations[:first], plan.sizes)[1],
        groups=len(dist.distributed_c10d._world.pg_map), ledger=Ledger(plan.world_size, ranks),
        seconds=time.monotonic() - began, memory=most_memory(),
    )  # fmt: skip


def batch_of(plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """The microbatches this rank's replica reads: inputs and targets of (rows, context) each."""
    shape = plan.microbatches, plan.rows, plan.model.context
    inputs, targets = (torch.randint(plan.model.vocab_size, shape) for _ in range(2))
    return list(zip(inputs, targets, strict=True))


def whole_batch(batch: list[tuple[Tensor, Tensor]], mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all replicas, for a step that cuts its rows itself. Here all read the same."""
    replicas = mesh.size(("dp", "ep"))
    inputs, targets = (torch.cat(parts).repeat(replicas, 1) for parts in zip(*batch, strict=True))
    return inputs, targets


class Gradients:
    """Bytes of the parameters' gradients, noted in backward, since a step can clear them at its end."""

    def __init__(self, params: list[nn.Parameter]):
        self.params, self.noted = params, dict[int, int]()
        for param in params:
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self.note)

    def note(self, param: Tensor) -> None:
        if param.grad is not None:
            self.noted[id(param)] = param.grad.numel() * param.grad.element_size()

    def at_the_end(self) -> int:
        """Of the gradients that exist after the step; if there are none, of those that existed before."""
        left = [param.grad for param in self.params if param.grad is not None]
        return storage_bytes(left) if left else sum(self.noted.values())


def optimizer_state(params: list[nn.Parameter]) -> list[Tensor]:
    """The state of all optimizers of the program; if it has none, AdamW's, after a step."""
    optimizers = objects_of(torch.optim.Optimizer)
    if not optimizers and params:
        optimizers = [torch.optim.AdamW(params)]
        optimizers[0].step()
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def most_memory() -> int:
    """The most bytes this process has held, including those it shares with the process it was forked from."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def operations_of(recorder: Recorder, began: float) -> list[Operation]:
    """The operations of the rank. Their lines are "file|line", since this process does not know the cells."""
    log, size = recorder.log, rows.ROW.size
    texts = {number: text for text, number in log.known.items()}
    packed = rows.ROW.iter_unpack(log.rows.map[: recorder.state.rows * size])
    return [
        read.operation(
            recorder.rank, index, rows.Row(*fields), texts, began, lambda place: (place, "")
        )
        for index, fields in enumerate(packed)
    ]
