"""exchange: rows to other ranks, as many as each pair of them agrees on, and their gradients back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import members, sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.experts.references import REFERENCES
from course_lib.ledger.operation import Operation

Counts = Sequence[Sequence[int]]  # [r][s]: rows that go from rank r to rank s
FORWARD, BACKWARD = "forward", "backward"
IDLE = "3 ranks, one without rows"
WIDTH = 6

ORDER = (
    "The parts arrived in another order. receive[0] rows from rank 0 come first, then receive[1] rows "
    "from rank 1, whichever arrived first."
)
OWN_PART = "The rank's own part is missing. No message brings it, so copy it to its place."
OWN_ROWS = "The rank has its own rows again, and no rows of another rank."
PARTS = (
    "The result has sum(receive) rows: receive[0] rows from rank 0, then receive[1] rows from rank 1, each "
    "part in the order in which it was sent."
)
NO_GRAPH = (
    "Backward did not reach the rows, because an all-to-all has no backward of its own. Write a "
    "torch.autograd.Function whose backward is the reverse exchange, and call it by its `apply`."
)
BY_APPLY = "Call your Function by its `apply`, as in Exchange.apply(rows, send, receive, group)."
BACK_ORDER = (
    "The gradients are in another order. Gradients that come from rank i belong to the rows that went "
    "to rank i."
)
OWN_BACK = (
    "The gradients of the rank's own part are missing, because no message brings them in backward either."
)
NO_GRADIENT = (
    "The gradients are zeros. Those of the rows that came have to go back to where the rows came from."
)
MEAN = "The gradients were divided by the number of ranks. A row went to one rank, so nothing is averaged."
SUM = "The gradients are too large by the number of ranks. A row went to one rank, so nothing is summed."
WAY_BACK = (
    "The gradients come the opposite way. Backward, receive[i] rows go to rank i, and send[i] rows come from "
    "it."
)
GATHERED = (
    "Every rank got all rows, even the rows for other ranks. An all-to-all brings a rank only the "
    "rows that are for it."
)
PADDED = "Each part can have its own size, so rows of padding do not have to travel."
SPLITS = (
    "Input splits say how many rows go to each rank, and sum to the rows of the input. Output splits say how "
    "many rows come from each rank, and sum to the rows of the output. In backward the two lists change "
    "places."
)
NO_SPLITS = (
    "Without split sizes every rank gets an equal part of the rows. Hand both lists to the call, the "
    "output's list first."
)
LIKE_ROWS = (
    "The received rows have the shape of the rows that are sent, so allocate "
    "rows.new_empty((sum(receive), *rows.shape[1:]))."
)
NO_LISTS = (
    "On gloo, the tensors in a list must all have one size, and some versions refuse lists. "
    "dist.all_to_all_single cuts one tensor by its split sizes."
)
EVERYWHERE = (
    "Do you pass the group everywhere? dist.get_world_size(group), dist.get_rank(group), group=group."
)
TAKES_PART = (
    "A rank without rows of its own must also call the exchange, because rows can come to it, and in "
    "backward it sends their gradients."
)
POINT = "rows that travel only to the rank they are for, and gradients that come back the same way"


@dataclass(frozen=True)
class Rows:
    """Rows of each rank, the gradients of what comes to it, and how many go from each to each."""

    counts: Counts
    rows: Sequence[Tensor]
    gradient: Sequence[Tensor]

    @classmethod
    def draw(cls, draw: kit.Draw, counts: Counts, dtype: torch.dtype = torch.float64) -> Rows:
        def numbers(sizes: Sequence[int]) -> list[Tensor]:
            return list(draw.distinct(sum(sizes), WIDTH).to(dtype).split(list(sizes)))

        goes, comes = [sum(row) for row in counts], [sum(column) for column in zip(*counts, strict=True)]
        return cls(counts, numbers(goes), numbers(comes))

    @property
    def n(self) -> int:
        return len(self.counts)

    def came(self, k: int) -> list[Tensor]:
        """The parts that come to rank k, by source."""
        return [self.rows[r].split(list(self.counts[r]))[k] for r in range(self.n)]

    def back(self, k: int) -> list[Tensor]:
        """The gradients of rank k's parts, by destination."""
        return [self.gradient[s].split([row[s] for row in self.counts])[k] for s in range(self.n)]

    def sent(self, way: str) -> list[float]:
        """Bytes that each rank has to send."""
        nbytes = WIDTH * self.rows[0].dtype.itemsize
        counts = self.counts if way == FORWARD else [*zip(*self.counts, strict=True)]
        return [nbytes * float(sum(counts[k]) - counts[k][k]) for k in range(self.n)]

    def run(self, name: str, way: str = BACKWARD) -> LayerRun:
        """One call; way: how far it goes."""
        wanted = [{"y": torch.cat(self.came(k)), "after.rows": self.rows[k]} for k in range(self.n)]
        if way == BACKWARD:
            for k, of_rank in enumerate(wanted):
                of_rank |= {"grad.rows": torch.cat(self.back(k)), "after.gradient": self.gradient[k]}
        columns = zip(*self.counts, strict=True)
        each = [
            {"send": list(row), "receive": list(column)}
            for row, column in zip(self.counts, columns, strict=True)
        ]
        return LayerRun(
            name, [{"rows": tensor} for tensor in self.rows], wanted,
            self.gradient if way == BACKWARD else None, each=each,
        )  # fmt: skip


