# %% [markdown]
# # 06 · Tensor parallelism
#
# **How is one layer split, and what do its parts have to send each other?**
#
# ZeRO-3 (notebook 04) keeps only 1/N of the weights on every rank, but each rank still computes *whole*
# layers, so its activations do not shrink. In GPT-3, the activations of one layer take 2.87 GB for each
# sequence of 2,048 tokens. All 96 layers together need 275 GB, but an H100 has only 80 GB. (These numbers
# follow from table 2 of Korthikanti et al., 2022, for 16 bits without flash attention or recomputation.)
# Splitting the batch over more ranks cannot help, because each rank needs at least one sequence.
#
# In this notebook, all ranks work on the *same* sequences, and each computes a part of each layer, such as
# some columns of a matrix, some heads, or some tokens of the vocabulary. Weights, gradients, optimizer
# states, most activations and the work are divided by N. The price is communication inside every layer, and
# the next operation has to wait for it.
#
# | | |
# |---|---|
# | you will build | the two functions at the edges of a split layer; column- and row-parallel linear layers; attention, embedding and loss over many ranks; sequence parallelism; a GPT made of them |
# | you need | all-reduce, reduce-scatter, all-gather and their bytes (notebook 02); `torch.autograd.Function`; how a transformer block computes |
# | time | three hours; the *optional* parts (the ends of §4 and §5, the scorecard, and all of §9) take another hour |
# | points | 60, and 7 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. With several GPUs, the section *On your GPUs* measures real messages |
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
# | 9 Optional: a GPT with its layers replaced | 18 | 3 extra | 2, 3 (and 5, 6 for its last curve) |

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
# which is batch × sequence × width × bytes per element. Our unit for bytes sent is often **half an
# all-reduce**, which is (N−1)/N · M bytes. In an all-reduce, each rank sends two halves, whereas in an
# all-gather or a reduce-scatter it sends only one (notebook 02).
#
# <details><summary>A list of words to come back to</summary>
#
# | | |
# |---|---|
# | replicated | Every rank has the same tensor. A replicated tensor is also called *whole* |
# | sharded | Every rank holds only its own part of the tensor, its shard. We also say that the tensor is *cut* |
# | partial | Every rank holds a tensor of full size, but it is only a *term*. The tensor you want is the *sum* of all ranks' terms |
# | region | the operations during which each rank has only some of the features, such as a layer's attention or its MLP |
# | residual stream | the activation that each block reads, and to which it adds its output |
# | hidden | the features between the two matrices of an MLP, usually 4 times the width |
#
# </details>
# <details><summary>In the lectures</summary>Lecture 001 says in one sentence how ZeRO-3 and tensor
# parallelism differ. ZeRO-3 "shards weights for memory but reconstructs them for computation", whereas tensor
# parallelism "splits the computation itself".</details>
#
# The next cell has three functions that move data. Autograd cannot differentiate these functions, so if you
# need gradients, you have to write the backward yourself. `part` cuts a tensor as `torch.tensor_split` does,
# so the parts of 10 elements on 4 ranks have 3, 3, 2 and 2 elements. It returns a *copy*, because a view
# would keep the whole tensor in memory. `joined` puts such parts together again. `summed_part` adds up the
# ranks' tensors and returns this rank's part of the sum, but all parts must have the same size.
#
# The cell after that has tools for measuring. `passes` runs a layer forward and backward on every rank, with
# the same weights and the same input on all of them. `alone` runs the layer in one process. `beside` compares
# the ranks with that run, and `sent` says how many bytes a rank sent in forward and in backward. You don't
# have to read the code of that cell, or of later cells that only measure or draw.


