"""Four axes at once: the bytes each axis sends, in closed form, and the wire it uses.

sizes: ranks along "pp", "dp", "cp" and "tp", outermost first; an axis that is missing has one rank. A step
has m microbatches in every pipeline, so a microbatch has batch_rows / (dp m) rows of seq / cp tokens on each
rank, and M is the bytes of its residual stream. A rank sends

    tp   two all-reduces forward and two backward for each of its layers; on the first stage one for the
         embedding, forward; on the last stage one for the head's input, backward, and three numbers per
         token (loss)
    pp   M to each neighbouring stage, forward or backward; and between both ends the gradient of a
         tied table
    dp   the gradients of all parameters of the rank, once, over dp and cp together
    cp   keys and values around the ring, forward and backward, with heads / tp

These are the bytes of the course's own parts, which are Megatron-LM's cut without sequence parallelism, and
ring attention.

Sources: Narayanan et al., 2021, section 3 (bytes of a microbatch by axis); the closed forms of
`tensor_parallel.py` and `context_parallel.py`. The bytes of ranks 0 and 7 of 2 x 2 x 2 were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from course_lib.facts.context_parallel import ring_attention_bytes
from course_lib.facts.costs import least_bytes
from course_lib.facts.tensor_parallel import tensor_parallel_bytes, vocab_parallel_loss_bytes
from course_lib.facts.transformer import Shape, layer_parameters, norm_parameters

INSIDE, ACROSS = "NVLink", "network"


def wire(sizes: Mapping[str, int], axis: str, per_node: int) -> str:
    """Returns "NVLink" if every group of an axis is inside one node of per_node ranks, else "network".

    Neighbours along an axis are as many ranks apart as the axes within it have ranks together, so a group
    spans stride * size ranks. It stays in a node if this number divides the node. A node of 6, for example,
    cuts groups of 4 and of 16.
    """
    names = list(sizes)
    if axis not in names or sizes[axis] == 1:
        return INSIDE
    reach = sizes[axis] * prod(sizes[name] for name in names[names.index(axis) + 1 :])
    ranks = prod(sizes.values())
    return INSIDE if per_node % reach == 0 or ranks <= per_node else ACROSS


def rank_parameters(shape: Shape, sizes: Mapping[str, int], stage: int) -> int:
    """Parameters of a rank of a stage, with layers / pp layers each: matrices cut over tp, the rest whole.

    Norms, learned positions, and the two biases added to the residual stream are whole. The first stage has
    the embedding and the positions, and the last stage the final norm and the head, tied or not. If there is
    only one stage, a tied table is counted once.
    """
    tp, pp = sizes.get("tp", 1), sizes.get("pp", 1)
    whole = 2 * norm_parameters(shape) + 2 * shape.bias * shape.width
    params = shape.layers // pp * (whole + (layer_parameters(shape) - whole) // tp)
    table = shape.vocab_size * shape.width // tp
    if stage == 0:
        params += table + (shape.context * shape.width if shape.positions == "learned" else 0)
    if stage == pp - 1:
        params += norm_parameters(shape)
        params += 0 if shape.tied and pp == 1 else table
    return params


def axis_bytes(
    shape: Shape,
    sizes: Mapping[str, int],
    microbatches: int,
    batch_rows: int,
    seq: int,
    stage: int = 0,
    width_bytes: int = 4,
) -> dict[str, float]:
    """Bytes one rank of a stage sends in a step, by axis.

    batch_rows: of the global batch; seq: tokens of a whole row. width_bytes: of an element, also of
    gradients. On 2 x 2 x 2 (pp, dp, tp) with 8 rows of 64 tokens, 4 layers of width 64 and a tied vocabulary
    of 256: 589,824, 98,304 and 267,008 on the first stage. ValueError if a stage or a row cannot be cut in
    this way.
    """
    pp, dp, cp, tp = (sizes.get(axis, 1) for axis in ("pp", "dp", "cp", "tp"))
    _check(shape, (pp, dp, cp, tp), microbatches, batch_rows, seq, stage)
    rows = batch_rows // (dp * microbatches)
    tokens = rows * seq // cp
    layers, stream = shape.layers // pp, tokens * shape.width * width_bytes
    first, last = stage == 0, stage == pp - 1

    of_layer = 4 * tensor_parallel_bytes(tp, tokens, shape.width, width_bytes)
    ends = (first + last) * least_bytes(tp, stream) + last * vocab_parallel_loss_bytes(tp, tokens)
    tied = least_bytes(2, shape.vocab_size * shape.width // tp * width_bytes)
    keys = shape.key_value_heads // tp * shape.head_dim
    ring = sum(
        ring_attention_bytes(cp, rows * seq, keys, width_bytes, direction)
        for direction in ("forward", "backward")
    )
    parameters = rank_parameters(shape, sizes, stage) * width_bytes
    return {
        "pp": microbatches * stream * (2 - first - last)
        + (tied if shape.tied and pp > 1 and (first or last) else 0.0),
        "dp": least_bytes(dp * cp, parameters),
        "cp": microbatches * layers * ring,
        "tp": microbatches * (layers * of_layer + ends),
    }


def _check(
    shape: Shape,
    sizes: tuple[int, int, int, int],
    microbatches: int,
    rows: int,
    seq: int,
    stage: int,
) -> None:
    pp, dp, cp, tp = sizes
    if not 0 <= stage < pp:
        raise ValueError(f"stage {stage} must lie in 0 .. {pp - 1}")
    for number, by, what in (
        (shape.layers, pp, "layers"),
        (rows, dp * microbatches, "rows"),
        (seq, cp, "tokens"),
        (shape.heads, tp, "heads"),
        (shape.key_value_heads, tp, "key and value heads"),
        (shape.vocab_size, tp, "vocabulary"),
    ):
        if number % by:
            raise ValueError(f"{number} {what} cannot be cut into {by} equal parts")
