"""flatten_and_shard: parameters of any shape, cut into n flat parts of one size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from course_lib.checks import kit, words
from course_lib.checks.notebooks.zero.references import REFERENCE
from course_lib.checks.rank.notebooks.zero.listing import Kind, ListingCall, ListingInstructions, Numbers

RECIPE = "course_lib.checks.rank.notebooks.zero.listing:call_with_tensors"
Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Cut:
    """One call: tensors of these shapes, whose elements count on from 1, for n ranks."""

    title: str
    shapes: Shapes
    n: int
    weight: float = 1.0
    aspect: str = "value"
    dtype: str = "float32"
    transposed: bool = False
    short: bool = False

    @property
    def total(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Elements of a shard."""
        return -(-self.total // self.n)

    def call(self) -> ListingCall:
        parameters, first = [], 1
        for shape in self.shapes:
            turned = self.transposed and len(shape) == 2
            parameters.append(Numbers(list(shape), first, self.dtype, turned))
            first += math.prod(shape)
        return ListingCall(parameters, [self.n])

    def expected(self) -> list[list[float]]:
        row = [float(k) for k in range(1, self.total + 1)]
        row += [0.0] * (self.n * self.size - self.total)
        return [row[k * self.size : (k + 1) * self.size] for k in range(self.n)]


@kit.exercise(points=6, objects=("flatten_and_shard",), references=REFERENCE)
def flatten_and_shard(draw: kit.Draw) -> Iterator[kit.Case]:
    cuts = [
        Cut("14 elements, 4 ranks", [(2, 3), (4,), (2, 2)], 4, weight=2),
        Cut("12 elements, 3 ranks", [(3, 2), (6,)], 3),
        Cut("3 elements, 5 ranks", [(3,)], 5, aspect="shape"),
        Cut("4 elements, 3 ranks", [(2,), (2,)], 3, aspect="shape"),
        Cut("a matrix stored by columns", [(3, 4), (2,)], 2, aspect="shape", transposed=True),
        Cut("bfloat16", [(2, 3), (5,)], 2, 0.5, "shape", dtype="bfloat16", short=True),
        Cut("float64", [(7,)], 2, 0.5, "shape", dtype="float64", short=True),
        Cut("a single number", [(), (4,)], 3, 0.5, "shape", short=True),
        Cut("one rank", [(2, 2), (3,)], 1, 0.5, "shape", short=True),
    ]
    if draw.hidden:
        shapes = [(draw.integer(1, 6), draw.integer(1, 6)) for _ in range(draw.integer(2, 6))]
        cuts += [
            Cut("other shapes", shapes, draw.integer(2, 9)),
            Cut("an empty parameter", [(2, 2), (0, 3), (5,)], 4, aspect="shape"),
            Cut("8 ranks", [(draw.integer(1, 90),), (2, 2, 2)], 8),
        ]
    lines = [
        kit.Line(cut.title, judge(cut, k), cut.weight, cut.aspect, short=cut.short)
        for k, cut in enumerate(cuts)
    ]
    sides = [kit.RankSide({}, ListingInstructions([cut.call() for cut in cuts]), {})]
    yield kit.Case("shards", sides, lines, recipe=RECIPE, alone=True)


def judge(cut: Cut, index: int) -> Callable[[kit.Observed], kit.Finding]:
    def judged(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index)
        if answer.error is not None:
            return failed(*answer.error)
        shards = parts(answer.value)
        if shards is None:
            said = f"a list of {words.counted(cut.n, 'tensor')} is expected."
            return kit.wrong(said, no_list(answer.value), cause="no list")
        return (
            of_one_size(cut, shards)
            or right_elements(cut, shards)
            or right_kind(cut, answer.kinds)
            or (a_row_of_its_own(answer.kinds) if index == 0 else None)
            or (still_trained(answer.untrained) if index == 0 else None)
            or left_alone(cut, answer.after)
            or kit.RIGHT
        )

    return judged


def no_list(value: object) -> str:
    """The usual cause of this value in place of a list."""
    if isinstance(value, dict) and len(value.get("shape", ())) == 2:
        return "One matrix came back. list(matrix) is the list of its rows."
    return "Is there a `return` at its end?" if value is None else ""


def failed(error: str = "", text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("flatten_and_shard", place)
    said = kit.error_sentence("flatten_and_shard", error, text)
    return kit.wrong(said, kit.at(place), cause=f"{error} {place}")


def parts(value: object) -> list[list] | None:
    """The elements of each tensor of a list that came back; None for anything else.

    A tensor's own dimensions and its history do not come back here: `a_row_of_its_own` looks at them.
    """
    if not isinstance(value, list):
        return None
    shards = [item.get("tensor") if isinstance(item, dict) else None for item in value]
    return [shard for shard in shards if isinstance(shard, list)] if None not in shards else None


def of_one_size(cut: Cut, shards: list[list]) -> kit.Finding | None:
    sizes = [len(shard) for shard in shards]
    if sizes == [cut.size] * cut.n:
        return None
    if len(sizes) != cut.n:
        return kit.wrong(
            kit.Sentence(
                f"{words.counted(len(sizes), 'shard')} came back; {cut.n} ranks need {cut.n}.",
                "another number of shards came back than there are ranks.",
            ),
            "split() takes the size of a shard, not their number, and chunk() can return fewer than its "
            "argument. Give every rank ceil(P / n) elements.",
            cause="number of shards",
        )
    said = kit.Sentence(
        f"the shards have {words.listing(sizes)} elements; {cut.total} elements over "
        f"{words.counted(cut.n, 'rank')} are {cut.size} for each.",
        "the shards do not have ceil(P / n) elements each.",
    )
    if len(cut.shapes) > 1 and sum(sizes) == cut.total and sizes != as_even(cut) and dealt_whole(cut, shards):
        hint = (
            "Whole tensors were dealt out. Lay all elements in one row and cut that, because a shard "
            "can end inside a tensor."
        )
    elif len(set(sizes)) > 1:
        hint = "A collective needs equal shards, so fill up with zeros until n divides the length."
    elif sizes[0] * cut.n < cut.total:
        hint = (
            "The size was rounded down, so the last elements would belong to no rank. Round up, "
            "and fill with zeros."
        )
    elif sizes[0] == sum(-(-math.prod(shape) // cut.n) for shape in cut.shapes):
        hint = "Each tensor was filled up separately. Put all tensors in a row first, then fill up once."
    else:
        hint = (
            "There are more zeros than needed. Fill up to the smallest multiple of n that holds all elements."
        )
    return kit.wrong(said, hint, cause=f"size {hint}")


def right_elements(cut: Cut, shards: list[list]) -> kit.Finding | None:
    expected = cut.expected()
    for k, (shard, want) in enumerate(zip(shards, expected, strict=True)):
        if shard != want:
            where = next(i for i in range(cut.size) if shard[i] != want[i])
            said = kit.Sentence(
                f"shard {k} is {shard}; {[int(x) for x in want]} is expected.",
                f"shard {k} does not hold the right elements.",
            )
            return kit.wrong(
                said, why(cut, shards, k * cut.size + where), cause=why(cut, shards, 0) or "elements"
            )
    return None


def why(cut: Cut, shards: list[list], place: int) -> str:
    """The mistake that gives these shards; place: the first wrong element in the row of all shards."""
    row = [x for shard in shards for x in shard]
    whole = [x for shard in cut.expected() for x in shard]
    if place >= cut.total:
        return "Fill the last shard with zeros, because torch.empty keeps the old content of its memory."
    if row == [whole[i] for k in range(cut.n) for i in range(k, len(whole), cut.n)]:
        return "Every n-th element was taken, but a shard is a run of adjacent elements."
    if row == [x for shard in each_by_itself(cut) for x in shard]:
        return "Each tensor was cut separately. Put all elements in one row first, and cut that into n parts."
    if cut.transposed and sorted(row) == sorted(whole):
        return "The elements are ordered row by row, as in the tensor, not as in its memory. Use reshape(-1)."
    pad = len(whole) - cut.total
    if pad and row == [0.0] * pad + whole[: cut.total]:
        return "The zeros are in front, but they belong behind the last element."
    if sorted(row) == sorted(whole):
        return "All elements are present, but in another order. Put the tensors in a row, in the order given."
    return ""


def tensors_of(cut: Cut) -> list[list[float]]:
    """The elements of each tensor, in its own order."""
    tensors, first = [], 1
    for shape in cut.shapes:
        tensors.append([float(k) for k in range(first, first + math.prod(shape))])
        first += math.prod(shape)
    return tensors


def as_even(cut: Cut) -> list[int]:
    """The sizes if the row is cut without zeros, as by tensor_split."""
    short, longer = divmod(cut.total, cut.n)
    return [short + (k < longer) for k in range(cut.n)]


def dealt_whole(cut: Cut, shards: list[list]) -> bool:
    """Each tensor's elements lie in one shard, all of them."""
    held = [set(shard) for shard in shards]
    return all(any(own.issuperset(elements) for own in held) for elements in tensors_of(cut))


def each_by_itself(cut: Cut) -> list[list[float]]:
    """The shards that come of cutting every tensor by itself, filled up with zeros."""
    shards: list[list[float]] = [[] for _ in range(cut.n)]
    for elements in tensors_of(cut):
        size = -(-len(elements) // cut.n)
        row = elements + [0.0] * (cut.n * size - len(elements))
        for k, shard in enumerate(shards):
            shard += row[k * size : (k + 1) * size]
    return shards


def right_kind(cut: Cut, kinds: Sequence[Kind]) -> kit.Finding | None:
    for kind in kinds:
        if kind.dtype != f"torch.{cut.dtype}":
            return kit.wrong(
                kit.Sentence(
                    f"the shards are {kind.dtype}, but the parameters are torch.{cut.dtype}.",
                    "the shards have another dtype than the parameters.",
                ),
                (
                    "A shard must have the dtype and device of the parameters, so use new_zeros, which "
                    "keeps both."
                ),
                cause="dtype",
            )
    return None


def a_row_of_its_own(kinds: Sequence[Kind]) -> kit.Finding | None:
    """One dimension, and no history. Looked at in the first case alone: it is to cost no more than that."""
    for kind in kinds:
        if kind.dimensions != 1:
            return kit.wrong(
                "the shards are not flat, but each must have one dimension.",
                "Collectives and optimizers take them as a row, so call reshape(-1).",
                cause="dimensions",
            )
        if kind.history:
            return kit.wrong(
                "the shards have a gradient history, so they keep the graph and the parameters alive.",
                "Cut up param.detach(), or work under torch.no_grad(), because the optimizer changes "
                "a shard without autograd.",
                cause="history",
            )
    return None


def still_trained(untrained: int) -> kit.Finding | None:
    """The parameters can still be trained. Looked at in the first case alone, as `a_row_of_its_own` is."""
    if not untrained:
        return None
    return kit.wrong(
        "after the call, the parameters no longer require a gradient, so backward would not reach them.",
        "detach_() and requires_grad_(False) change the parameter itself. Use detach(), which returns "
        "another tensor.",
        cause="untrained",
    )


def left_alone(cut: Cut, after: object) -> kit.Finding | None:
    row: list = []
    for item in after if isinstance(after, list) else []:
        row += item.get("tensor", []) if isinstance(item, dict) else [item]
    if row == [float(k) for k in range(1, cut.total + 1)]:
        return None
    return kit.wrong(
        "the parameters themselves were changed.", "Copy them into a new buffer.", cause="changed"
    )
