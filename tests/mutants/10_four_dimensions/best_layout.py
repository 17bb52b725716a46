# %% base: what the wrong ones change
RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 6)}


def ring(nbytes, n, speed, alpha):
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)


def all_reduce(nbytes, n, stride, links):
    g = min(n, max(1, links["per_node"] // stride))
    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])


def step_seconds(shape, layout, batch, gpu, links, efficiency):
    p, t, cp, v = (layout[name] for name in ("pp", "tp", "cp", "chunks"))
    s, h, a, V, n = shape.context, shape.width, shape.heads, shape.vocab_size, layout["dp"] * layout["cp"]
    m, tokens = batch / (layout["dp"] * layout["microbatch"]), layout["microbatch"] * s / cp
    flops, hbm = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"]
    runs, scores, sums = RUNS[layout["recompute"]]
    stream = tokens * h / (t if layout["sequence"] else 1)

    layer = (24 * runs * tokens * h * h + 4 * scores * tokens * s * h) / t / flops
    nbytes = stream * (44 + 22 * (runs - 3)) + tokens * h / t * (40 + 16 * (runs - 3))
    nbytes += tokens * s * a / t * (20 + 9 * (scores - 3))
    layer += nbytes / hbm
    waits = sums * all_reduce(2 * tokens * h, t, 1, links)
    waits += 1.5 * all_reduce(4 * layout["microbatch"] * s * h / t, cp, t, links)
    head = (6 * tokens * h * V / flops + 16 * tokens * V / hbm) / t

    message = 0
    if p > 1:
        near = p * n * t <= links["per_node"]
        speed = links["NVLink"] / 2 if near else links["network"] / 8
        message = links["NVLink alpha" if near else "network alpha"]
        message += 2 * tokens * h / t / (0.8 * speed)
        if not layout["sequence"]:
            message += all_reduce(2 * tokens * h, t, 1, links) / 2

    slot = shape.layers / p * (layer + waits)
    seconds = m * (slot + head + 2 * v * message)
    seconds += (p - 1) * (slot / v + 2 * message)
    params = (shape.layers / p * 12 * h * h + V * h) / t
    sent = all_reduce(2 * params, n, t, links)
    if layout["zero"] == 3:
        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
    update = 34 * params / hbm / (n if layout["zero"] else 1)
    return seconds + sent + update


def memory_per_gpu(shape, layout, batch):
    p, t, v, h = layout["pp"], layout["tp"], layout["chunks"], shape.width
    replicas, zero = layout["dp"] * layout["cp"], layout["zero"]
    of_layer = 12 * h * h / t
    table = shape.vocab_size * h / t
    params = shape.layers / p * of_layer + table
    if zero == 3:
        states = 16 * params / replicas + 4 * of_layer
    else:
        states = 4 * params + 12 * params / (replicas if zero else 1)
    sbh = layout["microbatch"] * shape.context / layout["cp"] * h
    whole = 0 if layout["sequence"] else 10
    selective = sbh * (whole + (34 - whole) / t)
    none = selective + sbh * 5 * shape.heads * shape.context / h / t
    full = 2 * sbh / (t if layout["sequence"] else 1)
    kept = {"none": none, "selective": selective, "full": full}[layout["recompute"]]
    m = batch / (layout["dp"] * layout["microbatch"])
    held = min(m, p if v == 1 else p + (p - 1) / v)
    again = none if layout["recompute"] == "full" else 0
    return (states + held * shape.layers / p * kept + again) / 1e9


