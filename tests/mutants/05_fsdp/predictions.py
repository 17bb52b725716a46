# %% base: what the wrong ones change
def fsdp_bytes(params, n, microbatches=1, *, weights=2, gradients=4, reshard=True, keep=None):
    k = microbatches
    gathers = 2 * k if reshard else k
    if keep == "weights between":
        gathers = k + 1 if reshard else 1
    if keep == "weights":
        gathers = 1
    reductions = k if keep is None else 1
    return (n - 1) / n * params * (gathers * weights + reductions * gradients)


def hides_from(n, flops, each_way, itemsize=2):
    return (n - 1) / n * itemsize / 2 * flops / each_way


def unit_bytes(config, itemsize=2):
    h, inner = config.width, config.mlp_width
    keys = config.key_value_heads * config.head_dim
    block = 2 * h * h + 2 * h * keys
    block += (3 if config.mlp == "swiglu" else 2) * h * inner
    if config.bias:
        block += 3 * h + 2 * keys + (2 if config.mlp == "swiglu" else 1) * inner
    norm = h * (2 if config.norm == "layer" and config.bias else 1)
    root = config.vocab_size * h + norm
    if not config.tied:
        root += config.vocab_size * h
    if config.positions == "learned":
        root += config.context * h
    return itemsize * (block + 2 * norm), itemsize * root


# %% wrong: two transfers, as for replicas
# is: slip
# says: You counted replicas, with an
# base: what the wrong ones change
-    return (n - 1) / n * params * (gathers * weights + reductions * gradients)
+    return (n - 1) / n * params * 2 * reductions * gradients


# %% wrong: gathered for forward alone
# is: slip
# says: gathered for forward and for backward
# base: what the wrong ones change
-    gathers = 2 * k if reshard else k
+    gathers = k


# %% wrong: bits
# is: slip
# says: in bits. A byte has eight
# base: what the wrong ones change
-    return (n - 1) / n * params * (gathers * weights + reductions * gradients)
+    return 8 * (n - 1) / n * params * (gathers * weights + reductions * gradients)


# %% wrong: gradients as small as weights
# is: slip
# says: Gradients have `gradients` bytes each
# base: what the wrong ones change
-    return (n - 1) / n * params * (gathers * weights + reductions * gradients)
+    return (n - 1) / n * params * (gathers * weights + reductions * weights)


# %% wrong: one microbatch
# is: slip
# says: You counted one microbatch, but a step has K of them
# base: what the wrong ones change
-    k = microbatches
+    k = 1


# %% wrong: three transfers a microbatch, always
# is: slip
# says: tensors that stay whole do not have to be sent again
# base: what the wrong ones change
-    gathers = 2 * k if reshard else k
-    if keep == "weights between":
-        gathers = k + 1 if reshard else 1
-    if keep == "weights":
-        gathers = 1
-    reductions = k if keep is None else 1
+    gathers, reductions = 2 * k, k


# %% wrong: weights that stay are gathered K times
# is: slip
# says: the first forward finds nothing and also gathers, so there are
# base: what the wrong ones change
-        gathers = k + 1 if reshard else 1
+        gathers = k if reshard else 1


# %% wrong: weights between microbatches are gathered for each forward as well
# is: slip
# says: only the first forward gathers
# base: what the wrong ones change
-        gathers = k + 1 if reshard else 1
+        gathers = 2 * k if reshard else 1


# %% wrong: weights that stay are gathered K times, in both rows of the table
# is: slip
# says: Count the gathers and the reductions of the K microbatches
# base: what the wrong ones change
-        gathers = k + 1 if reshard else 1
+        gathers = k if reshard else 1
@@
-        gathers = 1
+        gathers = k


# %% wrong: weights that are never freed are gathered once for forward and once for backward
# is: slip
# says: Count the gathers and the reductions of the K microbatches
# base: what the wrong ones change
-        gathers = 1
+        gathers = 2


