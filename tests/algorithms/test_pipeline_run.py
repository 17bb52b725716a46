"""The executor on real ranks: values, messages, memory, refusals, and PyTorch's runtime beside it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.func import functional_call

from course_lib import device, facts, launch
from course_lib.facts.pipeline import SCHEDULES
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import (
    Action,
    Schedule,
    ScheduleError,
    Stage,
    generators,
    gpt_stages,
    peak_activations,
    run_schedule,
    stage_ranks,
    to_text,
    violation,
    weight_versions,
)
from course_lib.pipeline.actions import source
from course_lib.pipeline.generators import one_f_one_b, pipedream, zero_bubble_h1
from course_lib.pipeline.gpt import GPTStage, balanced, head_share
from course_lib.pipeline.halves import LaterWeights
from course_lib.pipeline.plan import Step, plan
from course_lib.pipeline.stash import Versioned, run_pipedream
from tests import gpu_like


def test_two_stages_have_the_loss_and_the_gradients_of_one_process() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(40, 12, layers=2, heads=2, width=8, tied=False)).double()
    batch = [tuple(torch.randint(40, (2, 2, 12))) for _ in range(3)]  # inputs and targets
    schedule = one_f_one_b(2, 3)

    def job() -> tuple[float, dict[str, Tensor]]:
        (stage,) = gpt_stages(model, schedule, dist.get_rank())
        losses = run_schedule(stage, schedule, batch)
        gradients = {name: param.grad for name, param in stage.module.named_parameters()}
        return float(sum(losses.values())), gradients

    (_, first), (loss, last) = launch(job, world_size=2, backend="gloo")
    wanted = sum(next_token_loss(model(inputs), targets) for inputs, targets in batch) / 3
    wanted.backward()
    gradients = {name: param.grad for name, param in model.named_parameters()}
    torch.testing.assert_close((loss, {**first, **last}), (wanted.item(), gradients))


GENERATORS: dict[str, Callable[..., Schedule]] = {
    name: getattr(generators, name) for name in SCHEDULES
}
TWO_CHUNKS = ("interleaved_one_f_one_b", "zero_bubble_v", "dualpipe_v")
VOCABULARY, SEQ, WIDTH = 40, 7, 8
Batch = list[tuple[Tensor, Tensor]]
RequireRanks = Callable[[int], None]


def config(layers: int, modern: bool = False) -> GPTConfig:
    """GPT-2's parts with a tied head, or LLaMA's with one of its own."""
    made = GPTConfig(vocab_size=VOCABULARY, context=12, layers=layers, heads=2, width=WIDTH)
    return GPTConfig(**{**vars(made.modern()), "tied": False}) if modern else made


def a_model(seed: int, layers: int, modern: bool = False) -> GPT:
    torch.manual_seed(seed)
    return GPT(config(layers, modern)).double().to(device())


def some_microbatches(seed: int, count: int, even: bool = False) -> Batch:
    """Of one to three rows, and of some the first targets do not count."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for k in range(count):
        shape = (2 if even else 1 + k % 3, SEQ)
        inputs, targets = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
        targets[:, : 0 if even else k % 4] = -100
        found.append((inputs.to(device()), targets.to(device())))
    return found


def copies(name: str) -> int:
    return 2 if name == "dualpipe" else 1


def microbatches(name: str, world_size: int) -> int:
    return 2 * world_size + (0 if name == "interleaved_one_f_one_b" else 2)


def names(stage: Stage) -> dict[str, nn.Parameter]:
    """A GPT's stage's parameters by their names in the model."""
    assert isinstance(stage.module, GPTStage)
    return stage.module.parameter_names()


def gradients(stages: Sequence[Stage]) -> dict[str, Tensor]:
    found = {}
    for stage in stages:
        for name, param in names(stage).items():
            assert param.grad is not None, name
            found[name] = param.grad
    return found


