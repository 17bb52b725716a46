"""capture, restore: all that a run has to remember, so that it goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from course_lib.checks import kit
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.rank.notebooks.in_operation.remembering import (
    BEYOND,
    LOOK_AFTER,
    MORE,
    Look,
    RememberInstructions,
    RememberReply,
    RememberScript,
    advance,
    look,
    made,
)

RECIPE = "course_lib.checks.rank.notebooks.in_operation.remembering:scripts"
CLOSE = 1e-9  # relative
POINT = "everything that decides the next step, as it was at capture, and not only the parameters"
PARAMETERS = (
    "The parameters differ from the captured run. Capture and restore model.state_dict(), which holds them."
)
BUFFERS = (
    "The parameters are right, but the buffers are not. Running statistics are not parameters, but "
    "model.state_dict() holds both."
)
MOMENTS = (
    "The optimizer starts again from zero. Its moments and the number of their steps are in "
    "optimizer.state_dict()."
)
RATE = "The learning rate starts again from the beginning. How far it has got is in scheduler.state_dict()."
GROUPS = (
    "The scheduler is right, but the rate of the next step is not. It is in the optimizer's param_groups, "
    "which optimizer.state_dict() also holds."
)
STEP = (
    "The run reads the rows of another step. Restore run.step as well, because it is the run's position in "
    "the data."
)
DEFAULT = (
    "Dropout draws from torch's default generator, so its state is part of the run. Use "
    "torch.get_rng_state() and torch.set_rng_state(state)."
)
OWN = "The run also has its own generator. Use run.generator.get_state() and run.generator.set_state(state)."
PHOTOGRAPH = (
    "The state moved on with the run. state_dict() returns the run's own tensors, which the next step "
    "changes, so copy them in capture."
)
OWN_MOVED = (
    "The state moved on with the run, because it holds the run's generator itself. "
    "run.generator.get_state() is a copy of the generator's state."
)
AGAIN = (
    "The restored run has changed the state, because it shares tensors with it. An optimizer keeps the "
    "tensors it loads, so load copies."
)
UNCHANGED = "`restore` has left `run` as it was. It must change `run` itself, because its result is not used."
LATER = (
    "The values come from a later capture, which was made before this restore. Read them from `state` "
    "instead of a variable or a file that capture overwrites."
)
NO_STATE = "capture returned None. Does it end in a `return`?"
PLAIN = (
    "torch.load(file, weights_only=True) reads only tensors, numbers, texts, and lists and dicts of them. "
    "So save state_dict() and get_state() instead of a model, optimizer or generator itself, and tensors "
    "instead of NumPy arrays."
)
REPLACED = (
    "`restore` has put something else in the place of the run's model, optimizer, scheduler or generator. "
    "Instead, load the states into these objects, with load_state_dict and set_state."
)
NUMBER = "run.step counts finished steps, so restore must set it to a number instead of a tensor or a text."
LEFT_ALONE = "The same state can be restored again, so restore must leave it as it is."
ALIKE = "The run does not continue as the captured run would have."


@dataclass(frozen=True)
class Story:
    """A script, and the captured run as it is if left undisturbed."""

    script: RememberScript

    @cached_property
    def run(self) -> tuple[Look, list[float], Look]:
        """Captured; the losses of the next steps; and when it has gone on."""
        with torch.random.fork_rng(devices=[]):
            run = made(self.script.seed, self.script.adam)
            for _ in range(self.script.before):
                advance(run)
            captured, losses, beyond = look(run), list[float](), Look()
            for k in range(max(MORE, BEYOND)):
                losses.append(advance(run))
                if k + 1 == BEYOND:
                    beyond = look(run)
        return captured, losses[:MORE], beyond

    @cached_property
    def fresh(self) -> Look:
        """The run into which is restored, before that."""
        with torch.random.fork_rng(devices=[]):
            return look(made(self.script.other, self.script.adam))


# Of each part: its title, the usual cause, and the fields that show it.
PARTS: dict[str, tuple[str, str, Callable[[Look], list]]] = {
    "parameters": ("the parameters", PARAMETERS, lambda of: of.parameters),
    "buffers": ("the buffers", BUFFERS, lambda of: of.buffers),
    "moments": ("the optimizer's moments", MOMENTS, lambda of: of.moments),
    "rate": ("the learning rate", RATE, lambda of: [[of.rate, of.scheduled]]),
    "step": ("the step", STEP, lambda of: [[of.step]]),
    "drawn": ("the next number of the default generator", DEFAULT, lambda of: [[of.drawn]]),
    "own": ("the next number of run.generator", OWN, lambda of: [[of.own]]),
}


def near(came: list, right: list) -> bool:
    """Whether two lists of lists of numbers are equal up to rounding."""
    if len(came) != len(right) or any(len(a) != len(b) for a, b in zip(came, right, strict=True)):
        return False
    pairs = [pair for a, b in zip(came, right, strict=True) for pair in zip(a, b, strict=True)]
    return all(
        isinstance(a, int | float) and not isinstance(a, bool) and abs(a - b) <= CLOSE * max(abs(b), 1e-6)
        for a, b in pairs
    )


def restored(part: str, came: Look, right: Look) -> bool:
    fields = PARTS[part][2]
    return near(fields(came), fields(right))


def lost(came: Look, story: Story) -> list[str]:
    """The parts that were not restored, in the order of PARTS."""
    return [part for part in PARTS if not restored(part, came, story.run[0])]


def usual_cause(part: str, came: Look, story: Story) -> str:
    off, later = lost(came, story), story.run[2]
    if set(off) == set(PARTS) and all(restored(each, came, story.fresh) for each in PARTS):
        return UNCHANGED
    if not story.script.late and "parameters" in off and restored("parameters", came, later):
        return LATER if restored(part, came, later) else PARTS[part][1]
    if part == "buffers" and "parameters" in off:
        return PARAMETERS
    if part == "rate" and came.scheduled == story.run[0].scheduled:
        return MOMENTS if "moments" in off else GROUPS
    if part == "step" and not isinstance(came.step, int | float):
        return NUMBER
    return PARTS[part][1]


def little_more(off: Sequence[str], story: Story) -> bool:
    """Whether hardly more than the parameters was restored."""
    return {"moments", "rate", "drawn"} <= set(off) and story.script.before > 0


def broken(reply: RememberReply) -> kit.Finding | None:
    """The finding about an exception."""
    if reply.is_none:
        return kit.wrong(NO_STATE)
    if reply.error is None:
        return None
    error, text, place = reply.error
    who = reply.raising or "restore"
    if error == "NotImplementedError":
        return kit.unwritten(who, place)
    said = kit.error_sentence(who, error, text)
    usual = REPLACED if who == LOOK_AFTER else ""
    return kit.wrong(said, kit.at(place) if place else usual, cause=f"{who} raised {error}")


def reply_of(observed: kit.Observed, story: Story) -> RememberReply:
    return observed.values[0][story.script.name]


def part_line(story: Story, part: str, weight: float) -> kit.Line:
    title = PARTS[part][0]

    def judge(observed: kit.Observed) -> kit.Finding:
        reply = reply_of(observed, story)
        if (finding := broken(reply)) is not None:
            return finding
        if restored(part, reply.restored, story.run[0]):
            return kit.RIGHT
        off, cause = lost(reply.restored, story), usual_cause(part, reply.restored, story)
        sentence = f"after restore, {said(part, reply.restored, story.run[0])}."
        missed = part == "moments" and little_more(off, story) and cause not in (UNCHANGED, LATER)
        return kit.wrong(sentence, cause, cause=cause, misses_point=missed)

    return kit.Line(title, judge, weight)


def said(part: str, came: Look, right: Look) -> str:
    title = PARTS[part][0]
    if part == "step":
        return kit.Sentence(f"run.step is {came.step} instead of {right.step}", "run.step is wrong")
    verb = "are" if part in ("parameters", "buffers", "moments") else "is"
    return f"{title} {verb} not the same as at capture"


def goes_on(
    story: Story, weight: float, title: str = "three more steps, as if it had never stopped"
) -> kit.Line:
    """The losses; a part that was not restored is told as their cause."""

    def judge(observed: kit.Observed) -> kit.Finding:
        reply, (captured, losses, _) = reply_of(observed, story), story.run
        if (finding := broken(reply)) is not None:
            return finding
        off = lost(reply.restored, story)
        if not off and near([reply.losses], [losses]):
            return kit.RIGHT
        why = usual_cause(off[0], reply.restored, story) if off else ALIKE
        sentence = f"after restore, {said(off[0], reply.restored, captured)}." if off else ""
        pairs = enumerate(zip(reply.losses, losses, strict=False), start=story.script.before)
        for step, (came, right) in pairs:
            if not near([[came]], [[right]]):
                loss = f"the loss of step {step} is {came:.6g} instead of {right:.6g}."
                sentence = kit.Sentence(loss, "the losses are not the same.")
                break
        missed = little_more(off, story) and why not in (UNCHANGED, LATER)
        return kit.wrong(sentence, why, cause=why, misses_point=missed)

    return kit.Line(title, judge, weight)


def no_worse(story: Story, than: Story, why: str, title: str, weight: float) -> kit.Line:
    """All parts that are restored in `than` are restored here, too, the parameters at least.

    A late state in which both the parameters and the optimizer moved on with the run was never captured.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        reply, other = reply_of(observed, story), reply_of(observed, than)
        if (finding := broken(other) or broken(reply)) is not None:
            alone = story.script.twice and other.error is None and reply.raising == "restore"
            return replace(finding, sentences=(*finding.sentences, LEFT_ALONE)) if alone else finding
        captured, _, beyond = story.run
        before, known = story.script.before, lost(other.restored, than)
        if "parameters" in known:
            sentence = f"after restore, {said('parameters', other.restored, than.run[0])}."
            cause = usual_cause("parameters", other.restored, than)
            return kit.wrong(sentence, cause, cause=cause)
        off = [part for part in lost(reply.restored, story) if part not in known]
        if not off:
            return kit.RIGHT
        title, sentence, usual = PARTS[off[0]][0], said(off[0], reply.restored, captured), why
        if story.script.late and restored(off[0], reply.restored, beyond):
            sentence = f"the state of step {before} holds {title} of step {before + BEYOND}"
            usual = OWN_MOVED if off[0] == "own" else why
        when = "restored a second time," if story.script.twice else "after restore,"
        moved = story.script.late and {"parameters", "moments"} <= set(off)
        return kit.wrong(f"{when} {sentence}.", usual, cause=why, misses_point=moved)

    return kit.Line(title, judge, weight)


