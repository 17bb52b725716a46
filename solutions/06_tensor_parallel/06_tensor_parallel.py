# %% [markdown]
# # 06 · Tensor parallelism
#
# **How is one layer split, and what do its parts have to send each other?**
#
# ZeRO-3 (notebook 04) keeps 1/N of the weights on every rank, but gathers them to compute *whole* layers, so
# activations do not shrink. GPT-3 keeps 2.9 GB of them for every layer and every sequence of 2,048 tokens,
# which makes 275 GB for its 96 layers, but an H100 has only 80 GB. (The numbers are for 16 bits, without
# flash attention or recomputation, from Korthikanti et al. 2022, table 2.) Splitting the batch cannot help,
# because each rank needs at least one sequence.
#
# In this notebook, all ranks work on the *same* sequences, and each computes a part of each layer, such as
# some columns of a matrix, some heads, or some tokens of the vocabulary. Weights, gradients, optimizer
# states, most activations and the work are divided by N. The price is communication inside every layer, and
# the next operation has to wait for it.
#
# | | |
# |---|---|
# | you will build | the two functions at the edges of a split layer; column- and row-parallel linear layers; attention, embedding and loss over many ranks; sequence parallelism; a GPT made of them |
# | you need | all-reduce, reduce-scatter, all-gather and their bytes (notebook 02); `torch.autograd.Function`; how a transformer's block computes |
# | time | three hours; the *optional* parts (the ends of §4 and §5, the scorecard, and all of §9) take an hour more |
# | points | 60, and 7 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. With several GPUs, *On your GPUs* shows what only they can show |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | start | 7 | | |
# | 1 What must be sent | 23 | 6 | notebook 02 |
# | 2 By columns | 16 | 7 | 1 |
# | 3 By rows | 11 | 7 | 1, 2 |
# | 4 Two layers, and which kind is it? | 26, and 6 *optional* | 3 + 5 | 2, 3 |
# | 5 Attention | 19, and 32 *optional* | 6 + 4 extra | 4 |
# | 6 The two ends: embedding and loss | 33 | 12 | 1, 2 |
# | 7 Sequence parallelism | 29 | 8 | 1, 4, 5 |
# | 8 What it costs, and when it stops paying | 6 | 3 | 4, 6, 7 |
# | 10 Questions, and the scorecard | 9, and 4 *optional* | 3 | all |
# | 9 Optional: a GPT with its layers replaced | 18 | 3 extra | 2, 3; its last curve also 5, 6 |

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import contextlib
import warnings
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.patches import Patch, Rectangle
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib import check, device, launch
from course_lib.axis_types import R, S, axis_types
from course_lib.data import batch, library_text
from course_lib.models import GPT, PRESETS, GPTConfig, next_token_loss
from course_lib.pictures.colours import (
    COMMUNICATION,
    FORWARD,
    INK,
    QUIET,
    RANKS,
    TINTS,
    picture,
)
from course_lib.scorecard import Row, Scorecard, costs
from course_lib.unfinished import tried, try_it

warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 renames two collectives
Group = dist.ProcessGroup | None  # None is the group of all ranks


# %% [markdown]
# ### Letters, words and tools
#
# N ranks share a layer, and all of them get the same tokens. M is the size of one whole activation in bytes,
# which is batch × sequence × width × bytes per element. This notebook often counts bytes sent in **halves of
# an all-reduce**. A half is (N−1)/N · M, so an all-reduce sends two halves, whereas an all-gather or a
# reduce-scatter sends only one (notebook 02).
#
# <details><summary>A list of words to come back to</summary>
#
# | | |
# |---|---|
# | replicated | Every rank has the same tensor. A replicated tensor is *whole* |
# | sharded | Every rank holds only its own part, its shard. To shard a tensor is to *cut* it |
# | partial | Every rank holds a tensor of full size, which is only a *term*. The tensor you want is the *sum* of all ranks' terms |
# | region | the operations during which each rank has only some of the features, such as a layer's attention or its MLP |
# | residual stream | the activation a block reads, and to which it adds its output |
# | hidden | the features between the two matrices of an MLP, usually 4 times the width |
#
# </details>
# <details><summary>In the lectures</summary>Lecture 001 says in a sentence how the two methods differ. ZeRO-3
# "shards weights for memory but reconstructs them for computation", whereas tensor parallelism "splits the
# computation itself".</details>
#
# The next cell has three functions that move data, but know nothing about gradients, so if you need gradients
# through them, you have to write the backward. `part` cuts as `torch.tensor_split` does, so 10 elements on 4
# ranks become 3, 3, 2, 2, and `joined` joins such parts. But `summed_part` needs equal parts. And `part`
# returns a *copy*, because a view would keep the whole tensor in memory.
#
# The cell after it has tools that measure. `passes` runs a layer forward and backward on every rank, with the
# same weights and the same input on all of them. `alone` does the same in one process, `beside` compares the
# two, and `sent` reads from the ledger how many bytes a rank sent, forward and backward. You don't have to
# read the code of this cell, nor of later ones that only measure or draw.


