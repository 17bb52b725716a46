"""The closed forms against counting, against each other, and against figures worked out by hand."""

from __future__ import annotations

import inspect
import math
import random

import pytest
import torch

from course_lib import collectives, facts
from course_lib.facts import hardware
from course_lib.ledger.booking import logical_bytes
from course_lib.models import GPT, GPTConfig

GB = 10**9
DIVIDES = 16 * 9 * 5 * 7 * 8  # elements: worlds up to 10, their cores and halves cut it evenly


# ---- figures that the lectures, the papers and the notebooks name


def test_eight_gpus_all_reduce_one_gigabyte():
    assert facts.bytes_sent_per_rank("ring_all_reduce", 8, GB) == 1.75 * GB
    assert facts.rounds("ring_all_reduce", 8) == 14
    assert facts.bytes_sent_per_rank("ring_all_reduce", 800, GB) == pytest.approx(1.9975 * GB)
    assert facts.rounds("ring_all_reduce", 800) == 1598
    assert facts.seconds("ring_all_reduce", 64, 70 * GB, 0, 1 / (50 * GB)) == pytest.approx(2.75625)


@pytest.mark.parametrize(
    ("algorithm", "n", "sent", "rounds"),
    [  # sent in units of the full tensor
        ("naive_broadcast", 6, 5, 5),
        ("broadcast", 8, 3, 3),
        ("broadcast", 9, 4, 4),
        ("broadcast", 2, 1, 1),
        ("reduce", 9, 1, 4),
        ("scatter", 4, 0.75, 3),
        ("gather", 4, 0.25, 3),
        ("all_gather", 4, 0.75, 3),
        ("reduce_scatter", 5, 0.8, 4),
        ("all_to_all", 3, 2 / 3, 2),
        ("naive_all_reduce", 4, 3, 6),
        ("ring_all_reduce", 4, 1.5, 6),
        ("recursive_doubling_all_reduce", 8, 3, 3),
        ("recursive_doubling_all_reduce", 5, 3, 4),
        ("recursive_doubling_all_reduce", 3, 2, 3),
        ("recursive_doubling_all_reduce", 1023, 10, 11),
        ("rabenseifner_all_reduce", 8, 1.75, 6),
        ("rabenseifner_all_reduce", 6, 1 + 1.5, 6),
        ("double_binary_tree_all_reduce", 8, 2, 2 * 3 + facts.TREE_BLOCKS - 1),
        ("barrier", 5, 0, 3),
    ],
)
def test_bytes_and_rounds(algorithm, n, sent, rounds):
    assert facts.bytes_sent_per_rank(algorithm, n, 1200) == pytest.approx(sent * 1200)
    assert facts.rounds(algorithm, n) == rounds


@pytest.mark.parametrize("algorithm", facts.ALGORITHMS)
def test_one_rank_alone_sends_nothing(algorithm):
    assert facts.bytes_sent_per_rank(algorithm, 1, GB) == 0
    assert facts.rounds(algorithm, 1) == 0
    assert facts.seconds(algorithm, 1, GB, 1, 1) == 0
    assert facts.serial_bytes(algorithm, 1, GB) == 0
    assert facts.exact_bytes(algorithm, 1, 10, 4, 0) == 0


# ---- the ideal forms against the exact ones, with which other tests compare the ledger


@pytest.mark.parametrize("algorithm", [a for a in facts.ALGORITHMS if a != "barrier"])
@pytest.mark.parametrize("n", range(1, 11))
def test_the_busiest_rank_sends_what_the_closed_form_says(algorithm, n, seed):
    root = random.Random(seed).randrange(n)
    sent = [facts.exact_bytes(algorithm, n, DIVIDES, 4, rank, root) for rank in range(n)]
    assert max(sent) == pytest.approx(facts.bytes_sent_per_rank(algorithm, n, DIVIDES * 4))


@pytest.mark.parametrize("n", [11, 12, 16, 31, 32, 33, 64, 100, 127, 128, 1000])
@pytest.mark.parametrize(
    "algorithm",
    ["double_binary_tree_all_reduce", "recursive_doubling_all_reduce", "broadcast", "reduce"],
)
def test_large_worlds(algorithm, n):
    numel = 1 << 20
    sent = [facts.exact_bytes(algorithm, n, numel, 1, rank) for rank in range(n)]
    assert max(sent) == facts.bytes_sent_per_rank(algorithm, n, numel)
    if algorithm in ("broadcast", "reduce"):
        assert sum(sent) == (n - 1) * numel, "every other rank gets the tensor, or gives it, once"
    if algorithm == "double_binary_tree_all_reduce":
        assert sum(sent) == 2 * (n - 1) * numel, "up and down every edge of two trees, half of it"


