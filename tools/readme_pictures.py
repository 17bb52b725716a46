"""Take the README's four small pictures from the executed notebooks: `python tools/readme_pictures.py`.

Run it after `make notebooks` if a picture there has changed. `tools/readme_figure.py` draws the large one.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path

import nbformat

from autograder.course.config import SOLUTIONS

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
# The picture's name: the assignment, and the id of the cell that draws it.
CELLS = {
    "overlap": ("03_data_parallel", "naive_data_parallel_check-10"),
    "zero_memory": ("04_zero", "zero3_module_check-4"),
    "zero_bubble_v": ("07_pipeline", "zero_bubble_h1_check-6"),
    "mesh_step": ("10_four_dimensions", "hybrid_step_check-3"),
}


def picture(assignment: str, cell_id: str) -> bytes:
    """The last PNG that the cell shows; ValueError if it shows none."""
    notebook = nbformat.read(SOLUTIONS / assignment / f"{assignment}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell["id"] == cell_id]
    pictures = [
        output.data["image/png"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    if not pictures:
        raise ValueError(f"{assignment} has no picture in the cell {cell_id}")
    return base64.b64decode(pictures[-1])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name, cell in CELLS.items():
        path = FOLDER / f"{name}.png"
        path.write_bytes(picture(*cell))
        print(f"{path.name}: {path.stat().st_size:,} bytes")
