"""Zero3Module: parameters sharded too, gathered where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.zero.references import REFERENCE
from course_lib.checks.notebooks.zero.runs import (
    ADAMW,
    BLOCK,
    ELSEWHERE,
    MEMBERS,
    REFUSED,
    SGD,
    SLACK,
    WHOLE,
    WORLD,
    group_run,
    small,
    start_line,
    step_bytes,
    stepped,
    value_line,
    wide,
)
from course_lib.checks.notebooks.zero.shown import places, trains
from course_lib.checks.notebooks.zero.state import LEFT, module_case, state_line, with_outputs

RANKS = 4  # of the wide model
FREED = "Memory of a weight was read after it had been freed."
IN_FORWARD = (
    f"{FREED} In forward a unit is gathered before its module begins, and freed when that module is "
    "over. A weight that two blocks share must not be freed by the first of them, so give it to the "
    "unit of the whole module."
)
IN_BACKWARD = (
    f"{FREED} In backward a unit is gathered before the gradient arrives at its block, and stays until "
    "all of its gradients are ready. A full backward hook fires too early for this if the module's "
    "input needs no gradient, as in the first block."
)
DIED = (
    f"{FREED} Look at three places: a unit is gathered before its block's forward and backward begin, "
    "and freed when all its gradients are ready; reduce() sets .grad to None, or the unit counts as "
    "complete in the next backward too early; full_state_dict() copies before it frees."
)
TRAPS = (
    f"{ELSEWHERE} a weight that two blocks share is one parameter, so give it to the unit of the whole "
    "module, and keep it there from the first use to the last. A block can run twice in one forward, "
    "a frozen block has no gradient, and an unused parameter counts as zeros."
)


def module_trouble(case: kit.Case, kind: str, text: str) -> str:
    if "out of bounds for storage" in text or "setStorage" in text:
        if "had a .grad from an earlier backward" in text:
            return LEFT
        return IN_FORWARD if "in forward" in text else IN_BACKWARD
    if kind == "died":
        return DIED
    if said := training_runs.group_trouble(case, text):
        return said
    if "collective number" in text or "collectives" in text or kind == "deadlock":
        return "All ranks gather and reduce the same units in the same order."
    if "cannot register a hook on a tensor that doesn't require gradient" in text:
        return (
            "An output needs no gradient under no_grad, or where neither the input nor a weight needs one, "
            "so put a hook on it only if output.requires_grad. A shard is frozen or trained as a whole, so "
            "give frozen parameters separate units, without hooks for gradients."
        )
    if "shape" in text or "size mismatch" in text:
        return (
            "Between uses a parameter has no elements, but it must have its shape again in every "
            "forward and backward that uses it."
        )
    return ""


@kit.exercise(
    points=9, objects=("Zero3Module",), references=REFERENCE, hint=module_trouble, refused=REFUSED,
    point="holding less",
)  # fmt: skip
def zero3_module(draw: kit.Draw) -> Iterator[kit.Case]:
    def values_case(
        n: int, model: str, optimizer: tuple, title: str, weight: float, micro: int = 1
    ) -> kit.Case:
        training = small(draw, n, model, optimizer, micro=micro)
        otherwise = TRAPS if model == "traps" else ""
        line = value_line(training, title, weight=weight, trivial=n == 1, otherwise=otherwise)
        case_lines = [trains(with_outputs(line, training, (TRAPS,)), training)]
        if model == "traps":
            case_lines.insert(0, with_outputs(start_line(training), training, (TRAPS,)))
        if model == "traps" and n == 3:
            case_lines.append(state_line())
        if model == "frozen":
            case_lines.append(all_shards(training))
        return module_case(training, title, case_lines)

    yield values_case(3, "traps", SGD, "SGD, 3 ranks: tied, frozen, unused, used twice", 4)
    yield values_case(2, "frozen", ADAMW, "AdamW, 2 ranks, 2 microbatches", 3, micro=2)
    yield grouped(draw)
    if draw.hidden:
        yield values_case(1, "plain", ADAMW, "AdamW, 1 rank", 0.5)
        yield values_case(4, "frozen", ADAMW, "AdamW, 4 ranks", 1)
        yield values_case(2, "traps", SGD, "SGD, 2 ranks, the traps again", 1, micro=3)
    training = wide(draw, RANKS)
    share = WHOLE / RANKS
    enough = 3 * share + 3 * BLOCK
    between = training_runs.held_line(
        [("after the module was wrapped", 0, share), ("after a step", 2, 2 * share),
         ("after two steps", 4, 2 * share)],
        slack=SLACK, hint=held_hint, weight=6, title="memory between steps: 2P/N",
        point=0.95 * WHOLE,
    )  # fmt: skip
    at_last = training_runs.held_line(
        [("after full_state_dict(), the check's own copy of all parameters included", 5, 2 * share + WHOLE)],
        slack=SLACK,
        hint=lambda ratio: COPIES_ALONE,
        weight=0.5,  # the notebook gives full_state_dict()
        title="nothing stays gathered after full_state_dict()",
    )
    peak = training_runs.peak_line(
        enough, slack=SLACK, hint=peak_hint, weight=5,
        title="peak of memory: 3P/N and a block at a time", point=enough + WHOLE / 3,
    )  # fmt: skip
    sent = step_bytes(3, training, bytes_hint, title="bytes of a step", weight=2.5)
    values = stepped(training, "6.4 MB of parameters, 4 ranks", training_runs.common(RANKS), 0.5, what="end")
    yield module_case(
        training, "memory", [
            with_outputs(values, training),
            places(sent, [between, peak], 3 * (RANKS - 1) / RANKS * WHOLE), between,
            training_runs.held_line(
                [("after backward", 3, 3 * share)], slack=SLACK, hint=held_hint, weight=3,
                title="memory after backward: 3P/N",
            ),
            because_of(at_last, between), peak,
        ],
    )  # fmt: skip


def grouped(draw: kit.Draw) -> kit.Case:
    """Two of three ranks train, and are passed as group=."""
    training, title, line = group_run(draw)
    case_lines = [with_outputs(line, training)]
    return module_case(training, title, case_lines, members=MEMBERS, world_size=WORLD)


def because_of(line: kit.Line, earlier: kit.Line) -> kit.Line:
    """The line, which has the same cause as the earlier one where that fails, too."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        return finding if finding.ok or earlier.judge(observed).ok else replace(finding, cause=kit.ANY)

    return replace(line, judge=judge)


