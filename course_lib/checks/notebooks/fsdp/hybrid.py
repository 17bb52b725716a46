"""hybrid: neighbours shard, equals replicate, and little crosses between the islands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.notebooks.fsdp.islands import Islands, groups_case
from course_lib.ledger.operation import Operation

REDUCE = 1  # of the objects
OLD = -7.0  # stands in an output before the call
POINT = "sending each rank's own shard across the islands, and no more"
NOT_WRITTEN = "`output` was not written. The function returns nothing, so write the result into `output`."
OVER_ISLAND = (
    "The sum was divided only by the g ranks of an island, so it is r times too large. The "
    "sum has g x r terms."
)
OVER_ISLANDS = "The sum was divided only by the number of islands, but it has g x r terms."
NOT_ADDED = "The ranks of an island were not added. Reduce-scatter over shard_group."
SWAPPED = "The groups are used the other way around. Reduce-scatter over shard_group first."
TWICE = (
    "The sum was divided by {} twice. If a reduction has ReduceOp.AVG, it already divides by its "
    "group's size."
)
SUMMED = "Your result is the sum. Divide it by the number of ranks, in place (`output /= n`)."
OVER_ALL = (
    "The sum ran over all ranks in one collective. Reduce-scatter over shard_group, then all-reduce "
    "the shard over replica_group, so that only a shard crosses."
)
FIRST = "All islands have the first island's sum. All-reduce the shard, because every island has other terms."
LARGEST = "Your result is the largest sum of an island. All-reduce the shard with ReduceOp.SUM."
MIXED = (
    "Shards of different places were added. All-reduce over replica_group, whose ranks hold the same shard."
)
ONE_ISLAND = (
    "Only island {} has the mean. All replicas need it, so all-reduce the shard over replica_group, which "
    "leaves the sum on all of them."
)
DRIFT = (
    "The replicas were not averaged, so from step 2 on the weights of the islands drift apart. "
    "All-reduce the shard over replica_group."
)
LOST = (
    "The islands' sums were not added, although a message went across. After the reduce-scatter, "
    "all-reduce `output` itself over replica_group, not a copy."
)
FLOORED = "The sum was divided with //, which rounds down. Divide it with /."
TOGETHER = (
    "The second collective was begun before the first one had been waited for, so it read a shard "
    "that was still being written. Wait for the reduction inside the island, then begin the one "
    "across."
)

ACROSS = (DRIFT, LARGEST, NOT_ADDED)  # of a solution that sends nothing across, or the wrong sum
MISSED = (DRIFT, FIRST, LARGEST, NOT_ADDED, SWAPPED, OVER_ALL)
Shard = Callable[[int], Tensor]  # on a rank


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

    def own(self, rank: int) -> Tensor:
        """The sum over the rank's island."""
        first = self.island(rank) * self.islands.g
        return self.grads[first : first + self.islands.g].sum(0)[self.place(rank)]

    def across(self, rank: int) -> Tensor:
        """The sum of the replicas' own gradients, to which no other rank of an island was added."""
        return self.grads[self.place(rank) :: self.islands.g, self.place(rank)].sum(0)

    def largest(self, rank: int) -> Tensor:
        replicas = range(self.place(rank), self.islands.n, self.islands.g)
        return torch.stack([self.own(replica) for replica in replicas]).max(0).values

    def slips(self) -> list[kit.Slip]:
        """The sentence for each mistake, and the shard that it gives on a rank."""
        n, g, r = self.islands.n, self.islands.g, self.islands.r
        slips = [
            kit.Slip(NOT_WRITTEN, lambda rank: torch.full_like(self.mean(rank), OLD)),
            kit.Slip(SUMMED, lambda rank: self.mean(rank) * n),
        ]
        if g == r > 1:  # which of the two it was, the other islands tell
            slips.append(
                kit.Slip(
                    f"The sum was divided by {g}, but it has g x r = {n} terms.", lambda k: self.mean(k) * g
                )
            )
        if r > 1:
            slips += [kit.Slip(OVER_ISLAND, lambda rank: self.mean(rank) * r), *self.apart()]
        if g > 1:
            slips += [
                kit.Slip(OVER_ISLANDS, lambda rank: self.mean(rank) * g),
                *(
                    kit.Slip(NOT_ADDED, lambda rank, by=by: self.grads[rank, self.place(rank)] / by)
                    for by in (1, r, n)
                ),
                *(kit.Slip(NOT_ADDED, lambda rank, by=by: self.across(rank) / by) for by in (1, r, n)),
            ]
        if g == r > 1:
            slips.append(kit.Slip(SWAPPED, lambda rank: self.grads.mean(0)[self.island(rank)]))
        if g > 1:
            slips += [kit.Slip(MIXED, lambda _, by=by: self.grads.sum((0, 1)) / by) for by in (1, g, r, n)]
        islands = str(r) if g == r else "the number of islands"
        return [
            *slips,
            kit.Slip("The sum was divided by the number of ranks twice.", lambda rank: self.mean(rank) / n),
            kit.Slip(TWICE.format(islands), lambda rank: self.mean(rank) / r),
            kit.Slip(TWICE.format("the g ranks of an island"), lambda rank: self.mean(rank) / g),
            kit.Slip(FLOORED, lambda rank: self.mean(rank).floor()),
        ]

    def apart(self) -> Iterator[kit.Slip]:
        """The islands' sums that were not added, whatever they are divided by."""
        for by in (1, self.islands.g, self.islands.n):
            yield kit.Slip(DRIFT, lambda rank, by=by: self.own(rank) / by)
            yield kit.Slip(FIRST, lambda rank, by=by: self.own(self.place(rank)) / by)
            yield kit.Slip(LARGEST, lambda rank, by=by: self.largest(rank) / by)

    @property
    def tolerance(self) -> float:
        return 0.04 if self.dtype == torch.bfloat16 else 0


