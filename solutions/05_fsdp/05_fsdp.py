# %% [markdown]
# # 05 · FSDP
#
# **How is ZeRO-3 made fast, and how do PyTorch and DeepSpeed do it?**
#
# In notebook 04, ZeRO-3 reduced the states on each rank to 16P/N bytes. But ZeRO-3 sends 3 units of traffic
# instead of 2, and a rank *waits* for every message. Sending far fewer messages would take more memory. But
# we can change the *order* of the messages.
#
# So in this notebook you write the order down as a list of actions. You simulate this list, draw it, and then
# run it on real ranks. At the end, you also record the actions of PyTorch's `fully_shard` as a list, and find
# the settings of your list that correspond to PyTorch's options.
#
# | | |
# |---|---|
# | you will build | the schedule of a step, as a list; a module that gathers weights ahead of time; collectives in two precisions; hybrid sharding; the norm of a gradient that no rank holds in full |
# | you need | reduce-scatter and all-gather (notebook 02); hooks and slow motion (notebook 03 §3); units (notebook 04 §5) |
# | time | three hours, with a break after §2. The *optional* parts take two more hours. They are §5 (with 8 of the points), §9, the end of §4, and most of §7 |
# | points | 60, and 4 of extra credit |
# | on a rented machine | You don't have to rent anything, because two cores are enough. On several GPUs, the same code runs over NCCL, and the section *On your GPUs* trains a GPT on them |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 Hide the wire behind the arithmetic | 35 | 8 | notebook 04 |
# | 2 The step as data | 40 | 10 | 1 |
# | 3 Make it real: prefetch | 50 | 16 | 2 |
# | 4 Two precisions in one step | 20, and 10 *optional* | 8 | 1 |
# | 5 Islands: hybrid sharding *(optional)* | 40 | 8 | notebooks 02, 04 |
# | 6 One norm from N shards | 15 | 4 | notebook 02 |
# | 7 In production | 5, and 40 *optional* | | 2 |
# | 8 Questions | 10 | 6 | 1 to 5 |
# | 9 Optional: gather in 8 bits | 35 | 4 extra | 4 |

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | N, P, K | the number of ranks (n in the code), the number of parameters, and the number of microbatches in a step |
# | unit | parameters that are gathered and freed together, usually a block. The *root* is the unit of all parameters outside the blocks |
# | whole | A unit is whole on a rank from the start of its gather until it is freed |
# | gather, reduction | the all-gather of a unit's weights, and the reduce-scatter of its gradients (`reduce` in the code and the pictures) |
# | reshard | to free a unit, so that each rank again holds only its shard of the unit |
# | wire | the connection between the ranks. It carries one message at a time |
# | hidden | A message is hidden if the rank computes while the message travels |
# | exposed | A message is exposed if the rank waits for it and computes nothing. *Exposed time* is the time of such waits |
# | prefetch | to gather a unit before it is needed |
#
# As in notebook 04, one *unit of traffic* is (N−1)/N · P elements. Each rank sends this number of elements in
# one all-gather or one reduce-scatter of all P parameters.

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import contextlib
import gc
import itertools
import math
import os
import tempfile
import time
import warnings
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from course_lib import check, device, launch
from course_lib.fsdp import Times, simulate, violation
from course_lib.models import GPT, GPTConfig
from course_lib.pictures.colours import BACKWARD, INK, QUIET, RANKS, picture
from course_lib.pictures.fsdp_chart import crossing, lanes, measured_lanes
from course_lib.scorecard import Row, Scorecard, costs
from course_lib.unfinished import say_once, try_it

warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 renames two collectives
Group = dist.ProcessGroup | None  # None is the group of all ranks

# %% [markdown]
# The next two cells hold the tools of this notebook, and you don't have to read them. `Network` is a
# model of eight blocks. Each block is a little wider than the block before it, so the size of a message tells
# you which block it belongs to.
#
# `slow_motion` imitates a cluster of two ranks, as notebook 03 did. The forward of a block takes 20 ms, its
# backward 40 ms, and a gather or a reduce-scatter of a block 21 ms on average. During these times, a rank
# only sleeps. Because sleeping doesn't need a core, the times are nearly the same on every machine. But the
# ranks, the tensors and the order of events are real.

# %%
WIDTH, HIDDEN, DEPTH = 128, 256, 8
FIRST = 2 * WIDTH * HIDDEN + HIDDEN + WIDTH  # parameters of block 0
MORE = 4 * (2 * WIDTH + 1)  # each block has this many more parameters than the block before
P = DEPTH * FIRST + MORE * DEPTH * (DEPTH - 1) // 2
PACE, WIRE = 0.020, 6.6e6  # seconds per forward of a block; bytes per second
MESSAGE = 4 * P / DEPTH / 2 / WIRE  # seconds per gather on two ranks, for a block of average size
SLOW = Times(forward=20, backward=40, gather=21, reduce=21)  # the same times in milliseconds
HEAD = 64  # outputs of a head
HEADED = P + HEAD * (WIDTH + 1)  # parameters of a network with such a head


class Block(nn.Module):
    """Two linear layers and a residual connection. The forward takes `pace` seconds, and the
    backward takes twice as long."""

    def __init__(self, index, pace=0.0, events=None):
        super().__init__()
        hidden = HIDDEN + 4 * index
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        self.index, self.pace, self.events = index, pace, [] if events is None else events

    def forward(self, x):
        hidden = torch.tanh(self.up(x))
        self.lasts("forward", self.pace)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.lasts("backward", 2 * self.pace))
        return x + self.down(hidden)

    def lasts(self, kind, seconds):
        began = time.perf_counter()
        time.sleep(seconds)
        self.events.append((kind, self.index, began, time.perf_counter()))


class Network(nn.Module):
    def __init__(self, seed=0, depth=DEPTH, head=0, **block):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList([Block(index, **block) for index in range(depth)])
        self.head = nn.Linear(WIDTH, head) if head else nn.Identity()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def one_by_one(body, cases, aloud):
    """Call body(*arguments) for each case on this rank, with two barriers after each call."""
    results = {}
    for name, arguments in cases.items():
        results[name] = body(*arguments)
        if aloud and dist.get_rank() == 0:
            print(f"done: {name}")
        dist.barrier()
        dist.barrier()
    return results


def several(body, cases, world_size=4, aloud=False):
    """By name of the case: all ranks' results of body(*arguments), and the operations of rank 0
    after the last barrier in `body`.

    All cases run on the same ranks, one after the other. aloud: rank 0 says when a case is done.
    """
    run = try_it(one_by_one, body, cases, aloud, world_size=world_size, timeout=300)
    parts, part = [], []
    for operation in run.ledger.operations(0) if run else ():
        if operation.op != "barrier":
            part.append(operation)
        else:
            parts.append(part)
            part = []
    counted = [part for part, after in itertools.pairwise(parts) if part and not after]
    return {
        name: ([rank[name] for rank in run], operations)
        for name, operations in zip(cases if run else (), counted, strict=True)
    }


def bytes_in(operations):
    return sum(operation.bytes_sent for operation in operations)


def said(function, *args, **kwargs):
    """The result of your function, or None if you have not written it yet."""
    with contextlib.suppress(NotImplementedError):
        return function(*args, **kwargs)


def text_of(number, form=",.0f"):
    return "?" if number is None else format(number, form)


def planned(*arguments):
    """Your list for eight units and these arguments, or None if you have not written §2 yet."""
    return said(fsdp_schedule, DEPTH, *arguments) if "fsdp_schedule" in globals() else None


def made(*arguments):
    """Your list if it is valid. Otherwise, print what is wrong and return None."""
    schedule = planned(*arguments)
    if schedule is None:
        return say_once("`fsdp_schedule` is not written yet.")
    wrong = violation(schedule, DEPTH)
    return print(wrong) if wrong else schedule


def zero3(network):
    """The reference's ZeRO-3, which waits for each message, as your module did in notebook 04."""
    from course_lib.zero import Zero3Module

    def reduce_scatter(output, input, group):
        dist.reduce_scatter_tensor(output, input, group=group)

    return Zero3Module(network, reduce_scatter=reduce_scatter)


def ahead(forward, backward, reshard=True):
    """A function that wraps a network in your module from §3."""

    def make(network):
        return PrefetchedModule(
            network,
            forward_prefetch=forward,
            backward_prefetch=backward,
            reshard_after_forward=reshard,
        )

    return make


def sharded(model, units=None, **options):
    """Apply `fully_shard` to each block (or to each of `units`), and then to the model."""
    from torch.distributed.fsdp import fully_shard

    if torch.__version__ < "2.7" and next(model.parameters()).is_cpu:
        raise RuntimeError("PyTorch 2.6 runs fully_shard only on GPUs")
    for unit in model.blocks if units is None else units:
        fully_shard(unit, **options)
    return fully_shard(model, **options)


# %%
class Arrival:
    """The handle of a message that arrives at the time `at`, and no earlier."""

    def __init__(self, work, at):
        self.work, self.at = work, at

    def wait(self, *timeout):
        self.work.wait()
        time.sleep(max(0.0, self.at - time.perf_counter()))


def record_messages(events, bandwidth=math.inf):
    """Let all gathers and reductions of this rank share one wire, and record them in `events`."""
    kinds = {"all_gather_single": "gather", "reduce_scatter_single": "reduce"}
    kinds |= {"_allgather_base": "gather", "_reduce_scatter_base": "reduce"}  # before PyTorch 2.13
    free = 0.0

    def on_the_wire(kind, real):
        def collective(group, output, input, *options):
            nonlocal free
            whole = max(output, input, key=torch.numel)
            begin = max(free, time.perf_counter())
            free = begin + (1 - 1 / group.size()) * whole.nbytes / bandwidth
            events.append((kind, round((whole.numel() - FIRST) / MORE), begin, free))
            return Arrival(real(group, output, input, *options), free)

        return collective

    groups = type(dist.group.WORLD)
    for name in kinds.keys() & set(dir(groups)):
        setattr(groups, name, on_the_wire(kinds[name], getattr(groups, name)))


def fastest_steps(makes, pace, bandwidth, steps, depth):
    """By name: (milliseconds, events) of the fastest step of each model, on this rank."""
    events, best = [], dict.fromkeys(makes, (math.inf, []))
    models = {
        name: make(Network(dist.get_rank(), depth, pace=pace, events=events))
        for name, make in makes.items()
    }
    record_messages(events, bandwidth)
    for _ in range(steps):
        for name, model in models.items():
            x = torch.randn(2, WIDTH)
            dist.barrier()
            events.clear()
            began = time.perf_counter()
            model(x).square().mean().backward()
            took = 1000 * (time.perf_counter() - began)
            placed = [(*what, 1000 * (a - began), 1000 * (b - began)) for *what, a, b in events]
            best[name] = min(best[name], (took, placed), key=lambda step: step[0])
            for param in model.parameters():
                param.grad = None
    return best


def slow_motion(makes, pace=PACE, bandwidth=WIRE, steps=4, depth=DEPTH, world_size=2):
    """By name: (milliseconds, events) of rank 0's fastest step of each model.

    makes: by name, a function that wraps a Network in a model.
    """
    arguments = makes, pace, bandwidth, steps, depth
    # gloo, because the host imitates the wire by sleeping
    run = try_it(fastest_steps, *arguments, world_size=world_size, backend="gloo")
    return run[0] if run else {}


def gather_behind_reduce(schedule):
    """The same actions, but in backward, reduce i comes before gather i - 1."""
    actions = list(schedule)
    for unit in reversed(range(DEPTH - 1)):
        last = max(place for place, action in enumerate(actions) if action == ("gather", unit))
        actions.pop(last)
        actions.insert(actions.index(("reduce", unit + 1)) + 1, ("gather", unit))
    return actions


def a_step(network, **options):
    model = PrefetchedModule(network, **options)
    model(torch.randn(2, WIDTH)).square().mean().backward()


def whole_at_once(prefetch):
    """The largest number of blocks that are whole at the same time, in a step on this rank."""
    network = Network().to(device())
    model = PrefetchedModule(network, forward_prefetch=prefetch, backward_prefetch=prefetch)
    counts = []

    def look(block, *_):
        counts.append(
            sum(each.up.weight.untyped_storage().nbytes() > 0 for each in model.module.blocks)
        )

    for block in model.module.blocks:
        block.register_forward_pre_hook(look)  # runs after your hook, which gathers
    model(torch.randn(2, WIDTH, device=device())).square().mean().backward()
    return max(counts)


def orders(makes):
    """By name: the actions of a step of each model, in the order in which the rank issued them."""
    events, actions = [], {}
    record_messages(events)
    for name, make in makes.items():
        model = make(Network(events=events))
        for _ in range(2):
            events.clear()
            model(torch.randn(2, WIDTH)).square().mean().backward()
        actions[name] = [(kind, unit) for kind, unit, *_ in events]
    return actions


def arguments_for(order):
    """The arguments of fsdp_schedule that give this order."""
    for forward, backward, reshard, last in itertools.product(
        (0, 1), (0, 1, 2), (True, False), (False, True)
    ):
        schedule = planned(forward, backward, reshard, last)
        if schedule is None:
            return "?"
        if [action for action in schedule if action[0] != "free"] == order:
            prefetches = f"forward_prefetch={forward}, backward_prefetch={backward}"
            return f"{prefetches}, reshard={reshard}, keep_last={last}"
    return "no arguments give this order"


def norms():
    """The norm of this rank's shards, the whole norm from your function and from PyTorch's, and
    the whole norm after your clipping."""
    model = sharded(Network(head=HEAD).to(device()))
    torch.manual_seed(dist.get_rank())
    model(torch.randn(4, WIDTH, device=device())).square().mean().backward()
    shards = []
    for param in model.parameters():
        shards.append(nn.Parameter(param.to_local().detach()))
        shards[-1].grad = param.grad.to_local().clone()
    own = math.sqrt(sum(float(shard.grad.square().sum()) for shard in shards))
    dist.barrier()
    yours = clip_grad_norm_(shards, 0.5)
    dist.barrier()
    theirs = nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item()
    return own, yours, theirs, clip_grad_norm_(shards, 0.5)


