"""A notebook's metadata as this environment's kernel would write them.

JupyterLab compares them when it opens a notebook, and marks it as changed if the kernel's name or the version
of Python differs. Autosave then writes the file, and a notebook that was only looked at seems worked in.
"""

from __future__ import annotations

import json
from typing import Any


def of_this_kernel() -> dict[str, Any]:
    """The metadata of a new notebook here; empty if this Python has no kernel."""
    try:
        from ipykernel.ipkernel import IPythonKernel
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ModuleNotFoundError:
        return {}
    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        return {}
    kernel = {"display_name": spec.display_name, "language": spec.language, "name": "python3"}
    return {"kernelspec": kernel, "language_info": dict(IPythonKernel.language_info)}


def with_metadata(notebook: bytes, metadata: dict[str, Any]) -> bytes:
    """The file with these metadata in place of its own; any other file, and any without them, as it is."""
    try:
        read = json.loads(notebook)
    except ValueError:
        return notebook
    if not metadata or not isinstance(read, dict) or "metadata" not in read:
        return notebook
    read["metadata"] |= metadata
    return (json.dumps(read, indent=1, ensure_ascii=False) + "\n").encode()
