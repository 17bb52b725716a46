"""ZeRO-3: parameters are sharded too, and gathered for the moment in which they are used.

A layer's weights are needed twice in a step: in its forward and in its backward. In between they need not
be here. So cut the module into units, a transformer's blocks for instance, and keep of each this rank's
shard only:

    forward    for each unit: all-gather its parameters, compute, free them        (N-1)/N P
    backward   for each unit: all-gather again, compute, free them                 (N-1)/N P
               reduce-scatter its gradients, keep the own shard                    (N-1)/N P
    step       on the shards; nothing is sent

3 (N-1)/N P elements, one and a half times what replicas cost, for a memory of 16P/N bytes and one unit
or two at a time (4P/N weights, 4P/N gradients, 8P/N Adam's states in float32).

How freed weights come back for backward: autograd has kept the *tensors* of the forward, whose storage
was resized to nothing. The storage is resized again, filled by the all-gather, and what autograd keeps is
right once more. Between uses `module.weight` shows NaN in its shape, which no memory backs.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.3 and 7; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB
2023.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from .arguments import check_distinct
from .offload import Home, home
from .saving import Piece, load_pieces, save_pieces
from .shards import Bucket
from .transport import Collective, Group, Transport
from .units import Unit, tensors_in, unit_parameters

_WRAPPED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Zero3Module(nn.Module):
    """`module` with its parameters sharded over the ranks, gathered unit by unit where they are used.

    group: the ranks that hold replicas. They call forward and backward alike, each on its own data.
    units: what is gathered at a time: submodules, or classes of submodules. By default the elements of
        every ModuleList and Sequential, or, where there is none, the children. Parameters outside all
        units, and those that several units share (tied weights), belong to the whole module's forward.
        A unit's weights are there in its own `forward` only, and it runs on all ranks or on none.
    offload: None, "cpu", a folder or a MappedFile: where the shards lie (`offload.py`), and with them
        what the optimizer keeps and does. States in a mapped file: `keep_state` after the first step.
    reduce_scatter, all_gather: functions (output, input, group) to use instead of PyTorch's.

    `parameters()` are this rank's flat shards, one for each parameter, under its name (empty where another
    rank holds it): make any elementwise torch optimizer of them. Parameters and buffers get the values of
    the group's first rank. Gradients are means over the ranks and add up until the optimizer's `zero_grad`;
    a parameter that no rank used has none. Do not move or convert the module afterwards.

    Raises ValueError for a module without parameters, one that is wrapped already, or units outside it.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        group: Group = None,
        units: Iterable[nn.Module | type[nn.Module]] | type[nn.Module] | None = None,
        offload: str | os.PathLike[str] | Home | None = None,
        reduce_scatter: Collective | None = None,
        all_gather: Collective | None = None,
    ):
        super().__init__()
        names = dict(module.named_parameters())
        if not names:
            raise ValueError("the module has no parameters: there is nothing to shard")
        if any(isinstance(one, Zero3Module) or one in _WRAPPED for one in module.modules()):
            raise ValueError("the module, or a part of it, is wrapped in a Zero3Module already")
        check_distinct(list(names.values()))
        self.transport = Transport(group, reduce_scatter, all_gather)
        self.home = home(offload)
        for buffer in module.buffers():
            self.transport.broadcast(buffer)
        self.module = module
        self.units = [
            Unit(owner, params, self.transport, self.home)
            for owner, params in unit_parameters(module, units)
        ]
        held = {p: shard for unit in self.units for p, shard in unit.shard_of.items()}
        self._named = {name: held[param] for name, param in names.items()}
        self._sync, self._task = True, -1
        self._waiting: list[tuple[Unit, Callable[[], None]]] = []
        for unit in self.units:
            self._add_hooks(unit)
        _WRAPPED.update(module.modules())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() == -1:  # not computed again by a checkpoint
            self._start_anew()
        return self.module(*args, **kwargs)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's flat shards under the names of the whole parameters."""
        for name, shard in self._named.items():
            yield (f"{prefix}.{name}" if prefix else name), shard

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside leave their gradients whole on this rank; the next one outside sends the sum.

        For K microbatches 2K + 1 times (N-1)/N P instead of 3K, at the price of full gradients in memory.
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    # ---- gathering and freeing

    def _add_hooks(self, unit: Unit) -> None:
        unit.module.register_forward_pre_hook(
            lambda _, args, kwargs: self._before_forward(unit, (args, kwargs)), with_kwargs=True
        )
        unit.module.register_forward_hook(
            lambda module, args, output: self._after_forward(unit, output), always_call=True
        )
        for bucket in unit.trainable:
            for i, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(
                    lambda _, bucket=bucket, i=i: self._arrived(unit, bucket, i)
                )

    def _before_forward(self, unit: Unit, inputs: object) -> None:
        unit.enter()
        wanted = tensors_in(inputs) if torch.is_grad_enabled() else []
        if wanted:
            register_multi_grad_hook(wanted, lambda _: self._after_backward(unit))

    def _after_forward(self, unit: Unit, output: object) -> None:
        wanted = tensors_in(output) if torch.is_grad_enabled() else []
        if wanted:
            register_multi_grad_hook(wanted, lambda _: self._before_backward(unit), mode="any")
        unit.leave()

    def _before_backward(self, unit: Unit) -> None:
        """A gradient of the unit's output is there."""
        self._join_backward()
        unit.enter()
        unit.unsent = True

    def _after_backward(self, unit: Unit) -> None:
        """The gradients of all of the unit's inputs are there, so those of its parameters are too."""
        unit.leave()
        if self._sync and unit.unsent and not unit.active:
            self._send(unit)

    def _arrived(self, unit: Unit, bucket: Bucket, i: int) -> None:
        self._join_backward()
        unit.unsent = True
        if self._sync:
            bucket.put(i, add=True)
            bucket.params[i].grad = None
        if unit.all_arrived() and not unit.frozen:
            unit.leave(entirely=True)  # no node that reads its weights is still to come

    def _join_backward(self) -> None:
        """On the first call in a backward: have `_end` called when it is over."""
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        if self._task != -1:
            raise RuntimeError(
                "a backward began before the last one had ended. Inside another one, by checkpoints? Use "
                "torch.utils.checkpoint with use_reentrant=False"
            )
        self._task = task
        torch.autograd.Variable._execution_engine.queue_callback(self._end)  # type: ignore[attr-defined]

    def _send(self, unit: Unit) -> None:
        """Start the reduce-scatter, after the last one has ended: two units' full gradients at most."""
        self._collect()
        self._waiting.append((unit, unit.send_gradients()))

    def _collect(self) -> None:
        for _, finish in self._waiting:
            finish()
        self._waiting = []

    def _end(self) -> None:
        """After backward: send what no gradient of an input has announced, free what is still there.

        Which units these are is the same on all ranks: it follows from the modules that ran.
        """
        for unit in self.units:
            unit.leave(entirely=True)
            if self._sync and unit.unsent:
                self._send(unit)
        self._collect()
        self._task = -1

    def _start_anew(self) -> None:
        """Drop what a forward or a backward that failed has left behind."""
        if self._task != -1:
            for unit in self.units:
                unit.drop_gradients()
        self._task, self._waiting = -1, []
        for unit in self.units:
            unit.leave(entirely=True)

    # ---- saving

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The whole module's state dict, on the CPU of every rank: any number of ranks loads it.

        Called by all ranks; gathers unit by unit.
        """
        whole: dict[int, torch.Tensor] = {}
        for unit in self.units:
            unit.enter()
            whole |= {
                id(p): p.detach().to("cpu", copy=True) for b in unit.buckets for p in b.params
            }
            unit.leave()
        return {
            name: whole[id(value)] if id(value) in whole else value.detach().to("cpu", copy=True)
            for name, value in self.module.state_dict(keep_vars=True).items()
        }

    @torch.no_grad()
    def load_full_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's shards, and the buffers, from a whole state dict. Nothing is sent.

        Raises ValueError when names or shapes are not those of the module.
        """
        own = self.module.state_dict(keep_vars=True)
        if own.keys() != state.keys():
            raise ValueError(
                f"names do not fit: missing {sorted(own.keys() - state.keys())}, unknown "
                f"{sorted(state.keys() - own.keys())}"
            )
        for name, value in own.items():
            if state[name].shape != value.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(state[name].shape)}; {tuple(value.shape)} is expected"
                )
        spans = {id(p): piece for unit in self.units for p, piece in unit.pieces()}
        for name, value in own.items():
            if id(value) in spans:
                span, shard = spans[id(value)]
                shard.copy_(state[name].reshape(-1)[span.start : span.stop])
            else:
                value.copy_(state[name])

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """This rank's part of the state of an optimizer of `parameters()`; `saving.py` has the format."""
        number = {id(shard): i for i, shard in enumerate(self._named.values())}
        groups = [[number[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        place = self.transport.rank, self.transport.n
        return save_pieces(optimizer, self._pieces(), groups, *place)

    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load what `merge_state_dicts` joined, what torch.optim saved, or what this rank saved."""
        load_pieces(optimizer, self._pieces(), state, self.transport.rank, self.transport.n)

    def _pieces(self) -> list[Piece]:
        known = {
            id(shard): (span, p.shape) for unit in self.units for p, (span, shard) in unit.pieces()
        }
        return [
            Piece(i, known[id(shard)][1], known[id(shard)][0], shard)
            for i, shard in enumerate(self._named.values())
        ]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """RuntimeError: of this rank alone it would hold no parameter."""
        raise RuntimeError("parameters are sharded: save full_state_dict(), called by all ranks")

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """RuntimeError, see `state_dict`."""
        raise RuntimeError("parameters are sharded: use load_full_state_dict(state)")

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "the shards are cut: move or convert the module (.to, .cuda, .half) before it is wrapped"
        )
