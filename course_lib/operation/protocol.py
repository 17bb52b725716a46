"""A save that can be cut off at any moment leaves the old checkpoint or the new one, but never half of one.

A checkpoint has many parts, and nothing writes several files in one step. But `rename` is one step, so after
it a name stands either for another file or for the same file as before. Therefore all parts are written
first, under names that `newest` does not read, and then one rename makes a checkpoint of them:

    write, sync     each part, under a new name
    sync_folder     the names of the parts
    write, sync     the manifest: which files belong together, with the size and a checksum of each
    rename          the manifest to its own name, step-00000012. From now on the checkpoint exists
    sync_folder     the name of the manifest

Each sync has its reason. Without the first two, a manifest could name parts that do not exist. Without the
third, the manifest's name could reach the disk before its bytes. Without the last, `commit` could return and
the checkpoint could still be lost. Every power failure was tried (`crashes.py`).

A disk also forgets without a power failure, because a bit flips, a file is cut short, or a file is deleted.
`newest` compares every part with its checksum, says which file is not as it was saved, and takes the
checkpoint before it. A CRC-32 finds every flipped bit and every burst of at most 32 bits. It misses one in
2^32 of other damages.

Cost: two operations per part and five more; the bytes of the parts once.

Sources: POSIX.1-2017, rename(): the new name refers "either to the file referred to by new or old before the
operation began". fsync(2): "Calling fsync() does not necessarily ensure that the entry in the directory
containing the file has also reached disk". Pillai et al., OSDI 2014, for what goes wrong without these steps.
Peterson and Brown, Cyclic Codes for Error Detection, 1961, for what a CRC finds. torch.distributed.checkpoint
also writes its `.metadata` last.
"""

from __future__ import annotations

import json
import re
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

Entry = tuple[str, int, int]  # of a part: its file, its bytes, its checksum
T = TypeVar("T")
NAME = "step-"  # the beginning of a manifest's name


class Files(Protocol):
    """A folder: `Disk`, or `Folder` for a real one."""

    def write(self, name: str, data: bytes) -> None: ...
    def sync(self, name: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def sync_folder(self) -> None: ...
    def read(self, name: str) -> bytes: ...
    def names(self) -> list[str]: ...


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is not as it was saved. The message names it."""


def commit(disk: Files, step: int, parts: Mapping[str, bytes]) -> None:
    """Save `parts` as the checkpoint of `step`, replacing any checkpoint of the same step.

    If the power fails during the save, `newest` returns either the checkpoint that was newest before or this
    one. After `commit` has returned, it returns this one. Older checkpoints stay until `tidy` removes them.
    Raises ValueError for a negative step.
    """
    entries = write_parts(disk, new_prefix(disk, step), parts)
    publish(disk, step, entries)


def new_prefix(disk: Files, step: int) -> str:
    """The beginning of the names of this save's files. No existing file, of any save, begins with it."""
    if step < 0:
        raise ValueError(f"step {step}: a step is 0 or more")
    names = disk.names()
    attempt = 0
    while any(name.startswith(f"{step}.{attempt}.") for name in names):
        attempt += 1
    return f"{step}.{attempt}."


def write_parts(disk: Files, prefix: str, parts: Mapping[str, bytes]) -> dict[str, Entry]:
    """Write and sync each part; returns its entry for the manifest. Several ranks can use one prefix."""
    entries = {}
    for name, data in parts.items():
        file = prefix + name
        disk.write(file, data)
        disk.sync(file)
        entries[name] = (file, len(data), zlib.crc32(data))
    return entries


def publish(disk: Files, step: int, entries: Mapping[str, Entry]) -> None:
    """Make a checkpoint of written and synced parts. One rank calls it, when all have written theirs."""
    disk.sync_folder()
    content = json.dumps(dict(entries)).encode()
    draft = new_prefix(disk, step) + "draft"  # an attempt of its own: no part has the name
    disk.write(draft, b"%08x " % zlib.crc32(content) + content)
    disk.sync(draft)
    disk.rename(draft, f"{NAME}{step:08d}")
    disk.sync_folder()


def newest(disk: Files) -> tuple[int, dict[str, bytes]] | None:
    """(step, parts) of the newest whole checkpoint; None if there is none.

    A damaged checkpoint is skipped, with a warning that names the file and the damage.
    """
    return newest_with(
        disk, lambda entries: {name: read_part(disk, entries[name]) for name in entries}
    )


def newest_with(disk: Files, load: Callable[[dict[str, Entry]], T]) -> tuple[int, T] | None:
    """(step, load(entries)) of the newest checkpoint for which `load` does not raise DamagedCheckpoint."""
    for step in steps(disk):
        try:
            return step, load(read_manifest(disk, step))
        except DamagedCheckpoint as damage:
            warnings.warn(f"{damage}. The checkpoint of step {step} is not used", stacklevel=3)
    return None


def steps(disk: Files) -> list[int]:
    """The steps of all checkpoints, whole or damaged, the newest first."""
    numbers = (name.removeprefix(NAME) for name in disk.names() if name.startswith(NAME))
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def read_manifest(disk: Files, step: int) -> dict[str, Entry]:
    """The parts of a checkpoint by name. DamagedCheckpoint if the manifest is not as it was saved."""
    file = f"{NAME}{step:08d}"
    checksum, _, content = disk.read(file).partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content):
        raise DamagedCheckpoint(f"{file} is not as it was saved: its checksum is another")
    return {name: (part, size, crc) for name, (part, size, crc) in json.loads(content).items()}


def read_part(disk: Files, entry: Entry) -> bytes:
    """The bytes of a part. DamagedCheckpoint if they are not as they were saved."""
    file, size, checksum = entry
    try:
        data = disk.read(file)
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{file} is lost") from None
    if len(data) != size:
        raise DamagedCheckpoint(f"{file} has {len(data):,} bytes, and {size:,} were saved")
    if zlib.crc32(data) != checksum:
        raise DamagedCheckpoint(f"{file} is not as it was saved: its checksum is another")
    return data


def tidy(disk: Files, keep: int = 2) -> None:
    """Remove all checkpoints except the `keep` newest whole ones, and what interrupted saves left.

    Files with other names stay. No program is allowed to save meanwhile. The manifests are removed first, and
    their removal is synced before any part is removed, because a manifest whose parts are gone would be a
    damaged checkpoint.
    """
    kept, needed = 0, set[str]()
    for step in steps(disk):
        try:
            entries = read_manifest(disk, step) if kept < keep else {}
            for entry in entries.values():
                read_part(disk, entry)
        except DamagedCheckpoint:
            continue
        if kept < keep:
            needed |= {f"{NAME}{step:08d}", *(file for file, _, _ in entries.values())}
            kept += 1
    own = re.compile(rf"{NAME}\d+$|\d+\.\d+\.")  # manifests; parts and drafts
    goes = [name for name in disk.names() if own.match(name) and name not in needed]
    for name in sorted(goes, key=lambda name: not name.startswith(NAME)):
        disk.remove(name)
        if name.startswith(NAME):
            disk.sync_folder()
    disk.sync_folder()
