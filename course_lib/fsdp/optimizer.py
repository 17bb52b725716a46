"""The optimizer's part of a checkpoint: states by the names of parameters, from shards and into shards.

    optimizer of shards   {shard: {"exp_avg": row, "step": number}}
    checkpoint            {name: {"exp_avg": piece, "step": number}}, for each parameter with a slice in it

A state has either one number for each element or one for all. On the way into an optimizer, rows are made for
whole shards, and the pieces are copied into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from .layout import ModuleSlices, Slice
from .pieces import Piece

OPTIMIZER, STATE, GROUPS = "optimizer", "state", "param_groups"
Optimizer = torch.optim.Optimizer
States = dict[str, dict[str, Any]]  # of each parameter, by its name


def states_of(optimizer: Optimizer, layout: ModuleSlices) -> States:
    """The state of each parameter that has one on this rank, with flat tensors as pieces."""
    states: States = {}
    for group in optimizer.param_groups:
        for shard in group["params"]:
            values = optimizer.state.get(shard, {})
            for part in layout.of(shard):
                if values and part.numel:
                    states[part.name] = {key: _cut(part, key, v) for key, v in values.items()}
    return states


def _cut(part: Slice, key: str, value: Any) -> Any:
    """The part's elements of a shard's state, if it is as large as the shard; numbers stay as they are."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.shape != part.shard.shape:
        raise ValueError(
            f"the state {key!r} of {part.name} has the shape {tuple(value.shape)}, its shard "
            f"{tuple(part.shard.shape)}: only states of one number for each element, or of one number for "
            "all, can be cut and joined"
        )
    return part.of(value.detach())


def named_groups(optimizer: Optimizer, layout: ModuleSlices) -> list[dict[str, Any]]:
    """The optimizer's options, with names in place of parameters."""
    return [{**group, "params": layout.names(group["params"])} for group in optimizer.param_groups]


def asked(metadata: Metadata, layout: ModuleSlices) -> dict[str, Any]:
    """The optimizer's part of a checkpoint, with memory for each tensor this rank needs from it."""
    states: States = {}
    groups: list[dict[str, Any]] = []
    for key, path in (metadata.planner_data or {}).items():
        known = metadata.state_dict_metadata.get(key)
        if path[:2] == (OPTIMIZER, GROUPS) and len(path) == 4:
            groups += [{} for _ in range(path[2] + 1 - len(groups))]
            groups[path[2]][path[3]] = _room(known)
        elif path[:2] == (OPTIMIZER, STATE) and len(path) == 4:
            name, state = path[2:]
            if (piece := layout.pieces.get(name)) is None or not piece.values.numel():
                continue
            states.setdefault(name, {})[state] = _room(known, state, piece)
    if not groups:
        raise ValueError("the checkpoint has no optimizer's state under the name 'optimizer'")
    return {STATE: states, GROUPS: groups}


def _room(known: object, key: str = "", piece: Piece | None = None) -> Any:
    """Memory for a tensor of a checkpoint, or for this rank's piece of it, or None for other objects."""
    if not isinstance(known, TensorStorageMetadata):
        return None
    dtype = known.properties.dtype
    if piece is not None and _is_cut(key, known.size, piece):
        return piece.of(torch.empty_like(piece.values, dtype=dtype))
    return torch.empty(known.size, dtype=dtype)


def own_part(key: str, value: Any, piece: Piece) -> Any:
    """A copy of this rank's part of a whole state."""
    if not isinstance(value, Tensor):
        return value
    cut = _is_cut(key, value.shape, piece)
    return piece.of(piece.cut(value).clone()) if cut else value.clone()


def _is_cut(key: str, size: torch.Size, piece: Piece) -> bool:
    """Whether a state of this size is as large as the parameter. If not, it must be a single number."""
    if size == piece.shape and key != "step":
        return True
    if size.numel() == 1:
        return False
    raise ValueError(
        f"a state {key!r} has the shape {tuple(size)}, its parameter {tuple(piece.shape)}: only states of "
        "one number for each element, or of one number for all, can be cut"
    )


def give(
    optimizer: Optimizer, layout: ModuleSlices, states: States, groups: list[dict[str, Any]]
) -> None:
    """Load the states and options, in which parameters have names, into the optimizer."""
    own = named_groups(optimizer, layout)
    if len(own) != len(groups):
        raise ValueError(f"the state has {len(groups)} parameter groups, this optimizer {len(own)}")
    for mine, group in zip(own, groups, strict=True):
        if differ := sorted({*mine["params"]} ^ {*group["params"]}):
            raise ValueError(
                f"{', '.join(differ)}: in a group of the state or of this optimizer, but not in both. Make "
                "the groups as they were when the state was saved"
            )
    numbered, local, number = [], {}, 0
    for known, mine, group in zip(optimizer.param_groups, own, groups, strict=True):
        numbers = range(number, number + len(known["params"]))
        for i, shard in zip(numbers, known["params"], strict=True):
            if values := _of_shard(layout.of(shard), states):
                local[i] = values
        numbered.append({**mine, **group, "params": list(numbers)})
        number = numbers.stop
    optimizer.load_state_dict({STATE: local, GROUPS: numbered})


def _of_shard(slices: Sequence[Slice], states: States) -> dict[str, Any]:
    """The state of a shard: rows with its slices' states, and zeros elsewhere; numbers stay as they are."""
    joined: dict[str, Any] = {}
    for part in slices:
        for key, value in states.get(part.name, {}).items():
            if isinstance(value, Piece):
                row = joined.setdefault(key, torch.zeros_like(part.shard, dtype=value.values.dtype))
                part.of(row.detach()).values.copy_(value.values)
            elif key in joined and bool(joined[key] != value):
                raise ValueError(
                    f"the state {key!r} of {part.name} is {value}, that of another parameter in its unit "
                    f"{joined[key]}: a shard has one for all of its parameters"
                )
            else:
                joined[key] = value
    return joined
