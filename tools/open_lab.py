"""Open JupyterLab: for a student in `work/`, with the settings of `tools/lab/`.

    make lab                                    a student's
    make lab ARGS="--port 8899 --no-browser"    any options of JupyterLab
    make lab ARGS="--ServerApp.root_dir=."      in this folder, with all extensions

The settings hold for this command alone, since they are neither in `.venv` nor in the home folder:
`JUPYTER_CONFIG_PATH` names their folder. They turn off what only instructors need, keep the log short, open
`start_here.md` first, and save the widgets' state with a notebook, even after a restart. A choice in
JupyterLab's own Settings counts more. If another folder is to be opened, none of the settings apply.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import zmq
from jupyter_core.paths import jupyter_runtime_dir

ROOT = Path(__file__).resolve().parent.parent
SETTINGS, WORK = ROOT / "tools" / "lab", ROOT / "work"
BASHRC = SETTINGS / "bashrc"
FOLDER_OPTIONS = ("--ServerApp.root_dir", "--notebook-dir")

SAID = """\
JupyterLab starts. It opens in your browser by itself; where it does not, open an address that begins with
http://localhost below. Keep this terminal open while you work. To end JupyterLab, save your notebooks, and
press Ctrl-C twice here."""
BEFORE = """\
A JupyterLab that you started before still runs, at
{address}
Work in one of the two, because both save the same files. To end the other one, press Ctrl-C twice in its
terminal.

"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Become JupyterLab: a signal to this process reaches the server."""
    options = list(sys.argv[1:] if arguments is None else arguments)
    before = "" if is_instructors(options) else running(Path(jupyter_runtime_dir()))
    sys.stdout.write(f"{BEFORE.format(address=before) if before else ''}{SAID}\n")
    sys.stdout.flush()
    if not is_instructors(options):
        os.chdir(WORK)  # where JupyterLab's terminals begin, for the commands of start_here.md
    os.execve(sys.executable, command(options), environment(options, os.environ))


def running(notes: Path) -> str:
    """The address of a server of `work/` that has not ended, by the notes that servers leave; else ""."""
    for file in sorted(notes.glob("jpserver-*.json")):
        try:
            note = json.loads(file.read_text(encoding="utf-8"))
            if Path(note["root_dir"]) == WORK:
                os.kill(note["pid"], 0)  # another server may have the port of one that has ended
                socket.create_connection((note["hostname"], note["port"]), timeout=1.0).close()
                return f"{note['url']}lab?token={note['token']}"
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ):  # it has ended, or is only about to begin
            continue
    return ""


def is_instructors(options: Sequence[str]) -> bool:
    """Whether another folder than the student's is to be opened."""
    return any(option.partition("=")[0] in FOLDER_OPTIONS for option in options)


def command(options: Sequence[str]) -> list[str]:
    as_root = ["--allow-root"] if os.geteuid() == 0 else []
    folder = [] if is_instructors(options) else [f"--ServerApp.root_dir={WORK}", *encryption()]
    return [sys.executable, "-m", "jupyterlab", *as_root, *folder, *terminals(os.environ), *options]


def terminals(inherited: Mapping[str, str]) -> list[str]:
    """Have a terminal of JupyterLab keep the PATH of `environment`.

    Many people's `.bashrc` puts conda's Python or pyenv's in front of it. Other shells stay as they are.
    """
    shell = inherited.get("SHELL") or shutil.which("bash") or ""
    if Path(shell).name != "bash":
        return []
    return [f"--ServerApp.terminado_settings=shell_command={[shell, '--rcfile', str(BASHRC)]}"]


def encryption() -> list[str]:
    """Encrypt what server and kernels say, if ZeroMQ can: every kernel warns in the terminal otherwise."""
    return ["--KernelManager.transport_encryption=auto"] if zmq.has("curve") else []


def environment(options: Sequence[str], inherited: Mapping[str, str]) -> dict[str, str]:
    """With the settings of a student, and so that `python` in a terminal of JupyterLab is this one."""
    programs = Path(sys.executable).parent
    path = before(inherited.get("PATH", ""), programs)
    made = {**inherited, "PATH": path, "COURSE_PROGRAMS": str(programs)}
    if not is_instructors(options):
        others = inherited.get("JUPYTER_CONFIG_PATH", "")
        made["JUPYTER_CONFIG_PATH"] = before(others, SETTINGS)
    return made


def before(others: str, folder: Path) -> str:
    """A list of folders, such as PATH, that begins with `folder`."""
    return os.pathsep.join(filter(None, [str(folder), others]))


if __name__ == "__main__":
    main()
