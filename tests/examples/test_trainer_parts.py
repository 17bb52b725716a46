"""The parts of examples/train.py: checkpoints, the choice of a backend, arguments; and the Slurm script."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, data, facts, launch
from course_lib.models import GPT, PRESETS, next_token_loss
from examples import train
from tests.examples.two_machines import (
    BATCH,
    CLIP,
    MODEL,
    OPTIONS,
    PATIENCE,
    ROOT,
    WHOLE,
    free_port,
    one_process,
)

# --- checkpoints, in ranks of `launch` ---------------------------------------------------------------


def settings(folder: Path, **changes: object) -> Namespace:
    """The arguments as `parse_arguments` returns them."""
    usual = {"model": MODEL, "parallel": "zero1", "lr": 1e-3, "clip": CLIP, "checkpoints": folder}
    return Namespace(**{**usual, **changes})


def take_steps(args: Namespace, count: int, seed: int) -> tuple[int, list[float]]:
    """Go on from the newest checkpoint by `count` steps, and save: (first step, this rank's losses)."""
    torch.manual_seed(seed)
    config = PRESETS[args.model]
    model, optimizer = train.parallelize(GPT(config), args)
    start = train.load_checkpoint(args, model, optimizer)
    losses = []
    for step in range(start, start + count):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 10)
        inputs, targets = data.batch(
            data.library_text(), step, batch_size=BATCH, length=config.context, seed=seed,
            rank=dist.get_rank(), world_size=dist.get_world_size(),
        )  # fmt: skip
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        if args.parallel == "ddp":
            model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    train.save_checkpoint(args, start + count, model, optimizer)
    return start, losses


def test_every_class_goes_on_from_every_other_on_any_number_of_ranks(
    tmp_path: Path, seed: int
) -> None:
    chain = [("zero1", 4), ("zero3", 2), ("zero3", 2), ("ddp", 1), ("zero1", 2), ("ddp", 4),
             ("zero3", 4), ("zero1", 1)]  # fmt: skip
    expected, worst = one_process(2 * len(chain)), 0.0
    for place, (parallel, world_size) in enumerate(chain):
        args = settings(tmp_path, parallel=parallel)
        run = launch(take_steps, args, 2, seed, world_size=world_size, backend="gloo", timeout=120)
        assert [start for start, _ in run] == [2 * place] * world_size
        for step in range(2):
            mean = sum(losses[step] for _, losses in run) / world_size
            worst = max(worst, abs(mean - expected[2 * place + step]))
        kept = [path.name for path in train.checkpoints(tmp_path)]
        assert kept == [f"step-{2 * place + step:08d}" for step in (0, 2)]
        assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert worst < 1e-5


def test_a_folder_that_is_not_shared_is_refused_before_the_first_step(tmp_path: Path) -> None:
    def body() -> None:
        own = settings(tmp_path / f"disk {dist.get_rank()}")  # each machine's own
        take_steps(own, 1, 0)

    with pytest.raises(RankError, match=r"rank 1 on .* does not see .*step-00000000") as error:
        launch(body, world_size=2, backend="gloo")
    assert "must be a folder that all machines share" in str(error.value)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    launch(take_steps, settings(tmp_path), 1, 0, world_size=2, backend="gloo")
    with pytest.raises(RankError, match=r"holds a GPT 0.1M, but --model is 0.8M"):
        launch(take_steps, settings(tmp_path, model="0.8M"), 1, 0, world_size=2, backend="gloo")


