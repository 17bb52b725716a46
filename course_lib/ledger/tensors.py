"""Tensors in words, as the ledger and its errors show them, and lists of them made flat."""

from __future__ import annotations

from typing import Any

import torch


def dtype_name(tensor: torch.Tensor | None) -> str:
    """ "float32"; "sparse float32" if only some elements are stored, whatever the shape says."""
    if tensor is None:
        return ""
    return ("" if tensor.layout == torch.strided else "sparse ") + str(tensor.dtype)[6:]


def shape_text(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else ",".join(map(str, tensor.shape))


def describe(tensors: list[torch.Tensor]) -> str:
    """ "float32[2, 3]", or "4 x float32[2, 3]" for a list."""
    if not tensors:
        return ""
    first = f"{dtype_name(tensors[0])}{list(tensors[0].shape)}"
    return first if len(tensors) == 1 else f"{len(tensors)} x {first}"


def comparable(signature: str) -> str:
    """The part of a signature that must agree. The number of elements counts, not the shape."""
    head, bracket, rest = signature.partition("[")
    if not bracket:
        return signature
    shape, _, tail = rest.partition("]")
    count = 1
    for size in shape.split(","):
        count *= int(size) if size.strip() else 1
    return f"{head}{count}{tail}"


MOST_LABEL = 48  # letters


def label_of(tensors: list[torch.Tensor]) -> str:
    """The name a wrapper has given one of the tensors in its attribute `label`; else "".

    Ranks that bring tensors of different names into one collective get a message about it.
    """
    label = next((str(t.label) for t in tensors if hasattr(t, "label")), "")  # pyright: ignore[reportAttributeAccessIssue]
    return label if len(label) <= MOST_LABEL else f"...{label[3 - MOST_LABEL :]}"


def flatten(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [t for item in tensors or () for t in flatten(item)]
