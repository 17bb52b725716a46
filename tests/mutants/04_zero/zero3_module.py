# %% base: what the wrong ones change
# says: keep that argument of __init__
class Unit:
    def __init__(self, params):
        self.params, self.n = params, dist.get_world_size()
        self.flat = self.row([p.detach() for p in params])
        dist.broadcast(self.flat, 0)
        own = self.flat.chunk(self.n)[dist.get_rank()].clone()
        self.trained = params[0].requires_grad
        self.shard = torch.nn.Parameter(own, requires_grad=self.trained)
        begin = 0
        for p in params:
            p.data = self.flat[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()
        self.nbytes, self.here, self.used = self.flat.nbytes, True, False
        self.free()

    def row(self, tensors):
        row = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(row, (0, -len(row) % self.n))

    def gather(self):
        if not self.here:
            self.flat.untyped_storage().resize_(self.nbytes)
            dist.all_gather_into_tensor(self.flat, self.shard.detach())
            self.here = True

    def free(self):
        self.flat.untyped_storage().resize_(0)
        self.here = False

    @torch.no_grad()
    def reduce(self):
        whole = self.row([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, whole)
        mean /= self.n
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
        for p in self.params:
            p.grad = None
        self.used = False


class Zero3Module(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.waiting = module, False
        owner = {}
        for block in dict.fromkeys(module.blocks):
            for p in block.parameters():
                owner[p] = module if p in owner else block
        members = {}
        for p in module.parameters():
            members.setdefault((owner.get(p, module), p.requires_grad), []).append(p)
        self.units = [Unit(params) for params in members.values()]
        for (where, _), unit in zip(members, self.units, strict=True):
            where.register_forward_pre_hook(lambda m, args, unit=unit: unit.gather())
            where.register_forward_hook(lambda m, args, out, unit=unit: unit.free())
            where.register_full_backward_pre_hook(lambda m, grads, unit=unit: self.before(unit))
            for p in unit.params if unit.trained else ():
                p.register_post_accumulate_grad_hook(lambda p, unit=unit: self.arrived(unit))

    def forward(self, *args):
        return self.module(*args)

    def parameters(self, recurse=True):
        return iter([unit.shard for unit in self.units])

    def before(self, unit):
        unit.gather()
        unit.used = True
        if not self.waiting:
            self.waiting = True
            torch.autograd.Variable._execution_engine.queue_callback(self.rest)

    def arrived(self, unit):
        if all(p.grad is not None for p in unit.params):
            unit.reduce()
            unit.free()

    def rest(self):
        for unit in self.units:
            if unit.used and unit.trained:
                unit.reduce()
            unit.free()
        self.waiting = False

    def full_state_dict(self):
        whole = {}
        for unit in self.units:
            unit.gather()
            whole |= {p: p.detach().clone() for p in unit.params}
            unit.free()
        return {name: whole[p] for name, p in self.module.named_parameters()}


# %% wrong: an unsharded module sold as ZeRO-3
# is: idea
# says: The whole weights are still in memory
class Zero3Module(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.waiting = module, False
        for p in module.parameters():
            dist.broadcast(p.data, 0)
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.arrived)

    def forward(self, x):
        return self.module(x)

    def arrived(self, _):
        if not self.waiting:
            self.waiting = True
            torch.autograd.Variable._execution_engine.queue_callback(self.average)

    def average(self):
        self.waiting = False
        for p in self.module.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

    def full_state_dict(self):
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}


# %% wrong: not freed after forward
# is: idea
# says: One of the three transfers is missing|More than a block or two was whole at the same time
# base: what the wrong ones change
-            where.register_forward_hook(lambda m, args, out, unit=unit: unit.free())


# %% wrong: everything is gathered when forward begins
# is: idea
# says: More than a block or two was whole at the same time
# base: what the wrong ones change
     def forward(self, *args):
+        for unit in self.units:
+            unit.gather()


# %% wrong: freed too early in backward
# is: slip
# says: Memory of a weight was read after it had been freed. (In backward|Look)
# base: what the wrong ones change
             where.register_forward_hook(lambda m, args, out, unit=unit: unit.free())
+            where.register_full_backward_hook(lambda m, gi, go, unit=unit: unit.free())


# %% wrong: not gathered again in backward
# is: form
# says: Memory of a weight was read after it had been freed. (In backward|Look)
# base: what the wrong ones change
-        unit.gather()


# %% wrong: the name is dropped, autograd keeps the storage
# is: idea
# says: until its storage is resized|resize_\(0\)
# base: what the wrong ones change
-        begin = 0
-        for p in params:
-            p.data = self.flat[begin : begin + p.numel()].view(p.shape)
-            begin += p.numel()
+        self.shapes = [p.shape for p in params]
+        self.place()
@@
         self.free()
+
+    def place(self):
+        begin = 0
+        for p, shape in zip(self.params, self.shapes, strict=True):
+            p.data = self.flat[begin : begin + shape.numel()].view(shape)
+            begin += shape.numel()
@@
-            self.flat.untyped_storage().resize_(self.nbytes)
+            self.flat = self.shard.new_empty(self.n * self.shard.numel(), requires_grad=False)
             dist.all_gather_into_tensor(self.flat, self.shard.detach())
+            self.place()
@@
-        self.flat.untyped_storage().resize_(0)
+        self.flat = None
+        for p in self.params:
+            p.data = p.data.new_empty(1).expand(p.shape)


# %% wrong: gradient shards overwritten instead of added
# is: slip
# says: earlier gradients were overwritten
# base: what the wrong ones change
-        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
+        self.shard.grad = mean


# %% wrong: not divided
# is: slip
# says: divide it by their number
# base: what the wrong ones change
-        mean /= self.n


# %% wrong: all-reduce, then the own shard of it
# is: slip
# says: There is a fourth transfer
# base: what the wrong ones change
-        mean = torch.empty_like(self.shard)
-        dist.reduce_scatter_tensor(mean, whole)
+        dist.all_reduce(whole)
+        mean = whole.chunk(self.n)[dist.get_rank()].clone()


# %% wrong: units are reduced again at the end of backward
# is: slip
# says: reduced twice in one backward
# base: what the wrong ones change
-        self.used = False


# %% wrong: every rank cuts up its own parameters
# is: slip
# says: first rank's parameters \(dist.broadcast\)|all must start from
# base: what the wrong ones change
-        dist.broadcast(self.flat, 0)


# %% wrong: a block's tied weight is two
# is: slip
# says: must not be freed by the first of them|a weight that two blocks share
# base: what the wrong ones change
-                owner[p] = module if p in owner else block
+                owner.setdefault(p, block)


# %% wrong: full gradients until the end of backward
# is: slip
# says: More than a block or two was whole at the same time
# base: what the wrong ones change
-            unit.reduce()


# %% wrong: frozen and trained in one unit
# is: slip
# says: give frozen parameters separate units
# base: what the wrong ones change
-        self.trained = params[0].requires_grad
+        self.trained = True
@@
-        dist.reduce_scatter_tensor(mean, whole)
-        mean /= self.n
-        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
+        work = dist.reduce_scatter_tensor(mean, whole, async_op=True)
@@
         self.used = False
+
+        def finish():
+            work.wait()
+            whole.untyped_storage().resize_(0)
+            part = mean / self.n
+            self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
+
+        return finish
@@
-        self.module, self.waiting = module, False
+        self.module, self.waiting, self.last = module, False, None
@@
-            members.setdefault((owner.get(p, module), p.requires_grad), []).append(p)
+            members.setdefault((owner.get(p, module), True), []).append(p)
@@
-            unit.reduce()
+            self.last, before = unit.reduce(), self.last
             unit.free()
+            if before is not None:
+                before()

@@
-                unit.reduce()
+                unit.reduce()()
             unit.free()
+        if self.last is not None:
+            self.last()
+        self.last = None
         self.waiting = False


# %% wrong: the shard of a frozen block is trained, with zeros for gradients
# is: slip
# says: weight decay needs no gradient
# base: what the wrong ones change
-        self.trained = params[0].requires_grad
+        self.trained = True
@@
-        dist.reduce_scatter_tensor(mean, whole)
-        mean /= self.n
-        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
+        work = dist.reduce_scatter_tensor(mean, whole, async_op=True)
@@
         self.used = False
+
+        def finish():
+            work.wait()
+            whole.untyped_storage().resize_(0)
+            part = mean / self.n
+            self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
+
+        return finish
@@
-        self.module, self.waiting = module, False
+        self.module, self.waiting, self.last = module, False, None
@@
-            for p in unit.params if unit.trained else ():
+            for p in [p for p in unit.params if p.requires_grad]:
@@
-            unit.reduce()
+            self.last, before = unit.reduce(), self.last
             unit.free()
+            if before is not None:
+                before()

@@
-                unit.reduce()
+                unit.reduce()()
             unit.free()
+        if self.last is not None:
+            self.last()
+        self.last = None
         self.waiting = False


# %% wrong: the group is ignored
# is: form
# says: is not in the group
# base: what the wrong ones change
-    def __init__(self, params):
-        self.params, self.n = params, dist.get_world_size()
+    def __init__(self, params, group):
+        self.params, self.group, self.n = params, group, dist.get_world_size()
@@
-        dist.broadcast(self.flat, 0)
+        dist.broadcast(self.flat, 0, group=None)
@@
-            dist.all_gather_into_tensor(self.flat, self.shard.detach())
+            dist.all_gather_into_tensor(self.flat, self.shard.detach(), group=None)
@@
-        dist.reduce_scatter_tensor(mean, whole)
-        mean /= self.n
-        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
+        work = dist.reduce_scatter_tensor(mean, whole, group=None, async_op=True)
@@
+
+        def finish():
+            work.wait()
+            whole.untyped_storage().resize_(0)
+            part = mean / self.n
+            self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
+
+        return finish


@@
-    def __init__(self, module):
+    def __init__(self, module, *, group=None):
@@
-        self.module, self.waiting = module, False
+        self.module, self.waiting, self.last = module, False, None
@@
-        self.units = [Unit(params) for params in members.values()]
+        self.units = [Unit(params, group) for params in members.values()]
@@
-            unit.reduce()
+            self.last, before = unit.reduce(), self.last
             unit.free()
+            if before is not None:
+                before()

@@
-                unit.reduce()
+                unit.reduce()()
             unit.free()
+        if self.last is not None:
+            self.last()
+        self.last = None
         self.waiting = False


# %% wrong: gradients stay in the parameters
# is: form
# says: Set it to None when their gradients have been reduced
# base: what the wrong ones change
-        for p in self.params:
-            p.grad = None


# %% wrong: units that are not complete are never reduced
# is: slip
# says: at the end of backward if one gets none
# base: what the wrong ones change
-            if unit.used and unit.trained:
-                unit.reduce()


# %% wrong: a unit that was reduced is not freed
# is: idea
# says: Free every unit after its reduce
# base: what the wrong ones change
             unit.reduce()
-            unit.free()
@@
                 unit.reduce()
-            unit.free()
+                unit.free()
+            elif not unit.trained:
+                unit.free()


# %% wrong: full_state_dict gives rows and no shapes
# is: detail
# says: in another shape or dtype than
# base: what the wrong ones change
-            whole |= {p: p.detach().clone() for p in unit.params}
+            whole |= {p: p.detach().flatten().clone() for p in unit.params}


# %% wrong: full_state_dict leaves frozen parameters out
# is: detail
# says: gives no tensor for
# base: what the wrong ones change
-        return {name: whole[p] for name, p in self.module.named_parameters()}
+        trained = (one for one in self.module.named_parameters() if one[1].requires_grad)
+        return {name: whole[p] for name, p in trained}


# %% wrong: full_state_dict returns nothing, and the sum is not divided
# is: form
# says: could not be read, so the module's outputs were compared
# base: what the wrong ones change
-        mean /= self.n
@@
-        return {name: whole[p] for name, p in self.module.named_parameters()}


# %% wrong: full_state_dict copies when it has freed
# is: form
# says: copies before it frees
# base: what the wrong ones change
-            whole |= {p: p.detach().clone() for p in unit.params}
+            whole |= {p: p.detach() for p in unit.params}
@@
-        return {name: whole[p] for name, p in self.module.named_parameters()}
+        return {name: whole[p] + 0 for name, p in self.module.named_parameters()}


# %% right: on the ring of notebook 02
# base: what the wrong ones change
+from course_lib.collectives import all_gather, reduce_scatter
+
+
 class Unit:
-    def __init__(self, params):
-        self.params, self.n = params, dist.get_world_size()
+    def __init__(self, params, group):
+        self.params, self.group, self.n = params, group, dist.get_world_size(group)
         self.flat = self.row([p.detach() for p in params])
-        dist.broadcast(self.flat, 0)
-        own = self.flat.chunk(self.n)[dist.get_rank()].clone()
+        dist.broadcast(self.flat, group_src=0, group=group)
+        own = self.flat.chunk(self.n)[dist.get_rank(group)].clone()
@@
-            dist.all_gather_into_tensor(self.flat, self.shard.detach())
+            all_gather(self.flat, self.shard.detach(), group=self.group)
@@
-        dist.reduce_scatter_tensor(mean, whole)
+        reduce_scatter(mean, whole, group=self.group)
@@
-    def __init__(self, module):
+    def __init__(self, module, *, group=None):
@@
-        self.units = [Unit(params) for params in members.values()]
+        self.units = [Unit(params, group) for params in members.values()]


# %% right: a reduce-scatter that is waited for later
class Unit:
    def __init__(self, params, group):
        self.params, self.group, self.n = params, group, dist.get_world_size(group)
        self.flat = self.row([p.detach() for p in params])
        dist.broadcast(self.flat, group_src=0, group=group)
        own = self.flat.chunk(self.n)[dist.get_rank(group)].clone()
        self.trained = params[0].requires_grad
        self.shard = torch.nn.Parameter(own, requires_grad=self.trained)
        begin = 0
        for p in params:
            p.data = self.flat[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()
        self.nbytes, self.here, self.used = self.flat.nbytes, True, False
        self.free()

    def row(self, tensors):
        row = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(row, (0, -len(row) % self.n))

    def gather(self):
        if not self.here:
            self.flat.untyped_storage().resize_(self.nbytes)
            dist.all_gather_into_tensor(self.flat, self.shard.detach(), group=self.group)
            self.here = True

    def free(self):
        self.flat.untyped_storage().resize_(0)
        self.here = False

    @torch.no_grad()
    def reduce(self):
        whole = self.row([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
        mean = torch.empty_like(self.shard)
        work = dist.reduce_scatter_tensor(mean, whole, group=self.group, async_op=True)
        for p in self.params:
            p.grad = None
        self.used = False

        def finish():
            work.wait()
            whole.untyped_storage().resize_(0)
            part = mean / self.n
            self.shard.grad = part if self.shard.grad is None else self.shard.grad + part

        return finish


class Zero3Module(torch.nn.Module):
    def __init__(self, module, *, group=None):
        super().__init__()
        self.module, self.waiting, self.last = module, False, None
        owner = {}
        for block in dict.fromkeys(module.blocks):
            for p in block.parameters():
                owner[p] = module if p in owner else block
        members = {}
        for p in module.parameters():
            members.setdefault((owner.get(p, module), p.requires_grad), []).append(p)
        self.units = [Unit(params, group) for params in members.values()]
        for (where, _), unit in zip(members, self.units, strict=True):
            where.register_forward_pre_hook(lambda m, args, unit=unit: unit.gather())
            where.register_forward_hook(lambda m, args, out, unit=unit: unit.free())
            where.register_full_backward_pre_hook(lambda m, grads, unit=unit: self.before(unit))
            for p in unit.params if unit.trained else ():
                p.register_post_accumulate_grad_hook(lambda p, unit=unit: self.arrived(unit))

    def forward(self, *args):
        return self.module(*args)

    def parameters(self, recurse=True):
        return iter([unit.shard for unit in self.units])

    def before(self, unit):
        unit.gather()
        unit.used = True
        if not self.waiting:
            self.waiting = True
            torch.autograd.Variable._execution_engine.queue_callback(self.rest)

    def arrived(self, unit):
        if all(p.grad is not None for p in unit.params):
            self.last, before = unit.reduce(), self.last
            unit.free()
            if before is not None:
                before()

    def rest(self):
        for unit in self.units:
            if unit.used and unit.trained:
                unit.reduce()()
            unit.free()
        if self.last is not None:
            self.last()
        self.last = None
        self.waiting = False

    def full_state_dict(self):
        whole = {}
        for unit in self.units:
            unit.gather()
            whole |= {p: p.detach().clone() for p in unit.params}
            unit.free()
        return {name: whole[p] for name, p in self.module.named_parameters()}


# %% wrong: PyTorch's fully_shard inside
# is: form
# says: fully_shard would do all of it
class Zero3Module(torch.nn.Module):
    def __init__(self, module, group=None):
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        for block in module.blocks:
            fully_shard(block)
        self.module = fully_shard(module)

    def forward(self, x):
        return self.module(x)

    def full_state_dict(self):
        return {name: p.full_tensor() for name, p in self.module.named_parameters()}


# %% wrong: full_state_dict leaves what it gathered
# is: detail
# says: left a unit gathered
PIECES = {}


def bring(key):
    params, flat, shard, group = PIECES[key]
    if flat.untyped_storage().nbytes() == 0:
        flat.untyped_storage().resize_(flat.nbytes)
        with torch.no_grad():
            dist.all_gather_into_tensor(flat, shard.data, group=group)


def drop(key):
    PIECES[key][1].untyped_storage().resize_(0)


def hand_in(key):
    params, flat, shard, group = PIECES[key]
    n = dist.get_world_size(group)
    row = torch.zeros_like(shard).repeat(n).detach()
    place = 0
    for p in params:
        if p.grad is not None:
            row[place : place + p.numel()] = p.grad.flatten()
            p.grad = None
        place += p.numel()
    own = torch.zeros_like(shard.data)
    dist.reduce_scatter_tensor(own, row.div_(n), group=group)
    shard.grad = own if shard.grad is None else shard.grad + own


class Zero3Module(torch.nn.Module):
    def __init__(self, module, *, group=None):
        super().__init__()
        self.inner, self.keys, self.begun = module, [], set()
        times = {}
        for block in set(module.blocks):
            for p in block.parameters():
                times[p] = times.get(p, 0) + 1
        taken = set()
        for where in [*dict.fromkeys(module.blocks), module]:
            for trained in (True, False):
                own = []
                for p in where.parameters():
                    alone = times.get(p, 0) < 2 or where is module
                    if p.requires_grad == trained and alone and p not in taken:
                        own.append(p)
                if own:
                    taken.update(own)
                    self.add(where, own, trained, group)

    def add(self, where, own, trained, group):
        key, n = (id(self), len(self.keys)), dist.get_world_size(group)
        row = torch.cat([p.data.flatten() for p in own])
        flat = torch.zeros(-(-len(row) // n) * n, dtype=row.dtype)
        flat[: len(row)] = row
        dist.broadcast(flat, group_src=0, group=group)
        shard = flat.view(n, -1)[dist.get_rank(group)].clone()
        PIECES[key] = own, flat, torch.nn.Parameter(shard, requires_grad=trained), group
        place = 0
        for p in own:
            p.data = flat[place : place + p.numel()].view_as(p)
            place += p.numel()
            if trained:
                p.register_post_accumulate_grad_hook(lambda _: self.one_more(key))
        self.keys.append(key)
        drop(key)
        where.register_forward_pre_hook(lambda *_: bring(key))
        where.register_forward_hook(lambda m, a, out: self.over(key, out))

    def over(self, key, out):
        drop(key)
        if out.requires_grad:
            out.register_hook(lambda grad: self.again(key))

    def again(self, key):
        bring(key)
        if not self.begun:
            torch.autograd.Variable._execution_engine.queue_callback(self.rest)
        self.begun.add(key)

    def one_more(self, key):
        if all(p.grad is not None for p in PIECES[key][0]):
            hand_in(key)
            drop(key)
            self.begun.add((key, "sent"))

    def rest(self):
        for key in self.keys:
            if key in self.begun and (key, "sent") not in self.begun:
                if PIECES[key][2].requires_grad:
                    hand_in(key)
            drop(key)
        self.begun = set()

    def forward(self, *args):
        return self.inner(*args)

    def parameters(self, recurse=True):
        return iter([PIECES[key][2] for key in self.keys])

    def full_state_dict(self):
        for key in self.keys:
            bring(key)
        return {name: p.detach().clone() for name, p in self.inner.named_parameters()}


# %% wrong: full_state_dict gives the parameters themselves, and frees them
# is: form
# says: Return copies, param.detach
class Zero3Module(torch.nn.Module):
    def __init__(self, module, *, group=None):
        super().__init__()
        self.module, self.group, self.cut = module, group, {}
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        for name, p in module.named_parameters():
            dist.broadcast(p.data, group_src=0, group=group)
            row = torch.nn.functional.pad(p.data.flatten(), (0, -p.numel() % n))
            mine = torch.nn.Parameter(row.chunk(n)[rank].clone(), requires_grad=p.requires_grad)
            p.data = row[: p.numel()].view(p.shape)
            self.cut[name] = p, row, mine
        self.empty()

    def fill(self):
        for _, row, mine in self.cut.values():
            row.untyped_storage().resize_(row.nbytes)
            with torch.no_grad():
                dist.all_gather_into_tensor(row, mine.data, group=self.group)

    def empty(self):
        for _, row, _ in self.cut.values():
            row.untyped_storage().resize_(0)

    def forward(self, x):
        self.fill()
        return self.module(x)

    def parameters(self, recurse=True):
        return iter([mine for _, _, mine in self.cut.values()])

    def full_state_dict(self):
        self.fill()
        state = {name: p.data for name, (p, _, _) in self.cut.items()}
        self.empty()
        return state


# %% wrong: frozen parameters have no shards
# is: idea
# says: A frozen parameter also has a shard, so
class Zero3Module(torch.nn.Module):
    def __init__(self, module, *, group=None):
        super().__init__()
        self.module, self.group = module, group
        self.n, self.waiting = dist.get_world_size(group), False
        for p in module.parameters():
            dist.broadcast(p.detach(), group_src=0, group=group)
        self.trained = [p for p in module.parameters() if p.requires_grad]
        rows = self.rows(self.trained)
        self.shard = torch.nn.Parameter(rows[dist.get_rank(group)].clone())
        for p in self.trained:
            p.register_hook(lambda grad: self.soon())

    def rows(self, tensors):
        line = torch.nn.utils.parameters_to_vector(tensors).detach()
        return torch.cat([line, line.new_zeros(-line.numel() % self.n)]).view(self.n, -1)

    def soon(self):
        if not self.waiting:
            self.waiting = True
            torch.autograd.Variable._execution_engine.queue_callback(self.reduce)

    def reduce(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        own = torch.zeros_like(self.shard.data)
        dist.reduce_scatter_tensor(own, self.rows(grads).flatten() / self.n, group=self.group)
        self.shard.grad = own if self.shard.grad is None else self.shard.grad + own
        for p in self.trained:
            p.grad = None
        self.waiting = False

    @torch.no_grad()
    def gather(self):
        whole = self.shard.new_empty(self.n * len(self.shard))
        dist.all_gather_into_tensor(whole, self.shard.detach(), group=self.group)
        sizes = [p.numel() for p in self.trained]
        for p, part in zip(self.trained, whole[: sum(sizes)].split(sizes)):
            p.copy_(part.view_as(p))

    def forward(self, x):
        self.gather()
        return self.module(x)

    def parameters(self, recurse=True):
        yield self.shard

    def full_state_dict(self):
        self.gather()
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}