def one_exchange(reduce_dtype, size=1000):
    """The relative error of this rank's mean. Bytes and dtypes are in the ledger."""
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = 1 + torch.randn(n, n * size, generator=torch.Generator().manual_seed(0))
    gradients = gradients.bfloat16().to(device())  # all ranks' gradients
    exact = gradients.double().mean(0)[rank * size :][:size]
    weights = torch.empty(n * size, dtype=torch.bfloat16, device=device())
    master, mean = torch.ones(2, size, device=device())
    for _ in range(2):  # for forward and for backward
        all_gather_cast(weights, master)
    reduce_scatter_mean(mean, gradients[rank], reduce_dtype)
    return float((mean - exact).norm() / exact.norm())


def sent_for_norms(run):
    """By name: the bytes of the messages after each of the last two barriers of `norms`."""
    operations = run.ledger.operations(0)
    first, second = [k for k, each in enumerate(operations) if each.op == "barrier"][-2:]
    parts = {"yours": operations[first + 1 : second], "PyTorch's": operations[second + 1 : -1]}
    return {name: [each.nbytes for each in messages] for name, messages in parts.items()}


def beginning_of_backward(order):
    """The first seven actions of backward, as text."""
    actions = order[order.index(("forward", DEPTH - 1)) + 1 :]
    return ", ".join(f"{kind} {unit}" for kind, unit in actions[:7])


def shares(took, events):
    """The arithmetic's and the wire's shares of a step."""
    busy = {
        kinds: sum(end - begin for kind, _, begin, end in events if kind in kinds)
        for kinds in (("forward", "backward"), ("gather", "reduce"))
    }
    return [time / took for time in busy.values()]


def foretold(arguments):
    """The simulated milliseconds of your list. If `arguments` is None, the milliseconds of a step
    that hides nothing."""
    if arguments is None:
        return 3 * DEPTH * (PACE + MESSAGE) * 1000
    schedule = made(*arguments)
    return simulate(schedule, SLOW).total if schedule else None


class Skipping(Network):
    """A network in which rank 1 skips block 3."""

    def forward(self, x):
        for index, block in enumerate(self.blocks):
            if (dist.get_rank(), index) != (1, 3):
                x = block(x)
        return x


# %% [markdown]
# ## 1 · Hide the wire behind the arithmetic
#
# | | |
# |---|---|
# | you will write | `fsdp_bytes`, `hides_from` and `unit_bytes` |
# | builds on | notebook 04 |
# | time | 35 minutes |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 8 |
#
# Here is notebook 04's ZeRO-3 in slow motion. The upper row shows the arithmetic, and the lower row the wire.
# Each number is the number of a block. Where a row is white, it is idle.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
run = slow_motion({"ZeRO-3, as in notebook 04": zero3})
for name, step in run.items():
    arithmetic, wire = shares(*step)
    print(f"{name}: the arithmetic takes {arithmetic:.0%} of the step, the wire {wire:.0%}")
measured_lanes(run) if run else None

# %% [markdown]
# The two rows are never busy at the same time. Each of the eight blocks needs 20 + 40 = 60 ms of arithmetic
# and three messages of 21 ms, for which the rank waits. So the step takes 8 · 60 = 480 ms for the arithmetic
# and 24 · 21 = 504 ms for the messages, which makes 984 ms. But a GPU computes with its tensor cores, and a
# network card sends the messages. So both could work at the same time. The step would then take little more
# than the 504 ms of its messages.
#
# When does the arithmetic last long enough to hide the messages? Suppose that a unit has U parameters, and
# that each of n ranks has T tokens. While a rank computes the forward of one unit, it gathers the weights of
# the next unit.
#
# | | on the GPU | on the wire, per rank |
# |---|---|---|
# | forward of one unit | 2 U T FLOPs | (n−1)/n · U · itemsize bytes, for a gather |
# | backward of one unit | 4 U T FLOPs | a gather, and a reduce-scatter of the gradients |
#
# **Predict.** Let T be just large enough to hide the gather. How does this T depend on U?
#
# **Build.** `hides_from` returns the T at which the forward of a unit takes as long as the gather of the next
# unit. `each_way` is the bandwidth of a rank in one direction, in bytes per second, and `itemsize` is the
# size of an element in bytes.
#
# `fsdp_bytes` returns the bytes a rank sends in a whole step with K microbatches. By default, FSDP gathers
# every unit twice per microbatch and reduces its gradients once. Three other settings of `keep` send less but
# need more memory:
#
# | `keep` | in memory between microbatches | each microbatch does |
# |---|---|---|
# | `None` | shards | two gathers and a reduction |
# | `"gradients"` | shards and whole gradients | two gathers. Only the last microbatch reduces |
# | `"weights between"` | whole gradients. After a backward, the weights also stay whole until the next forward has used them | one gather, for backward. The first microbatch also gathers for forward, so there are K + 1 gathers in total. Only the last microbatch reduces |
# | `"weights"` | whole gradients, and whole weights all the time | no gather, except one in the first microbatch. Only the last microbatch reduces |
#
# With `reshard=False`, the weights stay whole between forward and backward. So in the first two rows, each
# microbatch gathers once instead of twice, and the third row becomes the same as the fourth.
#
# `unit_bytes` returns the size of a block and the size of the root, in bytes. The stub builds a model with
# one block. Its parameters have shapes but no memory, so you only have to count their elements.


# %% nbgrader={"grade_id": "predictions", "solution": true}
def fsdp_bytes(
    params: float, n: int, microbatches: int = 1, *, weights: float = 2, gradients: float = 4,
    reshard: bool = True, keep: str | None = None,
) -> float:  # fmt: skip
    """Bytes each of n ranks sends in a step of K microbatches.

    params: the number of elements in all units together.
    weights, gradients: bytes per element in a gather, and in a reduce-scatter.
    reshard: whether units are freed after forward, and gathered again for backward.
    keep: None, "gradients", "weights between" or "weights" (see the table above).
    """
    gathers = reductions = 0  # of all microbatches together
    k = microbatches
    ### BEGIN SOLUTION
    gathers = {
        None: 2 * k if reshard else k,
        "gradients": 2 * k if reshard else k,
        "weights between": k + 1 if reshard else 1,
        "weights": 1,
    }[keep]
    reductions = k if keep is None else 1
    ### END SOLUTION
    return (n - 1) / n * params * (gathers * weights + reductions * gradients)


def hides_from(n: int, flops: float, each_way: float, itemsize: float = 2) -> float:
    """Tokens per rank at which a unit's forward takes as long as the gather of the next unit.

    n: the number of ranks. flops: the FLOPs per second the GPU reaches. each_way: the bytes per
    second a rank sends. itemsize: bytes per element.
    """
    ### BEGIN SOLUTION
    return (n - 1) / n * itemsize / 2 * flops / each_way
    ### END SOLUTION


def unit_bytes(config: GPTConfig, itemsize: int = 2) -> tuple[int, int]:
    """Bytes of one block, and bytes of the root, which consists of the embeddings, the last norm,
    and the head unless it is tied."""
    with torch.device("meta"):  # shapes without memory
        model = GPT(replace(config, layers=1))
    ### BEGIN SOLUTION
    block = sum(param.numel() for param in model.blocks[0].parameters())
    root = sum(param.numel() for param in model.parameters()) - block
    ### END SOLUTION
    return itemsize * block, itemsize * root


# %% [markdown]
# <details><summary>Hint: T</summary>Set the time of the gather, which is (n−1)/n · U · itemsize / bandwidth,
# equal to the time of the forward, which is 2 U T / flops. U cancels, because it is on both sides.</details>
# <details><summary>Hint: the microbatches</summary>The last column of the table says what each microbatch
# does. Add up these gathers and reductions over the K microbatches. For example, the first two rows have 2K
# gathers, or only K with <code>reshard=False</code>.</details>
# <details><summary>Hint: the sizes</summary><code>numel()</code> counts the elements of a parameter. The
# block is <code>model.blocks[0]</code>, and all other parameters of <code>model.parameters()</code> belong to
# the root. A tied head appears only once in this list, so it is not counted twice.</details>
#
# **Check.**


# %% nbgrader={"grade_id": "predictions_check", "points": 8}
report = check("05_fsdp/predictions", fsdp_bytes, hides_from, unit_bytes)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/predictions", fsdp_bytes, hides_from, unit_bytes, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell shows your T for a block of LLaMA-7B on H100s that reach 40 % of their 989 TFLOP/s. A
# GPU sends 450 GB/s over NVLink inside its node of 8 GPUs, and 50 GB/s over InfiniBand to other nodes. The
# dotted lines mark the results of your `hides_from`.

# %% tags=["skip-in-grading"]
from course_lib.facts.hardware import gpu, link

LLAMA = GPTConfig(
    vocab_size=32000, context=2048, layers=32, heads=32, width=4096, hidden=11008, mlp="swiglu", norm="rms",
    positions="rotary", bias=False, tied=False,
)  # fmt: skip
SPEED = 0.4 * gpu("H100").flops
NVLINK, NETWORK = link("NVLink 4").each_way, link("InfiniBand NDR").each_way
LINKS = {"8 GPUs, NVLink": (8, NVLINK), "64 GPUs, network": (64, NETWORK)}


def where_they_cross():
    block, root = unit_bytes(LLAMA)
    print(f"a block takes {block / 1e6:.0f} MB, and the root {root / 1e6:.0f} MB")
    least = {name: hides_from(n, SPEED, each_way) for name, (n, each_way) in LINKS.items()}
    for name, tokens in least.items():
        print(f"{name}: the gather is hidden if a GPU has at least {tokens:,.0f} tokens")
    return crossing(block, SPEED, LINKS, least)


said(where_they_cross)

# %% [markdown]
# T does not depend on U, so a larger model hides its messages neither better nor worse. For a given GPU, T
# depends mainly on the speed of the link. Inside a node, one sequence of 1,024 tokens is enough. Between
# nodes, a GPU needs two sequences of 4,096 tokens, unless you shard only inside a node (§5). In backward, the
# arithmetic doubles, but the traffic also doubles if gradients travel in 16 bits, so T is the same. With
# float32 gradients, however, backward sends 6 bytes per parameter instead of 4, so T is 1.5 times as large.
#
# How much do the four settings of `keep` send? For K = 4 in float32, your `fsdp_bytes` counts 12 units of
# traffic with `keep=None`, but only 2 with `keep="weights"`. All four settings compute the same gradients.
# But to send less, each rank has to keep whole gradients, and in the last two rows of the table also whole
# weights. With `keep="weights"`, only the optimizer states remain sharded during a step, as in stage 1 of
# ZeRO.
#
# **Break it.** NVIDIA's data sheet says that an H100 reaches 900 GB/s over NVLink. Put this number into
# `hides_from`:


# %% tags=["skip-in-grading"]
for each_way in (900e9, 450e9):
    print(f"{each_way / 1e9:.0f} GB/s: {text_of(said(hides_from, 8, SPEED, each_way))} tokens")

# %% [markdown]
# The 900 GB/s are the sum of both directions, so `hides_from` returns only half of the tokens a GPU needs.
# With so few tokens, half of each gather stays exposed.
#
# **In production.** In the training of Llama 3 405B, 128 groups of GPUs share the 16M tokens of a step (table
# 4 of its paper). So each group has 131,072 tokens, and each of its GPUs computes a part of the model for all
# these tokens (notebook 10). But even for a very large n, your T on the InfiniBand network is only 7,912
# tokens.
#
# <details><summary>Measured on 512 GPUs</summary>Zhao et al. used PyTorch FSDP to train a GPT with 175B
# parameters on up to 512 A100s. With one sequence per GPU, they report more than 173 TFLOP/s per GPU, which
# is 55 % of the peak. With two sequences, they report more than 186 TFLOP/s, which is 60 % (§5.4).</details>
#
# <details><summary>In the lectures</summary>Lecture 001 lists NVLink with 600 GB/s for the H100, but the A100
# reaches this number, and only in both directions together. Lecture 002 lists 600 GB/s, 32 GB/s and 200 Gb/s
# next to each other. However, the first figure is the sum of both directions, the second is for one
# direction, and the third is in bits. In one direction, these links carry 300, 32 and 25 GB/s. Lecture 003
# describes FSDP as "gather the parameters of one layer only when we need to compute the output of that
# layer". Taken literally, this describes the picture at the top of this section, in which nothing is
# hidden.</details>


# %% [markdown]
# ## 2 · The step as data
#
# | | |
# |---|---|
# | you will write | `fsdp_schedule(units, forward_prefetch, backward_prefetch, reshard, keep_last)` |
# | builds on | §1 |
# | time | 40 minutes |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 10 |
#
# To run forward and backward, a program issues actions, one after the other. In this section, you write these
# actions down as a list. There are five kinds of action: `("gather", i)`, `("forward", i)`, `("free", i)`,
# `("backward", i)` and `("reduce", i)`. Two *lanes* execute the actions, each in the order of the list. The
# *compute* lane does the forwards and backwards, and the *wire* does the gathers and reductions. A free takes
# no time. A forward or a backward waits until its unit has been gathered. On this machine, the host itself
# computes, and it can't issue anything while it computes. So a gather or a reduction begins only when all
# computations listed before it have ended. On a GPU, the host runs ahead (§3). But even there, a gather has
# to wait until enough memory is free.
#
# The list doesn't say when each action happens. But `simulate` computes this from the durations of the
# actions, and in §3 you measure it on real ranks. The next cell prints the list of the step of §1, which
# gathers nothing ahead, and draws its simulation.

# %% tags=["skip-in-grading"]
from course_lib.fsdp import schedule as reference  # for the first picture; yours comes below

as_in_04 = reference.fsdp_schedule(8, forward_prefetch=0, backward_prefetch=0, keep_last=False)
print(as_in_04[:6], "...", as_in_04[-8:])
lanes(as_in_04, SLOW, "nothing ahead, in milliseconds")


