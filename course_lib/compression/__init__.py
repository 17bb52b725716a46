"""Sending less than the gradient, and remembering the rest.

One file for each idea:

    sparse.py    topk_all_reduce: the largest elements, with their places
    int8.py      int8_all_reduce: every element in eight bits, a scale for each block
    powersgd.py  PowerSGD: two thin factors of each matrix
    sign.py      OneBitAdam, sign_all_reduce: one bit an element, after a warm-up in full precision
    common.py    the shared part; the folder imports torch only and can be copied out as it is

All compressors use error feedback: a rank adds the part that it did not send in the last step to the next
gradient, so that nothing is lost, only late. Without it a biased compressor stops where the errors add up
to the gradient (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019). All of them compute the mean over the ranks and leave the same bits on every rank.
Each docstring states the bytes sent; `course_lib.facts` has them as functions of the sizes.
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
