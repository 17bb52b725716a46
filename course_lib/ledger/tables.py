"""The ledger as a table, with one row for each operation of each line of the student's code.

Ranks that did the same there (calls, bytes, kind of peer) share a row. Counts and bytes are the
same in every run. The blocked time is not, so it can be left out.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.ledger import wording
from course_lib.ledger.matching import BUILT_IN, POINT_TO_POINT
from course_lib.ledger.operation import Operation
from course_lib.ledger.record import Record

HEADINGS = ("operation", "ranks", "calls", "peer", "tensor", "bytes", "sent", "blocked", "line")
NUMBERS = ("calls", "bytes", "sent", "blocked")
BOOKING = (
    "Built-ins: 'bytes' is the full tensor, 'sent' what the bandwidth-optimal algorithm sends."
)
WIDTH = 98  # characters that printed text may have
LEAST_LINE = 16


@dataclass(frozen=True)
class Row:
    """One operation at one line, by ranks that agree. Counts and bytes are those of *each* rank."""

    op: str
    ranks: tuple[int, ...]
    calls: int
    peer: str
    tensor: str
    nbytes: int
    sent: float
    blocked: tuple[float, ...]  # seconds, one for each rank
    line: str
    source: str


class Table:
    """Text when printed, HTML in a notebook. `rows` and `totals` hold the data.

    times: with False, nothing that differs between two runs of the same program is shown.
    """

    def __init__(self, ledger: Record, times: bool = True, rank: int | None = None):
        self.times, self.world_size = times, ledger.world_size
        shown = range(ledger.world_size) if rank is None else [rank]
        operations = {r: ledger.operations(r) for r in shown}
        self.rows = _rows(list(operations.values()), ledger.world_size)
        self.totals = {r: _total(listed) for r, listed in operations.items()}

    @property
    def headings(self) -> list[str]:
        return [name for name in HEADINGS if self.times or name != "blocked"]

    def cells(self, row: Row) -> list[str]:
        """The row's cells as text, under `headings`."""
        texts = {
            "operation": row.op,
            "ranks": wording.rank_list(row.ranks, self.world_size),
            "calls": f"{row.calls:,}",
            "peer": row.peer,
            "tensor": row.tensor,
            "bytes": wording.exact(row.nbytes),
            "sent": wording.exact(row.sent) if row.op != "recv" else "",
            "blocked": _span(row.blocked),
            "line": row.line,
        }
        return [texts[name] for name in self.headings]

    def notes(self) -> list[str]:
        """The sentences below the table: the totals, and how built-ins are booked."""
        if not self.rows:
            return ["No communication was recorded."]
        notes = _totals(self.totals)
        if any(row.op in BUILT_IN and row.op != "barrier" for row in self.rows):
            notes.append(BOOKING)
        return notes

    def __str__(self) -> str:
        if not self.rows:
            return self.notes()[0]
        lines = [self.headings, *(self.cells(row) for row in self.rows)]
        for line in lines[1:]:
            line[-1] = line[-1].replace("Cell In", "In").replace(", line ", ":")
        if _width(lines) > WIDTH:  # the bytes show the shapes
            lines = [line[:4] + line[5:] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        # file names grow without limit; their end says most
        widths[-1] = max(LEAST_LINE, widths[-1] - max(0, _width(lines) - WIDTH))
        texts = ["  ".join(map(_aligned, lines[0], line, widths)) for line in lines]
        texts.insert(1, "-" * max(map(len, texts)))
        return "\n".join(text.rstrip() for text in [*texts, *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(_cell("th", name, name) for name in self.headings)
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        notes = "<br>".join(map(html.escape, self.notes()))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div>{table if self.rows else ''}<p><small>{notes}</small></p></div>"

    def _html_cells(self, row: Row) -> str:
        cells = zip(self.headings, self.cells(row), strict=True)
        made = [_cell("td", name, text) for name, text in cells if name != "line"]
        source = f"<br><code>{html.escape(row.source)}</code>" if row.source else ""
        line = f"<small>{html.escape(row.line)}</small>{source}"
        return "".join(made) + f'<td style="text-align:left">{line}</td>'


def _width(lines: Sequence[Sequence[str]]) -> int:
    columns = list(zip(*lines, strict=True))
    return sum(max(map(len, column)) for column in columns) + 2 * (len(columns) - 1)


def _aligned(heading: str, text: str, width: int) -> str:
    if len(text) > width:
        text = "..." + text[len(text) - width + 3 :]
    return text.rjust(width) if heading in NUMBERS else text.ljust(width)


def _cell(tag: str, heading: str, text: str) -> str:
    side = "right" if heading in NUMBERS else "left"
    return f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>'


def _span(seconds: Sequence[float]) -> str:
    """One duration, or the least and the most when the ranks differ by more than a tenth."""
    low, high = min(seconds), max(seconds)
    if high < 5e-7:
        return "0"
    if high - low <= 0.1 * high:
        return wording.duration(high)
    scale, unit = wording.time_unit(high)
    digits = 2 if high * scale < 1 else 1 if high * scale < 10 else 0
    return f"{low * scale:.{digits}f}-{high * scale:.{digits}f} {unit}"


@dataclass(frozen=True)
class Total:
    """The bytes sent by one rank in messages, and those booked for its built-in collectives."""

    messages: int
    in_messages: float
    booked: float

    @property
    def nbytes(self) -> float:
        return self.in_messages + self.booked

    def __str__(self) -> str:
        if not self.messages and not self.booked:
            return "nothing"
        messages = wording.counted(self.messages, "message")
        if not self.booked:
            return f"{wording.exact(self.nbytes)} bytes in {messages}"
        if not self.messages:
            return f"{wording.exact(self.nbytes)} bytes in built-in collectives"
        return (
            f"{wording.exact(self.nbytes)} bytes: {wording.exact(self.in_messages)} in {messages}, "
            f"{wording.exact(self.booked)} in built-in collectives"
        )


def _total(operations: Sequence[Operation]) -> Total:
    sends = [operation for operation in operations if operation.op == "send"]
    in_messages = math.fsum(send.bytes_sent for send in sends)
    booked = math.fsum(operation.bytes_sent for operation in operations if operation.op != "send")
    return Total(len(sends), in_messages, booked)


def _totals(totals: dict[int, Total]) -> list[str]:
    """ "Each rank sent 6,144 bytes in 6 messages.", or one sentence for each kind of rank."""
    ranks_of: dict[Total, list[int]] = {}
    for rank, total in totals.items():
        ranks_of.setdefault(total, []).append(rank)
    if len(ranks_of) > 4:
        sent = [total.nbytes for total in totals.values()]
        return [
            f"The ranks sent {wording.exact(min(sent))} to {wording.exact(max(sent))} bytes each, "
            f"{wording.exact(math.fsum(sent))} together."
        ]
    return [f"{_who(ranks, len(totals))} sent {total}." for total, ranks in ranks_of.items()]


def _who(ranks: list[int], shown: int) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return "Each rank" if len(ranks) == shown else f"Ranks {wording.rank_list(ranks)} each"


def _rows(operations: Sequence[Sequence[Operation]], world_size: int) -> list[Row]:
    """Group each rank's operations by (op, line, group, dtype), then merge the ranks that agree."""
    merged: dict[tuple, list[list[Operation]]] = {}
    for rank_operations in operations:
        groups: dict[tuple, list[Operation]] = {}
        for operation in rank_operations:
            groups.setdefault(
                (operation.op, operation.line, operation.group, operation.dtype), []
            ).append(operation)
        for key, calls in groups.items():
            merged.setdefault((*key, *_sums(calls)), []).append(calls)
    rows = sorted(merged.values(), key=lambda ranks: (ranks[0][0].index, ranks[0][0].rank))
    return [_row(ranks, world_size) for ranks in rows]


def _sums(calls: Sequence[Operation]) -> tuple[int, int, float]:
    return (
        len(calls),
        sum(call.nbytes for call in calls),
        math.fsum(call.bytes_sent for call in calls),
    )


def _row(ranks: Sequence[Sequence[Operation]], world_size: int) -> Row:
    first = ranks[0][0]
    calls, nbytes, sent = _sums(ranks[0])
    return Row(
        op=first.op,
        ranks=tuple(calls[0].rank for calls in ranks),
        calls=calls,
        peer=_peer(ranks, world_size),
        tensor=wording.tensor(first.dtype, [call.shape for rank in ranks for call in rank]),
        nbytes=nbytes,
        sent=sent,
        blocked=tuple(math.fsum(call.blocked for call in rank) for rank in ranks),
        line=first.line,
        source=first.source,
    )


def _peer(ranks: Sequence[Sequence[Operation]], world_size: int) -> str:
    """The peers, as the pattern in a program: "rank + 1", "rank ^ 1", "0"."""
    first = ranks[0][0]
    peers = {rank[0].rank: {call.peer for call in rank if call.peer is not None} for rank in ranks}
    together = set.union(*peers.values())
    if first.op not in POINT_TO_POINT:
        members = wording.rank_list(first.group, world_size)
        parts = [f"root {wording.rank_list(together)}"] if together else []
        return ", ".join(parts if members == "all" else [*parts, f"group {members}"])
    if any(call.peer is None for rank in ranks for call in rank):
        return "any"
    if len(peers) > 1 and all(len(others) == 1 for others in peers.values()):
        pattern = _pattern({rank: min(others) for rank, others in peers.items()}, world_size)
        if pattern:
            return pattern
    everyone = set(range(world_size))
    if world_size > 2 and all(others == everyone - {rank} for rank, others in peers.items()):
        return "all others"
    return wording.rank_list(together)


def _pattern(peer_of: dict[int, int], world_size: int) -> str:
    steps = {(peer - rank) % world_size for rank, peer in peer_of.items()}
    flips = {peer ^ rank for rank, peer in peer_of.items()}
    if len(flips) == 1 and (len(steps) > 1 or world_size == 2):
        return f"rank ^ {flips.pop()}"
    if len(steps) == 1 and len(set(peer_of.values())) > 1:
        step = steps.pop()
        return f"rank + {step}" if step <= world_size // 2 else f"rank - {world_size - step}"
    return ""
