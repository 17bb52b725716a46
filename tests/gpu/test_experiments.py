"""The experiments of "On your GPUs": bodies run, records are read and below peaks, a cell shows them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib import RankError
from course_lib.facts import hardware
from course_lib.gpu import Experiment, Row, command, on_your_gpus, rows_named, table
from course_lib.gpu.all import EXPERIMENTS
from course_lib.gpu.experiment import (
    RECORDS,
    UNITS,
    Measured,
    measure,
    recorded,
    usable,
    write_record,
)
from course_lib.gpu.memory import KEPT_OR_NOT, MASKS
from course_lib.gpu.messages import ALL_REDUCES
from course_lib.gpu.pipelines import AXES

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "ranks": 1, "torch": "2.11.0", "nccl": "2.28.9"}


def body(count: int) -> list[Row]:
    return [Row(f"row {k}", 0.5 + k, "s", {"k": k}) for k in range(count)]


TWO_ROWS = Experiment("two rows", "Two rows", 1, body, {"count": 2}, {"count": 2})


def a_run(**changes: Any) -> Measured:
    return replace(Measured(body(2), H100, "2026-12-01", True), **changes)


# ---- bodies


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_a_body_runs_on_the_cpu_and_returns_rows(experiment: Experiment) -> None:
    run = measure(experiment, rehearse=True)
    assert run is not None and run.machine["gpu"] == "CPU"
    assert "no number means anything" in run.where
    assert run.machine["ranks"] == experiment.ranks
    assert run.rows and len({row.what for row in run.rows}) == len(run.rows)
    for row in run.rows:
        assert row.unit in UNITS
        assert json.loads(json.dumps(row.of)) == row.of
        on_gpu_alone = row.unit == "B" or row.of.get("format") == "fp8" or "kernel" in row.of
        assert on_gpu_alone or row.value is not None, row
        assert row.value is None or (math.isfinite(row.value) and row.value >= 0)


def test_experiments_have_names_of_their_own() -> None:
    assert (
        len({one.name for one in EXPERIMENTS})
        == len({one.title for one in EXPERIMENTS})
        == len(EXPERIMENTS)
    )


def slow_sum(tensor: torch.Tensor) -> None:
    torch.distributed.all_reduce(tensor)


def not_written(tensor: torch.Tensor) -> None:
    raise NotImplementedError


def test_a_function_of_the_students_own_is_measured_beside_nccls() -> None:
    run = measure(ALL_REDUCES, rehearse=True, yours=slow_sum)
    assert run is not None
    assert [row.of["bytes"] for row in rows_named(run, name="yours")] == [1 << 12, 1 << 15]
    with pytest.raises(RankError):
        measure(ALL_REDUCES, rehearse=True, yours=not_written)


def keeps_no_generator(function: Callable, x: torch.Tensor) -> torch.Tensor:
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, *grads):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                function(x).backward(grads[0])
            return x.grad

    return Again.apply(x)


def test_other_masks_are_seen() -> None:
    run = measure(MASKS, rehearse=True, yours=keeps_no_generator)
    assert run is not None
    assert [row.of["way"] for row in run.rows] == ["PyTorch's", "yours"]
    assert run.rows[0].value == 0 and (run.rows[1].value or 0) > 0.1


def test_a_checkpoint_of_the_students_own_is_measured_beside_pytorchs() -> None:
    run = measure(KEPT_OR_NOT, rehearse=True, yours=lambda block, *args: block(*args))
    assert run is not None
    assert [row.of["kind"] for row in rows_named(run, way="your checkpoint")] == ["step", "peak"]


def test_layers_are_not_cut_over_ranks_that_do_not_divide_the_heads() -> None:
    run = measure(replace(AXES, ranks=3), rehearse=True)
    assert run is not None
    assert [(row.what, row.value is None) for row in run.rows] == [
        ("dp = 3", False), ("pp = 3", False), ("tp = 3", True)
    ]  # fmt: skip


# ---- without a GPU, and with one


def test_nothing_is_measured_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.gpu.experiment.gpu_count", lambda: 0)
    assert usable() == 0 and measure(TWO_ROWS) is None


def test_too_few_gpus_and_broken_ones_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.gpu.experiment.usable", lambda: 1)
    assert measure(ALL_REDUCES) is None
    monkeypatch.undo()
    monkeypatch.setattr("course_lib.gpu.experiment.gpu_count", lambda: 2)
    monkeypatch.setattr("course_lib.gpu.experiment.dist.is_nccl_available", lambda: True)
    monkeypatch.setattr(
        "course_lib.gpu.experiment.missing_for_nccl", lambda count: "the driver is too old"
    )
    assert usable() == 0


@pytest.mark.parametrize(("gpus", "ranks", "world"), [(1, 1, 1), (4, 1, 1), (4, 2, 4), (16, 2, 8)])
def test_each_rank_has_a_gpu_of_its_own(
    gpus: int, ranks: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with COURSE_RANKS_PER_GPU, and in a session whose other runs are on the CPU."""
    calls = []

    def launch(fn: Callable, *args: Any, **options: Any) -> list:
        calls.append(options)
        assert os.environ["COURSE_LEDGER"] == "off" and "COURSE_RANKS_PER_GPU" not in os.environ
        return [(fn(*args)[0], H100)]

    monkeypatch.setenv("COURSE_RANKS_PER_GPU", "4")
    monkeypatch.setenv("COURSE_BACKEND", "gloo")
    monkeypatch.setattr("course_lib.gpu.experiment.usable", lambda: gpus)
    monkeypatch.setattr("course_lib.gpu.experiment.launch", launch)
    monkeypatch.setattr(
        "course_lib.gpu.experiment.on_each", lambda body, arguments: (body(**arguments), H100)
    )
    run = measure(replace(TWO_ROWS, ranks=ranks))
    assert run is not None and run.here and len(run.rows) == 2
    assert os.environ["COURSE_RANKS_PER_GPU"] == "4" and os.environ.get("COURSE_LEDGER") != "off"
    assert calls == [{"world_size": world, "backend": "nccl", "timeout": 120}]


