"""A recorded run on other wires: by arithmetic, on emulated wires, and the clock of long pipelines."""

from __future__ import annotations

import math
import time

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.facts import gpu
from course_lib.ledger.operation import Operation
from course_lib.ledger.record import Record
from course_lib.mesh import Mesh, hybrid_step, mesh_stages
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline.generators import one_f_one_b
from course_lib.planning import Cluster, Layout, Wire
from course_lib.planning.replay import pipeline_seconds, replay, scaled
from course_lib.planning.replay_by_hand import replay as by_hand
from course_lib.planning.roofline import Work
from course_lib.planning.step_time import step_seconds
from course_lib.planning.topology import a100_cluster


def test_a_run_on_another_wire_takes_as_long_as_its_messages() -> None:
    """Two all-reduces of 4 MB between two ranks, each of which sends 4 MB at 1 MB/s, after 1 s of latency."""

    def job() -> None:
        for _ in range(2):
            dist.all_reduce(torch.ones(1_000_000))

    record = launch(job, world_size=2, backend="gloo").ledger
    wire = Wire("slow", 1e6, 1.0)
    again = replay(record, Cluster(2, 2, gpu("A100"), wire, wire), compute=0)
    assert again.total == pytest.approx(2 * (1 + 4))


SLOW = Cluster(8, 2, gpu("A100"), Wire("inside", 1e9, 0.5), Wire("across", 1e6, 2.0))


def an_operation(rank: int, index: int, op: str, at: float, **more) -> Operation:
    values = {"peer": None, "group": (0, 1), "nbytes": 0, "blocked": 0.0, "waited": True, **more}
    return Operation(
        rank=rank, index=index, op=op, tag=0, dtype="float32", shape=(), bytes_sent=0.0, issued=at,
        completed=None, line="", source="", at_once=True, **values,
    )  # fmt: skip


def a_record(*ranks: list[Operation]) -> Record:
    return Record(len(ranks), ranks)


def test_a_collective_begins_with_its_last_member_and_compute_is_kept() -> None:
    """Rank 1 computes 3 s between two sums; both wait for it: 0.5 + 3 + 0.5 s inside a node."""
    ranks = [
        [an_operation(r, 0, "all_reduce", 0.0), an_operation(r, 1, "all_reduce", gap)]
        for r, gap in ((0, 1.0), (1, 3.0))
    ]
    assert replay(a_record(*ranks), SLOW).total == pytest.approx(4.0)
    assert replay(a_record(*ranks), SLOW, compute=0.1).total == pytest.approx(1.3)


def test_bytes_and_the_link_between_nodes() -> None:
    group = (0, 1, 2, 3)
    ranks = [[an_operation(r, 0, "all_reduce", 0.0, group=group, nbytes=10**6)] for r in range(4)]
    assert replay(a_record(*ranks), SLOW).total == pytest.approx(2 + 1.5)


def test_a_message_waits_for_both_ends_and_a_link_carries_one_after_another() -> None:
    sends = [an_operation(0, k, "send", 0.0, peer=1, waited=False, blocked=0.0) for k in (0, 1)]
    recvs = [an_operation(1, k, "recv", 0.0, peer=0) for k in (0, 1)]
    assert replay(a_record(sends, recvs), SLOW).total == pytest.approx(1.0)


def test_hidden_communication_stays_hidden() -> None:
    """Begun at 0, waited for at 2 s: 0.5 s on the wire cost nothing."""
    ranks = [
        [
            Operation(
                rank=r, index=0, op="all_reduce", peer=None, group=(0, 1), tag=0, dtype="float32", shape=(),
                nbytes=0, bytes_sent=0.0, issued=0.0, blocked=0.0, completed=2.0, waited=True, line="",
                source="", waited_at=2.0,
            )
        ]
        for r in (0, 1)
    ]  # fmt: skip
    assert replay(a_record(*ranks), SLOW).total == pytest.approx(2.0)


def test_a_record_that_did_not_end_is_refused() -> None:
    ranks = [[], [an_operation(1, 0, "recv", 0.0, peer=0)]]
    record = a_record(*ranks)
    assert record.unmatched()
    with pytest.raises(ValueError, match="take the ledger of a run that ended"):
        replay(record, SLOW)
    with pytest.raises(ValueError, match="2 ranks need a GPU each"):
        replay(record, Cluster(1, 1, gpu("A100"), Wire("i", 1, 0), Wire("a", 1, 0)))


# ---- against emulated wires

SIZES, COUNT = {"pp": 2, "dp": 2, "tp": 2}, 4
CONFIG = GPTConfig(64, 32, layers=4, heads=4, width=32)


def steps(sizes: dict[str, int]) -> list[float]:
    """The seconds of some steps, each between two barriers."""
    torch.manual_seed(3)
    mesh, schedule = Mesh(sizes), one_f_one_b(2, COUNT)
    stages = mesh_stages(GPT(CONFIG), mesh, schedule)
    inputs = torch.randint(64, (4, 32), generator=torch.Generator().manual_seed(1))
    microbatches = list(zip(inputs.chunk(COUNT), inputs.roll(-1, 1).chunk(COUNT), strict=True))
    hybrid_step(stages, schedule, microbatches, mesh)  # gloo connects
    times = []
    for _ in range(4):
        dist.barrier()
        began = time.monotonic()
        hybrid_step(stages, schedule, microbatches, mesh)
        dist.barrier()
        times.append(time.monotonic() - began)
    return times


