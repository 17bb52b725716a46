"""expert_parallel_moe: tokens travel to the ranks of their experts, and results travel back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import differs, members, operations, sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.experts.parallel_whole import (
    MATRICES,
    OF_EXPERTS,
    OF_TOKENS,
    UNORDERED,
    Mixture,
)
from course_lib.checks.notebooks.experts.references import BUT_EXCHANGE
from course_lib.checks.notebooks.experts.travel import (
    BACKWARD,
    FORWARD,
    SPLITS,
    of_splits,
    to_all,
    unchanged,
    without_numbers,
)
from course_lib.ledger.operation import Operation

IDLE = "3 ranks, one without tokens"
FIRST = "2 ranks, all rows to the first"
INTEGER = 8  # bytes of a count
HELD = 3  # experts of a rank, at most, in the cases below

FORWARD_FIRST = "The result of forward is not right yet, so look there first."
TOKENS_FIRST = (
    "Take a case of few tokens, and follow one row to the rank of its expert, through the expert, "
    "back, and into the row of its token."
)
GRADIENTS = (
    "Gradients take the same ways as their rows, in the opposite direction, so check the backward of "
    "your exchange first."
)
NO_GRAPH = (
    "Backward did not reach the tokens, because rows were detached, or they went through an exchange "
    "without a backward, since an all-to-all has no backward of its own. Both exchanges of rows need "
    "one: a torch.autograd.Function whose backward is the reverse exchange."
)
NO_WEIGHTS = "Backward did not reach the weights. Multiply by `weights` itself, without detach."
NO_EXPERTS = (
    "Backward did not reach the experts. The results return by an exchange, which needs a backward as well, "
    "and nothing on their way may be detached."
)
ZEROS = "Experts without rows have a gradient of zeros, not None, so compute with them as well."
SHAPE = "The result has the shape and the dtype of x, one row for each token."
GATHERED = (
    "Every rank got every token. A row has to travel only to the rank of its expert, and its result back."
)
EXPERTS_TRAVEL = "The experts' matrices travelled. They stay where they are, and the tokens come to them."
MORE = (
    "Rows for experts of other ranks, and their results, take fewer bytes. Send as many rows as each rank's "
    "experts get, without padding."
)
TAKES_PART = (
    "A rank without tokens also holds experts, and rows of other ranks come to them, so it calls "
    "every exchange."
)
NO_ROWS = {
    FORWARD: "A rank whose experts get no rows calls every exchange all the same.",
    BACKWARD: (
        "A rank whose experts get no rows takes part in backward all the same. Autograd calls the backward "
        "of its exchanges if their inputs need a gradient, also where they are empty."
    ),
}
STAY = "If these are gradients of the weights, multiply on the token's rank, so that they stay there."
GLOBAL = (
    "Experts are counted over all ranks. The first one of rank r of the group is number r E / n, so subtract "
    "that, or count the rows of each."
)
COUNTS = "Each rank has a count for every one of the E experts, even if it is 0. Use bincount(minlength=E)."
EMPTY_PARTS = (
    "A rank whose experts get no rows has nothing to join. Let an empty part go through its expert as all "
    "others do."
)
COMBINE = "They also do on the way back, so the results need exchange(out, receive, send, group)."
WAY_BACK = (
    "The list `send` has to sum to the rows that are handed over. On the way to the experts send[i] rows go "
    "to rank i, and on the way back receive[i] results do."
)
POINT = "rows that go to the ranks of their experts and nowhere else"


# ---- values


def forward_line(mixture: Mixture, run: LayerRun, title: str, weight: float, short: bool) -> kit.Line:
    line = values_line(
        run, f"{title}: {FORWARD}", names=["y"], slips=mixture.forward_slips(), misfit=shape,
        otherwise=TOKENS_FIRST, weight=weight, short=short,
    )  # fmt: skip

    def judge(observed: kit.Observed) -> kit.Finding:
        """As many rows travel as should, but rows in the order of the tokens go to other experts' ranks."""
        finding = line.judge(observed)
        return replace(finding, misses_point=UNORDERED in finding.sentences)

    return replace(line, judge=kit.both(judge, unchanged(run, {"after.x": "x"})))


def shape(name: str, came: str, k: int) -> str:
    return "" if came == "None" else SHAPE


