"""Questions about functions of a model's sizes: their arguments, and the number that is judged.

A call's arguments are written as they are typed: a `Model`, numbers, and `Keywords` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from course_lib.checks.kit import (
    Case,
    Finding,
    Formula,
    Line,
    Observed,
    Prediction,
    RankSide,
    Sentence,
    at,
    equal,
    error_kind,
    judge_prediction,
    numeric,
    wrong,
)
from course_lib.models import PUBLISHED, GPTConfig

REFERENCES = ("course_lib.estimates", "course_lib.facts")
RECIPE = "course_lib.checks.rank.notebooks.why_distribute.sizes:evaluate_sizes"
EXACT = 1e-6
DEFAULTS = GPTConfig()


@dataclass(frozen=True, repr=False)
class Model(GPTConfig):
    """A configuration that a message names: by a published model's name, or by what is not the default."""

    def __repr__(self) -> str:
        for name, config in PUBLISHED.items():
            if asdict(config) == asdict(self):
                return name
        sizes = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(DEFAULTS, f.name)
        ]
        return f"GPTConfig({', '.join(sizes)})"


class Keywords(dict[str, Any]):
    """Keyword arguments, at the end of a call's arguments."""

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.items())


def published(name: str) -> Model:
    return Model(**asdict(PUBLISHED[name]))


def spread(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula, of arguments that may end with Keywords."""

    def of(*args: Any) -> Any:
        if args and isinstance(args[-1], Keywords):
            return formula(*args[:-1], **args[-1])
        return formula(*args)

    return of


class Misfit(str):
    """Words for an answer that does not have the agreed form: "a dict without 'norms'"."""


def whole(value: Any) -> Any:
    return value


def entry(key: str) -> Callable[[Any], Any]:
    """Of an answer that is a dict the value under `key`."""

    def pick(value: Any) -> Any:
        listed = value.get("dict") if isinstance(value, dict) else None
        if not isinstance(listed, list):
            return Misfit("something else than a dict")
        pairs = [pair for pair in listed if isinstance(pair, list) and len(pair) == 2]
        values = [item for name, item in pairs if name == key]
        return values[0] if values else Misfit(f"a dict without {key!r}")

    return pick


def place(index: int, size: int) -> Callable[[Any], Any]:
    """Of an answer that is a tuple of `size` numbers the one at `index`."""

    def pick(value: Any) -> Any:
        if isinstance(value, list) and len(value) == size:
            return value[index]
        return Misfit(f"something else than {size} numbers")

    return pick


@dataclass(frozen=True)
class Question:
    """A line of the table: a function on some arguments.

    called: the function, if the number has a name of its own. pick: from an answer to its number, or a
    Misfit; tolerance: relative, within which a number counts as right; slips: the formulas of usual mistakes,
    by their sentences; the rest as in `Prediction`.
    """

    name: str
    index: int
    arguments: Sequence[tuple]
    formula: Formula
    slips: Mapping[str, Formula] = field(default_factory=dict)
    weight: float = 1.0
    title: str = ""
    otherwise: str = ""
    pick: Callable[[Any], Any] = whole
    tolerance: float = EXACT
    called: str = ""

    @property
    def function(self) -> str:
        return self.called or self.name

    @property
    def prediction(self) -> Prediction:
        return Prediction(
            self.name, self.index, self.arguments, spread(self.formula),
            {says: spread(formula) for says, formula in self.slips.items()},
            self.weight, self.title, self.otherwise,
        )  # fmt: skip

    def judge(self, start: int) -> Callable[[Observed], Finding]:
        """Of the answers from number `start` on."""
        prediction = self.prediction
        inner = judge_prediction(prediction, start)

        def judge(observed: Observed) -> Finding:
            for k, args in enumerate(prediction.arguments, start=start):
                answer = observed.answer(k)
                typed = f"{self.function}({', '.join(map(repr, args))})"
                if answer.error is not None:
                    return self.raised(typed, *answer.error)
                if isinstance(misfit := self.pick(answer.value), Misfit):
                    general = f"{self.function} gives {misfit} for some arguments."
                    return wrong(Sentence(f"{typed} gives {misfit}.", general))
            return inner(_Picked(observed, prediction, start, self.pick, self.tolerance))  # type: ignore[arg-type]

        return judge

    def raised(self, typed: str, error: str, text: str, where: str) -> Finding:
        """typed: the call. The lines of one function that raises have one cause."""
        if error == "NotImplementedError":
            return wrong(f"{self.function} is not written yet.")
        said = Sentence(
            f"{typed} raised {error}: {text}", f"{self.function} raised {error_kind(error)}."
        )
        return wrong(said, at(where), cause=f"{self.function} raised {error}")


@dataclass(frozen=True)
class _Picked:
    """The observation, with the picked numbers in place of the answers.

    A number within the tolerance is replaced by the right one, for instance of a search for a minimum.
    """

    observed: Observed
    prediction: Prediction
    start: int
    pick: Callable[[Any], Any]
    tolerance: float

    def answer(self, index: int) -> Any:
        answer = self.observed.answer(index)
        value, args = self.pick(answer.value), self.prediction.arguments[index - self.start]
        number, right = numeric(value), self.prediction.formula(*args)
        if number is not None and equal(number, right, self.tolerance):
            value = right
        return replace(answer, value=value)


def asked(questions: Sequence[Question]) -> Iterator[Case]:
    """A case for each function, so that one which never ends costs no other; a line for each question."""
    for index in dict.fromkeys(question.index for question in questions):
        calls: list[list] = []
        lines: list[Line] = []
        for question in (q for q in questions if q.index == index):
            title = question.title or question.name
            lines.append(Line(title, question.judge(len(calls)), question.weight))
            calls += [call(index, args) for args in question.arguments]
        side = RankSide({}, {"calls": calls}, {})
        yield Case(f"function {index}", [side], lines, recipe=RECIPE, alone=True)


def call(index: int, args: Sequence[Any]) -> list:
    """A call of the recipe's: the object's index, the arguments as plain data, and keyword arguments."""
    plain = [described(value) for value in args if not isinstance(value, Keywords)]
    keywords = [dict(value) for value in args if isinstance(value, Keywords)]
    return [index, plain, *keywords]


def described(value: Any) -> Any:
    if isinstance(value, GPTConfig):
        return {"config": asdict(value)}
    return {"tuple": list(value)} if isinstance(value, tuple) else value
