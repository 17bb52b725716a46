"""The answer of a rank: a reply as sent by `rank.perform`, or a failure in place of anything else."""

from __future__ import annotations

from typing import Any

from course_lib.runtime import wire

LONGEST_TYPE, LONGEST_TEXT = 200, 20_000  # characters of an error's type and text


def well_formed(reply: dict) -> dict:
    """The reply, if `rank.perform` can have sent it. WireError if it was written by a rank's code instead."""
    if reply.get("ok") is True and isinstance(reply.get("header"), dict):
        return reply
    error = reply.get("error")
    chain = error.get("chain") if isinstance(error, dict) else None
    if reply.get("ok") is not False or not isinstance(chain, list) or not chain:
        raise wire.WireError("it says neither what came of the task nor what went wrong")
    if not all(is_link(link) for link in chain):
        raise wire.WireError("its account of an error does not have the agreed form")
    return reply


def is_link(link: Any) -> bool:
    """One exception of a chain, as `rank.describe_error` writes it."""
    if not isinstance(link, dict) or not isinstance(link.get("frames"), list):
        return False
    most = {"type": LONGEST_TYPE, "text": LONGEST_TEXT, "within": LONGEST_TYPE}
    texts = all(isinstance(link.get(k), str) and len(link[k]) <= n for k, n in most.items())
    return texts and all(is_frame(frame) for frame in link["frames"])


def is_frame(frame: Any) -> bool:
    return isinstance(frame, list) and [type(part) for part in frame] == [str, int, str]


def malformed(error: Exception) -> dict:
    """The reply of a rank whose code wrote into the channel to its judge."""
    text = f"the rank's answer could not be read ({error}). Its code must not write to file descriptors"
    return {
        "ok": False,
        "error": {
            "chain": [{"type": "WireError", "text": text, "frames": [], "within": ""}],
            "ours": False,
        },
    }
