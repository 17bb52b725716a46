"""Judging a layer that several ranks hold together: forward, backward, what is sent, held and kept.

In the ranks: `recipes` (make the layer, run it forward and backward), `counting` (bytes held, and saved for
backward), `own_parts` (what PyTorch has ready-made is refused). In the judge: `runs` (what is to be run,
and what must come back), `lines` (what came back against it). In both: `models` (a small GPT). Nothing here
names an algorithm.
"""
