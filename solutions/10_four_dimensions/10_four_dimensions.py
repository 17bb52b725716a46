# %% [markdown]
# # 10 · Four dimensions
#
# **How do you combine the axes, which wire should each axis use, and which layout suits which cluster?**
#
# A 175B-parameter model fits neither on one GPU nor on a node of eight. One plan trains it on 1,024 GPUs,
# arranged as 8 × 16 × 8. Each of these numbers is the size of an axis you know: 8 stages (notebook 07), 16
# replicas (03), and 8 ranks that share a layer (06). Notebook 08 added a fourth axis, which cuts sequences
# that are too long for one rank.
#
# Here you combine three axes on 8 ranks, and all four on 16. You write a training step whose gradients on
# such a grid of ranks equal the gradients of a single process. Then you calculate what the step costs: the
# bytes per axis, the memory per GPU, and the seconds. You compare your predictions with published runs, and
# at the end your functions choose a layout for 1,024 GPUs.
#
# | | |
# |---|---|
# | you will build | coordinates on a mesh; a training step over four axes; the norm of a gradient that is spread over the ranks; functions that predict bytes, memory and time on a cluster; a search for the best layout |
# | you need | averages of gradients (notebook 03); layers cut over ranks (notebook 06); `run_schedule` (notebook 07); zigzag (notebook 08) |
# | time | about three hours, with a break after §4; the *optional* parts take an hour more |
# | points | 60, and 6 of extra credit |
# | on a rented machine | you don't have to rent one, because two cores can run 16 ranks of a small GPT. On 8 GPUs, your step runs over NCCL. The section *On your GPUs* needs one GPU or more |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 Coordinates | 19 | 5 | |
# | 2 Who reads what | 14, and 5 *optional* | 5 | 1; notebook 08 |
# | 3 Three axes in one step | 34, and 3 *optional* | 13 | 2; notebooks 06, 07 |
# | 4 The norm of a gradient that no rank holds | 20, and 4 *optional* | 8 | 3 |
# | 5 What each axis sends | 25, and 4 *optional* | 8 | 3; notebooks 06, 07, 08 |
# | 6 Does it fit? | 17 | 6 | notebooks 01, 06, 07 |
# | 7 How long? A cluster of 1,024 | 21, and 5 *optional* | 7 | 5, 6; notebooks 01, 07 |
# | 8 Choose | 16, and 7 *optional* | 4 | 6, 7 |
# | 9 Questions | 13 | 4 | all |
# | 10 Optional: replay a recorded run | 35 | 6 extra | 5, 7; notebook 07 |

# %% [markdown]
# ### Words, letters and tools
#
# | | |
# |---|---|
# | mesh | the ranks of a run, arranged as a grid with one axis for each way of cutting |
# | pp, dp, cp, tp | the axes. pp cuts the model into stages, dp gives each replica different rows, cp cuts a sequence, and tp cuts a layer |
# | group of an axis | ranks whose coordinates differ only on this axis |
# | flattened group | one group of all ranks whose coordinates differ only on certain axes, such as dp and cp |
# | innermost | the axis along which the numbers of the ranks are consecutive. It is listed last |
# | term, sample | In §3, a term is a rank's share of a sum, and a sample is one of the values that are averaged. Elsewhere, a sample is a row of the batch |
# | whole, cut | A parameter is whole if every rank of tp holds all of it, and cut if each holds only a part |
#
# A mesh is written as a dict of sizes, with the outermost axis first: `{"pp": 2, "dp": 2, "tp": 2}`. If an
# axis is missing, its size is 1.
#
# The cell after the imports, which you don't have to read now, defines tools for sections 1 to 4. `on_mesh`
# starts the ranks of a mesh (8 by default). Each rank builds a small GPT in float64, cuts it over the axes,
# and calls one of your functions. `alone` runs the same model in one process.

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import dataclasses
import itertools
import math
import time
from collections import Counter

import torch
import torch.distributed as dist

from course_lib import check, device, launch
from course_lib.mesh import Mesh, cut_names, mesh_stages, parameters, tied_names
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pictures import hybrid_figures
from course_lib.pipeline import run_schedule
from course_lib.pipeline.generators import one_f_one_b
from course_lib.unfinished import ready, said, tried

# %%
SIZES = {"pp": 2, "dp": 2, "tp": 2}
CONFIG = GPTConfig(vocab_size=64, context=32, layers=4, heads=4, width=32)
AXES = ["pp", "dp", "tp", ("pp", "dp"), ("dp", "tp")]
ROWS, SEQ, COUNT = 8, 32, 4  # rows per step, tokens per row, microbatches per replica


def a_model():
    torch.manual_seed(5)
    return GPT(CONFIG).double()


