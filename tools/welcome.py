"""The page that JupyterLab opens first: the notebooks in their order, how to work, and how to hand in.

The prose is `tools/lab/start_here.md`; the table comes from the first cell of each notebook, which names its
question, its time and its points. It is Markdown, and not a notebook, since it then needs no kernel and is
never marked as changed; `tools/lab/` has JupyterLab show Markdown as a page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

PROSE = Path(__file__).resolve().parent / "lab" / "start_here.md"
PLACE = "<!-- notebooks -->"


def page(notebooks: Path) -> str:
    """The page for a folder of notebooks. ValueError if a file in it is not a notebook."""
    rows = [row(path) for path in sorted(notebooks.glob("*/*.ipynb"))]
    table = ["| notebook | the question it answers | time | points |", "|---|---|---|---|", *rows]
    return PROSE.read_text(encoding="utf-8").replace(PLACE, "\n".join(table))


def row(path: Path) -> str:
    """A notebook's row; a field that its first cell does not name stays empty."""
    said = first_cell(path)
    title = first_group(r"^# (.+)$", said).replace(" · ", " ") or path.stem
    question = first_group(r"^\*\*(.+)\*\*$", said)
    time = first_group(r"^\| time \| ([^|,;.]+)", said).strip()
    points = " + ".join(
        filter(None, first_groups(r"^\| points \| (\d+)(?:, and (\d+) of extra credit)?", said))
    )
    return f"| [{title}]({path.parent.name}/{path.name}) | {question} | {time} | {points} |"


def first_cell(path: Path) -> str:
    """The source of a notebook's first text cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return next(("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"), "")


def first_group(pattern: str, text: str) -> str:
    return (first_groups(pattern, text) or ("",))[0]


def first_groups(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text, re.MULTILINE)
    return match.groups("") if match else ()
