"""Messages between the notebook, the preloaded process and the ranks.

A message is a JSON header and any number of raw buffers. A process that judges a rank never gets a pickle
from it; only `launch` unpickles, since there the ranks run the caller's own code.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import json
import math
import pickle
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch._ops import OpOverload, OpOverloadPacket

from course_lib.runtime.heavy import HEAVY

Buffer = bytes | bytearray | memoryview
COUNT, SIZE = struct.Struct("<I"), struct.Struct("<Q")
LONGEST, DIMENSIONS = 1 << 40, 64  # of a tensor's shape


class WireError(RuntimeError):
    """A message that does not have the agreed form."""


def view(buffer: Buffer) -> memoryview:
    return memoryview(buffer).cast("B")


def send(sock: socket.socket, header: dict, buffers: Sequence[Buffer] = ()) -> None:
    """Send one message. Blocks until the other end has read most of it."""
    parts = [view(json.dumps(header).encode()), *map(view, buffers)]
    head = COUNT.pack(len(parts)) + b"".join(SIZE.pack(part.nbytes) for part in parts)
    if sum(part.nbytes for part in parts) < 65536:
        sock.sendall(head + b"".join(parts))
        return
    for part in (view(head), *parts):
        if part.nbytes:
            sock.sendall(part)


class Receiver:
    """Reads messages from a socket piece by piece, so that a slow or dead sender blocks no reader."""

    def __init__(self, sock: socket.socket, limit: int = 1 << 40):
        self.sock, self.limit = sock, limit
        self.sizes: list[int] | None = None
        self.parts: list[bytearray] = []
        self._expect(COUNT.size)

    def _expect(self, nbytes: int) -> None:
        self.buffer, self.filled = bytearray(nbytes), 0

    def read(self) -> tuple[dict, list[bytearray]] | None:
        """Read the bytes that have arrived: a whole message, or None if more follows. EOFError at the end."""
        while True:
            if self.filled < len(self.buffer):
                try:
                    got = self.sock.recv_into(memoryview(self.buffer)[self.filled :])
                except BlockingIOError:
                    return None
                if got == 0:
                    raise EOFError
                self.filled += got
                if self.filled < len(self.buffer):
                    continue
            if (message := self._advance()) is not None:
                return message

    def _advance(self) -> tuple[dict, list[bytearray]] | None:
        """A piece (a count, the sizes, or a part) is complete."""
        if self.sizes is None and len(self.buffer) == COUNT.size and not self.parts:
            (count,) = COUNT.unpack(self.buffer)
            if not 1 <= count <= 1 << 16:
                raise WireError(f"a message of {count} parts")
            self.sizes = []
            self._expect(SIZE.size * count)
            return None
        if self.sizes == [] and not self.parts:
            self.sizes = [size for (size,) in SIZE.iter_unpack(self.buffer)]
            if sum(self.sizes) > self.limit:
                raise WireError(
                    f"a message of {sum(self.sizes):,} bytes, but at most {self.limit:,} are taken"
                )
        else:
            self.parts.append(self.buffer)
        assert self.sizes is not None
        if len(self.parts) < len(self.sizes):
            self._expect(self.sizes[len(self.parts)])
            return None
        parts, self.parts, self.sizes = self.parts, [], None
        self._expect(COUNT.size)
        header = json.loads(parts[0].decode())
        if not isinstance(header, dict):
            raise WireError("a message whose header is not an object")
        return header, parts[1:]


# ---- tensors as raw bytes under a JSON description


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, without a copy if it is contiguous on the CPU."""
    return memoryview(octets(tensor)).cast("B")


