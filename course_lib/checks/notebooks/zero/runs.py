"""The training runs on which the sharded optimizers and the sharded module are judged, and their lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs import Mistake
from course_lib.checks.judge.training_runs.single import Gradient, Tensors, Training, mean, train

REFUSED = {
    "torch.distributed.optim:ZeroRedundancyOptimizer": (
        "PyTorch's ZeroRedundancyOptimizer already shards the state. Build this yourself: cut the "
        "parameters up, give the optimizer this rank's shard, and gather."
    ),
    "torch.distributed:Reducer": (
        "PyTorch's reducer, which DistributedDataParallel is built on, would reduce the gradients. "
        "Build this yourself."
    ),
    "torch.distributed.fsdp:FullyShardedDataParallel": (
        "PyTorch's FullyShardedDataParallel would do all of it. Build this yourself: shard, gather on "
        "use, free after use, and reduce-scatter the gradients."
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup": (
        "PyTorch's fully_shard would do all of it. Build this yourself: shard, gather on use, free "
        "after use, and reduce-scatter the gradients."
    ),
}
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9})
ADAMW = ("AdamW", {"lr": 0.02, "weight_decay": 0.1})
WIDTHS = (5, 7, 8)  # with 6, the elements that are trained of the traps are a multiple of 3
WIDTH, DEPTH = 448, 8
FULL_RANK = 128  # samples of each of 4 ranks: more than WIDTH together
BLOCK = 4 * WIDTH * (WIDTH + 1)  # bytes of a block of the wide model
WHOLE = DEPTH * BLOCK
ONCE = (
    "Here `params` is an iterator, like model.parameters(), so a second loop over it finds nothing. "
    "Make a list of it first."
)
ELSEWHERE = "If the other runs are right, this is what differs here:"
UNKNOWN = "values"  # the beginning of the cause of values that no known mistake gives
CARRIED = "The gradients of the previous step are still there, but zero_grad() must clear"
UNCHANGED = "The step changed nothing"
NOT_ALIKE = (
    "If all ranks start alike in the other runs, this is what differs here: `params` is an iterator, as "
    "model.parameters() is, and a second loop over it finds nothing. Make a list of it first."
)
DEFAULTS = (
    "The inner optimizer worked with its own defaults, not with the given arguments. Pass **defaults "
    "on to optimizer_cls."
)
START = "Give every rank the first rank's parameters (dist.broadcast) before they are cut."
MIXED = (
    "Each rank cut up its own parameters, so every shard belongs to another model. Give all ranks the "
    "first rank's parameters (dist.broadcast) before they are cut."
)
FROZEN = (
    "That parameter is frozen (requires_grad=False), but the step changed it, because weight decay "
    "needs no gradient. Broadcast frozen parameters, and leave them out of the shard."
)
FROZEN_UNIT = (
    "That parameter is frozen (requires_grad=False), but the step changed it, because weight decay "
    "needs no gradient. The shard of a frozen unit is frozen, too, and its gradients are never reduced."
)
MEMBERS, WORLD = (1, 2), 3  # the ranks of a group, and of all: not both begin with rank 0
STEP = (2, 4)  # of the moments of a run: from the end of the first step to that of the second
SLACK = 0.9e6  # bytes that allocators and libraries may hold besides; a block has 805 kB


def small(
    draw: kit.Draw, n: int, model: str, optimizer: tuple[str, dict], *, micro: int = 1, width: int = 0
) -> Training:
    """Two or three steps in float64, own data and own first parameters on every rank.

    width: of the model; drawn when left out.
    """
    width, first = width or draw.choice(WIDTHS), draw.integer(1, 1 << 30)
    described: dict = {"name": model, "seed": draw.integer(1, 1 << 30), "width": width}
    steps = []
    for rank in range(n):
        own = [
            [{"seed": first + 100 * rank + 10 * s + k, "samples": 3, "width": width} for k in range(micro)]
            for s in range(3 if micro == 1 else 2)
        ]
        if model == "sometimes":
            for s, step in enumerate(own):  # the middle block takes part on one rank only
                for microbatch in step:
                    microbatch["sign"] = 1 if rank == s % n else -1
        steps.append(own)
    return Training(described, optimizer, steps, tell=("start", "params"))


def wide(draw: kit.Draw, n: int, samples: int = 2) -> Training:
    """Two steps of a model of 6.4 MB in float32, whose memory is watched.

    samples: of each rank's batch. With few of them gradients, and states made of these, are products of two
    thin matrices: a class that keeps these instead holds little of a state that is whole.
    """
    described = {
        "name": "plain", "seed": draw.integer(1, 1 << 30), "width": WIDTH, "depth": DEPTH,
        "dtype": "float32",
    }  # fmt: skip
    steps = [  # no rank can tell another's data from its own
        [[{"seed": draw.integer(1, 1 << 30), "samples": samples, "width": WIDTH}] for _ in range(2)]
        for _ in range(n)
    ]
    more = {"memory": True, "kwargs": {}}
    return Training(described, SGD, steps, tell=("end",), more=more)


# ---- values


def value_line(
    training: Training,
    title: str,
    *,
    weight: float = 1.0,
    trivial: bool = False,
    otherwise: str = "",
    cleared: str = "the shards' gradients",
) -> kit.Line:
    """After every step all ranks have the parameters of one process on all data.

    otherwise: the hint if the values fit no mistake. cleared: words for the gradients that zero_grad() must
    clear.
    """
    known = [*training_runs.common(training.world_size), carried(cleared)]
    return stepped(training, title, known, weight, trivial, otherwise)


def carried(cleared: str) -> Mistake:
    """Gradients of a step are still there in the next."""

    def gradient(rank: int) -> Gradient:
        total: Tensors = {}

        def summed(step: int, rank_gradients: list[list[Tensors]]) -> Tensors:
            for name, tensor in mean(step, rank_gradients).items():
                total[name] = total[name] + tensor if name in total else tensor
            return dict(total)

        return summed

    return Mistake(f"{CARRIED} {cleared}.", gradient)


def unless_carried(held: kit.Line, values: kit.Line, instead: kit.Line) -> kit.Line:
    """The line on memory; of a run in which gradients of the step before were still there, the other one."""

    def judge(observed: kit.Observed) -> kit.Finding:
        carried_on = values.judge(observed).cause.startswith(CARRIED)
        return (instead if carried_on else held).judge(observed)

    return replace(held, judge=judge)


def start_line(training: Training) -> kit.Line:
    """Before the first step all ranks have the first rank's parameters, frozen ones too.

    The notebook's stub sees to that, so it counts only beside values that are right.
    """
    return stepped(training, "all ranks start alike", (), 0.5, trivial=True, what="start")


def stepped(
    training: Training,
    title: str,
    mistakes: Sequence[Mistake],
    weight: float = 1.0,
    trivial: bool = False,
    otherwise: str = "",
    what: str = "param",
) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        everything = train(training)
        expected = training_runs.kind(what, everything)
        for k, rank in enumerate(training_runs.members(observed)):
            actual = {name: observed.tensors[rank][name] for name in expected}
            differ = training_runs.differing(actual, expected, training.dtype)
            if not differ:
                continue
            said = training_runs.first(differ[0], actual, expected, rank, observed)
            why = training_runs.usual_cause(training, differ[0], actual, k, mistakes)
            if what in ("param", "end"):
                why = why or without_arguments(training, differ[0], actual)
            if what == "param":
                why = why or frozen(training, differ[0], observed.case.recipe.endswith(":module"))
                why = why or partly(observed, everything, differ[0], rank, training)
            more = ""
            if start := wrong_start(observed, training, everything):
                why, more = start, NOT_ALIKE if training.more.get("once") else ""
            return kit.wrong(said, why or otherwise, more, cause=why or f"{UNKNOWN} {title} {otherwise}")
        return kit.RIGHT

    return kit.Line(title, judge, weight, trivial=trivial)


def wrong_start(observed: kit.Observed, training: Training, right: Tensors) -> str:
    """The hint if a rank did not have the first rank's parameters before the first step; "" if all had."""
    expected = training_runs.kind("start", right) if "start" in training.tell else {}
    own = training_runs.common(training.world_size)[-1:]
    for k, rank in enumerate(training_runs.members(observed)):
        actual = {name: observed.tensors[rank][name] for name in expected}
        if differ := training_runs.differing(actual, expected, training.dtype):
            why = training_runs.usual_cause(training, differ[0], actual, k, own)
            return why or (MIXED if pieces_of_all(training, actual) else START)
    return ""