# %%
def part(x, dim, group: Group = None):
    """This rank's part of `x` along `dim`."""
    return x.detach().tensor_split(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()


def joined(x, dim, group: Group = None, size=None):
    """All ranks' parts, joined along `dim`. size: the size of the whole, needed if
    parts can be unequal."""
    n, dim = dist.get_world_size(group), dim % x.dim()
    sizes = [x.shape[dim]] * n if size is None else [size // n + (r < size % n) for r in range(n)]
    if x.shape[dim] != sizes[dist.get_rank(group)]:
        raise ValueError(f"a part of {x.shape[dim]}, but size={size} on {n} ranks makes {sizes}")
    padded = x.movedim(dim, 0).contiguous()
    padded = torch.cat([padded, padded.new_zeros(max(sizes) - len(padded), *padded.shape[1:])])
    pieces = padded.new_empty(n * max(sizes), *padded.shape[1:])
    dist.all_gather_into_tensor(pieces, padded, group=group)
    kept = [piece[:size] for piece, size in zip(pieces.chunk(n), sizes, strict=True)]
    return torch.cat(kept).movedim(0, dim).contiguous()


def summed_part(x, dim, group: Group = None):
    """This rank's part, along `dim`, of the sum of all ranks' `x`;
    its size must be a multiple of N."""
    n, dim = dist.get_world_size(group), dim % x.dim()
    if x.shape[dim] % n:
        raise ValueError(f"{x.shape[dim]} positions cannot be shared equally by {n} ranks")
    pieces = x.movedim(dim, 0).contiguous()
    own = pieces.new_empty(len(pieces) // n, *pieces.shape[1:])
    dist.reduce_scatter_tensor(own, pieces, group=group)
    return own.movedim(0, dim)


# %%
class Saved:
    """A context that counts the bytes forward keeps for backward, but each piece
    of memory only once."""

    def __init__(self, apart_from=()):
        self.known = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
        self.alive, self.nbytes = [], 0

    def __enter__(self):
        self.hooks = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.alive.append(tensor.detach())  # or else freed memory is given out again
            self.nbytes += storage.nbytes()
        return tensor


def passes(make, shape=(2, 32, 64), cut=False):
    """Run the layer made by `make()`, forward and backward, and return this rank's results.

    cut: the layer takes and returns the rank's part of the sequence (§7).
    """
    torch.manual_seed(0)
    layer = make().to(device())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device())
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(device())
    if cut:
        x, weights = part(x, -2), part(weights, -2)
    x.requires_grad_()
    dist.barrier()
    with Saved(layer.parameters()) as saved:
        y = layer(x)
    dist.barrier()
    # Any loss would do, if it is the same on all ranks, or (cut) if each rank has a part of it.
    (y * weights).sum().backward()
    dist.barrier()
    return {
        "y": y.detach(),
        "x.grad": x.grad,
        **{f"{name}.grad": p.grad for name, p in layer.named_parameters()},
        "held": sum(p.nbytes for p in layer.parameters()),
        "saved": saved.nbytes,
    }


def sent(run, rank=0):
    """(forward, backward): bytes a rank sent between the last three barriers."""
    operations = run.ledger.operations(rank)
    at = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-3:]
    return tuple(
        sum(operation.bytes_sent for operation in operations[begin:end])
        for begin, end in ((at[0], at[1]), (at[1], at[2]))
    )


def alone(make, **options):
    """The results of one process."""
    return launch(passes, make, world_size=1, **options)[0]


def furthest(a, b):
    """The largest difference between a and b, divided by the largest number of b."""
    return float((a - b).abs().max() / b.abs().max())


def beside(name, make, whole, world_size=4, **options):
    """Compare output and gradient of x with one process, and print the bytes sent
    and the share held."""
    run = try_it(passes, make, world_size=world_size, **options)
    if run is None:
        return None
    single, (forward, backward) = alone(whole, **options), sent(run)
    apart = [furthest(run[0][key], single[key]) for key in ("y", "x.grad")]
    right = "equal to one process" if max(apart) < 1e-5 else f"off by {max(apart):.2g}"
    print(
        f"{name}: {right}; sent forward {forward:,.0f}, backward {backward:,.0f} bytes;"
        f" parameters {run[0]['held'] / single['held']:.3f} of the whole"
    )
    return run


def said(prediction, *args):
    """The result of a prediction of yours, as text."""
    try:
        number = prediction(*args)
    except NotImplementedError:
        return "?"
    return f"{number:,.0f}" if isinstance(number, int | float) else f"{number}, not a number"


# %% [markdown]
# ## 1 · What must be sent
#
# | | |
# |---|---|
# | you will write | `identity_all_reduce`, `all_reduce_identity` |
# | builds on | notebook 02 |
# | time | 23 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 6 |
#
# A linear layer is y = x A. Here a tensor is *replicated*, or *whole*, if every rank has all of it, and
# *sharded* if every rank has a part of it. It is *partial* if it is a sum, and every rank has one term of
# full size. There are two ways to cut A over the ranks:
#
# | | A | each rank computes | x | y |
# |---|---|---|---|---|
# | **by columns** | [A₀ A₁] | yᵣ = x Aᵣ | replicated | sharded: y = [y₀ y₁] |
# | **by rows** | A₀ above A₁ | yᵣ = xᵣ Aᵣ | sharded: x = [x₀ x₁] | partial: y = y₀ + y₁ |
#
# For example, let x be [1, 2], and let A have the rows [1, 2] and [3, 4], so that x A = [7, 10]. By columns,
# rank 0 computes 7 and rank 1 computes 10. By rows, rank 0 computes 1 · [1, 2] and rank 1 computes 2 · [3,
# 4]. These are the terms [1, 2] and [6, 8], and their sum is [7, 10].
#
# So in forward, the cut by columns sends nothing, and the cut by rows needs one sum. And in backward?
# Autograd sees only one process with a smaller matrix.
#
# *By columns.* Every rank uses x. If a value is used N times, its gradient is the **sum** of the gradients
# from all uses. On one GPU, autograd adds them up by itself. But here the uses are on N ranks, so you have to
# add them up.
#
# *By rows.* The sum hands its gradient on to every term unchanged. And every rank already has that gradient,
# because all of them compute the same loss from the same y.
#
# A *region*, such as a layer's MLP, begins with a matrix that is cut by columns and ends with one that is cut
# by rows (§4 shows why). There is a function at each of its edges, and the two functions are mirror images:
#
# | | forward | backward | in Megatron-LM's paper |
# |---|---|---|---|
# | into a region: `identity_all_reduce` | nothing | all-reduce | f |
# | out of it: `all_reduce_identity` | all-reduce | nothing | g |
#
# **Predict.** With M bytes on N ranks, how much does each function send, forward and backward? And what would
# happen if you wrote no function, but called `dist.all_reduce(y)`, which works in place, on a layer's output?
#
# <details><summary>Answer</summary>identity_all_reduce sends 2 (N−1)/N · M backward and nothing forward, and
# all_reduce_identity does the opposite. Autograd does not see <code>dist.all_reduce</code>. In place of
# all_reduce_identity, this call would give the right gradient by luck, and PyTorch would warn that another
# release may compute a different one. But it cannot replace identity_all_reduce, whose work is in backward,
# so the gradients of x would not be added up.</details>
#
# **Build.** Write two `torch.autograd.Function`s, and two functions that apply them:
#
# - Neither of them may write into its input, because x and the gradient might be used elsewhere.
#   `dist.all_reduce` works in place, so give it a copy, which must be contiguous.
# - `backward` returns one value for each argument of `forward`, so it returns a gradient for x and None for
#   the group.


# %% nbgrader={"grade_id": "conjugate_functions", "solution": true}
# Your torch.autograd.Functions:
### BEGIN SOLUTION
class _IdentityAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _AllReduceIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


### END SOLUTION


def identity_all_reduce(x, group: Group = None):
    """Into a region. Forward: x. Backward: the gradients of all ranks added up."""
    ### BEGIN SOLUTION
    return _IdentityAllReduce.apply(x, group)
    ### END SOLUTION


def all_reduce_identity(x, group: Group = None):
    """Out of a region. Forward: the sum over the ranks, in a new tensor.
    Backward: the gradient itself."""
    ### BEGIN SOLUTION
    return _AllReduceIdentity.apply(x, group)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the form</summary><pre>class _IdentityAllReduce(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, x, group):
#         ctx.group = group
#         return x.view_as(x)
#
#     @staticmethod
#     def backward(ctx, grad): ...</pre></details>
# <details><summary>Hint: the copy</summary>Use <code>x.clone(memory_format=torch.contiguous_format)</code>.
# If the tensor is not contiguous, gloo adds up the wrong values, without an error (notebook 00,
# §5.6).</details>
#
# **Check.**

# %% nbgrader={"grade_id": "conjugate_functions_check", "points": 6}
report = check("06_tensor_parallel/conjugate_functions", identity_all_reduce, all_reduce_identity)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/conjugate_functions",
    identity_all_reduce,
    all_reduce_identity,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** The check has already counted the bytes. Its x has 96 bytes and there are 3 ranks, so a rank
# sends 2 · 2/3 · 96 = 128 in one direction and 0 in the other.
#
# **Break it.** PyTorch has an all-reduce known to autograd, `torch.distributed.nn.functional.all_reduce`. Use
# it instead of `all_reduce_identity`. Four ranks add up x, and the loss is the sum itself. What is the
# gradient of x?


# %% tags=["skip-in-grading"]
def gradient_of(add_up):
    x = torch.ones((), device=device(), requires_grad=True)
    add_up(x).backward()  # loss = x_0 + x_1 + x_2 + x_3, on every rank
    return x.grad.item()


def theirs(x):
    from torch.distributed.nn.functional import all_reduce

    with warnings.catch_warnings(action="ignore"):  # an old name
        return all_reduce(x)


for name, add_up in (("yours", all_reduce_identity), ("torch.distributed.nn", theirs)):
    run = try_it(gradient_of, add_up)
    if run:
        print(f"{name:20} d loss / d x = {run[0]}")

# %% [markdown]
# The right gradient is 1, because if you raise one rank's x by a little, the loss rises by as much. PyTorch's
# all-reduce says 4, but this is not a bug. PyTorch treats the losses of the four ranks as *four* losses, each
# of which contains x, and differentiates their sum. In tensor parallelism, however, the four are copies of
# one loss. With AdamW this factor N hardly shows in the loss, since Adam divides by the gradient's size
# (notebook 03), but with gradient clipping or SGD it does.
#
# <details><summary>In production</summary>Megatron-LM calls your functions
# <code>copy_to_tensor_model_parallel_region</code> and <code>reduce_from_tensor_model_parallel_region</code>.
# They are named after their forward. In backward, each does the forward of the other.</details>

# %% [markdown]
# ## 2 · By columns
#
# | | |
# |---|---|
# | you will write | `ColumnParallelLinear(in_features, out_features, bias=True, gather_output=False, group=None)` |
# | builds on | §1 |
# | time | 16 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 7 |
#
# `nn.Linear` stores the transpose of A. Its `weight` is (out, in), and y = x weightᵀ. So a *column* of A is a
# **row** of `weight`, and `ColwiseParallel`, PyTorch's class for this layer, cuts dimension 0. (If a text
# cuts "the weight matrix W", ask which of the two it means.)
#
# **Predict.** A layer maps 1,024 features to 4,096, on four ranks. What shapes do a rank's weight and bias
# have? Which tensor is communicated in which direction, and how many of its bytes are sent?
#
# <details><summary>Answer</summary>The shapes are (1,024, 1,024) and (1,024,). Forward sends nothing.
# Backward adds up the gradient of x, which takes 2 · 3/4 of x's bytes. The bias is cut in the same way as the
# outputs, so it sends nothing.</details>
#
# If you want the whole output (`gather_output`), the parts are gathered. What is the backward of this gather?
# Each rank already has the gradient of the whole output, because all later operations are the same on all
# ranks. So the rank takes its own part of it. The next cell provides this function, `gather_parts`, and its
# mirror image `own_features` for §3, which takes the part forward and gathers backward. `Conjugate` makes
# both of them, and spares you a class in §7.
#
# **Build.** Every rank makes the whole layer (`whole`, given), and keeps its part. Since all ranks have the
# same seed, the parts form the layer one process would initialize. (In real training, layers are too large
# for one rank, so they are initialized part by part.)
#
# - `weight` and `bias` are `nn.Parameter`s of this rank's part only. With `bias=False`, `bias` is None.
# - If N does not divide `out_features`, cut as `part` does, so that the first ranks have one more feature.


# %%
class Conjugate(torch.autograd.Function):
    """Forward: there(x). Backward: back(gradient)."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad), None, None


def gather_parts(x, size, group: Group = None):
    """Forward: all ranks' features, joined to `size` of them. Backward: this rank's part."""
    return Conjugate.apply(
        x, lambda x: joined(x, -1, group, size), lambda grad: part(grad, -1, group)
    )


def own_features(x, group: Group = None):
    """Forward: this rank's features of a replicated x. Backward: all ranks' gradients, joined."""
    size = x.shape[-1]
    return Conjugate.apply(
        x, lambda x: part(x, -1, group), lambda grad: joined(grad, -1, group, size)
    )


# %% nbgrader={"grade_id": "column_parallel_linear", "solution": true}
class ColumnParallelLinear(nn.Module):
    """nn.Linear whose output features are cut over the ranks of `group`.

    forward: x (..., in_features), replicated; returns the rank's part of (..., out_features), or
    all of it if gather_output is set. Forward sends nothing, or (N-1)/N of the output if
    gather_output is set.
    Backward sends 2 (N-1)/N of x.
    """

    def __init__(
        self, in_features, out_features, bias=True, gather_output=False, group: Group = None
    ):
        super().__init__()
        self.out_features, self.gather_output, self.group = out_features, gather_output, group
        whole = nn.Linear(in_features, out_features, bias)
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(part(whole.weight, 0, group))
        self.bias = nn.Parameter(part(whole.bias, 0, group)) if bias else None
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        y = F.linear(identity_all_reduce(x, self.group), self.weight, self.bias)
        return gather_parts(y, self.out_features, self.group) if self.gather_output else y
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: four lines</summary>In the constructor, make a parameter of
# <code>part(whole.weight, 0, group)</code>, and of the bias's part. In forward, enter the region with
# <code>identity_all_reduce</code>, then call <code>F.linear</code>, and finally <code>gather_parts</code> if
# asked.</details>
#
# **Check.** The cell after the check runs a layer from 64 features to 64 on four ranks, and compares it with
# `nn.Linear` in one process. Its x has 2 × 32 tokens of 64 float32 features, so M is 16,384 bytes.

# %% nbgrader={"grade_id": "column_parallel_linear_check", "points": 7}
report = check("06_tensor_parallel/column_parallel_linear", ColumnParallelLinear)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/column_parallel_linear", ColumnParallelLinear, cases="hidden")
### END HIDDEN TESTS
report.points(7)

# %% tags=["skip-in-grading"]
_ = beside(
    "columns", lambda: ColumnParallelLinear(64, 64, gather_output=True), lambda: nn.Linear(64, 64)
)

# %% [markdown]
# Forward sends 3/4 of the output, because of `gather_output`, and backward sends 6/4 of x. A rank holds a
# quarter of the weights. Without `gather_output`, it would also hold only a quarter of the output, and §4
# shows which layer can continue with a quarter of the features.
#
# <details><summary>What is wrong without <code>identity_all_reduce</code>? The output, the gradients of the
# rank's own weights, or the gradient of x?</summary>Only the gradient of x is wrong, because a rank has only
# the share from its own columns. If this layer is the model's first, nothing shows the mistake. But anywhere
# else, all layers before it learn from a different gradient on each rank. You will meet this mistake again in
# §4.</details>
#
# <details><summary>In production</summary>This layer is <code>ColwiseParallel()</code> in PyTorch and
# <code>ColumnParallelLinear</code> in Megatron-LM. Megatron-LM's version does not idle in backward. While the
# gradient of x is being summed, it computes the gradient of the weights, because this needs no other
# rank.</details>
#
# <details><summary>In the lectures</summary>Lectures 003 and 004 cut "the weight matrix W", but do not say
# whether it is A or its transpose.</details>


# %% [markdown]
# ## 3 · By rows
#
# | | |
# |---|---|
# | you will write | `RowParallelLinear(in_features, out_features, bias=True, input_is_parallel=True, group=None)` |
# | builds on | §1, §2 |
# | time | 11 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 7 |
#
# Now let's cut the other way. Each rank has some *input* features, and therefore rows of A, or columns of
# `weight`. The product is partial, y = y₀ + y₁, and the sum is replicated.
#
# **Predict.** What about the bias? It belongs to y, which all ranks have, so it is not cut. If every rank
# adds it to its term, what comes out of the sum on 4 ranks? And what is the bias's gradient then?
#
# <details><summary>Answer</summary>The sum has four times the bias. So add it once, afterwards. Every rank
# keeps all of it and gets the same gradient for it. Therefore nothing has to be sent, and the copies stay
# equal. That gradient is the same even if every rank adds the bias to its term, so the mistake looks
# innocent. And if biases begin at 0, as in many models, the first forward is right as well. Training
# continues, with a bias that counts N times, until the checkpoint is loaded on a different number of ranks
# and the loss jumps.</details>
#
# **Build.**
#
# - If `input_is_parallel=True`, x is sharded by features, in the form a `ColumnParallelLinear` leaves it.
# - If `input_is_parallel=False`, x is replicated, and the layer takes its part of it (`own_features`).
# - Keep the rank's part of `whole`, as in §2, but keep `bias` replicated. If N does not divide
#   `in_features`, cut as `part` does.


# %% nbgrader={"grade_id": "row_parallel_linear", "solution": true}
class RowParallelLinear(nn.Module):
    """nn.Linear whose input features are cut over the ranks of `group`.

    forward: x, the rank's part of (..., in_features), or all of it if input_is_parallel is False;
    returns (..., out_features), replicated. Forward sends 2 (N-1)/N of the output. Backward sends
    nothing, or (N-1)/N of x if input_is_parallel is False.
    """

    def __init__(
        self, in_features, out_features, bias=True, input_is_parallel=True, group: Group = None
    ):
        super().__init__()
        self.input_is_parallel, self.group = input_is_parallel, group
        whole = nn.Linear(in_features, out_features, bias)
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(part(whole.weight, 1, group))
        self.bias = whole.bias
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        if not self.input_is_parallel:
            x = own_features(x, self.group)
        y = all_reduce_identity(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Call <code>F.linear(x, self.weight)</code> without a bias, then
# <code>all_reduce_identity</code>, and then add the bias.</details>
#
# **Check.** The cell after the check compares the layer with one process.

# %% nbgrader={"grade_id": "row_parallel_linear_check", "points": 7}
report = check("06_tensor_parallel/row_parallel_linear", RowParallelLinear)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/row_parallel_linear", RowParallelLinear, cases="hidden")
### END HIDDEN TESTS
report.points(7)

# %% tags=["skip-in-grading"]
_ = beside(
    "rows", lambda: RowParallelLinear(64, 64, input_is_parallel=False), lambda: nn.Linear(64, 64)
)

# %% [markdown]
# Forward sends 6/4 of y. Backward sends 3/4 of x, because x was whole, so the ranks have to gather the parts
# of its gradient. The bias makes the share of parameters a little more than a quarter.
#
# <details><summary>In production</summary>This layer is <code>RowwiseParallel()</code> in PyTorch. In
# Megatron-LM it is <code>RowParallelLinear</code>, with your argument <code>input_is_parallel</code>. With
# <code>skip_bias_add</code>, Megatron-LM's layer returns the bias instead of adding it, for a kernel that
# handles bias, dropout and the residual stream together.</details>
#
# <details><summary>In the lectures</summary>Lecture 003 calls this layer "Raw Parallel", Y = Y₁ +
# Y₂.</details>


# %% [markdown]
# ## 4 · Two layers, and which kind is it?
#
# | | |
# |---|---|
# | you will write | `kind_1` to `kind_12`; repairs of `rows_then_columns`, `bias_behind` and `norm_before`; `layer_bytes_sent(n, nbytes, direction, sequence=None)` |
# | builds on | §2, §3 |
# | time | 26 minutes, and 6 for the *optional* end |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 3 + 5, and the formula in §8 |
#
# An MLP is two matrices with an activation function between them, y = gelu(x A) B. If A is cut by rows and B
# by columns, x A is a sum of terms, but gelu(a + b) is not gelu(a) + gelu(b). So the wide *hidden* features
# between the matrices must be added up *before* the activation function. If A is instead cut by columns and B
# by rows, every rank keeps its own hidden features from the first matrix to the second. This works because
# the activation function treats each element separately, and a rank's rows of B take exactly the features its
# columns of A have computed.
#
# The first cell below defines this MLP, and the second one runs it on two ranks and draws its tensors. Each
# box is a tensor (tokens down, features across), and the part on this rank is coloured.


# %%
class ParallelMLP(nn.Module):
    """down(gelu(up(x))): up by columns, down by rows. Nothing is sent between them."""

    def __init__(self, width, hidden, group: Group = None):
        super().__init__()
        self.up = ColumnParallelLinear(width, hidden, group=group)
        self.down = RowParallelLinear(hidden, width, group=group)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MLP(nn.Module):
    """The same MLP in one process."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


# %% tags=["skip-in-grading"]
TOKENS, WIDTH, HIDDEN = 32, 64, 256


def stages(make):
    """This rank's tensors, in the order of forward:
    (name, shape here, shape of the whole, whether a term)."""
    torch.manual_seed(0)
    mlp, held = make(WIDTH, HIDDEN).to(device()), []

    def look(linear, names, features, outputs):
        here, by_rows = linear.weight.T.shape, linear.weight.shape[1] < features
        held.append((names[0], (TOKENS, here[0]), (TOKENS, features), False))
        held.append((names[1], here, (features, outputs), False))
        held.append((names[2], (TOKENS, here[1]), (TOKENS, outputs), by_rows))
        if by_rows or getattr(linear, "gather_output", False):
            held.append(("send", (), (), False))

    mlp.up.register_forward_hook(lambda up, *_: look(up, ("x", "A", "x A"), WIDTH, HIDDEN))
    mlp.down.register_forward_hook(
        lambda down, *_: look(down, ("h = gelu", "B", "h B"), HIDDEN, WIDTH)
    )
    x = torch.randn(TOKENS, WIDTH, device=device(), requires_grad=True)
    dist.barrier()
    y = mlp(x)
    dist.barrier()
    y.sum().backward()
    dist.barrier()
    return [*held, ("y", y.shape, y.shape, False)]


def draw(run, title):
    """Ranks are rows, forward runs right; operations and bytes come from the ledger."""
    n, unit = run.ledger.world_size, 4 * TOKENS * WIDTH
    talk = iter([operation for operation in run.ledger.operations(0) if operation.bytes_sent])
    figure = picture(9.5, 1.3 * n + 0.9)
    axes = figure.subplots()
    left = 0.0
    for stage, (name, _, whole, term) in enumerate(run[0]):
        if name == "send":
            operation = next(talk)
            axes.barh((n - 1) / 2, 0.35, n - 0.15, left, color=COMMUNICATION, edgecolor=INK, lw=0.5)
            text = f"{operation.op.replace('_', '-')}\n{operation.bytes_sent / unit:.2g} M each"
            axes.text(left + 0.17, -0.6, text, ha="center", va="bottom", fontsize=8)
            left += 0.6
            continue
        high, wide = 0.8 * (whole[0] / HIDDEN) ** 0.5, 1.28 * (whole[1] / HIDDEN) ** 0.5
        for rank, held in enumerate(run):
            down, across = (held[stage][1][i] < whole[i] for i in (0, 1))
            place = (left + across * wide * rank / n, rank - high / 2 + down * high * rank / n)
            size = (wide / n if across else wide, high / n if down else high)
            axes.add_patch(Rectangle((left, rank - high / 2), wide, high, fc="white", ec=QUIET))
            fill, hatch = (TINTS[rank], "///") if term else (RANKS[rank], "")
            axes.add_patch(Rectangle(place, *size, fc=fill, ec=RANKS[rank], hatch=hatch))
        label = f"{name}: terms" if term else name
        axes.text(left + wide / 2, n - 0.48, label, ha="center", va="top", fontsize=9)
        left += wide + 0.2
    looks = [Patch(fc=RANKS[rank], label=f"on rank {rank}") for rank in range(n)]
    looks.append(Patch(fc=TINTS[0], ec=RANKS[0], hatch="///", label="partial: a term of a sum"))
    looks.append(Patch(fc="white", ec=QUIET, label="on other ranks"))
    looks.append(Patch(fc=COMMUNICATION, ec=INK, label="communication"))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.04), "ncols": len(looks)}
    figure.legend(handles=looks, frameon=False, fontsize=8, **below)
    ahead, back = (number / unit for number in sent(run))
    title = f"{title}: {ahead:.2g} M forward, {back:.2g} M backward"
    axes.set_title(title, fontsize=10, loc="left", pad=30)
    axes.set(xlim=(-0.1, left), ylim=(n - 0.25, -0.55), xticks=[])
    axes.set_yticks(range(n), [f"rank {rank}" for rank in range(n)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


run = try_it(stages, ParallelMLP, world_size=2)
draw(run, "columns, then rows") if run else None


# %% [markdown]
# The two matrices need only one sum, and nothing in between. Backward is the mirror image, so nothing is sent
# until each rank has its term of the gradient of x, and then there is one sum. (Some texts concatenate the
# hidden features after the first layer, but that would need the all-gather that this order of cuts avoids.)
#
# ### Which kind is it?
#
# A copy and a term of a sum have the same shape. PyTorch computes with either, so if a sum is missing or made
# twice, there is no error. Therefore, give each tensor a kind:
#
# | kind | the rank has | and one process has |
# |---|---|---|
# | R, replicated | a copy | the same tensor |
# | S(d), sharded | a part | the ranks' parts one after the other along dimension d |
# | P, partial | a term | the sum of the ranks' terms |
#
# A tensor has a kind on each axis of the ranks. For example, take two replicas (dp) of two ranks each (tp).
# The replicas read different tokens, so x is S(0) on dp. But the two ranks of a replica read the same tokens,
# so x is R on tp. Gradients also have kinds.
#
# **Fill in** the kinds of the tensors in `block` as texts in quotes, each of which is `"R"`, `"P"`, `"S(0)"`
# or `"S(1)"`. The loss is summed over all tokens.


# %%
def block(x, w1, w2, b2, group: Group = None):
    """x: (tokens, width); w1 and w2 are the rank's parts of weights (out, in).
    Returns what you are asked about."""
    u = identity_all_reduce(x, group)
    h = F.gelu(F.linear(u, w1))  # A by columns
    z = F.linear(h, w2)  # B by rows
    s = all_reduce_identity(z, group)
    return u, h, z, s, x + s + b2


# %% nbgrader={"grade_id": "kinds", "solution": true}
# on tp, forward
kind_1 = ...  # w1
kind_2 = ...  # h
kind_3 = ...  # w2
kind_4 = ...  # z
kind_5 = ...  # s
kind_6 = ...  # b2
# on tp, backward
kind_7 = ...  # the gradient of z
kind_8 = ...  # the gradient of h
kind_9 = ...  # the gradient of w2
kind_10 = ...  # the gradient of u
kind_11 = ...  # the gradient of b2
# on dp, before the replicas have sent anything
kind_12 = ...  # the gradient of w1
### BEGIN SOLUTION
kind_1, kind_2, kind_3, kind_4, kind_5, kind_6 = "S(0)", "S(1)", "S(1)", "P", "R", "R"
kind_7, kind_8, kind_9, kind_10, kind_11 = "R", "S(1)", "S(1)", "P", "R"
kind_12 = "P"
### END SOLUTION

# %% [markdown]
# <details><summary>Hint: forward</summary>Ask what one process would have instead. Do the two ranks' tensors
# have to be added, or laid side by side, or is each of them already that tensor?</details>
# <details><summary>Hint: backward</summary>Every rank begins with the same gradient of y. After which
# operation does a rank have only the gradient of its own use? The gradient of a part is also a
# part.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "kinds_check", "points": 3}
report = check(
    "06_tensor_parallel/kinds",
    kind_1, kind_2, kind_3, kind_4, kind_5, kind_6,
    kind_7, kind_8, kind_9, kind_10, kind_11, kind_12,
)  # fmt: skip
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/kinds",
    kind_1, kind_2, kind_3, kind_4, kind_5, kind_6,
    kind_7, kind_8, kind_9, kind_10, kind_11, kind_12,
    cases="hidden",
)  # fmt: skip
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# **Look.** A program can also find the kinds. Inside `axis_types`, the cell runs `block` once, in this
# process and without other ranks. It tries every new operation once, forward and backward, on two imaginary
# ranks with random numbers. If both ranks compute the tensor one process computes, each is a copy. If the sum
# of their results is that tensor, each is a term, and if the results side by side are that tensor, each is a
# part. If none of these fits, the line computes something that one process does not compute, and this is the
# mistake.


# %% tags=["skip-in-grading"]
def show_kinds(block):
    """Print the kinds on both axes, forward and backward."""
    x, w1, w2, b2 = (torch.randn(s, requires_grad=True) for s in ((6, 8), (4, 8), (8, 4), 8))
    with axis_types(dp=2, tp=2) as types:
        types.set(x, dp=S(0), tp=R)
        types.set(w1, tp=S(0))
        types.set(w2, tp=S(1))
        *inside, y = block(x, w1, w2, b2, types.group("tp"))
        named = dict(zip(("u", "h", "z", "s"), inside, strict=True)) | {"y": y}
        for tensor in named.values():
            tensor.retain_grad()
        types.expect(y, dp=S(0), tp=R)
        y.square().sum().backward()
        named |= {"x": x, "w1": w1, "w2": w2, "b2": b2}
        print("        forward        backward\n        dp     tp      dp     tp")
        for name in ("x", "u", "w1", "h", "w2", "z", "s", "b2", "y"):
            both = types.of(named[name]), types.of(named[name].grad)
            columns = [str(kinds[axis]) for kinds in both for axis in ("dp", "tp")]
            print(f"{name:8}{columns[0]:7}{columns[1]:8}{columns[2]:7}{columns[3]}")
    print(types)


def first_mistake(block, y=R, **inputs):
    """inputs: shapes on a rank, and kinds on tp. y: the kind of the output."""
    with axis_types(tp=2) as types:
        tensors = [
            types.set(torch.randn(shape, requires_grad=True), tp=kind)
            for shape, kind in inputs.values()
        ]
        output = block(*tensors)
        types.expect(output, "the output", tp=y)
        output.square().sum().backward()
        for name, tensor in zip(inputs, tensors, strict=True):
            types.expect(tensor.grad, f"the gradient of {name}", tp=inputs[name][1])
    return types


def ask(rows_then_columns, bias_behind, norm_before):
    """Print what the types say about each block."""
    by_rows = {"x": ((6, 4), S(1)), "w1": ((12, 4), S(1)), "w2": ((4, 12), S(0))}
    whole, ends = {"x": ((6, 8), R)}, {"w1": ((4, 8), S(0)), "w2": ((8, 4), S(1))}
    for name, types in (
        ("rows_then_columns", first_mistake(rows_then_columns, S(1), **by_rows)),
        ("bias_behind", first_mistake(bias_behind, **whole, **ends, b2=((8,), R))),
        ("norm_before", first_mistake(norm_before, **whole, scale=((8,), R), **ends)),
    ):
        print(f"-- {name}\n{types}\n")


tried(lambda: show_kinds(block), identity_all_reduce, all_reduce_identity)

# %% [markdown]
# u shows why `identity_all_reduce` is needed. It is a copy, but its gradient is a term. For z it is the other
# way around. So the two functions of §1 turn terms into copies, one in backward and one in forward.
#
# **Mend three blocks.** Each of them has a mistake in one line. None raises an error, and the last one even
# has the right output. Read them, and say what is wrong. Then run the cell, which prints what the types say.
# They show only the first mistake, because everything after it is also wrong.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def rows_then_columns(x, w1, w2, group: Group = None):
    h = F.gelu(F.linear(x, w1))
    return F.linear(identity_all_reduce(h, group), w2)


def bias_behind(x, w1, w2, b2, group: Group = None):
    h = F.gelu(F.linear(identity_all_reduce(x, group), w1))
    return all_reduce_identity(F.linear(h, w2, b2), group)


def norm_before(x, scale, w1, w2, group: Group = None):
    normed = F.layer_norm(x, x.shape[-1:], scale)
    h = F.gelu(F.linear(normed, w1))
    return x + all_reduce_identity(F.linear(h, w2), group)


broken = rows_then_columns, bias_behind, norm_before
tried(lambda: ask(*broken), identity_all_reduce, all_reduce_identity)


# %% [markdown]
# **Repair them.** The functions keep their names and arguments.
#
# - `rows_then_columns`: x has the rank's features, so it is S(1). A is cut by rows and B by columns, so w1 is
#   S(1) and w2 is S(0). The output is S(1).
# - `bias_behind` and `norm_before`: x is R, A is cut by columns, and B by rows. The output is R.
# - `scale` is the norm's weight, so it is R. Its gradient must also be R.


# %% nbgrader={"grade_id": "mend", "solution": true}
def rows_then_columns(x, w1, w2, group: Group = None):
    """gelu(x A) B, with A cut by rows and B by columns. Sends 2 (N-1)/N of h in each direction."""
    ### BEGIN SOLUTION
    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
    return F.linear(identity_all_reduce(h, group), w2)
    ### END SOLUTION


def bias_behind(x, w1, w2, b2, group: Group = None):
    """gelu(x A) B + b2, with A cut by columns and B by rows."""
    ### BEGIN SOLUTION
    h = F.gelu(F.linear(identity_all_reduce(x, group), w1))
    return all_reduce_identity(F.linear(h, w2), group) + b2
    ### END SOLUTION


def norm_before(x, scale, w1, w2, group: Group = None):
    """x + gelu(norm(x) A) B, with A cut by columns and B by rows."""
    ### BEGIN SOLUTION
    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
    h = F.gelu(F.linear(normed, w1))
    return x + all_reduce_identity(F.linear(h, w2), group)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: rows_then_columns</summary>The product by rows is P, but gelu needs R.</details>
# <details><summary>Hint: bias_behind</summary>b2 is R, so it must not be added to a term.</details>
# <details><summary>Hint: norm_before</summary>Every rank computes the same norm, but uses its output for its
# own hidden features. Which tensor is used N times?</details>
#
# **Check.** The check runs the three blocks on real ranks. To ask the types again, call
# `ask(rows_then_columns, bias_behind, norm_before)` in a cell of your own.

# %% nbgrader={"grade_id": "mend_check", "points": 5}
report = check("06_tensor_parallel/mend", rows_then_columns, bias_behind, norm_before)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/mend", rows_then_columns, bias_behind, norm_before, cases="hidden"
)
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# <details><summary>The types in programs of your own</summary>You can use the types for your own programs,
# with tiny tensors. But they do not see numbers that depend on the rank, so §6's embedding and loss need a
# signature (<code>types.trusted</code>), and a function that takes its own part of a copy, as
# <code>own_features</code> does, needs <code>types.set</code>. Meta's <i>spmd_types</i> checks the same
# kinds, but with a rule for each operation.</details>
#
# **Predict.** A transformer layer is two regions, attention and MLP. How much does each rank send for the
# layer, in one direction, if an activation has `nbytes` bytes? Write the case `sequence=None` now. §7 will
# ask for the other two values, and §8 has the check.


