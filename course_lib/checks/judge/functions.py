"""In the judge: calls of functions of tensors beside a reference, and lines on values, shapes, work, memory.

A `Call` says what is given, what must come back, and which mistakes give what. `About` has the words.

    about = About("scaled", "float64", {"y": "the product is"})
    call = Call(
        "halves", about, {"x": x, "w": w}, {"y": x @ w / 2}, args=[2],
        slips=lambda name, came: {"The product was not divided.": x @ w},
    )
    yield function_case("one process", [call], [values_line(call, "halves of a product")])

A line tells the first of these that is wrong: an error, the form of a result, its values, an input that was
changed. A result that has a nearness of its own, or is judged by other results, is a `Part`. If ranks make
the calls, the case has RECIPE (see `rank.functions`), a `side` for each rank, and lines of `judged`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

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
from course_lib.checks.judge.compare import Slip, Tensors, difference, near
from course_lib.checks.judge.unwritten import unwritten
from course_lib.checks.rank.functions import CallReply, FunctionCall, FunctionInstructions
from course_lib.checks.sentence import Sentence, at, error_sentence
from course_lib.runtime.moments import REPLY

RECIPE = "course_lib.checks.rank.functions:calls"
ROOM = 2_000_000  # bytes that libraries take at the first call
Gives = Tensor | bool | Tensors  # of a mistake: the result, whether it was made, or several results by name


@dataclass(frozen=True)
class About:
    """The words about a function.

    subjects: of each result, with its verb, such as "the scales are"; error, misfit: (type, text) of an error
    or (name, "float64[2, 3]") of a result in another form -> the usual cause, or "". own_errors: texts of
    errors that say why a call was refused; misses: sentences of slips that miss the exercise's point.
    """

    function: str
    against: str
    subjects: Mapping[str, str]
    error: Callable[[str, str], str] | None = None
    misfit: Callable[[str, str], str] | None = None
    own_errors: Sequence[str] = ()
    misses: Sequence[str] = ()


@dataclass(frozen=True)
class Part:
    """A result, and how it is judged.

    right: the tensor, or a function that makes it of the results that came, by name in float64; form: dtype
    and shape, if they are not those of right. near: (actual, wanted, came) -> elementwise, whether actual
    passes for wanted. fault: words for a wrong result, else "not what ... gives"; otherwise: said if no slip
    fits.
    """

    right: Tensor | Callable[[Tensors], Tensor]
    near: Callable[[Tensor, Tensor, Tensors], Tensor] = lambda actual, wanted, came: near(actual, wanted)
    form: Spec | None = None
    fault: str = ""
    otherwise: str = ""

    @property
    def spec(self) -> Spec:
        if self.form is None:
            assert isinstance(self.right, Tensor), "a result that depends on others needs a form"
            return Spec.of(self.right)
        return self.form

    def beside(self, came: Tensors) -> Tensor:
        return self.right if isinstance(self.right, Tensor) else self.right(came)


@dataclass(frozen=True)
class Call:
    """One call of a function.

    inputs: tensors by name, the first arguments; args, kwargs: the other arguments, plain, or a tuple, a
    dtype, {"group": index}. outputs: names of the returned tensors, in order. wanted: the results, in the
    order in which they are judged: outputs; of an input "grad.NAME", or "after.NAME" if the call changes it.
    gradients: of the outputs, if any. slips: (name of a wrong result, all results) -> the sentence for each
    mistake, and its result or whether it was made. asking: whether inputs ask for gradients; None: if outputs
    have some.
    """

    name: str
    about: About
    inputs: Tensors
    wanted: Mapping[str, Tensor | Part]
    gradients: Tensors = field(default_factory=dict)
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    slips: Callable[[str, Tensors], Mapping[str, Gives] | Sequence[Slip]] = lambda name, came: {}
    measured: bool = False
    asking: bool | None = None
    object: int = 0

    def part(self, name: str) -> Part:
        wanted = self.wanted[name]
        return wanted if isinstance(wanted, Part) else Part(wanted)

    @property
    def returned(self) -> dict[str, Spec]:
        """All tensors that go back: the wanted ones, and the inputs afterwards."""
        wanted = {name: self.part(name).spec for name in self.wanted}
        return wanted | {f"after.{name}": Spec.of(tensor) for name, tensor in self.inputs.items()}

    def instructions(self) -> FunctionCall:
        prefix = f"{self.name}."
        return FunctionCall(
            name=self.name, object=self.object, outputs=list(self.outputs), measured=self.measured,
            inputs=[[name, prefix + name] for name in self.inputs],
            args=[described(argument) for argument in self.args],
            kwargs={name: described(argument) for name, argument in self.kwargs.items()},
            gradients={name: f"{prefix}gradient.{name}" for name in self.gradients},
            expects={name: spec.agreed() for name, spec in self.returned.items()},
            asking=bool(self.gradients) if self.asking is None else self.asking,
        )  # fmt: skip


def described(argument: Any) -> Any:
    """An argument as JSON has it, see `rank.functions`."""
    if isinstance(argument, torch.dtype):
        return {"dtype": str(argument)[6:]}
    return {"tuple": [described(part) for part in argument]} if isinstance(argument, tuple) else argument


def side(calls: Sequence[Call], refused: Mapping[str, str] | None = None) -> RankSide:
    """A rank's part of a case: the calls one after the other; refused: see `without_operators`."""
    inputs, outputs = {}, {}
    for call in calls:
        inputs |= {f"{call.name}.{name}": tensor for name, tensor in call.inputs.items()}
        inputs |= {f"{call.name}.gradient.{name}": g for name, g in call.gradients.items()}
        outputs |= {f"{call.name}.{name}": spec for name, spec in call.returned.items()}
    instructions = FunctionInstructions(
        [call.instructions() for call in calls], [list(pair) for pair in (refused or {}).items()]
    )
    return RankSide(inputs, instructions, outputs)


