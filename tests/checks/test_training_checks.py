"""Checks that train a model: right solutions pass, mistakes are named, no memory or message stays hidden."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from autograder.sample.mutants import read_mutants
from course_lib.checks import words
from course_lib.checks.judge import judge, training_runs
from course_lib.checks.judge.case import RIGHT, Case, Draw, Exercise, Line, wrong
from course_lib.checks.judge.training_runs import single
from course_lib.checks.notebooks.data_parallel import bucketed, early
from course_lib.checks.notebooks.fsdp.hybrid import begun_together
from course_lib.checks.notebooks.zero import stages
from course_lib.checks.rank import refusing, toys, watching
from course_lib.checks.report import WAITS
from course_lib.checks.wire import NotAsAgreed, decode, reply_type
from course_lib.runtime import wire
from course_lib.runtime.held import held
from tests.checks.test_mutants import judged as judged_mutant

MUTANTS = Path(__file__).parents[1] / "mutants" / "03_data_parallel"
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9})
WIDE, DEEP = 384, 6
WHOLE = DEEP * WIDE * (WIDE + 1) * 4  # bytes of the parameters


class Right(nn.Module):
    """One all-reduce for each gradient, after backward."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    def finish_gradient_synchronization(self) -> None:
        for p in self.module.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()


class OwnStart(Right):
    def __init__(self, module: nn.Module):
        nn.Module.__init__(self)
        self.module = module


class NotSent(Right):
    def finish_gradient_synchronization(self) -> None:
        return None


class NotDivided(Right):
    def finish_gradient_synchronization(self) -> None:
        for p in self.module.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)


class LastOnly(Right):
    """Gradients of the microbatches under no_sync stay away from the exchange."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield
        self.kept = getattr(self, "kept", {})
        for p in self.module.parameters():
            if p.grad is not None:
                self.kept[p] = self.kept.get(p, 0) + p.grad
                p.grad = None

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        for p, kept in getattr(self, "kept", {}).items():
            p.grad += kept
        self.kept = {}


class InHooks(Right):
    """All-reduces begin in backward; all are awaited afterwards."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        self.begun: list = []
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.begin)

    def begin(self, p: torch.Tensor) -> None:
        self.begun.append((p, dist.all_reduce(p.grad, async_op=True)))

    def finish_gradient_synchronization(self) -> None:
        for p, handle in self.begun:
            handle.wait()
            p.grad /= dist.get_world_size()
        self.begun.clear()


class WaitsInHooks(InHooks):
    def begin(self, p: torch.Tensor) -> None:
        dist.all_reduce(p.grad)
        self.begun.append((p, type("Handle", (), {"wait": lambda self: None})()))


class Hoarder(Right):
    """A second copy of everything, in a place that no walk over tensors finds."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        copies = [p.detach().numpy().copy().tobytes() for p in module.parameters()]
        self.look = MethodType(lambda _, kept=copies: len(kept), self)


class Filer(Right):
    """The same copies in a file, which is memory where a sandbox gave the rank its own folder."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        fd, path = tempfile.mkstemp(dir="/dev/shm")
        os.unlink(path)
        for p in module.parameters():
            os.write(fd, p.detach().numpy().copy().tobytes())
        self.seen = mmap.mmap(fd, 0)
        sum(self.seen[:])


class AloneOnRank0(Right):
    """Its first rank gathers from all ranks, and no other rank joins."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if dist.get_rank() == 0:
            one = torch.ones(4)
            dist.all_gather([torch.empty(4) for _ in range(dist.get_world_size())], one)


class OneBucket(Right):
    """All gradients in one message, with any bucket_bytes."""

    def __init__(self, module: nn.Module, bucket_bytes: int):
        super().__init__(module)

    def finish_gradient_synchronization(self) -> None:
        held = [p for p in self.module.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in held]
        flat = torch.cat([one.flatten() for one in grads]) / dist.get_world_size()
        dist.all_reduce(flat)
        for p, part in zip(held, flat.split([p.numel() for p in held]), strict=True):
            p.grad = part.view_as(p)


class Forger(Right):
    """Nothing is sent during backward; the notes of the hooks on the blocks are changed afterwards."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        (hook,) = self.module.blocks[0]._forward_hooks.values()  # pyright: ignore
        for cell in hook.__closure__ or ():
            for one in getattr(cell.cell_contents, "passes", ()):
                for entry in one:
                    object.__setattr__(entry, "begun", entry.begun + 2)


