"""Numbers with fewer bits, and a scale that saves small gradients.

formats.py   FORMATS, round_to: a float from its bits, and a number rounded to a format
scaler.py    LossScaler: a scaled loss for fp16, and N ranks that skip a step together
rounding.py  stochastic_round: 16-bit weights that small steps move, on average
scaling.py   quantize, dequantize: eight bits per element and a scale for each block
codes.py     DYNAMIC_SIGNED, DYNAMIC_UNSIGNED: 256 numbers for an optimizer's moments
eight_bit.py Adam8bit: moments of one byte

The names are imported when they are first used, so the other names still work while an exercise hides a
module. The folder can be copied out together with `course_lib/exports.py`, because it imports only torch.
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
