# %% [markdown]
# # 01 · Why distribute
#
# **Where do the bytes and the FLOPs of training go, and when does one GPU stop being enough?**
#
# You have been asked to sign a plan:
#
# > Train 70B (GPT-3 scale) on 64 H100s. Batch: 2,048 sequences of 4,096 tokens. 8 replicas, 4 microbatches
# > each; a checkpoint of the activations every 4 layers. Expected: 2 to 3 tokens a second on each GPU.
#
# You pay for the GPUs whether the plan works or not. But before you sign, you can work out from the
# configuration how many parameters, FLOPs, bytes and days the plan takes. In this notebook you build the
# instruments, calibrate each of them on a model that runs on this machine, and then apply them to the plan.
# At the end you know which of the plan's numbers can't be right. You also have a map that shows for which
# models and numbers of GPUs sharding or checkpointing is enough (notebooks 04, 05 and 09). White fields need
# another way out (notebooks 06 to 09).
#
# | | |
# |---|---|
# | you will build | exact counts of parameters and FLOPs; a meter of the bytes autograd keeps; formulas for activations, recipes, speed and days; a function that chooses the cheapest layout that fits |
# | you need | PyTorch (modules, backward, an optimizer's step). Notebook 00 is useful but not needed, because nothing is sent here |
# | time | three hours, with a break after §3; the *optional* parts take an hour and a quarter more (§5 and the ends of §6, which have about 10 of the points; the ends of §2, §3, §4 and §7; and §9) |
# | points | 60, and 3 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. The section *On your GPUs* measures a GPU, if you have one |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 Parameters, from the configuration | 21 | 6 | |
# | 2 FLOPs, and the share that 6ND leaves out | 24, and 3 *optional* | 8 | 1 |
# | 3 Memory of a step: build the meter | 40, and 4 *optional* | 14 | |
# | 4 Bytes per parameter: the recipes | 25, and 3 *optional* | 6 | 3 |
# | 5 How fast: the roofline *(optional)* | 25 | 6 | 2 |
# | 6 How long, how large | 10, and 21 *optional* | 6 | 2 |
# | 7 When one GPU is not enough | 28, and 7 *optional* | 8 | 1, 3 |
# | 8 Questions: audit the plan | 20 | 6 | all |
# | 9 Optional: two laws that disagree | 15 | 3 extra | 6 |

# %% [markdown]
# ### Words and letters
#
# <details><summary>A list to come back to: each word is used below with its meaning</summary>
#
# | | |
# |---|---|
# | P | the number of parameters of the model |
# | N, D | in 6ND, N is the number of parameters a token is multiplied by (nearly P), and D is the number of tokens in the whole training |
# | b, s, T | the number of sequences in a microbatch; the number of tokens in a sequence; T = b · s, the number of tokens in a microbatch. (But in "15T tokens", T means 10¹²) |
# | h, L, a, V | the width of the model; the number of layers, each of which is a block of attention and MLP; the number of heads; the size of the vocabulary |
# | microbatch | the sequences of one forward and backward. A step may take several |
# | replica | a full copy of the model, on one GPU or divided among several |
# | rank | one process of a distributed program, usually with one GPU |
# | FLOP | one multiplication or one addition. FLOP/s are FLOPs per second, a speed |
# | model states | weights, gradients, and the optimizer's state. They take the same memory for every batch |
# | activations | results of forward that autograd keeps for backward. They grow with the batch |
# | checkpointing | keeping only the input of each block, and running the block's forward again in backward |
# | GB | 10⁹ bytes. (GiB is 2³⁰, 7 % more) |
# | dense peak | the peak FLOP/s on a data sheet without "sparsity". (Sparsity doubles the peak, but only for matrices in which half of the numbers are zeros) |
#
# </details>

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import gc
import math
import time
from dataclasses import replace

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import check, device, launch
from course_lib.models import GPT, PRESETS, PUBLISHED, GPTConfig, next_token_loss
from course_lib.scorecard import costs, scorecard
from course_lib.unfinished import ready, said, tried

SMALL = PRESETS["0.8M"]  # 4 layers of width 128, sequences of up to 256 bytes

# %% [markdown]
# `GPTConfig` holds the sizes of a model: `layers`, `heads`, `width`, `vocab_size` and `context`. It also
# derives `head_dim`, `key_value_heads` and `mlp_width`. Five switches, `mlp`, `norm`, `positions`, `bias` and
# `tied`, choose between the parts of GPT-2 and the parts of LLaMA. `PUBLISHED` holds the configurations of
# ten models.
#
# `plan_figures` draws the pictures. In later cells, `ready`, `said` and `tried` check whether you have
# written a function. Until then, its results are printed as "?".

# %% tags=["skip-in-grading"]
from course_lib import planning
from course_lib.facts import CHINCHILLA, LAWS, PUBLISHED_MFU, RECIPES, RUNS
from course_lib.facts.hardware import gpu
from course_lib.pictures import plan_figures

A100, H100 = gpu("A100"), gpu("H100")
for name in ("GPT-2 small", "Llama-3-70B"):
    print(f"{name}: {PUBLISHED[name]}\n")

# %% [markdown]
# ## 1 · Parameters, from the configuration
#
# | | |
# |---|---|
# | you will write | `parameters(config)` |
# | builds on | nothing |
# | time | 21 minutes |
# | difficulty, importance | 1 and 4 of 5 |
# | points | 6 |
#
# Every estimate below begins with P, the number of parameters. But the name of a model only gives a rounded P
# ("70B" can be 68,976,648,192 or 70,553,706,496), and the rule of thumb 12 L h² leaves out the embedding and
# does not fit LLaMA's parts. A few lines of code give the exact number.
#
# **Predict**, before you run the next cell. Llama-3-8B has a vocabulary of 128,256 and a width of 4,096, and
# its head is not tied to its embedding. How many of its 8 billion parameters are in the embedding and the
# head? The picture shows the share of each part in ten models, with the smallest model at the top.

# %% tags=["skip-in-grading"]
plan_figures.parameter_shares(PUBLISHED)

# %% [markdown]
# **Build.** `parameters` returns a dict with the number of parameters in each part. Its keys are the names of
# the parts in the picture.
#
# | part | made of |
# |---|---|
# | embedding | the token table, V rows of h numbers; with `positions="learned"` also a table of `context` such rows |
# | attention | query, key, value and output in each layer. Queries have a · d features (d is `head_dim`). Keys and values have `key_value_heads` · d features each |
# | mlp | matrices of h · `mlp_width` numbers in each layer. `mlp="gelu"` has two (up, down), and `"swiglu"` has three (gate, up, down) |
# | norms | two in each layer and one before the head. With `norm="rms"`, each norm has only a weight. With `"layer"`, it also has a bias if `bias=True` |
# | head | V rows of h numbers, but nothing if `tied`, because then the embedding's matrix is used twice |
#
# With `bias=True`, each linear layer of a block has as many biases as outputs, and a LayerNorm also has a
# bias. With `bias=False`, none of them has a bias. The head never has a bias. The stub already computes the
# embedding and the parameters of one norm.


# %% nbgrader={"grade_id": "parameters", "solution": true}
def parameters(config: GPTConfig) -> dict[str, int]:
    """Number of parameters in each part: "embedding", "attention", "mlp", "norms" and "head"."""
    h, f, bias = config.width, config.mlp_width, config.bias  # bias counts as 1 or 0 in a product
    queries = config.heads * config.head_dim
    keys = config.key_value_heads * config.head_dim
    norm = h * (2 if config.norm == "layer" and bias else 1)  # parameters of each norm
    table = config.vocab_size * h
    embedding = table + (config.context * h if config.positions == "learned" else 0)
    ### BEGIN SOLUTION
    attention = h * (2 * queries + 2 * keys) + bias * (queries + 2 * keys + h)
    inward = 2 if config.mlp == "swiglu" else 1
    mlp = (inward + 1) * h * f + bias * (inward * f + h)
    return {
        "embedding": embedding,
        "attention": config.layers * attention,
        "mlp": config.layers * mlp,
        "norms": (2 * config.layers + 1) * norm,
        "head": 0 if config.tied else table,
    }
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: look at a small model</summary><code>for name, param in
# GPT(SMALL).named_parameters(): print(name, tuple(param.shape))</code> lists every matrix and bias. The
# weight of <code>nn.Linear</code> has the shape (outputs, inputs).</details>
# <details><summary>Hint: other switches</summary><code>replace(SMALL, mlp="swiglu", kv_heads=2)</code> is the
# same model with two things changed. <code>SMALL.modern()</code> has all of LLaMA's parts.</details>
#
# **Check.** The check uses published models and twelve random models, which together cover all values of all
# switches.

# %% nbgrader={"grade_id": "parameters_check", "points": 6}
report = check("01_why_distribute/parameters", parameters)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/parameters", parameters, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** PyTorch can build a model without memory, because tensors on the device `meta` have shapes but
# no numbers. In this way, the cell builds Llama-3-8B, whose weights would take 32 GB in float32, and compares
# its size with your count.
#
# **Break it.** The cell also counts the head as a separate matrix, even if the head is tied.

# %% tags=["skip-in-grading"]
with torch.device("meta"):
    model = GPT(PUBLISHED["Llama-3-8B"])
counted = sum(param.numel() for param in model.parameters())
parts = said(parameters, model.config)
print(f"numel: {counted:,}   yours: {sum(parts.values()) if parts else parts:,}")
for part, number in (parts or {}).items():
    print(f"  {part:10} {number:14,}  {number / counted:5.1%}")
del model
for name in ("GPT-2 small", "Llama-3-8B"):
    config = PUBLISHED[name]
    if parts := said(parameters, config):
        right = sum(parts.values())
        wrong = right - parts["head"] + config.vocab_size * config.width
        print(f"{name:12} {right:14,}   with a separate head {wrong:14,} ({wrong / right:.2f}x)")

