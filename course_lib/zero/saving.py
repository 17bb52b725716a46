"""The optimizer's state, which N ranks save and M ranks load.

Each rank saves its own part, without communication. `state_dict()` is then plain data:

    {"world_size": N, "rank": r,
     "param_groups": as in torch.optim, parameters as numbers (in the order in which they were given),
     "state": {number: {"shape": of the whole parameter,
                        "start", "stop": which of its elements, counted in a row, are here,
                        "values": {"exp_avg": flat tensor of those elements, "step": tensor or number, ...}}}}

`merge_state_dicts` joins the dictionaries of all N ranks into one dictionary in torch.optim's form, with
whole parameters. Any number of ranks can load it. The same optimizer in one process can also load it, and
saves dictionaries any number of ranks can load:

    torch.save(optimizer.state_dict(), f"rank{rank}.pt")                                   # N ranks
    parts = [torch.load(f"rank{r}.pt", mmap=True) for r in range(N)]                       # M ranks
    optimizer.load_state_dict(merge_state_dicts(parts))

"values" holds the optimizer's own states and, for a 16-bit parameter, "master", its float32 copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .shards import Span

MASTER = "master"


@dataclass(frozen=True)
class Piece:
    """A parameter's part on this rank.

    index: the parameter's number. shape: of the whole parameter. span: which of its elements are here.
    shard: the tensor with these elements, which is what the optimizer knows. has_master: whether the shard
    is the float32 copy.
    """

    index: int
    shape: torch.Size
    span: Span
    shard: torch.nn.Parameter
    has_master: bool = False


def save_pieces(
    optimizer: torch.optim.Optimizer,
    pieces: Sequence[Piece],
    groups: Sequence[Sequence[int]],
    rank: int,
    world_size: int,
) -> dict[str, Any]:
    """This rank's dictionary. groups: the numbers of each group's parameters, frozen ones included."""
    state = {}
    for piece in pieces:
        values = dict(optimizer.state.get(piece.shard, {}))
        if piece.has_master:
            values[MASTER] = piece.shard.detach()
        state[piece.index] = {
            "shape": tuple(piece.shape),
            "start": piece.span.start,
            "stop": piece.span.stop,
            "values": values,
        }
    param_groups = [
        {**group, "params": list(numbers)}
        for group, numbers in zip(optimizer.param_groups, groups, strict=True)
    ]
    return {
        "world_size": world_size,
        "rank": rank,
        "state": state,
        "param_groups": param_groups,
    }


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the state dictionaries of all ranks, in any order, into one in torch.optim's form.

    The result contains no state for frozen parameters, since no rank's optimizer knows them. (torch.optim
    keeps none either, except in Adagrad, which makes its state together with the optimizer.)

    Raises ValueError if a dictionary is missing or appears twice, or if they are not all from the same run.
    """
    if not states:
        raise ValueError("no state dictionaries: pass those of all ranks")
    if any("world_size" not in state for state in states):
        raise ValueError("a dictionary is not what a sharded optimizer's state_dict() returns")
    n = states[0]["world_size"]
    ranks = sorted(state["rank"] for state in states)
    if ranks != list(range(n)) or any(state["world_size"] != n for state in states):
        raise ValueError(
            f"the dictionaries are those of ranks {ranks}; each of the {n} ranks that saved is needed once"
        )
    merged = {}
    for index, first in states[0]["state"].items():
        parts = sorted((state["state"][index] for state in states), key=lambda part: part["start"])
        parts = [part for part in parts if part["stop"] > part["start"]] or parts[
            :1
        ]  # of no elements
        values = _join([part["values"] for part in parts], torch.Size(first["shape"]))
        if values:
            merged[index] = values
    return {"state": merged, "param_groups": states[0]["param_groups"]}


def _join(parts: Sequence[Mapping[str, Any]], shape: torch.Size) -> dict[str, Any]:
    """Put flat tensors one after another; a single number per parameter is the same on all ranks."""
    if not parts:
        return {}
    names = parts[0].keys()
    if any(part.keys() != names for part in parts):
        raise ValueError("the ranks' states of a parameter have different names: not of one run")
    joined = {}
    for name in names:
        values = [part[name] for part in parts]
        flat = isinstance(values[0], torch.Tensor) and values[0].dim() == 1
        joined[name] = torch.cat(values).view(shape) if flat else values[0]
    return joined


def load_pieces(
    optimizer: torch.optim.Optimizer,
    pieces: Sequence[Piece],
    state: Mapping[str, Any],
    rank: int,
    world_size: int,
) -> None:
    """Give the optimizer this rank's part of `state`, a merged dictionary or one this rank saved.

    Raises ValueError for a dictionary from another rank or world size, or with other parameters.
    """
    own = "world_size" in state
    if own and (state["world_size"], state["rank"]) != (world_size, rank):
        raise ValueError(
            f"this is the state of rank {state['rank']} of {state['world_size']}, here is rank {rank} of "
            f"{world_size}: join those of all ranks with merge_state_dicts and load the result"
        )
    known = set(range(sum(len(group["params"]) for group in state["param_groups"])))
    if not {piece.index for piece in pieces} <= known:
        raise ValueError(
            f"the state is that of {len(known)} parameters, but this optimizer has one with number "
            f"{max(piece.index for piece in pieces)}: it was saved from another model"
        )
    numbers = {id(piece.shard): piece for piece in pieces}
    local: dict[int, dict[str, Any]] = {}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for place, param in enumerate(params):
        piece = numbers[id(param)]
        entry = state["state"].get(piece.index, {})
        values = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in (_own(entry, piece) if own else _cut(entry, piece)).items()
        }
        master = values.pop(MASTER, None)
        if master is not None and piece.has_master:
            with torch.no_grad():
                piece.shard.copy_(master)
        if values:
            local[place] = values
    optimizer.load_state_dict(
        {"state": local, "param_groups": _renumbered(optimizer, state["param_groups"])}
    )


def _own(entry: Mapping[str, Any], piece: Piece) -> Mapping[str, Any]:
    if (entry.get("start"), entry.get("stop")) != (piece.span.start, piece.span.stop):
        raise ValueError(
            f"the state of parameter {piece.index} holds its elements {entry.get('start')} to "
            f"{entry.get('stop')}, here are {piece.span.start} to {piece.span.stop}: the shards were cut "
            "otherwise. Join the dictionaries of all ranks with merge_state_dicts"
        )
    return entry["values"]


def _cut(entry: Mapping[str, Any], piece: Piece) -> dict[str, Any]:
    """This rank's part of a whole parameter's state."""
    if piece.span.stop == piece.span.start:
        return {}
    cut = {}
    for name, value in entry.items():
        if isinstance(value, torch.Tensor) and (value.dim() > 0 or name != "step"):
            if value.shape == piece.shape:
                value = value.reshape(-1)[piece.span.start : piece.span.stop]
            elif value.dim() > 0:
                raise ValueError(
                    f"the state {name!r} of parameter {piece.index} has the shape {tuple(value.shape)}, the "
                    f"parameter {tuple(piece.shape)}: it was saved from another model"
                )
        cut[name] = value
    return cut


def _renumbered(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The options of the saved groups, for the groups of shards, which have no frozen parameters."""
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"the state has {len(groups)} parameter groups, this optimizer {len(optimizer.param_groups)}"
        )
    renumbered, place = [], 0
    for group, mine in zip(groups, optimizer.param_groups, strict=True):
        numbers = range(place, place + len(mine["params"]))
        renumbered.append({**group, "params": list(numbers)})
        place = numbers.stop
    return renumbered
