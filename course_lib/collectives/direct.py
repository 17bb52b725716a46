"""Collectives in which every piece goes straight to the rank it is for.

The rank that has a piece sends it once, directly to the rank that needs it, so no algorithm can send fewer
bytes. Only the order is left to choose, and a good order overruns no rank. In all_to_all, for example,
every rank sends one message and receives one in each round.

    scatter      (N-1)/N M bytes sent by src              N - 1 rounds
    gather       M/N sent by every rank except dst        N - 1
    all_to_all   (N-1)/N M sent by each rank              N - 1

M is the full tensor, which consists of N pieces.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
International Journal of High Performance Computing Applications 19 (2005). Here, all_to_all is its pairwise
exchange for any number of ranks.

Arguments follow the order and the habits of `torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from .messages import (
    Group,
    check_sizes,
    exchange,
    flat_to_read,
    flat_to_write,
    group_rank,
    put_back,
    rank_and_size,
)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int = 0,
    group: Group = None,
) -> None:
    """Hand the i-th tensor of rank `src`'s `scatter_list` to the i-th rank of `group`, in `tensor`.

    tensor: any shape, contiguous or not; the same size and dtype on every rank. It is overwritten.
    scatter_list: on src, N tensors of that size and dtype; on the other ranks, None.
    src: rank in the whole world, even if a group is given.
    Bytes sent: (N-1)/N M by src, none by the other ranks (M: all N tensors). Rounds: N - 1.

    Raises ValueError if src is not in the group, if scatter_list does not fit, or if a rank other than src
    passes one; TypeError if an argument is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    root = group_rank(src, "src", group)
    result = flat_to_write(tensor)
    pieces = _pieces(scatter_list, "scatter_list", result, n if rank == root else 0, flat_to_read)
    if rank == root:
        for k in range(1, n):
            exchange(group, sends=[(pieces[(root + k) % n], (root + k) % n)])
        result.copy_(pieces[root])
    else:
        exchange(group, receives=[(result, root)])
    put_back(result, tensor)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int = 0,
    group: Group = None,
) -> None:
    """Collect all ranks' tensors on rank `dst`, the i-th rank's `tensor` in the i-th of `gather_list`.

    tensor: any shape, contiguous or not; the same size and dtype on every rank. It is not changed.
    gather_list: on dst, N tensors of that size and dtype, which are overwritten; on the other ranks, None.
    dst: rank in the whole world, even if a group is given.
    Bytes sent: M/N by every rank except dst (M: all N tensors). Rounds: N - 1, as many as dst receives.

    Raises ValueError if dst is not in the group, if gather_list does not fit, or if a rank other than dst
    passes one; TypeError if an argument is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    root = group_rank(dst, "dst", group)
    own = flat_to_read(tensor, "tensor")
    pieces = _pieces(gather_list, "gather_list", own, n if rank == root else 0, flat_to_write)
    if rank == root:
        pieces[root].copy_(own)
        for k in range(1, n):
            exchange(group, receives=[(pieces[(root + k) % n], (root + k) % n)])
    else:
        exchange(group, sends=[(own, root)])
    for piece, target in zip(pieces, gather_list or (), strict=True):
        put_back(piece, target)


def all_to_all(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Send the j-th of N equal parts of `input` to rank j, and place rank i's part i-th in `output`.

    input: its first dimension is a multiple of N; parts are cut along it. It is not changed.
    output: as many elements, same dtype and device.
    The result equals the result of `dist.all_to_all_single` without split sizes. In round k, rank r sends
    to rank r + k and receives from rank r - k.
    Each rank sends (N-1)/N of the input's bytes, in N - 1 rounds. It needs no scratch memory.

    Raises ValueError if sizes or dtypes do not fit, or if N does not divide the first dimension; TypeError
    if an argument is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    result, sent = flat_to_write(output, "output"), flat_to_read(input, "input", output)
    check_sizes(1, output=output, input=input)
    rows = input.shape[:1].numel()  # 1 without dimensions
    if rows % n:
        raise ValueError(f"input's first dimension is {rows}, which {n} ranks cannot share: pad it")
    outgoing, arriving = sent.tensor_split(n), result.tensor_split(n)
    arriving[rank].copy_(outgoing[rank])
    for k in range(1, n):
        to, source = (rank + k) % n, (rank - k) % n
        exchange(group, receives=[(arriving[source], source)], sends=[(outgoing[to], to)])
    put_back(result, output)


def _pieces(
    tensors: Sequence[Tensor] | None, name: str, own: Tensor, count: int, flatten: Callable
) -> list[Tensor]:
    """The root's list with each tensor as a row like `own`, or an empty list on the other ranks."""
    members = [] if tensors is None else tensors
    if len(members) != count:
        raise ValueError(
            f"{name} has {len(members)} tensors and should have {count}: one a rank on the root, else none"
        )
    pieces = [flatten(tensor, f"{name}[{i}]") for i, tensor in enumerate(members)]
    for i, piece in enumerate(pieces):
        check_sizes(1, **{f"{name}[{i}]": piece, "tensor": own})
    return pieces