# %% nbgrader={"grade_id": "layer_bytes_sent", "solution": true}
def layer_bytes_sent(n: int, nbytes: float, direction: str, sequence: str | None = None) -> float:
    """Bytes that each of n ranks sends for one layer, attention and MLP, in one direction.

    nbytes: M, of one whole activation (batch, seq, width). direction: "forward" or "backward".
    sequence: None, "keep" or "regather" (§7).
    """
    ### BEGIN SOLUTION
    halves = 6 if sequence == "regather" and direction == "backward" else 4
    return halves * (n - 1) / n * nbytes
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Count the all-reduces of a layer in one direction, and then two halves for
# each. A half is (n - 1) / n * nbytes.</details>
#
# **Measure.** The cell compares the MLP on 2, 3 and 4 ranks with one process. M is 16,384 bytes.

# %% tags=["skip-in-grading"]
for n in (2, 3, 4):
    if beside(f"{n} ranks", lambda: ParallelMLP(64, 256), lambda: MLP(64, 256), n):
        print(
            f"    predicted for a layer, two of these: {said(layer_bytes_sent, n, 16384, 'forward')}"
        )

# %% [markdown]
# The output and the gradient of x agree with one process, even for N = 3, which does not divide the 256
# features.
#
# <details><summary>In the lectures</summary>Lecture 004 draws two of the four ways to cut A and B. Lecture
# 001 writes "Concatenate: h = [h⁽¹⁾ | h⁽²⁾]" after the first layer, and says "one All-Reduce per layer". But
# a transformer layer has two in each direction, one for each region.</details>
#
# ### Optional: SwiGLU, and PyTorch's plan
#
# SwiGLU, the MLP of LLaMA, has three matrices, down(silu(gate(x)) · up(x)). Gate and up are cut by columns at
# the same places, so that each rank can form its own part of their product. But what is sent if both are a
# `ColumnParallelLinear`?


