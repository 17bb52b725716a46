"""Zero1Optimizer and Zero2Optimizer: the state of the optimizer sharded, and the gradients too."""

from __future__ import annotations

import re
from collections.abc import Iterator

from course_lib.checks.engine.case import Case, Draw, Line, Observed, exercise
from course_lib.checks.engine.training import lines
from course_lib.checks.zero.memory import REFERENCE
from course_lib.checks.zero.runs import (
    ADAMW,
    BLOCK,
    ONCE,
    REFUSED,
    SGD,
    SLACK,
    WHOLE,
    case,
    in_a_group,
    small,
    start_line,
    step_bytes,
    stepped,
    value_line,
    wide,
)

RECIPE = "sharded_optimizer"
RANKS = 4  # of the wide model
UNSHARDED = (
    1.9 * WHOLE
)  # after a step: parameters and the momentum of all of them, but for what varies
NO_SHARD = (
    "Make the optimizer of this rank's shard alone: its state then has 1/N of the size. What is whole, as "
    "the row of all gradients, is freed when the step is over."
)
WHOLE_GRADIENTS, SHARDED_GRADIENTS = "the parameters' gradients", "the shards' gradients"
EMPTY = re.compile(r"empty parameter list|non-empty list of Tensors|StopIteration|list index out")
SOMETIMES = (
    "Here some ranks have no gradient for the middle block. A gradient that is missing counts as zeros, and "
    "all ranks call their collectives in the same order, whichever gradients come first."
)


def trouble(case_of_it: Case, kind: str, text: str) -> str:
    if said := lines.group_trouble(case_of_it, text):
        return said
    if "collective number" in text or "collectives" in text or kind == "deadlock":
        return (
            "All ranks call the same collectives in the same order, also where a rank has no gradient for a "
            "parameter, or gets its gradients in another order."
        )
    if "NoneType" in text:
        return (
            "Some parameters have no gradient: leave frozen ones out, count zeros for unused ones."
        )
    if "register a hook on a tensor that doesn't require gradient" in text:
        return "Frozen parameters have no gradient: leave them out of buckets and hooks."
    if "a leaf Variable that requires grad" in text:
        return "Parameters are written under torch.no_grad(): autograd has no part in the step."
    if EMPTY.search(text) and case_of_it.sides[0].instructions.get("once"):
        return ONCE
    if any(said in text for said in ("assign a gradient of size", "size mismatch", "outputShape")):
        return "A parameter without a gradient keeps its place in the row: zeros stand there."
    return ""


def values(draw: Draw, cleared: str, buckets: bool = False) -> Iterator[Case]:
    """The traps, ranks that use different parts of the model; hidden: more ranks, accumulation.

    cleared: what zero_grad() has to clear. buckets: with room for one linear layer in each.
    """

    def one(n: int, model: str, optimizer: tuple, title: str, weight: float, **more: int) -> Case:
        training = small(draw, n, model, optimizer, **more)
        if buckets:
            width = training.model["width"]
            training.more["kwargs"] = {"bucket_bytes": 8 * width * (width + 1)}
        otherwise = SOMETIMES if model == "sometimes" else ""
        told = [
            value_line(
                training, title, weight=weight, trivial=n == 1, otherwise=otherwise, cleared=cleared
            )
        ]
        if model == "traps":
            told.insert(0, start_line(training))
        return case(RECIPE, training, title, told)

    yield one(3, "traps", SGD, "SGD, 3 ranks: tied, frozen, unused, used twice", 3)
    yield one(2, "sometimes", SGD, "SGD, 2 ranks: a block that not every rank uses", 1.5)
    if draw.hidden:
        yield one(1, "plain", ADAMW, "AdamW, 1 rank", 0.5)
        yield one(4, "frozen", ADAMW, "AdamW, 4 ranks", 1)
        yield one(4, "traps", SGD, "SGD, 4 ranks, the traps again", 1, micro=2)
        yield one(3, "sometimes", SGD, "SGD, 3 ranks, 3 microbatches", 1, micro=3)


def accumulation(draw: Draw, volume: int, weight: float, cleared: str) -> Case:
    """Two microbatches a step, weight decay, a frozen block: values, and the bytes of a step.

    The parameters come as an iterator, as notebooks and torch.optim have them.
    """
    training = small(draw, 3, "frozen", ADAMW, micro=2, width=6)
    training.more["once"] = True
    title = "AdamW, 3 ranks, 2 microbatches"
    hint = accumulated_one if volume == 2 else accumulated_two
    told = [
        value_line(training, title, weight=2, cleared=cleared),
        step_bytes(volume, training, hint, title="bytes, 2 microbatches", weight=weight),
    ]
    return case(RECIPE, training, title, told)


def all_reduced(seen: Observed) -> bool:
    return any(one.op == "all_reduce" for rank in seen.operations for one in rank)


