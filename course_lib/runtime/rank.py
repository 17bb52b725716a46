"""A rank joins its process group, then runs tasks until it is ended from outside.

A rank never exits by itself, not even after an error, because peers that are still connecting, or still
receiving from it, would break with it and hide the cause.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import io
import linecache
import mmap  # noqa: F401  (imported before the fork, used by the shared memory)
import os
import random
import signal
import socket
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from course_lib.ledger import rows
from course_lib.ledger.install import install
from course_lib.ledger.recorder import CommunicationError, Recorder
from course_lib.runtime import heavy, moments, wire
from course_lib.runtime.backend import on_nccl, take_gpu
from course_lib.runtime.replying import LONGEST_TEXT, LONGEST_TYPE
from course_lib.runtime.residue import Residue, free_gpu_memory

HERE = os.path.dirname(os.path.abspath(__file__))
GPUS_SEEN = "CUDA_VISIBLE_DEVICES"
# PyTorch 2.13 renames these two; the literature and most code in the wild use the old names.
DEPRECATED = [
    f".*{name}. is deprecated" for name in ("all_gather_into_tensor", "reduce_scatter_tensor")
]
NO_EVENTS = (
    "PyTorch {version} runs fully_shard on GPUs alone, and this rank is on a CPU. Your code is not the "
    "cause, because PyTorch 2.7 and newer also run fully_shard on a CPU."
)
NEVER = timedelta(days=1)  # the watcher outside decides when it is over, not the backend
_store_fd = -1  # the file over which the ranks of this process's group met


def start(order: dict, fds: list[int]) -> NoReturn:
    """The entry of a rank's process. `fds`: as `pools.Pool` hands them over."""
    sock, recorder = settle(order, fds)
    faulthandler.register(signal.SIGUSR1, file=fds[-1], all_threads=True)
    set_environment(order["environment"])
    join(order, fds[0], recorder)
    wire.send(sock, {"hello": recorder.rank})
    for task, buffers in tasks(sock):
        perform(sock, recorder, recorder.rank, task, buffers)
    os._exit(0)


