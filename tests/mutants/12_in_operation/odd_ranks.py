# %% base: the sum of the bits
def odd_ranks(parameters, group=None):
    mine = torch.zeros((), dtype=torch.int64, device=device())
    for parameter in parameters:
        mine += parameter.detach().view(torch.int32).sum()
    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sums, mine, group=group)
    values = [int(value) for value in sums]
    common = max(values, key=values.count)
    if 2 * values.count(common) <= len(values):
        return list(range(len(values)))
    return [rank for rank, value in enumerate(values) if value != common]


# %% wrong: a sum of floats
# is: idea
# says: A sum of floats rounds this bit away
# base: the sum of the bits
-    mine = torch.zeros((), dtype=torch.int64, device=device())
+    mine = torch.zeros((), device=device())
@@
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().sum()
@@
-    values = [int(value) for value in sums]
+    values = [value.item() for value in sums]


# %% wrong: a sum of floats in float64
# is: idea
# says: A sum of floats rounds this bit away
# base: the sum of the bits
-    mine = torch.zeros((), dtype=torch.int64, device=device())
+    mine = torch.zeros((), dtype=torch.float64, device=device())
@@
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().double().sum()
@@
-    values = [int(value) for value in sums]
+    values = [value.item() for value in sums]


# %% wrong: the norm, with a tolerance
# is: idea
# says: A sum of floats rounds this bit away
def odd_ranks(parameters, group=None):
    mine = sum(p.detach().double().square().sum() for p in parameters).sqrt()
    norms = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(norms, mine, group=group)
    norms = torch.stack(norms)
    middle = norms.median()
    return [rank for rank, norm in enumerate(norms) if not torch.isclose(norm, middle)]


# %% wrong: whole numbers of the floats
# is: idea
# says: p.long.. cuts it off
# base: the sum of the bits
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().nan_to_num(0).long().sum()


# %% wrong: bits, added as floats
# is: idea
# says: A sum of floats rounds this bit away
# base: the sum of the bits
-    mine = torch.zeros((), dtype=torch.int64, device=device())
+    mine = torch.zeros((), device=device())
@@
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().view(torch.int32).float().sum()


# %% wrong: the parameters travel
# is: idea
# says: one number travels instead of the parameters
def odd_ranks(parameters, group=None):
    flat = torch.cat([p.detach().flatten() for p in parameters]).view(torch.int32)
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, flat, group=group)
    equal = [sum(torch.equal(one, other) for other in everyone) for one in everyone]
    common = max(equal)
    if 2 * common <= len(everyone):
        return list(range(len(everyone)))
    return [rank for rank, count in enumerate(equal) if count < common]


# %% wrong: the parameters travel, as floats
# is: idea
# says: one number travels instead of the parameters
def odd_ranks(parameters, group=None):
    flat = torch.cat([p.detach().flatten() for p in parameters])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, flat, group=group)
    equal = [sum(torch.equal(one, other) for other in everyone) for one in everyone]
    common = max(equal)
    if 2 * common <= len(everyone):
        return list(range(len(everyone)))
    return [rank for rank, count in enumerate(equal) if count < common]


# %% wrong: the majority is named
# is: idea
# says: The named ranks are the majority
# base: the sum of the bits
-    return [rank for rank, value in enumerate(values) if value != common]
+    return [rank for rank, value in enumerate(values) if value == common]


# %% wrong: rank 0 is right
# is: idea
# says: The named ranks are the majority
# base: the sum of the bits
-    common = max(values, key=values.count)
-    if 2 * values.count(common) <= len(values):
-        return list(range(len(values)))
-    return [rank for rank, value in enumerate(values) if value != common]
+    return [rank for rank, value in enumerate(values) if value != values[0]]


# %% wrong: the first parameter alone
# is: idea
# says: Does the checksum depend on every element
# base: the sum of the bits
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().view(torch.int32).sum()
+        break


# %% wrong: each rank tells of itself
# is: slip
# says: all ranks return the same list
# base: the sum of the bits
-    return [rank for rank, value in enumerate(values) if value != common]
+    return [] if int(mine) == common else [dist.get_rank(group)]


# %% wrong: the most frequent value, however few
# is: slip
# says: Neither value has more than half of the ranks
# base: the sum of the bits
-    if 2 * values.count(common) <= len(values):
-        return list(range(len(values)))


# %% wrong: half of the ranks are enough
# is: slip
# says: Neither value has more than half of the ranks
# base: the sum of the bits
-    if 2 * values.count(common) <= len(values):
+    if 2 * values.count(common) < len(values):


