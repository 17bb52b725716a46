# %% [markdown]
# # 09 · Precision and memory
#
# **What can be stored smaller, later, or not at all?**
#
# Everything in notebook 01's timeline is a stored number. This notebook asks three questions about such a
# number. Can it be stored in fewer bits? Can it be stored elsewhere, or later? Does it have to be stored at
# all?
#
# Each way to store less breaks something at first, and you will see how. For example, 95 % of gradients
# become zero, weights stop moving, or dropout drops different elements when a block runs again. With N ranks,
# more can go wrong. A single rank can skip a step, replicas can round differently, and a recomputation can
# send its messages again.
#
# | | |
# |---|---|
# | you will build | a function that rounds numbers to a format; a loss scaler for several ranks; stochastic rounding; tiles of 8-bit numbers with their scales; Adam with two bytes of state per parameter; checkpoints, which run a function again in backward instead of keeping its intermediate results; the best distance between checkpoints; optionally a loss that never stores all logits |
# | you need | the tensors autograd keeps for backward (notebook 01 §3); `all_reduce` (notebook 02); the all-reduces of a tensor-parallel block (notebook 06) |
# | time | three hours, with a break after §4. The *optional* parts (§5, §7, §9, and the ends of §2, §4 and §6) take two hours more |
# | points | 60, and 4 of extra credit |
# | on a rented machine | nothing to rent, because two cores are enough. If you have a GPU, the section *On your GPUs* measures it |
#
# | section | minutes | points | builds on |
# |---|---|---|---|
# | 1 A float from its bits | 25 | 8 | |
# | 2 Loss scaling, and the ranks that must agree on it | 35, and 8 *optional* | 10 | 1 |
# | 3 Updates that are lost | 21 | 6 | 1 |
# | 4 Eight bits and their scales | 30, and 7 *optional* | 8 | 1 |
# | 5 Adam in 8 bits *(optional)* | 55 | 8 | 4 |
# | 6 Not stored: checkpointing | 52, and 7 *optional* | 14 | notebook 01 |
# | 7 Later, and not at all *(optional)* | 10 | | 6 |
# | 8 Questions | 10 | 6 | 1 to 4, 6 |
# | 9 Optional: the loss in pieces | 40 | 4 extra | |

# %% [markdown]
# ### Words
#
# <details><summary>A list to come back to: each word is used below with its meaning</summary>
#
# | | |
# |---|---|
# | exponent, mantissa | two parts of a float. The exponent says between which powers of two the float is, and the mantissa says where between these powers it is |
# | binade | the numbers from one power of two to the next. Within a binade, a format's numbers are equally far apart |
# | subnormal | a number too small for the lowest exponent of its format. The subnormal numbers of a format are equally far apart, so they lose bits as they get smaller |
# | fp16, bf16 | formats of 16 bits. fp16 has 5 bits of exponent and 10 of mantissa, and bf16 has 8 and 7 |
# | e4m3, e5m2 | formats of 8 bits. e4m3 has 4 bits of exponent and 3 of mantissa, and e5m2 has 5 and 2 |
# | e8m0 | a format of 8 bits that has only an exponent. The scales of MX are stored in e8m0 (§4) |
# | scale | a factor that numbers are multiplied by (§2) or divided by (§4) before they are stored, so that they fit into a format |
# | master copy | a float32 copy of the weights that the optimizer updates. Forward and backward use the master copy rounded to 16 bits |
#
# </details>

# %%
# If Python finds no module named course_lib or torch, or cannot import a name from course_lib, the course or
# this version of it is not installed here. Its README says below "Colab" and "Kaggle" what to run in a new
# cell above this one. Then run this cell again.
import gc
import math
import time
import warnings
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from IPython.display import display
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint as of_pytorch
from torch.utils.flop_counter import FlopCounterMode

from course_lib import check, device, launch, precision, recompute
from course_lib.data import batch, library_text
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pictures.colours import ALARM, BACKWARD, FORWARD, QUIET, WEIGHT_GRADIENT, picture
from course_lib.pictures.memory_figures import memory_figure
from course_lib.planning import MemoryTimeline, SavedBytes
from course_lib.scorecard import Row, Scorecard, costs
from course_lib.unfinished import ready, said

torch.set_num_threads(1)  # the last digits of a loss depend on the number of threads

# %% [markdown]
# The next cell holds the code of this notebook's pictures and training loops, and you don't have to read it.
# Later cells use `ready` and `said` to test whether you have written a function. Until it is written, its
# results are missing or print as "?". If a later cell needs a function of an earlier section, it takes the
# course's own version from `precision` or `recompute`. So you can begin with any section.