# %% [markdown]
# **Predict.** Take eight units. The forward of each unit takes 20 ms, its backward 40 ms, its gather 20 ms
# and its reduction 20 ms. Consider three cases: (a) nothing is gathered ahead, (b) one unit is gathered
# ahead, (c) all units are gathered ahead. In (b) and (c), the last unit also stays whole between forward and
# backward. For each case, write down how long the step takes, and how many units are whole at the same time,
# at most.
#
# **Build.** Write the two loops of `fsdp_schedule`, one for forward and one for backward, by these rules. The
# stub defines `free`, and a `gather` that skips units which are already whole.
#
# - Forward runs through the units from the first to the last, and backward from the last to the first.
# - Before a unit computes, first gather the unit itself, and then the next p units, beginning with the
#   nearest. Here, p is `forward_prefetch` or `backward_prefetch`. The next units have higher numbers in
#   forward, and lower numbers in backward.
# - If `reshard` is true, a unit is freed after its forward. With `keep_last`, the last unit is an exception
#   and stays whole, because backward begins with it. Every unit is freed after its backward.
# - Once a unit has been freed in backward, its gradients are reduced. If backward gathers anything ahead, the
#   gather of unit i−1 comes before the reduction of unit i.


# %% nbgrader={"grade_id": "fsdp_schedule", "solution": true}
def fsdp_schedule(
    units: int,
    forward_prefetch: int = 1,
    backward_prefetch: int = 1,
    reshard: bool = True,
    keep_last: bool = True,
) -> list[tuple[str, int]]:
    """The actions of a step, in the order in which the host issues them.

    An action is ("gather", i), ("forward", i), ("free", i), ("backward", i) or ("reduce", i). Units
    are numbered from 0, in the order of forward. If `reshard` is true, at most 1 + forward_prefetch
    units are whole at the same time in forward, and at most 1 + backward_prefetch in backward.
    """
    actions: list[tuple[str, int]] = []
    whole: set[int] = set()

    def gather(ahead):
        """Gather the units of a range, except units that are already whole or don't exist."""
        for unit in ahead:
            if unit in range(units) and unit not in whole:
                whole.add(unit)
                actions.append(("gather", unit))

    def free(unit):
        whole.discard(unit)
        actions.append(("free", unit))

    ### BEGIN SOLUTION
    for unit in range(units):
        gather(range(unit, unit + forward_prefetch + 1))
        actions.append(("forward", unit))
        if reshard and not (keep_last and unit == units - 1):
            free(unit)
    for unit in reversed(range(units)):
        gather(range(unit, unit - backward_prefetch - 1, -1))
        actions.append(("backward", unit))
        free(unit)
        actions.append(("reduce", unit))
    ### END SOLUTION
    return actions


# %% [markdown]
# <details><summary>Hint: forward</summary>For unit i, call <code>gather(range(i, i + forward_prefetch +
# 1))</code>. The range begins with the unit itself. The range can extend past the last unit, because
# <code>gather</code> skips units that don't exist.</details>
# <details><summary>Hint: backward</summary>Loop over the units from the last to the first. For each unit,
# gather the unit and the next units below it, and then append its backward, free and reduce. Since unit i − 1
# is gathered before the backward of unit i, its gather automatically comes before the reduction of unit
# i.</details>
#
# **Check.** The check simulates your list with several sets of durations, and compares your step with the
# shortest possible step.


# %% nbgrader={"grade_id": "fsdp_schedule_check", "points": 10}
report = check("05_fsdp/fsdp_schedule", fsdp_schedule)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/fsdp_schedule", fsdp_schedule, cases="hidden")
### END HIDDEN TESTS
report.points(10)

# %% [markdown]
# **Measure.** The cell simulates your lists with the durations given under **Predict**, and then with those
# of slow motion. How good was your prediction?

# %% tags=["skip-in-grading"]
SETTINGS = {
    "nothing ahead": (0, 0, True, False),
    "one ahead": (1, 1, True, False),
    "one ahead, last unit kept": (1, 1, True, True),
    "two ahead, last unit kept": (2, 2, True, True),
    "all ahead": (8, 8, True, True),
    "one ahead, not resharded": (1, 1, False, True),
}
EVEN = Times(forward=20, backward=40, gather=20, reduce=20)
for name, arguments in SETTINGS.items():
    schedule = made(*arguments)
    if schedule:
        even, slow = simulate(schedule, EVEN), simulate(schedule, SLOW)
        times = f"{even.total:6.1f} ms, in slow motion {slow.total:6.1f} ms"
        print(f"{name:27} {times}; units whole: {even.most_whole}")

# %% tags=["skip-in-grading"]
one_ahead = made()
lanes(one_ahead, SLOW, "your list, one ahead, in milliseconds", until=984) if one_ahead else None

# %% [markdown]
# With the durations of slow motion, prefetch saves at most 455 of 984 ms. If one unit is gathered ahead and
# the last unit is kept, prefetch already saves 443 ms, and at most two units are whole at the same time. In
# this step, each backward takes 40 ms and cannot quite hide a reduction and a gather, which take 42 ms
# together. A second unit ahead saves the remaining 12 ms. The shortest step is still 49 ms longer than its
# arithmetic, and no list can change that. The rank has nothing to compute during the first gather and the
# last reduction, which take 42 ms together. In forward, it also waits 1 ms for each of the other seven units,
# because a gather takes 21 ms and the forward of a block only 20 ms. With the T tokens of §1, a forward would
# take as long as a gather, and this wait would disappear.
#
# **Optional.** With the sliders of the next cell, you choose a model, a number of tokens and a link. The cell
# then computes the durations as in §1. Find the numbers of tokens at which the sentence above the picture
# changes.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.fsdp_explorer import fsdp_explorer

fsdp_explorer() if one_ahead is None else fsdp_explorer(fsdp_schedule)

# %% [markdown]
# **Break it.** Take the list with one unit ahead, and move each gather of backward *behind* the next
# reduction, so that reduce i comes before gather i−1. The bytes and the gradients stay the same. How many
# milliseconds does this order cost? Write down a number first.


# %% tags=["skip-in-grading"]
if one_ahead:
    late = gather_behind_reduce(one_ahead)
    for name, schedule in (("gather first", one_ahead), ("reduce first", late)):
        print(f"{name}: {simulate(schedule, SLOW).total:.1f} ms")
lanes(late, SLOW, "reduce first, in milliseconds", until=984) if one_ahead else None

# %% [markdown]
# Nearly two thirds of the gain is gone, because the gather of the next unit queues behind a reduction that
# isn't urgent. For the same reason, an asynchronous reduce-scatter saves nothing if nothing is gathered
# ahead. The rank no longer waits for the reduce-scatter, but it waits longer for the next gather. The FSDP
# paper by Zhao et al. describes the same effect on GPUs, where all NCCL collectives wait in one queue, so the
# reduce-scatter blocks the next all-gather (§3.3.2). When the authors issued the gather first, GPT-175B
# trained 18 % faster (figure 6b).
#
# <details><summary>How many gathers are in flight</summary>The FSDP of the paper also allows at most two
# gathers in flight. Without this limit, units would arrive before PyTorch's allocator can reuse the memory of
# freed units. The limit made the training of T5-11B up to 5 times as fast, changed nothing for a second
# model, and made a third model 5 % slower (§3.4.2, §5.3).</details>
#
# <details><summary>In the lectures</summary>Lecture 001 says: "Pre-fetch parameters for layer i+1 while
# computing layer i". In backward, however, the layer to prefetch is layer i − 1.</details>


# %% [markdown]
# ## 3 · Make it real: prefetch
#
# | | |
# |---|---|
# | you will write | `PrefetchedModule(module, forward_prefetch, backward_prefetch, reshard_after_forward)` |
# | builds on | §2; notebook 04 §5 |
# | time | 50 minutes |
# | difficulty, importance | 5 and 4 of 5 |
# | points | 16 |
#
# Now you run the list on real ranks. But a training program doesn't contain such a list. The model's forward
# calls the blocks, autograd computes the gradients, and your *hooks* issue the other actions at the right
# moments. Your module works like notebook 04's `Zero3Module`, but its gathers are in flight while the rank
# computes. The units and hooks are given, and your code decides the order of the messages.
#
# `units_of(module, group)` returns `(blocks, root)`. `blocks[i]` is the list of the units of block i, and
# `root` is the list of the units of all other parameters, including parameters that two blocks share. Trained
# and frozen parameters are in separate units, so a block with both kinds has two units. A unit has this
# attribute and these methods:
#
# | | |
# |---|---|
# | `unit.shard` | this rank's part of the unit, an `nn.Parameter` |
# | `unit.start()` | allocates memory for the parameters and starts the gather, which is then in flight. If the gather has already been started, the call does nothing |
# | `unit.wait()` | returns when the weights have arrived. It starts the gather first if you haven't called `start()` |
# | `unit.free()` | frees the memory of the parameters. It raises an error if the gather is still in flight, so wait first |
# | `unit.drop()` | also frees the memory, but first waits for the gather if it is in flight |
# | `unit.reduce()` | takes the parameters' gradients (each `.grad` is None afterwards), starts their reduce-scatter, and returns a function. When you call this function later, it waits for the reduce-scatter and adds the mean to `unit.shard.grad`. For a frozen unit, nothing is sent |
#
# **Predict.** Take eight equal blocks in float32 on four ranks. One block is gathered ahead, and the last
# block is kept. How many units of traffic does a step send? A *row of gradients* is one flat tensor with all
# gradients of a block. How many such rows does a rank hold at the same time, at most?
#
# <details><summary>Answer</summary>Each block needs two gathers and one reduction, but the last block needs
# only one gather. So a step sends 3 − 1/8 = 2.875 units. A rank holds two rows, because one row travels while
# backward fills the other.</details>
#
# **Build.** First read the class from top to bottom. The hooks call `enter` before the forward of each block
# and `leave` after it. They call `before(i)` when the gradient of block i's output is ready. You complete
# `use`, `before` and `send`. The class must meet these conditions:
#
# - In forward, the gathers of all blocks up to block i + `forward_prefetch` start *before* block i computes.
#   In backward, the gathers of all blocks down to block i − `backward_prefetch` start before block i computes
#   its gradients, and therefore also before these gradients are sent.
# - If blocks are resharded, at most 1 + `forward_prefetch` blocks are whole when a block computes in forward,
#   and at most 1 + `backward_prefetch` in backward. No unit is whole after a backward, nor after a forward
#   under `torch.no_grad()`.
# - A rank waits for each reduce-scatter just before it starts the next reduce-scatter, and for the last
#   reduce-scatter at the end of backward. By the end of a step, it has waited for every message it started.
#   The root's gradients are reduced when all of them are ready.
# - All ranks must gather in the same order, so the order must not depend on the data of a rank. You can
#   assume that all ranks run all blocks in the order of `module.blocks`, and that a gradient which is missing
#   on one rank is missing on all ranks.
#
# The given lines already handle three special cases: a block is listed twice in `module.blocks`, a block
# raises an error in forward, or two forwards come before one backward.


# %%
from course_lib.fsdp import units_of


def after_backward(function):
    """Call `function()` at the end of the backward that is running now.

    Use after_backward only inside a hook that this backward runs.
    """
    torch.autograd.Variable._execution_engine.queue_callback(function)


# %% nbgrader={"grade_id": "prefetched_module", "solution": true}
class PrefetchedModule(nn.Module):
    """`module` with its parameters sharded over `group`. Units are gathered before they are needed.

    A step sends one reduction and two gathers per block, but only one gather of the last block and
    of the root. With reshard_after_forward=False, it sends only one gather of every block.
    """

    def __init__(
        self, module: nn.Module, *, forward_prefetch: int = 1, backward_prefetch: int = 1,
        reshard_after_forward: bool = True, group: Group = None,
    ):  # fmt: skip
        super().__init__()
        self.module, self.reshard = module, reshard_after_forward
        self.forward_prefetch, self.backward_prefetch = forward_prefetch, backward_prefetch
        self.blocks, self.root = units_of(module, group)  # self.blocks[i]: the units of block i
        self.units = list(dict.fromkeys(itertools.chain(*self.blocks, self.root)))
        self.finish = lambda: None  # the function that the last unit.reduce() returned
        for block in dict.fromkeys(module.blocks):  # a block that is listed twice gets one hook
            block.register_forward_pre_hook(lambda *_: self.enter())
            block.register_forward_hook(lambda _, args, output: self.leave(output))

    def forward(self, *args):
        """Run the module's forward, with the root whole."""
        self.i, self.in_backward, self.current = -1, False, []
        for unit in self.root:
            unit.wait()
        try:
            output = self.module(*args)
        except BaseException:
            self.forget()
            raise
        if output.requires_grad:
            output.register_hook(lambda gradient: self.begin())
        else:
            self.forget()
        return output

    def enter(self):
        """The forward of the next block begins."""
        self.i += 1
        self.use(self.i, 1, self.forward_prefetch)

    def begin(self):
        """Backward begins, because the gradient of the module's output is ready."""
        if not self.in_backward:  # one backward can follow two forwards
            self.in_backward = True
            after_backward(self.end)
            for unit in self.root:
                unit.wait()

    def use(self, i, direction, prefetch):
        """Start the gathers of block i and of the next `prefetch` blocks in this direction (1 for
        higher numbers, -1 for lower numbers), if these blocks exist. Then wait for block i."""
        ### BEGIN SOLUTION
        for k in range(i, i + direction * (prefetch + 1), direction):
            for unit in self.blocks[k] if 0 <= k < len(self.blocks) else ():
                unit.start()
        ### END SOLUTION
        for unit in self.blocks[i]:
            unit.wait()

    def leave(self, output):
        """The forward of block self.i is over, so free the block or keep it. If a backward will
        follow, register a hook that calls `self.before(i)` when this output's gradient is ready."""
        i = self.i  # a copy, because self.i will have changed when the hook is called
        kept = not self.reshard or i == len(self.blocks) - 1
        if not (kept and output.requires_grad):
            for unit in self.blocks[i]:
                unit.free()
        if output.requires_grad:
            output.register_hook(lambda gradient: self.before(i))

    def before(self, i):
        """The backward of block i comes next, so all gradients of the block above are ready. The
        units of the block above are in `self.current`, and you can send them now."""
        ### BEGIN SOLUTION
        self.send(self.current)
        self.use(i, -1, self.backward_prefetch)
        ### END SOLUTION
        self.current = self.blocks[i]

    def send(self, units):
        """Backward has finished with these units, so free them and start their reductions."""
        for unit in units:
            unit.free()
            ### BEGIN SOLUTION
            if unit.shard.requires_grad:
                self.finish()  # wait for the previous reduction
                self.finish = unit.reduce()
            ### END SOLUTION

    def end(self):
        """Backward is over, so all gradients are ready, including the gradients of the root."""
        self.send(self.current)
        self.send(self.root)
        self.finish()
        self.forget()

    def forget(self):
        """Free every unit, including one whose gather is in flight."""
        self.current, self.finish = [], lambda: None
        for unit in self.units:
            unit.drop()

    def parameters(self, recurse: bool = True):
        """This rank's flat shards."""
        return iter([unit.shard for unit in self.units])


