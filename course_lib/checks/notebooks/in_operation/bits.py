"""odd_ranks: the replica whose bits are others than those of most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.notebooks.in_operation.traffic import contributed, given_line
from course_lib.checks.rank.harness import CallInstructions
from course_lib.ledger.operation import Operation

NAME = "odd_ranks"
POINT = "a checksum of all bits, and the ranks that differ from most"
SHAPES = ((40, 25), (7,), (3, 5))
LEAST, MOST = 4, 8  # bytes of a checksum
LAST_BIT = 1
SIGN = -(1 << 31)

LOST = (
    "One rank differs in the last bit of a small element. A sum of floats rounds this bit away, p.long() "
    "cuts it off, and a checksum of other elements does not see it. So read the bits of all parameters as "
    "integers, with p.view(torch.int32), and add these."
)
UNSEEN = "One rank has other parameters, but no rank is named. Does the checksum depend on every element?"
NOT_MOST = (
    "The named ranks are the majority, and all of them have the same bits. Take the value of more than half "
    "of the ranks as right, and name the ranks with another value."
)
ALL_DIFFER = (
    "All ranks are named, although most have the same bits. Does the checksum also depend on something "
    "else, such as the rank, an address, or Python's hash()?"
)
NAN = (
    "All ranks are named, although most have the same bits. One element is nan, and a nan is not equal to "
    "itself, but its bits are. So compare integers."
)
NO_ONE = "Both ranks have the same bits, so no rank is odd, and the list must be empty."
ZERO = (
    "The floats 0.0 and -0.0 are equal, but their bits differ. So compare integers, with all of their bits."
)
NO_MAJORITY = (
    "Two ranks have one value and two have another. Neither value has more than half of the ranks, so "
    "nothing says which value is wrong. Name all ranks."
)
WORLD = (
    "The ranks you name are counted in the world. Instead, count them in the group, as dist.get_rank(group) "
    "does."
)
OWN_VIEW = (
    "After an all-gather, every rank has all checksums. So every rank finds all odd ranks, and all ranks "
    "return the same list."
)
IDEAS = (LOST, UNSEEN, NOT_MOST)
Parameters = list[Tensor]
Slips = Mapping[tuple[int, ...], str]


def parameters(draw: kit.Draw) -> Parameters:
    """Large values, beside which a float sum loses the last bit of a small one; none is negative."""
    return [1000 * draw.normal(*shape).abs() for shape in SHAPES]


def flipped(values: Parameters, tensor: int, element: int, mask: int) -> Parameters:
    """A copy in which the bits of the mask are flipped in one element."""
    copy = [each.clone() for each in values]
    copy[tensor].view(torch.int32).view(-1)[element] ^= mask
    return copy


def side(values: Parameters, group: int | None) -> kit.RankSide:
    names = [f"parameter{k}" for k in range(len(values))]
    kwargs = {} if group is None else {"group": {"group": group}}
    listed = {"list": [{"parameter": name, "grad": None} for name in names]}
    return kit.RankSide(
        dict(zip(names, values, strict=True)),
        CallInstructions([listed], [*names, "result"], kwargs, plain=True),
        {name: kit.Spec.of(value) for name, value in zip(names, values, strict=True)},
    )


def read(rank: int, result: object) -> list[int] | kit.Finding:
    """The ranks that a rank names, in order."""
    if result is None:
        return kit.wrong(
            f"{NAME} returns None on rank {rank}.", "Is there a `return` at its end?", cause="none"
        )
    named = [kit.numeric(each) for each in result] if isinstance(result, list) else [None]
    ranks = [int(each) for each in named if each is not None and each.is_integer()]
    if len(ranks) < len(named):
        said = f"{NAME} does not return a list of ranks on rank {rank}."
        return kit.wrong(said, "Return a list of integers, which is empty if no rank differs.", cause="form")
    return sorted(ranks)


def spoken(ranks: Sequence[int]) -> str:
    return words.ranks(ranks) if ranks else "no rank"


def answers(on: kit.Setting, observed: kit.Observed) -> list[list[int]] | kit.Finding:
    """The answer of each rank that takes part."""
    came = []
    for rank in on.ranks:
        named = read(rank, observed.values[rank].result)
        if isinstance(named, kit.Finding):
            return named
        came.append(named)
    return came


def named_line(
    title: str, on: kit.Setting, wanted: Sequence[int], slips: Slips, weight: float, trivial: bool = False
) -> kit.Line:
    """All ranks name `wanted`. slips: the sentence for a wrong answer."""

    def judge(observed: kit.Observed) -> kit.Finding:
        came = answers(on, observed)
        if isinstance(came, kit.Finding):
            return came
        off = [place for place, named in enumerate(came) if named != list(wanted)]
        if not off:
            return kit.RIGHT
        rank, answer = on.ranks[off[0]], came[off[0]]
        said = f"rank {rank} names the wrong ranks"
        sentence = kit.Sentence(f"{said}: {spoken(answer)} instead of {spoken(wanted)}.", f"{said}.")
        if not set(answer) <= set(range(len(came))) and tuple(answer) not in slips:
            said = kit.Sentence(
                f"rank {rank} names {spoken(answer)}.", f"rank {rank} names ranks that do not exist."
            )
            return kit.wrong(
                said,
                f"The ranks of this group are 0 to {len(came) - 1}. Return ranks instead of their checksums.",
            )
        if any(named != answer for named in came):
            return kit.wrong(sentence, OWN_VIEW)
        says = slips.get(tuple(answer), "")
        return kit.wrong(sentence, says, misses_point=says in IDEAS)

    return kit.Line(title, judge, weight, trivial=trivial)


def left_alone(on: kit.Setting, replicas: Sequence[Parameters], weight: float) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, values in zip(on.ranks, replicas, strict=True):
            for k, before in enumerate(values):
                after = observed.tensors[rank][f"parameter{k}"]
                if not torch.equal(after.view(torch.int32), before.view(torch.int32)):
                    why = "Work on a copy, because the run continues with these parameters."
                    return kit.wrong(f"a parameter was changed on rank {rank}.", why)
        return kit.RIGHT

    return kit.Line("the parameters are left alone", judge, weight, trivial=True, short=True)


def too_many(done: Sequence[Operation]) -> str:
    if sum(map(contributed, done)) <= MOST * len(SHAPES):
        return "Add up the checksums of all parameters on the rank, so that one number travels."
    return "Compute the checksum on the rank, so that one number travels instead of the parameters."


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if "unexpected keyword argument 'group'" in text:
        return "Take `group=None` as the last argument, and pass it to every collective."
    if "to view Float" in text or "must be divisible by" in text:
        return "A float32 has four bytes, so view it as torch.int32, which also has four."
    return ""


def case(title: str, on: kit.Setting, replicas: Sequence[Parameters], lines: Sequence[kit.Line]) -> kit.Case:
    return on.of_lines(title, [side(values, on.group) for values in replicas], lines)


def but(n: int, *left_out: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(n) if rank not in left_out)


def one_bit(draw: kit.Draw) -> kit.Case:
    """One of 4 ranks, and not the first, differs in the last bit of an element that is nearly 0."""
    on, odd, element = kit.Setting(4), draw.integer(1, 4), draw.integer(1, 15)
    values = parameters(draw)
    values[-1].view(-1)[element] = 1e-8
    replicas = [flipped(values, -1, element, LAST_BIT) if rank == odd else values for rank in range(4)]
    slips = {(): LOST, but(4, odd): NOT_MOST, but(4): ALL_DIFFER}
    everything = sum(value.nbytes for value in values)

    def known(observed: kit.Observed) -> float:
        """Whether the ranks together name the odd one, as where each only tells of itself."""
        came = answers(on, observed)
        return float(isinstance(came, list) and {rank for named in came for rank in named} == {odd})

    named = named_line("4 ranks, one of which differs in one bit", on, [odd], slips, 1.5)
    return case("one bit", on, replicas, [
        replace(named, shows=known),
        left_alone(on, replicas, 0.25),
        given_line(
            "bytes: 8 per rank", on.ranks, LEAST, MOST, calls=1, hint=too_many, weight=0.5,
            point=everything / 2,
        ),
    ])  # fmt: skip


def first_rank(draw: kit.Draw) -> kit.Case:
    on, values = kit.Setting(3), parameters(draw)
    first = [values[0], parameters(draw)[1], values[2]]
    slips = {(): UNSEEN, (1, 2): NOT_MOST, (0, 1, 2): ALL_DIFFER}
    line = named_line("3 ranks, the first of which differs", on, [0], slips, 0.75)
    return case("the first rank", on, [first, values, values], [line])


def nan(draw: kit.Draw) -> kit.Case:
    """All ranks have the same nan, and one of them another second parameter."""
    on, odd, values = kit.Setting(3), draw.integer(1, 3), parameters(draw)
    values[0].view(-1)[draw.integer(1, 1000)] = torch.nan
    other = [values[0], parameters(draw)[1], values[2]]
    replicas = [other if rank == odd else values for rank in range(3)]
    slips = {(): UNSEEN, but(3, odd): NOT_MOST, but(3): NAN}
    line = named_line("3 ranks with a nan, one of which differs", on, [odd], slips, 0.25)
    return case("nan", on, replicas, [line])


def equal(draw: kit.Draw) -> kit.Case:
    on, values = kit.Setting(2), parameters(draw)
    line = named_line("2 equal ranks", on, [], {(0, 1): NO_ONE}, 0.25, trivial=True)
    return case("equal", on, [values] * 2, [line])


def zero(draw: kit.Draw) -> kit.Case:
    on, odd, element = kit.Setting(3), draw.integer(1, 3), draw.integer(1, 1000)
    values = parameters(draw)
    values[0].view(-1)[element] = 0.0
    replicas = [flipped(values, 0, element, SIGN) if rank == odd else values for rank in range(3)]
    slips = {(): ZERO, but(3, odd): NOT_MOST, but(3): ALL_DIFFER}
    line = named_line("3 ranks, one of which has -0.0 for 0.0", on, [odd], slips, 0.5)
    return case("zero", on, replicas, [line])


def two_against_two(draw: kit.Draw) -> kit.Case:
    on, with_first = kit.Setting(4), draw.integer(1, 4)
    values, others = parameters(draw), parameters(draw)
    pair = (0, with_first)
    replicas = [values if rank in pair else others for rank in range(4)]
    slips = {(): NO_MAJORITY, pair: NO_MAJORITY, but(4, *pair): NO_MAJORITY}
    line = named_line("4 ranks, two against two", on, range(4), slips, 0.5)
    return case("two against two", on, replicas, [line])


def sub_group(draw: kit.Draw) -> kit.Case:
    on, values = kit.Setting(4, members=(1, 2, 3)), parameters(draw)
    slips = {(): UNSEEN, (3,): WORLD, (0, 1): NOT_MOST, (0, 1, 2): ALL_DIFFER}
    line = named_line("group {1, 2, 3}, of which rank 3 differs", on, [2], slips, 0.5)
    return case("group", on, [values, values, parameters(draw)], [line])


@kit.exercise(points=2, objects=(NAME,), references=REFERENCES, extra=True, hint=trouble, point=POINT)
def odd_ranks(draw: kit.Draw) -> Iterator[kit.Case]:
    yield one_bit(draw)
    yield first_rank(draw)
    yield equal(draw)
    yield nan(draw)
    yield zero(draw)
    yield two_against_two(draw)
    yield sub_group(draw)
    if draw.hidden:
        pair, values = kit.Setting(4, members=(1, 3)), parameters(draw)
        line = named_line("group {1, 3}, whose ranks differ", pair, [0, 1], {(1, 3): WORLD}, 0.25)
        yield case("group {1, 3}", pair, [values, parameters(draw)], [line])
        four, slips = kit.Setting(4), {(2, 3): "Two of four ranks are not more than half, so name all ranks."}
        line = named_line("4 ranks with three values", four, range(4), slips, 0.25)
        yield case("three values", four, [values, values, parameters(draw), parameters(draw)], [line])
        alone = kit.Setting(1)
        line = named_line("1 rank", alone, [], {}, 0.25, trivial=True)
        yield case("1 rank", alone, [values], [line])
