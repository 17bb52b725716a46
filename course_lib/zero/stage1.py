"""ZeRO-1: every rank keeps the optimizer's state of its shard only.

Data parallelism keeps N copies of everything, and does the optimizer's work N times. The optimizer's state
is the largest part (12 of 16 bytes a parameter) and it is used in one moment only. So give rank r the r-th
part of it:

    1. reduce-scatter the gradients     rank r has the mean gradient of its shard     (N-1)/N P
    2. the optimizer's step             on that shard, 1/N of the work
    3. all-gather the parameters        every rank has the new ones                   (N-1)/N P

2 (N-1)/N P elements sent, what an all-reduce of the gradients alone costs. (All-reduce, step, then share the
parameters, as it is often drawn, costs 3 (N-1)/N P: the all-reduce gathers gradients that nobody reads.)

Memory: 4P + 12P/N bytes in mixed precision; with float32 parameters 8P + 8P/N for Adam.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.1 and 7.
"""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .arguments import check_elementwise, param_groups
from .offload import Home, home, keep_state
from .saving import Piece, load_pieces, save_pieces
from .shards import Bucket
from .transport import Collective, Group, Transport

HALF = (torch.float16, torch.bfloat16)
_OWNERS = WeakIdKeyDictionary()  # parameter: its sharded optimizer, as a weak reference