# %% [markdown]
# <details><summary>Hint: begin without overlap</summary>First let <code>use</code> only call
# <code>wait()</code> for the units of block i, as its given lines do, and let <code>send</code> call
# <code>unit.reduce()()</code>, which waits immediately. Once <code>before</code> calls <code>send</code> and
# <code>use</code>, your module does the same as the module of notebook 04, and passes those lines of the
# check that compare values. Then add <code>start()</code> for the units ahead, and finally leave one
# reduction in flight.</details>
# <details><summary>Hint: ahead</summary>Call <code>start()</code> for the units of block i and of the next
# <code>prefetch</code> blocks, which have higher numbers in forward and lower numbers in backward. Skip
# numbers below 0 and above the last block. The given lines then call <code>wait()</code> for the units of
# block i.</details>
# <details><summary>Hint: one reduction in flight</summary>Keep the function that <code>unit.reduce()</code>
# returns. Call this function before the next <code>reduce()</code>, or after backward if no other reduction
# follows.</details>
#
# **Check.** The check takes up to a minute, or longer if ranks hang.

# %% nbgrader={"grade_id": "prefetched_module_check", "points": 16}
report = check("05_fsdp/prefetched_module", PrefetchedModule)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/prefetched_module", PrefetchedModule, cases="hidden")
### END HIDDEN TESTS
report.points(16)

# %% [markdown]
# **Measure.** The cell runs your module in slow motion and compares its times with the simulated times of
# your lists. Does the program do what the list says?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
REAL = {  # name: (function that wraps a network, arguments of fsdp_schedule)
    "ZeRO-3 (04), waits for every message": (zero3, None),
    "yours, nothing ahead": (ahead(0, 0), (0, 0, True, True)),
    "yours, one ahead": (ahead(1, 1), (1, 1, True, True)),
    "yours, two ahead": (ahead(2, 2), (2, 2, True, True)),
    "yours, not resharded": (ahead(1, 1, False), (1, 1, False, True)),
}


measured = slow_motion({name: make for name, (make, _) in REAL.items()})
whole = measured["ZeRO-3 (04), waits for every message"][0] if measured else 1
for name, (took, _) in measured.items():
    expected = foretold(REAL[name][1])
    ratio = text_of(expected and took / expected, ".2f")
    print(f"{name:37} {took / whole:5.0%} of ZeRO-3's time, {ratio} of the simulated time")

# %% tags=["nbval-ignore-output", "skip-in-grading"]
shown = [name for name in measured if "waits" in name or "one ahead" in name]
measured_lanes({name: measured[name] for name in shown}) if shown else None


# %% [markdown]
# The measured picture looks like the picture of the list in §2. The measured times are up to 15 % longer than
# the simulated times, because the ranks also copy tensors and run hooks, and the machine might be busy. With
# nothing gathered ahead, your module is almost as slow as notebook 04's module, so nearly the whole gain
# comes from the order.
#
# **Break it**, in three ways. What do you expect in each case?
#
# 1. All units are gathered ahead. How many blocks are whole at the same time on a rank, at most?
# 2. Rank 1 skips block 3. This can happen in a model that drops layers at random, or in a mixture of experts
#    (notebook 11).
# 3. Rank 1 does not reshard, but rank 0 does.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def skips():
    a_step(Skipping())


def disagrees():
    a_step(Network(), reshard_after_forward=dist.get_rank() == 0)


for prefetch in (1, DEPTH):
    run = try_it(whole_at_once, prefetch, world_size=2)
    if run:
        print(f"prefetch {prefetch}: {run[0]} blocks whole at the same time")
for body in (skips, disagrees):
    print(f"--- {body.__name__}")
    try_it(body, world_size=2, backend="gloo")  # the sentence is the same on GPUs

# %% [markdown]
# <details><summary>After you have run it</summary>In case 1, all eight blocks are whole, as in plain data
# parallelism. In cases 2 and 3, the ranks call their collectives in different orders, so one rank gathers a
# unit while the other rank gathers a different unit or reduces gradients. The course's ledger compares each
# collective with the collectives of the other ranks, and raises an error that names the two collectives which
# don't match. Without a ledger, the ranks might hang. Or, if two blocks have the same size, the gather of one
# block might be matched with the gather of the other block. A rank would then compute with the weights of the
# wrong block, and no error would be raised. Collectives have no names, so they are matched only by their
# order. This is why <i>all ranks must call the same collectives in the same order</i>.</details>
#
# **In production.** A GPU works through several queues, called *streams*, at the same time. FSDP2 gathers on
# one stream, reduces on a second and computes on a third, and *events* make one stream wait for another. On a
# GPU, `unit.wait()` makes only the compute stream wait, and the host goes on. So while one block computes,
# the host already starts the gather of the next block, even without a prefetch setting.
#
# <details><summary>Memory that two streams use</summary>When one stream frees a tensor, another stream might
# still be reading it. FSDP1 told the allocator about the second stream (<code>record_stream</code>), and the
# allocator then kept the memory for an unpredictable time. FSDP2 instead keeps the tensor until an event
# shows that the other stream has finished with it.</details>
#
# <details><summary>In the lectures</summary>Lecture 001 names <code>overlap_comm=true</code> for DeepSpeed
# and <code>forward_prefetch=True</code> for FSDP as the switches for overlap. But PyTorch overlaps without a
# switch, because backward prefetch is on by default, and in forward the host runs ahead of the GPU
# anyway.</details>

# %% [markdown]
# ## 4 · Two precisions in one step
#
# | | |
# |---|---|
# | you will write | `all_gather_cast(output, shard)` and `reduce_scatter_mean(output, grads, reduce_dtype)` |
# | builds on | §1; notebook 02 §2, §3 |
# | time | 20 minutes; the *optional* end takes 10 |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 8 |
#
# The optimizer adds small steps to the *master* weights, which are in float32. But tensor cores multiply in
# 16 bits. So a training step needs both precisions, and a rank casts tensors before it sends them:
#
# | | cast | on the wire |
# |---|---|---|
# | forward, backward | Cast the shard of the master weights to bfloat16, *then* all-gather it | 2 bytes per element |
# | backward | Cast the row of bfloat16 gradients to float32, *then* reduce-scatter it. The mean arrives in float32 | 4 bytes per element |
#
# The first cast halves the size of a message, but the second cast doubles it. Is the second cast worth its
# price? A number in bfloat16 has only 8 significant bits. So once a sum has grown large, every term below
# 1/512 of the sum is lost. Some terms between 1/512 and 1/256 of the sum are also lost:

# %% tags=["skip-in-grading"]
total = torch.zeros((), dtype=torch.bfloat16)
for count in range(1, 513):
    total += torch.ones((), dtype=torch.bfloat16)
    if count in (128, 256, 257, 512):
        print(f"the sum of {count} ones in bfloat16: {total.item():.0f}")

# %% [markdown]
# A ring adds the gradients of N ranks one after the other, just like the loop above. If the gradients of 512
# ranks vary around 1, however, some of the rounding errors cancel. The sum is then off by 2 % with a ring in
# bfloat16, and by only 0.01 % with a ring in float32. (The optional end of this section measures both
# errors.)
#
# **Predict.** In a step of one microbatch, how many bytes does a rank send per parameter, apart from the
# factor (N−1)/N? Give the number if (a) everything is in float32, (b) weights are in bfloat16 and gradients
# in float32, or (c) everything is in bfloat16.
#
# <details><summary>Answer</summary>A rank sends (a) 4 + 4 + 4 = 12, (b) 2 + 2 + 4 = 8, and (c) 2 + 2 + 2 = 6
# bytes per parameter. Your <code>fsdp_bytes</code> gives the same results.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "two_precisions", "solution": true}
def all_gather_cast(output: torch.Tensor, shard: torch.Tensor, group: Group = None) -> None:
    """Write all ranks' shards into `output`. The shards travel in the dtype of `output`.

    shard: s elements in float32, the same s on every rank, not modified. output: N s elements of
    any floating dtype, overwritten. Sends (N-1) s elements of output's dtype, in one all-gather.
    """
    ### BEGIN SOLUTION
    dist.all_gather_into_tensor(
        output.view(-1), shard.detach().to(output.dtype).view(-1), group=group
    )
    ### END SOLUTION


def reduce_scatter_mean(
    output: torch.Tensor,
    grads: torch.Tensor,
    reduce_dtype: torch.dtype = torch.float32,
    group: Group = None,
) -> None:
    """Write this rank's part of the mean of all ranks' `grads` into `output`.

    grads: N s elements of any floating dtype, not modified. output: s elements in float32, or
    TypeError, because 16 bits would round the mean again. Gradients travel and are added in
    `reduce_dtype`. Sends (N-1) s elements of this dtype, in one reduce-scatter.
    """
    if output.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"output is {output.dtype}, but the optimizer needs the mean in torch.float32"
        )
    total = torch.empty(output.shape, dtype=reduce_dtype, device=output.device)
    ### BEGIN SOLUTION
    dist.reduce_scatter_tensor(
        total.view(-1), grads.detach().to(reduce_dtype).view(-1), group=group
    )
    output.copy_(total).div_(dist.get_world_size(group))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: one cast each</summary><code>shard.to(output.dtype)</code> makes a new tensor, so
# the master weights keep all of their bits. Cast the gradients to <code>reduce_dtype</code>, reduce-scatter
# them into <code>total</code>, and then copy <code>total</code> into <code>output</code>.</details>
# <details><summary>Hint: when to divide</summary>Divide last, in the dtype of <code>output</code>. If you
# divide 16-bit gradients before the sum, each of them is rounded once more, and in float16, small gradients
# even become zero.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "two_precisions_check", "points": 8}
report = check("05_fsdp/two_precisions", all_gather_cast, reduce_scatter_mean)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/two_precisions", all_gather_cast, reduce_scatter_mean, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell runs your two functions on four ranks, as a step would call them, and compares your
# mean with a mean computed in float64. The bytes per parameter are again given without the factor (N−1)/N.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
for reduce_dtype in (torch.float32, torch.bfloat16):
    run = try_it(one_exchange, reduce_dtype)
    if run:
        operations = run.ledger.operations(0)
        kinds = ", ".join(f"{each.op} in {each.dtype}" for each in operations)
        print(
            f"{bytes_in(operations) / 3000:.0f} bytes per parameter ({kinds}), error {max(run):.1e}"
        )

# %% [markdown]
# (The error in float32 is exactly 0 here. The four gradients have only 8 significant bits and are of similar
# size, so their sum fits into the 24 bits of a float32.)
#
# **Break it.** Why does the optimizer need master weights in float32? The cell starts with a weight of 1 and
# subtracts 1e-4 a hundred times, first in float32 and then in bfloat16.

# %% tags=["skip-in-grading"]
for dtype in (torch.float32, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(100):
        weight -= 1e-4
    print(f"{dtype}: {weight.item():.4f}")

# %% [markdown]
# In bfloat16, the next number above 1 is 1/128 away, and the next number below 1 is 1/256 away. A step of
# 1e-4 is less than half of either distance, so each result is rounded back to 1 (notebook 09).
#
# **In production.** `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)` does the
# same as your two functions. Without `reduce_dtype`, the reduction takes place in `param_dtype`.
#
# <details><summary>In the lectures</summary>Lecture 001 uses <code>MixedPrecision(param_dtype=torch.float16,
# reduce_dtype=torch.float32, buffer_dtype=torch.float16)</code> without a loss scaler. But small gradients
# become zero in float16, so either use <code>ShardedGradScaler</code> or train in bfloat16. The option
# <code>buffer_dtype</code> exists only in FSDP1. FSDP2's <code>MixedPrecisionPolicy</code> takes
# <code>output_dtype</code> instead. Lecture 002 passes
# <code>mixed_precision=True</code> to FSDP1, which expects a <code>MixedPrecision</code> object.</details>
#
# ### Optional: sums in 16 bits, and PyTorch's policy
#
# The next cell draws gradients from a normal distribution around 1 and adds them up in three ways. The error
# is the norm of the deviation from the exact sum, divided by the norm of the exact sum.


# %% tags=["skip-in-grading"]
def ring_sum(terms):
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def tree_sum(terms):
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


WAYS = {
    "16 bits, ring": (torch.bfloat16, ring_sum, "-"),
    "16 bits, tree": (torch.bfloat16, tree_sum, "--"),
    "16-bit gradients, float32 sum": (torch.float32, ring_sum, ":"),
}
counts, generator = (8, 16, 32, 64, 128, 256, 512), torch.Generator().manual_seed(0)
figure = picture(6.5, 2.6)
axes = figure.subplots()
for (name, (dtype, add, style)), colour in zip(WAYS.items(), RANKS, strict=False):
    errors = []
    for n in counts:
        terms = torch.randn(n, 2000, generator=generator, dtype=torch.float64) + 1
        exact = terms.sum(0)
        total = add([term.bfloat16().to(dtype) for term in terms]).double()
        errors.append(float((total - exact).norm() / exact.norm()))
    axes.plot(
        counts, [100 * error for error in errors], style, color=colour, label=name, marker="o", ms=4
    )
    print(f"{name:30} {counts[0]} ranks: {errors[0]:.2%}, {counts[-1]} ranks: {errors[-1]:.2%}")
axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="error, per cent", ylim=(0.006, 20))
axes.set_xticks(counts, counts)
axes.minorticks_off()
axes.legend(frameon=False, fontsize=8)
figure

