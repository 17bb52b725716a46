"""How fast links are in each direction, and how fast GPUs are.

Makers quote links in three ways that differ by up to 16: both directions together (NVLink), one direction
(PCIe, usually), and bits (networks). Here every link is given in bytes per second that one device sends while
it receives as many; `quoted` is the number on the data sheet. FLOP/s are those of dense products of matrices.
Data sheets print twice as many, which are reached only if half of the elements are zeros ("with sparsity").
All of these are peaks, so measured speeds are lower.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9


@dataclass(frozen=True)
class Link:
    """A link of one device. each_way: bytes per second in one direction, with the other equally busy."""

    name: str
    each_way: float
    quoted: str
    source: str

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 1 / self.each_way


LINKS: tuple[Link, ...] = (
    Link("NVLink 3 (A100)", 300 * GB, "600 GB/s, both directions", "NVIDIA A100 data sheet"),
    Link("NVLink 4 (H100 SXM)", 450 * GB, "900 GB/s, both directions", "NVIDIA H100 data sheet"),
    Link(
        "NVLink bridge (H100 NVL)", 300 * GB, "600 GB/s, both directions", "NVIDIA H100 data sheet"
    ),
    Link("NVLink 5 (B200)", 900 * GB, "1.8 TB/s, both directions", "NVIDIA Blackwell data sheet"),
    Link("PCIe 3.0 x16", 16 * GB, "32 GB/s, both directions", "NVIDIA T4 data sheet"),
    Link("PCIe 4.0 x16", 32 * GB, "64 GB/s, both directions", "NVIDIA A100 data sheet"),
    Link("PCIe 5.0 x16", 64 * GB, "128 GB/s, both directions", "NVIDIA H100 data sheet"),
    Link("InfiniBand HDR", 25 * GB, "200 Gb/s", "NVIDIA ConnectX-6 data sheet"),
    Link("InfiniBand NDR", 50 * GB, "400 Gb/s", "NVIDIA ConnectX-7 data sheet"),
    Link("100 Gb Ethernet", 12.5 * GB, "100 Gb/s", "IEEE 802.3"),
    Link("10 Gb Ethernet", 1.25 * GB, "10 Gb/s", "IEEE 802.3"),
)


def link(name: str) -> Link:
    """The link of that name. The beginning of the name is enough if no other link begins with it."""
    candidates = [each for each in LINKS if each.name == name] or [
        each for each in LINKS if each.name.lower().startswith(name.lower())
    ]
    if len(candidates) != 1:
        raise ValueError(f"{name!r} is not one of the links: {', '.join(o.name for o in LINKS)}")
    return candidates[0]


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    flops: per second, bf16 factors, dense (fp16 if tensor cores have no bf16); memory: bytes; bandwidth:
    bytes per second between the GPU and this memory; fp8: as flops with fp8 factors, or None if its tensor
    cores have no fp8; host_link: the name of its link to the host, in LINKS.
    """

    name: str
    flops: float
    memory: float
    source: str
    bandwidth: float
    fp8: float | None
    host_link: str


_PCIE_3, _PCIE_4, _PCIE_5 = "PCIe 3.0 x16", "PCIe 4.0 x16", "PCIe 5.0 x16"
GPUS: tuple[Gpu, ...] = (
    Gpu("A100 SXM", 312e12, 80 * GB, "NVIDIA A100 data sheet", 2039 * GB, None, _PCIE_4),
    Gpu("H100 SXM", 989e12, 80 * GB, "NVIDIA H100 data sheet", 3350 * GB, 1979e12, _PCIE_5),
    Gpu("H200 SXM", 989e12, 141 * GB, "NVIDIA H200 data sheet", 4800 * GB, 1979e12, _PCIE_5),
    # As in a DGX B200, whose hosts have PCIe 5.0; other data sheets give the chip 192 GB.
    Gpu("B200", 2250e12, 180 * GB, "NVIDIA DGX B200 data sheet", 8000 * GB, 4500e12, _PCIE_5),
)

