"""The model on a mesh: which part of it a rank holds, and what this part has to know about the others.

Five axes cut one model, from the inside outwards:

    tp   each layer              `parallelize_gpt`: heads, rows and columns of matrices, the vocabulary
    cp   each sequence           attention spans the group; all other layers need only their positions
    pp   the stack of layers     `gpt_stages`: a stage is some blocks, with one of the ends
    ep   the experts             `expert_gpt`, before the model is given to this file
    dp   nothing of the model    all replicas begin with the values of the first

The cuts are made in this order. This file is the only place that knows how they meet, at four seams:

    positions   a stage has s / cp tokens, and their positions are not 0, 1, 2, ...
    shape       a message between stages has s / cp tokens, and s / (cp tp) if tp cuts the sequence too
    loss        no rank holds a token's logits: they are cut over tp
    count       the mean is over the targets of the whole sequence, so stages get all targets

Source: the order is the same as in Megatron-LM (Narayanan et al., SC 2021, section 3) and in torchtitan
(Liang et al., 2024), which apply tp, then cp and pp, then dp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.context_parallel import MakeLayout, check_causal, positions
from course_lib.pipeline.actions import Schedule
from course_lib.pipeline.gpt import GPTStage, gpt_stages, head_share
from course_lib.pipeline.stage import Stage, summed_loss
from course_lib.tensor_parallel import parallelize_gpt, vocab_parallel_cross_entropy
from course_lib.tensor_parallel.cut import Parallel

from .mesh import Mesh

Attention = Callable[..., Tensor]
Parameters = list[tuple[str, nn.Parameter]]


def mesh_stages(
    model: Any,
    mesh: Mesh,
    schedule: Schedule,
    *,
    seq: int | None = None,
    sequence: Literal["keep", "regather"] | None = None,
    attention: Attention | None = None,
    layout: MakeLayout | None = None,
) -> list[Stage]:
    """The stages of a GPT held by this rank, each cut over tp, on this rank's tokens over cp.

    model: `course_lib.models.GPT` or a model of its form, whole, of one configuration on all ranks. Its
        layers are exchanged in place, and parameters that no stage of the rank holds are freed with `model`.
        For ep, `expert_gpt(model, ..., group=mesh.group("ep"), tokens_group=mesh.group(("dp", "ep", "cp")))`
        comes first. All ranks of tp compute the same experts.
    schedule: for the ranks of pp, as `run_schedule` takes it.
    seq: tokens of a sequence; None: the model's context. All microbatches have this length if cp > 1.
    sequence: None, or "keep" or "regather", with which tp cuts the tokens between the layers
        (`parallelize_gpt`).
    attention: a causal function (q, k, v, layout=..., group=...) that spans a group; None: ring attention.
    layout: which rank of cp holds which tokens; None: zigzag.

    All ranks call it, and all have the values of the first replica afterwards. `run_schedule` and
    `hybrid_step` are given the rows read by this replica, inputs and targets whole along the sequence.
    tp broadcasts the whole model inside its group, pp broadcasts shared parameters, and dp and cp the stages.

    Raises ValueError if heads, layers or tokens cannot be cut as the mesh asks, for a `seq` beyond the
    model's context, and for an attention without a causal mask.
    """
    tokens: int = model.config.context if seq is None else seq
    check_sequences(model, tokens, attention)
    head, loss, tp = head_share(model), summed_loss, mesh.size("tp")
    if tp > 1:
        vocabulary = model.token_embedding.num_embeddings
        parallelize_gpt(model, mesh.group("tp"), sequence)
        loss = partial(loss_of_cut_logits, group=mesh.group("tp"), vocab_size=vocabulary)
    places = None
    if mesh.size("cp") > 1:
        places = spread_over_sequence(model, mesh, tokens, attention, layout)
    stages = gpt_stages(
        model, schedule, mesh.coordinate.get("pp", 0), mesh.group("pp"),
        positions=places, seq=None if places is None else tokens,
        sequence=tp if sequence else None, loss=loss, head=head,
    )  # fmt: skip
    same_values(stages, mesh)
    return stages


def check_sequences(model: Any, seq: int, attention: Attention | None) -> None:
    """Raise the errors of `mesh_stages` that are known before the model is cut."""
    context = model.config.context
    if not 1 <= seq <= context:
        raise ValueError(
            f"seq={seq}: the model's context holds 1 to {context} tokens. Cut the sequences, or configure a "
            "longer context"
        )
    if attention is not None:
        check_causal(attention)


def spread_over_sequence(
    model: Any, mesh: Mesh, seq: int, attention: Attention | None, layout: MakeLayout | None
) -> Tensor:
    """Let every block attend over the ranks of cp; returns the positions of this rank's tokens."""
    from course_lib.context_parallel import ring_attention, zigzag

    group = mesh.group("cp")
    dealt = (layout or zigzag)(seq, mesh.size("cp"))
    attend = attention or partial(ring_attention, causal=True)
    for block in model.blocks:
        block.attention.attend = partial(attend, layout=dealt, group=group)
    return positions(dealt[dist.get_rank(group)], mesh.device)


