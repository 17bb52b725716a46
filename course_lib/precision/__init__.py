"""Numbers with fewer bits: formats, and a scale that saves small gradients.

formats.py   FORMATS, round_to: a float from its bits, and a number rounded to a format
scaler.py    LossScaler: a scaled loss for fp16, and N ranks that skip a step together
rounding.py  stochastic_round: weights of 16 bits that small steps move, on average
scaling.py   quantize, dequantize: eight bits an element and a scale for each block
codes.py     DYNAMIC_SIGNED, DYNAMIC_UNSIGNED: 256 numbers for an optimizer's moments
eight_bit.py Adam8bit: moments of one byte
explorer.py  formats, gradients: boxes with controls

The names are imported when they are first used: so the others can be used while an exercise hides a module.
The folder can be copied out without explorer.py, which needs the course's colours: the rest imports torch
only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, ByteStates, dynamic_map, linear_map
    from .eight_bit import Adam8bit
    from .formats import FORMATS, Format, round_to
    from .rounding import stochastic_round
    from .scaler import LossScaler
    from .scaling import BLOCKS, dequantize, dequantize_mx, quantize, quantize_mx

__all__ = [
    "BLOCKS",
    "DYNAMIC_SIGNED",
    "DYNAMIC_UNSIGNED",
    "FORMATS",
    "Adam8bit",
    "ByteStates",
    "Format",
    "LossScaler",
    "dequantize",
    "dequantize_mx",
    "dynamic_map",
    "linear_map",
    "quantize",
    "quantize_mx",
    "round_to",
    "stochastic_round",
]

_MODULES = {
    "Adam8bit": "eight_bit",
    "BLOCKS": "scaling",
    "ByteStates": "codes",
    "DYNAMIC_SIGNED": "codes",
    "DYNAMIC_UNSIGNED": "codes",
    "FORMATS": "formats",
    "Format": "formats",
    "LossScaler": "scaler",
    "dequantize": "scaling",
    "dequantize_mx": "scaling",
    "dynamic_map": "codes",
    "linear_map": "codes",
    "quantize": "scaling",
    "quantize_mx": "scaling",
    "round_to": "formats",
    "stochastic_round": "rounding",
}


def __getattr__(name: str) -> Any:
    """A public name, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
