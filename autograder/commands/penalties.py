"""Penalties for late work, computed again before a command reads the gradebook's scores.

A penalty depends on the points, so a score that a person entered since the last run changes it, and so do
a due date, an extension and a setting in `class_config.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nbgrader.api import MissingEntry
from sqlalchemy.exc import SQLAlchemyError

from autograder.book.entries import Entries
from autograder.book.gradebook import ClassBook
from autograder.course.config import SOLUTIONS, SettingsError, course_config
from autograder.run.lock import BusyError, only_one


def settle_penalties(out: Path, assignments: Iterable[str]) -> list[str]:
    """Write the penalties of these assignments as they are due now. Returns a sentence if that failed.

    While another run is grading into `out` nothing is written, since that run writes them itself.
    """
    if not (out / "gradebook.db").is_file():
        return []
    try:
        with only_one(out), ClassBook(out, SOLUTIONS).open() as book:
            entries = Entries(book, course_config(SOLUTIONS, out))
            for name in assignments:
                with suppress(MissingEntry):  # the book may have been begun anew since
                    entries.settle(name)
    except BusyError:
        return []
    except SettingsError as error:
        return [_stay(str(error))]
    except (OSError, SQLAlchemyError) as error:
        return [_stay(f"the gradebook cannot be written ({type(error).__name__})")]
    return []


def _stay(why: str) -> str:
    return f"Penalties for late work stay as the last run left them, because {why}."
