# %% [markdown]
# # 04 · ZeRO
#
# **Which of the N copies of everything did we need?**
#
# Each of eight GPUs trains a replica of a 7B model (notebook 03). In mixed precision with Adam, a GPU holds
# 16 bytes for every parameter: 2 for the weight, 2 for its gradient and 12 for the optimizer's state. For 7B
# parameters this makes 112 GB, but an H100 has only 80 GB. So the model does not fit, and eight more GPUs do
# not help, because each of them would need 112 GB again.
#
# But the eight copies are identical. So in this notebook you keep each part once instead of eight times,
# first the optimizer's state, then the gradients, then the weights. These three steps bring the memory per
# GPU from 112 GB to 38.5, then 26.25, and finally 14 GB.
#
# | | |
# |---|---|
# | you will build | flat shards; two sharded optimizers (ZeRO-1 and ZeRO-2); a unit and a module with sharded weights (ZeRO-3) |
# | you need | reduce-scatter and all-gather (notebook 02); replicas and gradient hooks (notebook 03) |
# | time | three hours, with a break after §4; the *optional* §6, §7 and §11 take half an hour more, and §9 and §10 an hour and a half |
# | points | 60, and 8 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. On several GPUs the same code runs over NCCL, and the section *On your GPUs* measures what a CPU can't show |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 What a rank keeps | 17 | 6 | notebook 03 |
# | 2 Flat shards | 15 | 6 | |
# | 3 ZeRO-1: the optimizer's state | 35 | 14 | 2 |
# | 4 ZeRO-2: the gradients | 35 | 12 | 3 |
# | 5 ZeRO-3: the weights | 65 | 16 | 2, 4 |
# | 6 Offload: memory that is cheaper *(optional)* | 5 | | 3 |
# | 7 DeepSpeed's configuration, line by line *(optional)* | 5 | | all |
# | 8 Questions | 10 | 6 | 1, 3, 4, 5 |
# | 9 Optional: states in files | 30 | 3 extra | 3, 6 |
# | 10 Optional: an optimizer that needs whole matrices | 60 | 2 + 3 extra | 4 |
# | 11 Optional: next to PyTorch, and on the wire | 20 | | 3, 5 |

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | N | the number of ranks. In data parallelism, each rank has its own part of the batch |
# | P | the number of the model's parameters |
# | K | the number of microbatches whose gradients add up before a step |
# | model states | weights, gradients and the optimizer's state. ZeRO shards these, but not the activations |
# | replicated | every rank has the full tensor, with the same values |
# | partial | every rank has a tensor of full size, but this tensor is only the rank's own term of a sum over the ranks. After backward, the gradients are partial |
# | sharded | every rank has one of N equal parts of the tensor, its *shard*; rank r *owns* the r-th |
# | master copy | the float32 copy of the weights, which the optimizer updates if the model's own weights are in 16 bits |
# | unit | parameters that are gathered and freed together (here, a block) |
#
# Traffic is counted in *units of traffic*, which are different from the *unit* in this table. One unit of
# traffic is **(N−1)/N · P** elements, the amount each rank sends in one reduce-scatter or one all-gather of P
# elements:
#
# | collective | before | after | sent |
# |---|---|---|---|
# | reduce-scatter | partial | sharded | 1 |
# | all-gather | sharded | replicated | 1 |
# | all-reduce | partial | replicated | 2, since it consists of a reduce-scatter and an all-gather (notebook 02) |

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import contextlib
import gc
import json
import os
import struct
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

from course_lib import check, device, launch
from course_lib.pictures.colours import BACKWARD, FAINT, FORWARD, INK, WEIGHT_GRADIENT, picture
from course_lib.scorecard import Row, Scorecard, costs
from course_lib.unfinished import said, try_it

warnings.simplefilter("ignore", FutureWarning)  # of two collectives that PyTorch 2.13 renames
Group = dist.ProcessGroup | None  # None is the group of all ranks
WIDTH, DEPTH = 128, 8
P = DEPTH * WIDTH * (WIDTH + 1)  # parameters of the model below

# %% [markdown]
# The next cell holds the tools of this notebook, and you don't have to read it now. `train` trains `Network`,
# a small model with its layers in `blocks`, for a few steps on every rank. Several times in each step, it
# measures how many bytes of tensors the rank holds. `most` is the largest of these measurements, and
# `memory_picture` draws the measurements of the last step. `sent` reads from the ledger how much a rank sent
# in that step. `show` prints the bytes held next to the bytes we expect, and then the traffic of a step.
# `in_buckets` and `in_units` group parameters for §4 and §5, and `scorecard` makes the table at the end.


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Network(nn.Module):
    def __init__(self, seed, width=WIDTH, depth=DEPTH):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def held():
    """Return the bytes of the tensors on this rank that did not exist before the training."""
    time.sleep(0.003)  # gloo's threads free the tensors of their last operation late
    storages = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            for tensor in (item, item.grad if item.is_leaf else None):
                if tensor is not None:
                    storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def train(make, steps=2, microbatches=1, samples=2):
    """Train the pair (model, optimizer) from `make(model)`,
    with different data and initial weights on every rank."""
    gc.collect()
    gc.freeze()  # existing tensors do not count
    rank = dist.get_rank()
    network, most = Network(seed=rank).to(device()), []
    model, optimizer = make(network)

    def look(block, args, output):
        most.append(held())
        if output.requires_grad:
            output.register_hook(lambda grad: most.append(held()))

    # make's hooks run first, so `look` sees a gathered block in backward
    for block in network.blocks:
        block.register_forward_hook(look)
    generator = torch.Generator().manual_seed(100 + rank)
    data = [torch.randn(2, samples, WIDTH, generator=generator) for _ in range(microbatches)]
    for _ in range(steps):
        dist.barrier()  # `sent` counts from the last barrier on
        with costs() as spent:
            for x, y in data:
                loss = nn.functional.mse_loss(model(x.to(device())), y.to(device())) / microbatches
                loss.backward()
                del loss
            most.append(held())
            optimizer.step()
            optimizer.zero_grad()
    looks = [*most[-2 * DEPTH - 1 :], held()]  # forward, backward, after backward, after the step
    peaks = {"after backward": looks[-2], "after step": looks[-1], "most": max(most)}
    return {**peaks, "looks": looks, "flops": spent.flops}


def sent(run, rank=0, since=-1):
    """Return the bytes a rank sent after barrier `since` (-1 is the last),
    in units of traffic, (N-1)/N P float32 elements."""
    operations = run.ledger.operations(rank)
    begin = [i for i, operation in enumerate(operations) if operation.op == "barrier"][since]
    n = run.ledger.world_size
    return sum(operation.bytes_sent for operation in operations[begin:]) / ((n - 1) / n * 4 * P)


def show(name, make, expected, world_size=4, **options):
    """Run `train`, and print the measured and the expected bytes per parameter,
    and the traffic of a step."""
    run = try_it(train, make, world_size=world_size, **options)
    if run:
        text = ", ".join(f"{when} {run[0][when] / P:.2f}" for when in expected)
        said = ", ".join(f"{value:.2f}" for value in expected.values())
        print(
            f"{name}: bytes per parameter {text} (expected {said}); a step sends {sent(run):.2f} units"
        )
    return run


def in_buckets(params, bucket_bytes):
    """Return the trained parameters in lists of up to `bucket_bytes`, from last to first."""
    buckets, room = [], 0
    for param in reversed([param for param in params if param.requires_grad]):
        if param.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(param)
        room -= param.nbytes
    return buckets


def in_units(module):
    """Return a pair for each unit, the module to which it belongs and its parameters."""
    owner = {}
    for block in dict.fromkeys(module.blocks):  # each block once
        for param in block.parameters():
            owner[param] = module if param in owner else block
    inside = {inner for block in module.blocks for inner in block.modules()}
    for outside in set(module.modules()) - inside:
        owner |= dict.fromkeys(outside.parameters(recurse=False), module)
    members = {}
    for param in module.parameters():
        members.setdefault((owner[param], param.requires_grad), []).append(param)
    return [(where, params) for (where, _), params in members.items()]


def memory_picture(runs):
    """Draw the bytes per parameter at every measurement of the last step on rank 0,
    with one panel for each run of `train`."""
    runs = {name: run for name, run in runs.items() if run}  # without stages that are not written
    figure = picture(9.0, 2.2)
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        heights = [look / P for look in run[0]["looks"]]
        axes.bar(range(DEPTH), heights[:DEPTH], color=FORWARD, label="forward")
        back = {"color": BACKWARD, "hatch": "///", "edgecolor": "white", "label": "backward"}
        axes.bar(range(DEPTH, 2 * DEPTH), heights[DEPTH:-2], **back)
        axes.bar(
            (2 * DEPTH, 2 * DEPTH + 1),
            heights[-2:],
            color=INK,
            label="after backward, after the step",
        )
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xticks([])
    panels[0].set_ylim(0, 17)
    panels[0].set_ylabel("bytes per parameter", fontsize=9)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, -0.08), "ncols": 3, "frameon": False}
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, **place)
    return figure


class Replicas(torch.optim.AdamW):
    """Averages all gradients and steps on every rank, as in notebook 03 but without overlap."""

    def step(self):
        for param in self.param_groups[0]["params"]:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        super().step()


def scorecard(stages):
    """Return the costs of a step on four ranks, for replicas and for each stage that is written."""
    makes = {"replicas": lambda model: (model, Replicas(model.parameters())), **stages}
    runs = {name: try_it(train, make) for name, make in makes.items()}
    alone = launch(train, replicas, world_size=1, samples=8)[0]["flops"]
    rows = [
        Row(
            strategy=name,
            ranks=4,
            flops=sum(cost["flops"] for cost in run),
            peak_bytes=max(cost["most"] for cost in run),
            bytes_sent=sent(run) * 3 / 4 * 4 * P,
        )
        for name, run in runs.items()
        if run
    ]
    return Scorecard(rows, unit=4 * P, flops_alone=alone)


# bytes per parameter after backward, on 4 ranks
FLOAT32 = {0: 16.0, 1: 8 + 12 / 4, 2: 4 + 16 / 4, 3: 16 / 4}
LOOKS = {
    "weights": {"color": FORWARD, "edgecolor": "white"},
    "gradients": {"color": BACKWARD, "hatch": "///", "edgecolor": "white"},
    "state": {"color": WEIGHT_GRADIENT, "hatch": "...", "edgecolor": "white"},
}


