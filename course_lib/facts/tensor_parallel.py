"""Tensor and sequence parallelism: bytes a layer sends and keeps for backward, and when it pays.

n ranks share every layer; tokens = batch * seq counts whole sequences, on which all n ranks work. A *region*
reaches from a column-parallel layer to a row-parallel layer, both included, so it is an MLP or an attention.
`sequence` has the same values as in `course_lib.tensor_parallel`: None, whole sequences between the regions;
"keep", parts of the sequence, and each region's gathered input is kept for backward; "regather", it is
gathered again.

Sources: Shoeybi et al., Megatron-LM, 2019, section 3 (two all-reduces per layer and direction). Korthikanti
et al., Reducing Activation Recomputation in Large Transformer Models, 2022, sections 4.1 to 5 and table 2
(sequence parallelism, activations). Bytes of a collective: Patarasuk and Yuan 2009 (see `least_bytes`).
"""

from __future__ import annotations

from course_lib.facts.costs import least_bytes, seconds
from course_lib.facts.transformer import Shape, norm_parameters

SEQUENCES = (None, "keep", "regather")


def tensor_parallel_bytes(
    n: int,
    tokens: int,
    width: int,
    itemsize: int = 2,
    direction: str = "forward",
    sequence: str | None = None,
) -> float:
    """Bytes each rank sends for one region, an MLP or an attention, in one direction.

    2 (n-1)/n of M = tokens * width * itemsize: an all-reduce, or a gather and a reduce-scatter. "regather"
    gathers once more in backward: 3 (n-1)/n M. The hidden width does not matter, because the ranks send
    only x and y.

    A microbatch of 1 x 4,096 tokens, width 8,192, bf16, 8 ranks: 117 MB each way.
    """
    _check(direction, sequence)
    halves = 3 if sequence == "regather" and direction == "backward" else 2
    return halves * least_bytes(n, tokens * width * itemsize) / 2


def tensor_parallel_layer_bytes(
    shape: Shape,
    n: int,
    tokens: int,
    itemsize: int = 2,
    direction: str = "forward",
    sequence: str | None = None,
) -> float:
    """Bytes each rank sends for one block: two regions, and the gradients of replicated parameters.

    These gradients are sent in backward. With `sequence`, the weights of both norms and the two biases added
    to the stream are replicated (each rank sees only its tokens). The key and value weights are replicated if
    they have fewer heads than there are ranks (each copy sees only its queries). If neither is the case, the
    bytes are 4 (n-1)/n M per direction.
    """
    sent = 2 * tensor_parallel_bytes(n, tokens, shape.width, itemsize, direction, sequence)
    if direction == "forward":
        return sent
    if sequence is not None:
        replicated = 2 * norm_parameters(shape) + 2 * shape.bias * shape.width
        sent += least_bytes(n, replicated * itemsize)
    copies = key_value_copies(n, shape.key_value_heads)
    return sent + least_bytes(copies, 2 * shape.head_dim * (shape.width + shape.bias) * itemsize)


