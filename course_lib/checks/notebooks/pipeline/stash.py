"""PipeDreamStage (extra credit): a step after every backward, with the gradient of the forward's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.training_runs import OPTIMIZERS
from course_lib.checks.notebooks.pipeline.recognising import tokens
from course_lib.checks.notebooks.pipeline.references import REFERENCES
from course_lib.checks.notebooks.pipeline.stash_runs import (
    SLIPS,
    WITH_THE_POINT,
    NoVersions,
    Order,
    StashRun,
    Tensors,
)
from course_lib.checks.rank.notebooks.pipeline.stage_models import VOCABULARY
from course_lib.pipeline.actions import flat
from course_lib.pipeline.generators import one_f_one_b

RECIPE = "course_lib.checks.rank.notebooks.pipeline.updates:updates"
ADAM = ("Adam", {"lr": 0.02})
POINT = "a gradient of the weights that the forward saw, stepped into the newest"
NO_RESULT = (
    "Is there a `return` at its end? And x comes with the graph of the stage before, so its own grad stays "
    "None. Let forward work on x.detach(), which can require a gradient of its own."
)
LEFT_OVER = "A version is needed from a microbatch's forward to its backward, so drop it then (pop)."


def values_line(
    run: StashRun, title: str, kinds: Sequence[str], what: Callable[[str, str], str], weight: float
) -> kit.Line:
    """All tensors whose names begin with one of `kinds`, in the order in which they came about."""

    def judge(observed: kit.Observed) -> kit.Finding:
        missing = observed.values[0][run.name].misfits
        for name, wanted in run.wanted.items():
            kind, k, *rest = name.split(".", 2)
            if kind not in kinds:
                continue
            called = what(k, "".join(rest))
            if name in missing:
                none = missing[name] == "None"
                is_it = "None" if none else "not of the shape and dtype that was agreed"
                hint = NO_RESULT if none else ""
                return kit.wrong(f"{called} is {is_it}.", hint, cause=f"{kind} missing")
            tensor = observed.tensors[0][f"{run.name}.{name}"]
            if not kit.close(tensor, wanted):
                return differs(run, observed, called, tensor, wanted)
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def differs(
    run: StashRun, observed: kit.Observed, called: str, tensor: Tensor, wanted: Tensor
) -> kit.Finding:
    says = next((hint for hint, kind in SLIPS.items() if fits(run, observed, run.trained(kind))), "")
    return kit.wrong(
        kit.difference(f"{called} is wrong", tensor, wanted, what=""),
        says,
        cause=says or called,
        misses_point=SLIPS.get(says) is NoVersions,
    )


def fits(run: StashRun, observed: kit.Observed, mistake: Tensors) -> bool:
    return all(
        kit.close(observed.tensors[0][f"{run.name}.{name}"], tensor) for name, tensor in mistake.items()
    )


def held_line(run: StashRun, title: str, weight: float) -> kit.Line:
    """Versions: one for each microbatch under way, and the newest; besides gradients and the momentum."""

    def judge(observed: kit.Observed) -> kit.Finding:
        held = observed.values[0][run.name].held
        if len(held) != len(run.actions):
            return kit.wrong("the bytes that the stage holds were not reported.")
        under_way = 0
        for nbytes, (kind, k) in zip(held, run.actions, strict=True):
            under_way += 1 if kind == "F" else -1
            beside = 2 * run.nbytes  # gradients, momentum
            allowed = beside + (under_way + 1.5) * run.nbytes
            if nbytes > allowed:
                versions = round((nbytes - beside) / run.nbytes)
                return kit.wrong(
                    kit.Sentence(
                        f"after {kind} of microbatch {k} the stage holds {words.number(nbytes)} bytes, some "
                        f"{versions} versions of its weights, but {words.counted(under_way, 'microbatch')} "
                        "under way need as many, and one is the newest.",
                        "the stage holds more versions than there are microbatches under way.",
                    ),
                    LEFT_OVER,
                    cause=LEFT_OVER,
                )
        return kit.RIGHT

    def shows(observed: kit.Observed) -> float:
        return float(any(fits(run, observed, run.trained(kind)) for kind in WITH_THE_POINT))

    return kit.Line(title, judge, weight, "memory", shows=shows)


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    if "modified by an inplace operation" in text:
        return (
            "The optimizer changes weights in place, and a microbatch that is under way still needs the old "
            "weights, so let its forward run on copies of them (param.detach().clone(), by "
            "functional_call, or a copy of the module)."
        )
    if "does not require grad" in text:
        return "Is the version cut off from autograd? param.detach().clone().requires_grad_()."
    if "only Tensors of floating point" in text:
        return "Tokens have no gradient, so use x.requires_grad_() only for floating-point inputs."
    if "backward through the graph a second time" in text:
        return "Each microbatch has a graph of its own, so cut x off from other graphs (detach())."
    if "grad can be implicitly created only for scalar" in text:
        return "Pass the gradient on with output.backward(gradient)."
    return ""


# ---- cases


def row(stages: int, stage: int, count: int) -> list[tuple[str, int]]:
    """1F1B's actions of one stage."""
    return [(action.kind, action.microbatch) for action in flat(one_f_one_b(stages, count)[stage])]


