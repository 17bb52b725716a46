"""Sharded optimizers between backward and step: scalers, clippers, and all that looks at gradients there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from course_lib import device, launch
from course_lib.fsdp import clip_grad_norm_
from course_lib.precision import LossScaler
from course_lib.recompute import checkpoint
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module


def test_gradients_are_clipped_between_backward_and_step_as_in_one_process() -> None:
    torch.manual_seed(0)
    model, samples = nn.Linear(3, 2).double(), torch.randn(4, 3).double()

    def job() -> tuple[float, Tensor]:
        optimizer = Zero1Optimizer(model.parameters(), torch.optim.SGD, lr=1.0)
        model(samples.chunk(2)[dist.get_rank()]).square().mean().backward()
        optimizer.average_gradients()  # into this rank's shards
        norm = clip_grad_norm_(optimizer.shards, 0.1)
        optimizer.step()
        return norm, model.weight.detach()

    ranks = launch(job, world_size=2, backend="gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(samples).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    optimizer.step()
    for result in ranks:
        torch.testing.assert_close(result, (norm, model.weight.detach()), rtol=1e-6, atol=1e-6)


SGD = {"optimizer_cls": torch.optim.SGD, "lr": 0.1}
RequireRanks = Callable[[int], None]
STAGES = [Zero1Optimizer, Zero2Optimizer]
SLOPES = torch.tensor([3.0, -1.0, 2.0, 5.0])
INFINITE_ON_RANK_1 = [None, 1, None]  # by step: the rank whose loss is infinite


def weights_of(
    stage: type[Zero1Optimizer], **options: object
) -> tuple[nn.Parameter, Zero1Optimizer]:
    weight = nn.Parameter(torch.zeros(4, device=device()))
    return weight, stage([weight], **SGD, **options)  # type: ignore[arg-type]


def loss_of(weight: Tensor, step: int = 0) -> Tensor:
    """Rank 0 has the gradient SLOPES and rank 1 three times that; their mean is twice SLOPES."""
    rank = dist.get_rank()
    loss = (weight * SLOPES.to(device())).sum() * (1 + 2 * rank)
    return loss * torch.inf if INFINITE_ON_RANK_1[step] == rank else loss


@pytest.mark.parametrize("stage", STAGES)
def test_all_ranks_unscale_and_skip_alike(
    stage: type[Zero1Optimizer], backend: str, require_ranks: RequireRanks
) -> None:
    """The second step is skipped, though one rank alone has an infinity, in another rank's shard, too."""
    require_ranks(2)

    def body() -> tuple[list[bool], float, Tensor]:
        weight, optimizer = weights_of(stage)
        scaler, taken = LossScaler(1024.0), []
        for step in range(3):
            scaler.scale_loss(loss_of(weight, step)).backward()
            taken.append(scaler.step(optimizer))
            scaler.update()
            optimizer.zero_grad()
        return taken, scaler.scale, weight.detach()

    for taken, scale, weight in launch(body, world_size=2, backend=backend):
        assert taken == [True, False, True] and scale == 512
        torch.testing.assert_close(weight, -0.1 * 2 * 2 * SLOPES)


