"""Experts on a mesh: ep beside dp, pp, cp and tp, against one process with all experts and all rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import experts, launch
from course_lib.mesh import (
    Mesh,
    cut_names,
    expert_names,
    hybrid_step,
    mesh_stages,
    parameters,
    tied_names,
)
from course_lib.mesh.norm import clip_grad_norm
from course_lib.mesh.step import microbatches_of
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import one_f_one_b
from course_lib.tensor_parallel import parallelize_gpt


def test_a_step_on_two_ranks_of_ep_has_the_loss_of_one_process() -> None:
    config = GPTConfig(vocab_size=8, context=4, width=4, layers=1, heads=2)
    tokens = torch.arange(20).view(4, 5) % 8
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def a_gpt(group: Any = None) -> GPT:
        torch.manual_seed(0)
        return experts.expert_gpt(GPT(config), 4, 2, group).double()

    def job() -> float:
        mesh, schedule = Mesh({"ep": 2}), one_f_one_b(1, 1)
        stages = mesh_stages(a_gpt(mesh.group("ep")), mesh, schedule)
        rows = slice(2 * mesh.rank, 2 * mesh.rank + 2)  # of this rank, beside its two experts
        return hybrid_step(stages, schedule, [(inputs[rows], targets[rows])], mesh)

    wanted = float(next_token_loss(a_gpt()(inputs), targets).detach())
    assert list(launch(job, world_size=2, backend="gloo")) == pytest.approx([wanted] * 2, abs=1e-12)


CONFIG = GPTConfig(vocab_size=12, context=8, width=8, layers=2, heads=2, tied=True)
E, K, COUNT, ROWS, BALANCE = 4, 2, 2, 8, 0.05
IGNORED = -100


def a_model(seed: int, group: Any = None, tokens_group: Any = None) -> GPT:
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    return experts.expert_gpt(
        model, E, K, group, hidden=6, balance=BALANCE / COUNT, tokens_group=tokens_group
    ).double()


def a_batch(seed: int) -> tuple[Tensor, Tensor]:
    """Replicas have unequally many targets, and the last row has none."""
    torch.manual_seed(seed)
    tokens = torch.randint(12, (ROWS, 9))
    targets = tokens[:, 1:].clone()
    for row in range(ROWS):
        targets[row, : row + 1] = IGNORED
    return tokens[:, :-1], targets


def whole(seed: int) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, norm and gradients of one process: each microbatch is balanced over the rows of all replicas."""

    def job() -> tuple[float, float, dict[str, Tensor]]:
        model, (inputs, targets) = a_model(seed, tokens_group=dist.group.WORLD), a_batch(seed)
        total = 0.0
        for rows in (slice(0, None, 2), slice(1, None, 2)):
            loss = next_token_loss(model(inputs[rows]), targets[rows], reduction="sum")
            loss = loss / (targets != IGNORED).sum()
            loss.backward()
            total += float(loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        return (
            total,
            float(norm),
            {n: p.grad for n, p in model.named_parameters() if p.grad is not None},
        )

    return launch(job, world_size=1, backend="gloo")[0]


def part(name: str, gradient: Tensor, place: dict[str, int], sizes: dict[str, int]) -> Tensor:
    """The rank's part of a gradient: of the experts over ep, of matrices over tp."""
    ep, tp = sizes.get("ep", 1), sizes.get("tp", 1)
    if name.endswith((".w1", ".w3", ".w2")):
        return gradient.chunk(ep)[place.get("ep", 0)]
    if any(key in name for key in ("query", "key", "value", "token_embedding")):
        return gradient.chunk(tp)[place.get("tp", 0)]
    if name.endswith("attention.out.weight"):
        return gradient.chunk(tp, 1)[place.get("tp", 0)]
    return gradient


@pytest.mark.parametrize(
    "sizes",
    [
        {"ep": 2},
        {"ep": 4},
        {"dp": 2, "ep": 2},
        {"pp": 2, "ep": 2},
        {"ep": 2, "tp": 2},
        {"ep": 2, "cp": 2},
        {"dp": 2},
        {"pp": 2, "ep": 2, "tp": 2},
        {"dp": 2, "ep": 2, "cp": 2},
    ],
    ids=lambda sizes: " x ".join(f"{axis} {n}" for axis, n in sizes.items()),
)
def test_a_step_with_experts_is_that_of_one_process(sizes: dict[str, int], seed: int) -> None:
    """Loss, every gradient, and the norm, with the load-balancing loss and unequally many targets."""

    def job() -> tuple[float, float, dict[str, Tensor], dict[str, int]]:
        mesh = Mesh(sizes)
        schedule = one_f_one_b(mesh.size("pp"), COUNT)
        ep = mesh.group("ep") if mesh.size("ep") > 1 else None
        model = a_model(seed, ep, mesh.group(("dp", "ep", "cp")))
        stages = mesh_stages(model, mesh, schedule)
        inputs, targets = a_batch(seed)
        order = [*range(0, ROWS, 2), *range(1, ROWS, 2)]
        order = of_replicas(order, mesh.size(("dp", "ep")))
        batch = inputs[order], targets[order]
        loss = hybrid_step(stages, schedule, microbatches_of(batch, COUNT, mesh), mesh)
        named = parameters(stages)
        gradients = {name: param.grad.clone() for name, param in named if param.grad is not None}
        names = cut_names(stages), tied_names(stages), expert_names(stages)
        norm = clip_grad_norm(named, 1e9, mesh, *names)
        return loss, norm, gradients, mesh.coordinate

    n = 1
    for size in sizes.values():
        n *= size
    loss, norm, wanted = whole(seed)
    held: set[str] = set()
    for found, found_norm, gradients, place in launch(job, world_size=n, backend="gloo"):
        assert found == pytest.approx(loss, abs=1e-12)
        assert found_norm == pytest.approx(norm, rel=1e-9)
        held |= gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, part(name, wanted[name], place, sizes), rtol=1e-9, atol=1e-13, msg=name
            )
    assert held == wanted.keys()


