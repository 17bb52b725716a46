"""PrefetchedModule against one process, and against `fully_shard`: values, bytes, order, memory, traps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint as of_torch

from course_lib import device, launch
from course_lib.facts.fsdp import fsdp_bytes
from course_lib.fsdp import PrefetchedModule, Unit, fsdp_schedule, units_of
from course_lib.recompute import checkpoint, lazy_checkpoint
from tests import gpu_like


def test_prefetched_blocks_train_as_one_process() -> None:
    torch.manual_seed(0)
    model, samples = Plain().double(), torch.randn(4, WIDTH).double()

    def job() -> torch.Tensor:
        sharded = PrefetchedModule(model)
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
        sharded(samples.chunk(2)[dist.get_rank()]).square().mean().backward()
        optimizer.step()
        return sharded(samples).detach()

    outputs = launch(job, world_size=2, backend="gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(samples).square().mean().backward()
    optimizer.step()
    for output in outputs:
        torch.testing.assert_close(output, model(samples).detach())


RequireRanks = Callable[[int], None]
WORLDS = [1, 2, 3, 4, 8]
STEPS, MICROBATCHES = 3, 2
BLOCKS, WIDTH = 5, 7
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
}
PREFETCHES = [(0, 0, True), (1, 1, True), (2, 1, True), (1, 3, False), (9, 9, True)]


class Block(nn.Module):
    """A residual block, whose input is used twice."""

    def __init__(self, width: int = WIDTH, inner: int = 5):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Plain(nn.Module):
    """Blocks, and nothing else."""

    def __init__(self, width: int = WIDTH, inner: int = 5):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, inner) for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Traps(nn.Module):
    """Parameters tied, frozen wholly and in part, unused; blocks used and listed twice; a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        first, frozen, last = Block(), Block().requires_grad_(False), Block()
        last.up.weight = first.up.weight
        last.down.bias.requires_grad_(False)
        first.unused = nn.Parameter(torch.randn(3))
        self.blocks = nn.ModuleList([first, frozen, Block(), frozen, last])
        self.scale = nn.Parameter(torch.randn(()))
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(tokens) + self.shift
        for block in self.blocks:
            x = block(x)
        x = self.blocks[2](x)  # once more, out of the list's order
        return {"logits": F.linear(x, self.embedding.weight) * self.scale}


def make(seed: int, kind: Callable[[], nn.Module] = Traps) -> nn.Module:
    """Every rank has its own initial values."""
    torch.manual_seed(seed)
    return kind().double().to(device())


def loss_of(model: nn.Module, seed: int, rank: int, step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * step + 10 * rank + part)
    tokens = torch.randint(0, 11, (2 + rank % 2, 5), generator=generator).to(device())
    return F.cross_entropy(model(tokens)["logits"].flatten(0, 1), tokens.flatten().roll(1))


def alone(n: int, optimizer_name: str, seed: int) -> dict[str, torch.Tensor]:
    """The state after the same training in one process, on the data of all ranks."""
    model = make(seed)
    cls, defaults = OPTIMIZERS[optimizer_name]
    optimizer = cls([p for p in model.parameters() if p.requires_grad], **defaults)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part, rank in itertools.product(range(MICROBATCHES), range(n)):
            (loss_of(model, seed, rank, step, part) / n).backward()
        optimizer.step()
    return model.state_dict()


def train(optimizer_name: str, seed: int, *settings: Any) -> dict[str, torch.Tensor]:
    forward_prefetch, backward_prefetch, reshard = settings
    model = PrefetchedModule(
        make(seed + dist.get_rank()), forward_prefetch=forward_prefetch,
        backward_prefetch=backward_prefetch, reshard_after_forward=reshard,
    )  # fmt: skip
    cls, defaults = OPTIMIZERS[optimizer_name]
    optimizer = cls([p for p in model.parameters() if p.requires_grad], **defaults)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(MICROBATCHES):
            loss_of(model, seed, dist.get_rank(), step, part).backward()
        optimizer.step()
    assert not any(unit.whole or unit.work for unit in model.units)
    return model.full_state_dict()


