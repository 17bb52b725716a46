"""Every wrapper with every other part of the library: equal to one process, or refused before a step.

A part that is right by itself may be wrong beside another one, without an error. So each pair trains some
steps in float64, on the same batches as one process. `make test` tries all pairs on two ranks, and a drawn
part of them on one rank and on three; `make test-all` tries all. Then several parts come together, as drawn.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch

from course_lib import RankError, launch
from tests.algorithms.composition import (
    FEATURES,
    TRAINERS,
    Plan,
    Result,
    alone,
    planned,
    refusal,
    train,
)


def test_zero_1_with_clipping_trains_as_one_process(seed: int) -> None:
    plan = planned("clipping")
    ranks = launch(train, "ZeRO-1", [plan], seed, world_size=2, backend="gloo")
    wanted = alone(plan, seed, TRAINERS["ZeRO-1"].kind)
    for (result,) in ranks:
        torch.testing.assert_close(result.weights, wanted.weights, rtol=0, atol=1e-7)
        assert result.norms == pytest.approx(wanted.norms, abs=1e-7)


EVERYTHING = os.environ.get("COURSE_ALL_TESTS") == "1"
SEED = os.environ["COURSE_TEST_SEED"]
RANKS, MAIN = (1, 2, 3), 2
DRAWN = 0.1  # of the pairs, on other numbers of ranks than MAIN
OTHER_RANKS = {"hybrid": (1, 2, 4)}  # two islands of two
MESHES = [wrapper for wrapper in TRAINERS if wrapper.startswith("mesh")]
ABSENT = {(wrapper, "no_sync") for wrapper in ("prefetched", "hybrid", *MESHES)}
TOGETHER = 20 if EVERYTHING else 1  # drawn plans of several parts for each wrapper

NESTED = r"a backward began before the last one had ended.*use_reentrant=False"
REENTRANT = ("our checkpoint", "torch's reentrant checkpoint")
REFUSED: dict[tuple[str, str], str] = {
    ("ZeRO-2", "no_sync"): "Zero2Optimizer keeps no full gradients.*leave no_sync out",
    **{(wrapper, way): NESTED for wrapper in ("ZeRO-2", "ZeRO-3") for way in REENTRANT},
}


def is_right(wrapper: str, feature: str) -> bool:
    return (wrapper, feature) not in REFUSED and (wrapper, feature) not in ABSENT


def worlds(wrapper: str, feature: str) -> list[int]:
    """The numbers of ranks on which a pair is tried."""
    draw = random.Random(f"{SEED} {wrapper} {feature}")
    several = OTHER_RANKS.get(wrapper, RANKS)
    return [n for n in several if EVERYTHING or n == MAIN or draw.random() < DRAWN]


PAIRS = [
    (wrapper, feature, n)
    for wrapper in TRAINERS
    for feature in FEATURES
    if is_right(wrapper, feature)
    for n in worlds(wrapper, feature)
]


@pytest.mark.parametrize(("wrapper", "feature", "world_size"), PAIRS)
def test_a_pair_trains_as_one_process(
    wrapper: str, feature: str, world_size: int, seed: int
) -> None:
    plan = planned(feature)
    ranks = in_one_launch(wrapper, world_size, seed).get(feature)
    if ranks is None:
        ranks = on_ranks(wrapper, [plan], world_size, seed)[0]
    assert_same(ranks, wrapper, plan, seed)


@cache
def in_one_launch(wrapper: str, world_size: int, seed: int) -> dict[str, list[Result]]:
    """The results of a wrapper's pairs; of none if one fails, so that each is then tried by itself."""
    features = [feature for of, feature, n in PAIRS if (of, n) == (wrapper, world_size)]
    plans = [planned(feature) for feature in features]
    try:
        results = on_ranks(wrapper, plans, world_size, seed)
    except RankError as error:
        print(f"{wrapper}, all pairs in one launch: {error}")
        return {}
    return dict(zip(features, results, strict=True))


def on_ranks(wrapper: str, plans: Sequence[Plan], world_size: int, seed: int) -> list[list[Result]]:
    """The results of each plan, one of each rank."""
    run = launch(train, wrapper, plans, seed, world_size=world_size, backend="gloo", timeout=240)
    return [list(results) for results in zip(*run, strict=True)]


def assert_same(ranks: Sequence[Result], wrapper: str, plan: Plan, seed: int) -> None:
    """Weights to 1e-12, or what a norm in float32 leaves of that; losses, norms and the scale."""
    wanted = alone(plan, seed, TRAINERS[wrapper].kind)
    tolerance = 1e-7 if plan.clip else 1e-12
    for result in ranks:
        for name, value in result.weights.items():
            whole = wanted.weights[name]
            dim, start, end = result.parts.get(name, (0, 0, len(whole)))
            part = whole.narrow(dim, start, end - start)
            torch.testing.assert_close(value, part, rtol=0, atol=tolerance)
        if result.losses and not plan.scaler:  # else the losses are scaled
            assert result.losses == pytest.approx(wanted.losses, abs=tolerance)
        assert result.evaluations == pytest.approx(wanted.evaluations, abs=tolerance)
        assert result.norms == pytest.approx(wanted.norms, rel=1e-6)
        assert result.scale == wanted.scale
    held = {name for result in ranks for name in result.weights}
    assert held >= wanted.weights.keys() - ({"head.weight"} if plan.tied else set())


@pytest.mark.parametrize(("wrapper", "feature"), REFUSED)
def test_a_pair_is_refused_before_a_step(wrapper: str, feature: str, seed: int) -> None:
    plan, sentence = planned(feature), REFUSED[wrapper, feature]
    for said in launch(refusal, wrapper, plan, seed, world_size=MAIN, backend="gloo", timeout=120):
        assert re.search(sentence, said), said


# ---- several parts at once

ALTERNATIVES = (
    ["loss scaler"],
    ["clipping"],
    ["accumulation", "no_sync"],
    ["our checkpoint", "our lazy checkpoint", "torch's reentrant checkpoint", "torch's checkpoint"],
    ["frozen parameters"],
    ["tied weights"],
    ["masked targets"],
    ["uneven rows"],
    ["evaluation"],
    ["resuming"],
)


def drawn(wrapper: str) -> Iterator[tuple[int, list[str]]]:
    """Numbers of ranks, each with three to five features of which each pair is right."""
    draw = random.Random(f"{SEED} {wrapper}")
    for _ in range(TOGETHER):
        n = draw.choice(OTHER_RANKS.get(wrapper, RANKS)[1:])
        right = [[f for f in ways if is_right(wrapper, f)] for ways in ALTERNATIVES]
        chosen = draw.sample([ways for ways in right if ways], draw.randint(3, 5))
        yield n, [draw.choice(ways) for ways in chosen]


@pytest.mark.parametrize("wrapper", TRAINERS)
def test_several_parts_train_as_one_process(wrapper: str, seed: int) -> None:
    """Those of a usual run, and some that are drawn."""
    usual = ("loss scaler", "clipping", "accumulation", "torch's checkpoint", "masked targets")
    together = [(MAIN, [f for f in usual if is_right(wrapper, f)]), *drawn(wrapper)]
    for n in sorted({n for n, _ in together}):
        chosen = [features for ranks, features in together if ranks == n]
        plans = [planned(*features) for features in chosen]
        print(f"{wrapper} on {n} ranks: {chosen}")
        for plan, ranks in zip(plans, on_ranks(wrapper, plans, n, seed), strict=True):
            assert_same(ranks, wrapper, plan, seed)
