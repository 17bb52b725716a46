# %% [markdown]
# # 03 · Data parallelism
#
# **How do replicas stay in step, and how do you hide the cost?**
#
# Eight GPUs hold the same 7B model. Each of them sees its own eighth of the batch, so each gets a different
# gradient of 14 GB (in bf16). Then the GPUs average the eight gradients and all take the same step. So the
# eight replicas stay equal, and each step is the same as the step of a single GPU on the whole batch.
#
# You know from notebook 02 what this average costs. In every step, each GPU sends 2 · 7/8 · 14 GB = 24.5 GB,
# which takes 0.49 s on a 50 GB/s link. In this notebook you hide most of that time behind the backward pass,
# and then learn to send less.
#
# | | |
# |---|---|
# | you will build | a sampler, data parallelism in two ways (plain, and in buckets during backward), two compressed all-reduces, and two more if you like |
# | you need | from notebook 02: all-reduce, all-gather, all-to-all, and the bytes they send |
# | time | two hours and three quarters |
# | points | 60, and 9 of extra credit |
# | rented machine | not needed, because two cores are enough. On several GPUs the same code uses NCCL, and the section *On your GPUs* shows what only GPUs can show |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 0 One process or eight | 5 | | notebook 02 |
# | 1 Who sees which samples | 15 | 6 | |
# | 2 Replicas that stay in step | 25 | 10 | 1 |
# | 3 Buckets, while backward runs | 65 | 16 | 2 |
# | 4 A mean of means is wrong | 5 | | 2 |
# | 5 Send the largest: top-k | 20 | 8 | 2 |
# | 6 Send eight bits | 20 | 8 | 5 |
# | 7 What it costs | 5 | 6 | your predictions in 2, 3 and 5 |
# | 8 Questions | 5 | 6 | 2 to 7 |
# | 9 Optional: two thin matrices | 30 | 4 extra | 6 |
# | 10 Optional: one bit | 40 | 5 extra | 6 |

# %% [markdown]
# ### Words, letters and tools
#
# | | |
# |---|---|
# | N | the number of ranks. Each of them holds a *replica*, a full copy of the model |
# | M | the bytes of all gradients of one replica |
# | microbatch | the samples of one backward pass. The gradients of several microbatches can add up before the optimizer steps (*accumulation*). A GPU's share of the batch then consists of several microbatches |
# | bucket | the gradients of a few neighbouring layers in one flat tensor, which travel as one message |
# | hook | a function that autograd calls, here whenever a parameter's `.grad` is complete |
# | handle | the object that `dist.all_reduce(t, async_op=True)` returns immediately. Only after `handle.wait()` does `t` hold the sum |
# | exposed | communication is exposed if it continues after backward has ended, so that the step waits for it |
# | error feedback | a method for compressed gradients. The part of a gradient that was not sent is added to the next gradient |
#
# From here on you can use the built-in collectives, because you have built them yourself. The ledger records
# the bytes each rank sends. For a built-in collective, it counts the fewest bytes with which any algorithm
# can do the work. For an all-reduce, these are 2 (N−1)/N · M bytes per rank.
#
# <details><summary>In the lectures</summary>Lecture 001 §19.1 calls a GPU's share of the batch a microbatch.
# This is right only without accumulation.</details>
#
# The next cell imports the modules, and also `try_it`, which runs a function that might fail and prints the
# errors of the ranks. The cell after it defines the other tools. `network` makes a small model, whose weights
# depend on the seed. `samples` draws data that can be learned (a fixed layer makes the targets from the
# inputs). `one_step` runs forward, backward and the averaging on a rank, without an optimizer, and returns
# the gradients. Its argument `wrap` is a data-parallel class, such as yours. Finally, `predicted` and `said`
# call your prediction functions.

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import contextlib
import itertools
import math
import time

import torch
import torch.distributed as dist
from torch import nn

from course_lib import check, device, launch, synchronize
from course_lib.pictures.colours import (
    BACKWARD,
    COMMUNICATION,
    COMPLETE,
    FORWARD,
    INK,
    RANKS,
    picture,
    tint,
)
from course_lib.scorecard import costs, scorecard
from course_lib.unfinished import ready, try_it

Group = dist.ProcessGroup | None  # None is the group of all ranks


# %%
def network(seed, width=64, depth=6):
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*layers).to(device())


def samples(seed, count, width=64):
    teacher = torch.randn(width, width, generator=torch.Generator().manual_seed(9))
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return x.to(device()), (x @ teacher * 2 / math.sqrt(width)).tanh().to(device())


def one_step(wrap, width=64, count=16, before=0):
    """Run `before` + 1 backwards on each rank's own model and data,
    and return the gradients of the last backward, by name."""
    rank = dist.get_rank()
    model = wrap(network(rank, width))
    x, y = samples(100 + rank, count, width)
    for step in range(before + 1):
        model.zero_grad()
        if step == before:
            dist.barrier()  # `sent_after_barrier` counts from here on
        nn.functional.mse_loss(model(x), y).backward()
        if hasattr(model, "finish_gradient_synchronization"):
            model.finish_gradient_synchronization()
    return {name: p.grad.clone() for name, p in model.module.named_parameters()}


def predicted(prediction, *args):
    """Return the number from your prediction. If the prediction gives no number yet,
    print a sentence and return None."""
    name = prediction.__name__
    if not ready(prediction):
        return None
    number = prediction(*args)
    if isinstance(number, int | float):
        return number
    call = f"{name}({', '.join(map(str, args))})"
    print(f"{call} returned {number}, which is not a number. Does {name} end with a `return`?")


def said(prediction, *args):
    """Return the result of your prediction as text."""
    try:
        number = prediction(*args)
    except NotImplementedError:
        return "?"
    return f"{number:,.0f}" if isinstance(number, int | float) else f"{number} (not a number)"


# %% [markdown]
# ## 0 · One process or eight
#
# | | |
# |---|---|
# | you will write | nothing |
# | time | 5 minutes |
#
# PyTorch has two ways to train replicas on several GPUs. `nn.DataParallel` (DP) uses one process that drives
# all GPUs. In *every* step it cuts the batch up, copies the weights to the other GPUs, runs a thread for each
# of them, gathers the outputs, and adds the gradients up on GPU 0, the only GPU that runs the optimizer.
# `DistributedDataParallel` (DDP) instead uses one process for each GPU, and an all-reduce of the gradients.
#
# The cell imitates both ways with collectives, on four ranks. In `master_step`, rank 0 plays the part of GPU
# 0, so it is the master.


# %% tags=["skip-in-grading"]
def master_step(model):
    """Send rank 0's weights to all ranks, and all gradients to rank 0, as nn.DataParallel does."""
    for p in model.parameters():
        dist.broadcast(p.detach(), 0)
    x, y = samples(dist.get_rank(), 16)
    nn.functional.mse_loss(model(x), y).backward()
    for p in model.parameters():
        dist.reduce(p.grad, 0)


def replica_step(model):
    """Send the gradients to all ranks, as DistributedDataParallel does."""
    x, y = samples(dist.get_rank(), 16)
    nn.functional.mse_loss(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)


def moves(step):
    model = network(0)
    step(model)
    return sum(p.nbytes for p in model.parameters())


for step in (master_step, replica_step):
    run = launch(moves, step, world_size=4)
    total = sum(run.ledger.bytes_sent(rank) for rank in range(4))
    print(f"{step.__name__:13} {total / run[0]:.2f} M sent by all ranks together")

# %% [markdown]
# Both ways move the same number of bytes, if you don't count the batch and the outputs. With a master, the
# weights must reach N−1 ranks, and N−1 gradients must come back, which makes 2 (N−1) M in total. In the
# all-reduce, each of N ranks sends 2 (N−1)/N · M, which also makes 2 (N−1) M in total. If the master sends
# and receives every copy itself, all of these bytes pass through its own link, so they take N times as long
# as the all-reduce. But a good broadcast passes the weights along a chain, in which every rank except the
# last sends M, and the gradients can be summed along the same chain on their way back. So the bytes are not
# the reason why DDP replaced `nn.DataParallel`. The reasons are these:
#
# - **The weights must arrive before forward begins.** The GPUs have nothing to compute in the meantime.
#   Gradients, however, can leave while backward still runs (§3), and DDP sends nothing else.
# - **One Python process drives all GPUs.** N threads share one interpreter lock (GIL), so the kernels of
#   eight GPUs are launched one after another. With 1,000 kernels per pass, and 10 µs to launch each,
#   launching takes 10 ms for one GPU and 80 ms for eight.
# - **GPU 0 does more.** It holds all outputs and the optimizer state (8 bytes per parameter in plain fp32
#   Adam, which is 56 GB for a 7B model). It also takes the step while the other GPUs wait.
# - **It is limited to one machine.** Threads cannot reach another node.
#
# PyTorch's own documentation recommends DDP even on one machine.
#
# <details><summary>In the lectures</summary>In lecture 001 §19.2 the master broadcasts "updated params" after
# the step, whereas <code>nn.DataParallel</code> copies them again in each forward. The lecture also says that
# DDP is up to 2 to 3 times as fast as DP. But no such factor holds for all models, because the gain depends
# on how the bytes and launches counted above compare with the computing time.</details>

# %% [markdown]
# ## 1 · Who sees which samples
#
# | | |
# |---|---|
# | you will write | `samples_each(n, world_size)` (no points), `shard_indices(n, rank, world_size, epoch)` |
# | time | 15 minutes |
# | difficulty, importance | 2 and 3 of 5 |
# | points | 6 |
#
# Take four ranks and ten samples. Every sample must be seen, and no two ranks should see the same sample. But
# above all, *each rank needs the same number of samples*, because a rank with an extra sample would wait
# forever in an all-reduce that no other rank calls. So each rank gets three samples, and because 4 · 3 = 10 +
# 2, two samples are seen twice.
#
# In the picture, a row is an epoch and a column is a sample. The number and the colour of a box say which
# rank sees the sample. Two numbers in a box mean that two ranks see the sample.

# %% tags=["skip-in-grading"]
from course_lib import data_parallel as reference  # the course's own classes, for the pictures


def dealt(sampler, n, world_size, epochs):
    """Draw which rank sees which sample, with a box for each sample in each epoch."""
    figure = picture(0.55 * n + 1.2, 0.45 * epochs + 0.7)
    axes = figure.subplots()
    for epoch in range(epochs):
        shards = [sampler(n, rank, world_size, epoch) for rank in range(world_size)]
        for sample in range(n):
            ranks = [
                rank for rank in range(world_size) for index in shards[rank] if index == sample
            ]
            for k, rank in enumerate(ranks):
                height = 0.8 / len(ranks)
                bottom = epoch - 0.4 + k * height
                axes.bar(sample, height, 0.9, bottom, color=RANKS[rank])
                ground = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "linewidth": 0}
                middle = {"ha": "center", "va": "center"}
                axes.text(sample, bottom + height / 2, rank, fontsize=7, bbox=ground, **middle)
    axes.set_yticks(range(epochs), [f"epoch {epoch}" for epoch in range(epochs)])
    axes.set_xticks(range(n), range(n))
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(f"which of {world_size} ranks sees each of {n} samples", fontsize=10)
    return figure


dealt(reference.shard_indices, 10, 4, 3)

# %% [markdown]
# **Predict.** How many samples does each rank get, and how many are repeated so that all ranks get the same
# number? (The cell after the check of your sampler shows both numbers. Predictions that earn points are
# checked in §7.)


