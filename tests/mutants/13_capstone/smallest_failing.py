# %% base: what the wrong ones change
def smallest_failing(sizes, fails):
    alone = dict.fromkeys(sizes, 1)
    if fails(dict(alone)):
        return {}
    left = {axis: size for axis, size in sizes.items() if size > 1}
    if not fails({**alone, **left}):
        raise ValueError(f"{sizes} does not fail")
    smaller = True
    while smaller:
        smaller = False
        for axis in list(left):
            rest = {name: size for name, size in left.items() if name != axis}
            if rest and fails({**alone, **rest}):
                left, smaller = rest, True
    return left


# %% wrong: the axes that fail by themselves
# is: idea
# says: You asked only about single axes
def smallest_failing(sizes, fails):
    alone = dict.fromkeys(sizes, 1)
    if fails(alone):
        return {}
    if not fails(dict(sizes)):
        raise ValueError("sizes do not fail")
    return {
        axis: size for axis, size in sizes.items() if size > 1 and fails({**alone, axis: size})
    }


# %% wrong: all subsets, the smallest first
# is: idea
# says: There are 2.a layouts
from itertools import combinations


def smallest_failing(sizes, fails):
    if not fails(dict(sizes)):
        raise ValueError("sizes do not fail")
    alone = dict.fromkeys(sizes, 1)
    larger = [axis for axis in sizes if sizes[axis] > 1]
    for count in range(len(larger) + 1):
        for axes in combinations(larger, count):
            if fails({**alone, **{axis: sizes[axis] for axis in axes}}):
                return {axis: sizes[axis] for axis in axes}


# %% wrong: all subsets at once
# is: idea
# says: There are 2.a layouts
from itertools import product


def smallest_failing(sizes, fails):
    choices = [(1, size) if size > 1 else (1,) for size in sizes.values()]
    layouts = [dict(zip(sizes, choice)) for choice in product(*choices)]
    failing = [layout for layout in layouts if fails(layout)]
    if not failing:
        raise ValueError("sizes do not fail")
    least = min(failing, key=lambda layout: sum(size > 1 for size in layout.values()))
    return {axis: size for axis, size in least.items() if size > 1}


# %% wrong: one round
# is: slip
# says: once more after a success
# base: what the wrong ones change
-    while smaller:
-        smaller = False
-        for axis in list(left):
-            rest = {name: size for name, size in left.items() if name != axis}
-            if rest and fails({**alone, **rest}):
-                left, smaller = rest, True
+    for axis in list(left):
+        rest = {name: size for name, size in left.items() if name != axis}
+        if rest and fails({**alone, **rest}):
+            left = rest


# %% wrong: two rounds
# is: slip
# says: Go on until no axis|once more after a success
# base: what the wrong ones change
-    smaller = True
-    while smaller:
-        smaller = False
+    for _ in range(2):
@@
-                left, smaller = rest, True
+                left = rest


# %% wrong: the axes that the whole layout needs
# is: slip
# says: You left out several axes together
# base: what the wrong ones change
-    smaller = True
-    while smaller:
-        smaller = False
-        for axis in list(left):
-            rest = {name: size for name, size in left.items() if name != axis}
-            if rest and fails({**alone, **rest}):
-                left, smaller = rest, True
-    return left
+    return {axis: size for axis, size in left.items() if not fails({**sizes, axis: 1})}


# %% wrong: the axes that can be left out
# is: slip
# says: Return the other ones
# base: what the wrong ones change
-    return left
+    return {axis: size for axis, size in sizes.items() if size > 1 and axis not in left}


# %% wrong: one axis is left out, and no other one
# is: slip
# says: until no axis of the rest can be set to 1
# base: what the wrong ones change
-    smaller = True
-    while smaller:
-        smaller = False
-        for axis in list(left):
-            rest = {name: size for name, size in left.items() if name != axis}
-            if rest and fails({**alone, **rest}):
-                left, smaller = rest, True
+    for axis in list(left):
+        rest = {name: size for name, size in left.items() if name != axis}
+        if rest and fails({**alone, **rest}):
+            return rest