def loss_of_cut_logits(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup, vocab_size: int
) -> Tensor:
    """The sum of the cross-entropies of logits (batch, tokens, part of the vocabulary)."""
    return vocab_parallel_cross_entropy(
        logits, targets, group, vocab_size=vocab_size, reduction="sum"
    )


@torch.no_grad()
def same_values(stages: Sequence[Stage], mesh: Mesh) -> None:
    """Give all replicas the first one's parameters and buffers; experts go to the ranks that hold them."""
    experts = {id(param) for param in expert_parameters(stages)}
    for stage in stages:
        for tensor in [*stage.module.parameters(), *stage.module.buffers()]:
            axes = ("dp", "cp") if id(tensor) in experts else ("dp", "ep", "cp")
            if mesh.size(axes) > 1:
                values = tensor.detach().contiguous()
                dist.broadcast(values, mesh.ranks(axes)[0], group=mesh.group(axes))
                tensor.copy_(values)


# ---- what the optimizer and the norm have to know


def parameters(stages: Sequence[Stage]) -> Parameters:
    """The rank's parameters by their whole-model names, each once; a tied head has the embedding's name."""
    named = {
        name: param
        for stage in stages
        if isinstance(stage.module, GPTStage)
        for name, param in stage.module.parameter_names().items()
    }
    return list(named.items())


def cut_names(stages: Sequence[Stage]) -> set[str]:
    """The names of the parameters of which the ranks of tp hold parts; all others are whole on each rank.

    With fewer key and value heads than ranks, several ranks in succession hold the same part, with equal
    gradients. Only the first of them names it, so a norm counts it once.
    """
    cut: set[int] = set()
    for layer in (layer for stage in stages for layer in stage.module.modules()):
        for name, how in layer.cuts.items() if isinstance(layer, Parallel) else ():
            if dist.get_rank(how.group) % how.copies == 0:
                cut.add(id(getattr(layer, name)))
    return {name for name, param in parameters(stages) if id(param) in cut}


def expert_parameters(stages: Sequence[Stage]) -> list[nn.Parameter]:
    """The parameters that differ on each rank of ep, which a layer names in `apart`."""
    layers = (layer for stage in stages for layer in stage.module.modules())
    return [getattr(layer, name) for layer in layers for name in getattr(layer, "apart", ())]


def expert_names(stages: Sequence[Stage]) -> set[str]:
    """The names of the parameters that differ on each rank of ep."""
    experts = {id(param) for param in expert_parameters(stages)}
    return {name for name, param in parameters(stages) if id(param) in experts}


def tied_names(stages: Sequence[Stage]) -> set[str]:
    """The names of the parameters that another rank of pp also holds."""
    return {name for stage in stages for name in stage.shared}