# %%
def plot(width=7.0, height=2.6):
    """Return a figure and its axes, with the course's colours and small labels."""
    figure = picture(width, height)
    axes = figure.subplots()
    axes.tick_params(labelsize=8, colors=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


SMALL = GPTConfig(layers=2, heads=2, width=32, context=128)


class Blocks:
    """The blocks of a GPT, as a stack. Forward can run segments of `every` blocks, each inside the
    checkpoint function `kind`."""

    def __init__(self, layers=8, width=128, batch=4, seq=256, **more):
        torch.manual_seed(0)
        self.model = GPT(GPTConfig(layers=layers, heads=4, width=width, context=seq, **more))
        self.x, self.positions = torch.randn(batch, seq, width), torch.arange(seq)

    def forward(self, every=0, kind=None):
        x, blocks = self.x.clone().requires_grad_(), self.model.blocks
        if every:
            return recompute.run_segments(blocks, x, self.positions, every=every, checkpoint=kind)
        for block in blocks:
            x = block(x, self.positions)
        return x

    def flops(self, every=0, kind=None):
        """Count the FLOPs of matrix products, in forward and backward."""
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            self.forward(every, kind).sum().backward()
        return counter.get_total_flops()

    def bytes(self, every=0, kind=None):
        """Return the bytes kept after forward, and the peak without the weights."""
        self.model.zero_grad()
        gc.collect()
        weights = sum(param.nbytes for param in self.model.parameters())
        with costs(*self.model.parameters()) as spent:
            with SavedBytes(self.model) as saved:
                y = self.forward(every, kind)
            y.sum().backward()
        return saved.total, spent.peak_bytes - weights


FORMS = {"bf16": (8, 7, FORWARD), "fp16": (5, 10, BACKWARD), "e5m2": (5, 2, WEIGHT_GRADIENT)}


def errors_picture():
    """Plot the mean relative error in each binade, by format."""
    figure, axes = plot()
    binades = torch.arange(-30, 20)
    values = torch.exp2(binades.double())[:, None] * torch.linspace(1, 2, 400).double()
    for name, (exponent, mantissa, colour) in FORMS.items():
        error = ((round_to(values, exponent, mantissa) - values).abs() / values).mean(1)
        axes.step(binades, error.clamp(max=1), label=name, color=colour, where="post")
    axes.set_yscale("log")
    axes.set_xlabel("log2 of the number", fontsize=8)
    axes.set_ylabel("relative error", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    return figure


def curves_picture(curves):
    """Plot the first weight of each run. curves: the weights by run, as (steps, weights)."""
    figure, axes = plot(7.0, 2.4)
    for (name, rows), colour in zip(curves.items(), (QUIET, ALARM, FORWARD), strict=False):
        axes.plot(rows[:, 0], color=colour, label=name, linewidth=1)
    axes.set_xlabel("step", fontsize=8)
    axes.set_ylabel("one weight", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    return figure


def losses_picture(clipped):
    """Plot the losses of both orders."""
    figure, axes = plot(7.0, 2.4)
    for order, colour in ((("unscale", "clip"), FORWARD), (("clip", "unscale"), ALARM)):
        axes.plot(clipped(order), color=colour, label=", then ".join(order))
    axes.set_xlabel("step", fontsize=8)
    axes.set_ylabel("loss", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    return figure


PARTS = 4096  # microbatches of 1,024 tokens


def gradients_of(model, parts, dtype=torch.float32, step=0, scaler=None):
    """Run backward from a microbatch's loss / `parts`, and return the loss of the microbatch."""
    inputs, targets = batch(library_text(), step, batch_size=8, length=128)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = model(inputs)
    loss = next_token_loss(logits.float(), targets) / parts
    (scaler.scale_loss(loss) if scaler else loss).backward()
    return loss.item() * parts


def thirty_steps(dtype, scaler=None, parts=PARTS):
    """On a rank, return the last loss, and the share of the first step's gradients that are 0."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    zeros = []
    for step in range(30):
        loss = gradients_of(model, parts, dtype, step, scaler)
        if scaler:
            scaler.unscale_(optimizer)
        grads = torch.cat([param.grad.flatten() for param in model.parameters()])
        zeros.append((grads == 0).double().mean().item())
        for param in model.parameters():
            param.grad *= parts
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    return loss, zeros[0]


def rounded_weights(rounding, steps=120):
    """Train with weights that are rounded after every step, and return the last loss."""
    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        inputs, targets = batch(library_text(), step, batch_size=8, length=64)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(rounding(param))
    return loss.item()


def back_and_forth(x, block, dtype=torch.float8_e4m3fn):
    """Convert x to 8 bits and back with the course's functions."""
    return precision.dequantize(*precision.quantize(x, block, dtype), block)


def blocks_picture(x, blocks):
    """Plot the relative errors of elements of x in e4m3, with a scale for each block."""
    figure = picture(8.0, 3.0)
    for axes, (name, block) in zip(figure.subplots(1, 2), blocks.items(), strict=True):
        off = (back_and_forth(x, block) - x).abs() / x.abs()
        shown = axes.imshow(
            off[:12, 96:288].clamp(1e-3, 1).log10(), aspect="auto", cmap="cividis", vmin=-3, vmax=0,
            extent=(96, 288, 11.5, -0.5), interpolation="nearest",
        )  # fmt: skip
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_xlabel("column", fontsize=8)
        axes.set_ylabel("row", fontsize=8)
        axes.tick_params(labelsize=8)
    figure.colorbar(shown, ax=figure.axes, label="log10 of the relative error")
    return figure


def mx(x):
    return precision.dequantize_mx(*precision.quantize_mx(x))


def in_blocks(*blocks, dtype=torch.float8_e4m3fn):
    """Return a function for each side of a product, which rounds it in blocks of this shape."""
    return [partial(back_and_forth, block=block, dtype=dtype) for block in blocks]


PICTURED = GPTConfig(layers=6, heads=4, width=64, context=256)


def pictured(every, config=PICTURED, batch=2):
    """Return the timeline of a forward and backward with a checkpoint every `every` blocks, or
    without checkpoints if `every` is 0."""
    torch.manual_seed(0)
    model, tokens = GPT(config), torch.randint(256, (batch, config.context))
    positions = torch.arange(config.context)
    with MemoryTimeline(model, resident=[tokens, positions]) as timeline:
        x = model.embed(tokens, positions)
        if every:
            x = recompute.run_segments(
                model.blocks, x, positions, every=every, checkpoint=recompute.checkpoint
            )
        else:
            for block in model.blocks:
                x = block(x, positions)
        loss = next_token_loss(model.logits(x), tokens)
        timeline.mark("backward")
        loss.backward()
    return timeline


def a_step(every=0, autocast=False, eight=False, chunks=0):
    """Return the costs of two steps. The peak is in the second, since it has optimizer state."""
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=4096, layers=8, heads=4, width=128, context=256)
    model, tokens = GPT(config), torch.randint(4096, (4, 256))
    positions = torch.arange(256)
    optimizer = (
        precision.Adam8bit(model.parameters(), lr=1e-3)
        if eight
        else torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    )
    with costs(*model.parameters(), tokens, positions) as first:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                x = model.embed(tokens, positions)
                if every:
                    x = recompute.run_segments(
                        model.blocks, x, positions, every=every, checkpoint=recompute.checkpoint
                    )
                else:
                    for block in model.blocks:
                        x = block(x, positions)
                hidden, targets = model.norm(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
                if chunks:
                    loss = recompute.chunked_loss(
                        hidden.float(), model.head.weight, targets, chunks
                    )
                else:
                    loss = F.cross_entropy(model.head(hidden).float(), targets)
            loss.backward()
            del x, hidden
            optimizer.step()
            optimizer.zero_grad()
    return first


def scorecard(ways):
    """Return the scorecard of two steps in each of the ways, and print a dot for each way."""
    spent = {}
    for name, options in ways.items():
        spent[name] = a_step(**options)
        print(".", end="", flush=True)
    model = GPT(GPTConfig(vocab_size=4096, layers=8, heads=4, width=128))
    rows = [
        Row(strategy=name, ranks=1, flops=cost.flops, peak_bytes=cost.peak_bytes, bytes_sent=0)
        for name, cost in spent.items()
    ]
    unit = sum(param.nbytes for param in model.parameters())
    return Scorecard(rows, unit=unit, flops_alone=spent["float32"].flops)


# %% [markdown]
# ## 1 · A float from its bits
#
# | | |
# |---|---|
# | you will write | `round_to(x, exponent_bits, mantissa_bits, *, finite=False)` |
# | time | 25 minutes |
# | difficulty, importance | 3 and 3 of 5 |
# | points | 8 |
#
# A float consists of a sign bit, an *exponent* e and a *mantissa* m. The exponent and the mantissa are
# integers, each with a fixed number of bits. With bias = 2^(exponent bits − 1) − 1, the magnitude of the
# float is
#
# (1 + m / 2^(mantissa bits)) · 2^(e − bias) if e > 0, and (m / 2^(mantissa bits)) · 2^(1 − bias) if e = 0.
#
# Numbers with e = 0 are called *subnormal*. If all bits of e are 1, the float is infinity or NaN, except in
# e4m3 (see below).
#
# The numbers from 2^k to 2^(k+1) are a *binade*. Within it, they are equally far apart, and in the next
# binade they are twice as far apart. So the exponent bits decide how far a format reaches, and the mantissa
# bits decide how fine it is. Here are five formats:
#
# | | exponent bits | mantissa bits | next after 1 | largest | smallest above 0 |
# |---|---|---|---|---|---|
# | float32 | 8 | 23 | 1 + 2⁻²³ | 3.4 · 10³⁸ | 2⁻¹⁴⁹ |
# | bf16 | 8 | 7 | 1 + 2⁻⁷ | 3.4 · 10³⁸ | 2⁻¹³³ |
# | fp16 | 5 | 10 | 1 + 2⁻¹⁰ | 65,504 | 2⁻²⁴ |
# | e5m2 | 5 | 2 | 1 + 2⁻² | 57,344 | 2⁻¹⁶ |
# | e4m3 | 4 | 3 | 1 + 2⁻³ | 448 | 2⁻⁹ |
#
# bf16 consists of the first 16 bits of float32. fp16 has three more bits of mantissa than bf16, but a much
# smaller range.
#
# **Predict.** How many numbers does fp16 have from 1 up to 2, not counting 2 itself? And how many numbers
# does it have from 2⁻²⁴ up to 2⁻¹⁴, where its numbers are subnormal? Answer before you run the next cells.

# %% tags=["skip-in-grading"]
bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).double()
print("from 1 to 2:        ", int(((bits >= 1) & (bits < 2)).sum()))
print("from 2^-24 to 2^-14:", int(((bits >= 2**-24) & (bits < 2**-14)).sum()))

# %% [markdown]
# There are 1,024 numbers from 1 to 2, and 1,023 from 2⁻²⁴ to 2⁻¹⁴. So the ten lowest binades together have
# about as many numbers as each binade above them. Here are the numbers of four formats, first from 1 to 2,
# and then from 0 to 2⁻¹².

# %% tags=["skip-in-grading"]
from course_lib.pictures.format_explorer import formats, number_line

display(number_line(("bf16", "fp16", "e5m2", "e4m3"), 1.0, 2.0))
number_line(("fp16", "e5m2", "e4m3"), 0.0, 2.0**-12)

# %% [markdown]
# The lower picture has no row for bf16, because the numbers of bf16 are too close together there to be drawn.
# Up to 2⁻¹³, the numbers of fp16 are 2⁻²⁴ apart, and the numbers of e5m2 are 2⁻¹⁶ apart. e4m3 has only 0
# there, since its next number is 2⁻⁹. In the widget below, you can switch the bits of a number on and off.

# %% tags=["skip-in-grading"]
formats(0.1, "fp16")

# %% [markdown]
# **Build.** `round_to` replaces each element of x with the nearest number of a format, stored in float64. If
# two numbers are equally near, `round_to` takes the number whose last bit is 0, as hardware does. This rule
# is called *ties to even*. Find the element's binade, and the distance between the numbers of this binade.
# Then round the element to a multiple of the distance, and call the result `rounded`. The given lines below
# your code handle values beyond the largest number.
#
# - Below 2^(1 − bias), the distance doesn't shrink any further, because the subnormal numbers begin there.
# - Imagine one more number above the largest number of the format. A value below the midpoint of these two
#   numbers becomes the largest number, but from the midpoint on, values become infinity. So in fp16, 65,519
#   becomes 65,504, but 65,520 becomes infinity.
# - `finite=True` is for formats such as e4m3, which have no infinities. They use the largest e for one more
#   binade, in which only the last code is NaN. So their largest number is (2 − 2 · 2^(−mantissa bits)) ·
#   2^(bias + 1), which is 448 for e4m3. Values beyond it, including infinity, *saturate*, which means that
#   they become ±448.
# - NaN stays NaN. A value that is rounded to 0 keeps its sign, so −10⁻³⁰ becomes −0 in fp16.


# %% nbgrader={"grade_id": "round_to", "solution": true}
def round_to(
    x: torch.Tensor, exponent_bits: int, mantissa_bits: int, *, finite: bool = False
) -> torch.Tensor:
    """Return `x` rounded to the nearest number of a format, ties to even, as a new float64 tensor.

    x: float64, any shape. finite: whether the format has one more binade instead of infinities, and
    saturates.
    """
    bias = 2 ** (exponent_bits - 1) - 1
    ### BEGIN SOLUTION
    binade = torch.frexp(x).exponent - 1
    step = torch.exp2((binade.clamp(min=1 - bias) - mantissa_bits).double())
    rounded = torch.round(x / step) * step
    ### END SOLUTION
    if finite:  # numbers beyond the largest
        largest = (2 - 2 * 2.0**-mantissa_bits) * 2.0 ** (bias + 1)
        return rounded.clamp(-largest, largest)
    largest = (2 - 2.0**-mantissa_bits) * 2.0**bias
    infinity = torch.full_like(x, math.inf).copysign(x)
    return torch.where(rounded.abs() > largest, infinity, rounded)


# %% [markdown]
# <details><summary>Hint: the binade</summary><code>torch.frexp(x)</code> reads the exponent from the bits of
# x. It writes x as a mantissa between ½ and 1 times a power of two, and returns the mantissa and the
# exponent. But in the formula of this section, the first factor is between 1 and 2. So how far is the
# exponent of <code>frexp</code> from the exponent you need? (<code>torch.log2</code> of |x| works as well,
# but then infinity needs a case of its own.)</details>
# <details><summary>Hint: to even</summary><code>torch.round</code> rounds halves to the even integer. A
# division by a power of two does not round, so you can divide x by the distance, round the quotient, and
# multiply it by the distance again.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "round_to_check", "points": 8}
report = check("09_precision_and_memory/round_to", round_to)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/round_to", round_to, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell compares your function with PyTorch's cast, on 100,000 numbers of all magnitudes, and
# prints the errors of three numbers in both 16-bit formats. Then it plots the relative error against the
# magnitude.

# %% tags=["skip-in-grading"]
torch.manual_seed(0)
everywhere = torch.randn(100_000) * torch.exp2(torch.randint(-40, 18, (100_000,)).float())
if ready(round_to):
    for name, dtype, sizes in (
        ("fp16", torch.float16, (5, 10)),
        ("bf16", torch.bfloat16, (8, 7)),
        ("e5m2", torch.float8_e5m2, (5, 2)),
    ):
        equal = round_to(everywhere.double(), *sizes) == everywhere.to(dtype).double()
        print(f"{name}: {int(equal.sum()):,} of {len(equal):,} equal")
FORMATS_16 = {"bf16": (8, 7), "fp16": (5, 10)}
for number in (3e-1, 1e-6, 2e-8):
    for name, sizes in FORMATS_16.items():
        x = torch.tensor(number).double()
        if (near := said(round_to, x, *sizes)) or near == 0:
            print(f"{number:g} in {name}: {near.item():.6g}, off by {abs(near - x) / x:.2%}")
errors_picture() if ready(round_to) else None

# %% [markdown]
# Down to 2⁻¹⁴, which is 0.00006, fp16 is on average eight times as accurate as bf16. Below 2⁻¹⁴, fp16 loses
# one bit with each binade. So 10⁻⁶ is off by 1.33 % in fp16, but by only 0.16 % in bf16, and 2 · 10⁻⁸ becomes
# 0 in fp16.
#
# <details><summary>In production</summary>
#
# `torch.finfo(dtype)` gives a format's largest number, its smallest normal number, and `eps`, the distance
# from 1 to the next number. tf32 isn't a format in which tensors are stored. The name only means that tensor
# cores read 10 bits of a float32's mantissa. bf16 needs an Ampere GPU or a newer one, and fp8 needs an Ada or
# Hopper GPU or a newer one.
#
# A cast to e4m3 turns 449 into 448 in every version of PyTorch. But 465 becomes 448 in PyTorch 2.13, whereas
# it became NaN before a [change of April 2026](https://github.com/pytorch/pytorch/pull/178817). So a program
# that stores fp8 should clamp the values itself before it casts them.
#
# </details>
#
# <details><summary>In the lectures</summary>Lecture 002 says that fp16 has "more precision near zero".
# Compared with bf16, fp16 has three more bits between 2⁻¹⁴ and 65,504, but fewer below 2⁻¹⁷. Lecture 001 says
# that an RTX 3090 does not support bf16. But this card is an Ampere GPU, so it does support bf16.</details>

# %% [markdown]
# ## 2 · Loss scaling, and the ranks that must agree on it
#
# | | |
# |---|---|
# | you will write | `LossScaler` |
# | builds on | §1 |
# | time | 35 minutes, and 8 for the *optional* end |
# | difficulty, importance | 3 and 5 of 5 |
# | points | 10 |
#
# The smallest number of fp16 above 0 is 2⁻²⁴, which is 6 · 10⁻⁸. Are gradients smaller than that? If the loss
# is a mean over 1,024 tokens, very few gradients of a small GPT are, and the model trains in fp16 as well as
# in float32. But a batch in a real run has 4 million tokens, which are 4,096 microbatches of 1,024 tokens. A
# mean over the whole batch divides each microbatch's gradient by another 4,096.
#
# The remedy is to multiply the loss by a *scale* before backward. By the chain rule, every gradient is then
# multiplied by the scale as well. The next cell draws the histogram of |gradient| for such a microbatch. Move
# the slider to change the scale.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.pictures.format_explorer import gradients

torch.manual_seed(0)
model = GPT(SMALL)
gradients_of(model, PARTS)  # backward from the loss / 4,096
magnitudes = torch.cat([param.grad.flatten() for param in model.parameters()])
gradients(magnitudes)

# %% [markdown]
# **Predict.** The largest gradient in this histogram is about 1.45 · 10⁻⁴. What is the smallest power of two
# that, used as the scale, makes this gradient overflow?
#
# <details><summary>Answer</summary>It is 2²⁹. As you saw in §1, the limit is 65,520 instead of the largest
# number, 65,504. If you divide 65,520 by the largest gradient, you get 2^28.8, and the next power of two is
# 2²⁹.</details>
#
# At a good scale, the small gradients survive and the largest doesn't overflow. Such a scale depends on the
# model, the step and the batch, so the scaler *searches for it during training*. The search has two rules:
#
# - If a gradient is infinite or NaN, the step is **skipped**, and the scale is multiplied by `backoff`, for
#   example ½.
# - After `interval` good steps in a row, the scale is multiplied by `growth`, for example 2.
#
# Before the optimizer's step, the gradients are divided by the scale, in float32.
#
# ### N ranks
#
# With ZeRO or FSDP, each rank has a shard of the gradients, so an infinity can be in a single rank's shard.
# If this rank skips the step but the other ranks take it, the shards of the weights no longer belong to the
# same model, and no error message tells you. **All ranks skip the step together, or none does.** What is the
# least they have to send to agree on this?
#
# **Build.** The class works like `torch.amp.GradScaler`, whose method `scale` is called `scale_loss` here.
# The training loop is
#
#     scaler.scale_loss(loss).backward()
#     scaler.unscale_(optimizer)     # only if gradients are clipped or looked at
#     scaler.step(optimizer)         # unscales, if that has not been done
#     scaler.update()
#
# The state and the search are given. Write the rest of `unscale_` and of `step`.


# %% nbgrader={"grade_id": "loss_scaler", "solution": true}
class LossScaler:
    """Scales a loss, and takes a step on all ranks of `group` or on none.

    scale: the initial scale. growth: the factor after `interval` good steps in a row. backoff: the
    factor after a skipped step. group: None means all ranks. Each rank has its own scaler. Ranks
    can have different parameters, and some of them can have no gradient.
    """

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000, group=None):
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.group = group
        self.good = 0  # good steps in a row
        self.bad = None  # whether this step is bad on any rank, or None before it is unscaled

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale, as a new tensor."""
        return loss * self.scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide all gradients by the scale, in place, and find infinities and NaN on all ranks.

        This happens once per step, so raise RuntimeError for a second call before `update`. Send
        an all-reduce of at most 4 bytes.
        """
        if self.bad is not None:
            raise RuntimeError("unscale_ was called already: call update() after the step")
        params = [param for group in optimizer.param_groups for param in group["params"]]
        grads = [param.grad for param in params if param.grad is not None]
        ### BEGIN SOLUTION
        bad = torch.zeros(1, device=device())
        for grad in grads:
            grad /= self.scale
            if not grad.isfinite().all():
                bad.fill_(1)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
        self.bad = bool(bad)
        ### END SOLUTION

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take the optimizer's step, or do nothing at all. Return whether the step was taken."""
        if self.bad is None:
            self.unscale_(optimizer)
        ### BEGIN SOLUTION
        if not self.bad:
            optimizer.step()
        return not self.bad
        ### END SOLUTION

    def update(self) -> None:
        """Change the scale after a skipped step, or after `interval` good steps in a row."""
        if self.bad:
            self.scale, self.good = self.scale * self.backoff, 0
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale, self.good = self.scale * self.growth, 0
        self.bad = None


# %% [markdown]
# <details><summary>Hint: one number</summary>Each rank checks whether <i>any</i> of its gradients is infinite
# or NaN. It stores the number 1 if so, and 0 otherwise. Then the maximum over the ranks says whether any rank
# has a bad gradient.</details>
# <details><summary>Hint: a rank without gradients</summary>This rank takes part in the all-reduce like all
# other ranks.</details>
# <details><summary>Hint: NaN</summary><code>NaN > x</code> is False for every x, so you can't find NaN with a
# comparison of this kind. But <code>isfinite</code> is False for NaN and for both infinities.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "loss_scaler_check", "points": 10}
report = check("09_precision_and_memory/loss_scaler", LossScaler)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/loss_scaler", LossScaler, cases="hidden")
### END HIDDEN TESTS
report.points(10)

# %% [markdown]
# **Measure.** The cell trains the small GPT for thirty steps in float32, and then under autocast in fp16, in
# bf16, and in fp16 with your scaler. The loss is a mean over 4 million tokens.
#
# <details><summary>4 million tokens on a CPU?</summary>A real step adds up the gradients of 4,096
# microbatches. Here all microbatches of a step are the same, so the cell computes one gradient, and
# multiplies it by 4,096 after backward. It still takes a while, because a CPU is slow in fp16.</details>

# %% tags=["nbval-ignore-output", "skip-in-grading"]
RUNS = {"float32": (torch.float32,), "fp16": (torch.float16,), "bf16": (torch.bfloat16,)}
scaler = LossScaler() if ready(LossScaler) else None
if scaler:
    RUNS["fp16, scale 2^16"] = (torch.float16, scaler)
for name, options in RUNS.items():
    # on the CPU, because the text quotes the losses with the CPU's autocast
    (loss, zeros), *_ = launch(thirty_steps, *options, world_size=1, backend="gloo")
    print(f"{name:17} loss {loss:.3f}, {zeros:6.1%} of the first step's gradients are 0")

# %% [markdown]
# In fp16, 95 % of the gradients are 0 at the first step, and the loss after 30 steps is 4.79 instead of 3.14.
# With your scaler, which starts with a scale of 2¹⁶, the loss in fp16 agrees with the loss in float32 to
# three digits. bf16 needs no scaler, because it has as many exponent bits as float32.
#
# <details><summary>Why 95 %, although the histogram showed only 17 %?</summary>The histogram rounds only the
# gradients of the <i>weights</i>. But in fp16, backward also rounds the gradients of the activations, which
# are smaller. For example, the gradient of most logits is about 10⁻⁹, because it is a probability divided by
# 4 million. If such a gradient becomes 0, it adds nothing to the gradients that are computed from
# it.</details>
#
# Now let's look at two ranks, each with a weight of 8 and a scale of 8. On rank 0 the scaled gradient is 8,
# so the gradient is 1, but rank 1's gradient is infinite. PyTorch provides two scalers, `GradScaler` and, for
# sharded gradients, `ShardedGradScaler`. The cell tries both of them, and then yours.


# %% tags=["skip-in-grading"]
def one_step(kind):
    """On a rank, return the weight and the scale after a step in which rank 1 has an infinity."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    weight = nn.Parameter(torch.tensor([8.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([math.inf if dist.get_rank() == 1 else 8.0])
    if kind == "yours":
        scaler = LossScaler(scale=8.0)
        scaler.step(optimizer)
        scaler.update()
        return weight.item(), scaler.scale_loss(torch.ones(())).item()
    scaler = {"GradScaler": torch.amp.GradScaler, "ShardedGradScaler": ShardedGradScaler}[kind](
        "cpu", init_scale=8.0
    )
    scaler.scale(torch.zeros(1))
    scaler.step(optimizer)
    scaler.update()
    return weight.item(), scaler.get_scale()


for kind in ("GradScaler", "ShardedGradScaler", *(["yours"] if scaler else [])):
    run = launch(one_step, kind, world_size=2, backend="gloo")  # on the CPU, like the scalers
    ranks = "; ".join(
        f"rank {rank}: weight {weight:g}, scale {scale:g}"
        for rank, (weight, scale) in enumerate(run)
    )
    sent = [operation.nbytes for operation in run.ledger.operations(0)]
    print(f"{kind:18} {ranks}; all-reduces: {len(sent)}, of {sum(sent)} bytes")

# %% [markdown]
# With `GradScaler`, rank 0 took the step and kept its scale, whereas rank 1 skipped the step and halved its
# scale. So in the next step, the gradients of the two ranks have different scales.
#
# <details><summary>In production</summary>
#
# In data parallelism without shards, `GradScaler` is enough. There the gradients are all-reduced *before* the
# scaler looks at them, so an infinity has already reached all ranks. FSDP with fp16 needs
# `ShardedGradScaler`. Micikevicius et al. (2018) choose the scale by hand in §3.2, and propose the search in
# §5. Write `torch.amp.autocast("cuda", dtype=torch.float16)` with `torch.amp.GradScaler("cuda")`, since the
# older names in `torch.cuda.amp` are deprecated. In DeepSpeed's configuration, `"loss_scale": 0` means that
# DeepSpeed searches for the scale, `initial_scale_power: 16` means that the search starts at 2¹⁶, and
# `hysteresis` is the number of overflows after which the scale falls. With bf16, which most runs use now, you
# need none of these settings.
#
# </details>
#
# ### The wrong order, and autocast's list *(optional)*
#
# **Break it.** The cell trains with SGD twice. The first time, it unscales the gradient and then clips its
# norm to 1. The second time, it clips the gradient *before* it is unscaled, while the norm is still 65,536
# times too large. What happens to the steps then?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def clipped(order, steps=40, scale=2.0**16):
    """Return the losses of SGD with gradients clipped to 1, before or after they are unscaled."""
    torch.manual_seed(0)
    model, losses = GPT(SMALL), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        inputs, targets = batch(library_text(), step, batch_size=8, length=128)
        loss = next_token_loss(model(inputs), targets)
        (loss * scale).backward()
        for action in order:
            if action == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                for param in model.parameters():
                    param.grad /= scale
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


losses_picture(clipped)

# %% [markdown]
# In the wrong order, clipping reduces the norm to 1, and unscaling then divides it by 65,536, so the weights
# hardly move. But no gradient is infinite, so no step is skipped, and no warning is printed.
#
# <details><summary>In the lectures</summary>Lecture 001 imports <code>torch.cuda.amp</code>, and its FSDP
# example runs in fp16 without a scaler. The lecture also states a speedup of "2-3x" on A100 and H100, and of
# "4-5x with Tensor Cores". But on these GPUs, the speedup comes from the tensor cores in both cases. An
# A100's data sheet lists 19.5 TFLOP/s in float32, 156 in tf32 and 312 in bf16, so the speedup depends on the
# format you compare bf16 with. The "selective operations in higher precision" of lecture 002 are the
# operations on autocast's list. The next cell looks for some.</details>
#
# **Look.** Autocast decides for each operation in which dtype it runs. The cell runs six operations under
# autocast on the CPU. Which of them return float32?

# %%
x, weight, labels = torch.randn(4, 8), torch.randn(8, 8), torch.arange(4)
with torch.autocast("cpu", torch.bfloat16):
    h = F.linear(x, weight)
    outputs = {
        "linear": h, "GELU": F.gelu(h), "softmax": h.softmax(-1), "layer norm": F.layer_norm(h, (8,)),
        "residual, h + x": h + x, "loss": F.cross_entropy(h, labels),
    }  # fmt: skip
for name, output in outputs.items():
    print(f"{name:16} {output.dtype}")

# %% [markdown]
# Matrix products are the costly operations, so autocast gives them 16-bit inputs. The residual sum is in
# float32 because x is, and the loss is in float32 because it is on autocast's list. On a GPU the list is
# longer, so softmax and layer norm are computed in float32 as well (PyTorch, *Automatic Mixed Precision*).

# %% [markdown]
# ## 3 · Updates that are lost
#
# | | |
# |---|---|
# | you will write | `stochastic_round(x, generator=None)` |
# | builds on | §1 |
# | time | 21 minutes |
# | difficulty, importance | 2 and 3 of 5 |
# | points | 6 |
#
# bf16 has a large range but few numbers, only 128 from 1 to 2. The next number below 1 is 2⁻⁸ away, or 0.004.
#
# **Predict.** A weight starts at 1, and each of 1,000 steps subtracts 0.001. In float32 the weight ends at 0.
# Where does it end in bf16?
#
# <details><summary>Answer</summary>The weight ends at 1, because it never moves. The update of 0.001 is less
# than half of the distance to the next number, so 1 − 0.001 is rounded back to 1.</details>
#
# The usual remedy is a **master copy** of the weights in float32, which the optimizer updates. It costs 4
# more bytes per parameter (notebook 01 §4). The other remedy is **stochastic rounding**. It turns a value x
# between two neighbouring numbers into the upper number with probability (x − lower) / (upper − lower), and
# otherwise into the lower number. Then the *expected* value of the result is x. So an update of 0.001 either
# changes nothing or moves the weight to the next number, but on average it moves the weight by 0.001.
#
# **Build.** A bf16 number is the upper half of a float32 number's bits, so rounding removes the lower half.
# The lower half, read as an integer from 0 to 65,535 and divided by 65,536, *is* the probability above. Which
# random integer can you add to the 32 bits so that the upper half increases by 1 with exactly this
# probability?


# %% nbgrader={"grade_id": "stochastic_round", "solution": true}
def stochastic_round(x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return `x` in bfloat16, each element as one of its two neighbours, with expected value x.

    x: float32, any shape. It does not change. generator: draws a new random number for each
    element. None means PyTorch's default. Numbers of bfloat16, infinities and NaN do not change.
    """
    ### BEGIN SOLUTION
    bits = x.view(torch.int32)
    noise = torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32, device=x.device)
    rounded = ((bits + noise) >> 16 << 16).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).bfloat16()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: bits as integers</summary><code>x.view(torch.int32)</code> returns the bits of x as
