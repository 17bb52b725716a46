"""The result of a dry run, and its table next to the closed forms."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from course_lib.dry.plan import Plan
from course_lib.ledger import wording
from course_lib.ledger.ledger import Ledger

if TYPE_CHECKING:
    from course_lib.dry.closed import ClosedForms

KINDS = ("weights", "gradients", "optimizer", "activations")


@dataclass(frozen=True)
class DryRun:
    """One rank's setup and step. Sizes are in bytes, and everything except `setup_...` is about the step.

    bytes: sent, by axis ("tp", "dp+cp" for a flattened group, "part of tp" for a group that misses ranks).
        Collectives of a single number are listed separately, as "numbers".
    calls: how many, by (axis, operation): `run.calls["tp", "all_reduce"]`.
    peak_bytes: alive at the same time, in the first step. The optimizer's state counts only if the step
        itself runs an optimizer.
    by_kind: weights (all parameters that are alive after the setup), gradients, optimizer (the state after
        one step, AdamW's if the program has no optimizer), activations (the most that is kept for backward).
    flops: of matrix products and attention, forward and backward.
    setup_peak: bytes alive at the same time in the setup. setup_calls: as calls. groups: process groups to
        which the rank belongs after the step, including the world's.
    ledger: the step's operations; all other ranks have none. Its times mean nothing.
    seconds: how long setup and step took here. memory: bytes of the whole process, here.
    """

    plan: Plan
    bytes: Mapping[str, float]
    calls: Mapping[tuple[str, str], int]
    peak_bytes: int
    by_kind: Mapping[str, int]
    flops: int
    setup_peak: int
    setup_calls: Mapping[tuple[str, str], int]
    groups: int
    ledger: Ledger
    seconds: float
    memory: int

    @cached_property
    def closed(self) -> ClosedForms:
        """The closed forms of the plan's rank. They are imported here because an exercise may hide them."""
        from course_lib.dry.closed import closed_forms

        return closed_forms(self.plan)

    @property
    def rank(self) -> int:
        return self.plan.rank

    @property
    def coordinate(self) -> dict[str, int]:
        return self.plan.coordinate

    def table(self) -> DryTable:
        """Each quantity next to its closed form, with a mark if the two differ."""
        return DryTable(self)

    def __repr__(self) -> str:
        return f"DryRun({self.plan.name}, {self.plan.sizes})"


class DryRow(NamedTuple):
    """A quantity: its name, its value in the dry run and in closed form (None if there is none), a remark."""

    what: str
    measured: float
    closed: float | None = None
    remark: str = ""

    @property
    def mark(self) -> str:
        if self.closed is None or abs(self.measured - self.closed) < 0.5:
            return ""
        if not self.closed:
            return "not in the closed form"
        return f"<- {self.measured / self.closed:.3g} times"


HEADINGS = ("", "dry run", "closed form", "", "")


class DryTable:
    """Text when printed, a table in a notebook; `rows` holds the data."""

    def __init__(self, run: DryRun):
        self.run, self.rows = run, list(rows_of(run))

    def title(self) -> str:
        plan = self.run.plan
        at = ", ".join(f"{axis} {place}" for axis, place in plan.coordinate.items())
        batch = f"{wording.counted(plan.microbatches, 'microbatch').replace('batchs', 'batches')}"
        rows = wording.counted(plan.rows, "row")
        return f"{plan.name} ({at}), {batch} of {rows}, {str(plan.dtype)[6:]}"

    def cells(self, row: DryRow) -> tuple[str, ...]:
        closed = "" if row.closed is None else wording.exact(row.closed)
        return row.what, wording.exact(row.measured), closed, row.mark, row.remark

    def notes(self) -> str:
        memory = wording.size(self.run.memory)
        took = f"The dry run took {self.run.seconds:.1f} s and {memory} of memory."
        note = self.run.closed.note
        return f"{took} {note[0].upper()}{note[1:]}." if note else took

    def __str__(self) -> str:
        lines = [HEADINGS, *(self.cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = []
        for what, measured, closed, *marks in lines:
            numbers = f"{measured.rjust(widths[1])}  {closed.rjust(widths[2])}"
            more = "  ".join(
                mark.ljust(width) for mark, width in zip(marks, widths[3:], strict=True)
            )
            texts.append(f"{what.ljust(widths[0])}  {numbers}  {more}".rstrip())
        return "\n".join([self.title(), *texts, self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def line(tag: str, cells: tuple[str, ...]) -> str:
            sides = ("left", "right", "right", "left", "left")
            made = (
                f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(line("td", self.cells(row)) for row in self.rows)
        table = f"<table><thead>{line('th', HEADINGS)}</thead><tbody>{body}</tbody></table>"
        return (
            f"<div><p>{html.escape(self.title())}</p>{table}"
            f"<p><small>{html.escape(self.notes())}</small></p></div>"
        )


def rows_of(run: DryRun) -> Iterator[DryRow]:
    closed = run.closed
    compared = not closed.note
    for axis in dict.fromkeys([*closed.bytes, *run.bytes]):
        calls = [f"{count} {op}" for (name, op), count in run.calls.items() if name == axis]
        known = compared and axis != "numbers"
        expected = closed.bytes.get(axis, 0.0) if known else None
        if calls or expected:
            yield DryRow(
                f"{axis}: bytes sent", run.bytes.get(axis, 0.0), expected, ", ".join(calls)
            )
    for kind in KINDS:
        yield DryRow(f"{kind}: bytes", run.by_kind[kind], closed.kinds.get(kind))
    yield DryRow("peak of the step: bytes", run.peak_bytes, None, wording.size(run.peak_bytes))
    yield DryRow("peak of the setup: bytes", run.setup_peak, None, wording.size(run.setup_peak))
    yield DryRow("products: FLOPs", run.flops, closed.flops)
    yield DryRow("process groups", run.groups)
