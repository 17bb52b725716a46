"""int8_all_reduce: a mean in eight bits an element, from which nothing is lost for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from course_lib import facts
from course_lib.checks import kit, words
from course_lib.checks.notebooks.data_parallel.sparse import REFERENCE

BLOCK, LARGEST = 256, 127
SUMS = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("gather", "scatter", "broadcast", "reduce")  # operations that one rank is at the root of
OVERFLOW = (
    "int8 was summed as int8, but 100 + 100 is -56 there, and scales differ. Widen to float, multiply by "
    "the scale, then add."
)
LEFT_ALONE = "`error` was left as it was. Write the part into it that your rounding left out."
SET_TO_ZERO = "`error` was set to zero, so the part that rounding left out is lost."
NOT_ADDED = "The part that earlier roundings left out was not added. Quantise tensor + error."
LOST = (LEFT_ALONE, SET_TO_ZERO, NOT_ADDED)  # without error feedback
SLACK = 1.02  # of the bounds of rounding, for the arithmetic in float32


class Inputs:
    """The ranks' flat tensors and errors in float64, and how far off a right result can be."""

    def __init__(self, draw: kit.Draw, n: int, numel: int, spread: bool):
        self.n = n
        asked = draw.normal(n, numel, dtype=torch.float64)
        if spread:  # one element is a thousand times the others
            asked[:, numel // 2] = 1000 + 100 * draw.normal(n, dtype=torch.float64)
        error = 0.2 * draw.normal(n, numel, dtype=torch.float64)
        self.tensor, self.error = (asked - error).float().double(), error.float().double()
        self.asked = self.tensor + self.error
        self.mean = self.asked.mean(0)
        # without such an element, one scale for all is as good: no draw may tell it from one a block
        widest = self.widest if spread else self.of_the_largest
        wide = widest(asked)
        of_mean = widest(self.mean[None])[0] + wide.mean(0) / LARGEST
        self.bound = SLACK * (wide.mean(0) / 2 + of_mean / 2)
        self.left = SLACK * (wide / 2 + n * of_mean / 2)  # a rank's own, and a shard's owner's

    def widest(self, rows: torch.Tensor) -> torch.Tensor:
        """The widest step that a block of 256, wherever it begins, can have at each element."""
        reach = 2 * BLOCK - 1
        peaks = F.max_pool1d(rows.abs()[:, None], reach, 1, BLOCK - 1)[:, 0]
        return peaks / LARGEST

    def of_the_largest(self, rows: torch.Tensor) -> torch.Tensor:
        """The step that one scale for the whole row has, at each element."""
        return rows.abs().amax(1, keepdim=True).expand_as(rows) / LARGEST


def close_to_the_mean(on: kit.Setting, inputs: Inputs) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in on.ranks:
            actual = observed.tensors[rank]["tensor"].to(torch.float64).flatten()
            off = (~((actual - inputs.mean).abs() <= inputs.bound)).nonzero().flatten().tolist()
            if not off:
                continue
            said = (
                f"on rank {rank}, {words.which('element', off)} of `tensor` "
                f"{words.verb(off, 'is', 'are')} further from the mean than rounding to int8 explains."
            )
            return kit.wrong(said, cause_of(actual, observed))
        return kit.RIGHT

    def cause_of(actual: torch.Tensor, observed: kit.Observed) -> str:
        if any(
            operation.op in SUMS and operation.dtype in ("int8", "uint8")
            for operation in observed.operations[on.ranks[0]]
        ):
            return OVERFLOW
        slips = {
            NOT_ADDED: inputs.tensor.mean(0),
            "`error` was added twice.": (inputs.tensor + 2 * inputs.error).mean(0),
            f"The result is the sum over the {inputs.n} ranks. Divide it by their number.": inputs.mean
            * inputs.n,
            "The result was divided by the number of ranks twice.": inputs.mean / inputs.n,
        }
        for says, value in slips.items():
            scale = max(1.0, float(value.abs().max() / inputs.mean.abs().max()))
            if bool(((actual - value).abs() <= scale * inputs.bound).all()):
                return says
        small = actual[inputs.mean.abs() < 10]
        if float(inputs.mean.abs().max()) > 100 and float((small == 0).double().mean()) > 0.5:
            return (
                "Small elements became 0 next to a large one. With one scale for all, a step is as wide as "
                f"the largest element / 127, so give every block of {BLOCK} a scale of its own."
            )
        return (
            "Each rank quantises tensor + error, then sends elements and scales. The rank that adds must "
            "first multiply each part by *its* sender's scale."
        )

    return judge


def in_eight_bits(on: kit.Setting) -> Callable[[kit.Observed], kit.Finding]:
    """No sum of floats over the ranks, nor as many bytes as one: it would be right, and no compression."""
    numel, n = torch.Size(on.shape).numel(), len(on.ranks)
    many = 0.75 * 2 * (n - 1) / n * 4 * numel

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in on.ranks if numel > n > 1 else ():
            floats = sum(
                torch.Size(operation.shape).numel()
                for operation in observed.operations[rank]
                if operation.op in SUMS and "float" in operation.dtype
            )
            if (
                floats >= numel / 8
                or sum(operation.bytes_sent for operation in observed.operations[rank]) >= many
            ):
                return kit.wrong(
                    f"rank {rank} did not send its elements in eight bits each.",
                    "Send the elements as int8 with one float32 scale per block, not as float32.",
                    cause="not in eight bits",
                )
        return kit.RIGHT

    return judge


def nothing_lost(on: kit.Setting, inputs: Inputs) -> Callable[[kit.Observed], kit.Finding]:
    """N x result + sum of the errors after = sum of the (tensor + error) before; each error is a rounding."""

    def judge(observed: kit.Observed) -> kit.Finding:
        result = observed.tensors[on.ranks[0]]["tensor"].to(torch.float64).flatten()
        errors = torch.stack([observed.tensors[r]["error"].to(torch.float64).flatten() for r in on.ranks])
        missing = inputs.asked.sum(0) - inputs.n * result - errors.sum(0)
        tolerance = 2e-5 * inputs.asked.abs().sum(0).clamp(min=1)
        if bool((missing.abs() <= tolerance).all()):
            return only_rounding(errors)
        off = (~(missing.abs() <= tolerance)).nonzero().flatten().tolist()
        share = words.which("element", off)
        cause = why(errors, result)
        return kit.wrong(
            f"in {share}, N * result + all errors is not the sum of tensor + error over the ranks.",
            cause,
            misses_point=cause in LOST,
        )

    def only_rounding(errors: torch.Tensor) -> kit.Finding:
        for rank, kept, most in zip(on.ranks, errors, inputs.left, strict=True):
            if not bool((kept.abs() <= most).all()):
                return kit.wrong(
                    f"on rank {rank} `error` is larger than rounding to int8 explains.",
                    "A rank keeps the part *it* has not sent, which is tensor + error, less the values the "
                    "receivers read. If it subtracted the mean, it would keep its distance from the other "
                    "ranks, and more with each step.",
                    cause="the mean subtracted",
                )
        return kit.RIGHT

    def why(errors: torch.Tensor, result: torch.Tensor) -> str:
        if bool((errors == inputs.error).all()):
            return LEFT_ALONE
        if bool((errors == 0).all()):
            return SET_TO_ZERO
        near = 2e-5 * inputs.asked.abs().sum(0).clamp(min=1)
        # the sum that all errors should have, and the one that they have if the old ones are not used
        lost = inputs.asked.sum(0) - inputs.n * result
        unaided = inputs.tensor.sum(0) - inputs.n * result
        if bool(((errors.sum(0) - unaided).abs() <= near).all()):
            return NOT_ADDED
        if not bool(((result - inputs.mean).abs() <= inputs.bound).all()):
            return "`tensor` is not the mean, as the line above says, so the equation cannot hold either."
        if bool(((errors.sum(0) + lost).abs() <= near).all()):
            return "The sign is wrong: error = tensor + error, less the values sent."
        if bool(((errors.sum(0) - lost - inputs.error.sum(0)).abs() <= near).all()):
            return "The old error was kept next to the new error, which already includes it."
        if bool((errors.sum(0).abs() <= inputs.n * inputs.bound).all()):
            return (
                "Each rank remembers its own rounding, but the second rounding, of the mean, is forgotten, "
                "or does not count N times. The shard's owner adds N * (mean - what it sent) to its error."
            )
        return "Afterwards `error` must hold tensor + error, less the values the receivers read."

    return judge


def cost_hint(n: int, numel: int) -> Callable[[float, kit.Observed], str]:
    whole = facts.int8_gather_bytes(n, numel) / facts.int8_bytes(n, numel)

    def hint(ratio: float, observed: kit.Observed) -> str:
        if ratio < 1:
            return "The values came another way than by the group."
        if abs(ratio - whole) < 0.03 * whole:
            return (
                "Every rank sent its whole tensor to every other rank. At 8 ranks, (N-1) M/4 is as much as "
                "an all-reduce of float32. Send shard r only to rank r (all-to-all), let it average, then "
                "gather the means."
            )
        if ratio > 3.5:
            return "Send the elements as int8 with one float32 scale per block, not as float32."
        return (
            "A rank sends 2 (N-1) (s + 4 ceil(s/256)) bytes, with s = ceil(size / N), for elements and a "
            "scale per block."
        )

    return hint


def through_one_rank(line: kit.Line, numel: int) -> kit.Line:
    """The line of bytes; where it fails as whole tensors went to one rank and back, it says so."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        # the last rank is not the root: if it sends messages to one peer alone, that one is
        whole = [
            operation for operation in observed.operations[-1] if torch.Size(operation.shape).numel() >= numel
        ]
        to_one = len({operation.peer for operation in whole if operation.op == "send"}) == 1
        ways = {
            operation.op
            for operation in whole
            if operation.op in ROOTED or (to_one and operation.op == "send")
        }
        if finding.ok or not ways:
            return finding
        return kit.wrong(
            f"whole tensors went to one rank, or from it to all ({words.listing(sorted(ways))}).",
            "That rank's traffic grows with N, and the others wait for it. Send shard r only to rank r "
            "(all-to-all), let it average, then gather the means, so that all ranks carry the same.",
            cause="one rank",
            misses_point=True,
        )

    return replace(line, judge=judge)


def int8_case(draw: kit.Draw, on: kit.Setting, *, traffic: bool = False, spread: bool = False) -> kit.Case:
    count, numel = len(on.ranks), torch.Size(on.shape).numel()
    inputs = Inputs(draw, count, numel, spread)
    tensors = on.arguments([tensor.float().view(on.shape) for tensor in inputs.tensor])
    errors = [error.float().view(on.shape) for error in inputs.error]
    sides = [
        kit.side({"tensor": tensor, "error": error}, returned=["tensor", "error"], group=on.group)
        for tensor, error in zip(tensors, errors, strict=True)
    ]
    title = on.title or f"{words.counted(on.n, 'rank')}, {words.counted(numel, 'element')}"
    gaps = kit.gaps_left_alone("tensor", dict(zip(on.ranks, tensors, strict=True)))
    sent = in_eight_bits(on)
    mean = kit.both(sent, close_to_the_mean(on, inputs), gaps)
    name = title if on.short else f"mean: {title}"
    lines = [kit.Line(name, mean, on.weight, trivial=on.trivial, short=on.short)]
    if not on.short:
        lines += [
            kit.Line(
                "nothing is lost: N * result + errors", kit.both(sent, nothing_lost(on, inputs)), on.weight
            ),
            kit.Line(
                "the same bits on every rank",
                kit.both(sent, kit.same_bits("tensor", on.ranks)),
                0.5,
                trivial=True,
            ),
        ]
    if traffic:
        exact = facts.int8_bytes(count, numel)
        volume = kit.volume_line(
            [0.9 * exact] * count,
            most=[exact] * count,
            hint=cost_hint(count, numel),
            weight=2,
            title="bytes sent, scales included",
            point=1.8,
        )
        lines.append(through_one_rank(volume, numel))
    return on.of_lines(title, sides, lines)


@kit.exercise(
    points=8, objects=("int8_all_reduce",), references=REFERENCE,
    point="sending less, of which nothing is lost for good",
)  # fmt: skip
def int8_all_reduce(draw: kit.Draw) -> Iterator[kit.Case]:
    yield int8_case(draw, kit.Setting(4, (4096,), weight=1.5), traffic=True)
    yield int8_case(draw, kit.Setting(3, (10, 103), weight=1))
    on = kit.Setting(2, (1500,), title="one element is 1,000 times the others", short=True)
    yield int8_case(draw, on, spread=True)
    on = kit.Setting(4, (300,), members=(1, 3), title="sub-group {1, 3}", short=True, weight=0.5)
    yield int8_case(draw, on)
    if draw.hidden:
        few = "fewer elements than ranks"  # nothing can be saved there, nor by one rank
        on = kit.Setting(3, (2,), title=few, short=True, weight=0.5, trivial=True)
        yield int8_case(draw, on)
        on = kit.Setting(2, (6, 50), layout="transposed", title="non-contiguous", short=True, weight=0.5)
        yield int8_case(draw, on)
        on = kit.Setting(1, (600,), title="1 rank", short=True, weight=0.5, trivial=True)
        yield int8_case(draw, on)