def function_case(
    title: str,
    calls: Sequence[Call],
    lines: Sequence[Line],
    refused: Mapping[str, str] | None = None,
    **more: Any,
) -> Case:
    """The calls in a process without ranks."""
    moments = tuple(name for call in calls if call.measured for name in moments_of(call.name))
    sides = [side(calls, refused)]
    return Case(title, sides, list(lines), recipe=RECIPE, alone=True, moments=moments, room=ROOM, **more)


def moments_of(call: str) -> tuple[str, ...]:
    """The moments at which a measured call is looked at from outside, see `rank.functions`."""
    return tuple(f"{call}.pages.{moment}" for moment in ("base", "forward", "backward"))


# ---- values


def values_line(
    call: Call, title: str, names: Sequence[str] | None = None, *,
    weight: float = 1.0, short: bool = False, **more: Any,
) -> Line:  # fmt: skip
    """more: see `judged`."""
    return Line(title, judged(call, names, **more), weight, short=short)


def judged(
    call: Call, names: Sequence[str] | None = None, *, rank: int = 0, otherwise: str = "", inputs: bool = True
) -> Callable[[Observed], Finding]:
    """The results of these names are right, or all that `call` wants.

    otherwise: said if no slip fits; inputs: whether the call must have left them as they were.
    """
    looked_at = list(call.wanted if names is None else names)

    def judge(observed: Observed) -> Finding:
        reply = reply_about(observed, call, rank)
        if reply.error is not None:
            return raised(observed, call, rank, *reply.error)
        if bad := [name for name in call.outputs if name in reply.misfits]:
            if looked_at and all(name.startswith("grad.") for name in looked_at):
                return wrong(cause=ANY)  # backward had nothing to begin with
            return unfit(call, bad[0], reply.misfits[bad[0]])
        came = results(observed, call, rank)
        where = "" if observed.case.alone else f"on rank {rank} "
        for name in looked_at:
            if name in reply.misfits:
                return unfit(call, name, reply.misfits[name])
            if finding := differs(call, name, came, otherwise, where):
                return finding
        return (changed(observed, call, rank) if inputs else None) or RIGHT

    return judge


def reply_about(observed: Observed, call: Call, rank: int = 0) -> CallReply:
    return observed.values[rank][call.name]


def results(observed: Observed, call: Call, rank: int = 0) -> dict[str, Tensor]:
    """The results that came, by name in float64."""
    return {name: observed.tensors[rank][f"{call.name}.{name}"].double() for name in call.wanted}


