# %% base: what the wrong ones change
def round_to(x, exponent_bits, mantissa_bits, *, finite=False):
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = torch.frexp(x).exponent - 1
    step = 2.0 ** (exponent.clamp(min=1 - bias) - mantissa_bits).double()
    rounded = x.div(step).round().mul(step)
    last = 2.0 ** (bias - mantissa_bits)
    if finite:
        largest = 2.0 ** (bias + 2) - 4 * last
        return rounded.clip(min=-largest, max=largest)
    largest = 2.0 ** (bias + 1) - last
    return torch.where(rounded.abs() > largest, x * math.inf, rounded)


# %% wrong: the low bits are cut off
# is: idea
# says: half of all values are one step too small
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = torch.trunc(x / step) * step


# %% wrong: ties go away from zero
# is: slip
# says: In fp16, 1.00048828125 is halfway and rounds to 1.0
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = (torch.floor(x.abs() / step + 0.5) * step).copysign(x)


# %% wrong: halves go up
# is: slip
# says: Halves go up
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = torch.floor(x / step + 0.5) * step


# %% wrong: halves go up, and zero keeps its sign
# is: slip
# says: Halves go up
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = (torch.floor(x / step + 0.5) * step).abs().copysign(x)



# %% wrong: subnormal numbers become 0
# is: slip
# says: 6e-8 exists in fp16
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = x.div(step).round().mul(step)
+    rounded = torch.where(x.abs() < 2.0 ** (1 - bias), torch.zeros_like(x).copysign(x), rounded)


# %% wrong: the step goes on shrinking
# is: slip
# says: the step goes on shrinking
# base: what the wrong ones change
-    step = 2.0 ** (exponent.clamp(min=1 - bias) - mantissa_bits).double()
+    step = 2.0 ** (exponent - mantissa_bits).double()


# %% wrong: through float32
# is: detail
# says: a value next to a tie became the tie
# base: what the wrong ones change
-    exponent = torch.frexp(x).exponent - 1
+    x = x.float().double()
+    exponent = torch.frexp(x).exponent - 1


# %% wrong: the exponent of frexp as it is
# is: slip
# says: That of frexp is, since its mantissa is between 1/2 and 1
# base: what the wrong ones change
-    exponent = torch.frexp(x).exponent - 1
+    exponent = torch.frexp(x).exponent


# %% wrong: subnormal numbers begin at 2^-bias
# is: slip
# says: Subnormal numbers begin a binade too low
# base: what the wrong ones change
-    step = 2.0 ** (exponent.clamp(min=1 - bias) - mantissa_bits).double()
+    step = 2.0 ** (exponent.clamp(min=-bias) - mantissa_bits).double()


# %% wrong: the logarithm of negative numbers
# is: form
# says: Negative numbers became NaN
# base: what the wrong ones change
-    exponent = torch.frexp(x).exponent - 1
+    exponent = torch.floor(torch.log2(x))


# %% wrong: the logarithm of infinity
# is: detail
# says: Infinity became NaN
# base: what the wrong ones change
-    exponent = torch.frexp(x).exponent - 1
+    exponent = torch.floor(torch.log2(x.abs()))


# %% wrong: infinite from the largest number on
# is: slip
# says: 65519 becomes 65504, but 65520 becomes inf
# base: what the wrong ones change
-    return torch.where(rounded.abs() > largest, x * math.inf, rounded)
+    return torch.where(x.abs() > largest, x * math.inf, rounded)


# %% wrong: a bias of 2^(e-1)
# is: slip
# says: bias is 2.\(exponent_bits - 1\) - 1
# base: what the wrong ones change
-    bias = 2 ** (exponent_bits - 1) - 1
+    bias = 2 ** (exponent_bits - 1)


# %% wrong: a bias of 2^e
# is: slip
# says: bias is 2.\(exponent_bits - 1\) - 1
# base: what the wrong ones change
-    bias = 2 ** (exponent_bits - 1) - 1
+    bias = 2**exponent_bits


# %% wrong: a negative zero becomes positive
# is: detail
# says: -0 lost its sign
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = x.div(step).round().mul(step) + 0.0


