# %% base: what the wrong ones change
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


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if out_features % n:
            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
        self.group, self.gather_output = group, gather_output
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None

    def forward(self, x):
        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
        return Gather.apply(y, self.group) if self.gather_output else y


# %% wrong: nothing is said backward
# is: slip
# says: its gradient is the sum. Use identity forward, all-reduce backward
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


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if out_features % n:
            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
        self.group, self.gather_output = group, gather_output
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.weight, self.bias)
        return Gather.apply(y, self.group) if self.gather_output else y


# %% wrong: the all-reduce in the wrong direction
# is: slip
# says: x was summed over the ranks
# base: what the wrong ones change
-class Enter(torch.autograd.Function):
+class Leave(torch.autograd.Function):
@@
-    def forward(ctx, x, group):
-        ctx.group = group
-        return x.view_as(x)
+    def forward(ctx, y, group):
+        total = y.clone()
+        dist.all_reduce(total, group=group)
+        return total
@@
-        total = grad.clone()
-        dist.all_reduce(total, group=ctx.group)
-        return total, None
+        return grad, None
@@
-        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
+        y = torch.nn.functional.linear(Leave.apply(x, self.group), self.weight, self.bias)


# %% wrong: the mean of the gradients
# is: slip
# says: a value used by many gets the sum
# base: what the wrong ones change
-        return total, None
+        return total / dist.get_world_size(ctx.group), None


# %% wrong: split on the wrong dimension of (out, in)
# is: idea
# says: columns of A are its dimension 0
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
+        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n, 1)[rank].clone())


# %% wrong: computes everything on every rank, and returns a part
# is: idea
# says: Every rank keeps the whole weight
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


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if out_features % n:
            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
        self.group, self.gather_output = group, gather_output
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach())
        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None

    def forward(self, x):
        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
        n, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        return y if self.gather_output else y.chunk(n, -1)[rank]


# %% wrong: gathers the weight, and computes everything
# is: idea
# says: Forward sends nothing
# base: what the wrong ones change
-class Gather(torch.autograd.Function):
+class Rows(torch.autograd.Function):
@@
-    def forward(ctx, y, group):
+    def forward(ctx, part, group):
@@
-        parts = [torch.empty_like(y) for _ in range(ctx.n)]
-        dist.all_gather(parts, y.contiguous(), group=group)
-        return torch.cat(parts, -1)
+        parts = [torch.empty_like(part) for _ in range(ctx.n)]
+        dist.all_gather(parts, part, group=group)
+        return torch.cat(parts)
@@
-        return grad.chunk(ctx.n, -1)[ctx.rank].contiguous(), None
+        return grad.chunk(ctx.n)[ctx.rank].contiguous(), None
@@
-        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
-        return Gather.apply(y, self.group) if self.gather_output else y
+        weight = Rows.apply(self.weight, self.group)
+        y = Enter.apply(x, self.group) @ weight.T
+        if self.bias is not None:
+            y = y + Rows.apply(self.bias, self.group)
+        n, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
+        return y if self.gather_output else y.chunk(n, -1)[rank]


# %% wrong: a view of the whole weight
# is: idea
# says: A slice is a view
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
+        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank])


