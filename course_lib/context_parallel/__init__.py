"""Context parallelism: how does attention work on a sequence that no rank holds in full?

    softmax.py    online_softmax_merge: two partial results become one
    tiles.py      tiled_attention: forward and backward without the N x N matrix
    ring.py       ring_attention: keys and values go around, queries stay
    ulysses.py    ulysses_attention: tokens for heads, by all-to-all
    combined.py   ulysses_ring_attention: Ulysses inside, a ring outside
    layouts.py    contiguous, striped: which rank holds which tokens; deal, collect, positions
    balanced.py   zigzag: equal work for all ranks under a causal mask
    gpt.py        ContextParallelGPT: a GPT on parts of a sequence, with the loss and gradients of the whole
    arguments.py  checks of attention's arguments

The names an exercise asks for are imported when they are first used, so the other names can be used while
these are hidden. The folder imports torch only, and can be copied out together with `course_lib/exports.py`.
`course_lib.facts` computes the bytes sent by each function, and says when the computation hides them.

    layout = zigzag(seq, world_size)
    q, k, v = (deal(x, layout) for x in (q, k, v))           # if every rank has the whole sequence
    out = ring_attention(q, k, v, causal=True, layout=layout)
    whole = collect(out, layout)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports
from .arguments import check_causal
from .layouts import (
    Layout,
    MakeLayout,
    Spans,
    chunks,
    collect,
    contiguous,
    deal,
    joined,
    positions,
    striped,
    subdivided,
    tokens_in,
    without_empty,
)

if TYPE_CHECKING:
    from .balanced import LAYOUTS, zigzag
    from .combined import two_groups, ulysses_ring_attention
    from .gpt import ContextParallelGPT, mean_over_ranks
    from .ring import ring_attention
    from .softmax import online_softmax_merge
    from .tiles import span_attention, tiled_attention
    from .ulysses import ulysses_attention

__getattr__, __dir__, __all__ = exports(__name__)
