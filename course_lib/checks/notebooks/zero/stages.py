"""Zero1Optimizer and Zero2Optimizer: the state of the optimizer sharded, and the gradients too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.notebooks.zero.references import REFERENCE
from course_lib.checks.notebooks.zero.runs import (
    ADAMW,
    BLOCK,
    ELSEWHERE,
    FULL_RANK,
    ONCE,
    REFUSED,
    SGD,
    SLACK,
    UNKNOWN,
    WHOLE,
    carried,
    in_a_group,
    optimizer_case,
    small,
    start_line,
    step_bytes,
    stepped,
    unless_carried,
    value_line,
    wide,
)
from course_lib.checks.notebooks.zero.shown import once, places, trains
from course_lib.checks.notebooks.zero.unit_lines import NO_GRADIENT_YET, SHARD_WITHOUT_GRADIENT

RECIPE = "sharded_optimizer"
RANKS = 4  # of the wide model
EXCHANGED = 2 * (RANKS - 1) / RANKS * WHOLE  # bytes that a rank sends in a step
TWO_STEPS = 1.9  # times the bytes of one: it was not measured between the two
UNSHARDED = 1.9 * WHOLE  # after a step: parameters and the momentum of all of them, but for what varies
NO_SHARD = (
    "Make the optimizer only of this rank's shard, so that its state then has 1/N of the size. The shard "
    "must be a copy, own.clone(), because a view keeps the whole row it was cut from. Free all other rows, "
    "such as the row of all gradients, when the step is over."
)
WHOLE_GRADIENTS, SHARDED_GRADIENTS = "the parameters' gradients", "the shards' gradients"
EMPTY = re.compile(r"empty parameter list|non-empty list of Tensors|StopIteration|list index out")
SOMETIMES = (
    f"{ELSEWHERE} some ranks have no gradient for the middle block. A gradient that is missing counts as "
    "zeros, and all ranks call their collectives in the same order, whichever gradients come first."
)
ONE_MORE_SHARD = (
    "Something as large as a shard is still in memory. After the step, this rank's shards no longer need "
    "gradients, so set their .grad to None (zeros take the same memory), and keep no output of a "
    "reduce-scatter under another name."
)
STAYED = (
    "After a backward, parameters still have a .grad, because it was not set to None when their bucket was "
    "sent, or because the bucket left before this gradient was ready. Send only full buckets until backward "
    "is over, and set .grad to None then, because the next backward adds to old gradients."
)
KEPT_ROW = (
    "A row in which gradients were sent is still in memory. Make sure that no attribute refers "
    "to it after its use."
)


def optimizer_trouble(case: kit.Case, kind: str, text: str) -> str:
    if said := training_runs.group_trouble(case, text):
        return said
    if "collective number" in text or "collectives" in text or kind == "deadlock":
        return (
            "All ranks call the same collectives in the same order, even if a rank has no gradient "
            "for a parameter, or gets its gradients in another order."
        )
    if NO_GRADIENT_YET.search(text):
        return SHARD_WITHOUT_GRADIENT
    if "NoneType" in text:
        return "Some parameters have no gradient. Leave out frozen ones, but count zeros for unused ones."
    if "register a hook on a tensor that doesn't require gradient" in text:
        return "Frozen parameters have no gradient, so leave them out of buckets and hooks."
    if "a leaf Variable that requires grad" in text:
        return "Write parameters under torch.no_grad(), because autograd has no part in the step."
    if EMPTY.search(text) and case.sides[0].instructions.once:
        return ONCE
    if any(said in text for said in ("assign a gradient of size", "size mismatch", "outputShape")):
        return (
            "A shard's gradient is as large as the shard, so take only this rank's part of the row. A "
            "parameter without a gradient keeps its place in the row, so put zeros there."
        )
    return ""


def values(draw: kit.Draw, cleared: str, buckets: bool = False) -> Iterator[kit.Case]:
    """The traps, ranks that use different parts of the model; hidden: more ranks, accumulation.

    cleared: words for the gradients that zero_grad() must clear. buckets: each holds one linear layer.
    """

    def values_case(n: int, model: str, optimizer: tuple, title: str, weight: float, **more: int) -> kit.Case:
        training = small(draw, n, model, optimizer, **more)
        if buckets:
            width = training.model["width"]
            training.more["kwargs"] = {"bucket_bytes": 8 * width * (width + 1)}
        otherwise = SOMETIMES if model == "sometimes" else ""
        line = value_line(
            training, title, weight=weight, trivial=n == 1, otherwise=otherwise, cleared=cleared
        )
        if buckets:
            line = or_stayed(line)
        case_lines = [trains(line, training)]
        if model == "traps":
            case_lines.insert(0, start_line(training))
        return optimizer_case(RECIPE, training, title, case_lines)

    yield values_case(3, "traps", SGD, "SGD, 3 ranks: tied, frozen, unused, used twice", 3)
    yield values_case(2, "sometimes", SGD, "SGD, 2 ranks: a block that not every rank uses", 1.5)
    if draw.hidden:
        yield values_case(1, "plain", ADAMW, "AdamW, 1 rank", 0.5)
        yield values_case(4, "frozen", ADAMW, "AdamW, 4 ranks", 1)
        yield values_case(4, "traps", SGD, "SGD, 4 ranks, the traps again", 1, micro=2)
        yield values_case(3, "sometimes", SGD, "SGD, 3 ranks, 3 microbatches", 1, micro=3)


def or_stayed(line: kit.Line) -> kit.Line:
    """The line on ZeRO-2's values. If it knows no cause, it looks for gradients that stayed in parameters."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        if finding.ok or not finding.cause.startswith(UNKNOWN):
            return finding
        kept = any(observed.values[rank].left for rank in training_runs.members(observed))
        return kit.wrong(finding.sentences[0], STAYED, cause=STAYED) if kept else finding

    return replace(line, judge=judge)


