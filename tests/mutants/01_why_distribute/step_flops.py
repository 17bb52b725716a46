# %% base: layer by layer
def step_flops(config, batch, seq, *, backward=True, causal=False, recompute=False):
    tokens, h = batch * seq, config.width
    keys = config.key_value_heads * config.head_dim
    mlp = (3 if config.mlp == "swiglu" else 2) * h * config.mlp_width
    scores = seq * (seq + 1) // 2 if causal else seq * seq
    blocks = 0
    for _ in range(config.layers):
        blocks += 2 * tokens * (2 * h * h + 2 * h * keys + mlp)
        blocks += 4 * batch * scores * h
    head = 2 * tokens * h * config.vocab_size
    if not backward:
        return blocks + head
    return 3 * (blocks + head) + (blocks if recompute else 0)


# %% wrong: 6 N D
# is: idea
# says: attention's 12 L s h T are missing, 3 to 17 %
# base: layer by layer
-        blocks += 4 * batch * scores * h


# %% wrong: a FLOP is a multiplication with an addition
# is: slip
# says: a multiplication and an addition are two
# base: layer by layer
-    if not backward:
-        return blocks + head
+    blocks, head = blocks // 2, head // 2
+    if not backward:
+        return blocks + head


# %% wrong: the parts of `parameters`, with their biases
# is: detail
# says: biases are added
# base: layer by layer
-        blocks += 2 * tokens * (2 * h * h + 2 * h * keys + mlp)
+        biases = 2 * h + 2 * keys + (config.mlp == "swiglu") * config.mlp_width + config.mlp_width + h
+        blocks += 2 * tokens * (2 * h * h + 2 * h * keys + mlp + config.bias * biases)


# %% wrong: backward costs as much as forward
# is: slip
# says: two products for each product of forward.*three in all
# base: layer by layer
-    return 3 * (blocks + head) + (blocks if recompute else 0)
+    return 2 * (blocks + head) + (blocks if recompute else 0)


# %% wrong: the head is left out
# is: slip
# says: A tied head has no parameters of its own, but it multiplies
# base: layer by layer
-    head = 2 * tokens * h * config.vocab_size
+    head = 0


# %% wrong: the head runs again
# is: slip
# says: checkpoints end before the head
# base: layer by layer
-    return 3 * (blocks + head) + (blocks if recompute else 0)
+    return (4 if recompute else 3) * (blocks + head)


# %% wrong: the embedding is multiplied
# is: slip
# says: A look-up multiplies nothing
# base: layer by layer
-    head = 2 * tokens * h * config.vocab_size
+    head = 2 * tokens * h * config.vocab_size
+    blocks += 2 * tokens * h * config.vocab_size


# %% wrong: the head counts twice, once for the embedding
# is: slip
# says: The head counts once
# base: layer by layer
-    head = 2 * tokens * h * config.vocab_size
+    head = 2 * (2 * tokens * h * config.vocab_size)


# %% wrong: the whole step runs twice
# is: slip
# says: adds one forward of the blocks, but your function runs the whole step twice
# base: layer by layer
-    return 3 * (blocks + head) + (blocks if recompute else 0)
+    return 3 * (blocks + head) * (2 if recompute else 1)


# %% wrong: the second forward is tripled by backward
# is: slip
# says: Add it after backward has tripled the rest
# base: layer by layer
-    return 3 * (blocks + head) + (blocks if recompute else 0)
+    return 3 * (blocks + head + (blocks if recompute else 0))


# %% wrong: scores do not run again
# is: slip
# says: When the blocks run again, so do attention's two products
# base: layer by layer
-    blocks = 0
+    blocks, attention = 0, config.layers * 4 * batch * scores * h
@@
-    return 3 * (blocks + head) + (blocks if recompute else 0)
+    return 3 * (blocks + head) + (blocks - attention if recompute else 0)


