"""Tests that need a GPU: NCCL's own behaviour, streams, faults, and traces that ranks leave behind.

One rank needs one GPU. With several ranks each needs a GPU of its own, or room on a shared one
(COURSE_RANKS_PER_GPU and NCCL 2.30 or newer): `python tools/gpu_session.py` runs both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import course_lib
from course_lib import Deadlock, RankError, launch
from course_lib.checks.rank import toys, training, watching
from course_lib.ledger.group import put_behind, real
from course_lib.ledger.recorder import current_recorder
from course_lib.runtime import gpus, pools

pytestmark = pytest.mark.gpu
SECOND = 1_500_000_000  # cycles of `torch.cuda._sleep` that take about a second, a little less on fast GPUs


def over_nccl(body: Callable, *args: Any, world_size: int = 1, timeout: float = 120) -> Any:
    return launch(body, *args, world_size=world_size, backend="nccl", timeout=timeout)


def need(world_size: int) -> None:
    if gpus.places() < world_size:
        pytest.skip(f"{world_size} ranks over NCCL; this machine has room for {gpus.places()}")


@pytest.fixture(autouse=True)
def no_kept_ranks() -> Iterator[None]:
    """No ranks that an earlier test left for the next call serve this test."""
    pools.end_kept("nccl")
    yield
    pools.end_kept("nccl")


def gpu_memory() -> int:
    """Megabytes that all processes together hold on the first GPU."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])


# ---- NCCL's handles


COLLECTIVES: dict[str, Callable[[int], Any]] = {
    "all_reduce": lambda n: dist.all_reduce(full(n)),
    "broadcast": lambda n: dist.broadcast(full(n), 0),
    "reduce": lambda n: dist.reduce(full(n), 0),
    "all_gather_into_tensor": lambda n: dist.all_gather_into_tensor(full(n), part()),
    "all_gather": lambda n: dist.all_gather([part() for _ in range(n)], part()),
    "reduce_scatter_tensor": lambda n: dist.reduce_scatter_tensor(part(), full(n)),
    "all_to_all_single": lambda n: dist.all_to_all_single(full(n), full(n)),
}


def full(n: int) -> torch.Tensor:
    return torch.ones(4 * n, device=course_lib.device())


def part() -> torch.Tensor:
    return torch.ones(4, device=course_lib.device())


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_synchronous_collective_is_waited_for_and_completed_in_the_ledger(
    name: str, world_size: int
) -> None:
    need(world_size)

    def body() -> None:
        COLLECTIVES[name](dist.get_world_size())

    run = over_nccl(body, world_size=world_size)
    for rank in range(world_size):
        (operation,) = run.ledger.operations(rank)
        assert operation.waited, operation
        assert operation.completed is not None, operation
        assert operation.issued <= operation.completed <= run.seconds + 0.01, operation


def test_what_nccl_hands_back_for_a_synchronous_collective() -> None:
    """Nothing, from PyTorch 2.8 on: this is why the recorder leaves an event on the stream."""

    def body() -> str:
        group = dist.group.WORLD
        handed_back = []
        inner = real(group)

        class Spy:
            def __getattr__(self, name: str) -> Any:
                method = getattr(inner, name)
                if name != "allreduce":
                    return method

                def call(*args: Any) -> Any:
                    handed_back.append(method(*args))
                    return handed_back[-1]

                return call

        put_behind(group, Spy())
        dist.all_reduce(part())
        put_behind(group, inner)
        return type(handed_back[0]).__name__

    said = over_nccl(body)[0]
    new = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 8)
    assert (said == "NoneType") == new, f"PyTorch {torch.__version__}: {said}"


