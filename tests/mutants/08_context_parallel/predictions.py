# %% wrong: sends in the last step
# is: slip
# says: Nothing is sent in the last of N steps
# base: from the closed forms
-    keys = (n - 1) * kv_bytes
-    return keys if direction == "forward" else keys + n * 2 * kv_bytes
+    if direction == "forward":
+        return n * kv_bytes
+    return (n - 1) * kv_bytes + 2 * n * kv_bytes


# %% wrong: gradients stay
# is: slip
# says: gradients of keys and values travel as well
# base: from the closed forms
-    if n == 1:
-        return 0
-    keys = (n - 1) * kv_bytes
-    return keys if direction == "forward" else keys + n * 2 * kv_bytes
+    return (n - 1) * kv_bytes


# %% wrong: gradients in 16 bits
# is: slip
# says: Gradients travel in float32
# base: from the closed forms
-    if n == 1:
-        return 0
-    keys = (n - 1) * kv_bytes
-    return keys if direction == "forward" else keys + n * 2 * kv_bytes
+    transfers = n - 1 + (n if direction == "backward" and n > 1 else 0)
+    return transfers * kv_bytes


# %% wrong: gradients one short of home
# is: slip
# says: one rank short of home
# base: from the closed forms
-    if n == 1:
-        return 0
-    keys = (n - 1) * kv_bytes
-    return keys if direction == "forward" else keys + n * 2 * kv_bytes
+    factor = {"forward": 1, "backward": 3}[direction]
+    return factor * (n - 1) * kv_bytes


# %% wrong: one rank sends
# is: slip
# says: One rank has no other rank to send to
# base: from the closed forms
-    if n == 1:
-        return 0
-    keys = (n - 1) * kv_bytes
-    return keys if direction == "forward" else keys + n * 2 * kv_bytes
+    return (n - 1) * kv_bytes + (2 * n * kv_bytes if direction == "backward" else 0)


# %% wrong: a collective's share
# is: slip
# says: a collective's share
# base: from the closed forms
-    if n == 1:
-        return 0
-    keys = (n - 1) * kv_bytes
-    return keys if direction == "forward" else keys + n * 2 * kv_bytes
+    share = (n - 1) / n * kv_bytes
+    return share if direction == "forward" or n == 1 else share + 2 * kv_bytes


# %% wrong: the output is forgotten
# is: slip
# says: a fourth all-to-all
# base: from the closed forms
-    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
-    return here * (n - 1) / n
+    return (n - 1) / n * tokens / n * (width + 2 * kv_width) * itemsize


# %% wrong: all of the same width
# is: slip
# says: with fewer heads of keys
# base: from the closed forms
-    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
-    return here * (n - 1) / n
+    return 4 * width * itemsize * tokens * (n - 1) / n**2


# %% wrong: the own part is sent
# is: slip
# says: so it sends the rest, \(N-1\)/N
# base: from the closed forms
-    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
-    return here * (n - 1) / n
+    return tokens // n * 2 * (width + kv_width) * itemsize


# %% wrong: the whole sequence
# is: slip
# says: Each rank holds tokens / N|the bytes of all ranks
# base: from the closed forms
-    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
-    return here * (n - 1) / n
+    return (n - 1) / n * tokens * 2 * (width + kv_width) * itemsize


# %% wrong: always two bytes
# is: slip
# says: use the argument itemsize
# base: from the closed forms
-    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
+    here = tokens / n * (2 * width + 2 * kv_width) * 2


# %% wrong: whole steps
# is: slip
# says: only the diagonal, half a block
# base: from the closed forms
-    return (n - 1 - rank) / (n - 0.5)
+    return (n - 1 - rank) / n


# %% wrong: the other way round
# is: slip
# says: the wrong way round\. The first rank
# base: from the closed forms
-    return (n - 1 - rank) / (n - 0.5)
+    return 2 * rank / (2 * n - 1)


# %% wrong: the mean
# is: slip
# says: the mean of all ranks
# base: from the closed forms
-    return (n - 1 - rank) / (n - 0.5)
+    return (n - 1) / (2 * n - 1)


# %% wrong: who works
# is: slip
# says: share in which the rank works
# base: from the closed forms
-    return (n - 1 - rank) / (n - 0.5)
+    return (rank + 0.5) / (n - 0.5)


# %% wrong: causal is not looked at
# is: slip
# says: half of the scores are computed
# base: from the closed forms
-    block = flops_per_second / bytes_per_second * kv_width / width
-    return 2 * block if causal else block
+    return flops_per_second * kv_width / (bytes_per_second * width)


# %% wrong: causal needs fewer
# is: slip
# says: more tokens are needed, not fewer
# base: from the closed forms
-    block = flops_per_second / bytes_per_second * kv_width / width
-    return 2 * block if causal else block
+    ratio = flops_per_second / bytes_per_second
+    return ratio * kv_width / width * (0.5 if causal else 1)


# %% wrong: widths are not looked at
# is: slip
# says: the block shrinks by their ratio
# base: from the closed forms
-    block = flops_per_second / bytes_per_second * kv_width / width
-    return 2 * block if causal else block
+    return (1 + causal) * flops_per_second / bytes_per_second


# %% wrong: the paper's sequence
# is: slip
# says: six blocks
# base: from the closed forms
-    block = flops_per_second / bytes_per_second * kv_width / width
-    return 2 * block if causal else block
+    return 6 * (1 + causal) * flops_per_second * kv_width / width / bytes_per_second


# %% wrong: bytes over FLOP/s
# is: slip
# says: quotient of the speeds is upside down
# base: from the closed forms
-    block = flops_per_second / bytes_per_second * kv_width / width
+    block = bytes_per_second / flops_per_second * kv_width / width


# %% wrong: whole tokens
# is: detail
# says: Do not round the number up
# base: from the closed forms
-    block = flops_per_second / bytes_per_second * kv_width / width
-    return 2 * block if causal else block
+    block = flops_per_second / bytes_per_second * kv_width / width
+    return math.ceil(2 * block if causal else block)


# %% right: from the closed forms
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% right: step by step
def ring_bytes_sent(n, kv_bytes, direction):
    sent = 0
    for step in range(n):
        if step < n - 1:
            sent += kv_bytes
        if direction == "backward" and n > 1:
            sent += kv_bytes * 4 // 2
    return sent


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    total = 0.0
    for features in (width, kv_width, kv_width, width):
        part = tokens / n * features * itemsize
        total += part - part / n
    return total


def causal_idle_share(rank, n):
    steps = [0.5] + [1.0] * (n - 1)
    works = steps[: rank + 1]
    return 1 - sum(works) / sum(steps)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    seconds_a_token = 2 * kv_width * 2 / bytes_per_second
    seconds_a_pair = 4 * width / flops_per_second
    if causal:
        seconds_a_pair /= 2
    return seconds_a_token / seconds_a_pair
