"""A worked notebook as each host and editor saves it, by a function for each kind of saving.

Each takes the notebook as JupyterLab holds it (nbformat 4.5, ids, outputs) and gives the file that a
student hands in. The forms are those of files that these programs wrote and, for VS Code, of its source.
The course's own notebooks were not sent through these programs: whether Kaggle keeps nbgrader's metadata is
not known, so a file without any is here, too.
"""

from __future__ import annotations

import copy
import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nbformat
from nbformat import NotebookNode

Json = dict[str, Any]
Change = Callable[["Saved", random.Random], None]


@dataclass
class Saved:
    """A file: its name, the notebook in it as JSON, and how it is written down."""

    name: str
    notebook: Json
    indent: int | None = 1
    line_end: str = "\n"

    @classmethod
    def of(cls, name: str, notebook: NotebookNode) -> Saved:
        return cls(f"{name}.ipynb", json.loads(nbformat.writes(notebook)))

    @property
    def cells(self) -> list[Json]:
        return self.notebook["cells"]

    @property
    def content(self) -> bytes:
        text = json.dumps(self.notebook, indent=self.indent, ensure_ascii=False) + "\n"
        return text.replace("\n", self.line_end).encode()

    def format(self, minor: int) -> None:
        """The header, and no ids before 4.5."""
        self.notebook["nbformat"], self.notebook["nbformat_minor"] = 4, minor
        if minor < 5:
            for cell in self.cells:
                cell.pop("id", None)


def save(kind: str, name: str, notebook: NotebookNode, draw: random.Random) -> Saved:
    """The file of one of KINDS. `notebook` stays as it is."""
    saved = Saved.of(name, copy.deepcopy(notebook))
    KINDS[kind](saved, draw)
    return saved


# ---- hosts


def jupyterlab(saved: Saved, draw: random.Random) -> None:
    for cell in saved.cells:
        cell["metadata"] |= {"editable": True, "slideshow": {"slide_type": ""}}
        if cell["cell_type"] == "code":
            cell["metadata"] |= {"collapsed": False, "jupyter": {"source_hidden": False}}
            cell["metadata"]["execution"] = _times()


def colab_to_drive(saved: Saved, draw: random.Random) -> None:
    """Colab's own file, also what "Download .ipynb" gives: nbformat 4.0, the id in the metadata."""
    for cell in saved.cells:
        cell["metadata"]["id"] = cell.get("id") or _colab_id(draw)
    _colab(saved, draw)
    saved.format(0)


def colab_to_github(saved: Saved, draw: random.Random) -> None:
    """ "Save a copy in GitHub": the ids stay, a badge without one comes first."""
    for cell in saved.cells:
        cell["metadata"]["id"] = cell["id"] = cell.get("id") or _colab_id(draw)
    _colab(saved, draw)
    badge(saved, draw)


def badge(saved: Saved, draw: random.Random) -> None:
    link = f"https://colab.research.google.com/github/ann/course/blob/main/{saved.name}"
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    text = f'<a href="{link}" target="_parent"><img src="{picture}" alt="Open In Colab"/></a>'
    metadata = {"id": "view-in-github", "colab_type": "text"}
    saved.cells.insert(0, {"cell_type": "markdown", "metadata": metadata, "source": [text]})


def widgets_without_state(saved: Saved, draw: random.Random) -> None:
    """A file that GitHub refuses to show: Colab's models lie where Jupyter has a `state`."""
    models = {uuid.UUID(int=draw.getrandbits(128)).hex: {"model_name": "LayoutModel", "state": {}}}
    saved.notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": models}


def kaggle_draft(saved: Saved, draw: random.Random) -> None:
    """The file that Kaggle's editor keeps and downloads: one line of JSON, no ids, texts in one piece."""
    for cell in saved.cells:
        cell["source"] = "".join(cell["source"])
        cell["metadata"] |= {"trusted": True}
        if cell["cell_type"] == "code":
            cell["metadata"] |= {"execution": _times(), "collapsed": False}
            cell["metadata"]["jupyter"] = {"outputs_hidden": False}
        first = {"_uuid": f"{draw.getrandbits(160):040x}", "_cell_guid": _uuid(draw)}
        cell["metadata"] |= first if draw.random() < 0.3 else {}
    saved.notebook["metadata"]["kaggle"] = {
        "accelerator": "nvidiaTeslaT4", "dataSources": [], "dockerImageVersionId": 31287,
        "isGpuEnabled": True, "isInternetEnabled": True, "language": "python", "sourceType": "notebook",
    }  # fmt: skip
    saved.format(4)
    saved.indent = None


def kaggle_committed(saved: Saved, draw: random.Random) -> None:
    """ "Save & Run All": papermill ran it and gave each cell a new id, times and an empty list of tags."""
    kaggle_draft(saved, draw)
    for cell in saved.cells:
        cell["id"] = _jupyter_id(draw)
        cell["metadata"]["papermill"] = {"duration": 0.1, "exception": False, "status": "completed"}
        cell["metadata"]["tags"] = []
    saved.format(5)
    saved.indent = 1


