"""The order of operations under NCCL: the model, remarks on a run over gloo, and on a hang."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import Deadlock, RankTimeout, launch
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.on_nccl import MOST, Remark, remarks
from course_lib.ledger.operation import Operation
from course_lib.ledger.order import Held, Order
from course_lib.ledger.recorder import current_recorder
from course_lib.ledger.work import put_behind
from course_lib.pipeline import simulate
from course_lib.pipeline.actions import parts
from course_lib.pipeline.generators import one_f_one_b
from course_lib.runtime import notes, waiting
from tests import nccl_like

Body = Callable[[], None]


def wait_for(*works: dist.Work | None) -> None:
    for work in works:
        work.wait()


def swap(first: str = "send", batched: bool = False) -> Body:
    """Neighbours on a circle; first: the operation that each begins first."""

    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        calls = [(dist.isend, torch.ones(3), (rank + 1) % n)]
        calls.append((dist.irecv, torch.empty(3), (rank - 1) % n))
        if first == "receive":
            calls.reverse()
        if batched:
            wait_for(*dist.batch_isend_irecv([dist.P2POp(*call) for call in calls]))
        else:
            wait_for(*[call(tensor, peer) for call, tensor, peer in calls])

    return body


def barrier_between() -> None:
    x = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.isend(x, 1)
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.recv(x, 0)


def reduced_in_another_order() -> None:
    """Messages and a collective of one group, all waited for at the end."""
    works, x = [], torch.ones(3)
    for what in ("message", "sum") if dist.get_rank() else ("sum", "message"):
        if what == "sum":
            works.append(dist.all_reduce(torch.ones(3), async_op=True))
        else:
            works.append((dist.irecv if dist.get_rank() else dist.isend)(x, 1 - dist.get_rank()))
    wait_for(*works)


def one_and_its_circle() -> None:
    """Ranks 0 to 2 in a circle; rank 3 only receives."""
    rank = dist.get_rank()
    if rank == 3:
        dist.recv(torch.empty(1), 0)
        return
    sent = dist.isend(torch.ones(1), (rank + 1) % 3)
    wait_for(dist.irecv(torch.empty(1), (rank - 1) % 3), sent)
    if rank == 0:
        dist.send(torch.ones(1), 3)


def across_two_groups() -> None:
    """Rank 0 sends in the small group after its receive, which waits in its lane behind its first send."""
    rank, x, small = dist.get_rank(), torch.ones(1), dist.new_group([0, 1])
    if rank == 0:
        sent = dist.isend(x, 1)
        dist.recv(x.clone(), 2)
        dist.send(x, 1, group=small)
        sent.wait()
    elif rank == 1:
        dist.recv(x.clone(), 0, group=small)
        dist.recv(x.clone(), 0)
    else:
        dist.send(x, 0)


FIRST = {
    "send": "rank 0 begins send(dst=1) before recv(src=1), rank 1 begins send(dst=0) before recv(src=0)",
    "receive": "rank 0 begins recv(src=1) before send(dst=1), rank 1 begins recv(src=0) before send(dst=0)",
}
HANGING: dict[str, tuple[int, Body, str]] = {  # ranks, their program, the remark on it
    "send first": (2, swap("send"), FIRST["send"]),
    "receive first": (2, swap("receive"), FIRST["receive"]),
    "three on a circle": (3, swap("send"), "rank 2 begins send(dst=0) before recv(src=1) (test_"),
    "five on a circle": (5, swap("receive"), "and so on in a circle of 5"),
    "a barrier between": (
        2, barrier_between,
        "rank 0 begins send(dst=1) before barrier, rank 1 begins barrier before recv(src=0)",
    ),
    "a sum between": (
        2, reduced_in_another_order,
        "rank 0 begins all_reduce before send(dst=1), rank 1 begins recv(src=0) before all_reduce",
    ),
    "across two groups": (
        3, across_two_groups,
        "rank 0 begins send(dst=1) of group [0, 1, 2] before send(dst=1) of group [0, 1], "
        "rank 1 begins recv(src=0) of group [0, 1] before recv(src=0) of group [0, 1, 2]",
    ),
}  # fmt: skip


@pytest.fixture
def fresh_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_told", set())


def said_of(body: Body, world_size: int = 2) -> list[Remark]:
    return list(remarks(launch(body, world_size=world_size, backend="gloo").ledger))


@pytest.mark.parametrize("title", HANGING)
def test_what_hangs_on_nccl_is_told_after_gloo_and_explained_there(
    title: str, fresh_notes: None, capsys: pytest.CaptureFixture
) -> None:
    world_size, body, says = HANGING[title]
    (remark,) = said_of(body, world_size)
    assert says in remark.said and remark.said.startswith("NCCL does what a rank begins in a group")
    collective = title in ("a barrier between", "a sum between")
    assert ("one order that all ranks agree on" in remark.advice) == collective
    assert ("the other way round" in remark.advice) != collective
    assert ("batch_isend_irecv" in remark.advice) != collective
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == f"Note: {remark.said} {remark.advice}"
    assert "(" not in remark.general
    began = time.monotonic()
    with nccl_like.offered(), pytest.raises(Deadlock) as caught:
        launch(body, world_size=world_size, backend="nccl-like", timeout=30)
    assert time.monotonic() - began < 15, "a bound on hanging, not a measurement"
    told = str(caught.value).splitlines()
    assert told[0].startswith("deadlock: rank 0 -> ")
    assert "NCCL does what a rank begins in a group one after the other: rank 0 " in told[-1]
    assert told[-1].endswith(remark.advice)


def two_groups() -> None:
    """Each direction has a group of its own."""
    rank, x = dist.get_rank(), torch.ones(3)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    sent = dist.isend(x, 1 - rank, group=groups[rank])
    wait_for(sent, dist.irecv(x.clone(), 1 - rank, group=groups[1 - rank]))


def turns() -> None:
    rank, x = dist.get_rank(), torch.ones(3)
    for sender in (0, 1):
        (dist.send if rank == sender else dist.recv)(x.clone(), 1 - rank)


def many_at_once() -> None:
    """Collectives and batches side by side, in one order on all ranks."""
    rank, n, works = dist.get_rank(), dist.get_world_size(), []
    groups = [dist.new_group([r for r in range(n) if r != out]) for out in range(n)]
    for _ in range(3):
        works.append(dist.all_reduce(torch.ones(4), async_op=True))
        for out, group in enumerate(groups):
            if rank != out:
                works.append(
                    dist.broadcast(torch.ones(4), (out + 1) % n, group=group, async_op=True)
                )
        ends = [dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % n)]
        ends.append(dist.P2POp(dist.irecv, torch.ones(2), (rank - 1) % n))
        works += dist.batch_isend_irecv(ends)
    wait_for(*works)


def root_first() -> None:
    """A rooted collective needs its root alone: the others need not wait for each other."""
    rank, x = dist.get_rank(), torch.ones(2)
    gathered = [x.clone() for _ in range(3)] if rank == 0 else None
    if rank == 2:
        dist.recv(x, 1)
    work = dist.gather(x.clone(), gathered, 0, async_op=True)
    if rank == 1:
        work.wait()
        dist.send(x, 2)
    else:
        work.wait()


GOOD: dict[str, tuple[int, Body]] = {
    "one batch": (2, swap(batched=True)),
    "one batch on a circle": (4, swap("receive", batched=True)),
    "a group for each direction": (2, two_groups),
    "in turns": (2, turns),
    "many at once": (3, many_at_once),
    "a root and the others": (3, root_first),
}


@pytest.mark.parametrize("title", GOOD)
def test_what_goes_through_on_nccl_is_not_spoken_of(
    title: str, fresh_notes: None, capsys: pytest.CaptureFixture
) -> None:
    world_size, body = GOOD[title]
    assert said_of(body, world_size) == [] and capsys.readouterr().out == ""
    with nccl_like.offered():
        launch(body, world_size=world_size, backend="nccl-like", timeout=30)


def test_one_order_of_all_events_never_hangs(seed: int) -> None:
    """The events of a schedule may come in any order that is the same on all ranks."""
    schedule = one_f_one_b(3, random.Random(seed).randrange(2, 6))
    events = simulate(schedule).events

    def body() -> None:
        rank, works = dist.get_rank(), []
        for event in events:
            (one,), src = parts(event.action), event.rank
            dst = src + 1 if one.kind == "F" else src - 1
            if src == rank and 0 <= dst < 3:
                works.append(dist.isend(torch.ones(1), dst))
            elif dst == rank:
                works.append(dist.irecv(torch.empty(1), src))
        wait_for(*works)

    assert said_of(body, 3) == []


def test_a_circle_is_told_without_the_rank_beside_it() -> None:
    (remark,) = said_of(one_and_its_circle, 4)
    assert "rank 2 begins send(dst=0)" in remark.said and "rank 3" not in remark.said


@pytest.mark.parametrize("turned", [False, True])
def test_messages_that_only_tags_tell_apart(turned: bool) -> None:
    def body() -> tuple[float, ...]:
        rank, tensors = dist.get_rank(), {1: torch.tensor([1.0]), 2: torch.tensor([2.0])}
        received = {tag: torch.zeros(1) for tag in tensors}
        order = (2, 1) if rank and turned else (1, 2)
        if rank == 0:
            wait_for(*[dist.isend(tensors[tag], 1, tag=tag) for tag in order])
        else:
            wait_for(*[dist.irecv(received[tag], 0, tag=tag) for tag in order])
        return tuple(one.item() for one in received.values())

    run = launch(body, world_size=2, backend="gloo")
    said = list(remarks(run.ledger))
    assert bool(said) == turned
    assert (
        not said
        or "rank 1 uses tags to receive rank 0's messages in a different order" in said[0].said
    )
    assert run[1] == (1.0, 2.0)
    with nccl_like.offered():
        there = launch(body, world_size=2, backend="nccl-like")
    assert there[1] == ((2.0, 1.0) if turned else (1.0, 2.0))


def test_a_receive_from_any_rank() -> None:
    def body() -> None:
        dist.send(torch.ones(1), 0) if dist.get_rank() else dist.recv(torch.ones(1))

    (remark,) = said_of(body)
    assert "rank 0 receives from any rank, which NCCL cannot do (test_order.py" in remark.said


# --- a GPU's stream, whose host has gone on


def test_a_host_that_ran_ahead_of_such_a_circle_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's wait returns at once and the host hangs elsewhere; imitated by a stream that stands still."""

    class Still:
        """The handle of an operation on that stream, and a mark behind it."""

        def wait(self) -> bool:
            return True

        def passed(self) -> bool:
            return False

        def moment(self) -> float:
            return 0.0

    def body(calm: bool) -> None:
        group: Any = dist.group.WORLD
        group.on_device = lambda tensors: True
        current_recorder().pending.mark = lambda work=None: Still()
        rank, x = dist.get_rank(), torch.ones(3)
        in_turns = calm and rank == 1  # it receives what rank 0 sends first
        calls = (dist.irecv, dist.isend) if in_turns else (dist.isend, dist.irecv)
        for call in calls:
            work: Any = call(x.clone(), 1 - rank, tag=rank if call is dist.isend else 1 - rank)
            put_behind(work, Still())
            work.wait()
        time.sleep(30)

    monkeypatch.setattr(waiting, "IN_ORDER", {"gloo"})
    began = time.monotonic()
    with pytest.raises(Deadlock) as caught:
        launch(body, False, world_size=2, backend="gloo", timeout=20)
    assert time.monotonic() - began < 15, "a bound on hanging, not a measurement"
    assert "rank 0: in send(dst=1) float32[3]" in str(caught.value)  # and of no tag
    assert "rank 0 begins send(dst=1) before recv(src=1), rank 1 begins" in str(caught.value)
    with pytest.raises(RankTimeout):
        launch(body, True, world_size=2, backend="gloo", timeout=3)


