# %% wrong: the file is a copy, the state stays
# says: in the place of the old one
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
                            mapped(value, folder)
            return loss

    return Offloaded


# %% wrong: states are moved before the step, when there are none yet
# says: in the first step
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
            for state in self.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        if value.untyped_storage().filename is None:
                            state[name] = mapped(value, folder)
            return super().step(closure)

    return Offloaded


# %% wrong: mapped privately
# says: shared
import os
import tempfile


def mapped(value, folder):
    descriptor, path = tempfile.mkstemp(dir=folder)
    os.truncate(descriptor, value.nbytes)
    os.close(descriptor)
    file = torch.from_file(path, shared=False, size=value.numel(), dtype=value.dtype)
    return file.view(value.shape).copy_(value)


def offloaded(optimizer_cls, folder):
    class Offloaded(optimizer_cls):
        def step(self, closure=None):
            loss = super().step(closure)
            for state in self.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        if value.numel():
                            state[name] = mapped(value, folder)
            return loss

    return Offloaded


# %% wrong: one file for each name, whatever the parameter
# says: no other
import os
import tempfile


def mapped(value, folder, name):
    path = os.path.join(folder, name)
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
                            state[name] = mapped(value, folder, name)
            return loss

    return Offloaded


# %% wrong: two optimizers write the same files
# says: no other optimizer|has
import os
import tempfile


def mapped(value, folder, name):
    path = os.path.join(folder, name)
    file = torch.from_file(path, shared=True, size=value.numel(), dtype=value.dtype)
    return file.view(value.shape).copy_(value)


def offloaded(optimizer_cls, folder):
    class Offloaded(optimizer_cls):
        def step(self, closure=None):
            loss = super().step(closure)
            for number, state in enumerate(self.state.values()):
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        if value.untyped_storage().filename is None:
                            state[name] = mapped(value, folder, f"{number}-{name}")
            return loss

    return Offloaded


# %% wrong: the file begins with zeros
# says: copy it into its file
import os
import tempfile


def mapped(value, folder):
    descriptor, path = tempfile.mkstemp(dir=folder)
    os.close(descriptor)
    file = torch.from_file(path, shared=True, size=value.numel(), dtype=value.dtype)
    return file.view(value.shape)


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


# %% wrong: kept in 16 bits
# says: its own dtype|are not in
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
            for state in self.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        value.copy_(value.bfloat16())
            return loss

    return Offloaded


# %% wrong: the old states are remembered
# says: Let go of the tensors
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
                            self.__dict__.setdefault("old", []).append(value)
                            state[name] = mapped(value, folder)
            return loss

    return Offloaded


# %% wrong: states are thrown away after each step
# says: under their names|of \d+
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
            self.state.clear()
            return loss

    return Offloaded


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
