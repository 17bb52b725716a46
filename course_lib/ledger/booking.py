"""The bytes booked by the ledger for a built-in collective.

The ledger cannot see the messages of a backend inside a collective, so it books the bytes of the
bandwidth-optimal algorithm, the convention of nccl-tests (`doc/PERFORMANCE.md` there): a ring for all-reduce,
all-gather and reduce-scatter, pairwise exchange for all-to-all, a pipelined chain for broadcast and
reduce, the root's own links for gather and scatter. gloo carries out a reduce-scatter as an all-reduce,
so it sends twice the booked bytes.
"""

from __future__ import annotations


def logical_bytes(
    op: str, group: tuple[int, ...], rank: int, nbytes: float, root: int = -1
) -> float:
    """Bytes that `rank` sends in the built-in `op` on a full tensor of `nbytes` bytes.

    `root` is the source or destination, a global rank like those in `group`. For the busiest rank,
    `course_lib.facts.logical_bytes` gives the same number in closed form.
    """
    n = len(group)
    if n <= 1 or op in ("recv", "barrier", "new_group"):
        return 0.0
    if op == "all_reduce":
        return 2 * (n - 1) / n * nbytes
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n * nbytes
    place = (group.index(rank) - group.index(root)) % n if root in group else 0
    if op == "broadcast":  # root -> root + 1 -> ... : the chain's last rank sends nothing
        return 0.0 if place == n - 1 else float(nbytes)
    if op == "reduce":  # root + 1 -> root + 2 -> ... -> root
        return 0.0 if place == 0 else float(nbytes)
    if op == "gather":
        return 0.0 if place == 0 else nbytes / n
    if op == "scatter":
        return (n - 1) / n * nbytes if place == 0 else 0.0
    raise ValueError(f"no booking is known for the operation {op!r}")
