"""two_precisions: weights travel in 16 bits, gradients are summed in 32."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.kit import side
from course_lib.checks.rank.notebooks.fsdp.precision import InDtypeInstructions, StepsInstructions

RECIPES = "course_lib.checks.rank.notebooks.fsdp.precision"
GATHER, REDUCE = 0, 1  # the objects
OLD = -7.0  # stands in an output before the call
STEPS, STEP = 100, 1e-5
SUMS = ("all_reduce", "reduce_scatter", "reduce")
ADDED = (
    "The sum was made in {}. Cast the gradients to reduce_dtype, by default float32, before they are "
    "sent, because ranks add in the dtype that travels."
)
ROUNDED = 0.03  # how far two roundings to bfloat16 can lie apart
NOT_WRITTEN = "`output` was not written. The function returns nothing, so write the result into `output`."
PART = (
    "Rank r's `output` is part r of the sum over the group, divided by N. Reduce-scatter the gradients in "
    "reduce_dtype, and write sum / N."
)
ELSEWHERE = (
    "`output` has another rank's part of the mean. The part depends on the rank's place in the group, "
    "dist.get_rank(group)."
)
ADDED_TO = "The mean was added to the old content of `output`. Overwrite it, for example with output.copy_()."
SUM_ADDED_TO = (
    "The sum was added to the old content of `output`, and then divided. Overwrite it with output.copy_()."
)
SQUARED = "Your result is the sum / N / N. Divide the sum by N, the number of ranks, only once."
NEVER_THERE = (
    "The sum was never written into `output`, whose old content was divided instead. "
    "(`output.to(reduce_dtype)` is a copy if the dtypes differ.)"
)
NOT_ADDED = "Your result is the mean, divided by N. The gradients were not added, or were divided twice."
OWN = "Your result is the rank's own gradient. Add the gradients of all ranks."
OWN_DIVIDED = "Your result is the rank's own gradient, divided. Add the gradients of all ranks."
KEEP = "Cast a copy: shard.to(output.dtype)."
POINT = "weights that travel in 16 bits, and gradients that are added in float32"


# ---- all_gather_cast


def by_luck(observed: kit.Observed) -> kit.Finding:
    """Wrong if a gather was never waited for, since its values are there or not as the machine is busy."""
    for rank, operations in enumerate(observed.operations):
        if any(o.op.startswith("all_gather") and not o.waited for o in operations):
            return kit.wrong(f"on rank {rank} nothing waits until `output` is filled.")
    return kit.RIGHT


def gathered(on: kit.Setting, masters: Sequence[Tensor]) -> kit.Line:
    """Every rank has all masters in the dtype of `output`, to the last bit, and its own as before."""
    whole = torch.cat([master.flatten() for master in masters])
    row = whole.to(on.dtype)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, master in zip(on.ranks, masters, strict=True):
            output = observed.tensors[rank]["output"].flatten()
            if torch.equal(output, row):
                continue
            said = kit.difference(f"on rank {rank} `output` is wrong", output, row)
            return kit.wrong(said, why(output, master.flatten().to(on.dtype)))
        return kit.RIGHT

    def why(output: Tensor, own: Tensor) -> str:
        if bool((output == OLD).all()):
            return NOT_WRITTEN
        if bool((output == OLD).any()):
            return "A part of it was never written. Shard r begins at r times the shard's size."
        if torch.equal(output, own.repeat(len(masters))):
            return "The rank's own shard is everywhere. Gather the shards of all ranks."
        if torch.equal(output.sort().values, row.sort().values):
            return "The shards are in the wrong places. Rank r's shard begins at r times its size."
        if kit.close(output.double(), row.double(), 0.02):
            return "The weights were rounded in another way. Cast once, from float32 to output's dtype."
        return ""

    kept = kit.left_alone("shard", dict(zip(on.ranks, masters, strict=True)), KEEP)
    filled = kit.both(judge, by_luck, kept)
    return kit.Line(on.title, filled, on.weight, short=on.short, trivial=on.trivial)


def gather_hint(ratio: float, observed: kit.Observed) -> str:
    kinds = {operation.dtype for operations in observed.operations for operation in operations}
    if ratio > 1 and "float32" in kinds:
        return "4 bytes per element travelled. Cast the shard first, then gather."
    if any(operation.op in SUMS for operation in observed.operations[0]):
        return (
            "Nothing has to be added, so use an all-gather, which brings each shard once, (N-1)/N of the row."
        )
    return "Each rank sends its shard once, in output's dtype, to N-1 others."


def gather_case(draw: kit.Draw, on: kit.Setting, traffic: bool = False) -> kit.Case:
    """The setting's dtype is that of the output, its shape that of a shard."""
    count = len(on.ranks)
    masters = [draw.normal(*on.shape) for _ in on.ranks]
    numel = masters[0].numel()
    sides = [
        side(
            {"output": torch.full((count * numel,), OLD).to(on.dtype), "shard": master},
            returned=["output", "shard"],
            group=on.group,
            object=GATHER,
        )
        for master in masters
    ]
    lines = [gathered(on, masters)]
    if traffic:
        sent = [(count - 1) * numel * on.dtype.itemsize] * on.n
        title = f"bytes gathered: {on.dtype.itemsize} an element"
        lines.append(in_16_bits(kit.volume_line(sent, hint=gather_hint, weight=2, title=title, point=1.9)))
    return on.of_lines(on.title, sides, lines)


