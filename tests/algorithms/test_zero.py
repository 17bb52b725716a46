"""ZeRO's three stages against one process in float64: values, bytes, memory, saving and refusals."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import itertools
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from course_lib import collectives, device, facts, launch, zero
from tests import gpu_like


def test_a_sharded_momentum_trains_as_one_process() -> None:
    torch.manual_seed(0)
    model, samples = nn.Linear(3, 2).double(), torch.randn(4, 3).double()

    def job() -> torch.Tensor:
        optimizer = zero.Zero1Optimizer(model.parameters(), SGD, lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(samples.chunk(2)[dist.get_rank()]).square().mean().backward()
            optimizer.step()
        return model.weight.detach()

    weights = launch(job, world_size=2, backend="gloo")
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()
    for weight in weights:
        torch.testing.assert_close(weight, model.weight.detach())


RequireRanks = Callable[[int], None]
WORLDS = [1, 2, 3, 4, 8]
STEPS, MICROBATCHES = 4, 2
RING = {"reduce_scatter": collectives.reduce_scatter, "all_gather": collectives.all_gather}
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.3}),
}
FOLDER = Path(inspect.getfile(zero)).parent


class Block(nn.Module):
    """A residual block: its input is used twice."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class Traps(nn.Module):
    """Tied, frozen, unused, rarely used, used again, empty and 0-dimensional parameters; buffers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList([Block(6) for _ in range(3)])
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.sometimes = nn.Linear(6, 6)
        self.unused = nn.Parameter(torch.randn(7))
        self.scale = nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.empty(0, 3))

    def forward(self, tokens: torch.Tensor, detour: bool) -> dict[str, torch.Tensor]:
        x = self.frozen(self.embedding(tokens))
        for i in (0, 1, 1, 2, 0):
            x = self.blocks[i](x)
        if detour:
            x = x + self.sometimes(x)
        return {"logits": F.linear(x, self.embedding.weight) * self.scale}


def make(seed: int, rank: int, kind: Callable[[], nn.Module] = Traps) -> nn.Module:
    """The rank's own initial values."""
    torch.manual_seed(seed + rank)
    return kind().double().to(device())


