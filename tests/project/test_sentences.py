"""Docstrings, comments and messages have subjects: the two patterns of test_docs.py in the code."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_docs import HEADLESS, IS_NO, sentences

ROOT = Path(__file__).resolve().parents[2]
DONE = ("benchmarks", "course_lib", "examples", "tools")
NOT_YET = ("course_lib/checks",)  # inside folders that are done
# Messages that outputs in the instructor's notebooks show: they change when these are executed anew.
KEPT = ("nobody waited for", "what arrives may be the old values")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, messages and comments of a module, each with its line; words alone are not sentences."""
    tree = ast.parse(source)
    inside: set[int] = set()  # the pieces of f-strings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(piece) for piece in ast.walk(node)}
            pieces = [
                piece.value if isinstance(piece, ast.Constant) else "`x`" for piece in node.values
            ]
            yield node.lineno, "".join(map(str, pieces))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value
    yield from comments(source)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments; lines of a block are one text, a comment behind code is another."""
    began, block, last = 0, "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("#: ")
        alone = token.line.lstrip().startswith("#")
        if alone and line == last + 1:
            block += f" {text}"
        else:
            yield began, block
            began, block = line, text
        last = line if alone else 0
    yield began, block


def headless(source: str) -> list[str]:
    """ "line: sentence" of each sentence with one of the two patterns; questions are free."""
    return [
        f"{line}: {sentence}"
        for line, text in texts(source)
        for sentence in sentences(text)
        if len(sentence.split()) > 1 and not sentence.endswith("?")
        if HEADLESS.search(sentence) or IS_NO.search(sentence)
        if not any(kept in sentence for kept in KEPT)
    ]


@pytest.mark.parametrize("folder", DONE)
def test_sentences_have_a_noun_as_their_subject(folder: str) -> None:
    files = [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(path.is_relative_to(ROOT / other) for other in NOT_YET)
    ]
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{sentence}"
        for path in files
        for sentence in headless(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kept", KEPT)
def test_kept_messages_stand_in_a_notebook(kept: str) -> None:
    notebooks = (ROOT / "solutions").rglob("*.ipynb")
    assert any(kept in notebook.read_text(encoding="utf-8") for notebook in notebooks)


@pytest.mark.parametrize(
    "source",
    [
        '"""What a rank sends."""',
        'def f():\n    """One line.\n\n    limit: bytes; whoever holds more is ended.\n    """',
        "# The first line of a block, of which nobody\n# reads the second",
        "x = 1  # what comes after it",
        'raise ValueError(f"{x!r} is no tensor")',
    ],
)
def test_the_patterns_are_found_in_code(source: str) -> None:
    assert len(headless(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'x = ["who", "what"]',
        "# There is no other. Who waits for whom?",
        'f"{what}: {who} sends it"',
    ],
)
def test_words_and_questions_are_free(source: str) -> None:
    assert headless(source) == []
