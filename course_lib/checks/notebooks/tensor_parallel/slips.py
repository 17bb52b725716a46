"""The results of usual mistakes in a parallel linear layer, and the usual causes of other shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from course_lib.checks import kit
from course_lib.checks.notebooks.tensor_parallel.shared import interface, other_sizes
from course_lib.checks.notebooks.tensor_parallel.whole import Whole
from course_lib.ledger.operation import Operation

NAMES = "Make `weight` and `bias` an nn.Parameter each, because the optimizer finds nothing else."
UNEVEN = (
    "Cut as torch.tensor_split does, which makes the first parts longer by one feature, or raise a "
    "ValueError that says which numbers do not fit."
)
OWN_DRAW = (
    "Each rank drew a small layer separately, so from one seed all got the same. Draw the whole layer "
    "on every rank, and keep this rank's part."
)


def column_slips(whole: Whole, gather: bool) -> list[kit.Slip]:
    n = whole.n

    def term(k: int) -> Tensor:
        return whole.part(k, whole.g, -1) @ whole.part(k, whole.weight, 0)

    def summed_first(k: int) -> Tensor:
        y = whole.y + (n - 1) * whole.product
        return y if gather else whole.part(k, y, -1)

    def output_summed(k: int) -> Tensor:
        """The gradient of x where every rank's part of the output had that of all parts, added up."""
        parts = whole.g.tensor_split(n, -1)
        if len({part.shape for part in parts}) > 1:
            return whole.for_x.new_empty(0)  # the ranks do not agree on their collective
        return sum(parts, torch.zeros(())) @ whole.part(k, whole.weight, 0)

    slips = [
        *weight_slips(whole, 0),
        kit.Slip(
            "The bias is missing. Each rank adds its part of it.",
            lambda k: {"y": whole.product if gather else whole.part(k, whole.product, -1)},
        ),
        kit.Slip(
            f"x was summed over the ranks, so it is {n} times too large, because it was already whole. "
            "Use identity forward, all-reduce backward.",
            lambda k: {"y": summed_first(k)},
        ),
        kit.Slip(
            "Each rank has only the gradient of its own use of x. All ranks use x, so its gradient is "
            "the sum. Use identity forward, all-reduce backward.",
            lambda k: {"grad.x": term(k)},
        ),
        kit.Slip(
            "The gradients of the output were summed, although each rank has other outputs. All ranks "
            "use x, so put identity_all_reduce on x, before the product.",
            lambda k: {"grad.x": output_summed(k)},
        ),
        kit.Slip(
            (
                f"The gradient is the mean over the {n} ranks, but a value used by many gets the sum of "
                "their gradients."
            ),
            lambda k: {"grad.x": whole.for_x / n},
        ),
        kit.Slip(
            f"The gradient is {n} times too large, because it was summed over ranks that all had it already.",
            lambda k: {"grad.x": n * whole.for_x},
        ),
    ]
    return (gathered_slips(whole) if gather else []) + slips


def gathered_slips(whole: Whole) -> list[kit.Slip]:
    parts = whole.y.tensor_split(whole.n, -1)
    even = len({part.shape for part in parts}) == 1
    flat = torch.cat(parts).reshape(whole.y.shape) if even else whole.y
    return [
        kit.Slip(
            f"The gradient is {whole.n} times too large, because every rank has the same gradient of the "
            "gathered output, and these were added. Let backward of the all-gather keep the rank's own part.",
            lambda k: {
                "grad.x": whole.n * whole.for_x,
                "grad.p.weight": whole.n * whole.part(k, whole.for_weight, 0),
            },
        ),
        kit.Slip(
            "The parts are in the wrong order. Part r comes from rank r.",
            lambda k: {"y": torch.cat(parts[::-1], -1)},
        ),
        kit.Slip(
            "The parts are in the wrong order. Part r comes from rank r, on every rank.",
            lambda k: {"y": torch.cat([*parts[k:], *parts[:k]], -1)},
        ),
        kit.Slip(
            "The parts are one after the other, as they were received. Put them side by side along "
            "the features (torch.cat(pieces, dim=-1)).",
            lambda k: {"y": flat},
        ),
        kit.Slip(
            "Only the rank's own part is in the output. The parts of the other ranks are missing.",
            lambda k: {"y": alone(parts, k)},
        ),
    ]


def alone(parts: Sequence[Tensor], k: int) -> Tensor:
    return torch.cat([part if i == k else torch.zeros_like(part) for i, part in enumerate(parts)], -1)


