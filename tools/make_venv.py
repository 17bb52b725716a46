"""Make `.venv` with exactly the versions of requirements.lock.

`make setup` runs it; without make it is `python3 tools/make_venv.py`.

The steps, in order:

1. find a Python from 3.11 on that can make virtual environments, and make `.venv` with it;
2. install PyTorch, the CPU build if there is one (see `install_torch`);
3. install the lock, package by package as written: pip resolves nothing, so nothing can slip in;
4. install course_lib itself so that an edit takes effect at once;
5. check that all requirements are met, and record the installed versions in .venv/installed.json.

Only the standard library is used, and no syntax that an old Python could not read: the script
has to run in order to say that this Python is too old. Safe to run again at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pip_progress import Progress

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
RECORD = VENV / "installed.json"

OLDEST, NEWEST_TESTED = (3, 11), (3, 13)
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_INDEX_ATTEMPTS = 2
BUILDS = ("auto", "cpu", "cuda")
# The size of PyTorch 2.13 from the package registry with its CUDA packages (x86-64: 2.7 and 5 GB).
CUDA_DOWNLOAD_GB, CUDA_DISK_GB = 3, 5
TORCH_CUDA = 13  # the CUDA that it is built for: an older driver cannot run it


class SetupFailed(Exception):
    """A sentence for the person at the terminal, with the mistake and the remedy."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("make setup", description="Make .venv from requirements.lock.")
    parser.add_argument("--python", default="", help="the Python to use, such as python3.12")
    parser.add_argument(
        "--torch",
        choices=BUILDS,
        default=os.environ.get("COURSE_TORCH", "auto"),
        help="which build of PyTorch (default: cuda if a GPU is seen, otherwise cpu)",
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        make_environment(options.python)
        source = install_torch(options.torch)
        say("the other packages of requirements.lock")
        pip("install", "--no-deps", "-r", str(LOCK), shown=Progress(locked_packages(), sys.stdout))
        say("course_lib itself, from this folder")
        pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        pip("check")
        write_record(source, time.monotonic() - started)
    except SetupFailed as problem:
        print(f"\nSet-up stopped: {problem}", file=sys.stderr)
        return 1
    return 0


# --- 1. the Python and its environment -----------------------------------------------------------


def make_environment(wanted: str) -> None:
    """Make VENV, or keep the one that is there if its Python works and is the one wanted."""
    python = find_python(wanted)
    existing = inspect_python(str(venv_python()))
    if existing and existing["version"] >= OLDEST and not (wanted and differs(existing, python)):
        say(f"keeping .venv, Python {dotted(existing['version'])}")
        return
    say(f"making .venv with Python {dotted(python['version'])}")
    made = run([python["path"], "-m", "venv", "--clear", str(VENV)])
    if made.returncode != 0:
        raise SetupFailed(f"{python['path']} -m venv failed:\n{made.stdout.strip()}")


def find_python(wanted: str) -> dict:
    """The Python asked for, else the first suitable of python3, python3.13, python3.12, ..."""
    names = (
        [wanted] if wanted else ["python3", "python3.13", "python3.12", "python3.11", "python3.14"]
    )
    pythons = [info for info in map(inspect_python, filter(None, map(shutil.which, names))) if info]
    if not pythons:
        raise SetupFailed(f"no Python was found as {' or '.join(names)}. {advice()}")
    recent = [info for info in pythons if info["version"] >= OLDEST]
    if not recent:
        versions = ", ".join(dotted(info["version"]) for info in pythons)
        raise SetupFailed(f"Python {versions} is too old: 3.11 or newer is needed. {advice()}")
    usable = [info for info in recent if info["venv"]]
    if not usable:
        short = ".".join(map(str, recent[0]["version"][:2]))
        raise SetupFailed(
            f"Python {short} is here, but it cannot make virtual environments: on Debian and "
            f"Ubuntu that is a package of its own. Install it and try again:\n"
            f"    sudo apt-get update && sudo apt-get install python{short}-venv"
        )
    tested = [info for info in usable if info["version"][:2] <= NEWEST_TESTED]
    if not tested:
        say(
            f"note: Python {dotted(usable[0]['version'])} is newer than any that all tests ran on (3.13)"
        )
    return (tested or usable)[0]


def inspect_python(path: str) -> dict | None:
    """Version of the interpreter at `path`, and whether it has venv; None if it does not run."""
    code = (
        "import json, sys\n"
        "try:\n    import ensurepip, venv\n    has = True\n"
        "except ImportError:\n    has = False\n"
        "print(json.dumps([list(sys.version_info[:3]), has]))"
    )
    if not Path(path).exists():
        return None
    answer = run([path, "-c", code])
    if answer.returncode != 0:
        return None
    version, has_venv = json.loads(answer.stdout.splitlines()[-1])
    return {"path": path, "version": tuple(version), "venv": has_venv}


def differs(ours: dict, other: dict) -> bool:
    return ours["version"] != other["version"]


def advice() -> str:
    return (
        "On Debian 12 or newer and Ubuntu 24.04 or newer: sudo apt-get install python3 "
        "python3-venv. To name another one: make setup PYTHON=/path/to/python3.12"
    )


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def venv_python() -> Path:
    return VENV / "bin" / "python"


# --- 2. PyTorch ----------------------------------------------------------------------------------


def install_torch(build: str) -> str:
    """Install the lock's PyTorch and return where it came from.

    PyTorch in the package registry brings the CUDA packages on Linux, some GB that a machine
    without a GPU does not need. So pip is asked for the CPU build by its full version, "+cpu": first
    at its usual places (its own configuration may name a folder of wheels or a mirror), then at
    PyTorch's CPU index too. Only if neither has it, the registry's build is taken.
    """
    version = locked_version("torch")
    if build not in BUILDS:
        raise SetupFailed(f"COURSE_TORCH is {build!r}; it may be {', '.join(BUILDS)}")
    if build == "auto":
        build = "cuda" if has_nvidia_gpu() else "cpu"
        knows = driver_cuda() if build == "cuda" else TORCH_CUDA
        if knows < TORCH_CUDA:
            build = "cpu"
            say(
                f"note: the NVIDIA driver knows CUDA {knows}, and PyTorch {version} is built for CUDA "
                f"{TORCH_CUDA}, so the CPU build is taken. To use the GPUs, install the course beside a "
                "PyTorch that was made for this driver (`pip install .` in its environment), or update the "
                "driver and run `make setup COURSE_TORCH=cuda`"
            )
    if installed_torch_suits(version, build):
        say(f"PyTorch {version} is installed already")
        return recorded_source() or "installed by hand"
    if build == "cpu" and platform.system() == "Linux":
        cpu_build = f"torch=={version}+cpu"
        say(f"PyTorch {version}, CPU build")
        if try_pip("install", "--no-deps", "--retries", "0", cpu_build):
            return "CPU build, found by pip's own configuration"
        index = ("--extra-index-url", TORCH_CPU_INDEX, "--retries", "0", "--timeout", "30")
        for attempt in range(1, CPU_INDEX_ATTEMPTS + 1):
            say(f"asking PyTorch's CPU index (about 200 MB), try {attempt} of {CPU_INDEX_ATTEMPTS}")
            if try_pip("install", "--no-deps", *index, cpu_build):
                return "CPU build, from PyTorch's CPU index"
        say(
            f"note: no CPU build could be had, so the registry's PyTorch is installed. It works "
            f"without a GPU, but brings its CUDA packages: about {CUDA_DOWNLOAD_GB} GB to download "
            f"and {CUDA_DISK_GB} GB on the disk"
        )
    elif platform.system() == "Linux":
        say(f"PyTorch {version} with CUDA: about {CUDA_DOWNLOAD_GB} GB to download")
    pip("install", f"torch=={version}", shown=Progress(0, sys.stdout))
    return "the package registry's build"


def has_nvidia_gpu() -> bool:
    return bool(shutil.which("nvidia-smi")) and "GPU 0" in run(["nvidia-smi", "-L"]).stdout


def driver_cuda() -> int:
    """The newest CUDA that the NVIDIA driver knows (the major number); TORCH_CUDA if it does not say."""
    match = re.search(r"CUDA Version: (\d+)", run(["nvidia-smi"]).stdout)
    return int(match.group(1)) if match else TORCH_CUDA


def installed_torch_suits(version: str, build: str) -> bool:
    """Whether .venv holds this PyTorch; a CPU build does not suit if CUDA is asked for."""
    code = "from importlib.metadata import version; print(version('torch'))"
    installed = run([str(venv_python()), "-c", code])
    if installed.returncode != 0:
        return False
    public, _, local = installed.stdout.strip().partition("+")
    return public == version and not (build == "cuda" and local == "cpu")


def locked_version(name: str) -> str:
    match = re.search(rf"^{name}==([^\s;]+)", LOCK.read_text(), flags=re.MULTILINE)
    if not match:
        raise SetupFailed(f"requirements.lock does not name {name}; `make lock` makes it anew")
    return match.group(1)


def locked_packages() -> int:
    """The packages of the lock, those for other systems and Pythons included."""
    return len(re.findall(r"^[^\s#][^\s]*==", LOCK.read_text(), flags=re.MULTILINE))


# --- 5. the record -------------------------------------------------------------------------------


def recorded_source() -> str:
    """The source from which an earlier set-up of this .venv took PyTorch; "" if it is not known."""
    return json.loads(RECORD.read_text()).get("torch_source", "") if RECORD.exists() else ""


def write_record(torch_source: str, seconds: float) -> None:
    """Write .venv/installed.json (the Makefile's sign that set-up is complete) and show it."""
    code = (
        "import json, platform; from importlib.metadata import version; "
        "print(json.dumps({n: version(n) for n in ('torch', 'numpy', 'jupyterlab', 'nbgrader')} "
        "| {'python': platform.python_version()}))"
    )
    answer = run([str(venv_python()), "-c", code])
    if answer.returncode != 0:
        raise SetupFailed(f"the finished .venv does not run:\n{answer.stdout.strip()}")
    record = json.loads(answer.stdout.splitlines()[-1])
    record["torch_source"] = torch_source
    record["system"] = platform.platform()
    record["seconds"] = round(seconds, 1)
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    print(
        f"\nReady in {seconds:.0f} s: Python {record['python']}, PyTorch {record['torch']} "
        f"({torch_source}), JupyterLab {record['jupyterlab']}, nbgrader {record['nbgrader']}.\n"
        f"This is kept in {RECORD.relative_to(ROOT)}."
    )


# --- running programs ----------------------------------------------------------------------------


def say(text: str) -> None:
    print(f"- {text}", flush=True)


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def pip(*arguments: str, shown: Progress | None = None) -> None:
    """Run pip in .venv; SetupFailed with the end of its output if it fails."""
    code, lines = run_pip(arguments, shown)
    if code != 0:
        text = "\n".join(lines[-20:])
        raise SetupFailed(
            f"`pip {' '.join(arguments)}` failed. The end of what it said:\n{text}\n"
            "If that is the network, run `make setup` again: it keeps all that is there."
        )


def try_pip(*arguments: str) -> bool:
    return run_pip(arguments, Progress(1, sys.stdout))[0] == 0


def run_pip(arguments: Sequence[str], shown: Progress | None) -> tuple[int, list[str]]:
    """pip's exit code and its lines, without addresses; `shown` tells the person how far it is."""
    command = [str(venv_python()), "-m", "pip", "--disable-pip-version-check", *arguments]
    bar = {"PIP_PROGRESS_BAR": "raw" if shown and pip_counts_bytes() else "off"}
    lines = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **bar},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            line = without_addresses(line.rstrip())
            if not line.startswith("Progress "):
                lines.append(line)
            if shown:
                shown.read(line)
    if shown:
        shown.end()
    return process.returncode, lines


def pip_counts_bytes() -> bool:
    """Whether .venv's pip can say how much of a file has arrived (`--progress-bar=raw`, since pip 24.1)."""
    match = re.match(
        r"pip (\d+)\.(\d+)", run([str(venv_python()), "-m", "pip", "--version"]).stdout
    )
    return bool(match) and (int(match[1]), int(match[2])) >= (24, 1)


def without_addresses(line: str) -> str:
    """A line of pip's without the addresses of the indexes: the address of a mirror may be private."""
    line = re.sub(r"\b(?:https?|file)://\S*?([^/\s]*)(?=\s|,|$)", r"\1", line)
    return re.sub(r"host='[^']*'", "host=...", line)


if __name__ == "__main__":
    sys.exit(main())
