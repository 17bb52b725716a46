# %% [markdown]
# # 00 · First ranks
#
# **What is a rank, what is a message, and why does my program hang?**
#
# If you train a model of 7 billion parameters with Adam in fp32, each parameter needs 4 bytes for its weight,
# 4 for its gradient and 4 for each of Adam's two moments. That makes 16 bytes × 7 billion = 112 GB, even
# without activations. But an A100 has at most 80 GB, so you need more than one A100. Then you also need more
# than one process, and the processes have to send each other messages. Most of this course is about sending
# fewer messages, or about sending them while something else is computed. This notebook is about the messages
# themselves.
#
# | | |
# |---|---|
# | you will build | `hello`, `exchange`, `ring_shift`; three repairs of programs that hang |
# | you will be able to | read from a diagnosis which rank waits for which, and why; say what a message costs |
# | you need to know | Python and PyTorch tensors, but nothing about networks or `torch.distributed` |
# | time | two hours, and 10 minutes for the optional §5.9 |
# | points | 10 |
# | on a rented machine | nothing to rent, because the CPU of a laptop is enough. With at least four GPUs, some cells run over NCCL. The section *On your GPUs* uses one or two GPUs |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 Ranks | 10 | 1 | |
# | 2 Messages | 15 | | 1 |
# | 3 Exchange and shift | 35 | 4 | 2 |
# | 4 What a message costs | 10 | | 2 |
# | 5 The lab: programs that hang | 35, and 10 *optional* | 4 | 3 |
# | 6 In production | 10 | | 3, 5 |
# | 7 Questions | 5 | 1 | 4, 5 |
#
# Work from top to bottom, because the cells below an exercise use your solution. In every notebook, the table
# at the top of a section rates the difficulty and the importance of its exercises from 1 to 5. The difficulty
# is relative to the other exercises of the course, and the importance says how much of what follows builds on
# these exercises.
#
# <details><summary>In the lectures</summary>This course is built on five texts, the lectures 000 to 004. You
# do not need them. Folded notes like this one cite the lectures, and correct them if they are wrong. The
# figure of 112 GB is from lecture 003.</details>

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import os
import time

import torch
import torch.distributed as dist

from course_lib import RankError, check, device, doctor, launch
from course_lib.unfinished import ready

# %% [markdown]
# First, let's see what this machine can do. The doctor starts two ranks, lets them send messages back and
# forth, and prints a report. (In a terminal, run `python -m course_lib.doctor`.) You don't have to know all
# words of the report yet. §1 explains ranks, and §4 explains α and β. If a line is marked `ok` or `note`, you
# don't have to do anything. If a line is marked `problem`, it also says what you can do.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
doctor.report()

# %% [markdown]
# ## 1 · Ranks
#
# | | |
# |---|---|
# | you will write | `hello()` |
# | builds on | nothing |
# | time | 10 minutes |
# | difficulty, importance | 1 and 5 of 5 |
# | points | 1 |
#
# A distributed program is one function that several processes run at the same time. Each process is a
# **rank**. The ranks are numbered from 0 to N - 1, and N is the **world size**. All ranks run the same code,
# so they differ only in their numbers.
#
# `launch(f, world_size=4)` starts four processes on this machine, calls `f()` in each of them, and returns a
# list of the four results, in order of rank.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def who_am_i():
    return dist.get_rank(), os.getpid()


launch(who_am_i, world_size=4)

# %% [markdown]
# The second number of each pair is a process id. If you run the cell again, you get four other ids, because
# every `launch` starts new processes. So a mistake in one cell can't damage the ranks of the next cell.
#
# Processes share no memory. Before you run the next cell, guess which five numbers it will print.

# %% tags=["skip-in-grading"]
counter = 10


def count():
    global counter
    counter += dist.get_rank()
    return counter


print("in the ranks:", list(launch(count, world_size=4)))
print("in the notebook:", counter)

# %% [markdown]
# `launch` packs the function and the globals it uses, and sends a copy to each rank. Each rank changed only
# its own copy, so the notebook's counter is still 10. This is why ranks need messages: *the only way in which
# one rank can change something on another rank is to send it bytes.*
#
# Why do we use processes, and not threads, which share their memory? The reason is that Python's global lock
# lets only one thread run Python code at a time. PyTorch's older `DataParallel` uses one process with a
# thread per GPU, whereas `DistributedDataParallel` uses one rank per GPU.
#
# **Build.** Write `hello`, which returns the number of the rank, the world size, and the rank's device.
# `launch` has already called `dist.init_process_group`, which sets up the group of all ranks, so
# `torch.distributed` can tell you the first two. A **backend** is the library that carries the bytes between
# the ranks. Between CPUs the backend is `gloo`, and between GPUs it is NVIDIA's `nccl`. If the machine has at
# least four GPUs, and at least one for each rank, then by default the device of a rank is a GPU of its own.
# Otherwise, its device is the CPU. In the notebook itself, outside the ranks, the device is always the CPU.


# %% nbgrader={"grade_id": "hello", "solution": true}
def hello() -> tuple[int, int, str]:
    """This rank's number, the world size, and its device as text, such as (1, 4, "cpu")."""
    ### BEGIN SOLUTION
    return dist.get_rank(), dist.get_world_size(), str(device())
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: where to ask</summary>Call <code>dist.get_rank()</code>,
# <code>dist.get_world_size()</code>, and <code>device()</code>, which was imported above and returns a
# <code>torch.device</code>. To try your function, run <code>list(launch(hello, world_size=4))</code>. Don't
# call it directly, because the notebook itself is not a rank and belongs to no group.</details>

# %% nbgrader={"grade_id": "hello_check", "points": 1}
report = check("00_first_ranks/hello", hello)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/hello", hello, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# **Look.** If a rank prints a line, the line appears below the cell, with the number of the rank in front.
# Since the ranks run at the same time, the order of their lines can change. Run the cell a few times to see
# this. If you need a result, return it instead of printing it.
#
# <details><summary>In the lectures</summary>Lecture 001 compares <code>DataParallel</code> and
# <code>DistributedDataParallel</code> in §19.2. Its code calls
# <code>dist.init_process_group(backend="nccl")</code>. Here <code>launch</code> makes this call for you, with
# the backend that fits your machine.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if ready(hello):  # a cell that needs your function waits until you have written it
    launch(lambda: print("hello, I am", hello()), world_size=4)

# %% [markdown]
# ## 2 · Messages
#
# | | |
# |---|---|
# | you will write | nothing yet: run, predict, look |
# | builds on | §1 |
# | time | 15 minutes |
#
# `dist.send(tensor, dst)` sends the tensor's bytes to rank `dst`. `dist.recv(tensor, src)` waits for bytes
# from rank `src` and writes them *into* `tensor`. A message contains no shape and no dtype, so the receiver
# must already know both and provide a buffer that fits.
#
# Before you run the next cell, work out how many bytes six float32 numbers take.


