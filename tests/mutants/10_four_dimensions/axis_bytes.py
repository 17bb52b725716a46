# %% base: what the wrong ones change
def axis_bytes(shape, sizes, microbatches, batch_rows, seq, stage=0, width_bytes=4):
    pp, dp, cp, tp = (sizes.get(axis, 1) for axis in ("pp", "dp", "cp", "tp"))
    m, h, kv = microbatches, shape.width, shape.key_value_heads * shape.head_dim
    first, last = stage == 0, stage == pp - 1
    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
    M = tokens * h * width_bytes
    table = shape.vocab_size // tp * h

    def summed(n, nbytes):
        return 2 * (n - 1) / n * nbytes

    tp_bytes = m * layers * 4 * summed(tp, M)
    tp_bytes += m * first * summed(tp, M)
    tp_bytes += m * last * summed(tp, M)
    tp_bytes += m * last * summed(tp, 3 * 4 * tokens)

    pp_bytes = m * M * ((not first) + (not last))
    if shape.tied and pp > 1 and (first or last):
        pp_bytes += table * width_bytes

    of_layer = (12 * h * h + 7 * h) // tp + 6 * h
    params = layers * of_layer + first * (table + shape.context * h) + last * 2 * h
    if last and not (shape.tied and pp == 1):
        params += table
    dp_bytes = summed(dp * cp, params * width_bytes)

    keys = 2 * tokens * kv // tp * width_bytes
    cp_bytes = m * layers * (2 * (cp - 1) + cp) * keys if cp > 1 else 0
    return {"pp": pp_bytes, "dp": dp_bytes, "cp": cp_bytes, "tp": tp_bytes}


def wire(sizes, axis, per_node):
    names, ranks = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])
    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
        return "NVLink"
    return "network"


# %% wrong: two all-reduces a layer, forward alone
# is: slip
# says: of forward are counted, but backward sums twice as well
# base: what the wrong ones change
-    tp_bytes = m * layers * 4 * summed(tp, M)
+    tp_bytes = m * layers * 2 * summed(tp, M)


# %% wrong: one all-reduce a layer
# is: slip
# says: Only one all-reduce per layer is counted
# base: what the wrong ones change
-    tp_bytes = m * layers * 4 * summed(tp, M)
+    tp_bytes = m * layers * summed(tp, M)


# %% wrong: the embedding is forgotten
# is: detail
# says: exactly one of M per microbatch, so 65,536 bytes
# base: what the wrong ones change
-    tp_bytes += m * first * summed(tp, M)


# %% wrong: the head's input is forgotten
# is: detail
# says: The last stage also sums the gradient of the head's input
# base: what the wrong ones change
-    tp_bytes += m * last * summed(tp, M)


# %% wrong: the loss is forgotten
# is: detail
# says: it sums three float32 numbers per token
# base: what the wrong ones change
-    tp_bytes += m * last * summed(tp, 3 * 4 * tokens)


# %% wrong: layers alone
# is: slip
# says: Only the layers are counted
# base: what the wrong ones change
-    tp_bytes += m * first * summed(tp, M)
-    tp_bytes += m * last * summed(tp, M)
-    tp_bytes += m * last * summed(tp, 3 * 4 * tokens)


# %% wrong: layers and the loss
# is: slip
# says: a stage at either end sums one more M per microbatch
# base: what the wrong ones change
-    tp_bytes += m * first * summed(tp, M)
-    tp_bytes += m * last * summed(tp, M)


# %% wrong: the width is forgotten
# is: slip
# says: An element has width_bytes
# base: what the wrong ones change
-    M = tokens * h * width_bytes
+    width_bytes = 4
+    M = tokens * h * width_bytes


# %% wrong: the loss in the width of the stream
# is: detail
# says: three numbers of the loss are float32
# base: what the wrong ones change
-    tp_bytes += m * last * summed(tp, 3 * 4 * tokens)
+    tp_bytes += m * last * summed(tp, 3 * width_bytes * tokens)


# %% wrong: an all-reduce sends what a gather sends
# is: slip
# says: a reduce-scatter and an all-gather
# base: what the wrong ones change
-        return 2 * (n - 1) / n * nbytes
+        return (n - 1) / n * nbytes


