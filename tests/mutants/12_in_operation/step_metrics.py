# %% base: a sum and a maximum
def step_metrics(loss_sum, tokens, seconds, group=None):
    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device())
    dist.all_reduce(sums, group=group)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    (total, count), longest = sums.tolist(), slowest.item()
    loss = total / count if count else math.nan
    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}


# %% wrong: this rank's mean
# is: idea
# says: Each rank gives the mean over its own targets
# base: a sum and a maximum
-    loss = total / count if count else math.nan
+    loss = loss_sum / tokens if tokens else math.nan


# %% wrong: rank 0's mean
# is: idea
# says: All ranks give rank 0's mean
def step_metrics(loss_sum, tokens, seconds, group=None):
    mine = torch.tensor([loss_sum, tokens, seconds], dtype=torch.float64, device=device())
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    count, longest = sum(row[1].item() for row in rows), max(row[2].item() for row in rows)
    loss = rows[0][0].item() / rows[0][1].item() if rows[0][1] else math.nan
    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}


# %% wrong: the mean of the ranks' means
# is: idea
# says: The loss is the mean of the ranks' means
# base: a sum and a maximum
-    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
+    mean = loss_sum / tokens if tokens else 0.0
+    sums = torch.tensor([mean, tokens], dtype=torch.float64, device=device())
@@
-    loss = total / count if count else math.nan
+    loss = total / dist.get_world_size(group)


# %% wrong: the mean of the means, without a thought of 0 targets
# is: idea
# says: The loss is the mean of the ranks' means
# base: a sum and a maximum
-    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
+    sums = torch.tensor([loss_sum / tokens, tokens], dtype=torch.float64, device=device())
@@
-    loss = total / count if count else math.nan
+    loss = total / dist.get_world_size(group)


# %% wrong: the mean of the means of the ranks that have targets
# is: idea
# says: The loss is the mean of the ranks' means
def step_metrics(loss_sum, tokens, seconds, group=None):
    mine = torch.tensor([loss_sum, tokens, seconds], dtype=torch.float64, device=device())
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    rows = [row.tolist() for row in rows]
    means = [total / count for total, count, _ in rows if count]
    count, longest = sum(row[1] for row in rows), max(row[2] for row in rows)
    loss = sum(means) / len(means) if means else math.nan
    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}


# %% wrong: the sums are whole numbers
# is: slip
# says: The sums were cut off to whole numbers
# base: a sum and a maximum
-    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
+    sums = torch.tensor([loss_sum, tokens], dtype=torch.int64, device=device())


# %% wrong: this rank's seconds
# is: idea
# says: Each rank gives its own seconds
# base: a sum and a maximum
-    slowest = torch.tensor(seconds, dtype=torch.float64, device=device())
@@
-    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
-    (total, count), longest = sums.tolist(), slowest.item()
+    (total, count), longest = sums.tolist(), seconds


# %% wrong: the mean of the seconds
# is: idea
# says: The seconds are the mean over the ranks
# base: a sum and a maximum
-    slowest = torch.tensor(seconds, dtype=torch.float64, device=device())
+    slowest = torch.tensor(seconds, dtype=torch.float64, device=device())
+    slowest /= dist.get_world_size(group)
@@
-    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
+    dist.all_reduce(slowest, group=group)


# %% wrong: all three are added
# is: idea
# says: The seconds of the ranks were added
def step_metrics(loss_sum, tokens, seconds, group=None):
    sums = torch.tensor([loss_sum, tokens, seconds], dtype=torch.float64, device=device())
    dist.all_reduce(sums, group=group)
    total, count, longest = sums.tolist()
    loss = total / count if count else math.nan
    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}


# %% wrong: the fastest rank
# is: idea
# says: The seconds belong to the fastest rank
# base: a sum and a maximum
-    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
+    dist.all_reduce(slowest, op=dist.ReduceOp.MIN, group=group)


# %% wrong: the whole monitor of rank 0
# is: idea
# says: Each rank gives the mean over its own targets
def step_metrics(loss_sum, tokens, seconds, group=None):
    ranks = dist.get_world_size(group)
    loss = loss_sum / max(tokens, 1)
    return {"loss": loss, "tokens_per_second": tokens * ranks / seconds, "seconds": seconds}


# %% wrong: the tokens of a rank times the number of ranks
# is: slip
# says: tokens were multiplied by the number of ranks
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    rate = tokens * dist.get_world_size(group) / longest
+    return {"loss": loss, "tokens_per_second": rate, "seconds": longest}


# %% wrong: the tokens of a rank
# is: slip
# says: The rate counts only the tokens of one rank
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    return {"loss": loss, "tokens_per_second": tokens / longest, "seconds": longest}


# %% wrong: all tokens in this rank's seconds
# is: slip
# says: divided by this rank's own seconds
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    return {"loss": loss, "tokens_per_second": count / seconds, "seconds": longest}


# %% wrong: the ranks' rates are added
# is: slip
# says: The ranks' own rates were added
def step_metrics(loss_sum, tokens, seconds, group=None):
    sums = torch.tensor(
        [loss_sum, tokens, tokens / seconds], dtype=torch.float64, device=device()
    )
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device())
    dist.all_reduce(sums, group=group)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    total, count, rate = sums.tolist()
    loss = total / count if count else math.nan
    return {"loss": loss, "tokens_per_second": rate, "seconds": slowest.item()}


