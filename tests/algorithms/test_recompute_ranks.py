"""The messages of recomputation on several ranks, from the ledger."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint as of_pytorch

from course_lib import device, facts, launch
from course_lib.models import GPT, MLP, GPTConfig
from course_lib.recompute import checkpoint, lazy_checkpoint, run_segments
from course_lib.tensor_parallel import parallelize_gpt, parallelize_mlp


def test_a_checkpoint_around_a_parallel_mlp_has_the_gradient_of_one_process() -> None:
    torch.manual_seed(0)
    mlp, x = MLP(GPTConfig(width=8, heads=2)).double(), torch.randn(3, 8).double()

    def job() -> torch.Tensor:
        own = x.clone().requires_grad_()
        checkpoint(parallelize_mlp(mlp), own).square().sum().backward()
        return own.grad

    gradients = launch(job, world_size=2, backend="gloo")
    x.requires_grad_()
    mlp(x).square().sum().backward()
    for gradient in gradients:
        torch.testing.assert_close(gradient, x.grad)


LAYERS = 2
KINDS: dict[str, Any] = {
    "ours": (checkpoint, "full"),
    "ours, by hooks": (lazy_checkpoint, "early stop"),
    "ours, to the end": (partial(lazy_checkpoint, early_stop=False), "full"),
    "PyTorch's reentrant": (partial(of_pytorch, use_reentrant=True), "full"),
    "PyTorch's": (partial(of_pytorch, use_reentrant=False), "early stop"),
    "none": (None, None),
}


def blocks(kind: str, every: int, seed: int, dropout: float = 0.0) -> list[torch.Tensor]:
    """Forward and backward through tensor-parallel blocks, between barriers; the gradients."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(layers=LAYERS, heads=4, width=32, context=16, dropout=dropout))
    model = parallelize_gpt(model.to(device()))
    x, positions = torch.randn(2, 16, 32).to(device()), torch.arange(16, device=device())
    x.requires_grad_()
    used = KINDS[kind][0] or (lambda function, *args: function(*args))
    torch.manual_seed(seed)
    dist.barrier()
    run_segments(model.blocks, x, positions, every=every, checkpoint=used).sum().backward()
    dist.barrier()
    grads = [param.grad for param in model.blocks.parameters()]
    return [x.grad, *grads]  # type: ignore[list-item]


def counted(run: Any, rank: int = 0) -> Counter[str]:
    """Operations between the last two barriers."""
    operations = [operation.op for operation in run.ledger.operations(rank)]
    ends = [place for place, op in enumerate(operations) if op == "barrier"]
    return Counter(operations[ends[-2] + 1 : ends[-1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [1, 2])
def test_all_reduces_of_checkpointed_tensor_parallel_blocks(
    kind: str, every: int, seed: int, backend: str, require_ranks: Callable[[int], None]
) -> None:
    require_ranks(2)
    run = launch(blocks, kind, every, seed, world_size=2, backend=backend)
    wanted = facts.tensor_parallel_all_reduces(KINDS[kind][1], layers=every) * LAYERS // every
    assert counted(run) == {"all_reduce": wanted}
    if every == 1:
        assert wanted == LAYERS * {"full": 6, "early stop": 5, None: 4}[KINDS[kind][1]]


@pytest.mark.parametrize("kind", ["ours", "ours, by hooks"])
def test_dropout_of_tensor_parallel_blocks_drops_the_same_again(kind: str, seed: int) -> None:
    plain = launch(blocks, "none", 1, seed, 0.3, world_size=2, backend="gloo")
    again = launch(blocks, kind, 1, seed, 0.3, world_size=2, backend="gloo")
    for ours, theirs in zip(plain, again, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


class Chain(nn.Module):
    """Layers that a checkpoint may lie around."""

    def __init__(self, used: Any):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)) for _ in range(3)]
        self.layers, self.used = nn.ModuleList(layers), used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.used(layer, x)
        return x


def plainly(function: Any, *args: Any) -> Any:
    return function(*args)


def sharded(inside: bool, checkpointed: bool, seed: int) -> None:
    """A step of `fully_shard` after a first one, between barriers."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    warnings.simplefilter("ignore", FutureWarning)
    used = checkpoint if checkpointed else plainly
    model = Chain(plainly if inside else used)
    for layer in model.layers:
        if inside:  # the checkpoint lies within the unit
            layer.forward = partial(used, layer.forward)
        fully_shard(layer)
    fully_shard(model)
    for _ in range(2):
        dist.barrier()
        model(torch.randn(4, 16)).sum().backward()
    dist.barrier()


@pytest.mark.parametrize("inside", [True, False], ids=["inside the unit", "around the unit"])
def test_sharded_units_send_no_more_when_they_are_checkpointed(inside: bool, seed: int) -> None:
    sent = []
    for checkpointed in (False, True):
        run = launch(sharded, inside, checkpointed, seed, world_size=2, backend="gloo")
        sent.append((counted(run), run.ledger.bytes_sent(0)))
    assert sent[0] == sent[1]
    layer = (2 * 16 * 32 + 16 + 32) * 4 / 2  # (n-1)/n of float32
    steps, layers = 2, 3
    assert sent[0][1] == steps * layers * facts.sharded_units_checkpointed() * layer
