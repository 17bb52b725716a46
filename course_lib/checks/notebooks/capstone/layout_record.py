"""The record of a run: the bytes of each axis against their closed forms, and their usual causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from course_lib.checks import kit, words
from course_lib.checks.judge.meshes import SMALL
from course_lib.checks.notebooks.capstone.layout_run import ROWS, SEQ, STEPS, LayoutRun
from course_lib.facts import least_bytes
from course_lib.ledger.operation import Operation
from course_lib.planning import Layout
from course_lib.trainer.costs import layout_costs

FLOAT = 8  # bytes of a float64
SPARE = 0.01  # of the replicas' bytes: rows of gradients are filled up, and may be cut otherwise
AXES = ("pp", "dp", "cp", "tp")
OTHERS = "other ranks"

ROWS_BY_RANK = (
    "Only dp cuts the rows of a batch, so ranks of pp, cp and tp get the same rows. Take them from "
    "`microbatches_of`."
)
ALL_ROWS = (
    "Each replica has read the rows of all replicas, but it needs only its own, which `microbatches_of` "
    "gives."
)
NO_CHUNKS = (
    "A pipeline with one stage per rank sends this much. If layout.chunks > 1, make the interleaved "
    "schedule instead."
)
NO_SEQUENCE = (
    "Ranks of tp send this much if they do not cut the sequence. If layout.sequence is True, also hand "
    '`sequence="keep"` to `mesh_stages`.'
)
REGATHERED = 'With sequence="regather", tp gathers again in backward, so hand over "keep" instead.'
NOT_CUT = (
    "Every rank has done the work of all. But a replica reads only its own rows (`microbatches_of`), and "
    "`mesh_stages` cuts the model."
)
TWICE = "ZeRO sums the gradients by itself, so leave out your own sum if layout.zero > 0."
HALF = "The gradients travelled in float32, although they are float64. Give the buffer their dtype."
MANY_SUMS = "Make only one sum, after the last backward."
WITHOUT_PP = "Sum gradients only over the ranks of dp x cp."
MESSAGES = "m is layout.microbatches(batch_size), since batch_size counts the rows of all replicas."
PLAIN = (
    "Plain data parallelism does this, but with ZeRO a rank gets only its own shard of the sum, by a "
    "reduce-scatter."
)


def no_step(observed: kit.Observed) -> bool:
    """Whether a rank has no step, and so no operations of steps."""
    return any(reply.misfit for reply in observed.values)


class Record:
    """The operations of the steps, without those of a few numbers, on each rank."""

    def __init__(self, run: LayoutRun, observed: kit.Observed):
        self.run, self.mesh = run, run.mesh
        self.operations = [
            [o for k in range(STEPS) for o in run.mesh.called(observed, rank, k) if o.nbytes >= SMALL]
            for rank in range(run.mesh.n)
        ]

    def axis(self, operation: Operation, rank: int) -> str:
        for axis in ("tp", "pp"):
            if self.mesh.size(axis) > 1 and operation.group == tuple(self.mesh.ranks(rank, axis)):
                return axis
        if operation.op in ("send", "recv"):
            return "cp"
        within = set(operation.group) <= set(self.mesh.ranks(rank, "dp", "cp"))
        return "dp" if within else OTHERS

    @cached_property
    def sent(self) -> list[dict[str, float]]:
        """Bytes per step, by axis; "dp" is the sum over the replicas, dp x cp."""
        names: list[str] = [*AXES, OTHERS]
        amounts = [dict.fromkeys(names, 0.0) for _ in self.operations]
        for rank, operations in enumerate(self.operations):
            for operation in operations:
                amounts[rank][self.axis(operation, rank)] += operation.bytes_sent / STEPS
        return amounts

    def due(self, rank: int, layout: Layout | None = None) -> dict[str, float]:
        layout = layout or self.run.layout
        stage = self.mesh.place(rank, "pp")
        return layout_costs(self.run.config, layout, ROWS, SEQ, stage, FLOAT)

    def over_replicas(self, rank: int) -> list[Operation]:
        return [o for o in self.operations[rank] if o.bytes_sent and self.axis(o, rank) == "dp"]

    @cached_property
    def summed_twice(self) -> bool:
        """Whether gradients that ZeRO sums were also all-reduced over the replicas."""
        return any(
            {"all_reduce", "reduce_scatter"} <= {o.op for o in self.over_replicas(rank)}
            for rank in range(self.mesh.n)
        )

    def most(self, rank: int, axis: str) -> float:
        """Bytes that are not too many: without ZeRO the sum may be made over dp, and then over cp."""
        due, layout = self.due(rank)[axis], self.run.layout
        if axis != "dp" or layout.zero:
            return due
        numel = due / least_bytes(self.run.n, 1) if self.run.n > 1 else 0.0
        return least_bytes(layout.dp, numel) + least_bytes(layout.cp, numel)

    def off(self) -> Iterator[tuple[int, str, float, float]]:
        """(rank, axis, bytes sent, bytes due) of all that is not as it should be."""
        for rank, amounts in enumerate(self.sent):
            due = {**self.due(rank), OTHERS: 0.0}
            for axis in (OTHERS, *AXES):
                spare = SPARE * due[axis] + SMALL if axis == "dp" else 1
                most = due[axis] if axis == OTHERS else self.most(rank, axis)
                if not due[axis] - spare <= amounts[axis] <= most + spare:
                    yield rank, axis, amounts[axis], due[axis]

    # ---- causes

    def why(self, rank: int, axis: str, amount: float) -> str:
        """The usual cause of another number of bytes."""
        layout = self.run.layout

        def as_in(other: Layout) -> bool:
            return abs(amount - self.due(rank, other)[axis]) <= (SPARE * amount if axis == "dp" else 1)

        if axis == OTHERS:
            return WITHOUT_PP
        if not amount:
            return NOT_CUT
        if axis == "pp" and layout.chunks > 1 and as_in(replace(layout, chunks=1)):
            return NO_CHUNKS
        if layout.sequence and as_in(replace(layout, sequence=False)):
            return NO_SEQUENCE
        others = (replace(layout, microbatch=k) for k in range(1, layout.microbatch) if ROWS % k == 0)
        if axis != "dp" and any(map(as_in, others)):
            return MESSAGES
        if self.all_rows(rank, axis, amount):
            return ALL_ROWS
        if axis == "tp" and layout.sequence and amount > self.due(rank)["tp"]:
            return REGATHERED
        return self.why_replicas(rank, amount, as_in) if axis == "dp" else ""

    def why_replicas(self, rank: int, amount: float, as_in) -> str:
        layout, due = self.run.layout, self.due(rank)["dp"]
        kinds = {operation.op for operation in self.over_replicas(rank)}
        if layout.zero and {"all_reduce", "reduce_scatter"} <= kinds:
            return TWICE
        if layout.zero and kinds == {"all_reduce"}:
            return PLAIN
        for zero in (1, 2, 3):
            if zero != layout.zero and as_in(replace(layout, zero=zero)) and "reduce_scatter" in kinds:
                return f"ZeRO-{zero} sends this much, but the layout has zero={layout.zero}."
        if abs(2 * amount / due - 1) <= SPARE:
            return HALF
        if not layout.zero and amount > due:
            return MANY_SUMS
        return ""

    def all_rows(self, rank: int, axis: str, amount: float) -> bool:
        """Whether a replica has done the work of all, as far as an axis inside it shows that."""
        dp, due = self.run.layout.dp, self.due(rank).get(axis, 0.0)
        return axis in ("pp", "cp", "tp") and dp > 1 and due > 0 and abs(amount / due / dp - 1) < 0.1

    def rows_by_rank(self) -> str:
        """The observation that ranks of an axis worked on fewer tokens than a replica has; or ""."""
        layout = self.run.layout
        share = layout.dp / layout.gpus
        for rank, amounts in enumerate(self.sent):
            for axis in ("pp", "tp", "cp"):
                due = self.due(rank)[axis]
                if due and share < 1 and abs(amounts[axis] - share * due) <= 0.1 * share * due:
                    sent, needed = (words.number(round(amount)) for amount in (amounts[axis], due))
                    said = f"rank {rank} sent {sent} bytes per step along {axis}"
                    return f"{said}, but the rows of its replica need {needed}."
        return ""


def bytes_line(run: LayoutRun, title: str, weight: float = 1.0) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        if no_step(observed):
            return kit.wrong("make_step returned no function, so no step was made.", cause="form")
        record = Record(run, observed)
        for rank, axis, amount, due in record.off():
            along = {"dp": "to its replicas", OTHERS: "over ranks with other parameters"}.get(
                axis, f"along {axis}"
            )
            needed = f"{words.number(round(due))} are due" if due else "none are due"
            fault = f"rank {rank} sent {words.number(round(amount))} bytes per step {along}, but {needed}."
            all_rows = record.all_rows(rank, axis, amount) and not run.layout.zero
            missed = (not amount and due > 0) or all_rows
            why = record.why(rank, axis, amount)
            return kit.wrong(fault, why, cause=why or f"bytes {axis}", misses_point=missed)
        return messages(run, record)

    def shows(observed: kit.Observed) -> float:
        if no_step(observed):
            return 0.0
        record = Record(run, observed)
        off = list(record.off())
        if any(amount > due for _, _, amount, due in off):
            return -1.0
        return float(not off)

    return kit.Line(f"bytes: {title}", judge, weight, "communication", shows=shows)


def messages(run: LayoutRun, record: Record) -> kit.Finding:
    """Each message between stages is as large as a microbatch."""
    layout = run.layout
    tokens = layout.microbatch * SEQ // layout.cp // (layout.tp if layout.sequence else 1)
    wanted, table = tokens * run.config.width * FLOAT, run.config.vocab_size * run.config.width * FLOAT
    for rank, operations in enumerate(record.operations):
        for operation in operations:
            message = operation.op == "send" and record.axis(operation, rank) == "pp"
            if message and operation.nbytes not in (wanted, table // layout.tp):
                fault = f"rank {rank} sent a message of {words.number(operation.nbytes)} bytes along pp, "
                fault += f"but a microbatch has {words.number(wanted)}."
                return kit.wrong(fault, MESSAGES, cause="messages")
    return kit.RIGHT


def shards_line(run: LayoutRun, title: str, weight: float = 1.0) -> kit.Line:
    """Over the replicas there is no all-reduce, but of a few numbers."""

    def judge(observed: kit.Observed) -> kit.Finding:
        if no_step(observed):
            return kit.wrong("make_step returned no function, so no step was made.", cause="form")
        record = Record(run, observed)
        for rank in range(run.mesh.n):
            operations = record.over_replicas(rank)
            whole = [operation for operation in operations if operation.op == "all_reduce"]
            if whole:
                largest = max(operation.nbytes for operation in whole)
                fault = f"rank {rank} all-reduced {words.number(largest)} bytes of gradients."
                both = any(operation.op == "reduce_scatter" for operation in operations)
                return kit.wrong(
                    fault, TWICE if both else PLAIN, cause=TWICE if both else PLAIN, misses_point=not both
                )
        return kit.RIGHT

    return kit.Line(f"a shard of the sum: {title}", judge, weight, "communication")