def settle(order: dict, fds: list[int]) -> tuple[socket.socket, Recorder]:
    """The first steps of every process for tasks. Returns the socket to its judge, and its recorder."""
    store_fd, board_fd, control, out, err, measured, rows_fd, texts_fd, _ = fds
    for shared in (store_fd, board_fd):
        open_anew(shared)
    redirect_output(out, err)
    if order["backend"] != "nccl":
        # Else autograd's first backward, `fully_shard` without a mesh and others would start CUDA, or use it.
        os.environ[GPUS_SEEN] = ""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(file=2, all_threads=False)
    be_first_to_go_when_memory_is_short()
    sys.argv = ["rank"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    board = rows.Board(board_fd, order["world_size"])
    log = rows.Log(rows_fd, texts_fd)
    recorder = Recorder(order["rank"], order["world_size"], board, log, order["rows"])
    moments.measured_over(socket.socket(fileno=measured))
    return socket.socket(fileno=control), recorder


def explain_missing_events(stream: type = torch.cpu.Stream) -> None:
    """With PyTorch 2.6 on a CPU, let `fully_shard` fail with a sentence instead of an AttributeError."""
    if hasattr(stream, "record_event"):
        return

    def record_event(self: object, event: object = None) -> NoReturn:
        raise RuntimeError(NO_EVENTS.format(version=torch.__version__.partition("+")[0]))

    stream.record_event = record_event


def open_anew(fd: int) -> None:
    """Give a file inherited by all ranks a position of its own, since a common one would be a message."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(own, fd)
    os.close(own)


def join(order: dict, store_fd: int, recorder: Recorder) -> None:
    """Make the process group of all ranks, which records all operations."""
    global _store_fd
    _store_fd = store_fd
    rank, world_size = order["rank"], order["world_size"]
    for name, number in (("RANK", rank), ("WORLD_SIZE", world_size)):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(number)
    nccl = order["backend"] == "nccl"
    explain_missing_events()
    for pattern in DEPRECATED:
        warnings.filterwarnings("ignore", pattern, FutureWarning)
    if nccl:
        # autograd's thread for the GPU is the first to need cuBLAS there, makes its context, and says so
        warnings.filterwarnings("ignore", ".*there was no current CUDA context.*", UserWarning)
        take_gpu(rank)
    if order["record"]:
        install(recorder, nccl)
    store = dist.FileStore(f"/proc/self/fd/{store_fd}", world_size)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if nccl else "gloo",
        store=store, rank=rank, world_size=world_size, timeout=NEVER,
    )  # fmt: skip


def tasks(sock: socket.socket) -> Iterator[tuple[dict, list[bytearray]]]:
    """The tasks sent by the judge, until it hangs up."""
    receiver = wire.Receiver(sock)
    while True:
        try:
            message = receiver.read()
        except EOFError:
            return
        if message is not None:
            yield message


def close_the_store(world_size: int) -> None:
    """From here on no rank can write into the file over which the ranks met, and pass values through it.

    Every rank calls it before a check runs a student's code. The last rank to arrive seals the file for
    all, since the others might still be making the check's groups. NCCL needs the file longer, because it
    meets again for each pair of ranks. Without memory files (`rows.anonymous_file`) there are no seals.
    """
    store = dist.distributed_c10d._get_default_store()
    if dist.get_backend() != "gloo" or not hasattr(os, "memfd_create"):
        return
    if store.add("course: groups are made", 1) == world_size:
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(_store_fd, fcntl.F_ADD_SEALS, seals)
    while not fcntl.fcntl(_store_fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
        time.sleep(0.0005)


def redirect_output(out: int, err: int) -> None:
    """Descriptors 1 and 2 become pipes to the kernel, which also catch the output of C code."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for fd in (out, err, null):
        os.close(fd)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = os.fdopen(fd, "wb", buffering=8192, closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True))


