"""The lab's three programs that hang, repaired by the student: neighbour_sum, collect, global_mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.first_ranks.references import REFERENCE

# ---- neighbour_sum: everybody receives first


def circle_trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind != "deadlock":
        return ""
    if ".wait()" in text:  # in the line in which a rank is stuck, so its messages have begun
        return (
            "A rank sends once to each neighbour and receives once from each, so all four messages must "
            "begin before it waits."
        )
    return (
        "On a circle, some rank has to send while its neighbour receives, so post all four messages "
        "together (dist.batch_isend_irecv)."
    )


def neighbour_hint(mistakes: list[kit.Mistake]) -> str:
    signs = {mistake.sign for mistake in mistakes}
    pieces = [piece for mistake in mistakes for piece in mistake.pieces if piece.origin.counts]
    if pieces and all(piece.origin.counts[piece.rank] == 0 for piece in pieces):
        return "The sum takes three values, the rank's own among them."
    if signs == {"times"}:
        return (
            "The sum takes three values. With two ranks, the left neighbour is also the right neighbour, "
            "so it counts twice."
        )
    if "twice" in signs:
        return (
            "Two receives need two buffers, so that the second message does not overwrite the first. Add "
            "each buffer once."
        )
    if signs <= {"partial", "own", "copy"}:
        return "The sum takes three values, one from each neighbour and the rank's own."
    return (
        "Read both buffers only after wait(), because their messages may not have arrived before, and return "
        "the plain sum of the three values."
    )


def circle_case(draw: kit.Draw, on: kit.Setting, unchanged: bool = False) -> kit.Case:
    """The result is the left neighbour's + the rank's own + the right neighbour's values.

    unchanged: a line says whether the argument is.
    """
    values, n = on.numbers(draw), on.n
    sums = [values[r - 1] + values[r] + values[(r + 1) % n] for r in range(n)]
    numel = values[0].numel()
    exact = kit.Exact(
        name="result",
        members=on.ranks,
        expected=sums,
        provenance=kit.Provenance(kit.contributions(values)),
        homes=[np.arange(numel)] * n,
        language=kit.Language(numel, on.ranks, summed=n, expected="the sum of all ranks"),
        hint=neighbour_hint,
    )
    why = "Add into a new tensor, not into the given one, because it is being sent."
    sides = [
        kit.side({"tensor": tensor}, returned=["tensor"], result=kit.Spec.of(tensor)) for tensor in values
    ]
    title = f"{n} ranks, {words.counted(numel, 'element')}"
    if unchanged:  # a line of its own, so that this slip costs no values
        alone = kit.left_alone("tensor", dict(enumerate(values)), why)
        on = replace(on, more=(kit.Line("`tensor` is unchanged", alone, aspect="shape", trivial=True),))
    # every rank's values must leave it at least once
    return on.case(title, sides, exact, needed=n * values[0].nbytes)


@kit.exercise(points=1, objects=("neighbour_sum",), references=REFERENCE, hint=circle_trouble)
def neighbour_sum(draw: kit.Draw) -> Iterator[kit.Case]:
    yield circle_case(draw, kit.Setting(3, (4,), weight=2))
    yield circle_case(draw, kit.Setting(4, (6,), weight=2), unchanged=True)
    yield circle_case(draw, kit.Setting(2, (5,)))
    if draw.hidden:
        yield circle_case(draw, kit.Setting(5, (3,)))


# ---- collect: a receive from a rank that has finished


OTHER_DTYPE = re.compile(r"sends \w+(\[[\d, ]*\]), but rank \d+ receives into \w+\1\.")


LEFT = re.compile(r"waits? for rank 0, which has finished")


def collect_trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock" and LEFT.search(text.splitlines()[0]):
        return (
            "Rank 0 returned although messages for it were left, so let it receive from all ranks from 1 to "
            "n - 1, and from each as many messages as the rank sends."
        )
    if kind == "deadlock" and "finished" in text.splitlines()[0]:
        return (
            "Rank 0 expects more than the others have sent, so let each rank first send the number of its "
            "results, even if it is 0. If a message would have no elements, both ends leave it out, or "
            "neither."
        )
    if kind == "deadlock":
        return (
            "Sends and receives do not pair up. Receive each rank's messages in the order in which it "
            "sends them."
        )
    if OTHER_DTYPE.search(text):
        return (
            "The two ends have the same size, but not the same dtype. A count is an int64, whereas a buffer "
            "for results has results.dtype."
        )
    if "two ends of a message differ" in text:
        return (
            "Rank 0 cannot know how many results a rank has, so receive that number first, then make the "
            "buffer that long. A count is an int64 at both ends."
        )
    return ""


def collected(wanted: torch.Tensor, lengths: Sequence[int]) -> Callable[[kit.Observed], kit.Finding]:
    right = wanted.tolist()

    def judge(observed: kit.Observed) -> kit.Finding:
        others = [r for r, reply in enumerate(observed.values) if r and reply.result is not None]
        if others:
            return kit.wrong(
                f"rank {others[0]} returned something, but only rank 0 returns the results, and all others "
                "return None.",
                cause="others",
            )
        result = observed.values[0].result
        got, shape = (result.get(key) if isinstance(result, dict) else None for key in ("tensor", "shape"))
        if not (isinstance(got, list) and isinstance(shape, list)):
            return kit.wrong(
                kit.Sentence(
                    f"rank 0 returned {kind_of(result)}, but a tensor with all {words.number(len(right))} "
                    "results is expected.",
                    "rank 0 did not return a tensor with all results.",
                ),
                "Join the parts with torch.cat and return them on rank 0.",
                cause="kind",
            )
        if shape != [len(got)]:
            dimensions = words.counted(len(shape), "dimension")
            expected = "but a tensor with one dimension is expected."
            said = kit.Sentence(
                f"rank 0 returned a tensor with {dimensions}, {expected}",
                f"rank 0 returned another tensor, {expected}",
            )
            return kit.wrong(said, "Join the parts with torch.cat.", cause="dimensions")
        return kit.RIGHT if got == right else compared(got, right, lengths)

    return judge


OWN_FIRST = "Rank 0's own results come first in the tensor."


def kind_of(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, dict) and "other" in value:
        return f"a {value['other']}"
    return "a list" if isinstance(value, list) else repr(value)[:40]


def compared(got: list, right: list, lengths: Sequence[int]) -> kit.Finding:
    if got == right[lengths[0] :] + right[: lengths[0]]:
        return kit.wrong("rank 0's own results come last.", OWN_FIRST, cause="order")
    if sorted(got, key=str) == sorted(right, key=str):
        return kit.wrong(
            "rank 0 has all results, but not in the order of the ranks.",
            "Receive from rank 1 first, then from rank 2, and so on. A receive from any source takes "
            "whichever message arrives first.",
            cause="order",
        )
    lost = [value for value in right if value not in got]
    said = f"rank 0 returned {words.counted(len(got), 'number')}; {len(right)} were computed"
    said += f", and {len(lost)} of them {words.verb(lost, 'is', 'are')} missing." if lost else "."
    amount = "as many" if len(got) == len(right) else "more" if len(got) > len(right) else "fewer"
    general = f"rank 0 returned {amount} numbers {'as' if amount == 'as many' else 'than'} were computed"
    general += ", and some of these are missing." if lost else "."
    return kit.wrong(kit.Sentence(said, general), collect_hint(got, right, lost, lengths), cause="missing")


def collect_hint(got: list, right: list, lost: list, lengths: Sequence[int]) -> str:
    if got == right[lengths[0] :]:
        return OWN_FIRST
    if len(got) > len(right):
        return "There are more numbers than results. Usually a buffer was longer than its message."
    if len(got) == len(right):
        return "Some results are missing from the returned tensor, although it is long enough."
    return "Some ranks have more results than others, so the count must come from the rank that sends."


def collect_case(
    draw: kit.Draw, lengths: Sequence[int], title: str, dtype: torch.dtype = torch.float32, **line: Any
) -> kit.Case:
    everything = draw.distinct(sum(lengths)).to(dtype)
    everything[-1] = 0  # a result like any other, and no sign of an end
    sides = [kit.side({"results": part}, plain=True) for part in everything.split(list(lengths))]
    # built-ins are welcome here: the exercise is about who expects what
    return kit.Case(title, sides, [kit.Line(title, collected(everything, lengths), **line)])


@kit.exercise(points=1, objects=("collect",), references=REFERENCE, hint=collect_trouble)
def collect(draw: kit.Draw) -> Iterator[kit.Case]:
    yield collect_case(draw, (3, 3, 2), "rank 2 has fewer results", weight=2)
    yield collect_case(draw, (2, 4, 3), "rank 0 has the fewest", weight=2)
    yield collect_case(draw, (3, 0, 2), "rank 1 has none", weight=2, aspect="shape")
    yield collect_case(draw, (3, 3), "as many on both, int64", torch.int64, trivial=True)
    if draw.hidden:
        lengths = [draw.integer(1, 6) for _ in range(4)]
        yield collect_case(draw, lengths, "4 ranks", aspect="shape")
        yield collect_case(draw, (0, 3), "rank 0 has none", aspect="shape")


# ---- global_mean: a rank skips a collective


def mean_trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return (
            "A rank without values must still take part, so let it contribute a sum of 0 and a count of 0 "
            "to the same all_reduce calls as the others."
        )
    return ""


MEAN_OF_MEANS = (
    "The result is the mean of the ranks' means. Ranks with more values count more, so sum the values and "
    "the counts, then divide once."
)


def mean_slips(values: Sequence[torch.Tensor]) -> dict[float, str]:
    """The values that usual mistakes give."""
    everything = torch.cat(list(values))
    means = [float(tensor.mean()) for tensor in values if len(tensor)]
    total = float(everything.sum())
    return {
        sum(means) / len(means): MEAN_OF_MEANS,
        sum(means) / len(values): MEAN_OF_MEANS,
        total
        / len(values): "The sum was divided by the number of ranks. Instead, divide by the number of values.",
        total: "The sum was not divided by the number of all ranks' values.",
        0.0: "A rank without values also needs the mean of the other ranks' values. It must take part and "
        "return that mean.",
    }


def mean_judge(tensors: Sequence[torch.Tensor]) -> Callable[[kit.Observed], kit.Finding]:
    values = [tensor.to(torch.float64) for tensor in tensors]
    everything = torch.cat(values)
    right, total, count = float(everything.mean()), float(everything.sum()), everything.numel()
    slips = mean_slips(values)

    def near(a: float, b: float) -> bool:
        return abs(a - b) <= 1e-5 * abs(b)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, own in enumerate(values):
            got = float(observed.tensors[rank]["result"])
            if near(got, right):
                continue
            if got != got:
                return kit.wrong(
                    f"rank {rank} has NaN.",
                    "The mean of no values is 0/0, so a rank without values must add a sum of 0 and a "
                    "count of 0.",
                    cause="nan",
                )
            slip = next((said for value, said in slips.items() if near(got, value)), "")
            if len(own) and near(got, float(own.mean())):
                slip = "The result is the rank's own mean. Add up the sums and the counts of all ranks."
            if len(own) > 1 and near(got, total / len(own)):
                slip = "The count is the rank's own, so sum the counts of all ranks, too."
            if len(own) and near(got, float(own.sum()) / count):
                slip = "The sum is the rank's own, so sum it over all ranks, too."
            shown, wanted = words.apart(got, right)
            said = f"the mean on rank {rank} is {shown}, not {wanted}."
            sentence = kit.Sentence(said, f"the mean on rank {rank} is wrong.")
            return kit.wrong(sentence, slip, cause=slip or "mean")
        return kit.RIGHT

    return judge


def mean_case(draw: kit.Draw, lengths: Sequence[int], title: str, **line: Any) -> kit.Case:
    values = [draw.normal(length) * 3 + 10 * (rank + 1) for rank, length in enumerate(lengths)]
    spec = kit.Spec(torch.float32, ())
    sides = [kit.side({"values": tensor}, returned=["values"], result=spec) for tensor in values]
    judge = kit.both(mean_judge(values), kit.left_alone("values", dict(enumerate(values))))
    return kit.Case(title, sides, [kit.Line(title, judge, **line)])


@kit.exercise(points=1, objects=("global_mean",), references=REFERENCE, hint=mean_trouble)
def global_mean(draw: kit.Draw) -> Iterator[kit.Case]:
    yield mean_case(draw, (2, 0, 3), "rank 1 has no values", weight=2)
    yield mean_case(draw, (0, 1, 5), "rank 0 has no values", weight=2)
    yield mean_case(draw, (1, 4), "1 and 4 values", weight=2)
    yield mean_case(draw, (3,), "1 rank", trivial=True, aspect="shape")
    if draw.hidden:
        yield mean_case(draw, (0, 0, 4, 0), "one rank of four has values", aspect="shape")
