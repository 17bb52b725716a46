"""Types that follow the memory.

A type belongs to the elements of a storage instead of one tensor. So a view has the type of the elements it
shows, and if an operation fills a view, the tensor behind it also gets the type. Sequence parallelism needs
this, because its collectives write into a flattened view of a buffer.

Each element has a code. It is R, P, V or M or, in a part, the element's position along the cut dimension.
Seen through a view, the positions change along the cut dimension of the view. If they change along two (a
layer's features seen as heads and features of a head), the outer one is cut. So a rank must hold at least two
elements along a cut dimension, such as two heads, because with only one, another dimension would look cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.axis_types.kinds import Kind, M, NotTyped, P, R, S, V

CODES = {R: -1, P: -2, V: -3, M: -4}
KINDS = {code: kind for kind, code in CODES.items()}


@dataclass
class Record:
    """A storage, with one kind for all elements along each axis, or a code for each element.

    origin: for each element its place in the memory of which this is a copy in another order, or its own.
    alive: keeps the memory from being given to another tensor.
    """

    origin: Tensor
    alive: object
    axes: dict[str, Kind | Tensor] = field(default_factory=dict)
    dims: dict[tuple, int] = field(default_factory=dict)  # of views whose cut dimension is known


class Storages:
    """The types of all tensors of a program."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def of(self, x: Tensor, axis: str) -> Kind:
        """The kind of `x`; a tensor that was never typed is a copy."""
        record = self.records.get(key(x))
        stored = R if record is None else record.axes.get(axis, R)
        if isinstance(stored, Kind):
            return stored
        codes = seen_as(stored, x)
        if not codes.numel():
            return R
        low, high = (int(bound) for bound in codes.aminmax())
        if low < 0:
            return KINDS[low] if low == high else V
        assert record is not None
        if (axis, *view(x)) in record.dims:
            return S(record.dims[axis, *view(x)])
        steps = [
            int(codes.select(d, -1).sub(codes.select(d, 0)).abs().max()) for d in range(x.dim())
        ]
        dim = steps.index(max(steps, default=0)) if steps else 0
        if not any(steps) or (dim and x.shape[dim - 1] == 1):
            raise NotTyped(
                f"a tensor of shape {tuple(x.shape)} is a part on {axis}, and it is not clear along which "
                "dimension: a rank holds one element along it. Give each rank at least two (rows, heads)."
            )
        return S(dim)

    def set(self, x: Tensor, axis: str, kind: Kind) -> None:
        """From now on the elements of `x` have this kind."""
        record = self.record(x)
        record.dims.pop((axis, *view(x)), None)
        if kind.dim is None and x.numel() == len(record.origin):
            record.axes[axis] = kind
        elif kind.dim is None:
            self.fill(x, axis, torch.tensor(CODES[kind]))
        else:
            record.dims[axis, *view(x)] = kind.dim
            positions = torch.arange(x.shape[kind.dim])
            self.fill(x, axis, positions.view([-1] + [1] * (x.dim() - kind.dim - 1)))

    def fill(self, x: Tensor, axis: str, codes: Tensor) -> None:
        """Give each element of `x` its code."""
        record = self.record(x)
        stored = record.axes.get(axis, R)
        if isinstance(stored, Kind):
            stored = torch.full((len(record.origin),), CODES[stored])
        record.axes[axis] = stored
        once = [slice(0, 1) if stride == 0 else slice(None) for stride in x.stride()]
        seen_as(stored, x)[tuple(once)].copy_(codes.expand(x.shape)[tuple(once)])

    def copy(self, source: Tensor, target: Tensor, axes: tuple[str, ...]) -> None:
        """`target` holds the elements of `source`, perhaps in another order in memory."""
        record = self.records.get(key(source))
        for axis in axes:
            stored = R if record is None else record.axes.get(axis, R)
            if isinstance(stored, Kind):
                self.set(target, axis, stored)
            else:
                self.fill(target, axis, seen_as(stored, source))
        if record is None or target.shape != source.shape:
            return
        copied = self.record(target)
        for axis in axes:
            if (axis, *view(source)) in record.dims:
                copied.dims[axis, *view(target)] = record.dims[axis, *view(source)]
        if target.numel() == len(copied.origin):
            seen_as(copied.origin, target).copy_(seen_as(record.origin, source))

    def scatter(self, whole: Tensor, part: Tensor, axis: str, ranks: int) -> None:
        """`part` holds the first of `ranks` equal pieces of `whole`, in the order in memory.

        `whole` can be a copy in another order, made so that the pieces of dimension d follow each other in
        memory. In the original order, the second piece then follows the first along d.
        """
        first, second = seen_as(self.record(whole).origin, whole).reshape(ranks, -1)[:2]
        (distance, *other) = (second - first).unique().tolist()
        places = first.view(part.shape)
        for dim, size in enumerate(part.shape):
            step = int(places.select(dim, -1).sub(places.select(dim, 0)).max()) if size > 1 else 0
            if step and not other and size * (step // (size - 1)) == distance:
                return self.set(part, axis, S(dim))
        self.set(part, axis, S(0))

    def record(self, x: Tensor) -> Record:
        if key(x) not in self.records:
            storage = x.untyped_storage()
            count = storage.nbytes() // x.element_size()
            self.records[key(x)] = Record(torch.arange(count), storage)
        return self.records[key(x)]


def key(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def view(x: Tensor) -> tuple:
    """Shape, strides and offset, in which views of one storage differ."""
    return x.shape, x.stride(), x.storage_offset()


def seen_as(codes: Tensor, x: Tensor) -> Tensor:
    """Codes of a whole storage, as `x` sees them."""
    return codes.as_strided(x.shape, x.stride(), x.storage_offset())
