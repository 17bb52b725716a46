"""Buckets that leave early: while backward runs, as they should; or before their gradients have come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import torch

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Tensors, Training, gradients, train
from course_lib.checks.judge.training_runs.traffic import LastBackward

LEFT_EARLY = (
    "A bucket left before all of its gradients had arrived, so a gradient that arrived later is missing "
    "from the mean. Count each parameter once. A hook that is registered twice fires twice, and a loop "
    "over all modules and their parameters() visits a parameter more than once."
)


def left_early(run: Training, observed: kit.Observed) -> bool:
    """Each wrong gradient of the first step is the mean without the last microbatch of some ranks."""
    if "grads" not in run.tell:
        return False
    expected, steps = training_runs.kind("grad.0", train(run)), [rank[0] for rank in run.steps]
    model = run.built()
    rank_gradients = [[gradients(model, microbatch, len(rank)) for microbatch in rank] for rank in steps]
    some = False
    for rank in training_runs.members(observed):
        actual = {name: observed.tensors[rank][name] for name in expected}
        differ = training_runs.differing(actual, expected, run.dtype)
        if len(differ) == len(expected) or not all(
            lacking(actual, expected, name, rank_gradients, run.dtype) for name in differ
        ):
            return False
        some = some or bool(differ)
    return some


def lacking(
    actual: Tensors, expected: Tensors, name: str, rank_gradients: list[list[Tensors]], dtype: torch.dtype
) -> bool:
    """The gradient is the mean over the ranks, with some ranks' last microbatch left out."""
    short, zeros = name.split(".", 2)[2], torch.zeros_like(expected[name])
    early = sum((microbatch.get(short, zeros) for rank in rank_gradients for microbatch in rank[:-1]), zeros)
    last = [rank[-1].get(short, zeros) for rank in rank_gradients]
    for there in product((0, 1), repeat=len(last)):
        total = sum((gradient for gradient, here in zip(last, there, strict=True) if here), early)
        mean = total / len(rank_gradients)
        if not training_runs.differing(actual, expected | {name: mean}, dtype).count(name):
            return True
    return False


def during_backward_line(
    *,
    weight: float = 1.0,
    title: str = "the first bucket leaves while backward runs",
    ops: Sequence[str] = ("all_reduce", "reduce_scatter"),
) -> kit.Line:
    """When backward reaches the first block, an operation of `ops` was begun, and not all were waited for.

    And no wait follows at once on each message, block by block. Read from the record: how many operations
    there were when the gradients of all later blocks were complete and those of a block were not. In every
    step the last backward is looked at.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            before = 0
            for backward in training_runs.last_backwards(observed, rank):
                finding = one_step(observed, rank, backward, before)
                if not finding.ok:
                    return finding
                before = backward.ended
        return kit.RIGHT

    def one_step(observed: kit.Observed, rank: int, backward: LastBackward, before: int) -> kit.Finding:
        first = backward.first_block
        fresh = observed.operations[rank][before : first.begun]
        if not any(operation.op in ops for operation in fresh):
            return kit.wrong(
                f"on rank {rank} nothing had been sent when backward reached the first block, so all "
                "communication came after it.",
                "Begin a bucket's communication in the hook of its last gradient, with async_op=True.",
                cause="after backward",
            )
        if first.waited >= first.begun:
            return kit.wrong(
                f"on rank {rank} every operation begun during backward had been waited for before backward "
                "went on, so nothing overlaps.",
                "Keep the handle, and wait for it after backward.",
                cause="waited in backward",
            )
        started = backward.passes[0].begun
        if any(operation.op == "barrier" for operation in observed.operations[rank][started : first.begun]):
            return kit.wrong(
                f"on rank {rank} a barrier was begun during backward, so backward stops until all ranks "
                "have reached it and their messages have arrived.",
                "No rank has to wait for another before it continues backward, so leave the barrier out.",
                cause="barrier in backward",
            )
        sending = [b for a, b in pairwise(backward.passes) if b.begun > a.begun]
        at_once = sum(moment.latest for moment in sending)
        if 2 * at_once >= len(sending) > 1:
            return kit.wrong(
                f"on rank {rank} the latest operation had been waited for at {at_once} of the "
                f"{len(sending)} blocks before which something was sent, so nothing travelled in between.",
                "Keep the handle, and wait for it after backward.",
                cause="waited in backward",
            )
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")
