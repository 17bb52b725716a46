# %% base: what the wrong ones change
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


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if in_features % n:
            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
        self.group, self.input_is_parallel = group, input_is_parallel
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None

    def forward(self, x):
        if not self.input_is_parallel:
            x = Split.apply(x, self.group)
        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


# %% wrong: every rank adds the bias
# is: slip
# says: The bias counts \d times
# base: what the wrong ones change
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
-        return y if self.bias is None else y + self.bias
+        y = Leave.apply(torch.nn.functional.linear(x, self.weight, self.bias), self.group)
+        return y


# %% wrong: nothing is said forward
# is: slip
# says: an all-reduce is needed forward
# base: what the wrong ones change
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
-
-
@@
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
+        y = torch.nn.functional.linear(x, self.weight)


# %% wrong: the all-reduce in the wrong direction
# is: slip
# says: an all-reduce is needed forward. \(Backward needs none.\)
# base: what the wrong ones change
-class Leave(torch.autograd.Function):
+class Enter(torch.autograd.Function):
@@
-    def forward(ctx, y, group):
-        total = y.clone()
-        dist.all_reduce(total, group=group)
-        return total
+    def forward(ctx, x, group):
+        ctx.group = group
+        return x.view_as(x)
@@
-        return grad, None
+        total = grad.clone()
+        dist.all_reduce(total, group=ctx.group)
+        return total, None
@@
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
+        y = Enter.apply(torch.nn.functional.linear(x, self.weight), self.group)


# %% wrong: an all-reduce in both directions
# is: slip
# says: \d times too large, because it was all-reduced
# base: what the wrong ones change
     def forward(ctx, y, group):
+        ctx.group = group
@@
-        return grad, None
+        total = grad.clone()
+        dist.all_reduce(total, group=ctx.group)
+        return total, None


# %% wrong: PyTorch's differentiated all-reduce
# is: form
# says: gradients come out N times too large
# base: what the wrong ones change
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
+import torch.distributed.nn.functional as differentiated
@@
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
+        y = torch.nn.functional.linear(x, self.weight)
+        y = differentiated.all_reduce(y, group=self.group or dist.group.WORLD)


# %% wrong: split on the wrong dimension of (out, in)
# is: idea
# says: rows of A dimension 1
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
+        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())


# %% wrong: the mean of the terms
# is: slip
# says: divide nothing
# base: what the wrong ones change
-        return total
+        return total / dist.get_world_size(group)


# %% wrong: every rank adds its share of the bias
# is: slip
# says: Add the whole bias, once
# base: what the wrong ones change
+
+    def share(self):
+        return None if self.bias is None else self.bias / dist.get_world_size(self.group)

     def forward(self, x):
@@
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
-        return y if self.bias is None else y + self.bias
+        y = Leave.apply(torch.nn.functional.linear(x, self.weight, self.share()), self.group)
+        return y


# %% wrong: a share of the bias behind the sum
# is: slip
# says: Only 1/4 of the bias was added after the sum
# base: what the wrong ones change
-        return y if self.bias is None else y + self.bias
+        return y if self.bias is None else y + self.bias / dist.get_world_size(self.group)


# %% wrong: a part of x enters as if all ranks used it
# is: slip
# says: each rank has other features, and uses them alone
# base: what the wrong ones change
-class RowParallelLinear(torch.nn.Module):
+class Enter(torch.autograd.Function):
+    @staticmethod
+    def forward(ctx, x, group):
+        ctx.group = group
+        return x.view_as(x)
+
+    @staticmethod
+    def backward(ctx, grad):
+        total = grad.clone(memory_format=torch.contiguous_format)
+        dist.all_reduce(total, group=ctx.group)
+        return total, None
+
+
+class RowParallelLinear(torch.nn.Module):
@@
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
+        x = Enter.apply(x, self.group)
+        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)


# %% wrong: only the first rank adds the bias
# is: slip
# says: added on some ranks only
# base: what the wrong ones change
-        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
-        return y if self.bias is None else y + self.bias
+        y = Leave.apply(
+            torch.nn.functional.linear(
+                x, self.weight, self.bias if dist.get_rank(self.group) == 0 else None
+            ),
+            self.group,
+        )
+        return y


