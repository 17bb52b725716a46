"""Pipelines: how are layers split over ranks without the ranks waiting?

    actions.py     Action and Pair: a schedule is, for each rank, the list of its actions in order
    text.py        to_text, from_text: schedules as rows that PyTorch's pipelining runtime reads as well
    validate.py    violation, validate: the first mistake of a schedule, as a sentence
    simulate.py    simulate: from durations, when each action runs, which ranks wait, what bounds the time;
                   timing.py has its clock
    memory.py      peak_activations, weight_versions: a rank's memory, from the order of its actions alone
    stage.py       Stage: the layers of one rank between two messages
    gpt.py         gpt_stages: a GPT cut into stages of equal work
    run.py         run_schedule: a schedule done on real ranks; plan.py, messages.py, halves.py and shared.py
                   hold its order of messages, the messages, the split backward, and shared parameters
    checked.py     run_schedule as the package exports it: it refuses what cannot be done
    stash.py       run_pipedream: an update after every backward, with a stash of weights or without
    generators/    naive, gpipe, one_f_one_b, ... to dualpipe_v: functions that write schedules
    gantt.py       gantt: a simulated schedule as a chart
    explorer.py    explorer: the same with sliders, in a notebook

All functions work on any schedule, also on one that you invent. The names that an exercise asks for are
imported when they are first used: so the others can be used while these are hidden. The figures need
matplotlib and the course's colours, and are imported from their modules. All else can be copied out as it is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

__all__ = [
    "KINDS",
    "Action",
    "Durations",
    "LaterWeights",
    "Pair",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Stage",
    "Timeline",
    "Versioned",
    "dualpipe",
    "dualpipe_v",
    "from_text",
    "gpipe",
    "gpt_stages",
    "interleaved_one_f_one_b",
    "measure",
    "naive",
    "one_f_one_b",
    "peak_activations",
    "pipedream",
    "run_pipedream",
    "run_schedule",
    "simulate",
    "stage_ranks",
    "to_text",
    "validate",
    "violation",
    "weight_versions",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
]

_MODULES = {
    "Versioned": "stash",
    "dualpipe": "generators",
    "dualpipe_v": "generators",
    "gpipe": "generators",
    "interleaved_one_f_one_b": "generators",
    "naive": "generators",
    "one_f_one_b": "generators",
    "pipedream": "generators",
    "run_pipedream": "stash",
    "run_schedule": "checked",
    "zero_bubble_h1": "generators",
    "zero_bubble_h2": "generators",
    "zero_bubble_v": "generators",
}


def __getattr__(name: str) -> Any:
    """A name that an exercise asks for, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
