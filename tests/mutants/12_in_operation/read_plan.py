# %% base: intervals
import math


def read_plan(saved, wanted):
    pieces, filled = [], 0
    for file, box in saved:
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted)]
        if all(start < stop for start, stop in both):
            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
            pieces.append((file, here, there))
            filled += math.prod(stop - start for start, stop in both)
    if filled != math.prod(stop - start for start, stop in wanted):
        raise ValueError("some elements are in no file")
    return pieces


# %% wrong: whole boxes are read
# is: idea
# says: Whole saved boxes are read
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
+            here = [(0, stop - start) for start, stop in box]


# %% wrong: every box is read
# is: idea
# says: Whole saved boxes are read
def read_plan(saved, wanted):
    pieces = []
    for file, box in saved:
        here = [(0, stop - start) for start, stop in box]
        there = [(a - s, b - s) for (a, b), (s, _) in zip(box, wanted)]
        pieces.append((file, here, there))
    return pieces


# %% wrong: the first box that meets
# is: idea
# says: Only one saved box is read
# base: intervals
-            filled += math.prod(stop - start for start, stop in both)
-    if filled != math.prod(stop - start for start, stop in wanted):
-        raise ValueError("some elements are in no file")
-    return pieces
+            return pieces
+    return pieces


# %% wrong: the last dimension alone
# is: idea
# says: Only the last dimension was compared
def read_plan(saved, wanted):
    pieces = []
    for file, box in saved:
        if not box:
            return [(file, [], [])]
        both = list(box)
        both[-1] = max(box[-1][0], wanted[-1][0]), min(box[-1][1], wanted[-1][1])
        if both[-1][0] < both[-1][1]:
            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
            pieces.append((file, here, there))
    return pieces


# %% wrong: the wanted place is counted in the whole tensor
# is: slip
# says: The place in the wanted box is counted in the whole tensor
# base: intervals
-            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
+            there = both


# %% wrong: the saved place is counted in the whole tensor
# is: slip
# says: The place in the saved box is counted in the whole tensor
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
+            here = both


# %% wrong: both places are counted in the whole tensor
# is: slip
# says: Both places are counted in the whole tensor
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
-            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
+            here = there = both


# %% wrong: the places are exchanged
# is: slip
# says: The two places are exchanged
# base: intervals
-            pieces.append((file, here, there))
+            pieces.append((file, there, here))


# %% wrong: the number of the entry
# is: slip
# says: numbers of the list's entries
# base: intervals
-    for file, box in saved:
+    for file, (_, box) in enumerate(saved):


# %% wrong: start and length
# is: slip
# says: The pairs are .start, length
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
-            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
+            here = [(start - s, stop - start) for (start, stop), (s, _) in zip(both, box)]
+            there = [(start - s, stop - start) for (start, stop), (s, _) in zip(both, wanted)]


# %% wrong: boxes that touch
# is: detail
# says: Some pieces have no elements
# base: intervals
-        if all(start < stop for start, stop in both):
+        if all(start <= stop for start, stop in both):


# %% wrong: a hole is passed over
# is: slip
# says: no error said so
# base: intervals
-    if filled != math.prod(stop - start for start, stop in wanted):
-        raise ValueError("some elements are in no file")


# %% wrong: a scalar is passed over
# is: detail
# says: A scalar has no dimension but one element
# base: intervals
-    pieces, filled = [], 0
+    if not wanted:
+        return []
+    pieces, filled = [], 0


# %% wrong: nothing wanted is an error
# is: detail
# says: A wanted box without elements needs no piece
# base: intervals
-    if filled != math.prod(stop - start for start, stop in wanted):
+    if not pieces or filled != math.prod(stop - start for start, stop in wanted):


# %% wrong: slices
# is: form
# says: slices where pairs
# base: intervals
-            pieces.append((file, here, there))
+            pieces.append((file, [slice(*pair) for pair in here], [slice(*pair) for pair in there]))


# %% right: by index sets
def read_plan(saved, wanted):
    pieces, found = [], 0
    for file, box in reversed(saved):
        shared = [sorted(set(range(*a)) & set(range(*b))) for a, b in zip(box, wanted)]
        if not all(shared):
            continue
        ends = [(axis[0], axis[-1] + 1) for axis in shared]
        pieces.append(
            (
                file,
                [[a - s, b - s] for (a, b), (s, _) in zip(ends, box)],
                [[a - s, b - s] for (a, b), (s, _) in zip(ends, wanted)],
            )
        )
        count = 1
        for axis in shared:
            count *= len(axis)
        found += count
    needed = 1
    for start, stop in wanted:
        needed *= stop - start
    if found < needed:
        raise ValueError(f"{needed - found} elements are missing")
    return pieces