# %% tags=["skip-in-grading"]
class Gated(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = ColumnParallelLinear(width, hidden)
        self.up = ColumnParallelLinear(width, hidden)
        self.down = RowParallelLinear(hidden, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GatedOnce(Gated):
    def forward(self, x):
        x = identity_all_reduce(x)  # once, for both
        gate, up = (F.linear(x, linear.weight, linear.bias) for linear in (self.gate, self.up))
        return self.down(F.silu(gate) * up)


for make in (Gated, GatedOnce):
    run = try_it(passes, partial(make, 64, 256))
    if run:
        print(f"{make.__name__:10} forward {sent(run)[0]:,.0f} bytes, backward {sent(run)[1]:,.0f}")

# %% [markdown]
# x entered the region twice, so its gradient was summed twice. If x enters only once, autograd adds up the
# two gradients on the rank, and the sum is the same. Attention even has three such matrices.
#
# **In production.** PyTorch's `parallelize_module` takes a plan, a dictionary that says how each layer is
# cut, and makes every parameter a *DTensor*. A DTensor knows how it is cut, and inserts a collective when an
# operation needs the whole tensor:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def planned():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    return parallelize_module(
        MLP(64, 256).to(device()), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )


def compared(make):
    """The output and the gradient of x, as plain tensors."""
    torch.manual_seed(0)
    layer = make().to(device())
    x = (
        torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1))
        .to(device())
        .requires_grad_()
    )
    dist.barrier()
    y = layer(x) + 0  # PyTorch's output is asynchronous; + 0 waits for it
    dist.barrier()
    y.square().sum().backward()
    dist.barrier()
    return {"y": y.detach(), "x.grad": x.grad}


ours = try_it(compared, lambda: ParallelMLP(64, 256), world_size=2)
theirs_run = try_it(compared, planned, world_size=2) if ours else None
if theirs_run:
    for name in ("y", "x.grad"):
        print(f"{name:7} differs by {furthest(theirs_run[0][name], ours[0][name]):.1e}")
    print("yours sends", sent(ours), "bytes, theirs", sent(theirs_run))

# %% [markdown]
# The bytes are the same, but DTensors give you more, such as checkpoints that know which rank has which part,
# and tensor parallelism inside FSDP. If the input of a matrix is cut in the wrong way, it is cut again before
# the product. But DTensors cost CPU time for every operation, so Megatron-LM and many others keep layers like
# yours.
#
# <details><summary>An interview question: can you <code>view</code> a DTensor?</summary>You can if every rank
# can view its own part. Take 8 × 6 elements on two ranks, and PyTorch 2.13. Cut by rows, the DTensor becomes
# 4 × 2 × 6, of which each rank has 2 × 2 × 6. Cut by columns, it becomes 8 × 2 × 3, and each rank has 8 × 1 ×
# 3. But 8 × 3 × 2 is refused ("Cannot unflatten unevenly sharded tensor"), because three parts cannot be
# dealt to two ranks. Then you have to <code>redistribute</code> first, which sends messages. In lecture 001's
# question (§28), <code>view</code> copies nothing, and with DTensors it also sends nothing.</details>

# %% [markdown]
# ## 5 · Attention
#
# | | |
# |---|---|
# | you will write | `ParallelHeads(width, heads, bias=True, group=None)`; optional: `ParallelSelfAttention(width, heads, kv_heads=None, bias=True, group=None, dropout=0.0)` |
# | builds on | §4 |
# | time | 19 minutes, and 32 for the two *optional* parts |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 6 for the heads, and 4 of extra credit for grouped queries and dropout |
#
# Now find a cut for attention. Query, key and value are three matrices, from width to heads × head_dim
# features, with head_dim = width / heads. Then every head computes on its own, and an output matrix maps the
# heads back to width. Which of the matrices are cut by columns, and which by rows? In the MLP, the function
# between the matrices is elementwise. Which step plays its role here?
#
# <details><summary>Answer</summary>It is attention itself, because heads do not look at each other, so a rank
# with some heads' queries, keys and values needs nothing else. Cut the three matrices by columns (into whole
# heads) and the output matrix by rows. Then there is one sum forward and one backward.</details>
#
# **Build the heads.** Write causal self-attention, as in `course_lib.models.gpt.SelfAttention` for one
# process, with as many key-value heads as query heads. `heads_of` and `causal_attention` are given.
#
# - The layers are `query`, `key`, `value` and `out`, drawn in this order with `nn.Linear`'s weights. §7 and
#   §9 use these names.
# - x is replicated, and enters the region only *once*, so backward sends one all-reduce of x's gradient.
#   (Each call of a `ColumnParallelLinear` would let x in again, so use `heads_of`.)
# - A rank's heads are neighbours, and the rank has the same heads in all four matrices.
# - You don't have to write a backward here, because your functions of §1 have one, and autograd does the
#   rest.
# - If N does not divide `heads`, raise a ValueError that says both numbers.


# %%
def causal_attention(q, k, v, dropout=0.0):
    """q (batch, seq, heads, head_dim), k and v with as many heads or fewer;
    returns (batch, seq, heads * head_dim)."""
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, dropout_p=dropout, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(-2)


def heads_of(x, linear, head_dim):
    """A layer's output as heads, (batch, seq, heads, head_dim), by its own weight and bias.
    Calling the ColumnParallelLinear itself would let x into the region again."""
    return F.linear(x, linear.weight, linear.bias).unflatten(-1, (-1, head_dim))


# %% nbgrader={"grade_id": "parallel_heads", "solution": true}
class ParallelHeads(nn.Module):
    """Causal self-attention with its heads cut over the ranks of `group`.

    forward: x (batch, seq, width), replicated; returns the same. Sends 2 (N-1)/N of x
    in each direction.
    """

    def __init__(self, width, heads, bias=True, group: Group = None):
        super().__init__()
        self.group, self.head_dim = group, width // heads
        ### BEGIN SOLUTION
        n = dist.get_world_size(group)
        if width % heads or heads % n:
            raise ValueError(f"width={width}, heads={heads}: {n} ranks cannot share them equally")
        self.query, self.key, self.value = (
            ColumnParallelLinear(width, width, bias, group=group) for _ in range(3)
        )
        self.out = RowParallelLinear(width, width, bias, group=group)
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        x = identity_all_reduce(x, self.group)  # once, for all three
        linears = self.query, self.key, self.value
        q, k, v = (heads_of(x, linear, self.head_dim) for linear in linears)
        return self.out(causal_attention(q, k, v))
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary><code>query</code>, <code>key</code> and <code>value</code> are
# <code>ColumnParallelLinear</code>, and <code>out</code> is <code>RowParallelLinear</code>. In forward, write
# <code>x = identity_all_reduce(x, self.group)</code>, then <code>heads_of(x, self.query,
# self.head_dim)</code> and so on.</details>
#
# **Check the heads.**

# %% nbgrader={"grade_id": "parallel_heads_check", "points": 6}
report = check("06_tensor_parallel/parallel_heads", ParallelHeads)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/parallel_heads", ParallelHeads, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** The cell builds a whole layer from your parts, in which attention and MLP each follow a norm
# and are added to the residual stream. There are 8 heads on 4 ranks, and the cell also prints your prediction
# of §4.


