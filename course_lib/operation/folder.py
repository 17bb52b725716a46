"""A real folder with the seven operations of `Disk`, so a `commit` that was tried there also saves here.

A name can contain any character. "/" is written as %2F, because in a file system it ends the name of a
folder, and this folder would need its own sync. "%" is written as %25, and a dot at the beginning as %2E.

A folder is synced by `fsync` on its file descriptor (fsync(2)). If SIGKILL ends a Python, it loses nothing it
had written, because the page cache belongs to the kernel. To lose it, the machine has to stop. So a kill
tests only the order of the operations, and only a power failure tests the syncs.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote


class Folder:
    """The files of `path`. If it does not exist, it is made, and its name synced in the folder above it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            _fsync(self.path.parent)

    def write(self, name: str, data: bytes) -> None:
        self._at(name).write_bytes(data)

    def sync(self, name: str) -> None:
        _fsync(self._at(name))

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new))

    def remove(self, name: str) -> None:
        self._at(name).unlink()

    def sync_folder(self) -> None:
        _fsync(self.path)

    def read(self, name: str) -> bytes:
        return self._at(name).read_bytes()

    def names(self) -> list[str]:
        return sorted(unquote(entry.name) for entry in self.path.iterdir() if entry.is_file())

    def _at(self, name: str) -> Path:
        quoted = quote(name, safe="")
        return self.path / (f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