# %% wrong: backward always counts
# is: slip
# says: your function always adds backward
# base: layer by layer
-    if not backward:
-        return blocks + head
     return 3 * (blocks + head) + (blocks if recompute else 0)


# %% wrong: scores of the key heads
# is: slip
# says: Grouped queries save bytes, not scores
# base: layer by layer
-        blocks += 4 * batch * scores * h
+        blocks += 4 * batch * scores * keys


# %% wrong: half of all scores
# is: detail
# says: so the diagonal counts
# base: layer by layer
-    scores = seq * (seq + 1) // 2 if causal else seq * seq
+    scores = seq * seq / 2 if causal else seq * seq


# %% wrong: masked scores count in spite of causal
# is: slip
# says: only the scores that are not masked count
# base: layer by layer
-    scores = seq * (seq + 1) // 2 if causal else seq * seq
+    scores = seq * seq


# %% wrong: one product of attention
# is: slip
# says: Attention has two products
# base: layer by layer
-        blocks += 4 * batch * scores * h
+        blocks += 2 * batch * scores * h


# %% wrong: recomputation is not counted
# is: slip
# says: runs the blocks' forward once more
# base: layer by layer
-    return 3 * (blocks + head) + (blocks if recompute else 0)
+    return 3 * (blocks + head)


# %% wrong: nothing is returned
# is: form
# says: not a number
def step_flops(config, batch, seq, *, backward=True, causal=False, recompute=False):
    print(6 * batch * seq * config.width)


# %% wrong: 6 N D, whatever runs
# is: idea
# says: A forward is a third of it
def step_flops(config, batch, seq, *, backward=True, causal=False, recompute=False):
    mlp = (3 if config.mlp == "swiglu" else 2) * config.width * config.mlp_width
    keys = config.key_value_heads * config.head_dim
    layer = 2 * config.width**2 + 2 * config.width * keys + mlp
    return 6 * batch * seq * (config.layers * layer + config.vocab_size * config.width)


# %% wrong: the biases of attention
# is: detail
# says: the biases of the attention are added
# base: layer by layer
-        blocks += 2 * tokens * (2 * h * h + 2 * h * keys + mlp)
+        blocks += 2 * tokens * (2 * h * h + 2 * h * keys + mlp + config.bias * (2 * h + 2 * keys))


# %% right: 6 N D, and a correction
def step_flops(config, batch, seq, *, backward=True, causal=False, recompute=False):
    h, d = config.width, config.head_dim
    layer = h * (config.mlp_width * (3 if config.mlp == "swiglu" else 2))
    layer += 2 * h * config.heads * d + 2 * h * config.key_value_heads * d
    n_blocks = config.layers * layer
    pairs = sum(range(1, seq + 1)) if causal else seq**2
    attention = config.layers * 2 * 2 * batch * pairs * config.heads * d
    of_blocks = 2 * n_blocks * batch * seq + attention
    of_head = 2 * config.vocab_size * h * batch * seq
    runs = 1 + 2 * backward + (1 if recompute and backward else 0)
    return runs * of_blocks + (1 + 2 * backward) * of_head


# %% right: product by product
def step_flops(config, batch, seq, *, backward=True, causal=False, recompute=False):
    def product(m, k, n):
        return 2 * m * k * n

    tokens, kv = batch * seq, config.key_value_heads * config.head_dim
    block = 2 * product(tokens, config.width, config.width)
    block += 2 * product(tokens, config.width, kv)
    block += product(tokens, config.mlp_width, config.width) * (3 if config.mlp == "swiglu" else 2)
    for _ in range(batch * config.heads):
        both = product(seq, config.head_dim, seq) + product(seq, seq, config.head_dim)
        block += both * (seq + 1) // (2 * seq) if causal else both
    total = config.layers * block + product(tokens, config.width, config.vocab_size)
    if backward:
        total *= 3
        total += recompute * config.layers * block
    return total
