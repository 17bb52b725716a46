"""all_gather_int8: weights on the wire in eight bits, rounded by blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_lib.checks import kit, words

BLOCK, LARGEST, SCALE = 256, 127, 4
OLD = -7.0  # stands in `output` before the call
SLACK = 1.001  # of half a scale, for the arithmetic in float32
TINY = 1e-12
SUMS = ("all_reduce", "reduce_scatter", "reduce")


def steps_of(row: Tensor, block: int) -> Tensor:
    """At each element its block's largest magnitude / 127."""
    return torch.cat([(part.abs().max() / LARGEST).expand(len(part)) for part in row.split(block)])


class Inputs:
    """The ranks' shards, one of whose blocks is zeros, and how wide a step is at each element."""

    def __init__(self, draw: kit.Draw, n: int, size: int, block: int, spread: bool):
        self.n, self.size, self.block = n, size, block
        rows = draw.normal(n, size)
        if spread:  # the first element is a thousand times the others, and so is each block's scale
            rows[:, 0] = 3000 + 100 * draw.normal(n)
        if size > 2 * block:
            rows[:, block : 2 * block] = 0
        self.rows = rows
        self.wide = rows.double()
        self.steps = self.widths(block)

    def widths(self, block: int) -> Tensor:
        return torch.stack([steps_of(row, block) for row in self.wide])

    def likest(self, row: Tensor) -> int:
        """The rank whose weights most elements of the row are to two steps; -1 if none."""
        near = [
            float(((row - weights).abs() <= 2 * steps + TINY).double().mean())
            for weights, steps in zip(self.wide, self.steps, strict=True)
        ]
        most = max(range(self.n), key=near.__getitem__)
        return most if near[most] > 0.5 else -1

    def turned(self, output: Tensor) -> bool:
        """Whether every rank's weights are there, each within a step, but not in their order."""
        places = [
            next((k for k in range(self.n) if bool(((row - self.wide[k]).abs() <= self.steps[k]).all())), -1)
            for row in output
        ]
        return -1 not in places and places != list(range(self.n))

    def unsigned(self, output: Tensor) -> bool:
        """Whether the bytes of negative weights were read as numbers from 128 to 255."""
        far, half = output - self.wide - 2 * (LARGEST + 1) * self.steps, SLACK * self.steps / 2 + TINY
        off = self.off(output)
        return bool(off.any()) and bool(((self.wide < 0) & (far.abs() <= half))[off].all())

    def without_signs(self, output: Tensor) -> bool:
        """Whether only those weights are off that are below minus the largest of their block."""
        off = self.off(output)
        tops = [[part.max().expand(len(part)) for part in row.split(self.block)] for row in self.wide]
        largest = torch.stack([torch.cat(parts) for parts in tops])
        return bool(off.any()) and bool((self.wide < -largest)[off].all())

    def off(self, output: Tensor) -> Tensor:
        """Which elements are further from the weights than rounding explains."""
        return ~((output - self.wide).abs() <= SLACK * self.steps / 2 + TINY)


