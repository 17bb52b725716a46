"""`launch`: run a function on several ranks and get their results."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from course_lib.ledger.ledger import Ledger
from course_lib.ledger.wires import Topology, check_wires
from course_lib.runtime import notes, wire
from course_lib.runtime.backend import choose
from course_lib.runtime.errors import Deadlock, LaunchError, NotWritten, RankError, RankTimeout
from course_lib.runtime.interrupts import never_lost
from course_lib.runtime.output import show
from course_lib.runtime.pickling import check_call, explain, not_sent_back
from course_lib.runtime.run import MAX_RANKS, run_ranks
from course_lib.runtime.watch import Reply

ERRORS = {"deadlock": Deadlock, "timeout": RankTimeout, "unwritten": NotWritten}


class Run(list):
    """The ranks' results, in order of rank, with the ledger and the duration of the run."""

    def __init__(self, results: list, ledger: Ledger, seconds: float, backend: str):
        super().__init__(results)
        self.ledger, self.seconds, self.backend = ledger, seconds, backend


@never_lost()
def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    timeout: float = 60,
    backend: str | None = None,
    seed: int = 0,
    wires: Topology | None = None,
    **kwargs: Any,
) -> Run:
    """Run `fn(*args, **kwargs)` on `world_size` ranks of this machine; returns a list of their results.

    Inside `fn`, `torch.distributed` is initialised, so use its own functions. Each rank is a process of its
    own, fresh for this call, with one thread. Rank r's random state starts from `seed + r`.

    fn: any function, even one defined in a notebook cell, a closure or a lambda. The function, its arguments
        and its results are copied, so views no longer share memory, and a tensor that was computed from
        others comes back without its graph (only leaves keep `requires_grad`).
    timeout: seconds after which the ranks are ended and RankTimeout is raised.
    backend: "nccl" (one GPU per rank) or "gloo" (CPU); by default nccl if there are enough GPUs. The
        environment variable COURSE_BACKEND overrides the default.
    wires: a cluster, such as `course_lib.planning.Cluster`. Rank r runs on its GPU r, and each operation
        takes as long as on the link it would use there (see `course_lib.ledger.wires`). The ranks run
        over gloo. With None, operations are as fast as this machine.

    If the run over gloo could hang on NCCL, a note says so (COURSE_NCCL_NOTES=off turns notes off).

    Raises RankError if a rank raised or died, Deadlock if ranks wait for each other or for a rank that
    has finished, NotWritten if a rank met a stub, RankTimeout; ValueError or TypeError if the call itself is
    wrong. After any of them the next `launch` works.
    """
    if not callable(fn):
        raise TypeError(
            f"launch runs a function on every rank, but {fn!r} is a {type(fn).__name__}"
        )
    check_call(fn, args, kwargs)
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size is a number of ranks such as 4, not {world_size!r}")
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(
            f"world_size is between 1 and {MAX_RANKS} ranks on one machine, not {world_size}"
        )
    if not timeout > 0:
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}")
    if wires is not None:
        backend = on_wires(wires, world_size, backend)
    chosen = choose(world_size, backend)
    try:
        payload = wire.dumps((fn, args, kwargs) if wires is None else (fn, args, kwargs, wires))
    except Exception as error:
        raise LaunchError(explain(fn, args, kwargs, error)) from None
    outcome = run_ranks(
        "course_lib.runtime.call:call", {}, payload,
        world_size=world_size, timeout=timeout, backend=chosen, seed=seed, on_output=show,
    )  # fmt: skip
    if outcome.failure is not None:
        error = ERRORS.get(outcome.failure.kind, RankError)(outcome.failure.message)
        error.ledger = outcome.ledger
        raise error
    if outcome.backend == "gloo":
        notes.on_nccl(outcome.ledger)
    results = [result(fn, rank, reply) for rank, reply in enumerate(outcome.replies) if reply]
    return Run(results, outcome.ledger, outcome.seconds, outcome.backend)


def result(fn: Callable, rank: int, reply: Reply) -> Any:
    """The value that `fn` returned on a rank. RankError if it means nothing outside of the ranks."""
    header, buffers = reply
    try:
        return wire.loads(buffers)
    except Exception as error:  # code of the value's own class may run, such as DDP's
        raise RankError(not_sent_back(fn, rank, str(header.get("kind")), error)) from None


def on_wires(wires: Topology, world_size: int, backend: str | None) -> str:
    """The backend of ranks on emulated wires. ValueError or TypeError if they cannot be emulated."""
    check_wires(wires, world_size)
    if backend == "nccl":
        raise ValueError(
            "wires= are emulated for ranks on the CPU, whose host sleeps, but with backend='nccl' a GPU's "
            "stream waits. Leave `backend` out, or use 'gloo'."
        )
    if os.environ.get("COURSE_LEDGER", "on") == "off":
        raise ValueError(
            "wires= need the ledger, in which the ranks see when the others were ready, but "
            "COURSE_LEDGER=off turns it off. Unset the variable, or leave `wires` out."
        )
    return backend or "gloo"
