# %% base: sixteen numbers a row
def activation_bytes(config, batch, seq, itemsize=2, *, flash=True, checkpoint=False):
    tokens, h = batch * seq, config.width
    if checkpoint:
        return config.layers * tokens * h * itemsize
    norms = tokens * (2 * h + 4) * itemsize
    attention = tokens * (h + 4 * h) * itemsize
    mlp = tokens * (h + 2 * config.mlp_width) * itemsize
    if flash:
        attention += tokens * config.heads * 4
    else:
        attention += batch * config.heads * seq * seq * itemsize
    return config.layers * (norms + attention + mlp)


# %% wrong: the paper's coefficients
# is: idea
# says: the paper's coefficients, 34 and 5as/h
def activation_bytes(config, batch, seq, itemsize=2, *, flash=True, checkpoint=False):
    rows = batch * seq * config.width
    if checkpoint:
        return config.layers * 2 * rows
    scores = 0 if flash else 5 * config.heads * seq / config.width
    return config.layers * rows * (34 + scores)


# %% wrong: without the flash kernel's logarithms
# is: detail
# says: the logarithm of its sum
# base: sixteen numbers a row
-    if flash:
-        attention += tokens * config.heads * 4
-    else:
+    if not flash:


# %% wrong: the logarithms in 16 bits
# is: detail
# says: is a float32, 4 bytes, whatever the rest is
# base: sixteen numbers a row
-        attention += tokens * config.heads * 4
+        attention += tokens * config.heads * itemsize


# %% wrong: without the norms' statistics
# is: detail
# says: the mean and one over the deviation
# base: sixteen numbers a row
-    norms = tokens * (2 * h + 4) * itemsize
+    norms = tokens * 2 * h * itemsize


# %% wrong: scores and softmax
# is: slip
# says: the softmax, which its gradient and the product with the values share
# base: sixteen numbers a row
-        attention += batch * config.heads * seq * seq * itemsize
+        attention += 2 * batch * config.heads * seq * seq * itemsize


# %% wrong: the flash kernel keeps scores
# is: slip
# says: keeps no matrix of scores
# base: sixteen numbers a row
-    else:
-        attention += batch * config.heads * seq * seq * itemsize
+    attention += batch * config.heads * seq * seq * itemsize


# %% wrong: checkpointed, and yet everything
# is: slip
# says: block keeps only its input
# base: sixteen numbers a row
-    if checkpoint:
-        return config.layers * tokens * h * itemsize


# %% wrong: one layer
# is: slip
# says: You count one layer
# base: sixteen numbers a row
-        return config.layers * tokens * h * itemsize
+        return tokens * h * itemsize
@@
-    return config.layers * (norms + attention + mlp)
+    return norms + attention + mlp


# %% wrong: the MLP keeps its features once
# is: slip
# says: before GELU, for its derivative, and after it
# base: sixteen numbers a row
-    mlp = tokens * (h + 2 * config.mlp_width) * itemsize
+    mlp = tokens * (h + config.mlp_width) * itemsize


# %% wrong: attention's output is not kept
# is: slip
# says: Attention also keeps its output
# base: sixteen numbers a row
-    attention = tokens * (h + 4 * h) * itemsize
+    attention = tokens * (h + 3 * h) * itemsize


# %% wrong: with the logits
# is: slip
# says: The logits belong to the head
# base: sixteen numbers a row
-        return config.layers * tokens * h * itemsize
+        return config.layers * tokens * h * itemsize + tokens * config.vocab_size * itemsize
@@
-    return config.layers * (norms + attention + mlp)
+    logits = tokens * config.vocab_size * itemsize
+    return config.layers * (norms + attention + mlp) + logits


# %% wrong: 16 bits always
# is: slip
# says: your formula always counts 2
# base: sixteen numbers a row
-    tokens, h = batch * seq, config.width
+    tokens, h, itemsize = batch * seq, config.width, 2


