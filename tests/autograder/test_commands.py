"""Every command explains itself, takes the same words, and answers wrong ones with a sentence."""

from __future__ import annotations

import argparse
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder import commands
from autograder.__main__ import _parser, main
from autograder.commands import grade
from autograder.commands.choice import named
from autograder.course.config import NOTEBOOKS
from autograder.outcome import limits
from autograder.run import lock, session


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands and their steps, by the words that choose them."""

    def below(words: str, parser: argparse.ArgumentParser) -> Iterator:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    yield f"{words} {name}".strip(), inner
                    yield from below(f"{words} {name}".strip(), inner)

    yield from below("", _parser(""))


PARSERS = dict(parsers())
IN_A_CONTAINER = "gradescope run"  # no person types it


def test_every_module_with_a_parser_is_among_them() -> None:
    names = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert {"grade", "export", "mutant", "release", "clean"} <= {*PARSERS} & names


def test_every_command_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "autograder/README.md").read_text("utf-8")
    on_it = set(re.findall(r"(?:\| `|autograder |make )(\w+)", page))
    lacking = {words.split()[0] for words in PARSERS} - on_it
    assert not lacking, f"autograder/README.md: its table of commands needs rows for {lacking}"


@pytest.mark.parametrize("words", PARSERS)
def test_help_says_what_a_command_does_and_takes(words: str) -> None:
    parser = PARSERS[words]
    assert parser.description
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{words}: {action.dest} is not explained"
    assert words == IN_A_CONTAINER or "example: python -m autograder " in (parser.epilog or "")


@pytest.mark.parametrize("words", PARSERS)
def test_every_option_is_explained_and_names_its_default_alike(words: str) -> None:
    for action in PARSERS[words]._actions:
        said = (action.help or "").replace("(default: ", "")
        assert re.match(r"[\w%`]", said), f"{words}: {action.option_strings} is not explained"
        assert not re.search(r"\(%\(default\)s\)|[;,] default\b", said), f"{words}: {said}"
        shown = action.metavar or action.dest.upper()
        assert shown not in ("TO", "OUT", "INTO", "SUBMISSIONS"), (
            f"{words}: {shown} is a file or a folder"
        )


@pytest.mark.parametrize("words", [words for words in PARSERS if PARSERS[words].epilog])
def test_the_example_of_a_command_is_understood(words: str) -> None:
    import shlex

    example = shlex.split((PARSERS[words].epilog or "").partition("python -m autograder ")[2])
    parsed = _parser(example[0]).parse_args(example)
    assert " ".join(example).startswith(words) and parsed.run is not None


@pytest.mark.parametrize("words", ["build", "release", "reliability", "rubric"])
def test_assignments_are_words_or_an_option_as_elsewhere(words: str) -> None:
    known = ["00_a", "02_b", "03_c"]
    for line in (
        "02 03",
        "--assignment 02 03",
        "--assignment 02 --assignment 03",
        "02 --assignment 03",
    ):
        parsed = _parser(words).parse_args([words, *line.split()])
        assert named(parsed, known) == ["02_b", "03_c"]
    assert named(_parser(words).parse_args([words]), known) == known


@pytest.mark.parametrize("line", ["--out X canvas r.csv", "canvas r.csv --out X"])
def test_the_folder_of_an_export_comes_first_or_last(line: str) -> None:
    assert _parser("export").parse_args(["export", *line.split()]).out == Path("X")


@pytest.mark.parametrize(
    "line",
    [
        "mutant {none} title",
        "rubric 00 --to {none}/a/b.html",
        "release 00 --into {none}/a",
        "gradescope bundle 00 --to {none}/a.zip",
        "grade --submissions . --out {none}/a",
        "grade --submissions {none}",
        "report --out {none}",
        "export canvas {none} --out {none}",
        "selftest broken-json --keep {none}",
    ],
)
def test_a_file_that_cannot_be_is_named_in_a_sentence(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below a file there is no folder."""
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "none")
    assert main([word.format(none=place) for word in line.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert place in said and "[Errno" not in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("words", PARSERS)
def test_the_example_can_be_copied(words: str) -> None:
    """It is one line, however long."""
    assert (PARSERS[words].epilog or "") in PARSERS[words].format_help()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("mutant {file} title", "{file} holds no answers: a cell begins with `# %% wrong: title`"),
        ("mutant {bytes} title", "{bytes} is not UTF-8 text."),
        ("mutant {folder} title", "{folder} cannot be read: Is a directory."),
        ("mutant {none} title", "{none} cannot be read: No such file or directory."),
        ("rubric 99", "There is no assignment 99; there are 00_first_ranks, "),
        ("rubric --assignment 99", "There is no assignment 99; there are 00_first_ranks, "),
        ("release 00 --into {file}", "{file}/README.md cannot be written: {file} is a file."),
        (
            f"release 00 --into {NOTEBOOKS}",
            "from which the course hands out. Name a folder outside of it.",
        ),
        (
            "release 00 --into {none} --repository nonsense",
            "'nonsense' is not the name of a repository",
        ),
        ("gradescope run 00 --root {none}", "{none} is not a folder"),
        ("selftest broken-json --keep {folder}", "{folder} is there. Name a new folder"),
        ("selftest broken-json --keep {file}", "{file} is there. Name a new folder"),
        ("selftest nonsense", "There is no row or group nonsense. The groups are cheating, "),
    ],
)
def test_a_wrong_argument_is_a_sentence(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {name: str(tmp_path / name) for name in ("file", "bytes", "folder", "none")}
    (tmp_path / "file").write_text("hello\n")
    (tmp_path / "bytes").write_bytes(b"\xd0\x00")
    (tmp_path / "folder").mkdir()
    assert main([word.format(**places) for word in line.split()]) == 2
    assert says.format(**places) in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "file", "folder"]


