"""Recipe (see `harness`) that calls `quantize(x, block, ...)` and `dequantize(values, scales, block)`.

instructions: calls, a list of

    name       the prefix of all names in the reply
    kind       "quantize" or "dequantize"
    inputs     names of tensors: x, or values and scales
    block      [rows, columns]
    dtype      the name of one; left out: the default is asked for
    group      index of a group, which is passed by name; left out: none is
    expects    {name: [dtype, shape]} of the tensors in the reply

The reply for the call "a" has "a.values" and "a.scales" or "a.back", and the inputs afterwards as
"a.after.0"; values["a"] is a `QuantizeReply`. A rank without calls takes no part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank.backward import type_of
from course_lib.checks.rank.harness import describe
from course_lib.checks.wire import Place

_Tensor, _clone, _detach, _zeros = torch.Tensor, torch.clone, torch.Tensor.detach, torch.zeros
_copy = torch.Tensor.copy_
_dtypes = {str(dtype)[6:]: dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass
class QuantizeReply:
    """error: the exception that was raised; misfits: {name: text} of a tensor that came in another form."""

    error: Place | None = None
    misfits: dict[str, str] = field(default_factory=dict)


def scales(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: dict
) -> tuple[dict[str, QuantizeReply], dict[str, Any]]:
    """Every call of the instructions, one after the other."""
    replies: dict[str, QuantizeReply] = {}
    outputs: dict[str, Any] = {}
    for described in instructions.get("calls", ()):
        name, reply = described["name"], QuantizeReply()
        inputs = [_clone(tensors[key]) for key in described["inputs"]]
        results = {f"after.{place}": tensor for place, tensor in enumerate(inputs)}
        try:
            results |= made(objects, inputs, groups, described)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not replies and not str(error):
                raise
            reply.error = describe(error)
        for key, (kind, shape) in described["expects"].items():
            result, dtype = results.get(key), _dtypes[kind]
            if not isinstance(result, _Tensor) or (result.dtype, list(result.shape)) != (dtype, shape):
                reply.misfits[key] = type_of(result)
                result = _zeros(shape, dtype=dtype)
            # Scales may be expanded. A tensor that is sent has a stride.
            outputs[f"{name}.{key}"] = _copy(_zeros(shape, dtype=dtype), _detach(result))
        replies[name] = reply
    return replies, outputs


def made(objects: list, inputs: list[torch.Tensor], groups: list, described: dict) -> dict[str, Any]:
    """The call's tensors, by their names."""
    block = tuple(described["block"])
    if described["kind"] == "dequantize":
        return {"back": objects[1](*inputs, block)}
    more: dict[str, Any] = {}
    if "dtype" in described:
        more["dtype"] = _dtypes[described["dtype"]]
    if "group" in described:
        more["group"] = groups[described["group"]]
    returned = objects[0](*inputs, block, **more)
    parts = list(returned) if isinstance(returned, list | tuple) else [returned]
    return dict(zip(("values", "scales"), parts, strict=False))