# %% wrong: the MLP is four times as wide
# is: slip
# says: The MLP's inner width is not always 4h
# base: sixteen numbers a row
-    mlp = tokens * (h + 2 * config.mlp_width) * itemsize
+    mlp = tokens * (h + 8 * h) * itemsize


# %% wrong: a softmax in float32
# is: slip
# says: The softmax's numbers have itemsize bytes too
# base: sixteen numbers a row
-        attention += batch * config.heads * seq * seq * itemsize
+        attention += batch * config.heads * seq * seq * 4


# %% wrong: statistics in float32
# is: detail
# says: A norm's statistics have itemsize bytes here
# base: sixteen numbers a row
-    norms = tokens * (2 * h + 4) * itemsize
+    norms = tokens * (2 * h * itemsize + 4 * 4)


# %% wrong: float32 always
# is: slip
# says: but your formula counts 4
# base: sixteen numbers a row
-    tokens, h = batch * seq, config.width
+    tokens, h, itemsize = batch * seq, config.width, 4


# %% wrong: the stub's inputs are added to the rest
# is: slip
# says: nine tensors as wide as the model
# base: sixteen numbers a row
-    return config.layers * (norms + attention + mlp)
+    return config.layers * (tokens * h * itemsize + norms + attention + mlp)


# %% wrong: sixteen rows, whatever the MLP
# is: slip
# says: use `mlp_width`. And the few numbers per token are missing
# base: sixteen numbers a row
-    norms = tokens * (2 * h + 4) * itemsize
+    norms = tokens * 2 * h * itemsize
@@
-    mlp = tokens * (h + 2 * config.mlp_width) * itemsize
+    mlp = tokens * (h + 8 * h) * itemsize
@@
-        attention += tokens * config.heads * 4
+        attention += 0


# %% wrong: the softmax whatever flash is
# is: slip
# says: With flash=True no matrix of scores is kept
# base: sixteen numbers a row
-    if flash:
+    if False:


# %% wrong: flash the wrong way round
# is: slip
# says: the wrong way round
# base: sixteen numbers a row
-    if flash:
+    if not flash:


# %% wrong: a checkpointed block keeps the softmax
# is: detail
# says: so no softmax either
# base: sixteen numbers a row
-        return config.layers * tokens * h * itemsize
+        softmax = 0 if flash else batch * config.heads * seq * seq
+        return config.layers * (tokens * h + softmax) * itemsize


# %% wrong: checkpointed, and a block that runs again
# is: slip
# says: The block that runs again in backward does not count here
# base: sixteen numbers a row
-    if checkpoint:
-        return config.layers * tokens * h * itemsize
@@
-    return config.layers * (norms + attention + mlp)
+    if checkpoint:
+        return config.layers * tokens * h * itemsize + norms + attention + mlp
+    return config.layers * (norms + attention + mlp)


# %% right: term by term
def activation_bytes(config, batch, seq, itemsize=2, *, flash=True, checkpoint=False):
    row = batch * seq * config.width * itemsize
    if checkpoint:
        return row * config.layers
    total = 0.0
    for _ in range(config.layers):
        total += 2 * row  # inputs of both norms
        total += 2 * 2 * batch * seq * itemsize  # their means and deviations
        total += 2 * row  # inputs of attention and MLP
        total += 3 * row + row  # q, k, v and the output
        total += 2 * row * config.mlp_width / config.width
        number = batch * config.heads * seq
        total += 4 * number if flash else itemsize * number * seq
    return total


# %% right: numbers a token
def activation_bytes(config, batch, seq, itemsize=2, *, flash=True, checkpoint=False):
    if checkpoint:
        of_token = config.width * itemsize
    else:
        of_token = (8 * config.width + 2 * config.mlp_width + 4) * itemsize
        of_token += config.heads * (4 if flash else seq * itemsize)
    return float(batch * seq * config.layers * of_token)
