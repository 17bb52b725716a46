# %% wrong: no float32 copy of the weights
# is: slip
# says: the float32 copy of the weights is 4 more
def memory_per_rank(params, n, stage, offload=False):
    weights, gradients, states = 2 * params, 2 * params, 8 * params
    if stage >= 1:
        states /= n
    if stage >= 2:
        gradients /= n
    if stage >= 3:
        weights /= n
    if offload:
        return (weights if stage < 3 else 0) + (gradients if stage < 2 else 0)
    return weights + gradients + states


# %% wrong: the float32 copy is not sharded
# is: slip
# says: it is sharded with m and v
def memory_per_rank(params, n, stage, offload=False):
    if offload:
        return {1: 4 * params, 2: 2 * params, 3: 0}[stage]
    return {
        0: 16 * params,
        1: 8 * params + 8 * params / n,
        2: 2 * params + 14 * params / n,
        3: 16 * params / n,
    }[stage]


# %% wrong: float32 gradients
# is: slip
# says: gradients in 32 bits
def memory_per_rank(params, n, stage, offload=False):
    weights = 2 * params / (n if stage == 3 else 1)
    gradients = 4 * params / (n if stage >= 2 else 1)
    states = 12 * params / (n if stage >= 1 else 1)
    if offload:
        return (weights if stage < 3 else 0) + (gradients if stage < 2 else 0)
    return weights + gradients + states


# %% wrong: one stage too many
# is: slip
# says: stage 1 shards only the optimizer's states
def memory_per_rank(params, n, stage, offload=False):
    if offload:
        return {1: 4 * params, 2: 2 * params, 3: 0}[stage]
    return [16 * params, 2 * params + 14 * params / n, 16 * params / n, 16 * params / n][stage]


# %% wrong: one stage too few
# is: slip
# says: stage 2 also shards the gradients
def memory_per_rank(params, n, stage, offload=False):
    if offload:
        return {1: 4 * params, 2: 2 * params, 3: 0}[stage]
    if stage == 0:
        return 16 * params
    return 4 * params + 12 * params / n if stage < 3 else 16 * params / n


# %% wrong: all ranks together
# is: idea
# says: Return the share of one rank
def memory_per_rank(params, n, stage, offload=False):
    weights = 2 * params if stage == 3 else 2 * params * n
    gradients = 2 * params if stage >= 2 else 2 * params * n
    states = 12 * params if stage >= 1 else 12 * params * n
    if offload:
        return {1: 4 * params * n, 2: 2 * params * n, 3: 0}[stage]
    return weights + gradients + states


# %% wrong: GB
# is: slip
# says: Your result is in GB. Return bytes
def memory_per_rank(params, n, stage, offload=False):
    weights = 2 / (n if stage == 3 else 1)
    gradients = 2 / (n if stage >= 2 else 1)
    states = 12 / (n if stage >= 1 else 1)
    if offload:
        return {1: 4, 2: 2, 3: 0}[stage] * params / 1e9
    return (weights + gradients + states) * params / 1e9


# %% wrong: with offload only the states leave
# is: slip
# says: Only the states have left
def memory_per_rank(params, n, stage, offload=False):
    weights = 2 * params / (n if stage == 3 else 1)
    gradients = 2 * params / (n if stage >= 2 else 1)
    states = 12 * params / (n if stage >= 1 else 1)
    return weights + gradients + (0 if offload else states)


# %% wrong: offload changes nothing
# is: slip
# says: You counted without offload
def memory_per_rank(params, n, stage, offload=False):
    weights = 2 * params / (n if stage == 3 else 1)
    gradients = 2 * params / (n if stage >= 2 else 1)
    states = 12 * params / (n if stage >= 1 else 1)
    return weights + gradients + states


# %% wrong: nothing returned
# is: form
# says: not a number
def memory_per_rank(params, n, stage, offload=False):
    print(16 * params)


# %% wrong: each stage divides one part alone
# is: slip
# says: each stage divides everything the stage before it divides
def memory_per_rank(params, n, stage, offload=False):
    states = 12 * params / (n if stage == 1 else 1)
    gradients = 2 * params / (n if stage == 2 else 1)
    weights = 2 * params / (n if stage == 3 else 1)
    if offload:
        return weights + (gradients if stage == 1 else 0)
    return weights + gradients + states


# %% wrong: the gradients are whole again in stage 3
# is: slip
# says: as well as everything that stage 2 shards
def memory_per_rank(params, n, stage, offload=False):
    states = 0 if offload else 12 * params / (n if stage >= 1 else 1)
    gradients = 2 * params / (n if stage == 2 else 1)
    weights = 2 * params / (n if stage == 3 else 1)
    if offload and stage > 1:
        gradients = 0
    return weights + gradients + states


# %% wrong: the bytes of plain float32
# is: slip
# says: Weights and gradients are 2 . 2 of them
def memory_per_rank(params, n, stage, offload=False):
    weights = 0 if offload and stage == 3 else 4 / (n if stage == 3 else 1)
    gradients = 0 if offload and stage > 1 else 4 / (n if stage > 1 else 1)
    states = 0 if offload else 8 / (n if stage > 0 else 1)
    return params * (weights + gradients + states)


# %% right: what every rank keeps and what is divided
def memory_per_rank(params, n, stage, offload=False):
    whole, divided = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
    if offload:
        divided = 0
    return params * (whole + divided / n)


# %% right: part by part
def memory_per_rank(params, n, stage, offload=False):
    total = 0
    for bytes_each, sharded_from in ((2, 3), (2, 2), (4, 1), (4, 1), (4, 1)):
        if stage < sharded_from:
            total += bytes_each * params
        elif not offload:
            total += bytes_each * params / n
    return total