def weight_slips(whole: Whole, dim: int) -> list[kit.Slip]:
    """Parts of the weight that are not rank k's."""
    n, weight = whole.n, whole.weight

    def small(k: int) -> Mapping[str, Tensor]:
        size = list(weight.shape)
        size[dim] = len(torch.arange(size[dim]).tensor_split(n)[k])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(whole.seed)
            drawn = nn.Linear(size[1], size[0], dtype=torch.float64)
        return {"p.weight": drawn.weight.detach()}

    def strided(k: int) -> Mapping[str, Tensor]:
        places = torch.arange(weight.shape[dim])[k::n]
        return {"p.weight": weight.index_select(dim, places)}

    return [
        kit.Slip(OWN_DRAW, small),
        kit.Slip("Every n-th feature was taken, but rank r's part is a run of adjacent features.", strided),
        kit.Slip(
            "The rank has another rank's part. Rank r has the r-th part, counted within the group.",
            lambda k: {"p.weight": whole.part(n - 1 - k, weight, dim)},
        ),
    ]


def misfit(whole: Whole, dim: int, gather: bool = False) -> Callable[[str, str, int], str]:
    """The usual cause of a parameter or an output of another shape."""
    out, size = whole.size_out, whole.size_in
    cut = "outputs" if dim == 0 else "inputs"

    def hint(name: str, came: str, k: int) -> str:
        shape = came.partition("[")[2]
        if name in ("p.weight", "p.bias") and came == "None":
            return NAMES
        if name == "p.weight" and shape == f"{out}, {size}]":
            return f"Every rank keeps the whole weight, but its part is 1/n of the {cut}."
        uncut = f"{out}, " if dim == 0 else f", {size}]"
        if name == "p.weight" and uncut in shape:
            return f"nn.Linear.weight is (out, in), so the {cut} are its dimension {dim}. Cut that dimension."
        if name == "p.weight" and whole.weight.shape[dim] % whole.n:
            sizes = [len(part) for part in torch.arange(whole.weight.shape[dim]).tensor_split(whole.n)]
            numbers = [int(digits) for digits in re.findall(r"\d+", shape)]
            if len(numbers) == 2 and numbers[dim] > sizes[k]:
                return f"torch.chunk cuts in this way, and its last part can be much shorter. {UNEVEN}"
            return f"The remaining features belong to no rank, or only to the last one. {UNEVEN}"
        if name == "p.weight":
            return (
                f"A rank has 1/n of the {cut}, and n is the number of ranks in the group, "
                "dist.get_world_size(group)."
            )
        if name == "p.bias":
            return (
                "Each output feature has its bias where it is computed."
                if dim == 0
                else "Every output feature is on every rank, and so is the whole bias."
            )
        if name == "y" and dim == 0 and not gather and shape.endswith(f" {out}]"):
            return "With gather_output=False each rank returns its own features, and nothing is sent."
        if name == "y" and gather:
            return "With gather_output=True all parts are side by side, along the last dimension."
        return ""

    return hint


def row_slips(whole: Whole, parallel: bool) -> list[kit.Slip]:
    n = whole.n
    bias = torch.zeros(whole.size_out) if whole.bias is None else whole.bias

    def term(k: int) -> Tensor:
        return whole.part(k, whole.x, -1) @ whole.part(k, whole.weight, 1).T

    def for_x(k: int) -> Tensor:
        return whole.part(k, whole.for_x, -1) if parallel else whole.for_x

    reduced_twice = (
        f"The gradient is {n} times too large, because it was all-reduced, although every rank already had "
        "all of it. An all-reduce in forward is an identity in backward, because a sum hands its gradient on "
        "to each of its terms."
    )

    mean = f"The output is the mean over the {n} ranks. Add the terms, and divide nothing."
    share = f"Only 1/{n} of the bias was added after the sum. Add the whole bias there, once."

    def parts_added_up(k: int) -> Tensor:
        """The gradient of x where that of every rank's own features was added to those of the others."""
        parts = whole.for_x.tensor_split(n, -1)
        if len({part.shape for part in parts}) > 1:
            return whole.for_x.new_empty(0)  # the ranks do not agree on their collective
        added = sum(parts, torch.zeros(()))
        return added if parallel else torch.cat([added] * n, -1)

    return [
        *weight_slips(whole, 1),
        kit.Slip(
            "The gradients of the ranks' parts of x were added up, although each rank has other features, "
            "and uses them alone. Leave out identity_all_reduce here. It is for an x that all ranks use.",
            lambda k: {"grad.x": parts_added_up(k)},
        ),
        kit.Slip(
            f"The bias counts {n} times, because every rank added it before the sum. Add it once, "
            "after the all-reduce.",
            lambda k: {"y": whole.product + n * bias},
        ),
        kit.Slip("The bias is missing. Add it after the sum.", lambda k: {"y": whole.product}),
        kit.Slip(
            (
                "Each rank has only its own term of the sum, so an all-reduce is needed forward. "
                "(Backward needs none.)"
            ),
            lambda k: {"y": term(k) + bias},
        ),
        kit.Slip(
            (
                "Each rank has only its own term of the sum, so an all-reduce is needed forward. "
                "(Backward needs none.)"
            ),
            lambda k: {"y": term(k)},
        ),
        kit.Slip(mean, lambda k: {"y": whole.product / n + bias}),
        kit.Slip(
            mean,
            lambda k: {
                "y": whole.product / n + bias,
                "grad.p.weight": whole.part(k, whole.for_weight, 1) / n,
            },
        ),
        kit.Slip(share, lambda k: {"y": whole.product + bias / n}),
        kit.Slip(share, lambda k: {"y": whole.product + bias / n, "grad.p.bias": whole.for_bias / n}),
        kit.Slip(reduced_twice, lambda k: {"grad.x": n * for_x(k)}),
        kit.Slip(reduced_twice, lambda k: {"grad.p.weight": n * whole.part(k, whole.for_weight, 1)}),
        kit.Slip(
            "Only this rank's features have a gradient, but x is whole here. Its gradient is made of "
            "the parts of all ranks, so all-gather them backward.",
            lambda k: {"grad.x": alone(whole.for_x.tensor_split(n, -1), k)},
        ),
        kit.Slip(
            (
                f"The gradient is {n} times too large, because the bias's gradient was summed over ranks "
                "that all had it already."
            ),
            lambda k: {"grad.p.bias": n * whole.for_bias},
        ),
        kit.Slip(
            f"The gradient is 1/{n} of the right one, because every rank added 1/{n} of the bias. In "
            f"one process a step would move the bias {n} times as far. Add the whole bias, once, after "
            "the sum.",
            lambda k: {"grad.p.bias": whole.for_bias / n},
        ),
    ]


