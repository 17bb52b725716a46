# %% base: what the wrong ones change
# says: is passed as dim=, so keep that argument
def gathered(x, group):
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)


def scattered(x, group):
    n = dist.get_world_size(group)
    if x.shape[1] % n:
        raise ValueError(f"{n} ranks cannot share {x.shape[1]} positions equally")
    parts = [part.contiguous() for part in x.chunk(n, 1)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.group), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group), None


def all_gather_reduce_scatter(x, group=None):
    return Gather.apply(x, group)


def reduce_scatter_all_gather(x, group=None):
    return Scatter.apply(x, group)


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parameter, group):
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SequenceParallelNorm(torch.nn.Module):
    def __init__(self, norm, group=None):
        super().__init__()
        self.norm, self.group = norm, group

    def forward(self, x):
        weight, bias = (
            Summed.apply(self.norm.weight, self.group),
            Summed.apply(self.norm.bias, self.group),
        )
        return torch.nn.functional.layer_norm(
            x, self.norm.normalized_shape, weight, bias, self.norm.eps
        )


# %% wrong: parts along the batch
# is: idea
# says: side by side along the sequence, dimension 1
# base: what the wrong ones change
-    return torch.cat(parts, 1)
+    return torch.cat(parts)


# %% wrong: parts along the batch, cut into sequences afterwards
# is: slip
# says: and cut into sequences afterwards
# base: what the wrong ones change
-    return torch.cat(parts, 1)
+    return torch.cat(parts).reshape(x.shape[0], -1, x.shape[2])


# %% wrong: every N-th position
# is: slip
# says: not every N-th position
# base: what the wrong ones change
-    return torch.cat(parts, 1)
+    return torch.stack(parts, 2).flatten(1, 2)


# %% wrong: the sum cut along the batch
# is: slip
# says: cut along the batch
# base: what the wrong ones change
-    parts = [part.contiguous() for part in x.chunk(n, 1)]
-    own = torch.empty_like(parts[0])
-    dist.reduce_scatter(own, parts, group=group)
+    own = x.new_empty(x.shape[0], x.shape[1] // n, x.shape[2])
+    parts = list(x.contiguous().view(-1).chunk(n))
+    dist.reduce_scatter(own.view(-1), parts, group=group)


# %% wrong: each keeps its part of its own gradient
# is: slip
# says: the gradients are summed, and the rank gets its part of the sum
# base: what the wrong ones change
-        return scattered(grad, ctx.group), None
+        n, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
+        return grad.chunk(n, 1)[rank].contiguous(), None


# %% wrong: nothing is gathered backward
# is: slip
# says: left zeros in the other parts
# base: what the wrong ones change
-        return gathered(grad, ctx.group), None
+        n, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
+        parts = [torch.zeros_like(grad) for _ in range(n)]
+        parts[rank] = grad
+        return torch.cat(parts, 1), None


# %% wrong: the gradient of a part is handed on
# is: form
# says: must gather the gradients of all ranks' parts
# base: what the wrong ones change
-        return gathered(grad, ctx.group), None
+        return grad, None


# %% wrong: an all-reduce, of which a part is kept
# is: idea
# says: An all-reduce is both halves
# base: what the wrong ones change
-    parts = [part.contiguous() for part in x.chunk(n, 1)]
-    own = torch.empty_like(parts[0])
-    dist.reduce_scatter(own, parts, group=group)
-    return own
+    total = x.clone(memory_format=torch.contiguous_format)
+    dist.all_reduce(total, group=group)
+    return total.chunk(n, 1)[dist.get_rank(group)].contiguous()


# %% wrong: the mean of the terms
# is: slip
# says: Sum the terms|Sum over all uses
# base: what the wrong ones change
-    return own
+    return own / n


# %% wrong: the rank's part of its own term
# is: slip
# says: Sum the terms of all ranks
# base: what the wrong ones change
-    own = torch.empty_like(parts[0])
-    dist.reduce_scatter(own, parts, group=group)
-    return own
+    return parts[dist.get_rank(group)].clone()


# %% wrong: the next rank's part
# is: slip
# says: rank r is to have the r-th part|another rank's part
# base: what the wrong ones change
-    dist.reduce_scatter(own, parts, group=group)
+    dist.reduce_scatter(own, parts[1:] + parts[:1], group=group)


# %% wrong: the last positions are dropped where ranks do not divide them
# is: detail
# says: whether N divides the length
# base: what the wrong ones change
-    if x.shape[1] % n:
-        raise ValueError(f"{n} ranks cannot share {x.shape[1]} positions equally")
-    parts = [part.contiguous() for part in x.chunk(n, 1)]
+    parts = [part.contiguous() for part in x.tensor_split(n, 1)]


# %% wrong: the norm's weights are left alone
# is: slip
# says: or the copies drift apart
# base: what the wrong ones change
-class Summed(torch.autograd.Function):
-    @staticmethod
-    def forward(ctx, parameter, group):
-        ctx.group = group
-        return parameter.view_as(parameter)
-
-    @staticmethod
-    def backward(ctx, grad):
-        total = grad.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=ctx.group)
-        return total, None
-
-
@@
-        self.norm, self.group = norm, group
+        self.norm = norm
@@
-        weight, bias = (
-            Summed.apply(self.norm.weight, self.group),
-            Summed.apply(self.norm.bias, self.group),
-        )
-        return torch.nn.functional.layer_norm(
-            x, self.norm.normalized_shape, weight, bias, self.norm.eps
-        )
+        return self.norm(x)


