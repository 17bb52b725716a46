"""Every classic failure ends in its own message, in seconds, and the next launch works.

Each is tried through send/recv, isend/irecv and batch_isend_irecv: they reach the recorder by
different ways, and the code that explains one of them may miss another.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from course_lib import Deadlock, RankError, RankTimeout, launch
from course_lib.ledger import rows
from course_lib.ledger.group import put_behind, real
from course_lib.ledger.pending import WorkMark
from course_lib.ledger.recorder import CommunicationError, current_recorder
from course_lib.runtime import wire
from course_lib.runtime.diagnosis import PACKAGE, deaths, stack_line
from course_lib.runtime.rank import explain_missing_events
from course_lib.runtime.watch import Watch

STYLES = ["send/recv", "isend/irecv", "batch"]


def post(style: str, op: str, tensor: torch.Tensor, peer: int, tag: int = 0) -> None:
    """Send or receive, and wait for it, in one of three ways."""
    if style == "send/recv":
        (dist.send if op == "send" else dist.recv)(tensor, peer, tag=tag)
    elif style == "isend/irecv":
        (dist.isend if op == "send" else dist.irecv)(tensor, peer, tag=tag).wait()
    else:
        call = dist.isend if op == "send" else dist.irecv
        for handle in dist.batch_isend_irecv([dist.P2POp(call, tensor, peer, tag=tag)]):
            handle.wait()


def fails(
    body: Callable,
    kind: type[RankError],
    *says: str,
    world_size: int = 3,
    timeout: float = 30,
    within: float = 20,
) -> RankError:
    """`body` must fail with `kind` and all of `says`; the next launch must work, at once."""
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(body, world_size=world_size, timeout=timeout)
    took = time.monotonic() - began
    print(f"after {took:.2f} s: {type(caught.value).__name__}: {caught.value}")
    assert type(caught.value) is kind
    for words in says:
        assert words in str(caught.value)
    assert took < within, "a bound on hanging, not a measurement"
    assert launch(dist.get_rank, world_size=world_size) == list(range(world_size))
    return caught.value


@pytest.mark.parametrize("style", STYLES)
def test_circular_receive(style: str) -> None:
    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        post(style, "recv", torch.empty(4), (rank - 1) % n)
        post(style, "send", torch.empty(4), (rank + 1) % n)

    error = fails(
        body, Deadlock, "rank 0 -> rank 2 -> rank 1 -> rank 0", "rank 1: in recv(src=0) float32[4]",
        "waits for rank 0", "test_failures.py, line", "Let one of them send first",
    )  # fmt: skip
    assert [op.op for op in error.ledger.operations(1)] == ["recv"]


@pytest.mark.parametrize("style", STYLES)
def test_everybody_sends_first(style: str) -> None:
    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        post(style, "send", torch.empty(4), (rank + 1) % n)
        post(style, "recv", torch.empty(4), (rank - 1) % n)

    fails(
        body, Deadlock, "rank 0 -> rank 1 -> rank 2 -> rank 0", "in send(dst=1) float32[4]",
        "Let one of them receive first",
    )  # fmt: skip


def test_a_circle_of_sends_and_a_receive() -> None:
    """Neither remedy for a circle of one kind helps here."""

    def body() -> None:
        x, rank = torch.empty(4), dist.get_rank()
        dist.recv(x, 0) if rank == 2 else dist.send(x, rank + 1)

    fails(body, Deadlock, "rank 0 -> rank 1 -> rank 2 -> rank 0", "Change the order in one of them")


@pytest.mark.parametrize("style", STYLES)
def test_receive_from_a_rank_that_has_finished(style: str) -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            post(style, "recv", torch.empty(4), 1)

    fails(body, Deadlock, "rank 0 waits for rank 1, which has finished", "rank 1: has finished")


@pytest.mark.parametrize("style", STYLES)
def test_tags_that_differ(style: str) -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            post(style, "send", torch.ones(2), 1, tag=1)
        elif dist.get_rank() == 1:
            post(style, "recv", torch.ones(2), 0, tag=2)

    fails(body, Deadlock, "tag=1", "tag=2", "only with the tag")


def test_a_deadlock_beside_a_rank_that_computes() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank < 2:
            dist.recv(torch.empty(1), 1 - rank)
        while True:
            pass

    fails(body, Deadlock, "rank 0 -> rank 1 -> rank 0", "rank 2: computes, in no communication")


@pytest.mark.parametrize("inner", ["<lambda>", "__init__"])
def test_a_rank_within_a_generated_constructor_is_at_the_students_line(inner: str) -> None:
    """Its code, a lambda in a named tuple, is in a file without a name."""
    dump = (
        "Current thread 0x1 (most recent call first):\n"
        f'  File "<string>", line 1 in {inner}\n'
        '  File "/home/ada/loop.py", line 7 in <listcomp>\n'
        f'  File "{PACKAGE}/runtime/rank.py", line 10 in main\n'
        '  File "<string>", line 1 in <module>\n'
    )
    watch = SimpleNamespace(pool=SimpleNamespace(stack=lambda rank: dump))
    assert "loop.py, line 7" in stack_line(cast(Watch, watch), 0)


def test_a_slow_partner_is_no_deadlock() -> None:
    def body() -> float:
        rank, t = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            time.sleep(2.5)
            dist.send(t + 1, 1)
        elif rank == 1:
            dist.recv(t, 0)
            dist.send(t, 2)
        else:
            dist.recv(t, 1)
        return t.item()

    assert list(launch(body, world_size=3)) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("style", STYLES)
def test_a_send_posted_before_is_no_deadlock(style: str) -> None:
    """Rank 0 has its send in flight while it blocks in a receive: its partner can receive the message."""

    def body() -> float:
        rank, t = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            handle = dist.isend(t + 5, 1)
            post(style, "recv", t, 1)
            handle.wait()
        else:
            got = torch.zeros(1)
            time.sleep(1.5)
            post(style, "recv", got, 0)
            post(style, "send", got * 2, 0)
        return t.item()

    assert launch(body, world_size=2)[0] == 10.0


def test_receive_from_anybody() -> None:
    def good() -> float:
        t = torch.zeros(1)
        if dist.get_rank() == 0:
            total = 0.0
            for _ in range(2):
                dist.recv(t)
                total += t.item()
            return total
        dist.send(t + dist.get_rank(), 0)
        return 0.0

    assert launch(good, world_size=3)[0] == 3.0

    def bad() -> None:
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1))

    fails(bad, Deadlock, "recv(src=any)", "waits for ranks 1 and 2, which have finished")


COLLECTIVES: dict[str, Callable[[], None]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
    "barrier": lambda: dist.barrier(),
    "broadcast": lambda: dist.broadcast(torch.ones(3), 0),
    "all_gather": lambda: dist.all_gather([torch.ones(3) for _ in range(3)], torch.ones(3)),
    "new_group": lambda: dist.new_group([0, 1, 2]),
    "async": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_that_one_rank_skips(name: str) -> None:
    call = COLLECTIVES[name]

    def body() -> None:
        if dist.get_rank() != 2:
            call()

    fails(body, Deadlock, "which has finished", "rank 2: has finished", "in the same order")


def ddp(hook: Callable | None = None) -> Callable[[], None]:
    """Rank 0 alone goes backward through PyTorch's DDP, which waits in C++ at the end."""

    def body() -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        if hook is not None:
            model.register_comm_hook(None, hook)
        loss = model(torch.ones(2, 4)).sum()
        if dist.get_rank() == 0:
            loss.backward()

    return body


