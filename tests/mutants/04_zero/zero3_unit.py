# %% base: what the wrong ones change
class Unit:
    def __init__(self, params, *, group=None):
        self.params, self.group, self.n = list(params), group, dist.get_world_size(group)
        self.numels = [p.numel() for p in self.params]
        self.row = self.line_up([p.detach() for p in self.params])
        dist.broadcast(self.row, group_src=0, group=group)
        own = self.row.chunk(self.n)[dist.get_rank(group)]
        self.shard = torch.nn.Parameter(own.clone(), requires_grad=self.params[0].requires_grad)
        for p, piece in zip(self.params, self.row.split([*self.numels, self.pad()])):
            p.data = piece.view(p.shape)
        self.there = True
        self.free()

    def pad(self):
        return -sum(self.numels) % self.n

    def line_up(self, tensors):
        return torch.cat([*(t.reshape(-1) for t in tensors), tensors[0].new_zeros(self.pad())])

    @torch.no_grad()
    def gather(self):
        if self.there:
            return
        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)
        dist.all_gather_into_tensor(self.row, self.shard.data, group=self.group)
        self.there = True

    def free(self):
        self.row.untyped_storage().resize_(0)
        self.there = False

    @torch.no_grad()
    def reduce(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, self.line_up(gradients), group=self.group)
        mean /= self.n
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
        for p in self.params:
            p.grad = None


# %% wrong: the gathered row is float32, whatever the parameters are
# is: form
# says: Create the tensor that receives with the dtype
# base: what the wrong ones change
-        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)
-        dist.all_gather_into_tensor(self.row, self.shard.data, group=self.group)
+        row = torch.empty(self.n * len(self.shard))
+        dist.all_gather_into_tensor(row, self.shard.data, group=self.group)
+        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)
+        self.row.copy_(row)


# %% wrong: a new row at every gather
# is: slip
# says: because a new tensor in param.data leaves autograd|nothing then. Make the storage itself empty
# base: what the wrong ones change
             p.data = piece.view(p.shape)
-        self.there = True
+        self.shapes, self.there = [p.shape for p in self.params], True
@@
-        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)
-        dist.all_gather_into_tensor(self.row, self.shard.data, group=self.group)
+        row = self.shard.new_empty(self.n * len(self.shard))
+        dist.all_gather_into_tensor(row, self.shard.data, group=self.group)
+        for p, shape, piece in zip(self.params, self.shapes, row.split([*self.numels, self.pad()])):
+            p.data = piece.view(shape)
@@
-        self.row.untyped_storage().resize_(0)
+        self.row = None
+        for p in self.params:
+            p.data = p.data.new_empty(0)


# %% wrong: an empty float32 tensor in place of the memory
# is: idea
# says: leave param.data alone
# base: what the wrong ones change
-        self.row.untyped_storage().resize_(0)
+        for p in self.params:
+            p.data = torch.empty(0)


# %% wrong: the gradients stay in the parameters
# is: slip
# says: otherwise the next backward adds to it
# base: what the wrong ones change
-        for p in self.params:
-            p.grad = None


# %% wrong: the constructor leaves it gathered
# is: slip
# says: Also free the unit at the end of the constructor
# base: what the wrong ones change
-        self.free()


# %% wrong: free() only remembers
# is: idea
# says: free\(\) must give back the memory itself
# base: what the wrong ones change
-        self.row.untyped_storage().resize_(0)


# %% wrong: every gather() sends
# is: slip
# says: Remember whether the parameters are whole, because
# base: what the wrong ones change
-        if self.there:
-            return


# %% wrong: the second backward overwrites the first
# is: slip
# says: were overwritten. Add to shard.grad
# base: what the wrong ones change
-        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
+        self.shard.grad = mean


# %% wrong: not divided
# is: slip
# says: shard.grad is the sum over the 3 ranks
# base: what the wrong ones change
-        mean /= self.n


# %% wrong: divided twice
# is: slip
# says: shard.grad is the mean divided by 3 once more
# base: what the wrong ones change
-        mean /= self.n
+        mean /= self.n**2


# %% wrong: every rank keeps its own gradients
# is: slip
# says: nothing was exchanged
# base: what the wrong ones change
-        dist.reduce_scatter_tensor(mean, self.line_up(gradients), group=self.group)
-        mean /= self.n
+        mean.copy_(self.line_up(gradients).chunk(self.n)[dist.get_rank(self.group)])


# %% wrong: all ranks keep their own values
# is: slip
# says: All ranks begin with the first rank's values
# base: what the wrong ones change
-        dist.broadcast(self.row, group_src=0, group=group)


# %% wrong: the part of another rank
# is: slip
# says: The shard is another rank's part
# base: what the wrong ones change
-        own = self.row.chunk(self.n)[dist.get_rank(group)]
+        own = self.row.chunk(self.n)[-1 - dist.get_rank(group)]


