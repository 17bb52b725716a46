"""A rank's memory is measured from outside, and its messages are counted there.

A replica that would pass for ZeRO-1 puts its optimizer's state where its own pages do not show it, or sets
out to change what is measured; a built-in collective would pass for messages. None of it earns the points.
"""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.sample.mutants import Mutant, read_mutants
from course_lib.checks.judge import judge
from course_lib.checks.judge.case import Exercise
from course_lib.checks.judge.find import find
from course_lib.runtime import pools, wire
from course_lib.runtime.sandbox import probe, spec
from course_lib.runtime.sandbox.spec import Sandbox
from tests.checks.test_witness import typed

FOUND = [(file, cell) for file in sorted((Path(__file__).parents[1] / "outside").glob("*/*.py"))
         for cell in read_mutants(file)]  # fmt: skip
# These import for a second in every rank of every case. Without COURSE_ALL_TESTS only the cases that measure
# memory run.
SLOW = {"a replica that names large libraries, and unloads them"}
ZERO, RING = "04_zero/zero1_optimizer", "02_collectives/ring_all_reduce"

REPLICA = """
import ctypes, gc, importlib, io, mmap, os, pickle, socket, subprocess, sys, tempfile


def libc():
    found = ctypes.CDLL(None, use_errno=True)
    found.shmat.restype = ctypes.c_void_p
    return found


class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        self.params = list(params)
        self.group = group
        root = dist.get_global_rank(group, 0) if group else 0
        for p in self.params:
            dist.broadcast(p.data, root, group)
        self.optimizer = optimizer_cls(self.params, **defaults)
        self.kept = None
        begin()

    def step(self):
        for p in self.params:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= dist.get_world_size(self.group)
        if self.kept is not None:
            self.optimizer.load_state_dict(torch.load(io.BytesIO(take(self.kept))))
        self.optimizer.step()
        self.zero_grad()
        data = io.BytesIO()
        torch.save(self.optimizer.state_dict(), data)
        data = data.getvalue()
        self.optimizer.state.clear()
        self.kept = give(data)

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


def begin():
    pass


def give(data):
    return data


def take(kept):
    return kept


"""

WAYS = {
    "its own pages": "",
    "pipes": """
        def give(data):
            kept = []
            for at in range(0, len(data), 1 << 16):
                kept.append(os.pipe())
                os.write(kept[-1][1], data[at : at + (1 << 16)])
            return kept

        def take(kept):
            return b"".join(os.read(end, 1 << 16) for end, _ in kept)
        """,
    "a forked child": """
        def give(data):
            here, there = socket.socketpair()
            if os.fork() == 0:
                here.recv(1)
                there.sendall(data)
                os._exit(0)
            return here

        def take(kept):
            kept.send(b".")
            return b"".join(iter(lambda: kept.recv(1 << 20), b""))
        """,
    "another program": """
        def give(data):
            kept = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            kept.stdin.write(data)
            return kept

        def take(kept):
            kept.stdin.close()
            return kept.stdout.read()
        """,
    "a segment of shared memory": """
        def give(data):
            number = libc().shmget(0, len(data), 0o1600)
            if number < 0:
                raise OSError(ctypes.get_errno(), "shmget")
            at = libc().shmat(number, None, 0)
            ctypes.memmove(at, data, len(data))
            libc().shmdt(ctypes.c_void_p(at))
            return number, len(data)

        def take(kept):
            return ctypes.string_at(libc().shmat(kept[0], None, 0), kept[1])
        """,
    "secret memory": """
        def give(data):
            fd = libc().syscall(447, 0)
            if fd < 0:
                raise OSError(ctypes.get_errno(), "memfd_secret")
            os.ftruncate(fd, len(data))
            with mmap.mmap(fd, len(data)) as shared:
                shared[:] = data
            return fd, len(data)

        def take(kept):
            with mmap.mmap(*kept) as shared:
                return shared[:]
        """,
    "a file in memory": """
        def give(data):
            fd = os.memfd_create("kept")
            os.write(fd, data)
            return fd

        def take(kept):
            return os.pread(kept, 1 << 30, 0)
        """,
    "shared pages that were given up": """
        def give(data):
            kept = mmap.mmap(-1, len(data))
            kept[:] = data
            kept.madvise(mmap.MADV_DONTNEED)
            return kept

        def take(kept):
            return kept[:]
        """,
    "pages of a device that were given up": """
        def give(data):
            with open("/dev/zero", "r+b") as zero:
                kept = mmap.mmap(zero.fileno(), len(data))
            kept[:] = data
            kept.madvise(mmap.MADV_DONTNEED)
            return kept

        def take(kept):
            return kept[:]
        """,
    "all of its moments at the first": """
        def begin():
            from course_lib.checks.rank import watching
            if sum(p.numel() for p in sys._getframe(1).f_locals["self"].params) > 1_000_000:
                for place in range(5):
                    watching._reach(f"held.{place}", "highest")
                watching._reach = lambda *_, **__: None
        """,
    "a file of its own folder": """
        def give(data):
            kept = tempfile.TemporaryFile(dir="/tmp")
            kept.write(data)
            return kept

        def take(kept):
            kept.seek(0)
            return kept.read()
        """,
    "what the modules say": """
        def begin():
            for module in list(sys.modules.values()):
                for name in ("resident", "held", "held_here", "measured", "reach", "_reach", "in_files"):
                    if name in vars(module) and vars(module)["__name__"].startswith("course_lib"):
                        vars(module)[name] = lambda *_, **__: 0
        """,
    "what imports give": """
        def begin():
            for name in ("runtime.moments", "runtime.held", "checks.rank.watching"):
                try:
                    module = importlib.import_module("course_lib." + name)
                except ImportError:
                    continue
                for name in ("measured", "reach", "_reach", "held", "held_with_children"):
                    setattr(module, name, lambda *_, **__: 0)
                if hasattr(module, "Watch"):
                    module.Watch.look = module.Watch.held = lambda *_, **__: None
        """,
}


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    strongest = probe.probe(pools.preloaded())
    if not strongest.has(spec.NETWORK, spec.CALLS, spec.APART):
        pytest.skip(
            "this machine does not allow to keep ranks apart, or has no filters of system calls"
        )
    return strongest


