"""train: a run that is killed at any moment, and goes on when it is called again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from course_lib.checks import kit
from course_lib.checks.notebooks.capstone import lives
from course_lib.checks.notebooks.capstone.lives import Call, Life, lives_of
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.checks.rank.notebooks.capstone.surviving import (
    BATCH,
    NOTHING,
    STEP,
    CallScript,
    Event,
    SurvivingInstructions,
    SurvivingScript,
)

NAME = "train"
RECIPE = "course_lib.checks.rank.notebooks.capstone.surviving:lives"
POINT = "a run that goes on from its newest checkpoint, instead of one that begins again"
ALL_RANKS = (
    "save_run and load_run are calls of all ranks, because each has its own pieces. Do not ask which rank "
    "it is."
)
SECONDS = 20.0


def script(
    name: str, draw: kit.Draw, steps: int, every: int, *deaths: Event, replaces: bool = False
) -> SurvivingScript:
    """A call for each death, and one that is not killed."""
    calls = [CallScript(steps, every, death) for death in (*deaths, (NOTHING, 0))]
    return SurvivingScript(name, draw.integer(0, 1 << 30), calls, replaces)


# ---- lines

Look = Callable[[Life], kit.Finding]


def first_wrong(findings: Iterator[kit.Finding]) -> kit.Finding:
    return next((finding for finding in findings if not finding.ok), kit.RIGHT)


def line(
    title: str, weight: float, scripts: Sequence[SurvivingScript], look: Look, ranks: int = 1
) -> kit.Line:
    """It holds for each life of each script, on each rank."""

    def judge(observed: kit.Observed) -> kit.Finding:
        return first_wrong(
            look(life)
            for script in scripts
            for values in observed.values
            for life in lives_of(script, values[script.name], ranks)
        )

    return kit.Line(title, judge, weight)


def last(life: Life) -> Call:
    return list(life.calls())[-1]


def losses(when: str) -> Look:
    return lambda life: lives.right_losses(last(life), when)


def saves(life: Life) -> kit.Finding:
    return lives.saves(last(life))


def steps_done(life: Life) -> kit.Finding:
    calls = list(life.calls())
    otherwise = lives.NOT_DUE if any(call.saved_out_of_turn for call in calls) else ""
    return first_wrong(lives.repeated(call, otherwise) for call in calls if not killed(call))


def killed(call: Call) -> bool:
    return call.script.dies != (NOTHING, 0)


def ends(life: Life) -> kit.Finding:
    """Each kill ends its call."""
    return first_wrong(lives.broken(call) or lives.went_on(call) for call in life.calls())


def nothing_left(life: Life) -> kit.Finding:
    """The second call finds a finished run."""
    first, second = life.calls()
    if not (finding := lives.right_losses(first, "undisturbed")).ok:
        return finding
    if (finding := lives.broken(second)) is not None:
        return finding
    if second.count("stepped") or second.count("batch"):
        said = "train was called for a finished run, but it did steps."
        cause = second.begun_anew() or (lives.NO_STEP if first.saved_its_last else lives.NOT_LAST)
        key = cause if cause == lives.NOT_LAST else f"finished {cause}"
        return kit.wrong(said, cause, cause=key, misses_point=cause in lives.IDEAS)
    if second.reply.losses != second.expected:
        return kit.wrong("train was called for a finished run, but it returned other losses.", lives.LOST)
    return kit.RIGHT


def longer(life: Life) -> kit.Finding:
    """The second call is told more steps."""
    first, second = life.calls()
    finding = lives.right_losses(second, "with more steps")
    if not finding.ok:
        return finding
    if not (finding := lives.repeated(second, "" if first.saved_its_last else lives.NOT_LAST)).ok:
        return finding
    if second.numbers("saved")[-1:] != [second.script.steps]:
        return kit.wrong("with more steps, the last step was not saved.", lives.NOT_LAST)
    missing = sorted(set(lives.saves_due(second)) - set(second.numbers("saved")))
    # A run whose first call saves at the wrong steps loses the line on saves, and not this one, too.
    if missing and first.numbers("saved") == lives.saves_due(first):
        said = f"called again with more steps, train did not save after {missing[0]} steps."
        return kit.wrong(said, lives.FROM_RESTART, cause=lives.FROM_RESTART)
    return kit.RIGHT


def shows(scripts: Sequence[SurvivingScript]) -> Callable[[kit.Observed], float]:
    """For `Line.shows`: whether all calls after a kill went on from the checkpoint."""

    def resumed(observed: kit.Observed) -> float:
        calls = [
            last(life)
            for script in scripts
            for values in observed.values
            for life in lives_of(script, values[script.name])
        ]
        ended = [call for call in calls if call.due]
        return float(all(call.reply.losses is not None and call.resumed for call in ended))

    return resumed


# ---- the exercise


def case(
    title: str, scripts: Sequence[SurvivingScript], made: Sequence[kit.Line], ranks: int = 1
) -> kit.Case:
    sides = [kit.RankSide({}, SurvivingInstructions(list(scripts), rank, ranks), {}) for rank in range(ranks)]
    return kit.Case(title, sides, list(made), recipe=RECIPE, timeout=SECONDS, on_cpu=True)


def hint(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause when a run breaks off."""
    apart = kind == "deadlock" or "do not agree on their collective" in text
    return ALL_RANKS if apart and case.world_size > 1 else ""


