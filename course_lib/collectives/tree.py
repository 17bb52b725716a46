"""Collectives on trees: broadcast, reduce, and an all-reduce on two trees at the same time.

Any rank that holds the data can pass it on, so the number of ranks that hold it can double in each round.
Therefore ceil(log2 N) rounds reach N ranks, whereas a root that serves all others itself needs N - 1. No
algorithm needs fewer rounds if it sends the message whole. But the busiest rank pays for this, because the
root of a binomial tree sends the tensor once in every round.

    broadcast                     ceil(log2 N) M sent by the root,   ceil(log2 N) rounds
    reduce                        M sent by every rank except dst,   ceil(log2 N)
    double_binary_tree_all_reduce 2 M at most,                       2 ceil(log2 N) + blocks - 1

In one tree the inner ranks work, but the leaves idle. Two trees keep all ranks busy if every rank is a leaf
of at least one of them. Blocks that follow each other through a tree also keep every level busy. With both
ideas, an all-reduce takes O(log N) latency and a bounded number of bytes. NCCL calls this algorithm "Tree".

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
International Journal of High Performance Computing Applications 19 (2005), for the binomial trees;
Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
Parallel Computing 35 (2009); NCCL, src/graph/trees.cc, for the shape of the two trees.

Arguments follow the order and the habits of `torch.distributed`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .messages import Group, exchange, flat_to_write, group_rank, put_back, rank_and_size


def broadcast(tensor: Tensor, src: int, group: Group = None) -> None:
    """Copy `tensor` from rank `src` to all ranks of `group`, in place, on a binomial tree.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank. Unchanged on `src`.
    src: rank in the whole world, even if a group is given, as in `dist.broadcast`.
    In round k, each of the 2^k ranks that have the tensor sends it to a rank that does not have it yet.
    Bytes sent: ceil(log2 N) M by src, less by the others, (N-1) M by all together. Rounds: ceil(log2 N).

    Raises ValueError if src is not in the group or `tensor` cannot be written; TypeError if it is not a
    dense tensor.
    """
    rank, n = rank_and_size(group)
    root = group_rank(src, "src", group)
    flat = flat_to_write(tensor)
    place = (rank - root) % n  # the tree is drawn with the root at place 0
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            exchange(group, sends=[(flat, (rank + distance) % n)])
        elif distance <= place < 2 * distance:
            exchange(group, receives=[(flat, (rank - distance) % n)])
        distance *= 2
    if place > 0:
        put_back(flat, tensor)


def reduce(tensor: Tensor, dst: int, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group` in place on rank `dst`, by running a broadcast backwards.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank. It changes only on `dst`
    (`dist.reduce` leaves it undefined on the other ranks).
    dst: rank in the whole world, even if a group is given.
    Bytes sent: M by every rank except dst. Rounds: ceil(log2 N). Scratch: up to two tensors.

    Raises ValueError if dst is not in the group or `tensor` cannot be written; TypeError if it is not a
    dense tensor.
    """
    rank, n = rank_and_size(group)
    root = group_rank(dst, "dst", group)
    total = flat_to_write(tensor)
    place = (rank - root) % n
    distance = 1 << (n - 1).bit_length() >> 1  # the last distance of the broadcast
    while distance:
        if place < distance and place + distance < n:
            arriving = torch.empty_like(total)
            exchange(group, receives=[(arriving, (rank + distance) % n)])
            total = total + arriving  # a new tensor: this rank's own stays as it is
        elif distance <= place < 2 * distance:
            exchange(group, sends=[(total, (rank - distance) % n)])
        distance //= 2
    if place == 0:
        put_back(total, tensor)


def double_binary_tree_all_reduce(tensor: Tensor, group: Group = None, blocks: int = 4) -> None:
    """Sum `tensor` over the ranks of `group`, in place, with one tree for each half of the tensor.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    blocks: pieces of each half that follow each other through its tree. More blocks keep more levels busy,
    but need more messages.

    Sums travel up to the root, and totals travel down the same tree. A node at depth d of D sends block b
    up in round D - d + b and down in round D + d + b, so both directions, both trees and all blocks are
    under way at the same time.
    Bytes sent: up to 2 M (an inner rank sends M/2 up and M/2 to each of two children, and M/2 up as a leaf
    of the other tree). Rounds: 2 ceil(log2 N) + blocks - 1. Scratch: four blocks.
    The roots compute the totals, and all ranks copy them, so all ranks end with the same bits.

    Raises ValueError if `tensor` cannot be written or blocks < 1; TypeError if it is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    if blocks < 1:
        raise ValueError(f"blocks={blocks}: a tensor is sent in at least 1 block")
    flat = flat_to_write(tensor)
    deepest = (n - 1).bit_length()
    # for each round: its receives, its sends, and the sums that follow them
    timetable = [([], [], []) for _ in range(2 * deepest + blocks)]
    for number, half in enumerate(flat.tensor_split(2)):
        parent, children, depth = _node(rank, n, number)
        pieces = half.tensor_split(blocks)
        scratch = flat.new_empty(2, pieces[0].numel())  # one place for each child's sum
        for b, block in enumerate(pieces):
            up, down = deepest - depth + b, deepest + depth + b
            for child, room in zip(children, scratch, strict=False):
                arriving = room[: block.numel()]
                timetable[up - 1][0].append((arriving, child))
                timetable[up - 1][2].append((block, arriving))
                timetable[down][1].append((block, child))
            if parent is not None:
                timetable[up][1].append((block, parent))
                timetable[down - 1][0].append((block, parent))
    for receives, sends, sums in timetable:
        exchange(group, receives, sends)
        for block, arriving in sums:
            block += arriving
    put_back(flat, tensor)


def _node(rank: int, n: int, number: int) -> tuple[int | None, list[int], int]:
    r"""Parent, children and depth of `rank` in tree 0 or 1; the root has no parent.

    Tree 0 puts rank r in place r. Odd places are leaves. An even place with lowest set bit b has its
    children b/2 to the left and b/2 to the right. Tree 1 is tree 0 mirrored (N even) or shifted by one
    (N odd), so that leaves and inner ranks change places.

        0 ------- 4            place 0, the root, has one child
                /   \
               2     6         N = 8
              / \   / \
             1   3 5   7
    """
    ranks = [range(n), [*range(1, n), 0] if n % 2 else range(n)[::-1]][number]
    parents = [_parent(place, n) for place in range(n)]
    here = place = ranks.index(rank)
    children = [ranks[p] for p in range(1, n) if parents[p] == here]
    depth = 0
    while place:
        place, depth = parents[place], depth + 1
    return ranks[parents[here]] if here else None, children, depth


def _parent(place: int, n: int) -> int:
    lowest = place & -place
    above = (place ^ lowest) | (lowest << 1)
    return above if above < n else place ^ lowest