def vs_code(saved: Saved, draw: random.Random) -> None:
    """Keeps ids and metadata, in sorted keys, and notes the language of a cell."""
    for cell in saved.cells:
        if cell["cell_type"] == "code":
            cell["metadata"]["vscode"] = {"languageId": "python"}
    saved.notebook["metadata"]["language_info"] = {"name": "python", "version": "3.13.1"}
    saved.notebook = json.loads(json.dumps(saved.notebook, sort_keys=True))


def vs_code_pasted(saved: Saved, draw: random.Random) -> None:
    """VS Code, after cells were cut and pasted: each of them has another id and no metadata."""
    vs_code(saved, draw)
    marked = [cell for cell in saved.cells if cell["metadata"].get("nbgrader")]
    names = Counter(cell["metadata"]["nbgrader"]["grade_id"] for cell in marked)
    # Of a cell that was copied with its metadata, the copy would still have them.
    single = [cell for cell in marked if names[cell["metadata"]["nbgrader"]["grade_id"]] == 1]
    surely = draw.choice(single) if single else None  # none after another change has stripped them
    for cell in saved.cells:
        if cell is surely or draw.random() < 0.3:
            cell["id"], cell["metadata"] = _jupyter_id(draw), {}


# ---- other changes that files undergo


def without_ids(saved: Saved, draw: random.Random) -> None:
    saved.format(0)


def new_ids(saved: Saved, draw: random.Random) -> None:
    """New ids for all cells: VS Code did so before it knew ids, and Kaggle does."""
    saved.format(5)
    for cell in saved.cells:
        cell["id"] = _jupyter_id(draw)


def stripped(saved: Saved, draw: random.Random) -> None:
    """Stripped by a tool that cleans notebooks for git, or by copying texts into a new notebook."""
    outputs_dropped(saved, draw)
    new_ids(saved, draw)
    saved.notebook["metadata"] = {}
    for cell in saved.cells:
        cell["metadata"] = {}


def stripped_of_ids_too(saved: Saved, draw: random.Random) -> None:
    stripped(saved, draw)
    without_ids(saved, draw)


def outputs_dropped(saved: Saved, draw: random.Random) -> None:
    for cell in saved.cells:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None


def metadata_moved(saved: Saved, draw: random.Random) -> None:
    """The metadata one level deeper than they belong, with the id beside them."""
    for cell in saved.cells:
        cell["metadata"] = {"id": cell.pop("id", None), "metadata": cell["metadata"]}
    new_ids(saved, draw)


def windows(saved: Saved, draw: random.Random) -> None:
    """Lines end in CR LF, of the file and of the texts in it."""
    saved.line_end = "\r\n"
    for cell in saved.cells:
        text = "".join(cell["source"]).replace("\r\n", "\n").replace("\n", "\r\n")
        cell["source"] = text.splitlines(keepends=True) if draw.random() < 0.5 else text


def space_trimmed(saved: Saved, draw: random.Random) -> None:
    """An editor trims lines and ends each cell with an empty one."""
    for cell in saved.cells:
        lines = [line.rstrip() for line in "".join(cell["source"]).split("\n")]
        cell["source"] = "\n".join([*lines, ""])


def copy_of(saved: Saved, draw: random.Random) -> None:
    """Colab's name for a notebook that was opened from elsewhere and kept."""
    colab_to_drive(saved, draw)
    saved.name = f"Copy of {saved.name}"


def _colab(saved: Saved, draw: random.Random) -> None:
    for cell in saved.cells:
        if cell["cell_type"] == "code" and cell["outputs"]:
            cell["metadata"]["colab"] = {"base_uri": "https://localhost:8080/", "height": 51}
            cell["metadata"]["outputId"] = _uuid(draw)
    saved.notebook["metadata"] = {
        "colab": {"provenance": [], "gpuType": "T4", "toc_visible": True},
        "accelerator": "GPU",
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    widgets_without_state(saved, draw)
    saved.indent = 2


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128)))


def _jupyter_id(draw: random.Random) -> str:
    return _uuid(draw)[:8]


def _colab_id(draw: random.Random) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return "".join(draw.choices(letters, k=12))


def _times() -> Json:
    return {
        "iopub.execute_input": "2026-11-22T10:00:00.000001Z",
        "iopub.status.busy": "2026-11-22T10:00:00Z",
    }


KINDS: dict[str, Change] = {
    "JupyterLab": jupyterlab,
    "Colab to Drive": colab_to_drive,
    "Colab to GitHub": colab_to_github,
    "view-in-github first": badge,
    "widgets without state": widgets_without_state,
    "Kaggle, draft": kaggle_draft,
    "Kaggle, Save & Run All": kaggle_committed,
    "VS Code": vs_code,
    "VS Code, cells pasted": vs_code_pasted,
    "nbformat 4.0": without_ids,
    "new ids": new_ids,
    "metadata stripped": stripped,
    "metadata and ids stripped": stripped_of_ids_too,
    "metadata moved": metadata_moved,
    "outputs dropped": outputs_dropped,
    "CR LF": windows,
    "space trimmed": space_trimmed,
    "Copy of": copy_of,
}