# ---- records


def test_a_record_is_written_and_the_best_one_is_read(tmp_path: Path) -> None:
    write_record(tmp_path / "one.json", {"two rows": a_run()})
    write_record(tmp_path / "later.json", {"two rows": a_run(date="2026-12-05")})
    write_record(tmp_path / "other.json", {"links": a_run(date="2027-01-01")})
    run = recorded(TWO_ROWS, tmp_path)
    assert run == a_run(date="2026-12-05", here=False)
    assert run is not None and run.where == (
        "recorded on 2026-12-05: 1 x NVIDIA H100 80GB HBM3, PyTorch 2.11.0, NCCL 2.28.9"
    )
    write_record(tmp_path / "more.json", {"two rows": a_run(machine={**H100, "ranks": 4})})
    run = recorded(TWO_ROWS, tmp_path)
    assert run is not None and run.machine["ranks"] == 4, "more GPUs before a later date"
    assert recorded(TWO_ROWS, tmp_path / "nothing") is None


def test_records_in_the_repository_are_of_real_gpus_and_below_their_peaks() -> None:
    entries = [
        (path.name, name, entry)
        for path in sorted(RECORDS.glob("*.json"))
        for name, entry in json.loads(path.read_text()).items()
    ]
    for path, name, entry in entries:
        card = check_record(name, entry["machine"])
        for row in (Row(**row) for row in entry["rows"]):
            assert row.unit in UNITS and (row.value is None or below_peak(row, card)), (path, row)


def check_record(name: str, machine: dict) -> hardware.Gpu:
    assert name in {each.name for each in EXPERIMENTS}
    assert machine["gpu"] != "CPU" and machine["nccl"] != "0.0.0"
    card = hardware.data_sheet(machine["gpu"])
    assert card is not None, f"add the data sheet of {machine['gpu']}"
    return card


def below_peak(row: Row, card: hardware.Gpu) -> bool:
    peaks = {
        "FLOP/s": card.fp8 if row.of.get("format") == "fp8" else card.flops,
        "B": card.memory,
        "B/s": hardware.link(card.host_link).each_way,
    }
    return 0 <= (row.value or 0) <= 1.05 * (peaks.get(row.unit) or math.inf)


def test_a_record_that_cannot_be_is_found() -> None:
    card = check_record("masks", H100)
    assert below_peak(Row("bf16", 9e14, "FLOP/s", {"format": "bf16"}), card)
    assert not below_peak(Row("bf16", 1.9e15, "FLOP/s", {"format": "bf16"}), card)
    assert below_peak(Row("fp8", 1.9e15, "FLOP/s", {"format": "fp8"}), card)
    assert not below_peak(Row("peak", 81e9 * 1.05, "B"), card)
    assert not below_peak(Row("pinned", 70e9, "B/s"), card)
    for wrong in ({**H100, "gpu": "CPU"}, {**H100, "gpu": "NVIDIA GeForce 256"}):
        with pytest.raises(AssertionError):
            check_record("masks", wrong)
    with pytest.raises(AssertionError):
        check_record("speed", H100)


# ---- the cell


def halves(of: dict, run: Measured) -> float:
    return 0.25 + of["k"] / 2


@pytest.mark.parametrize("source", [True, False])
def test_a_cell_shows_predicted_beside_measured(
    source: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folded = []
    monkeypatch.setattr(table, "display", lambda page: folded.append(page.data))
    monkeypatch.setattr(table, "measure", lambda experiment, **options: a_run())
    run = on_your_gpus(TWO_ROWS, predicted=halves, source=source)
    assert run == a_run()
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        [
            "Two",
            "rows,",
            "measured",
            "here:",
            "1",
            "x",
            "NVIDIA",
            "H100",
            "80GB",
            "HBM3,",
            "PyTorch",
            "2.11.0,",
            "NCCL",
            "2.28.9",
        ],
        ["predicted", "measured", "measured", "/", "predicted"],
        ["row", "0", "250", "ms", "500", "ms", "2.00"],
        ["row", "1", "750", "ms", "1.5", "s", "2.00"],
    ]
    assert [("def body" in page and "<details>" in page) for page in folded] == [True] * source