def be_first_to_go_when_memory_is_short() -> None:
    """Out of memory, the system should end a rank, not the notebook's kernel."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("800")
    except OSError as error:
        print(f"note: this rank could not offer itself to the out-of-memory killer ({error})")


def perform(sock: socket.socket, recorder: Recorder, rank: int, task: dict, buffers: list) -> None:
    """Run one task and send the reply: a JSON header, and buffers that the caller understands."""
    prepare(task, rank)
    import_all(task["imports"])  # the task's time begins when this is done
    groups_before = process_groups()
    nccl = dist.is_initialized() and on_nccl()
    residue = Residue.now() if nccl else None
    recorder.begin_task(task["id"])
    reply: dict[str, Any] = {"task": task["id"], "ok": False}
    answer: list = []
    try:
        module, _, name = task["entry"].partition(":")
        entry = getattr(importlib.import_module(module), name)
        reply["header"], answer = entry(task["header"], [wire.view(b) for b in buffers], rank)
        refuse_open_work(recorder)
        if nccl:
            torch.cuda.synchronize()  # an operation that never ends, or a kernel that failed, is this task's
        reply["ok"] = True
    except BaseException as error:  # also SystemExit: a rank must not exit by itself
        reply["error"] = describe_error(error)
        answer = []
        # An error is reported at once: the GPU's stream may hold an operation that will never be met.
    flush()
    recorder.pending.drain()
    reply["clean"] = reply["ok"] and process_groups() == groups_before
    if residue is not None and reply["clean"]:
        reply["clean"] = residue.unchanged()
        free_gpu_memory()
    reply["imported"] = heavy.imported()
    recorder.set_state(rows.RETURNED if reply["ok"] else rows.RAISED)
    wire.send(sock, reply, answer)


def process_groups() -> tuple[bool, set]:
    """Whether there is a default group, and all groups. A task has to leave both as they were."""
    return dist.is_initialized(), set(dist.distributed_c10d._world.pg_map)


def prepare(task: dict, rank: int) -> None:
    """The kernel's import path, folder, environment and cell sources; this rank's random state."""
    sys.path[:] = task["path"]
    if task["folder"] is not None:
        os.chdir(task["folder"])
    set_environment(task["environment"])
    for name, source in task["sources"].items():
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    torch.set_default_dtype(torch.float32)
    seed = task["seed"] + rank  # equal seeds would hide a missing broadcast
    random.seed(seed)
    seed_generator(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def seed_generator(seed: int) -> None:
    """Seed PyTorch's default generator; on GPUs call torch.manual_seed, which seeds theirs as well.

    Without GPUs, that call would only keep a stack trace for each kind of device, in case one begins later,
    which takes 3 ms.
    """
    if dist.is_initialized() and on_nccl():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def set_environment(changes: dict[str, str | None]) -> None:
    """Give variables the values they have in the notebook; None removes a variable.

    A rank without a GPU of its own continues to see no GPU, whatever CUDA_VISIBLE_DEVICES is in the notebook.
    """
    for name, value in changes.items():
        if name == GPUS_SEEN and os.environ.get(name) == "":
            continue
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def import_all(modules: list[str]) -> None:
    """Import the modules; if one is missing, the task that needs it reports that."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def refuse_open_work(recorder: Recorder) -> None:
    """A message that was begun and never waited for is an error, although it often seems to work."""
    open_rows = recorder.never_waited()
    if not open_rows:
        return
    log, size = recorder.log.rows.map, rows.ROW.size
    texts = {number: text for text, number in recorder.log.known.items()}
    messages: dict[str, list[str]] = {}  # by place: a loop begins many at one line
    for index in open_rows:
        row = rows.Row(*rows.ROW.unpack_from(log, index * size))
        dtype, _, shape = texts.get(row.tensor, "|").partition("|")
        op = "isend(dst" if rows.OPS[row.op] == "send" else "irecv(src"
        file, _, line = texts.get(row.line, "|").rpartition("|")
        message = f"{op}={row.peer}) of {dtype}[{shape}]"
        known = messages.get(f"{{{{{file}|{line}}}}}", [])
        if message not in known and sum(map(len, messages.values())) < 3:
            messages[f"{{{{{file}|{line}}}}}"] = [*known, message]
    parts = [f"{', '.join(begun)} {place}" for place, begun in messages.items()]
    others = len(open_rows) - sum(map(len, messages.values()))
    more = f", and {others} more" if others else ""
    raise CommunicationError(
        f"the function returned without waiting for {', '.join(parts)}{more}. isend and irecv only begin a "
        "message, so keep the handle they return and call wait() on it. Until then, the buffer can hold "
        "anything."
    )


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the student closed it


def describe_error(error: BaseException) -> dict:
    """An exception as plain data, each link of its chain with type, text and the student's frames."""
    chain = []
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        frames = [
            [frame.filename, frame.lineno, frame.name]
            for frame in traceback.extract_tb(link.__traceback__)
            if not frame.filename.startswith(HERE)
        ]
        text = text_of(link)
        kind = type(link).__name__[:LONGEST_TYPE]
        chain.append({"type": kind, "text": text, "frames": frames, "within": innermost(link)})
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return {"chain": chain, "ours": isinstance(error, CommunicationError)}


def innermost(error: BaseException) -> str:
    """The function that raised, of a method with its class: "Shards.step", or "Shards" for its `__init__`."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    name = "" if place is None else place.tb_frame.f_code.co_qualname
    return name.rpartition("<locals>.")[2].removesuffix(".__init__")[:LONGEST_TYPE]


def text_of(error: BaseException) -> str:
    try:
        notes = getattr(error, "__notes__", ())
        return "\n".join([str(error), *map(str, notes)])[:LONGEST_TEXT]
    except Exception as second:  # a student's __str__ may raise
        return f"(its text could not be made: {type(second).__name__})"
