"""Lines about a ring's messages: their bytes, receivers and times; and its computations meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from course_lib import facts
from course_lib.checks import kit, words
from course_lib.checks.judge.layers.lines import members, operations, sent_line
from course_lib.checks.notebooks.context_parallel.ring_lines import FLOAT, HALF
from course_lib.checks.notebooks.context_parallel.ring_whole import Spread
from course_lib.checks.notebooks.context_parallel.spread import calls_line, overlap_line, watched, work_line
from course_lib.facts.context_parallel import BACKWARD, FORWARD
from course_lib.ledger.operation import Operation

FLOPS = {"forward": FORWARD, "backward": BACKWARD}
SPARE = {"forward": 1.05, "backward": 1.25}  # of FLOPs: backward, one product more than it needs
LEAST = 0.4  # of them: of a block on the diagonal hardly more than half is seen
SEPARATE = 2  # messages for what could be one: keys and values apart
FOLLOWS = (
    "Call dist.batch_isend_irecv before the products of a step, and wait() after them, so that the next "
    "keys travel while the present ones are used."
)
TOO_MANY = "N steps need N - 1 transfers, because after the last step no rank needs the keys any more."
ONE_EACH = "Each of N - 1 transfers carries the keys and values of one rank, in the inputs' dtype."
WIDE = (
    "Keys and values travel in the inputs' dtype. Convert each block to float32 only after it has arrived, "
    "with `kv.to(torch.float32)`, so that the message has half of the bytes."
)

# ---- what is sent


def keys_bytes(spread: Spread) -> int:
    """Of a rank's keys and values, in float64."""
    return 2 * spread.part(spread.whole.k, 0).numel() * FLOAT


def bytes_lines(spread: Spread, way: str) -> list[kit.Line]:
    n, run = spread.n, spread.run()
    tokens, kv_width = spread.whole.k.shape[1], spread.whole.k.shape[2] * spread.whole.k.shape[3]
    batch = spread.whole.k.shape[0]
    most = facts.ring_attention_bytes(n, tokens, kv_width, FLOAT, way) * batch
    few = "Send one message for keys and values, or one for each, because every message costs a latency."
    if way == "forward":
        return [
            with_products(
                sent_line(run, way, [most] * n, hint=forward_hint(n), weight=1.5, tells_the_point=True),
                spread,
                way,
            ),
            calls_line(run, way, SEPARATE * (n - 1), few, "messages forward"),
        ]
    return [
        with_products(
            sent_line(
                run,
                way,
                [most - keys_bytes(spread)] * n,
                most=[most] * n,
                hint=backward_hint,
                tells_the_point=True,
            ),
            spread,
            way,
        ),
        calls_line(run, way, SEPARATE * (2 * n - 1), few, "messages backward"),
    ]


def with_products(line: kit.Line, spread: Spread, way: str) -> kit.Line:
    """The line; messages show a ring only where the ranks also multiply what comes."""
    shows = line.shows

    def with_work(observed: kit.Observed) -> float:
        for k, rank in enumerate(members(observed)):
            done = watched(observed, rank, spread.run(), way, "flops")
            if done < LEAST * seen_flops(spread, k) * FLOPS[way]:
                return 0.0
        return shows(observed) if shows else 0.0

    return replace(line, shows=with_work)


def forward_hint(n: int, wide: bool = False) -> Callable[[float, list[Operation]], str]:
    """wide: whether keys of 16 bits could have been sent in 32."""

    def hint(ratio: float, done: list[Operation]) -> str:
        all_steps = n / (n - 1)
        said = []
        if wide and near(ratio, 2, 2 * all_steps):
            said.append(WIDE)
        if near(ratio, all_steps, *([2 * all_steps] if wide else [])):
            said.append(TOO_MANY)
        return " ".join(said) or ONE_EACH

    return hint


def near(ratio: float, *ratios: float) -> bool:
    return any(abs(ratio - other) < 0.02 for other in ratios)


def backward_hint(ratio: float, done: list[Operation]) -> str:
    return (
        "Keys and values go around again, in N - 1 transfers. Their gradients follow in N transfers, "
        "because the last one brings them home."
    )


def half_bytes_line(spread: Spread) -> kit.Line:
    """Keys of 16 bits are sent in 16 bits, whatever they are computed in."""
    keys = 2 * spread.part(spread.whole.k, 0).numel() * HALF
    return sent_line(
        spread.run(torch.bfloat16), "forward", [(spread.n - 1) * keys] * spread.n,
        hint=forward_hint(spread.n, wide=True), title="bytes forward, bfloat16", weight=0.5,
    )  # fmt: skip


def neighbours_line(spread: Spread, way: str) -> kit.Line:
    """A rank sends to the next one of the ring, or to the one before, and to no other."""
    run = spread.run()

    def judge(observed: kit.Observed) -> kit.Finding:
        for k, rank in enumerate(members(observed)):
            done = operations(run, observed, rank, way)
            peers = {
                operation.peer for operation in done if operation.op == "send" and operation.peer is not None
            }
            if strangers := peers - {(k - 1) % spread.n, (k + 1) % spread.n}:
                return kit.wrong(
                    f"rank {rank} sent to {words.ranks(sorted(strangers))}, although it should send only to "
                    "its neighbours.",
                    "Pass on the block that has arrived, because then N links between neighbours are "
                    "enough. Keys sent by their owner to every other rank get in each other's way.",
                    cause="strangers",
                )
        return kit.RIGHT

    return kit.Line("only from neighbour to neighbour", judge, 0.5, "communication")


def under_way_line(spread: Spread, way: str, weight: float) -> kit.Line:
    """While a block is computed, the next keys are on their way; backward, sums of gradients may be, too."""
    needed = [(spread.n - 1) * keys_bytes(spread)] * spread.n
    title = {"forward": "the next keys come meanwhile", "backward": "messages travel meanwhile"}
    return overlap_line(spread.run(), way, needed, FOLLOWS, title[way], weight)


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


def seen_line(spread: Spread, title: str, way: str) -> kit.Line:
    """A range of queries is multiplied by a range of keys only if some query sees a key there."""
    says = (
        "Skip blocks that the mask hides whole, instead of computing and masking them. Compare each range "
        "of the rank's queries with each range of the present keys. If the last query is before the first "
        "key, there is nothing to do."
    )
    most = [SPARE[way] * FLOPS[way] * seen_flops(spread, k) for k in range(spread.n)]
    titled = f"blocks that no query sees are skipped, {title}, {way}"
    return work_line(spread.run(), way, most, says, titled, 0.75, least=LEAST)
