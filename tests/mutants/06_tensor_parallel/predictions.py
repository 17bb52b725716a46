# %% base: what the wrong ones change
def layer_bytes_sent(n, nbytes, direction, sequence=None):
    halves = 6 if sequence == "regather" and direction == "backward" else 4
    return halves * (n - 1) / n * nbytes


def layer_saved_bytes(n, nbytes, sequence=None):
    norms = 2 if sequence is None else 2 / n
    regions = 2 / n if sequence == "regather" else 2
    return nbytes * (norms + regions + 4 / n + 8 / n)


def loss_bytes_sent(n, tokens):
    return 2 * (n - 1) / n * 3 * 4 * tokens


# %% wrong: one all-reduce a layer, as the lecture says
# is: slip
# says: one all-reduce per layer
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
+    halves = 3 if sequence == "regather" and direction == "backward" else 2


# %% wrong: an all-reduce counted as one phase
# is: slip
# says: two phases: 2 \(N-1\)/N M each
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
-    return halves * (n - 1) / n * nbytes
+    return 2 * (n - 1) / n * nbytes


# %% wrong: the second gather forgotten
# is: slip
# says: gathers the input of each region once more
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
-    return halves * (n - 1) / n * nbytes
+    return 4 * (n - 1) / n * nbytes


# %% wrong: the second gather in forward, too
# is: slip
# says: because only backward needs the input again
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
-    return halves * (n - 1) / n * nbytes
+    return (6 if sequence == "regather" else 4) * (n - 1) / n * nbytes


# %% wrong: backward sends twice as much
# is: slip
# says: but it sends as much as forward, because
# base: what the wrong ones change
 def layer_bytes_sent(n, nbytes, direction, sequence=None):
+    times = 2 if direction == "backward" else 1
@@
-    return halves * (n - 1) / n * nbytes
+    return times * halves * (n - 1) / n * nbytes


# %% wrong: sequence parallelism costs more, as the lecture says
# is: slip
# says: its two halves, so the bytes stay
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
-    return halves * (n - 1) / n * nbytes
+    return (8 if sequence else 4) * (n - 1) / n * nbytes


# %% wrong: no (N-1)/N
# is: slip
# says: a rank's own part does not have to travel
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
-    return halves * (n - 1) / n * nbytes
+    return (6 if sequence == "regather" and direction == "backward" else 4) * nbytes


# %% wrong: everything divided by the ranks
# is: slip
# says: Your result divides everything
# base: what the wrong ones change
-    norms = 2 if sequence is None else 2 / n
-    regions = 2 / n if sequence == "regather" else 2
-    return nbytes * (norms + regions + 4 / n + 8 / n)
+    return 16 * nbytes / n


# %% wrong: nothing divided by the ranks
# is: slip
# says: Your result is the layer on one rank
# base: what the wrong ones change
-    norms = 2 if sequence is None else 2 / n
-    regions = 2 / n if sequence == "regather" else 2
-    return nbytes * (norms + regions + 4 / n + 8 / n)
+    return 16 * nbytes


# %% wrong: the inputs of the norms forgotten
# is: slip
# says: inputs of the two norms are also kept, because
# base: what the wrong ones change
-    norms = 2 if sequence is None else 2 / n
@@
-    return nbytes * (norms + regions + 4 / n + 8 / n)
+    return nbytes * (regions + 12 / n)


# %% wrong: keep keeps parts
# is: slip
# says: gathered inputs of attention and MLP are kept whole
# base: what the wrong ones change
-    norms = 2 if sequence is None else 2 / n
-    regions = 2 / n if sequence == "regather" else 2
-    return nbytes * (norms + regions + 4 / n + 8 / n)
+    return nbytes * (16 / n if sequence else 4 + 12 / n)


# %% wrong: the MLP's features kept once
# is: slip
# says: before GELU for its derivative
# base: what the wrong ones change
-    return nbytes * (norms + regions + 4 / n + 8 / n)
+    return nbytes * (norms + regions + 8 / n)


# %% wrong: the paper's coefficients, which are bytes
# is: slip
# says: paper's coefficients
# base: what the wrong ones change
-    norms = 2 if sequence is None else 2 / n
-    regions = 2 / n if sequence == "regather" else 2
-    return nbytes * (norms + regions + 4 / n + 8 / n)
+    if sequence is None:
+        return nbytes * (10 + 24 / n)
+    return nbytes * (4 + 30 / n if sequence == "keep" else 34 / n)


# %% wrong: one number a token
# is: detail
# says: three, the largest logit, the sum of exponentials
# base: what the wrong ones change
-    return 2 * (n - 1) / n * 3 * 4 * tokens
+    return 2 * (n - 1) / n * 4 * tokens


# %% wrong: sent again backward
# is: slip
# says: nothing is sent backward
# base: what the wrong ones change
-    return 2 * (n - 1) / n * 3 * 4 * tokens
+    return 2 * 2 * (n - 1) / n * 3 * 4 * tokens


# %% right: counted by collectives
# base: what the wrong ones change
-    halves = 6 if sequence == "regather" and direction == "backward" else 4
-    return halves * (n - 1) / n * nbytes
+    gather = scatter = (n - 1) / n * nbytes
+    region = gather + scatter
+    if direction == "backward" and sequence == "regather":
+        region += gather
+    return 2 * region


# %% right: a table of coefficients
def layer_bytes_sent(n, nbytes, direction, sequence=None):
    all_reduce = 2 * nbytes * (n - 1) / n
    return all_reduce * {("backward", "regather"): 3}.get((direction, sequence), 2)


def layer_saved_bytes(n, nbytes, sequence=None):
    whole, cut = {None: (4, 12), "keep": (2, 14), "regather": (0, 16)}[sequence]
    return nbytes * whole + nbytes * cut / n


def loss_bytes_sent(n, tokens):
    largest = exponentials = of_target = 4 * tokens
    return 2 * (largest + exponentials + of_target) * (n - 1) / n
