# %% base: what the wrong ones change
from course_lib.precision.codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, ByteStates


class Adam8bit(ByteStates):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, block=256):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, block=block))
        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_UNSIGNED}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, self.state[param], group)

    def update(self, param, state, group):
        (beta1, beta2), lr, grad = group["betas"], group["lr"], param.grad
        t = state["step"] = state.get("step", 0) + 1
        m, v = (self.read(state, name, param, group["block"]) for name in "mv")
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad**2
        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)
        param.mul_(1 - lr * group["weight_decay"])
        param.sub_(lr * mhat / (vhat.sqrt() + group["eps"]))
        self.write(state, "m", m, group["block"])
        self.write(state, "v", v, group["block"])

    def read(self, state, name, param, block):
        if name not in state:
            return torch.zeros_like(param)
        if param.numel() < 4096:
            return state[name]
        values = self.numbers[name].to(param.device)[state[name].long()]
        scales = state[name + "_scales"].repeat_interleave(block)[: param.numel()]
        return (values * scales).view_as(param)

    def write(self, state, name, moment, block):
        if moment.numel() < 4096:
            state[name] = moment
            return
        flat, numbers = moment.flatten(), self.numbers[name].to(moment.device)
        parts = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
        scales = parts.abs().amax(1)
        shares = parts / scales.where(scales > 0, 1.0)[:, None]
        codes = torch.bucketize(shares, (numbers[1:] + numbers[:-1]) / 2)
        state[name] = codes.flatten()[: len(flat)].to(torch.uint8)
        state[name + "_scales"] = scales


# %% wrong: linear codes for v
# is: slip
# says: v has linear codes
# base: what the wrong ones change
-        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_UNSIGNED}
+        self.numbers = {"m": DYNAMIC_SIGNED, "v": torch.linspace(0, 1, 256)}


# %% wrong: linear codes for both
# is: slip
# says: Both moments have linear codes
# base: what the wrong ones change
-        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_UNSIGNED}
+        linear = torch.cat([torch.arange(-127, 128) / 127, torch.ones(1)])
+        self.numbers = {"m": linear, "v": torch.linspace(0, 1, 256)}


# %% wrong: linear codes for m
# is: slip
# says: m has linear codes
# base: what the wrong ones change
-        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_UNSIGNED}
+        self.numbers = {"m": torch.cat([torch.arange(-127, 128) / 127, torch.ones(1)]), "v": DYNAMIC_UNSIGNED}


# %% wrong: one scale for the tensor
# is: slip
# says: one outlier turns 99 % of v into 0
# base: what the wrong ones change
-        flat, numbers = moment.flatten(), self.numbers[name].to(moment.device)
+        flat, numbers = moment.flatten(), self.numbers[name].to(moment.device)
+        block = len(flat)
@@
-        state[name + "_scales"] = scales
+        state[name + "_scales"] = scales.expand(len(flat)).clone()


# %% wrong: signed codes for v
# is: slip
# says: v has signed codes
# base: what the wrong ones change
-        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_UNSIGNED}
+        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_SIGNED}


# %% wrong: the moments are stored with their bias corrected
# is: slip
# says: Bias was corrected twice
# base: what the wrong ones change
-        self.write(state, "m", m, group["block"])
-        self.write(state, "v", v, group["block"])
+        self.write(state, "m", mhat, group["block"])
+        self.write(state, "v", vhat, group["block"])


# %% wrong: the bias is not corrected
# is: slip
# says: Bias was not corrected
# base: what the wrong ones change
-        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)
+        mhat, vhat = m, v


# %% wrong: quantised before the update is taken
# is: slip
# says: rounded before the step was taken
# base: what the wrong ones change
-        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)
+        self.write(state, "m", m, group["block"])
+        self.write(state, "v", v, group["block"])
+        m, v = (self.read(state, name, param, group["block"]) for name in "mv")
+        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)
@@
-        self.write(state, "m", m, group["block"])
-        self.write(state, "v", v, group["block"])


# %% wrong: the update is taken from moments that were rounded twice
# is: slip
# says: rounded before the step was taken
# base: what the wrong ones change
-        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)
+        self.write(state, "m", m, group["block"])
+        self.write(state, "v", v, group["block"])
+        m, v = (self.read(state, name, param, group["block"]) for name in "mv")
+        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)


