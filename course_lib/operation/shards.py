"""Save on pp 2 x tp 2, load on dp 3: a checkpoint of boxes, for any number of ranks.

    save_shards    each rank writes its part of `write_plan`, one file per piece; then rank 0 commits
    load_shards    each rank reads its part of `read_plan`, from the newest checkpoint that is whole for all
    load_step      the same from a checkpoint you name

A checkpoint knows nothing about the ranks that saved it. It contains boxes of named tensors, and
`course_lib.mesh.held_boxes` gives the boxes of a model on a mesh. If a rank dies before rank 0 commits, there
is no new checkpoint, and the previous one is used. If a file is damaged, the rank that reads it notices, and
then all ranks take the previous checkpoint.

Bytes: together the ranks write every element once. Each rank reads the whole of every file that holds some of
the elements it wants, because a checksum covers a whole file. torch.distributed.checkpoint puts the pieces of
a rank into one file and reads parts of it, but it has no checksums.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .plans import Box, read_plan, slices, write_plan
from .protocol import (
    DamagedCheckpoint,
    Entry,
    Files,
    new_prefix,
    publish,
    read_manifest,
    read_part,
    steps,
    write_parts,
)

Pieces = Mapping[str, tuple[Tensor, Box]]
Group = dist.ProcessGroup | None


def save_shards(disk: Files, step: int, pieces: Pieces, group: Group = None) -> int:
    """Save the tensors of all ranks of `group` as the checkpoint of `step`; returns this rank's bytes.

    It returns the bytes this rank wrote. pieces: by name in the whole model, this rank's part, and its box
    there. Replicas hold equal values. All ranks call it, see the same `disk`, and return when the checkpoint
    is complete. Every element is written once.
    """
    described = [
        (name, box, part.numel() * part.element_size()) for name, (part, box) in pieces.items()
    ]
    everyone = _all_gather(described, group)
    rank = dist.get_rank(group) if len(everyone) > 1 else 0
    mine = [described[i] for i in write_plan(everyone)[rank]]
    keys = [_key(name, box, pieces[name][0]) for name, box, _ in mine]
    raw = {f"rank-{rank}-piece-{i}": _raw(pieces[name][0]) for i, (name, _, _) in enumerate(mine)}
    prefix = _all_gather(new_prefix(disk, step) if rank == 0 else "", group)[0]
    entries = write_parts(disk, prefix, raw).values()
    written = _all_gather(dict(zip(keys, entries, strict=True)), group)  # now all have written
    if rank == 0:
        publish(disk, step, {name: entry for part in written for name, entry in part.items()})
    _all_gather(None, group)  # now the checkpoint is complete
    return sum(nbytes for _, _, nbytes in mine)


def load_shards(disk: Files, pieces: Pieces, group: Group = None) -> tuple[int, int] | None:
    """Fill the tensors of `pieces` from the newest checkpoint; returns (its step, this rank's bytes) or None.

    The bytes are those this rank read. All ranks of `group` call it, each with the boxes it wants; another
    dtype is converted. If one rank finds a damaged file, all ranks skip that checkpoint, with a warning that
    names the file. If the checkpoint lacks something one of them wants, ValueError is raised on all ranks.
    Nothing is changed until all ranks have read.
    """
    # All use rank 0's list, in case a checkpoint was saved meanwhile.
    for step in _all_gather(steps(disk), group)[0]:
        try:
            return step, load_step(disk, step, pieces, group)
        except DamagedCheckpoint as damage:
            warnings.warn(f"{damage}. The checkpoint of step {step} is not used", stacklevel=2)
    return None


@torch.no_grad()
def load_step(disk: Files, step: int, pieces: Pieces, group: Group = None) -> int:
    """Fill the tensors of `pieces` from the checkpoint of `step`; returns the bytes this rank read.

    It works as `load_shards` does, but if one rank finds a damaged file, all ranks raise DamagedCheckpoint.
    """
    parts, damage, lack = {}, "", ""
    try:
        saved = read_manifest(disk, step)
        parts = {name: _assemble(disk, saved, name, *piece) for name, piece in pieces.items()}
    except DamagedCheckpoint as error:
        damage = str(error)
    except ValueError as error:
        lack = str(error)
    damages, lacks = zip(*_all_gather((damage, lack), group), strict=True)
    if any(damages):
        raise DamagedCheckpoint(max(damages))
    if any(lacks):
        raise ValueError(f"the checkpoint of step {step} lacks what a rank wants: {max(lacks)}")
    for name, (whole, _) in parts.items():
        pieces[name][0].copy_(whole)
    return sum(nbytes for _, nbytes in parts.values())


def _assemble(
    disk: Files, saved: Mapping[str, Entry], name: str, like: Tensor, wanted: Box
) -> tuple[Tensor, int]:
    """The box `wanted` of a tensor, made of the saved pieces, and the number of bytes read for it."""
    try:
        described = [(json.loads(key), entry) for key, entry in saved.items()]
    except json.JSONDecodeError as error:
        raise ValueError(f"its part {error.doc!r} is not a box") from None
    held = [(box, dtype, entry) for (other, box, dtype), entry in described if other == name]
    if not held:
        raise ValueError(f"it has no {name}")
    part, nbytes = torch.empty_like(like), 0
    for index, source, place in read_plan([(i, box) for i, (box, _, _) in enumerate(held)], wanted):
        box, dtype, entry = held[index]
        flat = torch.frombuffer(bytearray(read_part(disk, entry)), dtype=getattr(torch, dtype))
        part[slices(place)] = flat.view([stop - start for start, stop in box])[slices(source)]
        nbytes += entry[1]
    return part, nbytes


def _key(name: str, box: Box, part: Tensor) -> str:
    """The name of a piece in the manifest, which says all a reader has to know."""
    return json.dumps([name, box, str(part.dtype).removeprefix("torch.")])


def _raw(part: Tensor) -> bytes:
    return part.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _all_gather(value: Any, group: Group) -> list[Any]:
    """Every rank's value, or only this process' value if there are no ranks."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
