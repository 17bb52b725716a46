"""A pipeline in one process, in float64, the standard for the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from course_lib.checks import kit
from course_lib.checks.notebooks.pipeline.recognising import tokens
from course_lib.checks.rank.notebooks.pipeline import stage_models
from course_lib.checks.rank.notebooks.pipeline.fingerprints import fingerprint
from course_lib.checks.rank.notebooks.pipeline.running import (
    END,
    ScheduleRunInstructions,
    SchedulesInstructions,
)
from course_lib.checks.rank.notebooks.pipeline.watching import Kept
from course_lib.pipeline import Action
from course_lib.runtime.moments import BASE

RECIPE = "course_lib.checks.rank.notebooks.pipeline.running:schedules"
SECONDS = 20.0
BACKWARD = ("torch.fx.experimental.symbolic_shapes",)  # the first backward with a gradient imports it
FLOAT = 8  # bytes
WIDTH = 6
FORBIDDEN = kit.BUILT_IN - {"barrier"}  # NCCL makes its connections in it
ROOM = 1_000_000  # bytes that a student's objects take when they are read
WIDE, ROWS, COLUMNS = 64, 16, 128  # features; rows, at least, and columns of a microbatch
DIFFERENT = 3  # wide microbatches
Row = Sequence[Action]
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class ScheduleRun:
    """One schedule, to be done on as many ranks as it has rows; stage i is rank i's.

    kind, seed, width: of the stages, see `stage_models`. batch: inputs and targets of each microbatch.
    earlier: for each stage the gradients that are there before, by name; empty: none. pages: whether each
    rank's process is measured during the run, from outside. No stage reports its inputs then: that would take
    memory, too.
    """

    name: str
    kind: str
    seed: int
    actions: Sequence[Row]
    batch: Sequence[tuple[Tensor, Tensor]]
    earlier: Sequence[Terms] = ()
    width: int = WIDTH
    pages: bool = False

    @property
    def size(self) -> int:
        return len(self.actions)

    @property
    def described(self) -> dict:
        return {"kind": self.kind, "seed": self.seed, "stages": self.size, "width": self.width}

    @cached_property
    def stages(self) -> list[nn.Module]:
        return [stage_models.build(self.described, index) for index in range(self.size)]

    @cached_property
    def counts(self) -> list[int]:
        """How many targets of each microbatch count."""
        return [int(stage_models.LOSSES[self.kind][1](targets)) for _, targets in self.batch]

    @cached_property
    def passes(self) -> list[tuple[float, list[Terms], list[list[float]], list[int]]]:
        """Of each microbatch: the sum of its losses; for each stage the gradients of this sum, the
        fingerprint of its input, and the bytes that are kept for backward."""
        known = {id(x): self._passed(x, targets) for x, targets in self.batch}
        return [known[id(x)] for x, _ in self.batch]

    def _passed(self, x: Tensor, targets: Tensor) -> tuple:
        prints, kept = [], []
        for stage in self.stages:
            prints.append([] if self.pages else fingerprint(x))
            with Kept(stage.parameters()) as saved:
                x = stage(x)
            # kept by all stages together: each has its part; its input counts for each
            kept.append(saved.nbytes())
        loss = stage_models.LOSSES[self.kind][0](x, targets)
        names = [(i, name) for i, module in enumerate(self.stages) for name, _ in module.named_parameters()]
        params = [p for module in self.stages for p in module.parameters()]
        terms: list[Terms] = [{} for _ in self.stages]
        for (i, name), gradient in zip(names, torch.autograd.grad(loss, params), strict=True):
            terms[i][name] = gradient
        return float(loss.detach()), terms, prints, kept

    def loss(self, k: int) -> float:
        """The sum over microbatch k's targets."""
        return self.passes[k][0]

    def term(self, k: int, stage: int) -> Terms:
        """The gradients of `loss(k)` for a stage's parameters."""
        return self.passes[k][1][stage]

    def kept(self, k: int, stage: int) -> int:
        """Bytes that a stage keeps for the backward of microbatch k."""
        return self.passes[k][3][stage]

    def incoming(self, stage: int) -> list[list[float]]:
        """The fingerprint of a stage's input, for each microbatch."""
        return [prints[stage] for _, _, prints, _ in self.passes]

    def gradients(self, stage: int) -> Terms:
        """The gradients that the parameters of a stage must have in the end."""
        total = sum(self.counts)
        gradients = {
            name: torch.stack([self.term(k, stage)[name] for k in range(len(self.batch))]).sum(0) / total
            for name in self.term(0, stage)
        }
        for name, before in (self.earlier[stage] if self.earlier else {}).items():
            gradients[name] = gradients[name] + before
        return gradients

    @property
    def losses(self) -> Tensor:
        """Each microbatch's part of the loss."""
        sums = [self.loss(k) for k in range(len(self.batch))]
        return torch.tensor(sums, dtype=torch.float64) / sum(self.counts)

    def nbytes(self, k: int) -> int:
        """Of microbatch k's activation between two stages, and of its gradient."""
        return FLOAT * torch.Size(stage_models.boundary(self.kind, self.width, self.batch[k][0])).numel()

    @property
    def sent(self) -> int:
        """Bytes that all ranks send together, at least."""
        return self.sent_by_the_end(0)

    def sent_by_the_end(self, stage: int) -> int:
        """Bytes that all ranks have sent, at least, when this stage has done its last backward.

        These are all of forward's messages, and backward's down to this stage.
        """
        hops = self.size - 1 + self.size - 1 - stage
        return hops * sum(self.nbytes(k) for k in range(len(self.batch)))

    # ---- what a rank is given, and hands back

    @property
    def moments(self) -> tuple[str, ...]:
        """Those at which a rank is measured: just before the run and just after it."""
        return (f"{self.name}.pages.{BASE}", f"{self.name}.pages.{END}") if self.pages else ()

    def outputs(self, stage: int) -> dict[str, kit.Spec]:
        specs = {f"grad.{name}": kit.Spec.of(gradient) for name, gradient in self.term(0, stage).items()}
        if stage == self.size - 1:
            specs["losses"] = kit.Spec(torch.float64, (len(self.batch),))
        return specs

    def side(self, stage: int, group: int | None) -> kit.RankSide:
        inputs: dict[str, Tensor] = {}
        for k, (x, targets) in enumerate(self.batch):
            inputs |= {f"{self.name}.x.{k}": x, f"{self.name}.t.{k}": targets}
        for name, gradient in (self.earlier[stage] if self.earlier else {}).items():
            inputs[f"{self.name}.earlier.{name}"] = gradient
        outputs = self.outputs(stage)
        instructions = ScheduleRunInstructions(
            name=self.name, model=self.described, index=stage, batch=len(self.batch), group=group,
            actions=[[list(action) for action in row] for row in self.actions],
            earlier=bool(self.earlier), pages=list(self.batch[0][0].shape) if self.pages else [],
            expects={name: spec.agreed() for name, spec in outputs.items()},
        )  # fmt: skip
        named = {f"{self.name}.{name}": spec for name, spec in outputs.items()}
        return kit.RankSide(inputs, SchedulesInstructions([instructions]), named)


