# %% wrong: one phase of two
# is: slip
# says: two phases
# base: as it stands
-    return (1 if no_sync else microbatches) * 2 * (n - 1) / n * gradient_bytes
+    return (1 if no_sync else microbatches) * (n - 1) / n * gradient_bytes


# %% wrong: no_sync the wrong way round
# is: slip
# says: not the other way around
# base: as it stands
-    return (1 if no_sync else microbatches) * 2 * (n - 1) / n * gradient_bytes
+    return (microbatches if no_sync else 1) * 2 * (n - 1) / n * gradient_bytes


# %% wrong: no_sync changes nothing
# is: slip
# says: Under no_sync\(\) nothing is sent
# base: as it stands
-    return (1 if no_sync else microbatches) * 2 * (n - 1) / n * gradient_bytes
+    return microbatches * 2 * (n - 1) / n * gradient_bytes


# %% wrong: all of the communication is exposed
# is: slip
# says: assumes no overlap
# base: as it stands
-    return max(communication / buckets, communication - (1 - 1 / buckets) * backward)
+    return communication


# %% wrong: the last bucket is hidden, too
# is: slip
# says: the last bucket leaves when backward ends
# base: as it stands
-    return max(communication / buckets, communication - (1 - 1 / buckets) * backward)
+    return max(0, communication - backward)


# %% wrong: only the last bucket is ever exposed
# is: slip
# says: holds only if backward takes longer
# base: as it stands
-    return max(communication / buckets, communication - (1 - 1 / buckets) * backward)
+    return communication / buckets


# %% wrong: communication begins with backward
# is: slip
# says: the first bucket is full only after
# base: as it stands
-    return max(communication / buckets, communication - (1 - 1 / buckets) * backward)
+    return max(communication / buckets, communication - backward)


# %% wrong: the share that is lost
# is: slip
# says: the share that is lost
# base: as it stands
-    return compute / (compute + exposed)
+    return exposed / (compute + exposed)


# %% wrong: divided by compute
# is: slip
# says: divide by that, not by compute
# base: as it stands
-    return compute / (compute + exposed)
+    return (compute - exposed) / compute


# %% wrong: indices are free
# is: detail
# says: Indices also travel
# base: as it stands
-    return (n - 1) * max(1, round(fraction * numel)) * 8
+    return (n - 1) * max(1, round(fraction * numel)) * 4


# %% wrong: top-k is an all-reduce
# is: slip
# says: adds nothing on the way
# base: as it stands
-    return (n - 1) * max(1, round(fraction * numel)) * 8
+    return 2 * (n - 1) / n * max(1, round(fraction * numel)) * 8


# %% wrong: at least one element is forgotten
# is: detail
# says: is right
# base: as it stands
-    return (n - 1) * max(1, round(fraction * numel)) * 8
+    return (n - 1) * round(fraction * numel) * 8


# %% right: as it stands
def gradient_bytes_sent(n, gradient_bytes, microbatches=1, no_sync=True):
    return (1 if no_sync else microbatches) * 2 * (n - 1) / n * gradient_bytes


def exposed_seconds(backward, communication, buckets):
    return max(communication / buckets, communication - (1 - 1 / buckets) * backward)


def scaling_efficiency(compute, exposed):
    return compute / (compute + exposed)


def topk_bytes_sent(n, numel, fraction):
    return (n - 1) * max(1, round(fraction * numel)) * 8


# %% right: by following the buckets
def gradient_bytes_sent(n, gradient_bytes, microbatches=1, no_sync=True):
    sent = 0
    for k in range(microbatches):
        if not no_sync or k == microbatches - 1:
            sent += 2 * gradient_bytes * (1 - 1 / n)
    return sent


def exposed_seconds(backward, communication, buckets):
    free = 0.0
    for k in range(1, buckets + 1):
        free = max(free, k / buckets * backward) + communication / buckets
    return free - backward


def scaling_efficiency(compute, exposed):
    return 1 - exposed / (compute + exposed)


def topk_bytes_sent(n, numel, fraction):
    return (n - 1) * max(1, round(fraction * numel)) * 8