# %% [markdown]
# In a ring, the error grows with the number of ranks. In a tree, the error hardly grows, because a tree adds
# numbers of similar size. But normally, the communication library chooses between a ring and a tree. If the
# sum is in float32, each gradient is rounded only once, to 16 bits, and these rounding errors average out.
#
# The next cell runs a step of `fully_shard` without a policy and with two policies. In which dtypes do the
# ranks send tensors, and in which dtypes do they keep shards and gradients between steps?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def by_policy(*dtypes):
    """The dtypes of a shard and its gradient after two steps of `fully_shard` with this policy.

    The messages are counted only in the second step.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = sharded(Network().to(device()), mp_policy=MixedPrecisionPolicy(*dtypes))
    for _ in range(2):
        dist.barrier()
        model(torch.randn(2, WIDTH, device=device())).square().mean().backward()
    weight = model.blocks[0].up.weight
    return str(weight.dtype).removeprefix("torch."), str(weight.grad.dtype).removeprefix("torch.")


HALF, FULL = torch.bfloat16, torch.float32
POLICIES = {"(None, None)": (), "(bfloat16, float32)": (HALF, FULL), "(bfloat16, None)": (HALF,)}
for name, (ranks, operations) in several(by_policy, POLICIES).items():
    kinds = ", ".join(
        f"{op} {dtype}" for op, dtype in {each.op: each.dtype for each in operations}.items()
    )
    print(f"{name:20} {bytes_in(operations) / (3 / 4 * P):5.2f} bytes per parameter: {kinds}")
    print(f"{'':20} between steps: shards {ranks[0][0]}, gradients {ranks[0][1]}")

# %% [markdown]
# ## 5 · Islands: hybrid sharding *(optional)*
#
# | | |
# |---|---|
# | you will write | `hybrid_groups(world_size, shard)` and `hybrid_reduce(output, grads, shard_group, replica_group)` |
# | builds on | notebook 02 §2, §4; notebook 04 §1 |
# | time | 40 minutes |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 8 |
#
# With full sharding over N = 512 ranks, each all-gather crosses the whole cluster. But if 16P/8 bytes fit
# into a GPU, it is enough to shard over 8 ranks. *Hybrid sharding* divides the ranks into islands of g ranks,
# such as the 8 GPUs of a node. Each island holds one copy of the model, and ranks at the same position in
# different islands hold the same shard.
#
#     N = 8, g = 4     shard groups     [0 1 2 3] [4 5 6 7]             neighbours share a model
#                      replica groups   [0 4] [1 5] [2 6] [3 7]         replicas hold the same shard
#
# | | among | elements each rank sends |
# |---|---|---|
# | all-gather for forward, and for backward | the g ranks of an island | 2 (g−1)/g · P |
# | reduce-scatter | the g ranks of an island | (g−1)/g · P |
# | all-reduce of the shard's gradient | the r = N/g replicas of the shard | 2 (r−1)/r · P/g |
#
# Only the messages of the last row leave an island, and they are small, because they carry only 1/g of the
# gradient.
#
# **Predict.** Take two nodes of 4 GPUs, and compare (a) full sharding, in a ring of all 8 ranks, with (b)
# islands of 4. In each case, how much data leaves node 0 in a step, as a multiple of P? And how many of the
# 16 bytes per parameter does a rank keep?
#
# <details><summary>Answer</summary>(a) In the ring, only one rank of node 0 sends to the other node. It sends
# 7/8 P in each of the three collectives, which makes 3 · 7/8 P = 2.625 P. (b) Each of node 0's four ranks
# sends 2 · 1/2 · P/4 to its replica, which is 1.0 P in total. With full sharding, a rank keeps 16/8 = 2 bytes
# per parameter, and with islands 16/4 = 4 bytes. With two nodes of 8 GPUs, 2.81 P leaves node 0 with full
# sharding, but still only 1.0 P with islands of 8.</details>
#
# **Build.** To compute the mean over all N ranks, `hybrid_reduce` first calls a reduce-scatter and then an
# all-reduce.


# %% nbgrader={"grade_id": "hybrid", "solution": true}
def hybrid_groups(world_size: int, shard: int) -> tuple[list[list[int]], list[list[int]]]:
    """(shard_groups, replica_groups), as lists of lists of ranks. Each `shard` neighbouring ranks
    share a copy of the model, and ranks at the same position in their islands hold the same shard.

    Groups and their ranks are in ascending order. ValueError if `shard` does not divide
    `world_size`.
    """
    ### BEGIN SOLUTION
    if shard < 1 or world_size < 1 or world_size % shard:
        raise ValueError(
            f"shard={shard} must divide world_size={world_size}, because all islands have the same size"
        )
    ranks = list(range(world_size))
    islands = [ranks[first : first + shard] for first in range(0, world_size, shard)]
    return islands, [ranks[place::shard] for place in range(shard)]
    ### END SOLUTION


def hybrid_reduce(
    output: torch.Tensor, grads: torch.Tensor, shard_group: Group, replica_group: Group
) -> None:
    """Write this rank's part of the mean over all N ranks of `grads` into `output`.

    grads: g s elements, not modified. output: s elements of the same dtype, overwritten, and equal
    on all replicas. Sends (g-1) s elements inside the island, then 2 (r-1)/r s to the replicas.
    """
    ### BEGIN SOLUTION
    dist.reduce_scatter_tensor(output, grads, group=shard_group)
    dist.all_reduce(output, group=replica_group)
    output /= dist.get_world_size(shard_group) * dist.get_world_size(replica_group)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: slices</summary>The shard groups are slices of <code>list(range(world_size))</code>,
# each of length <code>shard</code>. A slice with a step, <code>ranks[place::shard]</code>, gives one replica
# group.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "hybrid_check", "points": 8}
report = check("05_fsdp/hybrid", hybrid_groups, hybrid_reduce)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/hybrid", hybrid_groups, hybrid_reduce, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell draws how much each of eight ranks sends to each other rank in a step, as a multiple
# of P. The frames mark the two nodes of four ranks. Compare the total above each picture with your
# prediction.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def made_group(groups):
    """This rank's group among `groups`. All ranks make all groups, in the same order."""
    made = [dist.new_group(ranks) for ranks in groups]
    return next(
        group for group, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks
    )


def messages_of_a_step(islands, replicas, size=800):
    """Two gathers and one reduction of `size` elements."""
    shard_group, replica_group = made_group(islands), made_group(replicas)
    row = torch.ones(size, device=device())
    shard = torch.ones(size // dist.get_world_size(shard_group), device=device())
    for _ in range(2):
        dist.all_gather_into_tensor(row, shard, group=shard_group)
    hybrid_reduce(shard, row, shard_group, replica_group)


def matrices(plans, size=800, nodes=2):
    """Draw the traffic between ranks for each plan, and how much of it leaves node 0."""
    runs = {
        name: try_it(messages_of_a_step, *groups, world_size=8) for name, groups in plans.items()
    }
    if not all(runs.values()):
        return None
    figure = picture(9.0, 3.0)
    for axes, (name, run) in zip(figure.subplots(1, len(plans)), runs.items(), strict=True):
        matrix = run.ledger.matrix() / (4 * size)
        ranks, per_node = len(matrix), len(matrix) // nodes
        axes.imshow(matrix, cmap="Greys", vmin=0, vmax=4)
        for row, column in itertools.product(range(ranks), repeat=2):
            if matrix[row, column]:
                dark = "white" if matrix[row, column] > 2 else INK
                number = f"{matrix[row, column]:.3g}"
                axes.text(column, row, number, ha="center", va="center", fontsize=6, color=dark)
        for node in range(nodes):
            corner = node * per_node - 0.5
            axes.plot(
                [corner + side * per_node for side in (0, 1, 1, 0, 0)],
                [corner + side * per_node for side in (0, 0, 1, 1, 0)],
                color=BACKWARD, linewidth=2,
            )  # fmt: skip
        leaves = matrix[:per_node, per_node:].sum()
        axes.set_title(f"{name}:\n{leaves:.3g} P leaves node 0", fontsize=9, loc="left")
        axes.set_xlabel("receiving rank", fontsize=8)
        axes.set_ylabel("sending rank", fontsize=8)
        axes.set_xticks(range(ranks))
        axes.set_yticks(range(ranks))
        axes.tick_params(labelsize=7)
    figure.subplots_adjust(wspace=0.3)
    return figure


def plans():
    islands, replicas = hybrid_groups(8, 4)
    full, alone = hybrid_groups(8, 8)
    pairs, quarters = hybrid_groups(8, 2)
    return {
        "full sharding": (full, alone),
        "islands of 4": (islands, replicas),
        "islands of 2": (pairs, quarters),
    }


written = said(plans)
matrices(written) if written else None

# %% [markdown]
# With islands of 2, as much as 1.5 P leaves node 0. Four replicas all-reduce half of the gradient in a ring.
# There are two such rings, and each carries 2 · 3/4 · P/2 out of node 0. So an island should be as large as a
# node.
#
# **Break it.** Let neighbouring ranks be replicas of each other, so that ranks 0, 2, 4 and 6 form one island,
# and ranks 1, 3, 5 and 7 form the other island. All values stay correct. But how much data leaves node 0 now?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
interleaved = ([[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]])
matrices(
    {"islands of 4": written["islands of 4"], "every other rank": interleaved}
) if written else None

# %% [markdown]
# The ring of each island now crosses the border between the nodes and carries 3 · 3/4 P out of node 0, which
# is 4.5 P for both rings together instead of 1.0 P. The fast links inside a node now connect only replicas,
# which send each other little data.
#
# **In production.** For hybrid sharding, give `fully_shard` a two-dimensional mesh. It replicates along the
# first dimension and shards along the second. In the output of the next cell, *keeps* counts only the float32
# weights of a rank.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def with_mesh(shape=None, reshard=True):
    """Bytes of weights per parameter a rank keeps, after two steps of `fully_shard` on this mesh.

    The messages are counted only in the second step.
    """
    from torch.distributed.device_mesh import init_device_mesh

    options = {"reshard_after_forward": reshard}
    if shape:
        names = ("replicate", "shard")
        options["mesh"] = init_device_mesh(device().type, shape, mesh_dim_names=names)
    model = sharded(Network().to(device()), **options)
    for _ in range(2):
        dist.barrier()
        model(torch.randn(2, WIDTH, device=device())).square().mean().backward()
    return sum(param.to_local().nbytes for param in model.parameters()) / P


MESHES = {
    "full sharding": (),
    "2 islands of 2": ((2, 2),),
    "4 islands of 1": ((4, 1),),
    "reshard_after_forward=2": (None, 2),
}
for name, (ranks, operations) in several(with_mesh, MESHES).items():
    groups = {}
    for each in operations:
        key = f"{each.op} over {len(each.group)} ranks"
        groups[key] = groups.get(key, 0) + each.bytes_sent / (4 * P)
    kinds = ", ".join(f"{key} {share:.2f} P" for key, share in groups.items())
    total = bytes_in(operations) / (4 * P)
    print(f"{name:24} keeps {ranks[0]:.0f} bytes per parameter, sends {total:.2f} P: {kinds}")

# %% [markdown]
# The last line of the output shows another way to use islands. With `reshard_after_forward=2`, the weights
# are sharded over all four ranks, but between forward and backward each rank holds half of every unit. So the
# gather for backward needs only two neighbouring ranks. DeepSpeed's ZeRO++ offers the same idea under the
# name hpZ (`zero_hpz_partition_size`), and DeepSpeed's MiCS offers islands (`mics_shard_size`).

# %% [markdown]
# ## 6 · One norm from N shards
#
# | | |
# |---|---|
# | you will write | `clip_grad_norm_(shards, max_norm, group=None, replica_group=None)` |
# | builds on | notebook 02 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 4 |
#
# In the training of large models, gradients are clipped. If the norm of the whole gradient exceeds
# `max_norm`, the whole gradient is scaled down until its norm is `max_norm`. With FSDP, no rank holds the
# whole gradient. But the square of the norm is a sum over all elements, and each element is on exactly one
# rank.
#
# **Predict.** Take a 70B model on 512 ranks. How many bytes must a rank send for the norm? And how many if
# the model is sharded in islands of 8?
#
# <details><summary>Answer</summary>The ranks all-reduce one number in float32, so each rank sends 2 · 511/512
# · 4 bytes, which is almost 8 bytes. With islands, only the 8 ranks of one island add up their squares, so
# each rank sends 2 · 7/8 · 4 = 7 bytes. The other islands hold the same shards. If you also added their
# squares, the norm would be √r times too large with r islands.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "clip_grad_norm", "solution": true}
@torch.no_grad()
def clip_grad_norm_(
    shards, max_norm: float, group: Group = None, replica_group: Group = None
) -> float:
    """Scale all gradients by min(1, max_norm / norm), where norm is the norm of the whole gradient.

    shards: this rank's tensors. Their gradients in `.grad` have any floating dtype and are scaled
    in place. A `.grad` that is None counts as zeros. group: the ranks that hold the other shards.
    replica_group: ranks that hold the same shards as this rank, which must not count twice. Returns
    the norm before scaling, computed in float32, which is the same on all ranks. Sends one
    all-reduce of 4 bytes.
    """
    shards = list(shards)
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    squares = torch.zeros((), device=shards[0].device)
    ### BEGIN SOLUTION
    for gradient in gradients:
        squares += gradient.float().square().sum()
    dist.all_reduce(squares, group=group)
    norm = float(squares.sqrt())
    ### END SOLUTION
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm


# %% [markdown]
# <details><summary>Hint</summary>Add the squares of all elements on the rank to <code>squares</code>, in
# float32, then all-reduce this sum and take its square root. A rank without gradients must also call the
# all-reduce. You don't have to send anything to the ranks of <code>replica_group</code>.</details>
#
# **Check.**


# %% nbgrader={"grade_id": "clip_grad_norm_check", "points": 4}
report = check("05_fsdp/clip_grad_norm", clip_grad_norm_)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/clip_grad_norm", clip_grad_norm_, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# **Measure, and break it.** The cell clips the gradients of `fully_shard` on four ranks to a norm of 0.5, and
# also prints the norm of each rank's own shards. If each rank used only its own norm, by which factors would
# the ranks scale their gradients?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
run = try_it(norms)
if run:
    own, (_, yours, theirs, after) = [rank[0] for rank in run], run[0]
    print("norms of the ranks' own shards:", ", ".join(f"{norm:.3f}" for norm in own))
    print("factors from these norms:      ", ", ".join(f"{0.5 / norm:.3f}" for norm in own))
    print(f"all ranks should scale by {0.5 / yours:.3f}")
    root = math.sqrt(sum(norm**2 for norm in own))
    print(f"whole norm from these norms: {root:.3f}, yours: {yours:.3f}, PyTorch's: {theirs:.3f}")
    print(f"after clipping to 0.5: {after:.3f}")
    for name, sizes in sent_for_norms(run).items():
        print(f"{name}: all-reduces of", ", ".join(f"{size} bytes" for size in sizes))

# %% [markdown]
# The four shards of *one* weight would be scaled by four different factors, each about twice as large as the
# correct factor. So the step would point in a different direction, and no error would be raised.
#
# **In production.** `nn.utils.clip_grad_norm_` supports the sharded tensors of FSDP2 and computes the same
# norm. It all-reduces one number per parameter tensor instead of one number in total, but still in a single
# message.

# %% [markdown]
# ## 7 · In production
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §2 for the first part, §1 to §6 for the other parts |
# | time | 5 minutes; the other parts take 40 minutes and are *optional* |
#
# ### The list inside `fully_shard`
#
# PyTorch's FSDP issues its actions from hooks, as your module does. The next cell calls `fully_shard` on each
# block and then on the model, with five sets of options. For each set, the cell records the order of the
# actions in a step, and searches for arguments with which your `fsdp_schedule` gives the same order.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def as_it_comes(model):
    return sharded(model)


def not_resharded(model):
    return sharded(model, reshard_after_forward=False)


def last_kept(model):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.blocks[-1], reshard_after_forward=False)
    return sharded(model, model.blocks[:-1])