def one_backward(ratio: float, seen: Observed) -> str:
    if abs(ratio - 1.5) < 0.1 and all_reduced(seen):
        return (
            "3P where 2P are enough: an all-reduce gives every rank the whole gradient, of which it reads "
            "1/N. Reduce-scatter it."
        )
    if abs(ratio - 1.5) < 0.03:
        return (
            "3P where 2P are enough: reduce-scatter the gradients, all-gather the parameters, once."
        )
    if ratio < 0.9:
        return "Both are needed: a reduce-scatter of the gradients, and an all-gather of the parameters."
    return "A reduce-scatter of the gradients, (N-1)/N P, and an all-gather of the parameters, (N-1)/N P."


def accumulated_one(ratio: float, seen: Observed) -> str:
    if abs(ratio - 1.5) < 0.1 and not all_reduced(seen):
        return "Gradients add up on each rank until the step: reduce-scatter once, in step()."
    return one_backward(ratio, seen)


def accumulated_two(ratio: float, seen: Observed) -> str:
    if ratio < 0.9:
        return "With K backwards it is K + 1 times: what is not kept whole must leave after every backward."
    return "K reduce-scatters and one all-gather: (K + 1) (N-1)/N P for K backwards."


def held_hint(ratio: float) -> str:
    return NO_SHARD


def held_two(ratio: float) -> str:
    """Of ZeRO-2 after a step: P + 2P/N are enough."""
    parts = (ratio - 1) * (RANKS + 2)  # held besides, in units of P/N
    if abs(parts - 1) < 0.5:
        return (
            "One more shard is there: after the step the gradients' shard is to be None, not zeros "
            "(zero_grad(set_to_none=True)), which take the same memory."
        )
    return NO_SHARD


@exercise(
    points=14, objects=("Zero1Optimizer",), references=REFERENCE, hint=trouble, refused=REFUSED,
    point="holding less",
)  # fmt: skip
def zero1_optimizer(draw: Draw) -> Iterator[Case]:
    yield from values(draw, WHOLE_GRADIENTS)
    yield accumulation(draw, 2, 1.5, WHOLE_GRADIENTS)
    yield in_a_group(RECIPE, draw)
    training = wide(draw, RANKS)
    state = 3 * WHOLE / RANKS  # momentum, a copy of the shard, and its gradient
    yield case(
        RECIPE, training, "memory", [
            stepped(training, "6.4 MB of parameters, 4 ranks", lines.common(RANKS), 0.5, what="end"),
            step_bytes(2, training, one_backward, title="bytes of a step", weight=3),
            lines.held_line(
                [("after a step", 2, WHOLE + state), ("after two steps", 4, WHOLE + state)],
                slack=SLACK, hint=held_hint, weight=9, title="memory after the step: P + 3P/N",
                point=UNSHARDED,
            ),
            after_backward(2 * WHOLE + state, "memory after backward: 2P + 3P/N"),
        ],
    )  # fmt: skip


def after_backward(enough: float, title: str, weight: float = 1.0) -> Line:
    def hint(ratio: float) -> str:
        return (
            "Besides parameters and gradients there is something as large: free copies after use."
        )

    return lines.held_line(
        [("after backward", 3, enough)], slack=SLACK, hint=hint, weight=weight, title=title
    )


@exercise(
    points=12, objects=("Zero2Optimizer",), references=REFERENCE, hint=trouble, refused=REFUSED,
    point="holding less",
)  # fmt: skip
def zero2_optimizer(draw: Draw) -> Iterator[Case]:
    yield from values(draw, SHARDED_GRADIENTS, buckets=True)
    yield accumulation(draw, 3, 1.5, SHARDED_GRADIENTS)
    yield in_a_group(RECIPE, draw)
    training = wide(draw, RANKS)
    training.more["kwargs"] = {"bucket_bytes": BLOCK}
    state, shard = 2 * WHOLE / RANKS, WHOLE / RANKS
    yield case(
        RECIPE, training, "memory", [
            stepped(training, "6.4 MB of parameters, 4 ranks", lines.common(RANKS), 0.5, what="end"),
            step_bytes(2, training, one_backward, title="bytes of a step", weight=1.5),
            lines.held_line(
                [("after a step", 2, WHOLE + state), ("after two steps", 4, WHOLE + state)],
                slack=SLACK, hint=held_two, weight=4, title="memory after the step: P + 2P/N",
                point=UNSHARDED,
            ),
            lines.held_line(
                [("after backward", 3, WHOLE + state + shard)], slack=SLACK, hint=full_gradients,
                weight=4, title="memory after backward: P + 3P/N",
                point=UNSHARDED + WHOLE / 2,
            ),
            lines.peak_line(
                WHOLE + state + shard + 2 * BLOCK, slack=SLACK, hint=full_gradients, weight=2,
                title="peak of memory: P + 3P/N and two buckets",
            ),
        ],
    )  # fmt: skip


def full_gradients(ratio: float) -> str:
    return (
        "The full gradient still exists: when a bucket has been reduced, set .grad of its parameters to None "
        "and keep this rank's shard alone."
    )
