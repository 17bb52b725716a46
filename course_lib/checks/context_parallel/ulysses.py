"""ulysses_attention: tokens for heads, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from course_lib import facts
from course_lib.checks.context_parallel.references import OPERATIONS, REFERENCES, REFUSED
from course_lib.checks.context_parallel.ring_lines import FLOAT, essential, kept_bytes, value_lines
from course_lib.checks.context_parallel.ring_whole import Spread, attention_mistakes
from course_lib.checks.engine import words
from course_lib.checks.engine.case import Case, Draw, Line, exercise
from course_lib.checks.engine.layers.lines import (
    Mistake,
    saved_line,
    sent_line,
    values_or_refusal_line,
)
from course_lib.checks.engine.spread import runs
from course_lib.checks.engine.spread.runs import alive_line, calls_line
from course_lib.ledger.operation import Operation

HEADS = "heads that the ranks do not divide"
OTHERWISE = (
    "Pieces are cut along the heads, and what comes is joined along the tokens, in the order of the ranks; "
    "on the way back the other way round. x.reshape(n, ...) cuts along what is first in memory: neither. "
    "And is tiled_attention right, by its own check?",
    "Backward, gradients go the opposite way of what they belong to: cut where forward joined, join where "
    "it cut.",
)
EXCHANGES = 4  # of q, k, v and the output


def trouble(case: Case, kind: str, text: str) -> str:
    """What usually is behind a run that broke off."""
    if case.title == HEADS and kind != "deadlock":
        return (
            "Look first whether the ranks divide the heads of q and those of k and v, and raise a ValueError "
            "that names both numbers."
        )
    if "returned an invalid gradient" in text:
        return OTHERWISE[1]
    if case.title == "group" and kind not in ("deadlock", "timeout"):
        return "Is the group asked everywhere? dist.get_world_size(group), dist.get_rank(group), group=group."
    if "alltoall" in text.lower() or ("all_to_all" in text and "support" in text):
        return "gloo has no all-to-all of lists: dist.all_to_all_single cuts along dimension 0."
    if "not contiguous" in text:
        return "What is sent must lie in one piece: permute, the ranks' parts first, then contiguous()."
    if kind == "deadlock" or "collective number" in text:
        return "All ranks call the same collectives in the same order, forward and backward."
    return ""


def exchange_mistakes(spread: Spread) -> list[Mistake]:
    """Heads and tokens that come to lie in each other's place."""
    n, y = spread.n, spread.whole.y
    heads = y.shape[2]
    each = heads // n

    def by_heads(order: Sequence[int]) -> Any:
        return lambda k: {"y": spread.part(y[:, :, list(order)], k)}

    interleaved = [h % n * each + h // n for h in range(heads)]
    dealt = [h % each * n + h // each for h in range(heads)]
    says = (
        "The heads came back in another order: rank r attends with the heads r H/N .. (r+1) H/N - 1, and "
        "what comes from rank r belongs there."
    )
    kv_each = spread.whole.k.shape[2] // n
    turns = (
        "Of a rank's heads, h of q goes with h // (heads / kv_heads) of k and v: in succession, and not "
        "h % kv_heads."
    )

    def in_turn(h: int) -> int:
        return h // each * kv_each + h % each % kv_each

    own = spread.masked(
        "Only the rank's own keys were seen: after the first exchange each rank has the whole sequence, of "
        "some heads.",
        spread.from_marks(lambda r, i, o, j: (r == o) & ((i >= j) | (not spread.causal))),
    )
    return [
        own,
        Mistake(says, by_heads(interleaved)),
        Mistake(says, by_heads(dealt)),
        *(
            Mistake(
                says, by_heads([(h + by * each) % heads for h in range(heads)])
            )
            for by in range(1, n)
        ),
        spread.otherwise(turns, head_of=in_turn),
        *attention_mistakes(spread),
    ]  # fmt: skip


def lines_of(spread: Spread, title: str, weight: float, *, short: bool = False) -> list[Line]:
    mistakes = exchange_mistakes(spread)
    return value_lines(spread, title, weight, short=short, mistakes=mistakes, otherwise=OTHERWISE)


def bytes_lines(spread: Spread) -> list[Line]:
    run, n = spread.run(), spread.n
    batch, seq, heads, head_dim = spread.whole.q.shape
    width, kv_width = heads * head_dim, spread.whole.k.shape[2] * head_dim
    nbytes = [facts.ulysses_bytes(n, batch * seq, width, kv_width, FLOAT)] * n

    def hint(ratio: float, done: list[Operation]) -> str:
        if any(one.op == "all_gather" for one in done):
            return (
                "All heads of the whole sequence came to every rank, and it needs 1/N of them: an all-to-all "
                "sends each rank its own heads, an all-gather all heads to all."
            )
        if heads > spread.whole.k.shape[2] and ratio > 1:
            return "k and v have fewer heads than q: send those, and repeat them, if at all, afterwards."
        return "Four all-to-alls in each direction, of q, k, v and the output: (N-1)/N of each is sent."

    few = "One all-to-all for all heads: each costs N - 1 messages."
    found = []
    for way in ("forward", "backward"):
        found += [
            sent_line(run, way, nbytes, hint=hint, weight=2 if way == "forward" else 1),
            calls_line(run, way, EXCHANGES * (n - 1), few, f"exchanges {way}"),
        ]
    return found


def memory_lines(spread: Spread) -> list[Line]:
    """Kept: as for one rank's share of heads. Alive: a tile of scores, and tensors of a rank's share."""
    run, n = spread.run(), spread.n
    batch, seq, heads, _ = spread.whole.q.shape
    scores = batch * heads // n * seq**2 * FLOAT
    kept = saved_line(
        run,
        [2.2 * kept_bytes(spread)] * n,
        says=(
            "Each rank has the whole sequence of its heads, and so N x N scores: attend with "
            "tiled_attention, which keeps q, k, v, out and lse alone."
        ),
        weight=1,
    )
    says = (
        "More is alive than tiles and a share of the heads need: the scores of the whole sequence at once. "
        "Attend with tiled_attention."
    )
    return [
        essential(kept),
        *(
            essential(
                alive_line(run, way, share * scores, lambda _: says, f"alive at any moment, {way}", 0.5)
            )
            for way, share in (("forward", 0.5), ("backward", 0.75))
        ),
    ]  # fmt: skip


@exercise(
    points=9,
    objects=("ulysses_attention",),
    references=REFERENCES,
    refused=REFUSED,
    hint=trouble,
    point="tokens for heads: each rank attends with its share of the heads, and keeps no N x N matrix",
)
def ulysses_attention(draw: Draw) -> Iterator[Case]:
    whole = Spread.draw(draw, 4, 1024, heads=8, kv_heads=4, head_dim=4, name="whole", measured=True)
    yield runs.case(
        "4 ranks", [whole.run()],
        [*lines_of(whole, "4 ranks", 2), *bytes_lines(whole), *memory_lines(whole)],
        OPERATIONS,
    )  # fmt: skip
    yield causal(draw, 3, 2)
    group = Spread.draw(draw, 2, 10, heads=4, kv_heads=2, causal=True, name="group")
    yield runs.case(
        "group", [group.run()], lines_of(group, "group {1, 3}", 0.5, short=True), OPERATIONS,
        members=(1, 3), world_size=4,
    )  # fmt: skip
    yield indivisible(draw)
    yield causal(draw, 8, 1, weight=0.5)
    if draw.hidden:
        yield causal(draw, 2, 1)
        alone = Spread.draw(draw, 1, 7, heads=3, kv_heads=3, causal=True, name="alone")
        lines = lines_of(alone, "1 rank", 0.5, short=True)
        trivial = [replace(one, trivial=True) for one in lines]
        yield runs.case("1 rank", [alone.run()], trivial, OPERATIONS)


def causal(draw: Draw, n: int, batch: int, weight: float = 1.0) -> Case:
    found = Spread.draw(
        draw, n, 5 * n, batch=batch, heads=4 * n, kv_heads=2 * n, causal=True, name="causal"
    )
    title = f"causal, {words.counted(n, 'rank')}"
    lines = lines_of(found, title, weight, short=weight < 1)
    return runs.case(title, [found.run()], lines, OPERATIONS)


def indivisible(draw: Draw) -> Case:
    """3 ranks, and heads of q or those of k and v that these do not divide."""
    heads = Spread.draw(draw, 3, 6, heads=4, kv_heads=2, name="heads", refuses=True)
    of_keys = Spread.draw(draw, 3, 6, heads=6, kv_heads=2, name="keys", refuses=True)
    return runs.case(
        HEADS, [heads.run(), of_keys.run()],
        [
            values_or_refusal_line(heads.run(), "4 heads, 3 ranks", [4, 3], weight=0.5),
            values_or_refusal_line(of_keys.run(), "6 heads, 2 of keys, 3 ranks", [2, 3], weight=0.5),
        ],
        OPERATIONS,
    )  # fmt: skip
