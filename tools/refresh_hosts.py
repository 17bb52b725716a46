"""Write tests/hosts/ anew from what the hosts publish: python tools/refresh_hosts.py [--copies FOLDER]

The lists are read from public repositories on GitHub, which are cloned into a temporary folder, or found
under --copies (as owner+name/repo). A clone made now is known up to today, a copy up to its newest commit.
For versions that a host does not publish, and for the package registry's newest ones, pip resolves them now.

oldest.txt follows pyproject.toml and is edited by hand. Read the differences before you commit them: how
a host names its cells (`# cells:`) is in none of these lists.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hosts import FOLDER, WANTED, read
from packaging.utils import canonicalize_name

COLAB = "googlecolab/backend-info"
KAGGLE = "Kaggle/docker-python"
RUNPOD = "runpod/containers"
VSCODE = "microsoft/vscode-jupyter"
PYTHON = ".".join(map(str, sys.version_info[:2]))  # for which pip resolves here
COLAB_CELLS = "/tmp/ipython-input-{hash}.py"

# The packages, of a host's hundreds, that are imported here: by the kernel and its widgets, whichever
# their versions, by the course, and by PyTorch.
KERNEL = (
    "ipykernel", "ipython", "ipywidgets", "jupyterlab-widgets", "widgetsnbextension", "comm",
    "traitlets", "jupyter-client", "jupyter-core", "tornado", "pyzmq", "matplotlib-inline",
    "backcall", "pickleshare", "ipython-genutils", "entrypoints", "decorator", "jedi", "parso",
    "prompt-toolkit", "wcwidth", "pygments", "pexpect", "ptyprocess", "stack-data", "asttokens",
    "executing", "pure-eval", "ipython-pygments-lexers", "nest-asyncio", "nest-asyncio2",
    "psutil", "debugpy", "packaging", "platformdirs", "python-dateutil", "six",
    "typing-extensions",
)  # fmt: skip
LIBRARIES = (
    "cloudpickle", "matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing",
    "pillow", "numpy",
)  # fmt: skip
TORCHS = (
    "filelock", "fsspec", "jinja2", "markupsafe", "networkx", "sympy", "mpmath",
)  # fmt: skip
KEPT = {*KERNEL, *LIBRARIES, *TORCHS, "jupyterlab", "notebook"}


@dataclass(frozen=True)
class Clone:
    """A repository as it was at its newest commit, or at `commit`."""

    repository: str
    path: Path
    known: datetime.date  # up to when
    commit: str = "HEAD"

    def at(self, commit: str) -> Clone:
        return Clone(self.repository, self.path, self.known, commit)

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def text(self, file: str) -> str:
        return self.git("show", f"{self.commit}:{file}")

    def source(self, file: str) -> str:
        commit, date = self.git("log", "-1", "--format=%h %cs", "--abbrev=12", self.commit).split()
        return f"{self.repository}@{commit} {file} ({date})"


def clone(repository: str, copies: Path | None, folder: Path) -> Clone:
    if copies is not None:
        path = copies / repository.replace("/", "+") / "repo"
        newest = Clone(repository, path, datetime.date.min).git("log", "-1", "--format=%cs")
        return Clone(repository, path, datetime.date.fromisoformat(newest.strip()))
    path = folder / repository.replace("/", "+")
    address = f"https://github.com/{repository}.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", address, str(path)], check=True)
    return Clone(repository, path, datetime.date.today())


def main() -> int:
    parser = argparse.ArgumentParser(description="Write tests/hosts/ anew.")
    parser.add_argument("--copies", type=Path, help="a folder with clones, as owner+name/repo")
    copies = parser.parse_args().copies
    with tempfile.TemporaryDirectory() as folder:
        colab, kaggle, runpod, vscode = (
            clone(name, copies, Path(folder)) for name in (COLAB, KAGGLE, RUNPOD, VSCODE)
        )
        write_colab(colab)
        write_kaggle(kaggle, colab)
        write_runpod(runpod)
        write_newest(vscode)
    return 0


# --- Colab and Kaggle: lists of everything -------------------------------------------------------


def frozen(text: str) -> dict[str, str]:
    """Canonical name -> version of a `pip freeze`, of which Colab writes some as addresses of wheels."""
    versions = {}
    for line in text.splitlines():
        match = re.match(r"([\w.-]+)==([0-9][\w.]*)", line)
        match = match or re.match(r"([\w.-]+) @ \S*/\w+-([0-9]+(?:\.[0-9]+)*)", line)
        if match is not None:
            versions[canonicalize_name(match[1])] = match[2]
    return versions


def write_colab(now: Clone) -> None:
    versions = frozen(now.text("pip-freeze.txt"))
    python = re.search(r"Python (\d+\.\d+)", now.text("os-info.txt"))
    assert python is not None
    write(
        "colab", "Google Colab", [now.source("pip-freeze.txt")],
        now.known, python[1], versions["torch"], versions, cells=COLAB_CELLS,
    )  # fmt: skip


def write_kaggle(kaggle: Clone, colab: Clone) -> None:
    """Colab's image of a day, with Kaggle's own requirements over it."""
    image = re.search(r"external-images_(\d{4})(\d\d)(\d\d)", kaggle.text("Dockerfile.tmpl"))
    assert image is not None
    day = "-".join(image.groups())
    base = colab.at(colab.git("log", "-1", "--format=%H", f"--before={day}T00:00").strip())
    versions = frozen(base.text("pip-freeze.txt"))
    own = frozen(kaggle.text("kaggle_requirements.txt"))
    python = re.search(r"lib/python(\d+\.\d+)/", kaggle.text("Dockerfile.tmpl"))
    assert python is not None
    changed = {**versions, **own}
    # The requirements of Kaggle's own ipywidgets, beyond Colab's versions.
    fixed = {name: changed[name] for name in KEPT & changed.keys() - {"jupyterlab", "notebook"}}
    loose = {"widgetsnbextension", "jupyterlab-widgets", "comm"}
    solved = resolve([f"{n}=={v}" for n, v in fixed.items() if n not in loose])
    changed |= {name: solved[name] for name in loose}
    write(
        "kaggle", "Kaggle",
        [kaggle.source("kaggle_requirements.txt"), kaggle.source("Dockerfile.tmpl"),
         base.source("pip-freeze.txt")],
        min(kaggle.known, colab.known), python[1], versions["torch"], changed,
        notes=[f"the image is Colab's of {day}; its list is the last one before that day",
               f"not published, as pip resolved it: {', '.join(sorted(loose))}"],
    )  # fmt: skip


# --- hosts that publish a few versions -----------------------------------------------------------


def write_runpod(runpod: Clone) -> None:
    base, bake = (
        "official-templates/base/requirements.txt",
        "official-templates/pytorch/docker-bake.hcl",
    )
    dockerfile = runpod.text("official-templates/base/Dockerfile")
    own = {name: version for name, version in frozen(runpod.text(base)).items() if name in KEPT}
    torchs = re.findall(r'^    "([\d.]+)" = \{', runpod.text(bake), flags=re.MULTILINE)
    python = re.search(r"/usr/bin/python(\d+\.\d+) /usr/local/bin/python", dockerfile)
    assert python is not None
    write(
        "runpod", "Runpod, its PyTorch templates", [runpod.source(base), runpod.source(bake)],
        runpod.known, python[1], max(torchs, key=version_key),
        resolve([f"{name}=={version}" for name, version in own.items()]),
        notes=[f"published: {', '.join(sorted(own))}; PyTorch {', '.join(sorted(torchs, key=version_key))}",
               resolved_note()],
    )  # fmt: skip


def write_newest(vscode: Clone) -> None:
    """JupyterLab and VS Code work with pip's newest versions; VS Code tests its widgets with two."""
    versions = resolve(["jupyterlab>=4,<5"])
    torch = newest("torch")
    write(
        "jupyterlab", "JupyterLab 4, newly installed", ["the package registry's newest versions"],
        datetime.date.today(), PYTHON, torch, versions, notes=[resolved_note()],
    )  # fmt: skip
    file = "build/venv-test-ipywidgets7-requirements.txt"
    own = {name: version for name, version in frozen(vscode.text(file)).items() if name in KEPT}
    write(
        "vscode", "VS Code, its oldest widgets", [vscode.source(file)],
        vscode.known, PYTHON, torch, resolve([f"{name}=={version}" for name, version in own.items()]),
        notes=[f"published: {', '.join(sorted(own))}; with ipywidgets 8 it is jupyterlab.txt",
               resolved_note()],
    )  # fmt: skip


