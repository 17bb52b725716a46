"""Checkpoints of sharded modules, which N ranks write and M ranks read.

A rank holds a flat piece of each parameter and of each optimizer state, and can save them in two forms:

    full      every rank gets whole tensors, by an all-gather for each. One process can read the single file.
    sharded   each rank writes its own pieces with their offsets, and nothing is gathered. Each reading rank
              takes the blocks that overlap its own, however many ranks wrote them.

    save_checkpoint("step1000", model, optimizer)          # 4 ranks
    load_checkpoint("step1000", model, optimizer)          # 2 ranks, or 1; the next losses are the same

The sharded form follows torch.distributed.checkpoint (DCP), with the names of PyTorch's `get_state_dict`:

    {"model": {name: piece or buffer},
     "optimizer": {"state": {name: {"exp_avg": piece, "step": number, ...}},
                   "param_groups": [{"params": [names], "lr": ..., ...}]}}

So a module of `fully_shard` can read these files, and this module can read the files of `fully_shard`:

    model, optim = get_state_dict(module, optimizer)       # torch.distributed.checkpoint.state_dict
    dcp.load({"model": model, "optimizer": optim}, checkpoint_id="step1000")
    set_state_dict(module, optimizer, model_state_dict=model, optim_state_dict=optim)

The formats agree as long as they hold the same names, with these limits:

* `get_state_dict` asks for the optimizer's state of every trained parameter. A parameter without a gradient
  has no state here, as in torch.optim. In this case, pass `DefaultLoadPlanner(allow_partial_load=True)` to
  dcp.load.
* Its option flatten_optimizer_state_dict=True makes other names, which are not read here.
* A weight that two modules share has only one state here, under its first name.
* If states are not as large as the parameter, as in Adafactor, they belong to a piece and not to a whole
  tensor, so they raise ValueError.
* A module with one shard per unit has one state for each unit. So all parameters of a unit must have taken
  equally many steps, and a parameter without a state in a checkpoint gets zeros.
* `fully_shard` refuses a parameter without dimensions, which is allowed here.
* Numbers are converted to the reader's dtype without a warning, as in DCP.

Source: `torch.distributed.checkpoint` (PyTorch's documentation), for the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from .arguments import Group
from .layout import ModuleSlices, inner, layout_of
from .optimizer import (
    GROUPS,
    OPTIMIZER,
    STATE,
    Optimizer,
    States,
    asked,
    give,
    named_groups,
    own_part,
    states_of,
)
from .pieces import Piece, whole_of
from .planners import LoadPieces, SavePieces, apart

MODEL = "model"


def save_checkpoint(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    group: Group = None,
    writers: Group = None,
) -> None:
    """Write the module's parameters and buffers, and the optimizer's state, each rank its own part.

    module: its parameters must be flat shards, see `layout.py`. optimizer: of these parameters.
    group: the ranks that together hold each parameter once. writers: all ranks that call, None for the whole
        world. They include replicas, but whatever replicas hold twice is written only once.
    Sends 8 bytes per parameter and DCP's plans, but no tensor. Each rank writes one file or none, and one
    file holds the metadata.

    Raises TypeError or ValueError as `layout_of`, and ValueError for states that cannot be cut.
    """
    pieces, rest = apart(sharded_state_dict(module, optimizer, group))
    planner = SavePieces(pieces)
    dcp.save(rest, checkpoint_id=str(folder), planner=planner, process_group=writers)


def load_checkpoint(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    group: Group = None,
    readers: Group = None,
) -> None:
    """Read a checkpoint of `save_checkpoint` or of `fully_shard` on any number of ranks; see above.

    The arguments are the same as for `save_checkpoint`. Parameters and buffers are overwritten in place, and
    the optimizer's state and options are replaced.

    Raises torch's CheckpointException if a name is missing or has another shape, ValueError if the
    optimizer's groups are of other parameters.
    """
    layout = layout_of(module, group)
    state: dict[str, Any] = {MODEL: _model(module, layout)}
    if optimizer is not None:
        metadata = dcp.FileSystemReader(str(folder)).read_metadata()
        state[OPTIMIZER] = asked(metadata, layout)
    pieces, rest = apart(state)
    planner = LoadPieces(pieces)
    dcp.load(rest, checkpoint_id=str(folder), planner=planner, process_group=readers)
    if optimizer is not None:
        states = rest[OPTIMIZER][STATE]
        for (part, *place), piece in pieces.items():
            if part == OPTIMIZER:
                states[place[1]][place[2]] = piece
        give(optimizer, layout, states, rest[OPTIMIZER][GROUPS])


def sharded_state_dict(
    module: nn.Module, optimizer: Optimizer | None = None, group: Group = None
) -> dict[str, Any]:
    """The nested dictionary above. This rank's `Piece`s share memory with module and optimizer."""
    return _sharded(module, optimizer, layout_of(module, group))


