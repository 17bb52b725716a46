"""The hosts of tests/hosts/: their files are in order, and the course runs on Colab's versions.

Here it runs on the versions that differ most from this environment's: IPython 7 and ipywidgets 7.
The newest versions are this environment's own (test_notebooks.py); `make test-hosts` tries every host's
versions, with all notebooks.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import try_hosts
from host_kernel import VIEW, Kernel, complaints, execute, try_notebook
from hosts import FRESH, WANTED, Host, hosts, read, stale
from packaging.requirements import Requirement
from refresh_hosts import KERNEL, frozen

from autograder.course.outputs import WIDGETS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOSTS = {host.name: host for host in hosts()}
SOURCE = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{12} \S+ \(\d{4}-\d\d-\d\d\)")
NO_LIST = {"jupyterlab", "oldest"}  # hosts that publish none

every_host = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)


# --- the files -----------------------------------------------------------------------------------


def test_the_hosts_of_the_pages_have_files() -> None:
    assert {"colab", "kaggle", "runpod", "jupyterlab", "vscode", "oldest"} <= set(HOSTS)


@every_host
def test_a_file_says_where_its_versions_are_from(host: Host) -> None:
    assert re.fullmatch(r"3\.\d+", host.python) and re.fullmatch(r"[\d.]+", host.torch)
    if host.name not in NO_LIST:
        assert all(map(SOURCE.fullmatch, host.sources)), host.sources
    assert {"cloudpickle", "ipykernel", "ipython", "ipywidgets", "numpy"} <= set(host.versions())


@every_host
def test_installing_the_course_changes_no_host(host: Host) -> None:
    """Its versions are in the ranges of pyproject.toml, PyTorch's and Python's too."""
    there = {**host.versions(), "torch": host.torch}
    for text in PROJECT["dependencies"]:
        needed = Requirement(text)
        assert needed.specifier.contains(there[needed.name]), f"{needed} and {there[needed.name]}"
    assert Requirement(f"python {PROJECT['requires-python']}").specifier.contains(host.python)


def test_an_old_file_is_told_with_what_to_do() -> None:
    host = HOSTS["colab"]
    last = host.date + datetime.timedelta(days=FRESH)
    assert stale(host, last) == ""
    told = stale(host, last + datetime.timedelta(days=1))
    assert "tests/hosts/colab.txt" in told and "tools/refresh_hosts.py" in told and "181" in told


def test_no_test_fails_by_the_calendar_but_a_trial_names_old_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fresh, said in ((-(10**6), list(HOSTS)), (10**6, [])):
        monkeypatch.setattr("hosts.FRESH", fresh)
        try_hosts.name_old(HOSTS.values())
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == [f"tests/hosts/{name}.txt" for name in said]


def test_the_oldest_versions_are_those_that_the_package_declares() -> None:
    oldest = {**HOSTS["oldest"].versions(), "torch": HOSTS["oldest"].torch}
    for text in PROJECT["dependencies"]:
        needed = Requirement(text)
        (bound,) = needed.specifier
        assert bound.operator == ">="
        assert needed.specifier.contains(oldest[needed.name])
        numbers = oldest[needed.name].split(".")
        assert numbers[: len(bound.version.split("."))] == bound.version.split("."), needed
    assert PROJECT["requires-python"].startswith(f">={HOSTS['oldest'].python},")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# host: A\n", "'# date: ...', once"),
        ("# host: A\n# host: B\n# date: 2026-01-01\n# python: 3.12\n# torch: 2.9.0\n", "'# host: "),
        ("# host: A\n# date: 2026-01-01\n# python: 3.12\n# torch: 2.9.0\n", "'# source: ...'"),
        ("numpy>=2\n", r"line 1: 'numpy>=2' is not name==version"),
        ("numpy==2.*\n", "is not name==version"),
    ],
)
def test_a_file_that_is_not_in_order_is_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=re.escape(says)):
        read(tmp_path / "a.txt")


def test_a_published_list_is_read_as_pip_and_as_colab_write_it() -> None:
    text = (
        "# a comment\nJinja2==3.1.6\nipython_genutils==0.2.0\ntorch==2.9.0+cu126\nfastcore<2\n"
        "torchvision @ https://x.org/whl/cpu/torchvision-0.26.0%2Bcpu-cp313-linux_x86_64.whl\n"
        "google-colab @ file:///colabtools/dist/google_colab-1.0.0.tar.gz#sha256=44\n"
    )
    assert frozen(text) == {
        "jinja2": "3.1.6", "ipython-genutils": "0.2.0", "torch": "2.9.0", "torchvision": "0.26.0",
        "google-colab": "1.0.0",
    }  # fmt: skip


# --- the runs that were tried, and the page's lines on them --------------------------------------


@every_host
def test_what_was_tried_has_the_versions_of_the_hosts_file_and_lost_nothing(host: Host) -> None:
    entry = json.loads(try_hosts.TRIED.read_text()).get(host.name)
    again = f'make test-hosts ARGS="{host.name}"'
    assert entry is not None, again
    assert entry["pins"] == host.digest(), again
    for name, result in entry["notebooks"].items():
        assert result["wrong"] == 0 and result["points"] == result["maximum"] > 0, (name, again)
    assert {name: entry["versions"][name] for name in WANTED[:3]}.items() <= host.versions().items()


def test_the_page_says_what_was_tried() -> None:
    page = (ROOT / "docs" / "tested.md").read_text()
    assert try_hosts.with_table(page, json.loads(try_hosts.TRIED.read_text())) == page
    for name in HOSTS:
        assert f"(`{name}`)" in page


@pytest.fixture
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tried.json and a page of the test's own; returns the path of tried.json."""
    page = tmp_path / "tested.md"
    page.write_text(f"before\n{try_hosts.BEGIN}old\n{try_hosts.END}after\n")
    monkeypatch.setattr(try_hosts, "PAGE", page)
    monkeypatch.setattr(try_hosts, "TRIED", tmp_path / "tried.json")
    return tmp_path / "tried.json"