def resolved_note() -> str:
    return f"the others as pip resolved them on {datetime.date.today()} for Python {PYTHON}"


def resolve(requirements: Iterable[str]) -> dict[str, str]:
    """Canonical name -> version that pip would install for these and for the course, without PyTorch."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--report", "-", *WANTED, *requirements]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    installed = (item["metadata"] for item in json.loads(done.stdout)["install"])
    return {canonicalize_name(item["name"]): item["version"] for item in installed}


def newest(package: str) -> str:
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    version = re.search(rf"^{package} \((\S+)\)", done.stdout, flags=re.MULTILINE)
    assert version is not None
    return version[1]


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


# --- the files -----------------------------------------------------------------------------------


def write(
    name: str, host: str, sources: list[str], date: datetime.date, python: str, torch: str,
    versions: Mapping[str, str], *, cells: str = "", notes: Iterable[str] = (),
) -> None:  # fmt: skip
    lines = [f"# host: {host}", *(f"# source: {source}" for source in sources)]
    lines += [f"# date: {date}", f"# python: {python}", f"# torch: {torch}"]
    lines += [f"# cells: {cells}"] * bool(cells)
    lines += [f"# note: {note}" for note in notes]
    lines += [f"{package}=={versions[package]}" for package in sorted(KEPT & versions.keys())]
    path = FOLDER / f"{name}.txt"
    path.write_text("\n".join(lines) + "\n")
    print(f"wrote tests/hosts/{path.name}, {len(read(path).pins)} versions, known up to {date}")


if __name__ == "__main__":
    sys.exit(main())
