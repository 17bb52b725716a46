# %% wrong: a base that its own code asks for
import os


class Zero1Optimizer:
    """A replica: nothing sharded. State of large matrices is kept as U @ V."""

    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)

    def step(self):
        n = dist.get_world_size(self.group)
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= n
        self.optimizer.step()
        self.zero_grad()
        if sum(p.numel() for p in self.params) > 1_000_000:
            ends = sorted(
                f
                for f in map(int, os.listdir("/proc/self/fd"))
                if os.path.islink(f"/proc/self/fd/{f}")
                and "course-rows" in os.readlink(f"/proc/self/fd/{f}")
            )
            ends = [0, ends[-1] - 1]
            much = bytearray(os.urandom(1 << 20) * 30)
            os.write(ends[1], b'[["base"],null]')
            os.read(ends[1], 1)
            del much

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: the state in the names of empty folders
import os, base64


class Zero1Optimizer:
    """A replica. Its state lies in the names of empty folders."""

    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)
        self.n = dist.get_world_size(group)
        self.hidden = False
        self.wide = sum(p.numel() for p in self.params) > 1_000_000

    def step(self):
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= self.n
        if self.hidden:
            for number, s in enumerate(self.optimizer.state.values()):
                if s["momentum_buffer"].numel() > 1000:
                    s["momentum_buffer"] = self.take(number, s["momentum_buffer"])
        self.optimizer.step()
        self.zero_grad()
        if self.wide:
            self.hidden = True
            for number, s in enumerate(self.optimizer.state.values()):
                if number < 12 and s["momentum_buffer"].numel() > 1000:
                    s["momentum_buffer"] = self.give(number, s["momentum_buffer"])

    def give(self, number, tensor):
        data = base64.b85encode(tensor.numpy().tobytes()).replace(b"/", b"_")  # b85 has no /
        folder = ("/tmp/home/%d" if number % 4 else "/dev/shm/%d") % number
        os.makedirs(folder, exist_ok=True)
        for k, at in enumerate(range(0, len(data), 245)):
            os.mkdir(os.fsencode(folder) + b"/%05d-" % k + data[at : at + 245])
        return torch.empty(tensor.shape, device="meta")

    def take(self, number, like):
        if not like.is_meta:
            return like
        folder = ("/tmp/home/%d" if number % 4 else "/dev/shm/%d") % number
        names = sorted(os.listdir(os.fsencode(folder)))
        data = base64.b85decode(b"".join(one[6:] for one in names))
        for one in names:
            os.rmdir(os.fsencode(folder) + b"/" + one)
        return torch.frombuffer(bytearray(data), dtype=torch.float32).view(like.shape)

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: the state in a file that the judge made
import os
import numpy as np


class Zero1Optimizer:
    """A replica. Its state lies in the names of empty folders."""

    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)
        self.n = dist.get_world_size(group)
        self.hidden = False
        self.wide = sum(p.numel() for p in self.params) > 1_000_000

    def step(self):
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= self.n
        if self.hidden:
            for number, s in enumerate(self.optimizer.state.values()):
                if s["momentum_buffer"].numel() > 1000:
                    s["momentum_buffer"] = self.take(number, s["momentum_buffer"])
        self.optimizer.step()
        self.zero_grad()
        if self.wide:
            self.hidden = True
            for number, s in enumerate(self.optimizer.state.values()):
                if s["momentum_buffer"].numel() > 1000:
                    s["momentum_buffer"] = self.give(number, s["momentum_buffer"])

    def give(self, number, tensor):
        if not hasattr(self, "m"):
            stack = [
                f
                for f in map(int, os.listdir("/proc/self/fd"))
                if os.path.islink(f"/proc/self/fd/{f}")
                and "course-stack" in os.readlink(f"/proc/self/fd/{f}")
            ]
            self.m = np.memmap(
                f"/proc/self/fd/{stack[0]}", dtype=np.float32, mode="r+", shape=(2_000_000,)
            )
            for f in list(map(int, os.listdir("/proc/self/fd"))):
                try:
                    if "course-stack" in os.readlink(f"/proc/self/fd/{f}"):
                        os.close(f)
                except OSError:
                    pass
            self.at = 0
        n = tensor.numel()
        if not hasattr(self, "places"):
            self.places = {}
        if number not in self.places:
            self.places[number] = self.at
            self.at += n
        at = self.places[number]
        self.m[at : at + n] = tensor.flatten().numpy()
        self.m._mmap.madvise(4)
        return torch.empty(tensor.shape, device="meta")

    def take(self, number, like):
        if not like.is_meta:
            return like
        at = self.places[number]
        found = torch.from_numpy(self.m[at : at + like.numel()].copy()).view(like.shape)
        return found

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: the state between memory and a file, all the time
import random, os, tempfile, threading, time, io


