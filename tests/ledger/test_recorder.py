"""The recorder sees every operation that communicates, books it right, and none can go round it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import RankError, launch
from course_lib.ledger import rows
from course_lib.ledger.booking import logical_bytes
from course_lib.ledger.ledger import Ledger

SIZES = [1, 2, 3, 4]
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def builtin(name: str, numel: int) -> None:
    """One built-in collective on a full tensor of `numel` float32."""
    n, rank = dist.get_world_size(), dist.get_rank()
    full, part = torch.ones(numel), torch.ones(numel // n)
    root = 1 % n
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(full),
        "broadcast": lambda: dist.broadcast(full, root),
        "reduce": lambda: dist.reduce(full, root),
        "all_gather": lambda: dist.all_gather([torch.empty_like(part) for _ in range(n)], part),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(full, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, list(full.chunk(n))),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, full),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty_like(full), full),
        "gather": lambda: dist.gather(
            part, [torch.empty_like(part) for _ in range(n)] if rank == root else None, root
        ),
        "scatter": lambda: dist.scatter(part, list(full.chunk(n)) if rank == root else None, root),
        "barrier": lambda: dist.barrier(),
    }
    calls[name]()


KINDS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
NAMES = [
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all_single", "gather", "scatter", "barrier",
]  # fmt: skip
if VERSION < (2, 7):  # gloo's list form came with 2.7
    NAMES.remove("reduce_scatter")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("world_size", SIZES)
def test_builtins_are_booked_at_the_optimal_volume(
    world_size: int, capfd: pytest.CaptureFixture
) -> None:
    numel = 12 * 5

    def body() -> None:
        for name in NAMES:
            builtin(name, numel)

    ledger = launch(body, world_size=world_size).ledger
    for rank in range(world_size):
        rows = ledger.operations(rank)
        assert [row.op for row in rows] == [KINDS.get(name, name) for name in NAMES]
        for row in rows:
            full = 0 if row.op == "barrier" else numel * 4
            assert row.nbytes == full, row
            group = tuple(range(world_size))
            root = 1 % world_size
            assert row.bytes_sent == logical_bytes(row.op, group, rank, full, root), row
            assert row.waited and row.completed is not None and row.group == group
            assert row.line.startswith("test_recorder.py, line") and row.source
    assert "Warning" not in capfd.readouterr().out, "deprecations of PyTorch must not flood a cell"


def test_the_booking_adds_up(seed: int) -> None:
    n = torch.randint(2, 9, (), generator=torch.Generator().manual_seed(seed)).item()
    group, m = tuple(range(10, 10 + int(n))), 840 * 4
    total = {
        op: sum(logical_bytes(op, group, rank, m, group[1]) for rank in group)
        for op in (
            "all_reduce",
            "broadcast",
            "reduce",
            "gather",
            "scatter",
            "all_gather",
            "barrier",
        )
    }
    assert total["broadcast"] == total["reduce"] == (n - 1) * m, "each other rank gets M once"
    assert total["all_reduce"] == pytest.approx(2 * (n - 1) * m)
    assert total["gather"] == total["scatter"] == pytest.approx((n - 1) * m / n)
    assert total["all_gather"] == pytest.approx((n - 1) * m)
    assert total["barrier"] == 0
    with pytest.raises(ValueError, match="no booking"):
        logical_bytes("teleport", group, 10, m)


def test_messages_have_peers_bytes_dtypes_and_tags() -> None:
    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        sent, got = torch.ones(3, 5, dtype=torch.bfloat16), torch.empty(15, dtype=torch.bfloat16)
        ops = [
            dist.P2POp(dist.isend, sent, (rank + 1) % n, tag=3),
            dist.P2POp(dist.irecv, got, (rank - 1) % n, tag=3),
        ]
        for handle in dist.batch_isend_irecv(ops):
            handle.wait()

    ledger = launch(body, world_size=3).ledger
    for rank in range(3):
        send, recv = ledger.operations(rank)
        assert (send.op, send.peer, send.nbytes, send.bytes_sent) == (
            "send",
            (rank + 1) % 3,
            30,
            30,
        )
        assert (recv.op, recv.peer, recv.nbytes, recv.bytes_sent) == ("recv", (rank - 1) % 3, 30, 0)
        assert (send.dtype, send.shape, send.tag) == ("bfloat16", (3, 5), 3)
        assert 0 <= send.issued <= recv.issued <= recv.completed
    assert ledger.bytes_sent(0) == 30 and ledger.messages_sent(0) == 1
    assert [[int(x) for x in row] for row in ledger.matrix()] == [
        [0, 30, 0],
        [0, 0, 30],
        [30, 0, 0],
    ]
    assert not ledger.unmatched()


def test_subgroups_are_seen_whatever_their_backend() -> None:
    def body() -> None:
        plain, gloo = dist.new_group([1, 3]), dist.new_group([1, 3], backend="gloo")
        if dist.get_rank() in (1, 3):
            dist.all_reduce(torch.ones(4), group=plain)
            dist.all_reduce(torch.ones(4), group=gloo)
            assert dist.get_backend(gloo) == "gloo"
            peer = 4 - dist.get_rank()
            handles = [
                dist.isend(torch.ones(2), peer, group=gloo),
                dist.irecv(torch.ones(2), peer, group=gloo),
            ]
            for handle in handles:
                handle.wait()

    ledger = launch(body, world_size=4).ledger
    ops = [op.op for op in ledger.operations(3)]
    assert ops == ["new_group", "new_group", "all_reduce", "all_reduce", "send", "recv"]
    assert [op.group for op in ledger.operations(3)][2:] == [(1, 3)] * 4
    assert ledger.operations(3)[4].peer == 1, "the peer is a global rank"
    assert [op.op for op in ledger.operations(0)] == ["new_group", "new_group"]


def test_a_process_group_made_anew_does_not_escape() -> None:
    def body() -> None:
        store = dist.distributed_c10d._get_default_store()
        rank, n = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=n
        )
        dist.all_reduce(torch.ones(4))

    ledger = launch(body, world_size=2).ledger
    assert [op.op for op in ledger.operations(1)] == ["all_reduce"]


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("peer", [-1, 2])
def test_a_peer_that_is_not_in_the_group_is_named(peer: int) -> None:
    """gloo would look for rank -1 in its store, and say nothing of a rank."""

    def body() -> None:
        if dist.get_rank() == 0:
            dist.recv(torch.ones(1), group=dist.group.WORLD, group_src=peer)

    with pytest.raises(
        RankError, match=rf"rank 0 would receive from rank {peer}, but .* one of 0 \.\. 1"
    ):
        launch(body, world_size=2)


def test_ddp_in_cpp_is_seen() -> None:
    def body() -> int:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(Tiny())
        model(torch.ones(2, 4)).sum().backward()
        return sum(p.numel() for p in model.parameters())

    run = launch(body, world_size=2)
    reduced = run.ledger.operations(0, "all_reduce")
    assert sum(row.nbytes for row in reduced) == 4 * run[0]
    assert all(row.waited for row in reduced)


def test_functional_collectives_and_dtensor_are_seen() -> None:
    def body() -> float:
        import torch.distributed._functional_collectives as functional
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        total = functional.all_reduce(torch.ones(6), "sum", dist.group.WORLD) + 0
        mesh = init_device_mesh("cpu", (2,))
        sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        return (
            total.sum().item() + sharded.redistribute(mesh, [Replicate()]).to_local().sum().item()
        )

    run = launch(body, world_size=2)
    assert list(run) == [12 + 28, 12 + 28]
    assert {"all_reduce", "all_gather"} <= {row.op for row in run.ledger.operations(0)}


@pytest.mark.skipif(VERSION < (2, 7), reason="FSDP2 of PyTorch 2.6 does not run on the CPU")
def test_fsdp2_is_seen() -> None:
    def body() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = Tiny()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        model(torch.ones(2, 4)).sum().backward()

    ops = [row.op for row in launch(body, world_size=2).ledger.operations(0)]
    assert "all_gather" in ops and "reduce_scatter" in ops


def test_pipelining_is_seen() -> None:
    def body() -> None:
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        rank = dist.get_rank()
        stage = PipelineStage(nn.Linear(4, 4), rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        if rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            schedule.step(target=torch.ones(4, 4))

    ledger: Ledger = launch(body, world_size=2).ledger
    assert ledger.messages_sent(0) >= 2 and ledger.messages_sent(1) >= 2


def test_async_collectives_are_booked_when_waited_for() -> None:
    def body() -> None:
        handle = dist.all_reduce(torch.ones(1000), async_op=True)
        handle.wait()
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().wait()

    rows = launch(body, world_size=2).ledger.operations(0)
    assert [row.waited for row in rows] == [True, True]


def test_many_operations_do_not_fit_into_one_page() -> None:
    """The log grows: 30,000 rows are more than the megabyte that it begins with."""

    def body() -> None:
        for _ in range(10_000):
            for tensor in (torch.ones(1), torch.ones(2), torch.ones(3)):
                dist.all_reduce(tensor)

    ledger = launch(body, world_size=1, timeout=120).ledger
    assert len(ledger.operations(0)) == 30_000
    assert ledger.operations(0)[-1].shape == (3,)


def test_observers_are_told_before_and_after() -> None:
    def body() -> list:
        from course_lib.ledger.recorder import observe

        seen: list = []
        with observe(lambda event, index, tensor: seen.append((event, index, tensor is None))):
            dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2))
        return seen

    assert launch(body, world_size=2)[0] == [("issue", 0, False), ("done", 0, True)]


def test_collectives_leave_the_places_of_messages_alone(seed: int) -> None:
    """A sender may be 700 messages ahead, and go through collectives then: all can be looked up."""
    chance = random.Random(seed)
    task = chance.randrange(10**6)
    channel = ("world", chance.randrange(8), chance.randrange(8), chance.randrange(100))
    first = chance.randrange(10**5)
    sent = {
        rows.slot_at(0, rows.channel_key(task, channel, turn, message=True))
        for turn in range(first, first + 700)
    }
    assert len(sent) == 700
    later = {
        rows.slot_at(0, rows.channel_key(task, (group, "collective"), turn, message=False))
        for group in ("world", "pp", "dp")
        for turn in range(500)
    }
    assert len(later) == rows.COLLECTIVES and not sent & later
    places = sorted(sent | later)
    assert places[0] >= rows.SLOTS_AT and places[-1] + rows.SLOT_SIZE <= rows.REGION
