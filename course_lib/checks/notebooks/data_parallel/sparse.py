"""topk_all_reduce: the mean of the largest elements of each rank, and what is kept for later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from course_lib import facts
from course_lib.checks import words
from course_lib.checks.judge.build import absent, side
from course_lib.checks.judge.case import (
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    exercise,
    wrong,
)
from course_lib.checks.judge.setting import Setting
from course_lib.checks.judge.training import volume_line
from course_lib.checks.judge.values import both, gaps_left_alone, same_bits

REFERENCE = ("course_lib.compression",)
# What every rank should hold, tensors and errors: (ranks, elements) in float64.
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Slip:
    """A way to go wrong, and what it gives: (tensors, errors) of all ranks."""

    says: str
    gives: Callable[[], Pair]


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

    def slips(self) -> list[Slip]:
        t, e, n = self.tensor, self.error, self.n
        asked = t + e
        result, rest = self.right()
        found = [
            Slip(
                "What was kept back earlier was not added: pick from tensor + error.",
                lambda: self.average(t),
            ),
            Slip(
                "`error` was added twice: it stands for what is still to be sent, once.",
                lambda: self.average(t + 2 * e),
            ),
            Slip(
                "The largest of `tensor` were picked: pick the largest of tensor + error, what was kept back "
                "earlier included.",
                lambda: self.average(asked, among=t),
            ),
            Slip(
                f"That is the sum over the {n} ranks: divide it by their number.",
                lambda: self.average(asked, divisor=1),
            ),
            Slip(
                "That is divided by the number of ranks twice.",
                lambda: self.average(asked, divisor=n * n),
            ),
            Slip(
                "That is the mean over the ranks that sent an element; one that did not send it counts as 0. "
                f"Divide by all {n}.",
                lambda: (self.among_senders(asked - rest), rest),
            ),
            Slip(
                "Where two ranks sent the same element one value was overwritten: add them, index_add_.",
                lambda: (self.last_only(asked - rest), rest),
            ),
            Slip(
                "The largest were picked by value: a large negative element counts as much. Use abs().",
                lambda: self.average(asked, magnitude=lambda x: x),
            ),
            Slip(
                "The *smallest* elements were sent: topk(k) of abs().",
                lambda: self.average(asked, magnitude=lambda x: -x.abs()),
            ),
            Slip(
                "The first elements were sent, not the largest.",
                lambda: self.average(asked, magnitude=positions),
            ),
            Slip(
                "That is the mean of all elements: only the k largest of each rank are sent.",
                lambda: (asked.mean(0).expand_as(asked), rest),
            ),
            Slip(
                "The other ranks' values were put at this rank's places: their indices must travel too.",
                lambda: (self.at_own_places(asked), rest),
            ),
            Slip(
                "`error` still holds what was sent: it would be sent again in the next step.",
                lambda: (result, asked),
            ),
            Slip("`error` was left as it was.", lambda: (result, e)),
            Slip(
                "`error` was set to zero: what was not sent is lost.",
                lambda: (result, torch.zeros_like(e)),
            ),
            Slip(
                "The mean was subtracted. A rank keeps what *it* has not sent: tensor + error, less its own "
                "k elements.",
                lambda: (result, asked - result),
            ),
            Slip("That is what was sent; the rest is to be kept.", lambda: (result, asked - rest)),
            Slip(
                "The rest was added to the old `error`, which is in it already.",
                lambda: (result, e + rest),
            ),
            Slip("`tensor` was left as it was: it is overwritten.", lambda: (t, rest)),
            Slip(
                "The mean was added to what `tensor` held: it is overwritten.",
                lambda: (t + result, rest),
            ),
        ]
        if bool(((asked != rest).sum(0) <= 1).all()):  # no element was sent by two ranks
            found.insert(
                0,
                Slip(
                    f"That is the sum over the {n} ranks, or over those that sent an element (here no two "
                    f"sent the same one): divide by all {n}.",
                    lambda: (self.among_senders(asked - rest), rest),
                ),
            )
        for k in sorted({self.k - 1, self.k + 1} & set(range(1, asked.shape[1] + 1))):
            found.append(
                Slip(
                    f"{words.counted(k, 'element')} of each rank {words.verb([0] * k, 'was', 'were')} sent: "
                    "k = max(1, round(fraction * size)).",
                    lambda k=k: self.average(asked, k=k),
                )
            )
        return found

    def among_senders(self, sent: torch.Tensor) -> torch.Tensor:
        senders = (sent != 0).sum(0).clamp(min=1)
        return (sent.sum(0) / senders).expand_as(sent)

    def last_only(self, sent: torch.Tensor) -> torch.Tensor:
        last = torch.zeros_like(sent[0])
        for row in sent:
            last = torch.where(row != 0, row, last)
        return (last / self.n).expand_as(sent)

    def at_own_places(self, asked: torch.Tensor) -> torch.Tensor:
        places = asked.abs().topk(self.k, dim=1).indices
        mean = asked.gather(1, places).sum(0) / self.n
        return torch.zeros_like(asked).scatter(1, places, mean.expand_as(places))


def positions(asked: torch.Tensor) -> torch.Tensor:
    return -torch.arange(asked.shape[1], dtype=asked.dtype).expand_as(asked)


def inputs(draw: Draw, n: int, numel: int, fraction: float) -> Inputs:
    """Multiples of 1/16 with sums that are exact in float32, and magnitudes that are all different."""
    asked = draw.distinct(n, numel, low=16, high=1 << 14)
    signs = 1 - 2 * torch.stack([draw.distinct(numel) % 2 for _ in range(n)])
    error = draw.distinct(n, numel, low=1, high=1 << 13) - (1 << 12)
    asked, error = (asked * signs).to(torch.float64) / 16, error.to(torch.float64) / 16
    return Inputs(asked - error, error, facts.topk_count(numel, fraction))


def matches(name: str, which: int, on: Setting, given: Inputs) -> Callable[[Observed], Finding]:
    """The tensor `name` is the right one on every rank; `which`: of the pair."""

    def judge(seen: Observed) -> Finding:
        for place, rank in enumerate(on.ranks):
            found = seen.tensors[rank][name].to(torch.float64).flatten()
            right = given.right()[which][place]
            if close(found, right):
                continue
            off = (~near(found, right)).nonzero().flatten().tolist()
            said = (
                f"on rank {rank}, {words.which('element', off)} of `{name}` "
                f"{words.verb(off, 'is', 'are')} wrong."
            )
            slips = (
                slip.says
                for slip in given.slips()
                if not close(slip.gives()[which][place], right)
                and close(found, slip.gives()[which][place])
            )
            return wrong(said, next(slips, ""))
        return RIGHT

    return judge


def near(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (found - right).abs() <= 1e-5 * right.abs().max().clamp(min=1)


def close(found: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(near(found, right).all())


def cost_hint(n: int, numel: int, k: int) -> Callable[[float, Observed], str]:
    def hint(ratio: float, seen: Observed) -> str:
        if ratio < 1:
            return "The values came another way than by the group."
        if any(one.dtype.startswith("sparse") for one in seen.operations[0]):
            return "A sparse tensor counts as a whole one: gather k indices and k values yourself."
        if any(one.op == "all_reduce" for one in seen.operations[0]):
            return "An all-reduce carries the zeros, too: gather k indices and k values instead."
        if abs(ratio - 1.5) < 0.05:
            return "The indices travel as int64: 4 bytes each are enough below 2^31 elements."
        if ratio > 0.9 * numel / k:
            return "Whole tensors were gathered: send the k values and their indices alone."
        return "k indices of 4 bytes and k values from each rank to each other one: (N-1) k (4 + itemsize)."

    return hint


def topk_case(draw: Draw, on: Setting, fraction: float, traffic: bool = False) -> Case:
    count, numel = len(on.ranks), torch.Size(on.shape).numel()
    given = inputs(draw, count, numel, fraction)
    tensors = on.arguments([one.float().view(on.shape) for one in given.tensor])
    errors = [one.float().view(on.shape) for one in given.error]
    sides = [
        side(
            {"tensor": tensor, "error": error}, returned=["tensor", "error"], group=on.group
        )
        for tensor, error in zip(tensors, errors, strict=True)
    ]  # fmt: skip
    for one in sides:
        first, second = one.instructions["args"]
        one.instructions["args"] = [first, {"value": fraction}, second]
    title = (
        on.title or f"{words.counted(on.n, 'rank')}, {given.k} of {words.counted(numel, 'element')}"
    )
    told = on.short
    lines = [
        Line(
            f"mean: {title}" if not told else title,
            both(
                matches("tensor", 0, on, given), same_bits("tensor", on.ranks),
                gaps_left_alone("tensor", dict(zip(on.ranks, tensors, strict=True))),
            ),
            on.weight, trivial=on.trivial, short=told,
        ),
        Line(
            f"kept: {title}", matches("error", 1, on, given), on.weight, trivial=on.trivial, short=told
        ),
    ]  # fmt: skip
    if traffic:
        most = facts.topk_bytes(count, numel, fraction)
        lines.append(
            volume_line(
                [most / 2] * count, most=[most] * count, hint=cost_hint(count, numel, given.k), weight=3,
                title="bytes sent, indices included", point=3,
            )
        )  # fmt: skip
    placed = dict(zip(on.ranks, sides, strict=True))
    members = [placed.get(rank) or absent() for rank in range(on.n)]
    return Case(title, members, lines, groups=[on.ranks] if on.members else [])


@exercise(points=8, objects=("topk_all_reduce",), references=REFERENCE, point="sending less")
def topk_all_reduce(draw: Draw) -> Iterator[Case]:
    def case(n: int, *shape: int, fraction: float, traffic: bool = False, **more: object) -> Case:
        return topk_case(draw, Setting(n, shape, **more), fraction, traffic)  # type: ignore[arg-type]

    yield case(4, 1000, fraction=0.01, traffic=True, weight=2)
    yield case(3, 5, 8, fraction=0.19, weight=1)  # 7.6 elements: to be rounded, not cut off
    yield case(2, 7, fraction=0.01, weight=0.5, title="at least one of 7")
    yield case(4, 30, fraction=0.1, members=(1, 3), weight=0.5, title="sub-group {1, 3}")
    if draw.hidden:
        yield case(2, 21, fraction=1.0, title="all elements", short=True, weight=0.5)
        yield case(
            3,
            4,
            6,
            fraction=0.3,
            layout="transposed",
            title="non-contiguous",
            short=True,
            weight=0.5,
        )
        yield case(1, 20, fraction=0.25, title="1 rank", short=True, weight=0.5)
