# %% base: what the wrong ones change
def cut(length, n):
    sizes = [length // n + (i < length % n) for i in range(n)]
    starts = [sum(sizes[:i]) for i in range(n)]
    return [range(start, start + size) for start, size in zip(starts, sizes)]


def place_of(rank, sizes, axis):
    for name in reversed(list(sizes)):
        rank, place = divmod(rank, sizes[name])
        if name == axis:
            return place
    return 0


def my_part(rank, sizes, batch_size, seq):
    dp, cp = sizes.get("dp", 1), sizes.get("cp", 1)
    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
    if cp == 1:
        return rows, [range(seq)]
    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
    return rows, [chunks[at], chunks[-1 - at]]


# %% wrong: a function that it calls is a stub
# is: form
# says: `my_part` calls `place_of`, which is not written yet
# base: what the wrong ones change
-    for name in reversed(list(sizes)):
-        rank, place = divmod(rank, sizes[name])
-        if name == axis:
-            return place
-    return 0
+    raise NotImplementedError()


# %% wrong: rows by the global rank
# is: idea
# says: share every layer .tp. but read different rows
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    rows = cut(batch_size, math.prod(sizes.values()))[rank]


# %% wrong: stages of a pipeline read different rows
# is: idea
# says: Stages of one pipeline read different rows
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    pp = sizes.get("pp", 1)
+    rows = cut(batch_size, dp * pp)[place_of(rank, sizes, "dp") * pp + place_of(rank, sizes, "pp")]


# %% wrong: places in succession
# is: idea
# says: With 2 ranks the last has nearly 2 - 1/2 = 1.50 times the mean
# base: what the wrong ones change
-    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [cut(seq, cp)[place_of(rank, sizes, "cp")]]


# %% wrong: cp cuts rows
# is: idea
# says: it does not cut rows
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
-    if cp == 1:
-        return rows, [range(seq)]
-    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
-    return rows, [chunks[at], chunks[-1 - at]]
+    rows = cut(batch_size, dp * cp)[place_of(rank, sizes, "dp") * cp + place_of(rank, sizes, "cp")]
+    return rows, [range(seq)]


# %% wrong: the remainder of the rows is dropped
# is: slip
# says: of 11 rows on 2 replicas
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    each = batch_size // dp
+    rows = range(each * place_of(rank, sizes, "dp"), each * (place_of(rank, sizes, "dp") + 1))


# %% wrong: the remainder of the places is dropped
# is: slip
# says: first chunks are one token longer
# base: what the wrong ones change
-    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
+    at, chunks = place_of(rank, sizes, "cp"), cut(seq - seq % (2 * cp), 2 * cp)


# %% wrong: the last part gets the remainder
# is: slip
# says: first parts should be one longer each
# base: what the wrong ones change
-    sizes = [length // n + (i < length % n) for i in range(n)]
+    sizes = [length // n] * (n - 1) + [length - length // n * (n - 1)]


# %% wrong: the batch is divided by the number of ranks
# is: idea
# says: only dp multiplies samples
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    each = batch_size // math.prod(sizes.values())
+    rows = range(each * place_of(rank, sizes, "dp"), each * (place_of(rank, sizes, "dp") + 1))


# %% wrong: every replica reads all rows
# is: idea
# says: each replica of the model reads samples of its own
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    rows = range(batch_size)


# %% wrong: every rank of cp reads all places
# is: idea
# says: here all of them read every one
# base: what the wrong ones change
-    if cp == 1:
+    if cp:


# %% wrong: the late chunk is forgotten
# is: idea
# says: The late chunk is missing
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [chunks[at]]


# %% wrong: rows without places
# is: form
# says: does not give a pair
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows


# %% wrong: all rows on every replica, and the remainder of the places is dropped
# is: idea
# says: each replica of the model reads samples of its own
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    rows = range(batch_size)
@@
-    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
+    at, chunks = place_of(rank, sizes, "cp"), cut(seq - seq % (2 * cp), 2 * cp)


# %% wrong: rows over dp and pp, dp outermost
# is: idea
# says: Stages of one pipeline read different rows
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    pp = sizes.get("pp", 1)
+    rows = cut(batch_size, dp * pp)[place_of(rank, sizes, "pp") * dp + place_of(rank, sizes, "dp")]


# %% wrong: every dp-th row, and stripes
# is: slip
# says: rows are dealt in another order
def my_part(rank, sizes, batch_size, seq):
    place = dict(zip(sizes, [0] * len(sizes)))
    for axis in reversed(list(sizes)):
        rank, place[axis] = divmod(rank, sizes[axis])
    rows = range(place.get("dp", 0), batch_size, sizes.get("dp", 1))
    return rows, [range(place.get("cp", 0), seq, sizes.get("cp", 1))]


# %% wrong: stripes of places
# is: slip
# says: a chunk is a block of positions that follow each other
# base: what the wrong ones change
-    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [range(place_of(rank, sizes, "cp"), seq, cp)]


# %% wrong: a row for each replica
# is: slip
# says: row 2 is read by none of them
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    rows = range(place_of(rank, sizes, "dp"), place_of(rank, sizes, "dp") + 1)


# %% wrong: chunks as `torch.chunk` cuts them
# is: detail
# says: as `torch.chunk` cuts
# base: what the wrong ones change
-    sizes = [length // n + (i < length % n) for i in range(n)]
-    starts = [sum(sizes[:i]) for i in range(n)]
-    return [range(start, start + size) for start, size in zip(starts, sizes)]
+    each = -(-length // n)
+    return [range(min(length, i * each), min(length, (i + 1) * each)) for i in range(n)]


# %% wrong: the last parts are one longer
# is: detail
# says: The remainder goes to the last parts
# base: what the wrong ones change
-    sizes = [length // n + (i < length % n) for i in range(n)]
+    sizes = [length // n + (i >= n - length % n) for i in range(n)]


# %% wrong: chunks r and r + cp
# is: idea
# says: Chunks r and r . cp are a pair
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [chunks[at], chunks[at + cp]]


# %% wrong: every mesh is taken to have all axes
# is: form
# says: A mesh may lack an axis, which has one rank then
# base: what the wrong ones change
-    dp, cp = sizes.get("dp", 1), sizes.get("cp", 1)
+    dp, cp = sizes["dp"], sizes["cp"]


# %% wrong: ranks are placed with the first axis innermost
# is: idea
# says: ranks are numbered with the first axis innermost
# base: what the wrong ones change
-    for name in reversed(list(sizes)):
+    for name in list(sizes):


# %% right: the layouts of notebook 08
def my_part(rank, sizes, batch_size, seq):
    from course_lib.context_parallel import zigzag

    places = {}
    for axis in reversed(list(sizes)):
        rank, places[axis] = divmod(rank, sizes[axis])
    dp = sizes.get("dp", 1)
    rows = torch.arange(batch_size).tensor_split(dp)[places.get("dp", 0)].tolist()
    rows = range(rows[0], rows[-1] + 1)
    if sizes.get("cp", 1) == 1:
        return rows, [range(seq)]
    return rows, list(zigzag(seq, sizes["cp"])[places["cp"]])


# %% right: a tensor of rows, and a list for each chunk
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return torch.tensor(list(rows)), [list(chunks[at]), list(chunks[-1 - at])]


# %% wrong: the late chunk comes first
# is: detail
# says: The early chunk comes first
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [chunks[-1 - at], chunks[at]]


# %% wrong: all places one by one
# is: detail
# says: Give a list of ranges
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [*chunks[at], *chunks[-1 - at]]


# %% wrong: the mesh is taken to have cp
# is: form
# says: A mesh may lack an axis, which has one rank then
# base: what the wrong ones change
-    dp, cp = sizes.get("dp", 1), sizes.get("cp", 1)
+    dp, cp = sizes.get("dp", 1), sizes["cp"]


# %% wrong: rows by the rank, modulo dp
# is: idea
# says: of ranks 0 and 2, which differ only in dp, row 8 is read by none of them
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    rows = cut(batch_size, dp)[rank % dp]


# %% wrong: rows as a pair of numbers
# is: slip
# says: A pair of numbers was read as two rows
# base: what the wrong ones change
-        return rows, [range(seq)]
+        return (rows.start, rows.stop), [range(seq)]
@@
-    return rows, [chunks[at], chunks[-1 - at]]
+    return (rows.start, rows.stop), [chunks[at], chunks[-1 - at]]


# %% wrong: places as pairs of numbers
# is: slip
# says: A pair of numbers was read as two rows
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [(c.start, c.stop) for c in (chunks[at], chunks[-1 - at])]


# %% wrong: the late chunk is 2 cp - r
# is: form
# says: chunks are counted from 0. So the last one is 2 cp - 1
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [chunks[at], chunks[2 * cp - at]]


# %% wrong: the late chunk is -r
# is: idea
# says: chunks are counted from 0. So the last one is 2 cp - 1
# base: what the wrong ones change
-    return rows, [chunks[at], chunks[-1 - at]]
+    return rows, [chunks[at], chunks[-at]]


# %% wrong: two ranges although cp is 1
# is: detail
# says: With cp = 1 nothing is dealt, so return one range
# base: what the wrong ones change
-    if cp == 1:
-        return rows, [range(seq)]


# %% wrong: an empty range behind the whole sequence where cp is 1
# is: detail
# says: gives its positions in several ranges, although cp is 1
# base: what the wrong ones change
-        return rows, [range(seq)]
+        return rows, [range(seq), range(seq, seq)]


# %% wrong: all replicas read the first rows
# is: idea
# says: These replicas read the same rows
# base: what the wrong ones change
-    rows = cut(batch_size, dp)[place_of(rank, sizes, "dp")]
+    rows = cut(batch_size, dp)[0]


# %% wrong: cp chunks
# is: idea
# says: so cut it into 2 cp
# base: what the wrong ones change
-    at, chunks = place_of(rank, sizes, "cp"), cut(seq, 2 * cp)
+    at, chunks = place_of(rank, sizes, "cp"), cut(seq, cp)