def in_16_bits(line: kit.Line) -> kit.Line:
    """The line on bytes. Too many of them miss the point only if they are those of float32."""

    def judge(observed: kit.Observed) -> kit.Finding:
        kinds = {operation.dtype for operations in observed.operations for operation in operations}
        finding = line.judge(observed)
        return finding if "float32" in kinds else replace(finding, misses_point=False)

    return replace(line, judge=judge, part="weights")


def steps_case(draw: kit.Draw, n: int) -> kit.Case:
    """A master near 1 takes 100 steps of 1e-5, with a gather after each; weights in bfloat16 stand still."""
    size = 4
    starts = [1 + draw.distinct(size, low=0, high=100).float() / 128 for _ in range(n)]
    row = torch.cat(starts).to(torch.bfloat16)  # without rounding

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, start in enumerate(starts):
            moved = observed.tensors[rank]["shard"] - start
            if bool(((moved - STEPS * STEP).abs() <= STEP).all()):
                continue
            gone = words.number(float(moved.mean()))
            said = f"on rank {rank} a shard of weights near 1 did not take its {STEPS} steps"
            sentence = kit.Sentence(f"{said}: it moved by {gone}, not by {STEPS * STEP:g}.", f"{said}.")
            still = bool((moved.abs() <= 2 * STEP).all())
            return kit.wrong(
                sentence,
                f"The shard was cast in place, so the master lost its low bits. After {STEPS} steps of "
                f"1e-5 nothing moved. {KEEP}"
                if still
                else "Leave `shard` unchanged.",
                cause="steps",
            )
        if torch.equal(observed.tensors[0]["output"], row):
            return by_luck(observed)
        return kit.wrong("after the last step rank 0's `output` is not the masters, cast.")

    sides = [
        side(
            {"output": torch.full((n * size,), OLD).bfloat16(), "shard": start},
            returned=["output", "shard"], object=GATHER, kind=StepsInstructions, master="shard",
            steps=STEPS, step=STEP,
        )
        for start in starts
    ]  # fmt: skip
    line = kit.Line(f"the master after {STEPS} steps of 1e-5", judge, 1.5)
    return kit.Case("steps of a master", sides, [line], recipe=f"{RECIPES}:steps")


# ---- reduce_scatter_mean


