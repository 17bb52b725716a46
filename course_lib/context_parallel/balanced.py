"""Zigzag: the layout in which a causal mask gives every rank the same work in every step of a ring.

    zigzag       0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0    16 tokens on 4 ranks, by the rank that holds them

The sequence is cut into 2 n chunks, and the r-th is paired with the r-th from the end. Take a step of the
ring in which a rank has another rank's keys. Two chunks of queries and two chunks of keys make four pairs, of
which exactly two are computed in full and two are skipped. If the owner of the keys comes before this rank,
both chunks of queries see the first chunk of keys. If it comes after, the last chunk of queries sees both
chunks of keys.

Source: Zhu, ring-flash-attention, 2024; Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2.

Copy this file together with layouts.py.
"""

from __future__ import annotations

from .layouts import Layout, MakeLayout, chunks, contiguous, striped, without_empty


def zigzag(seq: int, n: int) -> Layout:
    """The layout in which rank r gets, of 2n chunks in succession, the r-th and the r-th from the end.

    If 2n does not divide `seq`, the first chunks are one token longer, as `torch.tensor_split` cuts. Chunks
    without tokens are left out.
    """
    cut = chunks(seq, 2 * n)
    return [without_empty([cut[rank], cut[-1 - rank]]) for rank in range(n)]


LAYOUTS: dict[str, MakeLayout] = {"contiguous": contiguous, "striped": striped, "zigzag": zigzag}
