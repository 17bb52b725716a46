"""The page that is handed out: short, true with and without a repository, and made from the notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.course.config import NOTEBOOKS, assignments
from autograder.course.handout import page
from autograder.course.package import PackageError, build_wheel
from autograder.course.place import Place, ReleaseError
from autograder.course.release import write_release
from tests.project.test_docs import HEADLESS, IS_NO, SUBJECTS, sentences

PACKAGE = "course_lib-0.1.0-py3-none-any.whl"
PLACES = [None, Place("someone/course")]
TEXTS = {name: (NOTEBOOKS / name / f"{name}.ipynb").read_bytes() for name in assignments()}

in_both = pytest.mark.parametrize("place", PLACES, ids=["alone", "repository"])


@in_both
def test_the_page_answers_a_students_questions(place: Place | None) -> None:
    text = page(TEXTS, PACKAGE, place)
    assert re.findall("^## (.+)$", text, re.MULTILINE) == [
        "Install", "Work", "See your points, and hand in", "Ask",
    ]  # fmt: skip
    for host in ("Linux", "WSL2", "Mac", "Colab", "Kaggle", "Runpod", "rented machine"):
        assert host in text
    for command in ("python -m course_lib.progress", "python -m course_lib.submit 00_first_ranks/"):
        assert command in text
    assert f'"./{PACKAGE}[lab]"' in text and "instructor" in text
    for name in assignments():
        assert f"[{name[:2]} · " in text, "a link's text is the notebook's title"
    assert not re.search("owner/name|ADDRESS|{|}", text, re.IGNORECASE)


@in_both
def test_the_page_is_at_most_a_screen_and_a_half(place: Place | None) -> None:
    """At 50 lines a screen, and blank lines are not shown as such."""
    assert len([line for line in page(TEXTS, PACKAGE, place).splitlines() if line]) <= 75


@in_both
def test_its_sentences_have_a_noun_as_their_subject(place: Place | None) -> None:
    found = [
        sentence
        for sentence in sentences(page(TEXTS, PACKAGE, place))
        if HEADLESS.search(sentence) or IS_NO.search(sentence)
    ]
    assert not found, SUBJECTS


def test_with_a_repository_no_upload_is_asked_for() -> None:
    alone, fetched = (page(TEXTS, PACKAGE, place) for place in PLACES)
    assert "%pip" in alone and "colab.research" not in alone
    assert "%pip" not in fetched and "colab.research.google.com/github/someone/course" in fetched


@pytest.mark.parametrize(
    ("place", "save"),
    list(zip(PLACES, ["*File → Save*", "*File → Save a copy in Drive*"], strict=True)),
)
def test_colab_loses_what_is_not_saved_and_the_page_says_so_before_a_cell_is_run(
    place: Place | None, save: str
) -> None:
    text = " ".join(page(TEXTS, PACKAGE, place).partition("**Colab")[2].split())
    lost = text.index("have not saved")
    assert "are lost when the tab's machine ends" in text[lost:]
    assert text.index(save) < re.search(r"\brun\b", text, re.IGNORECASE).start()
    assert lost < re.search(r"\brun\b", text, re.IGNORECASE).start()


def test_a_release_of_some_notebooks_begins_with_the_first_of_them() -> None:
    text = page({name: TEXTS[name] for name in assignments()[2:4]}, PACKAGE, None)
    assert "Begin with [02 · " in text and "00_first_ranks" not in text


def test_questions_go_to_the_address_that_was_given() -> None:
    assert "ask at <https://forum.example.org/c/7>" in page(
        TEXTS, PACKAGE, None, "https://forum.example.org/c/7"
    )


@pytest.mark.parametrize(
    "address", ["forum", "https://", "https://a b", "https://a>b", "ftp://a.org"]
)
def test_an_address_that_cannot_be_one_is_refused(tmp_path: Path, address: str) -> None:
    wheel = tmp_path / PACKAGE
    wheel.write_bytes(b"")
    with pytest.raises(ReleaseError, match="is not an address"):
        write_release(["00_first_ranks"], tmp_path / "out", package=wheel, questions=address)
    assert not (tmp_path / "out").exists()


def test_a_package_that_cannot_be_built_is_said(tmp_path: Path) -> None:
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).write_text("")
    (tmp_path / "course_lib").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project")
    with pytest.raises(PackageError, match=r"could not be built: .*setuptools"):
        build_wheel(tmp_path / "into", root=tmp_path)


def test_with_a_repository_the_instructor_reads_what_it_must_hold(tmp_path: Path, capsys) -> None:
    into = str(tmp_path / "handout")
    assert main(["release", "00", "--repository", "someone/course", "--into", into]) == 0
    said = capsys.readouterr().out
    assert "as notebooks/ on the branch main of github.com/someone/course" in said
    assert "pyproject.toml" in said and "course_lib/" in said
    assert main(["release", "00", "--into", into]) == 0
    assert "github.com" not in capsys.readouterr().out
