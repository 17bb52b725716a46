"""The shared libraries that ranks load at their start, and an NCCL they can load instead of PyTorch's.

A process reads these variables once. Ranks are forked from a process that has imported torch, so a change
made in a notebook reaches them only through a new such process, which `pools.preloaded` then starts.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

NCCL = (
    "COURSE_NCCL"  # a libnccl.so.2 for the ranks alone: neither the kernel nor a package is touched
)
PACKAGES = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
READ_ONCE = ("LD_PRELOAD", "LD_LIBRARY_PATH", NCCL)


def of_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a process loads the NCCL that COURSE_NCCL names, before any other.

    ValueError if there is no such file.
    """
    library = environment.get(NCCL)
    if not library:
        return dict(environment)
    if not Path(library).is_file():
        raise ValueError(
            f"{NCCL} is {library!r}, but there is no such file. It names a libnccl.so.2. `python -m "
            "course_lib.doctor --nccl --get` gets one and prints the line to type."
        )
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library} {others}".strip()}


def wheels() -> list[str]:
    """The installed NCCL packages, such as "nvidia-nccl-cu12 2.27.5"; pip might have replaced one."""
    installed = []
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed.append(f"{name} {importlib.metadata.version(name)}")
    return installed


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether a process that was started in `before` has loaded other libraries than one started now."""
    return any(before.get(name) != now.get(name) for name in READ_ONCE)
