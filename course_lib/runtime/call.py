"""In the rank: run the function passed to `launch`."""

from __future__ import annotations

from course_lib.ledger.recorder import current_recorder
from course_lib.runtime import wire
from course_lib.runtime.pickling import not_sent_back


def call(header: dict, buffers: list[memoryview], rank: int) -> tuple[dict, list]:
    """Unpickle (function, args, kwargs), call the function, pickle its result.

    If a cluster follows, the function runs on its wires.
    """
    function, args, kwargs, *wires = wire.loads(buffers)
    for topology in wires:
        current_recorder().emulate(topology)
    value = function(*args, **kwargs)
    try:
        return {"kind": type(value).__name__}, wire.dumps(value)
    except Exception as error:
        raise TypeError(not_sent_back(function, rank, type(value).__name__, error)) from None
