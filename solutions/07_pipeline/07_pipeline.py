# %% [markdown]
# # 07 · Pipelines
#
# **How do you split layers over ranks without making the ranks wait?**
#
# Tensor parallelism (notebook 06) cuts every layer, and its ranks communicate four times per layer. Such
# frequent communication stops paying off at the edge of a node, because the link between nodes is at least
# nine times slower than NVLink (50 GB/s for each GPU, against 450 GB/s). So let's cut the other way, across
# the stack of layers. Rank 0 gets the first layers, rank 1 the next ones, and so on. Only one activation
# crosses each border between ranks, and one gradient comes back. For 4,096 tokens of Llama 3 70B (width
# 8,192, in bf16), each takes 67 MB. Eight ranks have seven such borders, whereas eight ranks that share every
# layer all-reduce 67 MB four times in each of the 80 layers.
#
# This division costs time, because a layer needs the output of the layer before it. So while rank 0 works,
# rank 1 has to wait. The order in which ranks do their work is called the *schedule*. You begin with a
# schedule in which only one rank works at a time, and end, in the optional §11, with the schedule used to
# train DeepSeek-V3.
#
# | | |
# |---|---|
# | you will build | five schedules, as data; functions that predict their idle time, memory and bytes; an executor that runs the schedules of §1 to §3 on real ranks |
# | you need | deadlocks, `isend` and `irecv` (notebook 00); why sums are divided by the global count (notebook 03); `loss.backward()`; and for §8, ZeRO-1 and ZeRO-3 (notebook 04) |
# | time | three hours, without the optional §10 to §12 |
# | points | 60, and 11 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 One after the other | 16 | 3 | |
# | 2 GPipe: many small batches | 25 | 5 | 1 |
# | 3 1F1B: the same in less memory | 25 | 9 | 2 |
# | 4 Interleaving: a shorter way round | 30 | 9 | 3 |
# | 5 Half of a backward can wait | 23 | 8 | 3 |
# | 6 What you predicted | 5 | 7 | 2 to 5 |
# | 7 On real ranks | 44 | 15 | 3 |
# | 8 Was it wise to pipeline? | 7 | | all |
# | 9 Questions | 5 | 4 | all |
# | 10 Optional: PipeDream, without a flush | 25 | 6 extra | 3 |
# | 11 Optional: DualPipe | 40 | 5 extra | 5 |
# | 12 Optional: on a clock, and against PyTorch's | 20 | | 5, 7 |
#
# ### Words and letters
#
# | | |
# |---|---|
# | p | the number of ranks in the pipeline |
# | stage | consecutive layers, numbered along the model from 0. At first, rank i holds stage i |
# | microbatch | a part of the batch that goes through the stages on its own. The batch has m microbatches |
# | F, B | the forward of one microbatch through one stage, and its backward. The letters also stand for the times these take (with chunks, the times for all layers of the rank) |
# | I, W | the two halves of B. I computes the gradient of the stage's input, and W the gradient of its weights, so B = I + W |
# | chunk | one of the v stages on a rank that holds several stages |
# | bubble | the time in which a rank has nothing to do, between the first and the last action of the step |
# | ideal time | the time a rank's own actions take, which is the whole step without the bubble |
# | in flight | A microbatch is in flight on a rank between its forward and its backward on this rank. During this time, the rank keeps the microbatch's activations |
#
# Unless the text says otherwise, F = I = W = 1 and B = 2, because each matrix product in a forward leads to
# two in its backward.

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import contextlib
import itertools
import math
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from course_lib import check, device, launch, synchronize
from course_lib.data import batch, library_text
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pictures.colours import RANKS, picture
from course_lib.pictures.gantt import gantt
from course_lib.pipeline import (
    Action,
    Durations,
    Pair,
    Stage,
    from_text,
    gpt_stages,
    simulate,
    to_text,
    violation,
)
from course_lib.scorecard import Row as CardRow, Scorecard, costs
from course_lib.unfinished import ready, try_it

Group = dist.ProcessGroup | None  # None is the group of all ranks

# %% [markdown]
# For each rank, a schedule lists the actions in the order in which the rank does them. An action is
# `Action(stage, kind, microbatch)`, and 2F0 is short for stage 2, forward, microbatch 0. A schedule does
# *not* say when an action runs, because an action runs as soon as its rank has done the action before it and
# its input has arrived. `simulate` finds the times of all actions with a simulated clock, and `gantt` draws
# them. The number in a box is the microbatch.

# %% tags=["skip-in-grading"]
one_microbatch = from_text("""\
0F0,0B0
1F0,1B0
2F0,2B0
3F0,3B0""")
print(one_microbatch[2])
gantt(simulate(one_microbatch), "a model cut over four ranks")

# %% [markdown]
# The next cell holds tools that you don't have to read. Call `counted(stages, microbatches)` first in each of
# your schedules, because it raises a ValueError for numbers that allow no schedule. `drawn` draws the schedule
# your function returns, or prints the first action a rank cannot do.


# %%
def counted(stages: int, microbatches: int, least: int = 1, unit: int = 1) -> None:
    """Raise ValueError if there is no stage, if there are fewer microbatches than `least`,
    or if their number is not a multiple of `unit`."""
    if stages < 1:
        raise ValueError(f"stages={stages}: a pipeline has at least one stage")
    if microbatches < least or microbatches % unit:
        kind = "" if unit == 1 else f", a multiple of {unit}"
        raise ValueError(
            f"microbatches={microbatches}: with {stages} stages this schedule needs at least {least}{kind}"
        )


def made(generator, *args, copies=1):
    """Return `generator(*args)` if it is a valid schedule. Otherwise print why not."""
    if not ready(generator):
        return None
    schedule = generator(*args)
    wrong = violation(schedule, microbatches=args[1], copies=copies)
    return schedule if wrong is None else print(wrong)


def drawn(generator, *args, durations=None, copies=1, title=None, critical=False):
    """Return the chart of `generator(stages, microbatches, ...)`, or print why there is none."""
    schedule = made(generator, *args, copies=copies)
    if schedule is not None:
        title = title or f"{generator.__name__}{args}"
        return gantt(simulate(schedule, durations, copies), title, critical=critical)


def held(schedule, rank=0, weight=0.0):
    """Return the largest number of microbatches a rank keeps at the same time. Between its I and
    its W, a microbatch counts as `weight`."""
    now = most = 0
    for action in schedule[rank]:
        now += {"F": 1, "B": -1, "I": weight - 1, "W": -weight}[action.kind]
        most = max(most, now)
    return most


def said(prediction, *args):
    """Return the result of your prediction as text."""
    try:
        number = prediction(*args)
    except (NotImplementedError, KeyError):
        return "?"
    return f"{number:,.6g}" if isinstance(number, int | float) else f"{number}, not a number"


# %% [markdown]
# ## 1 · One after the other
#
# | | |
# |---|---|
# | you will write | `naive(stages, microbatches)` |
# | time | 16 minutes |
# | difficulty, importance | 1 and 3 of 5 |
# | points | 3 |
#
# In the simplest order, one microbatch goes down all stages and up again, and only then does the next one
# start. If one process spreads its layers over four GPUs with `.to(...)`, the GPUs also work in this order.
#
# **Predict.** With 4 ranks and one microbatch, for what share of the time does a rank work? And with 100
# microbatches?
#
# <details><summary>Answer</summary>It works for 1/4 of the time in both cases, because only one rank works at
# a time, however large m is.</details>
#
# **Build.** Rank i holds stage i. Return one list per rank, with the actions of *this* rank: `Action(rank,
# "F", k)` and `Action(rank, "B", k)`.


# %% nbgrader={"grade_id": "naive", "solution": true}
def naive(stages: int, microbatches: int) -> list:
    """Schedule one microbatch at a time, down all stages and up again before the next one starts.

    Return, for each rank, the list of its Actions. Only one rank of p works at a time.
    """
    ### BEGIN SOLUTION
    counted(stages, microbatches)
    each = range(microbatches)
    return [[Action(rank, kind, k) for k in each for kind in "FB"] for rank in range(stages)]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>The list is F0, B0, F1, B1, ... on all ranks. Rank 0 begins F1 only after its
# own B0, so you don't have to delay the next microbatch yourself.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "naive_check", "points": 3}
report = check("07_pipeline/naive", naive)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/naive", naive, cases="hidden")
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# **Measure.** The cell draws your schedule, and the line below the chart gives its numbers.

# %% tags=["skip-in-grading"]
drawn(naive, 4, 3)

# %% [markdown]
# **Break it.** Each of these two schedules for two ranks contains a mistake. At which action will each rank
# get stuck?