# %% wrong: the norm's weights are summed in forward
# is: slip
# says: weight and bias were summed in forward
# base: what the wrong ones change
-class SequenceParallelNorm(torch.nn.Module):
+class Terms(torch.autograd.Function):
+    @staticmethod
+    def forward(ctx, x, group):
+        total = x.clone()
+        dist.all_reduce(total, group=group)
+        return total
+
+    @staticmethod
+    def backward(ctx, grad):
+        return grad, None
+
+
+class SequenceParallelNorm(torch.nn.Module):
@@
-            Summed.apply(self.norm.weight, self.group),
-            Summed.apply(self.norm.bias, self.group),
+            Terms.apply(self.norm.weight, self.group),
+            Terms.apply(self.norm.bias, self.group),


# %% wrong: the gradient of the norm's weights averaged
# is: slip
# says: so their gradients are added up
# base: what the wrong ones change
-        return total, None
+        return total / dist.get_world_size(ctx.group), None


# %% wrong: the norm's input is summed, too
# is: slip
# says: which have different positions. Sum
# base: what the wrong ones change
         )
+        x = Summed.apply(x, self.group)
         return torch.nn.functional.layer_norm(


# %% wrong: the norm's output is summed
# is: slip
# says: on weight and bias, not on the output
# base: what the wrong ones change
-        weight, bias = (
-            Summed.apply(self.norm.weight, self.group),
-            Summed.apply(self.norm.bias, self.group),
-        )
-        return torch.nn.functional.layer_norm(
-            x, self.norm.normalized_shape, weight, bias, self.norm.eps
-        )
+        return Summed.apply(self.norm(x), self.group)


# %% wrong: the norm gathers the sequence
# is: idea
# says: nothing of other positions
# base: what the wrong ones change
     def forward(self, x):
+        n, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
+        x = Gather.apply(x, self.group).chunk(n, 1)[rank]


# %% wrong: a plain norm without its weights
# is: slip
# says: weight and bias were left out
# base: what the wrong ones change
-            x, self.norm.normalized_shape, weight, bias, self.norm.eps
+            x, self.norm.normalized_shape, None, None, self.norm.eps


# %% wrong: parts that are no memory in a row
# is: form
# says: call contiguous\(\) before it is sent
# base: what the wrong ones change
-    parts = [part.contiguous() for part in x.chunk(n, 1)]
-    own = torch.empty_like(parts[0])
+    parts = list(x.chunk(n, 1))
+    own = torch.empty(parts[0].shape, dtype=x.dtype)


# %% wrong: the norm's eps is left out
# is: detail
# says: The norm's eps is left out
def gathered(x, group):
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)