def assert_same(found: dict, wanted: dict, tolerance: float = 1e-9) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_trajectory_is_that_of_one_process(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    require_ranks(world_size)
    wanted = {name: alone(world_size, name, seed) for name in OPTIMIZERS}
    every = world_size == 3 and backend != gpu_like.NAME  # there it takes twice as long
    settings = PREFETCHES if every else PREFETCHES[1:3]

    def job() -> list:
        return [(name, train(name, seed, *s)) for name in OPTIMIZERS for s in settings]

    for results in launch(job, world_size=world_size, backend=backend, timeout=120):
        for name, found in results:
            assert_same(found, wanted[name])


# ---- what does not begin and end as a step does


def plain_step(model: nn.Module, rank: int, seed: int) -> torch.Tensor:
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed + rank)).double()
    return model(x.to(device())).square().mean()


def shards(model: PrefetchedModule) -> list[torch.Tensor]:
    return [unit.shard.grad.clone() for unit in model.units if unit.trained]


def one_step(model: PrefetchedModule, seed: int) -> list[torch.Tensor]:
    """The gradients of a step, which are then forgotten."""
    plain_step(model, dist.get_rank(), seed).backward()
    gradients = shards(model)
    model.zero_grad()
    return gradients


def without_a_graph(model: PrefetchedModule, seed: int) -> None:
    """Evaluation; then a forward of which nothing goes backward."""
    with torch.no_grad():
        plain_step(model, dist.get_rank(), seed)
    assert not any(unit.whole or unit.work for unit in model.units)
    plain_step(model, dist.get_rank(), seed)


class Broken(Exception):
    pass


def in_forward(model: PrefetchedModule, seed: int) -> None:
    def fail(*_: object) -> None:
        raise Broken

    hook = list(model.parts)[3].register_forward_pre_hook(fail)
    with pytest.raises(Broken):
        plain_step(model, dist.get_rank(), seed)
    hook.remove()
    assert not any(unit.whole for unit in model.units)  # nor does the traceback keep the weights


def in_backward(model: PrefetchedModule, seed: int) -> None:
    def fail(_: torch.Tensor) -> None:
        raise Broken

    def watch(_: object, __: object, output: torch.Tensor) -> None:
        output.register_hook(fail)

    hook = list(model.parts)[2].register_forward_hook(watch)
    with pytest.raises(Broken):
        plain_step(model, dist.get_rank(), seed).backward()
    hook.remove()
    model.zero_grad()


@pytest.mark.parametrize("before", [without_a_graph, in_forward, in_backward])
def test_the_next_step_works(
    before: Callable, seed: int, backend: str, require_ranks: RequireRanks
):
    require_ranks(3)

    def job() -> tuple[list, list]:
        model = PrefetchedModule(make(seed, Plain))
        wanted = one_step(model, seed)
        before(model, seed + 100)
        return wanted, one_step(model, seed)

    for wanted, found in launch(job, world_size=3, backend=backend, timeout=60):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("reshard", [True, False])
def test_two_forwards_before_their_backwards(
    reshard: bool, seed: int, backend: str, require_ranks: RequireRanks
):
    """Together, apart, and with one that is never used."""
    require_ranks(2)

    def job() -> tuple[list, list, int]:
        rank = dist.get_rank()
        model = PrefetchedModule(make(seed, Plain), reshard_after_forward=reshard)
        wanted = [
            a + b for a, b in zip(one_step(model, seed), one_step(model, seed + 7), strict=True)
        ]
        found = []
        losses = [plain_step(model, rank, seed), plain_step(model, rank, seed + 7)]
        (losses[0] + losses[1]).backward()
        found.append(shards(model))
        model.zero_grad()
        for loss in [plain_step(model, rank, s) for s in (seed, seed + 7)]:
            loss.backward()
        found.append(shards(model))
        model.zero_grad()
        plain_step(model, rank, seed + 9)
        for s in (seed, seed + 7):
            plain_step(model, rank, s).backward()
        found.append(shards(model))
        return [wanted] * 3, found, sum(unit.whole for unit in model.units)

    for wanted, found, whole in launch(job, world_size=2, backend=backend, timeout=60):
        torch.testing.assert_close(found, wanted)
        assert whole == 0


