"""queue: the place of each assignment in its expert's queue, and whether there is room for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.kit import functions
from course_lib.checks.notebooks.experts.references import REFERENCES

BY_TOKEN = (
    "Some tokens' second choices are before other tokens' first choices. All first choices queue "
    "first, in the order of the tokens, and the second choices behind them."
)
ANEW = (
    "The second choices begin at place 0 again, but they belong behind the first choices of the same expert."
)
FROM_ONE = "The places begin at 1. The first place is 0."
ONE_QUEUE = "All experts share one queue. Each expert has its own, which begins at place 0."
BACKWARDS = "The last token is first, but the queue keeps the order of the tokens."
UNTURNED = (
    "The places are the right ones, but they belong to other assignments. In the order of the queue, all "
    "first choices come before all second choices, so use view(k, T).T."
)
DROPPED = (
    "Assignments that found no place were not counted. A place is the number of all assignments before it, "
    "whether they are kept or not."
)
ONE_TOO_MANY = "An expert with C places takes the places 0 to C - 1, and here the place C was kept as well."
INVERTED = "True and False are exchanged. `keep` is True where there is a place."


def trouble(error: str, text: str) -> str:
    if "size of tensor" in text or "shape" in text:
        return (
            "experts.T.flatten() has all first choices, then all second choices, so view(k, T).T "
            "turns it back."
        )
    return ""


def misfit(name: str, came: str) -> str:
    return "Return (place, keep), as int64 and bool, both of the shape of `experts`."


ABOUT = functions.About(
    "queue",
    "a loop over the choices and the tokens",
    {"place": "the places are", "keep": "the tokens that find a place are"},
    error=trouble,
    misfit=misfit,
    misses=(BY_TOKEN, ANEW, ONE_QUEUE),
)


@dataclass(frozen=True)
class Queue:
    experts: Tensor  # (T, k)
    count: int
    places: int

    @classmethod
    def draw(cls, draw: kit.Draw, tokens: int, count: int, k: int, places: int) -> Queue:
        """No usual mistake gives the right places, so that nothing depends on luck."""
        while True:
            queue = cls(draw.normal(tokens, count).topk(k, -1).indices, count, places)
            places_of = [queue.right, *queue.place_slips().values()]
            told_apart = {tuple(place.flatten().tolist()) for place in places_of}
            if k == 1 or tokens == 0 or len(told_apart) == len(places_of):
                return queue

    def counted(self, assignments: list[tuple[int, int]], start: int = 0, own: bool = True) -> Tensor:
        """The places if (token, choice) queue in this order; own: each expert has a queue."""
        place = torch.zeros_like(self.experts)
        taken = [start] * self.count
        for token, choice in assignments:
            expert = int(self.experts[token, choice]) if own else 0
            place[token, choice] = taken[expert]
            taken[expert] += 1
        return place

    @property
    def in_order(self) -> list[tuple[int, int]]:
        tokens, k = self.experts.shape
        return [(token, choice) for choice in range(k) for token in range(tokens)]

    @cached_property
    def right(self) -> Tensor:
        return self.counted(self.in_order)

    def place_slips(self) -> dict[str, Tensor]:
        tokens, k = self.experts.shape
        backwards = [(tokens - 1 - token, choice) for token, choice in self.in_order]
        slips = {
            FROM_ONE: self.counted(self.in_order, start=1),
            ONE_QUEUE: self.counted(self.in_order, own=False),
            BACKWARDS: self.counted(backwards),
        }
        if k > 1:
            columns = [Queue(self.experts[:, c : c + 1], self.count, self.places).right for c in range(k)]
            slips |= {
                BY_TOKEN: self.counted(sorted(self.in_order)),
                ANEW: torch.cat(columns, 1),
                UNTURNED: self.right.T.reshape(tokens, k),
            }
        return slips

    @property
    def without_dropped(self) -> Tensor:
        """The places if only assignments that are kept count."""
        return self.right.clamp(max=self.places)

    def is_ordered(self, came: Tensor) -> bool:
        """Whether each expert's places follow one another in the order of its queue, from any first one."""
        last: dict[int, float] = {}
        for token, choice in self.in_order:
            expert, place = int(self.experts[token, choice]), float(came[token, choice])
            if place != last.get(expert, place - 1) + 1:
                return False
            last[expert] = place
        return True

    def kept(self, came: functions.Tensors) -> Tensor:
        """Judged by the places that came: a wrong place is told once."""
        return came["place"] < self.places

    def slips(self, name: str, came: functions.Tensors) -> dict[str, functions.Gives]:
        if name == "place":
            return {**self.place_slips(), DROPPED: self.without_dropped}
        return {ONE_TOO_MANY: came["place"] <= self.places, INVERTED: came["place"] >= self.places}

    def call(self, name: str) -> functions.Call:
        keep = functions.Part(
            lambda came: self.kept(came).double(), form=kit.Spec(torch.bool, tuple(self.experts.shape))
        )
        return functions.Call(
            name, ABOUT, {"experts": self.experts}, {"place": self.right, "keep": keep},
            args=[self.count, self.places], outputs=("place", "keep"), slips=self.slips,
        )  # fmt: skip


def order_line(queue: Queue, call: functions.Call, title: str, weight: float) -> kit.Line:
    """Whether each queue has the right order, whatever its first place is."""
    return passing(call, ["place"], lambda came: queue.is_ordered(came["place"]), title, weight)


def passing(
    call: functions.Call,
    names: list[str],
    passes: Callable[[functions.Tensors], bool],
    title: str,
    weight: float,
) -> kit.Line:
    """A line that is right if the results pass, else has the finding of their values."""
    values = functions.judged(call, names)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = values(observed)
        reply = functions.reply_about(observed, call)
        if finding == kit.RIGHT or reply.error is not None or reply.misfits:
            return finding
        return kit.RIGHT if passes(functions.results(observed, call)) else finding

    return kit.Line(title, judge, weight)


@kit.exercise(
    points=3, objects=("queue",), references=REFERENCES, extra=True,
    point="all first choices before second ones",
)  # fmt: skip
def queue(draw: kit.Draw) -> Iterator[kit.Case]:
    twos, threes = Queue.draw(draw, 12, 4, 2, 4), Queue.draw(draw, 8, 5, 3, 1)
    two, three = twos.call("two"), threes.call("three")
    single = Queue.draw(draw, 9, 3, 1, 2).call("single")
    wide = Queue.draw(draw, 7, 4, 2, 100).call("wide")
    yield functions.function_case(
        "tokens",
        [two, three, single, wide],
        [
            order_line(twos, two, "12 tokens, 2 of 4 experts each: the order of each queue", 2),
            functions.values_line(two, "their places", ["place"]),
            functions.values_line(two, "kept: place < places", ["keep"]),
            order_line(threes, three, "3 of 5 experts each: the order of each queue", 1.5),
            functions.values_line(three, "with one place each"),
            functions.values_line(single, "one expert each, with two places", weight=0.5),
            functions.values_line(wide, "places for all", weight=0.5),
        ],
    )
    if draw.hidden:
        others = {
            "all experts": Queue.draw(draw, 6, 3, 3, 4),
            "an expert without tokens": replace(Queue.draw(draw, 8, 3, 2, 3), count=5),
            "no tokens": Queue.draw(draw, 0, 4, 2, 3),
        }
        calls = {title: each.call(title) for title, each in others.items()}
        lines = [functions.values_line(call, title, weight=0.5, short=True) for title, call in calls.items()]
        lines[-1] = replace(lines[-1], trivial=True)
        yield functions.function_case("other sizes", list(calls.values()), lines, hidden=True)