def scattered(x, group):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    seq = x.shape[1]
    if seq // n * n < seq:
        raise ValueError(f"{seq} positions are not divisible by {n}")
    sent = torch.stack([x[:, r * (seq // n) : (r + 1) * (seq // n)] for r in range(n)])
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    return got.sum(0)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.group), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group), None


def all_gather_reduce_scatter(x, group=None):
    return Gather.apply(x, group)


def reduce_scatter_all_gather(x, group=None):
    return Scatter.apply(x, group)


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, bias, group):
        ctx.group = group
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    def backward(ctx, for_weight, for_bias):
        both = torch.stack([for_weight, for_bias])
        dist.all_reduce(both, group=ctx.group)
        return both[0], both[1], None


class SequenceParallelNorm(torch.nn.LayerNorm):
    def __init__(self, norm, group=None):
        super().__init__(norm.normalized_shape)
        self.group = group
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x):
        weight, bias = Both.apply(self.weight, self.bias, self.group)
        return torch.nn.functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


# %% wrong: the pair the wrong way round
# is: idea
# says: the other of the two|cannot be|not a multiple
def gathered(x, group):
    n = dist.get_world_size(group)
    front = x.transpose(0, 1).contiguous()
    whole = front.new_empty(n * front.shape[0], *front.shape[1:])
    dist.all_gather_into_tensor(whole, front, group=group)
    return whole.transpose(0, 1).contiguous()


def scattered(x, group):
    n = dist.get_world_size(group)
    batch, seq, width = x.shape
    if seq % n != 0:
        raise ValueError(f"sequence of {seq} positions: not a multiple of the {n} ranks, pad it")
    front = x.transpose(0, 1).contiguous()
    own = front.new_empty(seq // n, batch, width)
    dist.reduce_scatter_tensor(own, front, group=group)
    return own.transpose(0, 1).contiguous()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.group), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group), None


def all_gather_reduce_scatter(x, group=None):
    return Scatter.apply(x, group)


def reduce_scatter_all_gather(x, group=None):
    return Gather.apply(x, group)


class SequenceParallelNorm(torch.nn.Module):
    def __init__(self, norm, group=None):
        super().__init__()
        self.eps = norm.eps
        self.weight = torch.nn.Parameter(norm.weight.detach().clone())
        self.bias = torch.nn.Parameter(norm.bias.detach().clone())

        def add_up(grad):
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=group)
            return grad

        self.weight.register_hook(add_up)
        self.bias.register_hook(add_up)

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        scale = centred.square().mean(-1, keepdim=True).add(self.eps).rsqrt()
        return centred * scale * self.weight + self.bias


# %% wrong: dim is not looked at
# is: detail
# says: `dim` says which dimension is the sequence
# base: weight and bias in one sum
-        return gathered(x, group, dim)
+        return gathered(x, group, 1)
@@
-        return scattered(grad, ctx.group, ctx.dim), None, None
+        return scattered(grad, ctx.group, 1), None, None
@@
-        return scattered(x, group, dim)
+        return scattered(x, group, 1)
@@
-        return gathered(grad, ctx.group, ctx.dim), None, None
+        return gathered(grad, ctx.group, 1), None, None


# %% wrong: dimension 0 counts as not given
# is: detail
# says: `dim` says which dimension is the sequence
# base: the sequence brought to the front
-    return Gather.apply(x, group, dim)
+    return Gather.apply(x, group, dim or -2)
@@
-    return Scatter.apply(x, group, dim)
+    return Scatter.apply(x, group, dim or -2)


