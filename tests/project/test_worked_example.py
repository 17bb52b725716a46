"""The worked example of docs/writing_an_exercise.md, followed literally in a copy of this repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "writing_an_exercise.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^\*\*`([^`]+)`\*\*\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(BLOCK.findall(TEXT))
# The commands of the text, without make: in a copy it would make another .venv.
COMMANDS = {
    "test": ["-m", "pytest", "-p", "no:cacheprovider"],
    "notebooks": ["-m", "autograder", "build"],
}
NAME = "90_stragglers"


def lay_out(text: str, folder: Path) -> Path:
    """A copy of the code and the tests, with the files that `text` asks for; nothing else of the course."""
    for name in ("course_lib", "autograder", "tests"):
        hidden = shutil.ignore_patterns("__pycache__", "out", "mutants", "outside", "cheats")
        shutil.copytree(ROOT / name, folder / name, ignore=hidden)
    for name in ("pyproject.toml", "nbgrader_config.py"):
        shutil.copy(ROOT / name, folder)
    for path, code in BLOCK.findall(text):
        file = folder / path
        assert not file.exists(), f"{path} is in the course already: remove the example's files"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(TEXT, tmp_path_factory.mktemp("clone") / "course")


def run(folder: Path, *arguments: str, beside: str = "") -> subprocess.CompletedProcess[str]:
    """Python in the copy, whose packages are found before the installed ones, as are those in `beside`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {"PYTHONPATH": f"{folder}{os.pathsep}{folder / beside}"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        timeout=600,
    )


def command(target: str) -> list[str]:
    """The arguments of the text's one `make TARGET ARGS=...`, as Python takes them."""
    (line,) = re.findall(rf"^```\n(make {target} .*)\n```$", TEXT, re.MULTILINE)
    (arguments,) = (word for word in shlex.split(line) if word.startswith("ARGS="))
    return [*COMMANDS[target], *shlex.split(arguments.removeprefix("ARGS="))]


def test_the_example_is_complete() -> None:
    folders = {str(Path(path).parent) for path in FILES}
    assert folders == {
        "course_lib", "tests/algorithms", "course_lib/checks/notebooks/stragglers", f"tests/mutants/{NAME}",
        f"solutions/{NAME}",
    }  # fmt: skip


@pytest.mark.parametrize("arguments", ["check", "format --check"])
def test_its_files_are_clean(clone: Path, arguments: str) -> None:
    cells = "tests/mutants"  # of these some are patches
    files = [path for path in FILES if not path.startswith(cells)]
    done = run(clone, "-m", "ruff", *arguments.split(), *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_check_tells_right_from_wrong(clone: Path) -> None:
    """The text's command says so: right answers lose nothing, wrong ones lose points and are named.

    In the same run: there are enough of both, and the reference passes its test on both backends.
    """
    done = run(clone, *command("test"), "tests/algorithms/test_stragglers.py")
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


def test_its_points_mean_the_idea(clone: Path) -> None:
    (line,) = re.findall(r"^\.venv/bin/python (-m tests\.checks\.scores .*)$", TEXT, re.MULTILINE)
    done = run(clone, *shlex.split(line))
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(clone, *COMMANDS["test"], "tests/checks/test_policy.py", "-k", NAME)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_its_notebook_is_built(clone: Path) -> None:
    done = run(clone, *command("notebooks"))
    assert done.returncode == 0, done.stdout + done.stderr
    solution, student = (
        nbformat.read(clone / folder / NAME / f"{NAME}.ipynb", as_version=4)
        for folder in ("solutions", "notebooks")
    )
    printed = [
        out.text for cell in solution.cells for out in cell.get("outputs", ()) if "text" in out
    ]
    assert "2.0 of 2" in printed[0] and printed[-1] == "[0.3, 0.3, 0.3, 0.3]\n"
    code = "\n".join(cell.source for cell in student.cells)
    assert "NotImplementedError" in code and "ReduceOp" not in code and 'cases="hidden"' not in code
    assert run(clone, *COMMANDS["notebooks"], "--check", NAME).returncode == 0
    done = run(clone, *COMMANDS["test"], "tests/notebooks/test_from_stubs.py")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_its_notebook_has_its_places_in_the_repository(clone: Path) -> None:
    """With the row for the README and the module's place in the table, which the text asks for.

    In the same run: its names, its sentences and the points in its head are those that the text wants.
    """
    (row,) = re.findall(rf"^\| `{NAME}` .*$", TEXT, re.MULTILINE)
    for name in (".github", "docs", "tools", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, clone / name)
    for file in [*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "CITATION.cff"]:
        shutil.copy(file, clone)
    for file, old, new in (
        ("README.md", r"^(\| `08_context_parallel` .*)$", rf"\1\n{row}"),
        ("docs/architecture.md", r"`first_ranks` \|", "`first_ranks`, `stragglers` |"),
    ):
        text, count = re.subn(old, new, (clone / file).read_text("utf-8"), flags=re.MULTILINE)
        assert count == 1, file
        (clone / file).write_text(text, encoding="utf-8")
    command_line = r"^PYTHONPATH=(\w+) \.venv/bin/python (-m .*)$"
    ((beside, line),) = re.findall(command_line, TEXT, re.MULTILINE)
    done = run(clone, *shlex.split(line), beside=beside)
    assert done.returncode == 0, done.stderr
    tests = [
        f"tests/project/test_{topic}.py"
        for topic in ("connections", "imports", "names", "sentences", "site", "style")
    ]
    tests += ["tests/notebooks/test_heads.py", "tests/notebooks/test_build.py"]
    style = "(names_say or noun_as_their) and course_lib"
    done = run(
        clone,
        *COMMANDS["test"],
        *tests,
        "-k",
        f"{NAME} or connected and stragglers or imports or front_page or {style}",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_text_that_no_longer_works_is_noticed(tmp_path: Path) -> None:
    """Here the text's check no longer names a mistake, and its solution is wrong."""
    sentence = "The result is the sum. The ranks work at the same time."
    spoilt = TEXT.replace(sentence, "That is wrong.").replace(
        "=dist.ReduceOp.MAX", "=dist.ReduceOp.MIN"
    )
    folder = lay_out(spoilt, tmp_path / "course")
    done = run(folder, *command("test"))
    assert done.returncode == 1
    assert "no message matches 'The ranks work at the same time'" in done.stdout
    assert "right, but lost points: what the wrong ones change" in done.stdout
