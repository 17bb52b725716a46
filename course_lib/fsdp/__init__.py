"""Fully sharded data parallelism: how ZeRO-3 is made fast, and the functions that training needs around it.

clip.py   clip_grad_norm_: the norm of a gradient that no rank holds as a whole; all pieces scaled alike
"""

from course_lib.fsdp.clip import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