# %% wrong: tokens are not divided by cp
# is: slip
# says: The tokens are not divided by cp
# base: what the wrong ones change
-    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
+    tokens, layers = batch_rows // (dp * m) * seq, shape.layers // pp


# %% wrong: gradients of the whole model
# is: slip
# says: The gradients of the whole model are counted
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    params = shape.layers * (12 * h * h + 13 * h) + shape.context * h + 2 * h
+    params += shape.vocab_size * h * (1 if shape.tied and pp == 1 else 2)
+    dp_bytes = summed(dp * cp, params * width_bytes)


# %% wrong: every parameter is cut over tp
# is: slip
# says: norms and the biases behind a sum are whole
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    params = shape.layers * (12 * h * h + 13 * h) + shape.context * h + 2 * h
+    params += shape.vocab_size * h * (1 if shape.tied else 2)
+    dp_bytes = summed(dp * cp, params / (tp * pp) * width_bytes)


# %% wrong: gradients are summed with every microbatch
# is: slip
# says: each rank adds up its microbatches first
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    dp_bytes = m * summed(dp * cp, params * width_bytes)


# %% wrong: the sum over cp is forgotten
# is: slip
# says: ranks of cp hold the same parameters
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    dp_bytes = summed(dp, params * width_bytes)


# %% wrong: every layer sends to the next stage
# is: slip
# says: a stage sends only the output of its last layer
# base: what the wrong ones change
-    pp_bytes = m * M * ((not first) + (not last))
+    pp_bytes = m * M * layers * ((not first) + (not last))


# %% wrong: the tied table is forgotten
# is: detail
# says: The tied table is missing
# base: what the wrong ones change
-    if shape.tied and pp > 1 and (first or last):
-        pp_bytes += table * width_bytes


# %% wrong: every stage has two neighbours
# is: slip
# says: The first stage has no stage before it
# base: what the wrong ones change
-    pp_bytes = m * M * ((not first) + (not last))
+    pp_bytes = m * M * 2 * (pp > 1)


# %% wrong: keys of all heads
# is: slip
# says: Keys and values are cut over tp
# base: what the wrong ones change
-    keys = 2 * tokens * kv // tp * width_bytes
+    keys = 2 * tokens * kv * width_bytes


# %% wrong: the ring runs forward alone
# is: slip
# says: Only forward is counted, but backward sends keys and values again
# base: what the wrong ones change
-    cp_bytes = m * layers * (2 * (cp - 1) + cp) * keys if cp > 1 else 0
+    cp_bytes = m * layers * (cp - 1) * keys


# %% wrong: the gradients do not come home
# is: detail
# says: The gradients travel cp times, not cp - 1
# base: what the wrong ones change
-    cp_bytes = m * layers * (2 * (cp - 1) + cp) * keys if cp > 1 else 0
+    cp_bytes = m * layers * 3 * (cp - 1) * keys


# %% wrong: the size of the axis against the node
# is: slip
# says: The size of the axis is not enough
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if sizes[axis] <= per_node:


# %% wrong: the stride against the node
# is: slip
# says: The stride is not enough
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if stride < per_node:


# %% wrong: tp always has NVLink
# is: slip
# says: 16 ranks do not fit into a node of 8
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if axis == "tp" or sizes[axis] == 1:


# %% wrong: a smaller group never crosses
# is: detail
# says: nodes of 6 cut groups of 4
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if sizes[axis] == 1 or stride * sizes[axis] <= per_node:


# %% wrong: the first axis is innermost
# is: slip
# says: counted from the wrong end
# base: what the wrong ones change
-    stride = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])
+    stride = math.prod(sizes[name] for name in names[: names.index(axis)])


# %% wrong: bytes without their axes
# is: form
# says: gives 4 values, but a dict is expected
# base: what the wrong ones change
-    return {"pp": pp_bytes, "dp": dp_bytes, "cp": cp_bytes, "tp": tp_bytes}
+    return [pp_bytes, dp_bytes, cp_bytes, tp_bytes]


# %% wrong: an all-reduce sends twice its bytes
# is: slip
# says: , not twice its bytes
# base: what the wrong ones change
-        return 2 * (n - 1) / n * nbytes
+        return 2 * nbytes if n > 1 else 0


