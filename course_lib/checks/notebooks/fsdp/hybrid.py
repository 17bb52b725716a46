"""hybrid: neighbours shard, equals replicate, and little crosses between the islands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit import (
    EVALUATE,
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    at,
    close,
    difference,
    error_kind,
    essential,
    exercise,
    left_alone,
    side,
    words,
    wrong,
)

GROUPS, REDUCE = 0, 1  # the objects
OLD = -7.0  # stands in an output before the call
POINT = "sending each rank's own shard across the islands, and no more"
NOT_WRITTEN = "`output` was not written: the function returns nothing, the result goes into `output`."
OVER_ISLAND = "That is divided by the g ranks of an island alone, r times too large: the sum has g x r terms."
OVER_ISLANDS = "That is divided by the number of islands alone: the sum has g x r terms."
NOT_ADDED = "The ranks of an island were not added: reduce-scatter over shard_group."
SWAPPED = "The groups are used the other way round: reduce-scatter over shard_group first."
EXCHANGED = "The two lists stand the other way round: return those that shard first."
TRANSPOSED = (
    "The groups are transposed: neighbours hold the same shard, and ranks that are far apart share a model, "
    "so that most bytes cross between islands. Let neighbours shard, and ranks of equal place replicate."
)
DRIFT = (
    "The replicas were not averaged: every island goes its own way, and from step 2 on their weights drift "
    "apart. All-reduce the shard over replica_group."
)
MOST = 1_000  # ranks of a range that came back
Groups = list[list[int]]


# ---- hybrid_groups


@dataclass(frozen=True)
class Islands:
    """n ranks in islands of g neighbours; r ranks hold the same shard."""

    n: int
    g: int

    @property
    def r(self) -> int:
        return self.n // self.g

    def runs(self, size: int) -> Groups:
        """Neighbours together, `size` to a list."""
        return [list(range(first, first + size)) for first in range(0, self.n, size)]

    def strides(self, stride: int) -> Groups:
        """Ranks at that distance together."""
        return [list(range(place, self.n, stride)) for place in range(stride)]

    @property
    def groups(self) -> tuple[Groups, Groups]:
        return self.runs(self.g), self.strides(self.g)

    def why(self, shards: Groups, replicas: Groups) -> str:
        """The usual cause of other groups."""
        right_shards, right_replicas = self.groups
        apart, near = self.strides(self.r), self.runs(self.r)
        if (shards, replicas) == (right_replicas, right_shards):
            return EXCHANGED
        if (shards, replicas) == (apart, near):
            return TRANSPOSED
        if [sorted(group) for group in shards] == right_shards and replicas != right_replicas:
            return (
                "Replicas are the ranks of equal place in their islands: p, p + g, p + 2g, ... for each "
                "place p of an island of g."
            )
        if shards == self.runs(self.r):
            return "`shard` is how many ranks share a model, and not how many islands there are."
        ranks = sorted(rank for group in shards for rank in group)
        if {*map(len, shards)} == {self.g} and ranks == list(range(self.n)):
            return "Neighbours shard: the ranks of an island follow one another."
        return (
            "Each rank stands in one list of both: with its neighbours where it shards, with those of equal "
            "place where it replicates."
        )


def listed(value: Any) -> Any:
    """Lists of numbers, from lists, ranges and tensors that came back as plain data."""
    match value:
        case {"range": [int(start), int(stop), int(step)]} if step:
            return list(range(start, stop, step)[:MOST])
        case {"tensor": list(elements), "shape": [_, int(width)]} if width > 0:
            return [elements[k : k + width] for k in range(0, len(elements), width)]
        case {"tensor": list(elements)}:
            return elements
        case list():
            return [listed(item) for item in value]
    return value


def groups_judge(islands: Islands, index: int) -> Callable[[Observed], Finding]:
    called = f"hybrid_groups({islands.n}, {islands.g})"

    def judge(observed: Observed) -> Finding:
        answer = observed.answer(index)
        if answer.error is not None:
            return raised(called, *answer.error)
        value = listed(answer.value)
        if value == [*map(list, islands.groups)]:
            return RIGHT
        if not (isinstance(value, list) and len(value) == 2 and all(map(is_groups, value))):
            why = "Is there a `return` at its end?" if value is None else ""
            return wrong("a pair of lists of lists of ranks is expected.", why, cause="no pair")
        shards, replicas = value
        general = "hybrid_groups gives other groups than asked for"
        said = Sentence(f"{called} gives {shards} and {replicas}.", f"{general}.")
        why = islands.why(shards, replicas)
        # one rank to a group, or one group, is the same either way round
        far = why in (EXCHANGED, TRANSPOSED) and 1 < islands.g < islands.n
        return wrong(said, why, cause=why, misses_point=far)

    return judge


def is_groups(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(group, list) and all(type(rank) is int for rank in group) for group in value
    )


def refusal_judge(n: int, g: int, index: int) -> Callable[[Observed], Finding]:
    called = f"hybrid_groups({n}, {g})"

    def judge(observed: Observed) -> Finding:
        answer = observed.answer(index)
        if answer.error is None:
            return wrong(
                Sentence(f"{called} gives {str(listed(answer.value))[:80]}.", "it was not refused."),
                "A number that does not divide was silently floored or cut off: some ranks would have no "
                "group, or a smaller one than the others. Raise ValueError unless world_size % shard is 0.",
                cause="not refused",
            )
        if answer.error[0] != "ValueError":
            return raised(called, *answer.error)
        return RIGHT

    return judge


def raised(called: str, error: str = "", text: str = "", place: str = "") -> Finding:
    if error == "NotImplementedError":
        return wrong("hybrid_groups is not written yet.", cause="not written")
    general = f"hybrid_groups raised {error_kind(error)}."
    return wrong(Sentence(f"{called} raised {error}: {text}", general), at(place))


def groups_case(draw: Draw) -> Case:
    asked = [Islands(8, 4), Islands(6, 2), Islands(4, 4), Islands(3, 1)]
    refused = [(8, 3), (4, 8)]
    titles = [f"groups: {islands.n} ranks, islands of {islands.g}" for islands in asked]
    refusals = [f"{n} ranks in islands of {g} are refused" for n, g in refused]
    if draw.hidden:
        g, r = draw.integer(2, 6), draw.integer(2, 6)
        asked += [Islands(g * r, g), Islands(16, 8)]
        titles += ["groups: other islands", "groups: two nodes of 8"]
        refused += [(g * r + 1, g)]
        refusals += ["other numbers are refused"]
    pairs = [(islands.n, islands.g) for islands in asked] + refused
    lines = [
        Line(title, groups_judge(islands, k), 1.25 if k < 2 else 1)
        for k, (title, islands) in enumerate(zip(titles, asked, strict=True))
    ]
    lines += [
        Line(title, refusal_judge(*numbers, k), 0.75)
        for k, (title, numbers) in enumerate(zip(refusals, refused, strict=True), start=len(asked))
    ]
    calls = [[GROUPS, [n, g]] for n, g in pairs]
    return Case("groups", [RankSide({}, {"calls": calls}, {})], lines, recipe=EVALUATE, alone=True)


# ---- hybrid_reduce


@dataclass(frozen=True)
class Reduction:
    """Every rank's gradient of the whole row, (n, g, s) in float64, on these islands."""

    islands: Islands
    grads: Tensor
    dtype: torch.dtype = torch.float32

    @property
    def size(self) -> int:
        return self.grads.shape[-1]

    def place(self, rank: int) -> int:
        return rank % self.islands.g

    def island(self, rank: int) -> int:
        return rank // self.islands.g

    def mean(self, rank: int) -> Tensor:
        return self.grads.mean(0)[self.place(rank)]

    def slips(self) -> list[tuple[str, Callable[[int], Tensor]]]:
        """The sentence for each mistake, and the shard that it gives on a rank."""
        n, g, r = self.islands.n, self.islands.g, self.islands.r

        def own(rank: int) -> Tensor:  # the sum over the island
            first = self.island(rank) * g
            return self.grads[first : first + g].sum(0)[self.place(rank)]

        slips: list[tuple[str, Callable[[int], Tensor]]] = [
            (NOT_WRITTEN, lambda rank: torch.full_like(self.mean(rank), OLD))
        ]
        if g == r > 1:  # which of the two it was, the other islands tell
            slips.append(
                (f"That is divided by {g}: the sum has g x r = {n} terms.", lambda k: self.mean(k) * g)
            )
        if r > 1:
            slips += [
                (OVER_ISLAND, lambda rank: self.mean(rank) * r),
                (DRIFT, lambda rank: own(rank) / g),
                (DRIFT, lambda rank: own(rank) / n),
                (DRIFT, own),
            ]
        if g > 1:
            slips += [
                (OVER_ISLANDS, lambda rank: self.mean(rank) * g),
                (NOT_ADDED, lambda rank: self.grads[rank, self.place(rank)]),
            ]
        if g == r > 1:
            slips.append((SWAPPED, lambda rank: self.grads.mean(0)[self.island(rank)]))
        return [
            *slips,
            ("That is the sum: divide it by the number of ranks.", lambda rank: self.mean(rank) * n),
            ("That is divided by the number of ranks twice.", lambda rank: self.mean(rank) / n),
        ]

    @property
    def tolerance(self) -> float:
        return 0.04 if self.dtype == torch.bfloat16 else 0


