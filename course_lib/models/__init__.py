"""The models trained in the course.

    config.py    the sizes and parts of a GPT: GPTConfig; PRESETS from 0.1 to 124 million parameters, and
                 PUBLISHED models
    gpt.py       a GPT to read in ten minutes, and the modules the parallel versions replace

On one rank:

    model = GPT(PRESETS["0.8M"])
    inputs, targets = batch(library_text(), step=0, batch_size=8, length=256)  # course_lib.data
    next_token_loss(model(inputs), targets).backward()

You can copy both files out together. They import only torch and each other.
"""

from course_lib.models.config import PRESETS, PUBLISHED, GPTConfig
from course_lib.models.gpt import (
    GPT,
    MLP,
    Block,
    SelfAttention,
    causal_attention,
    next_token_loss,
    rotate,
)

__all__ = [
    "GPT",
    "MLP",
    "PRESETS",
    "PUBLISHED",
    "Block",
    "GPTConfig",
    "SelfAttention",
    "causal_attention",
    "next_token_loss",
    "rotate",
]