# ---- values


def reordered(
    parts: Callable[[int], list[Tensor]], n: int, name: str, order: str, own: str
) -> Iterator[kit.Slip]:
    """Parts in another order, or a rank's own part left out."""

    def moved(k: int, places: Sequence[int]) -> dict[str, Tensor]:
        return {name: torch.cat([parts(k)[place] for place in places])}

    def without_own(k: int) -> dict[str, Tensor]:
        return {name: torch.cat([part * (place != k) for place, part in enumerate(parts(k))])}

    for places in [*permutations(range(n))][1:]:
        yield kit.Slip(order, partial(moved, places=places))
    yield kit.Slip(own, without_own)


def values(rows: Rows, run: LayerRun, title: str, way: str, weight: float, short: bool = False) -> kit.Line:
    """The rows that came, or their gradients; then, that the arguments are as they were."""
    n = rows.n
    if way == FORWARD:
        slips = [
            *reordered(rows.came, n, "y", ORDER, OWN_PART),
            kit.Slip(OWN_ROWS, lambda k: {"y": rows.rows[k]}),
        ]
    else:
        slips = [
            *reordered(rows.back, n, "grad.rows", BACK_ORDER, OWN_BACK),
            kit.Slip(NO_GRADIENT, lambda k: {"grad.rows": torch.zeros_like(rows.rows[k])}),
            kit.Slip(MEAN, lambda k: {"grad.rows": torch.cat(rows.back(k)) / n}),
            kit.Slip(SUM, lambda k: {"grad.rows": torch.cat(rows.back(k)) * n}),
        ]
    name, otherwise = ("y", PARTS) if way == FORWARD else ("grad.rows", WAY_BACK)
    line = values_line(
        run, f"{title}: {way}", names=[name], slips=slips, misfit=misfit, otherwise=otherwise, weight=weight,
        short=short,
    )  # fmt: skip
    after = {"after.rows": "rows"} if way == FORWARD else {"after.gradient": "the gradient that came"}
    return replace(line, judge=kit.both(line.judge, unchanged(run, after)))


def misfit(name: str, came: str, k: int) -> str:
    """The usual cause of a tensor of another shape, or of none."""
    if name == "grad.rows":
        return NO_GRAPH if came == "None" else ""
    if came == "None":
        return ""
    return f"{PARTS} {BY_APPLY}" if came[:1].isupper() else PARTS  # an object of the student's own class


def unchanged(run: LayerRun, names: dict[str, str]) -> Callable[[kit.Observed], kit.Finding]:
    """The tensors hold what they held, by name with words for each."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for k, rank in enumerate(members(observed)):
            for name, called in names.items():
                if not torch.equal(observed.tensors[rank][f"{run.name}.{name}"], run.wanted[k][name]):
                    says = "Other code may also hold it, so write into your own tensor."
                    return kit.wrong(f"on rank {rank} {called} was changed.", says, cause=f"{name} changed")
        return kit.RIGHT

    return judge


# ---- bytes


def to_all(done: Sequence[Operation], whole: float) -> bool:
    """Whether so many bytes of rows went to every rank alike; numbers of rows do not count.

    An object that is gathered travels in bytes, and there may be rows in it.
    """
    alike = [
        o
        for o in done
        if o.op in ("all_gather", "all_reduce", "broadcast") and (o.dtype == "uint8" or "int" not in o.dtype)
    ]
    return sum(operation.nbytes for operation in alike) >= whole


def traffic(rows: Rows, run: LayerRun, way: str, weight: float) -> kit.Line:
    """Bytes of one direction, to the byte: the rows for other ranks."""
    whole = sum(tensor.nbytes for tensor in (rows.rows if way == FORWARD else rows.gradient))

    def hint(ratio: float, done: list[Operation]) -> str:
        if to_all(done, whole):
            return GATHERED
        return PADDED if ratio > 1 else ""

    line = sent_line(run, way, rows.sent(way), hint=hint, weight=weight, tells_the_point=True)
    return replace(gathered_misses_the_point(line), part=way)


def gathered_misses_the_point(line: kit.Line) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        return replace(without_numbers(finding), misses_point=GATHERED in finding.sentences)

    return replace(line, judge=judge)


def without_numbers(finding: kit.Finding) -> kit.Finding:
    """The line keeps its own title: its bytes change with the inputs, and a notebook's output must not."""
    return replace(finding, title="")


