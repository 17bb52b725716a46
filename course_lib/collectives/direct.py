"""Collectives in which every piece goes straight to the rank that it is for.

What one rank has for another is sent once, by the one to the other: no algorithm can send fewer bytes.
What is left to decide is the order, so that no rank is overrun: in all_to_all every rank sends one
message and receives one in each round.

    scatter      (N-1)/N M bytes sent by src              N - 1 rounds
    gather       M/N sent by every rank but dst           N - 1
    all_to_all   (N-1)/N M sent by each rank              N - 1

M is the full tensor: N pieces.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
International Journal of High Performance Computing Applications 19 (2005): all_to_all is its pairwise
exchange for any number of ranks.

Arguments and habits are those of `torch.distributed`; each file of this package imports torch only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None
Messages = Sequence[tuple[torch.Tensor, int]]


def scatter(
    tensor: torch.Tensor,
    scatter_list: Sequence[torch.Tensor] | None = None,
    src: int = 0,
    group: Group = None,
) -> None:
    """Hand the i-th tensor of rank `src`'s `scatter_list` to the i-th rank of `group`, in `tensor`.

    tensor: any shape, contiguous or not; the same size and dtype on every rank. Written.
    scatter_list: on src N tensors of that size and dtype; elsewhere None.
    src: rank in the whole world, also when a group is given.
    Bytes sent: (N-1)/N M by src, none by the others (M: all N tensors). Rounds: N - 1.

    Raises ValueError when src is not in the group, or scatter_list does not fit or stands on another
    rank; TypeError for what is no tensor.
    """
    rank, n = _place(group)
    root = _root(src, "src", group)
    result = _flat(tensor)
    pieces = _pieces(scatter_list, "scatter_list", result, n, rank == root, written=False)
    if rank == root:
        for k in range(1, n):
            _wait(_post([], [(pieces[(root + k) % n], (root + k) % n)], group))
        result.copy_(pieces[root])
    else:
        _wait(_post([(result, root)], [], group))
    _put_back(result, tensor)


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int = 0,
    group: Group = None,
) -> None:
    """Collect every rank's `tensor` on rank `dst`: the i-th rank's in the i-th tensor of `gather_list`.

    tensor: any shape, contiguous or not; the same size and dtype on every rank. It is left alone.
    gather_list: on dst N tensors of that size and dtype, which are written; elsewhere None.
    dst: rank in the whole world, also when a group is given.
    Bytes sent: M/N by every rank but dst (M: all N tensors). Rounds: N - 1, as many as dst receives.

    Raises ValueError when dst is not in the group, or gather_list does not fit or stands on another
    rank; TypeError for what is no tensor.
    """
    rank, n = _place(group)
    root = _root(dst, "dst", group)
    own = _flat(tensor, written=False)
    pieces = _pieces(gather_list, "gather_list", own, n, rank == root, written=True)
    if rank != root:
        _wait(_post([], [(own, root)], group))
        return
    pieces[root].copy_(own)
    for k in range(1, n):
        _wait(_post([(pieces[(root + k) % n], (root + k) % n)], [], group))
    for piece, target in zip(pieces, gather_list or [], strict=True):
        _put_back(piece, target)


def all_to_all(output: torch.Tensor, input: torch.Tensor, group: Group = None) -> None:
    """Send the j-th of N equal parts of `input` to rank j; rank i's part becomes the i-th of `output`.

    input: its first dimension is a multiple of N; parts are cut along it. It is left alone.
    output: as many elements, same dtype and device. As `dist.all_to_all_single` without split sizes.
    In round k rank r sends to rank r + k and receives from rank r - k.
    Bytes sent: (N-1)/N of the input's by each rank, in N - 1 rounds. No scratch.

    Raises ValueError when sizes or dtypes do not fit or the first dimension is no multiple of N; TypeError
    for what is no tensor.
    """
    rank, n = _place(group)
    sent, result = _flat(input, "input", written=False), _flat(output, "output")
    _check_alike(output, input, n)
    if output.untyped_storage().data_ptr() == input.untyped_storage().data_ptr():
        sent = sent.clone()  # they may overlap: then a part would be sent after it was written
    outgoing, arriving = sent.tensor_split(n), result.tensor_split(n)
    arriving[rank].copy_(outgoing[rank])
    for k in range(1, n):
        to, source = (rank + k) % n, (rank - k) % n
        _wait(_post([(arriving[source], source)], [(outgoing[to], to)], group))
    _put_back(result, output)


# ---- checks of the arguments


def _root(root: int, name: str, group: Group) -> int:
    """The rank in `group` of the world's rank `root`."""
    members = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    if root not in members:
        raise ValueError(
            f"{name}={root} is not in the group, whose ranks are {members}. {name} counts the ranks of "
            "the whole world, as in torch.distributed."
        )
    return members.index(root)


