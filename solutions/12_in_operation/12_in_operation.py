# %% [markdown]
# # 12 · In operation
#
# **Is a run fast, is it healthy, and what happens when one of its ranks dies?**
#
# Llama 3 was trained on 16,384 GPUs. Within 54 days, the run was interrupted unexpectedly 419 times, which is
# once every 3.1 hours (Llama Team 2024, §3.3.4). If GPUs elsewhere fail as often, a job with 1,024 GPUs fails
# once every 2.1 days. So every long run will be interrupted, and the question is what an interruption costs.
#
# In part A, a rank is really killed, and at first everything its run has computed is lost. So you write the
# functions that let a run survive such a failure. They capture the run's state, save it so that an
# interruption does no harm, load it on a different number of ranks, and compute the best time between two
# saves. The check in §3 simulates a power failure after each operation of your save. In part B, no rank dies,
# but the run is slow. There you find out where the time goes, which rank the others wait for, and how to make
# the run faster.
#
# | | |
# |---|---|
# | you will build | a state that holds everything a run needs to continue; a save that survives every power failure; a plan by which three ranks load what four have saved; the best interval; a breakdown of a step's time; a test for slow ranks |
# | you need | collectives and the ledger (notebook 02); replicas (notebook 03); `state_dict` and `torch.save` |
# | time | three hours |
# | points | 60, and 16 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. No cell needs a GPU |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | **A · It dies** | | | |
# | 1 A rank dies, and nothing is left | 7 | | |
# | 2 What a run has to remember | 20 | 8 | |
# | 3 A save that may be cut off | 38 | 15 | |
# | 4 Killed, and back | 12 | | 2, 3 |
# | 5 Save on four, load on three | 25 | 10 | |
# | 6 How often to save | 10 | 4 | |
# | **B · It is slow** | | | |
# | 7 Where the time goes | 24 | 10 | nothing in A |
# | 8 Which rank is slow | 16 | 6 | 7 |
# | 9 Six symptoms, one lever each | 16 | 4 | 7, 8 |
# | 10 Questions | 7 | 3 | all |
# | 11 Optional: mend a monitor | 15 | 4 extra | |
# | 12 Optional: which rank writes what | 20 | 3 extra | 5 |
# | 13 Optional: save without stopping | 20 | 4 extra | 6 |
# | 14 Optional: the replica that is wrong | 10 | 2 extra | |
# | 15 Optional: talk less often | 22 | 3 extra | |

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | checkpoint | the saved state of a run at one step, from which the run can continue |
# | agent | the process that `torchrun` starts on each node. It starts the node's ranks, watches them, and restarts them |
# | rendezvous | the meeting at which agents agree on who takes part |
# | SIGKILL | the signal that ends a process immediately. It can't be caught |
# | part | a named piece of a checkpoint, stored as bytes |
# | δ, τ | the seconds for which a save stops the run, and the seconds of work between two saves |
# | M, R | the mean time between two failures of the job (MTBF), and the time for a restart, both in seconds |
# | goodput | the share of the time that is spent on work that isn't lost |
# | dp, tp, pp | three ways to divide the work. With dp, ranks are replicas. With tp, they hold parts of each matrix (notebook 06). With pp, each rank holds some of the layers, called a *stage* (notebook 07) |
# | microbatch, bubble | a part of a batch that travels through the stages, and the time in which a stage has no microbatch to work on |
# | issued, waited, done | the times at which a rank called a collective, at which it began to wait for the result, and at which the collective was over |

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import copy
import json
import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from matplotlib.patches import Rectangle
from torch import nn

from course_lib import check, device
from course_lib import operation as reference  # for comparison, since you write your own versions
from course_lib.data import batch, library_text
from course_lib.mesh import Mesh, held_boxes, mesh_stages, parameters, train_step
from course_lib.models import GPT, GPTConfig
from course_lib.operation import Disk, Folder, Journal, Kill, Training
from course_lib.operation import power_failures, run_agents, run_with_failures
from course_lib.operation import train as train_lab
from course_lib.pipeline import one_f_one_b
from course_lib.pictures.colours import INK, QUIET, RANKS, picture
from course_lib.unfinished import ready, try_it

# %% [markdown]
# ## A · It dies
#
# ## 1 · A rank dies, and nothing is left
#
# | | |
# |---|---|
# | you will write | nothing, because you only watch |
# | builds on | nothing |
# | time | 7 minutes |
#
# In this section's lab, two agents run on this machine, as `torchrun` would run them on two nodes. Each agent
# has two ranks, and the four ranks train a small network together. But in step 7, rank 3 sends SIGKILL to
# itself.
#
# **Predict.** This run saves nothing. How many of the four ranks are replaced, and at which step do they
# start again?
#
# <details><summary>Answer</summary>All four are replaced. An agent that loses a rank stops its other ranks
# and asks for a new rendezvous. The other agent has to take part in this rendezvous, so it also stops its
# ranks. The ranks start at step 0, because the seven finished steps were only in memory.</details>
#
# **Measure.** The cell starts the agents and prints a journal of what each process did and when. The line
# `from 0 of 4 ranks` means that this rank, one of four, starts at step 0, and `end` comes before the final
# loss. The *starter* is the process that starts the agents. The cell takes six seconds.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def save_nothing(disk, step, parts):
    """Save nothing."""


def find_nothing(disk):
    """Find no checkpoint."""


def lab(steps=15, every=5, nodes=(2, 2), kills=(), **options):
    """Train under two agents in a new folder, and return the run with its journal."""
    with tempfile.TemporaryDirectory() as folder:
        worker = partial(train_lab, step_seconds=0.02, **options)
        return run_agents(worker, folder, steps, every, nodes=nodes, kills=list(kills))


def journal(run, but=("step",)):
    for line in run.lines:
        if not line.text.startswith(but):
            who = f"rank {line.rank}" if line.rank >= 0 else "starter"
            print(f"{line.time:6.2f} s  process {line.pid:7}  {who:8} {line.text}")


forgetful = lab(dies=(3, 7), commit=save_nothing, newest=find_nothing)
journal(forgetful, but=("step", "saved"))

# %% [markdown]
# **Look.** The picture shows the same journal, with one process per row. A triangle marks the start of a
# rank, and the cross marks the kill. Each dot is a step, which rank 0 records for all ranks. In §4, vertical
# lines will mark the saves.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def timeline(run, saves=True):
    """Draw each process as a row, in the order in which they began."""
    rank_of = {line.pid: line.rank for line in run.lines if line.rank >= 0}
    processes = list(rank_of)
    marks = {"step": ".", "from": ">"} | ({"saved": "|"} if saves else {})
    figure = picture(7.6, 0.4 + 0.22 * len(processes))
    axes = figure.add_axes((0.1, 0.2, 0.88, 0.75))
    for line in run.lines:
        if line.rank < 0:
            continue
        row, word = -processes.index(line.pid), line.text.split()[0]
        mark = marks.get(word, "x" if "dies" in line.text else "")
        if mark:
            colour = INK if mark in "x|" else RANKS[line.rank]
            axes.plot(line.time, row, mark, color=colour, markersize=14 if mark == "|" else 8)
    axes.set_yticks(
        [-row for row in range(len(processes))],
        [f"rank {rank_of[process]}" for process in processes],
        size=7,
    )
    axes.set_xlim(left=0), axes.set_xlabel("seconds", size=8)
    return figure


display(timeline(forgetful, saves=False))

# %% [markdown]
# **In production.** According to table 5 of Llama 3's report (§3.3.4), 268 of the 419 interruptions were
# caused by faulty GPUs, including faulty GPU memory. A run of several weeks with MegaScale, ByteDance's
# training system, was restarted more than 100 times, but more than 90 % of the time was still effective
# training (Jiang et al. 2024, §6).
#
# **Question.** The lab replaced four processes because one died. What would have happened if the other three
# had gone on? (Their next all-reduce would have failed or, over NCCL, waited until its timeout.)

# %% [markdown]
# ## 2 · What a run has to remember
#
# | | |
# |---|---|
# | you will write | `capture(run)`, `restore(run, state)` |
# | builds on | nothing |
# | time | 20 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 8 |
#
# A run keeps more in memory than its weights. AdamW holds two moments for each parameter and counts its
# steps, and the learning-rate schedule knows how far it has got. The number of the step decides which data is
# drawn. Dropout draws from a random generator, whose state is hidden in PyTorch, and a run may also have its
# own generator. If a checkpoint lacks one of these states, the restored run goes on and its loss looks
# plausible, but it isn't the same run.
#
# A missing state is one trap, but there is another, because `state_dict()` doesn't copy. It returns the very
# tensors the next step changes. So if you take a state after step 3 but write it to the disk after step 5,
# the file holds the values of step 5.
#
# | in `run` | what it is | how it is read and set |
# |---|---|---|
# | `model`, `optimizer`, `scheduler` | objects whose states hold tensors, numbers and lists | `state_dict()`, `load_state_dict(...)` |
# | `step` | the number of finished steps | as an attribute |
# | `generator` | the run's own generator | `get_state()`, `set_state(...)` |
# | | the default generator of the CPU | `torch.get_rng_state()`, `torch.set_rng_state(...)` |
#
# **Predict.** Suppose you forget the default generator, and the model has a dropout of 0.1. When do the
# losses after a restart begin to differ from the losses of an undisturbed run?
#
# <details><summary>Answer</summary>They begin to differ in the first step after the restart, because its
# dropout masks are different. Without dropout, however, you would never notice the missing
# generator.</details>
#
# **Build.** `copy.deepcopy`, or a `clone()` of each tensor, makes a copy that later steps don't change. Copy
# in `restore` as well, because an optimizer keeps the very tensors it loads, and without a copy, its next
# step would change `state`.


# %% nbgrader={"grade_id": "capture", "solution": true}
def capture(run):
    """Return the state of `run` as it is now, a dict of tensors, numbers, strings, lists and dicts.

    run: an object with `model`, `optimizer`, `scheduler`, `step` and `generator`. The default
    generator of the CPU is also part of the run. The returned state must not change when the run
    goes on, and `torch.load` has to read it with weights_only=True.
    """
    ### BEGIN SOLUTION
    parts = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler")}
    generators = {"generator": run.generator.get_state(), "cpu": torch.get_rng_state()}
    return copy.deepcopy({"step": run.step, **parts, **generators})
    ### END SOLUTION


