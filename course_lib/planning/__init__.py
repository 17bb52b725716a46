"""Planning: what does a training step cost, before anything is rented, and which layout is best?

The first modules count the bytes on one GPU, measured while a model runs:

    saved.py             SavedBytes: the bytes autograd keeps for backward, by the module that kept them
    memory_timeline.py   MemoryTimeline: the bytes alive at each operation of a step, by what holds them
    recipe_run.py        recipe_states: bytes per parameter of a recipe's model states, after a step that ran

The next modules model a cluster you do not have. Which wire does an axis use, does a layout fit, and how long
does its step take?

    topology.py      Cluster, Wire: GPUs in nodes, and the link a group of ranks shares
    layout.py        Layout: how many ranks each axis has, and how a step is cut; the first reason against it
    roofline.py      a layer against the clock of one GPU: products, and the bytes of everything else
    memory.py        memory_per_gpu: states and activations of the GPU that holds most
    step_time.py     step_seconds, step_parts: where a step's time goes
    advisor.py       advise: every layout judged, with the first reason why it was dropped; best_layout
    replay.py        a recorded run, repeated on other wires; a schedule of many stages on the clock
    mixture_traffic.py  the rows of a router's choices, bytes by wire, drops, the slowest rank
    published.py     published steps, row by row, the one fitted constant, and how far the rest is off

Two modules take plain numbers, as notebook 10 asks for:

    by_hand.py         memory_per_gpu, all_reduce_seconds, step_seconds, best_layout
    replay_by_hand.py  replay: the clock of every rank, from a list of entries
    table_1.py         TABLE_1, row_tflops: ten published steps in plain numbers

Closed forms and data sheets are in `course_lib.facts`. The figures are in `course_lib.pictures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .advisor import A100_EFFICIENCY, OPTIONS, Verdict, advise, best_layout, judge, sizes_of
    from .layout import AXES, Layout
    from .memory import memory_per_gpu
    from .memory_timeline import KINDS, MemoryTimeline, Moment, held_bytes
    from .recipe_run import recipe_states
    from .replay import pipeline_seconds, scaled
    from .roofline import Work
    from .saved import SavedBytes
    from .step_time import step_seconds, step_tflops
    from .table_1 import TABLE_1, row_tflops
    from .topology import Cluster, Wire, a100_cluster

__getattr__, __dir__, __all__ = exports(__name__)