def alone(model: GPT, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one process: the mean over all targets that count."""
    count = sum((targets != -100).sum() for _, targets in batch)
    loss = torch.zeros((), dtype=torch.float64)
    for inputs, targets in batch:
        loss = loss + next_token_loss(model(inputs), targets, "sum") / count
    loss.backward()
    return loss.detach(), {
        name: param.grad for name, param in model.named_parameters() if param.grad is not None
    }


Results = tuple[dict[int, Tensor], dict[str, Tensor], dict[str, Tensor]]


def on_a_rank(schedule: Schedule, twice: int, model: GPT, batch: Batch) -> Results:
    """Its losses, the values that its stages began with, and their gradients."""
    stages = gpt_stages(model, schedule, dist.get_rank(), copies=twice)
    values = {
        name: param.detach().clone() for stage in stages for name, param in names(stage).items()
    }
    return run_schedule(stages, schedule, batch), values, gradients(stages)


def same_as_alone(found: Sequence[Results], model: GPT, batch: Batch, case: object) -> None:
    """Each rank drew a model of its own; their stages together are the model that one process runs."""
    together = {name: value for _, values, _ in found for name, value in values.items()}
    assert set(together) == dict(model.named_parameters()).keys(), case
    model.load_state_dict(together, strict=False)  # a tied head has no name of its own
    loss, wanted = alone(model, batch)
    parts = [losses for losses, _, _ in found]
    assert sorted(k for one in parts for k in one) == list(range(len(batch))), case
    torch.testing.assert_close(sum(part for one in parts for part in one.values()), loss)
    for rank, (_, values, grads) in enumerate(found):
        for name, gradient in grads.items():
            assert torch.equal(values[name], together[name]), (case, rank, name)
            torch.testing.assert_close(
                gradient, wanted[name], rtol=1e-9, atol=1e-12,
                msg=lambda text, rank=rank, name=name: f"{case}, rank {rank}, {name}: {text}",
            )  # fmt: skip


# ---- values


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_losses_and_gradients_are_those_of_one_process(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """Every generator, with a tied head and without; each rank draws a model of its own."""
    require_ranks(world_size)
    cases = []
    for name, modern in product(SCHEDULES, (False, True)):
        if name == "dualpipe" and world_size % 2:
            continue
        if backend == gpu_like.NAME and modern == (name in TWO_CHUNKS):
            continue  # there it takes twice as long: each generator with one of the heads
        count = microbatches(name, world_size)
        schedule = GENERATORS[name](world_size, count)
        cases.append((name, modern, count, schedule))

    def layers(name: str) -> int:
        return world_size * (2 if name in TWO_CHUNKS else 1) + 1

    def body() -> list[Results]:
        return [
            on_a_rank(
                schedule, copies(name), a_model(seed + dist.get_rank(), layers(name), modern),
                some_microbatches(seed, count),
            )
            for name, modern, count, schedule in cases
        ]  # fmt: skip

    run = launch(body, world_size=world_size, backend=backend, timeout=180)
    for case, (name, modern, count, _) in enumerate(cases):
        found = [rank[case] for rank in run]
        model = a_model(seed, layers(name), modern)
        same_as_alone(found, model, some_microbatches(seed, count), (name, modern))


def any_schedule(chance: random.Random, ranks: int, stages: int, count: int) -> Schedule:
    """A valid random schedule: stages on any rank, and of the actions that are ready any one comes next."""
    holders = [*range(ranks), *(chance.randrange(ranks) for _ in range(stages - ranks))]
    chance.shuffle(holders)
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    todo = {Action(stage, "F", k) for stage, k in product(range(stages), range(count))}
    done: set[Action] = set()
    while todo:
        able = sorted(one for one in todo if source(one, stages) in done | {None})
        one = chance.choice(able)
        todo.remove(one)
        rows[holders[one.stage]].append(one)
        done.add(one._replace(kind="B") if one.kind == "I" else one)
        if one.kind == "F":
            todo.add(one._replace(kind=chance.choice("BI")))
        if one.kind == "I":
            todo.add(one._replace(kind="W"))
    assert violation(rows, stages, count) is None
    return rows


@pytest.mark.parametrize("world_size", [2, 3])
def test_any_valid_schedule_is_done(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """Stages out of order on the ranks, microbatches out of order, whole and halved backwards mixed."""
    require_ranks(world_size)
    chance = random.Random(f"{seed} {world_size}")
    sizes = [(world_size + extra, 4) for extra in range(4)]
    schedules = [any_schedule(chance, world_size, *size) for size in sizes]

    def body() -> list[Results]:
        return [
            on_a_rank(
                schedule, 1, a_model(seed + dist.get_rank(), 6), some_microbatches(seed, count)
            )
            for schedule, (_, count) in zip(schedules, sizes, strict=True)
        ]

    run = launch(body, world_size=world_size, backend=backend, timeout=120)
    for case, schedule in enumerate(schedules):
        found = [rank[case] for rank in run]
        same_as_alone(found, a_model(seed, 6), some_microbatches(seed, 4), to_text(schedule))


def test_gradients_are_added_to_those_that_are_there(seed: int):
    """Two batches accumulate as in one process, also in the weight that the first and last stage share."""
    schedule = one_f_one_b(2, 3)
    batches = [some_microbatches(seed, 3), some_microbatches(seed + 1, 3)]

    def body() -> dict[str, Tensor]:
        stages = gpt_stages(a_model(seed, 3), schedule, dist.get_rank())
        for batch in batches:
            run_schedule(stages, schedule, batch)
        return gradients(stages)

    model = a_model(seed, 3)
    for batch in batches:
        _, wanted = alone(model, batch)
    for found in launch(body, world_size=2, backend="gloo"):
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)


def test_a_pipeline_of_some_of_the_ranks_and_a_model_of_ones_own(seed: int):
    """Ranks 0 and 2 of three; a plain stack of layers, squared errors, frozen weights."""
    schedule = zero_bubble_h1(2, 4)

    def layers() -> list[nn.Module]:
        torch.manual_seed(seed)
        made = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(2)]
        made[1][0].weight.requires_grad_(False)
        return list(made)

    def batch() -> Batch:
        generator = torch.Generator().manual_seed(seed)
        draw = [torch.randn(3, 5, dtype=torch.float64, generator=generator) for _ in range(8)]
        return list(zip(draw[::2], draw[1::2], strict=True))

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return (output - targets).square().sum()

    def body() -> list[Tensor | None] | None:
        group: Any = dist.new_group([0, 2])
        if dist.get_rank() == 1:
            return None
        place = dist.get_rank(group)
        stage = Stage(
            place, 2, layers()[place], lambda x: x.shape, loss,
            lambda targets: torch.tensor(targets.numel()),
        )  # fmt: skip
        run_schedule(stage, schedule, batch(), group)
        return [param.grad for param in stage.module.parameters()]

    whole = nn.Sequential(*layers())
    for inputs, targets in batch():
        (loss(whole(inputs), targets) / 60).backward()
    first, idle, second = launch(body, world_size=3, backend="gloo")
    assert idle is None
    wanted = [param.grad for param in whole.parameters()]
    assert second[0] is None
    for found, gradient in zip([*first, *second], wanted, strict=True):
        torch.testing.assert_close(found, gradient)


# ---- the backward in halves


def test_halves_are_the_whole_and_the_weights_come_with_the_second(seed: int):
    torch.manual_seed(seed)
    first, last = nn.Linear(4, 6), nn.Linear(6, 3, bias=False)
    model = nn.Sequential(first, nn.GELU(), nn.LayerNorm(6), last)
    x = torch.randn(2, 5, 4, requires_grad=True)
    model(x).square().sum().backward()
    assert x.grad is not None
    wanted, for_x = [param.grad for param in model.parameters()], x.grad
    model.zero_grad()
    x.grad = None
    seen: list[Tensor] = []
    first.weight.register_post_accumulate_grad_hook(seen.append)
    with LaterWeights() as later:
        y = model(x)
    y.square().sum().backward()
    torch.testing.assert_close(x.grad, for_x)
    assert first.weight.grad is None
    assert last.weight.grad is None
    assert not seen
    assert [(x.shape[-1], dy.shape[-1]) for _, x, dy in later.kept] == [(6, 3), (4, 6)]
    later.finish()
    assert not later.kept
    assert seen == [first.weight]
    for param, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(param.grad, gradient)


def test_what_cannot_wait_is_done_at_once(seed: int):
    """Under autocast, for a weight that is computed, and for one vector."""
    torch.manual_seed(seed)
    layer = nn.Linear(4, 4, bias=False)

    def doubled(x: Tensor) -> Tensor:
        return nn.functional.linear(x, 2 * layer.weight)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    for forward, shape in [(doubled, (3, 4)), (cast, (3, 4)), (layer, (4,))]:
        x = torch.randn(shape)
        forward(x).sum().backward()
        wanted, layer.weight.grad = layer.weight.grad, None
        with LaterWeights() as later:
            y = forward(x)
        y.sum().backward()
        assert not later.kept
        torch.testing.assert_close(layer.weight.grad, wanted)
        layer.weight.grad = None


# ---- messages


@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_and_bytes_are_those_of_the_borders(name: str, seed: int):
    """2 m for each border between ranks, b s h numbers each; besides, the gradients that are shared."""
    count = microbatches(name, 2)
    schedule = GENERATORS[name](2, count)
    length = len(stage_ranks(schedule)) // copies(name)

    def body() -> tuple[int, int]:
        stages = gpt_stages(a_model(seed, 5), schedule, dist.get_rank(), copies=copies(name))
        dist.barrier()
        run_schedule(stages, schedule, some_microbatches(seed, count, even=True))
        shared = {key: one.param for stage in stages for key, one in stage.shared.items()}
        return len(shared), sum(param.nbytes for param in shared.values())

    run = launch(body, world_size=2, backend="gloo", timeout=60)
    ranks = stage_ranks(schedule)
    made = Counter(
        one.stage for row in schedule for entry in row
        for one in (entry if not isinstance(entry, Action) else (entry,)) if one.kind == "F"
    )  # fmt: skip
    for rank in range(2):
        rows = run.ledger.operations(rank)
        after = [row for row in rows[1 + [row.op for row in rows].index("barrier") :]]
        sent = [row for row in after if row.bytes_sent]
        borders = sum(
            made[stage]
            for stage in ranks
            for other in (stage - 1, stage + 1)
            if ranks[stage] == rank and other // length == stage // length and ranks.get(other, rank) != rank
        )  # fmt: skip
        shared, nbytes = run[rank]
        assert len(sent) == borders + shared
        assert sum(row.bytes_sent for row in sent) == borders * 2 * SEQ * WIDTH * 8 + nbytes
        assert (shared > 0) == (name in ("dualpipe",) or ranks[0] != ranks[length - 1])


def blocked(programs: Sequence[Sequence[Sequence[Step]]]) -> list[int]:
    """Ranks that hang if a rank's batches run one after the other, each waiting for both of its ends."""
    heads = [0] * len(programs)
    posted: Counter[tuple[Action, str]] = Counter()

    def open_batch(rank: int) -> None:
        if heads[rank] < len(programs[rank]):
            posted.update((step.action, step.what) for step in programs[rank][heads[rank]])

    def finished(steps: Sequence[Step]) -> bool:
        other = {"send": "receive", "receive": "send"}
        return all(
            step.what == "compute" or posted[step.action, other[step.what]] for step in steps
        )

    for rank in range(len(programs)):
        open_batch(rank)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while heads[rank] < len(program) and finished(program[heads[rank]]):
                heads[rank] += 1
                open_batch(rank)
                moved = True
    return [rank for rank, program in enumerate(programs) if heads[rank] < len(program)]


def fits(programs: Sequence[Sequence[Sequence[Step]]]) -> None:
    """Between two ranks messages come in the order in which they are sent: they have no other name."""
    flat = [[step for batch in program for step in batch] for program in programs]
    for src, dst in product(range(len(flat)), repeat=2):
        sent = [step.action for step in flat[src] if step.what == "send" and step.peer == dst]
        awaited = [step.action for step in flat[dst] if step.what == "receive" and step.peer == src]
        assert sent == awaited


def test_no_plan_hangs_where_messages_are_done_one_after_the_other(seed: int):
    """NCCL's order, made stricter: a rank does nothing until its last batch is done on both sides."""
    chance = random.Random(seed)
    cases = [
        (GENERATORS[name](p, 2 * p + p * (name == "interleaved_one_f_one_b")), copies(name))
        for name, p in product(SCHEDULES, (2, 3, 4, 6))
        if name != "dualpipe" or p % 2 == 0
    ]
    for _ in range(40):
        ranks = chance.randrange(2, 6)
        cases.append((any_schedule(chance, ranks, chance.randrange(ranks, 9), 5), 1))
    for schedule, twice in cases:
        programs = [plan(schedule, rank, twice) for rank in range(len(schedule))]
        fits(programs)
        assert not blocked(programs), to_text(schedule)


def test_the_naive_order_of_messages_would_hang_there():
    """Receives where they are needed, sends where they arise: 1F1B's neighbours send to each other first."""
    forward, backward = Action(0, "F", 1), Action(1, "B", 0)
    first = [[Step("send", forward, 1)], [Step("receive", backward, 1)]]
    second = [[Step("send", backward, 0)], [Step("receive", forward, 0)]]
    assert blocked([first, second]) == [0, 1]
    assert not blocked([first, second[::-1]])


# ---- memory


class Alive:
    """A quantity that is alive now, and the most that was."""

    now = most = 0

    def add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


class Held:
    """A number of bytes, counted as long as autograd holds this object."""

    def __init__(self, alive: Alive, size: int, what: Any = None):
        self.alive, self.size, self.what = alive, size, what
        alive.add(size)

    def __del__(self) -> None:
        self.alive.add(-self.size)


class Marked(torch.autograd.Function):
    """The identity, whose node in the graph holds a `Held`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alive: Alive) -> Tensor:
        ctx.held = Held(alive, 1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], None


@pytest.mark.parametrize("name", SCHEDULES)
def test_as_many_graphs_live_at_once_as_the_schedule_says(name: str, seed: int):
    count = microbatches(name, 2)
    schedule = GENERATORS[name](2, count)

    def body() -> tuple[int, int]:
        stages = gpt_stages(a_model(seed, 5), schedule, dist.get_rank(), copies=copies(name))
        alive = Alive()
        for stage in stages:
            stage.module.register_forward_hook(lambda _, __, y: Marked.apply(y, alive))
        run_schedule(stages, schedule, some_microbatches(seed, count))
        return alive.most, alive.now

    found = launch(body, world_size=2, backend="gloo", timeout=60)
    assert [most for most, _ in found] == peak_activations(schedule)
    assert [now for _, now in found] == [0, 0]


@pytest.mark.parametrize(("name", "world_size"), [("gpipe", 2), ("one_f_one_b", 4), ("naive", 2)])
def test_bytes_kept_for_backward_are_the_closed_forms(name: str, world_size: int, seed: int):
    """In units of what one microbatch keeps, counted by autograd's own hooks."""
    count = world_size + 2
    schedule = GENERATORS[name](world_size, count)

    def body() -> float:
        (stage,) = gpt_stages(a_model(seed, world_size), schedule, dist.get_rank())
        alive = Alive()

        def pack(tensor: Tensor) -> Held:
            return Held(alive, tensor.nbytes, tensor)

        def peak(schedule: Schedule, batch: Batch) -> int:
            alive.most = 0
            with saved_tensors_hooks(pack, lambda held: held.what):
                run_schedule(stage, schedule, batch)
            assert alive.now == 0
            return alive.most

        one = peak(GENERATORS[name](world_size, 1), some_microbatches(seed, 1, even=True))
        return peak(schedule, some_microbatches(seed, count, even=True)) / one

    wanted = [
        facts.pipeline_activations(name, world_size, count, rank) for rank in range(world_size)
    ]
    assert list(launch(body, world_size=world_size, backend="gloo", timeout=60)) == wanted


def test_after_the_first_half_only_the_products_of_the_second_are_kept(seed: int):
    """x and dy of each linear layer, and no graph; of stage 1, 2 microbatches at most, as ZB-H1 stores 1."""
    schedule = zero_bubble_h1(2, 4)
    sizes: list[int] = []

    class Counted(LaterWeights):
        def finish(self) -> None:
            sizes.append(sum(x.numel() + dy.numel() for _, x, dy in self.kept))
            super().finish()

    def body() -> list[int]:
        from course_lib.pipeline import run

        run.LaterWeights = Counted
        stages = gpt_stages(a_model(seed, 2), schedule, dist.get_rank())
        run_schedule(stages, schedule, some_microbatches(seed, 4, even=True))
        return sizes

    tokens, block = 2 * SEQ, 4 * (WIDTH + WIDTH) + 2 * (WIDTH + 4 * WIDTH)
    first, last = launch(body, world_size=2, backend="gloo")
    blocks = [len(part) for part in balanced(2, 2, VOCABULARY * WIDTH / (12 * WIDTH * WIDTH))]
    assert first == [tokens * block * blocks[0]] * 4
    assert last == [tokens * (block * blocks[1] + WIDTH + VOCABULARY)] * 4


# ---- PipeDream


RATE = 0.1


def one_after_the_other(model: GPT, schedule: Schedule, batch: Batch) -> list[dict[str, Tensor]]:
    """The weights of each stage after a stream in which each microbatch uses the versions that it should."""
    length, versions = len(schedule), weight_versions(schedule)
    cuts = balanced(len(model.blocks), length, head_share(model))
    modules = [GPTStage(model, blocks, i == 0, i == length - 1) for i, blocks in enumerate(cuts)]
    history = [
        [{name: param.detach().clone() for name, param in module.named_parameters()}]
        for module in modules
    ]
    for k, (x, targets) in enumerate(batch):
        used = []
        for i, module in enumerate(modules):
            seen = history[i][versions[Action(i, "F", k)]]
            used.append({name: value.clone().requires_grad_() for name, value in seen.items()})
            x = functional_call(module, used[i], (x,))
        next_token_loss(x, targets).backward()
        for past, seen in zip(history, used, strict=True):
            newest = {}
            for name, value in seen.items():
                assert value.grad is not None
                newest[name] = past[-1][name] - RATE * value.grad
            past.append(newest)
    return [past[-1] for past in history]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_pipedream_updates_by_gradients_of_the_versions_that_were_seen(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """With as many versions as the closed form says; without a stash the weights differ."""
    require_ranks(world_size)
    count = 2 * world_size + 3
    schedule = pipedream(world_size, count)

    def body(stash: bool) -> tuple[dict[str, Tensor], int]:
        kept = []

        class Watched(Versioned):
            def update(self, microbatch: int) -> None:
                kept.append(len({id(version) for version in self.used.values()}))
                super().update(microbatch)

        import course_lib.pipeline.stash

        course_lib.pipeline.stash.Versioned = Watched
        batch = some_microbatches(seed, count)
        model = a_model(seed, world_size, modern=True)
        (stage,) = gpt_stages(model, schedule, dist.get_rank())
        losses = run_pipedream(
            stage, schedule, batch, lambda params: torch.optim.SGD(params, lr=RATE), stash=stash
        )
        assert sorted(losses) == (list(range(count)) if stage.last else [])
        return {name: param.detach() for name, param in names(stage).items()}, max(kept)

    batch = some_microbatches(seed, count)
    wanted = one_after_the_other(a_model(seed, world_size, modern=True), schedule, batch)
    for stash in (True, False):
        found = launch(body, stash, world_size=world_size, backend=backend, timeout=60)
        apart = max(
            float((values[name] - value).abs().max())
            for (values, _), stage in zip(found, wanted, strict=True)
            for name, value in stage.items()
        )
        if stash or world_size == 1:
            assert apart < 1e-12
            versions = [
                facts.pipedream_versions(world_size, count, rank) for rank in range(world_size)
            ]
            assert [most for _, most in found] == versions
        else:
            assert apart > 1e-6


def test_pipedream_refuses_halves_and_tied_heads(seed: int):
    def body() -> list[str]:
        told = []
        for schedule, modern in [(zero_bubble_h1(2, 3), True), (pipedream(2, 3), False)]:
            (stage,) = gpt_stages(a_model(seed, 2, modern), schedule, dist.get_rank())
            with pytest.raises(ValueError) as caught:
                run_pipedream(stage, schedule, some_microbatches(seed, 3), torch.optim.SGD)
            told.append(str(caught.value))
        return told

    for halves, tied in launch(body, world_size=2, backend="gloo"):
        assert "updates follow whole backwards" in halves
        assert "shares token_embedding.weight with other ranks" in tied


# ---- what is refused


def test_wrong_schedules_stages_and_batches_are_refused_before_anything_is_sent(seed: int):
    good = one_f_one_b(2, 4)
    turned = [good[0], [*good[1][1::-1], *good[1][2:]]]
    short = [row[:-1] for row in good]
    cases = [
        (turned, 4),
        (short, 4),
        (good, 5),
        (one_f_one_b(3, 4), 4),
        (good, 0),
        ([], 4),
        ([5, 5], 4),
    ]

    def body() -> list[tuple[str, str]]:
        stages = gpt_stages(a_model(seed, 3), good, dist.get_rank())
        dist.barrier()
        told = []
        calls = [(stages, schedule, count) for schedule, count in cases]
        calls += [([], good, 4), (stages, good[::-1], 4)]
        for given, schedule, count in calls:
            with pytest.raises(ValueError) as caught:
                run_schedule(given, schedule, some_microbatches(seed, count))
            told.append((type(caught.value).__name__, str(caught.value)))
        return told

    run = launch(body, world_size=2, backend="gloo")
    wanted = [
        (ScheduleError, "it needs 1F0, which rank 1 does only later"),
        (ScheduleError, "rank 0 holds stage 0 and never does 0B3"),
        (ScheduleError, "rank 0 holds stage 0 and never does 0F4"),
        (ScheduleError, "there is no stage 2, only 0 to 1"),
        (ValueError, "there are no microbatches"),
        (ScheduleError, "the schedule is empty"),
        (ScheduleError, "rank 0: 5 is not a list of actions"),
        (ValueError, "was given no stage"),
        (ValueError, "was given stages [0], but in this schedule it holds [1]"),
    ]
    for (kind, text), (name, told) in zip(wanted, run[0], strict=True):
        assert name == kind.__name__, told
        assert text in told
    for rank in range(2):
        assert run.ledger.operations(rank)[-1].op == "barrier"


@pytest.mark.parametrize(
    ("blocks", "stages", "head", "sizes"),
    [
        (8, 4, 0.0, [2, 2, 2, 2]),
        (9, 4, 0.1, [3, 2, 2, 2]),
        (12, 4, 5.4, [4, 4, 4, 0]),
        (12, 3, 2.0, [5, 4, 3]),
        (3, 4, 0.1, [1, 1, 1, 0]),
        (5, 1, 9.0, [5]),
    ],
)
def test_stages_are_cut_so_that_the_slowest_has_little(
    blocks: int, stages: int, head: float, sizes: list[int]
):
    parts = balanced(blocks, stages, head)
    assert [number for part in parts for number in part] == list(range(blocks))
    assert [len(part) for part in parts] == sizes


def test_too_few_blocks_are_refused():
    with pytest.raises(
        ValueError, match="2 blocks cannot be cut into 4 stages: give the model at least 3"
    ):
        balanced(2, 4, 0.0)


# ---- PyTorch's runtime


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", *TWO_CHUNKS[:2], "zero_bubble_h1"])
def test_pytorchs_runtime_gives_the_same_gradients(name: str, seed: int, tmp_path):
    """The same rows, stages and weights; its loss is divided as ours."""
    count = microbatches(name, 2)
    schedule = GENERATORS[name](2, count)
    file = tmp_path / "schedule.csv"
    file.write_text(to_text(schedule))

    def body() -> float:
        batch, rank = some_microbatches(seed, count, even=True), dist.get_rank()
        ours = gpt_stages(a_model(seed, 5, modern=True), schedule, rank)
        theirs = gpt_stages(a_model(seed, 5, modern=True), schedule, rank)
        run_schedule(ours, schedule, batch)
        stages = [
            PipelineStage(one.module, one.index, one.length, torch.device("cpu")) for one in theirs
        ]
        inputs, targets = (torch.cat(part) for part in zip(*batch, strict=True))
        runtime = _PipelineScheduleRuntime(
            stages, count, scale_grads=False,
            loss_fn=lambda y, t: next_token_loss(y, t, "sum") / targets.numel(),
        )  # fmt: skip
        runtime._load_csv(str(file))
        first = [inputs] if any(one.first for one in theirs) else []
        last: dict[str, Any] = {"target": targets} if any(one.last for one in theirs) else {}
        runtime.step(*first, **last)
        wanted = gradients(theirs)
        return max(float((g - wanted[key]).abs().max()) for key, g in gradients(ours).items())

    for error in launch(body, world_size=2, backend="gloo", timeout=90):
        assert error < 1e-12
