"""Messages from the sandbox, read with care: a student's code may have written their bytes.

A message has a bounded size, an output the form and the types that a notebook keeps, and nothing else
is passed on. Nothing here decides about points: a forged message changes what its author's own feedback
page shows.
"""

from __future__ import annotations

import re
from typing import Any

from autograder.outcome import statuses
from course_lib.runtime import wire

HEADER = 16 << 20  # bytes of a message without its buffers
TEXT, ERROR_TEXT = 1 << 20, 20_000  # characters that are kept of one text
LINES = 100  # parts of a traceback
IMAGE = 2 << 20  # characters of an image, in base64
NAME = 100
IMAGES = ("image/png", "image/jpeg", "image/gif")
TEXTS = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml")
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
SURROGATE = re.compile("[\ud800-\udfff]")


class Messages(wire.Receiver):
    """A receiver that takes no larger header than HEADER. `limit` bounds the whole message."""

    def _advance(self) -> tuple[dict, list[bytearray]] | None:
        message = super()._advance()
        if self.sizes and self.sizes[0] > HEADER:
            raise wire.WireError(f"a message whose header has {self.sizes[0]:,} bytes")
        return message


def output_of(data: Any) -> dict | None:
    """The output that a message holds, in nbformat's form; None if nothing of it can be kept.

    WireError if it is not an output at all.
    """
    if not isinstance(data, dict):
        raise wire.WireError("an output that is not an object")
    kind = data.get("output_type")
    if kind == "error":
        return _error(data)
    if kind not in ("display_data", "execute_result") or not isinstance(data.get("data"), dict):
        raise wire.WireError("an output of no known kind")
    shown = _representations(data["data"])
    if not shown:
        return None
    output = {"output_type": kind, "data": shown, "metadata": {}}
    if kind == "execute_result":
        count = data.get("execution_count")
        output["execution_count"] = count if type(count) is int and 0 < count < 1 << 31 else None
    return output


def _error(data: dict) -> dict:
    parts = data.get("traceback")
    if not isinstance(parts, list):
        raise wire.WireError("an error without a traceback")
    return {
        "output_type": "error",
        "ename": text(data.get("ename"), NAME),
        "evalue": text(data.get("evalue"), ERROR_TEXT),
        "traceback": [text(part, ERROR_TEXT) for part in parts[:LINES]],
    }


def _representations(data: dict) -> dict[str, str]:
    fields = {}
    for kind, value in data.items():
        if not isinstance(value, str):
            continue
        image = kind in IMAGES and len(value) <= IMAGE and BASE64.fullmatch(value.replace("\n", ""))
        if image or (kind in TEXTS and len(value) <= TEXT):
            fields[kind] = sound(value)
        elif kind == "text/plain":
            fields[kind] = text(value, TEXT)
    return fields


def text(value: Any, longest: int) -> str:
    """A text of at most `longest` characters. WireError for anything else."""
    if not isinstance(value, str):
        raise wire.WireError("a text that is not a string")
    return sound(value if len(value) <= longest else f"{value[:longest]} ...")


def sound(value: str) -> str:
    """Without the halves of characters that JSON can name and no file can hold."""
    return SURROGATE.sub("\ufffd", value)


def limit_of(value: Any) -> str:
    """The status of the limit that, by the message, a cell has reached, or ""."""
    return value if isinstance(value, str) and value in statuses.LIMITS else ""


def size_of(output: dict) -> int:
    """How much an output adds to a notebook, in characters."""
    if output["output_type"] == "error":
        return sum(map(len, (output["ename"], output["evalue"], *output["traceback"])))
    return sum(map(len, output["data"].values()))
