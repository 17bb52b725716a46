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


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        total = y.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def rows(linear, n, k):
    out_features, in_features = linear.weight.shape
    small = torch.nn.Linear(in_features, out_features // n, linear.bias is not None)
    with torch.no_grad():
        for mine, whole in zip(small.parameters(), linear.parameters()):
            mine.copy_(whole.chunk(n)[k])
    return small


class ParallelHeads(torch.nn.Module):
    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % n or (kv_heads % n and n % kv_heads):
            raise ValueError(f"{heads} heads, {kv_heads} of keys and values, for {n} ranks")
        copies, head_dim = max(1, n // kv_heads), width // heads
        self.group, self.head_dim, self.holders = group, head_dim, None
        if copies > 1:
            ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
            first = rank // copies * copies
            same = ranks[first : first + copies]
            self.holders = dist.new_group(same, use_local_synchronization=True)
        query = torch.nn.Linear(width, width, bias)
        key = torch.nn.Linear(width, kv_heads * head_dim, bias)
        value = torch.nn.Linear(width, kv_heads * head_dim, bias)
        out = torch.nn.Linear(width, width, bias)
        self.query = rows(query, n, rank)
        self.key = rows(key, n // copies, rank // copies)
        self.value = rows(value, n // copies, rank // copies)
        self.out = torch.nn.Parameter(out.weight.detach().chunk(n, 1)[rank].clone())
        self.bias = out.bias

    def kept(self, linear, x):
        if self.holders is None:
            return linear(x)
        bias = None if linear.bias is None else Enter.apply(linear.bias, self.holders)
        return torch.nn.functional.linear(x, Enter.apply(linear.weight, self.holders), bias)

    def forward(self, x):
        x = Enter.apply(x, self.group)
        q, k, v = self.query(x), self.kept(self.key, x), self.kept(self.value, x)
        q, k, v = (one.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=grouped
        )
        out = out.transpose(1, 2).flatten(-2)
        y = Leave.apply(out @ self.out.T, self.group)
        return y if self.bias is None else y + self.bias


# %% wrong: x enters three times
# is: slip
# says: x enters three times
# base: what the wrong ones change
-        x = Enter.apply(x, self.group)
-        q, k, v = self.query(x), self.kept(self.key, x), self.kept(self.value, x)
+        q = self.query(Enter.apply(x, self.group))
+        k = self.kept(self.key, Enter.apply(x, self.group))
+        v = self.kept(self.value, Enter.apply(x, self.group))


# %% wrong: x enters in front of the layers, and in each of them
# is: slip
# says: a ColumnParallelLinear that is called lets x in once more
# base: what the wrong ones change
-        q, k, v = self.query(x), self.kept(self.key, x), self.kept(self.value, x)
+        q = self.query(Enter.apply(x, self.group))
+        k = self.kept(self.key, Enter.apply(x, self.group))
+        v = self.kept(self.value, Enter.apply(x, self.group))


# %% wrong: nothing is said backward
# is: slip
# says: x is whole. Let it enter the region by identity forward
# base: what the wrong ones change
-        x = Enter.apply(x, self.group)


# %% wrong: nothing is said forward
# is: slip
# says: out is row-parallel, so its terms must be summed
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
-        y = Leave.apply(out @ self.out.T, self.group)
+        y = out @ self.out.T


# %% wrong: an all-reduce in both directions behind out
# is: slip
# says: \d times too large. A sum hands its gradient on
# base: what the wrong ones change
     def forward(ctx, y, group):
+        ctx.group = group
@@
-        return grad, None
+        total = grad.clone()
+        dist.all_reduce(total, group=ctx.group)
+        return total, None


# %% wrong: every rank adds the bias
# is: slip
# says: The bias of out counts \d times
# base: what the wrong ones change
-        y = Leave.apply(out @ self.out.T, self.group)
-        return y if self.bias is None else y + self.bias
+        y = torch.nn.functional.linear(out, self.out, self.bias)
+        return Leave.apply(y, self.group)


# %% wrong: tokens see those that follow
# is: slip
# says: attention here is causal
# base: what the wrong ones change
-        out = torch.nn.functional.scaled_dot_product_attention(
-            q, k, v, is_causal=True, enable_gqa=grouped
-        )
+        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)


# %% wrong: the heads are not turned back
# is: slip
# says: Transpose back to \(batch, seq
# base: what the wrong ones change
-        out = out.transpose(1, 2).flatten(-2)
+        out = out.reshape(*x.shape[:2], -1)


# %% wrong: a part of every head
# is: idea
# says: Heads must stay whole
# base: what the wrong ones change
-        self.group, self.head_dim, self.holders = group, head_dim, None
+        self.group, self.head_dim, self.holders = group, head_dim // n or head_dim, None


# %% wrong: all heads on every rank
# is: idea
# says: The whole weight is still in memory
# base: what the wrong ones change
-        self.query = rows(query, n, rank)
-        self.key = rows(key, n // copies, rank // copies)
-        self.value = rows(value, n // copies, rank // copies)
+        self.query = query
+        self.key, self.own = key, (rank, n)
+        self.value = value
@@
-        out = out.transpose(1, 2).flatten(-2)
+        rank, n = self.own
+        out = out.transpose(1, 2).flatten(-2).chunk(n, -1)[rank]


# %% wrong: the heads are gathered, and out is whole on every rank
# is: idea
# says: One all-reduce is enough, behind out
# base: what the wrong ones change
-class Leave(torch.autograd.Function):
+class Gather(torch.autograd.Function):
@@
-        total = y.clone()
-        dist.all_reduce(total, group=group)
-        return total
+        ctx.rank, ctx.n = dist.get_rank(group), dist.get_world_size(group)
+        parts = [torch.empty_like(y) for _ in range(ctx.n)]
+        dist.all_gather(parts, y.contiguous(), group=group)
+        return torch.cat(parts, -1)
@@
-        return grad, None
+        return grad.chunk(ctx.n, -1)[ctx.rank].contiguous(), None
@@
-        self.out = torch.nn.Parameter(out.weight.detach().chunk(n, 1)[rank].clone())
+        self.out = torch.nn.Parameter(out.weight.detach())
@@
-        y = Leave.apply(out @ self.out.T, self.group)
+        y = Gather.apply(out, self.group) @ self.out.T


# %% wrong: row before column
# is: slip
# says: One all-reduce is enough, behind out
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


def rows(linear, n, k):
    out_features, in_features = linear.weight.shape
    small = torch.nn.Linear(in_features, out_features // n, linear.bias is not None)
    with torch.no_grad():
        for mine, whole in zip(small.parameters(), linear.parameters()):
            mine.copy_(whole.chunk(n)[k])
    return small


class ParallelHeads(torch.nn.Module):
    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
        super().__init__()
        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % self.n:
            raise ValueError(f"{heads} heads for {self.n} ranks")
        self.group, self.head_dim = group, width // heads
        sizes = [width, kv_heads * self.head_dim, kv_heads * self.head_dim]
        into = [torch.nn.Linear(width, size, bias) for size in sizes]
        self.out = rows(torch.nn.Linear(width, width, bias), self.n, self.rank)
        parts = [one.weight.detach().chunk(self.n, 1)[self.rank].clone() for one in into]
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(one) for one in parts])
        self.biases = torch.nn.ParameterList([one.bias for one in into] if bias else [])

    def row(self, x, i):
        y = Leave.apply(x @ self.parts[i].T, self.group)
        return y + self.biases[i] if len(self.biases) else y

    def forward(self, x):
        x = Split.apply(x, self.group)
        q, k, v = (self.row(x, i) for i in range(3))
        q, k, v = (one.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        out = Enter.apply(out.transpose(1, 2).flatten(-2), self.group)
        return Gather.apply(self.out(out), self.group)


# %% wrong: heads that are left over are lost
# is: detail
# says: Raise a ValueError that names the heads and the ranks
# base: what the wrong ones change
-    small = torch.nn.Linear(in_features, out_features // n, linear.bias is not None)
+    size = out_features // (2 * n) * 2
+    small = torch.nn.Linear(in_features, size, linear.bias is not None)
@@
-            mine.copy_(whole.chunk(n)[k])
+            mine.copy_(whole.split(size)[k])
@@
-        if heads % n or (kv_heads % n and n % kv_heads):
-            raise ValueError(f"{heads} heads, {kv_heads} of keys and values, for {n} ranks")
@@
-        self.out = torch.nn.Parameter(out.weight.detach().chunk(n, 1)[rank].clone())
+        self.out = torch.nn.Parameter(
+            out.weight.detach().split(heads // n * head_dim, 1)[rank].clone()
+        )


# %% wrong: out is drawn first
# is: detail
# says: in the order query, key, value, out
# base: what the wrong ones change
             self.holders = dist.new_group(same, use_local_synchronization=True)
+        out = torch.nn.Linear(width, width, bias)
@@
-        out = torch.nn.Linear(width, width, bias)


# %% wrong: a view of the whole out
# is: idea
# says: A slice is a view
# base: what the wrong ones change
-        self.out = torch.nn.Parameter(out.weight.detach().chunk(n, 1)[rank].clone())
+        self.out = torch.nn.Parameter(out.weight.detach().chunk(n, 1)[rank])


# %% wrong: heads of the whole world
# is: slip
# says: Count the ranks of the group
# base: what the wrong ones change
-        rank, n = dist.get_rank(group), dist.get_world_size(group)
+        rank, n = dist.get_rank(), dist.get_world_size()


# %% wrong: features of a head in strides
# is: slip
# says: a head's features are adjacent. Use
# base: what the wrong ones change
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
@@
         self.group, self.head_dim, self.holders = group, head_dim, None
+        self.dropout, self.rank = dropout, rank
@@
-        q, k, v = (one.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in (q, k, v))
+        q, k, v = (one.unflatten(-1, (self.head_dim, -1)).transpose(1, 2) for one in (q, k, v))
@@
-        out = torch.nn.functional.scaled_dot_product_attention(
-            q, k, v, is_causal=True, enable_gqa=grouped
-        )
+        dropout = self.dropout if self.training else 0.0
+        with torch.random.fork_rng(devices=[]):
+            if dropout:
+                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+            out = torch.nn.functional.scaled_dot_product_attention(
+                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+            )


# %% wrong: features of heads transposed
# is: slip
# says: read as \(head_dim, heads\)
# base: what the wrong ones change
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
@@
         self.group, self.head_dim, self.holders = group, head_dim, None
+        self.dropout, self.rank = dropout, rank
@@
-        q, k, v = (one.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in (q, k, v))
+        q, k, v = (one.unflatten(-1, (self.head_dim, -1)).permute(0, 3, 1, 2) for one in (q, k, v))
@@
-        out = torch.nn.functional.scaled_dot_product_attention(
-            q, k, v, is_causal=True, enable_gqa=grouped
-        )
+        dropout = self.dropout if self.training else 0.0
+        with torch.random.fork_rng(devices=[]):
+            if dropout:
+                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+            out = torch.nn.functional.scaled_dot_product_attention(
+                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+            )


# %% wrong: every rank's heads are dealt in turns, but not out's columns
# is: slip
# says: Rank k took every \dth head
# base: what the wrong ones change
+
+@torch.no_grad()
+def dealt(linear, heads, n):
+    order = [head for first in range(n) for head in range(first, heads, n)]
+    for one in linear.parameters():
+        one.copy_(one.unflatten(0, (heads, -1))[order].flatten(0, 1))
+

 class ParallelHeads(torch.nn.Module):
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
@@
         self.group, self.head_dim, self.holders = group, head_dim, None
+        self.dropout, self.rank = dropout, rank
@@
         out = torch.nn.Linear(width, width, bias)
+        if kv_heads == heads:
+            for one in (query, key, value):
+                dealt(one, heads, n)
@@
-        out = torch.nn.functional.scaled_dot_product_attention(
-            q, k, v, is_causal=True, enable_gqa=grouped
-        )
+        dropout = self.dropout if self.training else 0.0
+        with torch.random.fork_rng(devices=[]):
+            if dropout:
+                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+            out = torch.nn.functional.scaled_dot_product_attention(
+                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+            )


# %% wrong: keys and values do not enter the region
# is: slip
# says: x enters the region for query alone
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad + 0
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        y = y + 0
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelHeads(torch.nn.Module):
    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
        super().__init__()
        place, n = dist.get_rank(group), dist.get_world_size(group)
        if heads % n:
            raise ValueError(f"{n} ranks and {heads} heads")
        self.group, self.heads = group, heads // n
        cut = [torch.nn.Linear(width, width, bias) for _ in range(4)]
        last = cut.pop()
        self.qkv = torch.nn.ParameterList(
            [one.detach().chunk(n)[place].clone() for layer in cut for one in layer.parameters()]
        )
        self.columns = torch.nn.Parameter(last.weight.detach().chunk(n, 1)[place].clone())
        self.last_bias = last.bias

    def forward(self, x):
        step = len(self.qkv) // 3
        entered = Enter.apply(x, self.group)
        made = []
        for use, first in enumerate(range(0, len(self.qkv), step)):
            features = torch.nn.functional.linear(
                x if use else entered, *self.qkv[first : first + step]
            )
            made.append(features.unflatten(-1, (self.heads, -1)).movedim(-2, 1))
        mixed = torch.nn.functional.scaled_dot_product_attention(*made, is_causal=True)
        y = Leave.apply(mixed.movedim(1, -2).flatten(-2) @ self.columns.T, self.group)
        return y if self.last_bias is None else y + self.last_bias


# %% wrong: the sum is left to autograd
# is: form
# says: In backward PyTorch met a collective that was called on a tensor with a graph
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
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
@@
         self.group, self.head_dim, self.holders = group, head_dim, None
+        self.dropout, self.rank = dropout, rank
@@
-        out = torch.nn.functional.scaled_dot_product_attention(
-            q, k, v, is_causal=True, enable_gqa=grouped
-        )
+        dropout = self.dropout if self.training else 0.0
+        with torch.random.fork_rng(devices=[]):
+            if dropout:
+                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+            out = torch.nn.functional.scaled_dot_product_attention(
+                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+            )
@@
-        y = Leave.apply(out @ self.out.T, self.group)
+        y = (out @ self.out.T).clone()
+        dist.all_reduce(y, group=self.group)


# %% right: a group for each key and value head
# base: what the wrong ones change
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
@@
+        self.dropout, self.rank = dropout, rank
         if copies > 1:
@@
-        out = torch.nn.functional.scaled_dot_product_attention(
-            q, k, v, is_causal=True, enable_gqa=grouped
-        )
+        dropout = self.dropout if self.training else 0.0
+        with torch.random.fork_rng(devices=[]):
+            if dropout:
+                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+            out = torch.nn.functional.scaled_dot_product_attention(
+                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+            )


# %% right: keys and values whole where they are few; softmax by hand
def added(one, group):
    total = one.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        return added(grad, ctx.group), None


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return added(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelHeads(torch.nn.Module):
    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
        super().__init__()
        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
        kv_heads = kv_heads or heads
        if heads % self.n:
            raise ValueError(f"heads={heads} must be a multiple of the {self.n} ranks")
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.group, self.whole = group, kv_heads % self.n != 0
        layers = [torch.nn.Linear(width, heads * self.size, bias)]
        layers += [torch.nn.Linear(width, kv_heads * self.size, bias) for _ in range(2)]
        last = torch.nn.Linear(width, width, bias)
        kept = [layers[0].weight.chunk(self.n)[self.rank]]
        kept += [
            one.weight if self.whole else one.weight.chunk(self.n)[self.rank] for one in layers[1:]
        ]
        self.weights = torch.nn.ParameterList([one.detach().clone() for one in kept])
        self.biases = None
        if bias:
            kept = [layers[0].bias.chunk(self.n)[self.rank]]
            kept += [
                one.bias if self.whole else one.bias.chunk(self.n)[self.rank] for one in layers[1:]
            ]
            self.biases = torch.nn.ParameterList([one.detach().clone() for one in kept])
        self.last = torch.nn.Parameter(last.weight.detach().chunk(self.n, 1)[self.rank].clone())
        self.last_bias, self.dropout = last.bias, torch.nn.Dropout(dropout)

    def projected(self, x, i):
        weight, bias = self.weights[i], None if self.biases is None else self.biases[i]
        if i and self.whole:
            weight = Identity.apply(weight, self.group)
            bias = None if bias is None else Identity.apply(bias, self.group)
        made = x @ weight.T if bias is None else x @ weight.T + bias
        return made.view(*x.shape[:2], -1, self.size)

    def forward(self, x):
        x = Identity.apply(x, self.group)
        q, k, v = (self.projected(x, i) for i in range(3))
        here = self.heads // self.n
        if self.whole:
            mine = torch.arange(self.rank * here, (self.rank + 1) * here)
            shared = mine // (self.heads // self.kv_heads)
            k, v = k[:, :, shared], v[:, :, shared]
        else:
            times = self.heads // self.kv_heads
            k, v = k.repeat_interleave(times, 2), v.repeat_interleave(times, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / self.size**0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        ones = weights.new_ones(len(x), self.heads, *weights.shape[2:])  # masks of all heads
        weights = weights * self.dropout(ones)[:, self.rank * here : (self.rank + 1) * here]
        out = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(*x.shape[:2], -1)
        y = Sum.apply(out @ self.last.T, self.group)
        return y if self.last_bias is None else y + self.last_bias
