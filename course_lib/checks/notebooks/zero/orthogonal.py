"""muon_step: a step of Muon with each matrix on one rank, which alone orthogonalizes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.notebooks.zero.muon_ways import IDEAS, MuonRun, variants
from course_lib.checks.notebooks.zero.references import REFERENCE

NAME = "muon_step"
RECIPE = "course_lib.checks.rank.notebooks.zero.muon:stepped"
POINT = "whole matrices, each orthogonalized on the one rank that owns it"
SHAPES = ((6, 6), (4, 10), (12, 4), (7, 5), (3, 8))
EVERYWHERE = (
    "Every rank does the work of all. The owner orthogonalizes, and the all-gather brings its weights."
)
ALL_REDUCE = (
    "An all-reduce gives every rank the sum of everything. A reduce-scatter of rows gives each owner its own."
)
GATHERED = (
    "All gradients travelled to all ranks. A reduce-scatter adds on the way, and each owner gets its own sum."
)
TWO = (
    "One reduce-scatter of the gradients and one all-gather of the weights are enough, in rows for each rank."
)
NO_GRAD = "The matrices are parameters, which autograd watches. Decorate the function with @torch.no_grad()."
UNEQUAL = (
    "A collective needs rows of one length. Fill the rows of all ranks with zeros up to the longest, "
    "even the row of a rank that owns nothing."
)
HELD = "A matrix's momentum belongs to its owner, so `momenta` gets entries only for the rank's own matrices."
NOT_KEPT = (
    "`momenta` is empty after the step. Keep each own matrix's momentum there, under the matrix's number."
)


# ---- values


def values_line(
    run: MuonRun, steps: Sequence[int], title: str, weight: float, short: bool = False
) -> kit.Line:
    """Every rank has the matrices that one process has after these steps."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for step in steps:
            for place, rank in enumerate(run.members):
                for k, wanted in enumerate(run.after()[step][place]):
                    actual = observed.tensors[rank][f"{step}.{k}"]
                    if not run.near(actual, wanted):
                        shape = " x ".join(map(str, wanted.shape))
                        said = (
                            f"after step {step + 1}, matrix {k} ({shape}) on rank {rank} is not one process's"
                        )
                        sentence = kit.difference(said, actual.double(), wanted)
                        says = usual(run, observed)
                        return kit.wrong(sentence, says, cause=says or "values", misses_point=says in IDEAS)
        return kit.RIGHT

    return kit.Line(title, judge, weight, short=short)


def usual(run: MuonRun, observed: kit.Observed) -> str:
    """The mistake that gives the matrices of all ranks after all steps."""
    if all(
        torch.equal(observed.tensors[rank][f"{step}.{k}"], p)
        for rank in run.members for step in run.steps for k, p in enumerate(run.params)
    ):  # fmt: skip
        return "Nothing was changed. Write the new weights into the matrices themselves, in place."
    for says, ways in variants(run).items():
        if any(matches(run, way, observed) for way in ways):
            return says
    return ""


def matches(run: MuonRun, way, observed: kit.Observed) -> bool:
    return all(
        run.near(observed.tensors[rank][f"{step}.{k}"], wanted)
        for step in run.steps
        for rank, matrices in zip(run.members, run.after(way)[step], strict=True)
        for k, wanted in enumerate(matrices)
    )


def same_bits_line(run: MuonRun, title: str, weight: float) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        first, *others = run.members
        for rank in others:
            for name, tensor in observed.tensors[first].items():
                if not torch.equal(observed.tensors[rank][name], tensor):
                    said = f"ranks {first} and {rank} have different bits in matrix {name.split('.')[1]}."
                    why = "Every rank, even the owner, must take the weights the owner sent."
                    return kit.wrong(said, why, cause="bits")
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


# ---- work, memory, bytes


def work_line(run: MuonRun, title: str, weight: float) -> kit.Line:
    """No rank orthogonalizes more than its own matrices."""
    own = [sorted(list(run.params[k].shape) for k in numbers) for numbers in run.owned]

    def judge(observed: kit.Observed) -> kit.Finding:
        for place, rank in enumerate(run.members):
            for shapes in observed.values[rank].shapes:
                if len(shapes) > len(own[place]):
                    times, mine = words.counted(len(shapes), "time"), len(own[place])
                    said = (
                        f"rank {rank} orthogonalized {times} in a step, but it owns {mine} of the matrices."
                    )
                    return kit.wrong(said, EVERYWHERE, cause="work", misses_point=True)
        return kit.RIGHT

    def shows(observed: kit.Observed) -> float:
        came = [
            (sorted(shapes), mine)
            for mine, rank in zip(own, run.members, strict=True)
            for shapes in observed.values[rank].shapes
        ]
        if any(len(shapes) > len(mine) for shapes, mine in came):
            return kit.MORE
        return float(all(shapes == mine for shapes, mine in came))

    return kit.Line(title, judge, weight, "communication", shows=shows)


