"""A save that may be cut off: every power failure, every flipped bit, and SIGKILL on real files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib import operation
from course_lib.operation import Disk, Folder, PowerFailure, commit, newest

A = {"model": b"a" * 40, "optimizer/rank 0": b"b" * 30, "optimizer/rank 1": b"c" * 30}
B = {"model": b"A" * 50, "optimizer/rank 0": b"B" * 20}
C = {"model": b"", "../%2F": b"odd"}


def test_a_checkpoint_survives_every_power_failure() -> None:
    commit(before := Disk(), 1, A)
    for power in range(100):
        disk, returned = Disk({name: before.read(name) for name in before.names()}, power), False
        try:
            commit(disk, 2, B)
            returned = True
        except PowerFailure:
            pass
        for files in disk.after_power_failure():
            loaded = newest(Disk(files))
            assert loaded == (2, B) or (not returned and loaded == (1, A))
        if returned:
            break
    assert len(disk.log) == 9


# ---- the disk


def states(disk: Disk, any_order: bool = False) -> list[dict[str, bytes]]:
    return list(disk.after_power_failure(any_order=any_order))


def test_a_disk_holds_what_was_synced_and_perhaps_more() -> None:
    disk = Disk({"old": b"1234"})
    assert states(disk) == [{"old": b"1234"}]
    disk.write("old", b"abcd")  # in place: the old, the new, or half of the new
    assert states(disk) == [{"old": data} for data in (b"1234", b"ab", b"ab\0\0", b"abcd")]
    disk.write("old", b"wxyz")  # both writes may be on their way
    torn = (b"wx", b"wx\0\0", b"wxyz")
    assert [state["old"] for state in states(disk)] == [b"1234", b"ab", b"ab\0\0", b"abcd", *torn]
    assert disk.read("old") == b"wxyz"
    disk.sync("old")
    assert states(disk) == [{"old": b"wxyz"}]


def test_a_name_is_lost_until_its_folder_is_synced() -> None:
    disk = Disk({"a": b"1"})
    disk.write("b", b"2")
    disk.sync("b")
    assert states(disk) == [{"a": b"1"}, {"a": b"1", "b": b"2"}]
    disk.rename("b", "a")
    assert states(disk) == [{"a": b"1"}, {"a": b"1", "b": b"2"}, {"a": b"2"}]
    disk.write("c", b"")
    disk.sync("c")
    disk.remove("a")
    prefixes = [{"a": b"1"}, {"a": b"1", "b": b"2"}, {"a": b"2"}, {"a": b"2", "c": b""}, {"c": b""}]
    assert states(disk) == prefixes
    other_orders = states(disk, any_order=True)
    assert all(state in other_orders for state in prefixes)
    assert {"a": b"1", "c": b""} in other_orders  # the last name, and not the rename before it
    disk.sync_folder()
    assert states(disk) == [{"c": b""}] == states(disk, any_order=True)
    assert disk.names() == ["c"]


def test_after_a_power_failure_nothing_works() -> None:
    disk = Disk({"a": b"1"}, power=1)
    disk.write("a", b"22")
    for operation_ in (
        disk.names,
        disk.sync_folder,
        lambda: disk.read("a"),
        lambda: disk.sync("a"),
    ):
        with pytest.raises(PowerFailure, match="after 1 operations"):
            operation_()
    assert disk.log == ["write a"]
    assert states(disk) == [{"a": data} for data in (b"1", b"2", b"2\0", b"22")]


def test_a_file_that_is_not_there_is_named() -> None:
    disk = Disk()
    for operation_ in (disk.read, disk.sync, disk.remove, lambda name: disk.rename(name, "b")):
        with pytest.raises(FileNotFoundError, match="no file 'a'"):
            operation_("a")
    assert disk.log == []


# ---- commit and newest on it


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize(
    "saves",
    [[(1, A), (2, B)], [(0, A)], [(1, A), (1, B)], [(1, A), (2, B), (2, C)], [(7, {}), (8, C)]],
)
def test_no_power_failure_loses_a_checkpoint(
    saves: list[tuple[int, dict[str, bytes]]], any_order: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor is one taken for damaged
        assert not list(operation.faults(commit, newest, saves, any_order=any_order))


def test_a_power_failure_while_the_save_is_made_again() -> None:
    tried = 0
    for crash in operation.power_failures(commit, [(1, A), (2, A)]):
        before = newest(Disk(crash.files))
        for again in operation.power_failures(commit, [(2, B)], crash.files):
            tried += 1
            loaded = newest(Disk(again.files))
            assert loaded == (2, B) or (not again.returned and loaded == before)
    assert tried > 1000


def files_of(step: int, parts: dict[str, bytes]) -> dict[str, str]:
    return {name: f"{step}-{name}" for name in parts}


def write_all(disk: Disk, step: int, parts: dict[str, bytes], sync: bool = True) -> None:
    for name, file in files_of(step, parts).items():
        disk.write(file, parts[name])
        if sync:
            disk.sync(file)


def plain_manifest(step: int, parts: dict[str, bytes]) -> bytes:
    return json.dumps(files_of(step, parts)).encode()


def simple(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    """Right: parts of a step that is saved once."""
    write_all(disk, step, parts)
    finish(disk, step, parts)


def finish(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    disk.write("new", plain_manifest(step, parts))
    disk.sync("new")
    disk.rename("new", f"{step}.manifest")
    disk.sync_folder()


def load(disk: Disk) -> tuple[int, dict[str, bytes]] | None:
    manifests = [name for name in disk.names() if name.endswith(".manifest")]
    if not manifests:
        return None
    name = max(manifests, key=lambda name: int(name.partition(".")[0]))
    parts = json.loads(disk.read(name)).items()
    return int(name.partition(".")[0]), {part: disk.read(file) for part, file in parts}


def manifest_first(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    finish(disk, step, parts)
    write_all(disk, step, parts)
    disk.sync_folder()


def parts_not_synced(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    write_all(disk, step, parts, sync=False)
    finish(disk, step, parts)


def manifest_not_synced(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    write_all(disk, step, parts)
    disk.write("new", plain_manifest(step, parts))
    disk.rename("new", f"{step}.manifest")
    disk.sync_folder()


def manifest_without_rename(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    write_all(disk, step, parts)
    disk.write(f"{step}.manifest", plain_manifest(step, parts))
    disk.sync(f"{step}.manifest")
    disk.sync_folder()


def folder_not_synced(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    write_all(disk, step, parts)
    disk.write("new", plain_manifest(step, parts))
    disk.sync("new")
    disk.rename("new", f"{step}.manifest")


def in_place(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    write_all(disk, 0, parts)
    disk.write("new", plain_manifest(0, parts))
    disk.sync("new")
    disk.rename("new", f"{step}.manifest")
    disk.sync_folder()


def old_one_first(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
    for name in disk.names():
        disk.remove(name)
    simple(disk, step, parts)


@pytest.mark.parametrize(
    ("save", "says"),
    [
        (manifest_first, "FileNotFoundError"),
        (parts_not_synced, "other bytes"),
        (manifest_not_synced, "JSONDecodeError"),
        (manifest_without_rename, "JSONDecodeError"),
        (folder_not_synced, "other bytes"),  # those of step 1, after step 2 was said to be saved
        (in_place, "other bytes"),
        (old_one_first, "returned None"),
    ],
)
def test_what_is_wrong_with_a_save_is_found(
    save: Callable[[Disk, int, dict[str, bytes]], None], says: str
) -> None:
    assert not list(operation.faults(simple, load, [(1, A), (2, B)]))
    assert any(says in fault.what for fault in operation.faults(save, load, [(1, A), (2, B)]))


def test_what_was_tidied_up_survives_power_failures_too() -> None:
    def commit_and_tidy(disk: Disk, step: int, parts: dict[str, bytes]) -> None:
        commit(disk, step, parts)
        operation.tidy(disk, keep=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for any_order in (False, True):
            saves = [(1, A), (2, B), (3, C)]
            assert not list(operation.faults(commit_and_tidy, newest, saves, any_order=any_order))
    others = {"README.md": b"", "step-by-step": b"", "1.5": b""}
    disk = Disk({"3.0.model": b"of an interrupted save", **others})
    for step, parts in ((1, A), (2, B), (3, C)):
        commit(disk, step, parts)
    operation.tidy(disk, keep=2)
    assert operation.steps(disk) == [3, 2] and newest(disk) == (3, C)
    assert len(disk.names()) == len(B) + len(C) + 2 + len(others)
    assert others.keys() <= {*disk.names()}


def test_tidying_up_counts_whole_checkpoints_alone() -> None:
    disk = Disk()
    for step, parts in ((1, A), (2, B), (3, A)):
        commit(disk, step, parts)
    disk.remove("3.0.model")
    operation.tidy(disk, keep=1)
    assert newest(disk) == (2, B) and operation.steps(disk) == [2]


def test_steps_are_numbers_and_not_names() -> None:
    disk = Disk()
    for step in (9, 10, 123_456_789, 2):
        commit(disk, step, {"step": str(step).encode()})
    assert newest(disk) == (123_456_789, {"step": b"123456789"})
    assert operation.steps(disk) == [123_456_789, 10, 9, 2]
    with pytest.raises(ValueError, match="step -1: a step is 0 or more"):
        commit(disk, -1, A)
    assert newest(Disk({"step-": b"", "step-7a": b"", "other": b""})) is None


# ---- damage


def damages(data: bytes) -> list[bytes]:
    flips = [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]
    return [*flips, data[:-1], data + b"\0", b"", bytes(len(data))]


def test_a_damaged_file_is_named_and_the_checkpoint_before_it_is_used() -> None:
    commit(disk := Disk(), 1, A)
    before = disk.names()
    commit(disk, 2, B)
    saved = {name: disk.read(name) for name in disk.names()}
    for name in set(saved) - set(before):
        for damaged in damages(saved[name]):
            with pytest.warns(
                UserWarning, match=f"^{name} .* The checkpoint of step 2 is not used"
            ):
                assert newest(Disk(saved | {name: damaged})) == (1, A)
    lost = {name: data for name, data in saved.items() if name != "2.0.model"}
    with pytest.warns(UserWarning, match=r"^2\.0\.model is lost\. The checkpoint of step 2"):
        assert newest(Disk(lost)) == (1, A)
    with pytest.warns(UserWarning, match=r"^2\.0\.model has 49 bytes, and 50 were saved"):
        assert newest(Disk(saved | {"2.0.model": saved["2.0.model"][:-1]})) == (1, A)


def test_nothing_whole_is_none() -> None:
    commit(disk := Disk(), 1, {"a": b"1"})
    disk.remove("1.0.a")
    with pytest.warns(UserWarning, match="is lost"):
        assert newest(disk) is None
    assert newest(Disk()) is None


# ---- real files


def test_a_folder_does_what_the_disk_does(tmp_path: Path) -> None:
    draw = random.Random(0)
    names = ["a", "b/c", "..", "%2F", "é", "step-00000001"]
    disk, folder = Disk(), Folder(tmp_path / "new" / "folder")
    for _ in range(300):
        at, other = draw.choice(names), draw.choice(names)
        data = draw.randbytes(draw.randrange(5))
        calls = [
            lambda files, at=at, data=data: files.write(at, data),
            lambda files, at=at, other=other: files.rename(at, other),
            *(
                lambda files, at=at, do=do: getattr(files, do)(at)
                for do in ("sync", "read", "remove")
            ),
            lambda files: files.sync_folder(),
        ]
        call = draw.choice(calls)
        if at == other and call is calls[1]:
            continue
        results = []
        for files in (disk, folder):
            try:
                results.append(call(files))
            except FileNotFoundError:
                results.append(FileNotFoundError)
        assert results[0] == results[1]
        assert disk.names() == folder.names()
    for step, parts in ((1, A), (2, B), (2, C)):
        commit(folder, step, parts)
        assert newest(folder) == (step, parts)
    assert newest(Folder(tmp_path / "new" / "folder")) == (2, C)


KILLS = """
    import os, random, signal, sys, time
    from course_lib.operation import Folder, commit, newest, tidy

    def parts_of(step):
        return {f"rank {k}": bytes([step % 256]) * size for k in range(3)}

    class Killed(Folder):  # dies before its operation number `left`
        left = int(1e9)
    def dying(name):
        def method(self, *arguments):
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return getattr(Folder, name)(self, *arguments)
        return method
    for name in ("write", "sync", "rename", "remove", "sync_folder"):
        setattr(Killed, name, dying(name))

    def child(body):
        pid = os.fork()
        if pid == 0:
            body()
            os._exit(0)
        return pid

    path, seed = sys.argv[1], int(sys.argv[2])
    folder = Folder(path)
    # before each operation
    size, ended = 1000, 0
    commit(folder, 0, parts_of(0))
    for left in range(40):
        step = newest(folder)[0]
        def body():
            killed = Killed(path)
            killed.left = left
            commit(killed, step + 1, parts_of(step + 1))
        _, status = os.waitpid(child(body), 0)
        loaded, parts = newest(folder)
        assert parts == parts_of(loaded), left
        assert loaded == step + 1 or (status and loaded == step), left
        ended += status == 0
    assert ended == 40 - 11, ended
    tidy(folder, 1)
    # at random moments, inside operations too
    size, draw, inside = 300_000, random.Random(seed), 0
    commit(folder, 100, parts_of(100))
    last = 100
    for kill in range(60):
        def body():
            step = last
            while True:
                step += 1
                commit(folder, step, parts_of(step))
                tidy(folder)
        pid = child(body)
        time.sleep(draw.random() * 0.04)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        step, parts = newest(folder)
        assert step >= last and parts == parts_of(step), (step, last)
        last = step
        parts = [name for name in folder.names() if not name.startswith("step-")]
        inside += any(int(name.split(".")[0]) > last for name in parts)
    print(last, inside)
"""


def test_a_save_that_is_killed_loses_nothing(tmp_path: Path, seed: int) -> None:
    """SIGKILL before each operation of a save, and at 60 random moments of saves that follow each other."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::UserWarning",
            "-c",
            textwrap.dedent(KILLS),
            str(tmp_path),
            str(seed),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.returncode == 0, done.stderr
    last, inside = map(int, done.stdout.split())
    print(f"last step {last}, kills inside a save {inside} of 60")
    assert last > 100
