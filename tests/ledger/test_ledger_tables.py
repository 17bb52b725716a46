"""The numbers of a ledger: counts, bytes, matrix, messages, rounds and the table."""

from __future__ import annotations

import dataclasses
import math
import random
import re

import numpy as np
import pytest

from course_lib.ledger.ledger import Ledger
from course_lib.ledger.matching import BUILT_IN
from tests.ledger.made_ledgers import MadeRun, binomial_broadcast, ring

# --- counts and bytes -------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 10))
def test_a_ring_sends_its_bytes_and_messages(n: int, seed: int) -> None:
    nbytes = 4 * random.Random(seed + n).randrange(1, 1000)
    ledger = ring(n, nbytes, seed).ledger()
    for rank in range(n):
        assert ledger.bytes_sent(rank) == 2 * (n - 1) * nbytes
        assert isinstance(ledger.bytes_sent(rank), int)
        assert ledger.messages_sent(rank) == 2 * (n - 1)


def test_operations_are_chosen_by_rank_and_kind() -> None:
    run = ring(3, rounds=2)
    run.built_in("all_reduce", 12)
    ledger = run.ledger()
    assert len(ledger.operations()) == 3 * 5
    assert [one.rank for one in ledger.operations(op="all_reduce")] == [0, 1, 2]
    assert [one.index for one in ledger.operations(1)] == list(range(5))
    assert [one.peer for one in ledger.operations(1, "send")] == [2, 2]
    assert ledger.operations(op="broadcast") == []


def test_built_ins_are_booked_in_fractions_when_they_do_not_divide() -> None:
    run = MadeRun(3)
    run.built_in("all_reduce", 40)
    assert run.ledger().bytes_sent(0) == pytest.approx(2 * 2 / 3 * 40)
    run.built_in("all_reduce", 80)
    assert run.ledger().bytes_sent(0) == 160
    assert isinstance(run.ledger().bytes_sent(0), int)
    assert run.ledger().messages_sent(0) == 0


@pytest.mark.parametrize("rank", [-1, 4, "0", 1.5])
def test_a_wrong_rank_is_a_sentence(rank) -> None:
    ledger = ring(4).ledger()
    for ask in (ledger.bytes_sent, ledger.messages_sent, ledger.operations):
        with pytest.raises(ValueError, match=r"has no rank .*: the run had ranks 0 to 3\."):
            ask(rank)
    with pytest.raises(ValueError, match="has no rank"):
        ledger.table(rank=rank)


def test_a_wrong_operation_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="knows no operation 'isend'; the names are send, recv"):
        ring(2).ledger().operations(op="isend")


def test_the_number_of_lists_must_be_the_number_of_ranks() -> None:
    with pytest.raises(ValueError, match="3 ranks needs that many lists of operations, but 2 came"):
        Ledger(3, [[], []])


def test_the_repr_says_what_happened() -> None:
    run = ring(4, 1024)
    run.built_in("barrier", 0)
    assert repr(run.ledger()) == (
        "Ledger(4 ranks, gloo: 24 send, 24 recv, 4 barrier; 6,144 bytes sent by each rank)"
    )
    assert repr(Ledger(1, [[]])) == "Ledger(1 rank, gloo: no operation; 0 bytes sent by each rank)"


# --- matrix -----------------------------------------------------------------------------------


def test_the_matrix_holds_messages_where_they_went() -> None:
    run = ring(3, 20, rounds=2)
    run.one(2, 1, 8)
    matrix = run.ledger().matrix()
    assert matrix.dtype == np.int64
    assert matrix.tolist() == [[0, 40, 0], [0, 0, 40], [40, 8, 0]]