# %% tags=["skip-in-grading"]
def first_message():
    if dist.get_rank() == 0:
        numbers = torch.arange(6.0, device=device())
        dist.send(numbers, dst=1)
    else:
        numbers = torch.empty(6, device=device())
        dist.recv(numbers, src=0)
    return numbers.tolist()


run = launch(first_message, world_size=2)
run[1]

# %% [markdown]
# The list returned by `launch` also has a **ledger**, `run.ledger`. It lists each operation of each rank,
# with its bytes and the line of code that called it. A send and its receive are two operations, but one
# message. The next cell shows the ledger as a table, and then as a matrix, with senders in rows and receivers
# in columns. For example, the entry in row 0 and column 1 is the number of bytes from rank 0 to rank 1.

# %% tags=["skip-in-grading"]
display(run.ledger.table(times=False))
run.ledger.matrix()

# %% [markdown]
# The cell below shows a second run as a timeline. Each row is a rank, time runs from left to right, and grey
# means *blocked in communication*. Each arrow is a message, from the call of `send` to the end of `recv`.
# Most of this time is waiting time, because the transfer itself is short. In this run, rank 1 is busy with
# something else for 50 milliseconds before it receives. What does rank 0 do in the meantime?
# (`backend="gloo"` keeps this run on the CPU, so that the picture is the same on every machine.)


# %% tags=["skip-in-grading"]
def late_receiver():
    numbers = torch.arange(6.0)
    if dist.get_rank() == 0:
        dist.send(numbers, dst=1)
    else:
        time.sleep(0.05)
        dist.recv(numbers, src=0)


run = launch(late_receiver, world_size=2, backend="gloo")
run.ledger.timeline()

# %% [markdown]
# Rank 0 waits. A call to `send` is not like dropping a letter into a mailbox, because the call returns only
# when the other rank has taken the bytes, even if there are only 24 bytes. (This is how `gloo` works. On some
# other systems, the send of a small message returns immediately, and only the send of a large message waits.
# A program that relies on the early return works only until its tensors grow.)
#
# `dist.isend` only *begins* a message and returns a handle. Later, `handle.wait()` waits until the message
# has been sent. Between the two calls, the rank can do other work. In the next run, it works for 30
# milliseconds.


# %% tags=["skip-in-grading"]
def early_start():
    numbers = torch.arange(6.0)
    if dist.get_rank() == 0:
        handle = dist.isend(numbers, dst=1)
        time.sleep(0.03)  # something useful
        handle.wait()
    else:
        time.sleep(0.05)
        dist.recv(numbers, src=0)


run = launch(early_start, world_size=2, backend="gloo")
run.ledger.timeline()

# %% [markdown]
# In the row of rank 0, the white part until 30 milliseconds is work, and the grey part after it is
# `handle.wait()`. With `send`, rank 0 would have waited during the white part as well. To make training fast,
# you mainly have to make such grey parts shorter (notebook 03).
#
# A program that sends messages must obey six rules. The lab in §5 breaks each of them:
#
# 1. Every send needs a matching receive, and every receive needs a matching send.
# 2. The sender and the receiver must use the same number of elements and the same dtype.
# 3. Between `isend` or `irecv` and `wait()`, your code must not touch the buffer.
# 4. Your code must wait for every handle.
# 5. Ranks must not wait in a circle. For example, if two partners both send first, neither of them reaches
#    its receive.
# 6. If an operation needs all ranks (§5.3), every rank must call it, and all ranks must call such operations
#    in the same order.

# %% [markdown]
# ## 3 · Exchange and shift
#
# | | |
# |---|---|
# | you will write | `exchange(tensor, group=None)`, `ring_shift(tensor, group=None)` |
# | builds on | §2 |
# | time | 35 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 1 (prediction) + 1 + 2 |
#
# Nearly everything that follows is built on two patterns. In an **exchange**, the ranks pair up, 0 with 1 and
# 2 with 3, and swap what they hold. The partner of rank r is `r ^ 1`, which is r with its lowest bit flipped.
# In a **ring shift**, every rank passes its tensor to its right neighbour, and the last rank passes its
# tensor to rank 0.
#
# ```
# exchange, 5 ranks      0 <-> 1     2 <-> 3     4
# ring shift, 5 ranks    0 --> 1 --> 2 --> 3 --> 4 --> 0
# ```
#
# If N is a power of two, the ranks can add up their tensors in log2 N rounds, with exchanges between partners
# at distance 1, 2, 4 and so on. With ring shifts, they can add up their tensors with the fewest bytes. (A
# **round** is a set of messages that can travel at the same time, because none of them waits for another.)
# You will build both algorithms in notebook 02.
#
# **Predict.** How many messages do all N ranks send together, in one exchange and in one ring shift? Write
# two functions of n that are right for any n of at least 1.