# %% wrong: a middle stage has one neighbour
# is: slip
# says: A stage in the middle has two neighbours
# base: what the wrong ones change
-    pp_bytes = m * M * ((not first) + (not last))
+    pp_bytes = m * M * (pp > 1)


# %% wrong: tokens of all microbatches
# is: slip
# says: a microbatch has only 1/m of the replica's
# base: what the wrong ones change
-    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
+    tokens, layers = batch_rows // dp * seq // cp, shape.layers // pp


# %% wrong: keys of as many heads as there are queries
# is: slip
# says: fewer heads of keys and values than of queries
# base: what the wrong ones change
-    m, h, kv = microbatches, shape.width, shape.key_value_heads * shape.head_dim
+    m, h, kv = microbatches, shape.width, shape.heads * shape.head_dim


# %% wrong: one step's messages for one microbatch
# is: slip
# says: Only one microbatch is counted, but a step has m
# base: what the wrong ones change
-    m, h, kv = microbatches, shape.width, shape.key_value_heads * shape.head_dim
+    m, h, kv = 1, shape.width, shape.key_value_heads * shape.head_dim
@@
-    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
+    tokens, layers = batch_rows // (dp * microbatches) * seq // cp, shape.layers // pp


# %% wrong: every axis sums the gradients
# is: idea
# says: You count an all-reduce of the gradients, but it belongs to dp and cp
# base: what the wrong ones change
-    return {"pp": pp_bytes, "dp": dp_bytes, "cp": cp_bytes, "tp": tp_bytes}
+    gradients = params * width_bytes
+    return {axis: summed(n, gradients) for axis, n in (("pp", pp), ("dp", dp * cp), ("cp", cp), ("tp", tp))}


# %% wrong: each neighbour gets two messages
# is: slip
# says: Each neighbour gets M only once per microbatch
# base: what the wrong ones change
-    pp_bytes = m * M * ((not first) + (not last))
+    pp_bytes = 2 * m * M * ((not first) + (not last))


# %% wrong: tokens are not divided by dp
# is: slip
# says: The tokens are not divided by dp
# base: what the wrong ones change
-    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
+    tokens, layers = batch_rows // m * seq // cp, shape.layers // pp


# %% wrong: an all-reduce sends twice its bytes, also on a rank alone
# is: slip
# says: , not twice its bytes
# base: what the wrong ones change
-        return 2 * (n - 1) / n * nbytes
+        return 2 * nbytes


# %% wrong: gradients in float32
# is: detail
# says: Gradients have width_bytes as well
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    dp_bytes = summed(dp * cp, params * 4)


# %% wrong: biases of cut matrices are forgotten
# is: detail
# says: The biases of the matrices cut by tp are missing
# base: what the wrong ones change
-    of_layer = (12 * h * h + 7 * h) // tp + 6 * h
+    of_layer = 12 * h * h // tp + 6 * h


# %% wrong: what is whole is forgotten
# is: slip
# says: The 6h in each layer that are whole on tp are missing
# base: what the wrong ones change
-    of_layer = (12 * h * h + 7 * h) // tp + 6 * h
+    of_layer = (12 * h * h + 7 * h) // tp


# %% wrong: norms are cut
# is: slip
# says: 6h in each layer are not cut
# base: what the wrong ones change
-    of_layer = (12 * h * h + 7 * h) // tp + 6 * h
+    of_layer = (12 * h * h + 13 * h) // tp


# %% wrong: positions are forgotten
# is: detail
# says: The positions are missing
# base: what the wrong ones change
-    params = layers * of_layer + first * (table + shape.context * h) + last * 2 * h
+    params = layers * of_layer + first * table + last * 2 * h


# %% wrong: the first stage's table is forgotten
# is: detail
# says: The table is missing on the first stage
# base: what the wrong ones change
-    params = layers * of_layer + first * (table + shape.context * h) + last * 2 * h
+    params = layers * of_layer + first * shape.context * h + last * 2 * h


# %% wrong: a tied head is forgotten
# is: detail
# says: even if it is tied to the table
# base: what the wrong ones change
-    if last and not (shape.tied and pp == 1):
+    if last and not shape.tied:


# %% wrong: the final norm is forgotten
# is: detail
# says: The final norm is missing
# base: what the wrong ones change
-    params = layers * of_layer + first * (table + shape.context * h) + last * 2 * h
+    params = layers * of_layer + first * (table + shape.context * h)


