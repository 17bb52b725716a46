"""Sentences of notebooks have subjects, lectures are cited in folds alone, and no notebook is too long."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from nbformat import NotebookNode

from autograder.course.build import DOCUMENTED
from autograder.course.config import SOLUTIONS, assignments
from autograder.course.twin import read_twin
from tests.project.test_docs import HEADLESS, IS_NO, SUBJECTS, sentences

TAG = re.compile(r"</?(?:details|summary|pre)>")
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
FOOTNOTE = re.compile(r"^\[\^\w+\]:.*(?:\n[ \t]+.*)*", re.MULTILINE)
LECTURE = re.compile(r"\blectures?\b", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z0-9][\w'’.,-]*")
HTML = re.compile(
    r"^</?(?:details|summary|div|p|br|center|table)\b.*(?:\n(?!\s*$).*)*", re.MULTILINE
)
CODE = re.compile(r"<(code|pre)>.*?</\1>", re.DOTALL)
MARKDOWN = re.compile(r"`|\*\*|(?<![\w*])\*[^\s*][^*\n]*\*(?!\w)|\]\(")
MOST_WORDS, MOST_CELLS = 6500, 120  # of a notebook, with its optional sections


def cells(assignment: str) -> list[NotebookNode]:
    return read_twin(SOLUTIONS / assignment / f"{assignment}.py").cells


def remarks(code: str) -> Iterator[str]:
    """The docstrings of a cell, and its comments; those on successive lines are one text."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield docstring
    lines: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if not (alone and token.start[0] - 1 in lines):
                yield " ".join(lines.values())
                lines = {}
            lines[token.start[0]] = token.string.lstrip("# ")
    yield " ".join(lines.values())


def without_subject(text: str) -> list[str]:
    """The sentences with one of the two patterns; questions are free, in bold type as well."""
    return [
        sentence
        for sentence in sentences(TAG.sub("\n\n", text))
        if not sentence.rstrip("*_)").endswith("?")
        and (HEADLESS.search(sentence) or IS_NO.search(sentence))
    ]


def lectures_in_running_text(cell: NotebookNode) -> list[str]:
    """Lines that speak of a lecture outside folded notes and footnotes; code has neither."""
    text = cell.source
    if cell.cell_type == "markdown":
        text = FOOTNOTE.sub("", FOLDED.sub("", text))
    return [line for line in text.splitlines() if LECTURE.search(line)]


@pytest.mark.parametrize("assignment", assignments())
def test_sentences_have_a_noun_as_their_subject(assignment: str) -> None:
    found = [
        f"{cell.id}: {sentence}"
        for cell in cells(assignment)
        for text in ([cell.source] if cell.cell_type == "markdown" else remarks(cell.source))
        for sentence in without_subject(text)
    ]
    assert not found, "\n".join([*found, SUBJECTS])


@pytest.mark.parametrize("assignment", assignments())
def test_a_notebook_can_be_worked_in_one_sitting(assignment: str) -> None:
    """A cell more means that another is merged or cut, and so does a paragraph outside folded notes."""
    every = cells(assignment)
    texts = [FOLDED.sub("", cell.source) for cell in every if cell.cell_type == "markdown"]
    words = sum(len(WORD.findall(text)) for text in texts)
    assert len(every) <= MOST_CELLS, (
        f"{assignment} has {len(every)} cells, and {MOST_CELLS} are allowed. Merge or cut cells of its twin."
    )
    assert words <= MOST_WORDS, (
        f"{assignment} has {words:,} words outside folded notes, and {MOST_WORDS:,} are allowed. Cut some."
    )


@pytest.mark.parametrize("assignment", assignments())
def test_no_markdown_is_inside_html(assignment: str) -> None:
    """From a line that begins with a tag to the next empty line, Jupyter shows `name` and *word* as typed."""
    shown = [
        line
        for cell in cells(assignment)
        if cell.cell_type == "markdown"
        for block in HTML.findall(CODE.sub("", cell.source))
        for line in block.splitlines()
        if MARKDOWN.search(line)
    ]
    assert not shown, "\n".join(shown)


@pytest.mark.parametrize("assignment", assignments())
def test_running_text_does_without_the_lectures(assignment: str) -> None:
    """Most readers do not have them."""
    found = [
        f"{cell.id}: {line}"
        for cell in cells(assignment)
        for line in lectures_in_running_text(cell)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["Text.\n\n**What counts is time.**", "<details><summary>Hint</summary>Who waits is lost.</details>",
     "- It costs nobody a point."],
)  # fmt: skip
def test_the_patterns_are_found_in_text(text: str) -> None:
    assert without_subject(text)


def test_a_question_in_bold_type_is_free() -> None:
    assert not without_subject("**What is a rank?**")


@pytest.mark.parametrize(
    "code",
    ['def f():\n    """What it holds."""', "x = 1  # what follows is text",
     "# It is there\n# for whoever asks.", 'class C:\n    """One.\n\n    It is no module."""'],
)  # fmt: skip
def test_the_patterns_are_found_in_code(code: str) -> None:
    assert any(without_subject(text) for text in remarks(code))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("(Lecture 001 says so.)", 1),
        ("Text.\n\n<details><summary>In the lectures</summary>Lecture 001\nsays so.</details>", 0),
        ("Text.[^1]\n\n[^1]: Lecture 001\n    says so.\n\nThe lecture's picture.", 1),
    ],
)
def test_lectures_are_found_outside_of_notes(source: str, lines: int) -> None:
    cell = NotebookNode(cell_type="markdown", source=source)
    assert len(lectures_in_running_text(cell)) == lines
