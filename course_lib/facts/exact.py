"""Bytes each rank of a collective sends, exactly, even if n does not divide the size.

The formulas follow the description of each algorithm instead of its code, and the tests compare the ledger
with them. Messages of no bytes are not sent, so they cost nothing here either.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.facts.costs import core, log2_down, log2_up


def chunk_sizes(numel: int, n: int) -> list[int]:
    """Elements of the n chunks `torch.tensor_split` makes; the first numel % n have one more."""
    size, longer = divmod(numel, n)
    return [size + (i < longer) for i in range(n)]


def exact_bytes(
    algorithm: str,
    n: int,
    numel: int,
    itemsize: int,
    rank: int,
    root: int = 0,
    per_node: int | None = None,
) -> int:
    """Bytes `rank` sends in `algorithm` of `course_lib.collectives` on n ranks.

    numel: elements of the full tensor (all shards or pieces together), of `itemsize` bytes each.
    rank, root: ranks in the group; root (src or dst) matters only for rooted algorithms.
    per_node: for `hierarchical_all_reduce`, whose nodes hold that many consecutive ranks.
    barrier: one byte per round, whatever numel is.
    """
    if not (0 <= rank < n and 0 <= root < n):
        raise ValueError(f"rank {rank} and root {root} must lie in 0 .. {n - 1}")
    if algorithm == "barrier":
        return log2_up(n)
    if algorithm == "hierarchical_all_reduce":
        if not per_node or n % per_node:
            raise ValueError(f"per_node={per_node}: {n} ranks need nodes of equal size")
        return _hierarchical(n, numel, rank, per_node) * itemsize
    if algorithm in ROOTED:
        return ROOTED[algorithm](n, numel, (rank - root) % n) * itemsize
    if algorithm not in SYMMETRIC:
        known = ", ".join([*SYMMETRIC, *ROOTED, "hierarchical_all_reduce", "barrier"])
        raise ValueError(f"no algorithm is called {algorithm!r}; known are {known}")
    return SYMMETRIC[algorithm](n, numel, rank) * itemsize


# ---- elements sent by the rank that is `place` ranks after the root


def _naive_broadcast(n: int, numel: int, place: int) -> int:
    return (n - 1) * numel if place == 0 else 0


def _broadcast(n: int, numel: int, place: int) -> int:
    """The rank has the tensor after round log2(place), and then serves place + 2^k while that exists."""
    return numel * sum(place < 1 << k and place + (1 << k) < n for k in range(log2_up(n)))


def _reduce(n: int, numel: int, place: int) -> int:
    return numel if place else 0


def _scatter(n: int, numel: int, place: int) -> int:
    return _piece(n, numel) * (n - 1) if place == 0 else 0


def _gather(n: int, numel: int, place: int) -> int:
    return _piece(n, numel) if place else 0


# ---- elements sent by rank r


def _shards_but_one(n: int, numel: int, r: int) -> int:
    """all_gather, reduce_scatter, all_to_all: n equal shards, of which each rank sends n - 1."""
    return _piece(n, numel) * (n - 1)


def _ring_all_reduce(n: int, numel: int, r: int) -> int:
    """First phase: all chunks except r + 1, which it completes. Second: all except r + 2, which is last."""
    chunks = chunk_sizes(numel, n)
    return 2 * numel - chunks[(r + 1) % n] - chunks[(r + 2) % n] if n > 1 else 0


def _recursive_doubling(n: int, numel: int, r: int) -> int:
    """Every core rank sends in every round; an extra rank sends once, and its core rank once more."""
    if r >= core(n):
        return numel
    return (log2_down(n) + (r + core(n) < n)) * numel


def _rabenseifner(n: int, numel: int, r: int) -> int:
    """Halving: all chunks except its own. Doubling: the aligned blocks of 1, 2, 4, ... chunks around it."""
    c = core(n)
    if r >= c:
        return numel
    chunks = chunk_sizes(numel, c)
    blocks = [sum(chunks[r >> k << k : (r >> k) + 1 << k]) for k in range(log2_down(c))]
    return numel - chunks[r] + sum(blocks) + numel * (r + c < n)


def _double_binary_tree(n: int, numel: int, r: int) -> int:
    """In each tree, it sends its half of the tensor once to the parent and once to each child."""
    places = (r, (r - 1) % n if n % 2 else n - 1 - r)  # tree 1 is tree 0 shifted or mirrored
    halves = chunk_sizes(numel, 2)
    return sum(_tree_links(place, n) * half for place, half in zip(places, halves, strict=True))


def _tree_links(place: int, n: int) -> int:
    """Neighbours of `place` in a tree whose node p is above p - b/2 and p + b/2, b being its lowest bit."""
    if place == 0:
        return int(n > 1)
    lowest = place & -place
    if lowest == 1:
        return 1
    return 2 + (place + 1 < n)  # a rank to its right in its range gives it a second child


def _hierarchical(n: int, numel: int, rank: int, per_node: int) -> int:
    """Inside the node, the two phases of a ring; across nodes, a ring on the chunk the rank completed."""
    node, place = divmod(rank, per_node)
    inside = _ring_all_reduce(per_node, numel, place)
    return inside + _ring_all_reduce(
        n // per_node, chunk_sizes(numel, per_node)[(place + 1) % per_node], node
    )


def _naive_all_reduce(n: int, numel: int, place: int) -> int:
    return numel if place else (n - 1) * numel


def _piece(n: int, numel: int) -> int:
    if numel % n:
        raise ValueError(
            f"{numel} elements cannot be cut into {n} equal pieces, which this algorithm needs"
        )
    return numel // n


ROOTED: dict[str, Callable[[int, int, int], int]] = {
    "naive_broadcast": _naive_broadcast,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "scatter": _scatter,
    "gather": _gather,
    "naive_all_reduce": _naive_all_reduce,
}
SYMMETRIC: dict[str, Callable[[int, int, int], int]] = {
    "all_gather": _shards_but_one,
    "reduce_scatter": _shards_but_one,
    "all_to_all": _shards_but_one,
    "ring_all_reduce": _ring_all_reduce,
    "recursive_doubling_all_reduce": _recursive_doubling,
    "rabenseifner_all_reduce": _rabenseifner,
    "double_binary_tree_all_reduce": _double_binary_tree,
}