COPIES_ALONE = "full_state_dict() left a unit gathered. Copy its parameters (detach().clone()), and free it."


def all_shards(training: Training) -> kit.Line:
    """The ranks' parameters() have together a part of every parameter, frozen ones too.

    The notebook gives that iterator, so the line has a small weight, and counts only beside right values.
    """
    whole = sum(p.numel() for p in training.built().parameters())

    def judge(observed: kit.Observed) -> kit.Finding:
        got = sum(values.elements for values in observed.values)
        if got >= whole:
            return kit.RIGHT
        return kit.wrong(
            f"parameters() has {words.number(got)} elements on all ranks together; all parameters have "
            f"{words.number(whole)}.",
            "A frozen parameter also has a shard, so parameters() gives all of them, and "
            "requires_grad says which are trained.",
            cause="shards",
        )

    return kit.Line("parameters(): shards of frozen ones, too", judge, 0.5, trivial=True)


def bytes_hint(ratio: float, observed: kit.Observed) -> str:
    if abs(ratio - 2 / 3) < 0.03:
        return (
            "One of the three transfers is missing. Weights are gathered in forward and, once freed, "
            "again in backward, and gradients are reduce-scattered."
        )
    if abs(ratio - 4 / 3) < 0.03 and reduced_twice(observed):
        return (
            "There is a fourth transfer, because units are reduced twice in one backward. Once a unit is "
            "reduced, discard it from self.unsent, so that the end of backward does not reduce it again."
        )
    if abs(ratio - 4 / 3) < 0.03:
        return (
            "There is a fourth transfer. Either an all-reduce does the work of a reduce-scatter, or "
            "weights were gathered once more after the step."
        )
    return "All-gather in forward, all-gather in backward, reduce-scatter of the gradients: 3P."


def reduced_twice(observed: kit.Observed) -> bool:
    """Whether the first rank reduce-scattered almost as often as it gathered, in the second step.

    A unit is gathered twice in a step, and reduced once.
    """
    begun = observed.values[0].begun
    if len(begun) < 4:
        return False
    names = [operation.op for operation in observed.operations[0][begun[2] : begun[3]]]
    gathers = sum("all_gather" in name for name in names)
    return 3 * sum("reduce_scatter" in name for name in names) > 2 * gathers > 0


def held_hint(ratio: float) -> str:
    if ratio > 2.5:
        return (
            "The whole weights are still in memory. Free the storage with "
            "`flat.untyped_storage().resize_(0)`, because a tensor stays if something else refers to "
            "it and you only drop your name for it."
        )
    return (
        "Between uses a rank keeps only its shards of the weights, the gradients and the optimizer's state."
    )


def peak_hint(ratio: float) -> str:
    return (
        "More than a block or two was whole at the same time. Gather a block just before its forward "
        "and backward, and free it just after. A tensor kept by autograd for backward counts until "
        "its storage is resized."
    )
