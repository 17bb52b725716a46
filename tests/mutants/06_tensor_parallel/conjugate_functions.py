# %% base: Enter and Leave
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def identity_all_reduce(x, group=None):
    return Enter.apply(x, group)


def all_reduce_identity(x, group=None):
    return Leave.apply(x, group)


# %% base: Copies and Terms
def added_up(mine, group):
    theirs = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
    theirs.copy_(mine)
    dist.all_reduce(theirs, dist.ReduceOp.SUM, group)
    return theirs


class Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole, members):
        ctx.members = members
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, grad):
        return added_up(grad, ctx.members), None


class Terms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, term, members):
        return added_up(term, members)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def identity_all_reduce(x, group=None):
    return Copies.apply(x, group)


def all_reduce_identity(x, group=None):
    return Terms.apply(x, group)


# %% wrong: the wrong way round
# is: idea
# says: the other of the two. If a whole tensor enters
def added_up(mine, group):
    theirs = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
    theirs.copy_(mine)
    dist.all_reduce(theirs, dist.ReduceOp.SUM, group)
    return theirs


class Edge(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, group, now):
        ctx.later = None if now else group or dist.group.WORLD
        return added_up(tensor, group) if now else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return grad if ctx.later is None else added_up(grad, ctx.later), None, None


def identity_all_reduce(x, group=None):
    return Edge.apply(x, group, True)


def all_reduce_identity(x, group=None):
    return Edge.apply(x, group, False)


# %% wrong: sums in both directions
# is: idea
# says: sum these copies again counts it N times
def summed(x, group):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad, ctx.group), None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad, ctx.group), None


def identity_all_reduce(x, group=None):
    return Enter.apply(x, group)


def all_reduce_identity(x, group=None):
    return Leave.apply(x, group)


# %% wrong: the all-reduce that PyTorch differentiates
# is: idea
# says: takes every rank's result for a result of its own
import torch.distributed.nn.functional as differentiable


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def identity_all_reduce(x, group=None):
    return Enter.apply(x, group)


def all_reduce_identity(x, group=None):
    return differentiable.all_reduce(x, group=group or dist.group.WORLD)


# %% wrong: nothing is said backward
# is: idea
# says: Backward went on with the rank's own gradient
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def identity_all_reduce(x, group=None):
    return x


def all_reduce_identity(x, group=None):
    return Leave.apply(x, group)


# %% wrong: a mean, as in data parallelism
# is: slip
# says: a sum over the uses, not a mean
# base: Copies and Terms
-        return added_up(grad, ctx.members), None
+        return added_up(grad, ctx.members).div_(dist.get_world_size(ctx.members)), None


# %% wrong: the factor N taken out where none was
# is: slip
# says: has the sum's gradient as it is
# base: Enter and Leave
+        ctx.group = group
         total = x.clone(memory_format=torch.contiguous_format)
@@
-        return grad, None
+        return grad / dist.get_world_size(ctx.group), None


# %% wrong: sums into the caller's tensor
# is: slip
# says: x was changed
# base: Enter and Leave
-        total = x.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=group)
-        return total
+        dist.all_reduce(x, group=group)
+        return x.clone()


# %% wrong: sums into the gradient that it was given
# is: detail
# says: the gradient that backward was given was changed
# base: Copies and Terms
-        return added_up(grad, ctx.members), None
+        dist.all_reduce(grad, group=ctx.members)
+        return grad, None


# %% wrong: without a graph
# is: idea
# says: Autograd does not see what torch.distributed does
def identity_all_reduce(x, group=None):
    return x.detach().clone()


def all_reduce_identity(x, group=None):
    total = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


# %% wrong: gathers all terms and adds them up
# is: slip
# says: sends N/2 times as much
# base: Enter and Leave
-        total = grad.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=ctx.group)
-        return total, None
+        grad = grad.contiguous()
+        terms = [torch.empty_like(grad) for _ in range(dist.get_world_size(ctx.group))]
+        dist.all_gather(terms, grad, group=ctx.group)
+        return torch.stack(terms).sum(0), None
@@
-        total = x.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=group)
-        return total
+        x = x.contiguous()
+        terms = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
+        dist.all_gather(terms, x, group=group)
+        return torch.stack(terms).sum(0)