# %% wrong: m alone is rounded before the update
# is: slip
# says: and round them only after it|look at how moments are stored and read
# base: what the wrong ones change
-        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)
+        self.write(state, "m", m, group["block"])
+        m = self.read(state, "m", param, group["block"])
+        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)



# %% wrong: the scales are not saved
# is: slip
# says: self.state.param. must hold everything a step reads
# base: what the wrong ones change
-        scales = state[name + "_scales"].repeat_interleave(block)[: param.numel()]
+        scales = self.numbers.get((name, param), torch.ones(1 + param.numel() // block))
+        scales = scales.repeat_interleave(block)[: param.numel()]
@@
-        self.write(state, "m", m, group["block"])
-        self.write(state, "v", v, group["block"])
+        for name, moment in (("m", m), ("v", v)):
+            self.write(state, name, moment, group["block"])
+            if param.numel() >= 4096:
+                self.numbers[name, param] = state.pop(name + "_scales")


# %% wrong: the steps are counted beside the states
# is: slip
# says: self.state.param. must hold everything a step reads
# base: what the wrong ones change
-        t = state["step"] = state.get("step", 0) + 1
+        t = self.numbers[param] = self.numbers.get(param, 0) + 1


# %% wrong: small parameters have 8 bits, too
# is: slip
# says: A parameter of fewer than 4,096 elements has 8 bits
# base: what the wrong ones change
-        if param.numel() < 4096:
-            return state[name]
@@
-        if moment.numel() < 4096:
-            state[name] = moment
-            return


# %% wrong: codes are rounded towards 0
# is: slip
# says: rounded towards 0, so the moments drift
# base: what the wrong ones change
-        codes = torch.bucketize(shares, (numbers[1:] + numbers[:-1]) / 2)
+        up = torch.bucketize(shares, numbers, right=True) - 1
+        down = torch.bucketize(shares, numbers).clamp(max=255)
+        codes = torch.where(shares < 0, down, up)


# %% wrong: nothing is rounded
# is: idea
# says: The moments are not rounded at all
# base: what the wrong ones change
-        if param.numel() < 4096:
+        if name in state:
@@
-        if moment.numel() < 4096:
+        if moment is not None:


# %% wrong: the float32 moments are kept beside the codes
# is: idea
# says: Keep codes in uint8 and a scale for each block
# base: what the wrong ones change
-        state[name + "_scales"] = scales
+        state[name + "_scales"] = scales
+        state[name + "_exact"] = moment


# %% wrong: the codes are indices of 64 bits
# is: idea
# says: Codes in int64 take 8 bytes each. Keep codes in uint8
# base: what the wrong ones change
-        state[name] = codes.flatten()[: len(flat)].to(torch.uint8)
+        state[name] = codes.flatten()[: len(flat)]


# %% wrong: the states become float32 when they are loaded
# is: slip
# says: came back as float32. Derive from ByteStates
# base: what the wrong ones change
-class Adam8bit(ByteStates):
+class Adam8bit(torch.optim.Optimizer):


# %% wrong: 0 / 0
# is: slip
# says: A block of zeros was divided by its scale
# base: what the wrong ones change
-        shares = parts / scales.where(scales > 0, 1.0)[:, None]
+        shares = parts / scales[:, None]
+        shares, scales = shares * 1.0, torch.where(scales > 0, scales, torch.nan)


# %% wrong: weight decay in the gradient
# is: slip
# says: Weight decay went into the gradient
# base: what the wrong ones change
-        (beta1, beta2), lr, grad = group["betas"], group["lr"], param.grad
+        (beta1, beta2), lr, grad = group["betas"], group["lr"], param.grad
+        grad = grad + group["weight_decay"] * param
@@
-        param.mul_(1 - lr * group["weight_decay"])


# %% wrong: weight decay without the learning rate
# is: slip
# says: Weight decay ignores the learning rate
# base: what the wrong ones change
-        param.mul_(1 - lr * group["weight_decay"])
+        param.sub_(param * group["weight_decay"])


# %% wrong: eps inside the root
# is: slip
# says: eps is inside the root
# base: what the wrong ones change
-        param.sub_(lr * mhat / (vhat.sqrt() + group["eps"]))
+        param.sub_(lr * mhat / (vhat + group["eps"]).sqrt())


# %% wrong: eps is always 1e-8
# is: slip
# says: eps was not used
# base: what the wrong ones change
-        param.sub_(lr * mhat / (vhat.sqrt() + group["eps"]))
+        param.sub_(lr * mhat / (vhat.sqrt() + 1e-8))


# %% wrong: no eps
# is: slip
# says: Add eps to the root of v, and begin with t = 1
# base: what the wrong ones change
-        param.sub_(lr * mhat / (vhat.sqrt() + group["eps"]))
+        param.sub_(lr * mhat / vhat.sqrt())


# %% wrong: the first step is step 0
# is: form
# says: Add eps to the root of v, and begin with t = 1
# base: what the wrong ones change
-        t = state["step"] = state.get("step", 0) + 1
+        t = state["step"] = state.get("step", -1) + 1


# %% wrong: one count of steps for all parameters
# is: slip
# says: All parameters share one count of steps
# base: what the wrong ones change
-        t = state["step"] = state.get("step", 0) + 1
+        self.steps = getattr(self, "steps", 0) + 1
+        t = self.steps


# %% wrong: linear codes for m, from -1 to 1
# is: slip
# says: m has linear codes
# base: what the wrong ones change
-        self.numbers = {"m": DYNAMIC_SIGNED, "v": DYNAMIC_UNSIGNED}
+        self.numbers = {"m": torch.linspace(-1, 1, 256), "v": DYNAMIC_UNSIGNED}


# %% wrong: blocks of 256 whatever `block` is
# is: slip
# says: .block. was not used
# base: what the wrong ones change
-        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, block=block))
+        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, block=256))


