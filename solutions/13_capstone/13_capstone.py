# %% [markdown]
# # 13 · Capstone
#
# **Is it the same model in every layout, what does each layout cost, and which one would you run?**
#
# OpenAI reported 3.14e23 floating-point operations for GPT-3, but never published how they were divided among the GPUs
# (Brown et al. 2020, appendix D). You have built all the divisions it could have used. In this notebook they become one
# function, which takes a layout and runs one training step.
#
# In the first half you train the same GPT in fifteen layouts on up to eight ranks and watch fifteen curves become one
# line. In the second half your function runs unchanged as one rank of 1,024, on this machine. Then a run is killed and
# resumed, and everything you measured goes onto a page you can show to others. The next code cell imports what you
# need, and you can skip it.
#
# | | |
# |---|---|
# | you will build | a GPT spread by PyTorch's own classes; one step for every layout; a search for the guilty axis; a run that survives; a page of your own results |
# | you need | `hybrid_step` and the mesh (notebook 10); ZeRO (notebook 04); notebook 12 for §6 |
# | time | three hours; the *optional* parts (the ends of §2, §3, §6 and §7, and §10) take 51 minutes more |
# | points | 60, and 5 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. With GPUs, the section *On your GPUs* runs your own functions over NCCL |
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
# | pp, dp, cp, tp | the axes of a mesh. Along them, ranks hold different layers (pipeline), different rows (data), different parts of the sequence (context), or parts of each matrix (tensor) |
# | layout | the sizes of the axes, the rows of a microbatch, the stages per rank, the stage of ZeRO, and whether tp cuts the sequence as well |
# | replicas | the ranks of dp x cp. They hold the same parameters, or shards of them with ZeRO |
# | m, p, i | the microbatches of a step, the ranks of pp, and the stage of a rank, counted from 0 |
# | v | the stages per rank in interleaved 1F1B, which a layout calls `chunks` |
# | parity | Two layouts have parity if they train the same model, so that their losses agree to rounding |

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
SGD = (torch.optim.SGD, {"momentum": 0.9})  # a class, and its options except the rate
TEXT = library_text()


def rows(step: int):
    """Return inputs and targets (8, 128) of a step, from 1,024 bytes of Python's own library."""
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
# You will use one sentence from each of the thirteen notebooks before this one. These sentences are folded, so open
# them to refresh your memory.
#
# <details><summary>Thirteen sentences</summary>
#
# | | |
# |---|---|
# | 00 · First ranks | A program on n ranks is one program that runs n times. |
# | 01 · Why distribute | Training needs about 6 FLOPs per parameter and token, and about 16 bytes per parameter. |
# | 02 · Collectives | The sum of M bytes over n ranks costs each rank 2 (n−1)/n M. |
# | 03 · Data parallelism | Replicas that sum their gradients train one model. |
# | 04 · ZeRO | The same sum is a reduce-scatter and an all-gather, so the optimizer between them needs only a shard. |
# | 05 · FSDP | A block's parameters can arrive just before they are used, while the block before it computes. |
# | 06 · Tensor parallelism | Cut a matrix by columns and the next by rows, and one sum per pair is enough. |
# | 07 · Pipeline | Stage i of p keeps min(m, p − i) microbatches, and p − 1 of m + p − 1 moments are idle. |
# | 08 · Context | Softmax over parts can be merged, so keys and values may go around a ring. |
# | 09 · Precision and memory | Activations that aren't kept are computed again, and short numbers are summed in longer ones. |
# | 10 · Four dimensions | The ranks of dp x cp hold terms of one sum, so divide by the targets of the whole batch. |
# | 11 · Experts | A token goes to k of E experts, so traffic depends on the data. |
# | 12 · In operation | A run is its state, and a save is whole or does not exist. |
#
# </details>
#
# A layout is plain data. The next cell shows the largest layout in this notebook, and how many microbatches each
# replica gets from a batch of 8 rows.

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
# Most training runs in the world need only two classes. `DistributedDataParallel` (DDP) gives every rank the whole
# model and sums the gradients while backward runs. `fully_shard` (FSDP) leaves 1/n of the parameters on each rank and
# gathers a unit when it is needed. Since you have written both, PyTorch's versions have few secrets left. But one of
# them has a trap, in which nothing fails and no number is wrong. It only costs you the memory you wanted to save.
#
# `fully_shard(module)` takes all parameters of the module that don't belong to a unit yet, and makes them one unit. It
# changes the module in place.
#
# **Predict.** Suppose you call `fully_shard(model)` and nothing else. Which share of the whole model's bytes does a
# rank hold in the middle of the forward? And is the loss right?
#
# <details><summary>Answer</summary>It holds all of them, because the model is a single unit, and the unit is gathered
# before the first layer runs. The loss is still right.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "distribute", "solution": true}
def distribute(model: GPT, how: str) -> nn.Module:
    """Return the model, spread over all ranks by PyTorch's own classes.

    model: a GPT with its `blocks`, each of which is a module. how: "one" for one rank (this line is
    given), "ddp" or "fsdp". With "ddp", ranks can start with different values, but all train the
    values of rank 0. With "fsdp", all start with the same values, and each holds 1/n of them and
    gathers one block at a time. Every rank reads different rows, but equally many, and no target is
    -100. The optimizer trains the parameters of the module you return.
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
# <code>DistributedDataParallel</code> and <code>fully_shard</code>. Call both with the module.</details>
# <details><summary>Hint: the order</summary>Shard from the inside out. Begin with each block, so that it becomes a unit
# of its own, and end with the model, for the parameters outside the blocks.</details>
#
# **Check.** It trains three steps on one rank and on two, compares the losses with one process, and counts the bytes
# sent and held.

# %% nbgrader={"grade_id": "distribute_check", "points": 5}
report = check("13_capstone/distribute", distribute)
### BEGIN HIDDEN TESTS
report = check("13_capstone/distribute", distribute, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** The cell trains three times on the same data, on one rank, on two with DDP, and on two with FSDP. Each
# rank has one thread, so that a single rank can't use both cores.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def five_steps(how: str):
    """Return the last loss, the fastest step's seconds, and the parameters held on this rank."""
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
        print(
            f"{how:5} {n} ranks: loss {loss:.6f}, {held:7,} parameters, {speeds[how]:6,.0f} tokens/s"
        )
