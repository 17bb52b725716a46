"""The programs that test_composition.py compares: every wrapper, together with every other part."""

from __future__ import annotations

from collections.abc import Sequence

from .on_a_mesh import ContextParallel, OnMesh, Pipeline, TensorParallel
from .programs import FEATURES, Plan, Result, Trainer, alone, planned
from .wrappers import Bucketed, Hybrid, Naive, Prefetched, Zero1, Zero2, Zero3

TRAINERS: dict[str, type[Trainer]] = {
    "naive": Naive,
    "bucketed": Bucketed,
    "ZeRO-1": Zero1,
    "ZeRO-2": Zero2,
    "ZeRO-3": Zero3,
    "prefetched": Prefetched,
    "hybrid": Hybrid,
    "mesh of dp": OnMesh,
    "mesh of pp": Pipeline,
    "mesh of tp": TensorParallel,
    "mesh of cp": ContextParallel,
}

__all__ = [
    "FEATURES",
    "TRAINERS",
    "Plan",
    "Result",
    "Trainer",
    "alone",
    "planned",
    "refusal",
    "train",
]


def train(wrapper: str, plans: Sequence[Plan], seed: int) -> list[Result]:
    """The programs of a rank, one after the other."""
    return [TRAINERS[wrapper](plan, seed).train() for plan in plans]


def refusal(wrapper: str, plan: Plan, seed: int) -> str:
    """The error of a rank's program, which may not come as far as a step."""

    def step() -> None:
        raise AssertionError("it was not refused before a step")

    trainer = TRAINERS[wrapper](plan, seed)
    trainer.update = step
    try:
        trainer.train()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    raise AssertionError("it was not refused")
