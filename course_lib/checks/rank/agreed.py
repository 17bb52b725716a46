"""In the rank: the tensors of a reply, each of the dtype and shape that were agreed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.backward import type_of

Expects = dict[str, Annotated[list[Any], lambda agreed: len(agreed) == 2]]  # {name: [dtype, shape]}


def as_agreed(
    results: Mapping[str, Any],
    expects: Expects,
    misfits: dict[str, str],
    named: Callable[[Any], str] = type_of,
) -> dict[str, torch.Tensor]:
    """A copy of each tensor that is expected, without its graph.

    One that is missing or of another form is written down in `misfits`, as `named` calls it, and zeros go
    back in its place.
    """
    sent = {}
    for name, (kind, shape) in expects.items():
        dtype, result = getattr(torch, kind), results.get(name)
        if not isinstance(result, frozen.Tensor) or (result.dtype, list(result.shape)) != (
            dtype,
            list(shape),
        ):
            misfits[name] = named(result)
            result = frozen.zeros(shape, dtype=dtype)
        sent[name] = frozen.clone(frozen.detach(result))
    return sent
