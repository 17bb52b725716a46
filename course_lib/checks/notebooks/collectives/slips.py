"""The mistakes that students make in the formulas, each by what it computes: sentence -> formula.

`a` is the algorithm, n the ranks, m the bytes of the full tensor, al and be the link's alpha and beta.
"""

from __future__ import annotations

import math

from course_lib import facts
from course_lib.checks import kit

RING, DOUBLING = "ring_all_reduce", "recursive_doubling_all_reduce"
Slips = dict[str, kit.Formula]


def log_up(n: int) -> int:
    return (n - 1).bit_length()


def log_down(n: int) -> int:
    return n.bit_length() - 1


def folded(n: int) -> int:
    """1 if n is not a power of two."""
    return int(n & (n - 1) != 0)


# ---- the ring alone

RING_BYTES: Slips = {
    "You count one phase, but the ring goes around twice.": lambda n, m: (n - 1) / n * m,
    "Each round sends one chunk of 1/N, not the whole tensor.": lambda n, m: 2 * (n - 1) * m,
    "Each of the two phases has N - 1 rounds, and each round sends one chunk of 1/N.": lambda n, m: (
        (n - 1) * m
    ),
    "Your formula is the limit for many ranks, but N ranks send (N-1)/N of it.": lambda n, m: 2 * m,
    "You count two rounds, but each phase has N - 1.": lambda n, m: 2 * m / n,
    "The fraction is upside down, because (N-1)/N is less than 1.": lambda n, m: 2 * n / (n - 1) * m,
    "Each phase has N - 1 rounds, not N + 1.": lambda n, m: 2 * (n + 1) / n * m,
    "Count only the bytes sent, not the bytes received as well.": lambda n, m: 4 * (n - 1) / n * m,
    "`nbytes` is already in bytes, so there is no factor of 4.": lambda n, m: 8 * (n - 1) / n * m,
    "Your formula holds only for 2 ranks.": lambda n, m: m,
}
RING_ROUNDS: Slips = {
    "You count one phase, but the ring goes around twice.": lambda n: n - 1,
    "Each phase has N - 1 rounds, because every chunk has then met every rank.": lambda n: 2 * n,
    "There are two phases of N - 1 rounds each.": lambda n: n,
    "Two phases of N - 1 rounds each are 2N - 2.": lambda n: 2 * n - 1,
    "A tree takes that many rounds. In a ring, a chunk moves one rank per round.": lambda n: 2 * log_up(n),
    "In a ring, a chunk moves only one rank per round, unlike in a tree.": lambda n: log_up(n),
    "The ranks send at the same time, so there is no factor of N.": lambda n: 2 * (n - 1) * n,
}

# ---- bytes_sent_per_rank, by algorithm

SHARDED_BYTES: Slips = {
    "`nbytes` is the size of the full tensor, but only a chunk of 1/N travels at a time.": lambda a, n, m: (
        (n - 1) * m
    ),
    "A rank's own chunk stays where it is, so the rank sends (N-1)/N.": lambda a, n, m: m,
    "An all-reduce sends that much, but here there is one phase.": lambda a, n, m: 2 * (n - 1) / n * m,
    "You count one chunk, but there are N - 1.": lambda a, n, m: m / n,
}
BYTES: dict[str, Slips] = {
    "broadcast": {
        "The source sends one message in every round of the tree, not only one.": lambda a, n, m: m,
        "Your formula is the sum over all ranks, but the source sends one tensor per round.": (
            lambda a, n, m: (n - 1) * m
        ),
        "Round up, because 5 ranks take 3 rounds and the source sends in each.": (
            lambda a, n, m: log_down(n) * m
        ),
        "Rounds are whole, so take ceil(log2 N).": lambda a, n, m: math.log2(n) * m,
        "A binomial tree sends the whole tensor each time.": lambda a, n, m: (n - 1) / n * m,
    },
    RING: {
        "You count one of the two phases.": lambda a, n, m: (n - 1) / n * m,
        "Each round sends one chunk of 1/N, not the whole tensor.": lambda a, n, m: 2 * (n - 1) * m,
        "Your formula is the limit for many ranks, but N ranks send (N-1)/N of it.": lambda a, n, m: 2 * m,
    },
    DOUBLING: {
        "Your formula needs a power of two. Otherwise the extra ranks are folded in and out, so count "
        "floor(log2 N) + 1.": (lambda a, n, m: math.log2(n) * m),
        "Your formula needs a power of two. Otherwise the busiest rank also sends the sum to an extra one.": (
            lambda a, n, m: log_down(n) * m
        ),
        "In the two extra rounds, the busiest rank sends once and receives once.": (
            lambda a, n, m: (log_down(n) + 2 * folded(n)) * m
        ),
        "A ring sends that much, but here whole tensors are swapped.": lambda a, n, m: 2 * (n - 1) / n * m,
        "A swap is one send per rank, so a rank sends log2 N tensors.": lambda a, n, m: 2 * log_up(n) * m,
        "For a power of two nothing is folded, so count log2 N.": lambda a, n, m: (log_down(n) + 1) * m,
    },
}

