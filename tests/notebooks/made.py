"""Notebooks as a student saves them, made from cells: small, and with outputs that no kernel wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STUB = '''
def hello() -> tuple[int, int, str]:
    """This rank's number, the world size, and this rank's device as text."""
    # YOUR CODE HERE
    raise NotImplementedError()
'''
HELLO = """
def hello():
    return dist.get_rank(), dist.get_world_size(), str(device())
"""
IMPORTS = "import torch.distributed as dist\nfrom course_lib import check, device"
HELLO_CHECK = 'report = check("00_first_ranks/hello", hello)\nreport.points(1)'
FULL = "hello                                                         1.0 of 1\n  ✓ rank, 3 ranks\n"
NONE = "hello                                                         0.0 of 1\n  ✗ rank, 3 ranks\n"


STUDENT = Path(__file__).resolve().parents[2] / "notebooks"


def markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def code(text: str, printed: str = "", graded: bool = False) -> dict[str, Any]:
    outputs = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
    about = {"nbgrader": {"grade": True}} if graded else {}
    return {
        "cell_type": "code", "metadata": about, "source": text, "outputs": outputs, "execution_count": None,
    }  # fmt: skip


def checked(printed: str = "", text: str = HELLO_CHECK) -> dict[str, Any]:
    return code(text, printed, graded=True)


def save(path: Path, *cells: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def hello(path: Path, answer: str, printed: str = "") -> Path:
    """A notebook with the first exercise of the course."""
    title, section = markdown("# 00 · First ranks"), markdown("## 1 · Ranks\n\nText.")
    return save(path, title, code(IMPORTS), section, code(answer), checked(printed))
