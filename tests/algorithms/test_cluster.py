"""The modelled cluster: wires of groups, layouts, memory in closed form, and every tolerance stated."""

from __future__ import annotations

import pytest

from course_lib.facts import gpu, link, transformer_parameters
from course_lib.models import PUBLISHED, GPTConfig
from course_lib.planning import Cluster, Layout, Wire, published
from course_lib.planning.advisor import A100_EFFICIENCY, RESERVED, advise, best_layout, sizes_of
from course_lib.planning.memory import layer_activations, memory_parts, memory_per_gpu, stage_layers
from course_lib.planning.roofline import REACHED, Work
from course_lib.planning.step_time import (
    all_reduce_seconds,
    message_seconds,
    step_parts,
    step_seconds,
    step_tflops,
)
from course_lib.planning.topology import a100_cluster, h100_cluster

E = published.fitted(published.FITTED)
GPT = GPTConfig(51_200, 2048, 96, 96, 12288)


# ---- wires and layouts


def test_a_group_has_the_slowest_wire_that_it_uses() -> None:
    cluster = Cluster(
        16, 8, gpu("A100"), link("NVLink 3"), link("InfiniBand HDR"), oversubscription=2
    )
    assert cluster.link([0, 7]).each_way == 300e9
    assert cluster.link([7, 8]).each_way == 12.5e9
    assert cluster.link([3]).name == cluster.link([0, 1]).name
    assert cluster.lanes(range(16)) == 8 and cluster.lanes([0, 8]) == 1
    with pytest.raises(ValueError, match="rank 16 must lie in 0"):
        cluster.link([0, 16])
    own = Cluster(4, 2, gpu("A100"), Wire("fast", 1e9, 0.0), Wire("slow", 1e7, 5e-3))
    assert own.link([0, 2]).seconds(1e6, rounds=2) == pytest.approx(0.11)


def test_groups_lie_along_their_axis() -> None:
    layout = Layout({"pp": 2, "dp": 2, "tp": 2})
    assert [layout.ranks(axis, 5) for axis in ("pp", "dp", "tp")] == [[1, 5], [5, 7], [4, 5]]
    assert Layout({"pp": 2, "dp": 2, "cp": 2, "tp": 1}).replica_ranks(5) == [4, 5, 6, 7]
    assert layout.ordered("tp", "pp", "dp", "cp").ranks("tp", 1) == [1, 5]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tp": 7}, "heads / tp"),
        ({"pp": 7}, "layers / (pp v)"),
        ({"dp": 7}, "batch / (dp microbatch)"),
        ({"cp": 3}, "tokens / (2 cp)"),
        ({}, ""),
    ],
)
def test_the_first_reason_against_a_layout(change: dict[str, int], reason: str) -> None:
    obstacle = Layout({"pp": 8, "dp": 8, "tp": 8, **change}).obstacle(GPT, 1536)
    assert obstacle.startswith(reason) and bool(obstacle) == bool(reason)


def test_interleaving_needs_a_multiple_of_the_stages() -> None:
    assert "interleaving" in Layout({"pp": 16, "dp": 64}, chunks=2).obstacle(GPT, 1536)
    assert not Layout({"pp": 16, "dp": 32}, chunks=2).obstacle(GPT, 1536)


def test_a_hierarchical_sum_sends_a_share_over_each_card() -> None:
    cluster = Cluster(16, 8, gpu("A100"), Wire("i", 1e9, 0.0), Wire("a", 1e8, 0.0))
    whole = all_reduce_seconds(cluster, list(range(16)), 1e9)
    assert whole == pytest.approx((1.75 + 2 * 1 / 2 / 8 * 10) / 0.8)
    assert all_reduce_seconds(cluster, [0, 8], 1e9) == pytest.approx(10 / 0.8)


# ---- memory


def test_the_states_of_the_lectures_layout() -> None:
    """175B on 16 x 8 x 8 has 1.37 billion parameters a GPU."""
    params = 12 * 96 * 12288**2 / 128
    for zero, expected in ((0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)):
        parts = memory_parts(GPT, Layout({"pp": 16, "dp": 8, "tp": 8}, zero=zero), 1536)
        states = parts["weights"] + parts["gradients"] + parts["optimizer"]
        assert states == pytest.approx(expected * params, rel=0.07)  # the embedding comes on top


