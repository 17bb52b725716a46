# %% base: closed forms
def parameters(config):
    h, V, L = config.width, config.vocab_size, config.layers
    keys = config.key_value_heads * config.head_dim
    inward = 2 if config.mlp == "swiglu" else 1
    embedding = V * h
    if config.positions == "learned":
        embedding += config.context * h
    attention = 2 * h * h + 2 * h * keys
    mlp = (inward + 1) * h * config.mlp_width
    norm = h
    if config.bias:
        attention += h + 2 * keys + h
        mlp += inward * config.mlp_width + h
        if config.norm == "layer":
            norm += h
    return {
        "embedding": embedding,
        "attention": L * attention,
        "mlp": L * mlp,
        "norms": (2 * L + 1) * norm,
        "head": 0 if config.tied else V * h,
    }


# %% wrong: a tied head is counted twice
# is: slip
# says: the head is the embedding's matrix, so it counts there
# base: closed forms
-        "head": 0 if config.tied else V * h,
+        "head": V * h,


# %% wrong: attention has no biases
# is: slip
# says: 4h per layer in attention
# base: closed forms
-        attention += h + 2 * keys + h
         mlp += inward * config.mlp_width + h


# %% wrong: four square matrices, and the right biases
# is: slip
# says: as many keys as queries
# base: closed forms
-    attention = 2 * h * h + 2 * h * keys
+    attention = 4 * h * h


# %% wrong: keys and values are as wide as queries
# is: slip
# says: 8 key heads for 64 queries, keys and values are an eighth
# base: closed forms
-    keys = config.key_value_heads * config.head_dim
+    keys = config.heads * config.head_dim


# %% wrong: SwiGLU has two matrices
# is: slip
# says: three: gate, up, down
# base: closed forms
-    inward = 2 if config.mlp == "swiglu" else 1
+    inward = 1


# %% wrong: the MLP is four times as wide
# is: slip
# says: use `mlp_width`, 28,672
# base: closed forms
-    mlp = (inward + 1) * h * config.mlp_width
+    wide = 4 * h
+    mlp = (inward + 1) * h * wide
@@
-        mlp += inward * config.mlp_width + h
+        mlp += inward * wide + h


# %% wrong: the last norm is forgotten
# is: detail
# says: one more norm than two per layer.*h \(or 2h\) are missing
# base: closed forms
-        "norms": (2 * L + 1) * norm,
+        "norms": 2 * L * norm,


# %% wrong: a table for rotary positions
# is: slip
# says: Rotary positions have no parameters
# base: closed forms
-    if config.positions == "learned":
-        embedding += config.context * h
+    embedding += config.context * h


# %% wrong: 12 L h^2
# is: idea
# says: rule of thumb, but the question asks for exact numbers
def parameters(config):
    h, L = config.width, config.layers
    return {
        "embedding": config.vocab_size * h,
        "attention": 4 * L * h**2,
        "mlp": 8 * L * h**2,
        "norms": 0,
        "head": 0,
    }


# %% wrong: a bias although there is none
# is: slip
# says: With bias=False there are none
# base: closed forms
-    if config.bias:
-        attention += h + 2 * keys + h
-        mlp += inward * config.mlp_width + h
-        if config.norm == "layer":
-            norm += h
+    attention += h + 2 * keys + h
+    mlp += inward * config.mlp_width + h
+    if config.bias and config.norm == "layer":
+        norm += h


# %% wrong: every norm has a bias
# is: slip
# says: an RMSNorm has only a weight
# base: closed forms
-        if config.norm == "layer":
-            norm += h
@@
-    norm = h
+    norm = 2 * h


# %% wrong: one layer
# is: slip
# says: You count one layer
# base: closed forms
-        "attention": L * attention,
-        "mlp": L * mlp,
+        "attention": attention,
+        "mlp": mlp,


# %% wrong: another key
# is: form
# says: parameters\(GPT-2 small\) gives a dict without 'mlp'
# base: closed forms
-        "mlp": L * mlp,
+        "MLP": L * mlp,


# %% wrong: the sum among the parts
# is: form
# says: gives a dict that also has 'total', and later cells add up all of its values
# base: closed forms
-    return {
+    parts = {
@@
-        "head": 0 if config.tied else V * h,
-    }
+        "head": 0 if config.tied else V * h,
+    }
+    return {**parts, "total": sum(parts.values())}


# %% wrong: one norm in each layer
# is: slip
# says: A layer has two norms.*one more before the head
# base: closed forms
-        "norms": (2 * L + 1) * norm,
+        "norms": L * norm,


# %% wrong: the sum alone
# is: form
# says: parameters\(GPT-2 small\) gives the number [\d,]+, but a dict is expected
# base: closed forms
-    return {
+    return sum({
@@
-        "head": 0 if config.tied else V * h,
-    }
+        "head": 0 if config.tied else V * h,
+    }.values())


# %% right: a part that nobody has
# base: closed forms
-    return {
+    return {
+        "biases": 0,


# %% right: by the shapes of a model without memory
def parameters(config):
    from course_lib.models import GPT
    from dataclasses import replace

    with torch.device("meta"):
        model = GPT(replace(config, layers=1))
    count = {"embedding": 0, "attention": 0, "mlp": 0, "norms": 0, "head": 0}
    for name, parameter in model.named_parameters():
        times = config.layers if "blocks." in name else 1
        kind = next(
            kind
            for part, kind in (
                ("norm", "norms"), ("embedding", "embedding"), ("attention", "attention"),
                ("mlp", "mlp"), ("head", "head"),
            )
            if part in name
        )
        count[kind] += times * parameter.numel()
    return count


# %% right: matrix by matrix
def parameters(config):
    h, f, d = config.width, config.mlp_width, config.head_dim
    q, kv = config.heads * d, config.key_value_heads * d

    def linear(inward, outward):
        return inward * outward + (outward if config.bias else 0)

    one_norm = h * (2 if config.norm == "layer" and config.bias else 1)
    mlp = linear(h, f) + linear(f, h) + (linear(h, f) if config.mlp == "swiglu" else 0)
    return dict(
        embedding=config.vocab_size * h + (config.positions == "learned") * config.context * h,
        attention=config.layers * (linear(h, q) + 2 * linear(h, kv) + linear(q, h)),
        mlp=config.layers * mlp,
        norms=one_norm * (config.layers * 2 + 1),
        head=config.vocab_size * h * (not config.tied),
    )