# %% [markdown]
# In Llama-3-8B, the embedding and the head together have 1.05 billion parameters, which is 13 %. In a large
# model the MLPs have most of the parameters (GPT-3 66 %, Llama-3-70B 80 %), but in GPT-2 small they have less
# than half.
#
# If the head counts as a separate matrix, Llama's count is still right, but GPT-2's is 31 % too high. A sum
# over the entries of a `state_dict` gives the same wrong 163M, because a `state_dict` lists the shared matrix
# under both of its names.
#
# **In production.** `model.num_parameters()` (Hugging Face) and `sum(p.numel() for p in model.parameters())`
# count a shared matrix only once. `accelerate`'s `init_empty_weights` also builds a model without memory.
#
# <details><summary>In the lectures</summary>Lecture 004 says that most FLOPs and most parameters are in the
# MLP. For parameters this is true in large models (66 % and 80 % above), but not in GPT-2 small (46 %). With
# GPT-2's parts, the MLP takes more FLOPs than attention as long as the sequence is shorter than 2h. But in
# GPT-2 small, it takes only 40 % of forward at 1,024 tokens.</details>

# %% [markdown]
# ## 2 · FLOPs, and the share that 6ND leaves out
#
# | | |
# |---|---|
# | you will write | `step_flops(config, batch, seq, *, backward, causal, recompute)` |
# | builds on | §1 |
# | time | 24 minutes, and 3 for the *optional* end |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 8 |
#
# For each token, a matrix costs 2 FLOPs per number, a multiplication and an addition. So if all matrices of a
# model together have N numbers, forward takes 2ND FLOPs for D training tokens. Backward computes two products
# for each product of forward, one for the gradient of the input and one for the gradient of the weight, so it
# takes 4ND. Together, forward and backward take **6ND**, which is the rule of thumb for training budgets.
#
# But the rule forgets products without weights. Attention multiplies queries by keys, and the resulting
# scores by values, so both factors of these two products are activations. For one sequence and one layer,
# each product takes 2 s² h FLOPs. The picture shows the share of each part in the forward of three models,
# for Llama-3-8B with two sequence lengths.

# %% tags=["skip-in-grading"]
lengths = [
    ("GPT-2 small", 1024), ("GPT-3", 2048), ("Llama-3-8B", 8192), ("Llama-3-8B", 131_072)
]  # fmt: skip
plan_figures.forward_shares(PUBLISHED, lengths)

# %% [markdown]
# **Predict.** By what percentage is 6ND too low for GPT-3 with its sequences of 2,048 tokens? And for
# Llama-3-8B with 8,192? You can read both answers off the bars.
#
# **Build.** Count only matrix products. The stub already computes how many numbers the matrices of one block
# have, and how many query-key pairs one head scores in a sequence.
#
# - Count every matrix of every block, and the head (tied or not), with 2 FLOPs per number and token. Biases
#   do not count, because they are added. The embedding does not count either, because a token is only looked
#   up in it.
# - In each layer, the two products of attention take 4 · b · s² · a · d, where a · d = h. With `causal=True`,
#   `pairs` takes the place of s², because a token sees only itself and the tokens before it.
# - `backward=True` adds twice the FLOPs of forward.
# - `recompute=True` adds one more forward of the blocks, for activation checkpointing (notebook 09). The
#   check does not combine it with `backward=False`, because only backward recomputes anything.


# %% nbgrader={"grade_id": "step_flops", "solution": true}
def step_flops(
    config: GPTConfig, batch: int, seq: int, *,
    backward: bool = True, causal: bool = False, recompute: bool = False,
) -> int:  # fmt: skip
    """FLOPs of the matrix products in one step over `batch` sequences of `seq` tokens.

    causal: masked scores do not count. recompute: each block's forward runs once more in backward.
    """
    h, d = config.width, config.head_dim
    matrices = 2 * h * config.heads * d + 2 * h * config.key_value_heads * d  # of one block
    matrices += (3 if config.mlp == "swiglu" else 2) * h * config.mlp_width
    pairs = seq * (seq + 1) // 2 if causal else seq**2  # query-key pairs, per head and sequence
    ### BEGIN SOLUTION
    block = 2 * batch * seq * matrices + 4 * batch * pairs * config.heads * d
    blocks = config.layers * block
    head = 2 * batch * seq * config.vocab_size * h
    if not backward:
        return blocks + head
    return 3 * (blocks + head) + (blocks if recompute else 0)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: grouped queries</summary>Keys and values have fewer features, so their matrices are
# smaller. The stub's <code>matrices</code> already takes this into account. But every query head has its own
# scores, so use <code>heads</code> for the scores.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "step_flops_check", "points": 8}
report = check("01_why_distribute/step_flops", step_flops)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/step_flops", step_flops, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** PyTorch's `FlopCounterMode` sees every operation that runs, and adds up the FLOPs of all
# operations for which it has a formula. The cell compares your numbers with a real forward and a real step of
# the small model.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def counted_flops(config, batch, seq, backend):
    """(forward, forward and backward), as PyTorch counts them."""
    torch.manual_seed(0)
    model = GPT(config).to(device())
    tokens = torch.randint(config.vocab_size, (batch, seq), device=device())
    with sdpa_kernel(backend), FlopCounterMode(display=False) as counter:
        loss = next_token_loss(model(tokens), tokens)
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


flops_of = {
    "GPT-2's parts": (SMALL, 2, 256),
    "LLaMA's parts, 2 key heads": (replace(SMALL.modern(), kv_heads=2, tied=False), 3, 100),
}
for name, (config, batch, seq) in flops_of.items():
    counted_pair = counted_flops(config, batch, seq, SDPBackend.MATH)
    yours = (
        said(step_flops, config, batch, seq, backward=False),
        said(step_flops, config, batch, seq),
    )
    for part, a, b in zip(("forward", "whole step"), counted_pair, yours, strict=True):
        verdict = "equal" if a == b else "different" if b else "?"
        print(f"{name:28} {part:11} counted {a:14,}   yours {b:14,}   {verdict}")

# %% [markdown]
# With your exact count, you can now see when 6ND is a good rule. The picture shows the ratio of 6ND to your
# count for sequences of different lengths. A dot marks the context of each model. N is the number of *matrix*
# elements a token is multiplied by, in the blocks and the head, but not in the embedding. For the dashed
# lines, masked scores do not count, because a good kernel does not compute them.


# %% tags=["skip-in-grading"]
def multiplied(config):
    """N, from the FLOPs of one token without the two products of attention."""
    return (step_flops(config, 1, 1, backward=False) - 4 * config.width * config.layers) // 2


three = {name: PUBLISHED[name] for name in ("GPT-2 small", "Llama-3-8B", "GPT-3")}
tried(lambda: plan_figures.rule_of_thumb(step_flops, multiplied, three), step_flops)

