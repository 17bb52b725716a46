"""How a GPT is cut into stages.

The cut should give every stage the same work, because the slowest stage sets the pace of all. A block is the
unit, and the head counts by its multiplications. With a large vocabulary, the head weighs as much as several
blocks, so the last stage gets fewer. The embedding looks up rows, which costs next to nothing.

A stage can hold only a part of each layer, and work on only a part of each sequence, together with other
ranks that hold the same stage. Then it has to know three things that a whole stage finds by itself: where its
tokens are in the sequence (`positions`), into how many parts the tokens between two layers are cut
(`sequence`), and how to compute the loss of logits that no rank holds in full (`loss`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .actions import Schedule, chain_length, stage_ranks
from .shared import Group, Shared, same_values
from .stage import Loss, Stage, summed_loss


def gpt_stages(
    model: Any,
    schedule: Schedule,
    rank: int,
    group: Group = None,
    copies: int = 1,
    *,
    positions: Tensor | None = None,
    seq: int | None = None,
    sequence: int | None = None,
    loss: Loss = summed_loss,
    head: float | None = None,
) -> list[Stage]:
    """The stages of a GPT that the schedule puts on `rank`, in their order.

    model: as in `course_lib.models`: token_embedding, position_embedding (or None), dropout, blocks, norm,
        head. All ranks of `group` must call the function, each with a model of the same configuration; shared
        parameters get the values of the first stage that holds them. The rest of the model is not kept, so
        parameters that no stage of the rank refers to are freed with `model`.
    rank: the rank in the group. copies: the number of copies of the model, 2 for DualPipe.
    positions: the positions of this rank's tokens in the sequence, (tokens here,), if it has a part of them.
        Inputs and targets are still given whole, because the first stage takes the rank's tokens out of the
        inputs, and the last stage out of the targets. None: all tokens.
    seq: the length of all microbatches' sequences, if `positions` were dealt out for one length.
    sequence: into how many parts the ranks that share the layers cut the tokens between two layers; None:
        each rank has all of them.
    loss: the sum of the losses, of logits and targets of the rank's tokens.
    head: the work of the head, in blocks; None: as the model's sizes say. If the ranks hold parts of the
        layers, take `head_share` of the whole model, because parts differ in size, and all ranks must cut
        alike.
    Sends shared parameters from their first holder to every other.
    Raises ValueError if there are not enough blocks.
    """
    ranks = stage_ranks(schedule)
    length = chain_length(len(ranks), copies)
    cuts = balanced(len(model.blocks), length, head_share(model) if head is None else head)
    modules = [
        GPTStage(model, blocks, i == 0, i == length - 1, positions, sequence)
        for i, blocks in enumerate(cuts)
    ]
    holders: dict[str, list[int]] = {}
    for stage in sorted(ranks):
        for name in modules[stage % length].parameter_names():
            holders.setdefault(name, []).append(ranks[stage])
    width = model.token_embedding.embedding_dim
    shape = partial(
        passed_on, width=width, positions=positions, sequence=sequence, seq=seq,
        context=getattr(getattr(model, "config", None), "context", None),
    )  # fmt: skip
    own_loss = loss if positions is None else partial(loss_of_part, loss, positions)
    own = []
    for index in sorted(stage for stage in ranks if ranks[stage] == rank):
        module = modules[index % length]
        shared = {
            name: Shared(param, tuple(dict.fromkeys(holders[name])))
            for name, param in module.parameter_names().items()
            if len(set(holders[name])) > 1
        }
        own.append(Stage(index, length, module, shape, own_loss, shared=shared, copies=copies))
    same_values([stage.shared for stage in own], rank, group)
    return own


def passed_on(
    inputs: Tensor,
    width: int,
    positions: Tensor | None = None,
    sequence: int | None = None,
    seq: int | None = None,
    context: int | None = None,
) -> tuple[int, int, int]:
    """The shape of the tensor sent from stage to stage, for inputs (batch, whole seq).

    Raises ValueError if the tokens cannot be cut into `sequence` equal parts, or if there are not `seq` of
    them, or more than `context`.
    """
    batch, tokens = inputs.shape
    if context is not None and tokens > context:
        raise ValueError(
            f"{tokens} tokens are more than the model's context={context}: cut the sequence, or configure a "
            "longer context"
        )
    if seq is not None and tokens != seq:
        raise ValueError(
            f"sequences of {tokens} tokens were given to stages whose ranks share sequences of {seq}: give "
            f"sequences of {seq} tokens, or make the stages with seq={tokens}"
        )
    here, parts = tokens if positions is None else len(positions), sequence or 1
    if here % parts:
        raise ValueError(
            f"{here} tokens cannot be cut into {parts} equal parts: choose a sequence length that all axes "
            "which cut it divide"
        )
    return batch, here // parts, width


def loss_of_part(loss: Loss, positions: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of the tokens at `positions`; `targets` covers the whole sequence."""
    return loss(logits, targets[:, positions])


