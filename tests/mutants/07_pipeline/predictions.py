# %% wrong: the fraction of the total, twice
# is: slip
# says: the bubble over the whole time
# base: by cases
-        return stages - 1
+        return (stages - 1) / stages
@@
-        return ratio / chunks
-    return ratio / 3 if schedule == "zero_bubble_h1" else ratio
+        return ratio / chunks / (1 + ratio / chunks)
+    ratio = ratio / 3 if schedule == "zero_bubble_h1" else ratio
+    return ratio / (1 + ratio)
@@
-    ratio = bubble_of_ideal(schedule, stages, microbatches, chunks)
-    return ratio / (1 + ratio)
+    return bubble_of_ideal(schedule, stages, microbatches, chunks)


# %% wrong: the lecture's fraction, twice
# is: slip
# says: Of the total, which has the bubble in it
# base: by cases
-    return ratio / (1 + ratio)
+    return ratio


# %% wrong: naive as GPipe
# is: slip
# says: on one of the p - 1 others, so m times as long
# base: by cases
-        return stages - 1
+        return (stages - 1) / microbatches


# %% wrong: 1F1B without a bubble
# is: slip
# says: 1F1B has GPipe's bubble
# base: by cases
         return stages - 1
+    if schedule == "one_f_one_b":
+        return 0


# %% wrong: filled in p steps
# is: slip
# says: the first works from the start
# base: by cases
-    ratio = (stages - 1) / microbatches
+    ratio = stages / microbatches


# %% wrong: interleaving changes nothing
# is: slip
# says: divides the bubble by the chunks
# base: by cases
-        return ratio / chunks
+        return ratio


# %% wrong: interleaving makes it longer
# is: slip
# says: Your bubble is multiplied by the chunks
# base: by cases
-        return ratio / chunks
+        return ratio * chunks


# %% wrong: ZB-H1 without a bubble
# is: slip
# says: ZB-H2 has none
# base: by cases
-    return ratio / 3 if schedule == "zero_bubble_h1" else ratio
+    return 0 if schedule == "zero_bubble_h1" else ratio


# %% wrong: ZB-H1 as 1F1B
# is: slip
# says: fills the bubble with the weights' halves
# base: by cases
-    return ratio / 3 if schedule == "zero_bubble_h1" else ratio
+    return ratio


# %% wrong: GPipe holds what 1F1B does
# is: slip
# says: it holds all m
# base: by cases
-    if schedule == "gpipe":
-        return microbatches


# %% wrong: 1F1B holds p everywhere
# is: slip
# says: fewer towards the end
# base: by cases
-    return min(microbatches, below + 1)
+    return min(microbatches, stages if schedule == "one_f_one_b" else below + 1)


# %% wrong: more than there are
# is: slip
# says: m is the peak with fewer microbatches than stages
# base: by cases
-    return min(microbatches, below + 1)
+    return below + 1


# %% wrong: ranks counted from the wrong end
# is: slip
# says: the wrong way round. The first rank
# base: by cases
-    return min(microbatches, below + 1)
+    return min(microbatches, rank + 1 if schedule == "one_f_one_b" else below + 1)


# %% wrong: the loop as 1F1B for each chunk
# is: slip
# says: once for each chunk
# base: by cases
-        return min(microbatches * chunks, 2 * below + (chunks - 1) * stages + 1)
+        return min(microbatches * chunks, chunks * (below + 1))


# %% wrong: the forward after the warm-up forgotten
# is: slip
# says: also counts before its backward
# base: by cases
-        return min(microbatches * chunks, 2 * below + (chunks - 1) * stages + 1)
+        return min(microbatches * chunks, 2 * below + (chunks - 1) * stages)


# %% wrong: activations alone
# is: slip
# says: each comes back as a gradient
# base: by cases
-    return microbatches * nbytes * (down + up)
+    return microbatches * nbytes * down


# %% wrong: every rank sends both ways
# is: slip
# says: its first no gradient
# base: by cases
-    down = chunks - (rank == stages - 1)
-    up = chunks - (rank == 0)
+    down = up = chunks


