"""A GPT, which takes tokens and returns the logits of the next token for each of them.

The model consists of a token embedding, a stack of blocks (attention, then an MLP, each behind a norm and
added to its input), a last norm, and a linear head. For each part, a configuration chooses between GPT-2
(learned positions, LayerNorm, GELU, biases, a head tied to the embedding) and LLaMA (rotary positions,
RMSNorm, SwiGLU, no biases, fewer key and value heads than query heads).

The model is made to be cut. Query, key and value are linear layers of their own, so that a range of heads is
a range of rows of their weights. Attention is a function you can exchange (`attention=`). Every part that
depends on a token's position takes it from `positions`, so a rank that holds only a part of the sequence
passes the positions of its tokens in the full sequence. A block needs only its input and the positions.

`course_lib.facts.transformer_parameters` and `transformer_flops` compute its cost by formula.

Sources: Radford et al., Language Models are Unsupervised Multitask Learners, 2019 (GPT-2). Shazeer, GLU
Variants Improve Transformer, 2020. Zhang, Sennrich: Root Mean Square Layer Normalization, 2019. Su et al.,
RoFormer, 2021 (rotary positions; the two halves of a head are rotated against each other, as in GPT-NeoX).
Ainslie et al., GQA, 2023 (grouped queries).

This file and config.py, which holds the sizes, import only torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import GPTConfig

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class GPT(nn.Module):
    """Logits (batch, seq, vocab_size) of the token that follows each of `tokens` (batch, seq).

    attention: the function with which every block attends. It takes q (batch, seq, heads, head_dim) and k
        and v (batch, seq, kv_heads, head_dim), already rotated, and returns q's shape. It must be causal.

    Weights are drawn from torch's default generator, so two models are equal after the same
    `torch.manual_seed`.
    """

    def __init__(self, config: GPTConfig, attention: Attention | None = None):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = (
            nn.Embedding(config.context, config.width) if config.positions == "learned" else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        self.norm = _norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.initialize()
        if config.tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """positions: of the tokens in the full sequence, (seq,) or (batch, seq); None means 0, 1, 2, ...

        Raises ValueError for more tokens than the context holds and, on the CPU, for a token outside the
        vocabulary or a position outside the context. (On a GPU this check would have to wait for the GPU.
        There, the embedding's own assertion ends the run instead.)
        """
        if positions is None:
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
        self._check(tokens, positions)
        x = self.embed(tokens, positions)
        for block in self.blocks:
            x = block(x, positions)
        return self.logits(x)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The input of the first block, (batch, seq, width)."""
        x = self.token_embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        return self.dropout(x)

    def logits(self, x: Tensor) -> Tensor:
        """The logits, (batch, seq, vocab_size), from the output of the last block."""
        return self.head(self.norm(x))

    @torch.no_grad()
    def initialize(self) -> None:
        """As in GPT-2, draw matrices from a normal with deviation 0.02, and set biases to 0 and norms to 1.

        Two layers of each block add their output to the residual stream. Their deviation is
        0.02 / sqrt(2 layers), so that the sum of all of them keeps its size.
        """
        for name, param in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(param)
            elif param.dim() == 1:
                nn.init.ones_(param)
            else:
                adds = name.endswith(("attention.out.weight", "mlp.down.weight"))
                nn.init.normal_(param, std=0.02 / (2 * len(self.blocks) if adds else 1) ** 0.5)

    def _check(self, tokens: Tensor, positions: Tensor) -> None:
        vocab_size, context = self.config.vocab_size, self.config.context
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be (batch, seq), not {tuple(tokens.shape)}")
        if tokens.shape[1] > context:
            raise ValueError(
                f"{tokens.shape[1]} tokens are more than the model's context={context}: "
                "cut the sequence, or configure a longer context"
            )
        if positions.shape not in (tokens.shape, tokens.shape[1:]):
            raise ValueError(
                f"positions must be (seq,) or (batch, seq) as tokens, {tuple(tokens.shape)}, "
                f"not {tuple(positions.shape)}"
            )
        for what, numbers, end in (("token", tokens, vocab_size), ("position", positions, context)):
            if numbers.device.type == "cpu" and numbers.numel():
                low, high = (int(bound) for bound in numbers.aminmax())
                if low < 0 or high >= end:
                    wrong = low if low < 0 else high
                    raise ValueError(f"{what} {wrong} lies outside 0 .. {end - 1}")


class Block(nn.Module):
    """x (batch, seq, width) plus its attention, and the sum plus its MLP."""

    def __init__(self, config: GPTConfig, attention: Attention | None = None):
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = SelfAttention(config, attention)
        self.mlp_norm = _norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), positions))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class SelfAttention(nn.Module):
    """Every token looks at itself and the tokens before it, once for each head.

    query: width to heads * head_dim; key and value: width to kv_heads * head_dim; out: back to width.
    attend: the function that attends; you can exchange it at any time. rotate: the function that turns q
    and k, or None.
    """

    def __init__(self, config: GPTConfig, attention: Attention | None = None):
        super().__init__()
        kv_width = config.key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.rotate = rotate if config.positions == "rotary" else None
        self.attend = attention or causal_attention
        self.query = nn.Linear(config.width, config.width, bias=config.bias)
        self.key = nn.Linear(config.width, kv_width, bias=config.bias)
        self.value = nn.Linear(config.width, kv_width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        by_heads = (-1, self.head_dim)
        q, k, v = (layer(x).unflatten(-1, by_heads) for layer in (self.query, self.key, self.value))
        if self.rotate is not None:
            q, k = self.rotate(q, positions), self.rotate(k, positions)
        return self.out(self.attend(q, k, v).flatten(-2))


class MLP(nn.Module):
    """GELU: down(gelu(up(x))), with gelu by tanh as in GPT-2. SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        width, hidden, bias = config.width, config.mlp_width, config.bias
        self.gate = nn.Linear(width, hidden, bias=bias) if config.mlp == "swiglu" else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        return self.down(F.silu(self.gate(x)) * self.up(x))


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over each token's scores q k / sqrt(head_dim) with itself and the tokens before it, times v.

    q: (batch, seq, heads, head_dim); k, v: (batch, seq, kv_heads, head_dim). Head h of q attends to head
    h // (heads / kv_heads) of k and v. All three hold the full sequence, in order. Returns q's shape.
    """
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2)


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn each pair of numbers of each head by its frequency times the token's position.

    x: (batch, seq, heads, head_dim); the numbers i and i + head_dim / 2 are a pair.
    positions: (seq,) or (batch, seq).
    The product of two rotated vectors depends only on the difference of their positions. The angles are
    computed in float32 at least, since an angle in bf16 is off by whole turns. Returns x's dtype.
    """
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequencies = base ** (-torch.arange(half, dtype=dtype, device=x.device) / half)
    angles = positions.to(dtype)[..., None, None] * frequencies  # (..., seq, 1, head_dim / 2)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def next_token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of (batch, seq, vocab_size) with (batch, seq); targets of -100 do not count."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def _norm(config: GPTConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=1e-5)
    return nn.LayerNorm(config.width, eps=1e-5, bias=config.bias)
