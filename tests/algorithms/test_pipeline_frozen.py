"""Stages that train nothing, batches that are evaluated, and targets that do not count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import RankError, launch
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import ScheduleError, gpt_stages, run_schedule
from course_lib.pipeline.actions import Schedule, forwards
from course_lib.pipeline.generators import (
    dualpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    zero_bubble_h1,
)
from course_lib.pipeline.gpt import GPTStage
from course_lib.pipeline.stash import run_pipedream


def test_a_frozen_stage_leaves_the_other_the_gradient_of_one_process() -> None:
    """The first rank's stage is frozen: the embeddings and the first block."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(40, 12, layers=2, heads=2, width=8, tied=False)).double()
    for name, param in model.named_parameters():
        param.requires_grad_(name.startswith(("blocks.1", "norm", "head")))
    batch = [tuple(torch.randint(40, (2, 2, 12))) for _ in range(2)]
    schedule = one_f_one_b(2, 2)

    def job() -> tuple[int, Tensor | None]:
        stages = gpt_stages(model, schedule, dist.get_rank())
        run_schedule(stages, schedule, batch)
        return len(stages), model.norm.weight.grad

    first, last = launch(job, world_size=2, backend="gloo")
    for inputs, targets in batch:
        (next_token_loss(model(inputs), targets) / 2).backward()
    assert first == (1, None)
    torch.testing.assert_close(last, (1, model.norm.weight.grad))


VOCABULARY, CONTEXT, LAYERS, COUNT = 40, 12, 4, 4
SCHEDULES: dict[str, tuple[Schedule, int]] = {  # for two ranks, with the copies of the model
    "one_f_one_b": (one_f_one_b(2, COUNT), 1),
    "zero_bubble_h1": (zero_bubble_h1(2, COUNT), 1),
    "interleaved": (interleaved_one_f_one_b(2, COUNT, 2), 1),
    "dualpipe": (dualpipe(2, COUNT), 2),
}
Batch = list[tuple[Tensor, Tensor]]
FROZEN: dict[str, Callable[[str], bool]] = {  # by the names of parameters
    "embedding and blocks 0 to 2": lambda name: not name.startswith(("blocks.3", "norm", "head")),
    "all but the embedding": lambda name: "embedding" not in name,
    "all but one block": lambda name: not name.startswith("blocks.1"),
    "everything": lambda name: True,
}


def a_model(frozen: Callable[[str], bool], tied: bool) -> GPT:
    torch.manual_seed(5)
    model = GPT(GPTConfig(VOCABULARY, CONTEXT, layers=LAYERS, heads=2, width=8, tied=tied)).double()
    for name, param in model.named_parameters():
        param.requires_grad_(not frozen(name))
    return model