def hook_of_a_student(state, bucket):  # DDP reads annotations, and knows no texts
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0])


def waits_for_futures() -> None:
    if dist.get_rank() == 0:
        handles = [dist.all_reduce(torch.ones(20), async_op=True) for _ in range(2)]
        torch.futures.wait_all([handle.get_future() for handle in handles])


@pytest.mark.parametrize(
    "body", [ddp(), ddp(hook_of_a_student), waits_for_futures], ids=["DDP", "hook", "futures"]
)
def test_a_wait_in_cpp(body: Callable) -> None:
    fails(
        body, Deadlock, "rank 0 waits for rank 1, which has finished", "in all_reduce float32[20]",
        "test_failures.py, line", "if rank == ...", world_size=2, timeout=60, within=60,
    )  # fmt: skip


def test_a_rank_with_work_outstanding_that_does_something_else_is_no_deadlock() -> None:
    """It computes, sleeps, and waits for a thread, each for longer than a deadlock takes to be called one."""

    def compute(seconds: float) -> None:
        end, x = time.monotonic() + seconds, torch.ones(400, 400)
        while time.monotonic() < end:
            x = x @ x / 400

    def body() -> float:
        x = torch.ones(3)
        if dist.get_rank() == 1:
            dist.recv(x, 0)
            dist.all_reduce(x)
            return x[0].item()
        future = dist.all_reduce(x, async_op=True).get_future()
        for busy in (compute, time.sleep):
            busy(1.3)
        thread = threading.Thread(target=time.sleep, args=[1.3])
        thread.start()
        thread.join()
        dist.send(torch.ones(3), 1)
        future.wait()
        return x[0].item()

    assert launch(body, world_size=2) == [2.0, 2.0]