def loss_of(model: nn.Module, seed: int, rank: int, n: int, step: int, part: int) -> torch.Tensor:
    """The loss on the rank's own data. In odd steps the last rank takes the detour, in even steps no rank."""
    generator = torch.Generator().manual_seed(seed + 1000 * step + 10 * rank + part)
    tokens = torch.randint(0, 11, (2 + rank % 2, 5), generator=generator).to(device())
    logits = model(tokens, step % 2 == 1 and rank == n - 1)["logits"]
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten().roll(1))


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """On the CPU, as Zero3Module gives them."""
    if isinstance(model, zero.Zero3Module):
        return model.full_state_dict()
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def shard(
    stage: int, model: nn.Module, optimizer: str, **options: object
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The module and its optimizer, sharded as the stage says."""
    cls, defaults = OPTIMIZERS[optimizer]
    if stage == 3:
        wrapped = zero.Zero3Module(model, **options)
        return wrapped, cls(wrapped.parameters(), **defaults)
    if stage == 2:
        options = {"bucket_bytes": 400, **options}
    kind = (zero.Zero1Optimizer, zero.Zero2Optimizer)[stage - 1]
    return model, kind(model.parameters(), cls, **options, **defaults)


def train(
    stage: int, optimizer_name: str, seed: int, no_sync: bool = False, **options: object
) -> list[dict[str, torch.Tensor]]:
    """The weights after each step."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, optimizer = shard(stage, make(seed, rank), optimizer_name, **options)
    synchronizer = model if stage == 3 else optimizer
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(MICROBATCHES):
            if no_sync and part < MICROBATCHES - 1:
                with synchronizer.no_sync():
                    loss_of(model, seed, rank, n, step, part).backward()
            else:
                loss_of(model, seed, rank, n, step, part).backward()
        optimizer.step()
        seen.append(weights(model))
    return seen


def alone(n: int, optimizer_name: str, seed: int) -> list[dict[str, torch.Tensor]]:
    """The same training in one process, on the data of all ranks."""
    model = make(seed, 0)
    cls, defaults = OPTIMIZERS[optimizer_name]
    optimizer = cls(model.parameters(), **defaults)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part, rank in itertools.product(range(MICROBATCHES), range(n)):
            (loss_of(model, seed, rank, n, step, part) / n).backward()
        optimizer.step()
        seen.append(weights(model))
    return seen


def assert_same(found: list, wanted: list, *case: object) -> None:
    for step, (here, there) in enumerate(zip(found, wanted, strict=True)):
        assert here.keys() == there.keys()
        for name in there:
            torch.testing.assert_close(
                here[name], there[name], rtol=1e-9, atol=1e-11,
                msg=lambda text, at=(*case, step, name): f"{at}: {text}",
            )  # fmt: skip


# ---- values

CASES = {  # name: (stage, options)
    "1": (1, {}),
    "1, ring": (1, {**RING, "no_sync": True}),
    "2": (2, {}),
    "2, ring, one bucket": (2, {**RING, "bucket_bytes": 1 << 30}),
    "3": (3, {}),
    "3, ring, no_sync": (3, {**RING, "no_sync": True}),
    "3, units within units": (3, {"units": [Block, nn.LayerNorm]}),
}


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_trajectory_is_that_of_one_process(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """Own initial values and own data on every rank; SGD shows a wrong scale, AdamW a wrong decay."""
    require_ranks(world_size)
    both = world_size == 3 and backend != gpu_like.NAME  # there it takes twice as long
    optimizers = list(OPTIMIZERS) if both else ["SGD"]

    def body() -> dict:
        return {
            (case, optimizer): train(stage, optimizer, seed, **options)
            for case, (stage, options) in CASES.items()
            for optimizer in optimizers
        }

    found = launch(body, world_size=world_size, backend=backend, timeout=240)
    wanted = {name: alone(world_size, name, seed) for name in optimizers}
    for rank, results in enumerate(found):
        for (case, optimizer), seen in results.items():
            assert_same(seen, wanted[optimizer], case, optimizer, "rank", rank)


class Plain(nn.Module):
    """Linear layers of one size, so that memory and bytes can be counted."""

    def __init__(self, width: int = 16, layers: int = 3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_the_values_are_those_of_pytorchs_own(seed: int, backend: str, require_ranks: RequireRanks):
    """ZeroRedundancyOptimizer under DDP, and fully_shard, on the same data."""
    require_ranks(2)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        generator = torch.Generator().manual_seed(seed + dist.get_rank())
        for _ in range(STEPS):
            optimizer.zero_grad()
            x = torch.randn(4, 16, generator=generator).double().to(device())
            model(x).square().sum().backward()
            optimizer.step()

    def body(sharded: bool) -> float:
        warnings.simplefilter("ignore", FutureWarning)
        results = []
        for stage in (1, 2, 3):
            model, optimizer = shard(stage, make(seed, 0, Plain), "AdamW")
            steps(model, optimizer)
            results.append(weights(model))
        model = make(seed, 0, Plain)
        cls, defaults = OPTIMIZERS["AdamW"]
        theirs = ZeroRedundancyOptimizer(model.parameters(), cls, **defaults)
        steps(nn.parallel.DistributedDataParallel(model), theirs)
        results.append(weights(model))
        if sharded:
            model = make(seed, 0, Plain)
            for layer in model.layers:
                fully_shard(layer)
            fully_shard(model)
            steps(model, cls(model.parameters(), **defaults))
            state = model.state_dict().items()
            results.append({k: v.full_tensor().detach().cpu() for k, v in state})
        first = results.pop(0)
        return max(float((one[k] - first[k]).abs().max()) for one in results for k in first)

    sharded = backend != gpu_like.NAME  # C++ makes fully_shard's buffers, without a mark
    assert max(launch(body, sharded, world_size=2, backend=backend, timeout=120)) < 1e-10


def test_groups_schedulers_and_several_dtypes(seed: int):
    """Options of each group, a learning rate that falls, float32 beside float64, more ranks than elements."""

    def groups(model: nn.Module) -> list[dict]:
        named = list(model.named_parameters())
        return [
            {"params": [p for name, p in named if "weight" in name]},
            {"params": [(name, p) for name, p in named if "bias" in name], "weight_decay": 0.0},
        ]

    def mixed() -> nn.Module:
        model = make(seed, 0, lambda: Plain(2, 3))
        model.layers[1].float()
        return model

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for layer in model.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x.square().sum()

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(STEPS):
            optimizer.zero_grad()
            forward(model, torch.full((3, 2), 0.1 * step + 0.2, dtype=torch.float64)).backward()
            optimizer.step()
            schedule.step()
        return weights(model)

    def body() -> list[dict]:
        cls, defaults = OPTIMIZERS["AdamW"]
        results = []
        for kind in (zero.Zero1Optimizer, zero.Zero2Optimizer):
            model = mixed()
            results.append(steps(model, kind(groups(model), cls, **defaults)))
        return results

    model = mixed()
    plain = [
        {**group, "params": [p[1] if isinstance(p, tuple) else p for p in group["params"]]}
        for group in groups(model)
    ]
    cls, defaults = OPTIMIZERS["AdamW"]
    wanted = steps(model, cls(plain, **defaults))
    for results in launch(body, world_size=8, backend="gloo"):
        for found in results:
            for name in wanted:
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_sixteen_bits_are_updated_through_a_float32_copy():
    """Steps of 1e-4 on weights of 1 vanish in bfloat16 one by one, not in the copy."""

    def body() -> list[torch.Tensor]:
        results = []
        for kind in (zero.Zero1Optimizer, zero.Zero2Optimizer):
            weight = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
            optimizer = kind([weight], torch.optim.SGD, lr=1e-4)
            for _ in range(100):
                optimizer.zero_grad()
                (weight * (dist.get_rank() + 0.5)).sum().backward()  # the mean is 1
                optimizer.step()
            results.append(weight.detach().float())
        return results

    for found in launch(body, world_size=2, backend="gloo"):
        for weight in found:
            torch.testing.assert_close(weight, torch.full((5,), 0.99), rtol=0, atol=0.004)


# ---- bytes


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bytes_are_those_of_the_closed_form(stage: int, world_size: int):
    """After construction: reduce-scatters and all-gathers only, to the byte, with padding."""
    width, layers = 5, 3
    unit = width * width + width
    sizes = [unit * layers] if stage == 1 else [unit] * layers

    def body(microbatches: int, no_sync: bool) -> None:
        options = {"bucket_bytes": unit * 8} if stage == 2 else {}
        model, optimizer = shard(stage, Plain(width, layers).double(), "AdamW", **options)
        dist.barrier()
        for part in range(microbatches):
            if no_sync and part < microbatches - 1:
                with model.no_sync():
                    model(torch.ones(2, width).double()).sum().backward()
            else:
                model(torch.ones(2, width).double()).sum().backward()
        optimizer.step()

    for microbatches, no_sync in [(1, False), (3, False), (3, True)]:
        if no_sync and stage != 3:
            continue
        ledger = launch(body, microbatches, no_sync, world_size=world_size, backend="gloo").ledger
        wanted = facts.zero_bytes(sizes, world_size, 8, stage, microbatches, no_sync)
        for rank in range(world_size):
            operations = ledger.operations(rank)
            begin = next(i for i, one in enumerate(operations) if one.op == "barrier") + 1
            assert {one.op for one in operations[begin:]} == {"reduce_scatter", "all_gather"}
            assert sum(one.bytes_sent for one in operations[begin:]) == pytest.approx(wanted)


def test_zero2_sends_its_first_bucket_while_backward_runs():
    def body() -> list[str]:
        events: list[str] = []

        def logged(output: torch.Tensor, whole: torch.Tensor, group: object) -> None:
            events.append("sent")
            collectives.reduce_scatter(output, whole, group)

        model = Plain()
        model.layers[0].register_full_backward_pre_hook(lambda *_: events.append("first layer"))
        optimizer = zero.Zero2Optimizer(
            model.parameters(), torch.optim.SGD, bucket_bytes=2000, reduce_scatter=logged, lr=0.1
        )
        model(torch.ones(2, 16)).sum().backward()
        assert all(p.grad is None for p in model.parameters())
        optimizer.step()
        return events

    for events in launch(body, world_size=2, backend="gloo"):
        assert events == ["sent", "sent", "first layer", "sent"]


# ---- memory


def resident(known: set[int]) -> int:
    """Bytes of all tensors that Python or a parameter's .grad can reach, but those in `known`, each once."""
    storages = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor):
            for tensor in (one, one.grad if one.is_leaf else None):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    storages[storage._cdata] = storage.nbytes()
    return sum(nbytes for key, nbytes in storages.items() if key not in known)


def storages_before() -> set[int]:
    return {
        one.untyped_storage()._cdata
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor)
    }


@pytest.mark.parametrize(
    ("stage", "dtype"),  # stage 3 keeps shards in the module's own dtype, without a copy in float32
    [
        (1, torch.float32),
        (1, torch.bfloat16),
        (2, torch.float32),
        (2, torch.bfloat16),
        (3, torch.float32),
    ],
)
def test_resident_bytes_are_those_of_the_formula(stage: int, dtype: torch.dtype):
    """Before, during and after the step; `.grad` of other tensors than leaves is never set."""
    width, layers = 128, 12
    unit = width * width + width

    def body() -> dict[str, int]:
        known, peak = storages_before(), []
        model = Plain(width, layers).to(dtype)
        options = {"bucket_bytes": unit * dtype.itemsize} if stage == 2 else {}
        model, optimizer = shard(stage, model, "AdamW", **options)
        inner = model.module if stage == 3 else model
        for layer in inner.layers:
            layer.register_forward_pre_hook(lambda *_: peak.append(resident(known)))
            layer.register_full_backward_pre_hook(lambda *_: peak.append(resident(known)))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, width, dtype=dtype)).sum().backward()
            optimizer.step()
        return {"after": resident(known), "peak": max(peak)}

    if stage == 3 and dtype == torch.bfloat16:
        pytest.skip(
            "stage 3 keeps its shards in the module's own dtype: no float32 copy to measure"
        )
    precision = facts.FLOAT32 if dtype == torch.float32 else facts.MIXED
    for found in launch(body, world_size=4, backend="gloo"):
        wanted = facts.zero_memory(unit * layers, 4, stage, precision=precision)
        assert found["after"] == pytest.approx(wanted, rel=0.02)
        # The room beside it: two full buckets of gradients; two units of weights and of gradients.
        room = {1: 0, 2: 2, 3: 4}[stage] * unit * dtype.itemsize
        assert found["peak"] <= 1.02 * wanted + room