def momenta_line(run: MuonRun, title: str, weight: float) -> kit.Line:
    """A rank keeps a momentum of its own matrices and of no others."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for elements, rank in zip(run.elements, run.members, strict=True):
            held = max(observed.values[rank].held, default=0)
            if held > elements:
                much = f"{words.number(held)} elements of momentum"
                said = f"rank {rank} keeps {much}, but its own matrices have {words.number(elements)}."
                return kit.wrong(said, HELD, cause="momenta")
            if elements and not held:
                return kit.wrong(f"rank {rank} keeps no momentum in `momenta`.", NOT_KEPT, cause="momenta")
        return kit.RIGHT

    return kit.Line(title, judge, weight, "memory")


def bytes_line(run: MuonRun, title: str, weight: float) -> kit.Line:
    """At most two collectives of padded rows; at least each element once, as a gradient or a weight."""
    count, steps = len(run.members), len(run.steps)
    most = 2 * (count - 1) * max(run.elements) * run.item * steps
    least = sum(run.elements) * run.item * steps if count > 1 else 0

    def hint(ratio: float, observed: kit.Observed) -> str:
        kinds = {operation.op for operations in observed.operations for operation in operations}
        if ratio < 1:
            return "Gradients of the other ranks' matrices and the own new weights have to leave a rank."
        if "all_reduce" in kinds:
            return ALL_REDUCE
        return GATHERED if "reduce_scatter" not in kinds and "reduce" not in kinds else TWO

    ranks = [rank in run.members for rank in range(run.n)]
    return kit.volume_line(
        [least * own for own in ranks],
        most=[most * own for own in ranks],
        hint=hint,
        weight=weight,
        title=title,
    )


# ---- the exercise


def case(title: str, run: MuonRun, lines: Sequence[kit.Line]) -> kit.Case:
    placed = {rank: run.side(place) for place, rank in enumerate(run.members)}
    sides = [placed.get(rank) or kit.absent() for rank in range(run.n)]
    groups = [list(run.members)] if len(run.members) < run.n else []
    return kit.Case(title, sides, list(lines), recipe=RECIPE, groups=groups)


def broken_off(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause when a run ends early."""
    if "leaf Variable" in text or "requires grad" in text:
        return NO_GRAD
    lengths = (
        "non-empty",
        "must be the same size",
        "output tensor size",
        "must be equal",
        "divisible",
        "max()",
    )
    if any(part in text for part in lengths):
        return UNEQUAL
    return training_runs.group_trouble(case_of_it, text)


@kit.exercise(
    points=3, objects=(NAME,), references=REFERENCE, extra=True, hint=broken_off, point=POINT
)  # fmt: skip
def muon_step(draw: kit.Draw) -> Iterator[kit.Case]:
    run = MuonRun.draw(draw, SHAPES, 3, (0, 1))
    yield case("2 ranks", run,
        [
            values_line(run, [0], "2 ranks, the first step", 1.5),
            values_line(run, [1, 2], "steps 2 and 3, with momentum", 1.5),
            work_line(run, "each rank orthogonalizes its own matrices", 2),
            bytes_line(run, "bytes: a reduce-scatter and an all-gather", 1),
            same_bits_line(run, "the same bits on every rank", 0.5),
            momenta_line(run, "momenta of the own matrices", 1),
        ],
    )  # fmt: skip
    run = MuonRun.draw(draw, SHAPES[1:], 2, (0, 1, 2), lr=0.1, beta=0.8)
    yield case("3 ranks", run, [values_line(run, run.steps, "3 ranks, other lr and beta", 1)])
    run = MuonRun.draw(draw, SHAPES[:2], 2, (0, 1, 2))
    yield case("few", run, [values_line(run, run.steps, "2 matrices on 3 ranks", 1)])
    run = MuonRun.draw(draw, SHAPES[2:], 2, (1, 2), 3)
    yield case("group", run, [values_line(run, run.steps, "group {1, 2} of 3 ranks", 1)])
    if draw.hidden:
        run = MuonRun.draw(draw, SHAPES, 2, (0,))
        yield case("1 rank", run, [values_line(run, run.steps, "1 rank", 0.5, short=True)])
        run = MuonRun.draw(draw, SHAPES + SHAPES, 2, (0, 1, 2, 3), dtype=torch.float32)
        yield case("4 ranks", run, [values_line(run, run.steps, "4 ranks, float32", 0.5, short=True)])
