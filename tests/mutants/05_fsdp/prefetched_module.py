# %% base: what the wrong ones change
from collections import Counter

from course_lib.fsdp.units import Unit


class PrefetchedModule(torch.nn.Module):
    """`module` with its parameters sharded over `group`; blocks are gathered before they are needed.

    Sends, for a step, two gathers and a reduction of each block, but one gather less of the last block and
    of the root, which are kept after forward; with reshard_after_forward=False one gather of each.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        forward_prefetch: int = 1,
        backward_prefetch: int = 1,
        reshard_after_forward: bool = True,
        group=None,
    ):
        super().__init__()
        self.module, self.reshard = module, reshard_after_forward
        self.ahead = {1: forward_prefetch, -1: backward_prefetch}  # by direction
        blocks, owner = list(module.blocks), {}
        for block in dict.fromkeys(blocks):  # each once
            for param in block.parameters():
                owner[param] = module if param in owner else block
        members = {}
        for param in module.parameters():
            members.setdefault((owner.get(param, module), param.requires_grad), []).append(param)
        units = {place: [] for place in (*blocks, module)}  # trained and frozen parameters apart
        for (place, _), params in members.items():
            units[place].append(Unit(params, group))
        self.order, self.root = [units[block] for block in blocks], units[module]
        self.units = [unit for of_place in units.values() for unit in of_place]
        self._forget()
        for block in dict.fromkeys(blocks):
            block.register_forward_pre_hook(self._enter)
            block.register_forward_hook(self._leave)

    def _ask(self, i, direction):
        """Ask for the weights of block i and of those ahead of it, then wait for those of i."""
        for k in range(i, i + direction * (self.ahead[direction] + 1), direction):
            for unit in self.order[k] if 0 <= k < len(self.order) else ():
                unit.start()
        for unit in self.order[i]:
            unit.wait()

    def _enter(self, block, args):
        self.i += 1  # all ranks run the blocks in the order of the list
        self._ask(self.i, 1)

    def _leave(self, block, args, output):
        """The forward of block i is over: free it, unless its backward comes next."""
        if output.requires_grad:
            self.due.update(self.order[self.i])  # one more backward is to come
            output.register_hook(lambda gradient, i=self.i: self._before(i))
        if not output.requires_grad or (self.reshard and self.i < len(self.order) - 1):
            self._free(self.order[self.i])

    def _before(self, i):
        """The gradient of block i's output is there, and so are all gradients of the block above."""
        if not self.backward:
            self.backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        for unit in self.root:
            unit.wait()
        self._pass()
        self._ask(i, -1)
        self.due.subtract(self.order[i])
        self.current = self.order[i]

    def _pass(self):
        """Backward has left a block: free it, and send its gradients, unless more are to come."""
        self._free(self.current)
        for unit in self.current:
            self.left[unit] = True
            if self.due[unit] <= 0:
                self._send(unit)

    def _send(self, unit):
        if self.left.pop(unit, False) and unit.shard.requires_grad:
            self.settle()  # the reduction before this one
            self.settle = unit.reduce()

    def _end(self):
        """After backward: the last block, the root, and units of which more gradients were expected."""
        self._pass()
        self.left |= dict.fromkeys(self.root, True)
        for unit in list(self.left):
            self._send(unit)
        self.settle()
        self._forget()

    def _forget(self):
        """Free everything, also what a forward or a backward that failed has left."""
        for unit in self.units:
            unit.drop()  # if its gather is in flight, it waits
        self.due, self.left, self.current = Counter(), {}, []
        self.backward, self.settle = False, lambda: None

    def _free(self, units):
        for unit in units:
            unit.free()

    def forward(self, *args):
        """Run the module's forward."""
        self.i = -1
        if self.backward:  # one that failed
            self._forget()
        for unit in self.root:
            unit.wait()
        try:
            output = self.module(*args)
        except BaseException:
            self._forget()
            raise
        if not output.requires_grad:
            self._free(self.root)
        return output

    def parameters(self, recurse: bool = True):
        """This rank's flat shards."""
        return iter([unit.shard for unit in self.units])


