"""Notebooks that are broken, foreign or rearranged: if one can be read, it is put back and graded."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.faults.desk import ASSIGNMENT, Desk, cell_of, new_cell
from autograder.faults.row import FULL, LOST, NOTEBOOK, POINTS_TELL, Row

ALL_LOST = 0.0
NO_ROW = "the class stops, or the submission has no row or an old score"
NOT_PUT_BACK = "a changed cell decides points, or the other exercises lose theirs"
NOT_READ = "a notebook that can be read earns nothing"
SCRIPT_TELLS = "by an element or a link in the feedback page that would run the row's script"
BY_TABLE = "by the class's table"

Change = Callable[[NotebookNode], object]


def unreadable(
    name: str,
    content: bytes | Callable[[Desk], bytes],
    says: str,
    *,
    quick: bool = False,
) -> Row:
    def make(desk: Desk) -> None:
        desk.hand_in_bytes(content if isinstance(content, bytes) else content(desk))

    return Row(
        name, NOTEBOOK, make, "unreadable", ALL_LOST, NO_ROW, BY_TABLE, says=says, quick=quick,
    )  # fmt: skip


def no_file(name: str, make: Callable[[Path, Desk], None], *, quick: bool = False) -> Row:
    """Something that is not a regular file, under the notebook's name."""

    def write(desk: Desk) -> None:
        desk.folder.mkdir(parents=True)
        make(desk.path, desk)

    must_not = (
        "something that is not a file is opened: grading waits for it, or grades another's work"
    )
    return Row(
        name, NOTEBOOK, write, "unreadable", ALL_LOST, must_not, BY_TABLE, "file|link", quick=quick
    )


def put_back(
    name: str, change: Change, points: float = FULL, says: str = "", *, quick: bool = False
) -> Row:
    """The reference's answers in a notebook that was changed."""

    def make(desk: Desk) -> None:
        notebook = desk.answered()
        change(notebook)
        desk.hand_in(notebook)

    return Row(name, NOTEBOOK, make, "graded", points, NOT_PUT_BACK, POINTS_TELL, says, quick=quick)


def still_read(name: str, write: Callable[[Desk], None], says: str = "") -> Row:
    return Row(name, NOTEBOOK, write, "graded", FULL, NOT_READ, POINTS_TELL, says)


def missing(name: str, write: Callable[[Desk], None]) -> Row:
    return Row(
        name, NOTEBOOK, write, "missing", ALL_LOST, NO_ROW, BY_TABLE, says="handed in|notebook"
    )


# ---- changes of cells


def delete(*names: str) -> Change:
    def change(notebook: NotebookNode) -> None:
        gone = [cell_of(notebook, name) for name in names]
        notebook.cells = [
            cell for cell in notebook.cells if not any(cell is removed for removed in gone)
        ]

    return change


def duplicate(notebook: NotebookNode) -> None:
    for name in ("circle_check", "answers"):
        twice = copy.deepcopy(cell_of(notebook, name))
        twice["id"] = f"{name}-again"
        notebook.cells.append(twice)


def edit(notebook: NotebookNode) -> None:
    cell_of(notebook, "circle_check")["source"] = "report = None\n1000"
    cell_of(notebook, "answers_check")["source"] = "raise SystemExit"


def move_to_the_top(notebook: NotebookNode) -> None:
    checks = [cell for cell in notebook.cells if cell["metadata"].get("nbgrader", {}).get("grade")]
    notebook.cells = checks + [c for c in notebook.cells if not any(c is check for check in checks)]


def retype(notebook: NotebookNode) -> None:
    for name, kind in (("circle_check", "markdown"), ("circle", "raw")):
        cell = cell_of(notebook, name)
        cell["cell_type"] = kind
        cell.pop("outputs", None)
        cell.pop("execution_count", None)


def change_points(notebook: NotebookNode) -> None:
    cell_of(notebook, "answers_check").metadata["nbgrader"]["points"] = 1000
    cell_of(notebook, "circle_check").metadata["nbgrader"].update(points=-3, grade=False)


def remove_metadata(notebook: NotebookNode) -> None:
    notebook.metadata = NotebookNode()
    for cell in notebook.cells:
        cell["metadata"] = NotebookNode()


def swap_names(notebook: NotebookNode) -> None:
    first, other = cell_of(notebook, "circle_check"), cell_of(notebook, "answers_check")
    own = first.metadata["nbgrader"], other.metadata["nbgrader"]
    other.metadata["nbgrader"], first.metadata["nbgrader"] = own
    first["id"], other["id"] = other["id"], first["id"]