class OwnStartOptimizer:
    """Gradients are averaged; each rank trains the model that it made."""

    def __init__(self, params: list[nn.Parameter], optimizer_cls: type, **defaults: object):
        self.params = params
        self.optimizer = optimizer_cls(params, **defaults)

    def step(self) -> None:
        for p in self.params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


def training(
    n: int, model: dict, *, micro: int = 1, steps: int = 2, **more: object
) -> single.Training:
    given = [
        [
            [
                {"seed": 1000 * rank + 10 * step + k, "samples": 3, "width": model["width"]}
                for k in range(micro)
            ]
            for step in range(steps)
        ]
        for rank in range(n)
    ]  # fmt: skip
    return single.Training({"seed": 5, **model}, SGD, given, **more)  # pyright: ignore[reportArgumentType]


def judged(make: type, *cases: Case) -> dict[str, dict]:
    """The lines of the report by title."""

    def yields(draw: Draw) -> Iterator[Case]:
        yield from cases

    exercise = Exercise("made", 1.0, ("Made",), yields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "find", lambda name: exercise)
        report = judge.judge("made", wire.dumps((make,)), 0)
    return {line["title"].partition(":")[0]: line for line in report["lines"]}


def values(n: int, model: dict, micro: int = 1) -> Case:
    run = training(n, model, micro=micro, more={"no_sync": micro > 1})
    told = [
        training_runs.same_as_one_process(what, run, what, mistakes=training_runs.common(n))
        for what in ("start", "grad", "param")
    ]
    return training_runs.training_case("replicas", "values", run, told)