# %% nbgrader={"grade_id": "samples_each", "solution": true}
def samples_each(n: int, world_size: int) -> tuple[int, int]:
    """Return (samples per rank, repetitions among the samples of all ranks together)."""
    ### BEGIN SOLUTION
    each = -(-n // world_size)
    return each, each * world_size - n
    ### END SOLUTION


# %% [markdown]
# **Build.** The ranks don't have to send anything, because all of them draw the *same* permutation with
# `torch.randperm(n, generator=...)`, from a `torch.Generator` that is seeded with `seed + epoch`. Rank r
# takes position r of the permutation, and every N-th position after that. If N does not divide the number of
# samples, repeat the permutation from its beginning until all ranks have the same number.


# %% nbgrader={"grade_id": "shard_indices", "solution": true}
def shard_indices(
    n: int,
    rank: int,
    world_size: int,
    epoch: int = 0,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
) -> list[int]:
    """Return the samples, numbered 0 to n - 1, that `rank` sees in `epoch`, in order.

    Every rank gets ceil(n / world_size) samples. If the order is too short for that, continue
    it from its beginning, more than once if necessary (3 samples, 8 ranks).
    drop_last: every rank gets floor(n / world_size) instead, so that no sample is seen twice.
    shuffle: draw the order from `seed + epoch`, the same on all ranks. If False, use 0, 1, 2, ...
    Rank r takes positions r, r + world_size, r + 2 world_size, ... of the order.
    """
    ### BEGIN SOLUTION
    order = list(range(n))
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(n, generator=generator).tolist()
    each = n // world_size if drop_last else -(-n // world_size)
    return [order[place % n] for place in range(rank, each * world_size, world_size)]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Think of a pack of cards, shuffled once and dealt around the
# table. All ranks shuffle alike, so nothing has to be sent.</details>
# <details><summary>Hint: the step</summary>A rank takes the positions <code>rank, rank + N, ...</code> below
# <code>each * N</code>, where <code>each</code> is the number of its samples. Position p holds <code>order[p
# % n]</code>.</details>
#
# **Check.** The cell after the check prints your prediction next to the numbers of your sampler.

# %% nbgrader={"grade_id": "shard_indices_check", "points": 6}
report = check("03_data_parallel/shard_indices", shard_indices)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/shard_indices", shard_indices, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% tags=["skip-in-grading"]
cases = ((10, 4), (12, 4), (3, 8), (50_000, 64))
for n, world_size in cases if ready(shard_indices, samples_each) else ():
    shards = [shard_indices(n, rank, world_size) for rank in range(world_size)]
    if None in shards:
        print("shard_indices returned None instead of a list. Does it end with a `return`?")
        break
    twice = sum(map(len, shards)) - len({int(index) for shard in shards for index in shard})
    print(
        f"{n:6} samples, {world_size:2} ranks: you say {samples_each(n, world_size)}, "
        f"your sampler gives ({len(shards[0])}, {twice})"
    )

# %% [markdown]
# **Break it.** This sampler repeats no samples. It deals out ten samples to four ranks, so ranks 0 and 1 have
# three, but ranks 2 and 3 have only two. Before you run the cell, predict what happens, and at which sample.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def uneven():
    rank, n = dist.get_rank(), dist.get_world_size()
    for _ in range(10)[rank::n]:
        gradient = torch.ones(4, device=device())
        dist.all_reduce(gradient)
    return "done"


try_it(uneven)

# %% [markdown]
# <details><summary>After you have run it</summary>Ranks 0 and 1 wait in their third all-reduce (samples 8 and
# 9) for ranks 2 and 3, which have finished. On a cluster, such a hang happens at the end of an epoch, hours
# after the start, and NCCL waits for ten minutes before it reports anything.</details>
#
# **In production.** PyTorch provides `torch.utils.data.DistributedSampler`. You set its epoch from outside,
# with `sampler.set_epoch(epoch)`. If you forget this call, every epoch has the same order as the first.

# %% tags=["skip-in-grading"]
from torch.utils.data import DistributedSampler

for epoch in (0, 1):
    theirs = DistributedSampler(range(10), num_replicas=4, rank=1)
    theirs.set_epoch(epoch)
    ours = reference.shard_indices(10, 1, 4, epoch)
    print(f"epoch {epoch}, rank 1: PyTorch's {list(theirs)}, ours {ours}")

# %% [markdown]
# ## 2 · Replicas that stay in step
#
# | | |
# |---|---|
# | you will write | `gradient_bytes_sent(...)`, `NaiveDataParallel` |
# | builds on | §1; notebook 02: `broadcast`, `all_reduce` |
# | time | 25 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 10 |
#
# The loss is a mean over samples, so its gradient is the mean of the samples' gradients. If all ranks have
# equally many samples, it is therefore also the mean of the ranks' gradients. So if replicas start equal,
# average their gradients and take the same step, they stay equal and never have to compare their weights.
#
# The picture shows one step of the reference on four ranks. For each rank you see its computation, and below
# it the all-reduces. The bar of an all-reduce runs from the call until the rank has finished waiting for the
# result.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def phases(wrap, width=256, count=256):
    """Return the seconds from the barrier to the end of forward, and to the end of backward."""
    rank = dist.get_rank()
    model = wrap(network(rank, width))
    x, y = samples(100 + rank, count, width)
    for _ in range(2):  # the first time is a warm-up
        model.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), y)
        synchronize()  # on a GPU, read the clock once forward has run, not when it is launched
        forward = time.perf_counter()
        loss.backward()
        synchronize()
        backward = time.perf_counter()
        model.finish_gradient_synchronization()
    return forward - began, backward - began


def one_step_drawn(wrap, title):
    """Draw forward, backward and the all-reduces of a step on four ranks."""
    run = launch(phases, wrap, world_size=4)
    figure = picture(8.5, 3.2)
    axes = figure.subplots()
    for rank, (forward, backward) in enumerate(run):
        operations = run.ledger.operations(rank)
        start = max(k for k, operation in enumerate(operations) if operation.op == "barrier")
        row = {"y": rank - 0.22, "height": 0.36}
        axes.barh(width=1e3 * forward, color=FORWARD, label="forward", **row)
        back = {"color": BACKWARD, "hatch": "///", "edgecolor": "white", "label": "backward"}
        axes.barh(width=1e3 * (backward - forward), left=1e3 * forward, **back, **row)
        for k, operation in enumerate(operations[start + 1 :]):
            issued, completed = (
                1e3 * (when - operations[start].completed)
                for when in (operation.issued, operation.completed)
            )
            place = {"y": rank + 0.08 + 0.12 * (k % 3), "height": 0.11, "left": issued}
            sent = {"color": COMMUNICATION, "edgecolor": INK, "lw": 0.5, "label": "all-reduce"}
            axes.barh(width=completed - issued, **sent, **place)
    axes.set_yticks(range(4), [f"rank {rank}" for rank in range(4)])
    axes.invert_yaxis()
    axes.set_xlabel("ms since the barrier")
    axes.set_title(title, fontsize=10, loc="left")
    named = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))  # each label once
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "frameon": False}
    axes.legend(named.values(), named.keys(), fontsize=8, **place)
    return figure


one_step_drawn(reference.NaiveDataParallel, "one all-reduce for each parameter, after backward")

# %% [markdown]
# After forward and backward, twelve all-reduces follow, one after another, while no rank computes. (They are
# drawn on three lines so you can tell them apart.) If a rank's first all-reduce is long, that rank was early
# and waited for the other ranks.
#
# **Predict.** A replica has M bytes of gradients, and a step has K microbatches. With `no_sync` (§3), the
# gradients of the first K − 1 microbatches only add up on their ranks, and the total is sent once, after the
# last microbatch. Without `no_sync`, gradients are sent after every microbatch. How many bytes does each rank
# send in a step?


# %% nbgrader={"grade_id": "gradient_bytes_sent", "solution": true}
def gradient_bytes_sent(
    n: int, gradient_bytes: float, microbatches: int = 1, no_sync: bool = True
) -> float:
    """Return the bytes each of n ranks sends in a step of `microbatches`, with ring all-reduces."""
    ### BEGIN SOLUTION
    return (1 if no_sync else microbatches) * 2 * (n - 1) / n * gradient_bytes
    ### END SOLUTION


# %% [markdown]
# For 7B parameters in bf16, each of 8 ranks sends 24.5 GB, and each of 64 ranks sends 27.6 GB. You will often
# read that the cost is independent of N. In fact, a rank sends M if there are two ranks, and more if there
# are more ranks, but always less than 2M.
#
# **Build.** Your class is a module that wraps another module. `__init__` makes all replicas equal. After
# backward, the training loop calls `finish_gradient_synchronization()`, which averages the gradients.
#
# Real models have four peculiarities you must handle:
#
# - *Frozen* parameters have `requires_grad=False`. They must be broadcast like other parameters, but they
#   have no gradient to average.
# - *Tied* parameters are one tensor under two names. `parameters()` returns this tensor only once.
# - *Buffers* are part of the model, so they must be broadcast, but they have no gradients.
# - Some parameters got *no gradient on this rank* (`.grad` is `None`), because the rank's samples took
#   another branch of the model. The other ranks still wait for this rank in the all-reduce of that gradient.


# %% nbgrader={"grade_id": "naive_data_parallel", "solution": true}
class NaiveDataParallel(nn.Module):
    """Replicas of `module`, kept in step by one all-reduce per parameter after backward."""

    def __init__(self, module: nn.Module, group: Group = None):
        """Wrap `module`, and give it the parameters and buffers of the group's first rank."""
        super().__init__()
        self.module, self.group = module, group
        ### BEGIN SOLUTION
        first = dist.get_global_rank(group or dist.group.WORLD, 0)
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), first, group=group)
        ### END SOLUTION

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> None:
        """Replace the `.grad` of every parameter that requires a gradient with its mean over ranks.

        A parameter without a gradient on this rank counts as zeros, but gets the mean as well.
        Send 2 (N-1)/N times the gradients' bytes, since each gradient is all-reduced once.
        """
        ### BEGIN SOLUTION
        for p in self.module.parameters():
            if p.requires_grad:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= dist.get_world_size(self.group)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: broadcasting</summary>A broadcast writes into a tensor in place. Autograd should not
# see this if the tensor is a parameter that requires a gradient (PyTorch warns about it). So broadcast
# <code>p.detach()</code>, which shares the parameter's memory. <code>dist.broadcast(t, group_src=0,
# group=group)</code> starts from the first rank of the group.</details>
# <details><summary>Hint: the mean</summary><code>dist.all_reduce</code> sums, so divide by
# <code>dist.get_world_size(group)</code>, but only once, before or after the call.
# (<code>op=dist.ReduceOp.AVG</code> sums and divides. NCCL always supports it, but gloo only in some
# versions.)</details>
#
# **Check.** The cell after the check prints the bytes of your run next to your formula. `one_step` calls a
# barrier after the broadcast, and only the bytes after this barrier count.

# %% nbgrader={"grade_id": "naive_data_parallel_check", "points": 10}
report = check("03_data_parallel/naive_data_parallel", NaiveDataParallel)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/naive_data_parallel", NaiveDataParallel, cases="hidden")
### END HIDDEN TESTS
report.points(10)


# %% tags=["skip-in-grading"]
def sent_after_barrier(ledger, rank=0):
    """Return the operations of a rank after the first barrier."""
    operations = ledger.operations(rank)
    names = [operation.op for operation in operations]
    return operations[names.index("barrier") + 1 :]


for n in (2, 3, 4):
    run = try_it(one_step, NaiveDataParallel, world_size=n)
    if run is not None:
        nbytes = sum(gradient.nbytes for gradient in run[0].values())
        operations = sent_after_barrier(run.ledger)
        sent = sum(operation.bytes_sent for operation in operations)
        print(
            f"{n} ranks: you say {said(gradient_bytes_sent, n, nbytes):>8} bytes, the ledger {sent:8,.0f} "
            f"in {len(operations)} all-reduces"
        )

# %% [markdown]
# **Break it, twice.** The first class forgets to divide the sum by N, so its gradient is N times too large.
# The cell takes forty steps on four ranks with this class and with the right one, both with SGD and with
# AdamW. Before you run it, decide with which optimizer the two losses will clearly differ.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class Forgetful(NaiveDataParallel):
    """Keeps the sum instead of the mean."""

    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        for p in self.module.parameters():
            p.grad *= dist.get_world_size()


def losses(wrap, optimizer, steps=40):
    """Return this rank's loss before every step, always on the same data."""
    rank = dist.get_rank()
    model = wrap(network(rank, depth=3))
    # 32 is not a typo. The loss is a mean over 64 outputs, so its gradients are small.
    make, lr = {"SGD": (torch.optim.SGD, 32.0), "AdamW": (torch.optim.AdamW, 3e-3)}[optimizer]
    optimizer = make(model.parameters(), lr=lr)
    x, y = samples(100 + rank, 64)
    losses_seen = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        losses_seen.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        model.finish_gradient_synchronization()
        optimizer.step()
    return losses_seen


