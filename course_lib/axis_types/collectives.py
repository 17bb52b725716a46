"""A collective changes kinds, and has a sentence for each kind it cannot sum or join.

all_reduce       a term becomes a copy
all_gather       a part becomes a copy
reduce_scatter   a term becomes a part
broadcast        anything becomes a copy
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from course_lib.axis_types.kinds import Kind, M, NotTyped, P, R, S
from course_lib.axis_types.storages import Storages

SHARDS = (
    "axis types do not follow ZeRO or FSDP: {op} over {axis} deals shards of flat rows, in which several "
    "parameters share an element's place. Check the program with {op} replaced by an all_reduce of gradients."
)


class Collectives:
    """The listener of the silent groups. `replicas` is the axis over which ZeRO would deal shards."""

    storages: Storages
    sizes: dict[str, int]
    report: Callable[..., None]
    looking: bool
    replicas = "dp"

    def summed(self, x: Tensor, axes: tuple[str, ...], how: str) -> None:
        """all_reduce."""
        for axis in axes if self.looking else ():
            fault = sum_fault(f"all_reduce over {axis}", self.storages.of(x, axis), axis, how)
            if fault:
                self.report(fault)
            self.storages.set(x, axis, R)

    def gathered(self, out: list[Tensor], x: Tensor, axes: tuple[str, ...]) -> None:
        """all_gather."""
        for axis in axes if self.looking else ():
            self.refuse_shards("all_gather", axis)
            kind, call = self.storages.of(x, axis), f"all_gather over {axis}"
            if kind == P:
                self.report(
                    f"{call} lays terms of a sum one after the other. They are added by all_reduce or "
                    "reduce_scatter."
                )
            if kind == R:
                self.report(
                    f"{call} gathers copies: the result has each element once for each rank."
                )
        for axis in self.sizes if self.looking else ():
            kind = R if axis in axes else self.storages.of(x, axis)
            for tensor in out:
                fits = kind.dim is None or tensor.dim() == x.dim()
                self.storages.set(tensor, axis, kind if fits else S((kind.dim or 0) + 1))

    def scattered(self, out: Tensor, x: Tensor, axes: tuple[str, ...], how: str) -> None:
        """reduce_scatter."""
        for axis in axes if self.looking else ():
            self.refuse_shards("reduce_scatter", axis)
            fault = sum_fault(f"reduce_scatter over {axis}", self.storages.of(x, axis), axis, how)
            if fault:
                self.report(fault)
        for axis in self.sizes if self.looking else ():
            if axis in axes:
                self.storages.scatter(x, out, axis, x.numel() // out.numel())
            else:
                self.storages.set(out, axis, self.storages.of(x, axis))

    def sent_to_all(self, x: Tensor, axes: tuple[str, ...]) -> None:
        """broadcast."""
        for axis in axes if self.looking else ():
            self.storages.set(x, axis, R)

    def refused(self, op: str) -> None:
        if self.looking:
            raise NotTyped(
                f"axis types do not follow {op}. They know all_reduce, all_gather, reduce_scatter and "
                "broadcast, and so neither pipelines, rings nor all-to-alls. Give a function that needs it a "
                "signature with types.trusted."
            )

    def refuse_shards(self, op: str, axis: str) -> None:
        if axis == self.replicas:
            raise NotTyped(SHARDS.format(op=op, axis=axis))


def sum_fault(call: str, kind: Kind, axis: str, how: str) -> str:
    """The sentence on a sum of something that is not a term, or ""."""
    if how in ("max", "min"):
        wrong = kind == P
        return f"{call} takes the {how} of terms of a sum. Sum over {axis} first." if wrong else ""
    if kind == P and how == "avg":
        return (
            f"{call} takes the mean of terms of a sum: the result is {axis}'s size times too small."
        )
    if kind == R and how == "sum":
        return f"{call} sums copies: the result is {axis}'s size times too large."
    if kind.dim is not None:
        return f"{call} adds up parts along dimension {kind.dim}, which are not terms of a sum. Gather them."
    return f"{call} adds up terms of a maximum." if kind == M else ""
