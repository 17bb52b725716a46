"""Lines about the losses of a layout: of the first one, and of those after each step."""

from __future__ import annotations

from math import isfinite

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.layout_causes import UNKNOWN, UNKNOWN_FIRST, Cause, Losses
from course_lib.checks.notebooks.capstone.layout_numbers import right
from course_lib.checks.notebooks.capstone.layout_run import STEPS, LayoutRun


def form(observed: kit.Observed) -> kit.Finding | None:
    for rank, reply in enumerate(observed.values):
        if reply.misfit:
            said = "make_step returned no function"
            why = "Is there a `return step` at the end?" if reply.misfit == "NoneType" else ""
            return kit.wrong(kit.Sentence(f"{said}: {reply.misfit}.", f"{said}."), why, cause="form")
        for loss in reply.returned:
            number = isinstance(loss, int | float) and not isinstance(loss, bool)
            if not number or not isfinite(loss):
                why = "Return the loss as a float, the same on all ranks."
                why = "Is there a `return` at the end of the step?" if loss is None else why
                return kit.wrong(f"on rank {rank} the step returned no finite number.", why, cause="form")
    return None


def wrong_loss(losses: Losses, step: int, cause: Cause) -> kit.Finding:
    wanted = losses.run.right[step]
    values = losses.of_step(step)
    rank = next((k for k, value in enumerate(values) if not right(value, wanted)), 0)
    got, want = words.apart(values[rank], wanted)
    when = "before the first step" if step == 0 else f"before step {step + 1}"
    fault = f"rank {rank} returned another loss {when} than one process"
    said = cause.sees or kit.Sentence(f"{fault}, {got} instead of {want}.", f"{fault}.")
    return kit.wrong(said, cause.says, cause=cause.says or "losses", misses_point=cause.misses)


def loss_line(run: LayoutRun, title: str, weight: float = 1.0) -> kit.Line:
    """The loss before the first step, which the parameters' moves cannot change."""

    def judge(observed: kit.Observed) -> kit.Finding:
        if (finding := form(observed)) is not None:
            return finding
        losses = Losses(run, observed)
        if all(right(value, run.right[0]) for value in losses.of_step(0)):
            return kit.RIGHT
        cause = losses.of_the_loss()
        return wrong_loss(losses, 0, cause if cause.says else Cause(UNKNOWN_FIRST))

    return kit.Line(f"the first loss: {title}", judge, weight)


def training_line(run: LayoutRun, title: str, weight: float = 2.0) -> kit.Line:
    """The losses before all further steps."""

    def judge(observed: kit.Observed) -> kit.Finding:
        if (finding := form(observed)) is not None:
            return finding
        losses = Losses(run, observed)
        if losses.trained:
            return kit.RIGHT
        cause = losses.of_training()
        first_is_right = all(right(value, run.right[0]) for value in losses.of_step(0))
        if not cause.says and not first_is_right:
            cause = losses.of_the_loss()
        if not cause.says:
            cause = Cause(UNKNOWN if first_is_right else UNKNOWN_FIRST)
        step = next(k for k in range(STEPS) if any(not right(v, run.right[k]) for v in losses.of_step(k)))
        return wrong_loss(losses, step, cause)

    return kit.Line(f"{STEPS} steps: {title}", judge, weight)
