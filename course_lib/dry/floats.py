"""Tensors without values: floats have only a shape, and whole numbers are computed.

PyTorch's `FakeTensorMode` gives every tensor a shape, a dtype and strides, but no memory, so GPT-3's 701 GB
fit into a laptop. Without any values, however, a program cannot count its targets or look up which tokens a
rank has. So an operation on only real tensors runs as always, and factories of whole numbers make real ones.
A float that a program reads with `float(x)` or `x.item()` is 1, and two tensors of one shape compare as
equal.

Fake floats are on "cpu" instead of "meta", so that they take the same kernels as a real rank on the CPU. On
"meta", attention keeps its softmax, and GPT-3's activations would grow from 26.6 to 36.2 GB.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

MOST_WHOLE = 1 << 22  # elements of a tensor of whole numbers that is made for real
COMPARISONS = (torch.ops.aten.equal.default, torch.ops.aten.allclose.default)
NEED_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class FakeFloats(FakeTensorMode):
    """Within this context, tensors of floats are fake, and tensors of whole numbers are real."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return zeroed(func, func(*args, **kwargs))
        if func is torch.ops.aten._local_scalar_dense.default:
            return number_read(args[0].dtype)
        if func in COMPARISONS:
            return args[0].shape == args[1].shape
        try:
            result: Any = super().__torch_dispatch__(func, types, args, kwargs)
        except NEED_VALUES:
            raise RuntimeError(
                f"a dry run computes no floats, and {func._overloadpacket.__name__} needs their values: its "
                "result has another size, or is another number, for other values. Compute what you "
                "need from whole numbers, such as the targets."
            ) from None
        made = not tensors and isinstance(result, FakeTensor) and result.numel() <= MOST_WHOLE
        if made and not result.dtype.is_floating_point:
            return zeroed(func, func(*args, **kwargs))
        return result


def zeroed(func: Any, result: Any) -> Any:
    """Zeros, since an `empty` tensor of whole numbers would keep old memory, and no rank will fill it."""
    if "empty" in func._overloadpacket.__name__ and not result.dtype.is_floating_point:
        result.zero_()
    return result


def number_read(dtype: torch.dtype) -> float | int | bool:
    """The Python number a program gets when it reads an element of a fake tensor."""
    if dtype == torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1


# ---- conversions and addresses


@contextlib.contextmanager
def conversions(mode: FakeFloats) -> Iterator[None]:
    """Within this context, `module.to(...)` and `module.double()` convert fake parameters.

    PyTorch exchanges the two tensors of a parameter, but refuses if there is a weak reference to one of them.
    The mode itself can have one, in a memo that only saves time.
    """
    utilities: Any = torch.utils
    swap = utilities.swap_tensors

    def forget_and_swap(one_tensor: Tensor, other: Tensor) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(one_tensor, other)

    utilities.swap_tensors = forget_and_swap
    try:
        yield
    finally:
        utilities.swap_tensors = swap


@contextlib.contextmanager
def addresses() -> Iterator[None]:
    """Within this context, fake tensors have addresses, which do not overlap with any other storage's memory.

    They have no addresses of their own (`data_ptr` is 0), but programs compare addresses to find out whether
    a tensor is a view of another, or whether two parameters share memory.
    """
    begins: dict[int, int] = {}  # of storages that are alive
    classes: tuple[Any, Any] = UntypedStorage, FakeTensor
    real, end = UntypedStorage.data_ptr, 1 << 40

    def begin_of(storage: UntypedStorage) -> int:
        nonlocal end
        if storage.device.type != "meta":
            return real(storage)
        key = storage._cdata
        if key not in begins:
            begins[key] = end
            end += max(1, storage.nbytes())
            weakref.finalize(storage, begins.pop, key).atexit = False
        return begins[key]

    def address_of(tensor: Tensor) -> int:
        begin = begin_of(tensor.untyped_storage())
        return begin + int(tensor.storage_offset()) * tensor.element_size()

    classes[0].data_ptr, classes[1].data_ptr = begin_of, address_of
    try:
        yield
    finally:
        classes[0].data_ptr = real
        del classes[1].data_ptr  # it has Tensor's again