# %% nbgrader={"grade_id": "message_prediction", "solution": true}
def exchange_messages(n: int) -> int:
    """Number of messages in one exchange with rank ^ 1 on `n` ranks. A swap is two messages."""
    ### BEGIN SOLUTION
    return 2 * (n // 2)
    ### END SOLUTION


def ring_shift_messages(n: int) -> int:
    """Number of messages in one ring shift on `n` ranks. A rank sends none to itself."""
    ### BEGIN SOLUTION
    return n if n > 1 else 0
    ### END SOLUTION


# %% nbgrader={"grade_id": "message_prediction_check", "points": 1}
report = check("00_first_ranks/message_prediction", exchange_messages, ring_shift_messages)
### BEGIN HIDDEN TESTS
report = check(
    "00_first_ranks/message_prediction", exchange_messages, ring_shift_messages, cases="hidden"
)
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# **Build.** Write `exchange`. If both partners first send and then receive, both wait forever in their sends.
# There are two ways out. Either the even rank sends first and the odd rank receives first, or both ranks
# *begin* their send and their receive, and then wait for both. The second way is better, because its code is
# the same for even and odd ranks, and it takes one round instead of two.
#
# `dist.irecv` begins a receive, just as `isend` begins a send. A `P2POp` only *describes* a send or a receive
# (which is why `dist.isend` is passed without parentheses). `batch_isend_irecv` takes a list of such
# descriptions, begins all the messages and returns their handles.
#
# ```python
# handles = dist.batch_isend_irecv([
#     dist.P2POp(dist.isend, what_i_send, group=group, group_peer=partner),
#     dist.P2POp(dist.irecv, what_i_get, group=group, group_peer=partner),
# ])
# for handle in handles:
#     handle.wait()
# ```
#
# A **group** is a set of ranks (`dist.new_group([1, 3])` makes one), and `group=None` means the group of all
# ranks. `dist.get_rank(group)`, `dist.get_world_size(group)` and `group_peer=` use numbers within the group,
# so in the group {1, 3}, rank 3 has number 1. The plain `dst` and `src` of `dist.send` and `dist.recv`,
# however, are numbers in the whole world.


# %% nbgrader={"grade_id": "exchange", "solution": true}
def exchange(tensor: torch.Tensor, group=None) -> None:
    """Swap `tensor` in place with rank r ^ 1, where r is this rank's number in the group.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank. May be empty.
    With an odd number of ranks, the last rank has no partner and keeps its tensor.
    Every rank with a partner sends one message of the tensor's bytes, in one round. Uses
    point-to-point messages (send and receive) only.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    partner = rank ^ 1
    if partner >= n:
        return
    outgoing = tensor.contiguous()
    incoming = torch.empty_like(outgoing)
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=partner),
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=partner),
        ]
    )
    for handle in handles:
        handle.wait()
    tensor.copy_(incoming)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: in place</summary>If you received straight into <code>tensor</code>, you would
# overwrite what you are still sending. So receive into a second tensor and, after <code>wait()</code>, use
# <code>tensor.copy_(...)</code>.</details>
# <details><summary>Hint: not contiguous</summary>A backend reads and writes one unbroken piece of memory and
# knows nothing about strides, so <em>both</em> tensors must be contiguous. <code>tensor.contiguous()</code>
# makes a copy only if it is necessary. <code>torch.empty_like(x)</code> copies the strides of a transposed
# <code>x</code>, so make the second tensor like the contiguous one. <code>copy_</code>, however, works with
# any strides.</details>

# %% nbgrader={"grade_id": "exchange_check", "points": 1}
report = check("00_first_ranks/exchange", exchange)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/exchange", exchange, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# **Measure.** The cell runs your exchange on five ranks, with 1,000 float32 numbers each. It prints how many
# messages the run sent, next to your prediction, and then the ledger.


# %% tags=["skip-in-grading"]
def rank_number(algorithm, numel=1000):
    """Return the number this rank holds after `algorithm`, if it held its own number before."""
    mine = torch.full((numel,), float(dist.get_rank()), device=device())
    result = algorithm(mine)
    return int((mine if result is None else result)[0])


if ready(exchange, exchange_messages):
    run = launch(rank_number, exchange, world_size=5)
    sent = [run.ledger.messages_sent(rank) for rank in range(5)]
    print("held afterwards:", list(run))
    print("messages sent:  ", sent, "in total", sum(sent), "predicted", exchange_messages(5))
    display(run.ledger.table(times=False))

# %% [markdown]
# **Build.** Write `ring_shift`. Send to the right neighbour, `(r + 1) % N`, receive from the left neighbour,
# `(r - 1) % N`, and return the tensor that arrived. The caller's tensor must not change.


# %% nbgrader={"grade_id": "ring_shift", "solution": true}
def ring_shift(tensor: torch.Tensor, group=None) -> torch.Tensor:
    """Return the left neighbour's `tensor` as a new tensor,
    and send this rank's tensor to the right neighbour.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank; not changed. May
    be empty. Every rank sends one message of the tensor's bytes, in one round. A single rank gets
    a copy of its tensor and sends nothing. Uses point-to-point messages (send and receive) only.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    outgoing = tensor.contiguous()
    incoming = torch.empty_like(outgoing)
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % n),
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % n),
        ]
    )
    for handle in handles:
        handle.wait()
    return incoming
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the difference from exchange</summary>There are two neighbours instead of one
# partner, and the result is returned instead of copied back.</details>
# <details><summary>Hint: two ranks</summary>With two ranks, the left and the right neighbour are the same
# rank. But you need no special case for this, as long as you begin the send and the receive
# together.</details>

# %% nbgrader={"grade_id": "ring_shift_check", "points": 2}
report = check("00_first_ranks/ring_shift", ring_shift)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/ring_shift", ring_shift, cases="hidden")
### END HIDDEN TESTS
report.points(2)

# %% [markdown]
# **Look.** Four ranks have four elements each. The cell calls your function three times, so that every rank
# sees the data of every other rank once. Move the slider to go through the rounds. Each box is an element
# with a stripe. The colour *and the position* of the stripe say which rank the element came from (so you can
# also read the picture without colours). The messages of a round are drawn between the columns, labelled with
# the elements they carry (0-3 means all four). The elements are int64, so four of them are 32 bytes. A dark
# frame marks an element that changed in this round.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.ledger.watch import contribution, watch
from course_lib.pictures.stepper import stepper


def three_shifts():
    tensor = contribution(4)  # int64 codes that tell the picture the owner and the element
    with watch(tensor) as film:
        for _ in range(3):
            tensor.copy_(ring_shift(tensor))
    return film


# on the CPU, because the film shows only four elements per rank
run = launch(three_shifts, world_size=4, backend="gloo") if ready(ring_shift) else None
stepper(run.ledger, run) if run else None

# %% [markdown]
# **Measure.** The cell makes one shift on five ranks, and draws it twice. In the timeline, one arrow leaves
# each row, and one arrow arrives there. The ranks don't begin at the same moment, so a rank that begins early
# has to wait. This also happens in real training. In the matrix, the bytes of ranks 0 to 3 are one column to
# the right of the diagonal, and the bytes of rank 4 are in column 0, because rank 4 sends to rank 0.

# %% tags=["skip-in-grading"]
if ready(ring_shift, ring_shift_messages):
    run = launch(rank_number, ring_shift, world_size=5)
    sent = [run.ledger.messages_sent(rank) for rank in range(5)]
    print("held afterwards:", list(run))
    print("messages sent:  ", sent, "in total", sum(sent), "predicted", ring_shift_messages(5))
    display(run.ledger.timeline())
    display(run.ledger.matrix_figure())