def mean_line(of: Reduction, title: str, weight: float) -> Line:
    def judge(observed: Observed) -> Finding:
        outputs = [tensors["output"].double() for tensors in observed.tensors]

        def are(shard: Callable[[int], Tensor]) -> bool:
            return all(
                close(output, shard(rank), of.tolerance or 2e-5) for rank, output in enumerate(outputs)
            )

        if are(of.mean):
            return RIGHT
        off = next(
            rank
            for rank, output in enumerate(outputs)
            if not close(output, of.mean(rank), of.tolerance or 2e-5)
        )
        said = difference(f"on rank {off} the mean is wrong", outputs[off], of.mean(off))
        why = next((says for says, shard in of.slips() if are(shard)), "")
        why = why or (
            "Reduce-scatter inside the island, all-reduce the shard across, divide by g x r: rank r of the "
            "island ends with part r of the mean."
        )
        return wrong(said, why, misses_point=why in (DRIFT, NOT_ADDED, SWAPPED))

    return Line(title, judge, weight)


def alone_line(of: Reduction) -> Line:
    rows = {rank: row.reshape(-1).to(of.dtype) for rank, row in enumerate(of.grads)}
    keep = "Reduce-scatter into `output` first, and change it alone: the caller still has these gradients."
    return Line("`grads` is left alone", left_alone("grads", rows, keep), 0.5, trivial=True)


