"""Zero3Module: parameters sharded too, gathered where they are used."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks.engine.case import Case, Draw, Observed, exercise
from course_lib.checks.engine.training import lines
from course_lib.checks.zero.memory import REFERENCE
from course_lib.checks.zero.runs import (
    ADAMW,
    BLOCK,
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

RECIPE = "sharded_module"
RANKS = 4  # of the wide model
EARLY = (
    "Weights were used after they had been freed: in backward they must be gathered before the gradient "
    "comes to their block, and stay until all of its gradients are there. A full backward hook of a module "
    "whose input needs no gradient, as the first block's, fires too early for that."
)

TRAPS = (
    "A weight that two blocks share is one parameter: give it to the unit of the whole module, and keep it "
    "there from the first use to the last. A block may be used twice in one forward; a frozen one has no "
    "gradient; a parameter that is never used counts as zeros."
)


def trouble(case_of_it: Case, kind: str, text: str) -> str:
    if said := lines.group_trouble(case_of_it, text):
        return said
    if kind == "died" or "out of bounds for storage" in text or "setStorage" in text:
        return EARLY
    if "collective number" in text or "collectives" in text or kind == "deadlock":
        return "All ranks gather and reduce the same units in the same order."
    if "cannot register a hook on a tensor that doesn't require gradient" in text:
        return (
            "A shard is frozen or trained as a whole: give frozen parameters units of their own, without "
            "hooks for gradients."
        )
    if "shape" in text or "size mismatch" in text:
        return (
            "Between uses a parameter has no elements: it must have its shape again in every forward and "
            "backward that uses it."
        )
    return ""


@exercise(
    points=16, objects=("Zero3Module",), references=REFERENCE, hint=trouble, refused=REFUSED,
    point="holding less",
)  # fmt: skip
def zero3_module(draw: Draw) -> Iterator[Case]:
    def one(
        n: int, model: str, optimizer: tuple, title: str, weight: float, micro: int = 1
    ) -> Case:
        training = small(draw, n, model, optimizer, micro=micro)
        otherwise = TRAPS if model == "traps" else ""
        told = [value_line(training, title, weight=weight, trivial=n == 1, otherwise=otherwise)]
        if model == "traps":
            told.insert(0, start_line(training))
        return case(RECIPE, training, title, told)

    yield one(3, "traps", SGD, "SGD, 3 ranks: tied, frozen, unused, used twice", 4)
    yield one(2, "frozen", ADAMW, "AdamW, 2 ranks, 2 microbatches", 3, micro=2)
    yield in_a_group(RECIPE, draw)
    if draw.hidden:
        yield one(1, "plain", ADAMW, "AdamW, 1 rank", 0.5)
        yield one(4, "frozen", ADAMW, "AdamW, 4 ranks", 1)
        yield one(2, "traps", SGD, "SGD, 2 ranks, the traps again", 1, micro=3)
    training = wide(draw, RANKS)
    share = WHOLE / RANKS
    yield case(
        RECIPE, training, "memory", [
            stepped(training, "6.4 MB of parameters, 4 ranks", lines.common(RANKS), 0.5, what="end"),
            step_bytes(3, training, bytes_hint, title="bytes of a step", weight=2.5),
            lines.held_line(
                [("after the module was wrapped", 0, share), ("after a step", 2, 2 * share),
                 ("after two steps", 4, 2 * share)],
                slack=SLACK, hint=held_hint, weight=6, title="memory between steps: 2P/N",
                point=0.95 * WHOLE,
            ),
            lines.held_line(
                [("after backward", 3, 3 * share)], slack=SLACK, hint=held_hint, weight=3,
                title="memory after backward: 3P/N",
            ),
            lines.peak_line(
                3 * share + 3 * BLOCK, slack=SLACK, hint=peak_hint, weight=5,
                title="peak of memory: 3P/N and a block at a time",
            ),
        ],
    )  # fmt: skip


def bytes_hint(ratio: float, seen: Observed) -> str:
    if abs(ratio - 2 / 3) < 0.03:
        return (
            "One of the three is missing: weights are gathered in forward, freed, gathered again in "
            "backward; gradients are reduce-scattered."
        )
    if abs(ratio - 4 / 3) < 0.03:
        return (
            "A fourth transfer: an all-reduce where a reduce-scatter is enough, or weights that were "
            "gathered once more after the step."
        )
    return "All-gather in forward, all-gather in backward, reduce-scatter of the gradients: 3P."


def held_hint(ratio: float) -> str:
    if ratio > 2.5:
        return (
            "The whole weights are still there. Free the storage: `flat.untyped_storage().resize_(0)`; a "
            "tensor that something else refers to stays when you only drop your name for it."
        )
    return "Between uses a rank keeps its shards: of the weights, the gradients, the optimizer's state."


def peak_hint(ratio: float) -> str:
    return (
        "More than a block or two was whole at once. Gather a block just before its forward and backward, "
        "free it just after; what autograd has kept for backward counts until its storage is resized."
    )
