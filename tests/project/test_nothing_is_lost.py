"""Nothing that a person typed is lost: every command runs in the course after a day of use.

On that day a student worked in `work/` and, by mistake, in `notebooks/`. An instructor changed sources,
settings, tables and pages that commands had written, and gave points and a comment by hand. Other people's
files lie between them. Each command then runs as a person types it, in a copy of that folder. A file that no
command makes must be as it was; of all others the words that were typed must still be in some file.

Programs that need minutes or a network (pip, uv, Sphinx, a benchmark) are replaced: see STAND_INS. The code
that writes files is real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest

from autograder.book.standing import standings

ROOT = Path(__file__).resolve().parents[2]
FIRST, TOY = "00_first_ranks", "90_toy"
CLASS, OUT = "class", "autograder/out"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", "*.egg-info", "__pycache__", "build", "dist", "out", "out-sample", "work",
    "*.db", "mutants", "outside", "0[1-9]_*", "10_*",
)  # fmt: skip
LOCKS = ("requirements.lock", "requirements-site.lock", "requirements-browser.lock")

MAKE = {
    "help": [],
    "setup": [],
    "grade": [f"SUBMISSIONS={CLASS}"],
    "check": ["ARGS=--collect-only -q tests/project/test_make_work.py"],
    "test": ["ARGS=--collect-only -q tests/project/test_make_work.py"],
    "test-all": ["ARGS=--collect-only -q tests/project/test_make_work.py"],
    "test-hosts": ["ARGS=nowhere"],
    "test-browser": ["ARGS=--collect-only -q tests/browser"],
    "lab": ["ARGS=--version"],
    "formgrader": ["ARGS=--version"],
    "bench": ["ARGS=checks --write"],
    "notebooks": [f"ARGS={TOY}"],
    "site": [],
    "lock": [],
    "doctor": [],
    "gpu": ["ARGS=--parts facts"],
    "clean": [],
    "clean-grades": [],
}
AUTOGRADER = {
    "build": ["--text", TOY],
    "clean": [],
    "export": ["canvas", "roster.csv", "--overwrite"],
    "forget": ["nobody"],
    "grade": ["--submissions", CLASS, "--again"],
    "gradescope": ["bundle", FIRST, "--overwrite"],
    "mutant": ["tests/mutants/none.py", "none"],
    "release": [FIRST],
    "reliability": [FIRST, "--times", "1"],
    "report": [],
    "rubric": [FIRST, "--overwrite"],
    "selftest": ["broken-json"],
}
COURSE = {
    "doctor": [],
    "gpu": ["--rehearse", "--only", "masks"],
    "progress": [f"work/{FIRST}"],
    "submit": ["--no-run", f"work/{FIRST}/{FIRST}.ipynb"],
    "runtime.gpus": [],  # of the doctor's
    "runtime.reach": ["gloo", "meet", "0", "1"],  # of the GPUs' trial
    "operation.starter": [],  # of the labs', which write to it
}
REFUSE = {  # exit codes of commands that say why they do nothing
    ("make", "test-hosts"): 2,
    ("make", "clean-grades"): 2,
    ("make", "doctor"): None,  # it may find a fault of this machine
    ("make", "grade"): None,  # a machine that is too busy leaves a submission without a grade
    ("autograder", "grade"): None,
    ("autograder", "clean"): 2,
    ("autograder", "forget"): 2,
    ("autograder", "mutant"): 2,
    ("course_lib", "doctor"): None,
    ("course_lib", "operation.starter"): 1,  # nothing was written to it
    ("course_lib", "submit"): 2,  # work/submission.zip is somebody's
}
KEEPING = {
    "notebooks", "lock", "gpu", "build", "export", "grade", "gradescope", "release", "rubric",
}  # fmt: skip


@dataclass
class Day:
    """A folder of the course, and what people typed there: `fixed` files as they were, and `words`."""

    folder: Path
    fixed: dict[str, bytes] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def types(self, name: str, *, made: bool = False) -> None:
        """A person adds a line to a file or a notebook's first cell. made: a command makes the file."""
        path, words = self.folder / name, f"a person typed this in {name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, as_version=4)
            notebook.cells[0].source += f"\n{words}"
            nbformat.write(notebook, path)
        else:
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            mark = "" if path.suffix == ".csv" else "\n# "
            path.write_text(f"{before.rstrip()}{mark}{words}\n", encoding="utf-8")
        if made:
            self.words.append(words)
        else:
            self.fixed[name] = path.read_bytes()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the folder, without a terminal; both streams are in stdout."""
        kept = {name: text for name, text in os.environ.items() if not OUTER.match(name)}
        environment = {**kept, "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            command, cwd=self.folder, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def lost(self) -> list[str]:
        """The names and words that are not there any more."""
        gone = [
            name
            for name, content in self.fixed.items()
            if not (self.folder / name).is_file() or (self.folder / name).read_bytes() != content
        ]
        places = [path for path in self.folder.rglob("*") if path.is_file()]
        texts = [path.read_bytes() for path in places if ".git" not in path.parts]
        gone += [words for words in self.words if not any(words.encode() in text for text in texts)]
        hand = standings(self.folder / OUT / "gradebook.db", FIRST).get("ann")
        cell = hand.by_hand.get("hello_check") if hand else None
        if cell is None or cell.points != 0.5:
            gone.append("the points that a person gave")
        if hand is None or "See me." not in {one.comment for one in hand.by_hand.values()}:
            gone.append("the comment that a person wrote")
        return gone


OUTER = re.compile(
    r"COURSE_|ARGS$|PYTEST_|MAKE|MFLAGS|PYTHONPATH$|JUPYTER_"
)  # of the run of this test


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> Day:
    """The folder in the evening of that day."""
    if shutil.which("git") is None or shutil.which("make") is None:
        pytest.skip("the day needs git and make")
    day = Day(tmp_path_factory.mktemp("day") / "course")
    shutil.copytree(ROOT, day.folder, ignore=LEFT_OUT)
    shutil.copytree(ROOT / "tests/toy/solutions" / TOY, day.folder / "solutions" / TOY)
    python = [sys.executable, "-m", "autograder"]
    built = day.run(*python, "build", TOY)
    assert built.returncode == 0, built.stdout
    commit(day.folder)
    make_environment(day.folder)
    assert_done(day.run(sys.executable, "tools/make_work.py"))
    write_class(day)
    for command in (
        ["grade", "--submissions", CLASS], ["release", FIRST], ["rubric", FIRST],
        ["export", "canvas", "roster.csv"],
    ):  # fmt: skip
        assert_done(day.run(*python, *command))
    assert_done(day.run(sys.executable, "-c", BY_HAND, OUT, FIRST))
    people_type(day)
    assert day.lost() == []
    return day


BY_HAND = """
import sys, nbgrader.api
out, name = sys.argv[1:]
with nbgrader.api.Gradebook(f"sqlite:///{out}/gradebook.db") as book:
    grade = book.find_grade("hello_check", name, name, "ann")
    grade.manual_score, grade.needs_manual_grade = 0.5, False
    book.find_comment("hello", name, name, "ann").manual_comment = "See me."
    book.db.commit()