def mean_slips(grads: Tensor, dtype: torch.dtype, world: int) -> list[kit.Slip]:
    """grads: (n, n, s), each rank's gradient of each shard, in float64; dtype: of the gradients.

    world: the number of all ranks, of which n take part.
    """
    n = len(grads)
    total, equal = grads.sum(0), n > 1 and torch.equal(grads, grads[:1].expand_as(grads))

    def slip(says: str, shards: Tensor) -> kit.Slip:
        return kit.Slip(says, lambda place: {"output": shards[place].float()})

    narrow = str(dtype)[6:]
    return [
        slip(ADDED_TO, total / n + OLD),
        slip("Your result is the sum. Divide it by the number of ranks.", total),
        slip(NOT_ADDED if equal else SQUARED, total / n / n),
        slip(SUM_ADDED_TO, (total + OLD) / n),
        slip(NEVER_THERE, torch.full_like(total, OLD / n)),
        slip(
            "The sum was divided by N - 1, but the mean of N ranks is their sum / N.", total / max(n - 1, 1)
        ),
        slip("The sum was divided with //, which rounds down. Divide it with /.", (total / n).floor()),
        *(
            [
                slip(
                    f"The sum was divided by {world}, the number of all ranks, but the group has {n}. "
                    "Use dist.get_world_size(group).",
                    total / world,
                )
            ]
            if world != n
            else []
        ),
        slip(  # before those below, whose values can be the same
            f"The mean was rounded to {narrow} on its way. Write it into `output` from float32.",
            (total / n).to(dtype).double(),
        ),
        slip(
            f"The gradients were divided in {narrow}, before the sum, so each quotient was rounded to "
            "8 bits. Divide last, in float32.",
            (grads / n).to(dtype).double().sum(0),
        ),
        slip(
            f"The sum was cast back to {narrow} before it was divided. Write the mean into `output` "
            "from float32.",
            total.to(dtype).double() / n,
        ),
        slip(
            f"The sum was cast back to {narrow} and divided there. Write the mean into `output` from "
            "float32.",
            (total.to(dtype) / n).double(),
        ),
        slip(OWN, torch.stack([grads[place, place] for place in range(n)])),
        slip(OWN_DIVIDED, torch.stack([grads[place, place] for place in range(n)]) / n),
        slip(
            (
                "Every rank has the first part of the mean. Rank r's part begins at r times the size of "
                "`output`."
            ),
            (total / n)[:1].expand_as(total),
        ),
    ]


def mean_line(on: kit.Setting, grads: Tensor, reduce_dtype: torch.dtype) -> kit.Line:
    """grads: (n, n, s) in the dtype in which they are given."""
    wide, place_of = grads.double(), {rank: place for place, rank in enumerate(on.ranks)}
    mean = wide.mean(0)
    slips = mean_slips(wide, grads.dtype, on.n)
    tolerance = ROUNDED if reduce_dtype.itemsize == 2 else 0

    def right(rank: int, observed: kit.Observed) -> bool:
        output = observed.tensors[rank]["output"]
        return kit.close(output, mean[place_of[rank]].float(), tolerance)

    def judge(observed: kit.Observed) -> kit.Finding:
        off = [rank for rank in on.ranks if not right(rank, observed)]
        if not off:
            return silent(observed) or (divided_last(observed) if reduce_dtype.itemsize == 2 else kit.RIGHT)
        actual, wanted = observed.tensors[off[0]]["output"], mean[place_of[off[0]]]
        said = kit.difference(f"on rank {off[0]} the mean is wrong", actual, wanted)
        cause, narrow = why(observed), reduce_dtype == torch.float32 and added(observed)
        return kit.wrong(said, cause, misses_point=narrow or cause in (OWN, OWN_DIVIDED))

    def silent(observed: kit.Observed) -> kit.Finding | None:
        """The finding if the mean is right since all ranks have the same gradients, and nothing was sent."""
        if on.n == 1 or any(observed.operations):
            return None
        said = "no rank sent anything, and these gradients are their own mean, since they are equal."
        return kit.wrong(said, OWN, misses_point=True)

    def divided_last(observed: kit.Observed) -> kit.Finding:
        """A mean by three of which no element has more than 16 bits was divided there."""
        name = str(reduce_dtype)[6:]
        for rank in on.ranks:
            output = observed.tensors[rank]["output"]
            if torch.equal(output, output.to(reduce_dtype).float()):
                return kit.wrong(
                    f"on rank {rank} the mean has no more bits than a {name}.",
                    "Divide last, in the dtype of `output`, because a division in reduce_dtype rounds "
                    "once more. So does ReduceOp.AVG, or a cast of the mean.",
                    cause="divided",
                )
        return kit.RIGHT

    def added(observed: kit.Observed) -> bool:
        """Whether gradients were added in the dtype in which they are given."""
        return any(
            operation.op in SUMS and operation.dtype == str(grads.dtype)[6:]
            for operation in observed.operations[on.ranks[0]]
        )

    def usual(observed: kit.Observed, within: float) -> str:
        """The slip that every rank's output is, up to rounding, and that the mean is not."""
        outputs = {rank: observed.tensors[rank]["output"] for rank in on.ranks}
        if all(bool((output == OLD).all()) for output in outputs.values()):  # a small mean added to it is not
            return NOT_WRITTEN
        for slip in slips:
            shards = {rank: slip.gives(place)["output"] for rank, place in place_of.items()}
            if within and all(
                kit.close(shards[rank], mean[place].float(), within) for rank, place in place_of.items()
            ):
                continue
            if all(kit.close(output, shards[rank], within) for rank, output in outputs.items()):
                return slip.says
        parts = [part.float() for part in mean]
        own = all(kit.close(output, parts[place_of[rank]], within) for rank, output in outputs.items())
        if not own and all(
            any(kit.close(output, part, within) for part in parts) for output in outputs.values()
        ):
            return ELSEWHERE
        return ""

    def why(observed: kit.Observed) -> str:
        if reduce_dtype != torch.float32 or not added(observed):
            says = usual(observed, tolerance)
            return says or (usual(observed, ROUNDED) if reduce_dtype == torch.float32 else "") or PART
        narrow, besides = str(grads.dtype)[6:], usual(observed, ROUNDED)
        return f"{ADDED.format(narrow)} Besides: {besides}" if besides else ADDED.format(narrow)

    rows = {rank: grads[place].reshape(-1) for rank, place in place_of.items()}
    alone = kit.left_alone("grads", rows, "Work on a copy, because the caller still has these gradients.")
    line = kit.Line(on.title, kit.both(judge, alone), on.weight, short=on.short, trivial=on.trivial)
    return replace(line, shows=in_float32, part="gradients") if reduce_dtype == torch.float32 else line


