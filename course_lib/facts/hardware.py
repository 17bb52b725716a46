"""How fast links are, each way, and GPUs.

Makers quote links in three ways that differ by up to 16: both directions together (NVLink), one direction
(PCIe, usually), and bits (networks). Here every link is in bytes a second that one device sends while it
receives as many; `quoted` is the number on the data sheet. FLOP/s are those of dense products of matrices:
data sheets print twice as many, which holds if half of the numbers are zeros ("with sparsity"). These are
peaks: measured speeds are lower.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9


@dataclass(frozen=True)
class Link:
    """A link of one device. each_way: bytes a second in one direction, with the other as busy."""

    name: str
    each_way: float
    quoted: str
    source: str

    @property
    def beta(self) -> float:
        """Seconds a byte."""
        return 1 / self.each_way


LINKS: tuple[Link, ...] = (
    Link("NVLink 3 (A100)", 300 * GB, "600 GB/s, both directions", "NVIDIA A100 data sheet"),
    Link("NVLink 4 (H100 SXM)", 450 * GB, "900 GB/s, both directions", "NVIDIA H100 data sheet"),
    Link(
        "NVLink bridge (H100 NVL)", 300 * GB, "600 GB/s, both directions", "NVIDIA H100 data sheet"
    ),
    Link("NVLink 5 (B200)", 900 * GB, "1.8 TB/s, both directions", "NVIDIA Blackwell data sheet"),
    Link("PCIe 4.0 x16", 32 * GB, "64 GB/s, both directions", "NVIDIA A100 data sheet"),
    Link("PCIe 5.0 x16", 64 * GB, "128 GB/s, both directions", "NVIDIA H100 data sheet"),
    Link("InfiniBand HDR", 25 * GB, "200 Gb/s", "NVIDIA ConnectX-6 data sheet"),
    Link("InfiniBand NDR", 50 * GB, "400 Gb/s", "NVIDIA ConnectX-7 data sheet"),
    Link("100 Gb Ethernet", 12.5 * GB, "100 Gb/s", "IEEE 802.3"),
    Link("10 Gb Ethernet", 1.25 * GB, "10 Gb/s", "IEEE 802.3"),
)


def link(name: str) -> Link:
    """The link of that name; the beginning of the name is enough if no other link begins so."""
    candidates = [each for each in LINKS if each.name == name] or [
        each for each in LINKS if each.name.lower().startswith(name.lower())
    ]
    if len(candidates) != 1:
        raise ValueError(f"{name!r} is not one of the links: {', '.join(o.name for o in LINKS)}")
    return candidates[0]


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    flops: a second, bf16 factors, dense; memory: bytes; bandwidth: bytes a second between the GPU and this
    memory; fp8: as flops with fp8 factors, or None if its tensor cores have no fp8; host_link: the name of
    its link to the host, in LINKS.
    """

    name: str
    flops: float
    memory: float
    source: str
    bandwidth: float
    fp8: float | None
    host_link: str


_PCIE_4, _PCIE_5 = "PCIe 4.0 x16", "PCIe 5.0 x16"
GPUS: tuple[Gpu, ...] = (
    Gpu("A100 SXM", 312e12, 80 * GB, "NVIDIA A100 data sheet", 2039 * GB, None, _PCIE_4),
    Gpu("H100 SXM", 989e12, 80 * GB, "NVIDIA H100 data sheet", 3350 * GB, 1979e12, _PCIE_5),
    Gpu("H200 SXM", 989e12, 141 * GB, "NVIDIA H200 data sheet", 4800 * GB, 1979e12, _PCIE_5),
    # As it is in a DGX B200, whose hosts have PCIe 5.0; other data sheets give the chip 192 GB.
    Gpu("B200", 2250e12, 180 * GB, "NVIDIA DGX B200 data sheet", 8000 * GB, 4500e12, _PCIE_5),
)

# Seconds that a round of NCCL's ring costs before its first byte, with the protocol for large messages.
# Source: the table hwLat of NCCL's cost model, src/graph/tuning.cc (Ring, Simple).
NVLINK_ALPHA = 3.4e-6
NETWORK_ALPHA = 14e-6


def gpu(name: str) -> Gpu:
    """The GPU of that name; the beginning of the name is enough."""
    candidates = [each for each in GPUS if each.name.lower().startswith(name.lower())]
    if len(candidates) != 1:
        raise ValueError(f"{name!r} is not one of the GPUs: {', '.join(o.name for o in GPUS)}")
    return candidates[0]