def balanced(blocks: int, stages: int, head: float) -> list[range]:
    """The blocks of each stage, cut so that the slowest stage has the least work.

    head: the work of the head, in blocks.
    Every stage has a block, except that the last can have none. If several cuts are equally good, the stages
    differ as little as possible, and the first ones have more. Raises ValueError if there are not enough
    blocks.
    """
    if stages > blocks + 1:
        raise ValueError(
            f"{blocks} blocks cannot be cut into {stages} stages: give the model at least "
            f"{stages - 1} layers, as only the last stage can do without, having the head"
        )
    if stages == 1:
        return [range(blocks)]

    def slowest(in_last: int) -> float:
        return max(-(-(blocks - in_last) // (stages - 1)), in_last + head)

    last = min(range(blocks - stages + 1, -1, -1), key=slowest)
    each, longer = divmod(blocks - last, stages - 1)
    sizes = [each + (place < longer) for place in range(stages - 1)] + [last]
    ends = [sum(sizes[: place + 1]) for place in range(stages)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def head_share(model: Any) -> float:
    """The multiplications of the head over the multiplications of a block, without attention's scores."""
    block = sum(param.numel() for param in model.blocks[0].parameters() if param.dim() > 1)
    return model.head.weight.numel() / block


class GPTStage(nn.Module):
    """Some blocks of a GPT, with the embedding in front or the head behind; names are the model's own.

    positions, sequence: see `gpt_stages`.

    forward: from tokens (batch, seq) or x (batch, tokens between layers, width) to x, or in the last stage to
    the logits of the rank's tokens.
    """

    def __init__(
        self,
        model: Any,
        blocks: range,
        first: bool,
        last: bool,
        positions: Tensor | None = None,
        sequence: int | None = None,
    ):
        super().__init__()
        self.first, self.last = first, last
        self.positions, self.parts = positions, sequence or 1
        self.tied = model.head.weight is model.token_embedding.weight
        if first:
            self.token_embedding = model.token_embedding
            self.position_embedding = model.position_embedding
            self.dropout = model.dropout
        self.blocks = nn.ModuleDict({str(number): model.blocks[number] for number in blocks})
        if last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        positions = self._positions(x)
        if self.first:
            x = self.token_embedding(x if self.positions is None else x[:, positions])
            if self.position_embedding is not None:
                x = x + self.position_embedding(positions)
            x = self.dropout(x)
        for block in self.blocks.values():
            x = block(x, positions)
        return self.head(self.norm(x)) if self.last else x

    def _positions(self, x: Tensor) -> Tensor:
        """The positions of this rank's tokens, including those that are on other ranks between two layers."""
        if self.positions is not None:
            return self.positions
        return torch.arange(x.shape[1] * (1 if self.first else self.parts), device=x.device)

    def parameter_names(self) -> dict[str, nn.Parameter]:
        """The parameters by their names in the whole model; a tied head has the name of the embedding."""
        tied = {"head.weight": "token_embedding.weight"} if self.tied else {}
        return {tied.get(name, name): param for name, param in self.named_parameters()}
