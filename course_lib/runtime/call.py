"""In the rank: run the function that `launch` got."""

from __future__ import annotations

from course_lib.ledger.recorder import recorder
from course_lib.runtime import wire


def call(header: dict, buffers: list[memoryview], rank: int) -> tuple[dict, list]:
    """Unpickle (function, args, kwargs), call the function, pickle its result.

    A cluster may follow, on whose wires the function runs.
    """
    function, args, kwargs, *wires = wire.loads(buffers)
    for topology in wires:
        recorder().emulate(topology)
    value = function(*args, **kwargs)
    try:
        return {}, wire.dumps(value)
    except Exception as error:
        name = getattr(function, "__name__", "the function")
        raise TypeError(
            f"rank {rank} could not send back what {name} returned, a {type(value).__name__}: {error}. "
            "Return tensors, numbers, strings, and lists or dicts of these."
        ) from None
