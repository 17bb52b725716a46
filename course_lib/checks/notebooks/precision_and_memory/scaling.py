"""quantize, dequantize: eight bits an element and a scale for each block.

Scales are compared with a loop over blocks in float64. Values are judged by the scales that came: each must
be the nearest number of the format to x / scale, ties either way, so that x may be divided by the scale or
multiplied by its inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.kit import both
from course_lib.checks.notebooks.precision_and_memory.scaling_rules import (
    ALONG,
    CLAMP,
    E4M3,
    E5M2,
    ENDS,
    FROM_AMAX,
    LEAST,
    LOCAL,
    NEAR,
    ONE,
    PARTS,
    SHAPE,
    SMALL,
    ULP,
    UPSIDE_DOWN,
    ZEROS,
    Block,
    right,
    slips,
    spread,
    table,
    value_slips,
)
from course_lib.checks.rank.notebooks.precision_and_memory.scaling import QuantizeCall, QuantizeInstructions

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.scaling:scales"


@dataclass(frozen=True)
class Quantized:
    """One call of quantize: of x, or of x as one of the `shards` of a group's ranks."""

    name: str
    x: Tensor
    block: Block
    dtype: torch.dtype = E4M3
    shards: tuple[Tensor, ...] = ()
    default: bool = True  # the dtype is left out
    both: bool = False  # scales and values are judged in one line

    @property
    def wanted(self) -> Tensor:
        return right(torch.cat(self.shards) if self.shards else self.x, self.block, self.dtype)

    def expects(self) -> dict[str, kit.Spec]:
        return {
            "values": kit.Spec(self.dtype, tuple(self.x.shape)),
            "scales": kit.Spec(torch.float32, tuple(self.wanted.shape)),
            "after.0": kit.Spec.of(self.x),
        }

    def instructions(self) -> QuantizeCall:
        return QuantizeCall(
            self.name, "quantize", [self.name], list(self.block),
            {name: spec.agreed() for name, spec in self.expects().items()},
            dtype=None if self.default else str(self.dtype)[6:], group=0 if self.shards else None,
        )  # fmt: skip


def judged(
    call: Quantized, rank: int = 0, parts: Sequence[str] = PARTS
) -> Callable[[kit.Observed], kit.Finding]:
    """Error and form, and of the `parts` the first that is wrong."""
    where = f"on rank {rank} " if call.shards else ""

    def judge(observed: kit.Observed) -> kit.Finding:
        reply, tensors = observed.values[rank][call.name], observed.tensors[rank]
        if reply.error is not None:
            return raised("quantize", *reply.error)
        if finding := misfit(call, reply.misfits):
            return finding
        values = tensors[f"{call.name}.values"].double()
        scales = tensors[f"{call.name}.scales"].double()
        finding, upside_down = None, inverted(call, scales)
        if "scales" in parts and not (upside_down and call.shards):  # these are about what ranks share
            finding = scales_wrong(call, scales, values, where)
        if finding is None and "values" in parts:
            finding = values_wrong(call, 1 / scales if upside_down else scales, values, where)
        if finding is None and "x" in parts and not torch.equal(tensors[f"{call.name}.after.0"], call.x):
            return kit.wrong(
                "x was changed: it belongs to the caller.", "Work on a new tensor.", cause="changed"
            )
        return finding or kit.RIGHT

    return judge


def inverted(call: Quantized, scales: Tensor) -> bool:
    """Whether values were multiplied by their scales, which a line about the scales tells."""
    return matches(scales, 1 / call.wanted, call.wanted == 0)


