# %% base: a loop over a list
def first_that_fits(config, gpus, room, batch, seq):
    h, tokens = config.width, batch * seq
    norm, attention = 2 * h, 4 * h * h + 4 * h
    block = attention + 2 * h * config.mlp_width + config.mlp_width + h + 2 * norm
    P = config.vocab_size * h + config.context * h + config.layers * block + norm
    logits = 6 * tokens * config.vocab_size
    kept = tokens * (8 * h + 2 * config.mlp_width + 4) * 2 + tokens * config.heads * 4
    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(4)]
    for stage, checkpoint in layouts:
        states = 12 * P / (gpus if stage >= 1 else 1)
        gradients = 2 * P / (gpus if stage >= 2 else 1)
        weights = 2 * P / (gpus if stage >= 3 else 1)
        transient = 4 * block if stage == 3 else 0
        activations = config.layers * (2 * tokens * h if checkpoint else kept)
        if states + gradients + weights + transient + activations + logits <= room:
            return stage, checkpoint
    return None


# %% wrong: the room of all GPUs
# is: slip
# says: room is the room on one GPU
# base: a loop over a list
-        if states + gradients + weights + transient + activations + logits <= room:
+        if states + gradients + weights + transient + activations + logits <= room * gpus:


# %% wrong: the batch of all GPUs
# is: slip
# says: batch is already the batch of one GPU.*nor for the logits
# base: a loop over a list
-    h, tokens = config.width, batch * seq
+    h, tokens = config.width, batch * gpus * seq


# %% wrong: the activations of all GPUs
# is: slip
# says: do not multiply it by the number of GPUs\.
# base: a loop over a list
-        activations = config.layers * (2 * tokens * h if checkpoint else kept)
+        activations = gpus * config.layers * (2 * tokens * h if checkpoint else kept)


# %% wrong: checkpointing before stage 3
# is: slip
# says: the bytes of stage 3 can be hidden
# base: a loop over a list
-    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(4)]
+    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(3)]
+    layouts += [(3, False), (3, True)]


# %% wrong: the batch of one GPU, divided
# is: slip
# says: do not divide it by the number of GPUs
# base: a loop over a list
-        activations = config.layers * (2 * tokens * h if checkpoint else kept)
+        activations = config.layers * (2 * tokens * h if checkpoint else kept) / gpus


# %% wrong: activations in float32
# is: slip
# says: Activations are in 16 bits here
# base: a loop over a list
-    kept = tokens * (8 * h + 2 * config.mlp_width + 4) * 2 + tokens * config.heads * 4
+    kept = tokens * (8 * h + 2 * config.mlp_width + 4) * 4 + tokens * config.heads * 4
@@
-        activations = config.layers * (2 * tokens * h if checkpoint else kept)
+        activations = config.layers * (4 * tokens * h if checkpoint else kept)


# %% wrong: a block with its share of the embedding
# is: slip
# says: The gathered block has no embedding and no head
# base: a loop over a list
-        transient = 4 * block if stage == 3 else 0
+        transient = 4 * P / config.layers if stage == 3 else 0


# %% wrong: each stage divides its own part
# is: slip
# says: Stages 2 and 3 also divide the optimizer's part
# base: a loop over a list
-        states = 12 * P / (gpus if stage >= 1 else 1)
-        gradients = 2 * P / (gpus if stage >= 2 else 1)
+        states = 12 * P / (gpus if stage == 1 else 1)
+        gradients = 2 * P / (gpus if stage == 2 else 1)


# %% wrong: the stage divides activations
# is: slip
# says: No stage divides the activations
# base: a loop over a list
-        activations = config.layers * (2 * tokens * h if checkpoint else kept)
+        activations = config.layers * (2 * tokens * h if checkpoint else kept)
+        activations /= gpus if stage else 1


# %% wrong: the gathered block is forgotten
# is: slip
# says: Stage 3 also holds one block's full weights and gradients
# base: a loop over a list
-        transient = 4 * block if stage == 3 else 0
+        transient = 0


# %% wrong: the logits are forgotten
# is: slip
# says: 1.05e9 logits x 6 bytes, so 6.3 GB
# base: a loop over a list
-    logits = 6 * tokens * config.vocab_size
+    logits = 0


# %% wrong: the logits in float32 alone
# is: slip
# says: in float32 and in 16 bits, so each takes 6 bytes
# base: a loop over a list
-    logits = 6 * tokens * config.vocab_size
+    logits = 4 * tokens * config.vocab_size


# %% wrong: stage 1 on one GPU
# is: slip
# says: Sharding over one rank saves nothing, so take 0
# base: a loop over a list
-    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(4)]
+    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in (1, 2, 3)]


# %% wrong: an error if nothing fits
# is: slip
# says: return None instead of raising
# base: a loop over a list
-    return None
+    raise ValueError("nothing fits")


# %% wrong: the highest stage first
# is: slip
# says: Take the cheapest (layout )?that fits
# base: a loop over a list
-    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(4)]
+    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in (3, 2, 1, 0)]


# %% wrong: stage 2 divides the weights
# is: slip
# says: Stage 2 keeps 2 bytes per parameter on every GPU, the weights, so 140 GB for 70B
# base: a loop over a list
-        weights = 2 * P / (gpus if stage >= 3 else 1)
+        weights = 2 * P / (gpus if stage >= 2 else 1)


# %% wrong: no master copy
# is: slip
# says: m, v, and the float32 copy
# base: a loop over a list
-        states = 12 * P / (gpus if stage >= 1 else 1)
+        states = 8 * P / (gpus if stage >= 1 else 1)


