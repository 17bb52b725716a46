"""Is it fast, is it healthy: shares of a step, stragglers, diagnoses, metrics, event files, goodput."""

from __future__ import annotations

import math
import random
import statistics
import struct
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch, operation
from course_lib.operation import (
    AsyncCheckpoint,
    EventWriter,
    best_interval,
    breakdown,
    diagnose,
    draw_profiles,
    find_straggler,
    goodput,
    read_scalars,
)
from course_lib.operation.events import crc32c


def test_a_step_is_waiting_moving_and_computing() -> None:
    # Rank 0 calls at 1, rank 1 at 3; the bytes move until 5. Then rank 0 computes beside a second call.
    calls = [[(1.0, 1.0, 5.0), (5.0, 7.0, 8.0)], [(3.0, 3.0, 5.0), (6.0, 6.0, 8.0)]]
    zero, one = (breakdown(calls, rank, 0.0, 10.0) for rank in (0, 1))
    assert zero == {"waiting": 2.0, "moving": 3.0, "hidden": 1.0, "computing": 5.0}
    assert one == {"waiting": 0.0, "moving": 4.0, "hidden": 0.0, "computing": 6.0}


# ---- shares


def by_instants(
    calls: Sequence[Sequence[tuple[float, float, float]]], rank: int, start: float, end: float
) -> dict[str, float]:
    """The same, between any two moments at which something changes: who is blocked, what moves?"""
    moments = {start, end, *(moment for of_rank in calls for call in of_rank for moment in call)}
    cuts = sorted(moment for moment in moments if start <= moment <= end)
    sums: dict[str, float] = {"computing": 0.0, "waiting": 0.0, "moving": 0.0, "hidden": 0.0}
    last = [max(of_rank[k][0] for of_rank in calls) for k in range(len(calls[rank]))]
    for begin, over in pairwise(cuts):
        middle = (begin + over) / 2
        blocked = [k for k, (_, waited, done) in enumerate(calls[rank]) if waited < middle < done]
        moves = [k for k, (_, _, done) in enumerate(calls[rank]) if last[k] < middle < done]
        if blocked:
            sums["moving" if blocked[0] in moves else "waiting"] += over - begin
        else:
            sums["computing"] += over - begin
            sums["hidden"] += over - begin if moves else 0.0
    return sums


def drawn_calls(draw: random.Random) -> list[list[tuple[float, float, float]]]:
    """Ranks that compute, call, and wait sooner or later, with up to two calls in flight."""
    ranks, count = draw.randint(1, 4), draw.randrange(6)
    issued = [[0.0] * count for _ in range(ranks)]
    clocks = [draw.random() for _ in range(ranks)]
    finished: list[list[tuple[float, float, float]]] = [[] for _ in range(ranks)]
    open_calls: list[int] = []

    def wait_for(k: int) -> None:
        over = max(of_rank[k] for of_rank in issued) + draw.random()
        for rank in range(ranks):
            waited = clocks[rank]
            clocks[rank] = max(clocks[rank], over)
            finished[rank].append((issued[rank][k], waited, over))

    for k in range(count):
        for rank in range(ranks):
            clocks[rank] += draw.random() * draw.randrange(2)
            issued[rank][k] = clocks[rank]
        open_calls.append(k)
        while open_calls and (len(open_calls) > 1 or draw.random() < 0.5):
            if draw.random() < 0.5:
                clocks[:] = [clock + draw.random() for clock in clocks]
            wait_for(open_calls.pop(0))
    for k in open_calls:
        wait_for(k)
    return finished


