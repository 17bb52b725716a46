# %% [markdown]
# # 13 · Capstone
#
# **One model in every layout: the same loss, measured costs. What would you run on the cluster that you are given?**

# %%
import torch
import torch.distributed as dist
from torch import nn

from course_lib import check, dry_run, launch
from course_lib.mesh import Mesh, mesh_stages
from course_lib.mesh.step import microbatches_of, sum_over_replicas, targets_of_all
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline import one_f_one_b, run_schedule
from course_lib.pipeline.generators import interleaved_one_f_one_b
from course_lib.planning import Layout
from course_lib.trainer import load_run, save_run
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module

# %% [markdown]
# ## 1 · One GPU, two GPUs


# %% nbgrader={"grade_id": "distribute", "solution": true}
def distribute(model: GPT, how: str) -> nn.Module:
    """The model spread over all ranks, by PyTorch's own classes.

    model: a GPT with its `blocks`, each of which is a module. how: "one" for one rank (then
    nothing is done), "ddp" or "fsdp". With "ddp" ranks may bring different values, and all
    train rank 0's. With "fsdp" all ranks bring the same. Every rank reads other rows, as many
    as the others, and no target is -100. The optimizer is made of what you return.
    """
    ### BEGIN SOLUTION
    if how == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model
    ### END SOLUTION


# %% nbgrader={"grade_id": "distribute_check", "points": 5}
report = check("13_capstone/distribute", distribute)
### BEGIN HIDDEN TESTS
report = check("13_capstone/distribute", distribute, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# ## 2 · One step for every layout


# %% nbgrader={"grade_id": "make_step", "solution": true}
def make_step(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float):
    """A function of (inputs, targets) that makes a step of training on the whole batch.

    layout: used are sizes, microbatch, chunks, zero and sequence. mesh: of the layout's sizes.
    batch_size: rows of a batch, of all replicas together; it divides. The model is
    `GPT(config)` after `torch.manual_seed(0)`, on the mesh's device, in the default dtype.
    The optimizer is SGD with momentum 0.9 and rate `lr`.

    The step takes inputs and targets (batch_size, seq) of the whole batch, the same on all
    ranks, and clears the gradients. It returns, on all ranks, the loss before the step: the
    mean over all targets of the batch that are not -100.
    """
    ### BEGIN SOLUTION
    m = layout.microbatches(batch_size)
    schedule = one_f_one_b(layout.pp, m)
    if layout.chunks > 1:
        schedule = interleaved_one_f_one_b(layout.pp, m, layout.chunks)
    torch.manual_seed(0)
    sequence = "keep" if layout.sequence else None
    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)

    replicas = mesh.group(("dp", "cp"))
    if layout.zero == 3:
        for stage in stages:
            stage.module = Zero3Module(stage.module, group=replicas)
    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
    options = {"lr": lr, "momentum": 0.9}
    if layout.zero == 1:
        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
    elif layout.zero == 2:
        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
    else:
        optimizer = torch.optim.SGD(params, **options)
    n = layout.replicas if layout.zero else 1  # ZeRO takes the mean over so many ranks

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        batch = inputs.to(mesh.device), targets.to(mesh.device)
        mine = microbatches_of(batch, m, mesh)
        count = targets_of_all(stages[0], mine, mesh) / n
        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
        if layout.zero == 0:
            sum_over_replicas(params, mesh, ("dp", "cp"))
        optimizer.step()
        optimizer.zero_grad()
        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
        return float(total) / n

    return step
    ### END SOLUTION


# %% nbgrader={"grade_id": "make_step_check", "points": 8}
report = check("13_capstone/make_step", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/make_step", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% nbgrader={"grade_id": "make_step_with_zero_check", "points": 12}
report = check("13_capstone/make_step_with_zero", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/make_step_with_zero", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(12)

# %% [markdown]
# ## 3 · Fifteen layouts, one loss


# %% nbgrader={"grade_id": "smallest_failing", "solution": true}
def smallest_failing(sizes: dict[str, int], fails) -> dict[str, int]:
    """The axes that a failing layout needs, so that it fails, with their sizes.

    fails: a function of sizes, with all axes in the order of `sizes`, some of them 1. A call
    may be a run, so make at most a + a^2 calls for a axes. The result names only axes larger
    than 1, in the order of `sizes`; if any of them were set to 1, the layout would not fail.
    It is {} if even one rank fails. Leave the argument unchanged. Raise ValueError if `sizes`
    do not fail.
    """
    ### BEGIN SOLUTION
    alone = dict.fromkeys(sizes, 1)
    if fails(dict(alone)):
        return {}
    left = {axis: size for axis, size in sizes.items() if size > 1}
    if not fails({**alone, **left}):
        raise ValueError(f"{sizes} does not fail")
    smaller = True
    while smaller:
        smaller = False
        for axis in list(left):
            rest = {name: size for name, size in left.items() if name != axis}
            if rest and fails({**alone, **rest}):
                left, smaller = rest, True
    return left
    ### END SOLUTION


# %% nbgrader={"grade_id": "smallest_failing_check", "points": 5}
report = check("13_capstone/smallest_failing", smallest_failing)
### BEGIN HIDDEN TESTS
report = check("13_capstone/smallest_failing", smallest_failing, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# ## 6 · The run that survives


# %% nbgrader={"grade_id": "train", "solution": true}
def train(make, batches, steps: int, disk, every: int) -> list[float]:
    """Train until `steps` steps are finished; the losses of all of them, also of earlier calls.

    make: builds the run from its start; returns a step, and a function without arguments that
    gives this rank's pieces as they are now. batches: inputs and targets of a step, by its
    number from 0 on. every: a save after that many finished steps, and after the last one.
    disk: where the run is saved.

    Given: `save_run(disk, losses, pieces)`, and `load_run(disk, pieces)`, which fills the
    pieces in place from the newest checkpoint and returns its losses, [] if there is none.
    If the call is killed at any moment, the next one goes on from the newest checkpoint.
    """
    ### BEGIN SOLUTION
    step, held = make()
    losses = load_run(disk, held())
    while len(losses) < steps:
        losses.append(step(*batches(len(losses))))
        if len(losses) % every == 0 or len(losses) == steps:
            save_run(disk, losses, held())
    return losses
    ### END SOLUTION


# %% nbgrader={"grade_id": "train_check", "points": 9}
report = check("13_capstone/train", train)
### BEGIN HIDDEN TESTS
report = check("13_capstone/train", train, cases="hidden")
### END HIDDEN TESTS
report.points(9)
