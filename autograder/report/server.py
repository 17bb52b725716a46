"""The address at which formgrader runs, for the links of the class page."""

from __future__ import annotations

import json
import os
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from autograder.course.config import ROOT, SERVER


def formgrader_server(root: Path = ROOT) -> str:
    """The Jupyter server that runs in the course's folder, as `make formgrader` starts it, or its default.

    Jupyter keeps a file for each running server. A file that a killed server left behind does not count.
    """
    for file in sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json")):
        try:
            server = json.loads(file.read_text(encoding="utf-8"))
            os.kill(server["pid"], 0)
            if Path(server["root_dir"]).resolve() == root.resolve():
                return server["url"].rstrip("/")
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it has ended meanwhile, or is the file of another program
    return SERVER
