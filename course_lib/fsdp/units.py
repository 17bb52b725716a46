"""A unit: parameters that are gathered together, with messages that travel while the rank computes.

    start()    give the parameters their memory, and begin the all-gather       (N-1)/N of the unit
    wait()     the weights are here
    free()     give the memory back
    drop()     the same, even if the gather is in flight
    reduce()   take the gradients, and begin the reduce-scatter of their mean   (N-1)/N of the unit

Between uses, a rank keeps its shard. The parameters stay views of one row, whose storage is resized to
nothing and back. Autograd has kept such views for backward, and they are right again once the row is filled.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
section 5.3; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
section 3.2.1 (flat parameters).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn

from .arguments import Group, all_gather, group_size, reduce_scatter


class Unit:
    """Parameters in one row of N shards. This rank keeps `shard`, whereas the row is gathered and freed.

    params: of one dtype and device, all trained or all frozen. They get the values of the group's first rank.
        From then on, they have memory only between `wait` and `free`.
    shard: this rank's part of the row, (ceil(P / N),), an nn.Parameter that is frozen if the parameters are.

    All ranks of `group` call the same methods of the same units in the same order. The constructor sends a
    broadcast of the row. Raises ValueError for other params, for a parameter that appears twice or is in
    another unit already, or on a rank outside the group.
    """

    def __init__(self, params: Iterable[nn.Parameter], group: Group = None):
        self.params, self.group, self.n = list(params), group, group_size(group)
        kinds = {(p.dtype, p.device, p.requires_grad) for p in self.params}
        if len(kinds) != 1:
            raise ValueError(
                f"a unit has parameters of one dtype and device, all trained or all frozen; these are of "
                f"{len(kinds)} kinds"
            )
        if len(set(self.params)) < len(self.params):
            raise ValueError("a parameter stands twice in one unit: give each once")
        if any(p.numel() and not p.untyped_storage().nbytes() for p in self.params):
            raise ValueError(
                "a parameter has no memory: it is in another unit already, which has freed it. Put each "
                "parameter into one unit, also a weight that two modules share, or that of a module that "
                "runs twice"
            )
        self.row = self._in_a_row([param.detach() for param in self.params])
        dist.broadcast(self.row, group_src=0, group=group)
        own = self.row.chunk(self.n)[dist.get_rank(group)].clone()
        self.shard = nn.Parameter(own, requires_grad=self.params[0].requires_grad)
        begin = 0
        for param in self.params:
            param.data = self.row[begin : begin + param.numel()].view(param.shape)
            begin += param.numel()
        self.nbytes, self.whole, self.name = self.row.nbytes, True, ""
        self.work: dist.Work | None = None  # the gather that is in flight
        self.free()

    def call(self, name: str) -> None:
        """Give the unit the name of its module, and give its rows this name as their `label`.

        A ledger that compares the ranks' collectives can then tell two units of the same size apart.
        """
        self.name = self.row.label = name  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def trained(self) -> bool:
        return self.shard.requires_grad

    def start(self) -> None:
        """Begin to gather the shards as they are now, unless the unit is whole or on its way."""
        if not self.whole and self.work is None:
            self.row.untyped_storage().resize_(self.nbytes)
            with torch.no_grad():
                self.work = all_gather(
                    self.row, self.shard.detach(), group=self.group, async_op=True
                )

    def wait(self) -> None:
        """Wait until the weights are here, and start the gather first if nothing has."""
        self.start()
        if self.work is not None:
            self.work.wait()
            self.work, self.whole = None, True

    def free(self) -> None:
        """Give the memory back. Raises RuntimeError while the gather is in flight."""
        if self.work is not None:
            raise RuntimeError(
                "a unit was freed before its gather ended: the message would arrive in memory that belongs "
                "to another tensor. Call wait() first"
            )
        self.row.untyped_storage().resize_(0)
        self.whole = False

    def drop(self) -> None:
        """Free the unit, after any gather that a failed forward has left in flight."""
        if self.work is not None:
            self.wait()
        self.free()

    @torch.no_grad()
    def reduce(self) -> Callable[[], None]:
        """Take the parameters' gradients, and begin the reduce-scatter. The returned function ends it.

        A gradient that is None counts as zeros. The function waits, and adds the mean over the ranks to
        `shard.grad`. Until then, the row of gradients stays in memory. A frozen unit sends nothing.
        """
        if not self.trained:
            return lambda: None
        gradients = self._in_a_row(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        )
        for param in self.params:
            param.grad = None
        gradients.label = self.name  # pyright: ignore[reportAttributeAccessIssue]
        mean = torch.empty_like(self.shard)
        work = reduce_scatter(mean, gradients, group=self.group, async_op=True)

        @torch.no_grad()
        def finish() -> None:
            work.wait()
            gradients.untyped_storage().resize_(0)  # the backend can hold the tensor a while longer
            mean.div_(self.n)
            self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)

        return finish

    @torch.no_grad()
    def load(self, tensors: list[torch.Tensor]) -> None:
        """Take this rank's shard from whole tensors in the parameters' shapes.

        The unit must not be whole.
        """
        row = self._in_a_row([t.to(self.shard.device, self.shard.dtype) for t in tensors])
        self.shard.copy_(row.chunk(self.n)[dist.get_rank(self.group)])

    def _in_a_row(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """(N * ceil(P / N),): the elements of one tensor after another, then zeros."""
        total = sum(tensor.numel() for tensor in tensors)
        row = tensors[0].new_empty(-(-total // self.n) * self.n)
        begin = 0
        for tensor in tensors:
            row[begin : begin + tensor.numel()] = tensor.reshape(-1)
            begin += tensor.numel()
        row[total:].zero_()
        return row