# %% wrong: parameters in another order
# is: slip
# says: Lay the parameters in one row
# base: what the wrong ones change
-        self.params, self.group, self.n = list(params), group, dist.get_world_size(group)
+        self.params, self.group, self.n = list(params)[::-1], group, dist.get_world_size(group)


# %% wrong: what was gathered once is copied
# is: idea
# says: their present values, not an earlier copy
# base: what the wrong ones change
             p.data = piece.view(p.shape)
-        self.there = True
+        self.there, self.first = True, self.row.clone()
@@
-        dist.all_gather_into_tensor(self.row, self.shard.data, group=self.group)
+        self.row.copy_(self.first)


# %% wrong: all views begin at the first element
# is: slip
# says: at its own offset
# base: what the wrong ones change
-        for p, piece in zip(self.params, self.row.split([*self.numels, self.pad()])):
-            p.data = piece.view(p.shape)
+        for p in self.params:
+            p.data = self.row[: p.numel()].view(p.shape)


# %% wrong: a frozen unit's shard is trained
# is: detail
# says: is not an nn.Parameter with requires_grad=False
# base: what the wrong ones change
-        self.shard = torch.nn.Parameter(own.clone(), requires_grad=self.params[0].requires_grad)
+        self.shard = torch.nn.Parameter(own.clone())


# %% wrong: an all-reduce, then the own part of it
# is: slip
# says: A reduce-scatter of the row is enough
# base: what the wrong ones change
-        mean = torch.empty_like(self.shard)
-        dist.reduce_scatter_tensor(mean, self.line_up(gradients), group=self.group)
+        whole = self.line_up(gradients)
+        dist.all_reduce(whole, group=self.group)
+        mean = whole.chunk(self.n)[dist.get_rank(self.group)].clone()


# %% wrong: the memory is not taken again
# is: idea
# says: Memory was read after it had been freed|Give the storage its size again
# base: what the wrong ones change
-        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)


# %% wrong: gathered into a row of its own, which stays
# is: idea
# says: every other copy stays
# base: what the wrong ones change
         self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)
-        dist.all_gather_into_tensor(self.row, self.shard.data, group=self.group)
+        self.gathered = self.row.new_empty(self.n * len(self.shard))
+        dist.all_gather_into_tensor(self.gathered, self.shard.data, group=self.group)
+        self.row.copy_(self.gathered)


# %% wrong: free() saves the row first
# is: idea
# says: refers to the whole row, to a copy of it
# base: what the wrong ones change
     def free(self):
+        if self.there:
+            self.before = self.row.clone()
         self.row.untyped_storage().resize_(0)


# %% wrong: the constructor keeps what the parameters were
# is: idea
# says: or to the old tensors of the parameters, because
# base: what the wrong ones change
         self.numels = [p.numel() for p in self.params]
+        self.first = [p.detach() for p in self.params]
         self.row = self.line_up([p.detach() for p in self.params])


# %% wrong: the constructor keeps the row in half the bits
# is: detail
# says: A rank needs only its shard here
# base: what the wrong ones change
         own = self.row.chunk(self.n)[dist.get_rank(group)]
+        self.draft = self.row.half()


# %% wrong: the whole gradients stay in an attribute
# is: idea
# says: Usually reduce\(\) leaves the whole gradients
# base: what the wrong ones change
         gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
+        self.gradients = gradients


# %% wrong: the row of gradients is allocated once
# is: idea
# says: Usually reduce\(\) leaves the whole gradients
# base: what the wrong ones change
         mean = torch.empty_like(self.shard)
-        dist.reduce_scatter_tensor(mean, self.line_up(gradients), group=self.group)
+        self.sent = self.line_up(gradients)
+        dist.reduce_scatter_tensor(mean, self.sent, group=self.group)


# %% wrong: the shard is a view of the row
# is: form
# says: The shard must be a copy
# base: what the wrong ones change
-        self.shard = torch.nn.Parameter(own.clone(), requires_grad=self.params[0].requires_grad)
+        self.shard = torch.nn.Parameter(own, requires_grad=self.params[0].requires_grad)


# %% wrong: a missing gradient is not thought of
# is: detail
# says: A parameter without a gradient counts as zeros
# base: what the wrong ones change
-        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
+        gradients = [p.grad.clone() for p in self.params]


# %% wrong: the group is ignored
# is: form
# says: is not in the group|Pass group=
# base: what the wrong ones change
-        self.params, self.group, self.n = list(params), group, dist.get_world_size(group)
+        self.params, self.group, self.n = list(params), group, dist.get_world_size()
@@
-        dist.broadcast(self.row, group_src=0, group=group)
-        own = self.row.chunk(self.n)[dist.get_rank(group)]
+        dist.broadcast(self.row, 0)
+        own = self.row.chunk(self.n)[dist.get_rank()]
@@
-        dist.all_gather_into_tensor(self.row, self.shard.data, group=self.group)
+        dist.all_gather_into_tensor(self.row, self.shard.data)
@@
-        dist.reduce_scatter_tensor(mean, self.line_up(gradients), group=self.group)
+        dist.reduce_scatter_tensor(mean, self.line_up(gradients))