def raised(function: str, error: str = "", text: str = "", where: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten(function, where)
    said = kit.Sentence(f"{function} raised {error}: {text}", f"{function} raised {kit.error_kind(error)}.")
    why = ""
    if "shape" in text and "invalid" in text:
        why = "Blocks at the edges may be smaller: pad with zeros, or go block by block."
    elif "not implemented for 'Float8" in text:
        why = "fp8 numbers can be stored and cast, and not computed with: values.float() first."
    return kit.wrong(said, kit.at(where) if where else "", why, cause=why or f"{error} {where}")


def misfit(call: Quantized, misfits: Mapping[str, str]) -> kit.Finding | None:
    for name in ("values", "scales"):
        if name not in misfits:
            continue
        came, agreed = misfits[name], call.expects()[name]
        swapped = right(call.x, (call.block[1], call.block[0]), call.dtype).shape
        why = SHAPE if name == "scales" else "Values have x's shape, and one byte each."
        if came == "None":
            why = "Return values and scales: two tensors."
        elif name == "scales" and "float8" in came:
            why = "Scales stay in float32: 4 bytes a block."
        elif name == "scales" and "bfloat16" in came:
            why = "Scales are float32, whatever x is."
        elif name == "scales" and came == str(kit.Spec(torch.float32, tuple(swapped))):
            why = f"The blocks lie along the wrong dimension. {ALONG}"
        said = kit.Sentence(
            f"{name} are {came}; {agreed} is expected.", f"{name} do not have the agreed form."
        )
        return kit.wrong(said, why, cause=why)
    return None


def scales_wrong(call: Quantized, scales: Tensor, values: Tensor, where: str) -> kit.Finding | None:
    wanted = call.wanted
    dead = wanted == 0
    if bool((~scales.isfinite() & dead).any()) or bool((~values.isfinite() & of_dead(call)).any()):
        return kit.wrong("a block of zeros gave NaN.", ZEROS, cause=ZEROS)
    off = ((scales - wanted).abs() > ULP * wanted + LEAST) & ~dead
    if not bool(off.any()):
        return None
    said = kit.difference(f"{where}scales are wrong", scales.where(~dead, wanted), wanted, "scale {} is ")
    for says, slip in shared_slips(call).items():
        if matches(scales, slip, dead):
            return kit.wrong(said, says, cause=says)
    whole = torch.cat(call.shards) if call.shards else call.x
    for says, slip in slips(call.dtype).items():
        if matches(scales, slip(whole, call.block, call.dtype), dead):
            return kit.wrong(said, says, cause=says, misses_point=says == ONE)
    if bool((scales.isinf() & (wanted < 1e-38)).any()):
        return kit.wrong(said, UPSIDE_DOWN, cause=UPSIDE_DOWN)
    if bool(((scales > wanted) & (scales < 1e-6)).all()):
        return kit.wrong(said, SMALL, cause=SMALL)
    return kit.wrong(said, FROM_AMAX, cause="scales")


def shared_slips(call: Quantized) -> dict[str, Tensor]:
    """The sentence for each mistake in which ranks do not take the largest of all their magnitudes."""
    if not call.shards:
        return {}
    each = torch.stack([right(shard, call.block, call.dtype) for shard in call.shards])
    return {
        LOCAL: right(call.x, call.block, call.dtype),
        "The ranks' largest magnitudes were averaged: the largest of all decides, all_reduce with MAX.": (
            each.mean(0)
        ),
        "The ranks' largest magnitudes were added: all_reduce adds unless it is told MAX.": each.sum(0),
        "The ranks took the least of their largest magnitudes: all_reduce with MAX.": each.amin(0),
    }


def of_dead(call: Quantized) -> Tensor:
    """Which elements lie in blocks of zeros."""
    return spread(call.wanted == 0, call.x, call.block)


def matches(scales: Tensor, slip: Tensor, dead: Tensor) -> bool:
    return bool(((scales - slip).abs() <= (1e-6 * slip.abs() + LEAST)).where(~dead, True).all())


def values_wrong(call: Quantized, scales: Tensor, values: Tensor, where: str) -> kit.Finding | None:
    each, x = spread(scales, call.x, call.block), call.x.double()
    if bool(((each == 0) & (x != 0)).any()):
        zero = f"{where}scales are 0 in a block that is not all zeros. Nothing can be divided by them."
        return kit.wrong(zero, FROM_AMAX, cause="scales")
    numbers = table(call.dtype)
    scaled = (x / each).nan_to_num(posinf=0.0, neginf=0.0)
    place = torch.searchsorted(numbers, scaled).clamp(1, len(numbers) - 1)
    least = torch.minimum((numbers[place] * each - x).abs(), (numbers[place - 1] * each - x).abs())
    off = ~((values * each - x).abs() <= least + NEAR * x.abs())
    if not bool(off.any()):
        return None
    place = int(torch.where(off, scaled.abs(), -1.0).argmax())
    row, column = divmod(place, x.shape[1])
    got, want = (f"{float(tensor.flatten()[place]):.6g}" for tensor in (values, scaled))
    general = f"{where}values are not the nearest numbers to x / scale"
    said = kit.Sentence(
        f"{general}: element [{row}, {column}] is {got}, and x / scale is {want}.", f"{general}."
    )
    if bool((~values.isfinite()).any()):
        return kit.wrong(said, CLAMP, cause=CLAMP)
    for says, slip in value_slips(x, each, call.dtype).items():
        if bool(((values - slip).abs() <= 0).all()):
            return kit.wrong(said, says, cause=says)
    return kit.wrong(said, "Each element is divided by its own block's scale, and cast.", cause="values")


# ---- dequantize


@dataclass(frozen=True)
class Back:
    """One call of dequantize, of values and scales that the check gives."""

    name: str
    values: Tensor
    scales: Tensor
    block: Block

    @property
    def wanted(self) -> Tensor:
        return self.values.double() * spread(self.scales.double(), self.values, self.block)

    def expects(self) -> dict[str, kit.Spec]:
        return {"back": kit.Spec(torch.float32, tuple(self.values.shape))}

    def instructions(self) -> QuantizeCall:
        inputs = [f"{self.name}.values", f"{self.name}.scales"]
        expects = {name: spec.agreed() for name, spec in self.expects().items()}
        return QuantizeCall(self.name, "dequantize", inputs, list(self.block), expects)

    def judge(self, observed: kit.Observed) -> kit.Finding:
        reply = observed.values[0][self.name]
        if reply.error is not None:
            return raised("dequantize", *reply.error)
        if "back" in reply.misfits:
            came, agreed = reply.misfits["back"], self.expects()["back"]
            said = kit.Sentence(
                f"dequantize gave {came}; {agreed} is expected.", "dequantize gave another form."
            )
            return kit.wrong(
                said, "x = values * scale, in float32 and in the shape of values.", cause="misfit"
            )
        back = observed.tensors[0][f"{self.name}.back"].double()
        if bool(((back - self.wanted).abs() <= 1e-6 * self.wanted.abs()).all()):
            return kit.RIGHT
        said = kit.difference("dequantize is wrong", back, self.wanted)
        each = spread(self.scales.double(), self.values, self.block)
        if bool(((back - self.values.double() / each).abs() <= 1e-6 * back.abs()).all()):
            return kit.wrong(said, "It divides by the scale: values = x / scale, and x = values * scale.")
        return kit.wrong(said, "Each value is multiplied by its own block's scale.")


def back_of(draw: kit.Draw, name: str, rows: int, columns: int, block: Block) -> Back:
    values = (100 * draw.normal(rows, columns)).clamp(-448, 448).to(E4M3)
    scales = torch.exp(draw.normal(*right(values.float(), block, E4M3).shape))
    return Back(name, values, scales, block)


# ---- cases


def drawn(draw: kit.Draw, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of many magnitudes; the largest of every row, and of all, is negative."""
    x = draw.normal(rows, columns) * torch.exp2(2 * draw.normal(rows, columns))
    x = x * torch.exp2(draw.normal(rows, 1))
    largest = x.abs().argmax(1, keepdim=True)
    x = x.scatter(1, largest, -x.gather(1, largest).abs())
    return x.to(dtype)


def alone_case(title: str, calls: Sequence[tuple[str, float, Quantized | Back]]) -> kit.Case:
    """A line for the scales of each call, and one for the values of all of them, by the scales that came.

    Of a call with `both` scales and values are one line.
    """
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, kit.Spec] = {}
    lines, values = [], []
    for line, weight, call in calls:
        outputs |= {f"{call.name}.{key}": spec for key, spec in call.expects().items()}
        if isinstance(call, Back):
            inputs |= {f"{call.name}.values": call.values, f"{call.name}.scales": call.scales}
            lines.append(kit.Line(line, call.judge, weight))
            continue
        inputs[call.name] = call.x
        parts = ("scales", "values") if call.both else ("scales",)
        lines.append(kit.Line(line, judged(call, parts=parts), weight))
        if not call.both:
            values.append(call)
    nearest = both(*(judged(call, parts=("values",)) for call in values))
    unchanged = both(*(judged(call, parts=("x",)) for call in values))
    lines.insert(len(values), kit.Line("values: the nearest to x / scale", nearest, 3.0))
    lines.append(kit.Line("x is left alone", unchanged, 0.5, trivial=True))
    instructions = QuantizeInstructions([call.instructions() for _, _, call in calls])
    side = kit.RankSide(inputs, instructions, outputs)
    return kit.Case(title, [side], lines, recipe=RECIPE, alone=True)


def sharded_case(draw: kit.Draw, title: str, n: int, members: Sequence[int]) -> kit.Case:
    """A weight in shards, of which the last has the largest magnitude; each rank also has all of it."""
    whole = drawn(draw, 6 * len(members), 40)
    whole[-2, 3] = -3 * whole.abs().max()
    shards = whole.chunk(len(members))
    sides, lines = [kit.absent() for _ in range(n)], []
    full = Quantized("whole", whole, (-1, -1))
    for shard, rank in zip(shards, members, strict=True):
        part = Quantized("shard", shard, (-1, -1), shards=whole.chunk(len(members)))
        outputs = {f"shard.{key}": spec for key, spec in part.expects().items()}
        outputs |= {f"whole.{key}": spec for key, spec in full.expects().items()}
        instructions = QuantizeInstructions([part.instructions(), full.instructions()])
        sides[rank] = kit.RankSide({"shard": shard, "whole": whole}, instructions, outputs)
        lines.append(judged(part, rank))

    def to_the_bit(observed: kit.Observed) -> kit.Finding:
        """The shards' values and scale are those that the student's function gives for the whole."""
        for k, rank in enumerate(members):
            tensors = observed.tensors[rank]
            whole_values = tensors["whole.values"].chunk(len(members))[k].float()
            same = torch.equal(tensors["shard.scales"], tensors["whole.scales"])
            if not (same and torch.equal(tensors["shard.values"].float(), whole_values)):
                return kit.wrong(
                    f"on rank {rank} the shard has other bits than the whole weight.",
                    "With one scale each element is divided by the same number, sharded or not.",
                    cause=kit.ANY,
                )
        return kit.RIGHT

    def hint(ratio: float, observed: kit.Observed) -> str:
        if ratio < 1:
            return LOCAL
        if abs(ratio - 2) < 0.01:
            return "Two messages: without a group nothing is sent, and with one a single number is."
        return "The shards travelled: each rank's largest magnitude is enough, 4 bytes."

    share = 2 * (len(members) - 1) / len(members) * 4
    least = [share if rank in members else 0.0 for rank in range(n)]
    traffic = kit.volume_line(least, hint=hint, weight=1.0, title="bytes: one number")
    value = kit.Line("one scale, and the bits of the whole", both(*lines, to_the_bit), 4.0)
    return kit.Case(title, sides, [value, traffic], recipe=RECIPE, groups=[list(members)])


def calls_of(draw: kit.Draw) -> list[tuple[str, float, Quantized | Back]]:
    rows = draw.integer(5, 9)
    zeros = drawn(draw, 4, 300)
    zeros[1, 128:256] = 0
    tiny = torch.full((2, 8), ENDS[E5M2] * 2.0**-149 * 1.4)
    tiny[:, ::2] *= -1
    ragged = 256 + draw.integer(20, 100)
    return [
        ("one scale for the tensor", 0.5, Quantized("tensor", drawn(draw, rows, 50), (-1, -1))),
        ("a scale for each row", 0.5, Quantized("row", drawn(draw, rows, 70), (1, -1))),
        ("tiles of 1 x 128", 1.0, Quantized("tile", drawn(draw, rows, ragged), (1, 128))),
        ("blocks of 128 x 128", 0.75, Quantized("block", drawn(draw, 150, ragged), (128, 128))),
        ("e5m2", 0.5, Quantized("e5m2", drawn(draw, rows, 90), (1, 32), E5M2, default=False)),
        ("x in bfloat16", 0.5, Quantized("bfloat16", drawn(draw, rows, 200, torch.bfloat16), (1, 128))),
        ("a block of zeros", 0.75, Quantized("zeros", zeros, (1, 128), both=True)),
        (
            "values beyond the end", 0.5,
            Quantized("tiny", tiny, (-1, -1), E5M2, default=False, both=True),
        ),
        ("dequantize", 1.5, back_of(draw, "back", rows, ragged, (1, 128))),
        ("dequantize: one scale", 0.5, back_of(draw, "one", rows, 30, (-1, -1))),
    ]  # fmt: skip


@kit.exercise(
    points=8,
    objects=("quantize", "dequantize"),
    references=("course_lib.precision.scaling", "course_lib.facts"),
    point="a scale for each block",
    besides="one scale",
)
def quantize(draw: kit.Draw) -> Iterator[kit.Case]:
    """Blocks of four kinds with ragged edges, zeros, both formats; a weight in shards with one scale."""
    calls = calls_of(draw)
    if draw.hidden:
        drawn_block = (draw.integer(2, 6), draw.integer(3, 20))
        more = Quantized("drawn", drawn(draw, 17, 61), drawn_block, E5M2, default=False)
        calls += [
            ("a drawn block", 1.0, more),
            ("its dequantize", 0.5, back_of(draw, "d", 9, 31, drawn_block)),
        ]
    yield alone_case("one process", calls)
    yield sharded_case(draw, "2 ranks, a sharded weight", 2, (0, 1))
    if draw.hidden:
        yield sharded_case(draw, "sub-group {0, 2}", 3, (0, 2))
