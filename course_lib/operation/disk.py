"""A disk that forgets what was not synced, and every state in which a power failure can leave it.

A program does not write to the disk. It writes to the page cache, a copy in memory that all programs see, and
the kernel writes this copy to the disk later, in its own order. `fsync` on a file waits until the file's
bytes are on the disk. But a file's name belongs to the folder instead of the file, so it needs another
`fsync`, on the folder. After a power failure, you find

    the folder     as it was last synced, with some first part of the changes since: names, renames, removals
    each file      as it was last synced, as one of the later writes left it, or torn: half of such a write,
                   followed by nothing or by zeros

So a name can be on the disk before its bytes, and bytes can be there without a name. `Disk` has the seven
operations of such a folder, keeps plain bytes in memory, and lists the states.

This is a model. POSIX promises even less order, because the changes of a folder can reach the disk in any
order (`any_order=True`), and it does not say what a torn file contains. File systems differ: Pillai et al.,
All File Systems Are Not Created Equal, OSDI 2014, found 60 faults of this kind in eleven programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, combinations, count, product

# A change of a folder: the name that goes, the name that comes, and the number of the file.
Change = tuple[str | None, str | None, int]


class PowerFailure(BaseException):
    """The power failed. It is not an Exception, so that no program continues after it by mistake."""


class Disk:
    """One folder of files, which are bytes; `read` and `names` show the cache.

    files: those on the disk at first, synced.
    power: how many operations are carried out. The next operation raises PowerFailure, and so does everything
        after it. None: the power does not fail. `read` and `names` change nothing and are not counted.

    A name can contain any character; "/" has no meaning. `log` lists the operations that were carried out.
    """

    def __init__(self, files: Mapping[str, bytes] | None = None, power: int | None = None):
        self.power, self.log = power, list[str]()
        self._numbers = count()
        self._names = {name: next(self._numbers) for name in files or {}}  # in the cache
        self._synced_names = dict(self._names)  # on the disk
        self._changes = list[Change]()  # of names, since the folder was synced
        # For each file, the bytes that can be on the disk. The last of them are in the cache.
        self._versions = {self._names[name]: [bytes(data)] for name, data in (files or {}).items()}

    def write(self, name: str, data: bytes) -> None:
        """Make the file's bytes `data`, and create the file if it does not exist."""
        self._carry_out(f"write {name}")
        if name not in self._names:
            number = self._names[name] = next(self._numbers)
            self._versions[number] = [b""]
            self._changes.append((None, name, number))
        self._versions[self._names[name]].append(bytes(data))

    def sync(self, name: str) -> None:
        """Return when the file's bytes are on the disk. Its name does not have to be."""
        number = self._number(name)
        self._carry_out(f"sync {name}")
        self._versions[number] = self._versions[number][-1:]

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in one step. If a file had that name, it is gone."""
        number = self._number(old)
        self._carry_out(f"rename {old} to {new}")
        del self._names[old]
        self._names[new] = number
        self._changes.append((old, new, number))

    def remove(self, name: str) -> None:
        number = self._number(name)
        self._carry_out(f"remove {name}")
        del self._names[name]
        self._changes.append((name, None, number))

    def sync_folder(self) -> None:
        """Return when all names are on the disk. The bytes of the files do not have to be."""
        self._carry_out("sync_folder")
        self._synced_names, self._changes = dict(self._names), []

    def read(self, name: str) -> bytes:
        self._check_power()
        return self._versions[self._number(name)][-1]

    def names(self) -> list[str]:
        self._check_power()
        return sorted(self._names)

    # ---- after a power failure

    def after_power_failure(self, *, any_order: bool = False) -> Iterator[dict[str, bytes]]:
        """Every state in which the disk can be if the power fails now, each once: bytes by name.

        any_order: also the states in which a later change of a name is on the disk and an earlier one is not.
        For c changes, there are then 2^c choices instead of c + 1.
        """
        shown = set[tuple[tuple[str, bytes], ...]]()
        for changes in self._choices(any_order):
            folder = dict(self._synced_names)
            for old, new, number in changes:
                if old is not None and folder.get(old) == number:
                    del folder[old]
                if new is not None:
                    folder[new] = number
            numbers = sorted(set(folder.values()))
            for contents in product(*(list(_may_hold(self._versions[n])) for n in numbers)):
                held = dict(zip(numbers, contents, strict=True))
                state = {name: held[number] for name, number in sorted(folder.items())}
                if (key := tuple(state.items())) not in shown:
                    shown.add(key)
                    yield state

    def _choices(self, any_order: bool) -> Iterator[tuple[Change, ...]]:
        changes, lengths = self._changes, range(len(self._changes) + 1)
        if any_order:
            return chain.from_iterable(combinations(changes, length) for length in lengths)
        return (tuple(changes[:length]) for length in lengths)

    def _carry_out(self, operation: str) -> None:
        self._check_power()
        self.log.append(operation)

    def _check_power(self) -> None:
        if self.power is not None and len(self.log) >= self.power:
            raise PowerFailure(f"the power failed after {self.power} operations")

    def _number(self, name: str) -> int:
        self._check_power()
        if name not in self._names:
            raise FileNotFoundError(
                f"there is no file {name!r}; names() lists those that are there"
            )
        return self._names[name]


def _may_hold(versions: list[bytes]) -> Iterator[bytes]:
    """The bytes a file can hold if its first version is on the disk and the other versions are not synced."""
    yield versions[0]
    for data in versions[1:]:
        half = data[: len(data) // 2]
        yield half
        yield half + bytes(len(data) - len(half))
        yield data
