"""Lines about a ring: its values, and what it holds. What it sends and computes: `ring_traffic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from course_lib import facts
from course_lib.checks.context_parallel.ring_whole import GRADS, Spread, ring_mistakes
from course_lib.checks.engine.case import ANY, RIGHT, Finding, Line, Observed, wrong
from course_lib.checks.engine.layers.lines import SLACK, Mistake, differs, saved_line, subject
from course_lib.checks.engine.sentence import Sentence
from course_lib.checks.engine.spread.runs import Run, alive_line

FLOAT, HALF = 8, 2  # bytes of a number in float64, and in 16 bits
NAN = (
    "Where a mask leaves nothing, lse is -inf, and -inf - -inf is nan; exp of large scores is inf. "
    "Skip such a block, merge by differences from the larger lse, and take care of -inf in both."
)
MERGED = "Each block's out and lse are merged with what came before: out by its share exp(lse - merged lse)."
FORWARD_FIRST = "Forward is not right yet: look there first."
BACKWARD_STEP = (
    "Autograd knows nothing of messages: a Function's backward adds for each block p = exp(s - lse), "
    "dv += p^T g, ds = p (g v^T - delta), dq += ds k, dk += ds^T q. dq stays, dk and dv go on."
)
GROSS = 20  # times what is allowed: no rounding any more
ROUNDING = 0.004  # of partial results of some 8; one rounding of these to bfloat16 is 0.009


# ---- values


def value_lines(
    spread: Spread,
    title: str,
    weight: float,
    *,
    short: bool = False,
    mistakes: Sequence[Mistake] | None = None,
    otherwise: tuple[str, str] = (MERGED, BACKWARD_STEP),
) -> list[Line]:
    """The output, its gradients, and that nothing was written into the inputs.

    otherwise: said of forward, and of backward, where no known mistake fits.
    """
    slips = tuple(ring_mistakes(spread) if mistakes is None else mistakes)
    run = spread.run()
    return [
        values(run, slips, f"{title}: forward", ["y"], weight, short, otherwise[0]),
        values(run, slips, f"{title}: backward", [*GRADS], weight, short, otherwise[1]),
    ]


def values(
    run: Run,
    slips: Sequence[Mistake],
    title: str,
    names: Sequence[str],
    weight: float,
    short: bool,
    otherwise: str,
) -> Line:
    def judge(seen: Observed) -> Finding:
        found = differs(run, seen, names, slips, None, "")
        if found is not None and not finite(run, seen, names):
            return wrong(*found.sentences, NAN, cause="nan")
        if found is not None and found.cause in {f"{run.name} {name}" for name in names}:
            first = "y" not in names and differs(run, seen, ["y"], (), None, "") is not None
            return wrong(*found.sentences, FORWARD_FIRST if first else otherwise, cause=ANY)
        return found or left_alone(run, seen)

    return Line(title, judge, weight, short=short)


def finite(run: Run, seen: Observed, names: Sequence[str]) -> bool:
    found = (rank.get(f"{run.name}.{name}") for rank in seen.tensors for name in names)
    return all(bool(one.isfinite().all()) for one in found if one is not None)


def left_alone(run: Run, seen: Observed) -> Finding:
    for name in ("q", "k", "v"):
        after = f"after.{name}"
        if differs(run, seen, [after], (), None, "") is not None:
            return wrong(
                f"{name} was changed: it belongs to the caller.",
                "Send from, receive into and add to tensors of your own.",
                cause="changed",
            )
    return RIGHT


def precise_line(spread: Spread, name: str, title: str) -> Line:
    """bfloat16 whose partial results were added in float32: the error is that of the last rounding."""
    run = spread.run(torch.bfloat16)

    def judge(seen: Observed) -> Finding:
        if (found := differs(run, seen, [], (), None, "")) and "misfit" in found.cause:
            return found
        for rank in range(spread.n):
            exact = spread.part(spread.wanted[name], rank)
            error = seen.tensors[rank][f"{run.name}.{name}"].double() - exact
            off = float(error.square().mean().sqrt())
            bound = ROUNDING * max(1.0, float(exact.square().mean().sqrt()))
            if not off <= GROSS * bound:
                said = f"on rank {rank} {subject(name)} is wrong in bfloat16, and not by rounding alone."
                return wrong(said, cause=ANY)
            if not off <= bound:
                general = f"on rank {rank} {subject(name)} is less exact than one rounding makes it"
                return wrong(
                    Sentence(f"{general}: off by {off:.2g} on average, {bound:.2g} allowed.", f"{general}."),
                    "Scores and partial results (out, lse, and in backward the sums of gradients, also those "
                    "that are sent) belong in float32; round to bfloat16 once, at the end.",
                    cause="rounding",
                )  # fmt: skip
        return RIGHT

    return Line(title, judge, 0.75)


# ---- what is held


def kept_bytes(spread: Spread) -> float:
    """q, k, v, out and lse of a rank."""
    batch, seq, heads, head_dim = spread.whole.q.shape
    kv_heads = spread.whole.k.shape[2]
    shared = facts.attention_saved_bytes(batch * seq, heads, kv_heads, head_dim, spread.n, FLOAT)
    return shared / SLACK[0]


def memory_lines(spread: Spread) -> list[Line]:
    """Kept: the rank's part. Alive: blocks of a step, and a few tensors of the rank's size."""
    run, n = spread.run(), spread.n
    part = spread.part(spread.whole.q, 0).numel() * FLOAT
    block = spread.whole.q.shape[2] * (spread.whole.q.shape[1] // n) ** 2 * FLOAT
    spare = 1.25 * kept_bytes(spread)
    kept = essential(
        saved_line(
            run,
            [spare] * n,
            says=(
                "q, k, v, out and lse are enough: keys that came by are sent again in backward, and scores "
                "are computed again from lse. A torch.autograd.Function says what is kept."
            ),
            weight=1.5,
        )
    )
    hold = (
        "That is more than one step needs: the keys of all ranks, or the scores with all of them. Merge each "
        "block when it comes, and let go of it."
    )
    return [
        kept,
        *(
            essential(
                alive_line(
                    run,
                    way,
                    most,
                    lambda _: hold,
                    f"alive at any moment of {way}",
                    0.5,
                )
            )
            for way, most in (
                ("forward", 5.5 * block + 12 * part),
                ("backward", 6.5 * block + 16 * part),
            )
        ),
    ]


def essential(line: Line) -> Line:
    """The line, without which the exercise's point is missed."""

    def judge(seen: Observed) -> Finding:
        found = line.judge(seen)
        return found if found.ok else replace(found, misses_point=True)

    return replace(line, judge=judge)
