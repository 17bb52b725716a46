"""How long a small GPT on one rank takes from random weights to 2.0 nats a byte of unseen text.

For scale: a guess costs 5.5 nats, a table of how often each byte follows another 2.4, a table for every two
bytes before it (16 million numbers) 1.9. The clock begins when text and model are there, and includes the
looks at the held-out text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from benchmarks.table import Row
from course_lib import launch
from course_lib.data import batch, library_text
from course_lib.models import GPT, PRESETS, next_token_loss

PRESET = "0.1M"
BATCH, LENGTH = 16, 64
RATE, WARM_UP = 6e-3, 20  # the learning rate grows over the first steps
LOOK, ROWS = 50, 512  # steps between two looks at the held-out text, and its rows
GOAL, REACH = 2.0, 60.0
MOST_STEPS = 3000


def held_out_loss(model: GPT) -> float:
    """Over ROWS rows, the same each time."""
    inputs, targets = batch(library_text("validation"), 0, batch_size=ROWS, length=LENGTH)
    with torch.no_grad():
        return next_token_loss(model(inputs), targets).item()


def train() -> tuple[int, float, float]:
    """Steps and seconds until the held-out loss is below GOAL, and that loss."""
    model = GPT(PRESETS[PRESET].modern())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARM_UP, total_iters=WARM_UP)
    text, loss = library_text(), held_out_loss(model)
    began = time.perf_counter()
    for step in range(MOST_STEPS):
        inputs, targets = batch(text, step, batch_size=BATCH, length=LENGTH)
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()
        warm_up.step()
        if (step + 1) % LOOK == 0:
            loss = held_out_loss(model)
            if loss < GOAL:
                return step + 1, time.perf_counter() - began, loss
    raise RuntimeError(
        f"the held-out loss is {loss:.2f} after {MOST_STEPS} steps, not below {GOAL}"
    )


def rows() -> Iterator[Row]:
    steps, seconds, loss = launch(train, world_size=1, backend="gloo", timeout=600)[0]
    yield Row(
        f"a GPT of {PRESET[:-1]} million parameters on one rank, to {GOAL} nats a byte of unseen text",
        "a minute",
        seconds,
        REACH,
        unit="s",
        detail=f"{steps} steps, {loss:.2f} nats",
    )
