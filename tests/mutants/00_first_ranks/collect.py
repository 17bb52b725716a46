# %% base: what the wrong ones change
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        dist.send(torch.tensor([len(results)]), 0)
        if len(results):
            dist.send(results, 0)
        return None
    parts = [results]
    for src in range(1, n):
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, src)
        part = torch.empty(int(count), dtype=results.dtype)
        if len(part):
            dist.recv(part, src)
        parts.append(part)
    return torch.cat(parts)


# %% wrong: as it was, as many as rank 0 has
# is: idea
# says: expects more than the others have sent
# base: the count first, then one by one
-        dist.send(torch.tensor([len(results)], device=results.device), 0)
@@
-        count = torch.zeros(1, dtype=torch.int64, device=results.device)
-        dist.recv(count, src)
-        part = torch.empty(int(count), dtype=results.dtype, device=results.device)
+        part = torch.empty_like(results)


# %% wrong: the shortest length of all
# is: idea
# says: the count must come from the rank that sends
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    shortest = torch.tensor(len(results))
    dist.all_reduce(shortest, op=dist.ReduceOp.MIN)
    if rank != 0:
        if shortest > 0:
            dist.send(results[: int(shortest)].contiguous(), 0)
        return None
    parts = [results]
    for src in range(1, n):
        part = torch.empty(int(shortest))
        if shortest > 0:
            dist.recv(part, src)
        parts.append(part)
    return torch.cat(parts)


# %% wrong: padded to the longest and not cut
# is: slip
# says: a buffer was longer than its message
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    longest = torch.tensor(len(results))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = torch.zeros(int(longest))
    padded[: len(results)] = results
    if rank != 0:
        dist.send(padded, 0)
        return None
    parts = [padded]
    for src in range(1, n):
        part = torch.empty(int(longest))
        dist.recv(part, src)
        parts.append(part)
    return torch.cat(parts)


# %% wrong: in the order in which they arrive
# is: slip
# says: not in the order of the ranks|missing
# base: what the wrong ones change
-    for src in range(1, n):
+    for src in reversed(range(1, n)):


# %% wrong: rank 0's own left out
# is: slip
# says: Rank 0's own results
# base: what the wrong ones change
-    parts = [results]
+    parts = []


# %% wrong: every rank returns something
# is: slip
# says: only rank 0 returns
# base: what the wrong ones change
-        return None
+        return results


# %% wrong: the count is received as a float
# is: form
# says: same size and dtype|ends of a message differ
# base: what the wrong ones change
-        count = torch.zeros(1, dtype=torch.int64)
+        count = torch.zeros(1)


# %% wrong: all results in one message, rank 0's length assumed
# is: idea
# says: receive that number first|expects more than
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        dist.send(results, 0)
        return None
    parts = [results]
    for src in range(1, n):
        part = torch.empty_like(results)
        dist.recv(part, src)
        parts.append(part)
    return torch.cat(parts)


# %% wrong: a list instead of one tensor
# is: form
# says: Join the parts with torch.cat|numbers? were computed|rank 0 returned
# base: what the wrong ones change
-    return torch.cat(parts)
+    return parts


# %% wrong: rank 0's own at the end
# is: slip
# says: own results come last
# base: what the wrong ones change
-    parts = [results]
+    parts = []
@@
-    return torch.cat(parts)
+    return torch.cat([*parts, results])


# %% wrong: a column
# is: form
# says: with one dimension is expected
# base: what the wrong ones change
-    return torch.cat(parts)
+    return torch.cat(parts)[:, None]


# %% wrong: the buffer has the default dtype
# is: detail
# says: but not the same dtype
# base: what the wrong ones change
-        part = torch.empty(int(count), dtype=results.dtype)
+        part = torch.empty(int(count))



# %% wrong: padded, and zeros are thrown away
# is: slip
# says: are missing|were computed
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    longest = torch.tensor(len(results))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = torch.zeros(int(longest), dtype=results.dtype)
    padded[: len(results)] = results
    parts = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(parts, padded)
    if rank == 0:
        everything = torch.cat(parts)
        return everything[everything != 0]


# %% wrong: the last rank is left out
# is: slip
# says: Rank 0 returned although messages for it were left
# base: what the wrong ones change
-    for src in range(1, n):
+    for src in range(1, n - 1):


# %% wrong: a rank without results sends nothing at all
# is: slip
# says: even if it is 0
# base: what the wrong ones change
-    if rank != 0:
+    if rank != 0 and len(results) == 0:
+        return None
+    if rank != 0:


# %% right: the count first, then one by one
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        dist.send(torch.tensor([len(results)], device=results.device), 0)
        for value in results:
            dist.send(value, 0)
        return None
    parts = [results]
    for src in range(1, n):
        count = torch.zeros(1, dtype=torch.int64, device=results.device)
        dist.recv(count, src)
        part = torch.empty(int(count), dtype=results.dtype, device=results.device)
        for i in range(len(part)):
            dist.recv(part[i], src)
        parts.append(part)
    return torch.cat(parts)


# %% right: counts gathered, padded, cut
def collect(results):
    rank, n = dist.get_rank(), dist.get_world_size()
    counts = [torch.zeros((), dtype=torch.int64, device=device()) for _ in range(n)]
    dist.all_gather(counts, torch.tensor(len(results), device=device()))
    longest = max(int(count) for count in counts)
    padded = torch.zeros(longest, device=device())
    padded[: len(results)] = results
    parts = [torch.empty(longest, device=device()) for _ in range(n)]
    dist.all_gather(parts, padded)
    if rank == 0:
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts)])