def a_batch(step=0):
    tokens = torch.randint(64, (ROWS, SEQ + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def rows_of(replica, n, step=0):
    """Return the microbatches (inputs, targets) of one of n replicas. It reads consecutive rows."""
    inputs, targets = (part.chunk(n)[replica].to(device()) for part in a_batch(step))
    return list(zip(inputs.chunk(COUNT), targets.chunk(COUNT), strict=True))


def on_mesh(body, sizes=SIZES, mesh_type=Mesh, **how):
    """Run body(mesh, stages, schedule) on each rank of the mesh. Return what `launch` returns."""

    def job():
        mesh = mesh_type(sizes)
        schedule = one_f_one_b(mesh.size("pp"), COUNT)
        stages = mesh_stages(a_model().to(device()), mesh, schedule)
        return body(mesh, stages, schedule)

    return launch(job, world_size=math.prod(sizes.values()), timeout=120, **how)


def alone(step=0):
    """Return (loss, gradients by name) of a single process."""
    model, (inputs, targets) = a_model(), a_batch(step)
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def part_of(whole, part, k):
    """Return the part of `whole` for coordinate k of tp, which has the shape of `part`."""
    for dim in range(whole.dim()):
        if whole.shape[dim] != part.shape[dim]:
            return whole.chunk(2, dim)[k]
    return whole


# %% [markdown]
# ## 1 · Coordinates
#
# | | |
# |---|---|
# | you will write | `coordinates(rank, sizes)`, `axis_ranks(rank, sizes, axis)` |
# | builds on | nothing |
# | time | 19 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 5 |
#
# A launcher numbers GPUs node by node, so ranks 0 to 7 are on the first node and ranks 8 to 15 on the second.
# One rule then turns a rank's number into its coordinates on the mesh. This rule decides which ranks share a
# layer and which ranks average gradients, and therefore which wire each sum uses.
#
# The next cell shows 16 GPUs on two nodes of eight. In a running notebook, you can click on a GPU. The ranks
# of its groups then get the colours of the axes, and a table names the wire of each group. Change the order
# of the axes, and watch the wires.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.mesh_explorer import mesh_explorer

mesh_explorer()

# %% [markdown]
# **Predict.** Take a mesh of pp 2, dp 2 and tp 2. With which rank does rank 5 share its layers (tp)? With
# which rank does it average gradients (dp)?
#
# **Build.** From one rank to the next, the coordinate on the last axis varies fastest, like the last digit of
# a number. `coordinates` returns a rank's coordinate on every axis. `axis_ranks` returns the rank's group on
# an axis, namely the rank itself and all ranks that differ from it only on this axis. List these ranks in the
# order of their coordinates on the axis. For a tuple of axes, return the flattened group, in which the
# tuple's first axis varies slowest. The code computes `own`, the coordinates of `rank`, and `everyone`, the
# coordinates of all ranks.


# %% nbgrader={"grade_id": "coordinates", "solution": true}
def coordinates(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the coordinate of `rank` on each axis. sizes: ranks per axis, outermost first."""
    ### BEGIN SOLUTION
    coordinate = {}
    for axis in reversed(list(sizes)):
        rank, coordinate[axis] = divmod(rank, sizes[axis])
    return {axis: coordinate[axis] for axis in sizes}
    ### END SOLUTION


def axis_ranks(rank: int, sizes: dict[str, int], axis: str | tuple[str, ...]) -> list[int]:
    """Return `rank` and all ranks that differ from it only on `axis`, ordered along it.

    axis: a name, or a tuple of names for the flattened group, whose first axis varies slowest.
    """
    axes = (axis,) if isinstance(axis, str) else axis
    own = coordinates(rank, sizes)
    everyone = [coordinates(other, sizes) for other in range(math.prod(sizes.values()))]

    ### BEGIN SOLUTION
    fixed = [name for name in sizes if name not in axes]
    group = [k for k, other in enumerate(everyone) if all(other[a] == own[a] for a in fixed)]
    return sorted(group, key=lambda k: [everyone[k][name] for name in axes])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the coordinates</summary>Begin with the innermost axis. <code>divmod(rank,
# size)</code> returns the number that is left for the outer axes, and the coordinate on this axis.</details>
# <details><summary>Hint: the group</summary>Keep the ranks that agree with <code>own</code> on all axes except
# <code>axes</code>, and sort them by their coordinates on <code>axes</code>.</details>
#
# **Check.** In the cell after the check, all eight ranks compare your functions with PyTorch's
# `init_device_mesh`, which applies the same rule.

# %% nbgrader={"grade_id": "coordinates_check", "points": 5}
report = check("10_four_dimensions/coordinates", coordinates, axis_ranks)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/coordinates", coordinates, axis_ranks, cases="hidden")
### END HIDDEN TESTS
report.points(5)


# %% tags=["skip-in-grading"]
def beside_pytorch():
    from torch.distributed.device_mesh import init_device_mesh

    rank, kind = dist.get_rank(), device().type
    theirs = init_device_mesh(kind, tuple(SIZES.values()), mesh_dim_names=tuple(SIZES))
    groups = {}
    for axis in AXES:
        part = theirs[axis] if isinstance(axis, str) else theirs[axis]._flatten()
        groups[axis] = part.mesh.flatten().tolist(), list(axis_ranks(rank, SIZES, axis))
    return groups


if ready(coordinates, axis_ranks):
    ranks = launch(beside_pytorch, world_size=8)
    for axis, (theirs, mine) in ranks[5].items():
        print(f"rank 5, {axis!s:13} PyTorch {theirs}, yours {mine}")
    print("all ranks agree:", all(theirs == mine for r in ranks for theirs, mine in r.values()))

# %% [markdown]
# Rank 5 shares layers with its neighbour rank 4, and averages gradients with rank 7.
#
# **Break it.** In the explorer above, every axis has 2 ranks. Reorder the axes until tp is in front. With
# which rank does rank 5 now share its layers, and over which wire?
#
# <details><summary>Answer</summary>The tp group of rank 5 is now [5, 13], with one rank on each node. All
# results stay right, but the sums in every layer now use the network. In §5, you measure how much time this
# costs.</details>
#
# **In production.** In PyTorch, you write `init_device_mesh("cuda", (16, 8, 8), mesh_dim_names=("pp", "dp",
# "tp"))`. Then `mesh["tp"]` is this rank's group, and `mesh["pp", "dp"]._flatten()` is a flattened group. In
# Llama 3, Megatron-Core and torchtitan, tp is innermost, but the order of the other axes differs.
#
# <details><summary>The three orders</summary>Llama 3 lists [TP, CP, PP, DP], innermost first (§3.3.2 of its
# paper). Megatron-Core's default, <code>tp-cp-ep-dp-pp</code>, is also written innermost first, so pp is
# outermost. torchtitan lists <code>pp, dp_replicate, dp_shard, cp, tp</code>, outermost first.</details>
#
# **Question.** How many groups does a mesh of 16 × 8 × 8 have, if flattened groups do not count?
#
# <details><summary>Answer</summary>An axis has 1,024 / size groups, so there are 64 groups of pp, 128 of dp
# and 128 of tp, which add up to 320. Each rank belongs to three of these groups.</details>

# %% [markdown]
# ## 2 · Who reads what
#
# | | |
# |---|---|
# | you will write | `my_part(rank, sizes, batch_size, seq)` |
# | builds on | §1; zigzag (notebook 08) |
# | time | 14 minutes, and 5 for the *optional* end |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 5 |
#
# Imagine the batch of a step as a sheet, with samples as rows and positions in the sequence as columns. Only
# two axes cut the sheet. dp divides the rows, since replicas read different samples. cp divides the columns,
# since its ranks share a sequence. Ranks of tp hold parts of one layer, so they need the same input, and all
# stages of pp work on the same samples in turn.
#
# **Predict.** On a mesh of pp 16, dp 8 and tp 8, each replica reads 4 rows. How many samples does a step
# read, 4 · 8 or 4 · 1,024?
#
# **Build.** Each replica reads consecutive rows. Under a causal mask, late tokens need more work than early
# ones, so positions are distributed in a zigzag. The sequence is cut into 2 · cp chunks, counted from 0, and
# rank r of cp gets chunk r and chunk 2 · cp − 1 − r. The function `cut`, the sizes and the coordinates are
# given.


# %% nbgrader={"grade_id": "my_part", "solution": true}
def my_part(
    rank: int, sizes: dict[str, int], batch_size: int, seq: int
) -> tuple[range, list[range]]:
    """Return (rows of the global batch, positions in the sequence) that `rank` reads.

    The rows are a range. The positions are a list of two ranges, an early and a late chunk. With
    cp = 1, this list holds a single range, the whole sequence.
    """

    def cut(length, n):
        """Cut range(length) into n consecutive ranges, whose lengths differ by at most 1."""
        lengths = [length // n + (k < length % n) for k in range(n)]
        ends = list(itertools.accumulate(lengths, initial=0))
        return [range(start, stop) for start, stop in itertools.pairwise(ends)]

    dp, cp = sizes.get("dp", 1), sizes.get("cp", 1)
    own = {"dp": 0, "cp": 0} | coordinates(rank, sizes)

    ### BEGIN SOLUTION
    rows, r = cut(batch_size, dp)[own["dp"]], own["cp"]
    if cp == 1:
        return rows, [range(seq)]
    chunks = cut(seq, 2 * cp)
    return rows, [chunks[r], chunks[-1 - r]]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: one rule for both</summary><code>cut(batch_size, dp)</code> returns the rows of
# every replica, and <code>cut(seq, 2 * cp)</code> returns the chunks. A rank takes one entry of the first
# list, and two entries of the second.</details>
#
# **Check.** You get only half of the points if replicas read the same rows, or if each rank of cp gets one
# block of positions, which makes the ranks' work unequal.

# %% nbgrader={"grade_id": "my_part_check", "points": 5}
report = check("10_four_dimensions/my_part", my_part)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/my_part", my_part, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** The cell uses your function to draw the sheet of 8 rows and 32 positions on dp 2, cp 2 and
# tp 2. Each square names the ranks that read it, and its colour shows which part of the sequence these
# ranks have.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if ready(my_part):
    eight = {"dp": 2, "cp": 2, "tp": 2}
    parts = [my_part(rank, eight, 8, 32) for rank in range(8)]
    display(hybrid_figures.sheet_figure(parts, rows=8, seq=32))

# %% [markdown]
# Each square is read by the two ranks of one tp group. Ranks 4 to 7 read the rows from row 4 on, because dp
# gives 4 rows to each of 2 replicas. On the mesh of your prediction, dp gives 4 rows to each of 8 replicas,
# so a step reads 4 · 8 samples.
#
# **In production.** Write `DistributedSampler(dataset, num_replicas=dp, rank=k)`, where dp is the size of the
# axis and k is the rank's coordinate on it. By default, the sampler uses the size of the world and the rank's
# number, so ranks that share a layer read different samples. The loss might not show such a mistake, as the
# *optional* end demonstrates.
#
# **Question.** Suppose that 1,024 GPUs take 29 s per step for a batch of 1,536 rows. How many samples per
# second does the run read?
#
# <details><summary>Answer</summary>The run reads 1,536 / 29 = 53 samples per second. The number of GPUs does
# not matter. Lecture 002's formula <em>samples = batch × world size</em> holds only if every GPU is a replica
# of its own.</details>

# %% [markdown]
# ### Optional: a mistake that no loss shows
#
# **Break it.** The cell trains the same GPT twice, with two replicas for 30 steps. In one run, an index is
# wrong, so both replicas read the same rows. Before you run the cell, predict whether the losses show which
# run this is.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def train_replicas(same):
    torch.manual_seed(0)  # both replicas begin with the same weights
    model = GPT(GPTConfig(64, 32, layers=1, heads=2, width=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    losses, read = [], set()
    for _ in range(30):
        first = torch.randint(64, (8, 1), generator=generator)
        tokens = (first + 3 * torch.arange(33)) % 64  # each token is the previous one plus 3
        replica = 0 if same else dist.get_rank()
        mine = tokens.chunk(2)[replica]
        read |= {(len(losses), int(row)) for row in range(4 * replica, 4 * replica + 4)}
        loss = next_token_loss(model(mine[:, :-1]), mine[:, 1:])
        loss.backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1], read


for name, same in (("different rows", False), ("the same rows", True)):
    # on the CPU, because the model is tiny
    replicas = launch(train_replicas, same, world_size=2, backend="gloo")
    samples = len(set().union(*(read for *_, read in replicas)))
    first, last, _ = replicas[0]
    print(f"{name:15} loss {first:.2f} -> {last:.2f}, {samples} samples read")

# %% [markdown]
# Both losses fall. The loss of the second run ends a little higher, but another seed could have the same
# effect. In the second run, both replicas did the same work, but the loss doesn't show it.

# %% [markdown]
# ## 3 · Three axes in one step
#
# | | |
# |---|---|
# | you will write | `hybrid_step(stages, schedule, microbatches, mesh)` |
# | builds on | §2; sums inside the layers (notebook 06); `run_schedule` (notebook 07) |
# | time | 34 minutes, and 3 for the *optional* end |
# | difficulty, importance | 4 and 5 of 5 |
# | points | 13 |
#
# `mesh_stages` has already cut the model for you. It gives each rank its stages, whose layers hold parts of
# the matrices (tp) and whose attention spans the ranks that share a sequence (cp). A stage sums over tp by
# itself, and `run_schedule` passes activations and gradients along pp. One question is left for every axis:
# is a rank's gradient a *term* of a sum, or a *sample* of a mean?
#
# The loss of a batch is the mean over all its targets, so it is a sum over tokens, in which each token's loss
# is divided by the same number. If every rank divides by this number, its gradient is a term on every axis:
#
# | axis | the terms of its ranks come from | the terms are summed by |
# |---|---|---|
# | tp | one product, cut into parts | the layers |
# | pp | a tied weight, which the first and the last stage use | `run_schedule` |
# | cp | different tokens of the same rows | you |
# | dp | different rows | you |
#
# gradient = the sum, over all ranks of dp and cp, of ∂(sum of the rank's losses / number of targets in the
# batch)
#
# By default, `run_schedule` divides by the number of targets in its microbatches, so each replica gets the
# mean over its own targets. This mean is a sample, and the mean of the samples differs from the batch's loss
# as soon as the replicas have unequal numbers of targets (notebook 03, §4). Instead, count the targets of all
# replicas first, and pass this number on: `run_schedule(stages, schedule, microbatches, mesh.group("pp"),
# count)`. A target of -100 does not count, so a replica might have no target that counts.
#
# **Predict.** On pp 2, dp 2 and tp 2, a rank has 2 of 4 layers, and a step has 4 microbatches. How many
# collectives does rank 0 call over tp, including the embedding's sum? How many over dp?
#
# **Build.** Some parameters might already have a gradient, which an earlier call has reduced. The code sets
# such gradients aside, and adds them back at the end. You write the lines in the middle. `run_schedule`
# returns a part of the loss for each microbatch, and the code adds these parts up. `mesh.group(axis)` takes
# an axis or a tuple of axes. A missing axis has size 1. Create new tensors on `mesh.device`.


# %% nbgrader={"grade_id": "hybrid_step", "solution": true}
def hybrid_step(stages: list, schedule: list, microbatches: list, mesh: Mesh) -> float:
    """Run forward and backward of all microbatches. The gradients equal those of one process.

    stages: the stages of this rank, each with a `module`. schedule: the schedule of all ranks of
    pp, as `run_schedule` takes it. microbatches: a list of (inputs, targets), int64 of shape
    (rows, seq), with the rows this replica reads. The sequence is not cut yet, so all ranks of
    pp, cp and tp get the same tensors. Add to the `grad` of the parameters. Return, on all ranks,
    the mean loss over the targets of all replicas. Send gradients over dp and cp only once, after
    the last microbatch.
    """
    params = [param for stage in stages for param in stage.module.parameters()]
    earlier = [param.grad for param in params]
    for param in params:
        param.grad = None

    # your turn: count the targets, get `losses` from the schedule, and sum each param.grad
    ### BEGIN SOLUTION
    own = sum(int((targets != -100).sum()) for _, targets in microbatches)
    count = torch.tensor(own, device=mesh.device)
    dist.all_reduce(count, group=mesh.group("dp"))  # ranks of cp count the same targets
    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())

    flat = torch.cat([param.grad.flatten() for param in params])
    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))  # terms of one sum
    parts = flat.split([param.numel() for param in params])
    for param, part in zip(params, parts, strict=True):
        param.grad = part.view_as(param)
    ### END SOLUTION

    loss = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for part in losses.values():  # only the last stage has losses
        loss += part
    dist.all_reduce(loss, group=mesh.group(("pp", "dp", "cp")))

    for param, before in zip(params, earlier, strict=True):
        if before is not None:
            param.grad = before if param.grad is None else before + param.grad
    return float(loss)


# %% [markdown]
# <details><summary>Hint: the schedule</summary><code>run_schedule(stages, schedule, microbatches,
# mesh.group("pp"), count)</code> runs the forward and backward of all microbatches, adds up the two terms of
# a tied weight, and divides the losses by <code>count</code>.</details>
# <details><summary>Hint: the targets of the batch</summary><code>(targets != -100).sum()</code>, added up
# over the microbatches, is this replica's number of targets. Sum this number only over dp, because the ranks
# of cp are given the same rows.</details>
# <details><summary>Hint: one sum for two axes</summary>Summing over cp and then over dp is the same as
# summing over the flattened group. Do not divide after this sum.</details>
# <details><summary>Hint: a gradient is wrong</summary>Look at the factor by which the gradients are wrong. If
# all gradients are n times too small, you took a mean of n ranks' terms. If the gradients are too large, the
# schedule divided by fewer targets than the batch has.</details>
#
# **Check.** On four meshes, the check compares your step with a single process, in float64. Replicas have
# unequal numbers of targets, and in one case a replica has no target. In another case, each rank has two
# stages. The check also counts the bytes on every axis.

# %% nbgrader={"grade_id": "hybrid_step_check", "points": 13}
report = check("10_four_dimensions/hybrid_step", hybrid_step)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/hybrid_step", hybrid_step, cases="hidden")
### END HIDDEN TESTS
report.points(13)

# %% [markdown]
# **Measure.** The next cell runs your step on eight ranks and compares it with one process. It prints both
# losses, and the largest error of any gradient, divided by the largest gradient. The cell after it draws the
# step, with every operation in the colour of its axis, and counts the operations of rank 0.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def my_step(mesh, stages, schedule):
    """Return (loss, gradients by name) of this rank's second step. The first connects the ranks."""
    for step in range(2):
        for _, param in parameters(stages):
            param.grad = None
        if step == 1:
            dist.barrier()
        loss = hybrid_step(stages, schedule, rows_of(mesh.coordinate["dp"], 2), mesh)
    return loss, {name: param.grad.cpu() for name, param in parameters(stages)}


run = None  # stays None if your function raises
if ready(hybrid_step):
    run = on_mesh(my_step)
if run:
    loss, gradients = alone()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    off = max(
        float((part_of(gradients[name], mine, rank % 2) - mine).abs().max())
        for rank, (_, held) in enumerate(run)
        for name, mine in held.items()
    )
    print(f"loss of one process {loss:.12f}, of eight ranks {run[0][0]:.12f}")
    print(f"largest error of any gradient / largest gradient: {off / largest:.0e}")

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.ledger.axes import differing_axes

if run:
    display(run.ledger.timeline(after="barrier", axes=SIZES))
    operations = run.ledger.operations(0)
    start = max(k for k, operation in enumerate(operations) if operation.op == "barrier")
    counts = Counter(
        (operation.op, " x ".join(differing_axes(operation.group, SIZES)))
        for operation in operations[start + 1 :]
    )
    for (name, axis), count in counts.items():
        print(f"rank 0, over {axis:7} {count:3} {name}")

# %% [markdown]
# For each of 4 microbatches, rank 0 calls 4 sums in each of its 2 layers and one in the embedding, which
# makes 36 sums over tp. Along pp, rank 0 sends an activation and receives a gradient for each of the 4
# microbatches. The fifth send and receive are for the tied table. Over dp, the ranks count the targets first,
# and add up the gradients at the end. The addition takes one call if you joined the gradients, or 34 calls if
# you summed each gradient separately, but the bytes are the same. The last sum is for the loss.
#
# **Break it.** The next cell combines the gradients of all ranks of a stage, as `DistributedDataParallel`
# would if you gave it these ranks as its group. The mesh returns the group of dp × tp whenever your function
# asks for dp, even when it counts the targets. Which gradients will be wrong? Will the loss also be wrong?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class Careless(Mesh):
    """A mesh whose dp means dp and tp, in its groups and in its sizes."""

    def wider(self, axis):
        axes = (axis,) if isinstance(axis, str) else tuple(axis)
        return (*axes, "tp") if "dp" in axes else axis

    def group(self, axis):
        return super().group(self.wider(axis))

    def size(self, axis):
        return super().size(self.wider(axis))


def careless_step(mesh, stages, schedule):
    mesh.__class__ = Careless
    return hybrid_step(stages, schedule, rows_of(mesh.coordinate["dp"], 2), mesh), {
        name: param.grad.cpu() for name, param in parameters(stages)
    }


if run:
    wrong = on_mesh(careless_step)
    print(f"loss {wrong[0][0]:.12f}")
    for name in ("blocks.0.mlp_norm.weight", "blocks.0.attention.query.weight"):
        wanted, mine = run[0][1][name], wrong[0][1][name]
        other = run[1][1][name]
        off = float((mine - wanted).abs().max() / wanted.abs().max())
        print(f"{name}: off by {off:.0e} of its largest element")
        print("    equals the mean of both tp ranks:", torch.allclose(mine, (wanted + other) / 2))

# %% [markdown]
# The loss is right, and so are the gradients of the norm layers. But the gradient of every cut matrix is now
# the mean of two *different* parts, so the model would train badly. Before you trust a loss, compare your
# gradients with the gradients of a single process.
#
# **In production.** PyTorch provides a tool for each of the three axes. `init_device_mesh` names the groups,
# `parallelize_module` cuts the layers, `fully_shard` makes replicas that shard their states, and
# `PipelineStage` with `Schedule1F1B` runs the stages. Two things matter if you combine these tools.
# `fully_shard` takes the mean over dp by itself, so you must divide the losses by the average number of
# targets per replica. And the gradient of a tied head lacks a term, unless you add up the gradients of its
# two copies yourself.
#
# <details><summary>How torchtitan and picotron divide</summary>torchtitan gives <code>fully_shard</code> dp
# and cp as one flattened group, just as you sum over both axes in a single all-reduce. It also counts the
# targets of all ranks first (<code>global_valid_tokens</code>), and turns off <code>fully_shard</code>'s own
# division. picotron's pipeline (<code>pipeline_parallel.py</code>, 2025) takes the mean over each microbatch
# and never divides by the number of microbatches <i>m</i>, so its gradients are m times too large. AdamW
# hides this mistake, because its steps hardly depend on the scale of the gradients.</details>
#
# **Question.** What changes if you reduce over dp first, and then over cp, with 2 ranks on each axis?
#
# <details><summary>Answer</summary>No gradient changes, because both reductions are sums. But each all-reduce
# over 2 ranks sends 2 · 1/2 = 1 times the bytes of the gradients, so both together send twice these bytes. A
# single all-reduce over all 4 ranks sends only 2 · 3/4 = 1.5 times these bytes.</details>

# %% [markdown]
# ### Optional: all four axes, on 16 ranks
#
# **Look.** The picture shows one step over all four axes. The bar of a sum over several axes is striped.
# Which axes communicate inside the layers, and which axis has only a single unstriped bar?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def four_axes(mesh, stages, schedule):
    from course_lib.mesh import hybrid_step

    microbatches = rows_of(mesh.coordinate["dp"], mesh.size("dp"))
    hybrid_step(stages, schedule, microbatches, mesh)  # in this step, the ranks connect
    dist.barrier()
    return hybrid_step(stages, schedule, microbatches, mesh)


FOUR = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}
sixteen = on_mesh(four_axes, FOUR)
print(f"loss of one process {alone()[0]:.6f}, of 16 ranks {sixteen[0]:.6f}")
sixteen.ledger.timeline(after="barrier", axes=FOUR)

# %% [markdown]
# tp communicates in every layer, cp in attention, and pp between the stages. The long bars of pp are the
# pipeline's bubble, in which a rank waits for a microbatch. The first striped bar is a barrier before the
# step. Right after it, the targets are counted over dp, in the only unstriped bar of dp. At the end, dp and
# cp share the sum of the gradients, and the last striped bar is the sum of the loss over three axes.

# %% [markdown]
# ## 4 · The norm of a gradient that no rank holds
#
# | | |
# |---|---|
# | you will write | `clip_grad_norm(named_parameters, max_norm, mesh, cut, tied)` |
# | builds on | §3 |
# | time | 20 minutes, and 4 for the *optional* end |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 8 |
#
# Most training runs clip the gradient by its norm. If the norm of the whole model's gradient is above
# `max_norm`, all gradients are scaled by max_norm / norm. On a mesh, however, no rank holds the whole
# gradient, and several ranks hold the same pieces. The square of a norm is a sum over elements, so you can
# add up the squares of the pieces, as long as each element counts once.
#
# The cell runs a step of the reference, and shows for three parameters which piece of the gradient each rank
# holds. Within a row, equal numbers mean equal pieces.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
NAMES = ("blocks.0.attention.query.weight", "blocks.0.mlp_norm.weight", "token_embedding.weight")


def gradients_of(mesh, stages, schedule):
    """Return (name, parameter) pairs of this rank, after a step of the reference."""
    from course_lib.mesh import hybrid_step

    hybrid_step(stages, schedule, rows_of(mesh.coordinate["dp"], 2), mesh)
    return parameters(stages)


held = on_mesh(lambda *mine: {name: param.grad.cpu() for name, param in gradients_of(*mine)})
hybrid_figures.pieces_figure(held, NAMES)

# %% [markdown]
# **Predict.** A colleague sums the squares of all gradients over pp and tp. Which of the three parameters are
# counted twice?
#
# **Build.** `cut` names the parameters that are cut over tp, and all others are whole. `tied` names the
# parameters held by both the first and the last stage, with equal gradients. Replicas also hold equal
# gradients, so nothing has to be sent over dp or cp. `mesh.coordinate` has no entry for a missing axis, on
# which every rank has coordinate 0.


# %% nbgrader={"grade_id": "clip_grad_norm", "solution": true}
def clip_grad_norm(
    named_parameters: list, max_norm: float, mesh: Mesh, cut: set[str], tied: set[str]
) -> float:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), and return the norm before scaling.

    The norm is the norm of the whole model's gradient. named_parameters: (name, parameter) pairs
    of this rank. A `grad` of None counts as zeros. cut, tied: names of this rank's cut and tied
    parameters. mesh: `mesh.coordinate` is a dict of this rank's coordinates. Send numbers, but no
    gradients.
    """
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)

    # your turn: add the squares this rank counts to `squares`, and sum `squares` over certain axes
    ### BEGIN SOLUTION
    first_of_tp = mesh.coordinate.get("tp", 0) == 0
    first_of_pp = mesh.coordinate.get("pp", 0) == 0
    for name, param in named_parameters:
        if param.grad is None:
            continue
        if (name in cut or first_of_tp) and (name not in tied or first_of_pp):
            squares += param.grad.double().square().sum()
    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))  # also on ranks that count nothing
    ### END SOLUTION

    norm = squares.sqrt().item()
    factor = min(1.0, max_norm / (norm + 1e-6))
    for _, param in named_parameters:
        if param.grad is not None:
            param.grad.mul_(factor)
    return norm


# %% [markdown]
# <details><summary>Hint: the rank that counts</summary>If a parameter is whole on tp, the first rank of tp
# counts it. If it is tied, the first stage counts it. All other ranks add zero, but they still take part in
# the sum.</details>
#
# **Check.** The cell after the check prints five norms of a step's gradients, one by your function and four
# by the functions of colleagues.

# %% nbgrader={"grade_id": "clip_grad_norm_check", "points": 8}
report = check("10_four_dimensions/clip_grad_norm", clip_grad_norm)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/clip_grad_norm", clip_grad_norm, cases="hidden")
### END HIDDEN TESTS
report.points(8)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def norms(mesh, stages, schedule):
    named, cut, tied = gradients_of(mesh, stages, schedule), cut_names(stages), tied_names(stages)

    def norm(counts, axes):
        squares = sum(p.grad.square().sum() for name, p in named if counts(name))
        squares = torch.as_tensor(squares, dtype=torch.float64)
        dist.all_reduce(squares, group=mesh.group(axes))
        return squares.sqrt().item()

    first = mesh.coordinate["tp"] == 0
    return {
        "this rank alone": norm(lambda name: True, ()),
        "tied counts twice": norm(lambda name: name in cut or first, ("pp", "tp")),
        "all, over pp x tp": norm(lambda name: True, ("pp", "tp")),
        "all, over the world": norm(lambda name: True, tuple(SIZES)),
        "yours": clip_grad_norm(named, 1.0, mesh, cut, tied),
    }


if ready(clip_grad_norm):
    counted = on_mesh(norms)
    _, gradients = alone()
    norm = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    print(f"{'one process':19} {norm:.4f}")
    for name in counted[0]:
        values = ", ".join(f"{counted[rank][name]:.4f}" for rank in (0, 7))
        print(f"{name:19} {values}   (on ranks 0 and 7)")

# %% [markdown]
# In a sum over pp and tp, `mlp_norm.weight` counts twice, since both ranks of tp hold it whole. The tied
# table also counts twice, since two stages hold it. The query's weight counts once.
#
# **In production.** On `DTensor`s, `torch.nn.utils.get_total_norm` returns a DTensor whose `full_tensor()`
# sums over the mesh. With pipelines, torchtitan then sums the squares over pp. Megatron-LM's
# `get_main_grads_for_grad_norm` leaves out shared parameters and the copies on tp.
#
# **Question.** By what factor is the norm too large if you add the squares of all eight ranks, and no
# parameter is tied or whole on tp?
#
# <details><summary>Answer</summary>Each element then counts dp = 2 times, so the factor is √2. Whole and tied
# parameters make the factor larger, as the norm over the world shows above.</details>

# %% [markdown]
# ### Optional: copies that drift apart
#
# **Break it.** The cell trains for five steps with your function, and then for five steps with
# `torch.nn.utils.clip_grad_norm_` on each rank. Four ranks should hold equal copies of
# `blocks.0.mlp_norm.weight`, so the cell compares the copies on two ranks of one tp group.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def five_steps(mesh, stages, schedule, mine):
    named, cut, tied = parameters(stages), cut_names(stages), tied_names(stages)
    optimizer, losses = torch.optim.SGD([param for _, param in named], lr=0.5), []
    from course_lib.mesh import hybrid_step

    microbatches = rows_of(mesh.coordinate["dp"], 2)
    for _ in range(5):
        losses.append(hybrid_step(stages, schedule, microbatches, mesh))
        if mine:
            clip_grad_norm(named, 0.2, mesh, cut, tied)
        else:
            torch.nn.utils.clip_grad_norm_([param for _, param in named], 0.2)
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: param.detach().cpu() for name, param in named}


if ready(clip_grad_norm):
    for title, mine in (("yours", True), ("each rank by itself", False)):
        ranks = on_mesh(lambda *args, mine=mine: five_steps(*args, mine))
        weights = [ranks[rank][1]["blocks.0.mlp_norm.weight"] for rank in (0, 1)]
        apart = float((weights[0] - weights[1]).abs().max())
        first, *_, last = ranks[0][0]
        losses = f"loss {first:.4f} -> {last:.4f}"
        print(f"{title:20} {losses}; copies on ranks 0 and 1 differ by {apart:.1e}")

# %% [markdown]
# The loss falls in both runs, and even further in the second run. There, each rank clips by its own norm,
# which is smaller than the model's norm, so gradients are clipped less than you asked for. The loss doesn't
# show that the copies drift apart with every step, or that the ranks of tp add up products of layers that no
# longer belong to *one* model.

# %% [markdown]
# ## 5 · What each axis sends
#
# | | |
# |---|---|
# | you will write | three axes of `axis_bytes`, and the end of `wire` |
# | builds on | sections 1 to 3; notebook 06 (tp), 07 (pp), 08 (cp) |
# | time | 25 minutes, and 4 for the *optional* end |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 8 |
#
# Closed forms tell you *how many* bytes each axis sends, but *which wires* carry these bytes depends on the
# placement of the ranks. `one_step` runs the step of section 3 again, with a wider GPT in float32, on eight
# ranks. In the picture, thick lines mark the border between two nodes of four ranks.
#
# **Predict.** Before you run the cell, order the three axes by the bytes they send.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.ledger.record import Record
from course_lib.mesh.trial import one_step, step_of

CUBE = {"pp": 2, "dp": 2, "tp": 2}
cube = launch(one_step, CUBE, world_size=8, backend="gloo")  # works anywhere; only its bytes matter
sent = Record(8, [step_of(cube.ledger.operations(rank)) for rank in range(8)])
hybrid_figures.nodes_figure(sent, per_node=4)

# %% [markdown]
# The darkest squares are next to the diagonal, between neighbours such as ranks 0 and 1. They belong to tp,
# the innermost axis, which sends most. dp sends less, and pp sends least. Only pp and the 12 bytes of the
# loss cross the thick lines.
#
# **Build.** Every pipeline runs m = `microbatches` microbatches in a step. On a rank, a microbatch has
# batch_rows / (dp·m) · seq / cp tokens. Let **M** = tokens · width · width_bytes be the bytes of its residual
# stream, *t* the size of tp, and *layers here* = layers / pp the layers of the rank. In an all-reduce of X
# bytes over *n* ranks, each rank sends 2(n−1)/n · X bytes. You write three lines:
#
# | axis | a rank of a stage sends |
# |---|---|
# | tp | m · layers here · 4 all-reduces of M, two in forward and two in backward |
# | pp | m · M to each of the stage's neighbours |
# | dp | one all-reduce of the gradients of the rank's parameters, over the n = dp · cp replicas |
#
# The code counts the rest, namely the parameters of the rank, the bytes of cp, and the bytes that the first
# and the last stage send in addition (`tp_ends` and `pp_ends`).
#
# <details><summary>The parts that are given as code</summary>The first stage adds one all-reduce of M over tp
# for each microbatch, for the embedding. The last stage adds two, one of M for the gradient of the head's
# input, and one of 3 float32 numbers per token for the loss. With a tied table and more than one stage, the
# first and the last stage also sum the table's gradient once per step, and each of them sends V/t · h
# elements for this sum, where V is the number of rows of the table and h is the width.<br>If the layers have
# GPT-2's parts, a rank has, for each layer, (12h² + 7h)/t cut parameters, and 6h whole parameters (norms, and
# the biases added after a sum). The first stage also has the table (V·h/t) and the positions (context·h). The
# last stage also has the final norm (2h) and the head (V·h/t). A tied head is the table, so both stages have
# a copy of it. But if one stage is both the first and the last, it has the tied table only once.<br>For cp,
# let K be the bytes of keys <i>and</i> values of the rank's tokens, for key_value_heads / t heads. For each
# of its layers and each microbatch, a rank sends (cp−1) · K in forward. In backward, it sends (cp−1) · K
# again, and cp · K for the gradients. With cp = 1 it sends nothing.</details>
#
# `wire` returns the link an axis needs. Neighbours on an axis are *stride* ranks apart, so a group spans
# stride · size ranks. Each node holds `per_node` ranks. The code computes `stride` and `size`, and the number
# of ranks on the mesh (`ranks`).


# %% nbgrader={"grade_id": "axis_bytes", "solution": true}
def axis_bytes(shape, sizes, microbatches, batch_rows, seq, stage=0, width_bytes=4):
    """Return the bytes one rank of a stage sends in a step, a dict with "pp", "dp", "cp" and "tp".

    shape: a GPTConfig, with vocab_size, context, layers, heads, key_value_heads, head_dim, width
    and tied. sizes: ranks along each axis. A missing axis has one rank. microbatches: the number
    of a pipeline per step. batch_rows: rows of the global batch. seq: tokens per row. stage:
    counted from 0. width_bytes: bytes per element of activations and gradients.
    """
    pp, dp, cp, tp = (sizes.get(axis, 1) for axis in ("pp", "dp", "cp", "tp"))
    m, h, layers = microbatches, shape.width, shape.layers // pp
    first, last = stage == 0, stage == pp - 1
    tokens = batch_rows // (dp * m) * seq // cp

    # elements of the rank's part of the table, and of all its parameters
    table = shape.vocab_size * h // tp
    params = layers * ((12 * h * h + 7 * h) // tp + 6 * h)
    params += first * (table + shape.context * h) + last * 2 * h
    if last and not (shape.tied and pp == 1):
        params += table

    # the bytes of cp
    keys = 2 * tokens * shape.key_value_heads // tp * shape.head_dim * width_bytes
    cp_bytes = m * layers * (2 * (cp - 1) + cp) * keys if cp > 1 else 0

    def summed(n, nbytes):
        """Return the bytes a rank sends in an all-reduce of nbytes over n ranks."""
        return 2 * (n - 1) / n * nbytes

    M = tokens * h * width_bytes

    # the bytes that the first and the last stage send in addition
    tp_ends = m * (first + last) * summed(tp, M) + m * last * summed(tp, 3 * 4 * tokens)
    pp_ends = 0
    if shape.tied and pp > 1 and (first or last):
        pp_ends = summed(2, table * width_bytes)

    # your turn: tp_bytes (with tp_ends added), pp_bytes (with pp_ends added) and dp_bytes
    ### BEGIN SOLUTION
    tp_bytes = m * layers * 4 * summed(tp, M) + tp_ends
    pp_bytes = m * M * ((not first) + (not last)) + pp_ends
    dp_bytes = summed(dp * cp, params * width_bytes)
    ### END SOLUTION
    return {"pp": pp_bytes, "dp": dp_bytes, "cp": cp_bytes, "tp": tp_bytes}


def wire(sizes, axis, per_node):
    """Return "NVLink" if every group of the axis is inside one node, and "network" otherwise.

    sizes: ranks along each axis, outermost first. Ranks fill the nodes in order, per_node in each.
    """
    names, size, ranks = list(sizes), sizes[axis], math.prod(sizes.values())
    stride = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])

    ### BEGIN SOLUTION
    inside = size == 1 or ranks <= per_node or per_node % (stride * size) == 0
    return "NVLink" if inside else "network"
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: a node of 6</summary>With tp = 4 and nodes of 6 GPUs, ranks 4 to 7 are one group,
# but ranks 4 and 5 are in the first node, and ranks 6 and 7 in the second. An axis of one rank stays in its
# node, and so do all axes of a mesh that fits into a node. Otherwise a group stays in a node if stride · size
# divides the number of GPUs per node.</details>

# %% nbgrader={"grade_id": "axis_bytes_check", "points": 8}
report = check("10_four_dimensions/axis_bytes", axis_bytes, wire)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/axis_bytes", axis_bytes, wire, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** For ranks 0 and 7, the cell prints the ledger's bytes next to your formula's bytes. Over dp,
# the ledger counts 8 bytes more, because the replicas also add up their numbers of targets (§3).

# %% tags=["skip-in-grading"]
for rank, stage in ((0, 0), (7, 1)):
    booked = Counter()
    for operation in step_of(cube.ledger.operations(rank)):
        booked["x".join(differing_axes(operation.group, CUBE))] += operation.bytes_sent
    yours = said(axis_bytes, GPTConfig(256, 128, 4, 4, 64), CUBE, 4, 8, 64, stage)
    for axis in CUBE:
        mine = f"{yours[axis]:>9,.0f}" if yours else f"{'?':>9}"
        print(f"rank {rank}, {axis}: {booked[axis]:>9,.0f} bytes in the ledger, {mine} predicted")

# %% [markdown]
# **Break it.** The cell runs the same step on slow emulated wires, with 1 ms and 100 MB/s inside a node of
# two ranks, but 10 ms and 10 MB/s between nodes. For every operation, a rank sleeps as long as the operation
# would take on its link. **Predict:** if tp moves to the front, by what factor does the step slow down? The
# cell takes about 20 seconds.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.facts import gpu
from course_lib.planning import Cluster, Wire

FELT = Cluster(8, 2, gpu("A100"), Wire("inside", 100e6, 1e-3), Wire("across", 10e6, 10e-3))


def fastest_step(sizes):
    """Return the seconds of the fastest of three steps, after a step in which the ranks connect."""
    times = []
    for _ in range(4):
        began = time.monotonic()
        one_step(sizes)
        times.append(time.monotonic() - began)
    return min(times[1:])


slept = []
for order in (("pp", "dp", "tp"), ("tp", "pp", "dp")):
    times = launch(fastest_step, dict.fromkeys(order, 2), world_size=8, wires=FELT, timeout=120)
    slept.append(max(times))
    print(f"{' x '.join(order)}: {slept[-1]:.2f} s")
print(f"the second order takes {slept[1] / slept[0]:.1f} times as long")

# %% [markdown]
# The two runs have the same code, values and bytes. Only the *numbering* of the ranks differs, and hence the
# wire each sum uses. tp matters most, because it has the most operations, and nothing hides them.
#
# **In production.** For a 175B-parameter model on pp 8, dp 16 and tp 8, with one sequence of 2,048 tokens per
# microbatch in bf16, M is 50.3 MB. In a step with 96 microbatches, a rank of a middle stage sends 406 GB
# along tp, over NVLink, but only 10 GB along pp, over the network.
#
# **Question.** Which of the four axes can hide its messages behind arithmetic, and which cannot?
#
# <details><summary>Answer</summary>dp can, because a layer's gradient is ready while the backward of earlier
# layers still runs. pp can, since another microbatch is computed while the message travels. cp can as well,
# behind attention. tp cannot do so without more effort, because the next product needs the result of the
# sum.</details>

# %% [markdown]
# ### Optional: your step as rank 517 of 1,024
#
# You can also let your own program count a rank's bytes. `dry_run` runs `hybrid_step` unchanged, as one rank
# of a large mesh. In a dry run, float tensors have no values, and calls that need other ranks return
# immediately. So it can't measure time or detect wrong values, but bytes, calls, memory and FLOPs are the
# same as on the real rank. The cell takes half a minute.
#
# **Predict.** On pp 8, dp 16 and tp 8, rank 517 has 16 microbatches of one row, in float32. At the peak of
# its memory, for how many microbatches does it keep activations?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib import dry_run

GPT3 = GPTConfig(51_200, 2048, layers=96, heads=96, width=12_288)


def stages_of(config, mesh, count):
    return mesh_stages(GPT(config), mesh, one_f_one_b(mesh.size("pp"), count))


def dry_step(stages, mesh, microbatches):
    hybrid_step(stages, one_f_one_b(mesh.size("pp"), len(microbatches)), microbatches, mesh)


def rank_517():
    sizes = {"pp": 8, "dp": 16, "tp": 8}
    return dry_run(stages_of, dry_step, sizes=sizes, rank=517, model=GPT3, microbatches=16)


if dry := tried(rank_517, hybrid_step):
    display(dry.table())

# %% [markdown]
# The rank is on stage 4 (counted from 0) of 8, so it keeps the activations of min(16, 8 − 4) = 4
# microbatches. The setup needs up to 701 GB of memory, because `stages_of` builds the whole model before
# `mesh_stages` cuts it. No GPU has that much, so real programs build only a rank's part, or build the model
# on the meta device.

# %% [markdown]
# ## 6 · Does it fit?
#
# | | |
# |---|---|
# | you will write | two parts of `memory_per_gpu` |
# | builds on | notebook 01, notebook 07 (1F1B), notebook 06 (sequence parallelism) |
# | time | 17 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 6 |
#
# A layout is useless if it does not fit into memory. The fullest GPU belongs to the *first* stage, because
# this stage holds the table and, in 1F1B, the activations of the most microbatches. From here on, a layout is
# a dict. The next cell holds a layout for a 175B-parameter model on 1,024 GPUs:

# %%
LAYOUT = {
    "pp": 8, "dp": 16, "cp": 1, "tp": 8,  # ranks, outermost first
    "microbatch": 1,  # sequences per microbatch
    "chunks": 1,  # v, the stages of each rank in interleaved 1F1B
    "zero": 1,  # 0, 1 or 3
    "recompute": "none",  # "none", "selective" or "full"
    "sequence": True,  # sequence parallelism along tp
}  # fmt: skip
GPT3 = GPTConfig(51_200, 2048, 96, 96, 12_288)

# %% [markdown]
# **Predict.** In a pipeline of 8 stages, each GPU has an eighth of the layers. Without a pipeline, each GPU
# of tp 8 would keep 34 GB of activations for one microbatch. How many GB does a GPU of the first stage keep?
#
# **Build.** `memory_per_gpu` returns the memory of the states (which depends on the ZeRO stage) plus the
# memory of the activations, in GB of 1e9 bytes. The code counts the bytes a layer keeps, so you write only
# the states and the microbatches in flight. The model has *L* layers, width *h*, *a* heads, *s* tokens per
# sequence, and *V* rows in its table. The letters *p*, *t* and *v* are the layout's pp, tp and chunks. We
# write replicas = dp · cp, and m = batch / (dp · microbatch).
#
# | you write | bytes |
# |---|---|
# | ZeRO 0 | 16 P' (weights 2, gradients 2, optimizer 12), where P' = (L/p · 12h² + V·h) / t |
# | ZeRO 1 | (4 + 12/replicas) P' |
# | ZeRO 3 | 16 P'/replicas, plus 4 · 12h²/t for one layer, which is whole while it runs |
# | microbatches in flight | min(m, p), or min(m, p + (p−1)/v) with v > 1 chunks |
#
# <details><summary>The bytes a layer keeps</summary>
#
# | given as code | bytes |
# |---|---|
# | sbh | microbatch · s/cp · h |
# | recompute "none" | with sequence parallelism, sbh (34 + 5as/h) / t. Without it, sbh (10 + (24 + 5as/h)/t) |
# | "selective" | the same without 5as/h |
# | "full" | 2 sbh, divided by t with sequence parallelism |
# | activations | in flight · L/p · what a layer keeps. With "full", add what a single layer keeps with "none", because layers run again one at a time |
#
# </details>


# %% nbgrader={"grade_id": "memory_per_gpu", "solution": true}
def memory_per_gpu(shape, layout, batch):
    """Return the GB (1e9 bytes) a GPU of the first stage needs for a step of `batch` sequences.

    shape: a GPTConfig, whose context is s. layout: a dict with all keys of LAYOUT.
    """
    p, t, v, h = layout["pp"], layout["tp"], layout["chunks"], shape.width
    replicas, m = layout["dp"] * layout["cp"], batch / (layout["dp"] * layout["microbatch"])
    of_layer = 12 * h**2 / t
    params = shape.layers / p * of_layer + shape.vocab_size * h / t

    # the bytes one layer keeps for one microbatch
    sbh = layout["microbatch"] * shape.context / layout["cp"] * h
    whole = 0 if layout["sequence"] else 10
    scores = 5 * shape.heads * shape.context / h
    kept = {
        "none": sbh * (whole + (34 - whole + scores) / t),
        "selective": sbh * (whole + (34 - whole) / t),
        "full": 2 * sbh / (t if layout["sequence"] else 1),
    }

    # your turn: states (bytes, by layout["zero"]; P' is params, 12h²/t is of_layer), and in_flight
    ### BEGIN SOLUTION
    states = {
        0: 16 * params,
        1: (4 + 12 / replicas) * params,
        3: 16 * params / replicas + 4 * of_layer,
    }[layout["zero"]]
    in_flight = min(m, p if v == 1 else p + (p - 1) / v)
    ### END SOLUTION
    activations = in_flight * shape.layers / p * kept[layout["recompute"]]
    if layout["recompute"] == "full":
        activations += kept["none"]
    return (states + activations) / 1e9


# %% nbgrader={"grade_id": "memory_per_gpu_check", "points": 6}
report = check("10_four_dimensions/memory_per_gpu", memory_per_gpu)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/memory_per_gpu", memory_per_gpu, cases="hidden")
### END HIDDEN TESTS
report.points(6)


# %% [markdown]
# **Measure.** The cell compares the layout above with other options. The bar "plain" has ZeRO 0. Find the bar
# that is longer than the bar above it. The dashed line marks 76 GB, because NCCL and fragmentation take some
# of the GPU's 80 GB.


# %% tags=["skip-in-grading"]
def states_and_all(**change):
    """Return (GB of states, GB in total). With one token per sequence, only the states count."""
    layout = {**LAYOUT, **change}
    few = dataclasses.replace(GPT3, context=1)
    return memory_per_gpu(few, layout, 1536), memory_per_gpu(GPT3, layout, 1536)


VARIANTS = {
    "plain": {"zero": 0},
    "ZeRO-1": {},
    "ZeRO-1, selective": {"recompute": "selective"},
    "ZeRO-1, selective, 4 chunks": {"recompute": "selective", "chunks": 4},
    "ZeRO-1, full": {"recompute": "full"},
}
if ready(memory_per_gpu):
    bars = {name: states_and_all(**change) for name, change in VARIANTS.items()}
    display(hybrid_figures.memory_bars(bars, room=76))

# %% [markdown]
# Four chunks need 2.2 GB more than one chunk, because 8 + 7/4 = 9.75 microbatches are in flight instead of 8.
#
# **Break it.** With twice as many stages, each stage has half as many layers, so you might expect half of the
# activations. The cell shows whether that is true.

# %% tags=["skip-in-grading"]
if ready(memory_per_gpu):
    for pp, dp in ((4, 32), (8, 16), (16, 8)):
        states, whole = states_and_all(pp=pp, dp=dp)
        print(f"pp {pp:2}: {states:5.1f} GB of states, {whole - states:5.1f} GB of activations")

# %% [markdown]
# The first stage keeps p microbatches for each of its L/p layers, so p cancels, and each of its GPUs keeps
# all 34 GB. Pipelining therefore divides the states but not the activations.
#
# **In production.** ZeRO-3 is rarely combined with a pipeline, because every layer would be gathered again
# for each of the m microbatches. This is also why Llama 3's FSDP doesn't free gathered weights between
# forward and backward.
#
# **Question.** Does a pipeline save activations if m < p?
#
# <details><summary>Answer</summary>Yes, because then min(m, p) = m, so it keeps m/p of the 34 GB. But a
# pipeline with fewer microbatches than stages idles for at least half of the time.</details>

# %% [markdown]
# ## 7 · How long? A cluster of 1,024
#
# | | |
# |---|---|
# | you will write | three parts of `step_seconds` |
# | builds on | notebook 01 §5 (roofline), notebook 07 §2 (bubble), sections 5 and 6 |
# | time | 21 minutes, and 5 for the *optional* end |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 7 |
#
# NVIDIA *measured* the steps in the next picture in 2021, on 32 to 3,072 A100s (Narayanan et al., table 1).
# This section's function predicts these steps. The vertical axis ends at the peak, 312 TFLOP/s.

# %% tags=["skip-in-grading"]
from course_lib.planning.table_1 import TABLE_1, row_tflops

DOTS = {f"{row.billions:.0f}B\n{row.gpus:,}": row.tflops for row in TABLE_1}
hybrid_figures.published_figure(DOTS, lines=[], limits=(0, 312))

# %%
A100 = {"flops": 312e12, "bandwidth": 2.039e12, "memory": 80}  # FLOP/s, bytes per second, GB
SELENE = {
    "per_node": 8,
    "NVLink": 600e9,  # bytes per second, both directions together, as in the data sheet
    "network": 200e9,  # bits per second of each GPU's network card, each way
    "NVLink alpha": 3.4e-6,  # seconds per round, from NCCL's table
    "network alpha": 14e-6,
}  # fmt: skip

# %% [markdown]
# **Predict.** A step trains 145.6 billion parameters on 2,304 sequences of 2,048 tokens, on 1,536 GPUs. With
# recomputation, a token takes 8 FLOPs per parameter, so at the peak the step would take 11.5 s. How long did
# the measured step take?
#
# <details><summary>Answer</summary>It took 24.2 s, because each GPU reached only 148 of its 312
# TFLOP/s.</details>
#
# **Build.** You write three parts of `step_seconds`, namely the speeds, the ring, and the slot with the
# pipeline. Matrix products reach F = flops · efficiency, in FLOP/s. Here `efficiency` (e in the next picture)
# is their share of the peak, and the only constant that is fitted.
#
# | you write | |
# |---|---|
# | fast, slow | NVLink's speed and the speed of a GPU's network card, in bytes per second each way |
# | a ring over n ranks, X bytes | 2(n−1) α + 2(n−1)/n · X / (0.8 · bytes per second each way) seconds, since links reach 0.8 of the speed in their data sheets |
# | slot | the time of L/p layers. Each layer takes `layer` (products and other operations) plus `waits` |
# | pipeline | m · (slot + head + 2v · message) + (p−1) · (slot/v + 2 · message). The head counts m times, since the last stage sets the pace |
#
# A step takes pipeline + replicas + optimizer seconds. The code has all other parts, which the fold explains.
#
# <details><summary>The parts that are given as code</summary>
#
# B = 0.8 · bandwidth is the speed of memory, and tokens = microbatch · s/cp. As in section 5, M is the size
# of the residual stream, here 2 · tokens · h bytes (16 bits per element). `runs` and `scores` count how often
# a layer computes its matrix products and its attention scores, and `sums` counts its all-reduces over tp.
# The triple (runs, scores, sums) is (3, 3, 4) without recomputation, because forward runs each product once,
# and backward runs it twice. It is (3, 4, 4) for "selective" and (4, 4, 6) for "full", because parts of
# forward are then run again.
#
# | part | seconds |
# |---|---|
# | an all-reduce over n ranks, *stride* apart | g = min(n, max(1, per_node // stride)) of these ranks are in one node. First, a ring of X bytes runs over g ranks on NVLink. Then a ring runs over n/g ranks on the network, with only X/g bytes because each GPU has its own card. If g does not divide n, put the fraction n/g into the ring's formula as it is |
# | products of a layer | (runs · 24 tokens h² + scores · 4 tokens s h) / t / F |
# | the other operations | the sum of three terms: (40 + 16 (runs−3)) · tokens h / t / B; (20 + 9 (scores−3)) · tokens s a / t / B; and (44 + 22 (runs−3)) · tokens h / B. The last term is divided by t only with sequence parallelism |
# | waits of a layer | sums · (an all-reduce of M over tp, with stride 1) + 3/2 · (an all-reduce of 4 · microbatch · s · h / t bytes over cp, with stride t) |
# | head, on the last stage | (6 tokens h V / F + 16 tokens V / B) / t |
# | a message between stages, if p > 1 | α + M/t / (0.8 · bytes per second each way). Take NVLink's values if all p · dp · cp · t GPUs fit into a node. Otherwise take the network's values, because a pipeline is as fast as its slowest message. Without sequence parallelism, add half an all-reduce of M over tp |
# | replicas | an all-reduce of 2 P' bytes over dp·cp (stride t), with P' as in section 6. With ZeRO-3, count the all-reduce m · 3/2 times, and subtract the compute that hides it, m · (L/p · (products + other operations) + head). The result is at least 0 |
# | optimizer | 34 P' / B, divided by dp·cp if zero > 0 |
#
# Two sizes differ from section 5. There, each rank of tp sends all of M to the next stage, but here it sends
# only M/t, and the next stage gathers the parts along tp. The second size, 4 · microbatch · s · h / t, counts
# the bytes of the keys and values of the whole sequence in 16 bits. Each rank of cp has 1/cp of these bytes,
# which is section 5's K.
#
# The bytes of the other operations are our own count, for fused kernels in 16 bits. In each pair below, the
# first number is for forward, and the second is for backward. Per element of the residual stream, norms move
# 4 and 6 bytes, whereas bias, dropout and residual move 7 and 5 bytes. GELU moves 4 and 6 bytes for each of a
# token's 4h elements, and softmax with its dropout moves 9 and 11 bytes per score.
#
# </details>


# %% nbgrader={"grade_id": "step_seconds", "solution": true}
def step_seconds(shape, layout, batch, gpu, links, efficiency):
    """Return the seconds of a step of `batch` sequences.

    layout: a dict with all keys of LAYOUT. gpu, links: dicts like A100 and SELENE. efficiency: the
    share of the peak that matrix products reach.
    """
    p, t, cp, v = (layout[name] for name in ("pp", "tp", "cp", "chunks"))
    s, h, replicas = shape.context, shape.width, layout["dp"] * layout["cp"]
    tokens = layout["microbatch"] * s / cp
    m = batch / (layout["dp"] * layout["microbatch"])
    F, B = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"]
    runs, scores, sums = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 6)}[
        layout["recompute"]
    ]

    # your turn: fast and slow, the bytes per second each way of NVLink and of a GPU's network card
    ### BEGIN SOLUTION
    fast, slow = links["NVLink"] / 2, links["network"] / 8
    ### END SOLUTION

    def ring(nbytes, n, speed, alpha):
        """Your turn: return the seconds of a ring, as in the table. speed: bytes/s, each way."""
        ### BEGIN SOLUTION
        return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
        ### END SOLUTION

    def all_reduce(nbytes, n, stride):
        g = min(n, max(1, links["per_node"] // stride))
        inside = ring(nbytes, g, fast, links["NVLink alpha"])
        return inside + ring(nbytes / g, n / g, slow, links["network alpha"])

    stream = tokens * h / (t if layout["sequence"] else 1)
    layer = (runs * 24 * tokens * h**2 + scores * 4 * tokens * s * h) / t / F
    layer += stream * (44 + 22 * (runs - 3)) / B + tokens * h / t * (40 + 16 * (runs - 3)) / B
    layer += tokens * s * shape.heads / t * (20 + 9 * (scores - 3)) / B
    waits = sums * all_reduce(2 * tokens * h, t, 1)
    waits += 3 / 2 * all_reduce(4 * layout["microbatch"] * s * h / t, cp, t)
    head = (6 * tokens * h * shape.vocab_size / F + 16 * tokens * shape.vocab_size / B) / t

    message = 0.0
    if p > 1:
        near = p * replicas * t <= links["per_node"]
        message = links["NVLink alpha" if near else "network alpha"]
        message += 2 * tokens * h / t / (0.8 * (fast if near else slow))
        if not layout["sequence"]:
            message += all_reduce(2 * tokens * h, t, 1) / 2
    layers = shape.layers / p

    # your turn: slot and pipeline, from layers, layer, waits, head, message, m, p and v
    ### BEGIN SOLUTION
    slot = layers * (layer + waits)
    pipeline = m * (slot + head + 2 * v * message) + (p - 1) * (slot / v + 2 * message)
    ### END SOLUTION

    params = (layers * 12 * h**2 + shape.vocab_size * h) / t
    summed = all_reduce(2 * params, replicas, t)
    if layout["zero"] == 3:
        summed = max(0.0, 3 / 2 * m * summed - m * (layers * layer + head))
    update = 34 * params / B / (replicas if layout["zero"] else 1)
    return pipeline + summed + update


# %% [markdown]
# <details><summary>Hint: the two traps of data sheets</summary>NVLink's 600 GB/s counts both directions
# together, so a rank of a ring can send 300 GB/s. The speed of a network is given in bits per second, so 200
# Gb/s is 25 GB/s each way.</details>

# %% nbgrader={"grade_id": "step_seconds_check", "points": 7}
report = check("10_four_dimensions/step_seconds", step_seconds)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/step_seconds", step_seconds, cases="hidden")
### END HIDDEN TESTS
report.points(7)

# %% [markdown]
# **Measure.** The cell fits the efficiency to *one* row of table 1 (the model with 76.1B parameters), and
# predicts the nine other rows. The predictions are not blind. Since the paper does not print microbatches and
# chunks, we use the values for which the predicted step is shortest. For comparison, the cell also draws the
# simplest prediction, in which every GPU reaches 140 TFLOP/s, as in the fitted row. FLOPs are counted as in
# the paper (equation 3), with recomputation. The vertical axis begins at 120.


# %% tags=["skip-in-grading"]
def predicted(row, efficiency):
    return row_tflops(row, step_seconds, A100, SELENE, efficiency)


def fitted(row):
    low, high = 0.2, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if predicted(row, middle) < row.tflops else (low, middle)
    return low


lines = {"140 TFLOP/s everywhere": [140] * len(TABLE_1)}
if ready(step_seconds):
    EFFICIENCY = fitted(TABLE_1[5])
    mine = [predicted(row, EFFICIENCY) for row in TABLE_1]
    lines = {f"yours, e = {EFFICIENCY:.3f}": mine} | lines
for name, line in lines.items():
    off = [100 * abs(value / row.tflops - 1) for value, row in zip(line, TABLE_1, strict=True)]
    print(f"{name}: off by {sum(off) / len(off):.1f} % on average, {max(off):.1f} % at most")
hybrid_figures.published_figure(DOTS, list(lines.items()), limits=(120, 180))

# %% [markdown]
# **In production.** Megatron-LM logs the TFLOP/s of each GPU. Today it leaves out recomputation, so it counts
# *model* FLOPs, and only these tell you how long training takes. The paper's table counts *hardware* FLOPs,
# which include recomputation.

# %% [markdown]
# ### Optional: what a fit hides, and predictions of other runs
#
# **Break it.** Suppose you leave recomputation out of the measured FLOPs. Each dot is then 3/4 as high, but
# the fitted constant falls as well, which hides most of the mistake. So watch the largest error.

# %% tags=["skip-in-grading"]
if ready(step_seconds):
    low = [row._replace(tflops=0.75 * row.tflops) for row in TABLE_1]
    lower = fitted(low[5])
    off = max(abs(predicted(row, lower) / row.tflops - 1) for row in low)
    print(f"e = {lower:.3f} instead of {EFFICIENCY:.3f}; the largest error is {100 * off:.1f} %")

# %% [markdown]
# Does such a model predict other runs? In the next cell, the reference predicts the steps of table 2 (same
# paper, 384 to 2,240 GPUs), and of Llama 3 and MegaScale. It also handles grouped queries and flash
# attention. Its constant for the A100 is fitted to the 145.6B row of table 1. Its constant for the H100 is
# fitted to Llama 3's second row, so this row is not a prediction. Llama 3's paper does not state v, so we
# assume 4.

# %% tags=["skip-in-grading"]
from course_lib.planning import published as rows

print("measured TFLOP/s per GPU, and the error of the prediction")
for table, constant in (
    ("TABLE_2", rows.fitted(rows.FITTED)),
    ("LLAMA_3", rows.fitted(rows.LLAMA_FITTED)),
    ("MEGASCALE", rows.fitted(rows.FITTED)),
):
    for row in getattr(rows, table):
        error = 100 * rows.error(row, constant)
        print(f"{table:10} {row.name:29} {row.tflops:4.0f}   {error:+5.1f} %")

# %% [markdown]
# The errors are largest in the last two rows. These rows are Megatron-LM's steps on 8,192 and 12,288 GPUs,
# measured by MegaScale's authors.
#
# **Question.** Which term would you add to the model?
#
# <details><summary>Answer</summary>Add a term that depends on the number of GPUs. A step lasts as long as its
# slowest rank, and the expected maximum of N step times grows with N, because of stragglers, links that fail
# over, and flows that share a switch. MegaScale removed many of its stragglers, and reached 55 % of the peak
# on 12,288 GPUs.</details>

# %% [markdown]
# ## 8 · Choose
#
# | | |
# |---|---|
# | you will write | the end of `best_layout` |
# | builds on | sections 6 and 7 |
# | time | 16 minutes, and 7 for the *optional* end |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 4 |
#
# There are 66 ways to divide 1,024 GPUs into pp, dp and tp. Only 29 of them divide a 175B-parameter model and
# 1,536 sequences evenly, and fit into 76 of a GPU's 80 GB with the right options.
#
# **Predict.** Which sizes of pp, dp and tp does the fastest layout have?
#
# **Build.** `layouts()` is given. It yields all layouts that divide the model and the batch evenly, each a
# dict as in §6.
#
# <details><summary>The layouts it yields, and the layouts it leaves out</summary>
#
# It tries all divisions of `gpus` into pp, dp, cp and tp. Each division is combined with 1, 2 or 4 sequences
# per microbatch; with 1, 2 or 4 chunks; with ZeRO 0, 1 or 3; and with each kind of recomputation. The option
# "sequence" is True if tp > 1. The function leaves out
#
# - cp > 1, if shape.context is less than 32,768,
# - layouts in which one of these divisions leaves a remainder: heads by tp; layers by pp · chunks; batch by
#   dp · microbatch; context by tp, or by 2 · cp · tp if cp > 1 (zigzag),
# - ZeRO 3 with pp > 1,
# - more than one chunk if pp = 1, or if batch / (dp · microbatch) is not a multiple of pp.
#
# </details>
#
# Drop the layouts that need more than gpu["memory"] − 4 GB, because NCCL and fragmentation take the rest.
# Return the layout with the shortest step, or None if no layout fits. The check accepts a layout whose step
# is up to 3 % longer than the shortest step.


# %% nbgrader={"grade_id": "best_layout", "solution": true}
def best_layout(shape, gpus, batch, gpu, links, efficiency=0.63):
    """Return the layout with the shortest step among all layouts that fit into memory.

    The layout is a dict as in section 6. Return None if no layout fits. efficiency: 0.63 is the
    reference's constant, fitted to the 145.6B row.
    """

    def can_be_cut(layout):
        p, t, cp, v = (layout[name] for name in ("pp", "tp", "cp", "chunks"))
        rows = layout["dp"] * layout["microbatch"]
        parts = (2 * cp if cp > 1 else 1) * t
        if shape.heads % t or shape.layers % (p * v) or batch % rows or shape.context % parts:
            return False
        if layout["zero"] == 3 and p > 1:
            return False
        return v == 1 or (p > 1 and batch // rows % p == 0)

    def layouts():
        """Yield all layouts that divide the model and the batch evenly."""
        divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
        contexts = divisors if shape.context >= 32_768 else [1]
        kinds = ("none", "selective", "full")
        for pp, cp, tp in itertools.product(divisors, contexts, divisors):
            if gpus % (pp * cp * tp):
                continue
            sizes = {"pp": pp, "dp": gpus // (pp * cp * tp), "cp": cp, "tp": tp}
            options = itertools.product((1, 2, 4), (1, 2, 4), (0, 1, 3), kinds)
            for microbatch, chunks, zero, recompute in options:
                layout = {**sizes, "microbatch": microbatch, "chunks": chunks, "zero": zero}
                layout |= {"recompute": recompute, "sequence": tp > 1}
                if can_be_cut(layout):
                    yield layout

    ### BEGIN SOLUTION
    best, fastest = None, math.inf
    for layout in layouts():
        if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
            continue
        seconds = step_seconds(shape, layout, batch, gpu, links, efficiency)
        if seconds < fastest:
            best, fastest = layout, seconds
    return best
    ### END SOLUTION


# %% nbgrader={"grade_id": "best_layout_check", "points": 4}
report = check("10_four_dimensions/best_layout", best_layout)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/best_layout", best_layout, cases="hidden")
### END HIDDEN TESTS
report.points(4)


# %% [markdown]
# **Measure.** The cell prints the fastest layout next to 8 × 16 × 8. Then it **breaks** the cluster, by
# halving the speed of one kind of link or making the nodes smaller.


# %% tags=["skip-in-grading"]
from course_lib.planning.by_hand import A100, SELENE

GPT3 = GPTConfig(51_200, 2048, 96, 96, 12_288)


def shown(title, links):
    """Print the best layout on these links and its time, next to the time of 8 x 16 x 8."""
    best = best_layout(GPT3, 1024, 1536, A100, links)
    if best is None:
        return print(f"{title:17} best_layout returns None")
    eights = {"pp": 8, "dp": 16, "tp": 8, "zero": 1, "chunks": 4, "recompute": "none"}
    times = [step_seconds(GPT3, each, 1536, A100, links, 0.63) for each in (best, best | eights)]
    sizes = ", ".join(f"{axis} {best[axis]}" for axis in ("pp", "dp", "tp"))
    print(f"{title:17} {sizes:21} {times[0]:5.1f} s; 8 x 16 x 8: {times[1]:5.1f} s")


if ready(best_layout):
    shown("Selene", SELENE)
    shown("network / 2", {**SELENE, "network": 100e9})
    shown("NVLink / 2", {**SELENE, "NVLink": 300e9})
    shown("nodes of 4", {**SELENE, "per_node": 4})
    shown("nodes of 2", {**SELENE, "per_node": 2})

# %% [markdown]
# The fastest layout has tp 4 every time, but its lead over 8 x 16 x 8 grows from 1 % to 22 %, because tp 8
# loses more time when NVLink is slower or joins fewer GPUs. So "tp up to the size of a node" is only a rule of
# thumb. Here tp 4 is best, whether nodes have 8 GPUs or 2.
#
# **Look.** The course's advisor is a search like yours, with more options. It judges all layouts for the
# model, GPUs, links and context you set at the top. Below, it shows bars for the best layouts, and says why
# it dropped the others. Set the network to 10 Gb Ethernet. Which axis grows in the fastest layout?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.strategy_advisor import strategy_advisor

strategy_advisor()

# %% [markdown]
# pp grows. On Ethernet, 16 × 8 × 8 is the fastest layout, because pp sends the fewest bytes.
#
# **In production.** The formula of section 7 assumes that arithmetic hides ZeRO-3's messages. But table 2 of
# Narayanan et al. lists 44 TFLOP/s for ZeRO-3 on 1,536 GPUs at microbatch 1, which is far less than such a
# formula predicts. So trust the advisor for pipelines, but measure before you trust it for ZeRO-3 across 100
# nodes.
#
# **Question.** When is tp = 16 the right choice?
#
# <details><summary>Answer</summary>It is right if 16 GPUs share one fast link, as in a rack with NVLink
# across nodes, or if nothing else fits. In nodes of 8 GPUs, however, the sums of tp = 16 have to use the
# network (section 9, question 1).</details>

# %% [markdown]
# ### Optional: all divisions, and a popular table on trial
#
# **Look.** The plot shows all 29 divisions that fit, each with the options the advisor found fastest. Find
# your fastest layout among the marks, whose shapes show the size of tp.

# %% tags=["skip-in-grading"]
from course_lib.planning import advise
from course_lib.planning.topology import a100_cluster

verdicts = advise(GPT3, 1024, 1536, a100_cluster(1024))
cut = sum(verdict.nbytes is not None for verdict in verdicts)
fit = sum(verdict.fits for verdict in verdicts)
print(f"{len(verdicts)} divisions: {cut} divide the model and the batch evenly, {fit} of these fit")
hybrid_figures.divisions_figure(verdicts, room=76)

# %% [markdown]
# A popular table recommends a kind of parallelism for each size of model. We test five of its rows, each for
# one GPT on one cluster, and the first row also for a second GPT. (The sixth row is ZeRO-Offload, which the
# advisor doesn't know.) A recommendation counts as right if its best layout fits and is at most 10 % slower
# than the best layout of all. **Predict** how many of the six cases are right.

# %% tags=["skip-in-grading"]
from course_lib.models import PUBLISHED
from course_lib.pictures.strategy_advisor import Question
from course_lib.planning.advisor import OPTIONS, judge, sizes_of

EVERY = [*OPTIONS, *((recompute, 2, m, 1) for recompute, _, m, v in OPTIONS[:18] if v == 1)]
EVERY += [("selective", 2, m, 1) for m in (1, 2, 4)] + [("full", 2, m, 1) for m in (1, 2, 4)]


def alone_on_axis(axis):
    return lambda sizes: all(n == 1 for name, n in sizes.items() if name != axis)


CASES = (  # the table's words, a question, and the sizes and stages of ZeRO that these words allow
    ("one GPU, < 10B: no parallelism", Question("GPT-2 XL", 1, seq=1024, batch=16), None, {0}),
    ("one GPU, < 10B: no parallelism", Question("LLaMA-7B", 1, batch=16), None, {0}),
    ("one node: DDP or ZeRO-2", Question("LLaMA-7B", 8, batch=64), alone_on_axis("dp"), {0, 2}),
    ("10-70B: ZeRO-3 or ZeRO-2", Question("LLaMA-13B", 8, batch=64), alone_on_axis("dp"), {2, 3}),
    ("70B+, nodes: ZeRO-3 (and tp)", Question("Llama-2-70B", 64, seq=4096, batch=512),
     lambda sizes: sizes["pp"] == 1, {3}),
    ("100B+: three axes", Question(), lambda sizes: min(sizes[a] for a in ("pp", "dp", "tp")) > 1,
     {0, 1}),
)  # fmt: skip


def fastest_of(question, allowed=None, stages=(0, 1, 2, 3)):
    """Return the best verdict among the allowed sizes (None allows all) and stages of ZeRO."""
    options = [option for option in EVERY if option[1] in stages]
    verdicts = [
        judge(PUBLISHED[question.model], sizes, question.batch, question.cluster, question.seq,
              question.work, options)
        for sizes in sizes_of(question.gpus, context=False)
        if allowed is None or allowed(sizes)
    ]  # fmt: skip
    return min(verdicts, key=lambda each: (not each.fits, each.seconds or 0, each.nbytes or 0))


for words, question, allowed, stages in CASES:
    advice, best = fastest_of(question, allowed, stages), fastest_of(question)
    case = f"{words:31} {question.model:12} on {question.gpus:5,}"
    if not advice.fits:
        print(f"{case}: wrong. {advice.reason}")
    else:
        slower = advice.seconds / best.seconds
        judged = "right" if slower <= 1.1 else "wrong"
        print(f"{case}: {judged}, {slower:.2f} times the best time ({best.layout})")

# %% [markdown]
# According to the advisor's model, five of the six cases are right. But one case does not prove the whole
# row. For example, with 70B parameters, ZeRO-2 would keep 140 GB on every GPU (notebook 01), so the row for
# 10-70B is not always right.
#
# <details><summary>Why is another layout faster in the last case?</summary>In the last case, the best layout
# has no pipeline and uses ZeRO-2, which neither your search nor the advisor tries. ZeRO-2 sums the gradients
# of every microbatch, and the model assumes that arithmetic hides these sums as well.</details>

# %% [markdown]
# ## On your GPUs
#
# *This section has no points. With GPUs it takes a few minutes. Without them, the cells show a recorded run,
# if there is one.*
#
# **Predict.** Start with one GPU. The cell calls your `step_seconds` for GPT-2 small, with size 1 on every
# axis, §8's efficiency of 0.63 and the card's data sheet. The formula was fitted to models with fused kernels
# and billions of parameters. Will its prediction be too short or too long for a model whose width is only
# 768?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.pipelines import AXES as ON_ONE_AXIS
from course_lib.gpu.training import ONE_STEP
from course_lib.models import PRESETS

ALONE = {
    "pp": 1,
    "dp": 1,
    "cp": 1,
    "tp": 1,
    "chunks": 1,
    "zero": 0,
    "recompute": "none",
    "sequence": False,
}


def on_one(of, run):
    card = {
        "flops": run.card.flops,
        "bandwidth": run.card.bandwidth,
        "memory": run.card.memory / 1e9,
    }
    layout = {**ALONE, "microbatch": of["batch"]}
    taken = step_seconds(PRESETS[of["preset"]], layout, of["batch"], card, SELENE, 0.63)
    return {"step": taken, "tokens": of["batch"] * of["seq"] / taken}.get(of["kind"])


on_gpus = on_your_gpus(ONE_STEP, predicted=on_one)
# %% [markdown]
# **Predict.** Now the same batch runs with all your GPUs on one axis, first as replicas, then as a pipeline
# with 8 microbatches, and then with each layer cut. Order the three runs by speed before you run the cell. A
# step here means forward, backward and the sums of the gradients, without the optimizer.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
on_gpus = on_your_gpus(ON_ONE_AXIS)
# %% [markdown]
# Replicas add up the gradients once per step, and a pipeline sends its activations, but every cut layer has
# to wait for four sums. So a slow link harms cut layers most. (A dash means that the 12 heads cannot be cut
# into as many parts as you have GPUs.)

# %% [markdown]
# ## 9 · Questions
#
# | | |
# |---|---|
# | time | 13 minutes |
# | points | 4 |
#
# **1.** GPT-3 runs with t = 16 on nodes of 8 GPUs, with SELENE's links and one sequence of 2,048 tokens in
# bf16. How many *milliseconds* does one all-reduce of the residual stream take, by the formula of section 7?
# (`answer_1`, a number)
#
# **2.** Here is table 4 from the first version of Llama 3's paper:
#
# | GPUs | TP | CP | PP | DP | tokens of a sequence | TFLOP/s |
# |---|---|---|---|---|---|---|
# | 8,192 | 8 | 1 | 16 | 64 | 8,192 | 430 |
# | 16,384 | 8 | 1 | 16 | 128 | 8,192 | 400 |
# | 16,384 | 8 | 16 | 16 | 4 | 131,072 | 380 |
#
# The columns GPUs, TP, CP and PP are right, but one entry in the other columns cannot be right. Which number
# should replace it? (`answer_2`)
#
# **3.** A step has 16 M tokens (16 · 2^20) in sequences of 8,192 tokens, on pp 16 and dp 128. How many
# microbatches of one sequence does each pipeline have? (`answer_3`)
#
# **4.** How long is the bubble of the step in question 3 at v = 1, as a fraction of the *ideal* time?
# (`answer_4`)
#
# **5.** In the third row of the table, a GPU is only 5 % slower than in the second row, although cp is 16.
# Why is it only 5 % slower: "few keys", "nvlink", "small batch" or "no bubble"? (`answer_5`, a text)

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # milliseconds
answer_2 = ...  # a number
answer_3 = ...  # microbatches
answer_4 = ...  # fraction of the ideal time
answer_5 = ...  # one of the four texts
### BEGIN SOLUTION
inside = 14 * 3.4e-6 + 2 * 7 / 8 * 2 * 2048 * 12_288 / (0.8 * 300e9)
across = 2 * 14e-6 + 2 * 2048 * 12_288 / 8 / (0.8 * 25e9)
answer_1 = 1e3 * (inside + across)
answer_2 = 8
answer_3 = 16
answer_4 = 15 / 16
answer_5 = "few keys"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 4}
report = check("10_four_dimensions/questions", answer_1, answer_2, answer_3, answer_4, answer_5)
### BEGIN HIDDEN TESTS
report = check(
    "10_four_dimensions/questions", answer_1, answer_2, answer_3, answer_4, answer_5, cases="hidden"
)
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# ## 10 · Optional: replay a recorded run
#
# | | |
# |---|---|
# | you will write | `replay` |
# | builds on | sections 5 and 7, notebook 07 (simulating a schedule) |
# | time | 35 minutes |
# | difficulty, importance | 3 and 1 of 5 |
# | extra credit | 6 points, on top of the others. You lose nothing if you skip it |
#
# Instead of section 7's formula, you can take the *record* of a run, and let a simulated clock replay it on
# other links. The record lists what each rank did, in order, and the clock computes the times.
#
# **Predict.** Rank 0 computes for 1 s and rank 1 for 2 s. Then they sum 100 kB, over a link with alpha 0.2 s
# and beta 1 µs per byte. When are they done?
#
# **Build.** `records` holds one list per rank, with that rank's entries in order:
#
# | entry | content |
# |---|---|
# | `["compute", seconds]` | the rank computes |
# | `["all_reduce", group, nbytes]` | a sum over the ranks of `group`. It begins when the last rank has arrived, and ends at the same time for all ranks |
# | `["send", peer, nbytes]` | the rank continues immediately, while its message travels |
# | `["recv", peer, nbytes]` | the rank continues when the next message from `peer` has arrived |
#
# The ranks fill the nodes in order, with `per_node` ranks in each node. `inside` and `across` are pairs
# (alpha, beta), for links inside a node and between nodes. An operation takes alpha + bytes · beta on the
# slowest link its ranks need. It takes only *one* alpha, as on the emulated wires of section 5. A message's
# bytes count once, and a sum's bytes count 2(n−1)/n times. A rank has two links, inside and across. Each link
# carries the rank's messages one after another, so the second message begins when the first has arrived. A
# sum does not queue, so it neither waits for messages nor holds them up.


# %% nbgrader={"grade_id": "replay", "solution": true}
def replay(records, per_node, inside, across):
    """Return the seconds until the last rank has finished its record."""

    ### BEGIN SOLUTION
    def seconds(ranks, nbytes):
        alpha, beta = inside if len({rank // per_node for rank in ranks}) == 1 else across
        return alpha + nbytes * beta

    now, place = [0.0] * len(records), [0] * len(records)
    free, arrivals = {}, {}
    moved = True
    while moved:
        moved = False
        for rank, record in enumerate(records):
            while place[rank] < len(record):
                kind, what, *size = record[place[rank]]
                if kind == "compute":
                    now[rank] += what
                elif kind == "send":
                    link = rank, rank // per_node == what // per_node
                    begin = max(now[rank], free.get(link, 0.0))
                    free[link] = begin + seconds((rank, what), size[0])
                    arrivals.setdefault((rank, what), []).append(free[link])
                elif kind == "recv":
                    if not arrivals.get((what, rank)):
                        break  # the message has not been sent yet
                    now[rank] = max(now[rank], arrivals[what, rank].pop(0))
                else:
                    entries = [records[k][place[k]] for k in what if place[k] < len(records[k])]
                    if [entry[1] for entry in entries] != [what] * len(what):
                        break  # a rank of the group has not arrived yet
                    end = max(now[k] for k in what)
                    end += seconds(what, 2 * (len(what) - 1) / len(what) * size[0])
                    for k in what:
                        now[k] = end
                        place[k] += k != rank
                place[rank] += 1
                moved = True
    return max(now)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer to the prediction</summary>They are done after 2.3 s. The sum begins at 2 s, when
# rank 1 arrives. It takes 0.2 s for alpha, and 0.1 s for 2(n−1)/n · 100 kB = 100 kB.</details>
# <details><summary>Hint: ranks that wait</summary>Let the ranks run one after another, each as far as it can,
# and repeat this as long as any rank moves. A rank stops before a receive whose message has not been sent
# yet, and before a sum whose members have not all arrived.</details>

# %% nbgrader={"grade_id": "replay_check", "points": 0}
# Extra credit, 6 points
report = check("10_four_dimensions/replay", replay)
### BEGIN HIDDEN TESTS
report = check("10_four_dimensions/replay", replay, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** The reference's replay takes the ledger of a run as its record. From a run *without* emulated
# wires, it predicts how long section 5's steps would take on such wires. Then the cell runs the steps on
# these wires. The alphas are five times as long as in section 5, so that a busy machine hardly matters. The
# cell takes half a minute.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def steps(sizes):
    for _ in range(3):
        one_step(sizes)


def between_barriers(ledger, wires):
    """Return the seconds between the two barriers of the fastest step, on the replay's clock."""
    from course_lib.planning.replay import replay as rerun

    return min(rerun(ledger, wires).spans()[::2])


def slept(ledger):
    """Return the seconds between the two barriers of the fastest step, in a real run."""
    calls = [
        [operation.issued + operation.blocked for operation in ledger.operations(rank, "barrier")]
        for rank in range(ledger.world_size)
    ]
    spans = [[b - a for a, b in itertools.pairwise(times)] for times in calls]
    return min(max(each) for each in list(zip(*spans, strict=True))[::2])


wires = Cluster(8, 2, gpu("A100"), Wire("inside", 100e6, 5e-3), Wire("across", 10e6, 50e-3))
for order in (("pp", "dp", "tp"), ("tp", "dp", "pp")):
    sizes = dict.fromkeys(order, 2)
    plain = launch(steps, sizes, world_size=8, backend="gloo").ledger  # wires also use gloo
    felt = launch(steps, sizes, world_size=8, wires=wires).ledger
    predicted, measured = between_barriers(plain, wires), slept(felt)
    print(f"{' x '.join(order)}: computed {predicted:.2f} s, measured {measured:.2f} s")

# %% [markdown]
# The ratio of the two orders' times is nearly the same, computed or measured. The compute between the
# operations is taken from the record, and its time varies if the machine is busy.
#
# **A thousand GPUs.** All ranks of a stage do the same work, so the clock has to replay just one rank per
# stage, even for 1,024 GPUs. The cell replays section 5's step on pp 2, dp 2 and tp 2 as if its groups had
# the sizes pp 2, dp 64 and tp 8 on A100s. It multiplies the bytes of tp and pp by 1,500 (which makes the
# stream 25 MB, half of GPT-3's stream), and leaves out the compute.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.planning import Layout
from course_lib.planning.replay import pipeline_seconds, scaled
from course_lib.planning.roofline import Work
from course_lib.planning.topology import a100_cluster

target = Layout({"pp": 2, "dp": 64, "tp": 8})
recorded = Layout({"pp": 2, "dp": 2, "tp": 2})
ledger = launch(one_step, CUBE, world_size=8, backend="gloo").ledger  # only its bytes matter
plain = Record(8, [step_of(ledger.operations(rank)) for rank in range(8)])
for order in (("pp", "dp", "cp", "tp"), ("tp", "pp", "dp", "cp")):
    factors = {"tp": 1500, "pp": 1500}
    again = scaled(plain, recorded, target.ordered(*order), a100_cluster(1024), factors, compute=0)
    print(f"{' x '.join(order)}: {again:.3f} s of communication")

# %% [markdown]
# Moving tp to the front makes the communication take six times as long.
#
# **Long pipelines.** 64 stages and 512 microbatches make 65,536 actions, which the simulator of notebook 07
# handles in a few seconds. The 1,008B row of table 1 has this shape, and section 7's formula differs from the
# simulation by 1 %.

# %% tags=["skip-in-grading"]
trillion = GPTConfig(51_200, 2048, 128, 160, 25_600)
long = Layout({"pp": 64, "dp": 6, "tp": 8})
simulated = pipeline_seconds(trillion, long, 3072, a100_cluster(3072), Work(0.63))
print(f"simulated:       {simulated:.1f} s")
if ready(step_seconds):
    layout = {**LAYOUT, "pp": 64, "dp": 6, "zero": 0, "recompute": "full", "sequence": False}
    print(f"by your formula: {step_seconds(trillion, layout, 3072, A100, SELENE, 0.63):.1f} s")

# %% [markdown]
# <details><summary>One alpha for each round of a sum?</summary>If your <code>replay</code> counts one alpha
# for <i>each</i> of the 2(n−1) rounds of a sum, the check names the mistake. NCCL's ring takes all these
# alphas, but the emulated wires count only one. A model has to count in the same way as the measurement it is
# compared with.</details>
#
# **Question.** The clock needs only one rank of each stage. Which fault of a real cluster can it never show?
#
# <details><summary>Answer</summary>It can never show a straggler (a rank that is slower than the others),
# because it assumes that all ranks of a stage are equally fast. The model of section 7 assumes this as well,
# which is one reason for its errors in MegaScale's last two rows.</details>

# %% [markdown]
# ## What you have built
#
# You have built a training step over four axes, and the norm of a gradient that no rank holds. The step's
# gradients on a mesh and in one process agree to 15 digits. You have also built a model of a cluster in four
# functions. With one constant, fitted to one published step, the model is off by at most 7.2 % on the ten
# steps of table 1.
#
# | axis | cuts | sends | can hide its messages |
# |---|---|---|---|
# | tp | layers | most, four sums per layer and microbatch | no, so it gets the fastest link |
# | cp | sequences | keys and values, around a ring | behind attention |
# | pp | the stack of layers | least, M per microbatch to a neighbour | behind other microbatches |
# | dp | rows | the gradients, once per step | behind backward |
#
# <details><summary>In the lectures</summary>Lecture 001 trains GPT-3 as 8 × 16 × 8, but OpenAI has published
# no layout. NVIDIA measured a 175B-parameter model with t = 8 and p = 12 (Narayanan et al., table
# 2).</details>
#
# **Read on.**
# - Narayanan et al. (2021), *Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM*. §3 explains the placement of axes, and table 1 lists the measured steps.
# - Llama Team (2024), *The Llama 3 Herd of Models*. §3.3.2 describes four axes on 16,384 GPUs.
# - Jiang et al. (2024), *MegaScale*, describes the stragglers your model leaves out.
# - Austin et al. (2025), [*How to Scale Your Model*](https://jax-ml.github.io/scaling-book), explains meshes
#   and rooflines for TPUs.
# - `course_lib/mesh/step.py` combines all axes in one file, which you can compare with your step.
#   `course_lib/mesh/stages.py` cuts the model.

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("10_four_dimensions")
