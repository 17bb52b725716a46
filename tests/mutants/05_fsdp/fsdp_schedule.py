# %% base: what the wrong ones change
def fsdp_schedule(units, forward_prefetch=1, backward_prefetch=1, reshard=True, keep_last=True):
    actions, whole = [], set()

    def gather(wanted):
        for unit in wanted:
            if 0 <= unit < units and unit not in whole:
                whole.add(unit)
                actions.append(("gather", unit))

    for unit in range(units):
        gather(range(unit, unit + forward_prefetch + 1))
        actions.append(("forward", unit))
        if reshard and not (keep_last and unit == units - 1):
            actions.append(("free", unit))
            whole.discard(unit)
    for unit in reversed(range(units)):
        gather(range(unit, unit - backward_prefetch - 1, -1))
        actions.append(("backward", unit))
        actions.append(("free", unit))
        actions.append(("reduce", unit))
        whole.discard(unit)
    return actions


# %% wrong: each unit is gathered at its own use
# is: idea
# says: The wire idles while unit \d+ does its forward
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
+        gather([unit])
@@
-        gather(range(unit, unit - backward_prefetch - 1, -1))
+        gather([unit])


# %% wrong: nothing is gathered ahead in backward
# is: idea
# says: The gather of unit \d+ waits behind the reduce of unit \d+
# base: what the wrong ones change
-        gather(range(unit, unit - backward_prefetch - 1, -1))
+        gather([unit])


# %% wrong: gathered behind the computation, still before the reduce
# is: idea
# says: gather unit \d+ before that, not after it
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
-        actions.append(("forward", unit))
+        gather([unit])
+        actions.append(("forward", unit))
+        gather(range(unit + 1, unit + forward_prefetch + 1))


# %% wrong: all units are gathered first
# is: idea
# says: All units are whole at the same time, as on a replica
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
+        gather(range(unit, units))


# %% wrong: a unit is freed before its forward
# is: form
# says: ^Free a unit only after it has computed
# base: what the wrong ones change
-        actions.append(("forward", unit))
-        if reshard and not (keep_last and unit == units - 1):
-            actions.append(("free", unit))
-            whole.discard(unit)
+        if reshard and not (keep_last and unit == units - 1):
+            actions.append(("free", unit))
+            whole.discard(unit)
+        actions.append(("forward", unit))


# %% wrong: the last unit is freed and gathered again
# is: detail
# says: is gathered twice in a row. Backward begins with it
# base: what the wrong ones change
-        if reshard and not (keep_last and unit == units - 1):
+        if reshard:


# %% wrong: gathered behind the backward, before the reduce
# is: idea
# says: The wire idles while unit \d+ does its backward
# base: what the wrong ones change
-        gather(range(unit, unit - backward_prefetch - 1, -1))
-        actions.append(("backward", unit))
-        actions.append(("free", unit))
-        actions.append(("reduce", unit))
-        whole.discard(unit)
+        gather([unit])
+        actions.append(("backward", unit))
+        actions.append(("free", unit))
+        whole.discard(unit)
+        gather(range(unit - 1, unit - backward_prefetch - 1, -1))
+        actions.append(("reduce", unit))


# %% wrong: backward prefetches in the order of forward
# is: idea
# says: Backward comes from above
# base: what the wrong ones change
-        gather(range(unit, unit - backward_prefetch - 1, -1))
+        gather(range(unit, unit + backward_prefetch + 1))


# %% wrong: not gathered again for backward
# is: form
# says: must be gathered again for its backward
# base: what the wrong ones change
-        gather(range(unit, unit - backward_prefetch - 1, -1))


# %% wrong: the reduce of unit 0 is forgotten
# is: slip
# says: unit 0 is never reduced
# base: what the wrong ones change
-        actions.append(("reduce", unit))
+        if unit:
+            actions.append(("reduce", unit))


