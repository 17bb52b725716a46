# %% wrong: the file is a copy, the state stays
# is: idea
# says: Replace the old tensor
# base: files of their own, looked for by the storage
-                            state[name] = mapped(value, folder)
+                            mapped(value, folder)


# %% wrong: states are moved before the step, when there are none yet
# is: form
# says: in the first step
# base: files of their own, looked for by the storage
-            loss = super().step(closure)
@@
-            return loss
+            return super().step(closure)


# %% wrong: mapped privately
# is: idea
# says: shared
# base: files of their own, looked for by the storage
     descriptor, path = tempfile.mkstemp(dir=folder)
+    os.truncate(descriptor, value.nbytes)
@@
-    file = torch.from_file(path, shared=True, size=value.numel(), dtype=value.dtype)
+    file = torch.from_file(path, shared=False, size=value.numel(), dtype=value.dtype)
@@
-                        if value.untyped_storage().filename is None:
+                        if value.numel():


# %% wrong: mapped privately, in an empty file
# is: form
# says: With shared=True, torch.from_file makes
# base: files of their own, looked for by the storage
-    file = torch.from_file(path, shared=True, size=value.numel(), dtype=value.dtype)
+    file = torch.from_file(path, shared=False, size=value.numel(), dtype=value.dtype)


# %% wrong: one file for each name, whatever the parameter
# is: slip
# says: no other
# base: files of their own, looked for by the storage
-def mapped(value, folder):
-    descriptor, path = tempfile.mkstemp(dir=folder)
-    os.close(descriptor)
+def mapped(value, folder, name):
+    path = os.path.join(folder, name)
@@
-                            state[name] = mapped(value, folder)
+                            state[name] = mapped(value, folder, name)


# %% wrong: two optimizers write the same files
# is: detail
# says: no other optimizer|has
# base: files of their own, looked for by the storage
-def mapped(value, folder):
-    descriptor, path = tempfile.mkstemp(dir=folder)
-    os.close(descriptor)
+def mapped(value, folder, name):
+    path = os.path.join(folder, name)
@@
-            for state in self.state.values():
+            for number, state in enumerate(self.state.values()):
@@
-                            state[name] = mapped(value, folder)
+                            state[name] = mapped(value, folder, f"{number}-{name}")


# %% wrong: the file begins with zeros
# is: slip
# says: copy it into its file
# base: files of their own, looked for by the storage
-    return file.view(value.shape).copy_(value)
+    return file.view(value.shape)


# %% wrong: kept in 16 bits
# is: form
# says: its own dtype|are not in
# base: files of their own, looked for by the storage
                             state[name] = mapped(value, folder)
+            for state in self.state.values():
+                for name, value in state.items():
+                    if isinstance(value, torch.Tensor) and value.dim():
+                        value.copy_(value.bfloat16())


# %% wrong: the old states are remembered
# is: slip
# says: Free the tensors that were
# base: files of their own, looked for by the storage
                         if value.untyped_storage().filename is None:
+                            self.__dict__.setdefault("old", []).append(value)


# %% wrong: states are thrown away after each step
# is: idea
# says: under their names|of \d+
# base: files of their own, looked for by the storage
                             state[name] = mapped(value, folder)
+            self.state.clear()


# %% right: files of their own, looked for by the storage
import os
import tempfile


def mapped(value, folder):
    descriptor, path = tempfile.mkstemp(dir=folder)
    os.close(descriptor)
    file = torch.from_file(path, shared=True, size=value.numel(), dtype=value.dtype)
    return file.view(value.shape).copy_(value)


def offloaded(optimizer_cls, folder):
    class Offloaded(optimizer_cls):
        def step(self, closure=None):
            loss = super().step(closure)
            for state in self.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        if value.untyped_storage().filename is None:
                            state[name] = mapped(value, folder)
            return loss

    return Offloaded


# %% right: NumPy's memmap, names unlinked
import os

import numpy


def offloaded(optimizer_cls, folder):
    """With NumPy's files, one for each optimizer, whose names are gone once they are mapped."""

    class InFiles(optimizer_cls):
        def step(self, closure=None):
            loss = super().step(closure)
            done = self.__dict__.setdefault("done", set())
            for number, state in enumerate(self.state.values()):
                waiting = [
                    n
                    for n, v in state.items()
                    if torch.is_tensor(v) and v.dim() and (number, n) not in done
                ]
                for name in waiting:
                    path = os.path.join(folder, f"{id(self)}-{number}-{name}")
                    array = numpy.memmap(
                        path, mode="w+", dtype=numpy.uint8, shape=state[name].nbytes
                    )
                    os.unlink(path)
                    moved = torch.from_numpy(array).view(state[name].dtype).view(state[name].shape)
                    moved.copy_(state[name])
                    state[name] = moved
                    done.add((number, name))
            return loss

    return InFiles
