"""The checks of notebook 05: how is ZeRO-3 made fast?"""

from course_lib.checks.notebooks.fsdp.clip import clip_grad_norm

__all__ = ["clip_grad_norm"]