# %% wrong: the farthest unit is gathered first in backward
# is: detail
# says: The gather of unit \d+ waits for that of unit \d+, though
# base: what the wrong ones change
-        gather(range(unit, unit - backward_prefetch - 1, -1))
+        gather(range(unit - backward_prefetch, unit + 1))


# %% wrong: one unit too many
# is: slip
# says: Gathers run too far ahead
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
+        gather(range(unit, unit + forward_prefetch + 2))


# %% wrong: the two prefetches are exchanged
# is: slip
# says: The two prefetches are exchanged
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
+        gather(range(unit, unit + backward_prefetch + 1))
@@
-        gather(range(unit, unit - backward_prefetch - 1, -1))
+        gather(range(unit, unit - forward_prefetch - 1, -1))


# %% wrong: a unit that is whole is gathered again
# is: slip
# says: is gathered while it is whole
# base: what the wrong ones change
-            if 0 <= unit < units and unit not in whole:
+            if 0 <= unit < units:


# %% wrong: freed behind the next gather
# is: slip
# says: so free before you gather
# base: what the wrong ones change
-        if reshard and not (keep_last and unit == units - 1):
-            actions.append(("free", unit))
-            whole.discard(unit)
+        gather([unit + 1 + forward_prefetch])
+        if reshard and not (keep_last and unit == units - 1):
+            actions.append(("free", unit))
+            whole.discard(unit)


# %% wrong: a generator
# is: form
# says: gives a generator; a list of actions is expected
# base: what the wrong ones change
-    return actions
+    yield from actions


# %% wrong: never freed after backward
# is: slip
# says: Unit 7 is still whole while unit 6 does its backward. Free it after its own backward
# base: what the wrong ones change
-        actions.append(("backward", unit))
-        actions.append(("free", unit))
+        actions.append(("backward", unit))


# %% wrong: units are never freed after forward
# is: idea
# says: Unit 0 is still whole while unit 1 does its forward. Free it after its own forward
# base: what the wrong ones change
-        if reshard and not (keep_last and unit == units - 1):
+        if False:


# %% wrong: `reshard` is ignored
# is: slip
# says: is gathered twice, although reshard is False
# base: what the wrong ones change
-        if reshard and not (keep_last and unit == units - 1):
+        if not (keep_last and unit == units - 1):


# %% wrong: never more than one unit ahead
# is: slip
# says: unit 2 has not been gathered, although forward_prefetch is 2
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
+        gather(range(unit, unit + min(1, forward_prefetch) + 1))


# %% wrong: backward prefetches as many units as forward
# is: slip
# says: Before unit i computes in backward, the last unit gathered is i - backward_prefetch
# base: what the wrong ones change
-        gather(range(unit, unit - backward_prefetch - 1, -1))
+        gather(range(unit, unit - forward_prefetch - 1, -1))


# %% wrong: backward runs from the first unit to the last
# is: form
# says: ^Backward runs from the last unit to the first, so loop over
# base: what the wrong ones change
-    for unit in reversed(range(units)):
+    for unit in range(units):


# %% wrong: backward ends before unit 0
# is: form
# says: ^Backward runs from the last unit down to unit 0, so loop over
# base: what the wrong ones change
-    for unit in reversed(range(units)):
+    for unit in range(units - 1, 0, -1):


# %% wrong: backward begins with a unit that does not exist
# is: form
# says: ^Backward runs from the last unit down to unit 0, so loop over
# base: what the wrong ones change
-    for unit in reversed(range(units)):
+    for unit in range(units, 0, -1):


# %% wrong: the return is inside the loop of backward
# is: form
# says: Is a `return` inside the loop
# base: what the wrong ones change
-        whole.discard(unit)
-    return actions
+        whole.discard(unit)
+        return actions


# %% wrong: freed in the list, but not in the set of whole units
# is: form
# says: free it with the `free` of the stub
# base: what the wrong ones change
-            actions.append(("free", unit))
-            whole.discard(unit)
+            actions.append(("free", unit))


