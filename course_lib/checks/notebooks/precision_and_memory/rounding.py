"""stochastic_round: to one of the two neighbours, up as often as the discarded bits say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.rank.notebooks.precision_and_memory.rounding import (
    DRAWN,
    RoundingInstructions,
    RoundingReply,
    RoundingRun,
)

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.rounding:rounds"
LOW = 16  # bits that bfloat16 does not have
STEP = 1 << LOW
DRAWS = 50_000  # of each fraction
SIGMAS, SPARE = 6, 15  # of a count; the spare is for fractions near 0 and 1, whose counts are few
ONE, TINY, MINUS = 0x3F80 << LOW, 0x0001 << LOW, -(1 << 31)  # bits of 1, of 2^-133, of the sign
LARGEST = 0x7F7F << LOW
NEAREST = (
    "The discarded bits decide instead of a random number, so your function rounds to nearest. (Noise in "
    "bfloat16 is added to a number that has already lost its bits.)"
)
SECOND = (
    "The noise is right, but .bfloat16() rounds a second time, to nearest. Clear the lower half of the "
    "bits before the cast."
)
SMALL = 2.0**-120  # there the numbers of bfloat16 are less than 1/32 apart, and below it not
WIDE = (
    "If int64 bits are viewed as float32, each number becomes two. torch.randint draws int64 unless you pass "
    "dtype=torch.int32."
)
FAR = "the numbers are not near the numbers before rounding."
NOISE = (
    "The noise must be less than one step and have one sign, so add from 0 to 65,535 of 65,536 parts to "
    "the magnitude."
)


def of_bits(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


@dataclass(frozen=True)
class Rounded:
    """A call; x: its input. fractions: of the rows of x, 65,536 times, all from one number of bfloat16."""

    name: str
    title: str
    x: Tensor
    judge: Callable[[Rounded, kit.Observed], kit.Finding]
    seed: int | None = 0
    other: int | None = None
    weight: float = 1.0
    fractions: tuple[int, ...] = ()
    own: int = 0
    own_draws: bool = False  # whether rows are asked for draws of their own
    trivial: bool = False

    @property
    def down(self) -> Tensor:
        """The neighbour toward zero."""
        return of_bits(self.x.view(torch.int32).long() >> LOW << LOW)

    @property
    def up(self) -> Tensor:
        """The neighbour away from zero; x itself, if bfloat16 has it."""
        bits = self.x.view(torch.int32).long()
        return of_bits((bits + STEP - 1) >> LOW << LOW)

    def instructions(self, rank: int) -> RoundingRun:
        return RoundingRun(self.name, self.seed, self.own + rank, self.other)

    def outputs(self) -> dict[str, kit.Spec]:
        more = ("", ".again", ".other") if self.other is not None else ("",)
        like = {f"{self.name}{key}": kit.Spec.of(self.x) for key in (*more, ".x")}
        return {**like, f"{self.name}.drawn": kit.Spec(torch.float32, (DRAWN,))}

    def line(self) -> kit.Line:
        def judge(observed: kit.Observed) -> kit.Finding:
            for value in observed.values:
                if (finding := out_of_form(value[self.name])) is not None:
                    return finding
            return self.judge(self, observed)

        return kit.Line(self.title, judge, self.weight, trivial=self.trivial)


def out_of_form(reply: RoundingReply) -> kit.Finding | None:
    if reply.error is not None:
        error, text, where = reply.error
        said = kit.error_sentence("stochastic_round", error, text)
        why = WIDE if "size of tensor" in text and "must match" in text else ""
        return kit.wrong(said, kit.at(where) if where else "", why, cause=f"{error} {where}")
    if reply.misfit:
        said = "stochastic_round does not return a tensor of x's shape"
        return kit.wrong(kit.Sentence(f"{said}: {reply.misfit}.", f"{said}."), cause="misfit")
    return None


# ---- the lines


def between(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """Every value is one of the two neighbours."""
    result, down, up = observed.tensors[0][run.name], run.down, run.up
    off = (result != down) & (result != up)
    if not bool(off.any()):
        return kit.RIGHT
    place = int((off.flatten() * typical(run.x.flatten())).argmax())
    x, value = (float(t.flatten()[place]) for t in (run.x, result))
    low, high = (float(t.flatten()[place]) for t in (down, up))
    said = f"{words.counted(int(off.sum()), 'value')} of {words.number(off.numel())} are not a neighbour"
    sentence = kit.Sentence(
        f"{said}. For example, {x:.9g} lies between {low:.9g} and {high:.9g}, but became {value:.9g}.",
        "values are not one of the two neighbours.",
    )
    negative = run.x < 0
    if bool(off[negative].any()) and not bool(off[~negative].any()):
        return kit.wrong(
            sentence,
            "Only negative values are wrong, because they were rounded towards +inf. The bits are sign "
            "and magnitude, so the lower half of a negative number also leads away from zero.",
        )
    return kit.wrong(
        sentence, "The neighbours of x are the upper half of its bits, and the same half plus 1."
    )


def typical(x: Tensor) -> Tensor:
    """Largest for a magnitude near 1, and never 0."""
    return 1 / (1 + torch.log2(x.abs().clamp(min=1e-44)).abs())


Wanted = Callable[[float], float]  # from a fraction to the share that goes up


@dataclass(frozen=True)
class Counts:
    """A run's fractions, and for each how many of DRAWS went up and how many down."""

    fractions: tuple[float, ...]
    ups: tuple[int, ...]
    downs: tuple[int, ...]

    @classmethod
    def of(cls, run: Rounded, result: Tensor) -> Counts:
        rows = [k for k, fraction in enumerate(run.fractions) if fraction]
        ups, downs = (
            tuple(int((result[k] == neighbour[k]).sum()) for k in rows) for neighbour in (run.up, run.down)
        )
        return cls(tuple(run.fractions[k] / STEP for k in rows), ups, downs)

    def off(self, wanted: Wanted) -> list[int]:
        """The places of the fractions that do not go up as often as wanted."""
        pairs = enumerate(zip(self.ups, self.fractions, strict=True))
        return [k for k, (up, p) in pairs if abs(up - DRAWS * wanted(p)) > allowed(wanted(p))]