# %% [markdown]
# **Break it.** The cell runs the most obvious ring shift on three ranks. Each rank sends to the right and
# then receives from the left. Before you run the cell, predict in which call each rank will be stuck.
# `launch` raises an error, and the cell prints its text.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def naive_shift():
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, received = torch.full((4,), float(rank)), torch.empty(4)
    dist.send(mine, (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)
    return received


try:
    launch(naive_shift, world_size=3, backend="gloo")  # gloo's sends wait for the receiver
except RankError as error:
    print(error)

# %% [markdown]
# No rank reached its receive. The diagnosis came after about a second. Without `launch`, the three ranks
# would wait for 30 minutes, which is PyTorch's default time limit for gloo, and then they would only report
# "timed out". (For NCCL, the default is 10 minutes. See `init_process_group`.)
#
# **Begun one by one.** Two ranks swap tensors and *begin* their messages one by one, first the send, then the
# receive. Neither rank waits before it has begun both messages. Before you run the program over gloo, decide
# whether it will finish.


# %% tags=["skip-in-grading"]
def swap_one_by_one():
    rank = dist.get_rank()
    mine, received = torch.full((4,), float(rank)), torch.empty(4)
    sending = dist.isend(mine, 1 - rank)
    receiving = dist.irecv(received, 1 - rank)
    sending.wait()
    receiving.wait()
    return received.tolist()


launch(swap_one_by_one, world_size=2, backend="gloo")  # over gloo, a note follows the run

# %% [markdown]
# The program finishes, because gloo works on all begun messages at the same time. But on GPUs, over NCCL, the
# same program can hang, as the note printed above says. Over NCCL, each rank has one queue, a CUDA stream,
# for each process group. (This is true in `launch`, and in a program that calls
# `init_process_group(device_id=...)`. Without a `device_id`, each pair of ranks has a queue for its messages,
# and this swap can hang there as well.) The queue holds the operations in the order of the calls, and each
# operation starts only when the previous operation is done. For the swap, the queues look like this:
#
# | | queue of rank 0 | queue of rank 1 |
# |---|---|---|
# | first | send to 1, done when rank 1 receives | send to 0, done when rank 0 receives |
# | second | receive from 1 | receive from 0 |
#
# Each receive is queued behind a send, and this send waits for the receive in the other queue. So the ranks
# wait in a circle again, but now the circle is in the queues. This is why it does not help to swap the two
# `wait()` calls. (NCCL has buffers, so a small message might get through. But NCCL does not promise that, and
# the tensors of a real model are not small.)
#
# There are two ways out. One of the ranks can begin its messages in the other order, so that rank 0 sends
# first and rank 1 receives first. Or each rank can begin its messages as a batch. A batch is *one* entry of
# the queue, and all its messages are processed at the same time (NCCL user guide, "Point-to-point
# communication"). Both ranks must use a batch. Your `exchange` uses one if it calls `batch_isend_irecv`:


# %% tags=["skip-in-grading"]
def swap_together():
    mine = torch.full((4,), float(dist.get_rank()))
    exchange(mine)
    return mine.tolist()


# on the CPU, like the run before
launch(swap_together, world_size=2, backend="gloo") if ready(exchange) else None

# %% [markdown]
# With a batch, `launch` prints no note. After a successful run over gloo, `launch` replays the operations of
# the run, including collectives, in queues like these (but only the first 10,000 operations). It prints a
# note if the ranks would wait in a circle. Checks print the same note, but they do not take off points for
# it. (If you get too many notes, set the environment variable `COURSE_NCCL_NOTES` to `off`.)
#
# **On GPUs**, one more thing is different. `wait()` makes the GPU's queue of *computations* wait for the
# message, but Python continues. So you notice a hang only later, when Python needs a number, in `.item()` or
# `.tolist()`. `launch` then raises a `Deadlock` that names the operations in the queues.
#
# **In production.** PyTorch's own pipelining calls `batch_isend_irecv` if a rank sends and receives at the
# same time. Megatron-LM uses both ways out of the circle. It can send a batch. Or it can send single
# messages, and then even ranks begin with the send and odd ranks begin with the receive
# (`p2p_communication.py`).

# %% [markdown]
# ## 4 · What a message costs
#
# | | |
# |---|---|
# | you will write | two numbers, in §7 |
# | builds on | §2 |
# | time | 10 minutes |
# | difficulty, importance | 1 and 4 of 5 |
#
# A message of n bytes takes about
#
# $$t(n) = \alpha + \beta\, n$$
#
# α is the **latency**, which is the time before the first byte arrives. β is the time per byte, so 1/β is the
# **bandwidth**. (This cost model is from Hockney (1994). Thakur, Rabenseifner and Gropp (2005) use it, and so
# do all formulas for times in this course.)
#
# **Predict.** A message of 16,384 bytes is 4,096 times as large as a message of 4 bytes. How many times as
# long will it take?
#
# **Measure.** Two ranks send a message back and forth. For each size, they make 8 round trips to warm up, and
# then 24 round trips that are timed. The time of a message is half of the median round trip. The picture
# shows these times, and the line α + βn fitted to them, on logarithmic axes. The grey vertical line marks the
# **knee**, the size at which α = βn. (If the points scatter, or if you see no knee, other programs are
# disturbing the measurement, so measure again.)

# %% tags=["nbval-ignore-output", "skip-in-grading"]
import matplotlib.pyplot as plt

link = doctor.measure_link(sizes=[4**k for k in range(1, 13)])
for nbytes, seconds in link.table:
    print(f"{nbytes:>12,} bytes {seconds * 1e6:>12,.0f} microseconds")

sizes, measured = zip(*link.table, strict=True)
curve = torch.logspace(0.6, 7.3, 100)
knee = link.alpha / link.beta
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.loglog(sizes, measured, "o", color="#222222", label="measured")
axes.loglog(curve, link.seconds(curve), "-", color="#0072B2", label="α + β n")
axes.loglog(curve, link.alpha + 0 * curve, ":", color="#6E6E6E", label="only α")
axes.loglog(curve, link.beta * curve, "--", color="#6E6E6E", label="only β n")
if knee < max(sizes):
    axes.axvline(knee, color="#BDBDBD", zorder=0, label="knee: α = β n")
axes.set(xlabel="bytes", ylabel="seconds, one way", ylim=(min(link.alpha, *measured) / 2, None))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
plt.show()
print(f"α = {link.alpha * 1e6:,.0f} microseconds, 1/β = {link.bandwidth / 1e9:.2f} GB/s")
if knee < max(sizes):
    print(f"Up to {knee / 1e3:,.0f} KB, α is the larger part of a message's time.")
else:
    print("The large messages hardly took longer than the small ones, so this run does not show β.")
    print("Close all other programs, and measure again.")

# %% [markdown]
# A message with 4,096 times as many bytes takes nowhere near 4,096 times as long, because both sizes are to
# the left of the knee. To the left of the knee, the time depends mainly on the *number* of messages, and to
# the right of the knee, it depends mainly on their *bytes*.
#
# You have measured two ranks on this machine. For comparison, the next cell lists the wires of training
# clusters, with figures from the data sheets:

# %% tags=["skip-in-grading"]
from course_lib.facts import LINKS

for wire in LINKS:
    print(
        f"{wire.name:25} {wire.each_way / 1e9:>5g} GB/s each way, "
        f"1 GB in {1e12 / wire.each_way:>5.1f} ms; quoted as {wire.quoted}"
    )

# %% [markdown]
# Pay attention to units and directions. It is often said that an H100's NVLink carries 600 GB/s. But 600 GB/s
# is the figure of the A100, and of the bridge of the H100 NVL, and it adds both directions. The H100 SXM has
# 900 GB/s in both directions together, or 450 GB/s each way. Another common list has NVLink with 600 GB/s,
# PCIe 4.0 with 32 GB/s and InfiniBand with 200 Gb/s. These figures cannot be compared, because the first adds
# both directions, the second is for one direction, and the third counts bits. Each way, the three wires carry
# 300, 32 and 25 GB/s.
#
# <details><summary>In the lectures</summary>Lecture 001 (§25.3) states 600 GB/s for an H100's NVLink. The
# list of three wires is from lecture 002.</details>

# %% [markdown]
# ## 5 · The lab: programs that hang
#
# | | |
# |---|---|
# | you will write | repairs of `neighbour_sum`, `collect`, `global_mean`; eight diagnoses |
# | builds on | §3 |
# | time | 35 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 1 + 1 + 1 + 1 |
#
# The programs of this lab have the same mistakes as real programs, but they are short enough to understand
# every line. Read each program, say what will happen, run it, and read the diagnosis. You will repair three
# of the programs, and finally answer questions about all of them.
#
# Here is how to read a diagnosis. The first line names the problem. Then each rank has an entry, which says
# in which operation and at which line the rank is, since when, and **which rank it is waiting for**. A
# blocked rank can go on only when its partner makes the matching call. If the ranks wait in a circle, or if
# they wait for a rank that has already returned, this call will never be made. This is a **deadlock**, and
# `launch` detects it without a time limit.

# %% tags=["skip-in-grading"]
import textwrap


def run_and_read(program, **options):
    """Launch a program that fails, on three ranks. Print its diagnosis, and return its ledger."""
    try:
        # on the CPU, because the text explains the diagnoses of such runs
        run = launch(program, world_size=3, backend="gloo", **options)
    except RankError as error:
        for line in str(error).splitlines():
            print(textwrap.fill(line, 98, subsequent_indent="    "))
        return error.ledger
    print("The program has finished, so it is no longer the broken program.")
    return run.ledger


# %% [markdown]
# ### 5.1 Everybody receives first
#
# The ranks form a circle. Each rank should get the sum of its left neighbour's values, its own values and its
# right neighbour's values.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    dist.recv(from_left, left)
    dist.recv(from_right, right)
    dist.send(tensor, right)
    dist.send(tensor, left)
    return from_left + tensor + from_right


def neighbours():
    return neighbour_sum(torch.full((2,), 10.0 ** dist.get_rank()))


ledger = run_and_read(neighbours)
ledger.timeline()

# %% [markdown]
# The timeline also shows this hang. It has three receives (circles), but no arrows, because no rank ever sent
# anything. The picture ends soon after the last event.
#
# **Repair it.** Your function has the same name as the broken function, so the notebook uses the one whose
# cell you ran last. Return the sum that the broken function should have returned, in a new tensor, and leave
# the given tensor unchanged. With two ranks, the left and the right neighbour are the same rank, so its
# values count twice.


# %% nbgrader={"grade_id": "neighbour_sum", "solution": true}
def neighbour_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the left neighbour's tensor + `tensor` + the right neighbour's tensor,
    on a circle of two or more ranks.

    tensor: any shape, contiguous, not changed; the same shape and dtype on every rank.
    Every rank sends two messages of the tensor's bytes.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, right),
            dist.P2POp(dist.isend, tensor, left),
            dist.P2POp(dist.irecv, from_left, left),
            dist.P2POp(dist.irecv, from_right, right),
        ]
    )
    for handle in handles:
        handle.wait()
    return from_left + tensor + from_right
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: four together</summary>You can give <code>batch_isend_irecv</code> more than two
# messages. In which four messages does one rank take part?</details>
# <details><summary>Hint: two ranks</summary>With two ranks, a rank sends both messages to the same partner.
# They arrive in the order in which they were sent, but you need a separate buffer for each of them.</details>