# GPUs that are often rented, in addition to those above; all figures are dense. GeForce cards sum fp16 and
# bf16 products in float32 at half of the rate that is printed for sums in fp16.
RENTED: tuple[Gpu, ...] = (
    Gpu("T4", 65e12, 16 * GB, "NVIDIA T4 data sheet", 320 * GB, None, _PCIE_3),
    Gpu("V100 SXM", 125e12, 32 * GB, "NVIDIA V100 data sheet", 900 * GB, None, _PCIE_3),
    Gpu("V100 SXM 16 GB", 125e12, 16 * GB, "NVIDIA V100 data sheet", 900 * GB, None, _PCIE_3),
    Gpu("A10", 125e12, 24 * GB, "NVIDIA A10 data sheet", 600 * GB, None, _PCIE_4),
    Gpu("A40", 149.7e12, 48 * GB, "NVIDIA A40 data sheet", 696 * GB, None, _PCIE_4),
    Gpu("RTX A6000", 154.8e12, 48 * GB, "NVIDIA RTX A6000 data sheet", 768 * GB, None, _PCIE_4),
    Gpu("RTX 3090", 71e12, 24 * GB, "NVIDIA GA102 white paper", 936 * GB, None, _PCIE_4),
    Gpu("L4", 121e12, 24 * GB, "NVIDIA L4 data sheet", 300 * GB, 242e12, _PCIE_4),
    Gpu("L40S", 362e12, 48 * GB, "NVIDIA L40S data sheet", 864 * GB, 733e12, _PCIE_4),
    Gpu("RTX 4090", 165.2e12, 24 * GB, "NVIDIA Ada white paper", 1008 * GB, 330.3e12, _PCIE_4),
    Gpu("A100 40 GB", 312e12, 40 * GB, "NVIDIA A100 data sheet", 1555 * GB, None, _PCIE_4),
    Gpu("A100 PCIe", 312e12, 80 * GB, "NVIDIA A100 data sheet", 1935 * GB, None, _PCIE_4),
    Gpu("H100 PCIe", 756e12, 80 * GB, "NVIDIA H100 data sheet", 2000 * GB, 1513e12, _PCIE_5),
)

# These are CUDA's names, which are not always the whole name on the data sheet.
CUDA_NAMES = {
    "Tesla T4": "T4",
    "Tesla V100-SXM2-16GB": "V100 SXM 16 GB",
    "Tesla V100-SXM2-32GB": "V100 SXM",
    "NVIDIA A10": "A10",
    "NVIDIA A40": "A40",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA A100-SXM4-40GB": "A100 40 GB",
    "NVIDIA A100-PCIE-40GB": "A100 40 GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe",
    "NVIDIA A100-SXM4-80GB": "A100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA B200": "B200",
}


def data_sheet(cuda_name: str) -> Gpu | None:
    """The GPU with this name in CUDA (`torch.cuda.get_device_name()`); None if it is not listed here."""
    return gpu(CUDA_NAMES[cuda_name]) if cuda_name in CUDA_NAMES else None


# Seconds that a round of NCCL's ring costs before its first byte, with the protocol for large messages.
# Source: the table hwLat of NCCL's cost model, src/graph/tuning.cc (Ring, Simple).
NVLINK_ALPHA = 3.4e-6
NETWORK_ALPHA = 14e-6


def gpu(name: str) -> Gpu:
    """The GPU of that name. Its beginning is enough for one of GPUS, or if no other begins with it."""
    known = (*GPUS, *RENTED)
    named = [each for each in known if each.name.lower() == name.lower()]
    begins = [
        [each for each in some if each.name.lower().startswith(name.lower())]
        for some in (GPUS, known)
    ]
    candidates = named or begins[0] or begins[1]
    if len(candidates) != 1:
        raise ValueError(f"{name!r} is not one of the GPUs: {', '.join(o.name for o in known)}")
    return candidates[0]