# %% wrong: a forward that failed leaves its units whole
# is: slip
# says: after a forward that raised an error .*the root were whole
# base: what the wrong ones change
-        try:
-            output = self.module(*args)
-        except BaseException:
-            self._forget()
-            raise
+        output = self.module(*args)


# %% wrong: a forward that failed leaves its units whole until the next one frees them
# is: detail
# says: after a forward that raised an error .*the root were whole
# base: what the wrong ones change
-        self.i = -1
-        if self.backward:  # one that failed
-            self._forget()
+        self.i = -1
+        self._forget()
@@
-        try:
-            output = self.module(*args)
-        except BaseException:
-            self._forget()
-            raise
+        output = self.module(*args)


# %% wrong: the root stays whole after a forward without a graph
# is: slip
# says: after a forward without a graph the root was whole on rank 0
# base: what the wrong ones change
-        if not output.requires_grad:
-            self._free(self.root)
         return output


# %% wrong: the shards of the root are not given
# is: slip
# says: parameters.. has [\d,]+ elements on all ranks together; the model has
# base: what the wrong ones change
-        return iter([unit.shard for unit in self.units])
+        return iter([unit.shard for unit in self.units if unit not in self.root])


# %% wrong: a shard is given twice
# is: slip
# says: parameters.. gives \d+ tensors? more than once
# base: what the wrong ones change
-        return iter([unit.shard for unit in self.units])
+        return iter([unit.shard for unit in self.units] + [self.units[0].shard])


# %% wrong: the tensors of the module are given
# is: slip
# says: parameters.. gives \d+ tensors of the model itself
# base: what the wrong ones change
-        return iter([unit.shard for unit in self.units])
+        return self.module.parameters()


# %% wrong: one block too many in backward
# is: slip
# says: ^Ask for no more than backward_prefetch blocks ahead
# base: what the wrong ones change
-        self._ask(i, -1)
+        self._ask(i, -1)
+        if i > self.ahead[-1]:
+            for unit in self.order[i - self.ahead[-1] - 1]:
+                unit.start()


# %% wrong: every gather is waited for where it is begun
# is: idea
# says: The weights were asked for early but waited for immediately, so nothing overlaps
# base: what the wrong ones change
                 unit.start()
+                unit.wait()


# %% wrong: a barrier behind every gather that is asked for
# is: idea
# says: 1\d barriers in a step
# base: what the wrong ones change
         self.module, self.reshard = module, reshard_after_forward
+        self.group = group
@@
                 unit.start()
+        dist.barrier(self.group)


# %% wrong: a barrier before the gathers of backward
# is: slip
# says: 5 barriers in a step
# base: what the wrong ones change
         self.module, self.reshard = module, reshard_after_forward
+        self.group = group
@@
-        self._pass()
-        self._ask(i, -1)
+        self._pass()
+        dist.barrier(self.group)
+        self._ask(i, -1)


# %% wrong: a barrier when backward is over
# is: detail
# says: 1 barrier in a step
# base: what the wrong ones change
         self.module, self.reshard = module, reshard_after_forward
+        self.group = group
@@
         self.settle()
         self._forget()
+        dist.barrier(self.group)


# %% wrong: the two prefetches are exchanged
# is: slip
# says: forward_prefetch is the number for forward
# base: what the wrong ones change
-        self.ahead = {1: forward_prefetch, -1: backward_prefetch}  # by direction
+        self.ahead = {1: backward_prefetch, -1: forward_prefetch}  # by direction


# %% wrong: never more than one block ahead
# is: detail
# says: the gather of block 2 had not begun when block 0 began its forward
# base: what the wrong ones change
-        self.ahead = {1: forward_prefetch, -1: backward_prefetch}  # by direction
+        self.ahead = {1: 1, -1: 1}  # by direction


# %% wrong: copies of the weights stay
# is: idea
# says: holds up to .* during forward and backward
# base: what the wrong ones change
         for unit in self.order[i]:
             unit.wait()
+            unit.copied = unit.row.clone()


