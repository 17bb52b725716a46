"""Three programs that train alike on 2 x 2 x 2 ranks. Two of them should not be started on 1,024.

    suspect_a, suspect_b, suspect_c   make a step as `make_step` does, without ZeRO

They have the losses of one process. Their costs differ only if an axis is longer than two. So look at each as
one rank of a large mesh (`course_lib.dry_run`) before you read on, because this file says which is which.

Costs on n replicas, with M bytes of gradients per rank, and m microbatches on stage i of p:

    suspect_a   every forward runs before the first backward, so m microbatches are kept, not min(m, p - i)
    suspect_b   nothing extra: a reduce-scatter and an all-gather are the two halves of an all-reduce
    suspect_c   all gradients of all replicas go to every replica, (n - 1) M bytes, not 2 (n - 1) / n M

Source of the right costs: `course_lib.facts.axis_bytes`, `course_lib.facts.pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.mesh import Mesh, mesh_stages
from course_lib.mesh.step import microbatches_of, targets_of_all
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline import gpipe, one_f_one_b, run_schedule
from course_lib.pipeline.actions import Schedule
from course_lib.planning import Layout

Step = Callable[[Tensor, Tensor], float]
Sum = Callable[[Tensor, dist.ProcessGroup | None, int], Tensor]  # a row, a group, its size


def suspect_a(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float) -> Step:
    """See `make_step`, without ZeRO."""
    return _step(config, layout, mesh, batch_size, lr, gpipe, _all_reduced)


def suspect_b(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float) -> Step:
    """See `make_step`, without ZeRO."""
    return _step(config, layout, mesh, batch_size, lr, one_f_one_b, _halves)


def suspect_c(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float) -> Step:
    """See `make_step`, without ZeRO."""
    return _step(config, layout, mesh, batch_size, lr, one_f_one_b, _gathered)


def _step(
    config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float,
    order: Callable[[int, int], Schedule], add: Sum,
) -> Step:  # fmt: skip
    """A step with a schedule of this order, and gradients that are added up over the replicas in this way."""
    count = layout.microbatches(batch_size)
    schedule = order(layout.pp, count)
    torch.manual_seed(0)
    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule)
    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
    optimizer = torch.optim.SGD(params, lr=lr, momentum=0.9)
    replicas = ("dp", "cp")

    def step(inputs: Tensor, targets: Tensor) -> float:
        batch = microbatches_of((inputs.to(mesh.device), targets.to(mesh.device)), count, mesh)
        of_all = targets_of_all(stages[0], batch, mesh)
        losses = run_schedule(stages, schedule, batch, mesh.group("pp"), of_all)
        row = torch.cat([_gradient(param).flatten() for param in params])
        _put_back(params, add(row, mesh.group(replicas), mesh.size(replicas)))
        optimizer.step()
        optimizer.zero_grad()
        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
        dist.all_reduce(total, group=mesh.group(("pp", *replicas)))
        return float(total)

    return step


def _gradient(param: nn.Parameter) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def _put_back(params: Sequence[nn.Parameter], row: Tensor) -> None:
    for param, part in zip(params, row.split([p.numel() for p in params]), strict=True):
        param.grad = part.view_as(param)


def _all_reduced(row: Tensor, group: dist.ProcessGroup | None, n: int) -> Tensor:
    dist.all_reduce(row, group=group)
    return row


def _halves(row: Tensor, group: dist.ProcessGroup | None, n: int) -> Tensor:
    """Each rank sums a part, and all gather the parts: 2 (n - 1) / n of the bytes, as in an all-reduce."""
    padded = F.pad(row, (0, -len(row) % n))
    part = padded.new_empty(len(padded) // n)
    dist.reduce_scatter_tensor(part, padded, group=group)
    dist.all_gather_into_tensor(padded, part, group=group)
    return padded[: len(row)]


def _gathered(row: Tensor, group: dist.ProcessGroup | None, n: int) -> Tensor:
    """Every rank gets all rows, and sums them: (n - 1) M bytes, as many as an all-reduce sends if n is 2."""
    rows = row.new_empty(n * len(row))
    dist.all_gather_into_tensor(rows, row, group=group)
    return rows.view(n, -1).sum(0)