def changed(content: bytes) -> bytes:
    """One bit of the middle is another: one that makes a number larger by much."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x40]) + content[middle + 1 :]


DAMAGE: list[tuple[str, Callable[[bytes], bytes | None], str]] = [  # None: the part is lost
    ("model.pt", changed, "is {.*sha256.*} was saved"),
    ("optimizer-00001.pt", changed, "is {.*sha256.*} was saved"),
    ("optimizer-00000.pt", lambda content: content[:100], "is {'bytes': 100, .*} was saved"),
    ("optimizer-00001.pt", lambda content: None, "is gone, and {.*} was saved"),
    ("model.pt", lambda content: None, "is gone, and {.*} was saved"),
    ("manifest.json", lambda content: None, r"cannot be read \(.*\)"),
    ("manifest.json", lambda content: content[:20], r"cannot be read \(.*\)"),
    ("manifest.json", lambda content: b"[1]", r"cannot be read \(.*\)"),
]


def test_a_checkpoint_that_is_not_as_it_was_saved_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """By a sentence that names the part; nothing of it is loaded."""
    args = settings(tmp_path)
    launch(take_steps, args, 1, 0, world_size=2, backend="gloo")
    newest = train.checkpoints(tmp_path)[-1]

    def put(name: str, content: bytes | None) -> None:
        """From rank 0, for both."""
        dist.barrier()
        if dist.get_rank() == 0:
            (newest / name).unlink(missing_ok=True)
            if content is not None:
                (newest / name).write_bytes(content)
        dist.barrier()

    def resumed() -> list[str]:
        model, optimizer = train.parallelize(GPT(PRESETS[MODEL]), args)
        before, said = [param.clone() for param in model.parameters()], []
        for name, damage, _ in DAMAGE:
            content = (newest / name).read_bytes()
            put(name, damage(content))
            with pytest.raises(ValueError, match="Restore the file, or delete") as error:
                train.load_checkpoint(args, model, optimizer)
            said.append(str(error.value))
            put(name, content)
        assert all(map(torch.equal, before, model.parameters()))
        assert train.load_checkpoint(args, model, optimizer) == 1
        return said

    first, second = launch(resumed, world_size=2, backend="gloo")
    assert first == second
    for message, (name, _, says) in zip(first, DAMAGE, strict=True):
        rest = f"Restore the file, or delete {newest} to go on from the checkpoint before it"
        assert re.fullmatch(f"{newest / name} {says}. {rest}", message), message


def test_ranks_with_unequally_many_targets_have_the_mean_over_all() -> None:
    """Of three ranks one has no target; the sum of the ranks' terms over their number is the loss."""
    logits, targets = torch.randn(3, 2, 5, 11), torch.randint(11, (3, 2, 5))
    targets[0, :, 2:], targets[2] = -100, -100

    def job() -> float:
        return train.share_of_loss(logits[dist.get_rank()], targets[dist.get_rank()]).item()

    terms = list(launch(job, world_size=3, backend="gloo"))
    assert terms[2] == 0
    assert sum(terms) / 3 == pytest.approx(
        next_token_loss(logits.flatten(0, 1), targets.flatten(0, 1)).item()
    )


# --- before the first step ---------------------------------------------------------------------------


def test_machines_with_different_texts_are_refused() -> None:
    def body() -> list[str]:
        text = data.library_text()
        return train.compare_machines(text[dist.get_rank() * different :])

    different = 0
    assert list(launch(body, world_size=2, backend="gloo")) == [[socket.gethostname()] * 2] * 2
    different = 1
    with pytest.raises(RankError, match=r"rank 1 on .* has another training text than rank 0 on"):
        launch(body, world_size=2, backend="gloo")


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        ((2, 2), None, ("nccl", "every rank has a GPU of its own")),
        ((2, 2), "nccl", ("nccl", "every rank has a GPU of its own")),
        ((2, 2), "gloo", ("gloo", "asked for")),
        ((2, 1), None, ("gloo", "rank 3 on here has no GPU of its own")),
        ((0, 2), None, ("gloo", "rank 0 on here has no GPU of its own")),
        ((2, 1), "nccl", None),
    ],
)
def test_all_ranks_choose_one_backend(
    gpus: tuple[int, int],
    asked: str | None,
    expected: tuple | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gpus: of the first and of the second machine, which have two ranks each."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    counts = [gpus[rank // 2] for rank in range(4)]
    store = dist.HashStore()
    for rank, count in enumerate(counts):  # ranks tell this at the same time
        store.set(f"lacks a GPU/{rank}", "" if rank % 2 < count else "here")
    for rank, count in enumerate(counts):
        monkeypatch.setenv("LOCAL_RANK", str(rank % 2))
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        if expected is not None:
            assert train.choose_backend(asked, store, rank, 4) == expected
        else:
            with pytest.raises(SystemExit, match=r"rank 3 on here has no GPU of its own\. Start"):
                train.choose_backend(asked, store, rank, 4)


@pytest.mark.parametrize(
    ("arguments", "under_torchrun", "said"),
    [
        ("", False, "start this file with torchrun: torchrun --standalone"),
        ("--steps 0", True, "--steps is at least 1, not 0"),
        ("--checkpoint-every -1", True, "--checkpoint-every is at least 1, not -1"),
        ("--clip -1", True, "--clip is above 0, not -1.0"),
        ("--clip 0", True, "--clip is above 0, not 0.0"),
        ("--clip nan", True, "--clip is above 0, not nan"),
        ("--lr 0", True, "--lr is above 0, not 0.0"),
        ("--parallel zero2", True, "invalid choice: 'zero2'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: str, under_torchrun: bool, said: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if under_torchrun:
        monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments.split()])
    with pytest.raises(SystemExit):
        train.parse_arguments()
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("file", ["README.md", "train.py", "train.sbatch"])
def test_commands_that_are_shown_are_right(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    text = (ROOT / "examples" / file).read_text().replace("\\\n", " ")
    commands = re.findall(r"(?m)examples/train\.(?:py|sbatch) +(--[^`\n]*)", text)
    commands += re.findall(r"(?m)^# +sbatch \S+ (.*)", text)
    assert commands
    for command in commands:
        arguments = command.replace('"$checkpoints"', "folder").replace('"$@"', "").split()
        if arguments != ["--help"]:
            monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
            train.parse_arguments()


@pytest.mark.parametrize("dtype", ["float32", "fp16"])
def test_one_rank_alone_trains_as_one_process(dtype: str) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"),
        *("examples/train.py", *OPTIONS, "--parallel", "none", "--dtype", dtype, "--steps", "5"),
    ]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"(?m)^step \d+  loss (\S+)", done.stdout)]
    skipped = re.findall(r"(?m)^step (\d+)  skipped: gradients overflowed", done.stdout)
    expected = one_process(5, frozenset(map(int, skipped)))
    close = 1e-5 if dtype == "float32" else 0.02
    assert losses == [pytest.approx(expected[step], abs=close) for step in range(5)]


