"""The prints and shown objects of one cell, in their order, and bounded whatever the cell does."""

from __future__ import annotations

from dataclasses import dataclass, field

from autograder.sandbox import messages

SHOWN = 200  # objects shown by one cell
SHOWN_SIZE = 8 << 20  # characters of them


@dataclass
class Piece:
    """A stretch of one stream, or an object that was shown (or an error)."""

    stream: str = ""
    data: bytearray = field(default_factory=bytearray)
    output: dict | None = None
    name: str = ""  # by which the cell may show something else in its place


class Transcript:
    """Keeps the first and the last half of `limit` bytes of text, and counts the bytes between.

    Text and shown objects stand in the order in which they came. Of the objects the first ones are kept.
    """

    def __init__(self, limit: int):
        self.limit, self.half = limit, max(1, limit // 2)
        self.head: list[Piece] = []
        self.tail: list[Piece] = []
        self.printed = 0  # bytes in all
        self.dropped = 0  # bytes that were not kept
        self.left_out = 0  # objects that were not kept
        self.shown = self.shown_size = 0
        self._in_head = self._in_tail = 0
        self._clear = False

    @property
    def cut(self) -> bool:
        """Whether something was left out."""
        return bool(self.dropped or self.left_out or self._in_tail > self.half)

    def write(self, stream: str, data: bytes) -> None:
        """Take in bytes that were printed to "stdout" or "stderr"."""
        self._clear_if_waiting()
        self.printed += len(data)
        room = self.half - self._in_head
        first, rest = data[:room], data[room:]
        if first:
            self._in_head += len(first)
            _append(self.head, stream, first)
        if rest:
            self._in_tail += len(rest)
            _append(self.tail, stream, rest)
            if self._in_tail > 2 * self.half + (1 << 16):
                self._trim()

    def show(self, output: dict, name: str = "", update: bool = False) -> None:
        """Take in an object that was shown, or an error, as `messages.output_of` gives it.

        update: it replaces the object that this cell showed under the same name, if there is one.
        """
        self._clear_if_waiting()
        size = messages.size_of(output)
        old = self._named(name) if name else None
        if update and old is not None and old.output is not None:
            size -= messages.size_of(old.output)
        # The error that ended a cell comes last: there is still room for it when there is no other.
        times = 2 if output["output_type"] == "error" else 1
        if self.shown >= times * SHOWN or self.shown_size + size > times * SHOWN_SIZE:
            self.left_out += 1
            return
        self.shown_size += size
        if update:
            if old is not None:
                old.output = output
            return
        self.shown += 1
        (self.tail if self._in_tail else self.head).append(Piece(output=output, name=name))

    def _named(self, name: str) -> Piece | None:
        return next((piece for piece in (*self.head, *self.tail) if piece.name == name), None)

    def clear(self, wait: bool) -> None:
        """Forget everything: at once, or when the next output comes."""
        self._clear = True
        if not wait:
            self._clear_if_waiting()

    def _clear_if_waiting(self) -> None:
        if self._clear:
            self._clear = False
            self.head, self.tail = [], []
            self.shown = self.shown_size = self._in_head = self._in_tail = self.dropped = 0

    def _trim(self) -> None:
        """Let go of the oldest text of the tail, down to half of the limit."""
        kept: list[Piece] = []
        over = self._in_tail - self.half
        for piece in self.tail:
            size = min(over, len(piece.data))
            del piece.data[:size]
            over, self.dropped, self._in_tail = (
                over - size,
                self.dropped + size,
                self._in_tail - size,
            )
            if piece.data or piece.output is not None:
                kept.append(piece)
        self.tail = kept

    def outputs(self) -> list[dict]:
        """The outputs of the cell as nbformat keeps them, with a sentence in each gap."""
        if self._in_tail > self.half:
            self._trim()
        pieces = list(self.head)
        if self.dropped:
            sentence = f"\n... {self.dropped:,} bytes were left out here ({self._rule()}) ...\n"
            _append(pieces, "stdout", sentence.encode(), apart=True)
        pieces += self.tail
        if self.left_out:
            sentence = f"... {self.left_out:,} more outputs were left out\n"
            _append(pieces, "stdout", sentence.encode(), apart=True)
        return [
            piece.output
            if piece.output is not None
            else {
                "output_type": "stream",
                "name": piece.stream,
                "text": bytes(piece.data).decode("utf-8", "replace"),
            }
            for piece in pieces
        ]

    def _rule(self) -> str:
        return f"of {self.printed:,} printed, the first and the last {self.half:,} are kept"


def _append(pieces: list[Piece], stream: str, data: bytes, apart: bool = False) -> None:
    last = pieces[-1] if pieces else None
    if apart or last is None or last.output is not None or last.stream != stream:
        pieces.append(Piece(stream, bytearray(data)))
    else:
        last.data += data
