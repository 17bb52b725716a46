"""In the judge: the runs of a layer on the ranks, and the tensors that must come back. See `rank.layers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.judge.build import absent
from course_lib.checks.judge.case import Case, Line, RankSide, Spec
from course_lib.checks.judge.compare import Tensors
from course_lib.checks.rank.layers import LayerInstructions, LayersInstructions

RECIPE = "course_lib.checks.rank.layers:layers"
SECONDS = 20.0  # PyTorch's parts that a class may name take a rank some of them to import
ROOM = 800_000  # bytes that libraries take in the runs before
BEFORE, MADE, FORWARD, BACKWARD = range(4)  # places in "begun" of `rank.layers`
DIRECTIONS = {"made": (BEFORE, MADE), "forward": (MADE, FORWARD), "backward": (FORWARD, BACKWARD)}


@dataclass(frozen=True)
class LayerRun:
    """One layer on some ranks, or one call of a function if `make` is left out.

    inputs: for each of these ranks, the arguments of its call, in order; gradient: the output's, for each;
        left out: no backward.
    wanted: for each rank the tensors that must come back, in the order in which they are looked at: "y",
        "grad.NAME" of an input, "p.NAME" and "grad.p.NAME" of the parameter whose name ends so, "again".
    make: arguments and keyword arguments of the class, made with the default generator in the state `seed`.
    norm: weight and bias of an nn.LayerNorm that is the first argument; eps: the norm's.
    model: description of a GPT that is the first argument.
    drawn: two numbers of the default generator come back too, as "drawn".
    evaluates: the layer is called after eval(), as in evaluation.
    pages: the process's pages are counted, since the layer is large enough to be seen among them.
    each: further keyword arguments of the call, for each of these ranks; left out: none.
    The rest: see `rank.layers`.
    """

    name: str
    inputs: Sequence[Tensors]
    wanted: Sequence[Tensors]
    gradient: Sequence[torch.Tensor] | None = None
    make: tuple[Sequence, Mapping[str, Any]] | None = None
    norm: Sequence[torch.Tensor] = ()
    eps: float = 1e-5
    model: Mapping[str, Any] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    each: Sequence[Mapping[str, Any]] = ()
    object: int = 0
    seed: int = 0
    lr: float | None = None
    fixed: tuple[str, ...] = ()
    views: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)
    refuses: bool = False
    drawn: bool = False
    evaluates: bool = False
    pages: bool = False

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return len(self.inputs)

    def looked_at(self, moment: str) -> bool:
        """Whether the pages of the process are counted there: "made", "forward" or "backward"."""
        return self.pages and moment in ("base", "made", "backward")

    def by_then(self, begun: Sequence[int], moment: str) -> tuple[int, int]:
        """Operations that a rank has begun when measured as `moment`, and those whose bytes have gone by.

        begun: how many it had begun at each place, as the reply tells.
        """
        before, last = DIRECTIONS[moment]
        return begun[last], begun[before]

    def instructions(self, k: int, group: int | None) -> LayerInstructions:
        prefix = f"{self.name}."
        return LayerInstructions(
            name=self.name, object=self.object, seed=self.seed,
            kwargs={**self.kwargs, **(self.each[k] if self.each else {})},
            inputs=[[name, prefix + name] for name in self.inputs[k]],
            expects={name: spec.agreed() for name, spec in self.outputs(k).items()},
            make=None if self.make is None else [list(self.make[0]), dict(self.make[1])],
            norm=[f"{prefix}norm.weight", f"{prefix}norm.bias"] if self.norm else [], eps=self.eps,
            model=None if self.model is None else dict(self.model), group=group, fixed=list(self.fixed),
            backward=None if self.gradient is None else f"{prefix}gradient", lr=self.lr,
            views={name: [list(numbers) for numbers in view] for name, view in self.views.items()},
            pages=self.pages, evaluates=self.evaluates, refuses=self.refuses,
        )  # fmt: skip

    def tensors(self, k: int) -> dict[str, torch.Tensor]:
        gradient = {} if self.gradient is None else {"gradient": self.gradient[k]}
        norm = dict(zip(("norm.weight", "norm.bias"), self.norm, strict=False))
        return {**self.inputs[k], **gradient, **norm}

    def outputs(self, k: int) -> dict[str, Spec]:
        drawn = {"drawn": Spec(torch.float64, (2,))} if self.drawn else {}
        return {name: Spec.of(tensor) for name, tensor in self.wanted[k].items()} | drawn


def layer_case(
    title: str,
    runs: Sequence[LayerRun],
    lines: Sequence[Line],
    *,
    members: Sequence[int] = (),
    world_size: int = 0,
    known: Sequence[Sequence[int]] = (),
    dtype: str = "float64",
    **more: Any,
) -> Case:
    """The runs one after the other in one launch.

    members: the ranks that take part, of world_size; they are passed as group=. Left out: all, and no group.
    known: groups of ranks that dist.new_group returns; others cannot be made in a check.
    dtype: the default in the ranks meanwhile.
    """
    more.setdefault("timeout", SECONDS)
    size = runs[0].size
    ranks, group = (list(members), 0) if members else (list(range(size)), None)
    sides = {rank: side(runs, k, group, dtype) for k, rank in enumerate(ranks)}
    places = ("base", "made", "forward", "backward")
    moments = [f"{run.name}.pages.{moment}" for run in runs for moment in places if run.looked_at(moment)]
    return Case(
        title,
        [sides.get(rank) or absent() for rank in range(world_size or size)],
        list(lines),
        recipe=RECIPE,
        groups=[ranks, *map(list, known)] if members or known else [],
        moments=tuple(moments),
        **{"room": ROOM, **more},
    )


def side(runs: Sequence[LayerRun], k: int, group: int | None, dtype: str) -> RankSide:
    """Inputs, instructions and outputs of the k-th of the ranks that take part."""
    inputs, outputs = {}, {}
    for run in runs:
        inputs |= {f"{run.name}.{name}": tensor for name, tensor in run.tensors(k).items()}
        outputs |= {f"{run.name}.{name}": spec for name, spec in run.outputs(k).items()}
    instructions = LayersInstructions([run.instructions(k, group) for run in runs], dtype)
    return RankSide(inputs, instructions, outputs)
