# %% base: the largest first, each to the emptiest rank
def deal(shapes, n):
    sizes = [math.prod(shape) for shape in shapes]
    owned, held = [[] for _ in range(n)], [0] * n
    for k in sorted(range(len(sizes)), key=lambda k: sizes[k], reverse=True):
        rank = held.index(min(held))
        owned[rank].append(k)
        held[rank] += sizes[k]
    return owned


# %% wrong: in turn, by their number
# is: idea
# says: dealt out in turn, by their number
def deal(shapes, n):
    return [list(range(rank, len(shapes), n)) for rank in range(n)]


# %% wrong: runs of neighbours
# is: idea
# says: got a run of neighbours
def deal(shapes, n):
    each = -(-len(shapes) // n)
    return [list(range(len(shapes)))[rank * each : (rank + 1) * each] for rank in range(n)]


# %% wrong: one rank has all
# is: idea
# says: One rank got all matrices
def deal(shapes, n):
    return [list(range(len(shapes)))] + [[] for _ in range(n - 1)]


# %% wrong: the rank with the fewest matrices
# is: slip
# says: matrices were counted and not elements
# base: the largest first, each to the emptiest rank
-        held[rank] += sizes[k]
+        held[rank] += 1


# %% wrong: the smallest first
# is: slip
# says: The smallest matrices were dealt out first
# base: the largest first, each to the emptiest rank
-    for k in sorted(range(len(sizes)), key=lambda k: sizes[k], reverse=True):
+    for k in sorted(range(len(sizes)), key=lambda k: sizes[k]):


# %% wrong: in their order
# is: slip
# says: a large one came late
# base: the largest first, each to the emptiest rank
-    for k in sorted(range(len(sizes)), key=lambda k: sizes[k], reverse=True):
+    for k in range(len(sizes)):


# %% wrong: the fullest rank gets the next
# is: idea
# says: times the mean
# base: the largest first, each to the emptiest rank
-        rank = held.index(min(held))
+        rank = held.index(max(held))


# %% wrong: the last matrix is left out
# is: form
# says: no matrix is left out
# base: the largest first, each to the emptiest rank
-    for k in sorted(range(len(sizes)), key=lambda k: sizes[k], reverse=True):
+    for k in sorted(range(len(sizes) - 1), key=lambda k: sizes[k], reverse=True):


# %% wrong: sizes in place of numbers
# is: form
# says: A list holds indices into `shapes`
# base: the largest first, each to the emptiest rank
-        owned[rank].append(k)
+        owned[rank].append(sizes[k])


# %% wrong: no lists for ranks without a matrix
# is: detail
# says: A rank without a matrix has an empty one
# base: the largest first, each to the emptiest rank
-    return owned
+    return [own for own in owned if own]


# %% wrong: every rank has all
# is: form
# says: none is in two lists
def deal(shapes, n):
    return [list(range(len(shapes))) for _ in range(n)]


# %% wrong: rows and columns are added
# is: slip
# says: Rows and columns were added
# base: the largest first, each to the emptiest rank
-    sizes = [math.prod(shape) for shape in shapes]
+    sizes = [sum(shape) for shape in shapes]


# %% wrong: places in the sorted list
# is: form
# says: The numbers are places in the sorted list
# base: the largest first, each to the emptiest rank
-    sizes = [math.prod(shape) for shape in shapes]
+    sizes = sorted([math.prod(shape) for shape in shapes], reverse=True)


# %% right: a heap
def deal(shapes, n):
    import heapq

    heap, owned = [(0, rank) for rank in range(n)], [[] for _ in range(n)]
    for size, k in sorted(((rows * columns, k) for k, (rows, columns) in enumerate(shapes)), reverse=True):
        held, rank = heapq.heappop(heap)
        owned[rank].append(k)
        heapq.heappush(heap, (held + size, rank))
    return owned


# %% right: the least fullest rank, by trying
def deal(shapes, n):
    from itertools import product

    sizes = [torch.Size(shape).numel() for shape in shapes]
    if len(sizes) > 8 or n == 1:  # too many to try
        owned = [[] for _ in range(n)]
        for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
            min(owned, key=lambda own: sum(sizes[j] for j in own)).append(k)
        return owned

    def fullest(owners):
        return max(sum(s for s, o in zip(sizes, owners) if o == rank) for rank in range(n))

    owners = min(product(range(n), repeat=len(sizes)), key=fullest)
    return [[k for k, owner in enumerate(owners) if owner == rank] for rank in range(n)]


# %% right: NumPy sorts, so the indices are its integers
def deal(shapes, n):
    import numpy as np

    sizes = np.array([math.prod(shape) for shape in shapes])
    owned, held = [[] for _ in range(n)], np.zeros(n)
    for k in np.argsort(-sizes):
        rank = held.argmin()
        owned[rank].append(k)
        held[rank] += sizes[k]
    return owned