def accumulation(draw: kit.Draw, volume: int, weight: float, cleared: str) -> kit.Case:
    """Two microbatches a step, weight decay, a frozen block: values, and the bytes of a step.

    The parameters come as an iterator, as notebooks and torch.optim have them.
    """
    training = small(draw, 3, "frozen", ADAMW, micro=2, width=6)
    training.more["once"] = True
    title = "AdamW, 3 ranks, 2 microbatches"
    hint = accumulated_one if volume == 2 else accumulated_two
    values = value_line(training, title, weight=2, cleared=cleared)
    if volume > 2:  # its docstring promises that no gradient stays
        values = or_stayed(values)
    case_lines = [
        trains(values, training),
        step_bytes(volume, training, hint, title="bytes, 2 microbatches", weight=weight),
    ]
    return optimizer_case(RECIPE, training, title, case_lines)


def all_reduced(observed: kit.Observed) -> bool:
    return any(operation.op == "all_reduce" for rank in observed.operations for operation in rank)


def one_backward(ratio: float, observed: kit.Observed) -> str:
    if abs(ratio - 1.5) < 0.1 and all_reduced(observed):
        return (
            "You send 3P, but 2P are enough. An all-reduce gives every rank the whole gradient, "
            "although it reads only 1/N. Reduce-scatter it."
        )
    if abs(ratio - 1.5) < 0.03:
        return (
            "You send 3P, but 2P are enough. Reduce-scatter the gradients and all-gather the parameters once."
        )
    if ratio < 0.9:
        return (
            "Both collectives are needed, a reduce-scatter of the gradients and an all-gather of "
            "the parameters."
        )
    return "A reduce-scatter of the gradients, (N-1)/N P, and an all-gather of the parameters, (N-1)/N P."


def accumulated_one(ratio: float, observed: kit.Observed) -> str:
    if abs(ratio - 1.5) < 0.1 and not all_reduced(observed):
        return "Gradients add up on each rank until the step, so reduce-scatter once, in step()."
    return one_backward(ratio, observed)


def accumulated_two(ratio: float, observed: kit.Observed) -> str:
    if ratio < 0.9:
        return (
            "With K backwards it is K + 1 times, because gradients that are not kept whole have to "
            "be sent after every one."
        )
    return "K reduce-scatters and one all-gather send (K + 1) (N-1)/N P for K backwards."


def held_hint(ratio: float) -> str:
    """After a step: P + 2P/N are enough."""
    return as_large_as((ratio - 1) * (WHOLE + 2 * WHOLE / RANKS), ONE_MORE_SHARD, NO_SHARD)


def as_large_as(besides: float, shard: str, otherwise: str) -> str:
    """The hint for that many bytes too many; libraries hold half a block of them."""
    if besides < 1.75 * BLOCK:
        return KEPT_ROW
    return shard if besides < WHOLE / RANKS + 0.9 * BLOCK else otherwise


@kit.exercise(
    points=14, objects=("Zero1Optimizer",), references=REFERENCE, hint=optimizer_trouble, refused=REFUSED,
    point="holding less",
)  # fmt: skip
def zero1_optimizer(draw: kit.Draw) -> Iterator[kit.Case]:
    yield from values(draw, WHOLE_GRADIENTS)
    yield accumulation(draw, 2, 1.5, WHOLE_GRADIENTS)
    yield in_a_group(RECIPE, draw)
    training = wide(draw, RANKS, FULL_RANK)
    state, shard = (2 * WHOLE / RANKS, WHOLE / RANKS)  # momentum and a copy of the shard; its gradient
    held = training_runs.held_line(
        [("after a step", 2, WHOLE + state + shard), ("after two steps", 4, WHOLE + state + shard)],
        slack=SLACK, hint=lambda ratio: NO_SHARD, weight=8, point=UNSHARDED,
        title="memory after the step: no more than P + 3P/N",
    )  # fmt: skip
    known = [*training_runs.common(RANKS), carried(WHOLE_GRADIENTS)]
    line = stepped(training, "6.4 MB of parameters, 4 ranks", known, 0.5, what="end")
    line = replace(line, judge=once(line.judge))
    at_last = training_runs.held_line(
        [("after backward", 3, 2 * WHOLE + state + shard)], slack=SLACK, point=UNSHARDED + WHOLE
    )
    sent = step_bytes(2, training, one_backward, title="bytes of a step", weight=3, point=TWO_STEPS)
    yield optimizer_case(
        RECIPE, training, "memory", [
            line, places(sent, [unless_carried(held, line, at_last)], EXCHANGED), held,
            training_runs.held_line(
                [("after a step", 2, WHOLE + state), ("after two steps", 4, WHOLE + state)],
                slack=SLACK, hint=held_hint, title="without the shard's gradient: P + 2P/N",
            ),
            after_backward(2 * WHOLE + state + shard, "memory after backward: no more than 2P + 3P/N"),
        ],
    )  # fmt: skip