def test_freed_parameters_hold_no_memory_and_do_not_crash():
    """After a forward in eval, one under no_grad, one that fails, and a backward."""

    def body() -> list[str]:
        problems: list[str] = []
        model = make(0, 0, Plain).float()
        wanted = model(torch.ones(2, 16)).detach()
        wrapped = zero.Zero3Module(model)
        flats = [unit.flat for unit in wrapped.units]

        def check(when: str) -> None:
            if any(flat.untyped_storage().nbytes() for flat in flats):
                problems.append(f"{when}: parameters are still there")
            if any(
                not p.isnan().all() or p.shape not in {(16, 16), (16,)} for p in model.parameters()
            ):
                problems.append(f"{when}: a freed parameter shows values")

        check("at first")
        with torch.no_grad():
            torch.testing.assert_close(wrapped(torch.ones(2, 16)), wanted)
        check("no_grad")
        torch.testing.assert_close(wrapped.eval()(torch.ones(2, 16)), wanted)
        check("eval")
        with pytest.raises(RuntimeError, match="shapes"):
            wrapped(torch.ones(2, 3))
        check("a failed forward")
        first, second = wrapped(torch.ones(2, 16)).sum(), wrapped(torch.ones(2, 16)).sum()
        first.backward(retain_graph=True)
        check("backward")
        once = [p.grad.clone() for p in wrapped.parameters() if p.numel()]
        second.backward()
        first.backward()
        for p, grad in zip((p for p in wrapped.parameters() if p.numel()), once, strict=True):
            torch.testing.assert_close(p.grad, 3 * grad)
        check("the last backward")
        return problems

    assert list(launch(body, world_size=2, backend="gloo")) == [[], []]