for optimizer in ("SGD", "AdamW"):
    runs = [try_it(losses, wrap, optimizer) for wrap in (NaiveDataParallel, Forgetful)]
    if None not in runs:
        right, wrong = (run[0][-1] for run in runs)
        print(f"{optimizer:6} last loss: mean {right:.5f}   sum {wrong:.5f}")

# %% [markdown]
# <details><summary>After you have run it</summary>AdamW divides the running mean of the gradient by the root
# of the running mean of its square, so a constant factor cancels (except for the effect of eps). This is why
# training with Adam does not test your averaging. With SGD, a sum has the effect of a learning rate that is N
# times as large. If the learning rate was small, the sum might even look better, but if it was well chosen,
# training breaks. To test your averaging, compare gradients or train with SGD, as the checks do.</details>
#
# The second class mistakes the hook's argument for the gradient. But autograd passes the *parameter* to a
# hook registered with `register_post_accumulate_grad_hook`, so this class averages parameters. What will the
# check say?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class ParameterInHook(NaiveDataParallel):
    """Averages the tensor that is passed to the hook."""

    def __init__(self, module, group=None):
        super().__init__(module, group)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.average)

    def average(self, tensor):
        dist.all_reduce(tensor.data)
        tensor.data /= dist.get_world_size()

    def finish_gradient_synchronization(self):
        pass


check("03_data_parallel/naive_data_parallel", ParameterInHook, seed=3)

# %% [markdown]
# <details><summary>After you have run it</summary>In step 1, the weights that the hook averages are already
# equal, so the hook changes nothing. Each rank keeps its own gradients, and after the step the replicas
# differ. The next backward averages the <i>weights</i>, but its gradients come from unequal weights. The model
# still trains, but worse. If you run <code>try_it(losses, ParameterInHook, "SGD")[0][-1]</code>, you get rank
# 0's loss before the last of forty steps. It is 0.18, whereas your class reached 0.05 (<i>mean</i> in the
# line for SGD above). No rank raises an error.</details>
#
# **In production.** The next cell compares your class with `DistributedDataParallel`, on the same model and
# data. DDP reduces gradients in buckets of 25 MB (only the first bucket has 1 MB). The gradients of this
# model take only 0.1 MB, so DDP sends them in one message.


# %% tags=["skip-in-grading"]
def ddp(module):
    return nn.parallel.DistributedDataParallel(module)


def compared(ours, theirs=ddp, before=0):
    """Print how far the gradients differ, relative to the largest gradient,
    and the bytes and all-reduces of both."""
    runs = [try_it(one_step, wrap, before=before) for wrap in (ours, theirs)]
    if None in runs:
        return
    mine, others = (torch.cat([g.flatten() for g in run[0].values()]) for run in runs)
    far = ((mine - others).abs().max() / mine.abs().max()).item()
    if far < 1e-2:
        print(f"gradients are equal to within float{32 if far < 1e-5 else 16}'s rounding")
    else:
        print(f"gradients are NOT equal: they differ by up to {far:.0%} of the largest gradient")
    for name, run in zip(("yours", "DDP"), runs, strict=True):
        operations = [operation for operation in sent_after_barrier(run.ledger) if operation.nbytes]
        sent = sum(operation.bytes_sent for operation in operations)
        print(f"{name:6} {sent:,.0f} bytes, all-reduces: {len(operations)}")


compared(NaiveDataParallel)

# %% [markdown]
# The bytes are equal, but your class pays the latency twelve times. A single all-reduce of all gradients in
# one flat tensor (`reference.FlatDataParallel`) pays it only once. For example, take a model of 300 parameter
# tensors on 8 ranks. A ring all-reduce has 2 (N−1) = 14 rounds, and each costs a latency of α = 20 µs. Then
# the flat all-reduce has a latency of 14 · 20 µs = 0.28 ms, instead of 300 · 0.28 = 84 ms. But neither the
# flat all-reduce nor your class hides anything, because both send all gradients after backward.
#
# <details><summary>In the lectures</summary>Lecture 001 says that the cost of the all-reduce is "independent
# of N". Its DDP also takes <code>device_ids=[local_rank]</code>, the rank's GPU. You can leave this out, but
# with it DDP also moves the inputs to this GPU.</details>

# %% [markdown]
# ## 3 · Buckets, while backward runs
#
# | | |
# |---|---|
# | you will write | `exposed_seconds(...)`, `scaling_efficiency(...)`, `BucketedDataParallel` |
# | builds on | §2 |
# | time | 65 minutes |
# | difficulty, importance | 5 and 5 of 5 |
# | points | 16 |
#
# Backward runs from the last layer to the first. When the last layer's gradient is complete, most of backward
# is still ahead, so you can send that gradient immediately. In general, the gradient of layer i travels while
# backward computes layer i − 1. But one message for each parameter pays too much latency, and one message for
# all parameters can leave only at the end. Buckets of a few megabytes are a compromise.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
one_step_drawn(
    lambda m: reference.BucketedDataParallel(m, 600_000), "three buckets, begun while backward runs"
)

# %% [markdown]
# In the picture, a grey bar begins when the rank starts the all-reduce of a bucket, while the orange backward
# still runs. The bar ends when the rank has finished waiting for the bucket. It always ends after backward,
# even if the sum arrived earlier, because a rank waits only after backward, and the ledger does not record
# when the sum arrived. The grey to the right of the orange bar is exposed. (On a laptop, ranks and messages
# share the cores, so you save little time, and backward itself takes longer. Overlap pays off when the
# network needs no CPU core.)
#
# **Predict.** Backward takes t seconds and makes gradients at an even pace, in B equal buckets. All of the
# communication takes c seconds, one bucket after another. Bucket k = 1, 2, ..., B is full at time k/B · t.
# How long does the step wait after backward has ended? There are two cases, because backward can be slower or
# faster than communication. The *scaling efficiency* is the share of the step in which a rank computes. The
# cell after yours applies your functions to the 0.49 s from the top of this notebook. In that cell, backward
# takes 1 s, and each rank computes for 1.5 s per step.
#
# <details><summary>Hint: the two cases</summary>If backward is slower, every bucket except the last has
# arrived before the last bucket leaves. If communication is slower, the wire is never idle after the first
# bucket has left. When does the first bucket leave, and when is the wire done?</details>


# %% nbgrader={"grade_id": "exposed_seconds", "solution": true}
def exposed_seconds(backward: float, communication: float, buckets: int) -> float:
    """Return the seconds from the end of backward until the last bucket has arrived."""
    ### BEGIN SOLUTION
    last_bucket = communication / buckets  # leaves when backward ends
    from_the_first = backward / buckets + communication - backward  # if the wire never pauses
    return max(last_bucket, from_the_first)
    ### END SOLUTION


def scaling_efficiency(compute: float, exposed: float) -> float:
    """Return the share of a step spent computing. `compute` and `exposed` are in seconds."""
    ### BEGIN SOLUTION
    return compute / (compute + exposed)
    ### END SOLUTION


# %% tags=["skip-in-grading"]
for buckets in (1, 4, 20):
    exposed = predicted(exposed_seconds, 1.0, 0.49, buckets)
    share = None if exposed is None else predicted(scaling_efficiency, 1.5, exposed)
    if share is None:
        break
    print(f"7B on 8 GPUs, buckets: {buckets:2}, exposed: {exposed:.4f} s, efficiency: {share:.3f}")

# %% [markdown]
# **Build.** In `__init__`, broadcast as before. Then go through the parameters that require a gradient, *in
# reverse order of registration*, and fill buckets. If the next parameter would make a bucket larger than
# `bucket_bytes`, begin a new bucket (so a parameter that is larger than a bucket has a bucket to itself).
# Give each of these parameters a hook with `register_post_accumulate_grad_hook` (a frozen parameter would
# refuse the hook).
#
# In the picture, `bucket_bytes` is 400. The numbers give the order in which the hooks fire. The colours mark
# the buckets, which leave from left to right.

# %% tags=["skip-in-grading"]
layers = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
in_buckets = [["4.bias", "4.weight", "2.bias"], ["2.weight"], ["0.bias", "0.weight"]]
arrived = []
for name, p in layers.named_parameters():
    p.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
layers(torch.ones(2, 6)).sum().backward()

figure = picture(9.0, 2.6)
axes = figure.subplots()
wide = {name: (4 * p.numel()) ** 0.5 for name, p in layers.named_parameters()}
above, left = {}, 0.0
for name in wide:  # in the order of registration
    above[name] = left + wide[name] / 2
    left += wide[name] + 6
below = 0.0
for turn, (colour, names) in enumerate(zip(RANKS, in_buckets, strict=False), start=1):
    axes.barh(0, 0, color=colour, label=f"bucket {turn}")
    for name in names:
        nbytes, number = round(wide[name] ** 2), arrived.index(name) + 1
        axes.barh(0, wide[name], 0.5, above[name] - wide[name] / 2, color=colour, edgecolor=INK)
        axes.text(above[name], -0.45, f"{name}\n{nbytes} B", ha="center", va="bottom", fontsize=8)
        axes.text(above[name], 0.05, number, ha="center", va="center", color="white", fontsize=9)
        axes.barh(2, wide[name], 0.5, below, color=colour, edgecolor=INK)
        axes.plot((above[name], below + wide[name] / 2), (0.3, 1.7), color=colour, lw=1)
        below += wide[name]
    below += 12
axes.set(ylim=(2.4, -1.1), xticks=[], yticks=(0, 2))
axes.set_yticklabels(("parameters", "buckets"))
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3, frameon=False, fontsize=8)
figure

# %% [markdown]
# `2.weight` is larger than a bucket is allowed to be, so it has a bucket to itself. The last layer's
# parameters were registered last, but their gradients are complete first, so they leave first.
#
# When autograd calls the hook, the parameter's gradient is complete. A bucket is full when the gradients of
# all its parameters are complete. To send a full bucket, copy its gradients into a flat tensor and start the
# all-reduce with `async_op=True`. Keep the handle, and do not wait.
#
# *All ranks must start the same all-reduces in the same order*, but gradients can become ready in different
# orders on different ranks. So the hook looks at the first bucket that has not left yet. While that bucket is
# full, the hook sends it and goes on to the next. A single call of the hook can therefore send several
# buckets, or none.
#
# In `finish_gradient_synchronization()`, send the buckets that have not been sent yet (parameters without a
# gradient count as zeros), wait for each handle, divide, and copy the means back.
#
# Under `no_sync()`, hooks do nothing, so the gradients of several microbatches add up in `.grad`. The first
# backward after `no_sync()` sends the total.