# integers. If you shift them right by 16 and then left by 16, the lower half becomes 0.</details>
# <details><summary>Hint: negative numbers</summary>A float stores its sign and its magnitude separately. So
# if you add to the bits, the magnitude increases even if the number is negative. You don't have to do
# anything about the sign.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "stochastic_round_check", "points": 6}
report = check("09_precision_and_memory/stochastic_round", stochastic_round)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/stochastic_round", stochastic_round, cases="hidden")
### END HIDDEN TESTS
report.points(6)

# %% [markdown]
# **Measure.** The cell takes the thousand steps for 400 weights, in float32 and with both ways of rounding to
# bf16. The picture shows one of the weights.


# %% tags=["skip-in-grading"]
def thousand_steps(rounding):
    """Return the weights after each of 1,000 steps, (1000, 400)."""
    weights, rows = torch.ones(400), []
    for _ in range(1000):
        weights = rounding(weights - 1e-3).float()
        rows.append(weights)
    return torch.stack(rows)


generator = torch.Generator().manual_seed(0)
ROUNDINGS = {"float32": lambda x: x, "to nearest": lambda x: x.bfloat16()}
if ready(stochastic_round):
    ROUNDINGS["stochastic"] = partial(stochastic_round, generator=generator)
curves = {name: thousand_steps(rounding) for name, rounding in ROUNDINGS.items()}
for name, rows in curves.items():
    print(f"{name:11} ends at {rows[-1].mean():.4f} ± {rows[-1].std():.4f}")
