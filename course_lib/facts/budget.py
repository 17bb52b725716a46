"""How fast, how long, how large: the roofline, the days of a run, and the laws that choose a model's size.

A product of matrices takes as long as its arithmetic or its bytes, whichever takes longer (Williams et al.,
Roofline, 2009). A run takes 6 N D FLOPs (see `six_n_d`), at a share of the peak that PaLM's authors call MFU.
This is the model FLOPs, without recomputation, over the dense peak of the format that is multiplied. A
scaling law L(N, D) = E + A / N^alpha + B / D^beta says how to divide a budget C = 6 N D between parameters
and tokens.

Sources: Chowdhery et al., PaLM, 2022, appendix B and table 3 (MFU). Hoffmann et al., Training Compute-Optimal
Large Language Models, 2022, section 3.3 and appendix D (the third approach). Besiroglu et al., Chinchilla
Scaling: A replication attempt, 2024, table 1 (the new fit; the exponents of the paper's TeX source). Each run
has its own source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.facts.transformer import six_n_d

DAY = 86_400  # seconds


# ---- how fast


def matmul_seconds(
    m: int, k: int, n: int, flops: float, bandwidth: float, itemsize: float = 2
) -> float:
    """The least time of a product (m, k) @ (k, n), which is the time of its arithmetic or of its bytes.

    The longer of the two counts, because they overlap. flops, bandwidth: FLOPs and bytes per second. Each of
    the three matrices is moved once.
    """
    moved = (m * k + k * n + m * n) * itemsize
    return max(2 * m * k * n / flops, moved / bandwidth)


def ridge(flops: float, bandwidth: float) -> float:
    """FLOPs per byte from which on arithmetic is the bound. H100: 295; A100: 153."""
    return flops / bandwidth


def least_tokens(flops: float, bandwidth: float, itemsize: float = 2) -> float:
    """The least m from which on a product (m, k) @ (k, n) is bound by arithmetic, for large k and n.

    A weight is read once, which takes itemsize bytes, and is multiplied for each token, which takes 2 FLOPs.
    So the least m is ridge * itemsize / 2.
    """
    return flops * itemsize / (2 * bandwidth)


# ---- how long


def days(params: float, tokens: float, gpus: int, flops: float, mfu: float = 0.4) -> float:
    """Days of training. Llama-3-405B, 15.6T tokens on 16,384 GPUs at 400 TFLOP/s each: 67."""
    return six_n_d(params, tokens) / (gpus * flops * mfu) / DAY


def tokens_per_second_per_gpu(params: float, flops: float, mfu: float) -> float:
    """Tokens per second on each GPU. 70B on an H100 at 40 %: 942."""
    return flops * mfu / six_n_d(params, 1)


def model_flops_utilization(params: float, tokens_per_second: float, flops: float) -> float:
    """MFU of a GPU that trains so many tokens per second, relative to the given dense peak."""
    return six_n_d(params, tokens_per_second) / flops


@dataclass(frozen=True)
class PublishedRun:
    """A published run. params: those by which a token is multiplied; gpu_hours, None if not published.

    peak: of one GPU, dense, in bf16 or fp16; None if several kinds took part.
    """

    name: str
    params: float
    tokens: float
    gpus: int | None
    peak: float | None
    gpu_hours: float | None
    source: str


RUNS: tuple[PublishedRun, ...] = (
    PublishedRun("GPT-3", 174.6e9, 300e9, None, 125e12, None,
        "Brown et al., 2020, table D.1: 3.14e23 FLOPs"),
    PublishedRun("Chinchilla", 70e9, 1.4e12, None, None, None,
        "Hoffmann et al., 2022, abstract: Gopher's budget"),
    PublishedRun("LLaMA-65B", 65.2e9, 1.4e12, 2048, 312e12, 1_022_362,
        "Touvron et al., 2023, section 2.4, table 15"),
    PublishedRun("Llama-3-405B", 405e9, 15.6e12, 16_384, 989e12, None,
        "Llama Team, 2024, sections 3.2 and 3.3"),
    PublishedRun("DeepSeek-V3", 37e9, 14.8e12, 2048, 989e12, 2_664_000,
        "DeepSeek-V3, 2024, table 1: pre-training"),
)  # fmt: skip

# MFU in percent, as published. PaLM's HFU, which counts recomputation, is 57.8.
PUBLISHED_MFU = {
    "GPT-3": 21.3,
    "Gopher": 32.5,
    "Megatron-Turing NLG": 30.2,
    "PaLM": 46.2,
    "Llama 3 405B, 8,192 GPUs": 43,
    "Llama 3 405B, 16,384 GPUs": 41,
    "Llama 3 405B, 16,384 GPUs, 131,072 tokens": 38,
}  # PaLM's table 3; Llama 3's table 4


# ---- how large


class ScalingLaw(NamedTuple):
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats per token."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float


LAWS: dict[str, ScalingLaw] = {
    "printed": ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28),
    "TeX source": ScalingLaw(1.69, 406.4, 410.7, 0.3392, 0.2849),
    "replication": ScalingLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
}
CHINCHILLA = 5.76e23  # FLOPs: Gopher's budget, and Chinchilla's


def law_loss(params: float, tokens: float, law: ScalingLaw) -> float:
    """The loss a law predicts."""
    return law.E + law.A / params**law.alpha + law.B / tokens**law.beta


def compute_optimal(budget: float, law: ScalingLaw | tuple[float, ...]) -> tuple[float, float]:
    """(parameters, tokens) with the least loss at 6 N D = budget FLOPs.

    N = G (C/6)^(beta / (alpha + beta)) with G = (alpha A / beta B)^(1 / (alpha + beta)). At Chinchilla's
    5.76e23, the printed law gives 32B and 93 tokens per parameter, and the replication 72B and 18.
    """
    _, a, b, alpha, beta = law
    params = (alpha * a / (beta * b) * (budget / 6) ** beta) ** (1 / (alpha + beta))
    return params, budget / (6 * params)


def crossover(
    first: ScalingLaw | tuple[float, ...], second: ScalingLaw | tuple[float, ...]
) -> float:
    """The budget in FLOPs from which on two laws' parameters differ by a factor of 2 or more.

    Their ratio is a power of the budget. Returns inf if the ratio never reaches 2 again, and 0 if it is
    always 2 or more.
    """
    unit = 6.0  # FLOPs: budget / 6 is 1
    at_unit = math.log(compute_optimal(unit, first)[0] / compute_optimal(unit, second)[0])
    slope = first[4] / (first[3] + first[4]) - second[4] / (second[3] + second[4])
    if slope == 0:
        return 0.0 if abs(at_unit) >= math.log(2) else math.inf
    return unit * math.exp((math.copysign(math.log(2), slope) - at_unit) / slope)