# %% nbgrader={"grade_id": "bucketed_data_parallel", "solution": true}
class BucketedDataParallel(nn.Module):
    """Replicas of `module`, whose gradients are averaged in buckets while backward runs."""

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 << 20, group: Group = None):
        """Broadcast parameters and buffers from the group's first rank, put the parameters that
        require a gradient into buckets, and register hooks. A bucket has more than `bucket_bytes`
        only if it holds a single parameter."""
        super().__init__()
        self.module, self.group = module, group
        ### BEGIN SOLUTION
        first = dist.get_global_rank(group or dist.group.WORLD, 0)
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), first, group=group)
        self.synchronises = True
        self.buckets: list[list[nn.Parameter]] = []
        filled = 0
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if not self.buckets or filled + p.nbytes > bucket_bytes:
                self.buckets.append([])
                filled = 0
            self.buckets[-1].append(p)
            filled += p.nbytes
        self.bucket_of = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
        self._begin()
        for p in self.bucket_of:
            p.register_post_accumulate_grad_hook(self._arrived)
        ### END SOLUTION

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        """Inside, backward only adds to `.grad`. The next backward outside sends the total."""
        ### BEGIN SOLUTION
        self.synchronises = False
        try:
            yield
        finally:
            self.synchronises = True
        ### END SOLUTION

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> None:
        """Send the rest, wait for all buckets, and replace every `.grad` with its mean over ranks.

        As in NaiveDataParallel, every parameter that requires a gradient has a `.grad` afterwards.
        Send 2 (N-1)/N times the gradients' bytes in total, with one all-reduce per bucket.
        """
        ### BEGIN SOLUTION
        for missing in self.missing:
            missing.clear()  # no more gradients will arrive
        self._launch()
        n = dist.get_world_size(self.group)
        for bucket, (flat, work) in zip(self.buckets, self.under_way, strict=True):
            work.wait()
            flat /= n
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = part.view_as(p)
        self._begin()

    def _begin(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.under_way: list[tuple[torch.Tensor, dist.Work]] = []

    @torch.no_grad()
    def _arrived(self, p):
        if self.synchronises:
            self.missing[self.bucket_of[p]].discard(p)
            self._launch()

    def _launch(self):
        """Start the next buckets in order, up to the first incomplete bucket."""
        for k in range(len(self.under_way), len(self.buckets)):
            bucket = self.buckets[k]
            if self.missing[k]:
                break
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([gradient.flatten() for gradient in grads])
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self.under_way.append((flat, work))
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the things to remember</summary>Remember the buckets (lists of parameters) and the
# bucket of each parameter. For each bucket, remember the parameters whose gradients are still missing. For
# each bucket that has left, remember the flat tensor and the handle. At the end of <code>finish</code>, count
# every gradient as missing again, and drop the flat tensors and handles.</details>
# <details><summary>Hint: flat and back</summary>To flatten, use <code>torch.cat([g.flatten() for g in
# grads])</code>. To get back, use <code>flat.split([p.numel() for p in bucket])</code> and
# <code>view_as(p)</code>.</details>
# <details><summary>Hint: it hangs, or values are mixed up</summary>Print the order of all-reduces on each
# rank. A rank whose samples skip a layer fills its buckets in a different order. So launch the buckets in the
# order of your list, and let <code>finish</code> send the rest.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "bucketed_data_parallel_check", "points": 16}
report = check("03_data_parallel/bucketed_data_parallel", BucketedDataParallel)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/bucketed_data_parallel", BucketedDataParallel, cases="hidden")
### END HIDDEN TESTS
report.points(16)

# %% [markdown]
# **Measure.** On this machine, ranks compute on the cores that also copy their messages. So overlap saves
# little time here, and the amount depends on what else is running. The next cell therefore imitates a cluster
# in slow motion. The backward of each of eight layers takes 10 ms, the wire carries 200 MB/s, and neither
# needs a core. Ranks, gradients (1 MB per layer) and the order of events are real. In the figure, exposed
# communication is grey, and a black line marks where it ends according to your `exposed_seconds`.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class Arrival:
    """The handle of an all-reduce whose sum arrives no sooner than a given time."""

    def __init__(self, work, at):
        self.work, self.at = work, at

    def wait(self):
        self.work.wait()
        time.sleep(max(0.0, self.at - time.perf_counter()))


def slow_wire(bandwidth):
    """From now on, send this rank's all-reduces one by one over a wire
    of `bandwidth` bytes per second."""
    n, real, free = dist.get_world_size(), dist.all_reduce, 0.0

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        nonlocal free
        free = max(free, time.perf_counter()) + 2 * (n - 1) / n * tensor.nbytes / bandwidth
        handle = Arrival(real(tensor, op, group, async_op=True), free)
        return handle if async_op else handle.wait()

    dist.all_reduce = all_reduce


def clocked(wraps, layer=0.010, wire=200e6, width=512, depth=8, steps=6):
    """Return, by name, (seconds of forward and backward, then seconds until the mean is ready)
    for the best step."""

    def pace(module, args, output):
        output.register_hook(lambda gradient: time.sleep(layer))

    rank = dist.get_rank()
    models = {name: wrap(network(rank, width, depth)) for name, wrap in wraps.items()}
    for model in models.values():
        for block in model.module:
            block.register_forward_hook(pace)
    slow_wire(wire)
    x, y = samples(rank, 16, width)
    best = dict.fromkeys(wraps, (math.inf, math.inf))
    for _ in range(steps):
        for name, model in models.items():
            model.zero_grad()
            dist.barrier()
            began = time.perf_counter()
            nn.functional.mse_loss(model(x), y).backward()
            turned = time.perf_counter()
            model.finish_gradient_synchronization()
            best[name] = min(best[name], (turned - began, time.perf_counter() - turned), key=sum)
    return best


contestants = {  # name: (class, buckets in your exposed_seconds)
    "naive": (NaiveDataParallel, 1),
    "one bucket of 25 MB": (BucketedDataParallel, 1),
    "a bucket for each layer": (lambda module: BucketedDataParallel(module, 1_051_000), 8),
}
wraps = {name: wrap for name, (wrap, _) in contestants.items()}
figure = None
# on the CPU, because a process that sleeps imitates the wire
run = try_it(clocked, wraps, world_size=2, backend="gloo")
if run is not None:
    figure = picture(7.5, 2.2)
    axes = figure.subplots()
    for name, (_, parts) in contestants.items():
        compute, exposed = min((rank[name] for rank in run), key=lambda t: t[1])  # the last rank
        axes.barh(name, 1000 * compute, color=BACKWARD, hatch="///", edgecolor="white")
        axes.barh(name, 1000 * exposed, left=1000 * compute, color=COMMUNICATION)
        print(f"{name:23} exposed {1000 * exposed:5.1f} ms", end=", ")
        sending = 8 * 4 * (512 * 512 + 512) / 200e6
        expected = predicted(exposed_seconds, 8 * 0.010, sending, parts)
        if expected is not None:
            axes.plot(1000 * (compute + expected), name, "|", color=INK, ms=20)
            print(f"you say {1000 * expected:.1f} ms")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds: forward and backward (hatched), then exposed communication")
figure

# %% [markdown]
# A bucket of 25 MB holds the whole model, so it leaves when backward ends, and nothing overlaps. With a
# bucket for each layer, all buckets except the last have arrived by the time backward ends. The naive class
# sends one message for each parameter after backward, so it waits for all the bytes, and for sixteen
# latencies.
#
# To measure your machine as it is, run `try_it(clocked, wraps, layer=0, wire=math.inf, world_size=2)`, and
# run it more than once, because the numbers vary. With buckets, the exposed part might be shorter and
# backward longer, since the same cores run backward and copy the messages.
#
# **Break it, twice.** The first class *synchronises only the last microbatch*. After each `no_sync()`, it
# sets the rank's gradients aside, and it adds them back only after the last all-reduce. Before you run it,
# predict which lines of the check will notice.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class LastOnly(BucketedDataParallel):
    """Gradients of the microbatches under no_sync() never travel."""

    @contextlib.contextmanager
    def no_sync(self):
        with super().no_sync():
            yield
        kept = getattr(self, "kept", {})
        for p in self.module.parameters():
            if p.grad is not None:
                kept[p] = kept.get(p, 0) + p.grad
                p.grad = None
        self.kept = kept

    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        for p, own in getattr(self, "kept", {}).items():
            p.grad = p.grad + own
        self.kept = {}


check("03_data_parallel/bucketed_data_parallel", LastOnly, seed=3)

# %% [markdown]
# <details><summary>After you have run it</summary>With one microbatch everything is right, and the number of
# bytes is always right, so only the run with accumulation shows the mistake. The check computes the gradients
# this mistake would give, and finds exactly those.</details>
#
# Accumulation loops often contain one of two other mistakes. Some forget to divide by K, although the sum g =
# Σ gᵢ over K microbatches is K times the mean. Others forget `no_sync()`, so DDP sends the gradients K times,
# which is K · 24.5 GB for the 7B model.
#
# The second program *reads a bucket too early*. Before `wait()`, the flat tensor might hold the rank's own
# values, part of the sum, or the whole sum. Which values could the four ranks see? And which value must all
# of them see after `wait()`?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def too_early():
    rank = dist.get_rank()
    flat = torch.full((1_000_000,), float(rank), device=device())
    dist.barrier()
    work = dist.all_reduce(flat, async_op=True)
    early = flat.clone()  # without waiting
    work.wait()
    return f"read early: {sorted(set(early.tolist()))[:4]}, after wait: {flat[0].item()}"


run = try_it(too_early)
if run is not None:
    print(*(f"rank {rank} {said}" for rank, said in enumerate(run)), sep="\n")

# %% [markdown]
# After `wait()`, all ranks must see the sum, which is 6. A rank that divides or copies before `wait()` might
# train on some other value. No exception is raised, and the next run might give yet another value.
#
# **In production.** DDP does the same as your class, in C++, and a little more. In its first step, DDP puts
# all gradients into one bucket, and records in which order they become ready. For later steps, it divides
# them into buckets in that order. With `find_unused_parameters=True`, it also walks the graph to find the
# parameters that will get no gradient. The cell first prints a later step of DDP next to a later step of
# yours, both in buckets of 20 KB. Then it gives DDP a *comm hook*, a function that decides what DDP does with
# a full bucket. The hook in the cell comes with PyTorch, and it sends 16 bits per element:


# %% tags=["skip-in-grading"]
def in_half(module):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = nn.parallel.DistributedDataParallel(module)
    model.register_comm_hook(None, fp16_compress_hook)
    return model


print("Buckets of 20 KB")
compared(
    lambda module: BucketedDataParallel(module, 20_000),
    lambda module: nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.02),
    before=2,
)
print("DDP with a hook for 16 bits")
compared(BucketedDataParallel, in_half)

# %% [markdown]
# In the first comparison, the bytes are the same. The number of buckets differs, because DDP closes a bucket
# once the bucket has reached the limit, whereas your class closes a bucket before it would exceed the limit.
# In the second comparison, DDP sends half the bytes, but its gradients differ in the fourth digit. In §5 and
# §6 you send even fewer bytes.
#
# <details><summary>In the lectures</summary>Lecture 001 §25.2 sends layer i "while computing layer i+1", but
# it should be i − 1. Its formula for accumulation is g = Σ gᵢ, although its code rightly divides. Under DDP,
# that code would send the gradients K times, since it does not use <code>no_sync()</code>.</details>

# %% [markdown]
# ## 4 · A mean of means is wrong
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §2 |
# | time | 5 minutes |
#
# So far, the mean of the ranks' gradients has been right, because every rank had equally many samples. But in
# practice the counts can differ, because sequences have different lengths, the last batch is short, and
# padding does not count. Say rank 0 has 50 tokens with a mean gradient of 1, and rank 1 has 10 tokens with a
# mean gradient of 7. Then the mean of all 60 tokens is (50 · 1 + 10 · 7)/60 = 2, but the mean of the means is
# 4.
#
# **Break it.** The cell computes both means on two ranks, of which the first has three samples and the second
# has one. The right gradient is the gradient of one process with all four samples.


# %% tags=["skip-in-grading"]
def unequal(counted):
    rank = dist.get_rank()
    model = reference.NaiveDataParallel(network(0))
    count = (3, 1)[rank]
    x, y = samples(7, 4)
    mine = slice(0, 3) if rank == 0 else slice(3, 4)
    error = (model(x[mine]) - y[mine]).square().mean(1)  # one for each sample
    if counted:
        error.sum().backward()
        model.finish_gradient_synchronization(count=count)
    else:
        error.mean().backward()
        model.finish_gradient_synchronization()
    whole = network(0)
    (whole(x) - y).square().mean(1).mean().backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return max(((p.grad - q.grad).abs().max() / q.grad.abs().max()).item() for p, q in pairs)


for counted in (False, True):
    off = launch(unequal, counted, world_size=2)[0]
    print(
        "sum / number of all samples:" if counted else "mean of means:",
        "right" if off < 1e-5 else "wrong",
    )

# %% [markdown]
# The cure has three steps. First, every rank takes the *sum* of the losses of its samples. Then the gradients
# are summed over the ranks. Finally, they are divided by the number of samples on all ranks together. That
# number is also a sum over the ranks, which needs one more all-reduce, of 8 bytes. The wrappers in
# `reference` do the last two steps in `finish_gradient_synchronization(count=...)`.
#
# **In production.** DDP divides by N, whatever the counts are. With unequal counts, you have to multiply each
# rank's mean loss by N · (own count)/(count of all) yourself. When you accumulate gradients over microbatches
# with unequal counts, you have the same problem. Until 2024, widely used trainers had this bug in their
# accumulation (Hugging Face, "Fixing Gradient Accumulation").
#
# <details><summary>In the lectures</summary>Lecture 002 tokenizes with <code>padding=True</code> and passes
# the inputs as <code>labels</code>, so padding would count as targets. Set those labels to -100, which the
# loss leaves out. GPT-2's tokenizer also raises an error there, because it has no padding token until you set
# one.</details>

