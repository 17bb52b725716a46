"""A cluster: GPUs in nodes, fast links inside a node, a network across.

Ranks fill the nodes in order. With 8 GPUs per node, ranks 0 to 7 are in node 0. A group of ranks is as fast
as its slowest link, which is the link inside if all of them are in one node, and otherwise the network. Every
GPU has its own network card, as in a DGX, so groups of different ranks do not slow each other down.

This holds for one ring. If a group has several ranks in a node, NCCL runs one ring through each of the node's
cards, and comes closer to the link inside; see `Cluster.lanes`.

Sources: for the links, see `course_lib.facts.hardware`; for the seconds of a message, NCCL's tuning.cc (same
place). If a leaf or spine switch is oversubscribed k times, it has k times as much bandwidth below as above,
so each flow across gets 1/k of its card if all cards send at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from course_lib.facts.hardware import NETWORK_ALPHA, NVLINK_ALPHA, Gpu, gpu, link

INSIDE, ACROSS = "inside", "across"


class LinkLike(Protocol):
    """A link of `course_lib.facts.hardware`, or a `Wire`."""

    @property
    def name(self) -> str: ...
    @property
    def each_way(self) -> float: ...


@dataclass(frozen=True)
class Wire:
    """The cost of a message: alpha seconds, and beta seconds for each byte.

    each_way: bytes per second in one direction, while the other direction is equally busy.
    """

    name: str
    each_way: float
    alpha: float

    def __post_init__(self) -> None:
        if self.each_way <= 0 or self.alpha < 0:
            raise ValueError(
                f"{self.name} has {self.each_way} bytes a second and {self.alpha} seconds a message: give a "
                "positive speed, and seconds that are not negative"
            )

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 1 / self.each_way

    def seconds(self, nbytes: float, rounds: float = 1) -> float:
        """alpha for each round, plus the time of the bytes one rank sends in all rounds together."""
        return self.alpha * rounds + nbytes * self.beta

    def slower(self, factor: float) -> Wire:
        """The same wire with 1/factor of its bytes per second."""
        return self if factor == 1 else Wire(self.name, self.each_way / factor, self.alpha)


@dataclass(frozen=True)
class Cluster:
    """`gpus` GPUs, `per_node` in each node; the last node can have fewer.

    inside, across: the links, as a `Wire`, or as a link of `course_lib.facts.hardware`, which gets NCCL's
        seconds per message (3.4 us inside, 14 us across).
    oversubscription: how many times less bandwidth the network has between the nodes than all cards need.
    """

    gpus: int
    per_node: int
    gpu: Gpu
    inside: LinkLike
    across: LinkLike
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.per_node < 1:
            raise ValueError(
                f"{self.gpus} GPUs, {self.per_node} in a node: a cluster needs at least 1 of each"
            )
        if self.oversubscription < 1:
            raise ValueError(
                f"oversubscription={self.oversubscription}: a network that carries everything has 1.0"
            )

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.per_node)

    def node(self, rank: int) -> int:
        """The node of a rank. ValueError if the cluster does not have the rank."""
        if not 0 <= rank < self.gpus:
            raise ValueError(f"rank {rank} must lie in 0 .. {self.gpus - 1}")
        return rank // self.per_node

    def crosses(self, ranks: Iterable[int]) -> bool:
        """Whether the ranks are in more than one node."""
        return len({self.node(rank) for rank in ranks}) > 1

    def link(self, ranks: Iterable[int]) -> Wire:
        """The wire of a group of ranks, or of a message from one to another: the slowest wire they use."""
        return self.wire(ACROSS if self.crosses(ranks) else INSIDE)

    def wire(self, where: str) -> Wire:
        """The wire "inside" a node, or "across" nodes, where the network can be oversubscribed."""
        if where == INSIDE:
            return _wire(self.inside, NVLINK_ALPHA)
        if where == ACROSS:
            return _wire(self.across, NETWORK_ALPHA).slower(self.oversubscription)
        raise ValueError(f"a wire is {INSIDE!r} or {ACROSS!r}, not {where!r}")

    def lanes(self, ranks: Iterable[int]) -> int:
        """The fewest ranks the group has in any of its nodes, because so many rings can leave each node."""
        return min(Counter(self.node(rank) for rank in ranks).values())


def _wire(named: LinkLike, alpha: float) -> Wire:
    return named if isinstance(named, Wire) else Wire(named.name, named.each_way, alpha)


def a100_cluster(gpus: int) -> Cluster:
    """Nodes of 8 A100s with NVLink, and one InfiniBand HDR card for each GPU, as in Megatron-LM's Selene."""
    return Cluster(gpus, 8, gpu("A100"), link("NVLink 3"), link("InfiniBand HDR"))


def h100_cluster(gpus: int) -> Cluster:
    """Nodes of 8 H100s with NVLink, and 400 Gb/s for each GPU."""
    return Cluster(gpus, 8, gpu("H100"), link("NVLink 4"), link("InfiniBand NDR"))
