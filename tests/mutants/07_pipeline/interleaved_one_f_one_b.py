# %% wrong: an empty schedule
# is: form
# says: the schedule is empty
def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages:
        raise ValueError("the microbatches must be a multiple of the stages")
    return [[] for _ in range(stages)]


# %% wrong: plain 1F1B
# is: idea
# says: Each rank holds v stages
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    rows = []
    for rank in range(stages):
        lead = min(microbatches, stages - rank)
        row = [Action(rank, "F", k) for k in range(lead)]
        for k in range(microbatches):
            row.append(Action(rank, "B", k))
            if lead + k < microbatches:
                row.append(Action(rank, "F", lead + k))
        rows.append(row)
    return rows


# %% wrong: neighbouring stages on a rank
# is: idea
# says: Neighbouring stages on one rank are one longer stage
# base: the k-th action by arithmetic
-        return Action(chunk * stages + rank, kind, k // (stages * chunks) * stages + k % stages)
+        return Action(rank * chunks + chunk, kind, k // (stages * chunks) * stages + k % stages)


# %% wrong: a V instead of a loop
# is: idea
# says: Your layout is a V, as in ZB-V and DualPipeV
# base: the k-th action by arithmetic
-        return Action(chunk * stages + rank, kind, k // (stages * chunks) * stages + k % stages)
+        stage = chunk * stages + (stages - 1 - rank if chunk % 2 else rank)
+        return Action(stage, kind, k // (stages * chunks) * stages + k % stages)


# %% wrong: the groups of p are forgotten
# is: idea
# says: Rank 0 takes all 8 microbatches forward through stage 0 before it goes on
# base: the k-th action by arithmetic
-        chunk = k // stages % chunks
+        chunk, k = divmod(k, microbatches)
@@
-        return Action(chunk * stages + rank, kind, k // (stages * chunks) * stages + k % stages)
+        return Action(chunk * stages + rank, kind, k)


# %% wrong: the groups of p are forgotten on the way back
# is: form
# says: Rank 0 takes all 8 microbatches backward through stage 4 before it goes on
# base: the k-th action by arithmetic
     def action(rank, kind, k):
+        if kind == "B":
+            chunk, k = divmod(k, microbatches)
+            return Action((chunks - 1 - chunk) * stages + rank, "B", k)
@@
-        if kind == "B":
-            chunk = chunks - 1 - chunk
-        return Action(chunk * stages + rank, kind, k // (stages * chunks) * stages + k % stages)
+        return Action(chunk * stages + rank, "F", k // (stages * chunks) * stages + k % stages)


# %% wrong: backward goes through the chunks as forward does
# is: form
# says: The first backward of rank 0 is 0B0, but the gradient comes from the last stage
# base: the k-th action by arithmetic
-        if kind == "B":
-            chunk = chunks - 1 - chunk


# %% wrong: the warm-up of plain 1F1B
# is: form
# says: Your warm-up is the warm-up of plain 1F1B
# base: the k-th action by arithmetic
-        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
+        warm = stages - rank - 1


# %% wrong: a warm-up that forgets the other chunks
# is: form
# says: before its first backward
# base: the k-th action by arithmetic
-        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
+        warm = min(total, 2 * (stages - rank - 1))


# %% wrong: a warm-up through all chunks
# is: slip
# says: Rank 0 does 15 forwards before its first backward, but 11 are enough
# base: the k-th action by arithmetic
-        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
+        warm = min(total, 2 * (stages - rank - 1) + chunks * stages)


# %% wrong: every rank one forward too many
# is: slip
# says: Rank 0 does 12 forwards before its first backward, but 11 are enough
# base: the k-th action by arithmetic
-        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
+        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages + 1)


# %% wrong: the last rank one forward too many
# is: slip
# says: Rank 3 does 6 forwards before its first backward, but 5 are enough
# base: the k-th action by arithmetic
-        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
+        warm = min(total, max(1, 2 * (stages - rank - 1)) + (chunks - 1) * stages)


# %% wrong: always two chunks
# is: form
# says: Your ranks have 2 chunks each, but this call asks for 3
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages:
        raise ValueError(f"{microbatches} microbatches are no multiple of {stages}")
    total = microbatches * 2

    def action(rank, kind, k):
        second = k // stages % 2
        if kind == "B":
            second = 1 - second
        return Action(second * stages + rank, kind, k // (stages * 2) * stages + k % stages)

    rows = []
    for rank in range(stages):
        warm = min(total, 2 * (stages - rank - 1) + stages)
        row = [action(rank, "F", k) for k in range(warm)]
        for k in range(total - warm):
            row += [action(rank, "F", warm + k), action(rank, "B", k)]
        rows.append(row + [action(rank, "B", k) for k in range(total - warm, total)])
    return rows


# %% wrong: a warm-up longer than there are forwards
# is: detail
# says: The formula gives rank 0 a warm-up of 10 forwards, but rank 0 has only 9
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages:
        raise ValueError(f"{microbatches} microbatches are no multiple of {stages}")
    rows = []
    for rank in range(stages):
        forwards, backwards = [], []
        for first in range(0, microbatches, stages):
            for chunk in range(chunks):
                group = range(first, first + stages)
                forwards += [Action(chunk * stages + rank, "F", k) for k in group]
                backwards += [Action((chunks - 1 - chunk) * stages + rank, "B", k) for k in group]
        warm = 2 * (stages - rank - 1) + (chunks - 1) * stages
        row = forwards[:warm]
        for k in range(len(forwards) - warm):
            row += [forwards[warm + k], backwards[k]]
        rows.append(row + backwards[len(forwards) - warm :])
    return rows


# %% wrong: no groups, no ValueError
# is: detail
# says: interleaved_one_f_one_b\(4, 6\) does not raise a ValueError: 6 microbatches are not whole groups of 4
# base: the k-th action by arithmetic
-    if microbatches % stages:
-        raise ValueError(f"{microbatches} microbatches are no multiple of {stages}")


# %% wrong: an assert instead of a ValueError
# is: detail
# says: raised AssertionError
# base: the k-th action by arithmetic
-    if microbatches % stages:
-        raise ValueError(f"{microbatches} microbatches are no multiple of {stages}")
+    assert microbatches % stages == 0


# %% wrong: all forwards first
# is: idea
# says: All forwards come before the first backward
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages:
        raise ValueError("m must be a multiple of p")
    rows = []
    for rank in range(stages):
        row = []
        for first in range(0, microbatches, stages):
            for chunk in range(chunks):
                row += [Action(chunk * stages + rank, "F", first + k) for k in range(stages)]
        for first in range(0, microbatches, stages):
            for chunk in reversed(range(chunks)):
                row += [Action(chunk * stages + rank, "B", first + k) for k in range(stages)]
        rows.append(row)
    return rows


# %% wrong: a microbatch goes on to the next chunk at once
# is: slip
# says: Rank 0 goes from 0F0 on to 4F0, another of its stages
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages:
        raise ValueError("no whole groups")
    rows = []
    for rank in range(stages):
        own = range(rank, stages * chunks, stages)
        rows.append([Action(stage, "F", k) for k in range(microbatches) for stage in own])
        rows[-1] += [Action(stage, "B", k) for k in range(microbatches) for stage in own[::-1]]
    return rows


# %% wrong: PyTorch's
# is: form
# says: Do not use PyTorch's schedules here, nor get_schedule_ops
from course_lib.pipeline import from_text


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

    theirs = object.__new__(ScheduleInterleaved1F1B)
    theirs.pp_group_size, theirs._n_microbatches = stages, microbatches
    theirs.n_local_stages, theirs._num_stages = chunks, chunks * stages
    theirs.microbatches_per_round, theirs.number_of_rounds = stages, microbatches // stages
    rows = [theirs._calculate_single_rank_operations(rank) for rank in range(stages)]
    return from_text("\n".join(",".join(str(one or "") for one in row) for row in rows))


# %% right: the k-th action by arithmetic
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages:
        raise ValueError(f"{microbatches} microbatches are no multiple of {stages}")
    total = microbatches * chunks

    def action(rank, kind, k):
        chunk = k // stages % chunks
        if kind == "B":
            chunk = chunks - 1 - chunk
        return Action(chunk * stages + rank, kind, k // (stages * chunks) * stages + k % stages)

    rows = []
    for rank in range(stages):
        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
        row = [action(rank, "F", k) for k in range(warm)]
        for k in range(total - warm):
            row += [action(rank, "F", warm + k), action(rank, "B", k)]
        rows.append(row + [action(rank, "B", k) for k in range(total - warm, total)])
    return rows


# %% right: two sorted lists, merged by how many are ahead
from course_lib.pipeline import Action


def interleaved_one_f_one_b(stages, microbatches, chunks=2):
    if microbatches % stages != 0:
        raise ValueError("whole groups only")
    order = sorted((k // stages, c, k) for k in range(microbatches) for c in range(chunks))
    rows = []
    for rank in range(stages):
        forwards = [Action(c * stages + rank, "F", k) for _, c, k in order]
        backwards = [Action((chunks - 1 - c) * stages + rank, "B", k) for _, c, k in order]
        ahead = 2 * (stages - rank) - 1 + (chunks - 1) * stages
        row = []
        while backwards:
            if forwards and len(row) < ahead:
                row.append(forwards.pop(0))
                continue
            row.append(backwards.pop(0))
            row += forwards[:1]
            del forwards[:1]
        rows.append(row)
    return rows


# %% right: a warm-up of one step for each rank below: enough where messages take no time
# base: the k-th action by arithmetic
-        warm = min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
+        warm = min(total, stages - rank - 1 + (chunks - 1) * stages)