# %% wrong: the rank in the world picks the part
# is: slip
# says: count ranks within it
# base: what the wrong ones change
-        own = self.row.chunk(self.n)[dist.get_rank(group)]
+        own = self.row.chunk(self.n)[dist.get_rank() % self.n]


# %% wrong: every element is given four bytes
# is: form
# says: The storage is too small for the row
# base: what the wrong ones change
-        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)
+        self.row.untyped_storage().resize_(self.row.numel() * 4)


# %% wrong: added to a gradient that is None
# is: form
# says: The shard's .grad is None before the first gradient
# base: what the wrong ones change
-        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
+        self.shard.grad += mean


# %% right: a storage for each parameter
class Unit:
    def __init__(self, params, *, group=None):
        self.held = [(p, p.shape, p.nbytes) for p in params]
        self.group, self.trained = group, self.held[0][0].requires_grad
        self.size = dist.get_world_size(group)
        for p, _, _ in self.held:
            fresh = p.detach().clone()
            dist.broadcast(fresh, group_src=0, group=group)
            p.data = fresh
        self.per_rank = -(-sum(p.numel() for p, _, _ in self.held) // self.size)
        mine = self.in_a_row([p.data for p, _, _ in self.held])[dist.get_rank(group)]
        self.shard = torch.nn.Parameter(mine.clone())
        self.shard.requires_grad_(self.trained)
        self.whole = True
        self.free()

    def in_a_row(self, tensors):
        row = tensors[0].new_zeros(self.size * self.per_rank)
        at = 0
        for tensor in tensors:
            row[at : at + tensor.numel()].copy_(tensor.flatten())
            at += tensor.numel()
        return row.view(self.size, self.per_rank)

    def gather(self):
        if self.whole:
            return
        parts = [torch.empty_like(self.shard.data) for _ in range(self.size)]
        dist.all_gather(parts, self.shard.detach(), group=self.group)
        row, at = torch.cat(parts), 0
        for p, shape, nbytes in self.held:
            p.untyped_storage().resize_(nbytes)
            p.detach().copy_(row[at : at + shape.numel()].view(shape))
            at += shape.numel()
        self.whole = True

    def free(self):
        for p, _, _ in self.held:
            p.untyped_storage().resize_(0)
        self.whole = False

    def reduce(self):
        rows = self.in_a_row(
            [torch.zeros(s, dtype=p.dtype) if p.grad is None else p.grad for p, s, _ in self.held]
        )
        rows /= self.size
        out = torch.zeros_like(self.shard.data)
        dist.reduce_scatter(out, list(rows), group=self.group)
        if self.shard.grad is None:
            self.shard.grad = out
        else:
            self.shard.grad += out
        for p, _, _ in self.held:
            p.grad = None


# %% right: on the ring of notebook 02
from course_lib.collectives import all_gather, reduce_scatter


def one_row(tensors, n):
    count = sum(tensor.numel() for tensor in tensors)
    pieces = [tensor.detach().flatten() for tensor in tensors]
    return torch.cat([*pieces, pieces[0].new_zeros(n * math.ceil(count / n) - count)])


class Unit:
    def __init__(self, params, *, group=None):
        self.params = tuple(params)
        self.n, self.group = dist.get_world_size(group), group
        first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
        self.flat = one_row(self.params, self.n)
        dist.broadcast(self.flat, first, group=group)
        at = 0
        for p in self.params:
            p.data = torch.as_strided(self.flat, p.shape, p.contiguous().stride(), at)
            at += p.numel()
        me = dist.get_rank(group)
        own = self.flat.view(self.n, -1)[me].clone()
        self.shard = torch.nn.Parameter(own, self.params[0].requires_grad)
        self.bytes = self.memory().nbytes()
        self.memory().resize_(0)

    def memory(self):
        return self.flat.untyped_storage()

    def gather(self):
        if self.memory().nbytes() == 0:
            self.memory().resize_(self.bytes)
            all_gather(self.flat, self.shard.detach(), group=self.group)

    def free(self):
        self.memory().resize_(0)

    def reduce(self):
        grads = [
            p.grad if p.grad is not None else torch.zeros(p.shape, dtype=p.dtype, device=p.device)
            for p in self.params
        ]
        total = torch.empty_like(self.shard, requires_grad=False)
        reduce_scatter(total, one_row(grads, self.n), group=self.group)
        before = 0 if self.shard.grad is None else self.shard.grad
        self.shard.grad = before + total / self.n
        for p in self.params:
            p.grad = None
