"""A step on a mesh against one process in float64: losses, gradients, norms; bytes of every axis."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import device, facts, launch
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.mesh import (
    Mesh,
    clip_grad_norm,
    cut_names,
    hybrid_step,
    mesh_stages,
    parameters,
    tied_names,
    train_step,
)
from course_lib.mesh.coordinates import axis_ranks, coordinates
from course_lib.mesh.step import microbatches_of, targets_of_all
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import run_schedule
from course_lib.pipeline.generators import one_f_one_b
from course_lib.tensor_parallel.cut import Parallel
from course_lib.zero import Zero1Optimizer, Zero3Module
from tests import gpu_like


def test_four_ranks_have_the_loss_and_the_gradient_of_one_process() -> None:
    """Two replicas (dp), each with every layer cut over two ranks (tp)."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=41, context=16, layers=2, heads=2, width=8)).double()
    batch = torch.randint(41, (4, 16)), torch.randint(41, (4, 16))

    def job() -> tuple[float, Tensor]:
        mesh, schedule = Mesh({"dp": 2, "tp": 2}), one_f_one_b(1, 1)
        stages = mesh_stages(model, mesh, schedule)
        loss = hybrid_step(stages, schedule, microbatches_of(batch, 1, mesh), mesh)
        return loss, dict(parameters(stages))["norm.weight"].grad

    ranks = launch(job, world_size=4, backend="gloo")
    inputs, targets = batch
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    for result in ranks:
        torch.testing.assert_close(result, (loss.item(), model.norm.weight.grad))


LAYERS, HEADS, WIDTH, VOCABULARY, SEQ, STEPS, COUNT = 4, 4, 32, 41, 16, 3, 4
ROWS = 9  # of which two replicas have 5 and 4, in microbatches of 2 and 1
SIZES = [
    {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 2, "cp": 2, "tp": 2},
    {"dp": 2, "cp": 2, "tp": 2},
    {"cp": 2, "pp": 2, "dp": 2},
]
SIXTEEN = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}
RequireRanks = Callable[[int], None]
EVERYTHING = os.environ.get("COURSE_ALL_TESTS") == "1"