def test_sends_that_are_done_before_their_receives_are_long_without_news_are_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen on an H100: each rank's send is done, its receive never is, and no ranks were connected."""

    class Mark:
        def __init__(self, over: bool):
            self.over = over

        def wait(self) -> bool:
            return True

        def passed(self) -> bool:
            return self.over

        def moment(self) -> float:
            return time.monotonic()

    def body(calm: bool) -> None:
        group: Any = dist.group.WORLD
        group.on_device = lambda tensors: True
        rank, x = dist.get_rank(), torch.ones(3)
        in_turns = calm and rank == 1
        calls = (dist.irecv, dist.isend) if in_turns else (dist.isend, dist.irecv)
        for call in calls:
            current_recorder().pending.mark = lambda work=None, over=call is dist.isend: Mark(over)
            work: Any = call(x.clone(), 1 - rank)
            put_behind(work, Mark(call is dist.isend))
            work.wait()
        time.sleep(30)

    monkeypatch.setattr(waiting, "IN_ORDER", {"gloo"})
    with pytest.raises(Deadlock) as caught:
        launch(body, False, world_size=2, backend="gloo", timeout=20)
    said = str(caught.value)
    assert "rank 0 begins send(dst=1) before recv(src=1), rank 1 begins" in said, said
    assert "in recv(src=1) float32[3]" in said and "waits for rank 1" in said, said
    with pytest.raises(RankTimeout):  # no rank waits in a circle: a slow GPU is not a deadlock
        launch(body, True, world_size=2, backend="gloo", timeout=7)


