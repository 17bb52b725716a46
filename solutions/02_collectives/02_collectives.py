# %% [markdown]
# # 02 · Collectives
#
# **How do N ranks agree on a sum, and what is the least they must send?**
#
# Eight GPUs train a 7B model, each on its own part of the batch. After the backward pass, each GPU holds a 14
# GB gradient (in bf16), and no two of these gradients agree. Before the optimizer can step, all eight GPUs
# need the sum. The exchange that gives it to them is an *all-reduce*, and plain data-parallel training does
# one in every step.
#
# ZeRO and FSDP are built from a few such exchanges, and so are tensor, context and expert parallelism. The
# exchanges are called *collectives* because every rank of a group takes part. Here you write them from `send`
# and `recv`, predict what each of them costs, and finally race them against PyTorch's own.
#
# | | |
# |---|---|
# | you will build | broadcast, reduce-scatter, all-gather and all-to-all, and all-reduce in three ways |
# | you need | from notebook 00: rank, message, deadlock, `batch_isend_irecv`, α and β |
# | time | three hours; the *optional* parts (§7 and the second half of §5) take three quarters of an hour more |
# | points | 60 (52 without the optional parts, which have 5 in §7 and about 3 in §5) |
# | on a rented machine | nothing to rent, because two cores are enough. On several GPUs the same code runs over NCCL, and the section *On your GPUs* measures what needs real GPUs |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 0 Everybody to rank 0 | 10 | | notebook 00 |
# | 1 Broadcast: a tree | 20 | 6 | 0 |
# | 2 Reduce-scatter on a ring | 25 | 8 | notebook 00 |
# | 3 All-gather on a ring | 15 | 6 | 2 |
# | 4 Ring all-reduce | 40 | 2 + 12 | 2, 3 |
# | 5 Recursive doubling | 20, and 15 *optional* | 8 | 4 |
# | 6 All-to-all | 15 | 5 | 2 |
# | 7 Two kinds of wire *(optional)* | 30 | 5 | 2, 3, 4 |
# | 8 What it will cost | 15 | 4 | your predictions |
# | 9 The race | 10 | | all |
# | 10 Questions | 10 | 4 | 4, 8, 9 |
#
# Sections 1 to 7 all have the same parts: a picture, a prediction, your code, the check, a measurement, a
# look at how production code does the same job, and a mistake made on purpose.

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | N | the number of ranks in the group |
# | chunk | one of the N parts a tensor is cut into. The chunk a rank keeps for itself is its *shard* |
# | root | the rank a broadcast starts from, `src` |
# | M | the size of the *full* tensor, in bytes |
# | α | the seconds a message costs before its first byte arrives |
# | β | the seconds per byte in one direction, which is 1/bandwidth |
# | round | messages that travel at the same time. The next round begins when all of them have arrived |
#
# An exchange takes about **rounds · α + B · β** seconds. Here B counts the bytes that pass *one after
# another*: take the largest message of each round, and add these up over the rounds. If the same rank sends
# the most in every round, B is just the number of bytes it sends. That is why we count the bytes of the
# *busiest* rank. (The two exceptions are §0, and §5 if N is not a power of two.) Adding numbers takes no time
# in this model.
#
# The model is all the theory you need here (Thakur, Rabenseifner and Gropp 2005, §3). It assumes that every
# rank has its own wire, as GPUs on NVLink do, and that a rank can send and receive at the same time. The
# ranks on your laptop share a few cores instead, and §9 shows how this changes the times.
#
# Formulas count rounds from 0, as loops do (in §6, from 1). The *films* (the pictures with a slider from
# notebook 00) number the rounds from 1.
#
# The same rules hold for all your code here. Use **messages only** (`send`, `recv`, `isend`, `irecv`,
# `batch_isend_irecv`), and no built-in collective. As in `torch.distributed`, `group=None` means the group of
# all ranks. All sums are plain sums. If you want a *mean*, divide by N yourself.
#
# The second cell below defines two tools. `beside` prints your prediction next to the ledger of a real run.
# `results` runs a function that might fail, and prints the result of every rank or the reason for the
# failure.

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import math
import time

import torch
import torch.distributed as dist

from course_lib import RankError, check, device, doctor, launch
from course_lib.ledger.watch import contribution, watch
from course_lib.pictures.colours import RANKS, picture
from course_lib.pictures.stepper import stepper
from course_lib.runtime.errors import NotWritten
from course_lib.scorecard import costs, scorecard
from course_lib.unfinished import ready, say_once, try_it

Group = dist.ProcessGroup | None  # None is the group of all ranks

# %%
NBYTES = 3360  # 840 float32 elements, and 840 is divisible by 2, 3, 4, 5 and 8


def beside(cost, exchange, world_sizes=(2, 3, 4, 5, 8)):
    """Print `cost(n, nbytes)`, a pair (bytes of the busiest rank, rounds), next to a real run."""
    print(f"M = {NBYTES:,} bytes    bytes of the busiest rank          rounds")
    print("              you say       ledger      you say       ledger")
    for n in world_sizes:
        try:
            pair = cost(n, NBYTES)
        except NotImplementedError:
            pair = ("?", "?")
        if not isinstance(pair, tuple) or len(pair) != 2:
            print(
                f"{cost.__name__}({n}, {NBYTES}) returned {pair} instead of a pair (bytes, rounds)."
            )
            return
        said, said_rounds = (part if part == "?" else f"{part:,.0f}" for part in pair)
        try:
            ledger = launch(exchange, world_size=n).ledger
        except NotWritten as missing:
            return say_once(str(missing))
        except RankError as error:
            print(f"{n} ranks  ", str(error).splitlines()[0])
            continue
        sent, rounds = max(ledger.bytes_sent(rank) for rank in range(n)), len(ledger.rounds())
        print(f"{n} ranks {said:>13} {sent:12,.0f} {said_rounds:>12} {rounds:12}")


def results(exchange):
    """Run `exchange`, which might fail, on four ranks. Print each result, or why the run failed."""
    for rank, result in enumerate(try_it(exchange) or []):
        print(f"rank {rank}: {result}")


# %% [markdown]
# ## 0 · Everybody to rank 0
#
# | | |
# |---|---|
# | you will write | `gather_to_one_cost(n, nbytes)`, a formula |
# | builds on | notebook 00 |
# | time | 10 minutes |
# | difficulty, importance | 1 and 3 of 5 |
#
# The obvious all-reduce has three steps. Every rank sends its tensor to rank 0, rank 0 adds up all tensors,
# and then rank 0 sends the sum to every rank.


# %% tags=["skip-in-grading"]
def gather_to_one(tensor):
    """Sum `tensor` over all ranks, in place. Rank 0 receives all tensors and sends back the sum."""
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        part = torch.empty_like(tensor)
        for src in range(1, n):
            dist.recv(part, src)
            tensor.add_(part)
        for dst in range(1, n):
            dist.send(tensor, dst)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


def sum_4_mb(algorithm):
    tensor = torch.ones(1_000_000, device=device())
    dist.barrier()  # the picture begins here, when all ranks are ready
    algorithm(tensor)
    return tensor[0].item()


run = launch(sum_4_mb, gather_to_one, world_size=4)
print("every rank holds", run[0])
run.ledger.timeline(title="4 MB from each of 4 ranks, added on rank 0", after="barrier")

# %% [markdown]
# Read the picture from left to right. A row is grey while its rank waits. Rank 3 offers its tensor early, but
# waits until rank 0 has taken the tensors of ranks 1 and 2, and then waits again until rank 0 comes back with
# the sum. Every arrow starts or ends at rank 0, so while one pair talks, the others wait or have finished.
# White means that a rank runs its own code, or has finished its last message.
#
# **Predict, then measure.** With N ranks and M bytes, how many bytes does rank 0 send, and in how many
# rounds? Write the pair. Below it, `beside` prints your pair next to the ledger. (Functions whose names end
# in `_cost` earn no points by themselves, but §8, which has points, needs all except this one. From §1 on,
# the docstring of the exercise gives the cost away, so predict before you scroll down.)


# %% nbgrader={"grade_id": "gather_to_one_cost", "solution": true}
def gather_to_one_cost(n: int, nbytes: int) -> tuple[float, int]:
    """(bytes that the busiest rank sends, rounds) of `gather_to_one`."""
    ### BEGIN SOLUTION
    return (n - 1) * nbytes, 2 * (n - 1)
    ### END SOLUTION


# %% tags=["skip-in-grading"]
def gather_to_one_on_840():
    gather_to_one(torch.ones(840, device=device()))


beside(gather_to_one_cost, gather_to_one_on_840)

# %% [markdown]
# Let's put numbers on it. Take 8 GPUs with 14 GB each, on links that carry 50 GB/s each way (one 400 Gb/s
# InfiniBand port). Rank 0 takes in 7 · 14 = 98 GB, which takes 1.96 s, and then sends 98 GB, which takes
# another 1.96 s. (Both times count, because it can't send a sum it doesn't have yet. So in this case B is
# twice the bytes rank 0 sends.) A step that computes for one second would wait for almost four. With 16 GPUs,
# the wait more than doubles.
#
# **In production.** You meet this pattern in `torch.nn.DataParallel`, where GPU 0 collects the gradients of
# the other GPUs. PyTorch's own documentation recommends `DistributedDataParallel` instead, even on one
# machine.
#
# Are these four seconds the price of an all-reduce, or only of this way of doing it? §1 to §3 build three
# simpler exchanges. §4 puts two of them together and gives the answer.
#
# <details><summary>In the lectures</summary>Lecture 001 §19.2 calls GPU 0 of <code>DataParallel</code> the
# master GPU. The all-reduce in its §19.3 gives the mean, whereas ours gives the sum.</details>

