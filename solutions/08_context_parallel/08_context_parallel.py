# %% [markdown]
# # 08 · Context parallelism
#
# **How does attention work on a sequence that no rank holds?**
#
# Except for attention, every layer of a transformer looks at one token at a time. So a sequence can be dealt
# out to ranks, as a batch is in data parallelism. Only attention needs data from other ranks, because every
# query is compared with every earlier key, whichever rank holds that key.
#
# This notebook begins on one rank, with the algorithm inside FlashAttention, which never stores the N×N
# matrix of attention scores. The algorithm works because a softmax can be computed in pieces, which are then
# put together. The same idea works across ranks, because a piece can also come from another rank.
#
# | | |
# |---|---|
# | you will build | the online softmax; attention in tiles, forward and backward; ring attention; zigzag, which gives all ranks equal work under a causal mask; Ulysses |
# | you need | from notebook 02: all-to-all, and `batch_isend_irecv`; `torch.autograd.Function`; softmax(q kᵀ / √d) v |
# | time | three hours, with a break after §3; the *optional* parts (§6 with 9 of the points, §8, and §9) take half an hour more |
# | points | 60 |
# | on a rented machine | nothing to rent, because two cores are enough. On several GPUs the same code runs over NCCL, and the section *On your GPUs* shows what only GPUs can show |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 Why another axis | 5 | | notebooks 04, 06, 07 |
# | 2 A softmax in pieces | 20 | 7 | |
# | 3 Attention in tiles | 45 | 12 | 2 |
# | 4 The ring, forward and backward | 75 | 8 + 7 | 2, 3 |
# | 5 Who idles | 15 | 5 | 4 |
# | 6 Ulysses: tokens for heads *(optional)* | 20 | 9 | 3 |
# | 7 When messages hide, and what you predicted | 15 | 7 | 4 to 6 |
# | 8 How long a sequence fits *(optional)* | 5 | | 3, 4 |
# | 9 PyTorch's version *(optional)* | 5 | | 4 |
# | 10 Questions | 5 | 5 | all |

# %% [markdown]
# ### Words and letters
#
# | | |
# |---|---|
# | N | the number of ranks that share a sequence; in code `n` |
# | N×N | the matrix of scores between all pairs of tokens. In this name N counts *tokens*, so the matrix is `seq` × `seq` |
# | c | the number of tokens one rank holds |
# | s, h, a, b | in the formulas of §1, §6 and §8: tokens, width, heads, sequences in a batch (Korthikanti et al. 2022). In §2 and §3, s is a score, and in §3 p is the softmax of the scores |
# | q, k, v | tensors of shape (batch, seq, heads, head_dim). k and v can have fewer heads, `kv_heads`. In formulas, d is head_dim |
# | lse | one number for each query and head: log Σ exp(its scores) |
# | block | either a rank's keys and values, or the scores of some queries with some keys. A *tile* (§3) is a block of a chosen size |
# | layout | for each rank, the positions it holds, as a list of ranges (*spans*) |
# | contiguous | the layout in which rank 0 has the first tokens, rank 1 the next ones, and so on |

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.patches import Patch, Rectangle
from torch.autograd.graph import saved_tensors_hooks

from course_lib import RankError, check, device, launch, synchronize
from course_lib.context_parallel import contiguous, deal, striped
from course_lib.context_parallel.layouts import chunks, without_empty
from course_lib.data import batch, library_text
from course_lib.models import GPT, PRESETS, GPTConfig, next_token_loss
from course_lib.pictures.colours import FORWARD, INK, QUIET, RANKS, picture
from course_lib.scorecard import Row, Scorecard, costs
from course_lib.unfinished import ready, try_it

Group = dist.ProcessGroup | None  # None is the group of all ranks

# %% [markdown]
# In the next cell, `full_attention` stores the N×N matrix, and all other versions are compared with its
# results. `drawn` makes random q, k, v and a random gradient of the output, which are the same on every rank.
# `try_it` runs code that might fail, and then prints why.


# %%
def full_attention(q, k, v, causal=False):
    """Return softmax(q k^T / sqrt(head_dim)) v, in q's shape, from the whole matrix of scores."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def drawn(seq, heads=4, kv_heads=2, head_dim=16, dtype=torch.float64):
    """Draw q, k, v and a gradient of the output, with the same values on every rank."""
    generator = torch.Generator().manual_seed(seq)
    sizes = (heads, kv_heads, kv_heads, heads)
    made = [torch.randn(1, seq, size, head_dim, generator=generator, dtype=dtype) for size in sizes]
    return [x.to(device()) for x in made]


def gradients(attend, *tensors, **options):
    """Return the output of attend(q, k, v) and the gradients of q, k and v.

    tensors: q, k, v, and the gradient of the output.
    """
    *inputs, grad = tensors
    q, k, v = (x.detach().clone().requires_grad_() for x in inputs)
    out = attend(q, k, v, **options)
    out.backward(grad)
    return [out.detach(), q.grad, k.grad, v.grad]


def furthest(computed, exact):
    """Return the largest difference in any tensor, over the largest magnitude of this tensor."""
    pairs = zip(computed, exact, strict=True)
    return max(float((got_now - two).abs().max() / two.abs().max()) for got_now, two in pairs)


def said(prediction, *args, form=",.0f"):
    """Return the result of your prediction as text."""
    try:
        number = prediction(*args)
    except (NotImplementedError, KeyError):
        return "?"
    return format(number, form) if isinstance(number, int | float) else f"{number}, not a number"


# %% [markdown]
# ## 1 · Why another axis
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | notebooks 04, 06, 07 |
# | time | 5 minutes |
#
# A layer keeps about s·b·h·(34 + 5as/h) bytes of activations for backward, in 16 bits (Korthikanti et al.
# 2022, table 2). The second term, 5·a·b·s², counts the scores, their softmax and dropout. Only this term
# grows with the *square* of the sequence length. Llama 3 70B has h = 8,192 and a = 64. The cell prints both
# terms for one sequence and one layer, before anything is sharded:

# %% tags=["skip-in-grading"]
WIDTH, HEADS, LAYERS = 8192, 64, 80
print("  tokens   34 s b h    5 a s² b   GB per layer")
for seq in (4096, 32768, 131072, 1048576):
    print(f"{seq:8,}{34 * seq * WIDTH / 1e9:11,.1f}{5 * HEADS * seq**2 / 1e9:12,.1f}")

# %% [markdown]
# FlashAttention, which you build in §3, removes the second term, because it computes the scores again in
# backward instead of keeping them. But the first term stays. At 131,072 tokens, the context of Llama 3, this
# term is 36.5 GB in each of 80 layers. How much do the axes from earlier notebooks help?
#
# | axis | what it does to one long sequence |
# |---|---|
# | data parallelism, ZeRO | They do nothing, because each rank still has at least one whole sequence |
# | tensor and sequence parallelism, t = 8 | They leave each GPU an eighth, which is 4.6 GB for each layer and 365 GB for all 80 layers. A group of more than 8 ranks does not fit into one node, and it has more ranks than the model has heads of keys (8 in Llama 3 70B) |
# | pipeline, 1F1B | It does nothing. With p stages, rank 0 has 1/p of the layers, but keeps their activations for p microbatches at the same time (notebook 07) |
# | recomputing everything | It leaves 2·s·b·h bytes for each layer. With t = 8, that is 21 GB for 80 layers, and 4.6 GB more for the layer that is being recomputed. This fits if a GPU has 40 GB left for activations, but it costs a third more computing. Eight times as many tokens would not fit |
#
# Time is another reason for a new axis. A batch has a fixed number of *tokens*. For example, 16.8 million
# tokens make only 128 sequences of 131,072, so at most 128 replicas have work. Llama 3 405B was trained for
# its long context on 16,384 GPUs: 8 for tensor parallelism × 16 for the **context** × 16 for the pipeline × 8
# replicas (Llama 3, table 4). Sharing a sequence among 16 ranks cuts each rank's activations, and also the
# time for a sequence.
#
# <details><summary>In the lectures</summary>Lecture 001 says of FlashAttention: "O(N) instead of O(N²)",
# where N counts tokens. That is right for memory, but computation is still O(N²).</details>

# %% [markdown]
# ## 2 · A softmax in pieces
#
# | | |
# |---|---|
# | you will write | `online_softmax_merge(out, lse, block_out, block_lse)` |
# | builds on | nothing |
# | time | 20 minutes |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 7 |
#
# Softmax divides by a sum over all keys, so it seems to need all keys at the same time. Take one query that
# has the scores s₁, s₂, ... with keys whose values are v₁, v₂, ...:
#
# > Z = Σ exp(sⱼ) and out = Σ exp(sⱼ) vⱼ / Z
#
# Now cut the keys into two parts A and B, and compute attention to each part separately. You get out_A and
# out_B, each divided by its own sum, Z_A or Z_B. If you keep these sums, you can undo the division:
#
# > Z = Z_A + Z_B and out = (Z_A · out_A + Z_B · out_B) / Z
#
# So out is an average of out_A and out_B, weighted by Z_A and Z_B. For example, Z_A = 1, out_A = 4 and Z_B =
# 3, out_B = 8 give (4+24)/4, which is 7. The result is again a pair (out, Z), so you can merge further parts
# into it, in any order.
#
# Sums of exponentials overflow quickly, since exp(89) is already infinite in float32. So instead of Z, keep
# its logarithm, **lse** = log Z ("log-sum-exp"). Then compute w_A, the weight of out_A, from a difference:
#
# > w_A = Z_A / (Z_A + Z_B) = 1 / (1 + exp(lse_B − lse_A)) = sigmoid(lse_A − lse_B)
#
# The helper `block_attention` computes attention of some queries to only some keys, and returns out and lse.
# You will also use it in §3 and §4, so read it. Its arguments `queries` and `keys` are ranges of positions in
# the *whole* sequence, so that `scores_of` can mask keys that come after a query. `by_head` turns all queries
# that share a head of keys into rows of one matrix, and `by_token` undoes this. `SEEN` records the ranges of
# each call, for the pictures below.


# %%
SEEN = []  # (began, ended, queries, keys) of each call of block_attention


def by_head(x, kv_heads):
    """Turn (batch, tokens, heads, d) into (batch, kv_heads, heads / kv_heads * tokens, d)."""
    return x.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def by_token(x, tokens):
    """Undo `by_head`, and return (batch, tokens, heads, d)."""
    return x.unflatten(2, (-1, tokens)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def scores_of(q, k, queries, keys, causal):
    """Return q k^T / sqrt(head_dim), in at least float32.

    The shape is (batch, kv_heads, heads / kv_heads * queries, keys). queries, keys: ranges, the
    positions of the tokens of q and k in the sequence. If a mask hides a key, the score is -inf.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k = (by_head(x.to(dtype), k.shape[2]) for x in (q, k))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if causal and queries[0] < keys[-1]:
        at, of = (torch.tensor(span, device=q.device) for span in (queries, keys))
        scores.unflatten(2, (-1, len(queries))).masked_fill_(at[:, None] < of, -torch.inf)
    return scores


def block_attention(q, k, v, queries, keys, causal=False):
    """Return (out, lse) of attention to only these keys.

    out: (batch, tokens, heads, head_dim). lse: (batch, tokens, heads). If a query sees none of the
    keys, its out is 0 and its lse is -inf.
    """
    began = time.perf_counter()
    scores = scores_of(q, k, queries, keys, causal)
    lse = scores.logsumexp(-1, keepdim=True)
    p = (scores - lse.clamp_min(torch.finfo(lse.dtype).min)).exp()
    out = p @ by_head(v.to(p.dtype), v.shape[2])
    SEEN.append((began, time.perf_counter(), queries, keys))
    return by_token(out, len(queries)), by_token(lse, len(queries))[..., 0]


# %% [markdown]
# **Predict.** Three keys have the scores 0, 0 and log 2, and the values 1, 2 and 8. What are out and lse for
# the first two keys, for the third key, and for all three?
#
# <details><summary>Answer</summary>The first two keys give Z = 2, out = 1.5 and lse = log 2. The third key
# gives Z = 2, out = 8 and lse = log 2. All three together give Z = 4, out = (3 + 16) / 4 = 4.75 and lse = log
# 4.</details>
#
# **Build.** Look out for three things:
#
# - `lse` lacks the last dimension of `out`, the features, so a weight made from `lse` needs `[..., None]`.
# - Do not take `exp` of an lse, because it can overflow. Take differences first, or use `torch.logaddexp`.
# - A block that a mask hides completely has lse = −inf and must get the weight 0. But −inf − (−inf) is nan,
#   and in *backward* a nan times a gradient of 0 is still nan. So replace −inf with the lowest finite number
#   *before* you subtract: `lse.clamp_min(torch.finfo(lse.dtype).min)`. If a query sees no key of either part,
#   set its lse back to −inf at the end.