# %% wrong: a loop that is none
# is: slip
# says: the last rank sends to the first
# base: by cases
-    down = chunks - (rank == stages - 1)
-    up = chunks - (rank == 0)
+    down = chunks * (rank < stages - 1)
+    up = chunks * (rank > 0)


# %% wrong: chunks forgotten
# is: slip
# says: v times as much
# base: by cases
-    down = chunks - (rank == stages - 1)
-    up = chunks - (rank == 0)
+    down = rank < stages - 1
+    up = rank > 0


# %% wrong: one microbatch
# is: slip
# says: each of the m is sent
# base: by cases
-    return microbatches * nbytes * (down + up)
+    return nbytes * (down + up)


# %% wrong: percentages
# is: slip
# says: 0.25 and not 25
def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    shares = {
        "naive": stages - 1,
        "interleaved_one_f_one_b": (stages - 1) / (microbatches * chunks),
        "zero_bubble_h1": (stages - 1) / (3 * microbatches),
    }
    return 100 * shares.get(schedule, (stages - 1) / microbatches)


def bubble_of_total(schedule, stages, microbatches, chunks=1):
    r = bubble_of_ideal(schedule, stages, microbatches, chunks) / 100
    return 100 * r / (1 + r)


def peak_activations(schedule, stages, microbatches, rank, chunks=1):
    p, m, below = stages, microbatches, stages - 1 - rank
    return {
        "naive": 1,
        "gpipe": m,
        "one_f_one_b": min(m, below + 1),
        "interleaved_one_f_one_b": min(m * chunks, 2 * below + (chunks - 1) * p + 1),
        "zero_bubble_h1": min(m, below + 1),
    }[schedule]


def pipeline_bytes_sent(stages, microbatches, rank, nbytes, chunks=1):
    if stages == 1:
        return 0
    return microbatches * nbytes * (2 * chunks - (rank == 0) - (rank == stages - 1))


# %% right: by time
def times(schedule, p, m, v):
    work = 3 * m
    idle = {
        "naive": 3 * m * (p - 1),
        "gpipe": 3 * (p - 1),
        "one_f_one_b": 3 * (p - 1),
        "interleaved_one_f_one_b": 3 * (p - 1) / v,
        "zero_bubble_h1": p - 1,
    }[schedule]
    return work, idle


def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    work, idle = times(schedule, stages, microbatches, chunks)
    return idle / work


def bubble_of_total(schedule, stages, microbatches, chunks=1):
    work, idle = times(schedule, stages, microbatches, chunks)
    return idle / (work + idle)


def peak_activations(schedule, stages, microbatches, rank, chunks=1):
    p, m, i, v = stages, microbatches, rank, chunks
    most = {"naive": 1, "gpipe": m, "interleaved_one_f_one_b": 2 * (p - i - 1) + p * v - p + 1}
    return min(most.get(schedule, p - i), m * v)


def pipeline_bytes_sent(stages, microbatches, rank, nbytes, chunks=1):
    total = 0
    for stage in range(rank, stages * chunks, stages):
        for other in (stage - 1, stage + 1):
            if 0 <= other < stages * chunks and other % stages != rank:
                total += microbatches * nbytes
    return total


# %% right: by cases
def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    if schedule == "naive":
        return stages - 1
    ratio = (stages - 1) / microbatches
    if schedule == "interleaved_one_f_one_b":
        return ratio / chunks
    return ratio / 3 if schedule == "zero_bubble_h1" else ratio


def bubble_of_total(schedule, stages, microbatches, chunks=1):
    ratio = bubble_of_ideal(schedule, stages, microbatches, chunks)
    return ratio / (1 + ratio)


def peak_activations(schedule, stages, microbatches, rank, chunks=1):
    below = stages - 1 - rank
    if schedule == "naive":
        return 1
    if schedule == "gpipe":
        return microbatches
    if schedule == "interleaved_one_f_one_b":
        return min(microbatches * chunks, 2 * below + (chunks - 1) * stages + 1)
    return min(microbatches, below + 1)


def pipeline_bytes_sent(stages, microbatches, rank, nbytes, chunks=1):
    if stages == 1:
        return 0
    down = chunks - (rank == stages - 1)
    up = chunks - (rank == 0)
    return microbatches * nbytes * (down + up)