curves_picture(curves)

# %% [markdown]
# With stochastic rounding, a single weight wanders, but the mean of all 400 weights ends near 0. (There the
# numbers of bf16 are so close together that every update takes effect.) The next cell trains a GPT at a
# learning rate of 10⁻⁴, and rounds its weights after every step. Adam's moments stay in float32. The cell
# takes about 20 s.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
for name, rounding in ROUNDINGS.items():
    print(f"{name:11} loss {rounded_weights(rounding):.3f}")

# %% [markdown]
# After 120 steps with rounding to nearest, the loss is 0.08 higher than in float32. With stochastic rounding,
# the loss agrees with the loss in float32 to 0.001, although a weight takes only two bytes and has no master
# copy. But this is one small model. The noise of the rounding stays in the weights, so a large model may
# still need a master copy.
#
# **With ranks, break it.** Two replicas take the same five updates. In the first run, their generators start
# from different seeds, and in the second run from the same seed. How many of 1,000 weights are equal on both
# replicas afterwards?


# %% tags=["skip-in-grading"]
def replica(shared):
    """On a rank, return the weights after five updates, with the same updates on all replicas."""
    seed = 7 if shared else dist.get_rank()
    generator, weights = torch.Generator().manual_seed(seed), torch.ones(1000)
    for step in range(5):
        update = 1e-3 * torch.sin(torch.arange(1000.0) + step)
        weights = stochastic_round(weights - update, generator).float()
    return weights.tolist()


if "stochastic" in ROUNDINGS:
    for shared in (False, True):
        # on the CPU, because a thousand numbers are few
        first, second = launch(replica, shared, world_size=2, backend="gloo")
        equal = sum(a == b for a, b in zip(first, second, strict=True))
        seeds = "the same seed" if shared else "different seeds"
        print(f"{seeds}: {equal} of 1,000 weights are equal")

# %% [markdown]
# With different seeds, fewer than half of the weights stay equal, so the two replicas become two models. A
# common seed repairs this. Under ZeRO and FSDP no repair is needed, because each weight has one owner that
# rounds it, and the other ranks receive the result. There each shard *should* have its own noise, so the
# ranks should start their generators from different seeds.
#
# <details><summary>In production</summary>
#
# AdamW in `torchao.optim` has the option `bf16_stochastic_round=True`, and Trainium, Amazon's chip for
# training, can round stochastically in hardware (`NEURON_RT_STOCHASTIC_ROUNDING_EN`). But most runs still pay
# for a master copy. Under autocast the weights themselves are in float32, and under ZeRO the master copy
# takes 4 of the 16 bytes per parameter.
#
# </details>

# %% [markdown]
# ## 4 · Eight bits and their scales
#
# | | |
# |---|---|
# | you will write | `quantize(x, block, dtype, group)` and `dequantize(values, scales, block)` |
# | builds on | §1 |
# | time | 30 minutes, and 7 for the *optional* end |
# | difficulty, importance | 3 and 4 of 5 |
# | points | 8 |
#
# e4m3 has 254 codes for numbers from −448 to 448, including 0 and −0. A gradient of 1e-5 is too small for
# these numbers, and an outlier of 1,000 is too large. So a tensor is cut into blocks, and each block is
# divided by a *scale*, which turns the block's largest magnitude, amax, into 448. The scales are stored
# together with the values:
#
# scale = amax / 448, values = x / scale in e4m3, x ≈ values · scale
#
# Published methods differ in how many elements share a scale, and in how the scale is stored.
#
# **Predict.** How many bytes does an element take, including its share of the scale? Take tiles of 1 × 128
# and blocks of 128 × 128, both with float32 scales. Then take the MX format, in which 32 elements share a
# scale of only *one* byte, a power of two.
#
# <details><summary>Answer</summary>With tiles of 1 × 128, an element takes 1 + 4/128 bytes, and in the MX
# format it takes 1 + 1/32 bytes. Both are 1.0312 bytes, so the scales add 3 %. With blocks of 128 × 128, an
# element takes 1.0002 bytes.</details>
#
# **Build.** `block` is a pair, which says how many rows and how many columns share a scale. In this pair, −1
# means all rows or all columns, so (−1, −1) is one scale for the tensor, and (1, −1) is one scale for each
# row. DeepSeek-V3 uses (1, 128) for activations and (128, 128) for weights. `group` is passed if its ranks
# hold parts of the same blocks, for example shards of a weight that has one scale. Three functions for blocks
# are given.


# %% nbgrader={"grade_id": "quantize", "solution": true}
def sides(x, block):
    return [size if side == -1 else side for side, size in zip(block, x.shape, strict=True)]


def tiles(x, block):
    """Return x as (blocks down, rows, blocks across, columns), with zeros beyond the edges."""
    rows, columns = sides(x, block)
    down, across = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    padded = F.pad(x, (0, across * columns - x.shape[1], 0, down * rows - x.shape[0]))
    return padded.view(down, rows, across, columns)


def spread(scales, like, block):
    """Return the scale of each element, in the shape of `like`."""
    rows, columns = sides(like, block)
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return whole[: like.shape[0], : like.shape[1]]


def quantize(x, block, dtype=torch.float8_e4m3fn, group=None):
    """Return `x` in 8 bits with a scale for each block, as (values, scales).

    x: (rows, columns), float32 or bfloat16. It does not change. block: (rows, columns) of a block,
    with -1 for all of them. Blocks at the edges can be smaller. dtype: float8_e4m3fn or
    float8_e5m2. group: ranks that hold parts of the same blocks, so they agree on the largest
    magnitudes. If group is None, send nothing. values: (rows, columns) in `dtype`. scales: (blocks
    down, blocks across) in float32, each the block's largest magnitude / the format's largest
    number, but 1 for a block of zeros.
    """
    ### BEGIN SOLUTION
    largest = torch.finfo(dtype).max
    amax = tiles(x.abs().float(), block).amax((1, 3))
    if group is not None:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    scales = torch.where(amax > 0, amax / largest, 1.0)
    scaled = x.float() / spread(scales, x, block)
    return scaled.clamp(-largest, largest).to(dtype), scales
    ### END SOLUTION


def dequantize(values, scales, block):
    """Return values * scales in float32, with each block times its own scale.

    This is the inverse of `quantize`, except for rounding.
    """
    ### BEGIN SOLUTION
    return values.float() * spread(scales, values, block)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: blocks</summary>For the view that <code>tiles</code> returns,
# <code>amax((1, 3))</code> computes one number for each block.</details>
# <details><summary>Hint: values beyond the largest number</summary>The division amax / 448 also rounds. For a
# block of very small numbers, the scale can be rounded down so far that x / scale is beyond the format's
# largest number. So call <code>clamp</code> before the cast, in every version of PyTorch.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "quantize_check", "points": 8}
report = check("09_precision_and_memory/quantize", quantize, dequantize)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/quantize", quantize, dequantize, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Look.** The picture shows the relative error of each element near an outlier of 100,000 in row 3. On the
# left the whole tensor has one scale, and on the right each tile of 1 × 128 has its own scale. Which elements
# have large errors on each side?

# %% tags=["skip-in-grading"]
torch.manual_seed(0)
activations, weight = torch.randn(256, 1024), torch.randn(1024, 256)
with_outlier = activations.clone()
with_outlier[3, 200] = 100_000.0
blocks_picture(with_outlier, {"one scale": (-1, -1), "1 x 128": (1, 128)})

# %% [markdown]
# With one scale, *every* row has large errors. Since 100,000 becomes 448, an element of 1 becomes 0.0045, a
# subnormal number with only one or two bits. With tiles, only the 128 elements of the outlier's tile have
# large errors.
#
# **Measure.** The cell multiplies a 256 × 1,024 matrix by a 1,024 × 256 matrix, both rounded, and prints the
# relative error of the rows *without* the outlier. Below the table, it casts gradients of about 1e-5 to 8
# bits without a scale.

# %% tags=["skip-in-grading"]
ROUNDED = {  # how the product's left and right side are rounded
    "bf16": (lambda x: x.bfloat16().float(), lambda w: w.bfloat16().float()),
    "e4m3, tensor": in_blocks((-1, -1), (-1, -1)),
    "e4m3, row": in_blocks((1, -1), (-1, 1)),
    "1x128, 128x128": in_blocks((1, 128), (128, 128)),
    "MX, 32": (mx, lambda w: mx(w.t()).t()),  # along the dimension the product sums over
    "int8, tensor": in_blocks((-1, -1), (-1, -1), dtype=torch.int8),
}


def errors(outlier):
    x = activations.clone()
    x[3, 200] = outlier
    others = torch.arange(256) != 3
    wanted = (x.double() @ weight.double())[others]
    return [
        float(((left(x) @ right(weight)).double()[others] - wanted).norm() / wanted.norm())
        for left, right in ROUNDED.values()
    ]


print(f"{'outlier':>9}" + "".join(f"{name:>16}" for name in ROUNDED))
for outlier in (1, 1_000, 100_000):
    print(f"{outlier:9,}" + "".join(f"{error:16.4f}" for error in errors(float(outlier))))
small = 1e-5 * torch.randn(100_000)
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    zeros = float((small.to(dtype).float() == 0).double().mean())
    print(f"{str(dtype)[6:]:15} {zeros:.1%} of the gradients are 0")

# %% [markdown]
# Read the table by columns. An outlier of 1,000 ruins int8 with *one* scale, but it doesn't harm e4m3,
# because the exponent of each float works like a scale of its own. e4m3 needs smaller blocks only if outliers
# are larger still. With an outlier of 100,000, the error of e4m3 with one scale more than triples, whereas
# the errors with smaller blocks stay the same. The last lines show that without any scale, all gradients of
# 1e-5 become 0 in e4m3, and more than half of them in e5m2.
#
# <details><summary>Why MX is a little worse</summary>
#
# In the table, MX has a slightly larger error than the tiles, although its blocks are smaller. The scale of
# MX is a power of two, 2^(floor(log2 amax) − 8). Therefore the largest scaled value of a block is between 256
# and 512, and it is clipped if it is above 448. (To store such a scale, don't cast amax to `float8_e8m0fnu`
# with PyTorch, because the cast *rounds*. It turns 1.5 into 2, but MX needs 1. Read the exponent of amax
# yourself instead.)
#
# </details>
#
# **With ranks.** If a sharded weight is gathered in fp8, all of its shards must have the same scale. So each
# rank must know the largest magnitude of *all* shards. Your function finds it with an all-reduce of 4 bytes.
#
# <details><summary>In production</summary>
#
# torchtitan can gather FSDP's weights in fp8, and then computes the scales of all weights with one all-reduce
# per step (`precompute_float8_dynamic_scale_for_fsdp` of torchao). `torch._scaled_mm` multiplies two fp8
# matrices with their scales. In versions after PyTorch 2.6, it also works on the CPU.
#
# </details>
#
# Which format is better? Micikevicius et al. (2022) use e4m3 in forward, and e5m2 for gradients because of
# its larger range. DeepSeek-V3 instead uses e4m3 everywhere. It has a scale for each tile, so it doesn't need
# the larger range of e5m2, and e4m3 has one more mantissa bit.
#
# This is a good place for a break.
#
# ### Three more mistakes *(optional)*
#
# **Break it.** The cell gathers a sharded weight twice. The second time, the ranks leave out the all-reduce,
# so each rank has its own scale.


# %% tags=["skip-in-grading"]
def gathered(agree):
    """On a rank, gather the whole weight as bytes, and decode it with this rank's scale. Return the
    largest error, divided by the largest magnitude, and the scale."""
    torch.manual_seed(1)
    whole = torch.randn(4, 8) * torch.tensor([1.0, 1.0, 9.0, 9.0])[:, None]
    shard = whole.chunk(2)[dist.get_rank()]
    values, scales = precision.quantize(shard, (-1, -1), group=dist.group.WORLD if agree else None)
    parts = [torch.empty_like(values).view(torch.uint8) for _ in range(2)]
    dist.all_gather(parts, values.view(torch.uint8))  # as bytes, because gloo cannot send fp8
    back = torch.cat(parts).view(torch.float8_e4m3fn).float() * scales
    return float((back - whole).abs().max() / whole.abs().max()), float(scales)


for agree in (True, False):
    # on the CPU, because the matrix is small
    run = launch(gathered, agree, world_size=2, backend="gloo")
    print(
        "one scale " if agree else "two scales",
        [f"off by {off:.1%}, scale {scale:.4f}" for off, scale in run],
    )