# %% nbgrader={"grade_id": "restore", "solution": true}
def restore(run, state):
    """Set `run` and the default generator of the CPU back to what they were at `capture`.

    Leave `state` as it is, so that the same state can be restored again.
    """
    ### BEGIN SOLUTION
    for name in ("model", "optimizer", "scheduler"):
        getattr(run, name).load_state_dict(copy.deepcopy(state[name]))
    run.generator.set_state(state["generator"])
    torch.set_rng_state(state["cpu"])
    run.step = state["step"]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the entries</summary>There are six entries: the three state_dicts, the step, and the
# states of two generators.</details>
# <details><summary>Hint: the copy</summary>Take <code>copy.deepcopy(run.model.state_dict())</code>, and do
# the same for the optimizer and the scheduler.</details>
#
# **Check.** The check takes three steps, captures the run, goes on, and then restores the state into a new
# run.

# %% nbgrader={"grade_id": "capture_check", "points": 8}
report = check("12_in_operation/capture", capture, restore)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/capture", capture, restore, cases="hidden")
### END HIDDEN TESTS
report.points(8)


# %% [markdown]
# **Break it.** The cell captures a run after three steps and restores the state into fresh runs, first with
# all entries, and then with one entry missing at a time. A fresh run keeps its own value of the missing
# entry. By how much do the losses of its next five steps differ from the losses of the captured run?


