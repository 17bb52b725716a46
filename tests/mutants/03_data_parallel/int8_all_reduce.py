# %% wrong: summed as int8
# is: idea
# says: 100 \+ 100 is -56
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    n = dist.get_world_size(group)
    asked = (tensor + error).reshape(1, -1)
    elements, scales = quantize(asked)
    error.copy_((asked - dequantize(elements, scales)).view_as(error))
    dist.all_reduce(elements, group=group)
    tensor.copy_((dequantize(elements, scales) / n).view_as(tensor))


# %% wrong: error feedback is forgotten
# is: idea
# says: was not added
# base: elements and scales apart
-    asked = (tensor + error).reshape(-1)
+    asked = tensor.reshape(-1)


# %% wrong: the error is added twice
# is: slip
# says: added twice
# base: elements and scales apart
-    asked = (tensor + error).reshape(-1)
+    asked = (tensor + 2 * error).reshape(-1)


# %% wrong: the error is not written
# is: idea
# says: nothing is lost for good\. Without that, at most half
# base: elements and scales apart
-    error.copy_(residual.view(-1)[:size].view_as(error))


# %% wrong: the second rounding is forgotten
# is: slip
# says: the second rounding, of the mean, is forgotten
# base: elements and scales apart
-    residual[rank] += n * (mean[0] - result[rank])


# %% wrong: the error has the wrong sign
# is: slip
# says: The sign is wrong
# base: elements and scales apart
-    error.copy_(residual.view(-1)[:size].view_as(error))
+    error.copy_(-residual.view(-1)[:size].view_as(error))


# %% wrong: the old error stays beside the new one
# is: slip
# says: already includes it
# base: elements and scales apart
-    error.copy_(residual.view(-1)[:size].view_as(error))
+    error.add_(residual.view(-1)[:size].view_as(error))


# %% wrong: one scale for the whole tensor
# is: detail
# says: a scale of its own
# base: elements and scales apart
 def quantize(rows):
+    BLOCK = rows.shape[1]
@@
-    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
-    return elements.float() * wide
+    return elements.float() * scales


# %% wrong: the sum, not the mean
# is: slip
# says: is the sum over
# base: elements and scales apart
-    mean = dequantize(got, got_scales).sum(0, keepdim=True) / n
+    mean = dequantize(got, got_scales).sum(0, keepdim=True)
@@
-    residual[rank] += n * (mean[0] - result[rank])
+    residual[rank] += mean[0] - result[rank]


# %% wrong: every rank sends all of its tensor to all
# is: idea
# says: Every rank sent its whole tensor
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    n = dist.get_world_size(group)
    asked = (tensor + error).reshape(1, -1)
    elements, scales = quantize(asked)
    got = elements.new_empty(n, elements.numel())
    got_scales = scales.new_empty(n, scales.numel())
    dist.all_gather_into_tensor(got.view(-1), elements.view(-1), group=group)
    dist.all_gather_into_tensor(got_scales.view(-1), scales.view(-1), group=group)
    error.copy_((asked - dequantize(elements, scales)).view_as(error))
    tensor.copy_(dequantize(got, got_scales).mean(0).view_as(tensor))


# %% wrong: rounded, but sent as float32
# is: idea
# says: as int8 with one float32 scale per block
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    n = dist.get_world_size(group)
    asked = (tensor + error).reshape(1, -1)
    elements, scales = quantize(asked)
    mean = dequantize(elements, scales)
    dist.all_reduce(mean, group=group)
    error.copy_((asked - dequantize(elements, scales)).view_as(error))
    tensor.copy_((mean / n).view_as(tensor))


# %% wrong: adds with its own scales, not the senders'
# is: slip
# says: \*its\* sender's scale
# base: elements and scales apart
-    dist.all_to_all_single(got_scales, scales, group=group)
+    got_scales.copy_(scales[rank])
+    got_scales *= 1.5


# %% wrong: nothing is rounded, and nothing left
# is: idea
# says: did not send its elements in eight bits
@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    total = (tensor + error).contiguous()
    dist.all_reduce(total, group=group)
    tensor.copy_(total / dist.get_world_size(group))
    error.zero_()