def arrived(on: kit.Setting, inputs: Inputs) -> kit.Line:
    """Each rank has every rank's weights, of each most to two steps, in whatever order."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in on.ranks:
            rows = observed.tensors[rank]["output"].double().view(inputs.n, inputs.size)
            if missing := set(range(inputs.n)) - {inputs.likest(row) for row in rows}:
                absent = words.ranks([on.ranks[k] for k in sorted(missing)])
                why = why_off(inputs, rows, observed, on.ranks[0])
                return kit.wrong(
                    f"on rank {rank} the weights of {absent} are not in `output`.", why, cause=why
                )
        return kit.RIGHT

    return kit.Line(f"{on.title}: they arrive", judge, 2)


def close_to_the_weights(on: kit.Setting, inputs: Inputs) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in on.ranks:
            output = observed.tensors[rank]["output"].double().view(inputs.n, inputs.size)
            off = inputs.off(output)
            if not bool(off.any()):
                continue
            which = off.flatten().nonzero().flatten().tolist()
            said = (
                f"on rank {rank}, {words.which('element', which)} of `output` "
                f"{words.verb(which, 'is', 'are')} further from the weights than half a scale."
            )
            why = why_off(inputs, output, observed, on.ranks[0])
            return kit.wrong(kit.Sentence(said, f"on rank {rank} `output` is wrong."), why, cause=why)
        return kit.RIGHT

    return kit.Line(on.title, judge, on.weight, short=on.short, trivial=on.trivial)


def alone_line(on: kit.Setting, inputs: Inputs) -> kit.Line:
    rows = dict(zip(on.ranks, inputs.rows, strict=True))
    alone = kit.left_alone("shard", rows, "Round a copy, so that the master keeps its low bits.")
    return kit.Line("`shard` is left alone", alone, 0.5, trivial=True)


def why_off(inputs: Inputs, output: Tensor, observed: kit.Observed, rank: int) -> str:
    """The usual cause of weights that are further off than rounding explains; rank: the group's first."""
    wide, steps = inputs.wide, inputs.steps
    if bool((output == OLD).all()):
        return "`output` was not written. The function returns nothing, so write the result into `output`."
    if any(o.op in SUMS and o.dtype in ("int8", "uint8") for o in observed.operations[rank]):
        return "Bytes of different scales were added. Gather them instead, and decode each shard separately."
    if bool((~output.isfinite()).any()):
        return "A block of zeros was divided by its scale, 0. Divide it by 1 instead."
    if inputs.turned(output):
        return "The shards are in the wrong places. Rank r's shard begins at r times its size."
    off = (output - wide).abs()
    if inputs.unsigned(output):
        return (
            "Negative weights were decoded as large positive ones. View the bytes as torch.int8 before you "
            "decode them."
        )
    if inputs.without_signs(output):
        return "The scale is the largest magnitude / 127. Take abs() before the maximum."
    if bool(((output * wide < 0) & (output.abs() > 0.9 * wide.abs()) & (wide.abs() > steps)).any()):
        return (
            "The largest weight of a block changed its sign. Divided by largest / 128 it is 128, but "
            "an int8 ends at 127. The scale is largest / 127."
        )
    if bool((output.abs() <= wide.abs() * SLACK).all()) and bool((off <= SLACK * steps).all()):
        return (
            "Weights were cut off towards 0, so some are a whole scale wrong. Call round() before "
            "the cast to int8."
        )
    if bool((off <= 0.01 * wide.abs() + SLACK * steps / 2).all()):
        return "The scales were rounded. Send them as float32, 4 bytes per block."
    if bool((off <= SLACK * steps).all()) and bool((output <= wide + (SLACK - 1) * steps).all()):
        return (
            "Weights were rounded down, so some are nearly a whole scale wrong. Call round() before the cast "
            "to int8."
        )
    if inputs.block != BLOCK and bool((off <= SLACK * inputs.widths(BLOCK) / 2 + TINY).all()):
        return (
            f"`block` was not used. It is {inputs.block} here, so every {inputs.block} weights have a "
            "scale of their own."
        )
    if bool((off <= SLACK * wide.abs().max() / LARGEST / 2 + TINY).all()):
        return (
            "With one scale for all, a step is as wide as the largest weight / 127, and small weights "
            f"become 0 next to a large one. Give every block of {inputs.block} a scale of its own."
        )
    return (
        "Each shard is decoded with its own rank's scales, so send these as well, and let blocks "
        "begin again with each shard."
    )


def same_everywhere(ranks: Sequence[int], inputs: Inputs) -> kit.Line:
    """All ranks hold the same bits, their own shard's included. It counts if the weights are right."""

    def judge(observed: kit.Observed) -> kit.Finding:
        first = observed.tensors[ranks[0]]["output"]
        for place, rank in enumerate(ranks):
            if torch.equal(observed.tensors[rank]["output"], first):
                continue
            own = observed.tensors[rank]["output"].view(inputs.n, -1)[place]
            exact = torch.equal(own, inputs.rows[place])
            return kit.wrong(
                f"ranks {ranks[0]} and {rank} hold different weights.",
                "Your shard is exact on your rank but rounded elsewhere. Decode your own bytes as well."
                if exact
                else "All ranks decode the same bytes in the same way.",
            )
        return kit.RIGHT

    where = "" if inputs.block == BLOCK else f", blocks of {inputs.block}"
    return kit.Line(f"the same bits on every rank{where}", judge, 0.5, "communication")


