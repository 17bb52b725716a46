"""ulysses_attention: tokens for heads, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from course_lib import facts
from course_lib.checks import kit, words
from course_lib.checks.judge.layers.lines import (
    members,
    reply_about,
    saved_line,
    sent_line,
    values_or_refusal_line,
)
from course_lib.checks.notebooks.context_parallel.references import OPERATIONS, REFERENCES, REFUSED
from course_lib.checks.notebooks.context_parallel.ring_lines import FLOAT, kept_bytes, value_line
from course_lib.checks.notebooks.context_parallel.ring_whole import GRADS, Spread, attention_slips
from course_lib.checks.notebooks.context_parallel.spread import alive_line, calls_line, spread_case
from course_lib.ledger.operation import Operation

HEADS = "heads that the ranks do not divide"
OTHERWISE = (
    "Pieces must be cut along the heads and, once they arrive, joined along the tokens, in the order of "
    "the ranks. On the way back, do the opposite. x.reshape(n, ...) cuts along the first dimension in "
    "memory, which is neither. Does tiled_attention also pass its own check?",
    (
        "In backward, gradients go the opposite way of their tensors, so cut where forward joined, and join "
        "where it cut."
    ),
)
GATHERED = (
    "All heads of the whole sequence came to every rank, although a rank needs only 1/N of them. An "
    "all-to-all sends each rank its own heads, while an all-gather sends all heads to all ranks."
)
GROUP = "group"
EXCHANGES = 4  # of q, k, v and the output


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if case.title == HEADS and kind != "deadlock":
        return (
            "First check whether the number of ranks divides the heads of q and the heads of k and v. If "
            "it does not, raise a ValueError that names both numbers."
        )
    if "returned an invalid gradient" in text:
        return OTHERWISE[1]
    if case.title == GROUP and kind not in ("deadlock", "timeout"):
        return (
            "Do you pass the group everywhere, to dist.get_world_size(group), to dist.get_rank(group), and "
            "as group=?"
        )
    if "support" in text and re.search("(?i)all_?to_?all", text):
        return (
            "gloo has no all-to-all of lists. Use dist.all_to_all_single instead, which cuts along "
            "dimension 0."
        )
    if "not contiguous" in text:
        return (
            "A message must be in one piece, so permute the ranks' parts to the front, and then call "
            "contiguous()."
        )
    if kind == "deadlock" or "collective number" in text:
        return "All ranks must call the same collectives in the same order, in forward and also in backward."
    return ""


def exchange_slips(spread: Spread) -> list[kit.Slip]:
    """Heads and tokens that come to lie in each other's place."""
    n, y = spread.n, spread.whole.y
    heads = y.shape[2]
    each = heads // n

    def by_heads(order: Sequence[int]) -> Any:
        return lambda k: {"y": spread.part(y[:, :, list(order)], k)}

    interleaved = [h % n * each + h // n for h in range(heads)]
    dealt = [h % each * n + h // each for h in range(heads)]
    says = (
        "The heads came back in another order. Rank r attends with the heads r H/N .. (r+1) H/N - 1, so "
        "the heads from rank r belong there."
    )
    kv_each = spread.whole.k.shape[2] // n
    turns = (
        "Among a rank's heads, head h of q was paired with head h % kv_heads of k and v. Instead, pair it "
        "with head h // (heads / kv_heads)."
    )

    def in_turn(h: int) -> int:
        return h // each * kv_each + h % each % kv_each

    own = spread.masked(
        "Only the rank's own keys were seen, although after the first exchange each rank has the whole "
        "sequence for some heads.",
        spread.from_marks(lambda r, i, o, j: (r == o) & ((i >= j) | (not spread.causal))),
    )
    return [
        own,
        kit.Slip(says, by_heads(interleaved)),
        kit.Slip(says, by_heads(dealt)),
        *(kit.Slip(says, by_heads([(h + by * each) % heads for h in range(heads)])) for by in range(1, n)),
        spread.otherwise(turns, head_of=in_turn),
        *attention_slips(spread),
    ]


def backward_slips(spread: Spread) -> list[kit.Slip]:
    """Gradients that came to another rank's tokens, or were shared like a mean."""
    n, whole = spread.n, spread.wanted
    away = (
        "The gradients belong to another rank's tokens. Gradients from rank r belong to its heads, while "
        "each rank keeps its own tokens."
    )
    mean = "The gradients were divided by N, but each of them comes whole to one rank, so do not divide."
    slips = [kit.Slip(mean, lambda k, name=name: {name: spread.part(whole[name], k) / n}) for name in GRADS]
    for by in range(1, n):
        slips += [
            kit.Slip(away, lambda k, by=by, name=name: {name: spread.part(whole[name], (k + by) % n)})
            for name in GRADS
        ]
    return slips if n > 1 else []


def values(spread: Spread, title: str, weight: float, *, short: bool = False) -> kit.Line:
    if spread.forward_only:
        slips = exchange_slips(spread)
        return value_line(spread, f"{title}: forward", weight, slips, OTHERWISE[0], short=short)
    return value_line(spread, f"{title}: backward", weight, backward_slips(spread), OTHERWISE[1], short=short)


def bytes_lines(spread: Spread, way: str) -> list[kit.Line]:
    run, n = spread.run(), spread.n
    batch, seq, heads, head_dim = spread.whole.q.shape
    width, kv_width = heads * head_dim, spread.whole.k.shape[2] * head_dim
    nbytes = [facts.ulysses_bytes(n, batch * seq, width, kv_width, FLOAT)] * n

    def hint(ratio: float, done: list[Operation]) -> str:
        kinds = {operation.op for operation in done}
        if "all_gather" in kinds:
            return GATHERED
        if "all_reduce" in kinds:
            return (
                "An all-reduce brings the sum of all heads and all tokens to every rank, but each rank "
                "needs only 1/N of them. Backward is also an exchange, so each rank gets the gradients of "
                "its own part."
            )
        if heads > spread.whole.k.shape[2] and ratio > 1:
            return "k and v have fewer heads than q, so send those, and repeat them, if at all, afterwards."
        return (
            "Use four all-to-alls in each direction, for q, k, v and the output, so that (N-1)/N of each is "
            "sent."
        )

    few = "Use one all-to-all for all heads, because each costs N - 1 messages."
    weight = 2 if way == "forward" else 1
    sent = sent_line(run, way, nbytes, hint=hint, weight=weight, tells_the_point=True)
    return [
        all_heads_miss_the_point(sent),
        calls_line(run, way, EXCHANGES * (n - 1), few, f"exchanges {way}"),
    ]


def all_heads_miss_the_point(line: kit.Line) -> kit.Line:
    """Bytes: where all heads came to all ranks, none were exchanged for tokens."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        return replace(finding, misses_point=GATHERED in finding.sentences)

    return replace(line, judge=judge)


def scores_made(spread: Spread) -> int:
    """Of one rank's heads, N x N each."""
    batch, seq, heads, _ = spread.whole.q.shape
    return batch * heads // spread.n * seq**2


def kept_line(spread: Spread) -> kit.Line:
    """As for one rank's share of heads. With fewer bytes than half of the scores it is not these."""
    run, most = spread.run(), [2.2 * kept_bytes(spread)] * spread.n
    scores, views = (
        saved_line(run, most, says=says, weight=1)
        for says in (
            "Each rank has the whole sequence of its heads, so its scores are N x N. Attend with "
            "tiled_attention, which keeps only q, k, v, out and lse.",
            "The rank keeps less than the N x N scores. A slice of a larger tensor keeps all of that "
            "tensor, so if a slice of all heads is handed to tiled_attention, or saved, `.clone()` the "
            "rank's own part instead.",
        )
    )

    def judge(observed: kit.Observed) -> kit.Finding:
        kept = [reply_about(observed, rank, run).saved for rank in members(observed)]
        most_kept = max((nbytes for nbytes in kept if nbytes is not None), default=0)
        if most_kept >= scores_made(spread) * FLOAT // 2:
            return kit.essential(scores).judge(observed)
        return views.judge(observed)

    return replace(scores, judge=judge)


def held_line(spread: Spread, way: str) -> kit.Line:
    """A tile of scores, and tensors of a rank's share."""
    share = {"forward": 0.5, "backward": 0.75}[way]
    says = (
        "More is alive than tiles and a share of the heads need, because the scores of the whole sequence "
        "are alive together. Attend with tiled_attention."
    )
    return kit.essential(
        alive_line(
            spread.run(), way, share * scores_made(spread) * FLOAT, lambda _: says,
            f"alive at any moment, {way}", 0.5,
        )
    )  # fmt: skip


@kit.exercise(
    points=9,
    objects=("ulysses_attention",),
    references=REFERENCES,
    refused=REFUSED,
    hint=trouble,
    point="tokens for heads: each rank attends with its share of the heads, and keeps no N x N matrix",
)
def ulysses_attention(draw: kit.Draw) -> Iterator[kit.Case]:
    whole = Spread.draw(draw, 4, 1024, heads=8, kv_heads=4, head_dim=4, name="whole", measured=True)
    yield from both_ways(whole, "4 ranks", "4 ranks", 2)
    yield from causal(draw, 3, 2)
    group = Spread.draw(draw, 2, 10, heads=4, kv_heads=2, causal=True, name="group")
    yield from both_ways(group, GROUP, "group {1, 3}", 0.5, members=(1, 3), world_size=4)
    yield indivisible(draw)
    yield from causal(draw, 8, 1, weight=0.5)
    if draw.hidden:
        yield from causal(draw, 2, 1)
        alone = Spread.draw(draw, 1, 7, heads=3, kv_heads=3, causal=True, name="alone")
        for case in both_ways(alone, "1 rank", "1 rank", 0.5):
            yield replace(case, lines=[replace(line, trivial=True) for line in case.lines])


def both_ways(spread: Spread, title: str, shown: str, weight: float, **more: Any) -> Iterator[kit.Case]:
    """A run of forward alone, then one with its backward: an error in that costs forward nothing."""
    for way in ("forward", "backward"):
        judged = replace(spread, forward_only=way == "forward")
        lines = [values(judged, shown, weight, short=weight < 1)]
        if spread.settings.get("measured"):
            lines += bytes_lines(judged, way)
            lines += [kept_line(judged)] if way == "backward" else []
            lines.append(held_line(judged, way))
        yield spread_case(title, [judged.run()], lines, OPERATIONS, **more)


def causal(draw: kit.Draw, n: int, batch: int, weight: float = 1.0) -> Iterator[kit.Case]:
    spread = Spread.draw(draw, n, 5 * n, batch=batch, heads=4 * n, kv_heads=2 * n, causal=True, name="causal")
    title = f"causal, {words.counted(n, 'rank')}"
    return both_ways(spread, title, title, weight)


def indivisible(draw: kit.Draw) -> kit.Case:
    """3 ranks, and heads of q or those of k and v that these do not divide."""
    heads = Spread.draw(draw, 3, 6, heads=4, kv_heads=2, name="heads", refuses=True)
    of_keys = Spread.draw(draw, 3, 6, heads=6, kv_heads=2, name="keys", refuses=True)
    return spread_case(
        HEADS,
        [heads.run(), of_keys.run()],
        [
            values_or_refusal_line(heads.run(), "4 heads, 3 ranks", [4, 3], weight=0.5),
            values_or_refusal_line(of_keys.run(), "6 heads, 2 of keys, 3 ranks", [2, 3], weight=0.5),
        ],
        OPERATIONS,
    )
