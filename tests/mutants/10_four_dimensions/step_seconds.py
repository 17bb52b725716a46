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


# %% wrong: 72 for 96
# is: slip
# says: those without recomputation, 72 instead of 96
# base: what the wrong ones change
-    runs, scores, sums = RUNS[layout["recompute"]]
+    runs, scores, sums = 3, 3, RUNS[layout["recompute"]][2]


# %% wrong: products at the data sheet's peak
# is: slip
# says: Products run at the peak here
# base: what the wrong ones change
-    flops, hbm = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"]
+    flops, hbm = gpu["flops"], 0.8 * gpu["bandwidth"]


# %% wrong: NVLink sends 600 one way
# is: slip
# says: a ring sends 300 each way
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
+    inside = ring(nbytes, g, links["NVLink"], links["NVLink alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = links["NVLink"] if near else links["network"] / 8


# %% wrong: bits for bytes
# is: slip
# says: 200 Gb/s are 25 GB/s
# base: what the wrong ones change
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    return inside + ring(nbytes / g, n / g, links["network"], links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = links["NVLink"] / 2 if near else links["network"]


# %% wrong: a bubble for each microbatch
# is: slip
# says: fills and drains only once per step
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += m * (p - 1) * (slot / v + 2 * message)


# %% wrong: no bubble
# is: slip
# says: The bubble is missing
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)


# %% wrong: the bubble is not divided by v
# is: slip
# says: begin after a chunk, not after all layers
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += (p - 1) * (slot + 2 * message)


# %% wrong: the replicas sum all parameters
# is: slip
# says: sum the gradients of the whole model
# base: what the wrong ones change
-    sent = all_reduce(2 * params, n, t, links)
+    sent = all_reduce(2 * (shape.layers * 12 * h * h + V * h), n, t, links)


# %% wrong: communication once
# is: slip
# says: every microbatch waits for its own
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
+    seconds = m * (shape.layers / p * layer + head) + shape.layers / p * waits + 2 * v * message


# %% wrong: one card for a node
# is: slip
# says: g rings run across, and each carries 1/g
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
+    if n > g:
+        return ring(nbytes, n, links["network"] / 8, links["network alpha"])
+    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])


# %% wrong: no head
# is: slip
# says: The head is missing
# base: what the wrong ones change
-    head = (6 * tokens * h * V / flops + 16 * tokens * V / hbm) / t
+    head = 0


# %% wrong: peaks of links and memory
# is: slip
# says: Data sheets are not reached
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / speed
@@
-    flops, hbm = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"]
+    flops, hbm = gpu["flops"] * efficiency, gpu["bandwidth"]
@@
-        message += 2 * tokens * h / t / (0.8 * speed)
+        message += 2 * tokens * h / t / speed


# %% wrong: two all-reduces a layer
# is: slip
# says: two in forward, two in backward, and two if it runs forward again
# base: what the wrong ones change
-    waits = sums * all_reduce(2 * tokens * h, t, 1, links)
+    waits = sums / 2 * all_reduce(2 * tokens * h, t, 1, links)


# %% wrong: nothing but products
# is: slip
# says: They compute little, but they move bytes
# base: what the wrong ones change
-    layer += nbytes / hbm


# %% wrong: ZeRO-3 sends what replicas send
# is: slip
# says: ZeRO-3 sends 3/2 of an all-reduce for each microbatch
# base: what the wrong ones change
-    if layout["zero"] == 3:
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))


# %% wrong: no optimizer
# is: detail
# says: The optimizer is missing
# base: what the wrong ones change
-    return seconds + sent + update
+    return seconds + sent


# %% wrong: every rank sends the whole message
# is: slip
# says: Scatter-gather is missing
# base: what the wrong ones change
-        message += 2 * tokens * h / t / (0.8 * speed)
-        if not layout["sequence"]:
-            message += all_reduce(2 * tokens * h, t, 1, links) / 2
+        message += 2 * tokens * h / (0.8 * speed)


# %% wrong: the stride is forgotten
# is: slip
# says: per_node // stride of them in a node
# base: what the wrong ones change
-    g = min(n, max(1, links["per_node"] // stride))
+    g = min(n, links["per_node"])


# %% wrong: all bytes go across
# is: slip
# says: each card carries X/g, not X
# base: what the wrong ones change
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    return inside + ring(nbytes, n / g, links["network"] / 8, links["network alpha"])


# %% wrong: four sums also with full recomputation
# is: slip
# says: two run forward again
# base: what the wrong ones change
-RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 6)}
+RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 4)}


