"""A sharded optimizer around its algorithm: torch.optim's interface, hooks, refusals, saving.

The algorithms are in `stage1.py` and `stage2.py`.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from .arguments import param_groups
from .bucket import Bucket
from .offload import keep_state
from .saving import Piece, load_pieces, save_pieces
from .shards import Home, ParamGroup
from .stage1 import Zero1
from .transport import Transport

_OWNERS = WeakIdKeyDictionary()  # parameter: its sharded optimizer, as a weak reference


class ShardedOptimizer(torch.optim.Optimizer):
    """A torch.optim.Optimizer that shares `param_groups` and `state` with `optimizer`, the inner one.

    params: they become views of flat rows, and all ranks get the values of the group's first rank. (The
        optimizer does not know the module's buffers, so broadcast the buffers yourself.) Do not move or
        convert the module afterwards.
    group: the ranks that hold replicas. All of them call `step` equally often.
    offload: where the shard and its state are kept: None, "cpu", a folder or a MappedFile (`offload.py`).
    reduce_scatter, all_gather: functions (output, input, group) to use instead of PyTorch's.

    Parameters in 16 bits get a float32 copy, sharded like the state, on which the optimizer works (mixed
    precision). `param_groups` hold the shards, and learning-rate schedulers work on them. Gradients of
    several backward passes add up until `step`. If no rank has a gradient for a parameter, `step` skips the
    parameter, as torch.optim does. If only some ranks have one, the others count as zeros. Therefore `step`
    changes nothing before the first backward. Until the step, each rank has only the gradients of its own
    loss, so clip and unscale after `average_gradients`.

    Raises ValueError if no parameter requires a gradient, if the optimizer is not elementwise, or if
    another sharded optimizer holds a parameter; TypeError for arguments of another kind.
    """

    stage: Callable[..., Zero1]  # Zero1 or Zero2
    _is_complete = False  # all groups are known

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        defaults: dict[str, Any],
        transport: Transport,
        where: Home,
    ):
        groups = param_groups(params, optimizer_cls, defaults)
        self.transport, self.home = transport, where
        self._take(groups)
        trained = [
            {**group, "params": [param for param in group["params"] if param.requires_grad]}
            for group in groups
        ]
        self.algorithm = self.stage(trained, optimizer_cls, defaults, transport, where)
        self.optimizer, self.buckets = self.algorithm.optimizer, self.algorithm.buckets
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self._is_complete = True
        for bucket in self.buckets:
            for i, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(_arrival(weakref.ref(self), bucket, i))

    def _take(self, groups: Sequence[ParamGroup]) -> None:
        """Take the parameters, and give the frozen ones the values of the group's first rank.

        Raises ValueError if another sharded optimizer holds one of them.
        """
        self._given = [param for group in groups for param in group["params"]]
        self._number = {param: i for i, param in enumerate(self._given)}
        self._numbers = [[self._number[param] for param in group["params"]] for group in groups]
        _claim([param for param in self._given if param.requires_grad], self)
        for param in self._given:
            if not param.requires_grad:
                self.transport.broadcast(param.detach())

    # ---- between backward and step

    @property
    def shards(self) -> list[nn.Parameter]:
        """This rank's piece, often empty, of each trained parameter, in the order of `param_groups`."""
        return [shard for group in self.param_groups for shard in group["params"]]

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Do the first part of the step now, which makes `shard.grad` the mean over the ranks.

        Call this on all ranks, after the last backward of a step, before anything reads or changes gradients.
        It sends nothing that `step` would not send, and `step` then goes on from here:

            optimizer.average_gradients()
            norm = clip_grad_norm_(optimizer.shards, 1.0, group)     # of course_lib.fsdp
            optimizer.step()

        `course_lib.precision.LossScaler` calls this method. PyTorch's ShardedGradScaler works after it. But
        GradScaler lets each rank decide by itself, so the ranks would wait for a rank that skips a step.

        Until the step, the parameters' own `.grad` no longer matter, and another backward raises
        RuntimeError. After a step that was skipped, call `zero_grad()` of the optimizer.
        """
        self.algorithm.average_gradients()

    def _check_open(self) -> None:
        """RuntimeError if a gradient comes too late for the average."""
        if self.algorithm.averaged:
            raise RuntimeError(
                "a backward came after the gradients had been averaged, by average_gradients() or a loss "
                "scaler, and before step() or zero_grad(): add up all backwards first. After a step that "
                "was skipped call zero_grad() of the optimizer; that of the module does not reach the shards"
            )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tell PyTorch's scalers, which ask in their step, that the optimizer does not unscale by itself.

        Raises RuntimeError if the scaler has found no gradients to unscale.
        """
        if not self.algorithm.averaged:
            raise RuntimeError(
                f"the shards of {type(self).__name__} have no gradients yet, so that PyTorch's scaler finds "
                "none to unscale: call optimizer.average_gradients() after backward, and take "
                "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, or "
                "course_lib.precision.LossScaler, which calls it by itself"
            )
        return False

    # ---- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients, update this rank's shard, and give all ranks the new parameters."""
        loss = self._before_step(closure)
        self.algorithm.step()
        keep_state(self.optimizer, self.home)
        return loss

    def _before_step(self, closure: Callable[[], Any] | None) -> Any:
        """Return the closure's loss. RuntimeError if a parameter was moved or unfrozen since."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for bucket in self.buckets:
            _check_place(bucket)
        sharded = {param for bucket in self.buckets for param in bucket.params}
        if any(param.grad is not None and param not in sharded for param in self._given):
            raise RuntimeError(
                "a parameter that was frozen when the optimizer was made has a gradient: unfreeze "
                "parameters first, then make the optimizer"
            )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, including the gradients of the shards."""
        self.algorithm.zero_grad(set_to_none)

    # ---- as in torch.optim and DDP

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For programs written for DDP. It switches nothing off, because only `step` communicates."""
        yield

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """For the constructor only, because the shards are cut once. RuntimeError afterwards."""
        if self._is_complete:
            raise RuntimeError("the shards are cut: give all parameter groups when you make it")
        super().add_param_group(param_group)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state, without communication, in the format of `saving.py`."""
        rank, n = self.transport.rank, self.transport.n
        return save_pieces(self.optimizer, self._pieces(), self._numbers, rank, n)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a dictionary joined by `merge_state_dicts`, or saved by torch.optim or by this rank.

        The parameters belong to the module, so load them there, before or after.
        Raises ValueError for the state of another rank or another model.
        """
        rank, n = self.transport.rank, self.transport.n
        load_pieces(self.optimizer, self._pieces(), state_dict, rank, n)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        keep_state(self.optimizer, self.home)

    def _pieces(self) -> list[Piece]:
        return [
            Piece(self._number[param], shape, span, shard, bucket.master is not bucket.own)
            for bucket in self.buckets
            for param, shape, span, shard in zip(
                bucket.params, bucket.shapes, bucket.spans, bucket.shards, strict=True
            )
        ]


def _arrival(
    owner: weakref.ref[ShardedOptimizer], bucket: Bucket, i: int
) -> Callable[[torch.Tensor], None]:
    """A hook that does nothing once its optimizer is deleted, since parameters outlive optimizers."""

    def hook(_: torch.Tensor) -> None:
        optimizer = owner()
        if optimizer is not None:
            optimizer._check_open()
            optimizer.algorithm.arrived(bucket, i)

    return hook


def _claim(params: Sequence[torch.Tensor], optimizer: ShardedOptimizer) -> None:
    """Refuse a second sharded optimizer for a parameter, since each would move it into its own buffer."""

    def taken() -> bool:
        owners = (_OWNERS.get(param) for param in params)
        return any(owner is not None and owner() is not None for owner in owners)

    if taken():
        gc.collect()  # the last optimizer might only be waiting to be collected
    if taken():
        raise ValueError(
            "a parameter is held by another sharded optimizer: delete that optimizer first, and all objects "
            "that refer to it (a learning-rate scheduler does)"
        )
    for param in params:
        _OWNERS[param] = weakref.ref(optimizer)


def _check_place(bucket: Bucket) -> None:
    """RuntimeError if a parameter is no longer a view of the row."""
    size, start = bucket.flat.element_size(), bucket.flat.data_ptr()
    for param, offset in zip(bucket.params, bucket.offsets, strict=True):
        if param.numel() and param.data_ptr() != start + offset * size:
            raise RuntimeError(
                "a parameter is no longer in its flat buffer: the module was moved or converted "
                "(.to, .cuda, .half) or given new data after the optimizer was made. Make the "
                "optimizer afterwards"
            )