def overlap_and_memory(n: int = 2) -> Case:
    model = {"name": "plain", "width": WIDE, "depth": DEEP, "dtype": "float32"}
    run = training(n, model, steps=1, tell=(), more={"memory": True})
    return training_runs.training_case(
        "replicas", "overlap", run,
        [
            Line("values", lambda seen: RIGHT),
            early.during_backward_line(title="overlap"),
            training_runs.volume_line(
                [2 * (n - 1) / n * WHOLE + (WHOLE if r == 0 else 0) for r in range(n)], most=[3 * WHOLE] * n,
            ),
            training_runs.held_line(
                [("at the start", 0, WHOLE), ("after the step", 2, 3 * WHOLE)], slack=1e6
            ),
            training_runs.peak_line(3 * WHOLE, slack=1e6),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("model", [
    {"name": "traps", "width": 5}, {"name": "plain", "width": 6, "depth": 3, "dtype": "float32"},
], ids=lambda model: model["name"])  # fmt: skip
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_right_passes(model: dict, n: int) -> None:
    for micro in (1, 3):
        found = judged(Right, values(n, model, micro))
        assert all(line["passed"] for line in found.values()), found


@pytest.mark.parametrize(
    ("make", "micro", "wrong", "says"),
    [
        (OwnStart, 1, "start", "start from the first rank's"),
        (NotSent, 1, "grad", "nothing was exchanged"),
        (NotDivided, 1, "grad", "divide it by their number"),
        (LastOnly, 3, "grad", "Only the last microbatch was exchanged"),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_what_is_wrong_is_named(make: type, micro: int, wrong: str, says: str) -> None:
    found = judged(make, values(3, {"name": "plain", "width": 4}, micro))
    assert not found[wrong]["passed"]
    assert says in " ".join(found[wrong]["sentences"])


@pytest.mark.parametrize(
    ("make", "wrong", "says"),
    [
        (InHooks, None, ""),
        (Right, "overlap", "nothing had been sent"),
        (Forger, "overlap", "nothing had been sent"),
        (WaitsInHooks, "overlap", "nothing overlaps"),
        (Hoarder, "memory held", "are enough"),
        (Filer, "memory held", "are enough"),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_overlap_and_memory_are_seen_from_outside(make: type, wrong: str | None, says: str) -> None:
    found = judged(make, overlap_and_memory())
    failed = {title: line for title, line in found.items() if not line["passed"]}
    assert (wrong is None and not failed) or (wrong in failed), failed
    assert says in " ".join(str(line) for line in failed.values())


def test_a_rank_alone_in_a_collective_is_found_where_memory_is_watched() -> None:
    """The others wait for it in `watching.settle`, beside the record: that must not take all the time."""
    found = judged(AloneOnRank0, overlap_and_memory())
    (told, *_) = (" ".join(line["sentences"]) for line in found.values() if line["sentences"])
    assert told.startswith("deadlock: rank 0 waits for rank 1")
    assert "dist.all_gather" in told and "not finished after" not in told


def test_hidden_cases_tell_whether_bucket_bytes_is_looked_at(seed: int) -> None:
    cases = bucketed.bucketed_data_parallel.cases(Draw(seed, hidden=True))
    tiny = next(case for case in cases if case.title == "tiny buckets")
    found = judged(OneBucket, tiny)
    right, wrong = found.values()
    assert right["passed"] and not wrong["passed"]
    assert "with bucket_bytes=1 1 bucket left" in " ".join(wrong["sentences"])


def test_a_wrong_start_is_named_also_where_nothing_else_looks_at_the_start(seed: int) -> None:
    cases = stages.zero1_optimizer.cases(Draw(seed))
    sometimes = next(case for case in cases if "a block that not every rank uses" in case.title)
    (line,) = judged(OwnStartOptimizer, sometimes).values()
    told = " ".join(line["sentences"])
    assert "must start from the first rank's" in told and "have no gradient" not in told


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        (-0.29588, 1.5, ("-0.2959", "1.5")),
        (-0.295881, -0.295883, ("-0.295881", "-0.295883")),
        (1.0, 1.0 + 2**-52, ("1", "1.0000000000000002")),
        (float("nan"), 2.0, ("nan", "2")),
    ],
)
def test_numbers_are_shown_with_as_many_digits_as_tell_them_apart(
    one: float, other: float, shown: tuple[str, str]
) -> None:
    assert words.apart(one, other) == shown


def test_a_steps_bytes_and_what_the_run_ends_with() -> None:
    n, model = 2, {"name": "plain", "width": WIDE, "depth": 2, "dtype": "float32"}
    run = training(n, model, tell=("end",))
    step = 2 * (n - 1) / n * 2 * WIDE * (WIDE + 1) * 4
    told = [
        training_runs.same_as_one_process("end", run, "end", mistakes=training_runs.common(n)),
        training_runs.volume_line([step] * n, title="second step", between=(2, 4)),
        training_runs.volume_line([step] * n, title="whole run"),
    ]
    found = judged(Right, training_runs.training_case("replicas", "bytes", run, told))
    assert {title: line["passed"] for title, line in found.items()} == {
        "end": True, "second step": True, "whole run": False,
    }  # fmt: skip
    wrong = judged(NotDivided, training_runs.training_case("replicas", "bytes", run, told[:1]))
    assert "divide it by their number" in " ".join(wrong["end"]["sentences"])


def test_one_process_on_all_data_is_what_torch_computes(seed: int) -> None:
    """The judge's own arithmetic: the mean over the ranks is the gradient of the mean over all samples."""
    run = training(3, {"name": "traps", "width": 4, "seed": seed % 1000}, micro=2, steps=1)
    model = run.built()
    batches = [toys.batch(one, torch.float64) for rank in run.steps for one in rank[0]]
    x, y = (torch.cat(column) for column in zip(*batches, strict=True))
    nn.functional.mse_loss(model(x), y).backward()
    expected = single.train(run)
    for name, p in model.named_parameters():
        if p.requires_grad and p.grad is not None:
            torch.testing.assert_close(expected[f"grad.0.{name}"], p.grad)


def test_ranks_that_tell_nonsense_are_wrong() -> None:
    """Values come from a student's process: any JSON may stand there. A missing value counts as nothing."""
    case = overlap_and_memory()
    kind = reply_type(case.recipe)
    for nonsense in (None, 7, "x", [[1]], [["a", "b", "c"]], {"a": 1}):
        for name in ("passes", "without", "begun"):
            with pytest.raises(NotAsAgreed):
                decode(kind, {name: nonsense})
    for nonsense in (None, [], "x", {"other": []}):
        with pytest.raises(NotAsAgreed):
            decode(kind, nonsense)
    nothing = decode(kind, {})
    seen = judge.Observed(case, [{}, {}], [nothing] * 2, None, [[], []], [{}, {}])  # pyright: ignore[reportArgumentType]
    looked_at = {"overlap", "memory held", "peak of memory"}
    for line in case.lines:
        if line.title in looked_at:
            looked_at.remove(line.title)
            assert not line.judge(seen).ok, line.title
    assert not looked_at
    assert training_runs.within(seen, (0, 1)) == [[], []]


def bytes_held() -> int:
    watching.give_back()
    return held(os.getpid()).whole


def test_memory_that_was_freed_does_not_count() -> None:
    watching.give_back_at_once()
    before = bytes_held()
    make: Callable[[], torch.Tensor] = torch.ones(4_000_000).clone
    tensor = make()
    assert bytes_held() - before > 15e6
    del tensor, make
    assert bytes_held() - before < 1e6


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files without a name are Linux's")
def test_a_file_that_is_memory_counts_once_whether_it_is_mapped_or_not() -> None:
    before, fd = bytes_held(), os.memfd_create("kept")
    os.write(fd, bytes(4_000_000))
    assert 3.9e6 < bytes_held() - before < 5e6
    with mmap.mmap(fd, 4_000_000) as mapped:
        assert sum(mapped[:]) == 0
        assert bytes_held() - before < 5e6
    os.close(fd)
    assert bytes_held() - before < 1e6


def test_a_buffer_that_forward_does_not_write_tells_the_ranks_apart() -> None:
    models = [toys.build({"name": "shifted", "width": 4, "seed": seed}) for seed in (1, 2, 1)]
    before, other, same = (
        dict(model.named_buffers())["blocks.1.shift"].clone() for model in models
    )
    assert torch.equal(before, same) and not torch.equal(before, other)
    models[0](torch.ones(2, 4, dtype=torch.float64))
    assert torch.equal(before, dict(models[0].named_buffers())["blocks.1.shift"])


@pytest.mark.parametrize(("misses", "score"), [(True, 0.5), (False, 0.9)])
def test_without_its_point_an_exercise_earns_half(misses: bool, score: float) -> None:
    case = values(1, {"name": "plain", "width": 3})
    exercise = Exercise("made", 1.0, ("Made",), lambda draw: iter(()), point="holding less")
    judged = [
        judge.Judged(case, Line("values", lambda seen: RIGHT, 9.0), RIGHT),
        judge.Judged(
            case,
            Line("memory", lambda seen: RIGHT, 1.0, "memory"),
            wrong("too much", misses_point=misses),
        ),
    ]
    report = judge.conclude("made", exercise, judged, 0, "visible")
    assert report.score == score
    assert ("The exercise is about holding less" in " ".join(report.messages)) == misses


@pytest.mark.parametrize(
    ("proves", "other", "score"),
    [
        ("", "", 0.9),
        ("memory", "", 0.5),
        ("memory", "memory", 0.9),  # another run shows the same part
        ("memory", "messages", 0.5),
    ],
)
@pytest.mark.parametrize("broken", ["the run", "the call"])
def test_a_run_that_breaks_hides_no_missing_point(
    proves: str, other: str, score: float, broken: str
) -> None:
    """A solution that raises an error where its memory would be measured has shown nothing."""
    exercise = Exercise("made", 1.0, ("Made",), lambda draw: iter(()), point="holding less")
    case = values(1, {"name": "plain", "width": 3})
    one, two = replace(case, proves=other), replace(case, title="long", proves=proves)
    right = Line("values", lambda seen: RIGHT, 0.05)
    kept = Line("kept", lambda seen: RIGHT, 0.05, "memory")
    finding = replace(wrong("it raised an error."), raised=broken == "the call")
    unjudged, note = (judge.BROKEN, "") if broken == "the run" else ("", WAITS)
    judged = [
        judge.Judged(one, replace(right, weight=0.9), RIGHT),
        judge.Judged(one, replace(kept, weight=0.0), RIGHT),
        judge.Judged(two, right, finding, unjudged=unjudged),
        judge.Judged(two, kept, finding, note=note, unjudged=unjudged),
    ]
    report = judge.conclude("made", exercise, judged, 0, "visible")
    assert report.score == score
    said = "The exercise is about holding less. No run shows that, so at most half"
    assert (said in " ".join(report.messages)) == (score == 0.5)


@pytest.mark.parametrize(
    ("shares", "score"),
    [
        ((0.9, 0.6), 0.5),
        ((0.0, 0.6), 0.5),
        ((0.0, 0.4), 0.1),  # hardly anything was sent
        ((0.9, -1.0), 0.1),  # in one run more than is due
        ((), 0.1),
    ],
)
@pytest.mark.parametrize("point", ["holding less", ""])
def test_wrong_values_keep_half_if_the_run_shows_the_point(
    shares: tuple[float, ...], score: float, point: str
) -> None:
    case = values(1, {"name": "plain", "width": 3})
    exercise = Exercise("made", 1.0, ("Made",), lambda draw: iter(()), point=point)
    judged = [
        judge.Judged(case, Line("small", lambda seen: RIGHT), RIGHT),
        judge.Judged(case, Line("values", lambda seen: RIGHT, 9.0), wrong("too large.")),
    ]
    bytes_line = Line("bytes", lambda seen: RIGHT, 0.0, "communication", shows=lambda seen: 1.0)
    judged += [
        judge.Judged(case, bytes_line, wrong(cause="values"), note=WAITS, shown=one)
        for one in shares
    ]
    report = judge.conclude("made", exercise, judged, 0, "visible")
    assert report.score == (score if point else 0.1)
    said = " ".join(report.messages)
    assert ("Half of the points are earned all the same" in said) == (report.score == 0.5)


@pytest.mark.parametrize(
    ("shown", "score"),
    [
        ({"values": 1.0, "place": 0.6}, 0.5),
        ({"values": 1.0, "place": 0.0}, 0.1),
        ({"values": 0.0, "place": 1.0}, 0.1),
        ({"values": 1.0, "place": None}, 0.1),  # that run broke off
    ],
)
def test_a_point_of_several_parts_is_shown_if_each_of_them_is(
    shown: dict[str, float | None], score: float
) -> None:
    case = values(1, {"name": "plain", "width": 3})
    exercise = Exercise("made", 1.0, ("Made",), lambda draw: iter(()), point="holding less")
    judged = [
        judge.Judged(case, Line("small", lambda seen: RIGHT), RIGHT),
        judge.Judged(case, Line("values", lambda seen: RIGHT, 9.0), wrong("too large.")),
    ]
    for part, one in shown.items():
        line = Line(part, lambda seen: RIGHT, 0.0, shows=lambda seen: 1.0, part=part)
        judged.append(judge.Judged(case, line, wrong("too large."), shown=one))
    assert judge.conclude("made", exercise, judged, 0, "visible").score == score


@pytest.mark.parametrize(
    ("exercise", "title", "most"),
    [
        ("shard_indices", "PyTorch's DistributedSampler inside", 0.0),
        ("int8_all_reduce", "every rank sends all of its tensor to all", 0.5),
        ("int8_all_reduce", "gathered on rank 0, and broadcast from there", 0.5),
    ],
)
def test_right_values_that_came_another_way_than_asked_earn_half_at_most(
    exercise: str, title: str, most: float, seed: int
) -> None:
    file = MUTANTS / f"{exercise}.py"
    (mutant,) = (one for one in read_mutants(file) if one.title == title)
    report, printed = judged_mutant(f"{file.parent.name}/{exercise}", mutant, seed, whole=True)
    assert report.score == most, printed


def test_what_is_refused_cannot_be_made_nor_used_and_is_there_again_afterwards() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6))
    sampler = torch.utils.data.DistributedSampler(data, 2, 1, shuffle=False)
    refused = {
        "torch.utils.data.distributed:DistributedSampler": "no",
        "torch.utils.data:Nothing": "no",
    }
    with refusing.refused(refused):
        for use in (
            lambda: torch.utils.data.DistributedSampler(data, 2, 1),
            lambda: iter(sampler),
        ):
            with pytest.raises(RuntimeError, match="no"):
                use()
    assert list(sampler) == [1, 3, 5]


@pytest.mark.parametrize(
    "name", ["zero1_optimizer", "zero2_optimizer", "zero3_unit", "zero3_module"]
)
def test_who_starts_from_the_first_rank_of_the_world_is_told(name: str, seed: int) -> None:
    """It should start from the group's first rank: only a group that does not begin with rank 0 shows it."""
    right = next(
        one for one in read_mutants(MUTANTS.parent / "04_zero" / f"{name}.py") if one.right
    )
    code = right.text.replace("group_src=0,", "0,")
    assert code != right.text
    says = "group_src="
    report, printed = judged_mutant(
        f"04_zero/{name}", replace(right, right=False, text=code, says=says), seed
    )
    assert report.score < 1 and any(says in said for said in report.messages), printed


@pytest.mark.parametrize(
    ("groups", "issued", "told"),
    [(((0, 1), (0, 2)), 1.0, True), (((0, 1), (0, 2)), 3.0, False), (((0, 1), (0, 1)), 1.0, False)],
)
def test_two_collectives_in_flight_of_which_one_needs_the_other_are_seen(
    groups: tuple, issued: float, told: bool
) -> None:
    """The first one was waited for at 2.0."""
    first = SimpleNamespace(group=groups[0], issued=0.0, waited_at=2.0)
    second = SimpleNamespace(group=groups[1], issued=issued, waited_at=4.0)
    observed: Any = SimpleNamespace(operations=[[], [first, second]])
    assert begun_together(observed) == told