# %% wrong: the logits move nothing
# is: detail
# says: logits also move 16 bytes each
# base: what the wrong ones change
-    head = (6 * tokens * h * V / flops + 16 * tokens * V / hbm) / t
+    head = 6 * tokens * h * V / flops / t


# %% wrong: the peak of the memory
# is: slip
# says: Memory is read at 0.8
# base: what the wrong ones change
-    flops, hbm = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"]
+    flops, hbm = gpu["flops"] * efficiency, gpu["bandwidth"]


# %% wrong: the peaks of the links
# is: slip
# says: Links send at 0.8
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / speed
@@
-        message += 2 * tokens * h / t / (0.8 * speed)
+        message += 2 * tokens * h / t / speed


# %% wrong: the next stage does not gather
# is: detail
# says: half an all-reduce of M over tp
# base: what the wrong ones change
-        if not layout["sequence"]:
-            message += all_reduce(2 * tokens * h, t, 1, links) / 2


# %% wrong: one alpha for a ring
# is: slip
# says: each with an alpha
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return (n > 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)


# %% wrong: e slows the memory as well
# is: slip
# says: e is only the share that products reach
# base: what the wrong ones change
-    flops, hbm = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"]
+    flops, hbm = gpu["flops"] * efficiency, 0.8 * gpu["bandwidth"] * efficiency


# %% wrong: nobody waits
# is: slip
# says: The waits are missing
# base: what the wrong ones change
-    slot = shape.layers / p * (layer + waits)
+    slot = shape.layers / p * layer


# %% wrong: no waits in the bubble
# is: slip
# says: The bubble's slots lack the waits
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += (p - 1) * (shape.layers / p * layer / v + 2 * message)


# %% wrong: every replica updates all parameters
# is: detail
# says: ZeRO divides the optimizer
# base: what the wrong ones change
-    update = 34 * params / hbm / (n if layout["zero"] else 1)
+    update = 34 * params / hbm


# %% wrong: ZeRO-3 hides nothing
# is: slip
# says: ZeRO-3 hides its messages
# base: what the wrong ones change
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
+        sent = 1.5 * m * sent


# %% wrong: a constant share of the peak
# is: idea
# says: Your seconds are the FLOPs over a share of the peak
def step_seconds(shape, layout, batch, gpu, links, efficiency):
    ranks = math.prod(layout[axis] for axis in ("pp", "dp", "cp", "tp"))
    params = shape.layers * 12 * shape.width**2 + shape.vocab_size * shape.width
    times = 8 if layout["recompute"] == "full" else 6
    return times * params * batch * shape.context / (ranks * gpu["flops"] * efficiency)


# %% wrong: selective recomputation counts as none
# is: slip
# says: Selective recomputation runs the products of the scores once more
# base: what the wrong ones change
-RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 6)}
+RUNS = {"none": (3, 3, 4), "selective": (3, 3, 4), "full": (4, 4, 6)}


# %% wrong: stages are never in one node
# is: detail
# says: Stages may share a node if all p dp cp t GPUs fit
# base: what the wrong ones change
-        near = p * n * t <= links["per_node"]
+        near = False


# %% wrong: a stage that fills its node has the next beside it
# is: detail
# says: all stages have to fit, p dp cp t
# base: what the wrong ones change
-        near = p * n * t <= links["per_node"]
+        near = n * t <= links["per_node"]


# %% wrong: the first two stages decide
# is: detail
# says: The first two stages share a node, but others don't
# base: what the wrong ones change
-        near = p * n * t <= links["per_node"]
+        near = 2 * n * t <= links["per_node"]


# %% wrong: ZeRO-3 sends once what replicas send, in each microbatch
# is: detail
# says: two all-gathers and a reduce-scatter
# base: what the wrong ones change
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
+        sent = max(0, m * sent - m * (shape.layers / p * layer + head))


# %% wrong: ZeRO-3 gathers once a step
# is: detail
# says: ZeRO-3 sends in every microbatch
# base: what the wrong ones change
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
+        sent = max(0, 1.5 * sent - m * (shape.layers / p * layer + head))


# %% wrong: ZeRO-3 does not hide behind the head
# is: detail
# says: hides behind the head
# base: what the wrong ones change
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
+        sent = max(0, 1.5 * m * sent - m * shape.layers / p * layer)


# %% wrong: gradients are summed over dp alone
# is: detail
# says: summed over dp and cp
# base: what the wrong ones change
-    sent = all_reduce(2 * params, n, t, links)
+    sent = all_reduce(2 * params, layout["dp"], t, links)


# %% wrong: the pipeline fills without messages
# is: detail
# says: fills with messages as well
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += (p - 1) * slot / v