# %% wrong: halves of the axes
# is: slip
# says: until no axis of the rest can be set to 1
def smallest_failing(sizes, fails):
    alone = dict.fromkeys(sizes, 1)
    if fails(alone):
        return {}
    if not fails(dict(sizes)):
        raise ValueError("sizes do not fail")
    left = [axis for axis in sizes if sizes[axis] > 1]
    while len(left) > 1:
        middle = len(left) // 2
        for half in (left[:middle], left[middle:]):
            if fails({**alone, **{axis: sizes[axis] for axis in half}}):
                left = half
                break
        else:
            break
    return {axis: sizes[axis] for axis in left}


# %% wrong: an axis is left out for good, whatever the answer
# is: idea
# says: only if the layout still fails then
# base: what the wrong ones change
-            if rest and fails({**alone, **rest}):
-                left, smaller = rest, True
+            smaller |= bool(rest and fails({**alone, **rest}))
+            if smaller:
+                left = rest


# %% wrong: pairs, and nothing larger
# is: slip
# says: raised IndexError
from itertools import combinations


def smallest_failing(sizes, fails):
    alone = dict.fromkeys(sizes, 1)
    if fails(alone):
        return {}
    if not fails(dict(sizes)):
        raise ValueError("sizes do not fail")
    larger = [axis for axis in sizes if sizes[axis] > 1]
    sets = [*combinations(larger, 1), *combinations(larger, 2)]
    failing = [axes for axes in sets if fails({**alone, **{a: sizes[a] for a in axes}})]
    return {axis: sizes[axis] for axis in failing[0]}


# %% wrong: the argument is changed
# is: slip
# says: Work on a copy
def smallest_failing(sizes, fails):
    if fails(dict.fromkeys(sizes, 1)):
        return {}
    if not fails(sizes):
        raise ValueError("sizes do not fail")
    smaller = True
    while smaller:
        smaller = False
        for axis, size in list(sizes.items()):
            if size > 1:
                sizes[axis] = 1
                if fails(sizes):
                    smaller = True
                else:
                    sizes[axis] = size
    return {axis: size for axis, size in sizes.items() if size > 1}


# %% wrong: one rank is not asked about
# is: slip
# says: If even one rank fails
# base: what the wrong ones change
-    if fails(dict(alone)):
-        return {}


# %% wrong: the layout itself is not asked about
# is: slip
# says: Ask about .sizes. itself first
# base: what the wrong ones change
-    if not fails({**alone, **left}):
-        raise ValueError(f"{sizes} does not fail")


# %% wrong: axes of size 1 are named
# is: slip
# says: Leave axes of size 1 out
# base: what the wrong ones change
-    return left
+    return {axis: left.get(axis, 1) for axis in sizes}


# %% wrong: only the axes that are left are asked about
# is: slip
# says: with the size 1 for axes you leave out
# base: what the wrong ones change
-            if rest and fails({**alone, **rest}):
+            if rest and fails(rest):


# %% wrong: another order
# is: detail
# says: in the order of .sizes.
# base: what the wrong ones change
-    return left
+    return dict(reversed(left.items()))


# %% wrong: the rest has the size 2
# is: detail
# says: keeps the size it has
# base: what the wrong ones change
-    return left
+    return dict.fromkeys(left, 5)


# %% wrong: a layout is asked about again and again
# is: slip
# says: remember the answers
# base: what the wrong ones change
-            if rest and fails({**alone, **rest}):
-                left, smaller = rest, True
+            if rest and all([fails({**alone, **rest}) for _ in range(5)]):
+                left, smaller = rest, True


# %% wrong: the names alone
# is: form
# says: Return a dict of axes
# base: what the wrong ones change
-    return left
+    return list(left)


# %% wrong: no return
# is: form
# says: is there a .return.
# base: what the wrong ones change
-    return left
+    print(left)


