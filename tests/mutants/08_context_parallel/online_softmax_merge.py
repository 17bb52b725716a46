# %% wrong: the old accumulator is not rescaled
# is: idea
# says: The old out still has its old denominator
def online_softmax_merge(out, lse, block_out, block_lse):
    merged = torch.logaddexp(lse, block_lse)
    weight = torch.exp(block_lse - merged)[..., None]
    return out + weight * block_out, merged


# %% wrong: only the old one is rescaled
# is: idea
# says: The block's out was divided by its own sum
def online_softmax_merge(out, lse, block_out, block_lse):
    merged = torch.log(torch.exp(lse) + torch.exp(block_lse))
    out = out * torch.exp(lse - merged).unsqueeze(-1)
    return out + block_out, merged


# %% wrong: added
# is: idea
# says: sum of both parts, although each was divided
def online_softmax_merge(out, lse, block_out, block_lse):
    return out + block_out, lse.logaddexp(block_lse)


# %% wrong: averaged
# is: idea
# says: mean of both
def online_softmax_merge(out, lse, block_out, block_lse):
    both = torch.stack((lse, block_lse))
    return torch.stack((out, block_out)).mean(0), both.logsumexp(0)


# %% wrong: weights the wrong way round
# is: slip
# says: weights of old and new are swapped
def online_softmax_merge(out, lse, block_out, block_lse):
    share = torch.sigmoid(block_lse - lse)[..., None]
    return share * out + (1 - share) * block_out, torch.logaddexp(lse, block_lse)


# %% wrong: weights that do not add up to 1
# is: slip
# says: do not add up to 1
def online_softmax_merge(out, lse, block_out, block_lse):
    top = torch.max(lse, block_lse)
    old, new = (lse - top).exp(), (block_lse - top).exp()
    return old[..., None] * out + new[..., None] * block_out, top + (old + new).log()


# %% wrong: a logarithm as a weight
# is: idea
# says: lse is used as a weight
def online_softmax_merge(out, lse, block_out, block_lse):
    a, b = lse[..., None], block_lse[..., None]
    return (a * out + b * block_out) / (a + b), torch.logaddexp(lse, block_lse)


# %% wrong: exp overflows
# is: detail
# says: exp\(1000\) is infinite
def online_softmax_merge(out, lse, block_out, block_lse):
    old, new = torch.exp(lse), torch.exp(block_lse)
    total = old + new
    mixed = (old[..., None] * out + new[..., None] * block_out) / total[..., None]
    return mixed, torch.log(total)


# %% wrong: lse is the larger one
# is: slip
# says: lse is the larger of the two
def online_softmax_merge(out, lse, block_out, block_lse):
    w = torch.softmax(torch.stack((lse, block_lse), -1), -1)
    return w[..., :1] * out + w[..., 1:] * block_out, torch.maximum(lse, block_lse)


# %% wrong: lse stays the old one
# is: slip
# says: lse is the old one
def online_softmax_merge(out, lse, block_out, block_lse):
    difference = (block_lse - lse)[..., None]
    return out - torch.sigmoid(difference) * (out - block_out), lse


# %% wrong: the wrong dimension is scaled
# is: slip
# says: aligned with the wrong dimension|no feature dimension
def online_softmax_merge(out, lse, block_out, block_lse):
    merged = torch.logaddexp(lse, block_lse)
    a, b = (lse - merged).exp(), (block_lse - merged).exp()
    if out.shape[0] != out.shape[-1]:
        a, b = a[..., None], b[..., None]
    return a * out + b * block_out, merged


# %% wrong: lse without a place for the features
# is: form
# says: Use lse\[\.\.\., None\] together with out
def online_softmax_merge(out, lse, block_out, block_lse):
    merged = torch.logaddexp(lse, block_lse)
    return out * torch.exp(lse - merged) + block_out * torch.exp(block_lse - merged), merged


# %% wrong: nothing seen gives nan
# is: detail
# says: -inf - -inf is nan
def online_softmax_merge(out, lse, block_out, block_lse):
    weight = torch.sigmoid(lse - block_lse)[..., None]
    return weight * out + (1 - weight) * block_out, torch.logaddexp(lse, block_lse)


# %% wrong: the lowest number stays
# is: detail
# says: lse still contains the lowest number
def online_softmax_merge(out, lse, block_out, block_lse):
    lowest = torch.finfo(lse.dtype).min
    old, new = lse.clamp_min(lowest), block_lse.clamp_min(lowest)
    merged = torch.logaddexp(old, new)
    return (old - new).sigmoid()[..., None] * out + (new - old).sigmoid()[
        ..., None
    ] * block_out, merged


# %% wrong: nan only in backward
# is: detail
# says: nan times 0 is nan
def online_softmax_merge(out, lse, block_out, block_lse):
    weight = torch.sigmoid(lse - block_lse)
    weight = torch.where(weight.isnan(), 0.0, weight)[..., None]
    return weight * out + (1 - weight) * block_out, torch.logaddexp(lse, block_lse)


# %% wrong: without a graph
# is: form
# says: does not pass gradients to all four
@torch.no_grad()
def online_softmax_merge(out, lse, block_out, block_lse):
    low = torch.finfo(lse.dtype).min
    a, b = lse.clamp(min=low), block_lse.clamp(min=low)
    share = torch.sigmoid(b - a)[..., None]
    return torch.lerp(out, block_out, share), torch.logaddexp(lse, block_lse)


