# %% wrong: all blocked time is moving
# is: idea
# says: the time before the last rank's call is waiting
# base: a sum over the calls
-        waiting += inside(waited, min(last, done))
-        moving += inside(max(waited, last), done)
+        moving += inside(waited, done)


# %% wrong: the last rank is this one
# is: idea
# says: the time before the last rank's call is waiting
# base: a sum over the calls
-        last = max(of_rank[k][0] for of_rank in calls)
+        last = calls[rank][k][0]
@@
-        travels.append((last, done))
+        travels.append((max(of_rank[k][0] for of_rank in calls), done))


# %% wrong: all blocked time is waiting
# is: idea
# says: bytes move after the last rank's call
# base: a sum over the calls
-        waiting += inside(waited, min(last, done))
-        moving += inside(max(waited, last), done)
+        waiting += inside(waited, done)


# %% wrong: from the first rank's call
# is: slip
# says: is counted from the first rank's call
# base: a sum over the calls
-        waiting += inside(waited, min(last, done))
+        waiting += inside(min(of_rank[k][0] for of_rank in calls), min(last, done))


# %% wrong: from the call and not from the wait
# is: slip
# says: Time is counted from `issued`
# base: a sum over the calls
-    for k, (_, waited, done) in enumerate(calls[rank]):
+    for k, (waited, _, done) in enumerate(calls[rank]):


# %% wrong: hidden time is moving
# is: slip
# says: Hidden time is counted as moving
# base: a sum over the calls
-        moving += inside(max(waited, last), done)
+        moving += inside(last, done)


# %% wrong: hidden is subtracted from computing
# is: slip
# says: `hidden` is part of `computing`, because
# base: a sum over the calls
-    computing = end - start - waiting - moving
+    computing = end - start - waiting - moving - hidden


# %% wrong: one last call for the whole run
# is: slip
# says: each collective has its own last rank
# base: a sum over the calls
-        waiting += inside(waited, min(last, done))
-        moving += inside(max(waited, last), done)
+        all_last = max(issued for of_rank in calls for issued, _, _ in of_rank)
+        waiting += inside(waited, min(all_last, done))
+        moving += inside(max(waited, all_last), done)


# %% wrong: negative times
# is: slip
# says: has cost nothing, so its time is 0
# base: a sum over the calls
-        return max(0, min(over, end) - max(begin, start))
+        return min(over, end) - max(begin, start)


# %% wrong: the window is forgotten
# is: slip
# says: Cut every interval to the window first
# base: a sum over the calls
-        return max(0, min(over, end) - max(begin, start))
+        return max(0, over - begin)


# %% wrong: only calls inside the window
# is: slip
# says: counts with its part inside
# base: a sum over the calls
-    for k, (_, waited, done) in enumerate(calls[rank]):
+    for k, (issued, waited, done) in enumerate(calls[rank]):
+        if issued < start or max(waited, done) > end:
+            continue


# %% wrong: hidden of each call, added
# is: slip
# says: are counted twice
# base: a sum over the calls
-    hidden = covered(travels + blocked) - covered(blocked)
+    hidden = sum(covered([each, *blocked]) - covered(blocked) for each in travels)


# %% wrong: hidden by the formula for one call
# is: slip
# says: and so is time for which the rank is blocked
# base: a sum over the calls
-    hidden = covered(travels + blocked) - covered(blocked)
+    hidden = sum(inside(last, min(over, done)) for (last, done), (over, _) in zip(travels, blocked))


# %% wrong: hidden from its own call
# is: slip
# says: nothing is hidden before that
# base: a sum over the calls
-        travels.append((last, done))
+        travels.append((calls[rank][k][0], done))


# %% wrong: hidden is all that moves
# is: slip
# says: only what moves while the rank computes is hidden
# base: a sum over the calls
-    hidden = covered(travels + blocked) - covered(blocked)
+    hidden = covered(travels)


# %% wrong: shares
# is: slip
# says: Return seconds
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    seconds = {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    return {name: value / (end - start) for name, value in seconds.items()}


# %% wrong: always rank 0
# is: slip
# says: `rank` says whose time
# base: a sum over the calls
-    for k, (_, waited, done) in enumerate(calls[rank]):
+    for k, (_, waited, done) in enumerate(calls[0]):


# %% wrong: hidden is left out
# is: slip
# says: a dict without 'hidden'
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    return {"computing": computing, "waiting": waiting, "moving": moving}


# %% wrong: a tuple
# is: form
# says: gives 4 values, but a dict is expected
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    return computing, waiting, moving, hidden


# %% wrong: nothing is returned
# is: form
# says: gives None, but a dict is expected \(is there a `return` at its end
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}