# %% wrong: blocks are freed after forward, whatever is asked for
# is: slip
# says: Without resharding a block is gathered once a step
# base: what the wrong ones change
-        self.module, self.reshard = module, reshard_after_forward
+        self.module, self.reshard = module, True


# %% wrong: nothing is asked for ahead
# is: idea
# says: Begin its gather before the previous block of the pass computes
# base: what the wrong ones change
-        for k in range(i, i + direction * (self.ahead[direction] + 1), direction):
+        for k in [i]:


# %% wrong: in backward a block is gathered at its own use, after the reduction of the one above
# is: slip
# says: a gather queues behind a reduction
# base: what the wrong ones change
-        self._ask(i, -1)
+        for unit in self.order[i]:
+            unit.wait()


# %% wrong: the order of forward in backward
# is: slip
# says: Backward comes from above
# base: what the wrong ones change
-        self._ask(i, -1)
+        self._ask(i, 1)


# %% wrong: everything is freed after a forward, what is in flight too
# is: form
# says: was freed before its gather ended
# base: what the wrong ones change
-            self._free(self.order[self.i])
+            self._free(self.units)


# %% wrong: backward asks for the blocks above before it frees them
# is: slip
# says: In backward, the blocks ahead have lower numbers
# base: what the wrong ones change
-        self._pass()
-        self._ask(i, -1)
+        self._ask(i, 1)
+        self._pass()


# %% wrong: everything is gathered in the constructor
# is: idea
# says: Between uses a rank keeps only its shards
# base: what the wrong ones change
         self._forget()
+        for unit in self.units:
+            unit.wait()
         for block in dict.fromkeys(blocks):


# %% wrong: forward asks for one block too few
# is: slip
# says: the gather of block 1 had not begun when block 0 began its forward
# base: what the wrong ones change
-        for k in range(i, i + direction * (self.ahead[direction] + 1), direction):
+        few = direction == 1
+        for k in range(i, i + direction * (self.ahead[direction] + 1 - few), direction):


# %% wrong: the block itself counts as one ahead, both ways
# is: slip
# says: the gather of block 1 had not begun when block 0 began its forward
# base: what the wrong ones change
-        for k in range(i, i + direction * (self.ahead[direction] + 1), direction):
+        for k in range(i, i + direction * self.ahead[direction], direction):


# %% wrong: nothing is reduced
# is: idea
# says: there were 0 reductions of block 0
# base: what the wrong ones change
-            self.settle()  # the reduction before this one
-            self.settle = unit.reduce()
+            for param in unit.params:
+                param.grad = None


# %% wrong: a block with a missing gradient is never reduced
# is: slip
# says: at the end of backward if one gets none
# base: what the wrong ones change
-        if self.left.pop(unit, False) and unit.shard.requires_grad:
+        if self.left.pop(unit, False) and all(param.grad is not None for param in unit.params):


# %% wrong: block 0 is left whole after backward
# is: slip
# says: after a backward block 0 was whole
# base: what the wrong ones change
-        for unit in self.units:
-            unit.drop()  # if its gather is in flight, it waits
+        for unit in self.units:
+            if unit not in self.order[0]:
+                unit.drop()
@@
-        """After backward: the last block, the root, and units of which more gradients were expected."""
-        self._pass()
+        """After backward: the last block, the root, and units of which more gradients were expected."""
+        for unit in self.current:
+            self.left[unit] = True


# %% wrong: the root is left whole after backward
# is: slip
# says: after a backward the root was whole
# base: what the wrong ones change
-        for unit in self.units:
-            unit.drop()  # if its gather is in flight, it waits
+        for unit in self.units:
+            if unit not in self.root:
+                unit.drop()


# %% wrong: not freed after forward
# is: idea
# says: Free a block when its forward is over, as block 0 was not
# base: what the wrong ones change
-        if not output.requires_grad or (self.reshard and self.i < len(self.order) - 1):
+        if not output.requires_grad:


# %% wrong: everything is asked for when forward begins
# is: idea
# says: ^Ask for no more than forward_prefetch blocks ahead
# base: what the wrong ones change
         for unit in self.root:
             unit.wait()