def future_schema(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata:
            cell.metadata["nbgrader"]["schema_version"] = 99


def wrong_kernel(notebook: NotebookNode) -> None:
    notebook.metadata["kernelspec"] = {"display_name": "R", "language": "R", "name": "ir"}


def strange_metadata(notebook: NotebookNode) -> None:
    for cell in notebook.cells[1:]:
        cell["metadata"] = NotebookNode(nbgrader="yes", tags={"a": 1}, collapsed=[None])


# ---- files


def as_text(desk: Desk) -> str:
    return nbformat.v4.writes(desk.answered())


def with_header(desk: Desk, **header: int) -> None:
    data = json.loads(as_text(desk)) | header
    desk.hand_in_bytes(json.dumps(data).encode())


def old_format(desk: Desk) -> None:
    """As nbformat 3 has it: worksheets, `input` instead of `source`."""
    desk.hand_in_bytes(nbformat.writes(desk.answered(), version=3).encode())  # pyright: ignore[reportArgumentType]


def without_ids(desk: Desk) -> None:
    data = json.loads(as_text(desk))
    for cell in data["cells"]:
        del cell["id"]
    desk.hand_in_bytes(json.dumps(data | {"nbformat_minor": 0}).encode())


def huge(desk: Desk) -> bytes:
    notebook = desk.answered()
    output = nbformat.v4.new_output("stream", text="x" * 100_000_000)
    cell_of(notebook, "circle")["outputs"] = [output]
    return nbformat.v4.writes(notebook).encode()


def nothing(desk: Desk) -> None:
    desk.folder.mkdir(parents=True)


def renamed(desk: Desk) -> None:
    desk.hand_in(desk.answered(), "my solution (2).ipynb")


def extra(desk: Desk) -> None:
    desk.hand_in(desk.answered())
    desk.hand_in(desk.blank(), "scratch.ipynb")


def two_other_names(desk: Desk) -> None:
    desk.hand_in(desk.answered(), f"{ASSIGNMENT} (1).ipynb")
    desk.hand_in(desk.blank(), f"{ASSIGNMENT} (2).ipynb")


def pipe(path: Path, desk: Desk) -> None:
    os.mkfifo(path)


def link(path: Path, desk: Desk) -> None:
    """A link to the instructor's own notebook."""
    path.symlink_to(desk.course.solutions / ASSIGNMENT / f"{ASSIGNMENT}.ipynb")


MARKDOWN = """
<script>SCRIPT</script> <img src="x" onerror="SCRIPT"> [read on](javascript:SCRIPT)
<iframe srcdoc="<script>SCRIPT</script>"></iframe> <a href="data:text/html,SCRIPT">more</a>
<svg onload="SCRIPT"></svg> <form action="javascript:SCRIPT"><button>go</button></form>
"""
OUTPUTS = f"""
from IPython.display import HTML, SVG, Javascript, Markdown

page = '''{MARKDOWN}'''
display(HTML(page), Markdown(page), SVG("<svg onload='SCRIPT'/>"), Javascript("SCRIPT"))
raise ValueError(page)
"""


def script(desk: Desk) -> None:
    notebook = desk.answered()
    notebook.cells.insert(1, new_cell(desk.filled(MARKDOWN), "markdown"))
    notebook.cells.insert(2, new_cell(desk.filled(OUTPUTS)))
    desk.hand_in(notebook)


ROWS = [
    unreadable("broken-json", b'{"cells": [', "JSON", quick=True),
    unreadable("empty-file", b"", "JSON|empty", quick=True),
    unreadable("not-utf-8", lambda desk: as_text(desk).replace("M", "Ü").encode("latin-1"), "UTF-8"),
    unreadable("utf-16", lambda desk: as_text(desk).encode("utf-16"), "UTF-8"),
    unreadable("a-list", b"[1, 2]", "notebook"),
    unreadable("nested-too-deeply", b"[" * 200_000, "deep|JSON"),
    unreadable("format-of-the-future", b'{"nbformat": 9, "sheets": []}', "notebook|nbformat"),
    unreadable("worksheets-of-no-format", b'{"worksheets": [{}]}', "notebook"),
    unreadable("a-hundred-thousand-cells", b'{"cells": [' + b"0, " * 100_000 + b"0]}", "notebook"),
    unreadable("a-100-mb-notebook", huge, "MB|large|big"),
    missing("missing", nothing),
    missing("two-notebooks", two_other_names),
    no_file("a-pipe-for-a-notebook", pipe, quick=True),
    no_file("a-link-for-a-notebook", link),
    still_read("renamed", renamed, "my solution"),
    still_read("extra-notebooks", extra),
    still_read("nbformat-3", old_format),
    still_read("nbformat-4.0", without_ids),
    still_read("nbformat-4.99", lambda desk: with_header(desk, nbformat_minor=99)),
    still_read("byte-order-mark", lambda desk: desk.hand_in_bytes(b"\xef\xbb\xbf" + as_text(desk).encode())),
    put_back("wrong-kernel-name", wrong_kernel),
    put_back("deleted-checks", delete("prediction_check", "circle_check"), says="put back"),
    put_back("deleted-exercise", delete("circle"), LOST, says="circle"),
    put_back("duplicated-cells", duplicate),
    put_back("edited-checks", edit, says="changed", quick=True),
    put_back("checks-moved-to-the-top", move_to_the_top),
    put_back("cells-in-reverse", lambda notebook: notebook.cells.reverse()),
    put_back("retyped-cells", retype, says="had become"),
    put_back("changed-points", change_points),
    put_back("swapped-names", swap_names),
    put_back("removed-metadata", remove_metadata),
    put_back("strange-metadata", strange_metadata),
    put_back("schema-of-the-future", future_schema),
    Row(
        "script-in-the-feedback", NOTEBOOK, script, "graded", FULL,
        "script of the submission runs in a page that others open", SCRIPT_TELLS, quick=True,
    ),
]  # fmt: skip
