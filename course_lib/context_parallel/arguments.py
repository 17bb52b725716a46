"""Checks of attention's arguments, made once, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor


def check_causal(attention: Callable[..., Any]) -> None:
    """Raise ValueError for a GPT's attention with an argument `causal` that was not bound to True.

    `ring_attention` and `ulysses_attention` have no mask unless `causal=True` is bound. A GPT trained without
    a mask would see the tokens it should predict.
    """
    causal = signature(attention).parameters.get("causal")
    if causal is not None and causal.default is not True:
        name = getattr(attention, "__name__", "attention")
        raise ValueError(
            f"{name} has no causal mask as it is given, so that tokens would see those that follow them: "
            f"give partial({name}, causal=True)"
        )


def check_qkv(q: Tensor, k: Tensor, v: Tensor, block: int) -> None:
    """Raise ValueError, with the shapes, if queries, keys and values do not fit each other."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"{shapes}: each must be (batch, seq, heads, head_dim)")
    if k.shape != v.shape:
        raise ValueError(f"{shapes}: keys and values must have the same shape")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{shapes}: batch and head_dim of queries and keys must be the same")
    if k.shape[2] < 1 or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"kv_heads={k.shape[2]} must divide heads={q.shape[2]}: each head of keys serves equally many "
            "heads of queries"
        )
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        raise ValueError(
            f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}: one floating-point dtype is expected"
        )
    if block < 1:
        raise ValueError(f"block={block}: a tile needs at least 1 token")