VERSIONS = {name: "1.0" for name in (*try_hosts.SHOWN, "python")}


def result(date: str, points: float = 2.0, wrong: int = 0) -> dict[str, Any]:
    return {"date": date, "points": points, "maximum": 2.0, "wrong": wrong}


def test_results_are_kept_by_notebook(own_results: Path) -> None:
    host = HOSTS["kaggle"]
    try_hosts.record(host, False, VERSIONS, "00", result("2026-01-02"))
    try_hosts.record(host, False, VERSIONS, "02", result("2026-01-03", 1.5, 1))
    before, table, after = re.split(r"<!-- HOSTS: \w+ -->\n", try_hosts.PAGE.read_text())
    assert (before, after) == ("before\n", "after\n")
    assert "| 2026-01-02: 2 notebooks, 3.5 of 4 points, 1 fault |" in table
    try_hosts.record(host, False, VERSIONS, "02", result("2026-01-04"))
    assert "4 of 4 points, no fault |" in try_hosts.PAGE.read_text()


def test_results_of_other_versions_are_forgotten(own_results: Path) -> None:
    host = HOSTS["kaggle"]
    for versions in (VERSIONS, {**VERSIONS, "ipython": "2.0"}):
        for exact in (False, True):
            try_hosts.record(host, exact, VERSIONS, "00", result("2026-01-02"))
        try_hosts.record(host, False, versions, "02", result("2026-01-03"))
    kept = json.loads(own_results.read_text())
    assert list(kept["kaggle"]["notebooks"]) == ["02"]
    assert list(kept["kaggle, exact"]["notebooks"]) == ["00"]


