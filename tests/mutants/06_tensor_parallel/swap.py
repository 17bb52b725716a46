# %% base: what the wrong ones change
# says: A SwiGLU multiplies gate
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        total = y.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if out_features % n:
            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
        self.group = group
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None

    def forward(self, x):
        return torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if in_features % n:
            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
        self.group = group
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None

    def forward(self, x):
        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


@torch.no_grad()
def parallelize_mlps(model, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    for block in model.blocks:
        old = block.mlp
        up = ColumnParallelLinear(old.up.in_features, old.up.out_features, group=group)
        down = RowParallelLinear(old.down.in_features, old.down.out_features, group=group)
        up.weight.copy_(old.up.weight.chunk(n)[rank])
        up.bias.copy_(old.up.bias.chunk(n)[rank])
        down.weight.copy_(old.down.weight.chunk(n, 1)[rank])
        down.bias.copy_(old.down.bias)
        old.up, old.down = up, down
    return model


# %% wrong: other weights than the model's
# is: slip
# says: Keep the model's own weights
# base: what the wrong ones change
-        up.weight.copy_(old.up.weight.chunk(n)[rank])
-        up.bias.copy_(old.up.bias.chunk(n)[rank])
-        down.weight.copy_(old.down.weight.chunk(n, 1)[rank])
-        down.bias.copy_(old.down.bias)


# %% wrong: down's bias is added by every rank
# is: slip
# says: down's bias counts \d times
# base: what the wrong ones change
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
-        return y if self.bias is None else y + self.bias
+        y = torch.nn.functional.linear(x, self.weight, self.bias)
+        return Leave.apply(y, self.group)


# %% wrong: down's bias stays behind
# is: slip
# says: Keep the model's own weights
# base: what the wrong ones change
-        down.bias.copy_(old.down.bias)


# %% wrong: down has no bias
# is: detail
# says: down's bias is missing
# base: what the wrong ones change
-        down = RowParallelLinear(old.down.in_features, old.down.out_features, group=group)
+        down = RowParallelLinear(old.down.in_features, old.down.out_features, False, group)
@@
-        down.bias.copy_(old.down.bias)


# %% wrong: the columns of down cut as rows
# is: slip
# says: Keep the model's own weights
# base: what the wrong ones change
-        down.weight.copy_(old.down.weight.chunk(n, 1)[rank])
+        down.weight.copy_(old.down.weight.T.chunk(n)[rank].reshape(down.weight.shape))


# %% wrong: nothing is said backward
# is: slip
# says: sum the input's gradient over the ranks
# base: what the wrong ones change
-class Enter(torch.autograd.Function):
-    @staticmethod
-    def forward(ctx, x, group):
-        ctx.group = group
-        return x.view_as(x)
-
-    @staticmethod
-    def backward(ctx, grad):
-        total = grad.clone()
-        dist.all_reduce(total, group=ctx.group)
-        return total, None
-
-
@@
-        return torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
+        return torch.nn.functional.linear(x, self.weight, self.bias)


# %% wrong: nothing is said forward
# is: slip
# says: down is row-parallel, so sum the terms
# base: what the wrong ones change
-
-
-class Leave(torch.autograd.Function):
-    @staticmethod
-    def forward(ctx, y, group):
-        total = y.clone()
-        dist.all_reduce(total, group=group)
-        return total
-
-    @staticmethod
-    def backward(ctx, grad):
-        return grad, None
@@
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
+        y = torch.nn.functional.linear(x, self.weight)


# %% wrong: only the first block
# is: idea
# says: One all-reduce for each block
# base: what the wrong ones change
-    for block in model.blocks:
+    for block in model.blocks[:1]:


# %% wrong: nothing is exchanged
# is: idea
# says: none of its MLPs was exchanged
def parallelize_mlps(model, group=None):
    return model


# %% wrong: the old layers are kept
# is: idea
# says: nothing of the old layers
# base: what the wrong ones change
         down.bias.copy_(old.down.bias)
+        old.before = [old.up, old.down]


# %% wrong: parts that are views of the old weights
# is: idea
# says: not even a view
# base: what the wrong ones change
-        up.weight.copy_(old.up.weight.chunk(n)[rank])
+        up.weight.data = old.up.weight.data.chunk(n)[rank]


# %% wrong: the model is not returned
# is: form
# says: Return the model
# base: what the wrong ones change
-    return model


# %% wrong: a seed of each rank's own
# is: slip
# says: Seed nothing by the rank's number
# base: what the wrong ones change
     rank, n = dist.get_rank(group), dist.get_world_size(group)
+    torch.manual_seed(rank)


# %% wrong: the group is forgotten
# is: slip
# says: of the group|the group
# base: what the wrong ones change
-    rank, n = dist.get_rank(group), dist.get_world_size(group)
+    rank, n = dist.get_rank(), dist.get_world_size()
@@
-        up = ColumnParallelLinear(old.up.in_features, old.up.out_features, group=group)
-        down = RowParallelLinear(old.down.in_features, old.down.out_features, group=group)
+        up = ColumnParallelLinear(old.up.in_features, old.up.out_features)
+        down = RowParallelLinear(old.down.in_features, old.down.out_features)


# %% wrong: rows before columns
# is: slip
# says: One all-reduce for each block
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        total = y.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.n = group, dist.get_world_size(group)
        return x.chunk(ctx.n, -1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(ctx.n)]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts, -1), None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        ctx.rank, ctx.n = dist.get_rank(group), dist.get_world_size(group)
        parts = [torch.empty_like(y) for _ in range(ctx.n)]
        dist.all_gather(parts, y.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(ctx.n, -1)[ctx.rank].contiguous(), None


class Rows(torch.nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        self.weight = torch.nn.Parameter(whole.weight.detach().chunk(n, 1)[rank].clone())
        self.bias, self.group = whole.bias, group

    def forward(self, x):
        x = Split.apply(x, self.group)
        return Leave.apply(x @ self.weight.T, self.group) + self.bias


class Columns(torch.nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        self.weight = torch.nn.Parameter(whole.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach().chunk(n)[rank].clone())
        self.group = group

    def forward(self, x):
        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
        return Gather.apply(y, self.group)


def parallelize_mlps(model, group=None):
    for block in model.blocks:
        block.mlp.up = Rows(block.mlp.up, group)
        block.mlp.down = Columns(block.mlp.down, group)
    return model


# %% wrong: gathered between up and down
# is: idea
# says: One all-reduce for each block
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        total = y.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.n = group, dist.get_world_size(group)
        return x.chunk(ctx.n, -1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(ctx.n)]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts, -1), None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        ctx.rank, ctx.n = dist.get_rank(group), dist.get_world_size(group)
        parts = [torch.empty_like(y) for _ in range(ctx.n)]
        dist.all_gather(parts, y.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(ctx.n, -1)[ctx.rank].contiguous(), None


class Rows(torch.nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        self.weight = torch.nn.Parameter(whole.weight.detach().chunk(n, 1)[rank].clone())
        self.bias, self.group = whole.bias, group

    def forward(self, x):
        x = Split.apply(x, self.group)
        return Leave.apply(x @ self.weight.T, self.group) + self.bias


class Columns(torch.nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        self.weight = torch.nn.Parameter(whole.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach().chunk(n)[rank].clone())
        self.group = group

    def forward(self, x):
        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
        return Gather.apply(y, self.group)


def parallelize_mlps(model, group=None):
    for block in model.blocks:
        block.mlp.up = Columns(block.mlp.up, group)
        block.mlp.down = Rows(block.mlp.down, group)
    return model


# %% wrong: the gate stays whole
# is: slip
# says: `gate` by columns, like up
# base: what the wrong ones change
-        old = block.mlp
-        up = ColumnParallelLinear(old.up.in_features, old.up.out_features, group=group)
-        down = RowParallelLinear(old.down.in_features, old.down.out_features, group=group)
-        up.weight.copy_(old.up.weight.chunk(n)[rank])
-        up.bias.copy_(old.up.bias.chunk(n)[rank])
-        down.weight.copy_(old.down.weight.chunk(n, 1)[rank])
-        down.bias.copy_(old.down.bias)
-        old.up, old.down = up, down
+        mlp, old = block.mlp, block.mlp.down
+        down = RowParallelLinear(old.in_features, old.out_features, group=group)
+        down.weight.copy_(old.weight.chunk(n, 1)[rank])
+        down.bias.copy_(old.bias)
+        mlp.down = down
+        old, mlp.up = (
+            mlp.up,
+            ColumnParallelLinear(mlp.up.in_features, mlp.up.out_features, group=group),
+        )
+        mlp.up.weight.copy_(old.weight.chunk(n)[rank])
+        mlp.up.bias.copy_(old.bias.chunk(n)[rank])


# %% wrong: the gate is left out
# is: slip
# says: a GELU without the gate
# base: an MLP of its own in the place of the model's
-        self.gated = mlp.gate is not None
-        if self.gated:
-            self.gate, self.lift = kept(mlp.gate.weight, 0), kept(mlp.gate.bias, 0)
@@
-        hidden = x @ self.into.T + self.shift
-        if self.gated:
-            hidden = torch.nn.functional.silu(x @ self.gate.T + self.lift) * hidden
-        else:
-            hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
-        y = hidden @ self.back.T
+        y = torch.nn.functional.gelu(x @ self.into.T + self.shift, approximate="tanh") @ self.back.T


# %% wrong: a layer of a cell that was not run
# is: form
# says: Run the cells above
def parallelize_mlps(model, group=None):
    for block in model.blocks:
        for name, layer in block.mlp.named_children():
            kind = RowParallelLinear if name == "down" else ColumnParallelLinear
            new = kind(layer.in_features, layer.out_features, layer.bias is not None, group=group)
            setattr(block.mlp, name, with_weights(new, layer, group))
    return model


# %% right: up and down in their places
# base: what the wrong ones change
-        old = block.mlp
-        up = ColumnParallelLinear(old.up.in_features, old.up.out_features, group=group)
-        down = RowParallelLinear(old.down.in_features, old.down.out_features, group=group)
-        up.weight.copy_(old.up.weight.chunk(n)[rank])
-        up.bias.copy_(old.up.bias.chunk(n)[rank])
-        down.weight.copy_(old.down.weight.chunk(n, 1)[rank])
-        down.bias.copy_(old.down.bias)
-        old.up, old.down = up, down
+        mlp, old = block.mlp, block.mlp.down
+        down = RowParallelLinear(old.in_features, old.out_features, group=group)
+        down.weight.copy_(old.weight.chunk(n, 1)[rank])
+        down.bias.copy_(old.bias)
+        mlp.down = down
+        for name in ("up", "gate"):
+            old = getattr(mlp, name)
+            if old is None:
+                continue
+            new = ColumnParallelLinear(old.in_features, old.out_features, group=group)
+            new.weight.copy_(old.weight.chunk(n)[rank])
+            new.bias.copy_(old.bias.chunk(n)[rank])
+            setattr(mlp, name, new)


# %% right: an MLP of its own in the place of the model's
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ParallelMLP(torch.nn.Module):
    def __init__(self, mlp, group):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)

        def kept(whole, dim):
            return torch.nn.Parameter(whole.detach().tensor_split(n, dim)[rank].clone())

        self.into, self.shift = kept(mlp.up.weight, 0), kept(mlp.up.bias, 0)
        self.gated = mlp.gate is not None
        if self.gated:
            self.gate, self.lift = kept(mlp.gate.weight, 0), kept(mlp.gate.bias, 0)
        self.back, self.bias = kept(mlp.down.weight, 1), torch.nn.Parameter(mlp.down.bias.detach())
        self.group = group

    def forward(self, x):
        x = Enter.apply(x, self.group)
        hidden = x @ self.into.T + self.shift
        if self.gated:
            hidden = torch.nn.functional.silu(x @ self.gate.T + self.lift) * hidden
        else:
            hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
        y = hidden @ self.back.T
        with torch.no_grad():
            dist.all_reduce(y, group=self.group)
        return y + self.bias


def parallelize_mlps(model, group=None):
    for block in model.blocks:
        block.mlp = ParallelMLP(block.mlp, group)
    return model