def raised(
    observed: Observed, call: Call, rank: int, error: str = "", text: str = "", place: str = ""
) -> Finding:
    function, about = call.about.function, call.about
    if error == "NotImplementedError" and not text:
        return unwritten(function, place, "for this" if is_written(observed, call, rank) else "")
    if text in about.own_errors:
        finding = wrong(text, at(place), cause="refused", misses_point=True)
        return replace(finding, raised=True)
    said = error_sentence(function, error, text)
    finding = wrong(said, at(place), usual(about.error, error, text), cause=f"{error} {place}")
    return replace(finding, raised=True)


def is_written(observed: Observed, call: Call, rank: int) -> bool:
    """Whether another call of the function got beyond its stub."""
    calls = observed.case.sides[rank].instructions.calls
    errors = [observed.values[rank][other.name].error for other in calls if other.object == call.object]
    return not all(error and error[:2] == ("NotImplementedError", "") for error in errors)


def unfit(call: Call, name: str, came: str) -> Finding:
    """A result that came in another form, or not at all."""
    subject, spec = call.about.subjects.get(name, f"{name} is"), call.part(name).spec
    why = usual(call.about.misfit, name, came)
    if came == "None" and name in call.outputs and (not why or len(call.outputs) == 1):
        why = "Is there a `return` at its end?"
    agreed = f"{spec} is expected."
    said = Sentence(f"{subject} {came}; {agreed}", f"{subject} not of the agreed form; {agreed}")
    return wrong(said, why, cause=why or f"misfit {name}")


def differs(call: Call, name: str, came: Tensors, otherwise: str, where: str) -> Finding | None:
    part, about = call.part(name), call.about
    actual, wanted = came[name], part.beside(came)
    good = part.near(actual, wanted, came)
    if bool(good.all()):
        return None
    fault = part.fault or f"not what {about.against} gives"
    general = f"{where}{about.subjects.get(name, f'{name} is')} {fault}"
    shown = torch.where(good, wanted, actual)
    said = f"{general}." if torch.equal(shown, wanted) else difference(general, shown, wanted)
    says = told_by(call, name, came)
    if not says and name.startswith("grad.") and not forward_is_right(call, came):
        return wrong(said, "Forward is not right yet: look there first.", cause=ANY)
    says = says or otherwise or part.otherwise
    return wrong(said, says, cause=says or name, misses_point=says in about.misses)


def told_by(call: Call, name: str, came: Tensors) -> str:
    """The sentence of the first slip that gives what came, wrong in `name`; "" if none does."""
    slips = call.slips(name, came)
    if isinstance(slips, Mapping):
        slips = [Slip(says, lambda gives=gives: gives) for says, gives in slips.items()]
    return next((slip.says for slip in slips if fits(call, name, slip.gives(), came)), "")


def fits(call: Call, name: str, gives: Gives, came: Tensors) -> bool:
    if isinstance(gives, bool):
        return gives
    tensors = {name: gives} if isinstance(gives, Tensor) else gives
    return name in tensors and all(key in came and is_near(call, key, tensors[key], came) for key in tensors)


def is_near(call: Call, name: str, wanted: Tensor, came: Tensors) -> bool:
    """Whether the result passes for this one."""
    actual = came[name]
    return actual.shape == wanted.shape and bool(call.part(name).near(actual, wanted, came).all())


def forward_is_right(call: Call, came: Tensors) -> bool:
    outputs = [name for name in call.outputs if name in call.wanted]
    return all(is_near(call, name, call.part(name).beside(came), came) for name in outputs)


def changed(observed: Observed, call: Call, rank: int = 0) -> Finding | None:
    for name, before in call.inputs.items():
        after = observed.tensors[rank][f"{call.name}.after.{name}"]
        if f"after.{name}" not in call.wanted and not torch.equal(after, before):
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
            if done is None and direction == "backward" and (missing := without_graph(observed, call)):
                return unfit(call, missing, "None")
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


def without_graph(observed: Observed, call: Call) -> str:
    """The first gradient, if none of them came: the results had no graph, so no backward was begun."""
    gradients = [name for name in call.wanted if name.startswith("grad.")]
    misfits = reply_about(observed, call).misfits
    return gradients[0] if gradients and all(misfits.get(name) == "None" for name in gradients) else ""


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
