# %% base: what the wrong ones change
def best_segment(layers, kept=1.0, inside=17.0):
    best, least = 1, math.inf
    for k in range(1, layers + 1):
        most = math.ceil(layers / k) * kept + k * inside
        if most <= least:
            best, least = k, most
    return best


# %% wrong: the square root of the layers
# says: Chen et al.'s rule for layers that keep no more than their input
def best_segment(layers, kept=1.0, inside=17.0):
    return round(math.sqrt(layers))


# %% wrong: the smooth minimum
# says: Pieces are whole
def best_segment(layers, kept=1.0, inside=17.0):
    return min(layers, max(1, round(math.sqrt(layers * kept / inside))))


# %% wrong: a short last piece is forgotten
# says: ceil\(L/k\), not L // k
# base: what the wrong ones change
-        most = math.ceil(layers / k) * kept + k * inside
+        most = layers // k * kept + k * inside


# %% wrong: a part of a piece
# says: Pieces are whole
# base: what the wrong ones change
-        most = math.ceil(layers / k) * kept + k * inside
+        most = layers / k * kept + k * inside


# %% wrong: the smaller of two
# says: Of two k with equal memory the larger one
# base: what the wrong ones change
-        if most <= least:
+        if most < least:


# %% wrong: one layer inside
# says: one whole segment exists while it is recomputed
# base: what the wrong ones change
-        most = math.ceil(layers / k) * kept + k * inside
+        most = math.ceil(layers / k) * kept + inside


# %% wrong: kept and inside exchanged
# says: its inside were exchanged
# base: what the wrong ones change
-        most = math.ceil(layers / k) * kept + k * inside
+        most = math.ceil(layers / k) * inside + k * kept


# %% wrong: fixed numbers
# says: does not know kept and inside
# base: what the wrong ones change
-        most = math.ceil(layers / k) * kept + k * inside
+        most = math.ceil(layers / k) + k * 17


# %% wrong: the memory is returned
# says: That is the memory at the worst moment
# base: what the wrong ones change
-    return best
+    return least


# %% wrong: the number of pieces is returned
# says: number of pieces
# base: what the wrong ones change
-    return best
+    return math.ceil(layers / best)


# %% right: min with a key
def best_segment(layers, kept=1.0, inside=17.0):
    return min(range(1, layers + 1), key=lambda k: (-(-layers // k) * kept + k * inside, -k))


# %% right: from the longest segment to the shortest
def best_segment(layers, kept=1.0, inside=17.0):
    bytes_of = {k: -(layers // -k) * kept + k * inside for k in range(layers, 0, -1)}
    return min(bytes_of, key=bytes_of.get)
