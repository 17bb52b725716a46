"""Queues: an expert has room for C tokens, and the next ones are dropped.

If each expert takes at most C rows, all sizes are known before the router decides, so all tensors have one
shape, and all-to-alls have equal parts. Tokens that come too late are dropped. This expert then adds nothing
to them, and the residual connection carries them on.

Who comes first? All first choices come first, in the order of the tokens, and then all second choices.

Sources: Lepikhin et al., GShard, 2020, section 2.2; Fedus, Zoph, Shazeer, Switch Transformers, 2021, section
2.2 (the capacity factor).
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def capacity(tokens: int, experts: int, k: int, factor: float = 1.25) -> int:
    """An expert's places for the tokens of one rank: ceil(factor k T / E)."""
    return math.ceil(factor * k * tokens / experts)


def queue(experts: Tensor, count: int, places: int) -> tuple[Tensor, Tensor]:
    """(place, keep) of each assignment: (T, k) int64, and (T, k) bool: place < places.

    experts: (T, k), of `route`; count: E. An expert's queue has the first choices of all tokens before their
    second choices, and within a choice the order of the tokens.
    """
    tokens, k = experts.shape
    chosen = F.one_hot(
        experts.T.flatten(), count
    )  # (k T, E): all first choices, then all second ones
    before = chosen.cumsum(0) - chosen
    place = (before * chosen).sum(1).view(k, tokens).T
    return place, place < places
