"""The same work on a Dask `distributed` cluster: its workers are couriers.

A worker process of ours beside each of Dask's threads does the grading, so that a submission is graded
under the same circumstances here and there. The machines of a cluster need this course and its
environment; submissions, notebooks and results travel through Dask. The course's secret does too, so a
cluster that others can listen to should be one with TLS (`tls://`).
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, cast

from autograder.run.jobs import LocalWorkers

CONNECT_SECONDS = 15

_lock = threading.Lock()
_local: tuple[dict[str, Any], LocalWorkers] | None = None


class SchedulerError(Exception):
    """The cluster cannot be used; the text says why and what to do."""


class ClusterWorkers(Executor):
    """The workers of the cluster whose scheduler is at `address`.

    prepare, seconds: as for LocalWorkers. Raises SchedulerError if no scheduler answers there.
    """

    def __init__(
        self, address: str, *, prepare: str = "", seconds: float | None = None, tries: int = 2
    ) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise SchedulerError(
                "a cluster needs the package `distributed`: pip install 'course-lib[cluster]'"
            ) from None
        try:
            self.client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TypeError, ValueError) as error:  # TypeError: tls:// without certificates
            raise SchedulerError(f"no Dask scheduler answers at {address}: {error}") from None
        threads = cast(dict[str, int], self.client.nthreads())
        self.count = sum(threads.values())
        if not self.count:
            self.client.close()
            raise SchedulerError(f"the Dask scheduler at {address} has no workers yet")
        # Dask starts a call again elsewhere when its worker is lost, as often as is set here.
        self.executor = self.client.get_executor(pure=False, retries=tries - 1)
        self.options = {"prepare": prepare, "seconds": seconds, "tries": tries}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if kwargs:
            raise TypeError("a worker takes no keyword arguments")
        return self.executor.submit(relay, pickle.dumps((fn, args)), self.options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.executor.shutdown(wait=wait)
        self.client.close()

    def kill(self) -> None:
        """Leave the cluster; it drops the calls that have not begun."""
        self.shutdown(wait=False)


def relay(order: bytes, options: dict[str, Any]) -> Any:
    """In Dask's worker: hand a call to a worker of ours and wait for its value."""
    return _workers(options).submit_order(order).result()


def _workers(options: dict[str, Any]) -> LocalWorkers:
    """The workers of ours on this machine, one for each of the Dask worker's threads.

    They serve run after run; another grader's wishes make new ones.
    """
    global _local
    with _lock:
        if _local is None or _local[0] != options:
            from distributed import get_worker

            if _local is not None:
                _local[1].shutdown(wait=False)
            _local = options, LocalWorkers(get_worker().state.nthreads, **options)
        return _local[1]