# %% nbgrader={"grade_id": "neighbour_sum_check", "points": 1}
report = check("00_first_ranks/neighbour_sum", neighbour_sum)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/neighbour_sum", neighbour_sum, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# The next cell runs your repaired function. The ranks again hold 1, 10 and 100, and each rank now sends two
# messages and receives two. In the timeline above, hatching marks the blocked ranks. The new timeline should
# have no hatching.

# %% tags=["skip-in-grading"]
# on the CPU, like the run that hung
run = launch(neighbours, world_size=3, backend="gloo") if ready(neighbour_sum) else None
print([values.tolist() for values in run]) if run else None
run.ledger.timeline() if run else None

# %% [markdown]
# ### 5.2 Waiting for somebody who has left
#
# Every rank has computed some results, and rank 0 should collect all of them. Ranks 0 and 1 have three
# results each, but rank 2 has only two, because its last batch was smaller, as last batches often are.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        for value in results:
            dist.send(value, 0)
        return None
    parts = [results]
    for src in range(1, n):
        part = torch.empty_like(results)
        for i in range(len(part)):
            dist.recv(part[i], src)
        parts.append(part)
    return torch.cat(parts)


def results_of_each():
    rank = dist.get_rank()
    return collect(10.0 * rank + torch.arange([3, 3, 2][rank]))


ledger = run_and_read(results_of_each)

# %% [markdown]
# Rank 0 assumed that every other rank has as many results as rank 0 itself. But a message does not say how
# many more messages will follow, so each sender must tell rank 0.
#
# **Repair it.** `len(results)` can be different on every rank, and it can be 0.


