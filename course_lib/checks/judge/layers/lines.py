"""In the judge: lines about a run of a layer: its values, the bytes that it sent, the memory that it held."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import isfinite

from course_lib.checks import words
from course_lib.checks.judge.amount import beyond
from course_lib.checks.judge.asked import asked_early
from course_lib.checks.judge.case import ANY, RIGHT, Finding, Line, Observed, usual, wrong
from course_lib.checks.judge.compare import Slip, close, difference, told_by
from course_lib.checks.judge.layers.runs import BACKWARD, DIRECTIONS, LayerRun
from course_lib.checks.judge.traffic import share_of
from course_lib.checks.rank.layers import LayerReply
from course_lib.checks.sentence import Sentence, at
from course_lib.ledger.operation import Operation

SLACK = 1.02, 256  # of bytes of memory: a share, and a few small tensors
PAGES = 2_000_000  # bytes that a process may hold besides, where its pages are counted
NO_GRADIENT = (
    "Autograd does not see what torch.distributed does: the result of a collective has no graph. Write a "
    "torch.autograd.Function with a backward of its own."
)


def members(observed: Observed) -> list[int]:
    """The ranks that take part, in order."""
    groups = observed.case.groups
    return list(groups[0]) if groups else list(range(observed.world_size))


def reply_about(observed: Observed, rank: int, run: LayerRun) -> LayerReply:
    """The recipe's reply about the run on this rank."""
    return observed.values[rank][run.name]


# ---- values


def values_line(
    run: LayerRun,
    title: str,
    *,
    names: Sequence[str] = (),
    slips: Iterable[Slip] = (),
    misfit: Callable[[str, str, int], str] | None = None,
    otherwise: str = "",
    weight: float = 1.0,
    aspect: str = "value",
    trivial: bool = False,
    short: bool = False,
) -> Line:
    """The tensors that came back are those that `run` wants, of `names` or all; the first difference is told.

    slips: usual mistakes, with the tensors that they give; misfit: (name, type and shape that came, k) -> the
    usual cause of another shape; otherwise: said when none of them fits.
    """

    def judge(observed: Observed) -> Finding:
        return differs(run, observed, names, tuple(slips), misfit, otherwise) or RIGHT

    return Line(title, judge, weight, aspect, trivial=trivial, short=short)


def differs(
    run: LayerRun,
    observed: Observed,
    names: Sequence[str],
    slips: Sequence[Slip],
    misfit: Callable[[str, str, int], str] | None,
    otherwise: str,
) -> Finding | None:
    """The first of the wanted tensors that is wrong, name by name on all ranks."""
    for name in names or list(run.wanted[0]):
        for k, rank in enumerate(members(observed)):
            came = reply_about(observed, rank, run).misfits
            if name.startswith("grad.") and "y" in came:
                return wrong(cause=ANY)  # backward had nothing to begin with
            if name.startswith("grad.p.") and came.get(name.removeprefix("grad.")) == "None":
                return wrong(cause=ANY)  # there is no such parameter
            if name in came:
                return unfit(run, name, came[name], k, rank, misfit)
            wanted = run.wanted[k][name]
            actual = observed.tensors[rank][f"{run.name}.{name}"]
            if close(actual, wanted):
                continue
            here = {key: observed.tensors[rank][f"{run.name}.{key}"] for key in run.wanted[k]}
            says = told_by(slips, name, here, k)
            said = difference(f"on rank {rank} {subject(name)} is not what one process gets", actual, wanted)
            return wrong(said, says or otherwise, cause=says or otherwise or f"{run.name} {name}")
    return None


def subject(name: str) -> str:
    """ "the output", "the gradient of x"."""
    if name.startswith("grad."):
        return f"the gradient of {name[5:].removeprefix('p.')}"
    plain = {"y": "the output", "again": "the output after a step of SGD", "drawn": "torch.rand"}
    return plain.get(name) or name.removeprefix("p.")


