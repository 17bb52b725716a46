"""Context parallelism: bytes sent by attention over a spread sequence, idle ranks, overlap, memory.

n ranks hold tokens / n each; tokens = batch * seq counts all of them. width = heads * head_dim, for q and for
the output; kv_width = kv_heads * head_dim, for k and for v. The layouts are those of
`course_lib.context_parallel`.

Sources: Liu, Zaharia, Abbeel, Ring Attention with Blockwise Transformers for Near-Infinite Context, 2023,
section 3 and table 2. Jacobs et al., DeepSpeed Ulysses, 2023, section 3.2. Brandon et al., Striped Attention,
2023, section 3. Dao, FlashAttention-2, 2023 (FLOPs of backward). Korthikanti et al., 2022 (activations).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FORWARD, BACKWARD = 4, 10  # FLOPs for each score and feature: 2 and 5 products of matrices


# ---- bytes sent


def ring_attention_bytes(
    n: int, tokens: float, kv_width: int, itemsize: int = 2, direction: str = "forward"
) -> float:
    """Bytes each rank sends in one attention.

    forward: its own keys and values, and those it receives, n - 1 times in all. backward: the same, and n
    times their gradients, in float32 at least. The last of these times brings the gradients home. (n - 1
    times would be enough if a rank kept the share of its own queries until the rest is home, but PyTorch and
    ring-flash-attention also send n times.)

    131,072 tokens, 8 ranks, 8 key heads of 128, bf16: 470 MB forward, 1.54 GB backward.
    """
    _check(direction)
    if n == 1:
        return 0.0
    keys = 2 * tokens / n * kv_width
    sent = (n - 1) * keys * itemsize
    return sent if direction == "forward" else sent + n * keys * max(4, itemsize)


def ring_attention_messages(n: int, direction: str = "forward") -> int:
    """Messages each rank sends, with keys and values (or their gradients) in one: n - 1, and 2n - 1."""
    _check(direction)
    return 0 if n == 1 else n - 1 if direction == "forward" else 2 * n - 1


def ulysses_bytes(n: int, tokens: float, width: int, kv_width: int, itemsize: int = 2) -> float:
    """Bytes each rank sends in one attention, as many forward as backward.

    All-to-alls send (n-1)/n of the rank's q, k, v and output. These bytes fall with n, whereas those of a
    ring do not. At most as many ranks as heads of keys can take part.
    """
    return (n - 1) / n * tokens / n * (2 * width + 2 * kv_width) * itemsize


def ulysses_ring_bytes(
    u: int,
    r: int,
    tokens: int,
    width: int,
    kv_width: int,
    itemsize: int = 2,
    direction: str = "forward",
) -> tuple[float, float]:
    """(bytes sent within the Ulysses group of u, bytes sent in the ring of r) by each of u * r ranks."""
    inside = ulysses_bytes(u, tokens / r, width, kv_width, itemsize)
    return inside, ring_attention_bytes(r, tokens, kv_width, itemsize, direction) / u


# ---- idle ranks under a causal mask


def causal_scores(layout: str, n: int, seq: int) -> list[list[int]]:
    """Scores each rank computes in each step of a ring, without masked scores: [step][rank].

    layout: "contiguous", "striped" or "zigzag"; its parts (zigzag: 2n of them) must be equal. There are
    c = seq / n tokens per rank. contiguous: in the first step all ranks have the diagonal, c(c+1)/2, and
    after that c^2 or nothing. striped: c(c+1)/2 if the keys' owner does not come after the rank, else
    c(c-1)/2. zigzag: two squares of c/2 in every step, and in the first step also a diagonal.
    """
    parts = 2 * n if layout == "zigzag" else n
    if seq % parts:
        raise ValueError(f"seq={seq} is not cut into {parts} equal parts; take a multiple of them")
    c = seq // n
    half = c // 2
    rounds = []
    for step in range(n):
        before = [step <= rank for rank in range(n)]  # whether the keys' owner is rank or before it
        if layout == "zigzag":
            scores = [2 * half**2 + (half if step == 0 else 0)] * n
        elif layout == "striped":
            scores = [c * (c + 1) // 2 if earlier else c * (c - 1) // 2 for earlier in before]
        elif layout == "contiguous":
            scores = [
                c * (c + 1) // 2 if step == 0 else c**2 if earlier else 0 for earlier in before
            ]
        else:
            raise ValueError(f"layout is 'contiguous', 'striped' or 'zigzag', not {layout!r}")
        rounds.append(scores)
    return rounds


def causal_slowdown(layout: str, n: int, seq: int | None = None) -> float:
    """Time of a causal ring, divided by the time for equal work: the busiest rank of each step over the mean.

    For long sequences (seq None), contiguous gives 2 - 1/n, and the others 1. With c = seq / n: contiguous
    ((2n-1) c + 1) / (n c + 1), striped n (c + 1) / (n c + 1), zigzag 1.
    """
    if seq is None:
        return {"contiguous": 2 - 1 / n, "striped": 1.0, "zigzag": 1.0}[layout]
    steps = causal_scores(layout, n, seq)
    return sum(map(max, steps)) / (sum(map(sum, steps)) / n)


def causal_idle_shares(n: int) -> list[float]:
    """Share of the time each rank idles under a causal mask, with contiguous tokens: (n-1-r)/(n-1/2).

    4 ranks: 0.86, 0.57, 0.29, 0; together (n-1)/(2n-1), 3/7.
    """
    return [(n - 1 - rank) / (n - 0.5) for rank in range(n)]


# ---- when communication hides


def hiding_block(
    flops_per_second: float,
    bytes_per_second: float,
    width: int = 1,
    kv_width: int | None = None,
    itemsize: int = 2,
    direction: str = "forward",
    causal: bool = False,
    alpha: float = 0.0,
) -> float:
    """Tokens each rank must hold, so that a step's messages take no longer than its computing.

    forward: 4 c^2 width FLOPs take as long as 2 c kv_width itemsize bytes. With as many heads of keys as of
    queries, in 16 bits, this is c = FLOP/s over bytes/s, the paper's block. backward: 10 c^2 width, but the
    rank also sends gradients in float32, so it needs 1.2 times as many tokens in 16 bits. causal: half of the
    scores, as zigzag has them in every step. kv_width None: width. alpha: seconds per message; with it, width
    also matters.

    A100, 312 TFLOP/s: 1,040 tokens on NVLink (300 GB/s each way), 24,960 on 100 Gb/s.
    """
    _check(direction)
    forward = direction == "forward"
    computing = (FORWARD if forward else BACKWARD) * width / flops_per_second / (2 if causal else 1)
    moved = itemsize if forward else itemsize + max(4, itemsize)
    sending = 2 * (width if kv_width is None else kv_width) * moved / bytes_per_second
    alpha = alpha if forward else 2 * alpha
    return (sending + math.sqrt(sending**2 + 4 * computing * alpha)) / (2 * computing)


def minimal_sequence(flops_per_second: float, bytes_per_second: float) -> float:
    """Tokens on each rank by the paper's count: six blocks (its q and output, k and v here and arriving)."""
    return 6 * hiding_block(flops_per_second, bytes_per_second)