# --- the note after a launch


def test_a_note_comes_once_in_a_cell_and_can_be_switched_off(
    fresh_notes: None, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notes_of(world_sizes: tuple[int, ...]) -> int:
        for world_size in world_sizes:
            launch(body, world_size=world_size, backend="gloo")
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.count("Note: NCCL does what a rank begins")

    body = swap()
    assert notes_of((2, 3, 2)) == 1
    monkeypatch.setattr(notes, "cell", lambda: 7)
    assert notes_of((2,)) == 1
    monkeypatch.setattr(notes, "cell", lambda: 8)
    monkeypatch.setenv("COURSE_NCCL_NOTES", "off")
    assert notes_of((2,)) == 0


def test_a_run_that_fails_has_no_note(fresh_notes: None, capsys: pytest.CaptureFixture) -> None:
    def body() -> None:
        swap()()
        raise ValueError("afterwards")

    with pytest.raises(Exception, match="afterwards"):
        launch(body, world_size=2, backend="gloo")
    assert "Note" not in capsys.readouterr().out


# --- the model against the imitation, and on rows that no recorder wrote


def program(chance: random.Random, n: int) -> list[list[tuple]]:
    """A program of each rank: messages and sums in two groups, in an order that may differ from rank to rank.

    Sums of a group, and messages from one rank to another in it, keep their order. Some neighbours are
    one batch. Everything is waited for at the end, so gloo carries it.
    """
    ranks: list[list[tuple]] = [[] for _ in range(n)]
    for _ in range(chance.randrange(3, 8)):
        group = chance.randrange(2)
        if chance.random() < 0.3:
            for rank in range(n):
                ranks[rank].append(("sum", group, -1))
            continue
        src, dst = chance.sample(range(n), 2)
        ranks[src].append(("send", group, dst))
        ranks[dst].append(("recv", group, src))
    for begun in ranks:
        for _ in range(chance.randrange(4)):
            i = chance.randrange(max(1, len(begun) - 1))
            if i + 1 < len(begun) and begun[i] != begun[i + 1]:
                begun[i], begun[i + 1] = begun[i + 1], begun[i]
        for i in range(len(begun) - 1):
            pair = begun[i : i + 2]
            messages = all(one[0] in ("send", "recv") for one in pair)
            if messages and pair[0][1] == pair[1][1] and chance.random() < 0.3:
                begun[i : i + 2] = [("batch", pair[0][1], tuple(pair)), ("nothing", 0, -1)]
    return ranks


def run_program(ranks: list[list[tuple]]) -> list[float]:
    groups = [dist.new_group(list(range(len(ranks)))) for _ in range(2)]
    calls = {"send": dist.isend, "recv": dist.irecv}
    works, tensors = [], []

    def tensor() -> torch.Tensor:
        tensors.append(torch.full((2,), float(len(tensors))))
        return tensors[-1]

    for op, group, what in ranks[dist.get_rank()]:
        if op == "sum":
            works.append(dist.all_reduce(tensor(), group=groups[group], async_op=True))
        elif op == "batch":
            ends = [
                dist.P2POp(calls[one], tensor(), peer, group=groups[group]) for one, _, peer in what
            ]
            works += dist.batch_isend_irecv(ends)
        elif op in calls:
            works.append(calls[op](tensor(), what, group=groups[group]))
    wait_for(*works)
    return [float(one[0]) for one in tensors]


@pytest.mark.parametrize("number", range(60 if os.environ.get("COURSE_ALL_TESTS") else 10))
def test_the_model_says_of_any_program_what_happens_in_the_imitation(
    number: int, seed: int
) -> None:
    chance = random.Random(f"{seed} {number}")
    ranks = program(chance, chance.randrange(2, 5))
    print(ranks)
    run = launch(run_program, ranks, world_size=len(ranks), backend="gloo")
    said = [remark for remark in remarks(run.ledger) if "so this run can hang" in remark.said]
    with nccl_like.offered():
        if said:
            with pytest.raises(Deadlock, match="NCCL does what a rank begins in a group"):
                launch(run_program, ranks, world_size=len(ranks), backend="nccl-like", timeout=30)
        else:
            there = launch(
                run_program, ranks, world_size=len(ranks), backend="nccl-like", timeout=30
            )
            assert list(there) == list(run)


@pytest.mark.parametrize("names", ["ab", None])
def test_rubbish_in_a_record_raises_nothing_and_takes_no_time(names: str | None, seed: int) -> None:
    """A rank can write any row that is valid by itself. names: those of the groups; None: many."""
    chance = random.Random(seed)
    ops = ["send", "recv", "all_reduce", "broadcast", "gather", "barrier", "new_group"]

    def rubbish(rank: int, index: int) -> Operation:
        group = tuple(chance.sample(range(4), chance.randrange(1, 5)))
        name = chance.choice(names) if names else f"{index - chance.randrange(2)}"
        return Operation(
            rank, index, chance.choice(ops), chance.choice([None, 0, 1, 2, 3]), group,
            chance.randrange(3), "", (), 4, 4.0, chance.random(), 0.0,
            chance.choice([None, chance.random()]), True, "line", "",
            chance.random() < 0.3, group_name=name,
        )  # fmt: skip

    began = time.monotonic()
    for count in (3, 30, 3000):
        operations = [[rubbish(rank, index) for index in range(count)] for rank in range(4)]
        sorted_in_time = [sorted(rank, key=lambda one: one.issued) for rank in operations]
        listed = [[replace(one, index=i) for i, one in enumerate(rank)] for rank in sorted_in_time]
        assert isinstance(Order(listed).circle(), list)
        named = [[replace(one, peer=one.peer or 0) for one in rank] for rank in listed]
        for remark in remarks(Ledger(4, named)):
            assert remark.said and remark.general and remark.advice
    assert time.monotonic() - began < 60, "a bound on hanging, not a measurement"


def test_of_a_long_run_the_beginning_is_looked_at() -> None:
    def begun(rank: int, index: int, op: str) -> Operation:
        at = float(index)
        return Operation(
            rank, index, op, 1 - rank, (0, 1), 0, "", (), 4, 4.0, at, 0.0, at + 1.5, True, "", ""
        )

    def of(length: int) -> Ledger:
        calm = [
            [begun(rank, i, "send" if rank == i % 2 else "recv") for i in range(length)]
            for rank in (0, 1)
        ]
        hung = [
            [begun(rank, length + i, op) for i, op in enumerate(("send", "recv"))]
            for rank in (0, 1)
        ]
        return Ledger(2, [a + b for a, b in zip(calm, hung, strict=True)])

    assert len(list(remarks(of(10)))) == 1
    assert list(remarks(of(MOST))) == []


def test_held_names_the_step_that_waits() -> None:
    """A batch stands for the message of it that waits."""

    def begun(rank: int, index: int, op: str, peer: int, joined: bool = False) -> Operation:
        return Operation(
            rank,
            index,
            op,
            peer,
            (0, 1, 2),
            0,
            "",
            (),
            4,
            4.0,
            index / 10,
            0.0,
            9.0,
            True,
            "",
            "",
            joined,
        )

    first = [begun(0, 0, "send", 2), begun(0, 1, "send", 1, joined=True), begun(0, 2, "recv", 1)]
    second = [begun(1, 0, "send", 0), begun(1, 1, "recv", 0)]
    third = [begun(2, 0, "recv", 0)]
    circle = Order([first, second, third]).circle()
    assert circle == [Held(first[1], first[2], True), Held(second[0], second[1], True)]
