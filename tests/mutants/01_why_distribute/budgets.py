# %% base: closed forms
def days(params, tokens, gpus, flops, mfu=0.4):
    return 6 * params * tokens / (gpus * flops * mfu) / 86_400


def tokens_per_second_per_gpu(params, flops, mfu):
    return flops * mfu / (6 * params)


def compute_optimal(budget, law):
    E, A, B, alpha, beta = law
    g = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    params = g * (budget / 6) ** (beta / (alpha + beta))
    return params, budget / (6 * params)


# %% wrong: one GPU
# is: slip
# says: Divide the tokens among the GPUs
# base: closed forms
-    return 6 * params * tokens / (gpus * flops * mfu) / 86_400
+    return 6 * params * tokens / (flops * mfu) / 86_400


# %% wrong: 3 N D
# is: slip
# says: [Ff]orward and backward are 6
# base: closed forms
-    return 6 * params * tokens / (gpus * flops * mfu) / 86_400
+    return 3 * params * tokens / (gpus * flops * mfu) / 86_400


# %% wrong: MFU of the peak of fp8
# is: slip
# says: the peak of fp8, but multiply in bf16
# base: closed forms
-    return flops * mfu / (6 * params)
+    fp8 = 2 * flops
+    return fp8 * mfu / (6 * params)


# %% wrong: 20 tokens a parameter
# is: idea
# says: but here the law decides
# base: closed forms
-    E, A, B, alpha, beta = law
-    g = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
-    params = g * (budget / 6) ** (beta / (alpha + beta))
+    params = math.sqrt(budget / (6 * 20))


# %% wrong: the exponents are exchanged
# is: slip
# says: beta belongs to D
# base: closed forms
-    params = g * (budget / 6) ** (beta / (alpha + beta))
+    params = g * (budget / 6) ** (alpha / (alpha + beta))


# %% wrong: alpha and beta are read in the other order
# is: slip
# says: the law is \(E, A, B, alpha, beta\)
# base: closed forms
-    E, A, B, alpha, beta = law
+    E, A, B, beta, alpha = law


# %% wrong: C = N D
# is: slip
# says: here C = 6 N D
# base: closed forms
-    params = g * (budget / 6) ** (beta / (alpha + beta))
-    return params, budget / (6 * params)
+    params = g * budget ** (beta / (alpha + beta))
+    return params, budget / params


# %% wrong: no factor
# is: slip
# says: beta B\)\^\(1 / \(alpha \+ beta\)\) is missing
# base: closed forms
-    params = g * (budget / 6) ** (beta / (alpha + beta))
+    params = (budget / 6) ** (beta / (alpha + beta))


# %% wrong: seconds
# is: slip
# says: a day has 86,400
# base: closed forms
-    return 6 * params * tokens / (gpus * flops * mfu) / 86_400
+    return 6 * params * tokens / (gpus * flops * mfu)


# %% wrong: the peak
# is: slip
# says: a GPU reaches only the share mfu of it
# base: closed forms
-    return flops * mfu / (6 * params)
+    return flops / (6 * params)


# %% wrong: tokens first
# is: slip
# says: instead of \(parameters, tokens\)
# base: closed forms
-    return params, budget / (6 * params)
+    return budget / (6 * params), params


# %% wrong: parameters alone
# is: form
# says: gives a dict, but 2 numbers are expected
# base: closed forms
-    return params, budget / (6 * params)
+    return {"params": params}


# %% wrong: whole days
# is: detail
# says: do not round the days
# base: closed forms
-    return 6 * params * tokens / (gpus * flops * mfu) / 86_400
+    return math.ceil(6 * params * tokens / (gpus * flops * mfu) / 86_400)


# %% wrong: whole tokens
# is: detail
# says: a token takes 6 N. Do not round
# base: closed forms
-    return flops * mfu / (6 * params)
+    return int(flops * mfu / (6 * params))


# %% right: the least of a grid of one percent
# base: closed forms
-    params = g * (budget / 6) ** (beta / (alpha + beta))
+    sizes = [1e6 * 1.01**k for k in range(1600)]
+    params = min(sizes, key=lambda n: A / n**alpha + B / (budget / 6 / n) ** beta)


# %% right: a search for the least loss
def days(params, tokens, gpus, flops, mfu=0.4):
    seconds = tokens / (gpus * tokens_per_second_per_gpu(params, flops, mfu))
    return seconds / (24 * 60 * 60)


def tokens_per_second_per_gpu(params, flops, mfu):
    forward, backward = 2 * params, 4 * params
    return mfu * flops / (forward + backward)


def compute_optimal(budget, law):
    E, A, B, alpha, beta = law

    def loss(logarithm):
        n = math.exp(logarithm)
        return E + A / n**alpha + B / (budget / 6 / n) ** beta

    low, high = math.log(1e3), math.log(budget / 6)
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if loss(a) < loss(b):
            high = b
        else:
            low = a
    n = math.exp((low + high) / 2)
    return n, budget / (6 * n)


# %% right: tokens first, then parameters
def days(params, tokens, gpus, flops, mfu=0.4):
    return params * tokens * 6 / 86400 / gpus / flops / mfu


def tokens_per_second_per_gpu(params, flops, mfu):
    return 86400 / days(params, 1, 1, flops, mfu) / 86400**2


def compute_optimal(budget, law):
    _, a, b, alpha, beta = law
    product = budget / 6
    tokens = (beta * b / (alpha * a) * product**alpha) ** (1 / (alpha + beta))
    return [product / tokens, tokens]
