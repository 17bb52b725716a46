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
    "That is one phase; the ring goes round twice.": lambda n, m: (n - 1) / n * m,
    "Each round sends one chunk of 1/N, not the whole tensor.": lambda n, m: 2 * (n - 1) * m,
    "Two phases, and in each N - 1 rounds of one chunk of 1/N.": lambda n, m: (n - 1) * m,
    "That is the limit for many ranks; N ranks send (N-1)/N of it.": lambda n, m: 2 * m,
    "That is two rounds: each phase has N - 1 of them.": lambda n, m: 2 * m / n,
    "The fraction is upside down: (N-1)/N is less than 1.": lambda n, m: 2 * n / (n - 1) * m,
    "N - 1 rounds in each phase, not N + 1.": lambda n, m: 2 * (n + 1) / n * m,
    "Bytes sent were asked for, not those received as well.": lambda n, m: 4 * (n - 1) / n * m,
    "`nbytes` are bytes already.": lambda n, m: 8 * (n - 1) / n * m,
    "That holds for 2 ranks only.": lambda n, m: m,
}
RING_ROUNDS: Slips = {
    "That is one phase; the ring goes round twice.": lambda n: n - 1,
    "N - 1 rounds in each phase: then every chunk has met every rank.": lambda n: 2 * n,
    "Two phases of N - 1 rounds each.": lambda n: n,
    "Two phases of N - 1 rounds each are 2N - 2.": lambda n: 2 * n - 1,
    "That is a tree's; in a ring a chunk moves one rank a round.": lambda n: 2 * log_up(n),
    "That is one way through a tree; a chunk moves one rank a round.": lambda n: log_up(n),
    "The ranks send at the same time: no factor of N.": lambda n: 2 * (n - 1) * n,
}

# ---- bytes_sent_per_rank, by algorithm

SHARDED_BYTES: Slips = {
    "`nbytes` are the full tensor's: a chunk of 1/N travels at a time.": lambda a, n, m: (n - 1) * m,
    "A rank's own chunk stays where it is: (N-1)/N.": lambda a, n, m: m,
    "That is an all-reduce's; here there is one phase.": lambda a, n, m: 2 * (n - 1) / n * m,
    "That is one chunk; there are N - 1 of them.": lambda a, n, m: m / n,
}
BYTES: dict[str, Slips] = {
    "broadcast": {
        "That is one message; the source sends one in every round of the tree.": lambda a, n, m: m,
        "That is the sum over all ranks; the source sends one tensor a round.": (lambda a, n, m: (n - 1) * m),
        "Round up: 5 ranks take 3 rounds, and the source sends in each.": (lambda a, n, m: log_down(n) * m),
        "Rounds are whole: ceil(log2 N).": lambda a, n, m: math.log2(n) * m,
        "A binomial tree sends the whole tensor each time.": lambda a, n, m: (n - 1) / n * m,
    },
    RING: {
        "That is one of the two phases.": lambda a, n, m: (n - 1) / n * m,
        "Each round sends one chunk of 1/N, not the whole tensor.": lambda a, n, m: 2 * (n - 1) * m,
        "That is the limit for many ranks; N ranks send (N-1)/N of it.": lambda a, n, m: 2 * m,
    },
    DOUBLING: {
        "Right for powers of two; else the extra ranks are folded in and out: floor(log2 N) + 1.": (
            lambda a, n, m: math.log2(n) * m
        ),
        "Right for powers of two; else the busiest rank also sends the sum to an extra one.": (
            lambda a, n, m: log_down(n) * m
        ),
        "Of the two extra rounds the busiest rank sends in one; in the other it receives.": (
            lambda a, n, m: (log_down(n) + 2 * folded(n)) * m
        ),
        "That is the ring's; here whole tensors are swapped.": lambda a, n, m: 2 * (n - 1) / n * m,
        "A swap is one send for each rank: log2 N tensors.": lambda a, n, m: 2 * log_up(n) * m,
        "For a power of two nothing is folded: log2 N.": lambda a, n, m: (log_down(n) + 1) * m,
    },
}

# ---- rounds, by algorithm