def forward_ahead(model):
    model = sharded(model)
    for block, following in itertools.pairwise(model.blocks):
        block.set_modules_to_forward_prefetch([following])
    return model


def backward_two_ahead(model):
    model = sharded(model)
    for k, block in enumerate(model.blocks):
        before = list(reversed(model.blocks))[DEPTH - k : DEPTH - k + 2]
        block.set_modules_to_backward_prefetch(before)
    return model


OPTIONS = {
    "as it comes": as_it_comes,
    "reshard_after_forward=False": not_resharded,
    "the same, only for the last block": last_kept,
    "set_modules_to_forward_prefetch, one": forward_ahead,
    "set_modules_to_backward_prefetch, two": backward_two_ahead,
}
# gloo, because the methods of its groups can be replaced
run = try_it(orders, OPTIONS, world_size=2, backend="gloo")
for name, order in run[0].items() if run else ():
    if name == "as it comes":
        print(f"backward begins: {beginning_of_backward(order)} ...")
    print(f"{name:38} {arguments_for(order)}")

# %% [markdown]
# A correct `fsdp_schedule` produces all five orders. (If a line reports no arguments, check whether your list
# first gathers the unit itself, and then the units ahead of it.) By default (*as it comes*), forward gathers
# nothing ahead, and backward gathers one unit ahead. Unit 7 is freed after its forward, and then immediately
# gathered *again*.
#
# On a GPU, forward prefetch is *implicit*, as long as the host is ahead of the GPU (§3).
# `set_modules_to_forward_prefetch` makes the prefetch explicit, which helps if the host is slow.
#
# <details><summary>Resharding in torchtitan and Llama 3</summary>By default, torchtitan does not reshard the
# last unit after its forward. (This unit contains the last norm and the head.) With pipeline parallelism,
# torchtitan reshards no unit after its forward. In the training of Llama 3 405B, no unit was resharded after
# its forward either (§3.3.2 of its paper).</details>
#
# <details><summary>Two experimental methods of PyTorch
# 2.13</summary><code>set_separate_reduce_scatter_group</code> gives reductions a process group of their own,
# which acts like a second wire. <code>set_reduce_scatter_max_input_buffers</code> allows more than one
# reduction in flight (the default is 1).</details>
#
# ### Optional: the bytes of K microbatches
#
# The next cell compares your `fsdp_bytes` (§1) with PyTorch's FSDP. It trains the `Network` from above, with
# a small head, on four ranks in float32 (so `weights=4, gradients=4`). Each step has four microbatches. The
# cell takes up to half a minute.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
KEEPS = (None, "gradients", "weights between", "weights")


def accumulated(keep, microbatches=4):
    """Two steps of `fully_shard`, of which only the second is counted."""
    options = {"reshard_after_forward": False} if keep == "weights" else {}
    model = sharded(Network(head=HEAD).to(device()), **options)
    for _ in range(2):
        dist.barrier()
        for k in range(microbatches):
            last = k == microbatches - 1
            if keep:
                model.set_requires_gradient_sync(last)
            if keep and "weights" in keep:
                model.set_reshard_after_backward(last)
            model(torch.randn(2, WIDTH, device=device())).square().mean().backward()
        model.zero_grad()


four = several(accumulated, {keep: (keep,) for keep in KEEPS}, aloud=True)
print("units of traffic, K = 4          fully_shard   yours")
for keep, (_, operations) in four.items():
    unit_of_traffic = 3 / 4 * 4 * HEADED
    yours = said(fsdp_bytes, HEADED, 4, 4, weights=4, gradients=4, keep=keep)
    computed = text_of(None if yours is None else yours / unit_of_traffic, ".2f")
    print(f"keep={keep!s:25} {bytes_in(operations) / unit_of_traffic:13.2f} {computed:>7}")

# %% [markdown]
# Backward begins with the root. So PyTorch keeps the root whole after forward, and sends a few hundredths of
# a unit of traffic less than you computed.
#
# ### Optional: the effect of each option
#
# The next cell prints the messages, the traffic and the memory of a step for each option, on four ranks in
# float32 with AdamW. The column *units* lists the units of traffic. For the column *most*, the cell measures
# the bytes on a rank whenever forward leaves a block or backward enters a block. It prints the largest value,
# divided by the number of parameters. The cell takes up to half a minute.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def held():
    """Bytes of all tensors on this rank that were created after the training began."""
    time.sleep(0.003)  # until gloo's threads release the tensors of their last operation
    storages = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and not hasattr(item, "_local_tensor"):
            for tensor in (item, item.grad if item.is_leaf else None):
                if tensor is not None and not hasattr(tensor, "_local_tensor"):
                    storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def train(make, microbatches=1, samples=2, steps=2):
    """Train on this rank's own data. `make(network)` returns a model, or a model and its optimizer.

    If the model has a method `last(is_last)`, it is called before each microbatch.
    """
    gc.collect()
    gc.freeze()  # existing tensors do not count
    network, most = Network(dist.get_rank(), head=HEAD).to(device()), []
    made = make(network)
    model, optimizer = made if isinstance(made, tuple) else (made, None)
    params = [param for param in model.parameters() if hasattr(param, "to_local")]  # DTensors
    shards = [nn.Parameter(param.detach().to_local()) for param in params]  # `held` counts these
    own = shards or model.parameters()
    optimizer = optimizer or torch.optim.AdamW(own, lr=1e-3, foreach=False)

    def look(block, args, output):
        most.append(held())
        if output.requires_grad:
            output.register_hook(lambda gradient: most.append(held()))

    for block in network.blocks:
        block.register_forward_hook(look)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    data = torch.randn(microbatches, samples, WIDTH, generator=generator).to(device())
    for _ in range(steps):
        dist.barrier()  # the operations of the last step come after the last barrier
        with costs() as spent:
            for k, x in enumerate(data):
                getattr(model, "last", lambda is_last: None)(k == microbatches - 1)
                (model(x).square().mean() / microbatches).backward()
            for param, shard in zip(params, shards, strict=True):
                shard.grad, param.grad = param.grad.to_local(), None
            optimizer.step()
            optimizer.zero_grad()
    return {"most": max(most), "flops": spent.flops}


def by_linear(model):
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return sharded(model, linears)


def in_one(model):
    return sharded(model, [])


def mixed(model):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return sharded(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def islands(model):
    from torch.distributed.device_mesh import init_device_mesh

    half = dist.get_world_size() // 2
    names = ("replicate", "shard")
    return sharded(model, mesh=init_device_mesh(device().type, (2, half), mesh_dim_names=names))


def offloaded(model):
    from torch.distributed.fsdp import CPUOffloadPolicy

    pinned = device().type == "cuda"  # pinned memory is for copies to a GPU
    return sharded(model, offload_policy=CPUOffloadPolicy(pin_memory=pinned))


def only_last_reduces(model):
    model = sharded(model)
    model.last = model.set_requires_gradient_sync
    return model


VISIBLE = {
    "a block is a unit": (as_it_comes,),
    "a Linear is a unit": (by_linear,),
    "the model is the unit": (in_one,),
    "reshard_after_forward=False": (not_resharded,),
    "MixedPrecisionPolicy": (mixed,),
    "a mesh of 2 x 2": (islands,),
    "CPUOffloadPolicy": (offloaded,),
    "4 microbatches": (as_it_comes, 4),
    "4 microbatches, one reduction": (only_last_reduces, 4),
}
visible = several(train, VISIBLE, aloud=True)
print(f"{'':32} messages  units   most")
for name, (ranks, operations) in visible.items():
    units = bytes_in(operations) / (3 / 4 * 4 * HEADED)
    print(f"{name:32} {len(operations):8} {units:6.2f} {ranks[0]['most'] / HEADED:6.2f}")

# %% [markdown]
# <details><summary>After you have run it</summary>
#
# - *Units.* A *wrap policy* decides which modules become units. With smaller units, a rank holds less at the
#   same time but sends more messages. If the whole model is one unit, this unit is the root, which stays
#   whole after forward. So each weight is gathered only once, but each rank holds all weights. In a
#   transformer, a unit is usually a block, because the weights of a block are used together, and their
#   messages are long enough to use the full bandwidth.
# - *Resharding.* `reshard_after_forward=False` saves one unit of traffic, but then a rank holds all weights
#   during a step. Between steps, the weights are still sharded, whereas in ZeRO-2 they stay whole (notebook
#   04).
# - *Precision.* With `MixedPrecisionPolicy`, a step sends 8 bytes per parameter instead of 12 (§4), so the
#   table shows 1.99 units instead of 2.99. Gathered weights take half the memory.
# - *Islands.* With a mesh of 2 x 2, a rank sends less in total, but its shards are twice as large.
# - *Offload.* With `CPUOffloadPolicy`, the shards and their gradients are in the host's memory, and the host
#   computes the optimizer's step. Without a GPU, this changes nothing. With a GPU, a rank copies its shard to
#   the GPU before each gather (2 or 4 bytes per parameter), and copies its part of the gradient back to the
#   host after each reduction.
# - *Accumulation.* If a rank keeps whole gradients between microbatches, it sends less but needs more memory,
#   as in §1.
#
# </details>
#
# <details><summary>The names of these options in PyTorch and DeepSpeed</summary>
#
# FSDP2 is `fully_shard`, and FSDP1 is `FullyShardedDataParallel`, which takes members of the enumerations
# `ShardingStrategy` and `BackwardPrefetch`.
#
# | yours | FSDP2 | FSDP1 | DeepSpeed, stage 3 |
# |---|---|---|---|
# | `module.blocks` | the modules you call `fully_shard` on | `auto_wrap_policy` | automatic, in buckets |
# | `forward_prefetch` | implicit, or `set_modules_to_forward_prefetch` | `forward_prefetch=True` | `stage3_prefetch_bucket_size` |
# | `backward_prefetch` | 1, or `set_modules_to_backward_prefetch` | `BACKWARD_PRE` (1), None (0) | `stage3_prefetch_bucket_size` |
# | `reshard`, `keep_last` | `reshard_after_forward` of each unit | `FULL_SHARD`, `SHARD_GRAD_OP` | `stage3_max_live_parameters`, `stage3_max_reuse_distance` |
# | at most 1 + prefetch units | enforced by events | `limit_all_gathers=True` allows two gathers | `stage3_max_live_parameters` |
# | `all_gather_cast`, `reduce_scatter_mean` | `MixedPrecisionPolicy` | `MixedPrecision` | `"bf16"`, `"fp16"`, `communication_data_type` |
# | `hybrid_groups` | a 2-D mesh | `HYBRID_SHARD` | `mics_shard_size`, `zero_hpz_partition_size` |
# | `keep="gradients"` | `set_requires_gradient_sync` | `no_sync()` | not available |
# | `clip_grad_norm_` | `nn.utils.clip_grad_norm_` | `model.clip_grad_norm_` | `"gradient_clipping"` |
# | | `CPUOffloadPolicy` | `CPUOffload` | `offload_param`, `offload_optimizer` |
#
# PyTorch recommends FSDP2 for new code. FSDP1 in PyTorch 2.13 needs an accelerator. So we did not run it, but
# took its column from the function signatures.
#
# </details>
#
# <details><summary>BACKWARD_POST</summary>This setting is a compromise between <code>BACKWARD_PRE</code> and
# None. FSDP1 then gathers unit i − 1 after the backward of unit i, but before the reduction of unit i.
# Compared with <code>BACKWARD_PRE</code>, one unit fewer is whole at the same time. The gathers of backward
# are exposed, but the reductions are hidden. With None, the gather of unit i − 1 starts only when this unit
# is needed, after the reduction of unit i, as in the <i>Break it</i> of §2.</details>
#
# <details><summary>In the lectures</summary>Lecture 001 writes <code>sharding_strategy="FULL_SHARD"</code>,
# but FSDP1 expects a member of the enumeration instead of a string. For overlap, the lecture sets
# <code>forward_prefetch=True</code>, although backward prefetch saves more time and is on by default. It
# lists "No CPU Offload" and "No Pipeline Parallelism" as weaknesses of FSDP. But the lecture's own code
# imports <code>CPUOffload</code>, and Llama 3 was trained with FSDP, tensor, context and pipeline parallelism
# together. Lecture 002's policy, <code>size_based_auto_wrap_policy(min_num_params=...,
# excluded_wrap_modules=...)</code>, raises a TypeError for two reasons. First, FSDP1 itself calls the policy
# for each module, so you have to set its arguments with <code>functools.partial</code>. Second, the keyword
# is spelled <code>exclude_wrap_modules</code>. The training loops of lectures 000 and 001 have no
# <code>zero_grad</code>, so gradients add up over the batches.</details>
#
# ### Optional: checkpoints
#
# There are two kinds of state dict. A *full* state dict holds whole tensors, so the ranks have to gather
# every parameter before one rank can write it. A *sharded* state dict holds only the shards of its rank, so
# nothing is gathered. `torch.distributed.checkpoint` (DCP) writes sharded state dicts. Each rank writes a
# file with its own pieces, and an additional file lists where each piece is. So a different number of ranks
# can read the checkpoint. In the next cell, four ranks save and two ranks load:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def trained_and_saved(folder):
    """Take a step and save the states. Returns the whole parameters, by name."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = sharded(Network(head=HEAD).to(device()))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, WIDTH, device=device())).square().mean().backward()
    optimizer.step()
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    whole = {name: value.full_tensor().clone() for name, value in states["model"].items()}
    dist.barrier()
    dcp.save(states, checkpoint_id=folder)
    return whole


def loaded(folder):
    """Load the states into a model with other weights. Returns its whole parameters, by name, and
    the number of parameters its optimizer has states for."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = sharded(Network(seed=1, head=HEAD).to(device()))
    optimizer = torch.optim.AdamW(model.parameters())
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
    )
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    return whole, len(optimizer.state)