"""


def people_type(day: Day) -> None:
    """The student, the instructor, and people who keep their files here."""
    for name in (
        f"work/{FIRST}/{FIRST}.ipynb", "work/start_here.md", "work/notes.txt", "work/submission.zip",
        f"solutions/{TOY}/{TOY}.py", "solutions/notes.txt", "nbgrader_config.py", "class_config.py",
        "README.md", f"{CLASS}/ann/{FIRST}/notes.txt", "roster.csv", f"{OUT}/notes.txt",
        f"{OUT}/feedback/notes.txt", "build/notes.txt", "build/gpu/notes.txt", "dist/thesis.txt",
    ):  # fmt: skip
        day.types(name)
    day.fixed[f"{OUT}/secret"] = (day.folder / OUT / "secret").read_bytes()
    for name in (
        f"notebooks/{TOY}/{TOY}.ipynb", f"notebooks/{TOY}/notes.txt", f"solutions/{TOY}/{TOY}.ipynb",
        f"{OUT}/handout/README.md", f"{OUT}/handout/{FIRST}/{FIRST}.ipynb", f"{OUT}/handout/notes.txt",
        f"{OUT}/handout/{FIRST}/notes.txt", f"{OUT}/rubric-{FIRST}.html", f"{OUT}/canvas-{FIRST}.csv",
        f"{OUT}/grades.csv", f"{OUT}/exercises.csv", f"{OUT}/gradescope-{FIRST}.zip", "build/gpu/report.md",
        "environment.yml", "docs/benchmarks.md", *LOCKS,
    ):  # fmt: skip
        day.types(name, made=True)
    for lock in LOCKS[1:]:  # else make would install it
        shutil.copy(day.folder / lock, day.folder / ".venv" / lock)
    (day.folder / ".venv" / "installed.json").write_text("{}")


def write_class(day: Day) -> None:
    """Two students: one handed in nothing but stubs, the other a file that is not a notebook."""
    for student in ("ann", "bob"):
        (day.folder / CLASS / student / FIRST).mkdir(parents=True)
    handed_in = day.folder / CLASS / "ann" / FIRST / f"{FIRST}.ipynb"
    shutil.copy(day.folder / "notebooks" / FIRST / f"{FIRST}.ipynb", handed_in)
    (day.folder / CLASS / "bob" / FIRST / f"{FIRST}.ipynb").write_text("{")
    header = (
        f"Student,ID,SIS User ID,SIS Login ID,Section,{FIRST} (7)\n    Points Possible,,,,,10\n"
    )
    (day.folder / "roster.csv").write_text(f"{header}Ann,1,,ann,A,\n")


def make_environment(folder: Path) -> None:
    """A `.venv` that is this environment, and that make takes for a new one."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