# %% [markdown]
# With GPT-2's parts, the FLOPs left out by 6ND are s/(6h) of the blocks' 6ND, so they matter less in wide
# models. They are 3 % of GPT-3's step, but most of Llama-3-8B's step at 131,072 tokens. Notebook 08 is about
# such sequences.
#
# <details><summary>Which N does a paper mean?</summary>If N counts <i>all</i> parameters instead of only the
# matrices, GPT-2 small's ratio at 1,024 tokens becomes 0.874 instead of 0.867. This N also includes
# positions, biases and norms, which belong to no matrix product. The two ratios are close only because the
# head is tied. Llama-3-8B has a separate embedding in addition to its head, so its ratio at 8,192 tokens
# becomes 0.832 instead of 0.778.</details>
#
# **In production.** *MFU* (model FLOPs utilization) divides the FLOPs of the model, without recomputation, by
# the FLOPs the GPUs could have done. *HFU* (hardware FLOPs utilization) also counts recomputation. PaLM
# reports 46.2 % and 57.8 % (Chowdhery et al. 2022, §4). The factor between them is 1.251, so about three
# quarters of a forward were computed twice. If all blocks run again, the factor is nearly 4/3.
#
# <details><summary>In the lectures</summary>Lecture 001 says that checkpointing costs "2x compute". But it
# adds one forward to a step that costs as much as three forwards, so the step costs only 4/3 as much
# (Korthikanti et al. 2022).</details>
#
# ### Optional: what a counter does not see
#
# **Break it.** Let PyTorch choose the attention kernel, and count again.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
config, batch, seq = flops_of["GPT-2's parts"]
exact = counted_flops(config, batch, seq, SDPBackend.MATH)[1]
fused = counted_flops(
    config, batch, seq, [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
)[1]
print(f"plain attention {exact:,}   fused attention {fused:,}   {fused / exact - 1:+.1%}")

# %% [markdown]
# On a CPU a quarter of the FLOPs vanishes silently, because PyTorch's counter has no formula for the fused
# CPU kernel. On a GPU, the counter finds *more* FLOPs, since the fused backward computes the scores a second
# time. A counter counts only the operations it knows, so compare its number with a formula.

# %% [markdown]
# ## 3 · Memory of a step: build the meter
#
# | | |
# |---|---|
# | you will write | `SavedBytes` (8 points) and `activation_bytes` (6 points) |
# | builds on | nothing |
# | time | 40 minutes, and 4 for the *optional* end |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 14 |
#
# The picture shows the memory of a small GPT in two training steps, after each operation PyTorch ran. The
# colours show what the bytes are used for. Forward piles up activations, backward consumes them and leaves
# gradients, and the first step of Adam creates the state, which then stays in memory. (You don't have to read
# the cell.)
#
# **Predict.** In which of the two steps is the peak higher?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.memory_figures import memory_figure


def two_steps(config, batch, seq):
    """The timeline of two steps of AdamW, and the number of parameters."""
    torch.manual_seed(0)
    model = GPT(config).to(device())
    tokens = torch.randint(config.vocab_size, (batch, seq), device=device())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with planning.MemoryTimeline(model, optimizer, resident=[tokens]) as timeline:
        for step in range(2):
            timeline.mark("forward")
            loss = next_token_loss(model(tokens), tokens)
            timeline.mark("backward")
            loss.backward()
            timeline.mark("step")
            optimizer.step()
            del loss
            if step == 0:
                optimizer.zero_grad()
    return timeline, sum(param.numel() for param in model.parameters())


timeline, P = two_steps(replace(SMALL, layers=3), batch=2, seq=256)
last, peak = timeline.moments[-1].bytes, timeline.peak
for kind in ("weights", "gradients", "optimizer"):
    print(f"{kind:10} {last[kind] / P:7.4f} bytes per parameter at the end")
shares = ", ".join(f"{kind} {n / peak.total:.0%}" for kind, n in peak.bytes.items() if n)
print(f"the peak, {peak.total / 1e6:.2f} MB, occurs in {peak.phase}: {shares}")
memory_figure(timeline, f"two steps of a GPT with {P:,} parameters, 2 x 256 tokens, float32")

# %% [markdown]
# The second step has the higher peak, because Adam's state is already in memory when it begins. After a step,
# until `zero_grad`, the model states take 4 + 4 + 8 = 16 bytes per parameter, so you can compute their size
# from P. (The extra 0.0003 is Adam's count of steps, one number for each tensor.) The two mountains are
# activations. They are the largest part at the peak, and they grow with the batch, so P is not enough to
# compute their size. This is why you need a meter.
#
# **Build.** For each tensor it keeps, autograd calls `pack(tensor)` in forward, and passes the result to
# `unpack` in backward. You set these two functions with the context manager
# `torch.autograd.graph.saved_tensors_hooks(pack, unpack)`. Three things make counting harder than adding up
# sizes:
#
# - **Two operations can keep the same memory**, perhaps as different views. This memory is a *storage*. You
#   get the storage of a tensor with `tensor.untyped_storage()`, and its size with `.nbytes()`. Count each
#   storage once and in full, even if only a slice is kept.
# - **Parameters and buffers are also kept** (often as `weight.t()`, another tensor on the same storage). But
#   they are in memory anyway, so do not count them.
# - **Memory is used again.** When a storage is freed, the next storage might get its address. So an address
#   identifies a storage only as long as something holds that storage.
#
# `by_module` tells you where the bytes come from. When a storage is kept for the first time, its bytes count
# for the innermost submodule that is running. The given method `count` adds the bytes to the entry of this
# submodule and to `total`. `__enter__` puts the storages of parameters and buffers into `known`. You write
# `pack`, which looks a tensor's storage up in `known`, and counts the storage if it is new.


# %% nbgrader={"grade_id": "saved_bytes", "solution": true}
class SavedBytes:
    """Context manager that counts the bytes autograd keeps for the backward of operations inside.

    module: its parameters and buffers do not count.
    total: bytes so far, each storage once.
    by_module: dict, bytes by the name of the innermost submodule that was running when a storage
    was first kept, "" for the module itself.

    Both can still be read after the block. No tensor is copied, and none is held after the block.
    """

    def __init__(self, module: nn.Module):
        self.module, self.total, self.by_module = module, 0, {}
        self.known = {}  # storages by address, parameters and buffers included
        self.running = []  # names of the submodules whose forward is running, innermost last
        self.handles = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)

    def count(self, nbytes: int):
        """Add the bytes to `total`, and to the entry of the submodule that is running."""
        name = self.running[-1] if self.running else ""
        self.total += nbytes
        self.by_module[name] = self.by_module.get(name, 0) + nbytes

    def pack(self, tensor):
        """Autograd calls this in forward with each tensor it keeps. Return the tensor."""
        ### BEGIN SOLUTION
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known[storage.data_ptr()] = storage  # held, so that no other gets its address
            self.count(storage.nbytes())
        return tensor
        ### END SOLUTION

    def __enter__(self):
        for name, submodule in self.module.named_modules():
            self.handles += [
                submodule.register_forward_pre_hook(
                    lambda *_, name=name: self.running.append(name)
                ),
                submodule.register_forward_hook(self.leave, always_call=True),
            ]
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            storage = tensor.untyped_storage()
            self.known[storage.data_ptr()] = storage
        self.hooks.__enter__()
        return self

    def leave(self, *_):
        self.running.pop()

    def __exit__(self, *error):
        self.hooks.__exit__(*error)
        for handle in self.handles:
            handle.remove()
        self.known.clear()  # frees the storages, because only the counts are needed now


# %% [markdown]
# <details><summary>Hint: begin with the sum</summary>First count <code>tensor.nbytes</code> in
# <code>pack</code> and return the tensor. Then count storages, and only those that are not in the dict
# yet.</details>
# <details><summary>Hint: addresses</summary>Keep the storage object itself in the dict under its
# <code>data_ptr()</code>. Until <code>__exit__</code> empties the dict, no other storage can then get this
# address.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "saved_bytes_check", "points": 8}
report = check("01_why_distribute/saved_bytes", SavedBytes)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/saved_bytes", SavedBytes, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell applies your meter to one block of the GPT in float32. The unit of its table is a
# *row*, which means h numbers for each token. In the column `plain`, attention computes its scores as a
# matrix. In the column `fused`, the flash kernel avoids this matrix.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def kept_by(config, batch, seq, backend=SDPBackend.FLASH_ATTENTION, blocks=slice(None)):
    """Return (total, by_module) of your meter around a forward of the blocks."""
    torch.manual_seed(0)
    chosen = GPT(config).blocks[blocks]
    x = torch.randn(batch, seq, config.width, requires_grad=True)
    with sdpa_kernel(backend), SavedBytes(chosen) as meter:
        for block in chosen:
            x = block(x, torch.arange(seq))
    return meter.total, meter.by_module


batch, seq = 2, 256
unit = 4 * batch * seq * SMALL.width
if ready(SavedBytes):
    kinds = {"fused": SDPBackend.FLASH_ATTENTION, "plain": SDPBackend.MATH}
    meters = {
        kind: kept_by(SMALL, batch, seq, backend, slice(1)) for kind, backend in kinds.items()
    }
    names = dict.fromkeys(name for _, by_module in meters.values() for name in by_module)
    print(f"{'module':18}" + "".join(f"{kind:>9}" for kind in kinds))
    for name in names:
        row = (by_module.get(name, 0) / unit for _, by_module in meters.values())
        print(f"{name.removeprefix('0.'):18}" + "".join(f"{number:9.3f}" for number in row))
    print(f"{'together':18}" + "".join(f"{total / unit:9.3f}" for total, _ in meters.values()))

# %% [markdown]
# A norm keeps its input (1) and two statistics per token. `attention.query` keeps the norm's output, which
# query, key and value share. `attention` itself keeps q, k, v and its result. The fused kernel also keeps one
# float32 for each query and head, the logarithm of a sum. The MLP keeps its input, and its inner features
# *twice*, before GELU and after it. Together, these tensors are a little more than 16 rows. Instead of the
# logarithm, the plain kernel keeps the softmax of the scores. It takes a · s² numbers for each sequence,
# which is 8 rows here. With the plain kernel, attention's result is kept by `attention.out` instead of
# `attention`.
#
# **Build.** Write a formula for this count, for all L blocks with GPT-2's parts (LayerNorm, GELU, as many key
# heads as query heads). The head and the embedding do not count. Take the inner width from `mlp_width`,
# because it doesn't have to be 4h. With `checkpoint=True`, each block keeps only its input, and the stub
# computes these bytes.
#
# - `itemsize` is the size of a number in bytes. Use it for a norm's statistics as well, as PyTorch does on
#   the CPU. (On a GPU they stay float32, which hardly changes the total.) But the flash kernel's logarithm is
#   always a float32.
# - With `flash=False`, each layer keeps the softmax once, b · a · s² numbers, but no logarithm.


# %% nbgrader={"grade_id": "activation_bytes", "solution": true}
def activation_bytes(
    config: GPTConfig, batch: int, seq: int, itemsize: int = 2, *,
    flash: bool = True, checkpoint: bool = False,
) -> float:  # fmt: skip
    """Bytes that all blocks together keep for backward."""
    tokens = batch * seq
    inputs = config.layers * tokens * config.width * itemsize  # the blocks' inputs, in bytes
    ### BEGIN SOLUTION
    if checkpoint:
        return inputs
    statistics = 2 * 2  # a mean and a scale for each of two norms
    layer = tokens * (8 * config.width + 2 * config.mlp_width + statistics) * itemsize
    layer += tokens * config.heads * (4 if flash else seq * itemsize)
    return config.layers * layer
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: from the table</summary>These tensors are as wide as the model: both norms' inputs,
# the inputs of attention and of the MLP, q, k, v and attention's output. Two tensors are as wide as the MLP.
# Then add the few numbers per token.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "activation_bytes_check", "points": 6}
report = check("01_why_distribute/activation_bytes", activation_bytes)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/activation_bytes", activation_bytes, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** The cell compares your meter with your formula, for five shapes. The last column has to be
# 1.000, because two instruments you built in different ways should agree to the byte. Then the cell applies
# your formula to GPT-3, which does not fit here, in 16 bits with one sequence of 2,048 tokens. It prints the
# result next to the count of Korthikanti et al. (2022, §4).

# %% tags=["nbval-ignore-output", "skip-in-grading"]
FIVE = {
    "4 layers, width 128": (SMALL, 2, 256, True),
    "6 layers, width 192": (PRESETS["3M"], 3, 100, True),
    "a narrow MLP": (replace(SMALL, hidden=200), 1, 77, True),
    "scores as a matrix": (SMALL, 2, 256, False),
    "16 heads": (replace(SMALL, heads=16), 1, 200, False),
}
if ready(SavedBytes, activation_bytes):
    print(f"{'':22} {'measured':>12} {'predicted':>12}   ratio")
    for name, (config, batch, seq, flash) in FIVE.items():
        backend = SDPBackend.FLASH_ATTENTION if flash else SDPBackend.MATH
        measured, _ = kept_by(config, batch, seq, backend)
        predicted = activation_bytes(config, batch, seq, 4, flash=flash)
        print(f"{name:22} {measured:12,} {predicted:12,.0f}   {measured / predicted:.3f}")

