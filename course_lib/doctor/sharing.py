"""Can several ranks share a GPU over NCCL? `python -m course_lib.doctor --nccl`

The course needs four ranks, and NCCL used to take a GPU for each. From 2.30 on, ranks can share one
(NCCL user guide, NCCL_MULTI_RANK_GPU_ENABLE, "experimental"). PyTorch's wheels before 2.14 bring an older
NCCL. With `--get` the doctor installs a newer one into a folder of its own. It changes no package:
COURSE_NCCL names the file, and only the ranks load it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib.doctor.finding import Finding
from course_lib.runtime import gpus, libraries
from course_lib.runtime.backend import ENOUGH, count
from course_lib.runtime.errors import LaunchError, RankError
from course_lib.runtime.gpus import PER_GPU
from course_lib.runtime.launch import launch

WHEEL = "2.30.7"
SIZE = "300 MB"
FOLDER = Path("~/.cache/course_lib/nccl")


def shared_gpus() -> Finding:
    """Whether ranks can share this machine's GPUs, from a trial with two ranks on one GPU."""
    machine = gpus.gpu_count()
    if not machine or not dist.is_nccl_available():
        return Finding(
            "ok",
            "shared GPUs",
            "no GPU that this PyTorch can use, so ranks run on the CPU with gloo",
        )
    tried = gpus.trial()
    if tried.error:
        return Finding("problem", "shared GPUs", f"a trial on the GPUs failed: {tried.error}")
    text = f"{count(machine)}, NCCL {tried.nccl_text}"
    if tried.nccl < gpus.SHARING:
        return Finding(
            "note",
            "shared GPUs",
            f"{text}, so each rank needs its own GPU",
            how_to_share(machine),
        )
    share = gpus.ranks_per_gpu()
    if share == 1:
        return Finding(
            "ok", "shared GPUs", f"{text}, so ranks can share a GPU", setting(ranks_for(machine))
        )
    try:
        ranks = min(gpus.places(), ENOUGH)
        totals = launch(add_up, world_size=ranks, backend="nccl", timeout=60)
    except (RankError, LaunchError, ValueError) as error:
        return Finding(
            "problem", "shared GPUs", f"{text}, but a trial with {share} ranks per GPU failed: {error}",
            "Sharing is experimental in NCCL. Without COURSE_RANKS_PER_GPU, everything runs on the CPU "
            "instead.",
        )  # fmt: skip
    right = totals == [float(ranks)] * ranks
    said = f"{text}, and {ranks} ranks, {share} per GPU, have added up a tensor"
    return Finding(
        "ok" if right else "problem", "shared GPUs", said + ("" if right else ", wrongly")
    )


def add_up() -> float:
    ones = torch.ones(1000, device=torch.device("cuda", torch.cuda.current_device()))
    dist.all_reduce(ones)
    return ones.mean().item()


def ranks_for(machine: int) -> int:
    """The number of ranks on each of these GPUs that is enough for a session."""
    return max(2, -(-ENOUGH // machine))


def how_to_share(machine: int) -> str:
    return (
        f"`python -m course_lib.doctor --nccl --get` gets NCCL {WHEEL}, about {SIZE}, only for the ranks. "
        f"It then prints the lines to type, including {PER_GPU}={ranks_for(machine)}. NCCL calls sharing a "
        "GPU experimental."
    )


def setting(ranks: int) -> str:
    return f"In the notebook: %env {PER_GPU}={ranks}"


def newer_nccl() -> Finding:
    """Install NCCL's wheel into FOLDER, unless it is there; the finding has the lines for a notebook."""
    machine = gpus.gpu_count()
    if not machine:
        return Finding("note", "NCCL", "no GPU that this PyTorch can use, so nothing was installed")
    cuda, folder = (torch.version.cuda or "12").split(".")[0], FOLDER.expanduser() / WHEEL
    library = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    wheel = f"nvidia-nccl-cu{cuda}=={WHEEL}"
    if not library.is_file():
        print(f"Installing {wheel}, about {SIZE}, into {folder} ...", flush=True)
        options = ["--quiet", "--no-deps", "--target", str(folder)]
        command = [sys.executable, "-m", "pip", "install", *options, wheel]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode or not library.is_file():
            said = answer.stderr.strip().splitlines() or ["it said nothing"]
            return Finding("problem", "NCCL", f"pip could not install {wheel}: {said[-1]}")
    lines = f"%env {libraries.NCCL}={library} and %env {PER_GPU}={ranks_for(machine)}"
    return Finding(
        "ok", "NCCL", f"{WHEEL} is in {folder}", f"In the notebook, each on its own line: {lines}"
    )