def test_a_cell_shows_a_record_or_says_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(table, "measure", lambda experiment, **options: None)
    monkeypatch.setattr(table, "recorded", lambda experiment: a_run(here=False))
    assert on_your_gpus(TWO_ROWS, source=False) == a_run(here=False)
    assert "recorded on 2026-12-01: 1 x" in capsys.readouterr().out
    monkeypatch.setattr(table, "recorded", lambda experiment: None)
    assert on_your_gpus(replace(TWO_ROWS, ranks=2), source=False) is None
    assert (
        capsys.readouterr().out == "Two rows: no GPU run has been recorded yet. It needs 2 GPUs.\n"
    )


def test_a_cell_says_why_gpus_that_are_here_are_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name, value in (("gpu_count", 2), ("usable", 0), ("missing_for_nccl", "too old a driver.")):
        monkeypatch.setattr(f"course_lib.gpu.experiment.{name}", lambda *_, value=value: value)
    on_your_gpus(TWO_ROWS, source=False)
    assert capsys.readouterr().out.startswith("too old a driver.\nTwo rows: no GPU run")


def test_a_run_that_fails_here_is_explained_and_a_record_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fails(experiment: Experiment, **options: Any) -> None:
        raise RankError("rank 0 raised OutOfMemoryError: no room")

    monkeypatch.setattr(table, "measure", fails)
    monkeypatch.setattr(table, "recorded", lambda experiment: a_run(here=False))
    on_your_gpus(TWO_ROWS, source=False)
    said = capsys.readouterr().out
    assert said.startswith("RankError: rank 0 raised OutOfMemoryError") and "recorded on" in said


def stub(of: dict, run: Measured) -> float:
    raise NotImplementedError


def at_the_peak(of: dict, run: Measured) -> float:
    return run.card.flops


def no_prediction(of: dict, run: Measured) -> None:
    return None


def test_predictions_that_are_not_there(capsys: pytest.CaptureFixture) -> None:
    unknown = a_run(machine={**H100, "gpu": "NVIDIA GeForce 256"})
    assert table.table(a_run(), stub)[1].split() == ["row", "0", "?", "500", "ms"]
    assert table.table(a_run(), no_prediction)[1].split() == ["row", "0", "-", "500", "ms"]
    assert table.table(unknown, at_the_peak)[1:] == [
        "row 0               -          500 ms",
        "row 1               -           1.5 s",
        "course_lib.facts.hardware has no data sheet of NVIDIA GeForce 256, so nothing is predicted.",
    ]
    assert a_run().card == hardware.gpu("H100")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1.5e-6, "s", "1.5 µs"), (0, "s", "0 µs"), (12, "s", "12 s"), (4.9e9, "B", "4.9 GB"),
     (9.89e14, "FLOP/s", "989 TFLOP/s"), (3.35e12, "B/s", "3.35 TB/s"),
     (12345.6, "tokens/s", "12,346 tokens/s"),
     (0.25, "x", "0.25 x"), (None, "s", "-")],
)  # fmt: skip
def test_numbers_with_their_units(value: float | None, unit: str, text: str) -> None:
    assert table.text(value, unit) == text


# ---- the command


def test_the_command_rehearses_measures_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "record.json"
    asked = []

    def fake(experiment: Experiment, rehearse: bool = False) -> Measured | None:
        asked.append((experiment.name, rehearse))
        if experiment.name == "roofline":
            raise RankError("rank 0 raised RuntimeError: no kernel image")
        return None if experiment.ranks == 2 else a_run()

    monkeypatch.setattr(command, "measure", fake)
    monkeypatch.setattr(command, "usable", lambda: 0)
    assert command.main(["--out", str(out)]) == 0 and not out.exists() and not asked
    assert "nothing was measured" in capsys.readouterr().out
    assert command.main(["--rehearse", "--only", "masks", "--out", str(out)]) == 0
    assert asked == [("masks", True)] and not out.exists()
    monkeypatch.setattr(command, "usable", lambda: 1)
    assert command.main(["--out", str(out), "--only", "masks,roofline,states"]) == 1
    said = capsys.readouterr().out
    assert "roofline: RankError" in said and "states: needs 2 GPUs" in said
    assert [*json.loads(out.read_text())] == ["masks"]
    with pytest.raises(SystemExit):
        command.main(["--out", str(out)])
    assert "is there already" in capsys.readouterr().err and [*json.loads(out.read_text())] == [
        "masks"
    ]
    asked.clear()
    assert command.main(["--limit", "1e-9", "--out", str(tmp_path / "b.json")]) == 0 and not asked
    with pytest.raises(SystemExit):
        command.main(["--only", "speed"])
    assert "no such experiment: speed. There are one step, " in capsys.readouterr().err