# %% wrong: e4m3 overflows to infinity
# is: slip
# says: 448 \+ \.\.\. = inf, but e4m3 has no infinities
# base: what the wrong ones change
-        return rounded.clip(min=-largest, max=largest)
+        return torch.where(rounded.abs() > largest, x * math.inf, rounded)


# %% wrong: e4m3 overflows to NaN
# is: slip
# says: only NaN becomes NaN
# base: what the wrong ones change
-        return rounded.clip(min=-largest, max=largest)
+        return torch.where(rounded.abs() > largest, math.nan, rounded)


# %% wrong: e4m3 ends at 240, as IEEE's rule would have it
# is: slip
# says: The largest number of e4m3 is 448
# base: what the wrong ones change
-        largest = 2.0 ** (bias + 2) - 4 * last
+        largest = 2.0 ** (bias + 1) - last


# %% wrong: every format saturates
# is: slip
# says: Your function saturates, but without finite=True, values beyond are infinite
# base: what the wrong ones change
-    return torch.where(rounded.abs() > largest, x * math.inf, rounded)
+    return rounded.clip(min=-largest, max=largest)


# %% wrong: nothing overflows
# is: slip
# says: Your function never overflows
# base: what the wrong ones change
-    return torch.where(rounded.abs() > largest, x * math.inf, rounded)
+    return rounded


# %% wrong: infinities without their sign
# is: slip
# says: Infinity lost its sign
# base: what the wrong ones change
-    return torch.where(rounded.abs() > largest, x * math.inf, rounded)
+    return torch.where(rounded.abs() > largest, math.inf, rounded)


# %% wrong: PyTorch's casts
# is: idea
# says: Use exponent_bits and mantissa_bits as they are passed
def round_to(x, exponent_bits, mantissa_bits, *, finite=False):
    dtypes = {(5, 2): torch.float8_e5m2, (4, 3): torch.float8_e4m3fn, (8, 7): torch.bfloat16}
    dtype = dtypes.get((exponent_bits, mantissa_bits), torch.float16)
    if finite:
        x = x.clamp(-448, 448)
    return x.to(dtype).double()


# %% wrong: x is overwritten, and returned
# is: slip
# says: the caller still has x
# base: what the wrong ones change
-    last = 2.0 ** (bias - mantissa_bits)
-    if finite:
+    last = 2.0 ** (bias - mantissa_bits)
+    if finite:
+        largest = 2.0 ** (bias + 2) - 4 * last
+        return x.copy_(rounded.clip(min=-largest, max=largest))
+    largest = 2.0 ** (bias + 1) - last
+    return x.copy_(torch.where(rounded.abs() > largest, x * math.inf, rounded))
+    if finite:


# %% wrong: subnormal numbers become 0, without a sign
# is: slip
# says: Subnormal numbers are missing.* And -1e-30
# base: what the wrong ones change
-    rounded = x.div(step).round().mul(step)
+    rounded = x.div(step).round().mul(step)
+    rounded = torch.where(x.abs() < 2.0 ** (1 - bias), 0.0, rounded + 0.0)


# %% wrong: finite is not used
# is: slip
# says: finite=True was not used
# base: what the wrong ones change
-    if finite:
+    if False:


# %% wrong: the exponent of frexp less 2
# is: slip
# says: The mantissa has one bit too many
# base: what the wrong ones change
-    exponent = torch.frexp(x).exponent - 1
+    exponent = torch.frexp(x).exponent - 2


# %% wrong: subnormal numbers begin at 2^(2 - bias)
# is: slip
# says: Subnormal numbers begin a binade too high
# base: what the wrong ones change
-    step = 2.0 ** (exponent.clamp(min=1 - bias) - mantissa_bits).double()
+    step = 2.0 ** (exponent.clamp(min=2 - bias) - mantissa_bits).double()


