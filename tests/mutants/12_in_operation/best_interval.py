# %% base: Young's root
def best_interval(save_seconds, mtbf):
    return math.sqrt(2 * save_seconds * mtbf)


# %% wrong: no root
# is: idea
# says: The root is missing
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return 2 * save_seconds * mtbf


# %% wrong: one save for each failure
# is: idea
# says: A failure costs half an interval on average, so
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return mtbf


# %% wrong: half of the time between failures
# is: idea
# says: does not depend on the seconds of a save
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return mtbf / 2


# %% wrong: a constant
# is: idea
# says: what it loses to failures
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return 1800.0


# %% wrong: the share that is lost
# is: idea
# says: The answer is the share of the time lost
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(2 * save_seconds / mtbf)


# %% wrong: a whole interval is lost
# is: slip
# says: half an interval on average, not a whole
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(save_seconds * mtbf)


# %% wrong: the 2 on the wrong side
# is: slip
# says: The half was put on the wrong side
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(save_seconds * mtbf / 2)


# %% wrong: with the save in it
# is: slip
# says: The answer includes the time of a save
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(2 * save_seconds * mtbf) + save_seconds


# %% wrong: in minutes
# is: slip
# says: The answer is in minutes
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(2 * save_seconds * mtbf) / 60


# %% right: Daly's series
def best_interval(save_seconds, mtbf):
    ratio = save_seconds / (2 * mtbf)
    return math.sqrt(2 * save_seconds * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


# %% right: the least loss, searched for
def best_interval(save_seconds, mtbf):
    low, high = 0.0, math.log(mtbf)
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if loss(math.exp(a), save_seconds, mtbf) < loss(math.exp(b), save_seconds, mtbf):
            high = b
        else:
            low = a
    return math.exp(low)


def loss(interval, save_seconds, mtbf):
    return save_seconds / interval + interval / (2 * mtbf)


# %% wrong: printed
# is: form
# says: is there a `return`
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    print(math.sqrt(2 * save_seconds * mtbf))


# %% wrong: mtbf taken for hours
# is: slip
# says: as if mtbf were in hours
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(2 * save_seconds * mtbf * 3600)


# %% wrong: divided under the root
# is: slip
# says: Multiply them
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return math.sqrt(2 * mtbf / save_seconds)


# %% wrong: ten saves for a failure
# is: idea
# says: what it loses to failures
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return mtbf / 10


# %% right: a tensor of one number
# base: Young's root
-    return math.sqrt(2 * save_seconds * mtbf)
+    return torch.tensor(2 * save_seconds * mtbf, dtype=torch.float64).sqrt()
