"""Notebook 11: the products of many experts, in a loop and in one call, and rows sent to other GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.gpu.clock import half, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.runtime.backend import device


def grouped(counts: list[int], rows: int, width: int, hidden: int, repeats: int) -> list[Row]:
    """One product for each expert, in a loop and by `grouped_mm`, always with `rows` rows in all.

    If a GPU, or a version of PyTorch, has no grouped products, there is no number for them.
    """
    measured = []
    for count in counts:
        x = torch.randn(rows, width, device=device(), dtype=half())
        w = torch.randn(count, width, hidden, device=device(), dtype=half())
        ends = torch.arange(1, count + 1, device=device(), dtype=torch.int32) * (rows // count)

        def loop(x: torch.Tensor = x, w: torch.Tensor = w, count: int = count) -> None:
            torch.cat([part @ w[e] for e, part in enumerate(x.chunk(count))])

        def at_once(x: torch.Tensor = x, w: torch.Tensor = w, ends: torch.Tensor = ends) -> None:
            product: Callable = getattr(F, "grouped_mm", None) or torch._grouped_mm
            product(x, w, offs=ends)

        for way, function in (("a loop", loop), ("grouped_mm", at_once)):
            try:
                taken = seconds(function, repeats)
            except (RuntimeError, AttributeError, NotImplementedError):
                taken = None  # of PyTorch 2.6, or of a GPU without these kernels
            measured.append(
                Row(f"{count:3} experts, {way}", taken, "s", {"way": way, "experts": count})
            )
    return measured


def exchanges(rows: Sequence[int], width: int, repeats: int) -> list[Row]:
    """All-to-alls of `rows` rows from each rank, in equal parts, or with all rows to rank 0."""
    rank, n, measured = dist.get_rank(), dist.get_world_size(), []
    for many in rows:
        x = torch.randn(many // n * n, width, device=device(), dtype=half())
        ways = {
            "equal parts": ([many // n] * n, [many // n] * n),
            "all to rank 0": (
                [len(x)] + [0] * (n - 1),
                [len(x)] * n if rank == 0 else [0] * n,
            ),
        }
        for way, (send, receive) in ways.items():
            came = x.new_empty(sum(receive), width)

            def travel(
                x: torch.Tensor = x, came: torch.Tensor = came,
                send: list[int] = send, receive: list[int] = receive,
            ) -> None:  # fmt: skip
                dist.all_to_all_single(came, x, receive, send)

            of = {"way": way, "bytes": x.nbytes, "ranks": n}
            measured.append(Row(f"{len(x):,} rows, {way}", seconds(travel, repeats), "s", of))
    return measured


GROUPED = Experiment(
    "grouped", "The products of many experts", 1, grouped,
    {"counts": [8, 32, 128], "rows": 16_384, "width": 2048, "hidden": 1024, "repeats": 10},
    {"counts": [2, 4], "rows": 16, "width": 16, "hidden": 16, "repeats": 1},
)  # fmt: skip
EXCHANGES = Experiment(
    "exchanges", "Rows to other GPUs", 2, exchanges,
    {"rows": [512, 4096, 32_768], "width": 4096, "repeats": 10},
    {"rows": [8, 16], "width": 4, "repeats": 1},
)  # fmt: skip
