"""The options of `grade` that set the limits of a submission."""

from __future__ import annotations

import argparse

from autograder.commands.choice import above_zero, at_least_one
from autograder.outcome.limits import GB, KB, MB, Limits

LIMITS = {
    "cell": ("--cell-timeout", "SECONDS", 1.0),
    "check": ("--check-timeout", "SECONDS", 1.0),
    "submission": ("--submission-timeout", "SECONDS", 1.0),
    "memory": ("--memory", "GB", GB),
    "processes": ("--processes", "N", 1),
    "descriptors": ("--descriptors", "N", 1),
    "output": ("--output", "KB", KB),
    "disk": ("--disk", "MB", MB),
    "notebook": ("--notebook-size", "MB", MB),
    "payload": ("--payload-size", "MB", MB),
}


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add an option for each limit."""
    group = parser.add_argument_group("limits of a submission")
    defaults = Limits().to_json()
    for name, (option, unit, size) in LIMITS.items():
        default = f"{defaults[name] / size:g}"
        group.add_argument(
            option,
            type=at_least_one if unit == "N" else above_zero,
            metavar=unit,
            dest=f"limit_{name}",
            help=f"(default: {default})",
        )


def limits_of(options: argparse.Namespace) -> Limits:
    """The limits that the options ask for."""
    defaults = Limits().to_json()
    asked = {
        name: type(defaults[name])(value * size)
        for name, (_, _, size) in LIMITS.items()
        if (value := getattr(options, f"limit_{name}")) is not None
    }
    return Limits(**{**defaults, **asked})
