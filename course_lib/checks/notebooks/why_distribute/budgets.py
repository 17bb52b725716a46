"""Budgets: days, tokens a second, and the model that a law chooses; from which budget on two laws differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES

SEARCHED = 1e-2  # relative: a search by steps of 1 % need not be finer


def times(factor: float) -> kit.Formula:
    return lambda params, tokens, gpus, flops, mfu=0.4: factor * facts.days(params, tokens, gpus, flops, mfu)


def speed(factor: float) -> kit.Formula:
    return lambda params, flops, mfu: factor * facts.tokens_per_second_per_gpu(params, flops, mfu)


DAYS: dict[str, kit.Formula] = {
    "Your answer is how long one GPU takes. Divide the tokens among the GPUs.": (
        lambda params, tokens, gpus, flops, mfu=0.4: facts.days(params, tokens, 1, flops, mfu)
    ),
    "Either 3 N D counts a multiplication and an addition as one FLOP, or you take the peak of fp8, but "
    "multiply in bf16. Forward and backward are 6 N D, over the given peak.": times(1 / 2),
    "2 N D is only forward, but forward and backward are 6.": times(1 / 3),
    "4 N D is only backward, but forward and backward are 6.": times(2 / 3),
    "C = N D counts one FLOP per parameter and token, but forward and backward are 6.": times(1 / 6),
    "8 N D includes a recomputation, but MFU leaves it out.": times(8 / 6),
    "You divide by the whole peak, but a GPU reaches only the share mfu of it.": (
        lambda params, tokens, gpus, flops, mfu=0.4: facts.days(params, tokens, gpus, flops, 1)
    ),
    "You multiply by mfu, but a lower share takes longer, so divide by it.": (
        lambda params, tokens, gpus, flops, mfu=0.4: facts.days(params, tokens, gpus, flops, 1) * mfu
    ),
    "Your answer is in seconds, but a day has 86,400.": times(facts.DAY),
    "Your answer is in hours.": times(24),
}
SPEED: dict[str, kit.Formula] = {
    "Either 3 N counts a multiplication and an addition as one FLOP, or you take the peak of fp8, but "
    "multiply in bf16. Forward and backward are 6 N, over the given peak.": speed(2),
    "2 N is only forward, but forward and backward are 6 N per token.": speed(3),
    "C = N D counts one FLOP per parameter and token, but forward and backward are 6.": speed(6),
    "8 N includes a recomputation, but MFU leaves it out.": speed(6 / 8),
    "You take the whole peak, but a GPU reaches only the share mfu of it.": (
        lambda params, flops, mfu: facts.tokens_per_second_per_gpu(params, flops, 1)
    ),
    "Your answer is upside down, in seconds per token.": (
        lambda params, flops, mfu: 1 / facts.tokens_per_second_per_gpu(params, flops, mfu)
    ),
}


def of_law(optimum: Callable[[float, tuple[float, ...]], tuple[float, float]], index: int) -> kit.Formula:
    return lambda budget, law: optimum(budget, law)[index]


def by_exponents(budget: float, law: tuple[float, ...], each: float) -> tuple[float, float]:
    """With C = each N D."""
    return facts.compute_optimal(budget * 6 / each, law)


def exchanged(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    """The power of the budget has alpha where beta belongs."""
    _, a, b, alpha, beta = law
    params = (alpha * a / (beta * b) * (budget / 6) ** alpha) ** (1 / (alpha + beta))
    return params, budget / (6 * params)


def other_way(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    """alpha and beta are read in the other order."""
    e, a, b, alpha, beta = law
    return facts.compute_optimal(budget, (e, a, b, beta, alpha))


def no_prefactor(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    _, _, _, alpha, beta = law
    params = (budget / 6) ** (beta / (alpha + beta))
    return params, budget / (6 * params)


def no_derivative(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    """A / N^alpha = B / D^beta: equal terms, and not equal slopes."""
    _, a, b, alpha, beta = law
    params = (a / b * (budget / 6) ** beta) ** (1 / (alpha + beta))
    return params, budget / (6 * params)


def twenty(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    params = (budget / 120) ** 0.5
    return params, 20 * params


def turned(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    params, tokens = facts.compute_optimal(budget, law)
    return tokens, params


OPTIMA: dict[str, Callable[[float, tuple[float, ...]], tuple[float, float]]] = {
    "20 tokens per parameter is a rule of thumb, but here the law decides.": twenty,
    "The exponents are exchanged, since alpha belongs to N and beta belongs to D. N grows as C to the "
    "power beta / (alpha + beta).": exchanged,
    "The exponents are exchanged, since the law is (E, A, B, alpha, beta) and beta belongs to D.": (
        other_way
    ),
    "C = N D counts one FLOP per parameter and token, but here C = 6 N D.": (
        lambda budget, law: by_exponents(budget, law, 1)
    ),
    "3 N D counts a multiplication and an addition as one FLOP, but here C = 6 N D.": (
        lambda budget, law: by_exponents(budget, law, 3)
    ),
    "The factor (alpha A / beta B)^(1 / (alpha + beta)) is missing.": no_prefactor,
    "At the least loss the slopes are equal, alpha A / N^alpha = beta B / D^beta, not the terms.": (
        no_derivative
    ),
    "Your function returns (tokens, parameters) instead of (parameters, tokens).": turned,
}  # fmt: skip


@kit.exercise(
    points=6, objects=("days", "tokens_per_second_per_gpu", "compute_optimal"), references=REFERENCES
)
def budgets(draw: kit.Draw) -> Iterator[kit.Case]:
    """Published runs and laws, and drawn ones."""
    params, tokens = 1e9 * draw.integer(3, 400), 1e11 * draw.integer(5, 200)
    gpus, flops, mfu = (8 * draw.integer(2, 900), 1e12 * draw.integer(100, 2000), draw.integer(25, 60) / 100)
    law = (
        1 + draw.integer(50, 90) / 100, 100.0 * draw.integer(3, 9), 100.0 * draw.integer(10, 30),
        draw.integer(30, 34) / 100, draw.integer(35, 40) / 100,
    )  # fmt: skip
    budget = 10.0 ** draw.integer(19, 26)
    laws = [tuple(named) for named in facts.LAWS.values()]
    optimal = [(facts.CHINCHILLA, laws[0]), (facts.CHINCHILLA, laws[2]), (budget, law), (1e21, laws[1])]

    def optimum(index: int, title: str) -> kit.Prediction:
        return kit.Prediction(
            "compute_optimal", 2, optimal, of_law(facts.compute_optimal, index),
            {says: of_law(slip, index) for says, slip in OPTIMA.items()}, 1.5,
            f"compute_optimal: {title}", pick=kit.place(index, 2), tolerance=SEARCHED,
            otherwise="Put D = C / 6N into the law, and look for the N at which its derivative is 0. If you "
            "search for it, take steps of 1 % or less.",
        )  # fmt: skip

    yield from kit.evaluated(
        [
            kit.Prediction(
                "days", 0,
                [(8e9, 15e12, 1024, 989e12), (params, tokens, gpus, flops, mfu), (params, tokens, 1, flops)],
                facts.days, DAYS,
                otherwise="Divide 6 N D FLOPs by gpus * flops * mfu per second, and do not round the days.",
            ),
            kit.Prediction(
                "tokens_per_second_per_gpu", 1,
                [(70e9, 989e12, 0.4), (params, flops, mfu)],
                facts.tokens_per_second_per_gpu, SPEED,
                otherwise="A GPU does flops * mfu per second, and a token takes 6 N. Do not round.",
            ),
            optimum(0, "parameters"),
            optimum(1, "tokens"),
        ]
    )  # fmt: skip


CROSSINGS: dict[str, kit.Formula] = {
    "At your budget the laws are equal, but they should differ by a factor of 2.": (
        lambda first, second: same(first, second)
    ),
    "The order of the laws does not matter, so the ratio can be 2 or a half.": (
        lambda first, second: (
            facts.crossover(first, second)
            if facts.compute_optimal(1e40, first)[0] > facts.compute_optimal(1e40, second)[0]
            else same(first, second) ** 2 / facts.crossover(first, second)
        )
    ),
    "At your budget they differ by 2 the other way, but they get closer again above it.": (
        lambda first, second: same(first, second) ** 2 / facts.crossover(first, second)
    ),
    "Your budget is N D, but C = 6 N D.": lambda first, second: facts.crossover(first, second) / 6,
    "At your budget the tokens per parameter differ by a factor of 2, but the parameters should.": (
        lambda first, second: (same(first, second) * facts.crossover(first, second)) ** 0.5
    ),
    "At your budget they differ by a factor of 4.": (
        lambda first, second: facts.crossover(first, second) ** 2 / same(first, second)
    ),
}


def same(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """The budget at which both laws choose the same model."""
    unit = 6.0
    ratio = facts.compute_optimal(unit, first)[0] / facts.compute_optimal(unit, second)[0]
    slope = first[4] / (first[3] + first[4]) - second[4] / (second[3] + second[4])
    return unit * ratio ** (-1 / slope)


@kit.exercise(points=3, objects=("crossover",), references=REFERENCES, extra=True)
def crossover(draw: kit.Draw) -> Iterator[kit.Case]:
    """Laws whose parameters grow differently; the published ones in both orders."""
    laws = [tuple(named) for named in facts.LAWS.values()]
    slower = (1.7, 300.0 + draw.integer(0, 200), 900.0, 0.36, draw.integer(30, 34) / 100)
    faster = (1.8, 350.0 + draw.integer(0, 200), 1200.0, 0.33, draw.integer(36, 40) / 100)
    pairs = [(laws[0], laws[2]), (laws[2], laws[0]), (slower, faster), (faster, slower), (laws[1], laws[2])]
    yield from kit.evaluated(
        [
            kit.Prediction(
                "crossover", 0, pairs[k : k + 2] if k < 4 else pairs[4:], facts.crossover, CROSSINGS,
                title=title, tolerance=SEARCHED,
                otherwise="Each law's N is a power of C, and so is their ratio. If you search for it, take "
                "steps of 1 % or less.",
            )
            for k, title in (
                (0, "printed and replication"), (2, "drawn laws"), (4, "TeX source and replication"),
            )
        ]
    )  # fmt: skip
