"""A unit of some MB, and a rank's memory for it between its uses, measured from outside the rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.notebooks.zero.runs import SLACK
from course_lib.checks.notebooks.zero.unit_lines import ADVICE, UnitRun, close, own_shard, ranks
from course_lib.checks.rank import watching
from course_lib.checks.rank.notebooks.zero import held
from course_lib.runtime.moments import BASE

RECIPE = "course_lib.checks.rank.notebooks.zero.held:unit"
N = 2
WIDTH = 512
SHAPES = ((WIDTH, WIDTH), (2 * WIDTH,), (WIDTH, WIDTH), ())  # 4.2 MB; an odd number
ITEM = 8
OF_TENSORS = (1.02, 4096)  # of bytes of tensors, which are counted exactly: a share, and a few small ones
COPY = 0.45  # of the parameters: from so much on it is as good as a copy of them, perhaps in fewer bits
AFTER = {
    "made": "the constructor",
    "freed": "gather() and free()",
    "reduced": "gather() and reduce()",
    "end": "reduce() and free()",
}
KEPT = {
    "made": (
        "A rank needs only its shard here. Usually an attribute still refers to the whole row, to a "
        "copy of it, or to the old tensors of the parameters, because local names are gone when the "
        "constructor returns. A shard that is a view also keeps its whole row, so make it a copy, "
        "own.clone()."
    ),
    "freed": (
        "A rank needs only its shard here. Usually gather() or free() leaves a whole row in an "
        "attribute. free() empties the storage behind the parameters, but every other copy stays. Let "
        "the all-gather write directly into that storage."
    ),
    "reduced": (
        "A rank needs only the gathered parameters, the shard and its gradient here. Usually reduce() "
        "leaves the whole gradients, or the row in which they were sent, in an attribute, because "
        "local names are gone when it returns."
    ),
}
KEPT["end"] = KEPT["reduced"].replace("gathered parameters, the shard", "shard")
LEFT = "Set .grad of the parameters to None in reduce(), because the whole gradients must be freed."


@dataclass(frozen=True)
class Seeds:
    """From which the values of a run are drawn: params[rank], grads[rank]."""

    params: tuple[int, ...]
    grads: tuple[int, ...]

    def run(self) -> UnitRun:
        params = [list(held.drawn(seed, SHAPES)) for seed in self.params]
        grads: list[list[torch.Tensor | None]] = [list(held.drawn(seed, SHAPES)) for seed in self.grads]
        return UnitRun(params, [grads], torch.empty(0))


TOTAL = sum(torch.Size(shape).numel() for shape in SHAPES)
WHOLE = TOTAL * ITEM
SHARD = -(-TOTAL // N) * ITEM
ENOUGH = {"made": SHARD, "freed": SHARD, "reduced": WHOLE + 2 * SHARD, "end": 2 * SHARD}


def large_unit(draw: kit.Draw) -> kit.Case:
    """A unit that is made, gathered, freed and reduced, and its ranks measured in between."""
    seeds = Seeds(*(tuple(draw.integer(1, 1 << 30) for _ in range(N)) for _ in range(2)))
    size = f"{training_runs.megabytes(WHOLE)} of parameters, {N} ranks"
    shard = kit.Spec(torch.float64, (SHARD // ITEM,))
    some = {
        f"some.{k}": kit.Spec(torch.float64, (held.count_of_some(shape),)) for k, shape in enumerate(SHAPES)
    }
    sides = [
        kit.RankSide(
            {},
            held.UnitMemoryInstructions([list(shape) for shape in SHAPES], params, grads),
            {"shard": shard, "mean": shard} | some,
        )
        for params, grads in zip(seeds.params, seeds.grads, strict=True)
    ]
    moments = held.MOMENTS
    return kit.Case(
        size, sides, [values_line(seeds, size), memory_line()], recipe=RECIPE,
        unrecorded=watching.settled(len(moments)),
        moments=(BASE, *(f"held.{when}" for when in moments)), room=watching.ROOM,
    )  # fmt: skip


def values_line(seeds: Seeds, title: str) -> kit.Line:
    """Shard, gathered parameters and the shard's gradient have the right values, from the bytes held."""

    def judge(observed: kit.Observed) -> kit.Finding:
        run = seeds.run()
        if not (shards := own_shard(run)(observed)).ok:
            return shards
        mean = run.mean(0)
        for place, rank in enumerate(ranks(observed)):
            if not observed.values[rank].whole:
                return kit.wrong(
                    f"after gather() a parameter on rank {rank} does not have its shape, or has no memory "
                    "for it.",
                    cause="not whole",
                )
            for k, p in enumerate(run.params[0]):
                if not close(observed.tensors[rank][f"some.{k}"], p.flatten()[:: held.SOME]):
                    return kit.wrong(
                        f"after gather() parameter {k} on rank {rank} does not have the shards' values.",
                        "The all-gather must bring the shards' values, however large the parameters are.",
                        cause="gathered first",
                    )
            if not close(observed.tensors[rank]["mean"], run.part(mean, place)):
                return kit.wrong(
                    f"after reduce() shard.grad on rank {rank} is not the mean over the ranks.",
                    "A reduce-scatter of the row of gradients, divided by the number of ranks, gives it.",
                    cause="mean 0",
                )
        return kit.RIGHT

    return kit.Line(title, judge, 0.5)