def pieces_of_all(training: Training, starts: Tensors) -> bool:
    """Whether every number is that of some rank's own model, as where each rank cuts up its own."""
    own = [dict(training.built(rank).named_parameters()) for rank in range(training.world_size)]
    return all(
        torch.stack([tensor.isclose(model[name.split(".", 1)[1]].detach()) for model in own]).any(0).all()
        for name, tensor in starts.items()
    )


def without_arguments(training: Training, first: str, actual: Tensors) -> str:
    """The hint if the optimizer's defaults give the values that were found; "" if they do not."""
    bare = replace(training, optimizer=(training.optimizer[0], {}), known={})
    return DEFAULTS if training_runs.usual_cause(bare, first, actual, 0, [Mistake(DEFAULTS)]) else ""


def frozen(training: Training, first: str, in_units: bool) -> str:
    """The hint if the first tensor that differs after a step is a frozen parameter; "" if it is not."""
    name = first.split(".", 2)[2]
    trained = {name: p.requires_grad for name, p in training.built().named_parameters()}
    if trained[name]:
        return ""
    return FROZEN_UNIT if in_units else FROZEN


def partly(observed: kit.Observed, right: Tensors, first: str, rank: int, training: Training) -> str:
    """Which part of the parameters the first wrong step changed on this rank, where that tells the cause."""
    step, ranks = int(first.split(".")[1]), training_runs.members(observed)
    neighbour = ranks[ranks.index(rank) - 1]
    now, before, actual, other = [], [], [], []
    for name, wanted in training_runs.kind(f"param.{step}", right).items():
        short = name.split(".", 2)[2]
        earlier = right[f"param.{step - 1}.{short}" if step else f"start.{short}"]
        now.append(wanted.flatten())
        before.append(earlier.flatten())
        actual.append(observed.tensors[rank][name].to(torch.float64).flatten())
        other.append(observed.tensors[neighbour][name].to(torch.float64).flatten())
    want, was, got = torch.cat(now), torch.cat(before), torch.cat(actual)
    trained = want != was  # of the others nothing can be said
    bound = training_runs.TOLERANCE[training.dtype] * float(want.abs().max())
    same, good = (got - was).abs() <= bound, (got - want).abs() <= bound
    changes, stale = int(trained.sum()), int((trained & same & ~good).sum())
    if not bool((same | good).all()) or not changes:
        return ""
    n, share, unit = len(ranks), stale / changes, observed.case.recipe.endswith(":module")
    if share == 1:
        return unchanged(observed, training)
    padded = "fsdp" in observed.case.recipe  # there the library rounds the shard's size up
    if n > 1 and bool(((torch.cat(other) - got).abs() <= bound).all()) and (stale > 2 * n or padded):
        return f"Some parameters did not change on any rank{NEVER_FULL[unit]}"
    if n > 1 and stale <= 2 * n and not padded:
        return (
            "The last elements never change. Round the shard's size up, because otherwise they "
            "belong to no rank."
        )
    if n > 2 and share < 0.5:
        return (
            "Only the other ranks' shards are new there, because the rank's own shard was not written "
            "back. The all-gather brings all shards, also its own."
        )
    return (
        "Only a part is new there, because each rank updated its own shard, and the other ranks do "
        "not have it. All-gather the shards after the step."
    )


