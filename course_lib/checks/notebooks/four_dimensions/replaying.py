"""replay: a record of operations, done again on other links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.plans import Formula
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.planning.replay_by_hand import replay as right

Records = Sequence[Sequence[Any]]
LINKS = ((0.001, 1e-8), (0.01, 1e-7))  # (alpha, beta) inside a node and across


class Tape(list[Any]):
    """Records with a name: the entries would fill a page."""

    def __init__(self, name: str, records: Records):
        super().__init__(records)
        self.name = name

    def __repr__(self) -> str:
        return self.name


def rerun(
    records: Records,
    per_node: int,
    inside: tuple[float, float],
    across: tuple[float, float],
    *,
    last: bool = True,
    rounds: bool = False,
    ring: Callable[[int], float] = lambda n: 2 * (n - 1) / n,
    wire: str = "slowest",
    blocking: bool = False,
    queue: str = "link",
    sums_queue: bool = False,
    compute: bool = True,
    alpha: bool = True,
) -> float:
    """The clock with mistakes. ring: factor on a sum's bytes; queue: the messages that delay another."""

    def seconds(ranks: Sequence[int], nbytes: float, times: int = 1) -> float:
        together = len({rank // per_node for rank in ranks}) == 1
        together = {"slowest": together, "first": ranks[0] // per_node == ranks[1] // per_node,
                    "inside": True}[wire]  # fmt: skip
        a, b = inside if together else across
        return alpha * a * times + nbytes * b

    now, place = [0.0] * len(records), [0] * len(records)
    links: dict[tuple[int, Any], float] = defaultdict(float)
    messages: dict[tuple[int, int], list[float]] = defaultdict(list)
    while True:
        before = list(place)
        for rank, record in enumerate(records):
            while place[rank] < len(record):
                kind, *what = record[place[rank]]
                if kind == "compute":
                    now[rank] += what[0] * compute
                elif kind == "send":
                    peer, nbytes = what
                    inside_node = rank // per_node == peer // per_node
                    link = rank, {"link": inside_node, "rank": "", "peer": peer, "nothing": ""}[queue]
                    start = now[rank] if queue == "nothing" else max(now[rank], links[link])
                    links[link] = start + seconds((rank, peer), nbytes)
                    messages[rank, peer].append(links[link])
                    if blocking:
                        now[rank] = links[link]
                elif kind == "recv":
                    if not messages[what[0], rank]:
                        break
                    now[rank] = max(now[rank], messages[what[0], rank].pop(0))
                else:
                    group, nbytes = what
                    n = len(group)
                    if any(
                        place[k] == len(records[k]) or list(records[k][place[k]][1:2]) != [group]
                        for k in group
                    ):
                        break
                    took = seconds(group, ring(n) * nbytes, 2 * (n - 1) if rounds else 1)
                    near = len({k // per_node for k in group}) == 1
                    free = max(links[k, near] for k in group) if sums_queue else 0.0
                    end = max(free, *(now[k] for k in group)) + took
                    for k in group:
                        links[k, near] = end if sums_queue else links[k, near]
                        now[k] = end if last else now[k] + took
                        place[k] += k != rank
                place[rank] += 1
        if place == before:
            return max(now, default=0.0)


def slip(**change: Any) -> Formula:
    return lambda *args: rerun(*args, **change)


def summed(records: Records, per_node: int, inside: tuple, across: tuple) -> float:
    """The longest sum of a rank's own seconds."""
    alone = []
    for rank, record in enumerate(records):
        total = 0.0
        for kind, *what in record:
            if kind == "compute":
                total += what[0]
                continue
            ranks = (rank, what[0]) if kind in ("send", "recv") else what[0]
            a, b = inside if len({r // per_node for r in ranks}) == 1 else across
            factor = 1 if kind in ("send", "recv") else 2 * (len(ranks) - 1) / len(ranks)
            total += a + factor * what[1] * b
        alone.append(total)
    return max(alone)


RING = "An all-reduce sends 2 (n - 1) / n of its bytes, not"
SLIPS: dict[str, Formula] = {
    "A sum begins when its last member has arrived, so it ends for all at the same time.": slip(last=False),
    "Each rank's seconds were added up separately. But a rank also waits for the last member of a sum, and "
    "for the sender of a message.": summed,
    "Here an operation has only one alpha, as on the emulated wires, not one for each of 2 (n - 1) "
    "rounds.": slip(
        rounds=True
    ),
    f"{RING} (n - 1) / n of them.": slip(ring=lambda n: (n - 1) / n),
    f"{RING} twice its bytes.": slip(ring=lambda n: 2),
    f"{RING} its bytes once.": slip(ring=lambda n: 1),
    "A group uses its slowest link, so one member in another node is enough.": slip(wire="first"),
    "Every operation takes the link inside a node here, so look at the nodes of its ranks.": slip(
        wire="inside"
    ),
    "A sender continues immediately, while its message travels.": slip(blocking=True),
    "A link carries only one message at a time, so the second of two sends waits for the first.": slip(
        queue="nothing"
    ),
    "A rank has two links, one inside its node and one across, so neither waits for messages on the other "
    "link.": (
        slip(queue="rank")
    ),
    "A rank has one link across, whatever the destination, so messages to two ranks wait for one "
    "another.": slip(
        queue="peer"
    ),
    "A sum does not queue, so it neither waits for messages on the way nor delays them.": slip(
        sums_queue=True
    ),
    "The compute between the operations is missing.": slip(compute=False),
    "The alphas are missing, but they are almost all that a small message costs.": slip(alpha=False),
}  # fmt: skip


def pipeline(pp: int, tp: int, m: int, pace: float, nbytes: int) -> Tape:
    """1F1B as GPipe: all forwards, then all backwards; ranks pp x tp, and sums over tp and over all."""
    records: list[list[Any]] = [[] for _ in range(pp * tp)]
    for rank, record in enumerate(records):
        stage, group = rank // tp, [rank // tp * tp + k for k in range(tp)]
        for ahead, count in ((1, 1), (-1, 2)):
            first, last = (0, pp - 1) if ahead == 1 else (pp - 1, 0)
            for _ in range(m):
                if stage != first:
                    record.append(["recv", rank - ahead * tp, nbytes])
                record.append(["compute", pace * count * (1 + stage / 10)])
                if tp > 1:
                    record.append(["all_reduce", group, nbytes])
                if stage != last:
                    record.append(["send", rank + ahead * tp, nbytes])
        record.append(["all_reduce", list(range(pp * tp)), 4 * nbytes])
    return Tape(f"pipeline(pp={pp}, tp={tp}, microbatches={m})", records)


@kit.exercise(points=6, objects=("replay",), references=OF_NUMBERS, extra=True)
def replay(draw: kit.Draw) -> Iterator[kit.Case]:
    sums = Tape(
        "two_sums",
        [[["compute", 0.1 * (r + 1)], ["all_reduce", [0, 1, 2, 3], 8 * 10**5],
          ["compute", 0.1 * (4 - r)], ["all_reduce", [0, 1, 2, 3], 4 * 10**5]] for r in range(4)],
    )  # fmt: skip
    sends = Tape(
        "two_sends",
        [
            [["compute", 0.02], ["send", 1, 10**6], ["send", 1, 10**6], ["compute", 0.005]],
            [["recv", 0, 10**6], ["compute", 0.01], ["recv", 0, 10**6], ["compute", 0.01]],
        ],
    )
    fan = Tape(  # a rank's messages on both links, to several ranks on one, and twice to one of them
        "fan",
        [
            [["compute", 0.01], *(["send", peer, 10**6] for peer in (2, 1, 4, 3, 4)), ["compute", 0.02]],
            *([["recv", 0, 10**6], ["compute", 0.01 * (5 - rank)]] for rank in range(1, 4)),
            [["recv", 0, 10**6], ["recv", 0, 10**6]],
        ],
    )
    tapes = [pipeline(2, 2, 4, 0.01, 2 * 10**5), pipeline(4, 1, 6, 0.01, 10**5)]
    if draw.hidden:
        for _ in range(3):
            pace = draw.integer(5, 40) / 1000
            tape = pipeline(draw.integer(2, 5), draw.choice([1, 2, 4]), draw.integer(2, 9), pace, 10**5)
            tapes.append(tape)
    both: list[tuple[Any, ...]] = [(tape, 2, *LINKS) for tape in tapes] + [(tapes[0], 3, *LINKS)]
    yield from kit.evaluated(
        [
            kit.Prediction(
                "replay", 0, plans, right, SLIPS, weight, title, tolerance=1e-6,
                otherwise="Print when each entry ends on each rank, then compare with the example by hand.",
            )
            for title, plans, weight in (
                ("sums of ranks that come late", [(sums, 4, *LINKS), (sums, 3, *LINKS)], 1),
                ("messages on one link", [(sends, 2, *LINKS), (sends, 1, *LINKS)], 1),
                ("messages on two links, to several ranks", [(fan, 2, *LINKS), (fan, 3, *LINKS)], 1),
                ("pipelines", both, 2),
            )
        ]
    )  # fmt: skip
