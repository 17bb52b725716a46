"""launch: arguments, results, leaks (none), and the errors of wrong calls."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

import course_lib
from course_lib import LaunchError, RankError, launch
from course_lib.runtime import load
from course_lib.runtime.gpus import places

CASES = [1, 2, 3, 4, 8]


def sum_of_ranks(scale: float = 1.0) -> float:
    t = torch.full((3,), float(dist.get_rank()) * scale, device=course_lib.device())
    dist.all_reduce(t)
    return t.sum().item()


@pytest.mark.parametrize("world_size", [*CASES, 16])
def test_results_come_in_order_of_rank(
    world_size: int, backend: str, require_ranks: Callable[[int], None]
) -> None:
    require_ranks(world_size)
    run = launch(lambda: dist.get_rank(), world_size=world_size, backend=backend)
    assert list(run) == list(range(world_size))
    run = launch(sum_of_ranks, 2.0, world_size=world_size, backend=backend)
    assert list(run) == [3 * 2.0 * sum(range(world_size))] * world_size
    assert run.backend == backend
    assert run.seconds > 0
    assert [len(run.ledger.operations(r)) for r in range(world_size)] == [1] * world_size


def policies() -> set[int]:
    """How the scheduler treats this rank's threads: Python's, and those of gloo."""
    dist.barrier()
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


def test_no_thread_of_a_rank_interrupts_another_when_it_is_woken() -> None:
    """Else gloo's thread for messages spins on the core that the holder of a connection's lock needs."""
    assert list(launch(policies, world_size=2)) == [{os.SCHED_BATCH}] * 2
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "the caller's own process is left alone"


def test_a_host_that_forbids_it_has_ranks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def forbidden(_: int, policy: int, __: object) -> None:
        asked.append(policy)
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    load.take_turns()
    assert asked == [os.SCHED_BATCH]
    monkeypatch.delattr(os, "SCHED_BATCH")
    load.take_turns()
    assert len(asked) == 1, "a system without the policy is not asked for it"


def test_keyword_arguments_reach_the_function() -> None:
    assert list(launch(sum_of_ranks, scale=3.0, world_size=2)) == [9.0, 9.0]


def make_notebook_like() -> dict:
    """A namespace like a notebook's: functions here are pickled by value."""
    space: dict = {"__name__": "__main__"}
    code = """
import math
import torch
import torch.distributed as dist
from dataclasses import dataclass

FACTOR = 3

def helper(x):
    return x * FACTOR + math.floor(0.5)

class Base:
    def __init__(self, x):
        self.x = x
    def value(self):
        return self.x

class Child(Base):
    def __init__(self, x):
        super().__init__(x)
    def value(self):
        return super().value() + dist.get_rank()

@dataclass
class Box:
    tensor: torch.Tensor

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad

def closure(n):
    def inner(x):
        return helper(x) + n
    return inner

def body():
    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    return Child(10).value(), Box(x.grad), closure(1)(2)
"""
    exec(compile(code, "<cell>", "exec"), space)
    return space


def test_notebook_definitions_travel() -> None:
    space = make_notebook_like()
    for rank, (value, box, inner) in enumerate(launch(space["body"], world_size=2)):
        assert value == 10 + rank
        assert torch.equal(box.tensor, torch.full((2,), 2.0))
        assert inner == 7
    assert list(launch(space["closure"](5), 1, world_size=2)) == [8, 8]


