"""Notebook 13: one step in several layouts, on one GPU and on all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from course_lib import trainer
from course_lib.gpu.clock import forget_peak, half, peak_bytes, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.mesh import Mesh
from course_lib.models import PRESETS
from course_lib.planning import Layout
from course_lib.runtime.backend import device

ADAMW = (torch.optim.AdamW, {})


def layouts_of(n: int, rows: int) -> dict[str, Layout]:
    """The ways to put `rows` rows on n ranks along one axis, and ZeRO over all of them."""
    each = rows // n
    if n == 1:
        return {"one GPU": Layout({}, rows)}
    return {
        "dp": Layout({"dp": n}, each),
        "dp, ZeRO-1": Layout({"dp": n}, each, zero=1),
        "dp, ZeRO-2": Layout({"dp": n}, each, zero=2),
        "dp, ZeRO-3": Layout({"dp": n}, each, zero=3),
        "tp": Layout({"tp": n}, rows),
        "tp, sequence": Layout({"tp": n}, rows, sequence=True),
        "pp": Layout({"pp": n}, each),
        "cp": Layout({"cp": n}, rows),
    }


def layouts(preset: str, rows: int, repeats: int, make_step: Callable | None = None) -> list[Row]:
    """Time and memory of a step with AdamW in each layout the model allows, with products in 16 bits.

    make_step: yours, or else the reference. All layouts have the same batch of `rows` rows.
    """
    config, n = PRESETS[preset], dist.get_world_size()
    config = replace(config, tied=False, vocab_size=-(-config.vocab_size // 64) * 64)
    make, measured = make_step or trainer.make_step, []
    tokens = torch.randint(config.vocab_size, (rows, config.context + 1), device=device())
    for name, layout in layouts_of(n, rows).items():
        if config.heads % layout.tp or config.layers % layout.pp:
            continue  # 12 heads on 8 ranks
        with torch.autocast(device().type, half()):
            step = make(config, layout, Mesh(layout.sizes), rows, 1e-4, ADAMW)

            def step_once(step: Callable = step) -> None:
                step(tokens[:, :-1], tokens[:, 1:])

            step_once()  # it makes the moments
            forget_peak()
            taken = seconds(step_once, repeats)
        of = {"layout": name, "preset": preset, "batch": rows, "seq": config.context, "ranks": n}
        speed = rows * config.context / taken
        measured += [
            Row(f"{name}: a step", taken, "s", {"kind": "step", **of}),
            Row(f"{name}: of all GPUs", speed, "tokens/s", {"kind": "tokens", **of}),
            Row(f"{name}: tensors at the peak", peak_bytes(), "B", {"kind": "peak", **of}),
        ]
    return measured


SIZES = {"preset": "124M", "rows": 8, "repeats": 5}
SMALL = {"preset": "0.1M", "rows": 8, "repeats": 1}
ON_ONE = Experiment("one layout", "Your step on one GPU", 1, layouts, SIZES, SMALL)
ON_ALL = Experiment("layouts", "Your step on all GPUs, in each layout", 2, layouts, SIZES, SMALL)
