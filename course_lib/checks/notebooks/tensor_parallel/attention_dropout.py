"""Dropout of the weights of attention: masks of each rank's own, and generators that agree afterwards.

A sequence of one token has one weight of attention for each head, and it is 1. Dropout makes it 0 or
1 / (1 - p), so that which weights were dropped can be read from the output.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import differs, members, same_everywhere_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.notebooks.tensor_parallel.heads import Heads

P, BATCH = 0.4, 24
NOTHING = (
    "Nothing was dropped while training. Hand `dropout` on to causal_attention, or drop the softmax's "
    "weights with that probability."
)
ALIKE = (
    "Every rank dropped the same weights of its heads, because the ranks have the same seed. Inside "
    "the region masks must differ. Drop within `own_random_state(group)`."
)
OTHER = (
    "Dropout applies to the weights of attention. In a sequence of one token a head has one weight, "
    "so the head's term is either dropped or divided by 1 - p."
)
AFTERWARDS = (
    "Behind the region all ranks must draw the same random numbers again, because otherwise whole "
    "tensors get other masks on each rank. `own_random_state` ensures this, but a separate seed for "
    "each rank does not."
)
WHILE_TRAINING = "Dropout is for training. After eval(), self.training is False, so drop nothing."


def kept(whole: Heads, y: Tensor) -> tuple[Tensor, bool]:
    """The factor of each head in each sequence (batch, heads), and whether there is nothing else in y."""
    _, _, value, out, _, _, value_bias, out_bias = whole.parameters
    mixed = torch.linalg.solve(out, (y - out_bias).flatten(0, 1).T).T.unflatten(-1, (whole.heads, -1))
    values = (whole.x @ value.T + value_bias).flatten(0, 1).unflatten(-1, (whole.heads, -1))
    factors = (mixed * values).sum(-1) / values.square().sum(-1)
    return factors, bool((mixed - factors[..., None] * values).abs().max() < 1e-6)


def of_masks(factors: Tensor) -> bool:
    """Whether heads were dropped, and the others divided by 1 - P."""
    scale = 1 / (1 - P)
    return kit.close(factors, scale * (factors > scale / 2).double())


def nothing_line(run: LayerRun, whole: Heads, title: str, weight: float) -> kit.Line:
    """The output is that without dropout."""
    line = values_line(run, title, weight=weight)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        if finding.ok:
            return finding
        factors, alone = kept(whole, observed.tensors[members(observed)[0]][f"{run.name}.y"])
        dropped = alone and of_masks(factors)
        return replace(finding, sentences=(*finding.sentences, WHILE_TRAINING)) if dropped else finding

    return replace(line, judge=judge)


def masks_line(run: LayerRun, whole: Heads, title: str, weight: float) -> kit.Line:
    """The output is that of some masks, which differ from rank to rank."""

    def judge(observed: kit.Observed) -> kit.Finding:
        y = observed.tensors[members(observed)[0]][f"{run.name}.y"]
        without = replace(run, wanted=[{"y": y}] * run.size)
        finding = differs(without, observed, ["y"], (), None, "All ranks return the same sum.")
        if finding:
            return finding
        factors, alone = kept(whole, y)
        if kit.close(factors, torch.ones_like(factors)):
            return kit.wrong("the output in training is the same as without dropout.", NOTHING)
        if not alone or not of_masks(factors):
            return kit.wrong("the output in training fits no mask of the heads' weights.", OTHER)
        first, *others = factors.tensor_split(whole.n, 1)
        if all(kit.close(other, first) for other in others):
            return kit.wrong("the masks of all ranks are the same.", ALIKE)
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def then(first: kit.Line, line: kit.Line) -> kit.Line:
    """The line, which counts where the first is right."""

    def judge(observed: kit.Observed) -> kit.Finding:
        return line.judge(observed) if first.judge(observed).ok else kit.wrong(cause=kit.ANY)

    return replace(line, judge=judge)


def dropout_case(draw: kit.Draw, n: int = 2, heads: int = 4) -> kit.Case:
    whole = Heads.draw(draw, n, heads, heads, 4, (BATCH, 1), True)
    plain = LayerRun(
        "training", [{"x": whole.x}] * n, [{"y": whole.output(whole.parameters, whole.x)}] * n,
        make=([whole.width, heads], {"dropout": P}), seed=whole.seed, drawn=True,
    )  # fmt: skip
    after = replace(plain, name="evaluated", drawn=False, evaluates=True)
    masks = masks_line(plain, whole, f"dropout={P}: other masks on every rank", 4)
    agree = same_everywhere_line(
        plain, "drawn", f"dropout={P}: the same random numbers behind it", AFTERWARDS, weight=1
    )
    nothing = nothing_line(after, whole, f"dropout={P}: nothing dropped after eval()", 0.5)
    return layer_case(f"dropout, {n} ranks", [plain, after], [masks, then(masks, agree), nothing])