def _pieces(
    tensors: Sequence[torch.Tensor] | None,
    name: str,
    own: torch.Tensor,
    n: int,
    at_root: bool,
    written: bool,
) -> list[torch.Tensor]:
    """The root's list, each tensor in a row; an empty list elsewhere."""
    if not at_root:
        if tensors:
            raise ValueError(f"{name} belongs on the root alone: leave it out on the other ranks")
        return []
    if tensors is None or len(tensors) != n:
        given = "None" if tensors is None else f"{len(tensors)} tensors"
        raise ValueError(f"{name} is {given}: the root needs {n}, one for each rank of the group")
    pieces = [_flat(t, f"{name}[{i}]", written) for i, t in enumerate(tensors)]
    for i, piece in enumerate(pieces):
        if (piece.numel(), piece.dtype, piece.device) != (own.numel(), own.dtype, own.device):
            raise ValueError(
                f"{name}[{i}] has {piece.numel()} elements of {piece.dtype} on {piece.device}, but tensor "
                f"{own.numel()} of {own.dtype} on {own.device}: all must be alike"
            )
    return pieces


def _check_alike(output: torch.Tensor, input: torch.Tensor, n: int) -> None:
    if (output.numel(), output.dtype, output.device) != (input.numel(), input.dtype, input.device):
        raise ValueError(
            f"output has {output.numel()} elements of {output.dtype} on {output.device}, input "
            f"{input.numel()} of {input.dtype} on {input.device}: all_to_all needs both alike"
        )
    rows = input.shape[0] if input.dim() else 1
    if rows % n:
        raise ValueError(
            f"input's first dimension is {rows}, which {n} ranks cannot share equally: pad it to a "
            f"multiple of {n}"
        )


# ---- plumbing: the same in every file of this package, so that each can be copied out alone


def _place(group: Group) -> tuple[int, int]:
    """This process's rank in `group`, and the group's size."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return rank, dist.get_world_size(group)


def _flat(tensor: torch.Tensor, name: str = "tensor", written: bool = True) -> torch.Tensor:
    """The elements of `tensor` in a row: its own memory where that is contiguous, else a copy."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; a torch.Tensor is expected")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} is {tensor.layout}; messages carry dense tensors: use to_dense()")
    if written and _overlaps_itself(tensor):
        raise ValueError(
            f"{name} cannot be written: several of its elements share one place in memory (shape "
            f"{tuple(tensor.shape)}, strides {tensor.stride()}, as expand makes them). Pass a clone()."
        )
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    reach = 1  # elements from the first to the last of the dimensions looked at so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _put_back(flat: torch.Tensor, tensor: torch.Tensor) -> None:
    """Write the elements of `flat` into `tensor`, unless they are the same memory already."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _post(receives: Messages, sends: Messages, group: Group) -> list[dist.Work]:
    """Start the messages of one round together; each is (tensor, rank of the other end in `group`).

    Together, because one after the other they can wait for each other: NCCL runs what it is given
    in order. Receives first: a message whose receive is ready need not wait. Empty ones are left out.
    """
    batch = [dist.P2POp(dist.irecv, t, group=group, group_peer=r) for t, r in receives if t.numel()]
    batch += [dist.P2POp(dist.isend, t, group=group, group_peer=r) for t, r in sends if t.numel()]
    return dist.batch_isend_irecv(batch) if batch else []


def _wait(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()
