"""Planners of torch.distributed.checkpoint (DCP) that write and read `Piece`s.

DCP knows DTensors, of which a rank holds one block. A piece is several blocks of one tensor, so each block
becomes an item of the plan. DCP itself does the rest. If replicas hold a block twice, it writes the block
only once. It also cuts blocks written by another number of ranks, and its metadata say which file holds which
block.

Source: the docstrings of `torch.distributed.checkpoint.planner` (`SavePlanner`, `LoadPlanner`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from .pieces import Block, Piece

Path = tuple[str | int, ...]
Pieces = Mapping[Path, Piece]  # by their paths in a nested state dict


class SavePieces(DefaultSavePlanner):
    """Writes a nested state dict, and also the pieces, as if they were in it."""

    def __init__(self, pieces: Pieces):
        super().__init__()
        self.paths = {name_of(path): path for path in pieces}
        self.pieces = {name_of(path): piece for path, piece in pieces.items()}

    def create_local_plan(self) -> SavePlan:
        self.mappings |= self.paths
        plan = super().create_local_plan()
        items = [
            WriteItem(
                index=MetadataIndex(name, torch.Size(block.offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_chunk(block),
                    properties=TensorProperties.create_from_tensor(block.values),
                    size=piece.shape,
                ),
            )
            for name, piece in self.pieces.items()
            for block in piece.blocks()
        ]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *items])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn in self.pieces:
            return _values(self.pieces[index.fqn], index)
        return super().lookup_object(index)


class LoadPieces(DefaultLoadPlanner):
    """Reads into a nested state dict, and also into the pieces, whose `values` are overwritten."""

    def __init__(self, pieces: Pieces):
        super().__init__()
        self.pieces = {name_of(path): piece for path, piece in pieces.items()}

    def create_local_plan(self) -> LoadPlan:
        """Raises RuntimeError for a name the checkpoint lacks, ValueError for a name with another shape."""
        if self.metadata is None:
            raise RuntimeError("the checkpoint has no metadata: was its writing broken off?")
        plan = create_default_local_load_plan(self.state_dict, self.metadata)
        items = list(plan.items)
        for name, piece in self.pieces.items():
            known = self.metadata.state_dict_metadata.get(name)
            if known is None:
                raise RuntimeError(f"the checkpoint has no {name}: it was saved from another model")
            if not isinstance(known, TensorStorageMetadata) or known.size != piece.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(piece.shape)}, in the checkpoint "
                    f"{tuple(getattr(known, 'size', ()))}: it was saved from another model"
                )
            chunks = [_chunk(block) for block in piece.blocks()]
            items += create_read_items_for_chunk_list(name, known, chunks)
        return dataclasses.replace(plan, items=items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        if index.fqn in self.pieces:
            return _values(self.pieces[index.fqn], index)
        return super().lookup_tensor(index)


def apart(state: Mapping[str, Any], path: Path = ()) -> tuple[dict[Path, Piece], dict[str, Any]]:
    """The pieces of a nested state dict, by their paths, and the dict without them."""
    pieces: dict[Path, Piece] = {}
    rest: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Piece):
            pieces[*path, name] = value
        elif isinstance(value, dict):
            inside, rest[name] = apart(value, (*path, name))
            pieces |= inside
        else:
            rest[name] = value
    return pieces, rest


def name_of(path: Path) -> str:
    """The name DCP gives to a path in a nested state dict."""
    return ".".join(map(str, path))


def _chunk(block: Block) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.sizes))


def _values(piece: Piece, index: MetadataIndex) -> Tensor:
    """The values of the piece's block at these offsets, as a view."""
    offsets = tuple(index.offset or ())
    return next(block.values for block in piece.blocks() if block.offsets == offsets)
