"""Pipelines: how are layers split over ranks without the ranks waiting?

    actions.py     Action and Pair: a schedule is, for each rank, the list of its actions in order
    text.py        to_text, from_text: schedules as rows that PyTorch's pipelining runtime reads as well
    validate.py    violation, validate: the first mistake of a schedule, as a sentence
    simulate.py    simulate: from durations, when each action runs, which ranks wait, what bounds the time;
                   timing.py has its clock
    memory.py      peak_activations, weight_versions: a rank's memory, only from the order of its actions
    stage.py       Stage: the layers of one rank between two messages
    gpt.py         gpt_stages: a GPT cut into stages of equal work
    run.py         run_schedule: a schedule done on real ranks; plan.py, messages.py, halves.py and shared.py
                   hold its order of messages, the messages, the split backward, and shared parameters
    checked.py     run_schedule as the package exports it: it refuses what cannot be done
    timeline.py    the measured run of a schedule; stopwatch.py times its passes, clocks.py has the clocks
    stash.py       run_pipedream: an update after every backward, with a stash of weights or without
    generators/    naive, gpipe, one_f_one_b, ... to dualpipe_v: functions that write schedules

All functions work on any schedule, even one you invent. The names an exercise asks for are imported when they
are first used, so the other names can be used while these are hidden. The folder imports torch only, and can
be copied out together with `course_lib/exports.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports
from .actions import KINDS, Action, Pair, Schedule, stage_ranks
from .gpt import gpt_stages
from .halves import LaterWeights
from .memory import peak_activations, weight_versions
from .simulate import Durations, Simulation, simulate
from .stage import Stage
from .text import from_text, to_text
from .timeline import Timeline, measure
from .validate import ScheduleError, validate, violation

if TYPE_CHECKING:
    from .checked import run_schedule
    from .generators import (
        dualpipe,
        dualpipe_v,
        gpipe,
        interleaved_one_f_one_b,
        naive,
        one_f_one_b,
        pipedream,
        zero_bubble_h1,
        zero_bubble_h2,
        zero_bubble_v,
    )
    from .stash import Versioned, run_pipedream

__getattr__, __dir__, __all__ = exports(__name__)
