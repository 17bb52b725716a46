"""The state of the optimizer in mapped files: extra credit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.zero.references import REFERENCE
from course_lib.checks.notebooks.zero.runs import ADAMW, SGD, SLACK, WHOLE, small, stepped, wide
from course_lib.checks.rank import watching
from course_lib.checks.rank.notebooks.zero.mapped import MappedInstructions
from course_lib.runtime.moments import ANONYMOUS, BASE

RECIPE = "course_lib.checks.rank.notebooks.zero.mapped:mapped_state"
VALUES = (
    "A state must keep its values, so copy it into its file, in its own dtype. No other state, and no "
    "other optimizer of the same folder, may use that file."
)


def run(training: Training, *, neighbour: bool = False) -> Training:
    training.more = {**training.more, "neighbour": neighbour}
    return training


def offload_case(training: Training, title: str, case_lines: list[kit.Line]) -> kit.Case:
    side = kit.RankSide({}, training.instructions(0, MappedInstructions), training_runs.outputs(training))
    return kit.Case(
        title, [side], case_lines, recipe=RECIPE, on_cpu=True, imports=training_runs.OPTIMIZERS,
        moments=(BASE, ANONYMOUS), room=watching.ROOM,
    )  # fmt: skip


def in_files(expected: int, steps: int) -> Callable[[kit.Observed], kit.Finding]:
    """After each of the steps, all states lie in files of the folder. expected: how many there are."""

    def judge(observed: kit.Observed) -> kit.Finding:
        reply = observed.values[0]
        if (len(reply.outside), len(reply.states)) != (steps, steps):
            return kit.wrong("the states were not looked at after every step.")
        for step, (names, count) in enumerate(zip(reply.outside, reply.states, strict=True), start=1):
            if count != expected:
                return kit.wrong(
                    f"after step {step} the optimizer has {words.counted(count, 'state')} of {expected}.",
                    (
                        "The states stay in optimizer.state under their names, because only their place "
                        "in memory is new."
                    ),
                )
            if names:
                return kit.wrong(
                    f"after step {step}, {words.counted(len(names), 'state')} of {expected} "
                    f"{'is' if len(names) == 1 else 'are'} not in a file of the folder that is mapped "
                    "shared, so values written there would not reach the file.",
                    "Replace the old tensor in optimizer.state with the mapped one, already in the "
                    "first step, with torch.from_file(path, shared=True, ...).",
                    misses_point=True,
                )
        return kit.RIGHT

    return judge


def memory(enough: float, steps: int) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        measured = observed.held[0].get(ANONYMOUS, ())
        if len(measured) < steps:
            return kit.wrong("the rank was not measured after its steps.")
        for step, got in enumerate(measured, start=1):
            if got > enough + SLACK:
                return kit.wrong(
                    f"after step {step}, {training_runs.megabytes(got)} of memory have no file behind them; "
                    f"{training_runs.megabytes(enough)} are enough, the parameters.",
                    "Free the tensors that were moved, because a list, or a copy, still holds them.",
                )
        return kit.RIGHT

    return judge


def value(draw: kit.Draw, optimizer: tuple, title: str, states: int, **more) -> kit.Case:
    training = run(small(draw, 1, "plain", optimizer), neighbour=more.pop("neighbour", False))
    case_lines = [
        stepped(training, title, [], 2, otherwise=VALUES),
        kit.Line(f"states in mapped files: {title}", in_files(4 * states, len(training.steps[0])), 2),
    ]
    return offload_case(training, title, case_lines)


def offload_trouble(case: kit.Case, kind: str, text: str) -> str:
    if "required mapping size" in text:
        return (
            "With shared=True, torch.from_file makes a file as large as its tensor needs. With "
            "shared=False it does not, and new values would not reach the file."
        )
    return ""


@kit.exercise(
    points=3, objects=("offloaded",), references=REFERENCE, hint=offload_trouble, extra=True,
    point="states whose only place is a file", besides="steps that are right",
)  # fmt: skip
def offload(draw: kit.Draw) -> Iterator[kit.Case]:
    yield value(draw, ADAMW, "AdamW, two optimizers in one folder", 2, neighbour=True)
    training = run(wide(draw, 1))
    case_lines = [
        stepped(training, "6.4 MB of parameters", [], 0.5, what="end", otherwise=VALUES),
        kit.Line(
            "memory without a file: P", memory(WHOLE, len(training.steps[0])), 3, "memory",
            enough={ANONYMOUS: WHOLE + SLACK},
        ),
    ]  # fmt: skip
    yield offload_case(training, "memory", case_lines)
    if draw.hidden:
        yield value(draw, SGD, "SGD with momentum", 1)
        yield value(draw, ("Adagrad", {"lr": 0.1}), "Adagrad, whose states exist before the first step", 1)