with tempfile.TemporaryDirectory() as folder:
    saved = try_it(trained_and_saved, folder)
    for name in sorted(os.listdir(folder)):
        print(f"{name:14} {os.path.getsize(os.path.join(folder, name)) / 1e6:6.2f} MB")
    if saved:
        operations = saved.ledger.operations(0)
        begun = max(k for k, each in enumerate(operations) if each.op == "barrier")
        largest = max(each.nbytes for each in operations[begun:]) / 1e6
        print(
            f"largest message while saving: {largest:.2f} MB; all states: {12 * HEADED / 1e6:.2f} MB"
        )
        again, states = launch(loaded, folder, world_size=2)[0]
        equal = all(torch.equal(again[name], whole) for name, whole in saved[0].items())
        print(f"bitwise equal: {equal}; the optimizer has states for {states} parameters")

# %% [markdown]
# All states together take 12 bytes per parameter, and each rank's file holds headers and a quarter of them.
# While saving, the ranks exchange only a plan with names and offsets. If you need a full state dict, for
# example to publish the model, call `get_model_state_dict(model,
# options=StateDictOptions(full_state_dict=True, cpu_offload=True))`, which gathers one parameter after
# another. For flat shards, such as the shards of your module, `course_lib.fsdp.save_checkpoint` writes files
# in the same format.
#
# ### Optional: DeepSpeed's configuration
#
# Notebook 04 (§7) explains those lines of DeepSpeed's configuration that concern memory. The next cell
# translates a complete configuration into the arguments of this notebook:

# %% tags=["skip-in-grading"]
DEEPSPEED = {
    "train_batch_size": 256,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-5, "weight_decay": 0.01}},
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
             "hysteresis": 2, "min_loss_scale": 1},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e8,
        "stage3_max_live_parameters": 1e9,
        "stage3_param_persistence_threshold": 1e6,
    },
    "gradient_clipping": 1.0,
}  # fmt: skip


def read(configuration, ranks, block):
    """Translate the configuration into this notebook's terms. block: parameters per block."""
    zero = configuration["zero_optimization"]
    k = configuration.get("gradient_accumulation_steps", 1)
    each, rest = divmod(configuration["train_batch_size"], ranks * k)
    if rest:
        raise ValueError(f"train_batch_size is not a multiple of {ranks} ranks x {k} microbatches")
    yield "samples per microbatch and rank", each
    yield "microbatches, K", k
    yield "fsdp_bytes, keep", None
    ahead = (
        zero.get("stage3_prefetch_bucket_size", 5e7) / block
        if zero.get("overlap_comm", True)
        else 0
    )
    yield "blocks gathered ahead", f"{ahead:.1f}"
    yield (
        "blocks whole at the same time, most",
        f"{zero.get('stage3_max_live_parameters', 1e9) / block:.1f}",
    )
    yield "clip_grad_norm_, max_norm", configuration.get("gradient_clipping", 0)


for what, value in read(DEEPSPEED, ranks=8, block=202_383_360):  # a block of LLaMA-7B
    print(f"{what:36} {value}")

# %% [markdown]
# <details><summary>The lines of this configuration</summary>
#
# | line | here |
# |---|---|
# | `train_batch_size` | the number of samples in a step, which is K · N times the number of samples in a microbatch |
# | `gradient_accumulation_steps` | K. ZeRO-3 reduces after each microbatch, which corresponds to `keep=None` and sends 3K units |
# | `optimizer` | DeepSpeed creates the optimizer for the shards. With `offload_optimizer`, it runs on the CPU |
# | `fp16` | A `loss_scale` of 0 makes the scale dynamic. The scale starts at 2^`initial_scale_power`, halves after `hysteresis` overflows, and doubles after `loss_scale_window` good steps (notebook 09). With `"bf16": {"enabled": true}`, you don't need a loss scale |
# | `overlap_comm`, `reduce_bucket_size` | The ranks reduce gradients while backward goes on, as in your module |
# | `stage3_prefetch_bucket_size` | your two prefetch arguments, but in elements instead of units |
# | `stage3_max_live_parameters` | A unit stays whole after its forward if fewer elements are whole than this number. The setting is a compromise between your `reshard=True` and `False` |
# | `pin_memory` | stores the data in pages that the operating system must not move, so that copies to the GPU can run at the same time as kernels |
# | `gradient_clipping` | your `max_norm` |
#
# </details>
#
# <details><summary>Which lines do you need?</summary>If you have one node of 8 GPUs and the states fit with
# ZeRO-3, take only <code>"stage": 3</code> and <code>"bf16"</code>. If you train on several nodes with a
# pipeline, take stage 1. A pipeline adds up the gradients of many microbatches. In stage 2, each of these
# microbatches would also need a reduction, and in stage 3 gathers as well. If the GPU has little memory, take
# stage 2 with <code>offload_optimizer</code>. If even the 2 bytes per parameter for the weights are too many,
# take stage 3 with <code>offload_param</code>.</details>
#
# ### Optional: which framework?
#
# <details><summary>Six frameworks compared</summary>
#
# | | what it shards and offers | take it if | source |
# |---|---|---|---|
# | DDP | shards nothing | 16P bytes and the activations fit into each GPU. DDP has the least traffic, 2 units | notebook 03 |
# | FSDP2 (PyTorch) | shards as in §1 to §6. Parameters remain named tensors, so you can combine it with tensor, context and pipeline parallelism, `torch.compile` and DCP | you want to write the training loop yourself, in PyTorch | PyTorch docs, `fully_shard`; Llama 3, §3.3 |
# | DeepSpeed | ZeRO 1 to 3; offload to the host and to NVMe; 8- and 4-bit messages (ZeRO++) | you want to set everything in one configuration file, or need NVMe to hold the states | Rajbhandari et al. 2020, 2021; Wang et al. 2023 |
# | Megatron-LM / Core | tensor, sequence, pipeline, context and expert parallelism, with optimized kernels; ZeRO-1 as its *distributed optimizer*, and an FSDP of its own | you train transformers on thousands of GPUs, and the models it provides suit you | Narayanan et al. 2021; Megatron Core guide |
# | Accelerate (Hugging Face) | shards nothing itself. One configuration selects DDP, FSDP1, FSDP2 or DeepSpeed | you want to run the same loop with any of these four | Accelerate docs, "FSDP1 vs FSDP2" |
# | Lightning | shards nothing itself. It offers `DDPStrategy`, `FSDPStrategy` (FSDP1) and `DeepSpeedStrategy`. `ModelParallelStrategy` (experimental) gives you a mesh, and you apply `fully_shard` and tensor parallelism yourself | you also want a ready-made training loop | Lightning docs, `FSDPStrategy`, `ModelParallelStrategy` |
#
# </details>
#
# <details><summary>The same step in four frameworks</summary>
#
# ```python
# # DDP: the optimizer updates the parameters of `model`, which every rank keeps whole.
# model = DistributedDataParallel(model)
# loss_of(model, batch).backward()
# optimizer.step()
# optimizer.zero_grad()
#
# # FSDP2: make the optimizer after this, since it updates the shards.
# for block in model.blocks:
#     fully_shard(block)
# fully_shard(model)
# loss_of(model, batch).backward()
# optimizer.step()
# optimizer.zero_grad()
#
# # DeepSpeed: the file decides the stage; the engine accumulates, clips, scales and sets gradients to zero.
# engine, optimizer, _, _ = deepspeed.initialize(
#     model=model, model_parameters=model.parameters(), config="deepspeed.json"
# )
# engine.backward(loss_of(engine, batch))
# engine.step()
#
# # Accelerate: `accelerate launch` reads a configuration that names DDP, FSDP or DeepSpeed.
# model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
# accelerator.backward(loss_of(model, batch))
# optimizer.step()
# optimizer.zero_grad()
# ```
#
# The course runs the first two. DeepSpeed and Accelerate are not installed in the course's environment, so we
# took the lines for both from their documentation. Lecture 002 shows the lines for DeepSpeed.</details>
#
# <details><summary>In the lectures</summary>Lecture 001 has a table "When to use what". Each of its rows is
# printed here with our comment. <i>Single GPU, below 10B: standard training.</i> At 16 bytes per parameter,
# however, 80 GB hold less than 5B parameters. <i>One node: DDP, or FSDP with SHARD_GRAD_OP.</i> This works if
# 2P bytes fit in addition to the other states. <i>10 to 70B: FSDP or ZeRO-2.</i> But ZeRO-2 keeps 2P bytes on
# every GPU, which is 140 GB for a 70B model. <i>70B and more: FSDP and tensor parallelism, or ZeRO-3.</i> We
# agree, but Llama 3 also used pipelines and context parallelism. <i>100B and more: Megatron-LM.</i> You can
# also use FSDP2 with the other kinds of parallelism, as torchtitan does. <i>Limited memory: ZeRO-Offload.</i>
# You can also use <code>CPUOffloadPolicy</code>. The lecture also states that GPT-3 was trained with
# Megatron-LM. But OpenAI trained GPT-3, and NVIDIA only ran benchmarks with models of this size. MT-NLG 530B
# was trained with Megatron-LM and DeepSpeed together.
#
# Lecture 002 compares frameworks by "ease of use" and "feature richness", which are matters of opinion,
# whereas the axes of the next picture are measured. Lecture 000 also lists JAX, in which you define a mesh
# and the compiler inserts the collectives. Lecture 001 lists Ray, which shards nothing but starts and
# restarts the ranks. In the first recipe of lecture 001, <code>--fsdp "shard_grad_op"</code> is an option of
# Hugging Face's trainer, not of <code>torchrun</code>.</details>
#
# ### Optional: the trade-off, measured
#
# The next cell trains the same model with several strategies, on four ranks in float32 with AdamW, and
# measures the traffic and the peak memory of each strategy. It uses functions from the cell under *the effect
# of each option*, so run that cell first. It takes up to half a minute.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class Replicas(torch.optim.AdamW):
    """Data parallelism without overlap: average all gradients, then take the step on every rank."""

    def step(self):
        for param in self.param_groups[0]["params"]:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        super().step()


def replicas(model):
    return model, Replicas(model.parameters(), lr=1e-3, foreach=False)


THEIRS = {
    "replicas": (replicas,),
    "ZeRO-3 (notebook 04)": (zero3,),
    "hybrid 2 x 2, fully_shard": (islands,),
    "fully_shard": (as_it_comes,),
}
YOURS = {
    "FSDP, yours": (ahead(1, 1),),
    "yours, not resharded": (ahead(1, 1, False),),
}
BESIDE = {"FSDP, yours": (-30, 9), "ZeRO-3 (notebook 04)": (8, -9), "fully_shard": (8, 5)}
runs = several(train, THEIRS, aloud=True) | several(train, YOURS, aloud=True)


def trade_off():
    """Traffic against memory, a dot for each strategy."""
    figure = picture(6.5, 3.0)
    axes = figure.subplots()
    for (name, (ranks, operations)), colour in zip(runs.items(), RANKS, strict=False):
        units = bytes_in(operations) / (3 / 4 * 4 * HEADED)
        most = max(rank["most"] for rank in ranks) / HEADED
        axes.plot(units, most, "o", color=colour, ms=8)
        right = name not in BESIDE
        place = {"xytext": (8, 4) if right else BESIDE[name], "textcoords": "offset points"}
        axes.annotate(name, (units, most), **place, fontsize=8)
    axes.set(xlabel="units of traffic per step", ylabel="peak bytes per parameter")
    axes.text(1.85, 0.6, "better: down and left", fontsize=8, color=QUIET)
    axes.set(xlim=(1.8, 3.6), ylim=(0, 19))
    axes.grid(True, alpha=0.3)
    return figure


trade_off()

# %% [markdown]
# No strategy has both the least traffic and the least memory. ZeRO-3 needs a little less memory than `FSDP,
# yours`, because your module also holds the unit that is gathered ahead. To save more memory, you need
# smaller units. To save traffic, you have to keep whole weights or whole gradients on each rank.
#
# How much does prefetch save without slow motion? On this machine, the cores that compute also copy the
# messages, so prefetch saves less than in slow motion. The ratios of the next cell change from run to run:

