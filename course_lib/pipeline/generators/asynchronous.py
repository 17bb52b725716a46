"""Without a flush, the pipeline is filled once and stays full, and the weights change under way."""

from __future__ import annotations

from ..actions import Action, Pair
from .synchronous import one_f_one_b


def pipedream(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """PipeDream's 1F1B: the order of `one_f_one_b`, with an update after every backward.

    microbatches: all microbatches of the run, not only of one batch. There is no flush, so the bubble
    (p-1)(F+B) is paid once instead of once per batch. The price is memory, which is counted by
    `weight_versions`. On stage i, there are p-1-i updates between a microbatch's forward and its backward.
    The stage keeps p-i versions of its weights, so that both see the same version, and gradients belong to
    weights that are up to p-1 updates old. Without the versions, they would be gradients of no weights at
    all.
    Source: Narayanan et al., PipeDream, SOSP 2019, sections 3.2 and 3.3.
    """
    return one_f_one_b(stages, microbatches)
