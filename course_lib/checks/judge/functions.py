"""In the judge: calls of functions, the tensors that must come back, and lines about values and memory.

See `rank.functions` for the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from course_lib.checks import words
from course_lib.checks.judge.case import (
    ANY,
    RIGHT,
    Case,
    Finding,
    Line,
    Observed,
    RankSide,
    Spec,
    usual,
    wrong,
)
from course_lib.checks.judge.compare import Slip, Tensors, close, difference, told_by
from course_lib.checks.judge.unwritten import unwritten
from course_lib.checks.rank.functions import CallReply, FunctionCall, FunctionInstructions
from course_lib.checks.sentence import Sentence, at, error_kind
from course_lib.runtime.moments import REPLY

RECIPE = "course_lib.checks.rank.functions:calls"
ROOM = 2_000_000  # bytes that libraries take at the first call


@dataclass(frozen=True)
class Call:
    """One call of a function.

    inputs: by name, in order; wanted: the tensors that must come back, in the order in which they are looked
    at: outputs by their names, "grad.NAME" of an input. gradients: of the outputs; none: no backward.
    anything: {name: mask} of places where any finite number is right.
    """

    name: str
    inputs: Tensors
    wanted: Tensors
    gradients: Tensors = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    anything: Tensors = field(default_factory=dict)
    measured: bool = False
    object: int = 0

    @property
    def returned(self) -> dict[str, torch.Tensor]:
        """All tensors that go back: the wanted ones, and the inputs afterwards."""
        return {**self.wanted, **{f"after.{name}": tensor for name, tensor in self.inputs.items()}}

    def instructions(self) -> FunctionCall:
        prefix = f"{self.name}."
        return FunctionCall(
            name=self.name, object=self.object, kwargs=dict(self.kwargs),
            inputs=[[name, prefix + name] for name in self.inputs],
            outputs=list(self.outputs), measured=self.measured,
            gradients={name: f"{prefix}gradient.{name}" for name in self.gradients},
            expects={name: Spec.of(tensor).agreed() for name, tensor in self.returned.items()},
        )  # fmt: skip


def function_case(
    title: str,
    calls: Sequence[Call],
    lines: Sequence[Line],
    refused: Mapping[str, str] | None = None,
    **more: Any,
) -> Case:
    """The calls one after the other in a process without ranks; refused: see `without_operators`."""
    inputs, outputs = {}, {}
    for call in calls:
        inputs |= {f"{call.name}.{name}": tensor for name, tensor in call.inputs.items()}
        inputs |= {f"{call.name}.gradient.{name}": g for name, g in call.gradients.items()}
        outputs |= {f"{call.name}.{name}": Spec.of(tensor) for name, tensor in call.returned.items()}
    instructions = FunctionInstructions(
        [call.instructions() for call in calls], [list(pair) for pair in (refused or {}).items()]
    )
    side = RankSide(inputs, instructions, outputs)
    moments = tuple(name for call in calls if call.measured for name in moments_of(call.name))
    return Case(title, [side], list(lines), recipe=RECIPE, alone=True, moments=moments, room=ROOM, **more)


def moments_of(call: str) -> tuple[str, ...]:
    """The moments at which a measured call is looked at from outside, see `rank.functions`."""
    return tuple(f"{call}.pages.{moment}" for moment in ("base", "forward", "backward"))


@dataclass(frozen=True)
class About:
    """The words of a call's sentences: function, standard, and usual causes of an error or another shape."""

    function: str
    against: str
    subjects: Mapping[str, str]
    error: Callable[[str, str], str] | None = None
    misfit: Callable[[str, str], str] | None = None
    own_errors: Sequence[str] = ()


# ---- values


def values_line(
    call: Call,
    about: About,
    title: str,
    *,
    names: Sequence[str] = (),
    slips: Iterable[Slip] = (),
    otherwise: str = "",
    weight: float = 1.0,
    short: bool = False,
) -> Line:
    """The tensors are those that `call` wants, by `names` or all of them, and the inputs are unchanged.

    otherwise: said when none of the slips fits.
    """
    slips = tuple(slips)

    def judge(observed: Observed) -> Finding:
        reply = reply_about(observed, call)
        if reply.error is not None:
            return raised(about, *reply.error)
        for name in names or list(call.wanted):
            if finding := wrong_one(observed, call, about, name, slips, otherwise):
                return finding
        return changed(observed, call) or RIGHT

    return Line(title, judge, weight, short=short)


def reply_about(observed: Observed, call: Call) -> CallReply:
    return observed.values[0][call.name]


def raised(about: About, error: str = "", text: str = "", place: str = "") -> Finding:
    if error == "NotImplementedError" and not text:
        return unwritten(about.function, place, "for this")
    if text in about.own_errors:
        finding = wrong(text, at(place), cause="refused", misses_point=True)
        return replace(finding, raised=True)
    general = f"{about.function} raised {error_kind(error)}."
    said = Sentence(f"{about.function} raised {error}: {text}", general)
    finding = wrong(said, at(place), usual(about.error, error, text), cause=f"{error} {place}")
    return replace(finding, raised=True)


