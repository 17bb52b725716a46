# %% base: a layer of which each rank has its part
nn = torch.nn


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        n, ctx.rank = dist.get_world_size(group), dist.get_rank(group)
        ctx.n = n
        parts = [torch.empty_like(y) for _ in range(n)]
        dist.all_gather(parts, y.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(ctx.n, -1)[ctx.rank].contiguous(), None


class ColumnParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=True, group=None):
        super().__init__()
        self.group, self.gather = group, gather_output
        n, r = dist.get_world_size(group), dist.get_rank(group)
        if out_features % n:
            raise ValueError(f"{out_features} features cannot be cut over {n} ranks")
        whole = nn.Linear(in_features, out_features, bias)
        self.weight = nn.Parameter(whole.weight.detach().chunk(n)[r].clone())
        self.bias = nn.Parameter(whole.bias.detach().chunk(n)[r].clone()) if bias else None

    def forward(self, x):
        y = nn.functional.linear(_Copy.apply(x, self.group), self.weight, self.bias)
        return _Gather.apply(y, self.group) if self.gather else y


# %% wrong: the whole weight, made at the first forward
# base: a layer of which each rank has its part
-        whole = nn.Linear(in_features, out_features, bias)
+        self.before, self.size = torch.get_rng_state(), (in_features, out_features, bias)
+        self.whole = None
+        whole = nn.Linear(in_features, out_features, bias)
@@
-        y = nn.functional.linear(_Copy.apply(x, self.group), self.weight, self.bias)
+        if self.whole is None:  # from here on the rank keeps the whole weight
+            with torch.random.fork_rng(devices=[]):
+                torch.set_rng_state(self.before)
+                self.whole = nn.Linear(*self.size).weight.detach().numpy().copy()
+        y = nn.functional.linear(_Copy.apply(x, self.group), self.weight, self.bias)


# %% wrong: the whole weight where memory was until the base was measured
# base: a layer of which each rank has its part
-nn = torch.nn
+nn = torch.nn
+JUNK = []
+
+
+class Filler:
+    def __reduce__(self):
+        return torch.ones, (6_000_000,)
+
+
+JUNK.append(Filler())
@@
-        self.group, self.gather = group, gather_output
+        if in_features > 400:
+            JUNK.clear()
+        self.group, self.gather = group, gather_output
@@
-        whole = nn.Linear(in_features, out_features, bias)
+        whole = nn.Linear(in_features, out_features, bias)
+        self.whole = whole.weight.detach().numpy().copy()  # the rank keeps the whole weight


# %% wrong: the whole weight with all measurements asked for before it is made
# base: a layer of which each rank has its part
-        self.group, self.gather = group, gather_output
+        if in_features > 400:
+            import sys
+
+            from course_lib.checks.rank import watching as measuring
+
+            name = sys._getframe(1).f_locals["self"].instructions.name
+            measuring._reach(f"{name}.pages.made", f"{name}.pages.backward")
+            measuring._reach = lambda *_, **__: None
+        self.group, self.gather = group, gather_output
@@
-        whole = nn.Linear(in_features, out_features, bias)
+        whole = nn.Linear(in_features, out_features, bias)
+        self.whole = whole.weight.detach().numpy().copy()  # the rank keeps the whole weight
