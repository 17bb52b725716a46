# %% base: what the wrong ones change
def coordinates(rank, sizes):
    places = {}
    for axis in reversed(list(sizes)):
        rank, places[axis] = divmod(rank, sizes[axis])
    return {axis: places[axis] for axis in sizes}


def axis_ranks(rank, sizes, axis):
    axes = (axis,) if isinstance(axis, str) else axis
    own, ranks = coordinates(rank, sizes), []
    for other in range(math.prod(sizes.values())):
        place = coordinates(other, sizes)
        if all(place[name] == own[name] for name in sizes if name not in axes):
            ranks.append(other)
    ranks.sort(key=lambda other: [coordinates(other, sizes)[name] for name in axes])
    return ranks


# %% wrong: the first axis varies fastest
# is: idea
# says: yours differs in the first
# base: what the wrong ones change
-    for axis in reversed(list(sizes)):
+    for axis in sizes:


# %% wrong: strides from the wrong end
# is: idea
# says: strides are taken from the wrong end
# base: what the wrong ones change
-    places = {}
-    for axis in reversed(list(sizes)):
-        rank, places[axis] = divmod(rank, sizes[axis])
-    return {axis: places[axis] for axis in sizes}
+    names, lengths = list(sizes), list(sizes.values())
+    steps = [math.prod(lengths[: len(names) - 1 - i]) for i in range(len(names))]
+    return {name: rank // step % sizes[name] for name, step in zip(names, steps)}


# %% wrong: bits of the rank
# is: slip
# says: right for powers of two only
# base: what the wrong ones change
-        rank, places[axis] = divmod(rank, sizes[axis])
+        places[axis] = rank & (sizes[axis] - 1)
+        rank >>= (sizes[axis] - 1).bit_length()


# %% wrong: inner axes never begin anew
# is: idea
# says: coordinate on an inner axis is a remainder
# base: what the wrong ones change
-    places = {}
-    for axis in reversed(list(sizes)):
-        rank, places[axis] = divmod(rank, sizes[axis])
-    return {axis: places[axis] for axis in sizes}
+    places, step = {}, math.prod(sizes.values())
+    for axis in sizes:
+        step //= sizes[axis]
+        places[axis] = rank // step
+    return places


# %% wrong: the group begins with the rank that asks
# is: slip
# says: another order than along the axis
# base: what the wrong ones change
-    return ranks
+    start = ranks.index(rank)
+    return ranks[start:] + ranks[:start]


# %% wrong: the steps begin at the rank that asks
# is: slip
# says: go to coordinate 0 of the axis first
# base: what the wrong ones change
-    return ranks
+    return [rank + other - ranks[0] for other in ranks]


# %% wrong: the rank that asks comes first
# is: slip
# says: another order than along the axis
# base: what the wrong ones change
-    return ranks
+    return [rank] + [other for other in ranks if other != rank]


# %% wrong: a group without the rank itself
# is: slip
# says: a member of its own group
# base: what the wrong ones change
-    return ranks
+    return [other for other in ranks if other != rank]


# %% wrong: a flattened group by its second axis first
# is: detail
# says: the first axis of the tuple varies slowest
# base: what the wrong ones change
-    ranks.sort(key=lambda other: [coordinates(other, sizes)[name] for name in axes])
+    ranks.sort(key=lambda other: [coordinates(other, sizes)[name] for name in axes[::-1]])


# %% wrong: a flattened group in the order of the mesh
# is: detail
# says: even if it is further inside
# base: what the wrong ones change
-    ranks.sort(key=lambda other: [coordinates(other, sizes)[name] for name in axes])


# %% wrong: single groups joined
# is: slip
# says: every combination of their
# base: what the wrong ones change
-        if all(place[name] == own[name] for name in sizes if name not in axes):
+        if sum(place[name] != own[name] for name in axes) <= 1 and all(
+            place[name] == own[name] for name in sizes if name not in axes
+        ):


# %% wrong: the ranks at the same place
# is: slip
# says: the same coordinate on the axis
# base: what the wrong ones change
-        if all(place[name] == own[name] for name in sizes if name not in axes):
+        if all(place[name] == own[name] for name in axes):


# %% wrong: a tuple's first axis alone
# is: slip
# says: only the group of the tuple's first axis
# base: what the wrong ones change
-    axes = (axis,) if isinstance(axis, str) else axis
+    axes = (axis,) if isinstance(axis, str) else axis[:1]


# %% wrong: nothing is returned
# is: form
# says: Is there a `return` at its end
# base: what the wrong ones change
-    return ranks


# %% right: a table of all ranks
def coordinates(rank, sizes):
    table = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    place = (table == rank).nonzero()[0].tolist()
    return dict(zip(sizes, place))


def axis_ranks(rank, sizes, axis):
    axes = (axis,) if isinstance(axis, str) else axis
    table = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    own = coordinates(rank, sizes)
    index = tuple(slice(None) if name in axes else own[name] for name in sizes)
    inner_last = [name for name in sizes if name in axes]
    return table[index].permute([inner_last.index(name) for name in axes]).flatten().tolist()


# %% right: strides, and sums of steps
def coordinates(rank, sizes):
    step, places = math.prod(sizes.values()), {}
    for axis, size in sizes.items():
        step //= size
        places[axis] = rank // step % size
    return places


def axis_ranks(rank, sizes, axis):
    axes = [axis] if isinstance(axis, str) else list(axis)
    names = list(sizes)
    ranks = [rank]
    for name in axes:
        step = math.prod(sizes[inner] for inner in names[names.index(name) + 1 :])
        ranks = [r + (k - coordinates(r, sizes)[name]) * step for r in ranks for k in range(sizes[name])]
    return ranks


# %% right: every place of the mesh is tried
import itertools


def coordinates(rank, sizes):
    every = itertools.product(*(range(size) for size in sizes.values()))
    return dict(zip(sizes, next(itertools.islice(every, rank, None))))


def axis_ranks(rank, sizes, axis):
    axes = (axis,) if isinstance(axis, str) else axis
    own, group = coordinates(rank, sizes), []
    for other in range(math.prod(sizes.values())):
        place = coordinates(other, sizes)
        if all(place[name] == own[name] for name in sizes if name not in axes):
            group.append((tuple(place[name] for name in axes), other))
    return [other for _, other in sorted(group)]


# %% wrong: a stride with the axis's own size
# is: slip
# says: The stride contains the size of the axis itself
# base: what the wrong ones change
-    own, ranks = coordinates(rank, sizes), []
-    for other in range(math.prod(sizes.values())):
-        place = coordinates(other, sizes)
-        if all(place[name] == own[name] for name in sizes if name not in axes):
-            ranks.append(other)
-    ranks.sort(key=lambda other: [coordinates(other, sizes)[name] for name in axes])
-    return ranks
+    own, names = coordinates(rank, sizes), list(sizes)
+    stride = {name: math.prod(sizes[inner] for inner in names[k:]) for k, name in enumerate(names)}
+    ranks = [rank - sum(own[name] * stride[name] for name in axes)]
+    for name in axes:
+        ranks = [other + k * stride[name] for other in ranks for k in range(sizes[name])]
+    return ranks


# %% wrong: the rank is divided without rounding down
# is: form
# says: coordinates does not give a dict with a whole number
# base: what the wrong ones change
-        rank, places[axis] = divmod(rank, sizes[axis])
+        places[axis] = rank % sizes[axis]
+        rank = rank / sizes[axis]


# %% wrong: sizes is emptied
# is: form
# says: or a call changed `sizes`
# base: what the wrong ones change
-    for axis in reversed(list(sizes)):
-        rank, places[axis] = divmod(rank, sizes[axis])
-    return {axis: places[axis] for axis in sizes}
+    while sizes:
+        axis, size = sizes.popitem()
+        rank, places[axis] = divmod(rank, size)
+    return places