page.add("tokens/s of this machine", speeds, by="your distribute" if speeds else "")

# %% [markdown]
# The loss is the same up to rounding. On two idle cores, DDP reaches about one and a half times the tokens per second
# of one rank. FSDP is slower than one rank, because this model is small and FSDP sends one and a half times as many
# bytes as DDP, in many small messages.
#
# **In production.** `accelerate`, Lightning and torchtitan call these two classes for you. A model larger than one GPU
# is built on the meta device, then sharded, and only then given memory (`to_empty`), since the line `GPT(MODEL)` would
# need all of it immediately. A learning-rate schedule, such as a warm-up followed by a cosine, is a function of the
# step. If the global batch stays the same on more GPUs, nothing in the schedule depends on N.
#
# <details><summary>Which unit can't be freed between forward and backward?</summary>The root can't be freed, because it
# contains the last norm and the head, with which backward begins.</details>
#
# <details><summary>In the lectures</summary>This is the exercise of lecture 004, which takes a GPT like nanoGPT's from
# one device to several, by DDP and by FSDP. But nanoGPT's MLP uses an exact GELU, whereas the course's uses the tanh
# form, so the two differ by up to 1e-4.</details>

# %% [markdown]
# ## 2 · One step for every layout
#
# | | |
# |---|---|
# | you will write | `make_step(config, layout, mesh, batch_size, lr)` |
# | builds on | `hybrid_step` (notebook 10); ZeRO (notebook 04) |
# | time | 51 minutes, of which pp, dp, cp and tp take 27, and ZeRO takes 24; the *optional* end takes 4 more |
# | difficulty, importance | 5 and 5 of 5 |
# | points | 8 and 12 |
#
# DDP and FSDP know only one axis. The function in this section knows all four, and ZeRO as well. You have built its
# parts before, so it is only a page long. Only the *order* of the parts is new. It matters, because each part needs the
# results of the parts before it. The stub contains the first two parts, and you write the other three:
#
# | | part | needs | why here |
# |---|---|---|---|
# | 1 | schedule | pp, v, m | It says which stages a rank holds |
# | 2 | model, from seed 0 | | It is the same on all ranks |
# | 3 | stages, which `mesh_stages` cuts over tp, cp and pp | schedule | Afterwards only the rank's part is left |
# | 4 | ZeRO-3, which wraps the *stages* | stages | It shards what is left |
# | 5 | optimizer, or `Zero1Optimizer`, `Zero2Optimizer` | parameters | It must get the parameters that will be trained |
#
# Then comes the step itself. It takes the rank's microbatches, counts the targets of the whole batch, runs forward and
# backward according to the schedule, sums the gradients over the replicas, lets the optimizer step, clears the
# gradients, and returns the batch's loss on all ranks.
#
# | given | does |
# |---|---|
# | `mesh_stages(model, mesh, schedule, sequence=None)` | returns this rank's stages. Pass `sequence="keep"` if `layout.sequence` is True, because then tp cuts the sequence as well |
# | `microbatches_of((inputs, targets), m, mesh)` | returns the rows this replica reads, in m microbatches |
# | `targets_of_all(stages[0], microbatches, mesh)` | counts the targets of the whole batch that are not −100 |
# | `run_schedule(stages, schedule, microbatches, mesh.group("pp"), count)` | runs forward and backward. It returns a dict of losses, each already divided by `count`. On all ranks but those of the last stage, the dict is empty |
# | `loss_of_all(losses)` (in the stub) | adds up the dict's losses, and sums over all stages and replicas |
# | `sum_over_replicas(params, mesh, ("dp", "cp"))` | sums the gradients in place, with one all-reduce |
# | `Zero1Optimizer(params, SGD_class, group=replicas, **options)`, `Zero2Optimizer` | make an optimizer that sums the gradients itself and owns a shard of the state. Clear the gradients with its `zero_grad`, because `Zero2Optimizer` keeps its sum outside `.grad` |
# | `Zero3Module(module, group=replicas)` | replaces `stage.module`. Its parameters are shards |
#
# ### a · pp, dp, cp and tp
#
# Each rank divides its losses by the number of targets in the *whole* batch, so the gradients on the ranks of dp x cp
# are terms of one sum. Compute this sum once, after the last backward. Write this part first, and run its check before
# you think about ZeRO.
#
# ### b · ZeRO
#
# `zero=k` asks for the class of ZeRO's stage k over dp x cp, which computes the sum instead of you. But this sum
# doesn't quite fit your gradients. In notebook 04, each rank divided by its own targets, so the ranks' gradients were
# samples of a *mean*, and this is why ZeRO divides the sum by the n ranks of its group. Here, however, the gradients
# are terms of a *sum*.
#
# **Predict.** You put `Zero1Optimizer` on the replicas, leave out your own sum, and change nothing else. By which
# factor is the gradient wrong on dp 2 x cp 2? And which line would mend it for ZeRO-2, where `.grad` is None as soon as
# backward is over?
#
# <details><summary>Answer</summary>It is 1/4 of the right one. If the terms are n times as large, their mean is right,
# so first divide the number of targets by n. That works for all stages, since the factor is in the loss and therefore
# in every gradient. But then you have to divide the loss you return by n again.</details>
#
# **Build.** The stub's line before `return step` gives the function four attributes, because §6 needs them to save a
# run. So call your stages `stages`, your optimizer `optimizer` and your function `step`.