# %% wrong: the range of units ahead ends before the last unit
# is: form
# says: gather the unit itself as well, including the first and the last
# base: what the wrong ones change
-        gather(range(unit, unit + forward_prefetch + 1))
+        gather(range(unit, min(unit + forward_prefetch + 1, units - 1)))


# %% wrong: `keep_last` is ignored, and the last unit always kept
# is: detail
# says: is not freed after its forward, though keep_last is False
# base: what the wrong ones change
-        if reshard and not (keep_last and unit == units - 1):
+        if reshard and unit < units - 1:


# %% wrong: without reshard all units stay whole to the end of backward
# is: slip
# says: is still whole while unit \d+ does its backward
# base: what the wrong ones change
-        actions.append(("free", unit))
-        actions.append(("reduce", unit))
-        whole.discard(unit)
-    return actions
+        if reshard:
+            actions.append(("free", unit))
+            whole.discard(unit)
+        actions.append(("reduce", unit))
+    return actions + [("free", unit) for unit in sorted(whole)]


# %% wrong: all gradients are reduced when backward is over
# is: idea
# says: Reduce unit \d+ before that, because its gradients are ready
# base: what the wrong ones change
-        actions.append(("reduce", unit))
-        whole.discard(unit)
-    return actions
+        whole.discard(unit)
+    return actions + [("reduce", unit) for unit in reversed(range(units))]


# %% wrong: units beyond the last one are gathered
# is: form
# says: Gather only those that there are, and skip numbers below 0
# base: what the wrong ones change
-            if 0 <= unit < units and unit not in whole:
+            if 0 <= unit and unit not in whole:


# %% wrong: names that there are not
# is: form
# says: there is no action 'all_gather'
# base: what the wrong ones change
-                actions.append(("gather", unit))
+                actions.append(("all_gather", unit))


# %% wrong: names alone
# is: form
# says: Write \(kind, unit\)
# base: what the wrong ones change
-        actions.append(("forward", unit))
+        actions.append("forward")


# %% wrong: no return
# is: form
# says: Is there a `return` at its end
# base: what the wrong ones change
-    return actions
+    pass


# %% right: from deadlines, built backwards
def fsdp_schedule(units, forward_prefetch=1, backward_prefetch=1, reshard=True, keep_last=True):
    computes = [("forward", i) for i in range(units)] + [("backward", i) for i in range(units)][::-1]
    before = {place: [] for place in range(len(computes))}  # gathers, by the computation that follows
    for place, (way, unit) in enumerate(computes):
        if way == "backward" and (not reshard or (keep_last and unit == units - 1)):
            continue  # it is still whole
        start = 0 if way == "forward" else units
        ahead = forward_prefetch if way == "forward" else backward_prefetch
        before[max(start, place - ahead)].append(unit)
    actions = []
    for place, (way, unit) in enumerate(computes):
        actions += [("gather", each) for each in before[place]] + [(way, unit)]
        if way == "backward":
            actions += [("free", unit), ("reduce", unit)]
        elif reshard and not (keep_last and unit == units - 1):
            actions.append(("free", unit))
    return actions


# %% right: a generator with a set of what is here, the reduce before the free
def fsdp_schedule(units, forward_prefetch=1, backward_prefetch=1, reshard=True, keep_last=True):
    here = set()

    def step():
        last = units - 1
        for i in range(units):
            for j in range(i, min(i + forward_prefetch, last) + 1):
                if j not in here:
                    here.add(j)
                    yield "gather", j
            yield "forward", i
            if reshard and (i < last or not keep_last):
                here.remove(i)
                yield "free", i
        for i in range(last, -1, -1):
            for j in range(i, max(i - backward_prefetch, 0) - 1, -1):
                if j not in here:
                    here.add(j)
                    yield "gather", j
            yield "backward", i
            yield "reduce", i
            here.remove(i)
            yield "free", i

    return list(step())
