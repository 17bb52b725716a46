"""Tensor parallelism: how is one layer split, and what must its parts send to each other?

    conjugate.py   the functions at the edges of a sharded region, forward and backward side by side
    linear.py      ColumnParallelLinear, RowParallelLinear
    mlp.py         ParallelMLP: GELU or SwiGLU
    attention.py   ParallelSelfAttention: heads, also grouped queries
    vocabulary.py  VocabParallelEmbedding, vocab_parallel_cross_entropy
    replicated.py  whole parameters on each rank's own activations: norms on parts of the sequence
    dropout.py     the same masks outside a region, different ones inside
    cut.py         which part a rank holds; state dicts of the unsharded model, loaded and saved
    given.py       modules that are given to be cut, with options that would be lost
    gpt.py         parallelize_gpt: a GPT with its layers exchanged
    saved.py       bytes kept for backward, measured

The folder imports torch only and can be copied out as it is. Each layer's docstring says how many bytes it
sends and keeps; `course_lib.facts` has them as functions.

    model = parallelize_gpt(GPT(config), sequence="keep")
    logits = model(tokens)                                          # (batch, seq, vocab_size / n)
    vocab_parallel_cross_entropy(logits, targets, vocab_size=config.vocab_size).backward()
"""

from .attention import ParallelSelfAttention
from .conjugate import (
    all_gather_reduce_scatter,
    all_gather_split,
    all_reduce_identity,
    identity_all_reduce,
    reduce_scatter_all_gather,
    split_all_gather,
)
from .cut import full_state_dict, load_full_state_dict
from .dropout import ShardDropout, own_random_state, same_random_state
from .gpt import parallelize_attention, parallelize_gpt, parallelize_mlp
from .linear import ColumnParallelLinear, RowParallelLinear, Sequences, column_parallel
from .mlp import ParallelMLP
from .replicated import SequenceParallelEmbedding, SequenceParallelNorm, sum_gradients
from .saved import saved_for_backward
from .vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

__all__ = [
    "ColumnParallelLinear",
    "ParallelMLP",
    "ParallelSelfAttention",
    "RowParallelLinear",
    "SequenceParallelEmbedding",
    "SequenceParallelNorm",
    "Sequences",
    "ShardDropout",
    "VocabParallelEmbedding",
    "all_gather_reduce_scatter",
    "all_gather_split",
    "all_reduce_identity",
    "column_parallel",
    "full_state_dict",
    "identity_all_reduce",
    "load_full_state_dict",
    "own_random_state",
    "parallelize_attention",
    "parallelize_gpt",
    "parallelize_mlp",
    "reduce_scatter_all_gather",
    "same_random_state",
    "saved_for_backward",
    "split_all_gather",
    "sum_gradients",
    "vocab_parallel_cross_entropy",
]