# %% wrong: a head that is not tied is summed as well
# is: slip
# says: a head that is not tied has its own gradient
# base: what the wrong ones change
-    if shape.tied and pp > 1 and (first or last):
+    if pp > 1 and (first or last):


# %% wrong: a tied table is summed with one stage as well
# is: detail
# says: With one stage, only this stage has the table
# base: what the wrong ones change
-    if shape.tied and pp > 1 and (first or last):
+    if shape.tied and (first or last):


# %% wrong: a node that holds all ranks is cut
# is: detail
# says: All ranks are in one node, so no group leaves it
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if sizes[axis] == 1 or per_node % (stride * sizes[axis]) == 0:


# %% wrong: an axis of one rank has neighbours
# is: detail
# says: An axis of one rank has no neighbours
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if ranks <= per_node or per_node % (stride * sizes[axis]) == 0:


# %% wrong: everything in bits
# is: slip
# says: The answers are in bits
# base: what the wrong ones change
-    return {"pp": pp_bytes, "dp": dp_bytes, "cp": cp_bytes, "tp": tp_bytes}
+    return {"pp": 8 * pp_bytes, "dp": 8 * dp_bytes, "cp": 8 * cp_bytes, "tp": 8 * tp_bytes}


# %% wrong: three all-reduces a layer
# is: slip
# says: Three all-reduces per layer are counted
# base: what the wrong ones change
-    tp_bytes = m * layers * 4 * summed(tp, M)
+    tp_bytes = m * layers * 3 * summed(tp, M)


# %% wrong: layers of the whole model
# is: slip
# says: All layers of the model are counted
# base: what the wrong ones change
-    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
+    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers


# %% wrong: elements for bytes
# is: slip
# says: Your answer counts elements, but each has width_bytes
# base: what the wrong ones change
-    m, h, kv = microbatches, shape.width, shape.key_value_heads * shape.head_dim
+    width_bytes = 1
+    m, h, kv = microbatches, shape.width, shape.key_value_heads * shape.head_dim


# %% wrong: one row in a microbatch
# is: slip
# says: A microbatch may have several rows
# base: what the wrong ones change
-    tokens, layers = batch_rows // (dp * m) * seq // cp, shape.layers // pp
+    tokens, layers = seq // cp, shape.layers // pp


# %% wrong: gradients are sent once
# is: slip
# says: Gradients are not sent just once
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    dp_bytes = params * width_bytes


# %% wrong: a ring of one rank sends
# is: detail
# says: With cp = 1 nothing travels
# base: what the wrong ones change
-    cp_bytes = m * layers * (2 * (cp - 1) + cp) * keys if cp > 1 else 0
+    cp_bytes = m * layers * (2 * (cp - 1) + cp) * keys


# %% wrong: a group that fills a node leaves it
# is: slip
# says: A group that fills its node stays inside it
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    if stride * sizes[axis] < per_node:


# %% right: halves of all-reduces, and groups looked at one by one
def axis_bytes(shape, sizes, microbatches, batch_rows, seq, stage=0, width_bytes=4):
    pp, dp, cp, tp = [sizes.get(axis, 1) for axis in ("pp", "dp", "cp", "tp")]
    h, ends = shape.width, [stage == 0, stage == pp - 1]
    tokens = batch_rows * seq / (dp * cp * microbatches)
    half = (tp - 1) / tp * tokens * h * width_bytes
    layers = shape.layers // pp
    sent = {"tp": microbatches * half * (8 * layers + 2 * sum(ends))}
    if ends[1]:
        sent["tp"] += microbatches * 24 * tokens * (tp - 1) / tp
    table = shape.vocab_size * h / tp
    sent["pp"] = microbatches * tokens * h * width_bytes * (2 - sum(ends))
    sent["pp"] += table * width_bytes if shape.tied and pp > 1 and any(ends) else 0
    cut = 12 * h**2 + 7 * h
    held = layers * (cut / tp + 6 * h) + ends[0] * (table + shape.context * h) + ends[1] * (table + 2 * h)
    if shape.tied and pp == 1:
        held -= table
    n = dp * cp
    sent["dp"] = 2 * held * width_bytes * (n - 1) / n
    keys = 2 * tokens * shape.head_dim * shape.key_value_heads / tp * width_bytes
    sent["cp"] = sum(keys * (3 * cp - 2) for _ in range(microbatches * layers)) if cp > 1 else 0.0
    return sent