# %% tags=["skip-in-grading"]
def small_run(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    return Training(model, optimizer, scheduler, generator=torch.Generator().manual_seed(seed))


def steps_of(run, count):
    losses = []
    for _ in range(count):
        draw = torch.Generator().manual_seed(run.step)  # a step's number decides its rows
        rows = torch.randn(16, 8, generator=draw, dtype=torch.float64)
        noise = torch.randn(16, 1, generator=run.generator, dtype=torch.float64)
        loss = (run.model(rows) - rows.sin().sum(1, keepdim=True) - 0.1 * noise).square().mean()
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        run.step += 1
        losses.append(loss.item())
    return torch.tensor(losses)


if ready(capture, restore):
    undisturbed = small_run(0)
    steps_of(undisturbed, 3)
    state = capture(undisturbed)
    wanted = steps_of(undisturbed, 5)
    for left_out in (None, *state):
        fresh = small_run(1)
        restore(fresh, {**state, left_out: capture(fresh)[left_out]} if left_out else state)
        apart = (steps_of(fresh, 5) - wanted).abs().max().item()
        label = f"without {left_out}" if left_out else "with everything"
        print(f"{label:18} losses differ by up to {apart:.1e}")

# %% [markdown]
# **In production.** A data loader usually has a state as well. Here it has none, because the step's number
# decides which rows are read. `torch.distributed.checkpoint` leaves the choice of entries to you, because it
# saves only what is in your dict. Each rank also has its own generators, so the generators of every rank must
# be saved.
#
# **Question.** Which entries could you leave out if the model had no dropout and the run had no generator of
# its own?

# %% [markdown]
# ## 3 · A save that may be cut off
#
# | | |
# |---|---|
# | you will write | `commit(disk, step, parts)`, `newest(disk)` |
# | builds on | nothing |
# | time | 38 minutes |
# | difficulty, importance | 4 and 5 of 5 |
# | points | 15 |
#
# Suppose you write a new state over the file with the old state, and the power fails halfway. Then the file
# is *torn*, which means that it is cut off, or that it ends in zeros. The old state is lost as well. So in
# this section you write a save that leaves a whole checkpoint on the disk, no matter when the power fails.
#
# A program doesn't write directly to the disk. It writes to the **page cache**, which is memory of the
# kernel, and the kernel copies this memory to the disk later, in its own order. `fsync` waits until the bytes
# of a file are on the disk. But the *name* of a file is stored in its folder, so a new name is safe only
# after an `fsync` of the folder. A `rename` happens in one step, so a name always refers to the whole old
# file or the whole new one (POSIX, `rename`).
#
# The disk of this section is only a model in memory, with seven operations:
#
# | operation | in the cache | on the disk |
# |---|---|---|
# | `write(name, data)` | the file has these bytes | nothing changes yet |
# | `sync(name)` | | the file's bytes are safe, but perhaps not its name |
# | `rename(old, new)`, `remove(name)` | the name changes in one step | nothing changes yet |
# | `sync_folder()` | | all names are safe, but perhaps not the files' bytes |
# | `read(name)`, `names()` | return what the cache holds | |
#
# After a power failure, the folder has the names it had at its last sync. Some of the later name changes may
# also have reached the disk, but only in the order in which they were made. Each file whose last write was
# not synced can be old, new or torn. A real disk can behave worse than this model, because POSIX doesn't even
# promise this order. In eleven programs, Pillai et al. (OSDI 2014) found 60 faults that do harm only after
# such a failure.
#
# **Look.** The cell overwrites a file and renames it, without any sync. Then it lists all states the disk can
# be in after a power failure.

# %% tags=["skip-in-grading"]
disk = Disk({"a": b"old."})
disk.write("a", b"new!")
disk.rename("a", "b")
for state in disk.after_power_failure():
    print(state)

# %% [markdown]
# A checkpoint has several parts, so one of its files is a *manifest*, which lists the files that belong
# together.
#
# **Predict.** A program writes the manifest first, then the parts, and syncs everything only at the end. The
# power fails right after the manifest is written. What does a loader find?
#
# <details><summary>Answer</summary>It may find a manifest that names files which don't exist, or a torn
# manifest. In both cases there seems to be a new checkpoint, but it can't be loaded.</details>
#
# **Build.** Write the manifest last, under a name that `newest` ignores. Then a single rename completes the
# checkpoint. Before each operation, ask yourself what must already be on the disk. Also, an interrupted save
# may have left files in the folder.


# %% nbgrader={"grade_id": "commit", "solution": true}
def commit(disk, step, parts):
    """Save `parts`, a dict of bytes by name, as the checkpoint of `step`.

    If the power fails at any moment, `newest` must find a whole checkpoint, either this one or
    the newest earlier one. Once `commit` has returned, `newest` must find this one.
    `commit` must also work if an interrupted save has left files behind. `step` is never
    smaller than an earlier step, and committing a step again replaces its checkpoint. Older
    checkpoints may stay or go. A name may contain "/", which means nothing here, because there
    is only one folder. `rename` replaces an existing name in one step.
    """
    ### BEGIN SOLUTION
    attempt = 0
    while any(name.startswith(f"{step}.{attempt}.") for name in disk.names()):
        attempt += 1
    prefix = f"{step}.{attempt}."
    for name, data in parts.items():
        disk.write(prefix + name, data)
        disk.sync(prefix + name)
    disk.sync_folder()
    draft = f"{step}.{attempt + 1}.draft"
    disk.write(draft, json.dumps({name: prefix + name for name in parts}).encode())
    disk.sync(draft)
    disk.rename(draft, f"step-{step}")
    disk.sync_folder()
    ### END SOLUTION


# %% nbgrader={"grade_id": "newest", "solution": true}
def newest(disk):
    """Return (step, parts) of the newest checkpoint, or None if there is no checkpoint."""
    ### BEGIN SOLUTION
    manifests = [name for name in disk.names() if name.startswith("step-")]
    if not manifests:
        return None
    step = max(int(name.removeprefix("step-")) for name in manifests)
    files = json.loads(disk.read(f"step-{step}"))
    return step, {name: disk.read(file) for name, file in files.items()}
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the order</summary>First write the parts, sync each of them, and sync the folder.
# Then write the manifest under a draft name and sync it. Finally rename the manifest, and sync the folder
# again. (In this model, name changes reach the disk in order, so your save would also work without the first
# sync of the folder. But a real disk may reorder the changes.)</details>
# <details><summary>Hint: files of an interrupted save</summary>Begin the file names of each save attempt with
# a prefix, such as <code>f"{step}.{attempt}."</code>. Start with attempt 0, and increase this number until no
# name in the folder begins with the prefix.</details>
# <details><summary>Hint: the manifest</summary>Write <code>json.dumps({name: file}).encode()</code>, and
# rename the file to <code>f"step-{step}"</code>. To find the newest step, compare the steps as
# <i>numbers</i>, because as a name, step-9 comes after step-10.</details>
#
# **Check.** For every k, the check carries out the first k operations of your save and lists the states that
# a power failure can leave on the disk. Then it calls your `newest` on each of these states.

# %% nbgrader={"grade_id": "commit_check", "points": 15}
report = check("12_in_operation/commit", commit, newest)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/commit", commit, newest, cases="hidden")
### END HIDDEN TESTS
report.points(15)

# %% [markdown]
# **Measure.** The cell lets the power fail after each operation of two saves, and counts the states of the
# disk in which `newest` then finds step 1, step 2 or nothing.


# %% tags=["skip-in-grading"]
def outcome(newest, disk):
    try:
        checkpoint = newest(disk)
    except Exception as error:  # a loader that fails is one of the outcomes
        return f"raised {type(error).__name__}"
    return "found nothing" if checkpoint is None else f"found step {checkpoint[0]}"


def all_failures(commit, newest, saves):
    """Count what `newest` finds if the power fails after k operations, for each k."""
    table = {}
    for crash in power_failures(commit, saves):
        result = outcome(newest, Disk(crash.files))
        row = table.setdefault((crash.operations, crash.after or "(none)"), {})
        row[result] = row.get(result, 0) + 1
    return table


def show(table):
    print(f"{'operations':10}  {'the last of them':28}  what newest finds (in how many states)")
    for (count, after), row in table.items():
        print(f"{count:10}  {after:28} ", ", ".join(f"{result} ({n})" for result, n in row.items()))


saves = [(1, {"run": b"old weights"}), (2, {"run": b"new weights"})]
if ready(commit, newest):
    table = all_failures(commit, newest, saves)
    print(sum(sum(row.values()) for row in table.values()), "states of the disk")
    show(table)

# %% [markdown]
# **Break it.** In their first version, most programs save as in the next cell, which writes a new file and
# renames it over the old one. Such a save passes every test that kills only the *program*, because the page
# cache survives the kill. But what does the save still need to survive a power failure?


# %% tags=["skip-in-grading"]
def rename_before_sync(disk, step, parts):
    disk.write("draft", parts["run"] + b" of step %d" % step)
    disk.rename("draft", "checkpoint")
    disk.sync("checkpoint")
    disk.sync_folder()


def of_one_file(disk):
    if "checkpoint" not in disk.names():
        return None
    weights, _, step = disk.read("checkpoint").rpartition(b" of step ")
    return int(step), {"run": weights}


show(all_failures(rename_before_sync, of_one_file, saves))

# %% [markdown]
# The new name can reach the disk before the bytes of the file, and then the loader raises an error. A sync of
# the file before the rename prevents this.
#
# **Look.** Your `commit` also works on a real folder. The cell starts a process that saves again and again.
# It kills this process with SIGKILL at random moments, and then asks `newest` for a whole checkpoint.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if ready(commit, newest, capture, restore):
    yours = {"commit": commit, "newest": newest, "capture": capture, "restore": restore}
    with tempfile.TemporaryDirectory() as folder:
        run = run_with_failures(partial(train_lab, **yours), folder, 300, 1, mtbf=0.5, seed=0)
        checkpoint = newest(Folder(f"{folder}/checkpoints"))
        print(f"number of kills in {run.seconds:.1f} s: {len(run.kills)}")
        print(f"the newest checkpoint is of step {checkpoint[0]}")

# %% [markdown]
# <details><summary>In production</summary>
#
# `torch.distributed.checkpoint` writes the files of all ranks first, and then its manifest, which a rename
# turns into `.metadata`. The course's `protocol.py` also writes a checksum of each part into the manifest,
# because a bit can flip and a file can be cut short without any power failure. If a checksum doesn't match,
# `protocol.py` loads the previous checkpoint, and says which file is damaged.
#
# </details>
#
# **Question.** Why does the folder have to be synced after the last rename? (Leave out this sync, and read
# what the check says.)

# %% [markdown]
# ## 4 · Killed, and back
#
# | | |
# |---|---|
# | you will write | nothing, because the lab runs your four functions |
# | builds on | §2, §3 |
# | time | 12 minutes |
#
# Now the lab of §1 uses your `capture`, `restore`, `commit` and `newest`. Its run saves every five steps. If
# you haven't written some of these functions, the cell takes the library's versions instead, and says so.
#
# **Predict.** Rank 3 dies in step 7. How many steps are done twice, and by how much does the loss at the end
# differ from the loss of an undisturbed run?
#
# <details><summary>Answer</summary>All four ranks go on from step 5, so steps 5 and 6 are done twice. The two
# losses at the end nevertheless agree to the last digit.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
functions = {"commit": commit, "newest": newest, "capture": capture, "restore": restore}
pairs = (("commit", "newest"), ("capture", "restore"))
own = {
    name: functions[name] for pair in pairs if ready(*(functions[n] for n in pair)) for name in pair
}
print("yours:", ", ".join(own) or "none")
print("the library's:", ", ".join(name for name in functions if name not in own) or "none")

quiet, killed = lab(**own), lab(dies=(3, 7), **own)
for name, run in (("undisturbed", quiet), ("killed", killed)):
    ends = [line.text for line in run.lines if line.text.startswith("end ")]
    print(f"{name}, {run.seconds:.1f} s, loss at the end:", *(text.split()[1] for text in ends))
journal(killed)
display(timeline(killed))

# %% [markdown]
# **Measure.** Now a whole node dies. As soon as step 5 is saved, the cell kills one of the two agents with
# SIGKILL. The setting `nodes=(1, 2)` allows one node or two, so the other agent goes on with its two ranks.
# The global batch stays the same, since the rows of a step are divided among all ranks that take part.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
smaller = lab(nodes=(1, 2), kills=[Kill(1, "saved 5")], **own)
journal(smaller)

# %% [markdown]
# Up to rounding, the loss at the end agrees with the loss of the run on four ranks. If each of the two ranks
# read only as many rows as before, the batch would be half as large from then on, and the loss would be
# different.
#
# <details><summary>A setting of the lab, and why</summary>By default, PyTorch's agents share the store of
# their rendezvous with the ranks. With two nodes and this default, a killed rank wasn't replaced within 60 s
# in any of three trials (PyTorch 2.13, on this course's machine). The lab therefore sets
# <code>TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1</code>.</details>
#
# <details><summary>In production</summary>
#
# `torchrun --nnodes 1:2 --max-restarts 3` does what you have seen. If a rank dies, *all* ranks start again.
# Each agent counts its restarts in its own `TORCHELASTIC_RESTART_COUNT`, and these counts can differ, so
# don't name files after them. `--max-restarts` is 0 unless you set it, and it limits only those restarts that
# follow a failure of the agent's own ranks. The library torchft, however, doesn't restart the healthy ranks.
# Instead, the failed group of ranks leaves the job and comes back later, and the rows it would have read in
# this step are skipped (`torchft/data.py`).
#
# </details>
#
# A rank that hangs is harder to find than one that dies.
#
# <details><summary>Tools that show where a rank hangs</summary>
#
# | set or call | what you get |
# |---|---|
# | `TORCH_FR_BUFFER_SIZE=2000`, `TORCH_NCCL_DUMP_ON_TIMEOUT=1` | When a collective times out, PyTorch's flight recorder writes the last 2,000 collectives of each rank to files. `python -m torch.distributed.flight_recorder.fr_trace` compares the files |
# | `torch.distributed.debug.start_debug_server()` | a page shows the stacks and the recorded collectives of all ranks, while the job runs (experimental, in PyTorch since November 2025) |
# | `NCCL_DEBUG=INFO`, `py-spy dump --pid ...` | NCCL's connections, and the Python stack of one process |
# | TorchComms' `FlightRecorderHook` | a record like the flight recorder's, for the communicators of TorchComms, which wrap NCCL, gloo and other backends |
#
# </details>
#
# **Question.** An agent dies together with its two ranks. Which process notices the loss, and how?

# %% [markdown]
# ## 5 · Save on four, load on three
#
# | | |
# |---|---|
# | you will write | `read_plan(saved, wanted)` |
# | builds on | nothing |
# | time | 25 minutes |
# | difficulty, importance | 4 and 4 of 5 |
# | points | 10 |
#
# Suppose a node is lost and doesn't come back, or additional nodes become free. Then the ranks that load the
# checkpoint are not the ranks that saved it. So a file has to be described without reference to ranks. We
# describe what it holds as a **box**, which is a list of pairs (start, stop), one pair per dimension of the
# whole tensor. For example, the second half of the columns of a matrix with 8 rows and 6 columns is [(0, 8),
# (3, 6)]. With boxes, it no longer matters how the ranks were divided into pp, dp and tp.
#
# **Predict.** This matrix was saved in two boxes (columns 0 to 3 and columns 3 to 6). Three ranks want its
# rows in three parts (0 to 3, 3 to 6 and 6 to 8). From how many files does each rank read, and which part of
# each file?
#
# <details><summary>Answer</summary>Each rank reads from both files, since every row was cut in two. For
# example, rank 1 reads rows 3 to 6 of each file, which are the left and the right half of its own
# box.</details>
#
# **Build.** In each dimension, two boxes overlap from the larger start to the smaller stop. The start and the
# stop of the overlap are coordinates in the whole tensor. So to get the overlap's place in the saved box,
# subtract the start of the saved box, and do the same with the wanted box.


# %% nbgrader={"grade_id": "read_plan", "solution": true}
def read_plan(saved, wanted):
    """Return a list of pieces (file, place in the file's box, place in `wanted`) to fill `wanted`.

    saved: (file, box) for each saved box of one tensor. Saved boxes do not overlap. wanted: a
    box. Both places of a piece are boxes, the first counted from the beginning of the saved box
    and the second from the beginning of the wanted box. Pieces can be in any order, but they
    read each wanted element once, and no other elements. The box of a scalar is the empty list,
    which still needs a piece, while a wanted box with no elements needs none. Raise ValueError
    if a wanted element is missing.
    """
    ### BEGIN SOLUTION
    pieces, filled = [], 0
    for file, box in saved:
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True)]
        if all(start < stop for start, stop in both):
            inside = [
                [
                    (start - begin, stop - begin)
                    for (start, stop), (begin, _) in zip(both, outer, strict=True)
                ]
                for outer in (box, wanted)
            ]
            pieces.append((file, *inside))
            filled += math.prod(stop - start for start, stop in both)
    if filled != math.prod(stop - start for start, stop in wanted):
        raise ValueError("some wanted elements are in no saved box")
    return pieces
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the overlap</summary>The overlap is <code>[(max(a, c), min(b, d)) for (a, b), (c, d)
# in zip(box, wanted)]</code>, and it is empty if a start is not below its stop.</details>
# <details><summary>Hint: a hole</summary>Count the elements of all pieces. Saved boxes don't overlap, so if
# the count is below the number of wanted elements, some are missing.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "read_plan_check", "points": 10}
report = check("12_in_operation/read_plan", read_plan)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/read_plan", read_plan, cases="hidden")
### END HIDDEN TESTS
report.points(10)

# %% [markdown]
# **Look.** Four ranks saved a matrix in four quarters. The cell draws how three ranks fill their thirds from
# these quarters. The colour tells you which file an element comes from.

# %% tags=["skip-in-grading"]
shape = (24, 16)
saved = [
    (file, [(12 * (file // 2), 12 * (file // 2) + 12), (8 * (file % 2), 8 * (file % 2) + 8)])
    for file in range(4)
]
wanted = [[(8 * rank, 8 * rank + 8), (0, 16)] for rank in range(3)]

if ready(read_plan):
    figure = picture(5.2, 2.2)
    for rank, box in enumerate(wanted):
        axes = figure.add_axes((0.02 + 0.33 * rank, 0.1, 0.29, 0.72))
        filled = torch.full((8, 16), -1)
        for file, _, place in read_plan(saved, box):
            filled[tuple(slice(*each) for each in place)] = file
        for row, column in (filled >= 0).nonzero().tolist():
            axes.add_patch(
                Rectangle((column, -row), 0.95, 0.95, color=RANKS[int(filled[row, column])])
            )
        axes.set_xlim(0, 16), axes.set_ylim(-7.1, 1), axes.axis("off")
        axes.set_title(
            f"rank {rank} reads files {sorted(set(filled.flatten().tolist()))}", size=8, color=INK
        )
    display(figure)

# %% [markdown]
# **Measure.** Now a model is saved on four ranks (pp 2 × tp 2), and loaded on three ranks (dp 3).
# `course_lib.mesh.held_boxes` gives the names and boxes of each rank's tensors, and the library's
# `save_shards` and `load_shards` do the rest. `save_shards` writes a file per box and lets rank 0 commit
# once, and `load_shards` plans its reads as you did. The cell prints the bytes written and read. Since each
# of the three ranks is a replica, it reads everything the four ranks have written.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def on_mesh(sizes, seed):
    """Return a small GPT's stages on this mesh, its optimizer, and a function that runs a step."""
    mesh = Mesh(sizes)
    schedule = one_f_one_b(mesh.size("pp"), 2)
    torch.manual_seed(seed)
    model = GPT(GPTConfig(context=32, layers=2, heads=4, width=64)).to(device())
    stages = mesh_stages(model, mesh, schedule)
    optimizer = torch.optim.AdamW(
        [param for _, param in parameters(stages)], lr=1e-3, foreach=False
    )

    def step(number):
        rows = batch(library_text(), number, batch_size=12, length=32)
        rows = tuple(tokens.to(device()) for tokens in rows)
        return train_step(stages, schedule, rows, 2, mesh, optimizer, 1.0)[0]

    return stages, optimizer, step


def save_on(sizes, path):
    stages, optimizer, step = on_mesh(sizes, seed=0)
    for number in range(3):
        step(number)
    written = reference.save_shards(Folder(path), 3, held_boxes(stages, optimizer))
    return written, [step(number) for number in range(3, 6)]


def load_on(sizes, path):
    stages, optimizer, step = on_mesh(sizes, seed=1)
    number, read = reference.load_shards(Folder(path), held_boxes(stages, optimizer))
    return read, [step(k) for k in range(number, number + 3)]


with tempfile.TemporaryDirectory() as path:
    saving = try_it(save_on, {"pp": 2, "dp": 1, "tp": 2}, path, world_size=4)
    loading = try_it(load_on, {"pp": 1, "dp": 3, "tp": 1}, path, world_size=3)
if saving and loading:
    print("bytes written by each of four ranks:", *(f"{written:9,}" for written, _ in saving))
    print("bytes read by each of three ranks:  ", *(f"{read:9,}" for read, _ in loading))
    print("losses on four ranks, which go on:  ", *(f"{loss:.6f}" for loss in saving[0][1]))
    print("losses on three ranks, which load:  ", *(f"{loss:.6f}" for loss in loading[0][1]))

# %% [markdown]
# **Break it.** Suppose rank 0 writes everything. The number of bytes stays the same, but three ranks wait
# while rank 0 writes, and rank 0 needs memory for the full model. At the other extreme, suppose every rank
# writes all it holds. Then the disk holds several copies of everything that several ranks hold (with tp, for
# example, the weights of a norm).
#
# **In production.** `torch.distributed.checkpoint` makes such plans (`DefaultSavePlanner`, and
# `create_read_items_for_chunk_list`, which cuts boxes as you did). Notebook 05 saves and loads with it.
#
# **Question.** In notebook 04, all parameters are one flat row, and each rank keeps a shard of it. What is a
# box then? (It is one pair, the start and the stop of the shard in the row.)

# %% [markdown]
# ## 6 · How often to save
#
# | | |
# |---|---|
# | you will write | `best_interval(save_seconds, mtbf)` |
# | builds on | nothing |
# | time | 10 minutes |
# | difficulty, importance | 1 and 4 of 5 |
# | points | 4 |
#
# A save stops the run for δ seconds, and a failure costs the work since the last save. If you save often, you
# pay for the saves, but if you save rarely, you lose more work at each failure. Let τ be the seconds of work
# between the end of one save and the start of the next. A failure happens once every M seconds on average, at
# a random time.
#
# First write down what share of the time you lose to saves, and what share to failures. Saves cost δ seconds
# for every τ seconds of work. Once every M seconds, a failure costs *half* of an interval on average. Then
# find the τ at which the sum of the two shares is smallest.
#
# **Predict.** Suppose you use only half of the GPUs, so M doubles. Should you save half as often?
#
# <details><summary>Answer</summary>No, because the best τ grows with the square root of M, so it becomes only
# 1.41 times as long.</details>


# %% nbgrader={"grade_id": "best_interval", "solution": true}
def best_interval(save_seconds, mtbf):
    """Return the best interval, in seconds of work from the end of a save to the start of the next.

    save_seconds: how long a save stops the run. mtbf: seconds between two failures of the job.
    """
    ### BEGIN SOLUTION
    return math.sqrt(2 * save_seconds * mtbf)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the sum</summary>The sum of the two shares is δ / τ + τ / (2 M). At which τ is its
# derivative 0?</details>
#
# **Check.**

# %% nbgrader={"grade_id": "best_interval_check", "points": 4}
report = check("12_in_operation/best_interval", best_interval)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/best_interval", best_interval, cases="hidden")
### END HIDDEN TESTS
report.points(4)


# %% [markdown]
# **Measure.** The **goodput** is the share of the time that is spent on work that isn't lost. If failures
# happen at random times, the probability that τ + δ seconds pass without a failure is exp(−(τ + δ) / M).
# After a failure, the run needs R seconds to start again. The cell plots the goodput against τ for δ = 60 s
# and for δ = 2 s, both with M = 3 h and R = 600 s.


# %% tags=["skip-in-grading"]
def goodput(interval, save_seconds, restart_seconds, mtbf):
    return interval / ((mtbf + restart_seconds) * math.expm1((interval + save_seconds) / mtbf))


figure = picture(6.4, 2.3)
axes = figure.add_axes((0.09, 0.2, 0.88, 0.74))
taus = [30 * 1.15**k for k in range(44)]
for save, colour in ((60, RANKS[0]), (2, RANKS[1])):
    axes.plot(
        taus,
        [goodput(tau, save, 600, 3 * 3600) for tau in taus],
        color=colour,
        label=f"δ = {save} s",
    )
    if ready(best_interval):
        best = best_interval(save, 3 * 3600)
        axes.plot(best, goodput(best, save, 600, 3 * 3600), "o", color=colour)
        print(
            f"δ = {save:2} s: τ = {best:5.0f} s, goodput {goodput(best, save, 600, 3 * 3600):.3f}"
        )
axes.set_xscale("log"), axes.set_ylim(0, 1), axes.legend(fontsize=8)
axes.set_xlabel("τ, seconds of work between two saves", size=8), axes.set_ylabel("goodput", size=8)
display(figure)

# %% [markdown]
# The curve is flat at its top. If you save at half or twice the best interval, you lose about two percent
# more of the time for δ = 60 s, and half a percent for δ = 2 s. So you don't have to know δ and M precisely.
#
# **Look.** The cell kills a real process at random moments, as in §3, and measures its goodput. In this run,
# seconds stand for hours. The formula gives a mean over many failures, but a single run with few kills can be
# far from this mean. So the cell also simulates a hundred runs with the same number of failures, and prints
# the range of the middle ninety results. Compare the measurement with this range.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
with tempfile.TemporaryDirectory() as folder:
    worker = partial(train_lab, step_seconds=0.005, save_seconds=0.05)
    failed = run_with_failures(worker, folder, 600, 25, mtbf=1.5, seed=1)
    means = reference.measured(failed, Journal(f"{folder}/journal").lines())
costs = (25 * means.step, means.save, means.restart, 1.5)
kills = len(failed.kills)
drawn = sorted(reference.simulated_goodput(*costs, failures=kills, seed=k) for k in range(100))
print(f"number of kills: {kills}")
print(f"goodput: {means.goodput:.2f} measured, {goodput(*costs):.2f} by the formula")
print(f"goodput of 90 in 100 simulated runs: {drawn[5]:.2f} to {drawn[94]:.2f}")

# %% [markdown]
# **Break it.** If you divide the failures of Llama 3's job among its GPUs, each GPU fails once every 5.8
# years. If you took this time as M, you would save once every 1.7 days (δ = 60 s). But the job fails once
# every 3.1 hours, so it would practically never reach its first save.
#
# **In production.** In 1974, Young published the formula with the square root. If saves are asynchronous
# (§13), δ is only the time for a copy in memory, so the best τ is also shorter.
#
# **Question.** Suppose δ goes to 0. What limits the goodput then? (Only the restarts do. The goodput can't
# exceed M / (M + R).)
#
# *Take a break here if you like. Part B needs only the first cell of this notebook, and §6 if you have a
# GPU.*

# %% [markdown]
# ## B · It is slow
#
# ## 7 · Where the time goes
#
# | | |
# |---|---|
# | you will write | `breakdown(calls, rank, start, end)` |
# | builds on | nothing |
# | time | 24 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 10 |
#
# A profiler says that ranks spend a third of the step in all-reduces. Should you buy a faster network? You
# can't know yet, because a rank spends its time in a collective in two ways. A collective can't move any
# bytes before its *last* rank has called it. Until then, the ranks that called it earlier **wait**, and no
# network shortens this time. After that, bytes **move**, and a faster network helps.
#
# Each call has three timestamps. The rank called the collective at `issued` and began to wait for it at
# `waited`, and the collective was over at `done`. For a call that blocks, waited = issued. But with
# `async_op=True`, the rank computes between `issued` and `waited`. Bytes that move while the rank computes
# are **hidden**, because they cost the rank no time.
#
# **Look.** The cell draws three calls on three ranks. White is for waiting, grey for moving bytes, blue for
# computing, and hatched blue for computing while bytes move.


# %% tags=["skip-in-grading"]
EXAMPLE = [  # [rank][call]: issued, waited, done
    [(2, 2, 5), (7, 10, 11), (12, 12, 16)],
    [(3, 3, 5), (8, 8, 11), (14, 14, 16)],
    [(4, 4, 5), (9, 13, 11), (13, 13, 16)],
]


def draw_calls(calls, end):
    figure = picture(7.4, 0.5 + 0.42 * len(calls))
    axes = figure.add_axes((0.09, 0.22, 0.89, 0.74))
    lasts = [max(of_rank[k][0] for of_rank in calls) for k in range(len(calls[0]))]
    for rank, of_rank in enumerate(calls):
        axes.barh(-rank, end, left=0, height=0.6, color="#7aa6d8")
        for last, (_, _, done) in zip(lasts, of_rank, strict=True):
            if done > last:
                axes.barh(-rank, done - last, left=last, height=0.6, color="#7aa6d8", hatch="////")
        for last, (_, waited, done) in zip(lasts, of_rank, strict=True):
            if min(last, done) > waited:
                axes.barh(
                    -rank,
                    min(last, done) - waited,
                    left=waited,
                    height=0.6,
                    color="white",
                    edgecolor=INK,
                )
            if done > max(last, waited):
                axes.barh(
                    -rank, done - max(last, waited), left=max(last, waited), height=0.6, color=QUIET
                )
    axes.set_yticks(
        [-rank for rank in range(len(calls))],
        [f"rank {rank}" for rank in range(len(calls))],
        size=8,
    )
    axes.set_xlim(0, end), axes.set_xlabel("seconds", size=8)
    return figure


display(draw_calls(EXAMPLE, 18))

# %% [markdown]
# **Predict.** Take the second call on rank 0. Rank 0 issued it at 7 s, and rank 2 was the last to call it, at
# 9 s. Rank 0 waited for it from 10 s on, and it was done at 11 s. How long did rank 0 wait for the last rank,
# how long did bytes move, and how long were they hidden?
#
# <details><summary>Answer</summary>Rank 0 waited 0 s for the last rank, because by 10 s, all ranks had issued
# the call. Bytes moved from 9 s to 11 s. They were hidden for the first of these two seconds, and rank 0 was
# blocked for the second one.</details>
#
# **Build.** Find the interval of waiting and the interval of moving in the picture. If a call is already over
# when its rank begins to wait, like the second call on rank 2, it costs this rank no time.


# %% nbgrader={"grade_id": "breakdown", "solution": true}
def breakdown(calls, rank, start, end):
    """Return a dict of the seconds of `rank`: "computing", "waiting", "moving" and "hidden".

    calls[r][k]: (issued, waited, done) of call k on rank r. All ranks take part in all calls,
    and a rank is blocked in one call at a time. First cut every interval to the window from
    `start` to `end`, so that computing + waiting + moving is the length of the window. A call
    moves bytes from the last `issued` on any rank to `done` on `rank`. `hidden` is the time in
    which at least one call moves bytes while `rank` is not blocked. If several calls move bytes
    at the same time, this time counts only once, so `hidden` never exceeds `computing`.
    """

    ### BEGIN SOLUTION
    def length(intervals):
        seconds, reached = 0, start
        for begin, over in sorted(intervals):
            seconds += max(0, min(over, end) - max(begin, reached))
            reached = max(reached, over)
        return seconds

    lasts = [max(of_rank[k][0] for of_rank in calls) for k in range(len(calls[rank]))]
    own = [(last, waited, done) for last, (_, waited, done) in zip(lasts, calls[rank], strict=True)]
    blocked = [(waited, done) for _, waited, done in own]
    travels = [(last, done) for last, _, done in own]
    waiting = sum(length([(waited, min(last, done))]) for last, waited, done in own)
    moving = sum(length([(max(waited, last), done)]) for last, waited, done in own)
    return {
        "computing": end - start - waiting - moving,
        "waiting": waiting,
        "moving": moving,
        "hidden": length(travels + blocked) - length(blocked),
    }
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: one call</summary>Let last be the largest <code>issued</code> of this call on any
# rank. The rank waits from <code>waited</code> to min(last, done), and is blocked by moving bytes from
# max(waited, last) to done. If an interval ends before it begins, it is empty.</details>
# <details><summary>Hint: hidden</summary>Take all intervals from last to done, and all intervals in which
# this rank is blocked. Count the seconds that lie in any of these intervals, and subtract those in which the
# rank is blocked.</details>
# <details><summary>Hint: seconds in at least one interval</summary>Sort the intervals by their starts and go
# through them. Remember how far the intervals have reached, and add only the part of the next interval that
# is beyond this point.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "breakdown_check", "points": 10}
report = check("12_in_operation/breakdown", breakdown)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/breakdown", breakdown, cases="hidden")
### END HIDDEN TESTS
report.points(10)

# %% [markdown]
# **Measure.** The cell runs four programs on four ranks. The first computes a lot, and the second sends a
# lot. In the third, one rank computes three times as long as the others, and in the fourth, an all-reduce
# runs while the ranks compute. The ranks sleep instead of computing, so they don't compete for this machine's
# cores. A rank notices the end of a call only when it waits for the call, so `hidden` is an upper bound in
# the fourth program.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def program(seconds, elements, slow=None, asynchronous=False, times=8):
    """Sleep and all-reduce, in turn or at the same time. Rank `slow` sleeps three times as long."""
    tensor = torch.ones(elements, device=device())
    own = seconds * (3 if dist.get_rank() == slow else 1)
    dist.barrier()
    for _ in range(times):
        handle = dist.all_reduce(tensor, async_op=True) if asynchronous else None
        time.sleep(own)
        handle.wait() if handle else dist.all_reduce(tensor)


PROGRAMS = {
    "much computing": (0.02, 1_000),
    "much to send": (0.002, 2_000_000),
    "rank 2 is slow": (0.01, 1_000, 2),
    "asynchronous": (0.02, 400_000, None, True),
}
shares = {}
for name, arguments in PROGRAMS.items():
    run = try_it(program, *arguments)
    if run and ready(breakdown):
        calls = reference.calls_of(run.ledger)
        start, end = (
            max(of_rank[1][0] for of_rank in calls),
            max(of_rank[-1][2] for of_rank in calls),
        )
        shares[name] = [breakdown(calls, rank, start, end) for rank in range(4)]
        for rank, parts in enumerate(shares[name]):
            line = "  ".join(
                f"{key} {100 * seconds / (end - start):3.0f} %" for key, seconds in parts.items()
            )
            print(f"{name:15} rank {rank}: {line}")

# %% [markdown]
# **Look.** Each bar divides a rank's time into shares, in the colours of the picture above, with rank 0 at
# the top. In the third program, three ranks wait, but the rank that doesn't wait is the cause.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if shares:
    figure = picture(7.4, 1.9)
    for place, (name, ranks) in enumerate(shares.items()):
        axes = figure.add_axes((0.05 + 0.24 * place, 0.12, 0.2, 0.72))
        for rank, parts in enumerate(ranks):
            whole, left = parts["computing"] + parts["waiting"] + parts["moving"], 0
            for key, colour in (("computing", "#7aa6d8"), ("waiting", "white"), ("moving", QUIET)):
                axes.barh(
                    -rank, parts[key] / whole, left=left, color=colour, edgecolor=INK, linewidth=0.5
                )
                left += parts[key] / whole
        axes.set_title(name, size=8, color=INK), axes.set_yticks([]), axes.set_xticks([0, 1])
    display(figure)

# %% [markdown]
# **Break it.** Suppose you buy a faster network for the third program. Even if bytes took no time, you would
# save only the time for moving, and the ranks would wait as long as before.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if shares:
    for rank, parts in enumerate(shares["rank 2 is slow"]):
        stays, goes = parts["waiting"], parts["moving"]
        print(f"rank {rank}: {stays:.3f} s of waiting would stay, {goes:.3f} s of moving would go")

# %% [markdown]
# <details><summary>In production</summary>
#
# `torch.profiler` records a GPU's kernels, and Meta's Holistic Trace Analysis divides the GPU's time into
# computing, communication and idle time. An NCCL kernel that waits for another rank looks like a kernel that
# moves bytes, so only a comparison of all ranks, such as yours, tells waiting from moving. "GPU utilization"
# is the share of time in which any kernel runs, so a GPU that only waits in NCCL shows 100 %. If
# `"wall_clock_breakdown"` is true, DeepSpeed measures the time of forward, backward and the optimizer's step.
# It prints its progress every `"steps_per_print"` steps.
#
# </details>
#
# **Question.** Rank 1 spends a third of its time waiting. Which rank do you examine first?

# %% [markdown]
# ## 8 · Which rank is slow
#
# | | |
# |---|---|
# | you will write | `find_straggler(arrivals, confidence=0.99)` |
# | builds on | §7, for the idea |
# | time | 16 minutes |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 6 |
#
# In each collective, some rank comes last. Being last means nothing yet, because each of four equal ranks is
# last in about one collective in four. But if a rank is last in 12 of 39 collectives, is it slow? If only
# chance decides among n ranks, the probability that a *given* rank is last at least m times in c collectives
# is the tail
#
# > P(X ≥ m), with X binomial for c trials and probability 1/n.
#
# The probability that *some* rank is last at least m times is at most n times this tail. If this bound is at
# most 1 − confidence, we rule out chance and call the rank a *straggler*.


# %%
def binomial_tail(trials, hits, probability):
    """Return the probability of at least `hits` hits in `trials` independent trials."""
    miss = 1 - probability
    terms = range(hits, trials + 1)
    return sum(math.comb(trials, k) * probability**k * miss ** (trials - k) for k in terms)


# %% [markdown]
# **Predict.** Take four ranks and 39 collectives. How often must a rank be last before you call it a
# straggler, with a confidence of 99 %?
#
# <details><summary>Answer</summary>It must be last 19 times, which is almost twice its share of 39 / 4. If it
# is last 18 times, the bound is still 1.3 %, but if it is last 19 times, the bound is only 0.5 %.</details>

# %% tags=["skip-in-grading"]
for hits in range(12, 22):
    bound = min(1, 4 * binomial_tail(39, hits, 1 / 4))
    print(f"some rank is last at least {hits} times in 39: probability at most {bound:.4f}")

# %% [markdown]
# How slow is the straggler? Its delay in a collective is the time of its own call minus the time of the other
# ranks' latest call, because without this delay the collective could have begun that much sooner. Take the
# median of the delays in all collectives, since a single pause of two seconds would distort their mean.
#
# **Build.** Count how often each rank is last, compute the tail for the largest count, and return None if
# chance explains it. Don't accuse the rank that *waits* most, because that rank is the fastest.


# %% nbgrader={"grade_id": "find_straggler", "solution": true}
def find_straggler(arrivals, confidence=0.99):
    """Return (rank, seconds) of the rank that is last more often than chance explains, or None.

    arrivals[k][r]: the time in seconds at which rank r of n called collective k. A rank is named
    if n times the binomial tail is at most 1 - confidence. If several ranks are last at the same
    time, each counts as last. The returned seconds are the median over *all* collectives of the
    rank's delay, which is its time minus the latest time of the other ranks. The delay is negative
    in a collective in which the rank is not last.
    """
    ### BEGIN SOLUTION
    n = len(arrivals[0])
    last = [sum(times[rank] == max(times) for times in arrivals) for rank in range(n)]
    rank = max(range(n), key=lambda r: last[r])
    if n * binomial_tail(len(arrivals), last[rank], 1 / n) > 1 - confidence:
        return None
    return rank, median(
        times[rank] - max(time for r, time in enumerate(times) if r != rank) for times in arrivals
    )
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the last rank</summary>For each rank r, sum <code>times[r] == max(times)</code> over
# the collectives.</details>
# <details><summary>Hint: how late</summary>Take the <code>statistics.median</code> of
# <code>times[rank]</code> minus the largest of the other times.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "find_straggler_check", "points": 6}
report = check("12_in_operation/find_straggler", find_straggler)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/find_straggler", find_straggler, cases="hidden")
### END HIDDEN TESTS
report.points(6)


# %% [markdown]
# **Measure.** The cell runs four real ranks twice, each time for 39 steps. A step takes 20 ms and ends in a
# collective, but in the second run, rank 2 needs 25 % longer for each step.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def steps_with(delay, slow=2, step=0.02, times=39):
    tensor = torch.ones(1, device=device())
    for _ in range(times):
        time.sleep(step + delay * (dist.get_rank() == slow))
        dist.all_reduce(tensor)


by_delay = {}
for delay in (0.0, 0.005):
    run = try_it(steps_with, delay)
    if run and ready(find_straggler):
        by_delay[delay] = reference.arrivals_of(run.ledger)
        print(f"with {1000 * delay:.0f} ms more on rank 2:", find_straggler(by_delay[delay]))

# %% [markdown]
# **Look.** For each collective, the cell's heat map shows how late each rank came, in milliseconds after the
# first rank. White is 0 ms, and black is 8 ms or more. MegaScale's authors used such heat maps to find slow
# machines.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if by_delay:
    figure = picture(7.4, 1.7)
    for place, (delay, arrivals) in enumerate(by_delay.items()):
        axes = figure.add_axes((0.06 + 0.48 * place, 0.2, 0.43, 0.62))
        late = [[1000 * (times[rank] - min(times)) for times in arrivals] for rank in range(4)]
        axes.imshow(late, aspect="auto", cmap="Greys", vmin=0, vmax=8)
        axes.set_title(f"{1000 * delay:.0f} ms more on rank 2", size=8, color=INK)
        axes.set_xlabel("collective", size=8), axes.set_yticks(range(4))
    figure.axes[0].set_ylabel("rank", size=8)
    display(figure)

# %% [markdown]
# On a busy machine, once a rank is late, it often stays late for a while, but the binomial distribution
# treats the collectives as independent. So the test may name a rank here although its median delay is far
# below a millisecond. Look at the median delay before you accuse a rank.
#
# **Break it.** Suppose you always name the rank that was last most often. The cell simulates a thousand runs
# of equal ranks, and prints how often this rule and your test accuse a rank.

# %% tags=["skip-in-grading"]
if ready(find_straggler):
    draw, accused = torch.Generator().manual_seed(0), 0
    for _ in range(1000):
        accused += find_straggler(torch.rand(39, 4, generator=draw).tolist()) is not None
    print(f"accused in 1000 runs: 1000 ranks by this rule, {accused} by your test")

# %% [markdown]
# **In production.** MegaScale (Jiang et al. 2024) reports two findings. About 0.5 % of the machines were slow
# and slowed down all the others (§5.1). Other machines needed about 10 % more time for the same forward, and
# removing them gained about 0.7 % of model FLOPs utilization (MFU, §6.3).
#
# **Question.** Why do you compare ranks only inside a group of dp or tp? (The stages of a pipeline reach a
# collective at different times even if they are healthy. For example, in the first forward the last stage is
# late, because it gets its first microbatch last.)

# %% [markdown]
# ## 9 · Six symptoms, one lever each
#
# | | |
# |---|---|
# | you will write | six answers |
# | builds on | §7, §8 |
# | time | 16 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 4 |
#
# You get measurements of one step from each of six runs, with eight ranks each. What is wrong with each run,
# and on which rank? One of the runs is healthy, which means that no cause costs even 5 % of its step. The
# table lists the kinds of trouble, each with a *lever*, which is a change to try first.
#
# | kind | what you see | first lever |
# |---|---|---|
# | `"straggler"` | one rank is always last, and the others wait for it | remove its host |
# | `"unequal work"` | some ranks compute longer, but none is always last | balance the experts, or move layers |
# | `"data"` | the step's input is late | use more loaders, or prefetch |
# | `"checkpoint"` | the step spends seconds on saves | save asynchronously, or less often |
# | `"bubble"` | stages have no microbatch to work on | use more microbatches, or interleave |
# | `"latency"` | most of the moving time is spent on starting messages (alpha · messages) | send fewer and larger messages |
# | `"bandwidth"` | most of the moving time is spent on sending bytes (beta · bytes) | overlap, or send fewer bytes |
# | `"memory"` | a rank is near its limit, or its peak is twice the other ranks' peak | shard, or recompute |
# | `"healthy"` | nothing costs 5 % | leave it alone |
#
# **Predict.** The next cell opens an *operations room*, a picture with controls. It shows 60 made-up steps of
# another run, on 16 ranks that do the same work. In steps 53 to 58, moving takes a fifth of each step. By how
# much would a network with twice the bandwidth shorten such a step? To check your prediction, set `step` to
# 55 and choose the lever `faster network`. These steps are one of the run's five incidents. Find the lever
# that ends another incident.

# %% tags=["skip-in-grading"]
from course_lib.pictures.operations_room import operations_room

operations_room()

# %% [markdown]
# <details><summary>Answer</summary>It would shorten the step by 0.4 %. Moving takes 0.31 s, but 0.30 s of
# that time is spent on starting messages, at any bandwidth. Fewer and larger messages, however, shorten the
# step by 19 %.</details>
#
# **Look.** For each of the six runs, the cell prints how each rank spends the seconds of its step. `late` is
# the result of `find_straggler` among ranks that do the same work. The seconds in `late` are the delay per
# collective, but a step can have many collectives.

# %% tags=["skip-in-grading"]
drawn = reference.draw_profiles(1)
runs = {name: drawn[place][0] for name, place in zip("abcdef", (6, 7, 10, 5, 2, 9), strict=True)}
for name, profile in runs.items():
    starts = profile.alpha * profile.messages[0]
    late = profile.late and "(rank {}, {:.3f} s)".format(*profile.late)
    print(f"run_{name}: step {profile.step():.2f} s, bubble {profile.bubble:.2f} s, late: {late}")
    print(
        f"       alpha * messages {starts:.3f} s, beta * bytes {profile.beta * profile.bytes[0]:.3f} s"
    )
    for kind in ("computing", "waiting", "moving", "data", "checkpoint"):
        print(
            f"       {kind:10}", "  ".join(f"{seconds:5.2f}" for seconds in getattr(profile, kind))
        )
    print(
        "       peak, GB  ",
        "  ".join(f"{peak / 1e9:5.1f}" for peak in profile.peak_memory),
        "of 80\n",
    )

# %% [markdown]
# **Build.** For each run, write the kind from the table and the rank that is the cause, as a pair. Write None
# instead of the rank if no single rank is the cause.

# %% nbgrader={"grade_id": "symptoms", "solution": true}
run_a = ...  # (kind, rank)
run_b = ...
run_c = ...
run_d = ...
run_e = ...
run_f = ...
### BEGIN SOLUTION
run_a = "unequal work", None
run_b = "latency", None
run_c = "data", 3
run_d = "healthy", None
run_e = "straggler", 6
run_f = "memory", 4
### END SOLUTION

# %% nbgrader={"grade_id": "symptoms_check", "points": 4}
report = check("12_in_operation/symptoms", run_a, run_b, run_c, run_d, run_e, run_f)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/symptoms", run_a, run_b, run_c, run_d, run_e, run_f, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# **In production.** Every team has its own thresholds, but the order of the questions matters more than the
# thresholds. First ask whether ranks wait or bytes move. Then ask which rank is last, and only after that
# pick a lever.

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a minute. Without them, the cell shows a recorded run if there is one.*
#
# **Predict.** A 2.1 GB state is saved from a GPU in three ways. The first is a copy into the host's pinned
# memory, whose pages stay where they are, so the GPU can write into them directly. The second is a copy into
# ordinary memory of the host, and the third is a file with `fsync`. An asynchronous save stops the run only
# for a copy, whereas any other save stops it until the file is on the disk. As a prediction, the cell divides
# the bytes by the data sheet's speed for the link to the host. Which of the three ways comes close to this
# prediction? By what factor is the best interval shorter with a copy than with a file?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.facts.hardware import link
from course_lib.gpu import on_your_gpus
from course_lib.gpu.saves import SAVES

saved_from_gpu = on_your_gpus(
    SAVES, predicted=lambda of, run: of["bytes"] / link(run.card.host_link).each_way
)
if saved_from_gpu and ready(best_interval):
    for row in saved_from_gpu.rows:
        tau = best_interval(row.value, 3.1 * 3600)
        print(f"{row.what}: save every {tau:.0f} s, if the job fails once every 3.1 hours")

# %% [markdown]
# <details><summary>Out of memory, in two ways</summary>
#
# A GPU can run out of memory in two ways. Either no memory is free, or each free block is too small for the
# request, which is called fragmentation. `torch.cuda.memory_stats()` counts failed allocations under
# `num_ooms`. Under `inactive_split_bytes.all.peak` it counts bytes that are free but can't be released,
# because they are pieces of larger blocks. `torch.cuda.memory_summary()` prints these and other counters as a
# table. If fragmentation is the cause, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, since segments
# that can grow leave fewer pieces.
#
# </details>

# %% [markdown]
# ## 10 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 7 minutes |
# | points | 3 |
#
# You can write a number as an expression.
#
# 1. A job fails once every 3.1 hours, and a save stops it for 60 s. After how many **seconds** of work should
#    the job save?
# 2. Ranks 0 to 3 spend 0.33, 0.00, 0.32 and 0.33 of their step waiting in all-reduces. Which **rank** is
#    slow?
# 3. Replicas start from the same parameters, and in each step all of them apply the average gradient from the
#    all-reduce. The loss jumps up, but you find that the parameters of all replicas still agree in every bit.
#    Which cause is *ruled out*? `"a"`, a bit flipped in the parameters of one rank; `"b"`, a bit flipped in
#    one rank's gradient before the all-reduce; or `"c"`, a batch with strange rows
# 4. A model was saved with tp 8 and pp 8, and is loaded with tp 4 and pp 16. Each rank saved its part of each
#    matrix as one file. From how many **files** does a rank read its part of one matrix?

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # seconds
answer_2 = ...  # rank
answer_3 = ...  # "a", "b" or "c"
answer_4 = ...  # files
### BEGIN SOLUTION
answer_1 = math.sqrt(2 * 60 * 3.1 * 3600)
answer_2 = 1
answer_3 = "a"
answer_4 = 8 // 4
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 3}
report = check("12_in_operation/questions", answer_1, answer_2, answer_3, answer_4)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/questions", answer_1, answer_2, answer_3, answer_4, cases="hidden")
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# ## 11 · Optional: mend a monitor
#
# | | |
# |---|---|
# | you will write | `step_metrics(loss_sum, tokens, seconds, group=None)` |
# | builds on | nothing |
# | time | 15 minutes |
# | difficulty, importance | 2 and 2 of 5 |
# | extra credit | 4 points, on top of the 60. You lose nothing if you skip it |
#
# A dashboard shows a loss, tokens per second, and seconds per step. For the loss, monitors often print rank
# 0's loss or the mean of the ranks' means. For the tokens per second, they multiply rank 0's rate by the
# number of ranks, or divide all tokens since the start by the time since then. For the seconds, they take
# only their own rank's seconds. These numbers look plausible, but all are wrong, because ranks can have
# different numbers of targets, and every rank waits for the slowest.
#
# **Predict.** Rank 0 has 10 targets with a mean loss of 2, and rank 1 has 30 targets with a mean loss of 4.
# What is the loss of the batch?
#
# <details><summary>Answer</summary>It is (20 + 120) / 40 = 3.5, although the mean of the means is
# 3.</details>
#
# **Build.** Your function returns the same three numbers on every rank. Two all-reduces are enough, because
# the first can add up the losses and tokens of all ranks, and the second can find the largest time.


# %% nbgrader={"grade_id": "step_metrics", "solution": true}
def step_metrics(loss_sum, tokens, seconds, group=None):
    """Return a dict of the step's "loss", "tokens_per_second" and "seconds", equal on all ranks.

    loss_sum: the sum of the losses of this rank's targets. tokens: the number of these targets,
    which can be 0. seconds: how long the step took on this rank. The loss is the mean over the
    targets of all ranks, or nan if no rank has any. The step lasts as long as its slowest rank
    needs, and "tokens_per_second" counts the tokens of all ranks of `group`.

    Call at most two collectives, to which a rank gives at most 32 bytes in total. Send numbers
    in tensors, because all_gather_object needs more bytes.
    """
    ### BEGIN SOLUTION
    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device())
    dist.all_reduce(sums, group=group)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    (total, count), longest = sums.tolist(), slowest.item()
    loss = total / count if count else math.nan
    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
    ### END SOLUTION


# %% nbgrader={"grade_id": "step_metrics_check", "points": 0}
# Extra credit, 4 points
report = check("12_in_operation/step_metrics", step_metrics)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/step_metrics", step_metrics, cases="hidden")
### END HIDDEN TESTS


# %% [markdown]
# <details><summary>In production</summary>
#
# TensorBoard and Weights & Biases draw any numbers they get, right or wrong. The course library's
# `EventWriter` writes files that TensorBoard can read, but doesn't need TensorBoard itself. MFU counts only
# the model's FLOPs, whereas HFU (hardware FLOPs utilization) also counts the FLOPs of recomputation.
#
# </details>

# %% [markdown]
# ## 12 · Optional: which rank writes what
#
# | | |
# |---|---|
# | you will write | `write_plan(held)` |
# | builds on | §5 |
# | time | 20 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | extra credit | 3 points, on top of the 60. You lose nothing if you skip it |
#
# Replicas hold the same boxes, but each box should be written only once. If rank 0 writes everything, the
# other ranks wait. So deal out the boxes, beginning with the largest. Among the ranks that hold a box, the
# rank with the fewest bytes so far gets it. If every rank holds every box, the busiest rank then writes at
# most 4/3 of the bytes it would write under the best plan (Graham 1969).
#
# **Predict.** Two ranks both hold boxes of 5, 4, 3, 3 and 3 bytes. How many bytes does the busier rank write
# by this rule, and how many under the best plan?
#
# <details><summary>Answer</summary>By this rule, rank 0 gets 5, and rank 1 gets 4 and then 3. The next 3 goes
# to rank 0 and the last 3 to rank 1, so the ranks write 8 and 10 bytes. Under the best plan, each rank writes
# 9 bytes.</details>


# %% nbgrader={"grade_id": "write_plan", "solution": true}
def write_plan(held):
    """Return, for each rank, a list of the indices in held[rank] of the pieces it writes.

    held[r]: a list with (name, box, number of bytes) of each piece rank r holds. A box is a list
    of (start, stop). Two ranks hold the same piece if its name and box are equal, and then its
    bytes are also equal. Each piece is written only once.
    """
    ### BEGIN SOLUTION
    holders = {}
    for rank, pieces in enumerate(held):
        for index, (name, box, nbytes) in enumerate(pieces):
            key = (name, tuple(map(tuple, box)))
            holders.setdefault(key, (nbytes, []))[1].append((rank, index))
    busy, plan = [0] * len(held), [[] for _ in held]
    for nbytes, places in sorted(holders.values(), key=lambda each: each[0], reverse=True):
        rank, index = min(places, key=lambda place: busy[place[0]])
        busy[rank] += nbytes
        plan[rank].append(index)
    return [sorted(indices) for indices in plan]
    ### END SOLUTION


# %% nbgrader={"grade_id": "write_plan_check", "points": 0}
# Extra credit, 3 points
report = check("12_in_operation/write_plan", write_plan)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/write_plan", write_plan, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>In production</summary>
#
# PyTorch's `dedup_save_plans` also gives each box to the least busy rank that holds it, but doesn't begin
# with the largest boxes. Graham's bound of 4/3 holds only if every rank holds every box. If each box has only
# a few holders, the busiest rank can write twice as much as under the best plan.
#
# </details>

# %% [markdown]
# ## 13 · Optional: save without stopping
#
# | | |
# |---|---|
# | you will write | `class AsyncCheckpoint` |
# | builds on | §6 |
# | time | 20 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | extra credit | 4 points, on top of the 60. You lose nothing if you skip it |
#
# Now the run stops only for a copy in memory, because a thread writes the copy while the next steps are
# computed. But four things can go wrong. If nothing is copied, the file of step 1 holds the values of step 2.
# If two writes overlap, the older one can finish last. An error in the thread can get lost, and the program
# can end while the thread is still writing.
#
# **Predict.** Suppose a save stops the run for δ = 2 s instead of 60 s. By what factor does the best interval
# fall?
#
# <details><summary>Answer</summary>It falls by a factor of 5.5, which is the square root of 30.</details>


# %% nbgrader={"grade_id": "async_checkpoint", "solution": true}
class AsyncCheckpoint:
    """Saves while the next steps run, because `save` only copies, and a thread writes the copies.

    write: the function `write(step, copies)`, which runs in the thread. At most one write runs
    at a time. If `write` raises an error, the next `save` or `wait` raises it. The next save
    reuses the memory of the copies.
    """

    def __init__(self, write):
        ### BEGIN SOLUTION
        self.write, self.copies, self.last = write, {}, None
        self.thread = ThreadPoolExecutor(1)
        ### END SOLUTION

    def save(self, step, tensors):
        """Copy the dict `tensors`, and return while the thread runs write(step, copies)."""
        ### BEGIN SOLUTION
        self.wait()  # until the thread no longer reads the copies
        for name, tensor in tensors.items():
            if name not in self.copies or self.copies[name].shape != tensor.shape:
                self.copies[name] = torch.empty_like(tensor, device="cpu")
            self.copies[name].copy_(tensor.detach())
        self.last = self.thread.submit(
            self.write, step, {name: self.copies[name] for name in tensors}
        )
        ### END SOLUTION

    def wait(self):
        """Return when the last write has ended."""
        ### BEGIN SOLUTION
        last, self.last = self.last, None
        if last is not None:
            last.result()
        ### END SOLUTION


# %% nbgrader={"grade_id": "async_checkpoint_check", "points": 0}
# Extra credit, 4 points
report = check("12_in_operation/async_checkpoint", AsyncCheckpoint)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/async_checkpoint", AsyncCheckpoint, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>In production</summary>
#
# `torch.distributed.checkpoint.async_save` saves in this way. The thread that saves must not call
# collectives, because the order of its calls and the main thread's calls could differ from rank to rank.
#
# </details>

# %% [markdown]
# ## 14 · Optional: the replica that is wrong
#
# | | |
# |---|---|
# | you will write | `odd_ranks(parameters, group=None)` |
# | builds on | nothing |
# | time | 10 minutes |
# | difficulty, importance | 2 and 2 of 5 |
# | extra credit | 2 points, on top of the 60. You lose nothing if you skip it |
#
# A chip that computes wrongly raises no error. For example, table 5 of Llama 3's report lists six
# interruptions caused by silent data corruption. But replicas that took the same steps have the same
# parameters to the last bit, so eight bytes per rank are enough to compare them. The bytes hold a checksum of
# the *bits*, for example their sum as integers. A sum of floats would not do, because it depends on the order
# of the terms, and small differences get lost in it.
#
# If more than half of the ranks have the same checksum, the other ranks are the odd ones. If two ranks
# disagree with two others, however, you know that something is wrong, but not where.
#
# **Predict.** A bit flips in one rank's gradient before the all-reduce. Which ranks does the comparison name?
#
# <details><summary>Answer</summary>It names none, because the wrong gradient is part of the average on every
# rank, so all ranks take the same wrong step.</details>


# %% nbgrader={"grade_id": "odd_ranks", "solution": true}
def odd_ranks(parameters, group=None):
    """Return a list of the ranks that disagree with the majority, the same list on all ranks.

    parameters: float32 tensors, in the same order on all ranks. Leave them unchanged. Two ranks
    agree if all bits of their parameters are equal, so -0.0 differs from 0.0, but a nan can equal
    a nan. If no more than half of the ranks agree, the list names all ranks. Ranks are numbered
    within `group`, from 0.

    A rank gives at most 8 bytes to a collective, one number in a tensor, because
    all_gather_object needs more bytes.
    """
    ### BEGIN SOLUTION
    mine = torch.zeros((), dtype=torch.int64)
    for place, parameter in enumerate(parameters):
        bits = parameter.detach().contiguous().view(torch.int32).flatten().long()
        weights = torch.arange(1, len(bits) + 1, device=bits.device) + place
        mine = mine.to(bits.device) + (bits * weights).sum()
    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sums, mine, group=group)
    values = [int(value) for value in sums]
    common = max(values, key=values.count)
    if 2 * values.count(common) <= len(values):
        return list(range(len(values)))
    return [rank for rank, value in enumerate(values) if value != common]
    ### END SOLUTION


# %% nbgrader={"grade_id": "odd_ranks_check", "points": 0}
# Extra credit, 2 points
report = check("12_in_operation/odd_ranks", odd_ranks)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/odd_ranks", odd_ranks, cases="hidden")
### END HIDDEN TESTS


# %% [markdown]
# ## 15 · Optional: talk less often
#
# | | |
# |---|---|
# | you will write | `local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None)` |
# | builds on | nothing in this notebook, but replicas (notebook 03) |
# | time | 22 minutes |
# | difficulty, importance | 3 and 1 of 5 |
# | extra credit | 3 points, on top of the 60. You lose nothing if you skip it |
#
# Suppose the ranks are in two cities, with a slow link between them. An all-reduce in every step would take
# longer than the computing of the step, so overlap can't hide it. Instead, let each rank take H steps without
# the others, with its own optimizer. Then the ranks average how far their parameters have moved, and all of
# them start again from the same parameters. This method is DiLoCo (Douillard et al. 2023).
#
# The movement, start − end, points uphill like a gradient, so it's called the *outer gradient*. A second
# optimizer, SGD with Nesterov momentum, uses it as a gradient:
#
# | | | |
# |---|---|---|
# | start | θ, the same on all ranks | |
# | H inner steps | rank r ends at θᵣ | no rank sends anything |
# | outer gradient | g = mean over r of (θ − θᵣ) | one all-reduce |
# | outer step | m ← μ m + g, then θ ← θ − η (g + μ m) | every rank computes the same step |
#
# H inner steps and their outer step form a *period*. The momentum m is zero at first and is kept from period
# to period. The state of the inner optimizer stays on its rank, and it's neither sent nor reset. Since each
# rank's movement counts the same, you minimize the mean loss over all targets only if you give the ranks
# equally large batches.
#
# **Predict.** A run has 7 steps, and H = 3. How many all-reduces does it make, and what share of data
# parallelism's bytes does it send?
#
# <details><summary>Answer</summary>It makes three all-reduces, because the last period has only one step but
# also ends with an all-reduce. Data parallelism makes seven, so the share is 3/7. With many steps, the share
# approaches 1/H.</details>
#
# **Build.** Put the trained parameters into one row, so that a period needs a single all-reduce.


# %% nbgrader={"grade_id": "local_steps", "solution": true}
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    """Train `model` in place, with an outer step after every `steps_between` steps of `optimizer`.

    model: `model(batch)` is the mean loss of a batch. The parameters of `model` are the same on
    all ranks of `group`, before and after. Only parameters with `requires_grad` travel, in one
    all-reduce per period. batches: a list with one batch per step of `optimizer`, and as many on
    every rank. If `steps_between` does not divide their number, the last period is shorter.
    """
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    start = nn.utils.parameters_to_vector(trained).detach()
    momentum = torch.zeros_like(start)
    for step, own_batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(own_batch).backward()
        optimizer.step()
        if step % steps_between == 0 or step == len(batches):
            gradient = start - nn.utils.parameters_to_vector(trained).detach()
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size(group)
            momentum = outer_momentum * momentum + gradient
            start -= outer_lr * (gradient + outer_momentum * momentum)
            nn.utils.vector_to_parameters(start.clone(), trained)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: one row</summary><code>nn.utils.parameters_to_vector(parameters)</code> makes a copy
# of the parameters in one row, and <code>nn.utils.vector_to_parameters(row, parameters)</code> writes a row
# back.</details>
# <details><summary>Hint: a start that moves along</summary>After <code>vector_to_parameters(row, ...)</code>,
# the parameters are views of the row, so the next inner step changes the row. Therefore pass a
# <code>clone()</code> of the row.</details>

# %% nbgrader={"grade_id": "local_steps_check", "points": 0}
# Extra credit, 3 points
report = check("12_in_operation/local_steps", local_steps)
### BEGIN HIDDEN TESTS
report = check("12_in_operation/local_steps", local_steps, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** The cell trains a small GPT on four nodes of one rank each, over an emulated wire with 10 ms
# per operation and 10 MB/s. The method is data parallelism if the inner optimizer is SGD, and if H = 1, η = 1
# and μ = 0.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib import launch
from course_lib.facts import gpu
from course_lib.models import next_token_loss
from course_lib.planning import Cluster, Wire

SLOW = Wire("between cities", 10e6, 10e-3)
CITIES = Cluster(4, 1, gpu("A100"), SLOW, SLOW)


class LossOf(nn.Module):
    """A model whose output is the mean loss of its batch (inputs, targets)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        inputs, targets = batch
        return next_token_loss(self.model(inputs), targets)


def seconds_of(function, steps_between, steps=20):
    """Return this rank's seconds for `steps` steps of a model with about 120,000 parameters."""
    torch.manual_seed(0)
    model = LossOf(GPT(GPTConfig(context=32, layers=2, heads=4, width=64)).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    place = {"batch_size": 8, "length": 32, "rank": dist.get_rank(), "world_size": 4}
    drawn = [batch(library_text("train"), step, **place) for step in range(steps)]
    batches = [(inputs.to(device()), targets.to(device())) for inputs, targets in drawn]
    dist.barrier()
    began = time.monotonic()
    function(model, optimizer, batches, steps_between, 1.0, 0.0)
    return time.monotonic() - began


if ready(local_steps):
    for between in (1, 5, 20):
        run = launch(seconds_of, local_steps, between, world_size=4, wires=CITIES)
        sent = sum(operation.bytes_sent for operation in run.ledger.operations(0))
        print(
            f"H = {between:2}: 20 steps in {max(run):5.2f} s, {sent / 20 / 1e6:5.3f} MB per rank and step"
        )

# %% [markdown]
# The bytes fall to exactly 1/H, and the time falls until only the computing is left. But fewer bytes and
# seconds help only if the model still learns as much. The next table shows the loss of a 0.8M-parameter GPT
# on text it wasn't trained on. Four ranks trained it for 200 steps from random weights, with AdamW as the
# inner optimizer.
#
# | | bytes, relative | loss |
# |---|---|---|
# | data parallelism | 1 | 2.43 |
# | H = 10, average (η = 1, μ = 0) | 1/10 | 2.51 |
# | H = 25, average | 1/25 | 2.55 |
# | H = 25, as published (η = 0.7, μ = 0.9) | 1/25 | 2.56 |
# | H = 10, as published | 1/10 | 2.69 |
# | four models that never talk | 0 | 2.61 to 2.66 |
#
# In 200 steps, local steps don't reach the loss of data parallelism. With H = 10, the published outer step
# doesn't even reach the loss of models that never talk. Three reasons are possible:
#
# - An outer momentum of 0.9 needs about 10 outer steps to build up. With H = 10, this is half of the run.
#   Once the momentum has built up, the outer step is 7 times the mean movement, so it overshoots if the
#   direction changes.
# - The run is short. A single period in the paper (H = 500) is longer than the whole run.
# - These figures come from one seed and one learning rate, and nothing was tuned.
#
# So don't take the table as a verdict on the method. Instead, take it as a reason to measure the loss
# whenever you send fewer bytes.
#
# <details><summary>In production</summary>
#
# The DiLoCo paper trains on eight groups of machines with H = 500 and reports nearly the same loss as
# synchronous training, for 1/500 of the messages. But the whole model still travels in one burst at the end
# of a period, so later work sends one part of the model at a time (Douillard et al. 2025, *Streaming
# DiLoCo*).
#
# </details>
#
# **Question.** Suppose the inner optimizer is AdamW, and H = 1, η = 1 and μ = 0. Is the method then data
# parallelism? (No, because each rank's AdamW divides by the size of its own gradients, and the mean of four
# such steps isn't the step AdamW takes with the mean gradient.)

# %% [markdown]
# ## What you have built
#
# You have built a state from which a run continues bit for bit, a save that survives every power failure of
# the modelled disk, a plan by which three ranks load what four have saved, and a formula for the best time
# between two saves. You have also built a breakdown that tells waiting from moving, and a test that accuses a
# rank only if it rules out chance. A rank was really killed, but the run still ended with the same loss,
# digit for digit.
#
# **Read on.**
# - Llama Team (2024), *The Llama 3 Herd of Models*: §3.3.4 lists 419 interruptions by cause.
# - Jiang et al. (2024), *MegaScale*: §5 and §6 describe slow machines and restarts.
# - Pillai et al. (2014), *All File Systems Are Not Created Equal*: the paper describes crashes between two
#   writes.
# - Young (1974), *A first order approximation to the optimum checkpoint interval*: the paper derives your
#   formula. Daly (2006) extends it to long saves.
# - Dixit et al. (2021), *Silent Data Corruptions at Scale*: the paper reports chips that compute wrongly.
# - PyTorch's pages on `torchrun`, `torch.distributed.elastic` and `torch.distributed.checkpoint`.
# - `course_lib/operation/` is a reference. Read it after you have written your own functions, and begin with
#   `disk.py`.
#
# <details><summary>In the lectures</summary>The monitor in lecture 002 reports rank 0's loss instead of the
# mean, and multiplies rank 0's samples by the number of ranks to get the samples of all ranks. §11 mends
# both. The lecture's "add or remove nodes" happens in §4, in which all ranks start again.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("12_in_operation")