def test_a_collective_skipped_in_a_subgroup() -> None:
    def body() -> None:
        group = dist.new_group([0, 2], backend="gloo")
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3), group=group)

    fails(body, Deadlock, "of group [0, 2]", "rank 0 waits for rank 2")


def test_two_ranks_in_different_collectives() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            dist.broadcast(torch.ones(3), 0)
        else:
            dist.all_reduce(torch.ones(3))

    fails(
        body,
        RankError,
        "do not agree on their collective number 1",
        "rank 1: broadcast",
        "all_reduce float32[3]",
    )


@pytest.mark.parametrize(
    ("mine", "its"),
    [((4,), (5,)), ((4,), (2,)), ((2, 3), (7,))],
)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("late", ["send", "recv"])
def test_sizes_that_differ(style: str, late: str, mine: tuple, its: tuple) -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            time.sleep(0.2 * (late == "send"))
            post(style, "send", torch.ones(mine), 1)
        elif dist.get_rank() == 1:
            time.sleep(0.2 * (late == "recv"))
            post(style, "recv", torch.ones(its), 0)

    fails(
        body, RankError, f"rank 0 sends float32{list(mine)}", f"rank 1 receives into float32{list(its)}",
        "same number of elements and the same dtype",
    )  # fmt: skip


@pytest.mark.parametrize("style", STYLES[1:])
def test_sizes_that_differ_behind_a_sender_that_is_far_ahead(style: str, seed: int) -> None:
    """The recorder keeps the sizes of earlier messages: in gloo a wrong one aborts the receiver's process."""
    wrong = random.Random(f"{seed} {style}").randrange(500)

    def body() -> None:
        if dist.get_rank() == 0:
            tensors = [torch.ones(4 + (k == wrong)) for k in range(500)]
            if style == "batch":
                works = dist.batch_isend_irecv([dist.P2POp(dist.isend, one, 1) for one in tensors])
            else:
                works = [dist.isend(one, 1) for one in tensors]
            dist.barrier()
            for work in works:
                work.wait()
        else:
            dist.barrier()
            for _ in range(500):
                post(style, "recv", torch.empty(4), 0)

    fails(
        body, RankError, "rank 0 sends float32[5], but rank 1 receives into float32[4]", world_size=2
    )  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_dtypes_that_differ(style: str) -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            post(style, "send", torch.ones(4), 1)
        elif dist.get_rank() == 1:
            post(style, "recv", torch.ones(4, dtype=torch.int32), 0)

    fails(body, RankError, "float32[4]", "int32[4]", "the same dtype")


def test_sizes_that_differ_in_a_collective() -> None:
    def body() -> None:
        dist.all_reduce(torch.ones(4 + (dist.get_rank() == 2)))

    fails(body, RankError, "rank 2: all_reduce float32[5]", "of the same size and dtype")


def test_different_shapes_of_one_size_are_fine() -> None:
    def body() -> float:
        t = torch.ones(2, 3) if dist.get_rank() else torch.ones(6)
        dist.all_reduce(t)
        return t.sum().item()

    assert list(launch(body, world_size=2)) == [12.0, 12.0]


