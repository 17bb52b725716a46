"""The ledger of ranks that torchrun started: each keeps its record, and all exchange them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import RankError, launch
from course_lib.runtime.torchrun import Recording

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
import sys

import torch
import torch.distributed as dist

from course_lib.collectives import ring_all_reduce
from course_lib.ledger.recorder import CommunicationError
from course_lib.runtime import torchrun

torchrun.OUTSIDE = 16
recording = torchrun.Recording("gloo")
dist.init_process_group("gloo")
rank, said = dist.get_rank(), {}
tensor = torch.full((6,), float(rank))


def attempt(kind, body):
    try:
        body()
    except kind as error:
        return str(error)


for _ in range(50):  # outside: written over again and again
    dist.all_reduce(tensor.clone())
with recording:
    ring_all_reduce(tensor)
said["sum"] = tensor.tolist()
ledger = said_by_all = recording.ledger
said["first"] = [repr(ledger), ledger.matrix().tolist(), len(ledger.unmatched())]
said["lines"] = sorted({one.line.partition(",")[0] for one in ledger.operations()})
said["times"] = all(
    0 <= one.issued <= ledger.ended and one.completed is not None and one.issued <= one.completed
    for one in ledger.operations()
)
dist.all_reduce(tensor)
with recording:
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 1)
said["second"] = [(one.op, one.bytes_sent) for one in recording.ledger.operations(rank)]
kept = recording.ledger


def strided():
    with recording:
        dist.all_reduce(torch.ones(4, 4).t()[1:])


def nested():
    with recording, recording:
        pass


def too_much():
    recording._recorder.most = 20
    with recording:
        for _ in range(21):
            dist.all_reduce(tensor)


for body, kind in ((strided, CommunicationError), (nested, RuntimeError), (too_much, CommunicationError)):
    said[body.__name__] = attempt(kind, body)
said["kept"] = recording.ledger is kept
said["another"] = attempt(RuntimeError, torchrun.Recording)
with recording:  # still works
    dist.barrier()
said["last"] = [one.op for one in recording.ledger.operations(rank)]
group = dist.new_group([0, 1])
dist.destroy_process_group()
with open(sys.argv[1] + str(rank), "w") as file:
    json.dump(said, file)
"""


def test_what_ranks_of_torchrun_send_is_recorded(
    tmp_path: Path, own_temporary_folder: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(program), str(tmp_path / "said")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        said = json.loads((tmp_path / f"said{rank}").read_text())
        assert said["sum"] == [1.0] * 6
        text, matrix, unmatched = said["first"]
        assert matrix == [[0, 24], [24, 0]]  # 2 (N-1)/N of 24 bytes
        assert text.startswith("Ledger(2 ranks, gloo: ") and unmatched == 0
        assert said["lines"] == ["program.py"]
        assert said["times"]
        sent = 24 if rank == 1 else 0
        assert said["second"] == [["all_reduce", 24], ["broadcast", sent]]
        assert "not contiguous" in said["strided"]
        assert "already entered" in said["nested"]
        assert "more than 20 operations inside one `with`" in said["too_much"]
        assert said["kept"]
        assert "already recorded" in said["another"]
        assert said["last"] == ["barrier"]


def test_where_nothing_can_be_recorded_a_sentence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=r"start this program with torchrun.*launch\(\)"):
        Recording()
    with pytest.raises(
        ValueError, match="a ledger is kept for gloo or nccl, not for backend='mpi'"
    ):
        Recording("mpi")
    with pytest.raises(RankError, match=r"already recorded, by launch\(\)"):
        launch(Recording, world_size=1, backend="gloo")