# %% wrong: nobody, if there is no majority
# is: slip
# says: Neither value has more than half of the ranks
# base: the sum of the bits
-        return list(range(len(values)))
+        return []


# %% wrong: a nan is another value
# is: detail
# says: a nan is not equal to itself, but its bits are
# base: the sum of the bits
-    values = [int(value) for value in sums]
+    values = [int(value) for value in sums]
+    if any(bool(p.isnan().any()) for p in parameters):
+        return list(range(len(values)))


# %% wrong: both zeros are one
# is: detail
# says: The floats 0.0 and -0.0 are equal, but their bits differ
# base: the sum of the bits
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += (parameter.detach() + 0.0).view(torch.int32).sum()


# %% wrong: the sign's bit is cut off
# is: detail
# says: So compare integers, with all of their bits
# base: the sum of the bits
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().view(torch.int32).bitwise_and(0x7FFFFFFF).sum()


# %% wrong: ranks of the world
# is: slip
# says: The ranks you name are counted in the world
# base: the sum of the bits
-    return [rank for rank, value in enumerate(values) if value != common]
+    ranks = dist.get_process_group_ranks(group)
+    return [rank for rank, value in zip(ranks, values) if value != common]


# %% wrong: the group is forgotten
# is: slip
# says: not in the group .1, 2, 3.
# base: the sum of the bits
-    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
-    dist.all_gather(sums, mine, group=group)
+    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
+    dist.all_gather(sums, mine)


# %% wrong: a checksum of each parameter
# is: slip
# says: Add up the checksums of all parameters
def odd_ranks(parameters, group=None):
    mine = torch.stack([p.detach().view(torch.int32).sum() for p in parameters])
    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sums, mine, group=group)
    values = [tuple(value.tolist()) for value in sums]
    common = max(values, key=values.count)
    if 2 * values.count(common) <= len(values):
        return list(range(len(values)))
    return [rank for rank, value in enumerate(values) if value != common]


# %% wrong: objects are gathered
# is: slip
# says: Put the numbers into a tensor
def odd_ranks(parameters, group=None):
    mine = sum(int(p.detach().view(torch.int32).sum()) for p in parameters)
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, mine, group=group)
    common = max(values, key=values.count)
    if 2 * values.count(common) <= len(values):
        return list(range(len(values)))
    return [rank for rank, value in enumerate(values) if value != common]


# %% wrong: bits are made of the parameters themselves
# is: detail
# says: the run continues with these parameters
# base: the sum of the bits
-        mine += parameter.detach().view(torch.int32).sum()
+        bits = parameter.detach().view(torch.int32)
+        bits &= 0x7FFFFFFF - (1 << 31)
+        bits *= 31
+        mine += bits.sum()


# %% wrong: int64 for four bytes
# is: form
# says: view it as torch.int32
# base: the sum of the bits
-        mine += parameter.detach().view(torch.int32).sum()
+        mine += parameter.detach().view(torch.int64).sum()


# %% wrong: whether all agree
# is: form
# says: Return a list of integers
# base: the sum of the bits
-    return [rank for rank, value in enumerate(values) if value != common]
+    return all(value == common for value in values)


# %% right: crc32 of the bytes
import zlib


def odd_ranks(parameters, group=None):
    crc = 0
    for p in parameters:
        crc = zlib.crc32(p.detach().cpu().numpy().tobytes(), crc)
    mine = torch.tensor([crc], device=device())
    sums = mine.new_empty(dist.get_world_size(group))
    dist.all_gather_into_tensor(sums, mine, group=group)
    for value in sums.tolist():
        agree = sums == value
        if 2 * agree.sum() > len(sums):
            return (~agree).nonzero().flatten().tolist()
    return list(range(len(sums)))


# %% right: eight bytes of a digest
import hashlib
from collections import Counter


def odd_ranks(parameters, group=None):
    digest = hashlib.sha256()
    for p in parameters:
        digest.update(p.detach().cpu().numpy().tobytes())
    mine = torch.tensor(
        int.from_bytes(digest.digest()[:8], "big", signed=True), device=device()
    )
    sums = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sums, mine, group=group)
    values = [value.item() for value in sums]
    common, count = Counter(values).most_common(1)[0]
    return [r for r, value in enumerate(values) if count * 2 <= len(values) or value != common]


# %% wrong: the odd checksums
# is: form
# says: Return ranks instead of their checksums
# base: the sum of the bits
-    return [rank for rank, value in enumerate(values) if value != common]
+    return [value for rank, value in enumerate(values) if value != common]


# %% wrong: no majority is an error
# is: slip
# says: no majority
# base: the sum of the bits
-        return list(range(len(values)))
+        raise ValueError("no majority")
