"""The lines for hosts, in the README, docs/hosts.md and a release's page, followed literally, twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import make_venv
import pytest

from autograder.course.package import build_wheel
from autograder.course.release import write_release

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOSTS = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
STUDENTS = README[README.index("## For students") : README.index("## For instructors")]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", STUDENTS + HOSTS, re.DOTALL)


def block(start: str) -> str:
    """The lines for students that begin like this."""
    (text,) = (text for _, text in BLOCKS if text.startswith(start))
    return text


FIRST_CELL = block("![ -d course ]")
TERMINAL = block("cd /workspace")
RING = block("import torch")


# ---- a host: a Python that has PyTorch and a Jupyter, and an address from which to clone


@dataclass
class Host:
    """`folder`: where the student starts; `python`: the host's; `address`: to clone this repository from."""

    folder: Path
    python: Path
    address: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """The command's output on both streams. Its exit code must be 0."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, timeout=600,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def cells(self, *texts: str) -> str:
        """IPython's output while it runs these cells, one after the other."""
        script = self.folder / "cells.ipy"
        script.write_text("\n".join(texts).replace("ADDRESS", str(self.address)), encoding="utf-8")
        return self.run(str(self.python), "-m", "IPython", "--colors=NoColor", str(script))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this folder, committed or not."""
    if shutil.which("git") is None:
        pytest.skip("the recipes clone with git, and there is no git here")
    folder = tmp_path_factory.mktemp("address") / "repository"
    hidden = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", "*.egg-info", "build", "out", "__pycache__", "*.ipynb"
    )
    shutil.copytree(ROOT, folder, ignore=hidden)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, capture_output=True)
    commit(folder)
    return folder


def commit(repository: Path) -> None:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    for command in (("add", "-A"), (*identity, "commit", "-q", "-m", "all")):
        subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True)


@pytest.fixture
def host(tmp_path: Path, address: Path) -> Host:
    """An environment of its own, in which all packages of these tests but the course count as installed."""
    own, there = tmp_path / "python", tmp_path / "there"
    venv.create(own, with_pip=False)
    python = own / "bin" / "python"
    there.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.search("course_lib|__editable__", package.name):
            (there / package.name).symlink_to(package)
    (packages_of(own) / "host.pth").write_text(str(there))
    for name in ("pip", "ipython"):
        program = own / "bin" / name
        module = {"pip": "pip", "ipython": "IPython"}[name]
        program.write_text(f'#!/bin/sh\nexec {python} -m {module} "$@"\n')
        program.chmod(0o755)
    work = tmp_path / "workspace"
    work.mkdir()
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    environment = {
        **inherited,
        "PATH": f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it the other way round: no isolation, no network
    }
    return Host(work, python, address, environment)


def packages_of(environment: Path) -> Path:
    base = str(environment)
    return Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))


def installed(host: Host) -> str:
    """Where the host imports the course from."""
    said = host.run(str(host.python), "-c", "import course_lib; print(course_lib.__file__)")
    return said.strip().splitlines()[-1]


# ---- followed


def test_the_first_cell_may_be_run_twice_and_changes_nothing_else(host: Host) -> None:
    mine = "open('course/notes.txt', 'w').write('mine')"
    said = host.cells(FIRST_CELL, mine, FIRST_CELL)
    assert not re.search("fatal|error", said, re.IGNORECASE), said
    assert (host.folder / "course" / "notes.txt").read_text() == "mine"
    assert installed(host).startswith(str(host.python.parent.parent))
    own = packages_of(host.python.parent.parent)
    assert {path.name.partition("-")[0] for path in own.glob("*.dist-info")} == {"course_lib"}


def test_a_terminal_leads_to_the_first_ring(host: Host) -> None:
    lines = TERMINAL.replace("/workspace", str(host.folder)).replace("ADDRESS", str(host.address))
    *lines, doctor = lines.splitlines()
    assert doctor == "python -m course_lib.doctor"
    assert "fatal" not in host.run("bash", "-ec", "\n".join(lines))
    (host.address / "newer.txt").write_text("of a later version")
    commit(host.address)
    assert "fatal" not in host.run("bash", "-ec", "\n".join(lines[:-1])), "the clone is there"
    assert (host.folder / "course" / "newer.txt").is_file()
    assert "PyTorch" in host.run("bash", "-c", f"{doctor} || :"), (
        "it may find fault with this machine"
    )
    assert installed(host).startswith(str(host.python.parent.parent))
    (line,) = (line for line in host.cells(RING).splitlines() if "[1111.0" in line)
    assert re.fullmatch(r"(gloo|nccl) \[1111\.0, 1111\.0, 1111\.0, 1111\.0\]", line)


# ---- a release, without a repository, on a host that has no network


@pytest.fixture(scope="module")
def handout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was handed out, with one notebook."""
    folder = tmp_path_factory.mktemp("handout")
    write_release(
        ["00_first_ranks"], folder, package=build_wheel(tmp_path_factory.mktemp("package"))
    )
    return folder


def lines_of(handout: Path, start: str) -> list[str]:
    """The lines of the page's block that begins like this."""
    blocks = re.findall(r"```\n(.*?)```", (handout / "README.md").read_text("utf-8"), re.DOTALL)
    (block,) = (text for text in blocks if text.startswith(start))
    return block.splitlines()