# %% [markdown]
# ## 5 · Send the largest: top-k
#
# | | |
# |---|---|
# | you will write | `topk_bytes_sent(...)`, `topk_all_reduce(tensor, fraction, error, group=None)` |
# | builds on | §2; notebook 02: all-gather |
# | time | 20 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | points | 8 |
#
# Between machines, a link might carry only 25 Gb/s. That is 3.1 GB/s instead of 50 GB/s, so 24.5 GB take 8 s.
# On such a link, it pays to send less. You can leave out many elements, because most of a gradient's norm
# comes from a few large elements. For one step of our network, the picture shows how much of the squared
# norm, Σ g², comes from the largest elements.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
gradients = launch(one_step, reference.NaiveDataParallel, world_size=1)[0]
squares = torch.cat([g.flatten() for g in gradients.values()]).square().sort(descending=True).values
share = squares.cumsum(0) / squares.sum()
figure = picture(5.5, 2.6)
axes = figure.subplots()
axes.plot(torch.linspace(0, 100, len(share)), 100 * share, color=RANKS[0])
axes.set_xlabel("largest elements, % of all")
axes.set_ylabel("% of the squared norm")
axes.grid(True, alpha=0.3)
percent = 100 * share[len(share) // 100].item()
print(f"The largest 1 % of the elements hold {percent:.0f} % of the squared norm")
figure

# %% [markdown]
# With top-k, each rank sends its k largest elements and **keeps the rest**. In the next step, it picks the k
# largest elements of gradient + rest. If an element is small but has the same sign in every step, its rest
# grows until it is large enough to be sent. This is called *error feedback*.
#
# Ranks pick different elements, so the messages can't be added up on their way around a ring. Instead, an
# element travels as a pair of index and value, and every rank gets the pairs of all ranks, by all-gather.
#
# **Predict.** Each rank sends k = max(1, round(fraction · numel)) pairs to every other rank. A pair consists
# of an index and a value, of 4 bytes each. How many bytes does a rank send?


# %% nbgrader={"grade_id": "topk_bytes_sent", "solution": true}
def topk_bytes_sent(n: int, numel: int, fraction: float) -> float:
    """Return the bytes each of n ranks sends for one float32 tensor."""
    ### BEGIN SOLUTION
    return (n - 1) * max(1, round(fraction * numel)) * 8
    ### END SOLUTION


# %% tags=["skip-in-grading"]
for n in (2, 8, 64, 100, 512):
    whole, pairs = (
        predicted(gradient_bytes_sent, n, 4e6),
        predicted(topk_bytes_sent, n, 1_000_000, 0.01),
    )
    if whole is None or not pairs:
        break
    print(f"{n:3} ranks: an all-reduce sends {whole / pairs:5.2f} times as much as top-k at 1 %")

# %% [markdown]
# You will often read that top-k sends 10 to 100 times less. At 1 %, however, it sends only 50 times less on
# two ranks, since indices cost as much as values. And on 100 ranks, it sends no less than the all-reduce,
# because each pair is sent to 99 ranks.
#
# **Build.** `error` is the rest that earlier steps did not send. This tensor belongs to the caller, which
# passes it to your function again in the next step.


# %% nbgrader={"grade_id": "topk_all_reduce", "solution": true}
@torch.no_grad()
def topk_all_reduce(
    tensor: torch.Tensor, fraction: float, error: torch.Tensor, group: Group = None
) -> None:
    """Replace `tensor` with the mean over the ranks of the k largest elements of `tensor + error`.

    An element a rank does not send counts as 0 on that rank, so divide the sum of the sent
    elements by N.
    tensor: float32, of any shape that is the same on every rank, contiguous or not. It is
    overwritten in place, with the same bits on every rank.
    error: of the same shape, and overwritten with the part of `tensor + error` this rank did
    not send.
    k = max(1, round(fraction * size)). The k largest elements have the largest magnitudes.
    Send (N-1) k (4 + 4) bytes, for indices as int32 and for values.
    """
    ### BEGIN SOLUTION
    n = dist.get_world_size(group)
    k = max(1, round(fraction * tensor.numel()))
    asked = (tensor + error).flatten()
    indices = asked.abs().topk(k).indices
    values = asked[indices]
    every_index = torch.empty(n * k, dtype=torch.int32, device=tensor.device)
    every_value = torch.empty(n * k, dtype=values.dtype, device=tensor.device)
    dist.all_gather_into_tensor(every_index, indices.int(), group=group)
    dist.all_gather_into_tensor(every_value, values, group=group)

    mean = torch.zeros_like(asked).index_add_(0, every_index.long(), every_value) / n
    asked[indices] = 0
    error.copy_(asked.view_as(error))
    tensor.copy_(mean.view_as(tensor))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Compute <code>asked = tensor + error</code>, and pick its largest
# elements. Then gather indices and values of all ranks, add each value at its index, and divide by N. The new
# error is <code>asked</code> with zeros at the elements that were sent. Overwrite both arguments in place,
# for example with <code>tensor.copy_(...)</code>.</details>
# <details><summary>Hint: the step</summary>Use <code>asked.abs().topk(k).indices</code>.
# <code>torch.zeros_like(asked).index_add_(0, indices, values)</code> adds up the values of an index that
# occurs twice.</details>
#
# **Check.** The cell after the check compares your bytes with your formula.

# %% nbgrader={"grade_id": "topk_all_reduce_check", "points": 8}
report = check("03_data_parallel/topk_all_reduce", topk_all_reduce)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/topk_all_reduce", topk_all_reduce, cases="hidden")
### END HIDDEN TESTS
report.points(8)


# %% tags=["skip-in-grading"]
def average_of_noise(average):
    tensor = torch.randn(100_000, device=device())
    average(tensor, torch.zeros_like(tensor))


def beside(name, average, prediction, *args):
    """Print the bytes of `average(tensor, error)` for 100,000 elements next to
    prediction(n, 100_000, ...)."""
    for n in (2, 4):
        run = try_it(average_of_noise, average, world_size=n)
        if run is not None:
            sent = run.ledger.bytes_sent(0)
            print(
                f"{name}, {n} ranks: you say {said(prediction, n, 100_000, *args)} bytes, the ledger {sent:,.0f}"
            )


beside("top 1 %", lambda t, e: topk_all_reduce(t, 0.01, e), topk_bytes_sent, 0.01)

# %% [markdown]
# **Break it.** Without error feedback, the rest is thrown away in every step. The picture shows sixty steps
# of SGD on four ranks. Before you run it, think about an element that is never among the largest. What
# happens to it?


# %% tags=["skip-in-grading"]
def trained_with(average, forget=False, steps=60):
    """Return the loss before each step, with gradients averaged by average(tensor, error)."""
    rank = dist.get_rank()
    model = network(0, depth=3)
    held = list(model.parameters())
    error = torch.zeros(sum(p.numel() for p in held), device=device())
    x, y = samples(100 + rank, 64)
    losses_seen = []
    for _ in range(steps):
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in held])
        average(flat, error)
        if forget:
            error.zero_()
        with torch.no_grad():
            for p, part in zip(held, flat.split([p.numel() for p in held]), strict=True):
                p -= 2.0 * part.view_as(p)
        losses_seen.append(loss.item())
    return losses_seen


def plain_mean(tensor, error):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def curves(ways):
    """Draw a loss curve for each way, which is a pair (function, forget)."""
    figure = picture(7, 3)
    axes = figure.subplots()
    styles = zip(ways.items(), RANKS, ("-", "--", "-.", ":"), strict=False)
    for (name, (average, forget)), colour, dashes in styles:
        run = try_it(trained_with, average, forget)
        if run is not None:
            curve = torch.tensor(list(run)).mean(0)
            axes.plot(curve, dashes, label=name, color=colour)
            sent = run.ledger.bytes_sent(0) / 60
            print(f"{name:32} loss {curve[-1].item():.4f}, {sent:9,.0f} bytes per step")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, mean over the ranks")
    axes.grid(True, alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, handlelength=3)
    return figure


# %% tags=["nbval-ignore-output", "skip-in-grading"]
curves(
    {
        "float32": (plain_mean, False),
        "top 1 %, the rest kept": (lambda t, e: topk_all_reduce(t, 0.01, e), False),
        "top 1 %, the rest thrown away": (lambda t, e: topk_all_reduce(t, 0.01, e), True),
    }
)

# %% [markdown]
# <details><summary>After you have run it</summary>If the small elements are thrown away, they never count. If
# they are kept, they arrive late and the loss falls later, because on average an element is sent only once in
# 1/fraction = 100 steps. With momentum and a learning rate tuned for float32, this delay can hurt, so
# compression is not free.</details>
#
# **In production.** Deep Gradient Compression (Lin et al. 2018) sent only 0.1 % of the elements. Two things
# made this possible: error feedback for the momentum as well, and larger fractions in the first epochs.
# PyTorch's DDP does not provide a top-k hook, but it provides `powerSGD_hook` (§6, §9). DeepSpeed provides
# 1-bit Adam, which compresses the *momentum* instead of the gradient, after a warm-up in full precision.
# `course_lib.compression` contains PowerSGD and 1-bit Adam for you to read.
#
# <details><summary>In the lectures</summary>Lecture 001 §25.1 says that top-k and the eight bits of §6
# make gradients 10 to 100 times smaller. Lecture 002 says that 1-bit Adam quantises gradient updates, but it
# quantises the momentum.</details>

# %% [markdown]
# ## 6 · Send eight bits
#
# | | |
# |---|---|
# | you will write | `int8_bytes_sent(n, numel)` (no points), `int8_all_reduce(tensor, error, group=None)` |
# | builds on | §5; notebook 02: all-to-all, all-gather |
# | time | 20 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | points | 8 |
#
# Instead of sending a few elements in full precision, you can send all of them with eight bits each. The
# *scale* of a block of 256 elements is the largest magnitude in the block, divided by 127. The block is
# divided by its scale and then rounded. So the block takes 256 bytes, plus 4 bytes for the scale, which is
# 3.94 times less than in float32. (Compared with the 16 bits of bf16, it is 1.97 times less.) The next cell
# defines `quantize` and `dequantize` for you, and shows a row before and after rounding.
#
# How far off is each value if one element is large? The second cell shows this, once with a scale for each
# block, and once with a single scale for all blocks. (In the block of the large element, the two curves
# coincide.)

# %%
BLOCK = 256


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn (rows, size) float32 into elements, (rows, size) int8, and scales,
    (rows, ceil(size/256)) float32."""
    padded = nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = blocks.abs().amax(-1) / 127
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    elements = steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]]
    return elements.contiguous(), scales


def dequantize(elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return (rows, size) float32 from the two results of `quantize`."""
    return elements * scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]


torch.manual_seed(0)
row = torch.randn(1, 5)
print("before    ", [round(x, 3) for x in row[0].tolist()])
print("int8      ", quantize(row)[0][0].tolist())
print("and back  ", [round(x, 3) for x in dequantize(*quantize(row))[0].tolist()])

# %% tags=["skip-in-grading"]
values = torch.randn(1, 2048)
values[0, 700] = 300.0
one_scale = (values / (300 / 127)).round() * (300 / 127)
figure = picture(7.5, 2.4)
axes = figure.subplots()
axes.semilogy(
    (one_scale - values).abs()[0] + 1e-5, color=RANKS[1], lw=0.6, label="one scale for all"
)
axes.semilogy(
    (dequantize(*quantize(values)) - values).abs()[0] + 1e-5,
    color=RANKS[0],
    lw=0.6,
    label="one scale per 256 elements",
)
axes.set_xlabel("element (element 700 is 300, the others are of order 1)")
axes.set_ylabel("error")
axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)
figure

