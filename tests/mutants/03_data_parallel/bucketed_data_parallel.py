# %% base: what the wrong ones change
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.quiet = module, group, False
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)
        self.buckets, filled = [], 0
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if not self.buckets or filled + p.nbytes > bucket_bytes:
                self.buckets.append([])
                filled = 0
            self.buckets[-1].append(p)
            filled += p.nbytes
        self.place = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
        self.start_again()
        for p in self.place:
            p.register_post_accumulate_grad_hook(self.arrived)

    def start_again(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.under_way = []

    def arrived(self, p):
        if self.quiet:
            return
        self.missing[self.place[p]].discard(p)
        self.launch()

    def launch(self):
        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
            bucket = self.buckets[len(self.under_way)]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([g.flatten() for g in grads])
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self.under_way.append((work, flat))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        import contextlib

        @contextlib.contextmanager
        def silent():
            self.quiet = True
            yield
            self.quiet = False

        return silent()

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        self.missing = [set() for _ in self.buckets]
        self.launch()
        n = dist.get_world_size(self.group)
        for bucket, (work, flat) in zip(self.buckets, self.under_way):
            work.wait()
            flat /= n
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.view_as(p)
        self.start_again()


# %% wrong: the average is forgotten
# is: slip
# says: That is the sum over the 3 ranks
# base: what the wrong ones change
-            flat /= n


# %% wrong: divides twice
# is: slip
# says: the mean divided by 3 once more
# base: what the wrong ones change
-            flat = torch.cat([g.flatten() for g in grads])
+            flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size(self.group)


# %% wrong: the hook reduces its argument, the parameter
# is: form
# says: gives the hook the \*parameter\*
# base: what the wrong ones change
-            flat = torch.cat([g.flatten() for g in grads])
+            flat = torch.cat([p.data.flatten() for p in bucket])
@@
-                p.grad = part.view_as(p)
+                p.data.copy_(part.view_as(p))


# %% wrong: all communication after backward, sold as overlap
# is: idea
# says: all communication came after it
# base: what the wrong ones change
         self.missing[self.place[p]].discard(p)
-        self.launch()


# %% wrong: waits in the hook
# is: idea
# says: while backward still runs\. Without that, at most half
# base: what the wrong ones change
             work = dist.all_reduce(flat, group=self.group, async_op=True)
+            work.wait()
@@
-            work.wait()


# %% wrong: every bucket but the first is waited for in the hook
# is: idea
# says: had been waited for at \d of the \d blocks
# base: what the wrong ones change
             self.under_way.append((work, flat))
+            if len(self.under_way) > 1:
+                work.wait()


# %% wrong: a barrier after each bucket
# is: detail
# says: leave the barrier out
# base: what the wrong ones change
             self.under_way.append((work, flat))
+            dist.barrier(group=self.group)


# %% wrong: nothing leaves until most gradients are there
# is: idea
# says: bytes and more were complete by then
# base: what the wrong ones change
         self.missing[self.place[p]].discard(p)
-        self.launch()
+        if 6 * sum(map(len, self.missing)) <= len(self.place):
+            self.launch()


# %% wrong: buckets in forward order
# is: slip
# says: fill buckets in reverse order
# base: what the wrong ones change
-        for p in reversed([p for p in module.parameters() if p.requires_grad]):
+        for p in [p for p in module.parameters() if p.requires_grad]:


# %% wrong: nothing is broadcast at the start
# is: slip
# says: start from the first rank's
# base: what the wrong ones change
-        for tensor in [*module.parameters(), *module.buffers()]:
-            dist.broadcast(tensor.detach(), group_src=0, group=group)


# %% wrong: buffers are not broadcast
# is: detail
# says: Buffers .* belong to the model
# base: what the wrong ones change
-        for tensor in [*module.parameters(), *module.buffers()]:
+        for tensor in module.parameters():


# %% wrong: only the last microbatch is sent
# is: slip
# says: Only the last microbatch
# base: what the wrong ones change
             self.quiet = False
+            kept = getattr(self, "kept", None) or [(p, 0) for p in self.place]
+            self.kept = [(p, before + p.grad) for p, before in kept]
+            for p in self.place:
+                p.grad = None
@@
                 p.grad = part.view_as(p)
+        for p, grad in getattr(self, "kept", []):
+            p.grad = p.grad + grad
+        self.kept = []


# %% wrong: the gradients of the earlier microbatches are lost
# is: slip
# says: Only the last microbatch counts
# base: what the wrong ones change
             self.quiet = False
+            for p in self.place:
+                p.grad = None


# %% wrong: hooks send under no_sync, too
# is: slip
# says: Each of the 3 microbatches was sent
# base: what the wrong ones change
-            self.quiet = True
@@
-            self.quiet = False
+            self.finish_gradient_synchronization()
+            n = dist.get_world_size(self.group)
+            for p in self.place:
+                p.grad = p.grad.clone()


# %% wrong: hooks do not look whether no_sync is on
# is: slip
# says: its buckets left although it ran under no_sync
# base: what the wrong ones change
-        self.module, self.group, self.quiet = module, group, False
+        self.module, self.group = module, group
@@
-        if self.quiet:
-            return
@@
-        @contextlib.contextmanager
-        def silent():
-            self.quiet = True
-            yield
-            self.quiet = False
-
-        return silent()
+        return contextlib.nullcontext()


# %% wrong: one all-reduce for each parameter, in hooks
# is: idea
# says: while backward still runs\. Without that, at most half
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.works = module, group, []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, p):
        self.works.append((p, dist.all_reduce(p.grad, group=self.group, async_op=True)))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        import contextlib

        return contextlib.nullcontext()

    def finish_gradient_synchronization(self):
        for p, work in self.works:
            work.wait()
            p.grad /= dist.get_world_size(self.group)
        self.works = []


