"""A small GPT for a recipe and its judge: a description is plain data, and gives the same model anywhere.

{"seed": 7, "layers": 2, "width": 16, ...}        what is not the seed goes to GPTConfig
"""

from __future__ import annotations

import torch

from course_lib.models import GPT, GPTConfig

DEVIATION = 0.3  # of all parameters: biases of 0 and norms of 1 would hide what is done to them


def build(description: dict) -> GPT:
    """The model in float64; the caller's random state is left as it was."""
    config = dict(description)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.pop("seed"))
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            model = GPT(GPTConfig(**config))
        finally:
            torch.set_default_dtype(default)
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(std=DEVIATION)
    return model