@pytest.mark.parametrize("style", [*STYLES, "all_reduce"])
def test_a_tensor_that_is_not_contiguous(style: str) -> None:
    def body() -> None:
        t = torch.ones(4, 4)[:, ::2]
        if style == "all_reduce":
            dist.all_reduce(t)
        elif dist.get_rank() < 2:
            post(style, "send" if dist.get_rank() == 0 else "recv", t, 1 - dist.get_rank())

    fails(body, RankError, "not contiguous", "strides (4, 2)", ".contiguous()")


def test_a_tensor_on_another_device() -> None:
    fails(
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        RankError,
        "on meta",
        "course_lib.device()",
    )


def test_a_receive_from_oneself() -> None:
    def body() -> None:
        dist.recv(torch.ones(2), dist.get_rank())

    fails(body, RankError, "rank 0 would receive from itself", "group_src=")


def test_one_rank_raises_and_the_others_are_not_blamed() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            raise ValueError("bad luck")
        dist.all_reduce(torch.ones(3))

    error = fails(body, RankError, "rank 1 raised ValueError: bad luck", "waits for rank 1")
    assert str(error).count("Traceback") == 0
    assert "--- rank 1 ---" in str(error) and "--- rank 0" not in str(error)
    assert 'raise ValueError("bad luck")' in str(error)


def test_the_same_error_of_several_ranks_is_told_once() -> None:
    def body() -> None:
        raise AssertionError("no such rank")

    error = fails(
        body, RankError, "all ranks raised AssertionError: no such rank", "--- ranks 0, 1 and 2 ---"
    )
    assert str(error).count("in body") == 1


def test_the_first_line_names_only_the_ranks_that_raised_this_error() -> None:
    def body() -> None:
        raise (ValueError("too few"), KeyError("too many"), ValueError("far too few"))[
            dist.get_rank()
        ]

    error = fails(body, RankError, "ranks 0 and 2 raised ValueError: too few\n")
    assert "--- rank 1 ---" in str(error) and "KeyError: 'too many'" in str(error)


def test_an_explained_error_is_named_before_the_librarys() -> None:
    """gloo can refuse a size on one rank before another has seen that the two ranks disagree."""

    def body() -> None:
        if dist.get_rank() == 0:
            raise RuntimeError("[F1130 ProcessGroupGloo.cpp:1537] Check failed")
        raise CommunicationError("the ranks do not agree on their collective number 1")

    says = "the ranks do not agree on their collective number 1\n"
    error = fails(body, RankError, says, "--- rank 0 ---", "Check failed", world_size=2)
    assert str(error).startswith(says)


def test_a_function_that_calls_itself_without_end_does_not_fill_the_page() -> None:
    def body() -> None:
        def odd(n: int) -> int:
            return even(n + 1)

        def even(n: int) -> int:
            return odd(n + 1)

        odd(1)

    error = fails(body, RankError, "all ranks raised RecursionError: maximum recursion depth")
    said = str(error)
    assert "in body" in said and "return even(n + 1)" in said and " more calls ...\n" in said
    assert said.count("\n") < 50


def test_chained_errors_show_their_cause() -> None:
    def body() -> None:
        try:
            {}["missing"]
        except KeyError as cause:
            raise RuntimeError("while looking") from cause

    fails(body, RankError, "KeyError: 'missing'", "RuntimeError: while looking", world_size=1)


def test_an_infinite_loop() -> None:
    def body() -> None:
        while dist.get_rank() == 1:
            pass
        dist.barrier()

    fails(
        body, RankTimeout, "not finished after 2 seconds", "Rank 1 still computed",
        "while dist.get_rank() == 1", "rank 0: in barrier", "timeout=seconds", timeout=2,
    )  # fmt: skip


def test_a_loop_that_swallows_everything() -> None:
    def body() -> None:
        while True:
            try:
                time.sleep(1)
            except BaseException:
                continue

    fails(body, RankTimeout, "not finished after 1 seconds", "time.sleep(1)", timeout=1)


@pytest.mark.parametrize(
    ("hows", "says"),
    [
        (
            {1: "it called os._exit(3), or a library did"},
            "rank 1 died: it called os._exit(3), or a library did.",
        ),
        (
            dict.fromkeys(range(3), "it called os._exit(3), or a library did"),
            "ranks 0, 1 and 2 died: each called os._exit(3), or a library did.",
        ),
        (
            {0: "killed by SIGKILL", 1: "killed by SIGSEGV", 2: "killed by SIGKILL"},
            "ranks 0 and 2 died: killed by SIGKILL. rank 1 died: killed by SIGSEGV.",
        ),
    ],
)
def test_a_cause_is_told_once_with_the_ranks_that_it_ended(hows: dict[int, str], says: str) -> None:
    assert deaths(hows) == says


