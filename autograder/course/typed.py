"""Work that a person typed into generated files is kept before these are made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat


def keep_aside(folder: Path, generated: set[str], aside: Path, mark: str = "") -> None:
    """Copy to `aside` what a person may have made in a folder of generated files, and say so.

    That is every file that is not generated, and a notebook of which a cell was run or has output. A copy's
    name has `mark` behind the file's stem, and a number where the name is taken.
    """
    for path in sorted(folder.iterdir()):
        if path.name in generated and not was_run(path):
            continue
        keep(path, aside / f"{path.stem}{mark}{path.suffix}")


def keep(path: Path, place: Path) -> None:
    """Copy a file or a folder to `place`, or beside it under a number, and say so."""
    place = free(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, place)
    else:
        shutil.copy2(path, place)
    print(f"{path} is made anew, and somebody has worked in it: a copy is kept as {place}.")


def was_run(path: Path) -> bool:
    """Whether a cell of the notebook has a number or output; also if it cannot be read as a notebook."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except (OSError, ValueError, AttributeError, KeyError, nbformat.ValidationError):
        return True  # it is not what the course wrote
    return any(cell.get("execution_count") or cell.get("outputs") for cell in cells)


def free(path: Path) -> Path:
    """The path, with a number if there is a file of that name."""
    numbered = (path.with_stem(f"{path.stem}_{k}") for k in range(2, 1000))
    return path if not path.exists() else next(other for other in numbered if not other.exists())
