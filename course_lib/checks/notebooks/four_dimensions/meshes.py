"""Questions to every rank of a mesh, the answers, and the mistakes that explain all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from course_lib.checks import kit
from course_lib.checks.judge.meshes import Sizes

Formula = Callable[..., Any]
AXES = ("pp", "dp", "cp", "tp")
LACKS_AXES = (
    "A mesh may lack an axis, which has one rank then, at coordinate 0. So use get(axis, 1) for sizes, "
    "but get(axis, 0) for coordinates."
)

HAS_AXIS = (
    "The mesh has this axis. Either `coordinates` returned no entry for it, or a call changed `sizes`, which "
    "it should leave alone."
)


def title(sizes: Sizes) -> str:
    """ "pp 3 x dp 2 x tp 4" """
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items())


@dataclass(frozen=True)
class Question:
    """One call to a student's function: (rank, sizes, *more)."""

    rank: int
    sizes: Sizes
    more: tuple = ()

    def call(self, index: int) -> list:
        more = [{"tuple": list(value)} if isinstance(value, tuple) else value for value in self.more]
        return [index, [self.rank, dict(self.sizes), *more]]

    def of(self, formula: Formula) -> Any:
        return formula(self.rank, self.sizes, *self.more)

    def shown(self, name: str) -> str:
        return f"{name}({', '.join(repr(value) for value in (self.rank, dict(self.sizes), *self.more))})"


class Answers:
    """A student's answers to questions, and what is wrong with the first wrong one."""

    def __init__(self, name: str, index: int, right: Formula, read: Callable[[Any], Any], form: str):
        self.name, self.index, self.right, self.read, self.form = name, index, right, read, form
        self.calls: list[list] = []
        self.questions: list[Question] = []

    def line(
        self,
        text: str,
        questions: Sequence[Question],
        slips: Mapping[str, Formula],
        weight: float = 1,
        otherwise: str = "",
        throughout: Collection[str] = (),
    ) -> kit.Line:
        """All questions are answered right; a slip explains the answers if it gives every one of them.

        throughout: the slips that have to give the wrong answers of all lines, too.
        """
        start = len(self.calls)
        self.calls += [question.call(self.index) for question in questions]
        self.questions += questions

        def judge(observed: kit.Observed) -> kit.Finding:
            values = []
            for k, question in enumerate(questions, start=start):
                answer = observed.answer(k)
                if answer.error is not None:
                    return self.raised(question, *answer.error)
                values.append(self.read(answer.value))
                if values[-1] is None:
                    why = "Is there a `return` at its end?" if answer.value is None else ""
                    return kit.wrong(
                        f"{self.name} does not give {self.form}.", why, cause=f"{self.name} form"
                    )
            pairs = list(zip(questions, values, strict=True))
            off = [(question, value) for question, value in pairs if value != question.of(self.right)]
            if not off:
                return kit.RIGHT
            question, value = off[0]
            wanted = question.of(self.right)
            says = (
                s
                for s, slip in slips.items()
                if all(v == tried(q, slip) for q, v in pairs)
                and (s not in throughout or all(v == tried(q, slip) for q, v in self.wrong(observed)))
            )
            fault = f"{self.name} gives another answer than the mesh on some ranks"
            said = kit.Sentence(
                f"{question.shown(self.name)} gives {value} instead of {wanted}.", f"{fault}."
            )
            why = next(says, otherwise)
            return kit.wrong(said, why, cause=f"{self.name} {why}")

        return kit.Line(text, judge, weight)

    def wrong(self, observed: kit.Observed) -> list[tuple[Question, Any]]:
        """The wrong answers of all lines, as far as they have the right form."""
        answers = [observed.answer(k) for k in range(len(self.questions))]
        values = [None if answer.error is not None else self.read(answer.value) for answer in answers]
        pairs = zip(self.questions, values, strict=True)
        return [(q, value) for q, value in pairs if value not in (None, q.of(self.right))]

    def raised(self, question: Question, error: str = "", text: str = "", place: str = "") -> kit.Finding:
        if error == "NotImplementedError":
            return kit.unwritten(self.name, place)
        said = kit.error_sentence(self.name, error, text, call=question.shown(self.name))
        missing = lacking(error, text)
        if missing in AXES and missing not in question.sizes:
            return kit.wrong(said, LACKS_AXES, cause=f"{self.name} raised {error}")
        hint = HAS_AXIS if missing in question.sizes else ""
        return kit.wrong(said, kit.at(place), hint, cause=f"{self.name} raised {error}")

    def case(self, lines: list[kit.Line]) -> kit.Case:
        sides = [kit.evaluating(self.calls)]
        return kit.Case(self.name, sides, lines, recipe=kit.SIZES, alone=True)


def lacking(error: str, text: str) -> str:
    """The key of a KeyError."""
    return text.strip("'\"") if error == "KeyError" else ""


def tried(question: Question, slip: Formula) -> Any:
    """The slip's answer; None if the mistake cannot be made there."""
    try:
        return question.of(slip)
    except (ArithmeticError, IndexError, ValueError):
        return None


def everywhere(sizes: Sizes, *more: Any) -> list[Question]:
    """The question to every rank of the mesh."""
    return [Question(rank, sizes, more) for rank in range(prod(sizes.values()))]


def ints(value: Any) -> list[int] | None:
    """A list of whole numbers, from a list, a range or a tensor that came back as plain data."""
    match value:
        case {"range": [int(start), int(stop), int(step)]} if step:
            value = list(range(start, stop, step)[:1000])
        case {"tensor": list(elements), "shape": [_]}:
            value = elements
    return value if isinstance(value, list) and all(type(item) is int for item in value) else None