def a_batch(seed: int) -> Batch:
    """Microbatches with unequally many targets; the second has none."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(VOCABULARY, (COUNT, 2, 2, CONTEXT), generator=generator)
    for k, places in enumerate((3, CONTEXT, 0, 5)):
        draws[k, 1, :, :places] = -100
    return [(inputs, targets) for inputs, targets in draws]


def alone(model: GPT, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    inputs, targets = (torch.cat(side) for side in zip(*batch, strict=True))
    loss = next_token_loss(model(inputs), targets)
    if loss.requires_grad:
        loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


Found = tuple[float, dict[str, Tensor | None]]


def on_a_rank(schedule: Schedule, copies: int, model: GPT, batch: Batch) -> Found:
    """The sum of its losses, and the gradients of its parameters."""
    stages = gpt_stages(model, schedule, dist.get_rank(), copies=copies)
    losses = run_schedule(stages, schedule, batch)
    modules = [stage.module for stage in stages if isinstance(stage.module, GPTStage)]
    named = {n: p for module in modules for n, p in module.parameter_names().items()}
    return sum(map(float, losses.values())), {name: param.grad for name, param in named.items()}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_stages_without_trained_parameters_take_part(name: str, tied: bool, seed: int) -> None:
    """The loss and the gradients of the rest are those of one process; frozen ones have no gradient."""
    schedule, copies = SCHEDULES[name]
    batch = a_batch(seed)

    def job() -> list[Found]:
        models = (a_model(frozen, tied) for frozen in FROZEN.values())
        return [on_a_rank(schedule, copies, model, batch) for model in models]

    ranks = launch(job, world_size=2, backend="gloo")
    for place, (what, frozen) in enumerate(FROZEN.items()):
        loss, wanted = alone(a_model(frozen, tied), batch)
        assert sum(rank[place][0] for rank in ranks) == pytest.approx(loss, abs=1e-12), what
        for rank in ranks:
            for param, gradient in rank[place][1].items():
                if gradient is None:
                    assert param not in wanted, (what, param)
                else:
                    torch.testing.assert_close(gradient, wanted[param], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_gradients_the_forwards_of_a_schedule_evaluate(name: str, seed: int) -> None:
    """As the whole schedule and as forwards alone; gradients that are there stay as they are."""
    schedule, copies = SCHEDULES[name]
    batch = a_batch(seed)

    def job() -> tuple[list[float], bool]:
        stages = gpt_stages(
            a_model(lambda name: False, True), schedule, dist.get_rank(), copies=copies
        )
        params = [param for stage in stages for param in stage.module.parameters()]
        for param in params:
            param.grad = torch.ones_like(param)
        found = []
        with torch.no_grad():
            for actions in (schedule, forwards(schedule)):
                losses = run_schedule(stages, actions, batch)
                found.append(sum(map(float, losses.values())))
        untouched = all(bool((param.grad == 1).all()) for param in params)
        with pytest.raises(ScheduleError, match="never does"):
            run_schedule(stages, forwards(schedule), batch)
        return found, untouched

    ranks = launch(job, world_size=2, backend="gloo")
    loss, _ = alone(a_model(lambda name: False, True), batch)
    for whole in zip(*(found for found, _ in ranks), strict=True):
        assert sum(whole) == pytest.approx(loss, abs=1e-12)
    assert all(untouched for _, untouched in ranks)


def test_a_batch_without_targets_is_0_and_a_count_is_that_of_the_caller() -> None:
    def job() -> tuple[list[float], float, float]:
        model = a_model(lambda name: False, False)
        (stage,) = gpt_stages(model, one_f_one_b(1, 1), 0)
        tokens = torch.zeros(1, CONTEXT, dtype=torch.long)
        nothing = [(tokens, torch.full_like(tokens, -100))]
        losses = run_schedule(stage, one_f_one_b(1, 1), nothing)
        largest = max(float(param.grad.abs().max()) for param in model.parameters())  # type: ignore[union-attr]
        both = [
            float(run_schedule(stage, one_f_one_b(1, 1), [(tokens, tokens)], count=count)[0])
            for count in (None, torch.tensor(2 * CONTEXT))
        ]
        for count in (0, -1, float("nan")):
            with pytest.raises(ValueError, match=r"count=.*: a mean is over one target or more"):
                run_schedule(stage, one_f_one_b(1, 1), nothing, count=count)
        return list(map(float, losses.values())), largest, both[0] / both[1]

    ((losses, largest, ratio),) = launch(job, world_size=1, backend="gloo")
    assert losses == [0.0] and largest == 0 and ratio == pytest.approx(2)


def test_a_sequence_beyond_the_context_is_refused_on_all_ranks_before_anything_is_sent() -> None:
    def job() -> str:
        schedule = one_f_one_b(2, 1)
        stages = gpt_stages(a_model(lambda name: False, False), schedule, dist.get_rank())
        tokens = torch.zeros(1, CONTEXT + 1, dtype=torch.long)
        with pytest.raises(
            ValueError, match="13 tokens are more than the model's context=12"
        ) as error:
            run_schedule(stages, schedule, [(tokens, tokens)])
        return str(error.value)

    first, second = launch(job, world_size=2, backend="gloo")
    assert first == second


def test_pipedream_without_gradients_is_refused() -> None:
    def job() -> None:
        schedule = one_f_one_b(1, 1)
        (stage,) = gpt_stages(a_model(lambda name: False, False), schedule, 0)
        tokens = torch.zeros(1, CONTEXT, dtype=torch.long)
        with torch.no_grad():
            run_pipedream(
                stage, schedule, [(tokens, tokens)], lambda params: torch.optim.SGD(params, lr=0.1)
            )

    with pytest.raises(RankError, match=r"call it outside torch\.no_grad"):
        launch(job, world_size=1, backend="gloo")


def test_a_module_that_lets_no_gradient_through_sends_zeros_back() -> None:
    """A last stage that detaches its input: the stages before it end their backwards all the same."""

    class Detached(nn.Module):
        def __init__(self, module: nn.Module):
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x.detach())

    def job() -> float:
        schedule = one_f_one_b(2, 2)
        (stage,) = gpt_stages(a_model(lambda name: False, False), schedule, dist.get_rank())
        params = list(stage.module.parameters())
        if stage.last:
            stage.module = Detached(stage.module)
        tokens = torch.zeros(1, CONTEXT, dtype=torch.long)
        run_schedule(stage, schedule, [(tokens, tokens)] * 2)
        return max(float(param.grad.abs().max()) for param in params)  # type: ignore[union-attr]

    first, last = launch(job, world_size=2, backend="gloo")
    assert first == 0 and last > 0