def in_float32(observed: kit.Observed) -> float:
    """1 if the gradients travelled in float32, in which they are then added."""
    kinds = {operation.dtype for operations in observed.operations for operation in operations}
    return float("float32" in kinds)


def reduce_hint(reduce_dtype: torch.dtype, ratio: float, observed: kit.Observed) -> str:
    kinds = {o.dtype for operations in observed.operations for o in operations if o.dtype}
    name, bytes_each = str(reduce_dtype)[6:], round(ratio * reduce_dtype.itemsize, 1)
    if ratio > 1 and kinds == {name} and abs(ratio - 2) < 0.05:
        return (
            "These bytes are the traffic of an all-reduce. A reduce-scatter leaves each rank only "
            "its own part."
        )
    if kinds and kinds != {name}:
        return f"{words.listing(sorted(kinds))} travelled, but `reduce_dtype` says {name}."
    if not kinds and bytes_each in (2, 4):  # an all-to-all of lists, whose dtype is not in the record
        return f"{bytes_each:g} bytes per element travelled, but `reduce_dtype` says {name}."
    return "Each rank sends N-1 parts of the size of `output`, in reduce_dtype."


def reduce_case(
    draw: kit.Draw,
    on: kit.Setting,
    reduce_dtype: torch.dtype = torch.float32,
    *,
    equal: bool = False,
    traffic: bool = False,
) -> kit.Case:
    """The setting's dtype is that of the gradients, its shape that of a part. equal: on all ranks."""
    n, (size,) = len(on.ranks), on.shape
    if equal:  # odd numbers of eight bits: three of them, added, no longer fit eight bits
        odd = 2 * draw.distinct(n * size, low=64, high=128) + 1
        grads = (odd.double() / 2**20).expand(n, -1).to(on.dtype)
    else:
        grads = draw.normal(n, n * size).to(on.dtype)
    grads = grads.reshape(n, n, size)
    named = reduce_dtype != torch.float32
    in_dtype: dict[str, Any] = (
        {"kind": InDtypeInstructions, "reduce_dtype": str(reduce_dtype)[6:]} if named else {}
    )
    sides = [
        side(
            {"output": torch.full((size,), OLD), "grads": grads[place].reshape(-1).contiguous()},
            returned=["output", "grads"],
            group=on.group,
            object=REDUCE,
            **in_dtype,
        )
        for place in range(n)
    ]
    lines = [mean_line(on, grads, reduce_dtype)]
    if traffic:
        sent = [(n - 1) * size * reduce_dtype.itemsize] * on.n
        lines.append(
            kit.volume_line(
                sent,
                hint=lambda ratio, observed: reduce_hint(reduce_dtype, ratio, observed),
                title=f"bytes reduced: {reduce_dtype.itemsize} an element",
                weight=1.25 if named else 0.5,
            )
        )
    case = on.of_lines(on.title, sides, lines)
    return replace(case, recipe=f"{RECIPES}:with_dtype") if named else case