# %% wrong: ranks skip what has no gradient here
# is: slip
# says: a rank without a gradient sends zeros
# base: what the wrong ones change
-            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
+            bucket = [p for p in bucket if p.grad is not None]
+            if not bucket:
+                self.under_way.append(None)
+                continue
+            grads = [p.grad for p in bucket]
@@
-        for bucket, (work, flat) in zip(self.buckets, self.under_way):
+        for bucket, sent in zip(self.buckets, self.under_way):
+            if sent is None:
+                continue
+            work, flat = sent
+            bucket = [p for p in bucket if p.grad is not None]


# %% wrong: buckets leave whenever they are full, in any order
# is: slip
# says: a rank without a gradient sends zeros|same collectives
# base: what the wrong ones change
-        self.under_way = []
+        self.under_way, self.gone = [], set()
@@
-        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
-            bucket = self.buckets[len(self.under_way)]
+        for k, bucket in enumerate(self.buckets):
+            if self.missing[k] or k in self.gone:
+                continue
+            self.gone.add(k)
@@
-            self.under_way.append((work, flat))
+            self.under_way.append((bucket, work, flat))
@@
-        for bucket, (work, flat) in zip(self.buckets, self.under_way):
+        for bucket, work, flat in self.under_way:


# %% wrong: frozen parameters fill the buckets, too
# is: detail
# says: frozen ones have no gradient
# base: what the wrong ones change
-        for p in reversed([p for p in module.parameters() if p.requires_grad]):
+        for p in reversed(list(module.parameters())):
@@
-            p.register_post_accumulate_grad_hook(self.arrived)
+            if p.requires_grad:
+                p.register_post_accumulate_grad_hook(self.arrived)


# %% wrong: one bucket for everything
# is: idea
# says: all communication came after it
# base: what the wrong ones change
-            if not self.buckets or filled + p.nbytes > bucket_bytes:
+            if not self.buckets or filled < 0:


# %% wrong: the bucket is read before it has arrived
# is: slip
# says: the bucket was read before its wait|written or read while it was in transit
# base: what the wrong ones change
-            self.under_way.append((work, flat))
+            self.under_way.append((work, flat.clone()))