from course_lib.facts import korthikanti_activations as paper

large = PUBLISHED["GPT-3"]
options = {
    "scores kept": ({"flash": False}, None),
    "flash": ({}, "selective"),
    "checkpointed": ({"checkpoint": True}, "full"),
}
for name, (yours, recompute) in options.items():
    predicted = said(activation_bytes, large, 1, 2048, **yours)
    of_paper = large.layers * paper(2048, 2048, large.width, large.heads, recompute=recompute)
    print(f"{name:13} yours {predicted / 1e9:6.1f} GB   the paper's {of_paper / 1e9:6.1f} GB")

# %% [markdown]
# With the flash kernel, the activations of a single sequence take 77 GB, which nearly fills an H100 before
# any weight is stored. Checkpointing reduces them to 4.8 GB. The paper's first two numbers are larger because
# its model has dropout, also on the attention weights, and keeps the dropout masks. (In the row `flash`, the
# paper's number is for selective recomputation, which keeps no scores either.)
#
# <details><summary>In production</summary>PyTorch can also record a GPU's memory over time. Call
# <code>torch.cuda.memory._record_memory_history()</code>, and later
# <code>_dump_snapshot("file.pickle")</code>. The page pytorch.org/memory_viz draws the file.</details>
#
# <details><summary>LLaMA's parts keep more</summary>SwiGLU keeps four rows of its inner width instead of two,
# namely the gate before and after SiLU, the up projection, and their product. On the CPU, PyTorch composes
# RMSNorm from operations that keep its input, one scale and the normalised values, 2h + 1 numbers per token.
# With grouped queries, the keys and values are narrower. But rotary positions keep float32 cosines
# and sines for q and for k, together 2 s d numbers per layer. LLaMA-7B with 8 x 2,048 tokens in 16 bits keeps
# 89 GB, whereas a model with GPT-2's parts and the same h, L and inner width keeps 58 GB.</details>
# <details><summary>In the lectures</summary>Lecture 001 says that GPT-3's activations take ~10 GB per sample,
# but the cell above shows 77 GB. For a 7B model with b = 8 and s = 2,048, it says that checkpointing "saves
# ~40 GB", but in fact it saves 85 of the 89 GB, and leaves 4.3. It also says that "Flash attention reduces
# memory by 2x". If you count what PyTorch keeps, the factor is 1.8x, because flash attention saves a softmax
# of 69 GB. If you count as Korthikanti et al. do, with dropout on the attention weights, the factor is 3.4x.
# But of what is stored, flash attention saves nothing if the blocks are checkpointed anyway.</details>

# %% [markdown]
# ### Optional: a leak
#
# **Break it.** Here is a classic leak. You evaluate a model on eight batches and collect the losses in a
# list, to average them afterwards. How much higher is the peak than with a list of numbers?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def evaluate(collect):
    """Peak bytes of eight forwards whose losses are collected in a list."""
    torch.manual_seed(0)
    model = GPT(PRESETS["0.1M"]).to(device())
    losses = []
    with costs(*model.parameters()) as spent:
        for _ in range(8):
            tokens = torch.randint(256, (2, 128), device=device())
            losses.append(collect(next_token_loss(model(tokens), tokens)))
    return spent.peak_bytes


gc.collect()
peaks = {
    "losses.append(loss)": evaluate(lambda loss: loss),
    "losses.append(loss.item())": evaluate(lambda loss: loss.item()),
}
with torch.no_grad():
    peaks["the same under torch.no_grad()"] = evaluate(lambda loss: loss.item())
for name, nbytes in peaks.items():
    print(f"{name:32} peak {nbytes / 1e6:6.2f} MB")

# %% [markdown]
# A loss holds its graph, and the graph holds all activations of its forward, so eight losses hold eight times
# as many activations. (The peak is only about six times as high, because weights and temporary results are
# stored only once.) With `.item()` each graph is freed immediately, and under `no_grad` there is no graph.
#
# This is a good place for a break.

# %% [markdown]
# ## 4 · Bytes per parameter: the recipes
#
# | | |
# |---|---|
# | you will write | `recipe_bytes(name)` |
# | builds on | §3 |
# | time | 25 minutes, and 3 for the *optional* end |
# | difficulty, importance | 2 and 5 of 5 |
# | points | 6 |
#
# In §3 the model states took 16 bytes per parameter, 4 + 4 + 0 + 8 for weights, gradients, no copy of the
# weights, and two moments. But papers and frameworks arrive at 8, 10, 12, 13, 16, 18 or 20, because they keep
# different tensors in different formats. A recipe is easiest to read as code, so the cell prints nine
# recipes. fp16 and bf16 take 2 bytes per number, but uint8 and fp8 take only one.

# %% tags=["skip-in-grading"]
for recipe in RECIPES:
    print(f"--- {recipe.name}   ({recipe.source})\n{recipe.code}\n")

# %% [markdown]
# **Predict.** Which recipe has the smallest sum? Which recipes have a larger sum than plain float32?
#
# **Build.** Count the bytes per parameter after a step, while its gradients are still in memory. Return four
# numbers, the bytes of the model's weights, of the gradients (all copies that exist), of the master copy of
# the weights (which the optimizer changes), and of the moments. The stub has three recipes, and you write the
# other six.
#
# - If the optimizer changes the model's own weights, there is no master copy, so write 0.
# - Count a second copy of the gradients only if both copies stay in memory, as in `megatron fp16`. Do not
#   count it if the step frees it again, as in `zero`. Autocast also frees the copies it makes.
# - The scales of 8-bit formats also count. Each block of numbers has a float32 scale, which makes 4/256 bytes
#   per number for blocks of 256.
# - In `deepseek-v3`, count only the linear layers, whose weights are in fp8.


# %% nbgrader={"grade_id": "recipes", "solution": true}
def recipe_bytes(name: str) -> tuple[float, float, float, float]:
    """(weights, gradients, master copy, moments) of the recipe, in bytes per parameter."""
    recipes = {"float32": (4, 4, 0, 8), "zero": (2, 2, 4, 8), "sgd": (4, 4, 0, 4)}
    ### BEGIN SOLUTION
    recipes |= {
        "autocast": (4, 4, 0, 8),
        "megatron bf16": (2, 4, 4, 8),
        "megatron fp16": (2, 2 + 4, 4, 8),
        "pure bf16": (2, 2, 0, 4),
        "deepseek-v3": (1 + 4 / 128**2, 4, 4, 4),
        "adam 8 bits": (2, 2, 4, 2 * (1 + 4 / 256)),
    }
    return recipes[name]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: dtypes</summary>The moments of an optimizer have the dtype of the parameters it was
# given. Print <code>model.head.weight.dtype</code> and <code>model.head.weight.grad.dtype</code> after a
# backward under <code>autocast</code>.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "recipes_check", "points": 6}
report = check("01_why_distribute/recipes", recipe_bytes)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/recipes", recipe_bytes, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% tags=["skip-in-grading"]
tried(lambda: plan_figures.recipe_bars(recipe_bytes, billions=6.74, room=80), recipe_bytes)

# %% [markdown]
# **Measure.** The cell runs one step of each of five recipes on a small model, and then counts the bytes of
# all tensors. (For `zero`, it uses bf16 instead of fp16, but the bytes are the same.)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def one_step(dtype=torch.float32, **recipe):
    """Bytes per parameter after one step, as (weights, gradients, master copy, moments)."""
    torch.manual_seed(0)
    tokens = torch.randint(256, (2, 64), device=device())
    return planning.recipe_states(GPT(PRESETS["0.1M"]).to(device(), dtype), tokens, **recipe)


RUN = {
    "float32": {},
    "autocast": {"autocast": True},
    "zero": {"dtype": torch.bfloat16, "master": True},
    "pure bf16": {"dtype": torch.bfloat16},
    "sgd": {"optimizer": torch.optim.SGD, "momentum": 0.9},
}
print("             weights  gradients  master copy  moments     yours, as a sum")
for name, options in RUN.items():
    measured, yours = one_step(**options), said(recipe_bytes, name)
    columns = "{:8.2f} {:10.2f} {:12.2f} {:8.2f}".format(*measured)
    print(f"{name:11} {columns}   {sum(yours) if yours else '?':>10}, measured {sum(measured):.0f}")

# %% [markdown]
# Mixed precision does not shrink the model states, which take 16 bytes per parameter with or without it. But
# it shrinks activations and speeds up multiplication. With `zero`, ranks that exchange gradients send half as
# many bytes. With `autocast`, they send as many as before, because the gradients are in float32.
#
# <details><summary>In production</summary>The guides of frameworks state the sum, but they count different
# tensors:
#
# | source | bytes per parameter | the optimizer's part divided by d ranks (stage 1, see §7) |
# |---|---|---|
# | ZeRO, §3.1 | 2 + 2 + 12 = 16 | 4 + 12/d |
# | Megatron Core, bf16 with float32 gradients | 18 | 6 + 12/d |
# | Megatron Core, fp16 with fp16 gradients | 20 | 4 + 16/d |
# | Megatron Core, float32 | 16 | 8 + 8/d |
# | DeepSeek-V3, §3.3 | 13, for linear layers | 5 + 8/d (its §3.2) |
#
# </details>
# <details><summary>In the lectures</summary>Several numbers in the lectures count different parts. Lecture 000
# says that a 7B model with Adam has optimizer states of ~28 GB, but this is the size of m and v in 16 bits,
# without a master copy. Lecture 002 says that Adam needs 8 bytes per parameter, and that "1B = 10 GB". These
# 10 bytes per parameter are m, v and 2 bytes of weights, without master copy and gradients. Lecture 003
# multiplies 28 GB of weights by 4, which is right for plain float32. Lecture 001 says that 12P is "momentum
# and variance". But momentum and variance are only 8P, and the rest is the master copy. The lecture's "350GB+
# in fp32" for GPT-3 are weights in 16 bits, since 175B in float32 take 700 GB.</details>