+        for unit in self.units:
+            unit.start()
         try:


# %% wrong: the last block is kept for a backward that never comes
# is: slip
# says: after a forward without a graph block \d was whole
# base: what the wrong ones change
-        if not output.requires_grad or (self.reshard and self.i < len(self.order) - 1):
+        if self.reshard and self.i < len(self.order) - 1:


# %% wrong: the last reduction is not waited for
# is: slip
# says: comes a step late, or never
# base: what the wrong ones change
             self._send(unit)
-        self.settle()
         self._forget()


# %% wrong: every reduction is waited for where it is begun
# is: slip
# says: Keep the function that reduce.. returned
# base: what the wrong ones change
-            self.settle = unit.reduce()
+            unit.reduce()()


# %% wrong: all reductions are in flight together
# is: slip
# says: more than one reduction was in flight
# base: what the wrong ones change
-            self.settle()  # the reduction before this one
-            self.settle = unit.reduce()
+            earlier, last = self.settle, unit.reduce()
+            self.settle = lambda: (earlier(), last())


# %% wrong: a reduction is waited for when the next one has begun
# is: slip
# says: was begun on rank \d before the one before it had been waited for
# base: what the wrong ones change
-            self.settle()  # the reduction before this one
-            self.settle = unit.reduce()
+            earlier, self.settle = self.settle, unit.reduce()
+            earlier()


# %% wrong: reductions are in flight together where a block is frozen
# is: detail
# says: more than one reduction was in flight when block 2 began
# base: what the wrong ones change
         self.order, self.root = [units[block] for block in blocks], units[module]
         self.units = [unit for of_place in units.values() for unit in of_place]
+        self.together = any(not unit.shard.requires_grad for unit in self.units)
@@
-            self.settle()  # the reduction before this one
-            self.settle = unit.reduce()
+            earlier = self.settle
+            if not self.together:
+                earlier()
+            last = unit.reduce()
+            self.settle = (lambda: (earlier(), last())) if self.together else last


# %% wrong: frozen blocks stay whole until backward is over
# is: detail
# says: Block 2 is frozen, so no gradient of its own
# base: what the wrong ones change
-        self._free(self.current)
+        self._free(unit for unit in self.current if unit.shard.requires_grad)


# %% wrong: gradients leave when backward is over
# is: slip
# says: they travel while the next block computes
# base: what the wrong ones change
-            if self.due[unit] <= 0:
-                self._send(unit)


# %% wrong: the reduce-scatter of block 0 is forgotten
# is: slip
# says: their unit was never reduced
# base: what the wrong ones change
         """After backward: the last block, the root, and units of which more gradients were expected."""
-        self._pass()


# %% wrong: not gathered again for backward
# is: form
# says: Memory of a weight was read|size was begun in backward
# base: what the wrong ones change
-        self._ask(i, -1)


# %% wrong: rank 0 asks ahead, the others do not
# is: form
# says: in the same order, so derive the order
# base: what the wrong ones change
-        self.ahead = {1: forward_prefetch, -1: backward_prefetch}  # by direction
+        first = dist.get_rank(group) == 0
+        self.ahead = {1: forward_prefetch, -1: backward_prefetch if first else 0}


# %% wrong: a sum instead of the mean
# is: slip
# says: divide it by their number
# base: what the wrong ones change
+class Summed(Unit):
+    def reduce(self):
+        for param in self.params:
+            if param.grad is not None:
+                param.grad *= self.n
+        return super().reduce()
+
+
 class PrefetchedModule(torch.nn.Module):
@@
-            units[place].append(Unit(params, group))
+            units[place].append(Summed(params, group))


# %% wrong: trained and frozen parameters in one unit
# is: slip
# says: all trained or all frozen
# base: what the wrong ones change
-            members.setdefault((owner.get(param, module), param.requires_grad), []).append(param)
+            members.setdefault((owner.get(param, module), True), []).append(param)


# %% wrong: a tied weight belongs to the first block that has it
# is: slip
# says: weight that two blocks share|Memory of a weight was read
# base: what the wrong ones change
-                owner[param] = module if param in owner else block
+                owner.setdefault(param, block)