@pytest.mark.parametrize("order", [("pp", "dp", "tp"), ("tp", "dp", "pp")])
def test_the_predicted_step_is_the_one_on_emulated_wires(order: tuple[str, ...]) -> None:
    """Within 20 %: 50 ms and 10 MB/s between nodes, and the fastest of four steps on either side.

    The record's seconds of compute are those of a busy machine; the fastest step has the fewest of them. If
    the machine was busy in all four, more are run: no number of them makes a step faster than its wires.
    """
    sizes = dict.fromkeys(order, 2)
    wires = Cluster(8, 2, gpu("A100"), Wire("inside", 100e6, 0.01), Wire("across", 10e6, 0.05))
    predicted = measured = math.inf
    for _ in range(6):
        record = launch(steps, sizes, world_size=8, backend="gloo").ledger
        on_wires = launch(steps, sizes, world_size=8, backend="gloo", wires=wires)
        measured = min(measured, *(max(times) for times in zip(*on_wires, strict=True)))
        predicted = min(predicted, *replay(record, wires).spans()[::2])
        print(f"{order}: predicted {predicted:.3f} s, measured {measured:.3f} s")
        if predicted == pytest.approx(measured, rel=0.2):
            break
    assert predicted == pytest.approx(measured, rel=0.2)


def test_one_rank_a_stage_stands_for_its_like() -> None:
    """On the mesh of the record itself it needs as long as all ranks; slower wires of tp make it slower."""
    record = launch(steps, SIZES, world_size=8, backend="gloo").ledger
    recorded = Layout(SIZES)
    wires = Cluster(8, 2, gpu("A100"), Wire("inside", 1e9, 1e-2), Wire("across", 1e8, 5e-2))
    whole = replay(record, wires, compute=0).total
    few = scaled(record, recorded, recorded, wires, {}, compute=0)
    assert few == pytest.approx(whole, rel=0.1)
    target = Layout({"pp": 2, "dp": 64, "tp": 8})
    cluster = a100_cluster(1024)
    times = [
        scaled(
            record, recorded, target.ordered(*order), cluster, {"tp": 1e4, "pp": 1e4, "dp": 1e2}, 0
        )
        for order in (("pp", "dp", "cp", "tp"), ("tp", "pp", "dp", "cp"))
    ]
    assert times[1] / times[0] > 1.5
    with pytest.raises(ValueError, match="a stage stands for a stage"):
        scaled(record, recorded, Layout({"pp": 4}), a100_cluster(4), {}, 1)


# ---- many stages


def test_a_long_pipeline_is_simulated_in_five_seconds() -> None:
    shape = GPTConfig(51_200, 2048, 128, 160, 25_600)
    layout = Layout({"pp": 64, "dp": 6, "tp": 8})
    cluster, work = a100_cluster(3072), Work(0.63)
    began = time.process_time()
    simulated = pipeline_seconds(shape, layout, 3072, cluster, work)
    assert time.process_time() - began < 5
    assert simulated == pytest.approx(step_seconds(shape, layout, 3072, cluster, work), rel=0.03)


def test_without_messages_the_formula_of_the_bubble_is_exact() -> None:
    """One GPU a stage, no head, links that cost nothing: m + (p - 1) / v slots."""
    shape = GPTConfig(1, 2048, 32, 32, 4096)
    wire = Wire("free", 1e30, 0.0)
    cluster = Cluster(8, 8, gpu("A100"), wire, wire)
    for v in (1, 2, 4):
        layout = Layout({"pp": 8}, chunks=v)
        ours = pipeline_seconds(shape, layout, 32, cluster, Work(0.63))
        assert ours == pytest.approx(step_seconds(shape, layout, 32, cluster, Work(0.63)), rel=1e-3)


# ---- the clock of records, by hand


def test_records_by_hand() -> None:
    """Two ranks of two nodes: 1 s and 2 s of compute, a sum of 0.3 s, and messages one after the other."""
    inside, across = (0.1, 0.0), (0.2, 1e-6)
    sums = [
        [["compute", 1.0], ["all_reduce", [0, 1], 100_000]],
        [["compute", 2.0], ["all_reduce", [0, 1], 100_000]],
    ]
    assert by_hand(sums, 1, inside, across) == pytest.approx(2.3)
    assert by_hand(sums, 2, inside, across) == pytest.approx(2.1)
    sends = [[["send", 1, 0], ["send", 1, 0]], [["recv", 0, 0], ["recv", 0, 0], ["compute", 1.0]]]
    assert by_hand(sends, 2, inside, across) == pytest.approx(1.2)
    with pytest.raises(ValueError, match="a record lacks an entry"):
        by_hand([[["recv", 1, 0]], []], 2, inside, across)
