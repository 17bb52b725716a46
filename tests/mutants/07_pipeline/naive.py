# %% wrong: an empty schedule
# is: form
# says: the schedule is empty
def naive(stages, microbatches):
    return [[] for _ in range(stages)]


# %% wrong: no return
# is: form
# says: gives None; a list is expected
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = [
        [Action(r, kind, k) for k in range(microbatches) for kind in "FB"] for r in range(stages)
    ]


# %% wrong: GPipe, all microbatches go in at once
# is: idea
# says: This is GPipe
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = []
    for rank in range(stages):
        forwards = [Action(rank, "F", k) for k in range(microbatches)]
        rows.append(forwards + [one._replace(kind="B") for one in forwards])
    return rows


# %% wrong: the next microbatch enters before the one before is back
# is: idea
# says: goes into the first stage only after the previous one has come back
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = []
    for rank in range(stages):
        row, ahead = [], min(microbatches, stages - rank)
        row += [Action(rank, "F", k) for k in range(ahead)]
        for k in range(microbatches):
            row.append(Action(rank, "B", k))
            if ahead + k < microbatches:
                row.append(Action(rank, "F", ahead + k))
        rows.append(row)
    return rows


# %% wrong: stages counted from 1
# is: form
# says: Stages are counted from 0
from course_lib.pipeline import Action


def naive(stages, microbatches):
    return [
        [Action(stage, kind, k) for k in range(microbatches) for kind in ("F", "B")]
        for stage in range(1, stages + 1)
    ]


# %% wrong: microbatches counted from 1
# is: form
# says: Microbatches are counted from 0
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = [[] for _ in range(stages)]
    for k in range(1, microbatches + 1):
        for rank, row in enumerate(rows):
            row.extend([Action(rank, "F", k), Action(rank, "B", k)])
    return rows


# %% wrong: stage and microbatch have changed places
# is: form
# says: Have stage and microbatch changed places
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = []
    for rank in range(stages):
        rows.append([])
        for k in range(microbatches):
            rows[-1] += [Action(k, "F", rank), Action(k, "B", rank)]
    return rows


# %% wrong: backward before its forward
# is: form
# says: it needs 0F0, which rank 0 does only later
from course_lib.pipeline import Action


def naive(stages, microbatches):
    def row(stage):
        order = [("B", k) for k in range(microbatches)] + [("F", k) for k in range(microbatches)]
        return [Action(stage, kind, k) for kind, k in sorted(order, key=lambda one: one[1])]

    return list(map(row, range(stages)))


# %% wrong: forwards only
# is: form
# says: never does .B0
from course_lib.pipeline import Action


def naive(stages, microbatches):
    return [[Action(i, "F", j) for j in range(microbatches)] for i in range(stages)]


# %% wrong: the whole model on every rank
# is: form
# says: but it holds stage 0
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = []
    for rank in range(stages):
        row = []
        for k in range(rank, microbatches, stages):
            row += [Action(s, "F", k) for s in range(stages)]
            row += [Action(s, "B", k) for s in reversed(range(stages))]
        rows.append(row)
    return rows


# %% wrong: the ranks in reverse
# is: form
# says: rank 0 does 3F0 as its action 0, but it holds stage 0
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = {}
    for rank in range(stages):
        stage = stages - rank - 1
        rows[rank] = [Action(stage, "FB"[half], k) for k in range(microbatches) for half in (0, 1)]
    return list(rows.values())


# %% wrong: one list for all ranks
# is: form
# says: the entry of rank 0 is a value of type Action, not a list of actions
from course_lib.pipeline import Action


def naive(stages, microbatches):
    everything = []
    for k in range(microbatches):
        everything += [Action(stage, "F", k) for stage in range(stages)]
        everything += [Action(stage, "B", k) for stage in range(stages - 1, -1, -1)]
    return everything


# %% wrong: one list under the name of every rank
# is: form
# says: All ranks have the same list. Give each rank a list of its own
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = [[]] * stages
    for rank in range(stages):
        for k in range(microbatches):
            rows[rank] += [Action(rank, "F", k), Action(rank, "B", k)]
    return rows


# %% wrong: a list for every microbatch
# is: form
# says: gives \d+ lists; \d+ lists? (is|are) expected, one for each rank
from course_lib.pipeline import Action


def naive(stages, microbatches):
    made = []
    for k in range(2 * microbatches):
        made.append([Action(s, "FB"[k % 2], k // 2) for s in range(stages)])
    return made


# %% wrong: tuples for actions
# is: form
# says: Write Action\(stage, kind, microbatch\)
def naive(stages, microbatches):
    return [[(r, kind, k) for k in range(microbatches) for kind in "FB"] for r in range(stages)]


# %% wrong: words for kinds
# is: form
# says: its kind must be one of F, B, I, W
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = []
    for rank in range(stages):
        rows.append([])
        for k in range(microbatches):
            rows[rank].append(Action(rank, "forward", k))
            rows[rank].append(Action(rank, "backward", k))
    return rows


# %% wrong: works for four stages only
# is: form
# says: gives 4 lists; \d+ lists? (is|are) expected, one for each rank
from course_lib.pipeline import Action


def naive(stages, microbatches):
    each = range(microbatches)
    return [
        [action for k in each for action in (Action(0, "F", k), Action(0, "B", k))],
        [action for k in each for action in (Action(1, "F", k), Action(1, "B", k))],
        [action for k in each for action in (Action(2, "F", k), Action(2, "B", k))],
        [action for k in each for action in (Action(3, "F", k), Action(3, "B", k))],
    ]


# %% right: microbatch by microbatch, down and up
from course_lib.pipeline import Action


def naive(stages, microbatches):
    rows = [[] for _ in range(stages)]
    for microbatch in range(microbatches):
        for stage, row in enumerate(rows):
            row.append(Action(stage, "F", microbatch))
        for stage in reversed(range(stages)):
            rows[stage].append(Action(stage, "B", microbatch))
    return rows


# %% right: written as text, and the last microbatch first
from course_lib.pipeline import from_text


def naive(stages, microbatches):
    order = range(microbatches - 1, -1, -1)
    return from_text(
        "\n".join(",".join(f"{stage}F{k},{stage}B{k}" for k in order) for stage in range(stages))
    )
