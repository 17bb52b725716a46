"""The traffic of a mixture of experts: drawn tokens, their experts, and the costs of the histogram.

    traffic = Traffic(Setting(experts=64, ranks=16, k=4, skew=1.0))
    traffic.slowest, traffic.dropped, traffic.network

No rank runs here. Tokens get logits from a normal distribution, and for each expert `skew` times another
number makes some experts popular. The choices determine the rows from rank to rank, the tokens that find no
place, and the bytes on the wires inside a node and between nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_lib.experts import max_violation, node_limited, route
from course_lib.facts.experts import all_to_all_bytes

TOKENS = 4096  # of all ranks
WIDTH, ITEMSIZE = 7168, 2  # elements of a row and bytes of an element: DeepSeek-V3's, in bf16
NODE = 8  # ranks of a node


@dataclass(frozen=True)
class Setting:
    """skew: 0 is a fair router. factor: scales the places of an expert; 0: as many as are needed.

    limit: how many nodes a token can reach; 0: all of them.
    """

    experts: int = 64
    ranks: int = 16
    k: int = 4
    skew: float = 0.0
    factor: float = 0.0
    limit: int = 0

    @property
    def nodes(self) -> int:
        return math.ceil(self.ranks / NODE)


class Traffic:
    """The rows one layer sends forward, before the results come back. ValueError for impossible settings."""

    def __init__(self, setting: Setting):
        self.setting = setting
        if setting.experts % setting.ranks:
            raise ValueError(
                f"{setting.experts} experts cannot be dealt out to {setting.ranks} ranks: each holds equally "
                "many, one at least"
            )
        if setting.k > setting.experts:
            raise ValueError(f"a token cannot have {setting.k} of {setting.experts} experts")
        if setting.limit > setting.nodes:
            raise ValueError(
                f"{setting.ranks} ranks are {setting.nodes} node{'s' * (setting.nodes > 1)}: there are no "
                f"{setting.limit} to choose"
            )
        if setting.limit and setting.k % setting.limit:
            raise ValueError(f"nodes = {setting.limit} must divide k = {setting.k}")
        self.experts = self._chosen()  # (T, k)

    def _chosen(self) -> Tensor:
        setting = self.setting
        generator = torch.Generator().manual_seed(setting.experts)
        logits = torch.randn(TOKENS, setting.experts, generator=generator)
        logits += setting.skew * torch.randn(setting.experts, generator=generator)
        if setting.limit:
            scores = logits.softmax(-1)
            return node_limited(scores, k=setting.k, nodes=setting.nodes, limit=setting.limit)
        return route(logits, k=setting.k)[0]

    @cached_property
    def counts(self) -> Tensor:
        """(n, E): the assignments each rank's tokens want."""
        ranks, experts = self.setting.ranks, self.setting.experts
        of_rank = self.experts.reshape(ranks, -1)
        return torch.stack([chosen.bincount(minlength=experts) for chosen in of_rank])

    @cached_property
    def places(self) -> int | None:
        """Places an expert has for each rank's tokens; None: as many as are needed."""
        setting = self.setting
        if not setting.factor:
            return None
        return math.ceil(setting.factor * setting.k * TOKENS / setting.ranks / setting.experts)

    @cached_property
    def kept(self) -> Tensor:
        """(n, E): the rows that are sent. The order of the tokens decides which rows, but not how many."""
        return self.counts if self.places is None else self.counts.clamp(max=self.places)

    @property
    def dropped(self) -> float:
        """The share of all assignments that found no place."""
        return 1 - float(self.kept.sum() / self.counts.sum())

    @property
    def violation(self) -> float:
        """MaxVio of the router's wishes, all ranks together."""
        return float(max_violation(self.counts.sum(0)))

    @cached_property
    def rows(self) -> Tensor:
        """(n, n): rows from rank to rank, including those to itself."""
        ranks = self.setting.ranks
        return self.kept.view(ranks, ranks, -1).sum(2)

    @property
    def slowest(self) -> float:
        """The rows of the busiest rank's experts, divided by the mean of all ranks."""
        received = self.rows.sum(0).double()
        return float(received.max() / received.mean())

    @property
    def inside(self) -> float:
        """Bytes a rank sends to other ranks of its node, on average: one row for each expert."""
        same = self._same_node() & ~torch.eye(self.setting.ranks, dtype=torch.bool)
        return float(self.rows[same].sum()) / self.setting.ranks * WIDTH * ITEMSIZE

    @property
    def network(self) -> float:
        """Bytes a rank sends to other nodes, on average: one row for each expert."""
        return float(self.rows[~self._same_node()].sum()) / self.setting.ranks * WIDTH * ITEMSIZE

    @property
    def passed_on(self) -> float | None:
        """The same if a row goes to each *node* only once, and its ranks pass it on inside.

        None if tokens are dropped, because it would depend on which tokens these are.
        """
        if self.places is not None:
            return None
        nodes, ranks = self.setting.nodes, self.setting.ranks
        node = self.experts // (self.setting.experts // nodes)
        touched = torch.zeros(TOKENS, nodes, dtype=torch.bool).scatter(1, node, True)
        own = torch.arange(TOKENS) // (TOKENS // ranks) // NODE
        touched[torch.arange(TOKENS), own] = False
        return float(touched.sum()) / ranks * WIDTH * ITEMSIZE

    @property
    def busiest(self) -> int:
        """Bytes sent by the rank that sends most, for the layer's four exchanges."""
        counts = self.kept.tolist()
        return max(
            all_to_all_bytes(counts, rank, WIDTH, ITEMSIZE) for rank in range(self.setting.ranks)
        )

    def _same_node(self) -> Tensor:
        node = torch.arange(self.setting.ranks) // NODE
        return node[:, None] == node[None]
