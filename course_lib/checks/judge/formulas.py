"""Functions of plain numbers that a student writes, held against closed forms.

A process without ranks evaluates them (see `course_lib.runtime.alone`); the answers come back as plain
data. If they are the values of another, usual formula, the report names that formula's mistake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks import words
from course_lib.checks.judge.build import evaluating
from course_lib.checks.judge.case import RIGHT, Case, Finding, Line, Observed, wrong
from course_lib.checks.judge.unwritten import unwritten
from course_lib.checks.sentence import Sentence, at, error_sentence
from course_lib.models.config import PUBLISHED, GPTConfig

SIZES = "course_lib.checks.rank.sizes:evaluate_sizes"
DEFAULTS = GPTConfig()

Formula = Callable[..., float]
FEW, MOST = 0.1, 1e300  # below and above these ratios no factor is told
# made by a kind of mistake, not by an input
FACTOR = re.compile(r"\d times the right value|the right value is \d times as large")


@dataclass(frozen=True, repr=False)
class Model(GPTConfig):
    """A configuration that a message names: by a published model's name, or by what is not the default."""

    def __repr__(self) -> str:
        for name, config in PUBLISHED.items():
            if vars(config) == vars(self):
                return name
        sizes = (
            f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(DEFAULTS, name)
        )
        return f"GPTConfig({', '.join(sizes)})"


def published(name: str) -> Model:
    return Model(**vars(PUBLISHED[name]))


class Keywords(dict[str, Any]):
    """Keyword arguments: the last of a call's arguments."""

    def __repr__(self) -> str:
        return ", ".join(f"{name}={argument(value)}" for name, value in self.items())


class Misfit(str):
    """Words for an answer that does not have the agreed form: "a dict without 'norms'".

    general: words without what came, which a hidden case may show.
    """

    general: str

    def __new__(cls, words: str, general: str = "") -> Misfit:
        self = super().__new__(cls, words)
        self.general = general or words
        return self


def whole(value: Any) -> Any:
    return value


def entry(key: str) -> Callable[[Any], Any]:
    """The value under `key` of an answer that is a dict."""

    def pick(value: Any) -> Any:
        listed = value.get("dict") if isinstance(value, dict) else None
        if not isinstance(listed, list):
            return Misfit(instead_of("a dict is expected", value), "no dict")
        pairs = [pair for pair in listed if isinstance(pair, list) and len(pair) == 2]
        values = [item for name, item in pairs if name == key]
        return values[0] if values else Misfit(f"a dict without {key!r}")

    return pick


def place(index: int, size: int) -> Callable[[Any], Any]:
    """The number at `index` of an answer that is a tuple of `size` numbers."""

    def pick(value: Any) -> Any:
        if isinstance(value, list) and len(value) == size:
            return value[index]
        return Misfit(instead_of(f"{size} numbers are expected", value), f"no list of {size} numbers")

    return pick


