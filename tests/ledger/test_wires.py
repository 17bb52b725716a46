"""Emulated wires: operations last as long as on the link that they would take, and nothing else changes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import Deadlock, RankError, launch
from course_lib.ledger import rows
from course_lib.ledger.booking import logical_bytes
from course_lib.ledger.wires import Wires, busiest_bytes
from tests.ledger.test_recorder import KINDS, NAMES, builtin

ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True)
class Link:
    alpha: float
    beta: float


@dataclass(frozen=True)
class Nodes:
    """GPUs in nodes: one link inside of a node, another between nodes."""

    gpus: int
    per_node: int
    inside: Link
    across: Link

    def link(self, ranks: Sequence[int]) -> Link:
        return self.inside if len({rank // self.per_node for rank in ranks}) == 1 else self.across


# ---- the model, with a clock of its own: every number is exact


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


class Ranks:
    """The wires of some ranks, which begin and end operations at times that a test gives."""

    def __init__(self, topology: Nodes):
        self.clock, n = Clock(), topology.gpus
        self.board = rows.Board(rows.anonymous_file("board", rows.Board.size(n)), n)
        self.wires = [Wires(topology, rank, self.board, self.clock) for rank in range(n)]
        self.rows = [0] * n

    def begin(
        self, rank: int, op: str, group: tuple[int, ...], nbytes: int, at: float,
        key: int = 1, peer: int = -1,
    ) -> int:  # fmt: skip
        self.clock.time = 100.0 + at
        row, self.rows[rank] = self.rows[rank], self.rows[rank] + 1
        ready = self.wires[rank].begin(row, op, group, peer, nbytes, key)
        self.board.post(rank, key, nbytes, op, ready)
        return row

    def due(self, rank: int, row: int) -> float:
        return self.wires[rank].land(row) - 100.0


SLOW = Nodes(4, 2, Link(0.5, 0.001), Link(2.0, 0.01))


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        ("all_reduce", 2 + 0.01 * 2 * 3 / 4 * 400),
        ("all_gather", 2 + 0.01 * 300),
        ("reduce_scatter", 2 + 0.01 * 300),
        ("all_to_all", 2 + 0.01 * 300),
        ("barrier", 2.0),
    ],
)
def test_a_collective_begins_with_its_last_member(op: str, seconds: float) -> None:
    ranks, nbytes = Ranks(SLOW), 0 if op == "barrier" else 400
    begun = [ranks.begin(r, op, (0, 1, 2, 3), nbytes, at=float(r)) for r in range(4)]
    assert [ranks.due(r, row) for r, row in enumerate(begun)] == [pytest.approx(3 + seconds)] * 4


@pytest.mark.parametrize(("op", "root_waits"), [("broadcast", False), ("reduce", True)])
def test_rooted_collectives_need_the_root_or_are_needed_by_it(op: str, root_waits: bool) -> None:
    ranks, seconds = Ranks(SLOW), 2 + 0.01 * 400
    times = {0: 5.0, 1: 1.0, 2: 0.0, 3: 9.0}
    begun = {r: ranks.begin(r, op, (0, 1, 2, 3), 400, at, peer=0) for r, at in times.items()}
    due = {r: ranks.due(r, row) - seconds for r, row in begun.items()}
    if root_waits:
        assert due == pytest.approx({0: 9.0, 1: 1.0, 2: 0.0, 3: 9.0})
    else:
        assert due == pytest.approx({0: 5.0, 1: 5.0, 2: 5.0, 3: 9.0})


@pytest.mark.parametrize(("sends", "receives"), [(0.0, 7.0), (7.0, 0.0)])
def test_a_message_begins_when_both_ends_have_come(sends: float, receives: float) -> None:
    ranks = Ranks(SLOW)
    send = ranks.begin(1, "send", (0, 1, 2, 3), 100, sends, peer=2)
    recv = ranks.begin(2, "recv", (0, 1, 2, 3), 100, receives, peer=1)
    assert ranks.due(1, send) == ranks.due(2, recv) == pytest.approx(7 + 2 + 1)


def test_the_link_is_the_message_s_own_and_not_its_group_s() -> None:
    ranks = Ranks(SLOW)
    send = ranks.begin(0, "send", (0, 1, 2, 3), 100, 0.0, peer=1)
    ranks.begin(1, "recv", (0, 1, 2, 3), 100, 0.0, peer=0)
    assert ranks.due(0, send) == pytest.approx(0.5 + 0.1)


def test_a_rank_s_link_carries_one_operation_after_the_other() -> None:
    ranks = Ranks(SLOW)
    begun = [
        [ranks.begin(r, "all_reduce", (0, 1), 100, 0.0, key=k) for r in (0, 1)] for k in (1, 2)
    ]
    for number, pair in enumerate(begun, 1):
        assert [ranks.due(r, row) for r, row in enumerate(pair)] == [
            pytest.approx(0.6 * number)
        ] * 2


def test_two_links_of_a_rank_carry_at_the_same_time() -> None:
    ranks = Ranks(SLOW)
    inside = [ranks.begin(r, "all_reduce", (0, 1), 100, 0.0, key=1) for r in (0, 1)]
    across = [ranks.begin(r, "all_reduce", (0, 2), 100, 0.0, key=2) for r in (0, 2)]
    assert ranks.due(0, inside[0]) == pytest.approx(0.6)
    assert ranks.due(0, across[0]) == pytest.approx(3.0)


def test_a_swap_takes_as_long_as_one_message_and_two_receives_twice_as_long() -> None:
    ranks = Ranks(SLOW)
    for rank, peer in ((0, 1), (1, 0)):
        ranks.begin(rank, "send", (0, 1), 100, 0.0, key=1 + rank, peer=peer)
    received = [ranks.begin(r, "recv", (0, 1), 100, 0.0, key=2 - r, peer=1 - r) for r in (0, 1)]
    assert [ranks.due(r, row) for r, row in enumerate(received)] == [pytest.approx(0.6)] * 2

    ranks = Ranks(Nodes(3, 3, Link(0.5, 0.001), Link(0, 0)))
    for rank in (1, 2):
        ranks.begin(rank, "send", (0, 1, 2), 100, 0.0, key=rank, peer=0)
    late = ranks.begin(0, "recv", (0, 1, 2), 100, 0.0, key=1, peer=1)
    first = ranks.begin(0, "recv", (0, 1, 2), 100, 0.0, key=2, peer=2)
    assert ranks.due(0, first) == pytest.approx(0.6)
    assert ranks.due(0, late) == pytest.approx(1.2)


def test_a_receive_takes_the_first_gap_of_its_link() -> None:
    """Waiting in another order than that of arrival must not make an early message late."""
    ranks = Ranks(Nodes(3, 3, Link(0.5, 0.001), Link(0, 0)))
    early = ranks.begin(0, "recv", (0, 1, 2), 100, 0.0, key=1, peer=1)
    late = ranks.begin(0, "recv", (0, 1, 2), 100, 0.0, key=2, peer=2)
    ranks.begin(1, "send", (0, 1, 2), 100, 0.0, key=1, peer=0)
    ranks.begin(2, "send", (0, 1, 2), 100, 50.0, key=2, peer=0)
    assert ranks.due(0, late) == pytest.approx(50.6)
    assert ranks.due(0, early) == pytest.approx(0.6)


def test_computing_between_begin_and_wait_is_free() -> None:
    ranks = Ranks(SLOW)
    begun = [ranks.begin(r, "all_reduce", (0, 1), 100, 0.0) for r in (0, 1)]
    ranks.clock.time = 100.4
    assert ranks.due(0, begun[0]) == pytest.approx(0.6)  # 0.2 s are left to wait
    assert ranks.due(0, begun[0]) == -100.0  # a second wait costs nothing


def test_the_booked_bytes_are_those_of_the_busiest_member() -> None:
    group = (0, 2, 5)
    for op in ALL:
        assert busiest_bytes(op, group, 90, -1) == logical_bytes(op, group, 2, 90)
    assert busiest_bytes("broadcast", group, 90, 2) == busiest_bytes("reduce", group, 90, 5) == 90
    assert busiest_bytes("gather", group, 90, 0) == busiest_bytes("scatter", group, 90, 0) == 60


# ---- on ranks


def seconds_of(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


SMALL = Nodes(4, 4, Link(0.03, 2e-5), Link(9.0, 9.0))


@pytest.mark.filterwarnings("ignore")
def test_every_operation_of_the_ledger_takes_its_time(cpu_backend: str) -> None:
    numel = 600

    def body() -> dict[str, float]:
        rank, n = dist.get_rank(), dist.get_world_size()
        right, left, box = (rank + 1) % n, (rank - 1) % n, torch.empty(numel)
        took = {}
        for name in NAMES:
            dist.barrier()
            took[name] = seconds_of(lambda name=name: builtin(name, numel))
        dist.barrier()
        ring = [dist.P2POp(dist.isend, torch.ones(numel), right), dist.P2POp(dist.irecv, box, left)]
        took["send"] = seconds_of(lambda: [work.wait() for work in dist.batch_isend_irecv(ring)])
        return took

    run = launch(body, world_size=3, backend=cpu_backend, wires=SMALL)
    group = (0, 1, 2)
    for took in run:
        for name, seconds in took.items():
            op = KINDS.get(name) or name
            nbytes = 0 if op == "barrier" else 4 * numel
            least = 0.03 + 2e-5 * busiest_bytes(op, group, nbytes, 1)
            assert seconds >= least - 1e-4, (name, seconds, least)
    plain = launch(body, world_size=3, backend=cpu_backend).ledger
    for rank in group:
        ours, theirs = run.ledger.operations(rank), plain.operations(rank)
        assert [(o.op, o.bytes_sent, o.peer) for o in ours] == [
            (o.op, o.bytes_sent, o.peer) for o in theirs
        ]
        slept = max(o.blocked for o in ours if o.op == "all_gather")
        assert slept >= 0.015, "the sleep counts as time for which the operation blocked its rank"


def test_a_group_across_nodes_pays_the_network(cpu_backend: str) -> None:
    """Expected: 0.02 s against 0.2 s. The ratio is taken in one run, and a busy machine lowers it."""
    nodes = Nodes(4, 2, Link(0.01, 1e-6), Link(0.1, 1e-5))

    def body() -> tuple[float, float]:
        inside = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][dist.get_rank() // 2]
        across = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][dist.get_rank() % 2]
        x = torch.ones(2500)
        times = {group: [] for group in (inside, across)}
        for group in (inside, across) * 4:
            dist.barrier()
            times[group].append(seconds_of(lambda g=group: dist.all_reduce(x, group=g)))
        return min(times[inside]), min(times[across])

    for inside, across in launch(body, world_size=4, backend=cpu_backend, wires=nodes):
        assert inside >= 0.0199 and across >= 0.199
        assert 5 < across / inside <= 10.1


def test_work_hides_communication(cpu_backend: str) -> None:
    """Expected: 0.4 s one after the other, 0.2 s at the same time."""

    def body() -> tuple[float, float]:
        x = torch.ones(10)

        def apart() -> None:
            dist.all_reduce(x)
            time.sleep(0.2)

        def together() -> None:
            work = dist.all_reduce(x, async_op=True)
            time.sleep(0.2)
            work.wait()

        times: dict[Callable, list[float]] = {apart: [], together: []}
        for step in (apart, together) * 3:
            dist.barrier()
            times[step].append(seconds_of(step))
        return min(times[apart]), min(times[together])

    wires = Nodes(4, 4, Link(0.2, 0), Link(0.2, 0))
    for apart, together in launch(body, world_size=3, backend=cpu_backend, wires=wires):
        assert apart >= 0.4 and together < 0.75 * apart


def test_beginning_an_operation_does_not_sleep() -> None:
    """On gloo alone: C++ asks the imitation of NCCL in vain whether an operation is complete."""

    def body() -> tuple[float, bool, float]:
        dist.barrier()
        began = time.monotonic()
        work = dist.all_reduce(torch.ones(10), async_op=True)
        begun, early = time.monotonic() - began, work.is_completed()
        while not work.is_completed():
            time.sleep(0.005)
        return begun, early, time.monotonic() - began

    wires = Nodes(4, 4, Link(0.5, 0), Link(0.5, 0))
    for begun, early, ended in launch(body, world_size=3, backend="gloo", wires=wires):
        assert ended >= 0.5 and begun < 0.5 * ended and not early


def test_futures_and_functional_collectives_are_late_too(cpu_backend: str) -> None:
    def body() -> tuple[float, float, list[float]]:
        from torch.distributed import _functional_collectives as functional

        x = torch.full((4,), float(dist.get_rank()))
        dist.barrier()
        late = seconds_of(lambda: dist.all_reduce(x, async_op=True).get_future().wait())
        dist.barrier()
        y = torch.full((4,), float(dist.get_rank()))
        summed: list[torch.Tensor] = []

        def reduce() -> None:
            out = functional.all_reduce(y, "sum", list(range(dist.get_world_size())))
            summed.append(functional.wait_tensor(out))

        later = seconds_of(reduce)
        return late, later, [*x.tolist(), *summed[0].tolist()]

    wires = Nodes(4, 4, Link(0.1, 0), Link(0.1, 0))
    for late, later, values in launch(body, world_size=3, backend=cpu_backend, wires=wires):
        assert late >= 0.099 and later >= 0.099 and values == [3.0] * 8


def test_ddp_trains_alike_on_wires(cpu_backend: str, seed: int) -> None:
    def body() -> torch.Tensor:
        torch.manual_seed(seed)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            x = torch.randn(4, 8) * (1 + dist.get_rank())
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    wires = Nodes(4, 4, Link(0.02, 1e-6), Link(0.1, 1e-5))
    slow = launch(body, world_size=3, backend=cpu_backend, wires=wires)
    fast = launch(body, world_size=3, backend=cpu_backend)
    for a, b in zip(slow, fast, strict=True):
        assert torch.equal(a, b)
    assert slow.ledger.bytes_sent(0) == fast.ledger.bytes_sent(0)


def test_a_deadlock_is_explained_with_the_same_words(cpu_backend: str) -> None:
    def body() -> None:
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 0:
            dist.recv(torch.empty(2), 1)
        elif dist.get_rank() == 1:
            dist.recv(torch.empty(2), 0)

    said = []
    for wires in (None, Nodes(4, 4, Link(0.05, 0), Link(0.1, 0))):
        with pytest.raises(Deadlock) as caught:
            launch(body, world_size=3, backend=cpu_backend, wires=wires)
        said.append(re.sub(r"since [\d.]+ s", "since ... s", str(caught.value)))
    assert said[0] == said[1] and "recv" in said[0]


@pytest.mark.parametrize("seconds", [1.6, 5.0])
def test_a_long_sleep_is_not_a_deadlock(cpu_backend: str, seconds: float) -> None:
    """The watcher suspects ranks with which nothing happens for 0.8 s; in NCCL's order, after 4 s, too."""

    def body() -> float:
        if dist.get_rank() == 2:
            time.sleep(0.1)
        x = torch.ones(2)
        dist.all_reduce(x)
        return x[0].item()

    wires = Nodes(4, 4, Link(seconds, 0), Link(seconds, 0))
    assert list(launch(body, world_size=3, backend=cpu_backend, wires=wires)) == [3.0] * 3