def test_tensors_of_every_make_go_in_and_out(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(3, 4, dtype=torch.complex64, generator=generator)
    for sent in (z.conj(), z.conj().imag, z.mH, z.real.to_sparse(), z.real[:, ::2]):
        (got,) = launch(lambda sent: sent, sent, world_size=1)
        assert torch.equal(got.to_dense(), sent.to_dense().clone())
    (meta,) = launch(lambda: torch.empty(3, 5, device="meta"), world_size=1)
    assert meta.is_meta and meta.shape == (3, 5)
    rows = [torch.randn(length, 2, generator=generator) for length in (2, 5)]
    (nested,) = launch(lambda: torch.nested.as_nested_tensor(rows), world_size=1)
    assert all(torch.equal(*pair) for pair in zip(nested.unbind(), rows, strict=True))


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64],
)
def test_tensors_go_in_and_out_of_band(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sent = (torch.randn(5, 7, generator=generator) * 3).to(dtype)
    views = {"t": sent.t(), "empty": sent[:0], "scalar": sent[0, 0], "gap": sent[:, ::2]}
    for back in launch(lambda v: {**v, "same": v["t"]}, views, world_size=2):
        for name, tensor in views.items():
            assert torch.equal(back[name], tensor), name
            assert back[name].dtype == dtype
    assert launch(lambda: torch.ones(2, requires_grad=True), world_size=1)[0].requires_grad


def test_parameters_and_modules_come_back() -> None:
    module = launch(lambda: torch.nn.Linear(3, 2), world_size=1)[0]
    assert module(torch.ones(1, 3)).shape == (1, 2)


def leave_traces() -> None:
    torch.set_default_dtype(torch.float64)
    os.environ["COURSE_TRACE"] = "left"
    dist.left_behind = True
    torch.manual_seed(5)
    dist.new_group([0])
    os.chdir("/")


def see_traces() -> tuple:
    trace = (
        torch.get_default_dtype(),
        os.environ.get("COURSE_TRACE"),
        hasattr(dist, "left_behind"),
    )
    return (*trace, torch.rand(1).item(), os.getcwd())


def test_nothing_leaks_from_one_call_into_the_next() -> None:
    before = launch(see_traces, world_size=2)
    launch(leave_traces, world_size=2)
    assert launch(see_traces, world_size=2) == before
    assert before[0][:3] == (torch.float32, None, False)
    assert before[0][4] == os.getcwd()
    assert before[0][3] != before[1][3], "ranks must not start from equal random states by accident"


def test_seed_repeats_and_differs_by_rank() -> None:
    draw = lambda: torch.rand(3).tolist()  # noqa: E731
    assert launch(draw, world_size=2, seed=7) == launch(draw, world_size=2, seed=7)
    assert launch(draw, world_size=2, seed=7) != launch(draw, world_size=2, seed=8)


def test_environment_of_the_notebook_reaches_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(lambda: None, world_size=2)
    monkeypatch.setenv("COURSE_PROBE", "here")
    get = lambda: (os.environ.get("COURSE_PROBE"), os.environ["RANK"], os.environ["WORLD_SIZE"])  # noqa: E731
    assert list(launch(get, world_size=2)) == [("here", "0", "2"), ("here", "1", "2")]


def test_output_is_tagged_and_streams(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        import sys

        print("hello from", dist.get_rank())
        os.write(1, b"from C\n")
        print("a warning", file=sys.stderr)
        sys.stdout.write("no newline")

    launch(talk, world_size=2)
    out, err = capfd.readouterr()
    assert err == "", "graders fail a cell that writes to stderr"
    for rank in (0, 1):
        assert f"[rank {rank}] hello from {rank}\n" in out
        assert f"[rank {rank}] from C\n" in out
        assert f"[rank {rank}] no newline\n" in out
    assert out.count("a warning") == 1, "the same warning of several ranks is shown once"
    assert "(the same from rank" in out


def test_gloos_word_of_each_group_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    def connected(peers: int) -> str:
        return (
            f"[Gloo] Rank {dist.get_rank()} is connected to {peers} peer ranks. "
            "Expected number of connected peer ranks is : 1"
        )

    launch(lambda: print(connected(1), "mine", connected(0), sep="\n"), world_size=2)
    out = capfd.readouterr().out
    assert "connected to 1 peer" not in out
    assert out.count("mine") == 2 and out.count("connected to 0 peer") == 2


def test_a_storm_of_output_is_cut_and_its_end_kept(capfd: pytest.CaptureFixture[str]) -> None:
    def storm() -> int:
        for i in range(50_000):
            print("line", i)
        return 1

    assert list(launch(storm, world_size=2)) == [1, 1]
    out = capfd.readouterr().out
    assert out.count("\n") < 1_100
    assert "49,500 more lines" in out
    assert out.count("line 49999") == 2


def test_a_line_without_end_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    launch(lambda: print("x" * 3_000_000), world_size=1)
    assert len(capfd.readouterr().out) < 200_000


# ---- wrong calls


def of_a_tutorial(rank: int, world_size: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


async def waits() -> None:
    dist.barrier()


def yields() -> Iterator[int]:
    yield dist.get_rank()


def test_a_second_process_group_gets_a_sentence() -> None:
    with pytest.raises(RankError, match="launch\\(\\) already makes the process group"):
        launch(of_a_tutorial, 0, 2, world_size=2)


def test_a_result_that_only_ranks_can_read_is_told() -> None:
    def body() -> dict[str, torch.nn.Module]:
        return {"model": torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))}

    says = "rank 0 could not send back what body returned, a dict: .*Return tensors, numbers"
    with pytest.raises(RankError, match=says):
        launch(body, world_size=2, backend="gloo")


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: launch(3, world_size=2), TypeError, "runs a function"),  # type: ignore[arg-type]
        (
            lambda: launch(of_a_tutorial, world_size=2),
            TypeError,
            r"of_a_tutorial\(rank, world_size\).*get_rank",
        ),
        (lambda: launch(waits, world_size=2), TypeError, "waits is an `async def`"),
        (lambda: launch(yields, world_size=2), TypeError, "yields is a generator"),
        (lambda: launch(see_traces, world_size=0), ValueError, "between 1 and"),
        (lambda: launch(see_traces, world_size=1000), ValueError, "between 1 and"),
        (lambda: launch(see_traces, world_size=2.0), TypeError, "number of ranks"),  # type: ignore[arg-type]
        (lambda: launch(see_traces, world_size=2, timeout=0), ValueError, "positive"),
        (lambda: launch(see_traces, world_size=2, backend="mpi"), ValueError, "'gloo'"),
    ],
)
def test_a_wrong_call_gets_a_sentence(call: Callable, kind: type, says: str) -> None:
    with pytest.raises(kind, match=says):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Leave `backend` out"):
        launch(see_traces, world_size=2, backend="nccl")
    monkeypatch.setenv("COURSE_BACKEND", "nccl")
    assert launch(see_traces, world_size=2).backend == "gloo"


