"""The backend of a session, on imagined machines: the same for all calls, and said once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gpu_notebook
import pytest
import torch
import torch.distributed as dist

from autograder.__main__ import main
from course_lib import doctor, launch
from course_lib.checks.judge import judge
from course_lib.doctor import nvidia, sharing
from course_lib.runtime import backend, gpus, pools, residue
from course_lib.runtime.gpus import Trial

WORKS = Trial(nccl=22809)
SHARES = Trial(nccl=23007)


class Machine:
    """Makes this machine look as if it had so many GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.monkeypatch = monkeypatch
        for name in ("COURSE_BACKEND", gpus.PER_GPU):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(backend, "_said", set())
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)

    def has(self, count: int, trial: Trial = WORKS, share: int = 1) -> None:
        self.trials = 0

        def tried() -> Trial:
            self.trials += 1
            return trial

        for module in (gpus, backend, sharing):
            if hasattr(module, "gpu_count"):
                self.monkeypatch.setattr(module, "gpu_count", lambda: count)
            if hasattr(module, "trial"):
                self.monkeypatch.setattr(module, "trial", tried)
        if share > 1:
            self.monkeypatch.setenv(gpus.PER_GPU, str(share))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    yield Machine(monkeypatch)


@pytest.mark.parametrize(
    ("count", "share", "trial", "chosen", "says"),
    [
        (0, 1, WORKS, "gloo", ""),
        (
            1,
            1,
            WORKS,
            "gloo",
            '1 GPU: it is used in the sections "On your GPUs". Other cells need 4 ranks',
        ),
        (2, 1, WORKS, "gloo", "2 GPUs: both are used, one rank each, in the sections"),
        (3, 1, WORKS, "gloo", "3 GPUs: all are used, one rank each, in the sections"),
        (
            4,
            1,
            WORKS,
            "nccl",
            "4 GPUs: ranks run over NCCL, one per GPU, but more than 4 ranks run on the CPU.",
        ),
        (8, 1, WORKS, "nccl", "8 GPUs: ranks run over NCCL, one per GPU, but more than 8 ranks"),
        (2, 2, SHARES, "nccl", "2 GPUs, shared by 2 ranks each over NCCL 2.30.7. They take turns,"),
        (1, 4, SHARES, "nccl", "1 GPU, shared by 4 ranks each over NCCL 2.30.7."),
        (2, 2, WORKS, "gloo", "needs NCCL 2.30 or newer, but PyTorch has loaded 2.28.9"),
        (4, 1, Trial("driver too old"), "gloo", "a trial on them failed: driver too old"),
    ],
)
def test_one_backend_a_session_said_once(
    machine: Machine, capsys: pytest.CaptureFixture,
    count: int, share: int, trial: Trial, chosen: str, says: str,
) -> None:  # fmt: skip
    machine.has(count, trial, share)
    assert [backend.choose(n) for n in (1, 2, 3, 4, 2, 1)] == [chosen] * 6
    printed = capsys.readouterr().out
    assert says in printed
    assert len(printed.splitlines()) == (1 if says else 0)
    assert backend.device() == torch.device("cpu"), "outside of a rank"


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (0, "2 ranks: gloo, 4 ranks: gloo, 8 ranks: gloo"),
        (1, "8 ranks: gloo\n1 GPU: it is used in the sections"),
        (2, "8 ranks: gloo\n2 GPUs: both are used, one rank each, in the sections"),
        (4, "8 ranks: gloo\n4 GPUs: ranks run over NCCL, one per GPU, but more than 4"),
        (8, "8 ranks: nccl\n8 GPUs: ranks run over NCCL, one per GPU"),
    ],
)
def test_the_doctor_says_why_and_the_next_run_says_it_too(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    count: int,
    says: str,
) -> None:
    machine.has(count)
    finding = nvidia.backends()
    assert finding.status == "ok" and says in finding.text
    assert finding.text.count("\n") == bool(count) and capsys.readouterr().out == ""
    monkeypatch.setattr(doctor, "measure_link", lambda: backend.choose(2))
    doctor.two_ranks()
    assert capsys.readouterr().out == "", "no line among the rows"
    backend.choose(2)
    assert capsys.readouterr().out.strip() == finding.text.partition("\n")[2]
    assert nvidia.backends() == finding, "also after a run"


