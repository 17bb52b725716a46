"""Steps of nbgrader that refuse, since this course does their work in another way.

nbgrader makes its exporter before it touches anything. A later refusal would be too late: to grade again, or
to make feedback again, as formgrader's buttons ask it to, nbgrader first removes the files of the submission.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from nbconvert.exporters import HTMLExporter, NotebookExporter

WIDTH = 76  # columns; formgrader's window for errors shows 80, and cuts off the rest


class NotHereError(Exception):
    """This is not how submissions of this course are graded.

    The text begins on a line of its own, since formgrader shows it behind the error's name, and does not
    wrap it.
    """

    def __init__(self, text: str) -> None:
        # A command is to be copied, so it stays on one line.
        whole = re.sub("`[^`]+`", lambda command: command[0].replace(" ", "\0"), text)
        lines = textwrap.fill(whole, WIDTH, break_on_hyphens=False).replace("\0", " ")
        super().__init__(f"\n{lines}")


class RefuseToAutograde(NotebookExporter):
    """An exporter that cannot be made: nbgrader's own `autograde` would run submissions without a sandbox."""

    def __init__(self, **options: Any) -> None:
        raise NotHereError(
            "Submissions of this course are graded by `make grade SUBMISSIONS=folder`, in a sandbox and "
            "with a judge outside of it, but nbgrader's own autograde has neither. Nothing was changed."
        )


class RefuseFeedback(HTMLExporter):
    """An exporter that cannot be made: nbgrader's own pages would replace those of this course."""

    def __init__(self, **options: Any) -> None:
        raise NotHereError(
            "The feedback pages of this course are made by grading, and `python -m autograder report` adds "
            "scores and comments to them. nbgrader's own pages would replace these, and name no mistake. "
            "Nothing was changed."
        )
