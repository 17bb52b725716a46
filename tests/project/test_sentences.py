"""Docstrings, comments and messages have subjects: the two patterns of test_docs.py in the code."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project.test_docs import HEADLESS, IS_NO, SUBJECTS, sentences

ROOT = Path(__file__).resolve().parents[2]
DONE = ("autograder", "benchmarks", "course_lib", "examples", "tests", "tools")
CELLS = ("tests/cheats", "tests/mutants", "tests/outside")  # answers of made-up students
REASONS = ("pytest.fail", "pytest.mark.skipif", "pytest.mark.xfail", "pytest.skip")

Reader = Callable[[str], Iterator[tuple[int, str]]]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, messages and comments of a module, each with its line; words alone are not sentences."""
    yield from strings(ast.parse(source))
    yield from comments(source)


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """A test's texts for its readers: docstrings, comments, messages of assertions, reasons of skips.

    Its other strings are inputs, names of cases, or messages of the product, whose own files are checked.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from strings(node)
        elif isinstance(node, ast.Assert) and node.msg:
            yield from strings(node.msg)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in REASONS:
            yield from strings(node)
    yield from comments(source)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings in a tree; of an f-string the whole, with `x` for its values."""
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


def headless(source: str, read: Reader = texts) -> list[str]:
    """ "line: sentence" of each sentence with one of the two patterns; questions are free."""
    return [
        f"{line}: {sentence}"
        for line, text in read(source)
        for sentence in sentences(text)
        if len(sentence.split()) > 1 and not sentence.endswith("?")
        if HEADLESS.search(sentence) or IS_NO.search(sentence)
    ]


@pytest.mark.parametrize("folder", DONE)
def test_sentences_have_a_noun_as_their_subject(folder: str) -> None:
    files = [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(path.is_relative_to(ROOT / cells) for cells in CELLS)
    ]
    assert files
    read = remarks if folder == "tests" else texts
    found = [
        f"{path.relative_to(ROOT)}:{sentence}"
        for path in files
        for sentence in headless(path.read_text(encoding="utf-8"), read)
    ]
    assert not found, "\n".join([*found, SUBJECTS])


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


def test_of_a_test_the_texts_for_its_readers_are_read() -> None:
    source = """
def test_one():
    'What it tests.'
    if SMALL:
        pytest.skip(f"{machine} is no GPU")
    assert said("who sends") == "Nobody waited.", "nobody waits"  # what was said
"""
    found = [line.partition(": ")[2] for line in headless(source, remarks)]
    assert sorted(found) == ["What it tests.", "`x` is no GPU", "nobody waits", "what was said"]