# %% [markdown]
# Without the all-reduce, each rank decodes the other rank's shard with the wrong scale, so elements are off
# by up to 91.7 % of the largest magnitude.
#
# Even with a correct `quantize`, two more mistakes are possible. *Delayed scaling* takes the scale from the
# previous step, so that the tensor is read only once. But gradients that have become 50 times larger no
# longer fit into the format. The other mistake is an *accumulator* with too few bits. The cell shows both
# mistakes.
#
# <details><summary>How the cell models the accumulator</summary>For products in fp8, an H800's tensor core
# keeps about 14 bits of a sum (DeepSeek-V3). So the cell adds 4,096 products, and after each addition it
# keeps only 13 bits after the binary point. It either rounds the other bits or cuts them off. In every second
# line of the output, the sum is moved to an exact sum after every 128 products.</details>

# %% tags=["skip-in-grading"]
before, now = torch.randn(100_000), 50 * torch.randn(100_000)
old_scale = before.abs().max() / 448
print(
    "50 times as large, with the old scale: "
    f"{float((now.abs() / old_scale > 448).double().mean()):.0%} of the values are beyond 448"
)


def bits_13(x, cut=False):
    """Return x with 13 bits after the binary point. If cut is True, cut off the other bits."""
    unit = torch.exp2(torch.frexp(x).exponent.double() - 14)
    return (torch.trunc if cut else torch.round)(x / unit) * unit


def summed(products, every, cut):
    """Sum over the last dimension with 13 bits, and add this sum to an exact sum after `every`
    terms."""
    whole = torch.zeros(len(products), dtype=torch.float64)
    for part in products.split(every, dim=1):
        partial_sum = torch.zeros_like(whole)
        for term in part.unbind(1):
            partial_sum = bits_13(partial_sum + term, cut)
        whole += partial_sum
    return whole


products = torch.rand(64, 4096, dtype=torch.float64)
exact = products.sum(1)
for cut in (False, True):
    for every in (4096, 128):
        off = float(((summed(products, every, cut) - exact) / exact).abs().mean())
        how = "cut" if cut else "rounded"
        print(f"{how:8} moved to the exact sum after {every:5,} products: {off:.3%} off")

# %% [markdown]
# In DeepSeek's test on an H800, sums of K = 4,096 products were off by up to nearly 2 %. So DeepSeek-V3 adds
# the tensor core's sum to a float32 register after every 128 products (§3.3.2 of its report). How the real
# accumulator works isn't public. For 4,096 products, the cell's model is off by less than 0.1 % if it rounds,
# but by 8 % if it cuts bits off. So the error depends mainly on how an accumulator treats the last bit.

# %% [markdown]
# ## 5 · Adam in 8 bits *(optional)*
#
# | | |
# |---|---|
# | you will write | `class Adam8bit(ByteStates)` |
# | builds on | §4; Adam's update |
# | time | 55 minutes |
# | difficulty, importance | 4 and 2 of 5 |
# | points | 8 |
#
# Adam keeps two moments of each parameter, m and v. In float32 they take 8 bytes, half of ZeRO's 16 bytes per
# parameter. With one byte for each moment they would take 2 bytes, and float32 scales for blocks of 256 would
# add 8/256 of a byte. But unlike activations, m and v are kept from step to step, and v is a mean of
# *squares*. If a gradient is a thousand times smaller than another, its v is a million times smaller.
#
# So the 256 codes are not spread evenly. The *dynamic map* of Dettmers et al. has numbers in each of seven
# decades (0.1 to 1, 0.01 to 0.1, and so on), and each decade has twice as many numbers as the decade below
# it. Two maps are given, a signed map for m and an unsigned map for v.

# %%
from course_lib.precision.codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, ByteStates

for name, numbers in (("signed", DYNAMIC_SIGNED), ("unsigned", DYNAMIC_UNSIGNED)):
    above = numbers[numbers > 0]
    print(
        f"{name:9} {len(numbers)} numbers from {float(numbers[0]):.4f} to {float(numbers[-1]):.0f}, "
        f"smallest above 0: {float(above[0]):.2e}"
    )

# %% [markdown]
# **Predict.** How many bytes per parameter do both moments take with blocks of 64, 256 and 2,048? A second
# question is about the signed map, which contains 1 but not −1. If the element with the largest magnitude in
# a block is negative, by how much does its magnitude shrink?
#
# <details><summary>Answer</summary>The two moments take 2 + 8/block bytes, so 2.1250, 2.0312 and 2.0039.
# Divided by the scale, the negative element is −1. It is stored as −0.9930, so its magnitude shrinks by
# 0.7 %.</details>
#
# **Build.** A step converts a parameter's moments to float32 and updates them. Then it updates the parameter
# *with the float32 moments*, and rounds the moments to 8 bits again. Between steps, `self.state[param]` holds
# only codes in uint8, scales in float32 and the number of steps. Parameters with fewer than 4,096 elements
# (norms, biases) keep float32 moments, as in bitsandbytes. Weight decay is decoupled. The bookkeeping is
# given. Write `update`, and in `write` the `scales` and `codes` of the blocks.
#
# `ByteStates` is PyTorch's `Optimizer` with one change. The original `load_state_dict` casts every state to
# its parameter's dtype, so it would turn your codes into float32.


# %% nbgrader={"grade_id": "adam8bit", "solution": true}
class Adam8bit(ByteStates):
    """AdamW whose moments take a byte per element between the steps.

    block: the number of elements that share a scale. The last block of a parameter can be shorter.
    A block's scale is its largest magnitude. The codes are for the numbers of DYNAMIC_SIGNED (m)
    and DYNAMIC_UNSIGNED (v) that are nearest to moment / scale.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, block=256):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, block=block)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, self.state[param], group)

    def update(self, param, state, group):
        """Update one parameter. Read its moments, and write them at the end."""
        ### BEGIN SOLUTION
        (beta1, beta2), lr, block = group["betas"], group["lr"], group["block"]
        t = state["step"] = state.get("step", 0) + 1
        m = self.read(state, "m", param, DYNAMIC_SIGNED, block)
        v = self.read(state, "v", param, DYNAMIC_UNSIGNED, block)
        m = beta1 * m + (1 - beta1) * param.grad
        v = beta2 * v + (1 - beta2) * param.grad**2
        param.mul_(1 - lr * group["weight_decay"])
        root = (v / (1 - beta2**t)).sqrt() + group["eps"]
        param.sub_(lr * m / (1 - beta1**t) / root)
        self.write(state, "m", m, DYNAMIC_SIGNED, block)
        self.write(state, "v", v, DYNAMIC_UNSIGNED, block)
        ### END SOLUTION

    def read(self, state, name, param, numbers, block):
        """Return a moment in float32, in the parameter's shape. numbers: a number per code."""
        if name not in state:
            return torch.zeros_like(param)
        if param.numel() < 4096:
            return state[name]
        scales = state[name + "_scales"].repeat_interleave(block)[: param.numel()]
        return (numbers.to(param.device)[state[name].long()] * scales).view_as(param)

    def write(self, state, name, moment, numbers, block):
        """Store a moment as codes, flat in uint8, with a scale for each block."""
        if moment.numel() < 4096:
            state[name] = moment
            return
        flat, numbers = moment.flatten(), numbers.to(moment.device)
        blocks = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
        ### BEGIN SOLUTION
        scales = blocks.abs().amax(1)
        shares = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
        codes = torch.bucketize(shares, (numbers[1:] + numbers[:-1]) / 2)
        ### END SOLUTION
        state[name] = codes.flatten()[: len(flat)].to(torch.uint8)
        state[name + "_scales"] = scales


# %% [markdown]
# <details><summary>Hint: the nearest code</summary><code>torch.bucketize</code> with the midpoints between
# neighbouring numbers returns the index of the nearest number.</details>
# <details><summary>Hint: zeros</summary>The scale of a block of zeros is 0, so divide such a block by 1
# instead of its scale.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "adam8bit_check", "points": 8}
report = check("09_precision_and_memory/adam8bit", Adam8bit)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/adam8bit", Adam8bit, cases="hidden")
### END HIDDEN TESTS
report.points(8)

# %% [markdown]
# **Measure.** The cell trains a small GPT on Python code for 150 steps with each of six optimizers. The first
# is AdamW in float32, and the last three use *linear* codes, which are spread evenly, for m, v or √v. The
# cell prints the loss at the end, and the largest step any weight took, in units of the learning rate. It
# takes up to half a minute.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.precision import codes as maps

TEXT, LR = library_text(), 1e-3


class Rooted(precision.Adam8bit):
    """The reference's optimizer, but it stores the root of v."""

    def read(self, state, name, param, block):
        moment = super().read(state, name, param, block)
        return moment.square() if name == "v" else moment

    def write(self, state, name, moment, block):
        super().write(state, name, moment.sqrt() if name == "v" else moment, block)


def trained(make, steps=150):
    """Return the mean of the last ten losses, the largest |update| / lr, and the bytes of states
    per parameter."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, heads=2, width=64, context=32))
    params = list(model.parameters())
    optimizer, losses, most = make(params), [], 0.0
    for step in range(steps):
        inputs, targets = batch(TEXT, step, batch_size=8, length=32)
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        before = [param.detach().clone() for param in params]
        optimizer.step()
        pairs = zip(params, before, strict=True)
        most = max(most, *(float((p.detach() - old).abs().max()) / LR for p, old in pairs))
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
    held = sum(
        x.nbytes for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)
    )
    return sum(losses[-10:]) / len(losses[-10:]), most, held / sum(p.numel() for p in params)


LINEAR = maps.linear_map(True), maps.linear_map(False)
MADE = {
    "float32": lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=0.0),
    "dynamic, 256": lambda params: precision.Adam8bit(params, lr=LR),
    "dynamic, 2,048": lambda params: precision.Adam8bit(params, lr=LR, block=2048),
    "linear m": lambda params: precision.Adam8bit(
        params, lr=LR, codes=(LINEAR[0], DYNAMIC_UNSIGNED)
    ),
    "linear v": lambda params: precision.Adam8bit(params, lr=LR, codes=(DYNAMIC_SIGNED, LINEAR[1])),
    "linear root of v": lambda params: Rooted(params, lr=LR, codes=(DYNAMIC_SIGNED, LINEAR[1])),
}
for name, make in MADE.items():
    loss, most, nbytes = trained(make)
    print(
        f"{name:17} loss {loss:6.3f}   largest step {most:9.3g} lr   {nbytes:.2f} bytes per parameter"
    )

# %% [markdown]
# With dynamic codes, and with linear codes for m, the loss is as low as with float32 moments, within the
# noise of such a run (±0.03). The states take more than 2.03 bytes per parameter, because small parameters
# keep float32 moments, and such parameters are a larger share of this model than of a 7B model. The line
# *linear v* is this section's **break it**. Elements of v below 1/510 of the largest element in their block
# become 0, but the corresponding elements of m don't. So m / (√0 + ε) is a step of a great many learning
# rates, and the loss becomes NaN. (With linear codes for √v, the largest step is about a hundred learning
# rates.)
#
# **Look.** The picture shows the distribution of v in all large matrices, after the first step and after 50
# steps. Each element is divided by the largest element of its block. The ticks above the histograms show the
# numbers of both maps.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def shares_of_v(steps):
    """Return all elements of v of large parameters, each over the largest in its block of 256."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, heads=2, width=64, context=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(steps):
        inputs, targets = batch(TEXT, step, batch_size=8, length=32)
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()
    large = [p for p in model.parameters() if p.numel() >= 4096]
    moments = [optimizer.state[p]["exp_avg_sq"].flatten() for p in large]
    return torch.cat(
        [part / part.max() for v in moments for part in v.split(256) if part.max() > 0]
    )


TICKS = {"linear": LINEAR[1], "dynamic": DYNAMIC_UNSIGNED}
figure = picture(8.0, 3.6)
for axes, steps in zip(figure.subplots(2, 1, sharex=True), (1, 50), strict=True):
    shares = shares_of_v(steps)
    axes.hist(shares[shares > 0].log10().tolist(), bins=100, range=(-12, 0), color="#BBBBBB")
    top = axes.get_ylim()[1]
    for row, (name, numbers) in enumerate(TICKS.items()):
        places = numbers[numbers > 0].log10()
        axes.vlines(
            places,
            top * (1.05 + 0.2 * row),
            top * (1.2 + 0.2 * row),
            linewidth=0.5,
            color="#0072B2",
        )
        axes.text(-11.9, top * (1.08 + 0.2 * row), f"{name} codes", fontsize=8)
    lost = ", ".join(
        f"{float((shares < numbers[1] / 2).double().mean()):.1%} with {name} codes"
        for name, numbers in TICKS.items()
    )
    print(f"elements that become 0 after step {steps:2}: {lost}")
    axes.set_title(f"after step {steps}", fontsize=9, loc="left")
    axes.set_yticks([])