# %% wrong: x has one dimension alone
# is: detail
# says: must be real number, not list
def round_to(x, exponent_bits, mantissa_bits, *, finite=False):
    bias = 2 ** (exponent_bits - 1) - 1
    largest = (2 - 2.0**-mantissa_bits) * 2.0**bias
    if finite:
        largest = (2 - 2.0 ** (1 - mantissa_bits)) * 2.0 ** (bias + 1)

    def nearest(value):
        if math.isnan(value):
            return value
        if math.isinf(value):
            return math.copysign(largest if finite else math.inf, value)
        step = 2.0 ** (max(math.frexp(value)[1] - 1, 1 - bias) - mantissa_bits)
        near = math.copysign(round(value / step) * step, value)
        return near if abs(near) <= largest else math.copysign(largest if finite else math.inf, value)

    return torch.tensor([nearest(value) for value in x.tolist()], dtype=torch.float64)


# %% wrong: the distance is in float32
# is: detail
# says: The distance was computed in float32
# base: what the wrong ones change
-    step = 2.0 ** (exponent.clamp(min=1 - bias) - mantissa_bits).double()
+    step = torch.exp2(exponent.clamp(min=1 - bias) - mantissa_bits)


# %% wrong: a power of integers
# is: form
# says: Write 2.0 .. e.double
# base: what the wrong ones change
-    step = 2.0 ** (exponent.clamp(min=1 - bias) - mantissa_bits).double()
+    step = 2 ** (exponent.clamp(min=1 - bias) - mantissa_bits)


# %% wrong: the logarithm rounded to nearest
# is: slip
# says: the logarithm of .x. rounded down
# base: what the wrong ones change
-    exponent = torch.frexp(x).exponent - 1
+    exponent = torch.log2(x.abs()).round()


# %% right: integer arithmetic on the bits
def round_to(x, exponent_bits, mantissa_bits, *, finite=False):
    bias = 2 ** (exponent_bits - 1) - 1
    sign, size = torch.ones_like(x).copysign(x), x.abs()
    bits = size.view(torch.int64)
    dropped = 52 - mantissa_bits
    half, last = (1 << (dropped - 1)) - 1, bits >> dropped & 1
    normal = ((bits + half + last) >> dropped << dropped).view(torch.float64)
    unit = 2.0 ** (1 - bias - mantissa_bits)
    rounded = torch.where(size < 2.0 ** (1 - bias), torch.round(size / unit) * unit, normal)
    if finite:
        top = (2 - 2 * 2.0**-mantissa_bits) * 2.0 ** (bias + 1)
        rounded = torch.where(rounded > top, top, rounded)
    else:
        top = (2 - 2.0**-mantissa_bits) * 2.0**bias
        rounded = torch.where(rounded > top, math.inf, rounded)
    return torch.where(x.isnan(), x, rounded * sign)


# %% right: by a large number that is added and taken away
def round_to(x, exponent_bits, mantissa_bits, *, finite=False):
    bias = 2 ** (exponent_bits - 1) - 1
    top = (2 - (2 if finite else 1) * 2.0**-mantissa_bits) * 2.0 ** (bias + finite)
    beyond = x.abs() >= top + 2.0 ** (bias + finite - mantissa_bits - 1)
    size = torch.where(beyond, 1.0, x.abs())
    exponent = (torch.frexp(size).exponent - 1).clamp(min=1 - bias)
    large = torch.exp2((exponent - mantissa_bits + 52).double())
    rounded = (size + large) - large
    end = top if finite else math.inf
    rounded = torch.where(beyond, end, rounded.clamp(max=top))
    return torch.where(x.isnan(), x, rounded.copysign(x))


# %% right: the exponent by a logarithm, which is wrong only where both steps give the same
def round_to(x, exponent_bits, mantissa_bits, *, finite=False):
    lowest = 2 - 2 ** (exponent_bits - 1)
    exponent = torch.log2(x.abs()).floor().clamp(lowest, 1023)
    step = 2.0 ** (exponent - mantissa_bits)
    rounded = (x / step).round() * step
    top = 2.0 ** (2 - lowest) - 2.0 ** (2 - lowest - mantissa_bits)
    if not finite:
        top = 2.0 ** (2 - lowest) - 2.0 ** (1 - lowest - mantissa_bits)
        return torch.where(rounded.abs() > top, x * math.inf, rounded)
    top = 2.0 ** (3 - lowest) - 2.0 ** (3 - lowest - mantissa_bits)
    return rounded.clamp(-top, top)
