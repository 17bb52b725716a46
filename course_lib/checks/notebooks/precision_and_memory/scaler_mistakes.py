"""The mistakes that a loss scaler's answer is held against, each with the sentence that names it."""

from __future__ import annotations

from course_lib.checks.notebooks.precision_and_memory.scaler_rule import Mistake

ALIKE = "One number from each rank decides for all: an all-reduce (MAX) of what each has found."
OWN = f"The scaler decided from the rank's own gradients. {ALIKE}"
OUTVOTED = (
    "One rank's infinity was outvoted: neither a MIN nor a mean nor a majority lets one finding decide. Take "
    "the MAX of the findings."
)
COUNTED = "A skipped step was counted as a good one."
# The sentence for each mistake, in the order in which they are tried.
MISTAKES: tuple[tuple[str, Mistake], ...] = (
    (OWN, Mistake(agree="own")),
    (OUTVOTED, Mistake(agree="all")),
    (OUTVOTED, Mistake(agree="majority")),
    (OUTVOTED, Mistake(agree="half")),
    ("The first rank's finding decided for all. " + ALIKE, Mistake(agree="first")),
    (
        "An infinity outside of `group` counted: pass group=self.group to the all-reduce.",
        Mistake(agree="world"),
    ),
    (
        "The scale is not divided out again: gradients are {scale} times too large, and so is a step of SGD.",
        Mistake(divided=(0, 0, 0)),
    ),
    (
        "After unscale_ the step divided by the scale once more: remember that it has been done.",
        Mistake(divided=(1, 1, 1)),
    ),
    (
        "Without a call of unscale_ nothing was divided by the scale: then step has to call it.",
        Mistake(divided=(1, 0, 0)),
    ),
    ("A second unscale_ before update divides by the scale again.", Mistake(refuses=False)),
    ("A NaN was not seen: every comparison with NaN is false. Ask isfinite().", Mistake(sees="no NaN")),
    ("-inf was not seen: ask isfinite(), or compare the magnitude.", Mistake(sees="positive")),
    ("An infinity was not seen: isnan() is true of NaN alone.", Mistake(sees="NaN")),
    (
        "Only the optimizer's first group of parameters was looked at: go through all of param_groups.",
        Mistake(sees="first group"),
    ),
    ("Only one parameter was looked at: go through all of them.", Mistake(sees="first")),
    (
        "A sum of finite gradients overflowed and was taken for an infinity: ask each element, isfinite().",
        Mistake(sees="sum"),
    ),
    ("Infinities and NaN were not looked for.", Mistake(sees="none")),
    ("The step was taken although a gradient was infinite or NaN.", Mistake(skips="nothing")),
    (
        "The step was taken with gradients of 0: momentum moved the weights. Skip optimizer.step() itself.",
        Mistake(skips="zeros"),
    ),
    (
        "Parameters with finite gradients moved in a step that is to be skipped: skip it for all of them.",
        Mistake(skips="good ones"),
    ),
    ("One skipped step, and the scale fell twice: change it in update alone.", Mistake(backoffs=2)),
    (
        "The scale grows one step too late: after `interval` good steps, not after `interval` + 1.",
        Mistake(late=1),
    ),
    (
        "The scale grows one step too early: after `interval` good steps, not `interval` - 1.",
        Mistake(late=-1),
    ),
    (
        "The count of good steps was not reset by a skip: growth needs `interval` of them in a row.",
        Mistake(kept_after_skip=True),
    ),
    (
        "The count of good steps was not reset by growth: the scale grew again in the next step.",
        Mistake(kept_after_growth=True),
    ),
    (COUNTED, Mistake(counts_skips=True)),
    (COUNTED, Mistake(counts_skips=True, kept_after_skip=True)),
    (
        "The scale never grows: after `interval` good steps it is multiplied by `growth`.",
        Mistake(grows=False),
    ),
    (
        "The scale stays after a skipped step: the next one overflows again. Multiply it by `backoff`.",
        Mistake(backs_off=False),
    ),
    ("`backoff` is a factor of its own: multiply by it.", Mistake(inverse=True)),
)