@pytest.mark.gpu
def test_more_ranks_than_gpus_gets_a_sentence() -> None:
    room = places()
    with pytest.raises(ValueError, match=r"over NCCL need .* this machine has"):
        launch(see_traces, world_size=room + 1, backend="nccl")
    assert launch(see_traces, world_size=min(room + 1, 16)).backend == "gloo"


@pytest.mark.gpu
def test_one_rank_over_nccl_with_cuda_tensors_in_the_ledger() -> None:
    def body() -> tuple:
        t = torch.ones(4, device=course_lib.device())
        dist.all_reduce(t)
        c = torch.ones(2)
        dist.all_reduce(c)
        return str(t.device), t.sum().item(), c.sum().item()

    run = launch(body, world_size=1, backend="nccl")
    assert run[0] == ("cuda:0", 4.0, 2.0)
    assert [op.nbytes for op in run.ledger.operations(0)] == [16, 8]


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(LaunchError, match=r"captured variable 'lock'.*Make it inside"):
        launch(lambda: lock, world_size=2)
    with pytest.raises(LaunchError, match="argument 0 is a generator"):
        launch(lambda x: x, (i for i in range(3)), world_size=2)
    with pytest.raises(RankError, match="could not send back"):
        launch(lambda: threading.Lock(), world_size=1)


def test_the_ledger_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_LEDGER", "off")
    run = launch(sum_of_ranks, world_size=2)
    assert list(run) == [3.0, 3.0]
    assert run.ledger.operations(0) == []


def test_kept_ranks_serve_several_calls_and_start_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under NCCL clean ranks are kept for the next call; the test tries the mechanism on gloo."""
    from course_lib.runtime import pools, run

    monkeypatch.setattr(run, "KEPT", {"gloo"})
    try:

        def shift(numel: int) -> tuple:
            rank, n, got = dist.get_rank(), dist.get_world_size(), torch.empty(numel)
            ops = [
                dist.P2POp(dist.isend, torch.full((numel,), float(rank)), (rank + 1) % n),
                dist.P2POp(dist.irecv, got, (rank - 1) % n),
            ]
            for handle in dist.batch_isend_irecv(ops):
                handle.wait()
            dist.barrier()
            return os.getpid(), got.sum().item(), torch.rand(1).item()

        first, second = launch(shift, 4, world_size=3), launch(shift, 5, world_size=3)
        assert [r[0] for r in first] == [r[0] for r in second], "the same processes"
        assert [r[2] for r in first] == [r[2] for r in second], "the same random state"
        assert [op.nbytes for op in second.ledger.operations(0)] == [20, 20, 0]
        launch(lambda: dist.new_group([0]) and None, world_size=3)
        third = launch(shift, 4, world_size=3)
        assert {r[0] for r in third}.isdisjoint(r[0] for r in first), (
            "a group left behind: new ranks"
        )
        with pytest.raises(RankError):
            launch(lambda: 1 // 0, world_size=3)
        assert {r[0] for r in launch(shift, 4, world_size=3)}.isdisjoint(r[0] for r in third)
    finally:
        pools.close()


def test_what_ranks_import_late_is_imported_for_those_to_come() -> None:
    """The first optimizer of a process imports torch._dynamo, for a second or two: once is enough."""

    def body() -> tuple[bool, int]:
        imported = "torch._dynamo" in sys.modules
        torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1).zero_grad()
        return imported, len(os.listdir(f"/proc/{os.getppid()}/task"))

    launch(body, world_size=2)
    again = launch(body, world_size=3)
    assert [imported for imported, _ in again] == [True] * 3
    assert {threads for _, threads in again} == {
        1
    }  # the process that forks must keep to one thread