def full_state_dict(
    module: nn.Module, optimizer: Optimizer | None = None, group: Group = None
) -> dict[str, Any]:
    """The same with whole tensors, on the CPU of every rank, for torch.save. All ranks must call it.

    "model" is the state dict the wrapped module would have without the wrapper.
    Sends (N-1) times the longest piece of each tensor, and a few objects on which the ranks have to agree.
    """
    layout = layout_of(module, group)
    state = _sharded(module, optimizer, layout)
    full: dict[str, Any] = {
        MODEL: {name: _whole(value, group) for name, value in state[MODEL].items()}
    }
    if optimizer is not None:
        full[OPTIMIZER] = {
            STATE: _whole_states(state[OPTIMIZER][STATE], layout.pieces, group),
            GROUPS: state[OPTIMIZER][GROUPS],
        }
    return full


@torch.no_grad()
def load_full_state_dict(
    module: nn.Module,
    state: Mapping[str, Any],
    optimizer: Optimizer | None = None,
    group: Group = None,
) -> None:
    """Take this rank's pieces, and the buffers, from a `full_state_dict` of any number of ranks.

    Sends 8 bytes per parameter. Raises ValueError if names or shapes differ from the module's own.
    """
    layout = layout_of(module, group)
    own = _model(module, layout)
    if own.keys() != state[MODEL].keys():
        raise ValueError(
            f"names do not fit: missing {sorted(own.keys() - state[MODEL].keys())}, unknown "
            f"{sorted(state[MODEL].keys() - own.keys())}"
        )
    for name, value in own.items():
        whole = state[MODEL][name]
        if not isinstance(value, Piece | Tensor):
            continue
        if whole.shape != value.shape:
            raise ValueError(
                f"{name} has the shape {tuple(whole.shape)}; {tuple(value.shape)} is expected"
            )
        if isinstance(value, Piece):
            value.values.copy_(value.cut(whole))
        else:
            value.copy_(whole)
    if optimizer is None:
        return
    states: States = {}
    for name, values in state[OPTIMIZER][STATE].items():
        if (piece := layout.pieces.get(name)) is not None and piece.values.numel():
            states[name] = {key: own_part(key, value, piece) for key, value in values.items()}
    give(optimizer, layout, states, state[OPTIMIZER][GROUPS])


def _sharded(
    module: nn.Module, optimizer: Optimizer | None, layout: ModuleSlices
) -> dict[str, Any]:
    state: dict[str, Any] = {MODEL: _model(module, layout)}
    if optimizer is not None:
        state[OPTIMIZER] = {
            STATE: states_of(optimizer, layout),
            GROUPS: named_groups(optimizer, layout),
        }
    return state


# ---- the module


def _model(module: nn.Module, layout: ModuleSlices) -> dict[str, Any]:
    """The names of the wrapped module's state dict, with pieces for its parameters."""
    first = {id(param): name for name, param in inner(module).named_parameters()}
    return {
        name: layout.pieces[first[id(value)]] if id(value) in first else _detached(value)
        for name, value in inner(module).state_dict(keep_vars=True).items()
    }


# ---- whole tensors


def _whole(value: Any, group: Group) -> Any:
    if isinstance(value, Piece):
        return whole_of(value, group)
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _whole_states(states: States, pieces: Mapping[str, Piece], group: Group) -> States:
    """Whole states of each parameter. A rank without any element takes part with an empty piece."""
    kinds = {
        name: {
            key: value.values.dtype if isinstance(value, Piece) else _whole(value, group)
            for key, value in values.items()
        }
        for name, values in states.items()
    }
    of_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, kinds, group=group)
    agreed = {name: values for of_rank in of_ranks for name, values in of_rank.items()}
    whole: States = {}
    for name in pieces:
        for key, kind in agreed.get(name, {}).items():
            value = states.get(name, {}).get(key)
            if value is None and isinstance(kind, torch.dtype):
                value = pieces[name].of(pieces[name].values.new_empty(0, dtype=kind))
            of = whole.setdefault(name, {})
            of[key] = _whole(value, group) if isinstance(kind, torch.dtype) else kind
    return whole


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
