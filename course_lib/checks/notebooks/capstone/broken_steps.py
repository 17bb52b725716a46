"""broken_steps: three steps that are wrong on some layouts, the axes that each needs to fail, the causes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.references import REFERENCES

AXES = ("pp", "dp", "cp", "tp")
# Each cause by its key in the notebook's table, and where it would show.
CAUSES: Mapping[str, str] = {
    "mean": "It would show with cp and no other axis, from the second loss on.",
    "bias": "It would show with tp and no other axis, and in the first loss, because a bias is added in "
    "forward.",
    "norms": "It would show with tp and no other axis, but not before the second loss, because a gradient "
    "is missing.",
    "positions": "It would show only if pp and cp meet, but then already in the first loss.",
    "head": "It would show with pp and no other axis, if the head were tied to the embedding.",
    "groups": "It would show only if tp meets replicas, because ranks that differ only in dp or cp hold "
    "the same parameters.",
    "rows": "It would show only if dp and tp meet, but then already in the first loss.",
}  # fmt: skip
UNTOUCHED = (
    "It would need the same axes, but the function leaves the rows to `make_step`, which deals them out "
    "correctly. Look at the ranks in the function's group."
)
FORM = 'Write the answer as (axes, cause), such as ({"cp"}, "mean").'


@dataclass(frozen=True)
class Broken:
    """A step: the smallest sets of axes with which it fails, any of which is right, and its cause."""

    name: str
    needs: tuple[frozenset[str], ...]
    cause: str

    def fails(self, axes: frozenset[str]) -> bool:
        return any(axes >= needed for needed in self.needs)


def needing(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(axes.split()) for axes in sets)


BROKEN = {
    "broken_a": Broken("step_a", needing("tp"), "norms"),
    "broken_b": Broken("step_b", needing("pp cp"), "positions"),
    "broken_c": Broken("step_c", needing("dp tp", "cp tp"), "groups"),
}


# ---- the form of an answer


def pair(answer: Any) -> tuple[Any, Any] | None:
    return (answer[0], answer[1]) if isinstance(answer, list) and len(answer) == 2 else None


def axes_of(said: Any) -> frozenset[str] | None:
    """The names in a set, a list, a dict of sizes, or a text such as "dp, tp"; None for anything else."""
    if isinstance(said, str):
        said = re.findall(r"\w+", said)
    elif isinstance(said, dict) and isinstance(said.get("dict"), list):
        items = [item for item in said["dict"] if isinstance(item, list) and len(item) == 2]
        said = [name for name, size in items if size != 1]
    names = (
        [name.strip().lower() if isinstance(name, str) else "" for name in said]
        if isinstance(said, list)
        else [""]
    )
    return frozenset(names) if all(name in AXES for name in names) else None


Look = Callable[[Broken, str, Any, Any], kit.Finding]


def line(name: str, index: int, what: str, look: Look) -> kit.Line:
    broken = BROKEN[name]

    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index).value
        if answer in kit.UNANSWERED:
            return kit.wrong(f"{name} is not answered yet.")
        if (parts := pair(answer)) is None:
            return kit.wrong(f"{name} must be a pair.", FORM, cause=f"{name} form")
        return look(broken, name, *parts)

    return kit.Line(f"{broken.name}: {what}", judge)


def judge_axes(broken: Broken, name: str, said: Any, _: Any) -> kit.Finding:
    axes = axes_of(said)
    if axes is None:
        return kit.wrong(f"the axes of {name} must be among {words.listing(map(repr, AXES))}.", FORM)
    if axes in broken.needs:
        return kit.RIGHT
    shown = words.listing(axis for axis in AXES if axis in axes) or "no axis"
    if not broken.fails(axes):
        return kit.wrong(
            f"{broken.name} is right on layouts with {shown} and nothing else.",
            "Launch it there and compare, because the axes it needs make it fail without any other axis.",
        )
    spare = words.listing(axis for axis in AXES if axis in axes and broken.fails(axes - {axis}))
    return kit.wrong(
        f"{broken.name} fails with {shown}, but still fails without {spare}.",
        "Go on until no axis can be set to 1.",
    )


def judge_cause(broken: Broken, name: str, _: Any, said: Any) -> kit.Finding:
    cause = said.strip().lower() if isinstance(said, str) else ""
    if cause not in CAUSES:
        return kit.wrong(f"the cause of {name} must be {words.listing(map(repr, CAUSES), 'or')}.")
    if cause == broken.cause:
        return kit.RIGHT
    hint = UNTOUCHED if (broken.cause, cause) == ("groups", "rows") else CAUSES[cause]
    return kit.wrong(f"{cause!r} is not the cause in {broken.name}.", hint)


@kit.exercise(points=3, objects=tuple(BROKEN), references=REFERENCES, constants=True)
def broken_steps(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = []
    for index, name in enumerate(BROKEN):
        lines += [line(name, index, "the axes", judge_axes), line(name, index, "the cause", judge_cause)]
    sides = [kit.evaluating([[index, None] for index in range(len(BROKEN))])]
    yield kit.Case("answers", sides, lines, recipe=kit.EVALUATE, alone=True)
