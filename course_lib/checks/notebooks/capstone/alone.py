"""One process next to the ranks, on one thread: on a busy machine, two would wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from course_lib.models import GPT, GPTConfig


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def model_of(config: GPTConfig, seed: int, drawn_in: torch.dtype = torch.float32) -> GPT:
    """The model in float64; the random state and the default dtype are left as they were."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(drawn_in)
        try:
            return GPT(config).double()
        finally:
            torch.set_default_dtype(before)