# %% right: a sum over the calls
def breakdown(calls, rank, start, end):
    def inside(begin, over):
        return max(0, min(over, end) - max(begin, start))

    def covered(intervals):
        seconds, reached = 0, start
        for begin, over in sorted(intervals):
            seconds += max(0, min(over, end) - max(begin, reached))
            reached = max(reached, over)
        return seconds

    waiting = moving = 0
    travels, blocked = [], []
    for k, (_, waited, done) in enumerate(calls[rank]):
        last = max(of_rank[k][0] for of_rank in calls)
        waiting += inside(waited, min(last, done))
        moving += inside(max(waited, last), done)
        travels.append((last, done))
        blocked.append((waited, done))
    hidden = covered(travels + blocked) - covered(blocked)
    computing = end - start - waiting - moving
    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}


# %% right: a sweep over all moments at which something changes
def breakdown(calls, rank, start, end):
    lasts = [max(times) for times in zip(*([call[0] for call in of_rank] for of_rank in calls))]
    own = [(last, waited, done) for last, (_, waited, done) in zip(lasts, calls[rank])]
    moments = sorted({start, end, *(t for each in own for t in each if start < t < end)})
    seconds = dict.fromkeys(("computing", "waiting", "moving", "hidden"), 0.0)
    for begin, over in zip(moments, moments[1:]):
        middle = (begin + over) / 2
        blocked = [last for last, waited, done in own if waited < middle < done]
        if blocked:
            seconds["waiting" if middle < blocked[0] else "moving"] += over - begin
            continue
        seconds["computing"] += over - begin
        if any(last < middle < done for last, _, done in own):
            seconds["hidden"] += over - begin
    return seconds


# %% right: with tensors
def breakdown(calls, rank, start, end):
    table = torch.tensor(calls, dtype=torch.float64).reshape(len(calls), -1, 3)
    last = table[:, :, 0].max(0).values
    waited, done = table[rank, :, 1], table[rank, :, 2]

    def length(begin, over):
        return (over.clamp(max=end) - begin.clamp(min=start)).clamp(min=0).sum()

    def apart(intervals):
        free = [(start, end)]
        for begin, over in intervals:
            free = [
                piece
                for low, high in free
                for piece in ((low, min(high, begin)), (max(low, over), high))
                if piece[0] < piece[1]
            ]
        return sum(high - low for low, high in free)

    blocked = list(zip(waited.tolist(), torch.maximum(waited, done).tolist()))
    moving_then = [(low, high) for low, high in zip(last.tolist(), done.tolist()) if low < high]
    waiting = length(waited, torch.minimum(last, done))
    moving = length(torch.maximum(waited, last), done)
    return {
        "hidden": apart(blocked) - apart(blocked + moving_then),
        "moving": moving,
        "waiting": waiting,
        "computing": (end - start) - waiting - moving,
    }


# %% wrong: waiting and moving exchanged
# is: slip
# says: are exchanged
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    return {"computing": computing, "waiting": moving, "moving": waiting, "hidden": hidden}


# %% wrong: the last call alone counts
# is: slip
# says: Only the last collective counts
# base: a sum over the calls
-        waiting += inside(waited, min(last, done))
-        moving += inside(max(waited, last), done)
+        waiting = inside(waited, min(last, done))
+        moving = inside(max(waited, last), done)


# %% wrong: the last call by its wait
# is: slip
# says: is taken from `waited`
# base: a sum over the calls
-        last = max(of_rank[k][0] for of_rank in calls)
+        last = max(of_rank[k][1] for of_rank in calls)


# %% wrong: returned in the loop
# is: form
# says: inside the loop
# base: a sum over the calls
-        travels.append((last, done))
-        blocked.append((waited, done))
-    hidden = covered(travels + blocked) - covered(blocked)
-    computing = end - start - waiting - moving
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+        travels.append((last, done))
+        blocked.append((waited, done))
+        hidden = covered(travels + blocked) - covered(blocked)
+        computing = end - start - waiting - moving
+        return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}


# %% wrong: milliseconds
# is: slip
# says: in milliseconds
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    parts = {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    return {name: 1000 * seconds for name, seconds in parts.items()}


# %% wrong: hidden is always 0
# is: slip
# says: Nothing is hidden in your result
# base: a sum over the calls
-    hidden = covered(travels + blocked) - covered(blocked)
+    hidden = 0.0


# %% wrong: start is forgotten
# is: slip
# says: make up the window
# base: a sum over the calls
-    computing = end - start - waiting - moving
+    computing = end - waiting - moving


# %% wrong: no calls are an error
# is: detail
# says: empty sequence
# base: a sum over the calls
-    waiting = moving = 0
+    first = min(call[0] for of_rank in calls for call in of_rank)
+    waiting = moving = 0


# %% right: numbers of NumPy
# base: a sum over the calls
-    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    import numpy
+
+    parts = {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}
+    return {name: numpy.float64(value) for name, value in parts.items()}