# ---- rounds, by algorithm

SHARDED_ROUNDS: Slips = {
    "An all-reduce takes that many rounds, but here there is one phase.": lambda a, n: 2 * (n - 1),
    "A rank's own chunk does not travel, so there are N - 1 rounds.": lambda a, n: n,
    "A chunk goes to one rank per round, so there are N - 1 rounds.": lambda a, n: log_up(n),
}
ROUNDS: dict[str, Slips] = {
    "broadcast": {
        "In a tree, the ranks with the value double each round, so fewer rounds are enough.": (
            lambda a, n: n - 1
        ),
        "Round up, because with 5 ranks, two rounds reach only four of them.": lambda a, n: log_down(n),
        "Rounds are whole, so take ceil(log2 N).": lambda a, n: math.log2(n),
        "For a power of two, log2 N is whole, and there is no round more.": lambda a, n: log_down(n) + 1,
    },
    RING: {
        "You count one phase, but the ring goes around twice.": lambda a, n: n - 1,
        "Each phase has N - 1 rounds.": lambda a, n: 2 * n,
    },
    DOUBLING: {
        "Extra ranks are folded in before and out after, so take floor(log2 N) + 2.": lambda a, n: log_up(n),
        "If N is not a power of two, folding in and out takes two more rounds.": lambda a, n: log_down(n),
        "Folding in is a round, and folding out is another.": lambda a, n: log_down(n) + folded(n),
        "Rounds are whole, and if N is not a power of two, folding adds two.": lambda a, n: math.log2(n),
        "For a power of two nothing is folded, so there are log2 N rounds.": lambda a, n: log_down(n) + 2,
        "A ring takes that many rounds, but here the distance doubles in every round.": lambda a, n: (
            2 * (n - 1)
        ),
        "Partners send at the same time, so there are log2 N rounds.": lambda a, n: 2 * log_up(n),
    },
}

# ---- seconds and crossover

sent, rounds = facts.bytes_sent_per_rank, facts.rounds

SECONDS: Slips = {
    "The latency is missing. Add alpha once per round.": (lambda a, n, m, al, be: sent(a, n, m) * be),
    "The bytes are missing. Add beta for every byte sent.": (lambda a, n, m, al, be: rounds(a, n) * al),
    "alpha is paid in every round, not once.": lambda a, n, m, al, be: al + sent(a, n, m) * be,
    "beta is seconds per byte, the inverse of the bandwidth, so multiply by it.": (
        lambda a, n, m, al, be: rounds(a, n) * al + sent(a, n, m) / be
    ),
    "The bytes already include all rounds, so only alpha is paid in every round.": (
        lambda a, n, m, al, be: rounds(a, n) * (al + sent(a, n, m) * be)
    ),
    "Multiply beta by the bytes sent, not by the size of the tensor.": (
        lambda a, n, m, al, be: rounds(a, n) * al + m * be
    ),
    "alpha and beta are swapped.": (lambda a, n, m, al, be: rounds(a, n) * be + sent(a, n, m) * al),
}


def crossing(n: int, alpha: float, beta: float) -> float:
    """Bytes from which a ring beats recursive doubling; inf when it never does."""
    return facts.crossover_bytes(RING, DOUBLING, n, alpha, beta)


def rough(n: int, alpha: float, beta: float) -> float:
    """The crossover with log2 N for every N."""
    saved = math.log2(n) - 2 * (n - 1) / n
    return math.inf if saved <= 0 else (2 * (n - 1) - math.log2(n)) * alpha / (beta * saved)


CROSSOVER: Slips = {
    "With 2 ranks both send M, but the ring takes one more round, so it never wins (math.inf).": (
        lambda n, al, be: 0.0 if n == 2 else crossing(n, al, be)
    ),
    "alpha and beta are swapped.": lambda n, al, be: crossing(n, be, al),
    "The sign is wrong. Doubling sends more bytes, so subtract the ring's bytes from its own.": (
        lambda n, al, be: crossing(n, al, be) * (1 if n == 2 else -1)
    ),
    "Your formula is upside down: bytes = alpha * rounds saved / (beta * bytes saved).": (
        lambda n, al, be: 1 / crossing(n, al, be)
    ),
    "At alpha / beta, one message's latency equals the time of its bytes. Compare the two algorithms "
    "instead.": (lambda n, al, be: al / be),
    "Both algorithms have rounds and both send bytes, so set their times equal.": (
        lambda n, al, be: 2 * (n - 1) * al / be
    ),
    "Return the bytes of the full tensor, not of all ranks.": (lambda n, al, be: crossing(n, al, be) * n),
    "Return the bytes of the full tensor, not of a chunk.": (lambda n, al, be: crossing(n, al, be) / n),
    "Your formula needs a power of two. Otherwise doubling takes floor(log2 N) + 2 rounds and sends "
    "floor(log2 N) + 1 tensors.": rough,
}
