"""The memory held by a process, seen from outside through the kernel's account of its pages.

One process measures another, so code in the measured process cannot change the result through this
module. Such code could hold memory that its own pages do not show, but for ranks under a check,
`sandbox.calls` leaves no place for it. Source: the kernel's filesystems/proc, "status".
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

KINDS = ("RssAnon", "VmSwap", "HugetlbPages", "RssShmem", "VmRSS", "VmHWM")
OF_A_NAME = 1024  # bytes that a file or a folder takes besides: its name lies in memory, too
STOPPING = 1.0  # seconds until a process has stopped
FORGET_THE_PEAK = "5"  # written into clear_refs


class Held(NamedTuple):
    """Bytes.

    whole: of the process by itself and in files that are memory; anonymous: the part of these without any
    file. resident: of all its pages, those of libraries too; peak: the most that `resident` was since the
    last measurement. fresh: 1 if the next peak counts from now, 0 if the kernel does not forget the old one.
    """

    whole: int
    anonymous: int
    resident: int = 0
    peak: int = 0
    fresh: int = 0


def held(pid: int) -> Held:
    """The memory of process `pid` now. ProcessLookupError or FileNotFoundError if it has ended.

    Pages it shares with the process that forked it do not matter in practice, because they existed before
    and callers take a difference. If a file that is memory is mapped, its pages are also shared memory, so
    the larger of the two counts.
    """
    kinds = dict.fromkeys(KINDS, 0)
    for line in contents(f"/proc/{pid}/status").splitlines():
        name, _, amount = line.partition(":")
        if name in kinds:
            kinds[name] = 1024 * int(amount.split()[0])
    anonymous = kinds["RssAnon"] + kinds["VmSwap"] + kinds["HugetlbPages"]
    whole = anonymous + max(kinds["RssShmem"], in_files(pid))
    return Held(whole, anonymous, kinds["VmRSS"], kinds["VmHWM"], forget_the_peak(pid))


def forget_the_peak(pid: int) -> int:
    """Have the kernel begin a new peak; 1 if it could."""
    try:
        with open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write(FORGET_THE_PEAK)
    except OSError:  # a kernel without it
        return 0
    return 1


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Within this context the process and all its threads stand still, so all readings are of one moment."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOPPING
    try:
        while contents(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] not in "TtZX":
            if time.monotonic() > deadline:
                break  # it is in a call that cannot be interrupted, and so cannot change anything
            time.sleep(0.0001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def held_with_children(pid: int, still: bool = False) -> Held:
    """The memory of this process and of all it started. A process that has ended holds nothing.

    still: stop each process while it is read, so that no memory moves between two readings of it.
    """
    with stopped(pid) if still else contextlib.nullcontext():
        amounts = [held(pid)]
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            amounts.append(held_with_children(child, still))
    whole, anonymous, resident, peak, fresh = zip(*amounts, strict=True)
    return Held(sum(whole), sum(anonymous), sum(resident), sum(peak), min(fresh))


def children(pid: int) -> list[int]:
    """Processes that this one's threads started."""
    pids = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(
            FileNotFoundError
        ):  # an ended thread, or a kernel without that file
            pids += contents(f"/proc/{pid}/task/{thread}/children").split()
    return [int(child) for child in pids]


def contents(path: str) -> str:
    with open(path) as file:
        return file.read()


def in_files(pid: int) -> int:
    """Bytes of files that are memory, both in a sandbox's private folders and without a name."""
    nbytes = dict(files_without_a_name(pid))
    for folder in private_folders(pid):
        system = os.statvfs(f"/proc/{pid}/root{folder}")
        nbytes[folder] = (system.f_blocks - system.f_bfree) * system.f_frsize
        nbytes[folder] += (system.f_files - system.f_ffree) * OF_A_NAME
    return sum(nbytes.values())


def files_without_a_name(pid: int) -> Iterator[tuple[object, int]]:
    """(file, bytes) of each open file of the process that `memfd_create` made."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            path = f"/proc/{pid}/fd/{fd}"
            if os.readlink(path).startswith("/memfd:"):
                file = os.stat(path)
                yield (file.st_dev, file.st_ino), 512 * file.st_blocks


def private_folders(pid: int) -> set[str]:
    """Folders in memory that a sandbox made for this process alone (see `sandbox.enter`)."""
    mounts = [line.split() for line in contents(f"/proc/{pid}/mounts").splitlines()]
    return {folder for source, folder, *_ in mounts if source == "private"}