# %% wrong: a reduce-scatter in each microbatch
# is: slip
# says: only the last microbatch reduces
# base: what the wrong ones change
-    reductions = k if keep is None else 1
+    reductions = k


# %% wrong: `reshard` is looked at only if nothing is kept
# is: slip
# says: units also stay whole between forward and backward if `keep` is given
# base: what the wrong ones change
-    gathers = 2 * k if reshard else k
+    gathers = k if keep is None and not reshard else 2 * k
@@
-        gathers = k + 1 if reshard else 1
+        gathers = k + 1


# %% wrong: gradients are kept, and not resharded weights gathered twice
# is: slip
# says: keep="gradients" and reshard=False, each microbatch gathers only once
# base: what the wrong ones change
-    gathers = 2 * k if reshard else k
+    gathers = 2 * k if reshard or keep == "gradients" else k


# %% wrong: weights between microbatches, and not resharded weights gathered K + 1 times
# is: slip
# says: the weights stay whole all the time, so a step gathers them once
# base: what the wrong ones change
-        gathers = k + 1 if reshard else 1
+        gathers = k + 1


# %% wrong: the two values of `reshard` exchanged
# is: slip
# says: By default .reshard=True., weights are gathered for forward and for backward
# base: what the wrong ones change
-    gathers = 2 * k if reshard else k
+    gathers = k if reshard else 2 * k


# %% wrong: not resharded, and gathered twice
# is: slip
# says: backward does not gather
# base: what the wrong ones change
-    gathers = 2 * k if reshard else k
+    gathers = 2 * k


# %% wrong: the own shard is sent as well
# is: slip
# says: so \(N-1\)/N travel
# base: what the wrong ones change
-    return (n - 1) / n * params * (gathers * weights + reductions * gradients)
+    return params * (gathers * weights + reductions * gradients)


# %% wrong: both directions of NVLink
# is: idea
# says: `each_way` already counts one direction
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return (n - 1) / n * itemsize / 2 * flops / (2 * each_way)


# %% wrong: a FLOP is a multiplication and an addition
# is: slip
# says: two FLOPs in forward, a multiplication and an addition
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return (n - 1) / n * itemsize * flops / each_way


# %% wrong: tokens that grow with the parameters
# is: idea
# says: U cancels
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return (n - 1) / n * 200e6 * itemsize / 2 * flops / each_way


# %% wrong: the whole unit is gathered
# is: slip
# says: A rank already has 1/n of the unit, so
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return itemsize / 2 * flops / each_way if n > 1 else 0.0


# %% wrong: the whole unit is gathered, even by a single rank
# is: slip
# says: and nothing if n is 1
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return itemsize / 2 * flops / each_way


# %% wrong: the size of a weight is not used
# is: detail
# says: `itemsize` is not used
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return (n - 1) / n * flops / each_way


# %% wrong: upside down
# is: idea
# says: A faster GPU needs more tokens, but a faster link fewer
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return (n - 1) / n * itemsize / 2 * each_way / flops


# %% wrong: keys and values as wide as the queries
# is: detail
# says: Keys and values are narrower
# base: what the wrong ones change
-    keys = config.key_value_heads * config.head_dim
+    keys = h


# %% wrong: SwiGLU with two matrices
# is: slip
# says: three matrices: gate, up and down
# base: what the wrong ones change
-    block += (3 if config.mlp == "swiglu" else 2) * h * inner
+    block += 2 * h * inner


# %% wrong: one norm a block
# is: detail
# says: A block has two norms
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return itemsize * (block + norm), itemsize * root


# %% wrong: every head is tied
# is: detail
# says: a matrix of its own, as large as the embedding
# base: what the wrong ones change
-    if not config.tied:
+    if False:


# %% wrong: a table of rotary positions
# is: detail
# says: Rotary positions have no parameters
# base: what the wrong ones change
-    if config.positions == "learned":
+    if True:


