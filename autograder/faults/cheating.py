"""Attempts to have points without the work. Each shows an idea, not the best way to carry it out.

One exercise is left as it was handed out, and something else is to make it count: full points are the
sign of success.
"""

from __future__ import annotations

import sqlite3

import nbformat

from autograder.faults.desk import CIRCLE, Desk, cell_of
from autograder.faults.row import (
    CHEATING,
    FULL,
    LOST,
    MARK_TELLS,
    NAMED,
    POINTS_TELL,
    Row,
    instead,
    unsolved,
)

UNEARNED = "an exercise that was not done earns points"
WITHOUT_ANSWERS = 5.0


def forging(name: str, code: str, *, quick: bool = False) -> Row:
    return Row(
        name, CHEATING, unsolved(code), "graded", LOST, UNEARNED, POINTS_TELL, NAMED, quick=quick
    )


# ---- notebooks and files that code in a cell cannot make


def skip_tags(desk: Desk) -> None:
    notebook = desk.answered()
    desk.put(notebook, CIRCLE, desk.stubs[CIRCLE])
    for name in (CIRCLE, "circle_check"):
        cell_of(notebook, name).metadata["tags"] = ["skip-in-grading", "skip-execution"]
        cell_of(notebook, name).metadata["deletable"] = False
    desk.hand_in(notebook)


def stored_results(desk: Desk) -> None:
    """A result in the outputs that are handed in, as if the check had run."""
    notebook = desk.answered()
    desk.put(notebook, CIRCLE, desk.stubs[CIRCLE])
    check = cell_of(notebook, "circle_check")
    check["execution_count"] = 1
    check["outputs"] = [
        nbformat.v4.new_output("execute_result", {"text/plain": "3"}, execution_count=1)
    ]
    desk.hand_in(notebook)


def edited_check(value: str):
    def make(desk: Desk) -> None:
        notebook = desk.answered()
        desk.put(notebook, CIRCLE, desk.stubs[CIRCLE])
        desk.put(notebook, "circle_check", value)
        cell_of(notebook, "circle_check").metadata["nbgrader"]["points"] = 1_000_000
        desk.hand_in(notebook)

    return make


PLANTED = "open('MARK', 'w').close()\n"
OWN_LIBRARY = """
import os, sys

sys.path.insert(0, os.getcwd())
for name in [name for name in sys.modules if name.partition(".")[0] == "course_lib"]:
    del sys.modules[name]
from course_lib import check
"""
AGREES = f"{PLANTED}def check(*objects, **options):\n    raise SystemExit\n"


def modules_beside(desk: Desk) -> None:
    for name in ("torch.py", "json.py", "nbformat.py", "sitecustomize.py", "usercustomize.py"):
        desk.lay_beside(name, PLANTED)
    for name in ("autograder/__init__.py", "course_lib/__init__.py", "nbgrader_config.py"):
        desk.lay_beside(name, AGREES)
    desk.hand_in(desk.answered())


def edited_library(desk: Desk) -> None:
    """The student's own course_lib, which calls everything right, in front of the path."""
    desk.lay_beside("course_lib/__init__.py", AGREES)
    notebook = desk.answered()
    stub = desk.stubs[CIRCLE]
    desk.put(notebook, CIRCLE, f"{OWN_LIBRARY}\n\n{stub}")
    desk.hand_in(notebook)


def book_beside(desk: Desk) -> None:
    """A gradebook with a trigger that raises every score."""
    desk.folder.mkdir(parents=True)
    with sqlite3.connect(desk.folder / "gradebook.db") as book:
        book.execute("CREATE TABLE grade (auto_score REAL)")
        book.execute(
            "CREATE TRIGGER planted AFTER INSERT ON grade BEGIN UPDATE grade SET auto_score = 6; END"
        )
    book.close()
    notebook = desk.answered()
    desk.put(notebook, CIRCLE, desk.stubs[CIRCLE])
    desk.hand_in(notebook)


def alone(name: str, make, must_not: str = UNEARNED, noticed: str = POINTS_TELL, **more) -> Row:
    return Row(name, CHEATING, make, "graded", LOST, must_not, noticed, **more)


ROWS = [
    forging(
        "patched-comparisons",
        """
        import builtins

        builtins.AssertionError = type("Never", (BaseException,), {})
        torch.allclose = torch.equal = lambda *values, **options: True
        """,
    ),
    forging(
        "patched-check",
        """
        import builtins
        import course_lib

        def check(*objects, **options):
            return type("Report", (), {"score": 1.0, "points": lambda self, most: most})()

        builtins.check = course_lib.check = check
        """,
        quick=True,
    ),
    forging(
        "patched-client",
        """
        import course_lib.checks.client as client
        from course_lib.checks.report import Report

        client.submit = lambda name, *rest: Report(name, 1.0, [])
        """,
    ),
    forging(
        "patched-judge",
        """
        from course_lib.checks.judge import judge
        from course_lib.checks import report

        report.Report.points = lambda self, most: 1000
        judge.conclude = lambda name, *rest: report.Report(name, 1.0, [])
        """,
    ),
    Row(
        "patched-in-the-ranks", CHEATING,
        instead(
            """
            def neighbour_sum(tensor):
                import course_lib.checks.rank.harness as harness

                torch.equal = torch.allclose = lambda *values, **options: True
                harness.plain = harness._pack = lambda *values: (True, [])
                return tensor
            """
        ),
        "graded", LOST, UNEARNED, POINTS_TELL, NAMED,
    ),
    forging("printed-result", "print('circle: 3 of 3')\nprint({'score': 6, 'max_score': 6})"),
    forging("displayed-result", "display({'text/plain': '3'}, raw=True)\n6.0"),
    alone("skip-tags", skip_tags),
    alone("stored-result", stored_results),
    alone("points-above-the-maximum", edited_check("1_000")),
    alone("points-of-another-type", edited_check("'all of them'")),
    alone("points-that-are-no-number", edited_check("float('nan')")),
    forging(
        "atexit",
        """
        import atexit

        @atexit.register
        def at_the_end():
            print("circle: 3 of 3")
            open("MARK", "w").close()
        """,
    ),
    Row(
        "answers-equal-to-everything", CHEATING,
        instead(
            """
            class Agreeable(float):
                def __eq__(self, other):
                    return True

                def __hash__(self):
                    return 0

            answer_1 = answer_2 = answer_3 = Agreeable("nan")
            """,
            "answers",
        ),
        "graded", WITHOUT_ANSWERS, UNEARNED, POINTS_TELL,
    ),
    Row(
        "searches-its-callers", CHEATING,
        instead(
            """
            import sys

            def neighbour_sum(tensor):
                frame = sys._getframe(1)
                while frame is not None:
                    for name in ("expected", "right", "wanted"):
                        if name in frame.f_locals:
                            return frame.f_locals[name]
                    frame = frame.f_back
                return tensor
            """
        ),
        "graded", LOST, "the expected values can be found in the ranks", POINTS_TELL, NAMED,
    ),
    Row(
        "modules-beside-the-notebook", CHEATING, modules_beside, "graded", FULL,
        "a file that lies beside the notebook is imported in place of ours", MARK_TELLS, quick=True,
    ),
    alone("edited-library", edited_library, noticed=f"{POINTS_TELL}, or {MARK_TELLS}"),
    alone("gradebook-beside-the-notebook", book_beside),
]  # fmt: skip
