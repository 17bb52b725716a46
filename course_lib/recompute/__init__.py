"""Recomputation: activations that are not stored, are stored elsewhere, or never exist as a whole.

    checkpointing.py checkpoint: keep a function's arguments, and run it again in backward
    lazy.py          lazy_checkpoint: the same with hooks on what autograd keeps; it can stop early
    segments.py      best_segment, run_segments: after how many layers to set a checkpoint
    offload.py       offload_saved: kept tensors wait in a file, or in the host's memory
    in_backward.py   step_in_backward: each parameter's step as soon as its gradient is ready
    chunks.py        chunked_loss: cross entropy without the (tokens, vocabulary) matrix

The names are imported when they are first used, so the other names still work while an exercise hides a
module. The folder can be copied out together with `course_lib/exports.py`, because it imports only torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports
from .in_backward import step_in_backward
from .offload import Offloaded, offload_saved

if TYPE_CHECKING:
    from .checkpointing import checkpoint
    from .chunks import chunked_loss
    from .lazy import lazy_checkpoint
    from .segments import best_segment, run_segments

__getattr__, __dir__, __all__ = exports(__name__)
