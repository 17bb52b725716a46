"""A case that trains a toy model with a student's class, and the tensors that must come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from course_lib.checks.judge.build import absent
from course_lib.checks.judge.case import Case, Line, Observed, RankSide, Spec
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.rank import watching
from course_lib.checks.rank.training import TrainingInstructions
from course_lib.checks.wire import instructions_type
from course_lib.runtime.moments import BASE, HIGHEST

OPTIMIZERS = ("torch._dynamo",)  # the first optimizer of a process imports it
RECIPES = {
    "replicas": "course_lib.checks.rank.training:replicas",
    "sharded_optimizer": "course_lib.checks.rank.training:sharded_optimizer",
    "sharded_module": "course_lib.checks.rank.notebooks.zero.sharded:module",
}
IN_A_GROUP = (
    "If the other runs are right, note the difference: here the ranks of a group train, and not all. Pass "
    "group= to every collective, and count ranks within it: dist.get_rank(group) of "
    "dist.get_world_size(group)."
)
KEEP_GROUP = "The ranks that hold replicas are passed as group=: keep that argument of __init__."


def training_case(
    recipe: str,
    title: str,
    training: Training,
    lines: Sequence[Line],
    *,
    members: Sequence[int] = (),
    world_size: int = 0,
    **more: Any,
) -> Case:
    """A run of `training` by one of the recipes (a name of RECIPES, or "package.module:function").

    members: the ranks that train, of world_size; they are passed as group=. Left out: all, and no group.
    """
    wanted, own = outputs(training), {"group": 0} if members else {}
    ranks = list(members) or list(range(training.world_size))
    recipe_path = RECIPES.get(recipe, recipe)
    kind = cast(type[TrainingInstructions], instructions_type(recipe_path))
    sides = {
        rank: RankSide({}, training.instructions(k, kind, **own), wanted) for k, rank in enumerate(ranks)
    }
    watched = training.more.get("memory")
    # at the start, twice in each step, and after the last full_state_dict()
    moments = 1 + 2 * len(training.steps[0]) + (recipe == "sharded_module")
    return Case(
        title, [sides.get(rank) or absent() for rank in range(world_size or len(ranks))], list(lines),
        recipe=recipe_path, imports=OPTIMIZERS, groups=[ranks] if members else [],
        unrecorded=watching.settled(moments) if watched else (),
        moments=(BASE, HIGHEST, *(f"held.{k}" for k in range(moments))) if watched else (),
        room=watching.ROOM, **more,
    )  # fmt: skip


def group_trouble(case_of_it: Case, text: str) -> str:
    """The usual cause when a run of a group's ranks breaks off; "" if all ranks train."""
    if not case_of_it.groups:
        return ""
    return KEEP_GROUP if "argument 'group'" in text else IN_A_GROUP


def members(observed: Observed) -> list[int]:
    """The ranks that train, in the order of the training's own."""
    groups = observed.case.groups
    return list(groups[0]) if groups else list(range(observed.world_size))


def outputs(training: Training) -> dict[str, Spec]:
    """The tensors that a recipe hands back, see `rank.training`."""
    model = training.built().to(training.dtype)
    tell, steps, specs = set(training.tell), range(len(training.steps[0])), {}
    for name, p in model.named_parameters():
        names = [f"start.{name}"] if "start" in tell else []
        names += [f"grad.{s}.{name}" for s in steps if "grads" in tell and p.requires_grad]
        names += [f"param.{s}.{name}" for s in steps if "params" in tell]
        names += [f"end.{name}"] if "end" in tell else []
        specs |= {full_name: Spec.of(p) for full_name in names}
    if "buffers" in tell:
        specs |= {f"buffer.{name}": Spec.of(b) for name, b in model.named_buffers()}
    return specs