# %% wrong: the pipeline fills with one message a stage
# is: detail
# says: with two messages per stage
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += (p - 1) * (slot / v + message)


# %% wrong: p slots of bubble
# is: slip
# says: p - 1 slots, not p
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += p * (slot / v + 2 * message)


# %% wrong: in milliseconds
# is: slip
# says: in milliseconds
# base: what the wrong ones change
-    return seconds + sent + update
+    return 1000 * (seconds + sent + update)


# %% wrong: ZeRO-3 behind the waits
# is: detail
# says: but not behind waits
# base: what the wrong ones change
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
+        sent = max(0, 1.5 * m * sent - m * (slot + head))


# %% wrong: m divided by cp
# is: detail
# says: ranks of cp share the sequences
# base: what the wrong ones change
-    m, tokens = batch / (layout["dp"] * layout["microbatch"]), layout["microbatch"] * s / cp
+    m, tokens = batch / (n * layout["microbatch"]), layout["microbatch"] * s / cp


# %% wrong: head in every slot of the bubble
# is: detail
# says: the slots of the bubble have no head
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += (p - 1) * ((slot + head) / v + 2 * message)


# %% wrong: one message a microbatch
# is: slip
# says: two messages per microbatch and chunk
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
+    seconds = m * (slot + head + v * message)


# %% wrong: head not divided by t
# is: slip
# says: tp also cuts the head
# base: what the wrong ones change
-    head = (6 * tokens * h * V / flops + 16 * tokens * V / hbm) / t
+    head = 6 * tokens * h * V / flops + 16 * tokens * V / hbm


# %% wrong: stream always divided by t
# is: slip
# says: Only sequence parallelism divides the stream
# base: what the wrong ones change
-    stream = tokens * h / (t if layout["sequence"] else 1)
+    stream = tokens * h / t


# %% wrong: no microbatches
# is: slip
# says: Only one microbatch is counted
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
+    seconds = slot + head + 2 * v * message


# %% wrong: M in 32 bits
# is: slip
# says: M is in 16 bits
# base: what the wrong ones change
-    waits = sums * all_reduce(2 * tokens * h, t, 1, links)
+    waits = sums * all_reduce(4 * tokens * h, t, 1, links)


