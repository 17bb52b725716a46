"""loss_scaler: a scaled loss, and ranks that all skip a step, or none does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.notebooks.precision_and_memory.scaler_mistakes import MISTAKES
from course_lib.checks.notebooks.precision_and_memory.scaler_rule import (
    ALL,
    INFINITY,
    NAN,
    Mistake,
    Options,
    ScalerSteps,
    Script,
    outcomes,
)
from course_lib.checks.rank.notebooks.precision_and_memory.scaler import (
    ScalerInstructions,
    ScriptInstructions,
)

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.scaler:scripts"
LARGEST = 1e300  # sent for a number that is not finite
CLOSE = 1e-5  # relative
FLOAT = 4  # bytes
REFUSED = {
    f"torch.{name}": "PyTorch's scaler is the answer, so write your own."
    for name in ("amp.grad_scaler:GradScaler", "distributed.fsdp.sharded_grad_scaler:ShardedGradScaler")
}
SPLIT = "rank {} skipped the step but rank {} did not, so from here on they train two models."


# ---- judging a script


def judge_script(script: Script, observed: kit.Observed, scripts: Sequence[Script]) -> kit.Finding:
    """scripts: all of the case. A mistake that explains all of them is told rather than one of this alone."""
    replies = [observed.values[rank][script.name] for rank in range(script.ranks)]
    for reply in replies:
        if (finding := out_of_form(reply)) is not None:
            return finding
    right = outcomes(script)
    if any(len(reply.steps) != len(script.callers) for reply in replies):
        return kit.wrong("a script of steps did not reach its end.")
    pairs = enumerate(zip(replies, right, strict=True))
    if all(same(reply, run, script.starts[rank], script.aspects) for rank, (reply, run) in pairs):
        return returned(replies, right) if "returned" in script.aspects else kit.RIGHT
    said = first_off(script, replies, right)
    made = [(says, mistake) for says, mistake in MISTAKES if went_so(script, mistake, observed)]
    if not made:
        return kit.wrong(said, misses_point=isinstance(said, str) and "two models" in said)
    everywhere = (
        (says, mistake) for says, mistake in made if all(went_so(each, mistake, observed) for each in scripts)
    )
    says, mistake = next(everywhere, made[0])
    if script.ranks > 1 and mistake.sees not in ("all", "none"):
        return kit.RIGHT  # the ranks agree; the lines of one rank judge its findings
    why = says.replace("{scale}", words.number(script.options.scale))
    alone = mistake.agree not in ("any", "world", "single")
    return kit.wrong(said, why, cause=says, misses_point=alone)


def went_so(script: Script, mistake: Mistake, observed: kit.Observed) -> bool:
    """Whether every rank did in a script what it does with a mistake."""
    replies = [observed.values[rank][script.name] for rank in range(script.ranks)]
    if any(reply.error or reply.misfit or len(reply.steps) != len(script.callers) for reply in replies):
        return False
    runs = zip(replies, outcomes(script, mistake), strict=True)
    return all(same(reply, run, script.starts[rank], ALL) for rank, (reply, run) in enumerate(runs))


def out_of_form(reply: Any) -> kit.Finding | None:
    if reply.error is not None:
        error, text, where = reply.error
        if refusal := next((says for says in REFUSED.values() if says in text), ""):
            return kit.wrong(refusal, cause="refused", misses_point=True)
        said = kit.error_sentence("LossScaler", error, text)
        why = "Pass over parameters without a gradient." if "NoneType" in text else ""
        return kit.wrong(said, kit.at(where) if where else "", why, cause=f"{error} {where}")
    if reply.misfit:
        said = "scale_loss does not return a number as a tensor"
        return kit.wrong(
            kit.Sentence(f"{said}: {reply.misfit}.", f"{said}."),
            "Backward begins at the value it returns, so return the loss times the scale.",
            cause="misfit",
        )
    return None


def loss_line(script: Script) -> kit.Line:
    """The loss that was scaled is the caller's, and is 1 still."""

    def judge(observed: kit.Observed) -> kit.Finding:
        reply = observed.values[0][script.name]
        if (finding := out_of_form(reply)) is not None:
            return finding
        if reply.losses and all(loss == 1 for loss in reply.losses):
            return kit.RIGHT
        return kit.wrong(
            "scale_loss wrote into the loss.", "The caller prints the loss, so return a new tensor."
        )

    return kit.Line("the loss is left alone", judge, 0.5, trivial=True)


