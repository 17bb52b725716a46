"""The lock, its copy for conda, and the packages that `pip install .` brings to a student."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import make_lock
import pytest
import yaml
from packaging.requirements import Requirement

from autograder.course.package import build_wheel

ROOT = Path(__file__).resolve().parents[2]

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in LOCK.splitlines() if re.match(r"[a-zA-Z]", line)]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
GROUP_LOCKS = {group: (ROOT / f"requirements-{group}.lock").read_text() for group in GROUPS}
GROUP_PINS = {
    group: [Requirement(pin) for pin in make_lock.pins(lock)] for group, lock in GROUP_LOCKS.items()
}
STUDENT = {"cloudpickle", "ipython", "ipywidgets", "matplotlib", "numpy", "torch"}
PYTHONS = ["3.11.2", "3.12.3", "3.13.5"]  # those of Debian 12, Ubuntu 24.04 and Debian 13


def pinned(python: str, pins: list[Requirement] = PINS) -> dict[str, str]:
    """Name -> version of what the lock installs under this Python on Linux."""
    system = {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python,
        "implementation_version": python,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    chosen = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate(system):
            assert pin.name not in chosen, f"{pin.name} is locked twice for Python {python}"
            chosen[pin.name] = str(pin.specifier).removeprefix("==")
    return chosen


# --- the lock ------------------------------------------------------------------------------------


def test_only_a_known_option_remakes_the_lock_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make lock ARGS=--help` prints a usage; nothing is installed, and no file is written."""
    ran: list[list[str]] = []
    monkeypatch.setattr(make_lock.subprocess, "run", lambda command, **_: ran.append(command))
    monkeypatch.setattr(make_lock, "keep_changed", lambda file: None)
    conda = tmp_path / "environment.yml"
    monkeypatch.setattr(make_lock, "CONDA", conda)
    for option, code in (("--help", 0), ("--upgraed", 2), ("matplotlib", 2)):
        with pytest.raises(SystemExit, match=str(code)):
            make_lock.main([option])
    assert (ran, conda.exists()) == ([], False)
    assert "make lock ARGS=--upgrade" in capsys.readouterr().out
    upgrades = ["--upgrade-package", "matplotlib", "--upgrade-package", "numpy"]
    assert make_lock.main(upgrades) == 0
    assert [command[-4:] for command in ran if "compile" in command] == [upgrades] * 3
    assert conda.exists()


def test_every_version_is_exact_and_public():
    assert len(PINS) > 50
    for pin in [*PINS, *(pin for pins in GROUP_PINS.values() for pin in pins)]:
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(pin.specifier)), pin
        assert pin.url is None, pin


def test_pytorch_is_locked_without_a_build_and_without_cuda():
    assert pinned("3.11.2")["torch"] == "2.13.0"
    for pin in PINS:
        assert not re.search(r"nvidia|cuda|triton|nccl", pin.name), pin


@pytest.mark.parametrize("lock", [LOCK, *GROUP_LOCKS.values()], ids=["course", *GROUP_LOCKS])
def test_no_registry_is_named(lock: str):
    assert "://" not in lock
    assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host", lock)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_is_within_the_ranges_and_holds_every_extra(python):
    locked = pinned(python)
    extras = PROJECT["optional-dependencies"].values()
    wanted = [Requirement(text) for texts in (PROJECT["dependencies"], *extras) for text in texts]
    assert len(wanted) > 10
    for requirement in wanted:
        if requirement.name != "course-lib":  # an extra that includes another one
            assert requirement.name in locked
            assert requirement.specifier.contains(locked[requirement.name]), requirement


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_groups_packages_agree_with_the_others(python, group):
    """They are installed into the same environment, without asking what the others need."""
    locked, more = pinned(python), pinned(python, GROUP_PINS[group])
    assert {name: more[name] for name in more if name in locked} == {
        name: locked[name] for name in more if name in locked
    }
    for requirement in map(Requirement, GROUPS[group]):
        assert requirement.specifier.contains(more[requirement.name]), requirement


def test_this_environment_is_what_the_lock_says():
    if not (Path(sys.prefix) / "installed.json").exists():
        pytest.skip("this environment was not made by `make setup`")
    locked = pinned(sys.version.split()[0])
    installed = {name: version(name).partition("+")[0] for name in locked}
    assert installed == locked, "`make lock` makes the lock, and `make setup` installs it"


# --- what a student's notebooks import ----------------------------------------------------------

