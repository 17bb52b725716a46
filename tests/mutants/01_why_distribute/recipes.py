# %% base: a table
def recipe_bytes(name):
    return {
        "float32": (4, 4, 0, 8),
        "autocast": (4, 4, 0, 8),
        "zero": (2, 2, 4, 8),
        "megatron bf16": (2, 4, 4, 8),
        "megatron fp16": (2, 2 + 4, 4, 8),
        "pure bf16": (2, 2, 0, 4),
        "deepseek-v3": (1, 4, 4, 4),
        "adam 8 bits": (2, 2, 4, 2 + 2 * 4 / 256),
        "sgd": (4, 4, 0, 4),
    }[name]


# %% wrong: autocast's weights in 16 bits
# is: slip
# says: Under autocast parameters stay float32.*Print `model.weight.dtype`
# base: a table
-        "autocast": (4, 4, 0, 8),
+        "autocast": (2, 4, 0, 8),


# %% wrong: autocast's gradients in 16 bits
# is: slip
# says: Under autocast parameters stay float32, and so do their gradients
# base: a table
-        "autocast": (4, 4, 0, 8),
+        "autocast": (4, 2, 0, 8),


# %% wrong: no master copy
# is: slip
# says: The float32 master copy of the weights is missing
# base: a table
-        "zero": (2, 2, 4, 8),
+        "zero": (2, 2, 0, 8),


# %% wrong: float32 with a master copy
# is: slip
# says: they are their own master
# base: a table
-        "float32": (4, 4, 0, 8),
+        "float32": (4, 4, 4, 8),


# %% wrong: pure bf16 with a master copy
# is: slip
# says: There is no master copy.*Notebook 09 says what that costs
# base: a table
-        "pure bf16": (2, 2, 0, 4),
+        "pure bf16": (2, 2, 4, 4),


# %% wrong: DeepSeek's moments in float32
# is: slip
# says: bf16, so count 2 \+ 2
# base: a table
-        "deepseek-v3": (1, 4, 4, 4),
+        "deepseek-v3": (1, 4, 4, 8),


# %% wrong: DeepSeek's weights in bf16
# is: slip
# says: The linears' working copy is fp8, 1
# base: a table
-        "deepseek-v3": (1, 4, 4, 4),
+        "deepseek-v3": (2, 4, 4, 4),


# %% wrong: 8 bits without scales
# is: slip
# says: 4 bytes per block
# base: a table
-        "adam 8 bits": (2, 2, 4, 2 + 2 * 4 / 256),
+        "adam 8 bits": (2, 2, 4, 2),


# %% wrong: Megatron's gradients in fp16 alone
# is: slip
# says: also has a float32 copy of the gradients
# base: a table
-        "megatron fp16": (2, 2 + 4, 4, 8),
+        "megatron fp16": (2, 2, 4, 8),


# %% wrong: pure bf16 with float32 moments
# is: slip
# says: moments have the parameters' dtype, bf16
# base: a table
-        "pure bf16": (2, 2, 0, 4),
+        "pure bf16": (2, 2, 0, 8),


# %% wrong: SGD like Adam
# is: slip
# says: SGD keeps one buffer
# base: a table
-        "sgd": (4, 4, 0, 4),
+        "sgd": (4, 4, 0, 8),


# %% wrong: the total
# is: form
# says: not a tuple of four numbers
# base: a table
-    return {
+    return sum({
@@
-    }[name]
+    }[name])


# %% wrong: sixteen bytes always
# is: idea
# says: sgd: the weights do not have 2 bytes per parameter
def recipe_bytes(name):
    return 2, 2, 4, 8


# %% wrong: a scale for a row of 128
# is: slip
# says: A scale serves a whole block of 128 x 128
# base: a table
-        "deepseek-v3": (1, 4, 4, 4),
+        "deepseek-v3": (1 + 4 / 128, 4, 4, 4),


# %% wrong: the blocks of 8-bit Adam
# is: slip
# says: A scale serves a whole block of 128 x 128
# base: a table
-        "deepseek-v3": (1, 4, 4, 4),
+        "deepseek-v3": (1 + 4 / 256, 4, 4, 4),


# %% wrong: the copies of autocast
# is: slip
# says: copies that autocast makes are gone after the step
# base: a table
-        "autocast": (4, 4, 0, 8),
+        "autocast": (6, 4, 0, 8),


# %% wrong: a float32 copy of the gradients
# is: slip
# says: Only megatron fp16 keeps a float32 copy
# base: a table
-        "zero": (2, 2, 4, 8),
+        "zero": (2, 6, 4, 8),


# %% wrong: weights of half a byte
# is: slip
# says: Ask for the dtype in which the model itself holds its weights
# base: a table
-        "adam 8 bits": (2, 2, 4, 2 + 2 * 4 / 256),
+        "adam 8 bits": (1, 2, 4, 2 + 2 * 4 / 256),


# %% right: a tensor of four numbers
# base: a table
-    return {
+    return torch.tensor({
@@
-    }[name]
+    }[name])


# %% right: arithmetic
def recipe_bytes(name):
    bits = {"float32": 32, "autocast": 32, "sgd": 32, "deepseek-v3": 8}.get(name, 16)
    weights = bits / 8
    if name == "deepseek-v3":
        weights += 4 / 128**2
    gradients = weights
    if name in ("megatron bf16", "deepseek-v3"):
        gradients = 4
    if name == "megatron fp16":
        gradients += 4
    master = 4 if weights < 4 and name != "pure bf16" else 0
    moment = 4
    if name in ("pure bf16", "deepseek-v3"):
        moment = 2
    if name == "adam 8 bits":
        moment = 1 + 4 / 256
    return weights, gradients, master, moment * (1 if name == "sgd" else 2)


# %% right: elements and their sizes
def recipe_bytes(name):
    f, h = torch.float32.itemsize, torch.bfloat16.itemsize
    if name in ("float32", "autocast"):
        return [f, f, 0, 2 * f]
    if name == "sgd":
        return [f, f, 0, f]
    if name == "pure bf16":
        return [h, h, 0, 2 * h]
    if name == "deepseek-v3":
        return [1, f, f, 2 * h]
    if name == "adam 8 bits":
        block = 256
        return [h, h, f, 2 * (block + f) / block]
    gradients = {"zero": h, "megatron bf16": f, "megatron fp16": h + f}[name]
    return [h, gradients, f, 2 * f]