# ---- errors


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if kind == "deadlock":
        return TAKES_PART if case.title == IDLE and "rank 1, which has finished" in text else ""
    if case.title == IDLE and case.lines[0].title.endswith(BACKWARD) and "which expects 0 rows" in text:
        return TAKES_PART  # rank 1 was not in forward, so its backward met the other ranks' forward
    return of_splits(case, text)


def of_splits(case: kit.Case, text: str) -> str:
    """The usual cause of an error in an all-to-all."""
    if case.groups and ("has a split size for each rank" in text or "numbers, and the group has" in text):
        return EVERYWHERE
    if "save_for_backward can only save" in text:
        return "save_for_backward keeps tensors. Lists and the group are kept on ctx itself: ctx.send = send."
    if "rows of the two ends differ in size" in text:
        return LIKE_ROWS
    if re.search(r"1/\d+ of \d+ row", text):
        return NO_SPLITS
    if "ends of an all-to-all differ" in text or "plit size" in text or "doesn't match total dim 0" in text:
        return SPLITS
    if re.search("(?i)all_?to_?all", text) and re.search("support|invalid tensor size", text):
        return NO_LISTS
    if "returned an invalid gradient" in text or "number of gradients" in text:
        return (
            "backward returns a gradient of the shape of `rows`, and None for each other argument of "
            "forward. The gradient of a row is on the rank that got the row, so exchange the gradients as "
            "well."
        )
    if "not contiguous" in text or "must be contiguous" in text:
        return "A message must be one piece of memory, so call contiguous() before it is sent."
    return ""


# ---- cases


def drawn_counts(draw: kit.Draw, n: int, popular: int) -> Counts:
    """From 1 to 3 rows from each rank to each, and 4 more to a popular one; no rank sends as many as come."""
    counts = [[draw.integer(1, 4) + 4 * (s == popular) for s in range(n)] for _ in range(n)]
    counts[popular][popular] = 2
    return counts


@kit.exercise(points=9, objects=("exchange",), references=REFERENCES, hint=trouble, point=POINT)
def exchange(draw: kit.Draw) -> Iterator[kit.Case]:
    popular = Rows.draw(draw, drawn_counts(draw, 4, 2))
    yield from both_ways(popular, "4 ranks", 1.5, proves=True)
    pair = Rows.draw(draw, [[2, draw.integer(3, 5)], [1, 3]])
    # The default is float32 here and the rows are float64, so a new tensor needs the dtype of the rows.
    yield from both_ways(pair, "group {1, 3}", 0.5, members=(1, 3), world_size=4, dtype="float32")
    if draw.hidden:
        first = Rows.draw(draw, [[3, 0, 0], [4, 0, 0], [2, 0, 0]])
        yield from both_ways(first, "all rows to the first rank", 0.5)
        floats = Rows.draw(draw, drawn_counts(draw, 3, 0), torch.float32)
        yield from both_ways(floats, "float32, 3 ranks", 0.5)
        for case in both_ways(Rows.draw(draw, [[4]]), "1 rank", 0.5):
            yield replace(case, lines=[replace(line, trivial=True) for line in case.lines])
    yield from both_ways(Rows.draw(draw, [[1, 2, 3], [0, 0, 0], [2, 4, 0]]), IDLE, 0.75)


def both_ways(rows: Rows, title: str, weight: float, proves: bool = False, **more: Any) -> Iterator[kit.Case]:
    """A run of forward alone, then one with its backward: an error in that costs forward nothing.

    proves: whether bytes are judged as well, and these runs alone show the point.
    """
    for way in (FORWARD, BACKWARD):
        run = rows.run(way, way)
        lines = [values(rows, run, title, way, weight, short=not proves)]
        if proves:
            lines.append(traffic(rows, run, way, 1))
        yield runs.layer_case(title, [run], lines, proves=way if proves else "", **more)