FREE_AFTER_REDUCE = (
    "Free every unit after its reduce(). A unit that is still whole keeps its old weights, because it "
    "is not gathered again."
)
NEVER_FULL = {
    True: (
        ": their unit was never reduced, or before its gradients were ready, or it was not gathered "
        "after the step. Reduce a unit when all of its gradients are there, and at the end of "
        f"backward if one gets none, or if its block runs twice. {FREE_AFTER_REDUCE}"
    ),
    False: (
        ". Their gradients were never sent. A bucket with a parameter that gets no gradient is never "
        "full, so send the remaining buckets when backward is over."
    ),
}


def unchanged(observed: kit.Observed, training: Training) -> str:
    """Why a step changed nothing, as the record tells it."""
    sent = [
        operation
        for rank in observed.operations
        for operation in rank
        if operation.bytes_sent and operation.shape != (0,)
    ]
    names = {operation.op for operation in sent if operation.op != "broadcast"}
    if not names and training.more.get("once"):
        return f"{UNCHANGED}. {ONCE}"
    if "fsdp" in observed.case.recipe:
        return (
            f"{UNCHANGED} there: either the shards had no gradient when the optimizer stepped, or the next "
            f"forward did not use them as the step left them. {FREE_AFTER_REDUCE}"
        )
    if observed.case.recipe.endswith(":module"):
        return (
            f"{UNCHANGED} there, but the next gather() must bring the shards as the step left them. "
            f"{FREE_AFTER_REDUCE}"
        )
    if any("all_gather" in name for name in names):
        return (
            f"{UNCHANGED} there, although shards were gathered. Make the inner optimizer of the shard, set "
            "the shard's .grad before the step, gather the shards after the inner optimizer's step, and "
            "write them into the parameters."
        )
    return (
        f"{UNCHANGED} there, because the optimizer worked on copies. Write its results into the parameters."
    )


