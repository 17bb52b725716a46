"""The memory of a schedule that was run, by the pages of each rank's process: wherever a tensor is held."""

from __future__ import annotations

from course_lib.checks.judge.training.memory import megabytes
from course_lib.checks.kit import RIGHT, Finding, Line, Observed, Sentence, wrong
from course_lib.checks.notebooks.pipeline.running_lines import FREE, members
from course_lib.checks.notebooks.pipeline.running_whole import Run
from course_lib.checks.rank.notebooks.pipeline.running import END

STEP = 7  # activations: the memory of one forward or backward, with the messages meanwhile
PAGES = 2_000_000  # bytes of libraries and of the heap
COPIES = " Copies count, too, of inputs, of outputs and of gradients."


def pages_line(run: Run, title: str, weight: float = 1.0) -> Line:
    """At no moment of the run does a rank hold more than `enough`, above its memory before."""

    def judge(observed: Observed) -> Finding:
        for stage, rank in enumerate(members(observed)):
            rose = observed.rose[rank].get(f"{run.name}.pages.{END}")
            if not rose:
                return wrong(f"rank {rank} was not measured.")
            if rose[0] > enough(run, stage):
                return held_too_much(run, stage, rank, rose[0])
        return RIGHT

    return Line(title, judge, weight, "memory")


def enough(run: Run, stage: int) -> float:
    """Bytes: of the microbatches under way, of each message that is sent or waited for, and of one step.

    A rank may keep its sent messages until the end, or post all receives at the beginning. The sent messages
    that it keeps and the receives still to come are together one message of each microbatch, to or from a
    neighbour.
    """
    counts = range(len(run.batch))
    neighbours = (stage > 0) + (stage < run.size - 1)
    largest = max(map(run.nbytes, counts))
    microbatch_bytes = max(run.kept(k, stage) for k in counts) + largest  # and its output
    messages = neighbours * sum(map(run.nbytes, counts))
    return under_way(run, stage) * microbatch_bytes + messages + STEP * largest + PAGES


def under_way(run: Run, stage: int) -> int:
    """Microbatches, at most."""
    most = now = 0
    for action in run.actions[stage]:
        now += 1 if action.kind == "F" else -1
        most = max(most, now)
    return most


def held_too_much(run: Run, stage: int, rank: int, rose: int) -> Finding:
    return wrong(
        Sentence(
            f"rank {rank} takes up to {megabytes(rose)} during a run of {len(run.batch)} microbatches, as "
            f"the kernel counts its pages; {megabytes(enough(run, stage))} are enough for those under way "
            f"({under_way(run, stage)} at most), one message for each, and what is computed at the moment.",
            f"rank {rank} takes more memory, as the kernel counts its pages, than the microbatches under "
            "way, their messages and what is computed at the moment need.",
        ),
        FREE + COPIES,
        cause=FREE,
        misses_point=True,
    )