def drawn(draw: kit.Draw, name: str, kind: str, actions: Order, **more) -> StashRun:
    width = more.get("width", 6)
    count, shape = 1 + max(k for _, k in actions), (2, 3)
    if kind == "first":
        xs = tokens(draw, [shape] * count, VOCABULARY)
    else:
        xs = [draw.normal(*shape, width, dtype=torch.float64) for _ in range(count)]
    gs = [draw.normal(*shape, width, dtype=torch.float64) for _ in xs] if kind != "last" else []
    return StashRun(name, kind, draw.integer(1, 1 << 30), actions, xs, gs, **more)


def lines(run: StashRun, title: str, weight: float) -> list[kit.Line]:
    def output(k: str, _: str) -> str:
        return f"the output of microbatch {k}"

    def of_input(k: str, _: str) -> str:
        return f"the gradient that backward({k}) returns"

    def weights(k: str, name: str) -> str:
        return f"{name} after backward({k})"

    value_lines = [
        values_line(run, f"{title}: outputs", ["y"], output, weight / 2),
        values_line(run, f"{title}: weights after each backward", ["p"], weights, weight),
    ]
    if run.kind != "first":
        value_lines.insert(1, values_line(run, f"{title}: gradients of x", ["dx"], of_input, weight / 2))
    return value_lines


def alone(title: str, run: StashRun, lines: Sequence[kit.Line]) -> kit.Case:
    return kit.Case(title, [run.side], list(lines), recipe=RECIPE, alone=True, imports=OPTIMIZERS)


@kit.exercise(
    points=6, objects=("PipeDreamStage",), references=REFERENCES, extra=True, hint=trouble, point=POINT
)
def pipedream_stage(draw: kit.Draw) -> Iterator[kit.Case]:
    run = drawn(draw, "middle", "middle", row(4, 1, 7))
    yield alone("middle", run, lines(run, "stage 1 of 4", 2))
    run = drawn(draw, "first", "first", row(4, 0, 10), width=24, memory=True)
    first_lines = [*lines(run, "stage 0 of 4, tokens", 1), held_line(run, "versions held", 1.5)]
    yield alone("first", run, first_lines)
    run = drawn(draw, "last", "last", row(3, 2, 4))
    yield alone("last", run, lines(run, "stage 2 of 3, with the loss", 1))
    if draw.hidden:
        run = drawn(draw, "adam", "middle", row(5, 1, 9), optimizer=ADAM)
        yield alone("adam", run, lines(run, "stage 1 of 5, Adam", 1))
        turned = [("F", 0), ("F", 1), ("F", 2), ("B", 1), ("F", 3), ("B", 3), ("B", 0), ("B", 2)]
        run = drawn(draw, "turned", "middle", turned)
        yield alone("turned", run, lines(run, "backwards in another order", 1))
