# %% base: what the wrong ones change
# says: Rank 0 is not in the group
class Zero2Optimizer:
    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, **defaults):
        params = list(params)
        for p in params:
            dist.broadcast(p.data, 0)
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.buckets, room = [], 0
        for p in reversed([p for p in params if p.requires_grad]):
            if p.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(p)
            room -= p.nbytes
            p.register_post_accumulate_grad_hook(self.arrived)
        self.shards = [torch.nn.Parameter(self.own(bucket)) for bucket in self.buckets]
        self.optimizer = optimizer_cls(self.shards, **defaults)
        self.turn = None

    def flat(self, tensors):
        row = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(row, (0, -len(row) % self.n))

    def own(self, bucket):
        return self.flat([p.detach() for p in bucket]).chunk(self.n)[self.rank].clone()

    def arrived(self, _):
        if self.turn is None:
            self.turn = 0
            torch.autograd.Variable._execution_engine.queue_callback(self.rest)
        while self.turn < len(self.buckets) and self.full(self.buckets[self.turn]):
            self.send()

    def full(self, bucket):
        return all(p.grad is not None for p in bucket)

    def rest(self):
        while self.turn < len(self.buckets):
            self.send()
        self.turn = None

    @torch.no_grad()
    def send(self):
        bucket, shard = self.buckets[self.turn], self.shards[self.turn]
        whole = self.flat([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket])
        mean = torch.empty_like(shard)
        dist.reduce_scatter_tensor(mean, whole)
        mean /= self.n
        shard.grad = mean if shard.grad is None else shard.grad + mean
        for p in bucket:
            p.grad = None
        self.turn += 1

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        for bucket, shard in zip(self.buckets, self.shards, strict=True):
            whole = self.flat([p.detach() for p in bucket])
            dist.all_gather_into_tensor(whole, shard.detach())
            for p in bucket:
                p.copy_(whole[: p.numel()].view_as(p))
                whole = whole[p.numel() :]

    def zero_grad(self):
        self.optimizer.zero_grad()


# %% wrong: ZeRO-1 sold as ZeRO-2: full gradients until the step
# is: idea
# says: The full gradient still exists|with K backwards it is K \+ 1|With K backwards it is K \+ 1
# base: what the wrong ones change
-            p.register_post_accumulate_grad_hook(self.arrived)
@@
         self.optimizer = optimizer_cls(self.shards, **defaults)
-        self.turn = None
+        self.turn = 0
@@
     def step(self):
+        self.turn = 0
+        while self.turn < len(self.buckets):
+            self.send()


# %% wrong: all buckets wait for the end of backward
# is: slip
# says: No bucket had been sent when backward reached the first block
# base: what the wrong ones change
-        while self.turn < len(self.buckets) and self.full(self.buckets[self.turn]):
-            self.send()


# %% wrong: gradient shards overwritten instead of added
# is: slip
# says: earlier gradients were overwritten
# base: what the wrong ones change
-        shard.grad = mean if shard.grad is None else shard.grad + mean
+        shard.grad = mean


# %% wrong: the gradients stay in the parameters
# is: form
# says: parameters still have a .grad
# base: what the wrong ones change
-        for p in bucket:
-            p.grad = None


# %% wrong: not divided
# is: slip
# says: divide it by their number
# base: what the wrong ones change
-        mean /= self.n


# %% wrong: all-reduce, then the own shard of it
# is: slip
# says: 3P, but 2P are enough. An all-reduce|K reduce-scatters
# base: what the wrong ones change
-        mean = torch.empty_like(shard)
-        dist.reduce_scatter_tensor(mean, whole)
+        dist.all_reduce(whole)
+        mean = whole.chunk(self.n)[self.rank].clone()


# %% wrong: every rank starts from its own parameters
# is: slip
# says: all must start from the first rank's
# base: what the wrong ones change
-        for p in params:
-            dist.broadcast(p.data, 0)


# %% wrong: buckets leave in the order in which they fill
# is: slip
# says: whichever gradients come first|in the same order
# base: what the wrong ones change
-            self.turn = 0
+            self.turn, self.gone = 0, set()
@@
-        while self.turn < len(self.buckets) and self.full(self.buckets[self.turn]):
-            self.send()
+        for k, bucket in enumerate(self.buckets):
+            if k not in self.gone and self.full(bucket):
+                self.turn = k
+                self.send()
+                self.gone.add(k)
@@
-        while self.turn < len(self.buckets):
-            self.send()
+        for k in range(len(self.buckets)):
+            if k not in self.gone:
+                self.turn = k
+                self.send()


# %% wrong: a bucket with an unused parameter is never sent
# is: slip
# says: Their gradients were never sent
# base: what the wrong ones change
-        while self.turn < len(self.buckets) and self.full(self.buckets[self.turn]):
-            self.send()
+        for self.turn, bucket in enumerate(self.buckets):
+            if self.full(bucket):
+                self.send()
+                break
@@
-        while self.turn < len(self.buckets):
-            self.send()


