"""A bucket that left before all of its gradients had come, recognised by the mean that it gives."""

from __future__ import annotations

from itertools import product

import torch

from course_lib.checks.engine.case import Observed
from course_lib.checks.engine.training import lines
from course_lib.checks.engine.training.single import Tensors, Training, gradients, train

LEFT_EARLY = (
    "A bucket left before all of its gradients had come: one that came later is missing in the mean. Each "
    "parameter counts once. A hook that is registered twice fires twice, and loops over all modules and "
    "their parameters() meet a parameter more than once."
)


def left_early(run: Training, seen: Observed) -> bool:
    """Each wrong gradient of the first step is the mean without the last microbatch of some ranks."""
    if "grads" not in run.tell:
        return False
    expected, steps = lines.kind("grad.0", train(run)), [rank[0] for rank in run.steps]
    model = run.built()
    given = [[gradients(model, one, len(rank)) for one in rank] for rank in steps]
    some = False
    for rank in lines.members(seen):
        found = {name: seen.tensors[rank][name] for name in expected}
        differ = lines.differing(found, expected, run.dtype)
        if len(differ) == len(expected) or not all(
            lacking(found, expected, name, given, run.dtype) for name in differ
        ):
            return False
        some = some or bool(differ)
    return some


def lacking(
    found: Tensors, expected: Tensors, name: str, given: list[list[Tensors]], dtype: torch.dtype
) -> bool:
    """The gradient is the mean over the ranks, with some ranks' last microbatch left out."""
    short, zeros = name.split(".", 2)[2], torch.zeros_like(expected[name])
    early = sum((one.get(short, zeros) for rank in given for one in rank[:-1]), zeros)
    last = [rank[-1].get(short, zeros) for rank in given]
    for there in product((0, 1), repeat=len(last)):
        total = sum((one for one, here in zip(last, there, strict=True) if here), early)
        if not lines.differing(found, expected | {name: total / len(given)}, dtype).count(name):
            return True
    return False