# Packages that come with another, and packages without which a command says what is missing.
COMES_WITH = {"PIL": "matplotlib"}
ONLY_THERE = {
    "course_lib/rerun.py": {"jupyter_client", "nbclient", "nbformat"},
    "course_lib/submit.py": {"jupyter_client", "nbclient"},
}


def imported(file: Path) -> set[str]:
    """The packages, by their names in Python, that a file imports anywhere in it, but for Python's own."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"course_lib"}


@pytest.mark.parametrize("folder", ["course_lib", "examples", "solutions"])
def test_only_packages_that_the_course_asks_for_are_imported(folder: str) -> None:
    """`.venv` also holds the packages of the grader and the tests, which a student's host may lack."""
    declared = {Requirement(text).name.lower() for text in PROJECT["dependencies"]}
    faults = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        packages = imported(file) - ONLY_THERE.get(path, set())
        names = {COMES_WITH.get(name, name).lower() for name in packages}
        faults += [f"{path} imports {name}" for name in sorted(names - declared)]
    assert not faults, f"not in the dependencies of pyproject.toml: {'; '.join(faults)}"


# --- conda ---------------------------------------------------------------------------------------


def test_the_conda_environment_equals_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *others, last = environment["dependencies"]
    assert [name.partition("=")[0] for name in others] == ["python", "pip"]
    options = [line for line in last["pip"] if line.startswith("-")]
    assert options == [f"--extra-index-url {make_lock.TORCH_CPU_INDEX}", "--editable ."]
    packages = {Requirement(line) for line in last["pip"] if not line.startswith("-")}
    assert packages == set(PINS), "`make lock` makes both files"


def test_a_changed_lock_changes_the_conda_environment():
    changed = LOCK.replace("torch==2.13.0", "torch==2.14.0")
    here = (ROOT / "environment.yml").read_text()
    assert make_lock.environment_yml(LOCK) == here, "`make lock` makes both files"
    assert "- torch==2.14.0\n" in make_lock.environment_yml(changed)


# --- a student's installation --------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The package as `pip install .` builds it, from a copy of this folder."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def pip(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess:
    """pip without any index; packages under `path` count as installed."""
    command = [sys.executable, "-m", "pip", "--no-input", *arguments, "--no-index"]
    own = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    environment = {**own, "PYTHONPATH": str(path or ""), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or path, done.stdout + done.stderr
    return done


def test_the_package_holds_course_lib_alone(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"course_lib"}


def test_students_need_no_grader_and_no_test_runner(wheel):
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(file.read(name).decode())
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    plain = {requirement.name for requirement in needed if requirement.marker is None}
    assert plain == STUDENT
    assert {"lab", "grade", "test", "bench"} <= set(metadata.get_all("Provides-Extra", []))
    assert metadata["License-Expression"] == "MIT"


@pytest.mark.parametrize(
    ("there", "kept"),
    [("2.6.0+cu124", True), ("2.8.0a0+34c6371d24.nv25.8", True), ("2.5.1+cu121", False)],
)
def test_a_pytorch_that_is_there_is_left_alone(wheel, tmp_path, there, kept):
    """As on Colab, in NVIDIA's containers, and with a PyTorch that is too old for the course."""
    info = tmp_path / f"torch-{there}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {there}\n")
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")
    done = pip("install", "--dry-run", str(wheel), path=tmp_path)
    assert (done.returncode == 0) is kept, done.stdout + done.stderr
    if kept:
        assert re.search(r"Would install course-lib-\S+$", done.stdout.strip())
    else:
        assert "torch>=2.6" in done.stderr


def test_without_the_internet_the_folder_on_the_path_is_enough(tmp_path):
    """As on Kaggle, where the folder is a data set and can be read alone: the ranks find it, too."""
    folder = tmp_path / "input" / "course"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "course_lib", folder / "course_lib", ignore=hidden)
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from course_lib import launch\n"
        "def where():\n"
        "    import course_lib.collectives\n"
        "    return course_lib.collectives.__file__\n"
        "print(*launch(where, world_size=2), sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    file = str(folder / "course_lib" / "collectives" / "__init__.py")
    assert done.stdout.splitlines() == [file, file], done.stderr


def test_no_process_builds_a_parser_that_is_never_used() -> None:
    """See autograder/__init__.py: it would cost every worker of grading, and every run of nbval, seconds."""
    code = (
        "import autograder.run.grading, nbformat, sys;"
        "print('rfc3987_syntax.syntax_helpers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stdout + done.stderr
    assert "rfc3987_syntax.syntax_helpers" not in sys.modules