@pytest.mark.parametrize("n", range(1, 10))
def test_all_reduces_send_no_less_than_any_can(n, seed):
    numel = random.Random(seed).randrange(1, 500)
    for algorithm in facts.ALGORITHMS:
        if algorithm.endswith("all_reduce"):
            sent = [facts.exact_bytes(algorithm, n, numel, 4, rank) for rank in range(n)]
            assert sum(sent) >= 2 * (n - 1) * numel * 4
            assert max(sent) >= facts.least_bytes(n, numel * 4) - 1e-6
            ideal = facts.bytes_sent_per_rank(algorithm, n, numel * 4)
            assert ideal >= facts.least_bytes(n, numel * 4) - 1e-6
    ring = [facts.exact_bytes("ring_all_reduce", n, numel, 4, rank) for rank in range(n)]
    assert sum(ring) == 2 * (n - 1) * numel * 4, "a ring sends the least in all, divisible or not"
    assert max(ring) - facts.least_bytes(n, numel * 4) <= 2 * 4, "and an element a phase too much"


def test_chunks_are_those_of_tensor_split(seed):
    draw = random.Random(seed)
    for _ in range(200):
        numel, n = draw.randrange(100), draw.randrange(1, 20)
        wanted = [c.numel() for c in torch.empty(numel).tensor_split(n)]
        assert facts.chunk_sizes(numel, n) == wanted


def test_hierarchical_levels_add_up_to_a_flat_ring(seed):
    draw = random.Random(seed)
    for _ in range(50):
        g, nodes = draw.randrange(1, 17), draw.randrange(1, 65)
        near, far = facts.hierarchical_bytes(g, nodes, GB)
        assert near + far == pytest.approx(
            facts.bytes_sent_per_rank("ring_all_reduce", g * nodes, GB)
        )
    assert facts.hierarchical_bytes(8, 16, GB) == pytest.approx((1.75 * GB, 2 * 15 / 16 / 8 * GB))
    assert facts.hierarchical_rounds(8, 16) == (14, 30)
    near, far = (2e-6, 1 / (450 * GB)), (10e-6, 1 / (50 * GB))
    assert facts.hierarchical_seconds(8, 16, GB, near, far) == pytest.approx(
        14 * 2e-6 + 1.75 / 450 + 30 * 10e-6 + 0.234375 / 50
    )


# ---- time


def test_seconds_are_rounds_alpha_and_bytes_beta():
    alpha, beta = 10e-6, 1e-9
    assert facts.seconds("ring_all_reduce", 4, 10**6, alpha, beta) == pytest.approx(6e-5 + 1.5e-3)
    assert facts.seconds("recursive_doubling_all_reduce", 5, 10**6, alpha, beta) == pytest.approx(
        4e-5 + 3e-3
    )
    assert facts.seconds("gather", 4, 10**6, alpha, beta) == pytest.approx(3e-5 + 0.75e-3), (
        "the rank that collects receives (n-1)/n M, though no rank sends that much"
    )
    assert facts.seconds("reduce", 8, 10**6, alpha, beta) == pytest.approx(3e-5 + 3e-3)


def test_bytes_that_wait_for_each_other():
    assert facts.serial_bytes("naive_all_reduce", 4, 100) == 600
    assert facts.serial_bytes("ring_all_reduce", 4, 100) == 150
    assert facts.serial_bytes("recursive_doubling_all_reduce", 4, 100) == 200
    assert facts.serial_bytes("recursive_doubling_all_reduce", 5, 100) == 400
    assert facts.serial_bytes("rabenseifner_all_reduce", 6, 100) == 350
    for algorithm in facts.ALGORITHMS:
        for n in (2, 3, 8):
            assert facts.serial_bytes(algorithm, n, 1) >= facts.bytes_sent_per_rank(algorithm, n, 1)


def test_at_the_crossover_both_take_the_same_time(seed):
    draw = random.Random(seed)
    pairs = [
        ("ring_all_reduce", "recursive_doubling_all_reduce"),
        ("ring_all_reduce", "double_binary_tree_all_reduce"),
        ("naive_broadcast", "broadcast"),
    ]
    for lean, quick in pairs:
        for n in (3, 4, 8, 100):
            alpha, beta = draw.uniform(1e-6, 1e-4), draw.uniform(1e-11, 1e-8)
            here = facts.crossover_bytes(lean, quick, n, alpha, beta)
            assert here == facts.crossover_bytes(quick, lean, n, alpha, beta)
            if 0 < here < math.inf:
                times = [facts.seconds(a, n, here, alpha, beta) for a in (lean, quick)]
                assert times[0] == pytest.approx(times[1])
                later = [facts.seconds(a, n, 2 * here, alpha, beta) for a in (lean, quick)]
                assert later[0] < later[1]