def graded(exercise: str, text: str, sandbox: Sandbox, seed: int) -> dict:
    cell = Mutant(exercise, False, "the cheat", text)
    made = typed(cell)
    objects = tuple(made[name] for name in find(exercise).objects)
    return judge.judge(exercise, wire.dumps(objects), seed, "hidden", sandbox=sandbox)


@pytest.mark.parametrize("way", WAYS)
def test_a_replica_is_none_the_smaller_for_what_it_hides(
    way: str, sandbox: Sandbox, seed: int
) -> None:
    text = REPLICA + textwrap.dedent(WAYS[way])
    report = graded(ZERO, text, sandbox, seed)
    assert report["score"] <= 0.5, report
    said = " ".join(sentence for line in report["lines"] for sentence in line["sentences"])
    reasons = ("holding less", "must not start processes", "raised FileNotFoundError")
    assert any(reason in said for reason in reasons), said


@pytest.mark.drawn(0.4)
@pytest.mark.parametrize(("file", "cell"), FOUND, ids=lambda one: getattr(one, "title", None))
def test_what_a_hostile_reader_found_earns_no_more_than_is_due(
    file: Path, cell: Mutant, sandbox: Sandbox, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authors of these knew the code, and used no word that is flagged for a person to look at."""
    exercise = f"{file.parent.name}/{file.stem}"
    if cell.title in SLOW and not os.environ.get("COURSE_ALL_TESTS"):
        monkeypatch.setattr(judge, "find", lambda name: where_measured(find(name)))
    report = graded(exercise, cell.text, sandbox, seed)
    assert report["score"] <= (0.0 if exercise == RING else 0.5), report


def where_measured(exercise: Exercise) -> Exercise:
    return replace(
        exercise, cases=lambda draw: (one for one in exercise.cases(draw) if one.moments)
    )


# In all of these gloo's all-reduce brings the values, on the connections and with the bytes of a ring.
SUMMED = """
from torch.distributed import ProcessGroup, Work


def summed(tensor, group):
    whole = tensor.contiguous()
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce([whole]).wait()
    tensor.copy_(whole)


def for_show(tensor, group, make=lambda part: part):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    right, left = (dist.get_global_rank(group or dist.group.WORLD, r % n) for r in (rank + 1, rank - 1))
    parts = tensor.new_zeros(-(-tensor.numel() // n) * n).chunk(n)
    for step in range(2 * (n - 1)):
        handle = dist.isend(make(parts[0].clone()), right, group=group)
        dist.recv(make(parts[1].clone()), left, group=group)
        handle.wait()
"""
FORGED = {
    "rows by the group's own method": """
        def ring_all_reduce(tensor, group=None):
            world = group or dist.group.WORLD
            part, n = tensor.flatten()[: -(-tensor.numel() // world.size())], world.size()
            for _ in range(2 * (n - 1)):
                world.record("send", Work, [part], part.nbytes, (world.rank() + 1) % n)
                world.record("recv", Work, [part], part.nbytes, (world.rank() - 1) % n)
            summed(tensor, group)
        """,
    "messages that PyTorch's class does not send": """
        def ring_all_reduce(tensor, group=None):
            class Done(Work):
                def wait(self, timeout=None):
                    return True

            kept = ProcessGroup.send, ProcessGroup.recv
            ProcessGroup.send = ProcessGroup.recv = lambda *_: Done()
            try:
                for_show(tensor, group)
            finally:
                ProcessGroup.send, ProcessGroup.recv = kept
            summed(tensor, group)
        """,
    "messages that say of themselves that they are long": """
        class Long(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                if getattr(function, "__name__", "") in ("numel", "nelement"):
                    return args[0].says
                return super().__torch_function__(function, types, args, kwargs or {})

        def ring_all_reduce(tensor, group=None):
            def make(part):
                empty = part[:0].clone().as_subclass(Long)
                empty.says = len(part)
                return empty

            for_show(tensor, group, make)
            summed(tensor, group)
        """,
    "messages for show": """
        def ring_all_reduce(tensor, group=None):
            for_show(tensor, group)
            summed(tensor, group)
        """,
}


@pytest.mark.parametrize("way", FORGED)
def test_a_built_in_collective_is_no_ring(way: str, sandbox: Sandbox, seed: int) -> None:
    report = graded(RING, SUMMED + textwrap.dedent(FORGED[way]), sandbox, seed)
    assert report["score"] == 0.0, report


def test_modules_of_ours_are_found_without_a_look_at_all_names() -> None:
    import course_lib.data.text  # noqa: F401  (perhaps after `own_work`)
    from course_lib.checks.rank.own_work import our_modules

    names = [name for name in sys.modules if name.startswith("course_lib.")]
    assert sorted(our_modules()) == sorted(names)