def backward_line(
    mixture: Mixture, run: LayerRun, title: str, names: Sequence[str], weight: float, short: bool
) -> kit.Line:
    """The gradients of these names; they are looked at once the result is right."""
    slips = mixture.backward_slips()

    def cause(name: str, came: str, k: int) -> str:
        if came != "None":
            return ""
        if name in OF_EXPERTS:
            return NO_EXPERTS if sum(row[k] for row in mixture.between) else ZEROS
        return NO_GRAPH if name == "grad.x" else NO_WEIGHTS

    def judge(observed: kit.Observed) -> kit.Finding:
        if differs(run, observed, ["y"], (), None, "") is not None:
            return kit.wrong(FORWARD_FIRST, cause=kit.ANY)
        return differs(run, observed, names, slips, cause, GRADIENTS) or kit.RIGHT

    return kit.Line(title, judge, weight, short=short)


# ---- bytes


def traffic(mixture: Mixture, run: LayerRun, way: str, weight: float) -> kit.Line:
    """Bytes of one direction: rows, and room for what tells of them, in any form.

    That is an all-gather of all counts, and two numbers a row, such as its expert and its weight.
    """
    n, count, width = mixture.n, len(mixture.w1), mixture.x.shape[1]
    rows = [mixture.leaving(k) for k in range(n)]
    least = [float(many * width * mixture.x.itemsize) for many in rows]
    counts = INTEGER * count * (n - 1) if way == FORWARD else 0
    most = [nbytes + counts + 2 * INTEGER * many for nbytes, many in zip(least, rows, strict=True)]
    tokens = mixture.x.nbytes
    experts = sum(getattr(mixture, name).nbytes for name in MATRICES)

    def hint(ratio: float, done: list[Operation]) -> str:
        if to_all(done, experts):
            return EXPERTS_TRAVEL
        if to_all(done, tokens):
            return GATHERED
        return MORE if ratio > 1 else ""

    line = sent_line(run, way, least, most=most, hint=hint, weight=weight, tells_the_point=True)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        if not finding.ok:
            missed = {GATHERED, EXPERTS_TRAVEL} & {*finding.sentences}
            return replace(finding, misses_point=bool(missed))
        said = [remark(run, observed, k, least[k]) for k in range(n)] if way == BACKWARD else []
        return replace(without_numbers(finding), sentences=tuple(filter(None, said))[:1])

    return replace(line, judge=judge)


def remark(run: LayerRun, observed: kit.Observed, k: int, rows: float) -> str:
    """Of bytes that a rank sent backward beside those of its rows; "" of none."""
    rank = members(observed)[k]
    sent = sum(operation.bytes_sent for operation in operations(run, observed, rank, BACKWARD))
    if sent <= rows:
        return ""
    many = words.number(round(sent - rows))
    who, says = f"backward, rank {rank} sent", f"bytes in addition to its rows. {STAY}"
    return kit.Sentence(f"{who} {many} {says}", f"{who} {says}")


# ---- errors


def of_counts(text: str) -> bool:
    """Whether the two ends of an all-to-all differ in what can only be counts, of 8 bytes each."""
    ends = re.findall(r"(?:1/(\d+) of )?(\d+) rows? \((\d+) bytes\)", text)
    return "ends of an all-to-all differ" in text and any(
        int(nbytes) == INTEGER * int(count) // int(among or 1) > 0 for among, count, nbytes in ends
    )


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if kind == "deadlock":
        way = FORWARD if case.lines[0].title.endswith(FORWARD) else BACKWARD
        says = {IDLE: TAKES_PART, FIRST: NO_ROWS[way]}.get(case.title, "")
        return says if "rank 1, which has finished" in text else ""
    sizes = re.findall(r"out of bounds for dimension 0 with size (\d+)", text)
    if sizes and all(int(size) <= HELD for size in sizes):
        return GLOBAL
    if of_counts(text):
        return COUNTS
    if "element of type float" in text:
        return (
            "Sizes are whole numbers. The counts of bincount are int64, so tolist() makes integers of them."
        )
    if "non-empty list" in text:
        return EMPTY_PARTS
    if "send sums to" in text:
        return WAY_BACK
    says = of_splits(case, text)
    return f"{says} {COMBINE}" if says == SPLITS and case.lines[0].title.endswith(FORWARD) else says


# ---- cases