# %% wrong: shards are not gathered
# is: slip
# says: All-gather the shards after the step
# base: what the wrong ones change
-            dist.all_gather_into_tensor(whole, shard.detach())
+            whole.chunk(self.n)[self.rank].copy_(shard)


# %% wrong: gradient shards of the last step are still there
# is: slip
# says: zero_grad\(\) must clear
# base: what the wrong ones change
-        self.optimizer.zero_grad()
+        pass


# %% wrong: state for all parameters
# is: idea
# says: its state then has 1/N of the size
# base: what the wrong ones change
-        self.optimizer = optimizer_cls(self.shards, **defaults)
+        self.every = [torch.nn.Parameter(p.detach().clone()) for b in self.buckets for p in b]
+        self.optimizer = optimizer_cls([*self.shards, *self.every], **defaults)
@@
     def step(self):
+        for p in self.every:
+            p.grad = torch.zeros_like(p)


# %% wrong: the shards' gradients are set to zero, not given back
# is: detail
# says: set their .grad to None \(zeros take the same memory\)
# base: what the wrong ones change
             self.send()
+        self.wait()
         self.turn = None
@@
-        dist.reduce_scatter_tensor(mean, whole)
-        mean /= self.n
-        shard.grad = mean if shard.grad is None else shard.grad + mean
+        self.wait()
+        work = dist.reduce_scatter_tensor(mean, whole, async_op=True)
+        self.pending = work, whole, mean, shard
@@
         self.turn += 1
+
+    pending = None
+
+    @torch.no_grad()
+    def wait(self):
+        if self.pending is not None:
+            work, _, mean, shard = self.pending
+            work.wait()
+            shard.grad = mean / self.n if shard.grad is None else shard.grad + mean / self.n
+        self.pending = None
@@
-        self.optimizer.zero_grad()
+        self.optimizer.zero_grad(set_to_none=False)


# %% wrong: replicas behind an all-reduce
# is: idea
# says: holding less\. Without that, at most half
class Zero2Optimizer:
    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, **defaults):
        self.params = list(params)
        for p in self.params:
            dist.broadcast(p.data, 0)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)

    def step(self):
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


# %% wrong: frozen parameters are in the shards, with zeros for gradients
# is: slip
# says: weight decay needs no gradient
# base: what the wrong ones change
-        for p in reversed([p for p in params if p.requires_grad]):
+        for p in reversed(params):
@@
-            p.register_post_accumulate_grad_hook(self.arrived)
+            if p.requires_grad:
+                p.register_post_accumulate_grad_hook(self.arrived)


# %% wrong: frozen parameters get hooks
# is: detail
# says: leave them out of buckets and hooks
# base: what the wrong ones change
-        for p in reversed([p for p in params if p.requires_grad]):
+        for p in reversed(params):


# %% wrong: params is gone through twice
# is: detail
# says: a second loop over it finds nothing
# base: what the wrong ones change
-        params = list(params)


# %% wrong: the group is ignored
# is: form
# says: is not in the group
# base: what the wrong ones change
-    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, **defaults):
+    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, group=None, **defaults):
@@
-            dist.broadcast(p.data, 0)
+            dist.broadcast(p.data, 0, group=None)
+        self.group = group
@@
             self.send()
+        self.wait()
         self.turn = None
@@
-        dist.reduce_scatter_tensor(mean, whole)
-        mean /= self.n
-        shard.grad = mean if shard.grad is None else shard.grad + mean
+        self.wait()
+        work = dist.reduce_scatter_tensor(mean, whole, group=None, async_op=True)
+        self.pending = work, whole, mean, shard
@@
         self.turn += 1
+
+    pending = None
+
+    @torch.no_grad()
+    def wait(self):
+        if self.pending is not None:
+            work, _, mean, shard = self.pending
+            work.wait()
+            shard.grad = mean / self.n if shard.grad is None else shard.grad + mean / self.n
+        self.pending = None
@@
-            dist.all_gather_into_tensor(whole, shard.detach())
+            dist.all_gather_into_tensor(whole, shard.detach(), group=None)


# %% wrong: buckets from the first parameter to the last
# is: slip
# says: No bucket had been sent when backward reached the first block
# base: what the wrong ones change
-        for p in reversed([p for p in params if p.requires_grad]):
+        for p in [p for p in params if p.requires_grad]:


# %% wrong: one bucket for everything
# is: slip
# says: A bucket was larger than bucket_bytes
# base: what the wrong ones change
-                room = bucket_bytes
+                room = 1 << 40


# %% wrong: an attribute keeps the row
# is: slip
# says: that no attribute refers to it after its use
# base: what the wrong ones change
         whole = self.flat([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket])