# %% right: in milliseconds, part by part
def step_seconds(shape, layout, batch, gpu, links, efficiency):
    s, h = shape.context, shape.width
    t, p, cp, v, dp = (layout[k] for k in ("tp", "pp", "cp", "chunks", "dp"))
    fast = (0.8e-3 * links["NVLink"] / 2, 1e3 * links["NVLink alpha"])
    slow = (0.8e-3 * links["network"] / 8, 1e3 * links["network alpha"])

    def half_ring(nbytes, n, link):
        return (n - 1) * (link[1] + nbytes / n / link[0])

    def gather(nbytes, n, stride):
        in_node = min(n, max(1, links["per_node"] // stride))
        return half_ring(nbytes, in_node, fast) + half_ring(nbytes / in_node, n / in_node, slow)

    tokens = layout["microbatch"] * s / cp
    m = batch / dp / layout["microbatch"]
    again = {"none": 0, "selective": 0, "full": 1}[layout["recompute"]]
    scores_again = layout["recompute"] != "none"
    rate, memory = gpu["flops"] * efficiency / 1e3, gpu["bandwidth"] * 0.8e-3
    whole = tokens * h / (t if layout["sequence"] else 1)
    mlp = 4 * tokens * h / t
    parts = tokens * s * shape.heads / t
    forward = 24 * tokens * h**2 / t / rate + (22 * whole + 4 * mlp) / memory
    backward = 48 * tokens * h**2 / t / rate + (22 * whole + 6 * mlp) / memory
    attention = 4 * tokens * s * h / t / rate
    layer = forward * (1 + again) + backward + attention * (3 + scores_again)
    layer += parts * (20 + 9 * scores_again) / memory
    waits = (8 + 4 * again) * gather(2 * tokens * h, t, 1) + 3 * gather(4 * tokens * cp * h / t, cp, t)
    head = tokens * shape.vocab_size / t * (6 * h / rate + 16 / memory)
    message = 0
    if p > 1:
        link = fast if p * dp * cp * t <= links["per_node"] else slow
        message = link[1] + 2 * tokens * h / t / link[0]
        message += 0 if layout["sequence"] else gather(2 * tokens * h, t, 1)
    slot = shape.layers / p * (layer + waits)
    total = m * (slot + head) + (p - 1) / v * slot + 2 * message * (m * v + p - 1)
    held = 12 * h**2 * shape.layers / p / t + shape.vocab_size * h / t
    replicas = 2 * gather(2 * held, dp * cp, t)
    if layout["zero"] == 3:
        replicas = 1.5 * m * replicas - m * (shape.layers / p * layer + head)
    shards = dp * cp if layout["zero"] else 1
    return (total + max(replicas, 0) + 34 * held / shards / memory) / 1e3


# %% right: the logits are rounded up to whole tiles
# base: what the wrong ones change
-    head = (6 * tokens * h * V / flops + 16 * tokens * V / hbm) / t
+    head = (6 * tokens * h * (-(-V // 128) * 128) / flops + 16 * tokens * V / hbm) / t


# %% wrong: half of the network each way
# is: slip
# says: 25 GB/s each way, not half of that
# base: what the wrong ones change
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    return inside + ring(nbytes / g, n / g, links["network"] / 16, links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = links["NVLink"] / 2 if near else links["network"] / 16


# %% wrong: the head in what ZeRO-3 hides behind alone
# is: slip
# says: The head is missing
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
+    seconds = m * (slot + 2 * v * message)


# %% wrong: messages on NVLink alone
# is: detail
# says: A message to another node takes the network
# base: what the wrong ones change
-        near = p * n * t <= links["per_node"]
+        near = True


# %% wrong: all of M is sent, and gathered
# is: slip
# says: Each rank of tp sends M/t to the next stage
# base: what the wrong ones change
-        message += 2 * tokens * h / t / (0.8 * speed)
+        message += 2 * tokens * h / (0.8 * speed)


# %% wrong: gradients are summed in each microbatch
# is: slip
# says: sum their gradients once per step
# base: what the wrong ones change
-    sent = all_reduce(2 * params, n, t, links)
+    sent = m * all_reduce(2 * params, n, t, links)


# %% wrong: three runs with full recomputation
# is: slip
# says: products run 4 times, not 3
# base: what the wrong ones change
-RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 6)}
+RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (3, 4, 6)}


# %% wrong: ZeRO-3 hides more than it sends
# is: slip
# says: count at least 0
# base: what the wrong ones change
-        sent = max(0, 1.5 * m * sent - m * (shape.layers / p * layer + head))
+        sent = 1.5 * m * sent - m * (shape.layers / p * layer + head)


# %% wrong: products of forward alone
# is: slip
# says: forward and twice in backward
# base: what the wrong ones change
-    layer = (24 * runs * tokens * h * h + 4 * scores * tokens * s * h) / t / flops
+    layer = (24 * tokens * h * h + 4 * scores * tokens * s * h) / t / flops


# %% wrong: the tokens of one sequence
# is: slip
# says: Only the tokens of one sequence are counted
# base: what the wrong ones change
-    m, tokens = batch / (layout["dp"] * layout["microbatch"]), layout["microbatch"] * s / cp
+    m, tokens = batch / (layout["dp"] * layout["microbatch"]), s / cp


# %% wrong: replicas divide the optimizer without ZeRO
# is: slip
# says: Without ZeRO nothing divides the optimizer
# base: what the wrong ones change
-    update = 34 * params / hbm / (n if layout["zero"] else 1)
+    update = 34 * params / hbm / n


# %% wrong: 16 bytes a parameter for the optimizer
# is: slip
# says: not the 16 it keeps
# base: what the wrong ones change
-    update = 34 * params / hbm / (n if layout["zero"] else 1)
+    update = 16 * params / hbm / (n if layout["zero"] else 1)


# %% wrong: half of a ring
# is: slip
# says: half of them are counted
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * alpha + (n - 1) / n * nbytes / (0.8 * speed)


# %% wrong: M in 32 bits, in messages as well
# is: slip
# says: M is in 16 bits
# base: what the wrong ones change
-    waits = sums * all_reduce(2 * tokens * h, t, 1, links)
+    waits = sums * all_reduce(4 * tokens * h, t, 1, links)
@@
-        message += 2 * tokens * h / t / (0.8 * speed)
+        message += 4 * tokens * h / t / (0.8 * speed)
@@
-            message += all_reduce(2 * tokens * h, t, 1, links) / 2
+            message += all_reduce(4 * tokens * h, t, 1, links) / 2


# %% wrong: the head's products of forward alone
# is: slip
# says: The head's products run forward and twice in backward
# base: what the wrong ones change
-    head = (6 * tokens * h * V / flops + 16 * tokens * V / hbm) / t
+    head = (2 * tokens * h * V / flops + 16 * tokens * V / hbm) / t


# %% wrong: t does not divide the bytes of the scores
# is: slip
# says: t also divides the bytes of the scores
# base: what the wrong ones change
-    nbytes += tokens * s * a / t * (20 + 9 * (scores - 3))
+    nbytes += tokens * s * a * (20 + 9 * (scores - 3))


# %% wrong: m + p - 1 slots, each with the head
# is: slip
# says: A bubble of p - 1 whole slots is counted, each with the head
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds = (m + p - 1) * (slot + head + 2 * v * message)


# %% wrong: one alpha, also where one rank sums
# is: slip
# says: so one alpha per ring is too few
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)


# %% wrong: the ring's alphas alone are forgotten
# is: slip
# says: The alphas are missing
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) / n * nbytes / (0.8 * speed)


# %% wrong: half of the rounds and of the bytes
# is: slip
# says: So rounds and bytes both count
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return (n - 1) * alpha + (n - 1) / n * nbytes / (0.8 * speed)


# %% wrong: half of the rounds
# is: slip
# says: half of the alphas are counted
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)


