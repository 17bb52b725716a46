"""The states in which a disk may be if a save is cut off: the judge lists them, and so does the rank.

A save is a list of operations, as the disk recorded them. It is cut off after each of them, in one of four
worlds:

    killed     the program dies and the machine stays: all written bytes are there. A write that was under way
               may have left half of its bytes
    bytes      the power fails, and names are on the disk at once: only bytes have to be synced
    names      the power fails, and bytes are on the disk at once: only names have to be synced
    power      the power fails, and both have to be synced

The first three tell what a save lacks that does not survive the fourth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from course_lib.operation.disk import Disk

WORLDS = ("killed", "bytes", "names", "power")
MOST = 1_000  # states after one operation

Operation = tuple[str, list[str]]  # its method, and the arguments; bytes as `texts`
Files = dict[str, bytes]
PIECE = 2_000  # characters


def texts(data: bytes) -> list[str]:
    """Bytes as hexadecimal digits, in pieces that a reply may hold."""
    digits = data.hex()
    return [digits[k : k + PIECE] for k in range(0, len(digits), PIECE)]


def carry_out(disk: Disk, operation: Operation) -> None:
    """Raises ValueError for an operation that no disk has recorded."""
    method, arguments = operation
    if method == "write" and arguments:
        disk.write(arguments[0], bytes.fromhex("".join(arguments[1:])))
    elif method in ("sync", "remove") and len(arguments) == 1:
        getattr(disk, method)(arguments[0])
    elif method == "rename" and len(arguments) == 2:
        disk.rename(*arguments)
    elif method == "sync_folder" and not arguments:
        disk.sync_folder()
    else:
        raise ValueError(f"no disk has carried out {operation}")


def after(files: Mapping[str, bytes], operations: Sequence[Operation], world: str = "killed") -> Disk:
    """A disk that held `files`, synced, and has carried out all these operations."""
    disk = Disk(files)
    for operation in operations:
        carry_out(disk, operation)
        if world == "bytes":
            disk.sync_folder()
        if world == "names" and operation[0] == "write":
            disk.sync(operation[1][0])
    return disk


def cached(disk: Disk) -> Files:
    """The files as a program reads them, in the cache."""
    return {name: disk.read(name) for name in disk.names()}


def states(
    files: Mapping[str, bytes], operations: Sequence[Operation], done: int, world: str
) -> Iterator[Files]:
    """Every state in which the disk may be if a save is cut off after so many of its operations."""
    disk = after(files, operations[:done], world)
    if world != "killed":
        yield from islice(disk.after_power_failure(), MOST)
        return
    yield cached(disk)
    if done < len(operations) and operations[done][0] == "write":
        name, *digits = operations[done][1]
        data = bytes.fromhex("".join(digits))
        yield cached(disk) | {name: data[: len(data) // 2]}
