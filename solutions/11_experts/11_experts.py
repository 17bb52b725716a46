# %% [markdown]
# # 11 · Experts
#
# **What does a mixture of experts send, and to whom?**
#
# In a dense layer, every parameter costs FLOPs for every token. A mixture of experts breaks this rule,
# because it has E MLPs instead of one, and a router sends each token to only k of them. For example, Mixtral
# holds 46.7 billion parameters but uses only 12.9 billion per token. DeepSeek-V3 holds 671 billion parameters
# and uses 37.6 billion per token, embeddings included.
#
# The experts do not fit on one rank, so they are divided among many ranks, and each token travels to its
# experts and back. No earlier notebook had messages like these. Their sizes and receivers depend on the data,
# so a rank doesn't know them until just before it sends. You build the router, then the mixture on one rank,
# and then the mixture on many ranks. Finally, you predict every byte from a histogram, watch a router
# collapse, and bring it back into balance.
#
# | | |
# |---|---|
# | you will build | a router; a mixture of experts on one rank; an all-to-all of unequal parts, with its backward; the mixture on many ranks; a loss and a bias that keep the experts busy |
# | you need | all-to-all (notebook 02); averaging gradients (notebook 03); `torch.autograd.Function` |
# | time | three hours |
# | points | 60, and 7 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. On several GPUs the same code runs over NCCL, and the section *On your GPUs* measures what needs real GPUs |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 A router | 20 | 8 | |
# | 2 Experts on one rank | 25 | 9 | |
# | 3 Rows to other ranks | 27 | 9 | |
# | 4 Experts on many ranks | 40 | 14 | 2, 3 |
# | 5 The bytes, from a histogram | 15 | 6 | 4 |
# | 6 Balance, by a loss and by a bias | 30 | 9 | 1, 2 |
# | 7 Two labs: places that run out, gradients and their groups | 15 | | 4 |
# | 8 Questions | 10 | 5 | all |
# | 9 Optional: a place in the queue | 15 | 3 extra | 7 |
# | 10 Optional: few nodes for a token | 20 | 4 extra | 1, 5 |

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | T, h | T is the number of tokens on a rank, and h is the number of elements in a token (the width), so x is (T, h) |
# | E, k | E is the number of all experts, and k is the number of experts per token |
# | f | the number of hidden elements in an expert |
# | expert | w2 (silu(w1 x) ∘ w3 x), with Mixtral's names for the matrices. For all E experts together, `w1` and `w3` have the shape (E, f, h), and `w2` has the shape (E, h, f). The MLP of our GPT has only two matrices. An expert needs a third, because ∘ multiplies (*gates*) each element of w3 x by the element of silu(w1 x) with the same index |
# | router | one matrix (E, h). Its product with a token gives E *logits* |
# | assignment | a token paired with one of its experts. There are T·k assignments, and assignment i belongs to token i // k |
# | n | the number of ranks that share the experts. Each rank holds E/n experts, and rank 0 holds the first ones |
# | dispatch, combine | sending each token's row of x to the ranks of its experts, and sending the results back |

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.patches import Rectangle
from torch import nn

from course_lib import RankError, check, device, launch
from course_lib import experts as reference  # for comparison, since you write your own versions
from course_lib.data import batch, library_text
from course_lib.experts import AddLoss, max_violation
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pictures.colours import INK, QUIET, RANKS, picture
from course_lib.scorecard import Row, Scorecard, costs
from course_lib.unfinished import ready, try_it

# %% [markdown]
# Three PyTorch idioms do most of the work in this notebook. Run the cell, and make sure you see why each line
# prints what it does.

# %% tags=["skip-in-grading"]
experts = torch.tensor([2, 0, 0, 1, 2, 0])  # the experts of six assignments
print("assignments per expert:", experts.bincount(minlength=4).tolist())

order = experts.argsort(stable=True)  # assignments, sorted by expert
print("sorted by expert:      ", order.tolist(), "->", experts[order].tolist())

back = order.argsort()  # the inverse, so assignment i is at index back[i] of the sorted list
print("in the old order again:", experts[order][back].tolist())

sums = torch.zeros(3).index_add(0, torch.tensor([0, 2, 2]), torch.tensor([1.0, 10.0, 20.0]))
print("added up by index:     ", sums.tolist())

# %% [markdown]
# ## 1 · A router
#
# | | |
# |---|---|
# | you will write | `route(logits, bias=None, *, k)` |
# | builds on | nothing |
# | time | 20 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 8 |
#
# Softmax turns a router's logits into probabilities, and the k experts with the largest probabilities are
# chosen. This choice has no gradient, because a small change of a logit either leaves the chosen experts as
# they are or replaces one of them by another. So a router can learn only through the **weights** by which the
# experts' outputs are multiplied before they are added. The weights are the probabilities of the chosen
# experts, divided by their sum:
#
# > wᵢ = pᵢ / (the sum of p over the chosen experts)
#
# Why are the probabilities divided? Without the division, the output would shrink whenever the router is
# unsure, because then even the k largest probabilities have a small sum. But with k = 1 there is a trap. The
# quotient p / p is 1, whatever the router says, and its gradient is 0, so the router would never learn. If k
# is 1, the weight is therefore the probability itself, as in the Switch Transformer.
#
# You will need the argument `bias` in §6. It holds one number per expert. These numbers are added to the
# probabilities *only for the choice* of the experts, and do not enter the weights.
#
# **Predict.** A token has the logits 2, 1, 0, 0, and k is 2. Which weight does its second expert get?
#
# <details><summary>Answer</summary>It gets exp(1) / (exp(2) + exp(1)) = 0.27, because the denominator of
# softmax cancels, and the other two logits appear only there.</details>
#
# **Build.** Five lines are enough. `topk` returns the largest numbers of each row, but equal numbers can come
# in any order. If you want equal numbers to keep their order, use `sort(dim=-1, descending=True,
# stable=True)` instead. `gather(1, experts)` takes from each row the numbers in the columns listed in
# `experts`.


