"""distribute: a GPT spread over ranks by PyTorch's own classes, against one process."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.checks.notebooks.capstone.spread_run import (
    BLOCK,
    CONFIG,
    FLOAT,
    PARAMETERS,
    REST,
    ROWS,
    STEPS,
    Losses,
    Spread,
    largest,
    near,
    sent,
)
from course_lib.facts import least_bytes

RECIPE = "course_lib.checks.rank.notebooks.capstone.distributing:trained"
POINT = "parameters that a rank gathers block by block, and frees after use"
SPARE = 0.02  # of bytes, for small numbers that PyTorch's classes exchange
SECONDS = 40.0
IMPORTS = ("torch._dynamo", "torch.distributed.fsdp")

INSIDE_OUT = "Shard from the inside out, each block first and the model last."
CONTAINER = "A list of blocks has no forward in which it could be gathered, so shard each block by itself."
DEVICE_IDS = "Leave `device_ids` out, since the model is on the CPU here."
NO_RETURN = (
    "Is there a `return` for every `how`? `fully_shard` changes the model in place, so return the model."
)
OWN_MODELS = (
    "Each rank trained the model it made itself, but `DistributedDataParallel` gives all ranks rank 0's "
    "values and averages their gradients."
)
NOT_GIVEN = (
    "The gradients are averaged, but the ranks began with different models. All must begin with the model "
    "of rank 0."
)
UNSHARED = "Each rank trained its own copy, and the gradients never met."
PARALLEL = "`DataParallel` spreads the rows over the GPUs of one process, but it knows no other ranks."
BLOCKS_ALONE = (
    "The parameters outside the blocks are not shared, so each rank trained its own embedding and head. "
    "Shard the model after its blocks."
)
WHOLE = 'With "fsdp" a rank keeps 1/n of each parameter, and gathers the rest when the parameter is used.'
FOR_DDP = 'With "ddp" each rank has the whole model, but `fully_shard` cuts the values each rank brings.'
ONE_UNIT = (
    "A module that is sharded by itself is one unit, which stays whole in memory, so shard each block first."
)
STAYED = (
    "Blocks stayed whole after their forward, so at the end of forward a rank has the whole model. Leave "
    "reshard_after_forward as it is."
)
DIVIDED = "The class has divided by the number of ranks already."
NOT_DIVIDED = (
    "The gradients of the ranks were added. Take their mean instead, since each rank's loss is a mean."
)


# ---- lines


def losses_line(spread: Spread, title: str, weight: float, trivial: bool = False) -> kit.Line:
    """Every rank has the losses of its rows that one process has."""

    def judge(observed: kit.Observed) -> kit.Finding:
        replies = observed.values
        if misfits := [reply.kind for reply in replies if reply.misfit]:
            said = f'distribute(model, "{spread.how}") returned no module'
            why = NO_RETURN if misfits[0] == "NoneType" else ""
            return kit.wrong(kit.Sentence(f"{said}: {misfits[0]}.", f"{said}."), why, cause="misfit")
        if any(None in reply.losses or len(reply.losses) != STEPS for reply in replies):
            return kit.wrong("a loss is not a finite number.")
        returned = [reply.losses for reply in replies]
        if near(returned, spread.right):
            return kit.RIGHT
        rank, step = next(
            (rank, step)
            for step in range(STEPS)
            for rank in range(spread.n)
            if not near([returned[rank][step : step + 1]], [spread.right[rank][step : step + 1]])
        )
        got, want = words.apart(returned[rank][step], spread.right[rank][step])
        fault = f"rank {rank} has another loss in step {step + 1} than one process"
        why = next(causes(spread, observed, returned), "")
        said = kit.Sentence(f"{fault}, {got} instead of {want}.", f"{fault}.")
        return kit.wrong(said, why, cause=why or f"losses {spread.how}")

    return kit.Line(title, judge, weight, trivial=trivial)


def causes(spread: Spread, observed: kit.Observed, returned: Losses) -> Iterator[str]:
    n, common = spread.n, spread.seeds[:1] * spread.n
    if n == 1:
        return
    shards = max(reply.held for reply in observed.values) <= PARAMETERS / n * (1 + SPARE)
    if spread.how == "ddp" and shards:
        yield FOR_DDP
    for seeds, says in ((common, UNSHARED), (spread.seeds, OWN_MODELS)):
        if near(returned, spread.losses(seeds, lambda _: False)):
            yield PARALLEL if observed.values[0].kind == "DataParallel" else says
    if near(returned, spread.losses(spread.seeds)):
        yield NOT_GIVEN
    if near(returned, spread.losses(common, lambda name: name.startswith("blocks."))):
        yield BLOCKS_ALONE
    for times, says in ((1 / n, DIVIDED), (n, NOT_DIVIDED)):
        if near(returned, spread.losses(common, times=times)):
            share = f"1/{n} of" if times < 1 else f"{n} times"
            yield f"The gradients were {share} one process's. {says}"


def replicas_line(spread: Spread, title: str, weight: float) -> kit.Line:
    """One all-reduce of the gradients."""
    due = least_bytes(spread.n, PARAMETERS * FLOAT)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(spread.n):
            amount = sent(observed, rank)
            if abs(amount / due - 1) > SPARE:
                fault = f"rank {rank} sent {words.number(round(amount))} bytes per step, "
                fault += f"but one sum of all gradients needs {words.number(round(due))}."
                shards = observed.values[rank].held < PARAMETERS
                return kit.wrong(fault, FOR_DDP if shards else "", cause="bytes of ddp")
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


def held_line(spread: Spread, title: str, weight: float) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, reply in enumerate(observed.values):
            if reply.held > PARAMETERS / spread.n * (1 + SPARE):
                everything = reply.held == PARAMETERS
                fault = (
                    f"rank {rank} holds {words.number(reply.held)} of {words.number(PARAMETERS)} parameters."
                )
                why = WHOLE if everything else BLOCKS_ALONE
                return kit.wrong(fault, why, cause="held", misses_point=everything)
        return kit.RIGHT

    return kit.Line(title, judge, weight, "memory")


def units_line(spread: Spread, title: str, weight: float) -> kit.Line:
    """No all-gather is larger than a block, or than the parameters outside the blocks."""
    most = max(BLOCK, REST)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(spread.n):
            at_once = 0 if observed.values[rank].misfit else largest(observed, rank)
            if at_once == 0:
                return kit.wrong(
                    f"rank {rank} gathered no parameters.", WHOLE, cause="held", misses_point=True
                )
            if at_once > most * (1 + SPARE):
                fault = f"rank {rank} gathered {words.number(at_once)} of {words.number(PARAMETERS)} "
                fault += f"parameters at the same time, but a block has {words.number(BLOCK)}."
                return kit.wrong(fault, ONE_UNIT, cause="units", misses_point=True)
        return kit.RIGHT

    return kit.telling(kit.Line(title, judge, weight, "communication"))


def shards_line(spread: Spread, title: str, weight: float) -> kit.Line:
    """Two gathers and a reduce-scatter. The root and the last block may stay, as backward begins there."""
    unit = least_bytes(spread.n, FLOAT) / 2  # for each parameter
    least, most = unit * (3 * PARAMETERS - REST - BLOCK), unit * 3 * PARAMETERS

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(spread.n):
            amount = sent(observed, rank)
            if amount < least * (1 - SPARE) or amount > most * (1 + SPARE):
                if largest(observed, rank) == 0:
                    return kit.wrong(f"rank {rank} gathered no parameters.", WHOLE, cause="held")
                if largest(observed, rank) > max(BLOCK, REST) * (1 + SPARE):
                    return kit.wrong("the blocks are not units of their own.", ONE_UNIT, cause="units")
                fault = f"rank {rank} sent {words.number(round(amount))} bytes per step, but blocks "
                fault += f"gathered twice need {words.number(round(unit * (3 * PARAMETERS - REST)))}."
                few = amount < least
                return kit.wrong(fault, STAYED if few else "", cause="bytes of fsdp", misses_point=few)
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


# ---- the exercise


def case(draw: kit.Draw, how: str, n: int) -> kit.Case:
    seeds = [draw.integer(0, 1 << 30)] * n
    if how == "ddp":
        seeds = [draw.integer(0, 1 << 30) for _ in range(n)]
    tokens = [
        torch.randint(CONFIG.vocab_size, (ROWS, CONFIG.context + 1), generator=draw.generator)
        for _ in range(STEPS)
    ]
    spread = Spread(how, seeds, [(each[:, :-1], each[:, 1:]) for each in tokens])
    title = f"{how}, {words.counted(n, 'rank')}"
    lines = [losses_line(spread, f"losses: {title}", 0.5 if n == 1 else 1.5, trivial=n == 1)]
    if how == "ddp":
        lines.append(replicas_line(spread, f"bytes: {title}", 0.5))
    if how == "fsdp":
        lines.append(units_line(spread, f"block by block: {title}", 1))
        lines.append(shards_line(spread, f"bytes: {title}", 0.5))
        lines.append(held_line(spread, f"a share of the parameters: {title}", 1))
    sides = [spread.side(rank) for rank in range(n)]
    return kit.Case(title, sides, lines, recipe=RECIPE, imports=IMPORTS, timeout=SECONDS)


def trouble(_: kit.Case, kind: str, text: str) -> str:
    if "Invariant encountered" in text:
        return INSIDE_OUT
    if "containers that do not implement forward" in text or "does not support containers" in text:
        return CONTAINER
    return DEVICE_IDS if "device_ids" in text else ""


@kit.exercise(points=5, objects=("distribute",), references=REFERENCES, point=POINT, hint=trouble)
def distribute(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, "one", 1)
    yield case(draw, "ddp", 2)
    yield case(draw, "fsdp", 2)
    if draw.hidden:
        yield case(draw, "ddp", 3)
        yield case(draw, "fsdp", 3)
