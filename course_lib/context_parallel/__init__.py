"""Context parallelism: how does attention work on a sequence that no rank holds?

    softmax.py    online_softmax_merge: two partial results become one
    tiles.py      tiled_attention: forward and backward without the N x N matrix
    ring.py       ring_attention: keys and values go round, queries stay
    ulysses.py    ulysses_attention: tokens for heads, by all-to-all
    combined.py   ulysses_ring_attention: Ulysses inside, a ring outside
    layouts.py    contiguous, striped: which rank holds which tokens; deal, collect, positions
    balanced.py   zigzag: equal work for all ranks under a causal mask
    gpt.py        ContextParallelGPT: a GPT on parts of a sequence, with the loss and gradients of the whole
    arguments.py  checks of attention's arguments

The names that an exercise asks for are imported when they are first used: so the others can be used while
these are hidden. The folder imports torch only and can be copied out as it is. `course_lib.facts` has the
bytes that each function sends, and says when the computation hides them.

    layout = zigzag(seq, world_size)
    q, k, v = (deal(x, layout) for x in (q, k, v))           # if every rank has the whole sequence
    out = ring_attention(q, k, v, causal=True, layout=layout)
    whole = collect(out, layout)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

__all__ = [
    "LAYOUTS",
    "ContextParallelGPT",
    "Layout",
    "MakeLayout",
    "Spans",
    "check_causal",
    "chunks",
    "collect",
    "contiguous",
    "deal",
    "joined",
    "mean_over_ranks",
    "online_softmax_merge",
    "positions",
    "ring_attention",
    "span_attention",
    "striped",
    "subdivided",
    "tiled_attention",
    "tokens_in",
    "two_groups",
    "ulysses_attention",
    "ulysses_ring_attention",
    "without_empty",
    "zigzag",
]

_MODULES = {
    "LAYOUTS": "balanced",
    "ContextParallelGPT": "gpt",
    "mean_over_ranks": "gpt",
    "online_softmax_merge": "softmax",
    "ring_attention": "ring",
    "span_attention": "tiles",
    "tiled_attention": "tiles",
    "two_groups": "combined",
    "ulysses_attention": "ulysses",
    "ulysses_ring_attention": "combined",
    "zigzag": "balanced",
}


def __getattr__(name: str) -> Any:
    """A name that an exercise asks for, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