def test_the_time_of_completion_is_that_of_the_stream() -> None:
    def body() -> float:
        x = part()
        dist.all_reduce(x)  # the first use of a kernel loads it, and that waits for the stream
        torch.cuda._sleep(SECOND // 2)
        began = time.monotonic()
        dist.all_reduce(x)
        asked = time.monotonic() - began
        torch.cuda.synchronize()
        return asked

    run = over_nccl(body)
    _, operation = run.ledger.operations(0)
    assert run[0] < 0.1, "the host did not go on"
    assert operation.completed - operation.issued > 0.15


def test_each_device_type_has_the_backend_that_carries_it() -> None:
    def body() -> tuple[str, str]:
        group = dist.group.WORLD
        found = (group._get_backend(torch.device(kind)) for kind in ("cuda", "cpu"))
        return tuple(type(backend).__name__ for backend in found)

    assert over_nccl(body)[0] == ("ProcessGroupNCCL", "ProcessGroupGloo")


def test_without_the_ledger_ranks_run_on_their_gpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_LEDGER", "off")

    def body() -> tuple[str, str, float]:
        x = part()
        dist.all_reduce(x)
        return str(course_lib.device()), dist.get_backend(), x.sum().item()

    where, backend, total = over_nccl(body)[0]
    assert (where, total) == ("cuda:0", 4.0) and "nccl" in backend


def test_a_barrier_waits_for_the_stream() -> None:
    def body() -> float:
        dist.barrier()
        began = time.perf_counter()
        torch.cuda._sleep(SECOND // 2)
        dist.barrier()
        return time.perf_counter() - began

    assert over_nccl(body)[0] > 0.15


# ---- PyTorch's own layers over the recorder


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(course_lib.device())


@pytest.mark.parametrize("world_size", [1, 2])
def test_ddp_over_the_ledger(world_size: int) -> None:
    need(world_size)

    def body() -> float:
        wrapped = nn.parallel.DistributedDataParallel(model())
        wrapped(torch.ones(3, 8, device=course_lib.device())).square().sum().backward()
        return wrapped.module[0].weight.grad.sum().item()

    run = over_nccl(body, world_size=world_size)
    assert len(set(run)) == 1
    reduced = run.ledger.operations(0, "all_reduce")
    assert reduced and all(operation.completed is not None for operation in reduced)


@pytest.mark.parametrize("world_size", [1, 2])
def test_fully_shard_over_the_ledger(world_size: int) -> None:
    need(world_size)

    def body() -> float:
        from torch.distributed.fsdp import fully_shard

        sharded = model()
        fully_shard(sharded)
        loss = sharded(torch.ones(3, 8, device=course_lib.device())).square().sum()
        loss.backward()
        return loss.item()

    run = over_nccl(body, world_size=world_size)
    assert len(set(run)) == 1
    if world_size > 1:  # on one rank FSDP2 sends nothing
        assert run.ledger.operations(0, "all_gather")
        assert run.ledger.operations(0, "reduce_scatter")


def test_functional_collectives_and_dtensor_over_the_ledger() -> None:
    def body() -> tuple[float, float]:
        from torch.distributed import _functional_collectives as functional
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        total = functional.all_reduce(part(), "sum", dist.group.WORLD).sum().item()
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        sharded = distribute_tensor(full(dist.get_world_size()), mesh, [Shard(0)])
        whole = sharded.redistribute(mesh, [Replicate()]).to_local()
        return total, whole.sum().item()

    assert over_nccl(body)[0] == (4.0, 4.0)


@pytest.mark.parametrize("world_size", [1, 2])
def test_fully_shard_without_a_mesh_stays_on_the_cpu_in_ranks_over_gloo(world_size: int) -> None:
    """The accelerator that PyTorch would choose for a mesh is one that these ranks do not see."""

    def body() -> tuple[int, str]:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(1)
        sharded = nn.Linear(8, 8)
        fully_shard(sharded)
        sharded(torch.ones(3, 8)).sum().backward()
        return torch.cuda.device_count(), sharded.weight.device.type

    assert launch(body, world_size=world_size, backend="gloo") == [(0, "cpu")] * world_size


def test_ranks_over_gloo_take_no_memory_of_a_gpu() -> None:
    def body() -> int:
        nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
        dist.barrier()
        return gpu_memory()

    before = gpu_memory()
    assert max(launch(body, world_size=4, backend="gloo")) <= before + 64


# ---- traces of a kept rank


def test_ranks_are_kept_while_they_are_clean() -> None:
    first = over_nccl(os.getpid)[0]
    assert over_nccl(os.getpid)[0] == first

    def patch() -> None:
        real = dist.all_reduce
        dist.all_reduce = lambda *args, **kwargs: real(*args, **kwargs)

    over_nccl(patch)
    second = over_nccl(os.getpid)[0]
    assert second != first

    def switch() -> None:
        torch.set_float32_matmul_precision("high")

    over_nccl(switch)
    assert over_nccl(os.getpid)[0] != second


def test_a_kept_rank_gives_its_gpu_memory_back() -> None:
    def body() -> int:
        before = torch.cuda.max_memory_allocated()
        torch.ones(1 << 28, device=course_lib.device())  # 1 GiB
        return before

    over_nccl(lambda: None)
    before = gpu_memory()
    assert over_nccl(body)[0] < 1 << 20
    assert over_nccl(body)[0] < 1 << 20, "the peak of the call before"
    assert gpu_memory() < before + 256


def test_one_pool_is_kept_on_the_gpus() -> None:
    need(2)
    alone = over_nccl(os.getpid)[0]
    over_nccl(os.getpid, world_size=2)
    assert over_nccl(os.getpid)[0] != alone


def test_variables_of_nccl_that_a_cell_sets_reach_the_ranks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    over_nccl(lambda: None)
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    over_nccl(lambda: dist.all_reduce(part()))
    assert "NCCL version" in capfd.readouterr().out


def test_gpus_that_are_hidden_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="PyTorch sees 0 GPUs"):
        over_nccl(lambda: None)
    assert launch(lambda: str(course_lib.device()), world_size=1)[0] == "cpu"


def test_the_trial_uses_every_gpu() -> None:
    assert gpus.run_trial().error == ""
    assert gpus.run_trial().nccl > 20000


# ---- faults


def fails(
    body: Callable, kind: type[RankError], *says: str, world_size: int = 1, within: float = 10
):
    """The launch fails with these words, in time, and the next one works."""
    over_nccl(lambda: None, world_size=world_size)  # so that the start is not counted
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        over_nccl(body, world_size=world_size, timeout=60)
    seconds = time.monotonic() - began
    message = str(caught.value)
    for words in says:
        assert words in message, message
    assert seconds < within, f"{seconds:.1f} s until: {message}"
    assert over_nccl(lambda: part().sum().item(), world_size=world_size) == [4.0] * world_size


def test_an_assertion_on_the_device_is_told() -> None:
    def body() -> float:
        table = torch.ones(4, 2, device=course_lib.device())
        row = torch.tensor([7], device=course_lib.device())
        return nn.functional.embedding(row, table).sum().item()

    fails(body, RankError, "device-side assert", "nn.functional.embedding(row, table)")


def test_an_assertion_that_nobody_looked_at_is_told() -> None:
    def body() -> int:
        table = torch.ones(4, 2, device=course_lib.device())
        nn.functional.embedding(torch.tensor([7], device=course_lib.device()), table)
        return 1

    fails(body, RankError, "device-side assert")


def test_an_error_is_told_while_the_stream_is_busy() -> None:
    def body() -> None:
        torch.cuda._sleep(20 * SECOND)
        raise ValueError("the rank's own error")

    fails(body, RankError, "the rank's own error")


def test_too_much_gpu_memory_is_told() -> None:
    def body() -> None:
        torch.empty(1 << 50, dtype=torch.uint8, device=course_lib.device())

    fails(body, RankError, "out of memory")


def test_a_rank_that_is_killed_in_a_kernel_gives_its_memory_back() -> None:
    def body() -> None:
        kept = torch.ones(1 << 28, device=course_lib.device())
        torch.cuda._sleep(20 * SECOND)
        os.kill(os.getpid(), signal.SIGKILL)
        del kept

    pools.end_kept("nccl")
    time.sleep(1)
    before = gpu_memory()
    fails(body, RankError, "killed by SIGKILL")
    pools.end_kept("nccl")
    deadline = time.monotonic() + 10
    while gpu_memory() > before + 64 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert gpu_memory() <= before + 64


def test_a_skipped_collective_is_a_deadlock() -> None:
    need(2)

    def body() -> float:
        x = part()
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        return x.sum().item()

    fails(
        body, Deadlock, "rank 0 waits for rank 1, which has finished", "in all_reduce float32[4]",
        world_size=2, within=8,
    )  # fmt: skip


def test_an_error_beside_an_unmatched_receive_is_told() -> None:
    need(2)

    def body() -> None:
        other = 1 - dist.get_rank()
        greetings = [dist.P2POp(dist.isend, part(), other), dist.P2POp(dist.irecv, part(), other)]
        for handle in dist.batch_isend_irecv(greetings):  # now they are connected: no call waits
            handle.wait()
        torch.cuda.synchronize()
        if dist.get_rank() == 1:
            dist.irecv(part(), 0).wait()
            raise ValueError("the rank's own error")
        time.sleep(0.5)

    fails(body, RankError, "the rank's own error", world_size=2)


def test_a_receive_that_nobody_meets_is_a_deadlock() -> None:
    """The first message between two ranks connects them, and the call waits for the connection."""
    need(2)

    def body() -> None:
        if dist.get_rank() == 1:
            dist.irecv(part(), 0)

    fails(
        body,
        Deadlock,
        "rank 1 waits for rank 0, which has finished",
        "in recv(src=0)",
        world_size=2,
    )


def test_a_hang_behind_which_the_host_loads_a_kernel_is_a_deadlock() -> None:
    """Loading waits for the stream and locks the driver: no thread of the rank can query it."""
    need(2)

    def body() -> float:
        x = part()
        dist.all_reduce(x)
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            dist.all_reduce(x)
            x.erfinv().tan().sinh().sum()
        return x.sum().item()

    fails(body, Deadlock, "rank 0 waits for rank 1, which has finished", world_size=2, within=8)


def test_an_exchange_outside_of_a_batch_is_a_deadlock() -> None:
    need(2)

    def body() -> float:
        other = 1 - dist.get_rank()
        arrives = torch.zeros(4, device=course_lib.device())
        handles = [dist.isend(part(), other), dist.irecv(arrives, other)]
        for handle in handles:
            handle.wait()
        return arrives.sum().item()

    fails(body, Deadlock, "batch_isend_irecv", world_size=2, within=8)


def test_messages_of_a_batch_are_under_way_until_their_handle_is_waited_for() -> None:
    need(2)

    def body() -> tuple[list[int], list[int]]:
        other = 1 - dist.get_rank()
        batch = [dist.P2POp(dist.isend, part(), other), dist.P2POp(dist.irecv, part(), other)]
        handles = dist.batch_isend_irecv(batch)
        before = current_recorder().never_waited()
        for handle in handles:
            handle.wait()
        return before, current_recorder().never_waited()

    assert list(over_nccl(body, world_size=2)) == [([0, 1], [])] * 2


# ---- checks


def test_memory_of_a_check_is_that_of_the_gpu() -> None:
    """Memory that CUDA and cuBLAS take for themselves in the first passes is not counted; a tensor's is."""

    def body() -> list[int]:
        training.warm_up({"memory": True})
        before, kept, held = watching.held_here(), [], []
        for _ in range(2):
            model = toys.build({"name": "plain", "width": 500, "seed": 0, "dtype": "float32"})
            model = model.to(course_lib.device())
            model(torch.ones(4, 500, device=course_lib.device())).sum().backward()
            kept.append(torch.empty(1_000_003, device=course_lib.device()))
            del model
            held.append(watching.held_here() - before)
        return held

    assert over_nccl(body)[0] == [4_000_012, 8_000_024]


# ---- several ranks


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_messages_and_groups(world_size: int) -> None:
    need(world_size)

    def body() -> tuple[float, float, float]:
        rank, n = dist.get_rank(), dist.get_world_size()
        here = torch.full((3,), float(rank), device=course_lib.device())
        there = torch.zeros_like(here)
        batch = [
            dist.P2POp(dist.isend, here, (rank + 1) % n),
            dist.P2POp(dist.irecv, there, (rank - 1) % n),
        ]
        for handle in dist.batch_isend_irecv(batch):
            handle.wait()
        pair = dist.new_group([0, 1])
        total = torch.ones(1, device=course_lib.device())
        if rank < 2:
            dist.all_reduce(total, group=pair)
        message = torch.full((1,), 7.0, device=course_lib.device())
        if rank == 0:
            dist.send(message, n - 1)
        if rank == n - 1:
            message.zero_()
            dist.recv(message, 0)
        return there[0].item(), total.item(), message.item()

    expected = [
        (float((r - 1) % world_size), 2.0 if r < 2 else 1.0, 7.0) for r in range(world_size)
    ]
    run = over_nccl(body, world_size=world_size)
    assert run == expected
    assert not run.ledger.unmatched()
    for rank in range(world_size):
        assert all(op.completed is not None for op in run.ledger.operations(rank, "recv"))


def test_objects_and_cpu_tensors_go_over_gloo_in_the_same_launch() -> None:
    need(2)

    def body() -> tuple[list, float]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, {"rank": dist.get_rank()})
        x = torch.ones(2)
        dist.all_reduce(x)
        return found, x.sum().item()

    assert over_nccl(body, world_size=2) == [([{"rank": 0}, {"rank": 1}], 4.0)] * 2


def test_pending_holds_no_tensor() -> None:
    def body() -> int:
        before = torch.cuda.memory_allocated()
        for _ in range(4):
            dist.all_reduce(torch.ones(1 << 20, device=course_lib.device()))
        torch.cuda.synchronize()
        assert current_recorder().handles is None or not current_recorder().handles
        return torch.cuda.memory_allocated() - before

    assert over_nccl(body)[0] <= 4 << 20
