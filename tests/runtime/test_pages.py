"""The memory that ranks are forked with: large pages, measured as finely, and room for small objects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.runtime import pages

ROOT = Path(__file__).resolve().parents[2]

# Makes memory, makes its pages large, forks, and prints the child's memory before and after it writes.
FORKED = """
import ctypes, json, os
from course_lib.runtime import held, pages

kept = [bytes([number % 251]) * (1 << 20) for number in range(24)]
heap = [[str(number)] for number in range(200_000)]

def huge():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) << 10

def refused():
    lines = open("/proc/vmstat").read().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("thp_collapse_alloc_failed")), 0)

before, refused_before = huge(), refused()
for _ in pages.made_large():
    pass
none_free = refused() > refused_before
told, tell = os.pipe()
if os.fork() == 0:
    first = held.held(os.getpid())
    own = bytearray(os.urandom(3 << 20))
    second = held.held(os.getpid())
    heap[7].append("one more")
    third = held.held(os.getpid())
    os.write(tell, json.dumps([second.whole - first.whole, third.whole - second.whole]).encode())
    os._exit(0)
os.wait()
same = all(one == bytes([number % 251]) * (1 << 20) for number, one in enumerate(kept))
same = same and all(one[0] == str(number) for number, one in enumerate(heap))
rose = json.loads(os.read(told, 999))
print(json.dumps({"huge": huge() - before, "rose": rose, "same": same, "none free": none_free}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_large_pages_change_nothing_but_what_a_fork_copies() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, cwd=ROOT, check=True
    )
    told = json.loads(ran.stdout)
    assert told["same"]
    allocated, written = told["rose"]
    assert 3 << 20 <= allocated < (3 << 20) + (256 << 10), "a rank's memory is measured finely"
    assert written < 256 << 10
    if told["huge"] == 0:
        pytest.skip("this kernel makes no pages large (before Linux 6.1, or without such pages)")
    if told["huge"] < 16 << 20 and told["none free"]:
        pytest.skip(
            "the kernel had too few large pages free, because other programs fill the memory"
        )
    assert told["huge"] >= 16 << 20


def test_without_large_pages_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SIZE", str(tmp_path / "there is none"))
    assert list(pages.made_large()) == []


# Fills what is free of Python's arenas, makes room or not, forks, and prints by how much the child's memory
# rises when it makes 1 MB of small objects.
SMALL_OBJECTS = """
import os, sys
from course_lib.runtime import held, pages

full = [bytes(size) for size in range(16, 512, 16) for _ in range(2_000)]
room = pages.room_for_small_objects(2_000_000) if sys.argv[1] == "room" else None
told, tell = os.pipe()
if os.fork() == 0:
    first = [held.held(os.getpid()) for _ in range(2)].pop()
    own = [bytes(16 * (1 + number % 29)) for number in range(4_000)]
    os.write(tell, str(held.held(os.getpid()).whole - first.whole).encode())
    os._exit(0)
os.wait()
print(os.read(told, 999).decode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_small_objects_of_a_rank_go_where_its_parent_left_room() -> None:
    def rise(how: str) -> int:
        command = [sys.executable, "-c", SMALL_OBJECTS, how]
        return int(subprocess.run(command, capture_output=True, cwd=ROOT, check=True).stdout)

    assert rise("no room") > 800_000
    assert rise("room") < 300_000
