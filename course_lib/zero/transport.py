"""The two collectives of ZeRO, by PyTorch's own functions or by functions you pass.

    reduce-scatter   every rank has a full gradient; rank r gets shard r of the mean
    all-gather       every rank has a shard; all ranks get the full tensor

Together they move 2 (N-1)/N bytes for each byte of the full tensor. So does an all-reduce, because an
all-reduce *is* a reduce-scatter followed by an all-gather. ZeRO does something useful between the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None
Collective = Callable[[torch.Tensor, torch.Tensor, Group], object]


class Transport:
    """Reduce-scatter (mean) and all-gather over `group`.

    reduce_scatter, all_gather: functions (output, input, group) that sum or collect; None takes
        `dist.reduce_scatter_tensor` and `dist.all_gather_into_tensor`. Over gloo, the former is an
        all-reduce inside and sends twice as many bytes, whereas a ring sends only the bytes stated above.
    """

    def __init__(
        self,
        group: Group = None,
        reduce_scatter: Collective | None = None,
        all_gather: Collective | None = None,
    ):
        for name, function in (("reduce_scatter", reduce_scatter), ("all_gather", all_gather)):
            if function is not None and not callable(function):
                raise TypeError(
                    f"{name} is a {type(function).__name__}; a function (output, input, group) is expected"
                )
        self.group = group
        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
                "may call. Guard the call with `if dist.get_rank() in ranks:`."
            )
        self._given_reduce_scatter, self._given_all_gather = reduce_scatter, all_gather

    def reduce_scatter_mean(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's shard of the mean of all ranks' `whole`."""
        return self.start_reduce_scatter_mean(whole)()

    def start_reduce_scatter_mean(self, whole: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start the reduce-scatter; the returned function waits and returns this rank's shard of the mean.

        `whole` must not change until then. With PyTorch's own collective, the sum travels while backward
        goes on, whereas a function that was passed in has finished when this method returns.
        """
        shard = torch.empty(whole.numel() // self.n, dtype=whole.dtype, device=whole.device)
        work = None
        if self._given_reduce_scatter is not None:
            self._given_reduce_scatter(shard, whole, self.group)
        else:
            work = _reduce_scatter_tensor(shard, whole, group=self.group, async_op=True)

        def finish() -> torch.Tensor:
            if work is not None:
                work.wait()
            return shard.div_(self.n)

        return finish

    def all_gather(self, whole: torch.Tensor, shard: torch.Tensor) -> None:
        """Gather every rank's `shard` into `whole`; the shard can be this rank's part of `whole`."""
        if self._given_all_gather is not None:
            self._given_all_gather(whole, shard, self.group)
        else:
            _all_gather_into_tensor(whole, shard, group=self.group)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Give all ranks the values of the group's first rank, in place; the tensor can be a view."""
        first = dist.get_process_group_ranks(self.group or dist.group.WORLD)[0]
        for dim, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dim]:
                tensor = tensor.narrow(dim, 0, 1)  # of an expanded tensor each element once
        row = tensor.contiguous()
        dist.broadcast(row, first, group=self.group)
        if row.data_ptr() != tensor.data_ptr():
            tensor.copy_(row)


# PyTorch 2.13 renames both and warns about the old names, but 2.6 knows only the old ones.
_reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather_into_tensor = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