# %% nbgrader={"grade_id": "route", "solution": true}
def route(logits, bias=None, *, k):
    """Return each token's experts, (T, k) int64, and their weights, (T, k) in the dtype of logits.

    logits: (T, E). bias: (E,), without a gradient. The bias helps to decide which experts are
    chosen, but it does not enter their weights. Column 0 of `experts` is the expert with the
    largest probability + bias, and column 1 is the next. Equal experts can be in any order.
    `weights` has the same order. If k > 1, the weights of a token sum to 1. If k is 1, the weight
    is the probability.
    """
    ### BEGIN SOLUTION
    probabilities = logits.softmax(-1)
    scores = probabilities.detach() if bias is None else probabilities.detach() + bias
    experts = scores.topk(k).indices
    weights = probabilities.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) if k > 1 else weights
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the order of things</summary>First compute the probabilities. The scores are the
# probabilities + bias, detached. Take <code>topk</code> of the scores, and then gather the probabilities (not the
# scores) of the chosen experts. Divide these probabilities by their sum, unless k is 1.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "route_check", "points": 8}
report = check("11_experts/route", route)
### BEGIN HIDDEN TESTS
report = check("11_experts/route", route, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** Does an untrained router spread its tokens evenly over the experts? The tokens are the first
# 240 characters of the source code of Python's standard library, and the cell routes them to 8 experts. Every
# distinct character has its own random vector, so the same character always goes to the same two experts. But
# the text uses some characters much more often than others.

# %% tags=["skip-in-grading"]
torch.manual_seed(3)
text = library_text()[:240].long()
embedded = torch.randn(256, 32)[text]
router = torch.randn(8, 32) * 32**-0.5

if ready(route):
    chosen, _ = route(embedded @ router.T, k=2)
    figure = picture(7.6, 1.9)
    axes = figure.add_axes((0.01, 0.02, 0.98, 0.96))
    for at, (first, second) in enumerate(chosen.tolist()):
        x, y = at % 60, -(at // 60)
        axes.add_patch(Rectangle((x, y + 0.3), 0.9, 0.6, color=RANKS[first]))
        axes.add_patch(Rectangle((x, y), 0.9, 0.3, color=RANKS[second]))
        shown = chr(text[at]) if chr(text[at]).isprintable() else ""
        ink = "white" if first in (0, 7) else "black"
        axes.text(x + 0.45, y + 0.58, shown, ha="center", va="center", size=6, color=ink)
    for expert, colour in enumerate(RANKS):
        axes.add_patch(Rectangle((40 + 2.5 * expert, 1.25), 0.9, 0.6, color=colour))
        axes.text(41.2 + 2.5 * expert, 1.5, str(expert), va="center", size=7)
    above = "the first expert of each character, and below it the second"
    axes.text(0, 1.5, above, va="center", size=8, color=INK)
    axes.set_xlim(0, 60), axes.set_ylim(-3.1, 2), axes.axis("off")
    display(figure)
    counts = chosen.flatten().bincount(minlength=8)
    print("assignments per expert:", counts.tolist())
    print(f"the busiest expert exceeds the mean by {max_violation(counts):.2f} times the mean")

# %% [markdown]
# The last number is called **MaxVio**, the *maximal violation*. It is (largest count − mean) / mean. MaxVio
# is 0 if all experts get the same number of assignments. If k experts get everything, it is E/k − 1, which is
# 3 here. Remember MaxVio, because a rank with a busy expert is slow, and the slowest rank decides how long a
# layer takes.
#
# **Break it.** A bias in the weights looks harmless. The cell gives expert 0 a large bias. First it uses the
# bias only for the choice, as it should, and then also for the weights. What happens to the weights of the
# two chosen experts?

# %% tags=["skip-in-grading"]
if ready(route):
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    bias = torch.tensor([0.5, 0.0, 0.0, 0.0])
    print("weights, bias only for the choice:", route(logits, bias, k=2)[1].tolist())
    mixed = logits.softmax(-1) + bias
    best = mixed.topk(2).values
    print("weights, bias also in the weights:", (best / best.sum()).tolist())

# %% [markdown]
# With the bias in the weights, expert 0 counts three times as much as the other chosen expert, although the
# router finds both equally good. So a bias that is meant only to move *load* would also change what the model
# computes.
#
# **In production.** Mixtral applies softmax only to the k chosen logits, which gives the same weights.
# DeepSeek-V3 uses a sigmoid for each expert instead of the softmax, and it uses the bias only for the choice
# (§2.1.2 of its report). Megatron-Core refuses to divide by the sum if k = 1, since that "would yield a zero
# gradient". When DeepSpeed's top-k gate had to drop assignments (§7), it kept the tokens with the largest
# logits for each expert. But tokens that had not chosen the expert were entered with 0, so they came before
# tokens with a negative logit. In one run, the router had chosen a share of 0.0625 of all pairs of a token
# and an expert, but the gate kept only a share of 0.006. Since pull request 7986, the gate compares
# probabilities instead.

# %% [markdown]
# ## 2 · Experts on one rank
#
# | | |
# |---|---|
# | you will write | `moe(x, experts, weights, w1, w3, w2)` |
# | builds on | nothing, because the routing is an argument |
# | time | 25 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 9 |
#
# Every token goes through its k experts. Each expert's result is multiplied by its weight, and then the k
# results are added. A loop over tokens can do that, but it is slow, because the product of a single row and a
# matrix makes poor use of a GPU. At the other extreme, a single line can send all tokens through all experts
# and mask out the unwanted results. But then the layer costs E/k times the FLOPs, although saving FLOPs was
# the reason for having experts.
#
# The solution is to sort. Put the T·k assignments in the order of their experts, so that the rows of each
# expert are next to each other. Then an expert can multiply all its rows by a matrix in one product. The
# table shows the order for three tokens and k = 2:
#
# | assignment | 0 | 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | token = assignment // k | 0 | 0 | 1 | 1 | 2 | 2 |
# | expert | 2 | 0 | 0 | 1 | 2 | 0 |
# | **order** (argsort of the experts) | 1 | 2 | 5 | 3 | 0 | 4 |
# | token of each row | 0 | 1 | 2 | 1 | 0 | 2 |
# | | expert 0 | expert 0 | expert 0 | expert 1 | expert 2 | expert 2 |
#
# The results are in the same order as the sorted rows. To add each result to the row of its token, use
# `index_add`.
#
# **Predict.** For 4,096 tokens, E = 8, k = 2, h = 512 and f = 1,024, how many FLOPs do the experts need in a
# forward, if a multiplication and an addition count as two? How many would they need if all tokens went
# through all experts?
#
# <details><summary>Answer</summary>There are 8,192 assignments, and each row is multiplied by three matrices
# of 512 × 1,024 elements. This takes 8,192 · 3 · 2 · 512 · 1,024 FLOPs, or 25.8 GFLOPs. If all tokens went
# through all experts, they would need four times as many, 103 GFLOPs.</details>
#
# The next cell gives you the experts themselves. In it, `rows.split(counts)` makes a part for every expert,
# and even an empty part is multiplied by its expert's matrices. So an expert that no token chose gets a
# gradient of *zeros*. If every expert were a module of its own and `if len(part):` skipped the empty parts,
# the gradient would be None instead. Replicas that sum their gradients would then hang, because a replica
# without this gradient would not take part in its sum.


# %%
def through_experts(rows, counts, w1, w3, w2):
    """Send the first counts[0] rows through expert 0, the next counts[1] through expert 1, etc.

    rows: (R, h). counts: a list of E integers that sum to R. Return the outputs, (R, h).
    """
    return torch.cat(
        [
            (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
            for e, part in enumerate(rows.split(counts))
        ]
    )


# %% [markdown]
# **Build.** Sort the rows, send them through the experts, and add the results. `through_experts` takes a list
# of E integers as its `counts`. Multiply by the weight after the expert, because silu(w · x) is not w ·
# silu(x).


# %% nbgrader={"grade_id": "moe", "solution": true}
def moe(x, experts, weights, w1, w3, w2):
    """Return, for each token, the sum of its experts' outputs times their weights, (T, h).

    x: (T, h). experts, weights: (T, k), from `route`. w1, w3: (E, f, h). w2: (E, h, f).
    An expert computes w2 (silu(w1 x) * w3 x). Send each token only through its own experts.
    """
    ### BEGIN SOLUTION
    order = experts.flatten().argsort(stable=True)
    token = order // experts.shape[1]
    counts = experts.flatten().bincount(minlength=len(w1)).tolist()
    out = through_experts(x[token], counts, w1, w3, w2)
    return torch.zeros_like(x).index_add(0, token, out * weights.flatten()[order, None])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the rows</summary>Write <code>order =
# experts.flatten().argsort(stable=True)</code> and <code>token = order // k</code>. Then the rows are
# <code>x[token]</code>.</details>
# <details><summary>Hint: the experts</summary>Compute <code>counts =
# experts.flatten().bincount(minlength=len(w1)).tolist()</code> for
# <code>through_experts</code>.</details>
# <details><summary>Hint: the end</summary>Return <code>torch.zeros_like(x).index_add(0, token,
# out * weights.flatten()[order, None])</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "moe_check", "points": 9}
report = check("11_experts/moe", moe)
### BEGIN HIDDEN TESTS
report = check("11_experts/moe", moe, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** The cell times your function, all experts with a mask, and a loop over tokens. All three get
# the same 1,024 tokens of width 256.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def all_masked(x, experts, weights, w1, w3, w2):
    """Send every token through every expert, with the weight 0 for experts it did not choose."""
    dense = torch.zeros(len(x), len(w1)).scatter(1, experts, weights)
    inner = F.silu(torch.einsum("th,efh->tef", x, w1)) * torch.einsum("th,efh->tef", x, w3)
    return torch.einsum("te,tef,ehf->th", dense, inner, w2)


def token_by_token(x, experts, weights, w1, w3, w2):
    rows = []
    for token, chosen, weight in zip(x, experts, weights, strict=True):
        outs = [w2[e] @ (F.silu(w1[e] @ token) * (w3[e] @ token)) for e in chosen]
        rows.append(sum(w * out for w, out in zip(weight, outs, strict=True)))
    return torch.stack(rows)


def mixture(tokens, count=8, width=64, hidden=128, k=2, dtype=torch.float32):
    """Draw x, experts, weights, w1, w3 and w2."""
    torch.manual_seed(0)
    x, logits = torch.randn(tokens, width, dtype=dtype), torch.randn(tokens, count, dtype=dtype)
    w1, w3 = (torch.randn(count, hidden, width, dtype=dtype) * width**-0.5 for _ in range(2))
    w2 = torch.randn(count, width, hidden, dtype=dtype) * hidden**-0.5
    best = logits.softmax(-1).topk(k)
    return x, best.indices, best.values / best.values.sum(-1, keepdim=True), w1, w3, w2


def milliseconds(function, *args, times=5):
    """Return the milliseconds of the fastest run on one thread, which other work disturbs least."""
    threads, best = torch.get_num_threads(), float("inf")
    torch.set_num_threads(1)
    for _ in range(times):
        began = time.perf_counter()
        function(*args)
        best = min(best, time.perf_counter() - began)
    torch.set_num_threads(threads)
    return best * 1000


if ready(moe):
    drawn = mixture(1024, width=256, hidden=512)
    wanted = all_masked(*drawn)
    for function in (moe, all_masked, token_by_token):
        off = float((function(*drawn) - wanted).abs().max())
        print(f"{function.__name__:15} {milliseconds(function, *drawn):7.1f} ms, off by {off:.0e}")

# %% [markdown]
# The mask costs E/k = 4 times the FLOPs, and the loop multiplies one row at a time, so both take several
# times as long as your function.
#
# **In production.** PyTorch's `F.grouped_mm(rows, weights, offs=...)` (available in 2.13) computes the
# products of all experts in one call, in 16 bits or float32. A GPU then starts one kernel instead of E, but a
# CPU gains nothing over the loop in `through_experts`. MegaBlocks (Gale et al. 2022) uses a kernel that works
# on blocks of rows. `grouped_mm` and MegaBlocks both need what you have just computed: the rows in the order
# of their experts, and the counts.

# %% [markdown]
# ## 3 · Rows to other ranks
#
# | | |
# |---|---|
# | you will write | `exchange(rows, send, receive, group)`, with a backward |
# | builds on | notebook 02 |
# | time | 27 minutes |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 9 |
#
# In notebook 02, all parts of an all-to-all had the same size. Here the i-th of n parts still goes to rank i,
# but the router decides how many rows each part has. `dist.all_to_all_single` can send parts of different
# sizes:
#
# > `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group=group)`
#
# The two lists of sizes have different meanings. `input_split_sizes` says how many of *my* rows go to each
# rank, while `output_split_sizes` says how many rows I receive from each rank. So if rank 0 writes 2 for rank
# 1 into its `input_split_sizes`, rank 1 has to write 2 for rank 0 into its `output_split_sizes`. In the
# following table, each line belongs to a rank and shows its numbers of rows for ranks 0, 1 and 2:
#
# | | to 0 | to 1 | to 2 | `send` |
# |---|---|---|---|---|
# | **rank 0** | 1 | 2 | 0 | [1, 2, 0] |
# | **rank 1** | 3 | 0 | 1 | [3, 0, 1] |
# | **rank 2** | 0 | 0 | 2 | [0, 0, 2] |
# | `receive` | [1, 3, 0] | [2, 0, 0] | [0, 1, 2] | |
#
# A rank's `send` is its line of this table, and its `receive` is its column.
#
# `dist.all_to_all_single` does not take part in autograd. If you call it in a forward, its result has no
# history, so backward ends there without an error. This is why you write a `torch.autograd.Function`.
#
# **Predict.** Rank 1 got a row from rank 0, so in backward it has the gradient of that row. Which rank needs
# this gradient? What are `send` and `receive` of the exchange in backward?
#
# <details><summary>Answer</summary>Rank 0 needs it, because rank 0 computed the row in its forward. The
# gradient of every row goes back the way the row came, so <code>send</code> and <code>receive</code> are swapped.</details>
#
# **Build.** Let `exchange` call your Function by its `apply`, because only then does autograd call its
# `backward`.


# %% nbgrader={"grade_id": "exchange", "solution": true}
# Your torch.autograd.Function:
### BEGIN SOLUTION
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.back = receive, send, group
        return all_to_all(rows, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return all_to_all(grad, *ctx.back), None, None, None


def all_to_all(rows, send, receive, group):
    came = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
    return came


### END SOLUTION


def exchange(rows, send, receive, group=None):
    """Return the rows that arrive, (sum(receive), ...). The first receive[0] come from rank 0, etc.

    rows: (sum(send), ...). The first send[0] rows go to rank 0, the next send[1] to rank 1, etc.
    send, receive: lists of Python integers, any of which can be 0. Gradients go back the way the
    rows came.
    """
    ### BEGIN SOLUTION
    # The counts are Python integers, so on a GPU the host has to wait until they are computed.
    return Exchange.apply(rows, send, receive, group)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: room for the rows that arrive</summary><code>rows.new_empty((sum(receive),
# *rows.shape[1:]))</code> has the dtype and the device of <code>rows</code>.</details>
# <details><summary>Hint: the Function</summary><code>forward(ctx, rows, send, receive, group)</code> keeps
# <code>send</code>, <code>receive</code> and <code>group</code> on <code>ctx</code>. <code>backward(ctx,
# grad)</code> returns four values, the gradient of <code>rows</code> and None three times. The gradient might
# not be contiguous, so send <code>grad.contiguous()</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "exchange_check", "points": 9}
report = check("11_experts/exchange", exchange)
### BEGIN HIDDEN TESTS
report = check("11_experts/exchange", exchange, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** The cell runs the example from above. Every rank fills its rows with its rank number. The
# ledger's matrix lists the bytes from each rank to each other rank. Its diagonal is 0, because a rank's part
# for itself is not sent.

# %% tags=["skip-in-grading"]
ROWS = [[1, 2, 0], [3, 0, 1], [0, 0, 2]]


def example():
    rank = dist.get_rank()
    send, receive = ROWS[rank], [row[rank] for row in ROWS]
    rows = torch.full((sum(send), 4), float(rank), device=device())
    return exchange(rows, send, receive)[:, 0].tolist()


run = try_it(example, world_size=3)
if run:
    for rank, came in enumerate(run):
        print(f"rank {rank} got rows from ranks {[int(number) for number in came]}")
    print("bytes from each rank (its line) to each rank (its column):")
    print(run.ledger.matrix())

# %% [markdown]
# **Break it.** On two ranks, rank 0 makes room for one row too few. Without `course_lib`, gloo would end the
# process here. If rank 0 made room for one row too *many*, gloo would report nothing, and the last row would
# hold whatever was in memory. But `course_lib` first compares the sizes at the two ends of each message:


# %% tags=["skip-in-grading"]
def one_too_few():
    rank = dist.get_rank()
    send, receive = [[2, 3], [4, 1]][rank], [[2, 3], [3, 1]][rank]
    rows = torch.zeros(5, 4, device=device())
    came = rows.new_empty(sum(receive), 4)
    dist.all_to_all_single(came, rows, receive, send)


try:
    launch(one_too_few, world_size=2)
except RankError as error:
    print(next(line for line in str(error).splitlines() if "two ends" in line))

# %% [markdown]
# ## 4 · Experts on many ranks
#
# | | |
# |---|---|
# | you will write | `expert_parallel_moe(x, experts, weights, w1, w3, w2, group)` |
# | builds on | §2, §3 |
# | time | 40 minutes |
# | difficulty, importance | 4 and 5 of 5 |
# | points | 14 |
#
# n ranks share E experts. Rank r holds E/n experts, beginning with expert r·E/n, and has T tokens of its own.
# The layer works in five parts:
#
# | part | content | sent |
# |---|---|---|
# | 1 counts | how many rows each rank has for each expert | an all-to-all of E numbers |
# | 2 dispatch | the rows, in the order of their experts, go to the experts' ranks | an all-to-all of rows |
# | 3 compute | each expert computes the results of its rows, which come from all ranks | |
# | 4 combine | the results travel back the same way | an all-to-all of rows |
# | 5 add | the token's own rank multiplies the results by their weights and adds them | |
#
# Part 1 is needed because the routers decide the sizes, so no rank knows how many rows it will receive until
# the other ranks tell it. For part 2, it is enough to sort your rows by expert. They are then also sorted by
# rank, since each rank holds consecutive experts.
#
# Part 3 is the difficult one, because rows arrive **by source**. Rank 0's rows come first, in the order of
# their experts, then the rows of rank 1, and so on. But each expert needs all its rows next to each other, so
# they are sorted **by expert** once more. Before the results leave, they are sorted back into the order in
# which the rows arrived, because every rank expects its results in the order in which it sent its rows.
#
# **Predict.** The experts on rank r have computed results for the rows of all ranks. After backward, do the
# gradients of these experts still have to be summed over the n ranks? What about the router, of which every
# rank has a full copy?
#
# <details><summary>Answer</summary>The experts' gradients do not have to be summed. In backward, every rank
# sends the gradients of its results to the experts, so an expert's gradient is already the sum over the
# tokens of all ranks. But the router's gradient has to be summed, because each copy of the router saw only
# the tokens of its own rank, like any replica (§7).</details>
#
# **Build.** Part 1 is already written. The other parts use `through_experts` and your `exchange`. If your
# `exchange` is not finished, use `reference.exchange` instead.
#
# - `counts` holds the number of this rank's rows for each of the E experts. An `all_to_all_single` without
#   sizes then fills `arriving` with the numbers of rows that will arrive for this rank's experts. The first
#   E/n numbers come from rank 0, the next E/n from rank 1, and so on. For `exchange`, `send` holds the sums
#   of `counts` per rank, and `receive` the sums of `arriving` per rank.
# - To get the expert of each row that arrived (0 is this rank's first expert), write
#   `torch.arange(held).repeat(n).repeat_interleave(arriving)`.
# - A rank without tokens also takes part in all exchanges, because other ranks need its experts.


# %% nbgrader={"grade_id": "expert_parallel_moe", "solution": true}
def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    """Return what `moe` with all E experts would return for this rank's tokens, (T, h).

    x, experts, weights: for this rank's own T tokens, where T can be 0. Experts are numbered across
    all ranks. w1, w3: (E / n, f, h). w2: (E / n, h, f). Rank r of the group holds E / n experts,
    beginning with expert r E / n. A row travels only to the rank of its expert, and back. The
    gradients of w1, w3 and w2 are sums over the tokens of all ranks.
    """
    n, held = dist.get_world_size(group), len(w1)
    counts = experts.flatten().bincount(minlength=n * held)
    arriving = torch.empty_like(counts)  # rows from each rank for each of this rank's experts
    dist.all_to_all_single(arriving, counts, group=group)
    send, receive = (rows.view(n, held).sum(1).tolist() for rows in (counts, arriving))
    ### BEGIN SOLUTION
    order = experts.flatten().argsort(stable=True)
    token = order // experts.shape[1]
    rows = exchange(x[token], send, receive, group)  # sorted by source, then by expert
    expert = torch.arange(held, device=x.device).repeat(n).repeat_interleave(arriving)
    sort = expert.argsort(stable=True)
    out = through_experts(rows[sort], arriving.view(n, held).sum(0).tolist(), w1, w3, w2)
    out = exchange(out[sort.argsort()], receive, send, group)  # by source again, and sent back

    return torch.zeros_like(x).index_add(0, token, out * weights.flatten()[order, None])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the two sorts</summary>After <code>sort = expert.argsort(stable=True)</code>,
# the rows for the experts are <code>rows[sort]</code>, and <code>out[sort.argsort()]</code> is in the
# order in which they arrived.</details>
# <details><summary>Hint: the way back</summary>Call <code>exchange(out, receive, send, group)</code>,
# with the two lists swapped.</details>
# <details><summary>Hint: a skeleton</summary>
# <pre>
# order, token          as in §2
# rows                  exchange(x[token], send, receive, group)
# sort                  argsort of the expert of each row that arrived
# out                   the experts of rows[sort]
# out                   exchange(out[sort.argsort()], receive, send, group)
# the result            index_add, with the weights, as in §2
# </pre></details>
#
# **Check.**

# %% nbgrader={"grade_id": "expert_parallel_moe_check", "points": 14}
report = check("11_experts/expert_parallel_moe", expert_parallel_moe)
### BEGIN HIDDEN TESTS
report = check("11_experts/expert_parallel_moe", expert_parallel_moe, cases="hidden")
### END HIDDEN TESTS
report.points(14)

# %% [markdown]
# **Measure.** The cell runs your layer on four ranks, with eight experts and 64 tokens per rank. The router
# prefers two experts, both on rank 1. The first matrix lists how many rows go from each rank to each rank.
# The second matrix lists the bytes of the *dispatch*, as the ledger counted them. In both matrices, the large
# numbers are in the column of the popular rank.


# %% tags=["skip-in-grading"]
def popular(rank, tokens=64, count=8, k=2):
    """Return a rank's experts and weights, with experts 2 and 3 more popular than the others."""
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(tokens, count, generator=generator)
    logits[:, 2:4] += 1.5
    best = logits.softmax(-1).topk(k)
    return best.indices.to(device()), best.values.to(device())


def one_layer(backward=True):
    rank, n = dist.get_rank(), dist.get_world_size()
    experts, weights = popular(rank)
    _, _, _, w1, w3, w2 = mixture(1)
    own = [w.chunk(n)[rank].clone().to(device()).requires_grad_() for w in (w1, w3, w2)]
    x = torch.ones(64, 64, device=device()).requires_grad_()
    y = expert_parallel_moe(x, experts, weights, *own)
    if backward:
        y.sum().backward()
    return experts.flatten().bincount(minlength=8).tolist()


run = try_it(one_layer)
if run:
    histogram = list(run)
    print("rows from each rank (its line) to each rank (its column):")
    print(torch.tensor(histogram).view(4, 4, 2).sum(2).numpy())
    dispatch = [[op for op in run.ledger.operations(rank, "all_to_all")][1] for rank in range(4)]
    print("bytes of the dispatch, without the rows a rank keeps:")
    for rank, operation in enumerate(dispatch):
        print([0 if to == rank else part for to, part in enumerate(operation.parts)])

# %% [markdown]
# **Look.** This is the timeline of the layer. Each rank has five all-to-alls. The first sends the counts.
# They take at most 64 bytes, but their bar can be the longest, since a rank that begins early has to wait for
# the rank that begins last. The next two all-to-alls are dispatch and combine, and the last two belong to
# backward. In the combine, the other three ranks have to wait for the popular rank, which has more rows to
# compute. With 64 tokens this wait is too short to see. With real sizes, the popular rank has a white gap
# before its combine, and the grey bars of the other three ranks are longer.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if run:
    display(run.ledger.timeline())

# %% [markdown]
# **Break it.** If the results are not sorted back, they leave in the order of the experts. All shapes fit, no
# exchange raises an error, and in training the loss still goes down, only more slowly. The cell compares the
# outputs of this layer on three ranks with the outputs of the correct layer in one process.


# %% tags=["skip-in-grading"]
def unsorted(x, experts, weights, w1, w3, w2, group=None):
    """Do what `expert_parallel_moe` does, except for one line."""
    n, held = dist.get_world_size(group), len(w1)
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=n * held)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    send, receive = (rows.view(n, held).sum(1).tolist() for rows in (counts, arriving))
    rows = reference.exchange(x[order // experts.shape[1]], send, receive, group)
    expert = torch.arange(held, device=x.device).repeat(n).repeat_interleave(arriving)
    sort = expert.argsort(stable=True)
    outs = [
        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
        for e, part in enumerate(rows[sort].split(arriving.view(n, held).sum(0).tolist()))
    ]
    out = reference.exchange(torch.cat(outs), receive, send, group)  # without [sort.argsort()]
    return torch.zeros_like(x).index_add(
        0, order // experts.shape[1], out * weights.flatten()[order, None]
    )


def right_tokens(layer):
    """Return how many of this rank's tokens have the same output as in one process."""
    x, experts, weights, w1, w3, w2 = (part.to(device()) for part in mixture(60, count=6))
    rank, n = dist.get_rank(), dist.get_world_size()
    tokens = [part.chunk(n)[rank] for part in (x, experts, weights)]
    outputs = layer(*tokens, *(w.chunk(n)[rank] for w in (w1, w3, w2)))
    wanted = reference.moe(x, experts, weights, w1, w3, w2).chunk(n)[rank]
    return int(((outputs - wanted).abs().amax(1) < 1e-4).sum())


print("right tokens of 20 on each rank:", list(launch(right_tokens, unsorted, world_size=3)))

# %% [markdown]
# **In production.** Megatron-Core calls its version of this layer `MoEAlltoAllTokenDispatcher`, and
# torchtitan's version is in `expert_parallel.py`. DeepEP (DeepSeek, 2025) provides kernels just for dispatch
# and combine. According to the documentation of its first version, dispatch reaches 153 of about 160 GB/s
# over NVLink, between the eight H800 GPUs of a node, and 43 of about 50 GB/s over a network card, between two
# nodes. Dispatch and combine can be hidden only if there is something else to compute at the same time, such
# as another microbatch, or a *shared expert* that every token uses.

# %% [markdown]
# ## 5 · The bytes, from a histogram
#
# | | |
# |---|---|
# | you will write | `all_to_all_bytes(counts, rank, width, itemsize=2)` |
# | builds on | §4 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 6 |
#
# `counts[r][e]` is the number of rows rank r has for expert e. From this histogram alone, you can compute how
# many bytes a rank sends in one layer, forward and backward.
#
# Take the first matrix printed in §4, which lists the rows from each rank to each rank, and ignore its
# diagonal. In the dispatch, rank r sends the rows counted in *row* r of this matrix. In the combine, it sends
# back a result for each row it received, and these rows are counted in *column* r. Backward repeats both
# exchanges for the gradients, in the opposite direction. So a rank with popular experts sends a lot, even if
# none of its own tokens leave it.
#
# **Predict.** On two ranks with two experts each, the counts are [[3, 1, 2, 0], [0, 5, 1, 1]]. How many
# rows does rank 0 send, in all four exchanges together?
#
# <details><summary>Answer</summary>Rank 0 has 2 rows for rank 1's experts, and gets 5 from rank 1. So it
# sends 2 rows in the dispatch and 5 in the combine, and 7 rows again in backward, which makes 14
# rows.</details>
#
# **Build.** Include only the bytes of the rows. Leave out the counts themselves, which take 8 bytes per
# expert.


# %% nbgrader={"grade_id": "all_to_all_bytes", "solution": true}
def all_to_all_bytes(counts, rank, width, itemsize=2):
    """Return the bytes of the rows a rank sends for one layer in one step, forward and backward.

    counts: a list of lists, in which counts[r][e] is the number of rows rank r has for expert e.
    Each rank holds E / n consecutive experts. A row has `width` elements of `itemsize` bytes.
    """
    ### BEGIN SOLUTION
    n, held = len(counts), len(counts[0]) // len(counts)
    between = [[sum(row[held * to : held * (to + 1)]) for to in range(n)] for row in counts]
    goes = sum(between[rank]) - between[rank][rank]
    comes = sum(row[rank] for row in between) - between[rank][rank]
    return 2 * (goes + comes) * width * itemsize
    ### END SOLUTION


# %% [markdown]
# **Check.**

# %% nbgrader={"grade_id": "all_to_all_bytes_check", "points": 6}
report = check("11_experts/all_to_all_bytes", all_to_all_bytes)
### BEGIN HIDDEN TESTS
report = check("11_experts/all_to_all_bytes", all_to_all_bytes, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** The cell prints your prediction next to the bytes in the ledger, for the run of §4. Each rank
# also sent six of its eight counts, so the cell subtracts 48 bytes from the ledger's number.

# %% tags=["skip-in-grading"]
if run and ready(all_to_all_bytes):
    print("rank   predicted   in the ledger, without counts (bytes)")
    for rank in range(4):
        predicted = all_to_all_bytes(histogram, rank, 64, itemsize=4)
        print(f"{rank:4}{predicted:12,}{run.ledger.bytes_sent(rank) - 48:14,}")

# %% [markdown]
# So a histogram predicts every byte, rank by rank, before anything is sent.
#
# **In production.** DeepSeek-V3 has 256 experts on 8 nodes and k = 8. If the eight experts of a token were
# drawn at random, they would be on 5.29 nodes on average. To reduce the traffic between nodes, the router
# chooses experts on at most four nodes (*node-limited routing*). A row then crosses the network only once for
# each of these nodes. Inside the node, NVLink passes it on.
#
# *This is a good place for a break. When you come back, run the imports and the cells of `route`,
# `through_experts`, `moe`, `exchange` and `expert_parallel_moe` again. §6 needs only the first three of these
# cells, but the scorecard needs all five.*

# %% [markdown]
# ## 6 · Balance, by a loss and by a bias
#
# | | |
# |---|---|
# | you will write | `load_balancing_loss(logits, experts, group=None)`, `update_bias(bias, counts, speed=0.001, group=None)` |
# | builds on | §1, §2 |
# | time | 30 minutes |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 9 |
#
# If you leave a router to itself, it collapses. An expert that is a little better gets more tokens, so it
# learns more, gets better, and is chosen still more often. If the experts are on many ranks, the rank with
# the popular experts is still computing while the other ranks wait. There are two remedies.
#
# **A loss.** Let fᵢ be the share of all assignments that expert i gets, and pᵢ the mean of its
# probability over all tokens. The loss is
#
# > L = E · Σ fᵢ pᵢ
#
# L is 1 if all shares are equal, and E/k if k experts get all assignments and all probability. The shares fᵢ
# have no gradient, because they count choices. But the means pᵢ have a gradient. The larger fᵢ is, the more
# this gradient lowers the probability of expert i.
#
# On many ranks, fᵢ is a share of the assignments of *all* ranks, so the counts are summed over the ranks. For
# pᵢ, each rank needs only its own tokens, because the terms of a mean can be added up rank by rank. Let sᵢ be
# the sum of expert i's probability over a rank's own tokens. Each rank then returns
#
# > E · Σ fᵢ sᵢ / (the number of tokens of *all* ranks)
#
# The results of all ranks add up to L, and their gradients add up to the gradient of L.
#
# **A bias.** After each step, add a fixed `speed` to the bias of every expert that got fewer assignments than
# the mean, and subtract `speed` from the bias of every expert that got more. Unlike the loss, the bias adds
# no gradient of its own (Wang et al. 2024; DeepSeek-V3).
#
# **Predict.** There are 8 experts, k = 2, and the router sends every token to experts 0 and 1, each with
# the probability 1/2. What is L? By how much does the bias of expert 5 change in ten steps with speed
# 0.01?
#
# <details><summary>Answer</summary>Since f = p = (1/2, 1/2, 0, ...), L = 8 · (1/4 + 1/4) = 4 = E/k. Expert 5
# gets fewer assignments than the mean in each of the ten steps, so its bias rises by 0.1.</details>
#
# **Build.** The probabilities are `logits.softmax(-1)`. You also need the number of tokens of all ranks.
# Since each token has k assignments, you can compute this number from the summed counts, and nothing else has
# to be sent.


# %% nbgrader={"grade_id": "load_balancing_loss", "solution": true}
def load_balancing_loss(logits, experts, group=None):
    """Return this rank's share of E sum f_i p_i, a scalar that gives logits a gradient.

    logits: (T, E), for this rank's tokens, where T can be 0. experts: (T, k). The share is
    E sum f_i s_i / (tokens of all ranks), where s_i is the sum of expert i's probability over this
    rank's tokens. The shares of all ranks add up to the loss of the batch, however the tokens are
    spread. Send E numbers in forward and nothing in backward.
    """
    ### BEGIN SOLUTION
    count, k = logits.shape[1], experts.shape[1]
    counts = experts.flatten().bincount(minlength=count).to(logits.dtype)
    dist.all_reduce(counts, group=group)
    assigned = counts.sum()  # k for each token of all ranks
    p = logits.softmax(-1).sum(0) / (assigned / k)
    return count * (counts / assigned * p).sum()
    ### END SOLUTION


# %% nbgrader={"grade_id": "update_bias", "solution": true}
def update_bias(bias, counts, speed=0.001, group=None):
    """Return the bias, raised by `speed` for experts below the mean count, and lowered above it.

    bias: (E,). counts: (E,), the assignments of this rank's tokens. Decide by the assignments of
    all ranks. An expert with exactly the mean count keeps its bias. Leave the arguments unchanged.
    Send E numbers.
    """
    ### BEGIN SOLUTION
    total = counts.double()
    total = total.clone() if total is counts else total
    dist.all_reduce(total, group=group)
    return bias + speed * (total.mean() - total).sign().to(bias.dtype)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the loss</summary>Sum the counts over the ranks. Then f = counts / counts.sum(),
# the number of tokens is counts.sum() / k, and only logits.softmax(-1).sum(0) has a gradient.</details>
# <details><summary>Hint: the bias</summary><code>(mean - counts).sign()</code> is +1, 0 or −1. An
# all-reduce writes into its argument, so give it a copy.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "load_balancing_loss_check", "points": 6}
report = check("11_experts/load_balancing_loss", load_balancing_loss)
### BEGIN HIDDEN TESTS
report = check("11_experts/load_balancing_loss", load_balancing_loss, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% nbgrader={"grade_id": "update_bias_check", "points": 3}
report = check("11_experts/update_bias", update_bias)
### BEGIN HIDDEN TESTS
report = check("11_experts/update_bias", update_bias, cases="hidden")
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# **Measure.** In the next cell, a two-layer GPT learns to write Python from the source code of the standard
# library. Your mixtures, with 8 experts and k = 2, replace its MLPs. The cell trains the GPT three times,
# each time for 120 steps and with the same seed. The first run does nothing for balance. The second uses the
# loss, with a coefficient of 0.1, and the third uses the bias, with a speed of 0.01. The cell takes about 20
# seconds.
#
# `AddLoss.apply(y, loss, scale)` returns y unchanged, but in backward it gives `loss` the gradient `scale`.
# In this way, a loss that is computed inside a layer takes part in training although the model doesn't return
# it. (Megatron-Core has a function of the same kind.)


# %% tags=["skip-in-grading"]
class Mixture(nn.Module):
    def __init__(self, width, hidden, count, k, coefficient, speed):
        super().__init__()
        self.k, self.coefficient, self.speed = k, coefficient, speed
        self.router = nn.Parameter(torch.randn(count, width) * 0.02)
        self.w1 = nn.Parameter(torch.randn(count, hidden, width) * 0.02)
        self.w3 = nn.Parameter(torch.randn(count, hidden, width) * 0.02)
        self.w2 = nn.Parameter(torch.randn(count, width, hidden) * 0.01)
        self.bias, self.counts = torch.zeros(count), torch.zeros(count)

    def forward(self, x):
        flat = x.flatten(0, -2)
        logits = flat @ self.router.T
        experts, weights = route(logits, self.bias, k=self.k)
        self.counts = experts.flatten().bincount(minlength=len(self.router))
        y = moe(flat, experts, weights, self.w1, self.w3, self.w2)
        if self.coefficient:
            y = AddLoss.apply(y, load_balancing_loss(logits, experts), self.coefficient)
        return y.view_as(x)


def train(coefficient=0.0, speed=0.0, steps=120):
    """Return a list with (MaxVio of each layer, loss) of every step."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(context=64, layers=2, heads=4, width=64))
    for block in model.blocks:
        block.mlp = Mixture(64, 128, 8, 2, coefficient, speed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text, history = library_text(), []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 20)
        inputs, targets = batch(text, step, batch_size=8, length=64)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(([max_violation(b.mlp.counts) for b in model.blocks], loss.item()))
        for block in model.blocks if speed else ():
            block.mlp.bias = update_bias(block.mlp.bias, block.mlp.counts, speed)
    return history


KINDS = {"nothing": {}, "the loss": {"coefficient": 0.1}, "the bias": {"speed": 0.01}}
runs = {}
if ready(route, moe, load_balancing_loss, update_bias):
    for name, options in KINDS.items():
        runs[name] = launch(train, **options, world_size=1, backend="gloo")[0]


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def last(history, steps=10):
    """Return each layer's mean MaxVio and the mean loss, over the last steps."""
    violations = [sum(both[layer] for both, _ in history[-steps:]) / steps for layer in (0, 1)]
    return violations, sum(loss for _, loss in history[-steps:]) / steps


if runs:
    figure = picture(7.4, 2.6)
    axes = figure.add_axes((0.08, 0.17, 0.9, 0.7))
    for colour, (name, history) in zip(RANKS, runs.items(), strict=False):
        axes.plot([sum(both) / 2 for both, _ in history], color=colour, label=name, linewidth=1.2)
    axes.axhline(3, color=QUIET, linewidth=0.8)
    axes.set_xlabel("step", size=8), axes.set_ylabel("MaxVio, mean of both layers", size=8)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    axes.tick_params(labelsize=8)
    display(figure)
    print(f"{'':10}  MaxVio of the layers   loss    (means of the last ten steps)")
    for name, history in runs.items():
        violations, loss = last(history)
        print(f"{name:10}  {violations[0]:8.2f} {violations[1]:8.2f}     {loss:7.3f}")

# %% [markdown]
# The grey line marks the complete collapse, with a MaxVio of E/k − 1 = 3. Without a remedy, the routers of
# both layers are close to the line within a dozen steps, and the second layer's router stays on it. The bias
# works slowly. It is added to probabilities between 0 and 1, but each step changes the bias of an expert by
# only 0.01. The biases of a busy and an idle expert move in opposite directions, so a gap of 0.5 between
# their probabilities is closed only after 25 steps. In the meantime, the router collapses in spite of the
# bias.
#
# Look at the losses as well. For a model of this size, balance makes the loss neither much better nor much
# worse, so the reason to balance is *speed*. Suppose that each rank holds one expert, and that the busiest
# expert gets four times the mean number of rows. Then its rank takes four times as long as in a balanced
# layer, and the other ranks wait.
#
# **Break it.** A negative speed raises the bias of the experts that are already popular.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
if runs:
    (history,) = launch(train, speed=-0.01, world_size=1, backend="gloo")
    for speed, run_of in ((0.01, runs["the bias"]), (-0.01, history)):
        first, second = last(run_of)[0]
        print(f"speed {speed:5}: MaxVio of the layers {first:.2f} and {second:.2f}")

# %% [markdown]
# **In production.** DeepSeek-V3 uses both remedies: the bias with a speed of 0.001, and a loss with a
# coefficient of 0.0001. The only purpose of this loss is to prevent extremes within a single sequence (§4.2
# of its report). If activations are recomputed in backward, the router runs twice, and each assignment is
# counted twice. This is why torchtitan halves its counts, although doubled counts would move each bias in the
# same direction.

# %% [markdown]
# ## 7 · Two labs: places that run out, gradients and their groups
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §4 |
# | time | 15 minutes |
#
# **Places that run out.** Older systems (GShard, the Switch Transformer) give each expert a fixed number of
# places, its *capacity* C = ⌈factor · k · T / E⌉. Then all sizes are known in advance, so no counts have to
# be exchanged. But an assignment that finds no place is *dropped*, and its expert adds nothing to the token.
# If all k assignments of a token are dropped, only the residual connection carries the token on.
#
# **Predict.** Take 64 tokens, 8 experts, k = 2, and a router that is perfectly fair *on average*. With a
# factor of 1.0, there are exactly as many places as assignments. Is anything dropped?

# %% tags=["skip-in-grading"]
torch.manual_seed(0)
for tokens in (64, 1024):
    for factor in (1.0, 1.25, 1.5):
        lost = 0.0
        for _ in range(200):
            chosen = torch.rand(tokens, 8).topk(2).indices
            places = reference.capacity(tokens, 8, 2, factor)
            counts = chosen.flatten().bincount(minlength=8)
            lost += float((counts - places).clamp(min=0).sum()) / (2 * tokens) / 200
        print(f"{tokens:5} tokens, factor {factor:4}: {lost:6.2%} of the assignments are dropped")

# %% [markdown]
# Assignments are dropped even if the router is fair, because chance makes some experts busier than others.
# With a factor of 1.0 and only 64 tokens, almost 9 % of the assignments are dropped. Today's systems
# (Megatron-Core by default, MegaBlocks, DeepSeek-V3) drop nothing. Instead, they have to exchange counts and
# parts of unequal size, as your layer does.
#
# **Play.** The widget draws 4,096 random tokens and divides them among up to 64 ranks, with eight ranks per
# node. A row has 7,168 elements in bf16. `skew` makes some experts popular, `places` is the factor in the
# capacity, and `nodes` limits how many nodes each token is sent to (§5). Answer three questions:
#
# 1. With a fair router, what is the smallest number of ranks at which half of the rows leave their node?
# 2. With 64 experts on 16 ranks and k = 4, what skew gives the slowest rank twice the mean number of rows?
# 3. With 256 experts on 64 ranks and k = 8, what share of the bytes between nodes does a limit of 4 nodes
#    save, if a row is sent to each node only once?

# %% tags=["skip-in-grading"]
from course_lib.pictures.router_playground import router_playground

router_playground()

# %% [markdown]
# <details><summary>Answers</summary>The first answer is 16 ranks, which are two nodes. With 32 ranks, three
# in four rows leave their node. The second answer is a skew of 0.5. The third is a quarter, because the bytes
# "once for each node" fall from 4.3 to 3.2 MB. But the limit saves nothing if a row is sent once for each
# expert.</details>
#
# **Gradients and their groups.** Now combine experts with data parallelism, on a mesh with the axes dp and
# ep. With dp = 2 and ep = 2, there are four ranks, and each has tokens of its own. Rank r has the coordinate
# (dp, ep) = (r // 2, r % 2). Which ranks hold the same experts? Which ranks hold the same router?
#
# The loss of the batch is the sum of the losses of all its targets, divided by the number of these targets.
# If each rank divides the losses of its own targets by the number of *all* targets, the results are *terms of
# a sum*, and no gradient has to be divided later. A dense parameter (any parameter outside the experts) is on
# all four ranks. Each rank saw a quarter of the tokens, so the gradient of a dense parameter is summed over
# dp × ep. But an expert is only on the two ranks with the same ep. In forward, it already got the rows of all
# ranks along ep, so its gradient contains the terms of these ranks and is summed only over dp.

# %% tags=["skip-in-grading"]
from course_lib.mesh.coordinates import axis_ranks

sizes = {"dp": 2, "ep": 2}
print("rank   dense gradient summed over   expert's gradient summed over")
for rank in range(4):
    dense, apart = axis_ranks(rank, sizes, ("dp", "ep")), axis_ranks(rank, sizes, ("dp",))
    print(f"{rank:4}   {dense!s:26}   {apart}")

# %% [markdown]
# Two mistakes are easy to make here. The first mistake is to sum an expert's gradient over dp × ep, as if the
# expert were a dense parameter. With four experts, rank 0's gradient of expert 0 is then added to rank 1's
# gradient of expert 2. The shapes fit, so there is no error.
#
# The second mistake is possible if each rank's loss is the mean over its own tokens, because all gradients
# then have to be divided by 4, the number of ranks. It seems natural to divide each gradient by the number of
# ranks over which it is summed, but for an expert's gradient this number is only 2. Divided by 2, the
# expert's gradient is therefore too large. The loss does not always show this mistake, because an optimizer
# can cancel a constant factor in the gradients (notebook 03). A comment in torchtitan's code warns of this
# trap.

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them, the cells show a recorded run, if there is
# one.*
#
# **Predict.** The cell multiplies 16,384 rows in 16 bits by the matrices of 8, 32 and 128 experts. A loop
# starts a product for each expert, but `grouped_mm` starts a single kernel. At how many experts does the loop
# become slower than `grouped_mm`? For every line of its table, the cell predicts the time measured with 8
# experts, because the number of FLOPs is always the same.
#
# <details><summary>Answer</summary>The loop is slower as soon as the rows of a single expert no longer fill
# the GPU's compute units. For example, with 128 experts, the loop starts 128 products of only 128 rows
# each.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus, rows_named
from course_lib.gpu.mixtures import EXCHANGES, GROUPED


def as_the_first(of, run):
    (first, *_) = rows_named(run, way=of["way"])
    return first.value


on_gpus = on_your_gpus(GROUPED, predicted=as_the_first)

# %% [markdown]
# **Predict.** The cell runs an all-to-all between n GPUs, first with equal parts, and then with all rows
# going to one rank. The total number of bytes is the same in both. How many times as long does the second
# all-to-all take?
#
# <details><summary>Answer</summary>It takes about n times as long if all links are equally fast, because the
# link of one GPU carries the bytes that the links of n GPUs carried before.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
between_gpus = on_your_gpus(EXCHANGES)

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 10 minutes |
# | points | 5 |
#
# An answer may be an expression. If a question asks for two things, write a pair, `(first, second)`.
#
# 1. Mixtral holds 46.70 billion parameters and uses 12.88 billion per token. Training with AdamW in mixed
#    precision takes 16 bytes per parameter. How many **GB** (10⁹ bytes) do weights, gradients and optimizer
#    states take together? And how many **GFLOPs** does a token cost, forward and backward, at 6 FLOPs per
#    parameter?
# 2. Take 64 experts, k = 2, 8 ranks with 4,096 tokens each, h = 4,096, bf16, and a balanced router. How
#    many **MB** (10⁶ bytes) of rows does a rank send for one layer, forward and backward?
# 3. On a mesh of dp = 3 and ep = 4, every rank's loss is the mean over its own tokens. Someone divides each
#    gradient by the number of ranks over which it is summed, which is 12 for dense gradients and 3 for
#    experts' gradients. How many **times** too large are the experts' gradients, and with which optimizer
#    does the mistake hardly show: `"sgd"`, `"sgd with momentum"` or `"adamw"`?
# 4. The inner axis of the same mesh, {"dp": 3, "ep": 4}, is ep, so rank r has dp = r // 4 and ep = r % 4.
#    Over which **ranks** is the gradient of a dense parameter on rank 6 summed, and over which ranks is the
#    gradient of an expert on rank 6 summed? Write two lists.
# 5. The training of DeepSeek-V3 took 180,000 GPU hours for each 10¹² tokens, on 2,048 H800 GPUs. How many
#    **days** did 10¹² tokens take?

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # (GB, GFLOPs)
answer_2 = ...  # MB
answer_3 = ...  # (times, optimizer)
answer_4 = ...  # (ranks of a dense parameter, ranks of an expert)
answer_5 = ...  # days
### BEGIN SOLUTION
answer_1 = 16 * 46.70, 6 * 12.88
answer_2 = 4 * 2 * 4096 * 7 / 8 * 4096 * 2 / 1e6
answer_3 = 4, "adamw"
answer_4 = list(range(12)), [2, 6, 10]
answer_5 = 180_000 / 2048 / 24
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 5}
report = check("11_experts/questions", answer_1, answer_2, answer_3, answer_4, answer_5)
### BEGIN HIDDEN TESTS
report = check(
    "11_experts/questions", answer_1, answer_2, answer_3, answer_4, answer_5, cases="hidden"
)
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# ## 9 · Optional: a place in the queue
#
# | | |
# |---|---|
# | you will write | `queue(experts, count, places)` |
# | builds on | §7 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 2 of 5 |
# | extra credit | 3 points, on top of the 60. You lose nothing if you skip it |
#
# If an expert has C places, which tokens get them? In GShard and the Switch Transformer, the assignments of
# each expert form a queue. All *first* choices come before all second choices, and among the first (or
# second) choices the tokens keep their order. An assignment's place is the number of assignments before it
# that want the same expert. The assignment is kept if its place is below C.
#
# **Predict.** Three tokens choose the experts (0, 1), (1, 0) and (0, 2). Which place does token 1's second
# choice get?
#
# <details><summary>Answer</summary>It gets place 2, because the first choices of tokens 0 and 2 are before it
# in the queue of expert 0. These two have the places 0 and 1.</details>
#
# **Build.** You don't need a loop, only `F.one_hot` of the choices in the order of the queue, and a
# `cumsum`.


# %% nbgrader={"grade_id": "queue", "solution": true}
def queue(experts, count, places):
    """Return the place of each assignment, (T, k) int64, and whether place < places, (T, k) bool.

    experts: (T, k), from `route`. count: E. places: C. In an expert's queue, the first choices of
    all tokens come before their second choices, and so on. Among the first (or second) choices,
    the tokens keep their order. Places begin at 0.
    """
    ### BEGIN SOLUTION
    tokens, k = experts.shape
    chosen = F.one_hot(experts.T.flatten(), count)  # all first choices, then all second choices
    before = chosen.cumsum(0) - chosen
    place = (before * chosen).sum(1).view(k, tokens).T
    return place, place < places
    ### END SOLUTION


# %% nbgrader={"grade_id": "queue_check", "points": 0}
# Extra credit, 3 points
report = check("11_experts/queue", queue)
### BEGIN HIDDEN TESTS
report = check("11_experts/queue", queue, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# ## 10 · Optional: few nodes for a token
#
# | | |
# |---|---|
# | you will write | `node_limited(scores, *, k, nodes, limit)` |
# | builds on | §1, §5 |
# | time | 20 minutes |
# | difficulty, importance | 3 and 1 of 5 |
# | extra credit | 4 points, on top of the 60. You lose nothing if you skip it |
#
# DeepSeek-V3 sends each token to experts on at most 4 of 8 nodes, so a row crosses the network at most four
# times (§2.1.2 of its report). To compare the nodes for a token, add up each node's best scores, but only k /
# limit of them. The `limit` nodes with the largest sums are kept, and then the k best experts on these nodes
# are chosen.
#
# **Predict.** The scores of the experts are 5, 0, 0 on node 0 and 3, 3, 3 on node 1. With k = 2 and a limit
# of one node, which experts are chosen?
#
# <details><summary>Answer</summary>Because k / limit is 2, the two best scores of each node are added, so 5 +
# 0 is compared with 3 + 3. Node 1 is kept, and two of its experts are chosen, although the best expert of all
# is on node 0.</details>
#
# **Build.** Remember that scores can be below 0. `unflatten(1, (nodes, -1))` gives each node a row of its
# own, with the scores of its experts.


# %% nbgrader={"grade_id": "node_limited", "solution": true}
def node_limited(scores, *, k, nodes, limit):
    """Return the experts of each token, (T, k) int64, on at most `limit` nodes, the best first.

    scores: (T, E). Each node holds E / nodes consecutive experts. nodes divides E, and limit
    divides k. To compare the nodes, add up the k / limit best scores of each.
    """
    ### BEGIN SOLUTION
    by_node = scores.unflatten(1, (nodes, -1))
    worth = by_node.topk(k // limit).values.sum(-1)
    kept = torch.zeros_like(worth).scatter(1, worth.topk(limit).indices, 1.0).bool()
    return by_node.where(kept[..., None], -torch.inf).flatten(1).topk(k).indices
    ### END SOLUTION


# %% nbgrader={"grade_id": "node_limited_check", "points": 0}
# Extra credit, 4 points
report = check("11_experts/node_limited", node_limited)
### BEGIN HIDDEN TESTS
report = check("11_experts/node_limited", node_limited, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# ## Scorecard
#
# The card shows one AdamW step of the small GPT on 4 ranks. Each of the GPT's two layers has 8 experts with
# 512 hidden elements. The card compares DDP with your layer. DDP keeps all experts on every rank and
# all-reduces their gradients, but your layer keeps only two experts on each rank. M is the size of all
# parameters, in bytes.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class Layer(nn.Module):
    """A mixture with all experts or, if `shared`, only with the experts of this rank."""

    def __init__(self, width, hidden, count, k, shared):
        super().__init__()
        self.k, self.shared = k, shared
        self.router = nn.Parameter(torch.randn(count, width) * 0.02)
        n, rank = (dist.get_world_size(), dist.get_rank()) if shared else (1, 0)
        inward, outward = (hidden, width), (width, hidden)
        for name, shape in (("w1", inward), ("w3", inward), ("w2", outward)):
            whole = torch.randn(count, *shape) * 0.02
            setattr(self, name, nn.Parameter(whole.chunk(n)[rank].clone()))

    def forward(self, x):
        flat = x.flatten(0, -2)
        experts, weights = route(flat @ self.router.T, k=self.k)
        layer = expert_parallel_moe if self.shared else moe
        return layer(flat, experts, weights, self.w1, self.w3, self.w2).view_as(x)


def step_of(shared):
    torch.manual_seed(0)
    model = GPT(GPTConfig(context=64, layers=2, heads=4, width=64))
    for block in model.blocks:
        block.mlp = Layer(64, 512, 8, 2, shared)
    model.to(device())
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = batch(library_text(), 0, batch_size=8, length=64, rank=rank, world_size=n)
    inputs, targets = (tokens.to(device()) for tokens in rows)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    dist.barrier()
    with costs(inputs, targets, *model.parameters()) as cost:
        (next_token_loss(model(inputs), targets) / n).backward()
        for name, parameter in model.named_parameters():
            if not (shared and name.rpartition(".")[2] in ("w1", "w3", "w2")):
                dist.all_reduce(parameter.grad)
        optimizer.step()
    return cost


def row_of(name, run):
    """Return a row of the card. It counts the bytes sent after the barrier."""
    sent = []
    for rank in range(len(run)):
        operations = run.ledger.operations(rank)
        begin = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-1]
        sent.append(sum(operation.bytes_sent for operation in operations[begin:]))
    return Row(
        strategy=name,
        ranks=len(run),
        flops=sum(cost.flops for cost in run),
        peak_bytes=max(cost.peak_bytes for cost in run),
        bytes_sent=max(sent),
    )


card = {
    "all experts on every rank": try_it(step_of, False),
    "two experts on every rank": try_it(step_of, True),
}
whole_model = GPT(GPTConfig(context=64, layers=2, heads=4, width=64))
for block in whole_model.blocks:
    block.mlp = Layer(64, 512, 8, 2, False)
held = sum(p.nbytes for p in whole_model.parameters())
alone_run = try_it(step_of, False, world_size=1)
if alone_run:
    rows = [row_of("one process", alone_run)]
    rows += [row_of(name, run) for name, run in card.items() if run]
    display(Scorecard(rows, unit=held, flops_alone=alone_run[0].flops))

# %% [markdown]
# *Bytes*: With DDP, each rank sends 2(N−1)/N times the size of all gradients. If the experts are divided
# among the ranks, as here, their gradients are not sent. Instead, the rows of the tokens are sent, and their
# size does not depend on the number of hidden elements in an expert. So the wider the experts are, the more
# you save by sending tokens instead of gradients. *Memory*: Of the eight experts in a layer, each rank holds
# the weights, gradients and AdamW states of only two.
#
# **You have built** a router that learns only through the weights it gives; a mixture of experts on one rank
# and many; an exchange of unequal parts that autograd can follow; and two ways to keep experts busy. From a
# histogram, you can also predict how many bytes each rank sends, and you know over which ranks each gradient
# is summed.
#
# **Read on.**
# - Shazeer et al. (2017), *Outrageously Large Neural Networks*: the gate, and how it collapses.
# - Lepikhin et al. (2020), *GShard*: experts on many devices, capacity, two all-to-alls.
# - Fedus, Zoph, Shazeer (2021), *Switch Transformers*: k = 1, and the loss of §6.
# - Gale et al. (2022), *MegaBlocks*: experts that drop no tokens.
# - Jiang et al. (2024), *Mixtral of Experts*: the layer of §2, in a model you can download.
# - Wang et al. (2024), *Auxiliary-Loss-Free Load Balancing*: the bias.
# - DeepSeek-AI (2024), *DeepSeek-V3 Technical Report*: §2.1.2 and §3.2.
# - `course_lib/experts/`: read it after you have written your own layer, and begin with `parallel.py`.
#
# <details><summary>In the lectures</summary>Lecture 002 says that experts "share parameters". But each expert
# has its own matrices. Only attention, norms and embeddings are used by all tokens. Mixtral has eight copies
# of a 7B model's MLPs, but all other parameters only once, so it has 46.7 billion parameters instead of 56.
# Lecture 001's figure for GPT-4 is a rumour.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("11_experts")