# %% wrong: all ranks, whatever the group
# is: slip
# says: are not in the group
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


def identity_all_reduce(x, group=None):
    return Enter.apply(x)


def all_reduce_identity(x, group=None):
    return Leave.apply(x)


# %% wrong: backward returns what all_reduce returns
# is: form
# says: works in place and returns nothing
# base: the two halves of an all-reduce
-        n = dist.get_world_size(ctx.group)
-        size = -grad.numel() % n
-        flat = torch.cat([grad.reshape(-1), grad.new_zeros(size)])
-        part = flat.new_empty(flat.numel() // n)
-        dist.reduce_scatter(part, list(flat.chunk(n)), group=ctx.group)
-        parts = [torch.empty_like(part) for _ in range(n)]
-        dist.all_gather(parts, part, group=ctx.group)
-        return torch.cat(parts)[: grad.numel()].view(grad.shape), None
+        return dist.all_reduce(grad.contiguous().clone(), group=ctx.group), None


# %% wrong: a copy of the gradient in the order that its memory has
# is: detail
# says: not contiguous
# base: Enter and Leave
-        total = grad.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=ctx.group)
-        return total, None
+        copy = grad.clone()
+        dist.all_reduce(copy, group=ctx.group)
+        return copy, None
@@
-        total = x.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=group)
-        return total
+        ctx.set_materialize_grads(False)
+        rows = x.contiguous()
+        copy = rows.clone() if rows is x else rows
+        dist.all_reduce(copy, group=group)
+        return copy


# %% wrong: the sum is begun on a tensor with a graph
# is: form
# says: warned, because a collective has no backward
def identity_all_reduce(x, group=None):
    def added(gradient):
        rows = [row.contiguous() for row in gradient.unbind()]
        flat = torch.stack(rows)
        dist.all_reduce(flat, group=group)
        return flat

    entered = x * 1
    entered.register_hook(added)
    return entered


def all_reduce_identity(x, group=None):
    terms = torch.stack(x.unbind())
    dist.all_reduce(terms, group=group)
    return terms


# %% wrong: x itself is declared to be changed
# is: form
# says: x was written into
# base: Enter and Leave
-        total = grad.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=ctx.group)
-        return total, None
+        terms = grad.contiguous() + 0
+        dist.all_reduce(terms, group=ctx.group)
+        return terms, None
@@
-        total = x.clone(memory_format=torch.contiguous_format)
-        dist.all_reduce(total, group=group)
-        return total
+        ctx.mark_dirty(x)
+        dist.all_reduce(x, group=group)
+        return x


# %% right: a backward that is differentiated once
# base: Enter and Leave
-class Enter(torch.autograd.Function):
+from torch.autograd.function import once_differentiable
+
+
+class Enter(torch.autograd.Function):
@@
-    @staticmethod
-    def backward(ctx, grad):
-        total = grad.clone(memory_format=torch.contiguous_format)
+    @staticmethod
+    @once_differentiable
+    def backward(ctx, grad):
+        total = grad.clone(memory_format=torch.contiguous_format)


# %% right: the two halves of an all-reduce
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        n = dist.get_world_size(ctx.group)
        size = -grad.numel() % n
        flat = torch.cat([grad.reshape(-1), grad.new_zeros(size)])
        part = flat.new_empty(flat.numel() // n)
        dist.reduce_scatter(part, list(flat.chunk(n)), group=ctx.group)
        parts = [torch.empty_like(part) for _ in range(n)]
        dist.all_gather(parts, part, group=ctx.group)
        return torch.cat(parts)[: grad.numel()].view(grad.shape), None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), None


def identity_all_reduce(x, group=None):
    return Enter.apply(x, group)


def all_reduce_identity(x, group=None):
    return Leave.apply(x, group)


# %% right: a hook, and a trick with detach
def identity_all_reduce(x, group=None):
    def sum_up(grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=group)
        return grad

    y = x.view_as(x)
    y.register_hook(sum_up)
    return y


def all_reduce_identity(x, group=None):
    total = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return x + (total - x.detach())
