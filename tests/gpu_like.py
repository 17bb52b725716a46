"""A device of the tests: a GPU that is pretended on the CPU, to find tensors that were left on the host.

In the ranks of a launch on "gpu-like" `course_lib.device()` is "cpu:7". Tensors made there are marked, what
is computed from marked tensors is marked, and their `.device` is "cpu:7". Operations and messages fail here
if they would fail on a GPU:

* an operation on a marked and an unmarked tensor, unless it copies, or the unmarked one is a number;
* a message or a collective of tensors of both kinds, or of the CPU alone, which gloo carries beside NCCL;
* a generator of the CPU for a tensor of the GPU;
* `numpy()` of a marked tensor.

Not imitated: streams, kernels that are missing, memory, and what C++ allocates by itself (FSDP's buffers).
Ranks are fresh for each launch, so that nothing of this is undone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.jit import _builtins
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

NAME = "gpu-like"
GPU = torch.device("cpu", 7)
# Operations that may take tensors of two devices: copies, and indexing by indices of the CPU.
MAY_MIX = {
    "copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "set_",
    "set_data", "resize_",
}  # fmt: skip
# Those whose target has to be a GPU's if an index is.
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# Messages of these functions are not judged. Ours ask the group's backend where its messages lie; PyTorch's
# pickled objects travel over gloo; C++ makes DistributedDataParallel's sizes, and copies of functional ones.
NOT_JUDGED = {
    "barrier", "same_random_state", "_share_state", "all_gather_object", "broadcast_object_list",
    "gather_object", "scatter_object_list", "_verify_param_shape_across_processes",
    "_distributed_broadcast_coalesced", "functional",
}  # fmt: skip

_marks: dict[int, weakref.ref] = {}  # storages on the pretended GPU
_generators: dict[int, torch.Generator] = {}  # and generators there
_within_cpp: list[bool] = []  # of functions of C++ that run, whether they work on the GPU
_storage = torch.Tensor.untyped_storage
_real_device = torch._C.TensorBase.device.__get__  # type: ignore[attr-defined]


class OtherDevice(RuntimeError):
    """Tensors of the host and of the pretended GPU met."""


def marked(tensor: torch.Tensor) -> bool:
    try:
        return _storage(tensor)._cdata in _marks
    except (RuntimeError, NotImplementedError):  # sparse, or without storage
        return False


def mark(tensor: torch.Tensor) -> None:
    try:
        storage = _storage(tensor)
    except (RuntimeError, NotImplementedError):
        return
    if storage._cdata not in _marks:
        _marks[storage._cdata] = weakref.ref(storage)
        weakref.finalize(storage, _marks.pop, storage._cdata, None).atexit = False


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Pretend(TorchDispatchMode):
    """Marks what is made on the GPU or computed there, and refuses what a GPU would refuse."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's hook: True would import the compiler at the first operation, 2 s in every rank."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented  # its work on its own tensors comes here again
        kwargs = kwargs or {}
        given, wanted = tensors_in((args, kwargs)), kwargs.get("device")
        on_gpu = [tensor for tensor in given if marked(tensor)]
        if func.namespace not in ("c10d", "_c10d_functional"):
            if func._overloadname != "out":  # into memory that C++ has allocated
                self.refuse(func._overloadpacket.__name__, str(func), given, on_gpu)
            generator = kwargs.get("generator")
            here = wanted == GPU or bool(on_gpu)
            if generator is not None and (generator._cdata in _generators) != here:
                theirs, its = ("CPU", "GPU") if here else ("GPU", "CPU")
                raise OtherDevice(f"{func}: a generator of the {theirs} for a tensor of the {its}")
        if func.namespace == "_c10d_functional":
            judge(str(func), given)
            result = functional(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if on_gpu and func is torch.ops.aten.new_zeros.default and by_the_engine():
            wanted = GPU  # of an index's backward: C++ asks for the device that it sees
        if not given and _within_cpp and _within_cpp[-1]:
            wanted = GPU  # such as attention's own mask
        if wanted == GPU or (wanted is None and on_gpu):
            for tensor in tensors_in(result):
                mark(tensor)
        return result

    def refuse(
        self, name: str, whole: str, given: list[torch.Tensor], on_gpu: list[torch.Tensor]
    ) -> None:
        on_cpu = [tensor for tensor in given if not (number(tensor) or marked(tensor))]
        if on_gpu and on_cpu and name not in MAY_MIX:
            raise OtherDevice(
                f"{whole}: Expected all tensors to be on the same device; the GPU's have the shapes "
                f"{shapes(on_gpu)}, the CPU's {shapes(on_cpu)}"
            )
        if name in INDEXING and on_gpu and not marked(given[0]):
            raise OtherDevice(f"{whole}: a tensor of the CPU is indexed with indices of the GPU")


def by_the_engine() -> bool:
    """Whether C++ runs a backward here, without a function in Python between."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_name in ("__torch_dispatch__", "__call__"):  # of a mode that counts
        frame = frame.f_back
    return frame.f_code.co_name == "_engine_run_backward"


def functional(func: Any, args: Any, kwargs: Any) -> Any:
    """It sends a copy that C++ makes, without a mark; its inputs were judged before."""
    return func(*args, **kwargs)


def judge(op: str, tensors: list[torch.Tensor]) -> None:
    on_gpu = [marked(tensor) for tensor in tensors]
    if not all(on_gpu) and not not_judged():
        kinds = "of both devices" if any(on_gpu) else "of the CPU"
        raise OtherDevice(f"{op}: tensors {kinds}, {shapes(tensors)}; NCCL carries those of GPUs")


def number(tensor: torch.Tensor) -> bool:
    """Whether it has no dimensions, or is expanded from such: C++ makes the first gradient of a backward."""
    return not tensor.dim() or (tensor.layout == torch.strided and not any(tensor.stride()))


def shapes(tensors: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


class Generator(torch.Generator):
    """One made for the GPU is remembered, and lives on; its own `device` says "cpu"."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made: Any = super().__new__(cls, device)  # type: ignore[call-arg]
        if torch.device(device) == GPU:
            _generators[made._cdata] = made
        return made


class Copy(torch.autograd.Function):
    """From the GPU to the host, and the gradient back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():
            return x.detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        back = gradient.clone()
        mark(back)
        return back


def imitate() -> None:
    """From now on this rank has a pretended GPU."""
    from course_lib.ledger.group import RecordingGroup
    from course_lib.mesh import mesh
    from course_lib.precision import scaler
    from course_lib.runtime import backend

    def device() -> Any:
        import torch

        return torch.device("cpu", 7)

    def device_of(params: Any, group: Any) -> Any:
        return params[0].device if params else torch.device("cpu", 7)

    # The code and not the name, which others have imported.
    backend.device.__code__ = device.__code__
    mesh._device.__code__ = device.__code__
    scaler.device_of.__code__ = device_of.__code__

    host, to, numpy = torch.Tensor.cpu, torch.Tensor.to, torch.Tensor.numpy

    def to_host(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return Copy.apply(self) if marked(self) else host(self, *args, **kwargs)  # type: ignore[return-value]

    def moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor):  # C++ sees the same device for both
            args = (args[0].device, args[0].dtype, *args[1:])
        target = kwargs.get("device", args[0] if args else None)
        if isinstance(target, str):
            target = torch.device(target)
        if not isinstance(target, torch.device) or not marked(self):
            return to(self, *args, **kwargs)
        stays: torch.Tensor = self if target == GPU else Copy.apply(self)  # type: ignore[assignment]
        dtypes = [
            part for part in (*args[1:], kwargs.get("dtype")) if isinstance(part, torch.dtype)
        ]
        return to(stays, dtypes[0]) if dtypes else stays

    def as_array(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if marked(self):
            raise OtherDevice("numpy() of a tensor of the GPU: take .cpu() first")
        return numpy(self, *args, **kwargs)

    check = RecordingGroup.check

    def checked(self: RecordingGroup, op: str, tensors: list[torch.Tensor]) -> None:
        # DistributedDataParallel's order of buckets is the one broadcast of int32, and C++ makes it.
        of_buckets = op == "broadcast" and tensors[0].dtype == torch.int32
        if op != "barrier" and not of_buckets:
            judge(op, tensors)
        pretended = torch.Tensor.device
        del torch.Tensor.device  # the real one, for gloo's own check
        try:
            check(self, op, tensors)
        finally:
            torch.Tensor.device = pretended  # type: ignore[method-assign, assignment]

    def made(make: Callable) -> Callable:
        """`torch.tensor`, which copies to another kind of device only, and so does not mention cpu:7."""

        @functools.wraps(make)
        def make_there(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            if kwargs.get("device") is not None and torch.device(kwargs["device"]) == GPU:
                mark(tensor)
            return tensor

        _builtins._register_builtin(make_there, f"aten::{make.__name__}")  # for torch.jit.script
        return make_there

    def on_its_device(function: Callable) -> Callable:
        """A function of C++ that makes tensors of its own where its first argument lies."""

        @functools.wraps(function)
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            _within_cpp.append(marked(tensor))
            try:
                return function(tensor, *args, **kwargs)
            finally:
                _within_cpp.pop()

        return call

    functions: Any = torch.nn.functional
    for name in ("scaled_dot_product_attention", "one_hot"):
        setattr(functions, name, on_its_device(getattr(functions, name)))
    torch.tensor, torch.as_tensor = made(torch.tensor), made(torch.as_tensor)
    torch.Generator = Generator  # type: ignore[misc]
    names: Any = torch.Tensor
    names.cpu, names.to, names.numpy = to_host, moved, as_array
    names.device = property(lambda self: GPU if marked(self) else _real_device(self))
    group: Any = RecordingGroup
    group.check = checked


def not_judged() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in NOT_JUDGED:
        frame = frame.f_back
    return frame is not None


def enter(header: dict, buffers: list, rank: int) -> tuple[dict, list]:
    """Imitate, then go on with the task's own entry."""
    imitate()
    module, _, name = header["entry"].partition(":")
    with Pretend():
        return getattr(importlib.import_module(module), name)(header["header"], buffers, rank)


# --- in the process that launches ----------------------------------------------------------------


@contextlib.contextmanager
def offered(checks: bool = False, by_default: bool = False) -> Iterator[None]:
    """Within it, `launch` knows the backend "gpu-like", which is gloo below.

    checks: `check` runs on it; by_default: so does a `launch` that names no backend, has no wires, and does
    not call PyTorch's fully_shard, which allocates in C++.
    """
    import pytest

    from course_lib.checks.judge import judge
    from course_lib.runtime import backend, run

    launching = importlib.import_module("course_lib.runtime.launch")

    def choose(world_size: int, asked: str | None = None) -> str:
        here = asked == NAME or (by_default and asked is None)
        return NAME if here else backend.choose(world_size, asked)

    def run_ranks(entry: str, header: Any, buffers: Any, **options: Any) -> run.Outcome:
        if options["backend"] != NAME:
            return run.run_ranks(entry, header, buffers, **options)
        options["backend"] = "gloo"
        launched = entry == "course_lib.runtime.call:call"  # else a check, whose buffers are a list
        if by_default and launched and b"fully_shard" in bytes(buffers[0]):
            return run.run_ranks(entry, header, buffers, **options)
        headers = header if isinstance(header, list) else [header] * options["world_size"]
        header = [{"entry": entry, "header": one} for one in headers]
        outcome = run.run_ranks("tests.gpu_like:enter", header, buffers, **options)
        return replace(outcome, backend=NAME)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "choose", choose)
        for module in (launching, judge):
            patch.setattr(module, "run_ranks", run_ranks)
        if checks:
            patch.setattr(judge, "backend", lambda world_size: NAME)
        yield