class Zero1Optimizer(torch.optim.Optimizer):
    """Any elementwise torch optimizer, its state sharded over the ranks.

    params, **defaults: as `optimizer_cls` takes them. The parameters become views of a flat buffer, and all
        get the values of the group's first rank (the module's buffers are not known here: broadcast
        those yourself). Do not move or convert the module afterwards.
    group: the ranks that hold replicas. All of them call `step` equally often.
    offload: None, "cpu", a folder or a MappedFile: where the shard and its state lie (`offload.py`).
    reduce_scatter, all_gather: functions (output, input, group) to use instead of PyTorch's.

    Parameters in 16 bits get a float32 copy, sharded like the state, on which the optimizer works (mixed
    precision). `param_groups` are those of the shard: learning-rate schedulers work on them.
    Gradients of several backwards add up until `step`, which averages over the ranks and is the only
    place that communicates. A parameter that no rank has a gradient for is skipped, as in torch.optim;
    if only some have one, the others count as zeros. `step` before any backward therefore changes nothing.

    Raises ValueError for no parameters, an optimizer that is not elementwise, a parameter that another
    sharded optimizer holds; TypeError for arguments of another kind.
    """

    _complete = False  # all groups are known

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        *,
        group: Group = None,
        offload: str | os.PathLike[str] | Home | None = None,
        reduce_scatter: Collective | None = None,
        all_gather: Collective | None = None,
        **defaults: Any,
    ):
        groups = param_groups(params)
        self._every = [param for given in groups for param in given["params"]]
        trainable = [param for param in self._every if param.requires_grad]
        check_elementwise(optimizer_cls, defaults, trainable[0].device)
        self.transport = Transport(group, reduce_scatter, all_gather)
        self.home = home(offload)
        _claim(trainable, self)
        for param in self._every:
            if not param.requires_grad:
                self.transport.broadcast(param.detach())
        self.buckets: list[Bucket] = []
        self._masters: list[torch.Tensor] = []  # of each bucket, what the optimizer writes
        self._shard_of: dict[torch.Tensor, torch.nn.Parameter] = {}
        number = {param: i for i, param in enumerate(self._every)}
        self._numbers = [[number[param] for param in given["params"]] for given in groups]
        for given in groups:
            own = [param for param in given["params"] if param.requires_grad]
            for bucket in self._make_buckets(own):
                self._add_bucket(bucket)
            given["params"] = [self._shard_of[param] for param in own]
        self.optimizer = optimizer_cls(groups, **defaults)
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self._complete = True
        for bucket in self.buckets:
            for i, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(_arrival(weakref.ref(self), bucket, i))

    def _make_buckets(self, params: Sequence[torch.nn.Parameter]) -> list[Bucket]:
        """One bucket for each dtype and device of a parameter group."""
        kinds: dict[object, list[torch.nn.Parameter]] = {}
        for param in params:
            kinds.setdefault((param.dtype, param.device), []).append(param)
        return [Bucket(one, self.transport.rank, self.transport.n) for one in kinds.values()]

    def _add_bucket(self, bucket: Bucket) -> None:
        self.transport.broadcast(bucket.flat)
        master = bucket.own
        if bucket.own.dtype in HALF or self.home.is_apart(bucket.own.device):
            dtype = torch.float32 if bucket.own.dtype in HALF else bucket.own.dtype
            master = self.home.empty(bucket.shard_numel, dtype, bucket.own.device)
            master.copy_(bucket.own)
        for param, piece in zip(bucket.params, bucket.pieces(master), strict=True):
            self._shard_of[param] = torch.nn.Parameter(piece)
        self.buckets.append(bucket)
        self._masters.append(master)

    def _arrived(self, bucket: Bucket, i: int) -> None:
        """A gradient goes into the flat one as soon as it is there, so that it is not held twice."""
        bucket.params[i].grad = bucket.put(i, add=False)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For programs written for DDP. Nothing is to be switched off: only `step` communicates."""
        yield

    # ---- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients, update this rank's shard, give the new parameters to all."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        for bucket, master in zip(self.buckets, self._masters, strict=True):
            self._follow(bucket, master)
            self._hand_over(bucket, *self._mean_gradient(bucket))
        self.optimizer.step()
        for shard in self._shard_of.values():
            shard.grad = None
        keep_state(self.optimizer, self.home)
        for bucket, master in zip(self.buckets, self._masters, strict=True):
            if master is not bucket.own:
                bucket.own.copy_(master)
            self.transport.all_gather(bucket.flat, bucket.own)
        return loss

    def _mean_gradient(self, bucket: Bucket) -> tuple[torch.Tensor, list[bool]]:
        """This rank's shard of the mean gradient, and which parameters have one on some rank."""
        for i, param in enumerate(bucket.params):
            bucket.arrived[i] = False
            if param.grad is not None:
                param.grad = bucket.put(i, add=False)
        shard = self.transport.reduce_scatter_mean(bucket.fill_absent())()
        return shard, bucket.present(shard, bucket.arrived)

    def _hand_over(self, bucket: Bucket, gradient: torch.Tensor, present: Sequence[bool]) -> None:
        """Make the mean gradient that of the shards that the optimizer sees."""
        for param, piece, here in zip(bucket.params, bucket.pieces(gradient), present, strict=True):
            if here:
                shard = self._shard_of[param]
                shard.grad = piece.to(shard.device, shard.dtype)

    def _follow(self, bucket: Bucket, master: torch.Tensor) -> None:
        """Where the optimizer works on a copy: take over what was written into the parameters since."""
        if master is not bucket.own and not torch.equal(
            bucket.own, master.to(bucket.own.device, bucket.own.dtype)
        ):
            master.copy_(bucket.own)

    def _check_parameters(self) -> None:
        """Parameters must be where they were put, and those that were frozen must still be."""
        for bucket in self.buckets:
            size, start = bucket.flat.element_size(), bucket.flat.data_ptr()
            for param, offset in zip(bucket.params, bucket.offsets, strict=True):
                if param.numel() and param.data_ptr() != start + offset * size:
                    raise RuntimeError(
                        "a parameter is no longer in its flat buffer: the module was moved or converted "
                        "(.to, .cuda, .half) or given new data after the optimizer was made. Make the "
                        "optimizer afterwards"
                    )
        if any(p.grad is not None and p not in self._shard_of for p in self._every):
            raise RuntimeError(
                "a parameter that was frozen when the optimizer was made has a gradient: unfreeze "
                "parameters first, then make the optimizer"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; the flat buffer for them stays."""
        for bucket in self.buckets:
            for param in bucket.params:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    with torch.no_grad():  # a view of the flat buffer, which detach_() refuses
                        param.grad.zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made: the shards are cut once. RuntimeError afterwards."""
        if self._complete:
            raise RuntimeError("the shards are cut: give all parameter groups when you make it")
        super().add_param_group(param_group)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state, without communication; `saving.py` has the format."""
        return save_pieces(
            self.optimizer, self._pieces(), self._numbers, self.transport.rank, self.transport.n
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `merge_state_dicts` joined, what torch.optim saved, or what this rank saved.

        The parameters themselves are the module's: load them there, before or after.
        Raises ValueError for the state of another rank or another model.
        """
        place = self.transport.rank, self.transport.n
        load_pieces(self.optimizer, self._pieces(), state_dict, *place)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        keep_state(self.optimizer, self.home)

    def _pieces(self) -> list[Piece]:
        number = {param: i for i, param in enumerate(self._every)}
        return [
            Piece(number[param], shape, span, self._shard_of[param], master is not bucket.own)
            for bucket, master in zip(self.buckets, self._masters, strict=True)
            for param, shape, span in zip(bucket.params, bucket.shapes, bucket.spans, strict=True)
        ]


def _arrival(
    owner: weakref.ref[Zero1Optimizer], bucket: Bucket, i: int
) -> Callable[[torch.Tensor], None]:
    """A hook that does nothing once its optimizer is gone: parameters outlive optimizers."""

    def hook(_: torch.Tensor) -> None:
        optimizer = owner()
        if optimizer is not None:
            optimizer._arrived(bucket, i)

    return hook


def _claim(params: Sequence[torch.Tensor], optimizer: Zero1Optimizer) -> None:
    """No parameter may have two sharded optimizers: each would move it into a buffer of its own."""

    def taken() -> bool:
        owners = (_OWNERS.get(param) for param in params)
        return any(owner is not None and owner() is not None for owner in owners)

    if taken():
        gc.collect()  # the last one may only be waiting for that
    if taken():
        raise ValueError(
            "a parameter is held by another sharded optimizer: delete that one first, with what refers to "
            "it (a learning-rate scheduler does)"
        )
    for param in params:
        _OWNERS[param] = weakref.ref(optimizer)