def allowed(p: float) -> float:
    return SIGMAS * math.sqrt(DRAWS * p * (1 - p)) + SPARE


def means(runs: Sequence[Rounded]) -> Callable[[Rounded, kit.Observed], kit.Finding]:
    """Each fraction goes up as often as it is large. runs: all that are judged so, for the usual cause."""

    def judge(run: Rounded, observed: kit.Observed) -> kit.Finding:
        result = observed.tensors[0][run.name]
        if far(run.x, result):
            return kit.wrong(FAR, cause="neighbours")
        exact = run.fractions.index(0)
        if bool((result[exact] != run.x[exact]).any()):
            said = "a number moved up or down from an exact value of bfloat16."
            return kit.wrong(said, why_moved(result[exact], run.x[exact]), cause="exact")
        counts = Counts.of(run, result)
        if any(up + down != DRAWS for up, down in zip(counts.ups, counts.downs, strict=True)):
            return kit.wrong("values are not one of the two neighbours.", cause="neighbours")
        off = counts.off(lambda p: p)
        if not off:
            return shared(run, result) if run.own_draws else kit.RIGHT
        worst = max(off, key=lambda k: abs(counts.ups[k] - DRAWS * counts.fractions[k]))
        said = kit.Sentence(
            f"a number {counts.fractions[worst]:.4f} of the way to its upper neighbour went there in "
            f"{counts.ups[worst] / DRAWS:.4f} of {words.number(DRAWS)} draws.",
            "numbers do not go up as often as their position between the neighbours requires.",
        )
        every = [Counts.of(each, observed.tensors[0][each.name]) for each in runs]
        why, misses = why_off(counts, every, bool((run.x < 0).all()))
        return kit.wrong(said, why, misses_point=misses)

    return judge


