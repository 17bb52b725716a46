"""The trainer of examples/ under torchrun: two agents with two ranks each, as on two machines.

With COURSE_ALL_TESTS=1 (`make test-all`) every class is killed and resumed, and torchrun restarts ranks.
"""

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
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import SEED, wait_until_gone

from course_lib import RankError, data, facts, launch
from course_lib.models import GPT, PRESETS, next_token_loss
from examples import train

ROOT = Path(__file__).resolve().parent.parent
WHOLE = bool(os.environ.get("COURSE_ALL_TESTS"))
CLASSES = ("ddp", "zero1", "zero3")
MODEL, BATCH, CLIP = "0.1M", 8, 0.5
PATIENCE = 240.0  # seconds for anything that torchrun does, on a machine that is busy
OPTIONS = f"--model {MODEL} --batch-size {BATCH} --clip {CLIP} --seed {SEED}".split()


# --- two agents, as on two machines ----------------------------------------------------------------


class Job:
    """Two `torchrun` on this machine that meet at a port, and what they print."""

    def __init__(self, arguments: Sequence[str], torchrun: Sequence[str], port: int):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"),
            *("--local-addr=127.0.0.1", *torchrun, "examples/train.py", *OPTIONS, *arguments),
        ]
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
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
        """What the log says of each step."""
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
    """Below the ports that the system hands out by itself, so that nobody takes it by accident."""
    for _ in range(100):
        port = 20_000 + int.from_bytes(os.urandom(2)) % 10_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port between 20000 and 30000")


@contextlib.contextmanager
def started(*arguments: str, torchrun: Sequence[str] = ()) -> Iterator[Job]:
    """A job whose ranks have met. The port may have been taken meanwhile: then once more."""
    for attempt in range(3):
        job = Job(arguments, torchrun, free_port())
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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the ranks have: several threads on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def one_process(steps: int) -> list[float]:
    """The losses of plain PyTorch on the whole batch."""
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
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert max(norms) > CLIP  # gradients were clipped, so that equal losses say something
    return losses


def assert_as_one_process(losses: dict[int, str]) -> None:
    expected = one_process(max(losses) + 1)
    worst = max(abs(float(loss) - expected[step]) for step, loss in losses.items())
    assert worst < 1e-5, f"{worst} off, seed {SEED}"
    assert expected[0] - expected[-1] > 0.3  # it learns, so that equal losses say something


# --- two machines ----------------------------------------------------------------------------------


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
    assert "What the ranks sent in step 1:" in job.said
    assert f"Each rank sent {sent + norm:,.0f} bytes in built-in collectives." in job.said
    assert "train.py:" in job.said


@pytest.mark.parametrize("parallel", CLASSES if WHOLE else ("zero1",))
def test_a_machine_is_killed_and_the_run_resumed(
    parallel: str, tmp_path: Path, own_temporary_folder: Path
) -> None:
    """The losses after it are those of an undisturbed run; nothing is left running."""
    folder = tmp_path / "run"
    options = ["--parallel", parallel, "--checkpoints", str(folder), "--checkpoint-every", "5"]
    with started(*options, "--steps", "100000") as job:
        job.wait_until(lambda: 12 in job.losses)
        ranks = job.ranks()
        assert len(ranks) == 4
        job.agents[1].kill()
        codes = job.wait()
        assert codes[0] != 0 and codes[1] == -9
        assert not wait_until_gone(ranks, 10.0), "ranks are still running"
    before = job.losses
    kept = train.checkpoints(folder)
    assert 1 <= len(kept) <= 2
    reached = int(kept[-1].name.removeprefix("step-"))
    assert 10 <= reached <= max(before) + 1
    half = folder / "step-99999995.partial"  # a run that is killed while it saves leaves this
    half.mkdir()
    (half / "model.pt").write_bytes(b"not all of it")

    with started(*options, "--steps", str(reached + 10)) as job:
        codes = job.wait()
    assert codes == [0, 0], job.said
    after = job.losses
    assert list(after) == list(range(reached, reached + 10))
    twice = before.keys() & after.keys()
    assert {step: before[step] for step in twice} == {step: after[step] for step in twice}
    assert_as_one_process(before | after)
    assert not (folder / f"step-{reached + 10:08d}.partial").exists()
    assert train.checkpoints(folder)[-1].name == f"step-{reached + 10:08d}"


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


# --- checkpoints, in ranks of `launch` ---------------------------------------------------------------


def settings(folder: Path, **changes: object) -> Namespace:
    """What `parse_arguments` would return."""
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
            "SLURM_JOB_NUM_NODES": "2", **environment,
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
