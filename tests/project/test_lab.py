"""The settings of `make lab` are those of the installed JupyterLab, and hold for a student alone."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import jupyterlab
import open_lab
import pytest
import welcome
from jupyter_core.paths import jupyter_path
from jupyterlab_server.config import get_page_config
from jupyterlab_server.settings_utils import get_settings

from course_lib import saved
from tests.conftest import wait_until_gone

ROOT = Path(__file__).resolve().parents[2]
LAB = Path(sys.prefix) / "share/jupyter/lab"
LABEXTENSIONS = LAB.parent / "labextensions"
OVERRIDES = json.loads(
    (ROOT / "tools/lab/labconfig/default_setting_overrides.json").read_text(encoding="utf-8")
)
DISABLED = json.loads((ROOT / "tools/lab/labconfig/page_config.json").read_text(encoding="utf-8"))
SERVER = json.loads((ROOT / "tools/lab/jupyter_server_config.json").read_text(encoding="utf-8"))
INSTRUCTORS = ["--ServerApp.root_dir=."]


def schema(plugin: str) -> dict[str, Any]:
    """The settings of a plugin, by JupyterLab's own file."""
    package, _, name = plugin.partition(":")
    own = LAB / "schemas" / package / f"{name}.json"
    added = LABEXTENSIONS / package / "schemas" / package / f"{name}.json"
    return json.loads((own if own.exists() else added).read_text(encoding="utf-8"))


@pytest.mark.parametrize("plugin", OVERRIDES)
def test_the_installed_jupyterlab_knows_every_setting_and_its_value(plugin: str) -> None:
    known = schema(plugin)
    assert set(OVERRIDES[plugin]) <= set(known["properties"])
    jsonschema.Draft7Validator(known).validate(OVERRIDES[plugin])


def test_every_extension_that_is_disabled_is_installed() -> None:
    core = json.loads((Path(jupyterlab.__file__).parent / "staging/package.json").read_text())
    installed = {*core["jupyterlab"]["extensions"]}
    installed |= {path.parent.name for path in LABEXTENSIONS.glob("[!@]*/package.json")}
    installed |= {
        f"{path.parts[-3]}/{path.parts[-2]}" for path in LABEXTENSIONS.glob("@*/*/package.json")
    }
    off = {
        name.partition(":")[0] for name in DISABLED["disabledExtensions"]
    }  # a plugin of an extension
    assert off <= installed


def test_every_server_extension_that_is_disabled_is_installed_and_no_other_is_new() -> None:
    configured: set[str] = set()
    for path in (Path(sys.prefix) / "etc/jupyter/jupyter_server_config.d").glob("*.json"):
        configured |= set(json.loads(path.read_text())["ServerApp"]["jpserver_extensions"])
    off = set(SERVER["ServerApp"]["jpserver_extensions"])
    assert off <= configured
    assert configured - off == {
        "jupyterlab",
        "jupyter_server_terminals",
        "notebook",
        "notebook_shim",
    }