def of_replicas(order: list[int], replicas: int) -> list[int]:
    """Rows of the batch, so that the microbatches of all replicas together are the halves of `order`."""
    first, second = order[: ROWS // 2], order[ROWS // 2 :]
    each = ROWS // 2 // replicas
    cut = [
        (first[k * each : (k + 1) * each], second[k * each : (k + 1) * each])
        for k in range(replicas)
    ]
    return [row for one, other in cut for row in (*one, *other)]


def test_a_mixture_takes_no_part_of_a_sequence() -> None:
    def job() -> None:
        parallelize_gpt(a_model(0), sequence="keep")

    with pytest.raises(RuntimeError, match="an MLP of the kind MoE cannot take part of a sequence"):
        launch(job, world_size=2, backend="gloo")


def test_counts_of_a_step_balance_the_experts_of_all_ranks(seed: int) -> None:
    """The bias that each rank makes of its counts is the same on all of them."""

    def job() -> tuple[Tensor, Tensor]:
        mesh = Mesh({"dp": 2, "ep": 2})
        tokens = mesh.group(("dp", "ep"))
        stages = mesh_stages(a_model(seed, mesh.group("ep"), tokens), mesh, one_f_one_b(1, COUNT))
        hybrid_step(
            stages, one_f_one_b(1, COUNT), microbatches_of(a_batch(seed), COUNT, mesh), mesh
        )
        layer = next(m for s in stages for m in s.module.modules() if isinstance(m, experts.MoE))
        return layer.counts.clone(), experts.update_bias(layer.bias, layer.counts, 0.25, tokens)

    run = launch(job, world_size=4, backend="gloo")
    counts = torch.stack([own for own, _ in run]).sum(0)
    assert counts.sum() == ROWS * 8 * K
    wanted = 0.25 * (counts.mean() - counts).sign()
    for _, bias in run:
        torch.testing.assert_close(bias, wanted)
