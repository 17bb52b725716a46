"""Sentences say how they follow from each other: counts of notebooks, of their messages, and of the pages.

    PYTHONPATH=tools python -m tests.project.test_connections    stores what is better than before, or new

A colon that joins two clauses stands for *because*, *so* or *but*. Two counts tell prose that flows from
facts in a row: such colons for each 1,000 words, and the share of sentences that have a connective. Messages
have a third: how many open with *That is*, and do not name what is wrong. `english.json` holds the best
counts so far. They may get better, and worse only by SLACK, so that one sentence can be added or cut.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from autograder.course.config import SOLUTIONS, assignments
from autograder.course.twin import read_twin
from tests.project.test_sentences import strings

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).with_name("english.json")
MESSAGES = ROOT / "course_lib" / "checks" / "notebooks"
COLON = re.compile(r"(?<=[a-z`)*%0-9]): (?=[a-z`(])")
OPENER = re.compile(r"(?:^|(?<=[.!?] )|(?<=\n))(?:That|Those|It) (?:is|are|was|were|has|have)\b")
CONNECTIVE = re.compile(
    r"\b(?:so|but|because|since|therefore|however|instead|otherwise|whereas|although|though|then|also|while|"
    r"this means|for example|as a result|finally)\b",
    re.IGNORECASE,
)
CURE = (
    "The unit of colons and openers is 1,000 words, and that of connectives is 100 sentences. Look at the "
    "sentences that `git diff` shows. Write *because*, *so* or *but* where a colon joins two clauses, and "
    "say how a sentence follows from the one before it."
)
SLACK = {"colons": 0.6, "connectives": -2.0, "openers": 0.6}
NOT_PROSE = re.compile(r"^```.*?^```$|^\|.*?$", re.MULTILINE | re.DOTALL)
FOLDS = re.compile(r"</?(?:details|summary|code|i|em|pre|a)\b[^>]*>")

Counts = dict[str, float]


def counts(text: str, of_messages: bool = False) -> Counts:
    """Colons and openers for each 1,000 words, connectives for each 100 sentences."""
    words = len(text.split()) / 1000
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    each = [one for part in paragraphs for one in re.split(r"(?<=[.!?])\s+", part)]
    each = [one for one in each if len(one.split()) > 2]
    connected = sum(bool(CONNECTIVE.search(one)) for one in each)
    found = {
        "colons": round(len(COLON.findall(text)) / words, 1),
        "connectives": round(100 * connected / len(each), 1),
    }
    return found | ({"openers": round(len(OPENER.findall(text)) / words, 1)} if of_messages else {})


def notebook(name: str) -> Counts:
    cells = read_twin(SOLUTIONS / name / f"{name}.py").cells
    return counts(prose(cell.source for cell in cells if cell.cell_type == "markdown"))


def page(name: str) -> Counts:
    return counts(prose([(ROOT / name).read_text(encoding="utf-8")]))


def prose(texts: Iterable[str]) -> str:
    """Markdown without its tables and its blocks of code, whose rows are not sentences."""
    unfolded = (FOLDS.sub("\n", text) for text in texts)
    return "\n\n".join(NOT_PROSE.sub("", text) for text in unfolded)


def messages(package: str) -> Counts:
    """The strings of five words and more, docstrings left out, of the checks of a notebook."""
    found: list[str] = []
    for path in sorted((MESSAGES / package).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
                node
            ):
                node.body[0] = ast.Pass()
        found += [text.strip() for _, text in strings(tree) if len(text.split()) >= 5]
    return counts("\n\n".join(found), of_messages=True)


def pages() -> list[str]:
    """Every page but those that only list, namely the changelog and what a GPU gave."""
    places = ("*.md", "docs/*.md", "examples/*.md", "autograder/*.md")
    found = [path.relative_to(ROOT).as_posix() for place in places for path in ROOT.glob(place)]
    return sorted(name for name in found if name != "CHANGELOG.md")


def packages() -> list[str]:
    return sorted(path.parent.name for path in MESSAGES.glob("*/__init__.py"))


def measured() -> dict[str, Counts]:
    return (
        {name: notebook(name) for name in assignments()}
        | {package: messages(package) for package in packages()}
        | {name: page(name) for name in pages()}
    )


def is_worse(count: str, value: float, before: float, slack: float) -> bool:
    return value < before + slack if SLACK[count] < 0 else value > before + slack


@pytest.mark.parametrize("name", [*assignments(), *packages(), *pages()])
def test_sentences_are_connected_as_well_as_before(name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert name in stored, "PYTHONPATH=tools python -m tests.project.test_connections"
    count = messages if name in packages() else page if name in pages() else notebook
    found = count(name)
    worse = [
        f"{name}: {value} {kind}, and {stored[name][kind]} before"
        for kind, value in found.items()
        if is_worse(kind, value, stored[name][kind], SLACK[kind])
    ]
    assert not worse, "\n".join([*worse, CURE])


def test_the_counts_tell_facts_in_a_row_from_prose() -> None:
    row = counts("The keys go round once more: they were not kept. That is the point.", True)
    prose = counts(
        "The keys go around once more, because no rank has kept them. So it is a ring.", True
    )
    assert row["colons"] > 0 == prose["colons"]
    assert row["openers"] > 0 == prose["openers"]
    assert row["connectives"] == 0 < prose["connectives"]


def test_only_better_counts_are_stored() -> None:
    assert better({"colons": 3.0, "connectives": 30.0}, {"colons": 4.0, "connectives": 31.0}) == {
        "colons": 3.0,
        "connectives": 31.0,
    }


def better(before: Counts, now: Counts) -> Counts:
    return {
        count: before[count]
        if count in before and is_worse(count, value, before[count], 0.0)
        else value
        for count, value in now.items()
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    known = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    best = {name: better(known.get(name, {}), found) for name, found in measured().items()}
    STORED.write_text(f"{json.dumps(best, indent=1)}\n", encoding="utf-8")
