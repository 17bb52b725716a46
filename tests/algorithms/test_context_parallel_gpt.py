"""A GPT on parts of a sequence is that of one process: loss, every gradient, and training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import context_parallel, device, launch
from course_lib.context_parallel.balanced import LAYOUTS, zigzag
from course_lib.context_parallel.combined import two_groups, ulysses_ring_attention
from course_lib.context_parallel.gpt import ContextParallelGPT, mean_over_ranks
from course_lib.context_parallel.layouts import MakeLayout
from course_lib.context_parallel.ring import ring_attention
from course_lib.context_parallel.ulysses import ulysses_attention
from course_lib.data import batch, library_text
from course_lib.models import GPT, GPTConfig, next_token_loss


def test_a_gpt_on_halves_of_a_sequence_has_the_loss_and_gradient_of_one_process() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=20, context=12, layers=2, heads=2, width=8)).double()
    tokens, targets = torch.randint(20, (2, 2, 12))

    def job() -> tuple[Tensor, Tensor]:
        parallel = ContextParallelGPT(model, partial(ring_attention, causal=True))
        loss = parallel.loss(parallel(tokens), targets)
        loss.backward()
        parallel.sum_gradients()
        return loss.detach(), model.head.weight.grad

    ranks = launch(job, world_size=2, backend="gloo")
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    for result in ranks:
        torch.testing.assert_close(result, (loss.detach(), model.head.weight.grad))


SMALL = GPTConfig(vocab_size=30, context=24, layers=2, heads=4, width=16)
CONFIGS = {"GPT-2": SMALL, "LLaMA": GPTConfig(**{**vars(SMALL), "kv_heads": 2}).modern()}


def make(config: GPTConfig, seed: int) -> Any:
    """In float64, its biases and norms moved away from 0 and 1."""
    torch.manual_seed(seed)
    model = GPT(config).double()
    for param in model.parameters():
        param.data += 0.1 * torch.randn_like(param)
    return model.to(device())


def kinds(world_size: int) -> dict[str, tuple[Callable[..., Tensor], MakeLayout]]:
    """Every way to attend on so many ranks, with what makes its layout."""
    found: dict = {
        f"ring, {name}": (partial(ring_attention, causal=True, block=4), layout)
        for name, layout in LAYOUTS.items()
    }
    if world_size <= 2:
        found["ulysses"] = partial(ulysses_attention, causal=True), context_parallel.contiguous
    if world_size == 4:
        inside, outside = two_groups(2)
        both = partial(
            ulysses_ring_attention, causal=True, ulysses_group=inside, ring_group=outside
        )
        found["both"] = both, lambda seq, n: context_parallel.subdivided(zigzag(seq, n // 2), 2)
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_loss_and_gradients_are_those_of_one_process(
    world_size: int, seed: int, backend: str, require_ranks: Callable[[int], None]
):
    """Learned and rotary positions; targets that do not count, on one rank more than on another."""
    require_ranks(world_size)

    def body() -> None:
        generator = torch.Generator().manual_seed(seed)
        for (name, config), seq in zip(CONFIGS.items(), (24, 19), strict=True):
            tokens, targets = torch.randint(0, 30, (2, 2, seq), generator=generator).to(device())
            targets[:, : seq // 2] = -100
            reference = make(config, seed)
            expected = next_token_loss(reference(tokens), targets)
            expected.backward()
            for kind, (attention, layout) in kinds(world_size).items():
                case = name, kind, dist.get_rank()
                model = make(config, seed + dist.get_rank())
                parallel = ContextParallelGPT(model, attention, layout)
                logits = parallel(tokens)
                assert logits.shape[1] == context_parallel.tokens_in(
                    layout(seq, world_size)[dist.get_rank()]
                )
                loss = parallel.loss(logits, targets)
                loss.backward()
                parallel.sum_gradients()
                assert float(loss.detach() - expected.detach()) == pytest.approx(0, abs=1e-12), case
                for param, wanted in zip(model.parameters(), reference.parameters(), strict=True):
                    assert param.grad is not None and wanted.grad is not None
                    torch.testing.assert_close(
                        param.grad, wanted.grad, rtol=1e-9, atol=1e-11,
                        msg=lambda text, case=case: f"{case}: {text}",
                    )  # fmt: skip

    launch(body, world_size=world_size, backend=backend, timeout=240)


def test_thirty_steps_lose_what_one_rank_loses():
    """In float32, within 1e-4, on the standard library's text, by SGD, which hides no wrong scale."""
    config = GPTConfig(context=32, layers=2, heads=4, kv_heads=2, width=32).modern()

    def train() -> list[float]:
        """On one rank by the GPT itself."""
        torch.manual_seed(0)
        model = GPT(config)
        spread = None
        if dist.get_world_size() > 1:
            spread = ContextParallelGPT(model, partial(ring_attention, causal=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        text, losses = library_text(), []
        for step in range(30):
            tokens, targets = batch(text, step, batch_size=4, length=32)
            optimizer.zero_grad()
            if spread is None:
                loss = next_token_loss(model(tokens), targets)
            else:
                loss = spread.loss(spread(tokens), targets)
            loss.backward()
            if spread is not None:
                spread.sum_gradients()
            optimizer.step()
            losses.append(loss.item())
        return losses

    (wanted,) = launch(train, world_size=1, backend="gloo")  # there one thread, as the ranks
    assert wanted[-1] < wanted[0] - 1
    for losses in launch(train, world_size=2, backend="gloo", timeout=120):
        assert max(abs(a - b) for a, b in zip(losses, wanted, strict=True)) < 1e-4


def test_the_mean_is_over_all_targets(seed: int):
    """Not the mean of the ranks' means; the gradient is that of the rank's own share."""

    def body() -> tuple[float, float]:
        own = torch.tensor([6.0, 1.0][dist.get_rank()], requires_grad=True)
        mean = mean_over_ranks(own, torch.tensor([3, 1][dist.get_rank()]))
        mean.backward()
        assert own.grad is not None
        return float(mean.detach()), float(own.grad)

    assert list(launch(body, world_size=2, backend="gloo")) == [(1.75, 0.25)] * 2


def test_parameters_that_stay_without_gradient(seed: int):
    """A frozen one keeps none; one that a rank did not use gets the others' gradient."""

    def body() -> None:
        model = make(SMALL, seed)
        model.blocks[0].mlp.requires_grad_(False)
        parallel = ContextParallelGPT(model, partial(ring_attention, causal=True))
        tokens = torch.randint(0, 30, (1, 2), generator=torch.Generator().manual_seed(seed))
        parallel.loss(parallel(tokens), tokens).backward()  # two tokens, three ranks
        parallel.sum_gradients()
        assert all(p.grad is None for p in model.blocks[0].mlp.parameters())
        reference = make(SMALL, seed)
        next_token_loss(reference(tokens), tokens).backward()
        head, wanted = model.head.weight.grad, reference.head.weight.grad
        assert head is not None and wanted is not None
        torch.testing.assert_close(head, wanted, rtol=1e-9, atol=1e-11)

    launch(body, world_size=3, backend="gloo")