# %% wrong: stage by stage, each with and without checkpointing
# is: slip
# says: sharding saves bytes for little or nothing
# base: a loop over a list
-    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(4)]
+    layouts = [(stage, checkpoint) for stage in range(4) for checkpoint in (False, True)]


# %% wrong: the stage alone
# is: form
# says: Return \(stage, checkpoint\)
# base: a loop over a list
-            return stage, checkpoint
+            return stage


# %% wrong: exactly as large does not fit
# is: detail
# says: exactly as large as the room fits
# base: a loop over a list
-        if states + gradients + weights + transient + activations + logits <= room:
+        if states + gradients + weights + transient + activations + logits < room:


# %% wrong: one layout for all
# is: idea
# says: returns one layout for every plan
def first_that_fits(config, gpus, room, batch, seq):
    return 3, True


# %% wrong: the smallest bill
# is: slip
# says: takes the layout with the smallest bill
# base: a loop over a list
-    for stage, checkpoint in layouts:
+    bills = []
+    for stage, checkpoint in layouts:
@@
-        if states + gradients + weights + transient + activations + logits <= room:
-            return stage, checkpoint
-    return None
+        bills.append(states + gradients + weights + transient + activations + logits)
+    least = min(range(8), key=bills.__getitem__)
+    return layouts[least] if bills[least] <= room else None


# %% wrong: gradients are divided from stage 3 on
# is: slip
# says: Stage 2 also divides the gradients
# base: a loop over a list
-        gradients = 2 * P / (gpus if stage >= 2 else 1)
+        gradients = 2 * P / (gpus if stage >= 3 else 1)


# %% wrong: the gathered block's weights alone
# is: slip
# says: one block's full (weights and )?gradients
# base: a loop over a list
-        transient = 4 * block if stage == 3 else 0
+        transient = 2 * block if stage == 3 else 0


# %% wrong: the scores are kept
# is: slip
# says: If you already do, your bill is too large
# base: a loop over a list
-    kept = tokens * (8 * h + 2 * config.mlp_width + 4) * 2 + tokens * config.heads * 4
+    kept = tokens * (8 * h + 2 * config.mlp_width + 4) * 2 + tokens * config.heads * 2 * seq


# %% wrong: the logits are divided
# is: slip
# says: No stage divides the logits
# base: a loop over a list
-    logits = 6 * tokens * config.vocab_size
+    logits = 6 * tokens * config.vocab_size / gpus


# %% wrong: activations are not checkpointed
# is: slip
# says: call `activation_bytes` with its `checkpoint`
# base: a loop over a list
-        activations = config.layers * (2 * tokens * h if checkpoint else kept)
+        activations = config.layers * kept


# %% right: nested ifs
def bill(config, gpus, batch, seq, stage, checkpoint):
    h, f, tokens = config.width, config.mlp_width, batch * seq
    block = (4 * h * h + 4 * h) + (2 * h * f + f + h) + 4 * h
    everything = (config.vocab_size + config.context) * h + config.layers * block + 2 * h
    if stage == 0:
        held = 16 * everything
    elif stage == 1:
        held = 4 * everything + 12 * everything / gpus
    elif stage == 2:
        held = 2 * everything + 14 * everything / gpus
    else:
        held = 16 * everything / gpus + 4 * block
    if checkpoint:
        held += 2 * config.layers * tokens * h
    else:
        held += config.layers * tokens * (16 * h + 4 * f + 8 + 4 * config.heads)
    return held + 4 * tokens * config.vocab_size + 2 * tokens * config.vocab_size


def first_that_fits(config, gpus, room, batch, seq):
    for checkpoint in (False, True):
        if bill(config, gpus, batch, seq, 0, checkpoint) <= room:
            return 0, checkpoint
        if gpus > 1:
            if bill(config, gpus, batch, seq, 1, checkpoint) <= room:
                return 1, checkpoint
            if bill(config, gpus, batch, seq, 2, checkpoint) <= room:
                return 2, checkpoint
            if bill(config, gpus, batch, seq, 3, checkpoint) <= room:
                return 3, checkpoint


# %% right: the least of those that fit
def first_that_fits(config, gpus, room, batch, seq):
    from course_lib.models import GPT
    from dataclasses import replace

    with torch.device("meta"):
        model = GPT(replace(config, layers=1))
    block = sum(p.numel() for p in model.blocks.parameters())
    params = sum(p.numel() for p in model.parameters()) + (config.layers - 1) * block
    tokens = batch * seq
    fitting = []
    for stage in range(4):
        parts = [(2, 3), (2, 2), (12, 1)]
        states = sum(b * params / (gpus if stage >= least else 1) for b, least in parts)
        states += (stage == 3) * 4 * block + 6 * tokens * config.vocab_size
        row = tokens * config.width * 2
        inner = 2 * tokens * config.mlp_width * 2
        plain = config.layers * (8 * row + inner + 8 * tokens + 4 * tokens * config.heads)
        for checkpoint, kept in ((False, plain), (True, config.layers * row)):
            if states + kept <= room:
                fitting.append((checkpoint, stage))
    if not fitting:
        return None
    checkpoint, stage = min(fitting)
    return stage, checkpoint


# %% right: checkpoint as 0 or 1
# base: a loop over a list
-    layouts = [(stage, checkpoint) for checkpoint in (False, True) for stage in range(4)]
+    layouts = [(stage, checkpoint) for checkpoint in (0, 1) for stage in range(4)]