def stages_picture(runs):
    """Draw the bytes of each stage for 7B on 8 GPUs, and the measured runs next to the formula."""
    figure = picture(9.0, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for stage in range(4):
        parts = (
            2 / (8 if stage == 3 else 1),
            2 / (8 if stage >= 2 else 1),
            12 / (8 if stage else 1),
        )
        begin = 0.0
        for part, (name, look) in zip(parts, LOOKS.items(), strict=True):
            left.barh(stage, 7 * part, left=begin, **look, label=name if stage == 0 else "")
            begin += 7 * part
        yours = said(memory_per_rank, 7e9, 8, stage) / 1e9
        left.text(begin + 1, stage, f"{yours:g} GB", va="center", fontsize=9)
        right.barh(stage, FLOAT32[stage], color=FAINT, label="formula" if stage == 0 else "")
        if runs.get(stage):
            units = runs[stage][0]["after backward"] / P
            right.plot(units, stage, "o", color=INK, label="measured" if stage == 0 else "")
            right.text(units + 0.5, stage, f"{units:.2f}", va="center", fontsize=9)
    left.axvline(80, color=INK, linestyle=":", linewidth=1, label="an H100's 80 GB")
    left.set_xlabel("GB per GPU", fontsize=9)
    right.set_xlabel("bytes per parameter, after backward", fontsize=9)
    left.set_yticks(range(4), ["replicas", "ZeRO-1", "ZeRO-2", "ZeRO-3"])
    right.set_yticks([])
    left.set_xlim(0, 132)
    right.set_xlim(0, 19.5)
    for axes in (left, right):
        axes.invert_yaxis()
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
        axes.legend(**place, ncols=4, fontsize=8, columnspacing=1.2)
    return figure


# %% [markdown]
# ## 1 · What a rank keeps
#
# | | |
# |---|---|
# | you will write | `memory_per_rank(params, n, stage, offload=False)` |
# | builds on | notebook 03 |
# | time | 17 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 6 |
#
# Where do the 16 bytes per parameter come from? Weights and gradients in 16 bits take 2 + 2 bytes. Adam keeps
# a mean m and a variance v in float32, which take 4 + 4. Adam also needs the weights themselves in float32,
# because in bf16 a change of 1e-5 to a weight of 1 would be rounded away. This *master copy* takes 4 more.
# Plain float32 training takes 4 for weights, 4 for gradients, and 8 for m and v. The total is 16 again, but
# only by coincidence.
#
# <details><summary>The 16 bytes in libraries</summary>DeepSpeed and Megatron-LM take 2 + 2 + 12, or 2 + 4 +
# 12 if gradients add up in float32. PyTorch's <code>autocast</code> takes 4 + 4 + 8, because weights and
# gradients stay in float32 there. You will also read that the optimizer's state takes 4 or 8 bytes per
# parameter. Such figures count only m and v, in 16 bits or in float32, without the master copy. So always say
# which parts you count.</details>
#
# The cell trains a small model as a single replica, with plain AdamW in float32 on one rank:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def replicas(model):
    return model, torch.optim.AdamW(model.parameters())


run = launch(train, replicas, world_size=1)
measured = {0: run}  # the runs of stages 1 to 3 follow
print(f"{P:,} parameters")
for when in ("after backward", "after step"):
    print(f"{when:15} {run[0][when]:10,} bytes, {run[0][when] / P:5.2f} per parameter")

# %% [markdown]
# After backward, the rank holds 16 bytes for each parameter. After the step it holds 12, because the
# gradients have been freed. (The extra 0.02 are inputs and targets. Backward has already freed the
# activations.)
#
# **Predict.** ZeRO shards in three stages. Each stage shards one more part of the model states, so that a
# rank keeps only 1/N of this part:
#
# | stage | sharded | replicated |
# |---|---|---|
# | 0, replicas | nothing | weights, gradients, state |
# | 1 | the optimizer's state (master copy, m, v) | weights, gradients |
# | 2 | state, gradients | weights |
# | 3 | state, gradients, weights | nothing |
#
# With `offload`, some of the tensors move to the memory of the host (the computer around the GPU), so they no
# longer take memory on the GPU. The optimizer's state moves in every stage. The gradient shard also moves
# from stage 2 on (as in ZeRO-Offload), and the shard of the weights moves in stage 3 (as in ZeRO-Infinity).
# Count the bytes that stay on the GPU between backward and step.

# %%
WEIGHTS, GRADIENTS, STATES = 2, 2, 12  # bytes per parameter


# %% nbgrader={"grade_id": "memory_per_rank", "solution": true}
def memory_per_rank(params: float, n: int, stage: int, offload: bool = False) -> float:
    """Return the bytes of model states on each of n ranks, for mixed-precision Adam.

    The total is 16 bytes per parameter. params and n can be any numbers, since nothing is
    rounded or padded. stage: 0 (replicas), 1, 2 or 3. offload: as explained above. The check
    sets it from stage 1 on.
    """
    ### BEGIN SOLUTION
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage is 0 (replicas), 1, 2 or 3, not {stage!r}")
    if n < 1 or params < 0:
        raise ValueError(f"n must be at least 1 and params at least 0, not {n} and {params}")
    states = STATES / n if stage >= 1 else STATES
    gradients = GRADIENTS / n if stage >= 2 else GRADIENTS
    weights = WEIGHTS / n if stage >= 3 else WEIGHTS
    if offload:
        states = 0
        gradients = 0 if stage >= 2 else gradients
        weights = 0 if stage >= 3 else weights
    return float(params * (weights + gradients + states))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>There are three numbers, 2, 2 and 12. The 12 for the state is divided by n
# from stage 1 on, the 2 for the gradient from stage 2 on, and the 2 for the weight in stage 3.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "memory_prediction_check", "points": 6}
report = check("04_zero/memory_prediction", memory_per_rank)
### BEGIN HIDDEN TESTS
report = check("04_zero/memory_prediction", memory_per_rank, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** The cell uses your function to print the memory per GPU in each stage, for 7B parameters on 8
# GPUs. Compare its last line with figure 1 of the ZeRO paper, which shows 120, 31.4, 16.6 and 1.9 GB.

# %% tags=["skip-in-grading"]
with contextlib.suppress(NotImplementedError):  # nothing is printed before you have written it
    for stage in range(4):
        there = memory_per_rank(7e9, 8, stage) / 1e9
        away = f"{memory_per_rank(7e9, 8, stage, True) / 1e9:6.2f} GB" if stage else "     -"
        print(f"stage {stage}: {there:7.2f} GB, with offload {away}")
    figure_1 = (f"{memory_per_rank(7.5e9, 64, stage) / 1e9:.1f}" for stage in range(4))
    print("7.5B on 64 GPUs, stages 0 to 3:", ", ".join(figure_1), "GB")

# %% [markdown]
# Stage 1 already saves 73.5 of the 98 GB saved by stage 3. But in stages 1 and 2, every GPU still holds all
# of the weights. ZeRO-2 is sometimes recommended for models of up to 70B, although the weights of a 70B model
# take 140 GB on every GPU, however many GPUs there are.
#
# <details><summary>In the lectures</summary>Lecture 000 gives "~28 GB" for the optimizer state of 7B, the
# size of m and v in 16 bits. Lecture 002 counts 8 bytes per parameter, without the master copy. Lecture 001
# counts the 12 bytes, but presents 2 + 2 + 12 as PyTorch's numbers. In one place it calls the 12 bytes "fp32
# momentum + variance", although momentum and variance take only 8. The lecture shows parts of the table for
# 7B, and recommends "FSDP or ZeRO-2" for 10 to 70B. For one GPU without parallelism it says "&lt;10B", but 80
# GB hold the model states of only 5B parameters. For 175B on 64 GPUs, its 5.5 GB are only the weights. The
# lecture adds 10 to 50 GB of activations and concludes "out of memory", although even this total would fit
# into 80 GB. In fact, each GPU holds 16P/N = 43.75 GB of model states, plus the activations, plus one
# gathered block.</details>

# %% [markdown]
# ## 2 · Flat shards
#
# | | |
# |---|---|
# | you will write | `flatten_and_shard(params, n)` |
# | time | 15 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 6 |
#
# How do you cut a model into N equal parts? Whole layers are too unequal, because an embedding can be half of
# a small model. So write all parameters into one row,
# append zeros until N divides the length of the row, and cut the row into N shards. A cut can fall inside a
# parameter. This does no harm, because Adam and SGD treat every element separately.
#
#     parameters   [ a a a a a | b b | c c c c ]
#     4 ranks      [ a a a | a a b | b c c | c c 0 ]      one zero of padding
#
# **Predict.** For 14 parameters and 4 ranks, how long is a shard, and how many zeros are there? How many
# zeros can there be at most?
#
# <details><summary>Answer</summary>A shard has 4 elements, and there are 2 zeros. There can be at most N − 1
# zeros.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "flatten_and_shard", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def padded(numel: int, n: int) -> int:
    """Return the smallest multiple of n that is not below numel."""
    return -(-numel // n) * n


### END SOLUTION


def flatten_and_shard(params, n: int) -> list[torch.Tensor]:
    """Return the elements of `params` in a row, cut into n flat shards of the same size,
    with zeros at the end.

    params: tensors of any shapes, contiguous or not, of one dtype. They do not change. Order
    a tensor's elements as reshape(-1) does. Return n tensors of ceil(P / n) elements, of the
    same dtype. Detach them, so that no gradient flows back from them.
    """
    ### BEGIN SOLUTION
    tensors = [param.detach() for param in params]
    if n < 1:
        raise ValueError(f"n is a number of ranks, at least 1, not {n}")
    if not tensors:
        raise ValueError("params is empty, so there is nothing to cut into shards")
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) > 1:
        kinds_named = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(
            f"params are {kinds_named}, but a flat buffer has one dtype and one device. Call once for each kind."
        )
    total = sum(tensor.numel() for tensor in tensors)
    flat = tensors[0].new_zeros(padded(total, n))
    torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat[:total])
    return list(flat.tensor_split(n)) if total else [flat] * n
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: round up</summary><code>-(-total // n)</code> is total / n, rounded up. Make a
# row of n times that length with <code>new_zeros</code>, copy the parameters into it, and then cut it
# with <code>chunk</code> or <code>tensor_split</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "flatten_and_shard_check", "points": 6}
report = check("04_zero/flatten_and_shard", flatten_and_shard)
### BEGIN HIDDEN TESTS
report = check("04_zero/flatten_and_shard", flatten_and_shard, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# Padding costs little. For example, a 7B model on 1,024 ranks has at most 1,023 zeros, which take 2 kB in
# bf16. But it costs more if you cut *small* tensors separately for many ranks. If a bias of 100 elements is
# cut for 1,024 ranks, its shards have 1,024 elements in all.
#
# **Break it.** Leave out the zeros, and cut 5 elements for 2 ranks with `tensor_split`. Which error does the
# collective raise?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def uneven():
    whole = torch.arange(5.0, device=device())
    own = whole.tensor_split(dist.get_world_size())[dist.get_rank()].clone()
    dist.reduce_scatter_tensor(own, whole)
    return own.tolist()


try_it(uneven, world_size=2)

# %% [markdown]
# **In production.** FSDP1 calls such a row a `FlatParameter`, and DeepSpeed calls it a `flat` partition.
# FSDP2 (`fully_shard`) cuts each parameter along its first dimension instead. This costs a little more
# padding, and one more copy between the parameters and the collective's buffer. In return, every shard is
# still a parameter with a name.
#
# <details><summary>In the lectures</summary>Lecture 001 describes FSDP with "GPU i holds shard i (e.g. layers
# 0-3 of 32)". But FSDP cuts each block separately, as you will in §5, so every GPU holds a part of every
# block. Putting whole layers on each GPU is pipelining (notebook 07).</details>

# %% [markdown]
# ## 3 · ZeRO-1: the optimizer's state
#
# | | |
# |---|---|
# | you will write | `Zero1Optimizer(params, optimizer_cls, **defaults)` |
# | builds on | §2 |
# | time | 35 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 14 |
#
# The next picture shows the memory used by the replica of §1 in one training step. Each bar shows the bytes
# of all tensors on the rank, measured when forward leaves one of the eight blocks, when backward enters one
# of them, after backward, or after the step.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
memory_picture({"replicas": measured[0]})

# %% [markdown]
# Of the 16 bytes per parameter, 4 are weights, and 4 are gradients, which backward makes and `zero_grad`
# frees. The other 8 are Adam's state, which takes up memory all the time, although only the step uses it.
#
# So let each rank keep the state for its own shard only, and take the step only for this shard. For this
# step, the rank needs the mean gradient of *its shard*. Afterwards, the other ranks need the new weights of
# the shard.
#
# | | from | to | sent |
# |---|---|---|---|
# | 1. reduce-scatter the gradients. Rank r gets shard r of their sum, and divides it by N | partial | sharded | 1 |
# | 2. take the optimizer's step, on the shard | sharded | sharded | 0 |
# | 3. all-gather the shards. Then every rank has all new weights | sharded | replicated | 1 |
#
# Together, these steps send 2 units of traffic, as much as the all-reduce of replicas. So you save the memory
# without extra traffic.
#
# With K microbatches, the traffic is still 2 units, because the partial gradients add up on each rank, and
# only the step sends them.
#
# **Predict.** ZeRO-1 is often drawn with another workflow, which *all-reduces* the gradients, takes the step,
# and all-gathers the parameters. How many times as many bytes does this other workflow send as the workflow
# above? Write this number down as `answer_2` in §8.
#
# **Build.** Seen from outside, your class is an optimizer (`step`, `zero_grad`). Inside, it has an ordinary
# optimizer, which knows only a single parameter, the shard. The next cell gives you three functions. The
# given lines of the constructor send the first rank's parameters to all ranks, and list the trained
# parameters in `self.params`. You make the shard and the inner optimizer, and write `step`.
#
# - Frozen parameters (`requires_grad` is False) belong to no shard, and a step sends nothing for them.
# - A rank does not have to use every part of the model, so a gradient can be missing. Count a missing
#   gradient as zeros.
# - After the step, keep no large tensor except the shard and the inner optimizer's state. Free the
#   shard's gradient as well.


# %%
def flat_gradient(params, n):
    """Return the gradients of `params` in one row, padded for n ranks as in `flatten_and_shard`.
    A missing gradient counts as zeros."""
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
    return torch.cat(flatten_and_shard(grads, n))


def views(row, params):
    """Return, for each parameter, a view of its part of the row, in the parameter's shape."""
    pieces, begin = [], 0
    for param in params:
        pieces.append(row[begin : begin + param.numel()].view(param.shape))
        begin += param.numel()
    return pieces


@torch.no_grad()
def gather_into(params, shard, group):
    """All-gather the shards, and write them into the parameters they were cut from."""
    whole = shard.new_empty(shard.numel() * dist.get_world_size(group))
    dist.all_gather_into_tensor(whole, shard.detach(), group=group)
    for param, new in zip(params, views(whole, params), strict=True):
        param.copy_(new)


# %% nbgrader={"grade_id": "zero1_optimizer", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def reduce_scatter_mean(whole, group):
    """Return this rank's shard of the mean of all ranks' `whole`."""
    shard = whole.new_empty(whole.numel() // dist.get_world_size(group))
    dist.reduce_scatter_tensor(shard, whole, group=group)
    return shard.div_(dist.get_world_size(group))


### END SOLUTION


class Zero1Optimizer:
    """Any elementwise torch optimizer, with its state sharded over the ranks of `group`.

    params: all parameters of a model. They get the values of the first rank.
    optimizer_cls, **defaults: the optimizer and its arguments, such as torch.optim.AdamW, lr=1e-3.
    A step sends 2 (N-1)/N of the parameters, however many backwards came before it.
    """

    def __init__(self, params, optimizer_cls, *, group: Group = None, **defaults):
        params = list(params)  # model.parameters() is an iterator, which can be used only once
        for param in params:
            dist.broadcast(param.detach(), group_src=0, group=group)
        self.group, self.n = group, dist.get_world_size(group)
        self.params = [param for param in params if param.requires_grad]
        ### BEGIN SOLUTION
        own = flatten_and_shard(self.params, self.n)[dist.get_rank(group)]
        self.shard = nn.Parameter(own.clone())  # a view would keep the whole row alive
        self.optimizer = optimizer_cls([self.shard], **defaults)
        ### END SOLUTION

    def step(self):
        """Average gradients, update this rank's shard, and give all ranks the new parameters."""
        ### BEGIN SOLUTION
        self.shard.grad = reduce_scatter_mean(flat_gradient(self.params, self.n), self.group)
        self.optimizer.step()
        self.shard.grad = None
        gather_into(self.params, self.shard, self.group)
        ### END SOLUTION

    def zero_grad(self):
        """Set the gradients of all parameters to None."""
        for param in self.params:
            param.grad = None


# %% [markdown]
# <details><summary>Hint: the gradient of the shard</summary>The row of all gradients is <code>whole =
# flat_gradient(self.params, self.n)</code>. Call <code>dist.reduce_scatter_tensor(own, whole,
# group=self.group)</code> with a new tensor <code>own</code> of the shard's size, and then divide
# <code>own</code> by N.</details>
# <details><summary>Hint: the inner optimizer</summary>Write <code>self.shard =
# nn.Parameter(own.clone())</code> and <code>optimizer_cls([self.shard], **defaults)</code>. Before the inner
# optimizer takes its step, give it the mean gradient: <code>self.shard.grad = ...</code>. The inner optimizer
# never sees a parameter of the model.</details>
#
# **Check.** The check compares your parameters with the parameters of a single process that trains on all
# data, and your traffic with the formula. It also limits the memory of each rank's process. In the check's
# messages, P stands for the bytes of the parameters in float32. The runs that measure memory use SGD with
# momentum. So between steps, the weights take P, and the shard and its momentum take 2P/N. If you keep the
# shard's gradient, it takes another P/N. After backward, the full gradients take another P.

# %% nbgrader={"grade_id": "zero1_optimizer_check", "points": 14}
report = check("04_zero/zero1_optimizer", Zero1Optimizer)
### BEGIN HIDDEN TESTS
report = check("04_zero/zero1_optimizer", Zero1Optimizer, cases="hidden")
### END HIDDEN TESTS
report.points(14)

# %% [markdown]
# **Measure.** The cell runs your optimizer on four ranks, with AdamW in float32. We expect 4P for weights, 4P
# for gradients, and 12P/N for the shard, m and v. (The shard is a copy of the rank's part of the weights. In
# mixed precision this copy *is* the float32 master copy, so you have already built it.)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def zero1(model):
    return model, Zero1Optimizer(model.parameters(), torch.optim.AdamW)


measured[1] = show("ZeRO-1", zero1, {"after backward": 8 + 12 / 4, "after step": 4 + 12 / 4})

# %% [markdown]
# **In production.** DeepSpeed's stage 1 and Megatron-LM's distributed optimizer reduce-scatter the gradients,
# as your optimizer does. But PyTorch's `ZeroRedundancyOptimizer` follows the other workflow. It works under
# `DistributedDataParallel`, which averages the gradients *during* backward. Your reduce-scatter has to wait
# until the step, but in ZeRO-2 it will run during backward too. (§11 measures PyTorch's optimizer.)
#
# <details><summary>In the lectures</summary>Lecture 001 draws ZeRO-1 with the all-reduce, but lecture 004
# draws it with the reduce-scatter.</details>

# %% [markdown]
# ## 4 · ZeRO-2: the gradients
#
# | | |
# |---|---|
# | you will write | `Zero2Optimizer(params, optimizer_cls, *, bucket_bytes, **defaults)` |
# | builds on | §3; notebook 03 §3, buckets and hooks |
# | time | 35 minutes |
# | difficulty, importance | 4 and 4 of 5 |
# | points | 12 |
#
# The picture shows your ZeRO-1 on four ranks, next to the replica:

# %% tags=["nbval-ignore-output", "skip-in-grading"]
memory_picture({"replicas": measured[0], "ZeRO-1": measured.get(1)})

# %% [markdown]
# In forward, the bars of ZeRO-1 are lower, because the shard, m and v take only 12/4 bytes per parameter. But
# in backward, the bars still climb by 4 bytes, from 7 to 11. Each rank keeps all gradients until the step,
# although its optimizer updates only 1/N of the parameters. So send the gradients while backward is still
# running. As soon as the gradients of a few neighbouring parameters (a *bucket*) are ready, reduce-scatter
# them, keep your own shard, and free the rest. Then the gradients never all exist at the same time.
#
# **Predict.** In mixed precision, how many bytes does a rank now keep after backward? How high is the peak,
# with buckets of B bytes?
#
# <details><summary>Answer</summary>The weights are replicated, and the rest is sharded. So a rank keeps 2P +
# 14P/N bytes. At the peak, a rank also holds one or two buckets.</details>
#
# With K microbatches, gradients can't add up on a rank before they are sent, because no rank keeps full
# gradients. So the gradients of every microbatch are reduce-scattered. How many times as many bytes as ZeRO-1
# does ZeRO-2 then send? For K = 8, this number is `answer_3` in §8.
#
# **Build.** Each bucket has its own row, padding and shard, and the inner optimizer gets the list of shards.
# Backward runs from the last layer to the first, so the first bucket holds the last parameters. You write
# `send` and the rest of the hook `arrived`.
#
# Three rules make the result right on all ranks.
# 1. All ranks send the buckets *in the same order*. But gradients can arrive in different orders on different
#    ranks, and some might not arrive at all. So a bucket that is full before its turn has to wait.
# 2. When backward ends, `send_the_rest` sends the remaining buckets, with zeros for missing gradients. (If a
#    hook calls `after_backward(function)`, `function` is called when backward ends.)
# 3. The gradient shards of several backwards add up.
#
# In §5, a unit sends its gradients in the same way, so it pays to write a function that sends the gradients
# of a list of parameters.


# %%
def after_backward(function):
    """Call `function()` when the current backward is over.
    Use this in a hook of that backward."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


# %% nbgrader={"grade_id": "zero2_optimizer", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def add_mean(params, shard, group):
    """Add this rank's part of the mean gradient to `shard.grad`,
    and set the parameters' gradients to None."""
    whole = flat_gradient(params, dist.get_world_size(group))
    for param in params:
        param.grad = None
    mean = reduce_scatter_mean(whole, group)
    shard.grad = mean if shard.grad is None else shard.grad.add_(mean)


### END SOLUTION


class Zero2Optimizer:
    """Like Zero1Optimizer, but with gradients sharded as well.

    bucket_bytes: parameters are put into buckets of up to that many bytes, from the last to
    the first, and a larger parameter has its own bucket. After every backward, the gradients
    of the parameters are None, and this rank keeps its shards of their mean.
    A step after K backwards sends (K + 1) (N-1)/N of the parameters.
    """

    def __init__(
        self, params, optimizer_cls, *, bucket_bytes: int = 1 << 20, group: Group = None, **defaults
    ):
        params = list(params)
        for param in params:
            dist.broadcast(param.detach(), group_src=0, group=group)
        self.group, self.n = group, dist.get_world_size(group)
        self.buckets = in_buckets(params, bucket_bytes)  # from the last parameter to the first
        for bucket in self.buckets:
            for param in bucket:
                param.register_post_accumulate_grad_hook(self.arrived)
        rank = dist.get_rank(group)
        cut = (flatten_and_shard(bucket, self.n)[rank].clone() for bucket in self.buckets)
        self.shards = [nn.Parameter(own) for own in cut]  # one for each bucket
        self.optimizer = optimizer_cls(self.shards, **defaults)
        self.turn = None  # the index of the bucket to send next, or None between backwards

    def arrived(self, param):
        """Called when this parameter's gradient is complete. Which buckets can leave now?"""
        if self.turn is None:  # the first gradient of a backward
            self.turn = 0
            after_backward(self.send_the_rest)
        ### BEGIN SOLUTION
        while self.turn < len(self.buckets) and self.is_full(self.buckets[self.turn]):
            self.send()
        ### END SOLUTION

    def is_full(self, bucket):
        """Return whether all gradients of the bucket are ready."""
        return all(param.grad is not None for param in bucket)

    @torch.no_grad()
    def send(self):
        """Reduce-scatter the bucket whose turn it is, and give the turn to the next bucket."""
        ### BEGIN SOLUTION
        add_mean(self.buckets[self.turn], self.shards[self.turn], self.group)
        self.turn += 1
        ### END SOLUTION

    def send_the_rest(self):
        """Called when backward is over. Send the remaining buckets."""
        while self.turn < len(self.buckets):
            self.send()
        self.turn = None

    def step(self):
        """Update this rank's shards, and give all ranks the new parameters."""
        self.optimizer.step()
        for bucket, shard in zip(self.buckets, self.shards, strict=True):
            gather_into(bucket, shard, self.group)

    def zero_grad(self):
        """Set the gradients of all shards to None, because zeros would keep the memory."""
        self.optimizer.zero_grad()


# %% [markdown]
# <details><summary>Hint: send</summary>The row of a bucket is <code>flat_gradient(bucket, self.n)</code>. Set
# the gradients of the bucket's parameters to None. After the reduce-scatter, add this rank's part of the mean
# to the <code>.grad</code> of the bucket's shard. (This <code>.grad</code> might still be None.) Then give
# the turn to the next bucket.</details>
# <details><summary>Hint: the turn</summary>In the hook, <code>while</code> the bucket with the number
# <code>self.turn</code> is full, send it. After the last bucket, <code>self.turn</code> is
# <code>len(self.buckets)</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "zero2_optimizer_check", "points": 12}
report = check("04_zero/zero2_optimizer", Zero2Optimizer)
### BEGIN HIDDEN TESTS
report = check("04_zero/zero2_optimizer", Zero2Optimizer, cases="hidden")
### END HIDDEN TESTS
report.points(12)

# %% [markdown]
# **Measure.** The cell runs ZeRO-2 with one microbatch, and then ZeRO-1 and ZeRO-2 with four. In float32 we
# expect 4P + 16P/N bytes after backward. The 16 bytes are 4 for the gradient shard, 4 for the shard itself,
# and 8 for m and v.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def zero2(model, bucket_bytes=4 * WIDTH * (WIDTH + 1)):
    return model, Zero2Optimizer(model.parameters(), torch.optim.AdamW, bucket_bytes=bucket_bytes)


measured[2] = show("ZeRO-2", zero2, {"after backward": 4 + 16 / 4, "after step": 4 + 12 / 4})
_ = show("ZeRO-1, 4 microbatches", zero1, {"after backward": 8 + 12 / 4}, microbatches=4)
_ = show("ZeRO-2, 4 microbatches", zero2, {"after backward": 4 + 16 / 4}, microbatches=4)

# %% [markdown]
# With four microbatches, ZeRO-2 sends 5 units, but ZeRO-1 sends only 2. So ZeRO-2 pays with traffic for the
# memory it saves. If gradients must add up over many microbatches, as in pipelines (notebook 07), choose
# ZeRO-1.
#
# **Break it.** The cell breaks rule 1 with two ranks and two buckets. On rank 1, the gradients arrive in the
# opposite order, and the rank sends each bucket as soon as it is full. The buckets have different sizes here:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def in_order_of_arrival():
    buckets = [torch.ones(8, device=device()), torch.ones(4, device=device())]
    if dist.get_rank() == 1:
        buckets.reverse()
    for bucket in buckets:
        dist.reduce_scatter_tensor(torch.empty(len(bucket) // 2, device=device()), bucket)


try_it(in_order_of_arrival, world_size=2)

# %% [markdown]
# With buckets of *equal* size there would be no error, but the gradients of one layer would be added to the
# gradients of another. This is why DDP and FSDP also call their collectives in a fixed order.
#
# **In production.** DeepSpeed calls ZeRO-2 `"stage": 2`. The closest setting in FSDP is
# `reshard_after_forward=False`, which gathers weights once and keeps them for backward. (FSDP1 called this
# setting `SHARD_GRAD_OP`.) But unlike ZeRO-2, FSDP shards the weights between steps.
#
# <details><summary>In the lectures</summary>Lecture 004 calls ZeRO-2 "exactly the same as ZeRO-1, except
# with lower memory requirement". But this is true only for one microbatch.</details>

# %% [markdown]
# ## 5 · ZeRO-3: the weights
#
# | | |
# |---|---|
# | you will write | `Unit(params)`, and with it `Zero3Module(module)` |
# | builds on | §2, §4 |
# | time | 65 minutes: 35 for the unit, 30 for the module |
# | difficulty, importance | 4 and 5 of 5 |
# | points | 16: 7 for the unit, 9 for the module |
#
# After backward, your ZeRO-2 holds 8 bytes per parameter, and 4 of them are the weights. But a step needs a
# block's weights only twice, in its forward and in its backward. So cut each block as in §2, keep your shard,
# and gather the block when it is used.
#
# | for each block | from | to | sent |
# |---|---|---|---|
# | forward: all-gather its weights, compute, free them | sharded | replicated, for a moment | 1 |
# | backward: all-gather them again, compute, free them | sharded | replicated, for a moment | 1 |
# | backward: reduce-scatter its gradients, keep this rank's shard | partial | sharded | 1 |
# | step: update the shards. The next forward gathers them | sharded | sharded | 0 |
#
# Together, these collectives send 3 units of traffic instead of a replica's 2. In return, a rank keeps 16P/N
# bytes instead of 16P.
#
# The hard part is to *free* the weights. A tensor is a view of a *storage*, which is the memory itself. In
# forward, autograd keeps views of the weights for backward. If you set `param.data` to another tensor, these
# views still hold the old storage, so nothing is freed. Instead, empty the storage that all views share, and
# fill it again later:

# %%
flat = torch.arange(4.0)
view = flat[:2]
flat.untyped_storage().resize_(0)  # the memory is freed, so `view` must not be read now
print("bytes:", flat.untyped_storage().nbytes(), "shape:", tuple(view.shape))
flat.untyped_storage().resize_(16)
flat.copy_(torch.arange(4.0) + 10)
print("again:", view)

# %% [markdown]
# **Build a unit first.** A `Unit(params)` does all the work for one block. The given lines of the constructor
# send the first rank's values to all ranks, put them into one row as in §2, and make the parameters views of
# the row. The check expects this of a unit:
#
# - All of `params` are trained, or all of them are frozen. The unit keeps this rank's part of the row as
#   `shard`, an `nn.Parameter`, which is frozen if `params` are.
# - `gather()` gives every parameter memory for its full shape, and fills it with the values the shards hold
#   *now*, because the optimizer might have changed the shards since the last `gather()`. A second `gather()`
#   without a `free()` in between sends nothing.
# - `free()` gives the memory back. The parameters, and every view autograd keeps of them, stay views of
#   one storage, which is empty until the next `gather()`. In a new unit this storage is also empty.
# - `reduce()` is called as soon as the parameters' gradients are ready. It adds the mean over the ranks
#   to `shard.grad`, and then sets the gradients of the parameters to None. A missing gradient counts as
#   zeros.
# - Between uses, a rank holds only its shard and the shard's gradient. Keep no copy of a full row of
#   parameters or gradients in an attribute, because the check measures the memory of the rank's process.


# %% nbgrader={"grade_id": "zero3_unit", "solution": true}
class Unit:
    """Parameters that are gathered, freed and reduced together, and this rank's `shard` of them.

    params: tensors that are all frozen or all trained. From the constructor on, they have memory
    only between gather() and free(). gather() and reduce() each send (N-1)/N of the parameters.
    """

    def __init__(self, params, *, group: Group = None):
        self.params, self.group, self.n = list(params), group, dist.get_world_size(group)
        for param in self.params:
            dist.broadcast(param.detach(), group_src=0, group=group)
        self.flat = torch.cat(flatten_and_shard(self.params, self.n))  # the row with its zeros
        for param, view in zip(self.params, views(self.flat, self.params), strict=True):
            param.data = view  # from now on, the memory of all parameters is one storage
        ### BEGIN SOLUTION
        own = self.flat.chunk(self.n)[dist.get_rank(group)].clone()
        self.shard = nn.Parameter(own, requires_grad=self.params[0].requires_grad)
        self.nbytes, self.here = self.flat.nbytes, True
        self.free()
        ### END SOLUTION

    def gather(self):
        """Give the parameters memory, and fill it with the shards of all ranks."""
        ### BEGIN SOLUTION
        if not self.here:
            self.flat.untyped_storage().resize_(self.nbytes)
            with torch.no_grad():
                dist.all_gather_into_tensor(self.flat, self.shard.detach(), group=self.group)
            self.here = True
        ### END SOLUTION

    def free(self):
        """Free the memory of the parameters."""
        ### BEGIN SOLUTION
        self.flat.untyped_storage().resize_(0)
        self.here = False
        ### END SOLUTION

    def reduce(self):
        """Add this rank's part of the mean gradient to the shard's gradient,
        and set the gradients of the parameters to None."""
        ### BEGIN SOLUTION
        add_mean(self.params, self.shard, self.group)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: one flat tensor</summary>The shard is a copy of 1/N of <code>self.flat</code>, made
# with <code>.clone()</code>, because a view would be empty after <code>free()</code>. After the constructor,
# leave <code>param.data</code> alone. <code>gather()</code> and <code>free()</code> only resize the storage
# of <code>self.flat</code>, and the parameters stay views of it.</details>
# <details><summary>Hint: reduce</summary>Proceed as for a bucket in ZeRO-2. Make a row of the gradients,
# reduce-scatter it, and add the mean to <code>shard.grad</code>. Write <code>@torch.no_grad()</code> above
# <code>gather()</code> and <code>reduce()</code>, because the shard requires a gradient, but autograd must
# not record these two methods.</details>
#
# **Check.** The check tests a single unit without a model, and then measures the memory of each rank with a
# unit of 4 MB.

# %% nbgrader={"grade_id": "zero3_unit_check", "points": 7}
report = check("04_zero/zero3_unit", Unit)
### BEGIN HIDDEN TESTS
report = check("04_zero/zero3_unit", Unit, cases="hidden")
### END HIDDEN TESTS
report.points(7)

# %% [markdown]
# **Build the module.** The module consists of a list of units and hooks that call them. You write
# `after_forward`, `arrived` and the rest of `before_backward`. The check expects this of the class:
#
# - The module has `blocks`, an `nn.ModuleList`, and the parameters of each block form a *unit*. All other
#   parameters form one more unit, which is gathered for the forward of the whole module, and again for its
#   backward. *Tied weights*, which are shared by two blocks or by a block and a module outside the blocks,
#   also belong to this extra unit. The same block can be in the list twice. Frozen parameters have units of
#   their own.
# - After backward, `shard.grad` holds the mean over the ranks, and the means of several backwards add up in
#   it. A gradient that is missing on all ranks counts as zeros. (In the check, a gradient is missing either
#   on all ranks or on none.)
# - In addition to the shards, their gradients and the optimizer's state, the check allows three times the
#   memory of a block at any time, for the weights of a block, its gradients, and the row in which these
#   gradients are sent. Keep no block gathered outside its forward or backward.
#
# The constructor registers all hooks except one, which you register in `after_forward`. In this notebook,
# every block and module returns a single tensor. `output.register_hook(f)` calls `f(grad)` when the gradient
# of that tensor is ready, and the backward of the block or module begins right after this call. The check
# looks only at the module, so you are free to write the class in another way.


# %% nbgrader={"grade_id": "zero3_module", "solution": true}
class Zero3Module(nn.Module):
    """`module` with its parameters sharded over `group`, gathered unit by unit when they are used.

    A rank keeps 1/N of the parameters, gradients and optimizer state, and a full unit or two at a
    time. A forward and a backward together send 3 (N-1)/N of the parameters.
    """

    def __init__(self, module: nn.Module, *, group: Group = None):
        super().__init__()
        self.module, self.unsent, self.in_backward = module, set(), False
        self.units = []
        for where, params in in_units(module):
            self.units.append(unit := Unit(params, group=group))
            where.register_forward_pre_hook(lambda _, args, unit=unit: unit.gather())
            where.register_forward_hook(
                lambda _, args, output, unit=unit: self.after_forward(unit, output)
            )
            for param in unit.params if unit.shard.requires_grad else ():
                param.register_post_accumulate_grad_hook(lambda _, unit=unit: self.arrived(unit))

    def after_forward(self, unit, output):
        """Called after the forward of the unit's module. If a backward will follow, have
        `self.before_backward(unit)` called when the gradient of this output is ready."""
        ### BEGIN SOLUTION
        unit.free()
        if output.requires_grad:
            output.register_hook(lambda grad: self.before_backward(unit))
        ### END SOLUTION

    def before_backward(self, unit):
        """Called before the backward of the unit's module. If the unit is trained, put it into
        `self.unsent`, where it stays until its gradients are reduced."""
        if not self.in_backward:
            self.in_backward = True
            after_backward(self.end)
        ### BEGIN SOLUTION
        unit.gather()
        if unit.shard.requires_grad:
            self.unsent.add(unit)
        ### END SOLUTION

    def arrived(self, unit):
        """Called when one of the unit's gradients is ready. Are all of them ready? If so, the unit
        has done its work, and leaves `self.unsent`."""
        ### BEGIN SOLUTION
        if all(param.grad is not None for param in unit.params):
            unit.reduce()
            self.unsent.discard(unit)
            unit.free()
        ### END SOLUTION

    def end(self):
        """Called when backward is over. Two kinds of units are still gathered, units with a
        parameter that got no gradient, and frozen units."""
        for unit in self.units:
            if unit in self.unsent:
                unit.reduce()
            unit.free()
        self.unsent, self.in_backward = set(), False

    def forward(self, *args):
        """Run the module's forward."""
        return self.module(*args)

    def parameters(self, recurse: bool = True):
        """Return this rank's flat shards."""
        return iter([unit.shard for unit in self.units])

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Return every parameter in full, by its name in the module. All ranks must call this."""
        whole = {}
        for unit in self.units:
            unit.gather()
            whole |= {param: param.detach().clone() for param in unit.params}
            unit.free()
        named = self.module.named_parameters(remove_duplicate=False)
        return {name: whole[param] for name, param in named}


# %% [markdown]
# <details><summary>Hint: the work of each hook</summary>Before forward, a given hook gathers the unit. In
# <code>after_forward</code>, free the unit, and put a hook on the output. This hook calls
# <code>before_backward</code>, in which you gather the unit again. If all gradients of the unit are ready,
# <code>arrived</code> reduces the unit, frees it and discards it from <code>self.unsent</code>.</details>
# <details><summary>Hint: the rank dies</summary>A kernel that reads freed storage can end the process. For
# example, this happens if you free a unit in a full <i>backward</i> hook. If a module's input needs no
# gradient, like the input of the first block, this hook fires before the module's own backward.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "zero3_module_check", "points": 9}
report = check("04_zero/zero3_module", Zero3Module)
### BEGIN HIDDEN TESTS
report = check("04_zero/zero3_module", Zero3Module, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** In float32 we expect 16P/N after backward, and 12P/N after the step. How high is the peak?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def zero3(model):
    wrapped = Zero3Module(model)
    return wrapped, torch.optim.AdamW(wrapped.parameters())


measured[3] = show("ZeRO-3", zero3, {"after backward": 16 / 4, "after step": 12 / 4})
for stage, run in measured.items():
    if run:
        print(f"stage {stage}: at most {run[0]['most'] / P:5.2f} bytes per parameter")
memory_picture({f"ZeRO-{stage}" if stage else "replicas": run for stage, run in measured.items()})

# %% [markdown]
# <details><summary>Answer</summary>In stage 3, the memory peaks when backward enters the first block. The
# rank then holds 12/4 bytes for the shard, m and v, 4/8 for the weights of this block, and 7/8 for the
# gradient shards of the other seven blocks. These add up to 4.38 bytes, and inputs, targets and activations
# add a little. No measurement shows a bucket of stage 2, or the full gradients of a block in stage 3, because
# these are made and freed between two measurements.</details>
#
# In the next picture, the left half shows what your `memory_per_rank` returns for 7B on 8 GPUs in mixed
# precision. In the right half, the bars show the float32 formulas for 4 ranks (one rank for replicas), and
# the dots show your own measurements.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
stages_picture(measured)

# %% [markdown]
# **Break it.** The first program frees a weight before its backward. The second program reads a weight after
# it was freed. What will happen on the ranks?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def freed_too_early():
    linear = nn.Linear(1024, 1024, device=device())
    loss = linear(torch.ones(4, 1024, device=device(), requires_grad=True)).sum()
    linear.weight.untyped_storage().resize_(0)
    loss.backward()


def read_after_free():
    weight = torch.randn(1024, device=device())
    weight.untyped_storage().resize_(0)
    return weight.exp().sum().item()


try_it(freed_too_early, world_size=2)
try_it(read_after_free, world_size=2)

# %% [markdown]
# The first program was lucky to get an error. Backward makes a view of the weight before it computes, and
# PyTorch checks the size of a view against its storage. But a kernel checks nothing. So in the second
# program, each rank either returned a meaningless number or died. On a GPU, the kernel might read the memory
# of another tensor, or end with "an illegal memory access", after which the rank can no longer use its GPU.
# Between uses, the reference's `Zero3Module` replaces the freed weights with NaN, so that you notice such a
# mistake.
#
# **In production.** In FSDP2 you call `fully_shard` on each block and then on the whole model. FSDP2 sends
# the same bytes as your module and computes the same values (§11 compares them). But FSDP also saves *time*,
# because it gathers the next block while the current block computes. This is the subject of notebook 05.

# %% [markdown]
# ## 6 · Offload: memory that is cheaper *(optional)*
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §3 |
# | time | 5 minutes |
#
# On *one* GPU, sharding saves nothing, because the only shard contains all parameters. But you can still
# offload the optimizer's state to the host's memory, which is cheaper. The optimizer's step reads and writes
# each byte of its state once and computes next to nothing, so ZeRO-Offload runs the step on the host's
# processor. In each step, the gradients are copied to the host and the new weights are copied back, which
# takes 2 + 2 bytes per parameter over PCIe. ZeRO-Infinity also uses NVMe disks.
#
# **In numbers.** For 7B on one GPU, stage 2 with offload leaves 14 GB on the GPU. Over PCIe 4.0 (32 GB/s each
# way), it takes 0.44 s to copy the 14 GB of gradients to the host, and another 0.44 s to copy the 14 GB of
# weights back. The ZeRO-Offload paper measured 40 TFLOP/s on one V100 with a 10B model. If backward computes
# the activations again, a token costs 8P FLOPs instead of 6P. Then 40 TFLOP/s are enough for 500 tokens per
# second.
#
# **Measure.** For the argument `offload`, the reference's `Zero1Optimizer` takes `"cpu"` or a folder. With a
# folder, the shard and its state are stored in files that are mapped into memory, as explained in §9. On a
# CPU, `"cpu"` changes nothing, so the cell uses files. Instead of the folder, it passes `MappedFile(folder)`,
# which also counts the bytes of the files:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def with_a_file(folder):
    from course_lib.zero import MappedFile, Zero1Optimizer as Library

    files = MappedFile(folder)
    model = Network(seed=dist.get_rank()).to(device())
    optimizer = Library(model.parameters(), torch.optim.AdamW, offload=files)
    for _ in range(2):
        x, y = torch.randn(2, 4, WIDTH, device=device())
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    kept = {
        name: value.untyped_storage().filename is not None
        for state in optimizer.state.values()
        for name, value in state.items()
        if value.dim()
    }
    return files.nbytes, kept


with tempfile.TemporaryDirectory() as folder:
    run = try_it(with_a_file, folder, world_size=2)
if run:
    for rank, (nbytes, kept) in enumerate(run):
        print(
            f"rank {rank}: {nbytes / (P / 2):.2f} bytes per parameter of its shard, in files: {kept}"
        )

# %% [markdown]
# The 12 bytes are the shard itself, m and v. The code of the optimizer's step did not have to change.
#
# **In production.** You turn offload on with `CPUOffloadPolicy` in FSDP2 and with `CPUOffload` in FSDP1. The
# host's memory should be pinned (page-locked), and the optimizer on the host should be vectorised (like
# DeepSpeed's `CPUAdam`), because otherwise the GPU has to wait for the copies and for the step.
#
# <details><summary>In the lectures</summary>Lecture 001 states that offload trains a 10B model at 0.1 to 0.2
# tokens per second on each GPU. But the ZeRO-Offload paper gets 40e12 / (8 · 10e9) = 500 tokens per second,
# 2,500 to 5,000 times as many. The lecture also says in one place that FSDP has no offload, but shows FSDP1's
# <code>CPUOffload</code> in another. In fact, FSDP has always had offload.</details>

# %% [markdown]
# ## 7 · DeepSpeed's configuration, line by line *(optional)*
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | all of it |
# | time | 5 minutes |
#
# The next cell contains a DeepSpeed configuration, and the table below explains each line in the words of
# this notebook.

# %%
config = json.loads("""
{
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu"},
    "offload_param": {"device": "cpu"},
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 5e8,
    "stage3_prefetch_bucket_size": 5e8,
    "stage3_param_persistence_threshold": 1e6
  }
}
""")

# %% [markdown]
# | line | here |
# |---|---|
# | `stage` | 1 is `Zero1Optimizer`, 2 is `Zero2Optimizer`, 3 is `Zero3Module` |
# | `offload_optimizer` | `offload="cpu"` puts the state (and the step) on the host, from stage 1 on |
# | `offload_param` | puts the parameter shards on the host as well, in **stage 3 only**. With this line, the configuration describes ZeRO-Infinity. ZeRO-Offload keeps 2 bytes per parameter on the GPU |
# | `overlap_comm` | reduces gradients while backward is running, with `async_op=True` and a later wait |
# | `contiguous_gradients` | copies gradients into the flat buffer as they arrive. This buffer is like your row of gradients, but no second copy of the gradients is made |
# | `sub_group_size` | takes the step in pieces of this many elements, which are loaded one after another from the host or disk |
# | `reduce_bucket_size` | is your `bucket_bytes`, but in *elements*. 5e8 elements take 1 GB in bf16, and with overlap there are two such buckets |
# | `stage3_prefetch_bucket_size` | is the number of elements to gather ahead (notebook 05) |
# | `stage3_param_persistence_threshold` | Parameters with fewer elements, such as biases and norms, are never freed. This saves one message for each of them, but they take memory all the time |
#
# The next cell translates such a configuration into the name of a reference class and its arguments:


# %%
def arguments(zero):
    """Return (name of the class, arguments) for zero_optimization in a DeepSpeed configuration."""
    stage = zero.get("stage", 0)
    away = zero.get("offload_optimizer", {}).get("device", "none") != "none"
    if "offload_param" in zero and stage != 3:
        raise ValueError(
            "offload_param needs stage 3, because in lower stages every rank has all parameters"
        )
    names = {0: "replicas", 1: "Zero1Optimizer", 2: "Zero2Optimizer", 3: "Zero3Module"}
    extra = {"offload": "cpu"} if away else {}
    if stage == 2:
        extra["bucket_bytes"] = 2 * int(
            zero.get("reduce_bucket_size", 5e8)
        )  # two bytes per element
    return names[stage], extra


print(arguments(config["zero_optimization"]))
print(arguments({"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": True}))
try:
    arguments({"stage": 2, "offload_param": {"device": "cpu"}})
except ValueError as error:
    print(f"refused: {error}")

# %% [markdown]
# Many configurations also contain `"fp16": {"loss_scale": 0, ...}`, which turns on dynamic loss scaling
# (notebook 09). Which stage should you use? Use the lowest stage that fits, because stage 2 sends more with
# every further microbatch, and stage 3 sends 3 units for every forward and backward. If the activations of a
# model are too large, stage 3 does *not* help, because ZeRO does not shard activations.
#
# <details><summary>In the lectures</summary>The configuration comes from lecture 001, which calls it
# ZeRO-Offload. The configuration with <code>"fp16"</code> comes from lecture 002.</details>

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them, the cells show a recorded run, if there is
# one.*
#
# **Predict.** Offload (§6) moves states to the host over PCIe. The cell predicts the bandwidth of the card's
# host link from the data sheet. The cell measures four copies, to the host and to the GPU, each with pageable
# and pinned memory. Which of these copies come close to the prediction?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.facts.hardware import link
from course_lib.gpu import on_your_gpus
from course_lib.gpu.memory import HOST_COPIES, STATES as STATES_BY_STAGE

on_gpus = on_your_gpus(HOST_COPIES, predicted=lambda of, run: link(run.card.host_link).each_way)

# %% [markdown]
# The system can move pageable memory at any time, so the driver first copies the data to a pinned
# buffer, which stays where it is. This is why offloading frameworks pin the memory they copy from.
#
# **Predict.** In each stage, how much of a GPU's memory is still in use after a step of AdamW in float32?
# Each parameter takes 4 bytes for its weight, 4 for its gradient (not freed yet), and 8 for m and v. The
# library's optimizers run here, and their shards aren't copies.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def left(of, run):
    cut_from = (
        (8, 1),
        (4, 2),
        (4, 3),
    )  # bytes per parameter, and the first stage that shards them
    shares = (nbytes / (of["ranks"] if of["stage"] >= stage else 1) for nbytes, stage in cut_from)
    return of["params"] * sum(shares)


on_gpus = on_your_gpus(STATES_BY_STAGE, predicted=left)
# %% [markdown]
# Stage 1 takes more memory than predicted if each rank keeps the row of all gradients and the shard of their
# mean until the next step.

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | §1, §3, §4, §5 |
# | time | 10 minutes |
# | points | 6 |
#
# A number may be an expression, such as `16 * 7 / 8`. All questions are about mixed-precision Adam, with 16
# bytes per parameter.
#
# 1. A 13B model is trained on 16 GPUs with ZeRO-2. How many **GB** of model states are on each GPU?
# 2. How many **times** as many bytes does the other ZeRO-1 workflow of §3 (all-reduce, step, all-gather) send
#    as yours?
# 3. With eight microbatches per step, how many **times** as many bytes as ZeRO-1 does ZeRO-2 send?
# 4. You train a 70B model with ZeRO-3 on 80 GB GPUs, and activations and buffers take 20 GB of each GPU. How
#    many **GPUs** do you need at least?
# 5. The 112 GB of a 7B model do not fit into your *one* 80 GB GPU. Which helps: `"stage 3"` or
#    `"offload"`?
# 6. After a block's forward you set `param.data = torch.empty(0)`, but the memory in use does not shrink.
#    Which of these still holds the memory: `"autograd"`, `"the optimizer"` or `"gloo"`?

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # GB
answer_2 = ...  # times
answer_3 = ...  # times
answer_4 = ...  # GPUs
answer_5 = ...  # "stage 3" or "offload"
answer_6 = ...  # "autograd", "the optimizer" or "gloo"
### BEGIN SOLUTION
answer_1 = 2 * 13 + 14 * 13 / 16
answer_2 = 3 / 2
answer_3 = (8 + 1) / 2
answer_4 = 19  # 16 * 70 / 60 = 18.7
answer_5 = "offload"
answer_6 = "autograd"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 6}
report = check("04_zero/questions", answer_1, answer_2, answer_3, answer_4, answer_5, answer_6)
### BEGIN HIDDEN TESTS
report = check(
    "04_zero/questions",
    answer_1,
    answer_2,
    answer_3,
    answer_4,
    answer_5,
    answer_6,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# ## 9 · Optional: states in files
#
# | | |
# |---|---|
# | you will write | `offloaded(optimizer_cls, folder)` |
# | builds on | §3, §6 |
# | time | 30 minutes |
# | difficulty, importance | 2 and 1 of 5 |
# | extra credit | 3 points, on top of the 60. You lose nothing if you skip it |
#
# In §6 the reference put the optimizer's state into files. Now you write code that does this for any
# optimizer, and then use it in your own `Zero1Optimizer`. Your code does not have to read or write the file,
# because the file is *mapped*. This means that its pages appear in the process's address space. The first
# touch of a page reads it from the disk, and a changed page is written back when the operating system needs
# the room. A tensor in these pages works like any other:

# %% tags=["skip-in-grading"]
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "numbers.bin")
    numbers = torch.from_file(path, shared=True, size=4, dtype=torch.float32)
    numbers += 1
    with open(path, "rb") as file:
        print("the tensor:", numbers.tolist(), " the file:", list(struct.unpack("4f", file.read())))
    numbers = torch.from_file(path, shared=False, size=4, dtype=torch.float32)
    numbers += 1
    with open(path, "rb") as file:
        print("the tensor:", numbers.tolist(), " the file:", list(struct.unpack("4f", file.read())))

# %% [markdown]
# `shared=False` is a trap. The first write to a page makes a private copy of the page in memory, so the file
# never gets the new values.
#
# **Predict.** Take 7B parameters on one GPU. Each has 12 bytes of state on an NVMe disk that reads 6 GB/s and
# writes 6 GB/s. What is the least time the optimizer's step can take? How many tokens must a training step
# process so that the optimizer takes no more than a tenth of the training step's time? Assume an A100 that
# computes at 40 % of its 312 TFLOP/s.
#
# <details><summary>After you have said it</summary>84 GB are read and 84 GB are written, which takes 14 s +
# 14 s, or 14 s if both happen at the same time. If 28 s are a tenth of the training step, the training step takes
# 280 s, and the GPU computes for the other 252 s. At 6P FLOPs per token, that gives 252 · 0.4 · 312e12 /
# (6 · 7e9) = 750,000 tokens, or half as many if reads and writes overlap. Steps with this many tokens are rarely practical on one GPU.
# But on 64 GPUs, each with its own disk and shard, the optimizer takes only 0.44 s, and a training step needs
# only about 12,000 tokens per GPU. This is why ZeRO-Infinity <i>shards</i> the states.</details>
#
# **Build.** Your function returns a class of optimizers. In its first step, such an optimizer moves its
# states into files, and then continues as usual. Adam creates its states in its first step, but some
# optimizers create them earlier. Move only tensors that have dimensions. For example, leave Adam's count of
# steps in memory, because it is a single number.


# %% nbgrader={"grade_id": "offload", "solution": true}
def offloaded(
    optimizer_cls: type[torch.optim.Optimizer], folder: str
) -> type[torch.optim.Optimizer]:
    """Return a class of optimizers like `optimizer_cls`,
    but with states in memory-mapped files in `folder`.

    After each step(), every tensor in `optimizer.state` that has dimensions is stored in a file
    in `folder`, mapped with shared=True. It has the values, shape and dtype of the tensor it
    replaces, and no reference keeps that tensor alive. Several optimizers, in one process or
    several, can use the same folder, but no two states share a file. step() returns the same as
    in `optimizer_cls`.
    """
    ### BEGIN SOLUTION

    class Offloaded(optimizer_cls):
        def step(self, closure=None):
            loss = super().step(closure)
            for state in self.state.values():
                for name, value in state.items():
                    if torch.is_tensor(value) and value.dim() and not is_mapped(value):
                        state[name] = in_a_file(value, folder)
            return loss

    return Offloaded


def is_mapped(value: torch.Tensor) -> bool:
    return value.untyped_storage().filename is not None


def in_a_file(value: torch.Tensor, folder: str) -> torch.Tensor:
    """Return a tensor like `value`, stored in a new file."""
    descriptor, path = tempfile.mkstemp(dir=folder)
    os.close(descriptor)
    mapped = torch.from_file(path, shared=True, size=value.numel(), dtype=value.dtype)
    return mapped.view(value.shape).copy_(value)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Write a subclass whose <code>step</code> calls
# <code>super().step(closure)</code> and then goes through <code>self.state</code>, which has a dict of named
# tensors for each parameter. You only have to replace each tensor in this dict by a mapped tensor, because
# the optimizer updates the tensors in the dict in place.</details>
# <details><summary>Hint: the step</summary><code>tempfile.mkstemp(dir=folder)</code> makes a new file with a
# unique name. For a tensor that is mapped already, <code>value.untyped_storage().filename</code> is not
# None.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "offload_check", "points": 0}
# Extra credit, 3 points
report = check("04_zero/offload", offloaded)
### BEGIN HIDDEN TESTS
report = check("04_zero/offload", offloaded, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** The cell runs your `Zero1Optimizer` on two ranks, first with AdamW inside and then with your
# offloaded AdamW. It adds up the bytes of all tensors that exist after a step, and divides them by the number
# of parameters.


# %% tags=["skip-in-grading"]
def memory_and_files(folder):
    """Return the bytes of tensors in memory and in mapped files after two steps."""
    gc.collect()
    gc.freeze()  # existing tensors do not count
    model = Network(seed=0).to(device())
    kind = torch.optim.AdamW if folder is None else offloaded(torch.optim.AdamW, folder)
    optimizer = Zero1Optimizer(model.parameters(), kind, lr=1e-3)
    for _ in range(2):
        x, y = torch.randn(2, 4, WIDTH, device=device())
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    del x, y
    time.sleep(0.003)  # gloo's threads free the tensors of their last operation late
    storages = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            storage = item.untyped_storage()
            storages[storage._cdata] = storage.filename is not None, storage.nbytes()
    return [
        sum(size for in_file, size in storages.values() if in_file is mapped)
        for mapped in (False, True)
    ]


with tempfile.TemporaryDirectory() as folder:
    for name, where in (("in memory", None), ("in files", folder)):
        # on the CPU, because states are mapped into the host's memory
        run = try_it(memory_and_files, where, world_size=2, backend="gloo")
        if run:
            memory, files = (size / P for size in run[0])
            print(
                f"m and v {name:9}: {memory:5.2f} bytes per parameter in memory, {files:5.2f} in files"
            )

# %% [markdown]
# The 4 bytes of weights and the 4/2 bytes of the shard stay in memory, but m and v are in files. They take 2
# · 4 / 2 bytes, because a rank has m and v for half of the parameters. The pages of the files stay in memory
# while there is room, but the operating system can take this memory back at any time.
#
# **In production.** DeepSpeed's `"offload_optimizer": {"device": "nvme", "nvme_path": ...}` does not map
# files, because a mapping reads one page at a time, when the page is first touched. This would not use a
# disk's full bandwidth. Instead, DeepSpeed reads large pieces asynchronously, before the step needs them.

# %% [markdown]
# ## 10 · Optional: an optimizer that needs whole matrices
#
# | | |
# |---|---|
# | you will write | `deal(shapes, n)`, `muon_step(params, momenta, owned, orthogonalize, lr, beta, group)` |
# | builds on | §4 |
# | time | 60 minutes |
# | difficulty, importance | 4 and 2 of 5 |
# | extra credit | 5 points, on top of the 60. You lose nothing if you skip it |
#
# Adam treats each element separately, so your shards can cut matrices in the middle. But *Muon* (Jordan et
# al. 2024) computes its update from the momentum of a whole matrix. The update keeps the singular vectors of
# the momentum, but brings all singular values close to 1, so that a rare direction counts as much as a
# frequent one. To compute the update, Muon runs five *Newton-Schulz* iterations, whose matrix products are
# fast on GPUs:


# %% tags=["skip-in-grading"]
def orthogonalize(matrix):
    """Return a matrix with the same singular vectors, but with singular values close to 1."""
    a, b, c = 3.4445, -4.7750, 2.0315  # a singular value s becomes a s + b s^3 + c s^5
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


# %% [markdown]
# **Break it.** Suppose two ranks each hold half of a matrix, as in ZeRO-2, and each rank orthogonalizes only
# its half. How different is the result?

# %% tags=["skip-in-grading"]
generator = torch.Generator().manual_seed(0)
matrix = torch.randn(24, 96, generator=generator, dtype=torch.float64)
whole = orthogonalize(matrix)
halves = torch.cat([orthogonalize(half) for half in matrix.chunk(2)])
print(f"difference: {(whole - halves).norm() / whole.norm():.1%} of the right update")
for name, update in (("whole", whole), ("halves", halves)):
    values = torch.linalg.svdvals(update)
    print(f"{name:7} singular values from {values.min():.2f} to {values.max():.2f}")

# %% [markdown]
# **Look.** The update is off by a third of its size, because every element of the orthogonalized matrix
# depends on every element of the original matrix. But nothing raises an error.
#
# So deal out whole matrices to the ranks. Each matrix gets one *owner*, and only the owner holds its momentum
# and orthogonalizes it:
#
# | | ZeRO-2 with Adam | Muon with owners |
# |---|---|---|
# | reduce-scatter | a shard of the gradients | the gradients of the rank's own matrices |
# | kept on the rank | m and v of the shard, 2 P/N elements | the momentum of the rank's own matrices, P/N elements |
# | all-gather | the shard's new weights | the new weights of the rank's own matrices |
#
# If every rank owns equally many elements, a rank sends as much as in ZeRO-2, namely 2 (N−1)/N · P elements.
#
# **Predict.** Orthogonalizing a matrix with m rows and n ≥ m columns takes 5 (4 m² n + 2 m³) FLOPs. In a
# block of the 124M model, four matrices have 768 × 768 elements and two have 768 × 3072. Each rank trains on
# 8,192 tokens per step, with 6 FLOPs per parameter and token. By how many percent do the FLOPs of a step grow
# if every rank orthogonalizes every matrix, and by how many percent with 8 owners?
#
# <details><summary>After you have said it</summary>A square matrix takes 30 · 768 = 23,040 FLOPs per element.
# The other matrices take 17,280, and they hold two thirds of the elements, so the average is 19,200 FLOPs per
# element. Forward and backward take 6 · 8,192 = 49,152 per element, so the FLOPs of a step grow by 39 %. With
# 8 owners, each rank does only an eighth of this extra work, so the FLOPs grow by only 5 %.</details>
#
# **Build.** First decide which rank owns which matrix. A collective needs rows of equal length, and all ranks
# wait for the slowest rank, so no rank should hold much more than its share. Go through the matrices from the
# largest to the smallest, and give each of them to the rank with the fewest elements so far.


# %% nbgrader={"grade_id": "deal", "solution": true}
def deal(shapes: list[tuple[int, int]], n: int) -> list[list[int]]:
    """Return, for each of n ranks, a list of the matrices it owns, as indices into `shapes`.

    shapes: (rows, columns) of each matrix. Each index is in exactly one list. A rank without a
    matrix has an empty list.
    """
    ### BEGIN SOLUTION
    sizes = [rows * columns for rows, columns in shapes]
    owned, held = [[] for _ in range(n)], [0] * n
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number], reverse=True):
        rank = held.index(min(held))
        owned[rank].append(number)
        held[rank] += sizes[number]
    return owned
    ### END SOLUTION


# %% nbgrader={"grade_id": "deal_check", "points": 0}
# Extra credit, 2 points
report = check("04_zero/deal", deal)
### BEGIN HIDDEN TESTS
report = check("04_zero/deal", deal, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** The cell deals out the 72 matrices of the 124M model, and prints how many elements the fullest
# rank has, divided by the mean over all ranks. For comparison, it also deals them out in turn.

# %% tags=["skip-in-grading"]
shapes = 12 * [*4 * [(768, 768)], (3072, 768), (768, 3072)]


def fullest(owned):
    held = [sum(shapes[k][0] * shapes[k][1] for k in own) for own in owned]
    return max(held) * len(owned) / sum(held)


with contextlib.suppress(NotImplementedError):
    for n in (4, 6, 8, 64):
        in_turn = [list(range(len(shapes)))[rank::n] for rank in range(n)]
        print(
            f"{n:2} ranks: yours {fullest(deal(list(shapes), n)):.2f}, in turn {fullest(in_turn):.2f}"
        )

# %% [markdown]
# **Look.** Dealing in turn happens to work on 4 and 8 ranks, but on 6 ranks, the same two ranks get all the
# large matrices. On 64 ranks, no way of dealing is even, because a large matrix has 1.8 times as many
# elements as a rank has on average.
#
# **Build.** For a step, write the gradients into n rows, so that row r holds the gradients of the matrices
# owned by rank r. Pad all rows with zeros to the length of the longest row. Then one reduce-scatter gives
# each owner its row, summed over the ranks. For each of its matrices W with gradient G and momentum M, the
# owner computes
#
# M ← β M + G,  W ← W − lr · √max(1, rows / columns) · orthogonalize(G + β M)
#
# Finally, write the new weights into the rows, and all-gather the rows.


# %% nbgrader={"grade_id": "muon_step", "solution": true}
@torch.no_grad()
def muon_step(
    params: list[torch.Tensor],
    momenta: dict[int, torch.Tensor],
    owned: list[list[int]],
    orthogonalize,
    lr: float = 0.02,
    beta: float = 0.95,
    group: Group = None,
) -> None:
    """Take a step of Muon on the mean of the ranks' gradients. The matrices change in place.

    params: matrices, the same on all ranks, but each has this rank's own gradient in .grad.
    momenta: M of this rank's matrices by number, empty before the first step. Keep M there.
    owned: owned[r] lists the numbers of the matrices of rank r of the group, perhaps none.
    orthogonalize(matrix): returns a new matrix. Call it only for this rank's matrices.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    rows = params[0].new_zeros(n, max(sum(params[k].numel() for k in own) for own in owned))

    def places(row, own):
        """Yield the number of each matrix in a row, and the part of the row that holds it."""
        begin = 0
        for k in own:
            yield k, row[begin : begin + params[k].numel()].view(params[k].shape)
            begin += params[k].numel()

    for row, own in zip(rows, owned, strict=True):
        for k, place in places(row, own):
            place.copy_(params[k].grad)
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter_tensor(mine, rows.view(-1), group=group)
    mine /= n
    for k, place in places(mine, owned[rank]):
        gradient = place.clone()
        momenta[k] = beta * momenta.get(k, 0) + gradient
        update = orthogonalize(gradient + beta * momenta[k])
        height, width = gradient.shape
        place.copy_(params[k] - lr * max(1, height / width) ** 0.5 * update)
    dist.all_gather_into_tensor(rows.view(-1), mine, group=group)
    for row, own in zip(rows, owned, strict=True):
        for k, place in places(row, own):
            params[k].copy_(place)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: a rank that owns nothing</summary>Such a rank sends its gradients like all other
# ranks, but its own row is all zeros. Make all rows in one tensor with <code>new_zeros(n, longest)</code>,
# and copy the gradients into views of this tensor.</details>
# <details><summary>Hint: is the mean needed?</summary>The check accepts the sum as well. Newton-Schulz
# divides by the norm, so a constant factor in G and M has no effect on the update.</details>

# %% nbgrader={"grade_id": "muon_step_check", "points": 0}
# Extra credit, 3 points
report = check("04_zero/muon_step", muon_step)
### BEGIN HIDDEN TESTS
report = check("04_zero/muon_step", muon_step, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** The cell trains the eight 128 × 128 matrices of `Network` in float64, on 1, 2, 4 and 8 ranks,
# and compares the weights with the weights from the run on one rank.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def muon_on_ranks(steps=3):
    """Return the matrices after some steps, and the number of momentum elements on this rank."""
    rank, n = dist.get_rank(), dist.get_world_size()
    network = Network(seed=0).double().to(device())
    params = [block.linear.weight for block in network.blocks]
    owned, momenta = deal([param.shape for param in params], n), {}
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(2, 8, WIDTH, generator=generator, dtype=torch.float64).chunk(n, 1)[rank]
        dist.barrier()  # only the last step counts
        nn.functional.mse_loss(network(x.to(device())), y.to(device())).backward()
        muon_step(params, momenta, owned, orthogonalize)
    weights = torch.stack([param.detach().cpu() for param in params])
    return weights, sum(momentum.numel() for momentum in momenta.values())


alone = None
for n in (1, 2, 4, 8):
    run = try_it(muon_on_ranks, world_size=n)
    if run:
        weights, elements = run[0]
        alone = weights if alone is None else alone
        operations = run.ledger.operations(0)
        last = max(k for k, operation in enumerate(operations) if operation.op == "barrier")
        bytes_sent = sum(operation.bytes_sent for operation in operations[last:])
        ranks = "1 rank:" if n == 1 else f"{n} ranks:"
        print(
            f"{ranks:8} weights differ by {(weights - alone).abs().max():.0e}, {bytes_sent:9,.0f} "
            f"bytes sent per step, {elements:7,} elements of momentum"
        )

# %% [markdown]
# **Look.** The weights of all runs agree up to rounding. P is 8 · 128² = 131,072 elements of 8 bytes. A rank
# sends exactly 2 (N−1)/N · P elements per step, and holds P/N elements of momentum.
#
# **In production.** Liu et al. (2025, §2.3) keep ZeRO-1's flat shards. If a rank holds a part of a matrix, it
# gathers the full momentum of this matrix, orthogonalizes it, and keeps only its part of the result. If
# gradients and weights are sent in float32 and the momentum in 16 bits, this costs up to a quarter more bytes
# than AdamW. But this method also works with more ranks than matrices. As in Jordan et al., AdamW updates the
# embeddings, the head, the norms and the biases. The reference's `ShardedMuon` is in
# `course_lib/zero/muon.py`.

# %% [markdown]
# ## 11 · Optional: next to PyTorch, and on the wire
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §3, §5 |
# | time | 20 minutes |
#
# **Break it.** In practice, the replicas of notebook 03 are wrapped in `DistributedDataParallel`. Leave the
# model wrapped, and give its parameters to your `Zero1Optimizer`. Will the values still be right?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def under_ddp(model):
    wrapped = nn.parallel.DistributedDataParallel(model)
    return wrapped, Zero1Optimizer(wrapped.parameters(), torch.optim.AdamW)


_ = show("under DDP", under_ddp, {"after step": 4 + 12 / 4})

# %% [markdown]
# DDP averages the gradients, and then your optimizer averages them again. The mean of equal gradients is the
# same gradient, so the values are still right. But the traffic shows the waste, because DDP sends 2 units and
# then your optimizer sends 2. (DDP also keeps its buckets, a second copy of the gradients, which takes
# another 4 bytes.) You could instead cut the shards out of DDP's averaged gradients. This is the other
# workflow of §3, which sends 3 units. A test that looks only at values accepts both programs. It also accepts
# a third program, plain AdamW after an all-reduce, which sends 2 units but keeps the full state on every
# rank. Which lines of the check in §3 reject each of these three programs?
#
# <details><summary>Answer</summary>The two lines that begin with <i>bytes</i> reject the first two programs,
# which send 4 and 3 units instead of 2. Plain AdamW sends 2 units, so these lines accept it. But the three
# lines on memory reject it, because it keeps the state of all parameters on every rank.</details>
#
# **Measure.** PyTorch's `ZeroRedundancyOptimizer` works under DDP. DDP averages all gradients, and then the
# optimizer broadcasts each rank's part of the new parameters. This is the other workflow, so how many units
# do you expect?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def trained(make, steps=3):
    """Return the model after some steps, with the same start on all ranks, but different data."""
    rank = dist.get_rank()
    model, optimizer = make(Network(seed=5).to(device()))
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        x, y = torch.randn(2, 4, WIDTH, generator=generator).to(device())
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def row(make):
    """Return all parameters of the model from `trained`, in full, in one row."""
    model = trained(make)
    if hasattr(model, "full_state_dict"):
        tensors = list(model.full_state_dict().values())
    else:
        tensors = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def torchs(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(model)
    return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-3)


def step_in_two(make):
    """Take two steps, with a barrier before each backward and each optimizer step."""
    model, optimizer = make(Network(seed=5).to(device()))
    for _ in range(2):
        x, y = torch.randn(2, 4, WIDTH, device=device())
        dist.barrier()
        nn.functional.mse_loss(model(x), y).backward()
        dist.barrier()
        optimizer.step()
        optimizer.zero_grad()


for name, make in (("yours", zero1), ("PyTorch's", torchs)):
    run = try_it(step_in_two, make)
    if run:
        both, step = sent(run, since=-2), sent(run)
        print(
            f"{name:10} units in backward {both - step:.2f}, in step {step:.2f}, together {both:.2f}"
        )
ours, theirs = try_it(row, zero1), try_it(row, torchs)
if ours and theirs:
    print(f"largest difference after three steps: {(ours[0] - theirs[0]).abs().max():.1e}")

# %% [markdown]
# PyTorch's optimizer computes the same values, but sends one and a half times as many bytes.
#
# **On the wire.** For a built-in collective, the ledger *books* the fewest bytes any algorithm must send. But
# the backend might send more. For example, gloo, the CPU's backend, has no reduce-scatter of its own. It runs
# an all-reduce and throws (N−1)/N of the sum away, which puts 2 units on the wire instead of 1 (notebook 02
# §2). NCCL sends the booked bytes, and so does the ring of notebook 02, even over gloo. The next cell
# replaces PyTorch's functions with the ring, and uses `wire_bytes` of notebook 02 §1 to read the bytes
# counted by Linux. How many units do you expect on 2 and on 4 ranks, with PyTorch's functions and with the
# ring?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.ledger.tcp import wire_bytes


def over_the_ring(make):
    """Return `make` with reduce-scatters and all-gathers on the ring of notebook 02."""

    def made(model):
        from course_lib import collectives as ring  # or your own functions

        dist.reduce_scatter_tensor = lambda output, input, op=None, group=None: ring.reduce_scatter(
            output, input, group
        )
        dist.all_gather_into_tensor = ring.all_gather
        return make(model)

    return made


def on_the_wire(make):
    """Return the bytes this rank sent over TCP in the second of two steps,
    in units of (N-1)/N P elements."""
    model, optimizer = make(Network(seed=5).to(device()))
    for _ in range(2):
        x, y = torch.randn(2, 4, WIDTH, device=device())
        dist.barrier()
        before = wire_bytes()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
    n = dist.get_world_size()
    return (wire_bytes() - before) / ((n - 1) / n * 4 * P)


for world_size in (2, 4):
    for name, make in (("PyTorch's functions", zero1), ("the ring", over_the_ring(zero1))):
        # on the CPU, because the bytes are read from TCP
        run = try_it(on_the_wire, make, world_size=world_size, backend="gloo")
        if run:
            booked = sent(run, since=-2)
            print(
                f"{world_size} ranks, {name:20} booked {booked:.2f} units, on the wire {max(run):.2f}"
            )

# %% [markdown]
# Over gloo, your ZeRO-1 sends 3 units with PyTorch's functions, which is as much as the other workflow sends.
# But with the ring, it sends only 2. (Linux also counts bytes that TCP sent again, so it can show a few
# hundredths more.) Unless your `Zero2Optimizer` uses `async_op`, which the ring lacks, try
# `over_the_ring(zero2)` as well.
#
# **Measure.** Do your `Zero3Module` and FSDP2 send the same bytes and compute the same values?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def fsdp(model):
    from torch.distributed.fsdp import fully_shard

    if torch.__version__ < "2.7" and device().type == "cpu":
        raise RuntimeError("PyTorch 2.6 runs fully_shard only on GPUs")
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


for name, make in (("yours", zero3), ("fully_shard", fsdp)):
    run = try_it(step_in_two, make)
    if run:
        print(f"{name:12} a step sends {sent(run, since=-2):.2f} units")
ours, theirs = try_it(row, zero3), try_it(row, fsdp)
if ours and theirs:
    print(f"largest difference after three steps: {(ours[0] - theirs[0]).abs().max():.1e}")

# %% [markdown]
# ## Scorecard
#
# The card lists the three criteria (computation, peak memory, bytes sent) for one step of AdamW on four ranks
# with two samples each. M stands for the 4P bytes of the parameters, so 4 M is 16 bytes per parameter. The
# computation is compared with one process that trains on all eight samples.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
scorecard({"ZeRO-1": zero1, "ZeRO-2": zero2, "ZeRO-3": zero3})

# %% [markdown]
# Four replicas do the optimizer's work four times, but ZeRO does it only once. (The extra 0.02 in its 1.02
# are the divisions by N.) With more samples, this difference matters less, because only forward and backward
# then take more FLOPs. Stage 1 brings 4 M down to 2.75 M without sending any more bytes. But stage 3 pays
# with traffic for the memory it saves, and so does stage 2 with several microbatches. With K microbatches,
# stage 1 sends 2 units, stage 2 sends K + 1, and stage 3 sends 3K. However, no stage splits the *computation*
# of a layer. So the activations take as much memory as before, and each rank still needs at least one sample.
# Tensor parallelism (notebook 06) splits this computation.
#
# **You have built** ZeRO in three stages, and you know how much memory each stage takes and how many bytes it
# sends.
#
# **Read on.**
# - Rajbhandari, Rasley, Ruwase, He (2020), *ZeRO: Memory Optimizations Toward Training Trillion Parameter
#   Models*: §5 and figure 1 for the memory, §7 for the bytes.
# - Ren et al. (2021), *ZeRO-Offload*; Rajbhandari et al. (2021), *ZeRO-Infinity*.
# - Jordan et al. (2024), *Muon: An optimizer for hidden layers in neural networks* (blog post); Liu et
#   al. (2025), *Muon is Scalable for LLM Training*.
# - Zhao et al. (2023), *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*.
# - `course_lib/zero/`: the reference, which can also save with N ranks and load with another number of ranks.
#   It also keeps float32 master copies of 16-bit weights, and skips parameters that no rank used. Read it
#   after you have written yours.
#
# <details><summary>In the lectures</summary>The three criteria come from lecture 003.</details>
#
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("04_zero")
