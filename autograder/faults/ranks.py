"""Faults of the ranks in which an exercise is judged: they cost that exercise, and nothing else."""

from __future__ import annotations

from autograder.faults.row import (
    CALLS,
    FULL,
    LOST,
    MARK_TELLS,
    NAMED,
    POINTS_TELL,
    RANKS,
    Row,
    in_the_ranks,
    instead,
)

COSTS_ONE = "another exercise or another submission loses points, or the class waits"
COSTS_NOTHING = "it costs points"
BY_LIST = "by the list of processes afterwards"


def losing(name: str, code: str, says: str = NAMED, *, quick: bool = False) -> Row:
    return Row(
        name, RANKS, in_the_ranks(code), "graded", LOST, COSTS_ONE, POINTS_TELL,
        says=says, quick=quick,
    )  # fmt: skip


def harmless(name: str, code: str, noticed: str = POINTS_TELL, *, quick: bool = False) -> Row:
    return Row(name, RANKS, in_the_ranks(code), "graded", FULL, COSTS_NOTHING, noticed, quick=quick)


ROWS = [
    losing("deadlock", "dist.recv(tensor.clone(), (rank - 1) % n)", "(?i)circle|deadlock", quick=True),
    losing("one-rank-dead", "import os\nif rank == 1:\n    os._exit(1)", quick=True),
    losing("one-rank-raises", "if rank == 1:\n    raise ValueError('no idea')"),
    Row(  # which of its limits is reached first is a race on a busy machine
        "every-rank-loops", RANKS, in_the_ranks("while True:\n    pass"), "graded", LOST, COSTS_ONE,
        POINTS_TELL, says=NAMED, or_status=("timed out",),
    ),
    Row(
        "one-rank-hoards", RANKS,
        in_the_ranks("hoard = []\nwhile rank == 1:\n    hoard.append(b'x' * (1 << 26))"),
        "out of memory", LOST, COSTS_ONE, POINTS_TELL, says=f"(?s)(?=.*memory).*({NAMED})",
    ),
    losing("one-rank-is-killed", "import os\nif rank == 1:\n    os.kill(os.getpid(), 9)"),
    losing("another-shape", "return tensor.new_zeros(3, 1_000_000)"),
    losing("no-tensor", "return 'full marks'"),
    harmless(
        "warnings-on-stderr",
        """
        import os, sys, warnings
        warnings.warn("careful")
        print("to stderr", file=sys.stderr)
        os.write(2, b"from C\\n")
        """,
        quick=True,
    ),
    harmless("ranks-that-print-a-lot", "for i in range(20_000):\n    print('rank', rank, 'line', i)"),
    Row(  # also where students check themselves: a rank under a check starts no process
        "ranks-leave-a-daemon", RANKS,
        in_the_ranks(
            """
            import subprocess
            subprocess.Popen(["sleep", "4321"], start_new_session=True)
            """
        ),
        "graded", LOST, COSTS_ONE, BY_LIST, f"(?s)(?=.*starts no processes|.*PermissionError).*({NAMED})",
        needs=(CALLS,),
    ),
    Row(
        "bytes-that-run-code-when-read", RANKS,
        instead(
            """
            class Trap:
                def __reduce__(self):
                    return open, ("MARK", "w")

                def __call__(self, tensor):
                    return tensor

            neighbour_sum = Trap()
            """
        ),
        "graded", LOST, "a student's object is unpickled outside the sandbox", MARK_TELLS, quick=True,
    ),
    Row(
        "hands-in-too-much", RANKS,
        instead(
            """
            ballast = bytearray(1 << 26)

            def neighbour_sum(tensor, unused=ballast):
                return tensor
            """
        ),
        "graded", LOST, "the grader's memory is filled", "by the memory of the grader",
        says="(?i)large|big|MB|bytes",
    ),
]  # fmt: skip