# %% wrong: each rank draws a small layer
# is: idea
# says: from one seed all got the same
# base: what the wrong ones change
-        full = torch.nn.Linear(in_features, out_features, bias)
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
-        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None
+        full = torch.nn.Linear(in_features, out_features // n, bias)
+        self.weight = torch.nn.Parameter(full.weight.detach())
+        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None


# %% wrong: every n-th output
# is: slip
# says: a run of adjacent features
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
-        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None
+        self.weight = torch.nn.Parameter(full.weight.detach()[rank::n].clone())
+        self.bias = torch.nn.Parameter(full.bias.detach()[rank::n].clone()) if bias else None


# %% wrong: gathered in the wrong order
# is: slip
# says: wrong order. Part r comes from rank r
# base: what the wrong ones change
-        return torch.cat(parts, -1)
+        return torch.cat(parts[::-1], -1)


# %% wrong: gathered from the rank's own part on
# is: slip
# says: Part r comes from rank r, on every rank
# base: what the wrong ones change
-        return torch.cat(parts, -1)
+        return torch.cat([*parts[ctx.rank :], *parts[: ctx.rank]], -1)


# %% wrong: gathered one behind the other
# is: slip
# says: side by side along the features
# base: what the wrong ones change
-        return torch.cat(parts, -1)
+        return torch.cat(parts).reshape(*y.shape[:-1], -1)


# %% wrong: the gathered output's gradient is summed
# is: slip
# says: keep the rank's own part
# base: what the wrong ones change
     def forward(ctx, y, group):
+        ctx.group = group
@@
     def backward(ctx, grad):
+        grad = grad.clone()
+        dist.all_reduce(grad, group=ctx.group)
         return grad.chunk(ctx.n, -1)[ctx.rank].contiguous(), None


# %% wrong: a gather that autograd does not see
# is: slip
# says: has no graph
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


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if out_features % n:
            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
        self.group, self.gather_output = group, gather_output
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None

    def forward(self, x):
        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
        if not self.gather_output:
            return y
        parts = [torch.empty_like(y) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, y.detach(), group=self.group)
        return torch.cat(parts, -1)


# %% wrong: gathers by an all-reduce of zeros
# is: detail
# says: An all-reduce sends twice as much as an all-gather
# base: what the wrong ones change
-        parts = [torch.empty_like(y) for _ in range(ctx.n)]
-        dist.all_gather(parts, y.contiguous(), group=group)
-        return torch.cat(parts, -1)
+        whole = torch.cat([y if r == ctx.rank else torch.zeros_like(y) for r in range(ctx.n)], -1)
+        dist.all_reduce(whole, group=group)
+        return whole


# %% wrong: gathers though nobody asked
# is: slip
# says: each rank returns its own features
# base: what the wrong ones change
-        return Gather.apply(y, self.group) if self.gather_output else y
+        return Gather.apply(y, self.group)


# %% wrong: the bias is forgotten
# is: slip
# says: The bias is missing
# base: what the wrong ones change
-        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
+        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight)


# %% wrong: the whole bias on every rank
# is: slip
# says: has its bias where it is computed
# base: what the wrong ones change
-        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None
+        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None
+
+    def own(self, bias):
+        n, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
+        return bias if bias is None else bias.chunk(n)[rank]
@@
-        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
+        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.own(self.bias))


# %% wrong: the whole bias is added to a part
# is: form
# says: also cuts its bias
# base: what the wrong ones change
-        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None
+        self.bias = torch.nn.Parameter(full.bias.detach()) if bias else None


# %% wrong: counts ranks in the whole world
# is: slip
# says: in the group
# base: what the wrong ones change
-        rank, n = dist.get_rank(group), dist.get_world_size(group)
+        rank, n = dist.get_rank(), dist.get_world_size()


# %% wrong: the remainder is lost
# is: detail
# says: The remaining features belong to no rank
# base: what the wrong ones change
-        if out_features % n:
-            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
+        out_features = out_features // n * n


# %% wrong: a refusal without its numbers
# is: detail
# says: Say in the sentence which numbers
# base: what the wrong ones change
-            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
+            raise ValueError("the features cannot be shared equally")


# %% wrong: PyTorch's differentiated all-gather
# is: form
# says: communicates again in backward
import torch.distributed.nn


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


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if out_features % n:
            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
        self.group, self.gather_output = group, gather_output
        full = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
        self.bias = torch.nn.Parameter(full.bias.detach().chunk(n)[rank].clone()) if bias else None

    def forward(self, x):
        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
        if not self.gather_output:
            return y
        group = self.group or dist.group.WORLD
        return torch.cat(torch.distributed.nn.functional.all_gather(y, group), -1)


# %% wrong: a DTensor
# is: form
# says: DTensor and parallelize_module would do all of it
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
        linear = torch.nn.Linear(in_features, out_features, bias)
        self.linear = parallelize_module(linear, mesh, ColwiseParallel())

    def forward(self, x):
        return self.linear(x)