def unfit(
    run: LayerRun, name: str, came: str, k: int, rank: int, misfit: Callable[[str, str, int], str] | None
) -> Finding:
    """A tensor of another shape or dtype, or none."""
    wanted = run.wanted[k][name]
    agreed = f"{str(wanted.dtype)[6:]}{list(wanted.shape)} is expected"
    why = usual(misfit, name, came, k)
    if came == "None" and not why:
        no_graph = name.startswith("grad.")
        why = NO_GRADIENT if no_graph else "Is there a `return` at its end?" if name == "y" else ""
    return wrong(
        Sentence(
            f"on rank {rank} {subject(name)} is {came}; {agreed}.",
            f"on rank {rank} {subject(name)} does not have the agreed form; {agreed}.",
        ),
        why,
        cause=why or f"misfit {name} {came}",
    )


def values_or_refusal_line(
    run: LayerRun,
    title: str,
    numbers: Sequence[int],
    *,
    slips: Iterable[Slip] = (),
    misfit: Callable[[str, str, int], str] | None = None,
    otherwise: str = "",
    weight: float = 1.0,
) -> Line:
    """Sizes that do not divide: right values, or a ValueError on every rank that names the `numbers`."""

    def judge(observed: Observed) -> Finding:
        refused = [reply_about(observed, rank, run).refused for rank in members(observed)]
        if refused[0] is not None and None not in refused:
            _, text, place = refused[0]
            if set(numbers) <= {int(digits) for digits in re.findall(r"\d+", text)[:20]}:
                return Finding(True, title=f"{title}: refused, with a sentence")
            said = Sentence(f"it was refused: {text}", "it was refused.")
            which = words.listing(numbers)
            return wrong(at(place, said), f"Say in the sentence which numbers do not fit: {which}.")
        return differs(run, observed, (), tuple(slips), cause, otherwise) or RIGHT

    def cause(name: str, came: str, k: int) -> str:
        said = misfit(name, came, k) if misfit else ""
        return said or ("" if came == "None" else otherwise)

    return Line(title, judge, weight, "shape")


def same_everywhere_line(run: LayerRun, name: str, title: str, says: str, weight: float = 1.0) -> Line:
    """All ranks hand back the same `name`, whatever its values; says: why they should."""

    def judge(observed: Observed) -> Finding:
        key, ranks = f"{run.name}.{name}", members(observed)
        if any(name in reply_about(observed, rank, run).misfits for rank in ranks):
            return wrong(f"{subject(name)} is not there, or of another shape.", cause=ANY)
        first = observed.tensors[ranks[0]][key]
        for rank in ranks[1:]:
            if not bool((observed.tensors[rank][key] == first).all()):
                return wrong(
                    f"{subject(name)} differs between ranks {ranks[0]} and {rank}.", says, cause=says
                )
        return RIGHT

    return Line(title, judge, weight)


# ---- what was sent


def operations(run: LayerRun, observed: Observed, rank: int, direction: str) -> list[Operation]:
    """Those of one direction of the run; none if it was refused."""
    begun = reply_about(observed, rank, run).begun
    if len(begun) <= BACKWARD:
        return []
    first, last = (begun[place] for place in DIRECTIONS[direction])
    return observed.operations[rank][first:last]


def in_form(run: LayerRun, observed: Observed) -> bool:
    """Whether every rank gave tensors, be their values and shapes right or wrong."""
    misfits = (
        text
        for rank in members(observed)
        for name, text in reply_about(observed, rank, run).misfits.items()
        if not name.startswith("grad.")
    )
    return all(text.endswith("]") for text in misfits)


