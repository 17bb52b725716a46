"""ZeRO-3: parameters are also sharded, and are gathered only while they are used.

A layer's weights are needed twice in a step, once in its forward and once in its backward. In between, they
do not have to be here. So ZeRO-3 cuts the module into units, such as a transformer's blocks, and each rank
keeps only its shard of each unit:

    forward    for each unit: all-gather its parameters, compute, free them        (N-1)/N P
    backward   for each unit: all-gather again, compute, free them                 (N-1)/N P
               reduce-scatter its gradients, keep the own shard                    (N-1)/N P
    step       on the shards; nothing is sent

Each rank sends 3 (N-1)/N P elements, one and a half times as many as with replicas. The memory is 16P/N
bytes (4P/N weights, 4P/N gradients, 8P/N Adam's states in float32), plus one or two units at a time.

How can backward use weights that were freed? Autograd has kept the *tensors* of the forward, but their
storage was resized to nothing. As soon as the storage is resized again and filled by the all-gather,
autograd's tensors are right again. Between uses, `module.weight` shows NaN in its shape, which takes no
memory.

Read on in `units.py` (what is gathered together, and when its memory is taken and freed) and `backward.py`
(the moments of a backward). `Zero3Module` in `sharded_module.py` also saves and offloads.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.3 and 7; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB
2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .backward import Backward, in_backward, refuse_second_derivatives, when_gradients
from .bucket import alike
from .shards import Home
from .transport import Transport
from .units import Unit, Units, Use, unit_parameters


class Zero3(nn.Module):
    """`module` with its parameters sharded over the ranks, gathered unit by unit when they are used.

    home: where the shards are kept. units: see `Zero3Module`.
    """

    synchronises = True  # whether gradients are sent, which they are not within `no_sync()`

    def __init__(self, module: nn.Module, transport: Transport, home: Home, units: Units = None):
        super().__init__()
        self.transport = transport
        for buffer in module.buffers():
            transport.broadcast(buffer)
        self.module = module
        self.units: list[Unit] = []
        self._backward = Backward()
        self._under_way: list[Callable[[], None]] = []
        names = {inner: name for name, inner in module.named_modules()}
        for owner, params in unit_parameters(module, units):
            for members in alike(params):
                name = f"{names[owner]} ({type(owner).__name__})".strip()
                unit = Unit(members, transport, home, name)
                self.units.append(unit)
                self._add_hooks(owner, unit)

    def _add_hooks(self, owner: nn.Module, unit: Unit) -> None:
        owner.register_forward_pre_hook(
            lambda _, args, kwargs: self._before_forward(unit, (args, kwargs)), with_kwargs=True
        )
        owner.register_forward_hook(
            lambda _, args, output: self._after_forward(unit, output), always_call=True
        )
        for i, param in enumerate(unit.params if unit.trained else ()):
            param.register_post_accumulate_grad_hook(lambda _, i=i: self._arrived(unit, i))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not in_backward():  # a checkpoint computes the forward again there
            self._start_anew()
        return self.module(*args, **kwargs)

    def _before_forward(self, unit: Unit, inputs: object) -> None:
        unit.gather()
        unit.forwards.append(use := Use(unit))
        when_gradients("all", inputs, lambda: self._after_backward(use))

    def _after_forward(self, unit: Unit, output: object) -> None:
        use = unit.forwards.pop()
        when_gradients("any", output, lambda: self._before_backward(use))
        unit.free()

    def _before_backward(self, use: Use) -> None:
        """The hook that runs when a gradient of the module's output is ready and its backward comes next."""
        refuse_second_derivatives()
        self._backward.joined(self._end)
        unit, use.began = use.unit, True
        unit.gather()
        unit.unsent = unit.trained

    def _arrived(self, unit: Unit, i: int) -> None:
        """The hook that runs when the gradient of the unit's i-th parameter is complete."""
        self._backward.joined(self._end)
        unit.unsent = True
        if self.synchronises:
            unit.add(i)
        if all(unit.arrived):
            unit.free(entirely=True)  # no later node reads its weights

    def _after_backward(self, use: Use) -> None:
        """The hook that runs when all gradients of the module's inputs, and so of its weights, are ready."""
        if use.began:  # not for a forward that a checkpoint has computed again
            use.began = False
            use.unit.free()
            if not use.unit.uses:
                self._send(use.unit)

    def _send(self, unit: Unit) -> None:
        """Start the reduce-scatter after the last one has ended, so at most two full gradients exist."""
        if self.synchronises and unit.unsent:
            self._collect()
            self._under_way.append(unit.reduce())

    def _collect(self) -> None:
        while self._under_way:
            self._under_way.pop()()

    def _end(self) -> None:
        """After backward, send the units that no input's gradient has announced, and free all units.

        All ranks send the same units, because only the modules that ran decide which units these are.
        """
        for unit in self.units:
            unit.free(entirely=True)
            self._send(unit)
        self._collect()
        self._backward.over()

    def _start_anew(self) -> None:
        """Drop the leftovers of a forward or a backward that failed."""
        if self._backward.over():
            for unit in self.units:
                unit.unsent = False
                unit.forget_gradient()
                unit.zero_grad(set_to_none=True)  # of the parameter at which it failed
        self._under_way.clear()
        for unit in self.units:
            unit.forwards.clear()
            unit.free(entirely=True)
