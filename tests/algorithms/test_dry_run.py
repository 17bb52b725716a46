"""A dry run against real ranks over gloo and against closed forms; wrong steps; ends of all kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import course_lib.mesh.step
from course_lib import RankError, RankTimeout, dry_run, launch
from course_lib.dry import DryRun, Meter, by_axis, whole_batch
from course_lib.dry.absent import file_of_one
from course_lib.dry.meter import objects_of, storage_bytes
from course_lib.dry.rehearsal import Gradients
from course_lib.experts import expert_gpt
from course_lib.facts import axis_bytes, rank_parameters, saved_layer_bytes
from course_lib.fsdp import PrefetchedModule
from course_lib.ledger import rows
from course_lib.mesh import (
    Mesh,
    axis_ranks,
    hybrid_step,
    mesh_stages,
    parameters,
    train_step,
)
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import gpipe, one_f_one_b
from course_lib.pipeline.stage import Stage
from course_lib.runtime.errors import NotWritten
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module
from tests.conftest import alive


def test_rank_517_of_1024_sends_and_keeps_what_the_closed_forms_say() -> None:
    """Eight stages (pp) of 16 replicas (dp), each layer cut over eight ranks (tp)."""
    config = GPTConfig(vocab_size=1024, context=64, layers=16, heads=16, width=256)
    sizes = {"pp": 8, "dp": 16, "tp": 8}

    def setup(config: GPTConfig, mesh: Mesh, microbatches: int) -> list[Stage]:
        return mesh_stages(GPT(config), mesh, one_f_one_b(mesh.size("pp"), microbatches))

    def step(stages: list[Stage], mesh: Mesh, batch: list[tuple[Tensor, Tensor]]) -> None:
        hybrid_step(stages, one_f_one_b(mesh.size("pp"), len(batch)), batch, mesh)

    run = dry_run(setup, step, sizes=sizes, rank=517, model=config, microbatches=8)
    stage, layers = run.coordinate["pp"], 16 // 8
    sent = axis_bytes(config, sizes, microbatches=8, batch_rows=16 * 8, seq=64, stage=stage)
    assert stage == 4
    assert [run.bytes[axis] for axis in ("pp", "dp", "tp")] == [sent[a] for a in ("pp", "dp", "tp")]
    assert run.calls["dp", "all_reduce"] == 1
    assert run.by_kind["weights"] == 4 * rank_parameters(config, sizes, stage)
    in_flight = min(8, 8 - stage)
    kept = saved_layer_bytes(config, batch=1, seq=64, n=8)
    assert run.by_kind["activations"] == in_flight * layers * kept
    assert "times" not in str(run.table())


EVERYTHING = os.environ.get("COURSE_ALL_TESTS") == "1"
SMALL = GPTConfig(vocab_size=256, context=64, layers=4, heads=4, width=64)
SIXTEEN_LAYERS = GPTConfig(vocab_size=1024, context=64, layers=16, heads=16, width=256)
EIGHT = {"pp": 2, "dp": 2, "tp": 2}
MANY = {"pp": 8, "dp": 16, "tp": 8}
COUNT = 4  # microbatches
Batch = list[tuple[Tensor, Tensor]]


def setup(config: GPTConfig, mesh: Mesh, microbatches: int) -> list[Stage]:
    return mesh_stages(GPT(config), mesh, one_f_one_b(mesh.size("pp"), microbatches))


def step(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    hybrid_step(stages, one_f_one_b(mesh.size("pp"), len(batch)), batch, mesh)


def dry(
    setup: Callable[..., Any] = setup, step: Callable[..., Any] = step, **changes: Any
) -> DryRun:
    plan: dict[str, Any] = {"sizes": EIGHT, "rank": 5, "model": SMALL, "microbatches": COUNT}
    return dry_run(setup, step, **{**plan, **changes})


# ---- against real ranks


def metered(
    sizes: dict[str, int], setup: Callable[..., Any], step: Callable[..., Any]
) -> dict[str, int]:
    """In a rank over gloo: setup and step under the meter of a dry run."""
    mesh = Mesh(sizes, device="cpu")
    with Meter() as meter:
        stages = setup(SMALL, mesh, COUNT)
        setup_peak = meter.peak
        inputs, targets = (torch.randint(256, (COUNT, 1, 64)) for _ in range(2))
        params = objects_of(nn.Parameter)
        gradients = Gradients(params)
        dist.barrier()
        meter.begin()
        step(stages, mesh, list(zip(inputs, targets, strict=True)))
    return {
        "weights": storage_bytes(params),
        "gradients": gradients.at_the_end(),
        "activations": meter.peak_kept,
        "peak": meter.peak,
        "setup peak": setup_peak,
        "flops": meter.flops,
    }


def check_ranks(
    ranks: range,
    sizes: dict[str, int],
    setup: Callable[..., Any],
    step: Callable[..., Any],
) -> None:
    """The ranks of one launch, and as many dry runs: everything is equal, but for what gloo holds longer.

    A thread of gloo lets go of a tensor when it comes to run, which can be after `dist.broadcast` returned.
    On a busy machine a real rank's peak thus has one message more.
    """
    real = launch(
        metered, sizes, setup, step, world_size=prod(sizes.values()), backend="gloo", timeout=300
    )
    for rank in ranks:
        run = dry(setup, step, sizes=sizes, rank=rank)
        measured = {
            **{kind: run.by_kind[kind] for kind in ("weights", "gradients", "activations")},
            "flops": run.flops,
        }
        assert measured == {what: real[rank][what] for what in measured}
        operations = real.ledger.operations(rank)
        message = max(operation.nbytes for operation in operations)
        for peak, rehearsed_peak in (("peak", run.peak_bytes), ("setup peak", run.setup_peak)):
            assert rehearsed_peak <= real[rank][peak] <= rehearsed_peak + message
        begins = 1 + max(i for i, operation in enumerate(operations) if operation.op == "barrier")
        assert (run.bytes, run.calls) == by_axis(operations[begins:], sizes)
        issued = [(o.op, o.peer, o.group, o.shape, o.line) for o in operations[begins:]]
        rehearsed = [(o.op, o.peer, o.group, o.shape, o.line) for o in run.ledger.operations(rank)]
        assert rehearsed == issued


MESHES = [EIGHT, {"pp": 2, "cp": 2, "tp": 2}, {"pp": 4, "tp": 2}, {"dp": 2, "cp": 2, "tp": 2}]


@pytest.mark.parametrize("sizes", MESHES if EVERYTHING else MESHES[:1], ids=str)
def test_eight_real_ranks_send_hold_and_compute_the_same(sizes: dict[str, int]) -> None:
    # With cp a dry run takes several times as long, since each tile of the ring is an operation.
    check_ranks(range(0, 8, 3) if "cp" in sizes else range(8), sizes, setup, step)


def sharded_state(config: GPTConfig, mesh: Mesh, count: int, wrap: type) -> Any:
    stages = setup(config, mesh, count)
    params = [param for _, param in parameters(stages)]
    return stages, wrap(params, torch.optim.AdamW, group=mesh.group("dp"), lr=1e-3)


def step_of_both(both: Any, mesh: Mesh, batch: Batch) -> None:
    stages, optimizer = both
    step(stages, mesh, batch)
    optimizer.step()


def sharded_weights(config: GPTConfig, mesh: Mesh, count: int, wrap: type) -> nn.Module:
    return wrap(GPT(config), group=mesh.group("dp"))


def forward_and_backward(module: nn.Module, mesh: Mesh, batch: Batch) -> None:
    for inputs, targets in batch:
        next_token_loss(module(inputs), targets).backward()


WRAPPERS = [
    (partial(sharded_state, wrap=Zero1Optimizer), step_of_both),
    (partial(sharded_state, wrap=Zero2Optimizer), step_of_both),
    (partial(sharded_weights, wrap=Zero3Module), forward_and_backward),
    (partial(sharded_weights, wrap=PrefetchedModule), forward_and_backward),
]


@pytest.mark.parametrize(
    ("setup", "step"), WRAPPERS, ids=["zero 1", "zero 2", "zero 3", "prefetched"]
)
def test_two_real_ranks_of_zero_and_fsdp_do_the_same(
    setup: Callable[..., Any], step: Callable[..., Any]
) -> None:
    check_ranks(range(1), {"dp": 2}, setup, step)


# ---- against closed forms


@pytest.mark.parametrize("rank", [0, 517, 1023] if EVERYTHING else [0])
def test_no_row_of_the_table_is_marked(rank: int) -> None:
    table = dry(sizes=MANY, rank=rank, model=SIXTEEN_LAYERS, microbatches=4).table()
    compared = {row.what for row in table.rows if row.closed is not None}
    assert {"pp: bytes sent", "dp: bytes sent", "tp: bytes sent", "products: FLOPs"} <= compared
    assert not [row for row in table.rows if row.mark]
    assert "rank" in str(table) and "<td" in table._repr_html_()


def test_bfloat16_takes_half_of_the_bytes() -> None:
    run = dry(dtype=torch.bfloat16)
    assert run.by_kind["weights"] * 2 == dry().by_kind["weights"]
    assert not [row for row in run.table().rows if row.mark]


def test_the_optimizer_has_two_numbers_for_each_parameter_and_the_setup_has_the_whole_model() -> (
    None
):
    run = dry()
    steps = 4 * run.ledger.world_size  # not more than a few tensors have a counter
    assert 0 < run.by_kind["optimizer"] - 2 * run.by_kind["weights"] < 100 * steps
    whole = sum(param.nbytes for param in GPT(SMALL).parameters())
    assert run.setup_peak >= whole > run.by_kind["weights"]


def make_step(config: GPTConfig, mesh: Mesh, lr: float) -> Callable[[tuple[Tensor, Tensor]], float]:
    """Another form of program: it builds its stages and its optimizer, and is given the whole batch."""
    schedule = one_f_one_b(mesh.size("pp"), COUNT)
    stages = mesh_stages(GPT(config), mesh, schedule)
    optimizer = torch.optim.AdamW([param for _, param in parameters(stages)], lr=lr)
    return lambda batch: train_step(stages, schedule, batch, COUNT, mesh, optimizer, 1.0)[0]


def test_a_step_that_was_built_in_the_setup_has_the_same_bytes() -> None:
    built = dry(
        lambda config, mesh, _: make_step(config, mesh, 1e-3),
        lambda train, mesh, batch: train(whole_batch(batch, mesh)),
    )
    plain = dry()
    axes = ("pp", "dp", "tp")
    assert [built.bytes[axis] for axis in axes] == [plain.bytes[axis] for axis in axes]
    assert built.by_kind == plain.by_kind  # also the gradients, which it clears
    assert built.peak_bytes > plain.peak_bytes  # AdamW's state is there within the step


def test_zero_1_has_half_of_the_state_on_two_replicas() -> None:
    run = dry(partial(sharded_state, wrap=Zero1Optimizer), step_of_both)
    assert run.by_kind["weights"] <= run.by_kind["optimizer"] < 1.2 * run.by_kind["weights"]


# ---- wrong steps, which 2 x 2 x 2 does not show


def replaced(reduce: Callable[..., None]) -> Callable[..., None]:
    """The step with another sum over the replicas."""

    def with_other_sum(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
        course_lib.mesh.step.sum_over_replicas = reduce
        step(stages, mesh, batch)

    return with_other_sum


def gather_and_add(params: list[nn.Parameter], mesh: Mesh, axes: tuple[str, ...]) -> None:
    if not params:
        return
    flat = torch.cat([param.grad.flatten() for param in params if param.grad is not None])
    parts = flat.new_empty(mesh.size(axes) * flat.numel())
    dist.all_gather_into_tensor(parts, flat, group=mesh.group(axes))
    total = parts.view(mesh.size(axes), -1).sum(0)
    for param, part in zip(params, total.split([p.numel() for p in params]), strict=True):
        param.grad = part.view_as(param)


def neighbours(config: GPTConfig, mesh: Mesh, microbatches: int) -> list[Stage]:
    """The tp group of a program that was written for pairs."""
    pair = (mesh.rank // 2 * 2, mesh.rank // 2 * 2 + 1)
    made = mesh._groups.get(pair) or dist.new_group(list(pair), use_local_synchronization=True)
    assert isinstance(made, dist.ProcessGroup)
    mesh._groups[tuple(mesh.ranks("tp"))] = made
    return setup(config, mesh, microbatches)


def all_forwards_first(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    hybrid_step(stages, gpipe(mesh.size("pp"), len(batch)), batch, mesh)


def test_an_all_gather_sends_8_times_as_much_on_16_replicas_and_the_same_on_2() -> None:
    few, many = (
        dry(step=replaced(gather_and_add), sizes=sizes, rank=rank, model=SIXTEEN_LAYERS)
        for sizes, rank in ((EIGHT, 5), (MANY, 517))
    )
    assert few.bytes["dp"] == few.closed.bytes["dp"]
    assert many.bytes["dp"] == 8 * many.closed.bytes["dp"]
    row = next(row for row in many.table().rows if row.what == "dp: bytes sent")
    assert row.mark == "<- 8 times" and row.remark == "1 all_gather"


def test_a_group_of_neighbours_is_a_part_of_tp_on_8_ranks_and_all_of_it_on_2() -> None:
    few = dry(neighbours, sizes=EIGHT, model=SIXTEEN_LAYERS)
    assert not [row for row in few.table().rows if row.mark]
    many = dry(neighbours, sizes=MANY, rank=517, model=SIXTEEN_LAYERS)
    assert "tp" not in many.bytes and many.bytes["part of tp"] > 0
    assert many.by_kind["weights"] > 3 * many.closed.kinds["weights"]


def groups_of_all(config: GPTConfig, mesh: Mesh, microbatches: int) -> list[Stage]:
    """Each rank makes the groups of all ranks, since `new_group` waits for all."""
    made = {
        tuple(axis_ranks(r, mesh.sizes, a))
        for r in range(dist.get_world_size())
        for a in mesh.sizes
    }
    for ranks in sorted(made):
        dist.new_group(list(ranks))
    return setup(config, mesh, microbatches)


@pytest.mark.parametrize(("sizes", "count"), [(EIGHT, 12), (MANY, 320)], ids=["8", "1,024"])
def test_a_rank_that_makes_the_groups_of_all_makes_320(sizes: dict[str, int], count: int) -> None:
    run = dry(groups_of_all, lambda *_: None, sizes=sizes, model=SIXTEEN_LAYERS)
    assert run.setup_calls["pp+dp+tp", "new_group"] == count
    assert run.groups == 1 + 2 * len(sizes)  # the world's; the mesh's, and these


def test_all_forwards_first_keep_every_microbatch() -> None:
    late, early = (
        dry(step=way, sizes=MANY, rank=517, model=SIXTEEN_LAYERS, microbatches=16)
        for way in (all_forwards_first, step)
    )
    assert late.bytes == early.bytes
    assert late.by_kind["activations"] == 4 * early.by_kind["activations"]
    assert early.by_kind["activations"] == early.closed.kinds["activations"]


def test_a_process_that_may_make_no_memory_without_a_name_uses_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, size: int = 0) -> int:
        raise PermissionError

    monkeypatch.setattr(rows, "anonymous_file", refuse)
    descriptor = file_of_one("board", 4096)
    assert os.fstat(descriptor).st_size == 4096
    os.close(descriptor)


# ---- values


def look_at_answers(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    own = torch.tensor([mesh.rank, 7, 8])
    row, parts = torch.empty(24, dtype=torch.long), [torch.empty_like(own) for _ in range(8)]
    dist.all_gather_into_tensor(row, own)
    dist.all_gather(parts, own)
    assert row.tolist() == [mesh.rank, 7, 8] * 8 == torch.cat(parts).tolist()
    dist.all_reduce(own)
    assert own.tolist() == [mesh.rank, 7, 8]
    total = torch.rand(3).sum()
    dist.all_reduce(total)
    assert float(total) == 1.0 and torch.equal(torch.rand(3), torch.zeros(3))
    assert (batch[0][0] < 256).all() and not torch.empty(5, dtype=torch.int32).any()


def test_whole_numbers_have_values_and_the_others_answer_with_the_same() -> None:
    run = dry(lambda *_: [], look_at_answers)
    assert run.calls["pp+dp+tp", "all_gather"] == 2
    assert run.calls["pp+dp+tp", "all_reduce"] == 1
    assert run.calls["numbers", "all_reduce"] == 1  # of a single element


def test_a_model_can_be_converted_and_parameters_have_addresses() -> None:
    def converted(config: GPTConfig, mesh: Mesh, _: int) -> nn.Module:
        model = GPT(config).to(mesh.device).double()
        begins = [param.data_ptr() for param in model.parameters()]
        assert len(set(begins)) == len(begins)
        return model

    run = dry(converted, forward_and_backward, sizes={"dp": 8})
    assert run.by_kind["weights"] == 2 * run.closed.kinds["weights"]


def test_a_mixture_whose_rows_depend_on_values_is_refused() -> None:
    def mixture(config: GPTConfig, mesh: Mesh, count: int) -> list[Stage]:
        schedule = one_f_one_b(mesh.size("pp"), count)
        return mesh_stages(expert_gpt(GPT(config), 4, 2, mesh.group("ep")), mesh, schedule)

    with pytest.raises(RankError, match="computes no floats, and bincount needs their values"):
        dry(mixture, sizes={"pp": 2, "dp": 2, "ep": 2})


# ---- ends


def raises(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    raise ValueError("no such head")


def is_not_written(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    raise NotImplementedError()


def asks_for_values(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    torch.nonzero(torch.rand(3) > 0.5)


def forgets_to_wait(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    dist.isend(torch.ones(3), 0)


def receives_from_any(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    dist.recv(torch.ones(3))


def exits(stages: list[Stage], mesh: Mesh, batch: Batch) -> None:
    os._exit(3)


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (raises, RankError, 'rank 5 of 8 raised ValueError: no such head.*raise ValueError("no such'),
        (is_not_written, NotWritten, "`is_not_written` is not written yet"),
        (asks_for_values, RankError, "computes no floats, and nonzero needs their values.*torch.nonzero"),
        (forgets_to_wait, RankError, "without waiting for isend.dst=0. of float32.3. at test_dry_run.py"),
        (receives_from_any, RankError, "a receive from any source has no sender.*dist.recv"),
        (exits, RankError, "the dry run of rank 5 of 8 died: it called os._exit.3."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_an_error_of_the_program_is_raised_with_its_line(
    wrong: Callable[..., None], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=f"(?s){says.replace('(', '.')}") as caught:
        dry(lambda *_: [], wrong)
    assert "rehearsal.py" not in str(caught.value)


def note_and_wait(stages: list[Stage], mesh: Mesh, batch: Batch, note: Path) -> None:
    note.with_suffix(".new").write_text(str(os.getpid()))
    note.with_suffix(".new").rename(note)
    time.sleep(600)


def test_a_step_that_waits_for_ever_is_ended(
    tmp_path: Path, assert_no_orphans: Callable[..., None]
) -> None:
    note = tmp_path / "pid"
    with pytest.raises(RankTimeout, match=r"not finished in time.*time\.sleep\(600\)"):
        dry(lambda *_: [], partial(note_and_wait, note=note), timeout=1)
    assert_no_orphans([int(note.read_text())])


def test_no_process_is_left_after_a_run(
    tmp_path: Path, assert_no_orphans: Callable[..., None]
) -> None:
    note = tmp_path / "pids"
    dry(lambda *_: [], lambda *_: note.write_text(f"{os.getpid()} {os.getppid()}"))
    assert_no_orphans([int(pid) for pid in note.read_text().split()])


INTERRUPTED = """
from functools import partial
from math import prod
from pathlib import Path
from tests.algorithms.test_dry_run import dry, note_and_wait
try:
    dry(lambda *_: [], partial(note_and_wait, note=Path({note!r})))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_no_process_is_left_after_an_interrupt(
    tmp_path: Path, assert_no_orphans: Callable[..., None]
) -> None:
    note = tmp_path / "pid"
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(note=str(note))],
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.05)
    child = int(note.read_text())
    assert alive(child)
    program.send_signal(signal.SIGINT)
    said, _ = program.communicate(timeout=60)
    assert said.strip().endswith("interrupted") and program.returncode == 0
    assert_no_orphans([child])


# ---- plans that cannot be meant


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rank": 8}, "has the ranks 0 to 7, and rank is 8"),
        ({"rank": -1}, "rank is -1: it must be at least 0"),
        ({"rank": 1.5}, "rank is a whole number, not 1.5"),
        ({"sizes": {"pp": 2, "xp": 4}}, "'xp' is not an axis"),
        ({"sizes": {"pp": 0}}, "it must be at least 1"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"rows": True}, "rows is True"),
        ({"model": 3}, "model is a configuration"),
        ({"dtype": torch.int64}, "dtype is the model's"),
        ({"step": None}, "step is a function"),
        ({"timeout": 0}, "timeout is a positive number"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_meant_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        dry(**changes)


def test_a_mesh_that_does_not_fit_the_model_says_what_the_program_says() -> None:
    with pytest.raises(RankError, match="rank 5 of 12 raised ValueError"):
        dry(sizes={"pp": 2, "dp": 2, "tp": 3})
    run = dry(lambda *_: [], lambda *_: None, sizes={"pp": 2, "dp": 2, "tp": 3})
    assert "there are no closed forms" in run.closed.note and not run.bytes
