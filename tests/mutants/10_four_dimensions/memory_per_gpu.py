# %% base: what the wrong ones change
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


# %% wrong: all microbatches are kept
# is: idea
# says: 1F1B keeps only min.m, p.
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = m


# %% wrong: a stage with one chunk keeps more, too
# is: slip
# says: with one chunk it is min.m, p.
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = min(m, p + (p - 1) / v)


# %% wrong: chunks multiply
# is: slip
# says: are added to p, so they do not multiply it
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = min(m, p) * (1 if v == 1 else 1 + (p - 1) / v)


# %% wrong: p divides twice
# is: idea
# says: pipelining does not save
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = 1


# %% wrong: the activations of all layers
# is: idea
# says: a stage has only L/p of them
# base: what the wrong ones change
-    return (states + held * shape.layers / p * kept + again) / 1e9
+    return (states + held * shape.layers * kept + again) / 1e9


# %% wrong: p microbatches, if there are so many or not
# is: detail
# says: may have fewer microbatches than stages
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = p if v == 1 else p + (p - 1) / v


# %% wrong: norms and residuals are whole
# is: slip
# says: with sequence parallelism it divides all 34
# base: what the wrong ones change
-    whole = 0 if layout["sequence"] else 10
+    whole = 10
@@
-    full = 2 * sbh / (t if layout["sequence"] else 1)
+    full = 2 * sbh


# %% wrong: the optimizer is divided by all ranks
# is: slip
# says: divided the parameters already
# base: what the wrong ones change
-    replicas, zero = layout["dp"] * layout["cp"], layout["zero"]
+    replicas, zero = layout["dp"] * layout["cp"] * p * t, layout["zero"]


# %% wrong: the optimizer is divided over dp alone
# is: slip
# says: cp replicates the parameters as dp does
# base: what the wrong ones change
-    replicas, zero = layout["dp"] * layout["cp"], layout["zero"]
+    replicas, zero = layout["dp"], layout["zero"]


# %% wrong: GiB
# is: slip
# says: in GiB
# base: what the wrong ones change
-    return (states + held * shape.layers / p * kept + again) / 1e9
+    return (states + held * shape.layers / p * kept + again) / 2**30


# %% wrong: bytes
# is: slip
# says: in bytes
# base: what the wrong ones change
-    return (states + held * shape.layers / p * kept + again) / 1e9
+    return states + held * shape.layers / p * kept + again


# %% wrong: stage 1 divides the gradients
# is: slip
# says: The gradients are divided as well
# base: what the wrong ones change
-        states = 4 * params + 12 * params / (replicas if zero else 1)
+        states = 2 * params + 14 * params / (replicas if zero else 1)


# %% wrong: no float32 copy
# is: slip
# says: the float32 copy and two moments
# base: what the wrong ones change
-        states = 16 * params / replicas + 4 * of_layer
+        states = 12 * params / replicas + 4 * of_layer
@@
-        states = 4 * params + 12 * params / (replicas if zero else 1)
+        states = 4 * params + 8 * params / (replicas if zero else 1)


# %% wrong: no table
# is: slip
# says: The table is missing
# base: what the wrong ones change
-    params = shape.layers / p * of_layer + table
+    params = shape.layers / p * of_layer


# %% wrong: scores are forgotten
# is: slip
# says: The scores are missing
# base: what the wrong ones change
-    none = selective + sbh * 5 * shape.heads * shape.context / h / t
+    none = selective


# %% wrong: the layer that runs again is forgotten
# is: detail
# says: one layer whole while it runs again
# base: what the wrong ones change
-    again = none if layout["recompute"] == "full" else 0
+    again = 0


# %% wrong: chunks keep no more
# is: slip
# says: Interleaved stages keep more
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = min(m, p)


# %% wrong: ZeRO-1 divides everything
# is: slip
# says: ZeRO-1 divides only the optimizer
# base: what the wrong ones change
-        states = 4 * params + 12 * params / (replicas if zero else 1)
+        states = 16 * params / (replicas if zero else 1)


# %% wrong: ZeRO-3 divides the optimizer alone
# is: slip
# says: ZeRO-3 divides all 16 bytes
# base: what the wrong ones change
-        states = 16 * params / replicas + 4 * of_layer
+        states = 4 * params + 12 * params / replicas + 4 * of_layer


