"""Judging what trains a model: the toy models, what drives a student's class in the ranks, the comparison.

In the ranks: `toys` (models from a description), `recipes` (drive the class for a few steps), `watching`
(what leaves while backward still runs, and how much memory is held). In the judge: `single` (the same
training in one process, in float64) and `lines` (what came back against it: values, traffic, memory).
Nothing here names an algorithm.
"""