@dataclass(frozen=True)
class Prediction:
    """A function of the student's, compared with a closed form on a list of arguments.

    index: of the object in the exercise; slips: the formulas of usual mistakes, by the sentences that name
    them; otherwise: said when no slip fits; pick: from an answer to its number, or a `Misfit`; tolerance:
    relative; called: the function, if the number has a name of its own; ideas: those of the slips that miss
    the exercise's point; overall: those that speak of all answers, so a right answer that they would not give
    speaks against them. Arguments are plain data or a `Model`, and may end with `Keywords`, which formulas
    take as keyword arguments, too.
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
    tolerance: float = 1e-6
    called: str = ""
    ideas: Collection[str] = ()
    overall: Collection[str] = ()

    def right(self, args: tuple) -> float:
        return applied(self.formula, args)


Asked = tuple[Prediction, int]  # a question, and the number of its first call
Answered = tuple[tuple, float, bool]  # arguments, the number that came, and whether it is right


def applied(formula: Formula, args: tuple) -> float:
    """The formula of these arguments, of which the last may be `Keywords`."""
    if args and isinstance(args[-1], Keywords):
        return formula(*args[:-1], **args[-1])
    return formula(*args)


def evaluated(questions: Sequence[Prediction]) -> Iterator[Case]:
    """A case for each function, so that one which never ends costs no other; a line for each question."""
    for index in dict.fromkeys(question.index for question in questions):
        calls: list[list] = []
        lines: list[Line] = []
        asked: dict[int, list[Asked]] = {}
        for question in (q for q in questions if q.index == index):
            alike = asked.setdefault(id(question.slips), [])
            judge = judge_prediction(question, len(calls), alike)
            alike.append((question, len(calls)))
            title = question.title or question.name
            shows = shows_the_point(question, len(calls))
            lines.append(Line(title, judge, question.weight, shows=shows, part=title))
            calls += [call(index, args) for args in question.arguments]
        sides = [evaluating(calls)]
        yield Case(f"function {index}", sides, lines, recipe=SIZES, alone=True)


def call(index: int, args: Sequence[Any]) -> list:
    """A call of the recipe's: the object's index, the arguments as plain data, and keyword arguments."""
    plain = [described(value) for value in args if not isinstance(value, Keywords)]
    return [index, plain, *(dict(value) for value in args if isinstance(value, Keywords))]


def described(value: Any) -> Any:
    if isinstance(value, GPTConfig):
        return {"config": dict(vars(value))}
    return {"tuple": list(value)} if isinstance(value, tuple) else value


def judge_prediction(
    question: Prediction, start: int, alike: Sequence[Asked] = ()
) -> Callable[[Observed], Finding]:
    """alike: the questions about the same mistakes of the same function, with the numbers of their calls."""

    def judge(observed: Observed) -> Finding:
        values = []
        for k, args in enumerate(question.arguments, start=start):
            answer = observed.answer(k)
            if answer.error is not None:
                return failed(question, args, *answer.error)
            picked = question.pick(answer.value)
            if isinstance(picked, Misfit):
                called = question.called or question.name
                return wrong(misfit(question, args, picked), cause=f"{called}: {picked.general}")
            value = numeric(picked)
            if value is None:
                return wrong(no_number(question, args, picked))
            values.append(value)
        others = [answer for other in alike for answer in numbers(*other, observed)]
        return judge_values(question, values, others)

    return judge


def shows_the_point(question: Prediction, start: int) -> Callable[[Observed], float]:
    """For `Line.shows`: whether the answers are right, or those of one slip that leaves the point intact."""

    def shows(observed: Observed) -> float:
        answers = list(numbers(question, start, observed))
        return float(len(answers) == len(question.arguments) and intact(question, answers))

    return shows


def intact(question: Prediction, answers: Sequence[Answered]) -> bool:
    off = [(args, value) for args, value, right in answers if not right]
    slips = (formula for says, formula in question.slips.items() if says not in question.ideas)
    return not off or any(all(fits(slip, *each) for each in off) for slip in slips)


def numbers(question: Prediction, start: int, observed: Observed) -> Iterator[Answered]:
    """The answers that are numbers."""
    for k, args in enumerate(question.arguments, start=start):
        answer = observed.answer(k)
        value = numeric(question.pick(answer.value)) if answer.error is None else None
        if value is not None:
            yield args, value, equal(value, question.right(args), question.tolerance)


def judge_values(question: Prediction, values: Sequence[float], others: Sequence[Answered] = ()) -> Finding:
    """The finding for numbers that are the answers to the question's arguments, or were made of answers.

    others: answers to questions about the same mistakes, which a hint must explain, too.
    """
    off = [
        (args, value)
        for args, value in zip(question.arguments, values, strict=True)
        if not equal(value, question.right(args), question.tolerance)
    ]
    return explain(question, off, others) if off else RIGHT


def misfit(question: Prediction, args: tuple, form: Misfit) -> Sentence:
    called = question.called or question.name
    return Sentence(
        f"{shown(called, args)} gives {form}.", f"{called} gives {form.general} for some arguments."
    )


def no_number(question: Prediction, args: tuple, value: Any) -> Sentence:
    return Sentence(
        f"{shown(question.name, args)} gives {kind(value)}, not a number.",
        f"{question.name} gives no number for some arguments.",
    )


def failed(question: Prediction, args: tuple, error: str = "", text: str = "", place: str = "") -> Finding:
    """The finding for a call that raised. The lines of one function that has other names have one cause."""
    called = question.called or question.name
    if error == "NotImplementedError":
        return unwritten(called, place)
    said = error_sentence(called, error, text, call=shown(called, args))
    return wrong(said, at(place), cause=f"{called} raised {error}" if question.called else "")


def explain(
    question: Prediction, off: Sequence[tuple[tuple, float]], others: Sequence[Answered] = ()
) -> Finding:
    """The first wrong answer, an argument for which the function is right, and the mistake that fits.

    others: the answers of all lines about the same mistakes. A mistake fits if it gives all wrong ones, and
    best if it gives the right ones as well.
    """
    args, value = off[0]
    said = f"{opened(shown(question.name, args))} gives {words.number(value)}; "
    apart = compared(value, question.right(args))
    said += f"{apart}."
    wrong_for = [arguments for arguments, _ in off]
    good = [
        arguments
        for arguments in question.arguments
        if arguments not in wrong_for and question.right(arguments)
    ]
    if good:
        said += f" {opened(shown(question.name, good[0]))} is right."
    wrong_ones = [*off, *((args, value) for args, value, right in others if not right)]
    right_ones = [(args, value) for args, value, right in others if right]
    fitting = [(s, f) for s, f in question.slips.items() if all(fits(f, a, v) for a, v in wrong_ones)]
    in_all = (s for s, f in fitting if all(fits(f, a, v) for a, v in right_ones))
    slip = next(in_all, next((s for s, f in fitting if possible(question, s, f, wrong_for)), ""))
    factor = f": {apart}" if FACTOR.fullmatch(apart) else ""
    sentence = Sentence(said, f"{opened(question.name)} gives a wrong number for some arguments{factor}.")
    missed = slip in question.ideas
    return wrong(sentence, slip or question.otherwise, cause=f"{question.name}: {slip}", misses_point=missed)


def possible(question: Prediction, says: str, slip: Formula, wrong_for: Sequence[tuple]) -> bool:
    """Whether the line's right answers leave it possible that the student made this slip."""
    right_for = (args for args in question.arguments if args not in wrong_for)
    return says not in question.overall or all(fits(slip, a, question.right(a)) for a in right_for)


