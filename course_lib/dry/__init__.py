"""The dry run: what does one rank of 1,024 send, hold and compute?

run.py         dry_run: setup and step of your program, as one rank of a large mesh. Begin here
plan.py        Plan: the mesh, the rank, the model and the rows
rehearsal.py   the run itself, in its own process
floats.py      FakeFloats: floats have only shapes, whole numbers are computed
absent.py      the other ranks, which answer immediately
meter.py       Meter: bytes alive, bytes kept for backward, FLOPs
traffic.py     bytes and calls by axis
closed.py      what the closed forms say
result.py      DryRun: the result, and its table

run = dry_run(setup, step, sizes={"pp": 8, "dp": 16, "tp": 8}, rank=517, model=config, microbatches=16)
print(run.table())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .floats import FakeFloats
    from .meter import Meter
    from .rehearsal import rehearse, whole_batch
    from .result import DryRun
    from .run import dry_run
    from .traffic import by_axis

__getattr__, __dir__, __all__ = exports(__name__)