# %% wrong: backward along the last dimension but one
# is: detail
# says: `dim` says which dimension is the sequence
# base: weight and bias in one sum
-        return scattered(grad, ctx.group, ctx.dim), None, None
+        return scattered(grad, ctx.group, -2), None, None
@@
-        return gathered(grad, ctx.group, ctx.dim), None, None
+        return gathered(grad, ctx.group, -2), None, None


# %% wrong: without the argument dim
# is: form
# says: keep that argument
# base: weight and bias in one sum
-def all_gather_reduce_scatter(x, group=None, dim=-2):
-    return Gather.apply(x, group, dim)
+def all_gather_reduce_scatter(x, group=None):
+    return Gather.apply(x, group, -2)
@@
-def reduce_scatter_all_gather(x, group=None, dim=-2):
-    return Scatter.apply(x, group, dim)
+def reduce_scatter_all_gather(x, group=None):
+    return Scatter.apply(x, group, -2)


# %% right: the sequence brought to the front
def gathered(x, group, dim):
    n = dist.get_world_size(group)
    front = x.transpose(0, dim).contiguous()
    whole = front.new_empty(n * front.shape[0], *front.shape[1:])
    dist.all_gather_into_tensor(whole, front, group=group)
    return whole.transpose(0, dim).contiguous()


def scattered(x, group, dim):
    n = dist.get_world_size(group)
    seq = x.shape[dim]
    if seq % n != 0:
        raise ValueError(f"sequence of {seq} positions: not a multiple of the {n} ranks, pad it")
    front = x.transpose(0, dim).contiguous()
    own = front.new_empty(seq // n, *front.shape[1:])
    dist.reduce_scatter_tensor(own, front, group=group)
    return own.transpose(0, dim).contiguous()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.group, ctx.dim), None, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return scattered(x, group, dim)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group, ctx.dim), None, None


def all_gather_reduce_scatter(x, group=None, dim=-2):
    return Gather.apply(x, group, dim)


def reduce_scatter_all_gather(x, group=None, dim=-2):
    return Scatter.apply(x, group, dim)


class SequenceParallelNorm(torch.nn.Module):
    def __init__(self, norm, group=None):
        super().__init__()
        self.eps = norm.eps
        self.weight = torch.nn.Parameter(norm.weight.detach().clone())
        self.bias = torch.nn.Parameter(norm.bias.detach().clone())

        def add_up(grad):
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=group)
            return grad

        self.weight.register_hook(add_up)
        self.bias.register_hook(add_up)

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        scale = centred.square().mean(-1, keepdim=True).add(self.eps).rsqrt()
        return centred * scale * self.weight + self.bias


# %% right: weight and bias in one sum
def gathered(x, group, dim):
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def scattered(x, group, dim):
    n = dist.get_world_size(group)
    seq = x.shape[dim]
    if seq // n * n < seq:
        raise ValueError(f"{seq} positions are not divisible by {n}")
    sent = torch.stack([x.narrow(dim, r * (seq // n), seq // n) for r in range(n)])
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    return got.sum(0)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.group, ctx.dim), None, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return scattered(x, group, dim)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group, ctx.dim), None, None


def all_gather_reduce_scatter(x, group=None, dim=-2):
    return Gather.apply(x, group, dim)


def reduce_scatter_all_gather(x, group=None, dim=-2):
    return Scatter.apply(x, group, dim)


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, bias, group):
        ctx.group = group
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    def backward(ctx, for_weight, for_bias):
        both = torch.stack([for_weight, for_bias])
        dist.all_reduce(both, group=ctx.group)
        return both[0], both[1], None


class SequenceParallelNorm(torch.nn.LayerNorm):
    def __init__(self, norm, group=None):
        super().__init__(norm.normalized_shape, eps=norm.eps)
        self.group = group
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x):
        weight, bias = Both.apply(self.weight, self.bias, self.group)
        return torch.nn.functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