# %% wrong: the group is forgotten
# is: slip
# says: not in the group|[Pp]ass group=
# base: what the wrong ones change
-            units[place].append(Unit(params, group))
+            units[place].append(Unit(params))


# %% wrong: the root is made for all ranks
# is: slip
# says: not in the group|[Pp]ass group=
# base: what the wrong ones change
-            units[place].append(Unit(params, group))
+            units[place].append(Unit(params, None if place is module else group))


# %% wrong: two blocks that share a weight have a unit with it each
# is: slip
# says: it is in another unit already
# base: what the wrong ones change
-            members.setdefault((owner.get(param, module), param.requires_grad), []).append(param)
+            if param not in owner or owner[param] is module:
+                members.setdefault((module, param.requires_grad), []).append(param)
+        for block in dict.fromkeys(blocks):
+            for param in block.parameters():
+                members.setdefault((block, param.requires_grad), []).append(param)


# %% wrong: parameters() gives copies
# is: slip
# says: return unit.shard itself, the same tensor at every call
# base: what the wrong ones change
-        return iter([unit.shard for unit in self.units])
+        return iter([torch.nn.Parameter(unit.shard.clone()) for unit in self.units])


# %% wrong: a unit for each parameter
# is: slip
# says: Put all parameters of a block into one Unit
# base: what the wrong ones change
-            units[place].append(Unit(params, group))
+            units[place] += [Unit([param], group) for param in params]


# %% wrong: the output has lost its graph
# is: form
# says: backward reached no block
# base: what the wrong ones change
-        if not output.requires_grad:
-            self._free(self.root)
-        return output
+        if not output.requires_grad:
+            self._free(self.root)
+        return output.detach().requires_grad_(output.requires_grad)


# %% wrong: nothing is returned
# is: form
# says: Does forward return the output of the module
# base: what the wrong ones change
-            self._free(self.root)
-        return output
+            self._free(self.root)


# %% wrong: the last block is never asked for ahead
# is: slip
# says: Block 4, at the end of the list, belongs to it
# base: what the wrong ones change
-            for unit in self.order[k] if 0 <= k < len(self.order) else ():
+            for unit in self.order[k] if 0 <= k < len(self.order) - (direction > 0) else ():


# %% wrong: every output takes a hook, also where no backward comes
# is: form
# says: Register a hook only if the output has .requires_grad
# base: what the wrong ones change
-        if output.requires_grad:
-            self.due.update(self.order[self.i])  # one more backward is to come
-            output.register_hook(lambda gradient, i=self.i: self._before(i))
+        self.due.update(self.order[self.i])
+        output.register_hook(lambda gradient, i=self.i: self._before(i))


# %% wrong: one unit for the whole module
# is: idea
# says: Gathers of another size were begun. Make a Unit for each block
# base: what the wrong ones change
-                owner[param] = module if param in owner else block
+                owner[param] = module


# %% wrong: an index below 0 is the last block
# is: detail
# says: an index of -1 is its last block
# base: what the wrong ones change
-            for unit in self.order[k] if 0 <= k < len(self.order) else ():
+            for unit in self.order[k] if k < len(self.order) else ():


# %% wrong: after an error a unit is freed that is on its way
# is: slip
# says: drop\(\) for a unit no block will use
# base: what the wrong ones change
-        except BaseException:
-            self._forget()
+        except BaseException:
+            for unit in self.units:
+                unit.free()


# %% wrong: after an error the block that failed stays whole
# is: detail
# says: after a forward that raised an error block 1 was whole
# base: what the wrong ones change
-        except BaseException:
-            self._forget()
+        except BaseException:
+            kept = [unit for unit in self.order[self.i] if unit.whole]
+            self._forget()
+            for unit in kept:
+                unit.wait()


# %% wrong: an error is swallowed
# is: slip
# says: and raise the error again
# base: what the wrong ones change
-        except BaseException:
-            self._forget()
-            raise
+        except Exception:
+            self._forget()
+            output = args[0].detach()