def commit(folder: Path) -> None:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    for command in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "all")):
        assert_done(
            subprocess.run(
                ["git", *command],
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode in (0, 1), done.stdout  # 1: a submission got no grade


STAND_INS = {  # by the command of make that meets them in its folder, before the real ones
    "lock": {
        "pip": "",
        "uv": "import sys; open(sys.argv[sys.argv.index('--output-file') + 1], 'w').write('torch==9.9\\n')",
    },
    "site": {"sphinx": ""},
    "bench": {
        "benchmarks/checks": (
            "from benchmarks.table import Row\n\n\n"
            "def rows():\n    return [Row('a step', 'another', 1.0, 2.0)]\n"
        )
    },
}


@pytest.fixture
def day(evening: Day, tmp_path: Path) -> Day:
    """A copy of the folder for one command."""
    folder = tmp_path / "course"
    shutil.copytree(evening.folder, folder, symlinks=True)
    return Day(folder, evening.fixed, evening.words)


def assert_nothing_is_lost(day: Day, kind: str, name: str, command: Sequence[str]) -> None:
    """After the command and, if it keeps copies, after it ran again: they must outlive that."""
    for _ in range(2 if name in KEEPING else 1):
        done = day.run(*command)
        expected = REFUSE.get((kind, name), 0)
        assert expected is None or done.returncode == expected, done.stdout[-4000:]
        assert name != "grade" or done.returncode in (0, 1), done.stdout[-4000:]
        assert day.lost() == [], done.stdout


@pytest.mark.drawn(0.4)
@pytest.mark.parametrize("target", MAKE)
def test_a_command_of_make_loses_nothing(day: Day, target: str) -> None:
    for name, text in STAND_INS.get(target, {}).items():
        (day.folder / f"{name}.py").write_text(text)
    assert_nothing_is_lost(day, "make", target, ["make", target, *MAKE[target]])


@pytest.mark.drawn(0.4)
@pytest.mark.parametrize("name", AUTOGRADER)
def test_a_command_of_the_autograder_loses_nothing(day: Day, name: str) -> None:
    command = [sys.executable, "-m", "autograder", name, *AUTOGRADER[name]]
    assert_nothing_is_lost(day, "autograder", name, command)


@pytest.mark.drawn(0.4)
@pytest.mark.parametrize("name", COURSE)
def test_a_command_of_the_library_loses_nothing(day: Day, name: str) -> None:
    command = [sys.executable, "-m", f"course_lib.{name}", *COURSE[name]]
    assert_nothing_is_lost(day, "course_lib", name, command)


def test_every_command_is_tried() -> None:
    """A new command needs a row above."""
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) == set(MAKE)
    modules = (ROOT / "autograder" / "commands").glob("*.py")
    assert {path.stem for path in modules if "def add_parser(" in path.read_text()} == set(
        AUTOGRADER
    )
    library = ROOT / "course_lib"
    programs = {path.parent for path in library.rglob("__main__.py")}
    programs |= {
        path.with_suffix("")
        for path in library.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert {".".join(path.relative_to(library).parts) for path in programs} == set(COURSE)


def test_a_pull_never_meets_a_students_work(evening: Day, tmp_path: Path) -> None:
    """A clone, work in it, a newer notebook upstream: both versions are there afterwards."""
    upstream, own = tmp_path / "upstream", Day(tmp_path / "own")
    for source, target in ((evening.folder, upstream), (upstream, own.folder)):
        assert_done(own_git(tmp_path, "clone", "-q", str(source), str(target)))
    make_work = (sys.executable, "tools/make_work.py")
    assert own.run(*make_work).returncode == 0
    mine, untouched = (f"work/{name}/{name}.ipynb" for name in (FIRST, TOY))
    own.types(mine)
    newer = Day(upstream)
    for name in (FIRST, TOY):
        newer.types(f"notebooks/{name}/{name}.ipynb", made=True)
    commit(upstream)
    for _ in range(2):
        pulled = own_git(own.folder, "pull", "-q")
        assert pulled.returncode == 0 and not pulled.stdout
        assert own.run(*make_work).returncode == 0
        assert own_git(own.folder, "status", "--porcelain").stdout == ""
    assert (own.folder / mine).read_bytes() == own.fixed[mine]
    beside = own.folder / mine.replace(".ipynb", "_newer.ipynb")
    assert (
        newer.words[0] in beside.read_text()
        and newer.words[1] in (own.folder / untouched).read_text()
    )


def own_git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
