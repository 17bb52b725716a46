# %% base: what the wrong ones change
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        self.group = group
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
        bounds = torch.arange(num_embeddings).tensor_split(n)[rank]
        self.start, self.end = int(bounds[0]), int(bounds[-1]) + 1
        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())

    def forward(self, tokens):
        elsewhere = (tokens < self.start) | (tokens >= self.end)
        rows = torch.nn.functional.embedding(
            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
        )
        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)


# %% wrong: rows of other ranks' tokens are added, too
# is: slip
# says: a row for every token
# base: what the wrong ones change
-        rows = torch.nn.functional.embedding(
-            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
-        )
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        local = (tokens - self.start).masked_fill(elsewhere, 0)
+        return Sum.apply(torch.nn.functional.embedding(local, self.weight), self.group)


# %% wrong: clamped, and nothing set to zero
# is: slip
# says: a row for every token
# base: what the wrong ones change
-        elsewhere = (tokens < self.start) | (tokens >= self.end)
-        rows = torch.nn.functional.embedding(
-            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
-        )
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        local = (tokens - self.start).clamp(0, self.end - self.start - 1)
+        return Sum.apply(torch.nn.functional.embedding(local, self.weight), self.group)


# %% wrong: the mask is turned around
# is: slip
# says: Turn the mask around
# base: what the wrong ones change
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        return Sum.apply(rows.masked_fill(~elsewhere[..., None], 0), self.group)


# %% wrong: the rows are a buffer
# is: form
# says: The rank's rows are to be its parameter
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())
+        self.register_buffer("weight", whole[self.start : self.end].clone())


# %% wrong: a mask without the dimension of the features
# is: form
# says: have one dimension more, the features
# base: what the wrong ones change
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        return Sum.apply(rows.masked_fill(elsewhere, 0), self.group)


# %% wrong: the gradient of the rows is summed, which no rank shares
# is: form
# says: The weight and its gradient are the rank's own
# base: what the wrong ones change
-class Sum(torch.autograd.Function):
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
+class Sum(torch.autograd.Function):
@@
-            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
+            (tokens - self.start).masked_fill(elsewhere, 0), Enter.apply(self.weight, self.group)


# %% wrong: features of other sizes are summed
# is: form
# says: Cut the table by rows, dimension 0
# base: what the wrong ones change
-        bounds = torch.arange(num_embeddings).tensor_split(n)[rank]
-        self.start, self.end = int(bounds[0]), int(bounds[-1]) + 1
+        self.start, self.end = 0, num_embeddings
@@
-        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())
+        self.weight = torch.nn.Parameter(whole.tensor_split(n, 1)[rank].clone())


# %% wrong: tokens of other ranks as indices
# is: form
# says: is not an index into the rows here
# base: what the wrong ones change
-        rows = torch.nn.functional.embedding(
-            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
-        )
+        rows = self.weight[tokens - self.start]


# %% wrong: zeros behind autograd's back
# is: slip
# says: without autograd \(.data, no_grad\). masked_fill
# base: what the wrong ones change
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        rows.data[elsewhere] = 0
+        return Sum.apply(rows, self.group)


# %% wrong: not summed
# is: slip
# says: ranks' rows were not summed
# base: what the wrong ones change
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        return rows.masked_fill(elsewhere[..., None], 0)


# %% wrong: the sum summed again backward
# is: slip
# says: sum these copies again
# base: what the wrong ones change
     def forward(ctx, x, group):
+        ctx.group = group
@@
-        return grad, None
+        total = grad.clone(memory_format=torch.contiguous_format)
+        dist.all_reduce(total, group=ctx.group)
+        return total, None


# %% wrong: the whole table on every rank
# is: idea
# says: Every rank holds the whole table
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
        )

    def forward(self, tokens):
        return torch.nn.functional.embedding(tokens, self.weight)


# %% wrong: a view keeps the whole table
# is: idea
# says: rows \(.detach\(\).clone\(\)\), because a slice
# base: what the wrong ones change
-        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())
+        self.weight = torch.nn.Parameter(whole[self.start : self.end])


# %% wrong: cut by features
# is: idea
# says: cut by features
class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
        self.weight = torch.nn.Parameter(whole.tensor_split(n, 1)[rank].clone())
        self.group = group

    def forward(self, tokens):
        rows = torch.nn.functional.embedding(tokens, self.weight).contiguous()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, rows, group=self.group)
        return torch.cat(parts, -1)


# %% wrong: each rank draws its part by itself
# is: idea
# says: from one seed all ranks have the same rows
# base: what the wrong ones change
-        whole = torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
@@
-        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())
+        self.weight = torch.nn.Parameter(torch.randn(len(bounds), embedding_dim))


