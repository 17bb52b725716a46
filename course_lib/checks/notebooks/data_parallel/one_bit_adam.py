"""Signs with a scale, and 1-bit Adam on top of them: extra credit.

Both are defined to the last bit but for rounding, so they are computed here as well. Inputs are drawn anew
until no element lies so near to zero that rounding could turn its sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from course_lib import facts
from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.data_parallel.signs import (
    TOLERANCE,
    Adam,
    Signs,
    expected_parameters,
    places,
    shard_size,
    sign_slips,
)
from course_lib.checks.rank.notebooks.data_parallel.averaging import OptimizerInstructions

REFERENCE = ("course_lib.compression",)
RECIPE = "course_lib.checks.rank.notebooks.data_parallel.averaging:averaging_optimizer"
WARMUP, STEPS = 2, 5
COMPRESSED = (2 * WARMUP, 2 * STEPS)  # places in "begun" between which the steps after the warm-up lie
FULL = 0.9  # of the bytes of a float32 for each element: from there on nothing was compressed


# ---- signs


def draw_signs(draw: kit.Draw, n: int, numel: int) -> Signs:
    while True:
        arguments = Signs(
            draw.normal(n, numel).double() + 0.3,
            0.3 * draw.normal(n, numel).double(),
            0.3 * draw.normal(n, shard_size(n, numel)).double() * places(n, numel),
        )
        if arguments.margin > 10 * TOLERANCE:
            return arguments


def compared(
    on: kit.Setting, arguments: Signs, names: tuple[str, ...]
) -> Callable[[kit.Observed], kit.Finding]:
    """The tensors `names` are on every rank those that the algorithm gives, to rounding."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for place, rank in enumerate(on.ranks):
            for name in names:
                actual = observed.tensors[rank][name].to(torch.float64).flatten()
                right = arguments.close(actual, arguments.right(name, place))
                off = (~right).nonzero().flatten().tolist()
                if off:
                    said = f"on rank {rank}, `{name}` is wrong in {words.which('element', off)}."
                    return kit.wrong(said, cause(name, place, actual))
        return kit.RIGHT

    def cause(name: str, place: int, actual: torch.Tensor) -> str:
        for says, value in sign_slips(arguments, name, place).items():
            if bool(arguments.close(actual, value).all()):
                return says
        return GENERAL[name]

    return judge


GENERAL = {
    "tensor": (
        "Rank r gets all ranks' signs of shard r, each with its sender's scale, averages, adds its "
        "server_error, then sends signs and a scale of the result to all. A scale is the mean of |x| over "
        "the shard's elements, padding not counted."
    ),
    "error": "error = tensor + error, less the values of this rank's signs and scales.",
    "server_error": (
        "server_error = the mean of the arrived values + server_error, less the values of this rank's "
        "signs and scale. In the padding it stays 0."
    ),
}


def sign_case(draw: kit.Draw, on: kit.Setting) -> kit.Case:
    count, numel = len(on.ranks), torch.Size(on.shape).numel()
    arguments = draw_signs(draw, count, numel)
    names = ("tensor", "error", "server_error")
    sides = [
        kit.side(
            {
                "tensor": arguments.tensor[place].float().view(on.shape),
                "error": arguments.error[place].float().view(on.shape),
                "server_error": arguments.server[place].float(),
            },
            returned=names,
            group=on.group,
        )
        for place in range(count)
    ]
    title = on.title or f"{words.counted(count, 'rank')}, {words.counted(numel, 'element')}"
    alike = kit.same_bits("tensor", on.ranks)
    value, kept = compared(on, arguments, names[:1]), compared(on, arguments, names[1:])
    if on.short:
        case_lines = [
            kit.Line(title, kit.both(value, kept, alike), on.weight, trivial=count == 1, short=True)
        ]
    else:
        exact = [float(facts.sign_bytes(count, [numel]))] * count
        case_lines = [
            kit.Line(f"the mean by signs: {title}", kit.both(value, alike), 2),
            kit.Line("the signs' errors are kept, twice", kept, 1.5),
            training_runs.volume_line(
                exact,
                hint=lambda ratio, observed: sign_hint(count, numel, ratio),
                weight=1.5,
                title="bytes: a bit an element",
                point=FULL * 32 * shard_size(count, numel) / (shard_size(count, numel) + 32),
            ),
        ]
    return on.of_lines(title, sides, case_lines)


def sign_hint(n: int, numel: int, ratio: float) -> str:
    shard = shard_size(n, numel)
    if abs(ratio - (shard + 4) / (shard / 8 + 4)) < 0.02:
        return "A sign took a byte, so pack eight of them into one."
    if ratio > FULL * 32 * shard / (shard + 32):
        return "The message was as long as the elements themselves, but a bit is enough for a sign."
    return (
        "(N-1) (s/8 + 4) bytes go to the servers and as many back, s/8 bytes of signs and a float32 scale "
        "each."
    )


# ---- the optimizer


def training_of(draw: kit.Draw, n: int, warmup: int = WARMUP) -> Training:
    while True:
        width, first = 5, draw.integer(1, 1 << 30)
        described = {"name": "plain", "seed": draw.integer(1, 1 << 30), "width": width}
        steps = [
            [[{"seed": first + 100 * rank + s, "samples": 3, "width": width}] for s in range(STEPS)]
            for rank in range(n)
        ]
        adam = {"lr": 0.01 * draw.integer(1, 4), "betas": [0.8, 0.95], "warmup_steps": warmup}
        made = Training(described, ("Adam", {}), steps, ("params",), {"kwargs": adam, "object": 1})
        if expected_parameters(made, Adam())[1] > 1e-4:
            return made


