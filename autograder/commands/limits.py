"""The options of `grade` that set the limits of a submission."""

from __future__ import annotations

import argparse

from autograder.commands.choice import above_zero, at_least_one
from autograder.outcome.limits import GB, KB, MB, Limits

LIMITS = {  # option, unit, size of the unit, and the words of --help
    "cell": ("--cell-timeout", "SECONDS", 1.0, "time of one cell"),
    "check": ("--check-timeout", "SECONDS", 1.0, "time of one exercise's check"),
    "submission": ("--submission-timeout", "SECONDS", 1.0, "time of the whole submission"),
    "memory": ("--memory", "GB", GB, "memory of all its processes together"),
    "processes": ("--processes", "N", 1, "processes and threads at a time"),
    "descriptors": ("--descriptors", "N", 1, "files that a process has open at a time"),
    "output": ("--output", "KB", KB, "text that is kept of what a cell prints"),
    "disk": ("--disk", "MB", MB, "its temporary folder"),
    "notebook": ("--notebook-size", "MB", MB, "the notebook that was handed in"),
    "payload": ("--payload-size", "MB", MB, "the objects that an exercise hands to its check"),
}


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add an option for each limit."""
    group = parser.add_argument_group("limits of a submission")
    defaults = Limits().to_json()
    for name, (option, unit, size, what) in LIMITS.items():
        default = f"{defaults[name] / size:g}"
        group.add_argument(
            option,
            type=at_least_one if unit == "N" else above_zero,
            metavar=unit,
            dest=f"limit_{name}",
            help=f"{what} (default: {default})",
        )


def limits_of(options: argparse.Namespace) -> Limits:
    """The limits that the options ask for."""
    defaults = Limits().to_json()
    asked = {
        name: type(defaults[name])(value * size)
        for name, (_, _, size, _) in LIMITS.items()
        if (value := getattr(options, f"limit_{name}")) is not None
    }
    return Limits(**{**defaults, **asked})