def octets(tensor: torch.Tensor) -> Any:
    """The same as an array. A view of a memoryview would crash Python if both were garbage in one cycle."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # A single element that was expanded has stride 0, which counts as contiguous and cannot be seen as bytes.
    flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


def pack_tensors(tensors: dict[str, torch.Tensor]) -> tuple[list, list[Buffer]]:
    """({name: tensor}) -> (JSON-able list of [name, dtype, shape], buffers in the same order)."""
    meta = [[name, str(t.dtype)[6:], list(t.shape)] for name, t in tensors.items()]
    return meta, [raw(t) for t in tensors.values()]


def tensor_of(buffer: Buffer, dtype: torch.dtype, shape: Iterable[int]) -> torch.Tensor:
    """A tensor over the bytes of `buffer`, without a copy if the buffer is writable."""
    shape = tuple(shape)
    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    if view(buffer).readonly:
        buffer = bytearray(buffer)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(shape)


def unpack_tensors(meta: list, buffers: Sequence[Buffer]) -> dict[str, torch.Tensor]:
    """The inverse of `pack_tensors`. WireError if description and buffers do not fit."""
    if len(meta) != len(buffers):
        raise WireError(f"{len(meta)} tensors are described, but {len(buffers)} were sent")
    tensors = {}
    for (name, dtype_name, shape), buffer in zip(meta, buffers, strict=True):
        dtype = getattr(torch, str(dtype_name), None)
        if not isinstance(dtype, torch.dtype):
            raise WireError(f"tensor {name!r} has the unknown dtype {dtype_name!r}")
        if not isinstance(shape, list) or not all(type(length) is int for length in shape):
            raise WireError(f"tensor {name!r} has a shape that is not a list of numbers")
        if min(shape, default=0) < 0 or max(shape, default=0) > LONGEST or len(shape) > DIMENSIONS:
            raise WireError(f"tensor {name!r} has a shape that no tensor has")
        if math.prod(shape) * dtype.itemsize != len(buffer):
            raise WireError(
                f"the {len(buffer)} bytes of tensor {name!r} do not fill {dtype_name}{shape}"
            )
        tensors[str(name)] = tensor_of(buffer, dtype, shape)
    return tensors


# ---- objects: cloudpickle, with tensors out of band

OPERATORS = (OpOverload, OpOverloadPacket)


class _Pickler(cloudpickle.Pickler):
    """Functions and classes of a notebook travel by value, plain tensors as raw buffers.

    torch.ops and its contents travel by name, and so do modules of a class of their own, such as
    torch.backends.cudnn, because cloudpickle takes them along whenever a function mentions them, although
    pickle cannot. The same holds for torch._C._functions, which is an attribute, but no module that can be
    imported. A backward with the decorator `once_differentiable` mentions it.

    cloudpickle also takes torch.distributed.tensor along with a function that says `dist.send` and
    `torch.tensor`, once any code has imported it. This would cost each rank two seconds, most often in vain.

    A function with `functools.cache` travels by value, without what it has remembered.

    Code keeps its file's name, by which a diagnosis knows the cell, although cloudpickle 3.1.3 leaves it out.
    """

    def reducer_override(self, obj: Any):
        if type(obj) is CodeType:
            kind, parts, *_ = self.dispatch_table[CodeType](obj)
            return _of_file, (obj.co_filename, kind, parts)
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
            return _cached, (obj.__wrapped__, *obj.cache_parameters().values())
        if isinstance(obj, ModuleType) and obj.__name__ in HEAVY:
            return _when_it_is_used, (obj.__name__,)
        if (name := _name_of(obj)) and _named(name) is obj:
            return _named, (name,)
        if type(obj) is torch.Tensor and has_plain_bytes(obj):
            bytes_of_it = pickle.PickleBuffer(octets(obj))
            return _rebuild, (
                bytes_of_it,
                obj.dtype,
                tuple(obj.shape),
                obj.requires_grad and obj.is_leaf,
            )
        return super().reducer_override(obj)


def _of_file(file: str, kind: type[CodeType], parts: tuple) -> CodeType:
    return kind(*parts).replace(co_filename=file)


def _cached(function: Callable, most: int | None, typed: bool) -> Callable:
    return functools.lru_cache(most, typed)(function)


def has_plain_bytes(tensor: torch.Tensor) -> bool:
    """Whether a raw buffer can hold it. PyTorch pickles sparse, quantized, nested and meta tensors."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return strided and not tensor.is_quantized and tensor.device.type != "meta"


def _name_of(obj: Any) -> str:
    """ "torch.ops.aten.mm", for an operator, or a module that cannot be imported by name; "" for others."""
    if isinstance(obj, OPERATORS):
        return f"torch.ops.{obj}"
    if not isinstance(obj, ModuleType):
        return ""
    # A module that a student made by hand is in no list either, and travels by value.
    unlisted = obj.__name__.startswith("torch.") and obj.__name__ not in sys.modules
    return obj.__name__ if unlisted or type(obj) is not ModuleType else ""


def _named(name: str) -> Any:
    """The object of this name in a package that can be imported; None if there is none."""
    package, _, rest = name.partition(".")
    try:
        return sys.modules.get(name) or attrgetter(rest)(importlib.import_module(package))
    except (ImportError, AttributeError):
        return None


def _when_it_is_used(name: str) -> ModuleType:
    """A module that is imported when the first of its attributes is read."""
    package, _, leaf = name.rpartition(".")
    if name in sys.modules or not package:
        return importlib.import_module(name)
    module = _Later(name)
    setattr(importlib.import_module(package), leaf, module)
    return module


class _Later(ModuleType):
    """A module of PyTorch until one of its attributes is read.

    It is not in `sys.modules`, because an import that finds half a module there, in the middle of other
    imports, fails.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _rebuild(buffer: Buffer, dtype: torch.dtype, shape: tuple, requires_grad: bool) -> torch.Tensor:
    return tensor_of(buffer, dtype, shape).requires_grad_(requires_grad)


def dumps(obj: Any) -> list[Buffer]:
    """Pickle `obj` into a list of buffers: the pickle itself, then the tensors' bytes."""
    kept: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=kept.append).dump(obj)
    # not getbuffer(): a view of a BytesIO that is collected first crashes Python 3.12
    return [file.getvalue(), *(buffer.raw() for buffer in kept)]


def loads(buffers: Sequence[Buffer]) -> Any:
    """The inverse of `dumps`; the tensors live in the given buffers."""
    return pickle.loads(buffers[0], buffers=buffers[1:])
