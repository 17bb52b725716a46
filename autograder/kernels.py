"""Kernels as building and grading want them: of this environment, and quiet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from jupyter_core.utils import run_sync


def prefer_this_environment() -> None:
    """Use this Python's kernels and programs, also where its environment was not activated.

    The user may have registered other kernels of the same name, and nbgrader calls `alembic`.
    """
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    programs = str(Path(sys.executable).parent)
    paths = os.environ.get("PATH", "").split(os.pathsep)
    if programs not in paths:
        os.environ["PATH"] = os.pathsep.join([programs, *paths])


class QuietKernel:
    """Mixed into a NotebookClient: what the kernel's process itself prints is dropped.

    Output of cells does not come this way. What does is meant for no reader: notes of ipykernel,
    and bytes that a submission writes past it.
    """

    async def async_start_new_kernel(self, **options: Any) -> None:
        with open(os.devnull, "w") as nowhere:
            options |= {"stdout": nowhere, "stderr": nowhere}
            await super().async_start_new_kernel(**options)  # type: ignore[misc]

    start_new_kernel = run_sync(async_start_new_kernel)
