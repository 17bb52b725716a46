"""Pipelines: how are layers split over ranks without the ranks waiting?

    actions.py     Action and Pair: a schedule is, for each rank, the list of its actions in order
    text.py        to_text, from_text: schedules as rows that PyTorch's pipelining runtime reads as well
    validate.py    violation, validate: what is wrong with a schedule, as a sentence
    simulate.py    simulate: durations given, when does each action run, who waits, what bounds the time
    memory.py      peak_activations, weight_versions: what the order alone says of a rank's memory
    stage.py       Stage, gpt_stages: a model cut into stages of equal work
    run.py         run_schedule: a schedule done on real ranks; plan.py, messages.py, halves.py and shared.py
                   say in which order it sends, how, how a backward is split, and what stages share
    stash.py       run_pipedream: an update after every backward, with a stash of weights or without
    generators/    naive, gpipe, one_f_one_b, ... to dualpipe_v: functions that write schedules
    gantt.py       gantt: a simulated schedule as a chart
    explorer.py    explorer: the same with sliders, in a notebook

Everything here works on any schedule, also one that somebody invents. What an exercise asks for is imported
from its module, `from course_lib.pipeline.generators import gpipe`, `from course_lib.pipeline.run import
run_schedule`, so that the rest is there where these are hidden; so are the figures, which need matplotlib
and the course's colours. All else can be copied out as it is.
"""

from .actions import KINDS, Action, Pair, Schedule, stage_ranks
from .memory import peak_activations, weight_versions
from .simulate import Durations, Simulation, simulate
from .stage import Stage, gpt_stages
from .text import from_text, to_text
from .validate import ScheduleError, validate, violation

__all__ = [
    "KINDS",
    "Action",
    "Durations",
    "Pair",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Stage",
    "from_text",
    "gpt_stages",
    "peak_activations",
    "simulate",
    "stage_ranks",
    "to_text",
    "validate",
    "violation",
    "weight_versions",
]
