"""clip_grad_norm: one norm of a gradient in pieces and in copies, and one factor for all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.meshes import OnMesh
from course_lib.checks.notebooks.four_dimensions.norms import FIRST_HAS_IT, OWN, TABLE, Model, explained
from course_lib.checks.notebooks.four_dimensions.references import REFERENCES

RECIPE = "course_lib.checks.rank.notebooks.four_dimensions.on_a_mesh:norms"
NUMBER = 8  # bytes
ROUNDING = 1e-9  # of the largest element
OF_NORM = 1e-12  # float64 is at 1e-15, and a sum of squares in float32 at 1e-8, however its errors cancel
WEIGHT = 7.0  # of every parameter: it must stay
POINT = "one norm of the whole model, in which each element counts once, and of which numbers travel alone"
BESIDES = "the lines that are right without it"
NONE = (
    "A parameter without a gradient has `grad` None. Skip it, but take part in the all-reduce all the same."
)
EMPTY = (
    "A rank may have nothing to count. Then it adds a zero, but it takes part in the all-reduce all the same."
)
MISSING = (
    "The mesh has no such axis, so every rank has coordinate 0 there, and `mesh.coordinate` has no entry."
)
NOTHING = "The norm is 0 on all ranks, so nothing was added to `squares`."
ALL = (
    "All members of a group must call its collectives in the same order, even ranks that have nothing to "
    "count or no gradients."
)


# ---- lines


def norm_line(model: Model, title: str) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        returned = [values.returned[0] for values in observed.values]
        for rank, value in enumerate(returned):
            if not is_norm(value):
                return kit.wrong(
                    f"on rank {rank} no finite number was returned.",
                    "Return the norm before scaling, as a float.",
                )
        off = [rank for rank, value in enumerate(returned) if abs(value - model.norm) > OF_NORM * model.norm]
        if not off:
            return kit.RIGHT
        got, want = words.apart(float(returned[off[0]]), model.norm)
        fault = f"rank {off[0]} did not return the norm of the whole gradient"
        mistake = explained(model, returned)
        says = NOTHING if not any(returned) else mistake.says if mistake else ""
        firsts = {model.mesh.ranks(rank, "pp", "tp")[0] for rank in range(observed.world_size)}
        if off and firsts.isdisjoint(off) and len(off) == observed.world_size - len(firsts):
            return kit.wrong(kit.Sentence(f"{fault}: {got} instead of {want}.", f"{fault}."), FIRST_HAS_IT)
        if says == OWN:
            got = words.listing(f"{value:.4f}" for value in (returned[0], returned[-1]))
            fault = f"ranks 0 and {observed.world_size - 1} returned norms of their own"
        said = kit.Sentence(f"{fault}: {got} instead of {want}.", f"{fault}.")
        return kit.wrong(said, says, misses_point=mistake is not None and mistake.misses_point)

    def shows(observed: kit.Observed) -> float:
        """Whether all ranks returned the norm, or that of a known slip in it."""
        returned = [values.returned[0] for values in observed.values]
        mistake = explained(model, returned) if all(map(is_norm, returned)) else None
        return float(judge(observed).ok or (mistake is not None and not mistake.misses_point))

    return kit.Line(f"the norm: {title}", judge, shows=shows, part=title)


def is_norm(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def factor_of(model: Model, observed: kit.Observed) -> float:
    """The factor of the norm that all ranks returned, if it is one and shrinks gradients; else the right one.

    So a wrong norm does not cost the line on scaling, too.
    """
    norms = {norm for values in observed.values if isinstance(norm := values.returned[0], float)}
    if len(norms) == 1 and (norm := norms.pop()) > model.max_norm > 0 and isfinite(norm):
        return model.max_norm / (norm + 1e-6)
    return model.factor


class Scaled(NamedTuple):
    """By which factor a rank scaled the gradient of a parameter."""

    rank: int
    name: str
    factor: float


def scaled_line(model: Model, title: str) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        factors: list[Scaled] = []
        for rank in range(observed.world_size):
            tensors = observed.tensors[rank]
            if any(bool((tensors[f"weight.{name}"] != WEIGHT).any()) for name in model.names(rank)):
                return kit.wrong(f"on rank {rank} a parameter was changed. Scale its gradient instead.")
            if name := next(iter(observed.values[rank].misfits), ""):
                return kit.wrong(f"on rank {rank} the gradient of {name} is gone, or has another shape.")
            for name, before in model.pieces(rank).items():
                got = float((tensors[name] * before).sum() / before.square().sum())
                if not bool(((tensors[name] - got * before).abs() <= ROUNDING * before.abs().max()).all()):
                    said = kit.difference(
                        f"on rank {rank} the gradient of {name} is wrong",
                        tensors[name],
                        model.factor * before,
                    )
                    return kit.wrong(said, "All elements are scaled by one factor, so the direction stays.")
                factors.append(Scaled(rank, name, got))
        factor = factor_of(model, observed)
        off = [scaled for scaled in factors if not same(scaled.factor, factor)]
        if not off:
            return kit.RIGHT
        rank, name, got = off[0]
        fault = f"on rank {rank} the gradient of {name} was scaled by another factor"
        said = kit.Sentence(
            "{}: {} instead of {}.".format(fault, *words.apart(got, model.factor)), f"{fault}."
        )
        return kit.wrong(said, why(model, factors, [values.returned[0] for values in observed.values]))

    return kit.Line(f"gradients scaled: {title}", judge, 2, trivial=model.factor == 1)


def same(factor: float, other: float) -> bool:
    return abs(factor - other) < 1e-8


def why(model: Model, factors: Sequence[Scaled], norms: Sequence[float]) -> str:
    """The mistake that gives these factors. norms: those that the ranks returned."""
    first = factors[0].factor
    if all(same(scaled.factor, first) for scaled in factors):
        return of_one_factor(model, first, norms)
    by_rank = [[scaled.factor for scaled in factors if scaled.rank == k] for k in range(model.mesh.n)]
    if all(same(factor, own[0]) for own in by_rank for factor in own):
        return of_ranks({rank: own[0] for rank, own in enumerate(by_rank) if own}, model.factor)
    left = {(scaled.rank, scaled.name) for scaled in factors if same(scaled.factor, 1)}
    if any(not same(f.factor, model.factor) for f in factors if (f.rank, f.name) not in left):
        return (
            "Parameters of one rank were scaled by unequal factors, but one factor is for the whole gradient."
        )
    alone = "Scale all gradients of a rank, also the copies counted by another rank."
    if all(((f.rank, f.name) in left) != model.counts(f.rank, f.name) for f in factors):
        return f"Only the gradients counted by the rank were scaled. {alone}"
    rank, name = min(left)
    return f"Some gradients were left as they were, such as {name} on rank {rank}. {alone}"


def of_one_factor(model: Model, factor: float, norms: Sequence[float]) -> str:
    """All gradients were scaled by one factor, which is another one than asked for."""
    if same(factor, 1):
        if all(isinstance(norm, int | float) and norm <= model.max_norm for norm in norms):
            return "Gradients were left as they were, because the norm you return is below max_norm."
        return (
            "Gradients were left as they were. The factor is max_norm / norm, at most 1, so scale `grad` "
            "itself by it, in place (mul_)."
        )
    if abs(factor * model.max_norm / model.norm - 1) < 1e-6:
        return "The factor is upside down, because it should be max_norm / norm, and at most 1."
    if model.factor == 1:
        return "A norm below max_norm stays, so the factor is min(1, max_norm / norm)."
    mistake = explained(model, [model.max_norm / max(factor, 1e-12)] * len(norms))
    if mistake is not None:
        return f"Your factor is max_norm over another norm. {mistake.says}"
    if abs(factor / model.max_norm - 1) < 1e-6:
        return "The factor is max_norm itself, so divide it by the norm."
    if abs(factor * model.norm - 1) < 1e-6:
        return "The factor is 1 / norm, so multiply it by max_norm."
    multiplied, right = words.apart(factor, model.factor)
    return f"All gradients were multiplied by {multiplied}, but the factor is {right}."


def of_ranks(by_rank: dict[int, float], wanted: float) -> str:
    """Each rank scaled all of its gradients by one factor, and ranks by different ones."""
    left = [rank for rank, factor in by_rank.items() if same(factor, 1)]
    if left and all(same(factor, wanted) for rank, factor in by_rank.items() if rank not in left):
        return f"Only some ranks scaled, while {words.ranks(left)} left their gradients as they were."
    low, high = min(by_rank, key=by_rank.__getitem__), max(by_rank, key=by_rank.__getitem__)
    smaller, larger = words.apart(by_rank[low], by_rank[high])
    rule = "all ranks must scale by the same factor, from the whole model's norm."
    return kit.Sentence(
        f"Ranks {low} and {high} scaled by {smaller} and {larger} instead of {wanted:.4g}, but {rule}",
        f"Each rank scaled by a factor of its own, but {rule}",
    )


def traffic_line(model: Model, title: str) -> kit.Line:
    """At most some numbers for each parameter, and nothing to the replicas."""
    most = 4 * NUMBER * len(model.whole)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            operations = model.mesh.called(observed, rank)
            sent = sum(operation.bytes_sent for operation in operations)
            if sent > most:
                fault = f"rank {rank} sent {words.number(round(sent))} bytes, "
                fault += f"but an all-reduce of {NUMBER} bytes is enough."
                return kit.wrong(fault, "Add up the squares on the rank, so that no gradients travel.")
        return kit.RIGHT

    return kit.essential(kit.Line(f"bytes: {title}", judge, 0.5, "communication"))


# ---- the exercise


def case(
    draw: kit.Draw, sizes: dict[str, int], title: str, share: float, *, tied: bool = True,
    cut_table: bool = True, empty: int | None = None, frozen: bool = True,
) -> kit.Case:  # fmt: skip
    """empty: a stage without gradients; frozen: each stage has a parameter without one."""
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
        if frozen:
            whole[stage, f"blocks.{stage}.frozen.bias"] = None
    if empty is not None:
        whole |= {key: None for key in whole if key[0] == empty}
    model = Model(mesh, whole, frozenset(cut) if mesh.size("tp") > 1 else frozenset(), tied, share)
    lines = [norm_line(model, title), scaled_line(model, title), traffic_line(model, title)]
    return kit.Case(
        title, [model.side(rank) for rank in range(mesh.n)], lines, recipe=RECIPE, groups=mesh.groups
    )


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return ALL
    if re.search(r"KeyError: '?(pp|dp|cp|tp)\b", text):
        return MISSING
    if "non-empty" in text:
        return EMPTY
    return NONE if "NoneType" in text or "expects" in text else ""


@kit.exercise(
    points=8, objects=("clip_grad_norm",), references=REFERENCES, hint=trouble, point=POINT,
    besides=BESIDES,
)  # fmt: skip
def clip_grad_norm(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, {"pp": 2, "dp": 2, "tp": 2}, "pp 2 x dp 2 x tp 2, tied", 0.2, frozen=False)
    yield case(
        draw, {"pp": 2, "cp": 2}, "pp 2 x cp 2, frozen ones, below max_norm", 1.7, tied=False, empty=0
    )  # fmt: skip
    if draw.hidden:
        yield case(draw, {"dp": 2, "cp": 2, "tp": 2}, "dp 2 x cp 2 x tp 2, frozen ones", 0.4, tied=False)
        yield case(
            draw, {"tp": 2, "pp": 3}, "tp 2 x pp 3, tied, table whole", 0.2, cut_table=False, frozen=False
        )
        yield case(draw, {"dp": 2, "pp": 2}, "dp 2 x pp 2, tied, frozen ones", 0.6)
