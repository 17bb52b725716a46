# %% base: what the wrong ones change
def stochastic_round(x, generator=None):
    bits = x.view(torch.int32)
    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
    rounded = ((bits + noise) & -65536).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).bfloat16()


# %% wrong: noise of a step both ways
# is: slip
# says: up or down from an exact value
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(-65535, 65536, x.shape, generator=generator, dtype=torch.int32)


# %% wrong: the lower half is cut off
# is: idea
# says: always go down, .* bias is -½ step
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = 0


# %% wrong: floor
# is: idea
# says: always go away from zero, because floor
def stochastic_round(x, generator=None):
    bits = x.view(torch.int32)
    step = torch.where(x < 0, 65535, 0).int()
    rounded = ((bits + step) & -65536).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).bfloat16()


# %% wrong: to nearest
# is: idea
# says: your function rounds to nearest
def stochastic_round(x, generator=None):
    return x.bfloat16()


# %% wrong: noise in bfloat16
# is: idea
# says: added to a number that has already lost its bits
def stochastic_round(x, generator=None):
    rounded = x.bfloat16()
    exponent = torch.frexp(rounded.float()).exponent
    step = torch.ldexp(torch.ones_like(x), exponent - 8).bfloat16()
    noise = torch.rand(x.shape, generator=generator).bfloat16() * 0.98 - 0.49
    return torch.where(x.isfinite(), rounded + noise * step / 2, rounded)


# %% wrong: noise of half a step
# is: slip
# says: The noise reaches only half of a step. Draw integers from 0 to 65,535
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(0, 32768, x.shape, generator=generator, dtype=torch.int32)


# %% wrong: one draw for the whole tensor
# is: slip
# says: All elements took the same draw
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(0, 65536, (1,), generator=generator, dtype=torch.int32)


# %% wrong: one draw for each column
# is: slip
# says: the rows of x took the same draws
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(0, 65536, x.shape[-1:], generator=generator, dtype=torch.int32)


# %% wrong: the upper half is not shifted back
# is: form
# says: the numbers are not near the numbers before rounding
# base: what the wrong ones change
-    rounded = ((bits + noise) & -65536).view(torch.float32)
+    rounded = ((bits + noise) >> 16).view(torch.float32)


# %% wrong: the bits of negative numbers are cut off
# is: slip
# says: These numbers always go to the same neighbour, although others do not
# base: what the wrong ones change
-    rounded = ((bits + noise) & -65536).view(torch.float32)
+    rounded = (torch.where(x > 0, bits + noise, bits) & -65536).view(torch.float32)


# %% wrong: the noise has 64 bits
# is: form
# says: torch.randint draws int64 unless you pass dtype=torch.int32
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(0, 65536, x.shape, generator=generator)


# %% wrong: a coin
# is: idea
# says: A coin was thrown
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
-    rounded = ((bits + noise) & -65536).view(torch.float32)
+    up = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int32)
+    rounded = ((bits + 65535 * up) & -65536).view(torch.float32)


# %% wrong: up and down exchanged
# is: slip
# says: The probabilities are exchanged
# base: what the wrong ones change
-    rounded = ((bits + noise) & -65536).view(torch.float32)
+    low = bits & 65535
+    up = (noise >= low) & (low > 0)
+    rounded = ((bits & -65536) + 65536 * up.int()).view(torch.float32)


# %% wrong: the upper neighbour of a negative number is greater
# is: slip
# says: The bits are sign and magnitude
def stochastic_round(x, generator=None):
    down = (x.view(torch.int32) & -65536).view(torch.float32)
    step = ((down.abs().view(torch.int32) + 65536).view(torch.float32) - down.abs())
    fraction = ((x - down).abs() / step).nan_to_num()
    up = torch.rand(x.shape, generator=generator) < fraction
    return torch.where(x.isfinite(), torch.where(up, down + step, down), x).bfloat16()


# %% wrong: noise of 8 bits
# is: slip
# says: The noise has 8 bits
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(0, 256, x.shape, generator=generator, dtype=torch.int32) * 256