# %% wrong: every round sends all bytes
# is: slip
# says: sends one of n chunks
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * (alpha + nbytes / (0.8 * speed))


# %% wrong: a rank sends X bytes, also if it is alone
# is: slip
# says: which is 0 if n is 1
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * alpha + nbytes / (0.8 * speed)


# %% wrong: times the speed
# is: slip
# says: Put the divisor in parentheses
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / 0.8 * speed


# %% wrong: the ring at the speed of the data sheets
# is: slip
# says: The ring's links send at 0.8
# base: what the wrong ones change
-    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (0.8 * speed)
+    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / speed


# %% wrong: 0.8 twice
# is: slip
# says: multiplied by 0.8 twice
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    inside = ring(nbytes, g, 0.8 * links["NVLink"] / 2, links["NVLink alpha"])
+    return inside + ring(nbytes / g, n / g, 0.8 * links["network"] / 8, links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = 0.8 * links["NVLink"] / 2 if near else 0.8 * links["network"] / 8


# %% wrong: both traps
# is: slip
# says: Networks are quoted in bits
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    inside = ring(nbytes, g, links["NVLink"], links["NVLink alpha"])
+    return inside + ring(nbytes / g, n / g, links["network"], links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = links["NVLink"] if near else links["network"]


# %% wrong: fast is the network
# is: slip
# says: `fast` and `slow` are swapped
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    inside = ring(nbytes, g, links["network"] / 8, links["NVLink alpha"])
+    return inside + ring(nbytes / g, n / g, links["NVLink"] / 2, links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = links["network"] / 8 if near else links["NVLink"] / 2


# %% wrong: NVLink in bits
# is: slip
# says: so do not divide it by 8
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    inside = ring(nbytes, g, links["NVLink"] / 16, links["NVLink alpha"])
+    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = links["NVLink"] / 16 if near else links["network"] / 8


# %% wrong: the speeds of Selene, whatever the links
# is: slip
# says: so read them from `links`
# base: what the wrong ones change
-    inside = ring(nbytes, g, links["NVLink"] / 2, links["NVLink alpha"])
-    return inside + ring(nbytes / g, n / g, links["network"] / 8, links["network alpha"])
+    inside = ring(nbytes, g, 300e9, links["NVLink alpha"])
+    return inside + ring(nbytes / g, n / g, 25e9, links["network alpha"])
@@
-        speed = links["NVLink"] / 2 if near else links["network"] / 8
+        speed = 300e9 if near else 25e9


# %% wrong: the waits of one layer
# is: slip
# says: Each layer has waits of its own
# base: what the wrong ones change
-    slot = shape.layers / p * (layer + waits)
+    slot = shape.layers / p * layer + waits


# %% wrong: the head of one microbatch
# is: slip
# says: so the head counts m times
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
+    seconds = m * (slot + 2 * v * message) + head


# %% wrong: the slot of a chunk
# is: slip
# says: Only in the bubble is it divided by v
# base: what the wrong ones change
-    slot = shape.layers / p * (layer + waits)
+    slot = shape.layers / p * (layer + waits) / v


# %% wrong: v divides the messages of the fill
# is: slip
# says: so v divides only the slot
# base: what the wrong ones change
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds += (p - 1) * (slot + 2 * message) / v


# %% wrong: no messages
# is: slip
# says: The messages are missing
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds = m * (slot + head)
+    seconds += (p - 1) * slot / v


# %% wrong: one message, also while the pipeline fills
# is: slip
# says: and the pipeline fills with two per stage
# base: what the wrong ones change
-    seconds = m * (slot + head + 2 * v * message)
-    seconds += (p - 1) * (slot / v + 2 * message)
+    seconds = m * (slot + head + v * message)
+    seconds += (p - 1) * (slot / v + message)
