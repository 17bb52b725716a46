"""fsdp_bytes, hides_from, unit_bytes: the bytes of a sharded step, and the tokens that hide a gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from course_lib import facts
from course_lib.checks import kit

FORMULAS = ("course_lib.facts", "course_lib.pictures.fsdp_explorer")
EQUAL_TIMES = "The times are equal if 2 U T / flops = (n-1)/n U itemsize / each_way. U cancels."
WHOLE_TOKENS = 2e-3  # relative: more than rounding up changes
KEEPS = ("gradients", "weights between", "weights")
LLAMA: dict[str, Any] = {"mlp": "swiglu", "norm": "rms", "positions": "rotary", "bias": False, "tied": False}


# ---- bytes of a step


def counted(
    gathers: Callable[[int, bool, str | None], float],
    reductions: Callable[[int, str | None], float],
    share: Callable[[int], float] = lambda n: (n - 1) / n,
) -> kit.Formula:
    """The bytes with other counts of gathers and reduce-scatters."""

    def formula(
        params: float, n: int, k: int = 1, *, weights: float = 2, gradients: float = 4,
        reshard: bool = True, keep: str | None = None,
    ) -> float:  # fmt: skip
        sent = gathers(k, reshard, keep) * weights + reductions(k, keep) * gradients
        return share(n) * params * sent

    return formula


def gathers(k: int, reshard: bool, keep: str | None) -> float:
    return facts.fsdp_gathers(k, reshard, keep)


def reductions(k: int, keep: str | None) -> float:
    return k if keep is None else 1


NOT_RESHARDED: dict[str, kit.Formula] = {
    "With reshard=False a unit stays whole after its forward, so backward does not gather it again.": (
        counted(lambda k, reshard, keep: gathers(k, True, keep), reductions)
    ),
    "With reshard=False, units also stay whole between forward and backward if `keep` is given.": (
        counted(lambda k, reshard, keep: gathers(k, reshard or keep is not None, keep), reductions)
    ),
    'With keep="gradients" and reshard=False, each microbatch gathers only once.': (
        counted(lambda k, reshard, keep: gathers(k, reshard or keep == "gradients", keep), reductions)
    ),
    ('With keep="weights between" and reshard=False, the weights stay whole all the time, so a step gathers '
    "them once."): (
        counted(lambda k, reshard, keep: gathers(k, reshard or keep == "weights between", keep), reductions)
    ),
}  # fmt: skip
KEPT: dict[str, kit.Formula] = {
    ('With keep="weights between" the first forward finds nothing and also gathers, so there are K + 1 '
    "gathers."): counted(
        lambda k, reshard, keep: k if keep == "weights between" and reshard else gathers(k, reshard, keep),
        reductions,
    ),
    ('With keep="weights between" only the first forward gathers, because each later one finds the '
    "weights of the backward before it. So there are K + 1 gathers."): counted(
        lambda k, reshard, keep: (
            2 * k if keep == "weights between" and reshard else gathers(k, reshard, keep)
        ),
        reductions,
    ),
    'With keep="weights" they are gathered once in a step, and not at all in between.': counted(
        lambda k, reshard, keep: k if keep == "weights" else gathers(k, reshard, keep), reductions
    ),
    "When anything is kept, the gradients add up on the rank, so only the last microbatch reduces.": counted(
        gathers, lambda k, _: k
    ),
}  # fmt: skip
BYTES: dict[str, kit.Formula] = {
    "You counted one gather and one reduction in each microbatch. By default (reshard=True), weights are "
    "gathered for forward and for backward.": counted(lambda k, *_: k, reductions),
    "You counted replicas, with an all-reduce of the gradients and no gather.": (
        counted(lambda *_: 0, lambda k, keep: 2 * reductions(k, keep))
    ),
    "You counted one microbatch, but a step has K of them.": counted(
        lambda k, reshard, keep: 2 if reshard else 1, lambda *_: 1
    ),
    ("You count 3 K transfers whatever `keep` is, but tensors that stay whole do not have to be sent "
    "again."): counted(
        lambda k, *_: 2 * k, lambda k, _: k
    ),
    "Gradients have `gradients` bytes each, not as many as a weight.": (
        lambda params, n, k=1, *, weights=2, gradients=4, reshard=True, keep=None: facts.fsdp_bytes(
            params, n, k, weights=weights, gradients=weights, reshard=reshard, keep=keep
        )
    ),
    "Weights have `weights` bytes each, because the two dtypes can differ.": (
        lambda params, n, k=1, *, weights=2, gradients=4, reshard=True, keep=None: facts.fsdp_bytes(
            params, n, k, weights=gradients, gradients=gradients, reshard=reshard, keep=keep
        )
    ),
    "A rank already has 1/N of each tensor, so (N-1)/N travel.": counted(
        gathers, reductions, share=lambda n: 1
    ),
    "Your result is the sum over all ranks. Return the bytes of one rank.": counted(
        gathers, reductions, share=lambda n: n - 1
    ),
    "Your result is in bits. A byte has eight.": counted(
        gathers, reductions, share=lambda n: 8 * (n - 1) / n
    ),
}  # fmt: skip


# ---- tokens that hide a gather


def times(factor: Callable[..., float]) -> kit.Formula:
    return lambda n, flops, each_way, itemsize=2: (
        factor(n, itemsize) * facts.hides_from(n, flops, each_way, itemsize)
    )


HIDING: Mapping[str, kit.Formula] = {
    "Your result is half. `each_way` already counts one direction, and forward has two FLOPs per "
    "parameter and token (the other four belong to backward).": times(lambda n, itemsize: 1 / 2),
    "A parameter and a token cost two FLOPs in forward, a multiplication and an addition.": (
        times(lambda n, itemsize: 2)
    ),
    "The bandwidth is in bytes per second, and a gather has (n-1)/n P itemsize bytes, not bits.": (
        times(lambda n, itemsize: 8)
    ),
    "`itemsize` is not used, but it is 2 only by default.": times(lambda n, itemsize: 2 / itemsize),
    "A number of itemsize bytes travels, not one byte.": times(lambda n, itemsize: 1 / itemsize),
    "A rank already has 1/n of the unit, so the gather brings (n-1)/n of it.": (
        times(lambda n, itemsize: n / (n - 1) if n > 1 else 1.0)
    ),
    "A rank already has 1/n of the unit, so the gather brings (n-1)/n of it, and nothing if n is 1.": (
        lambda n, flops, each_way, itemsize=2: itemsize / 2 * flops / each_way
    ),
    "The rank receives (n-1)/n of the unit from all other ranks together, not from each of them.": (
        times(lambda n, itemsize: n)
    ),
    "Your ratio is upside down. A faster GPU needs more tokens, but a faster link fewer.": (
        lambda n, flops, each_way, itemsize=2: (n - 1) / n * itemsize / 2 * each_way / flops
    ),
}  # fmt: skip


# ---- bytes of a unit


def of_block(change: Callable[[kit.Model], float]) -> kit.Formula:
    return lambda config, itemsize=2: facts.unit_bytes(config, itemsize)[0] + itemsize * change(config)


def of_root(change: Callable[[kit.Model], float]) -> kit.Formula:
    return lambda config, itemsize=2: facts.unit_bytes(config, itemsize)[1] + itemsize * change(config)


def narrower(config: kit.Model) -> float:
    """How many parameters keys and values would have more, were they as wide as the queries."""
    more = config.width - config.key_value_heads * config.head_dim
    return 2 * more * (config.width + config.bias)


def biases(c: kit.Model) -> float:
    inward = 2 if c.mlp == "swiglu" else 1
    return c.bias * (3 * c.width + 2 * c.key_value_heads * c.head_dim + inward * c.mlp_width)


BLOCK: Mapping[str, kit.Formula] = {
    "Keys and values are narrower than the queries: kv_heads of them, each of head_dim.": of_block(narrower),
    "SwiGLU has three matrices: gate, up and down.": (
        of_block(lambda c: -c.width * c.mlp_width * (c.mlp == "swiglu"))
    ),
    "With SwiGLU the MLP has three matrices, otherwise two.": (
        of_block(lambda c: c.width * c.mlp_width * (c.mlp != "swiglu"))
    ),
    "The MLP's inner width is `mlp_width`, not always 4 width.": (
        of_block(lambda c: (3 if c.mlp == "swiglu" else 2) * c.width * (4 * c.width - c.mlp_width))
    ),
    "The biases are missing.": of_block(
        lambda c: -biases(c)
    ),
    "A block has two norms.": of_block(lambda c: -facts.norm_parameters(c)),
    "The two norms of a block are missing.": of_block(lambda c: -2 * facts.norm_parameters(c)),
    "A layer norm has a bias besides its weight, if `bias`; an RMS norm has a weight.": (
        of_block(lambda c: 2 * c.width * (-1 if c.norm == "layer" and c.bias else 1))
    ),
    "12 width^2 is the rule of thumb, but the exact bytes were asked for.": (
        lambda config, itemsize=2: 12 * config.width**2 * itemsize
    ),
    "You counted all blocks together, but a unit is one of them.": (
        lambda config, itemsize=2: config.layers * facts.unit_bytes(config, itemsize)[0]
    ),
    "You counted elements. Each has itemsize bytes.": (
        lambda config, itemsize=2: facts.unit_bytes(config, 1)[0]
    ),
    "You multiplied by `itemsize` twice. The last line of the stub also does it.": (
        lambda config, itemsize=2: itemsize * facts.unit_bytes(config, itemsize)[0]
    ),
    "You multiplied by the 4 bytes of a float32 as well. Count elements, and multiply by `itemsize` only.": (
        lambda config, itemsize=2: 4 * facts.unit_bytes(config, itemsize)[0]
    ),
    "You returned the root first, but the block comes first.": (
        lambda config, itemsize=2: facts.unit_bytes(config, itemsize)[1]
    ),
}  # fmt: skip
ROOT: Mapping[str, kit.Formula] = {
    "A head that is not tied has a matrix of its own, as large as the embedding.": of_root(
        lambda c: -c.vocab_size * c.width * (not c.tied)
    ),
    "A tied head is the embedding's matrix, so it counts once.": of_root(
        lambda c: c.vocab_size * c.width * c.tied
    ),
    "Learned positions are a table as well: context x width.": of_root(
        lambda c: -c.context * c.width * (c.positions == "learned")
    ),
    "Rotary positions have no parameters.": of_root(
        lambda c: c.context * c.width * (c.positions != "learned")
    ),
    "The last norm belongs to the root.": of_root(lambda c: -facts.norm_parameters(c)),
    "You counted the whole model, but the blocks are separate units.": (
        lambda config, itemsize=2: facts.transformer_parameters(config) * itemsize
    ),
    "You counted the block of the stub's model as well. Subtract it.": (
        lambda config, itemsize=2: sum(facts.unit_bytes(config, itemsize))
    ),
    "You subtracted config.layers blocks, but the stub's model has only one.": (
        lambda config, itemsize=2: (
            facts.unit_bytes(config, itemsize)[1]
            - (config.layers - 1) * facts.unit_bytes(config, itemsize)[0]
        )
    ),
    "You counted elements. Each has itemsize bytes.": (
        lambda config, itemsize=2: facts.unit_bytes(config, 1)[1]
    ),
    "You multiplied by `itemsize` twice. The last line of the stub also does it.": (
        lambda config, itemsize=2: itemsize * facts.unit_bytes(config, itemsize)[1]
    ),
    "You multiplied by the 4 bytes of a float32 as well. Count elements, and multiply by `itemsize` only.": (
        lambda config, itemsize=2: 4 * facts.unit_bytes(config, itemsize)[1]
    ),
    "You returned the block second, but the root comes second.": (
        lambda config, itemsize=2: facts.unit_bytes(config, itemsize)[0]
    ),
}  # fmt: skip


def block_bytes(config: kit.Model, itemsize: int = 2) -> float:
    return facts.unit_bytes(config, itemsize)[0]


def root_bytes(config: kit.Model, itemsize: int = 2) -> float:
    return facts.unit_bytes(config, itemsize)[1]


def models(draw: kit.Draw) -> list[kit.Model]:
    """Both kinds of each part, and fewer heads of keys and values than of queries."""
    heads, head_dim = 2 * draw.integer(3, 7), 8 * draw.integer(2, 6)
    layers, width = draw.integer(3, 9), heads * head_dim
    vocab, context = draw.integer(300, 3000), 16 * draw.integer(4, 40)
    return [
        kit.Model(50257, 1024, layers=12, heads=12, width=768),
        kit.Model(32000, 4096, 80, 64, 8192, 8, 28672, **LLAMA),
        kit.Model(vocab, context, layers, heads, width, heads // 2, 8 * draw.integer(9, 60)),
        kit.Model(vocab, context, layers, heads, width, 2, **{**LLAMA, "tied": True, "norm": "layer"}),
    ]


@kit.exercise(points=8, objects=("fsdp_bytes", "hides_from", "unit_bytes"), references=FORMULAS)
def predictions(draw: kit.Draw) -> Iterator[kit.Case]:
    # Never 8 ranks: a rank's bytes in bits are then the bytes of all ranks, and the check names one mistake.
    some, n = 1_000_000 * draw.integer(20, 900), draw.integer(5, 64)
    n += n >= 8
    k, sizes = draw.integer(3, 9), {"weights": draw.integer(2, 4), "gradients": 1}
    # thousands of tokens, so that a whole number of them is as good
    flops, each_way = 1e12 * draw.integer(200, 600), 1e9 * draw.integer(20, 100)
    sixteen_bits = [(8, 0.4 * 989e12, 45e9), (n, flops, each_way), (1, flops, each_way)]
    other_sizes = [(n, flops, each_way, itemsize) for itemsize in (4, 1)]
    configs = models(draw)
    yield from kit.evaluated(
        [
            kit.Prediction(
                "fsdp_bytes", 0,
                [(7_000_000_000, 8), (some, n), (some, n, k), (some, 1, k),
                 (some, n, 1, kit.Keywords(weights=4, gradients=4)), (some, n, k, kit.Keywords(sizes))],
                facts.fsdp_bytes, BYTES, weight=1, title="fsdp_bytes: gathered twice, reduced once",
                otherwise="A microbatch gathers twice and reduces once, (N-1)/N P elements each.",
            ),
            kit.Prediction(
                "fsdp_bytes", 0,
                [*((some, n, each, kit.Keywords(reshard=False)) for each in (1, k)),
                 # without gradients, because the next line judges how often they are reduced
                 *((some, n, k, kit.Keywords(gradients=0, reshard=False, keep=keep)) for keep in KEEPS[:2])],
                facts.fsdp_bytes, NOT_RESHARDED | KEPT | BYTES, weight=0.5, title="fsdp_bytes: reshard=False",
                otherwise="A microbatch gathers once and reduces once, (N-1)/N P elements each.",
            ),
            kit.Prediction(
                "fsdp_bytes", 0,
                [(some, n, each, kit.Keywords(keep=keep, **more))
                 for keep in KEEPS for each in (k, 1) for more in ({}, {"gradients": 2})],
                facts.fsdp_bytes, KEPT | BYTES, weight=1, title="fsdp_bytes: with `keep`", overall=BYTES,
                otherwise="Count the gathers and the reductions of the K microbatches with the table.",
            ),
            kit.Prediction(
                "hides_from", 1, sixteen_bits + other_sizes, facts.hides_from, HIDING, weight=1,
                title="hides_from: weights of any size", otherwise=EQUAL_TIMES, tolerance=WHOLE_TOKENS,
            ),
            kit.Prediction(
                "hides_from", 1, sixteen_bits, facts.hides_from, weight=3,
                title="hides_from: weights in 16 bits", otherwise=EQUAL_TIMES, tolerance=WHOLE_TOKENS,
            ),
            kit.Prediction(
                "unit_bytes", 2, [(config,) for config in configs] + [(configs[2], 4)],
                block_bytes, BLOCK, weight=0.75, title="unit_bytes: a block", pick=kit.place(0, 2),
                otherwise="Attention has four matrices, the MLP two or three. Add two norms and the biases.",
            ),
            kit.Prediction(
                "unit_bytes", 2, [(config,) for config in configs] + [(configs[2], 4)],
                root_bytes, ROOT, weight=0.75, title="unit_bytes: the root", pick=kit.place(1, 2),
                otherwise="The root has the embeddings, the last norm, and the head unless it is tied.",
            ),
        ]
    )  # fmt: skip