# %% wrong: infinity plus noise
# is: slip
# says: inf \+ noise = NaN
def stochastic_round(x, generator=None):
    down = (x.view(torch.int32) & -65536).view(torch.float32)
    up = torch.where(down == x, down, ((x.view(torch.int32) & -65536) + 65536).view(torch.float32))
    noise = torch.rand(x.shape, generator=generator)
    fraction = torch.where(down == up, 0.0, (x - down) / (up - down)).double()
    chosen = torch.where(noise < fraction, up, down)
    return (chosen + 0 * noise * chosen).bfloat16()


# %% wrong: noise on NaN
# is: slip
# says: Noise on NaN's bits carries
# base: what the wrong ones change
-    return torch.where(x.isfinite(), rounded, x).bfloat16()
+    return rounded.bfloat16()


# %% wrong: the default generator
# is: slip
# says: the same seed gave other values
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = torch.randint(0, 65536, x.shape, dtype=torch.int32)


# %% wrong: a seed of its own
# is: slip
# says: two generators with different seeds gave the same values
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    generator = torch.Generator().manual_seed(0)
+    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)


# %% wrong: the default generator gets a seed
# is: slip
# says: default generator was changed, although another generator was passed
# base: what the wrong ones change
-    bits = x.view(torch.int32)
+    torch.manual_seed(0)
+    bits = x.view(torch.int32)


# %% wrong: without a generator one with a seed of its own
# is: slip
# says: do not follow torch.manual_seed
# base: what the wrong ones change
-    bits = x.view(torch.int32)
+    bits = x.view(torch.int32)
+    if generator is None:
+        generator = torch.Generator()
+        generator.seed()


# %% wrong: x is changed
# is: slip
# says: x was changed
# base: what the wrong ones change
-    rounded = ((bits + noise) & -65536).view(torch.float32)
-    return torch.where(x.isfinite(), rounded, x).bfloat16()
+    finite = x.isfinite()
+    bits += torch.where(finite, noise, 0)
+    bits &= torch.where(finite, -65536, -1)
+    return x.bfloat16()


# %% wrong: float32 comes back
# is: slip
# says: the result is not in bfloat16 but in float32
# base: what the wrong ones change
-    return torch.where(x.isfinite(), rounded, x).bfloat16()
+    return torch.where(x.isfinite(), rounded, x)


# %% wrong: the lower half is not cleared before the cast
# is: slip
# says: rounds a second time, to nearest. Clear the lower half
# base: what the wrong ones change
-    rounded = ((bits + noise) & -65536).view(torch.float32)
+    rounded = (bits + noise).view(torch.float32)


# %% wrong: one draw for the whole tensor, whatever the generator
# is: slip
# says: All elements took the same draw
# base: what the wrong ones change
-    noise = torch.randint(0, 65536, x.shape, generator=generator, dtype=torch.int32)
+    noise = int(torch.randint(0, 65536, (), generator=generator))


# %% right: the fraction compared with a uniform number
def stochastic_round(x, generator=None):
    bits = x.view(torch.int32)
    down = bits & -65536
    fraction = (bits - down).double() / 65536
    draw = torch.rand(x.shape, generator=generator, dtype=torch.float64)
    chosen = torch.where(draw < fraction, down + 65536, down)
    chosen = torch.where(x.isfinite(), chosen, bits)
    return chosen.view(torch.float32).bfloat16()


# %% right: the upper half as an integer of 16 bits
def stochastic_round(x, generator=None):
    halves = x.contiguous().view(torch.int16).reshape(*x.shape, 2)  # the lower half comes first
    low, high = halves[..., 0].int() & 0xFFFF, halves[..., 1].int()
    carry = (low + torch.randint(1 << 16, x.shape, generator=generator)) >> 16
    rounded = (high + carry).short().view(torch.bfloat16)
    return torch.where(x.isfinite(), rounded, x.bfloat16())
