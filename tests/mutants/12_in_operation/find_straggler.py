# %% wrong: always names one
# is: idea
# says: Some rank is named in every run
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return rank, late(rank)


# %% wrong: the largest mean lateness
# is: idea
# says: The rank with the largest mean lateness is named
# base: counts and the binomial tail
-    rank = max(range(n), key=lambda r: (last[r], late(r)))
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    rank = max(range(n), key=lambda r: sum(times[r] - others(times, r) for times in arrivals))
+    return rank, late(rank)


# %% wrong: the latest on average
# is: idea
# says: a single long pause raises a mean
# base: counts and the binomial tail
-    rank = max(range(n), key=lambda r: (last[r], late(r)))
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    rank = max(range(n), key=lambda r: sum(times[r] for times in arrivals))
+    return rank, late(rank)


# %% wrong: a limit of a millisecond
# is: idea
# says: A limit in seconds decides
# base: counts and the binomial tail
-    rank = max(range(n), key=lambda r: (last[r], late(r)))
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    rank = max(range(n), key=late)
+    return (rank, late(rank)) if late(rank) > 0.001 else None


# %% wrong: more than half of the collectives
# is: idea
# says: A rank is named if it is last in more than half
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if last[rank] > len(arrivals) / 2 else None


# %% wrong: confidence as a share
# is: idea
# says: is used as a share of the collectives
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if last[rank] >= confidence * len(arrivals) else None


# %% wrong: the rank that waits most
# is: idea
# says: It waits longest, because it is the fastest
# base: counts and the binomial tail
-    last = [sum(times[r] == max(times) for times in arrivals) for r in range(n)]
+    last = [sum(times[r] == min(times) for times in arrivals) for r in range(n)]


# %% wrong: the rank that waits most, always
# is: idea
# says: It waits longest, because it is the fastest
# base: counts and the binomial tail
-    last = [sum(times[r] == max(times) for times in arrivals) for r in range(n)]
-    rank = max(range(n), key=lambda r: (last[r], late(r)))
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    last = [sum(times[r] == min(times) for times in arrivals) for r in range(n)]
+    rank = max(range(n), key=lambda r: last[r])
+    return rank, late(rank)


# %% wrong: without the factor n
# is: slip
# says: The probability lacks the factor n
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if by_chance <= 1 - confidence else None


# %% wrong: a chance of one half
# is: slip
# says: a chance of 1 in n, not 1 in 2
# base: counts and the binomial tail
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    by_chance = tail(len(arrivals), last[rank], 1 / 2)
+    return (rank, late(rank)) if by_chance <= 1 - confidence else None


# %% wrong: the confidence is ignored
# is: slip
# says: `confidence` is ignored
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if n * by_chance <= 0.01 else None


# %% wrong: of several that are last the first alone
# is: slip
# says: each of them counts as last
# base: counts and the binomial tail
-    last = [sum(times[r] == max(times) for times in arrivals) for r in range(n)]
+    lasts = [times.index(max(times)) for times in arrivals]
+    last = [lasts.count(r) for r in range(n)]


# %% wrong: against the first
# is: slip
# says: against the first rank
# base: counts and the binomial tail
-        return max(time for other, time in enumerate(times) if other != r)
+        return min(times)


# %% wrong: against the mean of the others
# is: slip
# says: against the mean of the other ranks
# base: counts and the binomial tail
-        return max(time for other, time in enumerate(times) if other != r)
+        return (sum(times) - times[r]) / (n - 1)


# %% wrong: the mean lateness
# is: slip
# says: The seconds are a mean
# base: counts and the binomial tail
-        return statistics.median(times[r] - others(times, r) for times in arrivals)
+        return statistics.mean(times[r] - others(times, r) for times in arrivals)


# %% wrong: only where it is last
# is: slip
# says: over the collectives in which the rank is last
# base: counts and the binomial tail
-        return statistics.median(times[r] - others(times, r) for times in arrivals)
+        lates = [times[r] - others(times, r) for times in arrivals if times[r] == max(times)]
+        return statistics.median(lates or [0])


# %% wrong: milliseconds
# is: slip
# says: in milliseconds
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, 1000 * late(rank)) if n * by_chance <= 1 - confidence else None


# %% wrong: never names one
# is: form
# says: Count how often each rank is last
def find_straggler(arrivals, confidence=0.99):
    return None


# %% wrong: the rank alone
# is: form
# says: returns neither a pair
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return rank if n * by_chance <= 1 - confidence else None


# %% wrong: the tail begins one too late
# is: slip
# says: The tail begins one too late
# base: counts and the binomial tail
-    terms = range(hits, trials + 1)
+    terms = range(hits + 1, trials + 1)


# %% wrong: the tail ends one too early
# is: slip
# says: The tail ends one too early
# base: counts and the binomial tail
-    terms = range(hits, trials + 1)
+    terms = range(hits, trials)