CHECKPOINTS = {
    "reentrant": partial(of_torch, use_reentrant=True),
    "by hooks": partial(of_torch, use_reentrant=False),
    "ours": checkpoint,
    "ours, by hooks": lazy_checkpoint,
}
# which part of the model each checkpoint holds
WAYS: dict[str, Callable[[list, Callable, torch.Tensor], torch.Tensor]] = {
    "each block": lambda blocks, run, x: run_all([partial(run, block) for block in blocks], x),
    "one of them": lambda blocks, run, x: run_all([*blocks[:2], partial(run, blocks[2])], x),
    "twice, and once without": lambda blocks, run, x: blocks[1](
        run(blocks[0], run(blocks[0], blocks[0](blocks[1](x))))
    ),
    "segments": lambda blocks, run, x: run(
        partial(run_all, blocks[2:]), run(partial(run_all, blocks[:2]), x)
    ),
    "one inside another": lambda blocks, run, x: run(
        partial(run_all, [blocks[0], partial(run, blocks[1]), blocks[0]]), x
    ),
}


def run_all(functions: list[Callable], x: torch.Tensor) -> torch.Tensor:
    for function in functions:
        x = function(x)
    return x


class Checkpointed(Plain):
    """Its blocks run in one of the ways, with a checkpoint or without."""

    way: Callable
    run: Callable = staticmethod(lambda function, x: function(x))

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)  # of the root

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.way(list(self.blocks), self.run, self.head(x)))


def gradients(way: Callable, used: Callable | None, whole: bool, seed: int) -> list[torch.Tensor]:
    """The shards' gradients of two backwards, which add up, with the checkpoint `used` or without."""
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank())).double()
    x = x.to(device())
    inner = make(seed, Checkpointed)
    inner.way = way
    model = PrefetchedModule(inner)
    run: Callable = model
    if used is not None and whole:
        run = partial(used, model)
    elif used is not None:
        inner.run = used
    for _ in range(2):
        run(x.requires_grad_()).square().mean().backward()
    assert not any(unit.whole or unit.work for unit in model.units)
    assert all(p.grad is None for unit in model.units for p in unit.params)
    return [unit.shard.grad for unit in model.units if unit.shard.grad is not None]


@pytest.mark.parametrize("whole", [False, True])
def test_checkpoints(whole: bool, seed: int, backend: str, require_ranks: RequireRanks):
    """Those in the model, or one around all of it. Reentrant ones begin a backward inside of the other."""
    require_ranks(2)

    def job() -> None:
        for way in [WAYS["each block"]] if whole else WAYS.values():
            plain = gradients(way, None, whole, seed)
            for used in CHECKPOINTS.values():
                torch.testing.assert_close(gradients(way, used, whole, seed), plain)

    launch(job, world_size=2, backend=backend, timeout=60)


# ---- order, bytes and memory