def memory_line() -> kit.Line:
    """Between uses a rank holds its shard, and after reduce() the shard's gradient.

    Tensors are counted in the rank, exactly; the pages of the process from outside, whatever holds them.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        findings = [
            finding for rank in ranks(observed) for when in held.MOMENTS
            if (finding := too_much(observed, rank, when))
        ]  # fmt: skip
        return next((finding for finding in findings if finding.misses_point), (*findings, kit.RIGHT)[0])

    def shows(observed: kit.Observed) -> float:
        whole = all(observed.values[rank].whole for rank in ranks(observed))
        return float(whole and not judge(observed).misses_point)

    return kit.Line(
        "memory held: the shard; after reduce() its gradient, too", judge, 3, "memory",
        shows=shows, part="memory of the process",
        enough={f"held.{when}": enough + SLACK for when, enough in ENOUGH.items()}
        | {f"alive.{when}": of_tensors(enough) for when, enough in ENOUGH.items()},
    )  # fmt: skip


def of_tensors(enough: float) -> float:
    share, small = OF_TENSORS
    return share * enough + small


def too_much(observed: kit.Observed, rank: int, when: str) -> kit.Finding | None:
    """The finding on a rank's memory at that moment; None if it is right."""
    reply, pages = observed.values[rank], observed.held[rank].get(f"held.{when}")
    alive, behind = reply.alive.get(when), reply.behind.get(when)
    if not pages or alive is None or behind is None:
        return kit.wrong(f"rank {rank} was not measured after {AFTER[when]}.", cause=kit.ANY)
    if finding := measured_early(observed, rank, when):
        return finding
    enough, got = ENOUGH[when], alive
    if pages[0] > enough + SLACK:
        got = max(alive, pages[0])
    if got <= of_tensors(enough):
        return None
    advice, cause, misses = why(reply, when, behind, got - enough)
    much = f"after {AFTER[when]}; {training_runs.megabytes(enough)} are enough."
    said = kit.Sentence(
        f"rank {rank} holds {training_runs.megabytes(got)} {much}", f"rank {rank} holds too much {much}"
    )
    return kit.wrong(said, advice, cause=cause, misses_point=misses)


def measured_early(observed: kit.Observed, rank: int, when: str) -> kit.Finding | None:
    begun, place = observed.values[rank].begun, held.MOMENTS.index(when)
    earlier = begun.get(held.MOMENTS[place - 1], 0) if place else 0
    sent = sum(operation.bytes_sent for operation in observed.operations[rank][:earlier])
    return kit.asked_early(observed, rank, f"held.{when}", begun=begun.get(when, 0), sent=sent)


def why(reply: held.UnitMemoryReply, when: str, behind: int, excess: float) -> tuple[str, str, bool]:
    """(usual cause in words, the cause, whether the point of the exercise is missed).

    Another line judges the memory behind the parameters themselves, and their gradients.
    """
    if when in ADVICE and behind:
        return ADVICE[when], f"held {when}", when == "freed"
    if when in ("reduced", "end") and reply.left:
        return LEFT, "left", False
    return KEPT[when], f"kept {when}", excess >= COPY * WHOLE
