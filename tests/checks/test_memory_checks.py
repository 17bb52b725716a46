"""Memory is judged by the tensors that stay: a thread that drops one late costs nothing, a solution does.

gloo's threads are late by chance to let go of a message's tensors. So a thread of these tests' own stands in
for them; they themselves have their turn on a machine that is kept busy.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from autograder.sample.mutants import Mutant
from course_lib.checks.judge import judge
from course_lib.checks.judge.case import RIGHT, Case, Draw, Exercise, Line, Observed, RankSide
from course_lib.checks.judge.find import find
from course_lib.checks.judge.training_runs import held_line, peak_line
from course_lib.checks.rank import memory
from course_lib.checks.rank.counting import alive, dense_parts, more, pieces
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.peak import Peak
from course_lib.checks.rank.training import TrainingReply
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.runtime.moments import Progress
from tests.checks.right_solutions import right_solutions
from tests.checks.sweep import busy, drawn_seeds, sweep
from tests.checks.test_mutants import judged

KIB = 1024


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    """As in a rank: tensors are looked for among objects that came after those of libraries."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Holder:
    """Keeps a tensor in a thread, which lets go of it some time after it was looked at three times."""

    def __init__(self, *tensors: torch.Tensor):
        self.looks, self.asked = 0, threading.Event()
        threading.Thread(target=self.keep, args=([*tensors],), daemon=True).start()

    def keep(self, tensors: list[torch.Tensor]) -> None:
        self.asked.wait()
        time.sleep(0.05)
        tensors.clear()

    def looked(self) -> None:
        self.looks += 1
        if self.looks == 3:
            self.asked.set()


# ---- one measurement


def test_what_a_thread_lets_go_of_late_does_not_count() -> None:
    before, holder = alive(), Holder(torch.ones(KIB))

    def count() -> int:
        holder.looked()
        return more(alive(), before)

    assert count() == 4 * KIB
    assert Patience({"held": 100}).measured("held", count) == 0


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_count_with_their_parts(layout: torch.layout) -> None:
    dense, before = torch.eye(100), alive()
    kept = dense.to_sparse(layout=layout)
    wanted = sum(part.untyped_storage().nbytes() for part in dense_parts(kept))
    assert more(alive(), before) == wanted >= 100 * (4 + 8)
    with Peak([]) as peak:
        made = dense.to_sparse(layout=layout)
    assert peak.highest >= wanted and made.layout == layout


class Liar(torch.Tensor):
    """Says of itself that it is sparse, and small."""

    layout = torch.sparse_coo

    def _indices(self) -> torch.Tensor:
        return torch.empty(0)

    _values = _indices

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.empty(0).untyped_storage()


def test_a_subclass_cannot_say_of_itself_that_it_is_small() -> None:
    kept = torch.ones(KIB).as_subclass(Liar)
    assert [nbytes for nbytes, _ in pieces([kept]).values()] == [4 * KIB]


def test_what_stays_counts_and_is_waited_for_once() -> None:
    before, kept = alive(), torch.ones(KIB)
    patience, times = Patience({"held": 100, "other": 100}), []

    def count() -> int:
        times.append(time.monotonic())
        return more(alive(), before)

    began = time.monotonic()
    assert patience.measured("held", count) == kept.nbytes
    assert len(times) > memory.PAUSES and time.monotonic() - began >= memory.LETTING_GO
    times.clear()
    assert patience.measured("held", count) == kept.nbytes and len(times) == 1
    times.clear()
    assert patience.measured("other", count) == kept.nbytes and len(times) == memory.PAUSES + 1


def test_what_falls_in_part_counts_as_what_is_left() -> None:
    before, kept, holder = alive(), torch.ones(KIB), Holder(torch.ones(2 * KIB))

    def count() -> int:
        holder.looked()
        return more(alive(), before)

    assert Patience({"held": 100}).measured("held", count) == kept.nbytes


@pytest.mark.parametrize("enough", [{}, {"held": 4 * KIB}, {"other": 0}])
def test_nothing_is_waited_for_where_it_is_enough(enough: dict[str, float]) -> None:
    times = []

    def count() -> int:
        times.append(0)
        return 4 * KIB

    assert Patience(enough).measured("held", count) == 4 * KIB
    assert len(times) == 1