def test_crossovers_at_the_edges():
    ring, doubling = "ring_all_reduce", "recursive_doubling_all_reduce"
    assert facts.crossover_bytes(ring, doubling, 2, 1e-5, 1e-9) == math.inf, "the same bytes"
    assert facts.crossover_bytes(ring, doubling, 1, 1e-5, 1e-9) == math.inf
    assert facts.crossover_bytes("broadcast", "naive_broadcast", 8, 1e-5, 1e-9) == 0
    assert facts.crossover_bytes(ring, doubling, 8, 10e-6, 1e-10) == pytest.approx(880_000)


# ---- built-ins


@pytest.mark.parametrize("op", facts.BUILT_INS)
def test_built_ins_are_booked_as_the_ledger_books_them(op):
    for n in (1, 2, 5, 8):
        group = tuple(range(n))
        booked = [logical_bytes(op, group, rank, 840, n - 1) for rank in group]
        assert facts.logical_bytes(op, n, 840) == pytest.approx(max(booked))


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert facts.bus_bandwidth("all_reduce", 8, 4 * GB, 0.1) == pytest.approx(70 * GB)
    assert facts.bus_bandwidth("all_gather", 8, 4 * GB, 0.1) == pytest.approx(35 * GB)
    assert facts.bus_bandwidth("broadcast", 8, 4 * GB, 0.1) == pytest.approx(40 * GB)
    with pytest.raises(ValueError, match="no factor for 'scatter'"):
        facts.bus_bandwidth("scatter", 8, GB, 1)


# ---- constants


def test_links_are_counted_each_way():
    assert facts.link("NVLink 3").each_way == 300 * GB
    assert facts.link("NVLink 4 (H100 SXM)").each_way == 450 * GB
    assert facts.link("PCIe 4.0").each_way == 32 * GB
    assert facts.link("InfiniBand HDR").each_way == 25 * GB
    assert facts.link("InfiniBand HDR").beta == pytest.approx(0.04e-9)
    for one in facts.LINKS:
        number, unit = one.quoted.split()[0], one.quoted.split()[1].rstrip(",")
        quoted = float(number) * {"GB/s": GB, "TB/s": 1000 * GB, "Gb/s": GB / 8}[unit]
        assert quoted == one.each_way * (2 if "both directions" in one.quoted else 1)
        assert one.source
    with pytest.raises(ValueError, match="is not one of the links: NVLink 3"):
        facts.link("NVLink")


def test_gpus_have_what_dense_products_reach():
    assert hardware.gpu("H100").flops == 989e12
    assert hardware.gpu("A100").memory == 80 * GB
    assert 0 < hardware.NVLINK_ALPHA < hardware.NETWORK_ALPHA < 1e-4
    assert hardware.gpu("H200").memory / hardware.gpu("H200").bandwidth == pytest.approx(
        0.0294, 0.01
    )
    assert hardware.gpu("A100").fp8 is None, "tensor cores have fp8 from Hopper on"
    assert hardware.gpu("A10").memory == 24 * GB, "a whole name is not the beginning of A100"
    for gpu in (*hardware.GPUS, *hardware.RENTED):
        assert facts.link(gpu.host_link).name == gpu.host_link
        assert gpu.fp8 is None or gpu.fp8 == pytest.approx(2 * gpu.flops, 0.02), "both are dense"
        assert gpu.source
    with pytest.raises(ValueError, match="is not one of the GPUs: A100 SXM, H100 SXM"):
        hardware.gpu("P100")
    with pytest.raises(ValueError, match="'L' is not one of the GPUs"):
        hardware.gpu("L")


def test_gpus_are_found_by_the_name_that_cuda_gives_them():
    assert {hardware.data_sheet(name) for name in hardware.CUDA_NAMES} == {
        *hardware.GPUS,
        *hardware.RENTED,
    }
    assert hardware.data_sheet("NVIDIA A10G") is None, "it is another GPU than an A10"


# ---- fully sharded data parallelism


def counted_transfers(k: int, reshard: bool, keep: str | None) -> tuple[int, int]:
    """(gathers, reductions) of one unit in a step of k microbatches, by following the unit."""
    whole, gathers, reductions = False, 0, 0
    for microbatch in range(k):
        last = microbatch == k - 1
        for way in ("forward", "backward"):
            gathers += not whole
            whole = True
            if way == "forward":
                whole = keep == "weights" or not reshard
            else:
                whole = keep in ("weights between", "weights") and not last
        reductions += keep is None or last
    return gathers, reductions


@pytest.mark.parametrize("keep", [None, "gradients", "weights between", "weights"])
@pytest.mark.parametrize("reshard", [True, False])
def test_a_sharded_step_sends_what_following_a_unit_counts(keep, reshard):
    for n in range(1, 9):
        for k in range(1, 9):
            gathers, reductions = counted_transfers(k, reshard, keep)
            sent = facts.fsdp_bytes(1000, n, k, weights=3, gradients=5, reshard=reshard, keep=keep)
            assert sent == pytest.approx((n - 1) / n * 1000 * (3 * gathers + 5 * reductions))
            assert facts.fsdp_gathers(k, reshard, keep) == gathers