# %% nbgrader={"grade_id": "make_step", "solution": true}
def make_step(
    config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float, optimizer=SGD
):
    """Return a function of (inputs, targets) that runs one training step on the whole batch.

    layout: use its sizes, microbatch, chunks, zero and sequence. mesh: has the layout's sizes, with
    all four axes, some of size 1. batch_size: the rows of a batch for all replicas together. They
    divide evenly. The model is `GPT(config)` after `torch.manual_seed(0)`, on the mesh's device, in
    the default dtype. optimizer: a class and its options except the rate, here (torch.optim.SGD,
    {"momentum": 0.9}).

    The step takes inputs and targets (batch_size, seq) of the whole batch, the same on all ranks,
    moves them to the mesh's device, and clears the gradients. It returns, on all ranks, the loss
    before the step, which is the mean over all targets of the batch that are not -100.
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
        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))  # all ranks of tp have it
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
# **Check a.** It runs layouts without ZeRO, in float64, on two to four ranks, and compares the losses of several steps
# and the bytes by axis. Some targets are −100, so the replicas have different numbers of targets that count.

# %% nbgrader={"grade_id": "make_step_check", "points": 8}
report = check("13_capstone/make_step", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/make_step", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Check b.** It runs layouts with ZeRO. Plain data parallelism would give the same losses, and it would even send the
# same bytes as ZeRO-1, so the check also looks at the operations over the replicas.

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
# **In production.** torchtitan's `parallelize_*` functions follow the same order. First come pipeline stages, then tp,
# then recomputation and compile, then FSDP around the result, and finally the optimizer. Megatron-LM instead builds a
# rank's part directly, without ever building the whole model. §4 shows why it has to.
#
# ### Optional: an optimizer that is made too early
#
# **Break it.** The next cell makes the optimizer *before* the model is cut, on two ranks of tp. Nothing fails. Look at
# the losses of five steps, and say which parameters the optimizer changes.


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


print("too early:", " ".join(f"{loss:.4f}" for loss in launch(too_early, world_size=2)[0]))

# %% [markdown]
# The loss falls, but only because of what tp doesn't cut, namely norms, biases of the second matrices, and positions.
# `mesh_stages` has replaced the other parameters with new tensors, but the optimizer still holds the old ones.
#
# **Question.** ZeRO's group is dp x cp. What would go wrong if it were the group of all ranks? (Ranks along pp and tp
# hold different parameters, but their gradients would be added up element by element.)

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
# Your step passed its checks on eight small layouts. Now it trains the model of this notebook in fifteen layouts, on
# one to eight ranks. Each layout computes its sums in a different order, so the losses can't agree to the last bit.
#
# **Predict.** How far apart are the losses of five steps, in float64 and in float32? And which distance would you call
# wrong?
#
# <details><summary>Answer</summary>The loss is about 5, and float64 has a relative precision of 2.2e-16, so a
# difference of 1e-15 is a single rounding. In float32 (1.2e-7) it is 5e-7. A wrong factor of 2 in one gradient,
# however, changes the second step's loss by 1e-2, so there is plenty of room for a bound of 1e-9.</details>
#
# **Measure.** The cell runs all fifteen. It keeps the losses, the bytes rank 0 sends in the first step (from the
# ledger, by axis), and the peak of its memory in the second step, when the optimizer has its state. It takes about 40
# seconds on two idle cores.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def five_losses(make, layout: Layout):
    """On a rank, in float64, return five steps' losses and the second step's peak in bytes."""
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
    """Return {axis: bytes} with the bytes rank 0 sent between the two barriers."""
    operations = ledger.operations(0)
    first, last = (k for k, operation in enumerate(operations) if operation.op == "barrier")
    return by_axis(operations[first + 1 : last], layout.sizes)[0]


losses, sent, peaks = {}, {}, {}
for name, layout in FIFTEEN.items():
    if run := try_it(five_losses, mine, layout, world_size=layout.gpus):
        losses[name], peaks[name] = run[0]
        sent[name] = first_step(run.ledger, layout)
        apart = max(abs(a - b) for a, b in zip(losses[name], losses["one process"], strict=True))
        print(f"{name:24} {losses[name][-1]:.15f}  {apart:.1e} apart")

# %% [markdown]
# **Look.** The left picture shows fifteen curves. The right picture shows the largest distance of each curve from the
# curve of one process, on a logarithmic scale. The grey line marks one rounding of float64 at a loss of 5.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
curves = layouts_figure.parity(losses)
display(curves)
page.add("fifteen layouts", curves, by=BY)

# %% [markdown]
# ### When one of them is wrong
#
# Suppose a layout of eight ranks gives a wrong loss. Which of its three axes is to blame? You could read the program,
# but it is faster to ask. Set an axis to 1 and run again. If the run still fails, the failure doesn't need this axis.
# The axes left at the end are *1-minimal*, which means that you can't take away any single one (Zeller and Hildebrandt
# 2002, §3).
#
# **Build.**


# %% nbgrader={"grade_id": "smallest_failing", "solution": true}
def smallest_failing(sizes: dict[str, int], fails) -> dict[str, int]:
    """Return the axes a failing layout needs to fail, with their sizes.

    fails: a function of sizes, with all axes in the order of `sizes`, each with its size or 1. Each
    call can start a run, so for n axes, make at most n + n^2 calls. The result names only axes
    larger than 1, in the order of `sizes`. If any single one were set to 1, the layout would not
    fail. If there are several such results, any of them is right. The result is {} if the layout
    fails even with all axes at 1. Leave the argument unchanged. Raise ValueError if `sizes` do not
    fail.
    """
    if not fails(dict(sizes)):
        raise ValueError(f"{sizes} do not fail")
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
# <details><summary>Hint: why once is not enough</summary>Two mistakes can cancel. Suppose pp doubles a gradient and cp
# halves it. Then the loss is right with both axes, but wrong as soon as you remove one of them. So an axis that was
# needed at first might not be needed later. Repeat until a whole round removes nothing. Ask about a copy such as
# <code>{**left, axis: 1}</code>, and keep it if it fails.</details>
#
# **Check.** It makes up layouts, and its `fails` counts your calls.

# %% nbgrader={"grade_id": "smallest_failing_check", "points": 5}
report = check("13_capstone/smallest_failing", smallest_failing)
### BEGIN HIDDEN TESTS
report = check("13_capstone/smallest_failing", smallest_failing, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# ### Three steps that somebody changed
#
# `step_a`, `step_b` and `step_c` take the same arguments as `make_step`. Each was changed for a good reason and passed
# a test on one rank, but gives wrong losses on eight. Their layouts are below. First use your
# `smallest_failing` to find the axes that make each of them fail. Then read the function. It has only ten
# lines, and you know which axes to look for.
#
# **Measure.** The cell trains a tiny GPT about 20 times, in about 30 s. You can skip the code of its functions. A step
# fails if any of its three losses is more than 1e-9 away from the loss of one process. For each step, the cell prints
# the axes your search returns, and how far off the three losses are if only these axes are cut. The first loss is a
# clue, because it is wrong if forward is wrong, or if a run begins with wrong parameters. A wrong gradient doesn't show
# before the second loss.


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
    """Train on a rank in float64 with ZeRO-1, and with sequence parallelism if tp exceeds 1."""
    torch.set_default_dtype(torch.float64)
    layout = Layout(sizes, microbatch=1, zero=1, sequence=sizes["tp"] > 1)
    step = make(TINY, layout, Mesh(sizes), batch_size=4, lr=1.0)
    return [step(tokens[:, :-1], tokens[:, 1:]) for tokens in TOKENS]


def find_axes(make, sizes):
    """Return the axes the step needs to fail, and how far off its losses are on these axes."""
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
    print(make.__name__, "needs", needed, "and is", *(f"{a:.0e}" for a in apart), "apart")

# %% tags=["skip-in-grading"]
print("\n\n".join(inspect.getsource(make) for make in REPORTED))

# %% [markdown]
# What is the cause of each failure?
#
# | key | cause |
# |---|---|
# | `"mean"` | The ranks of cp hold terms of one sum, but their gradients are averaged. |
# | `"bias"` | Every rank of tp adds the bias of a row-parallel layer, so the sum over tp contains it several times. |
# | `"norms"` | The ranks of tp use a norm's weights on different tokens, but the gradients of these weights aren't summed. |
# | `"positions"` | A rank of cp has tokens from several places of the sequence, but a later stage counts them from 0. |
# | `"head"` | The first and the last stage hold one tied table, but each steps with only its own term of the gradient. |
# | `"groups"` | ZeRO shards the states over ranks that hold different parameters. |
# | `"rows"` | Two ranks that share every layer read different rows of the batch. |
#
# Write the axes and the key, such as `broken_a = ({"cp"}, "mean")`. Instead of a set, you can also give what
# `smallest_failing` returned. Then say to yourself in one sentence how you would mend each step.

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
# <details><summary>How each is mended</summary><code>step_a</code> uses PyTorch's norms instead of
# <code>SequenceParallelNorm</code>. Forward is the same, but each rank's weights get only the gradient of its own
# tokens, so the copies drift apart. Sum these gradients over tp. <code>step_b</code> gives the later stages no
# positions. Learned positions are added once, in the embedding, but rotary ones turn the queries and keys of every
# block. So give all stages the positions of their tokens. <code>step_c</code> treats neighbouring ranks as
# replicas. But with pp, dp and tp in this order, the neighbours of a rank are its tp partners, which hold
# different parameters. And since <code>Zero1Optimizer</code> begins by giving all ranks of its group the same
# parameters, even the first loss is wrong. Take the group from the mesh instead.</details>

# %% [markdown]
# All runs of this section use SGD, because AdamW hides a constant factor in the gradients (notebook 03).
#
# **In production.** Before a change is merged, torchtitan compares the losses of a changed layout with the losses of a
# run without parallelism. In 16 bits it allows about 1e-2, but such a bound would let most mistakes of this section
# through.
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
# AdamW divides the first moment by the root of the second, so a constant factor cancels, except for ε. If a trainer
# sums where it should average, AdamW still trains the same model, until clipping or weight decay on gradients reveals
# it. So test parity with SGD.
#
# **Question.** Two layouts are 3e-8 apart after one step in float32, and 2e-3 apart after 1,000. Is one of them wrong?
# (Not necessarily, since training amplifies rounding errors. Compare only a few steps, or use float64.)

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
# Eight ranks hide mistakes that 1,024 don't forgive. With two ranks per axis, an all-gather costs as much as an
# all-reduce, every rank is the first or the last of its group, and there is no middle stage. But you can't start 1,024
# processes on two cores, and GPT-3's parameters alone need 701 GB in float32.
#
# A **dry run** needs neither 1,024 processes nor 701 GB. Your function runs unchanged, but as *one* rank of a large
# mesh. This rank's floats have a shape, a dtype and a place in memory, but no values, and the other ranks answer
# immediately. Integers, however, are real, because your program makes decisions with them. So bytes, calls, their
# order, memory and FLOPs are the same as on the real rank. But a dry run has no clock, and it can't see a wrong value,
# such as a division you forgot. For that you have §3.
#
# **Predict.** GPT-3 has 96 layers of width 12,288. It is cut into pp 8 x dp 16 x tp 8, and each replica has 16
# microbatches of one row with 2,048 tokens, in float32. You are rank 517. On which stage are you? How many microbatches
# do you keep at most, and how many bytes does one activation message of the pipeline have?
#
# <details><summary>Answer</summary>517 = 4 · 128 + 0 · 8 + 5, so you are on stage 4. It keeps min(16, 8 − 4) = 4
# microbatches. A message has 2,048 · 12,288 · 4 bytes = 100.7 MB, and each of the 16 microbatches needs one forward and
# one back.</details>
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
# The column *dry run* shows what your program does, and *closed form* shows what the formulas of notebooks 04, 06, 07
# and 10 say. The few bytes of losses and counts are in the row *numbers*. The bytes along all three axes, the
# parameters and the kept activations agree to the byte.
#
# But look at the row *peak of the setup*. `mesh_stages` gets the whole model and then throws most of it away, so every
# rank would need 702 GB before the first step. This line of your program could never run on a real cluster. That is why
# Megatron-LM builds only a rank's part, and why others build the model on the meta device.
#
# **Check.** On the mesh pp 8 x dp 16 x tp 8, it runs your step as ranks of different stages, for a small GPT of 8
# layers with 8 microbatches per replica. It compares the bytes by axis, the calls over the replicas, the parameters and
# the kept activations with the closed forms. Each rank takes a few seconds. You can use a schedule other than 1F1B, as
# long as it keeps no more activations.

# %% nbgrader={"grade_id": "dry_step_check", "points": 4}
report = check("13_capstone/dry_step", make_step)
### BEGIN HIDDEN TESTS
report = check("13_capstone/dry_step", make_step, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# ### Three suspects
#
# Three programs want to run on 1,024 GPUs. All of them are given, and each makes a step as your `make_step` does,
# without ZeRO. On 2 x 2 x 2 ranks, they have the same losses and send the same bytes.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
SUSPECTS = {"suspect_a": suspect_a, "suspect_b": suspect_b, "suspect_c": suspect_c}
on_eight = replace(FIFTEEN["pp 2 dp 2 tp 2"], microbatch=2)
for name, program in SUSPECTS.items():
    run = launch(five_losses, program, on_eight, world_size=8)
    nbytes = {axis: round(amount) for axis, amount in first_step(run.ledger, on_eight).items()}
    print(f"{name}: {run[0][0][-1]:.15f}", {axis: nbytes[axis] for axis in ("pp", "dp", "tp")})

# %% [markdown]
# **Look.** Now each program runs as rank 517 of 1,024, with 16 microbatches per replica and a GPT of 16 layers. This
# takes about 20 seconds. Read every row of the three tables, not just the calls.


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
# **Build.** Two of the three must not be started. Write a pair for each program. The first entry names the quantity
# rank 517 sends or keeps too much of, and the second is the factor by which that quantity is too large.
#
# | kind | row that is too large |
# |---|---|
# | `"bytes over dp"`, `"bytes along tp"`, `"bytes along pp"` | bytes sent |
# | `"parameters"` | weights |
# | `"activations"` | activations kept for backward |
# | `"nothing"` | none, and then the factor is 1 |

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
# <details><summary>Hint: where to look</summary>If a row differs from its closed form, a mark in the row says how many
# times too large the number is.</details>
# <details><summary>Hint: unusual calls</summary>A program can make different calls from yours, so judge by the bytes
# instead of the calls.</details>

# %% nbgrader={"grade_id": "suspects_check", "points": 5}
report = check("13_capstone/suspects", verdict_a, verdict_b, verdict_c)
### BEGIN HIDDEN TESTS
report = check("13_capstone/suspects", verdict_a, verdict_b, verdict_c, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# For GPT-3 on the same mesh, the first flaw keeps 16 microbatches on the first stage, although 8 are enough. This takes
# 106 GB instead of 53 (in float32). With the other flaw, a rank sends its gradients 15 times over, where an
# all-reduce sends them 15/8 times, so rank 517 sends 163 GB per step instead of 20.
#
# <details><summary>Why two ranks per axis show neither flaw</summary>With n ranks and M bytes, an all-reduce sends 2
# (n−1)/n M, whereas an all-gather of whole gradients sends (n−1) M. For n = 2 both are M. A schedule may keep m
# microbatches or only min(m, p − i), but with m = p = 2 both are 2 on the first stage.</details>
#
# **In production.** torchtitan's `scripts/estimate` also runs a step with PyTorch's fake process group and with tensors
# without values, and reports the memory. In 2025 it covered FSDP and its hybrid form, but refused tp, pp and cp.

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
# You now have the losses, the bytes and the memory of fifteen layouts. Since they all train the same model, the choice
# between them is only a question of cost. And you can know the bytes before anything runs.
#
# The model has 875,264 parameters: 4 layers of 198,272 each, a table with 128 numbers for each of 256 tokens, another
# for each of 128 positions, a last norm of 256, and a head of 32,768. tp cuts everything except the norms, the table of
# positions, and the biases that are added after a sum, so in each layer it leaves 768 parameters whole. A step reads 8
# rows of 128 tokens, and everything is float32.
#
# **Build.** Write five numbers for **rank 0 and one step**. The first three belong to layouts you ran in §3, but no
# cell has run the layouts of the last two. Write the numbers as arithmetic. You can leave out the few bytes of losses
# and counts, because the check tolerates 0.4 %.
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
zero_3_bytes = 2 * 3 * (3 / 4) * whole  # two microbatches with two gathers and a scatter each
tp_bytes = (4 * 4 + 2) * (2 * 3 / 4) * 8 * row  # four sums per layer, one in embedding, one in head
pp_bytes = 4 * 3 * 2 * row  # two activations and a gradient for each microbatch
of_tp = 4 * (768 + (198_272 - 768) // 4) + (2 * 32_768) // 4 + 128 * 128 + 256
dp_bytes = (2 * 1 / 2) * 4 * of_tp
held = (2 * 198_272 + 32_768 + 128 * 128) / 4
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: ZeRO-3</summary>Here, a replica has two microbatches. In each of them, parameters are gathered
# in forward and again in backward, and then gradients are scattered.</details>
# <details><summary>Hint: tp</summary>A layer has two sums in forward and two in backward. The embedding adds one in
# forward, since each rank has only a part of the table, and the head adds one in backward.</details>
# <details><summary>Hint: v = 2</summary>Rank 0 holds the first and the third of four stages. List the activations and
# the gradients that leave it.</details>
# <details><summary>Hint: replicas</summary>Add up the parameters of <i>one rank</i>, and then ask how many ranks hold
# the same ones.</details>

# %% nbgrader={"grade_id": "five_costs_check", "points": 5}
report = check("13_capstone/five_costs", zero_3_bytes, tp_bytes, pp_bytes, dp_bytes, held)
### BEGIN HIDDEN TESTS
report = check(
    "13_capstone/five_costs", zero_3_bytes, tp_bytes, pp_bytes, dp_bytes, held, cases="hidden"
)
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** The picture shows the bytes rank 0 sent in the first step of §3, by axis. A cross marks where a bar
# should end according to your numbers. (§3 ran in float64, so the picture halves its bytes to show float32.)

# %% tags=["nbval-ignore-output", "skip-in-grading"]
predicted = {
    ("zero-3 4", "dp"): zero_3_bytes,
    ("tp 4", "tp"): tp_bytes,
    ("pp 2, v 2", "pp"): pp_bytes,
    ("dp 2 tp 4", "dp"): dp_bytes,  # has a cross, but no bar
}
predicted = {place: guess for place, guess in predicted.items() if isinstance(guess, int | float)}
bars = layouts_figure.traffic(sent, predicted, halve=True)
display(bars)
page.add("bytes of fifteen layouts", bars, by="measured in section 3, and your predictions")

# %% [markdown]
# **Look.** This is the map. It shows the peak of memory against the bytes sent, with one point per layout, in the
# colour of the axis that sends most. Follow the arrows from one process.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
ARROWS = [("one process", name) for name in ("ddp 4", "pp 4", "cp 4", "tp 4")]
ARROWS += [("ddp 4", "zero-1 4"), ("zero-1 4", "zero-2 4"), ("zero-2 4", "zero-3 4")]
ARROWS += [("pp 4", "pp 2 dp 2 tp 2")]
the_map = layouts_figure.field(sent, peaks, ARROWS, halve=True)
display(the_map)
page.add("the map of the field", the_map, by="measured in section 3")

# %% [markdown]
# Down and to the left is better, but no point of four ranks is best at everything. For example, *pp 4* sends least and
# holds little, but the map doesn't show its bubble. With four microbatches, three of seven moments are idle. *tp*
# divides activations, but pays for it in every layer. *ZeRO-2* and *ZeRO-3* send in every microbatch, and each replica
# has two, so they send more than notebook 04's 2 and 3 units. *ZeRO-2* doesn't even save memory here. Its buckets hold
# 25 MiB by default, so one bucket holds all gradients until the end of backward. In this model, about three quarters of
# one process's peak are activations. In your dry run of GPT-3, the states were larger than the activations, so the map
# of another model looks different.

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
# In notebook 12 you built a save from its parts. Here you get saving and loading as two functions, and you
# write the ten lines around them. The result is a program a cluster can run for months. It will be killed at
# moments you can't choose, and the only remedy is to call it again with the same arguments.
#
# | given | does |
# |---|---|
# | `make()` | builds the run from its start. It returns `step`, and also `held`, a function without arguments that returns this rank's pieces of the tensors as they are now |
# | `save_run(disk, losses, pieces)` | saves the pieces of all ranks and the losses so far, either completely or not at all |
# | `load_run(disk, pieces)` | fills the pieces in place from the newest checkpoint, and returns its losses, or `[]` if there is no checkpoint |
# | `batches(number)` | returns the inputs and targets of a step, by its number from 0 |
#
# The number of finished steps isn't stored anywhere, because it is the number of losses. All ranks call `save_run` and
# `load_run`. Call `make` once and `load_run` right after it, but call `held()` again for each save, because a step
# might replace the tensors. If a run is already finished, `train` does nothing and returns its losses. Since a killed
# process runs no `except` and no `finally`, leave the restart to the program that calls `train`.
#
# **Predict.** The run saves every 5 steps and is killed in step 7, which is its eighth. At which step does the next
# call begin, and how many losses does it return after 20 steps?
#
# <details><summary>Answer</summary>It begins at step 5, because the checkpoint contains the first five losses. It
# repeats steps 5 and 6, finishes step 7 for the first time, and in the end returns all 20 losses.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "train", "solution": true}
def train(make, batches, steps: int, disk, every: int) -> list[float]:
    """Train until `steps` steps are finished, and return all their losses, also from earlier calls.

    make: builds the run from its start, and returns a step and a function without arguments that
    gives this rank's pieces as they are now. batches: gives the inputs and targets of a step by its
    number, from 0 on. steps: the steps of the whole run, from its start. every: the number of steps
    from one save to the next, counted from the start. Save after the last step as well. disk: where
    to save.

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
# <details><summary>Hint: the number of the step</summary>It is <code>len(losses)</code>, even right after the
# load.</details>
# <details><summary>Hint: when to save</summary>Save after a step if the number of finished steps is a multiple of
# <code>every</code>, or equal to <code>steps</code>.</details>
#
# **Check.** It kills your run during steps and during saves, calls it again, and compares all losses with an
# undisturbed run, to the last bit.

