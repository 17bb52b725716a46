"""The GPUs of this machine: how many there are, whether they work, and how many ranks share one.

Counting asks NVML, which starts nothing. Whether CUDA works is another question, because NVML also counts a
GPU whose driver is too old for this build of PyTorch, or which is too old for its kernels. So a process tries
the GPUs once (`python -m course_lib.runtime.gpus`), before ranks use them. The process is separate because a
CUDA context in the notebook's kernel would take memory from the ranks, and a failed context would stay.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

import torch

from course_lib.runtime import libraries, reach

PER_GPU = "COURSE_RANKS_PER_GPU"
SHARING = 23000  # the first NCCL, as it numbers itself, in which ranks may share a GPU (2.30)
TRIAL_SECONDS = 120
# Settings of NCCL for several ranks on one GPU (user guide, NCCL_MULTI_RANK_GPU_ENABLE). The channels of all
# ranks must fit on the GPU side by side, and NVLink's multicast (NVLS) can use a GPU only once.
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}


def gpu_count() -> int:
    """GPUs this process may use, counted without starting CUDA (by NVML)."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.device_count()


def ranks_per_gpu() -> int:
    """How many ranks share a GPU over NCCL: COURSE_RANKS_PER_GPU, or 1. ValueError if it is not a number."""
    text = os.environ.get(PER_GPU) or "1"
    if not text.isdecimal() or not 1 <= int(text) <= 16:
        raise ValueError(f"{PER_GPU} is a number of ranks from 1 to 16, not {text!r}")
    return int(text)


def places() -> int:
    """How many ranks can run over NCCL on this machine at the same time, if its GPUs work."""
    return gpu_count() * ranks_per_gpu()


@dataclass(frozen=True)
class Trial:
    """The result of processes that used the GPUs.

    error: why they could not, else ""; nccl: its version as it numbers itself, 22809 for 2.28.9, 0 if it was
    not found; peers: whether the GPUs reach each other directly instead of only through the host's memory.
    """

    error: str = ""
    nccl: int = 0
    peers: bool = True

    @property
    def nccl_text(self) -> str:
        return f"{self.nccl // 10000}.{self.nccl // 100 % 100}.{self.nccl % 100}"


_trials: dict[tuple, Trial] = {}


def trial() -> Trial:
    """The outcome of using each GPU once, and of a message between them; remembered.

    It takes as long as PyTorch takes to import, and some seconds more with several GPUs, so it runs only if
    ranks would use the GPUs. If GPUs do not reach each other directly, it sets NCCL_P2P_DISABLE for later
    ranks.
    """
    variables = ("CUDA_VISIBLE_DEVICES", *libraries.READ_ONCE)
    # A wheel that pip has replaced meanwhile is another NCCL for the processes to come.
    key = (*(os.environ.get(name) for name in variables), *libraries.wheels())
    if key not in _trials:
        tried = run_trial()
        _trials[key] = tried if tried.error else with_message(tried, gpu_count())
    return _trials[key]


def with_message(tried: Trial, gpus: int) -> Trial:
    """The trial with a message between all GPUs; if it does not arrive, without peer-to-peer."""
    environment = {
        **libraries.of_ranks(os.environ),
        "COURSE_ROLE": "trial",
        "PYTHONPATH": search_path(),
    }
    if gpus < 2 or reach.reached(gpus, environment):
        return tried
    if reach.reached(gpus, {**environment, reach.NO_PEERS: "1"}):
        os.environ[reach.NO_PEERS] = "1"
        return replace(tried, peers=False)
    return Trial(
        f"they do not reach each other over NCCL (no answer in {2 * reach.SECONDS:.0f} s, also without "
        "peer-to-peer)"
    )


def search_path() -> str:
    """This process's modules for another one, as PYTHONPATH."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def run_trial() -> Trial:
    environment = {**libraries.of_ranks(os.environ), "COURSE_ROLE": "trial"}
    command = [sys.executable, "-m", "course_lib.runtime.gpus"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS, stdin=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": search_path()},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Trial(f"CUDA did not answer within {TRIAL_SECONDS} seconds")
    lines = answer.stdout.strip().splitlines()
    if answer.returncode == 0 and lines:
        return Trial(**json.loads(lines[-1]))
    said = answer.stderr.strip().splitlines()
    return Trial(said[-1] if said else f"the trial ended with code {answer.returncode}")


def use_every_gpu() -> Trial:
    """In the trial's process: one kernel and one copy on each GPU; which NCCL PyTorch has loaded."""
    try:
        for index in range(torch.cuda.device_count()):
            ones = torch.ones(2, device=torch.device("cuda", index))
            if (ones + ones).sum().item() != 4:
                return Trial(f"GPU {index} computes 1 + 1 wrongly")
    except (RuntimeError, AssertionError) as error:
        return Trial(str(error).strip().splitlines()[0])
    return Trial(nccl=loaded_nccl())


def loaded_nccl() -> int:
    """The version of the NCCL in this process. `torch.cuda.nccl.version()` is the version of the build."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


if __name__ == "__main__":
    print(json.dumps(asdict(use_every_gpu())))
