"""The parts of examples/train.py: checkpoints, the choice of a backend, arguments; and the Slurm script."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim import Optimizer

from course_lib import RankError, data, facts, launch
from course_lib.models import GPT, PRESETS, next_token_loss
from course_lib.operation import Folder, commit, read_manifest, steps
from examples import train
from tests.conftest import SEED
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
    usual |= {"mesh": None, "microbatches": 2}
    return Namespace(**{**usual, **changes})


def one_step(args: Namespace, model: Any, optimizer: Optimizer, step: int, seed: int) -> float:
    """This rank's loss."""
    for group in optimizer.param_groups:
        group["lr"] = args.lr * min(1, (step + 1) / 10)
    inputs, targets = data.batch(
        data.library_text(), step, batch_size=BATCH, length=PRESETS[args.model].context, seed=seed,
        rank=dist.get_rank(), world_size=dist.get_world_size(),
    )  # fmt: skip
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    if args.parallel == "ddp":
        model.finish_gradient_synchronization()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def take_steps(args: Namespace, count: int, seed: int) -> tuple[int, list[float]]:
    """Go on from the newest checkpoint by `count` steps, and save: (first step, this rank's losses)."""
    torch.manual_seed(seed)
    model, optimizer = train.parallelize(GPT(PRESETS[args.model]), args)
    start = train.load_checkpoint(args, model, optimizer)
    losses = []
    for step in range(start, start + count):
        losses.append(one_step(args, model, optimizer, step, seed))
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
        disk = Folder(tmp_path)
        assert steps(disk) == [2 * place + 2, 2 * place]
        needed = {file for step in steps(disk) for file, _, _ in read_manifest(disk, step).values()}
        assert {*disk.names()} == needed | {train.manifest(step) for step in steps(disk)}
    assert worst < 1e-5


def test_a_folder_that_is_not_shared_is_refused_before_the_first_step(tmp_path: Path) -> None:
    def body(parallel: str) -> None:
        own = tmp_path / f"disk {dist.get_rank()}"  # each machine's
        take_steps(settings(own, parallel=parallel), 1, 0)

    for parallel in ("ddp", "zero1"):
        with pytest.raises(RankError, match=r"rank 1 on .* does not see .*step-00000000") as error:
            launch(body, parallel, world_size=2, backend="gloo")
        assert "must be a folder that all machines share" in str(error.value)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    launch(take_steps, settings(tmp_path), 1, 0, world_size=2, backend="gloo")
    with pytest.raises(RankError, match=r"holds a GPT 0.1M, but --model is 0.8M"):
        launch(take_steps, settings(tmp_path, model="0.8M"), 1, 0, world_size=2, backend="gloo")


