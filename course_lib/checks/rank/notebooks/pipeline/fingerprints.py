"""In the rank: a tensor as some numbers, by which the judge recognises it (`notebooks.pipeline.recognising`).

A `fingerprint` has several sums, each with other weights, so that no two different tensors have the same one
by chance. (One sum alone, weighted by the elements' places, is 48 for [8, 8, 8] and for [6, 9, 8].)
"""

from __future__ import annotations

import torch

from course_lib.checks.rank import frozen

_cos = torch.cos
FREQUENCIES = (1.0, 1.3, 1.7, 2.3)  # of the weights: cosines of the elements' places


def fingerprint(x: torch.Tensor) -> list[float]:
    """[how many elements, and their sums, each with other weights]."""
    flat = frozen.detach(x).double().flatten()
    places = frozen.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    weights = frozen.stack([_cos(frequency * places) for frequency in FREQUENCIES])
    return [len(flat), *(weights @ flat).tolist()]
