"""The pair of sequence parallelism where the sequence is another dimension than the last but one."""

from __future__ import annotations

from dataclasses import replace

from course_lib.checks import kit
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import values_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel.sequence_runs import (
    GATHER,
    NAMES,
    SCATTER,
    gathering,
    scattering,
)

TITLE = "other dimensions"
DIMS = (0, -1)
LOOK = (
    "If the lines above are right, the dimension is the cause. `dim` says which dimension is the sequence, "
    "counted from the end if it is negative. Join and cut along that dimension, forward and backward."
)
KEEP = "The dimension of the sequence is passed as dim=, so keep that argument."


def along(draw: kit.Draw, dim: int) -> list[LayerRun]:
    """Both of the pair on 2 ranks, where the sequence is another dimension, passed as dim=."""
    runs = [gathering(draw, 2, (4, 2, 6), dim=dim), scattering(draw, 2, (4, 2, 6), dim=dim)]
    return [replace(run, name=f"{run.name} {dim}", kwargs={"dim": dim}) for run in runs]


def dim_case(draw: kit.Draw) -> kit.Case:
    """Each of the pair along the first dimension and along the last."""
    made = [run for dim in DIMS for run in along(draw, dim)]
    return runs.layer_case(TITLE, made, [line(made, which) for which in (GATHER, SCATTER)])


def line(made: list[LayerRun], which: int) -> kit.Line:
    title = f"{NAMES[which]}, dim={DIMS[0]} and dim={DIMS[1]}"
    judges = [
        values_line(run, title, names=["y", "grad.x"], misfit=lambda *_: LOOK, otherwise=LOOK).judge
        for run in made
        if run.object == which
    ]
    return kit.Line(title, kit.both(*judges), 0.75)


def trouble(text: str) -> str:
    """The usual cause of a run of this case that broke off."""
    return KEEP if "argument 'dim'" in text else LOOK