# %% nbgrader={"grade_id": "online_softmax_merge", "solution": true}
def online_softmax_merge(out, lse, block_out, block_lse):
    """Return (out, lse) of attention to the keys of both parts, as new tensors.

    out, block_out: attention to the keys of each part, (..., head_dim). lse, block_lse: (...), the
    log of the sum of exp(score) over the part's keys. If a query sees no key of a part, the part's
    lse is -inf and its out is 0. Gradients reach all four tensors. They are 0 for a part with no
    seen key, finite if neither part has a seen key, and never nan.
    """
    ### BEGIN SOLUTION
    lowest = torch.finfo(lse.dtype).min  # instead of -inf, so that differences stay numbers
    old, new = lse.clamp_min(lowest), block_lse.clamp_min(lowest)
    out = (old - new).sigmoid()[..., None] * out + (new - old).sigmoid()[..., None] * block_out
    merged = torch.logaddexp(old, new)
    return out, merged.masked_fill(merged <= lowest, -torch.inf)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the weights</summary>Let <code>old</code> and <code>new</code> be <code>lse</code>
# and <code>block_lse</code>, both clamped. Then <code>(old - new).sigmoid()</code> is the weight of
# <code>out</code>, and <code>(new - old).sigmoid()</code> is the weight of <code>block_out</code>, each with
# <code>[..., None]</code>.</details>
# <details><summary>Hint: the new lse</summary>Use <code>torch.logaddexp(old, new)</code>. Wherever the result
# is not above the lowest finite number, set it back to -inf with <code>masked_fill</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "online_softmax_merge_check", "points": 7}
report = check("08_context_parallel/online_softmax_merge", online_softmax_merge)
### BEGIN HIDDEN TESTS
report = check("08_context_parallel/online_softmax_merge", online_softmax_merge, cases="hidden")
### END HIDDEN TESTS
report.points(7)

# %% [markdown]
# **Measure.** The cell merges blocks of three keys in two orders, and compares the results with attention to
# all twelve keys in one piece.


# %% tags=["skip-in-grading"]
def in_blocks(merge, q, k, v, starts, size):
    """Attend to the keys in blocks of `size`, and merge the results in the order of `starts`."""
    parts = [
        block_attention(q, k[:, j : j + size], v[:, j : j + size], range(q.shape[1]), range(j, j + size))
        for j in starts
    ]  # fmt: skip
    out, lse = parts[0]
    for block in parts[1:]:
        out, lse = merge(out, lse, *block)
    return out


q, k, v, _ = drawn(12)
for starts in ((0, 3, 6, 9), (9, 0, 6, 3)) if ready(online_softmax_merge) else ():
    out = in_blocks(online_softmax_merge, q, k, v, starts, 3)
    right = furthest([out], [full_attention(q, k, v)]) < 1e-12
    print(
        f"blocks of keys from {starts}: {'equal' if right else 'NOT equal'} to attention in one piece"
    )

# %% [markdown]
# **Break it.** In the classic mistake, the new block gets the right weight, but the old out is not multiplied
# by its weight. Here all scores are 0 and all values 1, so the output should be 1. What do four blocks of the
# same size give? (The second block gets the weight 1/2, the third 1/3, ...)


# %% tags=["skip-in-grading"]
def not_rescaled(out, lse, block_out, block_lse):
    merged = torch.logaddexp(lse, block_lse)
    return out + (block_lse - merged).exp()[..., None] * block_out, merged


q, ones = torch.zeros(1, 1, 1, 4), torch.ones(1, 12, 1, 4)
for size in (12, 6, 3, 1):
    out = in_blocks(not_rescaled, q, ones, ones, range(0, 12, size), size)
    print(f"{12 // size:2} blocks: {out[0, 0, 0, 0]:.4f}")

# %% [markdown]
# Four blocks give 1 + 1/2 + 1/3 + 1/4 = 2.08. Values that are all 1 are a good test of any attention, because
# the output must then be 1, whatever the scores are.
#
# **In production.** The merge you wrote is part of FlashAttention, ring attention, decoding with a long cache
# (Flash-Decoding), and every other algorithm that computes attention in parts. This is why kernels return
# lse, for example as the second result of `aten::_scaled_dot_product_flash_attention`.

# %% [markdown]
# ## 3 · Attention in tiles
#
# | | |
# |---|---|
# | you will write | `tiled_attention(q, k, v, block=256, causal=False)`, forward and backward |
# | builds on | §2 |
# | time | 45 minutes |
# | difficulty, importance | 4 and 4 of 5 |
# | points | 12 |
#
# Suppose one rank has a sequence of 131,072 tokens. Each head then has 17 billion scores, which take 34 GB in
# 16 bits. But with 128 features, the head's q, k, v and out take only 34 MB each. So go through the scores in
# tiles of `block` × `block`. Compute a tile, use it, and discard it.
#
# You already have all you need for *forward*. For each tile of `block` queries, go through all tiles of keys.
# Compute attention to each of them with `block_attention`, and merge the results with `online_softmax_merge`.
#
# *Backward* is the harder half. Autograd would keep every tile, and all tiles together are the N×N matrix.
# Instead, compute the scores **again**. This time lse is known, so p = exp(s − lse) gives the finished
# softmax tile by tile, in any order. The table shows the chain rule. Here g is the gradient of out, dv the
# gradient of v, and so on, and ∘ multiplies element by element:
#
# | from | follows |
# |---|---|
# | out = p v | dv += pᵀ g and dp = g vᵀ |
# | p = softmax(s) | ds = p ∘ (dp − δ), where δ of a query is Σⱼ pⱼ dpⱼ over *all* keys |
# | s = q kᵀ / √d | dq += ds k / √d and dk += dsᵀ q / √d |
#
# You don't need an extra pass over the tiles to compute δ, because Σⱼ pⱼ dpⱼ = Σⱼ pⱼ (g · vⱼ) = g · Σⱼ pⱼ vⱼ
# = **g · out**. So compute δ before the loops, as one number for each query and head (Dao 2023,
# FlashAttention-2, §3.1.2).
#
# **Predict.** How much has to be kept for backward, in units of the size of q (with as many heads of keys as
# of queries)? How many matrix products does a tile need in forward, and how many in backward? Under a causal
# mask, what share of the tiles is needed?
#
# <details><summary>Answer</summary>q, k, v and out are 4 units, and lse is one number for each query and
# head. A tile needs 2 products in forward and 5 in backward (the scores again, dv, dp, dq, dk). So backward
# costs 2.5 times as much as forward, instead of the usual 2. Under a causal mask, a little more than half of
# the tiles are needed, because those above the diagonal are all masked.</details>
#
# **Build.** Write a `torch.autograd.Function` whose forward and backward both have two nested loops, over
# tiles of queries and tiles of keys. Here and in §4 and §6, do not call PyTorch's own attention or
# `torch.compile`.
#
# - For each tile of tokens, `tiles(spans, block)` yields its slice of the tensor and its range of positions
#   in the sequence. Here `spans` is `[range(seq)]`, whereas in §4 a rank can have two spans.
# - Under a causal mask, `queries[-1] < keys[0]` means that no query of the tile sees any of its keys, so skip
#   the tile.
# - Keep sums in at least float32, even for bf16 inputs. Create `out` and the three gradients with calls like
#   `torch.zeros_like(in_float32(q))`, and `lse` in the same dtype. At the end, round `out` and the gradients
#   to the dtype of the inputs, but do not round `lse`.
# - Give only q, k, v, out and lse to `save_for_backward`, and nothing that belongs to a tile.


# %%
def tiles(spans, block=None):
    """Yield the slice of each tile in the tensor, and its range of positions in the sequence.

    spans: ranges of positions, in the order of the tensor. block: the number of tokens in a tile.
    If block is None, each span is one tile.
    """
    before = 0
    for span in spans:
        size = block or len(span)
        for start in range(0, len(span), size):
            tile = span[start : start + size]
            yield slice(before + start, before + start + len(tile)), tile
        before += len(span)


def in_float32(x):
    """Return x in float32, or in its own dtype if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# %% tags=["skip-in-grading"]
for where, positions in tiles([range(10)], block=4):
    print(where, positions)


# %% nbgrader={"grade_id": "tiled_attention", "solution": true}
# Your torch.autograd.Function:
### BEGIN SOLUTION
class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        ctx.tiles = _pairs(q.shape[1], k.shape[1], block, causal)
        out = torch.zeros_like(in_float32(q))
        lse = out.new_full(q.shape[:-1], -torch.inf)
        for rows, columns, queries, keys in ctx.tiles:
            tile = block_attention(q[:, rows], k[:, columns], v[:, columns], queries, keys, causal)
            out[:, rows], lse[:, rows] = online_softmax_merge(out[:, rows], lse[:, rows], *tile)
        ctx.causal = causal
        ctx.save_for_backward(q, k, v, out := out.to(q.dtype), lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        delta = (in_float32(out) * grad).sum(-1)
        dq, dk, dv = (torch.zeros_like(in_float32(x)) for x in (q, k, v))
        for rows, columns, queries, keys in ctx.tiles:
            scores = scores_of(q[:, rows], k[:, columns], queries, keys, ctx.causal)
            tile = (q[:, rows], grad[:, rows], k[:, columns], v[:, columns])
            qt, gt, kt, vt = (by_head(in_float32(x), k.shape[2]) for x in tile)
            lse_tile, delta_tile = (by_head(x[:, rows, :, None], k.shape[2]) for x in (lse, delta))
            p = scores.sub_(lse_tile).exp_()
            ds = (gt @ vt.mT).sub_(delta_tile).mul_(p).mul_(q.shape[-1] ** -0.5)
            dv[:, columns] += by_token(p.mT @ gt, len(keys))
            dk[:, columns] += by_token(ds.mT @ qt, len(keys))
            dq[:, rows] += by_token(ds @ kt, len(queries))
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None


def _pairs(seq, keys, block, causal):
    """Return all pairs of tiles of queries and keys, unless the mask hides all scores of a pair."""
    return [
        (rows, columns, queries, of)
        for rows, queries in tiles([range(seq)], block)
        for columns, of in tiles([range(keys)], block)
        if not causal or queries[-1] >= of[0]
    ]


### END SOLUTION


def tiled_attention(q, k, v, block=256, causal=False):
    """Compute attention on one rank in tiles of block x block scores, forward and backward.

    q: (batch, seq, heads, head_dim). k, v: (batch, seq, kv_heads, head_dim). The result has q's
    shape and dtype. Keep q, k, v, out and lse for backward, but never make an N x N matrix.
    """
    ### BEGIN SOLUTION
    return _TiledAttention.apply(q, k, v, block, causal)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: forward</summary>Fill <code>out</code> with zeros and <code>lse</code> with -inf at
# first, so that merging the first tile into them gives just this tile. Then, for each tile of queries and
# each tile of keys, write <code>out[:, rows], lse[:, rows] = online_softmax_merge(out[:, rows], lse[:, rows],
# *block_attention(...))</code>.</details>
# <details><summary>Hint: shapes in backward</summary><code>scores_of</code> returns scores of shape (batch,
# kv_heads, rows, keys). Bring the tile's q, k, v and gradient into that form with <code>by_head(x,
# kv_heads)</code>, and lse and δ with <code>by_head(lse[:, rows, :, None], kv_heads)</code>. Then you can
# write the lines of the table with <code>@</code> and <code>.mT</code>, and <code>by_token</code> brings the
# results back into the shape of the inputs.</details>
# <details><summary>Hint: the factor</summary><code>scores_of</code> has already divided the scores by √d. But
# dq and dk need the factor 1/√d as well, because the k and q in their products have not been
# divided.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "tiled_attention_check", "points": 12}
report = check("08_context_parallel/tiled_attention", tiled_attention)
### BEGIN HIDDEN TESTS
report = check("08_context_parallel/tiled_attention", tiled_attention, cases="hidden")
### END HIDDEN TESTS
report.points(12)

# %% [markdown]
# **Measure.** The cell runs forward and backward with full attention and with your function. It measures the
# peak memory, without the tensors made by `drawn`.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def peaks(attend, lengths):
    """Return this rank's peak memory in MB, for a sequence of each of these lengths."""
    measured_bytes = []
    for seq in lengths:
        tensors = drawn(seq, 2, 2, 64, torch.float32)
        with costs() as spent:
            gradients(attend, *tensors, causal=True)
        measured_bytes.append(spent.peak_bytes / 1e6)
    return measured_bytes


