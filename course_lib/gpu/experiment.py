"""Experiments on GPUs, and their records.

Each rank has a GPU of its own, whatever backend the session's other runs use, and whatever
COURSE_RANKS_PER_GPU says, because times of ranks that share a GPU mean nothing. The ledger is off, because
its bookkeeping takes longer than a short message. Without a GPU, nothing is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.facts.hardware import Gpu, data_sheet
from course_lib.runtime.backend import device, missing_for_nccl
from course_lib.runtime.gpus import PER_GPU, gpu_count, loaded_nccl
from course_lib.runtime.launch import launch
from course_lib.runtime.reach import NO_PEERS

RECORDS = Path(__file__).parent / "records"
UNITS = ("s", "B", "B/s", "FLOP/s", "tokens/s", "x")


@dataclass(frozen=True)
class Row:
    """A measured number.

    value: in `unit`, one of UNITS; None if this GPU cannot do it. of: the sizes and names needed for a
    prediction of the number.
    """

    what: str
    value: float | None
    unit: str
    of: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A body that every rank runs. Only the rows of rank 0 count.

    ranks: 1, or the least number of ranks. In the second case, each GPU gets a rank, up to 8. sizes:
    arguments of `body` on GPUs. small: arguments in tests, on the CPU. limit: seconds after which the ranks
    are ended.
    """

    name: str
    title: str
    ranks: int
    body: Callable[..., list[Row]]
    sizes: dict[str, Any]
    small: dict[str, Any]
    limit: float = 120


@dataclass(frozen=True)
class Measured:
    """The rows of an experiment, and where they were measured. here: on this machine, just now."""

    rows: list[Row]
    machine: dict[str, Any]
    date: str
    here: bool

    @property
    def where(self) -> str:
        ranks, gpu = self.machine["ranks"], self.machine["gpu"]
        if gpu == "CPU":
            return f"rehearsed with {ranks} rank{'s' * (ranks > 1)} on the CPU: no number means anything"
        on = f"{ranks} x {gpu}, PyTorch {self.machine['torch']}, NCCL {self.machine['nccl']}"
        return f"measured here: {on}" if self.here else f"recorded on {self.date}: {on}"

    @property
    def card(self) -> Gpu:
        """The data sheet of the GPU. LookupError if it is not known."""
        card = data_sheet(self.machine["gpu"])
        if card is None:
            raise LookupError(
                f"course_lib.facts.hardware has no data sheet of {self.machine['gpu']}"
            )
        return card


@contextlib.contextmanager
def plain_ranks() -> Iterator[None]:
    """A context in which ranks have no ledger, and each has its own GPU."""
    before = {name: os.environ.get(name) for name in ("COURSE_LEDGER", PER_GPU)}
    os.environ["COURSE_LEDGER"] = "off"
    os.environ.pop(PER_GPU, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def usable() -> int:
    """How many ranks have a GPU of their own here; 0 if the GPUs do not work."""
    count = gpu_count() if dist.is_nccl_available() else 0
    with plain_ranks():
        return count if count and not missing_for_nccl(1) else 0


def why_unused() -> str:
    """Why the GPUs of this machine cannot be used; "" if it has none, or if they can."""
    with plain_ranks():
        return missing_for_nccl(1) if gpu_count() and not usable() else ""


def measure(experiment: Experiment, *, rehearse: bool = False, **options: Any) -> Measured | None:
    """Run the experiment on this machine's GPUs; None if there are too few of them.

    rehearse: run with small sizes on the CPU, over gloo. This shows that the body runs, but its numbers mean
    nothing. options: further arguments of the body, such as a student's own function. Raises the same errors
    as `launch`.
    """
    gpus = experiment.ranks if rehearse else usable()
    if gpus < experiment.ranks:
        return None
    sizes = experiment.small if rehearse else experiment.sizes
    with plain_ranks():
        answers = launch(
            on_each, experiment.body, {**sizes, **options},
            world_size=1 if experiment.ranks == 1 else min(gpus, 8),
            backend="gloo" if rehearse else "nccl", timeout=experiment.limit,
        )  # fmt: skip
    rows, machine = answers[0]
    return Measured(rows, machine, time.strftime("%Y-%m-%d"), here=True)


def on_each(body: Callable[..., list[Row]], arguments: dict) -> tuple[list[Row], dict[str, Any]]:
    """Run in each rank; return its rows, and the machine it ran on."""
    on_gpu = device().type == "cuda"
    machine = {
        "gpu": torch.cuda.get_device_name() if on_gpu else "CPU",
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl_version())) if on_gpu else "none",
    }
    if on_gpu and dist.get_world_size() > 1:
        # NVLink, or PCIe without a detour
        allowed = os.environ.get(NO_PEERS, "0") != "1"
        machine["peers"] = allowed and torch.cuda.can_device_access_peer(0, 1)
    return body(**arguments), machine


def nccl_version() -> tuple[int, int, int]:
    loaded = loaded_nccl()
    return loaded // 10000, loaded // 100 % 100, loaded % 100


# ---- records


def write_record(path: Path, runs: dict[str, Measured]) -> None:
    """Write all runs of one machine, as a file for RECORDS."""
    entries = {
        name: {"date": run.date, "machine": run.machine, "rows": [asdict(row) for row in run.rows]}
        for name, run in runs.items()
    }
    path.write_text(json.dumps(entries, indent=1) + "\n")


def recorded(experiment: Experiment, folder: Path = RECORDS) -> Measured | None:
    """The record with the most GPUs, or the newest of several; None if there is none."""
    runs = [run for path in sorted(folder.glob("*.json")) for run in read(path, experiment.name)]
    return max(runs, key=lambda run: (run.machine["ranks"], run.date), default=None)


def read(path: Path, name: str) -> Iterator[Measured]:
    """The run with this name in a record, if there is one."""
    entry = json.loads(path.read_text()).get(name)
    if entry:
        run = Measured([Row(**row) for row in entry["rows"]], entry["machine"], entry["date"], True)
        yield replace(run, here=False)