def crossed(observed: kit.Observed, islands: Islands) -> bool:
    """Whether a rank began a message inside its island and one beyond it, be the values right or wrong."""
    own = {rank: set(group) for group in islands.runs(islands.g) for rank in group}
    return any(
        any(set(reached(operation)) <= own[rank] for operation in operations)
        and any(not set(reached(operation)) <= own[rank] for operation in operations)
        for rank, operations in enumerate(observed.operations)
    )


def begun_together(observed: kit.Observed) -> bool:
    """Whether a rank began a collective before it had waited for the one before, in another group."""
    return any(
        earlier.group != later.group and earlier.waited_at is not None and later.issued < earlier.waited_at
        for operations in observed.operations
        for earlier, later in pairwise(operations)
    )


def mean_line(of: Reduction, title: str, weight: float) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        outputs = [tensors["output"].double() for tensors in observed.tensors]

        def are(shard: Shard) -> bool:
            return all(
                kit.close(output, shard(rank), of.tolerance or 2e-5) for rank, output in enumerate(outputs)
            )

        if are(of.mean):
            return kit.RIGHT
        off, *others = [
            rank
            for rank, output in enumerate(outputs)
            if not kit.close(output, of.mean(rank), of.tolerance or 2e-5)
        ]
        said = kit.difference(f"on rank {off} the mean is wrong", outputs[off], of.mean(off))
        everyone = tuple(range(of.islands.n))
        groups = {operation.group for operations in observed.operations for operation in operations}
        over_all = groups == {everyone} and of.islands.r > 1 < of.islands.g
        why = OVER_ALL if over_all else next((slip.says for slip in of.slips() if are(slip.gives)), "")
        good = {*range(of.islands.r)} - {of.island(rank) for rank in (off, *others)}
        if not why and len(good) == 1:
            why = ONE_ISLAND.format(*good)
        if not why and begun_together(observed):
            why = TOGETHER
        why = why or (
            "Reduce-scatter inside the island, all-reduce the shard across, divide by g x r. Then "
            "rank r of the island has part r of the mean."
        )
        across = why in ACROSS and crossed(observed, of.islands)
        misses = why in MISSED and not across
        return kit.wrong(said, LOST if across and why == DRIFT else why, misses_point=misses)

    return kit.Line(title, judge, weight)


def alone_line(of: Reduction) -> kit.Line:
    rows = {rank: row.reshape(-1).to(of.dtype) for rank, row in enumerate(of.grads)}
    keep = (
        "Reduce-scatter into `output` first and change only `output`, because the caller still has "
        "these gradients."
    )
    return kit.Line("`grads` is left alone", kit.left_alone("grads", rows, keep), 0.5, trivial=True)


def reached(operation: Operation) -> Sequence[int]:
    """The ranks that a message goes to or comes from; those of a collective are its group."""
    if operation.op in ("send", "recv") and operation.peer is not None:
        return [operation.peer]
    return operation.group  # `peer` of a reduce or a broadcast is its root


