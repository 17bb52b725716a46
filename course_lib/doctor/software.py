"""The operating system, Python and PyTorch: their versions, and the features that they have and lack."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib.doctor.finding import Finding
from course_lib.runtime import endings

OLDEST_PYTHON, NEWEST_TESTED_PYTHON = (3, 11), (3, 13)
OLDEST_TORCH, SHARDS_ON_CPU = (2, 6), (2, 7)


def system() -> Finding:
    name = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform == "linux":
        return Finding("ok", "system", name)
    return Finding(
        "problem", "system", f"{name}, but the ranks of this course are Linux processes",
        "Use Google Colab, WSL2 on Windows, or a Linux container (any Python image from 3.11 on).",
    )  # fmt: skip


def python() -> Finding:
    version, text = sys.version_info[:2], f"{platform.python_version()}, {sys.executable}"
    if version < OLDEST_PYTHON:
        return Finding("problem", "Python", text, "3.11 or newer is needed.")
    if version > NEWEST_TESTED_PYTHON:
        return Finding(
            "note",
            "Python",
            f"{text}, which is newer than the latest version all tests ran on (3.13)",
        )
    return Finding("ok", "Python", text)


def pytorch(version: str = torch.__version__) -> Finding:
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        return Finding(
            "problem", "PyTorch", version, "2.6 or newer is needed: pip install 'torch>=2.6'"
        )
    if not (dist.is_available() and dist.is_gloo_available()):
        return Finding(
            "problem", "PyTorch", f"{version}, built without torch.distributed or without gloo",
            "Install an official build, see https://pytorch.org/get-started/locally.",
        )  # fmt: skip
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    text = f"{version}, built for {built}"
    if numbers < SHARDS_ON_CPU:
        return Finding(
            "note", "PyTorch",
            f"{text}\nIts fully_shard runs on GPUs alone. If ranks run on the CPU, some cells of notebooks "
            "04 and 05 have no result, and `distribute` of 13 cannot get all points here.",
            "Install PyTorch 2.7 or newer to have them. The grader runs with your instructor's PyTorch.",
        )  # fmt: skip
    return Finding("ok", "PyTorch", text)


def course() -> Finding:
    """Where the course's package comes from, with a note if another folder of the path has other files of it.

    A copy that comes first on the path hides the installed package, and pip does not replace it.
    """
    own = Path(__file__).resolve().parents[1]
    folders = [Path(place or ".").resolve() / own.name for place in sys.path]
    others = [
        folder
        for folder in dict.fromkeys(folders)
        if folder != own and (folder / "__init__.py").is_file() and _files(folder) != _files(own)
    ]
    if not others:
        return Finding("ok", "course", str(own))
    return Finding(
        "note", "course", f"{own}\nAn unequal copy is in {', '.join(map(str, others))}, and the first on the "
        "path is used.",
        "If a notebook cannot import a name, remove the older copy, or take its folder out of PYTHONPATH.",
    )  # fmt: skip


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.py")}


def compiled(file: str = str(torch.__file__)) -> Finding | None:
    """A note if Python cannot keep its compiled files of PyTorch, which this process has just imported.

    With PyTorch 2.13 on two cores, a first launch then took 7 s instead of 2 s.
    """
    if Path(importlib.util.cache_from_source(file)).exists():
        return None
    folder = Path(file).parent
    why = (
        "PYTHONDONTWRITEBYTECODE is set"
        if sys.dont_write_bytecode
        else f"{folder} cannot be written to"
    )
    return Finding(
        "note", "compiled files", f"PyTorch is not compiled, and {why}, so every kernel compiles it again "
        "and its first launch takes seconds longer", f"Once: python -m compileall -q {folder}",
    )  # fmt: skip


def process_handles() -> Finding | None:
    """A note if the system gives no handles of processes (see `endings`). All works without them."""
    handle = endings.handle(os.getpid())
    if handle is not None:
        os.close(handle)
        return None
    return Finding(
        "note", "process handles", "pidfd_open is not allowed or not known here, so the course looks every "
        f"{endings.LOOK * 1000:.0f} milliseconds whether a rank has ended",
    )  # fmt: skip