@pytest.mark.parametrize("stage", [2, 3])
def test_checkpoints(stage: int):
    """Recomputing a unit in backward gathers it once more; a backward inside another one is refused."""

    def body() -> None:
        grads = []
        for again in (False, True):
            torch.manual_seed(0)
            model, optimizer = shard(stage, Plain().double(), "SGD")
            inner = model.module if stage == 3 else model

            def forward(x: torch.Tensor, layers=inner.layers, again=again) -> torch.Tensor:
                for layer in layers:
                    x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
                return x

            inner.forward = forward
            model(torch.ones(2, 16).double()).sum().backward()
            optimizer.step()
            grads.append(weights(model))
        assert_same(grads[1:], grads[:1])
        first, second, _ = inner.layers
        inner.forward = lambda x: second(checkpoint(first, x, use_reentrant=True)).sum()
        with pytest.raises(RuntimeError, match="use_reentrant=False"):
            model(torch.ones(2, 16).double().requires_grad_()).backward()

    launch(body, world_size=2, backend="gloo")


# ---- offload


def test_offload_changes_no_value_and_keeps_all_state_in_files(seed: int, tmp_path: Path):
    def body() -> dict:
        found = {}
        for stage in (1, 2, 3):
            for where in ("cpu", str(tmp_path / "files"), zero.MappedFile(tmp_path)):
                found[stage, str(where)[:4]] = train(stage, "AdamW", seed, offload=where)
        for stage in (1, 2):
            _, optimizer = shard(stage, make(seed, 0), "AdamW", offload=str(tmp_path))
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = torch.ones_like(p)
            optimizer.optimizer.step()
            optimizer.step()
            tensors = [v for state in optimizer.state.values() for v in state.values()]
            tensors += [p.detach() for group in optimizer.param_groups for p in group["params"]]
            assert all(t.untyped_storage().filename for t in tensors if t.dim() and t.numel()), (
                "a shard or a state is not in a file"
            )
        assert not any(path.is_file() for path in tmp_path.rglob("*")), "a file has a name left"
        return found

    wanted = alone(2, "AdamW", seed)
    for results in launch(body, world_size=2, backend="gloo", timeout=120):
        assert len(results) == 9
        for case, seen in results.items():
            assert_same(seen, wanted, *case)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("n", [1, 2])
