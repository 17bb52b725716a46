"""hierarchical_all_reduce: ranks r with equal r // g share a node, those with equal r % g a place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.collectives.sums import (
    REFERENCE,
    common_hint,
    other_dtype,
    rounding_case,
    sum_case,
    tail,
)
from course_lib.facts import hierarchical_bytes

MANY_MORE = 1.5  # times a rank's own share of what crosses; a whole tensor is g times as much


def hierarchical_hint(mistakes: list[kit.Mistake], n: int, numel: int, observed: kit.Observed) -> str:
    if tail(mistakes, n, numel):
        return f"The remainder of {numel} / {n} elements was not summed. Pad, or cut with torch.tensor_split."
    signs = {mistake.sign for mistake in mistakes}
    if "zero" in signs and signs & {"moved", "moved_copy"}:
        return (
            "Shards came back in the wrong order, and padding in the place of values. The first and the last "
            "step both run inside the node, in intra_group."
        )
    if common := common_hint(mistakes, n, numel):
        return common
    if "twice" in signs:
        return (
            "Values were counted twice. Reduce-scatter inside the node, all-reduce each rank's own shard "
            "across the nodes, then all-gather inside, so that each value enters one shard's sum once."
        )
    if signs & {"moved", "moved_copy"}:
        return (
            "Shards came back in the wrong order. Shard k of the gathered tensor belongs to the k-th rank "
            "of the node, so the last step gathers in intra_group, as the first scatters there."
        )
    return (
        "The sums include only some ranks. Reduce-scatter inside the node, sum each shard across the "
        "nodes, then gather inside again."
    )


def hierarchical_trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return (
            "Each step runs in one of the two groups. Pass that group to every operation, count ranks "
            "within it, and make every rank of the group take part."
        )
    if dtype := other_dtype(kind, text):
        return dtype
    misfit = kind == "error" and ("invalid for input" in text or "must match" in text)
    if misfit and case.sides[0].inputs["tensor"].numel() % len(case.groups[0]) == 0:
        return (
            "A shard is 1/g of the tensor, where g is the number of ranks in intra_group. Look at the order "
            "of output and input in each call, and at the group that it gets."
        )
    if misfit:
        return (
            "Shards can differ in size, since the ranks do not always divide the tensor. Pad, or cut with "
            "tensor_split."
        )
    return ""


def groups_of(nodes: int, per_node: int) -> list[list[int]]:
    """First the groups inside the nodes, then those across them."""
    inside = [list(range(k * per_node, (k + 1) * per_node)) for k in range(nodes)]
    across = [list(range(place, nodes * per_node, per_node)) for place in range(per_node)]
    return inside + across


def wire_line(nodes: int, per_node: int, nbytes: int, *, inside: bool, weight: float) -> kit.Line:
    """Bytes that each rank sends inside its node, or to other nodes."""
    least = int(hierarchical_bytes(per_node, nodes, nbytes)[0 if inside else 1])
    where = "inside a node" if inside else "across nodes"
    size = f"{nodes} x {per_node} ranks"

    def sent_by(observed: kit.Observed, rank: int) -> int:
        return sum(
            operation.nbytes
            for operation in observed.operations[rank]
            if operation.op == "send"
            and operation.peer is not None
            and (operation.peer // per_node == rank // per_node) == inside
        )

    def judge(observed: kit.Observed) -> kit.Finding:
        sent = [sent_by(observed, rank) for rank in range(observed.world_size)]
        rank = max(range(len(sent)), key=lambda r: abs(sent[r] - least))
        if sent[rank] == least:
            return kit.Finding(True, title=f"bytes sent {where}, {size}: {words.number(least)} per rank")
        said = f"rank {rank} sent {words.number(sent[rank])} bytes {where}, {size}; "
        said += f"{words.number(least)} are right."
        many = max(sent) / max(least, 1)
        return kit.wrong(
            said, wire_hint(sent, least, per_node, inside), cause=where,
            misses_point=not inside and many >= MANY_MORE,
        )  # fmt: skip

    def of_those_due(observed: kit.Observed) -> float:
        sent = [sent_by(observed, rank) for rank in range(observed.world_size)]
        return kit.share_of(sent, [least] * len(sent))

    tells = None if inside else of_those_due
    return kit.Line(f"bytes sent {where}, {size}", judge, weight, "communication", shows=tells)


def wire_hint(sent: list[int], least: int, per_node: int, inside: bool) -> str:
    ratio = max(sent) / max(least, 1)
    if min(sent) == 0 < max(sent):
        where = "inside a node" if inside else "across nodes"
        idle = [rank for rank, nbytes in enumerate(sent) if not nbytes]
        return (
            f"{words.ranks(idle).capitalize()} sent nothing {where}. Usually one ring runs over all ranks, "
            "or one rank of a node sends for all. Every rank must send inside its node, and its own share "
            "of 1/g across."
        )
    if inside:
        return "Inside the node, a reduce-scatter and an all-gather on a ring send (g-1)/g M each."
    if abs(ratio - per_node) < 0.02:
        return (
            "The whole tensor crossed the slow wire between the nodes. Only each rank's own share of 1/g, "
            "the result of the reduce-scatter, has to cross."
        )
    return "Across the nodes, a ring all-reduce of M/g sends 2(n-1)/n M/g."


def wires(nodes: int, per_node: int, numel: int) -> list[kit.Line]:
    return [
        wire_line(nodes, per_node, 4 * numel, inside=True, weight=1),
        wire_line(nodes, per_node, 4 * numel, inside=False, weight=2),
    ]


@kit.exercise(
    points=5, objects=("hierarchical_all_reduce",), references=REFERENCE, hint=hierarchical_trouble,
    point="sending each rank's own share of 1/g across the nodes, and no more",
)  # fmt: skip
def hierarchical_all_reduce(draw: kit.Draw) -> Iterator[kit.Case]:
    def both_groups(nodes: int, per_node: int):
        return lambda rank: [{"group": rank // per_node}, {"group": nodes + rank % per_node}]

    def case(nodes: int, per_node: int, numel: int, **more: Any) -> kit.Case:
        of = f"{words.counted(nodes, 'node')} of {words.counted(per_node, 'rank')}"
        on = kit.Setting(nodes * per_node, (numel,), f"{of}, {words.counted(numel, 'element')}", **more)
        return sum_case(draw, on, hierarchical_hint, both_groups(nodes, per_node), groups_of(nodes, per_node))

    yield case(2, 2, 8, weight=3, more=(*wires(2, 2, 8), kit.only_messages(0.5)))
    yield case(2, 3, 12, weight=2, more=tuple(wires(2, 3, 12)))
    yield case(2, 2, 7, weight=1.5, aspect="shape")
    yield case(2, 1, 5, weight=0.5, aspect="shape")
    yield case(1, 2, 4, weight=0.5, aspect="shape")
    if draw.hidden:
        yield case(3, 2, 12, more=tuple(wires(3, 2, 12)))
        yield case(2, 2, 1, weight=0.5, aspect="shape")
        yield rounding_case(draw, kit.Setting(4, (9,), aspect="shape"), both_groups(2, 2), groups_of(2, 2))
