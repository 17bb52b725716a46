"""round_to: a number rounded to a format, to the bit.

The right numbers come from tables of all values of a format, made from its bits: a number lies between two
neighbours, and of a tie the one with the even code is taken. So no cast is trusted; torch's of e4m3 gave NaN
beyond 464 before 2026 and saturates now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from course_lib.checks import kit

MANY = 40_000  # drawn numbers of a format
SHOWN = 200  # wrong values among which the example is chosen
INFINITY = float("inf")
Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Form:
    """A format by its bits; finite: as e4m3."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    finite: bool = False

    @property
    def sizes(self) -> tuple[int, int, bool]:
        return self.exponent_bits, self.mantissa_bits, self.finite

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def lowest(self) -> int:
        return 1 - self.bias

    @property
    def table(self) -> Tensor:
        """All finite numbers from 0 up; a number's place in it is its code."""
        count = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        if not self.finite:
            count -= (1 << self.mantissa_bits) - 1
        code = torch.arange(count)
        e, m = code >> self.mantissa_bits, code & (1 << self.mantissa_bits) - 1
        fraction = m.double() / 2**self.mantissa_bits
        normal = (1 + fraction) * power(e - self.bias)
        return torch.where(e == 0, fraction * 2.0**self.lowest, normal)

    @property
    def largest(self) -> float:
        return float(self.table[-1])

    @property
    def edge(self) -> float:
        """Halfway between the largest number and the next that a format without end would have."""
        table = self.table
        return float(table[-1] + (table[-1] - table[-2]) / 2)

    def nearest(self, x: Tensor) -> Tensor:
        """Right: to the nearest number, ties to the even code; overflow; NaN and signs stay."""
        table = self.table
        ties = (table[1:] + table[:-1]) / 2
        size = x.abs().nan_to_num(nan=0.0)
        place = torch.searchsorted(ties, size)
        tie = (place < len(ties)) & (ties[place.clamp(max=len(ties) - 1)] == size)
        rounded = table[place + (tie & (place % 2 == 1))]
        if not self.finite:
            rounded = torch.where(size >= self.edge, INFINITY, rounded)
        return torch.where(x.isnan(), x, rounded.copysign(x))


FP16, E5M2, E4M3 = Form("fp16", 5, 10), Form("e5m2", 5, 2), Form("e4m3", 4, 3, finite=True)


def power(exponent: Tensor) -> Tensor:
    return torch.exp2(exponent.double())


def variant(
    form: Form, *, rounding: Rounding = torch.round, lowest: int | None = None,
    binade: Callable[[Tensor], Tensor] | None = None, largest: float | None = None, over: str = "",
    above: float | None = None, flush: bool = False, sign: bool = True,
) -> Rounding:  # fmt: skip
    """A rounding with a mistake.

    rounding: of multiples of a step; lowest: exponent of the smallest normal number; binade: the exponent of
    a magnitude; largest: number; above: from which magnitude on, before rounding, it overflows; over: "inf",
    "nan" or "largest"; flush: subnormal numbers become 0; sign: whether a zero has one.
    """
    least = form.lowest if lowest is None else lowest
    most = form.largest if largest is None else largest
    ends = {"inf": INFINITY, "nan": float("nan"), "largest": most}
    end = ends[over or ("largest" if form.finite else "inf")]

    def rounded(x: Tensor) -> Tensor:
        size = x.abs()
        of_binade = torch.frexp(size).exponent - 1 if binade is None else binade(size)
        step = power(of_binade.clamp(min=least) - form.mantissa_bits)
        rounded = rounding(size / step) * step
        if flush:
            rounded = torch.where(size < 2.0**least, 0.0, rounded)
        rounded = torch.where(rounded > most if above is None else size > above, end, rounded)
        rounded = rounded.copysign(x) if sign else torch.where(x < 0, 0 - rounded, rounded) + 0.0
        return torch.where(x.isnan(), x, rounded)

    return rounded


def away(x: Tensor) -> Tensor:
    return torch.floor(x + 0.5)


def binade(less: int) -> Callable[[Tensor], Tensor]:
    """frexp's exponent and `less`; the binade's is 1 less."""
    return lambda size: torch.frexp(size).exponent - less


def upward(form: Form, sign: bool) -> Rounding:
    """Halves go towards +inf, those of negative numbers, too; sign: whether a zero has one."""
    positive, negative = variant(form, rounding=away), variant(form, rounding=lambda x: torch.ceil(x - 0.5))

    def rounded(x: Tensor) -> Tensor:
        result = torch.where(x > 0, positive(x), negative(x))
        return result if sign else result + 0.0

    return rounded


