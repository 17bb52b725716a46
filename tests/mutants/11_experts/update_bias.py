# %% base: counts of all ranks
def update_bias(bias, counts, speed=0.001, group=None):
    total = counts.clone()
    dist.all_reduce(total, group=group)
    total = total.double()
    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)


# %% wrong: the rank's own counts
# is: idea
# says: follows only this rank's counts
# base: counts of all ranks
-    dist.all_reduce(total, group=group)


# %% wrong: the steps of all ranks are averaged
# is: slip
# says: The ranks' steps were averaged
def update_bias(bias, counts, speed=0.001, group=None):
    step = torch.sign(counts.double().mean() - counts)
    dist.all_reduce(step, group=group)
    return bias + (speed / dist.get_world_size(group) * step).to(bias.dtype)


# %% wrong: the steps of all ranks are added
# is: slip
# says: The ranks' steps were added
def update_bias(bias, counts, speed=0.001, group=None):
    step = torch.sign(counts.double().mean() - counts)
    dist.all_reduce(step, group=group)
    return bias + (speed * step).to(bias.dtype)


# %% wrong: the sign is reversed
# is: slip
# says: The bias of the popular experts grew
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * torch.sign(total - total.mean()).to(bias.dtype)


# %% wrong: no sign
# is: slip
# says: The step has the size of the count
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * (total.mean() - total).to(bias.dtype)


# %% wrong: no sign, and divided by the mean
# is: slip
# says: The step has the size of the count
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * (1 - total / total.mean()).to(bias.dtype)


# %% wrong: the mean of the rank's own counts
# is: slip
# says: compared with the mean of this rank's
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * torch.sign(counts.double().mean() - total).to(bias.dtype)


# %% wrong: an expert with the mean falls
# is: detail
# says: An expert with exactly the mean keeps its bias
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return torch.where(total < total.mean(), bias + speed, bias - speed)


# %% wrong: an expert with the mean rises
# is: detail
# says: An expert with exactly the mean keeps its bias
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return torch.where(total > total.mean(), bias - speed, bias + speed)


# %% wrong: a mean without its fraction
# is: detail
# says: The mean was rounded to a whole number
# base: counts of all ranks
-    total = total.double()
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * torch.sign(total.sum() // len(total) - total).to(bias.dtype)


# %% wrong: the median
# is: detail
# says: compared with their median
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * torch.sign(total.median() - total).to(bias.dtype)


# %% wrong: a speed of its own
# is: slip
# says: `speed` is the size of the step
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + 0.001 * torch.sign(total.mean() - total).to(bias.dtype)


# %% wrong: the step alone
# is: slip
# says: The result is only the step
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return speed * torch.sign(total.mean() - total).to(bias.dtype)


# %% wrong: the bias is changed
# is: slip
# says: bias was changed
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    bias += speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias


# %% wrong: the counts are changed
# is: slip
# says: all_reduce works in place. Give it a copy
# base: counts of all ranks
-    total = counts.clone()
+    total = counts


# %% wrong: the group is forgotten
# is: slip
# says: not in the group .1, 3.
# base: counts of all ranks
-    dist.all_reduce(total, group=group)
+    dist.all_reduce(total)


# %% wrong: nothing is returned
# is: form
# says: Return the new bias
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    bias + speed * torch.sign(total.mean() - total).to(bias.dtype)


# %% wrong: only raised
# is: slip
# says: Only experts below the mean were moved
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias + speed * (total < total.mean()).to(bias.dtype)


# %% wrong: only lowered
# is: slip
# says: Only experts above the mean were moved
# base: counts of all ranks
-    return bias + speed * torch.sign(total.mean() - total).to(bias.dtype)
+    return bias - speed * (total > total.mean()).to(bias.dtype)


# %% wrong: the mean of whole numbers
# is: form
# says: counts.double\(\).mean
# base: counts of all ranks
-    total = total.double()


# %% right: by comparisons
def update_bias(bias, counts, speed=0.001, group=None):
    total = counts.to(torch.float32)
    dist.all_reduce(total, group=group)
    mean = total.sum() / len(total)
    new = bias.clone()
    new[total < mean] += speed
    new[total > mean] -= speed
    return new


# %% right: all counts on every rank, in whole numbers
def update_bias(bias, counts, speed=0.001, group=None):
    rows = [torch.empty_like(counts) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, counts, group=group)
    total = sum(rows)
    step = torch.sign(total.sum() - total * total.numel())
    return torch.add(bias, step.to(bias.dtype), alpha=speed)


# %% right: means of the ranks
def update_bias(bias, counts, speed=0.001, group=None):
    mean = counts.double() / dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    over = (mean - mean.mean()).round(decimals=6)
    return bias - speed * over.sign().to(bias)