# %% tags=["skip-in-grading"]
class Layer(nn.Module):
    """A transformer's layer, made of a given attention and MLP; the norms are on every rank."""

    def __init__(self, attention, mlp, width=64):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), attention(width)
        self.mlp_norm, self.mlp = nn.LayerNorm(width), mlp(width, 4 * width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def tensor_parallel():
    return Layer(lambda width: ParallelHeads(width, 8), ParallelMLP)


run = try_it(passes, tensor_parallel)
if run:
    for direction, number in zip(("forward", "backward"), sent(run), strict=True):
        print(
            f"{direction:8} {number:,.0f} bytes; predicted {said(layer_bytes_sent, 4, 16384, direction)}"
        )
    print(run.ledger.table(times=False, rank=0))

# %% [markdown]
# There are four all-reduces, because there are two regions and two directions.
#
# ### Optional: heads of features that are not neighbours
#
# **Break it.** Let every rank r take the features r, r + N, r + 2N, ... instead of neighbouring features,
# both in the matrices cut by columns and in the matrix cut by rows. Every shape still fits. Is the MLP still
# right? Is attention?


# %% tags=["skip-in-grading"]
def every_nth(make, inward, outward):
    """The layer with every N-th feature on a rank."""
    layer, n, rank = make(), dist.get_world_size(), dist.get_rank()
    with torch.no_grad():
        for name in inward:
            for own in getattr(layer, name).parameters():
                own.copy_(joined(own, 0)[rank::n])
        own = getattr(layer, outward).weight
        own.copy_(joined(own, 1)[:, rank::n])
    return layer


def mlp():
    return ParallelMLP(64, 256)


def attention():
    return ParallelHeads(64, 8)


for make, inward, outward in (
    (mlp, ("up",), "down"),
    (attention, ("query", "key", "value"), "out"),
):
    right = try_it(passes, make)
    strided = try_it(passes, partial(every_nth, make, inward, outward)) if right else None
    if strided:
        off = furthest(strided[0]["y"], right[0]["y"])
        print(
            f"{make.__name__:9}",
            "the same" if off < 1e-5 else f"off by {off:.0%} of the largest number",
        )


# %% [markdown]
# The order of hidden features does not matter, so the MLP is right. But a head *is* a run of neighbouring
# features. Each "head" of this attention has two features from each of four heads, so its scores are wrong.
# For the same reason, you can't cut a fused (query, key, value) matrix, as in GPT-2's checkpoints, into N
# equal parts. Instead, each of the three must be cut by itself.
#
# ### Optional: grouped queries and dropout
#
# *This part has 4 points of extra credit, on top of the 60. You lose nothing if you skip it.*
#
# **Predict.** With 8 heads on 4 ranks, rank 1 has heads 2 and 3. How many ranks can there be at most? And
# which rank holds what with *grouped queries*, if there are 8 query heads but only 2 heads of keys and
# values, on 4 ranks?
#
# <details><summary>Answer</summary>There can be 8 ranks. With 2 key-value heads, head 0 serves queries 0 to
# 3, which are on ranks 0 and 1, so both hold a copy of it. Each copy has only the gradient from its own
# queries, and the head's gradient is the sum of both. Again, this is <i>a value that is used on two
# ranks</i>.</details>
#
# *Dropout* of the attention weights (the output of the softmax) is a trap. All ranks have the same seed, so
# they draw the same parameters and use the same mask on replicated tensors. But inside a region, each rank
# has *different* heads, so the masks must differ. After the region, all ranks must draw the same random
# numbers again.
#
# **Build the whole.** `ParallelSelfAttention` does what `ParallelHeads` does, and two more things. (It can be
# a subclass, but draw the four layers only once.)
#
# - `kv_heads=None` means as many as `heads`. `kv_heads` must be a divisor or a multiple of N, and `heads` a
#   multiple of N. If not, raise a ValueError that names N and the number that does not fit.
# - If there are fewer key-value heads than ranks, N / kv_heads neighbouring ranks hold the same one, and its
#   gradients are summed over them. `grid` makes two groups for each rank. `same` holds the ranks with a copy
#   of the same head, and `across` holds one rank for each head. The rank itself is in both.
# - `dropout` applies to the attention weights while training, within `own_random_state`.


# %%
def grid(copies, group: Group = None):
    """This rank's two groups: the `copies` neighbours with the same head;
    one rank for each head."""
    ranks, rank = dist.get_process_group_ranks(group or dist.group.WORLD), dist.get_rank(group)
    first = rank // copies * copies
    same = dist.new_group(ranks[first : first + copies], use_local_synchronization=True)
    across = dist.new_group(ranks[rank % copies :: copies], use_local_synchronization=True)
    return same, across


@contextlib.contextmanager
def own_random_state(group: Group = None):
    """Inside, random numbers differ from rank to rank; afterwards all ranks draw the same again."""
    seed = int(torch.randint(2**62, ())) + dist.get_rank(group)
    devices = [torch.cuda.current_device()] if device().type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


# %% nbgrader={"grade_id": "parallel_self_attention", "solution": true}
class ParallelSelfAttention(nn.Module):
    """Causal self-attention with its heads cut over the ranks of `group`.

    forward: x (batch, seq, width), replicated; returns the same. Sends 2 (N-1)/N of x
    in each direction.
    If several ranks hold the same key-value head, backward also sums its weights' gradients.
    """

    def __init__(
        self, width, heads, kv_heads=None, bias=True, group: Group = None, dropout: float = 0.0
    ):
        super().__init__()
        ### BEGIN SOLUTION
        n, kv_heads = dist.get_world_size(group), kv_heads or heads
        if width % heads or heads % kv_heads or heads % n or (kv_heads % n and n % kv_heads):
            raise ValueError(
                f"heads={heads}, kv_heads={kv_heads}: {n} ranks cannot share them equally; heads must be a "
                "multiple of the ranks, kv_heads a multiple or a divisor"
            )
        self.group, self.head_dim, self.dropout = group, width // heads, dropout
        copies = max(1, n // kv_heads)
        self.same, across = grid(copies, group) if copies > 1 else (None, group)
        self.query = ColumnParallelLinear(width, width, bias, group=group)
        self.key = ColumnParallelLinear(width, kv_heads * self.head_dim, bias, group=across)
        self.value = ColumnParallelLinear(width, kv_heads * self.head_dim, bias, group=across)
        self.out = RowParallelLinear(width, width, bias, group=group)
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        x = identity_all_reduce(x, self.group)  # once, for all three
        q = F.linear(x, self.query.weight, self.query.bias)
        k, v = (F.linear(x, *self._parameters_of(linear)) for linear in (self.key, self.value))
        q, k, v = (heads.unflatten(-1, (-1, self.head_dim)) for heads in (q, k, v))
        if not (self.dropout and self.training):
            return self.out(causal_attention(q, k, v))
        with own_random_state(self.group):
            out = causal_attention(q, k, v, self.dropout)
        return self.out(out)

    def _parameters_of(self, linear):
        """Weight and bias for keys or values; their gradients are summed where
        several ranks hold them."""
        both = linear.weight, linear.bias
        if self.same is None:
            return both
        return [
            parameter if parameter is None else identity_all_reduce(parameter, self.same)
            for parameter in both
        ]
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: grouped queries</summary>Key and value have kv_heads · head_dim features.
# <code>causal_attention</code> accepts keys and values with fewer heads than the queries, so you don't have
# to repeat them.</details>
# <details><summary>Hint: a head that several ranks hold</summary>With <code>same, across = grid(N //
# kv_heads, group)</code>, key and value are <code>ColumnParallelLinear(..., group=across)</code>. In forward,
# their weights and biases go through <code>identity_all_reduce(weight, same)</code>, because parameters are
# values like any others.</details>
#
# **Check the whole.**

# %% nbgrader={"grade_id": "parallel_self_attention_check", "points": 0}
# Extra credit, 4 points
report = check("06_tensor_parallel/parallel_self_attention", ParallelSelfAttention)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/parallel_self_attention", ParallelSelfAttention, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>In production</summary>LLaMA 3 70B has 64 query heads, but only 8 heads of keys and
# values, and runs on eight ranks. If there are at least as many key-value heads as ranks, no head has copies,
# and attention is simple.</details>
#
# <details><summary>In the lectures</summary>Lecture 004 calls attention "much simpler" than the MLP. That is
# true only if there are at least as many key-value heads as ranks.</details>

# %% [markdown]
# ## 6 · The two ends: embedding and loss
#
# | | |
# |---|---|
# | you will write | `VocabParallelEmbedding`, `vocab_parallel_cross_entropy`, `loss_bytes_sent(n, tokens)` |
# | builds on | §1, and the given functions of §2 |
# | time | 33 minutes |
# | difficulty, importance | 4 and 3 of 5 |
# | points | 4 + 8 |
#
# The vocabulary is the longest dimension of a language model. (In this section, a *token* is an entry of the
# vocabulary, whereas a place in the text is a *position*.) LLaMA 3's vocabulary has 128,256 tokens. So at a
# width of 8,192, the embedding is 2.1 GB in bf16, and so is the *head*, the matrix that leads from the width
# to the logits. And a microbatch of 8,192 positions has 8,192 × 128,256 logits, which take 4.2 GB in float32,
# and as much again for their gradient. So let's cut the vocabulary.
#
# **The embedding** is a table with a row for each token. Rank r has a run of rows. For a token it does not
# have, the rank returns zeros, so the sum over the ranks is the table's row. In other words, the cut
# embedding is the row-parallel layer of §3, whose input at each position is a one for the token and zeros
# elsewhere.
#
# **Predict.** How much does the embedding send, forward and backward?
#
# <details><summary>Answer</summary>Forward sends one all-reduce of M. Backward sends nothing, because every
# rank has the gradient of the sum, and adds it to its own rows.</details>
#
# **Build.** As in §2, keep the rank's rows of `whole` as the parameter `weight`. `local_index` finds the
# tokens among them.


# %%
def local_index(tokens, vocab_size, group: Group = None):
    """Where tokens are among this rank's part of the vocabulary, and whether they are here;
    the index is 0 for a token of another rank."""
    own = part(torch.arange(vocab_size, device=tokens.device), 0, group)
    here = (tokens >= own[0]) & (tokens <= own[-1])
    return (tokens - own[0]).where(here, 0), here


# %% nbgrader={"grade_id": "vocab_parallel_embedding", "solution": true}
class VocabParallelEmbedding(nn.Module):
    """nn.Embedding whose rows are cut over the ranks of `group`.

    forward: tokens (...), the same on all ranks; returns (..., embedding_dim), whole. Any sizes:
    parts are cut as torch.tensor_split does. Sends 2 (N-1)/N of the output forward, and
    nothing backward.
    """

    def __init__(self, num_embeddings, embedding_dim, group: Group = None):
        super().__init__()
        self.num_embeddings, self.group = num_embeddings, group
        whole = nn.Embedding(num_embeddings, embedding_dim)
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(part(whole.weight, 0, group))
        ### END SOLUTION

    def forward(self, tokens):
        ### BEGIN SOLUTION
        index, here = local_index(tokens, self.num_embeddings, self.group)
        rows = F.embedding(index, self.weight).masked_fill(~here[..., None], 0)
        return all_reduce_identity(rows, self.group)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: tokens that are elsewhere</summary>Their index is 0, so you look up row 0 for them.
# Then replace the result by zeros, with <code>masked_fill(~here[..., None], 0)</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "vocab_parallel_embedding_check", "points": 4}
report = check("06_tensor_parallel/vocab_parallel_embedding", VocabParallelEmbedding)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/vocab_parallel_embedding", VocabParallelEmbedding, cases="hidden"
)
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# **The head** is a `ColumnParallelLinear` from the width to the vocabulary, so each rank gets the logits of
# its part of the vocabulary. You could gather them, but the whole logits are the largest tensor of all. What
# does the loss really need? For a position with the logits l₀, l₁, ...
#
# > loss = log(exp(l₀) + exp(l₁) + ...) − l_target
#
# Each rank can sum its own exponentials, and the ranks' sums add up to the whole sum. The target's logit is
# on only *one* rank. And since exp(1,000) overflows, the largest logit m is subtracted first: log Σ exp(l) =
# m + log Σ exp(l − m). So the ranks need three numbers for each position, which are the largest logit, the
# sum of exponentials, and the target's logit. Since the loss does not depend on m, no gradient goes through
# it.
#
# **Predict.** How many bytes does a rank send for the loss, in float32, with targets at `tokens` positions,
# on n ranks? §8 checks it.


# %% nbgrader={"grade_id": "loss_bytes_sent", "solution": true}
def loss_bytes_sent(n: int, tokens: int) -> float:
    """Bytes that each of n ranks sends for the loss, forward and backward together."""
    ### BEGIN SOLUTION
    return 2 * (n - 1) / n * 3 * 4 * tokens
    ### END SOLUTION


# %% [markdown]
# **Build.**
#
# - `logits` are (..., this rank's part of the vocabulary), cut as `part` does. `target` is (...), with tokens
#   of the whole vocabulary, the same on all ranks. `vocab_size` is the size of the whole vocabulary.
# - Return the mean over the targets that are not `ignore_index` (True in `counts`, given). The mean is the
#   same on every rank, and at least in float32. Do not change `logits`.
# - The tensors kept for backward have the size of the rank's logits, not of all logits.
# - At most three numbers for each target travel forward, and nothing travels backward.
#
# What is the gradient of the loss with respect to a logit, and does a rank have everything this gradient
# needs?
#
# <details><summary>Answer</summary>For the loss of one position, it is softmax − 1 at the target, and softmax
# elsewhere. (The mean divides it by the number of targets.) The softmax is exp(l − m) / S, where S is the sum
# of exponentials. So a rank has everything, because every rank has m and S from forward.</details>


# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
def vocab_parallel_cross_entropy(
    logits, target, group: Group = None, *, vocab_size: int, ignore_index: int = -100
):
    """F.cross_entropy of logits that are cut over the ranks by the vocabulary."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # at least float32
    index, here = local_index(target, vocab_size, group)
    counts = target != ignore_index
    ### BEGIN SOLUTION
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    shifted = logits - largest[..., None]
    at_target = shifted.gather(-1, index[..., None])[..., 0]
    terms = torch.stack([shifted.exp().sum(-1), at_target.masked_fill(~here, 0)])
    exponentials, of_target = all_reduce_identity(terms, group)
    loss = (exponentials.log() - of_target).masked_fill(~counts, 0)
    return loss.sum() / counts.sum()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: with the functions of §1</summary>The ranks' sums of exponentials are <i>terms</i>,
# and so are the targets' logits, with zeros on the ranks that do not have the token.
# <code>all_reduce_identity</code> adds up the terms, and autograd does the rest.</details>
# <details><summary>Hint: the largest</summary>Call <code>largest = logits.detach().amax(-1)</code>, then
# <code>dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)</code>. Both are outside of
# autograd.</details>
# <details><summary>Hint: the target's logit</summary>Look it up at <code>local_index(target, vocab_size,
# group)</code>, with <code>gather</code> along the last dimension, and then mask.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy_check", "points": 8}
report = check("06_tensor_parallel/vocab_parallel_cross_entropy", vocab_parallel_cross_entropy)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/vocab_parallel_cross_entropy", vocab_parallel_cross_entropy, cases="hidden"
)
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell computes the loss of 512 positions with a vocabulary of 8,192 on 4 ranks, first by
# gathering the logits, and then with your loss. It also prints the peak memory of a rank's tensors, in MiB.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def loss_of(how, tokens=512, vocabulary=8192):
    generator = torch.Generator().manual_seed(0)
    # Drawn only to be cut, and before the counting begins.
    whole = 4 * torch.randn(tokens, vocabulary, generator=generator)
    target = torch.randint(vocabulary, (tokens,), generator=generator)
    logits = part(whole, -1).to(device()).requires_grad_()
    with costs(logits) as cost:
        loss = how(logits, target.to(device()))
        loss.backward()
    return loss.item(), F.cross_entropy(whole, target).item(), cost.peak_bytes / 2**20


def by_gathering(logits, target):
    return F.cross_entropy(gather_parts(logits, dist.get_world_size() * logits.shape[-1]), target)


def by_three_numbers(logits, target):
    size = dist.get_world_size() * logits.shape[-1]
    return vocab_parallel_cross_entropy(logits, target, vocab_size=size)


for name, how in (("gathered", by_gathering), ("yours", by_three_numbers)):
    run = try_it(loss_of, how)
    if run:
        loss, expected, peak = run[0]
        print(
            f"{name:8} loss {loss:.4f}, one process {expected:.4f}; at most {peak:.0f} MiB alive;",
            end=" ",
        )
        print(f"sent {run.ledger.bytes_sent(0):,} bytes")
print("predicted for yours:", said(loss_bytes_sent, 4, 512))

# %% [markdown]
# Your loss sends more than a thousand times fewer bytes, and it never needs the whole logits, which have 512
# × 8,192 × 4 bytes = 16 MiB.
#
# <details><summary>What happens if every rank takes a softmax of its own tokens? And if the largest logit is
# not subtracted?</summary>With a softmax of its own on every rank, the loss is too small. If the logits are
# small, about log N is missing, which is 1.4 on 4 ranks. If they are large, far more is missing. So training
# looks <i>better</i>, because no rank's tokens compete with another's. If the largest logit is not
# subtracted, the loss is right until a logit exceeds 88, because there float32's exp overflows.</details>
#
# <details><summary>In production</summary>In PyTorch the loss is <code>F.cross_entropy</code> itself, inside
# the context <code>with loss_parallel(): ...</code>, and the head is cut by
# <code>ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)</code>. Megatron-LM's loss is a
# <code>torch.autograd.Function</code>, which writes the exponentials into the logits' own memory and keeps
# little else. Megatron-LM also pads the vocabulary with tokens that never occur, to a multiple of 128 · N.
# For example, 50,257 become 51,200 on 8 ranks.</details>


# %% [markdown]
# ## 7 · Sequence parallelism
#
# | | |
# |---|---|
# | you will write | `all_gather_reduce_scatter`, `reduce_scatter_all_gather`, `SequenceParallelNorm(norm, group=None)`, `layer_saved_bytes(n, nbytes, sequence=None)` |
# | builds on | §1, §4, §5 |
# | time | 29 minutes |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 8 |
#
# What is not divided yet? Between the regions, the residual stream and the inputs of norms and regions are
# still replicated, and all ranks do the same work there. A norm needs all features of a token, so features
# cannot be sharded. But since a norm does not need other tokens, let's shard the **sequence** between the
# regions, so that rank r has s / N of the s positions.
#
# An all-reduce is a reduce-scatter and an all-gather (notebook 02), so let the norm work between the two:
#
#     tensor parallel      ... B | all-reduce     | norm of everything             | A ...
#     sequence parallel    ... B | reduce-scatter | norm of a part    | all-gather | A ...
#
# | | forward | backward |
# |---|---|---|
# | into a region: `all_gather_reduce_scatter` | all-gather | reduce-scatter |
# | out of it: `reduce_scatter_all_gather` | reduce-scatter | all-gather |
#
# At each region and in each direction, the two functions together send two halves of an all-reduce, as many
# bytes as tensor parallelism. Only the gradients of norms and biases, a few vectors, are sent in addition.
#
# And the norm's own weights? They are replicated, but each rank uses them on different tokens. Therefore,
# they are also *values that are used on N ranks*, and their gradient is the sum.
#
# **Build.**
#
# - Both functions communicate, so you have to say what their backward does. `Conjugate` (§2) takes forward
#   and backward as functions. `SequenceParallelNorm` does not need it, because `identity_all_reduce` already
#   has the right backward.
# - Dimension `dim` is the sequence, which is -2 in (batch, seq, width). Parts are equal, so if N does not
#   divide the sequence, raise a ValueError that says both numbers (`summed_part` does).
# - Neither function may write into its argument.
# - `SequenceParallelNorm(norm)` takes over an `nn.LayerNorm`, with its `weight`, `bias` and `eps`. It
#   normalizes the rank's part of the sequence, and the gradients of weight and bias are summed over the
#   ranks.


# %% nbgrader={"grade_id": "sequence_parallel", "solution": true}
def all_gather_reduce_scatter(x, group: Group = None, dim: int = -2):
    """Into a region, from parts of the sequence. Forward: all parts.
    Backward: part of the gradient sum."""
    ### BEGIN SOLUTION
    return Conjugate.apply(
        x, lambda x: joined(x, dim, group), lambda grad: summed_part(grad, dim, group)
    )
    ### END SOLUTION


def reduce_scatter_all_gather(x, group: Group = None, dim: int = -2):
    """Out of a region, to parts of the sequence. Forward: part of the sum. Backward: all parts."""
    ### BEGIN SOLUTION
    return Conjugate.apply(
        x, lambda x: summed_part(x, dim, group), lambda grad: joined(grad, dim, group)
    )
    ### END SOLUTION


class SequenceParallelNorm(nn.Module):
    """An nn.LayerNorm on the rank's part of the sequence;
    its parameters' gradients are summed over ranks."""

    def __init__(self, norm: nn.LayerNorm, group: Group = None):
        super().__init__()
        self.shape, self.eps, self.group = norm.normalized_shape, norm.eps, group
        ### BEGIN SOLUTION
        self.weight, self.bias = norm.weight, norm.bias
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        weight, bias = (identity_all_reduce(p, self.group) for p in (self.weight, self.bias))
        return F.layer_norm(x, self.shape, weight, bias, self.eps)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the pair</summary>Do as <code>own_features</code> does in §2, but with the tools
# <code>joined</code> and <code>summed_part</code>. Each function needs one of them forward and the other one
# backward.</details>
# <details><summary>Hint: the norm</summary>You have a function that does nothing forward and sums gradients
# backward. You can also apply it to parameters.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "sequence_parallel_check", "points": 8}
report = check(
    "06_tensor_parallel/sequence_parallel",
    all_gather_reduce_scatter,
    reduce_scatter_all_gather,
    SequenceParallelNorm,
)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/sequence_parallel",
    all_gather_reduce_scatter,
    reduce_scatter_all_gather,
    SequenceParallelNorm,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell draws the picture of §4 once more, with your pair at the two edges.


# %% tags=["skip-in-grading"]
def sequence_stages():
    """This rank's tensors from one piece of the stream to the next, in the form of `stages`."""
    torch.manual_seed(0)
    mlp = ParallelMLP(WIDTH, HIDDEN).to(device())
    norm = SequenceParallelNorm(nn.LayerNorm(WIDTH)).to(device())
    stream = part(torch.randn(TOKENS, WIDTH), -2).to(device()).requires_grad_()
    dist.barrier()
    normed = norm(stream)
    x = all_gather_reduce_scatter(normed)
    h = F.gelu(F.linear(x, mlp.up.weight, mlp.up.bias))
    terms = F.linear(h, mlp.down.weight)
    bias = identity_all_reduce(mlp.down.bias)  # added to a part, so its gradient is summed
    y = stream + reduce_scatter_all_gather(terms) + bias
    dist.barrier()
    y.sum().backward()
    dist.barrier()
    narrow, wide, send = (TOKENS, WIDTH), (TOKENS, HIDDEN), ("send", (), (), False)
    before = [("stream", stream.shape, narrow, False), ("norm", normed.shape, narrow, False)]
    inside = [("x", x.shape, narrow, False), ("h", h.shape, wide, False)]
    behind = [("h B", terms.shape, narrow, True), send, ("stream", y.shape, narrow, False)]
    return [*before, send, *inside, *behind]


run = try_it(sequence_stages, world_size=2)
draw(run, "sequence, columns, rows, sequence") if run else None

# %% [markdown]
# The sequence is sharded outside the region, and the features inside it. The region sends 1 M forward and 1 M
# backward, as in §4. But the picture shows 1.1 M backward, because the gradients of the norm's weight and
# bias and of B's bias are also summed.
#
# One choice is left. A linear layer keeps its input for backward, but the input of A is the *gathered*
# sequence. Should the layer keep all of it, as without sequence parallelism? Or should it keep only the
# rank's own part, and gather again in backward?
#
# | | kept of a region's input | sent backward for each region |
# |---|---|---|
# | `"keep"` | all of it | 2 halves of an all-reduce |
# | `"regather"` | the rank's part | 3 halves |
#
# **Predict** the bytes sent, for both. In §4, `layer_bytes_sent` doesn't handle these two values of
# `sequence` yet, so add them there, and run that cell again. And how much does a layer keep for backward in
# all? Count activations of M bytes. The layer has flash attention, LayerNorm, and a GELU at four times the
# width, but no dropout. Leave out tensors with a single number for each position:
#
# | | activations of M bytes |
# |---|---|
# | inputs of the two norms | 2 |
# | inputs of the two regions | 2 |
# | attention: q, k, v, and the output of the heads | 4 |
# | MLP: before the GELU, and after it | 4 + 4 |
#
# Which of these 16 are divided by N without sequence parallelism? And which with `"keep"` or with
# `"regather"`?


# %% nbgrader={"grade_id": "layer_saved_bytes", "solution": true}
def layer_saved_bytes(n: int, nbytes: float, sequence: str | None = None) -> float:
    """Bytes that a layer keeps for backward on each of n ranks.

    nbytes: M, of one whole activation. sequence: None, "keep" or "regather".
    """
    ### BEGIN SOLUTION
    whole = {None: 4, "keep": 2, "regather": 0}[sequence]
    return nbytes * (whole + (16 - whole) / n)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Some of the 16 activations are replicated, and all others are divided by
# n.</details>
#
# **Measure.** The cell runs the layer of §5 without sequence parallelism (`None`), and then with both of its
# forms. `GatheredLinear` shows how to keep less than autograd would. The cell after it draws how much is kept
# for each part of the layer, on 4 ranks, in units of M.


# %% tags=["skip-in-grading"]
class GatheredLinear(torch.autograd.Function):
    """Linear layers of a gathered x. It keeps only the rank's part of x,
    and gathers again in backward."""

    @staticmethod
    def forward(ctx, x, *parameters):
        weights, biases = parameters[::2], parameters[1::2]
        ctx.save_for_backward(x, *weights)
        whole = joined(x, -2)
        return tuple(
            F.linear(whole, *weight_and_bias)
            for weight_and_bias in zip(weights, biases, strict=True)
        )

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        for_x = summed_part(sum(g @ w for g, w in zip(grads, weights, strict=True)), -2)
        whole = joined(x, -2).flatten(0, 1)
        rows = [grad.flatten(0, 1) for grad in grads]
        return for_x, *(gradient for row in rows for gradient in (row.T @ whole, row.sum(0)))


def entered(x, linears, sequence):
    """Apply column-parallel layers to a part of the sequence;
    returns outputs for the whole sequence."""
    if sequence == "regather":
        return GatheredLinear.apply(
            x, *(p for linear in linears for p in (linear.weight, linear.bias))
        )
    x = all_gather_reduce_scatter(x)
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def left(y, linear):
    """A row-parallel layer that returns a part of the sequence;
    each rank adds the bias to its own tokens."""
    y = reduce_scatter_all_gather(F.linear(y, linear.weight))
    return y + identity_all_reduce(linear.bias)


class Heads(ParallelHeads):
    sequence = "keep"

    def forward(self, x):
        q, k, v = entered(x, (self.query, self.key, self.value), self.sequence)
        q, k, v = (heads.unflatten(-1, (-1, 64 // 8)) for heads in (q, k, v))
        return left(causal_attention(q, k, v), self.out)


class Hidden(ParallelMLP):
    sequence = "keep"

    def forward(self, x):
        (up,) = entered(x, (self.up,), self.sequence)
        return left(F.gelu(up), self.down)


def sequence_parallel(sequence, norm=SequenceParallelNorm):
    """The layer of §5 with sequence parallelism. It reads and returns parts of the sequence."""
    layer = Layer(lambda width: Heads(width, 8), Hidden)
    layer.attention_norm = norm(layer.attention_norm)
    layer.mlp_norm = norm(layer.mlp_norm)
    layer.attention.sequence = layer.mlp.sequence = sequence
    return layer


def one_process():
    from course_lib.models import SelfAttention

    config = GPTConfig(width=64, heads=8)

    class Whole(SelfAttention):
        def forward(self, x):
            return super().forward(x, torch.arange(x.shape[1], device=x.device))

    return Layer(lambda width: Whole(config), MLP)


LARGER = (2, 128, 64)  # M = 65,536 bytes
FORMS = {
    None: tensor_parallel,
    "keep": lambda: sequence_parallel("keep"),
    "regather": lambda: sequence_parallel("regather"),
}
single, kept = alone(one_process, shape=LARGER), {}
for form, make in FORMS.items():
    run = try_it(passes, make, shape=LARGER, cut=form is not None)
    if run:
        kept[form] = run[0]["saved"]
        y = torch.cat([result["y"] for result in run], -2) if form else run[0]["y"]
        right = furthest(y, single["y"]) < 1e-5
        print(f"{form}: {'equal to one process' if right else 'wrong'}")
        for direction, number in zip(("forward", "backward"), sent(run), strict=True):
            foretold = said(layer_bytes_sent, 4, 65536, direction, form)
            print(f"    bytes sent {direction:8} {number:8,.0f}, predicted {foretold}")
        print(
            f"    kept for backward   {kept[form]:8,}, predicted {said(layer_saved_bytes, 4, 65536, form)}"
        )

# %% tags=["skip-in-grading"]
PARTS = {"norms": 2, "regions": 2, "attention": 4, "MLP": 8}
WHOLE = {
    "one process": set(PARTS),
    None: {"norms", "regions"},
    "keep": {"regions"},
    "regather": set(),
}
figure = picture(8.0, 2.6)
axes = figure.subplots()
for row, (form, whole) in enumerate(WHOLE.items()):
    begin = 0.0
    for colour, (name, count) in zip(RANKS, PARTS.items(), strict=False):
        width = count if name in whole else count / 4
        axes.barh(
            row,
            width,
            left=begin,
            color=colour,
            hatch="" if name in whole else "///",
            edgecolor="white",
        )
        if row == 0:
            axes.text(begin + width / 2, -0.5, name, ha="center", va="bottom", fontsize=8)
        begin += width
    kept_nbytes = single["saved"] if form == "one process" else kept.get(form)
    if kept_nbytes:
        (measured,) = axes.plot(
            kept_nbytes / 65536, row, "o", color=INK, markersize=4, label="your own run"
        )
        axes.text(begin + 0.35, row, f"{kept_nbytes / 65536:.2f} M", va="center", fontsize=8)
axes.set_yticks(
    range(4), ["one process", "tensor parallel", 'and sequence, "keep"', 'and sequence, "regather"']
)
axes.set(xlim=(0, 18.5), xticks=range(0, 17, 2), xlabel="kept for backward, in M")
looks = [
    Patch(fc=QUIET, label="replicated"),
    Patch(fc=QUIET, ec="white", hatch="///", label="sharded"),
]
axes.legend(handles=[*looks, measured], frameon=False, fontsize=8, loc="lower right")
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# <details><summary>Why some numbers are a little above the prediction</summary>More <i>bytes are sent
# backward</i>, because each rank uses the norms' parameters and the biases of the two row-parallel layers on
# different positions, so their gradients are summed. These are 2,304 bytes in every backward, for any batch.
# More is <i>kept for backward</i>, because a norm also keeps two numbers for each position, and attention
# keeps one for each position and head.</details>
#
# You can compute GPT-3's memory in the same way. On 8 ranks, 0.58 GB of the 2.9 GB per layer are left, and
# with sequence parallelism in the form `"regather"` only 0.36 GB.
#
# <details><summary>How the 0.58 and 0.36 GB are computed</summary>In 16 bits, your 16 activations would take
# 32 bytes for each element of one activation. GPT-3 in 16 bits, with dropout and without flash attention,
# keeps 34 + 5as/h = 114 bytes for each element (a = 96 heads, s = 2,048 tokens, h = 12,288 features). In
# Korthikanti et al. (table 2), 10 of the 34 stay whole with tensor parallelism, but none does when sequence
# parallelism is added (in the form <code>"regather"</code>). So on 8 ranks the 114 bytes become 10 + 104/8 =
# 23, and then 114/8 = 14.25. That leaves 0.58 GB and 0.36 GB of the 2.9 GB per layer.</details>
#
# **Break it.** Put an ordinary `nn.LayerNorm` on the parts. Forward is still right. But make two steps of
# SGD, and then compare the ranks:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def drift(norm):
    torch.manual_seed(0)
    layer = sequence_parallel("keep", norm).to(device())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = part(torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1)), -2).to(device())
    for _ in range(2):
        layer(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return next(layer.mlp_norm.parameters()).detach()


for name, norm in (
    ("nn.LayerNorm", lambda norm: norm),
    ("SequenceParallelNorm", SequenceParallelNorm),
):
    run = try_it(drift, norm)
    if run:
        apart = max((result - run[0]).abs().max().item() for result in run)
        print(f"{name:20} after two steps the ranks' weights differ by {apart:.1e}")

# %% [markdown]
# With `nn.LayerNorm`, the four ranks train four models that think they are one. Nothing crashes, and no shape
# is wrong. So whenever a *replicated* value meets *sharded* work, ask which function adds up its gradient.
#
# <details><summary>And dropout?</summary>For dropout between the regions, the rule of the optional end of §5
# holds. On sharded activations, every rank needs masks of its own, but on replicated activations, all ranks
# need the same masks. <code>course_lib/tensor_parallel/dropout.py</code> provides both.</details>
#
# <details><summary>In production</summary>PyTorch provides <code>SequenceParallel()</code> for the plan of
# <code>parallelize_module</code> (end of §4), with <code>PrepareModuleInput</code> at the beginning of a
# region and <code>RowwiseParallel(output_layouts=Shard(1))</code> at its end. Megatron-LM provides the option
# <code>--sequence-parallel</code>. Its layers gather again in backward, while the gradient of x is being
# computed.</details>
#
# <details><summary>Another "sequence parallelism"</summary>The "sequence parallelism" of DeepSpeed-Ulysses is
# something else, because it splits no matrix. The sequence is cut everywhere except inside attention, where
# the heads are cut instead. See notebook 08.</details>
#
# <details><summary>In the lectures</summary>Lecture 004 says that sequence parallelism comes "at the cost of
# more comms". This is true of the form <code>"regather"</code>, but not of the form
# <code>"keep"</code>.</details>

# %% [markdown]
# ## 8 · What it costs, and when it stops paying
#
# | | |
# |---|---|
# | you will write | nothing new |
# | builds on | your predictions in §4, §6 and §7 |
# | time | 6 minutes |
# | points | 3 |
#
# The check takes your formulas from the sections above.

# %% nbgrader={"grade_id": "predictions_check", "points": 3}
report = check(
    "06_tensor_parallel/predictions", layer_bytes_sent, layer_saved_bytes, loss_bytes_sent
)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/predictions",
    layer_bytes_sent,
    layer_saved_bytes,
    loss_bytes_sent,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# In data parallelism, communication is hidden behind backward. But here the next operation *has to wait* for
# the sum. (In backward, the weights' gradients don't have to wait, but in forward everything waits.) So the
# time of a layer is computing plus talking. In the forward of an MLP, each rank has this much of both (two
# matrices, 2 FLOPs per weight and token, activations of 2 bytes per element):
#
# > computing: 4 · tokens · width · hidden / N FLOPs; talking: 2 (N−1)/N · tokens · width · 2 bytes
#
# If you divide them, you get **hidden / (N − 1) FLOPs per byte**. Tokens and width cancel, so neither a
# longer sequence nor a larger batch helps. Only more hidden features help, and each further rank makes it
# worse. A GPU also has such a ratio. An H100 computes 989 TFLOP/s and sends 450 GB/s over NVLink (each way),
# which is 2,198 FLOPs per byte. Over a network of 50 GB/s (400 Gb/s, one port for each GPU) the ratio is
# 19,780. If the layer's ratio is above the GPU's ratio, more than half of the time is computing. For example,
# a whole layer of LLaMA 3 70B with 4,096 tokens has a ratio of 4,023 on 8 GPUs, which is above NVLink's
# ratio, but only 1,877 on 16. (The layer's ratio is not quite hidden / (N − 1), because the layer also has
# attention, and its MLP has three matrices.)
#
# The cell draws the forward of this layer, with 4,096 tokens in bf16. Up to 8 GPUs are in one node. Beyond
# that there are two cases. Either every GPU has its own port of 50 GB/s, and the all-reduce has two levels
# (notebook 02 §7), first inside the node and then across. Or the node has one port for all, and a flat ring
# goes through it. Each round of a ring also costs α seconds.

# %% tags=["skip-in-grading"]
from course_lib.facts import (
    attention_flops,
    attention_parameters,
    hierarchical_seconds,
    mlp_parameters,
    seconds,
)
from course_lib.facts.hardware import NETWORK_ALPHA, NVLINK_ALPHA, gpu, link

LLAMA = GPTConfig(
    layers=1, width=8192, heads=64, kv_heads=8, hidden=28672, mlp="swiglu", norm="rms", positions="rotary", bias=False
)  # fmt: skip
H100, NVLINK, PORT = gpu("H100").flops, link("NVLink 4").beta, link("InfiniBand NDR").beta
SEQ = 4096
M = 2 * SEQ * LLAMA.width
FLOPS = 2 * SEQ * (attention_parameters(LLAMA) + mlp_parameters(LLAMA)) + attention_flops(
    LLAMA, 1, SEQ
)


def layer_times(n, one_port=False):
    """(computing, talking): seconds of one layer's forward on n GPUs, 8 in a node."""
    computing = FLOPS / n / H100
    if n <= 8:
        return computing, 2 * seconds("ring_all_reduce", n, M, NVLINK_ALPHA, NVLINK)
    if one_port:
        return computing, 2 * seconds("ring_all_reduce", n, M, NETWORK_ALPHA, PORT)
    inside, across = (NVLINK_ALPHA, NVLINK), (NETWORK_ALPHA, PORT)
    return computing, 2 * hierarchical_seconds(8, n // 8, M, inside, across)


rows = [(f"{n} GPU{'s' * (n > 1)}", layer_times(n)) for n in (1, 2, 4, 8)]
rows += [(f"{n}, one port per GPU", layer_times(n)) for n in (16, 32)]
rows += [(f"{n}, one port per node", layer_times(n, True)) for n in (16, 32)]
figure = picture(8.5, 3.0)
axes = figure.subplots()
for row, (_, (computing, talking)) in enumerate(rows):
    names = ("computing", "all-reduces") if row == 0 else (None, None)
    axes.barh(row, 1e3 * computing, color=FORWARD, label=names[0])
    axes.barh(
        row, 1e3 * talking, left=1e3 * computing, color=COMMUNICATION, edgecolor=INK, lw=0.5, label=names[1]
    )  # fmt: skip
    total = computing + talking
    text = f"{computing / total:.0%} computing, {rows[0][1][0] / total:.1f} times as fast as one"
    axes.text(1e3 * total + 0.08, row, text, va="center", fontsize=8)
axes.set_yticks(range(len(rows)), [name for name, _ in rows])
axes.set(xlim=(0, 10.5), xlabel="ms for the forward of a layer")
axes.legend(frameon=False, fontsize=8, loc="center right")
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# Inside the node, every doubling still helps, but less each time. If each GPU has a port, sixteen GPUs in two
# nodes are hardly faster than eight in one, so you pay for twice the machines and gain almost nothing. With
# one port for the node, they even take four times as long as eight. So use as much tensor parallelism as
# memory asks for, but never go beyond the node. The rest of the GPUs get other sequences (data parallelism),
# other layers (pipelines) or other parts of the sequence (notebook 08).
#
# Ranks that share a layer also share its data. With 8 GPUs per model, 64 GPUs hold 8 replicas, so a step of
# 2,048 sequences gives 256 to each *replica*, instead of 32 to each GPU. In general, a step has (a replica's
# batch) × replicas sequences, instead of batch × world size.
#
# <details><summary>Where the numbers come from</summary>α is 3.4 µs over NVLink and 14 µs over a network, as
# in NCCL's own cost model (<code>course_lib/facts/hardware.py</code>). FLOP/s and bytes/s are taken from the
# data sheets, although no program reaches them.</details>
# <details><summary>In the lectures</summary>Lecture 004 shows the fall from 8 to 16 GPUs. Lecture 003 says
# that tensor parallelism is "only applied to GPUs in the same computing node". The 32 sequences per GPU are
# from lecture 001's recipe, and batch × world size is from lecture 002.</details>

# %% [markdown]
# ## 9 · Optional: a GPT with its layers replaced
#
# | | |
# |---|---|
# | you will write | `parallelize_mlps(model, group=None)` |
# | builds on | §2, §3 |
# | time | 18 minutes |
# | difficulty, importance | 2 and 2 of 5 |
# | extra credit | 3 points, on top of the 60. You lose nothing if you skip it |
#
# Take the GPT of `course_lib/models/gpt.py` and replace the layers of its MLPs with yours. Nothing else in it
# changes.
#
# **Build.** `model.blocks` is a list of blocks. `block.mlp` has `up` and `down`, and also `gate`, which is
# None if the MLP has no gate. They are `nn.Linear`. *Keep their weights*, although your layers' constructors
# draw others. `with_weights` gives a parallel layer its parts of the old weights. Change the model in place
# and return it.
#
# **Predict.** How much does this model send per step, with L blocks?
#
# <details><summary>Answer</summary>It sends one all-reduce of M for each block and direction, so 2 L in all.
# With a gate there are 3 L, because gate and up are two layers, so backward needs two all-reduces for each
# block (<code>Gated</code> in §4). Attention, norms and embedding are whole on every rank, and every rank
# computes the same with them, so nothing is sent for them.</details>


# %%
@torch.no_grad()
def with_weights(parallel, whole, group: Group = None):
    """`parallel`, with its parts of the parameters of `whole`, cut if their shapes differ."""
    for name, own in parallel.named_parameters():
        full = whole.get_parameter(name)
        for dim in range(full.dim()):
            if own.shape[dim] != full.shape[dim]:
                full = part(full, dim, group)
        own.copy_(full)
    return parallel.to(full.device)


# %% nbgrader={"grade_id": "swap", "solution": true}
def parallelize_mlps(model, group: Group = None):
    """Replace the layers of every block's MLP by parallel ones with the same weights;
    returns the model."""
    ### BEGIN SOLUTION
    for block in model.blocks:
        for name in ("gate", "up", "down"):
            old = getattr(block.mlp, name)
            if old is not None:
                kind = RowParallelLinear if name == "down" else ColumnParallelLinear
                new = kind(old.in_features, old.out_features, old.bias is not None, group=group)
                setattr(block.mlp, name, with_weights(new, old, group))
    return model
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>For each block, take the sizes and <code>bias is not None</code> from the
# old layer, make a new one, call <code>with_weights(new, old, group)</code>, and put the result in the place
# of the old layer.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "swap_check", "points": 0}
# Extra credit, 3 points
report = check("06_tensor_parallel/swap", parallelize_mlps)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/swap", parallelize_mlps, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** A GPT of 0.1M parameters learns Python from the standard library's sources. It takes 50 steps
# of AdamW on one rank, then with its MLPs on two and on four ranks, and then also with your attention,
# embedding, head and loss on four. All ranks get the same batches. The head is tied to the embedding, so on
# each rank, their parts are one tensor.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
CONFIG = PRESETS["0.1M"]


def learn(change, loss_of=next_token_loss, steps=50):
    """Losses of a GPT changed by `change`."""
    torch.manual_seed(0)
    model = change(GPT(CONFIG).to(device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text, losses = library_text(), []
    for step in range(steps):
        inputs, targets = (
            tokens.to(device()) for tokens in batch(text, step, batch_size=8, length=64)
        )
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


curves = {"one rank": launch(learn, lambda model: model, world_size=1)[0]}
for n in (2, 4):
    run = try_it(learn, parallelize_mlps, world_size=n)
    if run:
        curves[f"MLPs on {n} ranks"] = run[0]


# %% tags=["nbval-ignore-output", "skip-in-grading"]
class InBlock(nn.Module):
    """Takes the positions a GPT's block passes, but ignores them, because the
    embedding has added them."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, positions):
        return self.attention(x)


def all_of_it(model):
    width, heads, tokens = model.config.width, model.config.heads, model.config.vocab_size
    model = parallelize_mlps(model)
    for block in model.blocks:
        attention = ParallelHeads(width, heads)
        block.attention = InBlock(with_weights(attention, block.attention))
    embedding = VocabParallelEmbedding(tokens, width)
    model.token_embedding = with_weights(embedding, model.token_embedding)
    model.head = ColumnParallelLinear(width, tokens, bias=False).to(device())
    model.head.weight = model.token_embedding.weight
    return model


def loss_of_parts(logits, targets):
    return vocab_parallel_cross_entropy(logits, targets, vocab_size=CONFIG.vocab_size)


run = try_it(learn, all_of_it, loss_of_parts)
if run:
    curves["everything on 4 ranks"] = run[0]
figure = picture(7.0, 2.8)
axes = figure.subplots()
for colour, dashes, (name, losses) in zip(
    RANKS, ("-", "--", "-.", ":"), curves.items(), strict=False
):
    apart = max(abs(a - b) for a, b in zip(losses, curves["one rank"], strict=True))
    print(f"{name:22} last loss {losses[-1]:.4f}, differs from one rank by at most {apart:.0e}")
    axes.plot(losses, dashes, label=name, color=colour)
axes.set(xlabel="step", ylabel="loss, nats per byte")
axes.grid(True, alpha=0.3)
axes.legend(frameon=False, fontsize=8, handlelength=3)
figure

# %% [markdown]
# The picture shows one curve, four times. The small differences come from the order in which float32 adds.
#
# **Break it.** Put `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` into the loop of `learn`. Which
# norm does it compute?
#
# <details><summary>Answer</summary>On each rank, it takes the norm of the gradients this rank holds, which
# differs from rank to rank. So each rank scales its gradients by a different number, and the replicated
# parameters drift apart. Instead, the squares of the parts have to be summed over the ranks, but the squares
# of replicated parameters must count only once.</details>
#
# <details><summary>In production</summary><code>course_lib.tensor_parallel.parallelize_gpt(model,
# sequence="regather")</code> does what <code>all_of_it</code> does above, but with sequence parallelism and
# for every form of the model, including grouped queries, SwiGLU, rotary positions and dropout. Its state
# dicts also load on another number of ranks.</details>
#
# <details><summary>In the lectures</summary>This is the exercise of lecture 004, but there the model is
# nanoGPT's <code>model.py</code>.</details>

# %% [markdown]
# ## On your GPUs
#
# *This section has no points. With GPUs it takes a few minutes. Without them, the cells show a recorded run,
# if there is one.*
#
# **Predict.** Tensor parallelism on t GPUs leaves each of them 1/t of the columns, and so 1/t of the FLOPs.
# Does a layer also take only 1/t of the time? The cell runs on one GPU, without messages. Its prediction is
# the time of the whole layer divided by t.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.arithmetic import LAYER_AND_MESSAGES, NARROW_LAYERS

on_gpus = on_your_gpus(NARROW_LAYERS, predicted=lambda of, run: run.rows[0].value / of["t"])
# %% [markdown]
# Narrow products make poorer use of a GPU, and operations on the whole width, such as the sum at the end, do
# not shrink. This lost time comes on top of the messages counted in §8.
#
# **Predict.** Now let's add the messages, for an MLP of width 4,096 over all your GPUs, with 4,096 tokens.
# Its two all-reduces hide behind nothing here, so the prediction is the sum of the first two rows. Then set
# `NCCL_P2P_DISABLE=1` with `%env` and run the cell again, to see the same layer without direct access between
# the GPUs. (On cards without peer-to-peer, such as the RTX 4090, nothing changes.) Set it to 0 afterwards.
# What share of the layer's time is communication? Compare it with §8.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
on_gpus = on_your_gpus(
    LAYER_AND_MESSAGES,
    predicted=lambda of, run: (
        sum(row.value for row in run.rows[:2]) if of["name"] == "both" else None
    ),
)
# %% [markdown]
# ## 10 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 9 minutes, and 4 for the *optional* scorecard |
# | points | 3 |
#
# A number may be an expression, such as `7 / 8`.
#
# 1. A transformer layer is split by tensor parallelism without sequence parallelism. How many **all-reduces**
#    are there in a forward and a backward of the layer together?
# 2. A layer has width 8,192, with 4,096 tokens in bf16, and computes 24 · width² FLOPs per token, forward. 16
#    H100 (989 TFLOP/s each) in two nodes share it, and their ring all-reduces run at 50 GB/s, the speed
#    between the nodes. Leave out α. Which **share** (0 to 1) of the layer's forward is communication?
# 3. If A is cut by rows and B by columns, why can't the sum wait until after the second matrix? Is it because
#    of `"the activation function"`, `"the bias"` or `"the size of the weights"`?
# 4. On eight ranks, an MLP ends with `torch.distributed.nn.functional.all_reduce`. How many **times** too
#    large are the gradients of the MLP's matrices?
# 5. How many **times** the bytes of tensor parallelism does sequence parallelism with `"regather"` send for a
#    layer, in a forward and a backward together? Leave out the gradients of norms and biases.

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # all-reduces
answer_2 = ...  # share, 0 to 1
answer_3 = ...  # "the activation function", "the bias" or "the size of the weights"
answer_4 = ...  # times
answer_5 = ...  # times
### BEGIN SOLUTION
answer_1 = 4
computing = 24 * 8192**2 * 4096 / 16 / 989e12
talking = 2 * 2 * 15 / 16 * 8192 * 4096 * 2 / 50e9
answer_2 = talking / (talking + computing)
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 10 / 8
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 3}
report = check("06_tensor_parallel/questions", answer_1, answer_2, answer_3, answer_4, answer_5)
### BEGIN HIDDEN TESTS
report = check(
    "06_tensor_parallel/questions",
    answer_1,
    answer_2,
    answer_3,
    answer_4,
    answer_5,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(3)

# %% [markdown]
# ## Scorecard
#
# *Optional.* The card compares computation, memory and bytes sent for one step of AdamW. A GPT with 3.3
# million parameters learns from 4 sequences of 32 tokens on 4 ranks. Here M means the bytes of the model's
# *parameters*. With replicas and with ZeRO-3 (from the reference) each rank gets one sequence, whereas ranks
# that share layers get all four. The row *tensor parallel* appears only if you have solved §9, but the next
# two rows, made by the reference, show almost the same.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
CARD = GPTConfig(context=128, layers=4, heads=4, width=256)


def step_of(make, shares_data=False):
    torch.manual_seed(0)
    forward, parameters, loss_of, finish = make(GPT(CARD).to(device()))
    rank, n = dist.get_rank(), dist.get_world_size()
    own = {} if shares_data else {"rank": rank, "world_size": n}
    inputs, targets = (
        tokens.to(device()) for tokens in batch(library_text(), 0, batch_size=4, length=32, **own)
    )
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    dist.barrier()
    with costs(inputs, targets, *parameters) as cost:
        loss_of(forward(inputs), targets).backward()
        finish()
        optimizer.step()
    return cost


def replicas(model):
    from course_lib.data_parallel import NaiveDataParallel

    wrapped = NaiveDataParallel(model)
    return (
        wrapped,
        list(model.parameters()),
        next_token_loss,
        wrapped.finish_gradient_synchronization,
    )


def zero_3(model):
    from course_lib.zero import Zero3Module

    wrapped = Zero3Module(model)
    return wrapped, list(wrapped.parameters()), next_token_loss, lambda: None


def tensor(model):
    model = all_of_it(model)
    return model, list(model.parameters()), loss_of_parts, lambda: None


def with_sequence(form):
    def made(model):
        from course_lib import tensor_parallel as library

        model = library.parallelize_gpt(model, sequence=form)
        loss_of = library.vocab_parallel_cross_entropy
        return model, list(model.parameters()), loss_of, lambda: None

    return made


card = {
    "replicas": try_it(step_of, replicas),
    "ZeRO-3": try_it(step_of, zero_3),
    "tensor parallel": try_it(step_of, tensor, True),
    "tensor and sequence, keep": try_it(step_of, with_sequence("keep"), True),
    "tensor and sequence, regather": try_it(step_of, with_sequence("regather"), True),
}


def row_of(name, run):
    """One line of the card, with the bytes sent after the last barrier."""
    begin = [
        i for i, operation in enumerate(run.ledger.operations(0)) if operation.op == "barrier"
    ][-1]
    return Row(
        strategy=name,
        ranks=len(run),
        flops=sum(cost.flops for cost in run),
        peak_bytes=max(cost.peak_bytes for cost in run),
        bytes_sent=sum(operation.bytes_sent for operation in run.ledger.operations(0)[begin:]),
    )


parameters_alone = sum(p.nbytes for p in GPT(CARD).parameters())
alone_run = launch(step_of, replicas, world_size=1)
rows = [row_of("one process", alone_run)] + [row_of(name, run) for name, run in card.items() if run]
Scorecard(rows, unit=parameters_alone, flops_alone=alone_run[0].flops)

# %% [markdown]
# Read the card column by column. *Computation* is almost the same in all rows, but replicas do a little more,
# because each repeats the optimizer's whole step. In *memory*, replicas hold 4 M of weights, gradients, m and
# v. ZeRO-3 holds only a quarter of them at the end of the step. Tensor parallelism holds a quarter, and never
# a whole layer. But in *bytes sent*, the methods differ in kind. Replicas and ZeRO send 2 or 3 (N−1)/N of the
# *parameters*, however many tokens there are. Tensor parallelism instead sends *activations*, which are small
# for these 128 tokens. With 5 or 6 times as many tokens, its 0.27 M would reach the replicas' 1.5 M, but
# little of this traffic can be hidden behind computation.
#
# <details><summary>Where the 1.03, the 1.01 and the 1.2 M come from, and a larger model</summary>Each of the
# four replicas takes the optimizer's whole step, so they compute 1.03 times as much as one process, whereas
# the other methods share that step. ZeRO-3's 1.01 comes mostly from writing every rank's gradients into rows
# (flat buffers, notebook 04), because the reference adds them. (Norms and activation functions are not
# counted. So the card does not show that without sequence parallelism every rank computes all norms.)
# ZeRO-3's peak of 1.2 M comes in backward, before m and v are made. The rank then holds its shards of weights
# and gradients, plus three pieces of 0.24 M: the current layer's weights, their gradients, and the row in
# which the gradients are sent. For comparison, a layer of LLaMA 3 70B has 1.7 GB of parameters in bf16,
# whereas one activation of 4,096 tokens has 67 MB.</details>
#
# **You have built** tensor parallelism, with both ends of the model and both forms of sequence parallelism.
# So you can say how much each layer sends in each direction, and up to how many ranks tensor parallelism pays
# off.
#
# **Read on.**
# - Shoeybi et al. (2019), *Megatron-LM*. §3 explains f and g, with a figure of both.
# - Korthikanti et al. (2022), *Reducing Activation Recomputation in Large Transformer Models*. §4 explains
#   sequence parallelism, with table 2.
# - Narayanan et al. (2021), *Efficient Large-Scale Language Model Training on GPU Clusters*. §5 measures
#   tensor parallelism inside the node.
# - Ainslie et al. (2023), *GQA*, introduces grouped queries.
# - `course_lib/tensor_parallel/` is best read after you have written your own.
#
# <details><summary>In the lectures</summary>Lecture 003 uses the same three criteria (computation, memory,
# bytes sent). Lecture 004 recommends fairscale's layers (<code>nn/model_parallel/layers.py</code>), which use
# the same names for their arguments, but gather and split by default.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up all your notebooks as you have saved them, and
# `python -m course_lib.submit` packs them so that you can hand them in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("06_tensor_parallel")