def can_be_cut(shape, layout, batch):
    p, t, cp, v = (layout[name] for name in ("pp", "tp", "cp", "chunks"))
    rows = layout["dp"] * layout["microbatch"]
    if shape.heads % t or shape.layers % (p * v) or batch % rows:
        return False
    if shape.context % ((2 * cp if cp > 1 else 1) * t):
        return False
    if layout["zero"] == 3 and p > 1:
        return False
    return v == 1 or (p > 1 and batch // rows % p == 0)


def best_layout(shape, gpus, batch, gpu, links, efficiency=0.63):
    best, fastest = None, math.inf
    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
    contexts = divisors if shape.context >= 32_768 else [1]
    for pp in divisors:
        for tp in divisors:
            for cp in contexts:
                if gpus % (pp * tp * cp):
                    continue
                sizes = {"pp": pp, "dp": gpus // (pp * tp * cp), "cp": cp, "tp": tp}
                for zero in (0, 1, 3):
                    for recompute in ("none", "selective", "full"):
                        for microbatch in (1, 2, 4):
                            for chunks in (1, 2, 4):
                                layout = {
                                    **sizes, "zero": zero, "recompute": recompute,
                                    "microbatch": microbatch, "chunks": chunks, "sequence": tp > 1,
                                }
                                if not can_be_cut(shape, layout, batch):
                                    continue
                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
                                    continue
                                seconds = step_seconds(shape, layout, batch, gpu, links, efficiency)
                                if seconds < fastest:
                                    best, fastest = layout, seconds
    return best


# %% wrong: the largest tp that divides
# is: idea
# says: the largest tp that divides. Look at the node
# base: what the wrong ones change
-                                if seconds < fastest:
-                                    best, fastest = layout, seconds
+                                if (-tp, seconds) < (-best["tp"] if best else 0, fastest):
+                                    best, fastest = layout, seconds


# %% wrong: memory is ignored
# is: idea
# says: a layout that does not fit has no time
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
-                                    continue


# %% wrong: divisibility is ignored
# is: slip
# says: Heads, layers, batch and tokens have to divide
# base: what the wrong ones change
-                                if not can_be_cut(shape, layout, batch):
-                                    continue


# %% wrong: always 8 x 8
# is: idea
# says: The same axes are chosen for every cluster
def best_layout(shape, gpus, batch, gpu, links):
    sizes = {"pp": 8, "dp": gpus // 64, "cp": 1, "tp": 8, "sequence": True}
    return {**sizes, "microbatch": 1, "chunks": 1, "zero": 1, "recompute": "selective"}


# %% wrong: the fewest bytes
# is: idea
# says: Your layout has the fewest bytes
# base: what the wrong ones change
-                                seconds = step_seconds(shape, layout, batch, gpu, links, efficiency)
+                                seconds = memory_per_gpu(shape, layout, batch)


# %% wrong: sequences are never cut
# is: slip
# says: fits cuts the sequence over cp
# base: what the wrong ones change
-    contexts = divisors if shape.context >= 32_768 else [1]
+    contexts = [1]


# %% wrong: no FSDP
# is: slip
# says: try FSDP as well
# base: what the wrong ones change
-                for zero in (0, 1, 3):
+                for zero in (0, 1):


# %% wrong: everything is recomputed
# is: idea
# says: More is recomputed than the memory demands|less has to be recomputed
# base: what the wrong ones change
-                    for recompute in ("none", "selective", "full"):
+                    for recompute in ("full",):


# %% wrong: a tuple of sizes
# is: form
# says: best_layout gives no layout|neither a dict nor None
# base: what the wrong ones change
-    return best
+    return best and (best["tp"], best["pp"], best["dp"])


# %% wrong: all of the memory
# is: slip
# says: NCCL and fragments take 4 GB
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
+                                if memory_per_gpu(shape, layout, batch) > gpu["memory"]:


# %% wrong: 8 GB are left free
# is: slip
# says: all except 4 GB may be used
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
+                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 8:


# %% wrong: four fifths of the memory
# is: slip
# says: best of those that need 32 GB
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
+                                if memory_per_gpu(shape, layout, batch) > 0.8 * gpu["memory"]:


# %% wrong: chunks for any microbatches
# is: slip
# says: microbatches in multiples of pp
# base: what the wrong ones change
-    return v == 1 or (p > 1 and batch // rows % p == 0)
+    return v == 1 or p > 1


# %% wrong: powers of two alone
# is: slip
# says: are powers of two|not a power of two
# base: what the wrong ones change
-    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
+    divisors = [2**k for k in range(11) if gpus % 2**k == 0]


# %% wrong: ZeRO-3 in a pipeline
# is: slip
# says: every microbatch would gather every layer
# base: what the wrong ones change
-    if layout["zero"] == 3 and p > 1:
-        return False


# %% wrong: nothing is recomputed
# is: slip
# says: the best without recomputation|fits .*recomputes
# base: what the wrong ones change
-                    for recompute in ("none", "selective", "full"):
+                    for recompute in ("none",):


# %% wrong: sequence parallelism in every layout
# is: slip
# says: sequence is tp > 1
# base: what the wrong ones change
-                                    "microbatch": microbatch, "chunks": chunks, "sequence": tp > 1,
+                                    "microbatch": microbatch, "chunks": chunks, "sequence": True,


# %% wrong: chunks are left out
# is: slip
# says: Your layout is the best without chunks
# base: what the wrong ones change
-                            for chunks in (1, 2, 4):
+                            for chunks in (1,):


# %% wrong: no pipeline
# is: slip
# says: Every layout that fits has pp > 1 and has a size
# base: what the wrong ones change
-    for pp in divisors:
+    for pp in [1]:


# %% wrong: sequence parallelism in no layout
# is: slip
# says: sequence = False with tp
# base: what the wrong ones change
-                                    "microbatch": microbatch, "chunks": chunks, "sequence": tp > 1,
+                                    "microbatch": microbatch, "chunks": chunks, "sequence": False,


# %% right: sorted by time, the first that fits
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
-                                    continue
-                                seconds = step_seconds(shape, layout, batch, gpu, links, efficiency)
-                                if seconds < fastest:
-                                    best, fastest = layout, seconds
-    return best
+                                seconds = step_seconds(shape, layout, batch, gpu, links, efficiency)
+                                timed.append((seconds, len(timed), layout))
+    for _, _, layout in sorted(timed):
+        if memory_per_gpu(shape, layout, batch) <= gpu["memory"] - 4:
+            return layout
+    return None
@@
-    best, fastest = None, math.inf
+    timed = []


# %% right: small microbatches, unless they are 2 % slower
# base: what the wrong ones change
-                                if seconds < fastest:
-                                    best, fastest = layout, seconds
+                                if seconds * (1.02 if microbatch > 1 else 1) < fastest:
+                                    best, fastest = layout, seconds * (1.02 if microbatch > 1 else 1)


# %% wrong: sizes up to the root of the GPUs
# is: slip
# says: with other sizes they fit
# base: what the wrong ones change
-    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
+    divisors = [n for n in range(1, int(gpus**0.5) + 1) if gpus % n == 0]


# %% wrong: one sequence in each microbatch
# is: slip
# says: the best with one sequence in a microbatch
# base: what the wrong ones change
-                        for microbatch in (1, 2, 4):
+                        for microbatch in (1,):


# %% wrong: products at the data sheet's peak
# is: slip
# says: pass `efficiency` on
# base: what the wrong ones change
-                                seconds = step_seconds(shape, layout, batch, gpu, links, efficiency)
+                                seconds = step_seconds(shape, layout, batch, gpu, links, 1.0)


# %% wrong: heads need not divide
# is: slip
# says: 4 does not divide 42: heads
# base: what the wrong ones change
-    if shape.heads % t or shape.layers % (p * v) or batch % rows:
+    if shape.layers % (p * v) or batch % rows:


# %% wrong: tokens are divided by tp alone
# is: slip
# says: tokens into parts of cp and tp
# base: what the wrong ones change
-    if shape.context % ((2 * cp if cp > 1 else 1) * t):
+    if shape.context % t:


# %% wrong: tp stays in the node
# is: slip
# says: whose tp stays in a node
# base: what the wrong ones change
-                if gpus % (pp * tp * cp):
+                if gpus % (pp * tp * cp) or tp > links["per_node"]:


# %% wrong: full recomputation is never tried
# is: slip
# says: without recompute = 'full'
# base: what the wrong ones change
-                    for recompute in ("none", "selective", "full"):
+                    for recompute in ("none", "selective"):


# %% wrong: microbatches of 4 are never tried
# is: slip
# says: without microbatch = 4|one sequence in a microbatch
# base: what the wrong ones change
-                        for microbatch in (1, 2, 4):
+                        for microbatch in (1, 2):


# %% wrong: 4 chunks are never tried
# is: slip
# says: without chunks = 4
# base: what the wrong ones change
-                            for chunks in (1, 2, 4):
+                            for chunks in (1, 2):


# %% wrong: context by cp tp
# is: slip
# says: tokens into parts of cp and tp
# base: what the wrong ones change
-    if shape.context % ((2 * cp if cp > 1 else 1) * t):
+    if shape.context % (cp * t):


# %% wrong: dp up to 64
# is: slip
# says: those with dp = 64 or less, but the best of all has 128.$
# base: what the wrong ones change
-                if gpus % (pp * tp * cp):
+                if gpus % (pp * tp * cp) or gpus // (pp * tp * cp) > 64:


# %% wrong: cp for any context
# is: slip
# says: cp > 1 is for sequences of 32,768
# base: what the wrong ones change
-    contexts = divisors if shape.context >= 32_768 else [1]
+    contexts = divisors


# %% wrong: selective is never tried
# is: slip
# says: without recompute = 'selective'
# base: what the wrong ones change
-                    for recompute in ("none", "selective", "full"):
+                    for recompute in ("none", "full"):


# %% wrong: no ZeRO-1
# is: slip
# says: without zero = 1
# base: what the wrong ones change
-                for zero in (0, 1, 3):
+                for zero in (0, 3):


# %% wrong: layers need not divide by chunks
# is: slip
# says: layers into pp v chunks
# base: what the wrong ones change
-    if shape.heads % t or shape.layers % (p * v) or batch % rows:
+    if shape.heads % t or shape.layers % p or batch % rows:


# %% wrong: batch need not divide
# is: slip
# says: sequences into dp replicas
# base: what the wrong ones change
-    if shape.heads % t or shape.layers % (p * v) or batch % rows:
+    if shape.heads % t or shape.layers % (p * v):


# %% wrong: two replicas or more
# is: slip
# says: with other sizes they fit, so the step is faster.$
# base: what the wrong ones change
-                if gpus % (pp * tp * cp):
+                if gpus % (pp * tp * cp) or gpus == pp * tp * cp:


# %% wrong: GB are compared with bytes
# is: idea
# says: both in GB, so compare them without a factor
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
+                                if memory_per_gpu(shape, layout, batch) > 1e9 * gpu["memory"] - 4e9:


# %% wrong: bytes are compared with GB
# is: idea
# says: If there is, your test drops all layouts, or the loop ends too early
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
+                                if 1e9 * memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:


# %% wrong: the minimum of no layouts
# is: slip
# says: If no layout fits, return None
# base: what the wrong ones change
-    return best
+    return min([layout for layout in (best,) if layout], key=len)


# %% wrong: 76 GB, whatever the GPU has
# is: slip
# says: but this cluster's GPUs have less memory
# base: what the wrong ones change
-                                if memory_per_gpu(shape, layout, batch) > gpu["memory"] - 4:
+                                if memory_per_gpu(shape, layout, batch) > 76:


# %% wrong: nothing is returned
# is: form
# says: Is there a `return` at its end
# base: what the wrong ones change
-    return best
+    pass
