"""stochastic_round: to one of the two neighbours, up as often as the discarded bits say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit import (
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    Spec,
    at,
    error_kind,
    exercise,
    words,
    wrong,
)

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.rounding:rounds"
LOW = 16  # bits that bfloat16 does not have
STEP = 1 << LOW
DRAWS = 50_000  # of each fraction
SIGMAS, SPARE = 6, 15  # of a count; the spare is for fractions near 0 and 1, whose counts are few
ONE, TINY, MINUS = 0x3F80 << LOW, 0x0001 << LOW, -(1 << 31)  # bits of 1, of 2^-133, of the sign
LARGEST = 0x7F7F << LOW
NEAREST = (
    "That is rounding to nearest: the discarded bits decide and no random number does. (Noise in bfloat16 is "
    "added to a number that has lost its bits already.)"
)


def of_bits(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


@dataclass(frozen=True)
class Rounded:
    """A call; x: its input. fractions: of the rows of x, 65,536 times, all from one number of bfloat16."""

    name: str
    title: str
    x: Tensor
    judge: Callable[[Rounded, Sequence[Tensor], Sequence[Any]], Finding]
    seed: int | None = 0
    other: int | None = None
    weight: float = 1.0
    fractions: tuple[int, ...] = ()

    @property
    def down(self) -> Tensor:
        """The neighbour toward zero."""
        return of_bits(self.x.view(torch.int32).long() >> LOW << LOW)

    @property
    def up(self) -> Tensor:
        """The neighbour away from zero; x itself, if bfloat16 has it."""
        bits = self.x.view(torch.int32).long()
        return of_bits((bits + STEP - 1) >> LOW << LOW)

    def described(self, own: int) -> dict[str, Any]:
        return {"name": self.name, "seed": self.seed, "own": own, "other": self.other}

    def line(self) -> Line:
        def judge(observed: Observed) -> Finding:
            replies = [value[self.name] for value in observed.values]
            for reply in replies:
                if (finding := out_of_form(reply)) is not None:
                    return finding
            results = [tensors[self.name].float() for tensors in observed.tensors]
            return self.judge(self, results, replies)

        return Line(self.title, judge, self.weight)


def out_of_form(reply: Any) -> Finding | None:
    if reply.error is not None:
        error, text, where = reply.error
        said = Sentence(
            f"stochastic_round raised {error}: {text}", f"stochastic_round raised {error_kind(error)}."
        )
        return wrong(said, at(where) if where else "", cause=f"{error} {where}")
    if reply.misfit:
        said = "stochastic_round does not return a tensor in bfloat16 of x's shape"
        return wrong(Sentence(f"{said}: {reply.misfit}.", f"{said}."), cause="misfit")
    if reply.changed:
        return wrong("x was changed.", "The caller still has it: work on a copy.", cause="changed")
    return None


# ---- the lines


def between(run: Rounded, results: Sequence[Tensor], replies: Sequence[Any]) -> Finding:
    """Every value is one of the two neighbours."""
    result, down, up = results[0], run.down, run.up
    off = (result != down) & (result != up)
    if not bool(off.any()):
        return RIGHT
    place = int(off.flatten().int().argmax())
    x, value = (float(t.flatten()[place]) for t in (run.x, result))
    low, high = (float(t.flatten()[place]) for t in (down, up))
    said = f"{words.counted(int(off.sum()), 'value')} of {words.number(off.numel())} are not a neighbour"
    sentence = Sentence(
        f"{said}: {x!r} lies between {low!r} and {high!r} and became {value!r}.",
        "values are not one of the two neighbours.",
    )
    negative = run.x < 0
    if bool(off[negative].any()) and not bool(off[~negative].any()):
        return wrong(
            sentence,
            "Negative values alone are wrong, rounded towards +inf: sign and magnitude, the bits are. Of a "
            "negative number, too, the lower half leads away from zero.",
        )
    return wrong(sentence, "Its neighbours are the upper half of its bits, and that plus 1.")


def expected(run: Rounded, results: Sequence[Tensor], replies: Sequence[Any]) -> Finding:
    """Each fraction goes up as often as it is large."""
    result = results[0]
    exact = [k for k, fraction in enumerate(run.fractions) if fraction == 0]
    for k in exact:
        if bool((result[k] != run.x[k]).any()):
            return wrong(
                "up and down from an exact value: a number that bfloat16 has was moved.",
                "The noise is less than one step, and of one sign: from 0 to 65,535 of 65,536 parts, added "
                "to the magnitude.",
                cause="exact",
            )
    rows = [k for k, fraction in enumerate(run.fractions) if fraction]
    ups = [int((result[k] == run.up[k]).sum()) for k in rows]
    others = [DRAWS - int((result[k] == run.down[k]).sum()) - up for k, up in zip(rows, ups, strict=True)]
    fractions = [run.fractions[k] / STEP for k in rows]
    off = [abs(up - DRAWS * p) > allowed(p) for up, p in zip(ups, fractions, strict=True)]
    if any(others):
        return wrong("values are not one of the two neighbours.", cause="neighbours")
    if not any(off):
        return RIGHT
    worst = max(range(len(rows)), key=lambda k: abs(ups[k] - DRAWS * fractions[k]))
    said = Sentence(
        f"a number with {fractions[worst]:.4f} of the way to its upper neighbour went there in "
        f"{ups[worst] / DRAWS:.4f} of {words.number(DRAWS)} draws.",
        "numbers do not go up as often as their place between the neighbours says.",
    )
    return wrong(said, why_off(ups, fractions, bool((run.x < 0).all())))


def allowed(p: float) -> float:
    return SIGMAS * math.sqrt(DRAWS * p * (1 - p)) + SPARE


def why_off(ups: Sequence[int], fractions: Sequence[float], negative: bool) -> str:
    def fits(wanted: Callable[[float], float]) -> bool:
        pairs = zip(ups, fractions, strict=True)
        return all(abs(up - DRAWS * wanted(p)) <= allowed(wanted(p)) for up, p in pairs)

    if fits(lambda p: 0.0):
        return "Always down: bias -½ step. The lower half of the bits was cut off."
    if fits(lambda p: 1.0):
        if negative:
            return "Always away from zero: floor() goes down from a negative number as well."
        return "Always up: bias +½ step."
    if fits(lambda p: float(p > 0.5)) or fits(lambda p: float(p >= 0.5)):
        return NEAREST
    if all(up in (0, DRAWS) for up in ups):
        return "All elements took the same draw: a random number for each element, noise of x's shape."
    if fits(lambda p: 0.5):
        return "A coin was thrown: the probability is the fraction that the discarded bits are of a step."
    if fits(lambda p: 1 - p):
        return "The probabilities are exchanged: near the lower neighbour a number seldom goes up."
    if fits(lambda p: math.floor(256 * p) / 256) or fits(lambda p: math.ceil(256 * p) / 256):
        return "The noise has 8 bits: the discarded half has 16."
    if fits(lambda p: p / 2):
        return "The noise reaches half of a step only: a signed integer of 16 bits ends at 32,767."
    return "The probability of going up is the lower half of the bits over 65,536."


def stays(run: Rounded, results: Sequence[Tensor], replies: Sequence[Any]) -> Finding:
    """Exact values, infinities and NaN."""
    result, x = results[0], run.x
    infinite, nan = x.isinf(), x.isnan()
    if bool((result[infinite] != x[infinite]).any()):
        became = "NaN" if bool(result[infinite].isnan().any()) else "something else"
        return wrong(
            f"inf + noise = {became}: an infinity did not stay.",
            "Leave values alone that are not finite: torch.where(x.isfinite(), ...).",
            cause="not finite",
        )
    if not bool(result[nan].isnan().all()):
        return wrong(
            "NaN became a number, or an infinity.",
            "Noise on NaN's bits carries into its exponent and its sign. Leave values alone that are not "
            "finite.",
            cause="not finite",
        )
    exact = ~(infinite | nan)
    moved = int((result[exact] != x[exact]).sum())
    if moved:
        return wrong(
            f"{words.counted(moved, 'number')} that bfloat16 has moved: up and down from an exact value.",
            "Their lower half is 0, and noise below 65,536 does not carry.",
        )
    return RIGHT


def generated(run: Rounded, results: Sequence[Tensor], replies: Sequence[Any]) -> Finding:
    """The generator that is passed decides alone."""
    reply = replies[0]
    if not reply.again or reply.drawn:
        return wrong(
            "same seed, other values." if not reply.again else "PyTorch's default generator was used.",
            "Pass the generator on: torch.randint(..., generator=generator).",
            cause="generator",
        )
    if reply.other:
        return wrong(
            "two generators with different seeds gave the same values.",
            "Draw the noise from the generator that is passed, as it is: without a seed of your own.",
            cause="generator",
        )
    return RIGHT


def without(run: Rounded, results: Sequence[Tensor], replies: Sequence[Any]) -> Finding:
    """Without a generator PyTorch's default one is used."""
    reply = replies[0]
    if reply.other or not reply.again:
        return wrong(
            "without a generator the values do not follow torch.manual_seed.",
            "generator=None stands for PyTorch's default: draw the noise with generator=None.",
            cause="default",
        )
    return RIGHT


