"""topk_all_reduce: the mean of the largest elements of each rank, and the rest, kept for later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from course_lib import facts
from course_lib.checks import kit, words

REFERENCE = ("course_lib.compression",)
ROUNDING = 1e-5  # of the largest element, or of 1
PICKED_FROM_TENSOR = (
    "The largest of `tensor` were picked. Instead, pick the largest of tensor + error, which includes the "
    "part kept back earlier."
)
PICKED_BY_VALUE = "The largest were picked by value, but a large negative element counts as much. Use abs()."
# The right values of every rank, tensors and errors: (ranks, elements) in float64.
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Inputs:
    """The ranks' flat tensors and errors in float64, and k."""

    tensor: torch.Tensor
    error: torch.Tensor
    k: int

    @property
    def n(self) -> int:
        return len(self.tensor)

    def right(self) -> Pair:
        return self.average(self.tensor + self.error)

    def average(
        self,
        asked: torch.Tensor,
        *,
        magnitude: Callable[[torch.Tensor], torch.Tensor] = torch.abs,
        among: torch.Tensor | None = None,
        divisor: int | None = None,
        k: int | None = None,
    ) -> Pair:
        places = magnitude(asked if among is None else among).topk(k or self.k, dim=1).indices
        sent = torch.zeros_like(asked).scatter(1, places, asked.gather(1, places))
        mean = sent.sum(0) / (divisor or self.n)
        return mean.expand_as(asked), asked - sent

    def slips(self) -> dict[str, Pair]:
        """{hint: the values that a mistake leaves in the two tensors}."""
        t, e, n = self.tensor, self.error, self.n
        asked = t + e
        result, rest = self.right()
        slips = {
            "The part that was kept back earlier was not added. Pick from tensor + error.": self.average(t),
            "`error` was added twice, but it has to be sent only once.": (
                self.average(t + 2 * e)
            ),
            PICKED_FROM_TENSOR: self.average(asked, among=t),
            f"The result is the sum over the {n} ranks. Divide it by their number.": (
                self.average(asked, divisor=1)
            ),
            "The result was divided by the number of ranks twice.": self.average(asked, divisor=n * n),
            "The result is the mean over the ranks that sent an element, but a rank that did not send it "
            f"counts as 0. Divide by all {n}.": (self.among_senders(asked - rest), rest),
            "If two ranks sent the same element, one value was overwritten. Add both with index_add_.": (
                self.last_only(asked - rest), rest,
            ),
            PICKED_BY_VALUE: self.average(asked, magnitude=lambda x: x),
            "The magnitudes were sent, without their signs. abs().topk(k) gives the indices, so take the "
            "values from tensor + error.": (self.magnitudes(asked - rest), rest),
            "Elements that any rank sent are 0 in `error`, but a rank keeps all that *it* has not sent.": (
                result, asked * ((asked - rest) == 0).all(0),
            ),
            "The *smallest* elements were sent. Take topk(k) of abs().": (
                self.average(asked, magnitude=lambda x: -x.abs())
            ),
            "The first elements were sent, not the largest.": self.average(asked, magnitude=positions),
            "The result is the mean of all elements, but each rank sends only its k largest.": (
                asked.mean(0).expand_as(asked), rest,
            ),
            "The other ranks' values were put at this rank's indices, so their own indices must also "
            "travel.": (
                self.at_own_places(asked), rest,
            ),
            "`error` still holds the part that was sent, so it would be sent again in the next step.": (
                result, asked,
            ),
            "`error` was left as it was.": (result, e),
            "`error` was set to zero, so the part that was not sent is lost.": (result, torch.zeros_like(e)),
            "The mean was subtracted. A rank keeps what *it* has not sent, which is tensor + error, less "
            "its own k elements.": (result, asked - result),
            "`error` holds the part that was sent. Keep the rest instead.": (result, asked - rest),
            "The rest was added to the old `error`, although it already includes that.": (result, e + rest),
            "`tensor` was left as it was. Overwrite it with the mean.": (t, rest),
            "The mean was added to the old values of `tensor`. Overwrite them instead.": (t + result, rest),
        }  # fmt: skip
        for k in sorted({self.k - 1, self.k + 1} & set(range(1, asked.shape[1] + 1))):
            many = f"{words.counted(k, 'element')} of each rank {words.verb([0] * k, 'was', 'were')} sent"
            slips[f"{many}: k = max(1, round(fraction * size))."] = self.average(asked, k=k)
        return slips

    def among_senders(self, sent: torch.Tensor) -> torch.Tensor:
        senders = (sent != 0).sum(0).clamp(min=1)
        return (sent.sum(0) / senders).expand_as(sent)

    def last_only(self, sent: torch.Tensor) -> torch.Tensor:
        last = torch.zeros_like(sent[0])
        for row in sent:
            last = torch.where(row != 0, row, last)
        return (last / self.n).expand_as(sent)

    def magnitudes(self, sent: torch.Tensor) -> torch.Tensor:
        return (sent.abs().sum(0) / self.n).expand_as(sent)

    def at_own_places(self, asked: torch.Tensor) -> torch.Tensor:
        places = asked.abs().topk(self.k, dim=1).indices
        mean = asked.gather(1, places).sum(0) / self.n
        return torch.zeros_like(asked).scatter(1, places, mean.expand_as(places))


