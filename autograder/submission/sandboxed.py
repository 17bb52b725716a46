"""Opens a course for grading in this process: the preloaded process, a sandbox with its limits, the judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autograder.course.exercises import Assignment
from autograder.outcome.limits import Limits
from autograder.sandbox.capacity import refuse_gpus
from autograder.sandbox.child import spawner
from autograder.submission.marking import Course
from autograder.submission.walk import Judge, JudgeFailureError
from course_lib.checks.judge.judge import judge
from course_lib.checks.judge.masks import masked_paths
from course_lib.runtime import places, pools, wire
from course_lib.runtime.sandbox.enter import harmless_environment
from course_lib.runtime.sandbox.probe import probe
from course_lib.runtime.sandbox.spec import APART, Sandbox

# Each in a preloaded process of its own: the modules of notebooks, such as IPython and Matplotlib, would
# make every fork of a rank half as expensive again.
RANKS, NOTEBOOKS = "course_lib.checks.rank.harness", "autograder.sandbox.executor"
MODES = ("auto", "require", "off")


class SandboxError(Exception):
    """A sandbox was required, and this machine does not allow one that is worth the name."""


def open_course(
    assignments: Iterable[Assignment], secret: bytes, limits: Limits, mode: str = "auto"
) -> Course:
    """The assignments, ready to grade submissions one after the other in this process.

    mode: "auto" uses every layer that this machine allows; "require" raises SandboxError unless files
    and network are isolated; "off" uses none. GpuGradingError where COURSE_BACKEND asks for GPUs. Starts
    the preloaded process anew; `pools.close` ends it.
    """
    refuse_gpus()
    pools.close()
    # One hash seed, so that a submission does the same in one grading and the next.
    environment = {**harmless_environment(), "PYTHONHASHSEED": "0"}
    pools.preload(RANKS, environment=environment)
    notebooks = pools.SeparateProcess(NOTEBOOKS, environment=environment)
    places.read_files = False  # ranks name files, whose content must not get into a report
    sandbox = _sandbox(limits, mode)

    def masked(assignment: Assignment) -> Sandbox | None:
        return sandbox and replace(sandbox, masked=_masked(assignment))

    return Course(
        {assignment.name: assignment for assignment in assignments},
        secret,
        start=lambda assignment: spawner(notebooks.process(), together(masked(assignment))),
        judge=lambda assignment: judge_behind(masked(assignment)),
        layers=sandbox.layers if sandbox else (),
    )


def together(sandbox: Sandbox | None) -> Sandbox | None:
    """For the notebook and the ranks that it launches: they may share files, and earn nothing by it."""
    return sandbox and sandbox.without(APART)


def _masked(assignment: Assignment) -> tuple[str, ...]:
    """The references of all exercises that are judged, whatever notebook they were made for."""
    judged = {
        graded.check.partition("/")[0] for graded in assignment.graded.values() if graded.check
    }
    paths = [path for name in sorted(judged) for path in masked_paths(name)]
    return tuple(dict.fromkeys(paths))


def _sandbox(limits: Limits, mode: str) -> Sandbox | None:
    if mode not in MODES:
        raise ValueError(f"the sandbox is one of {', '.join(MODES)}, not {mode!r}")
    if mode == "off":
        return None
    sandbox = probe(
        pools.preloaded(), memory=limits.memory, processes=limits.processes,
        descriptors=limits.descriptors, disk=limits.disk,
    )  # fmt: skip
    if mode == "require" and not (sandbox.isolates_files and sandbox.isolates_network):
        held = ", ".join(sandbox.layers) or "none"
        raise SandboxError(
            "a sandbox is required that isolates files and network, and this machine does not allow it. "
            f"Layers that hold: {held}."
        )
    return sandbox


def judge_behind(sandbox: Sandbox | None) -> Judge:
    """The checks' judge on hidden cases, in this process, with its ranks in `sandbox`."""

    def judged(exercise: str, payload: Sequence[wire.Buffer], seed: int, seconds: float) -> dict:
        try:
            return judge(exercise, payload, seed, "hidden", sandbox=sandbox, seconds=seconds)
        except Exception as error:
            raise JudgeFailureError(f"{exercise}: {type(error).__name__}: {error}") from error

    return judged