def same(reply: Any, run: ScalerSteps, starts: Sequence[Tensor], aspects: frozenset[str]) -> bool:
    """Whether a rank did what a run says in these aspects, but for the values that `step` returned."""
    if "scale" in aspects and not near(reply.last, run.last):
        return False
    pairs = list(zip(reply.steps, run.steps, strict=True))
    if "taken" in aspects and not moved_as(reply, run, starts):
        return False
    return all(
        reported.refused == played.refused
        and ("scale" not in aspects or near(reported.scale, played.scale))
        and ("params" not in aspects or alike(reported.params, played.params))
        and ("params" not in aspects or not played.unscaled or alike(reported.unscaled, played.unscaled))
        for reported, played in pairs
    )


def moves(reply: Any, starts: Sequence[Tensor]) -> list[bool]:
    """For each step, whether any parameter moved in it."""
    before = [[float(value) for value in start.flatten()] for start in starts]
    moved = []
    for reported in reply.steps:
        moved.append(reported.params != before)
        before = reported.params
    return moved


def moved_as(reply: Any, run: ScalerSteps, starts: Sequence[Tensor]) -> bool:
    """Whether the parameters moved in the steps in which they move in the run; some have no gradient."""
    before, wanted = list(starts), []
    for played in run.steps:
        pairs = zip(before, played.params, strict=True)
        wanted.append(any(not torch.equal(a.double(), b.double()) for a, b in pairs))
        before = played.params
    return moves(reply, starts) == wanted


def near(reported: float, wanted: float) -> bool:
    if not math.isfinite(wanted):
        return reported == LARGEST
    return abs(reported - wanted) <= CLOSE * abs(wanted)


def alike(reported: Sequence[Sequence[float]], wanted: Sequence[Tensor | None]) -> bool:
    return len(reported) == len(wanted) and all(map(alike_one, reported, wanted))


def alike_one(reported: Sequence[float], wanted: Tensor | None) -> bool:
    if wanted is None:
        return not reported
    values = wanted.flatten().tolist()
    return len(reported) == len(values) and all(map(near, reported, values))


def returned(replies: Sequence[Any], right: Sequence[ScalerSteps]) -> kit.Finding:
    """`step` says whether it was taken."""
    for reply, run in zip(replies, right, strict=True):
        for number, (reported, played) in enumerate(zip(reply.steps, run.steps, strict=True)):
            if reported.returned is not played.taken:
                said = f"in step {number + 1}, `step` did not return {played.taken}"
                return kit.wrong(
                    kit.Sentence(f"{said} but {reported.returned}.", "`step` returned something else."),
                    "`step` must return True if the step was taken and False if it was skipped.",
                    cause="returned",
                )
    return kit.RIGHT


def first_off(script: Script, replies: Sequence[Any], right: Sequence[ScalerSteps]) -> kit.Sentence | str:
    """The first step in which a rank did something else than the rule says, in the script's aspects."""
    scales, exact = "scale" in script.aspects, "params" in script.aspects
    for number in range(len(right[0].steps)):
        pairs = [(reply.steps[number], run.steps[number]) for reply, run in zip(replies, right, strict=True)]
        runs = enumerate(zip(replies, right, strict=True))
        moved = [as_far(reply, run, script.starts[rank], number, exact) for rank, (reply, run) in runs]
        for rank, (reported, played) in enumerate(pairs):
            who = f"rank {rank}, step {number + 1}" if len(pairs) > 1 else f"step {number + 1}"
            if scales and not near(reported.scale, played.scale):
                return quoted(f"{who}: the loss was scaled by another factor", reported.scale, played.scale)
            if reported.refused != played.refused:
                return f"{who}: a second unscale_ before update was not refused with RuntimeError."
            if exact and played.unscaled and not alike(reported.unscaled, played.unscaled):
                return f"{who}: after unscale_, the gradients are not the gradients of the loss."
            if not moved[rank] and not played.taken:
                others = [other for other, kept in enumerate(moved) if kept]
                if others:
                    return SPLIT.format(others[0], rank)
                return f"{who}: a parameter moved in a step that must be skipped."
            if not moved[rank]:
                return f"{who}: a parameter is not where the step should have left it."
    for rank, (reply, run) in enumerate(zip(replies, right, strict=True)):
        if scales and not near(reply.last, run.last):
            who = f"rank {rank}, at the end" if len(right) > 1 else "at the end"
            return quoted(f"{who}: the loss is scaled by another factor", reply.last, run.last)
    return "a run does not follow the rule."


def as_far(reply: Any, run: ScalerSteps, starts: Sequence[Tensor], number: int, exact: bool) -> bool:
    """Whether the parameters are where the run has them after a step, or moved as they do in the run."""
    if exact:
        return alike(reply.steps[number].params, run.steps[number].params)
    before = run.steps[number - 1].params if number else starts
    pairs = zip(before, run.steps[number].params, strict=True)
    return moves(reply, starts)[number] == any(not torch.equal(a.double(), b.double()) for a, b in pairs)