def sent_line(
    run: LayerRun,
    direction: str,
    least: Sequence[float],
    *,
    most: Sequence[float] | None = None,
    hint: Callable[[float, list[Operation]], str] | None = None,
    title: str = "",
    weight: float = 1.0,
    point: float = float("inf"),
    tells_the_point: bool = False,
) -> Line:
    """Bytes that each rank sends in a direction, "forward" or "backward": between `least` and `most` (the
    same when left out). hint: (sent over allowed, the rank's operations) -> the usual cause. point: from that
    many times too many on, the point of the exercise is missed (see `Exercise`). tells_the_point: no more
    bytes than these show that a solution with wrong values has it.
    """
    allowed = list(most or least)
    title = title or f"bytes {direction}"

    def bytes_of(done: list[list[Operation]]) -> list[int]:
        return [round(sum(operation.bytes_sent for operation in of_rank)) for of_rank in done]

    def judge(observed: Observed) -> Finding:
        ranks = members(observed)
        done = [operations(run, observed, rank, direction) for rank in ranks]
        sent = bytes_of(done)
        if off := beyond(sent, allowed, least):
            of_rank = done[off.place]
            names = words.listing(dict.fromkeys(operation.op for operation in of_rank))
            return wrong(
                f"{direction}, rank {ranks[off.place]} sent {off.number} bytes"
                f"{f' ({names})' if names else ''}; {off.enough}.",
                usual(hint, off.ratio, of_rank),
                cause=f"{direction} {off.ratio:.2f} {run.name}",
                misses_point=off.ratio >= point,
            )
        return Finding(True, title=f"{title}: {words.number(max(sent))} by each rank")

    def of_those_due(observed: Observed) -> float:
        done = [operations(run, observed, rank, direction) for rank in members(observed)]
        return share_of(bytes_of(done), allowed) if in_form(run, observed) else 0.0

    tells = of_those_due if isfinite(point) or tells_the_point else None
    return Line(title, judge, weight, "communication", shows=tells)


# ---- what is held and kept


def held_line(
    run: LayerRun, most: Sequence[float], *, says: str = "", title: str = "", weight: float = 1.0
) -> Line:
    """Bytes of the tensors that the layer brought with it, wherever it keeps them."""
    return memory_line(run, "held", most, title or "memory of the layer", says, weight)


def saved_line(
    run: LayerRun, most: Sequence[float], *, says: str = "", title: str = "", weight: float = 1.0
) -> Line:
    """Bytes that forward keeps for backward, the layer's own parameters left out."""
    return memory_line(run, "saved", most, title or "kept for backward", says, weight)


def memory_line(run: LayerRun, key: str, most: Sequence[float], title: str, says: str, weight: float) -> Line:
    what = {"held": "holds", "saved": "keeps for backward"}[key]
    # After backward there are gradients, too, as large as the parameters.
    times = {"held": {"made": 1, "backward": 2}, "saved": {"forward": 1}}[key]
    looked = {moment: many for moment, many in times.items() if run.looked_at(moment)}
    bounds = [SLACK[0] * enough + SLACK[1] for enough in most]

    def judge(observed: Observed) -> Finding:
        for k, rank in enumerate(members(observed)):
            got = getattr(reply_about(observed, rank, run), key)
            if got is None:
                return wrong(f"rank {rank} did not report the bytes that it {what}.")
            if finding := measured_early(run, observed, rank, looked):
                return finding
            for moment, many in looked.items():
                if not (pages := observed.held[rank].get(f"{run.name}.pages.{moment}")):
                    return wrong(f"the bytes that rank {rank} {what} were not measured.")
                got = pages[0] if pages[0] > many * (bounds[k] + PAGES) else got
            if got > bounds[k]:
                enough = f"{words.number(round(most[k]))} are enough."
                said = Sentence(
                    f"rank {rank} {what} {words.number(got)} bytes; {enough}",
                    f"rank {rank} {what} too many bytes; {enough}",
                )
                return wrong(said, says, cause=f"{key} {says}")
        return Finding(True, title=f"{title}: {words.number(round(max(most)))} bytes are enough")

    return Line(title, judge, weight, "memory", enough={f"{run.name}.{key}": bounds})


def measured_early(run: LayerRun, observed: Observed, rank: int, looked: Iterable[str]) -> Finding | None:
    """A finding if the rank was measured at one of these moments before it could have got there."""
    begun = reply_about(observed, rank, run).begun
    if len(begun) <= BACKWARD:
        return None
    for moment in looked:
        by_then, gone_by = run.by_then(begun, moment)
        sent = sum(operation.bytes_sent for operation in observed.operations[rank][:gone_by])
        name = f"{run.name}.pages.{moment}"
        if finding := asked_early(observed, rank, name, begun=by_then, sent=sent):
            return finding
    return None
