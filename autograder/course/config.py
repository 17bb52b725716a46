"""The course's folders, and nbgrader's configuration, with the steps that make a student version.

`solutions/` is nbgrader's source directory and `notebooks/` its release directory. Everything that
grading writes lies under one output folder, by default `autograder/out`; the sample class has a folder of its
own, `autograder/out-sample`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nbgrader import preprocessors as nbgrader
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from autograder.course.refusing import RefuseFeedback, RefuseToAutograde
from autograder.course.student_version import ClearSolutions, ClearWidgets

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions"
NOTEBOOKS = ROOT / "notebooks"
OUT = ROOT / "autograder" / "out"
SAMPLE_OUT = (
    ROOT / "autograder" / "out-sample"
)  # of the sample class, which never mixes with a real one
WRITTEN = (OUT.name, SAMPLE_OUT.name)  # folders of this package that hold no code

SERVER = "http://localhost:8888"  # where `make lab` opens JupyterLab, and formgrader with it

COURSE_ID = "distributed-training"
MADE = (
    "your_page.html",
    "your_page.png",
)  # files that notebook 13 writes beside itself when it runs
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}

# nbgrader's own list, without the header, footer and autotest steps, which this course does not use;
# widgets' state, which is output as well, is removed, and answers are left without a `raise`.
RELEASE_PREPROCESSORS = [
    nbgrader.LockCells,
    ClearSolutions,
    nbgrader.ClearOutput,
    ClearWidgets,
    nbgrader.CheckCellMetadata,
    nbgrader.ComputeChecksums,
    nbgrader.SaveCells,
    nbgrader.ClearHiddenTests,
    nbgrader.ComputeChecksums,
    nbgrader.CheckCellMetadata,
]


class SettingsError(Exception):
    """An instructor's setting cannot be used; the text says why."""

    def __init__(self, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        super().__init__(
            f"a setting in class_config.py or nbgrader_config.py cannot be used: {why}"
        )


def assignments(solutions: Path = SOLUTIONS) -> list[str]:
    """The assignments, in order: every folder of `solutions` that holds a twin of its own name."""
    return sorted(twin.stem for twin in solutions.glob("*/*.py") if twin.stem == twin.parent.name)


def base_config(solutions: Path = SOLUTIONS, out: Path = OUT) -> Config:
    """nbgrader's configuration: sources in `solutions`, all that grading writes under `out`."""
    config = Config()
    course = config.CourseDirectory
    course.root = str(ROOT)
    course.course_id = COURSE_ID
    course.source_directory = str(solutions)
    course.release_directory = str(NOTEBOOKS)
    course.submitted_directory = str(out / "submitted")
    course.autograded_directory = str(out / "autograded")
    course.feedback_directory = str(out / "feedback")
    course.db_url = f"sqlite:///{out / 'gradebook.db'}"
    # nbgrader copies the files beside the source, and the twin holds the solutions.
    course.ignore = [*CourseDirectory().ignore, "*.py", *MADE]
    config.GenerateAssignment.preprocessors = RELEASE_PREPROCESSORS
    # nbgrader's own `autograde`, also as a button in formgrader, runs submissions without a sandbox.
    config.Autograde.exporter_class = RefuseToAutograde
    # Its feedback, another button, has the names and places of this course's pages.
    config.GenerateFeedback.exporter_class = RefuseFeedback
    # Kernels hold no state worth saving, and a polite shutdown costs half a second each.
    config.ExecutePreprocessor.shutdown_kernel = "immediate"
    return config


def course_config(solutions: Path = SOLUTIONS, out: Path = OUT) -> Config:
    """`base_config` with the instructor's settings, such as late penalties.

    `nbgrader_config.py` is executed, with the instructor's own `class_config.py`. SettingsError if one fails.
    """
    try:
        config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    except Exception as error:
        raise SettingsError(error) from error
    config.merge(base_config(solutions, out))
    return config


def log_to_file(path: Path) -> None:
    """Send warnings and the logs of nbgrader and its libraries to `path`, not to the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.captureWarnings(True)
    for log in (logging.getLogger("traitlets"), logging.getLogger("py.warnings")):
        for old in list(log.handlers):
            log.removeHandler(old)
            old.close()
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
