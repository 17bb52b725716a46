"""quantize, dequantize: eight bits an element and a scale for each block.

Scales are compared with a loop over blocks in float64. Values are judged by the scales that came: each must
be the nearest number of the format to x / scale, ties either way, so that x may be divided by the scale or
multiplied by its inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.kit import functions

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ENDS = {E4M3: 448.0, E5M2: 57344.0}
ROUNDING, LEAST = 1e-6, 1.5e-45  # of a scale; a step of float32's subnormal numbers
FAR = 1e9  # times a scale; a constant in its place is more
NEAR = 4e-6  # of an element: x / scale is rounded in float32 before the cast
ZEROS = "A block of zeros was divided by its scale, but 0 / 0 is NaN. Give this block the scale 1."
FROM_AMAX = "scale = the block's largest magnitude / the format's largest number."
ONE = "All of x has one scale, but `block` says which elements share a scale."
LOCAL = (
    "Two ranks have two scales for one weight, because each rank took the largest magnitude of its own "
    "shard. Take the largest magnitude in all of `group` with all_reduce and MAX before you divide."
)
Block = tuple[int, ...]  # rows and columns


def over_blocks(x: Tensor, block: Block, of: Callable[[Tensor], Tensor]) -> Tensor:
    """`of` each block of x, (blocks down, blocks across)."""
    rows, columns = (size if side == -1 else side for side, size in zip(block, x.shape, strict=True))
    return torch.stack([torch.stack([of(part) for part in band.split(columns, 1)]) for band in x.split(rows)])


def amax(part: Tensor) -> Tensor:
    return part.abs().max()


def spread(scales: Tensor, x: Tensor, block: Block) -> Tensor:
    """The scale of each element of x."""
    rows, columns = (size if side == -1 else side for side, size in zip(block, x.shape, strict=True))
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return whole[: x.shape[0], : x.shape[1]]


def table(dtype: torch.dtype) -> Tensor:
    """All finite numbers of a format, in order."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    return codes[codes.isfinite()].unique()