+        self.row = whole


# %% wrong: a second copy of the shard's gradients
# is: slip
# says: keep no second copy of it
# base: what the wrong ones change
         shard.grad = mean if shard.grad is None else shard.grad + mean
+        shard.last = mean.clone()


# %% wrong: rows stay until the end of backward
# is: slip
# says: a handle keeps its row until it is waited for
# base: what the wrong ones change
         self.optimizer = optimizer_cls(self.shards, **defaults)
-        self.turn = None
+        self.turn, self.under_way = None, []
@@
             self.send()
         self.turn = None
+        with torch.no_grad():
+            for handle, shard, mean, _ in self.under_way:
+                handle.wait()
+                mean /= self.n
+                shard.grad = mean if shard.grad is None else shard.grad + mean
+        self.under_way = []

@@
-        dist.reduce_scatter_tensor(mean, whole)
-        mean /= self.n
-        shard.grad = mean if shard.grad is None else shard.grad + mean
+        handle = dist.reduce_scatter_tensor(mean, whole, async_op=True)
+        self.under_way.append((handle, shard, mean, whole))


# %% wrong: added to a gradient that is None
# is: form
# says: The shard's .grad is None before the first gradient
# base: what the wrong ones change
-        shard.grad = mean if shard.grad is None else shard.grad + mean
+        shard.grad += mean


# %% right: with PyTorch's collectives begun and waited for later
class Zero2Optimizer:
    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, group=None, **defaults):
        params = list(params)
        for p in params:
            dist.broadcast(p.data, group_src=0, group=group)
        self.group = group
        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
        self.buckets, room = [], 0
        for p in reversed([p for p in params if p.requires_grad]):
            if p.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(p)
            room -= p.nbytes
            p.register_post_accumulate_grad_hook(self.arrived)
        self.shards = [torch.nn.Parameter(self.own(bucket)) for bucket in self.buckets]
        self.optimizer = optimizer_cls(self.shards, **defaults)
        self.turn = None

    def flat(self, tensors):
        row = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(row, (0, -len(row) % self.n))

    def own(self, bucket):
        return self.flat([p.detach() for p in bucket]).chunk(self.n)[self.rank].clone()

    def arrived(self, _):
        if self.turn is None:
            self.turn = 0
            torch.autograd.Variable._execution_engine.queue_callback(self.rest)
        while self.turn < len(self.buckets) and self.full(self.buckets[self.turn]):
            self.send()

    def full(self, bucket):
        return all(p.grad is not None for p in bucket)

    def rest(self):
        while self.turn < len(self.buckets):
            self.send()
        self.wait()
        self.turn = None

    @torch.no_grad()
    def send(self):
        bucket, shard = self.buckets[self.turn], self.shards[self.turn]
        whole = self.flat([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket])
        mean = torch.empty_like(shard)
        self.wait()
        work = dist.reduce_scatter_tensor(mean, whole, group=self.group, async_op=True)
        self.pending = work, whole, mean, shard
        for p in bucket:
            p.grad = None
        self.turn += 1

    pending = None

    @torch.no_grad()
    def wait(self):
        if self.pending is not None:
            work, _, mean, shard = self.pending
            work.wait()
            shard.grad = mean / self.n if shard.grad is None else shard.grad + mean / self.n
        self.pending = None

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        for bucket, shard in zip(self.buckets, self.shards, strict=True):
            whole = self.flat([p.detach() for p in bucket])
            dist.all_gather_into_tensor(whole, shard.detach(), group=self.group)
            for p in bucket:
                p.copy_(whole[: p.numel()].view_as(p))
                whole = whole[p.numel() :]

    def zero_grad(self):
        self.optimizer.zero_grad()


# %% right: a bucket for each parameter, on the ring of notebook 02
# base: what the wrong ones change
+from course_lib.collectives import all_gather, reduce_scatter
+
+
 class Zero2Optimizer:
-    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, **defaults):
+    def __init__(self, params, optimizer_cls, *, bucket_bytes=1 << 20, group=None, **defaults):
@@
-            dist.broadcast(p.data, 0)
-        self.rank, self.n = dist.get_rank(), dist.get_world_size()
-        self.buckets, room = [], 0
+            dist.broadcast(p.data, group_src=0, group=group)
+        self.group = group
+        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
+        self.buckets = []
         for p in reversed([p for p in params if p.requires_grad]):
-            if p.nbytes > room:
-                self.buckets.append([])
-                room = bucket_bytes
-            self.buckets[-1].append(p)
-            room -= p.nbytes
+            self.buckets.append([p])
@@
-        dist.reduce_scatter_tensor(mean, whole)
+        reduce_scatter(mean, whole, group=self.group)
@@
-            dist.all_gather_into_tensor(whole, shard.detach())
+            all_gather(whole, shard.detach(), group=self.group)
