"""step_flops: the FLOPs of a step, with the parts that 6 N D leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES

Count = Callable[..., float]


def counted(
    *,
    each: int = 2,
    directions: float = 2,
    head_matrices: int = 1,
    scores: Callable[[int, bool], float] | None = None,
    score_heads: Callable[[kit.Model], int] | None = None,
    beside: Callable[[kit.Model], float] | None = None,
    again: Callable[[float, float], float] | None = None,
) -> Count:
    """FLOPs by a count with a mistake.

    each: operations of a matrix element and token; directions: how many forwards a backward costs;
    head_matrices: of the head's size; scores: of a sequence, (seq, causal); score_heads: heads that have
    them; beside: matrix elements that a token is not multiplied by; again: the cost of a recomputation, of
    (the blocks' forward, the head's).
    """

    def flops(
        config: kit.Model, batch: int, seq: int, backward: bool = True, causal: bool = False,
        recompute: bool = False,
    ) -> float:  # fmt: skip
        of_head = config.vocab_size * config.width
        elements = facts.matmul_parameters(config) - of_head + (beside(config) if beside else 0)
        kept = seq * (seq + 1) / 2 if causal else seq * seq
        number = scores(seq, causal) if scores else kept
        scored = score_heads(config) if score_heads else config.heads
        attention = 2 * each * batch * number * scored * config.head_dim * config.layers
        blocks = each * batch * seq * elements + attention
        ends = each * batch * seq * of_head * head_matrices
        total = (blocks + ends) * (1 + directions * backward)
        if recompute and backward:
            total += blocks if again is None else again(blocks, ends)
        return total

    return flops


def rule(config: kit.Model, batch: int, seq: int, backward: bool = True, **_: bool) -> float:
    """6 N D, with N as `matmul_parameters`, and 2 N D of a forward."""
    return (6 if backward else 2) * batch * seq * facts.matmul_parameters(config)


def rule_alone(config: kit.Model, batch: int, seq: int, **_: bool) -> float:
    return 6 * batch * seq * facts.matmul_parameters(config)


def rule_of_all(config: kit.Model, batch: int, seq: int, backward: bool = True, **_: bool) -> float:
    return (6 if backward else 2) * batch * seq * facts.transformer_parameters(config)


def biases(config: kit.Model) -> int:
    """The biases of the blocks' linear layers."""
    without = facts.parameters_by_part(replace(config, bias=False))
    parts = facts.parameters_by_part(config)
    return sum(parts[part] - without[part] for part in ("attention", "mlp"))


def attention_biases(config: kit.Model) -> int:
    queries, keys = config.heads * config.head_dim, config.key_value_heads * config.head_dim
    return config.bias * config.layers * (queries + 2 * keys + config.width)


def matrices_again(
    config: kit.Model, batch: int, seq: int, backward: bool = True, causal: bool = False,
    recompute: bool = False,
) -> float:  # fmt: skip
    """The blocks run again without their scores."""
    total = counted()(config, batch, seq, backward, causal)
    matrices = facts.matmul_parameters(config) - config.vocab_size * config.width
    return total + (2 * batch * seq * matrices if recompute and backward else 0)


def always_backward(
    config: kit.Model, batch: int, seq: int, backward: bool = True, causal: bool = False,
    recompute: bool = False,
) -> float:  # fmt: skip
    return counted()(config, batch, seq, True, causal, recompute)


