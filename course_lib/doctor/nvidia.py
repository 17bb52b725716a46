"""GPUs, the links between them, NCCL, and the backend that follows from these."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import torch
import torch.distributed as dist
from torch.cuda import nccl as cuda_nccl

from course_lib.doctor.finding import Finding
from course_lib.runtime.backend import choose, unsaid
from course_lib.runtime.gpus import gpu_count, trial


def gpus() -> Finding:
    listed = ask_nvidia("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    names = [line.strip() for line in listed.splitlines() if line.strip()]
    usable = gpu_count()
    if not names and not usable:
        return Finding("ok", "GPUs", "none, so the ranks run on the CPU, where all notebooks work")
    text = (
        "\n".join(f"{i}: {name}" for i, name in enumerate(names))
        or f"{usable}, but nvidia-smi is missing"
    )
    if torch.version.cuda is None:
        return Finding(
            "note", "GPUs", f"{text}\nPyTorch {torch.__version__} is built without CUDA, so they are not "
            "used",
            "Install the CUDA build: make setup COURSE_TORCH=cuda, or pip install torch elsewhere.",
        )  # fmt: skip
    driver = re.search(r"CUDA Version: (\d+)\.(\d+)", ask_nvidia())
    if driver and int(driver[1]) < int(torch.version.cuda.split(".")[0]):
        return Finding(
            "problem", "GPUs",
            f"{text}\nthe driver knows CUDA {driver[1]}.{driver[2]}, but PyTorch is built for CUDA "
            f"{torch.version.cuda}, so the GPUs cannot be used",
            "Update the NVIDIA driver, or install a PyTorch built for the driver's CUDA version.",
        )  # fmt: skip
    if usable < len(names):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else "PyTorch sees fewer"
        return Finding(
            "note", "GPUs", f"{text}\n{usable} of {len(names)} can be used, because {why}"
        )
    if usable and (error := trial().error):
        return Finding(
            "problem", "GPUs", f"{text}\nthey were counted, but a trial on them failed: {error}",
            "Ranks run on the CPU with gloo until this is fixed. Check the driver's version, and whether "
            "this PyTorch has code for these GPUs.",
        )  # fmt: skip
    return Finding("ok", "GPUs", text)


def gpu_links() -> Finding | None:
    """How the GPUs are joined: NV# is NVLink, PIX to SYS are PCIe over ever longer ways."""
    if gpu_count() < 2:
        return None
    # The table has a column for each GPU, and further ones for network cards and cores.
    lines = [line.split() for line in ask_nvidia("topo", "-m").splitlines()]
    lines = [line for line in lines if len(line) > 1 and re.fullmatch(r"GPU\d+", line[0])]
    rows = [line for line in lines if not line[1].startswith("GPU")]  # without the heading
    rows = [" ".join(f"{cell:<6}" for cell in row[: len(rows) + 1]).rstrip() for row in rows]
    if not rows:
        return Finding(
            "note", "GPU links", "nvidia-smi topo -m does not say how they are connected"
        )
    return Finding("ok", "GPU links", "\n".join(rows))


def nccl() -> Finding:
    if not dist.is_nccl_available():
        return Finding("ok", "NCCL", "not in this build of PyTorch, but needed only with GPUs")
    if gpu_count() and (loaded := trial()).nccl:
        return Finding("ok", "NCCL", loaded.nccl_text)
    version = cuda_nccl.version()
    text = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return Finding("ok", "NCCL", f"{text}, the version PyTorch was built with")


def ask_nvidia(*arguments: str) -> str:
    """The output of nvidia-smi; "" if it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def backends() -> Finding:
    forced, chosen = os.environ.get("COURSE_BACKEND"), {}
    reasons: list[str] = []
    advice = f"COURSE_BACKEND is {forced!r}. Unset it to have the backend chosen for each run."
    for world_size in (2, 4, 8):
        try:
            with unsaid() as lines:
                chosen[world_size] = choose(world_size)
        except ValueError as error:
            return Finding("problem", "backend", f"{world_size} ranks: {error}", advice)
        reasons = reasons or lines  # those of larger worlds add nothing to the table
    text = ", ".join(f"{world_size} ranks: {name}" for world_size, name in chosen.items())
    text = "\n".join([text, *reasons])
    if forced == "nccl" and "nccl" not in chosen.values():
        return Finding("problem", "backend", text, advice)
    return Finding("ok", "backend", text)