def replicas(run: Rounded, results: Sequence[Tensor], replies: Sequence[Any]) -> Finding:
    """Ranks with equal generators and default generators of their own have equal weights."""
    if all(bool((result == results[0]).all()) for result in results):
        return RIGHT
    count = int((results[0] != results[1]).sum())
    return wrong(
        Sentence(
            f"{words.number(count)} of {words.number(run.x.numel())} weights differ between the replicas.",
            "weights differ between the replicas.",
        ),
        "Both ranks passed generators with one seed. From here on they train two models: draw from the "
        "generator that is passed, and from nothing else.",
        cause="generator",
    )


# ---- the inputs


def scattered(draw: Draw, count: int) -> Tensor:
    """Numbers of both signs and of all magnitudes, subnormal ones and those beyond the largest included."""
    size = draw.normal(count) * torch.exp2(torch.randint(-140, 120, (count,), generator=draw.generator))
    beyond = of_bits(torch.arange(LARGEST, LARGEST + STEP, 4099))
    return torch.cat([size.float(), beyond, -beyond])


def rows_of(draw: Draw, name: str, title: str, start: int, weight: float) -> Rounded:
    """Fractions from 0 to nearly 1, each in DRAWS elements; start: bits of the lower neighbour."""
    fixed = [0, 1, 257, 16_384, 32_767, 32_768, 49_152, 65_279, 65_535]
    fractions = fixed + draw.distinct(3, low=2_000, high=63_000).tolist()
    bits = start + torch.tensor(fractions)[:, None]
    x = of_bits(bits).expand(-1, DRAWS).contiguous()
    return Rounded(
        name, title, x, expected, draw.integer(0, 1 << 30), weight=weight, fractions=tuple(fractions)
    )