axes.set_xlabel("log10 of v, divided by the largest v of its block", fontsize=8)
figure

# %% [markdown]
# After the first step, each element of v is a single square, so v spans many decades. After 50 steps, each
# element is a mean of squares, and three decades hold almost all of them. Therefore linear codes fail mainly
# at the beginning, but a run that fails then doesn't recover.
#
# <details><summary>Where the dynamic codes end</summary>
#
# Even with the dynamic codes, an element of v becomes 0 if it is below 1.6e-7 of the block's largest element,
# which is half of the smallest number of the map. An embedding comes closest to this limit, because some of
# its rows belong to frequent tokens and others to rare tokens. A block of 2,048 holds 32 rows of this GPT's
# embedding, so frequent and rare tokens share a scale. bitsandbytes therefore offers a special layer for
# embeddings, `StableEmbedding`.
#
# </details>
#
# **With ranks.** ZeRO shards the states, and the first block of each shard begins at the shard's first
# element. So the number of ranks decides which elements share a scale. Therefore a run that resumes on a
# different number of ranks doesn't repeat its losses bit for bit, and a test should compare the losses with a
# tolerance.
#
# With 8-bit moments and a master copy, a parameter takes 10.03 bytes instead of ZeRO's 16. Without the master
# copy it takes even less, but then the weights need the stochastic rounding of section 3.
#
# <details><summary>In production</summary>
#
# `bitsandbytes.optim.AdamW8bit` is this algorithm in CUDA kernels, with blocks of 256 (2,048 in the paper and
# in earlier releases). The library's *paged* optimizers also move states to the host's memory when the GPU's
# memory is full. `torchao.optim.AdamW8bit` implements the algorithm in compiled PyTorch. DeepSeek-V3 instead
# keeps both moments in bf16, and a master copy in float32 (the report's §3.3). So its moments take 4 bytes
# per parameter instead of 2, but need no scales.
#
# </details>

# %% [markdown]
# ## 6 · Not stored: checkpointing
#
# | | |
# |---|---|
# | you will write | `best_segment(layers, kept, inside)` and `checkpoint(function, *args)` |
# | builds on | notebook 01 §3 |
# | time | 52 minutes, and 7 for the *optional* end |
# | difficulty, importance | 4 and 5 of 5 |
# | points | 14 |
#
# The largest band in notebook 01's timeline was purple. It showed the activations, which forward keeps for
# backward. Fewer bits make the band thinner. But all activations were *computed* from the batch and the
# weights, which are still in memory. So a block can keep only its input, which is then called a *checkpoint*.
# When backward reaches the block, the block's forward runs once more. The *inside* of the block, which is
# everything this forward keeps for backward, exists only as long as backward needs it.
#
# The cell runs a small GPT forward and backward with six blocks three times. The first run has no
# checkpoints, the second run has one for each block, and the third run has one for each *segment* of three
# blocks. In the pictures, each tooth of the saw in backward is the inside of one segment, which is computed
# again and then freed.

# %% tags=["skip-in-grading"]
DISTANCES = {
    "no checkpoints": 0,
    "a checkpoint for each block": 1,
    "a checkpoint for every third block": 3,
}
timelines = {name: pictured(every) for name, every in DISTANCES.items()}
for name, timeline in timelines.items():
    print(f"{name:34} peak {timeline.peak.total / 1e6:5.1f} MB, in {timeline.peak.phase}")
memory_figure(timelines)

# %% [markdown]
# ### How far apart?
#
# If L layers have a checkpoint every k layers, ⌈L/k⌉ inputs are kept until backward has used them. In
# addition, while backward works on *one* segment of k layers, the inside of this segment exists. So at the
# worst moment, the memory is
#
# ⌈L/k⌉ · kept + k · inside,
#
# where `kept` is the memory of a layer's input, and `inside` is the memory of everything a layer keeps for
# backward. If k is small, many inputs are kept, but if k is large, the inside of a segment is large.
#
# **Predict.** Chen et al. (2016) consider layers that keep only their input, so `kept = inside`. Then k = √L
# is best, which is about 9 for 80 layers. This rule is widely quoted. But a block of a transformer keeps 34
# bytes for each 2 bytes of its input, 17 times as much (Korthikanti et al. 2022, table 2, without the
# scores). Is the best k for 80 blocks larger or smaller than 9? Decide before you write the function.


# %% nbgrader={"grade_id": "best_segment", "solution": true}
def best_segment(layers: int, kept: float = 1.0, inside: float = 17.0) -> int:
    """Return the k from 1 to `layers` with the least peak memory for a checkpoint every k layers.

    kept: the memory of a layer's input. inside: the memory of everything a layer keeps for
    backward. If several k need equally little, return the largest, because it has the fewest
    segments.
    """
    ### BEGIN SOLUTION
    best, least = 1, math.inf
    for k in range(1, layers + 1):
        most = math.ceil(layers / k) * kept + k * inside
        if most <= least:
            best, least = k, most
    return best
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: no formula</summary>If k could be any real number, √(L · kept / inside) would be the
# best k. But k is an integer, so try every k. For 80 layers that keep only their input, k = 8, 9 and 10 are
# equally good, so the function returns 10.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "best_segment_check", "points": 4}
report = check("09_precision_and_memory/best_segment", best_segment)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/best_segment", best_segment, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% [markdown]
# For 80 layers, k = 2 is best. The worst moment then takes 148 bytes per s · b · h (s tokens, b sequences,
# width h). With k = 1 it takes 194 bytes, and with k = 4, as in notebook 01's plan, it takes 176. The square
# root, k = 9, needs 324 bytes, which is more than twice the best.
#
# ### Build it
#
# **Build.** `checkpoint` returns what `function(*args)` returns, but keeps only the arguments for backward.
# Use an `autograd.Function` for it. The `forward` of a Function runs without a graph, so autograd keeps
# nothing from inside it. Its `backward` can run any code, including another forward and another backward.
#
# The left column of the table and its last row are given as code. Write `checkpoint`, and in `backward` the
# second run up to its `outputs`.
#
# | in forward | in backward |
# |---|---|
# | keep the tensors among the arguments (`ctx.save_for_backward`), and the other arguments on `ctx` | detach the tensors, so that the second run's graph ends at them. Each of them needs a gradient if it did in forward |
# | keep the state of the random generator, `torch.get_rng_state()` | set this state, run the function *with* a graph, and restore the caller's state |
# | keep whether autocast is on, and its dtype (`torch.is_autocast_enabled("cpu")`, `torch.get_autocast_dtype("cpu")`) | run the function under the same autocast |
# | run the function | call `torch.autograd.backward` with the new outputs and the gradients that `backward` received, and return the gradients of the arguments |
#
# The weights are not arguments, because `function` has access to them anyway. As always,
# `torch.autograd.backward` adds their gradients to `.grad`.
#
# There is one trap. Autograd records a Function only if one of its tensor inputs needs a gradient. But the
# input of a model's first block may not need a gradient, for example after a frozen embedding. Then the
# block's weights would get none. How can you give the Function an input that always needs a gradient?


# %% nbgrader={"grade_id": "checkpoint", "solution": true}
def checkpoint(function, *args):
    """Return function(*args), a tensor or a tuple of tensors. Keep only its arguments for backward.

    args: tensors (with and without a gradient, also of integers) and anything else. The gradients
    of arguments and weights are the same as without a checkpoint, so dropout drops the same
    elements, and autocast is the same as in forward. The caller's random numbers go on as if the
    function had run once. In backward, the tensors inside exist while the second run's gradients
    are computed, and are freed afterwards.
    """
    ### BEGIN SOLUTION
    return Recompute.apply(torch.empty(0, requires_grad=True), function, *args)
    ### END SOLUTION


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, function, *args):
        ctx.function = function
        ctx.random = torch.get_rng_state()
        ctx.cast = {
            "enabled": torch.is_autocast_enabled("cpu"),
            "dtype": torch.get_autocast_dtype("cpu"),
        }
        ctx.others = [None if torch.is_tensor(arg) else arg for arg in args]
        ctx.places = [place for place, arg in enumerate(args) if torch.is_tensor(arg)]
        ctx.save_for_backward(*(args[place] for place in ctx.places))
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        args = list(ctx.others)  # the tensors, ctx.saved_tensors, belong at the indices ctx.places
        ### BEGIN SOLUTION
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        with (
            torch.random.fork_rng(devices=[]),
            torch.enable_grad(),
            torch.autocast("cpu", **ctx.cast),
        ):
            torch.set_rng_state(ctx.random)
            outputs = ctx.function(*args)
        ### END SOLUTION
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if y.requires_grad]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        # The anchor and the function have no gradient.
        return None, None, *(arg.grad if torch.is_tensor(arg) else None for arg in args)


# %% [markdown]
# <details><summary>Hint: nothing has a gradient</summary>Like <code>forward</code>, <code>backward</code>
# runs without a graph. Put the second run inside <code>with torch.enable_grad():</code>, so that it has a
# graph.</details>
# <details><summary>Hint: a first block</summary>Pass <code>torch.empty(0, requires_grad=True)</code> to
# <code>apply</code> as the argument <code>anchor</code>. The given code returns None as its
# gradient.</details>
# <details><summary>Hint: the generator</summary>Put the second run inside
# <code>with torch.random.fork_rng(devices=[]):</code>, which restores the caller's state at its end. At its
# beginning, call <code>torch.set_rng_state</code>.</details>
# <details><summary>Another way</summary>With <code>torch.autograd.graph.saved_tensors_hooks</code>, you can
# let autograd keep a number instead of each tensor. When backward asks for the first tensor, run the function
# again. Since the same function keeps the same tensors in the same order, each number tells you which tensor
# to return.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "checkpoint_check", "points": 10}
report = check("09_precision_and_memory/checkpoint", checkpoint)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/checkpoint", checkpoint, cases="hidden")
### END HIDDEN TESTS
report.points(10)

# %% [markdown]
# **Measure.** The cell runs eight blocks of width 128 on 1,024 tokens, without checkpoints (`every 0`) and
# with a checkpoint every k blocks. It prints the bytes that are kept after forward, and the peak memory of
# forward and backward without the weights.

# %% tags=["skip-in-grading"]
blocks = Blocks()
if ready(checkpoint):
    print(f"{'':8}{'kept':>9}{'peak':>10}")
    for every in (0, 1, 2, 3, 4, 8):
        kept, peak = blocks.bytes(every, checkpoint)
        print(f"every {every} {kept / 1e6:8.1f} MB{peak / 1e6:7.1f} MB")

# %% [markdown]
# With k = 1, only 4.2 of 67.4 MB are kept after forward, a sixteenth, and with k = 8 nearly nothing. But the
# model fits into memory only if the peak does. The peak falls from 70 MB to 18 MB with k = 1, but every
# larger k is worse. With k = 3, about the square root of 8, the peak is 33 MB. With k = 8 there is only one
# segment, so nothing is gained. (Up to 6 MB of a peak are gradients of weights.)
#
# How many FLOPs does a checkpoint cost? The cell measures your checkpoint and both kinds of PyTorch's
# checkpoint.

# %% tags=["skip-in-grading"]
KINDS = {
    **({"yours": checkpoint} if ready(checkpoint) else {}),
    "PyTorch, use_reentrant=True": partial(of_pytorch, use_reentrant=True),
    "PyTorch, use_reentrant=False": partial(of_pytorch, use_reentrant=False),
}
plain = blocks.flops()
for name, kind in KINDS.items():
    kept, peak = blocks.bytes(1, kind)
    flops = blocks.flops(1, kind)
    print(
        f"{name:30} kept {kept / 1e6:4.1f} MB, peak {peak / 1e6:5.1f} MB, {flops / plain:.3f} times the FLOPs"
    )

# %% [markdown]
# Backward takes as many FLOPs as two forwards, so forward and backward together take as many as three
# forwards. One more forward makes four, so the ratio is 4/3. PyTorch's `use_reentrant=False` needs only 5/4,
# because it stops the second run early.
#
# <details><summary>Why 5/4?</summary>
#
# `use_reentrant=False` works with hooks. As soon as the last tensor that backward needs is ready, PyTorch
# leaves out the rest of the second run. In a block, the rest is the last matrix product of the MLP, with 8 h²
# FLOPs for each token. A block's forward takes 24 h² FLOPs for each token, and another 4 s h for attention.
# Here s = 2h, so attention adds 8 h², which makes 32 h² in all. Therefore 24/32 of the forward runs again, or
# 3/4. Since a forward is a third of forward and backward, the second run adds 1/4 to their FLOPs. (Your
# checkpoint can't stop early, because its backward needs the output of the second run.) For a whole model the
# ratio is a little less than 4/3, because its head isn't checkpointed. (The cell computes attention with two
# plain matrix products, `SDPBackend.MATH`, so that the counter sees them.)
#
# </details>
#
# **Measure, with ranks.** Recomputation repeats *all* of forward, so it also repeats the messages. A
# tensor-parallel block all-reduces twice in forward and twice in backward. How many all-reduces are there
# with each kind of checkpoint? Predict the numbers before you run the cell.