# %% wrong: DistributedDataParallel inside
# is: form
# says: Build that part yourself
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module = torch.nn.parallel.DistributedDataParallel(
            module,
            process_group=group,
            find_unused_parameters=True,
            bucket_cap_mb=bucket_bytes / (1 << 20),
        )

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        return self.module.no_sync()

    def finish_gradient_synchronization(self):
        pass


# %% wrong: zeros leave early for show, the gradients afterwards
# is: idea
# says: bytes, but .* are enough, 2 \(N-1\)/N of its gradients
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.quiet = module, group, False
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)
        self.held = [p for p in module.parameters() if p.requires_grad]
        largest = max(p.numel() for p in self.held)
        self.part = bucket_bytes // self.held[0].itemsize + largest
        self.show = None
        self.held[-1].register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, p):
        if not self.quiet and 30 * p.numel() > self.part > 5 * p.numel():
            zeros = torch.zeros(self.part * 5 // 6)
            self.show = dist.all_reduce(zeros, group=self.group, async_op=True), zeros

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        import contextlib

        @contextlib.contextmanager
        def silent():
            self.quiet = True
            yield
            self.quiet = False

        return silent()

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.held]
        flat = torch.cat([g.flatten() for g in grads])
        for part in flat.split(self.part):
            dist.all_reduce(part, group=self.group)
        flat /= dist.get_world_size(self.group)
        for p, part in zip(self.held, flat.split([p.numel() for p in self.held])):
            p.grad = part.view_as(p)
        if self.show is not None:
            self.show[0].wait()
        self.show = None


# %% wrong: the group is ignored
# is: form
# says: is not in the group
# base: what the wrong ones change
-            dist.broadcast(tensor.detach(), group_src=0, group=group)
+            dist.broadcast(tensor.detach(), group_src=0)
@@
-        self.missing = [set(bucket) for bucket in self.buckets]
+        self.missing = [len(bucket) for bucket in self.buckets]
@@
-        self.missing[self.place[p]].discard(p)
+        self.missing[self.place[p]] -= 1
@@
-            work = dist.all_reduce(flat, group=self.group, async_op=True)
+            work = dist.all_reduce(flat, async_op=True)
@@
-        self.missing = [set() for _ in self.buckets]
+        self.missing = [0] * len(self.buckets)
@@
-        n = dist.get_world_size(self.group)
+        n = dist.get_world_size()


# %% wrong: a bucket waits for a gradient that never comes
# is: slip
# says: which never arrives is never sent
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.local_only = module, group, False
        for one in list(module.state_dict().values()):
            dist.broadcast(one, group=group, group_src=0)
        learning = [p for p in module.parameters() if p.requires_grad]
        self.queue, room = [], 0
        while learning:
            p = learning.pop()
            if p.nbytes > room:
                self.queue.append([])
                room = max(bucket_bytes, p.nbytes)
            room -= p.nbytes
            self.queue[-1].append(p)
            p.register_post_accumulate_grad_hook(self.ready)
        self.done, self.handles = set(), []

    def ready(self, p):
        if not self.local_only:
            self.done.add(p)
            self.advance()

    def advance(self):
        for bucket in self.queue[len(self.handles) :]:
            if not self.done.issuperset(bucket):
                return
            flat = torch._utils._flatten_dense_tensors([p.grad for p in bucket])
            self.handles.append(
                (bucket, flat, dist.all_reduce(flat, group=self.group, async_op=True))
            )

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        import contextlib

        @contextlib.contextmanager
        def local():
            self.local_only = True
            yield
            self.local_only = False

        return local()

    def finish_gradient_synchronization(self):
        for bucket, flat, handle in self.handles:
            handle.wait()
            shares = torch._utils._unflatten_dense_tensors(
                flat / dist.get_world_size(self.group), bucket
            )
            for p, share in zip(bucket, shares):
                p.grad = share.clone()
        self.done, self.handles = set(), []