def wrong_one(
    observed: Observed, call: Call, about: About, name: str, slips: Sequence[Slip], otherwise: str
) -> Finding | None:
    misfits = reply_about(observed, call).misfits
    if name.startswith("grad.") and any(output in misfits for output in call.outputs):
        return wrong(cause=ANY)  # backward had nothing to begin with
    subject, wanted = about.subjects.get(name, name), call.wanted[name]
    if name in misfits:
        came = misfits[name]
        agreed = f"{Spec.of(wanted)} is expected"
        why = usual(about.misfit, name, came)
        if came == "None" and not why:
            why = "Is there a `return` at its end?" if name in call.outputs else ""
        said = Sentence(
            f"{subject} is {came}; {agreed}.", f"{subject} does not have the agreed form; {agreed}."
        )
        return wrong(said, why, cause=why or f"misfit {name}")
    actual = got(observed, call, name)
    if close(actual, wanted):
        return None
    here = {key: got(observed, call, key) for key in call.wanted}
    says = told_by(slips, name, here)
    said = difference(f"{subject} is not what {about.against} gives", actual, wanted)
    if not says and name.startswith("grad.") and not forward_is_right(here, call):
        return wrong(said, "Forward is not right yet: look there first.", cause=ANY)
    return wrong(said, says or otherwise, cause=says or otherwise or name)


def forward_is_right(here: Tensors, call: Call) -> bool:
    return all(close(here[name], call.wanted[name]) for name in call.outputs if name in call.wanted)


def got(observed: Observed, call: Call, name: str) -> torch.Tensor:
    """The tensor that came. Where any finite number is right, a finite one is replaced by the wanted one."""
    actual = observed.tensors[0][f"{call.name}.{name}"]
    if name not in call.anything:
        return actual
    return torch.where(call.anything[name] & actual.isfinite(), call.wanted[name], actual)


def changed(observed: Observed, call: Call) -> Finding | None:
    for name, before in call.inputs.items():
        if not torch.equal(observed.tensors[0][f"{call.name}.after.{name}"], before):
            return wrong(
                f"{name} was changed: it belongs to the caller.",
                "Work on a new tensor: `x = x * a` and not `x *= a`.",
                cause=f"changed {name}",
            )
    return None


# ---- what is computed


def work_line(call: Call, title: str, most: Mapping[str, float], says: str, weight: float) -> Line:
    """FLOPs of products of matrices: `most` at most in each direction, "forward" and "backward"."""

    def judge(observed: Observed) -> Finding:
        flops = reply_about(observed, call).flops
        for direction, enough in most.items():
            done = flops.get(direction)
            if done is None:
                return unreported(observed, call, f"no FLOPs of {direction}")
            if done > enough:
                return wrong(
                    f"in {direction} the products took {words.number(done)} FLOPs; "
                    f"{words.number(round(enough))} are enough.",
                    says,
                    cause=says,
                )
        return RIGHT

    return Line(title, judge, weight, "communication")


# ---- memory


def memory_line(
    call: Call,
    key: str,
    title: str,
    most: float,
    says: Callable[[int], tuple[str, bool]],
    weight: float = 1.0,
    pages: int = 0,
) -> Line:
    """Bytes "saved" for backward, or alive at a moment of "forward" or "backward": `most` at most.

    Tensors are counted in the rank, exactly. From outside, by the pages of the process, `pages` bytes or more
    are too many, whatever holds them. says: bytes -> the usual cause, and whether the exercise's point is
    missed.
    """
    what = {
        "saved": "forward keeps {} bytes for backward",
        "forward": "at one moment of forward {} bytes were alive beside the inputs",
        "backward": "at one moment of backward {} bytes were alive beside the inputs",
    }[key]

    def judge(observed: Observed) -> Finding:
        nbytes = getattr(reply_about(observed, call), key)
        outside = from_outside(observed, call, key)
        if nbytes is None or outside is None:
            return unreported(observed, call, f"no bytes of {key}")
        if outside >= pages > 0:
            nbytes = max(nbytes, outside)
        if nbytes <= most:
            return RIGHT
        cause, misses = says(nbytes)
        enough = f"{words.number(round(most))} are enough"
        said = Sentence(
            f"{what.format(words.number(nbytes))}; {enough}.", f"{what.format('too many')}; {enough}."
        )
        return wrong(said, cause, cause=cause or key, misses_point=misses)

    return Line(title, judge, weight, "memory", enough={f"{call.name}.{key}": most})


def unreported(observed: Observed, call: Call, missing: str) -> Finding:
    """Of a number that the rank was asked for, and that did not come: after an error none does."""
    if reply_about(observed, call).error is not None:
        return wrong(cause=ANY)
    return wrong(f"{missing} were reported: the code that counts them was changed.", misses_point=True)


OF_A_FIRST_CALL = 20_000_000  # bytes that a call on other values and its libraries take: 8 to 10 MB were seen
OF_AN_ANSWER = 10_000_000  # bytes of libraries that come into memory to write it: 4 to 7 MB were seen


def from_outside(observed: Observed, call: Call, key: str) -> int | None:
    """Bytes by the process's pages, see `rank.functions`.

    A process may ask for its measurements too early. So what it took after the last one, until its answer
    came, counts as well, but for what an answer takes. It could also find the values before its first call,
    and remember the results: so what it took before the first measurement counts, less what is usual.
    """
    direction = "forward" if key == "saved" else key
    of_ranks = observed.held if key == "saved" else observed.rose
    measured = of_ranks[0].get(f"{call.name}.pages.{direction}")
    if not measured:
        return None
    later = [rose - OF_AN_ANSWER for rose in observed.rose[0].get(REPLY, ())]
    earlier = [rose - OF_A_FIRST_CALL for rose in observed.rose[0].get(f"{call.name}.pages.base", ())]
    return measured[0] if key == "saved" else max([measured[0], *earlier, *later])
