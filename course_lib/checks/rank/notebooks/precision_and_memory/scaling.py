"""Recipe (see `harness`) that calls `quantize(x, block, ...)` and `dequantize(values, scales, block)`.

The reply for the call "a" has "a.values" and "a.scales" or "a.back", and the inputs afterwards as
"a.after.0"; values["a"] is a `QuantizeReply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.harness import describe
from course_lib.checks.wire import Instructions, Place

_dtypes = {str(dtype)[6:]: dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass
class QuantizeReply:
    """error: the exception that was raised; misfits: {name: text} of a tensor that came in another form."""

    error: Place | None = None
    misfits: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QuantizeCall:
    """One call.

    name       the prefix of all names in the reply
    kind       "quantize" or "dequantize"
    inputs     names of tensors: x, or values and scales
    block      [rows, columns]
    expects    {name: [dtype, shape]} of the tensors in the reply
    dtype      the name of one; None: the default is asked for
    group      index of a group, which is passed by name; None: none is
    """

    name: str
    kind: str
    inputs: list[str]
    block: list[int]
    expects: Expects
    dtype: str | None = None
    group: int | None = None


@dataclass(frozen=True)
class QuantizeInstructions(Instructions):
    calls: list[QuantizeCall]

    def parts(self) -> list[str]:
        return [call.name for call in self.calls]


def scales(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: QuantizeInstructions
) -> tuple[dict[str, QuantizeReply], dict[str, Any]]:
    """Every call of the instructions, one after the other."""
    replies: dict[str, QuantizeReply] = {}
    outputs: dict[str, Any] = {}
    for call in instructions.calls:
        name, reply = call.name, QuantizeReply()
        inputs = [frozen.clone(tensors[key]) for key in call.inputs]
        results = {f"after.{place}": tensor for place, tensor in enumerate(inputs)}
        try:
            results |= made(objects, inputs, groups, call)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not replies and not str(error):
                raise
            reply.error = describe(error)
        sent = as_agreed(results, call.expects, reply.misfits)
        outputs |= {f"{name}.{key}": tensor for key, tensor in sent.items()}
        replies[name] = reply
    return replies, outputs


def made(objects: list, inputs: list[torch.Tensor], groups: list, call: QuantizeCall) -> dict[str, Any]:
    """The call's tensors, by their names."""
    block = tuple(call.block)
    if call.kind == "dequantize":
        return {"back": objects[1](*inputs, block)}
    more: dict[str, Any] = {}
    if call.dtype is not None:
        more["dtype"] = _dtypes[call.dtype]
    if call.group is not None:
        more["group"] = groups[call.group]
    returned = objects[0](*inputs, block, **more)
    parts = list(returned) if isinstance(returned, list | tuple) else [returned]
    return dict(zip(("values", "scales"), parts, strict=False))