def refused_case(dtype: torch.dtype) -> kit.Case:
    """An output in 16 bits for the mean is an error on every rank."""
    narrow = str(dtype)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(2):
            error = observed.values[rank].error
            if error is None:
                return kit.wrong(
                    f"an `output` of the wrong dtype was not refused: it was {narrow}.",
                    "An output in 16 bits would round the mean again, although its sum was made in "
                    "float32. Raise TypeError if `output` has 16 bits, before anything is sent.",
                )
            kind, text, place = error
            if kind not in ("TypeError", "ValueError"):
                said = f"an `output` in {narrow} raised another exception than TypeError"
                sentence = kit.Sentence(f"{said}: {kit.error_in_full(kind, kit.unstamped(text))}", f"{said}.")
                return kit.wrong(sentence, kit.at(place), "Raise TypeError, before anything is sent.")
            if observed.operations[rank]:
                return kit.wrong(
                    f"an `output` in {narrow} was refused after a message had begun.",
                    "Look at output.dtype before anything is sent, because a rank that raises later "
                    "leaves the other ranks waiting.",
                )
        return kit.RIGHT

    grads = torch.ones(6).to(dtype)
    sides = [side({"output": torch.zeros(3).to(dtype), "grads": grads}, object=REDUCE)] * 2
    line = kit.Line(f"an output in {narrow[6:]} is refused", judge)
    return kit.Case("refused", sides, [line], recipe=f"{RECIPES}:refused")


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "error" and "reduce_dtype" in text and "unexpected keyword" in text:
        return "The signature is reduce_scatter_mean(output, grads, reduce_dtype=torch.float32, group=None)."
    if re.search("invalid tensor type|different dtypes", text) and re.search("all_?gather", text):
        return "`output` is the caller's, in any dtype. Cast the shard to output.dtype before the all-gather."
    part = not all(side.inputs for side in case.sides)  # of the ranks
    if kind == "deadlock" or (part and re.search("invalid tensor size|outputShape|worldSize", text)):
        return "Every rank of the group takes part in the same collectives, so pass group= to each."
    return ""


@kit.exercise(
    points=8, objects=("all_gather_cast", "reduce_scatter_mean"), hint=trouble, point=POINT,
    references=("course_lib.fsdp.precision",),
)  # fmt: skip
def two_precisions(draw: kit.Draw) -> Iterator[kit.Case]:
    half, small = torch.bfloat16, torch.float16
    on = kit.Setting(4, (6,), "weights: 4 ranks", dtype=half, weight=1.5)
    yield replace(gather_case(draw, on, traffic=True), proves="weights")
    yield steps_case(draw, 2)
    on = kit.Setting(4, (5,), "weights: sub-group {1, 3}", (1, 3), dtype=small, weight=0.5, short=True)
    yield gather_case(draw, on)
    on = kit.Setting(3, (7,), "gradients: 3 ranks", dtype=half, weight=1.5)
    yield reduce_case(draw, on, traffic=True)
    on = kit.Setting(8, (3,), "8 ranks, equal small gradients", dtype=half, weight=1.25)
    yield reduce_case(draw, on, equal=True)
    on = kit.Setting(3, (9,), "the mean, for reduce_dtype=bfloat16", dtype=half)
    yield reduce_case(draw, on, half, traffic=True)
    members, title = (0, 2, 3), "gradients: sub-group {0, 2, 3}"  # of 5: no other number divides alike
    on = kit.Setting(5, (4,), title, members, dtype=half, weight=1, short=True)
    yield reduce_case(draw, on)
    yield refused_case(half)
    if draw.hidden:
        on = kit.Setting(5, (4,), "weights: 5 ranks, a float32 output", weight=0.5)
        yield gather_case(draw, on, traffic=True)
        on = kit.Setting(5, (3,), "gradients: 5 ranks, float16", dtype=small, weight=1)
        yield reduce_case(draw, on, traffic=True)
        on = kit.Setting(1, (5,), "1 rank", dtype=half, weight=0.5, short=True)
        yield reduce_case(draw, on)
        yield refused_case(small)
