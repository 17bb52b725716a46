"""A process below which others run, are killed, and are ended, such as agents, their ranks, and failing runs.

    your program  ->  starter  ->  agents  ->  ranks

A notebook's process has threads and perhaps a GPU, so it must not fork. Instead, a lab runs below its own
process, which imports torch once and forks the other processes in milliseconds. Whatever happens, nothing is
left:

    each child asks the kernel to be killed when its parent is gone       PR_SET_PDEATHSIG
    an orphan becomes a child of the starter, which ends it by its id     PR_SET_CHILD_SUBREAPER
    the starter ends at its deadline, and when your program is gone       a look every 20 ms

Source: prctl(2). Linux only.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle

PDEATHSIG, SUBREAPER = 1, 36
PATIENCE = 180.0  # seconds for the starter to import torch on a busy machine, and to end everything


def run_below(body: Callable[[Deadline], Any], timeout: float) -> Any:
    """Run body(deadline) in a starter, which ends all processes below it when the body returns.

    The body and its result travel as pickles. Raises RuntimeError, with the output of all these processes, if
    the body raised, or did not return within `timeout` seconds from its beginning.
    """
    job = cloudpickle.dumps((timeout, os.getpid(), body))
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    starter = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **own},
    )  # fmt: skip
    try:
        output, _ = starter.communicate(job, timeout + PATIENCE)
    except subprocess.TimeoutExpired as error:  # it has a deadline, but may not even have begun
        raise RuntimeError("the starter of the lab did not end in time") from error
    finally:
        if starter.poll() is None:
            starter.terminate()  # it ends all others, and then itself
            with suppress(subprocess.TimeoutExpired):
                starter.wait(20)
        starter.kill()  # the kernel then ends its children, and theirs
        starter.wait()
    said, mark, result = output.partition(MARK)
    if not mark:
        printed, _, fault = said.decode(errors="replace").partition(FAULT)
        raise RuntimeError(f"the processes of the lab failed: {fault}\n{printed[-3000:]}")
    return pickle.loads(result)


# The starter writes one of them behind the output of its processes, and then the result or the error.
MARK, FAULT = b"\n---- result of the lab\n", "\n---- fault of the lab\n"


class Deadline:
    """A limit for every wait of a starter. RuntimeError when it has passed, or when `caller` is gone."""

    def __init__(self, seconds: float, caller: int):
        self.end, self.caller = time.monotonic() + seconds, caller

    def look(self) -> None:
        if time.monotonic() > self.end:
            raise RuntimeError("the lab did not end in time")
        if os.getppid() != self.caller:
            raise RuntimeError("the program that started the lab is gone")

    def pause(self, seconds: float = 0.01) -> None:
        self.look()
        time.sleep(seconds)


def fork(body: Callable[[], object]) -> int:
    """Returns the id of a child that runs `body`, and ends when this process does."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        end_with(parent)
        body()
        code = 0
    except BaseException as error:  # of any kind: the child must not go on in its parent's code
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends, even if it has already ended."""
    prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def preload() -> None:
    """Import torch's slow parts here, once, so that all forked processes have them."""
    for name in (
        "torch",
        "torch.distributed.launcher.api",
        "torch._dynamo",
    ):  # the last for optimizers
        importlib.import_module(name)


def children() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == os.getpid():
                yield int(folder.name)


def end_children() -> None:
    """Kill this process' children, and also their children once it has adopted them, until there is none."""
    while below := list(children()):
        for child in below:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    prctl(SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`
    job, code = sys.stdin.buffer.read(), 1
    # PyTorch leaves logs of agents and errors of killed ranks, which are deleted with the starter.
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="course-lab-")
    try:
        preload()  # before the clock runs: on a busy machine it takes a minute
        timeout, caller, body = pickle.loads(job)  # the caller may have ended during the imports
        result = pickle.dumps(body(Deadline(timeout, caller)))
        end_children()  # no line of theirs comes between
        sys.stdout.flush()
        sys.stdout.buffer.write(MARK + result)
        code = 0
    except Exception:
        # Agents whose store has ended print pages of errors, so the reason comes when they are gone.
        fault = traceback.format_exc()
        end_children()
        print(f"{FAULT}{fault}", end="", flush=True)
    finally:
        end_children()
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without taking torch down piece by piece


if __name__ == "__main__":
    main()