# %% wrong: no layer is gathered
# is: detail
# says: Stage 3 has (only )?one layer whole while it runs
# base: what the wrong ones change
-        states = 16 * params / replicas + 4 * of_layer
+        states = 16 * params / replicas


# %% wrong: tp does not cut the table
# is: slip
# says: tp also cuts the table
# base: what the wrong ones change
-    table = shape.vocab_size * h / t
+    table = shape.vocab_size * h


# %% wrong: the inputs of recomputed layers are whole on tp
# is: slip
# says: t also divides the inputs of layers that are recomputed
# base: what the wrong ones change
-    full = 2 * sbh / (t if layout["sequence"] else 1)
+    full = 2 * sbh


# %% wrong: the inputs of recomputed layers are always cut on tp
# is: slip
# says: are whole on tp, unless sequence parallelism divides them
# base: what the wrong ones change
-    full = 2 * sbh / (t if layout["sequence"] else 1)
+    full = 2 * sbh / t


# %% wrong: the states alone
# is: idea
# says: The activations are missing
# base: what the wrong ones change
-    return (states + held * shape.layers / p * kept + again) / 1e9
+    return states / 1e9


# %% wrong: activations are not divided by t
# is: slip
# says: The activations are not divided by t
# base: what the wrong ones change
-    selective = sbh * (whole + (34 - whole) / t)
-    none = selective + sbh * 5 * shape.heads * shape.context / h / t
-    full = 2 * sbh / (t if layout["sequence"] else 1)
+    selective = 34 * sbh
+    none = selective + sbh * 5 * shape.heads * shape.context / h
+    full = 2 * sbh


# %% wrong: the microbatches of the whole batch
# is: slip
# says: m is the number of one replica's microbatches
# base: what the wrong ones change
-    m = batch / (layout["dp"] * layout["microbatch"])
+    m = batch


# %% wrong: sequences are taken for microbatches
# is: slip
# says: one has several sequences
# base: what the wrong ones change
-    m = batch / (layout["dp"] * layout["microbatch"])
+    m = batch / layout["dp"]


# %% wrong: cp cuts the scores twice
# is: slip
# says: cp cuts the scores only once, not twice
# base: what the wrong ones change
-    none = selective + sbh * 5 * shape.heads * shape.context / h / t
+    none = selective + sbh * 5 * shape.heads * shape.context / layout["cp"] / h / t


# %% wrong: Gbit
# is: slip
# says: The answers are in Gbit
# base: what the wrong ones change
-    return (states + held * shape.layers / p * kept + again) / 1e9
+    return 8 * (states + held * shape.layers / p * kept + again) / 1e9


# %% wrong: ranks of cp have microbatches of their own
# is: detail
# says: ranks of cp share the sequences of a microbatch
# base: what the wrong ones change
-    m = batch / (layout["dp"] * layout["microbatch"])
+    m = batch / (layout["dp"] * layout["cp"] * layout["microbatch"])


# %% wrong: states not divided by t
# is: slip
# says: P' is divided by t
# base: what the wrong ones change
-    of_layer = 12 * h * h / t
-    table = shape.vocab_size * h / t
+    of_layer = 12 * h * h
+    table = shape.vocab_size * h


# %% wrong: the table is divided by p
# is: detail
# says: p does not divide the table
# base: what the wrong ones change
-    params = shape.layers / p * of_layer + table
+    params = shape.layers / p * of_layer + table / p


# %% wrong: p minus 1 in flight
# is: slip
# says: keeps p microbatches on the first stage, not p - 1
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = min(m, p - 1 if v == 1 else p + (p - 1) / v)


# %% wrong: scores not over t
# is: slip
# says: a rank has a/t heads
# base: what the wrong ones change
-    none = selective + sbh * 5 * shape.heads * shape.context / h / t
+    none = selective + sbh * 5 * shape.heads * shape.context / h


# %% wrong: microbatch forgotten in sbh
# is: slip
# says: A microbatch has several sequences
# base: what the wrong ones change
-    sbh = layout["microbatch"] * shape.context / layout["cp"] * h
+    sbh = shape.context / layout["cp"] * h


