"""A run that goes on: the state of a run, plans of boxes, and a checkpoint that was saved on another mesh."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import launch, operation
from course_lib.mesh import Mesh, held_boxes, mesh_stages, parameters, train_step
from course_lib.models import GPT, GPTConfig
from course_lib.operation import (
    Box,
    Disk,
    Folder,
    Training,
    capture,
    read_plan,
    restore,
    write_plan,
)
from course_lib.pipeline import one_f_one_b
from course_lib.precision import LossScaler


def test_a_restored_run_ends_at_the_same_bits() -> None:
    def run_of(seed: int) -> Training:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return Training(model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))

    def step(run: Training) -> float:
        loss = run.model(torch.full((3, 4), float(run.step))).square().mean()
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        run.step += 1
        return loss.item()

    run = run_of(seed=0)
    first = [step(run) for _ in range(3)]
    state = operation.to_bytes(capture(run))
    wanted = [step(run) for _ in range(3)]
    other = run_of(seed=1)
    restore(other, operation.from_bytes(state))
    assert [step(other) for _ in range(3)] == wanted != first
    assert all(map(torch.equal, run.model.parameters(), other.model.parameters()))


# ---- capture and restore


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}
SCHEDULERS = {
    "none": lambda optimizer: None,
    "onecycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=50, cycle_momentum=False
    ),
    "two in a row": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        ],
        milestones=[4],
    ),
}


def training(optimizer: str, scheduler: str, seed: int) -> Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))
    steps = OPTIMIZERS[optimizer](model.parameters())
    scaler = LossScaler(scale=2.0**10, interval=3)
    generator = torch.Generator().manual_seed(seed)
    return Training(model, steps, SCHEDULERS[scheduler](steps), scaler, generator)


def steps_of(run: Training, count: int) -> list[Tensor]:
    """Losses of the next steps, with data from the run's own generator and from its position."""
    losses = []
    for _ in range(count):
        x = torch.randn(5, 4, generator=run.generator) + run.step
        loss = run.model(x).square().mean()
        run.optimizer.zero_grad()
        run.scaler.scale_loss(loss).backward()
        run.scaler.step(run.optimizer)
        run.scaler.update()
        if run.scheduler is not None:
            run.scheduler.step()
        run.step += 1
        losses.append(loss.detach())
    return losses


def same(value: Any, other: Any) -> bool:
    """To the last bit, all that a state may hold."""
    if isinstance(value, Tensor):
        return value.dtype == other.dtype and torch.equal(value, other)
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_part_of_a_run_is_in_its_state(optimizer: str, scheduler: str) -> None:
    run = training(optimizer, scheduler, seed=0)
    steps_of(run, 4)
    state = capture(run)
    photograph = copy.deepcopy(state)
    wanted = torch.stack(steps_of(run, 6))
    assert same(state, photograph)  # the run went on, the state did not
    for _ in range(2):  # and neither did a run that was restored from it
        other = training(optimizer, scheduler, seed=1)
        restore(other, state)
        assert torch.equal(torch.stack(steps_of(other, 6)), wanted)
        assert all(
            map(torch.equal, run.model.state_dict().values(), other.model.state_dict().values())
        )
    assert same(state, photograph)


@pytest.mark.parametrize(
    "part", ["model", "optimizer", "scheduler", "scaler", "step", "generator", "cpu"]
)
def test_without_one_part_the_run_is_another(part: str) -> None:
    run = training("adamw", "onecycle", seed=0)
    steps_of(run, 4)
    state = capture(run)
    assert {*state} == {"model", "optimizer", "scheduler", "scaler", "step", "generator", "cpu"}
    wanted = steps_of(run, 6), capture(run)
    other = training("adamw", "onecycle", seed=1)
    restore(other, state | {part: capture(training("adamw", "onecycle", seed=1))[part]})
    if part == "optimizer":  # an optimizer that has not stepped has no state
        assert not other.optimizer.state
    got = steps_of(other, 6), capture(other)
    assert not same(got, wanted)


def test_a_state_of_another_program_is_refused() -> None:
    run = training("adamw", "none", seed=0)
    other = training("adamw", "onecycle", seed=0)
    before = copy.deepcopy(capture(run))
    with pytest.raises(ValueError, match="'scheduler'"):
        restore(run, capture(other))
    assert same(capture(run), before)


# ---- plans