def die(how: str) -> None:
    if how == "os._exit":
        os._exit(3)
    elif how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segmentation fault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "sys.exit":
        sys.exit(3)
    else:
        torch.empty(1 << 50)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("os._exit", "os._exit(3)"),
        ("SIGKILL", "SIGKILL"),
        ("segmentation fault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("sys.exit", "raised SystemExit: 3"),
        ("out of memory", "can't allocate memory"),
    ],
)
def test_a_rank_that_dies(how: str, says: str) -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            dist.send(torch.ones(1), 2)
            die(how)
        elif dist.get_rank() == 2:
            dist.recv(torch.ones(1), 1)
        dist.barrier()

    error = fails(body, RankError, says, "rank 1")
    assert "rank 0 raised" not in str(error) and "rank 2 raised" not in str(error)


@pytest.mark.parametrize("numel", [1, 1000, 1_000_000])
def test_a_send_buffer_changed_before_wait(numel: int) -> None:
    def body() -> None:
        t = torch.ones(numel)
        if dist.get_rank() == 0:
            handle = dist.isend(t, 1)
            t.add_(1)
            handle.wait()
        elif dist.get_rank() == 1:
            dist.recv(t, 0)

    fails(body, RankError, "was changed before wait()", "rank 0 sends to rank 1", "clone()")


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_handle_waited_for_twice(waiting: int) -> None:
    def body() -> None:
        t, rank = torch.ones(4), dist.get_rank()
        if rank < 2:
            handle = dist.isend(t, 1) if rank == 0 else dist.irecv(t, 0)
            handle.wait()
            if rank == waiting:
                handle.wait()

    fails(body, RankError, "a second wait() never returns", f"rank {waiting}")


@pytest.mark.parametrize("op", ["isend", "irecv", "batch"])
def test_a_handle_never_waited_for(op: str) -> None:
    def body() -> None:
        t, rank = torch.ones(4), dist.get_rank()
        if rank == 0:
            if op == "isend":
                dist.isend(t, 1)
            elif op == "batch":
                dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1)])
            else:
                dist.send(t, 1)
        elif rank == 1:
            if op == "irecv":
                dist.irecv(t, 0)
            else:
                dist.recv(t, 0)

    what = "irecv(src=0)" if op == "irecv" else "isend(dst=1)"
    fails(
        body,
        RankError,
        "returned without waiting for",
        what,
        "call wait() on it",
        "test_failures.py, line",
    )


@pytest.mark.parametrize("numel", [4, 300_000])  # fits into the socket, does not
def test_a_message_whose_handle_is_dropped_arrives(numel: int) -> None:
    """gloo may forget it: the receiver would wait for ever, and no message would say why."""

    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        x, y = torch.ones(numel), torch.empty(numel)
        dist.isend(x, (rank + 1) % n)
        dist.isend(x, (rank - 1) % n)
        dist.recv(y, (rank - 1) % n)
        dist.recv(y, (rank + 1) % n)

    fails(
        body,
        RankError,
        "rank 0: the function returned without waiting for isend(dst=1)",
        "Ranks 1 and 2 did not wait for every handle either.",
    )


def test_ranks_that_forget_the_same_message_are_told_together() -> None:
    def body() -> None:
        x = torch.ones(4)
        if dist.get_rank() == 0:
            dist.recv(x, 1)
            dist.recv(x, 2)
        else:
            dist.isend(x, 0)

    error = fails(
        body, RankError, "ranks 1 and 2: the function returned without waiting for isend(dst=0)"
    )
    assert "either" not in str(error)


