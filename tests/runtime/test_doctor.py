"""The doctor sees what is wrong and says what to do; the link's two numbers fit the measurements."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from course_lib import RankError, doctor
from course_lib.doctor import capability, machine, nvidia, software, speed
from course_lib.doctor.finding import WIDTH

GPU_LINE = "NVIDIA H100 80GB HBM3, 81559 MiB, 550.54.15"
TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t32-63\n"


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program called nvidia-smi that knows one GPU and a driver for CUDA 12.4."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '  *compute_cap) printf "Tesla P100-PCIE-16GB, 6.0\\nTesla T4, 7.5\\n" ;;\n'
        f'  --query-gpu*) echo "{GPU_LINE}" ;;\n'
        f"  topo) printf '{TOPOLOGY}' ;;\n"
        '  *) echo "| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


def test_the_command_reports_on_everything_and_its_exit_code_says_whether_all_is_well(tmp_path):
    command = [sys.executable, "-m", "course_lib.doctor"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    subjects = ("system", "Python", "PyTorch", "course", "GPUs", "NCCL", "backend", "two ranks")
    for subject in (*subjects, "/dev/shm", "memory", "cores", "working folder", "open files"):
        assert f" {subject} " in done.stdout, subject
    assert "No problem found." in done.stdout or done.returncode == 1
    assert done.returncode == (1 if "\nproblem " in "\n" + done.stdout else 0)
    assert "latency alpha" in done.stdout and "GB/s" in done.stdout
    assert done.stderr == ""


def test_another_copy_of_the_course_on_the_path_is_named(tmp_path, monkeypatch):
    """A copy that comes first hides the installed package. An equal one does no harm."""
    own = Path(doctor.__file__).parents[1]
    monkeypatch.setattr(sys, "path", [str(own.parent)])
    assert (software.course().status, software.course().text) == ("ok", str(own))
    copy = tmp_path / "course_lib"
    shutil.copytree(own, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(own.parent)])
    assert software.course().status == "ok"
    (copy / "unfinished.py").unlink()
    finding = software.course()
    assert finding.status == "note" and str(copy) in finding.text and "PYTHONPATH" in finding.advice


def test_report_prints_in_a_notebook_and_shows_no_value(monkeypatch, capsys):
    def refused():
        raise RankError("rank 1 died")

    monkeypatch.setattr(doctor, "measure_link", refused)
    shown = [finding for finding in doctor.examine() if finding.subject == "two ranks"]
    assert shown[0].status == "problem" and "rank 1 died" in shown[0].text
    assert doctor.report() is None
    assert "to be fixed: two ranks" in capsys.readouterr().out
    assert doctor.main() == 1


@pytest.mark.parametrize("version", ["1.13.1", "2.5.1", "2.0.0+cu118"])
def test_an_old_pytorch_is_a_problem(version):
    finding = software.pytorch(version)
    assert finding.status == "problem" and "torch>=2.6" in finding.advice


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.7.0a0+79aa17489c.nv25.4", "3.0.0"])
def test_a_recent_pytorch_is_fine(version):
    assert software.pytorch(version).status == "ok"


def test_a_pytorch_whose_fully_shard_needs_gpus_is_a_note():
    finding = software.pytorch("2.6.0+cu124")
    assert finding.status == "note" and "`distribute` of 13" in finding.text
    assert "2.7 or newer" in finding.advice


@pytest.mark.parametrize(
    ("total", "free", "says", "to_do"),
    [
        (64 << 20, 64 << 20, "too small", "--shm-size"),
        (8 << 30, 1 << 20, "nearly full", "ls -la"),
    ],
)
def test_small_or_full_shared_memory(monkeypatch, total, free, says, to_do):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (total, total - free, free))
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    finding = machine.shared_memory()
    assert finding.status == "note" and says in finding.text and to_do in finding.advice
    # With two GPUs it is worse: without it NCCL between them fails.
    monkeypatch.setattr(machine, "gpu_count", lambda: 2)
    assert machine.shared_memory().status == "problem"


def test_missing_and_ample_shared_memory(monkeypatch, tmp_path):
    assert machine.shared_memory(str(tmp_path / "none")).text == "missing"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (8 << 30, 0, 8 << 30))
    assert machine.shared_memory().status == "ok"


def test_a_folder_that_cannot_be_written_to():
    finding = machine.folder("/proc/self")  # not even root can make a file there
    assert finding.status == "problem" and "copy the course" in finding.advice


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_cured_by_another_folder(monkeypatch, tmp_path, number):
    def full(**_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    finding = machine.folder(str(tmp_path))
    assert finding.status == "problem" and "make room on the disk" in finding.advice
    assert "copy the course" not in finding.advice


def test_a_folder_that_can_be_written_to_is_left_empty(tmp_path):
    assert machine.folder(str(tmp_path)).status in ("ok", "note")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [(100, 4096), (512, resource.RLIM_INFINITY)])
def test_few_open_files(monkeypatch, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda which: limit)
    finding = machine.open_files()
    assert finding.status == ("problem" if limit[0] < 256 else "note")
    assert "ulimit -n" in finding.advice


def test_a_container_with_little_memory(monkeypatch):
    answers = {"/sys/fs/cgroup/memory.max": 1 << 30, "/sys/fs/cgroup/memory.current": 700 << 20}
    monkeypatch.setattr(machine, "first_number", lambda path, other: answers[path])
    finding = machine.memory()
    assert finding.status == "problem"
    assert "324 MB free of the 1.0 GB this container can use" in finding.text


@pytest.mark.parametrize("forced", ["mpi", "nccl"])
def test_a_backend_that_cannot_be_had(monkeypatch, forced):
    if forced == "nccl" and torch.cuda.device_count() >= 2:
        pytest.skip("this machine can have NCCL with two ranks")
    monkeypatch.setenv("COURSE_BACKEND", forced)
    finding = nvidia.backends()
    assert finding.status == "problem" and "COURSE_BACKEND" in finding.advice


def test_gpus_that_this_pytorch_cannot_use(nvidia_smi, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    finding = nvidia.gpus()
    assert finding.status == "note" and "H100" in finding.text and "CUDA build" in finding.advice


def test_a_driver_that_is_too_old(nvidia_smi, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    finding = nvidia.gpus()
    assert finding.status == "problem"
    assert "CUDA 12.4" in finding.text and "Update the NVIDIA driver" in finding.advice


def test_gpus_hidden_by_the_environment(nvidia_smi, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(nvidia, "gpu_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = nvidia.gpus()
    assert (
        finding.status == "note"
        and "0 of 1 can be used, because CUDA_VISIBLE_DEVICES" in finding.text
    )


def test_links_between_gpus(nvidia_smi, monkeypatch):
    monkeypatch.setattr(nvidia, "gpu_count", lambda: 2)
    finding = nvidia.gpu_links()
    assert finding is not None
    assert [line.split() for line in finding.text.splitlines()] == [
        ["GPU0", "X", "NV18"],
        ["GPU1", "NV18", "X"],
    ]
    monkeypatch.setattr(nvidia, "gpu_count", lambda: 1)
    assert nvidia.gpu_links() is None


def test_without_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.ask_nvidia("topo", "-m") == ""


@pytest.mark.gpu
def test_the_gpus_of_this_machine():
    finding = nvidia.gpus()
    assert torch.cuda.get_device_name(0) in finding.text
    assert capability.gpu_code() is None, "this PyTorch was installed for this machine"


@pytest.mark.parametrize(
    ("compiled", "gpu", "runs"),
    [
        (["sm_70", "sm_75", "sm_80", "sm_90"], "6.0", False),  # Kaggle's P100
        (["sm_70", "sm_75", "sm_80", "sm_90"], "7.5", True),
        (["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"], "7.0", False),  # a V100
        (["sm_80"], "8.9", True),  # later, of the same major number
        (["sm_80", "sm_86"], "8.0", True),
        (["sm_86"], "8.0", False),  # earlier
        (["sm_80"], "9.0", False),  # of another major number
        (["sm_80", "compute_80"], "12.0", True),  # the driver translates
        (["sm_90a", "compute_90a"], "9.0", True),
        (["sm_90a", "compute_90a"], "10.0", False),  # for that GPU alone
        (["sm_120"], "12.0", True),
        (["gfx90a"], "9.0", False),
    ],
)
def test_which_code_runs_on_which_gpu(compiled, gpu, runs):
    assert capability.runs_on(compiled, gpu) is runs


def test_a_gpu_for_which_pytorch_was_not_built(nvidia_smi, monkeypatch):
    """The ranks run on the CPU there, as the line about the GPUs says; this line says why."""
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90"])
    finding = capability.gpu_code()
    assert finding is not None and finding.status == "note"
    assert "no code for Tesla P100-PCIE-16GB (compute capability 6.0), only" in finding.text
    assert "T4 x2" in finding.advice


@pytest.mark.parametrize("compiled", [["sm_60", "sm_75"], []])
def test_gpus_for_which_pytorch_was_built_and_a_pytorch_without_cuda(
    nvidia_smi, monkeypatch, compiled
):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: compiled)
    assert capability.gpu_code() is None


# --- limits and permissions of the system


def test_a_system_without_handles_of_processes(monkeypatch):
    def refused(pid):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refused)
    finding = software.process_handles()
    assert finding is not None and finding.status == "note" and "pidfd_open" in finding.text


def test_a_system_with_handles_of_processes(monkeypatch):
    null = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(os, "pidfd_open", lambda pid: null)
    assert software.process_handles() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(null)


@pytest.mark.parametrize("forbidden", [True, False])
def test_a_pytorch_that_is_compiled_again_and_again(monkeypatch, tmp_path, forbidden):
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    module = tmp_path / "torch" / "__init__.py"
    module.parent.mkdir()
    module.write_text("")
    finding = software.compiled(str(module))
    assert finding is not None and finding.status == "note"
    assert ("PYTHONDONTWRITEBYTECODE" in finding.text) == forbidden
    assert finding.advice == f"Once: python -m compileall -q {module.parent}"
    subprocess.run([sys.executable, *finding.advice.split()[2:]], check=True)
    assert software.compiled(str(module)) is None


def test_ranks_that_cannot_be_forked_are_a_finding_and_not_a_traceback(monkeypatch):
    def refused():
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(doctor, "measure_link", refused)
    finding = doctor.two_ranks()
    assert finding.status == "problem" and "Connection reset by peer" in finding.text


def test_a_long_line_is_wrapped_and_its_advice_stands_below():
    lines = str(doctor.Finding("note", "subject", "word " * 30, "do " * 60)).splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= WIDTH
    assert sum("->" in line for line in lines) == 1


# --- alpha and beta ------------------------------------------------------------------------------


def test_fit_recovers_latency_and_bandwidth(seed):
    rng = random.Random(seed)
    for _ in range(100):
        alpha, beta = 10 ** rng.uniform(-6, -2), 10 ** rng.uniform(-11, -8)
        exact = [(n, alpha + beta * n) for n in speed.SIZES]
        assert speed.fit(exact) == pytest.approx((alpha, beta), rel=1e-6)
        noisy = [(n, seconds * rng.uniform(0.98, 1.02)) for n, seconds in exact]
        for n, seconds in exact:
            found_alpha, found_beta = speed.fit(noisy)
            assert found_alpha + found_beta * n == pytest.approx(seconds, rel=0.1)


def test_fit_stays_positive_when_noise_hides_the_slope():
    alpha, beta = speed.fit([(4, 2.02e-3), (1 << 20, 2e-3), (1 << 22, 1.98e-3)])
    assert beta == pytest.approx(0.01 * 1.98e-3 / (1 << 22))
    assert alpha + beta * (1 << 22) == pytest.approx(2e-3, rel=0.02)


def test_fit_stays_positive_when_noise_hides_the_latency():
    alpha, beta = speed.fit([(1 << 20, 0.9e-3), (1 << 21, 2e-3), (1 << 22, 4.2e-3)])
    assert alpha == pytest.approx(0.01 * 0.9e-3)
    assert beta * (1 << 21) == pytest.approx(2e-3, rel=0.1)


def test_fit_needs_two_sizes():
    with pytest.raises(ValueError, match="two different sizes"):
        speed.fit([(4, 1e-3), (4, 2e-3)])


def test_measure_link_plays_real_messages(backend, require_ranks):
    require_ranks(2)
    link = speed.measure_link(backend, sizes=(4, 1 << 12, 1 << 20))
    assert [nbytes for nbytes, _ in link.table] == [4, 1 << 12, 1 << 20]
    assert all(seconds > 0 for _, seconds in link.table)
    assert link.alpha > 0 and link.bandwidth > 0 and link.backend == backend
    assert link.seconds(1 << 20) == pytest.approx(link.alpha + link.beta * (1 << 20))


def test_the_doctor_runs_when_the_checks_and_the_algorithms_are_broken():
    for file in Path(str(doctor.__file__)).parent.glob("*.py"):
        source = file.read_text()
        assert "course_lib.checks" not in source and "course_lib.collectives" not in source