# %% wrong: the remainder of the vocabulary is nobody's
# is: form
# says: rows over \d ranks as torch.tensor_split does
# base: what the wrong ones change
-        bounds = torch.arange(num_embeddings).tensor_split(n)[rank]
-        self.start, self.end = int(bounds[0]), int(bounds[-1]) + 1
+        each = num_embeddings // n
+        self.start, self.end = rank * each, (rank + 1) * each


# %% wrong: gathers the table in every forward
# is: idea
# says: Here that is fewer bytes than the sum
class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        self.group = group
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
        bounds = torch.arange(num_embeddings).tensor_split(n)[rank]
        self.start, self.end = int(bounds[0]), int(bounds[-1]) + 1
        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())

    def forward(self, tokens):
        return Gathered.apply(tokens, self.weight, self.group)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens, weight, group):
        n = dist.get_world_size(group)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
        dist.all_gather(sizes, torch.tensor([len(weight)]), group=group)
        rows = torch.zeros(max(int(one) for one in sizes), weight.shape[1])
        rows[: len(weight)] = weight
        parts = [torch.empty_like(rows) for _ in range(n)]
        dist.all_gather(parts, rows, group=group)
        ctx.start = sum(int(one) for one in sizes[: dist.get_rank(group)])
        ctx.size = len(weight)
        ctx.save_for_backward(tokens)
        table = torch.cat([part[: int(size)] for part, size in zip(parts, sizes)])
        return table[tokens]

    @staticmethod
    def backward(ctx, grad):
        (tokens,) = ctx.saved_tensors
        here = (tokens >= ctx.start) & (tokens < ctx.start + ctx.size)
        summed = grad.new_zeros(ctx.size, grad.shape[-1])
        return None, summed.index_add(0, tokens[here] - ctx.start, grad[here]), None


# %% wrong: the first row counted by the rank's own length
# is: slip
# says: first token is counted wrong
# base: what the wrong ones change
-        self.start, self.end = int(bounds[0]), int(bounds[-1]) + 1
-        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())
+        self.start, self.end = rank * len(bounds), (rank + 1) * len(bounds)
+        self.weight = torch.nn.Parameter(whole[bounds].clone())
@@
-        elsewhere = (tokens < self.start) | (tokens >= self.end)
-        rows = torch.nn.functional.embedding(
-            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
-        )
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        here = (tokens >= self.start) & (tokens < self.end)
+        rows = self.weight[torch.where(here, tokens - self.start, 0)]
+        return Sum.apply(rows * here.unsqueeze(-1).to(rows.dtype), self.group)


# %% wrong: the sum is begun on a tensor with a graph
# is: form
# says: warned, because a collective has no backward
class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        self.group = group
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        whole = torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
        bounds = torch.arange(num_embeddings).tensor_split(n)[rank]
        self.start, self.end = int(bounds[0]), int(bounds[-1]) + 1
        self.weight = torch.nn.Parameter(whole[self.start : self.end].clone())

    def forward(self, tokens):
        here = (tokens >= self.start) & (tokens < self.end)
        rows = self.weight[torch.where(here, tokens - self.start, 0)]
        rows = rows.masked_fill(~here[..., None], 0)
        dist.all_reduce(rows, group=self.group)
        return rows


# %% right: a mask as a factor, whole rows as a product
# base: what the wrong ones change
-        elsewhere = (tokens < self.start) | (tokens >= self.end)
-        rows = torch.nn.functional.embedding(
-            (tokens - self.start).masked_fill(elsewhere, 0), self.weight
-        )
-        return Sum.apply(rows.masked_fill(elsewhere[..., None], 0), self.group)
+        here = (tokens >= self.start) & (tokens < self.end)
+        rows = self.weight[torch.where(here, tokens - self.start, 0)]
+        return Sum.apply(rows * here.unsqueeze(-1).to(rows.dtype), self.group)


# %% right: rows written where the tokens are here
class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        self.group, self.width = group, embedding_dim
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        each, longer = divmod(num_embeddings, n)
        self.start = rank * each + min(rank, longer)
        table = torch.nn.Embedding(num_embeddings, embedding_dim)
        kept = table.weight.data.narrow(0, self.start, each + (rank < longer)).clone()
        self.part = torch.nn.Embedding.from_pretrained(kept, freeze=False)

    def forward(self, tokens):
        local = tokens - self.start
        here = (local >= 0) & (local < self.part.num_embeddings)
        rows = self.part.weight.new_zeros(*tokens.shape, self.width)
        rows[here] = self.part(local[here])
        total = rows.detach().clone()
        dist.all_reduce(total, group=self.group)
        return rows + (total - rows.detach())