# %% [markdown]
# ## 1 · Broadcast: a tree
#
# | | |
# |---|---|
# | you will write | `broadcast(tensor, src, group=None)` |
# | builds on | §0 |
# | time | 20 minutes |
# | difficulty, importance | 2 and 3 of 5 |
# | points | 6 |
#
# Before the first step, all replicas must hold the same weights. Rank 0 has read them from disk, and seven
# others wait for 14 GB. In §0, rank 0 served the others one after another, which took 7 rounds. But after the
# first round, *two* ranks hold the weights. Why should only one of them send?
#
# When you run the cell, it draws a real run on 8 ranks. Move the slider. The tensor has only two elements
# here. A row is a rank and a box is one element, whose colour says which rank its value comes from. In every
# round, each rank that holds rank 0's value passes it on to a rank that doesn't, so the value is on 1, 2, 4
# and finally 8 ranks. If you draw each message as an edge from rank to rank, the edges form a *binomial
# tree*.
#
# **Predict.** The busiest rank is the root. How many bytes does it send, and in how many rounds, for any N?
# Write the pair in the cell below the film.

# %% tags=["skip-in-grading"]
from course_lib import collectives as reference  # for the films, before you have your own


def film_broadcast(algorithm):
    tensor = contribution(2)
    with watch(tensor) as film:
        algorithm(tensor, 0)
    return film


# Films show rounds but no times, so all of them are made on the CPU.
run = launch(film_broadcast, reference.broadcast, world_size=8, backend="gloo")
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "broadcast_cost", "solution": true}
def broadcast_cost(n: int, nbytes: int) -> tuple[float, int]:
    """(bytes that the busiest rank sends, rounds) of a binomial-tree broadcast."""
    ### BEGIN SOLUTION
    rounds = (n - 1).bit_length()  # ceil(log2 n), in whole numbers
    return rounds * nbytes, rounds
    ### END SOLUTION


# %% [markdown]
# **Build.** Give every rank a *place*, counted from the root. The root has place 0, the rank after it has
# place 1, and so on around the circle. When round k begins, the ranks at places 0 to 2^k − 1 hold the value.
# Each of them sends to the rank whose place is 2^k higher, if that place is below N.
#
# Only the ranks of the group call the function. Here no rank sends and receives in the same round, so plain
# `dist.send` and `dist.recv` will do.
#
# A rank has two numbers. `src` is a *global* rank, as in `torch.distributed`. Inside the group {1, 3, 6},
# however, these ranks have the numbers 0, 1, 2. `dist.get_rank(group)` and `dist.get_world_size(group)` use
# the numbers inside the group, and so do the arguments `group_peer=` of `dist.P2POp`, `group_dst=` of
# `dist.send` and `group_src=` of `dist.recv`. `dist.get_group_rank(group, src)` translates a global rank into
# a rank of the group. It doesn't accept `None`, so pass `dist.group.WORLD` for the group of all ranks. In
# that group, both numbers are the same.
#
# Several sections need the same few lines: post a send and a receive together, make a tensor contiguous,
# write it back. The cells have room for helpers of your own, which you can use in all later cells.

# %% nbgrader={"grade_id": "broadcast", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
# (the tree needs none)
### END SOLUTION


def broadcast(tensor: torch.Tensor, src: int, group: Group = None) -> None:
    """Give every rank of `group` the tensor of global rank `src`, in place, along a binomial tree.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    All ranks together send (N-1) M bytes, in ceil(log2 N) rounds. A rank sends at most one
    message in each round.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_group_rank(group or dist.group.WORLD, src)
    place = (rank - root) % n  # counted from the root
    buffer = tensor.contiguous()
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(buffer, group=group, group_dst=(rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(buffer, group=group, group_src=(rank - distance) % n)
        distance *= 2
    tensor.copy_(buffer)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Loop over the distances 1, 2, 4, ... below N. At distance d, there
# are three kinds of ranks. Some hold the value and send it d places further. Others get the value now, from
# the rank d places before them. The rest have to wait for a later round.</details>
# <details><summary>Hint: the step</summary>Let <code>root</code> be the rank of <code>src</code> in the
# group. With <code>place = (rank - root) % n</code>, the ranks with <code>place &lt; d</code> send to
# <code>place + d</code> (unless that is n or more), and those with <code>d &lt;= place &lt; 2 * d</code>
# receive from <code>place - d</code>. Place p is rank <code>(p + root) % n</code> of the group.</details>
# <details><summary>Hint: not contiguous</summary>A column of a matrix is not contiguous, but messages must
# be. So send <code>tensor.contiguous()</code>, and on the other side receive into a contiguous buffer and
# <code>copy_</code> it back.</details>
#
# **Check and measure.** The first cell judges your tree. The second prints your formula next to the tree's
# ledger.

# %% nbgrader={"grade_id": "broadcast_check", "points": 6}
report = check("02_collectives/broadcast", broadcast)
### BEGIN HIDDEN TESTS
report = check("02_collectives/broadcast", broadcast, cases="hidden")
### END HIDDEN TESTS
report.points(6)


# %% tags=["skip-in-grading"]
def broadcast_840():
    broadcast(torch.ones(840, device=device()), 0)


beside(broadcast_cost, broadcast_840)

# %% [markdown]
# The tree has a weakness, because the root sends ceil(log2 N) · M although M would be enough. For a large
# tensor, it is better to cut it into pieces that follow each other down a chain of ranks. Then every rank
# except the last sends M, whatever N is. This is called *pipelining*, and you will meet it again in notebook
# 07.
#
# **Break it.** Every rank must name the same `src`. Here, on four ranks, the even ones say 0 and the odd ones
# say 1. Before you run the cell, work out which rank waits for which.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def disagree_on_the_root():
    tensor = torch.tensor([float(dist.get_rank())], device=device())
    broadcast(tensor, dist.get_rank() % 2)
    return tensor.tolist()


results(disagree_on_the_root)

# %% [markdown]
# <details><summary>After you have run it</summary>Some rank sends to a rank that doesn't expect a message.
# The diagnosis might end with the usual advice for a circle (change the order in one rank, or post the send
# and the receive together). That advice doesn't help here, because the messages belong to two different
# trees. Ask first whether all ranks mean the same exchange.</details>
#
# Without a ledger, a job like this hangs until NCCL's time limit, ten minutes by default, and then tells you
# only that it timed out. Real code usually gets into this state by computing `src` from a value that differs
# between ranks.
#
# **In production.** `dist.broadcast(tensor, src)` has the same arguments. The ledger can't see how a built-in
# sends, so it records the minimum that any algorithm must send. A broadcast is recorded as a chain, with M
# from every rank except the last. Only the operating system knows how many bytes really went over the wire,
# and Linux counts the bytes of every TCP connection. `show_wire` prints these counts for the built-in and for
# your tree. gloo, the CPU backend, also uses a binomial tree, whose root sends 2 M on four ranks. (Some
# figures might be a few hundredths above the algorithm's bytes, because Linux counts everything on the
# connection, or much higher if TCP had to send bytes again. NCCL's bytes don't go over TCP on one machine, so
# `show_wire` asks for gloo.)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def wire_bytes():
    """Bytes that this process has sent over TCP so far, as Linux counts them."""
    import os
    import socket
    import struct

    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(fd)))
        except OSError:
            continue  # not a socket
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, 200)[0]  # tcpi_bytes_sent, since Linux 4.19
    return total


def on_the_wire(collective, numel=1 << 20):
    """Return the bytes this rank sends in `collective(full, part)`, as a multiple of M.
    The full tensor has M bytes, and a part has M/N."""
    full = torch.ones(numel, device=device())
    part = torch.ones(numel // dist.get_world_size(), device=device())
    dist.barrier()
    before = wire_bytes()
    collective(full, part)
    dist.barrier()
    return (wire_bytes() - before) / (4 * numel)


def show_wire(name, collective):
    if run := try_it(on_the_wire, collective, backend="gloo"):
        print(f"{name:28}", "  ".join(f"rank {rank}: {m:.2f} M" for rank, m in enumerate(run)))


show_wire("dist.broadcast", lambda full, part: dist.broadcast(full, 0))
show_wire("yours", lambda full, part: broadcast(full, 0))

# %% [markdown]
# ## 2 · Reduce-scatter on a ring
#
# | | |
# |---|---|
# | you will write | `reduce_scatter(output, input, group=None)` |
# | builds on | notebook 00: `ring_shift` |
# | time | 25 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 8 |
#
# One rank doesn't have to add everything. Cut the tensor into N chunks, and make rank r responsible for the
# sum of chunk r only. This exchange is called a reduce-*scatter*, because the tensors are reduced to their
# sum, and the sum is scattered over the ranks. ZeRO (notebook 04) wants exactly this exchange. There, rank r
# updates only its own shard of the parameters, so it needs only its own shard of the gradient.
#
# On a ring, every rank sends to its right neighbour and receives from its left neighbour, all at the same
# time. A chunk travels around the circle, and every rank it visits adds its own part. Step through a run on 4
# ranks and follow *one* chunk, from where it starts to where it ends.
#
# Here is how to read this film and the next ones. A box now has one stripe for each rank whose contribution
# it holds. A dark frame says that the box changed in this round. A box is still one element, and in this film
# a chunk is also one element. A number next to a message or in a box names the element (0-1 means elements 0
# and 1). A box without a number holds the element of its column. Follow your chunk in the *messages* instead
# of the boxes. This run uses the reference implementation, whose partial sums are alternately in `output` and
# in a buffer the film doesn't show.
#
# **Predict.** Write the cost in the cell below the film. As everywhere, `nbytes` is the size of the *full*
# tensor, which here is the input.


# %% tags=["skip-in-grading"]
def film_reduce_scatter(algorithm):
    input = contribution(dist.get_world_size())
    output = torch.zeros_like(input[:1])
    with watch(input=input, output=output) as film:
        algorithm(output, input)
    return film


run = launch(film_reduce_scatter, reference.reduce_scatter, world_size=4, backend="gloo")
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "reduce_scatter_cost", "solution": true}
def reduce_scatter_cost(n: int, nbytes: int) -> tuple[float, int]:
    """(bytes that each rank sends, rounds) of a ring reduce-scatter of `nbytes`."""
    ### BEGIN SOLUTION
    return (n - 1) / n * nbytes, n - 1
    ### END SOLUTION


# %% [markdown]
# **Build.** Chunk c must visit all N ranks and end on rank c. So it starts at the next rank, c + 1, and makes
# N − 1 hops. Now take the side of one rank. What does rank r send in round k, and what arrives?
#
# `input` belongs to the caller, so leave it as it was. The partial sums need memory of their own.


# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def exchange(outgoing, to, arriving, source, group):
    """One round: send `outgoing` to rank `to` of the group,
    receive `arriving` from rank `source`."""
    messages = [
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=source),
        dist.P2POp(dist.isend, outgoing, group=group, group_peer=to),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


def pass_on(outgoing, arriving, group):
    """One round of a ring: send `outgoing` to the right, receive `arriving` from the left."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    exchange(outgoing, (rank + 1) % n, arriving, (rank - 1) % n, group)


