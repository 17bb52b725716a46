"""Parts: which rows of the batch and which positions of the sequence a rank reads.

The batch is a sheet whose rows are samples and whose columns are positions in the sequence. Three axes cut
it, but two do not:

    dp   cuts rows        replicas of the model read different samples
    ep   cuts rows        its ranks hold different experts, and are replicas of all else
    cp   cuts positions   ranks of one sequence read different tokens of it
    tp   cuts nothing     its ranks hold parts of one layer, and need the same input
    pp   cuts nothing     its ranks hold layers after one another: the samples pass through all of them

A step sees batch_size samples instead of batch_size times the number of ranks. Positions are dealt as a
zigzag, the r-th chunk of 2 cp with the r-th from the end, since late tokens cost more than early ones under a
causal mask. Parts in succession would give the last rank 2 - 1/cp times the mean.

Nothing is sent. Source of the zigzag: Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from .coordinates import coordinates


def my_part(
    rank: int, sizes: Mapping[str, int], batch_size: int, seq: int
) -> tuple[range, list[range]]:
    """(rows of the global batch, positions in the sequence) read by `rank`.

    sizes: the mesh, outermost axis first. An axis that is missing has one rank.
    batch_size, seq: rows and tokens of the whole batch; if an axis does not divide them, the first parts are
        one longer, as `torch.tensor_split` cuts.
    The positions are two ranges, an early chunk and its counterpart from the end. A chunk without tokens is
    left out, and with cp = 1 the positions are one range, the whole sequence.
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
