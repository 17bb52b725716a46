"""The sample class and a real class never share an output folder."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from autograder.__main__ import _parser, main
from autograder.commands import folder
from autograder.course import config
from autograder.sample import apart


def put(out: Path, *students: str) -> None:
    """Results as grading leaves them, as far as their names go."""
    for student in students:
        path = out / "results" / "00_toy" / f"{student}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


@pytest.mark.parametrize(
    ("real", "sample", "read"),
    [
        ([], [], "out"),
        ([], ["sample-perfect"], "sample"),
        (["ann"], ["sample-perfect"], "out"),
        (["ann"], [], "out"),
        # an older version graded the sample class into the folder of a real one
        (["sample-perfect"], [], "out"),
        (["sample-perfect"], ["sample-perfect"], "sample"),
        (["ann", "sample-perfect"], ["sample-perfect"], "out"),
    ],
)
def test_a_real_class_is_read_as_soon_as_there_is_one(
    tmp_path: Path, real: list[str], sample: list[str], read: str
) -> None:
    put(tmp_path / "out", *real)
    put(tmp_path / "sample", *sample)
    assert apart.graded_folder(tmp_path / "out", tmp_path / "sample") == tmp_path / read


def test_a_command_says_that_it_reads_the_sample(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(apart, "graded_folder", lambda: config.SAMPLE_OUT)
    assert folder.out_of(Namespace(out=None)) == config.SAMPLE_OUT
    assert "this is the sample class" in capsys.readouterr().out
    assert folder.out_of(Namespace(out=tmp_path)) == tmp_path
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["grade", "report", "clean", "export canvas roster.csv"])
def test_no_command_fixes_the_folder_before_it_runs(command: str) -> None:
    words = command.split()
    assert _parser(words[0]).parse_args(words).out is None


def test_the_sample_is_not_graded_into_the_folder_of_a_real_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "bob", "ann")
    assert main(["grade", "--out", str(tmp_path)]) == 2
    assert "holds the grades of ann, bob" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing else was written"


def test_formgrader_opens_the_folder_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from traitlets.config.loader import PyFileConfigLoader

    def book() -> str:
        loader = PyFileConfigLoader("nbgrader_config.py", path=str(config.ROOT))
        return loader.load_config().CourseDirectory.db_url

    monkeypatch.setenv("COURSE_OUT", str(tmp_path))
    assert book() == f"sqlite:///{tmp_path / 'gradebook.db'}"
    monkeypatch.setenv("COURSE_OUT", "")  # as `make formgrader` sets it without OUT
    assert book() == f"sqlite:///{apart.graded_folder() / 'gradebook.db'}"
