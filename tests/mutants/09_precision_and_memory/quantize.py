# %% base: what the wrong ones change
def tiles(x, block):
    rows, columns = (size if side == -1 else side for side, size in zip(block, x.shape))
    down, across = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    edges = (0, across * columns - x.shape[1], 0, down * rows - x.shape[0])
    return torch.nn.functional.pad(x, edges).view(down, rows, across, columns)


def spread(scales, like, block):
    rows, columns = (size if side == -1 else side for side, size in zip(block, like.shape))
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return whole[: like.shape[0], : like.shape[1]]


def quantize(x, block, dtype=torch.float8_e4m3fn, group=None):
    largest = torch.finfo(dtype).max
    amax = tiles(x.float().abs(), block).amax((1, 3))
    if group is not None:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    scales = amax / largest
    scales[scales == 0] = 1
    scaled = x.float() / spread(scales, x, block)
    return scaled.clamp(-largest, largest).to(dtype), scales


def dequantize(values, scales, block):
    return values.float() * spread(scales, values, block)


# %% wrong: the scale is upside down
# is: slip
# says: The scale is upside down
# base: what the wrong ones change
-    scales = amax / largest
+    scales = torch.where(amax > 0, largest / amax, 1.0)
@@
-    scaled = x.float() / spread(scales, x, block)
+    scaled = x.float() * spread(scales, x, block)
@@
-    return values.float() * spread(scales, values, block)
+    return values.float() / spread(scales, values, block)


# %% wrong: dequantize divides
# is: slip
# says: dequantize divides by the scale
# base: what the wrong ones change
-    return values.float() * spread(scales, values, block)
+    return values.float() / spread(scales, values, block)


# %% wrong: 448 for e5m2
# is: slip
# says: The largest number of this format is 57,344
# base: what the wrong ones change
-    largest = torch.finfo(dtype).max
+    largest = 448.0


# %% wrong: nothing is clamped
# is: detail
# says: values into NaN on older PyTorch
# base: what the wrong ones change
-    return scaled.clamp(-largest, largest).to(dtype), scales
+    return scaled.to(dtype), scales


# %% wrong: the largest number, and not the largest magnitude
# is: slip
# says: The scale depends on signs, .* -7 next to 5
# base: what the wrong ones change
-    amax = tiles(x.float().abs(), block).amax((1, 3))
+    amax = tiles(x.float(), block).amax((1, 3))


# %% wrong: a signed scale
# is: slip
# says: The scale has the sign of the block's largest element
# base: what the wrong ones change
-    amax = tiles(x.float().abs(), block).amax((1, 3))
+    parts = tiles(x.float(), block).transpose(1, 2).flatten(2)
+    amax = parts.gather(2, parts.abs().argmax(2, keepdim=True))[..., 0]


# %% wrong: blocks along the wrong dimension
# is: slip
# says: the dimension over which the product sums
# base: what the wrong ones change
-def quantize(x, block, dtype=torch.float8_e4m3fn, group=None):
+def quantize(x, block, dtype=torch.float8_e4m3fn, group=None):
+    block = block[::-1]


# %% wrong: each rank's own largest magnitude
# is: slip
# says: two scales for one weight
# base: what the wrong ones change
-    if group is not None:
-        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)


# %% wrong: all ranks agree, and not those of the group
# is: slip
# says: wait for rank 1
# base: what the wrong ones change
-        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
+        dist.all_reduce(amax, op=dist.ReduceOp.MAX)


# %% wrong: the magnitudes are added over the ranks
# is: slip
# says: largest magnitudes were added
# base: what the wrong ones change
-        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
+        dist.all_reduce(amax, group=group)


# %% wrong: the magnitudes are averaged over the ranks
# is: slip
# says: largest magnitudes were averaged
# base: what the wrong ones change
-        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
+        dist.all_reduce(amax, group=group)
+        amax = amax / dist.get_world_size(group)


# %% wrong: the whole weight is gathered
# is: slip
# says: each rank's largest magnitude is enough, 4 bytes
# base: what the wrong ones change
-        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
+        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
+        dist.all_gather(parts, x.contiguous(), group=group)
+        amax = torch.cat(parts).abs().max().view(1, 1)


# %% wrong: scales in float64
# is: form
# says: Scales are float32, whatever x is
# base: what the wrong ones change
-    amax = tiles(x.float().abs(), block).amax((1, 3))
+    amax = tiles(x.double().abs(), block).amax((1, 3))


# %% wrong: 240 is taken for the largest number
# is: slip
# says: scale = the block's largest magnitude / the format's largest number
# base: what the wrong ones change
-    largest = torch.finfo(dtype).max
+    largest = 240.0


# %% wrong: fp8 numbers are multiplied
# is: slip
# says: call values.float\(\) first
# base: what the wrong ones change
-    return values.float() * spread(scales, values, block)
+    return values * spread(scales, values, block)


# %% wrong: the scales come first
# is: form
# says: Return values first, and then scales
# base: what the wrong ones change
-    return scaled.clamp(-largest, largest).to(dtype), scales
+    return scales, scaled.clamp(-largest, largest).to(dtype)


# %% wrong: a block of zeros is divided by 0
# is: slip
# says: 0 / 0 is NaN
# base: what the wrong ones change
-    scales[scales == 0] = 1