# ---- traffic


def step_bytes(
    volume: int,
    training: Training,
    hint: Callable[[float, kit.Observed], str],
    *,
    title: str,
    weight: float = 1.0,
    point: float = math.inf,
) -> kit.Line:
    """Bytes sent in the second step: `volume` times (N-1)/N of what is trained, padding allowed.

    At least without any padding, at most with that of every parameter cut up by itself. point: from that many
    times too many on, the point of the exercise is missed.
    """
    n, itemsize = training.world_size, training.dtype.itemsize
    sizes = [p.numel() for p in training.built().parameters() if p.requires_grad]
    least = volume * (n - 1) / n * sum(sizes) * itemsize
    most = volume * (n - 1) * sum(-(-size // n) for size in sizes) * itemsize
    return training_runs.volume_line(
        [math.floor(least)] * n, most=[most] * n, hint=hint, weight=weight, title=title,
        what=f" ({volume} times (N-1)/N of the parameters)", between=STEP, point=point,
    )  # fmt: skip


def optimizer_case(
    recipe: str, training: Training, title: str, case_lines: Sequence[kit.Line], **more: Any
) -> kit.Case:
    return training_runs.training_case(recipe, title, training, case_lines, timeout=30.0, **more)


def in_a_group(recipe: str, draw: kit.Draw) -> kit.Case:
    """Two of three ranks train, and are passed as group=."""
    training, title, line = group_run(draw)
    return optimizer_case(recipe, training, title, [line], members=MEMBERS, world_size=WORLD)


def group_run(draw: kit.Draw, model: str = "plain", **arguments: object) -> tuple[Training, str, kit.Line]:
    """The training of the group's ranks, a title, and the line on its values. arguments: the model's own."""
    training = small(draw, len(MEMBERS), model, SGD)
    training = replace(training, model={**training.model, **arguments}, known={})
    n, title = (training.world_size, f"SGD, group {{{', '.join(map(str, MEMBERS))}}} of {WORLD} ranks")
    known = [*training_runs.common(n), training_runs.whole_world(n, WORLD)]
    return training, title, stepped(training, title, known, otherwise=training_runs.IN_A_GROUP)
