"""nbgrader's gradebook: its file, the assignments in it, and the student versions that belong to it."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.dbutil import ALEMBIC_DIR

from autograder.book.by_hand import typed
from autograder.course.config import COURSE_ID
from autograder.course.release import generate
from autograder.course.twin import grade_id, read_twin

PATIENCE = 30


class ClassBook:
    """The gradebook `out/gradebook.db`, with the student versions that belong to it beside it."""

    def __init__(self, out: Path, solutions: Path) -> None:
        self.out, self.solutions = out, solutions
        self.file = out / "gradebook.db"
        self.released = out / "release"
        out.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """nbgrader's Gradebook, whose rows are typed as columns and not as values."""
        self.begin()
        # another program (formgrader) may be writing: seconds until it has finished
        with Gradebook(f"sqlite:///{self.file}?timeout={PATIENCE}", COURSE_ID) as book:
            yield book

    def begin(self) -> None:
        """Make the file with the version of nbgrader's tables in it, unless there is one.

        The Gradebook adds its tables. In a file without any it would start the program `alembic` for the
        version alone, which takes over a second.
        """
        if self.file.exists():
            return
        version = ScriptDirectory(ALEMBIC_DIR).get_current_head()
        with closing(sqlite3.connect(self.file, PATIENCE)) as book, book:
            book.execute("BEGIN IMMEDIATE")
            book.execute(
                "CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL)"
            )
            book.execute(
                "INSERT INTO alembic_version SELECT ? WHERE NOT EXISTS (SELECT * FROM alembic_version)",
                (version,),
            )

    def register(self, assignments: Iterable[str]) -> str:
        """Enter the assignments as they are now. Returns a sentence if the book was begun anew.

        nbgrader cannot change the exercises of an assignment that has submissions, so the old
        book is then kept under another name.
        """
        note = ""
        names = list(assignments)
        if self.file.exists() and any(self._exercises_changed(name) for name in names):
            kept = self.file.with_name(f"gradebook-until-{time.strftime('%Y%m%d-%H%M%S')}.db")
            self.file.rename(kept)
            note = f"The exercises have changed: a new gradebook is begun, the old one is {kept}."
        self.begin()
        for name in names:
            generate(name, self.released, solutions=self.solutions, gradebook=True)
        return note

    def _exercises_changed(self, assignment: str) -> bool:
        twin = read_twin(self.solutions / assignment / f"{assignment}.py")
        now = {name for cell in twin.cells if (name := grade_id(cell)) is not None}
        with self.open() as book:
            try:
                notebook = book.find_notebook(assignment, assignment)
            except MissingEntry:
                return False
            then = {cell.name for cell in notebook.source_cells}
            return bool(notebook.submissions) and then != now

    def forget(self, students: Iterable[str]) -> str:
        """Remove these students and all their grades, if the book has them.

        Returns a sentence if a person had graded some of them: then the book as it was is kept.
        """
        note = ""
        with self.open() as book:
            gone = {student.id for student in book.students} & set(students)
            names = [assignment.name for assignment in book.assignments]
        if typed(self.out, names, gone):
            note = self._keep(sorted(gone))
        with self.open() as book:
            for student in gone:
                book.remove_student(student)
        return note

    def forget_work(self, student: str, assignments: Iterable[str]) -> str:
        """Remove a student's grades in these assignments; name and address stay. Returns as `forget`."""
        names = list(assignments)
        note = self._keep([student]) if typed(self.out, names, [student], names_too=False) else ""
        with self.open() as book:
            for name in names:
                with suppress(MissingEntry):  # the book may have been begun anew since
                    book.remove_submission(name, student)
        return note

    def _keep(self, students: list[str]) -> str:
        """Copy the book as it is, and return a sentence on what the copy holds."""
        kept = self.file.with_name(f"gradebook-until-{time.strftime('%Y%m%d-%H%M%S')}.db")
        shutil.copyfile(self.file, kept)
        return f"A copy of the gradebook holds your entries for {', '.join(students)}: {kept}."
