"""Parts: which rows of the batch and which places of the sequence a rank reads.

The batch is a sheet: rows are samples, columns are places in the sequence. Three axes cut it, and two do not:

    dp   cuts rows      replicas of the model read different samples
    ep   cuts rows      its ranks hold different experts, and are replicas of all else
    cp   cuts places    ranks of one sequence read different tokens of it
    tp   cuts nothing   its ranks hold parts of one layer, and need the same input
    pp   cuts nothing   its ranks hold layers after one another: the samples pass through all of them

A step sees batch_size samples, and not batch_size times the number of ranks. Places are dealt as a zigzag:
the r-th chunk of 2 cp with the r-th from the end, since under a causal mask late tokens cost more than early
ones. Parts in succession would give the last rank 2 - 1/cp times the mean.

Nothing is sent. Source of the zigzag: Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from .coordinates import coordinates


def my_part(
    rank: int, sizes: Mapping[str, int], batch_size: int, seq: int
) -> tuple[range, list[range]]:
    """(rows of the global batch, places in the sequence) that `rank` reads.

    sizes: the mesh, outermost axis first. Axes that it lacks have one rank.
    batch_size, seq: rows and tokens of the whole batch; if an axis does not divide them, the first parts are
        one longer, as `torch.tensor_split` cuts.
    The places are two ranges: an early chunk and its counterpart from the end. A chunk without tokens is left
    out, and with cp = 1 the places are one range, the whole sequence.
    """
    place = coordinates(rank, sizes)
    dp, ep, cp = (sizes.get(axis, 1) for axis in ("dp", "ep", "cp"))
    rows = cut(batch_size, dp * ep)[place.get("dp", 0) * ep + place.get("ep", 0)]
    if cp == 1:
        return rows, [range(seq)]
    chunks, at = cut(seq, 2 * cp), place.get("cp", 0)
    return rows, [chunk for chunk in (chunks[at], chunks[-1 - at]) if chunk]


def cut(length: int, n: int) -> list[range]:
    """n ranges in succession, the first length % n of them one longer."""
    sizes = [length // n + (i < length % n) for i in range(n)]
    return [range(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]
