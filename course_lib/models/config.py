"""The sizes of a GPT and the parts it is made of, and presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class GPTConfig:
    """The sizes and parts of a GPT; the defaults are the parts of GPT-2.

    context: the most tokens in a sequence. kv_heads: heads of keys and values, each shared by
    heads / kv_heads query heads; None means as many as heads. hidden: the MLP's inner width; None means
    4 width, or for SwiGLU, which has a third matrix, 8/3 width rounded up to a multiple of 8. dropout: on
    the embedding and on the outputs of attention and MLP; the weights of attention are never dropped.

    Raises ValueError, with the numbers, if sizes do not fit each other.
    """

    vocab_size: int = 256
    context: int = 256
    layers: int = 4
    heads: int = 4
    width: int = 128
    kv_heads: int | None = None
    hidden: int | None = None
    mlp: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    positions: Literal["learned", "rotary"] = "learned"
    bias: bool = True
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least 1")
        if self.width % self.heads:
            raise ValueError(
                f"width={self.width} cannot be cut into heads={self.heads} equal heads"
            )
        if self.key_value_heads < 1 or self.heads % self.key_value_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} must divide heads={self.heads}: each of them serves equally "
                "many query heads"
            )
        if self.mlp_width < 1:
            raise ValueError(f"hidden={self.hidden}: the MLP needs an inner width of at least 1")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, but a head of width {self.width} / "
                f"{self.heads} = {self.head_dim} has an odd one"
            )
        for name, known in (
            ("mlp", ("gelu", "swiglu")),
            ("norm", ("layer", "rms")),
            ("positions", ("learned", "rotary")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {' or '.join(known)}, not {getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} is a probability below 1")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def key_value_heads(self) -> int:
        """kv_heads, or heads if kv_heads is None."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def mlp_width(self) -> int:
        """hidden, or the usual width if hidden is None."""
        if self.hidden is not None:
            return self.hidden
        return 4 * self.width if self.mlp == "gelu" else -(-self.width // 3) * 8

    def modern(self) -> GPTConfig:
        """The same sizes with the parts of LLaMA: SwiGLU, RMSNorm, rotary positions, no biases."""
        return replace(self, mlp="swiglu", norm="rms", positions="rotary", bias=False)


# Presets are named by their numbers of parameters. All except the last have a vocabulary of bytes. The last
# is GPT-2 small, with 124,439,808 parameters.
PRESETS = {
    "0.1M": GPTConfig(context=128, layers=2, heads=4, width=64),
    "0.8M": GPTConfig(context=256, layers=4, heads=4, width=128),
    "3M": GPTConfig(context=256, layers=6, heads=6, width=192),
    "11M": GPTConfig(context=512, layers=6, heads=6, width=384),
    "26M": GPTConfig(context=1024, layers=8, heads=8, width=512),
    "124M": GPTConfig(vocab_size=50257, context=1024, layers=12, heads=12, width=768),
}


def _llama(vocab_size: int, context: int, sizes: str, kv_heads: int | None = None) -> GPTConfig:
    """A model with the parts of LLaMA. sizes: layers, heads, width and the MLP's width."""
    layers, heads, width, hidden = map(int, sizes.split())
    config = GPTConfig(vocab_size, context, layers, heads, width, kv_heads, hidden, tied=False)
    return config.modern()


# Published models, with their papers' sizes. Sources: Radford et al., 2019 (GPT-2); Brown et al., 2020,
# table 2.1 (GPT-3); Touvron et al., 2023 (LLaMA, and Llama 2); Llama Team, 2024, table 3 (Llama 3).
PUBLISHED = {
    "GPT-2 small": PRESETS["124M"],
    "GPT-2 XL": GPTConfig(50257, 1024, layers=48, heads=25, width=1600),
    "GPT-3": GPTConfig(50257, 2048, layers=96, heads=96, width=12288),
    "LLaMA-7B": _llama(32000, 2048, "32 32 4096 11008"),
    "LLaMA-13B": _llama(32000, 2048, "40 40 5120 13824"),
    "LLaMA-65B": _llama(32000, 2048, "80 64 8192 22016"),
    "Llama-2-70B": _llama(32000, 4096, "80 64 8192 28672", kv_heads=8),
    "Llama-3-8B": _llama(128256, 8192, "32 32 4096 14336", kv_heads=8),
    "Llama-3-70B": _llama(128256, 8192, "80 64 8192 28672", kv_heads=8),
    "Llama-3-405B": _llama(128256, 8192, "126 128 16384 53248", kv_heads=8),
}
