# %% wrong: errors are forgotten
# is: idea
# says: tensor \+ error
# base: signs and scales in messages of their own
-    asked = shard_rows((tensor + error).flatten(), n)
+    asked = shard_rows(tensor.flatten(), n)


# %% wrong: the server forgets what its signs miss
# is: slip
# says: the second signs' error is lost
# base: signs and scales in messages of their own
-    server_error.copy_(mean - unpack(own_sign)[0] * own_scale[0] * mine)


# %% wrong: the server adds and does not divide
# is: slip
# says: Divide it by their number
# base: signs and scales in messages of their own
-    mean = (unpack(their_signs) * their_scales).mean(0) * mine + server_error
+    mean = (unpack(their_signs) * their_scales).sum(0) * mine + server_error


# %% wrong: padding counts in the scales
# is: detail
# says: Padding was counted
# base: signs and scales in messages of their own
-    scales = (asked.abs() * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
+    scales = (asked.abs() * real).sum(1, keepdim=True) / real.shape[1]
@@
-    own_scale = (mean.abs().sum() / mine.sum().clamp(min=1)).float().view(1, 1)
+    own_scale = mean.abs().mean().float().view(1, 1)


# %% wrong: a rank keeps how far it is from the mean
# is: slip
# says: its \*own\* signs miss
# base: signs and scales in messages of their own
-    missed = (asked - unpack(signs) * scales * real).flatten()
+    missed = (asked - unpack(every_sign) * every_scale * real).flatten()


# %% wrong: signs travel as numbers
# is: idea
# says: a bit is enough for a sign
# base: signs and scales in messages of their own
-    bits = (rows >= 0).view(len(rows), -1, 8).to(torch.uint8)
-    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(-1, dtype=torch.uint8)
+    return 2.0 * (rows >= 0) - 1
@@
-    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
-    return 2.0 * bits.flatten(1) - 1
+    return packed


# %% wrong: two steps of warm-up, however many are asked for
# is: detail
# says: The warm-up is one step too (long|short)
# base: signs and scales in messages of their own
-        self.warmup_steps, self.group = warmup_steps, group
+        self.warmup_steps, self.group = 2, group


# %% wrong: a byte for each sign
# is: slip
# says: A sign took a byte
# base: signs and scales in messages of their own
-    bits = (rows >= 0).view(len(rows), -1, 8).to(torch.uint8)
-    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(-1, dtype=torch.uint8)
+    return (rows >= 0).to(torch.uint8)
@@
-    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
-    return 2.0 * bits.flatten(1) - 1
+    return 2.0 * packed - 1


# %% wrong: the gradient is compressed, not the momentum
# is: slip
# says: the \*momentum\*
# base: signs and scales in messages of their own
-                momentum.lerp_(p.grad, 1 - beta1)
-                sign_all_reduce(momentum, error, server_error, self.group)
+                mean = p.grad.clone()
+                sign_all_reduce(mean, error, server_error, self.group)
+                momentum.lerp_(mean, 1 - beta1)


# %% wrong: the variance goes on with the rank's own gradient
# is: slip
# says: variance
# base: signs and scales in messages of their own
                 momentum.lerp_(p.grad, 1 - beta1)
+                variance.lerp_(p.grad.square(), 1 - beta2)


# %% wrong: gradients are not averaged in the warm-up
# is: slip
# says: went on with its own gradient
# base: signs and scales in messages of their own
-                dist.all_reduce(mean, group=self.group)
-                mean /= n


# %% wrong: errors begin anew in every step
# is: slip
# says: belong to the parameter's state
# base: signs and scales in messages of their own
                 momentum.lerp_(p.grad, 1 - beta1)
+                error.zero_()
+                server_error.zero_()


# %% wrong: the optimizer ignores the group
# is: form
# says: is not in the group
# base: signs and scales in messages of their own
-        self.warmup_steps, self.group = warmup_steps, group
+        self.warmup_steps, self.group = warmup_steps, None


# %% wrong: scales travel in float64
# is: form
# says: Something in float64 travelled
# base: signs and scales in messages of their own
-    signs, scales = pack(asked), scales.float()
+    signs = pack(asked)
@@
-    own_scale = (mean.abs().sum() / mine.sum().clamp(min=1)).float().view(1, 1)
+    own_scale = (mean.abs().sum() / mine.sum().clamp(min=1)).view(1, 1)


# %% wrong: a float64 scale is received as float32
# is: form
# says: In OneBitAdam the gradients are float64
# base: signs and scales in messages of their own
-    signs, scales = pack(asked), scales.float()
-    their_signs, their_scales = torch.empty_like(signs), torch.empty_like(scales)
+    signs = pack(asked)
+    their_signs, their_scales = torch.empty_like(signs), torch.empty(n, 1)


# %% wrong: a scale is received as float64
# is: form
# says: Make the received tensor like the sent tensor
# base: signs and scales in messages of their own
-    every_sign, every_scale = torch.empty_like(signs), torch.empty_like(scales)
+    every_sign, every_scale = torch.empty_like(signs), scales.double()


# %% wrong: signs in a dtype that gloo has not
# is: form
# says: signs travel as bytes, torch.uint8
# base: signs and scales in messages of their own
-    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(-1, dtype=torch.uint8)
+    return (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8).to(torch.uint16)


# %% right: signs and scales in messages of their own
def shard_rows(flat, n):
    """Shard after shard, as the rows of (n, s); zeros at the end. s is a whole number of bytes of signs."""
    shard = 8 * math.ceil(flat.numel() / (8 * n))
    return torch.nn.functional.pad(flat, (0, n * shard - flat.numel())).view(n, shard)


def pack(rows):
    """(n, s) numbers to (n, s / 8) bytes: a bit says whether a number is 0 or more."""
    bits = (rows >= 0).view(len(rows), -1, 8).to(torch.uint8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(-1, dtype=torch.uint8)


def unpack(packed):
    """(n, s / 8) bytes to (n, s) numbers, 1 and -1."""
    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return 2.0 * bits.flatten(1) - 1


@torch.no_grad()
def sign_all_reduce(tensor, error, server_error, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    asked = shard_rows((tensor + error).flatten(), n)
    real = shard_rows(torch.ones_like(tensor).flatten(), n)

    scales = (asked.abs() * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    signs, scales = pack(asked), scales.float()
    their_signs, their_scales = torch.empty_like(signs), torch.empty_like(scales)
    dist.all_to_all_single(their_signs, signs, group=group)
    dist.all_to_all_single(their_scales, scales, group=group)

    mine = real[rank]
    mean = (unpack(their_signs) * their_scales).mean(0) * mine + server_error
    own_sign = pack(mean[None])
    own_scale = (mean.abs().sum() / mine.sum().clamp(min=1)).float().view(1, 1)
    every_sign, every_scale = torch.empty_like(signs), torch.empty_like(scales)
    dist.all_gather_into_tensor(every_sign, own_sign, group=group)
    dist.all_gather_into_tensor(every_scale, own_scale, group=group)

    missed = (asked - unpack(signs) * scales * real).flatten()
    error.copy_(missed[: tensor.numel()].view_as(error))
    server_error.copy_(mean - unpack(own_sign)[0] * own_scale[0] * mine)
    tensor.copy_((unpack(every_sign) * every_scale).flatten()[: tensor.numel()].view_as(tensor))


class OneBitAdam:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, *, warmup_steps, group=None):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.warmup_steps, self.group = warmup_steps, group
        self.steps, self.state = 0, {}

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        n = dist.get_world_size(self.group)
        for p in self.params:
            if p not in self.state:
                served = shard_rows(p.flatten(), n)[0]
                self.state[p] = [torch.zeros_like(one) for one in (p, p, p, served)]
            momentum, variance, error, server_error = self.state[p]
            if self.steps <= self.warmup_steps:
                mean = p.grad.clone()
                dist.all_reduce(mean, group=self.group)
                mean /= n
                momentum.lerp_(mean, 1 - beta1)
                variance.lerp_(mean.square(), 1 - beta2)
            else:
                momentum.lerp_(p.grad, 1 - beta1)
                sign_all_reduce(momentum, error, server_error, self.group)
            counted = min(self.steps, self.warmup_steps)
            root = (variance / (1 - beta2**counted)).sqrt() + self.eps
            p -= self.lr / (1 - beta1**self.steps) * momentum / root


# %% right: one message each way, Adam's own step in the warm-up
def bits_of(x):
    weights = 2 ** torch.arange(8, device=x.device)
    return ((x >= 0).reshape(*x.shape[:-1], -1, 8) * weights).sum(-1).to(torch.uint8)


def numbers_of(b):
    weights = 2 ** torch.arange(8, device=b.device)
    return torch.where((b.long().unsqueeze(-1) & weights) > 0, 1.0, -1.0).flatten(-2)


@torch.no_grad()
def sign_all_reduce(tensor, error, server_error, group=None):
    """Signs and scales in one message each way."""
    n, me, numel = dist.get_world_size(group), dist.get_rank(group), tensor.numel()
    s = server_error.numel()
    sizes = [max(0, min(s, numel - r * s)) for r in range(n)]
    asked = tensor.new_zeros(n * s)
    asked[:numel] = (tensor + error).flatten()
    asked = asked.view(n, s)
    mask = torch.stack([torch.arange(s, device=tensor.device) < size for size in sizes])

    def message(rows, counts):
        scale = torch.stack(
            [r[:c].abs().mean() if c else r.new_zeros(()) for r, c in zip(rows, counts)]
        )
        return torch.cat([bits_of(rows), scale.float().view(-1, 1).view(torch.uint8)], dim=1)

    def meaning(bytes_, keep):
        scale = bytes_[:, -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return numbers_of(bytes_[:, :-4]) * scale * keep

    out = message(asked, sizes)
    arrived = torch.empty_like(out)
    dist.all_to_all_single(arrived, out, group=group)
    mean = meaning(arrived, mask[me]).to(tensor.dtype).sum(0) / n + server_error
    back = message(mean[None], [sizes[me]])
    everything = torch.empty_like(out)
    dist.all_gather_into_tensor(everything, back, group=group)
    error.copy_((asked - meaning(out, mask)).flatten()[:numel].view_as(error))
    server_error.copy_(mean - meaning(back, mask[me])[0])
    tensor.copy_(meaning(everything, mask).flatten()[:numel].view_as(tensor))


class OneBitAdam(torch.optim.Adam):
    """Adam's own step in the warm-up, on averaged gradients."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, *, warmup_steps, group=None):
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, foreach=False)
        self.warmup, self.where, self.count, self.missed = warmup_steps, group, 0, {}

    @torch.no_grad()
    def step(self):
        self.count += 1
        n = dist.get_world_size(self.where)
        held = [p for g in self.param_groups for p in g["params"]]
        if self.count <= self.warmup:
            for p in held:
                dist.all_reduce(p.grad, group=self.where)
                p.grad /= n
            return super().step()
        options = self.param_groups[0]
        beta1, beta2 = options["betas"]
        for p in held:
            if p not in self.missed:
                s = 8 * -(-p.numel() // (8 * n))
                self.missed[p] = torch.zeros_like(p), p.new_zeros(s)
            momentum = self.state[p]["exp_avg"]
            momentum.mul_(beta1).add_(p.grad, alpha=1 - beta1)
            sign_all_reduce(momentum, *self.missed[p], self.where)
            root = self.state[p]["exp_avg_sq"].sqrt() / math.sqrt(1 - beta2**self.warmup)
            p.addcdiv_(
                momentum, root + options["eps"], value=-options["lr"] / (1 - beta1**self.count)
            )
