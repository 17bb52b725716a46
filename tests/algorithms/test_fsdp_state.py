"""Checkpoints of sharded modules: N ranks write them; M ranks, one process and `fully_shard` read them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from course_lib import device, fsdp, launch, zero
from course_lib.fsdp.layout import layout_of
from course_lib.fsdp.pieces import Piece


def test_one_process_reads_the_checkpoint_of_two_ranks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))

    def job() -> None:
        fsdp.save_checkpoint(tmp_path, zero.Zero3Module(module))

    launch(job, world_size=2, backend="gloo")
    weights = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    dcp.load({"model": weights}, checkpoint_id=str(tmp_path), no_dist=True)
    torch.testing.assert_close(weights, dict(module.state_dict()))


Losses = list[float]
STEPS = 3


class Scale(nn.Module):
    """A parameter of one number, and a buffer. fully_shard refuses parameters without dimensions."""

    factor: nn.Parameter
    shift: Tensor

    def __init__(self, *shape: int):
        super().__init__()
        self.factor = nn.Parameter(torch.full(shape, 1.5))
        self.register_buffer("shift", torch.tensor([0.25]))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x + self.shift


def model(seed: int, *shape: int) -> nn.Sequential:
    """Sizes that no number of ranks divides, a convolution of three dimensions, a number."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv1d(3, 5, 2, padding=1),
        nn.Flatten(),
        nn.Linear(25, 7),
        nn.Tanh(),
        Scale(*shape),
        nn.Linear(7, 3),
    )


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each rank takes all of a batch: losses and gradients do not depend on the number of ranks."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(6, 3, 4, generator=draw), torch.randn(6, 3, generator=draw)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, data: Any, steps: int) -> Losses:
    losses = []
    where = next(iter(module.parameters())).device
    for _, (x, y) in zip(range(steps), data, strict=False):
        x, y = x.to(where), y.to(where)
        optimizer.zero_grad()
        loss = (module(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def adam(params: Any, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=lr, betas=(0.8, 0.9))


def ours(seed: int, *shape: int) -> tuple[zero.Zero3Module, torch.optim.Optimizer]:
    module = zero.Zero3Module(model(seed, *shape).to(device()))
    return module, adam(module.parameters())


def after(seed: int) -> Any:
    """The data after the first steps."""
    data = batches(seed)
    for _ in range(STEPS):
        next(data)
    return data


def without_a_break(seed: int) -> Losses:
    """The losses of one process: those after the first steps."""
    module = model(seed)
    return train(module, adam(module.parameters()), batches(seed), 2 * STEPS)[STEPS:]


def test_pieces_are_cut_into_blocks() -> None:
    """Every run of elements of tensors of up to four dimensions, and at most 2 d - 1 blocks."""
    for shape in [(), (1,), (7,), (4, 5), (3, 4, 5), (1, 5, 1, 3), (2, 3, 2, 2), (0, 3), (3, 0)]:
        whole = torch.arange(math.prod(shape)).view(shape)
        for start in range(whole.numel() + 1):
            for stop in range(start, whole.numel() + 1):
                piece = Piece(whole.shape, start, whole.reshape(-1)[start:stop].clone())
                blocks = piece.blocks()
                assert len(blocks) <= max(1, 2 * len(shape) - 1)
                elements = []
                for block in blocks:
                    place = tuple(
                        slice(offset, offset + size)
                        for offset, size in zip(block.offsets, block.sizes, strict=True)
                    )
                    assert torch.equal(whole[place], block.values)
                    assert block.values.untyped_storage().data_ptr() == (
                        piece.values.untyped_storage().data_ptr()
                    )
                    elements += block.values.flatten().tolist()
                assert elements == list(range(start, stop))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_four_ranks_write_and_others_go_on_with_equal_losses(
    world_size: int, backend: str, require_ranks: Callable[[int], None], tmp_path: Path, seed: int
) -> None:
    require_ranks(max(world_size, 4))
    folder = tmp_path / "checkpoint"

    def write() -> Losses:
        module, optimizer = ours(seed)
        train(module, optimizer, batches(seed), STEPS)
        fsdp.save_checkpoint(folder, module, optimizer)
        return train(module, optimizer, after(seed), STEPS)

    def read() -> tuple[Losses, float, float]:
        module, optimizer = ours(seed + 1)
        optimizer.param_groups[0]["lr"] = 9.0  # the checkpoint has another
        fsdp.load_checkpoint(folder, module, optimizer)
        scale = module.full_state_dict()["4.shift"].item()
        return train(module, optimizer, after(seed), STEPS), optimizer.param_groups[0]["lr"], scale

    alone = without_a_break(seed)
    for losses in launch(write, world_size=4, backend=backend):
        assert losses == pytest.approx(alone, rel=1e-4)
    for losses, lr, shift in launch(read, world_size=world_size, backend=backend):
        assert losses == pytest.approx(alone, rel=1e-4)
        assert (lr, shift) == (0.05, 0.25)


@pytest.mark.parametrize("world_size", [1, 3])
def test_full_state_dicts_fit_one_process_and_any_number_of_ranks(
    world_size: int, backend: str, require_ranks: Callable[[int], None], seed: int
) -> None:
    require_ranks(5)

    def write() -> dict:
        module, optimizer = ours(seed)
        train(module, optimizer, batches(seed), STEPS)
        return fsdp.full_state_dict(module, optimizer)

    def read(state: dict) -> Losses:
        module, optimizer = ours(seed + 1)
        fsdp.load_full_state_dict(module, state, optimizer)
        return train(module, optimizer, after(seed), STEPS)

    alone = without_a_break(seed)
    states = list(launch(write, world_size=world_size, backend=backend))
    single = model(seed + 1)
    single.load_state_dict(states[0]["model"])  # of the wrapped module, as it is without ranks
    names = [name for name, _ in single.named_parameters()]
    assert states[0]["optimizer"]["state"].keys() == set(names)
    optimizer = adam(single.parameters())
    numbered = {i: states[0]["optimizer"]["state"][name] for i, name in enumerate(names)}
    (group,) = states[0]["optimizer"]["param_groups"]
    group = {**group, "params": list(numbered)}
    optimizer.load_state_dict(copy.deepcopy({"state": numbered, "param_groups": [group]}))
    assert train(single, optimizer, after(seed), STEPS) == pytest.approx(alone, rel=1e-4)
    for n in (1, 2, 5):
        for losses in launch(read, states[-1], world_size=n, backend=backend):
            assert losses == pytest.approx(alone, rel=1e-4)


def theirs(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = model(seed, 1)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (module[0], module[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module, adam(module.parameters())


def stored(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
    """PyTorch's own form, with DTensors: dcp fills them in place."""
    weights, states = get_state_dict(module, optimizer)
    return weights, states


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 3), (1, 4)])
def test_fully_shard_reads_our_files_and_writes_files_that_we_read(
    writers: int, readers: int, tmp_path: Path, seed: int
) -> None:
    mine, of_torch = tmp_path / "mine", tmp_path / "torch"

    def write() -> None:
        module, optimizer = ours(seed, 1)
        train(module, optimizer, batches(seed), STEPS)
        fsdp.save_checkpoint(mine, module, optimizer)
        other, adam_of_other = theirs(seed)
        train(other, adam_of_other, batches(seed), STEPS)
        weights, states = stored(other, adam_of_other)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=str(of_torch))

    def read() -> tuple[Losses, Losses]:
        other, adam_of_other = theirs(seed + 1)
        weights, states = stored(other, adam_of_other)
        dcp.load({"model": weights, "optimizer": states}, checkpoint_id=str(mine))
        set_state_dict(other, adam_of_other, model_state_dict=weights, optim_state_dict=states)
        module, optimizer = ours(seed + 1, 1)
        fsdp.load_checkpoint(of_torch, module, optimizer)
        return (
            train(other, adam_of_other, after(seed), STEPS),
            train(module, optimizer, after(seed), STEPS),
        )

    launch(write, world_size=writers, backend="gloo")
    alone = without_a_break(seed)
    for of_theirs, of_ours in launch(read, world_size=readers, backend="gloo"):
        assert of_theirs == pytest.approx(alone, rel=1e-4)
        assert of_ours == pytest.approx(alone, rel=1e-4)


def test_formats_of_fully_shard_that_do_not_fit(tmp_path: Path, seed: int) -> None:
    """A parameter without a state, which torch asks for, and the flat form of an optimizer's state."""
    folder, flat = tmp_path / "checkpoint", tmp_path / "flat"

    def body() -> None:
        module, optimizer = ours(seed, 1)
        frozen_by_chance = [p for name, p in module.named_parameters() if name != "5.bias"]
        x, y = next(batches(seed))
        (module(x) - y).square().mean().backward()
        optimizer.param_groups[0]["params"] = frozen_by_chance
        optimizer.step()
        optimizer.param_groups[0]["params"] = list(module.parameters())
        fsdp.save_checkpoint(folder, module, optimizer)

        other, adam_of_other = theirs(seed)
        weights, states = stored(other, adam_of_other)
        nested = {"model": weights, "optimizer": states}
        with pytest.raises(dcp.CheckpointException, match=r"Missing key.*5\.bias"):
            dcp.load(nested, checkpoint_id=str(folder))
        dcp.load(
            nested, checkpoint_id=str(folder), planner=DefaultLoadPlanner(allow_partial_load=True)
        )
        full = fsdp.full_state_dict(module, optimizer)
        assert torch.equal(weights["5.bias"].full_tensor(), full["model"]["5.bias"])
        first = states["state"]["5.weight"]["exp_avg"].full_tensor()
        assert torch.equal(first, full["optimizer"]["state"]["5.weight"]["exp_avg"])

        options = StateDictOptions(flatten_optimizer_state_dict=True)
        weights, states = get_state_dict(other, adam_of_other, options=options)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=str(flat))
        with pytest.raises(ValueError, match="no optimizer's state under the name"):
            fsdp.load_checkpoint(flat, module, optimizer)

    launch(body, world_size=2, backend="gloo")


# ---- shards of units


class Unit:
    """Parameters in a row, of which this rank owns a shard; zeros fill up the last one."""

    def __init__(self, params: list[nn.Parameter]):
        self.params, self.n, self.rank = params, dist.get_world_size(), dist.get_rank()
        row = torch.cat([param.detach().flatten() for param in params])
        row = nn.functional.pad(row, (0, -len(row) % self.n))
        self.shard = nn.Parameter(row.chunk(self.n)[self.rank].clone())

    def gather(self) -> None:
        row = torch.empty(self.n * self.shard.numel())
        dist.all_gather_into_tensor(row, self.shard.detach())
        for param in self.params:
            param.data, row = row[: param.numel()].view(param.shape), row[param.numel() :]

    def reduce(self) -> None:
        row = torch.cat([param.grad.flatten() for param in self.params if param.grad is not None])
        row = nn.functional.pad(row, (0, self.n * self.shard.numel() - len(row)))
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(self.shard.grad, row / self.n)
        for param in self.params:
            param.grad, param.data = None, torch.zeros(()).expand(param.shape)


class ModuleOfUnits(nn.Module):
    """The least that has a shard for each unit: gathers before forward, reductions after backward."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        params = list(module.parameters())
        self.units = [Unit(params[:3]), Unit(params[3:])]
        for param in params:
            param.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, _: Tensor) -> None:
        if all(param.grad is not None for unit in self.units for param in unit.params):
            for unit in self.units:
                unit.reduce()

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            unit.gather()
        return self.module(x)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter([unit.shard for unit in self.units])


def of_units(seed: int, *shape: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = ModuleOfUnits(model(seed, *shape))
    return module, adam(module.parameters())


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 8), (3, 1)])
def test_shards_of_units_and_of_parameters_read_each_other(
    writers: int, readers: int, tmp_path: Path, seed: int
) -> None:
    of_params, of_rows = tmp_path / "params", tmp_path / "rows"

    def write() -> None:
        for folder, make in ((of_params, ours), (of_rows, of_units)):
            module, optimizer = make(seed, 1)
            train(module, optimizer, batches(seed), STEPS)
            fsdp.save_checkpoint(folder, module, optimizer)

    def read() -> list[Losses]:
        found = []
        for make, folder in ((ours, of_rows), (of_units, of_params), (of_units, of_rows)):
            module, optimizer = make(seed + 1, 1)
            fsdp.load_checkpoint(folder, module, optimizer)
            full = fsdp.full_state_dict(module, optimizer)
            found.append(train(module, optimizer, after(seed), STEPS))
            fsdp.load_full_state_dict(module, full, optimizer)  # back again
            found.append(train(module, optimizer, after(seed), STEPS))
        return found

    launch(write, world_size=writers, backend="gloo")
    alone = without_a_break(seed)
    for found in launch(read, world_size=readers, backend="gloo"):
        for losses in found:
            assert losses == pytest.approx(alone, rel=1e-4)


class Blocks(nn.Module):
    """Layers as blocks, a frozen parameter, and a root with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))
        self.blocks[1].bias.requires_grad_(False)
        self.last = nn.Linear(7, 5, bias=False)
        self.scale = Scale(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.scale(self.last(x))


@pytest.mark.skipif(not hasattr(fsdp, "PrefetchedModule"), reason="there is no PrefetchedModule")
@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (4, 1), (2, 3)])
def test_prefetched_modules_and_zero3_modules_read_each_other(
    writers: int, readers: int, tmp_path: Path, seed: int
) -> None:
    of_params, of_units = tmp_path / "params", tmp_path / "units"
    generator = torch.Generator().manual_seed(seed)
    data = [
        (torch.randn(4, 5, generator=generator), torch.randn(4, 5, generator=generator))
    ] * STEPS

    def made(kind: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        module = getattr(fsdp, kind, zero.Zero3Module)(Blocks())
        return module, adam(module.parameters())

    def write() -> list[Losses]:
        losses = []
        for folder, kind in ((of_params, "Zero3Module"), (of_units, "PrefetchedModule")):
            module, optimizer = made(kind, seed)
            train(module, optimizer, data, STEPS)
            fsdp.save_checkpoint(folder, module, optimizer)
            losses.append(train(module, optimizer, data, STEPS))
        return losses

    def read() -> list[Losses]:
        losses = []
        for folder, kind in (
            (of_units, "Zero3Module"),
            (of_params, "PrefetchedModule"),
            (of_units, "PrefetchedModule"),
        ):
            module, optimizer = made(kind, seed + 1)
            fsdp.load_checkpoint(folder, module, optimizer)
            full = fsdp.full_state_dict(module, optimizer)
            losses.append(train(module, optimizer, data, STEPS))
            fsdp.load_full_state_dict(module, full, optimizer)  # back again
            losses.append(train(module, optimizer, data, STEPS))
        return losses

    written = launch(write, world_size=writers, backend="gloo")
    for found in [*written, *launch(read, world_size=readers, backend="gloo")]:
        for losses in found:
            assert losses == pytest.approx(written[0][0], rel=1e-4)


# ---- what a module may hold


class Shared(nn.Module):
    """Tied weights, a frozen parameter, one that no step uses, and an odd number of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.body = nn.Linear(5, 5)
        self.body.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 2)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(tokens))))


def shared(seed: int, lr: float = 0.1) -> tuple[zero.Zero3Module, torch.optim.Optimizer]:
    """With two groups of parameters, and momentum in one of them alone."""
    torch.manual_seed(seed)
    module = zero.Zero3Module(Shared())
    named = dict(module.named_parameters())
    trained = [param for name, param in named.items() if name != "body.weight"]
    groups = [
        {"params": trained, "momentum": 0.9},
        {"params": [named["body.weight"]], "lr": 2 * lr},
    ]
    return module, torch.optim.SGD(groups, lr=lr)


def steps_of_shared(
    module: nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int = 2
) -> Losses:
    tokens = torch.randint(7, (4, 6), generator=torch.Generator().manual_seed(seed))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module(tokens).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("form", ["sharded", "full"])
def test_tied_frozen_and_unused_parameters_and_groups_of_options(
    form: str, tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "checkpoint"

    def write() -> tuple[dict, Losses]:
        module, optimizer = shared(seed)
        steps_of_shared(module, optimizer, seed)
        fsdp.save_checkpoint(folder, module, optimizer)
        state = fsdp.full_state_dict(module, optimizer)
        return state, steps_of_shared(module, optimizer, seed)

    def read(state: dict) -> tuple[Losses, list[float]]:
        module, optimizer = shared(seed + 1, lr=0.7)
        if form == "full":
            fsdp.load_full_state_dict(module, state, optimizer)
        else:
            fsdp.load_checkpoint(folder, module, optimizer)
        options = [group["lr"] for group in optimizer.param_groups]
        return steps_of_shared(module, optimizer, seed), options

    state, losses = launch(write, world_size=3, backend="gloo")[0]
    assert state["model"].keys() == Shared().state_dict().keys()
    assert state["optimizer"]["state"].keys() == {"embedding.weight"}  # momentum of used ones
    for found, options in launch(read, state, world_size=2, backend="gloo"):
        assert found == pytest.approx(losses, rel=1e-5)
        assert options == [0.1, 0.2]


def test_replicas_are_written_once(tmp_path: Path, seed: int) -> None:
    """Two islands of two ranks write; three ranks without islands read."""
    folder = tmp_path / "checkpoint"

    def write() -> Losses:
        islands, _ = fsdp.hybrid_groups(4, 2)
        groups = [dist.new_group(ranks) for ranks in islands]
        group: Any = groups[dist.get_rank() // 2]
        module = zero.Zero3Module(model(seed), group=group)
        optimizer = adam(module.parameters())
        train(module, optimizer, batches(seed), STEPS)
        fsdp.save_checkpoint(folder, module, optimizer, group)
        return train(module, optimizer, after(seed), STEPS)

    def read() -> Losses:
        module, optimizer = ours(seed + 1)
        fsdp.load_checkpoint(folder, module, optimizer)
        return train(module, optimizer, after(seed), STEPS)

    alone = without_a_break(seed)
    for losses in [*launch(write, world_size=4, backend="gloo"), *launch(read, world_size=3)]:
        assert losses == pytest.approx(alone, rel=1e-4)
    written = sum(file.stat().st_size for file in folder.glob("*.distcp"))
    numbers = 3 * sum(param.numel() for param in model(seed).parameters())
    metadata = dcp.FileSystemReader(str(folder)).read_metadata()
    held = sum(
        chunk.sizes.numel()
        for known in metadata.state_dict_metadata.values()
        for chunk in getattr(known, "chunks", ())
    )
    buffers_and_steps = 1 + len(list(model(seed).parameters()))
    assert held == numbers + buffers_and_steps
    assert written > 4 * numbers


def test_each_rank_writes_its_own_part_and_no_tensor_travels(tmp_path: Path) -> None:
    folder, width = tmp_path / "checkpoint", 200

    def body() -> tuple[int, int]:
        module = zero.Zero3Module(nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)))
        optimizer = adam(module.parameters())
        module(torch.ones(1, width)).sum().backward()
        optimizer.step()
        dist.barrier()
        fsdp.save_checkpoint(folder, module, optimizer)
        return len(list(module.parameters())), sum(p.numel() for p in module.parameters())

    run = launch(body, world_size=4, backend="gloo")
    files = sorted(file.stat().st_size for file in folder.glob("*.distcp"))
    own = 3 * 4 * run[0][1]  # weights, and Adam's two states
    assert len(files) == 4 and all(own < size < 1.25 * own for size in files)
    for rank in range(4):
        operations = run.ledger.operations(rank)
        began = next(k for k, each in enumerate(operations) if each.op == "barrier")
        largest = max(each.nbytes for each in operations[began:])
        assert largest < own / 4


# ---- refused


def test_other_models_and_optimizers_are_refused(tmp_path: Path, seed: int) -> None:
    folder, without = tmp_path / "checkpoint", tmp_path / "without"

    def refuse(kind: Any, says: str, call: Any) -> None:
        with pytest.raises(kind) as error:
            call()
        assert says in str(error.value), str(error.value)

    def body() -> None:
        module, optimizer = ours(seed)
        train(module, optimizer, batches(seed), 1)
        fsdp.save_checkpoint(folder, module, optimizer)
        fsdp.save_checkpoint(without, module)
        refuse(
            ValueError,
            "no optimizer's state",
            lambda: fsdp.load_checkpoint(without, module, optimizer),
        )
        full = fsdp.full_state_dict(module, optimizer)

        other = zero.Zero3Module(nn.Sequential(nn.Conv1d(3, 4, 2)))
        failed = dcp.CheckpointException
        refuse(
            failed, "it was saved from another model", lambda: fsdp.load_checkpoint(folder, other)
        )
        refuse(ValueError, "names do not fit", lambda: fsdp.load_full_state_dict(other, full))
        narrow = {**full["model"], "0.bias": torch.zeros(2)}
        refuse(
            ValueError, "0.bias has the shape (2,); (5,) is expected",
            lambda: fsdp.load_full_state_dict(module, {"model": narrow}),
        )  # fmt: skip

        few = adam(list(module.parameters())[1:])
        refuse(
            ValueError, "0.weight: in a group of the state or of this optimizer, but not in both",
            lambda: fsdp.load_checkpoint(folder, module, few),
        )  # fmt: skip
        halves = torch.optim.AdamW([{"params": [p]} for p in module.parameters()])
        refuse(
            ValueError, "1 parameter groups, this optimizer 7",
            lambda: fsdp.load_full_state_dict(module, full, halves),
        )  # fmt: skip
        foreign = adam([nn.Parameter(torch.zeros(1))])
        refuse(
            ValueError,
            "not one of the module's",
            lambda: fsdp.save_checkpoint(folder, module, foreign),
        )

        plain = nn.Linear(2, 2)
        refuse(TypeError, "a Linear has no `.module`", lambda: fsdp.save_checkpoint(folder, plain))
        twice = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        refuse(ValueError, "names do not fit", lambda: fsdp.save_checkpoint(folder, twice))

        optimizer.state[next(iter(optimizer.state))]["row"] = torch.zeros(3)
        refuse(
            ValueError,
            "can be cut and joined",
            lambda: fsdp.save_checkpoint(folder, module, optimizer),
        )

    launch(body, world_size=2, backend="gloo")


def test_a_group_that_holds_a_parameter_twice_is_refused() -> None:
    def body() -> None:
        islands, _ = fsdp.hybrid_groups(2, 1)
        groups = [dist.new_group(ranks) for ranks in islands]
        group: Any = groups[dist.get_rank()]
        module = zero.Zero3Module(nn.Linear(3, 2), group=group)
        with pytest.raises(ValueError, match="the ranks hold 12 elements of weight, which has 6"):
            layout_of(module)
        assert layout_of(module, group).pieces["weight"].values.numel() == 6

    launch(body, world_size=2, backend="gloo")