RULE = (
    "6 N D is the rule of thumb, but attention's 12 L s h T are missing, 3 to 17 % of the step for the "
    "models you know."
)
SLIPS: dict[str, Count] = {
    RULE: counted(scores=lambda s, causal: 0),
    f"{RULE} A forward and a recomputation have their own.": rule,
    f"{RULE} A forward is a third of it.": rule_alone,
    f"{RULE} N also includes the embedding, in which a token is only looked up.": rule_of_all,
    "Your count is half, because a multiplication and an addition are two FLOPs.": counted(each=1),
    "Backward computes two products for each product of forward, one for the gradient of each factor, so "
    "there are three in all.": counted(directions=1),
    "The head is missing, a product with V h numbers per token, 27 % of GPT-2 small at 1,024 tokens. A "
    "tied head has no parameters of its own, but it multiplies.": (counted(head_matrices=0)),
    "The head does not run again, because checkpoints end before the head.": (
        counted(again=lambda blocks, ends: blocks + ends)
    ),
    "recompute=True runs the blocks' forward once more.": counted(again=lambda blocks, ends: 0),
    "recompute=True adds one forward of the blocks, but your function runs the whole step twice.": (
        counted(again=lambda blocks, ends: 3 * (blocks + ends))
    ),
    "recompute=True adds one forward of the blocks. Add it after backward has tripled the rest.": (
        counted(again=lambda blocks, ends: 3 * blocks)
    ),
    "When the blocks run again, so do attention's two products.": matrices_again,
    "backward=False asks only for the forward, but your function always adds backward.": always_backward,
    "Recomputation is one more forward, not a full step.": (counted(again=lambda blocks, ends: 2 * blocks)),
    "The head counts once. The embedding has a table of its size, but a look-up multiplies nothing.": (
        counted(head_matrices=2)
    ),
    "A look-up multiplies nothing, so the embedding is not a product.": (
        counted(beside=lambda c: c.vocab_size * c.width)
    ),
    "A look-up multiplies nothing, so neither embedding nor positions are products.": (
        counted(beside=lambda c: facts.parameters_by_part(c)["embedding"])
    ),
    "Only products of matrices count, but biases and norms are added and scaled.": counted(
        beside=lambda c: (
            facts.transformer_parameters(c)
            - facts.parameters_by_part(c)["embedding"]
            - (facts.matmul_parameters(c) - (c.vocab_size * c.width if c.tied else 0))
        )
    ),
    "Only products of matrices count, but biases are added. `bias=False` leaves them out of your first "
    "count.": (counted(beside=biases)),
    "Only products of matrices count, but the biases of the attention are added.": counted(
        beside=lambda c: attention_biases(c)
    ),
    "Grouped queries save bytes, not scores, because every query head has its own.": (
        counted(score_heads=lambda c: c.key_value_heads)
    ),
    "A token also sees itself, so the diagonal counts, s (s+1)/2 in all.": (
        counted(scores=lambda s, causal: s * s / 2 if causal else s * s)
    ),
    "The diagonal counts, but nothing above it, so take s (s+1)/2.": (
        counted(scores=lambda s, causal: s * (s - 1) / 2 if causal else s * s)
    ),
    "With causal=True only the scores that are not masked count.": (counted(scores=lambda s, causal: s * s)),
    "Without causal=True, masked scores also count, as in the published numbers.": (
        counted(scores=lambda s, causal: s * (s + 1) / 2)
    ),
    "Attention has two products, of queries with keys and of the weights with values.": (
        counted(scores=lambda s, causal: (s * (s + 1) / 2 if causal else s * s) / 2)
    ),
}


EXACT, ROUGH = 1e-6, 1e-3  # relative: of a model whose head has a few rows, the head itself is less


@kit.exercise(points=8, objects=("step_flops",), references=REFERENCES)
def step_flops(draw: kit.Draw) -> Iterator[kit.Case]:
    """The blocks of a plain model, whose head is next to nothing, and whole models: published and drawn.

    A mistake in the head, in biases or in grouped queries costs the second alone.
    """
    batch, seq = draw.integer(2, 9), 64 * draw.integer(3, 30) + 1
    heads = 4 * draw.integer(2, 5)
    plain = kit.Model(
        vocab_size=2, context=4096, layers=draw.integer(3, 9), heads=heads, width=64 * heads, bias=False,
    )  # fmt: skip
    own = kit.Model(
        vocab_size=1000 * draw.integer(1, 9) + 3, context=4096, layers=draw.integer(2, 9),
        heads=heads, width=16 * heads, kv_heads=heads // 4, hidden=40 * draw.integer(5, 30) + 1,
        mlp="swiglu", tied=False,
    )  # fmt: skip
    small, large, llama = map(kit.published, ("GPT-2 small", "GPT-3", "Llama-3-8B"))
    forward, masked, again = (
        kit.Keywords(backward=False), kit.Keywords(causal=True), kit.Keywords(recompute=True),
    )  # fmt: skip

    def line(title: str, *arguments: tuple, weight: float = 1.0, tolerance: float = EXACT) -> kit.Prediction:
        return kit.Prediction(
            "step_flops", 0, arguments, facts.transformer_flops, SLIPS, weight, title,
            otherwise="Forward takes 2 for each element of each matrix and token, including the head, and "
            "4 b s^2 h per layer for attention. Backward takes twice that. If your function calls "
            "`parameters`, correct that first.", tolerance=tolerance,
        )  # fmt: skip

    yield from kit.evaluated(
        [
            line(
                "blocks: forward",
                (plain, 1, 1024, forward), (plain, batch, 2 * seq, forward), tolerance=ROUGH,
            ),
            line("blocks: forward and backward", (plain, 1, 1024), (plain, batch, 2 * seq), tolerance=ROUGH),
            line(
                "blocks: masked scores skipped",
                (plain, 1, 1023, masked), (plain, batch, seq, kit.Keywords(**masked, **forward)),
                tolerance=ROUGH,
            ),
            line("blocks: run again", (plain, 1, 1024, again), (plain, batch, seq, again), tolerance=ROUGH),
            line(
                "models: forward",
                (small, 1, 1024, forward), (llama, 1, 8192, forward), (own, batch, seq, forward),
            ),
            line(
                "models: forward and backward",
                (small, 1, 1024), (large, 2, 2048), (llama, 1, 8192), (own, batch, seq), (own, 1, 1),
            ),
            line(
                "models: masked scores skipped",
                (large, 1, 2048, masked), (own, batch, seq, masked),
                (own, batch, seq, kit.Keywords(**masked, **forward)),
            ),
            line(
                "models: blocks run again",
                (small, 4, 1024, again), (large, 1, 2048, again), (own, batch, seq, again),
            ),
        ]
    )  # fmt: skip