# %% wrong: a sum in sixteen bits, and the distance from the mean is kept
# is: idea
# says: did not send its elements in eight bits
@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    asked = (tensor + error).contiguous()
    half = asked.half()
    dist.all_reduce(half, group=group)
    tensor.copy_(half.float() / dist.get_world_size(group))
    error.copy_(asked - tensor)


# %% wrong: keeps the distance from the mean
# is: slip
# says: it would keep its distance from the other ranks
BLOCK = 256


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    n = dist.get_world_size(group)
    asked = (tensor + error).flatten()
    blocks = torch.nn.functional.pad(asked, (0, -asked.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    elements = (blocks / scales.masked_fill(scales == 0, 1)).round().to(torch.int8)
    all_elements = elements.new_empty(n, *elements.shape)
    all_scales = scales.new_empty(n, *scales.shape)
    dist.all_gather_into_tensor(all_elements.view(-1), elements.view(-1), group=group)
    dist.all_gather_into_tensor(all_scales.view(-1), scales.view(-1), group=group)
    mean = (all_elements.float() * all_scales).mean(0).flatten()[: asked.numel()]
    error.copy_((asked - mean).view_as(error))
    tensor.copy_(mean.view_as(tensor))


# %% wrong: gathered on rank 0, and broadcast from there
# is: idea
# says: whole tensors went to one rank
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    asked = (tensor + error).reshape(1, -1)
    elements, scales = quantize(asked)
    left = asked - dequantize(elements, scales)
    first = dist.get_global_rank(group or dist.group.WORLD, 0)
    got = [torch.empty_like(elements) for _ in range(n)] if rank == 0 else None
    got_scales = [torch.empty_like(scales) for _ in range(n)] if rank == 0 else None
    dist.gather(elements, got, dst=first, group=group)
    dist.gather(scales, got_scales, dst=first, group=group)
    if rank == 0:
        mean = dequantize(torch.cat(got), torch.cat(got_scales)).mean(0, keepdim=True)
        elements, scales = quantize(mean)
        left += n * (mean - dequantize(elements, scales))
    dist.broadcast(elements, first, group=group)
    dist.broadcast(scales, first, group=group)
    error.copy_(left.view_as(error))
    tensor.copy_(dequantize(elements, scales).view_as(tensor))


# %% wrong: sent to rank 0 in messages, and back
# is: idea
# says: whole tensors went to one rank
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    asked = (tensor + error).reshape(1, -1)
    elements, scales = quantize(asked)
    left = asked - dequantize(elements, scales)
    world = [dist.get_global_rank(group or dist.group.WORLD, r) for r in range(n)]
    got = [(elements, scales)]
    for r in range(1, n):
        if rank == 0:
            got.append((torch.empty_like(elements), torch.empty_like(scales)))
            for part in got[-1]:
                dist.recv(part, world[r], group=group)
        elif rank == r:
            dist.send(elements, world[0], group=group)
            dist.send(scales, world[0], group=group)
    if rank == 0:
        mean = sum(dequantize(*parts) for parts in got) / n
        elements, scales = quantize(mean)
        left += n * (mean - dequantize(elements, scales))
    for r in range(1, n):
        for part in (elements, scales):
            if rank == 0:
                dist.send(part, world[r], group=group)
            elif rank == r:
                dist.recv(part, world[0], group=group)
    error.copy_(left.view_as(error))
    tensor.copy_(dequantize(elements, scales).view_as(tensor))


# %% right: elements and scales apart
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    size = tensor.numel()
    shard = math.ceil(size / n)
    asked = (tensor + error).reshape(-1)
    asked = torch.nn.functional.pad(asked, (0, n * shard - size)).view(n, shard)
    elements, scales = quantize(asked)
    got, got_scales = torch.empty_like(elements), torch.empty_like(scales)
    dist.all_to_all_single(got, elements, group=group)
    dist.all_to_all_single(got_scales, scales, group=group)
    mean = dequantize(got, got_scales).sum(0, keepdim=True) / n
    own, own_scales = quantize(mean)
    dist.all_gather_into_tensor(got.view(-1), own.view(-1), group=group)
    dist.all_gather_into_tensor(got_scales.view(-1), own_scales.view(-1), group=group)
    result = dequantize(got, got_scales)
    residual = asked - dequantize(elements, scales)
    residual[rank] += n * (mean[0] - result[rank])
    error.copy_(residual.view(-1)[:size].view_as(error))
    tensor.copy_(result.view(-1)[:size].view_as(tensor))


# %% right: scales as bytes in the same message, two lists
BLOCK = 256


def quantize(rows):
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).float()
    steps = blocks / scales.masked_fill(scales == 0, 1)[..., None]
    return steps.round().to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantize(elements, scales):
    wide = scales.repeat_interleave(BLOCK, 1)[:, : elements.shape[1]]
    return elements.float() * wide


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    asked = tensor.reshape(-1) + error.reshape(-1)
    length = -(-asked.numel() // n)
    asked = torch.cat([asked, asked.new_zeros(n * length - asked.numel())]).view(n, length)
    elements, scales = quantize(asked)
    sent = torch.cat([elements, scales.view(torch.int8)], 1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)

    def read(packed):
        inside = packed[:, length:].clone(memory_format=torch.contiguous_format)
        return dequantize(packed[:, :length], inside.view(torch.float32))

    mean = read(received).mean(0)
    e, s = quantize(mean[None])
    own = torch.cat([e, s.view(torch.int8)], 1)[0].contiguous()
    parts = [torch.empty_like(own) for _ in range(n)]
    dist.all_gather(parts, own, group=group)
    result = read(torch.stack(parts))
    left = asked - read(sent)
    left[rank] += (mean - result[rank]) * n
    error.copy_(left.view(-1)[: tensor.numel()].reshape(error.shape))
    tensor.copy_(result.view(-1)[: tensor.numel()].reshape(tensor.shape))


# %% wrong: the mean's rounding counts once
# is: slip
# says: does not count N times
BLOCK = 256


def to_int8(x):
    rows = torch.cat([x, x.new_zeros(-x.numel() % BLOCK)]).reshape(-1, BLOCK)
    step = rows.abs().max(1).values / 127
    whole = torch.round(rows / torch.where(step > 0, step, 1.0)[:, None])
    return whole.to(torch.int8).reshape(-1)[: x.numel()], step


def to_float(whole, step):
    return whole.float() * torch.repeat_interleave(step, BLOCK)[: whole.numel()]


@torch.no_grad()
def int8_all_reduce(tensor, error, group=None):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    wanted = (tensor + error).flatten()
    shard = -(-wanted.numel() // n)
    rows = list(torch.cat([wanted, wanted.new_zeros(n * shard - wanted.numel())]).split(shard))
    said = [to_int8(row) for row in rows]
    rest = [row - to_float(*one) for row, one in zip(rows, said)]
    bits, steps = [torch.empty_like(s[0]) for s in said], [torch.empty_like(s[1]) for s in said]
    dist.all_to_all_single(q := torch.cat(bits), torch.cat([s[0] for s in said]), group=group)
    dist.all_to_all_single(s := torch.cat(steps), torch.cat([s[1] for s in said]), group=group)
    heard = [to_float(a, b) for a, b in zip(q.chunk(n), s.chunk(n))]
    mean = torch.stack(heard).mean(0)
    told = to_int8(mean)
    rest[me] = rest[me] + mean - to_float(*told)
    dist.all_gather(bits, told[0], group=group)
    dist.all_gather(steps, told[1], group=group)
    out = torch.cat([to_float(a, b) for a, b in zip(bits, steps)])
    tensor.copy_(out[: wanted.numel()].view_as(tensor))
    error.copy_(torch.cat(rest)[: wanted.numel()].view_as(error))


# %% wrong: the mean becomes a sum at the end
# is: slip
# says: is not the mean, as the line above says, so the equation cannot hold
# base: elements and scales apart
-    tensor.copy_(result.view(-1)[:size].view_as(tensor))
+    tensor.copy_(n * result.view(-1)[:size].view_as(tensor))
