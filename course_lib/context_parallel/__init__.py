"""Context parallelism: how does attention work on a sequence that no rank holds?

    softmax.py    online_softmax_merge: two partial results become one
    tiles.py      tiled_attention: forward and backward without the N x N matrix
    ring.py       ring_attention: keys and values go round, queries stay
    ulysses.py    ulysses_attention: tokens for heads, by all-to-all
    combined.py   ulysses_ring_attention: Ulysses inside, a ring outside
    layouts.py    contiguous, striped: which rank holds which tokens; deal, collect, positions
    balanced.py   zigzag: equal work for all ranks under a causal mask
    gpt.py        ContextParallelGPT: a GPT on parts of a sequence, with the loss and gradients of the whole
    arguments.py  what attention may be given

What an exercise asks for is imported from its module, `from course_lib.context_parallel.ring import
ring_attention`, so that the rest is there where these are hidden. The folder imports torch only and can be
copied out as it is. What each sends, and when that is hidden: `course_lib.facts`.

    layout = zigzag(seq, world_size)
    q, k, v = (deal(x, layout) for x in (q, k, v))           # whole on every rank, or made where they belong
    out = ring_attention(q, k, v, causal=True, layout=layout)
    whole = collect(out, layout)
"""

from .layouts import (
    Layout,
    Spans,
    collect,
    contiguous,
    deal,
    joined,
    positions,
    striped,
    subdivided,
    tokens_in,
)

__all__ = [
    "Layout",
    "Spans",
    "collect",
    "contiguous",
    "deal",
    "joined",
    "positions",
    "striped",
    "subdivided",
    "tokens_in",
]
