"""PrefetchedModule: ZeRO-3 whose messages travel while blocks compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.fsdp.in_order import (
    ahead_line,
    asked_again,
    held_line,
    reduce_line,
    waited_line,
    whole_line,
)
from course_lib.checks.notebooks.fsdp.stayed import AFTER_ERROR, shards_line, with_causes
from course_lib.checks.notebooks.zero.module import FREED, TRAPS
from course_lib.checks.notebooks.zero.runs import (
    ADAMW,
    BLOCK,
    DEPTH,
    MEMBERS,
    REFUSED,
    SGD,
    SLACK,
    WHOLE,
    WORLD,
    group_run,
    small,
    stepped,
    value_line,
    wide,
)

RECIPE = "course_lib.checks.rank.notebooks.fsdp.prefetched:module"
RANKS = 4  # of the wide model
WIDTH, INNER = 8, (24, 36, 12, 48, 60)  # every number of ranks up to 4 divides the blocks' elements
AHEAD = (1, 1)
IN_FORWARD = (
    f"{FREED} A unit is waited for before its block's forward, and freed after it. The root, with the "
    "weights that two blocks share, is waited for when forward begins, and stays. A hook that is made in a "
    "loop must bind its block, as in `lambda *_, k=k:`, or all hooks have the last one."
)
IN_BACKWARD = (
    f"{FREED} A unit is waited for when the gradient of its block's output is ready, and freed when "
    "all of its own gradients are; the root stays until backward is over. A hook that reads `self.i` in "
    "backward finds the last block's number, so bind it, as in `lambda gradient, i=i:`. A full backward hook "
    "fires too early for this if the module's input needs no gradient, as in the first block."
)
NO_GRADIENT = (
    "Under torch.no_grad() no backward comes, and an output takes no hook. Register a hook only if the "
    "output has `requires_grad`."
)
DROP = (
    "A gather in flight must be waited for before its memory is freed. Call wait() before the unit's "
    "weights are used, or drop() for a unit no block will use. If the wrong unit is freed, or too "
    "soon, look at the ends of the list (-1 is its last block), at hooks that share a variable, and "
    "at full backward hooks, which fire too early if a module's input needs no gradient."
)
NO_OUTPUT = "Does forward return the output of the module?"
TWICE_IN_LIST = (
    "If the runs without one are right, note that a block is in the list twice here. Its place is the "
    "number of blocks that ran before it, but list.index() finds only the first place."
)


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if "was freed before its gather ended" in text:
        if "used twice" in case.title:
            return f"{DROP} {TWICE_IN_LIST}"
        return DROP
    if "out of bounds for storage" in text or "setStorage" in text:
        return IN_FORWARD if "in forward" in text else IN_BACKWARD
    if "register a hook on a tensor" in text:
        return NO_GRADIENT
    if kind == "died":
        return (
            "Memory of a weight was read while it was freed. wait() comes before the block's forward and "
            "backward, and free() after both."
        )
    if "NoneType" in text:
        return NO_OUTPUT
    if "UnboundLocalError" in text and "after an error" in case.title:
        return AFTER_ERROR
    if said := training_runs.group_trouble(case, text):
        return said
    if "collective number" in text or kind == "deadlock":
        return (
            "All ranks must gather and reduce the same units in the same order, so derive the order "
            "from the list of blocks, not from what one rank recorded or received."
        )
    return ""


def bytes_hint(training: Training, reshard: bool) -> Callable[[float, kit.Observed], str]:
    def hint(ratio: float, observed: kit.Observed) -> str:
        if ratio > 1 and (again := asked_again(observed, training)):
            return again
        if reshard and ratio < 0.8:
            return (
                "One of three actions is missing. A unit is gathered in forward, freed, and "
                "gathered again for backward."
            )
        if reshard and ratio < 1:
            return (
                "A block is gathered once less, because a block that is not freed after forward stays whole."
            )
        if reshard:
            return (
                "A unit is gathered twice in a row, or twice in forward. start() must do nothing for "
                "a unit that is whole or on its way."
            )
        return "Without resharding a block is gathered once a step, and stays whole for backward."

    return hint


def uneven(draw: kit.Draw, n: int, kwargs: dict[str, Any]) -> Training:
    """Two steps of blocks that a message tells apart by its bytes."""
    model = {"name": "uneven", "seed": draw.integer(1, 1 << 30), "width": WIDTH, "inner": list(INNER)}
    first = draw.integer(1, 1 << 30)
    steps = [
        [[{"seed": first + 10 * rank + s, "samples": 3, "width": WIDTH}] for s in range(2)]
        for rank in range(n)
    ]
    return Training(model, SGD, steps, tell=("end",), more={"kwargs": kwargs})


def bytes_line(training: Training, reshard: bool, weight: float) -> kit.Line:
    n, item = training.world_size, training.dtype.itemsize
    sizes = [sum(p.numel() for p in block.parameters()) for block in training.built().blocks]
    unit = (n - 1) / n * item
    most = (3 if reshard else 2) * sum(sizes) * unit
    least = most - sizes[-1] * unit if reshard else most
    title = "bytes of a step: 3P, the last block once less" if reshard else "bytes, not resharded: 2P"
    return training_runs.volume_line(
        [math.floor(least)] * n, most=[math.ceil(most)] * n, hint=bytes_hint(training, reshard), title=title,
        weight=weight, between=(2, 4),
    )  # fmt: skip


def order_case(draw: kit.Draw, n: int, ahead: tuple[int, int], reshard: bool, title: str) -> kit.Case:
    settings = {} if ahead == AHEAD else {"forward_prefetch": ahead[0], "backward_prefetch": ahead[1]}
    if not reshard:
        settings["reshard_after_forward"] = False
    training = uneven(draw, n, settings)
    values = stepped(training, f"{title}: values", training_runs.common(n), 1, what="end")
    case_lines = [
        with_causes(values, training),
        ahead_line(training, ahead, reshard, f"{title}: blocks ahead are on their way", 4),
        reduce_line(training, f"{title}: gradients travel while the next block computes", 3),
        waited_line(training, f"{title}: every message is waited for", 1),
        bytes_line(training, reshard, 1.5 if reshard else 3),  # the others pass if a block is freed, too
        whole_line(training, ahead, reshard, 3 if reshard else 1),
    ]
    return training_runs.training_case(RECIPE, title, training, case_lines, timeout=30.0)


def values_case(
    draw: kit.Draw, n: int, model: str, optimizer: tuple, title: str, weight: float, micro: int = 1,
    **more: object,
) -> kit.Case:  # fmt: skip
    training = small(draw, n, model, optimizer, micro=micro)
    if model == "traps":
        training = replace(training, model={**training.model, "unused": False}, known={})
    training = replace(training, more={**training.more, **more}, known={})
    otherwise = TRAPS if model == "traps" else ""
    line = value_line(training, title, weight=weight, trivial=n == 1, otherwise=otherwise)
    case_lines = [
        with_causes(line, training),
        waited_line(training, f"{title}: every message is waited for", 0.5),
        held_line(training, f"{title}: no memory is held too long", 2 if "raising" in more else 1),
    ]
    if model == "traps":
        case_lines.append(shards_line(training, "parameters(): the shards of all units", 1))
    return training_runs.training_case(RECIPE, title, training, case_lines, timeout=30.0)


def memory_case(draw: kit.Draw) -> kit.Case:
    training, share = wide(draw, RANKS), WHOLE / RANKS
    # Where backward enters the last block but one: shards and their momentum, the shards' gradients of all
    # but two blocks, two whole blocks, the row of gradients that travels. Besides, as long as two messages
    # are in flight, a copy of each in gloo. Larger tensors would not tell more, since the copies grow with
    # them; that one block too many is whole is the marks' line to say.
    peak = 2 * share + (DEPTH - 2) / RANKS * BLOCK + (2 + 1 + 2) * BLOCK
    values = stepped(training, "6.4 MB, 4 ranks", training_runs.common(RANKS), 0.5, what="end")
    held = training_runs.held_line(
        [("after the module was wrapped", 0, share), ("after a step", 2, 2 * share)],
        slack=SLACK, weight=2, title="memory between steps: 2P/N", point=0.95 * WHOLE,
        hint=lambda _: "Between uses a rank keeps only its shards, so free every unit, even the last.",
    )  # fmt: skip
    highest = training_runs.peak_line(
        peak, slack=SLACK, weight=2, title="peak of memory: two blocks, two rows of gradients",
        hint=lambda _: "More than two blocks or two rows of gradients were in memory together.",
    )  # fmt: skip
    case_lines = [with_causes(values, training), held, highest]
    return training_runs.training_case(RECIPE, "memory", training, case_lines, timeout=30.0)


def grouped(draw: kit.Draw) -> kit.Case:
    training, title, line = group_run(
        draw, "headed", spare=True
    )  # with a root, and gradients that are missing
    return training_runs.training_case(
        RECIPE,
        title,
        training,
        [with_causes(line, training)],
        timeout=30.0,
        members=MEMBERS,
        world_size=WORLD,
    )


@kit.exercise(
    points=16, objects=("PrefetchedModule",),
    references=("course_lib.fsdp.module", "course_lib.zero"), hint=trouble, refused=REFUSED,
    point="messages that travel while blocks compute, of which few are whole",
    besides="the ZeRO-3 of notebook 04",
)  # fmt: skip
def prefetched_module(draw: kit.Draw) -> Iterator[kit.Case]:
    yield replace(order_case(draw, 2, AHEAD, True, "2 ranks"), proves="messages")
    yield values_case(draw, 3, "traps", SGD, "SGD, 3 ranks: tied, frozen, used twice", 3, evaluating=[0, 1])
    yield values_case(
        draw, 2, "headed", ADAMW, "AdamW, 2 ranks, two forwards before their backward", 2, micro=2,
        together=True,
    )  # fmt: skip
    yield values_case(
        draw, 2, "headed", SGD, "SGD, 2 ranks, after an error in block 1", 2, micro=2,
        raising=[1],
    )  # fmt: skip
    yield order_case(draw, 3, (2, 1), False, "3 ranks, two ahead in forward, not resharded")
    yield grouped(draw)
    yield replace(memory_case(draw), proves="memory")
    if draw.hidden:
        yield order_case(draw, 4, (2, 1), True, "4 ranks, two ahead in forward")
        yield order_case(draw, 2, (1, 2), True, "2 ranks, two ahead in backward")
        yield values_case(draw, 1, "plain", ADAMW, "AdamW, 1 rank", 0.5)
        yield values_case(draw, 4, "traps", SGD, "SGD, 4 ranks, the traps again", 1, micro=3)