def test_a_program_that_fails_is_a_sentence_without_addresses(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; sys.exit('Looking in https://me:secret@mirror.example/simple')")
    with pytest.raises(try_hosts.NotMade, match=r"failed\. The end of what it said") as caught:
        try_hosts.run(sys.executable, str(program))
    assert "mirror.example" not in str(caught.value)


def test_a_python_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(try_hosts.NotMade, match=r"no Python 2\.5 on this machine"):
        try_hosts.host_python("2.5")


@pytest.mark.parametrize(("changed", "good"), [("numpy 2.0.2", False), (None, True)])
def test_an_installation_that_changes_a_host_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str | None, good: bool
) -> None:
    lists = iter([{"numpy 1.26.4"}, {changed or "numpy 1.26.4", "course-lib 0.1.0"}])
    monkeypatch.setattr(try_hosts, "frozen", lambda pip: next(lists))
    monkeypatch.setattr(try_hosts, "run", lambda *command: "")
    monkeypatch.setattr(try_hosts, "lend_torch", lambda folder: None)
    make = (HOSTS["kaggle"], tmp_path, tmp_path / "course.whl", False)
    if good:
        assert try_hosts.make_environment(*make) == tmp_path / "bin" / "python"
    else:
        with pytest.raises(try_hosts.NotMade, match=r"more than itself: .*numpy 2\.0\.2"):
            try_hosts.make_environment(*make)


def test_pytorch_is_lent_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    try_hosts.lend_torch(tmp_path)
    code = (
        "import importlib.metadata as m, importlib.util as u; print(m.version('torch'), "
        "u.find_spec('torch').origin, *[u.find_spec(name) for name in ('numpy', 'IPython')])"
    )
    command = [str(tmp_path / "bin" / "python"), "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    words = done.stdout.split()
    assert words[0] == version("torch") and words[2:] == ["None", "None"], done.stderr
    assert Path(words[1]).parent.resolve() == Path(str(torch.__file__)).parent.resolve()


# --- are differences noticed? --------------------------------------------------------------------

MODEL = "4a5d5a8c1f3e4a5d"


def cell(*outputs: dict[str, Any], **metadata: Any) -> nbformat.NotebookNode:
    """A code cell as a kernel leaves it."""
    made = nbformat.v4.new_code_cell("1 + 1", id="a-cell", execution_count=1, metadata=metadata)
    made.outputs = [nbformat.from_dict(output) for output in outputs]
    return made


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data: Any) -> dict[str, Any]:
    mimes = {"view": VIEW, "text": "text/plain", "png": "image/png"}
    named = {mimes[name]: value for name, value in data.items()}
    return {"output_type": "execute_result", "data": named, "metadata": {}, "execution_count": 1}


