"""dry_run: runs your own program as one rank of a large mesh, on this machine and in half a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from course_lib.dry.plan import Plan, planned
from course_lib.dry.rehearsal import Setup, Step
from course_lib.dry.result import DryRun
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.ledger.recorder import LIBRARIES
from course_lib.runtime import pools, wire
from course_lib.runtime.backend import ALONE
from course_lib.runtime.diagnosis import Failure, report_error
from course_lib.runtime.errors import LaunchError, NotWritten, RankError, RankTimeout
from course_lib.runtime.interrupts import never_lost
from course_lib.runtime.output import show
from course_lib.runtime.pickling import explain
from course_lib.runtime.places import where
from course_lib.runtime.run import run_ranks

ENTRY = "course_lib.dry.rehearsal:perform"
# The first fake operation and the first optimizer of a process import these, which takes a few seconds. The
# process from which dry runs are forked does it once.
IMPORTS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
    "course_lib.dry.rehearsal",
)


@never_lost()
def dry_run(
    setup: Setup,
    step: Step,
    *,
    sizes: Mapping[str, int],
    rank: int,
    model: Any,
    microbatches: int,
    rows: int = 1,
    dtype: torch.dtype = torch.float32,
    timeout: float = 300,
) -> DryRun:
    """Run `setup` and one `step` as rank `rank` of a mesh, without the other ranks and without floats.

        stages = setup(model, mesh, microbatches)
        step(stages, mesh, batch)

    Floats have a shape but no values, and the other ranks answer immediately. So bytes, calls, their order,
    memory and FLOPs are those of the real rank, but a wrong value is not noticed, because there is no
    arithmetic.

    sizes: of the mesh, outermost axis first, such as {"pp": 8, "dp": 16, "tp": 8}. model: a configuration.
    batch: the replica's microbatches, each a pair of inputs and targets (rows, context);
        `course_lib.dry.whole_batch(batch, mesh)` has the rows of all replicas. The result of `setup` is only
        handed to `step`, so it can be stages, or a step that was built there.
    dtype: the default dtype of the program. timeout: seconds.

    The program runs in its own process, which is ended afterwards, whatever happens.

    Raises RankError with your own line if the program raises, RankTimeout, NotWritten if it meets a stub, and
    ValueError or TypeError for an impossible plan.
    """
    for name, function in (("setup", setup), ("step", step)):
        if not callable(function):
            raise TypeError(f"{name} is a function, not a {type(function).__name__}")
    if not timeout > 0:
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}")
    plan = planned(sizes, rank, model, microbatches, rows, dtype)
    try:
        payload = wire.dumps((plan, setup, step))
    except Exception as error:
        raise LaunchError(explain(step, (plan, setup), {}, error)) from None
    try:
        outcome = run_ranks(
            ENTRY, {}, payload, world_size=1, timeout=timeout, backend=ALONE, spare=False,
            imports=IMPORTS, on_output=lambda _, stream, line: show(rank, stream, line),
        )  # fmt: skip
    finally:
        pools.end_kept(ALONE)  # else it would wait, with this run's memory, for another task
    if outcome.failure is not None:
        raise ended(plan, outcome.failure)
    reply = outcome.replies[0]
    assert reply is not None, "a run without a failure has an answer"
    header, buffers = reply
    if header["error"] is not None:
        raise raised(plan, header["error"])
    return with_places(wire.loads(buffers))


def with_places(run: DryRun) -> DryRun:
    """The run, with a ledger whose lines are as a reader of the notebook knows them."""
    ranks: list[list[Operation]] = [[] for _ in range(run.plan.world_size)]
    for operation in run.ledger.operations(run.rank):
        line, source = where(operation.line)
        ranks[run.rank].append(replace(operation, line=line, source=source))
    return replace(run, ledger=Ledger(run.plan.world_size, ranks))


def raised(plan: Plan, error: dict) -> RankError:
    """The program's own error, with its lines."""
    report = report_error(error)
    if report.unwritten:
        return NotWritten(f"`{report.unwritten}` is not written yet.")
    head = f"{plan.name} raised {report.error_type}: {report.error_text}".removesuffix(": ")
    files = [file for file, _, _ in error["chain"][0]["frames"]]
    if all(file.startswith(LIBRARIES) for file in files):  # no line of the program's is to blame
        return RankError(head)
    return RankError(f"{head}\n--- dry run of {plan.name} ---\n{report.traceback}")


def ended(plan: Plan, failure: Failure) -> RankError:
    """The process was ended, or died."""
    report = failure.ranks[0]
    if failure.kind == "timeout":
        at = f" It was at {report.line}" if report.line else ""
        return RankTimeout(
            f"the dry run of {plan.name} was not finished in time, and was ended.{at}\n"
            "If it only needs more time, use dry_run(..., timeout=seconds). All calls of torch.distributed "
            "return immediately here, so no other rank holds it up."
        )
    return RankError(f"the dry run of {plan.name} died: {report.how or failure.message}")
