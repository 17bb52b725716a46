"""The costs of a collective on n ranks: bytes, rounds, seconds.

An algorithm has the name of its function in `course_lib.collectives`. Two bad algorithms are included for
comparison: `naive_broadcast` (the root serves one rank after another) and `naive_all_reduce` (all send to one
rank, which sends the sum back).

The alpha-beta model: a message of B bytes takes alpha + beta B seconds, and a rank can send one message and
receive one at the same time (Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2",
Parallel Computing 20, 1994; Thakur, Rabenseifner and Gropp 2005 use it in this way).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

THAKUR = (
    "Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, "
    "International Journal of High Performance Computing Applications 19 (2005)"
)
PATARASUK = (
    "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, Journal of "
    "Parallel and Distributed Computing 69 (2009)"
)
RABENSEIFNER = "Rabenseifner: Optimization of Collective Reduction Operations, ICCS 2004"
TWO_TREES = (
    "Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel "
    "Computing 35 (2009); shape of the trees: NCCL, src/graph/trees.cc"
)
DISSEMINATION = (
    "Hensgen, Finkel, Manber: Two Algorithms for Barrier Synchronization, International Journal of Parallel "
    "Programming 17 (1988)"
)
COUNTING = "by counting the messages of the algorithm"

TREE_BLOCKS = 4  # blocks of each half in double_binary_tree_all_reduce, by default


@dataclass(frozen=True)
class Cost:
    """The costs of an algorithm on n > 1 ranks. Bytes are in units of M, the full tensor."""

    sent: Callable[[int], float]  # by the rank that sends most
    rounds: Callable[[int], int]  # messages that must follow one another
    source: str
    received: Callable[[int], float] | None = None  # by the rank that receives most; None: as sent
    serial: Callable[[int], float] | None = None  # one after another; None: the busier direction

    def busiest(self, n: int) -> float:
        """The bytes sent or received, whichever is more, by the busiest rank."""
        return max(self.sent(n), self.received(n) if self.received else 0)


def log2_up(n: int) -> int:
    """ceil(log2 n), exactly."""
    return (n - 1).bit_length()


def log2_down(n: int) -> int:
    """floor(log2 n), exactly."""
    return n.bit_length() - 1


def extra(n: int) -> int:
    """1 if n is not a power of two, because the ranks beyond the last one need a round in and a round out."""
    return int(n & (n - 1) != 0)


def core(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << log2_down(n)


def share(n: int) -> float:
    """(n-1)/n: all chunks except one."""
    return (n - 1) / n


def tree_sent(n: int) -> float:
    """Double binary tree: M/2 up and to two children, M/2 up in the other tree; less on few ranks."""
    return {2: 1.0, 3: 1.5}.get(n, 2.0)


def tree_rounds(n: int) -> int:
    """A block goes up and down ceil(log2 n) levels; the others follow one round apart."""
    return 2 * log2_up(n) + TREE_BLOCKS - 1


ALGORITHMS: dict[str, Cost] = {
    "naive_broadcast": Cost(lambda n: n - 1, lambda n: n - 1, COUNTING),
    "broadcast": Cost(log2_up, log2_up, THAKUR),
    "reduce": Cost(lambda n: 1, log2_up, THAKUR, received=log2_up),
    "scatter": Cost(share, lambda n: n - 1, COUNTING),
    "gather": Cost(lambda n: 1 / n, lambda n: n - 1, COUNTING, received=share),
    "all_gather": Cost(share, lambda n: n - 1, THAKUR),
    "reduce_scatter": Cost(share, lambda n: n - 1, PATARASUK),
    "naive_all_reduce": Cost(
        lambda n: n - 1, lambda n: 2 * (n - 1), COUNTING, serial=lambda n: 2 * (n - 1)
    ),
    "ring_all_reduce": Cost(lambda n: 2 * share(n), lambda n: 2 * (n - 1), PATARASUK),
    "recursive_doubling_all_reduce": Cost(
        lambda n: log2_down(n) + extra(n),
        lambda n: log2_down(n) + 2 * extra(n),
        THAKUR,
        serial=lambda n: log2_down(n) + 2 * extra(n),
    ),
    "rabenseifner_all_reduce": Cost(
        lambda n: 2 * share(core(n)) + extra(n),
        lambda n: 2 * (log2_down(n) + extra(n)),
        RABENSEIFNER,
        serial=lambda n: 2 * share(core(n)) + 2 * extra(n),
    ),
    "double_binary_tree_all_reduce": Cost(tree_sent, tree_rounds, TWO_TREES),
    "all_to_all": Cost(share, lambda n: n - 1, THAKUR),
    "barrier": Cost(lambda n: 0, log2_up, DISSEMINATION),
}


def bytes_sent_per_rank(algorithm: str, n: int, nbytes: float) -> float:
    """Bytes the busiest rank sends; chunks are taken as exact n-ths (see `exact_bytes`)."""
    cost = _cost(algorithm, n)
    return cost.sent(n) * nbytes if n > 1 else 0.0


def rounds(algorithm: str, n: int) -> int:
    """Messages that must follow one another."""
    cost = _cost(algorithm, n)
    return cost.rounds(n) if n > 1 else 0


def seconds(algorithm: str, n: int, nbytes: float, alpha: float, beta: float) -> float:
    """rounds x alpha + bytes x beta, with the bytes the busiest rank sends or receives.

    This is the least time it can take. If one rank's phases wait for each other, it takes longer. Then use
    `serial_bytes` instead of the bytes.
    """
    cost = _cost(algorithm, n)
    return cost.rounds(n) * alpha + cost.busiest(n) * nbytes * beta if n > 1 else 0.0


def serial_bytes(algorithm: str, n: int, nbytes: float) -> float:
    """Bytes that are sent one after another: the largest message of each round, added up.

    They differ from the busiest rank's bytes for naive_all_reduce (twice as much, because first everything
    comes in and then everything goes out) and if extra ranks are folded in and out (one M more). For the
    double binary tree it is the limit of many blocks, 2 M.
    """
    cost = _cost(algorithm, n)
    if n == 1:
        return 0.0
    return (cost.serial(n) if cost.serial else cost.busiest(n)) * nbytes


def crossover_bytes(a: str, b: str, n: int, alpha: float, beta: float) -> float:
    """The size of M, in bytes, from which on the algorithm that moves fewer bytes is faster.

    a, b: the two algorithms. Returns 0.0 if the one with fewer bytes does not have more rounds either, and so
    is never slower; math.inf if both move the same. 8 ranks, alpha 10 us, 10 GB/s: recursive doubling is
    faster than a ring below 880 KB.
    """
    first, second = _cost(a, n), _cost(b, n)
    if n == 1 or first.busiest(n) == second.busiest(n):
        return math.inf
    lean, quick = sorted((first, second), key=lambda cost: cost.busiest(n))
    more_rounds = lean.rounds(n) - quick.rounds(n)
    return max(0.0, more_rounds * alpha / ((quick.busiest(n) - lean.busiest(n)) * beta))


def least_bytes(n: int, nbytes: float) -> float:
    """The least the busiest rank can send in an all-reduce: 2 (n-1)/n M (Patarasuk and Yuan 2009).

    For each element, n - 1 messages make the sum and n - 1 messages hand it out, so there are 2 (n-1) M in
    all.
    """
    return 2 * share(n) * nbytes


# ---- all-reduce in two levels


def hierarchical_bytes(per_node: int, nodes: int, nbytes: float) -> tuple[float, float]:
    """(bytes sent inside the node, bytes sent to other nodes) by each rank; together 2 (N-1)/N M.

    Source: Mikami et al., Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash (2018).

    8 GPUs per node, 16 nodes, 1 GB: each rank sends 1.75 GB by NVLink and 0.234 GB by the network. In a flat
    ring it sends 1.98 GB, and one rank of each node sends all of it by the network.
    """
    return 2 * share(per_node) * nbytes, 2 * share(nodes) * nbytes / per_node


def hierarchical_rounds(per_node: int, nodes: int) -> tuple[int, int]:
    """(rounds inside the nodes, rounds between them)."""
    return 2 * (per_node - 1), 2 * (nodes - 1)


def hierarchical_seconds(
    per_node: int,
    nodes: int,
    nbytes: float,
    inside: tuple[float, float],
    across: tuple[float, float],
) -> float:
    """Rounds x alpha + bytes x beta of both levels; `inside` and `across` are (alpha, beta) of the links."""
    sent = hierarchical_bytes(per_node, nodes, nbytes)
    counts = hierarchical_rounds(per_node, nodes)
    links = (inside, across)
    return sum(
        count * alpha + moved * beta
        for count, moved, (alpha, beta) in zip(counts, sent, links, strict=True)
    )


# ---- built-in collectives: the bytes booked by the ledger, and the figures of nccl-tests

BUILT_INS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * share(n),
    "all_gather": share,
    "reduce_scatter": share,
    "all_to_all": share,
    "broadcast": lambda n: 1.0,  # a pipelined chain: every rank except the last passes M on
    "reduce": lambda n: 1.0,
    "gather": lambda n: 1 / n,
    "scatter": share,
    "barrier": lambda n: 0.0,
}


def logical_bytes(op: str, n: int, nbytes: float) -> float:
    """Bytes booked for the busiest rank of the built-in `op`, which is the bandwidth-optimal traffic.

    The backend can send more. For example, gloo's reduce-scatter is an all-reduce on the wire, and NCCL's
    tree sends 2 M. Source: nccl-tests, doc/PERFORMANCE.md, which gives these factors for the collectives it
    lists.
    """
    if op not in BUILT_INS:
        raise ValueError(f"no built-in is called {op!r}; known are {', '.join(BUILT_INS)}")
    return BUILT_INS[op](_ranks(n)) * nbytes if n > 1 else 0.0


def bus_bandwidth(op: str, n: int, nbytes: float, time: float) -> float:
    """nccl-tests' "busbw", bytes per second: nbytes / time, times the share each rank must at least move.

    You can compare it with a link's speed for any n. Source: nccl-tests, doc/PERFORMANCE.md.
    8 ranks all-reduce 4 GB in 0.1 s: 70 GB/s.
    """
    factors = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
    if op not in factors:
        raise ValueError(f"nccl-tests gives no factor for {op!r}; it does for {', '.join(factors)}")
    return logical_bytes(op, n, nbytes) / time


def _ranks(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is the number of ranks, a whole number from 1 on, not {n!r}")
    return n


def _cost(algorithm: str, n: int) -> Cost:
    _ranks(n)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm is called {algorithm!r}; known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm]