# %% nbgrader={"grade_id": "collect", "solution": true}
def collect(results: torch.Tensor) -> torch.Tensor | None:
    """Return all ranks' results in one 1-D tensor, in order of rank, on rank 0; None on the others.

    results: 1-D, of any length, which may differ from rank to rank; the same dtype everywhere.
    You can use any operation of `torch.distributed`, and a message can have no elements.
    Every tensor you send or receive is on the device of `results`.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        dist.send(torch.tensor(len(results), device=results.device), 0)
        dist.send(results, 0)
        return None
    parts = [results]
    for src in range(1, n):
        count = torch.tensor(0, device=results.device)
        dist.recv(count, src)
        part = results.new_empty(int(count))
        dist.recv(part, src)
        parts.append(part)
    return torch.cat(parts)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: a number that rank 0 cannot know</summary>Rank 0 cannot know how many results will
# arrive. Which ranks know this number, and how can they tell rank 0?</details>
# <details><summary>Hint: two messages</summary>First send a tensor with the count, and then all results in
# one message. The count is an int64 (<code>torch.tensor(3)</code>), so receive it into a tensor of the same
# dtype.</details>

# %% nbgrader={"grade_id": "collect_check", "points": 1}
report = check("00_first_ranks/collect", collect)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/collect", collect, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# ### 5.3 A collective that one rank skips
#
# `dist.all_reduce(tensor)` is a **collective**, which means that *all* ranks of the group must call it.
# Afterwards, every rank has the sum of all ranks' tensors. (Notebook 02 shows how this works.) The program
# below should compute the mean of all ranks' values, but rank 1 has no values.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def global_mean(values):
    if len(values) == 0:
        return torch.tensor(0.0)
    total = values.sum()
    count = torch.tensor(float(len(values)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


def losses_of_each():
    return global_mean(torch.arange([2.0, 0.0, 3.0][dist.get_rank()]))


ledger = run_and_read(losses_of_each)

# %% [markdown]
# In real training, a rank might skip a collective because its batch was empty, because its loss was `nan`, or
# because it was busy with logging. In the code, you will find an `if` around the collective, or a `return`
# before it.
#
# **Repair it.** Every rank should return the mean of all values, even a rank that has no values itself.
# (Don't return the mean of the ranks' means, because this is a different number if the ranks have different
# numbers of values.)


# %% nbgrader={"grade_id": "global_mean", "solution": true}
def global_mean(values: torch.Tensor) -> torch.Tensor:
    """The mean of all ranks' values, a 0-dimensional tensor, on every rank.

    values: 1-D float32, of any length, which may differ from rank to rank and be 0; not changed. At
    least one rank has values. Everything you reduce, including the count, is on the device of
    `values`.
    """
    ### BEGIN SOLUTION
    total = values.sum()
    count = torch.tensor(float(len(values)), device=values.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: a rank without values</summary>What can such a rank add to the sum and to the count
# so that neither changes?</details>

# %% nbgrader={"grade_id": "global_mean_check", "points": 1}
report = check("00_first_ranks/global_mean", global_mean)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/global_mean", global_mean, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# ### 5.4 Two ranks in different collectives
#
# `dist.broadcast(tensor, src)` gives every rank a copy of the tensor of rank `src`. "Rank 1 only needs a copy
# of the result", thought the author, and called `broadcast` on rank 1. But `broadcast` would give rank 1 a
# copy of rank 0's own values instead of the sum.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def average():
    tensor = torch.full((4,), float(dist.get_rank()))
    if dist.get_rank() == 1:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


ledger = run_and_read(average)

# %% [markdown]
# This time, the run was stopped before it could deadlock. The ledger compares the first collective of every
# rank, then the second, and so on. If they do not match, the ledger stops the run before the backend starts
# them. Collectives have no names and no addresses, so only their *order* says which calls belong together.

# %% [markdown]
# ### 5.5 The two ends do not fit
#
# Rank 0 sends four numbers, but rank 1 expects five.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def hand_over():
    if dist.get_rank() == 0:
        dist.send(torch.arange(4.0), 1)
    if dist.get_rank() == 1:
        received = torch.zeros(5)
        dist.recv(received, 0)
        return received


ledger = run_and_read(hand_over)

# %% [markdown]
# What would gloo have done without the ledger? It would have silently written the 16 bytes into the buffer of
# 20 bytes, and the fifth number would have kept its old value. gloo also lets you send four float64 numbers
# into a buffer of eight float32 numbers. Then, for example, the 8 bytes of a float64 1.0 arrive as two
# float32 numbers, 0.0 and 1.875. If the buffer is too *small*, however, gloo ends the whole process.

# %% [markdown]
# ### 5.6 Every other column
#
# `x[:, ::2]` is a view with gaps. It has no memory of its own, but its strides select every other number in
# the memory of `x`.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def columns():
    x = torch.ones(4, 6)
    dist.all_reduce(x[:, ::2])
    return x


ledger = run_and_read(columns)

# %% [markdown]
# Without the ledger, gloo would sum the first twelve numbers in memory instead of the twelve numbers of the
# view, and would report success. This is why contiguity matters more in communication than anywhere else. (It
# is often said that `view` works only on contiguous tensors. In fact, `view` works whenever strides can
# express the new shape. If they can't, `view` fails, whereas `reshape` makes a copy.)
#
# <details><summary>In the lectures</summary>One of the interview questions of lecture 001 (§28) is about
# contiguity. The answer says that <code>view</code> works only on contiguous tensors. In its example,
# <code>y</code> is a transpose. There, <code>y.view(-1)</code> fails because the elements of <code>y</code>,
# read row by row, are not a constant distance apart in memory. But <code>x[:, ::2].view(12)</code> works,
# although <code>x[:, ::2].is_contiguous()</code> is false. Call <code>contiguous()</code> only before a
# tensor is sent, because it copies every tensor that is not contiguous yet.</details>

# %% [markdown]
# ### 5.7 Writing too early
#
# Each rank except the last sends its tensor to the next rank, and then adds 1 to its own copy. Both
# receivers, ranks 1 and 2, should get 0. But to save time, the author wrote the addition before the wait.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def relay():
    rank, n = dist.get_rank(), dist.get_world_size()
    tensor = torch.zeros(4)
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if rank < n - 1:
        handle = dist.isend(tensor, rank + 1)
        tensor.add_(1)
        handle.wait()
    return tensor


ledger = run_and_read(relay)

# %% [markdown]
# This is the worst kind of bug, because the program often works. The bytes leave at some moment between
# `isend` and `wait`, and the receiver gets the values the tensor has at that moment.

# %% [markdown]
# ### 5.8 Begun and forgotten
#
# Ranks 1 and 2 each send a last message to rank 0, and then return.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def farewell():
    rank = dist.get_rank()
    if rank == 0:
        last_words = torch.empty(2, 4)
        dist.recv(last_words[0], 1)
        dist.recv(last_words[1], 2)
        return last_words
    dist.isend(torch.full((4,), float(rank)), 0)


ledger = run_and_read(farewell)

# %% [markdown]
# Without the ledger, gloo keeps such a message alive only as long as its handle exists. We tried it on
# PyTorch 2.13. If the receiver is already waiting, the message arrives. But if the receiver calls `recv` 50
# milliseconds later, the message is lost, and the receiver waits forever.
#
# **Your diagnoses.** In the three deadlocks, which rank does each blocked rank wait for? (Only the blocked
# ranks are listed.) Which remedy repairs each of the other five programs? Choose each remedy from this list:
#
# - `"wait for the handle"`
# - `"a longer time limit"`
# - `"contiguous()"`
# - `"wait before writing"`
# - `"the same size and dtype at both ends"`
# - `"the same collective on every rank"`

# %% nbgrader={"grade_id": "diagnoses", "solution": true}
# Replace the dots.
waits_for = {  # program: {rank: the rank it waits for}
    "neighbour_sum": {0: ..., 1: ..., 2: ...},
    "collect": {0: ...},
    "global_mean": {0: ..., 2: ...},
}
remedies = {
    "average": ...,
    "hand_over": ...,
    "columns": ...,
    "relay": ...,
    "farewell": ...,
}
### BEGIN SOLUTION
waits_for = {
    "neighbour_sum": {0: 2, 1: 0, 2: 1},
    "collect": {0: 2},
    "global_mean": {0: 1, 2: 1},
}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}
### END SOLUTION

# %% nbgrader={"grade_id": "diagnoses_check", "points": 1}
report = check("00_first_ranks/diagnoses", waits_for, remedies)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/diagnoses", waits_for, remedies, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# ### 5.9 Trouble outside communication (optional, 10 minutes)
#
# **One rank raises.** One rank raises an exception, and the other ranks wait for it in a collective. Which
# rank caused the problem, and which ranks only wait? An ordinary launcher prints the output of every rank,
# and you have to find the error that matters in it. (The same happens when one rank runs out of memory on its
# GPU or CPU, because this rank raises an exception and the others wait.)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def one_raises():
    losses = torch.ones(4)
    if dist.get_rank() == 2:
        losses = losses[7]
    dist.all_reduce(losses)


ledger = run_and_read(one_raises)

# %% [markdown]
# **One rank never comes back.** One rank keeps computing, and `launch` can't know whether this rank will ever
# finish. This is not a deadlock, so only a time limit helps. By default, the limit of `launch` is 60 seconds,
# but here it is two seconds. (`dist.barrier()` waits until all ranks have called it.)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def not_converging():
    loss = 1.0
    while dist.get_rank() == 2 and loss > 0:
        loss = 0.5 * loss + 0.1
    dist.barrier()


ledger = run_and_read(not_converging, timeout=2)

# %% [markdown]
# **One rank dies.** When the memory of the machine is full, Linux ends a process with the signal `SIGKILL`.
# The diagnosis looks similar if a rank calls `os._exit`, as some libraries do.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def dies(how):
    dist.barrier()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), 9) if how == "killed" else os._exit(3)
    dist.barrier()


for how in ("killed", "exits"):
    ledger = run_and_read(lambda how=how: dies(how))

# %% [markdown]
# **A print in the inner loop.** If a rank prints 100,000 lines, your browser does not freeze, because
# `launch` shows only the first 500 lines and the last five.
#
# **You lose patience.** Try this by hand. Open a new cell, run `launch(lambda: time.sleep(1000),
# world_size=4, timeout=2000)` and press the square button (or `I` twice). `launch` then ends the ranks and
# says where each of them was, and the next `launch` works. (An interrupt of the kernel does not reach other
# processes by itself. If `launch` did not end the ranks, they would keep the memory of their GPUs.)
# Afterwards, delete the cell, because the whole notebook is run when you hand it in.
#
# **All together.** Come back to this table when a program of your own fails:
#
# | you read | look for |
# |---|---|
# | deadlock: rank 0 -> rank 2 -> rank 1 -> rank 0 | ranks that all send first, or all receive first. Begin the send and the receive together |
# | waits for rank 2, which has finished | different numbers of rounds, an uneven last batch |
# | the same, and a rank is in `all_reduce` or another collective | an `if` around the collective, a `return` or `break` before it |
# | do not agree on their collective number k | a branch on the rank, or a different order |
# | the two ends of a message differ | a buffer of the wrong size or dtype |
# | not contiguous | a transpose or a slice. Send `x.contiguous()` |
# | changed before wait() | a buffer used again too early |
# | the function returned without waiting for isend or irecv | a dropped handle |
# | rank r raised, the others wait | only rank r's traceback |
# | not finished after t seconds, rank r computes | a loop, or just too little time |
# | killed by SIGKILL | a lack of memory, on the machine rather than on the GPU |
# | NCCL does what a rank begins in a group one after the other | messages that must begin in one batch |

# %% [markdown]
# ## 6 · In production
#
# | | |
# |---|---|
# | you will write | nothing: your `ring_shift` leaves the notebook |
# | builds on | §3, §5 |
# | time | 10 minutes |
#
# On a cluster you don't call `launch`. Instead, a launcher, usually `torchrun`, starts one process per GPU.
# In the environment of each process, the launcher sets `RANK`, `WORLD_SIZE`, `LOCAL_RANK` (the rank within
# its node) and the address at which all processes meet. Then the program calls `dist.init_process_group`. On
# GPUs it first calls `torch.cuda.set_device` with `LOCAL_RANK`, because otherwise all ranks of a node would
# use its first GPU. You can use `ring_shift` in such a program unchanged. The next cell prints such a program
# (if your function calls others of this notebook, add them to `script`), and the cell after that runs it
# with the command `torchrun --standalone --nproc-per-node=3 ring.py`.

# %% tags=["skip-in-grading"]
import inspect

script = f"""import torch
import torch.distributed as dist


