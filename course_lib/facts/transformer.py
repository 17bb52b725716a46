"""A transformer that predicts the next token: its parameters, and the FLOPs of training it.

A FLOP is a multiplication or an addition, so a matrix of P parameters costs 2P per token. Only products of
matrices are counted (no norms, softmax, activation functions, embedding look-ups). For each of forward's
products, backward computes two, one for the gradient of each factor.

`Shape` lists the sizes the functions need; `course_lib.models.GPTConfig` has them.

Sources: Kaplan et al., Scaling Laws for Neural Language Models, 2020, section 2.1 and table 1 (2N forward, 6N
with backward, N without embeddings). Chowdhery et al., PaLM, 2022, appendix B (6N + 12 L H Q T per token,
with the attention term). Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters,
2021, appendix (a batch, with head and recomputation). Dao et al., FlashAttention, 2022, appendix B.
"""

from __future__ import annotations

from typing import Protocol


class Shape(Protocol):
    """The sizes and parts of a transformer, as `course_lib.models.GPTConfig` describes them."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def key_value_heads(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def mlp_width(self) -> int: ...
    @property
    def mlp(self) -> str: ...
    @property
    def norm(self) -> str: ...
    @property
    def positions(self) -> str: ...
    @property
    def bias(self) -> bool: ...
    @property
    def tied(self) -> bool: ...


def attention_parameters(shape: Shape) -> int:
    """One layer's query, key, value and output projections: 4 h^2 + 4 h if every head has its own k, v."""
    queries = shape.heads * shape.head_dim
    keys = shape.key_value_heads * shape.head_dim
    weights = shape.width * (2 * queries + 2 * keys)
    return weights + shape.bias * (queries + 2 * keys + shape.width)


def mlp_parameters(shape: Shape) -> int:
    """One layer's MLP: 8 h^2 + 5 h for GELU at 4h; SwiGLU has three matrices instead of two."""
    inward = 2 if shape.mlp == "swiglu" else 1
    weights = (inward + 1) * shape.width * shape.mlp_width
    return weights + shape.bias * (inward * shape.mlp_width + shape.width)


def norm_parameters(shape: Shape) -> int:
    """One norm: LayerNorm has a weight and, with biases, a bias; RMSNorm a weight."""
    return shape.width * (2 if shape.norm == "layer" and shape.bias else 1)


def layer_parameters(shape: Shape) -> int:
    """One block: about 12 h^2 with GPT-2's parts."""
    return attention_parameters(shape) + mlp_parameters(shape) + 2 * norm_parameters(shape)


def transformer_parameters(shape: Shape) -> int:
    """The whole model; a tied head is counted once. GPT-2 small: 124,439,808."""
    embeddings = shape.vocab_size * shape.width * (1 if shape.tied else 2)
    if shape.positions == "learned":
        embeddings += shape.context * shape.width
    return embeddings + shape.layers * layer_parameters(shape) + norm_parameters(shape)


def parameters_by_part(shape: Shape) -> dict[str, int]:
    """The parameters of the whole model: embedding (with learned positions), attention, mlp, norms, head.

    A tied head is the embedding's matrix and has none of its own. The sum is `transformer_parameters`. The
    MLPs have 66 % of GPT-3's 175 billion, 46 % of GPT-2 small's 124 million, and 80 % of Llama-3-70B's
    parameters.
    """
    table = shape.vocab_size * shape.width
    return {
        "embedding": table + (shape.context * shape.width if shape.positions == "learned" else 0),
        "attention": shape.layers * attention_parameters(shape),
        "mlp": shape.layers * mlp_parameters(shape),
        "norms": (2 * shape.layers + 1) * norm_parameters(shape),
        "head": 0 if shape.tied else table,
    }


def matmul_parameters(shape: Shape) -> int:
    """N in 6ND: the elements of all matrices by which a token is multiplied.

    The head is one of them, even if it is tied, but embeddings (looked up), biases and norms are not. (Kaplan
    et al. also leave out the head, which matters if the model is small, because it is a third of GPT-2
    small.)
    """
    queries = shape.heads * shape.head_dim
    keys = shape.key_value_heads * shape.head_dim
    mlp = (3 if shape.mlp == "swiglu" else 2) * shape.mlp_width
    return shape.width * (shape.layers * (2 * queries + 2 * keys + mlp) + shape.vocab_size)


def attention_flops(shape: Shape, batch: int, seq: int, causal: bool = False) -> int:
    """Forward, all layers: queries times keys, and the weights times the values; 4 b s^2 h per layer.

    causal: counts only the s (s + 1) / 2 of the s x s scores that are not masked. A kernel that skips masked
    blocks tends to this number. Grouped queries save bytes of keys and values, but none of these FLOPs.
    """
    scores = seq * (seq + 1) // 2 if causal else seq * seq
    return 4 * batch * scores * shape.heads * shape.head_dim * shape.layers


def transformer_flops(
    shape: Shape,
    batch: int,
    seq: int,
    *,
    backward: bool = True,
    causal: bool = False,
    recompute: bool | str = False,
) -> int:
    """FLOPs of a forward, or of forward and backward, over batch sequences of seq tokens.

    With backward it is 6 N D + 12 L s h D, where D is the number of tokens and N `matmul_parameters`. Masked
    scores count, as in PaLM's and Megatron-LM's model FLOPs; with causal=True they do not.
    recompute: True or "full": each block's forward runs once more in backward (activation checkpointing), but
    the head's does not. With GPT-2's parts 96 b s L h^2 (1 + s / 6h + V / 16 L h), without it 72 and
    V / 12 L h. "selective": only the two products of attention run once more, 4 b s^2 h per layer:
    72 b s L h^2 (1 + 2s / 9h + V / 12 L h), for GPT-3 not a percent more. (Korthikanti et al., 2022, describe
    it in section 5, but print three times this share, s / 6h; see `facts.recompute.SelectiveClaim`.)

    FlashAttention's backward computes the scores again. This is not counted, since the work is not useful. A
    counter of executed FLOPs therefore finds 2.5 times forward's attention there instead of 2.
    """
    tokens = batch * seq
    head = 2 * tokens * shape.width * shape.vocab_size
    forward = 2 * tokens * matmul_parameters(shape) + attention_flops(shape, batch, seq, causal)
    if not backward:
        return forward
    again = {
        False: 0,
        True: forward - head,
        "full": forward - head,
        "selective": attention_flops(shape, batch, seq, causal),
    }
    if recompute not in again:
        raise ValueError(f"recompute is False, True, 'full' or 'selective', not {recompute!r}")
    return 3 * forward + again[recompute]


def six_n_d(params: float, tokens: float) -> float:
    """FLOPs of training by the rule of thumb: for each parameter and token 2 forward and 4 backward.

    It is low by attention's share, which is s / (6h) of N's with GPT-2's parts (2,048 tokens at h = 12,288:
    3 %). So it holds while sequences are short compared with 6h. If masked scores are skipped, it is low by
    half of that.
    """
    return 6 * params * tokens
