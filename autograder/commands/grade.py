"""`grade`: grade the sample class, or a real one; print one table."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.commands.choice import (
    ChoiceError,
    add_command,
    at_least_one,
    check_writable,
    listed,
    scheduler_address,
    server_address,
)
from autograder.commands.full_disk import of_full_disk
from autograder.commands.limits import add_limits, limits_of
from autograder.outcome import statuses
from course_lib.checks.words import counted

if TYPE_CHECKING:
    from autograder.outcome.result import Result
    from autograder.run.session import Course, Summary, Workers
    from autograder.submission.intake import Submission

LAYOUT = (
    "A class is laid out as FOLDER/<student>/<assignment>/<assignment>.ipynb, or FOLDER/<student>.zip, or it "
    "is the zip of Moodle or Canvas in FOLDER."
)
# A worker that is busy for longer than its submission may take, and then some, is ended.
PATIENCE, SLACK = 2.0, 120.0


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the command and its options."""
    does = "grade the sample class, or --submissions FOLDER"
    parser = add_command(subparsers, "grade", does, "grade --submissions ~/class --assignment 02")
    parser.set_defaults(run=run)
    parser.add_argument(
        "--submissions", type=Path, metavar="FOLDER", help=f"the class's folder. {LAYOUT}"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="where results go (default: autograder/out, and for the sample class autograder/out-sample)",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also grade what has not changed")
    parser.add_argument(
        "--student",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="grade only these students",
    )
    parser.add_argument(
        "--assignment",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="grade only these, such as 02",
    )
    parser.add_argument(
        "--jobs",
        type=at_least_one,
        metavar="N",
        help="submissions side by side (default: as many as fit)",
    )
    parser.add_argument(
        "--formgrader", type=server_address, metavar="URL",
        help="the Jupyter server whose formgrader the class page links to (default: the one that runs now in "
        "this folder, or http://localhost:8888)",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler",
        type=scheduler_address,
        metavar="TCP://HOST:PORT",
        help="grade on a Dask cluster",
    )
    parser.add_argument(
        *("--sandbox", "-s"),
        choices=("auto", "require", "off"),
        default="auto",
        help="auto: all the machine allows; require: refuse without isolated files and network; off: none",
    )
    parser.add_argument(
        "--secret",
        type=Path,
        metavar="FILE",
        help="a file with the course's secret (default: COURSE_SECRET, or the file `secret` in --out)",
    )
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 0: every submission got a grade; 1: some did not; 2: nothing could be graded."""
    from autograder.course.config import (
        NOTEBOOKS,
        OUT,
        SAMPLE_OUT,
        SettingsError,
        assignments,
        log_to_file,
    )
    from autograder.course.kernels import prefer_this_environment
    from autograder.run.cluster import SchedulerError
    from autograder.run.lock import BusyError
    from autograder.run.session import NotReadyError
    from autograder.sample.apart import real_students
    from autograder.sandbox.capacity import GpuGradingError, refuse_gpus
    from autograder.submission.secret import SecretError

    try:
        refuse_gpus()
    except GpuGradingError as error:
        print(f"Nothing was graded: {error}", file=sys.stderr)
        return 2
    if (
        options.submissions is not None
    ):  # in `make grade SUBMISSIONS=~/class` not every shell reads the ~
        options.submissions = options.submissions.expanduser()
    if options.submissions is not None and not options.submissions.is_dir():
        print(f"{options.submissions} is not a folder. {LAYOUT}", file=sys.stderr)
        return 2
    options.out = (options.out or (OUT if options.submissions else SAMPLE_OUT)).resolve()
    if options.submissions is None and (real := real_students(options.out)):
        print(
            f"Nothing was graded: {options.out} holds the grades of {listed(real)}, and the sample class "
            "stays apart from a real one. Name your class with --submissions, or another folder with --out.",
            file=sys.stderr,
        )
        return 2
    try:
        check_writable(options.out / "grades.csv")
    except ChoiceError as error:
        print(f"Nothing was graded: {error}", file=sys.stderr)
        return 2
    prefer_this_environment()
    log_to_file(options.out / "nbgrader.log")
    known = assignments()
    if unbuilt := [name for name in known if not (NOTEBOOKS / name / f"{name}.ipynb").is_file()]:
        print(f"There is no student version of {', '.join(unbuilt)}: run `make notebooks` first.")
        return 2
    submissions = _submissions(options, known)
    if not submissions:
        return 2
    try:
        return _grade(submissions, options)
    except (BusyError, NotReadyError, SchedulerError, SecretError, SettingsError) as error:
        print(f"Nothing was graded: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if not of_full_disk(error):
            raise
        print(DISK_FULL.format(options.out), file=sys.stderr)
        return 2


DISK_FULL = (
    "The grading ended early, because there is no space left for {}. The grades so far are safe: make space, "
    "and run the same command again."
)


def _submissions(options: argparse.Namespace, known: list[str]) -> list[Submission]:
    """The submissions to grade; none, and a sentence on stderr, if the folder does not hold a class."""
    from autograder.sample.sample_class import make_sample_class
    from autograder.submission.downloads import find_downloaded
    from autograder.submission.intake import SameNameError, find_submissions, of_nothing
    from autograder.submission.zips import find_zipped, joined

    if options.submissions is None:
        print("No submissions were named: making the sample class from solutions and mutants.")
        folder = options.out / "sample"
        if idle := make_sample_class(folder, known):
            print(
                f"Left out: {', '.join(idle)}. No wrong answer to an exercise of {', '.join(known)} has a "
                "title that says their mistake."
            )
    else:
        folder = options.submissions
    try:
        unzipped = options.out / "unzipped"
        downloaded = find_downloaded(folder, known, unzipped)
        in_folders, notes = find_submissions(folder, known, downloaded.taken)
        zipped, remarks = find_zipped(folder, known, unzipped, taken=downloaded.taken)
    except SameNameError as error:
        print(f"Nothing was graded: {error}.", file=sys.stderr)
        return []
    submissions, doubles = joined(in_folders, [*downloaded.submissions, *zipped])
    elsewhere = {of_nothing(folder, submission.student) for submission in submissions}
    notes = [note for note in notes if note not in elsewhere]  # such as a zip beside the folder
    options.left_out = [*notes, *remarks, *downloaded.notes]
    options.notes = [*options.left_out, *doubles]
    for note in [*downloaded.said, *options.notes]:
        print(note)
    if not submissions:
        print(f"{folder} holds no submissions. {LAYOUT}", file=sys.stderr)
    return submissions


def _grade(submissions: list[Submission], options: argparse.Namespace) -> int:
    from autograder.book.table import as_text
    from autograder.run.session import grade_class
    from autograder.sample.sample_class import STUDENTS

    wanted = _wanted(submissions, options)
    if not wanted:
        return 2
    summary = grade_class(
        submissions,
        course_of(options),
        lambda: workers_of(options),
        stream=sys.stdout,
        again=options.again,
        strangers=STUDENTS,
        wanted=lambda submission: submission in wanted,
    )
    for note in [*summary.notes, *_reports(submissions, options)]:
        print(note)
    print(f"\n{as_text(summary.rows)}\n")
    if (
        options.notes
    ):  # a student who is left out has no row, and the notes have scrolled away by now
        notes = counted(len(options.notes), "note")
        print(
            "Files that were left out, or handed in more than once, are listed above the first grade "
            f"({notes})."
        )
    for line in _said(summary, wanted, options.out):
        print(line)
    return 1 if _ungraded(summary, wanted) else 0


def _wanted(submissions: list[Submission], options: argparse.Namespace) -> set[Submission]:
    """Those that --student and --assignment name; none, and a sentence on stderr, if a name is unknown."""
    students = {submission.student for submission in submissions}
    named = set(options.student or students)
    assignments = {submission.assignment for submission in submissions}
    chosen = {
        assignment
        for assignment in assignments
        if any(map(assignment.startswith, options.assignment or [""]))
    }
    unknown = sorted(named - students)
    unknown += [
        p for p in options.assignment or [] if not any(a.startswith(p) for a in assignments)
    ]
    if unknown:
        print(
            f"No student and no assignment of this class is called {', '.join(unknown)}. The students are "
            f"{listed(sorted(students))}. The assignments are {listed(sorted(assignments))}.",
            file=sys.stderr,
        )
        return set()
    wanted = {
        submission
        for submission in submissions
        if submission.student in named and submission.assignment in chosen
    }
    if not wanted:
        print("None of these students handed in one of these assignments.", file=sys.stderr)
    return wanted


def course_of(options: argparse.Namespace) -> Course:
    """The settings for all submissions, from the options."""
    from autograder.course.config import SOLUTIONS, course_config
    from autograder.run import grading
    from autograder.run.session import Course
    from autograder.submission import fingerprint
    from autograder.submission.secret import course_secret

    return Course(
        SOLUTIONS,
        options.out,
        course_secret(options.out, options.secret),
        grading.grade,
        ready=grading.layers,
        page=grading.page_without_notebook,
        limits=limits_of(options),
        sandbox=options.sandbox,
        library=fingerprint.of_library() if options.scheduler else "",
        config=course_config(SOLUTIONS, options.out),
    )


def workers_of(options: argparse.Namespace) -> Workers:
    """Workers of a cluster, or of this machine. Raises SchedulerError."""
    from autograder.run.cluster import ClusterWorkers
    from autograder.run.jobs import LocalWorkers
    from autograder.sandbox.capacity import default_jobs

    seconds = PATIENCE * limits_of(options).submission + SLACK
    if options.scheduler:
        return ClusterWorkers(options.scheduler, seconds=seconds)
    count = options.jobs or default_jobs()
    return LocalWorkers(count, seconds=seconds, log=options.out / "workers.log")


def _reports(submissions: list[Submission], options: argparse.Namespace) -> list[str]:
    """Make the pages of the class. Returns sentences on the class; a failure costs no student a grade."""
    from traitlets.log import get_logger

    from autograder.book.store import Store
    from autograder.report.server import formgrader_server
    from autograder.report.write import note_left_out, read_class, write_reports

    store = Store(options.out)
    stored = [store.find(submission.assignment, submission.student) for submission in submissions]
    results = [result for result in stored if result is not None]
    notes = other_pythons(results)
    try:
        server = options.formgrader or formgrader_server()
        note_left_out(options.out, options.left_out)
        write_reports(read_class(options.out, results), server=server)
    except Exception as error:
        get_logger().exception("the class page")
        notes.append(
            f"The class page could not be made ({type(error).__name__}: {error}); the grades are "
            "complete."
        )
    return notes


def other_pythons(results: list[Result]) -> list[str]:
    """A sentence if notebooks were saved by another Python than the one that graded them."""
    from autograder.submission.intake import OTHER_PYTHON

    said = [note for result in results for note in result.changes if note.startswith(OTHER_PYTHON)]
    versions = sorted({note.rpartition(" ")[2] for note in said})
    if not said:
        return []
    return [
        f"{len(said)} of {len(results)} notebooks were saved by another Python than the grader's "
        f"{platform.python_version()}: {', '.join(versions)}. "
        "Syntax that only one of the two knows may cost points there."
    ]


def _ungraded(summary: Summary, wanted: set[Submission]) -> int:
    """How many of the submissions that were to be graded got no grade."""
    keys = {(submission.student, submission.assignment) for submission in wanted}
    return sum(
        row.status == statuses.UNGRADED and (row.student, row.assignment) in keys
        for row in summary.rows
    )


def _said(summary: Summary, wanted: set[Submission], out: Path) -> list[str]:
    """The lines below the table. wanted: the submissions that were to be graded."""
    kept = len(wanted) - summary.graded
    ungraded = _ungraded(summary, wanted)
    lines = []
    if left := len(summary.rows) - len(wanted):
        without = summary.ungraded - ungraded
        lines.append(f"Left as they were: {left}; without a grade so far: {without}.")
    if kept:
        lines.append(
            f"{summary.graded} graded; {kept} had not changed since they were (--again grades all)."
        )
    if summary.changes:
        lines += [
            "Changed since the last complete run:",
            *(f"  {line}" for line in summary.changes),
        ]
    lines.append(
        f"Class page, feedback pages, gradebook.db, grades.csv and exercises.csv are in {out}"
    )
    if ungraded:
        lines.append(
            f"{ungraded} of {len(wanted)} submissions got no grade; "
            f"{out / 'nbgrader.log'} says more."
        )
    return lines
