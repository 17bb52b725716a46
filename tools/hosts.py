"""The hosts on which students run the course: their versions, and the source of these.

A file of tests/hosts/ is a host: a pip constraint file whose first lines describe it.

    # host: Google Colab                    as students know it
    # source: owner/repository@commit path  the published list (more of them: more lines)
    # date: 2026-08-19                      the day up to which the source is known to hold
    # python: 3.13                          of the host
    # torch: 2.11.0                         of the host
    # cells: /tmp/ipython-input-{hash}.py   how it names the files of cells, if not as Jupyter does
    # note: ...                             further facts for a reader

The lines below are the versions of the packages that the course and a notebook's kernel import.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "hosts"
# The packages that the course and a kernel import by name, without PyTorch.
WANTED = ("ipykernel", "ipython", "ipywidgets", "matplotlib", "numpy", "cloudpickle")
FRESH = 180  # days
REFRESH = "python tools/refresh_hosts.py, then make test-hosts"

HEADER = re.compile(r"# (host|source|date|python|torch|cells|note): (.+)")
ONCE = ("host", "date", "python", "torch")


@dataclass(frozen=True)
class Host:
    """A host's file. `pins`: its requirements, each of one version."""

    name: str
    host: str
    sources: tuple[str, ...]
    date: datetime.date
    python: str
    torch: str
    cells: str  # "" for Jupyter's names
    notes: tuple[str, ...]
    pins: tuple[Requirement, ...]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    def digest(self) -> str:
        """A digest of its versions, which a trial keeps."""
        return hashlib.sha256("\n".join(sorted(map(str, self.pins))).encode()).hexdigest()[:16]

    def versions(self) -> dict[str, str]:
        """The file's requirements under this Python: canonical name -> version."""
        return {
            canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
            for pin in self.pins
            if pin.marker is None or pin.marker.evaluate()
        }


def hosts() -> list[Host]:
    """All of tests/hosts/, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.txt"))]


def read(path: Path) -> Host:
    """Read a host's file; ValueError with a sentence if the file is not as it should be."""
    header: dict[str, list[str]] = {}
    pins = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = HEADER.fullmatch(line)
        if match is not None:
            header.setdefault(match[1], []).append(match[2])
        elif line and not line.startswith("#"):
            pin = Requirement(line)
            if not re.fullmatch(r"==[0-9][0-9a-z.]*", str(pin.specifier)):
                raise ValueError(f"{path.name}, line {number}: {line!r} is not name==version")
            pins.append(pin)
    for key in ONCE:
        if len(header.get(key, [])) != 1:
            raise ValueError(f"{path.name}: its first lines need '# {key}: ...', once")
    if "source" not in header:
        raise ValueError(f"{path.name}: its first lines need '# source: ...'")
    return Host(
        name=path.stem, host=header["host"][0], sources=tuple(header["source"]),
        date=datetime.date.fromisoformat(header["date"][0]), python=header["python"][0],
        torch=header["torch"][0], cells=" ".join(header.get("cells", [])),
        notes=tuple(header.get("note", [])), pins=tuple(pins),
    )  # fmt: skip


def stale(host: Host, today: datetime.date) -> str:
    """A sentence if the file is older than FRESH days; else ""."""
    days = (today - host.date).days
    if days <= FRESH:
        return ""
    return (
        f"tests/hosts/{host.path.name} says what {host.host} had {days} days ago; after {FRESH} days it has "
        f"to be looked at again: {REFRESH}"
    )