def case(
    title: str,
    runs: Sequence[ScheduleRun],
    lines: Sequence[kit.Line],
    *,
    members: Sequence[int] = (),
    world_size: int = 0,
    remark: Callable[[kit.Observed], Sequence[str]] | None = None,
) -> kit.Case:
    """The runs one after the other in one launch. members: the ranks that take part, of world_size; they
    are passed as group=. Left out: all, and no group."""
    ranks, group = (list(members), 0) if members else (list(range(runs[0].size)), None)
    sides = {}
    for stage, rank in enumerate(ranks):
        parts = [run.side(stage, group) for run in runs]
        sides[rank] = kit.RankSide(
            {name: tensor for part in parts for name, tensor in part.inputs.items()},
            SchedulesInstructions([run for part in parts for run in part.instructions.runs]),
            {name: spec for part in parts for name, spec in part.outputs.items()},
        )
    return kit.Case(
        title,
        [sides.get(rank) or kit.absent() for rank in range(world_size or len(ranks))],
        list(lines),
        recipe=RECIPE,
        groups=[ranks] if members else [],
        needed=sum(run.sent for run in runs),
        timeout=SECONDS,
        imports=BACKWARD,
        moments=tuple(moment for run in runs for moment in run.moments),
        room=ROOM,
        forbidden=FORBIDDEN,
        remark=remark,
    )


