"""`python -m autograder COMMAND`: build, grade and report on a class; `--help` lists the commands."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import shlex
import sys

from autograder import commands

OTHER_PYTHON = (
    "{} lacks the package {}. The course's packages are in .venv: in the course's folder, type "
    "`source .venv/bin/activate` (after `make setup`, if there is no .venv) and this command again."
)
DISK_FULL = (
    "The command ended early, because a disk has no space left. The grades are safe: make space, and run the "
    "same command again."
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code. 130: it was stopped by Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        parser = _parser(words[0] if words else "")
        options, left = parser.parse_known_args(words)
        if left:
            hint = _meant(options, left) if words[0] == "grade" else ""
            parser.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return options.run(options)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("autograder", "course_lib"):
            raise
        print(OTHER_PYTHON.format(sys.executable, error.name), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = " (with --again: type it again)" if "--again" in words else ""
        print(f"\nStopped. Finished grades are kept; the next run carries on{again}.")
        return 130
    except Exception as error:
        from autograder.commands.full_disk import of_full_disk

        if not of_full_disk(error):
            raise
        print(DISK_FULL, file=sys.stderr)
        return 2


def _meant(options: argparse.Namespace, left: list[str]) -> str:
    """A question that names the option of `grade` that the words may be for; "" if there is no guess."""
    if left[0].partition("=")[0] in ("--into", "--to"):  # as other commands name their folder
        return "; did you mean --out?"
    if left[0].startswith("-"):
        return ""
    folder = left[0]
    if options.submissions is not None:  # a name with spaces, whose quotes were forgotten
        folder = " ".join([str(options.submissions), *left])
    return f"; did you mean --submissions {shlex.quote(folder)}?"


def _parser(wanted: str) -> argparse.ArgumentParser:
    """Every module in `autograder.commands` that adds a parser is a command.

    If `wanted` names a command, only its module is imported, since some modules import PyTorch.
    """
    parser = argparse.ArgumentParser(
        prog="python -m autograder",
        description="Build notebooks, grade a class and report on it.",
        epilog="`python -m autograder COMMAND --help` explains a command.",
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    names = sorted(command.name for command in pkgutil.iter_modules(commands.__path__))
    for name in [wanted] if wanted in names else names:
        module = importlib.import_module(f"{commands.__name__}.{name}")
        if hasattr(module, "add_parser"):
            module.add_parser(subparsers)
            subparsers.choices[name].set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    try:
        from course_lib.program import run_program
    except ModuleNotFoundError as error:
        print(OTHER_PYTHON.format(sys.executable, error.name), file=sys.stderr)
        sys.exit(2)
    run_program(main)