{inspect.getsource(ring_shift)}

if __name__ == "__main__":
    dist.init_process_group("gloo")  # with a GPU for each rank, use "nccl" and tensors on the GPUs
    rank = dist.get_rank()
    received = ring_shift(torch.full((2,), float(rank))).tolist()
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, received)
    if rank == 0:
        print(everybody)
    dist.destroy_process_group()
"""
print(script)

# %% tags=["skip-in-grading"]
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def torchrun(script, world_size, **environment):
    """Run the script on `world_size` ranks, and return what it printed,
    or its errors if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ring.py"
        path.write_text(script)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        job = subprocess.Popen(
            [*command, f"--nproc-per-node={world_size}", str(path)],
            # If a rank fails, torchrun leaves a folder of logs in TMPDIR.
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt reaches torchrun only as terminate()
        )
        with job:
            try:
                printed, errors = job.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                return "torchrun has not ended within 100 s, so it was ended"
            finally:
                job.terminate()  # torchrun ends its ranks, which kill() would leave behind
    return printed if job.returncode == 0 else errors


print(torchrun(script, world_size=3)) if ready(ring_shift) else None

# %% [markdown]
# As under `launch`, each rank holds its left neighbour's number. If three processes print at the same time,
# their lines can get mixed up, so rank 0 prints for all of them. This is why nearly every training script
# contains `if rank == 0`. (Around a collective, however, such a condition is the bug of §5.3.) `torchrun` can
# also use several machines (`--nnodes`) and restart all ranks when one dies (`--max-restarts`). But it does
# not show which rank waits for which. The next cell runs `average` of §5.4 under `torchrun`, with PyTorch's
# time limit set to three seconds. In the first run, PyTorch's debugging is off. The second run sets
# `TORCH_DISTRIBUTED_DEBUG=DETAIL`, so PyTorch compares the collectives of the ranks.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
hanging = f"""from datetime import timedelta

import torch
import torch.distributed as dist


{inspect.getsource(average)}

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
average()
"""
for level in ("OFF", "DETAIL"):
    said = torchrun(hanging, world_size=2, TORCH_DISTRIBUTED_DEBUG=level).splitlines()
    print(f"TORCH_DISTRIBUTED_DEBUG={level}")
    errors = [line for line in said if line.startswith("[rank") and "Error: " in line]
    for line in sorted(errors):
        line = re.sub(r"\[/\S+\] ", "", line)  # without the position in gloo's source
        print("   ", line if len(line) < 95 else f"{line[:60]} ... {line[-30:]}")

