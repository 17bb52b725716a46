"""The trainer of examples/ under torchrun: two agents with two ranks each, as on two machines.

With COURSE_ALL_TESTS=1 (`make test-all`) every class is killed and resumed, and torchrun restarts ranks.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_lib import facts
from course_lib.models import GPT, PRESETS
from course_lib.operation import Folder, steps
from examples import train
from tests.conftest import wait_until_gone
from tests.examples.two_machines import (
    BATCH,
    CLASSES,
    MODEL,
    OPTIONS,
    PATIENCE,
    ROOT,
    WHOLE,
    assert_as_one_process,
    one_process,
    started,
)


@pytest.mark.parametrize("parallel", CLASSES if WHOLE else ("ddp", "zero3"))
def test_two_machines_have_the_losses_of_one_process(
    parallel: str, own_temporary_folder: Path
) -> None:
    with started("--parallel", parallel, "--steps", "20", "--ledger", "--backend", "gloo") as job:
        codes = job.wait()
    assert codes == [0, 0], job.said
    assert f"4 ranks on {socket.gethostname()} (4); backend gloo: asked for" in job.said
    assert list(job.losses) == list(range(20))
    assert_as_one_process(job.losses)

    model = GPT(PRESETS[MODEL])
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
    whole = sum(p.numel() for p in model.parameters())
    sizes = [*blocks, whole - sum(blocks)] if parallel == "zero3" else [whole]
    sent = facts.zero_bytes(sizes, 4, 4, {"ddp": 0, "zero1": 1, "zero3": 3}[parallel])
    norm = 0 if parallel == "ddp" else 2 * 3 / 4 * 4  # bytes for the norm of gradients in shards
    count = 2 * 3 / 4 * 8  # and for the number of targets
    assert "Sent by the ranks in step 1:" in job.said
    assert f"Each rank sent {sent + norm + count:,.0f} bytes in built-in collectives." in job.said
    assert "train.py:" in job.said


@pytest.mark.parametrize(
    ("parallel", "dtype"),
    [("fsdp", "float32"), ("fsdp", "fp16"), ("ddp", "fp16"), ("zero1", "fp16"), ("zero3", "bf16")]
    if WHOLE
    else [("fsdp", "float32"), ("zero1", "fp16")],
)
def test_other_formats_and_pytorchs_shards_train_as_one_process(
    parallel: str, dtype: str, own_temporary_folder: Path
) -> None:
    arguments = ("--parallel", parallel, "--dtype", dtype, "--steps", "20", "--report")
    with started(*arguments, "--backend", "gloo") as job:
        codes = job.wait()
    assert codes == [0, 0], job.said
    if dtype == "float32":
        assert_as_one_process(job.losses)
    else:
        skipped = re.findall(r"(?m)^step (\d+)  skipped: gradients overflowed", job.said)
        assert dtype == "fp16" or not skipped
        expected = one_process(20, frozenset(map(int, skipped)))
        assert list(job.losses) == list(range(20))
        assert all(abs(float(loss) - expected[step]) < 0.02 for step, loss in job.losses.items())
    (said,) = re.findall(r"(?m)^report: (.*)", job.said)
    speed, seconds = re.fullmatch(
        r"([\d,]+) tokens/s of 4 ranks, (\S+) s a step; MFU and peak memory need a GPU", said
    ).groups()  # type: ignore[union-attr]
    tokens = BATCH * PRESETS[MODEL].context
    assert float(speed.replace(",", "")) * float(seconds) == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize(
    ("mesh", "each"), [("pp=2,dp=2,tp=2", 4), *([("cp=2,dp=2", 2)] if WHOLE else [])]
)
def test_a_mesh_over_two_machines_has_the_losses_of_one_process(
    mesh: str, each: int, own_temporary_folder: Path
) -> None:
    arguments = ("--mesh", mesh, "--microbatches", "2", "--steps", "20", "--ledger")
    with started(*arguments, "--backend", "gloo", ranks=each) as job:
        codes = job.wait()
    assert codes == [0, 0], job.said
    assert f"{2 * each} ranks on {socket.gethostname()} ({2 * each}); backend gloo" in job.said
    assert list(job.losses) == list(range(20))
    assert_as_one_process(job.losses)
    assert "Sent by the ranks in step 1:" in job.said and "all_reduce" in job.said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mesh", "pp=2,ep=2"], "is not a list such as pp=2,dp=2"),
        (["--mesh", "pp=2,pp=2"], "does not make 4 ranks"),
        (["--mesh", "dp=8"], "does not make 4 ranks"),
        (
            ["--mesh", "dp=4", "--batch-size", "10"],
            "--batch-size 10 cannot be cut into 4 x 4 microbatches",
        ),
        (["--mesh", "dp=4", "--dtype", "bf16"], "--mesh trains in float32"),
        (["--parallel", "none"], "--parallel none is for one rank"),
        (["--parallel", "fsdp", "--checkpoints", "runs"], "--parallel fsdp saves no checkpoints"),
        (["--dtype", "fp16", "--checkpoints", "runs"], "a checkpoint does not hold the loss scale"),
        (["--report", "--checkpoints", "runs"], "--report times steps without checkpoints"),
        (["--report", "--steps", "3"], "take more than 3 --steps"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    with pytest.raises(SystemExit):
        train.parse_arguments()
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "layout",
    [*(f"--parallel {name}" for name in CLASSES), "--mesh pp=2,dp=2"]
    if WHOLE
    else ["--parallel zero1"],
)
def test_a_machine_is_killed_and_the_run_resumed(
    layout: str, tmp_path: Path, own_temporary_folder: Path
) -> None:
    """The losses after it are those of an undisturbed run; nothing is left running."""
    folder = tmp_path / "run"
    options = [*layout.split(), "--checkpoints", str(folder), "--checkpoint-every", "5"]
    with started(*options, "--steps", "100000") as job:
        job.wait_until(lambda: 12 in job.losses)
        ranks = job.ranks()
        assert len(ranks) == 4
        job.agents[1].kill()
        codes = job.wait()
        assert codes[0] != 0 and codes[1] == -9
        assert not wait_until_gone(ranks, 10.0), "ranks are still running"
    before = job.losses
    disk = Folder(folder)
    kept = steps(disk)
    assert 1 <= len(kept) <= 3  # three, if it was killed before it removed the oldest
    reached = kept[0]
    assert 10 <= reached <= max(before) + 1
    disk.write(f"{reached + 5}.0.model.pt", b"not all of it")  # as of a run killed while it saves

    with started(*options, "--steps", str(reached + 10)) as job:
        codes = job.wait()
    assert codes == [0, 0], job.said
    after = job.losses
    assert list(after) == list(range(reached, reached + 10))
    twice = before.keys() & after.keys()
    assert {step: before[step] for step in twice} == {step: after[step] for step in twice}
    assert_as_one_process(before | after)
    assert steps(disk) == [reached + 10, reached + 5]
    assert f"{reached + 5}.0.model.pt" not in disk.names()


@pytest.mark.skipif(not WHOLE, reason="takes a minute: make test-all")
def test_torchrun_restarts_the_ranks_by_itself(
    tmp_path: Path, own_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README in examples/ says: with --max-restarts, and a new store for each start."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    folder = tmp_path / "run"
    options = ["--parallel", "zero3", "--checkpoints", str(folder), "--checkpoint-every", "5"]
    with started(*options, "--steps", "60", torchrun=["--max-restarts=3"]) as job:
        job.wait_until(lambda: 12 in job.losses)
        os.kill(job.ranks()[-1], 9)
        codes = job.wait()
    assert codes == [0, 0], job.said
    starts = [int(start) for start in re.findall(r"steps (\d+) to 59", job.said)]
    assert starts[0] == 0 and len(starts) >= 2 and starts[-1] >= 10
    losses = job.losses
    assert sorted(losses) == list(range(60))
    assert_as_one_process({step: loss for step, loss in losses.items() if step < 40})


@pytest.mark.gpu
@pytest.mark.parametrize("parallel", CLASSES)
def test_each_rank_has_a_gpu(parallel: str, tmp_path: Path, own_temporary_folder: Path) -> None:
    """On one machine, over NCCL: trains, saves, goes on, and has the losses of one process."""
    ranks = min(4, torch.cuda.device_count())
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    mine = ["--parallel", parallel, "--checkpoints", str(tmp_path / "run"), "--ledger"]
    said = ""
    for end in ("3", "6"):
        done = subprocess.run(
            [sys.executable, *command, "examples/train.py", *OPTIONS, *mine, "--steps", end],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said += done.stdout
    assert (
        f"{ranks} ranks on {socket.gethostname()} ({ranks}); backend nccl: every rank has" in said
    )
    losses = [float(loss) for loss in re.findall(r"(?m)^step \d+  loss (\S+)", said)]
    worst = max(abs(loss - its) for loss, its in zip(losses, one_process(6), strict=True))
    assert worst < 1e-3  # a GPU adds up in another order
    assert "steps 3 to 5" in said and said.count("Sent by the ranks in step ") == 2
