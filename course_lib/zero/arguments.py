"""Checks of a sharded optimizer's arguments, before anything is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .shards import ParamGroup


def param_groups(
    params: Iterable[Any], optimizer_cls: type[torch.optim.Optimizer], defaults: dict[str, Any]
) -> list[ParamGroup]:
    """`params` as torch.optim takes them (tensors, (name, tensor) pairs, or groups), as groups.

    Raises ValueError if no parameter requires a gradient, if one appears twice or a wrapper holds it, if two
    share memory, or if the optimizer is not elementwise; TypeError for arguments of another kind.
    """
    if isinstance(params, torch.Tensor):
        raise TypeError(
            "params is a tensor; a list of tensors is expected, such as module.parameters()"
        )
    listed = list(params)
    dicts = listed if listed and isinstance(listed[0], dict) else [{"params": listed}]
    groups: list[ParamGroup] = []
    for group in dicts:
        members = group["params"]
        members = [members] if isinstance(members, torch.Tensor) else list(members)
        tensors = [member[1] if isinstance(member, tuple) else member for member in members]
        groups.append({**group, "params": tensors})
    every = [param for group in groups for param in group["params"]]
    for param in every:
        if not isinstance(param, torch.Tensor):
            raise TypeError(f"params holds a {type(param).__name__}; tensors are expected")
    trainable = [param for param in every if param.requires_grad]
    if not trainable:
        raise ValueError(
            f"none of {len(every)} parameters requires a gradient: there is nothing to optimise"
            if every
            else "params is empty: pass module.parameters() (a generator can be read only once)"
        )
    check_free(every)
    check_distinct(trainable)
    check_elementwise(optimizer_cls, defaults, trainable[0].device)
    return groups


def check_free(params: Iterable[torch.Tensor]) -> None:
    """ValueError if a wrapper holds a parameter already, or if a parameter holds this rank's experts.

    A wrapper, of this package or another, takes gradients or weights away.
    """
    for number, param in enumerate(params):
        if getattr(param, "shared_out", False):
            raise ValueError(
                f"parameter {number} holds experts of this rank alone. Gradients of experts are summed over "
                "fewer ranks than others, and this wrapper has one group for all. `course_lib.mesh` has both"
            )
        if holder := getattr(param, "held_by", ""):
            raise ValueError(
                f"a {holder} holds the parameters already: it and ZeRO would both take their gradients. Give "
                f"the parameters() of the {holder} to an optimizer of torch.optim, or ZeRO the bare module"
            )


def check_distinct(params: Sequence[torch.Tensor]) -> None:
    """ValueError if a parameter appears twice or is not a leaf, or if two parameters share memory."""
    if len({id(param) for param in params}) < len(params):
        raise ValueError("a parameter appears twice in params: pass each once")
    if any(not param.is_leaf for param in params):
        raise ValueError(
            "a tensor in params was computed from others: only leaves can be optimised"
        )
    used = []
    for param in params:
        if param.numel():
            reach = sum((k - 1) * s for k, s in zip(param.shape, param.stride(), strict=True)) + 1
            begin = param.data_ptr()
            used.append((str(param.device), begin, begin + reach * param.element_size()))
    used.sort()
    for (device, _, end), (other, begin, _) in itertools.pairwise(used):
        if device == other and begin < end:
            raise ValueError(
                "two parameters share memory: after they are moved into a flat buffer they would no longer "
                "share it. Tie weights by using one Parameter in both places"
            )


def check_elementwise(
    optimizer_cls: type[torch.optim.Optimizer], defaults: dict[str, Any], device: torch.device
) -> None:
    """Try on a small tensor whether an optimizer treats each element separately, as shards require.

    It takes steps on a matrix and on the same elements cut in two. If the results differ, the update of an
    element depends on other elements (the norm of a layer, a row's mean, a history of whole gradients), so
    it would also depend on where the shards begin.

    Raises TypeError if optimizer_cls is not an optimizer class, ValueError if it is not elementwise.
    """
    if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, torch.optim.Optimizer)):
        raise TypeError(
            f"optimizer_cls is {optimizer_cls!r}; a class such as torch.optim.AdamW is expected, its "
            "options as keywords"
        )
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 3, 5, generator=generator).to(device)  # a tensor and three gradients
    whole = [torch.nn.Parameter(drawn[0].clone())]
    parts = [torch.nn.Parameter(part.clone()) for part in drawn[0].view(-1).split([4, 11])]
    for params, cut in ((whole, lambda x: [x]), (parts, lambda x: x.view(-1).split([4, 11]))):
        try:
            optimizer = optimizer_cls(params, **defaults)
        except ValueError as error:
            if params is whole:
                raise
            raise ValueError(
                f"{optimizer_cls.__name__} is not elementwise: it takes matrices, and no flat shards. Use "
                "AdamW or SGD, for instance"
            ) from error
        for gradient in drawn[1:]:
            for param, piece in zip(params, cut(gradient), strict=True):
                param.grad = piece.clone()
            try:
                optimizer.step()
            except (TypeError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"{optimizer_cls.__name__} cannot take a step on a dense flat shard: {error}"
                ) from error
    together = torch.cat([part.detach() for part in parts])
    if not torch.allclose(whole[0].detach().view(-1), together, rtol=1e-4, atol=1e-6):
        raise ValueError(
            f"{optimizer_cls.__name__} is not elementwise: its update of a tensor differs from "
            "its update of the tensor's parts, so shards would change the result. Use AdamW or SGD, for "
            "instance"
        )
