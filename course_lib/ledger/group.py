"""The process group that records. It has every method of the real group, and writes a row in the ledger.

The recorded program gets only this object, from `torch.distributed`. This is why the real group is not an
attribute of it, and why writing a row is not a method.

PyTorch calls these methods from Python (`torch.distributed.*`) and from C++ (DDP's reducer, functional
collectives). Their names changed over the releases (2.13 renames `_allgather_base` to
`all_gather_single`), so both sets are defined here, and 2.6 and later work.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from course_lib.ledger.exchange import Exchange, parts
from course_lib.ledger.recorder import CommunicationError, current_recorder
from course_lib.ledger.tensors import flatten, label_of
from course_lib.ledger.work import RecordingWork, Together

_coalesce, _nonzeros = torch.Tensor.coalesce, torch.Tensor._nnz
_numel, _element_size = torch.Tensor.numel, torch.Tensor.element_size
_as_base = torch._C.DisableTorchFunctionSubclass


class RecordingGroup(ProcessGroup):
    """A process group around gloo (CPU tensors) and, on machines with GPUs, NCCL (CUDA tensors)."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, nccl: bool):
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        inner = _real[self] = ProcessGroup(store, rank, size)
        # The shell also gets the backends, since C++ asks it for its device types and its store. Each is
        # registered under a type of its own, because PyTorch reuses the first backend of a type.
        kinds = ProcessGroup.BackendType
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), rank, size, timeout=timeout)
        inner._set_default_backend(kinds.NCCL if nccl else kinds.GLOO)
        inner._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
        self.nccl = nccl
        if nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            fast = dist.ProcessGroupNCCL(dist.PrefixStore("nccl/", store), rank, size, options)
            # All members make the communicator now. Otherwise the first message would make it, and would
            # wait for ranks that have no part in that message.
            if hasattr(fast, "eager_connect_single_device"):
                fast.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
            inner._register_backend(torch.device("cuda"), kinds.NCCL, fast)
            self._register_backend(torch.device("cuda"), kinds.NCCL, fast)
        self._register_backend(torch.device("cpu"), kinds.CUSTOM, gloo)
        self.my_rank, self.my_size = rank, size
        self.first_together: int | None = None  # the first row of those that are begun together

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the members, in the group's order."""
        return tuple(dist.get_process_group_ranks(self))

    @functools.cached_property
    def label(self) -> str:
        return self.group_name

    def channel(self, op: str, rank: int, peer: int, tag: int) -> tuple:
        """The counter of an operation: the group for collectives, the two ends and the tag for messages."""
        if op == "send":
            return (self.label, rank, peer, tag)
        if op == "recv":
            return (self.label, peer, rank, tag)
        return (self.label, "collective")

    def getBackendName(self) -> str:
        return "recorded"  # C++ that reads "gloo" here would ask for gloo's own class

    @property
    def carrier(self) -> str:
        return "nccl" if self.nccl else "gloo"

    def getRank(self) -> int:
        return self.my_rank

    def getSize(self) -> int:
        return self.my_size

    def on_device(self, tensors: list[torch.Tensor]) -> bool:
        """Does the operation run on a GPU's stream, so that waiting does not block the host?"""
        return self.nccl and any(tensor.is_cuda for tensor in tensors)

    def check(self, op: str, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if tensor.layout == torch.strided and not tensor.is_contiguous():
                raise CommunicationError(
                    f"{op} was given a tensor that is not contiguous: shape {tuple(tensor.shape)}, "
                    f"strides {tensor.stride()}. Backends read memory in a row and would send or receive "
                    "other elements. Communicate x.contiguous() and copy a result back with x.copy_()."
                )
            wrong = tensor.device.type not in (("cpu", "cuda") if self.nccl else ("cpu",))
            if wrong:
                raise CommunicationError(
                    f"{op} was given a tensor on {tensor.device}, but this group runs on "
                    f"{self.carrier}, which here carries "
                    f"{'CPU and CUDA' if self.nccl else 'CPU'} tensors. "
                    "Make tensors with device=course_lib.device(), or move them with .to()."
                )

    def has(self, what: str, peer: int) -> None:
        """Refuse a peer that is not in the group: gloo would wait for it in its store."""
        if not 0 <= peer < self.my_size:
            raise CommunicationError(
                f"rank {self.ranks[self.my_rank]} would {what} rank {peer}, but a rank's number in this "
                f"group is one of 0 .. {self.my_size - 1}. To go around a ring, count modulo the number of "
                "ranks, as in (rank - 1) % n."
            )

    # ---- messages

    def send(self, tensors: list, dst: int, tag: int = 0) -> Work | None:
        self.has("send to", dst)
        call = _method_of(self, "send", tensors, dst, tag)
        return _record(self, "send", call, tensors, size(tensors), dst, tag)

    def recv(self, tensors: list, src: int, tag: int = 0) -> Work | None:
        self.has("receive from", src)
        call = _method_of(self, "recv", tensors, src, tag)
        return _record(self, "recv", call, tensors, size(tensors), src, tag)

    def recv_anysource(self, tensors: list, tag: int = 0) -> Work | None:
        call = _method_of(self, "recv_anysource", tensors, tag)
        return _record(self, "recv", call, tensors, size(tensors), -1, tag)

    # ---- collectives: the words that the ranks compare, and M, the bytes of the full tensor

    def allreduce(self, x, *args, **kwargs):
        call = _method_of(self, "allreduce", x, *args, **kwargs)
        return _record(self, "all_reduce", call, x, size(x), tag=count(x), agree=reduction(args))

    def allreduce_coalesced(self, x, *args, **kwargs):
        call = _method_of(self, "allreduce_coalesced", x, *args, **kwargs)
        return _record(self, "all_reduce", call, x, size(x), agree=reduction(args))

    def broadcast(self, x, *args, **kwargs):
        root = root_of(args)
        call = _method_of(self, "broadcast", x, *args, **kwargs)
        return _record(self, "broadcast", call, x, size(x), root, agree=self.name_root("src", root))

    def reduce(self, x, *args, **kwargs):
        root = root_of(args)
        call = _method_of(self, "reduce", x, *args, **kwargs)
        agree = f"{reduction(args)} {self.name_root('dst', root)}"
        return _record(self, "reduce", call, x, size(x), root, agree=agree)

    def gather(self, out, x, *args, **kwargs):
        root = root_of(args)
        call = _method_of(self, "gather", out, x, *args, **kwargs)
        agree = self.name_root("dst", root)
        return _record(
            self, "gather", call, x, size(x) * self.my_size, root, agree=agree, everything=[out, x]
        )

    def scatter(self, out, x, *args, **kwargs):
        root = root_of(args)
        call = _method_of(self, "scatter", out, x, *args, **kwargs)
        agree = self.name_root("src", root)
        whole, everything = size(out) * self.my_size, [out, x]
        return _record(self, "scatter", call, out, whole, root, agree=agree, everything=everything)

    def barrier(self, *args, **kwargs):
        if self.nccl:
            # Over NCCL itself a barrier waits for the stream; here it goes over gloo, since the host waits.
            torch.cuda.current_stream().synchronize()
        return _record(self, "barrier", _method_of(self, "barrier", *args, **kwargs), [], 0)

    def gathering(self, method: str, out, x, *args, **kwargs):
        call = _method_of(self, method, out, x, *args, **kwargs)
        return _record(self, "all_gather", call, x, size(x) * self.my_size, everything=[out, x])

    def scattering(self, method: str, out, x, *args, **kwargs):
        call = _method_of(self, method, out, x, *args, **kwargs)
        agree, tag = reduction(args), count(x)
        return _record(
            self, "reduce_scatter", call, out, size(x), tag=tag, agree=agree, everything=[out, x]
        )

    def exchanging(self, method: str, out, x, *args, **kwargs):
        call = _method_of(self, method, out, x, *args, **kwargs)
        # nothing that all agree on: each two of them agree on what the one sends to the other
        into, outof = (list(splits) for splits in args[:2]) if len(args) > 2 else ([], [])
        for number in {len(of_ranks) for of_ranks in (into, outof) if of_ranks} - {self.my_size}:
            raise CommunicationError(
                f"an all-to-all has a split size for each rank of its group: here are {number}, and the "
                f"group has {self.my_size} ranks"
            )
        exchange = Exchange(parts(x, outof, self.my_size), parts(out, into, self.my_size))
        return _record(
            self, "all_to_all", call, [], size(x), everything=[out, x], exchange=exchange
        )

    def name_root(self, word: str, root: int) -> str:
        return f"{word}={self.ranks[root]}"

    def _start_coalescing(self, device: torch.device) -> None:
        """NCCL begins the following operations together, at `_end_coalescing`."""
        self.first_together = current_recorder().state.rows
        _method_of(self, "_start_coalescing", device)()

    def _end_coalescing(self, device: torch.device) -> Work | None:
        recorder = current_recorder()
        first, self.first_together = self.first_together, None
        rows = range(first or 0, recorder.state.rows if first is not None else 0)
        with recorder.calling(rows[0]) if rows else contextlib.nullcontext():
            work = _method_of(self, "_end_coalescing", device)()
        return Together(work, rows) if rows and work is not None else work

    def monitored_barrier(self, *args, **kwargs):
        return real(self).monitored_barrier(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def shutdown(self) -> None:
        real(self).shutdown()

    def abort(self) -> None:
        real(self).abort()


# ---- the one way in

_real: weakref.WeakKeyDictionary[RecordingGroup, Any] = weakref.WeakKeyDictionary()
# The methods as they were before a program could put others in their place.
_METHODS = {
    name: attribute for name, attribute in vars(ProcessGroup).items() if callable(attribute)
}


def real(group: Any) -> Any:
    """The process group behind a recording group; any other group is returned as it is."""
    return _real.get(group, group)


def put_behind(group: RecordingGroup, other: Any) -> None:
    """Have `group` call another one from now on, with methods of the same names."""
    _real[group] = other


def _method_of(group: RecordingGroup, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A call of the real group's method of that name."""
    inner = _real[group]
    if type(inner) is ProcessGroup and name in _METHODS:
        return functools.partial(_METHODS[name], inner, *args, **kwargs)
    return functools.partial(getattr(inner, name), *args, **kwargs)


def _record(
    group: RecordingGroup, op: str, call: Callable[[], Work | None], tensors: Any, nbytes: int,
    peer: int = -1, tag: int = 0, agree: str = "", everything: Any = None,
    exchange: Exchange | None = None,
) -> Work | None:  # fmt: skip
    """Check, write down, call. `peer` is a rank of this group; the ledger gets the global one."""
    involved = flatten(tensors if everything is None else everything)
    group.check(op, involved)
    if op in ("send", "recv") and peer == group.my_rank:
        advice = (
            "A group of one rank has no other: copy the tensor."
            if group.my_size == 1
            else "Copy the tensor, and look at how the peer is computed (src= and dst= count in the whole "
            "world, group_src= and group_dst= in the group)."
        )
        raise CommunicationError(
            f"rank {group.ranks[peer]} would {'send to' if op == 'send' else 'receive from'} itself: "
            f"no backend carries that. {advice}"
        )
    peer = group.ranks[peer] if peer >= 0 else -1
    tag = 0 if group.on_device(involved) else tag  # NCCL has none
    listed = flatten(tensors)
    recorder = current_recorder()
    on_device = group.on_device(involved)
    with recorder.marking_refused():
        row = recorder.add(
            op, listed, nbytes, group, peer, tag, agree, label_of(involved), exchange
        )
        if on_device and group.first_together is not None:
            # Nothing is begun before `_end_coalescing`, which has the handle. From PyTorch 2.8 on there is
            # no handle here, but this call has not waited.
            call()
            return None
        before = recorder.pending.mark() if on_device else None
        with recorder.calling(row) if on_device else contextlib.nullcontext():
            work = call()
    if work is None:  # synchronous, from PyTorch 2.8 on: C++ has waited, on a GPU with its stream
        recorder.waited_in_backend(row, before)
        return None
    sent = listed if op == "send" else []
    return RecordingWork(work, row, sent, op in ("send", "recv"), peer, on_device)


def _method(kind: str, name: str) -> Callable:
    def method(self, out, x, *args, **kwargs):
        return getattr(self, kind)(name, out, x, *args, **kwargs)

    method.__name__ = name
    return method


FAMILIES = {
    "gathering": "allgather _allgather_base all_gather_single allgather_coalesced "
    "allgather_into_tensor_coalesced all_gather_single_coalesced",
    "scattering": "reduce_scatter _reduce_scatter_base reduce_scatter_single "
    "reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced",
    "exchanging": "alltoall alltoall_base all_to_all_single",
}
for _kind, _names in FAMILIES.items():
    for _name in _names.split():
        if hasattr(ProcessGroup, _name):
            setattr(RecordingGroup, _name, _method(_kind, _name))


def size(tensors: Any) -> int:
    """Bytes by PyTorch's own methods, because a subclass can override them and report another size."""
    with _as_base():
        return sum(_numel(t) * _element_size(t) for t in flatten(tensors))


def count(tensors: Any) -> int:
    """How many tensors a collective has and, if they are sparse, how many elements they store."""
    listed = flatten(tensors)
    if not any(tensor.layout == torch.sparse_coo for tensor in listed):
        return len(listed)
    with _as_base(), torch.no_grad():
        return sum(_nonzeros(_coalesce(tensor)) for tensor in listed)


def reduction(args: tuple) -> str:
    op = getattr(args[0], "reduceOp", None) if args else None
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    return next((name.lower() for name in names if op == getattr(dist.ReduceOp, name)), "")


def root_of(args: tuple) -> int:
    return getattr(args[0], "rootRank", 0) if args else 0