### END SOLUTION


def reduce_scatter(output: torch.Tensor, input: torch.Tensor, group: Group = None) -> None:
    """Write into `output` this rank's chunk of the sum of all ranks' `input`, by a ring.

    input: (N*k, ...), contiguous or not; unchanged. output: (k, ...), chunk r of dim 0 of the sum;
    its earlier values do not matter. Works like dist.reduce_scatter_tensor.
    Each rank sends (N-1)/N of the input's bytes, in N-1 rounds.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.contiguous().view(-1).tensor_split(n)
    passing = chunks[rank - 1].clone()
    arriving = torch.empty_like(passing)
    for k in range(n - 1):
        pass_on(passing, arriving, group)
        arriving += chunks[(rank - k - 2) % n]
        passing, arriving = arriving, passing
    output.copy_(passing.view_as(output))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>In round 0, rank r sends off the chunk that starts its journey
# here. This is chunk r − 1, just as it is in <code>input</code>. In round k, it passes on the sum that
# arrived in round k − 1, with its own part added.</details>
# <details><summary>Hint: the step</summary>In round k, send (the partial sum of) chunk r − k − 1 to rank r +
# 1, receive chunk r − k − 2 from rank r − 1, and add your own part of it. All of this is modulo N. The last
# chunk to arrive is chunk r.</details>
# <details><summary>Hint: all ranks wait</summary>If all ranks receive first and then send, no rank gets to
# its send. So post both together with <code>dist.batch_isend_irecv</code>, then wait for every handle. Use
# two buffers, one that goes out and one that comes in.</details>
#
# **Check and measure.** The second cell also asks the operating system how much PyTorch's reduce-scatter, its
# all-reduce and your function send over gloo. The least possible for a reduce-scatter is (N−1)/N of M per
# rank, which is 0.75 M on four ranks.

# %% nbgrader={"grade_id": "reduce_scatter_check", "points": 8}
report = check("02_collectives/reduce_scatter", reduce_scatter)
### BEGIN HIDDEN TESTS
report = check("02_collectives/reduce_scatter", reduce_scatter, cases="hidden")
### END HIDDEN TESTS
report.points(8)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def reduce_scatter_840():
    full = torch.ones(840, device=device())
    part = torch.empty(840 // dist.get_world_size(), device=device())
    reduce_scatter(part, full)


beside(reduce_scatter_cost, reduce_scatter_840)
show_wire("dist.reduce_scatter_tensor", lambda full, part: dist.reduce_scatter_tensor(part, full))
show_wire("dist.all_reduce", lambda full, part: dist.all_reduce(full))
show_wire("yours", lambda full, part: reduce_scatter(part, full))

# %% [markdown]
# **In production.** The call is `dist.reduce_scatter_tensor(output, input)`. gloo's reduce-scatter sends as
# much as an all-reduce because it *is* one. It sums the whole tensor everywhere and then throws (N−1)/N of
# the sum away, so your function sends half as much. NCCL has true reduce-scatters, among them a ring and,
# since 2.23, an algorithm called PAT. Keep the difference in mind when you test sharded training on a CPU.
# For a built-in, the ledger shows the bytes any algorithm must send, but gloo might send more.
#
# **Break it.** Here is one round of a ring with *one* buffer. The buffer is sent to the right while the left
# neighbour's value is received into it. Predict the value rank 1 holds afterwards.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def one_buffer():
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.full((4,), float(rank), device=device())
    to_the_right = dist.P2POp(dist.isend, buffer, (rank + 1) % n)
    from_the_left = dist.P2POp(dist.irecv, buffer, (rank - 1) % n)
    for handle in dist.batch_isend_irecv([to_the_right, from_the_left]):
        handle.wait()
    return buffer.tolist()


results(one_buffer)

# %% [markdown]
# The ledger stops this run. Without the ledger, you might not notice the mistake, because rank 1 should end
# with 0 and quite possibly does. But if a rank's new value arrives before its old value has left, the rank
# passes on the *new* value. Then one value reaches two ranks, and another is lost. The mistake hits different
# ranks in different runs, so it is hard to find.

# %% [markdown]
# ## 3 · All-gather on a ring
#
# | | |
# |---|---|
# | you will write | `all_gather(output, input, group=None)` |
# | builds on | §2 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 6 |
#
# An all-gather is the counterpart of a reduce-scatter, and §4 will join the two. Every rank starts with one
# chunk, and in the end every rank holds all of them. FSDP does an all-gather before every layer, because the
# layer's weights are stored as N parts on N ranks. The ranks gather them for the layer's forward, free them,
# and then gather them again for its backward.
#
# The ring is the same, but nothing is added. Instead, every rank keeps a copy of each chunk that passes by.
#
# **Predict** the cost. As before, `nbytes` is the size of the full tensor, which here is the *output*.


# %% tags=["skip-in-grading"]
def film_all_gather(algorithm):
    input = contribution(1, first=dist.get_rank())
    output = torch.zeros(dist.get_world_size(), dtype=input.dtype, device=input.device)
    with watch(input=input, output=output) as film:
        algorithm(output, input)
    return film


run = launch(film_all_gather, reference.all_gather, world_size=4, backend="gloo")
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "all_gather_cost", "solution": true}
def all_gather_cost(n: int, nbytes: int) -> tuple[float, int]:
    """(bytes that each rank sends, rounds) of a ring all-gather whose result has `nbytes`."""
    ### BEGIN SOLUTION
    return (n - 1) / n * nbytes, n - 1
    ### END SOLUTION


# %% [markdown]
# **Build.** What do you hold at the start, and what has rank r + 1 not seen yet? This time you don't need a
# second buffer, because each chunk arrives exactly where it belongs.


# %% nbgrader={"grade_id": "all_gather", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def gather_chunks(chunks, complete, group):
    """Pass chunk `complete`, and then each chunk that arrives, along the ring,
    so that every rank gets all chunks."""
    n = dist.get_world_size(group)
    for k in range(n - 1):
        pass_on(chunks[(complete - k) % n], chunks[(complete - k - 1) % n], group)


### END SOLUTION


def all_gather(output: torch.Tensor, input: torch.Tensor, group: Group = None) -> None:
    """Write every rank's `input` into `output`, in the order of ranks, by a ring.

    input: (k, ...), contiguous or not, the same shape on every rank; unchanged. output: (N*k, ...).
    Works like dist.all_gather_into_tensor.
    Each rank sends (N-1)/N of the output's bytes, in N-1 rounds.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    full = output.contiguous()
    chunks = full.view(-1).tensor_split(n)
    chunks[rank].copy_(input.flatten())
    gather_chunks(chunks, rank, group)
    output.copy_(full)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>First copy your own chunk to its place in <code>output</code>.
# Then, in every round, pass on the chunk that arrived in the round before.</details>
# <details><summary>Hint: the step</summary>In round k, send chunk r − k to the right, and receive chunk r − k
# − 1 from the left, straight into its place in <code>output</code>.</details>
#
# **Check and measure.**