def shared(run: Rounded, result: Tensor) -> kit.Finding:
    """Two rows that go up in every second draw: in half of the elements both do the same, by chance."""
    rows = [run.fractions.index(fraction) for fraction in HALVES]
    first, second = (result[row] == run.up[row] for row in rows)
    if float((first == second).double().mean()) < 0.9:
        return kit.RIGHT
    return kit.wrong(
        "the rows of x took the same draws.",
        "Draw a random number for each element, so that the noise has x's shape.",
        cause="shared",
    )


def why_moved(result: Tensor, x: Tensor) -> str:
    """Why exact values do not stay: half of them go up if the cast rounds a second time."""
    up = float((result.abs() > x.abs()).double().mean())
    return SECOND if bool((result.abs() >= x.abs()).all()) and abs(up - 0.5) < 0.1 else NOISE


def why_off(counts: Counts, every: Sequence[Counts], negative: bool) -> tuple[str, bool]:
    """(the usual cause, whether the expected value is missed altogether). `every` run must bear it out."""

    def fits(wanted: Wanted) -> bool:
        return all(not each.off(wanted) for each in every)

    if always_alike(counts) and not all(map(always_alike, every)):
        return (
            "These numbers always go to the same neighbour, although others do not. The probability must not "
            "depend on a number's sign or size."
        ), False
    if not counts.off(lambda p: 0.0):
        return (
            "Values always go down, because the lower half of the bits was cut off. The bias is -½ step."
        ), True
    if not counts.off(lambda p: 1.0):
        why = "Values always go away from zero, because floor() also goes down from a negative number."
        return (why if negative else "Values always go up, so the bias is +½ step."), True
    if all(to_nearest(each) for each in every):
        return NEAREST, True
    if all(up in (0, DRAWS) for each in every for up in each.ups):
        return (
            "All elements took the same draw. Draw a random number for each element, so that the "
            "noise has x's shape."
        ), False
    if fits(lambda p: 0.5):
        return (
            (
                "A coin was thrown, but the probability of going up is the discarded bits as a fraction of a "
                "step."
            ),
            True,
        )
    for says, wanted in SHARES.items():
        if fits(wanted):
            return says, False
    return "The probability of going up must be the lower half of the bits divided by 65,536.", False


def always_alike(counts: Counts) -> bool:
    """Whether all numbers go down, or all go up."""
    return not counts.off(lambda p: 0.0) or not counts.off(lambda p: 1.0)


def to_nearest(counts: Counts) -> bool:
    """The half goes up in one run and down in another one: to the even neighbour of each run's number."""
    return any(not counts.off(wanted) for wanted in (lambda p: float(p > 0.5), lambda p: float(p >= 0.5)))


EIGHT = "The noise has 8 bits, but the discarded half has 16."
HALF = "The noise reaches only half of a step. Draw integers from 0 to 65,535."
SHARES: dict[str, Wanted] = {
    HALF: lambda p: max(0.0, 2 * p - 1),
    "The probabilities are exchanged, but a number near the lower neighbour should seldom go up.": lambda p: (
        1 - p
    ),
    EIGHT: lambda p: math.floor(256 * p) / 256,
    f"{EIGHT} (From 1 to 256.)": lambda p: math.ceil(256 * p) / 256,
    "The noise reaches only half of a step, because a signed integer of 16 bits ends at 32,767.": lambda p: (
        p / 2
    ),
}