def test_a_line_that_begins_many_messages_is_quoted_once() -> None:
    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        x, y = torch.ones(4), torch.empty(4)
        for _ in range(3):
            right = dist.P2POp(dist.isend, x, (rank + 1) % n)
            dist.batch_isend_irecv([right, dist.P2POp(dist.irecv, y, (rank - 1) % n)])

    error = fails(body, RankError, "and 4 more. isend and irecv only begin a message")
    (line,) = [line for line in str(error).splitlines() if "returned without waiting" in line]
    assert line.count("dist.batch_isend_irecv") == 1 and "isend(dst=1) of float32[4], irecv" in line


def test_polling_a_handle_counts_as_waiting() -> None:
    def body() -> float:
        t = torch.zeros(1)
        handle = dist.all_reduce(t.add_(1), async_op=True)
        while not handle.is_completed():
            time.sleep(0.001)
        return t.item()

    run = launch(body, world_size=2)
    assert run[1] == 2.0
    assert run.ledger.operations(1)[0].waited


@pytest.mark.parametrize("byte", [b"\xff", b"\0", b"\x7f", b"\x01"])
def test_a_rank_that_writes_rubbish_to_every_descriptor(byte: bytes) -> None:
    """Its control socket, its board, its log: no reader of them may fail on rubbish."""

    def body() -> None:
        for fd in range(3, 40):
            try:
                os.write(fd, byte * 4096)
            except OSError:
                continue

    with pytest.raises(RankError):
        launch(body, world_size=1, timeout=5)
    assert launch(dist.get_rank, world_size=1) == [0]


def test_a_rank_that_overwrites_its_record_is_told() -> None:
    def body() -> float:
        total = torch.ones(3)
        dist.all_reduce(total)
        rows_in_memory = current_recorder().log.rows.map
        rows_in_memory[: rows.ROW.size] = b"\xff" * rows.ROW.size
        return total[0].item()

    fails(lambda: body(), RankError, "ranks 0, 1 and 2 overwrote the memory in which")


def test_a_rank_that_cuts_the_shared_memory_does_not_end_the_notebook() -> None:
    """A process that reads a mapped file beyond a cut is ended by SIGBUS."""

    def body() -> int:
        for fd in range(3, 40):
            for size in (0, 1 << 40):
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
        return 1

    with contextlib.suppress(RankError):
        launch(body, world_size=2, timeout=5)
    assert launch(dist.get_rank, world_size=2) == [0, 1]


REPLIES = [
    {}, {"ok": True}, {"ok": "yes", "header": {}}, {"ok": False}, {"ok": False, "error": {"chain": []}},
    {"ok": False, "error": {"chain": [{"type": 1, "text": "", "frames": []}]}},
    {"ok": False, "error": {"chain": [{"type": "E", "text": "", "frames": [["f", "1", "g"]]}]}},
    {"ok": False, "error": {"chain": [{"type": "E", "text": "", "frames": 5}]}},
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES, ids=str)
def test_a_rank_that_answers_in_the_recorders_place(reply: dict) -> None:
    def body() -> None:
        task = current_recorder().state.task
        sock = next(one for one in gc.get_objects() if type(one) is socket.socket)
        wire.send(sock, {"task": task, **reply})
        time.sleep(60)

    with pytest.raises(RankError, match="could not be read"):
        launch(body, world_size=1, timeout=20)


def test_a_rank_that_dies_of_a_signal_without_a_name() -> None:
    def body() -> None:
        os.kill(os.getpid(), signal.SIGRTMIN + 3)

    with pytest.raises(RankError, match=r"killed by signal \d+"):
        launch(body, world_size=1, timeout=20)


class OnAStream:
    """The group behind the recorder as NCCL is: waiting holds up a stream, and the host goes on.

    A synchronous collective hands back nothing, as from PyTorch 2.8 on. The stream is gloo's own thread.
    """

    def __init__(self, group: Any):
        self.inner, self.group = real(group), group
        put_behind(group, self)
        group.on_device = lambda tensors: True
        self.last: Any = None
        current_recorder().pending.mark = self.mark

    def mark(self, work: Any = None) -> Any:
        last, now = self.last, time.monotonic()
        if last is None:
            return type("Start", (), {"passed": lambda _: True, "moment": lambda _: now})()
        return WorkMark(last)

    def allreduce(self, tensors: list, options: Any) -> Any:
        self.last = self.inner.allreduce(tensors, options)
        if not getattr(options, "asyncOp", False):
            return None
        return type(
            "Queued", (), {"wait": lambda _: True, "is_completed": self.last.is_completed}
        )()


