"""Sending less than the gradient, and remembering the rest.

One file for each idea:

    sparse.py    topk_all_reduce: the largest elements, with their indices
    int8.py      int8_all_reduce: every element in eight bits, a scale for each block
    powersgd.py  PowerSGD: two thin factors of each matrix
    sign.py      OneBitAdam, sign_all_reduce: one bit per element, after a warm-up in full precision
    common.py    the shared part

The folder imports only torch, so it can be copied out as it is.

All compressors use error feedback. A rank adds whatever it did not send in the last step to the next
gradient, so nothing is lost, but only arrives late. Without error feedback, a biased compressor stops where
the errors add up to the gradient (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient
Compression Schemes", ICML 2019). All compressors compute the mean over the ranks and leave the same bits on
every rank. Each docstring states the bytes sent, and `course_lib.facts` provides them as functions of the
sizes.
"""

from .int8 import dequantize, int8_all_reduce, quantize
from .powersgd import PowerSGD
from .sign import OneBitAdam, shard_size, sign_all_reduce
from .sparse import topk_all_reduce

__all__ = [
    "OneBitAdam",
    "PowerSGD",
    "dequantize",
    "int8_all_reduce",
    "quantize",
    "shard_size",
    "sign_all_reduce",
    "topk_all_reduce",
]