# %% wrong: a loop without an end
# is: form
# says: had no end
# base: what the wrong ones change
-                left, smaller = rest, True
+                smaller = True


# %% wrong: the layout as it is
# is: form
# says: until no axis of the rest can be set to 1
def smallest_failing(sizes, fails):
    return dict(sizes)


# %% right: from the last axis on, and from the start after each success
def smallest_failing(sizes, fails):
    def failing(axes):
        return fails({axis: size if axis in axes else 1 for axis, size in sizes.items()})

    def least(axes):
        for axis in reversed(axes):
            fewer = [other for other in axes if other != axis]
            if fewer and failing(fewer):
                return least(fewer)
        return axes

    larger = [axis for axis, size in sizes.items() if size > 1]
    if failing([]):
        return {}
    if not failing(larger):
        raise ValueError("nothing to look for")
    return {axis: sizes[axis] for axis in least(larger)}


# %% right: ddmin
def smallest_failing(sizes, fails):
    known = {}

    def failing(axes):
        key = frozenset(axes)
        if key not in known:
            known[key] = fails({axis: sizes[axis] if axis in key else 1 for axis in sizes})
        return known[key]

    axes = [axis for axis in sizes if sizes[axis] > 1]
    if failing([]):
        return {}
    if not failing(axes):
        raise ValueError("nothing to look for")
    n = 2
    while len(axes) > 1:
        cuts = [round(len(axes) * k / n) for k in range(n + 1)]
        parts = [axes[start:stop] for start, stop in zip(cuts, cuts[1:])]
        rests = [[axis for axis in axes if axis not in part] for part in parts]
        if part := next((part for part in parts if failing(part)), None):
            axes, n = part, 2
        elif rest := next((rest for rest in rests if failing(rest)), None):
            axes, n = rest, max(n - 1, 2)
        elif n < len(axes):
            n = min(2 * n, len(axes))
        else:
            break
    return {axis: sizes[axis] for axis in axes}


# %% right: one rank is the last step
def smallest_failing(sizes, fails):
    left = dict(sizes)
    if not fails(dict(left)):
        raise ValueError("nothing to look for")
    axis = next((a for a in left if left[a] > 1 and fails({**left, a: 1})), None)
    while axis is not None:
        left[axis] = 1
        axis = next((a for a in left if left[a] > 1 and fails({**left, a: 1})), None)
    if fails(dict.fromkeys(sizes, 1)):
        return {}
    return {a: size for a, size in left.items() if size > 1}


# %% right: the layout is also an argument of the call
def smallest_failing(sizes, fails):
    if fails(dict.fromkeys(sizes, 1)):
        return {}
    layout = dict(sizes)
    if not fails(layout):
        raise ValueError(sizes)
    again = True
    while again:
        again = False
        for axis in layout:
            before = layout[axis]
            if before == 1:
                continue
            layout[axis] = 1
            if any(size > 1 for size in layout.values()) and fails(layout):
                again = True
            else:
                layout[axis] = before
    return {axis: size for axis, size in layout.items() if size > 1}


# %% wrong: axes of size 1 are set to 1 again
# is: form
# says: asks about the same layouts again and again
def smallest_failing(sizes, fails):
    left = dict(sizes)
    if not fails(dict(left)):
        raise ValueError("sizes do not fail")
    again = True
    while again:
        again = False
        for axis in sizes:
            smaller = {**left, axis: 1}
            if fails(smaller):
                left, again = smaller, True
    return {axis: size for axis, size in left.items() if size > 1}


# %% wrong: assert in place of ValueError
# is: form
# says: so raise ValueError
def smallest_failing(sizes, fails):
    assert fails(dict(sizes))
    left, again = dict(sizes), True
    while again:
        again = False
        for axis in sizes:
            if left[axis] > 1 and fails({**left, axis: 1}):
                left, again = {**left, axis: 1}, True
    return {axis: size for axis, size in left.items() if size > 1}
