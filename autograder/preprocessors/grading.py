"""What is added to nbgrader's steps that grade a submission: restore, execute, score.

nbgrader's own steps lose every score of a submission whose kernel dies or whose cells were
renamed, wait out each hung cell, and take the points for a warning on stderr. These do not.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from jupyter_core.utils import ensure_async
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbgrader.preprocessors import Execute, NbGraderPreprocessor, SaveAutoGrades
from traitlets import Integer, Unicode

from autograder.kernels import QuietKernel
from autograder.restore import restore
from autograder.scores import DIED, NOT_RUN, TIME_LIMIT, score_cell
from autograder.twin import SKIP_TAG

INTERRUPT_GRACE = 5.0  # seconds in which an interrupted cell has to end
OUTPUT_GRACE = 20  # seconds in which the output of a finished cell has to arrive

Resources = dict[str, Any]


class RestoreCells(NbGraderPreprocessor):
    """Puts back the exercises' cells, whatever the submission did to them."""

    release_directory = Unicode("", help="Where the student versions lie.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Resources) -> tuple[NotebookNode, Resources]:
        assignment = resources["nbgrader"]["assignment"]
        released = Path(self.release_directory) / assignment / f"{assignment}.ipynb"
        for change in restore(nb, nbformat.read(released, as_version=4)):
            self.log.info("%s: %s", resources["nbgrader"]["student"], change)
        return nb, resources


class HungKernelError(DeadKernelError):
    """The kernel did not react to an interrupt and was ended."""


class ExecuteSubmission(QuietKernel, Execute):
    """Runs a submission's cells; what goes wrong in one of them is written into its outputs.

    A cell that exceeds its time is interrupted, and the next ones run. After a kernel that died,
    or the submission's own time limit, no more cells run, and those that did keep their points.
    """

    submission_timeout = Integer(600, help="Seconds for all cells together.").tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: Resources, km: Any = None
    ) -> tuple[NotebookNode, Resources]:
        self.deadline = time.monotonic() + self.submission_timeout
        self.over_time = False  # the running cell was interrupted
        self.stopped = ""  # why no more cells run
        self.timeout_func = self._seconds_for
        self.iopub_timeout = OUTPUT_GRACE
        return super().preprocess(nb, resources, km)

    def preprocess_cell(
        self, cell: NotebookNode, resources: Resources, index: int
    ) -> tuple[NotebookNode, Resources]:
        if cell.cell_type != "code" or _skipped(cell):
            return cell, resources
        if not self.stopped and time.monotonic() >= self.deadline:
            self._stop(cell, TIME_LIMIT, self._submission_sentence())
        if self.stopped:
            _note(cell, NOT_RUN, f"the cell was not run: {self.stopped}")
            return cell, resources
        self.over_time = False
        try:
            cell, resources = super().preprocess_cell(cell, resources, index)
            if self.over_time:
                _note(cell, TIME_LIMIT, self._time_sentence())
        except HungKernelError:
            self._stop(cell, TIME_LIMIT, f"{self._time_sentence()} and could not be interrupted")
        except DeadKernelError:
            self._stop(cell, DIED, f"the kernel died in {_name(cell, index)}")
        except CellTimeoutError:
            _note(cell, TIME_LIMIT, "the cell's output did not arrive in time")
        return cell, resources

    def _stop(self, cell: NotebookNode, kind: str, sentence: str) -> None:
        _note(cell, kind, sentence)
        self.stopped = sentence

    def _seconds_for(self, cell: NotebookNode) -> int:
        left = math.ceil(self.deadline - time.monotonic())
        return max(1, min(self.timeout or left, left))

    def _submission_sentence(self) -> str:
        return f"the submission's time limit of {self.submission_timeout} s was reached"

    def _time_sentence(self) -> str:
        if time.monotonic() >= self.deadline:
            return self._submission_sentence()
        return f"the cell ran longer than its time limit of {self.timeout} s"

    async def _async_handle_timeout(self, timeout: float, cell: Any = None) -> Any:
        """Interrupt the cell and return the kernel's answer to that, or end the kernel."""
        self.over_time = True
        await ensure_async(self.km.interrupt_kernel())
        try:
            return await ensure_async(self.kc.shell_channel.get_msg(timeout=INTERRUPT_GRACE))
        except Empty:
            await ensure_async(self.km.shutdown_kernel(now=True))
            raise HungKernelError("the kernel did not react to an interrupt") from None


class SaveScores(SaveAutoGrades):
    """Enters each graded cell's score into the gradebook, by our rule instead of nbgrader's."""

    def _add_score(self, cell: NotebookNode, resources: Any) -> None:
        if cell.cell_type != "code" or cell.metadata["nbgrader"]["solution"]:
            return super()._add_score(cell, resources)  # a written answer: graded by hand
        name = cell.metadata["nbgrader"]["grade_id"]
        grade: Any = self.gradebook.find_grade(
            name, self.notebook_id, self.assignment_id, self.student_id
        )
        grade.auto_score = score_cell(cell).points
        grade.needs_manual_grade = grade.manual_score is not None
        self.gradebook.db.commit()
        return None


def _skipped(cell: NotebookNode) -> bool:
    """Whether the cell does not matter for grading; the exercises' cells always do."""
    tagged = SKIP_TAG in cell.metadata.get("tags", [])
    return tagged and "nbgrader" not in cell.metadata


def _name(cell: NotebookNode, index: int) -> str:
    grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
    return f"cell {grade_id!r}" if grade_id else f"cell {index + 1} of the notebook"


def _note(cell: NotebookNode, kind: str, sentence: str) -> None:
    """Append an error to the cell's outputs that the score, the status and the feedback read."""
    cell.outputs.append(
        nbformat.v4.new_output(
            "error", ename=kind, evalue=sentence, traceback=[f"{kind}: {sentence}"]
        )
    )