# %% wrong: selective keeps the scores
# is: slip
# says: Selective recomputation does not keep the scores
# base: what the wrong ones change
-    kept = {"none": none, "selective": selective, "full": full}[layout["recompute"]]
+    kept = {"none": none, "selective": none, "full": full}[layout["recompute"]]


# %% right: in parts
def memory_per_gpu(shape, layout, batch):
    h, t, p, zero = shape.width, layout["tp"], layout["pp"], layout["zero"]
    layer = 12 * h**2 / t
    params = layer * (shape.layers / p) + h * shape.vocab_size / t
    n = layout["dp"] * layout["cp"]
    of = [2, 2, 12]
    for part, stage in ((2, 1), (1, 2), (0, 3)):
        if zero >= stage:
            of[part] /= n
    nbytes = sum(of) * params + (4 * layer if zero == 3 else 0)
    sbh = layout["microbatch"] * (shape.context / layout["cp"]) * h
    cut = t if layout["sequence"] else 1
    linear = sbh * (10 / cut + 24 / t)
    scores = 5 * shape.heads * layout["microbatch"] * shape.context**2 / layout["cp"] / t
    flight = p if layout["chunks"] == 1 else p + (p - 1) / layout["chunks"]
    flight = min(flight, batch / layout["dp"] / layout["microbatch"])
    if layout["recompute"] == "full":
        nbytes += flight * shape.layers / p * 2 * sbh / cut + linear + scores
    else:
        kept = linear if layout["recompute"] == "selective" else linear + scores
        nbytes += flight * shape.layers / p * kept
    return nbytes / 1e9


# %% right: with all parameters of a layer
# base: what the wrong ones change
-    of_layer = 12 * h * h / t
+    of_layer = (12 * h * h + 7 * h) / t


# %% wrong: t divides twice
# is: slip
# says: t divides what a layer keeps only once
# base: what the wrong ones change
-    selective = sbh * (whole + (34 - whole) / t)
+    sbh = sbh / t
+    selective = sbh * (whole + (34 - whole) / t)


# %% wrong: sequence parallelism never cuts what a layer keeps
# is: slip
# says: t divides all of them with sequence parallelism, but only 24 without
# base: what the wrong ones change
-    whole = 0 if layout["sequence"] else 10
+    whole = 10


# %% wrong: sequence parallelism always cuts what a layer keeps
# is: slip
# says: t divides only 24 of them without sequence parallelism, but all with it
# base: what the wrong ones change
-    whole = 0 if layout["sequence"] else 10
+    whole = 0


# %% wrong: the activations alone
# is: slip
# says: The states are missing
# base: what the wrong ones change
-    return (states + held * shape.layers / p * kept + again) / 1e9
+    return (held * shape.layers / p * kept + again) / 1e9


# %% wrong: p + (p - 1) / v microbatches, whatever m and v are
# is: slip
# says: so it is min.m, p. with one chunk
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = p + (p - 1) / v


# %% wrong: chunks keep p + (p - 1) / v microbatches, if there are so many or not
# is: detail
# says: A step of p microbatches has no more to keep, also with chunks
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = min(m, p) if v == 1 else p + (p - 1) / v


# %% wrong: ZeRO-1 without parentheses
# is: slip
# says: so put 4 . 12 / replicas in parentheses
# base: what the wrong ones change
-        states = 4 * params + 12 * params / (replicas if zero else 1)
+        states = 4 + 12 / replicas * params if zero else 16 * params


# %% wrong: the whole layer is divided as well
# is: slip
# says: the layer that is whole while it runs is not divided
# base: what the wrong ones change
-        states = 16 * params / replicas + 4 * of_layer
+        states = (16 * params + 4 * of_layer) / replicas


# %% wrong: v divides 1 alone
# is: slip
# says: so put it in parentheses, p . .p - 1. / v
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = min(m, p if v == 1 else p + p - 1 / v)


# %% wrong: chunks keep v times as much
# is: slip
# says: so do not multiply what they keep by v
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = v * min(m, p if v == 1 else p + (p - 1) / v)


# %% wrong: sequences are counted twice
# is: slip
# says: `in_flight` counts only microbatches
# base: what the wrong ones change
-    held = min(m, p if v == 1 else p + (p - 1) / v)
+    held = layout["microbatch"] * min(m, p if v == 1 else p + (p - 1) / v)