def logarithm(form: Form, negative: bool) -> Rounding:
    """The binade by log2, which is NaN for `negative` numbers, and infinite for infinity."""

    def rounded(x: Tensor) -> Tensor:
        lost = x.isinf() | (x < 0) if negative else x.isinf()
        return torch.where(lost, float("nan"), form.nearest(x))

    return rounded


def unsigned(form: Form) -> Rounding:
    """Right, but for infinities, which are all positive."""

    def rounded(x: Tensor) -> Tensor:
        result = form.nearest(x)
        return torch.where(result.isinf(), INFINITY, result)

    return rounded


def narrow(form: Form) -> Rounding:
    """Right, but for numbers whose distance is beyond float32, and so infinite."""

    def rounded(x: Tensor) -> Tensor:
        beyond = torch.frexp(x).exponent - 1 - form.mantissa_bits > 127
        return torch.where(beyond, float("nan"), form.nearest(x))

    return rounded


def integer(form: Form) -> Rounding:
    """The distance as a power of the integer 2, which is an integer."""

    def rounded(x: Tensor) -> Tensor:
        step = 2 ** ((torch.frexp(x).exponent - 1).clamp(min=form.lowest) - form.mantissa_bits)
        rounded = torch.round(x / step) * step
        if form.finite:
            return rounded.clamp(-form.largest, form.largest)
        return torch.where(rounded.abs() > form.largest, torch.full_like(x, INFINITY).copysign(x), rounded)

    return rounded


HALVES = "Halves go up, as in floor(x + 0.5), but a tie must go to its even neighbour."
DOWN = "Your function truncates, so half of all values are one step too small."
UP = "Your function always rounds up, so half of all values are one step too large."
COARSER = (
    "The mantissa has one bit too few, because the exponent is one larger than that of the binade. (That of "
    "frexp is, since its mantissa is between 1/2 and 1.)"
)
FINER = (
    "The mantissa has one bit too many. The distance is 2^(e - mantissa_bits), where e is the exponent of "
    "the binade, which is frexp's exponent minus 1."
)
ANOTHER = "The numbers belong to "
EVERYWHERE = (DOWN, UP, COARSER, FINER, ANOTHER)  # such a mistake shows in ordinary numbers
FLOOR = "The exponent of the binade is the logarithm of |x| rounded down, as by floor."
INTEGER = (
    "2 ** e of a tensor of integers is an integer, so the negative powers became 0. Write 2.0 ** e.double()."
)
NARROW = (
    "The distance was computed in float32, and 1e300 is beyond it, so its distance became infinite. Compute "
    "the distance in float64."
)
WHOLE = "The smallest normal number is 2^(1 - bias), and bias is 2^(exponent_bits - 1) - 1."