# %% wrong: the probability of exactly so many
# is: slip
# says: The probability is computed for exactly so many hits
# base: counts and the binomial tail
-    terms = range(hits, trials + 1)
+    terms = range(hits, hits + 1)


# %% wrong: compared with the confidence
# is: slip
# says: The probability is compared with `confidence`
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if n * by_chance <= confidence else None


# %% wrong: a chance of 1 in n - 1
# is: slip
# says: a chance of 1 in n, not 1 in n - 1
# base: counts and the binomial tail
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
+    by_chance = tail(len(arrivals), last[rank], 1 / (n - 1))


# %% wrong: twice its share
# is: idea
# says: a fixed multiple of its share
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if last[rank] > 2 * len(arrivals) / n else None


# %% wrong: against the latest of all
# is: slip
# says: against the latest of all ranks
# base: counts and the binomial tail
-        return max(time for other, time in enumerate(times) if other != r)
+        return max(times)


# %% right: counts and the binomial tail
import statistics


def tail(trials, hits, chance):
    terms = range(hits, trials + 1)
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in terms)


def find_straggler(arrivals, confidence=0.99):
    n = len(arrivals[0])

    def others(times, r):
        return max(time for other, time in enumerate(times) if other != r)

    def late(r):
        return statistics.median(times[r] - others(times, r) for times in arrivals)

    last = [sum(times[r] == max(times) for times in arrivals) for r in range(n)]
    rank = max(range(n), key=lambda r: (last[r], late(r)))
    by_chance = tail(len(arrivals), last[rank], 1 / n)
    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None


# %% right: with tensors
def find_straggler(arrivals, confidence=0.99):
    times = torch.tensor(arrivals, dtype=torch.float64)
    count, n = times.shape
    best, second = times.topk(2, dim=1).values.T
    last = times == best[:, None]
    rank = int(last.sum(0).argmax())
    latest_other = torch.where(last[:, rank], second, best)
    hits = int(last[:, rank].sum())
    terms = [math.comb(count, k) * (n - 1) ** (count - k) for k in range(hits, count + 1)]
    if n * sum(terms) / n**count > 1 - confidence:
        return None
    return rank, (times[:, rank] - latest_other).quantile(0.5).item()


# %% right: a simulation of equal ranks
def find_straggler(arrivals, confidence=0.99):
    import statistics

    n, count = len(arrivals[0]), len(arrivals)
    last = [sum(times[r] == max(times) for times in arrivals) for r in range(n)]
    rank = last.index(max(last))
    drawn = torch.randint(n, (10_000, count), generator=torch.Generator().manual_seed(0))
    most = torch.stack([(drawn == r).sum(1) for r in range(n)]).amax(0)
    if (most >= last[rank]).double().mean() > 1 - confidence:
        return None
    lates = [times[rank] - max(times[:rank] + times[rank + 1 :]) for times in arrivals]
    return rank, statistics.median(lates)


# %% wrong: the comparison turned around
# is: slip
# says: the wrong way around
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if n * by_chance > 1 - confidence else None


# %% wrong: ranks from 1
# is: slip
# says: Ranks are counted from 0
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank + 1, late(rank)) if n * by_chance <= 1 - confidence else None


# %% wrong: the collectives are taken for ranks
# is: form
# says: the collective comes first
# base: counts and the binomial tail
-    n = len(arrivals[0])
+    arrivals = list(zip(*arrivals))
+    n = len(arrivals[0])


# %% wrong: the seconds come first
# is: form
# says: The pair is .rank, seconds.
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (late(rank), rank) if n * by_chance <= 1 - confidence else None


# %% wrong: half more than its share
# is: idea
# says: a fixed multiple of its share
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if last[rank] > 1.5 * len(arrivals) / n else None


# %% wrong: any rank whose median is late
# is: idea
# says: A limit in seconds decides
# base: counts and the binomial tail
-    rank = max(range(n), key=lambda r: (last[r], late(r)))
-    by_chance = tail(len(arrivals), last[rank], 1 / n)
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    rank = max(range(n), key=late)
+    return (rank, late(rank)) if late(rank) > 0 else None


# %% wrong: the lateness of the last collective
# is: slip
# says: take the median over all
# base: counts and the binomial tail
-        return statistics.median(times[r] - others(times, r) for times in arrivals)
+        return arrivals[-1][r] - others(arrivals[-1], r)


# %% wrong: the tail is divided by n
# is: slip
# says: Count how often each rank is last
# base: counts and the binomial tail
-    return (rank, late(rank)) if n * by_chance <= 1 - confidence else None
+    return (rank, late(rank)) if by_chance / n <= 1 - confidence else None


# %% right: the lower of two medians, as torch has it
# base: counts and the binomial tail
-        return statistics.median(times[r] - others(times, r) for times in arrivals)
+        return statistics.median_low(times[r] - others(times, r) for times in arrivals)