@pytest.mark.parametrize(
    ("op", "root", "expected"),
    [
        ("all_reduce", None, [[0, 16, 0], [0, 0, 16], [16, 0, 0]]),
        ("all_gather", None, [[0, 8, 0], [0, 0, 8], [8, 0, 0]]),
        ("reduce_scatter", None, [[0, 8, 0], [0, 0, 8], [8, 0, 0]]),
        ("all_to_all", None, [[0, 4, 4], [4, 0, 4], [4, 4, 0]]),
        ("broadcast", 1, [[0, 0, 0], [0, 0, 12], [12, 0, 0]]),
        ("reduce", 1, [[0, 12, 0], [0, 0, 0], [12, 0, 0]]),
        ("gather", 1, [[0, 4, 0], [0, 0, 0], [0, 4, 0]]),
        ("scatter", 1, [[0, 0, 0], [4, 0, 4], [0, 0, 0]]),
        ("barrier", None, [[0, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_built_ins_stand_where_their_algorithm_sends(op, root, expected) -> None:
    run = MadeRun(3)
    run.built_in(op, 12, root=root)
    assert run.ledger().matrix().tolist() == expected
    assert run.ledger().matrix().dtype == np.int64


def test_a_matrix_with_fractions_is_floating_point() -> None:
    run = MadeRun(3)
    run.built_in("all_reduce", 10)
    matrix = run.ledger().matrix()
    assert matrix.dtype == np.float64
    assert matrix[0, 1] == pytest.approx(40 / 3)


def test_a_subgroup_uses_its_own_neighbours() -> None:
    run = MadeRun(5)
    run.built_in("all_reduce", 8, group=(1, 3))
    matrix = run.ledger().matrix()
    assert {(int(s), int(d)) for s, d in np.argwhere(matrix)} == {(1, 3), (3, 1)}


def test_rows_of_the_matrix_are_the_bytes_sent(seed: int) -> None:
    chance = random.Random(seed)
    n = chance.randrange(2, 7)
    run = MadeRun(n, seed)
    for _ in range(30):
        if chance.random() < 0.5:
            src, dst = chance.sample(range(n), 2)
            run.one(src, dst, chance.randrange(100))
        else:
            group = sorted(chance.sample(range(n), chance.randrange(1, n + 1)))
            op = chance.choice(BUILT_IN)
            rooted = op in ("broadcast", "reduce", "gather", "scatter")
            run.built_in(op, chance.randrange(100), group, chance.choice(group) if rooted else None)
    ledger = run.ledger()
    sent = [ledger.bytes_sent(rank) for rank in range(n)]
    assert ledger.matrix().sum(axis=1) == pytest.approx(sent)


# --- messages ---------------------------------------------------------------------------------


def test_messages_do_not_overtake_each_other() -> None:
    run = MadeRun(2)
    for nbytes in (4, 8, 12):
        run.one(0, 1, nbytes)
    run.together([(0, 1), (1, 0)], 16, tag=7)
    messages = run.ledger().messages()
    assert [(m.src, m.dst, m.nbytes, m.send.index, m.recv.index) for m in messages] == [
        (0, 1, 4, 0, 0), (0, 1, 8, 1, 1), (0, 1, 12, 2, 2), (0, 1, 16, 3, 3), (1, 0, 16, 4, 4),
    ]  # fmt: skip
    assert run.ledger().unmatched() == []


def test_tags_and_groups_keep_messages_apart() -> None:
    run = MadeRun(3)
    run.add(0, "send", 1, 4, 0.0, 0.0, 1.0, tag=1)
    run.add(0, "send", 1, 8, 0.1, 0.1, 1.0, tag=2)
    run.add(0, "send", 1, 12, 0.2, 0.2, 1.0, group=(0, 1))
    run.add(1, "recv", 0, 12, 0.0, 0.0, 1.0, group=(0, 1))
    run.add(1, "recv", 0, 8, 0.1, 0.1, 1.0, tag=2)
    messages = run.ledger().messages()
    assert [(m.nbytes, m.send.index, m.recv.index) for m in messages] == [(8, 1, 1), (12, 2, 0)]
    assert [(one.op, one.nbytes) for one in run.ledger().unmatched()] == [("send", 4)]


def test_a_receive_from_any_source_takes_what_is_left() -> None:
    run = MadeRun(3)
    run.add(2, "recv", None, 4, 0.0, 0.0, 1.0)
    run.add(2, "recv", 0, 4, 0.1, 0.1, 1.0)
    run.add(2, "recv", None, 4, 0.2, 0.2, None)
    run.add(0, "send", 2, 4, 0.3, 0.3, 1.0)
    run.add(1, "send", 2, 4, 0.4, 0.4, 1.0)
    messages = run.ledger().messages()
    assert [(m.src, m.recv.index) for m in messages] == [(0, 1), (1, 0)]
    assert [(one.op, one.index) for one in run.ledger().unmatched()] == [("recv", 2)]


def test_collectives_are_the_kth_calls_of_the_members() -> None:
    run = MadeRun(3)
    run.built_in("all_reduce", 4)
    run.built_in("broadcast", 8, group=(0, 2), root=2)
    run.add(0, "barrier", None, 0, 1.0, 1.0, None)
    found = run.ledger().collectives()
    assert [(one.op, one.group, sorted(one.calls)) for one in found] == [
        ("all_reduce", (0, 1, 2), [0, 1, 2]),
        ("barrier", (0, 1, 2), [0]),
        ("broadcast", (0, 2), [0, 2]),
    ]
    assert found[2].nbytes == 8


# --- rounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 10))
def test_a_ring_all_reduce_has_two_times_n_minus_1_rounds(n: int, seed: int) -> None:
    rounds = ring(n, seed=seed).ledger().rounds()
    assert [one.number for one in rounds] == list(range(1, 2 * n - 1))
    assert all([m.src for m in one.messages] == list(range(n)) for one in rounds)


@pytest.mark.parametrize("n", range(1, 18))
def test_a_binomial_broadcast_has_log_n_rounds(n: int, seed: int) -> None:
    rounds = binomial_broadcast(n, seed).ledger().rounds()
    assert len(rounds) == math.ceil(math.log2(n))
    assert sum(len(one.messages) for one in rounds) == n - 1


def test_messages_to_one_rank_one_by_one_are_rounds_of_their_own() -> None:
    run = MadeRun(4)
    for src in (1, 2, 3):
        run.one(src, 0)
    assert [[m.src for m in one.messages] for one in run.ledger().rounds()] == [[1], [2], [3]]


def test_messages_under_way_together_are_one_round() -> None:
    run = MadeRun(4)
    run.together([(src, dst) for src in range(4) for dst in range(4) if src != dst], 8)
    (only,) = run.ledger().rounds()
    assert len(only.messages) == 12
    assert only.nbytes == 96


def test_a_handle_that_is_never_waited_for_delays_nothing() -> None:
    run = MadeRun(2)
    for k in range(3):
        run.add(0, "send", 1, 4, 0.1 * k, 0.1 * k, None)
    run.add(1, "recv", 0, 4, 0.0, 0.0, None)
    run.add(1, "recv", 0, 4, 0.1, 0.1, None)
    run.add(1, "recv", 0, 4, 0.2, 0.2, None)
    assert len(run.ledger().rounds()) == 1


def test_a_built_in_is_a_round_and_a_barrier_only_holds_together() -> None:
    run = MadeRun(3)
    run.one(0, 1)
    run.built_in("barrier", 0)
    run.one(1, 2)
    run.built_in("all_reduce", 8)
    run.built_in("barrier", 0)
    rounds = run.ledger().rounds()
    assert [(len(one.messages), [c.op for c in one.collectives]) for one in rounds] == [
        (1, []), (1, []), (0, ["all_reduce"]),
    ]  # fmt: skip
    assert [one.messages[0].dst for one in rounds[:2]] == [1, 2]


def test_buffered_sends_received_in_the_other_order_do_not_hang() -> None:
    """The first send is complete before its receive is posted: each end puts the other one first."""
    run = MadeRun(2)
    run.add(0, "send", 1, 4, 0.0, 0.0, 0.1, tag=1)
    run.add(0, "send", 1, 4, 0.2, 0.2, 0.3, tag=2)
    run.add(1, "recv", 0, 4, 0.4, 0.4, 0.5, tag=2)
    run.add(1, "recv", 0, 4, 0.6, 0.6, 0.7, tag=1)
    rounds = run.ledger().rounds()
    assert sum(len(one.messages) for one in rounds) == 2


def test_rounds_do_not_depend_on_speed(seed: int) -> None:
    shapes = {
        tuple(tuple((m.src, m.send.index) for m in one.messages) for one in run.ledger().rounds())
        for run in (ring(5, seed=seed + k) for k in range(10))
    }
    assert len(shapes) == 1


# --- table ------------------------------------------------------------------------------------


def test_ranks_that_agree_share_a_row() -> None:
    run = ring(4, 1024)
    table = run.ledger().table()
    assert [(r.op, r.ranks, r.calls, r.peer, r.nbytes, r.sent) for r in table.rows] == [
        ("send", (0, 1, 2, 3), 6, "rank + 1", 6144, 6144),
        ("recv", (0, 1, 2, 3), 6, "rank - 1", 6144, 0),
    ]
    assert "Each rank sent 6,144 bytes in 6 messages." in str(table)
    assert len(run.ledger().table(rank=2).rows) == 2
    assert "Rank 2 sent 6,144 bytes" in str(run.ledger().table(rank=2))


def test_ranks_that_differ_have_rows_of_their_own() -> None:
    run = binomial_broadcast(4)
    rows = run.ledger().table().rows
    assert [(r.op, r.ranks, r.calls, r.peer) for r in rows] == [
        ("send", (0,), 2, "1, 2"),
        ("recv", (1, 2, 3), 1, "0, 1"),
        ("send", (1,), 1, "3"),
    ]


def test_lines_and_shapes_of_a_row() -> None:
    run = MadeRun(2)
    run.line = "Cell In[7], line 2"
    run.one(0, 1, 8)
    run.one(0, 1, 12)
    run.line = "train.py, line 30"
    run.one(0, 1, 12)
    rows = run.ledger().table(rank=0).rows
    assert [(r.line, r.calls, r.tensor) for r in rows] == [
        ("Cell In[7], line 2", 2, "float32[2..3]"),
        ("train.py, line 30", 1, "float32[3]"),
    ]


@pytest.mark.parametrize(
    ("pairs", "n", "peer"),
    [
        ([(0, 1), (1, 0), (2, 3), (3, 2)], 4, "rank ^ 1"),
        ([(0, 1), (1, 0)], 2, "rank ^ 1"),
        ([(1, 0), (2, 0), (3, 0)], 4, "0"),
        ([(0, 2), (1, 3), (2, 4), (3, 0), (4, 1)], 5, "rank + 2"),
        ([(0, 3), (1, 4), (2, 0), (3, 1), (4, 2)], 5, "rank - 2"),
        ([(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)], 3, "all others"),
    ],
)
def test_the_peer_column_shows_the_pattern(pairs, n, peer) -> None:
    run = MadeRun(n)
    run.together(pairs)
    senders = tuple(sorted({src for src, _ in pairs}))
    (row,) = [r for r in run.ledger().table().rows if r.op == "send"]
    assert (row.ranks, row.peer) == (senders, peer)


def test_built_ins_show_root_group_and_booking() -> None:
    run = MadeRun(4)
    run.built_in("broadcast", 64, group=(1, 3), root=3)
    run.built_in("all_reduce", 64)
    table = run.ledger().table()
    assert [r.peer for r in table.rows if r.op == "broadcast"] == ["root 3, group 1, 3"] * 2
    assert [(r.peer, r.sent) for r in table.rows if r.op == "all_reduce"] == [("", 96)]
    assert "bandwidth-optimal" in str(table)
    assert "bandwidth-optimal" not in str(ring(2).ledger().table())


def test_totals_keep_messages_and_built_ins_apart() -> None:
    run = ring(2, 100)
    run.built_in("all_reduce", 1000)
    text = str(run.ledger().table())
    expected = "Each rank sent 1,200 bytes: 200 in 2 messages, 1,000 in built-in collectives."
    assert expected in text
    run = MadeRun(6)
    for dst in range(1, 6):
        for _ in range(dst):
            run.one(dst, 0, 10)
    assert "The ranks sent 0 to 50 bytes each, 150 together." in str(run.ledger().table())


def test_without_times_the_table_is_the_same_in_every_run(seed: int) -> None:
    first, second = (ring(5, 256, seed + k).ledger() for k in (0, 1))
    assert str(first.table(times=False)) == str(second.table(times=False))
    assert first.table(times=False)._repr_html_() == second.table(times=False)._repr_html_()
    assert str(first.table()) != str(second.table())
    assert "blocked" in str(first.table()) and "blocked" not in str(first.table(times=False))


def test_the_blocked_time_is_that_of_the_ranks() -> None:
    run = MadeRun(2)
    run.add(0, "send", 1, 4, 0.0, 0.0, 0.002)
    run.add(1, "recv", 0, 4, 0.001, 0.001, 0.002)
    send, recv = run.ledger().table().rows
    assert send.blocked == pytest.approx((0.002,)) and recv.blocked == pytest.approx((0.001,))
    assert re.search(r"send .* 2 ms ", str(run.ledger().table()))


def test_html_escapes_the_students_source() -> None:
    run = MadeRun(2)
    run.source = "if a<b: dist.send(t, 1)  # <script>"
    run.one(0, 1)
    page = run.ledger().table()._repr_html_()
    assert "&lt;script&gt;" in page and "<script>" not in page
    assert page.count("<tr>") == 3 and page.count("<th ") == 9


def test_text_fits_a_notebook() -> None:
    run = ring(8, 1_000_000)
    run.built_in("reduce_scatter", 8_000_000)
    assert max(map(len, str(run.ledger().table()).splitlines())) < 100


def test_long_file_names_keep_their_end_and_long_lists_of_ranks_are_counted() -> None:
    run = MadeRun(16)
    run.line = "a_rather_long_name_of_a_training_script_of_yours.py, line 1234"
    run.built_in("reduce_scatter", 1_234_567_890, group=(0, 2, 4, 6, 8, 10), root=None)
    text = str(run.ledger().table())
    assert run.line not in text and "a_rather" not in text
    assert "yours.py:1234" in text and "group 6 of 0-10" in text
    assert "10 of 1-15 each sent nothing." in text


def test_an_empty_table_says_so() -> None:
    table = Ledger(2, [[], []]).table()
    assert str(table) == "No communication was recorded."
    assert "<table>" not in table._repr_html_() and "No communication" in table._repr_html_()


def test_the_ledger_leaves_its_input_alone() -> None:
    run = ring(2)
    ledger = run.ledger()
    before = ledger.operations()
    run.one(0, 1)
    ledger.operations().clear()
    ledger.messages().clear()
    assert ledger.operations() == before and len(ledger.messages()) == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        before[0].nbytes = 3
