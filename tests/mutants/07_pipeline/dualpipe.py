# %% wrong: an empty schedule
# is: form
# says: the schedule is empty
def dualpipe(stages, microbatches):
    return [[] for rank in range(stages)]


# %% wrong: 1F1B on one copy
# is: idea
# says: Your schedule has one copy of the model
from course_lib.pipeline import Action


def dualpipe(stages, microbatches):
    rows = []
    for rank in range(stages):
        f, row = 0, []
        for b in range(microbatches):
            while f < min(microbatches, b + stages - rank):
                row.append(Action(rank, "F", f))
                f += 1
            row.append(Action(rank, "B", b))
        rows.append(row)
    return rows


# %% wrong: one direction after the other
# is: idea
# says: does all of one direction before anything of the other
from course_lib.pipeline import Action


def dualpipe(stages, microbatches):
    half = microbatches // 2

    def one_f_one_b(stage, first):
        below, f = stages - 1 - stage % stages, 0
        for b in range(half):
            while f <= min(half - 1, b + below):
                yield Action(stage, "F", first + f)
                f += 1
            yield Action(stage, "B", first + b)

    return [
        [*one_f_one_b(rank, 0), *one_f_one_b(2 * stages - 1 - rank, half)] for rank in range(stages)
    ]


# %% wrong: both copies in the same direction
# is: idea
# says: Both copies run from rank 0 to the last
from course_lib.pipeline import Action


def dualpipe(stages, microbatches):
    half, rows = microbatches // 2, []
    for rank in range(stages):
        row = []
        for k in range(half):
            row.append(Action(rank, "F", k))
            row.append(Action(stages + rank, "F", half + k))
        for k in range(half):
            row.append(Action(rank, "B", k))
            row.append(Action(stages + rank, "B", half + k))
        rows.append(row)
    return rows


# %% wrong: every microbatch through both copies
# is: form
# says: is of copy 1 of the model, which does microbatches 5 to 9
from course_lib.pipeline import Action


def dualpipe(stages, microbatches):
    both = [(rank, 2 * stages - 1 - rank) for rank in range(stages)]
    return [
        [Action(stage, kind, k) for kind in "FB" for k in range(microbatches) for stage in own]
        for own in both
    ]


# %% wrong: even microbatches down, odd ones up
# is: form
# says: The first m/2 microbatches belong to the first copy
from course_lib.pipeline import Action


def dualpipe(stages, microbatches):
    rows = []
    for rank in range(stages):
        held = {0: rank, 1: 2 * stages - 1 - rank}
        row = [Action(held[k % 2], "F", k) for k in range(microbatches)]
        rows.append(row + [Action(held[k % 2], "B", k) for k in range(microbatches)])
    return rows


# %% wrong: GPipe from both ends
# is: idea
# says: Nothing is overlapped
from course_lib.pipeline import Action


def dualpipe(stages, microbatches):
    half = microbatches // 2
    rows = []
    for rank in range(stages):
        row = []
        for kind in "FB":
            for k in range(half):
                row += [Action(rank, kind, k), Action(2 * stages - 1 - rank, kind, half + k)]
        rows.append(row)
    return rows


# %% wrong: nothing overlapped
# is: idea
# says: Nothing is overlapped
# base: a letter for each action
-                yield Pair(one(there, "F"), one(back, "B"))
+                yield one(there, "F")
+                yield one(back, "B")


# %% wrong: the backward of a pair first
# is: form
# says: must pair a forward F with a whole backward B
# base: a letter for each action
-                yield Pair(one(there, "F"), one(back, "B"))
+                yield Pair(one(back, "B"), one(there, "F"))


# %% wrong: no backward is cut
# is: slip
# says: Every backward is whole
# base: a letter for each action
-                    {"f": "F", "g": "F", "b": "B", "c": "B"}.get(sign, "I"),
+                    {"f": "F", "g": "F", "b": "B", "c": "B"}.get(sign, "B"),


# %% wrong: a pair fewer in the steady state
# is: form
# says: never does
# base: a letter for each action
-        steady = "xy" * (half - stages + place + 1)
+        steady = "xy" * (half - stages + place)


# %% wrong: the W in store are forgotten
# is: form
# says: never does .*W
# base: a letter for each action
-        return text + "wi" * below + "w" * half
+        return text + "wi" * below


# %% wrong: a forward from the far end too early
# is: slip
# says: In the chart the longest gap is on rank
# base: a letter for each action
-        text = "f" * (2 * below) + "fg" * (place + 1) + "jwg" * below
+        text = "f" * (2 * below) + "fg" * (place + 1) + ("gjw" * below)


