# %% base: what the wrong ones change
@torch.no_grad()
def all_gather_int8(output, shard, block=256, group=None):
    n, size = dist.get_world_size(group), shard.numel()
    pad = -size % block
    blocks = torch.nn.functional.pad(shard.reshape(-1), (0, pad)).view(-1, block)
    scales = blocks.abs().amax(1) / 127
    steps = blocks / torch.where(scales == 0, 1, scales)[:, None]
    bytes_ = steps.round().to(torch.int8).view(-1)[:size].contiguous()
    all_bytes = torch.empty(n * size, dtype=torch.int8)
    dist.all_gather_into_tensor(all_bytes, bytes_, group=group)
    all_scales = torch.empty(n * len(scales))
    dist.all_gather_into_tensor(all_scales, scales, group=group)
    for k in range(n):
        own = torch.nn.functional.pad(all_bytes[k * size : (k + 1) * size].float(), (0, pad))
        row = own.view(-1, block) * all_scales[k * len(scales) : (k + 1) * len(scales), None]
        output[k * size : (k + 1) * size] = row.view(-1)[:size]


# %% wrong: float32 travels
# is: idea
# says: Weights travelled as float32. Send one byte each, which is 4 times less
# base: what the wrong ones change
-    all_bytes = torch.empty(n * size, dtype=torch.int8)
-    dist.all_gather_into_tensor(all_bytes, bytes_, group=group)
+    all_bytes = torch.empty(n * size)
+    dist.all_gather_into_tensor(all_bytes, bytes_.float(), group=group)


# %% wrong: 16 bits travel
# is: idea
# says: Weights travelled in 16 bits
# base: what the wrong ones change
-    all_bytes = torch.empty(n * size, dtype=torch.int8)
-    dist.all_gather_into_tensor(all_bytes, bytes_, group=group)
+    all_bytes = torch.empty(n * size, dtype=torch.bfloat16)
+    dist.all_gather_into_tensor(all_bytes, bytes_.bfloat16(), group=group)


# %% wrong: one scale for a shard
# is: idea
# says: small weights become 0 next to a large one
# base: what the wrong ones change
-    scales = blocks.abs().amax(1) / 127
+    scales = (blocks.abs().max() / 127).repeat(len(blocks))


# %% wrong: block is not used
# is: detail
# says: `block` was not used
# base: what the wrong ones change
-    n, size = dist.get_world_size(group), shard.numel()
+    n, size, block = dist.get_world_size(group), shard.numel(), 256


# %% wrong: cut off instead of rounded
# is: slip
# says: Weights were cut off towards 0
# base: what the wrong ones change
-    bytes_ = steps.round().to(torch.int8).view(-1)[:size].contiguous()
+    bytes_ = steps.to(torch.int8).view(-1)[:size].contiguous()


# %% wrong: the scale is the largest / 128
# is: slip
# says: changed its sign. Divided by largest / 128
# base: what the wrong ones change
-    scales = blocks.abs().amax(1) / 127
+    scales = blocks.abs().amax(1) / 128


# %% wrong: blocks of zeros are divided by zero
# is: slip
# says: A block of zeros was divided by its scale
# base: what the wrong ones change
-    steps = blocks / torch.where(scales == 0, 1, scales)[:, None]
-    bytes_ = steps.round().to(torch.int8).view(-1)[:size].contiguous()
+    scales = torch.where(scales == 0, torch.nan, scales)
+    bytes_ = (blocks / scales[:, None]).round().to(torch.int8).view(-1)[:size].contiguous()


# %% wrong: the own scales for all shards
# is: idea
# says: Each shard is decoded with its own rank's scales
# base: what the wrong ones change
-    dist.all_gather_into_tensor(all_scales, scales, group=group)
+    all_scales.copy_(scales.repeat(n))


# %% wrong: scales in bfloat16
# is: slip
# says: The scales were rounded. Send them as float32
# base: what the wrong ones change
-    dist.all_gather_into_tensor(all_scales, scales, group=group)
+    narrow = torch.empty(len(all_scales), dtype=torch.bfloat16)
+    dist.all_gather_into_tensor(narrow, scales.bfloat16(), group=group)
+    all_scales.copy_(narrow)


# %% wrong: the own shard stays exact
# is: slip
# says: exact on your rank but rounded elsewhere
# base: what the wrong ones change
-        output[k * size : (k + 1) * size] = row.view(-1)[:size]
+        output[k * size : (k + 1) * size] = row.view(-1)[:size]
+    rank = dist.get_rank(group)
+    output[rank * size : (rank + 1) * size] = shard


# %% wrong: rows of bytes are added
# is: idea
# says: Bytes of different scales were added
# base: what the wrong ones change
-    dist.all_gather_into_tensor(all_bytes, bytes_, group=group)
+    all_bytes.copy_(bytes_.repeat(n))
+    dist.all_reduce(all_bytes, group=group)


# %% wrong: the other way round
# is: slip
# says: The shards are in the wrong places
# base: what the wrong ones change
-        output[k * size : (k + 1) * size] = row.view(-1)[:size]
+        output[(n - 1 - k) * size : (n - k) * size] = row.view(-1)[:size]