@pytest.mark.parametrize("stage", STAGES)
def test_pytorchs_sharded_scaler_works_on_averaged_gradients(
    stage: type[Zero1Optimizer], backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(2)

    def body() -> tuple[float, Tensor]:
        weight, optimizer = weights_of(stage)
        scaler = ShardedGradScaler(device().type, init_scale=1024.0)
        for step in range(3):
            scaler.scale(loss_of(weight, step)).backward()
            optimizer.average_gradients()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return scaler.get_scale(), weight.detach()

    for scale, weight in launch(body, world_size=2, backend=backend):
        assert scale == 512
        torch.testing.assert_close(weight, -0.1 * 2 * 2 * SLOPES)


@pytest.mark.parametrize("unscales", [False, True], ids=["step", "unscale_ and step"])
@pytest.mark.parametrize("kind", [torch.amp.GradScaler, ShardedGradScaler])
def test_pytorchs_scalers_are_refused_before_gradients_are_averaged(
    kind: type[torch.amp.GradScaler], unscales: bool
) -> None:
    def body() -> list[Tensor]:
        weights = []
        for stage in STAGES:
            weight, optimizer = weights_of(stage)
            scaler = kind("cpu", init_scale=1024.0)
            scaler.scale(loss_of(weight)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            with pytest.raises(RuntimeError, match=r"have no gradients yet.*average_gradients\(\)"):
                scaler.step(optimizer)
            weights.append(weight.detach())
        return weights

    for weights in launch(body, world_size=2, backend="gloo"):
        assert not any(weight.any() for weight in weights), "a step was taken"


@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_is_that_of_the_mean_and_the_bytes_are_those_of_a_step_and_one_number(
    stage: type[Zero1Optimizer], backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(2)

    def body(clips: bool) -> tuple[float, Tensor]:
        weight, optimizer = weights_of(stage)
        dist.barrier()
        loss_of(weight).backward()
        norm = 0.0
        if clips:
            with pytest.raises(
                RuntimeError, match=r"no rank has a gradient.*average_gradients\(\)"
            ):
                clip_grad_norm_(optimizer.shards, 1.0)
            optimizer.average_gradients()
            optimizer.average_gradients()  # again: nothing
            norm = clip_grad_norm_(optimizer.shards, 1.0)
        optimizer.step()
        return norm, weight.detach()

    run = launch(body, True, world_size=2, backend=backend)
    mean = 2 * SLOPES
    for norm, weight in run:
        assert norm == pytest.approx(float(mean.norm()))
        torch.testing.assert_close(weight, -0.1 * mean / mean.norm(), rtol=1e-5, atol=1e-7)
    sent = [
        [op.op for op in run.ledger.operations(0)]
        for run in (run, launch(body, False, world_size=2, backend=backend))
    ]
    with_clip, without = (names[names.index("barrier") + 1 :] for names in sent)
    assert sorted(with_clip) == sorted([*without, "all_reduce", "all_reduce"])


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_after_the_average_is_refused_until_it_is_forgotten(
    stage: type[Zero1Optimizer],
) -> None:
    def body() -> list[Tensor]:
        weight, optimizer = weights_of(stage)
        found = []
        for forget in (optimizer.zero_grad, optimizer.step):
            loss_of(weight).backward()
            optimizer.average_gradients()
            with pytest.raises(RuntimeError, match=r"add up all backwards first.*call zero_grad"):
                loss_of(weight).backward()
            forget()
            found.append(weight.detach().clone())
            optimizer.zero_grad()
        optimizer.step()  # nothing is left
        return [*found, weight.detach()]

    for forgotten, stepped, left in launch(body, world_size=2, backend="gloo"):
        assert not forgotten.any()
        torch.testing.assert_close(stepped, -0.1 * 2 * SLOPES)
        assert torch.equal(left, stepped)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_backward_that_was_refused_leaves_no_gradient(stage: int) -> None:
    """A reentrant checkpoint is refused in the middle of a backward; the next step is that without it."""

    def body(fails: bool) -> Tensor:
        torch.manual_seed(0)
        layers, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.ones(2, 3)
        if stage == 3:
            model = Zero3Module(layers)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        else:
            model, optimizer = layers, Zero2Optimizer(layers.parameters(), **SGD)
        if fails:
            plain, layers.forward = layers.forward, lambda x: layers[1](checkpoint(layers[0], x))
            with pytest.raises(RuntimeError, match="use_reentrant=False"):
                model(x).sum().backward()
            layers.forward = plain
            optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        state = model.full_state_dict() if stage == 3 else layers.state_dict()
        return torch.cat([value.detach().flatten() for value in state.values()])

    failed, plain = (launch(body, fails, world_size=2, backend="gloo") for fails in (True, False))
    for after, wanted in zip(failed, plain, strict=True):
        assert torch.equal(after, wanted)


def test_sixteen_bits_are_unscaled_in_the_float32_copy() -> None:
    """A gradient of 2^-30 is 0 in fp16, and moves the float32 copy."""

    def body() -> float:
        weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))
        optimizer, scaler = Zero1Optimizer([weight], **SGD), LossScaler(2.0**16)
        (scaler.scale_loss(weight.float().sum() * 2.0**-30)).backward()
        scaler.step(optimizer)
        shards = [shard for shard in optimizer.shards if shard.numel()]
        return float(shards[0][0].detach())

    assert list(launch(body, world_size=2, backend="gloo")) == pytest.approx(
        [-0.1 * 2.0**-30] * 2, rel=1e-6
    )


# ---- frozen parameters that are views


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, 1:],
        lambda x: x[:1].expand(4, 3),
        lambda x: x[0, :0].expand(3, 0),
    ],
    ids=["transposed", "a part", "expanded", "without elements"],
)
@pytest.mark.parametrize("stage", STAGES)
def test_a_frozen_parameter_may_be_a_view(
    stage: type[Zero1Optimizer], view: Callable[[Tensor], Tensor]
) -> None:
    def body() -> tuple[Tensor, Sequence[int]]:
        values = torch.arange(9.0).view(3, 3) + 100 * dist.get_rank()
        frozen = nn.Parameter(view(values), requires_grad=False)
        stride = frozen.stride()
        stage([nn.Parameter(torch.zeros(4)), frozen], **SGD)
        assert frozen.stride() == stride
        return frozen.detach().clone(), stride

    wanted = view(torch.arange(9.0).view(3, 3))
    for frozen, _ in launch(body, world_size=2, backend="gloo"):
        assert torch.equal(frozen, wanted)