def test_a_report_names_the_data_sheet_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    args = Namespace(model="124M", batch_size=8)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5_250_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    said = train.report(args, 0.5, 1, torch.device("cuda"))
    flops = facts.transformer_flops(PRESETS["124M"], 8, 1024) / 0.5
    assert said == (
        f"report: 16,384 tokens/s of 1 rank, 0.500 s a step, {flops / 1e12:.1f} TFLOP/s and 5.25 GB a GPU; "
        f"MFU {flops / 65e12:.1%} of 65 TFLOP/s (NVIDIA T4 data sheet)"
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some Card")
    said = train.report(args, 0.5, 2, torch.device("cuda"))
    assert said.endswith("GB a GPU; no data sheet of Some Card, so no MFU")


# --- Slurm ---------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs train.sbatch as Slurm would, with stand-ins for scontrol and srun (two machines: this one)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_ins = {
        "scontrol": '[ "$*" = "show hostnames node[1-2]" ] && printf "localhost\\nother\\n"',
        "srun": 'option=$1; shift; echo "srun $option"; "$@" & "$@" & wait -n && wait -n',
    }

    def run(*arguments: str, torchrun: str = "", **environment: str) -> subprocess.CompletedProcess:
        for name, body in {**stand_ins, **({"torchrun": torchrun} if torchrun else {})}.items():
            (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (programs / name).chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {
            "PATH": path, "SLURM_JOB_ID": "1234567", "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2", "PYTHONPATH": str(ROOT), **environment,
        }  # fmt: skip
        return subprocess.run(
            ["bash", "examples/train.sbatch", *arguments], cwd=ROOT, env={**os.environ, **own},
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    return run


def test_the_slurm_script_starts_one_torchrun_on_each_machine(slurm: Callable) -> None:
    subprocess.run(["bash", "-n", "examples/train.sbatch"], cwd=ROOT, check=True)
    shown = 'echo "$OMP_NUM_THREADS $SRUN_CPUS_PER_TASK $TORCH_DISABLE_SHARE_RDZV_TCP_STORE $*"'
    gpus = {"SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "18"}
    done = slurm("--parallel", "zero3", "--steps", "7", torchrun=shown, **gpus)
    first, *others = done.stdout.splitlines()
    assert (done.returncode, done.stderr, first) == (0, "", "srun --kill-on-bad-exit=1")
    expected = (
        "4 18 1 --nnodes 2 --nproc-per-node 4 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint "
        f"localhost:24567 --rdzv-id 1234567 examples/train.py --checkpoints {ROOT}/checkpoints/1234567 "
        "--parallel zero3 --steps 7"
    )
    assert others == [expected] * 2

    done = slurm(torchrun=shown, SLURM_GPUS_ON_NODE="", RANKS_PER_NODE="2", CHECKPOINTS="/x")
    assert "1 1 1 --nnodes 2 --nproc-per-node 2" in done.stdout and "ints /x\n" in done.stdout
    done = slurm(torchrun=shown, SLURM_GPUS_ON_NODE="", RANKS_PER_NODE="")
    assert done.returncode == 1 and "set RANKS_PER_NODE before sbatch" in done.stderr
    done = slurm(torchrun="exit 3", **gpus)
    assert done.returncode == 3


@pytest.mark.skipif(not WHOLE, reason="takes half a minute: make test-all")
def test_the_slurm_script_trains(
    slurm: Callable, tmp_path: Path, own_temporary_folder: Path
) -> None:
    folder = tmp_path / "run"
    done = slurm(
        *OPTIONS, "--parallel", "zero1", "--steps", "5", RANKS_PER_NODE="2", SLURM_GPUS_ON_NODE="",
        SLURM_JOB_ID=str(free_port() - 20_000), CHECKPOINTS=str(folder), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    expected = one_process(5)
    losses = re.findall(r"(?m)^step (\d+)  loss (\S+)", done.stdout)
    assert [int(step) for step, _ in losses] == list(range(5))
    assert all(abs(float(loss) - expected[int(step)]) < 1e-5 for step, loss in losses)
    assert train.checkpoints(folder)[-1].name == "step-00000005"