def random_cuts(draw: random.Random, shape: list[int]) -> list[Box]:
    """A tensor, cut into boxes at random: each box may be cut again."""
    boxes = [[(0, size) for size in shape]]
    for _ in range(draw.randrange(6)):
        box = boxes.pop(draw.randrange(len(boxes)))
        if not box:
            return [box]
        dim = draw.randrange(len(box))
        start, stop = box[dim]
        at = draw.randint(start, stop)
        boxes += [[*box[:dim], part, *box[dim + 1 :]] for part in ((start, at), (at, stop))]
    draw.shuffle(boxes)
    return boxes


def test_a_read_plan_fills_each_element_once_from_its_place(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(400):
        shape = [draw.randrange(7) for _ in range(draw.randrange(4))]
        whole = torch.arange(operation.elements([(0, size) for size in shape])).view(shape)
        saved = random_cuts(draw, shape)
        files = [whole[operation.slices(box)].clone() for box in saved]
        for wanted in random_cuts(draw, shape):
            into = torch.full([stop - start for start, stop in wanted], -1)
            times = torch.zeros_like(into)
            for file, source, place in read_plan(list(enumerate(saved)), wanted):
                part = files[file][operation.slices(source)]
                assert part.numel() and part.shape == into[operation.slices(place)].shape
                into[operation.slices(place)] = part
                times[operation.slices(place)] += 1
            assert torch.equal(into, whole[operation.slices(wanted)]) and bool((times == 1).all())


def test_a_hole_is_an_error() -> None:
    columns: list[tuple[int, Box]] = [(0, [(0, 8), (0, 3)]), (1, [(0, 8), (3, 6)])]
    assert read_plan(columns, [(3, 6), (0, 6)]) == [
        (0, [(3, 6), (0, 3)], [(0, 3), (0, 3)]),
        (1, [(3, 6), (0, 3)], [(0, 3), (3, 6)]),
    ]
    for saved, missing in ((columns[:1], "24"), ([], "0")):
        with pytest.raises(
            ValueError, match=f"has 48 elements, and the saved boxes hold {missing} "
        ):
            read_plan(saved, [(0, 8), (0, 6)])
    assert read_plan([], [(2, 2), (0, 6)]) == []
    assert read_plan([(7, [])], []) == [(7, [], [])]
    with pytest.raises(ValueError, match="different dimensions"):
        read_plan([(0, [])], [(0, 1)])


def test_a_write_plan_writes_each_box_once(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        ranks, everywhere = draw.randint(1, 6), draw.random() < 0.5
        sizes = [draw.randrange(1, 100) for _ in range(draw.randint(1, 12))]
        held: list[list[tuple[str, Box, int]]] = [[] for _ in range(ranks)]
        for number, size in enumerate(sizes):
            holders = (
                range(ranks) if everywhere else draw.sample(range(ranks), draw.randint(1, ranks))
            )
            for rank in holders:
                held[rank].insert(
                    draw.randint(0, len(held[rank])), (f"w{number}", [(0, size)], size)
                )
        plan = write_plan(held)
        written = [held[rank][i] for rank, indices in enumerate(plan) for i in indices]
        assert sorted(size for _, _, size in written) == sorted(sizes)
        assert len({name for name, _, _ in written}) == len(sizes)
        if everywhere:  # the least possible is at least both of these
            busiest = max(sum(held[r][i][2] for i in indices) for r, indices in enumerate(plan))
            pairs = sorted(sizes, reverse=True)[ranks - 1 : ranks + 1]
            least = max(sum(sizes) / ranks, max(sizes), sum(pairs) if len(pairs) == 2 else 0)
            assert busiest <= (4 / 3 - 1 / (3 * ranks)) * least_of(sizes, ranks, least) + 1e-9


def least_of(sizes: list[int], ranks: int, below: float) -> float:
    """The least possible busiest rank, by trying every deal; it is `below` at least."""
    best = float(sum(sizes))

    def deal(at: int, busy: list[int]) -> None:
        nonlocal best
        if max(busy) >= best or best <= below:
            return
        if at == len(sizes):
            best = float(max(busy))
            return
        for rank in sorted(set(busy)):
            place = busy.index(rank)
            deal(at + 1, [*busy[:place], rank + sizes[at], *busy[place + 1 :]])

    sizes = sorted(sizes, reverse=True)
    deal(0, [0] * ranks)
    return best


def test_a_write_plan_with_few_holders_may_cost_twice_the_least() -> None:
    """The largest piece goes to rank 0, which alone holds the two others."""
    held: list[list[tuple[str, Box, int]]] = [
        [("large", [], 5), ("own", [], 4), ("small", [], 1)],
        [("large", [], 5)],
    ]
    assert write_plan(held) == [[0, 1, 2], []]  # 10, where [[1, 2], [0]] would be 5


# ---- on other meshes


CONFIG = GPTConfig(vocab_size=32, context=8, layers=4, heads=4, width=16)
STEPS, ROWS = 3, 12


def batch(step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(32, (ROWS, 9), generator=torch.Generator().manual_seed(step))
    return drawn[:, :-1], drawn[:, 1:]


class OnMesh:
    """A GPT in float64 on a mesh, that trains and saves."""

    def __init__(self, sizes: dict[str, int], seed: int, optimizer: str = "adamw"):
        self.mesh, self.count = Mesh(sizes), 2
        self.schedule = one_f_one_b(self.mesh.size("pp"), self.count)
        torch.manual_seed(seed)
        self.stages = mesh_stages(GPT(CONFIG).double(), self.mesh, self.schedule)
        self.optimizer = OPTIMIZERS[optimizer]([param for _, param in parameters(self.stages)])

    def step(self, step: int) -> float:
        return train_step(
            self.stages, self.schedule, batch(step), self.count, self.mesh, self.optimizer, 1.0
        )[0]

    def held(self) -> dict[str, tuple[Tensor, Box]]:
        return held_boxes(self.stages, self.optimizer)


def save_on(sizes: dict[str, int], path: str, optimizer: str) -> tuple[int, int, list[float]]:
    run = OnMesh(sizes, 0, optimizer)
    for step in range(STEPS):
        run.step(step)
    held = run.held()
    nbytes = operation.save_shards(Folder(path), STEPS, held)
    return nbytes, len(held), [run.step(STEPS + step) for step in range(3)]


def load_on(sizes: dict[str, int], path: str, optimizer: str) -> tuple[int, int, int, list[float]]:
    run = OnMesh(sizes, 1, optimizer)
    held = run.held()
    loaded = operation.load_shards(Folder(path), held)
    assert loaded is not None
    wanted = sum(part.numel() * part.element_size() for part, _ in held.values())
    return *loaded, wanted, [run.step(loaded[0] + step) for step in range(3)]


@pytest.mark.parametrize(
    ("saved", "loaded", "optimizer"),
    [
        ({"pp": 2, "tp": 2}, {"dp": 3}, "adamw"),
        ({"pp": 2, "tp": 2}, {"tp": 4}, "sgd"),
        ({"dp": 4}, {"pp": 2, "tp": 2}, "adamw"),
        ({"tp": 2}, {"dp": 1}, "adamw"),
    ],
)
def test_a_run_goes_on_on_another_mesh(
    saved: dict[str, int], loaded: dict[str, int], optimizer: str, tmp_path: Path
) -> None:
    count = {"pp": 1, "dp": 1, "tp": 1}
    first, second = count | saved, count | loaded
    ranks = [sizes["pp"] * sizes["dp"] * sizes["tp"] for sizes in (first, second)]
    path = str(tmp_path)
    before = list(launch(save_on, first, path, optimizer, world_size=ranks[0], backend="gloo"))
    after = list(launch(load_on, second, path, optimizer, world_size=ranks[1], backend="gloo"))
    wanted = before[0][2]
    for step, nbytes, needed, losses in after:
        assert step == STEPS
        torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=0)
        if saved != {"pp": 2, "tp": 2} or loaded == {"dp": 3}:
            # Every file is wanted whole, but for a rank that wants a part of a whole tensor.
            assert loaded != {"dp": 3} or nbytes == needed
    params = sum(param.numel() for param in GPT(CONFIG).parameters())
    tensors = len(list(GPT(CONFIG).named_parameters()))
    kinds = {"adamw": 4, "sgd": 2}[optimizer]  # with amsgrad's third moment
    scalars = 4 * tensors if optimizer == "adamw" else 0
    assert sum(rank[0] for rank in before) == 8 * kinds * params + scalars


def test_a_damaged_piece_sends_all_ranks_to_the_checkpoint_before(tmp_path: Path) -> None:
    path = str(tmp_path)

    def save() -> None:
        rank = dist.get_rank()
        for step in (1, 2):
            part = torch.full((2, 3), float(step))
            operation.save_shards(
                Folder(path), step, {"w": (part, [(2 * rank, 2 * rank + 2), (0, 3)])}
            )

    def load(box: Box) -> tuple[Any, Tensor, str]:
        part = torch.zeros([stop - start for start, stop in box])
        with pytest.warns(UserWarning) as warned:
            loaded = operation.load_shards(Folder(path), {"w": (part, box)})
        return loaded, part, str(warned[0].message)

    launch(save, world_size=2, backend="gloo")
    (piece,) = (
        entry[0]
        for name, entry in operation.read_manifest(Folder(path), 2).items()
        if "[[2, 4]" in name
    )
    assert piece.startswith("2.0.rank-1-piece-")
    data = Folder(path).read(piece)
    Folder(path).write(piece, data[:5] + bytes([data[5] ^ 4]) + data[6:])

    def job() -> tuple[Any, Tensor, str]:
        return load([[(0, 1), (0, 3)], [(3, 4), (0, 2)]][dist.get_rank()])

    for loaded, part, said in launch(job, world_size=2, backend="gloo"):
        assert loaded == (1, 24) and bool((part == 1).all())
        assert said.startswith(f"{piece} is not as it was saved") and "step 2 is not used" in said
    loaded, part, _ = load([(0, 4), (0, 3)])  # one process without ranks
    assert loaded == (1, 48) and bool((part == 1).all())


def test_a_checkpoint_that_lacks_something_is_an_error_and_changes_nothing() -> None:
    disk, part, more = Disk(), torch.ones(2), torch.zeros(2)
    assert operation.load_shards(disk, {}) is None
    operation.save_shards(
        disk, 5, {"w": (part, [(0, 2)]), "s": (torch.tensor(3, dtype=torch.int64), [])}
    )
    wanted: dict[str, tuple[Tensor, Box]] = {"w": (more, [(0, 2)])}
    for name, box, says in (("v", [(0, 2)], "has no v"), ("w", [(1, 3)], "hold 1 of them")):
        with pytest.raises(ValueError, match=f"checkpoint of step 5 lacks .*{says}"):
            operation.load_shards(disk, wanted | {name: (more, box)})
        assert more.tolist() == [0, 0]
    scalar = torch.tensor(0, dtype=torch.int32)
    assert operation.load_shards(disk, wanted | {"s": (scalar, [])}) == (5, 16)
    assert more.tolist() == [1, 1] and scalar.item() == 3


def test_experts_and_shared_tensors_have_boxes_too() -> None:
    from course_lib.experts import expert_gpt

    def job() -> dict[str, Box]:
        mesh = Mesh({"ep": 2})
        schedule = one_f_one_b(1, 1)
        model = expert_gpt(GPT(CONFIG), hidden=8, experts=4, k=2, group=mesh.group("ep"))
        stages = mesh_stages(model, mesh, schedule)
        return {name: box for name, (_, box) in held_boxes(stages).items()}

    of_ranks = list(launch(job, world_size=2, backend="gloo"))
    name = next(name for name in of_ranks[0] if name.endswith("w1"))
    assert [boxes[name][0] for boxes in of_ranks] == [(0, 2), (2, 4)]
    whole = {key: box for key, box in of_ranks[0].items() if not key.endswith(("w1", "w2", "w3"))}
    assert whole and all(of_ranks[1][key] == box for key, box in whole.items())


def test_read_plans_are_those_of_pytorch(seed: int) -> None:
    """Of torch.distributed.checkpoint, which cuts boxes to load a state on another number of ranks."""
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    def chunk(box: Box) -> ChunkStorageMetadata:
        starts, sizes = [start for start, _ in box], [stop - start for start, stop in box]
        return ChunkStorageMetadata(torch.Size(starts), torch.Size(sizes))

    draw = random.Random(seed)
    for _ in range(200):
        shape = [draw.randint(1, 7) for _ in range(draw.randint(1, 3))]
        saved = [box for box in random_cuts(draw, shape) if operation.elements(box)]
        chunks = [chunk(box) for box in saved]
        stored = TensorStorageMetadata(TensorProperties(), torch.Size(shape), chunks)
        for wanted in random_cuts(draw, shape):
            if not operation.elements(wanted):
                continue
            theirs = {
                (tuple(item.storage_offsets), tuple(item.dest_offsets), tuple(item.lengths))
                for item in create_read_items_for_chunk_list("w", stored, [chunk(wanted)])
            }
            ours = {
                (
                    tuple(start for start, _ in source),
                    tuple(start for start, _ in place),
                    tuple(stop - start for start, stop in place),
                )
                for _, source, place in read_plan(list(enumerate(saved)), wanted)
            }
            assert ours == theirs
