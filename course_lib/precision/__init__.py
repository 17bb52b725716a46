"""Numbers with fewer bits: formats, and a scale that saves small gradients.

formats.py   FORMATS, round_to: a float from its bits, and a number rounded to a format
scaler.py    LossScaler: a scaled loss for fp16, and N ranks that skip a step together
rounding.py  stochastic_round: weights of 16 bits that small steps move, on average
scaling.py   quantize, dequantize: eight bits an element and a scale for each block
codes.py     DYNAMIC_SIGNED, DYNAMIC_UNSIGNED: 256 numbers for an optimizer's moments
eight_bit.py Adam8bit: moments of one byte

The names are imported when they are first used: so the others can be used while an exercise hides a module.
With `course_lib/exports.py` the folder can be copied out: it imports torch only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, ByteStates, dynamic_map, linear_map
    from .eight_bit import Adam8bit
    from .formats import FORMATS, Format, round_to
    from .rounding import stochastic_round
    from .scaler import LossScaler
    from .scaling import BLOCKS, dequantize, dequantize_mx, quantize, quantize_mx

__getattr__, __dir__, __all__ = exports(__name__)
