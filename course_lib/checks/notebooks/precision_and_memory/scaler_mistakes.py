"""The mistakes that a loss scaler's answer is held against, each with the sentence that names it."""

from __future__ import annotations

from course_lib.checks.notebooks.precision_and_memory.scaler_rule import Mistake

ALIKE = "One number from each rank decides for all ranks, so all-reduce (MAX) what each rank has found."
OWN = f"The scaler decided from the rank's own gradients. {ALIKE}"
OUTVOTED = (
    "One rank's infinity was outvoted, because neither a MIN nor a mean nor a majority lets one finding "
    "decide. Take the MAX of the findings."
)
COUNTED = "A skipped step was counted as a good one."
LARGE = (
    "Large gradients that are finite were taken for an infinity, as if by a sum of them or a bound. Ask "
    "isfinite() of each element."
)
# The sentence for each mistake, in the order in which they are tried.
MISTAKES: tuple[tuple[str, Mistake], ...] = (
    (OWN, Mistake(agree="own")),
    (OUTVOTED, Mistake(agree="all")),
    (OUTVOTED, Mistake(agree="majority")),
    (OUTVOTED, Mistake(agree="half")),
    (
        "Two ranks found an infinity, so the sum of their findings was 2, but only 1 was taken for an "
        "infinity. Take the MAX of the findings.",
        Mistake(agree="single"),
    ),
    ("The first rank's finding decided for all. " + ALIKE, Mistake(agree="first")),
    (
        "An infinity outside of `group` counted. Pass group=self.group to the all-reduce.",
        Mistake(agree="world"),
    ),
    (
        "The scale is not divided out again, so gradients are {scale} times too large, and so is a step of "
        "SGD.",
        Mistake(divided=(0, 0, 0)),
    ),
    (
        "After unscale_, the step divided by the scale once more. Remember that it has been done.",
        Mistake(divided=(1, 1, 1)),
    ),
    (
        "Without a call of unscale_, nothing was divided by the scale, so step has to call it then.",
        Mistake(divided=(1, 0, 0)),
    ),
    ("A second unscale_ before update divides by the scale again.", Mistake(refuses=False)),
    (
        "A NaN was not seen, because every comparison with NaN is false. Ask isfinite() instead.",
        Mistake(sees="no NaN"),
    ),
    ("-inf was not seen. Ask isfinite(), or compare the magnitude.", Mistake(sees="positive")),
    ("An infinity was not seen, because isnan() is true only for NaN.", Mistake(sees="NaN")),
    (
        "Only the optimizer's first group of parameters was looked at. Go through all of param_groups.",
        Mistake(sees="first group"),
    ),
    ("Only one parameter was looked at. Go through all of them.", Mistake(sees="first")),
    (
        "Only the last parameter decided. If one finding is kept in a loop, a later parameter must not "
        "overwrite it.",
        Mistake(sees="last"),
    ),
    (LARGE, Mistake(sees="sum")),
    (LARGE, Mistake(sees="bound")),
    ("Infinities and NaN were not looked for.", Mistake(sees="none")),
    ("The step was taken although a gradient was infinite or NaN.", Mistake(skips="nothing")),
    (
        "The step was taken with gradients of 0, so momentum moved the weights. Skip optimizer.step() "
        "itself.",
        Mistake(skips="zeros"),
    ),
    (
        "Parameters with finite gradients moved in a step that must be skipped. Skip it for all of them.",
        Mistake(skips="good ones"),
    ),
    ("After one skipped step, the scale fell twice. Change the scale only in update.", Mistake(backoffs=2)),
    (
        "The scale grows one step too late, after `interval` + 1 good steps instead of `interval`.",
        Mistake(late=1),
    ),
    (
        "The scale grows one step too early, after `interval` - 1 good steps instead of `interval`.",
        Mistake(late=-1),
    ),
    (
        "The count of good steps was not reset by a skip, but growth needs `interval` of them in a row.",
        Mistake(kept_after_skip=True),
    ),
    (
        "The count of good steps was not reset by growth, so the scale grew again in the next step.",
        Mistake(kept_after_growth=True),
    ),
    (COUNTED, Mistake(counts_skips=True)),
    (COUNTED, Mistake(counts_skips=True, kept_after_skip=True)),
    ("The scale never grows. After `interval` good steps, multiply it by `growth`.", Mistake(grows=False)),
    (
        "The scale stays after a skipped step, so the next one overflows again. Multiply it by `backoff`.",
        Mistake(backs_off=False),
    ),
    ("`backoff` is a factor of its own, so multiply by it.", Mistake(inverse=True)),
)