def test_activations_are_korthikantis_and_p_cancels() -> None:
    sizes = {"pp": 16, "dp": 8, "tp": 8}
    layout = Layout(sizes, recompute="none", sequence=True)
    stream = 2048 * 12288
    assert layer_activations(GPT, 2048, layout) == stream / 8 * (34 + 5 * 96 * 2048 / 12288)
    held = [
        memory_parts(GPT, Layout({**sizes, "pp": p}, recompute="none", sequence=True), 1536)[
            "activations"
        ]
        for p in (4, 8, 16)
    ]
    assert held == pytest.approx([held[0]] * 3)
    selective = Layout(sizes, recompute="selective", sequence=True)
    assert memory_parts(GPT, selective, 1536)["activations"] == pytest.approx(96 * 34 * stream / 8)
    assert memory_parts(GPT, selective, 1536)["activations"] == pytest.approx(10.3e9, rel=0.01)
    assert memory_parts(GPT, layout, 1536)["activations"] == pytest.approx(34.4e9, rel=0.01)


def test_llama_3_has_a_layer_less_at_both_ends() -> None:
    assert stage_layers(126, 16) == (8, 7)
    assert stage_layers(96, 16) == (6, 6)


# ---- published tables


def test_the_tables_are_those_that_were_printed() -> None:
    """Equation 2 of the paper gives table 1's names, its percentages are of 312, and the axes multiply."""
    percents = (44, 44, 46, 43, 44, 45, 47, 50, 52, 52)
    totals = (4.4, 8.8, 18.2, 34.6, 70.8, 143.8, 227.1, 297.4, 410.2, 502.0)
    for row, percent, total in zip(published.TABLE_1, percents, totals, strict=True):
        assert transformer_parameters(row.config) / 1e9 == pytest.approx(
            float(row.name[:-1]), abs=0.06
        )
        assert round(row.tflops / 3.12) == percent
        assert row.gpus * row.tflops / 1e3 == pytest.approx(total, rel=0.01)
    for row in (
        *published.TABLE_1,
        *published.TABLE_2,
        published.README,
        *published.LLAMA_3,
        *published.MEGASCALE,
    ):
        layouts = row.layouts()
        assert layouts and all(layout.gpus == row.gpus for layout in layouts), row.name
    days = {384: 84, 768: 43, 1536: 23, 560: 156, 1120: 80, 2240: 42}
    for row in published.TABLE_2:
        steps = 300e9 / (row.batch * row.seq)
        assert steps * row.seconds() / 86_400 == pytest.approx(days[row.gpus], rel=0.03)
    assert published.README.seconds() == pytest.approx(32, rel=0.01)
    for row, seconds in zip(published.MEGASCALE, (29.02, 14.78, 12.24, 8.57), strict=True):
        assert row.seconds() == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("row", published.TABLE_1, ids=lambda row: row.name)
def test_table_1_with_one_constant(row: published.Row) -> None:
    assert abs(published.error(row, E)) < published.TOLERANCE


@pytest.mark.parametrize("row", (*published.TABLE_2, published.README), ids=lambda row: row.name)
def test_table_2_and_the_readme_out_of_sample(row: published.Row) -> None:
    assert abs(published.error(row, E)) < published.TOLERANCE


@pytest.mark.parametrize("row", published.LLAMA_3, ids=lambda row: row.name)
@pytest.mark.parametrize("fitted_on", published.LLAMA_3[:2], ids=["first", "second"])
def test_llama_3_wherever_it_is_fitted(row: published.Row, fitted_on: published.Row) -> None:
    assert abs(published.error(row, published.fitted(fitted_on))) < published.TOLERANCE


def test_megascale_is_missed_where_stragglers_are() -> None:
    """Right twice, then too high: the model knows neither stragglers nor contention."""
    errors = [published.error(row, E) for row in published.MEGASCALE]
    assert all(abs(each) < 0.03 for each in errors[:2])
    assert all(0.06 < each < 0.14 for each in errors[2:])


# ---- what the model says of placements


def test_tensor_parallelism_across_nodes_doubles_the_step() -> None:
    layout = Layout({"pp": 8, "dp": 16, "tp": 8})
    cluster, work = a100_cluster(1024), Work(E)
    inside = step_tflops(GPT, layout, 1536, cluster, work)
    across = step_tflops(GPT, layout.ordered("tp", "pp", "dp", "cp"), 1536, cluster, work)
    assert 1.7 < inside / across < 2.6


