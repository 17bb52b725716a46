# %% wrong: as it was, a rank without values returns early
# is: form
# says: must still take part
def global_mean(values):
    if len(values) == 0:
        return torch.tensor(0.0)
    total = values.sum()
    count = torch.tensor(float(len(values)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


# %% wrong: the mean of the means
# is: idea
# says: mean of the ranks' means
def global_mean(values):
    mean = values.mean() if len(values) else torch.tensor(0.0)
    filled = torch.tensor(float(len(values) > 0))
    dist.all_reduce(mean)
    dist.all_reduce(filled)
    return mean / filled


# %% wrong: the mean of no values
# is: idea
# says: 0/0
def global_mean(values):
    mean = values.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


# %% wrong: divided by the number of ranks
# is: slip
# says: divide by the number of values
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total / dist.get_world_size()


# %% wrong: the sum
# is: slip
# says: The sum was not divided
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total


# %% wrong: ranks without values keep zero
# is: slip
# says: also needs the mean of the other ranks
def global_mean(values):
    total = values.sum()
    count = torch.tensor(float(len(values)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count if len(values) else torch.tensor(0.0)


# %% wrong: its own mean
# is: idea
# says: own mean
def global_mean(values):
    return values.mean() if len(values) else torch.tensor(0.0)


# %% wrong: one of the two sums is skipped
# is: form
# says: must still take part|do not agree
def global_mean(values):
    total = values.sum()
    count = torch.tensor(float(len(values)))
    dist.all_reduce(total)
    if len(values) > 0:
        dist.all_reduce(count)
    return total / count


# %% wrong: only rank 0 has it
# is: slip
# says: the mean on rank 1 is|NaN
def global_mean(values):
    total = values.sum()
    count = torch.tensor(float(len(values)))
    dist.reduce(total, 0)
    dist.reduce(count, 0)
    if dist.get_rank() == 0:
        return total / count
    return torch.tensor(1.0)


# %% wrong: divided by the rank's own number of values
# is: slip
# says: The count is the rank's own
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total / len(values)


# %% wrong: the rank's own sum is divided by all values
# is: slip
# says: The sum is the rank's own
def global_mean(values):
    count = torch.tensor(float(len(values)))
    dist.all_reduce(count)
    return values.sum() / count


# %% wrong: the sum is rounded to 16 bits
# is: slip
# says: the mean on rank 0 is
def global_mean(values):
    total = values.sum().bfloat16()
    count = torch.tensor(float(len(values)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).float()


# %% right: sum and count in one tensor
def global_mean(values):
    both = torch.stack([values.sum(), torch.tensor(float(values.numel()))])
    dist.all_reduce(both)
    return both[0] / both[1]


# %% right: computed on rank 0 and broadcast
def global_mean(values):
    total = values.double().sum()
    count = torch.full_like(total, len(values))
    dist.reduce(total, 0)
    dist.reduce(count, 0)
    mean = (total / count).float() if dist.get_rank() == 0 else torch.empty((), device=device())
    dist.broadcast(mean, 0)
    return mean
