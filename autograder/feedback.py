"""Feedback pages: nbgrader's, and a short one of our own where there is no notebook to show."""

from __future__ import annotations

import html
from pathlib import Path

from nbgrader.converters import GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{assignment}: {status}</title></head>
<body style="font-family: sans-serif; max-width: 40em; margin: 2em auto">
<h1>{assignment}</h1>
<p>Score: {score}</p>
<p><strong>{status}</strong>: {reason}</p>
</body>
</html>
"""


def write_feedback(student: str, assignment: str, config: Config) -> None:
    """nbgrader's feedback page of a graded submission. Raises nbgrader's NbGraderException."""
    course = CourseDirectory(config=config)
    course.student_id, course.assignment_id = student, assignment
    converter = GenerateFeedback(coursedir=course, config=config)
    converter.force = True
    converter.start()


def write_note(page: Path, *, assignment: str, score: str, status: str, reason: str) -> None:
    """A page that says only what became of the submission."""
    page.parent.mkdir(parents=True, exist_ok=True)
    texts = {"assignment": assignment, "score": score, "status": status, "reason": reason}
    page.write_text(
        PAGE.format(**{key: html.escape(text) for key, text in texts.items()}), encoding="utf-8"
    )
