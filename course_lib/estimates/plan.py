"""Which layout fits? A model, so many GPUs, so much room on each: the cheapest way to train it, if any.

A layout divides model states over the GPUs (stages 0 to 3 of ZeRO, notebook 04) and may checkpoint every
block (notebook 09). Nothing here divides activations or logits of one sequence: where these alone are too
much, no stage helps, and tensor, pipeline or context parallelism begin (notebooks 06 to 08).
"""

from __future__ import annotations

from course_lib.facts import LAYOUTS, first_that_fits, layout_bytes
from course_lib.facts.transformer import Shape

__all__ = ["bills", "first_that_fits"]


def bills(
    shape: Shape, gpus: int, batch: int, seq: int
) -> dict[tuple[int, bool], dict[str, float]]:
    """The bill of one GPU for every layout, in the order of cost: bytes by what they hold.

    The keys are (stage, checkpoint), as `first_that_fits` returns them.
    """
    return {layout: layout_bytes(shape, gpus, batch, seq, *layout) for layout in LAYOUTS}
