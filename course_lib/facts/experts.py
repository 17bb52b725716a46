"""Experts: bytes of the rows that are sent, nodes a token touches, parameters held and used.

T tokens, E experts, k of them for each token, h elements per token (width), f inside an expert (hidden), n
ranks, each with E / n consecutive experts.

Sources: Jiang et al., Mixtral of Experts, 2024, table 1; DeepSeek-AI, DeepSeek-V3 Technical Report, 2024,
sections 2.1.2, 3.2.2 and 4.2, and the sizes in both models' published configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


def all_to_all_bytes(
    counts: Sequence[Sequence[int]], rank: int, width: int, itemsize: int = 2
) -> int:
    """Bytes a rank sends for one layer and step, forward and backward, in rows.

    counts[r][e]: rows of rank r for expert e. In forward, a rank sends those of its own rows that others'
    experts want, and the results of the rows that came from others. In backward, it sends the same two again.
    So the bytes are 2 (row + column) h b, with the rank's row and column of the matrix of rows from rank to
    rank, without the diagonal. The counts themselves, 8 bytes per expert, are not included.
    """
    n, held = len(counts), len(counts[0]) // len(counts)
    between = [[sum(row[held * to : held * (to + 1)]) for to in range(n)] for row in counts]
    goes = sum(between[rank]) - between[rank][rank]
    comes = sum(row[rank] for row in between) - between[rank][rank]
    return 2 * (goes + comes) * width * itemsize


def nodes_touched(experts: int, nodes: int, k: int) -> float:
    """The mean number of nodes that hold a token's k experts, if any k are as likely as any others.

    A node is missed with probability C(E - E / nodes, k) / C(E, k). 8 of 256 experts on 8 nodes: 5.29.
    """
    missed = comb(experts - experts // nodes, k) / comb(experts, k)
    return nodes * (1 - missed)


@dataclass(frozen=True)
class MixtureShape:
    """The sizes of a published model with experts, as far as its parameters are concerned.

    attention: parameters of a layer's attention; dense_layers: layers with an MLP of `dense_hidden` and no
    experts; shared: experts that every token uses; extra: of a router, in addition to its matrix (a bias).
    """

    vocab_size: int
    width: int
    layers: int
    attention: int
    experts: int
    k: int
    hidden: int
    shared: int = 0
    dense_layers: int = 0
    dense_hidden: int = 0
    bias: bool = False

    def parameters(self, *, used: bool = False) -> int:
        """All parameters, or those one token uses: k of the experts, and all the rest."""
        expert = 3 * self.width * self.hidden
        router = self.experts * (self.width + self.bias)
        routed = self.k if used else self.experts
        mixture = (routed + self.shared) * expert + router
        dense = self.dense_layers * 3 * self.width * self.dense_hidden
        norms = (2 * self.layers + 1) * self.width
        return (
            2 * self.vocab_size * self.width
            + self.layers * self.attention
            + (self.layers - self.dense_layers) * mixture
            + dense
            + norms
        )


def _grouped_attention(width: int, heads: int, key_heads: int, head_dim: int) -> int:
    return 2 * width * heads * head_dim + 2 * width * key_heads * head_dim


def _latent_attention(
    width: int, heads: int, query: int, key: int, nope: int, rope: int, value: int
) -> int:
    """DeepSeek's: queries and keys through narrow matrices of width `query` and `key`, and two norms."""
    queries = width * query + query + query * heads * (nope + rope)
    keys = width * (key + rope) + key + key * heads * (nope + value)
    return queries + keys + heads * value * width


MIXTRAL_8X7B = MixtureShape(
    vocab_size=32_000, width=4096, layers=32, attention=_grouped_attention(4096, 32, 8, 128),
    experts=8, k=2, hidden=14_336,
)  # fmt: skip
DEEPSEEK_V3 = MixtureShape(
    vocab_size=129_280, width=7168, layers=61,
    attention=_latent_attention(7168, 128, 1536, 512, 128, 64, 128),
    experts=256, k=8, hidden=2048, shared=1, dense_layers=3, dense_hidden=18_432, bias=True,
)  # fmt: skip