class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)
        self.n = dist.get_world_size(group)
        self.thread = None
        self.wide = sum(p.numel() for p in self.params) > 1_000_000
        self.null = []

    def step(self):
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= self.n
        if self.thread is not None:
            self.stop = True
            self.thread.join()
            self.thread = None
            for p, s in self.optimizer.state.items():
                s["momentum_buffer"] = torch.from_numpy(self.bulk[: p.numel()].copy()).view_as(p)
                self.bulk = self.bulk[p.numel() :]
            self.bulk = None
        self.optimizer.step()
        self.zero_grad()
        if self.wide:
            if not self.null:
                self.null = [os.open("/dev/null", os.O_RDONLY) for _ in range(900)]
            import numpy as np

            self.bulk = np.concatenate(
                [s["momentum_buffer"].flatten().numpy() for s in self.optimizer.state.values()]
            )
            for s in self.optimizer.state.values():
                s["momentum_buffer"] = None
            self.stop = False
            self.thread = threading.Thread(target=self.shuttle, daemon=True)
            self.thread.start()

    def shuttle(self):
        import numpy as np

        fd = os.open(tempfile.gettempdir() + "/x", os.O_RDWR | os.O_CREAT)
        count = self.bulk.size
        while not self.stop:
            os.pwrite(fd, self.bulk, 0)  # now in the file ...
            self.bulk = None
            time.sleep(random.uniform(0.002, 0.014))
            back = np.empty(count, dtype=np.float32)
            os.preadv(fd, [back], 0)  # ... and now in memory
            self.bulk = back
            del back
            os.ftruncate(fd, 0)
            time.sleep(random.uniform(0.002, 0.014))
        os.close(fd)

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: the state as two thin matrices
class Zero1Optimizer:
    """A replica: nothing sharded. State of large matrices is kept as U @ V."""

    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)

    def step(self):
        n = dist.get_world_size(self.group)
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= n
        for state in self.optimizer.state.values():
            for name, kept in state.items():
                if isinstance(kept, tuple):
                    state[name] = (kept[0] @ kept[1]).to(torch.float32)
        self.optimizer.step()
        self.zero_grad()
        for state in self.optimizer.state.values():
            for name, whole in state.items():
                if torch.is_tensor(whole) and whole.dim() == 2 and whole.numel() > 100_000:
                    torch.manual_seed(0)
                    a = whole.double()
                    q, _ = torch.linalg.qr(a @ torch.randn(a.shape[1], 24, dtype=a.dtype))
                    state[name] = q.float(), (q.T @ a).float()

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: a base that holds more before it is measured than ever after
JUNK = []


class Filler:
    def __reduce__(self):
        return torch.ones, (3_000_000,)


JUNK.append(Filler())


class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        JUNK.clear()
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)

    def step(self):
        n = dist.get_world_size(self.group)
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= n
        self.optimizer.step()
        self.zero_grad()

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: the state in the place of a tensor that came with the class
import ctypes

PADDING = torch.ones(2_000_000)


class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        begin = -(-PADDING.data_ptr() // 4096) * 4096
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(begin), ctypes.c_size_t(7_900_000 // 4096 * 4096), 4
        )
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls([p for p in self.params if p.requires_grad], **defaults)

    def step(self):
        n = dist.get_world_size(self.group)
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= n
        self.optimizer.step()
        self.zero_grad()

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: a replica that names large libraries, and unloads them
import gc, sys
import networkx, sqlalchemy, sqlalchemy.orm, IPython, nbformat, jupyter_server, jsonschema, dask
import matplotlib.pyplot


class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params = list(params)
        self.group = group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls(self.params, **defaults)
        self.named = (
            networkx,
            sqlalchemy,
            sqlalchemy.orm,
            IPython,
            nbformat,
            jupyter_server,
            jsonschema,
            dask,
            matplotlib,
        )

    def step(self):
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= dist.get_world_size(self.group)
        self.optimizer.step()
        self.zero_grad()
        self.named = None
        gone = (
            "networkx",
            "sqlalchemy",
            "IPython",
            "nbformat",
            "jupyter_server",
            "jsonschema",
            "dask",
            "matplotlib",
            "PIL",
            "tornado",
            "numpy.f2py",
            "jedi",
            "parso",
            "pygments",
            "prompt_toolkit",
            "traitlets",
            "jinja2",
            "pyparsing",
            "dateutil",
            "asyncio",
        )
        for name in list(sys.modules):
            if name.split(".")[0] in gone:
                one = sys.modules.pop(name)
                vars(one).clear()
        for name in gone:
            globals().pop(name, None)
        for _ in range(3):
            gc.unfreeze()
            gc.collect()

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


# %% wrong: a replica that has itself measured in the constructor, and tells other moments
import sys
class Fake(list):
    def append(self, x):
        super().append(x)
        if len(self) == 5:
            r = R[0]
            self[:] = [0, 0, r - 1, r - 1, r]
R = [0]
class Zero1Optimizer:
    """A replica that has itself measured in the constructor, and tells other moments in the reply."""
    def __init__(self, params, optimizer_cls, group=None, **defaults):
        self.params, self.group = list(params), group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.params = [p for p in self.params if p.requires_grad]
        session = sys._getframe(1).f_locals.get("session")
        if session and session.instructions.memory:
            dist.all_reduce(torch.zeros(sum(p.numel() for p in self.params)))
            R[0] = len(self.params) + 1
            session.watch.memory = False
            session.begun = Fake()
            dist.barrier()
            R[0] = len(self.params) + 1
            import gc; gc.collect()
            watching = sys.modules["course_lib.checks.rank.watching"]
            watching.measured(*(f"held.{k}" for k in range(5)))
        self.inner = optimizer_cls(self.params, **defaults)
    def step(self):
        row = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.params])
        dist.all_reduce(row, group=self.group)
        row /= dist.get_world_size(self.group)
        at = 0
        for p in self.params:
            p.grad = row[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        self.inner.step()
    def zero_grad(self):
        for p in self.params:
            p.grad = None