# %% wrong: in place
# is: slip
# says: belongs to the caller|was changed in place
def online_softmax_merge(out, lse, block_out, block_lse):
    merged = torch.logaddexp(lse, block_lse)
    with torch.no_grad():
        out *= torch.exp(lse - merged).nan_to_num()[..., None]
        out += torch.exp(block_lse - merged).nan_to_num()[..., None] * block_out
    return out, merged


# %% wrong: in place, and right
# is: slip
# says: out was changed: it belongs to the caller
def online_softmax_merge(out, lse, block_out, block_lse):
    low = torch.finfo(lse.dtype).min
    a, b = lse.clamp(min=low), block_lse.clamp(min=low)
    share, total = torch.sigmoid(b - a)[..., None], torch.logaddexp(lse, block_lse)
    with torch.no_grad():
        out.lerp_(block_out, share)
        lse.copy_(total)
    return out, lse


# %% wrong: an argument that autograd needs, changed in place
# is: slip
# says: One of the arguments was changed in place
def online_softmax_merge(out, lse, block_out, block_lse):
    total = torch.logaddexp(lse, block_lse)
    out *= torch.exp(lse - total)[..., None]
    return out + torch.exp(block_lse - total)[..., None] * block_out, total


# %% wrong: -100 in place of -inf
# is: detail
# says: replaces -inf is too high
def online_softmax_merge(out, lse, block_out, block_lse):
    old, new = torch.clamp(lse, min=-100), torch.clamp(block_lse, min=-100)
    share = torch.sigmoid(new - old)[..., None]
    total = torch.logaddexp(old, new)
    return torch.lerp(out, block_out, share), torch.where(total < -99, -math.inf, total)


# %% wrong: -10,000 in place of -inf, to the end
# is: detail
# says: lse still contains the lowest number
def online_softmax_merge(out, lse, block_out, block_lse):
    old, new = torch.clamp(lse, min=-10_000), torch.clamp(block_lse, min=-10_000)
    return torch.lerp(out, block_out, torch.sigmoid(new - old)[..., None]), torch.logaddexp(
        old, new
    )


# %% wrong: a small number in the sum
# is: slip
# says: nearly right, so a small number was added
def online_softmax_merge(out, lse, block_out, block_lse):
    lowest = torch.finfo(lse.dtype).min
    top = torch.maximum(lse, block_lse).clamp_min(lowest)
    old, new = (lse - top).exp(), (block_lse - top).exp()
    total = old + new + 1e-6
    return (old[..., None] * out + new[..., None] * block_out) / total[..., None], top + total.log()


# %% wrong: lse by a difference of huge numbers
# is: detail
# says: difference of two huge numbers
def online_softmax_merge(out, lse, block_out, block_lse):
    lowest = torch.finfo(lse.dtype).min
    old, new = lse.clamp_min(lowest), block_lse.clamp_min(lowest)
    merged = old - torch.nn.functional.logsigmoid(old - new)
    nothing = (lse == -torch.inf) & (block_lse == -torch.inf)
    weight = torch.sigmoid(new - old)[..., None]
    return out - weight * (out - block_out), merged.masked_fill(nothing, -torch.inf)


# %% wrong: only out
# is: form
# says: Return both, \(out, lse\)
def online_softmax_merge(out, lse, block_out, block_lse):
    share = torch.sigmoid(block_lse - lse)[..., None]
    return out + share * (block_out - out)


# %% right: by the larger one
def online_softmax_merge(out, lse, block_out, block_lse):
    top = torch.maximum(lse, block_lse).detach()
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    old, new = torch.exp(lse - top), torch.exp(block_lse - top)
    total = old + new
    empty = total == 0
    safe = total.masked_fill(empty, 1.0)
    mixed = (old[..., None] * out + new[..., None] * block_out) / safe[..., None]
    return mixed, (torch.log(safe) + top).masked_fill(empty, float("-inf"))


# %% right: by a share
def online_softmax_merge(out, lse, block_out, block_lse):
    neither = (lse == -torch.inf) & (block_lse == -torch.inf)
    a = lse.masked_fill(neither, 0.0)
    b = block_lse.masked_fill(neither, 0.0)
    share = torch.sigmoid(b - a).unsqueeze(-1)
    together = torch.max(a, b) + torch.nn.functional.softplus(-(a - b).abs())
    return out + share * (block_out - out), together.masked_fill(neither, -torch.inf)


# %% right: a Function of its own
class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, lse, block_out, block_lse):
        tiny = torch.finfo(lse.dtype).min
        both = torch.stack([lse, block_lse]).clamp(min=tiny)
        weights = torch.softmax(both, 0)
        merged = torch.einsum("p...,p...d->...d", weights, torch.stack([out, block_out]))
        ctx.save_for_backward(weights, out, block_out, merged)
        return merged, torch.logaddexp(lse, block_lse)

    @staticmethod
    def backward(ctx, grad, grad_lse):
        weights, out, block_out, merged = ctx.saved_tensors
        found = []
        for weight, part in zip(weights, (out, block_out)):
            found.append(weight[..., None] * grad)
            found.append(weight * (grad_lse + torch.sum(grad * (part - merged), -1)))
        return tuple(found)


def online_softmax_merge(out, lse, block_out, block_lse):
    return _Merge.apply(out, lse, block_out, block_lse)
