# %% wrong: an empty schedule
# is: form
# says: the schedule is empty
def gpipe(stages, microbatches):
    return []


# %% wrong: one microbatch at a time
# is: idea
# says: This is the naive schedule
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    return [[Action(s, f, k) for k in range(microbatches) for f in "FB"] for s in range(stages)]


# %% wrong: 1F1B sold as GPipe
# is: idea
# says: This is 1F1B, which comes later
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = []
    for rank in range(stages):
        todo = [Action(rank, "F", k) for k in range(microbatches)]
        back = [Action(rank, "B", k) for k in range(microbatches)]
        row = [todo.pop(0) for _ in range(min(microbatches, stages - rank))]
        while back:
            row.append(back.pop(0))
            row += [todo.pop(0)] if todo else []
        rows.append(row)
    return rows


# %% wrong: forwards only
# is: form
# says: never does .B0
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    return [[Action(s, "F", k) for k in range(microbatches)] for s in range(stages)]


# %% wrong: the backward of the last microbatch is forgotten
# is: form
# says: does \d+ forwards, but only \d+ backwards?.* 1 is missing
# base: the last microbatch comes back first
-        forwards = [Action(stage, "F", k) for k in range(microbatches)]
-        rows.append(forwards + [Action(stage, "B", one.microbatch) for one in reversed(forwards)])
+        down = [Action(stage, "F", k) for k in range(microbatches)]
+        up = [Action(stage, "B", k) for k in range(microbatches - 1)]
+        rows.append(down + up)


# %% wrong: a microbatch too many
# is: form
# says: there is no microbatch 8, only 0 to 7
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    each = [k for k in range(microbatches + 1)]
    return [
        [Action(s, "F", k) for k in each] + [Action(s, "B", k) for k in each] for s in range(stages)
    ]


# %% wrong: the last microbatch is lost
# is: form
# says: never does 0F7
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = []
    for stage in range(stages):
        row = []
        for kind in "FB":
            for k in range(1, max(2, microbatches)):
                row.append(Action(stage, kind, k - 1))
        rows.append(row)
    return rows


# %% wrong: the backward is cut in two
# is: form
# says: here it is one action, B
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    return [
        [Action(rank, part, k) for part in "FIW" for k in range(microbatches)]
        for rank in range(stages)
    ]


# %% wrong: backwards before forwards
# is: form
# says: it needs 0F0, which rank 0 does only later
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = [[] for _ in range(stages)]
    for kind in sorted("FB"):
        for stage in range(stages):
            rows[stage].extend(Action(stage, kind, k) for k in range(microbatches))
    return rows


# %% wrong: every second rank goes backward in reverse
# is: slip
# says: Stage 0 takes the microbatches backward in the order
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = []
    for rank in range(stages):
        order = list(range(microbatches))
        row = [Action(rank, "F", k) for k in order]
        if rank % 2:
            order.reverse()
        rows.append(row + [Action(rank, "B", k) for k in order])
    return rows


# %% wrong: every rank begins with a microbatch of its own
# is: slip
# says: takes the microbatches forward in the order
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = []
    for rank in range(stages):
        turned = [(rank + k) % microbatches for k in range(microbatches)]
        row = [Action(rank, "F", k) for k in turned]
        row.extend(Action(rank, "B", k) for k in range(microbatches))
        rows.append(row)
    return rows


# %% wrong: the whole model on every rank
# is: form
# says: but it holds stage 0
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    def everything(rank):
        own = range(rank, microbatches, stages)
        for stage in range(stages):
            yield from (Action(stage, "F", k) for k in own)
        for stage in range(stages - 1, -1, -1):
            yield from (Action(stage, "B", k) for k in own)

    return [list(everything(rank)) for rank in range(stages)]


# %% wrong: lists within a rank's list
# is: form
# says: Several actions are in a list or tuple within the rank's list
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = [[] for _ in range(stages)]
    for rank, row in enumerate(rows):
        for kind in "FB":
            row.append([Action(rank, kind, k) for k in range(microbatches)])
    return rows


# %% wrong: the stages from the end
# is: form
# says: rank 0 does 3F0 as its action 0, but it holds stage 0
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = []
    for rank in range(stages):
        row = []
        for action in range(2 * microbatches):
            kind = "F" if action < microbatches else "B"
            row.append(Action(stages - 1 - rank, kind, action % microbatches))
        rows.append(row)
    return rows


# %% wrong: PyTorch's
# is: form
# says: Do not use PyTorch's schedules here, nor get_schedule_ops
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    theirs = get_schedule_ops("GPipe", stages, microbatches)
    return [
        [
            Action(one.stage_index, str(one.computation_type)[:1], one.microbatch_index)
            for one in row
        ]
        for row in theirs
    ]


# %% right: the last microbatch comes back first
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    rows = []
    for stage in range(stages):
        forwards = [Action(stage, "F", k) for k in range(microbatches)]
        rows.append(forwards + [Action(stage, "B", one.microbatch) for one in reversed(forwards)])
    return rows


# %% right: stage by stage, as the clock runs
from course_lib.pipeline import Action


def gpipe(stages, microbatches):
    schedule = [[] for _ in range(stages)]
    ticks = range(stages + microbatches - 1)
    for tick in ticks:
        for rank in range(stages):
            if 0 <= tick - rank < microbatches:
                schedule[rank].append(Action(rank, "F", tick - rank))
    for tick in ticks:
        for rank in range(stages):
            k = tick - (stages - 1 - rank)
            if 0 <= k < microbatches:
                schedule[rank].append(Action(rank, "B", k))
    return schedule
