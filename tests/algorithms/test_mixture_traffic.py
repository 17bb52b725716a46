"""A router's drawn traffic against real ranks, loops that count, and the mean of a fair router."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.experts import exchange
from course_lib.facts.experts import nodes_touched
from course_lib.pictures.router_playground import router_playground
from course_lib.planning.mixture_traffic import ITEMSIZE, NODE, TOKENS, WIDTH, Setting, Traffic


def test_the_bytes_of_a_rank_are_those_that_real_ranks_exchange() -> None:
    traffic = Traffic(Setting(experts=8, ranks=8, k=2, skew=1.0))
    rows = traffic.rows.tolist()

    def job() -> None:
        rank = dist.get_rank()
        send, receive = rows[rank], [row[rank] for row in rows]
        there = exchange(torch.zeros(sum(send), 2), send, receive)
        exchange(there, receive, send)

    run = launch(job, world_size=8, backend="gloo")
    sent = [run.ledger.bytes_sent(rank) for rank in range(8)]  # rows of two float32: 8 bytes
    assert max(sent) * 2 / 8 == traffic.busiest / (WIDTH * ITEMSIZE)  # forward and backward
    own = int(traffic.rows.diagonal().sum())
    assert traffic.inside * 8 / (WIDTH * ITEMSIZE) == TOKENS * 2 - own == sum(sent) / 8 / 2
    assert traffic.network == 0  # eight ranks are one node


def test_a_row_for_each_node_by_a_loop() -> None:
    traffic = Traffic(Setting(experts=64, ranks=32, k=8, skew=0.5))
    nodes, direct, passed = 4, 0, 0
    for token, chosen in enumerate(traffic.experts.tolist()):
        home = token // (TOKENS // 32) // NODE
        away = [expert // (64 // nodes) for expert in chosen]
        direct += sum(node != home for node in away)
        passed += len({*away} - {home})
    assert traffic.network * 32 / (WIDTH * ITEMSIZE) == direct
    assert traffic.passed_on is not None
    assert traffic.passed_on * 32 / (WIDTH * ITEMSIZE) == passed < direct


def test_a_fair_router_touches_as_many_nodes_as_the_formula_says() -> None:
    traffic = Traffic(Setting(experts=256, ranks=64, k=8))
    node = traffic.experts // 32
    touched = sum(len(set(nodes)) for nodes in node.tolist()) / TOKENS
    assert touched == pytest.approx(nodes_touched(256, 8, 8), rel=0.01)
    limited = Traffic(Setting(experts=256, ranks=64, k=8, limit=4))
    assert max(len(set(nodes)) for nodes in (limited.experts // 32).tolist()) == 4
    assert limited.passed_on is not None and traffic.passed_on is not None
    assert limited.passed_on < 0.8 * traffic.passed_on


def test_places_drop_what_they_do_not_hold() -> None:
    setting = Setting(experts=64, ranks=16, k=4, skew=1.0, factor=1.25)
    traffic = Traffic(setting)
    assert traffic.places == 20  # 1.25 * 4 * 256 / 64
    lost = sum(max(0, count - 20) for row in traffic.counts.tolist() for count in row)
    assert traffic.dropped == pytest.approx(lost / (TOKENS * 4), rel=1e-12)
    assert traffic.passed_on is None
    assert Traffic(replace(setting, factor=0.0)).dropped == 0


def test_more_skew_makes_the_slowest_rank_slower() -> None:
    slow = [Traffic(Setting(skew=skew)).slowest for skew in (0.0, 1.0, 3.0)]
    assert 1 < slow[0] < 1.2 < slow[1] < slow[2]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (Setting(experts=8, ranks=16), "8 experts cannot be dealt out to 16 ranks"),
        (Setting(experts=8, ranks=8, k=9), "cannot have 9 of 8 experts"),
        (Setting(ranks=8, limit=2), "8 ranks are 1 node: there are no 2 to choose"),
        (Setting(experts=64, ranks=32, k=2, limit=4), "nodes = 4 must divide k = 2"),
    ],
)
def test_what_cannot_be_is_said_where_the_picture_would_be(setting: Setting, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Traffic(setting)
    box = router_playground().widget()
    sentence, image = box.children[1], box.children[2]
    assert sentence.value == ""
    controls = {
        each.description: each
        for row in box.children[0].children[0].children
        for each in [getattr(row, "children", [row])[0]]
    }
    if setting.k in (2, 4):
        controls["k"].value = setting.k
        controls["experts"].value, controls["ranks"].value = setting.experts, setting.ranks
        controls["nodes"].value = setting.limit
        assert said in sentence.value and image.layout.visibility == "hidden"


def test_without_a_kernel_it_shows_the_first_setting() -> None:
    shown = router_playground()._repr_mimebundle_()
    assert "slowest rank" in shown["text/plain"] and set(shown) == {"text/plain", "image/png"}