LENGTHS = (512, 1024, 2048, 4096)
memory = {}
for name, attend in (("full attention", full_attention), ("yours", tiled_attention)):
    run = try_it(peaks, attend, LENGTHS[: 3 if attend is full_attention else 4], world_size=1)
    if run:
        memory[name] = run[0]
        print(f"{name:15}", *(f"{peak:8.1f}" for peak in run[0]), "MB")
figure = picture(5.5, 2.4)
axes = figure.subplots()
for (name, curve), colour, mark in zip(memory.items(), RANKS, "os", strict=False):
    axes.loglog(LENGTHS[: len(curve)], curve, mark + "-", color=colour, label=name, ms=4)
axes.set(xlabel="tokens", ylabel="peak memory, MB")
axes.set_xticks(LENGTHS, [f"{seq:,}" for seq in LENGTHS])
axes.minorticks_off()
axes.grid(True, alpha=0.3)
axes.legend(frameon=False, fontsize=8)
figure if memory else None

# %% [markdown]
# Each time the number of tokens doubles, the peak of full attention grows by a factor that approaches four.
# The peak of your attention does not even double, because the few MB of one tile don't grow.
#
# **Break it.** The cell runs the same loops without your `torch.autograd.Function`. Autograd then derives
# backward by itself, so the gradients are still right. But how much does autograd keep for backward, in units
# of the size of q? There are 512 tokens in tiles of 64, and two heads of 16 features.


# %% tags=["skip-in-grading"]
def kept_bytes(attend, *tensors, **options):
    """Return the bytes a forward keeps for backward, counting each piece of memory once."""
    q, k, v = (x.detach().clone().requires_grad_() for x in tensors[:3])
    alive = {}

    def pack(tensor):
        alive[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        attend(q, k, v, **options)
    return sum(tensor.untyped_storage().nbytes() for tensor in alive.values())


def left_to_autograd(q, k, v, block):
    """Compute tiles and merge them as your forward does."""
    outputs = []
    for rows, queries in tiles([range(q.shape[1])], block):
        out, lse = torch.zeros_like(q[:, rows]), q.new_full(q[:, rows].shape[:-1], -torch.inf)
        for columns, keys in tiles([range(k.shape[1])], block):
            tile = block_attention(q[:, rows], k[:, columns], v[:, columns], queries, keys)
            out, lse = online_softmax_merge(out, lse, *tile)
        outputs.append(out)
    return torch.cat(outputs, dim=1)


tensors = drawn(512, 2, 2, 16)
for name, attend in (("yours", tiled_attention), ("left to autograd", left_to_autograd)):
    if ready(attend):
        nbytes = kept_bytes(attend, *tensors, block=64)
        print(f"{name:17} {nbytes / tensors[0].nbytes:6.1f} units")

# %% [markdown]
# Autograd keeps the N×N matrix, in pieces. The matrix has 512 × 512 elements for each head, and the head's q
# has 512 × 16, so the matrix takes 32 units. For every tile, autograd keeps the scores *and* their
# exponentials, which makes 64 units. (The remaining units are the inputs of each product and merge.) Tiles
# therefore save memory only if backward computes them again.
#
# **In production.** `F.scaled_dot_product_attention` chooses a kernel by device, dtype and shape, and one of
# PyTorch's kernels for CPUs works in tiles. This kernel is fast because a tile fits into the processor's
# caches (on a GPU, into the fast memory of one multiprocessor). The cell compares the kernel with your
# function and full attention, forward and backward, for 2,048 tokens on one thread:


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def sdpa(q, k, v, causal=False):
    """Call PyTorch's attention, which takes (batch, heads, seq, head_dim)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return out.transpose(1, 2)


def compared(attends, seq=2048, repeats=3):
    """Return, for each function, its seconds and its largest difference from the first function."""
    torch.set_num_threads(1)
    tensors, results, measured = drawn(seq, 2, 2, 64, torch.float32), [], []
    for attend in attends:
        taken = []
        for _ in range(repeats):
            began = time.perf_counter()
            results.append(gradients(attend, *tensors, causal=True))
            synchronize()
            taken.append(time.perf_counter() - began)
        measured.append((min(taken), furthest(results[-1], results[0])))
    return measured


run = try_it(compared, [sdpa, tiled_attention, full_attention], world_size=1)
for name, (seconds, apart) in zip(
    ("PyTorch's", "yours", "full"), run[0] if run else (), strict=False
):
    print(f"{name:10} {1e3 * seconds:7.0f} ms, largest difference {apart:.0e}")

# %% [markdown]
# <details><summary>In Hugging Face's Transformers</summary>There you ask for FlashAttention with
# <code>attn_implementation="flash_attention_2"</code>, whereas <code>F.scaled_dot_product_attention</code>
# chooses it by itself.</details>
#
# <details><summary>In the lectures</summary>Lecture 001 says that on a GPU, FlashAttention is 2 to 4 times as
# fast as attention with the matrix.</details>

# %% [markdown]
# ## 4 · The ring
#
# | | |
# |---|---|
# | you will write | `ring_forward(q, k, v, causal=False, group=None, *, layout=None)`; then `ring_attention`, with the same arguments and a backward; your first prediction, `ring_bytes_sent` |
# | builds on | §2; for backward also §3 |
# | time | 75 minutes: 35 for forward, 40 for backward |
# | difficulty, importance | 5 and 5 of 5 |
# | points | 8 for forward, 7 for backward; §7 gives the points for predictions |
#
# Now the sequence is divided among N ranks, with c tokens on each. Every rank's queries need all keys. If the
# ranks gathered the keys, every rank would hold the keys of the whole sequence again. But §2 showed that
# attention can be computed one part of the keys at a time. So the parts travel **around a ring** of ranks. In
# step i, rank r has the keys and values that belong to rank r − i (modulo N). It computes attention of its
# queries to these keys and merges the result. *Meanwhile*, it sends these keys and values to rank r + 1 and
# receives the next ones from rank r − 1. The table shows whose keys each rank has in each step:
#
# | step | rank 0 | rank 1 | rank 2 | rank 3 |
# |---|---|---|---|---|
# | 0 | 0 | 1 | 2 | 3 |
# | 1 | 3 | 0 | 1 | 2 |
# | 2 | 2 | 3 | 0 | 1 |
# | 3 | 1 | 2 | 3 | 0 |
#
# There are N steps, 0 to N − 1, but only N − 1 transfers, because after the last step no rank needs any more
# keys.
#
# **Build forward.** For now, `ring_forward` is a plain function that returns out and lse. A rank must not
# hold more than one block of scores at a time.
#
# - `layout[r]` lists the spans of rank r. There can be one span, as in `[range(0, 4)]`, or two, and a span
#   can skip positions, as in `[range(0, 12, 3)]`. The mask depends on positions in the *whole* sequence, so
#   give `block_attention` ranges of these positions. They come from `tiles(layout[rank])` for queries, and
#   from `tiles(layout[owner])` for keys, where `owner` is the rank that owns this step's keys. If a causal
#   mask hides all scores of a span of queries with a span of keys, skip this pair instead of masking it.
#   Skipped keys still travel on to the next rank.
# - `layout=None` means the contiguous layout: `contiguous(n * q.shape[1], n)`.
# - Ranks can hold different numbers of tokens, so the tensor for arriving keys must have room for all their
#   owner's tokens.
# - Put keys and values into one tensor, `torch.stack((k, v))`, so that they travel as one message. Post the
#   send of this tensor and the receive of the next one together, with `dist.batch_isend_irecv`, *before* you
#   compute the block, and wait for both *after* it. Name peers by their rank in the group:
#   `dist.P2POp(dist.isend, tensor, group=group, group_peer=...)`. Wait for each handle only once, because
#   with gloo a second `wait` on the handle of a send never returns.
# - Keep `out` and `lse` in at least float32 (`in_float32`), because in bf16 their error grows with the number
#   of ranks. But *send* keys and values in the dtype of the inputs, because float32 would double the bytes.
#   Round `out` once, at the end, but do not round `lse`.
# - With one rank, send nothing.
# - If you write your own function instead of `block_attention`, it must also call `SEEN.append((began,
#   time.perf_counter(), queries, keys))`, because the pictures here and in §5 are drawn from `SEEN`.


# %% nbgrader={"grade_id": "ring_forward", "solution": true}
def ring_forward(q, k, v, causal=False, group: Group = None, *, layout=None):
    """Return (out, lse) of this rank's queries with the keys of all ranks of `group`.

    q: (batch, tokens here, heads, head_dim). k, v: (batch, tokens here, kv_heads, head_dim).
    layout: the spans of each rank's tokens, or None for contiguous parts of equal size. out has
    q's shape and dtype. lse is (batch, tokens here, heads), in at least float32. Send keys and
    values N-1 times. All callers have turned autograd off, so no graph is made.
    """
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    layout = contiguous(n * q.shape[1], n) if layout is None else layout
    out = torch.zeros_like(in_float32(q))
    lse = out.new_full(q.shape[:-1], -torch.inf)
    kv = torch.stack((k, v))
    for step in range(n):
        owner = (rank - step) % n
        arriving, works = kv, []
        if step < n - 1:
            arriving, works = _pass_on(kv, layout[owner - 1], group)
        for rows, columns, queries, keys in _seen(layout[rank], layout[owner], causal):
            block = block_attention(q[:, rows], *kv[:, :, columns], queries, keys, causal)
            out[:, rows], lse[:, rows] = online_softmax_merge(out[:, rows], lse[:, rows], *block)
        _wait(works)
        kv = arriving
    return out.to(q.dtype), lse


def _pass_on(tensor, spans, group):
    """Begin to send `tensor` to the next rank, and to receive the tokens of `spans` from
    the previous one."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor, []
    arriving = tensor.new_empty(*tensor.shape[:2], sum(map(len, spans)), *tensor.shape[3:])
    both = [
        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % n),
    ]
    return arriving, dist.batch_isend_irecv(both)


def _wait(works):
    for work in works:
        work.wait()


def _seen(mine, theirs, causal):
    """Yield two slices and two ranges for each pair of spans that the mask does not hide fully."""
    for rows, queries in tiles(mine):
        for columns, keys in tiles(theirs):
            if not causal or queries[-1] >= keys[0]:
                yield rows, columns, queries, keys


### END SOLUTION


# %% [markdown]
# <details><summary>Hint: a step of forward</summary><pre>owner = (rank - step) % n
# # unless it is the last step: post the send of kv to rank + 1, and the receive
# #     of the keys of rank owner - 1 from rank - 1
# for rows, queries in tiles(layout[rank]):
#     for columns, keys in tiles(layout[owner]):
#         if causal and queries[-1] &lt; keys[0]:
#             continue
#         ...   # block_attention, merged into out[:, rows] and lse[:, rows]
# # wait; kv is what has arrived</pre></details>
# <details><summary>Hint: both messages</summary><pre>arriving = kv.new_empty(2, batch, tokens, kv_heads, head_dim)
# works = dist.batch_isend_irecv([
#     dist.P2POp(dist.isend, kv, group=group, group_peer=(rank + 1) % n),
#     dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % n),
# ])</pre></details>
#
# **Check forward.**


# %%
@torch.no_grad()
def ring_output(*args, **kwargs):
    """Return the first result of ring_forward."""
    return ring_forward(*args, **kwargs)[0]


@torch.no_grad()
def ring_lse(*args, **kwargs):
    """Return the second result of ring_forward."""
    return ring_forward(*args, **kwargs)[1]


