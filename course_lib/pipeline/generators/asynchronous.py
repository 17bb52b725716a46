"""No flush: the pipeline is filled once and stays full, and the weights change under way."""

from __future__ import annotations

from ..actions import Action, Pair
from .synchronous import one_f_one_b


def pipedream(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """PipeDream's 1F1B: the order of `one_f_one_b`, with an update after every backward.

    microbatches: all of the run, not those of one batch: there is no flush, so the bubble (p-1)(F+B) is
    paid once and not once a batch. The price is memory, which `weight_versions` counts: on stage i, p-1-i
    updates fall between a microbatch's forward and its backward. The stage keeps p-i versions of its
    weights, so that both see the same version; gradients are of weights that are up to p-1 updates old.
    Without the versions they are gradients of no weights at all.
    Source: Narayanan et al., PipeDream, SOSP 2019, sections 3.2 and 3.3.
    """
    return one_f_one_b(stages, microbatches)