def wire_line(of: Reduction, *, inside: bool, weight: float) -> kit.Line:
    """Bytes that each rank sends in its island, or in groups and to ranks beyond it."""
    g, r = of.islands.g, of.islands.r
    shard = of.size * of.dtype.itemsize
    least = (g - 1) * shard if inside else 2 * (r - 1) / r * shard
    where = "inside an island" if inside else "across islands"
    title = f"bytes {where}, {r} x {g} ranks"

    def sent_by(observed: kit.Observed, rank: int) -> float:
        island = of.islands.runs(g)[of.island(rank)]
        return sum(
            operation.bytes_sent
            for operation in observed.operations[rank]
            if {*reached(operation)}.issubset(island) == inside
        )

    def judge(observed: kit.Observed) -> kit.Finding:
        sent = [sent_by(observed, rank) for rank in range(of.islands.n)]
        rank = max(range(len(sent)), key=lambda k: abs(sent[k] - least))
        if abs(sent[rank] - least) <= 1:
            return kit.Finding(True, title=f"{title}: {words.number(round(least))} per rank")
        said = f"rank {rank} sent {words.number(round(sent[rank]))} bytes {where}; "
        said += f"{words.number(round(least))} are right."
        ratio = sum(sent) / max(least * len(sent), 1)
        return kit.wrong(
            said, why(observed, ratio), cause=where, misses_point=not inside and ratio > 0.95 * g
        )

    def why(observed: kit.Observed, ratio: float) -> str:
        if inside:
            return "Inside: one reduce-scatter of the row, (g-1)/g of it."
        if abs(ratio - g) < 0.05:
            first = next((o for o in observed.operations[0] if o.op != "barrier"), None)
            if first and first.op == "all_reduce" and max(reached(first)) >= g:  # rank 0's island: 0 to g-1
                return (
                    "The all-reduce came first, with the whole row. The value is the same, but g = "
                    f"{g} times the bytes cross. Reduce-scatter inside first, so that a shard of 1/g "
                    "crosses."
                )
            return f"The whole gradient crossed, which is g = {g} times the bytes. All-reduce only the shard."
        if any(len(o.group) == of.islands.n for o in observed.operations[0]):
            return (
                "The whole gradient went around all ranks in one group. Reduce-scatter in "
                "shard_group, then all-reduce the shard in replica_group."
            )
        if abs(ratio - 1) < 0.05:
            return (
                "One replica sends more than the other replicas. An all-reduce of the shard loads all "
                "of them equally."
            )
        return "Across: an all-reduce of the shard, 2 (r-1)/r of it."

    return kit.Line(title, judge, weight, "communication")


def reduce_case(
    draw: kit.Draw, g: int, r: int, size: int, *, weight: float = 1.0, wires: float = 0, alone: bool = False,
    dtype: torch.dtype = torch.float32,
) -> kit.Case:  # fmt: skip
    """Ranks differ in size: no island's mean is that of all. wires: weight of the bytes across islands."""
    islands = Islands(g * r, g)
    scale = torch.arange(1, g * r + 1).view(-1, 1, 1)
    grads = (scale * draw.normal(g * r, g, size)).to(dtype)
    of = Reduction(islands, grads.double(), dtype)
    shards, replicas = islands.groups
    sides: Sequence[kit.RankSide] = [
        kit.side(
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
    return kit.Case(title, list(sides), lines, groups=[*shards, *replicas])


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock" and "which have finished" in text:
        return "All ranks of a group must call its collectives, but some have finished without this one."
    if kind == "deadlock":
        return (
            "Ranks used the groups in different orders. Every rank must reduce in shard_group first, "
            "then in replica_group. (dist.new_group hangs in the same way, unless all ranks make all "
            "groups in one order.)"
        )
    if kind == "error" and "outputShape" in text:
        return (
            "The reduce-scatter needs group=shard_group, because `grads` has g times as many elements as "
            "`output`. The all-reduce needs group=replica_group."
        )
    return ""


@kit.exercise(
    points=8, objects=("hybrid_groups", "hybrid_reduce"), hint=trouble, point=POINT,
    references=("course_lib.fsdp.hybrid",),
)  # fmt: skip
def hybrid(draw: kit.Draw) -> Iterator[kit.Case]:
    yield groups_case(draw)
    yield reduce_case(draw, 2, 2, 6, weight=1.25, wires=1, alone=True)
    yield reduce_case(draw, 2, 3, 5, weight=1, wires=0.75)
    yield reduce_case(draw, 3, 1, 4, weight=0.5)
    yield reduce_case(draw, 1, 2, 7, weight=0.5)
    if draw.hidden:
        yield reduce_case(draw, 4, 2, 3, wires=1)
        yield reduce_case(draw, 2, 2, 9, weight=0.5, dtype=torch.bfloat16)