def test_jupyterlab_reads_the_settings_of_a_student(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in open_lab.environment([], {}).items():
        monkeypatch.setenv(name, value)
    settings = str(LAB / "settings")
    page = get_page_config(jupyter_path("labextensions"), settings)
    assert set(DISABLED["disabledExtensions"]) <= set(page["disabledExtensions"])
    found, _ = get_settings(
        settings, str(LAB / "schemas"), str(tmp_path), "@jupyter-widgets/jupyterlab-manager:plugin",
        labextensions_path=[str(LABEXTENSIONS)],
    )  # fmt: skip
    assert found["schema"]["properties"]["saveState"]["default"] is True


def widgets(*states: str, pictures: bool = True) -> dict[str, Any]:
    """A notebook with the outputs of two widgets, and the states of those whose names are given."""
    view = "application/vnd.jupyter.widget-view+json"
    known = {
        "box": {"state": {"children": ["IPY_MODEL_slider"]}},
        "slider": {"state": {}},
        "link": {"state": {"source": ["IPY_MODEL_slider", "value"]}},
        "other": {"state": {}},
    }
    outputs = [
        {
            "data": {
                view: {"model_id": name},
                "text/plain": "",
                **({"image/png": ""} if pictures else {}),
            }
        }
        for name in ("box", "other")
    ]
    kept = {"application/vnd.jupyter.widget-state+json": {"state": {s: known[s] for s in states}}}
    return {"cells": [{"outputs": outputs}, {}], "metadata": {"widgets": kept}}


def test_a_restart_before_a_notebook_is_saved_costs_no_widget(tmp_path: Path) -> None:
    made = SimpleNamespace(ContentsManager=SimpleNamespace())
    hook = runpy.run_path(
        str(ROOT / "tools/lab/jupyter_server_config.py"), {"get_config": lambda: made}
    )["keep_widgets"]
    assert made.ContentsManager.pre_save_hook is hook
    manager = SimpleNamespace(root_dir=str(tmp_path))

    def saved_over(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / "x.ipynb").write_text(json.dumps(before))
        hook(model={"type": "notebook", "content": now}, path="x.ipynb", contents_manager=manager)
        return now

    all_of_them = widgets("box", "slider", "link", "other")
    assert saved_over(all_of_them, widgets()) == all_of_them
    assert saved_over(all_of_them, widgets("other")) == all_of_them
    # A cell that was run again shows another widget, so the file keeps nothing of the one before.
    alone = widgets("other")
    del alone["cells"][0]["outputs"][0]
    assert saved_over(all_of_them, json.loads(json.dumps(alone))) == alone
    # A widget whose state was never saved leaves its picture, if it has one.
    never = saved_over(widgets("box", "slider", "link"), widgets())
    box, other = (output["data"] for output in never["cells"][0]["outputs"])
    assert len(box) == 3 and sorted(other) == ["image/png", "text/plain"]
    bare = widgets(pictures=False)
    assert saved_over({}, widgets(pictures=False)) == bare
    # A person who does not want states to be saved gets none.
    without = widgets()
    del without["metadata"]["widgets"]
    assert saved_over(all_of_them, json.loads(json.dumps(without))) == without
    hook(model={"type": "file", "content": "text"}, path="x.md", contents_manager=manager)
    hook(model={"type": "notebook"}, path="new.ipynb", contents_manager=manager)


def test_a_server_of_the_same_folder_that_still_runs_is_named(tmp_path: Path) -> None:
    listening = socket.create_server(("localhost", 0))
    where = {
        "hostname": "localhost",
        "port": listening.getsockname()[1],
        "url": "http://localhost:8888/",
    }
    note = {"root_dir": str(open_lab.WORK), "token": "ab", "pid": os.getpid(), **where}
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert open_lab.running(tmp_path / "none") == ""
    for name, other in (("1", "{"), ("2", "[]"), ("3", json.dumps(note | {"root_dir": "/x"}))):
        (tmp_path / f"jpserver-{name}.json").write_text(other)
    assert open_lab.running(tmp_path) == ""
    (tmp_path / "jpserver-4.json").write_text(json.dumps(note))
    before = json.dumps(note | {"pid": ended.pid, "token": "of a server that was killed"})
    (tmp_path / "jpserver-0.json").write_text(before)
    assert open_lab.running(tmp_path) == "http://localhost:8888/lab?token=ab"
    listening.close()
    assert open_lab.running(tmp_path) == "", "its server has ended, by force"


def test_an_instructor_has_every_extension() -> None:
    assert open_lab.environment([], {})["JUPYTER_CONFIG_PATH"] == str(ROOT / "tools/lab")
    assert "JUPYTER_CONFIG_PATH" not in open_lab.environment(INSTRUCTORS, {})
    assert open_lab.command(INSTRUCTORS)[-1] == "--ServerApp.root_dir=."
    assert not any(str(open_lab.WORK) in each for each in open_lab.command(INSTRUCTORS))
    assert f"--ServerApp.root_dir={ROOT / 'work'}" in open_lab.command(["--no-browser"])


def test_the_folders_of_a_persons_own_settings_stay() -> None:
    made = open_lab.environment(
        [], {"PATH": "/usr/bin", "JUPYTER_CONFIG_PATH": "/home/ann/jupyter"}
    )
    assert made["JUPYTER_CONFIG_PATH"].split(":") == [str(ROOT / "tools/lab"), "/home/ann/jupyter"]
    assert made["PATH"].split(":") == [str(Path(sys.executable).parent), "/usr/bin"]


def test_python_in_a_terminal_is_the_courses_whatever_the_persons_bashrc_does(
    tmp_path: Path,
) -> None:
    (tmp_path / ".bashrc").write_text('PATH="/opt/conda/bin:/usr/bin:/bin"; mine=kept\n')
    (option,) = open_lab.terminals({"SHELL": "/bin/bash"})
    shell = ast.literal_eval(option.partition("shell_command=")[2])
    said = subprocess.run(
        [*shell, "-i"], input="command -v python; echo $mine\n", capture_output=True, text=True,
        env=open_lab.environment([], {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}),
    )  # fmt: skip
    assert said.stdout.split()[-2:] == [str(Path(sys.executable).parent / "python"), "kept"]


def test_another_shell_than_bash_stays_as_it_is() -> None:
    assert open_lab.terminals({"SHELL": "/usr/bin/zsh"}) == []


def test_the_page_that_opens_first_is_the_one_that_make_work_writes() -> None:
    lab = json.loads((ROOT / "tools/lab/jupyter_lab_config.json").read_text())
    assert lab["LabApp"]["default_url"].endswith("/start_here.md")
    assert OVERRIDES["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"]["markdown"]


# --- the page ------------------------------------------------------------------------------------


def test_the_page_has_a_whole_row_for_each_notebook_in_their_order() -> None:
    page, readme = welcome.page(ROOT / "notebooks"), (ROOT / "README.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| [")]
    notebooks = sorted((ROOT / "notebooks").glob("*/*.ipynb"))
    assert len(rows) == len(notebooks) >= 11
    for (name, question, time, points), path in zip(rows, notebooks, strict=True):
        assert f"({path.parent.name}/{path.name})" in name and path.name[:2] in name
        assert question.strip().endswith("?")
        assert f"| `{path.stem}` |{question}|" in readme, "the notebook's first cell is the source"
        assert re.search("hour|minutes", time), f"{path.name}: its head"
        exercises = saved.read(path).exercises
        due, extra = (
            sum(e.possible for e in exercises if e.extra is more) for more in (False, True)
        )
        assert points.strip() == f"{due:g}" + (f" + {extra:g}" if extra else "")
    assert welcome.PLACE not in page


def test_a_notebook_that_names_nothing_has_a_row_with_its_files_name(tmp_path: Path) -> None:
    (tmp_path / "90_new").mkdir()
    (tmp_path / "90_new/90_new.ipynb").write_text('{"cells": []}')
    assert "| [90_new](90_new/90_new.ipynb) |  |  |  |" in welcome.page(tmp_path)


A_SERVER = """
import sys, time
from pathlib import Path
from tests.browser.server import Server, copy_of_the_course
folder = Path(sys.argv[1])
server = Server(copy_of_the_course(folder / "course"), folder / "server")
print(*server.processes(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_of_the_tests_in_a_browser_ends_when_they_are_killed(
    number: signal.Signals, tmp_path: Path
) -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", A_SERVER, tmp_path], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert tests.stdout is not None
    processes = [int(pid) for pid in tests.stdout.readline().split()]
    os.kill(tests.pid, number)
    tests.wait()
    tests.stdout.close()
    assert len(processes) >= 2, "make and JupyterLab"
    assert not wait_until_gone(processes, 60.0)