# %% nbgrader={"grade_id": "ring_forward_check", "points": 8}
report = check("08_context_parallel/ring_forward", ring_output, ring_lse)
### BEGIN HIDDEN TESTS
report = check("08_context_parallel/ring_forward", ring_output, ring_lse, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# In *backward* the keys go around once more, because no rank has kept them. With lse and δ known, each block
# gives a share of dq and a share of dk and dv. The share of dq stays on the rank, but the share of dk and dv
# must reach the rank that owns the keys. So a *sum* of dk and dv travels around the ring behind the keys. The
# sum for the keys of rank r starts on rank r, and every rank adds its share and passes the sum on. When all
# ranks have added their shares, the sum is on rank r − 1. One more transfer brings it back to rank r, so the
# sum is sent **N** times, and the keys N − 1 times.
#
# <details><summary>Would N − 1 transfers of the sum be enough?</summary>They would, if the owner of the keys
# kept its own share and added it at the end to the sum of the other ranks' shares. But PyTorch's ring and
# <code>ring-flash-attention</code> send the sum N times, as your ring does.</details>
#
# **Predict.** Write `ring_bytes_sent`. Keys and values have 16 bits here, but sums of gradients travel in
# float32, so the sums have twice as many bytes. Do not round the result. The other three functions below are
# for §5, §6 and §7, so come back to them later.


# %% nbgrader={"grade_id": "predictions", "solution": true}
def ring_bytes_sent(n: int, kv_bytes: float, direction: str = "forward") -> float:
    """Return the bytes each of n ranks sends in one ring attention with inputs in 16 bits.

    kv_bytes: the bytes of one rank's keys and values together. direction: "forward" or "backward".
    A single rank sends nothing.
    """
    ### BEGIN SOLUTION
    if n == 1:
        return 0
    sent = (n - 1) * kv_bytes
    return sent if direction == "forward" else sent + n * 2 * kv_bytes
    ### END SOLUTION


def causal_idle_share(rank: int, n: int) -> float:
    """Return the share of the time for which this rank of n idles, with a causal mask, long parts
    and the contiguous layout (§5)."""
    ### BEGIN SOLUTION
    return (n - 1 - rank) / (n - 1 / 2)
    ### END SOLUTION


def ulysses_bytes_sent(
    n: int, tokens: float, width: int, kv_width: int, itemsize: int = 2
) -> float:
    """Return the bytes each of n ranks sends in one Ulysses attention, forward or backward (§6).

    tokens: the number of tokens in the whole sequence. width: heads * head_dim. kv_width:
    kv_heads * head_dim. itemsize: bytes per element.
    """
    ### BEGIN SOLUTION
    return (n - 1) / n * tokens / n * (2 * width + 2 * kv_width) * itemsize
    ### END SOLUTION


def hiding_block(
    flops_per_second: float,
    bytes_per_second: float,
    width: int,
    kv_width: int,
    causal: bool = False,
) -> float:
    """Return the smallest number of tokens per rank with which a ring hides its messages in forward
    (§7), not rounded.

    Inputs are in 16 bits. bytes_per_second: the rate at which a rank sends, while it also receives
    at this rate. width, kv_width: heads * head_dim, and kv_heads * head_dim. causal: whether a step
    computes only half of the scores, as in zigzag. Leave out the latency of a message.
    """
    ### BEGIN SOLUTION
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block
    ### END SOLUTION


# %% [markdown]
# **Build backward.** Write a `torch.autograd.Function`, as in §3. Its forward calls `ring_forward`, and its
# backward computes δ first. The function `block_gradients`, which is given, applies the table of §3 to one
# block.
#
# - Save q, k, v, out and lse, but not other ranks' keys and values.
# - The next keys travel while the block is computed, as in forward. The sum of dk and dv for the keys of this
#   step can also travel meanwhile (the check does not ask for this). When the sum has arrived, add your share
#   to it and pass it on.
# - Skip the pairs of spans that forward skips, and send nothing with one rank.
# - Keep all sums in at least float32 (`in_float32`), including the sums you send.
# - For each argument of forward, backward returns a gradient, or None if it is not a tensor.


# %%
def block_gradients(q, k, v, grad, lse, delta, queries, keys, causal=False):
    """Return the shares of (dq, dk, dv) from one block of queries and keys, in at least float32.

    grad: the gradient of out. lse, delta: (batch, tokens, heads), for each query over *all* keys
    it sees anywhere.
    """
    kv_heads, scale = k.shape[2], q.shape[-1] ** -0.5
    scores = scores_of(q, k, queries, keys, causal)
    q, k, v, grad = (by_head(x.to(scores.dtype), kv_heads) for x in (q, k, v, grad))
    lse, delta = (by_head(x[..., None], kv_heads) for x in (lse, delta))
    p = scores.sub_(lse.clamp_min(torch.finfo(lse.dtype).min)).exp_()
    ds = (grad @ v.mT).sub_(delta).mul_(p).mul_(scale)
    at, of = len(queries), len(keys)
    return by_token(ds @ k, at), by_token(ds.mT @ q, of), by_token(p.mT @ grad, of)


# %% nbgrader={"grade_id": "ring_attention", "solution": true}
# Your torch.autograd.Function:
### BEGIN SOLUTION
class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, group, layout):
        out, lse = ring_forward(q, k, v, causal, group, layout=layout)
        ctx.rest = causal, group, layout
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        causal, group, layout = ctx.rest
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        delta = (in_float32(out) * grad).sum(-1)
        dq = torch.zeros_like(in_float32(q))
        kv, before, bringing = torch.stack((k, v)), 0, []
        for step in range(n):
            owner = (rank - step) % n
            arriving, works = kv, []
            if step < n - 1:
                arriving, works = _pass_on(kv, layout[owner - 1], group)
            dkv = torch.zeros_like(in_float32(kv))
            for rows, columns, queries, keys in _seen(layout[rank], layout[owner], causal):
                tensors = (q[:, rows], *kv[:, :, columns], grad[:, rows], lse[:, rows])
                for_q, for_k, for_v = block_gradients(
                    *tensors, delta[:, rows], queries, keys, causal
                )
                dq[:, rows] += for_q
                dkv[0][:, columns] += for_k
                dkv[1][:, columns] += for_v
            _wait(bringing)
            dkv += before
            before, bringing = _pass_on(dkv, layout[owner - 1], group)
            _wait(works)
            kv = arriving
        _wait(bringing)
        dk, dv = before.to(k.dtype)
        return dq.to(q.dtype), dk, dv, None, None, None


### END SOLUTION


def ring_attention(q, k, v, causal=False, group: Group = None, *, layout=None):
    """Compute attention of this rank's queries to the keys of all ranks of `group`.

    q: (batch, tokens here, heads, head_dim). k, v: (batch, tokens here, kv_heads, head_dim).
    layout: the spans of each rank's tokens, or None for contiguous parts of equal size. The result
    has q's shape and dtype. Send keys and values N-1 times in forward. In backward, send them N-1
    times again, and their gradients N times.
    """
    ### BEGIN SOLUTION
    n = dist.get_world_size(group)
    layout = contiguous(n * q.shape[1], n) if layout is None else layout
    return _RingAttention.apply(q, k, v, causal, group, layout)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the sums of backward</summary>In each step, compute the block's dk and dv while the
# sum for these keys is on its way to this rank. Then wait for this sum, add to it, and pass it on. The sum
# that arrives after the last step is for the rank's own keys.</details>
# <details><summary>Hint: a step of backward</summary><pre># the next keys under way, as in forward
# dkv = torch.zeros_like(in_float32(kv))
# ...   # block_gradients of each pair of spans, into dq[:, rows], dkv[0][:, columns], dkv[1][:, columns]
# # wait for the sum that is on its way here, and add it to dkv
# # post the send of dkv to rank + 1, and the receive of the sum for the keys of rank owner - 1
# # wait for the next keys</pre>
# After the last step, wait once more, and round the sum that has arrived to the dtype of k.</details>
#
# **Check backward.**

# %% nbgrader={"grade_id": "ring_attention_check", "points": 7}
report = check("08_context_parallel/ring_attention", ring_attention)
### BEGIN HIDDEN TESTS
report = check("08_context_parallel/ring_attention", ring_attention, cases="hidden")
### END HIDDEN TESTS
report.points(7)

# %% [markdown]
# **Measure.** The cell runs your ring with sixteen tokens on four ranks, once without a mask and once with a
# causal mask. It compares the results with the results of one process. In a third run, in bfloat16, it
# compares the bytes sent with your prediction.


# %% tags=["skip-in-grading"]
def attended(
    attend, seq=16, make_layout=None, causal=False, heads=4, kv_heads=2, dtype=torch.float64
):
    """Return this rank's parts of output and gradients, and the blocks it computed in forward."""
    n = dist.get_world_size()
    layout = (make_layout or contiguous)(seq, n)
    options = {"layout": layout} if make_layout else {}
    *inputs, grad = (deal(x, layout) for x in drawn(seq, heads, kv_heads, dtype=dtype))
    q, k, v = (x.requires_grad_() for x in inputs)
    SEEN.clear()
    dist.barrier()
    out = attend(q, k, v, causal=causal, **options)
    tiles_seen = [(queries, keys) for _, _, queries, keys in SEEN]
    dist.barrier()
    out.backward(grad)
    dist.barrier()
    return {"parts": [out.detach(), q.grad, k.grad, v.grad], "seen": tiles_seen}


def sent(run, rank=0):
    """Return the bytes a rank sent between the last three barriers, as (forward, backward)."""
    operations = run.ledger.operations(rank)
    at = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-3:]
    return tuple(
        sum(operation.bytes_sent for operation in operations[begin:end])
        for begin, end in ((at[0], at[1]), (at[1], at[2]))
    )


def whole(parts, layout):
    """Join parts[r] of each rank r to the whole tensor, in the order of the sequence."""
    order = torch.tensor([at for spans in layout for span in spans for at in span])
    together = torch.cat(parts, dim=1)
    result = torch.empty_like(together)
    result[:, order] = together
    return result


EQUAL = "equal to one process"


def compared_with_one(run, seq=16, make_layout=contiguous, causal=False, heads=4, kv_heads=2):
    """Say whether full attention in one process has the same output and gradients."""
    layout = make_layout(seq, len(run))
    results = [
        whole(list(parts), layout)
        for parts in zip(*(rank_run["parts"] for rank_run in run), strict=True)
    ]
    exact = gradients(full_attention, *drawn(seq, heads, kv_heads), causal=causal)
    names, wrong = ("the output", "dq", "dk", "dv"), []
    for name, computed, other in zip(names, results, exact, strict=True):
        if not furthest([computed], [other]) < 1e-10:
            wrong.append(name)
    return f"NOT equal to one process in {', '.join(wrong)}" if wrong else EQUAL


full = try_it(attended, ring_attention)
masked = try_it(attended, ring_attention, causal=True)
for name, run, causal in (("full", full, False), ("causal", masked, True)):
    if run:
        print(f"{name}: output and gradients", compared_with_one(run, causal=causal))
run = full and try_it(attended, ring_attention, causal=True, dtype=torch.bfloat16)
if run:
    kv_bytes = 2 * 4 * 2 * 16 * 2  # k and v of 4 tokens, 2 heads, 16 features, 2 bytes
    for direction, number in zip(("forward", "backward"), sent(run), strict=True):
        foretold = said(ring_bytes_sent, 4, kv_bytes, direction)
        print(f"bfloat16, {direction:8} {number:6,.0f} bytes sent by a rank, predicted {foretold}")

# %% [markdown]
# The next cell draws the ring from the first two runs. Each row contains the queries of one rank, and each
# column the keys of one rank. A dashed frame is a block that arrived but was skipped, so the rank idles in
# this step. Below each step you see the bytes sent.


# %% tags=["skip-in-grading"]
def step_by_step(full, masked, seq=16):
    """Draw the n x n blocks in n pictures, with the transfers between them."""
    n = len(full)
    owner = {at: r for r, spans in enumerate(contiguous(seq, n)) for span in spans for at in span}
    came = [
        list(dict.fromkeys(owner[keys[0]] for _, keys in rank_run["seen"])) for rank_run in full
    ]
    used = [{owner[keys[0]] for _, keys in rank_run["seen"]} for rank_run in masked]
    forward = [send for send in masked.ledger.operations() if send.op == "send"]
    ends = {r: masked.ledger.operations(r, "barrier")[1].issued for r in range(n)}
    forward = [send for send in forward if send.issued < ends[send.rank]]
    # dk and dv, which are as large as k and v
    part = sum(tensor.nbytes for tensor in full[0]["parts"][2:])
    transfers = sum(send.nbytes for send in forward) / (n * part)
    onwards = "+" if forward and (forward[0].peer - forward[0].rank) % n == 1 else "-"
    figure = picture(2.3 * n, 2.6)
    for step in range(n):
        axes = figure.add_subplot(1, n, step + 1)
        for rank in range(n):
            for keys in range(n):
                shade = "#F2F2F2" if keys > rank else "white"
                axes.add_patch(Rectangle((keys, rank), 1, 1, fc=shade, ec="#C8C8C8", lw=0.6))
            keys = came[rank][step]
            done = keys in used[rank]
            look = {"fc": RANKS[keys % len(RANKS)]} if done else {"fc": "none", "ls": "--"}
            axes.add_patch(Rectangle((keys + 0.08, rank + 0.08), 0.84, 0.84, ec=INK, lw=1, **look))
        working = sum(came[rank][step] in used[rank] for rank in range(n))
        axes.set_title(f"step {step}: {working} of {n} ranks work", fontsize=9)
        sends = f"rank r sends {part:,} B to r {onwards} 1"
        text = sends if step < transfers else "nothing is sent"
        axes.set_xlabel(text, fontsize=8)
        axes.set(xlim=(-0.05, n + 0.05), ylim=(n + 0.05, -0.05), aspect="equal")
        axes.set_xticks([])
        axes.set_yticks([])
        if step == 0:
            axes.set_yticks(
                [r + 0.5 for r in range(n)], [f"rank {r}" for r in range(n)], fontsize=8
            )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    looks = [Patch(fc=RANKS[r % len(RANKS)], ec=INK, label=f"rank {r}'s keys") for r in range(n)]
    looks.append(Patch(fc="none", ec=INK, ls="--", label="arrived, but was skipped"))
    looks.append(Patch(fc="#F2F2F2", ec="#C8C8C8", label="hidden by the mask"))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.02), "ncols": len(looks)}
    figure.legend(handles=looks, frameon=False, fontsize=8, **below)
    figure.subplots_adjust(wspace=0.15)
    print(f"steps: {max(map(len, came))}, transfers: {transfers:g}")
    return figure