def quoted(said: str, reported: float, wanted: float) -> kit.Sentence:
    got = "infinity or NaN" if reported == LARGEST else words.number(reported)
    return kit.Sentence(f"{said}, {got} instead of {words.number(wanted)}.", f"{said}.")


# ---- scripts


DEFAULTS = Options()
Place = tuple[int, int]  # rank, parameter
Bad = tuple[int, int, int, float]  # step, rank, parameter, value


def script(
    draw: kit.Draw, name: str, title: str, steps: int, *, options: Options = DEFAULTS, ranks: int = 1,
    bad: Sequence[Bad] = (), callers: Sequence[str] = (), absent: Sequence[Place] = (),
    empty: Sequence[Place] = (), sizes: Sequence[int] = (3, 2), first: int = 9,
    groups: Sequence[Sequence[int]] = (), large: float = 0.0, weight: float = 1.0,
    aspects: str = "taken",
) -> Script:  # fmt: skip
    """Gradients of a few bits, so that all numbers are exact.

    bad: infinities and NaN. callers: of the first steps, see the recipe. absent: (rank, parameter) without a
    gradient; empty: without elements; sizes: elements of the parameters; first: how many of them are in the
    first group; large: every element's gradient; aspects: those that are judged, see `Script`.
    """

    def drawn(size: int) -> Tensor:
        signs = torch.randint(0, 2, (size,), generator=draw.generator) * 2 - 1
        return draw.distinct(size, low=1, high=64) * signs / 8

    def shard(rank: int, k: int) -> Tensor:
        return drawn(0 if (rank, k) in empty else sizes[k]).float()

    many = range(len(sizes))
    starts = [[shard(rank, k) for k in many] for rank in range(ranks)]
    gradients = []
    for step in range(steps):
        slopes = [[None if (rank, k) in absent else shard(rank, k) for k in many] for rank in range(ranks)]
        if large:
            slopes = [[torch.full((size,), large) for size in sizes] for _ in range(ranks)]
        for when, rank, k, value in bad:
            target = slopes[rank][k]
            if when == step and target is not None and target.numel():
                target[-1] = value
        gradients.append(slopes)
    done = [*callers, *[""] * (steps - len(callers))]
    return Script(name, title, options, starts, gradients, done, min(first, len(sizes)), groups, weight,
                  frozenset(aspects.split()))  # fmt: skip


def case(title: str, scripts: Sequence[Script], extra: Sequence[kit.Line] = ()) -> kit.Case:
    def line(script: Script) -> kit.Line:
        return kit.Line(script.title, lambda observed: judge_script(script, observed, scripts), script.weight)

    groups = [list(group) for group in scripts[0].groups]
    sides = []
    for rank in range(scripts[0].ranks):
        inputs: dict[str, Tensor] = {}
        described = []
        for each in scripts:
            inputs |= {f"{each.name}.p{k}": start for k, start in enumerate(each.starts[rank])}
            for step, slopes in enumerate(each.gradients):
                inputs |= {
                    f"{each.name}.{step}.{k}": gradient
                    for k, gradient in enumerate(slopes[rank])
                    if gradient is not None
                }
            own = next((place for place, group in enumerate(groups) if rank in group), None)
            params = len(each.starts[rank])
            options = dict(vars(each.options))
            described.append(
                ScriptInstructions(each.name, options, own, params, each.first, list(each.callers))
            )
        sides.append(kit.RankSide(inputs, ScalerInstructions(described), {}))
    return kit.Case(title, sides, [*map(line, scripts), *extra], groups=groups, recipe=RECIPE)


def bytes_line(scripts: Sequence[Script]) -> kit.Line:
    """One all-reduce of 4 bytes a step."""
    steps, n = sum(len(each.gradients) for each in scripts), scripts[0].ranks
    params = len(scripts[0].starts[0])

    def hint(ratio: float, observed: kit.Observed) -> str:
        operations = observed.operations[0]
        if any(operation.bytes_sent > 4 * FLOAT for operation in operations):
            return "The gradients travelled, but whether any is infinite is one number."
        if len(operations) == params * steps:
            return (
                "You send one message for each gradient. Instead, first look at all gradients on the "
                "rank, then send one number."
            )
        if len(operations) > steps:
            return (
                "You send more than one message per step, although the scale follows from what all ranks "
                "already know."
            )
        return "One number of 4 bytes is enough."

    most = steps * 2 * (n - 1) / n * FLOAT
    title = "bytes: one number a step"
    return kit.volume_line([most / FLOAT] * n, most=[most] * n, hint=hint, title=title)