# %% wrong: hooks are registered by every module that holds the parameter
# is: detail
# says: A bucket left before all of its gradients had arrived
# base: what the wrong ones change
-        for p in self.place:
-            p.register_post_accumulate_grad_hook(self.arrived)
+        for part in module.modules():
+            for p in part.parameters():
+                if p.requires_grad:
+                    p.register_post_accumulate_grad_hook(self.arrived)
@@
-        self.missing = [set(bucket) for bucket in self.buckets]
+        self.missing = [len(bucket) for bucket in self.buckets]
@@
-        self.missing[self.place[p]].discard(p)
+        self.missing[self.place[p]] -= 1
@@
-        self.missing = [set() for _ in self.buckets]
+        self.missing = [0] * len(self.buckets)


# %% wrong: a hook that fires twice sends twice
# is: detail
# says: A hook that is registered twice fires twice
# base: what the wrong ones change
             p.register_post_accumulate_grad_hook(self.arrived)
+        for p in self.place:
+            p.register_post_accumulate_grad_hook(self.arrived)
@@
-        self.missing = [set(bucket) for bucket in self.buckets]
@@
-        self.missing[self.place[p]].discard(p)
-        self.launch()
+        self.full(self.place[p])
@@
-    def launch(self):
-        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
-            bucket = self.buckets[len(self.under_way)]
-            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
-            flat = torch.cat([g.flatten() for g in grads])
-            work = dist.all_reduce(flat, group=self.group, async_op=True)
-            self.under_way.append((work, flat))
+    def full(self, place):
+        if all(p.grad is not None for p in self.buckets[place]):
+            self.send(place)
+
+    def send(self, place):
+        bucket = self.buckets[place]
+        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
+        flat = torch.cat([g.flatten() for g in grads])
+        work = dist.all_reduce(flat, group=self.group, async_op=True)
+        self.under_way.append((work, flat, bucket))
@@
-        self.missing = [set() for _ in self.buckets]
-        self.launch()
+        sent = [bucket for _, _, bucket in self.under_way]
+        for place, bucket in enumerate(self.buckets):
+            if all(bucket is not one for one in sent):
+                self.send(place)
@@
-        for bucket, (work, flat) in zip(self.buckets, self.under_way):
+        for work, flat, bucket in self.under_way:


# %% right: gradients live in the buckets all the time
# base: what the wrong ones change
         self.place = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
+        self.flat = [bucket[0].new_zeros(sum(p.numel() for p in bucket)) for bucket in self.buckets]
@@
-            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
-            flat = torch.cat([g.flatten() for g in grads])
+            flat = self.flat[len(self.under_way)].zero_()
+            for p, slot in zip(bucket, flat.split([p.numel() for p in bucket])):
+                if p.grad is not None:
+                    slot.copy_(p.grad.flatten())
+                p.grad = None
@@
-                p.grad = part.view_as(p)
+                p.grad = part.view_as(p).clone()


# %% wrong: divides before, closes a bucket when it is more than full
# is: detail
# says: Close a bucket before
# base: what the wrong ones change
-            if not self.buckets or filled + p.nbytes > bucket_bytes:
+            if not self.buckets or filled >= bucket_bytes:
@@
-            flat = torch.cat([g.flatten() for g in grads])
+            flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size(self.group)
@@
-            flat /= n


# %% right: counts arrivals instead of naming what is missing
# base: what the wrong ones change
-        self.missing = [set(bucket) for bucket in self.buckets]
+        self.missing = [len(bucket) for bucket in self.buckets]
@@
-        self.missing[self.place[p]].discard(p)
+        self.missing[self.place[p]] -= 1
@@
-        self.missing = [set() for _ in self.buckets]
+        self.missing = [0] * len(self.buckets)


# %% right: hooks of the nodes that accumulate gradients
# base: what the wrong ones change
-        self.place = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
         self.start_again()