# %% tags=["skip-in-grading"]
def all_reduces(kind):
    """On a rank, after a barrier, run forward and backward of two tensor-parallel blocks."""
    from course_lib.tensor_parallel import parallelize_gpt

    model = parallelize_gpt(GPT(GPTConfig(layers=2, heads=4, width=32, context=16)))
    x = torch.randn(1, 16, 32, requires_grad=True)
    dist.barrier()
    for block in model.blocks:
        x = kind(block, x, torch.arange(16)) if kind else block(x, torch.arange(16))
    x.sum().backward()


for name, kind in {"no checkpoint": None, **KINDS}.items():
    run = launch(all_reduces, kind, world_size=2, backend="gloo")  # only the operations matter
    names = [operation.op for operation in run.ledger.operations(0)]
    after = names[len(names) - names[::-1].index("barrier") :]
    print(f"{name:30} {after.count('all_reduce') // 2} all-reduces per block")

# %% [markdown]
# With your checkpoint there are six all-reduces instead of four, so the ranks send half as many messages
# again, and these can't be hidden. With an early stop there are only five. No operation of the block keeps
# the result of forward's last all-reduce, so the second run stops before it.
#
# <details><summary>In production</summary>
#
# | framework | name | what it checkpoints |
# |---|---|---|
# | PyTorch | `torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False)` | a function. With `context_fn`, the checkpoint is selective |
# | FSDP | `checkpoint_wrapper` around each block, inside of `fully_shard` | the unit that FSDP gathers |
# | Megatron-LM | `--recompute-granularity full` or `selective` | whole layers, or only attention |
# | DeepSpeed | `activation_checkpointing` | layers. Their inputs can also be divided among tensor-parallel ranks, or moved to the host's memory |
# | Hugging Face | `model.gradient_checkpointing_enable()` | each block |
#
# FSDP gathers a unit's weights for backward anyway, *before* the block runs again, so the second forward
# already has the full weights. Therefore `fully_shard` sends three units of traffic, both with checkpoints
# and without.
#
# Under tensor parallelism, dropout inside a region uses a separate generator on each rank (notebook 06), so a
# checkpoint also has to keep the state of this generator. The course's layers seed the separate generator
# from the common generator, so for them the common generator's state is enough.
#
# </details>
#
# ### Two traps, and selective recomputation *(optional)*
#
# **Break it.** The cell computes gradients with dropout and PyTorch's checkpoint, first with the generator's
# state and then without it (`preserve_rng_state=False`). Which gradients are wrong without the state? The
# cell also shows the other trap, a first block whose input needs no gradient, and PyTorch's warning for a
# call without `use_reentrant`.


# %% tags=["skip-in-grading"]
def gradient(kind):
    dropped = Blocks(layers=2, width=32, batch=2, seq=32, dropout=0.5)
    torch.manual_seed(1)
    dropped.forward(1, kind).square().sum().backward()
    return torch.cat([param.grad.flatten() for param in dropped.model.blocks.parameters()])


wanted = gradient(lambda function, *args: function(*args))
for name, state in (("with the state", True), ("without the state", False)):
    kind = partial(of_pytorch, use_reentrant=False, preserve_rng_state=state)
    off = (gradient(kind) - wanted).abs().max()
    largest = wanted.abs().max()
    print(f"{name}: gradients differ by up to {off:.3g}; the largest gradient is {largest:.3g}")

layer, inputs = nn.Linear(8, 8), torch.randn(4, 8)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print(
        "use_reentrant=True:  output.requires_grad is",
        of_pytorch(layer, inputs, use_reentrant=True).requires_grad,
    )
print(
    "use_reentrant=False: output.requires_grad is",
    of_pytorch(layer, inputs, use_reentrant=False).requires_grad,
)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    of_pytorch(layer, inputs)
print("without the keyword:", str(caught[0].message).partition(": ")[2].partition(". use")[0])

# %% [markdown]
# If the checkpoint doesn't keep the generator's state, nothing warns you, because the loss is right. But the
# gradient belongs to a network with different dropout masks. And with `use_reentrant=True`, the older kind of
# checkpoint, a first block whose input needs no gradient gets no gradients at all. If all later blocks get
# their gradients, training goes on, but the first block never changes.
#
# <details><summary>In the lectures</summary>Lecture 001 says that checkpointing costs "2x compute", but it
# costs 4/3, or less with an early stop (5/4 above). The lecture also says "√N memory, 10x typical". In the
# measurement above, 16 times fewer bytes are kept, but the peak is still a quarter of the peak without
# checkpoints. The lecture sets a checkpoint every fourth layer, which needs 176 bytes at the worst moment,
# although 148 are possible. It calls <code>checkpoint</code> without <code>use_reentrant</code>, and so does
# lecture 002, whose layer also has no residual connection and no activation function. According to the
# warning above, such a call raises an exception from PyTorch 2.9 on, but in PyTorch 2.13 it still uses the
# older kind. Lecture 001 also calls <code>use_cache=False</code> required. But this is an option of Hugging
# Face's cache for generation, which has nothing to do with backward.</details>
#
# **Look.** A *selective* checkpoint keeps the expensive results and recomputes only the cheap ones. PyTorch
# asks a function, the policy, about each operation. Here the policy keeps the result of every matrix product.

# %% tags=["skip-in-grading"]
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


def products_kept(context, operation, *args, **kwargs):
    keep = operation in PRODUCTS
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


contexts = partial(create_selective_checkpoint_contexts, products_kept)
selective = partial(of_pytorch, use_reentrant=False, context_fn=contexts)
blocks = Blocks()
for name, every in (("no checkpoint", 0), ("products kept", 1)):
    (_, peak), flops = blocks.bytes(every, selective), blocks.flops(every, selective)
    print(f"{name:15} peak {peak / 1e6:5.1f} MB, {flops / blocks.flops():.3f} times the FLOPs")

# %% [markdown]
# No matrix product is computed twice, and yet the peak falls by almost a third. Korthikanti et al. (2022)
# instead recompute only attention. Without flash attention, a layer also keeps its attention scores, which
# add 5as/h bytes to the 34 bytes for each 2 bytes of its input (a heads, s tokens, width h). For GPT-3, this
# is 80 bytes more. Recomputing attention adds a share of **s/18h** to the FLOPs of the layer's other matrix
# products.
#
# <details><summary>Why s/18h?</summary>In forward, the two matrix products of attention take 4 b s² h FLOPs
# per layer, for b sequences of s tokens. All other matrix products of a layer take 72 b s h² FLOPs in forward
# and backward together, and 4/72 is 1/18. With PyTorch's early stop, only the first of the two products runs
# again, so the share is s/36h.</details>
#
# <details><summary>An erratum, with its derivation</summary>Appendix A of the paper counts the FLOPs of a
# model as 72 B L s h² (1 + s/6h + V/12Lh), with B for the number of sequences, L for the number of layers and
# V for the size of the vocabulary. The term s/6h is for the matrix products of attention, which take 12 B s²
# h per layer, forward and backward together. The text of the paper says that selective recomputation adds 4 B
# s² h per layer, for the forward of these products. Since 4/72 is 1/18, this adds s/18h to the sum in
# parentheses, so s/6h becomes 2s/9h. But equation 8 of the paper has 1 + s/3h instead of 1 + 2s/9h. So the
# equation adds another s/6h, which is 12 B s² h per layer, as if backward were also repeated. Section 5 of
# the paper also states that recomputation adds 2.7 % for GPT-3 and 1.6 % for MT-NLG, which are the values of
# s/6h, whereas s/18h gives 0.9 and 0.6 %. However, time matters more than FLOPs. The paper measured that
# selective recomputation adds 7 % to the time of a layer at 22B parameters, and 2 % at 530B (table 4, figure
# 8).</details>

# %% [markdown]
# ## 7 · Later, and not at all *(optional)*
#
# | | |
# |---|---|
# | you will write | nothing, because two tools are given |
# | builds on | §6 |
# | time | 10 minutes |
#
# ### Elsewhere: offload
#
# A tensor that is kept for backward can wait in the host's memory. `offload_saved` uses the same hooks as the
# meter you wrote in notebook 01. One hook moves each tensor to the host when autograd keeps it, and the other
# hook moves the tensor back when backward needs it. (PyTorch's own version is
# `torch.autograd.graph.save_on_cpu`.) Without a GPU, a file that is mapped into memory replaces the host's
# memory. The cell then shows which tensors move, but a time measured here would mean nothing.

# %% tags=["skip-in-grading"]
offloaded = Blocks(layers=4)
with recompute.offload_saved(offloaded.model) as moved:
    y = offloaded.forward()
print(
    f"forward moved {moved.tensors} tensors ({moved.nbytes / 1e6:.1f} MB), and {moved.returned} came back"
)
y.sum().backward()
print(f"by the end of backward, {moved.returned} came back")

# %% [markdown]
# If two operations keep the same tensor, the tensor moves twice, so more bytes move than are kept. A copy on
# its own stream can be hidden behind the computation at a width of h = 12,288, but not at h = 4,096.
#
# <details><summary>The numbers</summary>For each token, a block keeps 34 h bytes, and its forward takes 24 h²
# FLOPs. Suppose that an A100 reaches 40 % of its 312 TFLOP/s, and that PCIe 4.0 moves 32 GB/s in each
# direction. At h = 12,288, the forward then takes 29 µs per token and the copy 13 µs, so the copy can be
# hidden. At h = 4,096, however, the forward takes 3.2 µs and the copy 4.4 µs. The section <i>On your GPUs</i>
# measures copies to the host.</details>
#
# ### Never all at the same time: the optimizer in backward
#
# After backward, the gradients of all parameters are in memory, but a parameter's step needs only the
# parameter's own gradient. `step_in_backward` takes the step in a hook that runs as soon as this gradient is
# complete (`register_post_accumulate_grad_hook`, notebook 03). Then the hook frees the gradient.

# %% tags=["skip-in-grading"]
sgd = partial(torch.optim.SGD, lr=0.1, foreach=False)
weights = {}
for name in ("after backward", "in backward"):
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    held = sum(param.nbytes for param in layers.parameters())
    optimizer = sgd(layers.parameters())
    if name == "in backward":
        recompute.step_in_backward(layers.parameters(), sgd)
    with costs(*layers.parameters()) as spent:
        layers(torch.ones(1, 256)).sum().backward()
        if name == "after backward":
            optimizer.step()
    weights[name] = torch.cat([param.detach().flatten() for param in layers.parameters()])
    print(f"{name:15} peak {spent.peak_bytes / held:.2f} P")
print("the same weights:", torch.equal(*weights.values()))

# %% [markdown]
# Here P is the size of the weights in bytes. The peak, which includes the weights, falls from 2 P to a little
# over 1 P, and the new weights are the same, bit for bit. But you can no longer clip by a global norm or
# accumulate gradients over microbatches. Why not?
#
# <details><summary>Answer</summary>The norm needs all gradients before the first step. And the gradient of
# the first microbatch is freed before the gradient of the second microbatch is computed.</details>
# <details><summary>With FSDP</summary>The hook receives its shard of the gradient after the reduce-scatter,
# one unit at a time.</details>

# %% [markdown]
# ## On your GPUs
#
# *No points. With GPUs this takes a few minutes. Without them the cells show a recorded run, if there is
# one.*
#
# **Predict.** The cell computes the same matrix product in five formats. According to the data sheet, tensor
# cores reach twice as many FLOP/s with half as many bits. But float32 doesn't use tensor cores, so it has no
# prediction. A dash means that the GPU doesn't have the format.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
from course_lib.gpu import on_your_gpus
from course_lib.gpu.arithmetic import FORMATS
from course_lib.gpu.memory import KEPT_OR_NOT, MASKS


def data_sheet(of, run):
    peaks = {"tf32": run.card.flops / 2, "fp16": run.card.flops, "bf16": run.card.flops}
    return {**peaks, "fp8": run.card.fp8}.get(of["format"])


on_gpus = on_your_gpus(FORMATS, predicted=data_sheet)

# %% [markdown]
# **Predict.** The next cell runs eight blocks forward and backward in 16 bits. The insides of the blocks are
# kept, computed again, or moved to pinned host memory and back (§7). If they are computed again, the step
# takes up to 4/3 of the FLOPs. Does it also take 4/3 of the time? And is the copy to the host hidden?


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def of_kept(of, run):
    shares = {"computed again": 4 / 3, "your checkpoint": 4 / 3, "on the host, pinned": 1}
    return (
        run.rows[0].value * shares[of["way"]]
        if of["kind"] == "step" and of["way"] in shares
        else None
    )


