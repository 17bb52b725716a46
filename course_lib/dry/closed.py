"""The closed forms of `facts` for a dry run: the bytes and FLOPs a rank of this mesh should have.

They apply to the course's own parts (`hybrid_step` with 1F1B, ring attention, no sequence parallelism, no
recomputation). A quantity without a closed form is left out. These are activations of the first and the last
stage, FLOPs with cp, whose ring skips masked tiles, and everything on a mesh with ep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from course_lib.dry.plan import Plan
from course_lib.facts import axis_bytes, rank_parameters, saved_layer_bytes
from course_lib.facts.transformer import attention_flops, matmul_parameters


@dataclass(frozen=True)
class ClosedForms:
    """bytes: sent, by axis. kinds: of weights, gradients and activations. note: why there are none."""

    bytes: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    flops: float | None = None
    note: str = ""


def closed_forms(plan: Plan) -> ClosedForms:
    """The closed forms for the rank of a plan."""
    sizes, model = plan.sizes, plan.model
    if sizes.get("ep", 1) > 1:
        return ClosedForms(note="there are no closed forms for a mesh with ep")
    stage, itemsize = plan.coordinate.get("pp", 0), plan.dtype.itemsize
    all_rows = sizes.get("dp", 1) * plan.microbatches * plan.rows
    try:
        sent = axis_bytes(model, sizes, plan.microbatches, all_rows, model.context, stage, itemsize)
    except (
        AttributeError,
        ValueError,
    ) as error:  # another kind of model, or one that cannot be cut
        return ClosedForms(note=f"there are no closed forms: {error}")
    weights = float(rank_parameters(model, sizes, stage) * itemsize)
    kinds = {"weights": weights, "gradients": weights}
    pp, cp = sizes.get("pp", 1), sizes.get("cp", 1)
    if 0 < stage < pp - 1 and cp == 1:
        kinds["activations"] = min(plan.microbatches, pp - stage) * stage_activations(plan)
    return ClosedForms(by_group(sent, plan), kinds, stage_flops(plan) if cp == 1 else None)


def by_group(sent: dict[str, float], plan: Plan) -> dict[str, float]:
    """Gradients are summed over dp and cp together. If both have ranks, their group is named after both."""
    replicas = [axis for axis in plan.sizes if axis in ("dp", "cp") and plan.sizes[axis] > 1]
    closed: dict[str, float] = {}
    for axis, nbytes in sent.items():
        named = "+".join(replicas) if axis == "dp" else axis
        if nbytes:
            closed[named] = closed.get(named, 0.0) + nbytes
    return closed


def stage_activations(plan: Plan) -> float:
    """Bytes the layers of a middle stage keep of a microbatch."""
    model, sizes = plan.model, plan.sizes
    layer = saved_layer_bytes(
        model, plan.rows, model.context, sizes.get("tp", 1), itemsize=plan.dtype.itemsize
    )
    return model.layers // sizes.get("pp", 1) * layer


def stage_flops(plan: Plan) -> float:
    """Forward and backward of a stage's layers on all microbatches, and of the head on the last stage."""
    model, sizes = plan.model, plan.sizes
    pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    rows = plan.microbatches * plan.rows
    head: Any = model.width * model.vocab_size
    layers = 2 * rows * model.context * (matmul_parameters(model) - head)
    forward = (layers + attention_flops(model, rows, model.context)) / pp
    if plan.coordinate.get("pp", 0) == pp - 1:
        forward += 2 * rows * model.context * head
    return 3 * forward / tp