# %% [markdown]
# How can the ranks average such blocks? Elements can't be summed in int8, because the sum overflows (100 +
# 100 gives −56), and blocks with different scales can't be added at all. If every rank gathered the blocks of
# all ranks, it would send (N−1) · M/4 bytes, which at N = 8 is as much as in an all-reduce in float32. So
# work in two steps, like a reduce-scatter followed by an all-gather:
#
# 1. Cut `tensor + error` into N shards, quantise them, and send shard r to rank r, by **all-to-all**.
# 2. Rank r receives shard r from all ranks, turns the shards into float32 again, takes their mean, quantises
#    *the mean*, and sends it to all ranks, by **all-gather**.
#
# The picture shows a run of the reference on three ranks, with six elements on each. All its numbers come
# from that run. Each row is a rank, and time runs from left to right. Follow shard 2 of rank 0, the last two
# of its blue elements. On which rank does it meet shard 2 of the other ranks, and which ranks receive the
# mean of the three?


# %% tags=["skip-in-grading"]
def eight_bit_run():
    """Return the input, the tensors of the collectives, and the mean, for six elements in int8."""
    from course_lib.compression import int8_all_reduce as library

    passed = []

    def watched(collective):
        def call(output, input, **options):
            collective(output, input, **options)
            passed.extend([input.tolist(), output.tolist()])

        return call

    for name in ("all_to_all_single", "all_gather_single", "all_gather_into_tensor"):
        if hasattr(dist, name):
            # only in these ranks, which end with the run
            setattr(dist, name, watched(getattr(dist, name)))
    tensor = torch.randn(6, generator=torch.Generator().manual_seed(dist.get_rank()))
    asked = tensor.tolist()
    library(tensor, torch.zeros(6))
    return asked, passed, tensor.tolist()


def draw_cells(axes, left, row, texts, colour, ink="white", wide=1.0):
    """Draw cells of one colour, starting at `left`."""
    for place, text in enumerate(texts):
        at = left + wide * place
        axes.barh(row, wide, 0.42, at, align="center", color=colour, edgecolor="white", lw=0.8)
        axes.text(at + wide / 2, row, text, ha="center", va="center", fontsize=6, color=ink)


def draw_eights(axes, left, row, packed, colour):
    """Draw two int8 elements, and behind them the four bytes of the scale they share."""
    scale = torch.tensor(packed[2:], dtype=torch.int8).view(torch.float32).item()
    draw_cells(axes, left, row, packed[:2], colour, wide=1.35)
    draw_cells(axes, left + 2.7, row, [f"{scale:.3f}"], tint(colour), INK, 1.6)


figure = picture(11.0, 2.7)
axes = figure.subplots()
SHARD = 4.6  # width of two elements, their scale, and a gap
ASKED, SENT, GOT, MEAN, RESULT = 0.0, 8.0, 24.6, 39.2, 46.6
arrow = {"arrowstyle": "->", "lw": 0.8}
# on the CPU, because the picture needs only a few elements
for rank, (asked, (sent, got, own, _), result) in enumerate(
    launch(eight_bit_run, world_size=3, backend="gloo")
):
    draw_cells(axes, ASKED, rank, [f"{x:.1f}" for x in asked], RANKS[rank], wide=1.2)
    draw_eights(axes, MEAN, rank, own[0], COMPLETE)
    draw_cells(axes, RESULT, rank, [f"{x:.1f}" for x in result], COMPLETE, wide=1.2)
    for other in range(3):
        draw_eights(axes, SENT + SHARD * other, rank, sent[other], RANKS[rank])
        draw_eights(axes, GOT + SHARD * other, rank, got[other], RANKS[other])
        for begin, end, colour in (
            (SENT + 3 * SHARD, GOT, RANKS[rank]),
            (MEAN + SHARD, RESULT, COMPLETE),
        ):
            axes.annotate(
                "", (end - 0.2, other), (begin, rank), arrowprops={**arrow, "color": colour}
            )
for left, title in (
    (ASKED, "tensor + error"),
    (SENT, "quantised, for rank 0, 1, 2"),
    (SENT + 3 * SHARD - 0.3, "all-to-all"),
    (GOT, "received, from rank 0, 1, 2"),
    (MEAN, "their mean"),
    (MEAN + SHARD - 0.5, "all-gather"),
    (RESULT, "the mean, everywhere"),
):
    low = title.startswith("all-")
    axes.text(left, 2.62 if low else -0.45, title, fontsize=8, style="italic" if low else "normal")
for rank in range(3):
    axes.barh(0, 0, color=RANKS[rank], label=f"elements of rank {rank}")
axes.barh(0, 0, color=COMPLETE, label="mean of all ranks")
axes.barh(0, 0, color=tint(COMPLETE), label="light: a float32 scale")
axes.set(xlim=(-0.3, 54.0), ylim=(2.75, -0.8), xticks=[], yticks=range(3))
axes.set_yticklabels([f"rank {rank}" for rank in range(3)])
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=5, frameon=False, fontsize=8)
figure

# %% [markdown]
# <details><summary>Where did shard 2 meet the others?</summary>They met on rank 2, since shard r is sent to
# rank r. The all-gather then gives the mean to all three ranks.</details>
#
# **Predict.** How many bytes does a rank send? A shard of s = ceil(size/N) elements takes s bytes, plus 4
# ceil(s/256) bytes for its scales. A rank sends N−1 such shards in each of the two steps.


# %% nbgrader={"grade_id": "int8_bytes_sent", "solution": true}
def int8_bytes_sent(n: int, numel: int) -> float:
    """Return the bytes each of n ranks sends, including scales."""
    ### BEGIN SOLUTION
    shard = math.ceil(numel / n)
    return 2 * (n - 1) * (shard + 4 * math.ceil(shard / BLOCK))
    ### END SOLUTION


# %% [markdown]
# **Build.** There are two roundings, and the errors of both must be remembered. The first error is easy,
# because it is `tensor + error` minus the values the receivers decode. Only rank r, the *owner* of shard r,
# makes the second rounding, and it rounds the *mean*. When the next mean is taken, the owner's `error` is
# divided by N. So the owner must add N times the error of the second rounding to its `error`. Then nothing is
# lost:
#
# **N · result + sum of all errors afterwards = sum of all (tensor + error) before.**
#
# Elements and scales can travel in one message or in two.


