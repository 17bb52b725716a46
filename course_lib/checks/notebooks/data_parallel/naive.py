"""NaiveDataParallel: one all-reduce for each parameter, after backward."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.data_parallel.grouped import in_a_group
from course_lib.checks.notebooks.data_parallel.refused import REDUCER
from course_lib.checks.notebooks.data_parallel.replicas import (
    ADAMW,
    REFERENCE,
    broken_off,
    gradients_sent,
    its_own_work,
    messages_in_step,
    right_values,
    same_buffers,
    same_start,
    some_ranks_only,
    trained,
    training,
    unused_parameter,
    wrapper_case,
)

SUM_OF = "gradient"  # buckets come later


@kit.exercise(
    points=10, objects=("NaiveDataParallel",), references=REFERENCE, hint=broken_off, refused=REDUCER
)
def naive_data_parallel(draw: kit.Draw) -> Iterator[kit.Case]:
    run = training(draw, 3, {"name": "traps", "width": 5, "unused": False})
    yield wrapper_case("traps", run,
        [
            same_start(run, "all ranks start from rank 0's parameters", 1.5),
            right_values(
                run, "grad", "gradients are the mean, 3 ranks, SGD: frozen, tied, used twice", 3,
                sum_of=SUM_OF, strict=True,
            ),
            right_values(run, "param", "and so are the parameters after each step", sum_of=SUM_OF),
            its_own_work(),
            gradients_sent(run, weight=2.5),
            messages_in_step(len(trained(run)), "parameter"),
        ],
    )  # fmt: skip
    run = training(draw, 4, {"name": "plain", "width": 4}, optimizer=ADAMW, micro=2)
    yield wrapper_case("accumulation", run,
        [
            right_values(run, "grad", "2 microbatches added up, 4 ranks, AdamW", 1.5, sum_of=SUM_OF),
            right_values(run, "param", "and the parameters after each step", 0.5, sum_of=SUM_OF),
        ],
    )  # fmt: skip
    yield unused_parameter(draw)
    yield some_ranks_only(draw, sum_of=SUM_OF)
    yield in_a_group(draw, sum_of=SUM_OF)
    run = training(draw, 2, {"name": "shifted", "width": 3}, steps=1, tell=("buffers", "grads"))
    yield wrapper_case("buffers", run, [same_buffers(run, "rank 0's buffers, too")])
    if draw.hidden:
        run = training(draw, 4, {"name": "traps", "width": 6, "dtype": "float32"})
        yield wrapper_case("traps in float32", run,
            [
                right_values(run, "grad", "4 ranks, float32", short=True),
                right_values(run, "param", "parameters in float32", short=True),
            ],
        )  # fmt: skip
        run = training(draw, 1, {"name": "traps", "width": 4})
        yield wrapper_case(
            "1 rank", run, [right_values(run, "param", "1 rank", 0.5, trivial=True, short=True)]
        )