def a_model(modern: bool, tied: bool) -> GPT:
    """GPT-2's parts or LLaMA's; every rank draws the same."""
    plain = GPTConfig(VOCABULARY, SEQ, layers=LAYERS, heads=HEADS, width=WIDTH)
    config = plain.modern() if modern else plain
    torch.manual_seed(5)
    model = GPT(
        GPTConfig(**{**vars(config), "kv_heads": HEADS // 2 if modern else None, "tied": tied})
    )
    return model.to(device())


def a_batch(seed: int) -> tuple[Tensor, Tensor]:
    """Targets that count lie unevenly over places and rows: replicas and ranks of cp have unequally many."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randint(VOCABULARY, (2, ROWS, SEQ), generator=generator)
    targets[0, :9] = -100
    targets[3, 4:] = -100
    targets[6] = -100
    return inputs.to(device()), targets.to(device())


class Found(NamedTuple):
    """A run of a rank: (loss, norm) of each step; the first step's gradients by name; their cuts."""

    steps: list[tuple[float, float]]
    gradients: dict[str, Tensor]
    bounds: dict[str, tuple[int, int, int]]


def alone(modern: bool, tied: bool, batch: tuple[Tensor, Tensor], clip: float = 1.0) -> Found:
    """One process: the mean over all targets of the batch."""
    model, (inputs, targets) = a_model(modern, tied).double(), batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, first = [], {}
    for _ in range(STEPS):
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        first = first or {
            name: param.grad.clone()
            for name, param in model.named_parameters()
            if param.grad is not None
        }
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((loss.item(), norm.item()))
    return Found(steps, first, {})


def on_a_rank(
    sizes: dict[str, int], modern: bool, tied: bool, sequence: Any, batch: Any, count: int = COUNT
) -> Found:
    mesh, schedule = Mesh(sizes), one_f_one_b(sizes.get("pp", 1), count)
    batch = [whole.to(device()) for whole in batch]
    model = a_model(modern, tied).double()
    stages = mesh_stages(model, mesh, schedule, sequence=sequence)
    bounds = {
        id(getattr(layer, name)): (cut.dim, *cut.bounds())
        for stage in stages
        for layer in stage.module.modules()
        if isinstance(layer, Parallel)
        for name, cut in layer.cuts.items()
    }
    named = parameters(stages)
    optimizer = torch.optim.SGD([param for _, param in named], lr=0.1)
    steps, first = [], {}
    hybrid_step(stages, schedule, microbatches_of(batch, count, mesh), mesh)
    first = {name: param.grad.clone() for name, param in named if param.grad is not None}
    optimizer.zero_grad()
    for _ in range(STEPS):
        steps.append(train_step(stages, schedule, batch, count, mesh, optimizer, 1.0))
    return Found(steps, first, {n: bounds[id(p)] for n, p in named if id(p) in bounds})


def same_as_alone(ranks: list[Found], wanted: Found) -> None:
    """Losses and norms to 1e-12, gradients to 1e-12 of the model's largest; every parameter is held."""
    largest = max(float(gradient.abs().max()) for gradient in wanted.gradients.values())
    for rank, found in enumerate(ranks):
        for step, (ours, theirs) in enumerate(zip(found.steps, wanted.steps, strict=True)):
            assert ours == pytest.approx(theirs, abs=1e-12, rel=1e-12), (rank, step)
        for name, gradient in found.gradients.items():
            part = wanted.gradients[name]
            if name in found.bounds:
                dim, start, end = found.bounds[name]
                part = part.narrow(dim, start, end - start)
            worst = float((gradient - part).abs().max())
            assert worst <= 1e-12 * largest, (rank, name, worst)
    assert {name for found in ranks for name in found.gradients} == set(wanted.gradients)


PARTS = [
    pytest.param(False, True, None, id="gpt2-tied"),
    pytest.param(True, False, "keep", id="llama-untied-sequence"),
    pytest.param(False, False, "keep", id="gpt2-untied-sequence"),
    pytest.param(True, True, None, id="llama-tied"),
]


def some() -> list[Any]:
    """Every mesh, each with other parts of the model; all of them with COURSE_ALL_TESTS=1."""
    pairs = [(i, k) for i in range(len(SIZES)) for k in range(len(PARTS)) if EVERYTHING or i == k]
    return [
        pytest.param(SIZES[i], *PARTS[k].values, id=f"{'x'.join(SIZES[i])}-{PARTS[k].id}")
        for i, k in pairs
    ]


@pytest.mark.parametrize(("sizes", "modern", "tied", "sequence"), some())
def test_eight_ranks_train_as_one_process(
    sizes: dict[str, int], modern: bool, tied: bool, sequence: Any, seed: int, backend: str,
    require_ranks: RequireRanks,
) -> None:  # fmt: skip
    require_ranks(8)
    if backend == gpu_like.NAME and not EVERYTHING and sizes not in SIZES[1::2]:
        pytest.skip("two meshes have every axis between them; all four by make test-all")
    batch = a_batch(seed)
    ranks = launch(on_a_rank, sizes, modern, tied, sequence, batch, world_size=8, backend=backend)
    same_as_alone(list(ranks), alone(modern, tied, batch))


@pytest.mark.parametrize(("modern", "tied", "sequence"), PARTS if EVERYTHING else PARTS[:1])
def test_sixteen_ranks_train_as_one_process(
    modern: bool, tied: bool, sequence: Any, seed: int
) -> None:
    batch = a_batch(seed)
    ranks = launch(
        on_a_rank, SIXTEEN, modern, tied, sequence, batch,
        world_size=16, backend="gloo", timeout=120,
    )  # fmt: skip
    same_as_alone(list(ranks), alone(modern, tied, batch))


FEW = [
    {"dp": 1}, {"dp": 2}, {"cp": 2}, {"pp": 2}, {"tp": 2}, {"dp": 3}, {"cp": 3},
    {"dp": 2, "cp": 2}, {"pp": 2, "dp": 2}, {"dp": 2, "tp": 2},
]  # fmt: skip


@pytest.mark.parametrize(
    "sizes", FEW, ids=lambda sizes: "x".join(f"{a}{n}" for a, n in sizes.items())
)
def test_a_replica_without_a_target_adds_nothing_to_the_mean_over_all(
    sizes: dict[str, int], seed: int
) -> None:
    """7 rows: the first four, all of the first replica of two or three, have no target that counts."""
    inputs, targets = (whole[:7] for whole in a_batch(seed))
    targets[:4] = -100
    n, batch = prod(sizes.values()), (inputs, targets)
    ranks = launch(on_a_rank, sizes, False, True, None, batch, 2, world_size=n, backend="gloo")
    same_as_alone(list(ranks), alone(False, True, batch))


def test_ranks_that_share_a_key_head_have_the_norm_of_one_process(seed: int) -> None:
    """Two key and value heads on four ranks of tp."""
    batch = a_batch(seed)
    ranks = launch(
        on_a_rank, {"tp": 4}, True, True, None, batch, 2,
        world_size=4, backend="gloo", timeout=120,
    )  # fmt: skip
    same_as_alone(list(ranks), alone(True, True, batch))


def test_a_loss_without_gradients_is_that_of_a_step(seed: int) -> None:
    """On all ranks, and gradients that are there stay as they are."""
    batch = a_batch(seed)

    def job() -> tuple[float, bool]:
        mesh, schedule = Mesh({"pp": 2, "dp": 2}), one_f_one_b(2, COUNT)
        stages = mesh_stages(a_model(False, True).double(), mesh, schedule)
        with torch.no_grad():
            loss = hybrid_step(stages, schedule, microbatches_of(batch, COUNT, mesh), mesh)
        return loss, all(param.grad is None for _, param in parameters(stages))

    loss, _ = alone(False, True, batch).steps[0]
    for found, untouched in launch(job, world_size=4, backend="gloo"):
        assert found == pytest.approx(loss, abs=1e-12) and untouched


def test_a_first_stage_that_trains_nothing_takes_part(seed: int) -> None:
    """In clipping, and in two calls whose gradients add up."""
    inputs, targets = a_batch(seed)
    halves = [(inputs[:4], targets[:4]), (inputs[4:], targets[4:])]

    def frozen(model: GPT) -> GPT:
        for name, param in model.named_parameters():
            param.requires_grad_(name.startswith(("blocks.3", "norm", "head")))
        return model

    def job() -> tuple[float, dict[str, Tensor]]:
        mesh, schedule = Mesh({"pp": 2, "dp": 2}), one_f_one_b(2, 2)
        stages = mesh_stages(frozen(a_model(False, False).double()), mesh, schedule)
        for batch in halves:
            hybrid_step(stages, schedule, microbatches_of(batch, 2, mesh), mesh)
        named = parameters(stages)
        norm = clip_grad_norm(named, 0.1, mesh, cut_names(stages), tied_names(stages))
        return norm, {name: param.grad for name, param in named if param.grad is not None}

    model = frozen(a_model(False, False).double())
    for x, y in halves:
        next_token_loss(model(x), y).backward()
    wanted = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    whole = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    held: set[str] = set()
    for norm, gradients in launch(job, world_size=4, backend="gloo"):
        assert norm == pytest.approx(wanted, rel=1e-12)
        held |= gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, whole[name], rtol=1e-10, atol=1e-13)
    assert held == whole.keys()


@pytest.mark.parametrize(
    ("rows", "counted", "says"),
    [
        (1, True, r"1 rows are too few for 2 replicas \(dp x ep\) with 2 microbatches each"),
        (3, True, r"3 rows are too few for 2 replicas \(dp x ep\) with 2 microbatches each"),
        (4, False, "no target of the batch counts"),
    ],
)
def test_a_batch_without_a_mean_is_refused_before_a_step_is_taken(
    rows: int, counted: bool, says: str
) -> None:
    def job() -> str:
        mesh, schedule = Mesh({"dp": 2}), one_f_one_b(1, 2)
        stages = mesh_stages(a_model(False, True), mesh, schedule)
        params = [param for _, param in parameters(stages)]
        before = [param.detach().clone() for param in params]
        optimizer = torch.optim.SGD(params, lr=0.1)
        tokens = torch.zeros(rows, SEQ, dtype=torch.long)
        targets = tokens if counted else torch.full_like(tokens, -100)
        with pytest.raises(ValueError, match=says) as error:
            train_step(stages, schedule, (tokens, targets), 2, mesh, optimizer, 1.0)
        assert all(map(torch.equal, params, before))
        return str(error.value)

    assert len(set(launch(job, world_size=2, backend="gloo"))) == 1


# ---- bytes of every axis

BIG = GPTConfig(256, 128, layers=4, heads=4, width=64)


def of_step(ledger: Ledger, rank: int, sizes: dict[str, int], axis: Any) -> list[Operation]:
    """A rank's operations in the group of an axis, after the barrier; the loss' number is left out."""
    group, operations = tuple(axis_ranks(rank, sizes, axis)), ledger.operations(rank)
    start = next(i for i, operation in enumerate(operations) if operation.op == "barrier")
    return [
        operation
        for operation in operations[start:]
        if operation.group == group and operation.nbytes > 8
    ]


def sent(ledger: Ledger, rank: int, sizes: dict[str, int], axis: Any) -> float:
    return sum(operation.bytes_sent for operation in of_step(ledger, rank, sizes, axis))


def one_step(sizes: dict[str, int], rows: int, seq: int) -> Callable[[], dict[str, int]]:
    def job() -> dict[str, int]:
        mesh, schedule = Mesh(sizes), one_f_one_b(sizes.get("pp", 1), COUNT)
        torch.manual_seed(5)
        stages = mesh_stages(GPT(BIG), mesh, schedule, seq=seq)
        tokens = torch.randint(256, (rows, seq))
        dist.barrier()
        hybrid_step(stages, schedule, [(tokens, tokens)] * COUNT, mesh)
        return {name: param.numel() for name, param in parameters(stages)}

    return job


def test_every_axis_sends_the_bytes_of_its_closed_form() -> None:
    """2 x 2 x 2 in float32, 4 microbatches of 1 x 64 tokens: the first stage and the last, to the byte."""
    sizes, seq = {"pp": 2, "dp": 2, "tp": 2}, 64
    run = launch(one_step(sizes, 1, seq), world_size=8, backend="gloo")
    ledger, message = run.ledger, seq * 64 * 4
    half = 2 * (2 - 1) / 2
    for rank in (0, 7):
        last = coordinates(rank, sizes)["pp"] == 1
        layers = COUNT * 2 * 4 * half * message
        ends = COUNT * half * message + last * half * 3 * 4 * COUNT * seq
        assert sent(ledger, rank, sizes, "tp") == layers + ends == (592_896 if last else 589_824)
        table = 256 / 2 * 64 * 4
        assert sent(ledger, rank, sizes, "pp") == COUNT * message + table == 98_304
        here = sum(run[rank].values())
        assert sent(ledger, rank, sizes, "dp") == half * 4 * here == (234_752 if last else 267_008)


def test_the_ring_of_cp_sends_its_closed_form_and_replicas_one_sum() -> None:
    """cp 2, tp 2, pp 2, 4 microbatches of 2 x 64 tokens: 2 layers a rank, half of the heads."""
    sizes, seq, rows = {"pp": 2, "cp": 2, "tp": 2}, 64, 2
    run = launch(one_step(sizes, rows, seq), world_size=8, backend="gloo")
    ledger = run.ledger
    ring = sum(
        facts.ring_attention_bytes(2, rows * seq, 64 // 2, 4, way)
        for way in ("forward", "backward")
    )
    for rank in range(prod(sizes.values())):
        reduced = 4 * sum(run[rank].values())
        assert COUNT * 2 * ring == 524_288
        assert sent(ledger, rank, sizes, "cp") == COUNT * 2 * ring + reduced
        own = of_step(ledger, rank, sizes, "cp")
        sums = [operation for operation in own if operation.op == "all_reduce"]
        assert len(sums) == 1 and sums[0].nbytes == reduced
        message = rows * seq // 2 * 64 * 4  # half of the tokens
        assert sent(ledger, rank, sizes, "pp") == COUNT * message + 256 / 2 * 64 * 4


# ---- the same step, put together in other ways


def test_zero_1_over_the_replicas_and_zero_3_around_a_stage(seed: int) -> None:
    """Both take the mean over their n ranks, so the losses are divided by the targets over n."""

    def losses(how: str) -> list[float]:
        sizes = {"pp": 2, "dp": 2, "cp": 1 if how == "zero 3" else 2}
        mesh, schedule = Mesh(sizes), one_f_one_b(2, COUNT)
        stages = mesh_stages(a_model(False, False).double(), mesh, schedule)
        replicas, n = mesh.group(("dp", "cp")), mesh.size(("dp", "cp"))
        optimizer: Any
        if how == "zero 1":
            params = [param for _, param in parameters(stages)]
            optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, lr=0.1)
        else:
            stages[0].module = Zero3Module(stages[0].module, group=replicas)
            optimizer = torch.optim.SGD(stages[0].module.parameters(), lr=0.1)
        microbatches = microbatches_of(a_batch(seed), COUNT, mesh)
        count = targets_of_all(stages[0], microbatches, mesh) / n
        found = []
        for _ in range(STEPS):
            parts = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count)
            optimizer.step()
            optimizer.zero_grad()
            total = torch.stack([*parts.values(), torch.zeros((), dtype=torch.float64)]).sum()
            dist.all_reduce(total)
            found.append(float(total) / n)
        return found

    wanted = [loss for loss, _ in alone(False, False, a_batch(seed), clip=math.inf).steps]
    for how, n in (("zero 1", 8), ("zero 3", 4)):
        for found in launch(losses, how, world_size=n, backend="gloo"):
            assert found == pytest.approx(wanted, abs=1e-12), how