def bytes_hint(ratio: float, observed: kit.Observed) -> str:
    kinds = {o.dtype for operations in observed.operations for o in operations}
    if ratio < 1:
        return "The values did not travel through the group."
    if ratio > 3.5:
        return (
            f"Weights travelled as {words.listing(sorted(kinds))}. Send one byte each, which is 4 times less."
        )
    if kinds & {"bfloat16", "float16", "int16"}:
        return "Weights travelled in 16 bits. Send one byte each, and a float32 scale for each block."
    return "(N-1) (s + 4 ceil(s / block)) bytes: the weights of a shard, and a scale for each block."


def int8_case(
    draw: kit.Draw,
    on: kit.Setting,
    *,
    block: int = BLOCK,
    spread: bool = False,
    traffic: bool = False,
    first: bool = False,
) -> kit.Case:
    """The setting's shape is that of a shard. With the usual block size the argument is left out.

    first: whether lines say that the weights arrive at all, and that the argument is left alone.
    """
    n, (size,) = len(on.ranks), on.shape
    inputs = Inputs(draw, n, size, block, spread)
    sides = [
        kit.side(
            {"output": torch.full((n * size,), OLD), "shard": row.contiguous()},
            returned=["output", "shard"],
            extra=[] if block == BLOCK else [block],
            group=on.group,
        )
        for row in inputs.rows
    ]
    lines = [close_to_the_weights(on, inputs)]
    if not on.short:
        lines.append(same_everywhere(on.ranks, inputs))
    if first:
        lines = [arrived(on, inputs), *lines, alone_line(on, inputs)]
    if traffic:
        exact = (n - 1) * (size + SCALE * -(-size // block))
        lines.append(
            kit.volume_line(
                [(n - 1) * size] * on.n, most=[exact] * on.n, hint=bytes_hint, weight=2,
                title="bytes gathered, scales included", point=1.8,
            )
        )  # fmt: skip
    return on.of_lines(on.title, sides, lines)


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "error" and "nvalid scalar type" in text:
        return (
            "gloo cannot send every dtype, for example not float8. Send the same memory as bytes, "
            "x.view(torch.uint8)."
        )
    if kind == "error" and re.search("invalid tensor size|outputShape", text) and "sub-group" in case.title:
        return "Pass group=group to the all-gather, because only two ranks take part here."
    if kind == "error" and "must be divisible by" in text and "to view Byte" in text:
        return (
            "A float32 must begin at a fourth byte, but a part of a row can begin at any, so clone() "
            "the part before you view it as float32."
        )
    return ""


@kit.exercise(
    points=4, objects=("all_gather_int8",), extra=True, hint=trouble, point="a quarter of the bytes",
    references=("course_lib.compression", "course_lib.fsdp.gather_int8"), besides="a gather",
)  # fmt: skip
def all_gather_int8(draw: kit.Draw) -> Iterator[kit.Case]:
    yield int8_case(draw, kit.Setting(4, (1000,), "weights: 4 ranks", weight=1), traffic=True, first=True)
    on = kit.Setting(3, (150,), "blocks of 32, one weight is 1,000 times the others", weight=1)
    yield int8_case(draw, on, block=32, spread=True)
    on = kit.Setting(4, (300,), "sub-group {1, 3}", (1, 3), short=True, weight=0.5)
    yield int8_case(draw, on)
    if draw.hidden:
        on = kit.Setting(2, (7,), "fewer weights than a block", short=True, weight=0.5)
        yield int8_case(draw, on)
        yield int8_case(draw, kit.Setting(5, (700,), "5 ranks", weight=0.5), block=64, traffic=True)
        on = kit.Setting(1, (600,), "1 rank", short=True, weight=0.5, trivial=True)
        yield int8_case(draw, on)