# %% wrong: the bias is forgotten
# is: slip
# says: The bias is missing
# base: what the wrong ones change
-        return y if self.bias is None else y + self.bias
+        return y


# %% wrong: the bias is cut
# is: form
# says: cut by rows keeps all of it
# base: what the wrong ones change
-        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None
+        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None


# %% wrong: the bias's gradient is summed
# is: slip
# says: the bias's gradient was summed
# base: what the wrong ones change
+class Enter(torch.autograd.Function):
+    @staticmethod
+    def forward(ctx, x, group):
+        ctx.group = group
+        return x.view_as(x)
+
+    @staticmethod
+    def backward(ctx, grad):
+        total = grad.clone()
+        dist.all_reduce(total, group=ctx.group)
+        return total, None
+
+
 class Leave(torch.autograd.Function):
@@
-        return y if self.bias is None else y + self.bias
+        return y if self.bias is None else y + Enter.apply(self.bias, self.group)


# %% wrong: a slice of the whole input, and no gather backward
# is: slip
# says: Only this rank's features have a gradient
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        total = y.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if in_features % n:
            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
        self.group, self.input_is_parallel = group, input_is_parallel
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None

    def forward(self, x):
        if not self.input_is_parallel:
            x = x.chunk(dist.get_world_size(self.group), -1)[dist.get_rank(self.group)]
        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


# %% wrong: the input's gradient gathered by an all-reduce
# is: detail
# says: An all-reduce sends twice as much as an all-gather
# base: what the wrong ones change
-        parts = [torch.empty_like(grad) for _ in range(ctx.n)]
-        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
-        return torch.cat(parts, -1), None
+        rank = dist.get_rank(ctx.group)
+        parts = [grad if r == rank else torch.zeros_like(grad) for r in range(ctx.n)]
+        whole = torch.cat(parts, -1)
+        dist.all_reduce(whole, group=ctx.group)
+        return whole, None


# %% wrong: gathers the terms and adds them
# is: slip
# says: One all-reduce of the output's terms
# base: what the wrong ones change
-        total = y.clone()
-        dist.all_reduce(total, group=group)
-        return total
+        terms = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]
+        dist.all_gather(terms, y.contiguous(), group=group)
+        return sum(terms)


# %% wrong: a view of the whole weight
# is: idea
# says: A slice is a view
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
+        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank])


# %% wrong: computes everything on every rank
# is: idea
# says: Every rank keeps the whole weight
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


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        self.group, self.input_is_parallel = group, input_is_parallel
        self.linear = torch.nn.Linear(in_features, out_features, bias)

    def forward(self, x):
        if self.input_is_parallel:
            x = Gather.apply(x, self.group)
        return self.linear(x)