def stepped(training: Training, steps: range) -> Callable[[kit.Observed], kit.Finding]:
    """After each of `steps` every rank has the parameters that the algorithm gives."""

    def judge(observed: kit.Observed) -> kit.Finding:
        everything = expected_parameters(training, Adam())[0]
        for step in steps:
            expected = training_runs.kind(f"param.{step}", everything)
            for k, rank in enumerate(training_runs.members(observed)):
                actual = {name: observed.tensors[rank][name] for name in expected}
                if off := far(actual, expected):
                    said = training_runs.first(off[0], actual, expected, rank, observed)
                    return kit.wrong(said, cause(step, k, actual))
        return kit.RIGHT

    def cause(step: int, rank: int, actual: dict[str, torch.Tensor]) -> str:
        for slip in Adam.slips(training.world_size, rank):
            values = expected_parameters(training, slip.gives())[0]
            if not far(actual, training_runs.kind(f"param.{step}", values)):
                return slip.says
        if step < training.more["kwargs"]["warmup_steps"]:
            return "The warm-up is Adam, bias correction included, on the mean of the ranks' gradients."
        return (
            "After the warm-up, the variance and its bias correction stay as they are. Each rank adds its "
            "own gradient to the momentum, then sign_all_reduce averages the momentum."
        )

    return judge


def far(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Names of parameters that differ by more than a float32 scale explains."""
    return [
        name
        for name, wanted in expected.items()
        if not bool(((actual[name] - wanted).abs() <= 1e-6 * float(wanted.abs().max())).all())
    ]


def adam_sides(training: Training, group: int | None = None) -> list[kit.RankSide]:
    """One model on all ranks: the optimizer does not broadcast."""
    outputs = training_runs.outputs(training)
    return [
        kit.RankSide(
            {}, training.instructions(k, OptimizerInstructions, model=training.model, group=group), outputs
        )
        for k in range(training.world_size)
    ]


def adam_in_a_group(draw: kit.Draw) -> kit.Case:
    """Ranks 0 and 2 of three train, and are passed as group=; the warm-up has another length."""
    training = training_of(draw, 2, warmup=draw.choice([1, 3]))
    first, last = adam_sides(training, group=0)
    title = "OneBitAdam, sub-group {0, 2}"
    line = kit.Line(title, stepped(training, range(STEPS)), 0.5, short=True)
    sides = [first, kit.absent(), last]
    return kit.Case(title, sides, [line], recipe=RECIPE, groups=[[0, 2]], imports=training_runs.OPTIMIZERS)


def adam_case(draw: kit.Draw, n: int) -> kit.Case:
    training = training_of(draw, n)
    sizes = [p.numel() for p in training.built().parameters()]
    exact = [float((STEPS - WARMUP) * facts.sign_bytes(n, sizes))] * n
    case_lines = [
        kit.Line(f"OneBitAdam, {n} ranks: warm-up", stepped(training, range(WARMUP)), 1.5),
        kit.Line("OneBitAdam: after the warm-up", stepped(training, range(WARMUP, STEPS)), 3),
        training_runs.volume_line(
            exact,
            hint=step_hint,
            weight=1.5,
            title="bytes of the steps after the warm-up",
            between=COMPRESSED,
            point=5,
        ),
    ]
    return kit.Case(
        "OneBitAdam", adam_sides(training), case_lines, recipe=RECIPE, imports=training_runs.OPTIMIZERS
    )


def step_hint(ratio: float, observed: kit.Observed) -> str:
    sent = training_runs.within(observed, COMPRESSED)[0]
    if ratio < 5 and any(operation.dtype == "float64" for operation in sent):
        return (
            "Something in float64 travelled. The gradients here are float64, but a scale is sent as "
            "float32, so use scale.float()."
        )
    if ratio > 5:
        return "After the warm-up nothing travels in full precision, not even the gradients."
    return "Call sign_all_reduce once per parameter in a step."


def adam_trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause when a run breaks off, where a collective refused the kind of a tensor."""
    if "Invalid scalar type" in text:
        return (
            "gloo cannot send tensors of that dtype, so signs travel as bytes, torch.uint8, and a scale as "
            "torch.float32."
        )
    if "different dtypes" in text or "invalid tensor type" in text:
        return TWO_KINDS_ADAM if "OneBitAdam" in case.title else TWO_KINDS
    return ""


TWO_KINDS = (
    "The two tensors of a collective have one dtype. Make the received tensor like the sent tensor: "
    "torch.empty_like(scales), or dtype=scales.dtype."
)
TWO_KINDS_ADAM = (
    "The two tensors of a collective have one dtype. In OneBitAdam the gradients are float64, and so is a "
    "scale computed from them. Send a scale as float32, scale.float(), and also receive it as float32."
)


@kit.exercise(
    points=5, objects=("sign_all_reduce", "OneBitAdam"), references=REFERENCE, extra=True, hint=adam_trouble,
    point="sending a bit in place of a number",
)  # fmt: skip
def one_bit_adam(draw: kit.Draw) -> Iterator[kit.Case]:
    yield sign_case(draw, kit.Setting(3, (10, 11)))
    yield sign_case(draw, kit.Setting(2, (64,), title="2 ranks, no padding", short=True, weight=0.5))
    yield adam_case(draw, 2)
    yield adam_in_a_group(draw)
    if draw.hidden:
        on = kit.Setting(3, (50,), members=(0, 2), title="sub-group {0, 2}", short=True, weight=0.5)
        yield sign_case(draw, on)
        yield sign_case(draw, kit.Setting(1, (20,), title="1 rank", short=True, weight=0.5))