def test_gradients_add_up_over_two_calls(backend: str, require_ranks: RequireRanks) -> None:
    """The second call leaves the first one's sums alone, also those over cp."""
    require_ranks(4)

    def job() -> float:
        mesh, schedule = Mesh({"pp": 2, "cp": 2}), one_f_one_b(2, 2)
        stages = mesh_stages(a_model(False, True).double(), mesh, schedule)
        inputs, targets = a_batch(3)
        batch = [(inputs[:1], targets[:1]), (inputs[1:3], targets[1:3])]
        hybrid_step(stages, schedule, batch, mesh)
        once = [param.grad.clone() for _, param in parameters(stages) if param.grad is not None]
        hybrid_step(stages, schedule, batch, mesh)
        twice = [param.grad for _, param in parameters(stages) if param.grad is not None]
        return max(float((b - 2 * a).abs().max()) for a, b in zip(once, twice, strict=True))

    assert max(launch(job, world_size=4, backend=backend)) < 1e-15


def test_a_norm_below_the_limit_scales_nothing_and_ranks_without_gradients_take_part(
    backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(4)

    def job() -> tuple[float, float, float]:
        mesh, schedule = Mesh({"pp": 2, "tp": 2}), one_f_one_b(2, 2)
        stages = mesh_stages(a_model(False, True).double(), mesh, schedule)
        named, cut, tied = parameters(stages), cut_names(stages), tied_names(stages)
        with pytest.raises(RuntimeError, match=r"no rank has a gradient.*hybrid_step"):
            clip_grad_norm(named, 1.0, mesh, cut, tied)
        nothing = clip_grad_norm([], 1.0, mesh, cut, tied)
        if mesh.coordinate["pp"] == 1:
            weight = dict(named)["norm.weight"]
            weight.grad = torch.full_like(weight, 2.0)
        norm = clip_grad_norm(named, 100.0, mesh, cut, tied)
        grad = dict(named)["norm.weight"].grad if mesh.coordinate["pp"] == 1 else None
        kept = 2.0 if grad is None else float(grad[0])
        if grad is not None and mesh.coordinate["tp"] == 0:
            grad[1] = torch.nan
        assert math.isnan(clip_grad_norm(named, 100.0, mesh, cut, tied))  # as torch: all become NaN
        assert grad is None or bool(grad.isnan().all())
        return nothing, norm, kept

    for nothing, norm, grad in launch(job, world_size=4, backend=backend):
        assert nothing == 0 and norm == pytest.approx(2 * WIDTH**0.5) and grad == 2
