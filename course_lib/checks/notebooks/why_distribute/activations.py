"""activation_bytes: the bytes that the blocks keep for backward, from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES

Kept = Callable[..., float]
TWO_MATRICES = (
    "Without flash attention, only one b a s^2 matrix is kept, the softmax, which its gradient and the "
    "product with the values share."
)
SOFTMAX_IN_32 = "The softmax's numbers have itemsize bytes too, but your formula always counts 4 for them."
STATISTICS_IN_32 = "A norm's statistics have itemsize bytes here, but your formula always counts 4 for them."
ALWAYS_4 = "A number has itemsize bytes, 2 unless a call says otherwise, but your formula counts 4."
# A right answer which one of these would not give speaks against it.
OVERALL = (TWO_MATRICES, SOFTMAX_IN_32, STATISTICS_IN_32, ALWAYS_4)
EXACT, ROWS = 1e-6, 4e-3  # relative: the few numbers a token, beside its rows, are less than this
FLOAT = 4  # bytes of a number that attention keeps for each query


def kept(
    *,
    rows: float = 8,
    inner: float = 2,
    statistics: int = 4,
    lse: int | None = FLOAT,
    matrices: float = 1,
    always_scores: bool = False,
    lse_always: bool = False,
    layers: bool = True,
    item: int | None = None,
    softmax: int | None = None,
    statistics_item: int | None = None,
    masks: bool = False,
    checkpoint: Callable[[float, float], float] | None = None,
    head: bool = False,
) -> Kept:
    """Bytes by a count with a mistake.

    rows: numbers of a token as wide as the model; inner: of the MLP's width; statistics: numbers of the two
    norms; lse: bytes for each query and head, None: in itemsize; matrices: of scores; item: bytes of a
    number in spite of itemsize; softmax, statistics_item: of these numbers alone; checkpoint: the bytes that
    a layer keeps then, of (its input, all).
    """

    def nbytes(
        config: kit.Model, batch: int, seq: int, itemsize: int = 2, flash: bool = True,
        checkpoint: bool = False,
    ) -> float:  # fmt: skip
        size = itemsize if item is None else item
        tokens = batch * seq
        of_token = rows * config.width + inner * config.mlp_width
        layer = tokens * (of_token * size + statistics * (statistics_item or size))
        queries = tokens * config.heads
        if flash or lse_always:
            layer += queries * (size if lse is None else lse)
        if not flash or always_scores:
            layer += matrices * queries * seq * (softmax or size)
        if masks:
            layer += 2 * tokens * config.width
        if checkpoint:
            layer = again(tokens * config.width * size, layer)
        total = layer * (config.layers if layers else 1)
        return total + (tokens * config.vocab_size * size if head else 0)

    again = checkpoint or (lambda of_input, everything: of_input)
    return nbytes


def paper(
    config: kit.Model, batch: int, seq: int, itemsize: int = 2, flash: bool = True, checkpoint: bool = False
) -> float:  # fmt: skip
    """Korthikanti et al.'s formulas."""
    recompute = "full" if checkpoint else "selective" if flash else None
    layer = facts.korthikanti_activations(batch * seq, seq, config.width, config.heads, recompute=recompute)
    return config.layers * layer


def exchanged(
    config: kit.Model, batch: int, seq: int, itemsize: int = 2, flash: bool = True, checkpoint: bool = False
) -> float:  # fmt: skip
    """flash=True counts what is kept without the flash kernel, and the other way round."""
    return facts.activation_bytes(config, batch, seq, itemsize, flash=not flash, checkpoint=checkpoint)


def with_softmax(
    config: kit.Model, batch: int, seq: int, itemsize: int = 2, flash: bool = True, checkpoint: bool = False
) -> float:  # fmt: skip
    """With checkpoint=True and flash=False, the softmax next to the inputs."""
    nbytes = facts.activation_bytes(config, batch, seq, itemsize, flash=flash, checkpoint=checkpoint)
    scores = config.layers * batch * config.heads * seq * seq * itemsize
    return nbytes + (scores if checkpoint and not flash else 0)


def with_one_block(
    config: kit.Model, batch: int, seq: int, itemsize: int = 2, flash: bool = True, checkpoint: bool = False
) -> float:  # fmt: skip
    """With checkpoint=True, also everything that one block keeps while it runs again."""
    inputs = facts.activation_bytes(config, batch, seq, itemsize, flash=flash, checkpoint=checkpoint)
    whole = facts.activation_bytes(config, batch, seq, itemsize, flash=flash)
    return inputs + whole / config.layers if checkpoint else inputs