# %% wrong: PyTorch's fully_shard inside
# is: form
# says: fully_shard would do all of it
class PrefetchedModule(torch.nn.Module):
    def __init__(self, module, **settings):
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        for block in module.blocks:
            fully_shard(block)
        self.module = fully_shard(module)

    def forward(self, x):
        return self.module(x)


# %% right: the blocks' forward is wrapped
# base: what the wrong ones change
-            block.register_forward_pre_hook(self._enter)
-            block.register_forward_hook(self._leave)
+            block.forward = self._wrapped(block, block.forward)
+
+    def _wrapped(self, block, forward):
+        def wrapped(*args):
+            self._enter(block, args)
+            output = forward(*args)
+            self._leave(block, args, output)
+            return output
+
+        return wrapped


# %% right: a state for each unit, and gradients that leave when they are all there
from course_lib.fsdp.units import Unit


class PrefetchedModule(torch.nn.Module):
    def __init__(
        self, module, *, forward_prefetch=1, backward_prefetch=1, reshard_after_forward=True, group=None
    ):
        super().__init__()
        self.module, self.reshard, self.in_backward = module, reshard_after_forward, False
        self.ahead = {1: forward_prefetch, -1: backward_prefetch}
        blocks, owner = list(module.blocks), {}
        for block in dict.fromkeys(blocks):
            for param in block.parameters():
                owner[param] = module if param in owner else block
        members = {}
        for param in module.parameters():
            members.setdefault((owner.get(param, module), param.requires_grad), []).append(param)
        units = {place: [] for place in (*blocks, module)}
        for (place, _), params in members.items():
            units[place].append(Unit(params, group))
        self.blocks, self.root = [units[block] for block in blocks], units[module]
        self.units = [unit for of_place in units.values() for unit in of_place]
        self.state, self.settle, self.place = dict.fromkeys(self.units, "away"), None, -1
        for block in dict.fromkeys(blocks):
            block.register_forward_pre_hook(lambda *_: self.come())
            block.register_forward_hook(lambda _, args, output: self.leave(output))
        for unit in self.units:
            for param in unit.params if unit.shard.requires_grad else ():
                param.register_post_accumulate_grad_hook(lambda _, unit=unit: self.arrived(unit))

    def use(self, i, direction):
        for k in range(i, i + direction * (self.ahead[direction] + 1), direction):
            if 0 <= k < len(self.blocks):
                for unit in self.blocks[k]:
                    if self.state[unit] == "away":
                        unit.start()
                        self.state[unit] = "on its way"
        for unit in self.blocks[i]:
            unit.wait()
            self.state[unit] = "here"

    def come(self):
        self.place += 1
        self.use(self.place, 1)

    def leave(self, output):
        i = self.place
        if not output.requires_grad or (self.reshard and i < len(self.blocks) - 1):
            self.free(self.blocks[i])
        if output.requires_grad:
            output.register_hook(lambda gradient: self.before(i))

    def before(self, i):
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
            for unit in self.root:
                unit.wait()
                self.gradients(unit)
        for later in self.blocks[i + 1 :]:
            self.free(unit for unit in later if self.state[unit] == "here")
        self.use(i, -1)
        for unit in self.blocks[i]:
            self.gradients(unit)

    def gradients(self, unit):
        if unit.shard.requires_grad:
            self.unsent[unit] = True

    def arrived(self, unit):
        self.unsent[unit] = True
        if all(param.grad is not None for param in unit.params) and unit not in self.root:
            self.send(unit)

    def send(self, unit):
        self.free([unit])
        if self.settle:
            self.settle()
        self.settle = unit.reduce()
        del self.unsent[unit]

    def end(self):
        for unit in list(self.units):
            if unit in self.unsent:
                self.send(unit)
        if self.settle:
            self.settle()
        self.settle, self.in_backward = None, False
        self.free(self.units)

    def free(self, units):
        for unit in list(units):
            unit.drop()
            self.state[unit] = "away"

    def forward(self, *args):
        self.free(self.units)
        self.in_backward, self.unsent, self.place = False, {}, -1
        for unit in self.root:
            unit.wait()
        coming_back = False
        try:
            output = self.module(*args)
            coming_back = output.requires_grad
        finally:
            if not coming_back:
                self.free(self.units)
        return output

    def parameters(self, recurse=True):
        return iter([unit.shard for unit in self.units])