def nearest(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    numbers = table(dtype)
    scaled = scaled.clamp(numbers[0], numbers[-1])
    place = torch.searchsorted(numbers, scaled).clamp(1, len(numbers) - 1)
    below, above = numbers[place - 1], numbers[place]
    return torch.where((below - scaled).abs() < (above - scaled).abs(), below, above) + 0.0  # not -0


def trouble(error: str, text: str) -> str:
    if "shape" in text and "invalid" in text:
        return "Blocks at the edges can be smaller, so pad with zeros or go block by block."
    if "not implemented for 'Float8" in text or "Promotion for Float8" in text:
        return "fp8 numbers can be stored and cast but not computed with, so call values.float() first."
    return ""


@dataclass(frozen=True)
class Quantized:
    """quantize(x, block), of x or of x as one of the `shards` of a group's ranks."""

    x: Tensor
    block: Block
    dtype: torch.dtype | None = None  # None: the default is asked for
    shards: tuple[Tensor, ...] = ()

    def call(self, name: str) -> functions.Call:
        kwargs = {"dtype": self.dtype, "group": {"group": 0} if self.shards else None}
        return functions.Call(
            name,
            functions.About(
                "quantize", "amax / largest", {"scales": "scales are", "values": "values are"},
                error=trouble, misfit=self.misfit, misses=[ONE],
            ),
            inputs={"x": self.x}, args=[self.block],
            kwargs={key: argument for key, argument in kwargs.items() if argument is not None},
            outputs=("values", "scales"),
            wanted={
                "scales": functions.Part(
                    self.right_scales, self.near_scales, kit.Spec.of(self.scales.float()),
                    otherwise=FROM_AMAX,
                ),
                "values": functions.Part(
                    self.right_values, self.near_values, kit.Spec(self.format, tuple(self.x.shape)),
                    fault="not the nearest numbers to x / scale",
                    otherwise="Divide each element in float32 by the scale of its own block, then cast.",
                ),
            },
            slips=lambda name, came: self.scale_slips(came) if name == "scales" else self.value_slips(came),
        )  # fmt: skip

    @property
    def format(self) -> torch.dtype:
        return self.dtype or E4M3

    def scales_of(self, x: Tensor) -> Tensor:
        return over_blocks(x.double(), self.block, amax) / ENDS[self.format]

    @property
    def whole(self) -> Tensor:
        return torch.cat(self.shards) if self.shards else self.x

    @cached_property
    def scales(self) -> Tensor:
        """0 for a block of zeros, which may have any."""
        return self.scales_of(self.whole)

    def near_scales(self, actual: Tensor, wanted: Tensor, came: functions.Tensors) -> Tensor:
        near = (actual - wanted).abs() <= ROUNDING * wanted.abs() + LEAST
        return near | ((self.scales == 0) & actual.isfinite())

    def inverted(self, came: functions.Tensors) -> bool:
        """Whether values were multiplied by their scales, which a line about the scales tells."""
        return bool(self.near_scales(came["scales"], 1 / self.scales, came).all())

    def right_scales(self, came: functions.Tensors) -> Tensor:
        """The scales of shards may be upside down: the line is about the scale that ranks share."""
        shared = self.shards and self.inverted(came)
        return came["scales"] if shared else self.scales.where(self.scales > 0, 1)

    def each(self, came: functions.Tensors) -> Tensor:
        """The divisor of each element."""
        scales = came["scales"]
        return spread(1 / scales if self.inverted(came) else scales, self.x, self.block)

    def right_values(self, came: functions.Tensors) -> Tensor:
        return nearest((self.x.double() / self.each(came)).nan_to_num(), self.format)

    def near_values(self, actual: Tensor, wanted: Tensor, came: functions.Tensors) -> Tensor:
        x, each = self.x.double(), self.each(came)
        near = (actual * each - x).abs() <= (wanted * each - x).abs() + NEAR * x.abs()
        return near & ((each != 0) | (x == 0))  # nothing is near to x / 0

    def scale_slips(self, came: functions.Tensors) -> dict[str, Tensor | bool]:
        of, end = partial(over_blocks, self.whole.double(), self.block), ENDS[self.format]
        other, scales = sum(ENDS.values()) - end, came["scales"]
        shards = torch.stack([self.scales_of(shard) for shard in self.shards or [self.x]])
        return {
            ZEROS: bool((~scales.isfinite() & (self.scales == 0)).any()),
            "The scale is upside down. It is amax / largest, because values = x / scale and x = values * "
            "scale.": self.inverted(came) or bool((scales.isinf() & (self.scales < 1e-38)).any()),
            LOCAL: self.scales_of(self.x),
            "The ranks' largest magnitudes were averaged, but the largest of all decides. Call all_reduce "
            "with MAX.": shards.mean(0),
            "The ranks' largest magnitudes were added, because all_reduce adds unless you pass MAX.": (
                shards.sum(0)
            ),
            "The ranks took the least of their largest magnitudes. Call all_reduce with MAX instead.": (
                shards.amin(0)
            ),
            "The scale depends on signs, but the largest magnitude of a block can belong to a negative "
            "number, such as -7 next to 5. Take abs() first.": of(torch.max) / end,
            "The scale has the sign of the block's largest element, but a scale is a magnitude over the "
            "largest number.": of(lambda part: part.flatten()[part.abs().argmax()]) / end,
            f"The largest number of this format is {words.number(end)}, but {words.number(other)} belongs "
            "to the other format. Use torch.finfo(dtype).max.": of(amax) / other,
            "Your scale is the largest magnitude itself, so all values are below 1 after the division, "
            "and the format's upper half is unused.": of(amax),
            ONE: (amax(self.whole.double()) / end).expand_as(self.scales),
            "The scale is kept in 8 bits and rounded, but it must be a float32, 4 bytes per block.": (
                self.scales.float().to(self.format).double()
            ),
            "The scale was computed in bfloat16 and rounded. Call x.float() first.": (
                self.scales.bfloat16().double()
            ),
            "The scale comes from the mean magnitude, so larger ones lie beyond the end.": (
                of(lambda part: part.abs().mean()) / end
            ),
            "A block of small magnitudes has a scale like all others, amax / largest, however small. Only "
            "a block of zeros needs another scale.": bool(
                ((scales > FAR * self.scales) & (scales < 1e-6)).all()
            ),
        }

    def value_slips(self, came: functions.Tensors) -> dict[str, bool]:
        values, each, x = came["values"], self.each(came), self.x.double()
        scaled, lost, end = (x / each).nan_to_num(), ~values.isfinite(), ENDS[self.format]
        numbers = table(self.format)
        below = numbers[torch.searchsorted(numbers, scaled.abs().clamp(max=end), right=True) - 1]

        def cast(x: Tensor) -> Tensor:
            return x.clamp(-end, end).float().to(self.format).double()

        mistaken = {
            "x was multiplied by the scale. Divide x by the scale instead.": cast(x * each),
            "x was not divided by its block's scale.": cast(x),
            "round() makes whole numbers, but fp8 has finer numbers, and the cast already rounds.": (
                cast(scaled.round())
            ),
            "Values were cut off towards 0, but the cast rounds to the nearest number.": below.copysign(
                scaled
            ),
        }
        return {
            ZEROS: bool((lost & spread(self.scales == 0, x, self.block)).any()),
            f"Scales are 0 in a block that is not all zeros, but nothing can be divided by 0. {FROM_AMAX}": (
                bool(((each == 0) & (x != 0)).any())
            ),
            "A scale that was rounded down leaves values beyond the format's end, and the cast turns "
            "them into infinity (e4m3 values into NaN on older PyTorch). So clamp to the largest number "
            "before the cast.": bool(lost.any()),
            **{says: torch.equal(values, slip) and bool(slip.any()) for says, slip in mistaken.items()},
        }

    def misfit(self, name: str, came: str) -> str:
        swapped = over_blocks(self.x, self.block[::-1], amax)
        if came in ("None", "tuple", "list"):
            return "Return two tensors, values and scales."
        if name == "values" and came == str(kit.Spec.of(self.scales.float())):
            return "Return values first, and then scales."
        if name == "values":
            return "Values have x's shape, and one byte each."
        if "float8" in came:
            return "Scales stay in float32, with 4 bytes per block."
        if "float16" in came or "float64" in came:
            return "Scales are float32, whatever x is."
        if came == str(kit.Spec.of(swapped.float())):
            return (
                "The blocks lie along the wrong dimension. `block` is (rows, columns), so a tile of 1 x "
                "128 lies along a row, the dimension over which the product sums, and (1, -1) is a scale "
                "for each row."
            )
        return (
            "Scales have a row for each row of blocks and a column for each column of blocks, so one "
            "block has scales of shape (1, 1)."
        )


def dequantized(draw: kit.Draw, name: str, rows: int, columns: int, block: Block) -> functions.Call:
    """dequantize(values, scales, block), of drawn values and scales."""
    values = (100 * draw.normal(rows, columns)).clamp(-448, 448).to(E4M3)
    scales = torch.exp(draw.normal(*over_blocks(values.float(), block, amax).shape))
    exact, each = values.double(), spread(scales.double(), values, block)
    return functions.Call(
        name,
        functions.About(
            "dequantize", "values * scale", {"x": "the result is"}, error=trouble,
            misfit=lambda name, came: "Return x = values * scale in float32, in the shape of values.",
        ),
        inputs={"values": values, "scales": scales}, args=[block], object=1, outputs=("x",),
        wanted={
            "x": functions.Part(
                exact * each, lambda actual, wanted, came: (actual - wanted).abs() <= ROUNDING * wanted.abs(),
                kit.Spec(torch.float32, (rows, columns)),
                otherwise="Multiply each value by the scale of its own block.",
            )
        },
        slips=lambda name, came: {
            "dequantize divides by the scale, but values = x / scale means x = values * scale.": exact / each
        },
    )  # fmt: skip


# ---- cases


def drawn(draw: kit.Draw, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of many magnitudes; the largest of every row, and of all, is negative."""
    x = draw.normal(rows, columns) * torch.exp2(2 * draw.normal(rows, columns))
    x = x * torch.exp2(draw.normal(rows, 1))
    largest = x.abs().argmax(1, keepdim=True)
    x = x.scatter(1, largest, -x.gather(1, largest).abs())
    return x.to(dtype)


def alone_case(draw: kit.Draw) -> kit.Case:
    """A line for the scales of each call, and one for the values of all of them, by the scales that came.

    At the edges of a format both are one line.
    """
    rows = draw.integer(5, 9)
    zeros = drawn(draw, 4, 300)
    zeros[1, 128:256] = 0
    tiny = torch.full((2, 8), ENDS[E5M2] * 2.0**-149 * 1.4)
    tiny[:, ::2] *= -1
    ragged = 256 + draw.integer(20, 100)
    calls = [
        (0.5, Quantized(drawn(draw, rows, 50), (-1, -1)).call("one scale for the tensor")),
        (0.5, Quantized(drawn(draw, rows, 70), (1, -1)).call("a scale for each row")),
        (1.0, Quantized(drawn(draw, rows, ragged), (1, 128)).call("tiles of 1 x 128")),
        (0.75, Quantized(drawn(draw, 150, ragged), (128, 128)).call("blocks of 128 x 128")),
        (0.5, Quantized(drawn(draw, rows, 90), (1, 32), E5M2).call("e5m2")),
        (0.5, Quantized(drawn(draw, rows, 200, torch.bfloat16), (1, 128)).call("x in bfloat16")),
    ]
    edges = [
        (0.75, Quantized(zeros, (1, 128)).call("a block of zeros")),
        (0.5, Quantized(tiny, (-1, -1), E5M2).call("values beyond the end")),
    ]
    back = [
        (1.5, dequantized(draw, "dequantize", rows, ragged, (1, 128))),
        (0.5, dequantized(draw, "dequantize: one scale", rows, 30, (-1, -1))),
    ]
    if draw.hidden:
        block = draw.integer(2, 6), draw.integer(3, 20)
        calls.append((1.0, Quantized(drawn(draw, 17, 61), block, E5M2).call("a drawn block")))
        back.append((0.5, dequantized(draw, "its dequantize", 9, 31, block)))

    values = kit.both(*(functions.judged(call, ["values"], inputs=False) for _, call in calls))
    unchanged = kit.both(*(functions.judged(call, []) for _, call in calls))
    lines = [
        *(functions.values_line(call, call.name, ["scales"], weight=w, inputs=False) for w, call in calls),
        kit.Line("values: the nearest to x / scale", values, 3.0),
        *(functions.values_line(call, call.name, weight=w, inputs=False) for w, call in [*edges, *back]),
        kit.Line("x is left alone", unchanged, 0.5, trivial=True),
    ]
    return functions.function_case("one process", [call for _, call in [*calls, *edges, *back]], lines)


def sharded_case(draw: kit.Draw, title: str, n: int, members: Sequence[int]) -> kit.Case:
    """A weight in shards, of which the last has the largest magnitude; each rank also has all of it."""
    whole = drawn(draw, 6 * len(members), 40)
    whole[-2, 3] = -3 * whole.abs().max()
    shards, full = whole.chunk(len(members)), Quantized(whole, (-1, -1)).call("whole")
    calls = {
        rank: Quantized(shard, (-1, -1), shards=shards).call("shard")
        for rank, shard in zip(members, shards, strict=True)
    }

    def to_the_bit(observed: kit.Observed) -> kit.Finding:
        """The shards' values and scale are those that the student's function gives for the whole."""
        for k, rank in enumerate(members):
            tensors = observed.tensors[rank]
            whole_values = tensors["whole.values"].chunk(len(members))[k].float()
            same = torch.equal(tensors["shard.scales"], tensors["whole.scales"])
            if not (same and torch.equal(tensors["shard.values"].float(), whole_values)):
                return kit.wrong(
                    f"on rank {rank}, the shard has other bits than the whole weight.",
                    "With one scale, each element is divided by the same number, sharded or not.",
                    cause=kit.ANY,
                )
        return kit.RIGHT

    def hint(ratio: float, observed: kit.Observed) -> str:
        if ratio < 1:
            return LOCAL
        if abs(ratio - 2) < 0.01:
            return (
                "You send two messages, but with a group a rank sends only one number, and without a "
                "group it sends nothing."
            )
        return "The shards travelled, but each rank's largest magnitude is enough, 4 bytes."

    share = 2 * (len(members) - 1) / len(members) * 4
    least = [share if rank in members else 0.0 for rank in range(n)]
    values = kit.both(*(functions.judged(call, rank=rank) for rank, call in calls.items()), to_the_bit)
    lines = [
        kit.Line("one scale, and the bits of the whole", values, 4.0),
        kit.volume_line(least, hint=hint, weight=1.0, title="bytes: one number"),
    ]
    sides = [functions.side([calls[rank], full]) if rank in members else kit.absent() for rank in range(n)]
    return kit.Case(title, sides, lines, recipe=functions.RECIPE, groups=[list(members)])


@kit.exercise(
    points=8,
    objects=("quantize", "dequantize"),
    references=("course_lib.precision.scaling", "course_lib.facts"),
    point="a scale for each block",
    besides="one scale",
)
def quantize(draw: kit.Draw) -> Iterator[kit.Case]:
    """Blocks of four kinds with ragged edges, zeros, both formats; a weight in shards with one scale."""
    yield alone_case(draw)
    yield sharded_case(draw, "sub-group {0, 2}", 3, (0, 2))
    if draw.hidden:
        yield sharded_case(draw, "2 ranks, a sharded weight", 2, (0, 1))
