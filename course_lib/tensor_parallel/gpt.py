"""A GPT, with its layers exchanged for parallel ones.

The model's own code does not change, because attention, MLP, embedding and head are replaced by layers with
the same names, inputs and outputs, and all operations between them go on as before. With `sequence`, the
operations between them work on the rank's part of the sequence, so norms and dropout are exchanged as well.

The model's parts must have the names of `course_lib.models.gpt`: token_embedding, position_embedding (or
None), dropout, blocks, norm, head; a block has attention_norm, attention (query, key, value, out, head_dim,
attend, rotate), mlp_norm, mlp (gate or None, up, down) and dropout.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3; Korthikanti et al., 2022, section 4.2.2 (sequence).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .attention import ParallelSelfAttention
from .conjugate import Group, place
from .cut import Parallel
from .dropout import ShardDropout, same_random_state
from .given import check_plain
from .linear import ColumnParallelLinear, Sequences, checked
from .mlp import ParallelMLP
from .replicated import SequenceParallelEmbedding, SequenceParallelNorm
from .vocabulary import VocabParallelEmbedding


def parallelize_gpt(model: Any, group: Group = None, sequence: Sequences = None) -> Any:
    """Exchange the layers of `model` for parallel ones, in place, and return the model.

    All ranks of `group` call it, each with a model of the same configuration, and all get the values of the
    group's first rank. Afterwards, the ranks' default generators agree (`same_random_state`), and all ranks
    must be given the same tokens.
    sequence: None, or "keep" or "regather", with which each rank has its part of the sequence between the
        layers, and the number of ranks must divide its length.

    The model then returns the logits of the rank's part of the vocabulary, (batch, seq, vocab_size / n):
    `vocab_parallel_cross_entropy(logits, targets, group, vocab_size=...)` is their loss. Head and embedding
    stay tied if they were. An MLP of another kind, such as a mixture of experts, is whole on each rank. Each
    rank holds 1/n of all matrices, but norms, position embedding and the biases added to the residual stream
    are whole on every rank.

    `course_lib.facts.tensor_parallel_layer_bytes` gives the bytes sent by a layer.

    Raises ValueError if the heads cannot be shared equally, if the model is parallel already, or if a module
    has options, hooks or inner modules that its parallel version does not have; TypeError for another kind of
    module.
    """
    if any(isinstance(module, Parallel) for module in model.modules()):
        raise ValueError("the model has parallel layers already: give the unsharded one, once")
    tied = model.head.weight is model.token_embedding.weight
    in_training = {name for name, module in model.named_modules() if module.training}
    for block in model.blocks:
        block.attention = parallelize_attention(block.attention, group, sequence)
        if hasattr(block.mlp, "up"):
            block.mlp = parallelize_mlp(block.mlp, group, sequence)
        elif checked(sequence) is not None:
            raise ValueError(
                f"an MLP of the kind {type(block.mlp).__name__} cannot take part of a sequence: leave "
                "`sequence` out, and all ranks give it whole sequences"
            )
    embedding, head = model.token_embedding, model.head
    model.token_embedding = VocabParallelEmbedding(
        embedding.num_embeddings, embedding.embedding_dim, group,
        sequence=sequence, embedding=embedding,
    )  # fmt: skip
    model.head = ColumnParallelLinear(
        head.in_features, head.out_features, head.bias is not None, False, group,
        sequence=sequence, linear=head,
    )  # fmt: skip
    if tied:
        model.head.weight = model.token_embedding.weight
    if checked(sequence) is not None:
        _on_parts_of_the_sequence(model, group)
    _same_values(model, group)
    same_random_state(group)
    for name, module in model.named_modules():  # new layers are made for training
        module.training = name in in_training
    return model


def parallelize_mlp(mlp: Any, group: Group = None, sequence: Sequences = None) -> ParallelMLP:
    """The parallel version of an MLP that has gate (or None), up and down; `mlp` itself does not change.

    If you exchange only the MLPs of a model (`block.mlp = parallelize_mlp(block.mlp)`), all other parameters
    must be the same on every rank, so give all ranks one seed, or load one state.
    """
    activation = "gelu" if mlp.gate is None else "swiglu"
    return ParallelMLP(
        mlp.up.in_features, mlp.up.out_features, activation, mlp.up.bias is not None, group,
        sequence=sequence, linears=dict(mlp.named_children()),
    )  # fmt: skip


def parallelize_attention(
    attention: Any, group: Group = None, sequence: Sequences = None
) -> ParallelSelfAttention:
    """The parallel version of an attention that has query, key, value, out, head_dim, attend and rotate."""
    width, head_dim = attention.query.in_features, attention.head_dim
    return ParallelSelfAttention(
        width, width // head_dim, attention.key.out_features // head_dim,
        attention.query.bias is not None, group,
        attend=attention.attend, rotate=attention.rotate,
        sequence=sequence, linears=dict(attention.named_children()),
    )  # fmt: skip


def _on_parts_of_the_sequence(model: Any, group: Group) -> None:
    """Exchange the modules between the layers: norms, dropout, and the position embedding."""
    model.norm = SequenceParallelNorm(model.norm, group)
    model.dropout = _cut_dropout(model.dropout, group)
    if model.position_embedding is not None:
        model.position_embedding = SequenceParallelEmbedding(model.position_embedding, group)
    for block in model.blocks:
        block.attention_norm = SequenceParallelNorm(block.attention_norm, group)
        block.mlp_norm = SequenceParallelNorm(block.mlp_norm, group)
        block.dropout = _cut_dropout(block.dropout, group)


def _cut_dropout(dropout: nn.Module, group: Group) -> ShardDropout:
    check_plain(dropout, nn.Dropout)
    assert isinstance(dropout, nn.Dropout)
    return ShardDropout(dropout.p, group)


@torch.no_grad()
def _same_values(model: nn.Module, group: Group) -> None:
    """Give all ranks the first rank's values of the tensors that are not cut."""
    if place(group)[1] == 1:
        return
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    for module in model.modules():
        if not isinstance(module, Parallel):  # a Parallel layer has done so itself
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                values = tensor.detach().contiguous()
                dist.broadcast(values, first, group=group)
                tensor.copy_(values)