def case(title: str, runs: Sequence[Rounded], draw: Draw, ranks: int = 1) -> Case:
    sides = []
    for _ in range(ranks):
        described = [run.described(draw.integer(0, 1 << 30)) for run in runs]
        outputs = {run.name: Spec(torch.bfloat16, tuple(run.x.shape)) for run in runs}
        sides.append(RankSide({run.name: run.x for run in runs}, {"runs": described}, outputs))
    return Case(title, sides, [run.line() for run in runs], recipe=RECIPE, alone=ranks == 1)


@exercise(points=6, objects=("stochastic_round",), references=("course_lib.precision.rounding",))
def stochastic_round(draw: Draw) -> Iterator[Case]:
    """Neighbours, expected values, values that stay, generators; then two replicas."""
    near = draw.integer(1, 128) << LOW  # a number of bfloat16 between 1 and 2
    every = of_bits(torch.arange(1 << LOW) << LOW)  # all of bfloat16
    nan = of_bits(torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF]))
    seeds = draw.distinct(6, high=1 << 30).tolist()
    small = draw.normal(64, 33)
    yield case(
        "one rank",
        [
            Rounded("between", "one of the two neighbours", scattered(draw, 20_000), between, seeds[0]),
            rows_of(draw, "positive", "between 1 and 2: the mean", ONE + near, 1.5),
            rows_of(draw, "negative", "negative numbers: the mean", ONE + near + MINUS, 1.0),
            rows_of(draw, "tiny", "subnormal numbers: the mean", TINY, 0.5),
            Rounded("stays", "exact values, infinities, NaN", torch.cat([every, nan]), stays, seeds[1]),
            Rounded("seeded", "the generator", small, generated, seeds[2], seeds[3]),
            Rounded("default", "no generator", small.t().contiguous(), without, None, seeds[4], 0.5),
        ],
        draw,
    )
    weights = 1 + draw.normal(500) / 100
    yield case(
        "2 ranks", [Rounded("replicas", "2 replicas stay equal", weights, replicas, seeds[5])], draw, 2
    )
    if draw.hidden:
        large = draw.integer(150, 250) << 23
        yield case("drawn", [rows_of(draw, "drawn", "a drawn binade: the mean", large, 0.5)], draw)