-        for p in self.place:
-            p.register_post_accumulate_grad_hook(self.arrived)
+        self.nodes = []
+        for k, bucket in enumerate(self.buckets):
+            for p in bucket:
+                node = p.view_as(p).grad_fn.next_functions[0][0]
+                node.register_hook(lambda *_, k=k, p=p: self.arrived(k, p))
+                self.nodes.append(node)
@@
-    def arrived(self, p):
-        if self.quiet:
-            return
-        self.missing[self.place[p]].discard(p)
-        self.launch()
+    def arrived(self, k, p):
+        if not self.quiet:
+            self.missing[k].discard(p)
+            self.launch()
 
+    @torch.no_grad()
     def launch(self):
@@
-            flat = torch.cat([g.flatten() for g in grads])
+            flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size(self.group)
@@
-        n = dist.get_world_size(self.group)
@@
-            flat /= n


# %% wrong: no_sync leaves its flag as it is
# is: detail
# says: reset the flag after
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.enabled = module, group, True
        first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
        for one in [*module.parameters(), *module.buffers()]:
            dist.broadcast(one.data, first, group=group)
        wanted = [p for p in module.parameters() if p.requires_grad][::-1]
        self.rows, room = [[]], bucket_bytes
        for p in wanted:
            if p.nbytes > room and self.rows[-1]:
                self.rows.append([])
                room = bucket_bytes
            self.rows[-1].append(p)
            room -= p.nbytes
        self.came, self.sent = set(), []
        for p in wanted:
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        if self.enabled:
            self.came.add(p)
            self.send(lambda row: all(q in self.came for q in row))

    def send(self, ready):
        for row in self.rows[len(self.sent) :]:
            if not ready(row):
                return
            values = [p.grad if p.grad is not None else p.detach() * 0 for p in row]
            message = torch.cat([v.reshape(-1) for v in values])
            self.sent.append((dist.all_reduce(message, group=self.group, async_op=True), message))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        import contextlib

        @contextlib.contextmanager
        def off():
            self.enabled = False
            yield

        return off()

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        self.send(lambda row: True)
        for row, (handle, message) in zip(self.rows, self.sent):
            handle.wait()
            message /= dist.get_world_size(self.group)
            start = 0
            for p in row:
                p.grad = message[start : start + p.numel()].reshape(p.shape)
                start += p.numel()
        self.came, self.sent = set(), []


# %% wrong: what came in a step is never forgotten
# is: idea
# says: Step 1 is right, but a later step is not
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.off = module, group, False
        for t in list(module.parameters()) + list(module.buffers()):
            dist.broadcast(t.detach(), group_src=0, group=group)
        self.buckets, size = [], math.inf
        for p in list(module.parameters())[::-1]:
            if not p.requires_grad:
                continue
            if size + p.nbytes > bucket_bytes:
                self.buckets.append({"params": [], "left": 0, "work": None})
                size = 0
            size += p.nbytes
            self.buckets[-1]["params"].append(p)
            self.buckets[-1]["left"] += 1
            p.register_post_accumulate_grad_hook(lambda p, b=self.buckets[-1]: self.arrived(b))

    def arrived(self, bucket):
        if self.off:
            return
        bucket["left"] -= 1
        for one in self.buckets:
            if one["work"] is None:
                if one["left"] > 0:
                    break
                self.leave(one)

    def leave(self, bucket):
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket["params"]]
        bucket["flat"] = torch.nn.utils.parameters_to_vector(parts)
        bucket["work"] = dist.all_reduce(bucket["flat"], group=self.group, async_op=True)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        from contextlib import contextmanager

        @contextmanager
        def switched_off():
            self.off = True
            try:
                yield
            finally:
                self.off = False

        return switched_off()

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        for bucket in self.buckets:
            if bucket["work"] is None:
                self.leave(bucket)
            bucket["work"].wait()
            offset = 0
            for p in bucket["params"]:
                share = bucket["flat"][offset : offset + p.numel()] / dist.get_world_size(
                    self.group
                )
                p.grad = share.view(p.shape)
                offset += p.numel()