# %% nbgrader={"grade_id": "train_check", "points": 9}
report = check("13_capstone/train", train)
### BEGIN HIDDEN TESTS
report = check("13_capstone/train", train, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** Two agents with two ranks each train on pp 2 x dp 2 with ZeRO-1. `torchrun` would start them like this on
# two machines. The undisturbed run comes first. Then, in step 7 of the other run, rank 2 sends SIGKILL to itself. Both
# runs together take about 20 seconds. You can skip the code of `on_four`, which calls your `train` on each rank.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
SURVIVOR = Layout({"pp": 2, "dp": 2}, microbatch=2, zero=1)
ADAMW = (torch.optim.AdamW, {})


def on_four(folder, steps, every, dies=None):
    """Train on a rank of two agents, and note each step in the journal."""
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
print("steps:", " ".join(done))
print("the same losses, to the last bit:", survived == undisturbed)

# %% [markdown]
# ### Optional: long enough to learn
#
# Now let the model train long enough to learn something. 300 steps with AdamW take about a minute on four ranks. Start
# the cell, and while it runs, read §7, which begins with text. (You can also stop here for a break.)

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
# The cross marks the kill, but the curve has no kink there. Now the four ranks are gone. One process reads their files,
# puts the whole model together, and lets it write. One token is one byte.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
model = GPT(MODEL)
print("from step", load_model(f"{home.name}/saved", model))
written = generate(model, b"def ", 300, temperature=0.8).decode(errors="replace")
print("def " + written)
page.add("what the model writes after 'def '", written, by="trained by the run above")
home.cleanup()

# %% [markdown]
# The text has the look of Python but none of its sense. There are indented lines, brackets, and words as long as
# English ones. 300 steps read only 307,200 bytes, while the model has 875,264 parameters. By the rule of 20 tokens per
# parameter (Hoffmann et al. 2022), it should have read 17.5 million.
#
# <details><summary>What did the kill cost?</summary>It cost 30 steps, because the run was killed in step 130 and saved
# every 50. Notebook 12's formula, τ = √(2 δ M), says how often it should have saved.</details>

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
# - It has four nodes of 8 L40S each (48 GB, 362 TFLOP/s). They have no NVLink, so in a node, GPUs talk over PCIe 4.0
#   x16.
# - Between nodes there is 10 Gb/s Ethernet (`link("10 Gb Ethernet")`), and each GPU has a port of its own.
# - The model is LLaMA-7B (`PUBLISHED["LLaMA-7B"]` of `course_lib.models`), with 256 sequences of 2,048 tokens per step.
#   You can't change this batch.
# - Attention keeps no scores (flash), matrix products reach 63 % of the peak, and NCCL and other libraries take 4 GB of
#   each GPU.
#
# **Predict.** The rule of thumb is to use tp up to the node, then pp, then dp. How far is that from the best layout
# here? And which axis should use the slow wire between nodes?
#
# <details><summary>Answer</summary>With tp 8 and dp 4, a step takes 2.9 times as long as with the best layout, since PCIe
# has a tenth of NVLink's bandwidth and tp waits in every layer. The axis that sends least should be the one between
# nodes.</details>
#
# **Build.** Write a layout for all 32 GPUs. (A `Layout` recomputes everything unless you write
# `recompute="none"`.) By the planner's model of notebook 10, its step must be at most 5 % longer than the
# step of the best layout `advise` finds. You can use everything in `course_lib.planning`, such as `Cluster`,
# `Wire` and `advise`, and in `course_lib.facts`, such as `gpu` and `link`. Ranks fill nodes in order, so the
# outermost axis is the first to cross between nodes.

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
# <details><summary>Hint: the planner</summary>Use <code>advise(shape, gpus, batch, cluster, work=Work(0.63,
# flash=True))</code> from <code>course_lib.planning</code> and <code>course_lib.planning.roofline</code>. It returns a
# list of verdicts, the best first, each with its <code>layout</code>. The only work left is to describe the cluster, as
# <code>Cluster(gpus, per_node, gpu(...), inside, across)</code>.</details>
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
# An interviewer asks: "How would you train this model on this cluster, and why?" Write half a page below. No check
# reads it, but it goes onto your page. Then compare it with the list.
#
# <details><summary>Six things to compare it with</summary>
#
# 1. Does it show with numbers that the states and the activations fit?
# 2. Does it say which traffic leaves a node, and that tp doesn't?
# 3. Does it name the bubble, or say why there isn't one?
# 4. Does the batch stay as it was?
# 5. What fails first, and how much does that cost?
# 6. What would you measure first, before you believe any of this?
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
# **Predict.** GPT-2 small with an untied head has 163M parameters, and needs about 0.85 GFLOP per token. With data
# parallelism, a rank holds 16 bytes per parameter in weights, gradients and moments, or 2.6 GB. With ZeRO-3 on two
# GPUs, it holds half of that. How many tokens per second does your card's data sheet allow, and which share of them
# will one GPU reach?

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
    """Return tokens per second or seconds by the data sheet, or the bytes of the states."""
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
# In rows with tokens per second, the last column is the MFU. In rows with the peak memory, it is larger than 1, because
# the prediction leaves out the activations. All layouts have the same batch of 8 rows, so you can compare their tokens
# per second. Which axis pays on your machine, and which one pays only if the links are faster?

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 5 minutes |
# | points | 2 |
#
# A number may be an expression.
#
# 1. A run on 1,024 GPUs has pp 8, dp 16, tp 8, a batch of 256 rows, and microbatches of one row. For what **share** of
#    the step's time is a stage idle with 1F1B, if forward and backward of all stages take equally long?
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
# The cell writes one HTML file and one PNG from the results above. They say where each result comes from, such as *your
# make_step* or *the library's train*, and name this machine, its PyTorch and the date. If you left out a section or an
# optional part, its frame stays empty. The page isn't graded. It is a lab report, so be ready for a question about
# every number on it.

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
# Papers print results, and often also the inputs from which you can compute them. So you can check the results, and
# learn which of their numbers you can compare with yours. All inputs are published, and you need only arithmetic.
#
# | run | inputs |
# |---|---|
# | GPT-3 | 174.6 billion parameters, 300 billion tokens (Brown et al. 2020, table D.1). As a plan for 1,024 A100s, take 175 billion parameters and 140 TFLOP/s per GPU. The 140 include full recomputation (Narayanan et al. 2021, eq. 4) |
# | LLaMA-65B | 65.2 billion parameters, 1.4 trillion tokens, 2,048 A100s, 380 tokens per second and GPU (Touvron et al. 2023, §2.4). The peak is 312 TFLOP/s |
# | Llama-3-405B | On 16,384 H100s, it reached 400 TFLOP/s per GPU with pp 16, dp 128, and 16 sequences per replica, which are 16 microbatches (Llama Team 2024, table 4). The dense bf16 peak is 989 TFLOP/s |
# | Mixtral-8x7B | 32 layers of width 4,096, with 32 heads of 128 for queries and 8 for keys and values. A layer has 8 experts of three matrices with 14,336 hidden numbers, and a token uses 2 of them. There are 32,000 tokens in two tables (Jiang et al. 2024, table 1) |
# | DeepSeek-V3 | 37 of 671 billion parameters per token, 14.8 trillion tokens, 2.664 million H800 hours of pre-training (DeepSeek-AI 2024, table 1 and §2) |
#
# | your number | asked for | printed in the paper |
# |---|---|---|
# | `gpt3_flops` | FLOPs of the training, 6 per parameter and token | 3.14e23 |
# | `gpt3_days` | days on the 1,024 A100s | 34 |
# | `llama_65b_mfu` | MFU, as a share, with 6 N FLOPs per token | not printed |
# | `llama_65b_days` | days of training | about 21 |
# | `llama_405b_mfu` | MFU, as a share, from the 400 TFLOP/s | 41 %. Is it? |
# | `llama_405b_idle` | share of a step in which a stage is idle, with plain 1F1B (v = 1) | not printed, because they interleave |
# | `mixtral_held` | parameters in all | 47 billion |
# | `mixtral_used` | parameters used per token | 13 billion |
# | `deepseek_tflops` | TFLOP/s a GPU reached on average, with 6 FLOPs per used parameter | not printed |

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
)  # tables, routers, norms
mixtral_held = besides + 32 * 8 * expert
mixtral_used = besides + 32 * 2 * expert
deepseek_tflops = 6 * 37e9 * 14.8e12 / (2.664e6 * 3600) / 1e12
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: GPT-3's days</summary>With full recomputation, a GPU does 8 FLOPs per parameter and token, and
# the 140 TFLOP/s include all of them.</details>
# <details><summary>Hint: Mixtral</summary>Only the experts exist eight times. Attention, router and norms exist once
# per layer, and the tables only once.</details>

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
# Llama 3's table prints 400 TFLOP/s and 41 %, but 400 of 989 is 40.4 %. Both numbers are rounded, so the run was a
# little above 400. To average 40 % of the peak, a pipeline that is idle for 48 % of each step has to reach 78
# % in the rest, and no run does. So the table itself shows that the stages were interleaved. DeepSeek's GPUs
# did 343 TFLOP/s, which is 35 % of the bf16 peak, but only 17 % of the fp8 peak, and most of their products
# run in fp8. So always say which peak you mean.
#
# <details><summary>In the lectures</summary>
#
# | lecture | says | right |
# |---|---|---|
# | 000, 001, 002 | GPT-3 was trained as 8 x 12 x 32, as 8 x 8 x 16, or 96-way by 8-way | OpenAI published no layout. The paper names V100s, and model parallelism within the products and across layers (Brown et al., §2.3). Megatron-LM's own 175B benchmarks used tp 8 and pp 12 |
# | 002 | "optimized for Azure", "dynamic loss scaling" | Neither has a source in the paper |
# | 002 | LLaMA's tokenizer has a larger vocabulary, and the model fewer non-linearities | It has 32,000 tokens, but GPT-3's has 50,257, and SwiGLU multiplies two branches, whereas GPT-3 had one |
# | 001 | 70 billion parameters on 64 H100s reach 2 to 3 tokens per second and GPU | They reach about 940 at 40 % of the peak, which is 0.4 · 989e12 / (6 · 70e9) |
# | 002 | Mixtral shares parameters across experts | The eight experts of a layer share nothing. Shared experts are part of DeepSeek's models |
#
# </details>