mine = checkpoint if ready(checkpoint) else None
on_gpus = on_your_gpus(KEPT_OR_NOT, predicted=of_kept, yours=mine)
# %% [markdown]
# The hooks copy on the same stream that computes, as `save_on_cpu` does. So the copies can't be hidden,
# because each copy waits for the operation before it, and the next operation waits for the copy.
#
# **Break it.** Your `checkpoint` keeps the state of the *CPU's* generator. But on a GPU, dropout draws its
# masks from the GPU's generator. Does the second run draw the same masks there?

# %% tags=["nbval-ignore-output", "skip-in-grading"]
on_gpus = on_your_gpus(MASKS, yours=mine)
# %% [markdown]
# If the gradients differ by more than rounding, the two runs drew different masks, although no error told
# you. Keep `torch.cuda.get_rng_state()` as well, restore it in backward, and do the same for
# `torch.is_autocast_enabled("cuda")`. Then the last row is 0.

# %% [markdown]
# ## 8 · Questions
#
# | | |
# |---|---|
# | builds on | §1 to §4, §6 |
# | time | 10 minutes |
# | points | 6 |
#
# A number may be an expression.
#
# 1. What is the distance from 1 to the next larger number in fp16?
# 2. Three problems can occur when you train in fp16. Which of them does a loss scaler *not* repair?
#    `"an inf on one rank"`, `"gradients that are 0"` or `"a loss that is not a number"`
# 3. A run has bfloat16 weights with stochastic rounding and no master copy, bfloat16 gradients, and Adam's m
#    and v in 8 bits with a float32 scale for each block of 256. How many **bytes** per parameter does the run
#    take?
# 4. Llama-3-405B has 126 layers. For each 2 bytes of its input, a layer keeps 34 bytes for backward. How many
#    **layers** apart should the checkpoints be, so that the worst moment takes the least memory?
# 5. The replicas of a model round their weights stochastically, and drift apart. Which of these should be the
#    same on all replicas, but isn't? `"each rank's data"`, `"each rank's generator"` or
#    `"each rank's shard of the states"`
# 6. In fp8 training, gradients are usually stored in e5m2, because e5m2 has a larger range. But DeepSeek-V3
#    uses e4m3 for gradients as well. What does it use instead of the larger range? `"a scale for each tile"`,
#    `"a float32 accumulator"` or `"stochastic rounding"`

# %% nbgrader={"grade_id": "questions", "solution": true}
answer_1 = ...  # a number
answer_2 = ...  # one of the three texts
answer_3 = ...  # bytes
answer_4 = ...  # layers
answer_5 = ...  # one of the three texts
answer_6 = ...  # one of the three texts
### BEGIN SOLUTION
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"
### END SOLUTION

# %% nbgrader={"grade_id": "questions_check", "points": 6}
report = check(
    "09_precision_and_memory/questions", answer_1, answer_2, answer_3, answer_4, answer_5, answer_6
)
### BEGIN HIDDEN TESTS
report = check(
    "09_precision_and_memory/questions",
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
# ## 9 · Optional: the loss in pieces
#
# | | |
# |---|---|
# | you will write | `chunked_loss(hidden, weight, targets, chunks)` |
# | builds on | §6 |
# | time | 40 minutes |
# | difficulty, importance | 3 and 2 of 5 |
# | extra credit | 4 points, on top of the others. You lose nothing if you skip it |
#
# If all blocks are checkpointed, the logits are the largest tensor that is left, with T · V elements for T
# tokens and a vocabulary of size V. For Llama 3 with 8,192 tokens and a vocabulary of 128,256, the logits
# take 4.2 GB in float32, and their softmax and their gradient each take as much. Yet the loss of a token
# needs only the logits of this token. So cut the tokens into chunks. For each chunk, compute the logits, the
# chunk's share of the loss, and its share of the gradients of `hidden` and `weight`. Then free the logits.
#
# **Predict.** For 1,024 tokens and a vocabulary of 16,384, the logits, their softmax and their gradient take
# 201 MB together in float32. How much do they take with 8 chunks, and which other large tensors are in
# memory?
#
# <details><summary>Answer</summary>They take 25 MB, an eighth of 201 MB. The gradients of <code>hidden</code>
# and <code>weight</code>, with T h and V h elements, are also in memory.</details>
#
# **Build.** The gradient of the mean of n losses with respect to the logits is (softmax − one-hot) / n. So in
# forward you already know all of it except one factor, the upstream gradient. `backward` multiplies by this
# factor.


# %% nbgrader={"grade_id": "chunked_loss", "solution": true}
def chunked_loss(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunks: int
) -> torch.Tensor:
    """Return the mean cross entropy of hidden @ weight.T over targets other than -100, in float32.

    hidden: (T, h). weight: (V, h), of the same floating dtype. targets: (T,) int64. chunks: into
    how many parts to cut the T tokens, as torch.tensor_split does. The logits of all tokens must
    never exist at the same time, in forward or backward. Sum over chunks in float32, whatever the
    dtype of hidden and weight is.
    """
    ### BEGIN SOLUTION
    return InPieces.apply(hidden, weight, targets, chunks)


class InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunks):
        valid = targets != -100
        count, loss = valid.sum(), torch.zeros((), device=hidden.device)
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        parts = (t.tensor_split(chunks) for t in (hidden, targets.clamp(min=0), valid, of_hidden))
        for x, y, counts, place in zip(*parts, strict=True):
            logits = (x @ weight.t()).float()
            losses = F.cross_entropy(logits, y, reduction="none")
            loss += (losses * counts).sum() / count
            slope = logits.softmax(1)
            slope[torch.arange(len(y), device=y.device), y] -= 1
            slope *= (counts / count)[:, None]
            place.copy_(slope.to(x.dtype) @ weight)
            of_weight += slope.t() @ x.float()
        ctx.save_for_backward(of_hidden, of_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, upstream):
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * upstream, of_weight * upstream, None, None

    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint: unequal chunks</summary>Add up the losses of all chunks, and divide the sum by the
# number of targets that count in all chunks together. Don't average within a chunk.</details>
# <details><summary>Hint: another way</summary>Use your checkpoint for the loss of each chunk. Then the logits
# are computed twice, but you don't have to derive anything by hand. Give all chunks the same float32 copy of
# the weight, and cast it to the dtype of <code>hidden</code> inside the checkpoint. Then the gradients of the
# chunks are added in float32.</details>
#
# **Check.**

# %% nbgrader={"grade_id": "chunked_loss_check", "points": 0}
# Extra credit, 4 points
report = check("09_precision_and_memory/chunked_loss", chunked_loss)
### BEGIN HIDDEN TESTS
report = check("09_precision_and_memory/chunked_loss", chunked_loss, cases="hidden")
### END HIDDEN TESTS


# %% [markdown]
# **Measure.** The cell runs forward and backward for 1,024 tokens, a vocabulary of 16,384 and width 128,
# first with all logits and then with chunks.


# %% tags=["nbval-ignore-output", "skip-in-grading"]
def one_loss(run, tokens=1024, vocab=16384, width=128):
    """Return peak bytes and seconds of forward and backward, and [loss, the two gradients]."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = (torch.randn(vocab, width) / 10).requires_grad_()
    targets = torch.randint(vocab, (tokens,))
    took = []
    for _ in range(3):
        hidden.grad = weight.grad = None
        began = time.perf_counter()
        with costs(hidden, weight, targets) as spent:
            loss = run(hidden, weight, targets)
            loss.backward()
        took.append(time.perf_counter() - began)
    return spent.peak_bytes, min(took), [loss.detach(), hidden.grad, weight.grad]


def all_logits(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight.t(), targets)


peak, took, wanted = one_loss(all_logits)
print(f"all logits: {peak / 1e6:6.1f} MB")
if ready(chunked_loss):
    for chunks in (8, 64):
        most, took_here, parts = one_loss(partial(chunked_loss, chunks=chunks))
        same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(parts, wanted, strict=True))
        print(
            f"{chunks:3} chunks: {most / 1e6:6.1f} MB, {took_here / took:.2f} times the time, equal: {same}"
        )

# %% [markdown]
# With 8 chunks you need a fifth of the memory, and no more time. Sixty-four chunks save little more, because
# both gradients have to be in memory anyway. They also take longer, because small matrix products are less
# efficient.
#
# <details><summary>The course's version</summary>The version in <code>course_lib.recompute</code> computes
# the gradient in the memory of the logits, so it takes 34.6 MB, a sixth.</details>
#
# **Break it.** Suppose that you add up the weight's gradient in bfloat16, and each chunk adds 1 to an
# element. At which number does the element stop growing?
#
# <details><summary>Answer</summary>It stops at 256. The next number of bfloat16 is 258, so 257 is a tie and
# is rounded to 256.</details>
# <details><summary>In production</summary>Liger Kernel's <code>FusedLinearCrossEntropy</code> (Hsu et al.
# 2024, §3.2) runs your algorithm on a GPU. With tensor parallelism, the vocabulary is divided instead of the
# tokens (notebook 06).</details>

# %% [markdown]
# ## Scorecard
#
# The cell runs two AdamW steps of a GPT with eight blocks on one rank, with 1,024 tokens per step. It
# measures the techniques of this notebook that save memory, and then combinations of them. M is the size of
# the float32 parameters in bytes. The cell takes up to a minute, and prints a dot for each row it has
# measured.

# %% tags=["nbval-ignore-output", "skip-in-grading"]
WAYS = {
    "float32": {},
    "autocast bfloat16": {"autocast": True},
    "a checkpoint for each block": {"every": 1},
    "for every third (square root)": {"every": 3},
    "8-bit Adam": {"eight": True},
    "loss in 8 chunks": {"chunks": 8},
    "each block, loss in 8 chunks": {"every": 1, "chunks": 8},
    "every third, loss in 8 chunks": {"every": 3, "chunks": 8},
    "all together": {"autocast": True, "every": 1, "eight": True, "chunks": 8},
}
scorecard(WAYS)

# %% [markdown]
# Look at the peaks. Without checkpoints, the activations cause the peak. With a checkpoint for each block,
# the logits cause the peak. In this case the square root (every third block) looks a little better, because
# fewer inputs are kept. With the loss in chunks as well, the segments in backward cause the peak, as in §6,
# and segments of one block are best. Checkpoints add 27 % to the FLOPs, but the loss in chunks and the
# smaller states add nothing that the counter sees. One rank sends nothing, but on tensor-parallel ranks, the
# rows with checkpoints would send half as much again (§6).
#
# **You have built** the rounding of a cast, a loss scaler that keeps N ranks together, stochastic rounding,
# tiles of 8-bit numbers with their scales, Adam with two bytes of state per parameter, a checkpoint that
# agrees with PyTorch's bit for bit, the best distance between checkpoints, and perhaps a loss in chunks.
#
# **Read on.**
# - Micikevicius et al. (2018), *Mixed Precision Training*: §3, and figure 3, which shows the gradients that
#   become 0 in fp16.
# - Zamirai et al. (2020), *Revisiting BFloat16 Training*: stochastic rounding instead of a master copy.
# - Micikevicius et al. (2022), *FP8 Formats for Deep Learning*; DeepSeek-AI (2024), *DeepSeek-V3 Technical Report*: §3.3.
# - Dettmers et al. (2022), *8-bit Optimizers via Block-wise Quantization*: §2.
# - Chen et al. (2016), *Training Deep Nets with Sublinear Memory Cost*: §3 and §4.
# - Korthikanti et al. (2022), *Reducing Activation Recomputation in Large Transformer Models*: §4 and §5.
# - PyTorch's documentation of `torch.utils.checkpoint`, and its source: `use_reentrant=False` is the *other
#   way* from §6.
# - Lv et al. (2023), *Full Parameter Fine-tuning for Large Language Models with Limited Resources*: the optimizer in
#   backward. Hsu et al. (2024), *Liger Kernel*: the loss in chunks.
# - `course_lib/precision/` and `course_lib/recompute/` are the course's own versions, and `lazy.py` is the
#   checkpoint with hooks. Read them after you have written yours.
#
# <details><summary>In the lectures</summary>The three criteria of the scorecards are from lecture
# 003.</details>

# %% [markdown]
# **How far are you?** The next cell lists the points of the checks that have run since this kernel started. In
# a terminal, `python -m course_lib.progress` adds up the points in your saved notebooks, and `python -m
# course_lib.submit` packs them to hand in.

# %% tags=["skip-in-grading"]
from course_lib import progress

progress.show("09_precision_and_memory")