SLIPS: dict[str, Kept] = {
    "Your counts are the paper's coefficients, 34 and 5as/h bytes, with the masks of dropout and attention's "
    "dropped weights. Without dropout there are 16 numbers per row and one matrix of scores.": paper,
    "The flash kernel also keeps one number per query and head, the logarithm of its sum.": (kept(lse=0)),
    "The flash kernel's number per query and head is a float32, 4 bytes, whatever the rest is.": (
        kept(lse=None)
    ),
    "A LayerNorm also keeps two numbers per token, the mean and one over the deviation.": (
        kept(statistics=0)
    ),
    "The few numbers per token are missing, two for each norm and one for each query and head.": (
        kept(statistics=0, lse=0)
    ),
    TWO_MATRICES: kept(matrices=2),
    SOFTMAX_IN_32: kept(softmax=FLOAT),
    "Without flash the softmax is kept, with b a s^2 numbers per layer.": kept(matrices=0),
    "The flash kernel keeps no matrix of scores, since that is its purpose.": kept(always_scores=True),
    "Without flash there is no logarithm of a sum, because the softmax is kept instead.": (
        kept(lse_always=True)
    ),
    "A checkpointed block keeps only its input, so count L T h numbers.": (
        kept(checkpoint=lambda of_input, everything: everything)
    ),
    "A checkpointed block keeps its input *instead* of the rest.": (
        kept(checkpoint=lambda of_input, everything: of_input + everything)
    ),
    "You count one layer, but the question asks for all blocks.": kept(layers=False),
    "The MLP keeps its inner features twice: before GELU, for its derivative, and after it, for the second "
    "matrix.": kept(inner=1),
    "The MLP's inner width is not always 4h, so use `mlp_width`.": kept(rows=16, inner=0),
    "Attention also keeps its output, because the output projection's gradient needs it.": kept(rows=7),
    "Attention keeps queries, keys, values and its output.": kept(rows=5),
    "The inputs of the two norms are also kept.": kept(rows=6),
    "The logits belong to the head, not to the blocks.": kept(head=True),
    "A number has itemsize bytes, but your formula always counts 2.": kept(item=2),
    "A number has itemsize bytes, but your formula counts numbers.": kept(item=1),
    ALWAYS_4: kept(item=4),
    STATISTICS_IN_32: kept(statistics_item=FLOAT),
    "Your count has nine tensors as wide as the model, but there are eight. The block's input is also the "
    "input of its first norm, so count it once.": kept(rows=9),
    "The MLP's inner width is not always 4h, so use `mlp_width`. And the few numbers per token are missing, "
    "two for each norm and one for each query and head.": kept(rows=16, inner=0, statistics=0, lse=0),
    "With flash=True no matrix of scores is kept, but a logarithm for each query and head.": (
        kept(always_scores=True, lse=0)
    ),
    "Your formula takes `flash` the wrong way round. With flash=True a logarithm is kept for each query and "
    "head, and with flash=False the softmax.": exchanged,
    "A checkpointed block keeps its input and nothing else, so no softmax either.": with_softmax,
    "The block that runs again in backward does not count here. Each block keeps only its input.": (
        with_one_block
    ),
}


def drawn(draw: kit.Draw) -> kit.Model:
    heads = draw.integer(3, 9)
    return kit.Model(
        context=4096, layers=draw.integer(2, 9), heads=heads, width=8 * heads * draw.integer(2, 5),
        hidden=40 * draw.integer(3, 20) + 1,
    )  # fmt: skip


@kit.exercise(points=6, objects=("activation_bytes",), references=REFERENCES)
def activation_bytes(draw: kit.Draw) -> Iterator[kit.Case]:
    """GPT-2's parts: LayerNorm, GELU, as many key heads as heads; the MLP may have a width of its own."""
    small, large = kit.published("GPT-2 small"), kit.published("GPT-3")
    own, other = drawn(draw), drawn(draw)
    hidden = 4096 * draw.choice((2, 3, 5)) - 64  # nowhere near 4 widths
    wide = kit.Model(context=4096, layers=own.layers, heads=8, width=4096, hidden=hidden)
    batch, seq = draw.integer(2, 9), 16 * draw.integer(3, 30)
    math, again = kit.Keywords(flash=False), kit.Keywords(checkpoint=True)

    def line(title: str, *arguments: tuple, weight: float = 1.0, tolerance: float = EXACT) -> kit.Prediction:
        return kit.Prediction(
            "activation_bytes", 0, arguments, facts.activation_bytes, SLIPS, weight, title,
            otherwise="Print SavedBytes(model).by_module for one block, and divide each entry by b s h. "
            "The rest over whole numbers are the few numbers per token.", tolerance=tolerance,
            overall=OVERALL,
        )  # fmt: skip

    yield from kit.evaluated(
        [
            line("16 bits: the rows", (large, 1, 2048), (wide, batch, seq), weight=2, tolerance=ROWS),
            line("float32: the rows", (large, 1, 2048, 4), (wide, batch, seq, 4), tolerance=ROWS),
            line(
                "without flash: the matrices",
                (large, 1, 2048, 2, math), (wide, batch, seq, 4, math), tolerance=ROWS,
            ),
            line(
                "to the byte",
                (small, 1, 1024), (large, 1, 2048), (own, batch, seq), (other, 1, seq), (own, batch, seq, 4),
            ),
            line(
                "to the byte, without flash",
                (small, 1, 1024, 2, math), (own, batch, seq, 2, math), (other, 1, seq, 4, math), weight=0.5,
            ),
            line(
                "checkpointed",
                (large, 1, 2048, 2, again), (own, batch, seq, 4, again), (other, 3, seq, 2, again),
                (own, batch, seq, 2, kit.Keywords(**math, **again)),
            ),
        ]
    )  # fmt: skip
