"""Published steps, row by row, and what the model predicts for them.

    fitted(row)      the one constant: the efficiency at which the model gives a row's TFLOP/s
    predicted(row, efficiency)   TFLOP/s of each GPU

The efficiency is fitted on one row for each generation of GPUs: the 145.6B row of Megatron-LM's table 1 for
the A100, and the second row of Llama 3's table 4 for the H100 (16,384 GPUs, 400 TFLOP/s). All other rows are
predictions. Table 1 does not print microbatches and chunks, and table 2 does not print chunks. If a row has
None, the model takes the fastest value among those that fit.

Sources: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC
2021, table 1 (section 5.1), table 2 (section 5.2: microbatch 1, model-parallel size 96 and 280, which we read
as t 8 and p 12 or 35); Megatron-LM's README until 2024 (t 8, p 16, 1,024 GPUs, batch 1,536: 32 s,
138 TFLOP/s). Llama Team, The Llama 3 Herd of Models, 2024, table 4 as of its third version (the first prints
dp 4 in the last row, which gives 8,192 GPUs). Its section 3.3.2 names V but not its value, so we assume 4.
Its FSDP keeps the weights gathered and sends as much as ZeRO-1. Jiang et al., MegaScale, NSDI 2024, tables 1
and 2: Megatron-LM's rows at batch 6,144; the vocabulary, and v 6: section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from course_lib.facts.transformer import transformer_flops
from course_lib.models import PUBLISHED, GPTConfig
from course_lib.planning.layout import Layout
from course_lib.planning.memory import memory_per_gpu
from course_lib.planning.roofline import Work
from course_lib.planning.step_time import step_tflops
from course_lib.planning.topology import Cluster, a100_cluster, h100_cluster

UNFITTED = Work(1.0)
TOLERANCE = 0.08  # for every row except MegaScale's last two
CHUNKS, MICROBATCHES = range(1, 17), (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Row:
    """A row of a published table. tflops: of each GPU; with recomputation, if the source counts it.

    microbatch, chunks: None if not published.
    """

    name: str
    config: GPTConfig
    tp: int
    pp: int
    gpus: int
    batch: int
    tflops: float
    cp: int = 1
    seq: int = 2048
    microbatch: int | None = 1
    chunks: int | None = None
    recompute: str = "full"
    sequence: bool = False
    zero: int = 0
    gradients: int = 2
    work: Work = UNFITTED

    @property
    def cluster(self) -> Cluster:
        """Nodes of 8 A100s, or of 8 H100s for Llama 3."""
        return h100_cluster(self.gpus) if self.work.flash else a100_cluster(self.gpus)

    def layouts(self) -> list[Layout]:
        """All layouts the row can have had: they divide, and also fit if something is not published."""
        sizes = {
            "pp": self.pp,
            "dp": self.gpus // (self.tp * self.cp * self.pp),
            "cp": self.cp,
            "tp": self.tp,
        }
        candidates = []
        for microbatch in MICROBATCHES if self.microbatch is None else (self.microbatch,):
            for chunks in CHUNKS if self.chunks is None else (self.chunks,):
                layout = Layout(
                    sizes,
                    microbatch,
                    chunks,
                    self.zero,
                    self.recompute,
                    self.sequence,
                    self.gradients,
                )
                if self.chunks is not None or not layout.obstacle(
                    self.config, self.batch, self.seq
                ):
                    candidates.append(layout)
        room = self.cluster.gpu.memory
        return [
            layout for layout in candidates
            if len(candidates) == 1
            or memory_per_gpu(self.config, layout, self.batch, self.seq, self.work.flash) <= room
        ]  # fmt: skip

    def seconds(self) -> float:
        """The seconds of the step, from the published TFLOP/s."""
        recompute = self.recompute if self.recompute != "none" else False
        causal = self.work.causal
        flops = transformer_flops(
            self.config, self.batch, self.seq, causal=causal, recompute=recompute
        )
        return flops / (self.gpus * self.tflops * 1e12)


def _gpt(layers: int, heads: int, width: int, vocab: int = 51_200) -> GPTConfig:
    return GPTConfig(vocab, 2048, layers, heads, width)


def _table_1(text: str) -> tuple[Row, ...]:
    rows = []
    for line in text.strip().splitlines():
        name, *numbers = line.split()
        heads, width, layers, tp, pp, gpus, batch, tflops = map(int, numbers)
        config = _gpt(layers, heads, width)
        rows.append(Row(f"{name}B", config, tp, pp, gpus, batch, tflops, microbatch=None))
    return tuple(rows)


# billions of parameters, heads, width, layers, t, p, GPUs, batch, TFLOP/s of each GPU
TABLE_1 = _table_1("""
1.7     24  2304  24  1  1   32   512  137
3.6     32  3072  30  2  1   64   512  138
7.5     32  4096  36  4  1  128   512  142
18.4    48  6144  40  8  1  256  1024  135
39.1    64  8192  48  8  2  512  1536  138
76.1    80 10240  60  8  4 1024  1792  140
145.6   96 12288  80  8  8 1536  2304  148
310.1  128 16384  96  8 16 1920  2160  155
529.6  128 20480 105  8 35 2520  2520  163
1008.0 160 25600 128  8 64 3072  3072  163
""")
FITTED = TABLE_1[6]

TABLE_2 = tuple(
    Row(f"{name}, {gpus:,} GPUs", config, 8, pp, gpus, batch, tflops)
    for name, config, pp, batch, measured in (
        ("174.6B", _gpt(96, 96, 12288), 12, 1536, {384: 153, 768: 149, 1536: 141}),
        ("529.6B", _gpt(105, 128, 20480), 35, 2240, {560: 171, 1120: 167, 2240: 159}),
    )
    for gpus, tflops in measured.items()
)

README = Row("174.6B, t 8, p 16", _gpt(96, 96, 12288), 8, 16, 1024, 1536, 138)

_LLAMA = Row(
    "8,192 GPUs", PUBLISHED["Llama-3-405B"], 8, 16, 8192, 2048, 430, seq=8192, chunks=4,
    recompute="none", sequence=True, zero=1, gradients=4,
    work=Work(1.0, flash=True, causal=True, overlap=True),
)  # fmt: skip
LLAMA_3 = (
    _LLAMA,
    replace(_LLAMA, name="16,384 GPUs", gpus=16_384, tflops=400),
    replace(
        _LLAMA,
        name="16,384 GPUs, 131,072 tokens",
        gpus=16_384,
        tflops=380,
        cp=16,
        seq=131_072,
        batch=128,
    ),
)
LLAMA_FITTED = LLAMA_3[1]

# Megatron-LM's MFU in percent, as measured by MegaScale's authors; its TFLOP/s count only the model's FLOPs.
MEGASCALE = tuple(
    Row(
        f"{gpus:,} GPUs", _gpt(96, 128, 12288, 64_000), 8, 8, gpus, 6144, mfu / 100 * 312, chunks=6,
        recompute="none", sequence=True,
    )
    for gpus, mfu in ((3072, 48.7), (6144, 47.8), (8192, 43.3), (12_288, 41.2))
)  # fmt: skip


def predicted(row: Row, efficiency: float) -> float:
    """TFLOP/s of each GPU, for the fastest of the layouts the row can have had."""
    work = replace(row.work, efficiency=efficiency)
    return max(
        step_tflops(row.config, layout, row.batch, row.cluster, work, row.seq)
        for layout in row.layouts()
    )


def error(row: Row, efficiency: float) -> float:
    """Predicted TFLOP/s over published, minus 1."""
    return predicted(row, efficiency) / row.tflops - 1


@lru_cache(maxsize=16)
def fitted(row: Row) -> float:
    """The efficiency at which the model gives the row's TFLOP/s, by bisection, to a thousandth."""
    low, high = 0.2, 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if predicted(row, middle) < row.tflops else (low, middle)
    return (low + high) / 2
