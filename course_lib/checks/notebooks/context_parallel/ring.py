"""ring_forward and ring_attention: keys and values go round, then their gradients come home.

Both are judged by the same cases: ring_forward without a backward, ring_attention by its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.context_parallel.references import OPERATIONS, REFERENCES, REFUSED
from course_lib.checks.notebooks.context_parallel.ring_lines import (
    BACKWARD_STEP,
    MERGED,
    PAIR,
    held_line,
    kept_line,
    lse_line,
    precise_line,
    value_line,
)
from course_lib.checks.notebooks.context_parallel.ring_slips import backward_slips, forward_slips
from course_lib.checks.notebooks.context_parallel.ring_traffic import (
    bytes_lines,
    half_bytes_line,
    neighbours_line,
    seen_line,
    under_way_line,
)
from course_lib.checks.notebooks.context_parallel.ring_whole import Spread
from course_lib.checks.notebooks.context_parallel.spread import SpreadRun, spread_case
from course_lib.context_parallel import Layout, striped
from course_lib.context_parallel.balanced import zigzag

FORWARD, BACKWARD = "forward", "backward"
GROUP = "group"
NO_GRAPH = (
    "Is backward left to autograd? Autograd knows nothing about messages, so write a "
    "torch.autograd.Function whose backward sends the keys around again."
)
SHAPES = (
    "lse and delta have one number for each query and head, so their shape is (batch, tokens, heads). "
    "Compute delta as (out * grad).sum(-1)."
)
LENGTHS = (
    "Parts can differ in length, so the buffer must fit the part that arrives, which has the length of its "
    "owner's ranges. Also, each step sends on the part that arrived in the step before."
)
UNEQUAL = "causal, zigzag, 4 ranks"
ALIKE = (
    "Here all parts have the same length, so what arrives has the shape and the dtype of the rank's own "
    "keys and values. If layout is None, it is contiguous(n * q.shape[1], n), as q has one "
    "rank's tokens."
)


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if kind == "deadlock":
        return (
            "In each step, every rank sends to one neighbour and receives from the other, so post both "
            "together with dist.batch_isend_irecv, on every rank, even if it has nothing to compute."
        )
    if case.title == GROUP and "list index out of range" in text:
        return (
            "layout has an entry for each rank of the group, so ask dist.get_rank(group) and "
            "dist.get_world_size(group)."
        )
    if "'NoneType' object is not" in text:
        return "layout=None means the contiguous layout, so use contiguous(n * q.shape[1], n)."
    uneven = case.title in (GROUP, UNEQUAL)
    if ("differ" in text and "message" in text) or (uneven and "must match" in text):
        return LENGTHS if uneven else ALIKE
    return ""


def trouble_behind(case: kit.Case, kind: str, text: str) -> str:
    """The same with a backward."""
    if "backward or vjp" in text:
        return "The torch.autograd.Function has no backward yet. Write a staticmethod backward(ctx, grad)."
    if "incorrect number of gradients" in text:
        return (
            "backward must return one value for each argument of forward, and None for each that is not a "
            "tensor."
        )
    if "inplace operation" in text:
        return NO_GRAPH
    if "returned an invalid gradient" in text:
        return (
            "backward must return the gradients of the rank's own q, k and v. Sums that are one transfer "
            "short of home belong to another rank's keys, and that rank can have fewer or more of them."
        )
    said = trouble(case, kind, text)
    return " ".join(filter(None, (said, SHAPES if "must match" in text else "")))


@kit.exercise(
    points=8,
    objects=("ring_output", "ring_lse"),
    references=REFERENCES,
    refused=REFUSED,
    hint=trouble,
    point="a ring: no rank ever holds all keys",
)
def ring_forward(draw: kit.Draw) -> Iterator[kit.Case]:
    yield from cases(draw, FORWARD)


@kit.exercise(
    points=7,
    objects=("ring_attention",),
    references=REFERENCES,
    refused=REFUSED,
    hint=trouble_behind,
    point="a ring in backward, too: no rank ever holds all keys, or keeps more for backward than its part",
)
def ring_attention(draw: kit.Draw) -> Iterator[kit.Case]:
    yield from cases(draw, BACKWARD)


def cases(draw: kit.Draw, way: str) -> Iterator[kit.Case]:
    # Many ranks with wide heads: then the keys of all are more than one step can need, see `held_line`.
    n = 8
    whole = judged(way, Spread.draw(draw, n, 64 * n, head_dim=256, name="whole", measured=True))
    title = words.counted(n, "rank")
    forward = way == FORWARD
    kept = [] if forward else [kept_line(whole)]
    yield case(
        [whole],
        [values(whole, title, 2), *bytes_lines(whole, way), kit.only_messages(0.5),
         neighbours_line(whole, way), under_way_line(whole, way, 1.5 if forward else 0.75),
         *kept, held_line(whole, way, 1.0 if forward else 0.5)],
        title,
    )  # fmt: skip
    yield layouts(draw, way, 3, 2, 4)
    uneven: Layout = [[range(0, 3), range(8, 11)], [range(3, 8)]]
    parts = judged(way, Spread.draw(draw, 2, 11, causal=True, layout=uneven, name="uneven"))
    large = judged(way, far_from_zero(Spread.draw(draw, 2, 12, causal=True, name="large")))
    yield case(
        [parts, large],
        [values(parts, "parts of other lengths, group {1, 3}", 0.5, short=True),
         values(large, "scores of some 1,000", 0.5, short=True)],
        GROUP, members=(1, 3), world_size=4,
    )  # fmt: skip
    yield rounded(draw, way, 4)
    yield unequal_parts(draw, way, 4)
    if draw.hidden:
        yield layouts(draw, way, 5, 1, 6)
        alone = judged(way, Spread.draw(draw, 1, 7, causal=True, name="alone"))
        line = values(alone, "1 rank", 0.5, short=True)
        yield case([alone], [replace(line, trivial=True)], "1 rank")


def judged(way: str, spread: Spread) -> Spread:
    return replace(spread, forward_only=way == FORWARD)


def values(spread: Spread, title: str, weight: float, *, short: bool = False) -> kit.Line:
    """Of the way that is judged: the output, or its gradients."""
    if spread.forward_only:
        return value_line(
            spread, f"{title}: forward", weight, forward_slips(spread), MERGED, short=short, misfit=PAIR
        )
    slips = backward_slips(spread)
    return value_line(spread, f"{title}: backward", weight, slips, BACKWARD_STEP, short=short)


def case(
    spreads: Sequence[Spread],
    lines: Sequence[kit.Line],
    title: str,
    more_runs: Sequence[SpreadRun] = (),
    **more: Any,
) -> kit.Case:
    called = [*(spread.run() for spread in spreads), *more_runs]
    return spread_case(title, called, lines, OPERATIONS, forbidden=kit.BUILT_IN, **more)


def layouts(draw: kit.Draw, way: str, n: int, batch: int, heads: int) -> kit.Case:
    """Causal, in three layouts of 2n chunks of 2 tokens, with two heads of keys."""
    shape = {"batch": batch, "heads": heads, "kv_heads": 2, "head_dim": 6, "causal": True}
    seq = 4 * n
    spreads = [
        Spread.draw(draw, n, seq, name="contiguous", **shape),
        Spread.draw(draw, n, seq, name="zigzag", layout=zigzag(seq, n), **shape),
        Spread.draw(draw, n, seq, name="striped", layout=striped(seq, n), **shape),
    ]
    in_succession, paired, every_nth = (judged(way, spread) for spread in spreads)
    title = words.counted(n, "rank")
    lse = [paired.run_of_lse(1)] if way == FORWARD else []
    return case(
        [in_succession, paired, every_nth],
        [values(in_succession, f"causal, {title}", 1),
         values(paired, f"causal, zigzag, {title}", 1),
         *(lse_line(paired, f"causal, zigzag, {title}: lse", 1) for _ in lse),
         values(every_nth, f"causal, striped, {title}", 0.25, short=True),
         seen_line(in_succession, f"in succession, {title}", way),
         seen_line(paired, f"zigzag, {title}", way)],
        f"causal, {title}", lse,
    )  # fmt: skip


def unequal_parts(draw: kit.Draw, way: str, n: int) -> kit.Case:
    """Causal, in zigzag of 2n chunks of 1 or 2 tokens. n does not divide seq, so parts differ in length."""
    seq = n * draw.integer(2, 3) + draw.integer(1, n - 1)
    drawn = Spread.draw(draw, n, seq, causal=True, layout=zigzag(seq, n), name="unequal")
    spread, title = judged(way, drawn), f"causal, zigzag, {words.counted(n, 'rank')}"
    return case([spread], [values(spread, title, 0.5, short=True)], title)


def far_from_zero(spread: Spread) -> Spread:
    """Scores of about 1,000 at even positions of queries and -1,000 at odd ones, which differ as before.

    Were they only drawn larger, softmax would pick one key, and its gradients be rounding errors.
    """
    q, k = spread.whole.q.clone(), spread.whole.k.clone()
    q[:, 0::2, :, 0], q[:, 1::2, :, 0], k[..., 0] = 3_000.0, -3_000.0, 1.0
    return replace(spread, whole=spread.whole.but(q=q, k=k))


def rounded(draw: kit.Draw, way: str, n: int) -> kit.Case:
    """bfloat16 parts whose partial results are large, and cancel: alternately +8 and -8 at all ranks.

    A gradient of scores sums to 0 over the keys, so an element 8 of all keys, of which q sees nothing, does
    the same to the sums of q's gradient.
    """
    drawn = judged(way, Spread.draw(draw, n, 16 * n, name="bfloat16", dtype=torch.bfloat16))
    shift = torch.where(drawn.owner % 2 == 0, 8.0, -8.0)[:, None, None]
    whole = drawn.whole
    exact = [x.to(torch.bfloat16).double() for x in (whole.v + shift, whole.grad + shift)]
    q, k = whole.q / 4, whole.k.clone()
    q[..., 0], k[..., 0] = 0.0, 8.0
    spread = replace(drawn, whole=whole.but(q=q, k=k, v=exact[0], grad=exact[1]))
    lines = (
        [precise_line(spread, ["y"], "bfloat16, added in float32"), half_bytes_line(spread)]
        if way == FORWARD
        else [precise_line(spread, ["grad.v", "grad.q"], "bfloat16, gradients added in float32")]
    )
    called = [spread.run(torch.bfloat16)]
    return spread_case("bfloat16", called, lines, OPERATIONS, forbidden=kit.BUILT_IN)
