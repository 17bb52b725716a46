"""Self-attention over many ranks: every rank has some of the heads.

Heads do not look at each other, so a rank attends with its own heads, and nothing is sent in between. Query,
key and value are column-parallel (a head is head_dim rows of their weights). The output projection, which
mixes the heads, is row-parallel.

With grouped queries, query head h uses key and value head h // (heads / kv_heads). If there are at least as
many key and value heads as ranks, each rank has kv_heads / n of them. If there are fewer, n / kv_heads ranks
in succession hold copies of the same head, and different queries use each copy. So each copy's gradient is
only a part of the whole gradient, and in backward those ranks add up their gradients (`sum_gradients`).

Source: Shoeybi et al., "Megatron-LM", 2019, section 3, figure 3b; Ainslie et al., "GQA", 2023.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .conjugate import Group, place
from .cut import Cut
from .dropout import own_random_state
from .given import check_names
from .linear import ColumnParallelLinear, RowParallelLinear, Sequences, column_parallel
from .replicated import sum_gradients

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotate = Callable[[Tensor, Tensor], Tensor]


class ParallelSelfAttention(nn.Module):
    """Causal self-attention with its heads cut over the ranks.

    width, heads, kv_heads: of the whole layer; kv_heads None: as many as heads. The number of ranks must
        divide heads, and it must divide kv_heads or be divided by it.
    attend: the function that attends, from q (batch, seq, heads here, head_dim) and k, v (batch, seq,
        kv heads here, head_dim) to q's shape; None: PyTorch's `scaled_dot_product_attention`, causal.
    rotate: a function of (q or k, positions) for rotary positions; None: positions are not used here.
    dropout: of the weights of attention while training, with different masks on every rank (`dropout.py`);
        only if attend is None.
    sequence: None takes and returns whole sequences (batch, seq, width); "keep" and "regather" the rank's
        part (batch, seq / n, width), as in `ColumnParallelLinear`. positions are the positions of the whole
        sequence.
    linears: nn.Linear by name ("query", "key", "value", "out") to be cut, instead of new ones. The layers
        here have these names and are made in this order.

    With M = batch * seq * width elements, each rank sends 2 (n-1)/n M in forward and as much in backward.
    With "regather" it sends half as much again in backward. With r copies of a key and value head it also
    sends, in backward, 2 (r-1)/r of the bytes of the head's weights.

    Raises ValueError if the heads cannot be shared equally, since all ranks would wait for the rank with the
    most heads, and for a name in `linears` that this layer does not have.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = True,
        group: Group = None,
        *,
        attend: Attend | None = None,
        rotate: Rotate | None = None,
        dropout: float = 0.0,
        sequence: Sequences = None,
        linears: dict[str, nn.Linear] | None = None,
    ):
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, heads, kv_heads, place(group)[1])
        if dropout and attend is not None:
            raise ValueError(
                "dropout is for attend=None: a function that you pass must drop by itself"
            )
        self.group, self.head_dim, self.dropout = group, width // heads, dropout
        self.attend, self.rotate = attend, rotate
        own = linears or {}
        check_names(own, ("query", "key", "value", "out"))

        def key_or_value(name: str) -> _KeyValue:
            linear = own.get(name)
            return _KeyValue(
                width, kv_heads, self.head_dim, bias, group, sequence=sequence, linear=linear
            )

        self.query = ColumnParallelLinear(
            width, width, bias, False, group, sequence=sequence, linear=own.get("query")
        )
        self.key, self.value = key_or_value("key"), key_or_value("value")
        self.out = RowParallelLinear(
            width, width, bias, True, group, sequence=sequence, linear=own.get("out")
        )

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        projected = column_parallel(x, [self.query, self.key, self.value])
        q, k, v = (heads.unflatten(-1, (-1, self.head_dim)) for heads in projected)
        if self.rotate is not None:
            if positions is None:
                positions = torch.arange(q.shape[1], device=q.device)
            q, k = self.rotate(q, positions), self.rotate(k, positions)
        out = self._causal(q, k, v) if self.attend is None else self.attend(q, k, v)
        return self.out(out.flatten(-2))

    def _causal(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not (self.dropout and self.training):
            return causal_attention(q, k, v)
        with own_random_state(self.group):
            return causal_attention(q, k, v, self.dropout)


class _KeyValue(ColumnParallelLinear):
    """A column-parallel layer of kv_heads heads; several ranks can hold the same head."""

    def __init__(
        self,
        width: int,
        kv_heads: int,
        head_dim: int,
        bias: bool,
        group: Group,
        *,
        sequence: Sequences,
        linear: nn.Linear | None,
    ):
        self.copies = max(1, dist.get_world_size(group) // kv_heads)
        super().__init__(
            width, kv_heads * head_dim, bias, False, group, sequence=sequence, linear=linear
        )
        if self.copies > 1:
            neighbours(group, self.copies)  # made now, while all ranks make this layer

    def cut(self, dim: int) -> Cut:
        return Cut(dim, self.out_features, self.group, self.copies)

    def local(self) -> tuple[Tensor, Tensor | None]:
        if self.copies == 1:
            return self.weight, self.bias
        holders = neighbours(self.group, self.copies)
        weight, bias = sum_gradients(holders, self.weight, self.bias)
        assert weight is not None
        return weight, bias


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """q (batch, seq, heads, head_dim), k and v (batch, seq, kv_heads, head_dim); returns q's shape."""
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
    )
    return out.transpose(1, 2)


def check_heads(width: int, heads: int, kv_heads: int, n: int) -> None:
    if heads < 1 or width % heads:
        raise ValueError(f"width={width} cannot be cut into heads={heads} equal heads")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"kv_heads={kv_heads} must divide heads={heads}: each of them serves equally many query heads"
        )
    if heads % n:
        raise ValueError(
            f"heads={heads} cannot be shared equally by {n} ranks: choose a number of ranks that divides it"
        )
    if kv_heads % n and n % kv_heads:
        raise ValueError(
            f"kv_heads={kv_heads} on {n} ranks: one number must divide the other, so that every rank has "
            "equally many key and value heads, or several ranks in succession the same one"
        )


_NEIGHBOURS: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = (
    weakref.WeakKeyDictionary()
)


def neighbours(group: Group, copies: int) -> dist.ProcessGroup:
    """The group of `copies` successive ranks of `group` to which this rank belongs.

    It is made once for each group and number of copies. Only its members take part in making it, so a layer
    can be built in one of several tensor-parallel groups.
    """
    whole = dist.group.WORLD if group is None else group
    assert whole is not None
    known = _NEIGHBOURS.setdefault(whole, {})
    if copies not in known:
        ranks = dist.get_process_group_ranks(whole)
        first = dist.get_rank(whole) // copies * copies
        made = dist.new_group(ranks[first : first + copies], use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        known[copies] = made
    return known[copies]