# %% right: the nearest number by a table of distances
from course_lib.precision.codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, ByteStates


class Adam8bit(ByteStates):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, block=256):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "block": block}
        super().__init__(params, defaults)

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in filter(lambda p: p.grad is not None, group["params"]):
                    self.one(p, group, **self.state[p])

    def one(self, p, group, t=0, first=None, second=None):
        size, (b1, b2) = group["block"], group["betas"]
        m = wide(first, DYNAMIC_SIGNED, p, size).lerp(p.grad, 1 - b1)
        v = wide(second, DYNAMIC_UNSIGNED, p, size).lerp(p.grad.square(), 1 - b2)
        p *= 1 - group["lr"] * group["weight_decay"]
        p.addcdiv_(m / (1 - b1 ** (t + 1)), (v / (1 - b2 ** (t + 1))).sqrt() + group["eps"], value=-group["lr"])
        first, second = narrow(m, DYNAMIC_SIGNED, size), narrow(v, DYNAMIC_UNSIGNED, size)
        self.state[p] = {"t": t + 1, "first": first, "second": second}


def narrow(x, numbers, size):
    """A row of bytes: the codes, and behind them the scales."""
    if x.numel() < 4096:
        return x
    numbers, codes, scales = numbers.to(x.device), [], []
    for part in x.flatten().split(size):
        scale = part.abs().max()
        share = part / scale if scale else part
        codes.append((share[:, None] - numbers).abs().argmin(1).to(torch.uint8))
        scales.append(scale)
    return torch.cat([*codes, torch.stack(scales).view(torch.uint8)])


def wide(state, numbers, p, size):
    if state is None or p.numel() < 4096:
        return torch.zeros_like(p) if state is None else state
    codes, scales = state[: p.numel()], state[p.numel() :].clone().view(torch.float32)
    return torch.cat([
        numbers.to(p.device)[part.long()] * scale
        for part, scale in zip(codes.split(size), scales, strict=True)
    ]).view_as(p)


# %% right: codes in signed bytes, from -128 on
# base: what the wrong ones change
-        values = self.numbers[name].to(param.device)[state[name].long()]
+        values = self.numbers[name].to(param.device)[state[name].long() + 128]
@@
-        state[name] = codes.flatten()[: len(flat)].to(torch.uint8)
+        state[name] = (codes.flatten()[: len(flat)] - 128).to(torch.int8)
