"""Which backend carries the messages, and on which device the tensors live.

One answer holds for a whole session, so that no notebook compares a run on GPUs with one on the CPU:

    NCCL, a GPU for each rank     if four ranks or more find room on the GPUs
    gloo, on the CPU              otherwise, even with two or three GPUs

`backend=` in a call overrides it, and so does the environment variable COURSE_BACKEND. The variable is only a
wish, so if there is no room over NCCL, a line says that the run is on the CPU. COURSE_RANKS_PER_GPU lets
ranks share a GPU, which NCCL supports from version 2.30 on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from course_lib.runtime.gpus import (
    PER_GPU,
    SHARED,
    SHARING,
    gpu_count,
    places,
    ranks_per_gpu,
    trial,
)

BACKENDS = ("gloo", "nccl")
ALONE = "alone"  # for a task that needs no other rank: no process group, see `alone`
ENOUGH = 4  # ranks over NCCL from which a session uses it: most cells of the notebooks have so many
NO_PEERS = " Peer-to-peer between these GPUs does not work, so messages go slowly through the host's memory."
_said: set[str] = set()
_kept: list[str] | None = None  # where `unsaid` collects lines


def choose(world_size: int, backend: str | None = None) -> str:
    """ "nccl" or "gloo" for `world_size` ranks: the backend asked for, else the session's.

    `backend`, then the environment variable COURSE_BACKEND, override the session's. A world that is too
    large for the session's GPUs runs on the CPU, and a line says so. The same happens if the variable asks
    for NCCL where it is not available. ValueError if `backend` is "nccl" there.
    """
    asked = backend or os.environ.get("COURSE_BACKEND") or None
    if asked not in (None, *BACKENDS):
        where = "backend=" if backend else "the environment variable COURSE_BACKEND is "
        raise ValueError(
            f"{where}{asked!r} is not known. Use 'gloo' (CPU) or 'nccl' (one GPU per rank)"
        )
    if asked == "nccl":
        missing = missing_for_nccl(world_size)
        if missing and backend:
            raise ValueError(missing)
        if missing:
            say(unfulfilled(world_size))
        return "gloo" if missing else "nccl"
    return "gloo" if asked == "gloo" else of_session(world_size)


def of_session(world_size: int) -> str:
    """The session's backend for a world of this size. The first time, a line says which it is, and why."""
    gpus = gpu_count() if dist.is_nccl_available() else 0
    if not gpus:
        return "gloo"
    room = places()
    if room < ENOUGH:
        used = (
            "it is used"
            if gpus == 1
            else f"{'both' if gpus == 2 else 'all'} are used, one rank each,"
        )
        say(
            f'{count(gpus)}: {used} in the sections "On your GPUs". Other cells need {ENOUGH} ranks, so '
            "they run on the CPU with gloo."
        )
        return "gloo"
    broken = broken_gpus()
    if broken:
        say(f"{broken} Ranks run on the CPU with gloo.")
        return "gloo"
    if world_size > room:
        say(no_room(world_size))
        return "gloo"
    slow = "" if trial().peers else NO_PEERS
    if ranks_per_gpu() > 1:
        say(
            f"{count(gpus)}, shared by {ranks_per_gpu()} ranks each over NCCL {trial().nccl_text}. They "
            f"take turns, so bytes, values and hangs are right, but times are not.{slow}"
        )
    else:
        say(
            f"{count(gpus)}: ranks run over NCCL, one per GPU, but more than {room} ranks run on the "
            f"CPU.{slow}"
        )
    return "nccl"


def missing_for_nccl(world_size: int) -> str:
    """Why `world_size` ranks cannot run over NCCL here; "" if they can."""
    gpus = gpu_count()
    if not (dist.is_nccl_available() and gpus):
        return (
            "backend 'nccl' needs NVIDIA GPUs and a PyTorch built with CUDA, but here PyTorch sees "
            f"{count(gpus)}. Leave `backend` out to run on the CPU with gloo."
        )
    if places() < world_size:
        each = (
            "one each" if ranks_per_gpu() == 1 else f"{ranks_per_gpu()} ranks on each ({PER_GPU})"
        )
        return (
            f"{world_size} ranks over NCCL need {-(-world_size // ranks_per_gpu())} GPUs, {each}, but this "
            f"machine has {gpus}. Use world_size={places()}, or backend='gloo' to run {world_size} ranks on "
            "the CPU."
        )
    return broken_gpus()


def unfulfilled(world_size: int) -> str:
    """The line for a session whose COURSE_BACKEND asks for NCCL, and which cannot have it for this world."""
    if not (dist.is_nccl_available() and gpu_count()):
        return (
            f"COURSE_BACKEND is 'nccl', but PyTorch sees {count(gpu_count())} here that NCCL could use, so "
            "ranks run on the CPU with gloo."
        )
    if places() < world_size:
        return no_room(world_size)
    return f"{broken_gpus()} Ranks run on the CPU with gloo."


def no_room(world_size: int) -> str:
    return f"{world_size} ranks, but room for {places()} over NCCL, so this run is on the CPU with gloo."


def broken_gpus() -> str:
    """Why the GPUs cannot be used in the requested way; "" if they can."""
    tried = trial()
    if tried.error:
        return (
            f"The GPUs were counted, but a trial on them failed: {tried.error}. Run "
            "`python -m course_lib.doctor`."
        )
    if ranks_per_gpu() > 1 and tried.nccl < SHARING:
        return (
            f"{PER_GPU}={ranks_per_gpu()} needs NCCL 2.30 or newer, but PyTorch has loaded "
            f"{tried.nccl_text if tried.nccl else 'none that tells its version'}. `python -m "
            "course_lib.doctor --nccl --get` installs one only for the ranks."
        )
    return ""


@contextlib.contextmanager
def unsaid() -> Iterator[list[str]]:
    """The lines that would be printed within it, in a list; the session's next run still prints them."""
    global _kept
    before, _kept = _kept, []
    try:
        yield _kept
    finally:
        _kept = before


def say(line: str) -> None:
    """Print a line once a session."""
    if _kept is not None:
        _kept.append(line)
    elif line not in _said:
        _said.add(line)
        print(line)


def count(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus != 1)}"


# ---- in a rank


def take_gpu(rank: int) -> None:
    """Make the rank's GPU the current one. Ranks that share one get the settings that NCCL needs for it."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    if ranks_per_gpu() > 1:
        for name, value in SHARED.items():
            os.environ.setdefault(name, value)


def on_nccl(group: dist.ProcessGroup | None = None) -> bool:
    """Whether CUDA tensors of this group go over NCCL, whatever the group calls its backend.

    It is "nccl" if the ledger records; "cpu:gloo,cuda:nccl" without it; "undefined" for a group that
    `init_process_group()` made without naming a backend, as programs under torchrun do.
    """
    name = dist.get_backend(group)
    if name != "undefined":
        return "nccl" in name
    return torch.device("cuda") in (group or dist.group.WORLD)._device_types


def device() -> torch.device:
    """The device of this rank's tensors: its GPU under NCCL, else the CPU.

    Outside of a rank it is the CPU, on which ranks hand back their tensors.
    """
    if dist.is_available() and dist.is_initialized() and on_nccl():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return torch.device("cuda", index)
    return torch.device("cpu")


def synchronize() -> None:
    """Wait until this rank's GPU has done the work of the lines before. On the CPU it is done anyway.

    A clock read without this wait measures how long it took to *ask* for the work. Messages that were
    begun, but for which the rank has not yet waited, can go on.
    """
    if device().type == "cuda":
        torch.cuda.current_stream(device()).synchronize()