@dataclass(frozen=True)
class RingHost:
    """A row of the ring-attention paper's table 2; block and sequence as printed there, in tokens."""

    name: str
    flops: float  # per second, bf16
    each_way: float  # bytes per second
    printed_block: float
    printed_sequence: float


# In the row of InfiniBand, the paper's own formulas do not give the result it prints. 312 TFLOP/s over
# 12.5 GB/s are 24,960 tokens and six times that 149,760, in its rounding 25.0 and 149.8 thousand (and six
# times its 24.5 thousand would be 147). All other rows agree to the last digit.
RING_HOSTS: tuple[RingHost, ...] = (
    RingHost("A100, NVLink", 312e12, 300e9, 1.0e3, 6.2e3),
    RingHost("A100, InfiniBand", 312e12, 12.5e9, 24.5e3, 149.5e3),
    RingHost("TPU v3", 123e12, 112e9, 1.1e3, 6.6e3),
    RingHost("TPU v4", 275e12, 268e9, 1.0e3, 6.2e3),
    RingHost("TPU v5e", 196e12, 186e9, 1.1e3, 6.3e3),
)


# ---- memory


def attention_saved_bytes(
    tokens: int, heads: int, kv_heads: int, head_dim: int, n: int = 1, itemsize: int = 2
) -> float:
    """Bytes tiled attention keeps for backward on each of n ranks: q, k, v, out, and lse in float32.

    A ring keeps the same, because keys and values that pass by are sent again instead of being kept. 131,072
    tokens, 32 heads and 8 of keys of 128, bf16, 8 ranks: 338 MB; the scores alone would take 137 GB.
    """
    return (
        tokens / n * ((2 * heads + 2 * kv_heads) * head_dim * itemsize + heads * max(4, itemsize))
    )


def longest_sequence(
    memory: float,
    width: int,
    heads: int,
    layers: int,
    n: int = 1,
    flash: bool = True,
    recompute: bool = False,
) -> float:
    """Tokens of one sequence whose activations take `memory` bytes on each of n ranks, in 16 bits.

    There are 34 bytes per layer, token and feature (Korthikanti et al.), shared by n. With flash=False, 5
    more per score make the length grow only with the root of n. recompute: 2 bytes for each layer's input,
    and one whole layer.
    """
    whole = 1 if recompute else layers
    linear = (34 * whole + (2 * layers if recompute else 0)) * width
    square = 0 if flash else 5 * heads * whole
    room = memory * n
    return 2 * room / (linear + math.sqrt(linear**2 + 4 * square * room))


def _check(direction: str) -> None:
    if direction not in ("forward", "backward"):
        raise ValueError(f"direction is 'forward' or 'backward', not {direction!r}")