def positions(asked: torch.Tensor) -> torch.Tensor:
    return -torch.arange(asked.shape[1], dtype=asked.dtype).expand_as(asked)


def draw_inputs(draw: kit.Draw, n: int, numel: int, fraction: float) -> Inputs:
    """Multiples of 1/16 with sums that are exact in float32, and magnitudes that are all different.

    One element is the largest on every rank: without such a one the sum, the mean over those that sent an
    element, and one value in place of two would be the same.
    """
    asked = draw.distinct(n, numel, low=16, high=1 << 14)
    everywhere, ranks = draw.integer(0, numel - 1), torch.arange(n)
    largest = asked.argmax(1)
    asked[ranks, largest], asked[ranks, everywhere] = asked[ranks, everywhere], asked[ranks, largest]
    signs = 1 - 2 * torch.stack([draw.distinct(numel) % 2 for _ in range(n)])
    error = draw.distinct(n, numel, low=1, high=1 << 13) - (1 << 12)
    asked, error = (asked * signs).to(torch.float64) / 16, error.to(torch.float64) / 16
    return Inputs(asked - error, error, facts.topk_count(numel, fraction))


def matches(name: str, which: int, on: kit.Setting, inputs: Inputs) -> Callable[[kit.Observed], kit.Finding]:
    """The tensor `name` is the right one on every rank; `which`: of the pair."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for place, rank in enumerate(on.ranks):
            actual = observed.tensors[rank][name].to(torch.float64).flatten()
            right = inputs.right()[which][place]
            off = (~kit.near(actual, right, ROUNDING, 1)).nonzero().flatten().tolist()
            if not off:
                continue
            said = (
                f"on rank {rank}, {words.which('element', off)} of `{name}` "
                f"{words.verb(off, 'is', 'are')} wrong."
            )
            gives = {says: pair[which][place] for says, pair in inputs.slips().items()}
            slips = [
                says
                for says, value in gives.items()
                if not kit.close(value, right, ROUNDING, 1) and kit.close(actual, value, ROUNDING, 1)
            ]
            # Among few elements two mistakes can pick the same, and then neither is named.
            ambiguous = {PICKED_FROM_TENSOR, PICKED_BY_VALUE} <= set(slips)
            return kit.wrong(said, "" if ambiguous else next(iter(slips), ""))
        return kit.RIGHT

    return judge


def cost_hint(n: int, numel: int, k: int) -> Callable[[float, kit.Observed], str]:
    def hint(ratio: float, observed: kit.Observed) -> str:
        if ratio < 1:
            return "The values came another way than by the group."
        if any(operation.dtype.startswith("sparse") for operation in observed.operations[0]):
            return "A sparse tensor counts as a full tensor, so gather k indices and k values yourself."
        if any(operation.op == "all_reduce" for operation in observed.operations[0]):
            return "An all-reduce carries the zeros as well, so gather k indices and k values instead."
        if abs(ratio - 1.5) < 0.05 and "float64" in {operation.dtype for operation in observed.operations[0]}:
            return "The values travel as float64, but `tensor` is float32, so 4 bytes each are enough."
        if abs(ratio - 1.5) < 0.05:
            return "The indices travel as int64, but 4 bytes each are enough below 2^31 elements."
        if ratio > 0.9 * numel / k:
            return "Whole tensors were gathered. Send only the k values and their indices."
        return (
            "Each rank sends k indices of 4 bytes and k values to every other rank, (N-1) k (4 + itemsize) "
            "bytes in all."
        )

    return hint


def with_fraction(rank_side: kit.RankSide, fraction: float) -> kit.RankSide:
    """The side, whose call has the fraction between its two tensors."""
    tensor, error = rank_side.instructions.args
    args = [tensor, {"value": fraction}, error]
    return replace(rank_side, instructions=replace(rank_side.instructions, args=args))


def topk_case(draw: kit.Draw, on: kit.Setting, fraction: float, traffic: bool = False) -> kit.Case:
    count, numel = len(on.ranks), torch.Size(on.shape).numel()
    inputs = draw_inputs(draw, count, numel, fraction)
    tensors = on.arguments([tensor.float().view(on.shape) for tensor in inputs.tensor])
    errors = [error.float().view(on.shape) for error in inputs.error]
    sides = [
        with_fraction(
            kit.side({"tensor": tensor, "error": error}, returned=["tensor", "error"], group=on.group),
            fraction,
        )
        for tensor, error in zip(tensors, errors, strict=True)
    ]
    title = on.title or f"{words.counted(on.n, 'rank')}, {inputs.k} of {words.counted(numel, 'element')}"
    short = on.short
    lines = [
        kit.Line(
            f"mean: {title}" if not short else title,
            kit.both(
                matches("tensor", 0, on, inputs),
                kit.same_bits("tensor", on.ranks),
                kit.gaps_left_alone("tensor", dict(zip(on.ranks, tensors, strict=True))),
            ),
            on.weight,
            trivial=on.trivial,
            short=short,
        ),
        kit.Line(
            f"kept: {title}",
            matches("error", 1, on, inputs),
            on.weight,
            trivial=on.trivial or inputs.k == numel,  # where all is sent, nothing is kept
            short=short,
        ),
    ]
    if traffic:
        most = facts.topk_bytes(count, numel, fraction)
        lines.append(
            kit.volume_line(
                [most / 2] * count, most=[most] * count, hint=cost_hint(count, numel, inputs.k), weight=3,
                title="bytes sent, indices included", point=3,
            )
        )  # fmt: skip
    return on.of_lines(title, sides, lines)


@kit.exercise(points=8, objects=("topk_all_reduce",), references=REFERENCE, point="sending less")
def topk_all_reduce(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, fraction: float, traffic: bool = False, **more: object) -> kit.Case:
        return topk_case(draw, kit.Setting(n, shape, **more), fraction, traffic)  # type: ignore[arg-type]

    yield case(4, 1000, fraction=0.01, traffic=True, weight=2)
    yield case(3, 5, 8, fraction=0.19, weight=1)  # 7.6 elements: to be rounded, not cut off
    yield case(2, 7, fraction=0.01, weight=0.5, title="at least one of 7")
    # 3.3 elements: not to be rounded up
    yield case(4, 30, fraction=0.11, members=(1, 3), weight=0.5, title="sub-group {1, 3}")
    if draw.hidden:
        yield case(2, 21, fraction=1.0, title="all elements", short=True, weight=0.5)
        yield case(3, 4, 6, fraction=0.3, layout="transposed", title="non-contiguous", short=True, weight=0.5)
        yield case(1, 20, fraction=0.25, title="1 rank", short=True, weight=0.5)