def spread_experts(
    draw: kit.Draw, tokens: int, count: int, k: int, *,
    popular: Sequence[int] = (), sparing: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """(T, k): different experts of each token. First choices take turns, so that none is without rows; with
    popular experts, two tokens of three choose one of these first.

    sparing: the tokens of one rank, which do not choose the last expert, so that bincount without a minlength
    is too short there whatever is drawn. The first of the other tokens chooses it.
    """
    turns, rows = torch.randperm(count, generator=draw.generator).tolist(), []
    if sparing:
        other = next(token for token in range(tokens) if token not in sparing) % count
        last = turns.index(count - 1)
        turns[last], turns[other] = turns[other], turns[last]
    for token in range(tokens):
        first = popular[token % len(popular)] if popular and token % 3 else turns[token % count]
        others = torch.randperm(count, generator=draw.generator).tolist()
        chosen = [first, *(expert for expert in others if expert != first)]
        rows.append([expert for expert in chosen if token not in sparing or expert != count - 1][:k])
    return torch.tensor(rows)


def both_ways(
    mixture: Mixture, title: str, weight: float, *, proves: bool = False, trivial: bool = False,
    dtype: torch.dtype = torch.float64, **more: Any,
) -> Iterator[kit.Case]:  # fmt: skip
    """A run of forward alone, then one with its backward: an error in that costs forward nothing.

    proves: whether bytes are judged as well, and these runs alone show the point.
    """
    run = mixture.run(FORWARD, False, dtype)
    lines = [forward_line(mixture, run, title, weight, not proves)]
    if proves:
        lines.append(traffic(mixture, run, FORWARD, 1))
    lines = [replace(line, trivial=trivial) for line in lines]
    yield runs.layer_case(title, [run], lines, proves=FORWARD if proves else "", **more)
    run = mixture.run(BACKWARD, True, dtype)
    if proves:
        lines = [
            backward_line(mixture, run, f"{title}: gradients of x and weights", OF_TOKENS, 1, False),
            backward_line(mixture, run, f"{title}: gradients of the experts", OF_EXPERTS, 1, False),
            traffic(mixture, run, BACKWARD, 0.75),
        ]
    else:
        names = (*OF_TOKENS, *OF_EXPERTS)
        lines = [backward_line(mixture, run, f"{title}: {BACKWARD}", names, weight, True)]
    lines = [replace(line, trivial=trivial) for line in lines]
    yield runs.layer_case(title, [run], lines, proves=BACKWARD if proves else "", **more)


@kit.exercise(points=14, objects=("expert_parallel_moe",), references=BUT_EXCHANGE, hint=trouble, point=POINT)
def expert_parallel_moe(draw: kit.Draw) -> Iterator[kit.Case]:
    popular = spread_experts(draw, 20, 8, 2, popular=(4, 5), sparing=range(10, 13))
    mixture = Mixture.draw(draw, (6, 4, 3, 7), popular, 8)
    yield from both_ways(mixture, "4 ranks", 1.5, proves=True)
    pair = Mixture.draw(draw, (3, 5), spread_experts(draw, 8, 4, 1, sparing=range(3)), 4, width=5)
    yield from both_ways(pair, "group {1, 3}", 0.5, members=(1, 3), world_size=4)
    if draw.hidden:
        chosen = spread_experts(draw, 12, 10, 3, sparing=range(6, 7))
        five = Mixture.draw(draw, (2, 4, 1, 3, 2), chosen, 10, width=4)
        yield from both_ways(five, "5 ranks", 0.5)
        chosen = spread_experts(draw, 7, 6, 2, sparing=range(4, 7))
        floats = Mixture.draw(draw, (4, 3), chosen, 6, width=8, dtype=torch.float32)
        yield from both_ways(floats, "float32, 2 ranks", 0.5, dtype=torch.float32)
        alone = Mixture.draw(draw, (5,), spread_experts(draw, 5, 3, 2), 3, width=4)
        yield from both_ways(alone, "1 rank", 0.5, trivial=True)
    first = torch.tensor([[0], [1], [1], [0], [0]])
    yield from both_ways(Mixture.draw(draw, (3, 2), first, 4, width=5), FIRST, 0.5)
    idle = Mixture.draw(draw, (4, 0, 5), spread_experts(draw, 9, 6, 3, popular=(2, 3)), 6, width=5)
    yield from both_ways(idle, IDLE, 0.5)