def test_one_hop_between_nodes_sets_the_pace_of_all_messages() -> None:
    """Four stages, of which two share a node: the first hop is inside a node, and the second is not."""
    cluster = Cluster(16, 8, gpu("A100 SXM"), link("NVLink 3 (A100)"), link("InfiniBand HDR"))
    two_a_node = Layout({"pp": 4, "dp": 4, "cp": 1, "tp": 1})
    assert not cluster.crosses(two_a_node.ranks("pp")[:2])
    nbytes = 2**24
    assert message_seconds(cluster, two_a_node, nbytes) == pytest.approx(
        cluster.wire("across").slower(1 / REACHED).seconds(nbytes)
    )
    in_a_node = Layout({"dp": 4, "pp": 4, "cp": 1, "tp": 1})
    assert message_seconds(cluster, in_a_node, nbytes) == pytest.approx(
        cluster.wire("inside").slower(1 / REACHED).seconds(nbytes)
    )


def test_the_parts_are_the_step() -> None:
    cluster, work = a100_cluster(1024), Work(E)
    plain = step_parts(GPT, Layout({"pp": 16, "dp": 8, "tp": 8}), 1536, cluster, work)
    interleaved = step_parts(
        GPT, Layout({"pp": 16, "dp": 8, "tp": 8}, chunks=3), 1536, cluster, work
    )
    assert plain.compute == interleaved.compute and interleaved.pp == pytest.approx(3 * plain.pp)
    assert interleaved.bubble < plain.bubble / 2.5
    assert plain.cp == 0 and plain.dp > 0
    with pytest.raises(ValueError, match="the layout has 8 GPUs and the cluster 1024"):
        step_parts(GPT, Layout({"tp": 8}), 1536, cluster, work)
    assert PUBLISHED["GPT-3"].layers == GPT.layers


# ---- the advisor


def test_every_division_has_a_verdict_with_a_reason_or_a_time() -> None:
    verdicts = advise(GPT, 1024, 1536, a100_cluster(1024))
    assert len(verdicts) == len(list(sizes_of(1024, context=False))) == 66
    cut = [verdict for verdict in verdicts if verdict.nbytes is not None]
    assert len(cut) == 35
    for verdict in verdicts:
        assert verdict.fits == (verdict.seconds is not None) == (not verdict.reason)
        if verdict.fits:
            assert verdict.nbytes is not None and verdict.nbytes <= 80e9 - RESERVED
            assert memory_per_gpu(GPT, verdict.layout, 1536) == verdict.nbytes
    reasons = {verdict.reason.partition(":")[0] for verdict in verdicts}
    assert {"heads / tp", "layers / (pp v)", "memory"} <= reasons
    times = [verdict.seconds for verdict in verdicts if verdict.seconds is not None]
    assert times == sorted(times)
    assert verdicts[0].layout.tp in (4, 8)


def test_the_advisor_finds_the_best_of_all() -> None:
    """Against a search of its own, without the advisor's loops."""
    cluster, work = a100_cluster(64), Work(A100_EFFICIENCY)
    shape, room = PUBLISHED["LLaMA-13B"], 80e9 - RESERVED
    chosen = best_layout(shape, 64, 512, cluster)
    assert chosen is not None
    others = [
        step_seconds(shape, layout, 512, cluster, work)
        for sizes in sizes_of(64, context=False)
        for recompute in ("none", "selective", "full")
        for layout in (Layout(sizes, 1, 1, 1, recompute, sizes["tp"] > 1),)
        if not layout.obstacle(shape, 512) and memory_per_gpu(shape, layout, 512) <= room
    ]
    assert others and step_seconds(shape, chosen, 512, cluster, work) <= min(others)


def test_the_cluster_and_the_context_decide() -> None:
    a100, nvlink, hdr = gpu("A100"), link("NVLink 3"), link("InfiniBand HDR")
    four = best_layout(GPT, 512, 1536, Cluster(512, 4, a100, nvlink, hdr))
    assert four is not None and four.tp <= 4
    flash = Work(0.63, flash=True, causal=True)
    plain = best_layout(PUBLISHED["LLaMA-7B"], 64, 1024, a100_cluster(64), work=flash)
    assert plain is not None and (plain.dp, plain.zero) == (64, 3)
    long = best_layout(PUBLISHED["Llama-3-8B"], 64, 64, h100_cluster(64), seq=131_072, work=flash)
    assert long is not None and long.cp > 1
    assert best_layout(GPT, 8, 8, a100_cluster(8)) is None
    with pytest.raises(ValueError, match="the cluster has 8"):
        advise(GPT, 16, 8, a100_cluster(8))
