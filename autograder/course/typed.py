"""Work that a person typed into generated files is kept before these are made anew.

A file is the course's own if it has the text that a command wrote there last, or the text of the last commit.
Any other text may be a person's: it is copied beside the file, and a line says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import nbformat

from autograder.outcome.result import write_whole

NAME = ".written.json"  # of the record, in a folder that git ignores


class ExistsError(Exception):
    """A file would be overwritten without being asked for. The text says how to ask."""


class Written:
    """A record of what commands wrote: the digests of a file's last two texts, by its path.

    Two, since the record comes before the file: whichever of the two a run that was killed has left there is
    known. Paths are relative to the record's folder, so they hold when the folder is moved or renamed. A lost
    record costs nothing but copies.
    """

    def __init__(self, record: Path) -> None:
        self.record = record

    def owns(self, path: Path) -> bool:
        """Whether the file has a text that a command wrote there, or that the last commit has."""
        return digest(path.read_bytes()) in self._digests(path) or is_committed(path)

    def remember(self, path: Path, content: bytes) -> None:
        """Note the text that is about to be written to `path`."""
        known, before = self._read(), self._digests(path)
        if before[-1:] != [digest(content)]:
            known[self._key(path)] = [*before[-1:], digest(content)]
            write_whole(self.record, json.dumps(known, indent=1, sort_keys=True))

    def paths(self) -> list[Path]:
        """The files in the record that are still there, in order."""
        folder = self.record.parent.resolve()
        paths = (Path(os.path.normpath(folder / key)) for key in self._read())
        return sorted({path for path in paths if path.is_file()})

    def _digests(self, path: Path) -> list[str]:
        known = self._read()
        # until 2026-11-30 a record had the whole path
        return known.get(self._key(path)) or known.get(str(path.resolve())) or []

    def _key(self, path: Path) -> str:
        return os.path.relpath(path.resolve(), self.record.parent.resolve())

    def _read(self) -> dict[str, list[str]]:
        try:
            known = json.loads(self.record.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def write_generated(
    path: Path, text: str, record: Path | None = None, *, overwrite: bool = True
) -> None:
    """Write a file whole; if a person changed the one that is there, copy that one first.

    record: of what was written; without it, the one beside the file. overwrite: as for `keep_changed`.
    """
    keep_changed(path, text.encode(), record, overwrite=overwrite)
    write_whole(path, text)


def keep_changed(
    path: Path, content: bytes, record: Path | None = None, *, overwrite: bool = True
) -> None:
    """Before `content` is written to `path`: keep a file that no command wrote, and note the new text.

    overwrite: if False, a file with other content stays, and ExistsError says so.
    """
    if not overwrite and path.is_file() and path.read_bytes() != content:
        raise ExistsError(
            f"{path} exists and has other content, so it stays as it is. Name another file with --to, or add "
            "--overwrite."
        )
    written = Written(record or path.parent / NAME)
    if path.is_file() and path.read_bytes() != content and not written.owns(path):
        keep(path, path.with_stem(f"{path.stem}_before"))
    written.remember(path, content)


def keep_aside(folder: Path, made: Path, aside: Path, written: Written, mark: str = "") -> None:
    """Copy to `aside` what a person may have made in a folder that `made` is about to replace, and say so.

    That is every file that is not in `made`, and a notebook that was worked in. A copy's name has `mark`
    behind the file's stem, and a number where the name is taken.
    """
    for path in sorted(folder.iterdir()):
        new = made / path.name
        if not new.exists() or was_run(path) or holds_typed(path, sources(new), written):
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


def holds_typed(path: Path, new: set[str], written: Written) -> bool:
    """Whether the notebook has a cell whose text is not in `new`, and the course did not write the file.

    Also if it cannot be read as a notebook.
    """
    try:
        return not sources(path) <= new and not written.owns(path)
    except (ValueError, AttributeError, KeyError, nbformat.ValidationError):
        return True


def sources(path: Path) -> set[str]:
    """The texts of a notebook's cells."""
    return {cell.source for cell in nbformat.read(path, as_version=4).cells}


def is_committed(path: Path) -> bool:
    """Whether the file is as in the last commit of the repository that it is in, if it is in one."""
    try:
        same = [
            subprocess.run(
                ["git", *words], cwd=path.parent, capture_output=True, text=True
            ).stdout.strip()
            for words in (("hash-object", "--", path.name), ("rev-parse", f"HEAD:./{path.name}"))
        ]
    except FileNotFoundError:  # no git
        return False
    return bool(same[0]) and same[0] == same[1]


def digest(content: bytes) -> str:
    """A digest of a file's content."""
    return hashlib.sha256(content).hexdigest()


def free(path: Path) -> Path:
    """The path, with a number if there is a file of that name."""
    numbered = (path.with_stem(f"{path.stem}_{k}") for k in range(2, 1000))
    return path if not path.exists() else next(other for other in numbered if not other.exists())