# %% tags=["skip-in-grading"]
print(violation(from_text("0F0,0B0\n1B0,1F0")))
print(violation(from_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1")))

# %% [markdown]
# In the first schedule, rank 1 cannot follow its own list. In the second, each list is sensible by itself,
# but each rank waits for an action the other rank would do only later, so real ranks would deadlock.
# `violation` finds such mistakes without starting a rank (and counts actions from 0).

# %% [markdown]
# ## 2 · GPipe: many small batches
#
# | | |
# |---|---|
# | you will write | `gpipe(stages, microbatches)`, and the first part of your predictions |
# | builds on | §1 |
# | time | 25 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 5, and the predictions count in §6 |
#
# While microbatch 0 is on rank 1, rank 0 could already work on microbatch 1. So GPipe (Huang et al. 2019)
# does all forwards first, and then all backwards, in the same order on all stages. The gradients of all
# microbatches are added up, and the weights change once per step, at the *flush*, when the pipeline has run
# empty.
#
# **Predict.** Sketch the chart for p = 4. How long is the bubble of one rank? Does it depend on m, or on the
# rank?
#
# <details><summary>Answer</summary>It is (p − 1)(F + B) on every rank. Rank i waits for a time of i F before
# its first input arrives, then for (p − 1 − i)(F + B) between its last forward and its first gradient, and
# finally for i B until rank 0 is done. Since m does not appear in this sum, the bubble's share of the time
# shrinks as you add microbatches.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "gpipe", "solution": true}
def gpipe(stages: int, microbatches: int) -> list:
    """Schedule all forwards, then all backwards. Return, for each rank, the list of its Actions.

    Each rank idles for (p-1)(F+B), and holds the activations of all m microbatches.
    """
    ### BEGIN SOLUTION
    counted(stages, microbatches)
    each = range(microbatches)
    return [[Action(rank, kind, k) for kind in "FB" for k in each] for rank in range(stages)]
    ### END SOLUTION


# %% [markdown]
# **Check.**

# %% nbgrader={"grade_id": "gpipe_check", "points": 5}
report = check("07_pipeline/gpipe", gpipe)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/gpipe", gpipe, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** Compare the chart with your sketch.

# %% tags=["skip-in-grading"]
drawn(gpipe, 4, 8)

# %% [markdown]
# A bubble's size can be stated in two ways. As a share of the *ideal* time, it is (p−1)/m, here 3/8 = 37.5 %.
# As a share of the *whole* step, it is (p−1)/(m+p−1), here 3/11 = 27.3 %. Megatron-LM's papers state the
# first share, which can exceed 1, and the GPipe paper states the second.
#
# **Predict**, this time with functions. For now, write the cases `"naive"` and `"gpipe"`, and add one case in
# each of the next three sections. §6 checks them all. Leave the fourth function, `pipeline_bytes_sent`, for
# §4.


# %% nbgrader={"grade_id": "predictions", "solution": true}
def bubble_of_ideal(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return a rank's bubble divided by its computing time, with F = I = W = 1.

    schedule: "naive", "gpipe", "one_f_one_b", "interleaved_one_f_one_b" or "zero_bubble_h1".
    """
    ### BEGIN SOLUTION
    p, m = stages, microbatches
    bubble = {
        "naive": 3 * m * (p - 1),
        "gpipe": 3 * (p - 1),
        "one_f_one_b": 3 * (p - 1),
        "interleaved_one_f_one_b": 3 * (p - 1) / chunks,
        "zero_bubble_h1": p - 1,
    }
    return bubble[schedule] / (3 * m)
    ### END SOLUTION


def bubble_of_total(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return a rank's bubble divided by the total time of the step."""
    ### BEGIN SOLUTION
    ratio = bubble_of_ideal(schedule, stages, microbatches, chunks)
    return ratio / (1 + ratio)
    ### END SOLUTION


def peak_activations(
    schedule: str, stages: int, microbatches: int, rank: int, chunks: int = 1
) -> int:
    """Return the largest number of activations that wait for B or I on a rank at the same time.

    One activation is all that the forward of a microbatch keeps in one stage. With chunks,
    a stage is 1/v of the rank's layers.
    """
    ### BEGIN SOLUTION
    p, m, below = stages, microbatches, stages - 1 - rank
    return {
        "naive": 1,
        "gpipe": m,
        "one_f_one_b": min(m, below + 1),
        "interleaved_one_f_one_b": min(m * chunks, 2 * below + (chunks - 1) * p + 1),
        "zero_bubble_h1": min(m, below + 1),
    }[schedule]
    ### END SOLUTION


def pipeline_bytes_sent(
    stages: int, microbatches: int, rank: int, nbytes: float, chunks: int = 1
) -> float:
    """Return the bytes a rank sends in a step, with activations going down and gradients up.

    nbytes: the size of a microbatch's activation at a border. chunks: how many
    chunks each rank holds (§4).
    """
    ### BEGIN SOLUTION
    if stages == 1:
        return 0
    # the first stage sends no gradient, and the last stage no activation
    ends = (rank == 0) + (rank == stages - 1)
    return microbatches * nbytes * (2 * chunks - ends)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: from one fraction to the other</summary>If r is the bubble divided by the ideal
# time, the whole step takes 1 + r times the ideal time.</details>
#
# How many microbatches are enough? In the chart, dots show simulations of your schedule, and lines show your
# formulas.

# %% tags=["skip-in-grading"]
COUNTS = (1, 2, 4, 8, 16, 32, 64)
FRACTIONS = ((bubble_of_ideal, "-", "ideal time"), (bubble_of_total, "--", "total"))


def over_microbatches():
    """Draw GPipe's bubble for 4 and 8 ranks."""
    figure = picture(6.5, 2.6)
    axes = figure.subplots()
    for p, colour in ((4, RANKS[0]), (8, RANKS[1])):
        runs = [simulate(gpipe(p, m)) for m in COUNTS]
        axes.plot(COUNTS, [simulation.of_ideal for simulation in runs], "o", color=colour, ms=4)
        axes.plot(
            COUNTS,
            [simulation.of_total for simulation in runs],
            "s",
            color=colour,
            ms=4,
            mfc="white",
        )
        for formula, dashes, name in FRACTIONS:
            with contextlib.suppress(NotImplementedError, KeyError):
                foretold = [formula("gpipe", p, m) for m in COUNTS]
                axes.plot(COUNTS, foretold, dashes, color=colour, label=f"p = {p}, of the {name}")
    axes.set(xlabel="microbatches", ylabel="bubble", xscale="log", ylim=(0, 1.6))
    axes.set_xticks(COUNTS, COUNTS)
    axes.grid(True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:  # without formulas, there are only dots
        axes.legend(frameon=False, fontsize=8)
    return figure


over_microbatches() if made(gpipe, 4, 8) else None

# %% [markdown]
# GPipe's own rule is "m at least 4 p", which keeps the bubble below a fifth of the total. But m is limited,
# because training suffers if the batch is too large, and GPUs idle if the microbatches are too small.
#
# **Break it.** Every rank keeps the activations of all m microbatches, so does m = 64 fit into memory? Take a
# stage of ten layers of Llama 3 70B that 8 GPUs share as in notebook 06, with 4,096 tokens per microbatch,
# flash attention and bf16. Each microbatch needs 1.4 GB on a GPU (34 s·b·h/t bytes per layer, for s tokens, b
# sequences, width h and t GPUs), so 64 need 91 GB. But an H100 has only 80 GB, of which weights, gradients and
# optimizer states take 17 GB (16 bytes per parameter), so m = 64 does not fit.
#
# <details><summary>In production</summary>
#
# PyTorch provides `ScheduleGPipe`. The original GPipe kept only the activations at the borders of its stages,
# one per microbatch, and recomputed the others in backward, which took a third more compute.
#
# </details>
#
# <details><summary>In the lectures</summary>Lecture 001 states "only 25% utilization" for the pipeline of §1.
# It says that GPipe "reduces bubble to (N−1)/M", for N ranks and M microbatches. This share is the bubble
# divided by the ideal time.</details>

# %% [markdown]
# ## 3 · 1F1B: the same in less memory
#
# | | |
# |---|---|
# | you will write | `one_f_one_b(stages, microbatches)`, and your predictions for it |
# | builds on | §2 |
# | time | 25 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 9 |
#
# The last rank has the loss of microbatch 0 after its first forward, so it could begin its first backward
# right away. Then rank p − 2 gets a gradient, and so on up the pipeline. So let every rank alternate **one
# forward, one backward**, as soon as it can. A rank further up (with a smaller i) waits longer for its first
# gradient, and does more forwards while it waits. These forwards are its *warm-up*.
#
# **Predict.** Once forwards and backwards alternate (the *steady state*), a rank should not have to wait for
# any gradient except its first. How many forwards must rank i of p do before this state begins? How many
# microbatches does it have in flight, at most? And how long is its bubble?
#
# <details><summary>Answer</summary>The warm-up has p − 1 − i forwards: none on the last rank, and one more
# for each rank further up. In the steady state, a rank does one more forward before each backward, so p − i
# microbatches are in flight on rank i, however large m is (but never more than m). The bubble is (p − 1)(F +
# B), as for GPipe, because neither the first input nor the last gradient comes any earlier. 1F1B saves
# memory, but not time.</details>
#
# **Build.** Forwards take the microbatches in order, and so do backwards. If m is smaller than the warm-up,
# all forwards belong to the warm-up.


# %% nbgrader={"grade_id": "one_f_one_b", "solution": true}
# If you like, write a helper here. Interleaving (§4) can use it again.
### BEGIN SOLUTION
def _alternate(forwards, backwards, warm_up):
    """Return `warm_up` forwards, then a forward and a backward in turn,
    and then the remaining backwards."""
    row = list(forwards[:warm_up])
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        row += [forward, backward]
    return row + list(backwards[max(0, len(forwards) - warm_up) :])


### END SOLUTION


def one_f_one_b(stages: int, microbatches: int) -> list:
    """Schedule a warm-up with forwards, then one forward and one backward in turn.
    Return, for each rank, the list of its Actions.

    Each rank idles for (p-1)(F+B), and rank i holds at most min(m, p-i) microbatches.
    """
    ### BEGIN SOLUTION
    counted(stages, microbatches)
    rows = []
    for rank in range(stages):
        forwards = [Action(rank, "F", k) for k in range(microbatches)]
        backwards = [Action(rank, "B", k) for k in range(microbatches)]
        rows.append(_alternate(forwards, backwards, warm_up=stages - 1 - rank))
    return rows
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: three parts</summary>Make a list of all forwards and one of all backwards. Take the
# warm-up from the front of the first list. Then take one action from each list in turn, as long as forwards
# are left. Finally, take the backwards that are left.</details>
# <details><summary>Hint: look at two rows</summary>For p = 4 and m = 5, rank 3 does F0 B0 F1 B1 F2 B2 F3 B3
# F4 B4, and rank 2 does F0 F1 B0 F2 B1 F3 B2 F4 B3 B4.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "one_f_one_b_check", "points": 9}
report = check("07_pipeline/one_f_one_b", one_f_one_b)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/one_f_one_b", one_f_one_b, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** Compare your chart with GPipe's chart, and the microbatches in flight with your predictions.

# %% tags=["skip-in-grading"]
for name, generator in (("gpipe", gpipe), ("one_f_one_b", one_f_one_b)):
    schedule = made(generator, 4, 8)
    for rank in range(4) if schedule else ():
        foretold = said(peak_activations, name, 4, 8, rank)
        print(f"{name:12} rank {rank}: {held(schedule, rank)} in flight, predicted {foretold}")
drawn(one_f_one_b, 4, 8)

# %% [markdown]
# The step still takes 33 units of time, but rank 0 has 4 microbatches in flight instead of 8. In general, p
# microbatches on 1/p of the layers take as much memory as *one* microbatch in the whole model.
#
# **Break it.** What if the warm-up has the wrong length? For p = 4 and m = 8, the cell makes it up to three
# forwards shorter and up to four longer, first on all ranks and then only on rank 0. Which of these schedules
# will hang, and which will cost time or memory?


# %% tags=["skip-in-grading"]
def other_warm_up(change, ranks):
    """Return your 1F1B for p = 4, m = 8, but with `change` more forwards
    in the warm-up of some ranks."""
    rows = []
    for rank in range(4):
        ahead = max(0, 3 - rank + (change if rank in ranks else 0))
        first = one_f_one_b(ahead + 1, 8)[0]  # rank 0 of ahead + 1 stages has this warm-up
        rows.append([action._replace(stage=rank) for action in first])
    return rows


for who, ranks in (("all ranks", range(4)), ("rank 0", [0])) if made(one_f_one_b, 4, 8) else ():
    for change in (-3, -2, -1, 0, 1, 4):
        schedule = other_warm_up(change, ranks)
        wrong = violation(schedule)
        outcome = wrong or f"total {simulate(schedule).total}, rank 0 keeps {held(schedule)}"
        print(f"{who}, warm-up {change:+d}: {outcome}")

# %% [markdown]
# With three forwards fewer on all ranks, you get the naive schedule, and with many more forwards, you get
# GPipe. 1F1B is the best point in between, because every shorter warm-up is slower, and every longer one
# needs more memory. If only rank 0's warm-up is one forward too short, the other ranks wait for rank 0. If it
# is two forwards too short, the run deadlocks, because rank 1 waits for a forward that rank 0 would do only
# after a backward. But a warm-up that is too long on all ranks, or only on rank 0, costs no time, so you do
# not notice it until memory runs out.
#
# <details><summary>In production</summary>
#
# 1F1B is PyTorch's `Schedule1F1B`, Megatron-LM's default, and DeepSpeed's `TrainSchedule`. It is also called
# PipeDream-Flush, because its order comes from the asynchronous schedule of §10.
#
# </details>
#
# <details><summary>In the lectures</summary>Lecture 001 does not distinguish 1F1B from PipeDream. Its advice
# to minimise bubbles by "using 1F1B" is wrong, because the bubble is as long with 1F1B as with
# GPipe.</details>

# %% [markdown]
# ## 4 · Interleaving: a shorter way round
#
# | | |
# |---|---|
# | you will write | `interleaved_one_f_one_b(stages, microbatches, chunks=2)`, your predictions for it, and `pipeline_bytes_sent` |
# | builds on | §3 |
# | time | 30 minutes |
# | difficulty, importance | 4 and 3 of 5 |
# | points | 9 |
#
# The bubble is the time in which the pipeline fills and drains. Filling and draining take the forwards and
# backwards of p − 1 stages, so let's make the stages smaller. With 32 layers on 4 ranks, rank 0 holds layers
# 0 to 3 *and* 16 to 19, rank 1 holds layers 4 to 7 and 20 to 23, and so on. There are v·p stages, and rank i
# holds stages i, p + i, 2p + i, ..., which are its v *chunks*. A microbatch goes round the ranks v times.
#
# **Predict.** How long is the bubble with v chunks? And how many bytes does a rank send, with m microbatches
# and an activation of M bytes at each border? Add this schedule to your predictions in §2, and write the
# fourth function.
#
# <details><summary>Answer</summary>The bubble is (p − 1)(F + B)/v. It still takes p − 1 stages to fill the
# pipeline, but each takes only 1/v of the time. There are v·p − 1 instead of p − 1 borders. Without chunks, a
# rank in the middle sends 2 m M, which is m M down and m M up. With v chunks, the rank sends 2 v m M. Ranks 0
# and p − 1 each send m M less, since the first stage has no gradient to send on, and the last stage has no
# activation.</details>
#
# In which order does a rank take its chunks? Megatron-LM sends microbatches through the chunks in *groups of
# p*, because microbatch 0 returns to rank 0 just when rank 0 has done stage 0 for p microbatches. A group goes
# through the rank's first chunk, then through its second, and so on, and then the next group begins. Backwards
# take the same groups, but go through the chunks from last to first. With p = 2, v = 2 and m = 4, rank 0 holds
# stages 0 and 2, so it takes its forwards and its backwards in these orders:
#
#     0F0 0F1 2F0 2F1   0F2 0F3 2F2 2F3
#     2B0 2B1 0B0 0B1   2B2 2B3 0B2 0B3
#
# After its warm-up, a rank alternates forwards and backwards as before, but the warm-up of rank i is longer:
#
# > 2 (p − 1 − i) + (v − 1) p
#
# The last rank has to do (v − 1) p forwards before microbatch 0 arrives at its last chunk. A rank further up
# needs at least one more forward, since its first gradient comes through one more stage, but Megatron-LM gives
# it two more. You will see below what the second one is for.
#
# **Build.** `stages` is p, the number of *ranks*, whereas an Action's stage counts along the model, from 0 to
# v p − 1. Two lines are given, which refuse an m that is not a multiple of p, and list the groups. As in §3,
# the warm-up ends when no forwards are left.


# %% nbgrader={"grade_id": "interleaved_one_f_one_b", "solution": true}
def interleaved_one_f_one_b(stages: int, microbatches: int, chunks: int = 2) -> list:
    """Schedule 1F1B with v chunks per rank. Rank i holds stages i, p+i, 2p+i, ...

    Return, for each of `stages` ranks, the list of its Actions. Each rank idles for (p-1)(F+B)/v,
    where F and B are the times for all layers of a rank. Rank i holds up to
    min(mv, 2(p-1-i) + (v-1)p + 1) activations of one chunk.
    """
    counted(stages, microbatches, least=stages, unit=stages)
    groups = [range(first, first + stages) for first in range(0, microbatches, stages)]
    ### BEGIN SOLUTION
    if chunks < 1:
        raise ValueError(f"chunks={chunks}: each rank holds at least one")
    rows = []
    for rank in range(stages):
        down = [chunk * stages + rank for chunk in range(chunks)]
        forwards = [Action(s, "F", k) for group in groups for s in down for k in group]
        backwards = [Action(s, "B", k) for group in groups for s in reversed(down) for k in group]
        warm_up = 2 * (stages - 1 - rank) + (chunks - 1) * stages
        rows.append(_alternate(forwards, backwards, warm_up))
    return rows
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: two lists again</summary>Make one list of all forwards of the rank and one of all
# its backwards, each in its own order. Then take actions from the two lists in turn as in §3, but with the
# longer warm-up.</details>
# <details><summary>Hint: the order of the forwards</summary>Write three loops. From outside to inside, they
# go over the groups of p microbatches, the rank's stages, and the group's microbatches.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "interleaved_one_f_one_b_check", "points": 9}
report = check("07_pipeline/interleaved_one_f_one_b", interleaved_one_f_one_b)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/interleaved_one_f_one_b", interleaved_one_f_one_b, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** The cell draws two chunks on each rank, so every action takes half as long. The second chunk is
# paler.

# %% tags=["skip-in-grading"]
drawn(interleaved_one_f_one_b, 4, 8, 2, durations=Durations().split(2))

# %% [markdown]
# Rank 0 keeps up to 11 activations of one chunk, which take as much memory as 5.5 microbatches on all its
# layers. With 1F1B it kept 4. Does interleaving have to cost this memory? In the column *shorter* of the next
# cell, the warm-up grows by only one forward for each rank further up. Each message takes a time c, where c =
# 1 is the time of a forward through *all* layers of a rank.


# %% tags=["skip-in-grading"]
def shorter_warm_up(schedule):
    """Return the same actions with a warm-up of (p − 1 − i) + (v − 1) p forwards on rank i."""
    rows = []
    for rank, row in enumerate(schedule):
        forwards, backwards = ([action for action in row if action.kind == kind] for kind in "FB")
        chunks = len({action.stage for action in row})
        count = (chunks - 1) * len(schedule) + len(schedule) - 1 - rank
        turns = [
            action for turn in zip(forwards[count:], backwards, strict=False) for action in turn
        ]
        rows.append(forwards[:count] + turns + backwards[len(forwards) - count :])
    return rows


plain, schedule = made(one_f_one_b, 4, 8), made(interleaved_one_f_one_b, 4, 8)
if plain and schedule:
    shorter, four = shorter_warm_up(schedule), interleaved_one_f_one_b(4, 8, 4)
    print("total:  c    1F1B   v = 2, shorter   v = 2   v = 4")
    for c in (0, 0.1, 0.25, 0.5, 1):
        totals = [
            float(simulate(rows, Durations(communication=c).split(v)).total)
            for rows, v in ((plain, 1), (shorter, 2), (schedule, 2), (four, 4))
        ]
        print("{:9} {:7.2f} {:16.2f} {:7.2f} {:7.2f}".format(c, *totals))
    print(
        f"rank 0 keeps {held(shorter)} activations with the shorter warm-up, and otherwise {held(schedule)}"
    )
    for v in (1, 2, 4):
        foretold = [said(pipeline_bytes_sent, 4, 8, rank, 1, v) for rank in range(4)]
        print(f"v = {v}: messages sent by ranks 0 to 3, as you predicted: {', '.join(foretold)}")

# %% [markdown]
# If messages take no time, the second extra forward saves no time but costs memory. Without this forward,
# rank 0 keeps only as much as with 1F1B. If a message takes a quarter of F, the extra forward shortens the
# step from 36 to 32, because it gives the rank work while an activation and a gradient are on their way. The
# longer a message takes, the fewer chunks you should use.
#
# **Break it.** In the next cell, backwards take the chunks in the order of the forwards. Which rank then
# waits for which?


# %% tags=["skip-in-grading"]
def first_chunk_first(schedule, stages):
    """Return the same schedule, but with the two chunks of a rank swapped in its backwards."""
    other = {rank: {rank: stages + rank, stages + rank: rank} for rank in range(stages)}
    return [
        [
            action._replace(stage=other[rank][action.stage]) if action.kind == "B" else action
            for action in row
        ]
        for rank, row in enumerate(schedule)
    ]


schedule = made(interleaved_one_f_one_b, 4, 8)
if schedule:
    print(violation(first_chunk_first(schedule, 4)))

# %% [markdown]
# All ranks deadlock at the first backward of their first chunk. Rank 3 needs the gradient from stage 4 on rank
# 0, but rank 0 would do that backward only after the backward at which it is stuck.
#
# <details><summary>In production</summary>
#
# PyTorch provides `ScheduleInterleaved1F1B`, and Megatron-LM the option
# `--num-layers-per-virtual-pipeline-stage`. Llama 3 (405B) was trained with p = 16 and a schedule of this
# kind (Llama 3, §3.3).
#
# </details>

# %% [markdown]
# ## 5 · Half of a backward can wait
#
# | | |
# |---|---|
# | you will write | `zero_bubble_h1(stages, microbatches)`, and your last predictions |
# | builds on | §3 |
# | time | 23 minutes |
# | difficulty, importance | 4 and 3 of 5 |
# | points | 8 |
#
# A linear layer y = x Aᵀ has two products in its backward, dx = dy A and dA = dyᵀ x. The previous stage waits
# for dx, but no rank waits for dA before the optimizer's step. So let's cut B into **I**, which computes dx,
# and **W**, which computes dA. A rank does each I as soon as it can, and a W whenever it would otherwise
# idle. (The idea is from Qi et al. 2024, who call I "B".)
#
# *ZB-H1* keeps the order of 1F1B, with I instead of B. Rank i first postpones i W's, and from then on it does
# one W after each I. So rank 0 does each W right after its I, whereas rank 3 does its first W, for microbatch
# 0, after its fourth I. When it has no forwards or I's left, rank i still has i W's to fill the white space
# at the end of its row.
#
# **Predict.** In the chart of 1F1B, a rank idles for (p − 1)(F + I + W). How much of this time is left in
# ZB-H1, and what happens to the memory? Count a microbatch as kept until its W, which still needs x and dy of
# each linear layer. (These take 32 s·b·h bytes per layer, of the 34 s·b·h that a forward keeps without
# attention scores; Qi et al., table 1.)
#
# <details><summary>Answer</summary>The bubble shrinks to (p − 1)(F + I − W). If F = I = W, this is a third of
# 1F1B's bubble. Rank i waits for a time of i F before its first input arrives. It then waits for (p − 1 − i)
# I before its first gradient, since the ranks below do no W before they pass this gradient on. The W's fill
# the rest of 1F1B's bubble. On rank i, p − i microbatches await I, as before, and up to i more await W. So
# every rank keeps up to p microbatches, as many as rank 0 keeps in 1F1B. (<code>peak_activations</code>
# counts only the microbatches that await I.)</details>
#
# **Build.** The kinds are `"F"`, `"I"` and `"W"`. With fewer than p microbatches, the bubble is longer than
# the formula says, so refuse them with `counted(stages, microbatches, least=stages)`.


# %% nbgrader={"grade_id": "zero_bubble_h1", "solution": true}
def zero_bubble_h1(stages: int, microbatches: int) -> list:
    """Schedule 1F1B with each B cut into I and W. Rank i keeps i of its W's for the end.

    Return, for each rank, the list of its Actions. Each rank idles for (p-1)(F+I-W), if W is
    not longer than F and I.
    """
    ### BEGIN SOLUTION
    counted(stages, microbatches, least=stages)
    rows = []
    for rank in range(stages):
        warm_up = stages - 1 - rank
        passes = [("F", k) for k in range(warm_up)]
        for k in range(microbatches):
            if k + warm_up < microbatches:
                passes.append(("F", k + warm_up))
            passes.append(("I", k))
            if k >= rank:
                passes.append(("W", k - rank))
        passes += [("W", k) for k in range(microbatches - rank, microbatches)]
        rows.append([Action(rank, kind, k) for kind, k in passes])
    return rows
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: where the W's go</summary>Number the I's of rank i: 0, 1, 2, ... Put W number k − i
# right after I number k, if there is such a W. The last i W's come at the end.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "zero_bubble_h1_check", "points": 8}
report = check("07_pipeline/zero_bubble_h1", zero_bubble_h1)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/zero_bubble_h1", zero_bubble_h1, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** Compare the bubble with your prediction.

# %% tags=["skip-in-grading"]
drawn(zero_bubble_h1, 4, 8)

# %% [markdown]
# **Break it.** It matters *when* a rank does a W. The cell compares your order with two other orders. With
# "at once", each W comes right after its I, and with "at the end", all W's come last. Which order is fastest,
# and which needs the most memory?


# %% tags=["skip-in-grading"]
def at_once(row):
    """Return the row with every W right after its I."""
    return [
        action._replace(kind=kind)
        for action in row
        if action.kind != "W"
        for kind in ("IW" if action.kind == "I" else "F")
    ]


def at_the_end(row):
    return sorted(row, key=lambda action: action.kind == "W")


schedule = made(zero_bubble_h1, 4, 8)
if schedule:
    ways = {"at once": at_once, "your order": list, "at the end": at_the_end}
    for name, way in ways.items():
        timing = simulate([way(row) for row in schedule])
        most = max(held(timing.schedule, rank, weight=1) for rank in range(4))
        print(f"{name:10}: total {timing.total}, at most {most} microbatches kept until their W")

# %% [markdown]
# Even "at once" takes 30 instead of the 33 of 1F1B, because the stage before gets its gradient earlier. With
# all W's at the end, a rank keeps as many microbatches as in GPipe, but gains nothing over "at once".
#
# <details><summary>Does autograd do this by itself?</summary>No, because it computes dx and dA of a layer one
# after the other, so a stage's input gradient is ready only when the whole stage is done.
# <code>course_lib/pipeline/halves.py</code> shows how to separate the two.</details>
#
# Where is your chart still white? A longer warm-up fills the gap before a rank's first gradient, but costs
# memory. The gap before its first input closes only if each rank begins and ends its step later than the rank
# before.
#
# *ZB-H2* does both. With its double warm-up, rank 0 has 2p − 1 microbatches in flight, but each rank is busy
# from its first action to its last. Since the next step begins on rank 0 while the last rank is still at work
# on this one, the ranks cannot meet at a barrier or compute a global gradient norm before the optimizer's
# step. *ZB-V* keeps each rank just as busy with only the memory of 1F1B. Each rank has two chunks, laid out
# as a V, so rank 0 holds both the first stage and the last.

# %% tags=["skip-in-grading"]
from course_lib.pipeline import generators as library  # the schedules of the reference

SCHEDULES = [
    "one_f_one_b", "naive", "gpipe", "interleaved_one_f_one_b", "zero_bubble_h1", "zero_bubble_h2",
    "zero_bubble_v", "dualpipe", "dualpipe_v",
]  # fmt: skip

display(drawn(library.zero_bubble_h2, 4, 8))
drawn(library.zero_bubble_v, 4, 8, durations=Durations().split(2))

# %% [markdown]
# The total of H2 is 27, as for H1, because the clock runs from the first rank's start to the last rank's end.
# But in H2, the neighbouring steps fill the white space on both sides. In the V, 8 activations are in flight,
# but each is half as large, so they need the memory of 1F1B's 4 microbatches.
#
# In real models, W is the shortest of the three (§12 measures them), because attention scores, norms and
# activation functions have an input gradient, but hardly any weights. So the W's cannot fill all of the white
# space, and Qi et al. let a program search for the best order for the measured times.
#
# **In production.** PyTorch provides `ScheduleZBVZeroBubble`.
#
# **Optional.** The next cell has sliders for p, m, v and the durations, and shows any schedule of this
# notebook. (If an action on the "critical path" took longer, so would the step.) In the cell after it, you
# build a schedule by hand. Each button belongs to one rank and one kind of action. It places the next
# microbatch, or tells you why not. Can you end (*makespan*) at 15 or earlier, with at most three activations
# on a rank?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.schedule_explorer import explorer

explorer({name: getattr(library, name) for name in SCHEDULES}, copies={"dualpipe": 2})

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.schedule_workbench import Workbench

Workbench(3, 4).place("0F0 1F0 2F0 2B0")  # three stages, four microbatches; undo takes actions back

# %% [markdown]
# ## 6 · What you predicted
#
# | | |
# |---|---|
# | you will write | nothing new, if the functions in §2 know all five schedules |
# | builds on | §2 to §5 |
# | time | 5 minutes |
# | points | 7 |
#
# The table shows the simulated numbers of your schedules. If your formulas disagree, the row ends with their
# numbers.

# %% tags=["skip-in-grading"]
YOURS = {
    "naive": naive,
    "gpipe": gpipe,
    "one_f_one_b": one_f_one_b,
    "interleaved_one_f_one_b": interleaved_one_f_one_b,
    "zero_bubble_h1": zero_bubble_h1,
}
print(f"{'p = 4, m = 12: bubble':24} {'of ideal':>10} {'of total':>10} {'rank 1 keeps':>13}")
for name, generator in YOURS.items():
    schedule, chunks = made(generator, 4, 12), 2 if "interleaved" in name else 1
    if schedule:
        timing = simulate(schedule, Durations().split(chunks))
        shown = [
            f"{number:.6g}" for number in (timing.of_ideal, timing.of_total, held(schedule, 1))
        ]
        foretold = [
            said(bubble_of_ideal, name, 4, 12, chunks),
            said(bubble_of_total, name, 4, 12, chunks),
            said(peak_activations, name, 4, 12, 1, chunks),
        ]
        marks = "" if shown == foretold else f"   predicted {foretold}"
        print(f"{name:24} {shown[0]:>10} {shown[1]:>10} {shown[2]:>13}{marks}")

# %% nbgrader={"grade_id": "predictions_check", "points": 7}
report = check(
    "07_pipeline/predictions",
    bubble_of_ideal,
    bubble_of_total,
    peak_activations,
    pipeline_bytes_sent,
)
### BEGIN HIDDEN TESTS
report = check(
    "07_pipeline/predictions",
    bubble_of_ideal,
    bubble_of_total,
    peak_activations,
    pipeline_bytes_sent,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(7)

# %% [markdown]
# ## 7 · On real ranks
#
# | | |
# |---|---|
# | you will write | `run_schedule(stage, actions, microbatches, group=None)` |
# | builds on | §3, and deadlocks (notebook 00) |
# | time | 44 minutes |
# | difficulty, importance | 4 and 5 of 5 |
# | points | 15 |
#
# Now you *run* forwards and whole backwards of a real model, one stage per rank. The schedule gives the order
# of the computations, but not of the messages, and with a wrong order of messages, the pipeline hangs.
#
# In the obvious program, each rank goes through its own list. For each action it receives the input,
# computes, and sends the output. The next cell does this without a model, so each message is a single number.
# On gloo, `send` returns when the receiver has taken the message, and `isend` returns immediately.
#
# **Break it.** The cell runs GPipe with `send`, 1F1B with `send`, and 1F1B with `isend` on two ranks. Which
# of them will hang?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def tokens_only(schedule, blocking):
    """Let each rank go through its own list."""
    rank, under_way = dist.get_rank(), []
    for _, kind, k in schedule[rank]:
        src, dst = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
        token = torch.full((1,), float(k))
        if 0 <= src < len(schedule):
            dist.recv(token, src)
        if 0 <= dst < len(schedule) and blocking:
            dist.send(token, dst)
        elif 0 <= dst < len(schedule):
            under_way.append((dist.isend(token, dst), token))
    for work, _ in under_way:
        work.wait()


for generator, blocking in ((gpipe, True), (one_f_one_b, True), (one_f_one_b, False)):
    schedule = made(generator, 2, 4)
    if schedule and try_it(tokens_only, schedule, blocking, world_size=2, backend="gloo"):
        print(f"{generator.__name__}, {'send' if blocking else 'isend'}: done")

# %% [markdown]
# In GPipe, all messages first go down, and then all go up. In 1F1B's steady state, however, rank 0 sends an
# activation down while rank 1 sends a gradient up, so each waits for the other to receive. `isend` helps on
# gloo, but on NCCL the run can still hang, because NCCL runs a rank's operations in a group *one after the
# other*, in the order they were posted. So if two ranks both post a send first, they can wait for each other
# again.
#
# **One order for all ranks** prevents this deadlock on every backend. You already have such an order, because
# `simulate(actions).events` lists all actions of all ranks, sorted by start time. Each event has `rank`,
# `action`, `start` and `end`. Let each rank walk through this *whole* list. At each action:
#
# 1. If the action is its own, the rank waits for the message the action needs (its receive is already
#    posted), and then does the action.
# 2. Then the action's output is sent, if another rank needs it. If this rank is the sender, it posts an
#    `isend`. If this rank is the receiver, it posts an `irecv` into an empty tensor and remembers the handle,
#    but does not wait for the message yet.
#
# This order cannot deadlock, even if every call blocks. And since events are sorted by their *start*, a rank
# posts each receive before it begins its next action, so the message can travel while the rank computes.
#
# <details><summary>Why can it not deadlock?</summary>Put each message into the list, right behind its action,
# and take the first entry that is not done yet. If it is an action, its input has arrived, because that
# message is earlier in the list. If it is a message, its sender and its receiver have done everything before
# it, so both are ready. Either way, this entry can be done, and after it the next one, so no rank waits
# forever.</details>
#
# **Build.** `stage` is this rank's part of the model:
#
# | | |
# |---|---|
# | `stage.module` | takes the output of the stage before (on the first stage, the microbatch's inputs), and returns one tensor |
# | `stage.first`, `stage.last` | tell whether this stage is the first or the last |
# | `stage.loss(output, targets)` | returns, on the last stage, the *sum* of the losses |
#
# The messages are given. `receive(kind, k, src)` posts the receive for the output of an F or B of microbatch
# k, `arrived(kind, k)` waits for this message and returns its tensor, and `send(tensor, kind, dst)` sends an
# output. Write a forward, a backward, and the loop over the events, and wait for the last sends at its end.
#
# - The microbatches have *different sizes*, but the loss is the mean over the targets of the whole batch. So
#   divide each microbatch's sum of losses by `count`, the number of **all** targets. (Means of microbatches
#   that are only added up give gradients m times too large, a mistake AdamW hides, as in notebook 03 §2.)
# - In the backward of a microbatch, drop everything you kept for it. The check counts the tensors that
#   forward keeps for backward. In one run it measures the memory of each rank's process, so it sees clones as
#   well. (A tensor that is being sent lives until its `wait`. So `send` detaches it from its graph, and first
#   waits for the previous message of this kind.)
# - Add the gradients to `param.grad` (autograd does this). Do not change the inputs. The only kinds of action
#   are F and B.
# - Use no collectives. The check runs over gloo. If your order of messages could hang on NCCL, you get a
#   remark, but lose no points.


# %% nbgrader={"grade_id": "run_schedule", "solution": true}
def run_schedule(stage: Stage, actions, microbatches, group: Group = None) -> dict:
    """Run forward and backward of all microbatches, in the order of the schedule `actions`.

    Add the gradient of the mean loss over all targets to the parameters' `grad`. Return
    {microbatch: its part of this loss} on the rank of the last stage, and {} on other ranks.
    Send the output of each F to the next rank, and a gradient of the same size back for each B.
    """
    # Stage i is on rank i of the group, which can number its ranks differently from the world.
    rank, ranks = dist.get_rank(group), range(dist.get_world_size(group))
    count = sum(stage.count(targets) for _, targets in microbatches)  # all targets of the batch
    arriving = {}  # by kind and microbatch, an empty tensor and the handle of its irecv
    sending = {}  # by kind, the handle of the latest isend and its tensor
    kept = {}  # by microbatch, the input and the output of its forward
    losses = {}  # by microbatch, its part of the loss

    def receive(kind, k, src):
        """Post the receive for the output of F or B of microbatch k, but do not wait for it."""
        inputs = microbatches[k][0]
        empty = torch.empty(tuple(stage.shape(inputs)), dtype=stage.dtype, device=inputs.device)
        arriving[kind, k] = empty, dist.irecv(empty, group=group, group_src=src)

    def arrived(kind, k):
        """Wait for the output of F or B of microbatch k, and return it."""
        tensor, work = arriving.pop((kind, k))
        work.wait()
        return tensor

    def send(tensor, kind, dst):
        """Send an output as soon as the previous output of this kind has left."""
        if kind in sending:
            sending[kind][0].wait()
        tensor = tensor.detach().contiguous()
        sending[kind] = dist.isend(tensor, group=group, group_dst=dst), tensor

    ### BEGIN SOLUTION
    def forward(k):
        x, targets = microbatches[k]
        if not stage.first:
            x = arrived("F", k).requires_grad_()
        output = stage.module(x)
        if stage.last:
            output = stage.loss(output, targets) / count
            losses[k] = output.detach()
        kept[k] = x, output
        return output

    def backward(k):
        gradient = None if stage.last else arrived("B", k)
        x, output = kept.pop(k)
        torch.autograd.backward(output, gradient)
        return x.grad

    for src, (_, kind, k), *_ in simulate(actions).events:
        dst = src + 1 if kind == "F" else src - 1
        if src == rank:
            output = forward(k) if kind == "F" else backward(k)
            if dst in ranks:
                send(output, kind, dst)
        elif dst == rank:
            receive(kind, k, src)
    for work, _ in sending.values():
        work.wait()
    return losses
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the loop</summary><pre>for event in simulate(actions).events:
#     _, kind, k = event.action
#     to = event.rank + 1 if kind == "F" else event.rank - 1
#     if event.rank == rank:
#         ...      # do it, and send the output to rank `to`, if there is one
#     elif to == rank:
#         ...      # post the receive</pre></details>
# <details><summary>Hint: the forward</summary>An activation that arrives needs <code>requires_grad_()</code>,
# so that autograd leaves its gradient in <code>x.grad</code>. Keep x and the output in <code>kept[k]</code>.
# On the last stage, the output is the loss. Put it into <code>losses</code> detached, because otherwise its
# graph lives on.</details>
# <details><summary>Hint: the backward</summary>Take <code>x, output = kept.pop(k)</code>, then call
# <code>torch.autograd.backward(output, gradient)</code>. On the last stage there is no gradient, because the
# output is the loss. Send <code>x.grad</code> to the stage before, which waits for it.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "run_schedule_check", "points": 15}
report = check("07_pipeline/run_schedule", run_schedule)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/run_schedule", run_schedule, cases="hidden")
### END HIDDEN TESTS
report.points(15)

# %% [markdown]
# **Measure.** The cell runs a GPT on four ranks, with eight microbatches of one to three sequences, in
# float64. It compares the loss and gradients with the results of one process, and the bytes with your
# formula, in which m is now the number of sequences.


# %% tags=["skip-in-grading"]
SMALL = GPTConfig(width=32, heads=4, layers=7, context=32, tied=False)


def some_microbatches(count=8, rows=(1, 2, 3)):
    """Return pairs (inputs, targets) of a few sequences of 24 bytes each,
    from the sources of the standard library."""
    text = library_text()
    sizes = [rows[k % len(rows)] for k in range(count)]
    drawn_ones = [batch(text, k, batch_size=size, length=24) for k, size in enumerate(sizes)]
    return [tuple(tensor.to(device()) for tensor in pair) for pair in drawn_ones]


def a_stage(schedule, config=SMALL):
    """Return this rank's stage of a GPT, with the same weights in every run."""
    torch.manual_seed(0)
    model = GPT(config).double().to(device())
    (stage,) = gpt_stages(model, schedule, dist.get_rank())
    return stage


def a_step(run, schedule, config=SMALL, change=lambda stage: None, rows=(1, 2, 3)):
    """Take one step. Return this rank's loss, and its gradients by parameter names in the model."""
    stage = a_stage(schedule, config)
    change(stage)
    dist.barrier()
    losses = run(stage, schedule, some_microbatches(rows=rows))
    gradients = {name: param.grad for name, param in stage.module.parameter_names().items()}
    return float(sum(losses.values())), gradients


def one_process(config=SMALL, rows=(1, 2, 3)):
    """Return the same as `a_step`, but from one process without a pipeline."""
    torch.manual_seed(0)
    model = GPT(config).double()
    microbatches = some_microbatches(rows=rows)
    count, total = sum(targets.numel() for _, targets in microbatches), 0.0
    for inputs, targets in microbatches:
        loss = next_token_loss(model(inputs), targets, "sum") / count
        loss.backward()
        total += loss.item()
    return total, {name: param.grad for name, param in model.named_parameters()}


def furthest(run, alone):
    """Return the largest difference from the gradients of `alone`, over their largest element."""
    largest = max(float(gradient.abs().max()) for gradient in alone.values())
    apart = [
        (gradient - alone[name]).abs().max() for _, grads in run for name, gradient in grads.items()
    ]
    return float(max(apart)) / largest


loss, gradients = one_process()
for generator in (naive, gpipe, one_f_one_b):
    schedule = made(generator, 4, 8)
    run = try_it(a_step, run_schedule, schedule) if schedule else None
    if run:
        right = abs(run[-1][0] - loss) < 1e-9 and furthest(run, gradients) < 1e-9
        print(
            f"{generator.__name__}: {'equal to one process' if right else 'NOT equal to one process'}"
        )
        sequences, nbytes = sum((1, 2, 3)[k % 3] for k in range(8)), 24 * 32 * 8
        for rank in (0, 1, 3) if generator is one_f_one_b else ():
            foretold = said(pipeline_bytes_sent, 4, sequences, rank, nbytes)
            print(
                f"    rank {rank} sent {run.ledger.bytes_sent(rank):,} bytes, predicted {foretold}"
            )

# %% [markdown]
# How much memory do the ranks need? The next cell prints the peak memory of the tensors on rank 0 of two
# ranks, including weights and gradients.
#
# **Break it.** In the last row, a list keeps every tensor saved by autograd, as debugging code or a copied
# `retain_graph=True` might. The gradients are still right. Is the peak memory still small?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def peaks_of(generator, counts, keep=False):
    """Return this rank's peak memory in MiB, for a step with each number of microbatches."""
    peaks, everything = [], []

    def pack(tensor):
        if keep:
            everything.append(tensor)
        return tensor

    for count in counts:
        schedule = generator(2, count)
        stage, microbatches = a_stage(schedule), some_microbatches(count, rows=(4,))
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with costs(*stage.module.parameters()) as cost, hooks:
            run_schedule(stage, schedule, microbatches)
        everything.clear()
        peaks.append(cost.peak_bytes / 2**20)
    return peaks


counts = (2, 4, 8, 16)
print("microbatches   ", *(f"{count:5}" for count in counts))
for name, generator, keep in (
    ("GPipe", gpipe, False), ("1F1B", one_f_one_b, False), ("1F1B, all kept", one_f_one_b, True)
):  # fmt: skip
    run = made(generator, 2, 2) and try_it(peaks_of, generator, counts, keep, world_size=2)
    if run:
        print(f"{name:15}", *(f"{peak:5.1f}" for peak in run[0]), "MiB")

# %% [markdown]
# A schedule only *allows* memory to be freed. If you keep the graphs anyway, you get the complexity of 1F1B
# but the memory of GPipe.
#
# **In production.** `torch.distributed.pipelining` provides schedule classes whose `step` does the same as
# your function. Its runtime reads schedules as text, in the format of §1, so it can also run *your* rows, as
# you will see in the optional §12.

# %% [markdown]
# ## 8 · Was it wise to pipeline?
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | all of it |
# | time | 7 minutes |
#
# At NeurIPS 2024, Ilya Sutskever said of his own model of 2014: "Was it wise to pipeline? As we now know
# pipelining is not wise."
#
# <details><summary>How fast was that pipeline?</summary>The pipeline ran on 8 GPUs, one for each of the
# model's four layers and four for the softmax, but was only 3.7 times as fast as one GPU (Sutskever et al.
# 2014, §3.5), which is 46 % of the ideal.</details>
#
# Let's ask again for Llama 3 70B, with one sequence of 4,096 tokens per microbatch. The 8 H100s of a node
# share every layer (notebook 06, with sequence parallelism), and p nodes form the pipeline. Assume that a GPU
# reaches 40 % of its 989 TFLOP/s.
#
# Which schedule is best for which p, m and link? The next cell simulates all of them, messages included, if
# they fit into 80 GB per GPU. Parameters take 16 bytes each (32 with the two copies of DualPipe, §11), and
# activations take as many bytes as in §2 and §5.

# %% tags=["skip-in-grading"]
from course_lib.facts import (
    attention_flops,
    attention_parameters,
    korthikanti_activations,
    mlp_parameters,
)
from course_lib.facts.hardware import NETWORK_ALPHA, gpu, link
from course_lib.pipeline.memory import peak_activations as peaks

LLAMA = GPTConfig(
    layers=1, width=8192, heads=64, kv_heads=8, hidden=28672, mlp="swiglu", norm="rms", positions="rotary", bias=False
)  # fmt: skip
LAYERS, SEQ, GPUS = 80, 4096, 8
SPEED = 0.4 * gpu("H100").flops * GPUS  # FLOP/s of a node
WEIGHTS = 2 * SEQ * (attention_parameters(LLAMA) + mlp_parameters(LLAMA)) / SPEED
SCORES = attention_flops(LLAMA, 1, SEQ, causal=True) / SPEED  # scores have no weights, so no W
PARAMETERS = LAYERS * (attention_parameters(LLAMA) + mlp_parameters(LLAMA))
ACTIVATIONS = korthikanti_activations(SEQ, SEQ, 8192, 64, GPUS, "regather", "selective")
M = 2 * SEQ * LLAMA.width  # an activation, of which each GPU of a node sends an eighth
PORT = link("InfiniBand NDR").each_way
LINKS = {
    "a port for each GPU": M / GPUS / PORT,
    "one port for the node": M / PORT,
    "10 Gb/s for the node": M / link("10 Gb").each_way,
}


def rank_times(p, link_seconds):
    """Return the durations, in seconds, of one microbatch on all layers of a rank."""
    layers = LAYERS / p
    return Durations(
        layers * (WEIGHTS + SCORES),
        layers * (WEIGHTS + 2 * SCORES),
        layers * WEIGHTS,
        communication=NETWORK_ALPHA + link_seconds,
    )


def candidates(p, m):
    """Yield (name, schedule, chunks, copies of the model) for all schedules that fit p and m."""
    for name in SCHEDULES:
        sizes = (2, 5) if name.startswith("interleaved") else (None,)
        for v in sizes:
            if v and LAYERS // p % v:
                continue
            with contextlib.suppress(ValueError):
                schedule = getattr(library, name)(p, m, *([v] if v else []))
                chunks = v or (2 if name in ("zero_bubble_v", "dualpipe_v") else 1)
                label = f"interleaved, v = {v}" if v else name
                yield label, schedule, chunks, 2 if name == "dualpipe" else 1


def gigabytes(p, schedule, chunks, copies):
    """Return the gigabytes on the fullest GPU."""
    most = max(peaks(schedule, 32 / 34)) * LAYERS / p / chunks
    return (16 * PARAMETERS * copies / p / GPUS + most * ACTIVATIONS) / 1e9


print("the best schedule that fits into 80 GB, and the share of the time in which ranks work")
print(f"{'':16}" + "".join(f"{name:34}" for name in LINKS))
for p, counts in ((4, (8, 64)), (8, (8, 16, 64)), (16, (16, 64))):
    for m in counts:
        line = f"p = {p:2}, m = {m:3}  "
        fitting = [candidate for candidate in candidates(p, m) if gigabytes(p, *candidate[1:]) < 80]
        for seconds in LINKS.values():
            best = max(
                (1 - float(simulate(schedule, rank_times(p, seconds).split(v), c).of_total), name)
                for name, schedule, v, c in fitting
            )
            line += f"{best[1]} {best[0]:.0%}".ljust(34)
        print(line)
print("\np = 8, m = 16          GB per GPU   share of the time in which ranks work, links as above")
for name, *setting in candidates(8, 16):
    shares = [
        1
        - float(simulate(setting[0], rank_times(8, seconds).split(setting[1]), setting[2]).of_total)
        for seconds in LINKS.values()
    ]
    print(f"{name:24} {gigabytes(8, *setting):8.0f}  ", *(f"{share:8.0%}" for share in shares))

# %% [markdown]
# In the first table, with *a port for each GPU*, `zero_bubble_v` is best, and needs only the memory of 1F1B.
# But with few microbatches (m = p), many small chunks are best. With *one port for the node*, a message takes
# eight times as long, so schedules with many chunks lose time. With *10 Gb/s*, a message takes longer than a
# forward, so a rank should run far ahead before it needs a gradient, as ZB-H2 and GPipe let it do.
#
# <details><summary>When is ZB-H2 best, and when GPipe?</summary>With 10 Gb/s, a message takes 1.2 F with 4
# nodes, 2.3 F with 8, and 4.7 F with 16. ZB-H2 needs at least 2p − 1 microbatches. If m is large enough for
# it, ZB-H2 with its double warm-up is best on 4 and 8 nodes, and otherwise GPipe is best. On 16 nodes, GPipe
# is best for both values of m. For m = 16, there is no ZB-H2, since it needs 31. For m = 64, even the warm-up
# of ZB-H2 is too short, whereas GPipe starts with 64 forwards, which all fit into memory.</details>
#
# In the second table, plain 1F1B at m = 2 p idles for 31 % of the time even with a port for each GPU (your
# formula says 30.4 %), but with the newer schedules, ranks work for 82 to 92 % of the time.
#
# What is the alternative? Let each node hold a replica of the model, with ZeRO-1 (notebook 04):

# %% tags=["skip-in-grading"]
SIZES = {"70B": PARAMETERS, "405B": 405e9}
for name, parameters in SIZES.items():
    for replicas in (8, 64):
        states = (4 + 12 / replicas) * parameters / GPUS / 1e9
        sent = 2 * (replicas - 1) / replicas * 2 * parameters / GPUS
        print(
            f"{name:4} on {replicas:2} nodes: a GPU holds {states:3.0f} GB "
            f"and sends {sent / 1e9:3.0f} GB per step ({sent / PORT:.1f} s)"
        )
step = 64 * LAYERS * (3 * WEIGHTS + 3 * SCORES) / 8
border = 2 * 64 * M / GPUS
print(f"8 nodes compute 64 sequences in {step:.1f} s; in a pipeline, the bubble comes on top")
print(f"in the pipeline, a GPU sends {border / 1e9:.1f} GB per step ({border / PORT:.2f} s)")

# %% [markdown]
# For 70B on these machines, pipelining is *not* wise, because replicas with ZeRO-1 fit into memory. Each GPU
# holds 47 GB of weights, gradients and optimizer states, plus 11 GB of activations, and spends 0.6 s sending.
# Even if no sending is hidden, the 0.6 s are only 14 % of the step's 4.4 s, and replicas have no bubble.
#
# <details><summary>How much of the 0.6 s can hide?</summary>Half of it, 0.3 s for the gradients, can hide
# behind the last backward of the step. A replica has eight sequences, and the backward of each takes 0.37 s.
# The other half, for the new weights, can partly hide behind the next forward, which takes 0.18 s. (The
# activations above are 34 s·b·h/t bytes for each of 80 layers.)</details>
#
# With 405B, no number of replicas helps, because weights and gradients (4 bytes per parameter) take 200 GB
# per GPU. Then you need pipelines, or ZeRO-3, which sends three times the parameters for each microbatch.
#
# So use a pipeline if the model does not fit into a node even with ZeRO-1, or if the link between nodes is
# slow, because replicas send nearly thirty times as much. Take as many microbatches as the batch allows, and
# measure F, I, W and the message time before you choose the schedule.
#
# <details><summary>In the lectures</summary>Lecture 004 ends its part on pipelines with Sutskever's words.
# Lecture 001 calls a utilization of 80-90 % typical.</details>

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them the cells show a recorded run, if there is
# one.*
#
# **Predict.** The cell times F, I and W of four blocks of width 2,048 on a GPU, in 16 bits. On the CPU, W is
# the shortest (§12). Is it the shortest here as well?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.pipelines import ACTIONS, PIPELINE

on_gpus = on_your_gpus(ACTIONS)

# %% [markdown]
# **Predict.** Now 1F1B runs over all your GPUs, with microbatches of one size. A step of m microbatches takes
# m slots of F + B, plus the bubble. The prediction takes the slot from the measured step with one microbatch,
# and the bubble from your `bubble_of_ideal`. Do larger steps take as long as predicted?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def slots(of, run):
    slot = run.rows[0].value / (1 + bubble_of_ideal("one_f_one_b", of["p"], 1))
    return of["m"] * slot * (1 + bubble_of_ideal("one_f_one_b", of["p"], of["m"]))


on_gpus = on_your_gpus(PIPELINE, predicted=slots)
# %% [markdown]
# <details><summary>If the run differs from your prediction</summary>The prediction assumes that all stages
# are equal. But the head of GPT-2 small weighs as much as 5.5 of its blocks, so with four GPUs or more the
# last stage is slower than the mean, and many microbatches take longer than predicted. The step with one
# microbatch also pays for starting kernels, for messages, and for summing the tied embedding's gradients. So
# the slot taken from this step can be too long. If many microbatches take less time than predicted, this is
# probably why.</details>

# %% [markdown]
# ## 9 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 5 minutes |
# | points | 4 |
#
# You can write a number as an expression. In questions 1, 2 and 4, forwards take equally long on all stages,
# and so do backwards.
#
# 1. With 8 stages, 32 microbatches and 1F1B, for what **share of the total** time (0 to 1) does a rank idle?
# 2. With 8 stages and 1F1B, what is the least number of **microbatches**, if no more than a tenth of the
#    total time may be idle?
# 3. What gets smaller with 1F1B instead of GPipe, for the same p and m? `"the bubble"`, `"the peak of
#    activations"` or `"the bytes sent"`
# 4. Take 8 stages, 32 microbatches and 1F1B. The activations of one microbatch on one stage take 1.5 GB. How
#    many **GB** does stage 2, counted from 0, hold at most?
# 5. Why can W be postponed, but not I? Because
#    `"no other rank waits for its result"`, `"it needs no activations"` or `"it takes less time"`

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # share, 0 to 1
answer_2 = ...  # microbatches
answer_3 = ...  # "the bubble", "the peak of activations" or "the bytes sent"
answer_4 = ...  # GB
answer_5 = ...  # one of the three reasons
### BEGIN SOLUTION
answer_1 = 7 / (32 + 7)
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = (8 - 2) * 1.5
answer_5 = "no other rank waits for its result"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 4}
report = check("07_pipeline/questions", answer_1, answer_2, answer_3, answer_4, answer_5)
### BEGIN HIDDEN TESTS
report = check(
    "07_pipeline/questions", answer_1, answer_2, answer_3, answer_4, answer_5, cases="hidden"
)
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# ## 10 · Optional: PipeDream, without a flush
#
# | | |
# |---|---|
# | you will write | `PipeDreamStage(module, optimizer)` |
# | builds on | §3 |
# | time | 25 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | extra credit | 6 points, on top of the 60 |
#
# Why should the pipeline run empty at all? PipeDream (Narayanan et al. 2019) fills the pipeline once and
# never flushes it. It does 1F1B over the whole stream of data, with **an update after every backward**, so it
# pays for the bubble only once.
#
# But now the weights change while microbatches are in flight. In the steady state, rank i makes p − 1 − i
# updates between the forward and the backward of a microbatch. The activations come from the old weights, but
# a backward through the *new* weights gives dx = dy A_new. Such a mixture is not the gradient of any
# function.
#
# So for each microbatch in flight, a stage keeps the version of the weights that the forward of this
# microbatch used (*weight stashing*). The backward uses this version, but the optimizer applies the gradient
# to the newest weights.
#
# **Predict.** How many versions does rank i of p keep? And is the gradient then the same as in ordinary SGD?
#
# <details><summary>Answer</summary>It keeps p − i versions, one for each microbatch in flight (so the last
# rank keeps only the newest). The gradient is not the same, because it is taken at weights that are up to p −
# 1 updates old, and their age differs from rank to rank. Versions make the forward and the backward of one
# microbatch agree, but the gradient is as stale as without versions (§3.3 of the paper).</details>
#
# **Build.** Everything runs in one process, so there are no messages. The caller calls `forward` and
# `backward` in the order of 1F1B.
#
# - `optimizer` was made over `module.parameters()`, so `step()` changes the module's own weights in place.
#   Therefore each forward has to use a *copy* of these weights.
# - `functional_call(module, version, (x,))` runs the module with the tensors of a dictionary {name: tensor}
#   instead of its parameters.
# - After a backward, the module holds the newest weights. The gradient of one microbatch must not enter the
#   step of another.
# - x belongs to the caller, so do not change its `requires_grad`. But `x.detach()` is a tensor of your own,
#   so it can require a gradient. You don't have to detach the output you return, because the next stage's
#   `forward` detaches its x.


# %% nbgrader={"grade_id": "pipedream_stage", "solution": true}
class PipeDreamStage:
    """A stage that updates its weights after every backward, and keeps versions for its backwards.

    module: any module. On the last stage, its output is the loss. optimizer: for
    module.parameters(). The stage keeps one version of the weights for each microbatch in flight.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer):
        ### BEGIN SOLUTION
        self.module, self.optimizer = module, optimizer
        self.in_flight = {}  # by microbatch, its input, its output and the weights it saw
        ### END SOLUTION

    def forward(self, microbatch: int, x):
        """Return the module's output for x with the newest weights, but do not change x."""
        ### BEGIN SOLUTION
        version = {
            name: param.detach().clone().requires_grad_(param.requires_grad)
            for name, param in self.module.named_parameters()
        }
        x = x.detach()
        if x.is_floating_point():
            x.requires_grad_()
        output = functional_call(self.module, version, (x,))
        self.in_flight[microbatch] = x, output, version
        return output.detach()
        ### END SOLUTION

    def backward(self, microbatch: int, gradient=None):
        """Run backward with the weights the forward saw, and then update the newest weights.

        gradient: of the output, or None if the output is the loss. Return the gradient of x, or
        None if x is not a floating-point tensor.
        """
        ### BEGIN SOLUTION
        x, output, version = self.in_flight.pop(microbatch)
        torch.autograd.backward(output, gradient)
        for name, param in self.module.named_parameters():
            param.grad = version[name].grad
        self.optimizer.step()
        self.optimizer.zero_grad()
        return x.grad
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: a version</summary>Make a version with <code>{name:
# param.detach().clone().requires_grad_() for name, param in module.named_parameters()}</code>. The tensors of
# the version get the gradients, so hand these gradients to the module's parameters before the optimizer's
# step.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "pipedream_stage_check", "points": 0}
# Extra credit, 6 points
report = check("07_pipeline/pipedream_stage", PipeDreamStage)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/pipedream_stage", PipeDreamStage, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Break it.** The cell tries to do without versions.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class WithLoss(nn.Module):
    """The last stage, followed by the loss. `targets` are the targets
    of the next microbatch."""

    def __init__(self, module):
        super().__init__()
        self.module, self.targets = module, None

    def forward(self, x):
        return next_token_loss(self.module(x), self.targets)


def stream(kind, schedule, lr=0.5, seed=0):
    """Return the losses of a GPT whose stages follow the schedule in one process. Each stage is a
    kind(module, optimizer).

    seed: for the weights and the text. The run ends early if a loss is not finite.
    """
    torch.set_num_threads(1)
    stages, text, losses, made_by = len(schedule), library_text(), [], {}
    torch.manual_seed(seed)
    model = GPT(GPTConfig(width=64, layers=stages, context=32, tied=False))
    modules = [gpt_stages(model, schedule, rank)[0].module for rank in range(stages)]
    modules[-1] = last = WithLoss(modules[-1])
    parts = [kind(module, torch.optim.SGD(module.parameters(), lr=lr)) for module in modules]
    for event in simulate(schedule).events:
        stage, what, k = event.action
        if what == "F":
            inputs, targets = batch(text, 1000 * seed + k, batch_size=8, length=32)
            last.targets = targets if stage == stages - 1 else last.targets
            x = inputs if stage == 0 else made_by.pop((stage - 1, "F", k))
            made_by[event.action] = parts[stage].forward(k, x)
            if stage == stages - 1:
                losses.append(made_by.pop(event.action).item())
                if not math.isfinite(losses[-1]):
                    break
        else:
            gradient = made_by.pop((stage + 1, "B", k), None)
            made_by[event.action] = parts[stage].backward(k, gradient)
    return losses


class Overwritten:
    """A stage without versions of its weights."""

    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.in_flight = module, optimizer, {}

    def forward(self, microbatch, x):
        x = x.requires_grad_(x.is_floating_point())
        self.in_flight[microbatch] = x, self.module(x)
        return self.in_flight[microbatch][1].detach()

    def backward(self, microbatch, gradient=None):
        x, output = self.in_flight.pop(microbatch)
        torch.autograd.backward(output, gradient)
        self.step()
        self.optimizer.zero_grad()
        return x.grad

    def step(self):
        self.optimizer.step()


schedule = made(one_f_one_b, 4, 8)
try:
    stream(Overwritten, schedule) if schedule else None
except RuntimeError as error:
    print(str(error).partition(":")[0])

# %% [markdown]
# PyTorch counts the changes to every tensor saved by autograd, and refuses a backward through a changed
# tensor. To make the mistake anyway, you have to bypass this counter, as older code and custom kernels do
# with `weight.data`.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class Unseen(Overwritten):
    """The same stage, but autograd does not see that the weights are overwritten."""

    def step(self):
        for param in self.module.parameters():
            param.data.sub_(param.grad, alpha=self.optimizer.param_groups[0]["lr"])


ORDERS = {
    "one microbatch at a time": (PipeDreamStage, naive),
    "PipeDream, your versions": (PipeDreamStage, one_f_one_b),
    "PipeDream, no versions": (Unseen, one_f_one_b),
}
RATES, SMOOTH = (0.1, 0.5), 8


def every_order(schedules):
    """Return the losses by learning rate and order, with this rank's number as the seed."""
    return {
        (lr, name): stream(ORDERS[name][0], schedule, lr, seed=dist.get_rank())
        for lr, (name, schedule) in itertools.product(RATES, schedules.items())
    }


def curve(axes, name, runs, colour, dashes):
    """Draw the means of all runs and SMOOTH microbatches in a row, until a loss is not finite."""
    mean = [sum(losses) / len(losses) for losses in zip(*runs, strict=False)]
    mean = [loss for loss in mean if math.isfinite(loss)]
    means = [sum(mean[k - SMOOTH : k]) / SMOOTH for k in range(SMOOTH, len(mean) + 1)]
    axes.plot(range(SMOOTH, SMOOTH + len(means)), means, dashes, color=colour, label=name)
    lost = [len(losses) - 1 for losses in runs if not math.isfinite(losses[-1])]
    if not lost:
        return f"{means[-1]:.2f} at the end"
    axes.plot(SMOOTH + len(means) - 1, means[-1], "x", color=colour)
    return f"not finite after {min(lost)} microbatches"


schedules = {name: made(generator, 8, 40) for name, (_, generator) in ORDERS.items()}
run = None
if all(schedules.values()):
    run = try_it(every_order, schedules, world_size=2, timeout=300)
figure = picture(8, 2.7)
for axes, lr in zip(figure.subplots(1, 2, sharey=True), RATES, strict=True) if run else ():
    for name, colour, dashes in zip(ORDERS, RANKS, ("-", "--", ":"), strict=False):
        end = curve(axes, name, [losses[lr, name] for losses in run], colour, dashes)
        print(f"learning rate {lr}: {name:26} {end}")
    axes.set(xlabel="microbatch", ylim=(2.8, 6.5), title=f"learning rate {lr}")
    axes.grid(True, alpha=0.3)
if run:
    figure.axes[0].set_ylabel(f"loss, nats per byte,\nmean of 2 seeds x {SMOOTH}")
    figure.axes[0].legend(frameon=False, fontsize=8, handlelength=3)
figure if run else None

# %% [markdown]
# With eight stages, stage 0 makes seven updates between a forward and its backward. On the *left*, these
# updates change the weights only a little, so you would not notice that the dotted curve, without versions,
# follows wrong gradients. On the *right*, the learning rate is five times as large. There, the loss with
# versions is about as low as with one microbatch at a time. But without versions, the loss soon stops being
# finite (the cross).
#
# <details><summary>In production</summary>
#
# No large language model is trained this way. The versions cost the most memory on the first ranks, which
# have the least to spare, because they have the most microbatches in flight. But PipeDream's order is still
# in use, with a flush (§3).
#
# </details>
#
# <details><summary>In the lectures</summary>Lecture 001 says that PipeDream keeps versions "to avoid
# staleness". But they do not avoid it, because the gradient is as stale with versions as without.</details>

# %% [markdown]
# ## 11 · Optional: DualPipe
#
# | | |
# |---|---|
# | you will write | `dualpipe(stages, microbatches)` |
# | builds on | §5 |
# | time | 40 minutes |
# | difficulty, importance | 5 and 1 of 5 |
# | extra credit | 5 points, on top of the 60 |
#
# A layer of DeepSeek-V3 has many networks, its *experts*, but each token uses only a few. The experts are
# spread over many nodes, and sending tokens to them and back takes as long as the computing. But a forward
# and a backward of *different* microbatches do not need each other's results. So the two can be computed as
# one block, in which each hides its messages behind the other's computing. Since a rank then always needs a
# forward to pair with a backward, DualPipe feeds the pipeline from **both ends**. There are two copies of the
# model, in opposite directions, and half of the microbatches go into each.
#
# Rank i holds stage i of the first copy, and stage p − 1 − i of the second. The second copy's stages are
# numbered from p on, so its stage on rank i is stage 2p − 1 − i. Microbatches 0 to m/2 − 1 go through stages
# 0 to p − 1, and the other microbatches through stages p to 2p − 1. Both p and m are even, and m is at least
# 2p. A `Pair(forward, backward)` is one such block, whose backward is a whole B.
#
# A rank's list has the eight phases in the table. Each copy of the model begins at one end of the pipeline.
# Of the rank's two stages, *near* is the stage whose copy begins at the closer end (on rank 0 it is stage 0),
# and *far* is the other stage. `place` is the distance to the closer end, min(i, p − 1 − i). `below` = p/2 −
# 1 − place is the number of ranks between this one and the middle.
#
# | phase | times | what |
# |---|---|---|
# | 1 | 2 · below | F near |
# | 2 | place + 1 | F near, F far |
# | 3 | below | I far, W, F far |
# | 4 | m/2 − p + place + 1 | Pair(F near, B far), Pair(F far, B near) |
# | 5 | below | B far, Pair(F far, B near) |
# | 6 | place + 1 | two backwards, far and then near, at first as B and later as I (see below) |
# | 7 | below | W, I near |
# | 8 | | all W that are left |
#
# The two ranks in the middle (below = 0) do the first pair of phase 4 as two actions, F near and then B far,
# because a pair would make the backward wait. Phase 6 has 2 (place + 1) backwards in all. The first place + 1
# of them are whole B's, and the others are I's, whose W's come in phases 7 and 8. Each W belongs to the
# microbatch that has waited longest for its W.
#
# `Row` counts for you: `row.do("F", near, far)` appends the next forward of near, and then the next one of
# far. If a stage has no microbatch left, `row.do` appends nothing.


# %%
class Row:
    """One rank's list, `actions`, while it is being written.

    microbatches: the microbatches of each stage, in order. The forwards of a stage
    take them one after the other, and so do its backwards.
    """

    def __init__(self, microbatches: dict[int, range]):
        self.actions: list = []
        self.microbatches, self.next, self.awaiting = microbatches, {}, []

    def do(self, kind, *stages):
        """Add one action of this kind on each of the stages."""
        for stage in stages:
            self.actions += self._take(stage, kind)

    def pair(self, forward, backward):
        """Add a forward of one stage with a backward of another, as one block."""
        both = [*self._take(forward, "F"), *self._take(backward, "B")]
        self.actions += [Pair(*both)] if len(both) == 2 else both

    def weight(self):
        """Add the oldest waiting W, if there is one."""
        self.actions += [self.awaiting.pop(0)] if self.awaiting else []

    def weights(self):
        """Add every waiting W."""
        while self.awaiting:
            self.weight()

    def _take(self, stage, kind):
        counted_as = "F" if kind == "F" else "B"
        place = self.next[stage, counted_as] = self.next.get((stage, counted_as), -1) + 1
        if place >= len(self.microbatches[stage]):
            return []
        action = Action(stage, kind, self.microbatches[stage][place])
        if kind == "I":
            self.awaiting.append(action._replace(kind="W"))
        return [action]


# %% nbgrader={"grade_id": "dualpipe", "solution": true}
# If you like, write a helper here.
### BEGIN SOLUTION
def _dual(row, near, far, half, place, microbatches):
    """Add the eight phases. half: p/2. microbatches: the number in one direction."""
    below = half - 1 - place
    for _ in range(2 * below):  # fill from the near end
        row.do("F", near)
    for _ in range(place + 1):  # both directions go forward
        row.do("F", near, far)
    for _ in range(below):  # the first microbatches of the far stage come back
        row.do("I", far)
        row.weight()
        row.do("F", far)
    for k in range(microbatches - 2 * half + place + 1):  # the steady state, always in pairs
        if k == 0 and below == 0:
            row.do("F", near)  # in the middle, keep the first two apart, or the backward waits
            row.do("B", far)
        else:
            row.pair(near, far)
        row.pair(far, near)
    for _ in range(below):  # the near end has no forwards left
        row.do("B", far)
        row.pair(far, near)
    # the far end has no forwards left either; the second half of the backwards postpones its W's
    for k in range(2 * (place + 1)):
        kind = "I" if k > place else "B"
        row.do(kind, near if k % 2 else far)
    for _ in range(below):
        row.weight()
        row.do("I", near)
    row.weights()


### END SOLUTION


def dualpipe(stages: int, microbatches: int) -> list:
    """Schedule two copies of the model in opposite directions, each with half of the microbatches.

    Return, for each rank, the list of its Actions and Pairs. Rank i holds stages i and 2p-1-i.
    """
    ### BEGIN SOLUTION
    if stages % 2:
        raise ValueError(
            f"stages={stages}: DualPipe needs an even number, as its two ends meet in the middle"
        )
    counted(stages, microbatches, least=2 * stages, unit=2)
    half = microbatches // 2
    rows = []
    for rank in range(stages):
        down, up = rank, 2 * stages - 1 - rank
        row = Row({down: range(half), up: range(half, microbatches)})
        near, far = (down, up) if rank < stages // 2 else (up, down)
        _dual(row, near, far, stages // 2, min(rank, stages - 1 - rank), half)
        rows.append(row.actions)
    return rows
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Each phase is one loop with the calls for its row of the table
# (<code>row.do</code>, <code>row.pair</code>, <code>row.weight</code>). On the first half of the ranks,
# <code>near</code> is the rank's stage with the lower number, and on the second half it is the stage with the
# higher number.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "dualpipe_check", "points": 0}
# Extra credit, 5 points
report = check("07_pipeline/dualpipe", dualpipe)
### BEGIN HIDDEN TESTS
report = check("07_pipeline/dualpipe", dualpipe, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** In the chart, a box in two halves is a pair, and the paler colours belong to the second copy.
# How long is the step if a pair takes as long as its two parts together? And if it takes a quarter less?

# %% tags=["skip-in-grading"]
schedule = made(dualpipe, 4, 12, copies=2)
for block in (3, 2.25) if schedule else ():
    outcome = simulate(schedule, Durations(overlapped=block), copies=2)
    print(f"a pair takes {block}: total {outcome.total}")
plain = made(one_f_one_b, 4, 12)
if plain:
    print(f"1F1B: total {simulate(plain).total}")
drawn(dualpipe, 4, 12, copies=2) if schedule else None

# %% [markdown]
# The bubble of the ranks in the middle is (p/2 − 1)(F&B + B − 3W). Here F&B is the time of a pair, and B the
# time of a whole backward (DeepSeek-V3, table 2). The price is two copies of the weights, and p + 1
# microbatches in flight. If you fold DualPipe at the middle, you get DualPipeV, which has only one copy
# (`library.dualpipe_v`).

# %% [markdown]
# ## 12 · Optional: on a clock, and against PyTorch's
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §5, §7 |
# | time | 20 minutes |
#
# This section needs no other optional section, so you can come here straight from §7.
#
# Do F, I and W really take equally long? The next cell measures them on this machine, with two blocks of a
# GPT and one thread.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def own_durations(repeats=12):
    """Return the median seconds of F, I and W for two blocks with a batch of 4 x 64 tokens."""
    from course_lib.pipeline.halves import LaterWeights

    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = GPT(GPTConfig(width=192, layers=2)).to(device()).blocks
    x, dy = torch.randn(2, 4, 64, 192).to(device())
    x.requires_grad_()
    positions = torch.arange(64, device=device())

    def clock():
        synchronize()  # wait until a GPU has done its work
        return time.perf_counter()

    seconds = []
    for _ in range(repeats):
        at = [clock()]
        y = x
        with LaterWeights() as later:
            for block in blocks:
                y = block(y, positions)
        at.append(clock())
        y.backward(dy)
        at.append(clock())
        later.finish()
        at.append(clock())
        seconds.append([b - a for a, b in itertools.pairwise(at)])
    return torch.tensor(seconds[2:]).median(0).values.tolist()


OWN = Durations(*launch(own_durations, world_size=1)[0])
print(f"F {1e3 * OWN.forward:.1f} ms, I {1e3 * OWN.input:.1f} ms, W {1e3 * OWN.weight:.1f} ms")
equal = Durations()
generators = {
    "GPipe": gpipe, "1F1B": one_f_one_b, "ZB-H1": zero_bubble_h1, "ZB-H2": library.zero_bubble_h2
}  # fmt: skip
print("bubble / total, for p = 4 and m = 16         F = I = W    as measured")
for name, generator in generators.items():
    schedule = made(generator, 4, 16)
    if schedule:
        shares = [simulate(schedule, durations_used).of_total for durations_used in (equal, OWN)]
        print(f"{name:44} {shares[0]:9.1%} {shares[1]:14.1%}")

# %% [markdown]
# W is the shortest of the three, here and in the models of the paper (see §5), so some of the bubble is left.
#
# Do your ranks follow the simulated clock? The next cell runs twelve steps of each of two schedules on two
# ranks, and draws the shortest step of each. Below each measured step, it draws a simulation with the median
# F, B and message time of this step.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.gantt import gantts
from course_lib.pipeline.timeline import measure

LARGER = GPTConfig(width=192, heads=4, layers=4, context=64, tied=False)


def timed(schedule, repeats=12):
    """Return the shortest of several measured steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (stage,) = gpt_stages(GPT(LARGER).to(device()), schedule, dist.get_rank())
    microbatches = some_microbatches(schedule[0][-1].microbatch + 1, rows=(4,))
    step = partial(run_schedule, stage, schedule, microbatches)
    timelines = [measure(step, stage, schedule, steps=1) for _ in range(repeats)]
    return min(timelines, key=lambda timeline: timeline.total)


charts = {}
for generator in (naive, one_f_one_b):
    schedule = made(generator, 2, 6)
    run = try_it(timed, schedule, world_size=2) if schedule else None
    if run:
        timeline, name = run[0], generator.__name__
        charts[f"{name}, measured"] = timeline
        charts[f"{name}, simulated from its medians"] = simulate(schedule, timeline.durations)
        shares = [charts[key].of_total for key in list(charts)[-2:]]
        print(f"{name}: bubble {shares[0]:.0%} of the total, simulated {shares[1]:.0%}")
gantts(charts, seconds=True) if charts else None

# %% [markdown]
# If a measured step and its simulation differ, something slowed the ranks down that the simulator does not
# know, such as another process on the same cores, or a message that waited for its receiver.
#
# **The two ends of the model.** Many GPTs tie the head to the embedding, so one matrix is used on the first
# rank *and* on the last. In one process, autograd adds up the gradients of the two uses. In the pipeline,
# each end has only one term of this sum:

# %% tags=["skip-in-grading"]
TIED = GPTConfig(width=32, heads=4, layers=7, context=32)
schedule, name = made(one_f_one_b, 4, 8), "token_embedding.weight"
run = try_it(a_step, run_schedule, schedule, TIED) if schedule else None
if run:
    whole = one_process(TIED)[1][name]
    first, last = run[0][1][name], run[-1][1][name]
    terms = {"rank 0's gradient": first, "rank 3's gradient": last, "the sum of both": first + last}
    for what, gradient in terms.items():
        off = (gradient - whole).abs().max() / whole.abs().max()
        print(f"{what:17}:", "equal to one process" if off < 1e-9 else f"off by {off:.2f}")

# %% [markdown]
# If you forget the sum, you train two matrices that were meant to be one, but nothing crashes. Megatron-LM
# all-reduces this gradient between the two ranks at the end of the step, as does
# `course_lib.pipeline.run.run_schedule`. Your function does not have to.
#
# **Against PyTorch's.** `torch.distributed.pipelining` wraps the module in a `PipelineStage`. The next cell
# compares the gradients of two of its schedule classes with yours, and lets its runtime run your own rows.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def theirs(stage, schedule, microbatches, how="text"):
    """Take a step in PyTorch, with one of its own schedules or with the rows of our schedule."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    inputs, targets = (torch.cat(part) for part in zip(*microbatches, strict=True))
    wrapped = pipelining.PipelineStage(stage.module, stage.index, stage.length, device())
    options = {"loss_fn": lambda y, t: next_token_loss(y, t, "sum") / targets.numel()}
    if torch.__version__ >= "2.7":  # earlier versions scale nothing
        options["scale_grads"] = False  # otherwise PyTorch divides by the number of microbatches
    if how == "text":
        runtime = _PipelineScheduleRuntime([wrapped], len(microbatches), **options)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "schedule.csv"
            file.write_text(to_text(schedule))
            runtime._load_csv(str(file))
    else:
        runtime = getattr(pipelining, how)(wrapped, len(microbatches), **options)
    first = [inputs] if stage.first else []
    runtime.step(*first, **({"target": targets} if stage.last else {}))
    return {}


cases = [
    ("Schedule1F1B", one_f_one_b),
    ("ScheduleGPipe", gpipe),
    ("text", one_f_one_b),
    ("text", zero_bubble_h1),
]
schedule = made(one_f_one_b, 2, 8)
ours = try_it(a_step, run_schedule, schedule, rows=(2,), world_size=2) if schedule else None
for how, generator in cases if ours else ():
    schedule = made(generator, 2, 8)
    run = schedule and try_it(a_step, partial(theirs, how=how), schedule, rows=(2,), world_size=2)
    if run:
        together = {name: gradient for _, grads in ours for name, gradient in grads.items()}
        what = f"the rows of your {generator.__name__}" if how == "text" else how
        print(f"{what:32} gradients differ from yours by {furthest(run, together):.0e}")

# %% [markdown]
# <details><summary>More about PyTorch's version, and the errors of 2.9</summary>By default, PyTorch divides
# gradients by m, whatever your loss does (<code>scale_grads</code>). It also cuts the batch into microbatches
# for you, but they must all have the same size. It can find the stages by tracing
# (<code>pipelining.pipeline</code>), and it overlaps the computing with FSDP's gathers and reductions, which
# are also actions in its schedules. With PyTorch 2.9 the cell prints errors, because in that version each
# stage first sends 8 bytes to a neighbour that expects 4, so <code>launch</code> stops both ranks.</details>

# %% [markdown]
# ## Scorecard
#
# The card compares computation, memory and bytes sent for one step of AdamW on 4 ranks. The model is a GPT
# with 3.3 million parameters, and the batch has 8 sequences of 128 tokens each. M is the size of the model's
# *parameters*. With replicas and ZeRO-3, a rank gets two sequences. Ranks that share layers get all eight
# sequences. So does a pipeline, as eight microbatches.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
CARD = GPTConfig(context=128, layers=4, heads=4, width=256, tied=False)


def optimized(parameters, inputs, targets, step):
    """Return the costs of `step()` and of the optimizer's step."""
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    dist.barrier()
    with costs(inputs, targets, *parameters) as cost:
        step()
        optimizer.step()
    return cost


def step_of(make, shares_data=False):
    torch.manual_seed(0)
    forward, parameters, loss_of, finish = make(GPT(CARD).to(device()))
    rank, n = dist.get_rank(), dist.get_world_size()
    own = {} if shares_data else {"rank": rank, "world_size": n}
    pair = batch(library_text(), 0, batch_size=8, length=128, **own)
    inputs, targets = (tensor.to(device()) for tensor in pair)

    def step():
        loss_of(forward(inputs), targets).backward()
        finish()

    return optimized(parameters, inputs, targets, step)


def replicas(model):
    from course_lib.data_parallel import NaiveDataParallel

    wrapped = NaiveDataParallel(model)
    finish = wrapped.finish_gradient_synchronization
    return wrapped, list(model.parameters()), next_token_loss, finish


def zero_3(model):
    from course_lib.zero import Zero3Module

    wrapped = Zero3Module(model)
    return wrapped, list(wrapped.parameters()), next_token_loss, lambda: None


def tensor_and_sequence(model):
    from course_lib import tensor_parallel

    model = tensor_parallel.parallelize_gpt(model, sequence="regather")
    loss_of = tensor_parallel.vocab_parallel_cross_entropy
    return model, list(model.parameters()), loss_of, lambda: None


def pipelined(generator):
    schedule = generator(4, 8)
    torch.manual_seed(0)
    (stage,) = gpt_stages(GPT(CARD).to(device()), schedule, dist.get_rank())
    pair = batch(library_text(), 0, batch_size=8, length=128)
    inputs, targets = (tensor.to(device()) for tensor in pair)
    microbatches = list(zip(inputs.chunk(8), targets.chunk(8), strict=True))
    parameters = list(stage.module.parameters())
    return optimized(
        parameters, inputs, targets, lambda: run_schedule(stage, schedule, microbatches)
    )


def row_of(name, run):
    """Return a row of the card. Only bytes sent after the last barrier count."""
    sent = []
    for rank in range(len(run)):
        operations = run.ledger.operations(rank)
        begin = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-1]
        sent.append(sum(operation.bytes_sent for operation in operations[begin:]))
    return CardRow(
        strategy=name,
        ranks=len(run),
        flops=sum(cost.flops for cost in run),
        peak_bytes=max(cost.peak_bytes for cost in run),
        bytes_sent=max(sent),
    )


card = {
    "replicas": try_it(step_of, replicas),
    "ZeRO-3": try_it(step_of, zero_3),
    "tensor and sequence parallel": try_it(step_of, tensor_and_sequence, True),
    "pipeline, GPipe": try_it(pipelined, gpipe),
    "pipeline, 1F1B": try_it(pipelined, one_f_one_b),
}
parameters_alone = sum(p.nbytes for p in GPT(CARD).parameters())
alone_run = launch(step_of, replicas, world_size=1)
rows = [row_of("one process", alone_run)] + [row_of(name, run) for name, run in card.items() if run]
Scorecard(rows, unit=parameters_alone, flops_alone=alone_run[0].flops)

# %% [markdown]
# No strategy *computes* a matrix product twice. In *memory*, a rank of the pipeline holds a quarter of the
# weights, the gradients and Adam's two moments. It also holds the activations of the microbatches in flight,
# which explain the difference between the last two lines. The pipeline sends the fewest *bytes*, one
# activation across each border and one gradient back. But the card does not show the time lost in the bubble.
#
# **You have built** five schedules, the formulas for their idle time, memory and bytes, and an executor for
# whole forwards and backwards.
#
# **Read on.**
# - Huang et al. (2019), *GPipe*: §2.3 explains the bubble and recomputation.
# - Narayanan et al. (2019), *PipeDream*: §3.3 explains weight stashing.
# - Narayanan et al. (2021), *Efficient Large-Scale Language Model Training on GPU Clusters*: §2.2 describes
#   both schedules of Megatron-LM.
# - Qi et al. (2024), *Zero Bubble Pipeline Parallelism*: the paper describes H1, H2, V, and the search for
#   the best order.
# - DeepSeek-AI (2024), *DeepSeek-V3 Technical Report*: §3.2.1 describes DualPipe.
# - Llama Team (2024), *The Llama 3 Herd of Models*: §3.3 describes a pipeline in which m does not have to be
#   a multiple of p.
# - `course_lib/pipeline/` is a reference. Read it after writing your own functions. Begin with `halves.py`
#   and `generators/`.
#
# <details><summary>In the lectures</summary>The card's three criteria are from lecture 003.</details>
#
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("07_pipeline")