def key_value_copies(n: int, kv_heads: int) -> int:
    """How many ranks hold the same key and value head: 1 unless there are fewer heads than ranks."""
    return max(1, n // kv_heads)


def row_then_column_bytes(
    n: int, tokens: int, width: int, hidden: int, itemsize: int = 2, direction: str = "forward"
) -> float:
    """Bytes each rank sends for an MLP in the wrong order: row-parallel first, column-parallel second.

    forward: an all-reduce of the hidden features, since no activation function can be applied to terms of a
    sum, and a gather of the output. backward: the same for their gradients. With hidden = 4 width it takes 9
    halves of an all-reduce of M each way, whereas column first and then row takes 2. The lectures draw both
    orders.
    """
    _check(direction, None)
    return least_bytes(n, tokens * hidden * itemsize) + _half(n, tokens * width * itemsize)


def vocab_parallel_embedding_bytes(
    n: int,
    tokens: int,
    width: int,
    itemsize: int = 2,
    direction: str = "forward",
    sequence: str | None = None,
) -> float:
    """Bytes each rank sends: an all-reduce forward; on parts of the sequence half of one each way."""
    _check(direction, sequence)
    if sequence is not None:
        return _half(n, tokens * width * itemsize)
    return least_bytes(n, tokens * width * itemsize) if direction == "forward" else 0.0


def vocab_parallel_loss_bytes(
    n: int, tokens: int, itemsize: int = 4, direction: str = "forward"
) -> float:
    """Bytes each rank sends: forward an all-reduce of three numbers per token, backward nothing.

    itemsize: of the numbers: 4, float32, for logits of up to 32 bits. The vocabulary does not matter. 8,192
    tokens, 8 ranks: 172 kB.
    """
    _check(direction, None)
    return least_bytes(n, 3 * tokens * itemsize) if direction == "forward" else 0.0


def gathered_logits_bytes(n: int, tokens: int, vocab_size: int, itemsize: int = 2) -> float:
    """Bytes each rank sends if the logits are gathered instead (parts padded to the longest).

    8,192 tokens, vocabulary 50,257, bf16, 8 ranks: 721 MB, 4,000 times as much.
    """
    return _half(n, tokens * n * -(-vocab_size // n) * itemsize)


# ---- memory kept for backward


def korthikanti_activations(
    tokens: int,
    seq: int,
    width: int,
    heads: int,
    n: int = 1,
    sequence: str | None = None,
    recompute: str | None = None,
) -> float:
    """Bytes one layer keeps for backward on each rank, in 16 bits, with dropout: the paper's formulas.

    With T = tokens, h = width, s = seq, a = heads, t = n ranks, its table 2 gives:

        None         T h (10 + 24/t + 5as/(ht))     whole: inputs of norms and regions, masks of dropout
        "keep"       T h (4 + 30/t + 5as/(ht))      whole: only the inputs of regions
        "regather"   T h / t (34 + 5as/h)           nothing whole; the paper's sequence parallelism

    recompute: "selective" leaves out 5as/(ht), attention's scores, as a flash kernel does; "full" keeps only
    the layer's input, 2 T h (a part of it with `sequence`).

    GPT-3 (T = s = 2,048, h = 12,288, a = 96), one rank: 34 + 80 bytes for each element of T h, 2.87 GB per
    layer, 275 GB for 96 of them.
    """
    _check("forward", sequence)
    whole = {None: 10, "keep": 4, "regather": 0}[sequence]
    if recompute == "full":
        return 2 * tokens * width / (n if sequence else 1)
    if recompute not in (None, "selective"):
        raise ValueError(f"recompute is None, 'selective' or 'full', not {recompute!r}")
    scores = 0.0 if recompute else 5 * heads * seq / width
    return tokens * width * (whole + (34 - whole + scores) / n)


def saved_layer_bytes(
    shape: Shape,
    batch: int,
    seq: int,
    n: int = 1,
    sequence: str | None = None,
    itemsize: int = 4,
    dropout: bool = False,
    mask_itemsize: int | None = None,
) -> float:
    """Bytes a block of `course_lib.models.GPT` keeps for backward on each rank, as it is written.

    This is for PyTorch's operations on the CPU, in the dtype of itemsize bytes. Parameters are not counted,
    and memory that two operations keep is counted once. Attention is `scaled_dot_product_attention`'s flash
    kernel, which keeps a float32 number for each query and head instead of scores. With GELU at 4h and
    LayerNorm, the paper's 34 T h becomes 16 elements (2 for the inputs of the norms, 2 of the regions, 4 in
    attention, 8 in the MLP), which take 32 bytes in 16 bits, and masks.

    dropout: on the outputs of the regions, with masks of mask_itemsize bytes per element (None: itemsize, as
    on the CPU; 1 on a GPU). An RMSNorm, which PyTorch composes there, also keeps its normalised values
    (float32).
    """
    _check("forward", sequence)
    tokens = batch * seq
    own = tokens / (n if sequence else 1)  # between the regions
    entered = tokens / (n if sequence == "regather" else 1)
    norm = shape.width + 2 if shape.norm == "layer" else 2 * shape.width + 1
    kept = 2 * own * norm + 2 * entered * shape.width
    queries = shape.heads * shape.head_dim / n
    keys = max(1, shape.key_value_heads / n) * shape.head_dim
    kept += tokens * (2 * queries + 2 * keys)
    kept += tokens * (4 if shape.mlp == "swiglu" else 2) * shape.mlp_width / n
    of_float32 = tokens * shape.heads / n
    if shape.positions == "rotary":
        of_float32 += 2 * seq * shape.head_dim  # cosines and sines, for q and for k
    masks = 2 * own * shape.width * (itemsize if mask_itemsize is None else mask_itemsize)
    return kept * itemsize + of_float32 * 4 + (masks if dropout else 0)


# ---- when it pays


def tensor_parallel_intensity(n: int, hidden: int, itemsize: int = 2) -> float:
    """FLOPs a rank computes for each byte it sends, in the forward of an MLP of two matrices.

    4 T h hidden / n FLOPs over 2 (n-1)/n T h itemsize bytes make 2 hidden / ((n-1) itemsize), so neither
    tokens nor width matter. Backward computes twice as much, but for the same bytes.

    It pays as long as this is well above the rank's FLOP/s over its link's bytes/s. hidden = 32,768, bf16, 8
    ranks: 4,681. An H100 (989 TFLOP/s) needs 2,198 on NVLink (450 GB/s), 19,780 on InfiniBand (50 GB/s).
    """
    return 2 * hidden / ((n - 1) * itemsize) if n > 1 else float("inf")


def tensor_parallel_seconds(
    n: int,
    flops: float,
    nbytes: float,
    regions: int,
    flops_per_second: float,
    alpha: float,
    beta: float,
) -> tuple[float, float]:
    """Seconds of computing and of communicating, for `regions` regions in one direction on each of n ranks.

    flops: of all ranks together. nbytes: M, the bytes of one whole activation (tokens * width * itemsize),
    all-reduced by a ring after each region: 2 (n-1) alpha + 2 (n-1)/n M beta. Communication cannot hide
    behind the same layer, which waits for it, so the time is the sum of the two.
    """
    return flops / n / flops_per_second, regions * seconds(
        "ring_all_reduce", n, nbytes, alpha, beta
    )


def _half(n: int, nbytes: float) -> float:
    """A gather or a reduce-scatter: half of an all-reduce."""
    return least_bytes(n, nbytes) / 2


def _check(direction: str, sequence: str | None) -> None:
    if direction not in ("forward", "backward"):
        raise ValueError(f"direction is 'forward' or 'backward', not {direction!r}")
    if sequence not in SEQUENCES:
        raise ValueError(f"sequence is one of {SEQUENCES}, not {sequence!r}")
