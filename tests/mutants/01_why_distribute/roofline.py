# %% base: the longer of two times
def matmul_seconds(m, k, n, flops, bandwidth, itemsize=2):
    arithmetic = 2 * m * k * n / flops
    bytes_moved = (m * k + k * n + m * n) * itemsize
    return max(arithmetic, bytes_moved / bandwidth)


def ridge(flops, bandwidth):
    return flops / bandwidth


def least_tokens(flops, bandwidth, itemsize=2):
    return flops * itemsize / (2 * bandwidth)


# %% wrong: both times are added
# is: idea
# says: they overlap, so the longer one counts
# base: the longer of two times
-    return max(arithmetic, bytes_moved / bandwidth)
+    return arithmetic + bytes_moved / bandwidth


# %% wrong: the weight alone is moved
# is: slip
# says: three are moved
# base: the longer of two times
-    bytes_moved = (m * k + k * n + m * n) * itemsize
+    bytes_moved = k * n * itemsize


# %% wrong: GiB
# is: slip
# says: GB and not GiB,.* off by 1.074
# base: the longer of two times
-    return max(arithmetic, bytes_moved / bandwidth)
+    return max(arithmetic, bytes_moved / (bandwidth / 2**30 * 1e9))


# %% wrong: the peak with sparsity
# is: slip
# says: with half of the numbers zero
# base: the longer of two times
-    arithmetic = 2 * m * k * n / flops
+    arithmetic = 2 * m * k * n / (2 * flops)
@@
-    return flops / bandwidth
+    return 2 * flops / bandwidth


# %% wrong: bits
# is: slip
# says: in bytes per second, not in bits
# base: the longer of two times
-    return max(arithmetic, bytes_moved / bandwidth)
+    return max(arithmetic, 8 * bytes_moved / bandwidth)


# %% wrong: the ridge upside down
# is: slip
# says: FLOPs per byte, not bytes per FLOP
# base: the longer of two times
-    return flops / bandwidth
+    return bandwidth / flops


# %% wrong: twice as many tokens
# is: slip
# says: so divide by 2
# base: the longer of two times
-    return flops * itemsize / (2 * bandwidth)
+    return flops * itemsize / bandwidth


# %% wrong: the ridge for any itemsize
# is: slip
# says: right only for 2 bytes
# base: the longer of two times
-    return flops * itemsize / (2 * bandwidth)
+    return flops / bandwidth


# %% wrong: arithmetic alone
# is: idea
# says: with few rows the bytes take longer
# base: the longer of two times
-    return max(arithmetic, bytes_moved / bandwidth)
+    return arithmetic


# %% wrong: half of the FLOPs
# is: slip
# says: a multiplication and an addition are two
# base: the longer of two times
-    arithmetic = 2 * m * k * n / flops
+    arithmetic = m * k * n / flops


# %% wrong: the product is not moved
# is: slip
# says: the product is also written
# base: the longer of two times
-    bytes_moved = (m * k + k * n + m * n) * itemsize
+    bytes_moved = (m * k + k * n) * itemsize


# %% wrong: the ridge of numbers
# is: slip
# says: no number has a size here, so there is no itemsize
# base: the longer of two times
-    return flops / bandwidth
+    return flops / (bandwidth / 2)


# %% wrong: whole tokens
# is: detail
# says: Do not round
# base: the longer of two times
-    return flops * itemsize / (2 * bandwidth)
+    return math.ceil(flops * itemsize / (2 * bandwidth))


# %% wrong: the bytes alone
# is: idea
# says: only the bytes, but with many rows the arithmetic takes longer
# base: the longer of two times
-    return max(arithmetic, bytes_moved / bandwidth)
+    return bytes_moved / bandwidth


# %% wrong: the nearest whole number of tokens
# is: detail
# says: Do not round
# base: the longer of two times
-    return flops * itemsize / (2 * bandwidth)
+    return round(flops * itemsize / (2 * bandwidth))


# %% wrong: tokens rounded down
# is: detail
# says: Do not round
# base: the longer of two times
-    return flops * itemsize / (2 * bandwidth)
+    return int(flops * itemsize / (2 * bandwidth))


# %% wrong: four bytes always
# is: slip
# says: always counts 4
# base: the longer of two times
-    bytes_moved = (m * k + k * n + m * n) * itemsize
+    bytes_moved = (m * k + k * n + m * n) * 4


# %% right: by intensity
def ridge(flops, bandwidth):
    return flops / bandwidth


def matmul_seconds(m, k, n, flops, bandwidth, itemsize=2):
    moved = itemsize * (m * k + k * n + m * n)
    work = 2 * m * k * n
    if work / moved < ridge(flops, bandwidth):
        return moved / bandwidth
    return work / flops


def least_tokens(flops, bandwidth, itemsize=2):
    return ridge(flops, bandwidth) * itemsize / 2


# %% right: by max of lists
def matmul_seconds(m, k, n, flops, bandwidth, itemsize=2):
    shapes = [(m, k), (k, n), (m, n)]
    seconds = [sum(rows * columns * itemsize / bandwidth for rows, columns in shapes)]
    seconds.append(m * k * (n + n) / flops)
    return max(seconds)


def ridge(flops, bandwidth):
    byte, flop = 1 / bandwidth, 1 / flops
    return byte / flop


def least_tokens(flops, bandwidth, itemsize=2):
    seconds_a_weight, seconds_a_token = itemsize / bandwidth, 2 / flops
    return seconds_a_weight / seconds_a_token