# %% [markdown]
# ## What you have built
#
# You have built one function that trains a GPT in every layout, with the same loss, and a search that names the axis of
# a mistake. Your function ran as one rank of 1,024, and you found two programs whose flaws don't show on eight ranks. A
# run was killed, but it continued as if nothing had happened, to the last bit. And you have a page that says what you
# measured, and where.
#
# **Read on.**
# - Narayanan et al. (2021), *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*. §3
#   explains which axis goes where.
# - Liang et al. (2024), *TorchTitan*. The library makes its cuts in the same order, and also has parity tests.
# - The Ultra-Scale Playbook (Hugging Face, 2025) measures layouts on up to 512 GPUs.
# - Pope et al. (2022), *Efficiently Scaling Transformer Inference*, cuts the same layers for serving. This course only
#   trains, but reinforcement learning from a model's own answers alternates between training and serving, so it needs
#   both layouts.
# - `course_lib/trainer/` is best read after you have written yours. Begin with `step.py`.
# - `examples/train.py --mesh pp=2,dp=2,tp=2` does the same as a program for several machines, under `torchrun`.

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In a
# terminal, `python -m course_lib.progress` adds up all your notebooks as you have saved them, and `python -m
# course_lib.submit` packs them so that you can hand them in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("13_capstone")
