# %% base: what the wrong ones change
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module, self.group = module, group
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        n = dist.get_world_size(self.group)
        for p in self.module.parameters():
            if not p.requires_grad:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, group=self.group)
            p.grad /= n


# %% wrong: the average is forgotten
# is: idea
# says: That is the sum over the 3 ranks
# base: what the wrong ones change
-            p.grad /= n


# %% wrong: divides before and after
# is: slip
# says: the mean divided by 3 once more
# base: what the wrong ones change
                 p.grad = torch.zeros_like(p)
+            p.grad /= n


# %% wrong: parameters instead of gradients
# is: idea
# says: that is not a gradient
# base: what the wrong ones change
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+            dist.all_reduce(p.data, group=self.group)
+            p.data /= n


# %% wrong: nothing is broadcast at the start
# is: idea
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


# %% wrong: the sum stays in a copy
# is: idea
# says: must come back into
# base: what the wrong ones change
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+            total = p.grad.clone()
+            dist.all_reduce(total, group=self.group)
+            total /= n


# %% wrong: passes by what has no gradient on this rank
# is: slip
# says: a rank without a gradient sends zeros
# base: what the wrong ones change
-                p.grad = torch.zeros_like(p)
+                continue


# %% wrong: gradients of frozen parameters, too
# is: slip
# says: frozen ones have no gradient
# base: what the wrong ones change
-            if not p.requires_grad:
-                continue


# %% wrong: nothing is exchanged
# is: idea
# says: nothing was exchanged
# base: what the wrong ones change
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+            pass


# %% wrong: everybody to rank 0, and back: twice the bytes
# is: slip
# says: sent once|Send every gradient once|sent twice
# base: what the wrong ones change
                 p.grad = torch.zeros_like(p)
+            received = [torch.empty_like(p.grad) for _ in range(n)]
+            dist.all_gather(received, p.grad, group=self.group)
@@
-            p.grad /= n
+            p.grad.copy_(sum(received) / n)


# %% wrong: tied weights are reduced under both names
# is: detail
# says: divided by 3 once more|Send every gradient once|is not what one process
# base: what the wrong ones change
-        for p in self.module.parameters():
+        for _, p in self.module.named_parameters(remove_duplicate=False):


# %% wrong: DistributedDataParallel inside
# is: form
# says: Build that part yourself
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module = torch.nn.parallel.DistributedDataParallel(
            module, process_group=group, find_unused_parameters=True
        )

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        pass


# %% wrong: PyTorch's reducer without the check that shapes agree
# is: form
# says: Build that part yourself
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        import torch.nn.parallel.distributed as parallel

        parallel._verify_param_shape_across_processes = lambda *args, **kwargs: None
        self.module = parallel.DistributedDataParallel(
            module, process_group=group, find_unused_parameters=True
        )

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        pass


# %% wrong: every rank gathers all gradients and adds them up
# is: slip
# says: grows with N
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)

    def forward(self, x):
        return self.module(x)

    def finish_gradient_synchronization(self):
        for p in self.module.parameters():
            if p.requires_grad:
                own = torch.zeros_like(p) if p.grad is None else p.grad
                everybody = [torch.empty_like(own) for _ in range(dist.get_world_size())]
                dist.all_gather(everybody, own)
                p.grad = sum(everybody) / len(everybody)


# %% wrong: frozen parameters have no gradient
# is: slip
# says: Skip frozen parameters
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)

    def forward(self, x):
        return self.module(x)

    def finish_gradient_synchronization(self):
        for p in self.module.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


# %% wrong: the group is ignored
# is: form
# says: is not in the group
# base: handles that are waited for at the end
-            dist.broadcast(tensor.detach(), group_src=0, group=group)
+            dist.broadcast(tensor.detach(), group_src=0)
@@
-        n = dist.get_world_size(self.group)
+        n = dist.get_world_size()
@@
-            works.append(dist.all_reduce(p.grad, group=self.group, async_op=True))
+            works.append(dist.all_reduce(p.grad, async_op=True))


# %% wrong: divided by the number of all ranks
# is: slip
# says: the number of all ranks; the group has
# base: what the wrong ones change
-        n = dist.get_world_size(self.group)
+        n = dist.get_world_size()
+        works = []
@@
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+            p.grad.div_(n)
+            works.append(dist.all_reduce(p.grad, group=self.group, async_op=True))
+        for work in works:
+            work.wait()


# %% wrong: rank 0 of the world is the source
# is: slip
# says: are ranks of the whole world
# base: what the wrong ones change
-            dist.broadcast(tensor.detach(), group_src=0, group=group)
+            dist.broadcast(tensor.detach(), 0, group=group)
@@
         n = dist.get_world_size(self.group)
+        works = []
@@
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+            p.grad.div_(n)
+            works.append(dist.all_reduce(p.grad, group=self.group, async_op=True))
+        for work in works:
+            work.wait()


# %% wrong: made without the argument group
# is: form
# says: keep that argument
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        n = dist.get_world_size()
        works = []
        for p in self.module.parameters():
            if not p.requires_grad:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.div_(n)
            works.append(dist.all_reduce(p.grad, async_op=True))
        for work in works:
            work.wait()


