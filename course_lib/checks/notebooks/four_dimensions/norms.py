"""Norms of a gradient in pieces and in copies: the right one, and the one that each mistake gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.meshes import OnMesh
from course_lib.checks.rank.notebooks.four_dimensions.on_a_mesh import NormInstructions

TABLE = "token_embedding.weight"
EQUAL = 1e-6  # relative: a mistake's norm in another precision
WHOLE = "Parameters that are whole on tp are on all of its ranks, so only the first of them counts."
TWICE = "A tied weight is on two stages, with equal gradients, so only its first stage counts."
NOWHERE = "A tied weight counts on its first stage, but here it counts on none."
INVERTED = (
    "`cut` has the names of the parts. Each rank of tp counts its own, but only the first one counts the "
    "other parameters."
)
CUT_ALONE = (
    "Some of the parameters that are not in `cut` are missing, but on each stage the first rank of tp counts "
    "them."
)
FIRST_ALONE = "Only the first rank of tp counts, but each rank has another part of the parameters in `cut`."
REPLICAS = "Ranks of dp and cp hold the same gradients, so nothing is sent to them."
FIRST_HAS_IT = "Only the first rank of the group has the sum. Use all_reduce, so that all ranks have it."
OWN = "Each rank has a norm of its own pieces instead of the norm of the whole model."
STAGES = "The stages were not added, so also sum over pp."
RANKS_OF_TP = "The ranks of tp were not added, so also sum over tp."
SQUARES = "Norms do not add up, but their squares do. Add the squares of all pieces, then take the root."
FLOAT32 = "The norm is right to about seven digits, so add up the squares in float64, as the gradients are."


class Held(NamedTuple):
    """The properties of a parameter and its rank that decide whether the rank counts it."""

    cut: bool
    tied: bool
    first_of_tp: bool
    first_of_pp: bool


Rule = Callable[[Held], bool]


def counts_once(held: Held) -> bool:
    return (held.cut or held.first_of_tp) and (not held.tied or held.first_of_pp)


def counts_tied_twice(held: Held) -> bool:
    return held.cut or held.first_of_tp


def counts_copies(held: Held) -> bool:
    return not held.tied or held.first_of_pp


def counts_everything(held: Held) -> bool:
    return True


def counts_tied_nowhere(held: Held) -> bool:
    return (held.cut or held.first_of_tp) and not held.tied


def counts_cut_as_whole(held: Held) -> bool:
    return (not held.cut or held.first_of_tp) and (not held.tied or held.first_of_pp)


def counts_cut_alone(held: Held) -> bool:
    return held.cut and (not held.tied or held.first_of_pp)


def counts_on_first_of_tp(held: Held) -> bool:
    return held.first_of_tp and (not held.tied or held.first_of_pp)


class Mistake(NamedTuple):
    """A mistake, its sentence, and the norm that it gives on a rank."""

    says: str
    norm: Callable[[int], float]
    misses_point: bool = False  # it is not the norm of one whole model


@dataclass(frozen=True)
class Model:
    """Gradients of a model in pieces. whole: by stage and name, in float64; None: there is no gradient.

    cut: names of parameters that tp cuts by rows; tied: whether the table is on the last stage, too.
    share: max_norm over the norm.
    """

    mesh: OnMesh
    whole: dict[tuple[int, str], Tensor | None]
    cut: frozenset[str]
    tied: bool
    share: float

    def names(self, rank: int) -> list[str]:
        own = self.mesh.place(rank, "pp")
        return [name for stage, name in self.whole if stage == own]

    def piece(self, rank: int, name: str) -> Tensor | None:
        whole = self.whole[self.mesh.place(rank, "pp"), name]
        if whole is None or name not in self.cut:
            return whole
        return whole.chunk(self.mesh.size("tp"))[self.mesh.place(rank, "tp")]

    def pieces(self, rank: int) -> dict[str, Tensor]:
        named = ((name, self.piece(rank, name)) for name in self.names(rank))
        return {name: piece for name, piece in named if piece is not None}

    def held(self, rank: int, name: str) -> Held:
        first_of_tp, first_of_pp = (self.mesh.place(rank, axis) == 0 for axis in ("tp", "pp"))
        tied = self.tied and name == TABLE and self.mesh.size("pp") > 1
        return Held(name in self.cut, tied, first_of_tp, first_of_pp)

    def counts(self, rank: int, name: str) -> bool:
        return counts_once(self.held(rank, name))

    def counted(self, rank: int, rule: Rule = counts_once) -> list[Tensor]:
        """The pieces that the rank counts."""
        return [piece for name, piece in self.pieces(rank).items() if rule(self.held(rank, name))]

    def square(self, rank: int, rule: Rule = counts_once) -> float:
        return sum(square(piece) for piece in self.counted(rank, rule))

    def over(self, rank: int, *axes: str, rule: Rule = counts_once) -> float:
        """The squares that ranks along the axes count."""
        return sum(self.square(other, rule) for other in self.mesh.ranks(rank, *axes))

    @property
    def norm(self) -> float:
        return self.over(0, "pp", "tp") ** 0.5

    @property
    def max_norm(self) -> float:
        return round(self.share * self.norm, 3)

    @property
    def factor(self) -> float:
        return min(1.0, self.max_norm / (self.norm + 1e-6))

    def side(self, rank: int) -> kit.RankSide:
        pieces, names = self.pieces(rank), self.names(rank)
        outputs = {name: kit.Spec.of(piece) for name, piece in pieces.items()}
        outputs |= {
            f"weight.{name}": kit.Spec.of(pieces.get(name, torch.zeros(3).double())) for name in names
        }
        instructions = NormInstructions(
            **self.mesh.described(rank),
            named=names,
            cut=[name for name in names if name in self.cut],
            tied=[TABLE] if self.tied and TABLE in names and self.mesh.size("pp") > 1 else [],
            max_norm=self.max_norm,
            expects={name: spec.agreed() for name, spec in outputs.items()},
        )
        return kit.RankSide({name: piece.clone() for name, piece in pieces.items()}, instructions, outputs)

    # ---- mistakes, the simplest first: where a mesh lacks an axis, several give one norm

    def root(self, *axes: str, often: float = 1, rule: Rule = counts_once) -> Callable[[int], float]:
        return lambda rank: (often * self.over(rank, *axes, rule=rule)) ** 0.5

    def mistakes(self) -> Iterator[Mistake]:
        yield from self.of_some_ranks()
        yield from self.of_rules()
        yield from self.of_replicas()
        yield from self.of_formulas()

    def of_some_ranks(self) -> Iterator[Mistake]:
        for says, axes in ((OWN, ()), (STAGES, ("tp",)), (RANKS_OF_TP, ("pp",))):
            yield Mistake(says, self.root(*axes, rule=counts_everything), misses_point=True)
            yield Mistake(says, self.root(*axes), misses_point=True)
        for rule in (counts_once, counts_everything):
            most = max(self.square(rank, rule) for rank in range(self.mesh.n)) ** 0.5
            says = "Your norm is the largest rank's norm, but the squares of all ranks have to be added."
            yield Mistake(says, lambda rank, most=most: most, misses_point=True)

    def of_rules(self) -> Iterator[Mistake]:
        """Some parameters count twice, or not at all."""
        rules = {
            TWICE: counts_tied_twice, WHOLE: counts_copies, NOWHERE: counts_tied_nowhere,
            INVERTED: counts_cut_as_whole, CUT_ALONE: counts_cut_alone, FIRST_ALONE: counts_on_first_of_tp,
        }  # fmt: skip
        for says, rule in rules.items():
            yield Mistake(says, self.root("pp", "tp", rule=rule), misses_point=says == WHOLE)
        both = f"{WHOLE} {TWICE}"
        yield Mistake(both, self.root("pp", "tp", rule=counts_everything), misses_point=True)

    def of_replicas(self) -> Iterator[Mistake]:
        rules = {
            REPLICAS: counts_once,
            f"{REPLICAS} {WHOLE}": counts_copies,
            f"{REPLICAS} {TWICE}": counts_tied_twice,
        }
        often = self.mesh.size("dp", "cp")
        for says, rule in rules.items():
            yield Mistake(says, self.root("pp", "tp", often=often, rule=rule), misses_point=True)
        all_ranks = self.root("pp", "tp", often=often, rule=counts_everything)
        yield Mistake(f"Your norm is over all ranks. {REPLICAS} {WHOLE}", all_ranks, misses_point=True)

    def of_formulas(self) -> Iterator[Mistake]:
        """Another number than the root of a sum of squares."""
        together = self.mesh.ranks(0, "pp", "tp")

        def same(value: float) -> Callable[[int], float]:
            return lambda rank: value

        for rule in (counts_once, counts_everything):
            of_ranks = [
                sum(self.square(k, rule) ** 0.5 for k in self.mesh.ranks(rank, "pp", "tp"))
                for rank in range(self.mesh.n)
            ]
            yield Mistake(SQUARES, of_ranks.__getitem__)
        for rule in (counts_once, counts_everything, counts_copies, counts_tied_twice):
            total = sum(square(piece) ** 0.5 for k in together for piece in self.counted(k, rule))
            yield Mistake(SQUARES, same(total))
            yield Mistake(SQUARES, same(total**0.5))
        counted = [piece for k in together for piece in self.counted(k)]
        yield Mistake("Your norm is the square of the right one, so take its root.", same(self.norm**2))
        yield Mistake(
            "Your norm is the root of the right one. Leave `squares` a sum of squares, because its root is "
            "taken at the end.",
            same(self.norm**0.5),
        )
        for axis in ("tp", "pp"):
            share = self.norm / self.mesh.size(axis) ** 0.5
            yield Mistake(f"The squares were averaged over {axis}, but the norm has their sum.", same(share))
        mean = self.norm / len(together) ** 0.5
        yield Mistake("The squares of pp and tp were averaged, but the norm has their sum.", same(mean))
        magnitudes = sum(float(piece.abs().sum()) for piece in counted)
        yield Mistake(
            "Your norm is the sum of magnitudes instead of the root of the sum of squares.", same(magnitudes)
        )
        scaled = self.norm * self.factor
        yield Mistake("Your norm was taken after scaling, so return the norm before scaling.", same(scaled))
        largest = max(float(piece.abs().max()) for k in together for piece in self.pieces(k).values())
        yield Mistake(
            "Your norm is the largest element's magnitude instead of the root of the sum of squares.",
            same(largest), misses_point=True,
        )  # fmt: skip


def square(tensor: Tensor) -> float:
    return float(tensor.square().sum())


def explained(model: Model, norms: Sequence[float]) -> Mistake | None:
    """The mistake that gives all of these norms, of which one is wrong."""
    ranks = range(len(norms))
    if all(equal(got, model.norm) for got in norms):
        return Mistake(FLOAT32, lambda rank: model.norm)
    for mistake in model.mistakes():
        if all(equal(norms[rank], mistake.norm(rank)) for rank in ranks):
            return mistake
    return None


def equal(got: float, wanted: float) -> bool:
    return abs(got - wanted) <= EQUAL * max(wanted, 1e-9)