def wire_line(of: Reduction, *, inside: bool, weight: float) -> Line:
    """Bytes that each rank sends in its island, or in groups and to ranks beyond it."""
    g, r = of.islands.g, of.islands.r
    shard = of.size * of.dtype.itemsize
    least = (g - 1) * shard if inside else 2 * (r - 1) / r * shard
    where = "inside an island" if inside else "across islands"
    title = f"bytes {where}, {r} x {g} ranks"

    def sent_by(observed: Observed, rank: int) -> float:
        island = of.islands.runs(g)[of.island(rank)]
        return sum(
            operation.bytes_sent
            for operation in observed.operations[rank]
            if ({*operation.group} if operation.peer is None else {operation.peer}).issubset(island) == inside
        )

    def judge(observed: Observed) -> Finding:
        sent = [sent_by(observed, rank) for rank in range(of.islands.n)]
        rank = max(range(len(sent)), key=lambda k: abs(sent[k] - least))
        if abs(sent[rank] - least) <= 1:
            return Finding(True, title=f"{title}: {words.number(round(least))} per rank")
        said = f"rank {rank} sent {words.number(round(sent[rank]))} bytes {where}; "
        said += f"{words.number(round(least))} are right."
        return wrong(said, why(observed, max(sent) / max(least, 1)), cause=where)

    def why(observed: Observed, ratio: float) -> str:
        if inside:
            return "Inside: one reduce-scatter of the row, (g-1)/g of it."
        if abs(ratio - g) < 0.05:
            first = next((o.op for o in observed.operations[0] if o.op != "barrier"), "")
            if first == "all_reduce":
                return (
                    f"The all-reduce came first, with the whole row: the same value for g = {g} times the "
                    "bytes across. Reduce-scatter inside first; then a shard of 1/g crosses."
                )
            return f"The whole gradient crossed, g = {g} times the bytes: all-reduce the shard alone."
        if any(len(o.group) == of.islands.n for o in observed.operations[0]):
            return (
                "The whole gradient went round all ranks in one group: reduce-scatter in shard_group, then "
                "all-reduce the shard in replica_group."
            )
        return "Across: an all-reduce of the shard, 2 (r-1)/r of it."

    line = Line(title, judge, weight, "communication")
    return line if inside else essential(line)