def alone(draw: kit.Draw) -> list[Script]:
    """One rank: the rule."""
    small = Options(scale=2.0**10, interval=3)
    many = replace(small, interval=100)
    odd = Options(scale=2.0**8, growth=4.0, backoff=0.125, interval=2)
    return [
        script(draw, "plain", "three steps at scale 65,536", 3, callers=["", "clip", ""],
               aspects="taken params scale"),
        script(draw, "inf", "an infinity in step 3", 5, options=many, bad=[(2, 0, 1, INFINITY)],
               aspects="taken params returned"),
        script(draw, "negative", "-inf, and then +inf", 4, options=many,
               bad=[(1, 0, 0, -INFINITY), (2, 0, 1, INFINITY)], weight=0.5),
        script(draw, "nan", "NaN", 3, options=many, bad=[(1, 0, 0, NAN)], aspects="taken params"),
        script(draw, "growth", "growth after exactly 3 good steps", 8, options=small, aspects="scale"),
        script(draw, "reset", "a skip resets the count", 7, options=small, bad=[(1, 0, 0, INFINITY)],
               aspects="scale"),
        script(draw, "factors", "growth 4, backoff 1/8", 6, options=odd,
               bad=[(3, 0, 1, INFINITY), (4, 0, 0, NAN)], aspects="scale"),
        script(draw, "clip", "a caller that clips", 4, options=small, callers=["clip"] * 4,
               bad=[(2, 0, 0, INFINITY)], aspects="taken params"),
        script(draw, "twice", "unscale_ twice is refused", 3, options=many, callers=["twice", "", "twice"],
               weight=0.5),
        script(draw, "absent", "a parameter without gradient", 3, options=many, absent=[(0, 1)],
               sizes=(3, 2, 4), bad=[(1, 0, 2, INFINITY)], weight=0.5, aspects="taken params"),
        script(draw, "groups", "two groups of parameters", 4, options=many, sizes=(3, 2, 4), first=2,
               bad=[(1, 0, 2, NAN), (2, 0, 2, INFINITY)], weight=0.5),
        script(draw, "large", "large gradients that are finite", 2, options=many, large=2.0**117, weight=0.5),
    ]  # fmt: skip


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return "Every rank must take part in the all-reduce of every step, even a rank without gradients."
    return ""


@kit.exercise(
    points=10, objects=("LossScaler",), references=("course_lib.precision.scaler",), refused=REFUSED,
    hint=trouble, point="ranks that all skip a step, or none does",
)  # fmt: skip
def loss_scaler(draw: kit.Draw) -> Iterator[kit.Case]:
    """Scripts against the rule, on one rank; then shards of which one alone has an infinity."""
    rules = alone(draw)
    yield case("one rank", rules, [loss_line(rules[0])])
    many, twos = Options(scale=2.0**10, interval=100), [[0, 2], [1, 3]]
    late = draw.integer(2, 4)
    bad = [(0, 1, 0, INFINITY), (late + 1, 0, 1, INFINITY), (6, 1, 1, NAN)]
    bad += [(1, 0, 1, INFINITY), (1, 1, 0, INFINITY)]  # both, which a majority decides
    shards = [script(draw, "two", "2 ranks: one alone has an infinity", 7, options=many, ranks=2, bad=bad,
                     weight=2.5)]  # fmt: skip
    yield case("2 ranks", shards, [bytes_line(shards)])
    bad = [(1, draw.integer(1, 4), 1, INFINITY), (3, draw.integer(1, 4), 0, INFINITY)]
    bad += [(4, rank, 0, INFINITY) for rank in draw.distinct(2, low=1, high=4).tolist()]
    shards = [script(draw, "four", "4 ranks, one without gradients", 5, options=many, ranks=4, bad=bad,
                     absent=[(0, 0), (0, 1)], weight=2.0)]  # fmt: skip
    yield case("4 ranks", shards)
    bad = [(1, 2, 0, INFINITY), (2, 3, 1, INFINITY)]
    shards = [script(draw, "pairs", "4 ranks in two groups", 4, options=many, ranks=4, bad=bad, groups=twos,
                     weight=2.0)]  # fmt: skip
    yield case("two groups", shards)
    if draw.hidden:
        drawn = Options(2.0 ** draw.integer(3, 15), 2.0 ** draw.integer(1, 4), 2.0 ** -draw.integer(1, 4),
                        draw.integer(2, 5))  # fmt: skip
        bad = [(step, draw.integer(0, 3), draw.integer(0, 2), draw.choice([INFINITY, -INFINITY, NAN]))
               for step in range(12) if draw.integer(0, 4) == 0]  # fmt: skip
        callers = [draw.choice(["", "clip", "twice"]) for _ in range(12)]
        shards = [script(draw, "three", "3 ranks, a drawn script", 12, options=drawn, ranks=3, bad=bad,
                         callers=callers, empty=[(1, 0)], aspects="scale taken params returned")]  # fmt: skip
        yield case("3 ranks", shards)
