"""Modules that are given to be cut; options that their parallel layer does not have are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def check_plain(module: nn.Module, *kinds: type[nn.Module]) -> None:
    """TypeError unless it is one of `kinds` with that class's own forward; ValueError if it has hooks or
    parametrizations, which its parts would not have."""
    if not any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"a {type(module).__name__} cannot be cut; {names} is expected")
    if parametrize.is_parametrized(module) or any(getattr(module, name, None) for name in HOOKS):
        raise ValueError(
            f"the {type(module).__name__} has hooks or parametrizations, which its parts would not have: "
            "cut it first, and give them to the parallel layer"
        )


def check_linear(linear: nn.Linear, in_features: int, out_features: int) -> None:
    """The linear layer must have these sizes. It can have a bias or not."""
    check_plain(linear, nn.Linear)
    if (linear.in_features, linear.out_features) != (in_features, out_features):
        raise ValueError(
            f"linear has {linear.in_features} features in and {linear.out_features} out; {in_features} and "
            f"{out_features} are expected"
        )


def check_embedding(embedding: nn.Embedding, num_embeddings: int, embedding_dim: int) -> None:
    """The embedding must have these sizes, and no option except `padding_idx`."""
    check_plain(embedding, nn.Embedding)
    if (embedding.num_embeddings, embedding.embedding_dim) != (num_embeddings, embedding_dim):
        raise ValueError(
            f"embedding is ({embedding.num_embeddings}, {embedding.embedding_dim}); ({num_embeddings}, "
            f"{embedding_dim}) is expected"
        )
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if value := getattr(embedding, option):
            raise ValueError(
                f"embedding has {option}={value}, for which a rank would have to know others' tokens; "
                "make the embedding without it"
            )


def check_names(linears: Mapping[str, Any], known: Collection[str]) -> None:
    """ValueError for a name that no layer has, because the module of that name would be lost."""
    if unknown := sorted(linears.keys() - known):
        raise ValueError(
            f"linears holds {unknown}; known are {sorted(known)}, and nothing else is cut"
        )
