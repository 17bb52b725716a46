"""clip_grad_norm: one norm of a gradient in pieces and in copies, and one factor for all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from course_lib.checks import words
from course_lib.checks.kit import (
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    Spec,
    difference,
    essential,
    exercise,
    wrong,
)
from course_lib.checks.notebooks.four_dimensions.groups import OnMesh
from course_lib.checks.notebooks.four_dimensions.references import REFERENCES

RECIPE = "course_lib.checks.rank.notebooks.four_dimensions.on_a_mesh:norms"
NUMBER = 8  # bytes
ROUNDING = 1e-9  # of the norm, and of the largest element
WEIGHT = 7.0  # of every parameter: it must stay
TABLE = "token_embedding.weight"
POINT = "one norm of the whole model, in which each element counts once, and of which numbers travel alone"
WHOLE = "Parameters that are whole on tp are on all of its ranks: the first of them counts."
TWICE = "A tied weight is on two stages, with equal gradients: its first stage counts."
REPLICAS = "Ranks of dp and cp hold the same gradients: nothing is sent to them."
OWN = "Each rank has a norm of its own pieces: the norm is that of the whole model."
SQUARES = "Norms do not add up, their squares do: add the squares of all pieces, then take the root."
NONE = (
    "A parameter without a gradient has `grad` None: skip it, and take part in the all-reduce all the same."
)
MISSING = "The mesh has no such axis: there every rank is at place 0, and `mesh.coordinate` has no entry."
ALL = (
    "All members of a group must call its collectives, in one order: also ranks that have nothing to count, "
    "or no gradients."
)


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

    def counts(self, rank: int, name: str, *, twice: bool = False, copies: bool = False) -> bool:
        """Whether the rank counts the parameter. twice: tied ones on both ends; copies: whole ones on tp."""
        first_of_tp, first_of_pp = (self.mesh.place(rank, axis) == 0 for axis in ("tp", "pp"))
        is_tied = self.tied and name == TABLE and self.mesh.size("pp") > 1
        return (name in self.cut or first_of_tp or copies) and (not is_tied or first_of_pp or twice)

    def square(self, rank: int, **how: bool) -> float:
        return sum(square(p) for name, p in self.pieces(rank).items() if self.counts(rank, name, **how))

    def over(self, rank: int, *axes: str, **how: bool) -> float:
        """The squares that ranks along the axes count."""
        return sum(self.square(other, **how) for other in self.mesh.ranks(rank, *axes))

    @property
    def norm(self) -> float:
        return self.over(0, "pp", "tp") ** 0.5

    @property
    def max_norm(self) -> float:
        return round(self.share * self.norm, 3)

    @property
    def factor(self) -> float:
        return min(1.0, self.max_norm / (self.norm + 1e-6))

    def side(self, rank: int) -> RankSide:
        pieces, names = self.pieces(rank), self.names(rank)
        outputs = {name: Spec.of(piece) for name, piece in pieces.items()}
        outputs |= {f"weight.{name}": Spec.of(pieces.get(name, torch.zeros(3).double())) for name in names}
        instructions = {
            **self.mesh.described(rank),
            "named": names,
            "cut": [name for name in names if name in self.cut],
            "tied": [TABLE] if self.tied and TABLE in names and self.mesh.size("pp") > 1 else [],
            "max_norm": self.max_norm,
            "expects": {n: [str(s.dtype)[6:], list(s.shape)] for n, s in outputs.items()},
        }
        return RankSide({name: piece.clone() for name, piece in pieces.items()}, instructions, outputs)

    # ---- mistakes: the norm that each gives on a rank

    def norms(self) -> Iterator[tuple[str, Callable[[int], float]]]:
        size, n = self.mesh.size, self.mesh.n
        replicas, everything = size("dp", "cp"), {"twice": True, "copies": True}
        squares = self.norm**2

        def root(*axes: str, often: float = 1, **how: bool) -> Callable[[int], float]:
            return lambda rank: (often * self.over(rank, *axes, **how)) ** 0.5

        def summed(**how: bool) -> Callable[[int], float]:
            return lambda rank: sum(self.square(k, **how) ** 0.5 for k in self.mesh.ranks(rank, "pp", "tp"))

        def of_tensors(rank: int) -> float:
            counted = (
                square(piece) ** 0.5
                for k in self.mesh.ranks(rank, "pp", "tp")
                for name, piece in self.pieces(k).items()
                if self.counts(k, name)
            )
            return sum(counted)

        def largest(rank: int) -> float:
            pieces = (piece for k in range(n) for piece in self.pieces(k).values())
            return max(float(piece.abs().max()) for piece in pieces)

        yield OWN, root(**everything)
        yield OWN, root()
        yield TWICE, root("pp", "tp", twice=True)
        yield WHOLE, root("pp", "tp", copies=True)
        yield f"{WHOLE} {TWICE}", root("pp", "tp", **everything)
        yield f"That is over all ranks. {REPLICAS} {WHOLE}", root("pp", "tp", often=replicas, **everything)
        yield REPLICAS, root("pp", "tp", often=replicas)
        yield f"{REPLICAS} {WHOLE}", root("pp", "tp", often=replicas, copies=True)
        yield f"{REPLICAS} {TWICE}", root("pp", "tp", often=replicas, twice=True)
        yield "The stages were not added: sum over pp, too.", root("tp")
        yield "The stages were not added: sum over pp, too.", root("tp", **everything)
        yield "The ranks of tp were not added: sum over tp, too.", root("pp")
        yield SQUARES, summed()
        yield SQUARES, summed(**everything)
        yield SQUARES, of_tensors
        yield "That is the square of the norm: take its root.", lambda rank: squares
        yield "That is the largest element's magnitude: take the root of the sum of squares.", largest
        for how in ({}, everything):
            most = max(self.square(rank, **how) for rank in range(n)) ** 0.5
            yield "That is the largest rank's norm: add the squares of all ranks.", lambda rank, m=most: m


def square(tensor: Tensor) -> float:
    return float(tensor.square().sum())


# ---- lines


def norm_line(model: Model, title: str) -> Line:
    def judge(observed: Observed) -> Finding:
        returned = [values.returned[0] for values in observed.values]
        for rank, value in enumerate(returned):
            if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
                return wrong(
                    f"on rank {rank} no finite number was returned.",
                    "Return the norm before scaling, as a float.",
                )
        off = [rank for rank, value in enumerate(returned) if abs(value - model.norm) > ROUNDING * model.norm]
        if not off:
            return RIGHT
        got, want = words.apart(float(returned[off[0]]), model.norm)
        fault = f"rank {off[0]} returned another norm than that of the whole gradient"
        why = explained(model, returned)
        if why == OWN:
            got = words.listing(f"{value:.4f}" for value in (returned[0], returned[-1]))
            fault = f"ranks 0 and {observed.world_size - 1} returned norms of their own"
        return wrong(Sentence(f"{fault}: {got} instead of {want}.", f"{fault}."), why)

    return essential(Line(f"the norm: {title}", judge))


def explained(model: Model, norms: list[float]) -> str:
    """The mistake that gives all of these norms."""
    for says, norm in model.norms():
        if all(abs(got - norm(rank)) <= 1e-6 * max(norm(rank), 1e-9) for rank, got in enumerate(norms)):
            return says
    return ""


def factor_of(model: Model, observed: Observed) -> float:
    """The factor of the norm that all ranks returned, if it is one and shrinks gradients; else the right one.

    So a wrong norm does not cost the line on scaling, too.
    """
    norms = {norm for values in observed.values if isinstance(norm := values.returned[0], float)}
    if len(norms) == 1 and (norm := norms.pop()) > model.max_norm > 0 and isfinite(norm):
        return model.max_norm / (norm + 1e-6)
    return model.factor


def scaled_line(model: Model, title: str) -> Line:
    def judge(observed: Observed) -> Finding:
        factors = []
        for rank in range(observed.world_size):
            tensors = observed.tensors[rank]
            if any(bool((tensors[f"weight.{name}"] != WEIGHT).any()) for name in model.names(rank)):
                return wrong(f"on rank {rank} a parameter was changed: scale its gradient instead.")
            if name := next(iter(observed.values[rank].misfits), ""):
                return wrong(f"on rank {rank} the gradient of {name} is gone, or has another shape.")
            for name, before in model.pieces(rank).items():
                got = float((tensors[name] * before).sum() / before.square().sum())
                if not bool(((tensors[name] - got * before).abs() <= ROUNDING * before.abs().max()).all()):
                    said = difference(
                        f"on rank {rank} the gradient of {name} is wrong",
                        tensors[name],
                        model.factor * before,
                    )
                    return wrong(said, "All elements are scaled by one factor: the direction stays.")
                factors.append((rank, name, got))
        factor = factor_of(model, observed)
        off = [entry for entry in factors if abs(entry[2] - factor) > 1e-8]
        if not off:
            return RIGHT
        rank, name, got = off[0]
        fault = f"on rank {rank} the gradient of {name} was scaled by another factor"
        said = Sentence(f"{fault}: {got:.4g} instead of {model.factor:.4g}.", f"{fault}.")
        return wrong(said, why(observed, factors))

    def why(observed: Observed, factors: list[tuple[int, str, float]]) -> str:
        by_rank = {rank: got for rank, _, got in factors}
        spread = [got for _, _, got in factors]
        alike = max(spread) - min(spread) < 1e-8
        if alike and abs(spread[0] - 1) < 1e-8:
            return "Gradients were left as they were: scale `grad` itself, in place (mul_)."
        if alike and model.factor == 1:
            return "A norm below max_norm stays: the factor is min(1, max_norm / norm)."
        left = [rank for rank, got in by_rank.items() if abs(got - 1) < 1e-8]
        if left and all(abs(got - model.factor) < 1e-8 for k, got in by_rank.items() if k not in left):
            return f"Only some ranks scaled: {words.ranks(left)} left their gradients as they were."
        if not alike and all(abs(g - by_rank[r]) < 1e-8 for r, _, g in factors):
            low, high = min(by_rank, key=by_rank.__getitem__), max(by_rank, key=by_rank.__getitem__)
            return Sentence(
                f"Ranks {low} and {high} scaled by {by_rank[low]:.2g} and {by_rank[high]:.2g} instead of "
                f"{model.factor:.2g}: copies of what is whole drift apart.",
                "Each rank scaled by a factor of its own: copies of what is whole drift apart.",
            )
        if alike and abs(spread[0] * model.factor - 1) < 1e-6:
            return "Gradients were divided by the factor."
        norm = model.max_norm / max(spread[0], 1e-12)
        cause = explained(model, [norm] * observed.world_size) if alike else ""
        return cause or "All gradients are scaled by one factor, on all ranks and stages."

    return Line(f"gradients scaled: {title}", judge, 2)


def traffic_line(model: Model, title: str) -> Line:
    """At most some numbers for each parameter, and nothing to the replicas."""
    most = 4 * NUMBER * len(model.whole)

    def judge(observed: Observed) -> Finding:
        for rank in range(observed.world_size):
            operations = model.mesh.called(observed, rank)
            sent = sum(operation.bytes_sent for operation in operations)
            if sent > most:
                fault = f"rank {rank} sent {words.number(round(sent))} bytes; "
                fault += f"an all-reduce of {NUMBER} bytes is enough."
                return wrong(fault, "Add up the squares on the rank: numbers travel, not gradients.")
        return RIGHT

    return essential(Line(f"bytes: {title}", judge, 0.5, "communication"))


# ---- the exercise


def case(
    draw: Draw, sizes: dict[str, int], title: str, share: float, *, tied: bool = True, cut_table: bool = True,
    empty: int | None = None,
) -> Case:  # fmt: skip
    """empty: a stage without gradients."""
    mesh = OnMesh(sizes)
    pp, width = mesh.size("pp"), 6 * mesh.size("tp")
    table = draw.normal(2 * width, 9, dtype=torch.float64)
    whole: dict[tuple[int, str], Tensor | None] = {}
    cut = {TABLE} if cut_table else set()
    for stage in range(pp):
        size = 1 + stage  # stages differ, so that no stage's own norm is another's
        if stage == 0 or (tied and stage == pp - 1):
            whole[stage, TABLE] = table
        for name, shape, is_cut in (
            ("attention.query.weight", (width, 7), True),
            ("attention.out.bias", (40,), False),
            ("mlp.up.weight", (2 * width, 5), True),
            ("mlp_norm.weight", (30,), False),
        ):
            named = f"blocks.{stage}.{name}"
            whole[stage, named] = size * draw.normal(*shape, dtype=torch.float64)
            cut |= {named} if is_cut else set()
        whole[stage, f"blocks.{stage}.frozen.bias"] = None
    if empty is not None:
        whole |= {key: None for key in whole if key[0] == empty}
    model = Model(mesh, whole, frozenset(cut) if mesh.size("tp") > 1 else frozenset(), tied, share)
    lines = [norm_line(model, title), scaled_line(model, title), traffic_line(model, title)]
    return Case(title, [model.side(rank) for rank in range(mesh.n)], lines, recipe=RECIPE, groups=mesh.groups)


def trouble(case: Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return ALL
    if "KeyError" in text:
        return MISSING
    return NONE if "NoneType" in text or "non-empty" in text or "expects" in text else ""


@exercise(
    points=8, objects=("clip_grad_norm",), references=REFERENCES, hint=trouble, point=POINT
)  # fmt: skip
def clip_grad_norm(draw: Draw) -> Iterator[Case]:
    yield case(draw, {"pp": 2, "dp": 2, "tp": 2}, "pp 2 x dp 2 x tp 2, tied", 0.3)
    yield case(draw, {"pp": 2, "dp": 2}, "pp 2 x dp 2, below max_norm", 1.7, tied=False, empty=1)
    if draw.hidden:
        yield case(draw, {"dp": 2, "cp": 2, "tp": 2}, "dp 2 x cp 2 x tp 2", 0.4, tied=False)
        yield case(draw, {"tp": 2, "pp": 3}, "tp 2 x pp 3, tied, table whole", 0.2, cut_table=False)
        yield case(draw, {"cp": 2, "pp": 2}, "cp 2 x pp 2, tied", 0.6)