def test_a_change_of_a_tensor_in_flight_is_still_noticed(cpu_backend: str) -> None:
    def body() -> None:
        x = torch.ones(4)
        if dist.get_rank() == 0:
            work = dist.isend(x, 1)
            x.add_(1)
            work.wait()
        elif dist.get_rank() == 1:
            dist.recv(x, 0)

    with pytest.raises(RankError, match="was changed before wait"):
        launch(body, world_size=3, backend=cpu_backend, wires=SMALL)


def test_the_next_launch_has_no_wires() -> None:
    def body() -> float:
        dist.barrier()
        return seconds_of(lambda: dist.all_reduce(torch.ones(2)))

    wires = Nodes(2, 2, Link(0.6, 0), Link(0.6, 0))
    slow = launch(body, world_size=2, wires=wires, backend="gloo")
    fast = launch(body, world_size=2, backend="gloo")
    assert min(slow) >= 0.599
    assert min(fast) < 0.5 * min(slow)


def test_a_wait_with_a_time_out_ends_with_it(cpu_backend: str) -> None:
    """0.6 s on the wires: 0.1 s are too few, and later the operation is over; 5 s are enough."""

    def body() -> tuple[float, str, float, float]:
        x = torch.ones(2)
        dist.barrier()
        work, began, said = dist.all_reduce(x, async_op=True), time.monotonic(), ""
        try:
            work.wait(timedelta(seconds=0.1))
        except RuntimeError as error:
            said = str(error)
        early = time.monotonic() - began
        if cpu_backend == "gloo":  # NCCL's imitation has no second wait
            work.wait()
        late = time.monotonic() - began
        dist.barrier()
        whole = seconds_of(lambda: dist.all_reduce(x, async_op=True).wait(timedelta(seconds=30)))
        return early, said, late, whole

    wires = Nodes(4, 4, Link(0.6, 0), Link(0.6, 0))
    for early, said, late, whole in launch(body, world_size=3, backend=cpu_backend, wires=wires):
        assert "timed out" in said and 0.09 <= early < 0.6
        assert whole >= 0.59 and (cpu_backend != "gloo" or late >= 0.59)


# ---- errors


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("wires", "error", "says"),
    [
        ("NVLink", TypeError, "'NVLink' is a str"),
        (Nodes(2, 2, Link(0, 0), Link(0, 0)), ValueError, "has 2 GPUs, but 3 ranks"),
        (Nodes(3, 2, Link(0, 0), Link(-1, 0)), ValueError, "between GPUs 0 and 2 has alpha = -1"),
        (Nodes(3, 2, Link(0, math.inf), Link(0, 0)), ValueError, "between GPUs 0 and 1 has beta"),
    ],
)
def test_errors_name_what_is_wrong(wires: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        launch(nothing, world_size=3, wires=wires)


def test_wires_need_gloo_and_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a GPU's stream"):
        launch(nothing, world_size=2, wires=SMALL, backend="nccl")
    monkeypatch.setenv("COURSE_LEDGER", "off")
    with pytest.raises(ValueError, match="COURSE_LEDGER=off turns it off"):
        launch(nothing, world_size=2, wires=SMALL)