@pytest.mark.parametrize("handle", [True, False], ids=["with a handle", "synchronous"])
def test_a_hang_on_a_gpus_stream_is_seen_although_the_host_has_gone_on(handle: bool) -> None:
    def body(skip: bool) -> float:
        stream = OnAStream(dist.group.WORLD)
        if not (skip and dist.get_rank() == 2):
            x = torch.ones(3)
            if handle:
                dist.all_reduce(x, async_op=True).wait()
            else:
                dist.all_reduce(x)
            if skip:
                time.sleep(100)  # the host in .item()
            while not stream.last.is_completed():
                time.sleep(0.001)
        return 1.0

    run = launch(body, False, world_size=3, backend="gloo")
    for rank in range(3):
        (op,) = run.ledger.operations(rank)
        assert op.issued <= op.completed <= run.seconds
        assert op.line != ""
    fails(
        lambda: body(True), Deadlock, "ranks 0 and 1 wait for rank 2, which has finished",
        "in all_reduce float32[3]", ".wait()" if handle else "dist.all_reduce(x)",
    )  # fmt: skip


def test_messages_of_a_batch_are_waited_for_when_their_handle_is() -> None:
    """NCCL hands back nothing for each of them, and a handle for all."""

    class Batches:
        def __init__(self, group: Any):
            self.inner, self.begun = real(group), []
            put_behind(group, self)
            group.on_device = lambda tensors: True

        def _start_coalescing(self, device: torch.device) -> None:
            self.calls: list[Callable[[], Any]] = []

        def send(self, *args: Any) -> None:
            self.calls.append(lambda: self.inner.send(*args))

        def recv(self, *args: Any) -> None:
            self.calls.append(lambda: self.inner.recv(*args))

        def _end_coalescing(self, device: torch.device) -> Any:
            works = [call() for call in self.calls]

            class All(dist.Work):
                def wait(self, timeout: Any = None) -> bool:
                    return all([works.pop().wait() for _ in list(works)])

            return All()

    def body(wait: bool) -> tuple[list[int], list[int], float]:
        group: Any = dist.group.WORLD
        Batches(group)
        past = type("Past", (), {"passed": lambda _: True, "moment": lambda _: time.monotonic()})
        current_recorder().pending.mark = lambda work=None: past()
        rank, x = dist.get_rank(), torch.zeros(3)
        group._start_coalescing(x.device)
        assert dist.isend(torch.full((3,), 1.0 + rank), 1 - rank) is None
        assert dist.irecv(x, 1 - rank) is None
        handle = group._end_coalescing(x.device)
        before = current_recorder().never_waited()
        if wait:
            handle.wait()
        return before, current_recorder().never_waited(), x.sum().item()

    run = launch(body, True, world_size=2, backend="gloo")
    assert list(run) == [([0, 1], [], 6.0), ([0, 1], [], 3.0)]
    assert all(one.completed for rank in (0, 1) for one in run.ledger.operations(rank))
    fails(lambda: body(False), RankError, "returned without waiting for", world_size=2)


def test_operations_of_a_kept_rank_stay_with_their_own_task() -> None:
    """An operation that the stream finishes after its task must not be booked in the next task's rows."""

    def body() -> tuple[int, int]:
        never = type("Never", (), {"passed": lambda _: False, "moment": lambda _: 0.0})()
        pending = current_recorder().pending
        pending.mark = lambda work=None: never
        pending.add(0, None)
        before = len(pending.open)
        current_recorder().begin_task(current_recorder().state.task)
        return before, len(pending.open)

    assert launch(body, world_size=2, backend="gloo") == [(1, 0), (1, 0)]


def test_fully_shard_on_streams_without_events_fails_with_a_sentence() -> None:
    """PyTorch 2.6 has such streams on a CPU."""

    class Old:
        pass

    class New:
        def record_event(self) -> int:
            return 1

    for stream in (Old, New):
        explain_missing_events(stream)
    assert New().record_event() == 1
    with pytest.raises(RuntimeError, match=r"runs fully_shard on GPUs alone.*not the cause"):
        Old().record_event()  # type: ignore[attr-defined]
