"""Activations that are not stored: the distance of checkpoints, and the costs and messages of recomputation.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4 (a checkpoint every
sqrt(L) layers). Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
table 2 (34 bytes per layer, 2 of them its input), section 5 and appendix A (selective recomputation). Shoeybi
et al., Megatron-LM, 2019, section 3 (four all-reduces per layer). The counts of messages under recomputation
are measured from the ledger (tests/algorithms/test_recompute_ranks.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

INSIDE = 17.0  # 34 bytes a layer keeps, over the 2 bytes of its input, without the scores


# ---- how far apart


def checkpointed_most(layers: int, every: int, kept: float = 1.0, inside: float = INSIDE) -> float:
    """The memory of the worst moment, with a checkpoint every `every` layers.

    ceil(layers / every) inputs, and the inside of one segment, in the unit of kept and inside. For 80 layers
    of 2 and 34: 194 with every layer, 148 with every second, 156, 176 with every fourth, 324 with every
    ninth.
    """
    return math.ceil(layers / every) * kept + every * inside


def best_segment(layers: int, kept: float = 1.0, inside: float = INSIDE) -> int:
    """The `every` with least `checkpointed_most`; of equal ones the largest, which needs fewest pieces.

    It is near sqrt(layers kept / inside). This is sqrt(layers) if a layer keeps no more than its input, but
    only 2 instead of 9 for 80 layers of a transformer.
    """
    return min(
        range(1, layers + 1),
        key=lambda every: (checkpointed_most(layers, every, kept, inside), -every),
    )


# ---- work


def selective_share(seq: int, width: int, early_stop: bool = False) -> float:
    """FLOPs of recomputing attention's products, divided by those of a step's other products of matrices.

    Forward has two products of 2 b s^2 h FLOPs per layer: queries with keys, and weights with values. A step
    has 72 b s h^2 per layer in addition to attention's products, which makes s / 18h. The second product's
    output is not needed within attention. So PyTorch, which stops when the last kept tensor is ready,
    computes only the first product, which makes s / 36h. GPT-3 (s = 2,048, h = 12,288): 0.93 and 0.46 %.
    """
    return seq / (36 * width if early_stop else 18 * width)


@dataclass(frozen=True)
class SelectiveClaim:
    """A model of Korthikanti et al.'s section 5, with the share of FLOPs printed in the paper.

    The paper computes s / 6h (appendix A, equation 9). But its words add 4 b s^2 h per layer to the model's
    72 b s h^2 (1 + s / 6h), which is s / 18h, in all 1 + 2s / 9h. Equation 8 contains 1 + s / 3h, which adds
    three times as much.
    """

    model: str
    seq: int
    width: int
    printed: float

    @property
    def right(self) -> float:
        return selective_share(self.seq, self.width)


KORTHIKANTI_SELECTIVE: tuple[SelectiveClaim, ...] = (
    SelectiveClaim("GPT-3", 2048, 12288, 0.027),
    SelectiveClaim("MT-NLG", 2048, 20480, 0.016),
)


# ---- messages


def tensor_parallel_all_reduces(checkpoint: str | None = None, layers: int = 1) -> int:
    """All-reduces of `layers` transformer layers in forward and backward, without sequence parallelism.

    There are two per layer each way. checkpoint: of all the layers in one segment. "full": the forward's two
    run again, 6 per layer. "early stop": the segment's last one does not, since no operation keeps its
    result; 5 for one layer. None: 4.
    """
    again = {None: 0, "full": 2 * layers, "early stop": 2 * layers - 1}
    if checkpoint not in again:
        raise ValueError(f"checkpoint is None, 'full' or 'early stop', not {checkpoint!r}")
    return 4 * layers + again[checkpoint]


def sharded_units_checkpointed() -> int:
    """Units of traffic, (n-1)/n P elements, of a fully sharded step with checkpointed blocks: 3, as without.

    Backward gathers a block's weights anyway, before the block runs again, so there are two gathers and one
    reduce-scatter.
    """
    return 3


# ---- logits


def loss_bytes(tokens: int, vocab_size: int, chunks: int = 1, itemsize: int = 4) -> float:
    """Bytes of the logits that exist at the same time: of all tokens, or of one of equal chunks.

    8,192 tokens of Llama 3's 128,256 in float32: 4.2 GB. Their softmax has as many bytes, and so has their
    gradient.
    """
    return math.ceil(tokens / chunks) * vocab_size * itemsize