# %% tags=["nbval-ignore-output", "skip-in-grading"]
AS_IT_IS = {
    "nothing ahead": ahead(0, 0),
    "one ahead": ahead(1, 1),
    "not resharded": ahead(1, 1, False),
}
plain = slow_motion(AS_IT_IS, pace=0, bandwidth=math.inf, steps=20)
for name, (took, _) in plain.items():
    print(f"{name:15} {took / plain['nothing ahead'][0]:4.0%} of the time with nothing ahead")

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs, this section takes a few minutes. Without GPUs, the cells show a recorded run, if
# there is one.*
#
# In this section, the same GPT is trained three times, first on one GPU, then on all GPUs with DDP, and then
# on all GPUs with FSDP. Each GPU always gets the same number of sequences.
#
# <details><summary>In the lectures</summary>This is the exercise of lecture 004, which uses the model of
# nanoGPT.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.training import ONE_STEP, STEPS

alone = on_your_gpus(ONE_STEP)

# %% [markdown]
# **Predict.** If all messages were hidden, N GPUs would process N times as many tokens per second as one GPU.
# DDP needs 4 more bytes per parameter than one GPU, because it keeps buckets in addition to the gradients.
# FSDP keeps only 1/N of the weights and moments. (Gradients don't count, because the peak memory occurs at
# the beginning of backward, before there are any.) Are the messages of this model hidden on your GPUs?
# Compare the result of your `hides_from` with the 8 · 1,024 = 8,192 tokens of a rank.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
PARAMETERS = 124_439_808


def if_all_hides(of, run):
    same = alone and alone.machine["gpu"] == run.machine["gpu"]  # a record can be of another GPU
    on_one = {row.of["kind"]: row.value for row in alone.rows} if same else {}
    if of["kind"] == "peak" and on_one:
        saved = 12 * PARAMETERS * (1 - 1 / of["ranks"])
        return on_one["peak"] + (4 * PARAMETERS if of["way"] == "DDP" else -saved)
    scale = {"step": 1, "tokens": of["ranks"]}.get(of["kind"])
    return on_one[of["kind"]] * scale if scale and on_one else None


on_gpus = on_your_gpus(STEPS, predicted=if_all_hides)
# %% [markdown]
# You can run the same training from a terminal, where you give the batch size of all GPUs together: `torchrun
# --standalone --nproc-per-node 2 examples/train.py --model 124M --parallel fsdp --batch-size 16 --dtype bf16
# --steps 20 --report`. For one GPU, write `--nproc-per-node 1`, `--parallel none` and `--batch-size 8`. A T4
# needs `--dtype fp16`.

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | §1 to §4; for question 5, the first paragraph of §5 is enough |
# | time | 10 minutes |
# | points | 6 |
#
# A number may be an expression, such as `3 * 2.5e9 / 1e6`.
#
# 1. Take 16 H100s that reach 40 % of 989 TFLOP/s and send 50 GB/s each. The weights are in 16 bits. How many
#    **tokens** per GPU does a forward need to hide the gather of the next unit?
# 2. In a step that gathers nothing ahead, you make the reduce-scatters asynchronous. Why doesn't the step get
#    shorter? `"gradients are not ready"`, `"the next gather queues behind them"` or `"every rank waits in
#    backward"`
# 3. LLaMA-7B has 32 blocks of 202,383,360 parameters. Each block is a unit, the weights are in bfloat16, and
#    one unit is gathered ahead. How many **MB** of whole blocks does a rank hold, at most?
# 4. With K = 8 microbatches, only the last microbatch reduces (`keep="gradients"`). How many **units of
#    traffic** does a step send, if all elements have the same size?
# 5. You have 64 GPUs in nodes of 8, with 50 GB/s between nodes, and 16P/8 bytes fit into a GPU in addition to
#    the activations. Which sharding do you choose, `"full"` or `"hybrid"`?
# 6. Which of these situations can lead to a deadlock, or to a mix-up of blocks? `"rank 0 prefetches two
#    units, rank 1 one"`, `"all ranks prefetch nothing"` or `"rank 1 has fewer tokens"`

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # tokens
answer_2 = ...  # one of the three texts
answer_3 = ...  # MB
answer_4 = ...  # units of traffic
answer_5 = ...  # "full" or "hybrid"
answer_6 = ...  # one of the three texts
### BEGIN SOLUTION
answer_1 = 15 / 16 * 0.4 * 989e12 / 50e9
answer_2 = "the next gather queues behind them"
answer_3 = 2 * 2 * 202_383_360 / 1e6
answer_4 = 2 * 8 + 1
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 6}
report = check("05_fsdp/questions", answer_1, answer_2, answer_3, answer_4, answer_5, answer_6)
### BEGIN HIDDEN TESTS
report = check(
    "05_fsdp/questions",
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
# ## 9 · Optional: gather in 8 bits
#
# | | |
# |---|---|
# | you will write | `all_gather_int8(output, shard, block=256, group=None)` |
# | builds on | §4 |
# | time | 35 minutes |
# | difficulty, importance | 3 and 1 of 5 |
# | extra credit | 4 points, on top of the 60. You lose nothing if you skip it |
#
# Two of FSDP's three messages carry weights. Do the weights in these messages need 16 bits? The master
# weights stay in float32 on their ranks, so a rounded weight is used for only one step. This is why ZeRO++
# (Wang et al. 2023) can send weights in 8 bits.
#
# With 8 bits, we can send integers from −127 to 127, so we need a *scale* by which the receiver multiplies
# them. If a whole shard had only one scale, its largest weight would determine this scale, and an outlier
# would make all other weights imprecise. So each *block* of 256 weights (not a block of the model) has its
# own scale, which is the largest magnitude in the block, divided by 127. A scale is a float32, so it costs 4
# bytes per block.
#
# **Predict.** How many bytes does a weight cost, including its part of the scale? And what is the largest
# error of a weight if the largest magnitude in its block is 2?
#
# <details><summary>Answer</summary>A weight costs 1 + 4/256 = 1.016 bytes. The error is at most half of the
# scale, which is 2/127/2 = 0.008.</details>
#
# **Build.**


# %% nbgrader={"grade_id": "all_gather_int8", "solution": true}
@torch.no_grad()
def all_gather_int8(
    output: torch.Tensor, shard: torch.Tensor, block: int = 256, group: Group = None
) -> None:
    """Write all ranks' shards into `output`, each rounded to 8 bits in blocks of `block` elements.

    shard: s elements of any floating dtype, the same s on every rank, not modified. output: N s
    elements, overwritten, with the same bits on all ranks. Each shard begins a new block, and its
    last block can be short. The error of an element is at most half of its block's scale. Sends
    (N-1) (s + 4 ceil(s/block)) bytes.
    """
    ### BEGIN SOLUTION
    n, size = dist.get_world_size(group), shard.numel()
    blocks = nn.functional.pad(shard.float().view(-1), (0, -size % block)).view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    steps = (blocks / scales.masked_fill(scales == 0, 1)).round().to(torch.int8).view(-1)[:size]
    own = torch.cat([scales.view(-1).view(torch.uint8), steps.view(torch.uint8)])
    packed = own.new_empty(n * own.numel())
    dist.all_gather_into_tensor(packed, own, group=group)
    for row, arrived in zip(output.view(n, size), packed.view(n, -1), strict=True):
        cut = 4 * len(blocks)
        scales = arrived[:cut].clone().view(torch.float32)
        steps = nn.functional.pad(arrived[cut:].view(torch.int8).float(), (0, -size % block))
        row.copy_((steps.view(-1, block) * scales[:, None]).view(-1)[:size])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: one message</summary>Put scales and elements into one row, as bytes.
# <code>tensor.view(torch.uint8)</code> reads the same memory as bytes, and <code>.view(torch.float32)</code>
# turns the bytes back into numbers. Both gloo and NCCL can send uint8. A float32 has to begin at a multiple
# of four bytes, but the scales of a rank might begin at any byte of the row. So <code>clone()</code> the
# scales before you view them as float32. Gather into a flat row, and view this row as (N, bytes of a rank)
# afterwards.</details>
# <details><summary>Hint: a block of zeros</summary>The scale of such a block is 0, so divide by 1
# instead.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "all_gather_int8_check", "points": 0}
# Extra credit, 4 points
report = check("05_fsdp/all_gather_int8", all_gather_int8)
### BEGIN HIDDEN TESTS
report = check("05_fsdp/all_gather_int8", all_gather_int8, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** On four ranks, the cell gathers normally distributed weights. About one weight in a thousand is
# an outlier, because it has been multiplied by 30. For several block sizes, the cell prints the bytes per
# weight and the error.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def in_blocks(block, size=16384):
    generator = torch.Generator().manual_seed(dist.get_rank())
    shard = torch.randn(size, generator=generator)
    shard[torch.rand(size, generator=generator) < 0.001] *= 30
    exact = torch.empty(4 * size, device=device())
    dist.all_gather_into_tensor(exact, shard.to(device()))
    rounded = torch.empty_like(exact)
    dist.barrier()
    all_gather_int8(rounded, shard.to(device()), block)
    return ((rounded - exact).norm() / exact.norm()).item()


for block, (ranks, operations) in several(
    in_blocks, {size: (size,) for size in (64, 256, 2048, 16384)}
).items():
    print(
        f"blocks of {block:5}: {bytes_in(operations) / (3 * 16384):.3f} bytes per weight, "
        f"error {ranks[0]:.2%}"
    )

# %% [markdown]
# **Break it.** Why not send gradients in 8 bits as well? Suppose that an element of the gradient is 0.9 on
# each of eight ranks. All ranks use the scale 1/128, so they send 0.9 as the integer 115. What is the sum of
# the eight integers if it is computed in 8 bits?

# %% tags=["skip-in-grading"]
terms = torch.full((8,), 115, dtype=torch.int8)
print("8 x 115 in int8:", sum(terms[1:], terms[0]).item(), " exactly:", 8 * 115)

# %% [markdown]
# The sum does not fit into the 8 bits of its terms. And if two blocks have different scales, their integers
# cannot be added at all. So in ZeRO++, gradients are sent in 4 bits by all-to-all, first inside each node and
# then between nodes. The receiver always decodes the pieces before it adds them.
#
# **In production.** In DeepSpeed, write `"zero_quantized_weights": true`, `"zero_quantized_gradients": true`
# and `"zero_hpz_partition_size": 8` (§5). With all three settings, only a quarter of ZeRO-3's bytes travel
# between nodes (Wang et al. 2023, abstract). torchao gathers FSDP2's weights in float8, with one scale for
# each weight matrix.

# %% [markdown]
# ## Scorecard
#
# The next cell compares the strategies by our three criteria (computation, memory and bytes sent). The
# numbers are for one step of AdamW on four ranks with two samples each, and come from the last part of §7. If
# you have skipped that part, skip the next cell as well. M stands for the 4P bytes of the parameters. The
# computation is compared with the computation of one process that takes all eight samples.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def score():
    flops = launch(train, replicas, world_size=1, samples=8)[0]["flops"]
    rows = [
        Row(
            strategy=name,
            ranks=4,
            flops=sum(rank["flops"] for rank in ranks),
            peak_bytes=max(rank["most"] for rank in ranks),
            bytes_sent=bytes_in(operations),
        )
        for name, (ranks, operations) in runs.items()
    ]
    return Scorecard(rows, unit=4 * HEADED, flops_alone=flops)


score() if "runs" in globals() else say_once("The scorecard needs the runs in the last part of §7.")

# %% [markdown]
# This notebook adds a fourth criterion, the share of a step that is exposed in the slow motion of §3.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
for name, (took, _) in measured.items():
    print(f"{name:37} {1 - 3 * DEPTH * PACE * 1000 / took:4.0%} exposed")

# %% [markdown]
# <details><summary>The column <i>computation</i></summary>One process performs 54.9 operations per parameter,
# of which 46.9 are for the layers, 7 for AdamW, and 1 for the mean of the gradients. Four replicas together
# compute AdamW's step and the mean four times instead of once. This adds 3 · 8 = 24 operations, so the ratio
# is 1.44. In <code>fully_shard</code>, the mean is part of the communication and isn't counted. So
# <code>fully_shard</code> has 53.9 operations instead of 54.9, and the ratio is 0.982. With two islands,
# <code>fully_shard</code> computes AdamW's step twice, so it has 60.9 operations, and the ratio is 1.11. The
# ZeRO-3 of notebook 04 adds each rank's gradients into a buffer. This is one more operation on each of the
# four ranks, so the ratio is 1.07. Your module divides each shard of the mean once, as one process does, so
# the ratio is 1.</details>
#
# FSDP sends nearly as many bytes as the ZeRO-3 of notebook 04, and needs a little more memory for the unit
# that is gathered ahead. But a much smaller share of its step is exposed. Without resharding, a step sends
# about a third fewer bytes, but a rank keeps whole weights. With islands, most messages stay inside a node,
# but the shards are twice as large. All of these strategies still compute whole layers on every rank. So if a
# single layer or its activations are too large for a GPU, no order of gathers helps. Tensor parallelism
# (notebook 06) divides layers, and context parallelism (notebook 08) divides activations.
#
# **You have built** the step of ZeRO-3 as a list, a module that runs this list, collectives in two
# precisions, islands, and the norm of a gradient that is sharded over N ranks.
#
# **Read on.**
# - Zhao et al. (2023), *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*: §3.3 for the
#   order, §3.4 for the memory, §5 for the measurements.
# - Meta (2021), [*Fully Sharded Data Parallel*](https://engineering.fb.com/2021/07/15/open-source/fsdp/): the
#   blog post that introduced FSDP.
# - PyTorch's documentation of `torch.distributed.fsdp.fully_shard`, and its FSDP notes on implicit and
#   explicit prefetching.
# - Wang et al. (2023), *ZeRO++*; Zhang et al. (2022), *MiCS*: islands and small messages.
# - Rajbhandari et al. (2021), *ZeRO-Infinity*: prefetch from disks.
# - `course_lib/fsdp/` contains the reference solutions. Read them after you have written your own, and begin
#   with `schedule.py` and `module.py`.
#
# <details><summary>In the lectures</summary>The three criteria are from lecture 003.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("05_fsdp")