# %% nbgrader={"grade_id": "int8_all_reduce", "solution": true}
@torch.no_grad()
def int8_all_reduce(tensor: torch.Tensor, error: torch.Tensor, group: Group = None) -> None:
    """Replace `tensor` with the mean over the ranks of `tensor + error`,
    sent in eight bits per element.

    tensor: float32, of any shape that is the same on every rank, contiguous or not, even with fewer
    than N elements. It is overwritten in place, with the same bits on every rank.
    error: of the same shape, and overwritten with the part this rank's roundings left out.
    Send 2 (N-1) (s + 4 ceil(s/256)) bytes, with s = ceil(size / N), by an all-to-all
    and an all-gather.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    size = tensor.numel()
    shard = math.ceil(size / n)
    asked = nn.functional.pad((tensor + error).flatten(), (0, n * shard - size)).view(n, shard)

    elements, scales = quantize(asked)
    got, got_scales = torch.empty_like(elements), torch.empty_like(scales)
    dist.all_to_all_single(got, elements, group=group)
    dist.all_to_all_single(got_scales, scales, group=group)
    mean = dequantize(got, got_scales).mean(0)

    own, own_scales = quantize(mean[None])
    dist.all_gather_into_tensor(got.view(-1), own.view(-1), group=group)
    dist.all_gather_into_tensor(got_scales.view(-1), own_scales.view(-1), group=group)
    result = dequantize(got, got_scales)

    left_out = asked - dequantize(elements, scales)
    left_out[rank] += n * (mean - result[rank])
    error.copy_(left_out.flatten()[:size].view_as(error))
    tensor.copy_(result.flatten()[:size].view_as(tensor))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the shards</summary>Pad <code>tensor + error</code> with zeros to N · s elements and
# <code>view(N, s)</code>, so that row r goes to rank r. <code>dist.all_to_all_single(output, input)</code>
# sends row r of its input to rank r.</details>
# <details><summary>Hint: the second error</summary><code>left_out[rank] += n * (mean - result[rank])</code>,
# because this rank owns row <code>rank</code>.</details>
#
# **Check.** The cell after the check compares your bytes with your formula. Then it draws the loss with
# float32, int8, top-k and PowerSGD, a compressor of the reference. Instead of a layer's gradient, PowerSGD
# sends two thin matrices (here of two columns), each in one all-reduce.

# %% nbgrader={"grade_id": "int8_all_reduce_check", "points": 8}
report = check("03_data_parallel/int8_all_reduce", int8_all_reduce)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/int8_all_reduce", int8_all_reduce, cases="hidden")
### END HIDDEN TESTS
report.points(8)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class LowRank:
    """PowerSGD on the matrices of the network, whose gradients are stored in one flat tensor."""

    def __init__(self, make=None, **kwargs):
        self.make, self.kwargs, self.inner = make, kwargs, None

    def __call__(self, flat, error):
        from course_lib import compression

        self.inner = self.inner or (self.make or compression.PowerSGD)(**self.kwargs)
        held = list(network(0, depth=3).parameters())
        parts = flat.split([p.numel() for p in held])
        self.inner.all_reduce([part.view(p.shape) for p, part in zip(held, parts, strict=True)])


beside("int8", int8_all_reduce, int8_bytes_sent)
curves(
    {
        "float32": (plain_mean, False),
        "int8": (int8_all_reduce, False),
        "top 1 %": (lambda t, e: topk_all_reduce(t, 0.01, e), False),
        "PowerSGD, 2 columns": (LowRank(rank=2), False),
    }
)

# %% [markdown]
# The curve of int8 coincides with the curve of float32, at a quarter of the bytes. Top-k sends less here, but
# its loss falls later. If you set your formulas for top-k and int8 equal, you find that top-k would send more
# than int8 from 26 ranks on. With PowerSGD, a rank sends less than twice the bytes of the two matrices, for
# any N.
#
# **Break it.** The cell sums elements in int8, as `dist.all_reduce` does:


# %% tags=["skip-in-grading"]
def overflow():
    elements = torch.tensor([100, 20, -90], dtype=torch.int8, device=device())
    dist.all_reduce(elements)
    return elements.tolist()


print("four times [100, 20, -90] in int8:", launch(overflow, world_size=4)[0])

# %% [markdown]
# The first element should be 400, but int8 wraps around. So it is 400 − 2 · 256 = −112, and no exception is
# raised.
#
# **In production.** ZeRO++ (Wang et al. 2023) sends gradients in this way, in 4 bits, by all-to-all inside
# the node and then across nodes (notebook 02, §7). DDP has an experimental `quantization_pertensor_hook`,
# which gathers everything and so sends (N−1) · M/4.

# %% [markdown]
# ## 7 · What it costs
#
# | | |
# |---|---|
# | you will write | nothing new |
# | builds on | your predictions in §2, §3, §5 |
# | time | 5 minutes |
# | points | 6 |
#
# The check takes your formulas from the sections above. The cell after it prints their numbers for 7B
# parameters in bf16. Forward, backward and step take 1.5 s together. Backward takes 1 s of this, with 20
# buckets. An H100 sends 450 GB/s over NVLink, a 400 Gb/s network carries 50 GB/s, and a 25 Gb/s network
# carries 3.1 GB/s.

# %% nbgrader={"grade_id": "predictions_check", "points": 6}
report = check(
    "03_data_parallel/predictions",
    gradient_bytes_sent,
    exposed_seconds,
    scaling_efficiency,
    topk_bytes_sent,
)
### BEGIN HIDDEN TESTS
report = check(
    "03_data_parallel/predictions",
    gradient_bytes_sent,
    exposed_seconds,
    scaling_efficiency,
    topk_bytes_sent,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(6)

# %% tags=["skip-in-grading"]
NAMED = {450e9: "450 GB/s", 50e9: "50 GB/s", 3.125e9: "3.1 GB/s"}
for bandwidth, n in itertools.product(NAMED, (8, 64)):
    sent = predicted(gradient_bytes_sent, n, 14e9)
    wired = None if sent is None else sent / bandwidth
    exposed = None if wired is None else predicted(exposed_seconds, 1.0, wired, 20)
    if exposed is None:
        break
    shares = [predicted(scaling_efficiency, 1.5, seconds) for seconds in (wired, exposed)]
    if None in shares:
        break
    print(
        f"{NAMED[bandwidth]:8} {n:2} ranks: {wired:6.2f} s on the wire, "
        f"efficiency {shares[0]:.2f} if sent after backward, {shares[1]:.2f} if overlapped"
    )

# %% [markdown]
# In this table, the batch of a rank stays the same, however many ranks there are. This is called *weak
# scaling*. In *strong scaling*, all ranks share a fixed batch. So the more ranks there are, the less each
# rank computes, but it still sends all gradients. If 64 ranks each compute for only an eighth of the 1.5 s,
# the overlapped efficiency at 50 GB/s falls from 0.98 to 0.30.
#
# Overlap hides as much as fits behind backward, but no more. At 3.1 GB/s, you must send less, or less often.
# For example, take K = 8 microbatches, each as large as a rank's share was before, and seven of them under
# `no_sync()`. Then the batch is eight times as large. A step sends as many bytes as with one microbatch, but
# only the last backward can hide communication. On 8 ranks, the first bucket leaves 0.05 s into that
# backward, and sending takes 7.84 s. So 0.05 + 7.84 − 1 = 6.9 s are exposed, as with one microbatch. But now
# the step computes for about 8 · 1.5 = 12 s, so the efficiency is about 0.6 instead of 0.18.
#
# Two rules that you will often read need a correction. The first is "Accumulation makes training K times as
# long". It makes one *optimizer step* K times as long, but a sample takes the same time or less. The second
# is "A step uses (batch of one rank) × (world size) samples". That is true only if all ranks are replicas.
# Tensor-parallel ranks (notebook 06), which hold parts of one replica, share their samples.
#
# <details><summary>In the lectures</summary>Lecture 001 says that accumulation makes training K times as
# long. Lecture 002 gives the throughput as batch × world size.</details>

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them the cells show a recorded run, if there is
# one.*
#
# **Predict.** Backward has twice the FLOPs of forward, but does it also take twice the time? The predicted
# row is twice the measured forward.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.training import OVERLAP, PHASES

on_gpus = on_your_gpus(
    PHASES,
    predicted=lambda of, run: 2 * run.rows[0].value if of["kind"] == "backward" else None,
)

# %% [markdown]
# **Predict.** The gradients of GPT-2 small are 498 MB in float32. The prediction comes from your
# `exposed_seconds`. The cell assumes that backward takes two thirds of a step without messages. For the
# communication, it uses the measured time of the messages. The number of buckets is the number DDP made. Is
# DDP fastest with buckets of 1 MB, with buckets of 25 MB, or with a single bucket?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def with_exposed(of, run):
    alone, messages = run.rows[0].value, run.rows[1].value
    if of["kind"] == "after":
        return alone + messages
    if of["kind"] == "DDP":
        return alone + exposed_seconds(2 / 3 * alone, messages, of["buckets"])
    return None


on_gpus = on_your_gpus(OVERLAP, predicted=with_exposed)
# %% [markdown]
# With many small buckets, DDP pays α many times, a cost that `exposed_seconds` leaves out. With a single
# bucket, DDP hides nothing. A message also occupies some of the GPU's multiprocessors and memory bandwidth,
# so backward can get slower while the message travels. And because the embedding is tied to the head, its
# gradient, 154 of the 498 MB, is complete only when backward ends. So this third stays exposed whatever the
# buckets are. Your `exposed_seconds`, which assumes equal buckets, misses this.

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | §2 to §7 |
# | time | 5 minutes |
# | points | 6 |
#
# You can write a number as an expression.
#
# 1. A 7B-parameter model with bf16 gradients is trained on 8 ranks, over links that carry 50 GB/s each way.
#    Backward takes 1 s, in 20 equal buckets. How many **seconds** are exposed?
# 2. The links now carry only 10 GB/s. Forward, backward and step take 1.5 s together. What is the scaling
#    **efficiency** (0 to 1)?
# 3. A program forgets the division by N. Which optimizer's loss curve shows it plainly: `"sgd"`, `"adamw"`,
#    `"both"` or `"neither"`?
# 4. Rank 0 has 30 tokens with a mean gradient of 2, and rank 1 has 10 tokens with a mean gradient of 6. What
#    is the mean **gradient** of all tokens?
# 5. Top-k sends 2 % of the elements, in float32 with 4-byte indices. From how many **ranks** on does it send
#    at least as much as a plain ring all-reduce?

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # seconds
answer_2 = ...  # 0 to 1
answer_3 = ...  # "sgd", "adamw", "both" or "neither"
answer_4 = ...  # gradient
answer_5 = ...  # ranks
### BEGIN SOLUTION
answer_1 = 2 * 7 / 8 * 14 / 50 / 20  # backward is slower, so one bucket is exposed
answer_2 = 1.5 / (1.5 + 24.5 / 10 - 0.95)  # 2.45 s on the wire, starting after 0.05 s
answer_3 = "sgd"
answer_4 = (30 * 2 + 10 * 6) / 40
answer_5 = 2 * 4 / (0.02 * 8)
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 6}
report = check("03_data_parallel/questions", answer_1, answer_2, answer_3, answer_4, answer_5)
### BEGIN HIDDEN TESTS
report = check(
    "03_data_parallel/questions", answer_1, answer_2, answer_3, answer_4, answer_5, cases="hidden"
)
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# ## 9 · Optional: two thin matrices
#
# | | |
# |---|---|
# | you will write | `PowerSGD(rank=2, group=None)` |
# | builds on | §6; notebook 02: all-reduce |
# | time | 30 minutes |
# | difficulty, importance | 3 and 1 of 5 |
# | extra credit | 4 points, on top of the 60. You lose nothing if you skip it |
#
# Top-k and int8 share a flaw. Their messages can't be added on the way, so no all-reduce can carry them. A
# message that is a linear function of the gradient, however, can be added on the way. An example is the
# product G·Q of a gradient G of (rows, columns) and a thin matrix Q of (columns, r). If all ranks have the
# same Q, the mean of their products G·Q is the mean gradient times Q. And a product with only r columns might
# be enough to keep most of G. Here are the singular values of one gradient of our network, the largest first:

# %% tags=["nbval-ignore-output", "skip-in-grading"]
figure = picture(5.5, 2.4)
axes = figure.subplots()
strengths = torch.linalg.svdvals(gradients["0.0.weight"].double())
axes.bar(range(1, 25), (strengths / strengths[0])[:24], color=RANKS[0])
axes.set_xlabel("singular values, the 24 largest of 64")
axes.set_ylabel("relative to the first")
axes.grid(True, axis="y", alpha=0.3)
figure

# %% [markdown]
# Only 16 of the 64 singular values are not zero, because a gradient is a sum of outer products, one for each
# sample, and this gradient comes from 16 samples. The first few values hold most of the norm.
#
# Here is one step for a matrix. It uses Q from the last step (in the first step, Q is random):
#
# ```
# G = gradient + error
# P = G Q               averaged over the ranks, then made orthonormal
# Q = Gᵀ P              averaged over the ranks
# gradient = P Qᵀ
# error = G − P Qᵀ
# ```
#
# Each rank has its own G, and Ḡ is the mean of all G's. Because the columns of P are orthonormal, P Pᵀ
# projects onto the space they span. P Qᵀ = P Pᵀ Ḡ is therefore the best approximation of Ḡ in that space.
# Because gradients change slowly, the last Q already points in the directions in which Ḡ is strong. That is
# the *warm start*. With it, the two multiplications of each step are nearly as good as a singular value
# decomposition.
#
# **Predict.** Take a gradient of 4,096 x 4,096 in float32, r = 4 and 8 ranks. How many bytes does each rank
# send, and how many times less is that than in an all-reduce of the whole gradient? What changes on 800
# ranks?
#
# <details><summary>After you have said it</summary>P and Q have 4 · (4,096 + 4,096) elements, which are
# 131,072 bytes. Their two all-reduces send 2 · 7/8 of that, which is 229,376 bytes, 512 times less. On 800
# ranks they send 261,816 bytes, still 512 times less. Top-k at 1 %, however, saves nothing from 100 ranks
# on.</details>
#
# **Build.** A gradient that is not a matrix (such as the gradient of a bias) travels without compression, and
# so does a matrix with at most r rows or at most r columns. The argument `rank` is r, the number of columns
# of P and Q, as in linear algebra. It is not the number of a process.


# %% nbgrader={"grade_id": "powersgd", "solution": true}
class PowerSGD:
    """Averages gradients over the ranks of `group`. A matrix is sent as P and Q of `rank` columns.

    all_reduce(gradients) overwrites each tensor of a list, which has the same shapes in the same
    order in every step. A matrix larger than `rank` in both dimensions becomes P Q^T, while any
    other tensor becomes the exact mean. All ranks get the same bits.
    For each matrix, Q and error are kept from step to step. The first Q is random but the same on
    every rank, so draw it with a torch.Generator with a fixed seed. Q has the dtype of its
    gradient, which can be float32 or float64.
    A step sends 2 (N-1)/N times the bytes of each P (rows, rank), each Q (columns, rank), and
    each other tensor.
    """

    def __init__(self, rank: int = 2, group: Group = None):
        self.rank, self.group = rank, group
        self.queries, self.errors = {}, {}  # Q and error of each matrix, by its index in the list

    @torch.no_grad()
    def all_reduce(self, gradients: list[torch.Tensor]) -> None:
        """Overwrite each gradient with its mean over the ranks, or a matrix with P Q^T."""
        ### BEGIN SOLUTION
        for k, gradient in enumerate(gradients):
            if gradient.dim() != 2 or min(gradient.shape) <= self.rank:
                self.average(gradient)
                continue
            if k not in self.queries:
                shape, generator = (gradient.shape[1], self.rank), torch.Generator().manual_seed(k)
                self.queries[k] = torch.randn(shape, generator=generator).to(gradient)
                self.errors[k] = torch.zeros_like(gradient)
            asked = gradient + self.errors[k]
            p = asked @ self.queries[k]
            self.average(p)
            p = torch.linalg.qr(p).Q
            q = asked.T @ p
            self.average(q)
            gradient.copy_(p @ q.T)
            self.queries[k], self.errors[k] = q, asked - gradient

    def average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)
        tensor /= dist.get_world_size(self.group)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Each rank multiplies its own G, which includes its error. Only the
# products are averaged, never G. After the first average, every rank has the same P, and then each rank
# multiplies its own G again. A rank can compute its error with its own Q or with the averaged Q, because the
# sum of the errors over the ranks is the same.</details>
# <details><summary>Hint: the step</summary><code>torch.linalg.qr(p).Q</code> has orthonormal columns that
# span the same space as the columns of p, and <code>asked.T @ p</code> is Q. Keep Q and the error by the
# gradient's position in the list.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "powersgd_check", "points": 0}
# Extra credit, 4 points
report = check("03_data_parallel/powersgd", PowerSGD)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/powersgd", PowerSGD, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **In production.** `powerSGD_hook` does this in DDP, bucket by bucket, after a start in full precision
# (`start_powerSGD_iter`), because early gradients change too fast for a warm start.
#
# **Measure.** The cell shows your loss and bytes next to the loss and bytes of the other methods. The last
# curve is the reference without error feedback, which forgets the part of G that P Qᵀ missed. Before you run
# it, guess whether forgetting the rest costs more here than with top-k, or less.
#
# <details><summary>Answer</summary>It costs about as much. In our run, it raises the last loss from 0.26 to
# 0.51, about 2 times. With top-k (§5), it raised the loss from 0.31 to 0.58, about 1.9 times.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
curves(
    {
        "float32": (plain_mean, False),
        "top 1 %": (lambda t, e: topk_all_reduce(t, 0.01, e), False),
        "yours, 2 columns": (LowRank(PowerSGD, rank=2), False),
        "2 columns, no error feedback": (LowRank(rank=2, error_feedback=False), False),
    }
)

# %% [markdown]
# ## 10 · Optional: one bit
#
# | | |
# |---|---|
# | you will write | `sign_all_reduce(tensor, error, server_error, group=None)`, `OneBitAdam(params, ..., warmup_steps)` |
# | builds on | §6 |
# | time | 40 minutes |
# | difficulty, importance | 4 and 1 of 5 |
# | extra credit | 5 points, on top of the 60. You lose nothing if you skip it |
#
# How few bits are enough? You can send only the sign of each element, and a single number for the size of all
# elements, the mean of |x|. That is 32 times less than in float32. SGD with error feedback tolerates this,
# but Adam does not. Adam divides by the root of the variance (the running mean of g²), so its step is not
# linear in the gradient. A part of the gradient that arrives late therefore does not repair the steps that
# were made without it. Tang et al. (2021) looked at the variance of BERT in training, and found that after a
# while it hardly changes. So *1-bit Adam*
#
# - begins as Adam, with gradients averaged in full precision (`warmup_steps`),
# - then leaves the variance as it is. Only the momentum still changes, and it is linear in the gradients.
#   Each rank adds its own gradient to the momentum, and **the momentum** is averaged, as signs.
#
# As in §6, each shard has an owner, here called its *server*. Rank r gets all ranks' signs of shard r,
# averages them, and sends the signs of the mean to all ranks. Both steps make an error, but neither error is
# lost, because each rank keeps `error` for the whole tensor, and each server keeps `server_error` for its
# shard. The server adds `server_error` to the mean itself, so the factor N of §6 is not needed here.
#
# **Predict.** Take 1 million elements on 8 ranks. How many bytes does each rank send? How many times less
# does a whole run send if the first 15 % of its steps are in full precision?
#
# <details><summary>After you have said it</summary>A shard has 125,000 elements, which take 15,625 bytes of
# signs and 4 bytes for the scale. A rank sends 7 · 15,629 bytes in the all-to-all and as many in the
# all-gather. That makes 218,806 bytes in all, which is 32 times less than in float32. A run in which 15 % of
# the steps are not compressed sends 0.15 + 0.85/32 = 0.177 of the full bytes, so it sends 5.7 times less.
# Even if compressed steps sent nothing, a run would send only 1/0.15 = 6.7 times less.</details>
#
# **Build.** Tensors and gradients can be float32 or float64, but a scale travels as float32. You don't have
# to write these three functions:


# %%
def shard_rows(flat, n):
    """Return (n, s), the shards of a flat tensor, with zeros at the end.
    s is a multiple of 8, because a byte holds 8 signs."""
    shard = 8 * math.ceil(flat.numel() / (8 * n))
    return nn.functional.pad(flat, (0, n * shard - flat.numel())).view(n, shard)


def pack(rows):
    """Pack (n, s) elements into (n, s / 8) bytes. A bit says whether an element is 0 or more."""
    bits = (rows >= 0).view(len(rows), -1, 8).to(torch.uint8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=rows.device)).sum(
        -1, dtype=torch.uint8
    )


def unpack(packed):
    """Unpack (n, s / 8) bytes into (n, s) elements, which are 1 or -1."""
    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return 2.0 * bits.flatten(1) - 1


# %% nbgrader={"grade_id": "one_bit_adam", "solution": true}
@torch.no_grad()
def sign_all_reduce(
    tensor: torch.Tensor, error: torch.Tensor, server_error: torch.Tensor, group: Group = None
) -> None:
    """Replace `tensor` with the mean over the ranks of `tensor + error`, as signs with a scale.

    tensor: float32 or float64, any shape, the same on every rank. Overwrite it with the same bits
    on every rank.
    error: of the same shape, and overwritten with the part this rank's signs miss.
    server_error: shape (s,), a row of `shard_rows`. The server sends the signs
    of mean + server_error for its shard, and overwrites server_error with the part these signs
    miss, which is 0 in the padding.
    A scale is the mean of |x| over a shard's elements without padding, in float32. A decoded
    element is its sign times its scale. Send (N-1) (s/8 + 4) bytes by all-to-all, and as
    many by all-gather.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    asked = shard_rows((tensor + error).flatten(), n)
    real = shard_rows(torch.ones_like(tensor).flatten(), n)  # 0 in the padding
    scales = (
        (asked.abs() * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    ).float()
    signs = pack(asked)
    their_signs, their_scales = torch.empty_like(signs), torch.empty_like(scales)
    dist.all_to_all_single(their_signs, signs, group=group)
    dist.all_to_all_single(their_scales, scales, group=group)

    mine = real[rank]
    mean = (unpack(their_signs) * their_scales).mean(0) * mine + server_error
    own_scale = (mean.abs().sum() / mine.sum().clamp(min=1)).float().view(1, 1)
    own_signs = pack(mean[None])
    every_sign, every_scale = torch.empty_like(signs), torch.empty_like(scales)
    dist.all_gather_into_tensor(every_sign, own_signs, group=group)
    dist.all_gather_into_tensor(every_scale, own_scale, group=group)

    missed = (asked - unpack(signs) * scales).flatten()[: tensor.numel()]
    error.copy_(missed.view_as(error))
    server_error.copy_(mean - (unpack(own_signs) * own_scale)[0] * mine)
    means = (unpack(every_sign) * every_scale).flatten()[: tensor.numel()]
    tensor.copy_(means.view_as(tensor))
    ### END SOLUTION


class OneBitAdam:
    """Adam that does its own averaging, of the gradients for `warmup_steps`,
    and then of the momentum by sign_all_reduce.

    params: a list with the same values on every rank, but each `.grad` is this rank's own. Keep
    momentum, variance and both errors for each parameter. In the warm-up, step() makes an
    all-reduce for each parameter, and afterwards a sign_all_reduce for each. The bias corrections
    are as in Adam. After the warm-up, the variance no longer changes, and neither does its
    correction, 1 - beta2 ** min(steps, warmup_steps).
    """

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, *, warmup_steps, group: Group = None
    ):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.warmup_steps, self.group = warmup_steps, group
        self.steps, self.state = 0, {}

    @torch.no_grad()
    def step(self) -> None:
        """Take one step for every parameter."""
        ### BEGIN SOLUTION
        self.steps += 1
        n, (beta1, beta2) = dist.get_world_size(self.group), self.betas
        for p in self.params:
            if p not in self.state:
                served = shard_rows(p.flatten(), n)[0]
                self.state[p] = [torch.zeros_like(like) for like in (p, p, p, served)]
            momentum, variance, error, server_error = self.state[p]
            if self.steps <= self.warmup_steps:
                mean = p.grad.clone()
                dist.all_reduce(mean, group=self.group)
                mean /= n
                momentum.lerp_(mean, 1 - beta1)
                variance.lerp_(mean.square(), 1 - beta2)
            else:
                momentum.lerp_(p.grad, 1 - beta1)
                sign_all_reduce(momentum, error, server_error, self.group)
            known = 1 - beta2 ** min(self.steps, self.warmup_steps)
            root = (variance / known).sqrt() + self.eps
            p -= self.lr / (1 - beta1**self.steps) * momentum / root
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Row r of <code>shard_rows</code> goes to rank r, so use
# all-to-all, once for signs and once for scales. You receive n rows of <i>your</i> shard, each with its
# sender's scale. An error is the tensor that should be sent, minus the tensor the receivers will
# decode.</details>
# <details><summary>Hint: the step</summary><code>shard_rows(torch.ones_like(tensor).flatten(), n)</code> is 1
# for an element and 0 for padding. Multiply by it to clear the padding. The sums of its rows count the
# elements (divide by <code>sum.clamp(min=1)</code>, since a shard can consist only of padding).
# <code>a.lerp_(b, 1 - beta)</code> is beta a + (1 - beta) b.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "one_bit_adam_check", "points": 0}
# Extra credit, 5 points
report = check("03_data_parallel/one_bit_adam", sign_all_reduce, OneBitAdam)
### BEGIN HIDDEN TESTS
report = check("03_data_parallel/one_bit_adam", sign_all_reduce, OneBitAdam, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure, and break it.** The picture shows sixty steps on two ranks, three times: with a warm-up of all 60
# steps, of 15 steps, and of a single step. After a single step, the variance is estimated from a single
# gradient. Which elements will then take steps that are far too large?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def trained_by(make, steps=60):
    """Return the loss before each step of an optimizer that does its own averaging."""
    model = network(0, depth=3)
    optimizer = make(model.parameters())
    x, y = samples(100 + dist.get_rank(), 64)
    losses_seen = []
    for _ in range(steps):
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses_seen.append(loss.item())
    return losses_seen


figure = picture(7, 3)
axes = figure.subplots()
for warmup, colour, dashes in ((60, RANKS[0], "-"), (15, RANKS[1], "--"), (1, RANKS[2], ":")):
    run = try_it(
        trained_by, lambda p, w=warmup: OneBitAdam(p, lr=0.01, warmup_steps=w), world_size=2
    )
    if run is not None:
        curve, sent = torch.tensor(list(run)).mean(0), run.ledger.bytes_sent(0)
        axes.plot(curve, dashes, label=f"warm-up of {warmup}", color=colour)
        print(
            f"warm-up of {warmup:2}: loss {curve[-1].item():.4f}, {sent / 60:9,.0f} bytes per step"
        )
axes.set_xlabel("step")
axes.set_ylabel("loss, mean over the ranks")
axes.set_yscale("log")
axes.grid(True, alpha=0.3)
if axes.lines:
    axes.legend(frameon=False, fontsize=8, handlelength=3)
figure

# %% [markdown]
# <details><summary>After you have run it</summary>Elements whose first gradient happened to be small have a
# small variance for good. All their later steps are divided by the root of this variance, and are therefore
# too large.</details>
#
# **In production.** DeepSpeed provides `OneBitAdam` (`freeze_step` is the length of the warm-up) and 0/1
# Adam, which needs no warm-up in full precision (Lu et al. 2022).

# %% [markdown]
# ## Scorecard
#
# The card compares computation, peak memory and bytes sent. It shows one step of a network of 256 x 256
# matrices, with 64 samples in all, AdamW and four ranks. M is the size of the gradients. For comparison, one
# process does the same step on all 64 samples.


# %% tags=["skip-in-grading"]
def whole_step(wrap):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = wrap(network(rank, 256))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x, y = samples(rank, 64 // n, 256)
    with costs(x, y, *model.parameters()) as cost:
        nn.functional.mse_loss(model(x), y).backward()
        model.finish_gradient_synchronization()
        optimizer.step()
    return cost


alone = launch(whole_step, reference.NaiveDataParallel, world_size=1)
unit = sum(p.nbytes for p in network(0, 256).parameters())
card = {
    wrap.__name__: try_it(whole_step, wrap) for wrap in (NaiveDataParallel, BucketedDataParallel)
}
card = {name: run for name, run in card.items() if run is not None}
scorecard({"one process": alone, **card}, unit=unit, flops_alone=alone[0].flops)

# %% [markdown]
# Read the card column by column. In *computation*, forward and backward are divided among the ranks without
# loss, but every rank repeats the optimizer's step and the averaging. The *memory* per rank hardly shrinks,
# because every rank holds weights, gradients and Adam's two states, and only activations are divided among
# the ranks. (The buckets take one M more while backward runs, but the peak comes later, in the optimizer's
# step.) The *bytes* include the broadcast at the start, for which the first rank sends 1 M, in addition to
# 1.5 M for the gradients. There are *four copies of weights, gradients and optimizer states*. Did we need all
# of them? Notebook 04 asks this question.
#
# **You have built** the algorithm of `DistributedDataParallel`, and several algorithms that can replace its
# all-reduce. You can also predict how much communication is exposed.
#
# **Read on.**
# - Li et al. (2020), *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, §3.2 and §4,
#   describes buckets, hooks, order and unused parameters.
# - Lin et al. (2018), *Deep Gradient Compression*, and Stich et al. (2018), *Sparsified SGD with Memory*,
#   describe top-k, and explain why error feedback converges.
# - Karimireddy et al. (2019), *Error Feedback Fixes SignSGD*, explain why signs need error feedback.
# - Vogels et al. (2019), *PowerSGD*, Tang et al. (2021), *1-bit Adam*, and Wang et al. (2023), *ZeRO++*,
#   describe the compressors of §6, §9 and §10.
# - `course_lib/data_parallel/` and `course_lib/compression/` contain the reference. Read them after you have
#   written yours.
#
# <details><summary>In the lectures</summary>The three criteria are from lecture 003.</details>
#
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("03_data_parallel")