@kit.exercise(points=9, objects=(NAME,), references=REFERENCES, point=POINT, hint=hint)
def train(draw: kit.Draw) -> Iterator[kit.Case]:
    whole = script("undisturbed", draw, 7, 3)
    killed = [script(f"killed in step {k}", draw, 7, 3, (STEP, k)) for k in range(7)]
    early = script("killed early", draw, 5, 2, (STEP, 0), (BATCH, 1))
    often = script("killed often", draw, 9, 2, (STEP, 3), (BATCH, 4), (BATCH, 4), (STEP, 7))
    replaced = script("replaced", draw, 6, 2, (STEP, 5), replaces=True)
    at_once = script("every step", draw, 4, 1, (BATCH, 2))
    sweep = replace(script("in a save", draw, 5, 2, (NOTHING, 0)), sweep=True)
    done = script("finished", draw, 5, 3, (NOTHING, 0))
    seed = draw.integer(0, 1 << 30)
    more = SurvivingScript("longer", seed, [CallScript(5, 4), CallScript(9, 4)])
    lines = [
        line("an undisturbed run", 1, [whole], losses("undisturbed")),
        line("saves after every 3 steps, and after the last", 1.5, [whole], saves),
        line("killed in any step: the same losses", 2, killed, losses("killed in a step and called again")),
        replace(
            line("only steps that were not saved are done again", 2, [*killed, at_once], steps_done),
            shows=shows([*killed, at_once]),
        ),
        line("killed several times", 1, [early, often], losses("killed several times")),
        line("a step that replaces its tensors", 1, [replaced], losses("killed and called again")),
        line("killed in a save", 1.5, [sweep], losses("killed in a save and called again")),
        line("a finished run", 1, [done], nothing_left),
        line("more steps later", 1, [more], longer),
        line("a kill ends the call", 0.5, [*killed, early, often, sweep], ends),
    ]  # fmt: skip
    yield case("one rank", [whole, *killed, early, often, replaced, at_once, sweep, done, more], lines)
    two = script("two ranks", draw, 5, 2, (STEP, 3))
    pair = [line("two ranks", 1.5, [two], losses("killed and called again"), ranks=2)]
    yield case("two ranks", [two], pair, ranks=2)
    if draw.hidden:
        rare = script("rare saves", draw, 6, 10, (STEP, 5), (NOTHING, 0))
        steady = script("steady", draw, 8, 4, (STEP, 4), (STEP, 6), (BATCH, 7))
        other = replace(script("in another save", draw, 4, 3, (NOTHING, 0), replaces=True), sweep=True)
        made = [
            line("fewer steps than `every`", 0.5, [rare], losses("killed and called again")),
            line("killed between saves", 1, [steady], losses("killed several times")),
            line("killed in a save, tensors replaced", 1, [other], losses("killed and called again")),
        ]  # fmt: skip
        yield replace(case("more runs", [rare, steady, other], made), hidden=True)
