"""The memory that ranks are forked with: large pages, and room for small objects.

A fork copies one entry for each page of a process, and its end takes each down again. PyTorch's imports fill
37,000 pages of 4 KB, or about 80 of 2 MB. When a rank writes, the kernel still copies only 4 KB, and a rank's
later allocations use small pages, so that its memory is measured as finely as ever. Source: the
manual page madvise(2), MADV_COLLAPSE, since Linux 6.1; on older kernels the pages stay as they are.

Python keeps small objects in arenas of 1 MB. The modules and classes read by a rank go where the imports
left room, or into a new arena, whose pages count as the rank's own. These are up to 0.7 MB, depending on
the imports before. So every rank begins with room for them, but no more, since a solution could hide tensors
there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

COLLAPSE = 25
SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
AT_ONCE = 8  # large pages in a step: some hundredths of a second
HEAP = "[heap]"
ROOM, OBJECT = 750_000, 400  # bytes in all, and of an object; Python's arenas take 512 at most
KEPT_EVERY = 200_000  # bytes: several in an arena


def room_for_small_objects(nbytes: int = ROOM) -> list[bytes]:
    """Python's arenas have this many bytes free, and in memory, as long as the result is kept.

    The objects fill what is free already, and new arenas. Nearly all of them are freed immediately, but the
    few that are returned hold their arenas.
    """
    objects = [bytes(OBJECT) for _ in range(nbytes // OBJECT)]
    return objects[:: KEPT_EVERY // OBJECT]


def made_large() -> Iterator[None]:
    """Each step makes some of this process's own memory large; the last one comes when all of it is."""
    try:
        with open(SIZE) as file:
            size = int(file.read())
    except OSError:
        return  # a kernel without large pages
    libc = ctypes.CDLL(None)
    for first, last in list(regions()):
        begin, end = -(-first // size) * size, last // size * size
        for address in range(begin, end, AT_ONCE * size):
            length = min(AT_ONCE * size, end - address)
            # if it is not to be had, in an old kernel or for lack of memory, nothing is lost
            libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), COLLAPSE)
            yield


def regions() -> Iterator[tuple[int, int]]:
    """(first address, end) of the heap and of memory without a file that may be written."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights, _, _, _, *name = line.split()
            if rights.startswith("rw-p") and name in ([], [HEAP]):
                first, _, end = place.partition("-")
                yield int(first, 16), int(end, 16)