def test_a_world_that_is_too_large_runs_on_the_cpu_and_says_so_once(
    machine: Machine, capsys: pytest.CaptureFixture
) -> None:
    machine.has(4)
    assert [backend.choose(n) for n in (4, 8, 8, 2)] == ["nccl", "gloo", "gloo", "nccl"]
    assert capsys.readouterr().out.splitlines() == [
        "4 GPUs: ranks run over NCCL, one per GPU, but more than 4 ranks run on the CPU.",
        "8 ranks, but room for 4 over NCCL, so this run is on the CPU with gloo.",
    ]


def test_cuda_is_not_tried_where_it_is_not_used(machine: Machine) -> None:
    for count in (0, 1, 2):
        machine.has(count)
        backend.choose(4)
        backend.choose(4, "gloo")
        assert machine.trials == 0


def test_what_is_asked_for_overrides(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has(2)
    assert backend.choose(2, "nccl") == "nccl"
    with pytest.raises(ValueError, match=r"4 ranks over NCCL need 4 GPUs, one each.*world_size=2"):
        backend.choose(4, "nccl")
    machine.has(2, Trial("no kernel image is available"))
    with pytest.raises(ValueError, match="no kernel image"):
        backend.choose(2, "nccl")
    machine.has(1, SHARES, share=4)
    assert backend.choose(4, "nccl") == "nccl"
    with pytest.raises(ValueError, match=r"5 ranks over NCCL need 2 GPUs, 4 ranks on each"):
        backend.choose(5, "nccl")


def test_the_environments_wish_is_never_an_error(
    machine: Machine, capsys: pytest.CaptureFixture
) -> None:
    machine.monkeypatch.setenv("COURSE_BACKEND", "nccl")
    machine.has(2)
    assert [backend.choose(n) for n in (1, 2, 4, 4)] == ["nccl", "nccl", "gloo", "gloo"]
    assert backend.choose(2, "gloo") == "gloo"
    machine.has(2, Trial("no kernel image is available"))
    assert backend.choose(2) == "gloo"
    machine.has(0)
    assert [backend.choose(n) for n in (2, 4)] == ["gloo", "gloo"]
    no_room, broken, none = capsys.readouterr().out.splitlines()
    assert no_room == "4 ranks, but room for 2 over NCCL, so this run is on the CPU with gloo."
    assert "no kernel image" in broken and broken.endswith("Ranks run on the CPU with gloo.")
    assert none.startswith("COURSE_BACKEND is 'nccl', but PyTorch sees 0 GPUs here")


@pytest.mark.parametrize("text", ["0", "two", "-1", "100"])
def test_a_share_that_is_not_a_number(machine: Machine, text: str) -> None:
    machine.monkeypatch.setenv(gpus.PER_GPU, text)
    with pytest.raises(ValueError, match="number of ranks from 1 to 16"):
        gpus.ranks_per_gpu()


def test_the_trial_is_a_process_of_its_own_and_says_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On this machine's build of PyTorch; without a GPU it uses none, and that is not an error."""
    assert gpus.run_trial().error == ""
    assert not torch.cuda.is_initialized()

    def broken(*args: object, **kwargs: object) -> SimpleNamespace:
        return SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nRuntimeError: driver\n")

    monkeypatch.setattr(subprocess, "run", broken)
    assert gpus.run_trial().error == "RuntimeError: driver"

    def slow(*args: object, **kwargs: object) -> SimpleNamespace:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", slow)
    assert "did not answer" in gpus.run_trial().error


def test_the_version_of_nccl_is_read_as_it_numbers_itself() -> None:
    assert (Trial(nccl=22809).nccl_text, Trial(nccl=23007).nccl_text) == ("2.28.9", "2.30.7")


# ---- in a rank


def test_ranks_over_gloo_see_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    seen = launch(lambda: os.environ["CUDA_VISIBLE_DEVICES"], world_size=2, backend="gloo")
    assert seen == ["", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert launch(lambda: os.environ["CUDA_VISIBLE_DEVICES"], world_size=1, backend="gloo") == [""]


def test_variables_that_are_read_at_the_start_are_those_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spare ranks joined before; a new value gets new ranks, which have it before they join."""
    launch(lambda: None, world_size=2, backend="gloo")
    process = pools.preloaded()
    assert pools.read_at_the_start(process, None) == ()
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("UNRELATED", "1")
    assert pools.read_at_the_start(process, None) == (("NCCL_DEBUG", "INFO"),)
    ranks = pools.pool(2, "gloo", True)
    try:
        assert ranks.environment == (("NCCL_DEBUG", "INFO"),)
    finally:
        ranks.end()
    assert launch(lambda: os.environ["NCCL_DEBUG"], world_size=2, backend="gloo") == ["INFO"] * 2


@pytest.mark.parametrize(
    ("name", "types", "nccl"),
    [
        ("nccl", [], True),
        ("gloo", [], False),
        ("cpu:gloo,cuda:nccl", [], True),
        ("undefined", ["cpu", "cuda"], True),
        ("undefined", ["cpu"], False),
    ],
)
def test_the_device_follows_what_carries_cuda_tensors(
    monkeypatch: pytest.MonkeyPatch, name: str, types: list[str], nccl: bool
) -> None:
    group = SimpleNamespace(_device_types=[torch.device(kind) for kind in types])
    monkeypatch.setattr(dist, "get_backend", lambda group=None: name)
    assert backend.on_nccl(group) is nccl  # type: ignore[arg-type]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=group))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert str(backend.device()) == ("cuda:1" if nccl else "cpu")


def test_ranks_that_share_a_gpu_get_what_nccl_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in gpus.SHARED:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it in the end
        monkeypatch.delenv(name)
    backend.take_gpu(1)
    assert taken == [1] and "NCCL_MULTI_RANK_GPU_ENABLE" not in os.environ
    monkeypatch.setenv(gpus.PER_GPU, "2")
    monkeypatch.setenv("NCCL_MAX_CTAS", "1")
    backend.take_gpu(3)
    assert taken == [1, 1]
    assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and os.environ["NCCL_MAX_CTAS"] == "1"


# ---- ranks that are kept


def test_what_a_task_leaves_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = residue.Residue.now()
    assert before.unchanged()
    with monkeypatch.context() as patch:
        patch.setattr(dist, "all_reduce", lambda tensor: None)
        assert not before.unchanged()
    assert before.unchanged()
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not before.unchanged()
    finally:
        torch.set_float32_matmul_precision(precision)
    torch.set_default_device("meta")
    try:
        assert not before.unchanged()
    finally:
        torch.set_default_device(None)  # "cpu" would leave a mode that all later operations pass
    monkeypatch.setattr(dist, "something_new", lambda: None, raising=False)
    assert residue.Residue.now().unchanged()


def test_of_ranks_on_gpus_one_pool_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def pool_of(world_size: int) -> SimpleNamespace:
        return SimpleNamespace(
            world_size=world_size, backend="nccl", record=True, sandbox=None, environment=(),
            end=lambda: ended.append(world_size),
        )  # fmt: skip

    monkeypatch.setattr(pools, "_spares", {})
    for world_size in (1, 2, 4):
        pools.keep(pool_of(world_size))  # type: ignore[arg-type]
    assert ended == [1, 2] and [key[0] for key in pools._spares] == [4]


def test_every_run_is_written_down_for_make_gpu(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """An unfulfilled wish for NCCL raises no error, so a session on GPUs counts the runs."""
    runs = tmp_path / "runs"
    machine.has(0)
    machine.monkeypatch.setenv("COURSE_BACKEND", "nccl")
    machine.monkeypatch.setenv("COURSE_LAUNCHES", str(runs))
    assert list(launch(dist.get_rank, world_size=2)) == [0, 1]
    assert runs.read_text() == "2 gloo\n"
    runs.write_text("4 nccl\n2 gloo\n1 alone\n2 nccl\n")
    assert gpu_notebook.carried(runs) == (2, 1)


# ---- checks, grading, doctor


def test_cases_that_find_no_room_on_the_gpus_run_on_the_cpu(
    machine: Machine, capsys: pytest.CaptureFixture
) -> None:
    machine.has(4)
    assert judge.backend(4) == "gloo", "unless GPUs are asked for"
    machine.monkeypatch.setenv("COURSE_BACKEND", "nccl")
    assert [judge.backend(n) for n in (4, 8, 8)] == ["nccl", "gloo", "gloo"]
    assert capsys.readouterr().out.count("8 ranks, but room for 4 over NCCL") == 1


def test_no_submission_is_graded_on_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("COURSE_BACKEND", "nccl")
    assert main(["grade", "--submissions", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "Nothing was graded: submissions are graded on the CPU" in said
    assert "COURSE_BACKEND is 'nccl'" in said


@pytest.mark.parametrize(
    ("count", "trial", "share", "status", "says"),
    [
        (0, WORKS, 1, "ok", "no GPU"),
        (1, WORKS, 1, "note", "doctor --nccl --get` gets NCCL"),
        (1, SHARES, 1, "ok", "%env COURSE_RANKS_PER_GPU=4"),
        (2, SHARES, 1, "ok", "%env COURSE_RANKS_PER_GPU=2"),
        (1, Trial("no driver"), 1, "problem", "no driver"),
        (1, SHARES, 4, "problem", "a trial with 4 ranks per GPU failed"),
    ],
)
def test_the_doctor_says_whether_ranks_can_share_a_gpu(
    machine: Machine, count: int, trial: Trial, share: int, status: str, says: str
) -> None:
    machine.has(count, trial, share)

    def refused(*args: object, **kwargs: object) -> None:
        raise ValueError("no such GPU")

    machine.monkeypatch.setattr(sharing, "launch", refused)
    finding = sharing.shared_gpus()
    assert finding.status == status
    assert says in finding.text + finding.advice


def test_the_doctor_is_asked_from_the_command_line(capsys: pytest.CaptureFixture) -> None:
    assert doctor.main(["--nccl"]) == 0
    assert "shared GPUs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        doctor.main(["--get"])
    assert "--get needs --nccl" in capsys.readouterr().err


def test_the_doctor_gets_a_newer_nccl_for_the_ranks_alone(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    commands = []

    def pip(command: list[str], **options: object) -> SimpleNamespace:
        commands.append(command)
        library = Path(command[command.index("--target") + 1]) / "nvidia/nccl/lib/libnccl.so.2"
        library.parent.mkdir(parents=True)
        library.touch()
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    machine.monkeypatch.setattr(sharing, "FOLDER", tmp_path)
    machine.monkeypatch.setattr(subprocess, "run", pip)
    machine.has(0)
    assert sharing.newer_nccl().status == "note" and not commands
    machine.has(2)
    for _ in range(2):  # once it is there, nothing is fetched again
        finding = sharing.newer_nccl()
        assert finding.status == "ok" and "%env COURSE_RANKS_PER_GPU=2" in finding.advice
        library = finding.advice.partition("COURSE_NCCL=")[2].split()[0]
        assert Path(library).is_file() and library in str(finding), "in one piece"
    assert len(commands) == 1 and commands[0][-1].startswith("nvidia-nccl-cu")
    assert "300 MB" in capsys.readouterr().out


def test_a_newer_nccl_that_cannot_be_had_is_a_problem_with_pips_words(
    machine: Machine, tmp_path: Path
) -> None:
    def pip(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(
            returncode=1, stdout="", stderr="ERROR: one\nERROR: no such package\n"
        )

    machine.has(1)
    machine.monkeypatch.setattr(sharing, "FOLDER", tmp_path)
    machine.monkeypatch.setattr(subprocess, "run", pip)
    finding = sharing.newer_nccl()
    assert finding.status == "problem" and finding.text.endswith("ERROR: no such package")
