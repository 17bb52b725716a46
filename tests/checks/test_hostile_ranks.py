"""The judge reads a rank's answers and never believes them: on any bytes it has a verdict and no error.

A rank runs a student's code and holds the channel to its judge and the memory of its own record. So each of
them is filled here with anything that it can hold.
"""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from course_lib.checks.judge import replies, traffic, witness
from course_lib.checks.judge.case import Case, Draw, Exercise, Finding, Observed
from course_lib.checks.judge.find import find
from course_lib.ledger import rows
from course_lib.ledger.group import RecordingGroup
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.read import read_ledger
from course_lib.ledger.recorder import CommunicationError, Recorder
from course_lib.runtime import wire
from course_lib.runtime.places import where
from course_lib.runtime.replying import well_formed
from course_lib.runtime.run import Outcome

ODD: list[Any] = [
    None, True, -1, 0, 1 << 62, 1 << 200, 0.5, float("nan"), float("inf"), "", "x" * 9999, "\ud800",
    "9" * 5000, [], [[]], [-1], [-1, -6], [0, -5], [0, 1 << 90], [1] * 5000, ["float32"], {},
    {"": None}, {"result": []},
]  # fmt: skip


def changed(data: Any, draw: random.Random) -> Any:
    """`data` with something odd in one of its places."""
    inside = isinstance(data, dict | list) and data and draw.random() < 0.8
    if not inside:
        return draw.choice(ODD)
    place = draw.choice(list(data)) if isinstance(data, dict) else draw.randrange(len(data))
    copy = data.copy()
    copy[place] = changed(copy[place], draw)
    return copy


@pytest.fixture(scope="module")
def exercise() -> Exercise:
    return find("00_first_ranks/neighbour_sum")


@pytest.fixture
def case(exercise: Exercise, seed: int) -> Case:
    return next(iter(exercise.cases(Draw(seed, True))))


def answer(case: Case, rank: int) -> tuple[dict, list[bytearray]]:
    """The answer that an honest rank sends, with zeros in its tensors."""
    outputs = case.sides[rank].outputs
    tensors = [[name, str(spec.dtype)[6:], list(spec.shape)] for name, spec in outputs.items()]
    buffers = [bytearray(spec.nbytes) for spec in outputs.values()]
    return {"values": {}, "others": {}, "tensors": tensors}, buffers


def read(exercise: Exercise, case: Case, answers: list) -> Observed | Finding:
    empty = Ledger(case.world_size, [[] for _ in answers], "gloo")
    return replies.read(exercise, case, Outcome(answers, None, empty, 0.0, "gloo", []))


def test_an_answer_of_whatever_form_is_read(exercise: Exercise, case: Case, seed: int) -> None:
    draw = random.Random(seed)
    honest = [answer(case, rank) for rank in range(case.world_size)]
    assert isinstance(read(exercise, case, honest), Observed)
    for _ in range(600):
        header, buffers = honest[0]
        found = read(exercise, case, [(changed(header, draw), buffers), *honest[1:]])
        assert isinstance(found, Observed | Finding)


@pytest.mark.parametrize(
    "shape",
    [
        [-1, -6],
        [0, -5],
        [0, 1 << 90],
        [6.0],
        [True, 6],
        [float("inf")],
        [1] * 5000 + [6],
        "6",
        None,
    ],
    ids=lambda shape: str(shape)[:20],
)
def test_a_shape_that_no_tensor_has_is_refused(shape: Any) -> None:
    buffer = bytearray(24 if shape != [0, -5] and shape != [0, 1 << 90] else 0)
    with pytest.raises(wire.WireError, match="shape"):
        wire.unpack_tensors([["result", "float32", shape]], [buffer])


def test_an_account_of_an_error_is_bounded(seed: int) -> None:
    link = {"type": "E", "text": "", "frames": [["Cell In[1]", 1, "f"]], "within": "f"}
    honest = {"ok": False, "error": {"chain": [link], "ours": False}}
    assert well_formed(honest) == honest
    for name, most in (("type", 200), ("text", 20_000), ("within", 200)):
        longer = {"ok": False, "error": {"chain": [{**link, name: "x" * (most + 1)}]}}
        with pytest.raises(wire.WireError):
            well_formed(longer)


# ---- the record