# %% [markdown]
# ### Optional: two savings at once
#
# **Break it.** Combine two savings. Convert the model to bf16 *and* run it under autocast. How many of the 16
# bytes are left, and what does the step do to a weight near 1?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
print("bytes per parameter:", sum(one_step(torch.bfloat16, autocast=True)))
for dtype in (torch.float32, torch.bfloat16):
    weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 1001).to(dtype))
    before = weight.detach().clone()
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0)
    for _ in range(10):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    moved = (before - weight.detach()).double()
    print(f"{dtype}: after ten steps of 0.001 the weights moved by {moved.mean():.4f} on average,")
    print(f"    and {(moved == 0).double().mean():.0%} of them did not move at all")

# %% [markdown]
# 8 bytes are left, because all tensors are in bf16. Autocast adds nothing, so there is no float32 copy of the
# weights. The bf16 numbers next to 1 are 0.0078 above it and 0.0039 below it, so a step of 0.001 is rounded
# away every time. A float32 master copy would keep such steps. Notebook 09 rounds in a way that loses less.

# %% [markdown]
# ## 5 · How fast: the roofline *(optional)*
#
# | | |
# |---|---|
# | you will write | `matmul_seconds`, `ridge` and `least_tokens` |
# | builds on | §2 |
# | time | 25 minutes |
# | difficulty, importance | 2 and 3 of 5 |
# | points | 6 |
#
# A matrix product takes time for its arithmetic, and time to read its factors from memory and to write the
# result. Both happen at the same time, so the longer time decides (Williams et al. 2009). Each of the two
# times is the work divided by the speed. The table shows work and speed for the product (m, k) @ (k, n):
#
# | | work | at a speed of |
# |---|---|---|
# | arithmetic | 2 m k n FLOPs | `flops`, FLOP/s |
# | memory | (m k + k n + m n) · itemsize bytes, each matrix once | `bandwidth`, bytes/s |
#
# In a layer, (k, n) is the shape of the weight and m is the number of tokens. For each m, the picture shows
# the most TFLOP/s a product with a weight of 4,096 × 4,096 can reach on an H100 and on an A100. The dotted
# lines are the peaks of the two GPUs. All numbers come from data sheets.

# %% tags=["skip-in-grading"]
plan_figures.reach([H100, A100])

# %% [markdown]
# **Predict and build.** `matmul_seconds` returns the longer of the two times. `ridge` returns the number of
# FLOPs per byte above which arithmetic takes longer than memory. `least_tokens` returns the least m, not
# rounded, at which arithmetic takes longer, for a very large weight. (Then almost all memory traffic is the
# k n numbers of the weight.) An H100 has 989e12 FLOP/s in bf16 and 3,350e9 bytes/s. First work out the
# H100's least m in your head.


# %% nbgrader={"grade_id": "roofline", "solution": true}
def matmul_seconds(
    m: int, k: int, n: int, flops: float, bandwidth: float, itemsize: float = 2
) -> float:
    """Least time of (m, k) @ (k, n), in seconds. flops: FLOP/s. bandwidth: bytes/s."""
    ### BEGIN SOLUTION
    moved = (m * k + k * n + m * n) * itemsize
    return max(2 * m * k * n / flops, moved / bandwidth)
    ### END SOLUTION


def ridge(flops: float, bandwidth: float) -> float:
    """The FLOPs per byte above which arithmetic takes longer than memory."""
    ### BEGIN SOLUTION
    return flops / bandwidth
    ### END SOLUTION


def least_tokens(flops: float, bandwidth: float, itemsize: float = 2) -> float:
    """The least m, not rounded, at which (m, k) @ (k, n) with large k, n is bound by arithmetic."""
    ### BEGIN SOLUTION
    return flops * itemsize / (2 * bandwidth)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: least_tokens</summary>Write down both times, counting only the k n numbers of the
# weight as memory traffic, and set them equal. Then k n cancels.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "roofline_check", "points": 6}
report = check("01_why_distribute/roofline", matmul_seconds, ridge, least_tokens)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/roofline", matmul_seconds, ridge, least_tokens, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% tags=["skip-in-grading"]
for card in (A100, H100, gpu("B200")):
    if (edge := said(ridge, card.flops, card.bandwidth)) and said(least_tokens, 1, 1):
        tokens = least_tokens(card.flops, card.bandwidth)
        print(
            f"{card.name:9} ridge {edge:4.0f} FLOPs per byte, bound by arithmetic from {tokens:.0f} tokens"
        )

# %% [markdown]
# From the A100 to the H100, the speed of arithmetic grew more than the speed of memory, so the least m nearly
# doubled. A rank that gets few tokens (as in *strong scaling*, in which many ranks share a fixed batch)
# reaches only a few percent of its peak. A rank that generates one token at a time (inference) reaches less
# than one percent.
#
# **Measure.** The cell measures this machine, in float32, on one thread. The highest speed of any square
# product counts as the peak, and the fastest pass that only *reads* a large matrix gives the bandwidth. Then
# it measures products with a weight of 4,096 × 4,096, and draws them below the roof your function predicts.
# Everything is measured six times, and the best time counts.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def timed(function, clock=time.thread_time):
    """Return the seconds this thread spent on a core. Time in which another program
    has the core does not count."""
    began = clock()
    function()
    return clock() - began