def changed(content: bytes) -> bytes:
    """One bit of the middle is another: one that makes a number larger by much."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x40]) + content[middle + 1 :]


DAMAGE: list[tuple[str, Callable[[bytes], bytes | None], str]] = [  # None: the file is lost
    ("1.0.model.pt", changed, "is not as it was saved: its checksum is another"),
    ("1.0.optimizer-00001.pt", changed, "is not as it was saved: its checksum is another"),
    (
        "1.0.optimizer-00000.pt",
        lambda content: content[:100],
        r"has 100 bytes, and [\d,]+ were saved",
    ),
    ("1.0.optimizer-00001.pt", lambda content: None, "is lost"),
    ("1.0.model.pt", lambda content: None, "is lost"),
    ("step-00000001", changed, "is not as it was saved: its checksum is another"),
    (
        "step-00000001",
        lambda content: content[:20],
        "is not as it was saved: its checksum is another",
    ),
    ("step-00000001", lambda content: None, "is lost, or its save was interrupted"),
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def loaded(args: Namespace) -> tuple[int, str]:
    """The step of the checkpoint that this rank loads, and what it says about others."""
    model, optimizer = train.parallelize(GPT(PRESETS[MODEL]), args)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        return train.load_checkpoint(args, model, optimizer), said.getvalue()


def test_a_damaged_file_is_named_and_all_ranks_take_the_checkpoint_before(tmp_path: Path) -> None:
    args = settings(tmp_path)
    launch(take_steps, args, 1, 0, world_size=2, backend="gloo")
    whole = contents(tmp_path)

    def put(name: str, content: bytes | None) -> None:
        """From rank 0, for both."""
        dist.barrier()
        if dist.get_rank() == 0:
            (tmp_path / name).unlink(missing_ok=True)
            if content is not None:
                (tmp_path / name).write_bytes(content)
        dist.barrier()

    def resumed() -> list[tuple[int, str]]:
        found = [loaded(args)]
        for name, damage, _ in DAMAGE:
            put(name, damage(whole[name]))
            found.append(loaded(args))
            put(name, whole[name])
        return found

    first, second = launch(resumed, world_size=2, backend="gloo")
    assert first[0] == (1, "")
    assert [step for step, _ in first] == [step for step, _ in second]
    for (step, said), (name, _, says) in zip(first[1:], DAMAGE, strict=True):
        assert step == 0
        expected = f"{tmp_path / name} {says}. The checkpoint of step 1 is not used\n"
        assert re.fullmatch(expected, said), said
    assert not any(said for _, said in second)
    assert contents(tmp_path) == whole


def test_if_every_checkpoint_is_damaged_the_files_are_named_and_nothing_is_deleted(
    tmp_path: Path,
) -> None:
    args = settings(tmp_path)
    launch(take_steps, args, 1, 0, world_size=2, backend="gloo")
    model, other = tmp_path / "1.0.model.pt", tmp_path / "0.0.optimizer-00001.pt"
    model.write_bytes(changed(model.read_bytes()))
    other.unlink()
    left = contents(tmp_path)
    with pytest.raises(RankError) as error:
        launch(loaded, args, world_size=2, backend="gloo")
    assert (
        f"no checkpoint in {tmp_path} is whole: {model} is not as it was saved: its checksum is another; "
        f"{other} is lost. Nothing was deleted. Restore the files of one of them, or start again"
    ) in str(error.value)
    assert contents(tmp_path) == left

    # Parts without any manifest are an error, too: the run does not begin again at step 0.
    for name in ("step-00000000", "step-00000001"):
        (tmp_path / name).unlink()
    with pytest.raises(RankError, match=r"is whole: .*/step-00000001 is lost, or its save was"):
        launch(loaded, args, world_size=2, backend="gloo")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("step-00000005/manifest.json", "step-00000005 is a checkpoint of an earlier train.py"),
        ("step-00000005.partial/model.pt", None),  # which an interrupted save left
        ("notes.txt", None),
    ],
)
def test_a_folder_with_other_files(name: str, says: str | None, tmp_path: Path) -> None:
    """A checkpoint of the earlier format is told before a step is taken. No other file is touched."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    if says is None:
        assert launch(take_steps, settings(tmp_path), 1, 0, world_size=1, backend="gloo")[0][0] == 0
    else:
        with pytest.raises(RankError, match=says):
            launch(take_steps, settings(tmp_path), 1, 0, world_size=1, backend="gloo")
    assert (tmp_path / name).read_text() == "{}"


def test_the_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    commit(Folder(tmp_path), 3, {"run": b"of the labs of notebook 12"})
    with pytest.raises(RankError, match=r"step-00000003 was saved on a mesh or by another program"):
        launch(loaded, settings(tmp_path), world_size=1, backend="gloo")


# --- checkpoints of a mesh ------------------------------------------------------------------------------


def steps_on_mesh(args: Namespace, count: int, seed: int) -> tuple[int, list[float], str]:
    """Go on from the newest checkpoint by `count` steps, and save: (first step, losses, what was said)."""
    torch.manual_seed(seed)
    config = PRESETS[args.model]
    stages, take_step, optimizer = train.spread_over_mesh(GPT(config), args, torch.device("cpu"))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        start = train.load_checkpoint(args, stages, optimizer)
    losses = []
    for step in range(start, start + count):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 10)
        rows = data.batch(
            data.library_text(), step, batch_size=BATCH, length=config.context, seed=seed
        )
        losses.append(take_step(*rows).item())
    train.save_checkpoint(args, start + count, stages, optimizer)
    return start, losses, said.getvalue()


def test_a_mesh_goes_on_from_every_other(tmp_path: Path, seed: int) -> None:
    chain = [{"pp": 2, "tp": 2}, {"dp": 2}, {"tp": 2}, {"dp": 1}]
    expected = one_process(2 * len(chain))
    for place, mesh in enumerate(chain):
        args = settings(tmp_path, mesh=mesh)
        run = launch(steps_on_mesh, args, 2, seed, world_size=prod(mesh.values()), backend="gloo")
        for start, losses, _ in run:
            assert start == 2 * place
            assert losses == pytest.approx(expected[start : start + 2], abs=1e-5)
        assert steps(Folder(tmp_path)) == [2 * place + 2, 2 * place]


def test_a_mesh_passes_over_a_damaged_checkpoint(tmp_path: Path, seed: int) -> None:
    """The one before it is of step 0: the optimizer then has no state, not even that of the damaged one."""
    args = settings(tmp_path, mesh={"tp": 2})
    first = list(launch(steps_on_mesh, args, 2, seed, world_size=2, backend="gloo"))
    entries = read_manifest(Folder(tmp_path), 2)
    file = entries[next(name for name in entries if "blocks.0.mlp.up.weight/exp_avg" in name)][0]
    (tmp_path / file).write_bytes(changed((tmp_path / file).read_bytes()))
    again = list(launch(steps_on_mesh, args, 2, seed, world_size=2, backend="gloo"))
    assert [losses for _, losses, _ in again] == [losses for _, losses, _ in first]
    assert again[0][0] == 0 and again[0][2].startswith(
        f"{tmp_path}/{file} is not as it was saved: its checksum is another. The checkpoint of step 2 is not "
    )


