# %% [markdown]
# # 13 · Capstone
#
# **Is it the same model in every layout, what does each layout cost, and which one would you run?**
#
# OpenAI reported that training GPT-3 took 3.14e23 floating-point operations, but never published how this
# work was divided among the GPUs (Brown et al. 2020, appendix D). You have already built every kind of
# parallelism that OpenAI could have used. In this notebook you combine them in one function. It takes a
# layout, which describes how the work is divided, and runs one training step.
#
# In the first half, you train the same GPT in fifteen layouts on up to eight ranks, and see that the fifteen
# loss curves coincide. In the second half, your function runs unchanged as one rank of 1,024, on this
# machine. Then a run is killed and resumed, and at the end you collect all your measurements on a page you
# can show to others. Run the next code cell, which imports what you need. You don't have to read its code.
#
# | | |
# |---|---|
# | you will build | a GPT distributed by PyTorch's own classes; one step for every layout; a search for the axis that causes a wrong loss; a run that survives a kill; a page of your own results |
# | you need | `hybrid_step` and the mesh (notebook 10); ZeRO (notebook 04); notebook 12 for §6 |
# | time | three hours; the *optional* parts (§10, and the ends of §2, §3, §6 and §7) take 51 minutes more |
# | points | 60, and 5 of extra credit |
# | on a rented machine | you don't have to rent one, because two cores are enough. If you have GPUs, the section *On your GPUs* runs your own functions over NCCL |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | Your tools | 6 | | 00 to 12 |
# | 1 One GPU, two GPUs | 18 | 5 | notebooks 03, 05 |
# | 2 One step for every layout | 51, and 4 *optional* | 20 | notebooks 04, 10 |
# | 3 Fifteen layouts, one loss | 33, and 5 *optional* | 8 | 2 |
# | 4 1,024 ranks on this laptop | 17 | 9 | 2 |
# | 5 The map of the field | 18 | 5 | 3 |
# | 6 The run that survives | 19, and 5 *optional* | 9 | 2, notebook 12 |
# | 7 The cluster that you are given | 10, and 7 *optional* | 2 | notebook 10 |
# | 8 Questions | 5 | 2 | all |
# | 9 Your page | 3 | | all |
# | 10 Optional: published runs, audited | 30 | 5 extra | notebooks 01, 11 |

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | pp, dp, cp, tp | the axes of a mesh. Ranks along pp hold different layers (pipeline), along dp different rows (data), along cp different parts of the sequence (context), and along tp different parts of each matrix (tensor) |
# | layout | the sizes of the axes, the rows per microbatch, the stages per rank, the stage of ZeRO, and whether tp cuts the sequence as well |
# | replicas | the ranks of dp x cp. They all hold the same parameters, or, with ZeRO-3, one shard each |
# | m, p, i | the number of microbatches a replica runs per step, the number of ranks along pp, and the stage of a rank, counted from 0 |
# | v | the number of stages per rank in interleaved 1F1B. A layout calls it `chunks` |
# | parity | Two layouts have parity if they train the same model, so that their losses agree up to rounding |

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import inspect
import tempfile
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course_lib import check, device, dry_run, launch
from course_lib import trainer as reference  # for comparison, since you write your own versions
from course_lib.data import batch, library_text
from course_lib.dry import Meter, by_axis, whole_batch
from course_lib.mesh import Mesh, mesh_stages
from course_lib.mesh.step import microbatches_of, sum_over_replicas, targets_of_all
from course_lib.models import GPT, PRESETS, GPTConfig, next_token_loss
from course_lib.operation import Folder, Journal, run_agents
from course_lib.pictures import layouts_figure
from course_lib.pictures.your_page import YourPage
from course_lib.pipeline import one_f_one_b, run_schedule
from course_lib.pipeline.generators import interleaved_one_f_one_b
from course_lib.planning import Layout
from course_lib.trainer import FIFTEEN, generate, held_state, load_model, load_run, save_run
from course_lib.trainer import step_a, step_b, step_c, suspect_a, suspect_b, suspect_c
from course_lib.unfinished import ready, tried, try_it
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module

MODEL = replace(PRESETS["0.8M"], context=128, tied=False)  # 875,264 parameters
ROWS, LR = 8, 0.1
SGD = (torch.optim.SGD, {"momentum": 0.9})  # a class, and its options except the learning rate
TEXT = library_text()


def rows(step: int):
    """Return the inputs and targets of a step, each (8, 128), from Python's standard library."""
    return batch(TEXT, step, batch_size=ROWS, length=MODEL.context)


page = YourPage(  # §9 shows it, and each section adds its results
    "Your page",
    {
        "tokens/s of this machine": "§1",
        "fifteen layouts": "§3",
        "rank 517 of 1,024": "§4",
        "bytes of fifteen layouts": "§5",
        "the map of the field": "§5",
        "a run that was killed": "§6",
        "what the model writes after 'def '": "§6",
        "how I would train it": "§7",
    },
)

# %% [markdown]
# ## Your tools
#
# This notebook builds on all thirteen before it. The folded list sums up each of them in a sentence or two,
# so open it if you want to refresh your memory.
#
# <details><summary>Thirteen notebooks in a few sentences</summary>
#
# | | |
# |---|---|
# | 00 · First ranks | A program on n ranks is a single program that runs n times, once on each rank. |
# | 01 · Why distribute | Training needs about 6 FLOPs per parameter and token, and about 16 bytes per parameter. |
# | 02 · Collectives | In an all-reduce of M bytes over n ranks, each rank sends 2 (n−1)/n M bytes. |
# | 03 · Data parallelism | Replicas that sum their gradients in every step remain copies of one model. |
# | 04 · ZeRO | An all-reduce is a reduce-scatter followed by an all-gather. If the optimizer steps between the two, each rank needs only a shard of the optimizer's state. |
# | 05 · FSDP | A block's parameters can arrive just before they are used, while the previous block computes. |
# | 06 · Tensor parallelism | If you cut a matrix by columns and the next matrix by rows, one sum for the pair is enough. |
# | 07 · Pipeline | With 1F1B, stage i of p keeps at most min(m, p − i) microbatches, and every stage is idle for (p − 1)/(m + p − 1) of the step. |
# | 08 · Context | The softmax of a row can be computed in parts that are merged afterwards, so keys and values can travel around a ring. |
# | 09 · Precision and memory | Activations that aren't kept are computed again in backward, and numbers with few bits are summed in a format with more bits. |
# | 10 · Four dimensions | The gradients on the ranks of dp x cp are terms of one sum, so each rank divides its losses by the number of targets in the whole batch. |
# | 11 · Experts | Each token is sent to k of E experts, so the traffic depends on the data. |
# | 12 · In operation | A killed run can continue from its last save, provided that each save either is complete or does not exist at all. |
#
# </details>
#
# A layout is an object that holds only data. The next cell prints a layout of eight ranks, and the number of
# microbatches each replica gets from a batch of 8 rows.

# %%
EIGHT = FIFTEEN["pp 2 dp 2 tp 2, zero-1"]
print(EIGHT)
print(f"{EIGHT.gpus} ranks, {EIGHT.replicas} replicas, m = {EIGHT.microbatches(ROWS)}")

# %% [markdown]
# ## 1 · One GPU, two GPUs
#
# | | |
# |---|---|
# | you will write | `distribute(model, how)` |
# | builds on | notebooks 03 and 05, whose classes you now replace with PyTorch's |
# | time | 18 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 5 |
#
# For most training runs in the world, two classes of PyTorch are enough. `DistributedDataParallel` (DDP)
# gives every rank the whole model and averages the gradients while backward runs. `fully_shard` (FSDP) leaves
# 1/n of the parameters on each rank and gathers the parameters of a unit when they are needed. Since you have
# written both classes yourself, you know most of what PyTorch's versions do. But `fully_shard` has a trap. If
# you step into it, no error is raised and all results are right, but you don't save the memory you wanted to
# save.
#
# `fully_shard(module)` takes all of the module's parameters that don't belong to a unit yet, and makes them
# one unit. The call changes the module in place.
#
# **Predict.** Suppose you call `fully_shard(model)` and nothing else. What share of the whole model's bytes
# does a rank hold in the middle of the forward? And is the loss right?
#
# <details><summary>Answer</summary>The rank holds the bytes of the whole model, because the model is a single
# unit, and this unit is gathered before the first layer runs. The loss is still right.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "distribute", "solution": true}
def distribute(model: GPT, how: str) -> nn.Module:
    """Return the model, distributed over all ranks by PyTorch's own classes.

    model: a GPT, whose `blocks` are modules. how: "one" for one rank (this line is given), "ddp" or
    "fsdp". With "ddp", ranks can start with different values, but all train the values of rank 0.
    With "fsdp", all ranks start with the same values. Each rank holds 1/n of them, and gathers one
    block at a time. All ranks read different rows, but equally many, and no target is -100. The
    optimizer trains the parameters of the module you return.
    """
    if how == "one":
        return model
    ### BEGIN SOLUTION
    if how == "ddp":
        return DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the classes</summary>The first code cell has imported