def test_on_a_rented_machine_the_zip_is_enough(host: Host, handout: Path) -> None:
    shutil.copy(handout / "notebooks.zip", host.folder)
    lines = lines_of(handout, "[ -d course ]")
    assert lines.pop() == "python -m course_lib.doctor"
    assert "Newer" not in host.run("bash", "-ec", "\n".join(lines))
    notebook = host.folder / "course" / "00_first_ranks" / "00_first_ranks.ipynb"
    worked_in = notebook.read_text("utf-8").replace("raise NotImplementedError()", "return 1", 1)
    notebook.write_text(worked_in, "utf-8")
    assert "Newer" not in host.run("bash", "-ec", "\n".join(lines))
    (host.folder / "notebooks.zip").touch()
    assert "Newer zip! In a new terminal: mv course before," in host.run(
        "bash", "-ec", "\n".join(lines)
    )
    assert notebook.read_text("utf-8") == worked_in
    package = packages_of(host.python.parent.parent) / "course_lib" / "submit.py"
    package.write_text("# of an older release, but with the same version")
    host.run("bash", "-ec", "\n".join(["mv course before", *lines]))
    before = notebook.parents[2] / "before" / "00_first_ranks" / notebook.name
    assert before.read_text("utf-8") == worked_in != notebook.read_text("utf-8")
    assert "older release" not in package.read_text("utf-8")
    assert installed(host).startswith(str(host.python.parent.parent))
    page = (host.folder / "course" / "README.md").read_text("utf-8")
    (progress,) = re.findall(r"`(python -m course_lib\.progress)`", page)
    (submit,) = re.findall(r"`(python -m course_lib\.submit [^`]+)`", page)
    assert "0.0 of 10" in host.run("bash", "-ec", f"cd course && {progress}")
    host.run("bash", "-c", f"cd course && {submit} --no-run || [ $? = 1 ]")
    assert (host.folder / "course" / "submission.zip").is_file()


@pytest.mark.parametrize("start", ["%pip", "!pip"], ids=["Colab", "Kaggle"])
def test_the_first_cell_of_a_host_installs_the_uploaded_package(
    host: Host, handout: Path, start: str
) -> None:
    (cell,) = lines_of(handout, start)
    data_sets = host.folder / "kaggle" / "input"
    uploaded = data_sets / "datasets" / "me" if start == "!pip" else host.folder
    uploaded.mkdir(parents=True, exist_ok=True)
    shutil.copy(next(handout.glob("*.whl")), uploaded)
    for _ in range(2):
        said = host.cells(cell.replace("/kaggle/input", str(data_sets)))
        assert not re.search("error", said, re.IGNORECASE), said
    assert installed(host).startswith(str(host.python.parent.parent))


# ---- read


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_every_line_is_one_of_its_language(language: str, text: str) -> None:
    if language == "python":
        compile(text, "docs/hosts.md", "exec")
    elif text.startswith(("!", "%")):
        assert all(line.startswith(("!", "%")) for line in text.splitlines())
    else:
        done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "host_name", ["Colab", "Kaggle", "Runpod", "Lightning", "Codespaces", "Binder"]
)
def test_every_host_has_its_row_and_its_section(host_name: str) -> None:
    row = re.search(rf"^\|[^|]*\b{host_name}\b[^|]*\|([^|]+)\|", STUDENTS, re.MULTILINE)
    assert row is not None and row[1].strip()
    assert f"\n## {host_name}\n" in HOSTS
    assert re.search(rf"^\| {host_name} \|.*(tried|followed|ran on)", HOSTS, re.MULTILINE)


@pytest.mark.parametrize("text", [STUDENTS, HOSTS], ids=["README.md", "docs/hosts.md"])
def test_links_lead_somewhere(text: str) -> None:
    folder = ROOT / "docs" if text is HOSTS else ROOT
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else folder / "README.md"
        content = target.read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", content, re.MULTILINE)
        } | set(re.findall(r'<a name="([^"]+)">', content))
        assert not anchor or anchor in headings, link


# ---- Codespaces


DEVCONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def test_the_container_has_a_python_for_the_course() -> None:
    tag = re.fullmatch(r"mcr\.microsoft\.com/devcontainers/python:(\d\.\d+)", DEVCONTAINER["image"])
    assert tag is not None
    version = tuple(int(part) for part in tag[1].split("."))
    assert make_venv.OLDEST <= version <= make_venv.NEWEST_TESTED


def test_the_container_is_set_up_by_commands_that_there_are() -> None:
    """`make` only lists its commands: set-up itself is tested in tests/project/test_setup.py."""
    for command in DEVCONTAINER["postCreateCommand"].split("&&"):
        program, *arguments = command.split()
        assert program == "make", "another program needs a test of its own"
        done = subprocess.run(
            [program, "-n", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    setting = DEVCONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    interpreter = setting.replace("${containerWorkspaceFolder}", str(ROOT))
    ready = re.search(r"^PY := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ready is not None and Path(interpreter) == ROOT / ready[1]


def test_formgrader_needs_a_folder_that_holds_a_gradebook(tmp_path: Path) -> None:
    line = ["make", "formgrader", f"OUT={tmp_path}", "READY=", "PY=echo started"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and f"{tmp_path} holds no gradebook.db" in done.stdout
    (tmp_path / "gradebook.db").touch()
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "started" in done.stdout