def test_gradients_are_forgotten_in_either_way(stage: int, n: int, seed: int) -> None:
    """set_to_none=False keeps the tensors, as torch.optim does, and the next step is the same."""

    def body(set_to_none: bool) -> dict[str, torch.Tensor]:
        rank = dist.get_rank()
        model, optimizer = shard(stage, make(seed, rank), "SGD")
        for number in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(model, seed, rank, n, 1, number).backward()
            optimizer.step()
        return weights(model)

    kept, gone = (launch(body, way, world_size=n, backend="gloo") for way in (False, True))
    assert_same(kept, gone, "set_to_none")


# ---- saving


def test_state_of_a_parameter_without_elements_is_merged() -> None:
    """Adagrad makes state for it with the optimizer, and needs it when it loads."""

    def make_parameters() -> list[nn.Parameter]:
        return [nn.Parameter(torch.ones(5)), nn.Parameter(torch.empty(0, 3))]

    def body() -> dict:
        return zero.Zero1Optimizer(make_parameters(), torch.optim.Adagrad).state_dict()

    params = make_parameters()
    alone = torch.optim.Adagrad(params)
    merged = zero.merge_state_dicts(list(launch(body, world_size=3, backend="gloo")))
    assert merged["state"].keys() == alone.state_dict()["state"].keys()
    alone.load_state_dict(merged)
    assert alone.state[params[1]]["sum"].shape == (0, 3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_n_ranks_save_m_ranks_and_one_process_load(stage: int, seed: int):
    """3 ranks take two steps and save; 2 ranks, 5 ranks and torch.optim go on as without a break."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, seed, 0, 2, number, 0).backward()  # the same data on all ranks
        optimizer.step()

    def begin() -> tuple[dict, dict]:
        model, optimizer = shard(stage, make(seed, 0), "AdamW")
        for number in range(2):
            step(model, optimizer, number)
        if stage == 3:
            return weights(model), model.optimizer_state_dict(optimizer)
        return weights(model), optimizer.state_dict()

    def go_on(saved: dict, state: dict) -> dict:
        model, optimizer = shard(stage, make(seed, 7), "AdamW")
        if stage == 3:
            model.load_full_state_dict(saved)
            model.load_optimizer_state_dict(optimizer, state)
        else:
            model.load_state_dict(saved)
            optimizer.load_state_dict(state)
        for number in range(2, 4):
            step(model, optimizer, number)
        return weights(model)

    found = launch(begin, world_size=3, backend="gloo")
    saved = found[0][0]
    with pytest.raises(ValueError, match="each of the 3 ranks that saved is needed once"):
        zero.merge_state_dicts([state for _, state in found[:2]])
    merged = zero.merge_state_dicts([state for _, state in reversed(found)])

    model = make(seed, 1)
    model.load_state_dict(saved)
    cls, defaults = OPTIMIZERS["AdamW"]
    optimizer = cls(model.parameters(), **defaults)
    optimizer.load_state_dict(copy.deepcopy(merged))  # torch goes on with the very tensors
    for number in range(2, 4):
        step(model, optimizer, number)
    wanted = weights(model)
    straight = alone_on_rank_0(seed, 4)
    assert_same([wanted], [straight], "one process")
    for n in (2, 5):
        for found_here in launch(go_on, saved, merged, world_size=n, backend="gloo"):
            assert_same([found_here], [wanted], n, "ranks")

    def same_rank_and_other_rank() -> None:
        model, optimizer = shard(stage, make(seed, 0), "AdamW")
        save = optimizer.state_dict if stage < 3 else lambda: model.optimizer_state_dict(optimizer)
        load = (
            optimizer.load_state_dict
            if stage < 3
            else lambda state: model.load_optimizer_state_dict(optimizer, state)
        )
        step(model, optimizer, 0)
        load(save())
        with pytest.raises(ValueError, match="join those of all ranks with merge_state_dicts"):
            load({**save(), "rank": 1 - dist.get_rank()})

    launch(same_rank_and_other_rank, world_size=2, backend="gloo")


def alone_on_rank_0(seed: int, steps: int) -> dict[str, torch.Tensor]:
    model = make(seed, 0)
    cls, defaults = OPTIMIZERS["AdamW"]
    optimizer = cls(model.parameters(), **defaults)
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, seed, 0, 2, number, 0).backward()
        optimizer.step()
    return weights(model)


# ---- shards and formulas


def test_memory_of_seven_billion_parameters_on_eight_ranks():
    found = [zero.memory_per_rank(7e9, 8, stage) / 1e9 for stage in range(4)]
    assert found == pytest.approx([112, 38.5, 26.25, 14])
    figure_1 = [facts.zero_memory(7.5e9, 64, stage) / 1e9 for stage in range(4)]
    assert figure_1 == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)
    for stage, offload, n in itertools.product(range(4), (False, True), (1, 3, 64)):
        ours = zero.memory_per_rank(1e9, n, stage, offload)
        assert ours == pytest.approx(facts.zero_memory(1e9, n, stage, offload))
    for wrong in [(1, 4, 4), (1, 0, 1), (-1, 2, 1)]:
        with pytest.raises(ValueError, match=r"stage is|n is at least 1"):
            zero.memory_per_rank(*wrong)


def test_volumes():
    assert [facts.zero_volume(stage) for stage in range(4)] == [2, 2, 2, 3]
    assert [facts.zero_volume(stage, 5) for stage in range(4)] == [10, 2, 6, 15]
    assert [facts.zero_volume(stage, 5, no_sync=True) for stage in (0, 1, 3)] == [2, 2, 11]
    with pytest.raises(ValueError, match="no no_sync"):
        facts.zero_volume(2, 5, no_sync=True)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 50])
def test_flat_shards_hold_everything_once_and_zeros_at_the_end(n: int, seed: int):
    torch.manual_seed(seed)
    params = [torch.randn(3, 4), torch.randn(()), torch.randn(0, 2), torch.randn(5, 2).t()]
    shards = zero.flatten_and_shard(params, n)
    assert len(shards) == n and len({one.shape for one in shards}) == 1
    whole = torch.cat(shards)
    assert torch.equal(whole[:23], torch.cat([p.reshape(-1) for p in params]))
    assert len(whole) == -(-23 // n) * n and not whole[23:].any()
    assert [one.numel() for one in zero.flatten_and_shard([torch.ones(0)], n)] == [0] * n


# ---- what is refused


def test_bad_input_is_refused_in_a_sentence():
    def refuse(kind: type[Exception], match: str, call: Callable[[], object]) -> None:
        with pytest.raises(kind, match=match):
            call()

    def body() -> None:
        sgd = {"optimizer_cls": torch.optim.SGD, "lr": 0.1}
        for made in (zero.Zero1Optimizer, zero.Zero2Optimizer):
            p = nn.Parameter(torch.ones(3, 2))
            refuse(ValueError, "params is empty", lambda made=made: made([], **sgd))
            refuse(
                ValueError, "nothing to optimise", lambda made=made: made([torch.ones(2)], **sgd)
            )
            refuse(ValueError, "twice", lambda made=made, p=p: made([p, p], **sgd))
            refuse(TypeError, "list of tensors", lambda made=made, p=p: made(p, **sgd))
            refuse(TypeError, "holds a str", lambda made=made: made(["w"], **sgd))
            views = [nn.Parameter(p.detach()[:2]), nn.Parameter(p.detach()[1:])]
            refuse(ValueError, "share memory", lambda made=made, v=views: made(v, **sgd))
            refuse(ValueError, "leaves", lambda made=made, p=p: made([p * 2], **sgd))
            refuse(TypeError, "a class", lambda made=made, p=p: made([p], "SGD"))
            refuse(TypeError, "offload", lambda made=made, p=p: made([p], **sgd, offload=3))
            refuse(
                TypeError, "a function", lambda made=made, p=p: made([p], **sgd, all_gather="ring")
            )
            refuse(
                ValueError, "not elementwise",
                lambda made=made, p=p: made([p], torch.optim.Adafactor, lr=0.1),
            )  # fmt: skip
            if hasattr(torch.optim, "Muon"):
                refuse(
                    ValueError, "Muon is not elementwise: it takes matrices",
                    lambda made=made: made([nn.Parameter(torch.ones(3, 2))], torch.optim.Muon),
                )  # fmt: skip
            refuse(ValueError, "LBFGS cannot", lambda made=made, p=p: made([p], torch.optim.LBFGS))
            optimizer = made([p], **sgd)
            refuse(ValueError, "another sharded", lambda made=made, p=p: made([p], **sgd))
            refuse(RuntimeError, "groups", lambda o=optimizer: o.add_param_group({"params": []}))
            optimizer.step()
            assert torch.equal(p, torch.ones(3, 2)), "a step before backward changes nothing"
            p.data = p.data.clone()
            refuse(RuntimeError, "no longer in its flat buffer", optimizer.step)
            embedding = nn.Embedding(4, 2, sparse=True)
            held = made(embedding.parameters(), **sgd)
            loss = embedding(torch.tensor([1])).sum()
            refuse(ValueError, "sparse=False", loss.backward)
            del held, optimizer
            frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            q = nn.Parameter(torch.ones(2))
            late = made([q, frozen], **sgd)
            frozen.requires_grad_()
            (q * frozen).sum().backward()
            refuse(RuntimeError, "frozen", late.step)
        refuse(RuntimeError, "no_sync", late.no_sync().__enter__)
        p = nn.Parameter(torch.ones(2))
        refuse(ValueError, "bucket_bytes", lambda: zero.Zero2Optimizer([p], **sgd, bucket_bytes=0))

        model = Plain()
        refuse(ValueError, "no parameters", lambda: zero.Zero3Module(nn.Tanh()))
        refuse(ValueError, "not inside", lambda: zero.Zero3Module(model, units=[nn.Linear(2, 2)]))
        refuse(ValueError, "no submodule", lambda: zero.Zero3Module(model, units=nn.Conv2d))
        wrapped = zero.Zero3Module(model)
        for again in (wrapped, model, nn.Sequential(model), model.layers[0]):
            refuse(ValueError, "already", lambda again=again: zero.Zero3Module(again))
        refuse(RuntimeError, "before it is wrapped", wrapped.half)
        refuse(RuntimeError, "full_state_dict", wrapped.state_dict)
        refuse(RuntimeError, "load_full_state_dict", lambda: wrapped.load_state_dict({}))
        refuse(ValueError, "names do not fit", lambda: wrapped.load_full_state_dict({}))
        state = wrapped.full_state_dict()
        state["layers.0.bias"] = torch.ones(3)
        refuse(ValueError, "has the shape", lambda: wrapped.load_full_state_dict(state))
        refuse(ValueError, "params is empty", lambda: zero.flatten_and_shard([], 2))
        refuse(ValueError, "one dtype", lambda: zero.flatten_and_shard([p, p.double()], 2))
        refuse(ValueError, "at least 1", lambda: zero.flatten_and_shard([p], 0))
        refuse(ValueError, "no state", lambda: zero.merge_state_dicts([]))
        refuse(ValueError, "sharded optimizer", lambda: zero.merge_state_dicts([{"state": {}}]))

    launch(body, world_size=2, backend="gloo")


# ---- the files


def test_the_folder_can_be_copied_out_alone(tmp_path: Path):
    """It imports torch and itself only, and works under another name outside the package."""
    for path in FOLDER.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) < 300, path.name
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            top = {name.partition(".")[0] for name in names}
            assert top <= {"torch", *sys.stdlib_module_names}, (path.name, top)
    shutil.copytree(FOLDER, tmp_path / "lifted")
    program = "import sys, lifted; assert not any('course_lib' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path[:0] = ['.']; {program}"],
                   cwd=tmp_path, check=True)  # fmt: skip