def after_backward(enough: float, title: str, weight: float = 1.0) -> kit.Line:
    def hint(ratio: float) -> str:
        return (
            "Something else is as large as the parameters or the gradients. Free copies after use, and keep "
            "no view of a row, because the view keeps all of it."
        )

    return training_runs.held_line(
        [("after backward", 3, enough)], slack=SLACK, hint=hint, weight=weight, title=title
    )


@kit.exercise(
    points=12, objects=("Zero2Optimizer",), references=REFERENCE, hint=optimizer_trouble, refused=REFUSED,
    point="holding less",
)  # fmt: skip
def zero2_optimizer(draw: kit.Draw) -> Iterator[kit.Case]:
    yield from values(draw, SHARDED_GRADIENTS, buckets=True)
    yield accumulation(draw, 3, 1.5, SHARDED_GRADIENTS)
    yield in_a_group(RECIPE, draw)
    training = wide(draw, RANKS)
    training.more["kwargs"] = {"bucket_bytes": BLOCK}
    state, shard = 2 * WHOLE / RANKS, WHOLE / RANKS
    enough = WHOLE + state + shard + 2 * BLOCK
    held = training_runs.held_line(
        [("after a step", 2, WHOLE + state), ("after two steps", 4, WHOLE + state)],
        slack=SLACK, hint=held_hint, weight=4, title="memory after the step: P + 2P/N", point=UNSHARDED,
    )  # fmt: skip
    peak = explained(
        training_runs.peak_line(
            enough, slack=SLACK, hint=lambda ratio: FULL_GRADIENTS, weight=2,
            title="peak of memory: P + 3P/N and two buckets", point=enough + WHOLE / 3,
        ),
        how_buckets_left,
    )  # fmt: skip
    sent = step_bytes(2, training, one_backward, title="bytes of a step", weight=1.5, point=TWO_STEPS)
    yield optimizer_case(
        RECIPE, training, "memory", [
            stepped(training, "6.4 MB of parameters, 4 ranks", training_runs.common(RANKS), 0.5, what="end"),
            places(sent, [held, peak], EXCHANGED), held,
            training_runs.held_line(
                [("after backward", 3, WHOLE + state + shard)], slack=SLACK, hint=held_after_backward,
                weight=4, title="memory after backward: P + 3P/N",
                point=WHOLE + state + shard + WHOLE / 3,
            ),
            peak,
        ],
    )  # fmt: skip


SECOND_COPY = (
    "Something else as large as a shard is in memory. Add the output of a reduce-scatter to the "
    "shard's .grad, and keep no second copy of it."
)
FULL_GRADIENTS = (
    "The full gradient still exists. When a bucket has been reduced, set .grad of its parameters to "
    "None and keep only this rank's shard."
)


def held_after_backward(ratio: float) -> str:
    """Of ZeRO-2: P + 3P/N are enough."""
    return as_large_as((ratio - 1) * (WHOLE + 3 * WHOLE / RANKS), SECOND_COPY, FULL_GRADIENTS)


def explained(line: kit.Line, cause: Callable[[kit.Observed], str]) -> kit.Line:
    """The line, whose usual cause is read from the record of the run where that tells one."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        said = "" if finding.ok else kit.usual(cause, observed)
        return replace(finding, sentences=(finding.sentences[0], said)) if said else finding

    return replace(line, judge=judge)


def how_buckets_left(observed: kit.Observed) -> str:
    """The hint from the record of the last backward's buckets on the first rank; "" if they left in time."""
    passes, begun = observed.values[0].passes, observed.values[0].begun
    if len(begun) < 4 or not passes:
        return ""
    first, last = begun[2], begun[3]
    sent = [operation for operation in observed.operations[0][first:last] if "reduce_scatter" in operation.op]
    if not sent:
        return ""
    if max(operation.nbytes for operation in sent) > 1.5 * BLOCK:
        return "A bucket was larger than bucket_bytes. Begin a new one when the next parameter does not fit."
    at_first, waited = next(
        ((moment.begun, moment.waited) for moment in passes[-1] if moment.block == 0), (last, last)
    )
    if at_first <= first:
        return (
            "No bucket had been sent when backward reached the first block. Gradients arrive from the "
            "last parameter to the first, so fill the buckets in that order, and send each in the "
            "hook that completes it."
        )
    if at_first - waited > 2:
        return (
            "The rows of buckets that were sent earlier are still in memory, because a handle keeps "
            "its row until it is waited for. Wait for a bucket's handle, and release its row, before "
            "the next bucket but one is sent."
        )
    return ""
