"""A run that can be saved: its parts, and its state as bytes. See remember.py for the state itself."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass
class Training:
    """The parts of a run. `step` counts the finished steps, so it is the number of the next step.

    scheduler and scaler: with `state_dict` and `load_state_dict`, or None. generator: the run's own, or None.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scaler: Any = None
    generator: torch.Generator | None = None
    step: int = 0


def to_bytes(state: dict[str, Any]) -> bytes:
    """The state as bytes, to be a part of a checkpoint."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, Any]:
    """The state that these bytes contain, on the CPU."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