# <code>DistributedDataParallel</code> and <code>fully_shard</code>. Each of them takes the module as its
# argument.</details>
# <details><summary>Hint: the order</summary>Shard from the inside out. Begin with the blocks, so that each
# becomes a unit of its own. End with the model, so that the parameters outside the blocks become the last
# unit.</details>
#
# **Check.** The check trains three steps on one rank and three on two ranks, checks the losses against an
# undistributed run, and counts the bytes each rank sends and holds.

# %% nbgrader={"grade_id": "distribute_check", "points": 5}
report = check("13_capstone/distribute", distribute)
### BEGIN HIDDEN TESTS
report = check("13_capstone/distribute", distribute, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** The cell trains the model three times on the same data, first on one rank, then on two ranks
# with DDP, and then on two ranks with FSDP. Each rank is limited to one thread, so that a single rank can't
# use both cores.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def five_steps(how: str):
    """Return the last loss, the fastest step's seconds, and how many parameters this rank holds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = distribute(GPT(MODEL).to(device()), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    rank, n = dist.get_rank(), dist.get_world_size()
    seconds = []
    for step in range(5):
        inputs, targets = (part.tensor_split(n)[rank].to(device()) for part in rows(step))
        began = time.perf_counter()
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    held = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
    dist.all_reduce(loss.detach())
    return loss.item() / n, min(seconds[1:]), sum(p.numel() for p in held)


speeds = {}
for how, n in (("one", 1), ("ddp", 2), ("fsdp", 2)):
    if ready(distribute) and (run := try_it(five_steps, how, world_size=n)):
        loss, seconds, held = run[0]
        speeds[how] = ROWS * MODEL.context / seconds
        what = f"loss {loss:.6f}, {held:7,} parameters per rank, {speeds[how]:6,.0f} tokens/s"
        print(f"{how:4} (n = {n}): {what}")
page.add("tokens/s of this machine", speeds, by="your distribute" if speeds else "")

# %% [markdown]
# The three losses agree up to rounding. On two idle cores, DDP trains about one and a half times as many
# tokens per second as one rank. FSDP gains less, and can even be slower than one rank, because this model is
# small and FSDP sends one and a half times as many bytes as DDP, in many small messages.
#
# **In production.** `accelerate`, Lightning and torchtitan call these two classes for you. The line
# `GPT(MODEL)` allocates CPU memory for the whole model, and `.to` then needs as much GPU memory. A large
# model fits in neither. Instead, such a model is built on the meta device, where tensors have no memory. Then
# it is sharded, and only after this do its tensors get memory (`to_empty`). A learning-rate schedule, such as
# a warm-up followed by a cosine, depends only on the number of the step. So you can use it unchanged on more
# GPUs, as long as the global batch stays the same.
#
# <details><summary>Which unit can't be freed between forward and backward?</summary>The root unit can't be
# freed, because it contains the last norm and the head, and backward begins with them.</details>
#
# <details><summary>In the lectures</summary>This section is the exercise of lecture 004, which takes a GPT
# like nanoGPT from one device to several, with DDP and with FSDP. But nanoGPT's MLP uses the exact GELU,
# whereas the course's MLP uses the tanh form. The values of these two functions differ by up to
# 5e-4.</details>

# %% [markdown]
# ## 2 · One step for every layout
#
# | | |
# |---|---|
# | you will write | `make_step(config, layout, mesh, batch_size, lr)` |
# | builds on | `hybrid_step` (notebook 10); ZeRO (notebook 04) |
# | time | 51 minutes, of which §2a takes 27 and §2b takes 24; the *optional* end takes 4 more |
# | difficulty, importance | 5 and 5 of 5 |
# | points | 8 and 12 |
#
# DDP and FSDP divide the work along only one axis. The function in this section handles all four axes, and
# ZeRO as well. You have built its parts before, so the function is only a page long. Only the *order* of the
# parts is new. This order matters, because most parts need the result of an earlier one. The stub contains
# the first two parts, and you write the other three:
#
# | | part | needs | why here |
# |---|---|---|---|
# | 1 | schedule | pp, v, m | The schedule says which stages a rank holds |
# | 2 | model, from seed 0 | | All ranks begin with the same whole model |
# | 3 | stages, which `mesh_stages` cuts over tp, cp and pp | schedule | After the cut, a rank has only its own part of the model |
# | 4 | ZeRO-3, which wraps the *stages* | stages | ZeRO-3 shards only the parameters left on the rank after the cut |
# | 5 | optimizer, or `Zero1Optimizer`, `Zero2Optimizer` | parameters | Parts 3 and 4 replace parameters, and the optimizer must get the new parameters |
#
# Then you write the step itself. It takes the rank's microbatches, counts the targets of the whole batch, and
# runs forward and backward according to the schedule. After that, it sums the gradients over the replicas,
# lets the optimizer step, and clears the gradients. It returns the batch's loss on all ranks.
#
# | given | does |
# |---|---|
# | `mesh_stages(model, mesh, schedule, sequence=None)` | returns this rank's stages. Pass `sequence="keep"` if `layout.sequence` is True, because then tp cuts the sequence as well |
# | `microbatches_of((inputs, targets), m, mesh)` | returns the rows this replica reads, in m microbatches |
# | `targets_of_all(stages[0], microbatches, mesh)` | counts the targets of the whole batch, except targets of −100 |
# | `run_schedule(stages, schedule, microbatches, mesh.group("pp"), count)` | runs forward and backward. It returns a dict of losses, each already divided by `count`. The dict is empty on all ranks except the ranks that hold the last stage |
# | `loss_of_all(losses)` (in the stub) | adds up the losses in the dict, and sums the results over all stages and replicas |
# | `sum_over_replicas(params, mesh, ("dp", "cp"))` | sums the gradients in place, with one all-reduce |
# | `Zero1Optimizer(params, SGD_class, group=replicas, **options)`, `Zero2Optimizer` | each is an optimizer that sums the gradients itself and owns a shard of the state. Clear the gradients with the optimizer's `zero_grad`, because `Zero2Optimizer` keeps its sum outside `.grad` |
# | `Zero3Module(module, group=replicas)` | wraps a stage's module, so that its parameters are shards. Assign the result to `stage.module` |
#
# ### a · pp, dp, cp and tp
#
# Each rank divides its losses by the number of targets in the *whole* batch, so the gradients on the ranks of dp x cp
# are terms of one sum. Compute this sum once, after the last backward. Write this part first, and run its check before
# you think about ZeRO.
#
# ### b · ZeRO
#
# If a layout has `zero=k`, the step uses the class for ZeRO's stage k, with dp x cp as the group. This class
# sums the gradients for you. But it also divides the sum by n, the number of ranks in its group. The reason
# is that in notebook 04, each rank divided its loss by the number of its own targets, so the right gradient
# was the *mean* of the ranks' gradients. Here, however, the right gradient is their *sum*.
#
# **Predict.** Suppose you use `Zero1Optimizer` with the group of the replicas, leave out your own sum, and
# change nothing else. By what factor is the gradient wrong on dp 2 x cp 2? And how could you correct the
# gradient with ZeRO-2, where `.grad` is None as soon as backward is over?
#
# <details><summary>Answer</summary>The gradient is 1/4 of the right gradient, because the group has n = 4
# ranks. If you make each rank's gradient n times as large, the mean of the gradients is the sum you need. So
# divide the number of targets by n before you pass it to <code>run_schedule</code>. This works for all stages
# of ZeRO, since the factor n is then in the loss and therefore in every gradient. But the loss is now n times
# too large as well, so divide it by n before you return it.</details>
#
# **Build.** In the stub, the line before `return step` stores four attributes on the function `step`, because
# §6 needs them to save a run. So use the names `stages`, `optimizer` and `step` for your stages, your
# optimizer and your function.


# %% nbgrader={"grade_id": "make_step", "solution": true}
def make_step(
    config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float, optimizer=SGD
):
    """Return a function of (inputs, targets) that runs one training step on the whole batch.

    layout: use its sizes, microbatch, chunks, zero and sequence. mesh: has the layout's sizes, with
    all four axes, some of size 1. batch_size: the rows of the whole batch, which divide evenly into
    the microbatches of all replicas. The model is `GPT(config)` after `torch.manual_seed(0)`, on
    the mesh's device, in the default dtype. optimizer: a class and its options except the learning
    rate, here (torch.optim.SGD, {"momentum": 0.9}).

    The step takes inputs and targets (batch_size, seq) of the whole batch, the same on all ranks.
    It moves them to the mesh's device, trains, and clears the gradients. It returns, on all ranks,
    the loss before the step, which is the mean over all targets of the batch that are not -100.
    """
    kind, options = optimizer[0], {"lr": lr, **optimizer[1]}
    m, replicas = layout.microbatches(batch_size), mesh.group(("dp", "cp"))
    schedule = one_f_one_b(layout.pp, m)
    if layout.chunks > 1:
        schedule = interleaved_one_f_one_b(layout.pp, m, layout.chunks)
    torch.manual_seed(0)
    model = GPT(config).to(mesh.device)
    with_sums = {1: Zero1Optimizer, 2: Zero2Optimizer}  # by layout.zero, for part b

    def loss_of_all(losses):
        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))  # ranks of tp agree already
        return float(total)

    ### BEGIN SOLUTION
    sequence = "keep" if layout.sequence else None
    stages = mesh_stages(model, mesh, schedule, sequence=sequence)
    if layout.zero == 3:
        for stage in stages:
            stage.module = Zero3Module(stage.module, group=replicas)
    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
    if layout.zero in with_sums:
        optimizer = with_sums[layout.zero](params, kind, group=replicas, **options)
    else:
        optimizer = kind(params, **options)  # of whole parameters, or of ZeRO-3's shards
    n = layout.replicas if layout.zero else 1  # ZeRO takes the mean over this many ranks

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        whole = inputs.to(mesh.device), targets.to(mesh.device)
        mine = microbatches_of(whole, m, mesh)
        count = targets_of_all(stages[0], mine, mesh) / n
        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
        if layout.zero == 0:
            sum_over_replicas(params, mesh, ("dp", "cp"))
        optimizer.step()
        optimizer.zero_grad()
        return loss_of_all(losses) / n

    ### END SOLUTION
    step.layout, step.mesh, step.stages, step.optimizer = layout, mesh, stages, optimizer
    return step


# %% [markdown]
# <details><summary>Hint: the parameters</summary>Collect <code>stage.module.parameters()</code> of all stages, each
# parameter once, but only after ZeRO-3 has replaced the modules.</details>
# <details><summary>Hint: ZeRO's factor</summary>With <code>n = layout.replicas</code>, pass <code>count / n</code> to
# <code>run_schedule</code>, and divide the loss you return by <code>n</code>. Without ZeRO, nothing is divided
# by n.</details>
# <details><summary>Skeleton</summary><pre>stages = mesh_stages(...)
# if layout.zero == 3: wrap each stage's module
# params = ...; optimizer = ...
# def step(inputs, targets):
#     mine = ...; count = ...
#     losses = run_schedule(...)
#     sum over the replicas, without ZeRO
#     optimizer's step, cleared gradients
#     return the loss of all stages and replicas</pre></details>
#
# **Check a.** This check runs layouts without ZeRO, in float64, on two to four ranks. It runs several steps,
# checks their losses against a run on one process, and counts the bytes sent on each axis. Some targets are
# −100, so the replicas count different numbers of targets.

# %% nbgrader={"grade_id": "make_step_check", "points": 8}
report = check("13_capstone/make_step", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/make_step", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Check b.** This check runs layouts with ZeRO. Plain data parallelism would give the same losses, and would
# even send the same bytes as ZeRO-1. So the check also looks at which collectives the replicas call.

# %% nbgrader={"grade_id": "make_step_with_zero_check", "points": 12}
report = check("13_capstone/make_step_with_zero", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/make_step_with_zero", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(12)

# %% [markdown]
# From here on, all sections run your step. If you haven't written it yet, the reference stands in for it.

# %% tags=["skip-in-grading"]
mine = make_step if ready(make_step) else reference.make_step
BY = "your make_step" if mine is make_step else "the library's make_step"

# %% [markdown]
# **In production.** torchtitan's `parallelize_*` functions follow the same order. The model is first cut into
# pipeline stages. Then tp, recomputation and `torch.compile` are applied to each stage, FSDP is wrapped
# around the result, and the optimizer is made last. Megatron-LM instead builds only a rank's own part of the
# model, and never the whole model. §4 shows why this is necessary.
#
# ### Optional: an optimizer that is made too early
#
# **Break it.** The next cell makes the optimizer *before* the model is cut, on two ranks of tp. No error is
# raised. Look at the losses of five steps, and say which parameters the optimizer changes.


# %% tags=["skip-in-grading"]
def too_early(steps=5):
    mesh = Mesh({"tp": 2})
    torch.manual_seed(0)
    model = GPT(MODEL).to(mesh.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    stages = mesh_stages(model, mesh, one_f_one_b(1, 1))
    losses = []
    for number in range(steps):
        one_microbatch = [tuple(part.to(mesh.device) for part in rows(number))]
        count = ROWS * MODEL.context
        parts = run_schedule(stages, one_f_one_b(1, 1), one_microbatch, mesh.group("pp"), count)
        optimizer.step()
        for param in stages[0].module.parameters():
            param.grad = None
        losses.append(float(sum(parts.values())))
    return losses


print("losses:", " ".join(f"{loss:.4f}" for loss in launch(too_early, world_size=2)[0]))

# %% [markdown]
# The loss falls only because the optimizer still changes the parameters that tp doesn't cut, namely the
# norms, the biases of the row-parallel layers, and the table of positions. `mesh_stages` has replaced all
# other parameters with new tensors, but the optimizer still holds the old tensors.
#
# **Question.** ZeRO's group is dp x cp. What would go wrong if ZeRO used the group of all ranks instead?
# (Ranks along pp and tp hold different parameters, but their gradients would be added up element by element.)

# %% [markdown]
# ## 3 · Fifteen layouts, one loss
#
# | | |
# |---|---|
# | you will write | `smallest_failing(sizes, fails)`, and three answers |
# | builds on | §2 |
# | time | 33 minutes, and 5 for the *optional* end |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 8 |
#
# Your step passed its checks on eight small layouts. Now it trains the model of this notebook in fifteen
# layouts, on one to eight ranks. The layouts add up the same terms in different orders, so you can't expect
# their losses to agree to the last bit.
#
# **Predict.** After five steps, how far apart are the losses of two layouts in float64, and how far in
# float32? And how large must a distance be before you call a layout wrong?
#
# <details><summary>Answer</summary>The loss is about 5. Since float64 has a relative precision of 2.2e-16, a
# single rounding changes this loss by about 1e-15. In float32, which has a relative precision of 1.2e-7, a
# rounding changes it by about 5e-7. A wrong factor of 2 in one gradient, however, changes the second step's
# loss by 1e-2. So in float64, you can set a bound of 1e-9, which is far above all roundings and far below
# such a mistake.</details>
#
# **Measure.** The cell runs all fifteen layouts. For each layout, it stores the losses, the bytes rank 0
# sends on each axis in the first step (from the ledger), and the peak of rank 0's memory in the second step.
# (The first step begins before the optimizer has any state.) The cell takes about 40 seconds on two idle
# cores.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def five_losses(make, layout: Layout):
    """Run five steps in float64. Return their losses and the second step's peak memory in bytes."""
    torch.set_default_dtype(torch.float64)
    with Meter() as meter:
        step = make(MODEL, layout, Mesh(layout.sizes), ROWS, LR)
        dist.barrier()
        losses = [step(*rows(0))]
        dist.barrier()
        meter.begin()
        losses.append(step(*rows(1)))
        peak = meter.peak
    return losses + [step(*rows(number)) for number in range(2, 5)], peak


def first_step(ledger, layout: Layout):
    """Return a dict of the bytes rank 0 sent on each axis between the two barriers."""
    operations = ledger.operations(0)
    first, last = (k for k, operation in enumerate(operations) if operation.op == "barrier")
    return by_axis(operations[first + 1 : last], layout.sizes)[0]


losses, sent, peaks = {}, {}, {}
for name, layout in FIFTEEN.items():
    if run := try_it(five_losses, mine, layout, world_size=layout.gpus):
        losses[name], peaks[name] = run[0]
        sent[name] = first_step(run.ledger, layout)
        apart = max(abs(a - b) for a, b in zip(losses[name], losses["one process"], strict=True))
        print(f"{name:24} last loss {losses[name][-1]:.15f}, all within {apart:.1e} of one process")

# %% [markdown]
# **Look.** The left picture shows fifteen curves. The right picture shows the largest distance of each curve from the
# curve of one process, on a logarithmic scale. The grey line marks one rounding of float64 at a loss of 5.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
curves = layouts_figure.parity(losses)
display(curves)
page.add("fifteen layouts", curves, by=BY)

# %% [markdown]
# ### When a layout is wrong
#
# Suppose the layout pp 2 x dp 2 x tp 2 gives a wrong loss. Which of its axes is to blame? You could search
# for the mistake in the program, but experiments are faster. Set an axis to 1 and run again. If the run still
# fails, the failure doesn't need this axis, so leave it at 1 and try the next axis. The axes left at the end
# are *1-minimal*, which means that the failure disappears if you take away any single one of them (Zeller and
# Hildebrandt 2002, §3).
#
# **Build.**


# %% nbgrader={"grade_id": "smallest_failing", "solution": true}
def smallest_failing(sizes: dict[str, int], fails) -> dict[str, int]:
    """Return the axes a failing layout needs to fail, with their sizes.

    fails: a function that takes sizes and returns whether this layout fails. Give it all axes in
    the order of `sizes`, each with its size or 1. Each call can start a run, so for n axes, make at
    most n + n^2 calls. The result names only axes larger than 1, in the order of `sizes`. If any
    single axis of the result were set to 1, the layout would not fail. If there are several such
    results, any of them is right. The result is {} if the layout fails even with all axes at 1.
    Leave `sizes` unchanged. Raise ValueError if the layout with these sizes does not fail.
    """
    if not fails(dict(sizes)):
        raise ValueError(f"the layout {sizes} does not fail")
    left = dict(sizes)  # in this copy, set axes to 1 that the failure doesn't need
    ### BEGIN SOLUTION
    smaller = True
    while smaller:
        smaller = False
        for axis in sizes:
            rest = {**left, axis: 1}
            if left[axis] > 1 and fails(rest):
                left, smaller = rest, True
    ### END SOLUTION
    return {axis: size for axis, size in left.items() if size > 1}


# %% [markdown]
# <details><summary>Hint: why once is not enough</summary>Mistakes can cancel out. Suppose pp and dp each
# double a gradient, and cp halves it, so that the three together double it. Without pp, the gradient is
# right, so the failure needs pp. But once cp is removed, the failure doesn't need pp any more, because dp
# still doubles the gradient. So an axis that was needed at first might not be needed later. Go through all
# axes again and again, until a whole round removes none. In each round, call <code>fails</code> with a copy
# such as <code>{**left, axis: 1}</code>, and keep the copy if it fails.</details>
#
# **Check.** The check makes up layouts that fail, and counts how often you call `fails`.

# %% nbgrader={"grade_id": "smallest_failing_check", "points": 5}
report = check("13_capstone/smallest_failing", smallest_failing)
### BEGIN HIDDEN TESTS
report = check("13_capstone/smallest_failing", smallest_failing, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# ### Three steps that somebody changed
#
# `step_a`, `step_b` and `step_c` are changed versions of `make_step`, and take the same arguments. Each was
# changed for a good reason and passed a test on one rank, but gives wrong losses on eight. `REPORTED` in the
# next cell lists the layouts that gave these losses. First use your `smallest_failing` to find out which axes
# make each function fail. Then read the function, which has only about ten lines, with these axes in mind.
#
# **Measure.** In about 30 s, the cell trains a tiny GPT about 20 times, for three steps each time. You don't
# have to read its code. A function fails if any of the three losses is more than 1e-9 away from the loss of
# one process. For each function, the cell prints the axes your search returns, and how far off the three
# losses are if all other axes are set to 1. The first loss is a clue. It is wrong if forward is wrong, or if
# a run begins with wrong parameters. A wrong gradient, however, doesn't show before the second loss.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
TINY = GPTConfig(
    vocab_size=16, context=16, layers=2, heads=2, width=32, positions="rotary", tied=False
)
TOKENS = torch.randint(16, (3, 4, 17), generator=torch.Generator().manual_seed(0))
REPORTED = {
    step_a: {"pp": 2, "dp": 2, "cp": 1, "tp": 2},
    step_b: {"pp": 2, "dp": 1, "cp": 2, "tp": 2},
    step_c: {"pp": 2, "dp": 2, "cp": 1, "tp": 2},
}


def three_losses(make, sizes):
    """Return three losses in float64, with ZeRO-1 and, if tp exceeds 1, sequence parallelism."""
    torch.set_default_dtype(torch.float64)
    layout = Layout(sizes, microbatch=1, zero=1, sequence=sizes["tp"] > 1)
    step = make(TINY, layout, Mesh(sizes), batch_size=4, lr=1.0)
    return [step(tokens[:, :-1], tokens[:, 1:]) for tokens in TOKENS]


def find_axes(make, sizes):
    """Return the axes the step needs to fail, and how far off each loss is on these axes."""
    apart = {}

    def fails(asked):
        losses = launch(three_losses, make, asked, world_size=Layout(asked).gpus)[0]
        pairs = zip(losses, ONE_PROCESS, strict=True)
        apart[tuple(asked.values())] = [abs(loss - right) for loss, right in pairs]
        return max(apart[tuple(asked.values())]) > 1e-9

    needed = search(sizes, fails)
    left = {axis: needed.get(axis, 1) for axis in sizes}
    if tuple(left.values()) not in apart:  # the search has not tried what it returned
        fails(left)
    return needed, apart[tuple(left.values())]


search = smallest_failing if ready(smallest_failing) else reference.smallest_failing
ALONE = dict.fromkeys(("pp", "dp", "cp", "tp"), 1)
ONE_PROCESS = launch(three_losses, mine, ALONE, world_size=1)[0]
for make, sizes in REPORTED.items():
    needed, apart = find_axes(make, sizes)
    print(f"{make.__name__} needs {needed}, losses off by", ", ".join(f"{a:.0e}" for a in apart))

# %% tags=["skip-in-grading"]
print("\n\n".join(inspect.getsource(make) for make in REPORTED))

# %% [markdown]
# What is the cause of each failure?
#
# | key | cause |
# |---|---|
# | `"mean"` | The ranks of cp hold terms of one sum, but their gradients are averaged. |
# | `"bias"` | Every rank of tp adds the bias of a row-parallel layer, so the sum over tp contains it several times. |
# | `"norms"` | The ranks of tp apply a norm's weights to different tokens, but the gradients of these weights aren't summed. |
# | `"positions"` | A rank of cp holds tokens from different parts of the sequence, but a later stage numbers their positions from 0. |
# | `"head"` | The first and the last stage hold copies of one tied table, but each updates its copy with only its own term of the gradient. |
# | `"groups"` | ZeRO shards the states over ranks that hold different parameters. |
# | `"rows"` | Two ranks that hold parts of the same layers read different rows of the batch. |
#
# Write the axes and the key, such as `broken_a = ({"cp"}, "mean")`. Instead of a set, you can also give the
# dict that `smallest_failing` returned. Then say to yourself, in one sentence for each function, how you
# would mend it.

# %% nbgrader={"grade_id": "broken_steps", "solution": true}
broken_a = ...
broken_b = ...
broken_c = ...
### BEGIN SOLUTION
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")
### END SOLUTION

# %% nbgrader={"grade_id": "broken_steps_check", "points": 3}
report = check("13_capstone/broken_steps", broken_a, broken_b, broken_c)
### BEGIN HIDDEN TESTS
report = check("13_capstone/broken_steps", broken_a, broken_b, broken_c, cases="hidden")
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# <details><summary>How to mend each function</summary><code>step_a</code> uses PyTorch's norms instead of
# <code>SequenceParallelNorm</code>. Forward is the same, but on each rank, a norm's weights get only the
# gradient from the rank's own tokens, so the copies of the weights drift apart. Sum these gradients over tp.
# <code>step_b</code> gives the later stages no positions. Learned positions are added only once, in the
# embedding, but rotary positions turn the queries and keys of every block. So give all stages the positions
# of their tokens. <code>step_c</code> treats neighbouring ranks as replicas. But with pp, dp and tp in this
# order, the neighbours of a rank are its tp partners, which hold different parameters. And since
# <code>Zero1Optimizer</code> begins by giving all ranks of its group the same parameters, even the first loss
# is wrong. Take the group from the mesh instead.</details>

# %% [markdown]
# The runs above use SGD, because AdamW hides a constant factor in the gradients (notebook 03).
#
# **In production.** Before a change is merged into torchtitan, the losses of the changed layout are compared
# with the losses of a run without parallelism. In 16-bit runs, differences of about 1e-2 are accepted, but
# such a bound would miss most mistakes in this section.
#
# ### Optional: why SGD?
#
# **Break it.** The next cell trains the model on one rank, first with the right gradients and then with gradients that
# are four times too large. It does so with SGD and with AdamW, and compares the losses.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def four_times(optimizer, factor, steps=10):
    """Return the losses on one rank, with every gradient multiplied by `factor`."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = GPT(MODEL)
    for param in model.parameters():
        param.register_hook(lambda gradient: factor * gradient)
    kind, options = optimizer
    steps_of = kind(model.parameters(), **options)
    losses = []
    for number in range(steps):
        loss = next_token_loss(model(rows(number)[0]), rows(number)[1])
        loss.backward()
        steps_of.step()
        steps_of.zero_grad()
        losses.append(loss.item())
    return losses


for name, optimizer in (
    ("SGD", (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9})),
    ("AdamW", (torch.optim.AdamW, {"lr": 1e-3})),
):
    right, wrong = (launch(four_times, optimizer, factor, world_size=1)[0] for factor in (1, 4))
    apart = max(abs(a - b) for a, b in zip(right, wrong, strict=True))
    print(f"{name:6} losses of 10 steps are up to {apart:.1e} apart")

# %% [markdown]
# AdamW divides the first moment by the square root of the second, so a constant factor in the gradients
# cancels, except for the effect of ε. If a trainer sums gradients where it should average them, AdamW still
# trains almost the same model. The mistake shows only if gradients are clipped, or if weight decay is added
# to the gradients. So test parity with SGD.
#
# **Question.** The losses of two layouts are 3e-8 apart after one step in float32, and 2e-3 apart after 1,000
# steps. Is one of the layouts wrong? (Not necessarily, since training amplifies rounding errors. Compare only
# a few steps, or use float64.)

# %% [markdown]
# ## 4 · 1,024 ranks on this laptop
#
# | | |
# |---|---|
# | you will write | nothing new for the first check, and then three verdicts |
# | builds on | §2 |
# | time | 17 minutes |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 4 and 5 |
#
# Some mistakes don't show on eight ranks, but ruin a run on 1,024 ranks. With two ranks per axis, an
# all-gather costs as much as an all-reduce, every rank is the first or the last of its group, and there is no
# middle stage. So you need a test with more ranks. But you can't start 1,024 processes on two cores, and
# GPT-3's parameters alone need about 700 GB in float32.
#
# A **dry run** needs neither 1,024 processes nor 700 GB. Your function runs unchanged, but as *one* rank of a
# large mesh. The other ranks don't exist, so all calls that need them return immediately. Tensors of floats
# have a shape and a dtype, but no values. Tensors of integers, however, do have values, because your program
# makes decisions with them. So the calls and their order, the bytes, the memory and the FLOPs are the same as
# on the real rank. But a dry run can't measure time, and it can't detect wrong values, for example if you
# forgot a division. The comparison in §3 detects wrong values.
#
# **Predict.** GPT-3 has 96 layers of width 12,288. Suppose 1,024 ranks train it in float32 on the mesh pp 8 x
# dp 16 x tp 8, and each replica has 16 microbatches of one row with 2,048 tokens. You are rank 517. On which
# stage are you? For how many microbatches, at most, do you keep activations at the same time? And how many
# bytes of activations do you send to the next stage for each microbatch?
#
# <details><summary>Answer</summary>517 = 4 · 128 + 0 · 8 + 5, so you are on stage 4. This stage keeps the
# activations of at most min(16, 8 − 4) = 4 microbatches. The activations that leave a stage have 2,048 ·
# 12,288 · 4 bytes = 100.7 MB per microbatch. For each of the 16 microbatches, you send these to the next
# stage, and gradients of the same size to the previous stage.</details>
#
# **Measure.** The cell runs your `make_step` as rank 517, which takes about 30 seconds. `setup` builds the step, and
# `one_step` calls it once.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def setup(config, mesh, m):
    layout = Layout(mesh.sizes, microbatch=1, recompute="none")
    return mine(config, layout, mesh, layout.dp * m, LR)


def one_step(step, mesh, microbatches):
    return step(*whole_batch(microbatches, mesh))


GPT3 = GPTConfig(vocab_size=51_200, context=2_048, layers=96, heads=96, width=12_288, tied=False)


def as_rank_517():
    sizes = {"pp": 8, "dp": 16, "tp": 8}
    return dry_run(setup, one_step, sizes=sizes, rank=517, model=GPT3, microbatches=16)


if rank_517 := tried(as_rank_517, mine):
    page.add("rank 517 of 1,024", rank_517.table(), by=BY)
    display(rank_517.table())

# %% [markdown]
# The column *dry run* shows what your program does, and the column *closed form* shows the results of the
# formulas from notebooks 04, 06, 07 and 10. The row *numbers* contains the few bytes sent for losses and for
# numbers of targets. In the rows for parameters, kept activations and the bytes along the three axes, the two
# columns agree to the byte.
#
# But look at the row *peak of the setup*. `make_step` builds the whole model, and `mesh_stages` then throws
# most of it away. So every rank would need 702 GB before the first step, and no GPU has that much. This is
# why Megatron-LM builds only a rank's own part, and why other libraries build the model on the meta device.
#
# **Check.** The check makes dry runs of your step on the mesh pp 8 x dp 16 x tp 8, as ranks of different
# stages. The model is a small GPT of 8 layers, and each replica has 8 microbatches. The check compares four
# quantities with their closed forms: the bytes by axis, the calls over the replicas, the parameters and the
# kept activations. Each rank takes a few seconds. You can use a schedule other than 1F1B, as long as it keeps
# no more activations than 1F1B.

# %% nbgrader={"grade_id": "dry_step_check", "points": 4}
report = check("13_capstone/dry_step", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/dry_step", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# ### Three suspects
#
# You are given three programs that are meant to run on 1,024 GPUs. Each returns a training step, as your
# `make_step` does, but without ZeRO. The next cell shows that on 2 x 2 x 2 ranks, the three programs have the
# same losses up to rounding and send the same bytes.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
SUSPECTS = {"suspect_a": suspect_a, "suspect_b": suspect_b, "suspect_c": suspect_c}
on_eight = replace(FIFTEEN["pp 2 dp 2 tp 2"], microbatch=2)
for name, program in SUSPECTS.items():
    run = launch(five_losses, program, on_eight, world_size=8)
    nbytes = {axis: round(amount) for axis, amount in first_step(run.ledger, on_eight).items()}
    traffic = ", ".join(f"{nbytes[axis]:,} bytes over {axis}" for axis in ("pp", "dp", "tp"))
    print(f"{name}: last loss {run[0][0][-1]:.15f}, {traffic}")

# %% [markdown]
# **Look.** Now each program trains a GPT of 16 layers as rank 517 of 1,024, with 16 microbatches per replica.
# This takes about 20 seconds. Read every row of the three tables, not just the calls.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
SMALL = GPTConfig(vocab_size=256, context=32, layers=16, heads=8, width=64, tied=False)


def as_rank(program, rank=517):
    """Make a dry run of the program on pp 8 x dp 16 x tp 8, with 16 microbatches of one row."""

    def built(config, mesh, m):
        layout = Layout(mesh.sizes, microbatch=1, recompute="none")
        return program(config, layout, mesh, layout.dp * m, LR)

    sizes = {"pp": 8, "dp": 16, "tp": 8}
    return dry_run(built, one_step, sizes=sizes, rank=rank, model=SMALL, microbatches=16)


for name, program in SUSPECTS.items():
    print(name)
    display(as_rank(program).table())

# %% [markdown]
# **Build.** Two of the three programs have a flaw and must not be started. Write a pair for each program. The
# first entry names the quantity that is too large on rank 517, and the second entry is the factor by which it
# is too large.
#
# | kind | row that is too large |
# |---|---|
# | `"bytes over dp"`, `"bytes along tp"`, `"bytes along pp"` | bytes sent |
# | `"parameters"` | weights |
# | `"activations"` | activations kept for backward |
# | `"nothing"` | no row is too large, so the factor is 1 |

# %% nbgrader={"grade_id": "suspects", "solution": true}
verdict_a = ...  # (kind, factor)
verdict_b = ...
verdict_c = ...
### BEGIN SOLUTION
verdict_a = "activations", 4
verdict_b = "nothing", 1
verdict_c = "bytes over dp", 8
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: where to look</summary>If a row differs from its closed form, a mark in the row says
# by what factor the number is too large.</details>
# <details><summary>Hint: unusual calls</summary>A program can make different calls from yours, so judge by the bytes
# instead of the calls.</details>

# %% nbgrader={"grade_id": "suspects_check", "points": 5}
report = check("13_capstone/suspects", verdict_a, verdict_b, verdict_c)
### BEGIN HIDDEN TESTS
report = check("13_capstone/suspects", verdict_a, verdict_b, verdict_c, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# What would the two flaws cost for GPT-3 on the same mesh? With the first flaw, the first stage keeps the
# activations of 16 microbatches, although 8 are enough. In float32, these activations take 106 GB instead of
# 53 GB. With the other flaw, a rank sends 15 times the bytes of its gradients, although an all-reduce sends
# only 15/8 times these bytes. So rank 517 sends 163 GB per step instead of 20 GB.
#
# <details><summary>Why two ranks per axis show neither flaw</summary>With n ranks and M bytes of gradients,
# an all-reduce sends 2 (n−1)/n M, whereas an all-gather of the whole gradients sends (n−1) M. For n = 2, both
# amounts are M. The flawed schedule keeps m microbatches, whereas 1F1B keeps only min(m, p − i). But with m =
# p = 2, both numbers are 2 on the first stage.</details>
#
# **In production.** torchtitan's `scripts/estimate` also runs a step with PyTorch's fake process group, on
# tensors without values, and reports the memory. In 2025, the script supported FSDP and its hybrid form, but
# not tp, pp or cp.

# %% [markdown]
# ## 5 · The map of the field
#
# | | |
# |---|---|
# | you will write | five numbers |
# | builds on | §3, notebooks 04 to 08 |
# | time | 18 minutes |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 5 |
#
# You now have the losses, the bytes and the memory of fifteen layouts. Since they all train the same model,
# the choice between them is only a question of cost. You can even calculate the bytes before anything runs.
#
# The model has 875,264 parameters: 4 layers of 198,272 each, a table with 128 numbers for each of 256 tokens,
# a table with 128 numbers for each of 128 positions, a last norm of 256, and a head of 32,768. tp cuts
# everything except the norms, the table of positions, and the biases that are added after a sum, so 768
# parameters of each layer stay whole. A step reads 8 rows of 128 tokens, and everything is in float32.
#
# **Build.** Write five numbers for **rank 0 and one step**. You ran the layouts of the first three numbers in
# §3, but no cell has run the last two layouts. You can write each number as an expression. Leave out the few
# bytes sent for losses and numbers of targets, because the check tolerates an error of 0.4 %.
#
# | | layout | number |
# |---|---|---|
# | `zero_3_bytes` | dp 4, ZeRO-3, microbatches of 1 row | bytes sent over dp |
# | `tp_bytes` | tp 4, one microbatch of 8 rows | bytes sent along tp |
# | `pp_bytes` | pp 2, v 2, microbatches of 2 rows | bytes sent along pp |
# | `dp_bytes` | dp 2 x tp 4, no ZeRO, one microbatch per replica | bytes sent over dp |
# | `held` | pp 2 x dp 4, ZeRO-3 | parameters rank 0 keeps between steps |

# %% nbgrader={"grade_id": "five_costs", "solution": true}
row = 128 * 128 * 4  # bytes of an activation of one row
whole = 875_264 * 4  # bytes of all parameters, or of their gradients
zero_3_bytes = ...
tp_bytes = ...
pp_bytes = ...
dp_bytes = ...
held = ...
### BEGIN SOLUTION
zero_3_bytes = 2 * 3 * (3 / 4) * whole  # 2 microbatches, 2 all-gathers and a reduce-scatter
tp_bytes = (4 * 4 + 2) * (2 * 3 / 4) * 8 * row  # 4 sums per layer, one in embedding, one in head
pp_bytes = 4 * 3 * 2 * row  # 4 microbatches, 2 activations and a gradient each
of_tp = 4 * (768 + (198_272 - 768) // 4) + (2 * 32_768) // 4 + 128 * 128 + 256
dp_bytes = (2 * 1 / 2) * 4 * of_tp
held = (2 * 198_272 + 32_768 + 128 * 128) / 4
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: ZeRO-3</summary>Here, each replica has two microbatches. For each microbatch,
# parameters are gathered in forward and again in backward, and then the gradients are summed by a
# reduce-scatter.</details>
# <details><summary>Hint: tp</summary>A layer has two sums in forward and two in backward. The embedding adds one in
# forward, since each rank has only a part of the table, and the head adds one in backward.</details>
# <details><summary>Hint: v = 2</summary>Rank 0 holds the first and the third of four stages. List the
# activations and the gradients that leave this rank.</details>
# <details><summary>Hint: replicas</summary>Add up the parameters of <i>one rank</i>, and then ask how many
# ranks hold the same parameters.</details>

# %% nbgrader={"grade_id": "five_costs_check", "points": 5}
report = check("13_capstone/five_costs", zero_3_bytes, tp_bytes, pp_bytes, dp_bytes, held)
### BEGIN HIDDEN TESTS
report = check(
    "13_capstone/five_costs", zero_3_bytes, tp_bytes, pp_bytes, dp_bytes, held, cases="hidden"
)
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** For each layout of §3, the picture shows the bytes rank 0 sent in the first step, by axis. A
# cross marks where a bar should end according to your numbers. (The layouts of §3 ran in float64. The picture
# halves the measured bytes, because float32 needs only half of them.)

# %% tags=["nbval-ignore-output", "skip-in-grading"]
predicted = {
    ("zero-3 4", "dp"): zero_3_bytes,
    ("tp 4", "tp"): tp_bytes,
    ("pp 2, v 2", "pp"): pp_bytes,
    ("dp 2 tp 4", "dp"): dp_bytes,  # a cross without a bar
}
predicted = {place: guess for place, guess in predicted.items() if isinstance(guess, int | float)}
bars = layouts_figure.traffic(sent, predicted, halve=True)
display(bars)
page.add("bytes of fifteen layouts", bars, by="measured in section 3, and your predictions")

# %% [markdown]
# **Look.** The next picture is the map. It shows the peak of rank 0's memory against the bytes rank 0 sent,
# with one point for each layout. A point's colour shows which axis sends the most bytes. Follow the arrows
# from the point *one process*.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
ARROWS = [("one process", name) for name in ("ddp 4", "pp 4", "cp 4", "tp 4")]
ARROWS += [("ddp 4", "zero-1 4"), ("zero-1 4", "zero-2 4"), ("zero-2 4", "zero-3 4")]
ARROWS += [("pp 4", "pp 2 dp 2 tp 2")]
the_map = layouts_figure.field(sent, peaks, ARROWS, halve=True)
display(the_map)
page.add("the map of the field", the_map, by="measured in section 3")

# %% [markdown]
# A layout is better if its point is further down or further to the left, but no layout of four ranks is best
# at everything. For example, *pp 4* sends the fewest bytes and needs little memory, but the map doesn't show
# its bubble. With four microbatches, each stage is idle for 3/7 of the step. *tp* divides the activations, at
# the cost of sending bytes in every layer. In notebook 04, *ZeRO-2* sent 2 units of traffic and *ZeRO-3* sent
# 3. Here they send more, because they communicate for every microbatch, and each replica has two microbatches.
# *ZeRO-2* doesn't even save memory here. Its buckets hold 25 MiB by default, so one bucket holds all
# gradients until the end of backward. In the run on one process, activations make up about three quarters of
# the peak. In your dry run of GPT-3, however, the states were larger than the activations, so the map of
# GPT-3 would look different.

# %% [markdown]
# ## 6 · The run that survives
#
# | | |
# |---|---|
# | you will write | `train(make, batches, steps, disk, every)` |
# | builds on | §2, notebook 12 |
# | time | 19 minutes, and 5 for the *optional* end |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 9 |
#
# In notebook 12 you built a save from its parts. Here you are given two functions that save and load, and you
# write the few lines around them. The result is a program a cluster can run for months. The program might be
# killed at any moment, and then you can only call it again with the same arguments.
#
# | given | does |
# |---|---|
# | `make()` | builds a run that has not trained yet, and returns two functions. `step` runs one training step, and `held()` returns this rank's pieces of the parameters and of the optimizer's state, as they are now |
# | `save_run(disk, losses, pieces)` | saves the pieces of all ranks and the losses so far, either completely or not at all |
# | `load_run(disk, pieces)` | fills the pieces in place from the newest checkpoint, and returns its losses, or `[]` if there is no checkpoint |
# | `batches(number)` | returns the inputs and targets of the step with this number, counted from 0 |
#
# The number of finished steps isn't stored anywhere, because it equals the number of losses. All ranks call
# `save_run` and `load_run`. Call `make` once and `load_run` right after it, but call `held()` again for each
# save, because a step might replace the tensors. If a run is already finished, `train` only returns its
# losses. Since a killed process runs no `except` and no `finally`, leave the restart to the program that
# calls `train`.
#
# **Predict.** The run saves every 5 steps and is killed in step 7, which is its eighth step. At which step
# does the next call begin? And how many losses does it return, if the whole run has 20 steps?
#
# <details><summary>Answer</summary>The call begins at step 5, because the checkpoint contains the first five
# losses. It repeats steps 5 and 6, finishes step 7 for the first time, and in the end returns all 20
# losses.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "train", "solution": true}
def train(make, batches, steps: int, disk, every: int) -> list[float]:
    """Train until `steps` steps are finished, and return all their losses, also from earlier calls.

    make: `make()` builds an untrained run, and returns (step, held). `step(inputs, targets)`
    returns a loss, and `held()` returns this rank's pieces as they are now. batches:
    `batches(number)` returns (inputs, targets) of a step, counted from 0. steps: the number of
    steps of the whole run. disk: where to save. every: save whenever the number of finished steps
    is a multiple of `every`, and after the last step as well.

    Use `save_run(disk, losses, pieces)`, and `load_run(disk, pieces)`, which fills the pieces in
    place from the newest checkpoint and returns its losses, or [] if there is none. If the call is
    killed at any moment, the next call goes on from the newest checkpoint.
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


# %% [markdown]
# <details><summary>Hint: the number of the step</summary>The number of the next step is
# <code>len(losses)</code>, even right after the load.</details>
# <details><summary>Hint: when to save</summary>Save after a step if the number of finished steps is a multiple of
# <code>every</code>, or equal to <code>steps</code>.</details>
#
# **Check.** The check kills your run during steps and during saves, calls it again, and checks that all
# losses equal the losses of an undisturbed run to the last bit.

# %% nbgrader={"grade_id": "train_check", "points": 9}
report = check("13_capstone/train", train)
### BEGIN HIDDEN TESTS
report = check("13_capstone/train", train, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** Two agents (notebook 12) start two ranks each, and the four ranks train on pp 2 x dp 2 with
# ZeRO-1. On two machines, `torchrun` would start the ranks in the same way. The cell makes two runs. The
# first is undisturbed, but in step 7 of the second run, rank 2 sends SIGKILL to itself. Both runs together
# take about 20 seconds. You don't have to read the code of `on_four`, which calls your `train` on each rank.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
SURVIVOR = Layout({"pp": 2, "dp": 2}, microbatch=2, zero=1)
ADAMW = (torch.optim.AdamW, {})


def on_four(folder, steps, every, dies=None):
    """Train on one rank that an agent has started. Rank 0 notes each step in the journal."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    journal = Journal(f"{folder}/journal")

    def make():
        step = mine(MODEL, SURVIVOR, Mesh(SURVIVOR.sizes, device="cpu"), ROWS, 1e-3, ADAMW)
        return step, lambda: held_state(step)

    def batches(number):
        if (dist.get_rank(), number) == dies:
            journal.die_once(f"rank {dies[0]} dies in step {number}")
        if dist.get_rank() == 0:
            journal.note(f"step {number}")
        return rows(number)

    losses = my_train(make, batches, steps, Folder(f"{folder}/saved"), every)
    if dist.get_rank() == 0:
        journal.note("losses " + " ".join(map(repr, losses)))
    dist.destroy_process_group()


def losses_of(run):
    (line,) = (line.text for line in run.lines if line.text.startswith("losses"))
    return [float(word) for word in line.split()[1:]]


my_train = train if ready(train) else reference.train
with tempfile.TemporaryDirectory() as folder:
    undisturbed = losses_of(run_agents(on_four, f"{folder}/a", 20, 5, timeout=300))
    run = run_agents(on_four, f"{folder}/b", 20, 5, (2, 7), timeout=300)
    survived = losses_of(run)
done = [line.text.split()[1] for line in run.lines if line.text.startswith("step")]
print("steps of the killed run:", " ".join(done))
print("same losses as the undisturbed run, to the last bit:", survived == undisturbed)

# %% [markdown]
# ### Optional: long enough to learn
#
# Now let the model train long enough to learn something. On four ranks, 300 steps with AdamW take about a
# minute. Start the cell, and read the text of §7 while it runs. (You can also stop here for a break.)

# %% tags=["nbval-ignore-output", "skip-in-grading"]
LONG = 300
home = tempfile.TemporaryDirectory()
long_run = losses_of(run_agents(on_four, home.name, LONG, 50, (1, 130), timeout=1800))
drawn = layouts_figure.long_run(long_run, killed=130, restarted=100)
display(drawn)
page.add(
    "a run that was killed", drawn, by="your train" if my_train is train else "the library's train"
)

# %% [markdown]
# The cross marks the kill, but the curve has no kink there. The four ranks have ended, but their files are
# still on the disk. In the next cell, one process reads these files, puts the whole model together, and lets
# it write text. Each token is one byte.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
model = GPT(MODEL)
print("checkpoint of step", load_model(f"{home.name}/saved", model))
written = generate(model, b"def ", 300, temperature=0.8).decode(errors="replace")
print("def " + written)
page.add("what the model writes after 'def '", written, by="trained by the run above")
home.cleanup()

# %% [markdown]
# The text looks a little like Python, but it makes no sense. It has indented lines, brackets, and words about
# as long as English words. The model could not learn more, because it has 875,264 parameters but read only
# 307,200 tokens in 300 steps. By the rule of 20 tokens per parameter (Hoffmann et al. 2022), it should have
# read 17.5 million tokens.
#
# <details><summary>What did the kill cost?</summary>The kill cost 30 steps, because the run was killed in
# step 130, and its last save was after 100 steps. The formula of notebook 12, τ = √(2 δ M), says how often
# the run should have saved, if δ is the time per save and M is the mean time between failures.</details>

# %% [markdown]
# ## 7 · The cluster that you are given
#
# | | |
# |---|---|
# | you will write | one layout |
# | builds on | notebook 10, §8 |
# | time | 10 minutes, and 7 for the *optional* end |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 2 |
#
# You are given a cluster that isn't built like the clusters in the papers:
#
# - The cluster has four nodes of 8 L40S GPUs each. An L40S has 48 GB and 362 TFLOP/s, but no NVLink, so the
#   GPUs of a node communicate over PCIe 4.0 x16.
# - Between nodes there is 10 Gb/s Ethernet (`link("10 Gb Ethernet")`), and each GPU has a port of its own.
# - The model is LLaMA-7B (`PUBLISHED["LLaMA-7B"]` of `course_lib.models`), and a step trains it on a batch of
#   256 sequences of 2,048 tokens. You can't change this batch.
# - Attention doesn't store its scores (FlashAttention), matrix products reach 63 % of the peak, and NCCL and
#   other libraries take 4 GB of each GPU.
#
# **Predict.** A rule of thumb says that you should use tp for all GPUs of a node, then as much pp as the
# memory requires, and dp for the rest. By what factor is a step longer with this rule than with the best
# layout for this cluster? And which axis should use the slow wire between nodes?
#
# <details><summary>Answer</summary>The rule gives tp 8 and dp 4, because the model then fits without pp. With
# this layout, a step takes 2.9 times as long as with the best layout, since PCIe has a tenth of NVLink's
# bandwidth, and tp waits for its sums in every layer. The axis that sends the fewest bytes should use the
# wire between nodes.</details>
#
# **Build.** Write a layout for all 32 GPUs. (A `Layout` recomputes everything unless you write
# `recompute="none"`.) According to the planner of notebook 10, a step must take at most 5 % longer with your
# layout than with the best layout `advise` finds. You can use everything in `course_lib.planning` (such as
# `Cluster`, `Wire` and `advise`) and in `course_lib.facts` (such as `gpu` and `link`). Ranks fill nodes in
# order, so on this cluster the outermost axis always crosses nodes.

# %% nbgrader={"grade_id": "cluster", "solution": true}
my_layout = ...  # Layout({...}, microbatch=..., chunks=..., zero=..., recompute=...)
### BEGIN SOLUTION
from course_lib.facts import gpu, link
from course_lib.models import PUBLISHED
from course_lib.planning import Cluster, best_layout
from course_lib.planning.roofline import Work

four_nodes = Cluster(32, 8, gpu("L40S"), link("PCIe 4.0 x16"), link("10 Gb Ethernet"))
my_layout = best_layout(PUBLISHED["LLaMA-7B"], 32, 256, four_nodes, work=Work(0.63, flash=True))
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: the planner</summary>Call <code>advise(shape, gpus, batch, cluster, work=Work(0.63,
# flash=True))</code>. Import <code>advise</code> from <code>course_lib.planning</code> and <code>Work</code>
# from <code>course_lib.planning.roofline</code>. The function returns a list of verdicts, the best first, and
# each verdict has a <code>layout</code>. You only have to describe the cluster, as <code>Cluster(gpus,
# per_node, gpu(...), inside, across)</code>.</details>
# <details><summary>Hint: by hand</summary>Per step, count the bytes each axis sends over each wire. There are four sums
# per layer and microbatch for tp, one sum of the gradients for dp, and one activation and one gradient per microbatch
# for pp.</details>

# %% nbgrader={"grade_id": "cluster_check", "points": 2}
report = check("13_capstone/cluster", my_layout)
### BEGIN HIDDEN TESTS
report = check("13_capstone/cluster", my_layout, cases="hidden")
### END HIDDEN TESTS
report.points(2)

# %% [markdown]
# ### Optional: in your own words
#
# An interviewer asks: "How would you train this model on this cluster, and why?" Write half a page below. No
# check reads your text, but §9 puts it onto your page. Then check your text against the questions below.
#
# <details><summary>Six questions about your text</summary>
#
# 1. Does it show with numbers that the states and the activations fit into memory?
# 2. Does it say which traffic leaves a node, and that the traffic of tp doesn't?
# 3. Does it name the bubble, or say why there isn't one?
# 4. Does it keep the batch of 256 sequences?
# 5. Does it say what will probably fail first, and how much this would cost?
# 6. Does it say what you would measure first, before you trust the plan?
#
# </details>

# %%
in_your_words = """

"""
page.add("how I would train it", in_your_words.strip(), by="you")

# %% [markdown]
# ## On your GPUs
#
# *This section has no points. With GPUs it takes a few minutes. Without them, the cells show a recorded run, if there
# is one.*
#
# **Predict.** GPT-2 small with an untied head has 163M parameters, and training needs about 0.85 GFLOP per
# token. With data parallelism, a rank holds 16 bytes per parameter in weights, gradients and moments, which
# makes 2.6 GB. With ZeRO-3 on two GPUs, it holds half of these bytes. How many tokens per second does your
# card's data sheet allow, and what share of this will one GPU reach?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.facts import transformer_flops, transformer_parameters
from course_lib.gpu import on_your_gpus
from course_lib.gpu.layouts import ON_ALL, ON_ONE

MODEL_124M = replace(PRESETS["124M"], tied=False, vocab_size=50_304)
PARAMETERS = transformer_parameters(MODEL_124M)
FLOPS = transformer_flops(MODEL_124M, 1, MODEL_124M.context) / MODEL_124M.context  # per token
STATES = {  # bytes per parameter on one of n ranks, for weights, gradients and moments
    "one GPU": lambda n: 16,
    "dp": lambda n: 16,
    "dp, ZeRO-1": lambda n: 8 + 8 / n,
    "dp, ZeRO-2": lambda n: 4 + 12 / n,
    "cp": lambda n: 16,
}


def by_hand(of, run):
    """Predict tokens per second or seconds from the data sheet, or a rank's bytes of states."""
    n = of["ranks"]
    speed = n * run.card.flops / FLOPS
    if of["kind"] == "tokens":
        return speed
    if of["kind"] == "step":
        return of["batch"] * of["seq"] / speed
    return STATES.get(of["layout"], lambda n: 16 / n)(n) * PARAMETERS


alone = on_your_gpus(ON_ONE, predicted=by_hand, make_step=mine)
together = on_your_gpus(ON_ALL, predicted=by_hand, source=False, make_step=mine)

# %% [markdown]
# In the rows for tokens per second, the last column is the MFU. In the rows for peak memory, the last column
# is larger than 1, because the prediction leaves out the activations. All layouts have the same batch of 8
# rows, so you can compare their tokens per second. Which axis makes training faster on your machine, and
# which axis would do so only with faster links?

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 5 minutes |
# | points | 2 |
#
# You can write a number as an expression.
#
# 1. A run on 1,024 GPUs has the mesh pp 8 x dp 16 x tp 8, a batch of 256 rows, and microbatches of one row.
#    For what **share** of the step's time is a stage idle with 1F1B, if all stages are equally fast?
# 2. A replica has m microbatches. Which stages of ZeRO send more bytes with m = 8 than with m = 1, in this course's
#    implementations? `"a"`: only ZeRO-3. `"b"`: ZeRO-2 and ZeRO-3. `"c"`: all three. `"d"`: none of them.

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # share
answer_2 = ...  # "a", "b", "c" or "d"
### BEGIN SOLUTION
answer_1 = (8 - 1) / (256 / 16 + 8 - 1)
answer_2 = "b"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 2}
report = check("13_capstone/questions", answer_1, answer_2)
### BEGIN HIDDEN TESTS
report = check("13_capstone/questions", answer_1, answer_2, cases="hidden")
### END HIDDEN TESTS
report.points(2)

# %% [markdown]
# ## 9 · Your page
#
# The cell writes one HTML file and one PNG from the results above. Both files say where each result comes
# from, such as *your make_step* or *the library's train*, and name this machine, its version of PyTorch and
# the date. If you left out a section or an optional part, its frame stays empty. The page isn't graded. But
# it is a lab report, so be ready to answer a question about every number on it.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
page.show("your_page")

# %% [markdown]
# ## 10 · Optional: published runs, audited
#
# | | |
# |---|---|
# | you will write | nine numbers |
# | builds on | notebooks 01, 07, 11 |
# | time | 30 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | extra credit | 5 points, on top of the 60. You lose nothing if you skip it |
#
# Papers print results, and often also the inputs from which you can compute them. So you can check the
# results, and learn which printed numbers you can compare with your own. All inputs in the table are
# published, and you need only arithmetic.
#
# | run | inputs |
# |---|---|
# | GPT-3 | 174.6 billion parameters, 300 billion tokens (Brown et al. 2020, table D.1). For `gpt3_days`, take 175 billion parameters, and 1,024 A100s at 140 TFLOP/s each. The 140 TFLOP/s includes full recomputation (Narayanan et al. 2021, eq. 4) |
# | LLaMA-65B | 65.2 billion parameters, 1.4 trillion tokens, 2,048 A100s, 380 tokens per second per GPU (Touvron et al. 2023, §2.4). The peak is 312 TFLOP/s |
# | Llama-3-405B | On 16,384 H100s, the run reached 400 TFLOP/s per GPU with pp 16, dp 128, and 16 microbatches per replica, each of one sequence (Llama Team 2024, table 4). The dense bf16 peak is 989 TFLOP/s |
# | Mixtral-8x7B | 32 layers of width 4,096, with 32 heads for queries and 8 for keys and values, each of width 128. A layer has 8 experts, each with three matrices of 4,096 x 14,336, and a token uses 2 of the experts. The embedding and the head have 32,000 rows each, one for each token of the vocabulary (Jiang et al. 2024, table 1) |
# | DeepSeek-V3 | 671 billion parameters (37 billion of them used per token), 14.8 trillion tokens, 2.664 million H800 hours of pre-training (DeepSeek-AI 2024, table 1 and §2) |
#
# | your number | asked for | printed in the paper |
# |---|---|---|
# | `gpt3_flops` | FLOPs of the training, 6 per parameter and token | 3.14e23 |
# | `gpt3_days` | days on the 1,024 A100s | 34 |
# | `llama_65b_mfu` | MFU, as a share, with 6 FLOPs per parameter and token | not printed |
# | `llama_65b_days` | days of training | about 21 |
# | `llama_405b_mfu` | MFU, as a share, from the 400 TFLOP/s | 41 % (is this right?) |
# | `llama_405b_idle` | share of a step in which a stage is idle, with plain 1F1B (v = 1) | not printed, because the run interleaves its stages |
# | `mixtral_held` | parameters in all | 47 billion |
# | `mixtral_used` | parameters used per token | 13 billion |
# | `deepseek_tflops` | TFLOP/s a GPU reached on average, with 6 FLOPs per used parameter and token | not printed |

# %% nbgrader={"grade_id": "audit", "solution": true}
gpt3_flops = ...
gpt3_days = ...
llama_65b_mfu = ...
llama_65b_days = ...
llama_405b_mfu = ...
llama_405b_idle = ...
mixtral_held = ...
mixtral_used = ...
deepseek_tflops = ...
### BEGIN SOLUTION
DAY = 86_400
gpt3_flops = 6 * 174.6e9 * 300e9
gpt3_days = 8 * 175e9 * 300e9 / (1024 * 140e12) / DAY  # with a second forward, 8 FLOPs instead of 6
llama_65b_mfu = 6 * 65.2e9 * 380 / 312e12
llama_65b_days = 1.4e12 / (2048 * 380) / DAY
llama_405b_mfu = 400 / 989
llama_405b_idle = (16 - 1) / (16 + 16 - 1)
attention = 2 * 4096 * 32 * 128 + 2 * 4096 * 8 * 128
expert = 3 * 4096 * 14_336
besides = (
    2 * 32_000 * 4096 + 32 * (attention + 8 * 4096 + 2 * 4096) + 4096
)  # tables, attention, routers, norms
mixtral_held = besides + 32 * 8 * expert
mixtral_used = besides + 32 * 2 * expert
deepseek_tflops = 6 * 37e9 * 14.8e12 / (2.664e6 * 3600) / 1e12
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: GPT-3's days</summary>With full recomputation, a GPU does 8 FLOPs per parameter and token, and
# the 140 TFLOP/s includes all of them.</details>
# <details><summary>Hint: Mixtral</summary>In each layer, only the experts exist eight times, while attention,
# router and norms exist once. The two tables exist once in the whole model.</details>

# %% nbgrader={"grade_id": "audit_check", "points": 0}
# Extra credit, 5 points
report = check(
    "13_capstone/audit", gpt3_flops, gpt3_days, llama_65b_mfu, llama_65b_days, llama_405b_mfu,
    llama_405b_idle, mixtral_held, mixtral_used, deepseek_tflops,
)  # fmt: skip
### BEGIN HIDDEN TESTS
report = check(
    "13_capstone/audit", gpt3_flops, gpt3_days, llama_65b_mfu, llama_65b_days, llama_405b_mfu,
    llama_405b_idle, mixtral_held, mixtral_used, deepseek_tflops, cases="hidden",
)  # fmt: skip
### END HIDDEN TESTS

# %% [markdown]
# Llama 3's table prints 400 TFLOP/s and 41 %, but 400 of 989 is 40.4 %. Since both printed numbers are
# rounded, the run probably reached a little more than 400. With plain 1F1B, the pipeline would be idle for
# 48 % of each step. To average 40 % of the peak, it would have to reach 78 % of the peak in the rest of the
# step, and no run does this. So the table itself shows that the stages were interleaved. DeepSeek's GPUs
# reached 343 TFLOP/s, which is 35 % of the bf16 peak, but only 17 % of the fp8 peak, and they computed most
# matrix products in fp8. So always say which peak you mean.
#
# <details><summary>In the lectures</summary>
#
# | lecture | says | right |
# |---|---|---|
# | 000, 001, 002 | GPT-3 was trained as 8 x 12 x 32, as 8 x 8 x 16, or 96-way by 8-way | OpenAI published no layout. The paper names V100s, and model parallelism within matrix products and across layers (Brown et al., §2.3). Megatron-LM's own 175B benchmarks used tp 8 and pp 12 |
# | 002 | "optimized for Azure", "dynamic loss scaling" | The paper mentions neither |
# | 002 | LLaMA's tokenizer has a larger vocabulary than GPT-3's, and the model has fewer non-linearities | LLaMA's tokenizer has 32,000 tokens, but GPT-3's has 50,257. LLaMA's SwiGLU multiplies two branches, whereas GPT-3's MLP has only one |
# | 001 | A model of 70 billion parameters on 64 H100s reaches 2 to 3 tokens per second per GPU | At 40 % of the peak, it reaches about 940, which is 0.4 · 989e12 / (6 · 70e9) |
# | 002 | Mixtral shares parameters across experts | The eight experts of a layer share nothing. Shared experts are part of DeepSeek's models |
#
# </details>

# %% [markdown]
# ## What you have built
#
# You have built one function that trains a GPT in every layout with the same loss. You have also built a
# search that finds the axes on which a failure depends. Your function ran as one rank of 1,024, and you found
# two programs whose flaws don't show on eight ranks. A run was killed and started again, and its losses were
# still the same to the last bit. And you have a page that says what you measured, and on which machine.
#
# **Read on.**
# - Narayanan et al. (2021), *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*. §3
#   explains which axis goes where.
# - Liang et al. (2024), *TorchTitan*. This library cuts a model in the same order as your `make_step`, and
#   also tests parity.
# - The Ultra-Scale Playbook (Hugging Face, 2025) measures layouts on up to 512 GPUs.
# - Pope et al. (2022), *Efficiently Scaling Transformer Inference*, cuts the same layers for serving. This
#   course covers only training, but reinforcement learning from a model's own answers alternates between
#   training and serving, so it needs a layout for each of the two.
# - `course_lib/trainer/` is best read after you have written your own step. Begin with `step.py`.
# - `examples/train.py --mesh pp=2,dp=2,tp=2` trains with the same step on several machines, if `torchrun`
#   starts it there.

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In a
# terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("13_capstone")
