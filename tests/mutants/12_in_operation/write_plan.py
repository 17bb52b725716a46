# %% base: the largest first
def write_plan(held):
    holders = {}
    for rank, pieces in enumerate(held):
        for index, (name, box, nbytes) in enumerate(pieces):
            holders.setdefault((name, tuple(box)), []).append((nbytes, rank, index))
    busy, plan = [0] * len(held), [[] for _ in held]
    for places in sorted(holders.values(), key=lambda places: -places[0][0]):
        nbytes, rank, index = min(places, key=lambda place: busy[place[1]])
        busy[rank] += nbytes
        plan[rank].append(index)
    return plan


# %% wrong: every rank writes all that it holds
# is: idea
# says: Every rank writes everything it holds
def write_plan(held):
    return [list(range(len(pieces))) for pieces in held]


# %% wrong: the first rank writes all
# is: idea
# says: One rank writes what all hold while the others wait
# base: the largest first
-        nbytes, rank, index = min(places, key=lambda place: busy[place[1]])
+        nbytes, rank, index = places[0]


# %% wrong: the last rank writes all
# is: idea
# says: One rank writes what all hold while the others wait
# base: the largest first
-        nbytes, rank, index = min(places, key=lambda place: busy[place[1]])
+        nbytes, rank, index = places[-1]


# %% wrong: in turn
# is: slip
# says: were dealt out by their number
def write_plan(held):
    holders = {}
    for rank, pieces in enumerate(held):
        for index, (name, box, nbytes) in enumerate(pieces):
            holders.setdefault((name, tuple(box)), []).append((rank, index))
    plan, turns = [[] for _ in held], {}
    for places in holders.values():
        group = tuple(rank for rank, _ in places)
        turn = turns[group] = turns.get(group, -1) + 1
        rank, index = places[turn % len(places)]
        plan[rank].append(index)
    return plan


# %% wrong: in the order in which they come
# is: slip
# says: a large piece comes last
# base: the largest first
-    for places in sorted(holders.values(), key=lambda places: -places[0][0]):
+    for places in holders.values():


# %% wrong: the smallest first
# is: slip
# says: a large piece comes last
# base: the largest first
-    for places in sorted(holders.values(), key=lambda places: -places[0][0]):
+    for places in sorted(holders.values(), key=lambda places: places[0][0]):


# %% wrong: names without boxes
# is: slip
# says: A name was taken for a piece
# base: the largest first
-            holders.setdefault((name, tuple(box)), []).append((nbytes, rank, index))
+            holders.setdefault(name, []).append((nbytes, rank, index))


# %% wrong: one list
# is: form
# says: Return a list for each rank
# base: the largest first
-    return plan
+    return [index for indices in plan for index in indices]


# %% right: the best of all, searched for
import itertools


def write_plan(held):
    keys = {}
    for rank, pieces in enumerate(held):
        for index, (name, box, nbytes) in enumerate(pieces):
            keys.setdefault((name, str(box)), (nbytes, []))[1].append((rank, index))
    best, chosen = None, ()
    for choice in itertools.product(*(places for _, places in keys.values())):
        busy = [0] * len(held)
        for (nbytes, _), (rank, _) in zip(keys.values(), choice):
            busy[rank] += nbytes
        if best is None or max(busy) < best:
            best, chosen = max(busy), choice
    return [[index for rank, index in chosen if rank == r] for r in range(len(held))]


# %% right: the largest first, by names
def write_plan(held):
    everything = {(n, tuple(b), size) for pieces in held for n, b, size in pieces}
    plan = [[] for _ in held]
    for name, box, size in sorted(everything, key=lambda piece: (-piece[2], piece)):
        ranks = [r for r, pieces in enumerate(held) if (name, list(box), size) in pieces]
        load = {r: sum(held[r][i][2] for i in plan[r]) for r in ranks}
        rank = min(ranks, key=lambda r: (load[r], -r))
        plan[rank].append(held[rank].index((name, list(box), size)))
    return plan


# %% wrong: every rank is taken to hold rank 0's list
# is: slip
# says: Every rank was taken to hold rank 0's list
def write_plan(held):
    busy, plan = [0] * len(held), [[] for _ in held]
    for index in sorted(range(len(held[0])), key=lambda index: -held[0][index][2]):
        rank = busy.index(min(busy))
        busy[rank] += held[0][index][2]
        plan[rank].append(index)
    return plan


# %% wrong: any rank
# is: slip
# says: give each piece to a rank that holds it
# base: the largest first
-        nbytes, rank, index = min(places, key=lambda place: busy[place[1]])
+        nbytes, _, index = places[0]
+        rank = busy.index(min(busy))


# %% wrong: boxes without names
# is: slip
# says: A box was taken for a piece
# base: the largest first
-            holders.setdefault((name, tuple(box)), []).append((nbytes, rank, index))
+            holders.setdefault(tuple(box), []).append((nbytes, rank, index))


# %% wrong: nothing is returned
# is: form
# says: Return a list for each rank
# base: the largest first
-    return plan


# %% wrong: the busiest holder
# is: idea
# says: One rank writes what all hold
# base: the largest first
-        nbytes, rank, index = min(places, key=lambda place: busy[place[1]])
+        nbytes, rank, index = max(places, key=lambda place: busy[place[1]])


# %% wrong: the fewest pieces in place of the fewest bytes
# is: slip
# says: were dealt out by their number
# base: the largest first
-        busy[rank] += nbytes
+        busy[rank] += 1