def wire(sizes, axis, per_node):
    table = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    groups = table.movedim(list(sizes).index(axis), -1).reshape(-1, sizes[axis])
    nodes = groups // per_node
    return "NVLink" if (nodes == nodes[:, :1]).all() else "network"


# %% right: whole groups divide the node
# base: what the wrong ones change
-    if sizes[axis] == 1 or ranks <= per_node or per_node % (stride * sizes[axis]) == 0:
+    reach = stride * sizes[axis]
+    crossing = any(first // per_node != (first + reach - 1) // per_node for first in range(0, ranks, reach))
+    if sizes[axis] == 1 or not crossing:


# %% wrong: the stage is ignored
# is: slip
# says: Your bytes are those sent by stage 0
# base: what the wrong ones change
-    first, last = stage == 0, stage == pp - 1
+    first, last = True, pp == 1


# %% wrong: half of an all-reduce on every axis
# is: slip
# says: sends all its bytes, not half
# base: what the wrong ones change
-        return 2 * (n - 1) / n * nbytes
+        return (n - 1) / n * nbytes
@@
-        pp_bytes += table * width_bytes
+        pp_bytes += summed(2, table * width_bytes)


# %% wrong: one neighbour, also of a stage alone
# is: slip
# says: and a single stage has none
# base: what the wrong ones change
-    pp_bytes = m * M * ((not first) + (not last))
+    pp_bytes = m * M


# %% wrong: a tied table twice on one stage
# is: slip
# says: If one stage is both the first and the last
# base: what the wrong ones change
-    if last and not (shape.tied and pp == 1):
+    if last:


# %% wrong: two axes are wrong, each in a way of its own
# is: slip
# says: then use n = dp cp
# base: what the wrong ones change
-    tp_bytes = m * layers * 4 * summed(tp, M)
+    tp_bytes = m * layers * 5 * summed(tp, M)
@@
-    of_layer = (12 * h * h + 7 * h) // tp + 6 * h
+    of_layer = 13 * h * h // tp


# %% wrong: the loss of the last stage once per step
# is: slip
# says: The loss is counted once per step
# base: what the wrong ones change
-    tp_bytes += m * last * summed(tp, 3 * 4 * tokens)
+    tp_bytes += last * summed(tp, 3 * 4 * tokens)


# %% wrong: the sums of both ends once per step
# is: slip
# says: at the ends of the pipeline is counted once per step
# base: what the wrong ones change
-    tp_bytes += m * first * summed(tp, M)
-    tp_bytes += m * last * summed(tp, M)
-    tp_bytes += m * last * summed(tp, 3 * 4 * tokens)
+    tp_bytes += first * summed(tp, M)
+    tp_bytes += last * summed(tp, M)
+    tp_bytes += last * summed(tp, 3 * 4 * tokens)


# %% wrong: a stride with the axis's own size
# is: slip
# says: The stride contains the size of the axis itself
# base: what the wrong ones change
-    stride = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])
+    stride = math.prod(sizes[name] for name in names[names.index(axis) :])


# %% wrong: M is sent as it is
# is: slip
# says: so give M to `summed`
# base: what the wrong ones change
-    tp_bytes = m * layers * 4 * summed(tp, M)
+    tp_bytes = m * layers * 4 * M


# %% wrong: a rank's parameters are divided by tp again
# is: slip
# says: so it is not divided by tp once more
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    dp_bytes = summed(dp * cp, params / tp * width_bytes)


# %% wrong: replicas sum the residual stream
# is: slip
# says: and not M, the residual stream
# base: what the wrong ones change
-    dp_bytes = summed(dp * cp, params * width_bytes)
+    dp_bytes = summed(dp * cp, M)


# %% right: whole bytes
# base: what the wrong ones change
-    return {"pp": pp_bytes, "dp": dp_bytes, "cp": cp_bytes, "tp": tp_bytes}
+    return {"pp": int(pp_bytes), "dp": int(dp_bytes), "cp": int(cp_bytes), "tp": int(tp_bytes)}