def file_line(stories: Sequence[Story], weight: float) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        for story in stories:
            reply = reply_of(observed, story)
            if reply.kind:
                return kit.wrong(
                    f"capture returned {reply.kind} instead of a dict.", "The state must be a dict."
                )
            if reply.file is not None:
                error, text, _ = reply.file
                first = text.partition(". ")[0].rstrip(".")
                where = f"the state has {reply.misfit}, so it" if reply.misfit else "the state"
                said = f"{where} cannot be saved and loaded: {kit.error_in_full(error, first)}."
                sentence = kit.Sentence(said, "the state cannot be saved and loaded.")
                return kit.wrong(sentence, PLAIN, cause=PLAIN)
            if (finding := broken(reply)) is not None:
                return finding
        return kit.RIGHT

    return replace(kit.Line("plain data, which torch.load reads", judge, weight), trivial=True)


@kit.exercise(points=8, objects=("capture", "restore"), references=REFERENCES, point=POINT)
def capture(draw: kit.Draw) -> Iterator[kit.Case]:
    def story(name: str, before: int = 3, **more: bool) -> Story:
        seed = draw.integer(1, 1 << 30)
        return Story(RememberScript(name, seed, seed + 100 + draw.integer(0, 1000), before, **more))

    file, late, twice = story("file"), story("late", late=True), story("twice", twice=True)
    lines = [
        part_line(file, "parameters", 1),
        part_line(file, "buffers", 0.5),
        part_line(file, "moments", 1.5),
        part_line(file, "rate", 1),
        part_line(file, "step", 1),
        part_line(file, "drawn", 1.5),
        part_line(file, "own", 1),
        goes_on(file, 2),
        no_worse(late, file, PHOTOGRAPH, "the run goes on, and the state does not", 2),
        no_worse(twice, file, AGAIN, "a state is restored twice", 0.5),
        file_line([file], 0.5),
    ]
    yield case("a run", [file, late, twice], lines)
    if draw.hidden:
        momentum, start = story("momentum", 4, adam=False), story("start", 0)
        more = [
            goes_on(momentum, 1, "SGD with momentum"),
            goes_on(start, 0.5, "captured before its first step"),
        ]
        yield replace(case("other runs", [momentum, start], more), hidden=True)


def case(title: str, stories: Sequence[Story], lines: Sequence[kit.Line]) -> kit.Case:
    instructions = RememberInstructions([story.script for story in stories])
    sides = [kit.RankSide({}, instructions, {})]
    imports = kit.training_runs.OPTIMIZERS
    return kit.Case(title, sides, list(lines), recipe=RECIPE, alone=True, imports=imports)
