"""Lines about a ring: its values, and its memory. Messages and computations: see `ring_traffic`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import SLACK, differs, saved_line, subject
from course_lib.checks.notebooks.context_parallel.ring_slips import lse_slips
from course_lib.checks.notebooks.context_parallel.ring_whole import GRADS, Spread
from course_lib.checks.notebooks.context_parallel.spread import SpreadRun, alive_line

FLOAT, HALF = 8, 2  # bytes of a number in float64, and in 16 bits
NAN = (
    "If a mask leaves nothing, lse is -inf, and -inf - -inf is nan. Also, exp of large scores is inf. So "
    "skip hidden blocks, merge by differences from the larger lse, and take care of -inf in both."
)
MERGED = (
    "Merge each block's out and lse with the result so far, and weight out by its share exp(lse - merged "
    "lse)."
)
FORWARD_FIRST = "The output of forward is not right yet, so look there first."
LSE = (
    "Return lse after the last block, as the log of the sum of exp(score) over all keys a query sees on "
    "any rank. lse is the second result of online_softmax_merge."
)
OUT_FIRST = "out is not right yet either, so begin with out."
PAIR = "ring_forward must return a pair, out in q's shape and dtype, and lse, (batch, tokens, heads)."
BACKWARD_STEP = (
    "Messages have no graph, so backward is a Function's own. For each block, it computes p = exp(s - lse), "
    "dv += p^T g, ds = p (g v^T - delta), dq += ds k, dk += ds^T q. dq stays on this rank. Add dk and dv to "
    "the sum that arrived for these keys, and pass the sum on."
)
GROSS = 20  # times what is allowed: no rounding any more
ROUNDING = 0.004  # of partial results of some 8; one rounding of these to bfloat16 is 0.009


# ---- values


def value_line(
    spread: Spread,
    title: str,
    weight: float,
    slips: Sequence[kit.Slip],
    otherwise: str,
    *,
    short: bool = False,
    misfit: str = "",
) -> kit.Line:
    """The output, or its gradients where there is a backward; and nothing was written into the inputs.

    otherwise: said where no known mistake fits; misfit: where another shape came.
    """
    run = spread.run()
    names = ["y"] if spread.forward_only else [*GRADS, "y"]

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = differs(run, observed, names, slips, lambda *came: misfit, "")
        if finding is not None and not finite(run, observed, names):
            return kit.wrong(*finding.sentences, NAN, cause="nan")
        if finding is not None and finding.cause in {f"{run.name} {name}" for name in names}:
            first = not spread.forward_only and differs(run, observed, ["y"], (), None, "") is not None
            return kit.wrong(*finding.sentences, FORWARD_FIRST if first else otherwise, cause=kit.ANY)
        return finding or left_alone(run, observed)

    return kit.Line(title, judge, weight, short=short)


def lse_line(spread: Spread, title: str, weight: float) -> kit.Line:
    """The second tensor that ring_forward returns."""
    run, slips = spread.run_of_lse(1), lse_slips(spread)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = differs(run, observed, ["y"], slips, lambda *came: PAIR, LSE) or kit.RIGHT
        if not finding.ok and differs(spread.run(), observed, ["y"], (), None, "") is not None:
            finding = kit.wrong(finding.sentences[0], OUT_FIRST, cause=kit.ANY)
        return replace(finding, sentences=tuple(of_lse(said) for said in finding.sentences))

    return kit.Line(title, judge, weight)


def of_lse(said: str) -> str:
    """A sentence about the returned tensor, which here is lse."""
    named = str(said).replace(subject("y"), "lse")
    if not isinstance(said, kit.Sentence):
        return named
    return kit.Sentence(named, said.general.replace(subject("y"), "lse"))


def finite(run: SpreadRun, observed: kit.Observed, names: Sequence[str]) -> bool:
    tensors = (rank.get(f"{run.name}.{name}") for rank in observed.tensors for name in names)
    return all(bool(tensor.isfinite().all()) for tensor in tensors if tensor is not None)


def left_alone(run: SpreadRun, observed: kit.Observed) -> kit.Finding:
    for name in ("q", "k", "v"):
        after = f"after.{name}"
        if differs(run, observed, [after], (), None, "") is not None:
            return kit.wrong(
                f"{name} was changed, although it belongs to the caller.",
                "Send from, receive into and add to tensors of your own.",
                cause="changed",
            )
    return kit.RIGHT


def precise_line(spread: Spread, names: Sequence[str], title: str) -> kit.Line:
    """bfloat16 whose partial results were added in float32: the error is that of the last rounding."""
    run = spread.run(torch.bfloat16)

    def judge(observed: kit.Observed) -> kit.Finding:
        if (finding := differs(run, observed, [], (), None, "")) and "misfit" in finding.cause:
            return finding
        for rank, name in itertools.product(range(spread.n), names):
            exact = spread.part(spread.wanted[name], rank)
            error = observed.tensors[rank][f"{run.name}.{name}"].double() - exact
            off = float(error.square().mean().sqrt())
            bound = ROUNDING * max(1.0, float(exact.square().mean().sqrt()))
            if not off <= GROSS * bound:
                said = f"on rank {rank} {subject(name)} is wrong in bfloat16, by more than rounding."
                return kit.wrong(said, cause=kit.ANY)
            if not off <= bound:
                general = f"on rank {rank} {subject(name)} is less exact than one rounding makes it"
                return kit.wrong(
                    kit.Sentence(
                        f"{general} (off by {off:.2g} on average, {bound:.2g} allowed).", f"{general}."
                    ),
                    "Scores and partial results (out, lse, and in backward the sums of gradients, even "
                    "while they are sent) belong in float32, so round to bfloat16 only once, at the end.",
                    cause="rounding",
                )
        return kit.RIGHT

    return kit.Line(title, judge, 0.75)


# ---- what is held


def kept_bytes(spread: Spread) -> float:
    """q, k, v, out and lse of a rank."""
    batch, seq, heads, head_dim = spread.whole.q.shape
    kv_heads = spread.whole.k.shape[2]
    shared = facts.attention_saved_bytes(batch * seq, heads, kv_heads, head_dim, spread.n, FLOAT)
    return shared / SLACK[0]


def kept_line(spread: Spread) -> kit.Line:
    """The rank's part, and nothing that came by."""
    says = (
        "q, k, v, out and lse are enough, because keys that passed by are sent again in backward, and "
        "scores are computed again from lse. In a torch.autograd.Function, you choose the tensors to keep."
    )
    most = [1.25 * kept_bytes(spread)] * spread.n
    return kit.essential(saved_line(spread.run(), most, says=says, weight=1.5))


def held_line(spread: Spread, way: str, weight: float) -> kit.Line:
    """Alive at a moment: blocks of a step, and a few tensors of the rank's size."""
    heads, seq = spread.whole.q.shape[2], spread.whole.q.shape[1]
    part = spread.part(spread.whole.q, 0).numel() * FLOAT
    block = heads * (seq // spread.n) ** 2 * FLOAT
    most = {"forward": 5.5 * block + 12 * part, "backward": 6.5 * block + 20 * part}[way]
    says = (
        "The rank holds more than one step needs, such as the keys of all ranks or the scores with all of "
        "them. Merge each block when it arrives, and then let go of it."
    )
    return kit.essential(
        alive_line(spread.run(), way, most, lambda _: says, f"alive at any moment of {way}", weight)
    )