def test_a_mesh_and_a_class_refuse_each_others_checkpoints(tmp_path: Path) -> None:
    on_mesh, by_class = settings(tmp_path / "mesh", mesh={"dp": 1}), settings(tmp_path / "class")
    launch(steps_on_mesh, on_mesh, 1, 0, world_size=1, backend="gloo")
    launch(take_steps, by_class, 1, 0, world_size=1, backend="gloo")
    by_class.checkpoints, on_mesh.checkpoints = on_mesh.checkpoints, by_class.checkpoints
    with pytest.raises(RankError, match="was saved on a mesh or by another program"):
        launch(loaded, by_class, world_size=1, backend="gloo")
    with pytest.raises(RankError, match=r"step-00000001 is not of a GPT 0\.1M on a mesh: give"):
        launch(steps_on_mesh, on_mesh, 1, 0, world_size=1, backend="gloo")
    larger = settings(tmp_path / "mesh", mesh={"dp": 1}, model="0.8M")
    with pytest.raises(RankError, match=r"has no GPT 0\.8M.* is not of a GPT 0\.8M on a mesh"):
        launch(steps_on_mesh, larger, 1, 0, world_size=1, backend="gloo")


# --- ranks that are killed while they save -------------------------------------------------------------


class Dying(Folder):
    """Its rank is killed before its operation number `left`."""

    left = 0


def dying(name: str) -> Callable:
    def method(self: Dying, *arguments: Any) -> None:
        if Dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Dying.left -= 1
        getattr(Folder, name)(self, *arguments)

    return method


for operation in ("write", "sync", "rename", "remove", "sync_folder"):
    setattr(Dying, operation, dying(operation))

# (rank, operations of the save of step 4 before which it dies); None: after it
MOMENTS = [
    (0, 2),  # the weights are written, its optimizer state is not
    (1, 0),  # rank 0 waits for its part
    (0, 7),  # before the rename
    (0, 8),  # after it
    (0, 11),  # while it removes the checkpoint of step 0
    (1, None),
]
EACH = 2  # steps between two saves


def go_on(
    args: Namespace, seed: int, dies: tuple[int, int | None] | None
) -> tuple[int, str, bytes]:
    """Train to the end of step 6: (where it began, its last loss, its weights)."""
    torch.manual_seed(seed)
    model, optimizer = train.parallelize(GPT(PRESETS[MODEL]), args)
    who, left = dies or (None, None)
    begin = step = train.load_checkpoint(args, model, optimizer)
    loss = 0.0
    while step < 6:
        loss = one_step(args, model, optimizer, step, seed)
        step += 1
        mine = step == 4 and dist.get_rank() == who
        if mine and left is not None:
            Dying.left, train.Folder = left, Dying
        if step % EACH == 0:
            train.save_checkpoint(args, step, model, optimizer)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
    weights = b"".join(param.detach().numpy().tobytes() for param in model.parameters())
    return begin, repr(loss), weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, bytes]]:
    args = settings(tmp_path_factory.mktemp("undisturbed"))
    return list(launch(go_on, args, SEED, None, world_size=2, backend="gloo"))


@pytest.mark.parametrize("dies", MOMENTS)
def test_a_run_that_is_killed_in_a_save_ends_at_the_last_digit_of_an_undisturbed_one(
    dies: tuple[int, int | None], undisturbed: list[tuple[int, str, bytes]], tmp_path: Path
) -> None:
    args = settings(tmp_path)
    with pytest.raises(RankError, match="SIGKILL"):
        launch(go_on, args, SEED, dies, world_size=2, backend="gloo")
    saved = dies[1] is None or (dies[0] == 0 and dies[1] >= 8)
    assert steps(Folder(tmp_path))[0] == (4 if saved else 2)
    again = list(launch(go_on, args, SEED, None, world_size=2, backend="gloo"))
    assert [begin for begin, _, _ in again] == [4 if saved else 2] * 2
    assert [rest for _, *rest in again] == [rest for _, *rest in undisturbed]
    disk = Folder(tmp_path)
    needed = {file for step in steps(disk) for file, _, _ in read_manifest(disk, step).values()}
    assert {*disk.names()} == needed | {"step-00000004", "step-00000006"}  # nothing is left behind


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
    assert steps(Folder(folder))[0] == 5
