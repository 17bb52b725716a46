"""Kernels for building and grading: of this environment, and quiet."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from jupyter_core.utils import run_sync


def prefer_this_environment() -> None:
    """Use this Python's kernels and programs, also if its environment was not activated.

    The user may have registered other kernels of the same name, and nbgrader calls `alembic`, which
    `pip install --user` and `--target` put where no PATH may lead. FileNotFoundError if there is none.
    """
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    look_first_in(Path(sys.executable).parent)
    module = importlib.util.find_spec("alembic")
    packages = Path(module.origin if module and module.origin else "").parent.parent
    for folder in (sysconfig.get_path("scripts", f"{os.name}_user"), packages / "bin"):
        if shutil.which("alembic") is None and shutil.which("alembic", path=str(folder)):
            look_first_in(Path(folder))
    if shutil.which("alembic") is None:
        raise FileNotFoundError(
            "nbgrader keeps its gradebook with the program `alembic`, and there is none on the PATH. "
            "Install it for this Python: python -m pip install --force-reinstall alembic"
        )


def look_first_in(folder: Path) -> None:
    paths = os.environ.get("PATH", "").split(os.pathsep)
    if str(folder) not in paths:
        os.environ["PATH"] = os.pathsep.join([str(folder), *paths])


class QuietKernel:
    """A mixin for a NotebookClient that drops the prints of the kernel's process itself.

    Output of cells does not come this way. It carries only notes of ipykernel, and bytes that a
    submission writes past it; neither is meant for a reader.
    """

    async def async_start_new_kernel(self, **options: Any) -> None:
        with open(os.devnull, "w") as nowhere:
            options |= {"stdout": nowhere, "stderr": nowhere}
            options["env"] = {
                **(options.get("env") or os.environ),
                "NO_COLOR": "1",
            }  # outputs are compared
            await super().async_start_new_kernel(**options)  # type: ignore[misc]

    start_new_kernel = run_sync(async_start_new_kernel)