# %%
def part(x, dim, group: Group = None):
    """A copy of this rank's part of `x` along `dim`."""
    return x.detach().tensor_split(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()


def joined(x, dim, group: Group = None, size=None):
    """All ranks' parts, joined along `dim`. size: the size of the joined `dim`, needed if the parts
    can be unequal."""
    n, dim = dist.get_world_size(group), dim % x.dim()
    sizes = [x.shape[dim]] * n if size is None else [size // n + (r < size % n) for r in range(n)]
    if x.shape[dim] != sizes[dist.get_rank(group)]:
        raise ValueError(
            f"this part has size {x.shape[dim]}, but {n} ranks cut {size} into {sizes}"
        )
    padded = x.movedim(dim, 0).contiguous()
    padded = torch.cat([padded, padded.new_zeros(max(sizes) - len(padded), *padded.shape[1:])])
    pieces = padded.new_empty(n * max(sizes), *padded.shape[1:])
    dist.all_gather_into_tensor(pieces, padded, group=group)
    kept = [piece[:size] for piece, size in zip(pieces.chunk(n), sizes, strict=True)]
    return torch.cat(kept).movedim(0, dim).contiguous()


def summed_part(x, dim, group: Group = None):
    """This rank's part, along `dim`, of the sum of all ranks' `x`. The size of `dim` must be a
    multiple of N."""
    n, dim = dist.get_world_size(group), dim % x.dim()
    if x.shape[dim] % n:
        raise ValueError(f"{x.shape[dim]} positions cannot be shared equally by {n} ranks")
    pieces = x.movedim(dim, 0).contiguous()
    own = pieces.new_empty(len(pieces) // n, *pieces.shape[1:])
    dist.reduce_scatter_tensor(own, pieces, group=group)
    return own.movedim(0, dim)


# %%
class Saved:
    """A context that counts the bytes forward keeps for backward. Each piece of memory counts only
    once, and the tensors in `apart_from` do not count."""

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
            self.alive.append(tensor.detach())  # so that no other tensor gets the same address
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
    # Any loss would do if it is the same on all ranks or, with `cut`, if each rank has a term of it.
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
    """The results of `passes` in one process."""
    return launch(passes, make, world_size=1, **options)[0]


def furthest(a, b):
    """The largest difference between a and b, divided by the largest magnitude in b."""
    return float((a - b).abs().max() / b.abs().max())


def beside(name, make, whole, world_size=4, **options):
    """Compare the output and the gradient of x with one process. Print the bytes a rank sent, and
    its share of the parameters."""
    run = try_it(passes, make, world_size=world_size, **options)
    if run is None:
        return None
    single, (forward, backward) = alone(whole, **options), sent(run)
    apart = [furthest(run[0][key], single[key]) for key in ("y", "x.grad")]
    right = "equal to one process" if max(apart) < 1e-5 else f"off by {max(apart):.2g}"
    print(
        f"{name}: {right}; bytes sent: {forward:,.0f} forward, {backward:,.0f} backward;"
        f" share of the parameters: {run[0]['held'] / single['held']:.3f}"
    )
    return run


def said(prediction, *args):
    """The result of your prediction, as text."""
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
# A linear layer computes y = x A. A tensor is *replicated*, or *whole*, if every rank has all of it, and
# *sharded* if every rank has a part of it. A tensor is *partial* if it is the sum of N terms of the same
# shape, and every rank has one of these terms. There are two ways to cut A over the ranks:
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
# So in forward, the ranks send nothing if A is cut by columns, and make one sum if A is cut by rows. What do
# they have to send in backward? Autograd cannot know, because it sees only one process with a smaller matrix.
#
# *By columns.* Every rank uses x. If a value is used N times, its gradient is the **sum** of the gradients
# from all uses. On one GPU, autograd adds up these gradients by itself. But here each rank has only the
# gradient from its own use of x, so you have to add them up over the ranks.
#
# *By rows.* The gradient of each term is the same as the gradient of the sum y. Every rank already has the
# gradient of y, because all ranks compute the same loss from the same y.
#
# A *region*, such as a layer's MLP, begins with a matrix that is cut by columns and ends with one that is cut
# by rows (§4 shows why). There is one function at each of its two edges, and these two functions are mirror
# images of each other:
#
# | | forward | backward | name in Megatron-LM's paper |
# |---|---|---|---|
# | into a region: `identity_all_reduce` | nothing | all-reduce | f |
# | out of it: `all_reduce_identity` | all-reduce | nothing | g |
#
# **Predict.** If the tensor has M bytes and there are N ranks, how many bytes does a rank send in each of
# these functions, forward and backward? And what would happen if you called `dist.all_reduce(y)`, which works
# in place, instead of these functions?
#
# <details><summary>Answer</summary>identity_all_reduce sends 2 (N−1)/N · M bytes in backward and nothing in
# forward, and all_reduce_identity does the opposite. Autograd does not see <code>dist.all_reduce</code>. If
# you called it instead of all_reduce_identity, the gradient would be right by luck, and PyTorch would warn
# you that another release might compute a different gradient. But the call cannot replace
# identity_all_reduce, which does its work in backward. So the gradients of x would not be added up.</details>
#
# **Build.** Write two `torch.autograd.Function`s, and two functions that apply them:
#
# - Neither forward nor backward may write into its input, because x and the gradient might be used elsewhere.
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
    """Into a region. Forward: x itself. Backward: the sum of all ranks' gradients, in a new
    tensor."""
    ### BEGIN SOLUTION
    return _IdentityAllReduce.apply(x, group)
    ### END SOLUTION


def all_reduce_identity(x, group: Group = None):
    """Out of a region. Forward: the sum of all ranks' x, in a new tensor. Backward: the gradient
    itself."""
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
# **Measure.** The check has counted the bytes. In the check, x has 96 bytes on each of 3 ranks, so a rank
# sends 2 · 2/3 · 96 = 128 bytes in one direction and 0 bytes in the other.
#
# **Break it.** PyTorch also has an all-reduce that autograd can differentiate,
# `torch.distributed.nn.functional.all_reduce`. The next cell compares it with your `all_reduce_identity`.
# Four ranks add up their x, and this sum is the loss. What should the gradient of x be?


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
# The right gradient is 1, because if you raise one rank's x by a little, the loss rises by the same amount.
# With PyTorch's all-reduce, the gradient is 4, but this is not a bug. PyTorch treats the losses of the four
# ranks as *four* losses, each of which contains x, and differentiates their sum. In tensor parallelism,
# however, the four losses are copies of one loss.
#
# <details><summary>Would you notice this factor of N?</summary>If you train with AdamW, gradients that are N
# times too large hardly change the losses, because AdamW divides by the size of the gradient (notebook 03).
# With gradient clipping or SGD, however, such gradients do change the losses.</details>
#
# <details><summary>In production</summary>Megatron-LM calls your functions
# <code>copy_to_tensor_model_parallel_region</code> and <code>reduce_from_tensor_model_parallel_region</code>.
# The names say what the functions do in forward. In backward, each of them does what the other one does in
# forward.</details>

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
# **row** of `weight`, and PyTorch's class for a layer that is cut by columns, `ColwiseParallel`, cuts
# dimension 0 of `weight`.
#
# **Predict.** A layer with 1,024 input features and 4,096 output features is cut by columns over four ranks.
# What shapes do the weight and the bias of a rank have? What does a rank send in forward, and what does it
# send in backward?
#
# <details><summary>Answer</summary>The shapes are (1,024, 1,024) and (1,024,). Forward sends nothing.
# Backward adds up the gradient of x over the ranks, so each rank sends 2 · 3/4 times the bytes of x. The bias
# is cut in the same way as the output, so nothing is sent for it.</details>
#
# With `gather_output=True`, the layer returns the whole output, so its parts have to be gathered. What is the
# backward of this all-gather? Each rank already has the gradient of the whole output, because all later
# operations are the same on all ranks. So in backward, each rank takes its own part of this gradient. The
# next cell provides `gather_parts`, which gathers in forward and takes the rank's part in backward. For §3,
# it also provides the mirror image, `own_features`. Both functions are made with `Conjugate`, which turns two
# functions into a forward and a backward. You will use `Conjugate` yourself in §7.
#
# **Build.** Every rank first makes the whole layer (`whole`, given) and then keeps its own part. Since all
# ranks use the same random seed, the parts together are the layer that one process would make.
#
# - `weight` and `bias` are `nn.Parameter`s that hold only this rank's part. With `bias=False`, `bias` is
#   None.
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
    """Forward: all ranks' features, joined, `size` in total. Backward: this rank's part of them."""
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

    forward takes a replicated x (..., in_features), and returns the rank's part of
    (..., out_features), or all of it if gather_output is set. Forward sends nothing, or (N-1)/N of
    the output if gather_output is set. Backward sends 2 (N-1)/N of x.
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
# <details><summary>Hint: four lines</summary>In the constructor, make a parameter from
# <code>part(whole.weight, 0, group)</code>, and another parameter from the bias, cut in the same way. In
# forward, call <code>identity_all_reduce</code> on x, then <code>F.linear</code>, and finally, if
# <code>gather_output</code> is set, <code>gather_parts</code>.</details>
#
# **Check.** The cell after the check runs a layer with 64 input and 64 output features on four ranks, and
# compares it with `nn.Linear` in one process. The input x has 2 × 32 tokens of 64 float32 features, so M is
# 16,384 bytes.

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
# In forward, a rank sends 3/4 of the output's bytes, because of `gather_output`. In backward, it sends 6/4 of
# the bytes of x. A rank holds a quarter of the weights. Without `gather_output`, it would also hold only a
# quarter of the output.
#
# <details><summary>What is wrong without <code>identity_all_reduce</code>? The output, the gradients of the
# rank's own weights, or the gradient of x?</summary>Only the gradient of x is wrong, because each rank has
# only the term from its own columns. If the layer is the first in the model, the mistake has no effect.
# Anywhere else, however, the layers before it learn from a different gradient on each rank. You will meet
# this mistake again in §4.</details>
#
# <details><summary>In production</summary>This layer is <code>ColwiseParallel()</code> in PyTorch and
# <code>ColumnParallelLinear</code> in Megatron-LM. A whole layer can be too large for one rank, so each rank
# initializes only its own part. In Megatron-LM, a rank does not idle in backward. While the gradient of x is
# being summed over the ranks, the rank computes the gradient of its weights, for which it needs nothing from
# the other ranks.</details>
#
# <details><summary>In the lectures</summary>Lectures 003 and 004, like many texts, cut "the weight matrix W",
# but do not say whether W is A or the transpose of A.</details>


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
# Now let's cut A by rows. Each rank has some of the *input* features, and the rows of A (columns of `weight`)
# that belong to these features. The product on a rank is only one term of y = y₀ + y₁, so y is partial. After
# the sum over the ranks, y is replicated.
#
# **Predict.** The bias is not cut, because it is added to y, which every rank has in full. Suppose that each
# of 4 ranks adds the bias to its own term, before the sum. What is y then? And what is the gradient of the
# bias?
#
# <details><summary>Answer</summary>The sum contains the bias four times. So add the bias only once, after the
# sum. Every rank then keeps the full bias and computes the same gradient for it, so nothing has to be sent,
# and the copies stay equal. The gradient would be the same if every rank added the bias to its own term, so
# you cannot find the mistake by looking at gradients. If biases begin at 0, as in many models, the first
# forward is right as well. The model then learns with a bias that counts N times, and nothing looks wrong
# until the checkpoint is loaded on a different number of ranks and the loss jumps.</details>
#
# **Build.**
#
# - If `input_is_parallel=True`, x is sharded by features, like the output of a `ColumnParallelLinear`.
# - If `input_is_parallel=False`, x is replicated, and each rank takes its own features from x
#   (`own_features`).
# - As in §2, keep the rank's part of `whole.weight`, but all of `whole.bias`. If N does not divide
#   `in_features`, cut as `part` does.


# %% nbgrader={"grade_id": "row_parallel_linear", "solution": true}
class RowParallelLinear(nn.Module):
    """nn.Linear whose input features are cut over the ranks of `group`.

    forward takes the rank's part of x (..., in_features), or all of x if input_is_parallel is
    False, and returns (..., out_features), replicated. Forward sends 2 (N-1)/N of the output.
    Backward sends nothing, or (N-1)/N of x if input_is_parallel is False.
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
# In forward, a rank sends 6/4 of the bytes of y. In backward, it sends 3/4 of the bytes of x. Since x was
# replicated, the ranks have to gather the parts of its gradient. Each rank holds a little more than a quarter
# of the parameters, because it holds all of the bias.
#
# <details><summary>In production</summary>This layer is <code>RowwiseParallel()</code> in PyTorch. In
# Megatron-LM it is <code>RowParallelLinear</code>, which also has the argument
# <code>input_is_parallel</code>. With <code>skip_bias_add</code>, Megatron-LM's layer returns the bias
# instead of adding it, so that a single kernel can add the bias, apply dropout and add the result to the
# residual stream.</details>
#
# <details><summary>In the lectures</summary>Lecture 003 calls this layer "Raw Parallel", and writes Y = Y₁ +
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
# An MLP has two matrices with an activation function between them, y = gelu(x A) B. Suppose that A is cut by
# rows and B by columns. Then x A is a sum of the ranks' terms. Since gelu(a + b) is not gelu(a) + gelu(b),
# the ranks must add up their terms of the wide *hidden* features *before* the activation function. Now
# suppose that A is cut by columns and B by rows. Then every rank keeps its own hidden features from the first
# matrix to the second. This works because the activation function treats each element separately, and a
# rank's rows of B need exactly the features that its columns of A have computed.
#
# The first cell below defines this MLP, and the second one runs it on two ranks and draws its tensors. In the
# picture, each row is a rank, and each box is a tensor, of which the rank holds the coloured part.


# %%
class ParallelMLP(nn.Module):
    """down(gelu(up(x))), with `up` cut by columns and `down` by rows.

    Nothing is sent between the two.
    """

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
    (name, shape here, shape of the whole, whether it is a term)."""
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
    """Draw ranks as rows, and forward from left to right. The ledger provides the bytes."""
    n, unit = run.ledger.world_size, 4 * TOKENS * WIDTH
    talk = iter([operation for operation in run.ledger.operations(0) if operation.bytes_sent])
    figure = picture(9.5, 1.3 * n + 0.9)
    axes = figure.subplots()
    left = 0.0
    for stage, (name, _, whole, term) in enumerate(run[0]):
        if name == "send":
            operation = next(talk)
            axes.barh((n - 1) / 2, 0.35, n - 0.15, left, color=COMMUNICATION, edgecolor=INK, lw=0.5)
            text = f"{operation.op.replace('_', '-')}\n{operation.bytes_sent / unit:.2g} M per rank"
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
# Forward needs only one sum, after the second matrix. Backward is the mirror image, so nothing is sent until
# each rank has its term of the gradient of x, and then these terms are added up.
#
# ### Which kind is it?
#
# A copy of a tensor and a term of a sum have the same shape, and PyTorch computes with both of them. So if a
# sum is missing or computed twice, PyTorch raises no error. To find such mistakes, give each tensor a kind:
#
# | kind | each rank has | one process would have |
# |---|---|---|
# | R, replicated | a copy | the same tensor |
# | S(d), sharded | a part | the ranks' parts one after the other along dimension d |
# | P, partial | a term | the sum of the ranks' terms |
#
# If the ranks form a grid, a tensor has a kind on each axis of the grid. For example, take two replicas (axis
# dp) of two ranks each (axis tp). The replicas read different tokens, so x is S(0) on dp. But the two ranks
# of a replica read the same tokens, so x is R on tp. Gradients also have kinds.
#
# **Fill in** the kinds of the tensors in `block` as strings. Each of them is `"R"`, `"P"`, `"S(0)"` or
# `"S(1)"`. The loss is summed over all tokens.


# %%
def block(x, w1, w2, b2, group: Group = None):
    """x: (tokens, width). w1 and w2: this rank's parts of the weights, as (out, in). b2: (width,).

    Returns u, h, z, s and the output y.
    """
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
# <details><summary>Hint: forward</summary>Think of the tensor that one process would have. Is it the sum of
# the two ranks' tensors? Is it the two tensors side by side? Or does each rank already have it?</details>
# <details><summary>Hint: backward</summary>Every rank begins with the same gradient of y. In which step of
# backward does a rank get only the gradient from its own use of a tensor? Remember that the gradient of a
# part is also a part.</details>
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
# **Look.** `axis_types` can also find the kinds. The cell runs `block` once, in this process and without
# other ranks. Meanwhile, `axis_types` tries each new operation with random numbers on two imaginary ranks,
# and compares their two results with the result of one process. If both results are equal to it, they are
# copies. If their sum is equal to it, they are terms. If the two results side by side are equal to it, they
# are parts. If none of these is true, `axis_types` reports the line as a mistake, because one process would
# compute something else there.


# %% tags=["skip-in-grading"]
def show_kinds(block):
    """Print the kinds of the block's tensors on both axes, forward and backward."""
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
    """Run `block` with axis_types, which stops at the first mistake.

    inputs: by name, the shape on a rank and the kind on tp. y: the kind of the output on tp.
    """
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
    """Print the first mistake that axis_types finds in each block."""
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
# The row of u shows why `identity_all_reduce` is needed. On tp, u is a copy, but its gradient is a term. z,
# in contrast, is a term, and its gradient is a copy. So both functions of §1 turn terms into copies,
# `identity_all_reduce` in backward and `all_reduce_identity` in forward.
#
# **Mend three blocks.** Each function in the next cell has a mistake in one line. None of the mistakes raises
# an error, and `norm_before` even returns the right output. Read the functions, and say what is wrong. Then
# run the cell, which prints the first mistake that `axis_types` finds in each function.


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
# - `rows_then_columns`: x has only the rank's features, so it is S(1). A is cut by rows and B by columns. The
#   weights w1 and w2 have the shape (out, in), so w1 is S(1) and w2 is S(0). The output is S(1).
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
# <details><summary>Hint: rows_then_columns</summary>The product with A is P, because A is cut by rows, but
# gelu needs R.</details>
# <details><summary>Hint: bias_behind</summary>b2 is R, so it must not be added to a term.</details>
# <details><summary>Hint: norm_before</summary>Every rank computes the same norm, but uses the output for its
# own hidden features. Which tensor is used N times?</details>
#
# **Check.** The check runs the three blocks on real ranks. To run `axis_types` again, call
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
# <details><summary><code>axis_types</code> in programs of your own</summary>You can run your own programs
# inside <code>axis_types</code>, with tiny tensors. But since the program runs only as rank 0,
# <code>axis_types</code> does not see numbers that are different on another rank. So you have to declare the
# kinds for the embedding and the loss of §6 (<code>types.trusted</code>). If a function takes the rank's part
# of a copy, as <code>own_features</code> does, you have to declare the kind of this part
# (<code>types.set</code>). Meta's <i>spmd_types</i> checks the same kinds, but has a rule for each operation
# instead of trying it.</details>
#
# **Predict.** A transformer layer has two regions, attention and MLP. How many bytes does each rank send for
# the layer in one direction, forward or backward, if an activation has `nbytes` bytes? For now, write only
# the case `sequence=None`. §7 will ask for the other two values of `sequence`, and §8 has the check.


# %% nbgrader={"grade_id": "layer_bytes_sent", "solution": true}
def layer_bytes_sent(n: int, nbytes: float, direction: str, sequence: str | None = None) -> float:
    """Bytes each of n ranks sends for one layer, attention and MLP, in one direction.

    nbytes: M, the bytes of one whole activation. direction: "forward" or "backward".
    sequence: None, "keep" or "regather" (§7).
    """
    ### BEGIN SOLUTION
    halves = 6 if sequence == "regather" and direction == "backward" else 4
    return halves * (n - 1) / n * nbytes
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Count the all-reduces of a layer in one direction, and then count two halves
# for each all-reduce. A half is (n - 1) / n * nbytes.</details>
#
# **Measure.** The cell compares the MLP on 2, 3 and 4 ranks with one process. M is 16,384 bytes.

# %% tags=["skip-in-grading"]
for n in (2, 3, 4):
    if beside(f"{n} ranks", lambda: ParallelMLP(64, 256), lambda: MLP(64, 256), n):
        print(
            f"    predicted for a layer with two such regions: {said(layer_bytes_sent, n, 16384, 'forward')}"
        )

# %% [markdown]
# The output and the gradient of x agree with one process, even for N = 3, which does not divide the 256
# hidden features.
#
# <details><summary>In the lectures</summary>Lecture 004 draws two of the four ways to cut A and B. Lecture
# 001 concatenates h⁽¹⁾ and h⁽²⁾ after the first layer, which is not needed, and says "one All-Reduce per
# layer". But a transformer layer needs two all-reduces in each direction, one for each region.</details>
#
# ### Optional: SwiGLU, and PyTorch's plan
#
# SwiGLU, the MLP of LLaMA, has three matrices and computes down(silu(gate(x)) · up(x)). Gate and up are cut
# by columns in the same way, so that each rank can multiply its parts of silu(gate(x)) and up(x). But what is
# sent if both gate and up are a `ColumnParallelLinear`?


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
# In `Gated`, x enters the region twice, so backward makes two all-reduces. If x enters only once, each rank
# first adds up its own two gradients of x, so one all-reduce is enough. In attention, even three matrices
# share x.
#
# **In production.** PyTorch's `parallelize_module` takes a plan (a dictionary that says how each layer is
# cut) and turns every parameter into a *DTensor*. A DTensor knows how it is cut, and calls a collective when
# an operation needs the whole tensor. The next cell compares such an MLP with yours.


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
    print("bytes sent (forward, backward): yours", sent(ours), "and PyTorch's", sent(theirs_run))

# %% [markdown]
# <details><summary>Why not always DTensors?</summary>Both versions send the same number of bytes. With
# DTensors, you also get tensor parallelism inside FSDP, and checkpoints that know which rank has which part.
# If the input of a matrix is cut in the wrong way, PyTorch cuts it in the right way before the product. But
# DTensors cost CPU time for every operation, so Megatron-LM and many others keep layers like yours.</details>
#
# <details><summary>An interview question: can you <code>view</code> a DTensor?</summary>You can if every rank
# can view its own part. For example, take a DTensor of 8 × 6 elements on two ranks, in PyTorch 2.13. If it is
# cut by rows, you can view it as 4 × 2 × 6, and each rank then has 2 × 2 × 6 elements. If it is cut by
# columns, you can view it as 8 × 2 × 3, and each rank then has 8 × 1 × 3 elements. But PyTorch refuses to
# view it as 8 × 3 × 2 ("Cannot unflatten unevenly sharded tensor"), because a dimension of size 3 cannot be
# shared equally by two ranks. In this case, you have to call <code>redistribute</code> first, which sends
# messages. <code>view</code> itself sends nothing. (Lecture 001 has a similar question in §28. Its answer is
# that <code>view</code> copies nothing.)</details>

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
# How can attention be cut? Three matrices compute the queries, keys and values. Each maps width features to
# heads × head_dim features. (head_dim is width / heads.) Then every head computes on its own, and an output
# matrix maps the results of the heads back to width. Which of these four matrices are cut by columns, and
# which by rows? In the MLP, the step between the matrices is an elementwise function. Which step plays this
# role in attention?
#
# <details><summary>Answer</summary>The computation inside the heads plays this role, because no head needs
# the results of another head. So a rank can compute some heads if it has the queries, keys and values of
# these heads. Cut the first three matrices by columns (so that each rank gets whole heads) and the output
# matrix by rows. Then attention needs one sum in forward and one in backward.</details>
#
# **Build the heads.** Write causal self-attention with as many key-value heads as query heads.
# (`course_lib.models.gpt.SelfAttention` shows it for one process.) `heads_of` and `causal_attention` are
# given.
#
# - Create the layers `query`, `key`, `value` and `out` in this order, so that they draw the same random
#   weights as in one process. §7 and §9 use these names.
# - x is replicated, and must enter the region only *once*, so that backward makes only one all-reduce of its
#   gradient. (Each call of a `ColumnParallelLinear` would make its own all-reduce, so use `heads_of`.)
# - A rank's heads are neighbours, and the rank has the same heads in all four matrices.
# - You don't have to write a backward, because your functions of §1 have one.
# - If N does not divide `heads`, raise a ValueError that names both numbers.


# %%
def causal_attention(q, k, v, dropout=0.0):
    """Attention of q (batch, seq, heads, head_dim) to k and v, which can have fewer heads. Returns
    (batch, seq, heads * head_dim)."""
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, dropout_p=dropout, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(-2)


def heads_of(x, linear, head_dim):
    """Apply the layer's weight and bias to x. Returns (batch, seq, heads of this rank, head_dim).

    Calling the ColumnParallelLinear itself would let x into the region again.
    """
    return F.linear(x, linear.weight, linear.bias).unflatten(-1, (-1, head_dim))


# %% nbgrader={"grade_id": "parallel_heads", "solution": true}
class ParallelHeads(nn.Module):
    """Causal self-attention with its heads cut over the ranks of `group`.

    forward takes and returns (batch, seq, width), replicated. Sends 2 (N-1)/N of x in each
    direction.
    """

    def __init__(self, width, heads, bias=True, group: Group = None):
        super().__init__()
        self.group, self.head_dim = group, width // heads
        ### BEGIN SOLUTION
        n = dist.get_world_size(group)
        if width % heads or heads % n:
            raise ValueError(f"{n} ranks cannot share width={width} and heads={heads} equally")
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
# **Measure.** The cell builds a transformer layer from your attention and your MLP. Each of them follows a
# norm, and its output is added to the residual stream. The layer has 8 heads, on 4 ranks. The cell also
# prints your prediction from §4.


# %% tags=["skip-in-grading"]
class Layer(nn.Module):
    """A transformer layer, made of the given attention and MLP. Its norms are replicated."""

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
# both in the matrices cut by columns and in the matrix cut by rows. All shapes are still right. Does the MLP
# still compute the right output? Does attention?


# %% tags=["skip-in-grading"]
def every_nth(make, inward, outward):
    """The layer, with the features r, r + N, r + 2N, ... on rank r."""
    layer, n, rank = make(), dist.get_world_size(), dist.get_rank()
    with torch.no_grad():
        for name in inward:
            for own in getattr(layer, name).parameters():
                own.copy_(joined(own.to(device()), 0)[rank::n])
        own = getattr(layer, outward).weight
        own.copy_(joined(own.to(device()), 1)[:, rank::n])
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
            "the same" if off < 1e-5 else f"off by {off:.0%} of the largest element",
        )


# %% [markdown]
# The order of hidden features does not matter, so the MLP is right. But a head consists of neighbouring
# features. Here each "head" has two features from each of four heads, so its scores are wrong.
#
# <details><summary>In production</summary>GPT-2's checkpoints store query, key and value as one matrix. You
# can't cut this matrix into N equal parts, because the parts would not contain the same heads of query, key
# and value. Instead, cut these three separately.</details>
#
# ### Optional: grouped queries and dropout
#
# *This part has 4 points of extra credit, on top of the 60. You lose nothing if you skip it.*
#
# **Predict.** With 8 heads on 4 ranks, rank 1 has heads 2 and 3. How many ranks can there be at most? With
# *grouped queries*, several query heads share one head of keys and values. If there are 8 query heads but
# only 2 key-value heads, which key-value heads does each of the 4 ranks hold?
#
# <details><summary>Answer</summary>There can be 8 ranks, with one head each. With grouped queries, query
# heads 0 to 3 share key-value head 0. These query heads are on ranks 0 and 1, so both ranks hold a copy of
# key-value head 0. (Ranks 2 and 3 hold copies of key-value head 1.) Each copy gets only the gradient from the
# queries on its own rank, so the gradient of the key-value head is the sum of the gradients of both copies.
# The key-value head is again <i>a value that is used on two ranks</i>.</details>
#
# *Dropout* of the attention weights (the output of the softmax) needs care. All ranks have the same seed, so
# they draw the same parameters, and the same dropout masks for replicated tensors. But inside a region, each
# rank has *different* heads, so the masks must differ. After the region, all ranks must again draw the same
# random numbers.
#
# **Build the full attention.** `ParallelSelfAttention` does what `ParallelHeads` does, and also handles
# grouped queries and dropout. (It can be a subclass of `ParallelHeads`, but its constructor must create the
# four layers only once.)
#
# - `kv_heads=None` means that there are as many key-value heads as query heads. `kv_heads` must be a divisor
#   or a multiple of N, and `heads` must be a multiple of N. Otherwise, raise a ValueError that names N and
#   the number that does not fit.
# - If there are fewer key-value heads than ranks, N / kv_heads neighbouring ranks hold the same key-value
#   head, and the gradients of this head are summed over these ranks. `grid` returns two groups to which this
#   rank belongs. The group `same` has the ranks with a copy of the same head, and the group `across` has one
#   rank for each head.
# - During training, apply `dropout` to the attention weights, inside the context `own_random_state`.


# %%
def grid(copies, group: Group = None):
    """This rank's groups (same, across): the `copies` neighbours that hold the same head, and one
    rank for each head."""
    ranks, rank = dist.get_process_group_ranks(group or dist.group.WORLD), dist.get_rank(group)
    first = rank // copies * copies
    same = dist.new_group(ranks[first : first + copies], use_local_synchronization=True)
    across = dist.new_group(ranks[rank % copies :: copies], use_local_synchronization=True)
    return same, across


@contextlib.contextmanager
def own_random_state(group: Group = None):
    """Inside this context, each rank draws its own random numbers. Afterwards, all ranks draw the
    same random numbers again."""
    seed = int(torch.randint(2**62, ())) + dist.get_rank(group)
    devices = [torch.cuda.current_device()] if device().type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


# %% nbgrader={"grade_id": "parallel_self_attention", "solution": true}
class ParallelSelfAttention(nn.Module):
    """Causal self-attention with its heads cut over the ranks of `group`.

    forward takes and returns (batch, seq, width), replicated. Sends 2 (N-1)/N of x in each
    direction. If several ranks hold the same key-value head, backward also sums the gradients of
    the head's parameters over these ranks.
    """

    def __init__(
        self, width, heads, kv_heads=None, bias=True, group: Group = None, dropout: float = 0.0
    ):
        super().__init__()
        ### BEGIN SOLUTION
        n, kv_heads = dist.get_world_size(group), kv_heads or heads
        if width % heads or heads % kv_heads or heads % n or (kv_heads % n and n % kv_heads):
            raise ValueError(
                f"{n} ranks cannot share heads={heads} and kv_heads={kv_heads} equally. heads must be a "
                f"multiple of {n}, and kv_heads a multiple or a divisor of {n}"
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
        """Weight and bias of the layer. If several ranks hold them, backward sums the gradients."""
        both = linear.weight, linear.bias
        if self.same is None:
            return both
        return [
            parameter if parameter is None else identity_all_reduce(parameter, self.same)
            for parameter in both
        ]
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: grouped queries</summary>The layers key and value have kv_heads · head_dim output
# features. <code>causal_attention</code> accepts keys and values with fewer heads than the queries, so you
# don't have to repeat them.</details>
# <details><summary>Hint: a head that several ranks hold</summary>With <code>same, across = grid(N //
# kv_heads, group)</code>, key and value are <code>ColumnParallelLinear(..., group=across)</code>. In forward,
# apply <code>identity_all_reduce(weight, same)</code> to the weights of both layers, and do likewise with
# their biases. A parameter that several ranks use is a value like any other, so its gradients must be added
# up.</details>
#
# **Check the full attention.**

# %% nbgrader={"grade_id": "parallel_self_attention_check", "points": 0}
# Extra credit, 4 points
report = check("06_tensor_parallel/parallel_self_attention", ParallelSelfAttention)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/parallel_self_attention", ParallelSelfAttention, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>In production</summary>Llama 3 70B has 64 query heads, but only 8 key-value heads. On
# eight ranks, each rank has one key-value head, so no head needs copies, and attention is simple.</details>
#
# <details><summary>In the lectures</summary>Lecture 004 calls attention "much simpler" than the MLP. This is
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
# vocabulary, whereas a place in the text is a *position*.) Llama 3's vocabulary has 128,256 tokens. At a
# width of 8,192, the embedding takes 2.1 GB in bf16, and so does the *head*, the matrix that computes the
# logits. A microbatch of 8,192 positions has 8,192 × 128,256 logits, which take 4.2 GB in float32, and their
# gradient takes another 4.2 GB. So let's cut the vocabulary.
#
# **The embedding** is a table with a row for each token. Each rank holds some neighbouring rows. If the row
# of a token is on another rank, a rank returns zeros instead, so the sum over the ranks is the row of the
# token. In other words, the cut embedding is a row-parallel layer (§3) whose input at each position has a one
# for the token and zeros for all other tokens.
#
# **Predict.** How many bytes does a rank send for the embedding, forward and backward?
#
# <details><summary>Answer</summary>Forward makes one all-reduce of M bytes, so each rank sends 2 (N−1)/N · M
# bytes. Backward sends nothing, because every rank already has the gradient of the sum, and passes it on to
# its own rows.</details>
#
# **Build.** As in §2, keep the rank's rows of `whole` as the parameter `weight`. `local_index` says which
# tokens have their rows on this rank, and at which index.


# %%
def local_index(tokens, vocab_size, group: Group = None):
    """(index, here), in the shape of `tokens`: the index of each token in this rank's part of the
    vocabulary, and whether it is in this part. The index is 0 for a token of another rank."""
    own = part(torch.arange(vocab_size, device=tokens.device), 0, group)
    here = (tokens >= own[0]) & (tokens <= own[-1])
    return (tokens - own[0]).where(here, 0), here


# %% nbgrader={"grade_id": "vocab_parallel_embedding", "solution": true}
class VocabParallelEmbedding(nn.Module):
    """nn.Embedding whose rows are cut over the ranks of `group`.

    forward takes tokens (...), the same on all ranks, and returns (..., embedding_dim), replicated.
    N does not have to divide num_embeddings. Sends 2 (N-1)/N of the output forward, and nothing
    backward.
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
# <details><summary>Hint: tokens of other ranks</summary>For these tokens, <code>local_index</code> returns
# the index 0, so you look up row 0. Then replace the result by zeros, with <code>masked_fill(~here[...,
# None], 0)</code>.</details>
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
# its part of the vocabulary. You could gather all logits, but they are the largest tensor of the model. What
# does the loss really need? For a position with the logits l₀, l₁, ..., the formula is
#
# > loss = log(exp(l₀) + exp(l₁) + ...) − l_target
#
# Each rank can sum the exponentials of its own logits. If you add up these sums over the ranks, you get the
# sum in the formula. The logit of the target is on only *one* rank. Since exp(1,000) overflows, the largest
# logit m is subtracted first: log Σ exp(l) = m + log Σ exp(l − m). So for each position, the ranks have to
# share three numbers, which are the largest logit, the sum of exponentials, and the logit of the target.
# Since the value of the loss does not depend on m, you don't need a gradient for m.
#
# **Predict.** If there are targets at `tokens` positions, how many bytes does each of n ranks send for the
# loss, in float32? §8 checks your formula.


# %% nbgrader={"grade_id": "loss_bytes_sent", "solution": true}
def loss_bytes_sent(n: int, tokens: int) -> float:
    """Bytes each of n ranks sends for the loss of `tokens` targets, in forward and backward."""
    ### BEGIN SOLUTION
    return 2 * (n - 1) / n * 3 * 4 * tokens
    ### END SOLUTION


# %% [markdown]
# **Build.**
#
# - `logits` has the shape (..., size of this rank's part of the vocabulary). The vocabulary is cut as `part`
#   does. `target` has the shape (...). It contains tokens of the whole vocabulary and is the same on all
#   ranks. `vocab_size` is the size of the whole vocabulary.
# - Return the mean loss over the targets that are not `ignore_index` (True in the given `counts`). Every
#   rank returns the same mean, in the dtype that the first line gives the logits. Do not change `logits`.
# - The tensors kept for backward may be as large as the rank's own logits, but not as large as the logits of
#   all ranks.
# - The ranks communicate at most three numbers for each target in forward, and nothing in backward.
#
# What is the gradient of the loss with respect to a logit, and does a rank have everything it needs to
# compute this gradient?
#
# <details><summary>Answer</summary>For the loss of one position, the gradient is softmax − 1 for the logit of
# the target, and softmax for all other logits. (The mean divides this by the number of targets.) The softmax
# of a logit l is exp(l − m) / S, where S is the sum of exponentials. So a rank has everything it needs,
# because every rank has m and S from forward.</details>


# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
def vocab_parallel_cross_entropy(
    logits, target, group: Group = None, *, vocab_size: int, ignore_index: int = -100
):
    """F.cross_entropy of logits whose last dimension, the vocabulary, is cut over the ranks."""
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
# and so are the logits of the targets, if a rank that does not have the target uses 0 instead.
# <code>all_reduce_identity</code> adds up the terms, and autograd does the rest.</details>
# <details><summary>Hint: the largest</summary>Call <code>largest = logits.detach().amax(-1)</code>, then
# <code>dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)</code>. Autograd sees neither of these calls,
# which is right because the largest logit needs no gradient.</details>
# <details><summary>Hint: the target's logit</summary><code>local_index(target, vocab_size, group)</code>
# returns the index of each target on this rank. Look up the logit at this index with <code>gather</code>
# along the last dimension, and then replace it by 0 if the target is on another rank.</details>
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
    # The whole logits are drawn only to be cut, before `costs` begins to count.
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
            f"{name:8} loss {loss:.4f}, one process {expected:.4f}; peak memory {peak:.0f} MiB;",
            end=" ",
        )
        print(f"sent {run.ledger.bytes_sent(0):,} bytes")
print("predicted for yours:", said(loss_bytes_sent, 4, 512), "bytes")

# %% [markdown]
# With your loss, a rank sends less than a thousandth of the bytes that gathering sends. It also never holds
# the logits of the whole vocabulary, which take 512 × 8,192 × 4 bytes = 16 MiB.
#
# <details><summary>What happens if every rank takes a softmax of its own tokens? And if the largest logit is
# not subtracted?</summary>If every rank takes the softmax over only its own tokens, the loss is too small,
# because the tokens of one rank do not compete with the tokens of another. If the logits are small, the loss
# is too small by about log N, which is 1.4 on 4 ranks. If the logits are large and the prediction is wrong,
# it is too small by much more. So training looks <i>better</i> than it is. If the largest logit is not
# subtracted, the loss is right until a logit exceeds 88, because its exponential then overflows in
# float32.</details>
#
# <details><summary>In production</summary>In PyTorch the loss is <code>F.cross_entropy</code> itself, inside
# the context <code>with loss_parallel(): ...</code>, and the head is cut by
# <code>ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)</code>. Megatron-LM's loss is a
# <code>torch.autograd.Function</code>, which writes the exponentials into the memory of the logits and keeps
# little else. Megatron-LM also pads the vocabulary to a multiple of 128 · N, with tokens that never occur.
# For example, 50,257 tokens become 51,200 on 8 ranks.</details>


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
# What is not divided yet? The residual stream and the inputs of norms and regions are still replicated, so
# between the regions, all ranks do the same work. A norm needs all features of a token, so you can't shard
# the features there. But a norm does not need other tokens, so let's shard the **sequence** between the
# regions. Then each rank has s / N of the s positions.
#
# An all-reduce is a reduce-scatter and then an all-gather (notebook 02), so let the norm work between these
# two:
#
#     tensor parallel      ... B | all-reduce     | norm of everything             | A ...
#     sequence parallel    ... B | reduce-scatter | norm of a part    | all-gather | A ...
#
# | | forward | backward |
# |---|---|---|
# | into a region: `all_gather_reduce_scatter` | all-gather | reduce-scatter |
# | out of it: `reduce_scatter_all_gather` | reduce-scatter | all-gather |
#
# For each region and each direction, the two functions together send two halves of an all-reduce, which is as
# much as without sequence parallelism. In addition, the ranks only have to sum the gradients of norms and
# biases, which are small tensors.
#
# The weight and the bias of a norm are replicated, but each rank uses them on different tokens. Therefore,
# they are also *values that are used on N ranks*, and their gradient is the sum over the ranks.
#
# **Build.**
#
# - Both new functions communicate, so you have to say what their backward does. `Conjugate` (§2) takes
#   forward and backward as functions.
# - `dim` is the dimension of the sequence, which is -2 in (batch, seq, width). All parts must be equal. If N
#   does not divide the length of the sequence, raise a ValueError that names both numbers (`summed_part` does
#   so).
# - Neither function may write into its argument.
# - `SequenceParallelNorm(norm)` takes over the `weight`, `bias` and `eps` of an `nn.LayerNorm`. It normalizes
#   the rank's part of the sequence, and the gradients of weight and bias are summed over the ranks.


# %% nbgrader={"grade_id": "sequence_parallel", "solution": true}
def all_gather_reduce_scatter(x, group: Group = None, dim: int = -2):
    """Into a region, from parts of the sequence. Forward: all ranks' parts, joined along `dim`.
    Backward: this rank's part of the sum of all ranks' gradients."""
    ### BEGIN SOLUTION
    return Conjugate.apply(
        x, lambda x: joined(x, dim, group), lambda grad: summed_part(grad, dim, group)
    )
    ### END SOLUTION


def reduce_scatter_all_gather(x, group: Group = None, dim: int = -2):
    """Out of a region, to parts of the sequence. Forward: this rank's part of the sum of all ranks'
    x. Backward: all ranks' gradients, joined along `dim`."""
    ### BEGIN SOLUTION
    return Conjugate.apply(
        x, lambda x: summed_part(x, dim, group), lambda grad: joined(grad, dim, group)
    )
    ### END SOLUTION


class SequenceParallelNorm(nn.Module):
    """An nn.LayerNorm on the rank's part of the sequence. The gradients of its parameters are
    summed over the ranks."""

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
# <code>joined</code> and <code>summed_part</code>. Each of your two functions uses one of these tools in
# forward and the other one in backward.</details>
# <details><summary>Hint: the norm</summary>In §1 you wrote a function that does nothing in forward and sums
# gradients in backward. You can also apply it to parameters.</details>
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
# **Measure.** The cell draws the picture of §4 again, with your two functions at the edges of the region.


# %% tags=["skip-in-grading"]
def sequence_stages():
    """This rank's tensors, from the residual stream before the MLP to the stream after it, in the
    form of `stages`."""
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
# The sequence is sharded outside the region, and the features are sharded inside. The region sends 1 M
# forward and 1 M backward, as in §4. But the picture shows 1.1 M backward, because the ranks also sum the
# gradients of three small parameters (the norm's weight, the norm's bias, and the bias of B).
#
# One choice is left. A linear layer keeps its input for backward, but the input of A is the *gathered*
# sequence. Should the layer keep all of it, as without sequence parallelism? Or should it keep only the
# rank's own part, and gather the sequence again in backward?
#
# | | kept of a region's input | sent backward for each region |
# |---|---|---|
# | `"keep"` | all of it | 2 halves of an all-reduce |
# | `"regather"` | the rank's part | 3 halves |
#
# **Predict** the bytes sent with `"keep"` and with `"regather"`. Your `layer_bytes_sent` of §4 doesn't handle
# these two values of `sequence` yet, so add them there, and run that cell again. How many bytes does a layer
# keep for backward? Count its activations of M bytes. The layer has flash attention, two LayerNorms, and a
# GELU at four times the width, but no dropout. The table leaves out tensors with only a few numbers for each
# position:
#
# | | activations of M bytes |
# |---|---|
# | inputs of the two norms | 2 |
# | inputs of the two regions | 2 |
# | attention: q, k, v, and the output of the heads | 4 |
# | MLP: before the GELU, and after it | 4 + 4 |
#
# Which of these 16 activations are divided by N without sequence parallelism, which with `"keep"`, and which
# with `"regather"`?


# %% nbgrader={"grade_id": "layer_saved_bytes", "solution": true}
def layer_saved_bytes(n: int, nbytes: float, sequence: str | None = None) -> float:
    """Bytes a layer keeps for backward on each of n ranks.

    nbytes: M, the bytes of one whole activation. sequence: None, "keep" or "regather".
    """
    ### BEGIN SOLUTION
    whole = {None: 4, "keep": 2, "regather": 0}[sequence]
    return nbytes * (whole + (16 - whole) / n)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>Some of the 16 activations are replicated, and all others are divided by
# n.</details>
#
# **Measure.** The cell runs the layer of §5 without sequence parallelism (`None`), then with `"keep"`, and
# then with `"regather"`. `GatheredLinear` shows how to keep less than autograd would. The cell after that
# draws how much each part of the layer keeps on 4 ranks, in units of M.


# %% tags=["skip-in-grading"]
class GatheredLinear(torch.autograd.Function):
    """Linear layers applied to a gathered x. Forward keeps only the rank's part of x, and backward
    gathers x again."""

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
    """Apply column-parallel layers to a part of the sequence. Returns their outputs for the whole
    sequence."""
    if sequence == "regather":
        return GatheredLinear.apply(
            x, *(p for linear in linears for p in (linear.weight, linear.bias))
        )
    x = all_gather_reduce_scatter(x)
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def left(y, linear):
    """Apply a row-parallel layer. Returns a part of the sequence, to which each rank adds the bias
    itself."""
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
            kept_nbytes / 65536, row, "o", color=INK, markersize=4, label="measured"
        )
        axes.text(begin + 0.35, row, f"{kept_nbytes / 65536:.2f} M", va="center", fontsize=8)
axes.set_yticks(
    range(4),
    [
        "one process",
        "tensor parallel",
        'sequence parallel, "keep"',
        'sequence parallel, "regather"',
    ],
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
# <details><summary>Why some numbers are a little above the prediction</summary>With sequence parallelism, a
# rank <i>sends more bytes in backward</i> than predicted. Each rank applies the norms, and the biases of the
# two row-parallel layers, only to its own positions. So the ranks also have to sum the gradients of these
# parameters. For this, a rank sends 2,304 bytes in every backward, whatever the size of the batch. In all
# three runs, a rank <i>keeps more for backward</i> than predicted, because a norm also keeps two numbers for
# each position, and attention keeps one for each position and head.</details>
#
# <details><summary>How much memory this saves for GPT-3</summary>You can compute the memory of GPT-3's
# activations in the same way. With 2 bytes per element, the 16 activations you counted take 32 bytes for each
# element of x, the input of the layer. GPT-3 has dropout but no flash attention, so it keeps 34 + 5as/h = 114
# bytes for each element of x (a = 96 heads, s = 2,048 tokens, h = 12,288 features). For one sequence, x has s
# · h = 25 million elements, so a layer keeps 2.9 GB. According to Korthikanti et al. (table 2), 10 of the 34
# bytes are not divided by tensor parallelism, but all 34 are divided if you add sequence parallelism (in the
# form <code>"regather"</code>). So on 8 ranks, tensor parallelism reduces the 114 bytes to 10 + 104/8 = 23
# bytes, or 0.58 GB for the layer. If you add sequence parallelism, only 114/8 = 14.25 bytes are left, or 0.36
# GB.</details>
#
# **Break it.** The cell applies an ordinary `nn.LayerNorm` to the parts of the sequence. Forward is still
# right. But the cell also makes two steps of SGD, and then compares the weight of a norm on all ranks.


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
        print(f"{name:20} after two steps, the ranks' weights differ by at most {apart:.1e}")

# %% [markdown]
# With `nn.LayerNorm`, the copies of the weight drift apart, so the four ranks no longer train the same model.
# Nothing crashes, and no shape is wrong. So whenever the ranks use a *replicated* value for *sharded* work,
# ask which function adds up its gradient.
#
# <details><summary>What about dropout?</summary>For dropout between the regions, the rule from the optional
# end of §5 also holds. On sharded activations, every rank needs its own masks, but on replicated activations,
# all ranks need the same masks. <code>course_lib/tensor_parallel/dropout.py</code> provides both.</details>
#
# <details><summary>In production</summary>PyTorch provides <code>SequenceParallel()</code> for the plan of
# <code>parallelize_module</code> (end of §4), with <code>PrepareModuleInput</code> at the beginning of a
# region and <code>RowwiseParallel(output_layouts=Shard(1))</code> at its end. Megatron-LM provides the option
# <code>--sequence-parallel</code>. Its layers gather x again in backward, while they compute the gradient of
# x.</details>
#
# <details><summary>Another "sequence parallelism"</summary>The "sequence parallelism" of DeepSpeed-Ulysses is
# something else, because it splits no matrix. The sequence is cut everywhere except inside attention, where
# the heads are cut instead. See notebook 08.</details>
#
# <details><summary>In the lectures</summary>Lecture 004 says that sequence parallelism comes "at the cost of
# more comms". This is true of the form <code>"regather"</code>, but hardly of the form
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
# In data parallelism, communication can be hidden behind backward. But here the next operation *has to wait*
# for the sum. (Only in backward can a rank compute something in the meantime, namely the gradients of its
# weights.) So the time of a layer is its computing time plus the time for sending. In the forward of an MLP
# (two matrices, 2 FLOPs per weight and token, activations of 2 bytes per element), each rank has to compute
# and send this much:
#
# > computing: 4 · tokens · width · hidden / N FLOPs; sending: 2 (N−1)/N · tokens · width · 2 bytes
#
# If you divide the FLOPs by the bytes, you get **hidden / (N − 1) FLOPs per byte**. Tokens and width cancel,
# so neither a longer sequence nor a larger batch changes this ratio. More hidden features raise it, and more
# ranks lower it. A GPU also has such a ratio. An H100 computes 989 TFLOP/s and sends 450 GB/s over NVLink
# (each way), which is 2,198 FLOPs per byte. Over a network of 50 GB/s (400 Gb/s, one port for each GPU), the
# ratio is 19,780. If the layer's ratio is above the GPU's ratio, computing takes more than half of the time.
# For example, a whole layer of Llama 3 70B with 4,096 tokens has a ratio of 4,023 on 8 GPUs, which is above
# the ratio of NVLink. On 16 GPUs, its ratio is only 1,877.
#
# The cell draws the time for the forward of this layer, with 4,096 tokens in bf16. Up to 8 GPUs are in one
# node. For more GPUs, the chart has two cases. Either every GPU has its own port of 50 GB/s, and the
# all-reduce sums inside each node before it sums across nodes (notebook 02 §7). Or all GPUs of a node share
# one port, and a single ring of all GPUs runs through it. Each round of a ring also costs α seconds.

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
    """(computing, talking): seconds for the forward of a layer on n GPUs, with 8 GPUs per node."""
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
    text = f"{computing / total:.0%} computing, {rows[0][1][0] / total:.1f} times as fast as 1 GPU"
    axes.text(1e3 * total + 0.08, row, text, va="center", fontsize=8)
axes.set_yticks(range(len(rows)), [name for name, _ in rows])
axes.set(xlim=(0, 10.5), xlabel="ms for the forward of a layer")
axes.legend(frameon=False, fontsize=8, loc="center right")
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# Inside the node, the layer still gets faster with every doubling of the GPUs, but by less each time. If each
# GPU has a port, sixteen GPUs in two nodes are hardly faster than eight in one, so you pay for twice as many
# GPUs and gain almost nothing. If a node has only one port, sixteen GPUs even take four times as long as
# eight. So use as much tensor parallelism as you need to fit the model into memory, but never beyond one
# node. Give the other GPUs other sequences (data parallelism), other layers (pipelines) or other parts of the
# sequence (notebook 08).
#
# <details><summary>How many sequences does a GPU get?</summary>Ranks that share a layer also work on the same
# sequences. If 8 GPUs share a model, 64 GPUs hold 8 replicas. In a step of 2,048 sequences, each
# <i>replica</i> then gets 256 sequences. Without tensor parallelism, each GPU would get 32.</details>
# <details><summary>Where the numbers come from</summary>α is 3.4 µs over NVLink and 14 µs over a network, as
# in NCCL's own cost model (<code>course_lib/facts/hardware.py</code>). FLOP/s and bytes/s are taken from the
# data sheets, although no program reaches them. The ratio of the whole layer differs a little from hidden /
# (N − 1), because the layer also has attention, and its MLP has three matrices.</details>
# <details><summary>In the lectures</summary>Lecture 004 shows how much speed is lost from 8 to 16 GPUs.
# Lecture 003 says that tensor parallelism is "only applied to GPUs in the same computing node". The recipe of
# lecture 001 has 32 sequences per GPU, and lecture 002 computes the number of sequences in a step as batch ×
# world size. With tensor parallelism, however, this number is the batch of a replica × the number of
# replicas.</details>

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
# Take the GPT of `course_lib/models/gpt.py` and replace the layers of its MLPs with your parallel layers.
# Change nothing else in the model.
#
# **Build.** `model.blocks` is a list of blocks. Each `block.mlp` has the layers `up`, `down` and `gate`,
# which are `nn.Linear`. (`gate` is None if the MLP has no gate.) *Keep the weights of these layers*, although
# the constructors of your layers draw new ones. `with_weights` copies the rank's parts of the old weights
# into a parallel layer. Change the model in place and return it.
#
# **Predict.** How many all-reduces does this model need per step, with L blocks?
#
# <details><summary>Answer</summary>It needs one all-reduce of M bytes for each block and direction, so 2 L in
# total. If the MLPs have a gate, x enters both gate and up, so backward needs two all-reduces for each block
# (see <code>Gated</code> in §4). That makes 3 L in total. Nothing is sent for attention, norms and embedding,
# because every rank has all of their parameters and computes the same results with them.</details>


# %%
@torch.no_grad()
def with_weights(parallel, whole, group: Group = None):
    """Copy this rank's parts of the parameters of `whole` into `parallel`, and return `parallel`.

    A parameter is cut only if the shapes differ.
    """
    for name, own in parallel.named_parameters():
        full = whole.get_parameter(name)
        for dim in range(full.dim()):
            if own.shape[dim] != full.shape[dim]:
                full = part(full, dim, group)
        own.copy_(full)
    return parallel.to(full.device)


# %% nbgrader={"grade_id": "swap", "solution": true}
def parallelize_mlps(model, group: Group = None):
    """Replace the layers of every block's MLP by parallel layers with the same weights. Returns the
    model."""
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
# <details><summary>Hint</summary>For each old layer, make a new one of the same sizes, with a bias if the old
# one has a bias (<code>bias is not None</code>). Then call <code>with_weights(new, old, group)</code>, and
# replace the old layer with the result.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "swap_check", "points": 0}
# Extra credit, 3 points
report = check("06_tensor_parallel/swap", parallelize_mlps)
### BEGIN HIDDEN TESTS
report = check("06_tensor_parallel/swap", parallelize_mlps, cases="hidden")
### END HIDDEN TESTS

# %% [markdown]
# **Measure.** The cells train a GPT of 0.1M parameters on the source code of Python's standard library, with
# 50 steps of AdamW. They train it on one rank, then with its MLPs cut over two and over four ranks, and
# finally on four ranks with your attention, embedding, head and loss as well. All ranks get the same batches.
# The head is tied to the embedding, so on each rank, their parts are the same tensor.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
CONFIG = PRESETS["0.1M"]


def learn(change, loss_of=next_token_loss, steps=50):
    """Train a GPT changed by `change`, and return the loss of each step."""
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
    """An attention for a GPT's block. It ignores the positions that the block passes, because the
    embedding has already added them."""

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
    print(
        f"{name:22} last loss {losses[-1]:.4f}; losses differ from one rank by at most {apart:.0e}"
    )
    axes.plot(losses, dashes, label=name, color=colour)
axes.set(xlabel="step", ylabel="loss, nats per byte")
axes.grid(True, alpha=0.3)
axes.legend(frameon=False, fontsize=8, handlelength=3)
figure

# %% [markdown]
# The four curves coincide. The small differences come from rounding, because the ranks add float32 numbers in
# a different order.
#
# **Break it.** Put `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` into the loop of `learn`. Which
# norm does it compute?
#
# <details><summary>Answer</summary>On each rank, the function computes the norm of the gradients on this
# rank, which differs from rank to rank. So each rank scales its gradients by a different factor, and the
# replicated parameters drift apart. For the right norm, the squares of the sharded gradients have to be
# summed over the ranks, whereas the squares of the replicated gradients must be counted only once.</details>
#
# <details><summary>In production</summary><code>course_lib.tensor_parallel.parallelize_gpt(model,
# sequence="regather")</code> does what <code>all_of_it</code> does above, but with sequence parallelism and
# for every form of the model, including grouped queries, SwiGLU, rotary positions and dropout. You can also
# load its state dicts on a different number of ranks.</details>
#
# <details><summary>In the lectures</summary>This is the exercise of lecture 004, but its model is nanoGPT's
# <code>model.py</code>.</details>

# %% [markdown]
# ## On your GPUs
#
# *This section has no points. With GPUs it takes a few minutes. Without them, the cells show a recorded run,
# if there is one.*
#
# **Predict.** With tensor parallelism on t GPUs, each GPU has 1/t of the columns, and therefore 1/t of the
# FLOPs. Does it also need only 1/t of the time? The cell runs one GPU's part of an MLP for several values of
# t, without messages. Its prediction is the time of the whole layer divided by t.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.arithmetic import LAYER_AND_MESSAGES, NARROW_LAYERS

on_gpus = on_your_gpus(NARROW_LAYERS, predicted=lambda of, run: run.rows[0].value / of["t"])
# %% [markdown]
# A GPU multiplies narrow matrices less efficiently, and operations on the whole width take as long as on one
# GPU. This lost time comes on top of the time for messages in §8.
#
# **Predict.** Now let's add the messages, for an MLP of width 4,096 with 4,096 tokens, cut over all your
# GPUs. Nothing hides its two all-reduces, so the prediction is the sum of the first two rows (products and
# all-reduces). What share of the time is communication? Compare this share with §8. Then set
# `NCCL_P2P_DISABLE=1` with `%env` and run the cell again, to measure the MLP without direct access between
# the GPUs. (On cards without peer-to-peer, such as the RTX 4090, nothing changes.) Set the variable back to 0
# afterwards.

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
# A number can be an expression, such as `7 / 8`.
#
# 1. A transformer layer is split by tensor parallelism, without sequence parallelism. How many
#    **all-reduces** do forward and backward of the layer make together?
# 2. In forward, a transformer layer of width 8,192 computes 24 · width² FLOPs for each of 4,096 tokens, in
#    bf16. The layer is split over 16 H100 GPUs (989 TFLOP/s each) in two nodes, and its ring all-reduces run
#    at 50 GB/s, the speed between the nodes. Leave out α. What **share** (0 to 1) of the time of forward is
#    communication?
# 3. In the MLP gelu(x A) B, A is cut by rows, and every rank has all of B. Why can't the sum wait until after
#    B? Is it because of `"the activation function"`, `"the bias"` or `"the size of the weights"`?
# 4. On eight ranks, an MLP ends with `torch.distributed.nn.functional.all_reduce` instead of
#    `all_reduce_identity`. How many **times** too large are the gradients of the MLP's matrices?
# 5. How many **times** as many bytes does a layer send with `"regather"` as without sequence parallelism, in
#    forward and backward together? Leave out the gradients of norms and biases.

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
# *parameters*. With replicas and with ZeRO-3, each rank gets one sequence, whereas ranks that share layers
# get all four. The row *tensor parallel* uses your functions, and appears only if you have solved §9. All
# other rows use the reference.


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
    """A row of the card, with the bytes sent after the last barrier."""
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
# *Computation* is almost the same in all rows, but replicas compute a little more, because each of them makes
# the optimizer's step for all parameters. *Memory* is 4 M for a replica, which holds all weights, gradients,
# m and v. With ZeRO-3, a rank holds only a quarter of these at the end of the step. With tensor parallelism,
# it also holds a quarter, and never gathers a whole layer. The *bytes sent* are 2 (N−1)/N · M for a replica
# and 3 (N−1)/N · M for a rank of ZeRO-3, however many tokens there are, because both send *parameters* or
# their gradients. Instead, tensor parallelism sends *activations*, which are small for these 128 tokens.
#
# <details><summary>Where the 1.03, the 1.01 and the 1.2 M come from, and a larger model</summary>Each of the
# four replicas makes the optimizer's step for all parameters, so together the replicas compute 1.03 times as
# much as one process. With the other methods, the ranks share this step. The 1.01 of ZeRO-3 comes mostly from
# additions, because every rank of the reference adds its gradients to rows (flat buffers, notebook 04). (The
# card does not count norms and activation functions, so it does not show that, without sequence parallelism,
# every rank computes all norms.) The memory of ZeRO-3 reaches its peak of 1.2 M in backward, before m and v
# exist. At this time, the rank holds its shards of weights and gradients, plus three pieces of 0.24 M each:
# the current layer's weights, their gradients, and the row in which the gradients are sent. Tensor
# parallelism sends only 0.27 M. With 5 or 6 times as many tokens, it would send as much as the replicas, 1.5
# M, but it could hide little of this traffic behind computation. For comparison, the parameters of a layer of
# Llama 3 70B take 1.7 GB in bf16, whereas one activation of 4,096 tokens takes 67 MB.</details>
#
# **You have built** tensor parallelism, with both ends of the model and both forms of sequence parallelism.
# You can now say how many bytes each layer sends in each direction, and up to how many ranks tensor
# parallelism pays off.
#
# **Read on.**
# - Shoeybi et al. (2019), *Megatron-LM*. §3 explains f and g, with a figure of both.
# - Korthikanti et al. (2022), *Reducing Activation Recomputation in Large Transformer Models*. §4 explains
#   sequence parallelism, and table 2 lists the memory of activations.
# - Narayanan et al. (2021), *Efficient Large-Scale Language Model Training on GPU Clusters*. §5 measures
#   tensor parallelism inside the node.
# - Ainslie et al. (2023), *GQA*, introduces grouped queries.
# - `course_lib/tensor_parallel/` is the reference. Read it after you have written your own functions.
#
# <details><summary>In the lectures</summary>Lecture 003 uses the same three criteria (computation, memory,
# bytes sent). Lecture 004 recommends fairscale's layers (<code>nn/model_parallel/layers.py</code>), whose
# arguments have the same names as yours. But by default they gather the output and split the input.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started.
# In a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("06_tensor_parallel")
