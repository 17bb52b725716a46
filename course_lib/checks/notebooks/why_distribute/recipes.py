"""recipe_bytes: bytes a parameter of weights, gradients, master copy and moments, recipe by recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.why_distribute.references import REFERENCES
from course_lib.facts import RECIPES, recipe_bytes

PARTS = ("weights", "gradients", "master copy", "moments")
WEIGHTS, GRADIENTS, MASTER, MOMENTS = range(4)
CLOSE = 5e-4  # relative: a scale for 128 x 128 weights may be left out, one for 256 moments may not
STAY = "Under autocast parameters stay float32, and so do their gradients. Print `model.weight.dtype`."
OWN_MASTER = "The weights are float32, so they are their own master."
FP8_SCALE = "A scale serves a whole block of 128 x 128 weights, so it adds 4 / 16,384 bytes to each."
ADAM = "Adam keeps two moments, m and v."
FORGOTTEN = "The float32 master copy of the weights is missing. The optimizer changes it, so add 4 bytes."
SLIPS: dict[str, Mapping[tuple[int, float], str]] = {
    "float32": {(MASTER, 4): OWN_MASTER, (MOMENTS, 4): ADAM},
    "autocast": {
        (WEIGHTS, 2): STAY,
        (
            WEIGHTS,
            6,
        ): "The 16-bit copies that autocast makes are gone after the step, so count the parameters.",
        (GRADIENTS, 2): STAY,
        (MASTER, 4): OWN_MASTER,
        (MOMENTS, 4): "The moments have the parameters' dtype, float32.",
    },
    "zero": {
        (MASTER, 0): FORGOTTEN,
        (GRADIENTS, 4): "Here backward leaves the gradients in 16 bits.",
        (GRADIENTS, 6): "Only megatron fp16 keeps a float32 copy of the gradients next to backward's own.",
        (MOMENTS, 4): "The optimizer has the float32 copy, so both moments are float32.",
    },
    "megatron bf16": {
        (MASTER, 0): FORGOTTEN,
        (
            GRADIENTS,
            2,
        ): "main_grad is a float32 buffer. Gradients are added there, then the bf16 gradients are freed.",
        (GRADIENTS, 6): "The gradients in bf16 are freed as they are added to main_grad.",
    },
    "megatron fp16": {
        (MASTER, 0): FORGOTTEN,
        (GRADIENTS, 2): "The step also has a float32 copy of the gradients, so count 2 + 4.",
        (GRADIENTS, 4): "The gradients in fp16 stay while the float32 copy exists, so count 2 + 4.",
    },
    "pure bf16": {
        (
            MASTER,
            4,
        ): "There is no master copy, since the optimizer changes the bf16 weights. Notebook 09 says what "
        "that costs.",
        (
            MASTER,
            2,
        ): "There is no master copy, since the optimizer changes the bf16 weights. Notebook 09 says what "
        "that costs.",
        (MOMENTS, 8): "torch.optim's moments have the parameters' dtype, bf16.",
    },
    "deepseek-v3": {
        (WEIGHTS, 2): "The linears' working copy is fp8, 1 byte, and also has a scale per block.",
        (WEIGHTS, 1 + 4 / 128): FP8_SCALE,
        (WEIGHTS, 1 + 4 / 256): FP8_SCALE,
        (
            WEIGHTS,
            4,
        ): "The float32 weights are the master copy, but the linears' working copy is fp8, 1 byte.",
        (MOMENTS, 8): "Both moments are bf16, so count 2 + 2.",
        (GRADIENTS, 2): "main_grad is float32.",
        (MASTER, 0): FORGOTTEN,
    },
    "adam 8 bits": {
        (MOMENTS, 2): "Each moment also has scales, 4 bytes per block of 256 numbers.",
        (MOMENTS, 2 + 4 / 256): "Both moments have scales, so add 4 bytes per block for each.",
        (MOMENTS, 2 + 2 / 256): "A scale is a float32, so add 4 bytes per block for each moment.",
        (MOMENTS, 8): "Both moments are in uint8, so count one byte each, and the scales.",
        (MASTER, 0): FORGOTTEN,
        (GRADIENTS, 4): "Backward leaves the gradients in bf16, the dtype of the model's weights.",
        (GRADIENTS, 6): "The step reads the gradients in bf16, and no float32 copy stays next to them.",
    },
    "sgd": {
        (MASTER, 4): OWN_MASTER,
        (MOMENTS, 8): "SGD keeps one buffer, the momentum, and no second moment.",
        (MOMENTS, 0): "SGD with momentum keeps one buffer of the weights' size.",
    },
}


OTHERWISE = (  # for each part
    "Ask for the dtype in which the model itself holds its weights after the step, and for their scales.",
    "Ask for the dtype in which backward leaves the gradients, and for a copy that stays next to them.",
    "If the optimizer changes other weights than the model's own, the master copy takes 4 bytes, otherwise "
    "0.",
    "Adam keeps two moments and SGD one, so ask for the dtype of each, and for scales.",
)


def judge(name: str, index: int) -> Callable[[kit.Observed], kit.Finding]:
    right = recipe_bytes(name)

    def judge_answer(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index)
        if answer.error is not None:
            error, text, where = answer.error
            if error == "NotImplementedError":
                return kit.unwritten("recipe_bytes", where)
            said = f"recipe_bytes({name!r}) raised {kit.error_in_full(error, text)}"
            return kit.wrong(
                kit.Sentence(said, f"recipe_bytes raised {kit.error_kind(error)}."), kit.at(where)
            )
        listed = answer.value["tensor"] if is_tensor(answer.value) else answer.value
        parts = listed if isinstance(listed, list) else []
        numbers = [kit.numeric(part) for part in parts]
        if len(numbers) != 4 or None in numbers:
            return kit.wrong(
                f"recipe_bytes({name!r}) is not a tuple of four numbers.",
                "Return (weights, gradients, master, moments), in bytes per parameter.",
                cause="four numbers",
            )
        return compared(name, [number for number in numbers if number is not None], right)

    return judge_answer


def compared(name: str, numbers: list[float], right: tuple[float, ...]) -> kit.Finding:
    """The first part that is wrong, and the usual cause."""
    for part, number in enumerate(numbers):
        if kit.equal(number, right[part], CLOSE):
            continue
        slips = SLIPS[name].items()
        cause = next(
            (says for (at_part, value), says in slips if at_part == part and kit.equal(number, value)), ""
        )
        said = f"{name}: the {PARTS[part]} {'does' if part == MASTER else 'do'} not have"
        sentence = kit.Sentence(
            f"{said} {words.number(number)} {'byte' if number == 1 else 'bytes'} per parameter.",
            f"{said} that many bytes per parameter.",
        )
        return kit.wrong(sentence, cause or OTHERWISE[part], cause=cause or f"{name} {part}")
    return kit.RIGHT


def is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("tensor"), list)


@kit.exercise(points=6, objects=("recipe_bytes",), references=REFERENCES)
def recipes(draw: kit.Draw) -> Iterator[kit.Case]:
    """Nothing is drawn: each recipe's four numbers, asked in another order each time."""
    order = [RECIPES[int(k)].name for k in draw.distinct(len(RECIPES), low=0, high=len(RECIPES))]
    lines = [kit.Line(each.name, judge(each.name, order.index(each.name))) for each in RECIPES]
    calls = [[0, [name]] for name in order]
    yield kit.Case("recipes", [kit.evaluating(calls)], lines, recipe=kit.EVALUATE, alone=True)