# %% wrong: loss_sum is taken for a mean
# is: slip
# says: it is already the sum over the rank's targets
# base: a sum and a maximum
-    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
+    sums = torch.tensor([loss_sum * tokens, tokens], dtype=torch.float64, device=device())


# %% wrong: divided by the number of ranks as well
# is: slip
# says: The loss was also divided by the number of ranks
# base: a sum and a maximum
-    loss = total / count if count else math.nan
+    loss = total / count / dist.get_world_size(group) if count else math.nan


# %% wrong: the sum by this rank's targets
# is: slip
# says: divided by this rank's own number of targets
# base: a sum and a maximum
-    loss = total / count if count else math.nan
+    loss = total / tokens if tokens else math.nan


# %% wrong: no targets at all raise an error
# is: detail
# says: Without any target there is no mean
# base: a sum and a maximum
-    loss = total / count if count else math.nan
+    loss = total / count


# %% wrong: no targets at all are a loss of 0
# is: detail
# says: A loss of 0 would look like a perfect model
# base: a sum and a maximum
-    loss = total / count if count else math.nan
+    loss = total / max(count, 1)


# %% wrong: a rank without targets returns early
# is: slip
# says: a rank without targets takes part as well
# base: a sum and a maximum
-    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())
+    if not tokens:
+        return {"loss": math.nan, "tokens_per_second": 0.0, "seconds": seconds}
+    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=device())


# %% wrong: the group is forgotten
# is: slip
# says: not in the group .1, 3.
# base: a sum and a maximum
-    dist.all_reduce(sums, group=group)
-    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
+    dist.all_reduce(sums)
+    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)


# %% wrong: three collectives
# is: detail
# says: Each collective costs a latency
def step_metrics(loss_sum, tokens, seconds, group=None):
    total, count, slowest = (
        torch.tensor(number, dtype=torch.float64, device=device())
        for number in (loss_sum, tokens, seconds)
    )
    dist.all_reduce(total, group=group)
    dist.all_reduce(count, group=group)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    loss = (total / count).item()
    longest = slowest.item()
    return {"loss": loss, "tokens_per_second": count.item() / longest, "seconds": longest}


# %% wrong: objects are gathered
# is: slip
# says: Put the numbers into a tensor
def step_metrics(loss_sum, tokens, seconds, group=None):
    rows = [None] * dist.get_world_size(group)
    dist.all_gather_object(rows, (loss_sum, tokens, seconds), group=group)
    total, count = sum(row[0] for row in rows), sum(row[1] for row in rows)
    longest = max(row[2] for row in rows)
    loss = total / count if count else math.nan
    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}


# %% wrong: a tuple
# is: form
# says: Return a dict with the keys
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    return loss, count / longest, longest


# %% wrong: no seconds
# is: slip
# says: has no number under 'seconds'
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    return {"loss": loss, "tokens_per_second": count / longest}


# %% wrong: nothing is returned
# is: form
# says: Is there a `return` at its end
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}


# %% right: one all-gather of three numbers
def step_metrics(loss_sum, tokens, seconds, group=None):
    mine = torch.tensor([loss_sum, tokens, seconds], dtype=torch.float64, device=device())
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    total, count, _ = torch.stack(rows).sum(0)
    longest = max(row[2] for row in rows)
    return {"loss": total / count, "tokens_per_second": count / longest, "seconds": longest}


# %% right: in float32, with more in the dict
def step_metrics(loss_sum, tokens, seconds, group=None):
    sums = torch.tensor([loss_sum, tokens], device=device())
    slowest = torch.tensor([seconds], device=device())
    handles = [
        dist.all_reduce(sums, group=group, async_op=True),
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group, async_op=True),
    ]
    for handle in handles:
        handle.wait()
    total, count = sums.tolist()
    return {
        "loss": total / count if count else float("nan"),
        "tokens": int(count),
        "tokens_per_second": count / slowest.item(),
        "seconds": slowest.item(),
    }


# %% right: one all-gather into a matrix
def step_metrics(loss_sum, tokens, seconds, group=None):
    row = torch.tensor([[loss_sum, tokens, seconds]], dtype=torch.float64, device=device())
    rows = row.new_empty(dist.get_world_size(group), 3)
    dist.all_gather_into_tensor(rows, row, group=group)
    total, count = rows[:, :2].sum(0).tolist()
    longest = rows[:, 2].max().item()
    loss = total / count if count > 0 else math.nan
    return dict(loss=loss, tokens_per_second=count / longest, seconds=longest)


# %% wrong: the maximum of all
# is: idea
# says: The largest numbers of the ranks were taken
# base: a sum and a maximum
-    dist.all_reduce(sums, group=group)
+    dist.all_reduce(sums, op=dist.ReduceOp.MAX, group=group)


# %% wrong: seconds by tokens
# is: slip
# says: The rate is upside down
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    return {"loss": loss, "tokens_per_second": longest / count, "seconds": longest}


# %% wrong: a reduce in place of an all-reduce
# is: idea
# says: Some ranks have the right number, but others do not
# base: a sum and a maximum
-    dist.all_reduce(sums, group=group)
+    dist.reduce(sums, dst=0, group=group)


# %% right: tensors are returned
# base: a sum and a maximum
-    return {"loss": loss, "tokens_per_second": count / longest, "seconds": longest}
+    return {"loss": torch.tensor(loss), "tokens_per_second": torch.tensor(count / longest), "seconds": slowest}
