"""Full attention of one process in float64, its gradients in closed form, and the results of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit

Mask = Callable[[Tensor, Tensor], Tensor]  # (positions of queries, of keys) -> which are seen


def later_hidden(queries: Tensor, keys: Tensor) -> Tensor:
    return queries >= keys


AT_ZERO = (
    "lse was 0 at first, which counts like a key with the score 0 and the value 0. Before the first block, "
    "no key is seen, so lse is -inf."
)


def over_all_keys(products: Tensor) -> Tensor:
    """delta of each query, from p dp of its keys along the last dimension."""
    return products.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Whole:
    """Attention of q (batch, seq, heads, head_dim) to k and v (batch, seq, kv_heads, head_dim).

    grad: the output's gradient; scale: of the scores, None: one over the root of head_dim; mask: None: all is
    seen; head_of: which head of keys a head of queries has, None: as many in succession share one.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    mask: Mask | None = None
    scale: float | None = None
    head_of: Callable[[int], int] | None = None

    @classmethod
    def draw(
        cls, draw: kit.Draw, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int,
        causal: bool = False, large: float = 1.0, dtype: torch.dtype = torch.float64,
    ) -> Whole:  # fmt: skip
        """Drawn numbers, exact in `dtype`; large: a factor of q."""
        q, grad = (draw.normal(batch, seq, heads, head_dim) for _ in range(2))
        k, v = (draw.normal(batch, seq, kv_heads, head_dim) for _ in range(2))
        exact = [x.to(dtype).double() for x in (large * q, k, v, grad)]
        return cls(*exact, mask=later_hidden if causal else None)

    def but(self, **changed: object) -> Whole:
        """The same numbers, computed otherwise."""
        return replace(self, **changed)  # pyright: ignore[reportArgumentType]

    @property
    def factor(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def heads(self) -> list[int]:
        """Which head of keys each head of queries has."""
        count, group = self.q.shape[2], self.q.shape[2] // self.k.shape[2]
        return [self.head_of(h) if self.head_of else h // group for h in range(count)]

    @cached_property
    def keys(self) -> Tensor:
        return self.k[:, :, self.heads]

    @cached_property
    def values(self) -> Tensor:
        return self.v[:, :, self.heads]

    @cached_property
    def scores(self) -> Tensor:
        """(batch, heads, seq, seq of keys), -inf where nothing is seen."""
        scores = torch.einsum("bihd,bjhd->bhij", self.q, self.keys) * self.factor
        if self.mask is None:
            return scores
        queries, keys = (torch.arange(x.shape[1]) for x in (self.q, self.k))
        return scores.masked_fill(~self.mask(queries[:, None], keys), -torch.inf)

    @cached_property
    def p(self) -> Tensor:
        return self.scores.softmax(-1)

    @cached_property
    def y(self) -> Tensor:
        return torch.einsum("bhij,bjhd->bihd", self.p, self.values)

    @cached_property
    def lse(self) -> Tensor:
        """(batch, seq, heads)."""
        return self.scores.logsumexp(-1).transpose(1, 2)

    @property
    def begun_at_zero(self) -> Tensor:
        """The output if lse of the accumulator was 0 at first, and not -inf."""
        return self.y * self.lse.sigmoid()[..., None]

    def per_key_head(self, x: Tensor) -> Tensor:
        """The sum of the query heads' contributions to each head of keys."""
        summed = torch.zeros_like(self.k)
        return summed.index_add_(2, torch.tensor(self.heads), x)

    def gradients(
        self, delta: Callable[[Tensor], Tensor] = over_all_keys,
        dq_scale: float | None = None, dk_scale: float | None = None, p: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Of q, k and v; with another delta or p, or other factors of dq and dk, as mistakes have them."""
        dp = torch.einsum("bihd,bjhd->bhij", self.grad, self.values)
        again = self.p if p is None else p
        ds = again * (dp - delta(self.p * dp))
        dq = torch.einsum("bhij,bjhd->bihd", ds, self.keys)
        dk = torch.einsum("bhij,bihd->bjhd", ds, self.q)
        dv = torch.einsum("bhij,bihd->bjhd", again, self.grad)
        return {
            "grad.q": dq * (self.factor if dq_scale is None else dq_scale),
            "grad.k": self.per_key_head(dk) * (self.factor if dk_scale is None else dk_scale),
            "grad.v": self.per_key_head(dv),
        }

    def gradients_behind(self, mask: Mask | None) -> dict[str, Tensor]:
        """Gradients if backward hides other scores than forward did: lse and out are those of forward."""
        scores = self.but(mask=mask).scores
        return self.gradients(p=(scores - self.scores.logsumexp(-1, keepdim=True)).exp())

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v}

    @property
    def wanted(self) -> dict[str, Tensor]:
        return {"y": self.y, **self.gradients()}
