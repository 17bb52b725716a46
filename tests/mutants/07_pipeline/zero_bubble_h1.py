# %% wrong: an empty schedule
# is: form
# says: the schedule is empty
def zero_bubble_h1(stages, microbatches):
    return [[]] * stages


# %% wrong: W at once, which is 1F1B
# is: idea
# says: this is 1F1B with its backward cut in two
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    rows = []
    for rank in range(stages):
        lead = min(microbatches, stages - rank)
        row = [Action(rank, "F", k) for k in range(lead)]
        for k in range(microbatches):
            row += [Action(rank, "I", k), Action(rank, "W", k)]
            if lead + k < microbatches:
                row.append(Action(rank, "F", lead + k))
        rows.append(row)
    return rows


# %% wrong: all W at the end
# is: idea
# says: Every rank keeps all its W for the end
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    rows = []
    for rank in range(stages):
        warm = stages - 1 - rank
        row = [Action(rank, "F", k) for k in range(warm)]
        for k in range(microbatches - warm):
            row += [Action(rank, "F", warm + k), Action(rank, "I", k)]
        row += [Action(rank, "I", k) for k in range(microbatches - warm, microbatches)]
        rows.append(row + [Action(rank, "W", k) for k in range(microbatches)])
    return rows


# %% wrong: whole backwards
# is: idea
# says: a whole backward; here it is cut in two, I and W
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    def row(i):
        f = b = 0
        while b < microbatches:
            forward = f < min(microbatches, b + stages - i)
            yield Action(i, "F", f) if forward else Action(i, "B", b)
            f, b = (f + 1, b) if forward else (f, b + 1)

    return [list(row(i)) for i in range(stages)]


# %% wrong: GPipe with halves
# is: idea
# says: All forwards come before the first I, as in GPipe
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    return [
        [Action(rank, kind, k) for kind in "FIW" for k in range(microbatches)]
        for rank in range(stages)
    ]


# %% wrong: one microbatch at a time
# is: idea
# says: This is the naive schedule
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    return [
        [Action(rank, kind, k) for k in range(microbatches) for kind in ("F", "I", "W")]
        for rank in range(stages)
    ]


# %% wrong: ZB-H2
# is: idea
# says: This is ZB-H2
# base: lists, emptied from the front
-    if microbatches < stages:
-        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
@@
-        warm = min(microbatches, stages - rank)
+        warm = min(microbatches, 2 * (stages - rank) - 1)
@@
-            if k >= rank:
+            if k >= 2 * rank:


# %% wrong: the first rank keeps the most W
# is: slip
# says: Rank 0 keeps the most W for its end, the last rank none
# base: lists, emptied from the front
-    if microbatches < stages:
-        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
@@
-            if k >= rank:
+            if k >= stages - 1 - rank:


# %% wrong: one W too few in store
# is: slip
# says: Rank 1 has 0 W in store when it comes to its last I
# base: lists, emptied from the front
-    if microbatches < stages:
-        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
@@
-            if k >= rank:
+            if k >= rank - 1:


# %% wrong: one W too many in store
# is: slip
# says: Rank 0 has 2 W in store when it comes to its last I
# base: lists, emptied from the front
-    if microbatches < stages:
-        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
@@
-            if k >= rank:
+            if k >= rank + 2:


# %% wrong: the warm-up is one too short
# is: slip
# says: Rank 0 does 3 forwards before its first backward, but the pipeline stays full with 4
# base: lists, emptied from the front
-    if microbatches < stages:
-        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
@@
-        warm = min(microbatches, stages - rank)
+        warm = max(1, min(microbatches, stages - rank - 1))


# %% wrong: the last rank waits for a second microbatch
# is: slip
# says: The last rank needs no warm-up, because it can go backward as soon as it went forward
# base: lists, emptied from the front
-    if microbatches < stages:
-        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
@@
-        warm = min(microbatches, stages - rank)
+        warm = min(microbatches, max(2, stages - rank))


# %% wrong: W before its I
# is: form
# says: it needs 0I0, which rank 0 does only later
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    rows = []
    for rank in range(stages):
        row, ahead = [], min(stages - rank, microbatches)
        row.extend(Action(rank, "F", k) for k in range(ahead))
        for k in range(microbatches):
            row.extend([Action(rank, "W", k), Action(rank, "I", k)])
            row.extend(Action(rank, "F", n) for n in [ahead + k] if n < microbatches)
        rows.append(row)
    return rows


# %% wrong: the W in store are forgotten
# is: form
# says: rank \d holds stage \d and never does .W
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    rows = []
    for rank in range(stages):
        row, f = [], 0
        for k in range(microbatches):
            while f < min(k + stages - rank, microbatches):
                row.append(Action(rank, "F", f))
                f += 1
            row.append(Action(rank, "I", k))
            row += [Action(rank, "W", k - rank)] if k >= rank else []
        rows.append(row)
    return rows


# %% wrong: fewer microbatches than stages are scheduled
# is: detail
# says: zero_bubble_h1\(4, 3\) does not raise a ValueError
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    rows = []
    for rank in range(stages):
        row, late = [Action(rank, "F", k) for k in range(microbatches)][: stages - rank], []
        for k in range(microbatches):
            row.append(Action(rank, "I", k))
            late.append(Action(rank, "W", k))
            row += [late.pop(0)] if len(late) > rank else []
            row += [Action(rank, "F", k + stages - rank)] * (k + stages - rank < microbatches)
        rows.append(row + late)
    return rows


# %% right: lists, emptied from the front
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    if microbatches < stages:
        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
    rows = []
    for rank in range(stages):
        forwards = [Action(rank, "F", k) for k in range(microbatches)]
        inputs = [Action(rank, "I", k) for k in range(microbatches)]
        weights = [Action(rank, "W", k) for k in range(microbatches)]
        warm = min(microbatches, stages - rank)
        row, forwards = forwards[:warm], forwards[warm:]
        for k, action in enumerate(inputs):
            row.append(action)
            if k >= rank:
                row.append(weights.pop(0))
            if forwards:
                row.append(forwards.pop(0))
        rows.append(row + weights)
    return rows


# %% right: 1F1B, and then every backward is cut
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    if microbatches < stages:
        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")

    def whole(rank):
        f = b = 0
        while b < microbatches:
            if f < min(microbatches, b + stages - rank):
                yield "F", f
                f += 1
            else:
                yield "B", b
                b += 1

    def cut(rank):
        for kind, k in whole(rank):
            if kind == "F":
                yield Action(rank, "F", k)
            else:
                yield Action(rank, "I", k)
                if k >= rank:
                    yield Action(rank, "W", k - rank)
        for k in range(max(0, microbatches - rank), microbatches):
            yield Action(rank, "W", k)

    return [list(cut(rank)) for rank in range(stages)]


# %% right: sorted by the I that each belongs to
from course_lib.pipeline import Action


def zero_bubble_h1(stages, microbatches):
    if microbatches < stages:
        raise ValueError(f"{microbatches} microbatches do not fill {stages} stages")
    rows = []
    for rank in range(stages):
        place = {}
        for k in range(microbatches):
            place[Action(rank, "F", k)] = (k - (stages - 1 - rank), 0, k)
            place[Action(rank, "I", k)] = (k, 1, k)
            place[Action(rank, "W", k)] = (k + rank, 2, k)
        rows.append(sorted(place, key=place.__getitem__))
    return rows