# %% wrong: the sum is on the output
# is: slip
# says: x, so put identity_all_reduce on x
class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        self.n, self.place = dist.get_world_size(group), dist.get_rank(group)
        if out_features % self.n:
            raise ValueError(f"{out_features} columns on {self.n} ranks")
        drawn = torch.nn.Linear(in_features, out_features, bias)
        each = out_features // self.n
        begin = self.place * each
        self.weight = torch.nn.Parameter(drawn.weight.data[begin : begin + each].clone())
        self.bias = (
            torch.nn.Parameter(drawn.bias.data[begin : begin + each].clone()) if bias else None
        )
        self.all_columns, self.ranks = gather_output, group

    def summed(self, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=self.ranks)
        return gradient

    def forward(self, x):
        own = x @ self.weight.T
        if self.bias is not None:
            own = own + self.bias
        if own.requires_grad:
            own.register_hook(self.summed)
        if not self.all_columns:
            return own
        everybody = [
            torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(self.n)
        ]
        dist.all_gather(everybody, own.detach().contiguous(), group=self.ranks)
        everybody[self.place] = own  # the one that has a history
        return torch.cat(everybody, dim=-1)


# %% wrong: the whole layer stays as an attribute
# is: idea
# says: an attribute that holds the whole layer
class SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(context, activation, members):
        context.members = members
        return activation.view_as(activation)

    @staticmethod
    def backward(context, incoming):
        summed = incoming.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=context.members)
        return summed, None


class SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(context, columns, members):
        context.members, context.width = members, columns.shape[-1]
        columns = columns.contiguous()
        pieces = [torch.empty_like(columns) for _ in range(dist.get_world_size(members))]
        dist.all_gather(pieces, columns, group=members)
        return torch.cat(pieces, -1)

    @staticmethod
    def backward(context, incoming):
        first = dist.get_rank(context.members) * context.width
        return incoming.narrow(-1, first, context.width), None


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        ranks = dist.get_world_size(group)
        if out_features % ranks:
            raise ValueError(f"{out_features} features cannot be dealt out to {ranks} ranks")
        # A list, so that the optimizer does not see its parameters.
        self.template = [torch.nn.Linear(in_features, out_features, bias)]
        place = dist.get_rank(group)
        self.weight = torch.nn.Parameter(
            self.template[0].weight.detach().chunk(ranks)[place].clone()
        )
        self.bias = None
        if bias:
            self.bias = torch.nn.Parameter(
                self.template[0].bias.detach().chunk(ranks)[place].clone()
            )
        self.members, self.joined = group, gather_output

    def forward(self, activation):
        activation = SumOfGradients.apply(activation, self.members)
        columns = torch.nn.functional.linear(activation, self.weight, self.bias)
        return SideBySide.apply(columns, self.members) if self.joined else columns


# %% wrong: gathers an output that has a graph
# is: form
# says: A collective was called on a tensor with a graph
def add_up(grad, group):
    total = grad.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        return add_up(grad, ctx.group), None


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        self.rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Linear(in_features, out_features, bias=bias)
        rows = torch.arange(out_features).tensor_split(n)
        self.sizes = [len(one) for one in rows]
        self.linear = torch.nn.Linear(in_features, self.sizes[self.rank], bias=bias)
        with torch.no_grad():
            for mine, theirs in zip(self.linear.parameters(), whole.parameters()):
                mine.copy_(theirs[rows[self.rank]])
        self.gather_output, self.group = gather_output, group

    def forward(self, x):
        y = self.linear(Enter.apply(x, self.group))
        if self.gather_output and len(self.sizes) > 1:  # alone, what autograd does is not fixed
            longest = max(self.sizes)
            mine = torch.nn.functional.pad(y, (0, longest - y.shape[-1])).contiguous()
            received = mine.new_empty(len(self.sizes) * len(mine), *mine.shape[1:])
            dist.all_gather_into_tensor(received, mine, group=self.group)
            parts = zip(received.chunk(len(self.sizes)), self.sizes)
            return torch.cat([one[..., :size] for one, size in parts], -1)
        return y