def compared(value: float, right: float) -> str:
    """How far off, by a factor if there is one."""
    if not math.isfinite(right):
        return "no finite number is right"
    if not math.isfinite(value):
        return "a finite number is right"
    if right == 0 or value == 0 or value / right < 0:
        return f"{words.number(right)} is right"
    large, small = max(abs(value), abs(right)), min(abs(value), abs(right))
    above = abs(value) == large
    how = "large" if above else "small"
    if abs(value - right) < 0.0005 * abs(right):
        return f"too {how} by less than 0.1 %"
    if abs(value - right) < FEW * abs(right):
        return f"{100 * abs(value - right) / abs(right):.2g} % too {how}"
    if large > MOST * small:
        return f"{words.number(right)} is right"
    factor = f"{words.number(large / small)} times"
    return f"{factor} the right value" if above else f"the right value is {factor} as large"


def opened(sentence: str) -> str:
    """A sentence that begins with "the ..." with a capital letter; a function's name stays as it is."""
    return f"The {sentence.removeprefix('the ')}" if sentence.startswith("the ") else sentence


def shown(name: str, args: Sequence[Any]) -> str:
    return f"{name}({', '.join(map(argument, args))})"


def argument(value: Any) -> str:
    """An argument as one would type it: 4000, 1_000_000, 2e-05, 'broadcast'."""
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def fits(formula: Formula, args: tuple, value: float) -> bool:
    try:
        return equal(value, applied(formula, args))
    except ArithmeticError:  # a wrong formula may divide by zero where the right one does not
        return False


def equal(value: float, right: float, tolerance: float = 1e-6) -> bool:
    if not math.isfinite(right) or not math.isfinite(value):
        return value == right
    return abs(value - right) <= tolerance * abs(right) or abs(value - right) < 1e-15


def numeric(value: Any) -> float | None:
    """A number that came back (see `harness.plain`), or None: True is not a number, nor is a text."""
    if isinstance(value, dict) and isinstance(value.get("tensor"), list):
        value = value["tensor"][0] if len(value["tensor"]) == 1 else None
    if isinstance(value, dict) and value.get("float") in ("inf", "-inf", "nan"):
        return float(value["float"])
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def instead_of(expected: str, value: Any) -> str:
    end = " (is there a `return` at its end?)" if value is None else ""
    return f"{came(value)}, but {expected}{end}"


def came(value: Any) -> str:
    """Words for an answer of another form than the one that was agreed."""
    if value is None:
        return "None"
    if isinstance(value, list):
        return words.counted(len(value), "value") if value else "an empty list"
    if isinstance(value, dict) and "dict" in value:
        return "a dict"
    if isinstance(value, dict) and value.get("other") == "generator":
        return "a generator"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"the number {words.number(value)}"
    return kind(value)


def kind(value: Any) -> str:
    """Words for an answer that is not a number."""
    if value is None:
        return "None (is there a `return`?)"
    if isinstance(value, dict):
        return f"a value of type {value.get('other') or next(iter(value), 'dict')}"
    return f"{value!r}"[:60]
