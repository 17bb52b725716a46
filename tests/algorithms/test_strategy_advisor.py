"""The strategy advisor: its ranking, its bars, the reasons, and its controls."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from course_lib.models import PUBLISHED
from course_lib.pictures.strategy_advisor import (
    BARS,
    H100_EFFICIENCY,
    MEMORY_FILLS,
    SYSTEMS,
    TIME_FILLS,
    Question,
    StrategyAdvisor,
    short,
    strategy_advisor,
)
from course_lib.planning import published
from course_lib.planning.advisor import A100_EFFICIENCY, advise

SMALL = Question("LLaMA-7B", gpus=16, batch=72)  # 16 replicas cannot share 72 sequences


def test_the_two_constants_are_the_fitted_ones() -> None:
    assert published.fitted(published.FITTED) == pytest.approx(A100_EFFICIENCY, abs=0.005)
    assert published.fitted(published.LLAMA_FITTED) == pytest.approx(H100_EFFICIENCY, abs=0.005)


@pytest.fixture(scope="module")
def advisor() -> StrategyAdvisor:
    return strategy_advisor()


def test_the_verdicts_are_those_of_advise(advisor: StrategyAdvisor) -> None:
    wanted = advise(PUBLISHED["LLaMA-7B"], 16, SMALL.batch, SMALL.cluster, 2048, SMALL.work)
    assert advisor.verdicts(SMALL) == wanted
    assert SMALL.cluster.nodes == 2 and SMALL.cluster.wire("across").each_way == 25e9
    assert SMALL.cluster.wire("inside").each_way == 300e9
    h100 = replace(SMALL, gpu="H100 SXM", network="10 Gb Ethernet").cluster
    assert h100.wire("inside").each_way == 450e9 and h100.wire("across").each_way == 1.25e9


def test_the_ranking_has_a_line_for_every_division_and_a_reason_for_each_dropped_one(
    advisor: StrategyAdvisor,
) -> None:
    lines = advisor.ranking(SMALL).splitlines()[1:]
    verdicts = advisor.verdicts(SMALL)
    assert len(lines) == len(verdicts)
    for line, verdict in zip(lines, verdicts, strict=True):
        assert short(verdict.layout) in line
        if verdict.fits:
            assert line.split()[0] == f"{verdict.seconds:.2f}" and "%" in line
        else:
            assert line.split()[0] == "dropped" and line.endswith(verdict.reason)
    assert any(not verdict.fits for verdict in verdicts)
    seconds = [verdict.seconds for verdict in verdicts if verdict.seconds is not None]
    assert seconds == sorted(seconds)


def test_the_sentence_names_the_winner_or_the_first_obstacle(advisor: StrategyAdvisor) -> None:
    best = advisor.verdicts(SMALL)[0]
    said = advisor.sentence(SMALL)
    assert said.startswith(f"{best.layout}: {best.seconds:.1f} s a step")
    fitting = sum(verdict.fits for verdict in advisor.verdicts(SMALL))
    assert f"16 GPUs: {fitting} of {len(advisor.verdicts(SMALL))} divisions can be cut" in said
    alone = replace(SMALL, gpus=1)
    assert advisor.sentence(alone) == (
        "1 GPU: 0 of 1 division can be cut and fit. one GPU, memory: 110 GB needed at least, 76 GB free."
    )


def test_the_bars_are_the_parts_of_the_best_layouts(advisor: StrategyAdvisor) -> None:
    figure = advisor.chart(SMALL)
    best = advisor.verdicts(SMALL)[:BARS]
    left, right = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == [short(v.layout) for v in best]
    for axes, whole in (
        (left, [(v.nbytes or 0) / 1e9 for v in best]), (right, [v.seconds for v in best])
    ):  # fmt: skip
        ends = [0.0] * len(best)
        for bars in axes.containers:
            for k, bar in enumerate(bars):
                assert bar.get_x() == pytest.approx(ends[k])
                ends[k] += bar.get_width()
        assert ends == pytest.approx(whole)
    (room,) = [line for line in left.lines if line.get_gid() == "room"]
    assert np.asarray(room.get_xdata())[0] == 76  # of 80 GB
    assert len(advisor.chart(replace(SMALL, gpus=1)).axes[0].containers) > 0  # none fits


def test_fills_differ_in_colour_and_hatch() -> None:
    for fills in (MEMORY_FILLS, TIME_FILLS):
        assert len(set(fills.values())) == len(fills)
        hatches = [hatch for _, hatch in fills.values() if hatch]
        assert len(set(hatches)) == len(hatches)


def test_a_slower_network_moves_the_winner(advisor: StrategyAdvisor) -> None:
    """On 10 Gb/s the replicas' sums cost too much: the winner cuts the model further."""
    fast = advisor.verdicts(replace(SMALL, network="InfiniBand NDR"))[0]
    slow = advisor.verdicts(replace(SMALL, network="10 Gb Ethernet"))[0]
    assert fast.layout.sizes != slow.layout.sizes and (fast.seconds or 0) < (slow.seconds or 0)


# ---- the widget


def test_the_controls_change_sentence_bars_and_ranking(advisor: StrategyAdvisor) -> None:
    small = strategy_advisor({"7B": PUBLISHED["LLaMA-7B"], "small": PUBLISHED["GPT-2 small"]})
    small.first = replace(SMALL, model="7B", batch=64)
    settings, sentence, image, table = small.widget().children
    rows = [one for box in settings.children for one in box.children]
    columns = [one.children[0] if hasattr(one, "children") else one for one in rows]
    controls: dict[str, Any] = {one.description: one for one in columns}
    assert {*controls} == {
        "model", "GPUs", "GPU", "network", "tokens", "sequences", "attention",
    }  # fmt: skip
    assert len(controls) == len(Question.__dataclass_fields__)
    for name, value in (
        ("GPUs", 32), ("GPU", "H100 SXM"), ("network", "10 Gb Ethernet"), ("sequences", 128),
        ("attention", [*SYSTEMS][1]), ("model", "small"),
    ):  # fmt: skip
        before = sentence.value, bytes(image.value), table.value
        controls[name].value = value
        after = sentence.value, bytes(image.value), table.value
        assert all(a != b for a, b in zip(before, after, strict=True)), name
        assert after[1].startswith(b"\x89PNG")
    controls["GPUs"].value = 1
    assert "one GPU" in table.value
    controls["model"].value = "7B"
    assert "dropped" in table.value


def test_outside_a_kernel_there_is_a_still_picture(advisor: StrategyAdvisor) -> None:
    small = strategy_advisor({"7B": PUBLISHED["LLaMA-7B"]})
    small.first = replace(SMALL, model="7B", batch=64)
    bundle = small._repr_mimebundle_()
    assert {*bundle} == {"text/plain", "image/png"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == small.sentence(small.first)
    with pytest.raises(ValueError, match="at least one model"):
        strategy_advisor({})