# %% wrong: the master is rounded, too
# is: slip
# says: the master keeps its low bits
# base: what the wrong ones change
-    n, size = dist.get_world_size(group), shard.numel()
+    n, size, rank = dist.get_world_size(group), shard.numel(), dist.get_rank(group)
@@
-        output[k * size : (k + 1) * size] = row.view(-1)[:size]
+        output[k * size : (k + 1) * size] = row.view(-1)[:size]
+    shard.copy_(output[rank * size : (rank + 1) * size])


# %% wrong: the whole is returned
# is: form
# says: `output` was not written
# base: what the wrong ones change
-    for k in range(n):
+    output = output.clone()
+    for k in range(n):


# %% wrong: eight bits of a float, as they are
# is: form
# says: gloo cannot send every dtype, for example not float8. Send
# base: what the wrong ones change
-    bytes_ = steps.round().to(torch.int8).view(-1)[:size].contiguous()
-    all_bytes = torch.empty(n * size, dtype=torch.int8)
+    bytes_ = steps.to(torch.float8_e4m3fn).view(-1)[:size].contiguous()
+    all_bytes = torch.empty(n * size, dtype=torch.float8_e4m3fn)


# %% wrong: the bytes are decoded without a sign
# is: slip
# says: View the bytes as torch.int8 before you decode them
# base: what the wrong ones change
-        own = torch.nn.functional.pad(all_bytes[k * size : (k + 1) * size].float(), (0, pad))
+        bytes_ = all_bytes[k * size : (k + 1) * size].view(torch.uint8)
+        own = torch.nn.functional.pad(bytes_.float(), (0, pad))


# %% wrong: the largest weight of a block instead of the largest magnitude
# is: slip
# says: Take abs.. before the maximum
# base: what the wrong ones change
-    scales = blocks.abs().amax(1) / 127
+    scales = blocks.amax(1) / 127


# %% wrong: rounded down
# is: slip
# says: Weights were rounded down, so some are nearly a whole scale wrong
# base: what the wrong ones change
-    bytes_ = steps.round().to(torch.int8).view(-1)[:size].contiguous()
+    bytes_ = steps.floor().to(torch.int8).view(-1)[:size].contiguous()


# %% wrong: all ranks instead of the group's
# is: slip
# says: Pass group=group to the all-gather
# base: what the wrong ones change
-    dist.all_gather_into_tensor(all_scales, scales, group=group)
+    dist.all_gather_into_tensor(all_scales, scales)


# %% wrong: the scales are read where they lie, behind the weights
# is: form
# says: clone\(\) the part before you view it as float32
@torch.no_grad()
def all_gather_int8(output, shard, block=256, group=None):
    n, size = dist.get_world_size(group), shard.numel()
    blocks = torch.nn.functional.pad(shard.float().reshape(-1), (0, -size % block)).view(-1, block)
    scales = blocks.abs().amax(1) / 127
    steps = (blocks / scales.masked_fill(scales == 0, 1)[:, None]).round().to(torch.int8).view(-1)
    packed = torch.cat([steps[:size].view(torch.uint8), scales.view(torch.uint8)])
    rows = [torch.empty_like(packed) for _ in range(n)]
    dist.all_gather(rows, packed, group=group)
    for row, part in zip(rows, output.view(n, size), strict=True):
        wide = row[size:].view(torch.float32).repeat_interleave(block)[:size]
        part.copy_(row[:size].view(torch.int8).float() * wide)


# %% right: scales and weights in one message of bytes
@torch.no_grad()
def all_gather_int8(output, shard, block=256, group=None):
    n, parts = dist.get_world_size(group), shard.view(-1).split(block)
    scales = torch.stack([part.abs().max() for part in parts]) / 127
    scales[scales == 0] = 1
    wide = scales.repeat_interleave(block)[: shard.numel()]
    elements = torch.round(shard.view(-1) / wide).to(torch.int8)
    packed = torch.cat([elements.view(torch.uint8), scales.view(torch.uint8)])
    rows = [torch.empty_like(packed) for _ in range(n)]
    dist.all_gather(rows, packed, group=group)
    decoded = []
    for row in rows:
        own = row[shard.numel() :].clone().view(torch.float32).repeat_interleave(block)
        decoded.append(row[: shard.numel()].view(torch.int8).float() * own[: shard.numel()])
    output.copy_(torch.cat(decoded).view_as(output))


# %% right: unsigned bytes with an offset, shard by shard
@torch.no_grad()
def all_gather_int8(output, shard, block=256, group=None):
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    for place, root in enumerate(ranks):
        size = shard.numel()
        count = math.ceil(size / block)
        row = torch.zeros(count * block)
        row[:size] = shard
        scales = row.view(count, block).abs().max(dim=1).values.div(127)
        bytes_ = (row.view(count, block) / scales.clamp(min=1e-30)[:, None]).round() + 127
        bytes_ = bytes_.to(torch.uint8).view(-1)[:size].clone()
        dist.broadcast(bytes_, root, group=group)
        dist.broadcast(scales, root, group=group)
        row[:size] = bytes_.float() - 127
        output[place * size : (place + 1) * size] = (row.view(count, block) * scales[:, None]).view(-1)[:size]
