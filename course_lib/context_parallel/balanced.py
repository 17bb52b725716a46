"""Zigzag: the layout in which a causal mask gives every rank the same work in every step of a ring.

    zigzag       0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0    16 tokens on 4 ranks, by the rank that holds them

The sequence is cut into 2 n chunks, and the r-th is paired with the r-th from the end. In a step of the ring
in which the keys are another rank's, exactly two of the four pairs of chunks (the rank's two of queries, two
of keys) are seen whole, and two not at all: the first chunk of keys by both chunks of queries where its owner
comes before the rank, both chunks of keys by the last chunk of queries where it comes after.

Source: Zhu, ring-flash-attention, 2024; Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2.

The file beside this one that it needs: layouts.py.
"""

from __future__ import annotations

from .layouts import Layout, MakeLayout, chunks, contiguous, striped, without_empty


def zigzag(seq: int, n: int) -> Layout:
    """Of 2n chunks in succession, the r-th and the r-th from the end on rank r.

    Where 2n does not divide `seq`, the first chunks are one longer, as `torch.tensor_split` cuts; chunks
    without tokens are left out.
    """
    cut = chunks(seq, 2 * n)
    return [without_empty([cut[rank], cut[-1 - rank]]) for rank in range(n)]


LAYOUTS: dict[str, MakeLayout] = {"contiguous": contiguous, "striped": striped, "zigzag": zigzag}
