# %% wrong: an empty schedule
# is: form
# says: the schedule is empty
def one_f_one_b(stages, microbatches):
    return [list() for _ in range(stages)]


# %% wrong: GPipe sold as 1F1B
# is: idea
# says: This is GPipe's order, and GPipe's memory, since rank 0 does 8 forwards before its first backward
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    return [
        [Action(rank, kind, k) for kind in "FB" for k in range(microbatches)]
        for rank in range(stages)
    ]


# %% wrong: one microbatch at a time
# is: idea
# says: This is the naive schedule
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        row = []
        for k in range(microbatches):
            row += [Action(rank, "F", k), Action(rank, "B", k)]
        rows.append(row)
    return rows


# %% wrong: the warm-up is one too short
# is: slip
# says: Rank 0 does 3 forwards before its first backward, but the pipeline stays full with 4
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        warm = min(microbatches - 1, max(0, stages - 2 - rank))
        row = [Action(rank, "F", k) for k in range(warm)]
        for k in range(microbatches - warm):
            row += [Action(rank, "F", warm + k), Action(rank, "B", k)]
        row += [Action(rank, "B", k) for k in range(microbatches - warm, microbatches)]
        rows.append(row)
    return rows


# %% wrong: the first rank's warm-up is two too short
# is: form
# says: Rank 0 does 2 forwards before its first backward, but rank 1 does 3. So rank 1 needs 3 from rank 0 first
# base: as many in flight as there are stages to come
-        ahead = stages - rank
+        ahead = stages - rank if rank else max(1, stages - 2)


# %% wrong: the warm-up is one too long
# is: slip
# says: Rank 0 does 5 forwards before its first backward, but 4 are enough
# base: as many in flight as there are stages to come
-        ahead = stages - rank
+        ahead = stages - rank + 1


# %% wrong: the last stage waits for a second microbatch
# is: slip
# says: The last rank needs no warm-up, because it can go backward as soon as it went forward
# base: as many in flight as there are stages to come
-        ahead = stages - rank
+        ahead = max(2, stages - rank) if stages > 1 else 1


# %% wrong: the warm-up grows from the first rank to the last
# is: idea
# says: A stage must run further ahead than the stage after it
# base: as many in flight as there are stages to come
-        ahead = stages - rank
+        ahead = rank + 1


# %% wrong: every rank warms up as long as the first
# is: idea
# says: Rank 1 does 4 forwards before its first backward, but 3 are enough
# base: as many in flight as there are stages to come
-        ahead = stages - rank
+        ahead = stages


# %% wrong: two forwards and two backwards take turns
# is: slip
# says: does 0F. and 0F. in a row after its first backward
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        forwards = [Action(rank, "F", k) for k in range(microbatches)]
        backwards = [Action(rank, "B", k) for k in range(microbatches)]
        warm = min(stages - rank, microbatches)
        row, forwards = forwards[:warm], forwards[warm:]
        row.append(backwards.pop(0))
        while forwards:
            row, forwards = row + forwards[:2], forwards[2:]
            row, backwards = row + backwards[:2], backwards[2:]
        rows.append(row + backwards)
    return rows


# %% wrong: the warm-up does not come back
# is: form
# says: does 8 forwards, but only 5 backwards, so 3 are missing. Every microbatch comes back
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        warm = min(microbatches, stages - 1 - rank)
        row = [Action(rank, "F", k) for k in range(warm)]
        for k in range(warm, microbatches):
            row.extend((Action(rank, "F", k), Action(rank, "B", k - warm)))
        rows.append(row)
    return rows


# %% wrong: the warm-up comes back the other way round
# is: slip
# says: takes the microbatches backward in the order
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    schedule = {rank: [] for rank in range(stages)}
    for rank, row in schedule.items():
        lead = min(microbatches, stages - rank - 1)
        steady = microbatches - lead
        row.extend(Action(rank, "F", k) for k in range(lead))
        for k in range(steady):
            row.append(Action(rank, "F", lead + k))
            row.append(Action(rank, "B", k))
        row.extend(Action(rank, "B", microbatches - 1 - k) for k in range(lead))
    return list(schedule.values())


# %% wrong: in the steady state backward comes before its forward
# is: form
# says: it needs 3F0, which rank 3 does only later
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        warm = min(microbatches, stages - 1 - rank)
        queue = [("F", k) for k in range(warm)]
        for k in range(microbatches - warm):
            queue += [("B", k), ("F", k + warm)]
        queue += [("B", k) for k in range(microbatches - warm, microbatches)]
        rows.append([Action(rank, *one) for one in queue])
    return rows


# %% wrong: a warm-up longer than there are microbatches
# is: detail
# says: With fewer microbatches than stages a rank has no more than m forwards
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    out = []
    for s in range(stages):
        n_warm = stages - 1 - s
        actions = []
        for i in range(n_warm):
            actions.append(Action(s, "F", i))
        for i in range(microbatches - n_warm):
            actions.append(Action(s, "F", n_warm + i))
            actions.append(Action(s, "B", i))
        for i in range(max(0, microbatches - n_warm), microbatches):
            actions.append(Action(s, "B", i))
        out.append(actions)
    return out


# %% wrong: the warm-up's forwards are taken from a list that is too short
# is: form
# says: raised IndexError
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    result = []
    for r in range(stages):
        fs = [Action(r, "F", k) for k in range(microbatches)][::-1]
        bs = [one._replace(kind="B") for one in fs]
        mine = [fs.pop() for _ in range(stages - r)]
        while bs:
            mine.append(bs.pop())
            if fs:
                mine.append(fs.pop())
        result.append(mine)
    return result


# %% wrong: backwards are halves
# is: form
# says: here it is one action, B
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        lead = min(stages - rank, microbatches)
        row = [Action(rank, "F", k) for k in range(lead)]
        for k in range(microbatches):
            row += [Action(rank, "I", k), Action(rank, "W", k)]
            row += [Action(rank, "F", lead + k)] * (lead + k < microbatches)
        rows.append(row)
    return rows


# %% wrong: PyTorch's
# is: form
# says: Do not use PyTorch's schedules here, nor get_schedule_ops
from course_lib.pipeline import from_text


def one_f_one_b(stages, microbatches):
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    theirs = get_schedule_ops("1F1B", stages, microbatches)
    return from_text("\n".join(",".join(map(str, row)) for row in theirs))


# %% right: as many in flight as there are stages to come
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    def row(rank):
        ahead = stages - rank
        f = b = 0
        while b < microbatches:
            if f < microbatches and f - b < ahead:
                yield Action(rank, "F", f)
                f += 1
            else:
                yield Action(rank, "B", b)
                b += 1

    return [list(row(rank)) for rank in range(stages)]


# %% right: each action has its place on a clock
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for i in range(stages):
        ticks = {}
        for k in range(microbatches):
            early = k < stages - i
            ticks[(i + k) if early else (2 * k + i)] = Action(i, "F", k)
            ticks[2 * stages - 1 - i + 2 * k] = Action(i, "B", k)
        rows.append([ticks[tick] for tick in sorted(ticks)])
    return rows


# %% right: sorted by what may come before what
from course_lib.pipeline import Action


def one_f_one_b(stages, microbatches):
    rows = []
    for rank in range(stages):
        warm_up = stages - rank - 1
        key = {Action(rank, "F", k): (max(0, k - warm_up), 0, k) for k in range(microbatches)}
        key |= {Action(rank, "B", k): (k, 1, k) for k in range(microbatches)}
        rows.append(sorted(key, key=lambda action: key[action]))
    return rows
