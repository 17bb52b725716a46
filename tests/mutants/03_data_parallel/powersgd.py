# %% base: what the wrong ones change
class PowerSGD:
    def __init__(self, rank=2, group=None):
        self.rank, self.group = rank, group
        self.queries, self.errors = {}, {}

    @torch.no_grad()
    def all_reduce(self, gradients):
        for k, gradient in enumerate(gradients):
            if gradient.dim() != 2:
                self.mean(gradient)
                continue
            if k not in self.queries:
                generator = torch.Generator().manual_seed(k)
                shape = (gradient.shape[1], self.rank)
                self.queries[k] = torch.randn(shape, generator=generator).to(gradient)
                self.errors[k] = torch.zeros_like(gradient)
            asked = gradient + self.errors[k]
            p = asked @ self.queries[k]
            self.mean(p)
            p = torch.linalg.qr(p).Q
            q = asked.T @ p
            self.mean(q)
            gradient.copy_(p @ q.T)
            self.errors[k] = asked - gradient
            self.queries[k] = q

    def mean(self, tensor):
        dist.all_reduce(tensor, group=self.group)
        tensor /= dist.get_world_size(self.group)


# %% wrong: no error feedback
# is: slip
# says: missed in earlier steps was not added
# base: what the wrong ones change
-            asked = gradient + self.errors[k]
+            asked = gradient.clone()


# %% wrong: a new random Q in every step
# is: slip
# says: did not start from the Q of the step before
# base: what the wrong ones change
-            if k not in self.queries:
-                generator = torch.Generator().manual_seed(k)
+            generator = torch.Generator().manual_seed(k)
+            first = k not in self.queries
+            if True:
@@
-                self.errors[k] = torch.zeros_like(gradient)
+                if first:
+                    self.errors[k] = torch.zeros_like(gradient)


# %% wrong: Q of the own gradient, not averaged
# is: slip
# says: Q = G\^T P has to be averaged
# base: what the wrong ones change
-            self.mean(q)


# %% wrong: P is not averaged
# is: slip
# says: P is not averaged
# base: what the wrong ones change
-            self.mean(p)


# %% wrong: P is not made orthonormal
# is: slip
# says: orthonormal
# base: what the wrong ones change
-            p = torch.linalg.qr(p).Q


# %% wrong: Q is summed, not averaged
# is: slip
# says: sum over the \d ranks
# base: what the wrong ones change
-            self.mean(q)
+            dist.all_reduce(q, group=self.group)


# %% wrong: the error is what the gradient alone misses
# is: slip
# says: gradient \*and\* earlier error together
# base: what the wrong ones change
                 self.errors[k] = torch.zeros_like(gradient)
+            own = gradient.clone()
@@
-            self.errors[k] = asked - gradient
+            self.errors[k] = own - gradient


# %% wrong: the whole gradient is averaged first
# is: idea
# says: nothing was compressed|travelled whole|are enough
# base: what the wrong ones change
                 self.errors[k] = torch.zeros_like(gradient)
+            self.mean(gradient)


# %% wrong: the whole mean travels, and each rank factorizes it
# is: idea
# says: Every gradient travelled whole
# base: what the wrong ones change
             asked = gradient + self.errors[k]
+            self.mean(asked)
@@
-            self.mean(p)
@@
-            self.mean(q)


# %% wrong: two columns, whatever rank is
# is: detail
# says: with [13] columns
# base: what the wrong ones change
-                shape = (gradient.shape[1], self.rank)
+                shape = (gradient.shape[1], 2)


# %% wrong: vectors are left as they are
# is: detail
# says: a gradient that is not a matrix must also be averaged
# base: what the wrong ones change
-                self.mean(gradient)


# %% wrong: P is random, not G Q
# is: slip
# says: P spans the columns of G Q
# base: what the wrong ones change
-            p = asked @ self.queries[k]
-            self.mean(p)
+            p = torch.randn(len(asked), self.rank, generator=torch.Generator().manual_seed(k)).to(
+                asked
+            )


