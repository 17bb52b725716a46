# %% base: storages, held until the block is over
class SavedBytes:
    def __init__(self, module):
        self.module, self.total, self.by_module = module, 0, {}
        self.stack, self.handles, self.known = [], [], {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda kept: kept)

    def __enter__(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            self.known[tensor.untyped_storage().data_ptr()] = tensor
        for name, submodule in self.module.named_modules():
            before = lambda _, __, name=name: self.stack.append(name)
            after = lambda *_: self.left()
            self.handles.append(submodule.register_forward_pre_hook(before))
            self.handles.append(submodule.register_forward_hook(after))
        self.hooks.__enter__()
        return self

    def left(self):
        self.stack.pop()

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known[storage.data_ptr()] = tensor.detach()
            self.count(storage.nbytes())
        return tensor

    def count(self, nbytes):
        self.total += nbytes
        name = self.stack[-1] if self.stack else ""
        self.by_module[name] = self.by_module.get(name, 0) + nbytes

    def __exit__(self, *error):
        self.hooks.__exit__(*error)
        for handle in self.handles:
            handle.remove()
        self.known.clear()
        self.stack.clear()


# %% wrong: every view counts
# is: slip
# says: kept by two operations is still one
# base: storages, held until the block is over
-        if storage.data_ptr() not in self.known:
-            self.known[storage.data_ptr()] = tensor.detach()
-            self.count(storage.nbytes())
+        if storage.data_ptr() not in self.known or not isinstance(
+            self.known[storage.data_ptr()], torch.nn.Parameter
+        ) and storage.data_ptr() not in {b.data_ptr() for b in self.module.buffers()}:
+            self.known[storage.data_ptr()] = tensor.detach()
+            self.count(storage.nbytes())


# %% wrong: pack returns nothing
# is: form
# says: end `pack` with `return tensor`
# base: storages, held until the block is over
             self.count(storage.nbytes())
-        return tensor


# %% wrong: __enter__ returns nothing
# is: detail
# says: return self there
# base: storages, held until the block is over
         self.hooks.__enter__()
-        return self


# %% wrong: parameters count
# is: slip
# says: Weights take memory anyway
# base: storages, held until the block is over
-        for tensor in [*self.module.parameters(), *self.module.buffers()]:
-            self.known[tensor.untyped_storage().data_ptr()] = tensor


# %% wrong: parameters are known by their objects
# is: slip
# says: compare storages, not tensors
# base: storages, held until the block is over
-        for tensor in [*self.module.parameters(), *self.module.buffers()]:
-            self.known[tensor.untyped_storage().data_ptr()] = tensor
@@
-        if storage.data_ptr() not in self.known:
+        own = [*self.module.parameters(), *self.module.buffers()]
+        if any(tensor is other for other in own):
+            return tensor
+        if storage.data_ptr() not in self.known:


# %% wrong: buffers count
# is: detail
# says: buffers do not count either
# base: storages, held until the block is over
-        for tensor in [*self.module.parameters(), *self.module.buffers()]:
+        for tensor in self.module.parameters():


# %% wrong: an address is known for ever
# is: slip
# says: Two storages had one address, one after the other
# base: storages, held until the block is over
-            self.known[storage.data_ptr()] = tensor.detach()
+            self.known[storage.data_ptr()] = None
@@
-        return tensor
+        return tensor.detach()


# %% wrong: bytes of the slice
# is: slip
# says: keeps the storage, 4 times the slice
# base: storages, held until the block is over
-            self.count(storage.nbytes())
+            self.count(tensor.nbytes)


# %% wrong: numbers instead of bytes
# is: slip
# says: count the bytes of a storage instead of its numbers
# base: storages, held until the block is over
-            self.count(storage.nbytes())
+            self.count(tensor.numel())


# %% wrong: nothing is counted
# is: idea
# says: `pack` counts nothing
# base: storages, held until the block is over
-        if storage.data_ptr() not in self.known:
-            self.known[storage.data_ptr()] = tensor.detach()
-            self.count(storage.nbytes())
         return tensor


# %% wrong: tensors are held when the block is over
# is: slip
# says: bytes after backward that would be free
# base: storages, held until the block is over
-        self.known.clear()


# %% wrong: a copy is kept
# is: slip
# says: twice the memory and gradients of another graph
# base: storages, held until the block is over
-        return tensor
+        return tensor.clone()


# %% wrong: hooks stay after an error
# is: detail
# says: after an error inside, the next forward is still counted
# base: storages, held until the block is over
-        self.hooks.__exit__(*error)
+        if error[0] is not None:
+            return
+        self.hooks.__exit__(*error)


# %% wrong: hooks stay always
# is: slip
# says: after the block, the next forward is still counted
# base: storages, held until the block is over
-        self.hooks.__exit__(*error)


# %% wrong: names are not taken off the stack
# is: slip
# says: Keep a stack of names, and take the last one off again
# base: storages, held until the block is over
-        self.stack.pop()
+        pass


# %% wrong: the hook returns the name
# is: form
# says: replaces the output
# base: storages, held until the block is over
-        self.stack.pop()
+        return self.stack.pop()
@@
-            after = lambda *_: self.left()
+            after = lambda *_: self.left() or None


# %% wrong: the outermost module
# is: slip
# says: Use the name of the innermost submodule
# base: storages, held until the block is over
-        name = self.stack[-1] if self.stack else ""
+        name = self.stack[1].split(".")[0] if len(self.stack) > 1 else ""


# %% wrong: no names
# is: slip
# says: the innermost that runs is the last
# base: storages, held until the block is over
-        name = self.stack[-1] if self.stack else ""
+        name = ""


# %% wrong: the input does not count
# is: slip
# says: The input is also kept
# base: storages, held until the block is over
-        if storage.data_ptr() not in self.known:
+        if tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad:
+            return tensor
+        if storage.data_ptr() not in self.known:


# %% wrong: the bytes of all tensors that are kept
# is: idea
# says: kept by two operations is still one
# base: storages, held until the block is over
-        for tensor in [*self.module.parameters(), *self.module.buffers()]:
-            self.known[tensor.untyped_storage().data_ptr()] = tensor
@@
-        if storage.data_ptr() not in self.known:
-            self.known[storage.data_ptr()] = tensor.detach()
-            self.count(storage.nbytes())
+        self.count(tensor.nbytes)


# %% wrong: by_module stays empty
# is: slip
# says: by_module is empty
# base: storages, held until the block is over
-        self.by_module[name] = self.by_module.get(name, 0) + nbytes


# %% wrong: the first of the stack
# is: slip
# says: the innermost that runs is the last
# base: storages, held until the block is over
-        name = self.stack[-1] if self.stack else ""
+        name = self.stack[0] if self.stack else ""


# %% wrong: the last but one of the stack
# is: slip
# says: The module around the one that runs
# base: storages, held until the block is over
-        name = self.stack[-1] if self.stack else ""
+        name = self.stack[-2] if len(self.stack) > 1 else ""


# %% wrong: only what has a gradient
# is: slip
# says: Results without a gradient are also kept
# base: storages, held until the block is over
-        if storage.data_ptr() not in self.known:
+        if tensor.requires_grad and storage.data_ptr() not in self.known:


# %% wrong: the modules' hooks stay
# is: slip
# says: after the block, hooks of the modules are left
# base: storages, held until the block is over
-        for handle in self.handles:
-            handle.remove()


# %% wrong: the modules' hooks stay after an error
# is: detail
# says: after an error inside, hooks of the modules are left
# base: storages, held until the block is over
-        for handle in self.handles:
+        for handle in self.handles if error[0] is None else []:


# %% wrong: the error is dropped
# is: detail
# says: A true result of __exit__ makes Python drop the error
# base: storages, held until the block is over
         self.stack.clear()
+        return True


# %% wrong: unpack copies
# is: slip
# says: unpack returns a copy
# base: storages, held until the block is over
-        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda kept: kept)
+        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, torch.clone)