# ---- microbatches and schedules


def microbatches(draw: kit.Draw, kind: str, count: int) -> list[tuple[Tensor, Tensor]]:
    """Each has one to three rows and three to five columns, and no neighbour of its size.

    Some targets of tokens do not count. No two have the same inputs, and no two neighbours equally many
    targets that count.
    """
    shapes = [(1 + (k + draw.integer(0, 2)) % 3, 3 + k % 3) for k in range(count)]
    if kind == "numbers":
        pairs = [draw.normal(2, *shape, WIDTH, dtype=torch.float64) for shape in shapes]
        return [(x, targets) for x, targets in pairs]
    batch, before = [], 0
    for x, (rows, columns) in zip(tokens(draw, shapes, stage_models.VOCABULARY), shapes, strict=True):
        ignored = draw.choice([n for n in range(3) if rows * (columns - n) != before])
        before = rows * (columns - ignored)
        targets = torch.randint(stage_models.VOCABULARY, x.shape, generator=draw.generator)
        targets[:, :ignored] = -100
        batch.append((x, targets))
    return batch


def wide_microbatches(draw: kit.Draw, count: int) -> list[tuple[Tensor, Tensor]]:
    """Tokens and targets whose activations, `WIDE` features each, have some 1.1 MB: pages are counted then.

    The same few again and again: a judge that computes all of them takes as long as the ranks.
    """
    pairs = []
    for more in range(DIFFERENT):
        shape = ROWS + more, COLUMNS
        pairs.append([torch.randint(stage_models.VOCABULARY, shape, generator=draw.generator) for _ in "xt"])
    return [(x, targets) for x, targets in (pairs * count)[:count]]


def any_order(draw: kit.Draw, stages: int, count: int, overtaking: bool) -> list[list[Action]]:
    """A valid schedule without any plan: again and again something that can be done.

    overtaking: stages may do the microbatches in different orders; else all have one order of forwards, and
    one of backwards.
    """
    rows: list[list[Action]] = [[] for _ in range(stages)]
    todo = [Action(0, "F", k) for k in range(count)]
    while todo:
        able = todo
        if not overtaking:  # the oldest of each stage and kind alone
            able = [action for i, action in enumerate(todo) if all(action[:2] != o[:2] for o in todo[:i])]
        stage, kind, k = action = draw.choice(able)
        todo.remove(action)
        rows[stage].append(action)
        if kind == "F" and stage < stages - 1:
            todo.append(Action(stage + 1, "F", k))
        elif kind == "F":
            todo.append(Action(stage, "B", k))
        elif stage:
            todo.append(Action(stage - 1, "B", k))
    return rows


def mixed_order(draw: kit.Draw, stages: int, count: int, overtaking: bool) -> list[list[Action]]:
    """One of `any_order` that GPipe's is not: on every rank a backward comes before the last forward."""
    while True:
        rows = any_order(draw, stages, count, overtaking)
        kinds = ["".join(action.kind for action in row) for row in rows]
        if all(row.index("B") < row.rindex("F") for row in kinds):
            return rows