# %% right: row by row
def read_plan(saved, wanted):
    pieces = []

    def fill(file, box, want, here, there, outer, inner):
        if not box:
            pieces.append((file, tuple(here), tuple(there)))
            return 1
        (a, b), (c, d) = box[0], want[0]
        low, high = max(a, c), min(b, d)
        if low >= high:
            return 0
        return (high - low) * fill(
            file, box[1:], want[1:], [*here, (low - a, high - a)], [*there, (low - c, high - c)], outer, inner
        )

    found = sum(fill(file, list(box), list(wanted), [], [], None, None) for file, box in saved)
    size = 1
    for start, stop in wanted:
        size *= stop - start
    if found != size:
        raise ValueError("a hole")
    return pieces


# %% wrong: nothing is returned
# is: form
# says: Does it end in a `return`
# base: intervals
-    return pieces


# %% wrong: returns in the loop's first round
# is: form
# says: so nothing is missing
# base: intervals
-    if filled != math.prod(stop - start for start, stop in wanted):
-        raise ValueError("some elements are in no file")
-    return pieces
+        if filled != math.prod(stop - start for start, stop in wanted):
+            raise ValueError("some elements are in no file")
+        return pieces


# %% wrong: a hole is an assertion
# is: detail
# says: Raise a ValueError instead
# base: intervals
-    if filled != math.prod(stop - start for start, stop in wanted):
-        raise ValueError("some elements are in no file")
+    assert filled == math.prod(stop - start for start, stop in wanted)


# %% wrong: the wanted place is counted from the saved box
# is: slip
# says: counted from the saved box's start
# base: intervals
-            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
+            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]


# %% wrong: the saved place is counted from the wanted box
# is: slip
# says: counted from the wanted box's start
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
+            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]


# %% wrong: only boxes that lie inside
# is: idea
# says: so nothing is missing
# base: intervals
-        if all(start < stop for start, stop in both):
+        if all(a >= c and b <= d for (a, b), (c, d) in zip(box, wanted)):


# %% wrong: the last box that meets
# is: idea
# says: Only one saved box is read
# base: intervals
-            pieces.append((file, here, there))
+            pieces = [(file, here, there)]
@@
-    if filled != math.prod(stop - start for start, stop in wanted):
-        raise ValueError("some elements are in no file")


# %% wrong: the stop is the last index
# is: slip
# says: The stops are one too small
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
-            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
+            here = [(start - s, stop - s - 1) for (start, stop), (s, _) in zip(both, box)]
+            there = [(start - s, stop - s - 1) for (start, stop), (s, _) in zip(both, wanted)]


# %% wrong: the stops are one too large
# is: slip
# says: The stops are one too large
# base: intervals
-            here = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, box)]
-            there = [(start - s, stop - s) for (start, stop), (s, _) in zip(both, wanted)]
+            here = [(start - s, stop - s + 1) for (start, stop), (s, _) in zip(both, box)]
+            there = [(start - s, stop - s + 1) for (start, stop), (s, _) in zip(both, wanted)]


# %% wrong: the shared part ends one too late
# is: slip
# says: The stops are one too large
# base: intervals
-        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted)]
+        both = [(max(a, c), min(b, d) + 1) for (a, b), (c, d) in zip(box, wanted)]
@@
-    if filled != math.prod(stop - start for start, stop in wanted):
+    if filled < math.prod(stop - start for start, stop in wanted):


# %% wrong: boxes of two dimensions alone
# is: slip
# says: not enough values to unpack
def read_plan(saved, wanted):
    pieces, filled = [], 0
    for file, ((a, b), (c, d)) in saved:
        (e, f), (g, h) = wanted
        rows, columns = (max(a, e), min(b, f)), (max(c, g), min(d, h))
        if rows[0] < rows[1] and columns[0] < columns[1]:
            pieces.append(
                (
                    file,
                    [(rows[0] - a, rows[1] - a), (columns[0] - c, columns[1] - c)],
                    [(rows[0] - e, rows[1] - e), (columns[0] - g, columns[1] - g)],
                )
            )
            filled += (rows[1] - rows[0]) * (columns[1] - columns[0])
    if filled != (f - e) * (h - g):
        raise ValueError
    return pieces


# %% wrong: every piece twice
# is: idea
# says: Every piece comes twice
# base: intervals
-            pieces.append((file, here, there))
+            pieces.append((file, here, there))
+            pieces.append((file, here, there))


# %% wrong: lengths are added for the product
# is: slip
# says: so nothing is missing
# base: intervals
-            filled += math.prod(stop - start for start, stop in both)
-    if filled != math.prod(stop - start for start, stop in wanted):
+            filled += sum(stop - start for start, stop in both)
+    if filled != sum(stop - start for start, stop in wanted):


# %% right: element by element
import itertools


def read_plan(saved, wanted):
    pieces = []
    for file, box in saved:
        for place in itertools.product(*(range(a, b) for a, b in box)):
            if all(c <= i < d for i, (c, d) in zip(place, wanted)):
                here = [(i - a, i - a + 1) for i, (a, _) in zip(place, box)]
                there = [(i - c, i - c + 1) for i, (c, _) in zip(place, wanted)]
                pieces.append((file, here, there))
    if len(pieces) != torch.Size([b - a for a, b in wanted]).numel():
        raise ValueError
    return pieces
