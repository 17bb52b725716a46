"""A record of operations, repeated on other links: the clock of every rank, by hand.

    replay(records, per_node, inside, across)

records: for each rank its list of entries, in order:

    ("compute", seconds)
    ("all_reduce", group, nbytes)     group: the ranks that take part, including this one
    ("send", peer, nbytes)            the rank continues immediately
    ("recv", peer, nbytes)            the rank continues when the message has arrived

inside, across: (alpha, beta) of the links; ranks fill nodes of `per_node` in order. An operation lasts
alpha + bytes x beta, with one alpha, and the bytes its busiest member sends. For a sum over n ranks these are
2 (n - 1) / n of its bytes, and for a message all of them. A sum begins when its last member has arrived. A
message begins when its sender has begun it and the sender's link is free, because a link carries one message
after the other, in order.

`replay.py` does the same for a whole ledger, with handles that are waited for later.
Source of alpha and beta: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Entry = Sequence[Any]
Link = tuple[float, float]


def replay(records: Sequence[Sequence[Entry]], per_node: int, inside: Link, across: Link) -> float:
    """Seconds until the last rank has finished its record. ValueError if ranks wait for each other."""

    def seconds(ranks: Sequence[int], nbytes: float) -> float:
        alpha, beta = inside if len({rank // per_node for rank in ranks}) == 1 else across
        return alpha + nbytes * beta

    now, place = [0.0] * len(records), [0] * len(records)
    links: dict[tuple[int, bool], float] = defaultdict(float)  # when a rank's link is free
    messages: dict[tuple[int, int], list[float]] = defaultdict(
        list
    )  # arrivals, by sender and receiver
    while any(at < len(record) for at, record in zip(place, records, strict=True)):
        before = list(place)
        for rank, record in enumerate(records):
            while place[rank] < len(record):
                kind, *what = record[place[rank]]
                if kind == "compute":
                    now[rank] += what[0]
                elif kind == "send":
                    peer, nbytes = what
                    link = rank, rank // per_node == peer // per_node
                    links[link] = max(now[rank], links[link]) + seconds((rank, peer), nbytes)
                    messages[rank, peer].append(links[link])
                elif kind == "recv":
                    if not messages[what[0], rank]:
                        break
                    now[rank] = max(now[rank], messages[what[0], rank].pop(0))
                else:
                    group, nbytes = what
                    n = len(group)
                    if any(not _has_come(records, place, member, group) for member in group):
                        break
                    end = max(now[member] for member in group)
                    end += seconds(group, 2 * (n - 1) / n * nbytes)
                    for member in group:
                        now[member] = end
                        place[member] += member != rank
                place[rank] += 1
        if place == before:
            raise ValueError("the ranks wait for each other: a record lacks an entry")
    return max(now, default=0.0)


def _has_come(
    records: Sequence[Sequence[Entry]], place: list[int], member: int, group: Sequence[int]
) -> bool:
    """Whether the next entry of a member is a sum of this group."""
    if place[member] == len(records[member]):
        return False
    kind, *what = records[member][place[member]]
    return kind == "all_reduce" and list(what[0]) == list(group)