def test_keeping_more_sends_less():
    """The four settings over four microbatches, in units of traffic."""

    def units(keep):
        return facts.fsdp_bytes(1, 4, 4, weights=1, gradients=1, keep=keep) / (3 / 4)

    keeps = (None, "gradients", "weights between", "weights")
    assert [units(keep) for keep in keeps] == pytest.approx([12, 9, 6, 2])
    with pytest.raises(ValueError, match="keep is one of"):
        facts.fsdp_bytes(1, 4, keep="everything")


def test_a_gather_hides_behind_the_forward_of_so_many_tokens(seed):
    reached = 0.4 * hardware.gpu("H100").flops
    nvlink, network = (facts.link(name).each_way for name in ("NVLink 4", "InfiniBand NDR"))
    assert facts.hides_from(8, reached, nvlink) == pytest.approx(7 / 8 * 879.1, 1e-4)
    assert facts.hides_from(1024, reached, network) == pytest.approx(7912, 2e-3)
    draw = random.Random(seed)
    for _ in range(50):
        n, itemsize, params = (
            draw.randrange(1, 65),
            draw.choice((1, 2, 4)),
            draw.randrange(1, 10**9),
        )
        flops, each_way = draw.uniform(1e12, 1e15), draw.uniform(1e9, 1e12)
        tokens = facts.hides_from(n, flops, each_way, itemsize)
        gather = facts.logical_bytes("all_gather", n, params * itemsize) / each_way
        assert facts.six_n_d(params, tokens) / 3 / flops == pytest.approx(gather), "P cancels"


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_bytes_of_units_are_those_of_the_models_parameters(modern, tied):
    config = GPTConfig(97, 40, layers=3, heads=4, width=32, kv_heads=2, tied=tied)
    config = config.modern() if modern else config
    model = GPT(config)
    block = sum(param.numel() for param in model.blocks[0].parameters())
    whole = sum(param.numel() for param in model.parameters())
    assert facts.unit_bytes(config, 2) == (2 * block, 2 * (whole - 3 * block))
    assert facts.unit_bytes(config, 4)[0] == 4 * block


def test_islands_send_less_across():
    """Nodes of 8, two of them, and 2 x 2 ranks; all elements of one size."""
    alike = {"weights": 1.0, "gradients": 1.0}
    full = facts.fsdp_bytes(1, 4, weights=1, gradients=1)
    inside, across = facts.hybrid_inside(1, 2, **alike), facts.hybrid_across(1, 2, 2, gradients=1)
    assert (full, inside + across) == pytest.approx((2.25, 2.0))
    assert facts.crossing_bytes(1, 16, **alike) == pytest.approx(2.8125)
    assert 8 * facts.hybrid_across(1, 8, 2, gradients=1) == pytest.approx(1.0), "of a whole node"
    assert facts.hybrid_across(1, 8, 1) == facts.hybrid_inside(1, 1) == 0
    for n in range(1, 9):
        assert facts.hybrid_inside(7, n) == pytest.approx(facts.fsdp_bytes(7, n))


def test_the_library_and_the_facts_agree_on_names_and_blocks():
    known = set(facts.ALGORITHMS) - {"naive_broadcast", "naive_all_reduce"}
    assert known == set(collectives.__all__) - {"hierarchical_all_reduce"}
    assert all(cost.source for cost in facts.ALGORITHMS.values())
    tree = inspect.signature(collectives.double_binary_tree_all_reduce)
    assert tree.parameters["blocks"].default == facts.TREE_BLOCKS


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: facts.rounds("butterfly", 4), "no algorithm is called 'butterfly'; known are"),
        (lambda: facts.bytes_sent_per_rank("broadcast", 0, 1), "whole number from 1 on, not 0"),
        (lambda: facts.rounds("broadcast", True), "not True"),
        (lambda: facts.logical_bytes("teleport", 2, 1), "no built-in is called"),
        (lambda: facts.exact_bytes("butterfly", 2, 4, 4, 0), "no algorithm is called"),
        (lambda: facts.exact_bytes("broadcast", 2, 4, 4, 2), "must lie in 0 .. 1"),
        (lambda: facts.exact_bytes("all_gather", 3, 4, 4, 0), "cannot be cut into 3 equal pieces"),
        (
            lambda: facts.exact_bytes("hierarchical_all_reduce", 6, 4, 4, 0, per_node=4),
            "equal size",
        ),
    ],
)
def test_wrong_questions_are_told_so(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