def this_machine(rounds=3):
    """Return the FLOP/s of square products by size, bytes/s, and the least seconds of products
    by m, all in float32 on one thread."""
    weight, vector = torch.randn(4096, 4096), torch.randn(4096)
    squares = {size: torch.randn(size, size) for size in (8, 128, 256, 512, 1024, 2048)}
    rows = {m: torch.randn(m, 4096) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    jobs = {("square", size): (lambda x=x: x @ x) for size, x in squares.items()}
    jobs |= {("row", m): (lambda x=x: x @ weight) for m, x in rows.items()}
    jobs |= {
        ("read", "sum"): weight.sum, ("read", "mv"): lambda: weight.mv(vector),
        ("read", "max"): weight.max,
    }  # fmt: skip
    best = dict.fromkeys(jobs, math.inf)
    for _ in range(rounds):
        for name, job in jobs.items():
            best[name] = min(best[name], timed(job), timed(job))
    square = {size: 2 * size**3 / best["square", size] for size in squares}
    bandwidth = max(weight.nbytes / best["read", how] for how in ("sum", "mv", "max"))
    return square, bandwidth, {m: best["row", m] for m in rows}


threads = torch.get_num_threads()
torch.set_num_threads(1)
try:
    square, bandwidth, seconds = this_machine()
finally:
    torch.set_num_threads(threads)
peak = max(square.values())
print(f"peak {peak / 1e9:.0f} GFLOP/s, memory {bandwidth / 1e9:.1f} GB/s")
if ready(ridge, least_tokens):
    print(
        f"ridge {ridge(peak, bandwidth):.1f} FLOPs per byte, "
        f"bound by arithmetic from {least_tokens(peak, bandwidth, 4):.0f} tokens"
    )


tried(lambda: plan_figures.under_the_roof(matmul_seconds, peak, bandwidth, seconds), matmul_seconds)

# %% [markdown]
# From a few rows on, the points climb with m, but they stay below the roof, because a library's kernel does
# not reach both limits at the same time. (For one or two rows the kernel is different, so these points might
# be level.) A point above the slope would mean that the measured bandwidth is too low.
#
# **Break it.** The roof also predicts a time for a product of two 8 × 8 matrices. The cell measures the real
# time:

# %% tags=["nbval-ignore-output", "skip-in-grading"]
print(f"8 x 8: {square[8] / 1e9:.2f} GFLOP/s, at a peak of {peak / 1e9:.0f}", end="")
if promised := said(matmul_seconds, 8, 8, 8, peak, bandwidth, 4):
    print(f", but the roof predicts {2 * 8**3 / promised / 1e9:.0f}")

# %% [markdown]
# Most of the time is spent on the call instead of the arithmetic. The call passes through Python, PyTorch's
# dispatcher and, on a GPU, the start of a kernel. So calls form a third roof, which is the lowest for small
# products. Between its products, a model also runs norms, GELU and softmax, which move many bytes but do
# little arithmetic. So a forward and backward reach a smaller share of the peak than one large product.
#
# <details><summary>In the lectures</summary>Lecture 002 says "CPU RAM 10x slower, NVMe 100x". The 10x is
# right if the host reads its own memory. But a GPU reaches the host's memory over PCIe, which is 64x (A100 with 80
# GB) and 52x (H100) slower than the GPU's memory.</details>

# %% [markdown]
# ## 6 · How long, how large
#
# | | |
# |---|---|
# | you will write | `days`, `tokens_per_second_per_gpu` and, *optional*, `compute_optimal` |
# | builds on | §2 |
# | time | 10 minutes, and 21 for the *optional* ends |
# | difficulty, importance | 2 and 2 of 5 |
# | points | 6 |
#
# A run of D tokens takes C = 6 N D FLOPs, and a GPU does `mfu · flops` of them per second. From these two
# numbers you can compute the days of a run, and the tokens per second of a GPU. The MFU is the share of the
# dense peak that a run reaches (§2). The cell lists the published MFU of large runs (PaLM, table 3; Llama 3,
# table 4):

# %% tags=["skip-in-grading"]
for name, percent in PUBLISHED_MFU.items():
    print(f"{name:42} {percent:5.1f} %  {'#' * round(percent / 2)}")

# %% [markdown]
# For a plan, 40 % is a realistic MFU. Llama 3 reports 430, 400 and 380 TFLOP/s on each H100, which is 43, 41
# and 38 % of 989, to within a point. (A data sheet also prints 1,979 TFLOP/s, "with sparsity". Measured
# against this peak, the same 400 TFLOP/s are only 20 %.) In *On your GPUs*, you measure your own MFU.
#
# **Predict.** How many days does Llama-3-8B with its 15T tokens take on 1, 8 and 1,024 H100s at 40 %?
#
# **Build.** Write `days` and `tokens_per_second_per_gpu`. `compute_optimal` earns about 4 of the 6 points,
# but is *optional*. It is explained under "How large?" below, so leave it as it is for now.


# %% nbgrader={"grade_id": "budgets", "solution": true}
def days(params: float, tokens: float, gpus: int, flops: float, mfu: float = 0.4) -> float:
    """Days of training on `gpus` GPUs with a peak of `flops` FLOP/s each."""
    ### BEGIN SOLUTION
    return 6 * params * tokens / (gpus * flops * mfu) / 86_400
    ### END SOLUTION


def tokens_per_second_per_gpu(params: float, flops: float, mfu: float) -> float:
    """Tokens per second that a GPU with a peak of `flops` FLOP/s trains on."""
    ### BEGIN SOLUTION
    return flops * mfu / (6 * params)
    ### END SOLUTION


def compute_optimal(budget: float, law: tuple[float, ...]) -> tuple[float, float]:
    """The (parameters, tokens) of least loss by `law` = (E, A, B, α, β),
    with 6 · parameters · tokens = `budget` FLOPs."""
    ### BEGIN SOLUTION
    _, a, b, alpha, beta = law
    params = (alpha * a / (beta * b) * (budget / 6) ** beta) ** (1 / (alpha + beta))
    return params, budget / (6 * params)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: <code>compute_optimal</code>, the derivative</summary>With M = C/6 the law is
# E + A N^−α + B N^β M^−β. Its derivative is zero where α A N^−α = β B N^β M^−β. Solve for N.</details>
#
# **Check.** Without `compute_optimal`, two lines stay red.

# %% nbgrader={"grade_id": "budgets_check", "points": 6}
report = check("01_why_distribute/budgets", days, tokens_per_second_per_gpu, compute_optimal)
### BEGIN HIDDEN TESTS
report = check(
    "01_why_distribute/budgets", days, tokens_per_second_per_gpu, compute_optimal, cases="hidden"
)
### END HIDDEN TESTS
report.points(6)

# %% tags=["skip-in-grading"]
for gpus in (1, 8, 1024):
    taken = said(days, 8e9, 15e12, gpus, H100.flops)
    print(f"Llama-3-8B, 15T tokens, {gpus:5,} H100: {taken:8,.0f} days")
if taken := said(days, 70e9, 15e12, 1, H100.flops):
    print(f"and 70B on one H100: {taken / 365.25:.0f} years")

# %% [markdown]
# Memory is the first reason to distribute. Time is the second, because one H100 would take 58 years to train
# Llama-3-8B, even if the model fitted into its memory.
#
# <details><summary>In production</summary>Training frameworks print such numbers in their logs. torchtitan
# prints tokens/s/GPU, TFLOP/s and MFU, nanoGPT prints the MFU, and Megatron-LM prints the TFLOP/s of each
# GPU. They measure the tokens/s/GPU, which your
# <code>tokens_per_second_per_gpu</code> predicts. Look up which peak and which N a framework uses.</details>
#
# ### Optional: published runs
#
# **Measure.** The first two lines compare the FLOPs stated in two papers with yours. The other papers do not
# state an MFU, so the cell derives it from the results of your functions for an MFU of 100 %. It divides your
# days by the days the run took, or the paper's tokens per second by yours.


# %% tags=["skip-in-grading"]
def compared_with_papers():
    by_name = {run.name: run for run in RUNS}
    for name, published in (("GPT-3", 3.14e23), ("Llama-3-405B", 3.8e25)):
        run = by_name[name]
        flops = days(run.params, run.tokens, 1, 1, 1) * 86_400
        print(f"{name:13} FLOPs: published {published:.3g}, yours {flops:.3g}")
    llama, v3 = by_name["LLaMA-65B"], by_name["DeepSeek-V3"]
    mfu = {
        run.name: days(run.params, run.tokens, run.gpus, run.peak, 1)
        / (run.gpu_hours / run.gpus / 24)
        for run in (llama, v3)
    }
    print(f"{llama.name:13} MFU by its days   {mfu[llama.name]:6.1%}")
    speed = tokens_per_second_per_gpu(llama.params, llama.peak, 1)
    print(f"{llama.name:13} MFU by its speed  {380 / speed:6.1%}, from 380 tokens/s/GPU")
    print(f"{v3.name:13} MFU by its days   {mfu[v3.name]:6.1%} of the peak of bf16")
    print(f"{v3.name:13}                   {mfu[v3.name] / 2:6.1%} of the peak of fp8")
    taken = days(405e9, 15.6e12, 16_384, 400e12, 1)
    print(f"Llama 3 405B at the published 400 TFLOP/s on 16,384 GPUs: {taken:.0f} days at least")


tried(compared_with_papers, days, tokens_per_second_per_gpu)

# %% [markdown]
# So LLaMA-65B trained at nearly 48 % of the peak, whether you go by its days or by its speed. DeepSeek-V3
# multiplies in fp8. (N is the 37B of its 671B parameters that a token uses.) With the peak of bf16, its
# MFU is 34.6 %. With the peak of fp8, it is only 17.3 %. So an MFU means nothing unless you know the
# peak by which it was divided.
#
# ### Optional: how large?
#
# If the budget C is *given*, which N is best? A large model sees few tokens, whereas a small model learns
# little from many tokens. A *scaling law* is a fit of the loss,
#
# L(N, D) = E + A / N^α + B / D^β,
#
# and on the line 6 N D = C, this loss has a minimum.
#
# **Build.** In the cell of `days` above, write `compute_optimal`, which returns this minimum as (N, D), and
# run the check again. Set D = C/(6N). Then set the derivative with respect to N to zero, or search for the
# minimum. `law` is (E, A, B, α, β).
#
# The paper that most plans cite is about the model Chinchilla (Hoffmann et al. 2022). Chinchilla has 70B
# parameters and was trained on 1.4T tokens, which is 20 per parameter. It is said to be compute-optimal for
# 5.76e23 FLOPs, the budget of the model Gopher. The picture shows the loss on the line 6 N D = C for this
# budget according to two laws, the law printed in the paper and a second fit of the same data by Besiroglu et
# al. (2024). Above the picture, your function prints the minimum of these two laws and of a third.


# %% tags=["skip-in-grading"]
for name, law in LAWS.items():
    if best := said(compute_optimal, CHINCHILLA, law):
        n, d = best
        exponents = f"α {law.alpha}, β {law.beta}"
        print(
            f"{name:12} {exponents:20} {n / 1e9:5.1f}B, {d / 1e12:.2f}T tokens, {d / n:5.1f} per parameter"
        )
plan_figures.along_the_budget()

# %% [markdown]
# The printed law gives 32B and 93 tokens per parameter, so it contradicts the model of its own paper. But
# your function is right, and the contradiction has two causes. The law `TeX source` has the exponents with
# four digits, which Besiroglu et al. found in the source text of the paper. It gives 40B, and figure 4 of the
# paper also projects 40B. So **rounding** to two digits explains the difference between 40B and 32B. The law
# `replication` is fitted to the points in the paper's own figures, and gives 72B and 18 tokens per parameter.
# So **the fit** explains the difference between 40B and 72B. According to Besiroglu et al., the optimizer of
# the paper's fit stopped early, because the losses were averaged instead of summed. Their own constants are
# uncertain as well, since B has a standard error of 1,293.
#
# How much do the laws differ for other budgets? In the picture, each dot is a real model, with the parameters
# and tokens its authors chose.


# %% tags=["skip-in-grading"]
tried(lambda: plan_figures.laws_and_models(compute_optimal), compute_optimal)

# %% [markdown]
# A model below a line is smaller than the law recommends, and was trained on more tokens. Llama-3-8B is far
# below all lines on purpose, because a small model costs less each time it is *used*. The laws count only the
# cost of training.

# %% [markdown]
# ## 7 · When one GPU is not enough
#
# | | |
# |---|---|
# | you will write | `first_that_fits(config, gpus, room, batch, seq)` |
# | builds on | §1 `parameters`, §3 `activation_bytes` |
# | time | 28 minutes, and 7 for the *optional* end |
# | difficulty, importance | 2 and 4 of 5 |
# | points | 8 |
#
# This section uses two ways to save memory on a GPU. *Sharding* (notebooks 04 and 05) has three stages, which
# divide more and more of the model states among the GPUs. Stage 0 means plain replicas, and divides nothing.
# *Checkpointing* (notebook 09) keeps only the blocks' inputs. The picture shows the eight combinations for a
# GPT of 6.7 billion parameters on 8 GPUs of 80 GB, with 4 sequences of 2,048 tokens on each.

# %% tags=["skip-in-grading"]
from course_lib.pictures.memory_figures import strategy_map

GPT_7B = GPTConfig(50257, 2048, layers=32, heads=32, width=4096)  # Brown et al. 2020, table 2.1
# There, the 13B model has width 5140, but 40 heads need a multiple of 40.
GPT_13B = GPTConfig(50257, 8192, layers=40, heads=40, width=5120)
plan_figures.layout_bars(GPT_7B, gpus=8, batch=4, seq=2048, room=80e9)

# %% [markdown]
# The *bill* of a GPU adds up everything in its memory, and has six lines. (You can hardly see the gathered
# block of stage 3 in the picture.) Weights and gradients are in 16 bits, and Adam's part is 12 bytes per
# parameter:
#
# | | bytes on each GPU | divided by the number of GPUs from this stage on |
# |---|---|---|
# | weights | 2 P | 3 |
# | gradients | 2 P | 2 |
# | optimizer | 12 P | 1 |
# | gathered block | only in stage 3, the full weights and gradients of *one* block, 4 · (parameters of a block) | |
# | activations | `activation_bytes` of this GPU's batch in 16 bits, checkpointed or not | never |
# | logits | once in float32 and once in 16 bits, 6 T V | never |
#
# You should take the cheapest layout that fits. With one microbatch per step, stages 1 and 2 send no more
# bytes than replicas do (notebook 04). Stage 3 sends one and a half times as many, but much of this traffic
# can be hidden (notebook 05). Checkpointing costs a third more FLOPs. So the order of cost is stage 0, 1, 2,
# 3 without checkpointing, then 0, 1, 2, 3 with it.
#
# **Predict.** Which layout do you take for the 6.7B model and the 8 GPUs of the picture? And on a single GPU?
#
# **Build.** `room` is the number of bytes that training can use on each GPU, and `batch` and `seq` are for
# one GPU. A bill exactly as large as the room still fits. Return `(stage, checkpoint)`, such as `(3, False)`,
# or None if nothing fits. The stub already computes P, the parameters of a block, and the bytes of the
# logits.


# %% nbgrader={"grade_id": "first_that_fits", "solution": true}
def first_that_fits(
    config: GPTConfig, gpus: int, room: float, batch: int, seq: int
) -> tuple[int, bool] | None:
    """The cheapest (stage, checkpoint) with a bill of at most `room` bytes per GPU, or None."""
    count = sum(parameters(config).values())
    with_another = sum(parameters(replace(config, layers=config.layers + 1)).values())
    block = with_another - count
    logits = 6 * batch * seq * config.vocab_size
    ### BEGIN SOLUTION
    for checkpoint in (False, True):
        kept = logits + activation_bytes(config, batch, seq, checkpoint=checkpoint)
        for stage in range(4):
            states = sum(
                nbytes * count / (gpus if stage >= least else 1)
                for nbytes, least in ((2, 3), (2, 2), (12, 1))
            )
            whole = 4 * block if stage == 3 else 0
            if states + whole + kept <= room:
                return stage, checkpoint
    return None
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: the order</summary>Write two loops, with checkpoint in the outer loop and stage in
# the inner one. Return the first layout that fits.</details>
#
# **Check.** The check includes sixty plans in which a layout only just fits or only just doesn't.

# %% nbgrader={"grade_id": "first_that_fits_check", "points": 8}
report = check("01_why_distribute/first_that_fits", first_that_fits)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/first_that_fits", first_that_fits, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure: the map.** The cell answers the prediction. Then it draws a map of models and numbers of GPUs,
# coloured by the answers of your function. Each GPU has one sequence of 4,096 tokens and 70 GB of room, as
# CUDA, NCCL and gaps in memory take some of the 80 GB. Blue fields need no checkpointing, orange fields need
# it, and in white fields nothing fits. In a live notebook, sliders change the room and the tokens. (Your
# formula counts the activations of GPT-2's parts. But LLaMA's parts keep half as much again, 24.3 GB instead
# of 16.1 GB for Llama-3-8B, so the rows of the LLaMA models are too optimistic.)

# %% tags=["nbval-ignore-output", "skip-in-grading"]
for gpus in (8, 1):
    layout = said(first_that_fits, GPT_7B, gpus, 80e9, 4, 2048)
    print(f"6.7B on {gpus} GPU{'s' if gpus > 1 else ''}, with the picture's batch: {layout}")
drawn = tried(lambda: strategy_map(first_that_fits), first_that_fits)
drawn

# %% [markdown]
# Read a row from left to right. More GPUs allow a cheaper layout, until the colour no longer changes. From
# there on, more GPUs only save time. With 32,768 tokens, more of the map is white, and for the three largest
# models no number of GPUs helps, because *no stage divides the activations of one sequence, or its logits*.
# For a white field, you can split each layer (notebook 06), put layers on different GPUs (07), cut the
# sequence (08), or keep less (09).
#
# **In production.** Some tables give advice by the size of the model, such as "below 10B on one GPU" and "10
# to 70B with ZeRO-2" (stage 2). Look at your map instead. At 16 bytes per parameter, 80 GB hold at most 5B
# parameters, with no byte left for activations. And ZeRO-2 keeps 2P bytes of weights on every GPU, which is
# 140 GB for 70B. So the size of the model is not enough to choose a layout.
#
# <details><summary>In the lectures</summary>The table is lecture 001's "When to use what". Its own example of
# a 7B model on one GPU needs 112 GB.</details>

# %% [markdown]
# ### Optional: a bill with sliders, and the room that is left
#
# The next cell shows the same bill with more controls, and counts the activations of LLaMA's parts exactly.
# In a live notebook, choose the model, batch, stage, recipe and GPU. Below the bill you see the real run of
# §3. Take Llama-3-8B on 8 H100s with the recipe `zero`. How many sequences of 4,096 tokens fit on each GPU
# without checkpointing?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.calculator import calculator

calculator(measured=globals().get("timeline"))  # the run of §3, if its cell has run

# %% [markdown]
# With stage 3 two sequences fit, in 71.7 of the 80 GB. Three sequences need 99 GB, and stages 0 to 2 have
# room for at most one.
#
# **Break it.** Suppose you plan with all of the card's 80 GB. How many answers on the map would be different
# with 70 GB?


# %% tags=["skip-in-grading"]
def changed_answers():
    full, careful = drawn.answers(80e9, 4096), drawn.answers(70e9, 4096)
    fields = [
        (label.split("  ")[0], gpus, a, b)
        for label, row_a, row_b in zip(drawn.labels, full, careful, strict=True)
        for gpus, a, b in zip(drawn.gpus, row_a, row_b, strict=True)
        if a != b
    ]
    print(f"{len(fields)} of {len(drawn.labels) * len(drawn.gpus)} answers differ, for example:")
    for model, gpus, a, b in fields[:4]:
        print(f"  {model} on {gpus} GPUs: {a} with 80 GB, {b} with 70 GB")


tried(changed_answers, first_that_fits) if drawn else None

# %% [markdown]
# If only 70 GB are left for training, each of these plans for 80 GB stops with "out of memory", perhaps after
# an hour. Other things also take memory. CUDA's context and its kernels take about 0.3 GB, or more than 1 GB
# before CUDA 11.7 (PyTorch issue 107667). NCCL takes 0.5 to 1.6 GB for a first communicator (NCCL issues 864,
# 964), and the allocator's pieces leave gaps. You have to measure the total on your cluster. The section *On
# your GPUs* measures the allocator's share, and `torch.cuda.mem_get_info()` gives the free bytes of the whole
# GPU.

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them the cells show a recorded run, if there is
# one.*
#
# **Predict.** The column *predicted* shows your `matmul_seconds` for the peak and the bandwidth of the card's
# data sheet. Which of the four products will come close to the prediction, and which will take many times as
# long?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.arithmetic import ROOFLINE
from course_lib.gpu.training import ONE_STEP


def least_seconds(of, run):
    if "n" in of:
        return matmul_seconds(of["n"], of["n"], of["n"], run.card.flops, run.card.bandwidth)
    return of["bytes"] / run.card.bandwidth  # the copy reads and writes


on_gpus = on_your_gpus(ROOFLINE, predicted=least_seconds)

# %% [markdown]
# An 8 x 8 product takes some tens of microseconds, because Python and the driver need this long to start a
# kernel and to report its end. The roofline does not include this time. The row for the copy shows how much
# of the data sheet's bandwidth a kernel reaches.
#
# **Predict.** Now take a whole step of GPT-2 small with AdamW, 8 sequences of 1,024 tokens, and autocast to
# 16 bits. The cell predicts the time at the card's peak, and the bytes you know from §3 and §4, which are 16
# per parameter plus the activations. What MFU do you expect?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def at_the_peak(of, run):
    config = PRESETS[of["preset"]]
    if of["kind"] == "peak":
        states = sum(recipe_bytes("autocast")) * sum(parameters(config).values())
        return states + activation_bytes(config, of["batch"], of["seq"])
    least = step_flops(config, of["batch"], of["seq"]) / run.card.flops
    return {"step": least, "tokens": of["batch"] * of["seq"] / least}.get(of["kind"])


on_gpus = on_your_gpus(ONE_STEP, predicted=at_the_peak)
# %% [markdown]
# In the first row the last column is 1/MFU, and in the second row it is the MFU. The logits are not in your
# `activation_bytes`. These 8 · 1,024 · 50,257 numbers take 1.6 GB in float32, and the loss needs more than
# one copy of them. Autocast also keeps the inputs of the norms in float32. On the other hand, memory is
# highest at the beginning of backward, when there are no gradients yet, so 4 of the 16 bytes per parameter
# are not in use. The allocator also reserves more than it hands out, because it takes large pieces from the
# card and cuts them.

# %% [markdown]
# ## 8 · Questions: audit the plan
#
# | | |
# |---|---|
# | builds on | all sections |
# | time | 20 minutes |
# | points | 6 |
#
# The plan at the top trains a 70B model (80 layers, h = 8,192) on 64 H100s. There are 8 replicas of 8 GPUs,
# which share 2,048 sequences of 4,096 tokens. Each replica has 4 microbatches, and keeps a checkpoint every 4
# layers. A number may be an expression, such as `7 / 8 * 989e12`, but names like `H100` do not exist when it
# is graded.
#
# 1. A checkpoint is the input of a layer in 16 bits, and every GPU of a replica keeps all of it. How many
#    **GB** of checkpoints does each GPU keep for one microbatch?
# 2. At 40 % of an H100's dense 989 TFLOP/s, how many **tokens a second** does each GPU train on, with N =
#    70e9?
# 3. A slide about a 7B model (h = 4,096, 32 heads, V = 32,000) reads "16 billion elements, 64 GB" for a
#    tensor of 1,000 × 4,096 × 4,096 numbers in float32, at a batch of 1,000 sequences of 4,096 tokens. Which
#    tensor has this size? `"one activation of the whole batch"`, `"the weights"`, `"one layer's scores"` or
#    `"the logits"`
# 4. The plan's model has an MLP with two matrices and an inner width of 4h. Above how many **tokens** in a
#    sequence do the two products of attention (masked scores included) take more FLOPs than the MLP?
# 5. You use 8 GPUs as replicas instead of one GPU, and divide the batch among them. Which becomes smaller on
#    each GPU, the memory of the model states or the time of a step? `"memory"`, `"time"` or `"both"`
# 6. Take `GPT_13B` of §7 with one sequence of 8,192 tokens on each of 8 GPUs of 80 GB. Which layout is the
#    cheapest? `"stage 3"`, `"stage 1, checkpointed"`, `"stage 2, checkpointed"` or `"stage 3, checkpointed"`

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # GB
answer_2 = ...  # tokens a second
answer_3 = ...  # one of the four texts
answer_4 = ...  # tokens
answer_5 = ...  # "memory", "time" or "both"
answer_6 = ...  # one of the four texts
### BEGIN SOLUTION
answer_1 = 2048 / 8 / 4 * 4096 * 8192 * 2 * 80 / 4 / 1e9
answer_2 = 0.4 * 989e12 / (6 * 70e9)
answer_3 = "one activation of the whole batch"
answer_4 = 16 * 8192 / 4
answer_5 = "time"
answer_6 = "stage 1, checkpointed"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 6}
report = check(
    "01_why_distribute/questions", answer_1, answer_2, answer_3, answer_4, answer_5, answer_6
)
### BEGIN HIDDEN TESTS
report = check(
    "01_why_distribute/questions",
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
# **The verdict.** Once you have answered, the cell applies your functions to the plan.


# %% tags=["skip-in-grading"]
def verdict():
    config, tokens = PUBLISHED["Llama-2-70B"], 1.4e12  # as many as Chinchilla
    count = sum(parameters(config).values())
    speed = tokens_per_second_per_gpu(70e9, H100.flops, 0.4)
    batch = next(b for b in (64, 32, 16, 8, 4, 2, 1) if first_that_fits(config, 64, 70e9, b, 4096))
    layout = first_that_fits(config, 64, 70e9, batch, 4096)
    print(f"parameters: {count / 1e9:.1f}B, but GPT-3, whose scale the plan claims, has 175B")
    print(f"model states, stage 3 over all 64 GPUs: {16 * count / 64 / 1e9:.1f} GB on each GPU")
    print(f"checkpoints of a microbatch: {answer_1:.1f} GB on each GPU, which has 80 GB")
    print(
        f"tokens/s/GPU: yours {speed:.0f}, which is {speed / 3:.0f} to {speed / 2:.0f} times the plan's"
    )
    for share, what in ((0.4 * 3 / speed, "3 tokens/s/GPU"), (0.4, "40 %")):
        years = days(70e9, tokens, 64, H100.flops, share) / 365.25
        print(f"Chinchilla's 1.4T tokens on 64 H100s at {what}: {years:,.1f} years")
    print(f"no layer split, 70 GB: {batch} sequences of 4,096 tokens per GPU, layout {layout}")


if answer_1 is not ...:
    tried(verdict, first_that_fits, parameters, tokens_per_second_per_gpu, days)

# %% [markdown]
# So do not sign. The throughput is wrong by a factor of 314 to 471, and so is every date computed from it.
# The checkpoints of one microbatch already need more memory than a card has. And GPT-3 is a much larger
# model. But you can train 70B on these GPUs. The last line names a layout that fits 64 GPUs without splitting
# a layer. At an MFU of 40 %, Chinchilla's 1.4T tokens take nearly nine months.
#
# <details><summary>In the lectures</summary>The plan is recipe 2 of lecture 001. The recipe also calls the
# model "GPT-3 scale", and gives each GPU "32" sequences. With sequence parallelism (notebook 06) the
# checkpoints would be divided by 8. Question 3 comes from lecture 003. The recipe also shards with FSDP
# "within each replica", but FSDP shards a model across the replicas.</details>

# %% [markdown]
# ## 9 · Optional: two laws that disagree
#
# | | |
# |---|---|
# | you will write | `crossover(law1, law2)` |
# | builds on | §6 |
# | time | 15 minutes |
# | difficulty, importance | 2 and 1 of 5 |
# | extra credit | 3 points, on top of the 60. You lose nothing if you skip it |
#
# Two laws can agree about small models but recommend different large models. In the last picture of §6, the
# lines are straight on logarithmic axes, because the best N is a power of the budget, with the exponent β/(α
# + β). So the ratio between the N of two laws is a power of the budget as well.
#
# **Predict.** With which of the three laws does N grow fastest?
#
# **Build.** `crossover` returns the budget in FLOPs *above which* the N of the two laws differ by a factor of
# 2 or more, whichever N is larger. The laws can cross below this budget, but above it they have to stay
# apart.


# %% nbgrader={"grade_id": "crossover", "solution": true}
def crossover(law1: tuple[float, ...], law2: tuple[float, ...]) -> float:
    """The budget in FLOPs from which on the laws' N differ by a factor of 2 or more."""
    ### BEGIN SOLUTION
    at_unit = math.log(compute_optimal(6.0, law1)[0] / compute_optimal(6.0, law2)[0])
    slope = law1[4] / (law1[3] + law1[4]) - law2[4] / (law2[3] + law2[4])
    return 6.0 * math.exp((math.copysign(math.log(2), slope) - at_unit) / slope)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: two points make a line</summary>Take the logarithm of the ratio at two budgets. The
# slope tells you in which direction the laws diverge, and so whether you should look for a ratio of 2 or a
# half.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "crossover_check", "points": 0}
# Extra credit, 3 points
report = check("01_why_distribute/crossover", crossover)
### BEGIN HIDDEN TESTS
report = check("01_why_distribute/crossover", crossover, cases="hidden")
### END HIDDEN TESTS

# %% tags=["skip-in-grading"]
for first, second in (("printed", "replication"), ("TeX source", "replication")):
    if budget := said(crossover, LAWS[first], LAWS[second]):
        print(
            f"{first} and {second}: from {budget:.2g} FLOPs on, {budget / CHINCHILLA:.2g}x Chinchilla's budget"
        )

# %% [markdown]
# The printed law and the replication already differ by a factor of 2 below Chinchilla's own budget. With the
# exponents of four digits, this happens only at seven times that budget. Rounding moved this point down to a
# seventh of the budget.

# %% [markdown]
# ## Scorecard
#
# Most notebooks end with the same three criteria, measured on the ranks. They are redundant computation
# (FLOPs of all ranks over the FLOPs of one), the peak memory of a rank, and the bytes a rank sends. This
# notebook measures the row for one rank, with which you will compare all others. M is the 4P bytes of the
# parameters.
#
# How much do replicas save? The first line above the table is for the small model on one rank, and the next
# two lines are for two replicas, with half of the batch each.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def one_replica(batch):
    """Take one step of AdamW. Return this rank's costs (FLOPs, peak),
    and the bytes of its model states after the step."""
    torch.manual_seed(0)
    model = GPT(SMALL).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(256, (batch, 256), device=device())
    with costs(*model.parameters(), tokens) as spent:
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    return spent, sum(planning.held_bytes(model, optimizer).values())


def of_rank(batch):
    return one_replica(batch)[0]


for ranks, batch in ((1, 4), (2, 2)):
    for spent, states in launch(one_replica, batch, world_size=ranks):
        peak = f"peak {spent.peak_bytes / 1e6:.1f} MB"
        print(
            f"{batch} sequences: {spent.flops / 1e9:.2f} GFLOP, states {states / 1e6:.1f} MB, {peak}"
        )
alone = launch(of_rank, 4, world_size=1)
count = sum(param.numel() for param in GPT(SMALL).parameters())
scorecard({"one rank": alone}, unit=4 * count, flops_alone=alone[0].flops)

# %% [markdown]
# On one rank, nothing is computed twice and nothing is sent. But one memory has to hold everything, 4 M of
# states and the activations. Most strategies of this course reduce the peak memory, but pay for it with
# computation or with bytes sent.
#
# Each replica does half of the arithmetic of forward and backward, so it needs half of the time for them. But
# each replica holds all of the states, so two replicas hold twice the states of one. (They would also have to
# agree on their gradients, as in notebook 03.) Activations are halved because each replica has half of the
# sequences.
#
# **You have built** instruments that tell you, before anything runs, how many parameters, FLOPs, bytes and
# days a plan needs, and a meter that agrees to the byte with your formula for the activations.
#
# **Read on.**
# - Rajbhandari et al. (2020), *ZeRO*: §3 for the 16 bytes.
# - Korthikanti et al. (2022), *Reducing Activation Recomputation in Large Transformer Models*: §4.
# - Chowdhery et al. (2022), *PaLM*: appendix B for MFU. Williams et al. (2009), *Roofline*.
# - Hoffmann et al. (2022), *Training Compute-Optimal Large Language Models*, then Besiroglu et al. (2024),
#   *Chinchilla Scaling: A replication attempt*.
# - Hugging Face (2025), *The Ultra-Scale Playbook*: memory and speed, measured for many layouts.
# - In `course_lib/planning/`, `memory_timeline.py` records the memory for the picture of §3, and `saved.py`
#   is a meter like yours. Read them after you have written your own.
#
# <details><summary>In the lectures</summary>The three criteria come from lecture 003.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("01_why_distribute")