def second_step(kind: str, width: int, *settings: Any) -> dict[str, torch.Tensor]:
    """Two steps with barriers around the second; its gradients, whole, by name."""
    torch.manual_seed(1)
    plain = Plain(width, 8)  # of even sizes: fully_shard pads each parameter
    named = dict(plain.named_parameters())
    if kind == "fully_shard":
        for block in plain.blocks:
            fully_shard(block)
        fully_shard(plain)
        two_steps(plain, width)
        return {name: p.grad.full_tensor() for name, p in plain.named_parameters()}  # type: ignore[union-attr]
    forward_prefetch, backward_prefetch, reshard = settings
    model = PrefetchedModule(
        plain, forward_prefetch=forward_prefetch, backward_prefetch=backward_prefetch,
        reshard_after_forward=reshard,
    )  # fmt: skip
    two_steps(model, width)
    whole: dict[int, torch.Tensor] = {}
    for unit in model.units:
        row, begin = torch.empty(unit.n * unit.shard.numel()), 0
        dist.all_gather_into_tensor(row, unit.shard.grad)
        for p in unit.params:
            whole[id(p)] = row[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()
    return {name: whole[id(p)] for name, p in named.items()}


def two_steps(model: nn.Module, width: int) -> None:
    for _ in range(2):
        model.zero_grad()
        x = torch.randn(4, width, generator=torch.Generator().manual_seed(dist.get_rank()))
        dist.barrier()
        model(x).square().mean().backward()
        dist.barrier()


def operations(run: Any, rank: int) -> list:
    """Those between the barriers of the second step."""
    done = run.ledger.operations(rank)
    places = [i for i, operation in enumerate(done) if operation.op == "barrier"]
    return done[places[2] + 1 : places[3]]


@pytest.mark.parametrize("n", [2, 4])
def test_gradients_are_those_of_fully_shard(n: int):
    ours = launch(second_step, "", 8, 1, 1, True, world_size=n, backend="gloo", timeout=60)
    theirs = launch(second_step, "fully_shard", 8, world_size=n, backend="gloo", timeout=60)
    for found, wanted in zip(ours, theirs, strict=True):
        assert_same(found, wanted, 1e-6)
    block = sum(p.numel() for p in Block(8, 8).parameters()) * 4 * (n - 1) / n
    for rank in range(n):
        sent = [sum(o.bytes_sent for o in operations(run, rank)) for run in (ours, theirs)]
        assert sent[1] - sent[0] == pytest.approx(block, rel=0.02)  # the last block, kept here


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("reshard", [True, False])
def test_bytes_are_those_of_the_closed_form(n: int, reshard: bool):
    width = 12  # every N divides a block
    run = launch(second_step, "", width, 1, 1, reshard, world_size=n, backend="gloo", timeout=60)
    params = sum(p.numel() for p in Plain(width, 8).parameters())
    padded = BLOCKS * (-(-params // BLOCKS // n) * n)
    wanted = fsdp_bytes(padded, n, weights=4, gradients=4, reshard=reshard)
    if reshard:
        wanted *= (3 - 1 / BLOCKS) / 3  # the last block is kept
    for rank in range(n):
        assert sum(o.bytes_sent for o in operations(run, rank)) == pytest.approx(wanted, rel=1e-12)


class Uneven(nn.Module):
    """Blocks that a message can be told from: block k has k + 1 times as many inner features."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH, 8 * (k + 1)) for k in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def names_of(done: list) -> list[str]:
    """The operations with the names of their units, as "g3" or "r0"; the root is "*"."""
    model = Uneven()
    parts = {"*": model.head} | {str(k): block for k, block in enumerate(model.blocks)}
    sizes = {-(-sum(p.numel() for p in part.parameters()) // 2) * 8: k for k, part in parts.items()}
    return [operation.op.replace("all_", "")[0] + sizes[operation.nbytes] for operation in done]


@pytest.mark.parametrize(
    "settings", [(0, 0, True), (1, 1, True), (2, 1, True), (1, 2, True), (1, 1, False)]
)
def test_the_order_is_that_of_the_schedule(settings: tuple):
    schedule = fsdp_schedule(BLOCKS, *settings)
    wire = [f"{kind[0]}{unit}" for kind, unit in schedule if kind in ("gather", "reduce")]
    wanted = " ".join(["g*", *wire, "r*"])

    def job() -> None:
        forward_prefetch, backward_prefetch, reshard = settings
        model = PrefetchedModule(
            Uneven(), forward_prefetch=forward_prefetch, backward_prefetch=backward_prefetch,
            reshard_after_forward=reshard,
        )  # fmt: skip
        for _ in range(2):
            dist.barrier()
            model(torch.ones(2, WIDTH)).square().mean().backward()
            dist.barrier()

    run = launch(job, world_size=2, backend="gloo", timeout=60)
    for rank in range(2):
        done = operations(run, rank)
        assert " ".join(names_of(done)) == wanted
        assert all(operation.waited for operation in done)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_at_most_one_and_prefetch_blocks_have_memory(ahead: int):
    """When a block begins, it and those ahead of it have storage behind their parameters, and no others."""

    def job() -> tuple[dict, list]:
        model = PrefetchedModule(Uneven(), forward_prefetch=ahead, backward_prefetch=ahead)
        blocks = list(model.module.blocks)  # type: ignore[arg-type]
        seen: dict[tuple, list] = {}

        def look(moment: str, k: int) -> None:
            seen.setdefault((moment, k), []).append(with_storage(blocks))

        def watch(k: int, output: torch.Tensor) -> None:
            output.register_hook(lambda _: look("backward", k))  # after the module's own hook

        for k, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, k=k: look("forward", k))
            block.register_forward_hook(lambda _, __, output, k=k: watch(k, output))
        for _ in range(2):
            model(torch.ones(2, WIDTH)).square().mean().backward()
        return seen, with_storage(blocks)

    wanted = {}
    for k in range(BLOCKS):
        wanted["forward", k] = [list(range(k, min(k + ahead, BLOCKS - 1) + 1))] * 2
        wanted["backward", k] = [list(range(max(k - ahead, 0), k + 1))] * 2
    for seen, left in launch(job, world_size=2, backend="gloo", timeout=60):
        assert seen == wanted
        assert left == []


def with_storage(blocks: list[nn.Module]) -> list[int]:
    """The blocks with memory behind any of their parameters."""
    return [
        k
        for k, block in enumerate(blocks)
        if any(p.untyped_storage().nbytes() for p in block.parameters())
    ]


def test_a_parameter_that_is_in_a_unit_already_is_refused(
    backend: str, require_ranks: RequireRanks
) -> None:
    """Its memory is gone, and reading it would end the process."""
    require_ranks(2)

    def ones(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.ones(shape, device=device()))

    def body() -> None:
        weight = ones(4, 3)
        Unit([weight])
        with pytest.raises(ValueError, match="in another unit already"):
            Unit([ones(2), weight])
        twice = ones(2)
        with pytest.raises(ValueError, match="twice in one unit"):
            Unit([twice, twice])
        Unit([ones(0), ones(2)])  # no elements need no memory

    launch(body, world_size=2, backend=backend)


def test_every_parameter_is_in_one_unit(backend: str) -> None:
    """Of its block, or of the root if two blocks share it; trained and frozen ones apart."""

    def job() -> tuple[list[list[list[str]]], list[list[str]], bool]:
        model = Traps().to(device())
        names = {param: name for name, param in model.named_parameters()}
        blocks, root = units_of(model)
        of = [[[names[param] for param in unit.params] for unit in units] for units in blocks]
        return (
            of,
            [[names[param] for param in unit.params] for unit in root],
            blocks[1] is blocks[3],
        )

    (blocks, root, listed_twice), *_ = launch(job, world_size=2, backend=backend)
    assert listed_twice and [len(units) for units in blocks] == [1, 1, 1, 1, 2]
    (shared,) = root
    assert sorted(shared) == ["blocks.0.up.weight", "embedding.weight", "scale"]
    assert blocks[4][-1] == ["blocks.4.down.bias"]
    names = [name for units in [*blocks[:3], blocks[4], root] for unit in units for name in unit]
    assert len(names) == len(set(names)) == len(dict(Traps().named_parameters()))