# %% wrong: an interface without a group
# is: form
# says: Take `group=None`, and hand it to every collective
class SumBehind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own):
        ctx.width = own.shape[-1]
        pieces = [torch.empty_like(own.contiguous()) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, own.contiguous())
        return torch.cat(pieces, -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.narrow(-1, dist.get_rank() * ctx.width, ctx.width)


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False):
        super().__init__()
        if out_features % dist.get_world_size():
            raise ValueError(f"{out_features} features cannot be dealt out evenly")
        kept = out_features // dist.get_world_size()
        start = dist.get_rank() * kept
        layer = torch.nn.Linear(in_features, out_features, bias)
        self.weight = torch.nn.Parameter(layer.weight.detach()[start : start + kept].clone())
        self.bias = (
            torch.nn.Parameter(layer.bias.detach()[start : start + kept].clone()) if bias else None
        )
        self.whole = gather_output

    def forward(self, x):
        own = torch.nn.functional.linear(SumBehind.apply(x), self.weight, self.bias)
        return Joined.apply(own) if self.whole else own


# %% right: any size, by tensor_split, gathered in equal pieces
def add_up(grad, group):
    total = grad.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        return add_up(grad, ctx.group), None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group, sizes, rank):
        ctx.sizes, ctx.rank = sizes, rank
        longest = max(sizes)
        mine = y.new_zeros(longest, *y.shape[:-1])
        mine[: sizes[rank]] = y.movedim(-1, 0)
        received = y.new_empty(len(sizes) * longest, *y.shape[:-1])
        dist.all_gather_into_tensor(received, mine, group=group)
        parts = [one[:size] for one, size in zip(received.chunk(len(sizes)), sizes)]
        return torch.cat(parts).movedim(0, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.split(ctx.sizes, -1)[ctx.rank], None, None, None


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        self.rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Linear(in_features, out_features, bias=bias)
        rows = torch.arange(out_features).tensor_split(n)
        self.sizes = [len(one) for one in rows]
        self.linear = torch.nn.Linear(in_features, self.sizes[self.rank], bias=bias)
        with torch.no_grad():
            for mine, theirs in zip(self.linear.parameters(), whole.parameters()):
                mine.copy_(theirs[rows[self.rank]])
        self.gather_output, self.group = gather_output, group

    def forward(self, x):
        y = self.linear(Enter.apply(x, self.group))
        if self.gather_output:
            return Gather.apply(y, self.group, self.sizes, self.rank)
        return y


# %% right: refuses what does not divide; rank 0's weights for all
# base: what the wrong ones change
+        first = dist.get_global_rank(group or dist.group.WORLD, 0)
+        for parameter in full.parameters():
+            sent = parameter.detach().to(device())
+            dist.broadcast(sent, first, group=group)
+            parameter.data.copy_(sent)
         self.weight = torch.nn.Parameter(full.weight.detach().chunk(n)[rank].clone())
@@
-        y = torch.nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)
+        y = Enter.apply(x, self.group) @ self.weight.T
+        if self.bias is not None:
+            y = y + self.bias


# %% wrong: chunk() cuts what does not divide, so the last rank has the least
# is: slip
# says: torch.chunk cuts in this way
# base: what the wrong ones change
-        parts = [torch.empty_like(y) for _ in range(ctx.n)]
-        dist.all_gather(parts, y.contiguous(), group=group)
-        return torch.cat(parts, -1)
+        largest = torch.tensor(y.shape[-1])
+        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
+        filled = torch.nn.functional.pad(y, (0, largest.item() - y.shape[-1]))
+        parts = [torch.empty_like(filled) for _ in range(ctx.n)]
+        dist.all_gather(parts, filled.contiguous(), group=group)
+        return torch.cat(parts, -1)
@@
-        if out_features % n:
-            raise ValueError(f"out_features={out_features} cannot be shared equally by {n} ranks")