SHARDED_ROUNDS: Slips = {
    "That is an all-reduce's; here there is one phase.": lambda a, n: 2 * (n - 1),
    "N - 1: a rank's own chunk need not travel.": lambda a, n: n,
    "A chunk goes to one rank a round: N - 1 rounds.": lambda a, n: log_up(n),
}
ROUNDS: dict[str, Slips] = {
    "broadcast": {
        "That is one rank after the other; in a tree the ranks that have the value double each round.": (
            lambda a, n: n - 1
        ),
        "Round up: with 5 ranks two rounds reach four of them.": lambda a, n: log_down(n),
        "Rounds are whole: ceil(log2 N).": lambda a, n: math.log2(n),
    },
    RING: {
        "That is one phase; the ring goes round twice.": lambda a, n: n - 1,
        "N - 1 rounds in each phase.": lambda a, n: 2 * n,
    },
    DOUBLING: {
        "Extra ranks are folded in before and out after: floor(log2 N) + 2.": lambda a, n: log_up(n),
        "Without a power of two, folding in and out are two rounds more.": lambda a, n: log_down(n),
        "Folding in is a round, and folding out is another.": lambda a, n: log_down(n) + folded(n),
        "Rounds are whole; without a power of two folding adds two.": lambda a, n: math.log2(n),
        "For a power of two nothing is folded: log2 N rounds.": lambda a, n: log_down(n) + 2,
        "That is the ring's; here the distance doubles in every round.": lambda a, n: 2 * (n - 1),
        "Partners send at the same time: log2 N rounds.": lambda a, n: 2 * log_up(n),
    },
}

# ---- seconds and crossover

sent, rounds = facts.bytes_sent_per_rank, facts.rounds

SECONDS: Slips = {
    "The latency is missing: alpha once for every round.": (lambda a, n, m, al, be: sent(a, n, m) * be),
    "The bytes are missing: beta for every byte that is sent.": (lambda a, n, m, al, be: rounds(a, n) * al),
    "alpha is paid in every round, not once.": lambda a, n, m, al, be: al + sent(a, n, m) * be,
    "beta is seconds for a byte, the inverse of the bandwidth: multiply by it.": (
        lambda a, n, m, al, be: rounds(a, n) * al + sent(a, n, m) / be
    ),
    "The bytes are those of all rounds together: only alpha is paid in every round.": (
        lambda a, n, m, al, be: rounds(a, n) * (al + sent(a, n, m) * be)
    ),
    "beta goes with the bytes that are sent, not with the tensor's.": (
        lambda a, n, m, al, be: rounds(a, n) * al + m * be
    ),
    "alpha and beta stand in each other's place.": (
        lambda a, n, m, al, be: rounds(a, n) * be + sent(a, n, m) * al
    ),
}


def crossing(n: int, alpha: float, beta: float) -> float:
    """Bytes from which a ring beats recursive doubling; inf when it never does."""
    return facts.crossover_bytes(RING, DOUBLING, n, alpha, beta)


def rough(n: int, alpha: float, beta: float) -> float:
    """The crossover with log2 N for every N."""
    saved = math.log2(n) - 2 * (n - 1) / n
    return math.inf if saved <= 0 else (2 * (n - 1) - math.log2(n)) * alpha / (beta * saved)


CROSSOVER: Slips = {
    "With 2 ranks both send M, and the ring takes a round more: it never wins (math.inf).": (
        lambda n, al, be: 0.0 if n == 2 else crossing(n, al, be)
    ),
    "alpha and beta stand in each other's place.": lambda n, al, be: crossing(n, be, al),
    "Upside down: bytes = alpha * rounds saved / (beta * bytes saved).": (
        lambda n, al, be: 1 / crossing(n, al, be)
    ),
    "alpha / beta is where one message's latency equals its bytes: compare the two algorithms.": (
        lambda n, al, be: al / be
    ),
    "Both algorithms have rounds, and both have bytes: set the two times equal.": (
        lambda n, al, be: 2 * (n - 1) * al / be
    ),
    "The full tensor's bytes were asked for, not those of all ranks.": (
        lambda n, al, be: crossing(n, al, be) * n
    ),
    "The full tensor's bytes were asked for, not a chunk's.": (lambda n, al, be: crossing(n, al, be) / n),
    "Right for powers of two; else doubling takes floor(log2 N) + 2 rounds and sends "
    "floor(log2 N) + 1 tensors.": rough,
}