def error(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": text, "traceback": []}


def told(executed: nbformat.NotebookNode, kept: nbformat.NotebookNode) -> str:
    """The complaints about a notebook of one cell; its metadata hold the state of one widget."""
    notebooks = []
    for one in (executed, kept):
        notebooks.append(nbformat.v4.new_notebook(cells=[one]))
        notebooks[-1].metadata["widgets"] = nbformat.from_dict({WIDGETS: {"state": {MODEL: {}}}})
    return "\n".join(complaints(*notebooks))


GRADE = {"grade": True, "solution": False, "points": 2, "grade_id": "a"}
STEPPER = shown(text="Stepper(2 ranks)", png="...", view={"model_id": MODEL})
PLACE = stream("rank 1 raised ValueError\n  Cell In[5], line 3\n")


def test_a_notebook_that_is_as_the_kept_one_is_told_nothing_of() -> None:
    for one in (cell(STEPPER, PLACE), cell(shown(text="2.0"), nbgrader=GRADE)):
        assert told(one, one) == ""
    expected = cell(error("Deadlock", "at Cell In[2], line 1"), tags=["raises-exception"])
    assert told(expected, expected) == ""


@pytest.mark.parametrize(
    ("executed", "kept", "says"),
    [
        (cell(error("AttributeError", "no format_code_name")), cell(), "AttributeError: no format"),
        (cell(error("OSError", ""), tags=["raises-exception"]),
         cell(error("Deadlock", ""), tags=["raises-exception"]), "of another kind than in the kept"),
        (cell(shown(text="1.0"), nbgrader=GRADE), cell(shown(text="2.0"), nbgrader=GRADE),
         "1.0 of 2.0 points"),
        (cell(), cell(STEPPER), "without the output that the kept notebook has"),
        (cell(shown(text="Stepper()", png="...")), cell(STEPPER), f"notebook has: {VIEW}"),
        (cell(shown(text="Stepper()", png="...", view={"model_id": "lost"})), cell(STEPPER),
         "a widget is shown that no browser finds"),
        (cell(stream("DeprecationWarning: old", "stderr")), cell(), "kept notebook: stderr"),
        (cell(stream("2755120846.py, line 3")), cell(stream("Cell In[5], line 3")),
         "named by its file or not at all: '2755120846.py,'"),
        (cell(stream("at /tmp/ipython-input-4-27551.py")), cell(stream("at x")), "by its file"),
        (cell(stream("at /tmp/ipykernel_31/27.py")), cell(stream("at x")), "by its file"),
        (cell(stream("a notebook cell, line 3")), cell(stream("x")), "or not at all"),
        (cell(stream("Cell In[6], line 3")), cell(PLACE), "other cells are named"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_noticed(executed: Any, kept: Any, says: str) -> None:
    assert says in told(executed, kept)


# --- Colab's kernel ------------------------------------------------------------------------------


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@pytest.fixture(scope="module")
def colab(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """Colab's kernel: its packages for kernel and widgets that differ, before those of this environment."""
    folder = tmp_path_factory.mktemp("colab")
    versions = {name: v for name, v in HOSTS["colab"].versions().items() if name in KERNEL}
    pins = [f"{name}=={v}" for name, v in versions.items() if installed(name) != v]
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), *pins]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    # the course is that of this folder, also where another copy of it is installed
    return Kernel(sys.executable, HOSTS["colab"].cells, f"{folder}{os.pathsep}{ROOT}")


PROBE = """import inspect, IPython, ipykernel, ipywidgets
from course_lib import RankError, launch

def fails(x):
    # this comment is in the source alone
    return 1 / x
---
def job():
    return fails.__code__.co_filename, inspect.getsource(fails)

(file, source), _ = launch(job, world_size=2)
print(IPython.__version__, ipykernel.__version__, ipywidgets.__version__)
print(file)
print(source)
---
try:
    launch(fails, 0, world_size=2)
except RankError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "cells", ["/tmp/ipython-input-{hash}.py", "/tmp/ipython-input-{number}-{hash}.py"]
)
def test_sources_of_colabs_cells_reach_the_ranks(colab: Kernel, tmp_path: Path, cells: str) -> None:
    made = [nbformat.v4.new_code_cell(source) for source in PROBE.split("---\n")]
    notebook = nbformat.v4.new_notebook(cells=made)
    execute(notebook, tmp_path / "probe.ipynb", Kernel(colab.python, cells, colab.path))
    printed = ["".join(output.text for output in one.outputs) for one in notebook.cells]
    versions, file, source = printed[1].split("\n", 2)
    expected = HOSTS["colab"].versions()
    assert versions.split() == [expected[name] for name in ("ipython", "ipykernel", "ipywidgets")]
    assert re.fullmatch(r"/tmp/ipython-input-(1-)?\d+\.py", file)
    assert source.startswith("def fails(x):\n    # this comment is in the source alone\n")
    assert "Cell In[1], line 6, in fails\n    return 1 / x" in printed[2]


def test_a_solution_runs_with_colabs_kernel(colab: Kernel, seed: int) -> None:
    """One of two, drawn; `make test-hosts` runs all notebooks."""
    name = random.Random(seed).choice(["00_first_ranks", "02_collectives"])
    points, maximum, wrong = try_notebook(ROOT / "solutions" / name / f"{name}.ipynb", colab)
    assert not wrong, "\n".join(wrong)
    assert points == maximum > 0
