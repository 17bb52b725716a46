"""The honest submissions among the others: no fault of another submission may cost them anything."""

from __future__ import annotations

from autograder.faults.desk import CIRCLE, Desk, new_cell
from autograder.faults.row import FULL, HONEST, LOST, NAMED, POINTS_TELL, Row

NOT_THEIRS = "another submission's fault costs points"


def perfect(desk: Desk) -> None:
    desk.hand_in(desk.answered())


def blank(desk: Desk) -> None:
    desk.hand_in(desk.blank())


def wrong(desk: Desk) -> None:
    notebook = desk.answered()
    desk.put(notebook, CIRCLE, "def neighbour_sum(tensor):\n    return tensor + tensor + tensor")
    desk.hand_in(notebook)


def cells_of_their_own(desk: Desk) -> None:
    """Helpers and experiments in cells beside the exercises, ranks started in one of them."""
    notebook = desk.answered()
    notebook.cells.insert(2, new_cell("def own_helper(x):\n    return x"))
    text = desk.answers[CIRCLE].replace("return from_left", "return own_helper(from_left)")
    desk.put(notebook, CIRCLE, text)
    experiment = """
    from course_lib import launch

    run = launch(lambda: dist.get_rank(), world_size=2)
    print("two ranks:", list(run))
    1 / 0
    """
    notebook.cells.append(new_cell("\n".join(line[4:] for line in experiment.splitlines())))
    desk.hand_in(notebook)


def module_of_their_own(desk: Desk) -> None:
    """A cell writes a module, and the exercise imports it."""
    notebook = desk.answered()
    file = (
        "with open('own_helpers.py', 'w') as file:\n    file.write('def own_helper(x): return x')"
    )
    notebook.cells.insert(2, new_cell(file))
    text = desk.answers[CIRCLE].replace("return from_left", "return own_helper(from_left)")
    desk.put(
        notebook, CIRCLE, text.replace("def ", "from own_helpers import own_helper\n\n\ndef ", 1)
    )
    desk.hand_in(notebook)


ROWS = [
    Row("honest-first", HONEST, perfect, "graded", FULL, NOT_THEIRS, POINTS_TELL, quick=True),
    Row("honest-own-cells", HONEST, cells_of_their_own, "graded", FULL, NOT_THEIRS, POINTS_TELL, quick=True),
    Row("honest-own-module", HONEST, module_of_their_own, "graded", FULL, NOT_THEIRS, POINTS_TELL),
    Row(
        "honest-but-wrong", HONEST, wrong, "graded", LOST, "a wrong answer earns points", POINTS_TELL,
        says=NAMED, quick=True,
    ),
    Row("honest-blank", HONEST, blank, "blank", 0.0, "a stub earns points", POINTS_TELL, quick=True),
    Row("zz-honest-last", HONEST, perfect, "graded", FULL, NOT_THEIRS, POINTS_TELL, quick=True),
]  # fmt: skip