# %% [markdown]
# Without `DETAIL`, each rank reports only that *it* timed out, and the summary of `torchrun` (not shown here)
# then calls the first of these ranks the root cause. With `DETAIL`, PyTorch reports the mismatch, but it has
# to make an extra check before every collective. On GPUs, `NCCL_DEBUG=WARN` prints NCCL's errors, and
# `NCCL_DEBUG=INFO` also prints which wires NCCL uses. With `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING`
# you see which algorithm NCCL chooses (NCCL user guide, "Logging").
#
# | | `launch` | `torchrun` |
# |---|---|---|
# | a circle of receives | named after about 1 s | after 30 minutes (gloo) or 10 (NCCL): "timed out" |
# | collectives that do not match | named immediately | only with `TORCH_DISTRIBUTED_DEBUG=DETAIL` |
# | one rank raises | its traceback, and a line for each rank that waits | its traceback, among the output of all ranks |
# | several machines | no | yes |
#
# <details><summary>In the lectures</summary>Lecture 002 starts its ranks with
# <code>torch.multiprocessing.spawn</code> and a fixed address, <code>tcp://localhost:12355</code>. If you
# start a second run at the same time, it fails, because the port is already in use. <code>torchrun
# --standalone</code> picks a free port.</details>

# %% [markdown]
# ## On your GPUs
#
# *This section has no points. With GPUs it takes a few minutes. Without them, the cells show a recorded run,
# if there is one.*
#
# **Predict.** On the CPU, the product of two matrices is ready when the call returns. On a GPU, however, the
# call only *asks* the GPU to do the work, and Python goes on. The product of two 8,192 x 8,192 matrices in
# float32 takes between 10 milliseconds and a quarter of a second, depending on the GPU. How long does the
# call itself take? And how long does it take until `.item()` has returned one number of the result?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.messages import CALL_AND_WORK, PING_PONG

on_gpus = on_your_gpus(CALL_AND_WORK)
# %% [markdown]
# If you read the clock right after the call, you time the request instead of the work. This is why every
# measurement in this course calls `synchronize()` before it reads the clock. `.item()` returns a number to
# Python, so it also has to wait for the work. Messages behave in the same way. Over NCCL, `dist.send` returns
# as soon as the message is queued on the GPU, long before the last byte has left.
#
# **Predict.** How do α and β change if your two ranks have GPUs and NCCL carries their messages? The column
# *predicted* shows your line α + βn from §4.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
on_gpus = on_your_gpus(PING_PONG, predicted=lambda of, run: link.seconds(of["bytes"]))
# %% [markdown]
# In the last rows, 1/β is about the bytes divided by the seconds. Compare this bandwidth with the wires in
# §4. Are your GPUs connected by NVLink or by PCIe?

# %% [markdown]
# ## 7 · Questions
#
# | | |
# |---|---|
# | builds on | §4, §5 |
# | time | 5 minutes |
# | points | 1 |
#
# The network of a cluster has α = 20 microseconds and carries 10 GB/s each way.
#
# 1. How many **seconds** does one message of 1 MB (10⁶ bytes) take?
# 2. How many **bytes** does a message have if α is as long as the time for its bytes?
# 3. Rank 3 of a program on a cluster catches an exception, prints it and continues to compute. It never calls
#    the `all_reduce` that ranks 0, 1 and 2 have begun. No time limit is set, and PyTorch's default limit is
#    switched off. Do ranks 0, 1 and 2 `"raise"`, `"return"` or `"wait"`?

# %% nbgrader={"grade_id": "questions", "solution": true}
# Replace the dots.
answer_1 = ...
answer_2 = ...
answer_3 = ...
### BEGIN SOLUTION
answer_1 = 20e-6 + 1e6 / 10e9
answer_2 = 20e-6 * 10e9
answer_3 = "wait"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 1}
report = check("00_first_ranks/questions", answer_1, answer_2, answer_3)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/questions", answer_1, answer_2, answer_3, cases="hidden")
### END HIDDEN TESTS
report.points(1)

# %% [markdown]
# ## Scorecard
#
# Every way to distribute training is judged by three criteria: little redundant computation, low peak memory,
# and little communication. Notebooks 00 to 09 and 11 each end with a scorecard, which measures your code by
# these criteria. Here M is the size of the tensor that each rank holds, a million float32 numbers.

# %% tags=["skip-in-grading"]
from course_lib.scorecard import costs, scorecard


def job(algorithm):
    mine = torch.ones(1_000_000, device=device())
    with costs(mine) as cost:
        algorithm(mine)
    return cost


yours = (exchange, ring_shift)
runs = {f.__name__: launch(job, f, world_size=4) for f in yours} if ready(*yours) else {}
scorecard(runs, unit=4_000_000) if runs else None

# %% [markdown]
# The two functions compute nothing, so no computation is redundant. Each rank sends M, and its peak memory is
# 2 M, because it can't receive into the tensor it is still sending. In notebook 02, tensors are cut into
# chunks, so the memory for received data shrinks from M to M/N.
#
# **You have built** an exchange and a ring shift without a circle of waits, for any group, shape and dtype.
# You can also find out from a diagnosis why a program hangs. **You have measured** α and β of this machine.
# Notebook 02 fits α and β again, to the times of a race between your collectives and PyTorch's collectives.
#
# <details><summary>In the lectures</summary>The three criteria of the scorecards are from lecture
# 003.</details>
#
# **Read on**
# - PyTorch: "Writing Distributed Applications with PyTorch" (tutorial), and the reference of
#   `torch.distributed`.
# - Thakur, Rabenseifner, Gropp: "Optimization of Collective Communication Operations in MPICH", 2005. Read
#   sections 1 to 3 for the cost model.
# - NVIDIA: the NCCL user guide, "Point-to-point communication".
#
# **Next**: `01_why_distribute` asks where the bytes and the FLOPs of training go. Then `02_collectives` asks
# how N ranks can compute a sum together, and how few bytes they can send for it.

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("00_first_ranks")
