"""The layouts the capstone compares, as data. Each trains the same model, and has the same loss.

A batch has ROWS rows, or a multiple of them. `microbatch` counts rows, so with 8 rows, one replica and
microbatch 2, a pipeline has m = 4 microbatches; with 16 rows it has 8. The model needs at least 4 layers and
4 heads. For layouts with a pipeline and ZeRO-2 or ZeRO-3, it also needs a head of its own (tied=False).
"""

from __future__ import annotations

from course_lib.planning import Layout

ROWS = 8


def _layout(microbatch: int, zero: int = 0, chunks: int = 1, sequence: bool = False, **sizes: int):
    return Layout(sizes, microbatch, chunks, zero, recompute="none", sequence=sequence)


FIFTEEN: dict[str, Layout] = {
    "one process": _layout(8),
    "ddp 4": _layout(2, dp=4),
    "zero-1 4": _layout(1, 1, dp=4),
    "zero-2 4": _layout(1, 2, dp=4),
    "zero-3 4": _layout(1, 3, dp=4),
    "tp 4": _layout(8, tp=4),
    "tp 2, sequence": _layout(8, sequence=True, tp=2),
    "pp 4": _layout(2, pp=4),
    "pp 2, v 2": _layout(2, chunks=2, pp=2),
    "cp 4": _layout(8, cp=4),
    "dp 2 cp 2, zero-1": _layout(4, 1, dp=2, cp=2),
    "dp 2 cp 2, zero-3": _layout(4, 3, dp=2, cp=2),
    "pp 2 dp 2, zero-3": _layout(1, 3, pp=2, dp=2),
    "pp 2 dp 2 tp 2": _layout(1, pp=2, dp=2, tp=2),
    "pp 2 dp 2 tp 2, zero-1": _layout(1, 1, pp=2, dp=2, tp=2),
}

# These have two ranks, so that a machine with two GPUs can run all of them.
NINE: dict[str, Layout] = {
    "ddp": _layout(4, dp=2),
    "zero-1": _layout(2, 1, dp=2),
    "zero-2": _layout(2, 2, dp=2),
    "zero-3": _layout(2, 3, dp=2),
    "tp": _layout(8, tp=2),
    "tp, sequence": _layout(8, sequence=True, tp=2),
    "pp": _layout(2, pp=2),
    "pp, v 2": _layout(2, chunks=2, pp=2),
    "cp": _layout(8, cp=2),
}
