"""One batch, one flush: every microbatch goes forward and backward before the weights change.

F and B are the times of a forward and of a whole backward of one microbatch through one rank's layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..actions import Action, Pair
from .row import counted

Row = list[Action | Pair]


def naive(stages: int, microbatches: int) -> list[Row]:
    """One microbatch at a time: down all stages and up again before the next one starts.

    Only one rank of p works at any time, so utilisation is 1/p, whatever the number of microbatches. Each
    rank idles m (p-1)(F+B), and holds the activations of one microbatch.
    """
    counted(stages, microbatches)
    each = range(microbatches)
    return [[Action(rank, kind, k) for k in each for kind in "FB"] for rank in range(stages)]


def gpipe(stages: int, microbatches: int) -> list[Row]:
    """All forwards, then all backwards.

    If all stages take the same time, each rank idles (p-1)(F+B). This is (p-1)/m of the ideal time, and
    (p-1)/(m+p-1) of the total. It holds the activations of all m microbatches.
    Source: Huang et al., GPipe, NeurIPS 2019, section 2.3.
    """
    counted(stages, microbatches)
    each = range(microbatches)
    return [[Action(rank, kind, k) for kind in "FB" for k in each] for rank in range(stages)]


def one_f_one_b(stages: int, microbatches: int) -> list[Row]:
    """A backward as soon as one is ready: warm up with forwards, then do one forward, one backward.

    The last stage can go backward immediately, and each stage before it runs one more forward ahead. The
    bubble is as long as in GPipe, (p-1)(F+B) per rank, but it takes less memory, because stage i holds
    min(m, p-i) microbatches instead of m. It is also called PipeDream-Flush. Source: Narayanan et al.,
    Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021, section 2.2.1.
    """
    counted(stages, microbatches)
    rows = []
    for rank in range(stages):
        forwards = [Action(rank, "F", k) for k in range(microbatches)]
        backwards = [Action(rank, "B", k) for k in range(microbatches)]
        rows.append(_alternate(forwards, backwards, warm_up=stages - 1 - rank))
    return rows


def interleaved_one_f_one_b(stages: int, microbatches: int, chunks: int = 2) -> list[Row]:
    """1F1B on a loop: rank i holds stages i, p+i, 2p+i, ..., each 1/v of its layers.

    A microbatch passes each rank v times, and the pipeline fills in steps of F/v, so each rank idles
    (p-1)(F+B)/v. The price is v times as many messages, and memory, because rank i holds up to
    min(mv, 2(p-1-i) + (v-1)p + 1) activations of 1/v of a rank's layers. Microbatches go around in groups of
    p, so m must be a multiple of p.
    Source: Narayanan et al. 2021, section 2.2.2. The warm-up is as long as in Megatron-LM.
    """
    counted(stages, microbatches, least=stages, unit=stages)
    if chunks < 1:
        raise ValueError(f"chunks={chunks}: each rank holds at least one")
    rows = []
    groups = [range(first, first + stages) for first in range(0, microbatches, stages)]
    for rank in range(stages):
        down = [chunk * stages + rank for chunk in range(chunks)]
        forwards = [Action(s, "F", k) for group in groups for s in down for k in group]
        backwards = [Action(s, "B", k) for group in groups for s in reversed(down) for k in group]
        warm_up = 2 * (stages - 1 - rank) + (chunks - 1) * stages
        rows.append(_alternate(forwards, backwards, warm_up))
    return rows


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int) -> Row:
    """`warm_up` forwards ahead, then a forward and a backward in turn, then the backwards left over."""
    row: Row = list(forwards[:warm_up])
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        row += [forward, backward]
    return row + list(backwards[max(0, len(forwards) - warm_up) :])