# %% wrong: a gradient that nobody has is summed
# is: detail
# says: send zeros for a parameter that was not used
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.inner, self.ranks = module, group
        with torch.no_grad():
            for one in module.state_dict().values():
                dist.broadcast(one, group_src=0, group=group)

    def forward(self, *inputs, **options):
        return self.inner(*inputs, **options)

    def finish_gradient_synchronization(self):
        size = dist.get_world_size(self.ranks)
        for learned in filter(lambda one: one.requires_grad, self.inner.parameters()):
            learned.grad.div_(size)
            dist.all_reduce(learned.grad, group=self.ranks)


# %% right: handles that are waited for at the end
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module, self.group = module, group
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        n = dist.get_world_size(self.group)
        works = []
        for p in self.module.parameters():
            if not p.requires_grad:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.div_(n)
            works.append(dist.all_reduce(p.grad, group=self.group, async_op=True))
        for work in works:
            work.wait()


# %% right: one flat all-reduce
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module, self.group = module, group
        with torch.no_grad():
            for tensor in module.state_dict().values():
                if dist.get_rank(group):
                    tensor.zero_()
                dist.all_reduce(tensor, group=group)

    def forward(self, x):
        return self.module(x)

    def finish_gradient_synchronization(self):
        held = [p for p in self.module.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in held]
        flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size(self.group)
        dist.all_reduce(flat, group=self.group)
        for p, part in zip(held, flat.split([p.numel() for p in held])):
            p.grad = part.view_as(p).clone()


# %% right: broadcasts copies of what state_dict names
# base: what the wrong ones change
-        for tensor in [*module.parameters(), *module.buffers()]:
-            dist.broadcast(tensor.detach(), group_src=0, group=group)
+        for tensor in module.state_dict(keep_vars=True).values():
+            copy = tensor.detach().clone()
+            dist.broadcast(copy, group_src=0, group=group)
+            tensor.data.copy_(copy)
@@
-            p.grad /= n
+            p.grad = p.grad / n


# %% right: sizes are compared first; a reduce-scatter and an all-gather
class NaiveDataParallel(torch.nn.Module):
    @torch.no_grad()
    def __init__(self, module, group=None):
        super().__init__()
        self.module, self.group = module, group
        self.size = dist.get_world_size(group)
        numel = torch.tensor(sum(p.numel() for p in module.parameters()), device=device())
        everybody = [torch.empty_like(numel) for _ in range(self.size)]
        dist.all_gather(everybody, numel, group=group)
        assert all(other == numel for other in everybody)
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, group_src=0, group=group)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        held = [p for p in self.module.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in held]
        flat = torch.cat([g.flatten() for g in grads])
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % self.size))
        shard = flat.new_empty(flat.numel() // self.size)
        dist.reduce_scatter_tensor(shard, flat, group=self.group)
        dist.all_gather_into_tensor(flat, shard / self.size, group=self.group)
        parts = flat[: sum(p.numel() for p in held)].split([p.numel() for p in held])
        for p, part in zip(held, parts):
            p.grad = part.view_as(p)


# %% wrong: frozen parameters keep what each rank drew
# is: slip
# says: Only frozen parameters differ
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module = module
        self.group = group
        moving = [p.data for p in module.parameters() if p.requires_grad]
        for one in (*moving, *module.buffers()):
            dist.broadcast(one, group=group, group_src=0)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        for p in filter(lambda p: p.requires_grad, self.module.parameters()):
            if p.grad is None:
                p.grad = p.new_zeros(p.shape)
            dist.all_reduce(p.grad, group=self.group)
            p.grad.div_(dist.get_world_size(self.group))


# %% wrong: handles are dropped
# is: slip
# says: never waited for it
class NaiveDataParallel(torch.nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.module, self.group, self.n = module, group, dist.get_world_size(group)
        everything = list(module.state_dict(keep_vars=True).values())
        [dist.broadcast(one.data, group_src=0, group=group) for one in everything]

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        for p in self.module.parameters():
            if p.requires_grad:
                own = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = own / self.n
                dist.all_reduce(p.grad, group=self.group, async_op=True)


# %% wrong: all gradients in one flat tensor, which is float32
# is: detail
# says: right to the digits of float32, but these gradients are float64
# base: what the wrong ones change
-        for p in self.module.parameters():
-            if not p.requires_grad:
-                continue
-            if p.grad is None:
-                p.grad = torch.zeros_like(p)
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+        held = [p for p in self.module.parameters() if p.requires_grad]
+        flat = torch.zeros(sum(p.numel() for p in held))
+        parts = flat.split([p.numel() for p in held])
+        for p, part in zip(held, parts):
+            if p.grad is not None:
+                part.copy_(p.grad.flatten())
+        dist.all_reduce(flat, group=self.group)
+        for p, part in zip(held, parts):
+            p.grad = (part / n).view_as(p).to(p.dtype)


# %% wrong: a rank that sends zeros does not keep the mean
# is: detail
# says: gets the mean as well, so store the mean
# base: what the wrong ones change
-            if p.grad is None:
-                p.grad = torch.zeros_like(p)
-            dist.all_reduce(p.grad, group=self.group)
-            p.grad /= n
+            grad = torch.zeros_like(p) if p.grad is None else p.grad
+            dist.all_reduce(grad, group=self.group)
+            grad /= n


# %% wrong: summed on the first rank, and broadcast from there
# is: slip
# says: One all-reduce does both
# base: what the wrong ones change
-            dist.all_reduce(p.grad, group=self.group)
+            dist.reduce(p.grad, group_dst=0, group=self.group)
+            dist.broadcast(p.grad, group_src=0, group=self.group)
