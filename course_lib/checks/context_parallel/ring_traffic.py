"""Lines about a ring: what it sends, to whom, and when; and what it computes meanwhile."""

from __future__ import annotations

import torch

from course_lib import facts
from course_lib.checks.context_parallel.ring_lines import FLOAT, HALF
from course_lib.checks.context_parallel.ring_whole import Spread
from course_lib.checks.engine import words
from course_lib.checks.engine.case import RIGHT, Finding, Line, Observed, wrong
from course_lib.checks.engine.layers.lines import members, operations, sent_line
from course_lib.checks.engine.spread.runs import calls_line, overlap_line, work_line
from course_lib.facts.context_parallel import BACKWARD, FORWARD
from course_lib.ledger.operation import Operation

FLOPS = {"forward": FORWARD, "backward": BACKWARD}
SPARE = {"forward": 1.05, "backward": 1.25}  # of FLOPs: backward, one product more than it needs
LEAST = 0.4  # of them: of a block on the diagonal hardly more than half is seen
SEPARATE = 2  # messages for what could be one: keys and values apart
FOLLOWS = (
    "dist.batch_isend_irecv before the products of a step, and wait() after them: the next keys travel "
    "while the present ones are used."
)

# ---- what is sent


def keys_bytes(spread: Spread) -> int:
    """Of a rank's keys and values, in float64."""
    return 2 * spread.part(spread.whole.k, 0).numel() * FLOAT


def bytes_lines(spread: Spread) -> list[Line]:
    n, keys, run = spread.n, keys_bytes(spread), spread.run()
    tokens, kv_width = spread.whole.k.shape[1], spread.whole.k.shape[2] * spread.whole.k.shape[3]
    whole = {
        way: facts.ring_attention_bytes(n, tokens, kv_width, FLOAT, way) * spread.whole.k.shape[0]
        for way in ("forward", "backward")
    }

    def forward(ratio: float, done: list[Operation]) -> str:
        if abs(ratio - n / (n - 1)) < 0.02:
            return (
                "N steps need N - 1 transfers: after the last step nobody needs the keys any more."
            )
        return (
            "In each of N - 1 transfers go the keys and values of one rank, in the inputs' dtype."
        )

    def backward(ratio: float, done: list[Operation]) -> str:
        return (
            "Keys and values go round again, N - 1 transfers, and their gradients after them, N: the last "
            "brings them home."
        )

    least = whole["backward"] - keys
    few = "One message for keys and values, or one for each: every message costs a latency."
    return [
        sent_line(run, "forward", [whole["forward"]] * n, hint=forward, weight=1.5),
        sent_line(run, "backward", [least] * n, most=[whole["backward"]] * n, hint=backward),
        calls_line(run, "forward", SEPARATE * (n - 1), few, "messages forward"),
        calls_line(run, "backward", SEPARATE * (2 * n - 1), few, "messages backward"),
    ]


def half_bytes_line(spread: Spread) -> Line:
    """Keys of 16 bits are sent in 16 bits, whatever they are computed in."""
    keys = 2 * spread.part(spread.whole.k, 0).numel() * HALF
    says = (
        "Keys and values travel in the inputs' dtype: what is computed in float32 is made so when it has "
        "come, `kv.to(torch.float32)` of each block, and the message has half of the bytes."
    )
    return sent_line(
        spread.run(torch.bfloat16), "forward", [(spread.n - 1) * keys] * spread.n,
        hint=lambda ratio, done: says if ratio > 1 else "", title="bytes forward, bfloat16", weight=0.5,
    )  # fmt: skip


def neighbours_line(spread: Spread) -> Line:
    """A rank sends to the next one of the ring, or to the one before, and to nobody else."""
    run = spread.run()

    def judge(seen: Observed) -> Finding:
        for k, rank in enumerate(members(seen)):
            done = [
                one for way in ("forward", "backward") for one in operations(run, seen, rank, way)
            ]
            peers = {one.peer for one in done if one.op == "send" and one.peer is not None}
            if strangers := peers - {(k - 1) % spread.n, (k + 1) % spread.n}:
                return wrong(
                    f"rank {rank} sent to {words.ranks(sorted(strangers))}, and not to a neighbour alone.",
                    "Pass on what has come: then N links between neighbours are enough. Keys that their "
                    "owner sends to every other rank cross each other's ways.",
                    cause="strangers",
                )
        return RIGHT

    return Line("only from neighbour to neighbour", judge, 0.5, "communication")


def under_way_lines(spread: Spread) -> list[Line]:
    """While the present block is computed, the next keys are on their way; in backward likewise."""
    needed = [(spread.n - 1) * keys_bytes(spread)] * spread.n
    run = spread.run()
    return [
        overlap_line(run, "forward", needed, FOLLOWS, "the next keys come meanwhile", 1.5),
        overlap_line(run, "backward", needed, FOLLOWS, "backward, too", 0.75),
    ]


# ---- what is computed


def seen_flops(spread: Spread, k: int) -> float:
    """Scores of the pairs of ranges of which anything is seen, times features: for `FLOPS`."""
    batch, _, heads, head_dim = spread.whole.q.shape
    pairs = sum(
        len(queries) * len(keys)
        for queries in spread.layout[k]
        for spans in spread.layout
        for keys in spans
        if not spread.causal or queries[-1] >= keys[0]
    )
    return float(batch * heads * head_dim * pairs)


def seen_lines(spread: Spread, title: str) -> list[Line]:
    """Of pairs of a range of queries and one of keys, those are computed of which anything is seen."""
    says = (
        "Blocks of which the mask leaves nothing are to be skipped, not computed and masked. Take each range "
        "of the rank's queries with each range of the keys that are there: when the last query stands before "
        "the first key, there is nothing to do."
    )
    run = spread.run()
    return [
        work_line(
            run,
            way,
            [SPARE[way] * FLOPS[way] * seen_flops(spread, k) for k in range(spread.n)],
            says,
            f"nothing that nobody sees is computed, {title}, {way}",
            0.75,
            least=LEAST,
        )
        for way in ("forward", "backward")
    ]