def noted_all(run, seq=16):
    """Return whether each rank, in a run without a mask, recorded blocks for all keys."""
    return all(
        {at for _, keys in rank_run["seen"] for at in keys} == set(range(seq)) for rank_run in run
    )


NOT_NOTED = """SEEN does not contain blocks for all positions, so there is nothing to draw. The function that computes
a block must record it as block_attention does, with the positions of its tokens in the whole sequence."""
noted = full and masked and noted_all(full)
if full and masked and not noted:
    print(NOT_NOTED)
step_by_step(full, masked) if noted else None

# %% [markdown]
# The keys of one rank have one colour, which moves down by one row in each step. After the last rank, the
# keys continue to the first rank, whose queries are not allowed to see them, so the frame there is dashed.
# The first ranks idle most, because rank r has work in only r + 1 of the N steps.
#
# **Break it.** What if ranks mask by *local* positions, as code for one rank does? Every rank then counts
# positions from 0, both in its queries and in the keys that arrive. Your function does this if `layout`
# claims that all ranks hold the same positions. How many of the 16 tokens on 4 ranks will get the right
# output, and which ones?


# %% tags=["skip-in-grading"]
def local_positions(seq, n):
    return [[range(seq // n)]] * n


def by_local_positions():
    q, k, v, _ = (deal(x, contiguous(16, 4)) for x in drawn(16))
    return ring_attention(q, k, v, causal=True, layout=local_positions(16, 4))


run = try_it(by_local_positions)
if run:
    q, k, v, _ = drawn(16)
    off = (torch.cat(list(run), dim=1) - full_attention(q, k, v, causal=True)).abs().amax((0, 2, 3))
    right = [token for token in range(16) if off[token] < 1e-10]
    print(f"tokens with the right output: {right}; token 0 is off by {off[0]:.2f}")

# %% [markdown]
# Token i of a part saw tokens 0 to i of *every* part. So all tokens of rank 0 looked into the future, and all
# tokens of rank 3 except the last missed a part of their past. Only the last token got the right output,
# because it saw all tokens, as it should. A model trained in this way learns to use tokens that do not exist
# yet when it writes text. The mistake is hard to notice, because all shapes are right, and on one rank all
# tests pass.
#
# **In production.** By default, Megatron-LM's context parallelism is such a ring, which computes its blocks
# with FlashAttention. So is `ring-flash-attention`. PyTorch's version is in §9.
#
# <details><summary>In the lectures</summary>The picture of the steps is from lecture 004. The lecture numbers
# the four iterations 0, 1, 3, 4, and says that in each of them every GPU "computes attention with its portion
# of queries". This is true only without a mask.</details>

# %% [markdown]
# ## 5 · Who idles
#
# | | |
# |---|---|
# | you will write | `zigzag(seq, n)`; your second prediction, `causal_idle_share`, in §4 |
# | builds on | §4 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 5; §7 gives the points for the prediction |
#
# In the pictures of §4, the last rank works in every step. So the ring takes nearly as long as it does
# without a mask, although only half of the scores are needed.
#
# **Predict.** The ranks hold long parts of equal length, in the contiguous layout. The unit of time is the
# time for one block. A block on the diagonal takes half a unit, because only half of its scores are needed.
# How long does the ring take, and for what share of this time does rank r idle? Return this share from
# `causal_idle_share`. And compared with equal work on all ranks, how many times as long does the ring take?
#
# <details><summary>Answer</summary>The last rank works all the time, on N − 1 whole blocks and one on the
# diagonal, so the ring takes N − 1/2 units of time. Rank r works for r + 1/2 units, so it idles for (N − 1 −
# r) / (N − 1/2) of the time. With 4 ranks, the ranks idle for 86 %, 57 %, 29 % and 0 % of the time. On
# average a rank works for N/2 units. So compared with equal work, the ring takes (N − 1/2) / (N/2) = 2 − 1/N
# times as long. This ratio approaches two as you add ranks.</details>
#
# You can balance the work without changing the ring, because tokens can be on any rank, as long as the mask
# knows their positions. The table shows, for 16 tokens on 4 ranks, which rank holds each token:
#
# | layout | |
# |---|---|
# | contiguous | `0000 1111 2222 3333` |
# | striped | `0123 0123 0123 0123` |
# | zigzag | `0011 2233 3322 1100` |
#
# *Striped* (Brandon et al. 2023) gives every rank tokens from the whole sequence, so in each step every block
# is half masked. Only a kernel that skips scores *within* a block gains from this. *Zigzag* (Zhu 2024; Llama
# 3, §3.3.2) pairs a chunk from the beginning, whose queries see few keys, with a chunk from the end, whose
# queries see many. A rank's two chunks of queries and another rank's two chunks of keys make four pairs. For
# any two ranks, every query sees every key in two of the pairs, and no query sees a key in the other two.
#
# **Build.** Cut the sequence into 2N chunks. Rank r gets chunk r and chunk 2N − 1 − r, in this order. The
# helper `chunks(length, n)` makes n consecutive ranges, and if n does not divide the length, the first ones
# are longer by one. For short sequences, the helper `without_empty(spans)` leaves out empty chunks.


# %% tags=["skip-in-grading"]
print(chunks(10, 4), without_empty([range(0, 1), range(1, 1)]))


# %% nbgrader={"grade_id": "zigzag", "solution": true}
def zigzag(seq: int, n: int) -> list:
    """Return a list of the spans of each of n ranks.

    Rank r gets the r-th of 2n chunks and the r-th from the end. Cut as `chunks` does, and leave out
    chunks without tokens.
    """
    ### BEGIN SOLUTION
    cut = chunks(seq, 2 * n)
    return [without_empty([cut[rank], cut[-1 - rank]]) for rank in range(n)]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint</summary>If <code>cut</code> is the list of all chunks, chunk 2N − 1 − r is
# <code>cut[-1 - r]</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "zigzag_check", "points": 5}
report = check("08_context_parallel/zigzag", zigzag)
### BEGIN HIDDEN TESTS
report = check("08_context_parallel/zigzag", zigzag, cases="hidden")
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# **Measure.** The cell runs your ring in the three layouts, with 64 tokens on 4 ranks and a causal mask. It
# counts the unmasked scores in the blocks your run computed. In the figure, all ranks begin a step together,
# and the unit of time is the time for one block.


# %% tags=["skip-in-grading"]
def seen_scores(run, layout):
    """Count the unmasked scores of the blocks each rank computed in each step, as [step][rank]."""
    n = len(run)
    owner = {at: r for r, spans in enumerate(layout) for span in spans for at in span}
    results = [[0] * n for _ in range(n)]
    for rank, rank_run in enumerate(run):
        for queries, keys in rank_run["seen"]:
            visible = torch.tensor(queries)[:, None] >= torch.tensor(keys)
            results[(rank - owner[keys[0]]) % n][rank] += int(visible.sum())
    return results


def slowdown(scores):
    """Add up the work of the busiest rank in each step, and divide it by the mean work."""
    return sum(map(max, scores)) / (sum(map(sum, scores)) / len(scores))


def idle_shares(scores):
    total = sum(map(max, scores))
    return [1 - sum(step[rank] for step in scores) / total for rank in range(len(scores))]


def idle_picture(table, block):
    """Draw the ranks as rows, with time running to the right."""
    figure = picture(8.5, 1.15 * len(table) + 0.4)
    for row, (name, scores) in enumerate(table.items()):
        axes = figure.add_subplot(len(table), 1, row + 1)
        begin = 0.0
        for step in scores:
            for rank, work in enumerate(step):
                axes.barh(rank, work / block, left=begin, height=0.8, color=FORWARD, ec="white")
            begin += max(step) / block
            axes.axvline(begin, color=QUIET, lw=0.5)
        axes.set(xlim=(0, 4), ylim=(len(scores) - 0.45, -0.55))
        names = [f"rank {rank}" for rank in range(len(scores))]
        axes.set_yticks(range(len(scores)), names, fontsize=7)
        axes.set_title(
            f"{name}: {slowdown(scores):.2f} times as long as with equal work",
            fontsize=9,
            loc="left",
        )
        axes.tick_params(length=0, labelbottom=row == len(table) - 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("time, in blocks" if row == len(table) - 1 else "", fontsize=8)
    looks = [Patch(fc=FORWARD, label="works"), Patch(fc="white", ec=QUIET, label="waits")]
    figure.legend(handles=looks, loc="upper right", ncols=2, frameon=False, fontsize=8)
    figure.subplots_adjust(hspace=0.6)
    return figure


table, dealt, unnoted = {}, [], False
for name, make in (("contiguous", contiguous), ("striped", striped), ("zigzag", zigzag)):
    run = try_it(attended, ring_attention, 64, make, causal=True)
    if run:
        right = compared_with_one(run, 64, make, causal=True)
        dealt.append(name)
        print(f"{name}: {right}; a rank sent {sent(run)[0]:,.0f} bytes in forward")
        if right != EQUAL:
            print("    not in the figure, because idle times of wrong results mean nothing")
        elif all(rank_run["seen"] for rank_run in run):
            table[name] = seen_scores(run, make(64, 4))
        else:
            unnoted = True
if unnoted:
    print(NOT_NOTED)
if "contiguous" in table:
    for rank, share in enumerate(idle_shares(table["contiguous"])):
        foretold = said(causal_idle_share, rank, 4, form=".2f")
        print(f"contiguous, rank {rank} idles {share:.2f} of the time, predicted {foretold}")
idle_picture(table, 16 * 16) if table else None

# %% [markdown]
# The results and the bytes are the same in all layouts. But the contiguous layout takes 1.74 times as long as
# equal work would (1.75 for long parts, as you predicted), whereas zigzag takes 1.00 times as long.
#
# How do the layouts compare in seconds? The next cell runs forward and backward on two ranks with a core
# each, for 2,048 tokens. It also adds up the blocks that the busiest rank of each step computes. Blocks on
# the diagonal count in full, because your code computes all of their scores. The ledger shows for how long
# each rank was blocked, because it waited for a message or, at the end, for the other rank. In the contiguous
# layout, for what share of the time will rank 0 be blocked?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def timed(make_layouts, seq=2048, repeats=4):
    """Time rings with a causal mask. Return {name: (seconds, scores computed here per step)}."""
    torch.set_num_threads(1)
    rank, n, timings = dist.get_rank(), dist.get_world_size(), {}
    for name, make in make_layouts.items():
        layout = make(seq, n)
        parts_of_rank = [deal(x, layout) for x in drawn(seq, 2, 2, 64, torch.float32)]
        owner = {at: r for r, spans in enumerate(layout) for span in spans for at in span}
        taken, computed = [], [0] * n
        for _ in range(repeats):
            SEEN.clear()
            dist.barrier()
            began = time.perf_counter()
            gradients(ring_attention, *parts_of_rank, causal=True, layout=layout)
            dist.barrier()
            taken.append(time.perf_counter() - began)
        for _, _, queries, keys in SEEN:
            computed[(rank - owner[keys[0]]) % n] += len(queries) * len(keys)
        timings[name] = min(taken), computed
    return timings


def blocked_shares(run, rank):
    """Return the share of the time between each pair of barriers in which a rank was blocked."""
    operations = run.ledger.operations(rank)
    at = [i for i, operation in enumerate(operations) if operation.op == "barrier"]
    return [
        sum(operation.blocked for operation in operations[begin + 1 : end + 1])
        / (operations[end].completed - operations[begin].completed)
        for begin, end in zip(at[::2], at[1::2], strict=True)
    ]


LAYOUTS = {"contiguous": contiguous, "striped": striped, "zigzag": zigzag}
run = try_it(timed, LAYOUTS, world_size=2) if "zigzag" in dealt else None
for i, name in enumerate(LAYOUTS if run else ()):
    milliseconds = 1e3 * max(rank_run[name][0] for rank_run in run)
    busiest = sum(map(max, zip(*(rank_run[name][1] for rank_run in run), strict=True)))
    shares = [sorted(blocked_shares(run, rank)[4 * i : 4 * i + 4])[1] for rank in range(2)]
    blocks = f"{busiest / 1024**2:.2f} blocks one after the other; " if busiest else ""
    print(
        f"{name:10} {milliseconds:6.0f} ms; {blocks}"
        f"rank 0 was blocked for {shares[0]:.0%} of the time, rank 1 for {shares[1]:.0%}"
    )

# %% [markdown]
# With the contiguous layout, 2 blocks are computed one after the other. With zigzag, there are only 1.25,
# namely three quarters of a block for a rank's own keys and half a block for the other rank's keys. The
# numbers of blocks are always the same, but other programs on the machine change the milliseconds and the
# waiting.
#
# In the contiguous layout, rank 0 computes one block and rank 1 two, so you might expect rank 0 to wait for
# half of the time. But on a quiet machine it waits for less, because blocks on the diagonal take longer than
# other blocks.
#
# <details><summary>Why a block on the diagonal takes longer, and striped can take longest</summary>Blocks on
# the diagonal are masked, and in forward a CPU needs about as long to apply the mask as for the rest of the
# block. Both ranks begin with such a block, but rank 1's second block is not masked. In the striped layout,
# all blocks are half masked, so striped can even be slower than contiguous, although both compute 2 blocks.
# Kernels that skip masked scores would compute 1.5 blocks in the contiguous layout, and about 1 block in the
# two other layouts. (On a busy machine, rank 0 waited for 5 % of the time in one of our runs, and for half of
# it in another.)</details>
#
# **Train with it.** A GPT needs three more things. The model must know each token's *position* in the whole
# sequence, to rotate q and k or to add the position's embedding. *Targets* are shifted before they are dealt
# out, because the token after a rank's last token is on another rank. And every rank has all parameters but
# only a part of the tokens, so gradients are summed as for replicas, and the loss is divided by the count of
# all tokens. `ContextParallelGPT` does all three around your attention. The next cell trains it with SGD for
# 25 steps, on one rank and on four.
#
# **Break it**, in the same cell. The third run leaves out the last transfer of backward, so rank r keeps the
# gradients for rank r + 1's keys. The shapes still fit. Will the loss fall?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
CONFIG = PRESETS["0.1M"]


def learn(attention, make_layout, steps=25):
    """Train a GPT, on one rank if attention is None, and return its losses."""
    from course_lib.context_parallel.gpt import ContextParallelGPT

    torch.manual_seed(0)
    model, text, losses = GPT(CONFIG).to(device()), library_text(), []
    spread = ContextParallelGPT(model, attention, make_layout) if attention else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for step in range(steps):
        tokens, targets = (
            tokens.to(device()) for tokens in batch(text, step, batch_size=8, length=64)
        )
        loss_of = spread.loss if spread else next_token_loss
        loss = loss_of((spread or model)(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        if spread:
            spread.sum_gradients()
        optimizer.step()
        losses.append(loss.item())
    return losses


def from_the_next_rank(grad):
    """Undo the last transfer, so that this rank has the gradient of the next rank's keys."""
    rank, n = dist.get_rank(), dist.get_world_size()
    other = torch.empty_like(grad, memory_format=torch.contiguous_format)
    ends = ((dist.isend, grad.contiguous(), (rank - 1) % n), (dist.irecv, other, (rank + 1) % n))
    for work in dist.batch_isend_irecv(
        [dist.P2POp(call, buffer, peer) for call, buffer, peer in ends]
    ):
        work.wait()
    return other


def left_behind(q, k, v, layout):
    k.register_hook(from_the_next_rank)
    v.register_hook(from_the_next_rank)
    return ring_attention(q, k, v, causal=True, layout=layout)


plans = {"one rank": (None, 1), "your ring on 4 ranks": (partial(ring_attention, causal=True), 4)}
plans["without the last transfer"] = (left_behind, 4)
curves = {}
for name, (attention, ranks) in plans.items():
    run = try_it(learn, attention, zigzag, world_size=ranks) if "zigzag" in dealt else None
    if run:
        curves[name] = run[0]
        apart = max(abs(a - b) for a, b in zip(run[0], curves["one rank"], strict=True))
        print(
            f"{name:26} last loss {run[0][-1]:.3f}; losses differ from one rank by at most {apart:.0e}"
        )
figure = picture(6.5, 2.6)
axes = figure.subplots()
for (name, losses), colour, dashes in zip(curves.items(), RANKS, ("-", "--", ":"), strict=False):
    axes.plot(losses, dashes, color=colour, label=name)
axes.set(xlabel="step", ylabel="loss, nats per byte")
axes.grid(True, alpha=0.3)
if curves:
    axes.legend(frameon=False, fontsize=8, handlelength=3)
figure if curves else None

# %% [markdown]
# The loss still falls, because a small model at first learns mostly without attention, and the queries'
# gradients are right. The loss can even end a little lower than with the right code, so check *gradients*
# against one process before you train.
#
# **In production.** Megatron-LM uses zigzag whenever context parallelism is on (`get_batch_on_this_cp_rank`).
# Llama 3 was also trained with zigzag, in 2 × 16 chunks.
#
# <details><summary>Did Llama 3's keys go around?</summary>They did not. With 8 heads of keys for 128 heads of
# queries, the keys are small, so the ranks gathered them with an all-gather. The all-gather also made it
# simpler to use other masks, such as masks that keep documents apart (Llama 3, §3.3.2).</details>

# %% [markdown]
# ## 6 · Ulysses: tokens for heads *(optional)*
#
# | | |
# |---|---|
# | you will write | `ulysses_attention(q, k, v, causal=False, group=None)`; your third prediction, `ulysses_bytes_sent`, in §4 |
# | builds on | §3; notebook 02: all-to-all |
# | time | 20 minutes |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 9; §7 gives the points for the prediction |
#
# Ulysses divides attention in another way (DeepSpeed-Ulysses, Jacobs et al. 2023). Each head computes
# attention independently of the other heads, so ranks can trade tokens for heads. Each rank sends away its
# own tokens for most heads, and gets all tokens for a few heads. Then it computes attention on its own, with
# any kernel, and finally the ranks trade back.
#
# | | before the all-to-all | after the all-to-all |
# |---|---|---|
# | q | (b, c, heads, d) | (b, N c, heads / N, d) |
# | k, v | (b, c, kv_heads, d) | (b, N c, kv_heads / N, d) |
# | out | (b, N c, heads / N, d) | (b, c, heads, d) |
#
# Even under a causal mask, all ranks have the same work, because each rank has the whole sequence.
#
# **Predict.** How many bytes does a rank send in forward (in backward it sends as many), and how does this
# number change with N? Write `ulysses_bytes_sent` in §4. What limits N?
#
# <details><summary>Answer</summary>A rank holds 1/N of q, k, v and out, and sends (N−1)/N of what it holds.
# So for N ≥ 2, each rank sends less as N grows. In a ring, by contrast, a rank sends (N−1)/N of <i>all</i>
# keys and values, which is half of them with two ranks and nearly all with many. N must divide both the
# number of heads of queries and the number of heads of keys, so N is at most the number of heads of
# keys.</details>
#
# **Build.**
#
# - Do one all-to-all for each of q, k, v and out. The gradients have to travel back, so write a
#   `torch.autograd.Function` whose forward calls the all-to-all, and whose backward calls it in the other
#   direction.
# - Rank r computes attention for heads/N heads of queries, beginning with head r·heads/N. If you cut the
#   heads of keys in the same way, query heads and their key heads arrive on the same rank.
# - `dist.all_to_all_single(output, input, group=group)` cuts `input` along dimension 0, so stack the pieces
#   for the ranks along it.
# - Send each head of k and v only once, although several heads of queries share it.
# - If N does not divide `heads` or `kv_heads`, raise a `ValueError` before anything is sent. In the message,
#   name N and the number of heads that N does not divide.
# - Compute attention with your `tiled_attention`, because each rank has the whole sequence now, and must not
#   store the N×N matrix.


# %% nbgrader={"grade_id": "ulysses_attention", "solution": true}
# Your torch.autograd.Function:
### BEGIN SOLUTION
def _exchange(x, cut, join, group):
    """Send each rank its piece of x along dimension `cut`,
    and join the arriving pieces along `join`."""
    pieces = torch.stack(x.chunk(dist.get_world_size(group), cut))
    arriving = torch.empty_like(pieces)
    dist.all_to_all_single(arriving, pieces, group=group)
    return torch.cat(arriving.unbind(), join)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, join, group):
        ctx.back = join, cut, group
        return _exchange(x, cut, join, group)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, *ctx.back), None, None, None


### END SOLUTION


def ulysses_attention(q, k, v, causal=False, group: Group = None):
    """Compute attention of this rank's queries to the keys of all ranks of `group`.

    q: (batch, tokens here, heads, head_dim). k, v: (batch, tokens here, kv_heads, head_dim). All
    ranks have equally many consecutive tokens. The result has q's shape and dtype. Send (N-1)/N of
    q, k, v and the output in four all-to-alls, and as much in backward. Raise ValueError if the
    number of ranks does not divide the heads.
    """
    ### BEGIN SOLUTION
    n, heads, kv_heads = dist.get_world_size(group), q.shape[2], k.shape[2]
    if heads % n or kv_heads % n:
        raise ValueError(
            f"{n} ranks cannot share {heads} heads of queries and {kv_heads} heads of keys equally"
        )
    q, k, v = (_AllToAll.apply(x, 2, 1, group) for x in (q, k, v))
    out = tiled_attention(q, k, v, causal=causal)
    return _AllToAll.apply(out, 1, 2, group)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the exchange</summary><code>torch.stack(x.chunk(n, dim=2))</code> has the pieces for
# ranks 0, 1, ... along dimension 0. After the all-to-all, <code>torch.cat(arriving.unbind(), dim=1)</code>
# puts the tokens of rank 0 first. On the way back, cut along dimension 1 and join along dimension 2. (You
# can't use <code>dist.all_to_all</code>, which takes lists, because gloo does not support it.)</details>
#
# **Check.**

# %% nbgrader={"grade_id": "ulysses_attention_check", "points": 9}
report = check("08_context_parallel/ulysses_attention", ulysses_attention)
### BEGIN HIDDEN TESTS
report = check("08_context_parallel/ulysses_attention", ulysses_attention, cases="hidden")
### END HIDDEN TESTS
report.points(9)

# %% [markdown]
# **Measure.** The cell runs 8 heads of queries and 4 heads of keys on four ranks. It compares the results
# with the results of one process, and the bytes with your formula. Then it prints, from your formulas, how
# many MB a rank sends for one layer of Llama 3 70B with 131,072 tokens.


# %% tags=["skip-in-grading"]
run = try_it(attended, ulysses_attention, causal=True, heads=8, kv_heads=4)
if run:
    print("output and gradients", compared_with_one(run, causal=True, heads=8, kv_heads=4))
    foretold = said(ulysses_bytes_sent, 4, 16, 8 * 16, 4 * 16, 8)
    for direction, number in zip(("forward", "backward"), sent(run), strict=True):
        print(f"    {direction:8} {number:6,.0f} bytes sent by a rank, predicted {foretold}")


def megabytes(n, kv_heads):
    """Return the MB a rank sends in a ring's forward, in its backward, and each way in Ulysses,
    with 64 heads of 128 features."""
    tokens, kv_width = 131072, 128 * kv_heads
    kv_bytes = 2 * 2 * tokens / n * kv_width
    ring = [ring_bytes_sent(n, kv_bytes, direction) for direction in ("forward", "backward")]
    return [number / 1e6 for number in (*ring, ulysses_bytes_sent(n, tokens, 8192, kv_width, 2))]


for kv_heads in (64, 8):
    print(f"\nMB, {kv_heads:2} heads of keys   ring forward    ring backward   Ulysses, each way")
    for n in (2, 4, 8, 16, 32, 64) if ready(ring_bytes_sent, ulysses_bytes_sent) else ():
        row = megabytes(n, kv_heads)
        note = "" if kv_heads % n == 0 else "   more ranks than heads of keys"
        print(f"{n:4} ranks        " + "".join(f"{number:17,.0f}" for number in row) + note)

# %% [markdown]
# With as many heads of keys as of queries, Ulysses sends far less than a ring on four or more ranks. With few
# heads of keys, a ring carries few keys around, while Ulysses also exchanges q and the output, which don't
# shrink. So up to 8 ranks, the ring sends less in forward. In backward, however, the ring sends more, because
# the keys go around again and the sums of gradients travel N times, in float32. (But a ring's messages can
# hide behind computing, whereas an all-to-all can't.)
#
# **Break it.** What happens with two heads of keys on four ranks?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
_ = try_it(attended, ulysses_attention, heads=8, kv_heads=2)

# %% [markdown]
# What can you do with more ranks than heads of keys? You can repeat heads until there are enough of them, but
# then you also send the copies. Or you can combine Ulysses with a ring. Then groups of u ranks inside a node
# trade tokens for heads, and the N/u groups form a ring across nodes. `ulysses_ring_attention` does this, and
# so takes two groups instead of one:


# %% tags=["skip-in-grading"]
def both_ways(q, k, v, causal):
    from course_lib.context_parallel.combined import two_groups, ulysses_ring_attention

    return ulysses_ring_attention(q, k, v, causal, *two_groups(2))


run = try_it(attended, both_ways, heads=8, kv_heads=2, causal=True)
if run:
    print("2 x 2 ranks:", compared_with_one(run, causal=True, heads=8, kv_heads=2))

# %% [markdown]
# **In production.** DeepSpeed provides `DistributedAttention`, and "USP" (Fang and Zhao 2024) combines
# Ulysses with a ring. In Megatron-LM, `--cp-comm-type` chooses a ring (`p2p`), an all-gather, Ulysses
# (`a2a`), or Ulysses with a ring (`a2a+p2p`).

# %% [markdown]
# ## 7 · When messages hide, and what you predicted
#
# | | |
# |---|---|
# | you will write | `hiding_block`, in §4 |
# | builds on | §4 to §6 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 3 of 5 |
# | points | 7 |
#
# In each step of the ring, a rank computes attention to a block of keys and values, and sends this block on
# at the same time. The message is hidden if the computing takes longer. Let width be heads · head_dim, and
# let kv_width be kv_heads · head_dim. With c tokens on each rank, a step of forward in 16 bits takes:
#
# > computing: 4 · c² · width FLOPs; sending: 2 · c · kv_width · 2 bytes
#
# Computing grows with c², but sending only with c, so **with enough tokens, the message is always hidden.**
#
# **Predict.** How large must c be for the message to be hidden? Answer for three cases: equally many heads
# of keys and queries; fewer heads of keys; and a causal mask in zigzag, which needs half of each block's
# scores. An A100 computes 312 TFLOP/s and sends 300 GB/s over NVLink. (Then write `hiding_block`, below
# `ring_bytes_sent` in §4.)
#
# <details><summary>Answer</summary>With F FLOP/s and B bytes/s, both times are equal if 4 · c² · width / F =
# 4 · c · kv_width / B, so c = F/B · kv_width/width. For the A100 with as many heads of keys as of queries,
# that is 312e12 / 300e9 = 1,040 tokens, which is simply the number of FLOPs the GPU computes while it sends a
# byte. With fewer heads of keys there are fewer bytes, so c falls in proportion. Under a causal mask, a rank
# computes half as much, so twice as many tokens are needed. (Backward computes 2.5 times as much as forward
# and sends three times as many bytes, so it needs 1.2 times as many tokens.)</details>
#
# **Check.**

# %% nbgrader={"grade_id": "predictions_check", "points": 7}
report = check(
    "08_context_parallel/predictions",
    ring_bytes_sent,
    ulysses_bytes_sent,
    causal_idle_share,
    hiding_block,
)
### BEGIN HIDDEN TESTS
report = check(
    "08_context_parallel/predictions",
    ring_bytes_sent,
    ulysses_bytes_sent,
    causal_idle_share,
    hiding_block,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(7)

# %% [markdown]
# **Measure.** The cell measures how long a block of c queries and c keys takes on this machine, on one thread
# in float32, and how long a message takes, as in the ping-pong of notebook 00. Elements have 4 bytes here
# instead of 2, so the cell gives your formula half of the measured bandwidth.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib import doctor

PARTS = (32, 64, 128, 256, 512, 1024, 2048)
OWN_WIDTH = 2 * 64


def block_seconds(lengths, repeats=5):
    """Return, for each length c, the shortest time in seconds for a block of c queries and keys."""
    torch.set_num_threads(1)
    measured_seconds = []
    for c in lengths:
        q, k, v, _ = drawn(c, 2, 2, 64, torch.float32)
        taken = []
        for _ in range(repeats):
            began = time.perf_counter()
            block_attention(q, k, v, range(c), range(c))
            synchronize()
            taken.append(time.perf_counter() - began)
        measured_seconds.append(min(taken))
    return measured_seconds


computing = launch(block_seconds, PARTS, world_size=1)[0]
link = doctor.measure_link()
flops = 4 * PARTS[-1] ** 2 * OWN_WIDTH / computing[-1]
message = [2 * c * OWN_WIDTH * 4 for c in PARTS]  # keys and values
print(
    f"{flops / 1e9:.1f} GFLOP/s in attention, {link.bandwidth / 1e9:.2f} GB/s, α {1e6 * link.alpha:.0f} µs"
)
longer = [
    c for c, seconds, m in zip(PARTS, computing, message, strict=True) if seconds > link.seconds(m)
]
print("measured: a block takes longer than its message with", longer, "tokens per rank")
figure = picture(6.5, 2.8)
axes = figure.subplots()
axes.loglog(
    PARTS,
    [1e3 * seconds for seconds in computing],
    "o-",
    color=FORWARD,
    ms=4,
    label="computing a block",
)
axes.loglog(
    PARTS,
    [1e3 * link.seconds(nbytes) for nbytes in message],
    "--",
    color=QUIET,
    label="sending it, α + β · bytes",
)
if ready(hiding_block):
    block = hiding_block(flops, link.bandwidth / 2, OWN_WIDTH, OWN_WIDTH)
    print(f"your formula: hidden with more than {block:,.0f} tokens per rank")
    axes.axvline(block, color=INK, lw=0.8, ls=":", label="hidden from here on, by your formula")
axes.set(xlabel="tokens per rank", ylabel="milliseconds")
axes.set_xticks(PARTS, [str(c) for c in PARTS])
axes.minorticks_off()
axes.grid(True, alpha=0.3)
axes.legend(frameon=False, fontsize=8)
figure

# %% [markdown]
# A CPU computes so slowly that few tokens are enough to hide the time for the *bytes*, often fewer than the
# 32 with which the curves begin. But the formula leaves out all times that do not grow with c, namely α for a
# message and the time Python takes to start the operations of a block. On the left of the figure, where both
# curves are flat, these times dominate.
#
# The next cell measures your ring on two ranks. For what share of forward is rank 0 blocked by messages?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def rings(lengths):
    """Run a forward of the ring for each length, between two barriers."""
    torch.set_num_threads(1)
    for c in lengths:
        q, k, v, _ = (deal(x, contiguous(2 * c, 2)) for x in drawn(2 * c, 2, 2, 64, torch.float32))
        dist.barrier()
        ring_attention(q, k, v)
        dist.barrier()


run = try_it(rings, (PARTS[0], *PARTS), world_size=2)  # the first forward opens the connections
if run:
    operations = run.ledger.operations(0)
    at = [i for i, operation in enumerate(operations) if operation.op == "barrier"]
    for c, begin, end in list(zip((PARTS[0], *PARTS), at[::2], at[1::2], strict=True))[1:]:
        seconds = operations[end].issued - operations[begin].completed
        blocked = sum(operation.blocked for operation in operations[begin + 1 : end])
        print(
            f"{c:5} tokens per rank: {1e3 * seconds:7.1f} ms, blocked for {blocked / seconds:4.0%} of it"
        )

# %% [markdown]
# With few tokens, Python takes more time than the blocks and messages themselves. (A rank can also be blocked
# because its neighbour is late.)
#
# The next cell applies your formula to the hardware of the ring-attention paper (Liu et al. 2023, table 2).
# The paper calls the smallest c that hides messages the *block*, and also prints six times the block. Both
# are printed in thousands of tokens.

# %% tags=["skip-in-grading"]
from course_lib.facts import RING_HOSTS

print("                      block   printed    six of them   printed")
for host in RING_HOSTS if ready(hiding_block) else ():
    block = hiding_block(host.flops, host.each_way, 1, 1)
    shown = [f"{block / 1e3:.1f}", f"{6 * block / 1e3:.1f}"]
    printed = [f"{host.printed_block / 1e3:.1f}", f"{host.printed_sequence / 1e3:.1f}"]
    note = "" if shown == printed else "   <- differs"
    print(f"{host.name:18}{shown[0]:>9}{printed[0]:>10}{shown[1]:>15}{printed[1]:>10}{note}")

# %% [markdown]
# <details><summary>Why six times, and why does one row differ?</summary>A rank holds six blocks at the same
# time: its queries, its output, its keys, its values, and the keys and values that arrive. In the row that
# differs, the paper's two numbers do not agree with each other either, because six times 24.5 is 147 and not
# 149.5.</details>
#
# Now take today's numbers: an H100 (989 TFLOP/s) with a network port of 50 GB/s, the heads of Llama 3 405B
# (128 of queries, 8 of keys, 128 features each), and a causal mask:

# %% tags=["skip-in-grading"]
needed = said(hiding_block, 989e12, 50e9, 16384, 1024, True)
print(f"{needed} tokens on each rank are needed; Llama 3 had {131072 // 16:,}")

# %% [markdown]
# The number assumes the speed in the data sheet. A GPU that reaches only 40 % of that speed computes for
# longer, so it needs only 40 % of the tokens. Llama 3 had more than enough, so a ring can hide its messages
# even between nodes, whereas tensor parallelism (notebook 06) cannot. Keep NVLink, inside the node, for
# traffic that can't overlap with computing.

# %% [markdown]
# ## 8 · How long a sequence fits *(optional)*
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §3, §4 |
# | time | 5 minutes |
#
# **Predict.** By what factor does the longest sequence grow from one rank to N, with tiles and with the
# matrix?
#
# <details><summary>Answer</summary>With tiles, the sequence can be N times as long, because the memory is
# linear in the number of tokens and divided among the ranks. With the matrix, it can be about √N times as
# long, because the N ranks share memory that grows with the square of this number.</details>
#
# **Measure.** The cell prints the bytes your ring keeps for backward on each rank, with 1,024 tokens in
# float32, next to the computed size of q, k, v, out and lse.


# %% tags=["skip-in-grading"]
def kept_by_the_ring(seq=1024):
    layout = contiguous(seq, dist.get_world_size())
    parts_of_rank = [deal(x, layout) for x in drawn(seq, 4, 2, 16, torch.float32)]
    return kept_bytes(ring_attention, *parts_of_rank, causal=True)


for n in (1, 2, 4):
    run = try_it(kept_by_the_ring, world_size=n)
    if run is None:
        break
    foretold = 1024 / n * ((2 * 4 + 2 * 2) * 16 * 4 + 4 * 4)
    ranks = "1 rank: " if n == 1 else f"{n} ranks:"
    print(f"{ranks} {max(run):7,} bytes kept on each rank, computed {foretold:,.0f}")

# %% [markdown]
# The next cell applies the formula of §1 to all layers of Llama 3 70B. Here a "rank" is a node of 8 GPUs that
# share every layer (notebook 06). We assume each GPU has 40 GB left for activations.

# %% tags=["skip-in-grading"]
from course_lib.facts import longest_sequence

WAYS = {
    "with the N×N matrix": {"flash": False},
    "tiles": {},
    "tiles, all recomputed in backward": {"recompute": True},
}
NODES = (1, 2, 4, 8, 16, 32, 64)
figure = picture(6.5, 2.8)
axes = figure.subplots()
for (name, options), colour, mark in zip(WAYS.items(), RANKS, "os^", strict=False):
    longest = [longest_sequence(8 * 40e9, WIDTH, HEADS, LAYERS, n, **options) for n in NODES]
    axes.loglog(NODES, longest, mark + "-", color=colour, ms=4, label=name)
    print(f"{name:34} 1 node {longest[0]:9,.0f} tokens, 16 nodes {longest[4]:11,.0f}")
axes.set(xlabel="nodes that share a sequence", ylabel="tokens")
axes.set_xticks(NODES, [str(n) for n in NODES])
axes.minorticks_off()
axes.grid(True, alpha=0.3)
axes.legend(frameon=False, fontsize=8)
figure

# %% [markdown]
# With the matrix, the longest sequence grows only a little faster than √N, by a factor of 4.4 from 1 to 16
# nodes. But with tiles, it grows in proportion to N, because N times as many machines hold N times as many
# tokens. The FLOPs of attention, however, grow with the square of the length. With eight times the ranks,
# attention to a sequence eight times as long therefore takes eight times as long.

# %% [markdown]
# ## 9 · PyTorch's version *(optional)*
#
# | | |
# |---|---|
# | you will write | nothing |
# | builds on | §4 |
# | time | 5 minutes |
#
# `torch.distributed.tensor.experimental.context_parallel` cuts the tensors you name into one part for each
# rank, in place. Inside its `with` block, it replaces `scaled_dot_product_attention` (SDPA) with a version
# that spans the ranks, so your model needs no change. By default, it assumes a causal mask and deals tokens
# out in zigzag. It gathers keys and values instead of sending them around, unless you change this with
# `set_rotate_method`.
#
# This version is made for GPUs, where SDPA's kernels return lse. On a CPU it runs only without a causal mask,
# and only with the plain kernel (`SDPBackend.MATH`). That kernel does not return lse, so parts can't be
# merged, and all keys are gathered first. The cell runs PyTorch's version without a mask on two ranks, and
# compares it with yours.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def theirs(causal=False):
    """Return how far PyTorch's output and dq are from yours, on this rank, in the same layout."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    n = dist.get_world_size()
    mesh = init_device_mesh(device().type, (n,))
    tensors = drawn(32, 4, 4)
    heads_first = [x.transpose(1, 2).contiguous() for x in tensors]
    q, k, v, grad = heads_first
    with context_parallel(mesh, buffers=heads_first, buffer_seq_dims=[2] * 4):
        try:
            for x in (q, k, v):
                x.requires_grad_()
            dist.barrier()
            with sdpa_kernel(SDPBackend.MATH):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            dist.barrier()
            out.backward(grad)
            dist.barrier()
            results = [out.detach().transpose(1, 2), q.grad.transpose(1, 2)]
        finally:  # before the buffers are made whole again
            for x in (q, k, v):
                x.grad = None
                x.requires_grad_(False)
    layout = zigzag(32, n)
    mine = gradients(ring_attention, *(deal(x, layout) for x in tensors), layout=layout)
    return furthest(results, mine[:2])


run = try_it(theirs, world_size=2)
if run:
    print(f"output and dq differ from yours by {max(run):.0e}")
    operations = run.ledger.operations(0)
    at = [i for i, operation in enumerate(operations) if operation.op == "barrier"]
    for name, begin, end in (("forward", at[0], at[1]), ("backward", at[1], at[2])):
        done = [
            f"{operation.op} ({operation.bytes_sent:,.0f} B)"
            for operation in operations[begin + 1 : end]
        ]
        print(f"PyTorch's {name}: {', '.join(done)}")

# %% [markdown]
# <details><summary>What does PyTorch's version send, compared with your ring?</summary>In forward, PyTorch
# calls two all-gathers instead of sending messages around. They send as many bytes as a ring does, but the
# keys of all ranks are in memory at the same time. In backward, PyTorch gathers keys and values again, and
# then two reduce-scatters sum their gradients. A rank sends N − 1 shares of gradients, in the inputs' dtype,
# whereas in your ring it sends N, in at least float32.</details>
#
# With a causal mask, PyTorch's version ends in an error:

# %% tags=["nbval-ignore-output", "skip-in-grading"]
try:
    launch(theirs, True, world_size=2)
except RankError as error:
    print([line for line in str(error).splitlines() if "Error" in line][-1])

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them the cells show a recorded run, if there is
# one.*
#
# **Predict.** Three kernels compute the same attention. One stores the whole matrix of scores, but the other
# two, *memory-efficient* and *flash*, do not. With twice as many tokens, a kernel computes 4 times as many
# FLOPs. By what factor does its peak memory grow, with the matrix and without it? The cell's table predicts
# each kernel's rows from that kernel's first row and these factors.
#
# <details><summary>Answer</summary>The matrix has 4 times as many scores, so the bytes grow by a factor of
# nearly 4. Without the matrix, the bytes only double, as q, k, v and the output do. With all three kernels,
# the time grows by a factor of 4, as the FLOPs do.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus, rows_named
from course_lib.gpu.attention import ATTENTION, RING


def grown(of, run):
    (first, *_) = rows_named(run, kernel=of["kernel"], kind=of["kind"])
    times = of["seq"] / first.of["seq"]
    linear = of["kind"] == "peak" and of["kernel"] != "the matrix"
    return first.value and first.value * (times if linear else times**2)


on_gpus = on_your_gpus(ATTENTION, predicted=grown)

# %% [markdown]
# A dash means that a kernel did not run. A T4 has no flash kernel, and the matrix of 16,384 tokens does not
# fit on every card.
#
# **Predict.** The cell times a block of the ring and its message between two GPUs. Above what number of
# tokens does the block take longer than the message? The cell predicts each row from the two speeds measured
# with the most tokens, FLOP/s for blocks and bytes/s for messages. So the prediction leaves out α and the
# time to start a kernel. The cell also gives both speeds to `hiding_block`.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def at_full_speed(of, run):
    last = rows_named(run, kind=of["kind"])[-1]
    power = 2 if of["kind"] == "block" else 1
    return last.value * (of["tokens"] / last.of["tokens"]) ** power


ring_run = on_your_gpus(RING, predicted=at_full_speed)
if ring_run:
    block, message = (rows_named(ring_run, kind=kind)[-1] for kind in ("block", "message"))
    width = block.of["width"]
    flops = 4 * block.of["tokens"] ** 2 * width / block.value
    tokens = said(hiding_block, flops, message.of["bytes"] / message.value, width, width)
    print(f"your formula: hidden with more than {tokens} tokens per rank")

# %% [markdown]
# ## 10 · Questions
#
# | | |
# |---|---|
# | builds on | all of it |
# | time | 5 minutes |
# | points | 5 |
#
# You can write a number as an expression.
#
# 1. 8 ranks hold long parts in the contiguous layout, under a causal mask. How many **times** as long does a
#    ring take as it would with equal work on all ranks?
# 2. A ring has 16 ranks. How many **times** does each rank pass keys and values on in forward?
# 3. An A100 computes 312 TFLOP/s in 16 bits and sends 100 Gb/s (12.5 GB/s each way). There are as many heads
#    of keys as of queries, and no mask. How many **tokens** must a rank hold so that the ring hides its
#    messages in forward?
# 4. A model has 32 heads of queries, and 8 of keys and values. At most how many **ranks** can share a
#    sequence with Ulysses, if no heads are repeated?
# 5. Under a causal mask, you switch from the contiguous layout to zigzag, and your kernels compute no masked
#    score. What gets smaller: `"the time of the slowest rank"`, `"the bytes sent"` or `"the number of scores
#    that all ranks compute"`?

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # times
answer_2 = ...  # times
answer_3 = ...  # tokens
answer_4 = ...  # ranks
# "the time of the slowest rank", "the bytes sent" or "the number of scores that all ranks compute"
answer_5 = ...
### BEGIN SOLUTION
answer_1 = 2 - 1 / 8
answer_2 = 15
answer_3 = 312e12 / 12.5e9
answer_4 = 8
answer_5 = "the time of the slowest rank"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 5}
report = check("08_context_parallel/questions", answer_1, answer_2, answer_3, answer_4, answer_5)
### BEGIN HIDDEN TESTS
report = check(
    "08_context_parallel/questions",
    answer_1,
    answer_2,
    answer_3,
    answer_4,
    answer_5,
    cases="hidden",
)
### END HIDDEN TESTS
report.points(5)

# %% [markdown]
# ## Scorecard
#
# The card compares computation, memory and bytes sent for one step of AdamW on 4 ranks. The model is a GPT
# with 3.3 million parameters, and the batch has 4 sequences of 128 tokens. M is the size of the *parameters*
# in bytes. With replicas and ZeRO-3, each rank gets one sequence. With tensor parallelism, it gets all four,
# and with context parallelism, it gets a quarter of each.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
CARD = GPTConfig(context=128, layers=4, heads=4, width=256)


def step_of(make, shares_data=False):
    torch.manual_seed(0)
    forward, parameters, loss_of, finish = make(GPT(CARD).to(device()))
    rank, n = dist.get_rank(), dist.get_world_size()
    own = {} if shares_data else {"rank": rank, "world_size": n}
    inputs, targets = (
        tokens.to(device()) for tokens in batch(library_text(), 0, batch_size=4, length=128, **own)
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


def spread(attention, make_layout):
    def made(model):
        from course_lib.context_parallel.gpt import ContextParallelGPT

        wrapped = ContextParallelGPT(model, attention, make_layout)
        return wrapped, list(model.parameters()), wrapped.loss, wrapped.sum_gradients

    return made


def by_heads(q, k, v, layout):
    return ulysses_attention(q, k, v, causal=True)


card = {
    "replicas": try_it(step_of, replicas),
    "ZeRO-3": try_it(step_of, zero_3),
    "tensor and sequence parallel": try_it(step_of, tensor_and_sequence, True),
    "ring, contiguous": try_it(
        step_of, spread(partial(ring_attention, causal=True), contiguous), True
    ),
    "ring, zigzag": try_it(step_of, spread(partial(ring_attention, causal=True), zigzag), True),
    "Ulysses": try_it(step_of, spread(by_heads, contiguous), True),
}


def row_of(name, run):
    """Return a row of the card, with the bytes sent after the last barrier."""
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


parameters_alone = sum(p.nbytes for p in GPT(CARD).parameters())
alone_run = launch(step_of, replicas, world_size=1)
rows = [row_of("one process", alone_run)] + [row_of(name, run) for name, run in card.items() if run]
Scorecard(rows, unit=parameters_alone, flops_alone=alone_run[0].flops)

# %% [markdown]
# <details><summary>Why the computation differs a little</summary>For one process, the card counts all scores,
# including masked ones. A ring skips blocks that are masked completely, so its ranks together compute a
# little less than one process, although backward computes the scores again. Ulysses computes the most,
# because your <code>tiled_attention</code> puts these 128 tokens into one tile, and masks half of
# it.</details>
#
# *Memory.* With context parallelism, every rank holds all of the weights, gradients, m and v (ZeRO or tensor
# parallelism would divide them, and can be added). Only the activations are divided, which matters little for
# 128 tokens, but a great deal for 131,072.
#
# *Bytes.* A rank sends 2(N−1)/N of M for the all-reduce of the gradients, plus the bytes of attention. The
# card does not show the benefit of zigzag, which is less idle time.
#
# **You have built** attention that never stores its matrix, on one rank and on many. You can say how much a
# rank sends, when the messages hide, and which rank waits.
#
# **Read on.**
# - Milakov and Gimelshein (2018), *Online normalizer calculation for softmax*, describes the online softmax
#   of §2.
# - Dao et al. (2022), *FlashAttention*, and Dao (2023), *FlashAttention-2*, explain the tiles, and why bytes
#   count more than FLOPs.
# - Liu, Zaharia, Abbeel (2023), *Ring Attention with Blockwise Transformers*, contains the table of §7.
# - Brandon et al. (2023), *Striped Attention*, and Zhu (2024), *ring-flash-attention*, describe the layouts
#   striped and zigzag.
# - Jacobs et al. (2023), *DeepSpeed Ulysses*, describe Ulysses, and Fang and Zhao (2024), *USP*, combine it
#   with a ring.
# - Llama Team (2024), *The Llama 3 Herd of Models*, describes context parallelism by all-gather in §3.3.2,
#   and lists its sizes in table 4.
# - `course_lib/context_parallel/` is the reference. Read it after you have written yours, and begin with
#   `ring.py`.
#
# <details><summary>In the lectures</summary>The card's three criteria are from lecture 003.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("08_context_parallel")
