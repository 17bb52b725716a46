"""The pages and files of a graded class, from its output folder.

    class.html                                             the page for the instructor
    exercises.csv                                          points of each exercise, a row for each student
    gradescope/<student>/<assignment>/results.json         for Gradescope
    feedback/<student>/<assignment>/<assignment>.html      again, where a person added something

A worker has written each feedback page when its submission was graded (`page_of`); later additions in
formgrader come in here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import nbformat
from nbformat import NotebookNode

from autograder.book.standing import Standing, added, final_score, notebook_ids, standings
from autograder.book.table import read_csv, row_of, write_csv, write_points
from autograder.course.config import NOTEBOOKS, SERVER
from autograder.outcome import wording
from autograder.outcome.result import Result, write_whole
from autograder.report.class_page import write_class_page
from autograder.report.feedback import feedback_page
from autograder.report.gradescope import write_results
from autograder.sample.sample_class import STUDENTS

LEFT_OUT = Path("results/left-out")
ADDED = "<body data-added>"  # the beginning of a page that shows a person's additions


@dataclass
class Class:
    """A graded class: its results, and people's additions to them, by (student, assignment)."""

    out: Path
    results: list[Result]
    standings: dict[tuple[str, str], Standing] = field(default_factory=dict)
    notebook_ids: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def assignments(self) -> list[str]:
        return sorted({result.assignment for result in self.results})

    @property
    def is_sample(self) -> bool:
        return {result.student for result in self.results} <= set(STUDENTS)

    def of(self, assignment: str) -> list[Result]:
        return [result for result in self.results if result.assignment == assignment]

    def standing(self, result: Result) -> Standing:
        return self.standings.get((result.student, result.assignment), Standing())

    def scores(self, assignment: str) -> dict[str, float | None]:
        """The points that count, by student; None without a grade."""
        return {
            result.student: final_score(result, self.standing(result))
            for result in self.of(assignment)
        }

    def maximum(self, assignment: str) -> float:
        """The assignment's points; the result of a notebook that could not be read does not know them."""
        return max((wording.maximum(result) for result in self.of(assignment)), default=0.0)

    def notebook(self, result: Result) -> NotebookNode | None:
        """The notebook as it was run; None if there is none."""
        name = f"{result.assignment}.ipynb"
        path = self.out / "autograded" / result.student / result.assignment / name
        return nbformat.read(path, as_version=4) if path.is_file() else None


def read_class(out: Path, results: Iterable[Result]) -> Class:
    """The class whose results these are, with the additions from its gradebook in `out`."""
    graded = Class(out, list(results))
    for name in graded.assignments:
        for student, of_student in standings(out / "gradebook.db", name).items():
            graded.standings[student, name] = of_student
        for student, key in notebook_ids(out / "gradebook.db", name).items():
            graded.notebook_ids[student, name] = key
    return graded


def note_left_out(out: Path, notes: Iterable[str]) -> None:
    """Keep a run's sentences on files that it left out: their students may have no other row."""
    write_whole(out / LEFT_OUT, "".join(f"{' '.join(note.split())}\n" for note in notes))


def left_out(out: Path) -> list[str]:
    """The sentences of the last run."""
    path = out / LEFT_OUT
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def renew_table(graded: Class) -> None:
    """Write the scores that people entered since the last run into `grades.csv`; other rows stay."""
    path = graded.out / "grades.csv"
    results = {(result.student, result.assignment): result for result in graded.results}
    rows = []
    for row in read_csv(path):
        result = results.get((row.student, row.assignment))
        if result is not None and row.status == result.status:
            row = row_of(result, graded.standing(result), row.max_score)
        rows.append(row)
    if rows:
        write_csv(rows, path)


def page_of(result: Result, notebook: NotebookNode | None, released: NotebookNode) -> str:
    """A submission's feedback page as it is right after grading."""
    points = (cell.metadata.get("nbgrader", {}).get("points", 0.0) for cell in released.cells)
    maximum = float(sum(points))
    return feedback_page(result, notebook, released=released, maximum=maximum)


def write_reports(graded: Class, *, notebooks: Path = NOTEBOOKS, server: str = SERVER) -> int:
    """Write everything that this module's first lines name; returns how many feedback pages changed.

    server: the address of the Jupyter server whose formgrader the class page links to.
    """

    def formgrader(student: str, assignment: str) -> str:
        key = graded.notebook_ids.get((student, assignment))
        # Of a file that could not be read formgrader has a row, and nothing to show.
        read = (graded.out / "autograded" / student / assignment).is_dir()
        return f"{server.rstrip('/')}/formgrader/submissions/{quote(key)}/" if key and read else ""

    write_class_page(
        graded.results,
        graded.out / "class.html",
        formgrader=formgrader,
        standing=graded.standing,
        server=server,
        left_out=left_out(graded.out),
        heading="The sample class" if graded.is_sample else "The class",
    )
    write_points(graded.results, graded.standing, graded.out / "exercises.csv")
    for result in graded.results:
        folder = graded.out / "gradescope" / result.student / result.assignment
        write_results(result, folder / "results.json", graded.standing(result))
    return _write_feedback(graded, notebooks)


def _write_feedback(graded: Class, notebooks: Path) -> int:
    """Write the pages of submissions to which a person added something, or that lost points for lateness.

    Also the pages of submissions for which this was taken back since, and pages that are missing.
    """
    released: dict[str, NotebookNode | None] = defaultdict(lambda: None)
    for name in graded.assignments:
        path = notebooks / name / f"{name}.ipynb"
        if path.is_file():
            released[name] = nbformat.read(path, as_version=4)
    count = 0
    for result in graded.results:
        standing, name = graded.standing(result), result.assignment
        page = graded.out / "feedback" / result.student / name / f"{name}.html"
        says = added(result, standing) or standing.penalty
        if not says and page.is_file() and ADDED not in page.read_text("utf-8"):
            continue
        text = feedback_page(
            result,
            graded.notebook(result),
            released=released[name],
            standing=standing,
            maximum=graded.maximum(name) or None,
        )
        count += not page.is_file() or page.read_text("utf-8") != text
        write_whole(page, text)
    return count