def slips(form: Form) -> dict[str, Rounding]:
    """The sentence for each mistake, and the rounding that makes it."""
    fine = 2.0**-form.mantissa_bits

    variants = {
        "-0 lost its sign, although -1e-30 rounds to -0.0.": variant(form, sign=False),
        DOWN: variant(form, rounding=torch.floor),
        UP: variant(form, rounding=torch.ceil),
        "Ties go away from zero instead of to even. In fp16, 1.00048828125 is halfway and rounds to 1.0.": (
            variant(form, rounding=away)
        ),
        HALVES: upward(form, sign=True),
        f"{HALVES} And -1e-30 becomes -0.0.": upward(form, sign=False),
        "Subnormal numbers are missing, although 6e-8 exists in fp16. Below the smallest normal number, "
        "the step stays the same as in the first binade.": variant(form, flush=True),
        "Below the smallest normal number, the step goes on shrinking, but subnormal numbers have the "
        "step of the first binade.": variant(form, lowest=-3000),
        "Subnormal numbers begin a binade too low. " + WHOLE: variant(form, lowest=form.lowest - 1),
        "Subnormal numbers begin a binade too high. " + WHOLE: variant(form, lowest=form.lowest + 1),
        "Your bias is 2^exponent_bits. " + WHOLE: variant(form, lowest=1 - 2**form.exponent_bits),
        "Subnormal numbers are missing. Below the smallest normal number, the step stays the same as in "
        "the first binade. And -1e-30 rounds to -0.0.": variant(form, flush=True, sign=False),
        "The number was rounded twice, first to float32, so a value next to a tie became the tie.": (
            lambda x: form.nearest(x.float().double())
        ),
        COARSER: variant(form, binade=binade(0), lowest=form.lowest + 1),
        f"{COARSER} ": variant(form, binade=binade(0)),
        FINER: variant(form, binade=binade(2)),
        f"{FINER} ": variant(form, binade=binade(2), lowest=form.lowest - 1),
        FLOOR: variant(form, binade=lambda size: size.log2().round()),
        f"{FLOOR} ": variant(form, binade=lambda size: size.log2().trunc()),
        f"{FLOOR}  ": variant(form, binade=torch.log2),
        INTEGER: integer(form),
        NARROW: narrow(form),
        "Your function never overflows. Beyond the largest number, return infinity, or the largest "
        "number with finite=True.": (
            variant(form, largest=INFINITY)
        ),
        "Negative numbers became NaN, as their logarithm is. Take it of x.abs(), or use torch.frexp.": (
            logarithm(form, negative=True)
        ),
        "Infinity became NaN, because its logarithm is infinite. torch.frexp has no such exception.": (
            logarithm(form, negative=False)
        ),
    }  # fmt: skip
    if form.finite:
        ieee = (2 - fine) * 2.0**form.bias
        variants |= {
            "finite=True was not used, but such a format has one more binade and no infinities.": variant(
                form, largest=ieee, over="inf"
            ),
            "448 + ... = inf, but e4m3 has no infinities. With finite=True, it saturates.": variant(
                form, over="inf"
            ),
            "In e4m3, only NaN becomes NaN. With finite=True, all else saturates, even infinity.": variant(
                form, over="nan"
            ),
            "The largest number of e4m3 is 448, because finite means one more binade, in which only the "
            "last code is NaN.": variant(form, largest=ieee),
            "The largest number of e4m3 is 448, because the code of 480 is NaN.": variant(
                form, largest=(2 - fine) * 2.0 ** (form.bias + 1)
            ),
        }
    else:
        variants |= {
            "Your function overflows at the largest number instead of half a step above it. In fp16, "
            "65519 becomes 65504, but 65520 becomes inf.": variant(form, above=form.largest),
            "Your function saturates, but without finite=True, values beyond are infinite.": variant(
                form, over="largest"
            ),
            "Infinity lost its sign. Below the negative of the largest number, the result is -inf.": unsigned(
                form
            ),
            "The largest number is a binade too large, because the last exponent is reserved for "
            "infinity and NaN, and bias is 2^(exponent_bits - 1) - 1.": variant(
                form, largest=(2 - fine) * 2.0 ** (form.bias + 1)
            ),
        }
    others = {
        f"{ANOTHER}{other.name}. Use exponent_bits and mantissa_bits as they are passed.": (other.nearest)
        for other in (FP16, E5M2, E4M3)
        if other.sizes != form.sizes
    }
    return variants | others


def drawn(draw: kit.Draw, form: Form) -> dict[str, Tensor]:
    """Inputs by the line in which they are judged; each with both signs."""
    table = form.table
    ties = (table[1:] + table[:-1]) / 2
    normal = float(2.0**form.lowest)
    up, down = (torch.full_like(table, end) for end in (INFINITY, -INFINITY))
    near = torch.cat([ties.nextafter(up[1:]), ties.nextafter(down[1:])])
    beside = torch.cat([table.nextafter(up), table[1:].nextafter(down[1:])])
    uniform = torch.rand(MANY, generator=draw.generator, dtype=torch.float64)
    top = torch.frexp(torch.tensor(form.largest, dtype=torch.float64)).exponent - 1
    sizes = torch.exp2(form.lowest + uniform * float(top - form.lowest))  # below the last binade
    small = torch.exp2(form.lowest - form.mantissa_bits - 4 + uniform[:9000] * (form.mantissa_bits + 4))
    beyond = form.edge + (form.edge - form.largest) * torch.arange(-1.5, 2.0, 0.25).double()
    tiny = torch.tensor([1e-300, 5e-324], dtype=torch.float64)
    wild = torch.tensor(
        [1e300, 4 * form.largest, 1.5 * form.largest, INFINITY, form.largest], dtype=torch.float64
    )
    parts = {
        "numbers of the format": table,
        "normal numbers": torch.cat([sizes, near[near > normal], beside[beside > normal]]),
        "ties": ties[ties > normal],
        "subnormal numbers": torch.cat([
            small, ties[ties < normal], near[near < normal], tiny
        ]),
        "the largest": torch.cat([beyond, wild]),
    }  # fmt: skip
    kept = {name: x[x < form.largest] if name == "normal numbers" else x for name, x in parts.items()}
    nan = torch.tensor([float("nan")]).double()
    return {name: torch.cat([x, -x, nan] if name == "the largest" else [x, -x]) for name, x in kept.items()}


def same(actual: Tensor, wanted: Tensor) -> Tensor:
    """Elementwise: to the bit, zero's sign included; NaN is NaN."""
    bits = actual.view(torch.int64) == wanted.view(torch.int64)
    return torch.where(wanted.isnan(), actual.isnan(), bits)


