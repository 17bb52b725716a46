"""How fast ranks start, and how much memory they take, against the usual ways.

Every measurement runs in a fresh Python process, like a new notebook kernel; first calls of a process
are timed there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row

WORLD = 8

SPAWN = """
import json, os, sys, tempfile, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank_main(rank, n, path, pause):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=n)
    dist.all_reduce(torch.ones(1))
    if pause and rank == 0:
        print("ready", flush=True)
    if pause:
        time.sleep(pause)
    dist.barrier()

if __name__ == "__main__":
    n, calls, pause = json.loads(sys.argv[1])
    torch.ones(1)
    seconds = []
    for _ in range(calls):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            mp.spawn(rank_main, (n, folder + "/store", pause), nprocs=n)
            seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds), flush=True)
"""

LAUNCH = """
import json, sys, time
import torch, torch.distributed as dist
from course_lib import launch

def body(pause):
    dist.all_reduce(torch.ones(1))
    if pause and dist.get_rank() == 0:
        print("ready", flush=True)
    time.sleep(pause)

n, before, between, calls, pause = json.loads(sys.argv[1])
time.sleep(before)
seconds = []
for _ in range(calls):
    began = time.perf_counter()
    launch(body, pause, world_size=n)
    seconds.append(time.perf_counter() - began)
    time.sleep(between)
print(json.dumps(seconds), flush=True)
"""

ENGINES = """
import json, os, sys, time
import ipyparallel, torch

n, between, calls = json.loads(sys.argv[1])
def body():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(1))

def join(rank, n, path):
    import os
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=n)

import tempfile
with tempfile.TemporaryDirectory() as folder:
    with ipyparallel.Cluster(n=n, log_level=50) as client:
        view = client[:]
        view.map_sync(join, range(n), [n] * n, [folder + "/store"] * n)
        view.apply_sync(body)
        seconds = []
        for _ in range(calls):
            began = time.perf_counter()
            view.apply_sync(body)
            seconds.append(time.perf_counter() - began)
            time.sleep(between)
        print(json.dumps(seconds), flush=True)
"""


def program(code: str, *values: object) -> list[float]:
    """Run a program in a fresh process; the list of seconds that it prints last."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(code)
        done = subprocess.run(
            [sys.executable, str(path), json.dumps(values)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    if done.returncode:
        raise RuntimeError(f"a benchmark failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def tree_memory(pid: int) -> int:
    """Proportional memory (PSS) of a process and all its descendants, in bytes."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            total += tree_memory(int(child))
    return total


def memory(code: str, *values: object) -> int:
    """Memory of the whole tree while its ranks pause."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(code)
        process = subprocess.Popen(
            [sys.executable, str(path), json.dumps(values)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "ready" in line:
                break
        try:
            return tree_memory(process.pid)
        finally:
            process.kill()
            process.wait()


def rows() -> Iterator[Row]:
    spawn = statistics.median(s for _ in range(3) for s in program(SPAWN, WORLD, 1, 0))
    first = statistics.median(program(LAUNCH, WORLD, 0, 0, 1, 0)[0] for _ in range(3))
    ready = statistics.median(program(LAUNCH, WORLD, 2, 0, 1, 0)[0] for _ in range(3))
    against = "`torch.multiprocessing.spawn`"
    what = f"first `launch` in a new kernel, {WORLD} ranks, one all-reduce"
    yield Row(what, against, first / spawn, 1 / 5, detail=f"{first:.2f} s, {spawn:.2f} s")
    yield Row(
        f"{what}, 2 s after the import",
        against,
        ready / spawn,
        1 / 40,
        detail=f"{ready * 1e3:.0f} ms",
    )
    back = statistics.median(program(LAUNCH, WORLD, 2, 0, 20, 0)[1:])
    yield Row(
        "later `launch`, back to back", against, back / spawn, 1 / 40, detail=f"{back * 1e3:.0f} ms"
    )
    spaced = statistics.median(program(LAUNCH, WORLD, 2, 0.5, 20, 0)[1:])
    yield Row(
        "later `launch`, half a second later",
        against,
        spaced / spawn,
        1 / 150,
        detail=f"{spaced * 1e3:.0f} ms",
    )
    engines = statistics.median(program(ENGINES, WORLD, 0.5, 20))
    yield Row(
        "the same", "ipyparallel's engines", spaced / engines, 2, detail=f"{engines * 1e3:.0f} ms"
    )
    ours, theirs = memory(LAUNCH, WORLD, 2, 0, 1, 20), memory(SPAWN, WORLD, 1, 20)
    yield Row(
        f"memory of {WORLD} ranks (PSS, whole tree)", against, ours / theirs, 0.25,
        detail=f"{ours / 1e6:.0f} MB, {theirs / 1e6:.0f} MB",
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for row in rows():
        print(row)