# %% right: all matrices in two all-reduces, columns by SVD, errors against the own Q
class PowerSGD:
    def __init__(self, rank=2, group=None):
        self.columns, self.group, self.n = rank, group, dist.get_world_size(group)
        self.generator = torch.Generator().manual_seed(3)
        self.kept = None

    def average(self, tensors):
        flat = torch.cat([one.flatten() for one in tensors])
        dist.all_reduce(flat, group=self.group)
        parts = (flat / self.n).split([one.numel() for one in tensors])
        return [part.view_as(one) for part, one in zip(parts, tensors)]

    def all_reduce(self, gradients):
        matrices = [g for g in gradients if g.dim() == 2]
        others = [g for g in gradients if g.dim() != 2]
        if self.kept is None:
            start = [
                torch.randn(g.shape[1], self.columns, generator=self.generator).to(g)
                for g in matrices
            ]
            self.kept = [(q, torch.zeros_like(g)) for q, g in zip(start, matrices)]
        asked = [g + error for g, (_, error) in zip(matrices, self.kept)]
        first = self.average([*others, *(a @ q for a, (q, _) in zip(asked, self.kept))])
        for one, mean in zip(others, first):
            one.copy_(mean)
        p = [torch.linalg.svd(one, full_matrices=False).U for one in first[len(others) :]]
        own = [a.T @ one for a, one in zip(asked, p)]
        q = self.average(own)
        errors = [a - one @ mine.T for a, one, mine in zip(asked, p, own)]
        for g, one, other in zip(matrices, p, q):
            g.copy_(one @ other.T)
        self.kept = list(zip(q, errors))


# %% right: Gram-Schmidt, a first Q without random numbers
def orthonormal(matrix):
    """Gram-Schmidt, as in the paper."""
    for i in range(matrix.shape[1]):
        column = matrix[:, i]
        for j in range(i):
            column -= (matrix[:, j] @ column) * matrix[:, j]
        column /= column.norm()


class PowerSGD:
    def __init__(self, rank=2, group=None):
        self.rank, self.group = rank, group
        self.state = []

    def all_reduce(self, gradients):
        n = dist.get_world_size(self.group)
        while len(self.state) < len(gradients):
            g = gradients[len(self.state)]
            numbers = torch.linspace(-1, 1, g.shape[-1] * self.rank).sin().reshape(-1, self.rank)
            # the same on every rank, and no two columns alike
            q = torch.linalg.qr(numbers.to(g) + torch.eye(g.shape[-1], self.rank).to(g)).Q
            self.state.append([q, torch.zeros_like(g)])
        for g, memory in zip(gradients, self.state):
            if g.dim() < 2:
                dist.all_reduce(g.div_(n), group=self.group)
                continue
            g += memory[1]
            p = g @ memory[0] / n
            dist.all_reduce(p, group=self.group)
            orthonormal(p)
            q = g.T @ p / n
            dist.all_reduce(q, group=self.group)
            memory[0], memory[1] = q, g - p @ q.T
            g.copy_(p @ q.T)


# %% wrong: a first Q of its own on every rank
# is: slip
# says: every rank has to start from the same Q
class PowerSGD:
    def __init__(self, rank=2, group=None):
        self.columns, self.group, self.kept = rank, group, {}
        self.n = dist.get_world_size(group)
        self.source = torch.Generator().manual_seed(77 + dist.get_rank())

    def mean_of(self, x):
        dist.all_reduce(x, group=self.group)
        return x.div_(self.n)

    @torch.no_grad()
    def all_reduce(self, gradients):
        for place, g in enumerate(gradients):
            rows, *cols = g.shape
            if len(cols) != 1 or min(rows, *cols) <= self.columns:
                self.mean_of(g)
                continue
            if place not in self.kept:
                fresh = torch.randn(cols[0], self.columns, generator=self.source)
                self.kept[place] = fresh.to(g), g * 0
            query, missed = self.kept[place]
            wish = g + missed
            basis, _ = torch.linalg.qr(self.mean_of(wish @ query))
            query = self.mean_of(wish.mT @ basis)
            g.copy_(basis @ query.mT)
            self.kept[place] = query, wish - g