# %% wrong: a scale in 8 bits
# is: slip
# says: The scale is kept in 8 bits and rounded
# base: what the wrong ones change
-    scales = amax / largest
+    scales = (amax / largest).to(dtype).float()


# %% wrong: a scale that is stored in 8 bits
# is: form
# says: Scales stay in float32, with 4 bytes per block
# base: what the wrong ones change
-    return scaled.clamp(-largest, largest).to(dtype), scales
+    return scaled.clamp(-largest, largest).to(dtype), scales.to(dtype)


# %% wrong: x stays in bfloat16
# is: slip
# says: x.float\(\) first
# base: what the wrong ones change
-    amax = tiles(x.float().abs(), block).amax((1, 3))
+    amax = tiles(x.abs(), block).amax((1, 3))
@@
-    scales = amax / largest
+    scales = (amax / largest).float()


# %% wrong: one scale whatever the block is
# is: idea
# says: All of x has one scale
# base: what the wrong ones change
-    scales = amax / largest
+    scales = (amax.max() / largest).expand_as(amax).clone()


# %% wrong: small magnitudes get the scale of a constant
# is: detail
# says: however small
# base: what the wrong ones change
-    scales = amax / largest
+    scales = amax.clamp(min=1e-12) / largest


# %% wrong: whole numbers
# is: slip
# says: round\(\) makes whole numbers
# base: what the wrong ones change
-    return scaled.clamp(-largest, largest).to(dtype), scales
+    return scaled.round().clamp(-largest, largest).to(dtype), scales


# %% wrong: multiplied by the scale
# is: slip
# says: x was multiplied by the scale
# base: what the wrong ones change
-    scaled = x.float() / spread(scales, x, block)
+    scaled = x.float() * spread(scales, x, block)


# %% wrong: x is not divided at all
# is: slip
# says: x was not divided by its block's scale
# base: what the wrong ones change
-    scaled = x.float() / spread(scales, x, block)
+    scaled = x.float()


# %% wrong: x is changed
# is: slip
# says: x was changed: it belongs to the caller
# base: what the wrong ones change
-    scaled = x.float() / spread(scales, x, block)
+    scaled = x.div_(spread(scales, x, block))


# %% wrong: no edges
# is: slip
# says: Blocks at the edges can be smaller
# base: what the wrong ones change
-    edges = (0, across * columns - x.shape[1], 0, down * rows - x.shape[0])
-    return torch.nn.functional.pad(x, edges).view(down, rows, across, columns)
+    return x.view(down, rows, across, columns)


# %% right: unfold
def quantize(x, block, dtype=torch.float8_e4m3fn, group=None):
    rows, columns = sides(x, block)
    largest = torch.finfo(dtype).max
    padded = padded_to(x.float(), rows, columns)
    amax = padded.unfold(0, rows, rows).unfold(1, columns, columns).abs().amax((2, 3))
    if group is not None:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    scales = torch.where(amax == 0, 1.0, amax / largest)
    each = scales.kron(torch.ones(rows, columns, device=x.device))
    scaled = padded * (1 / each) if float(scales.min()) > 1e-30 else padded / each
    scaled = scaled.clamp(-largest, largest)[: x.shape[0], : x.shape[1]]
    return scaled.to(dtype), scales


def dequantize(values, scales, block):
    each = scales.kron(torch.ones(*sides(values, block), device=values.device))
    return values.to(torch.float32) * each[: values.shape[0], : values.shape[1]]


def sides(x, block):
    return [x.shape[k] if side == -1 else side for k, side in enumerate(block)]


def padded_to(x, rows, columns):
    tall, wide = math.ceil(x.shape[0] / rows) * rows, math.ceil(x.shape[1] / columns) * columns
    padded = x.new_zeros(tall, wide)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded


# %% right: block by block
def quantize(x, block, dtype=torch.float8_e4m3fn, group=None):
    rows, columns = (x.shape[k] if block[k] < 0 else block[k] for k in (0, 1))
    most = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}[dtype]
    values, scales = torch.empty(x.shape, dtype=dtype, device=x.device), []
    for top in range(0, x.shape[0], rows):
        for left in range(0, x.shape[1], columns):
            part = x[top : top + rows, left : left + columns].float()
            amax = torch.maximum(part.max(), -part.min())
            if group is not None:
                dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
            scale = amax / most if amax > 0 else torch.ones_like(amax)
            values[top : top + rows, left : left + columns] = (part / scale).clamp(-most, most).to(dtype)
            scales.append(scale)
    return values, torch.stack(scales).view(math.ceil(x.shape[0] / rows), -1)


def dequantize(values, scales, block):
    rows, columns = (values.shape[k] if block[k] < 0 else block[k] for k in (0, 1))
    down = torch.arange(values.shape[0], device=values.device) // rows
    across = torch.arange(values.shape[1], device=values.device) // columns
    return values.float() * scales[down[:, None], across]


# %% right: the largest magnitudes of all ranks are gathered
# base: what the wrong ones change
-        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
+        every = [torch.empty_like(amax) for _ in range(dist.get_world_size(group))]
+        dist.all_gather(every, amax, group=group)
+        amax = torch.stack(every).amax(0)
