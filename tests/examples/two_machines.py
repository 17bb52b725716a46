"""Helpers of the tests of examples/train.py: two agents on this machine, and the losses of one process."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from course_lib import data
from course_lib.models import GPT, PRESETS, next_token_loss
from tests.conftest import SEED

ROOT = Path(__file__).resolve().parents[2]
WHOLE = bool(os.environ.get("COURSE_ALL_TESTS"))
CLASSES = ("ddp", "zero1", "zero3")
MODEL, BATCH, CLIP = "0.1M", 8, 0.5
PATIENCE = 300.0  # seconds for anything that torchrun does, on a machine that is busy
OPTIONS = f"--model {MODEL} --batch-size {BATCH} --clip {CLIP} --seed {SEED}".split()


# --- two agents, as on two machines ----------------------------------------------------------------


class Job:
    """Two `torchrun` on this machine that meet at a port, and what they print."""

    def __init__(
        self, arguments: Sequence[str], torchrun: Sequence[str], port: int, ranks: int = 2
    ):
        """ranks: of each of the two machines."""
        each = f"--nproc-per-node={ranks}"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", each),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"),
            *("--local-addr=127.0.0.1", *torchrun, "examples/train.py", *OPTIONS, *arguments),
        ]
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
        self.lines: list[str] = []
        self.agents = [
            subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **own}, text=True, errors="replace",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for _ in range(2)
        ]  # fmt: skip
        self.readers = [threading.Thread(target=self.read, args=(one,)) for one in self.agents]
        for reader in self.readers:
            reader.start()

    def read(self, agent: subprocess.Popen) -> None:
        assert agent.stdout is not None
        for line in agent.stdout:
            self.lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def losses(self) -> dict[int, str]:
        """The loss of each step, read from the log."""
        return dict(
            (int(step), loss)
            for step, loss in re.findall(r"(?m)^step (\d+)  loss (\S+)", self.said)
        )

    def ranks(self) -> list[int]:
        """The processes that the agents started."""
        agents, found = {agent.pid for agent in self.agents}, []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) in agents:
                    found.append(int(folder.name))
        return found

    def wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            ended = all(agent.poll() is not None for agent in self.agents)
            assert not ended and time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def wait(self) -> list[int]:
        """Exit codes, when both agents have ended and all that they printed is here."""
        codes = [agent.wait(PATIENCE) for agent in self.agents]
        for reader in self.readers:
            reader.join(PATIENCE)  # a rank that is left behind holds the pipe open
            assert not reader.is_alive(), "a rank still runs after its agent has ended"
        return codes

    def end(self) -> None:
        for agent in self.agents:
            agent.kill()  # its ranks notice it
            agent.wait()
        for reader in self.readers:
            reader.join(10)
        for agent in self.agents:
            if agent.stdout is not None:
                agent.stdout.close()


def free_port() -> int:
    """A port below those that the system hands out by itself, so that no program takes it by accident."""
    for _ in range(100):
        port = 20_000 + int.from_bytes(os.urandom(2)) % 10_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port between 20000 and 30000")


@contextlib.contextmanager
def started(*arguments: str, torchrun: Sequence[str] = (), ranks: int = 2) -> Iterator[Job]:
    """A job whose ranks have met. The port may have been taken meanwhile: then once more."""
    for attempt in range(3):
        job = Job(arguments, torchrun, free_port(), ranks)
        try:
            deadline = time.monotonic() + PATIENCE
            while " ranks on " not in job.said and time.monotonic() < deadline:
                if any(agent.poll() is not None for agent in job.agents):
                    break
                time.sleep(0.05)
            taken = "RendezvousConnectionError" in job.said or "EADDRINUSE" in job.said
            if attempt < 2 and taken and " ranks on " not in job.said:
                continue
            yield job
            return
        finally:
            job.end()


# --- what one process does -------------------------------------------------------------------------


@functools.cache
def one_process(steps: int, skipped: frozenset[int] = frozenset()) -> list[float]:
    """The losses of plain PyTorch on the whole batch. skipped: steps that the optimizer does not take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other on a machine that is busy
    text, config = data.library_text(), PRESETS[MODEL]
    torch.manual_seed(SEED)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, norms = [], []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 10)
        inputs, targets = data.batch(text, step, batch_size=BATCH, length=config.context, seed=SEED)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        if step not in skipped:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    assert max(norms) > CLIP  # gradients were clipped, so that equal losses say something
    return losses


def assert_as_one_process(losses: dict[int, str]) -> None:
    expected = one_process(max(losses) + 1)
    worst = max(abs(float(loss) - expected[step]) for step, loss in losses.items())
    assert worst < 1e-5, f"{worst} off, seed {SEED}"
    assert expected[0] - expected[-1] > 0.3  # it learns, so that equal losses say something