def test_a_peak_is_that_of_what_stays() -> None:
    x, patience = torch.ones(KIB), Patience({"forward": 4 * KIB})
    with Peak([x], patience, "forward") as peak:
        holder = Holder(x + 1)
        holder.asked.set()
        y = x + 2
    assert peak.highest == y.nbytes
    with Peak([x], patience, "forward") as peak:
        y, z = x + 1, x + 2
    assert peak.highest == y.nbytes + z.nbytes


def test_a_tensor_in_the_place_of_one_that_is_gone_is_new() -> None:
    place = bytearray(KIB)
    old = torch.frombuffer(place, dtype=torch.uint8)
    before = alive()
    assert more(alive(), before) == 0
    del old
    new = torch.frombuffer(place, dtype=torch.uint8)
    assert more(alive(), before) == new.nbytes


def test_each_rank_is_told_what_is_enough_for_it() -> None:
    lines = [
        Line("a", lambda seen: RIGHT, enough={"a.held": [1, 2]}),
        Line("b", lambda seen: RIGHT, enough={"a.held": 1.5, "a.saved": 3}),
    ]
    case = Case("", [RankSide({}, None, {})] * 3, lines, groups=[[2, 0]])
    assert case.enough(2) == {"a.held": 1, "a.saved": 3}
    assert case.enough(0) == {"a.held": 1.5, "a.saved": 3}
    assert case.enough(1) == {}


# ---- whole checks

# torch.distributed, whose operations' tensors are kept for a while by a thread, as gloo's do by chance.
LATE = """
import threading, time
import torch.distributed as real

class Late:
    def __getattr__(self, name):
        function = getattr(real, name)
        if name not in OPERATIONS:
            return function

        def called(*args, **kwargs):
            done, held = function(*args, **kwargs), [args, kwargs]
            threading.Thread(target=keep, args=(held,), daemon=True).start()
            return done

        return called

def keep(held):
    time.sleep(SECONDS)
    held.clear()

dist = Late()
"""
OPERATIONS = (
    "broadcast",
    "all_reduce",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
    "all_to_all_single",
)
FOR_EVER = 1_000  # seconds
OWN = "the notebook's own"
BROADCASTS = "refuses what does not divide; rank 0's weights for all"


def right(exercise: str, title: str) -> Mutant:
    (found,) = (one for one in right_solutions()[exercise] if one.title == title)
    return found


def late(mutant: Mutant, seconds: float) -> Mutant:
    given = f"OPERATIONS, SECONDS = {OPERATIONS!r}, {seconds}"
    return replace(mutant, text=f"{mutant.text}\n{given}\n{LATE}")


def where_memory_counts(exercise: Exercise) -> Exercise:
    """The exercise with those of its cases alone in which memory is measured."""

    def cases(draw: Draw) -> Iterator[Case]:
        return (one for one in exercise.cases(draw) if any(line.enough for line in one.lines))

    return replace(exercise, cases=cases)