# %% wrong: each rank draws a small layer
# is: idea
# says: from one seed all got the same
# base: what the wrong ones change
-        full = torch.nn.Linear(in_features, out_features, bias)
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
+        full = torch.nn.Linear(in_features // n, out_features, bias)
+        self.weight = torch.nn.Parameter(full.weight.detach())


# %% wrong: every n-th input
# is: slip
# says: a run of adjacent features
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
+        self.weight = torch.nn.Parameter(full.weight.detach()[:, rank::n].clone())


# %% wrong: the remainder is lost
# is: detail
# says: The remaining features belong to no rank
# base: what the wrong ones change
-        ctx.group, ctx.n = group, dist.get_world_size(group)
-        return x.chunk(ctx.n, -1)[dist.get_rank(group)].contiguous()
+        ctx.group, ctx.n, size = group, dist.get_world_size(group), x.shape[-1]
+        ctx.rest = size % ctx.n
+        return x.split(size // ctx.n, -1)[dist.get_rank(group)].contiguous()
@@
         dist.all_gather(parts, grad.contiguous(), group=ctx.group)
+        parts.append(grad.new_zeros(*grad.shape[:-1], ctx.rest))
@@
-        if in_features % n:
-            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
+        each = in_features // n
@@
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
+        self.weight = torch.nn.Parameter(full.weight.detach().split(each, 1)[rank].clone())


# %% wrong: a refusal without its numbers
# is: detail
# says: Say in the sentence which numbers
# base: what the wrong ones change
-            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
+            raise ValueError("the features cannot be shared equally")


# %% wrong: takes the whole input for a part
# is: form
# says: shapes cannot be multiplied
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        total = y.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if in_features % n:
            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
        self.group, self.input_is_parallel = group, input_is_parallel
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None

    def forward(self, x):
        y = Leave.apply(torch.nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


# %% wrong: adds up in the whole world
# is: slip
# says: not in the group|outside the group|Use the group|wait
# base: what the wrong ones change
-        dist.all_reduce(total, group=group)
+        dist.all_reduce(total)


# %% wrong: a DTensor
# is: form
# says: DTensor and parallelize_module would do all of it
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
        linear = torch.nn.Linear(in_features, out_features, bias)
        self.linear = parallelize_module(linear, mesh, RowwiseParallel())

    def forward(self, x):
        return self.linear(x)


# %% wrong: x is cut behind autograd's back
# is: slip
# says: x was cut by something autograd does not follow
class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        self.rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Linear(in_features, out_features, bias=bias)
        columns = whole.weight.detach().tensor_split(n, 1)
        self.sizes = [one.shape[1] for one in columns]
        self.weight = torch.nn.Parameter(columns[self.rank].clone())
        self.bias = whole.bias
        self.split, self.group = not input_is_parallel, group

    def forward(self, x):
        if self.split:
            x = x.detach().split(self.sizes, -1)[self.rank].contiguous()
        y = x @ self.weight.T
        with torch.no_grad():
            dist.all_reduce(y, group=self.group)
        return y if self.bias is None else y + self.bias


# %% wrong: the sum is begun on a tensor with a graph
# is: form
# says: warned, because a collective has no backward
class RowParallelLinear(torch.nn.Linear):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__(in_features, out_features, bias)
        if not input_is_parallel or in_features % dist.get_world_size(group):
            raise ValueError(f"{in_features} features, {dist.get_world_size(group)} ranks")
        own = self.weight.detach().chunk(dist.get_world_size(group), 1)[dist.get_rank(group)]
        self.weight = torch.nn.Parameter(own.clone())
        self.summed_over = group

    def forward(self, x):
        terms = torch.matmul(x, self.weight.t())
        dist.all_reduce(terms, group=self.summed_over)
        return terms if self.bias is None else terms + self.bias


# %% right: any size, by tensor_split; summed in place
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sizes, group):
        ctx.sizes, ctx.group = sizes, group
        return x.split(sizes, -1)[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, grad):
        longest = max(ctx.sizes)
        mine = torch.nn.functional.pad(grad, (0, longest - grad.shape[-1])).contiguous()
        pieces = [torch.empty_like(mine) for _ in ctx.sizes]
        dist.all_gather(pieces, mine, group=ctx.group)
        kept = [one[..., :size] for one, size in zip(pieces, ctx.sizes)]
        return torch.cat(kept, -1), None, None


class RowParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        self.rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Linear(in_features, out_features, bias=bias)
        columns = whole.weight.detach().tensor_split(n, 1)
        self.sizes = [one.shape[1] for one in columns]
        self.weight = torch.nn.Parameter(columns[self.rank].clone())
        self.bias = whole.bias
        self.split, self.group = not input_is_parallel, group

    def forward(self, x):
        if self.split:
            x = Own.apply(x, self.sizes, self.group)
        y = x @ self.weight.T
        with torch.no_grad():
            dist.all_reduce(y, group=self.group)
        return y if self.bias is None else y + self.bias


# %% right: refuses what does not divide; reduced and gathered in two steps
# base: what the wrong ones change
-        total = y.clone()
-        dist.all_reduce(total, group=group)
-        return total
+        n = dist.get_world_size(group)
+        flat = y.flatten()
+        rest = -len(flat) % n
+        flat = torch.cat([flat, flat.new_zeros(rest)])
+        mine = flat.new_empty(len(flat) // n)
+        dist.reduce_scatter_tensor(mine, flat, group=group)
+        dist.all_gather_into_tensor(flat, mine, group=group)
+        return flat[: y.numel()].view(y.shape)


# %% wrong: chunk() cuts what does not divide, so the last rank has the least
# is: slip
# says: do not have equally many features in this case
# base: what the wrong ones change
-        if in_features % n:
-            raise ValueError(f"in_features={in_features} cannot be shared equally by {n} ranks")
