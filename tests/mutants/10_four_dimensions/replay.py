# %% base: what the wrong ones change
def replay(records, per_node, inside, across):
    def seconds(ranks, nbytes):
        alpha, beta = inside if len({rank // per_node for rank in ranks}) == 1 else across
        return alpha + nbytes * beta

    n = len(records)
    now, at, free, sent = [0.0] * n, [0] * n, {}, {}
    moved = True
    while moved:
        moved = False
        for rank in range(n):
            while at[rank] < len(records[rank]):
                kind, who, *size = records[rank][at[rank]]
                if kind == "compute":
                    now[rank] += who
                elif kind == "send":
                    link = (rank, rank // per_node == who // per_node)
                    begin = max(now[rank], free.get(link, 0.0))
                    free[link] = begin + seconds([rank, who], size[0])
                    sent.setdefault((rank, who), []).append(free[link])
                elif kind == "recv":
                    if not sent.get((who, rank)):
                        break
                    now[rank] = max(now[rank], sent[who, rank].pop(0))
                else:
                    here = [records[k][at[k]] if at[k] < len(records[k]) else None for k in who]
                    if any(entry is None or entry[1] != who for entry in here):
                        break
                    share = 2 * (len(who) - 1) / len(who)
                    end = max(now[k] for k in who) + seconds(who, share * size[0])
                    for k in who:
                        now[k] = end
                        if k != rank:
                            at[k] += 1
                at[rank] += 1
                moved = True
    return max(now)


# %% wrong: a sum does not wait for the last
# is: slip
# says: A sum begins when its last member has arrived
# base: what the wrong ones change
-                    end = max(now[k] for k in who) + seconds(who, share * size[0])
                     for k in who:
-                        now[k] = end
+                        now[k] += seconds(who, share * size[0])


# %% wrong: an alpha for every round
# is: slip
# says: one alpha, as on the emulated wires
# base: what the wrong ones change
-                    end = max(now[k] for k in who) + seconds(who, share * size[0])
+                    end = max(now[k] for k in who) + seconds(who, share * size[0])
+                    end += (2 * (len(who) - 1) - 1) * seconds(who, 0)


# %% wrong: half of an all-reduce
# is: slip
# says: An all-reduce sends 2
# base: what the wrong ones change
-                    share = 2 * (len(who) - 1) / len(who)
+                    share = (len(who) - 1) / len(who)


# %% wrong: the link of the first two members
# is: slip
# says: one member in another node is enough
# base: what the wrong ones change
-        alpha, beta = inside if len({rank // per_node for rank in ranks}) == 1 else across
+        alpha, beta = inside if ranks[0] // per_node == ranks[1] // per_node else across


# %% wrong: always NVLink
# is: slip
# says: look at the nodes of its ranks
# base: what the wrong ones change
-        alpha, beta = inside if len({rank // per_node for rank in ranks}) == 1 else across
+        alpha, beta = inside


# %% wrong: a sender waits
# is: slip
# says: A sender continues immediately
# base: what the wrong ones change
                     free[link] = begin + seconds([rank, who], size[0])
+                    now[rank] = free[link]


# %% wrong: messages overtake each other
# is: slip
# says: A link carries only one message at a time
# base: what the wrong ones change
-                    begin = max(now[rank], free.get(link, 0.0))
+                    begin = now[rank]


# %% wrong: sums queue behind messages
# is: slip
# says: A sum does not queue
# base: what the wrong ones change
-                    end = max(now[k] for k in who) + seconds(who, share * size[0])
-                    for k in who:
-                        now[k] = end
+                    near = len({k // per_node for k in who}) == 1
+                    begin = max(max(now[k], free.get((k, near), 0.0)) for k in who)
+                    end = begin + seconds(who, share * size[0])
+                    for k in who:
+                        now[k] = free[k, near] = end


# %% wrong: no compute
# is: slip
# says: The compute between the operations is missing
# base: what the wrong ones change
-                    now[rank] += who
+                    pass


# %% wrong: no alpha
# is: slip
# says: The alphas are missing
# base: what the wrong ones change
-        return alpha + nbytes * beta
+        return nbytes * beta


# %% wrong: each rank for itself
# is: idea
# says: a rank also waits for the last
def replay(records, per_node, inside, across):
    totals = []
    for rank, record in enumerate(records):
        total = 0.0
        for kind, *what in record:
            if kind == "compute":
                total += what[0]
                continue
            ranks = what[0] if kind == "all_reduce" else [rank, what[0]]
            alpha, beta = inside if len({r // per_node for r in ranks}) == 1 else across
            share = 2 * (len(ranks) - 1) / len(ranks) if kind == "all_reduce" else 1
            total += alpha + share * what[1] * beta
        totals.append(total)
    return max(totals)


# %% wrong: a rank has one link
# is: slip
# says: A rank has two links, one inside its node
# base: what the wrong ones change
-                    link = (rank, rank // per_node == who // per_node)
+                    link = rank


# %% wrong: a queue for each destination
# is: slip
# says: one link across, whatever the destination
# base: what the wrong ones change
-                    link = (rank, rank // per_node == who // per_node)
+                    link = (rank, who)


# %% wrong: an all-reduce sends twice its bytes
# is: slip
# says: , not twice its bytes
# base: what the wrong ones change
-                    share = 2 * (len(who) - 1) / len(who)
+                    share = 2


# %% wrong: an all-reduce sends its bytes once
# is: slip
# says: , not its bytes once
# base: what the wrong ones change
-                    share = 2 * (len(who) - 1) / len(who)
+                    share = 1


# %% right: one generator for each rank
def replay(records, per_node, inside, across):
    now, free, boxes, waiting = [0.0] * len(records), {}, {}, {}

    def cost(ranks, nbytes):
        nodes = {r // per_node for r in ranks}
        alpha, beta = across if len(nodes) > 1 else inside
        return alpha + beta * nbytes

    def run(rank):
        for kind, *what in records[rank]:
            if kind == "compute":
                now[rank] += what[0]
            elif kind == "send":
                peer, nbytes = what
                link = rank, rank // per_node != peer // per_node
                free[link] = max(free.get(link, 0), now[rank]) + cost([rank, peer], nbytes)
                boxes.setdefault((rank, peer), []).append(free[link])
            elif kind == "recv":
                while not boxes.get((what[0], rank)):
                    yield
                now[rank] = max(now[rank], boxes[what[0], rank].pop(0))
            else:
                group, nbytes = what
                key = tuple(group)
                turn = waiting.setdefault(key, [{}])
                if rank in turn[-1]:
                    turn.append({})
                mine = turn[-1]
                mine[rank] = now[rank]
                while len(mine) < len(group):
                    yield
                now[rank] = max(mine.values()) + cost(group, 2 * nbytes * (1 - 1 / len(group)))

    left = [run(rank) for rank in range(len(records))]
    while left:
        left = [each for each in left if next(each, "done") != "done"]
    return max(now)


# %% right: a clock that is asked for each rank in turn, backwards
# base: what the wrong ones change
-        for rank in range(n):
+        for rank in reversed(range(n)):