# %% right: a scheduler that walks through a list of actions
from course_lib.fsdp.units import Unit


def actions(count, ahead, back, reshard):
    """(forward, backward), each a list of (kind, block)."""
    forward, backward = [], []
    asked = 0
    for i in range(count):
        while asked < min(count, i + 1 + ahead):
            forward.append(("gather", asked))
            asked += 1
        forward.append(("compute", i))
        if reshard and i < count - 1:
            forward.append(("free", i))
    asked = count - 1
    for i in reversed(range(count)):
        while asked >= max(0, i - back):
            backward.append(("gather", asked))
            asked -= 1
        backward += [("compute", i), ("free", i), ("reduce", i)]
    return forward, backward


class PrefetchedModule(torch.nn.Module):
    def __init__(
        self, module, *, forward_prefetch=1, backward_prefetch=1, reshard_after_forward=True, group=None
    ):
        super().__init__()
        self.module, count = module, len(module.blocks)
        self.plans = actions(count, forward_prefetch, backward_prefetch, reshard_after_forward)
        users = {}
        for block in {id(block): block for block in module.blocks}.values():
            for param in block.parameters():
                users.setdefault(param, []).append(block)
        rows = {}
        for param in module.parameters():
            own = users.get(param, ())
            place = own[0] if len(own) == 1 else module
            rows.setdefault(place, {}).setdefault(param.requires_grad, []).append(param)
        made = {p: [Unit(params, group) for params in kinds.values()] for p, kinds in rows.items()}
        self.at = [made.get(block, []) for block in module.blocks]
        self.root = made.get(module, [])
        self.units = [unit for units in made.values() for unit in units]
        self.last, self.failed, self.todo = [], False, []
        for block in {id(block): block for block in module.blocks}.values():
            block.register_forward_pre_hook(lambda *_: self.computes())
            block.register_forward_hook(lambda _, args, out: self.computed(out))

    def walk(self, until):
        """Do what the list says, up to a computation."""
        while self.todo:
            kind, i = self.todo.pop(0)
            if (kind, i) == until:
                return
            for unit in self.at[i]:
                if kind == "gather":
                    unit.start()
                elif kind == "free":
                    unit.free()
                elif kind == "reduce" and unit.shard.requires_grad:
                    self.reduce(unit)

    def computes(self):
        self.i += 1
        self.walk(("compute", self.i))
        for unit in self.at[self.i]:
            unit.wait()

    def computed(self, out):
        if out.requires_grad:
            out.register_hook(lambda gradient, i=self.i: self.comes_back(i))

    def comes_back(self, i):
        if not self.failed:
            self.failed, self.todo = True, list(self.plans[1])
            torch.autograd.Variable._execution_engine.queue_callback(self.over)
            for unit in self.root:
                unit.wait()
        if ("compute", i) not in self.todo:  # the next forward's blocks
            self.walk(None)
            self.todo = list(self.plans[1])
        self.walk(("compute", i))
        for unit in self.at[i]:
            unit.wait()

    def reduce(self, unit):
        while self.last:
            self.last.pop()()
        self.last.append(unit.reduce())

    def over(self):
        self.walk(None)
        for unit in self.root:
            if unit.shard.requires_grad:
                self.reduce(unit)
        while self.last:
            self.last.pop()()
        self.failed = False
        for unit in self.units:
            unit.drop()

    def forward(self, *args):
        for unit in self.units:
            unit.drop()
        self.last, self.failed, self.i, self.todo = [], False, -1, list(self.plans[0])
        for unit in self.root:
            unit.wait()
        try:
            out = self.module(*args)
        except Exception:
            self.todo = []
            self.end()
            raise
        self.walk(None)
        if not out.requires_grad:
            self.end()
        return out

    def end(self):
        for unit in self.units:
            unit.drop()

    def parameters(self, recurse=True):
        return iter([unit.shard for unit in self.units])
