"""MPS for a GPU session: with it the kernels of ranks that share a GPU run side by side.

Without it they take turns, and a message between two ranks of a GPU takes milliseconds. The server is one of
our own, with its own folder; no setting of the card is changed, and the server ends with the session.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTROL = "nvidia-cuda-mps-control"
SECONDS = 20  # for the server to start or to end
TRIAL = 60  # for a trial, which imports PyTorch in three processes
MESSAGES = """
import time, torch, torch.distributed as dist
from course_lib import device, launch, synchronize

def messages(count=100):
    x = torch.ones(1, device=device())
    dist.all_reduce(x)
    synchronize()
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x)
    synchronize()
    return (time.perf_counter() - began) / count

print(max(launch(messages, world_size=2, backend="nccl")))
"""


@contextlib.contextmanager
def server(folder: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Start an MPS server; the variables by which programs find it, or {} if there is none here."""
    program = shutil.which(CONTROL, path=environment.get("PATH"))
    if program is None:
        yield {}
        return
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    own = {**environment, **variables}
    try:
        started = subprocess.run(
            [program, "-d"], env=own, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        yield {}
        return
    try:
        yield variables if started.returncode == 0 else {}
    finally:
        if started.returncode == 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [program], env=own, input=b"quit\n", capture_output=True, timeout=SECONDS
                )


def seconds_a_message(environment: Mapping[str, str]) -> float | None:
    """Of two ranks on one GPU; None if they did not finish."""
    command = [sys.executable, "-c", MESSAGES]
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    own = {**environment, "COURSE_RANKS_PER_GPU": "2", "CUDA_VISIBLE_DEVICES": first}
    try:
        answer = subprocess.run(
            command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=TRIAL
        )
    except subprocess.TimeoutExpired:
        return None
    lines = answer.stdout.split()
    return float(lines[-1]) if answer.returncode == 0 and lines else None


def faster(
    environment: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """The variables of the faster of the two ways, and a sentence with both times."""
    if not variables:
        return {}, "no MPS here: ranks that share a GPU take turns"
    without, beside = (
        seconds_a_message(environment),
        seconds_a_message({**environment, **variables}),
    )
    if beside is None:
        return {}, "MPS is here, and messages did not arrive with it: it is not used"
    said = "did not arrive" if without is None else f"took {1e3 * without:.3f} ms"
    if without is not None and without <= beside:
        return {}, f"messages {said} without MPS and {1e3 * beside:.3f} ms with it: it is not used"
    return dict(
        variables
    ), f"messages {said} without MPS and {1e3 * beside:.3f} ms with it: it is used"
