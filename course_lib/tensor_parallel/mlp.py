"""The MLP of a transformer over many ranks, column-parallel in and row-parallel out.

    GELU:    down(gelu(up(x)))               two matrices, hidden usually 4 width
    SwiGLU:  down(silu(gate(x)) * up(x))     three, hidden usually 8/3 width

Gate and up are cut at the same places, so each rank can multiply their outputs by itself. Nothing is sent
between the first matrix and the last.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3, figure 3a; Shazeer, "GLU Variants Improve
Transformer", 2020 (SwiGLU). GELU is the approximation by tanh, as in GPT-2.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .conjugate import Group
from .given import check_names
from .linear import ColumnParallelLinear, RowParallelLinear, Sequences, column_parallel


class ParallelMLP(nn.Module):
    """The MLP with its hidden features cut over the ranks.

    width, hidden: of the whole MLP; any sizes. activation: "gelu" or "swiglu".
    sequence: None takes and returns whole sequences (batch, seq, width); "keep" and "regather" the rank's
        part (batch, seq / n, width), as in `ColumnParallelLinear`.
    linears: nn.Linear by name ("gate", "up", "down") to be cut, instead of new ones. The layers here have
        these names and are made in this order.

    With M = batch * seq * width elements, each rank sends 2 (n-1)/n M in forward and as much in backward.
    With "regather" it sends half as much again in backward.

    Raises ValueError for another activation, or for a name in `linears` that this MLP does not have.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: Literal["gelu", "swiglu"] = "gelu",
        bias: bool = True,
        group: Group = None,
        *,
        sequence: Sequences = None,
        linears: dict[str, nn.Linear] | None = None,
    ):
        super().__init__()
        if activation not in ("gelu", "swiglu"):
            raise ValueError(f"activation is 'gelu' or 'swiglu', not {activation!r}")
        own = linears or {}
        check_names(own, ("gate", "up", "down") if activation == "swiglu" else ("up", "down"))

        def column(name: str) -> ColumnParallelLinear:
            return ColumnParallelLinear(
                width, hidden, bias, False, group, sequence=sequence, linear=own.get(name)
            )

        self.gate = column("gate") if activation == "swiglu" else None
        self.up = column("up")
        self.down = RowParallelLinear(
            hidden, width, bias, True, group, sequence=sequence, linear=own.get("down")
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            (up,) = column_parallel(x, [self.up])
            return self.down(F.gelu(up, approximate="tanh"))
        gate, up = column_parallel(x, [self.gate, self.up])
        return self.down(F.silu(gate) * up)