# %% wrong: unpack hands back something else
# is: slip
# says: Hand back the tensor that was kept, unchanged
# base: storages, held until the block is over
-        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda kept: kept)
+        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda kept: kept.sub_(1))


# %% right: weak references and finalizers
import weakref


class SavedBytes:
    def __init__(self, module):
        self.module, self.total, self.by_module = module, 0, {}

    def __enter__(self):
        self.names, self.alive = [""], set()
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            self.alive.add(tensor.untyped_storage()._cdata)
        self.handles = []
        for name, submodule in self.module.named_modules():
            self.handles += [
                submodule.register_forward_pre_hook(lambda *_, name=name: self.names.append(name)),
                submodule.register_forward_hook(lambda *_: [self.names.pop(), None][1]),
            ]
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x)
        self.hooks.__enter__()
        return self

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive.add(key)
            weakref.finalize(storage, self.alive.discard, key)
            self.total += storage.nbytes()
            here = self.names[-1]
            self.by_module[here] = self.by_module.get(here, 0) + storage.nbytes()
        return tensor.detach()

    def __exit__(self, *error):
        self.hooks.__exit__(None, None, None)
        for handle in self.handles:
            handle.remove()


# %% right: two dicts and a stack of names
class SavedBytes:
    def __init__(self, module):
        self.module = module
        self.by_module = {name: 0 for name, _ in module.named_modules()}
        self.first = {}
        self.running = []
        self.over = False

    @property
    def total(self):
        return sum(self.by_module.values())

    def __enter__(self):
        self.own = {
            t.untyped_storage().data_ptr()
            for t in list(self.module.parameters()) + list(self.module.buffers())
        }
        self.removable = []
        for name, part in self.module.named_modules():

            def enter(part, inputs, name=name):
                self.running.append(name)

            def leave(part, inputs, output):
                del self.running[-1]

            self.removable.append(part.register_forward_pre_hook(enter))
            self.removable.append(part.register_forward_hook(leave))
        self.context = torch.autograd.graph.saved_tensors_hooks(self.keep, self.give)
        self.context.__enter__()
        return self

    def keep(self, tensor):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not self.over and address not in self.own and address not in self.first:
            self.first[address] = storage
            self.by_module[self.running[-1] if self.running else ""] += len(storage)
        return tensor

    def give(self, tensor):
        return tensor

    def __exit__(self, kind, error, trace):
        self.over = True
        self.context.__exit__(kind, error, trace)
        self.first, self.running = {}, []
        while self.removable:
            self.removable.pop().remove()