def stays(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """Exact values, infinities and NaN."""
    result, x = observed.tensors[0][run.name], run.x
    infinite, nan = x.isinf(), x.isnan()
    if bool((result[infinite] != x[infinite]).any()):
        became = "NaN" if bool(result[infinite].isnan().any()) else "something else"
        return kit.wrong(
            f"inf + noise = {became}, so an infinity did not stay infinite.",
            "Leave values that are not finite as they are, with torch.where(x.isfinite(), ...).",
            cause="not finite",
        )
    if not bool(result[nan].isnan().all()):
        return kit.wrong(
            "NaN became a number or an infinity.",
            "Noise on NaN's bits carries into its exponent and its sign, and no comparison with NaN is true. "
            "Leave values that are not finite as they are.",
            cause="not finite",
        )
    exact = ~(infinite | nan)
    moved = int((result[exact] != x[exact]).sum())
    if moved and far(x[exact], result[exact]):
        return kit.wrong(FAR, cause="neighbours")
    if moved:
        said = f"{words.counted(moved, 'number')} moved up or down from an exact value of bfloat16."
        return kit.wrong(said, why_moved(result[exact], x[exact]), cause="exact")
    return kit.RIGHT


def far(x: Tensor, result: Tensor) -> bool:
    """Whether values are not even near to x, so that nothing follows from their noise."""
    return not bool(((result - x).abs() <= x.abs() / 32 + SMALL).all())


def generated(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """The generator that is passed decides alone."""
    result, again, other, drawn = (
        observed.tensors[0][f"{run.name}{key}"] for key in ("", ".again", ".other", ".drawn")
    )
    if far(run.x, result):
        return kit.wrong(FAR, cause="neighbours")
    untouched = torch.rand(DRAWN, generator=torch.Generator().manual_seed(run.own))
    if torch.equal(result, again) and not torch.equal(result, other) and not torch.equal(drawn, untouched):
        return kit.wrong(
            "PyTorch's default generator was changed, although another generator was passed.",
            "Draw only from the generator you are given, and set no seed of your own.",
            cause="generator",
        )
    if not torch.equal(result, again) or not torch.equal(drawn, untouched):
        return kit.wrong(
            "PyTorch's default generator was used."
            if torch.equal(result, again)
            else "the same seed gave other values.",
            "Pass the generator on with torch.randint(..., generator=generator).",
            cause="generator",
        )
    if torch.equal(result, other):
        return kit.wrong(
            "two generators with different seeds gave the same values.",
            "Draw the noise from the generator you are given, without setting a seed of your own.",
            cause="generator",
        )
    return kit.RIGHT


def without(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """Without a generator PyTorch's default one is used."""
    result, again, other = (observed.tensors[0][f"{run.name}{key}"] for key in ("", ".again", ".other"))
    if far(run.x, result):
        return kit.wrong(FAR, cause="neighbours")
    if torch.equal(result, other) or not torch.equal(result, again):
        return kit.wrong(
            "without a generator, the values do not follow torch.manual_seed.",
            "generator=None means PyTorch's default generator, so draw the noise with generator=None.",
            cause="default",
        )
    return kit.RIGHT


def replicas(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """Ranks with equal generators and default generators of their own have equal weights."""
    results = [tensors[run.name] for tensors in observed.tensors]
    if far(run.x, results[0]):
        return kit.wrong(FAR, cause="neighbours")
    if all(bool((result == results[0]).all()) for result in results):
        return kit.RIGHT
    count = int((results[0] != results[1]).sum())
    return kit.wrong(
        kit.Sentence(
            f"{words.number(count)} of {words.number(run.x.numel())} weights differ between the replicas.",
            "weights differ between the replicas.",
        ),
        "Both ranks passed generators with the same seed, but from here on they train two models. Draw "
        "only from the generator you are given.",
        cause="generator",
    )


def narrow(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """The result's dtype, which costs its own line alone."""
    dtype = observed.values[0][run.name].dtype
    if dtype == "bfloat16":
        return kit.RIGHT
    said = "the result is not in bfloat16"
    return kit.wrong(
        kit.Sentence(f"{said} but in {dtype or 'no dtype'}.", f"{said}."),
        "Its numbers fit into two bytes, so call .bfloat16() at the end.",
    )


def alone(run: Rounded, observed: kit.Observed) -> kit.Finding:
    """The argument afterwards, to the bit."""
    if torch.equal(observed.tensors[0][f"{run.name}.x"].view(torch.int32), run.x.view(torch.int32)):
        return kit.RIGHT
    return kit.wrong("x was changed.", "The caller still has x, so work on a copy.", cause="changed")


# ---- the inputs


def scattered(draw: kit.Draw, count: int) -> Tensor:
    """Numbers of both signs and of all magnitudes, subnormal ones and those beyond the largest included."""
    size = draw.normal(count) * torch.exp2(torch.randint(-140, 120, (count,), generator=draw.generator))
    beyond = of_bits(torch.arange(LARGEST, LARGEST + STEP, 4099))
    return torch.cat([size.float(), beyond, -beyond])


HALVES = 32_767, 32_768
FRACTIONS = (0, 1, 257, 16_384, 32_600, *HALVES, 32_900, 49_152, 65_279, 65_535)


def rows_of(draw: kit.Draw, name: str, title: str, start: int, weight: float) -> Rounded:
    """Fractions from 0 to nearly 1, each in DRAWS elements; start: bits of the lower neighbour."""
    fractions = (*FRACTIONS, *draw.distinct(3, low=2_000, high=63_000).tolist())
    bits = start + torch.tensor(fractions)[:, None]
    x = of_bits(bits).expand(-1, DRAWS).contiguous()
    return Rounded(name, title, x, means(()), draw.integer(0, 1 << 30), weight=weight, fractions=fractions)


def case(
    title: str, runs: Sequence[Rounded], draw: kit.Draw, ranks: int = 1, more: Sequence[Rounded] = ()
) -> kit.Case:
    """more: lines about runs that others are about, too."""
    sides = []
    runs = [replace(run, own=draw.integer(0, 1 << 30)) for run in runs]
    rows = [run for run in runs if run.fractions]
    judged = [replace(run, judge=means(rows)) if run.fractions else run for run in runs]
    for rank in range(ranks):
        instructions = RoundingInstructions([run.instructions(rank) for run in runs])
        outputs = {name: spec for run in runs for name, spec in run.outputs().items()}
        sides.append(kit.RankSide({run.name: run.x for run in runs}, instructions, outputs))
    lines = [run.line() for run in (*judged, *more)]
    # The draws are compared with those of the CPU's generator, and a GPU's generator draws other numbers.
    return kit.Case(title, sides, lines, recipe=RECIPE, alone=ranks == 1, on_cpu=True)


@kit.exercise(
    points=6, objects=("stochastic_round",), references=("course_lib.precision.rounding",),
    point="numbers whose expected value is x", besides="a neighbour",
)  # fmt: skip
def stochastic_round(draw: kit.Draw) -> Iterator[kit.Case]:
    """Neighbours, expected values, values that stay, generators; then two replicas."""
    near = draw.integer(1, 128) << LOW  # a number of bfloat16 between 1 and 2
    every = of_bits(torch.arange(1 << LOW) << LOW)  # all of bfloat16
    nan = of_bits(torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF]))
    seeds = draw.distinct(6, high=1 << 30).tolist()
    small = draw.normal(64, 33)
    first = Rounded("between", "one of the two neighbours", scattered(draw, 20_000), between, seeds[0])
    kept = Rounded("stays", "exact values, infinities, NaN", torch.cat([every, nan]), stays, seeds[1])
    yield case(
        "one rank",
        [
            first,
            replace(rows_of(draw, "positive", "between 1 and 2: the mean", ONE + near, 3.0), own_draws=True),
            rows_of(draw, "negative", "negative numbers: the mean", ONE + near + MINUS, 1.5),
            rows_of(draw, "tiny", "subnormal numbers: the mean", TINY, 0.5),
            kept,
            Rounded("seeded", "the generator", small, generated, seeds[2], seeds[3], 0.75),
            Rounded("default", "no generator", small.t().contiguous(), without, None, seeds[4], 0.5),
        ],
        draw,
        more=[
            replace(first, title="two bytes a number", judge=narrow, weight=0.5),
            replace(first, title="x is left alone", judge=alone, weight=0.5, trivial=True),
        ],
    )
    weights = 1 + draw.normal(500) / 100
    made = Rounded("replicas", "2 replicas stay equal", weights, replicas, seeds[5], weight=0.75)
    yield case("2 ranks", [made], draw, 2)
    if draw.hidden:
        large = draw.integer(150, 250) << 23
        yield case("drawn", [rows_of(draw, "drawn", "a drawn binade: the mean", large, 0.5)], draw)