# %% wrong: what waits for a gradient that never comes is not sent
# is: slip
# says: which never arrives is never sent
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.group, self.depth = module, group, 0
        self.share = 1 / dist.get_world_size(group)
        for t in (*module.parameters(), *module.buffers()):
            dist.broadcast(t.data, group=group, group_src=0)
        trained = list(filter(lambda p: p.requires_grad, module.parameters()))
        self.bounds, self.order, begin = [], trained[::-1], 0
        for k, p in enumerate(self.order):
            if sum(q.nbytes for q in self.order[begin : k + 1]) > bucket_bytes and k > begin:
                self.bounds.append((begin, k))
                begin = k
        self.bounds.append((begin, len(self.order)))
        self.place = {id(p): k for k, p in enumerate(self.order)}
        self.ready, self.messages = [False] * len(self.order), []
        for p in self.order:
            p.register_post_accumulate_grad_hook(self.note)

    def note(self, p):
        if self.depth > 0:
            return
        self.ready[self.place[id(p)]] = True
        while len(self.messages) < len(self.bounds):
            first, last = self.bounds[len(self.messages)]
            if not all(self.ready[first:last]):
                break
            flat = torch.cat([q.grad.ravel() for q in self.order[first:last]]) * self.share
            self.messages.append((flat, dist.all_reduce(flat, async_op=True, group=self.group)))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        wrapper = self

        class Quiet:
            def __enter__(self):
                wrapper.depth += 1

            def __exit__(self, *error):
                wrapper.depth -= 1

        return Quiet()

    def finish_gradient_synchronization(self):
        with torch.no_grad():
            for (first, last), (flat, work) in zip(self.bounds, self.messages):
                work.wait()
                sizes = [q.numel() for q in self.order[first:last]]
                for q, part in zip(self.order[first:last], flat.split(sizes)):
                    q.grad.copy_(part.reshape(q.shape))
        self.ready, self.messages = [False] * len(self.order), []


# %% wrong: buckets travel in float32, whatever the gradients are
# is: detail
# says: right to the digits of float32, but these gradients are float64
# base: what the wrong ones change
-            flat = torch.cat([g.flatten() for g in grads])
+            flat = torch.cat([g.flatten() for g in grads]).float()
@@
-                p.grad = part.view_as(p)
+                p.grad = part.view_as(p).to(p.dtype)


# %% wrong: means are copied back only where a gradient was
# is: detail
# says: gets the mean as well, so store the mean
# base: what the wrong ones change
-                p.grad = part.view_as(p)
+                if p.grad is not None:
+                    p.grad.copy_(part.view_as(p))


# %% wrong: no_sync returns without a yield
# is: form
# says: needs a generator below @contextlib.contextmanager
# base: what the wrong ones change
-        @contextlib.contextmanager
-        def silent():
-            self.quiet = True
-            yield
-            self.quiet = False
+        @contextlib.contextmanager
+        def silent():
+            self.quiet = True


# %% wrong: the size of a bucket is counted in elements
# is: slip
# says: so large a bucket is complete only late
# base: what the wrong ones change
-            if not self.buckets or filled + p.nbytes > bucket_bytes:
+            if not self.buckets or filled + p.numel() > bucket_bytes:
@@
-            filled += p.nbytes
+            filled += p.numel()


# %% wrong: four bytes for each element, whatever its dtype
# is: detail
# says: so large a bucket is complete only late
# base: what the wrong ones change
-            if not self.buckets or filled + p.nbytes > bucket_bytes:
+            if not self.buckets or filled + 4 * p.numel() > bucket_bytes:
@@
-            filled += p.nbytes
+            filled += 4 * p.numel()


# %% wrong: a bucket with exactly bucket_bytes is split
# is: detail
# says: Buckets were closed too early
# base: what the wrong ones change
-            if not self.buckets or filled + p.nbytes > bucket_bytes:
+            if not self.buckets or filled + p.nbytes >= bucket_bytes:
