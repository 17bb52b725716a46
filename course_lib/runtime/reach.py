"""Do the GPUs of this machine reach each other? Some do not, and then the first all-reduce hangs.

On some machines with GPUs on PCIe the copies from one GPU to another, "peer-to-peer", are broken, and NCCL
waits for ever (NVIDIA/nccl issues 631, 667 and 1999). NCCL_P2P_DISABLE=1 sends them through the host's
memory. So a message is tried, in separate processes, before ranks run on several GPUs:

    python -m course_lib.runtime.reach nccl FILE RANK SIZE      one of SIZE processes, which meet at FILE
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

NO_PEERS = "NCCL_P2P_DISABLE"
SECONDS = 20.0  # for the message, and as many again for the start of the processes
NUMEL = 1 << 18  # float32: 1 MB


def reached(gpus: int, environment: Mapping[str, str], backend: str = "nccl") -> bool:
    """Whether one process on each GPU can add up a megabyte with the others. Every process is ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "course_lib.runtime.reach", backend, f"{folder}/meet"]
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(gpus)], env=dict(environment), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for rank in range(gpus)
        ]  # fmt: skip
        deadline = time.monotonic() + 2 * SECONDS
        try:
            return all(
                [process.wait(max(0.1, deadline - time.monotonic())) == 0 for process in processes]
            )
        except subprocess.TimeoutExpired:
            return False
        finally:
            for process in processes:
                process.kill()
                process.wait()


def add_up(backend: str, meet: str, rank: int, size: int) -> None:
    """In one of the processes: an all-reduce with the others. AssertionError if the sum is wrong."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store, limit = dist.FileStore(os.path.abspath(meet), size), timedelta(seconds=SECONDS)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    ones = torch.ones(NUMEL, device=device)
    dist.all_reduce(ones)
    assert ones.eq(size).all(), "the sum is wrong"
    # A process that ends takes its memory along, from which another GPU may still be reading.
    store.set(f"done {rank}", "")
    store.wait([f"done {other}" for other in range(size)], limit)
    # Without destroying the group: with broken peers that could hang as well.
    os._exit(0)


if __name__ == "__main__":
    name, file, own, count = sys.argv[1:]
    add_up(name, file, int(own), int(count))