def typical(x: Tensor) -> int:
    """The place of a value that is easy to read: of those that are nearest to 1 the shortest."""
    near = torch.log2(x.abs()).abs().nan_to_num(nan=INFINITY).argsort()[:SHOWN].tolist()
    return min(near, key=lambda place: len(repr(float(x[place]))))


def case(
    draw: kit.Draw, form: Form, weight: float, also: Callable[[Tensor], Sequence[kit.Line]] = lambda x: ()
) -> kit.Case:
    """also: more lines, of x."""
    parts = drawn(draw, form)
    x = torch.cat(list(parts.values()))
    right = form.nearest(x)
    bounds, at = {}, 0
    for name, part in parts.items():
        bounds[name] = slice(at, at + len(part))
        at += len(part)

    mistakes = slips(form)

    @cache
    def mistaken(says: str) -> Tensor:
        """The values that this slip makes of `x`, which all lines ask for."""
        return mistakes[says](x)

    def line(name: str, share: float) -> kit.Line:
        place = bounds[name]

        def judge(observed: kit.Observed) -> kit.Finding:
            result = observed.tensors[0]["result"].flatten()
            off = ~same(result[place], right[place])
            if not bool(off.any()):
                return kit.RIGHT
            because = why(result, off)
            sentence = said(x[place][off], result[place][off], right[place][off], len(off))
            return kit.wrong(sentence, because, cause=because)

        def why(result: Tensor, off: Tensor) -> str:
            """The slip that gives all values found; or else all of the line's, wrong ones among them.

            Few values agree by chance, so a slip of all numbers is told by all of the ordinary numbers.
            """
            for says in mistakes:
                if bool(same(result, mistaken(says)).all()):
                    return says.strip()
            ordinary = name in ("numbers of the format", "normal numbers")
            local = [says for says in mistakes if not says.startswith(EVERYWHERE)]
            for some, among in ((slice(None), mistakes if ordinary else local), (off, local)):
                for says in among:
                    if bool(same(result[place][some], mistaken(says)[place][some]).all()):
                        return says.strip()
            return ""

        return kit.Line(f"{form.name}: {name}", judge, share * weight, short=True)

    def said(x: Tensor, got: Tensor, want: Tensor, total: int) -> kit.Sentence:
        shown = typical(x)
        example = f"{float(x[shown])!r} became {float(got[shown])!r} instead of {float(want[shown])!r}"
        return kit.Sentence(f"{example}, and {len(x):,} of {total:,} values are wrong.", "Values are wrong.")

    shares = {"numbers of the format": 0.5, "normal numbers": 1.0, "ties": 1.0, "subnormal numbers": 1.0}
    lines = [*(line(name, shares.get(name, 1.0)) for name in parts), *also(x)]
    kwargs = {"finite": {"value": True}} if form.finite else {}
    bits = (form.exponent_bits, form.mantissa_bits)
    asked = x[None] if form.finite else x  # of two shapes, since x has any
    made = kit.side({"x": asked}, returned=["x"], result=kit.Spec.of(asked), extra=bits, kwargs=kwargs)
    return kit.Case(form.name, [made], lines, alone=True)


def alone(x: Tensor) -> list[kit.Line]:
    """A function that does nothing passes it, too."""

    def judge(observed: kit.Observed) -> kit.Finding:
        if bool(same(observed.tensors[0]["x"], x).all()):
            return kit.RIGHT
        return kit.wrong("x was changed.", "Return a new tensor, because the caller still has x.")

    return [kit.Line("x is left alone", judge, 2.0, trivial=True, short=True)]


@kit.exercise(points=8, objects=("round_to",), references=("course_lib.precision.formats",))
def round_to(draw: kit.Draw) -> Iterator[kit.Case]:
    """Formats that PyTorch casts to, and those that it does not know; hidden: a format that is drawn."""
    yield case(draw, FP16, 1.0)
    yield case(draw, E5M2, 0.5, alone)
    yield case(draw, E4M3, 1.0)
    yield case(draw, Form("6 + 5 bits", 6, 5), 1.5)
    yield case(draw, Form("5 + 4 bits, finite", 5, 4, finite=True), 1.0)
    if draw.hidden:
        yield case(draw, Form("bf16", 8, 7), 0.5)
        exponent_bits, mantissa_bits = draw.integer(3, 8), draw.integer(1, 9)
        yield case(draw, Form("a drawn format", exponent_bits, mantissa_bits), 0.5)
        exponent_bits, mantissa_bits = draw.integer(3, 7), draw.integer(2, 6)
        yield case(draw, Form("a drawn finite format", exponent_bits, mantissa_bits, finite=True), 0.5)
