# %% base: what the wrong ones change
def best_segment(layers, kept=1.0, inside=17.0):
    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
    return min(most, key=most.get)


# %% wrong: the square root of the layers
# is: idea
# says: Chen et al.'s rule for layers that keep no more than their input
def best_segment(layers, kept=1.0, inside=17.0):
    return round(math.sqrt(layers))


# %% wrong: the smooth minimum
# is: slip
# says: [Pp]ieces are whole
def best_segment(layers, kept=1.0, inside=17.0):
    return min(layers, max(1, round(math.sqrt(layers * kept / inside))))


# %% wrong: a short last piece is forgotten
# is: slip
# says: L // k leaves out the input of a shorter last piece
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: layers // k * kept + k * inside for k in range(layers, 0, -1)}


# %% wrong: whole pieces alone
# is: slip
# says: A k that does not divide the layers
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: layers / k * kept + k * inside for k in range(layers, 0, -1) if layers % k == 0}


# %% wrong: the smooth minimum, rounded down
# is: slip
# says: [Pp]ieces are whole
def best_segment(layers, kept=1.0, inside=17.0):
    return min(layers, max(1, math.floor(math.sqrt(layers * kept / inside))))


# %% wrong: always 1
# is: idea
# says: Your answer is 1 whatever
def best_segment(layers, kept=1.0, inside=17.0):
    return 1


# %% wrong: a part of a piece
# is: slip
# says: [Pp]ieces are whole
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: layers / k * kept + k * inside for k in range(layers, 0, -1)}


# %% wrong: the smaller of two
# is: detail
# says: If two k need equal memory, take the larger one
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(1, layers + 1)}


# %% wrong: one layer inside
# is: slip
# says: one whole segment exists while it is recomputed
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: math.ceil(layers / k) * kept + inside for k in range(layers, 0, -1)}


# %% wrong: kept and inside exchanged
# is: slip
# says: its inside were exchanged
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: math.ceil(layers / k) * inside + k * kept for k in range(layers, 0, -1)}


# %% wrong: fixed numbers
# is: idea
# says: does not depend on kept and inside
# base: what the wrong ones change
-    most = {k: math.ceil(layers / k) * kept + k * inside for k in range(layers, 0, -1)}
+    most = {k: math.ceil(layers / k) + k * 17 for k in range(layers, 0, -1)}


# %% wrong: the memory is returned
# is: slip
# says: Your answer is the memory at the worst moment
# base: what the wrong ones change
-    return min(most, key=most.get)
+    return min(most.values())


# %% wrong: the number of pieces is returned
# is: slip
# says: number of pieces
# base: what the wrong ones change
-    return min(most, key=most.get)
+    return math.ceil(layers / min(most, key=most.get))


# %% wrong: the smooth minimum, and no bounds
# is: slip
# says: [Pp]ieces are whole
def best_segment(layers, kept=1.0, inside=17.0):
    return round(math.sqrt(layers * kept / inside))


# %% wrong: one input more than whole pieces
# is: slip
# says: L // k . 1 counts one too many
def best_segment(layers, kept=1.0, inside=17.0):
    best, least = 1, math.inf
    for k in range(1, layers + 1):
        memory = (layers // k + 1) * kept + k * inside
        if memory <= least:
            best, least = k, memory
    return best


# %% right: min with a key
def best_segment(layers, kept=1.0, inside=17.0):
    return min(range(1, layers + 1), key=lambda k: (-(-layers // k) * kept + k * inside, -k))


# %% right: a loop over all k, and a list of those with least memory
def best_segment(layers, kept=1.0, inside=17.0):
    found = []
    for k in range(1, layers + 1):
        pieces, rest = divmod(layers, k)
        found.append((pieces + bool(rest)) * kept + k * inside)
    return max(number for number, held in enumerate(found, 1) if held == min(found))