# %% wrong: the lists from the last rank to the first
# is: form
# says: in the reverse order
def dualpipe(stages, microbatches):
    from course_lib.pipeline import Action

    half, lists = microbatches // 2, []
    for rank in range(stages):
        down = [Action(rank, kind, k) for k in range(half) for kind in "FB"]
        up = [Action(2 * stages - 1 - rank, kind, half + k) for k in range(half) for kind in "FB"]
        lists.insert(0, down + up)
    return lists


# %% right: the middle begins with a pair as well
# base: a letter for each action
-        text += steady if below else "fc" + steady[1:]
+        text += steady


# %% right: a letter for each action
from course_lib.pipeline import Action, Pair


def dualpipe(stages, microbatches):
    half = microbatches // 2

    def plan(place):
        below = stages // 2 - 1 - place
        text = "f" * (2 * below) + "fg" * (place + 1) + "jwg" * below
        steady = "xy" * (half - stages + place + 1)
        text += steady if below else "fc" + steady[1:]
        tail = "cb" * (place + 1)
        text += (
            "cy" * below + tail[: place + 1] + tail[place + 1 :].replace("c", "j").replace("b", "i")
        )
        return text + "wi" * below + "w" * half

    def row(rank):
        near, far = sorted([rank, 2 * stages - 1 - rank], reverse=rank >= stages // 2)
        waiting, following = [], {}

        def one(stage, kind):
            first = half * (stage >= stages)
            k = following.setdefault((stage, kind != "F"), first)
            following[stage, kind != "F"] = k + 1
            if kind == "I":
                waiting.append(Action(stage, "W", k))
            return Action(stage, kind, k)

        for sign in plan(min(rank, stages - 1 - rank)):
            if sign == "w":
                if waiting:
                    yield waiting.pop(0)
            elif sign in "xy":
                there, back = (near, far) if sign == "x" else (far, near)
                yield Pair(one(there, "F"), one(back, "B"))
            else:
                yield one(
                    near if sign in "fbi" else far,
                    {"f": "F", "g": "F", "b": "B", "c": "B"}.get(sign, "I"),
                )

    return [list(row(rank)) for rank in range(stages)]


# %% right: half of the ranks, and their mirror images
from itertools import count

from course_lib.pipeline import Action, Pair


class Half:
    """The actions of a rank in the first half."""

    def __init__(self, rank, stages, half):
        self.own, self.other = rank, 2 * stages - 1 - rank
        self.numbers = {
            (stage, forward): count(first)
            for stage, first in ((self.own, 0), (self.other, half))
            for forward in (True, False)
        }
        self.actions, self.late = [], []

    def make(self, kind, stage):
        return Action(stage, kind, next(self.numbers[stage, kind == "F"]))

    def add(self, kind, stage):
        self.actions.append(self.make(kind, stage))

    def split(self, stage):
        self.add("I", stage)
        self.late.append(self.actions[-1]._replace(kind="W"))

    def weights(self, most=1):
        self.actions += self.late[:most]
        del self.late[:most]

    def both(self, there, back):
        self.actions.append(Pair(self.make("F", there), self.make("B", back)))


def first_half(rank, stages, half):
    row = Half(rank, stages, half)
    inner = stages // 2 - rank - 1
    own, other = row.own, row.other
    for k in range(2 * inner + rank + 1):
        row.add("F", own)
        if k >= 2 * inner:
            row.add("F", other)
    for _ in range(inner):
        row.split(other)
        row.weights()
        row.add("F", other)
    if inner == 0:
        row.add("F", own)
        row.add("B", other)
        row.both(other, own)
    for _ in range(half - stages + rank + (inner > 0)):
        row.both(own, other)
        row.both(other, own)
    for _ in range(inner):
        row.add("B", other)
        row.both(other, own)
    turns = [other, own] * (rank + 1)
    for stage in turns[: rank + 1]:
        row.add("B", stage)
    for stage in turns[rank + 1 :]:
        row.split(stage)
    for _ in range(inner):
        row.weights()
        row.split(own)
    row.weights(most=half)
    return row.actions


def dualpipe(stages, microbatches):
    half = microbatches // 2

    def mirrored(entry):
        if isinstance(entry, Pair):
            return Pair(*map(mirrored, entry))
        stage, kind, k = entry
        return Action((stage + stages) % (2 * stages), kind, (k + half) % microbatches)

    rows = [first_half(rank, stages, half) for rank in range(stages // 2)]
    return rows + [[mirrored(entry) for entry in row] for row in reversed(rows)]
