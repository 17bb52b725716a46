"""parameters: how many numbers a model has, part by part, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES
from course_lib.facts import parameters_by_part

PARTS = ("embedding", "attention", "mlp", "norms", "head")
RULE = "12 L h^2 is the rule of thumb, but the question asks for exact numbers."


def part(name: str) -> kit.Formula:
    return lambda config: parameters_by_part(config)[name]


def picked(name: str) -> Callable[[Any], Any]:
    """The value under `name`; that of the last part not from a dict that has all parts and another number."""
    pick = kit.entry(name)

    def alone(value: Any) -> Any:
        number = pick(value)
        if name != PARTS[-1] or isinstance(number, kit.Misfit):
            return number
        pairs = [pair for pair in value["dict"] if isinstance(pair, list) and len(pair) == 2]
        keys = [key for key, _ in pairs]
        others = [key for key, item in pairs if key not in PARTS and kit.numeric(item) != 0]
        if not others or any(part not in keys for part in PARTS):
            return number
        return kit.Misfit(f"a dict that also has {others[0]!r}, and later cells add up all of its values")

    return alone


def table(c: kit.Model) -> int:
    return c.vocab_size * c.width


def attention(
    c: kit.Model, *, key_heads: int | None = None, biases: bool | None = None, matrices: int = 4
) -> int:
    queries = c.heads * c.head_dim
    keys = (c.key_value_heads if key_heads is None else key_heads) * c.head_dim
    weights = c.width * ((matrices - 2) * queries + 2 * keys)
    biased = c.bias if biases is None else biases
    return c.layers * (weights + biased * (queries + 2 * keys + (matrices == 4) * c.width))


def mlp(
    c: kit.Model, *, matrices: int | None = None, hidden: int | None = None, biases: bool | None = None
) -> int:
    hidden = c.mlp_width if hidden is None else hidden
    matrices = (3 if c.mlp == "swiglu" else 2) if matrices is None else matrices
    biased = c.bias if biases is None else biases
    return c.layers * (matrices * c.width * hidden + biased * ((matrices - 1) * hidden + c.width))


def norms(count: Callable[[int], int], each: Callable[[kit.Model], int] | None = None) -> kit.Formula:
    """count: of norms, from the layers; each: numbers of one, in units of the width."""

    def formula(c: kit.Model) -> int:
        one_norm = parameters_by_part(c)["norms"] // (2 * c.layers + 1)
        return count(c.layers) * (one_norm if each is None else each(c) * c.width)

    return formula


EMBEDDING: dict[str, kit.Formula] = {
    "Rotary positions have no parameters, since angles are computed. Only learned positions have a table.": (
        lambda c: table(c) + c.context * c.width
    ),
    "Learned positions are also a table, with context x width numbers.": table,
    "Your count includes the head, which has an entry of its own.": (
        lambda c: part("embedding")(c) + part("head")(c)
    ),
}
HEAD: dict[str, kit.Formula] = {
    "With tied=True the head is the embedding's matrix, so it counts there, and 0 here.": table,
    "A head that is not tied has a matrix of its own.": lambda c: 0,
}
ATTENTION: dict[str, kit.Formula] = {
    "With bias=True the four projections have biases, 4h per layer in attention if all heads have keys.": (
        lambda c: attention(c, biases=False)
    ),
    "Keys and values have heads of their own. With 8 key heads for 64 queries, keys and values are an "
    "eighth.": lambda c: attention(c, key_heads=c.heads),
    "Your matrices have as many keys as queries, but with 8 key heads for 64 queries, keys and "
    "values are an eighth.": lambda c: c.layers * 4 * c.width**2 + attention(c) - attention(c, biases=False),
    "With bias=False there are none.": lambda c: attention(c, biases=True),
    "The output projection is missing. Count query, key, value and out.": (
        lambda c: attention(c, matrices=3)
    ),
    "You count one layer. Multiply by config.layers.": lambda c: attention(c) // c.layers,
    RULE: lambda c: 4 * c.layers * c.width**2,
}
MLP: dict[str, kit.Formula] = {
    "SwiGLU has three: gate, up, down.": lambda c: mlp(c, matrices=2),
    "The inner width is not always 4h, so use `mlp_width`, 28,672 for Llama-3-70B.": (
        lambda c: mlp(c, hidden=4 * c.width)
    ),
    "With bias=True each matrix has a bias, with as many numbers as outputs.": (
        lambda c: mlp(c, biases=False)
    ),
    "With bias=False there are none.": lambda c: mlp(c, biases=True),
    "SwiGLU's gate and up both have a bias of the inner width, so a layer has 2 f + h.": (
        lambda c: mlp(c, biases=False) + c.layers * c.bias * (c.mlp_width + c.width)
    ),
    "You count one layer. Multiply by config.layers.": lambda c: mlp(c) // c.layers,
    RULE: lambda c: 8 * c.layers * c.width**2,
    "12 L h^2 is the rule of thumb for a whole layer, but the question asks for exact numbers.": (
        lambda c: 12 * c.layers * c.width**2
    ),
}
NORMS: dict[str, kit.Formula] = {
    "There is one more norm than two per layer, before the head, so h (or 2h) are missing.": norms(
        lambda n: 2 * n
    ),
    "A layer has two norms, before attention and before the MLP.": norms(lambda n: n + 1),
    "A layer has two norms, before attention and before the MLP, and there is one more before the head.": (
        norms(lambda n: n)
    ),
    "You count one norm, but there are two in each layer and one before the head.": norms(lambda n: 1),
    "A LayerNorm has a weight and, with bias=True, a bias, whereas an RMSNorm has only a weight.": (
        norms(lambda n: 2 * n + 1, lambda c: 2)
    ),
    "A LayerNorm with bias=True also has a bias, so count 2h.": norms(lambda n: 2 * n + 1, lambda c: 1),
    "Norms also have parameters.": lambda c: 0,
}
SLIPS = {"embedding": EMBEDDING, "attention": ATTENTION, "mlp": MLP, "norms": NORMS, "head": HEAD}


def drawn(draw: kit.Draw, number: int) -> kit.Model:
    """A configuration whose switches the number decides, so that twelve have all values of all switches."""
    heads = 2 * draw.integer(2, 7)
    return kit.Model(
        vocab_size=100 * draw.integer(3, 90) + 57,
        context=32 * draw.integer(2, 40),
        layers=draw.integer(2, 9),
        heads=heads,
        width=heads * 2 * draw.integer(4, 17),
        kv_heads=(None, heads // 2, 1)[number % 3],
        hidden=(None, 12 * draw.integer(9, 60) + 7)[number // 2 % 2],
        mlp=("gelu", "swiglu")[number % 2],
        norm=("layer", "rms")[number // 3 % 2],
        positions=("learned", "rotary")[(number + number // 4) % 2],
        bias=number % 4 < 2,
        tied=(number + number // 3) % 2 == 0,
    )


@kit.exercise(points=6, objects=("parameters",), references=REFERENCES)
def parameters(draw: kit.Draw) -> Iterator[kit.Case]:
    """Six published models, and twelve drawn."""
    names = ("GPT-2 small", "GPT-2 XL", "LLaMA-7B", "Llama-2-70B", "Llama-3-8B", "Llama-3-405B")
    models = [*map(kit.published, names), *(drawn(draw, number) for number in range(12))]
    yield from kit.evaluated(
        [
            kit.Prediction(
                f"the entry '{name}' of parameters", 0, [(model,) for model in models], part(name),
                SLIPS[name], weight=1.5 if name in ("attention", "mlp") else 1.0, title=name,
                otherwise="Print the shape of each parameter of a small GPT, with bias=True and without.",
                pick=picked(name), called="parameters",
            )
            for name in PARTS
        ]
    )  # fmt: skip
