"""Recipe (see `harness`): a layout that a student has chosen, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank.harness import plain
from course_lib.checks.wire import Instructions
from course_lib.planning import Layout

_plain, _Layout = plain, Layout
FIELDS = ("microbatch", "chunks", "zero", "recompute", "sequence")


@dataclass(frozen=True)
class LayoutInstructions(Instructions):
    """Nothing is needed."""


@dataclass
class LayoutReply:
    """sizes: [axis, ranks] in the layout's order; options: its other fields; other: another answer."""

    sizes: list[tuple[str, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    other: Any = None


def as_data(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: LayoutInstructions
) -> tuple[LayoutReply, dict[str, Any]]:
    """The first object, if it is a `Layout`."""
    chosen = objects[0]
    if not isinstance(chosen, _Layout):
        return LayoutReply(other=_plain(chosen)), {}
    sizes = [(str(axis), int(size)) for axis, size in chosen.sizes.items()]
    return LayoutReply(sizes, {name: _plain(getattr(chosen, name)) for name in FIELDS}), {}