# %% nbgrader={"grade_id": "all_gather_check", "points": 6}
report = check("02_collectives/all_gather", all_gather)
### BEGIN HIDDEN TESTS
report = check("02_collectives/all_gather", all_gather, cases="hidden")
### END HIDDEN TESTS
report.points(6)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def all_gather_840():
    full = torch.empty(840, device=device())
    part = torch.ones(840 // dist.get_world_size(), device=device())
    all_gather(full, part)


beside(all_gather_cost, all_gather_840)
show_wire("dist.all_gather_into_tensor", lambda full, part: dist.all_gather_into_tensor(full, part))
show_wire("yours", lambda full, part: all_gather(full, part))

# %% [markdown]
# **In production.** `dist.all_gather_into_tensor(output, input)` gives the same result and sends the same
# bytes.
#
# **Break it.** If ten elements are cut into four shards, the shards have 3, 3, 2 and 2. Here every rank makes
# room for N shards as large as its own. What happens when a rank with 3 elements sends to a rank with 2?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def uneven_shards():
    rank, n = dist.get_rank(), dist.get_world_size()
    shard = torch.tensor_split(torch.arange(10.0, device=device()), n)[rank]
    full = torch.empty(n * len(shard), device=device())
    all_gather(full, shard)
    return full.tolist()


results(uneven_shards)

# %% [markdown]
# gloo itself would have delivered garbage or ended the process. The diagnosis above comes from the ledger
# instead, which compares both ends of every message. The cure in real code is *padding*. FSDP and ZeRO make
# all shards as long as the longest one.

# %% [markdown]
# ## 4 · Ring all-reduce
#
# | | |
# |---|---|
# | you will write | `ring_bytes_sent(n, nbytes)`, `ring_rounds(n)`, `ring_all_reduce(tensor, group=None)` |
# | builds on | §2, §3 |
# | time | 40 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 2 + 12 |
#
# How cheap can an all-reduce be? Consider a single element, in other words N numbers, one on each rank. A
# message can merge two partial sums into one, but never more than two. So the first complete sum takes N − 1
# messages. The other N − 1 ranks don't have this sum yet, and need one message each. Together these are 2 (N
# − 1) messages per element, however you arrange them (Patarasuk and Yuan 2009 prove it with care). If the N
# ranks share them evenly, the busiest rank sends as few bytes as it possibly can. The prediction asks you for
# this number.
#
# In total, §0 sends just as many messages per element. Its flaw is that one rank sends half of them. A
# reduce-scatter followed by an all-gather puts the same load on every rank instead. This is the ring
# all-reduce. Its busiest rank sends no more than the busiest rank of any other algorithm.
#
# **Predict.** How many bytes does each rank send, and in how many rounds, for any N and M?


# %% tags=["skip-in-grading"]
def film_in_place(algorithm, numel=4):
    tensor = contribution(numel)
    with watch(tensor) as film:
        algorithm(tensor)
    return film


run = launch(film_in_place, reference.ring_all_reduce, world_size=4, backend="gloo")
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "ring_prediction", "solution": true}
def ring_bytes_sent(n: int, nbytes: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of `nbytes` over `n` ranks."""
    ### BEGIN SOLUTION
    return 2 * (n - 1) / n * nbytes
    ### END SOLUTION


def ring_rounds(n: int) -> int:
    """Rounds of a ring all-reduce over `n` ranks."""
    ### BEGIN SOLUTION
    return 2 * (n - 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "ring_prediction_check", "points": 2}
report = check("02_collectives/ring_prediction", ring_bytes_sent, ring_rounds)
### BEGIN HIDDEN TESTS
report = check("02_collectives/ring_prediction", ring_bytes_sent, ring_rounds, cases="hidden")
### END HIDDEN TESTS
report.points(2)

# %% [markdown]
# For 8 GPUs and 1 GB, your functions should give 1.75 GB from each GPU, in 14 rounds.
#
# What grows with N, and what doesn't? Take links with 1/β = 50 GB/s and α = 10 µs. The cell prints both terms
# of the time for the bf16 gradient of a 7B model, and plots their sum for three sizes. (25 MB is the default
# size of the pieces in which PyTorch's `DistributedDataParallel` sends gradients, as notebook 03 shows.)

# %% tags=["skip-in-grading"]
ALPHA, BETA = 10e-6, 1 / 50e9  # a 400 Gb/s port, in one direction


def seconds_by_ranks():
    sizes = {"14 GB, a 7B gradient": 14e9, "25 MB": 25e6, "10 KB, one bias": 10e3}
    world_sizes = [2**k for k in range(1, 13)]
    figure = picture(6.4, 3.4)
    axes = figure.subplots()
    for (name, nbytes), colour, marker in zip(sizes.items(), RANKS, "os^", strict=False):
        seconds_of = [
            ring_rounds(n) * ALPHA + ring_bytes_sent(n, nbytes) * BETA for n in world_sizes
        ]
        axes.loglog(world_sizes, seconds_of, color=colour, marker=marker, markersize=4, label=name)
    axes.set_xticks([2, 8, 64, 512, 4096], ["2", "8", "64", "512", "4096"])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds")
    axes.set_title(
        "one ring all-reduce, 50 GB/s each way, 10 µs per message", loc="left", fontsize=10
    )
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False)
    return figure


if ready(ring_bytes_sent, ring_rounds):
    for n in (2, 8, 64, 512, 4096):
        sent, in_turn = ring_bytes_sent(n, 14_000_000_000), ring_rounds(n)
        print(
            f"{n:5} ranks: {sent / 1e9:6.2f} GB from each, {sent * BETA:.3f} s"
            f"  +  {in_turn:5,} rounds, {in_turn * ALPHA:.3f} s"
        )
seconds_by_ranks() if ready(ring_bytes_sent, ring_rounds) else None

# %% [markdown]
# It is often said that the cost of an all-reduce doesn't depend on N. That is half true. The bytes are
# *bounded*, because they start at M for N = 2 and approach 2 M without ever reaching it. The number of
# rounds, however, grows with N without limit. For 14 GB, the time grows by only 16 % from 64 ranks to 4,096,
# so over this range the saying nearly holds. For 10 KB, the time grows in proportion to N − 1, because nearly
# all of it is latency. For 25 MB, which of the two terms is larger depends on N.
#
# **Build.** Your function works in place and must handle *any* size: 10 elements over 4 ranks, 2 elements
# over 3, or none at all. You can call your functions from §2 and §3, or write the ring in one piece, on the
# tensor itself.
#
# If you write it in one piece, every rank can start by sending the chunk with its own number, r. In round k,
# chunk r − k − 1 then reaches rank r, which adds its own part and passes the sum on in the next round. (Here
# it doesn't matter *which* chunk a rank completes. In §2 it had to be chunk r, which is why everything there
# was shifted by one place.) For four ranks, write down which rank holds which complete sum after the last
# round of this phase, or look at the film. The second phase continues from there.


# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def reduce_chunks(chunks, group):
    """Add up all ranks' chunks, so that rank r holds the complete sum of chunk r + 1."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    scratch = torch.empty_like(chunks[0])  # as long as the longest chunk
    for k in range(n - 1):
        own = chunks[(rank - k - 1) % n]
        arriving = scratch[: own.numel()]
        pass_on(chunks[(rank - k) % n], arriving, group)
        own += arriving


### END SOLUTION


def ring_all_reduce(tensor: torch.Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, by a ring. Works like dist.all_reduce.

    tensor: any shape, contiguous or not, any size; the same shape and dtype on every rank.
    Each rank sends 2 (N-1)/N of the tensor's bytes, in 2 (N-1) rounds. If N does not divide
    the number of elements, it sends at most 2 (N-1) chunks of ceil(numel/N) elements.
    The result has the same bits on every rank.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(n)
    reduce_chunks(chunks, group)
    gather_chunks(chunks, (rank + 1) % n, group)
    tensor.copy_(flat.view_as(tensor))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: sizes that do not divide</summary><code>flat.tensor_split(n)</code> gives n views of
# <code>flat</code> whose sizes differ by at most one, so some can have size 0. All ranks compute the same
# sizes, which means that sender and receiver can both skip an empty message.</details>
# <details><summary>Hint: not contiguous</summary>Work on <code>flat = tensor.contiguous().view(-1)</code>. If
# <code>tensor</code> was not contiguous, this is a copy, so write it back with <code>tensor.copy_</code> at
# the end.</details>
# <details><summary>Hint: the complete chunk</summary>In the last round, k = N − 2, rank r adds into chunk r −
# (N − 2) − 1 = r + 1 (mod N).</details>
#
# **Check and measure.**

# %% nbgrader={"grade_id": "ring_all_reduce_check", "points": 12}
report = check("02_collectives/ring_all_reduce", ring_all_reduce)
### BEGIN HIDDEN TESTS
report = check("02_collectives/ring_all_reduce", ring_all_reduce, cases="hidden")
### END HIDDEN TESTS
report.points(12)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def ring_840():
    ring_all_reduce(torch.ones(840, device=device()))


beside(lambda n, nbytes: (ring_bytes_sent(n, nbytes), ring_rounds(n)), ring_840)
show_wire("dist.all_reduce", lambda full, part: dist.all_reduce(full))
show_wire("your ring", lambda full, part: ring_all_reduce(full))
show_wire("gather_to_one", lambda full, part: gather_to_one(full))

# %% [markdown]
# **In production.** The call is `dist.all_reduce(tensor)`. gloo's all-reduce sends as much as yours, because
# its `allreduce.cc` also has a ring. NCCL chooses among several algorithms (§5). You have built an all-reduce
# as a reduce-scatter and an all-gather. ZeRO-1 has the same two halves, with the optimizer step between them,
# so it costs no more communication than plain data parallelism (notebook 04).
#
# **Look.** The next two cells show your ring on film and as a timeline. Is the film the same as the film at
# the top of this section? (If your ring works on a copy, the boxes change only at the end, so compare the
# messages instead. If your ring is §2 followed by §3, the number next to each message is one lower than in
# that film, with 3 in place of 0.) In the timeline, count the arrows and ignore the milliseconds. Every rank
# sends six messages and receives six, of 1 MB each. In §0, by contrast, rank 0 received three messages of 4
# MB and sent three, and every other rank sent one and received one. (Grey is waiting, and on a laptop most of
# it is waiting for a core. §9 shows how that changes the time.)

# %% tags=["skip-in-grading"]
run = try_it(film_in_place, ring_all_reduce, backend="gloo")
stepper(run.ledger, run) if run else None

# %% tags=["skip-in-grading"]
run = try_it(sum_4_mb, ring_all_reduce)
run.ledger.timeline(title="4 MB on each of 4 ranks, your ring", after="barrier") if run else None

# %% [markdown]
# **Break it.** Copy your ring and let its second phase start one chunk too early. A rank that has just
# *finished* chunk c then starts from chunk c − 1, whose sum is not complete. If you wrote the ring in one
# piece, rank r finishes chunk r + 1, so start the second phase from chunk r. If your ring is §2 followed by
# §3, rank r finishes chunk r, so give `all_gather` chunk r − 1 of the rank's own tensor instead. Before you
# run the check, decide whether anything is right on any rank.


# %% nbgrader={"grade_id": "ring_from_the_wrong_chunk", "solution": true}
def ring_from_the_wrong_chunk(tensor: torch.Tensor, group: Group = None) -> None:
    """Your ring, with one mistake."""
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(n)
    reduce_chunks(chunks, group)
    gather_chunks(chunks, rank, group)  # the mistake: chunk rank + 1 is complete
    tensor.copy_(flat.view_as(tensor))
    ### END SOLUTION


# %% tags=["skip-in-grading"]
report = check("02_collectives/ring_all_reduce", ring_from_the_wrong_chunk, seed=4)
# %% [markdown]
# <details><summary>After you have run it</summary>No element is right on any rank. The second phase passed
# chunks along the ring, but each chunk held the values of a single rank. Some things, however, are <i>not</i>
# wrong. The bytes, the rounds and the shape are right, and all ranks have the same result.</details>
#
# A training run with this ring would not crash. It would learn from gradients that are about N times too
# small, because each of their chunks would come from only one rank's data. You would probably blame the
# learning rate.
#
# <details><summary>In the lectures</summary>Lecture 001 §19.3 works through the example of 8 GPUs and 1 GB:
# "each GPU sends 1.75GB", 14 hops. It concludes that the cost of communication does not depend on N. Lecture
# 003 states that an all-reduce is a reduce-scatter and an all-gather.</details>


# %% [markdown]
# ## 5 · Recursive doubling
#
# | | |
# |---|---|
# | you will write | `recursive_doubling_all_reduce(tensor, group=None)` |
# | builds on | §4 |
# | time | 20 minutes for powers of two; 15 more, *optional*, for any N |
# | difficulty, importance | 4 and 2 of 5 |
# | points | 8 |
#
# Suppose you log the loss in every step. It is one float of 4 bytes, averaged over 512 ranks. In the ring,
# that float is one of 512 chunks, and the other chunks are empty. But this one chunk must go around twice,
# which makes 2 · 511 = 1,022 hops, one after another. At 10 µs each, they take 10 ms for one number. Here the
# bytes don't matter, but the rounds do.
#
# What is the smallest number of rounds? After one round, a rank can have heard from one other rank, after two
# rounds from three others, and after k rounds from 2^k − 1 others. So an all-reduce takes at least log2 N
# rounds. If N is a power of two, recursive doubling needs no more. In round k, rank r swaps *everything it
# has* with rank r XOR 2^k, and then both add.
#
# **Predict.** Start with powers of two. If you then go on to any N (below), come back and complete your
# prediction.

# %% tags=["skip-in-grading"]
run = launch(
    film_in_place, reference.recursive_doubling_all_reduce, 2, world_size=8, backend="gloo"
)
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "recursive_doubling_cost", "solution": true}
def recursive_doubling_cost(n: int, nbytes: int) -> tuple[float, int]:
    """(bytes that the busiest rank sends, rounds) of an all-reduce by recursive doubling."""
    ### BEGIN SOLUTION
    steps = n.bit_length() - 1  # floor(log2 n)
    if n == 2**steps:
        return steps * nbytes, steps
    return (steps + 1) * nbytes, steps + 2
    ### END SOLUTION


# %% [markdown]
# **Build.** For a power of two, the algorithm is a loop over the distances 1, 2, 4 and so on. Send your
# tensor to the partner `rank ^ distance`, receive the partner's tensor, and add it. Your tensor must not
# change while it is being sent (§2), so receive into a buffer and add after the wait.
#
# *Optional: any N* (about 3 of the 8 points). Let P be the largest power of two that is at most N. Then N − P
# ranks are left over. Each leftover rank, P + i, first sends its tensor to rank i and then waits. Rank i adds
# this tensor to its own. The first P ranks then do recursive doubling among themselves. Finally, rank i sends
# the sum back to rank P + i. (Here B is one M larger than the bytes of the busiest rank.)


# %% nbgrader={"grade_id": "recursive_doubling_all_reduce", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
# (`exchange` of §2)
### END SOLUTION


def recursive_doubling_all_reduce(tensor: torch.Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, by recursive doubling.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    If N is a power of two, each rank sends M log2 N bytes, in log2 N rounds. For any other N, the
    ranks that are left over need one round before and one after. That makes floor(log2 N) + 2
    rounds, and the busiest rank sends M (floor(log2 N) + 1) bytes.
    The result has the same bits on every rank.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    core = 1 << (n.bit_length() - 1)
    total = tensor.contiguous()
    arriving = torch.empty_like(total)
    if rank >= core:  # a rank that is left over sends, and then receives the sum
        dist.send(total, group=group, group_dst=rank - core)
        dist.recv(total, group=group, group_src=rank - core)
    else:
        if rank + core < n:
            dist.recv(arriving, group=group, group_src=rank + core)
            total += arriving
        distance = 1
        while distance < core:
            exchange(total, rank ^ distance, arriving, rank ^ distance, group)
            total += arriving
            distance *= 2
        if rank + core < n:
            dist.send(total, group=group, group_dst=rank + core)
    tensor.copy_(total)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>After the round with distance d, all ranks with the same
# <code>rank // (2 * d)</code> hold the same sum, of 2d contributions. Check that for rank 5 of 8.</details>
# <details><summary>Hint: all ranks wait</summary>As in §2, post the send and the receive together, wait for
# both, then add.</details>
# <details><summary>Hint: the ranks that are left over</summary>P = <code>1 &lt;&lt; (n.bit_length() -
# 1)</code>. With N = 5, rank 4 sends to rank 0, ranks 0 to 3 do recursive doubling, and finally rank 0 sends
# the sum to rank 4.</details>
# <details><summary>Hint: the same bits</summary><code>a + b</code> and <code>b + a</code> have the same bits.
# So if both partners add the same two tensors, they get the same result, and after every round whole groups
# of ranks agree.</details>
#
# **Check and measure.**

# %% nbgrader={"grade_id": "recursive_doubling_all_reduce_check", "points": 8}
report = check("02_collectives/recursive_doubling_all_reduce", recursive_doubling_all_reduce)
### BEGIN HIDDEN TESTS
report = check(
    "02_collectives/recursive_doubling_all_reduce", recursive_doubling_all_reduce, cases="hidden"
)
### END HIDDEN TESTS
report.points(8)


# %% tags=["skip-in-grading"]
def doubling_840():
    recursive_doubling_all_reduce(torch.ones(840, device=device()))


beside(recursive_doubling_cost, doubling_840)

# %% [markdown]
# At 8 ranks, recursive doubling takes 3 rounds and sends 3 M, whereas the ring takes 14 rounds and sends 1.75
# M.
#
# **Break it.** Why does the docstring insist on *the same bits*? In the next cell, every rank gets all
# contributions and adds them up starting with its own. Every rank adds the same numbers, but in a different
# order.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def own_order():
    rank, n = dist.get_rank(), dist.get_world_size()
    gradient = torch.randn(1000, device=device())  # every rank has its own seed
    everyone = torch.empty(n * 1000, device=device())
    all_gather(everyone, gradient)
    parts = everyone.view(n, 1000)
    total = torch.zeros(1000, device=device())
    for k in range(n):
        total += parts[(rank + k) % n]
    return total.cpu()


totals = try_it(own_order) or []
for rank, total in enumerate(totals):
    print(f"rank {rank}: {(total != totals[0]).sum():4} of 1,000 elements differ from rank 0's")

# %% [markdown]
# Floating-point sums are rounded, so the order matters. The differences are only in the last bits. But each
# replica now takes a slightly different step, from slightly different weights, a hundred thousand times, and
# nothing ever pulls the replicas together again. Your two algorithms avoid this. A ring sums each chunk in
# one order and copies the result, and in recursive doubling both partners add the same two tensors.
#
# **In production.** It is often said that NCCL uses trees for small N and rings for large N, but its
# developers say otherwise. NCCL has a formula for the time of each algorithm (ring, tree, a sum made by the
# network switch) with each protocol (how a message is cut and signalled). It computes all these times for the
# *message size*, the nodes and the links it has, and then chooses the combination with the least time (NCCL
# issue 457; the code is `tuning.cc`). Trees win when latency dominates, that is, with small messages or
# *many* nodes. On two nodes they can also win on large messages (issue 946).
#
# <details><summary>NCCL's tree</summary>NCCL's tree is not recursive doubling. It is a pair of binary trees
# that each carry half of the tensor, up to the root and down again, in pieces. A root sends M, and every
# other rank sends at most 2 M, which is a little more than in the ring. But the rounds grow only with log N
# (NCCL issue 457).</details>
# <details><summary>Rabenseifner's all-reduce</summary>MPICH uses recursive doubling for short messages, and
# for long ones an algorithm by Rabenseifner, which is also a reduce-scatter followed by an all-gather. In the
# first half of its rounds, the messages have M/2, M/4, M/8, ... bytes, and in the second half they double
# again. If N is a power of two, each rank sends 2 (N−1)/N M in 2 log2 N rounds (Thakur et al. 2005). To see
# it on film, replace <code>reference.recursive_doubling_all_reduce, 2</code> in this section's first code
# cell with <code>reference.rabenseifner_all_reduce, 8</code>.</details>
# <details><summary>In the lectures</summary>The rule of small N and large N is in lecture 001,
# §19.3.</details>

# %% [markdown]
# ## 6 · All-to-all
#
# | | |
# |---|---|
# | you will write | `all_to_all(output, input, group=None)` |
# | builds on | §2 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 5 |
#
# This time there is nothing to add. Every rank has N chunks, one *for each* rank, and every chunk goes to the
# rank it is meant for, so chunk d of rank s becomes chunk s of rank d. If you write the ranks as rows and the
# chunks as columns, the exchange transposes a matrix. A mixture-of-experts layer sends each token to the rank
# that holds its *expert*, one of several networks the layer chooses from. Ulysses attention (notebook 08)
# turns "all heads of my tokens" into "all tokens of my heads". Both are all-to-alls.
#
# **Predict** the cost. In each round, every rank sends one message and receives one.


# %% tags=["skip-in-grading"]
def film_all_to_all(algorithm):
    input = contribution(dist.get_world_size())
    output = torch.zeros_like(input)
    with watch(input=input, output=output) as film:
        algorithm(output, input)
    return film


run = launch(film_all_to_all, reference.all_to_all, world_size=4, backend="gloo")
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "all_to_all_cost", "solution": true}
def all_to_all_cost(n: int, nbytes: int) -> tuple[float, int]:
    """(bytes that each rank sends, rounds) of a pairwise all-to-all,
    in which each rank's input has `nbytes`."""
    ### BEGIN SOLUTION
    return (n - 1) / n * nbytes, n - 1
    ### END SOLUTION


# %% [markdown]
# **Build.** If all ranks first send to rank 0, then to rank 1, and so on, rank 0 has N − 1 senders at its
# door while the others have none. It is better if, in round k, rank r sends to r + k and receives from r − k,
# for k = 1, ..., N − 1.


# %% nbgrader={"grade_id": "all_to_all", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
# (`exchange` of §2)
### END SOLUTION


def all_to_all(output: torch.Tensor, input: torch.Tensor, group: Group = None) -> None:
    """Send chunk d of `input` to rank d, and receive chunk s of `output` from rank s.

    input, output: (N*k, ...), cut along dim 0 into N equal chunks; contiguous or not; `input` is
    unchanged. Works like dist.all_to_all_single with equal splits.
    Each rank sends N-1 messages, together (N-1)/N of the input's bytes. Its own chunk is copied.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    result = output.contiguous()
    outgoing, arriving = input.contiguous().tensor_split(n), result.tensor_split(n)
    arriving[rank].copy_(outgoing[rank])
    for k in range(1, n):
        to, source = (rank + k) % n, (rank - k) % n
        exchange(outgoing[to], to, arriving[source], source, group)
    output.copy_(result)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Use one <code>batch_isend_irecv</code> per round, as in the ring, but with
# other partners in each round: <code>(rank + k) % n</code> and <code>(rank - k) % n</code>.</details>
#
# **Check and measure.**

# %% nbgrader={"grade_id": "all_to_all_check", "points": 5}
report = check("02_collectives/all_to_all", all_to_all)
### BEGIN HIDDEN TESTS
report = check("02_collectives/all_to_all", all_to_all, cases="hidden")
### END HIDDEN TESTS
report.points(5)


# %% tags=["skip-in-grading"]
def all_to_all_840():
    full = torch.ones(840, device=device())
    all_to_all(torch.empty_like(full), full)


beside(all_to_all_cost, all_to_all_840)

# %% [markdown]
# **In production.** The call is `dist.all_to_all_single(output, input)`, with lists of sizes if the chunks
# differ in size, as they do when experts are not equally popular.
#
# **Break it.** To save memory, let the result overwrite the input, with `all_to_all(x, x)`. What can go
# wrong, and when would it go unnoticed?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def in_place():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(n, device=device()) + 10 * rank
    all_to_all(x, x)
    return x.tolist()


results(in_place)

# %% [markdown]
# <details><summary>After you have run it</summary>Rank 0 should hold 0, 10, 20, 30. There are three possible
# outcomes. If the result is right, your function keeps a copy, so no memory is saved. If the result is wrong,
# a chunk was overwritten before it had left. If the ledger complains, the reason is a round in which the same
# chunk is sent and received. Every even N has such a round. The mistake goes unnoticed when all test data are
# alike, such as all ones. <code>torch.distributed</code> doesn't promise to notice at all.</details>

# %% [markdown]
# ## 7 · Two kinds of wire *(optional)*
#
# | | |
# |---|---|
# | you will write | `hierarchical_all_reduce(tensor, intra_group, inter_group)` |
# | builds on | §2, §3, §4 |
# | time | 30 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | points | 5 |
#
# A cluster has fast wires inside a node and slow ones between nodes (the table in notebook 00, §4, lists
# them). NVLink in an H100 SXM node carries 450 GB/s each way. A 400 Gb/s port between nodes carries 50 GB/s
# each way, a ninth of that. So an all-reduce over 8 nodes of 8 GPUs should send as little as possible between
# the nodes. It takes three steps:
#
# 1. *reduce-scatter* inside each node, so that GPU i of a node holds 1/8 of the node's sum;
# 2. *all-reduce* across nodes, in which the GPUs with the same place i, one from each of the eight nodes, sum
#    only that 1/8;
# 3. *all-gather* inside each node.
#
# The film shows 2 nodes of 2 ranks, {0, 1} and {2, 3}.
#
# **Predict.** How many bytes does each rank send inside its node, and how many to other nodes?


# %% tags=["skip-in-grading"]
def node_groups(per_node):
    """This rank's (intra_group, inter_group): its node,
    and the ranks with the same place in their nodes."""
    rank, n = dist.get_rank(), dist.get_world_size()
    intra = [dist.new_group(range(first, first + per_node)) for first in range(0, n, per_node)]
    inter = [dist.new_group(range(place, n, per_node)) for place in range(per_node)]
    return intra[rank // per_node], inter[rank % per_node]


def film_hierarchical(algorithm):
    groups = node_groups(2)
    tensor = contribution(4)
    with watch(tensor) as film:
        algorithm(tensor, *groups)
    return film


run = launch(film_hierarchical, reference.hierarchical_all_reduce, world_size=4, backend="gloo")
stepper(run.ledger, run)


# %% nbgrader={"grade_id": "hierarchical_bytes", "solution": true}
def hierarchical_bytes(per_node: int, nodes: int, nbytes: int) -> tuple[float, float]:
    """Bytes that each rank sends (inside its node, across nodes)."""
    ### BEGIN SOLUTION
    inside = 2 * (per_node - 1) / per_node * nbytes
    across = 2 * (nodes - 1) / nodes * nbytes / per_node
    return inside, across
    ### END SOLUTION


# %% [markdown]
# **Build.** You already have all the parts. Let g be the number of ranks in a node. Decide how to handle
# sizes that are not multiples of g. Either pad, or cut with `tensor_split` as in §4.


# %% nbgrader={"grade_id": "hierarchical_all_reduce", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
# (`reduce_chunks` and `gather_chunks` of §4 and §3)
### END SOLUTION


def hierarchical_all_reduce(tensor: torch.Tensor, intra_group: Group, inter_group: Group) -> None:
    """Sum `tensor` over all ranks, in place, in three steps: inside nodes, across, and inside.

    tensor: any shape and size; the same shape and dtype on every rank.
    intra_group: the g ranks of this rank's node. inter_group: the n ranks with the same
    place in their nodes.
    Each rank sends 2 (g-1)/g M bytes inside and 2 (n-1)/n M/g across, in 2 (g-1) + 2 (n-1) rounds.
    """
    ### BEGIN SOLUTION
    place, g = dist.get_rank(intra_group), dist.get_world_size(intra_group)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(g)
    complete = (place + 1) % g
    reduce_chunks(chunks, intra_group)
    ring_all_reduce(chunks[complete], inter_group)
    gather_chunks(chunks, complete, intra_group)
    tensor.copy_(flat.view_as(tensor))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the idea</summary>Make three calls: your <code>reduce_scatter</code> in
# <code>intra_group</code>, <code>ring_all_reduce</code> of the result in <code>inter_group</code>, and
# <code>all_gather</code> in <code>intra_group</code>.</details>
# <details><summary>Hint: sizes that do not divide</summary>Copy the tensor into a buffer of zeros whose
# length is the next multiple of g, work on that, and then copy the first <code>numel</code> elements back.
# Zeros add nothing.</details>
#
# **Check and measure.** The second cell uses two nodes of four ranks and 3,360 bytes. The ledger's matrix
# shows how much each rank sent to every other rank. Ranks 0 to 3 are one node and ranks 4 to 7 the other, so
# the two 4 x 4 blocks on the diagonal are inside the nodes.

# %% nbgrader={"grade_id": "hierarchical_all_reduce_check", "points": 5}
report = check("02_collectives/hierarchical_all_reduce", hierarchical_all_reduce)
### BEGIN HIDDEN TESTS
report = check("02_collectives/hierarchical_all_reduce", hierarchical_all_reduce, cases="hidden")
### END HIDDEN TESTS
report.points(5)


# %% tags=["skip-in-grading"]
def two_nodes(swap=False):
    intra, inter = node_groups(4)
    tensor = torch.ones(840, device=device())
    hierarchical_all_reduce(tensor, *((inter, intra) if swap else (intra, inter)))
    return tensor[0].item()


if ready(hierarchical_bytes):
    inside, across = hierarchical_bytes(4, 2, NBYTES)
    print(f"you say:    {inside:,.0f} bytes inside, {across:,.0f} across")
if run := try_it(two_nodes, world_size=8):
    sent = run.ledger.matrix()
    print(f"the ledger: {sent[0, :4].sum():,.0f} bytes inside, {sent[0, 4:].sum():,.0f} across")
run.ledger.matrix_figure(title="two nodes of four ranks: bytes sent") if run else None

# %% [markdown]
# **Break it.** Swap the two groups. Before you run it, decide whether the sum is still right.

# %% tags=["skip-in-grading"]
if run := try_it(two_nodes, swap=True, world_size=8):
    print("every rank holds", run[0])
run.ledger.matrix_figure(title="the groups swapped") if run else None

# %% [markdown]
# <details><summary>After you have run it</summary>The sum is right, but four times as many bytes cross the
# slow wires. A test that compares values can't find this, but a look at the matrix can. On real clusters, the
# same thing happens when the launcher places ranks round-robin over the nodes, while the code believes that
# ranks 0 to 7 share a node.</details>
#
# **In production.** This is hybrid sharding (HSDP). `fully_shard` on a two-dimensional mesh (ranks in rows
# and columns) reduce-scatters gradients along one axis and all-reduces the shards along the other. The
# all-gather then comes with the next forward (notebook 05).
#
# Is *one* ring through all 64 GPUs so bad, then? It leaves each node at only one place, so 2 · 63/64 M = 1.97
# M go out of a node. In the three steps, each of a node's 8 GPUs sends 2 · 7/8 · M/8 = 0.22 M to other nodes.
# Together this is 1.75 M, which is hardly less. But the eight GPUs can send through eight ports, whereas the
# one ring pushes all its bytes through *one*. So NCCL builds several rings through all GPUs, each of which
# leaves the node by a different port (NCCL issue 471). The latency remains, however, because a ring over 64
# GPUs has 2 · 63 = 126 rounds, whereas the three steps have 7 + 14 + 7 = 28.
#
# <details><summary>In the lectures</summary>Lecture 001 says "NCCL (intra-node), InfiniBand (inter-node)".
# That compares a library with a wire, although NCCL runs over both kinds of wire. For the lectures' figures
# for the wires, see the note in notebook 00, §4.</details>


# %% [markdown]
# ## 8 · What it will cost
#
# | | |
# |---|---|
# | you will write | `bytes_sent_per_rank`, `rounds`, `seconds`, `crossover` |
# | builds on | your predictions so far |
# | time | 15 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 4 |
#
# Put your formulas together. An algorithm goes by the name of its function: `"broadcast"`,
# `"reduce_scatter"`, `"all_gather"`, `"ring_all_reduce"`, `"recursive_doubling_all_reduce"`, `"all_to_all"`.
# `nbytes` is always the full tensor (for `"all_to_all"`, one rank's input), and the bytes are counted for the
# busiest rank. Here recursive doubling must be right for *any* N, because more than half of the 4 points
# depend on it. The docstring in §5 has the formula, so you can do this even if you skipped that part.
#
# The last function answers the question that decides which algorithm a library chooses. Ring and recursive
# doubling compute the same thing, but one sends less and the other takes fewer rounds. At how many bytes do
# they take the same time? Write down *rounds · α + bytes · β* for both, set them equal and solve for the
# bytes. There is an N for which the ring never wins. For this N, return `math.inf`.


# %% nbgrader={"grade_id": "predictions", "solution": true}
# Helpers of your own, if you like:
### BEGIN SOLUTION
def predicted(algorithm: str, n: int, nbytes: float) -> tuple[float, int]:
    """(bytes, rounds) by the formulas of the sections."""
    if n == 1:
        return 0, 0
    if algorithm == "ring_all_reduce":
        return ring_bytes_sent(n, nbytes), ring_rounds(n)
    formulas = {
        "broadcast": broadcast_cost,
        "reduce_scatter": reduce_scatter_cost,
        "all_gather": all_gather_cost,
        "recursive_doubling_all_reduce": recursive_doubling_cost,
        "all_to_all": all_to_all_cost,
    }
    return formulas[algorithm](n, nbytes)


### END SOLUTION


def bytes_sent_per_rank(algorithm: str, n: int, nbytes: float) -> float:
    """Bytes that the busiest of `n` ranks sends in `algorithm`."""
    ### BEGIN SOLUTION
    return predicted(algorithm, n, nbytes)[0]
    ### END SOLUTION


def rounds(algorithm: str, n: int) -> int:
    """Rounds of `algorithm` on `n` ranks."""
    ### BEGIN SOLUTION
    return predicted(algorithm, n, 0)[1]
    ### END SOLUTION


def seconds(algorithm: str, n: int, nbytes: float, alpha: float, beta: float) -> float:
    """Seconds that `algorithm` takes, which are rounds * alpha + bytes * beta."""
    ### BEGIN SOLUTION
    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta
    ### END SOLUTION


def crossover(n: int, alpha: float, beta: float) -> float:
    """Bytes above which `ring_all_reduce` takes less time than `recursive_doubling_all_reduce`."""
    ### BEGIN SOLUTION
    ring, doubling = "ring_all_reduce", "recursive_doubling_all_reduce"
    more_rounds = rounds(ring, n) - rounds(doubling, n)
    fewer_bytes = bytes_sent_per_rank(doubling, n, 1) - bytes_sent_per_rank(ring, n, 1)
    return more_rounds * alpha / (fewer_bytes * beta) if fewer_bytes > 0 else math.inf
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the crossover</summary>The ring has <i>more rounds</i>, which cost (rounds_ring −
# rounds_doubling) · α, whatever the size. But it sends <i>fewer bytes</i>, which saves (bytes_doubling −
# bytes_ring) · β. Both numbers of bytes are proportional to M.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "predictions_check", "points": 4}
report = check("02_collectives/predictions", bytes_sent_per_rank, rounds, seconds, crossover)
### BEGIN HIDDEN TESTS
report = check(
    "02_collectives/predictions", bytes_sent_per_rank, rounds, seconds, crossover, cases="hidden"
)
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# Now you can judge the rule from §5, trees for small N and rings for large N. The cell prints the crossover
# for several N, on links with α = 10 µs and 50 GB/s.
#
# **Break it.** The classic mistake is a wrong unit. The last three lines of the output show how long one ring
# all-reduce takes (14 GB on 64 ranks), according to three readings of the same data sheet.

# %% tags=["skip-in-grading"]
for n in (2, 8, 64, 512) if ready(crossover) else ():
    where = crossover(n, ALPHA, BETA)
    print(
        f"{n:4} ranks: the ring "
        + ("never wins" if math.isinf(where) else f"wins above {where / 1e6:5.1f} MB")
    )
print()
readings = {
    "400 Gb/s = 50 GB/s each way": 50e9,
    "both directions as one: 100 GB/s": 100e9,
    "bits as bytes: 400 GB/s": 400e9,
}
for reading, bandwidth in readings.items() if ready(seconds) else ():
    print(f"{reading:34} {seconds('ring_all_reduce', 64, 14e9, 10e-6, 1 / bandwidth):.3f} s")

# %% [markdown]
# From 8 ranks to 512, the more ranks there are, the larger the message must be before a ring pays off. So the
# rule is the wrong way around, because *many* ranks call for few rounds, and so do *small* messages. (All
# these N are powers of two. For any other N, recursive doubling has to pay for the ranks that are left over,
# so the crossover is lower than at the next power of two. NCCL's tree sends 2 M at most, which is closer to
# the ring's bytes, so the ring has even less to gain against it.)
#
# If a cluster seems to run at half of what you computed, or at an eighth, look at the units first.

# %% [markdown]
# ## 9 · The race
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | all of it |
# | time | 10 minutes |
#
# **Predict.** Four algorithms run on four ranks of this machine, with tensors of 4 KB to 64 MB: your ring,
# your recursive doubling, `gather_to_one` from §0, and PyTorch's own. Which is first at 4 KB, and which at 64
# MB? At which size do your ring and your recursive doubling take the same time?
#
# **Measure.** A run begins when all ranks are ready and ends when the slowest rank is done. Only the best of
# several runs counts, because any other work on the machine can only add to the time.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
RACE_RANKS = 4
RACE_SIZES = [1024 * 4**k for k in range(1, 9)]  # 4 KB to 64 MB


def stopwatch(algorithms, sizes):
    """Return {name: a list for each size, with the seconds of each repetition on this rank}."""
    times = {name: [] for name in algorithms}
    for nbytes in sizes:
        tensor = torch.zeros(nbytes // 4, device=device())
        for name, algorithm in algorithms.items():
            times[name].append([])
            for _ in range(max(3, min(20, (128 << 20) // nbytes))):
                dist.barrier()
                began = time.perf_counter()
                algorithm(tensor)
                if tensor.is_cuda:
                    torch.cuda.synchronize()
                times[name][-1].append(time.perf_counter() - began)
    return times


def best(run, name):
    """Seconds at each size. The slowest rank gives the time of a repetition;
    the best repetition counts."""
    by_size = zip(*(times[name] for times in run), strict=True)
    return [torch.tensor(ranks).amax(0).min().item() for ranks in by_size]


def text(nbytes):
    return f"{nbytes / 1024:.0f} KB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.3g} MB"


contestants = {
    "gather_to_one": gather_to_one,
    "ring_all_reduce": ring_all_reduce,
    "recursive_doubling_all_reduce": recursive_doubling_all_reduce,
    "dist.all_reduce": dist.all_reduce,
}
race = try_it(stopwatch, contestants, RACE_SIZES, world_size=RACE_RANKS, timeout=110)
measured = {name: best(race, name) for name in contestants} if race else {}
if race:
    print(f"milliseconds on {RACE_RANKS} ranks".ljust(30), *(f"{text(n):>7}" for n in RACE_SIZES))
for name, times in measured.items():
    print(name.ljust(30), *(f"{1000 * t:7.2f}" for t in times))

# %% [markdown]
# Now you get α and β in two ways. The first is a fit, which chooses α and β so that your `seconds` comes
# closest to the 16 measurements of your two all-reduces (8 sizes each). It counts relative errors, so that 4
# KB weighs as much as 64 MB. The second is a ping-pong between two ranks, in which α is the time of the
# smallest message, and β is the time per byte of the largest.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
RING, DOUBLING = "ring_all_reduce", "recursive_doubling_all_reduce"


def fit(measured):
    """(alpha, beta) with the least sum of squared relative errors over the times of the ring
    and of recursive doubling."""
    rows = [
        [rounds(name, RACE_RANKS) / t, bytes_sent_per_rank(name, RACE_RANKS, nbytes) / t]
        for name in (RING, DOUBLING)
        for nbytes, t in zip(RACE_SIZES, measured[name], strict=True)
    ]
    design = torch.tensor(rows, dtype=torch.float64)
    scale = design.norm(dim=0)
    ones = torch.ones(len(rows), 1, dtype=torch.float64)
    alpha, beta = (torch.linalg.lstsq(design / scale, ones).solution[:, 0] / scale).tolist()
    return max(alpha, 1e-9), max(beta, 1e-15)


if measured and ready(rounds, bytes_sent_per_rank):
    alpha, beta = fit(measured)
    print(f"in the race: alpha {1e6 * alpha:.0f} µs per round, 1/beta {1e-9 / beta:.2f} GB/s")

(small, latency), *_, (large, duration) = doctor.measure_link().table  # ping-pong of two ranks
print(
    f"two ranks alone: {1e6 * latency:.0f} µs for a message of {small} bytes, "
    f"{large / duration / 1e9:.2f} GB/s at {text(large)}"
)


# %% tags=["skip-in-grading"]
def race_figure():
    predicted_at = crossover(RACE_RANKS, alpha, beta)
    figure = picture(8.2, 4.2)
    figure.subplots_adjust(right=0.66)
    axes = figure.subplots()
    colours = [RANKS[7], RANKS[0], RANKS[1], RANKS[2]]
    for (name, times), colour, marker in zip(measured.items(), colours, "xos^", strict=True):
        axes.loglog(RACE_SIZES, times, marker + "-", color=colour, ms=5, lw=1.2, label=name)
        if name in (RING, DOUBLING):
            model = [seconds(name, RACE_RANKS, nbytes, alpha, beta) for nbytes in RACE_SIZES]
            axes.loglog(RACE_SIZES, model, "--", color=colour, lw=1.2, label="    your formula")
    if RACE_SIZES[0] < predicted_at < RACE_SIZES[-1]:
        axes.axvline(
            predicted_at, color="#6E6E6E", linestyle=":", label="crossover of the fitted lines"
        )
    low, high = axes.get_ylim()
    marks = [x * 10**k for k in range(-5, 2) for x in (1, 2, 5) if low < x * 10**k < high]
    axes.set_xticks(RACE_SIZES, [text(n) for n in RACE_SIZES])
    axes.set_yticks(marks, [f"{1000 * t:g} ms" for t in marks])
    axes.minorticks_off()
    axes.set_xlabel("bytes of the tensor (1 KB = 1,024)")
    axes.set_title(f"all-reduce on {RACE_RANKS} ranks of this machine, {race.backend}", fontsize=10)
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


race_figure() if measured and ready(rounds, bytes_sent_per_rank, seconds, crossover) else None


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def crossovers():
    predicted_at = crossover(RACE_RANKS, alpha, beta)
    ratios = [
        ring / doubling for ring, doubling in zip(measured[RING], measured[DOUBLING], strict=True)
    ]
    behind = [nbytes for nbytes, ratio in zip(RACE_SIZES, ratios, strict=True) if ratio > 1]
    if not behind:
        region = f"below {text(RACE_SIZES[0])}: the ring is ahead everywhere"
    elif behind[-1] == RACE_SIZES[-1]:
        region = f"above {text(RACE_SIZES[-1])}: the ring is never ahead"
    else:
        region = (
            f"between {text(behind[-1])} and {text(RACE_SIZES[RACE_SIZES.index(behind[-1]) + 1])}"
        )
    expected = crossover(RACE_RANKS, latency, duration / large)
    print(
        f"At {text(RACE_SIZES[0])} your ring takes {ratios[0]:.1f} times as long as your recursive doubling, "
        f"and at {text(RACE_SIZES[-1])} {ratios[-1]:.1f} times.\n"
        f"Crossover, predicted from ping-pong's alpha and beta: {text(expected)}\n"
        f"Crossover of the lines fitted to the race:           {text(predicted_at)}\n"
        f"Crossover, measured: {region}"
    )
    for name in (RING, DOUBLING, "dist.all_reduce"):
        n_rounds = rounds(DOUBLING if name == DOUBLING else RING, RACE_RANKS)
        each = 1e6 * measured[name][0] / n_rounds
        print(f"{name:30} at {text(RACE_SIZES[0])}: {n_rounds} rounds, {each:,.0f} µs each")


crossovers() if measured and ready(rounds, bytes_sent_per_rank, crossover) else None
for name, times in measured.items():
    algorithm_bandwidth = RACE_SIZES[-1] / times[-1] / 1e9
    bus_bandwidth = algorithm_bandwidth * 2 * (RACE_RANKS - 1) / RACE_RANKS
    print(f"{name:30} {algorithm_bandwidth:6.2f} GB/s algorithm, {bus_bandwidth:6.2f} GB/s bus")

# %% [markdown]
# Look at five things. They depend on your machine, so compare each sentence with your own figures.
#
# *The fit knew the answer, but ping-pong did not.* The fit chose α and β to suit these very curves, so their
# crossover only describes the measurement. The crossover computed from ping-pong is a prediction. If it is
# far off, the gap is the price of the assumption that every rank has its own wire. Ping-pong keeps two ranks
# busy and has the memory to itself, whereas in the race four ranks copy and add at the same time. If you
# compare both values of 1/β, you see that α and β depend on the load as well as on the computer.
#
# *On the left, only rounds count.* The ring has 6 and recursive doubling has 2, so with one α for both, the
# ring takes three times as long. If your factor is not three, a round doesn't cost the same in both (see the
# three lines with the cost of a round). Part of this cost is the wait for a core, because in every round
# *all* ranks need one.
#
# *The built-in* runs its rounds in C++, while yours go through Python and the ledger. (The printed lines
# count its rounds as if it were a ring. But gloo might use another algorithm for small tensors, and then its
# time per round means nothing.)
#
# *`gather_to_one` might do far too well.* In the model, 3 M come into rank 0 and then 3 M go out. That makes
# 6 M one after another, four times the ring's 1.5 M. But there is no wire here. All ranks share the cores and
# the memory, so the *sum* of all bytes counts, and that is 6 M for both (§4). And `gather_to_one` keeps only
# one pair of ranks awake at a time, so two cores are enough for it. On four machines, where every rank has
# its own wire, the formula holds.
#
# *Recursive doubling might bend up at the end.* At 64 MB, the bytes decide. The ring sends 1.5 M and
# recursive doubling 2 M, so the ring should take 1.5 / 2 = 0.75 of doubling's time. If the ring takes much
# less, look at the memory, because doubling receives into a buffer as large as the tensor. If that buffer is
# new in every call, it is fetched from the system each time, page by page. The reason is that glibc, the C
# library of Linux, keeps no freed block of more than 32 MB (`man mallopt`, M_MMAP_THRESHOLD). α and β don't
# account for memory.
#
# **In production.** `nccl-tests` prints two bandwidths, and so do the last four lines above. The *algorithm
# bandwidth* is M divided by the time. The *bus bandwidth* is the algorithm bandwidth times 2 (N−1)/N for an
# all-reduce. It is the bandwidth of each wire, provided the algorithm sent the least possible. So you can
# compare it with the data sheet for any N, and a wasteful algorithm shows up as a low number.
#
# On a machine with four GPUs, the race runs over NCCL without a change. There, also add `1 << 28` and `1 <<
# 30` to `RACE_SIZES`, because 64 MB is small for NVLink.

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them the cells show a recorded run, if there is
# one.*
#
# **Predict.** NCCL's all-reduce is timed on sizes from 4 KB to 1 GB. Take α from the smallest message and β
# from the largest one. Does your formula then fit the sizes between? And how much slower than NCCL is your
# own ring?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus, rows_named
from course_lib.gpu.messages import ALL_REDUCES


def between(of, run):
    """Your formula, with α and β from the smallest and the largest message."""
    n, (first, *_, last) = of["ranks"], rows_named(run, name="all-reduce")
    alpha = first.value / rounds(RING, n)
    beta = last.value / bytes_sent_per_rank(RING, n, last.of["bytes"])
    return seconds(RING, n, of["bytes"], alpha, beta)


on_gpus = on_your_gpus(ALL_REDUCES, predicted=between)
if on_gpus and on_gpus.here and ready(ring_all_reduce):
    on_gpus = on_your_gpus(ALL_REDUCES, predicted=between, source=False, yours=ring_all_reduce)
# %% [markdown]
# NCCL changes its algorithm and its protocol with the size, so no single pair of α and β fits all sizes. With
# `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING`, it says what it chose. Your ring sends the same bytes. But
# NCCL adds a piece while the next piece arrives, inside one kernel, whereas your ring returns to Python in
# every round.

# %% [markdown]
# ## 10 · Questions
#
# | | |
# |---|---|
# | builds on | §4, §8, §9 |
# | time | 10 minutes |
# | points | 4 |
#
# These questions come up in interviews. A number may be an expression, such as `3 * 14 / 50`.
#
# 1. A job on 64 ranks sums 70 GB of gradients with a ring, on links that carry 50 GB/s each way. What is the
#    least time, in **seconds**, that the bytes alone need?
# 2. The ring is now 512 ranks long and sums 10 MB, with α = 10 µs. What takes nearly all of its time,
#    `"latency"` or `"bandwidth"`?
# 3. A ring that passes on *whole tensors* for N − 1 rounds, adding what arrives, also gives the right sum.
#    How many **times** the least possible bytes does each of sixteen ranks send?
# 4. Eight ranks all-reduce 4 GB in 0.1 s. Which **bus bandwidth in GB/s** does `nccl-tests` print?

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # seconds
answer_2 = ...  # "latency" or "bandwidth"
answer_3 = ...  # times
answer_4 = ...  # GB/s
### BEGIN SOLUTION
answer_1 = 2 * 63 / 64 * 70e9 / 50e9
answer_2 = "latency"  # 1,022 rounds of 10 µs are 10 ms; 20 MB at 50 GB/s are 0.4 ms
answer_3 = 15 / (2 * 15 / 16)
answer_4 = 4 / 0.1 * 2 * 7 / 8
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 4}
report = check("02_collectives/questions", answer_1, answer_2, answer_3, answer_4)
### BEGIN HIDDEN TESTS
report = check("02_collectives/questions", answer_1, answer_2, answer_3, answer_4, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# ## Scorecard
#
# Every way to distribute training is judged by three criteria: little redundant computation, low peak memory,
# and little communication. Here is what your own code costs. The job is to sum four tensors of 3.36 MB. A
# single process would need 3 additions per element.


# %% tags=["skip-in-grading"]
def sum_job(algorithm, numel=840_000):
    mine = torch.ones(numel, device=device())
    with costs(mine) as cost:
        algorithm(mine)
    return cost


scorecard(
    {
        algorithm.__name__: run
        for algorithm in (gather_to_one, recursive_doubling_all_reduce, ring_all_reduce)
        if (run := try_it(sum_job, algorithm))
    },
    unit=4 * 840_000,
    flops_alone=3 * 840_000,
)

# %% [markdown]
# Recursive doubling adds everything on every rank, so it pays for its few rounds with more additions than one
# process needs. `gather_to_one` does no unnecessary additions, but one rank does them all. The ring does no
# unnecessary additions either, and it sends the least. If one buffer serves all rounds, the ring needs room
# for only one chunk in addition to the tensor, 1.25 M in all. If your ring's peak is higher, it holds more
# buffers at the same time, such as a new one in each round, or a copy of the tensor. The card doesn't show
# the rounds, which are 6, 2 and 6 from top to bottom. In rounds, then, the ring is not better than
# `gather_to_one`.
#
# **You have built** all the exchanges that the rest of the course is made of, and you can predict how much
# each of them costs. Next, notebook 03 all-reduces gradients while the backward pass is still running.
#
# **Read on.**
# - Thakur, Rabenseifner, Gropp (2005), *Optimization of Collective Communication Operations in MPICH*,
#   presents the algorithms and the α-β model in 18 pages.
# - Patarasuk, Yuan (2009), *Bandwidth optimal all-reduce algorithms for clusters of workstations*, proves the
#   lower bound.
# - Sanders, Speck, Träff (2009), *Two-tree algorithms for full bandwidth broadcast, reduction and scan*, is
#   the origin of NCCL's trees.
# - NCCL issues 457 (how it chooses), 471 (rings and nodes), 946 (trees that win on large messages, on two
#   nodes).
# - `course_lib/collectives/` is a reference implementation of all these exchanges, and also of scatter,
#   gather, reduce, Rabenseifner's all-reduce and the double binary tree. Read it after you have written
#   yours.
#
# <details><summary>In the lectures</summary>The three criteria are from lecture 003.</details>
#
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("02_collectives")
