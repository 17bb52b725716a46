"""PyTorch's own classes, by one function: losses of one process, bytes and held parameters by formula."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import facts, launch
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.runtime.launch import Run
from course_lib.trainer import distribute


def test_two_ranks_have_the_losses_of_one_process() -> None:
    """Each rank of ddp with a seed of its own: it gives all of them rank 0's values."""

    def job() -> list[float]:
        torch.manual_seed(dist.get_rank())
        model = distribute(GPT(CONFIG).double(), "ddp")
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(STEPS):
            inputs, targets = (rows.chunk(2)[dist.get_rank()] for rows in a_batch(step))
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach() / 2
            dist.all_reduce(mean)
            losses.append(mean.item())
        return losses

    for losses in launch(job, world_size=2, backend="gloo"):
        assert losses == pytest.approx(alone(), abs=1e-12)


CONFIG = GPTConfig(vocab_size=64, context=32, layers=3, heads=4, width=32)
STEPS, ROWS = 3, 12


def a_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(CONFIG.vocab_size, (ROWS, CONFIG.context + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


@cache
def alone() -> list[float]:
    torch.manual_seed(0)
    model, losses = GPT(CONFIG).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = a_batch(step)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def on_a_rank(hows: tuple[str, ...]) -> dict[str, Any]:
    """(losses, elements that this rank holds) by `how`; a barrier before and after the steps of each."""
    warnings.simplefilter("ignore")  # PyTorch's, of its own use of gloo
    n, rank, results = dist.get_world_size(), dist.get_rank(), {}
    for how in hows:
        torch.manual_seed(0)
        model = distribute(GPT(CONFIG).double(), how)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        dist.barrier()
        for step in range(STEPS):
            inputs, targets = (rows.chunk(n)[rank] for rows in a_batch(step))
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach() / n
            dist.all_reduce(mean)
            losses.append(mean.item())
        dist.barrier()
        local = (getattr(param, "to_local", lambda p=param: p) for param in model.parameters())
        results[how] = losses, sum(part().numel() for part in local)
    return results


HOWS = {1: ("one",), 2: ("ddp", "fsdp"), 3: ("ddp", "fsdp"), 4: ("ddp", "fsdp")}


@cache
def run_of(n: int) -> Run:
    return launch(on_a_rank, HOWS[n], world_size=n, backend="gloo", timeout=120)


@pytest.mark.parametrize("n", HOWS)
def test_the_classes_train_as_one_process(n: int) -> None:
    for results in run_of(n):
        for how in HOWS[n]:
            assert results[how][0] == pytest.approx(alone(), abs=1e-12), how


@pytest.mark.parametrize("n", [2, 4])
def test_the_classes_send_and_hold_what_their_formulas_say(n: int) -> None:
    """Units of (n-1)/n of the parameters' bytes: 2; and 3, less the second gather of what no block has."""
    params = facts.transformer_parameters(CONFIG)
    root = params - CONFIG.layers * facts.layer_parameters(CONFIG)
    operations = run_of(n).ledger.operations(0)
    marks = [i for i, operation in enumerate(operations) if operation.op == "barrier"]
    for i, how in enumerate(HOWS[n]):
        steps = operations[marks[2 * i] : marks[2 * i + 1]]
        sent = sum(operation.bytes_sent for operation in steps if operation.nbytes > 8) / STEPS
        wanted = 2 * params if how == "ddp" else 3 * params - root
        assert sent / 8 == pytest.approx((n - 1) / n * wanted, rel=0.01), how
        held = run_of(n)[0][how][1]
        assert held == params if how == "ddp" else held == pytest.approx(params / n, rel=0.01)


def test_another_word_is_refused() -> None:
    model = GPT(CONFIG)
    assert distribute(model, "one") is model
    with pytest.raises(ValueError, match='it is "one", "ddp" or "fsdp"'):
        distribute(model, "zero")