@pytest.mark.parametrize(
    "line",
    [
        "grade --jobs {}", "selftest --jobs {}", "reliability --times {}",
        "gradescope bundle 00 --seconds {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", ["0", "-1", "1.5", "x"])
def test_a_count_is_a_whole_number_from_one_on(
    line: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.format(number).split())
    assert ended.value.code == 2
    assert f"'{number}' is not a whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-3", "0", "nan", "inf", "soon"])
def test_a_limit_is_a_number_above_zero(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser("grade").parse_args(["grade", f"--cell-timeout={seconds}"])
    assert f"'{seconds}' is not a number above 0" in capsys.readouterr().err
    assert limits.Limits().cell > 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("report --formgrader foo", "'foo' is not the address of a server, such as http://localhost:8890"),
        ("grade --formgrader http://", "'http://' is not the address of a server"),
        ("grade --scheduler foo", "'foo' is not the address of a scheduler, such as tcp://"),
        ("grade --sandbox none", "invalid choice: 'none' (choose from "),
        ("grade --processes 0.5", "'0.5' is not a whole number from 1 on"),
        ("grade --memory 1e300", "'1e300' is more than 1,000,000"),
        ("release --questions foo", "'foo' is not an address, such as https://forum.example.org or mailto:"),
        ("report --formgrade", "expected one argument"),
        ("report --formgraders x", "unrecognized arguments: --formgraders"),
        ("grade class", "unrecognized arguments: class; did you mean --submissions class?"),
        ("grade --into out", "unrecognized arguments: --into out; did you mean --out?"),
        ("grade --fast", "unrecognized arguments: --fast"),
        ("reports", "invalid choice: 'reports' (choose from "),
    ],
)  # fmt: skip
def test_a_wrong_value_of_an_option_is_a_sentence(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_a_folder_with_a_space_is_named_as_a_shell_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["my class"], ["--submissions", "my", "class"]):
        with pytest.raises(SystemExit):
            main(["grade", *words])
        assert "did you mean --submissions 'my class'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["grade", "--agian"])
    assert "did you mean" not in capsys.readouterr().err


def test_while_a_run_is_grading_nothing_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forget", "ann", "--yes", "--out", str(tmp_path)]) == 2
    assert "no grade of ann. It has no grades at all." in capsys.readouterr().err
    place = tmp_path / "results" / "00_x" / "ann.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    with lock.only_one(tmp_path):
        assert main(["forget", "ann", "--yes", "--out", str(tmp_path)]) == 2
    assert "Nothing was removed: another run is grading" in capsys.readouterr().err
    assert place.is_file()


@pytest.mark.parametrize("name", ["*", "../00_x/ann", "[", "**x", ""])
def test_a_pattern_is_no_student(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "results" / "00_x" / "ann.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert main(["forget", name, "--yes", "--out", str(tmp_path)]) == 2
    assert place.is_file() and capsys.readouterr().err.strip()


def test_a_python_without_the_courses_packages_says_how_to_get_to_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when somebody types `python -m autograder report` with the machine's own Python."""
    monkeypatch.setitem(sys.modules, "jupyter_core.paths", None)
    for name in ("autograder.report.server", "autograder.commands.report"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["report"]) == 2
    said = capsys.readouterr().err
    assert "lacks the package jupyter_core" in said and "source .venv/bin/activate" in said


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_was_stopped_says_how_it_is_carried_on(
    again: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(grade, "run", stop)
    assert main(["grade", *(["--again"] if again else [])]) == 130
    said = capsys.readouterr().out
    assert "the next run carries on" in said
    assert ("carries on (with --again: type it again)." in said) == again


def test_a_home_folder_that_the_shell_left_as_it_was_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make grade SUBMISSIONS=~/class` hands the ~ over in shells other than bash."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["grade", "--submissions", "~/class"]) == 2
    assert f"{tmp_path}/class is not a folder." in capsys.readouterr().err


def test_below_the_table_a_line_recalls_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a large class the notes have scrolled away, and who is left out has no row."""
    monkeypatch.setattr(session, "grade_class", lambda *_, **__: session.Summary([], 1, [], []))
    monkeypatch.setattr(grade, "_reports", lambda *_: [])
    monkeypatch.setattr(grade, "course_of", lambda _: None)
    (tmp_path / "class" / "ann" / "00_first_ranks").mkdir(parents=True)
    words = ["grade", "--submissions", str(tmp_path / "class"), "--out", str(tmp_path / "out")]

    def said() -> str:
        options = _parser("grade").parse_args(words)
        assert grade._grade(grade._submissions(options, ["00_first_ranks"]), options) == 0
        return capsys.readouterr().out

    assert "left out" not in said()
    (tmp_path / "class" / "gus.ipynb").write_text("{}")
    before, _, below = said().partition("student  ")
    assert "class/gus.ipynb is left out" in before
    assert "Files that were left out" in below and "(1 note)" in below