def reduce_case(
    draw: Draw, g: int, r: int, size: int, *, weight: float = 1.0, wires: float = 0, alone: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Case:  # fmt: skip
    """Ranks differ in size: no island's mean is that of all. wires: weight of the bytes across islands."""
    islands = Islands(g * r, g)
    scale = torch.arange(1, g * r + 1).view(-1, 1, 1)
    grads = (scale * draw.normal(g * r, g, size)).to(dtype)
    of = Reduction(islands, grads.double(), dtype)
    shards, replicas = islands.groups
    sides: Sequence[RankSide] = [
        side(
            {"output": torch.full((size,), OLD, dtype=dtype), "grads": grads[rank].reshape(-1)},
            returned=["output", "grads"],
            extra=[{"group": of.island(rank)}, {"group": r + of.place(rank)}],
            object=REDUCE,
        )
        for rank in range(g * r)
    ]
    title = f"{words.counted(r, 'island')} of {words.counted(g, 'rank')}"
    kind = ", bfloat16" if dtype == torch.bfloat16 else ""
    lines = [mean_line(of, f"mean: {title}{kind}", weight)]
    if alone:
        lines.append(alone_line(of))
    if wires:
        lines += [wire_line(of, inside=True, weight=0.25), wire_line(of, inside=False, weight=wires)]
    return Case(title, list(sides), lines, groups=[*shards, *replicas])


def trouble(case: Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return (
            "Ranks met the groups in another order: every rank reduces in shard_group first, then in "
            "replica_group. (dist.new_group hangs in the same way, unless all ranks make all groups in one "
            "order.)"
        )
    return ""


@exercise(
    points=8, objects=("hybrid_groups", "hybrid_reduce"), hint=trouble, point=POINT,
    references=("course_lib.fsdp.hybrid",),
)  # fmt: skip
def hybrid(draw: Draw) -> Iterator[Case]:
    yield groups_case(draw)
    yield reduce_case(draw, 2, 2, 6, weight=1.25, wires=1, alone=True)
    yield reduce_case(draw, 2, 3, 5, weight=1, wires=0.75)
    yield reduce_case(draw, 3, 1, 4, weight=0.5)
    yield reduce_case(draw, 1, 2, 7, weight=0.5)
    if draw.hidden:
        yield reduce_case(draw, 4, 2, 3, wires=1)
        yield reduce_case(draw, 2, 2, 9, weight=0.5, dtype=torch.bfloat16)
