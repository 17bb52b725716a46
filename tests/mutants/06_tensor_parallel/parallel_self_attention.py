# %% wrong: x enters three times
# is: slip
# says: x enters three times
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        self.dropout, self.rank = dropout, rank
@@
-        x = Enter.apply(x, self.group)
-        q, k, v = self.query(x), self.kept(self.key, x), self.kept(self.value, x)
+        q = self.query(Enter.apply(x, self.group))
+        k = self.kept(self.key, Enter.apply(x, self.group))
+        v = self.kept(self.value, Enter.apply(x, self.group))
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )


# %% wrong: nothing is said backward
# is: slip
# says: x is whole. Let it enter the region by identity forward
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        self.dropout, self.rank = dropout, rank
@@
-        x = Enter.apply(x, self.group)
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )


# %% wrong: grouped heads in turns
# is: slip
# says: neighbours share one
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        self.dropout, self.rank = dropout, rank
@@
-        grouped = q.shape[1] != k.shape[1]
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        times = q.shape[1] // k.shape[1]
+        k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
+        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


# %% wrong: copies of a key and value head go apart
# is: slip
# says: the copies were updated
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        self.dropout, self.rank = dropout, rank
-        if copies > 1:
+        if copies > n:
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )


# %% wrong: copies of a head's bias go apart
# is: detail
# says: of its weight and of its bias over the group `same`
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        self.dropout, self.rank = dropout, rank
@@
-        bias = None if linear.bias is None else Enter.apply(linear.bias, self.holders)
-        return torch.nn.functional.linear(x, Enter.apply(linear.weight, self.holders), bias)
+        return torch.nn.functional.linear(x, Enter.apply(linear.weight, self.holders), linear.bias)
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )


# %% wrong: no key and value heads for some ranks
# is: form
# says: heads
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        if heads % n or (kv_heads % n and n % kv_heads):
+        if heads % n or kv_heads % n:
@@
-        self.dropout, self.rank = dropout, rank
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )


# %% wrong: all heads on every rank
# is: idea
# says: The whole weight is still in memory
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        self.dropout, self.rank = dropout, rank
@@
-        self.query = rows(query, n, rank)
-        self.key = rows(key, n // copies, rank // copies)
-        self.value = rows(value, n // copies, rank // copies)
+        self.query = query
+        self.key, self.own = key, (rank, n)
+        self.value = value
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
-        out = out.transpose(1, 2).flatten(-2)
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )
+        rank, n = self.own
+        out = out.transpose(1, 2).flatten(-2).chunk(n, -1)[rank]


# %% wrong: heads of the whole world
# is: form
# says: Count the ranks of the group
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, kv_heads=None, bias=True, group=None):
@@
-        rank, n = dist.get_rank(group), dist.get_world_size(group)
+        rank, n = dist.get_rank(), dist.get_world_size()
@@
-        self.dropout, self.rank = dropout, rank
@@
-        dropout = self.dropout if self.training else 0.0
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped
+        )


# %% wrong: the same masks on every rank
# is: slip
# says: Every rank dropped the same weights of its heads
# base: a group for each key and value head
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+                torch.manual_seed(torch.initial_seed() + 1)


# %% wrong: a seed of each rank's own, and left so
# is: detail
# says: Behind the region all ranks must draw the same
# base: a group for each key and value head
-        with torch.random.fork_rng(devices=[]):
-            if dropout:
-                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
-            out = torch.nn.functional.scaled_dot_product_attention(
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
-            )
+        if dropout:
+            torch.manual_seed(torch.initial_seed() + 1 + self.rank)
+        out = torch.nn.functional.scaled_dot_product_attention(
+            q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+        )


# %% wrong: drops when nobody trains
# is: slip
# says: Dropout is for training
# base: a group for each key and value head
-        dropout = self.dropout if self.training else 0.0
+        dropout = self.dropout


# %% wrong: dropout is left out
# is: slip
# says: Nothing was dropped while training
# base: a group for each key and value head
-        dropout = self.dropout if self.training else 0.0
+        dropout = 0.0


# %% wrong: features of the heads are dropped
# is: slip
# says: Dropout applies to the weights of attention
# base: a group for each key and value head
-                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
+                q, k, v, is_causal=True, enable_gqa=grouped
             )
+            out = torch.nn.functional.dropout(out, dropout)


# %% wrong: kv_heads is overlooked, and an assert for heads that cannot be shared
# is: slip
# says: kv_heads was ignored
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


class ParallelSelfAttention(torch.nn.Module):
    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
        super().__init__()
        place, n = dist.get_rank(group), dist.get_world_size(group)
        assert heads % n == 0, f"{n} ranks and {heads} heads"
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
        for first in range(0, len(self.qkv), step):
            features = torch.nn.functional.linear(entered, *self.qkv[first : first + step])
            made.append(features.unflatten(-1, (self.heads, -1)).movedim(-2, 1))
        mixed = torch.nn.functional.scaled_dot_product_attention(*made, is_causal=True)
        y = Leave.apply(mixed.movedim(1, -2).flatten(-2) @ self.columns.T, self.group)
        return y if self.last_bias is None else y + self.last_bias


# %% wrong: an interface without kv_heads
# is: form
# says: The docstring has the argument `kv_heads`
# base: a group for each key and value head
-    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
+    def __init__(self, width, heads, bias=True, group=None, dropout=0.0):
         super().__init__()
+        kv_heads = heads


# %% right: a group for each key and value head
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


class ParallelSelfAttention(torch.nn.Module):
    def __init__(self, width, heads, kv_heads=None, bias=True, group=None, dropout=0.0):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % n or (kv_heads % n and n % kv_heads):
            raise ValueError(f"{heads} heads, {kv_heads} of keys and values, for {n} ranks")
        copies, head_dim = max(1, n // kv_heads), width // heads
        self.group, self.head_dim, self.holders = group, head_dim, None
        self.dropout, self.rank = dropout, rank
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
        dropout = self.dropout if self.training else 0.0
        with torch.random.fork_rng(devices=[]):
            if dropout:
                torch.manual_seed(torch.initial_seed() + 1 + self.rank)
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=grouped, dropout_p=dropout
            )
        out = out.transpose(1, 2).flatten(-2)
        y = Leave.apply(out @ self.out.T, self.group)
        return y if self.bias is None else y + self.bias


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


class ParallelSelfAttention(torch.nn.Module):
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
