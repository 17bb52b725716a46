"""Make `work/`, where `make lab` opens the notebooks: copies, so that git never meets a student's work.

The first call copies every notebook, and writes the page `start_here.md`. Later calls leave alone what a
person may have typed in: where the course has a newer version of a file, an untouched copy is replaced, and
beside any other copy the newer version arrives as `<name>_newer`. No file is ever deleted or written over
that a person may have changed.

`work/.versions.json` keeps, for each file that this program wrote, the digest of what it wrote. A file with
another digest has been worked in. "seen" and a name is the course's version of that file. "before" and a
name is the version that this one replaced, cell by cell, because a tab in which it was still open can bring
it back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import kernel_metadata
import welcome

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS, WORK = ROOT / "notebooks", ROOT / "work"
RECORD = ".versions.json"
PAGE = "start_here.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("make lab", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS, help="where they come from")
    parser.add_argument(
        "--work", type=Path, default=WORK, help="where they are worked (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        work = Work(options.work)
        for line in work.update(options.notebooks):
            print(line)
        for line in work.put(PAGE, welcome.page(options.notebooks).encode()):
            print(line)
    except (OSError, ValueError) as error:
        print(f"The notebooks could not be copied to {options.work}: {error}", file=sys.stderr)
        return 2
    return 0


class Work:
    """A student's folder, and the record of what this program wrote there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.record = folder / RECORD
        self.written = self._read()

    def _read(self) -> dict[str, str]:
        """Without a readable record every file counts as worked in."""
        try:
            kept = json.loads(self.record.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def update(self, notebooks: Path) -> Iterator[str]:
        """Copy what is new; yields sentences for the person at the terminal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new, metadata = 0, kernel_metadata.of_this_kernel()
        for source in sorted(notebooks.glob("*/*.ipynb")):
            name = source.relative_to(notebooks).as_posix()
            new += not (self.folder / name).exists()
            text = source.read_bytes()
            yield from self.put(name, text, kernel_metadata.with_metadata(text, metadata))
        if new:
            yield f"{new} notebook{'s' * (new != 1)} copied to {self.folder}: work there, it is yours."

    def put(self, name: str, text: bytes, own: bytes | None = None) -> Iterator[str]:
        """Write a file if it is new, or if the one of that name is not the newest and was left alone.

        text: the course's version; own: the copy that is written for it, if they differ.
        """
        place = self.folder / name
        if not place.exists():
            self.take(place, text, own)
        elif self.touched(place):
            yield from self.beside(place, text)
        elif digest(text) not in (self.written.get(name), self.written.get(f"seen {name}")):
            self.take(place, text, own)
            yield f"{name} is the course's newer version: you had not changed the old one."

    def take(self, place: Path, text: bytes, own: bytes | None) -> None:
        if place.exists():
            self.keep(f"before {self.name(place)}", parts_of(place))
        self.write(place, text if own is None else own)
        self.keep(f"seen {self.name(place)}", digest(text))

    def touched(self, place: Path) -> bool:
        return self.written.get(self.name(place)) != digest(place.read_bytes())

    def beside(self, place: Path, text: bytes) -> Iterator[str]:
        """Put the version next to a file that was worked in, unless the student has had it before."""
        own = self.name(place)
        had = digest(text) in (self.written.get(own), self.written.get(f"seen {own}"))
        brought = [file for file in self.versions(place) if self.brought_back(file, text)]
        if had and not brought:
            return
        if digest(place.read_bytes()) != digest(text):
            newer = self.free(place)
            if newer.exists():  # it may be open in a tab, as in `take`
                self.keep(f"before {self.name(newer)}", parts_of(newer))
            self.write(newer, text)
            yield (
                f"The course has a newer version of {own}: it lies beside yours, as {newer.name}. Yours was "
                "left as it is."
            )
        for file in (place, *brought):
            self.written.pop(f"before {self.name(file)}", None)
        self.keep(f"seen {own}", digest(text))

    def versions(self, place: Path) -> list[Path]:
        """The file, and the newer versions that were put beside it."""
        return [place, *sorted(place.parent.glob(f"{place.stem}_newer*{place.suffix}"))]

    def brought_back(self, place: Path, text: bytes) -> bool:
        """Whether the file is nearer to the version that was replaced than to the one that replaced it."""
        own, before = parts(place.read_bytes()), self.written.get(f"before {self.name(place)}", "")
        return before != "" and len(own ^ set(before.split())) < len(own ^ parts(text))

    def free(self, place: Path) -> Path:
        """A name beside the file under which nothing lies that a person may have changed."""
        names = (
            f"{place.stem}_newer{'' if k == 1 else f'_{k}'}{place.suffix}" for k in range(1, 1000)
        )
        places = (place.with_name(name) for name in names)
        return next(other for other in places if not other.exists() or not self.touched(other))

    def write(self, place: Path, text: bytes) -> None:
        """Write a file, whole or not at all, then its digest."""
        place.parent.mkdir(parents=True, exist_ok=True)
        replace(place, text)
        self.keep(self.name(place), digest(text))

    def keep(self, name: str, value: str) -> None:
        self.written[name] = value
        replace(self.record, json.dumps(self.written, indent=1, sort_keys=True).encode())

    def name(self, place: Path) -> str:
        return place.relative_to(self.folder).as_posix()


def replace(place: Path, text: bytes) -> None:
    draft = place.with_name(f".{place.name}.new")
    draft.write_bytes(text)
    os.replace(draft, place)


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def parts(text: bytes) -> set[str]:
    """Short digests of a notebook's cells; of any other file's lines."""
    try:
        sources = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
    except (ValueError, KeyError, TypeError):
        sources = text.decode(errors="replace").splitlines()
    return {digest(source.encode())[:16] for source in sources}


def parts_of(place: Path) -> str:
    return " ".join(sorted(parts(place.read_bytes())))


if __name__ == "__main__":
    sys.exit(main())