TEXTS = [
    "", "|", "g|", "g|0", "g|0,0", "g|1,0", "g|0,1,2", "g|" + "9" * 5000, "float32|", "float32|2,3",
    "float32|-1", "float32|" + ",".join(["9" * 18] * 3000), "sparse|9999999", "x|\u0661",
    "Cell In[1]|" + "9" * 5000, "\0|5", "Cell In[1]|3", "/etc/passwd|1", "__name__|1",
]  # fmt: skip


def written(draw: random.Random, log: rows.Log, world_size: int) -> rows.Row:
    """A row of random values, most of them in their bounds, so that much of it is accepted."""
    texts = [log.text(text) for text in TEXTS]
    times = [0.0, 1e-9, 5.0, 1e300, -1.0, float("nan"), float("inf")]
    return rows.Row(
        op=draw.randrange(len(rows.OPS) + 1), flags=draw.randrange(256),
        peer=draw.choice([-1, 0, world_size - 1, world_size, -(1 << 31)]), tag=draw.choice([0, -1, 1 << 30]),
        group=draw.choice(texts), tensor=draw.choice(texts), line=draw.choice([*texts, 3, 1 << 31]),
        turn=draw.choice([0, 1, 1 << 31]), wait_line=0, nbytes=draw.choice([0, 24, 1 << 63]),
        bytes_sent=draw.choice(times), issued=draw.choice(times), blocked=draw.choice(times),
        completed=draw.choice(times),
        waited=draw.choice(times),
    )  # fmt: skip


def test_a_record_that_holds_anything_is_read(seed: int) -> None:
    draw, world_size = random.Random(seed), 2
    board_fd = rows.anonymous_file("board", rows.Board.size(world_size))
    board, whole = rows.Board(board_fd, world_size), 0
    for _ in range(150):
        logs = []
        for rank in range(world_size):
            fds = (rows.anonymous_file("rows"), rows.anonymous_file("texts"))
            log, count = rows.Log(*fds), draw.randrange(3)
            for _ in range(count):
                log.add(written(draw, log, world_size))
            board.write(
                rank, rows.RankState(0, 2, 1, count, log.texts.end, 0.0, draw.randrange(-1, 3), 0)
            )
            logs.append(fds)
        ledger = read_ledger(board, logs, 0.0, where, "gloo", 1.0)
        if not ledger.damaged:  # otherwise the run has failed, and nothing more is read of it
            whole += 1
            ledger.unmatched()
            ledger.rounds()
            traffic.used([ledger.operations(rank) for rank in range(world_size)], traffic.BUILT_IN)
            witness.contradicted(ledger, 1000)
        for fd in (fd for fds in logs for fd in fds):
            os.close(fd)
    os.close(board_fd)
    assert whole > 10, "too few records came through for this to show anything"


def test_of_a_record_no_more_is_read_than_a_judge_can_hold() -> None:
    """Objects of a million rows take a gigabyte, and there may be eight ranks."""
    fds = (rows.anonymous_file("rows"), rows.anonymous_file("texts"))
    log = rows.Log(*fds)
    texts = log.text("g|0,1"), log.text("float32|2"), log.text("Cell In[1]|3")
    row = rows.Row(0, 3, 1, 0, *texts, 1, 0, 8, 8.0, 0.0, 0.0, 0.0, 0.0)
    for _ in range(11):
        log.add(row)
    state = rows.RankState(0, 2, 1, 11, log.texts.end, 0.0, -1, 0)
    assert rows.read_log(*fds, state, 2)[::2] == ([row] * 11, False)
    few = rows.read_log(*fds, state, 2, rows.Most(10, 1 << 20))
    assert (few.rows, few.damaged) == ([row] * 10, True)
    assert rows.read_log(*fds, state, 2, rows.Most(11, 8)).damaged
    for fd in fds:
        os.close(fd)


def test_who_does_too_much_in_a_check_is_told_and_not_accused() -> None:
    fds = (rows.anonymous_file("rows"), rows.anonymous_file("texts"))
    board_fd = rows.anonymous_file("board", rows.Board.size(1))
    recorder = Recorder(0, 1, rows.Board(board_fd, 1), rows.Log(*fds), 5)
    recorder.state.rows = 5
    group = SimpleNamespace(ranks=(0,), label="g", channel=lambda *given: given)
    with pytest.raises(CommunicationError, match="more than 5 operations on one rank"):
        recorder.add("barrier", [], 0, cast(RecordingGroup, group))
    for fd in (*fds, board_fd):
        os.close(fd)