# %% wrong: the root with the block
# is: slip
# says: block of the stub's model as well
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return itemsize * (block + 2 * norm), itemsize * (root + block + 2 * norm)


# %% wrong: the root of one block without all blocks
# is: slip
# says: You subtracted config.layers blocks
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return itemsize * (block + 2 * norm), itemsize * (root - (config.layers - 1) * (block + 2 * norm))


# %% wrong: multiplied by the size of an element twice
# is: slip
# says: You multiplied by `itemsize` twice
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return itemsize**2 * (block + 2 * norm), itemsize**2 * root


# %% wrong: multiplied by the element size of a float32
# is: slip
# says: the 4 bytes of a float32 as well
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return itemsize * 4 * (block + 2 * norm), itemsize * 4 * root


# %% wrong: the root comes first
# is: slip
# says: but the block comes first
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return itemsize * root, itemsize * (block + 2 * norm)


# %% wrong: the block alone
# is: form
# says: gives 1 value, but 2 numbers are expected
# base: what the wrong ones change
-    return itemsize * (block + 2 * norm), itemsize * root
+    return (itemsize * (block + 2 * norm),)


# %% right: exact fractions, and sizes from a model without memory
from fractions import Fraction

from course_lib.models import GPT


def fsdp_bytes(params, n, microbatches=1, *, weights=2, gradients=4, reshard=True, keep=None):
    share, sent = Fraction(n - 1, n) * params, Fraction(0)
    for k in range(microbatches):
        first, last = k == 0, k == microbatches - 1
        before_forward = first or keep in (None, "gradients")
        sent += share * weights if before_forward else 0
        before_backward = reshard and keep != "weights"
        sent += share * weights if before_backward else 0
        sent += share * gradients if keep is None or last else 0
    return float(sent)


def hides_from(n, flops, each_way, itemsize=2):
    gather = Fraction(n - 1, n) * itemsize / Fraction(each_way)
    return float(gather / (2 / Fraction(flops)))


def unit_bytes(config, itemsize=2):
    with torch.device("meta"):
        model = GPT(config)
    block = sum(param.numel() for param in model.blocks[0].parameters())
    everything = sum(param.numel() for param in model.parameters())
    return block * itemsize, (everything - config.layers * block) * itemsize


# %% right: floats in another order
def fsdp_bytes(params, n, microbatches=1, *, weights=2, gradients=4, reshard=True, keep=None):
    twice = 2 if reshard else 1
    counts = {
        None: (twice * microbatches, microbatches),
        "gradients": (twice * microbatches, 1),
        "weights between": (microbatches + 1 if reshard else 1, 1),
        "weights": (1, 1),
    }
    gathers, reductions = counts[keep]
    return params / n * (n - 1) * gathers * weights + params / n * (n - 1) * reductions * gradients


def hides_from(n, flops, each_way, itemsize=2):
    seconds = itemsize / each_way * (n - 1) / n
    return torch.tensor(seconds * flops / 2, dtype=torch.float64)


def unit_bytes(config, itemsize=2):
    h, f = config.width, config.mlp_width
    kv = h // config.heads * (config.kv_heads or config.heads)
    norms = 2 * h if config.norm == "layer" and config.bias else h
    gates = 1 + (config.mlp == "swiglu")
    block = h * (2 * h + 2 * kv + (gates + 1) * f) + config.bias * (3 * h + 2 * kv + gates * f)
    tables = 1 if config.tied else 2
    learned = config.context if config.positions == "learned" else 0
    return (block + 2 * norms) * itemsize, (h * (tables * config.vocab_size + learned) + norms) * itemsize


# %% right: a whole number of tokens
# base: what the wrong ones change
-    return (n - 1) / n * itemsize / 2 * flops / each_way
+    return math.ceil((n - 1) / n * itemsize / 2 * flops / each_way)