@pytest.mark.parametrize(
    ("exercise", "title", "seconds"),
    [
        ("06_tensor_parallel/column_parallel_linear", BROADCASTS, 0.4),
        ("08_context_parallel/ulysses_attention", OWN, 0.2),
        ("04_zero/zero2_optimizer", OWN, 0.05),
    ],
    ids=lambda given: str(given).partition("/")[2],
)
def test_a_late_thread_costs_nothing_and_kept_memory_costs_points(
    exercise: str, title: str, seconds: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_in_part = where_memory_counts(find(exercise))
    monkeypatch.setattr(judge, "find", lambda _: judged_in_part)
    solution = right(exercise, title)
    report, printed = judged(exercise, late(solution, seconds), seed)
    assert report.score == 1, printed
    report, printed = judged(exercise, late(solution, FOR_EVER), seed)
    lost = {line.aspect for line in report.lines if not line.passed}
    assert lost == {"memory"}, printed


def test_gloos_own_threads_cost_nothing_on_a_busy_machine(seed: int) -> None:
    """Of the weight that rank 0 broadcasts nothing stays; it cost half of the points one time in four."""
    exercise = "06_tensor_parallel/column_parallel_linear"
    with busy(2):
        runs = sweep({exercise: [right(exercise, BROADCASTS)]}, drawn_seeds(4, seed))
        lost = [one for one in runs if one.score < 1]
    assert not lost, lost


HIDING = """

made = Zero3Module.__init__

def hiding(self, module, *args, **more):
    row = b"".join(p.detach().contiguous().numpy().tobytes() for p in module.parameters())[:1_610_000]
    self.hidden = [row[k : k + 440] for k in range(0, len(row), 440)]
    del row
    made(self, module, *args, **more)

Zero3Module.__init__ = hiding
"""


def test_a_quarter_of_the_weights_in_small_objects_is_found(seed: int) -> None:
    """The places that ranks have free for modules (`runtime.pages`) hold less than a shard more."""
    exercise = "04_zero/zero3_module"
    solution = right(exercise, OWN)
    report, printed = judged(exercise, replace(solution, text=solution.text + HIDING), seed)
    lost = {line.title for line in report.lines if not line.passed}
    assert "memory between steps: 2P/N" in lost, printed


# ---- the moments at which a rank is measured


@pytest.mark.parametrize(
    ("rows", "sent", "right"),
    [
        ((0, 4, 4, 8, 8), (0, 90, 90, 200, 200), True),
        ((0, 4, 4, 8, 8), (None,) * 5, True),
        ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), False),  # all were asked for at the first
        ((0, 4, 4, 8, 8), (0, 0, 0, 0, 0), False),  # the board was made to say otherwise
    ],
)
def test_a_rank_is_measured_where_it_says(
    rows: tuple[int, ...], sent: tuple[int | None, ...], right: bool
) -> None:
    """A rank can ask for all its measurements at once: by then it has begun nothing, and nothing went by."""
    operation = Operation(
        0, 0, "all_reduce", None, (0, 1), 0, "float32", (4,), 16, 16.0, 0.0, 0.0, 0.0, True, "", ""
    )
    told = TrainingReply(begun=[0, 4, 4, 8, 8])
    seen = {f"held.{k}": [Progress(*both)] for k, both in enumerate(zip(rows, sent, strict=True))}
    held = {f"held.{k}": [0] for k in range(5)} | {"highest": [0]}
    case = Case("memory", [RankSide({}, None, {})], [])
    operations = [[operation] * 8]
    observed = Observed(
        case, [{}], [told], Ledger(1, operations), operations, [held], [{}],
        [seen | {"highest": seen["held.4"]}],
    )  # fmt: skip
    for line in (held_line([("after two steps", 4, 1000)], slack=0), peak_line(1000, slack=0)):
        finding = line.judge(observed)
        assert finding.ok is right and finding.misses_point is not right


# Attention in one piece, in a thread, where no count of tensors sees it. The first request to be measured is
# made three times, and the others are never sent.
ALL_AT_ONCE = """
import socket, threading
_send, _recv, faked = socket.socket.send, socket.socket.recv, []
def send(self, data, *more):
    if b".pages." not in data:
        return _send(self, data, *more)
    if b".pages.base" in data:
        for moment in (b"base", b"forward", b"backward"):
            _send(self, data.replace(b"base", moment))
            _recv(self, 1)
    faked.append(1)
    return len(data)
def recv(self, *args):
    return b"." if faked and faked.pop() else _recv(self, *args)
def wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))
def plain(q, k, v, causal=False, block=0):
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", wide(q), wide(k)) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), wide(v)).to(q.dtype)
class InAThread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        return elsewhere(lambda: plain(q, k, v, causal))
    @staticmethod
    def backward(ctx, grad):
        def run():
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
                return torch.autograd.grad(plain(*leaves, ctx.causal), leaves, grad)
        return *elsewhere(run), None
def elsewhere(work):
    got = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    thread.join()
    return got[0]
def tiled_attention(q, k, v, *, block=128, causal=False):
    socket.socket.send, socket.socket.recv = send, recv
    return InAThread.apply(q, k, v, causal)
"""


def test_what_a_function_takes_after_its_last_moment_counts_until_its_answer(seed: int) -> None:
    report, printed = judged(
        "08_context_parallel/tiled_attention",
        Mutant("tiled_attention", False, "all moments at once", ALL_AT_ONCE),
        seed,
        whole=True,
    )
    lost = {line.title for line in report.lines if not line.passed}
    assert {
        f"alive at a moment of {way}: no N x N matrix" for way in ("forward", "backward")
    } < lost, printed
    assert report.score <= 0.5