def row_misfit(whole: Whole, parallel: bool) -> Callable[[str, str, int], str]:
    known = misfit(whole, 1)

    def hint(name: str, came: str, k: int) -> str:
        if name == "grad.p.bias" and came == "None":
            return (
                "The bias was added on some ranks only, so it has a gradient only there, and the "
                "other copies stay behind. Every rank must add it after the sum."
            )
        return known(name, came, k)

    return hint


def linear_trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if said := interface(text):
        return said
    if "created in no_grad mode" in text:
        return (
            "A collective was called on a tensor with a graph, but autograd does not follow it, so "
            "the parts that arrive have no gradient to give back. Gather with `gather_parts`, whose "
            "backward keeps the rank's own part."
        )
    if "inplace operation" in text or "in-place operation" in text:
        return (
            "A collective overwrote a tensor that autograd needs, or the caller's tensor. Communicate "
            "in a copy."
        )
    if "does not require grad" in text:
        return "The output has no graph, because autograd does not see what torch.distributed writes."
    if "shapes cannot be multiplied" in text:
        return (
            "nn.Linear.weight is (out, in), so columns of A are its dimension 0, and rows of A "
            "dimension 1. A layer cut by columns takes a whole x, but a layer cut by rows takes the "
            "rank's part, which must be taken from a whole x first."
        )
    if "must match the" in text and ("expanded size" in text or "size of tensor" in text):
        return (
            "The bias does not fit the tensor it is added to. A layer cut by columns also cuts its bias, as "
            "each rank has only some outputs. A layer cut by rows keeps all of it, as every rank has y."
        )
    if "a part of" in text and "size=" in text:
        return "Hand `gather_parts` the size of the whole output, out_features, instead of a part's size."
    few = bool(case_of_it.groups) and len(case_of_it.groups[0]) < case_of_it.world_size
    if few and "ValueError" in text and re.search(rf"\b{case_of_it.world_size}\b", text):
        return "Count the ranks of the group with dist.get_world_size(group), dist.get_rank(group)."
    if other_sizes(text) and case_of_it.title.endswith(f" features, {case_of_it.world_size} ranks"):
        return (
            "The ranks do not have equally many features in this case, so their parts differ in size. "
            "`joined` gathers such parts. Or raise a ValueError that says which numbers do not fit."
        )
    if other_sizes(text):
        return (
            "The ranks send tensors of different sizes, but the collective needs the same size on every "
            "rank. So sum only what every rank has in full, which is x, its gradient, or the terms of y. "
            "(`joined` also gathers parts that are not equal.)"
        )
    if kind == "deadlock" or "collective number" in text:
        return "All ranks of the group call the same collectives in the same order, forward and backward."
    return ""


def many(ratio: float, done: list[Operation], gather: str) -> str:
    """The usual cause of other bytes than the closed form's."""
    ops = {operation.op for operation in done}
    if abs(ratio - 2) < 0.1 and ops == {"all_reduce"}:
        return (
            f"An all-reduce sends twice as much as {gather}, but each rank needs only the other "
            "parts, not a sum."
        )
    return ""