def test_shares_are_those_of_a_look_at_every_instant(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        calls = drawn_calls(draw)
        start = draw.uniform(-1, 3)
        end = start + draw.uniform(0, 6)
        for rank in range(len(calls)):
            shares = breakdown(calls, rank, start, end)
            assert shares == pytest.approx(by_instants(calls, rank, start, end), abs=1e-9)
            assert min(shares.values()) > -1e-9 and shares["hidden"] <= shares["computing"] + 1e-9
            whole = shares["waiting"] + shares["moving"] + shares["computing"]
            assert whole == pytest.approx(end - start)


def test_calls_in_flight_together_and_a_window_that_begins_late() -> None:
    calls = [[(0.0, 1.0, 5.0), (0.5, 5.0, 5.0)]] * 2
    wanted = {"computing": 2.0, "waiting": 0.0, "moving": 4.0, "hidden": 1.0}
    assert breakdown(calls, 0, 0.0, 6.0) == wanted
    assert breakdown(calls, 0, 1.5, 6.0) == {
        **wanted,
        "computing": 1.0,
        "moving": 3.5,
        "hidden": 0.0,
    }
    assert breakdown([[], []], 1, 2.0, 5.0)["computing"] == 3.0
    with pytest.raises(ValueError, match="as many calls on each rank"):
        breakdown([[(0.0, 0.0, 1.0)], []], 0, 0.0, 1.0)
    with pytest.raises(ValueError, match="start <= end"):
        breakdown([[]], 0, 1.0, 0.0)


def test_shares_of_a_real_run() -> None:
    def job() -> tuple[float, float]:
        rank, x = dist.get_rank(), torch.ones(10)
        dist.barrier()
        for _ in range(5):
            time.sleep(0.15 if rank == 1 else 0.05)
            dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        time.sleep(0.1)
        assert work is not None
        work.wait()
        return 0.0, 0.0

    ledger = launch(job, world_size=2, backend="gloo").ledger
    calls = operation.calls_of(ledger)
    assert [len(of_rank) for of_rank in calls] == [7, 7]
    start, end = max(of_rank[0][2] for of_rank in calls), max(of_rank[-1][2] for of_rank in calls)
    fast, slow = (breakdown(calls, rank, start, end) for rank in (0, 1))
    assert fast["waiting"] > 0.4 and slow["waiting"] < 0.2  # 0.5 s of sleep, and a busy machine
    assert slow["computing"] > 0.8 > fast["computing"]
    straggler = find_straggler(operation.arrivals_of(ledger)[1:6], confidence=0.9)
    assert straggler is not None and straggler[0] == 1 and straggler[1] > 0.05


# ---- stragglers


def arrivals(
    draw: random.Random, count: int, ranks: int, slow: int | None = None, by: float = 0.0
) -> list[list[float]]:
    return [
        [k + 0.02 * draw.uniform(0.98, 1.02) + (by if r == slow else 0.0) for r in range(ranks)]
        for k in range(count)
    ]


@pytest.mark.parametrize("by", [0.002, 0.005, 0.01])
def test_a_slow_rank_is_named_with_its_delay(by: float, seed: int) -> None:
    draw = random.Random(seed)
    for ranks in (2, 4, 8):
        straggler = find_straggler(arrivals(draw, 39, ranks, slow=1, by=by))
        assert straggler is not None and straggler[0] == 1
        assert abs(straggler[1] - by) < 0.0008


def test_equal_ranks_have_no_straggler_but_once_in_a_hundred_runs(seed: int) -> None:
    draw = random.Random(seed)
    named = sum(find_straggler(arrivals(draw, 39, 4)) is not None for _ in range(1000))
    assert named < 25  # at most 10 are expected; 25 have a probability below 1e-4


def test_one_pause_is_no_straggler() -> None:
    times = arrivals(random.Random(1), 39, 4)
    times[7][2] += 2.0
    assert find_straggler(times) is None


def test_odd_inputs_of_a_straggler() -> None:
    assert find_straggler([]) is None
    assert find_straggler([[1.0]] * 50) is None
    assert find_straggler([[1.0, 1.0]] * 50) == (0, 0.0)  # both are last each time: the lower
    assert find_straggler([[1.0, 2.0, 2.5]] * 50) == (2, 0.5)
    assert find_straggler([[1.0, 2.0]] * 3) is None  # 2 P(3 of 3) = 0.25
    assert find_straggler([(1.0, 2.0)] * 3, confidence=0.7) == (1, 1.0)


def test_the_binomial_tail_is_that_of_a_simulation() -> None:
    draw = random.Random(0)
    hits = [sum(draw.random() < 0.25 for _ in range(39)) for _ in range(20_000)]
    for least in (8, 12, 15):
        share = sum(hit >= least for hit in hits) / len(hits)
        assert operation.binomial_tail(39, least, 0.25) == pytest.approx(share, abs=0.012)
    assert operation.binomial_tail(5, 0, 0.3) == pytest.approx(1)
    assert operation.binomial_tail(5, 5, 0.5) == 1 / 32


# ---- diagnoses


def test_every_profile_has_its_finding_and_the_healthy_one_has_none(seed: int) -> None:
    for run in range(50):
        profiles = draw_profiles(seed + run)
        assert len(profiles) == 12
        assert [diagnose(profile) for profile, _ in profiles] == [wanted for _, wanted in profiles]
        assert [] in [wanted for _, wanted in profiles]
        kinds = {kind for _, wanted in profiles for kind, _ in wanted}
        assert len(kinds) == 8
        for profile, wanted in profiles:
            ends = zip(
                profile.computing, profile.waiting, profile.data, profile.checkpoint, strict=True
            )
            sums = [sum(parts) for parts in ends]
            assert max(sums) - min(sums) < 1e-9  # the ranks leave the step together
            costly = [
                max(profile.data), max(profile.checkpoint), profile.bubble, max(profile.moving),
                statistics.mean(profile.waiting),
            ]  # fmt: skip
            least = 0.05 * profile.step()
            if wanted == [] or wanted[0][0] == "memory":
                assert all(cost < 0.6 * least for cost in costly)


# ---- metrics


def test_metrics_are_those_of_all_ranks() -> None:
    def job() -> dict[str, float]:
        rank = dist.get_rank()
        tokens = (100, 0, 300)[rank]
        return operation.step_metrics(tokens * (2.0 + rank), tokens, (0.5, 0.2, 0.8)[rank])

    run = launch(job, world_size=3, backend="gloo")
    assert all(
        metrics == {"loss": 1400 / 400, "tokens_per_second": 400 / 0.8, "seconds": 0.8}
        for metrics in run
    )
    calls = [call for call in run.ledger.operations(rank=0) if call.op == "all_reduce"]
    assert sorted(call.nbytes for call in calls) == [8, 16]
    assert math.isnan(operation.step_metrics(0.0, 0, 1.0)["loss"])


def test_mfu_of_palm() -> None:
    tokens, parameters = 238_300, 540.35e9
    layers, heads, head_dim, seq = 118, 48, 256, 2048
    flops = tokens * (6 * parameters + 12 * layers * heads * head_dim * seq)  # appendix B
    assert operation.mfu(flops, 1.0, 6144, 275e12) == pytest.approx(0.462, abs=0.001)


# ---- event files


def test_crc32c_is_that_of_the_rfc() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


def curves() -> list[tuple[str, float, int]]:
    steps = [0, 1, 127, 128, 300, 2**31, 2**40]
    return [
        (tag, value, step)
        for tag in ("loss", "shares/waiting", "größe")
        for step, value in zip(
            steps, (1.5, -0.25, 0.0, 1e30, math.inf, 1e-30, math.pi), strict=True
        )
    ]


def written(folder: Path) -> EventWriter:
    writer = EventWriter(folder)
    for tag, value, step in curves():
        writer.scalar(tag, value, step, wall_time=1000.5 + step)
    writer.flush()
    return writer


def float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def test_event_files_are_read_back_and_a_torn_end_is_left_out(tmp_path: Path) -> None:
    writer = written(tmp_path)
    wanted = [(tag, step, float32(value), 1000.5 + step) for tag, value, step in curves()]
    assert [tuple(scalar) for scalar in read_scalars(writer.path)] == wanted
    whole = writer.path.read_bytes()
    writer.close()
    for cut in (1, 10, 30):
        torn = tmp_path / f"torn {cut}"
        torn.write_bytes(whole[:-cut])
        assert [tuple(scalar) for scalar in read_scalars(torn)] == wanted[:-1]
    flipped = tmp_path / "flipped"
    flipped.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    assert [tuple(scalar) for scalar in read_scalars(flipped)] == wanted[:-1]


def test_tensorboard_reads_the_files(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    writer = written(tmp_path)
    whole = writer.path.read_bytes()
    writer.file.write(whole[-20:-3])  # torn
    writer.close()
    accumulator = accumulators.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    for tag in ("loss", "shares/waiting", "größe"):
        points = [(point.step, point.value, point.wall_time) for point in accumulator.Scalars(tag)]
        wanted = [(s, float32(v), 1000.5 + s) for t, v, s in curves() if t == tag]
        assert points == wanted


# ---- how often to save


def test_goodput_is_that_of_a_simulated_run() -> None:
    mtbf, save, restart = 3 * 3600.0, 60.0, 600.0
    best = best_interval(save, mtbf)
    assert best == pytest.approx(1138.4, abs=0.1)
    assert operation.daly_interval(save, mtbf) == pytest.approx(1098.8, abs=0.1)
    for interval in (best / 8, best / 2, best, 2 * best, 4 * best):
        formula = goodput(interval, save, restart, mtbf)
        simulated = operation.simulated_goodput(interval, save, restart, mtbf, 40_000)
        assert simulated == pytest.approx(formula, rel=0.02)
    assert goodput(best, save, restart, mtbf) == pytest.approx(0.851, abs=0.001)


def test_the_best_interval_is_near_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        mtbf = 10 ** draw.uniform(1, 6)
        save = mtbf * 10 ** draw.uniform(-5, -1.5)
        restart = draw.random() * mtbf
        tried = [best_interval(save, mtbf) * 1.02**k for k in range(-80, 81)]
        best = max(goodput(interval, save, restart, mtbf) for interval in tried)
        young, daly = best_interval(save, mtbf), operation.daly_interval(save, mtbf)
        assert goodput(young, save, restart, mtbf) > 0.997 * best
        assert goodput(daly, save, restart, mtbf) > 0.9998 * best
    assert goodput(1e-6, 0, 50, 100) == pytest.approx(100 / 150)  # R bounds it
    assert operation.daly_interval(300, 100) == 100
    assert goodput(1e6, 1, 1, 1) < 1e-290
    with pytest.raises(ValueError, match="mtbf=0"):
        best_interval(1, 0)
    with pytest.raises(ValueError, match="0 or more"):
        goodput(1, -1, 1, 1)


# ---- a save behind the run


class Disk:
    """A `write` that waits until the test opens it, and notes the values it was given."""

    def __init__(self) -> None:
        self.open, self.lines, self.fails = (
            threading.Event(),
            list[tuple[int, float, int]](),
            set[int](),
        )
        self.most = self.now = 0

    def write(self, step: int, tensors: dict[str, Tensor]) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        assert self.open.wait(20)
        self.now -= 1
        if step in self.fails:
            raise OSError("no space left")
        self.lines.append((step, float(tensors["w"][0]), tensors["w"].data_ptr()))


def test_a_save_holds_the_values_of_its_step_in_the_same_memory() -> None:
    disk, w = Disk(), torch.ones(4, requires_grad=True)
    checkpoint = AsyncCheckpoint(disk.write)
    checkpoint.save(1, {"w": w})
    w.data.fill_(2)
    assert not disk.lines  # it returned before the write was over
    later = threading.Thread(target=checkpoint.save, args=(2, {"w": w}))
    later.start()
    later.join(0.1)
    assert later.is_alive()  # one write at a time
    disk.open.set()
    later.join(20)
    w.data.fill_(3)
    checkpoint.wait()
    assert [line[:2] for line in disk.lines] == [(1, 1.0), (2, 2.0)]
    assert disk.most == 1 and len({line[2] for line in disk.lines}) == 1
    checkpoint.save(3, {"w": torch.zeros(9)})  # another shape
    checkpoint.wait()
    checkpoint.wait()
    assert disk.lines[-1][:2] == (3, 0.0)


def test_an_error_of_a_write_is_raised_once_by_the_next_call() -> None:
    disk, w = Disk(), {"w": torch.ones(4)}
    disk.open.set()
    disk.fails = {1, 3}
    checkpoint = AsyncCheckpoint(disk.write)
    checkpoint.save(1, w)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(2, w)
    checkpoint.save(3, w)
    with pytest.raises(OSError, match="no space"):
        checkpoint.wait()
    checkpoint.save(4, w)
    checkpoint.wait()
    assert [line[0] for line in disk.lines] == [4]


# ---- bits


def test_a_flipped_bit_names_its_rank_unless_it_was_averaged() -> None:
    def job(when: str) -> list[list[int]]:
        rank, named = dist.get_rank(), []
        w = torch.randn(64, generator=torch.Generator().manual_seed(0))
        for step in range(3):
            gradient = torch.randn(64, generator=torch.Generator().manual_seed(10 * step + rank))
            if when == "before" and rank == 2 and step == 1:
                gradient.view(torch.int32)[5] ^= 1 << 20
            dist.all_reduce(gradient)
            w -= 0.1 * gradient
            if when == "after" and rank == 2 and step == 1:
                w.view(torch.int32)[5] ^= 1
            named.append(operation.odd_ranks([w]))
        return named

    for when, wanted in (
        ("never", [[], [], []]),
        ("before", [[], [], []]),
        ("after", [[], [2], [2]]),
    ):
        run = launch(job, when, world_size=4, backend="gloo")
        assert list(run) == [wanted] * 4
        gathers = [call for call in run.ledger.operations(rank=1) if call.op == "all_gather"]
        assert [call.nbytes for call in gathers] == [32] * 3


def test_no_majority_names_all_and_nan_is_a_value() -> None:
    def job() -> tuple[list[int], list[int]]:
        rank = dist.get_rank()
        return (
            operation.odd_ranks([torch.tensor(float(rank))]),
            operation.odd_ranks([torch.tensor([math.nan, 0.0])]),
        )

    assert list(launch(job, world_size=2, backend="gloo")) == [([0, 1], [])] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_flipped_bit_changes_the_sum(dtype: torch.dtype) -> None:
    tensors = [torch.randn(3).to(dtype), torch.randn(()).to(dtype), torch.zeros(0, dtype=dtype)]
    before = int(operation.bit_sum(tensors))
    for tensor in tensors:
        data = tensor.view(-1).view(torch.uint8)
        for at in range(len(data)):
            for bit in range(8):
                data[at] ^= 1 << bit
                assert int(operation.bit_sum(tensors)) != before
                data[at] ^= 1 << bit
    assert int(operation.bit_sum(tensors)) == before
    assert int(operation.bit_sum([])) == 0
