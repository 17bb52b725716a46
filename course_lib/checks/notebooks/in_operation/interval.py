"""best_interval: how long a run works between two saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt

from course_lib.checks import kit
from course_lib.checks.notebooks.in_operation.references import REFERENCES

NAME = "best_interval"
POINT = "the cost of saves against the cost of failures"
ROOT = (
    "The root is missing. The run loses save_seconds / interval to saves and interval / (2 mtbf) to "
    "failures. Their sum is smallest if the interval squared is 2 save_seconds mtbf."
)
ROOT_OF_ONE = f"{ROOT} "
MTBF = (
    "A failure costs half an interval on average, so an interval as long as the time between two failures "
    "loses about half of the work. Shorter intervals lose less, but cost more saves."
)
HALF_OF_IT = (
    "The answer does not depend on the seconds of a save. A run that saves quickly can save often, so weigh "
    "save_seconds / interval against interval / (2 mtbf)."
)
SHARE = (
    "The answer is the share of the time lost at the best interval. Instead, return the seconds of work "
    "between two saves."
)
IDEAS = (ROOT, ROOT_OF_ONE, MTBF, HALF_OF_IT, SHARE)


def young(save_seconds: float, mtbf: float) -> float:
    return sqrt(2 * save_seconds * mtbf)


def daly(save_seconds: float, mtbf: float) -> float:
    ratio = save_seconds / (2 * mtbf)
    return young(save_seconds, mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_seconds


SLIPS: Mapping[str, kit.Formula] = {
    ROOT: lambda save, mtbf: 2 * save * mtbf,
    ROOT_OF_ONE: lambda save, mtbf: save * mtbf,
    MTBF: lambda save, mtbf: mtbf,
    HALF_OF_IT: lambda save, mtbf: mtbf / 2,
    SHARE: lambda save, mtbf: sqrt(2 * save / mtbf),
    "A failure loses half an interval on average, not a whole one, so the cost is interval / (2 mtbf).": (
        lambda save, mtbf: sqrt(save * mtbf)
    ),
    "The factor 2 belongs under the root, together with save_seconds and mtbf.": (
        lambda save, mtbf: 2 * sqrt(save * mtbf)
    ),
    "The half was put on the wrong side. The cost 1 / (2 mtbf) has the 2 in its denominator, so the "
    "interval has it in the numerator.": (lambda save, mtbf: sqrt(save * mtbf / 2)),
    "The answer includes the time of a save, but the interval is only the work between two saves.": (
        lambda save, mtbf: young(save, mtbf) + save
    ),
    "The answer is in minutes, which you also get with hours under the root. The arguments are in seconds, "
    "and so is the result.": (lambda save, mtbf: young(save, mtbf) / 60),
    "The answer is in hours, but both the arguments and the result are in seconds.": lambda save, mtbf: (
        young(save, mtbf) / 3600
    ),
    "The answer is 60 times too large, as if mtbf were in hours, but it is already in seconds.": (
        lambda save, mtbf: 60 * young(save, mtbf)
    ),
    "The root has mtbf divided by save_seconds. Multiply them instead.": (
        lambda save, mtbf: sqrt(2 * mtbf / save)
    ),
}


@kit.exercise(points=4, objects=(NAME,), references=REFERENCES, point=POINT)
def best_interval(draw: kit.Draw) -> Iterator[kit.Case]:
    """Of short saves Young's interval and Daly's are the same within 2 %, of long ones within 4 %."""
    short = [(float(draw.integer(3, 9)), 3600.0 * draw.integer(40, 90)) for _ in range(2)]
    another = [(0.5 * draw.integer(3, 9), 86400.0 * draw.integer(5, 30)) for _ in range(2)]
    # far from mtbf / 10 and mtbf / 12
    long = [(60.0 + draw.integer(0, 5), 14_400.0 + 60 * draw.integer(0, 5))]
    table = [
        ("short saves", short, young, 2.0, 0.02),
        ("another job", another, young, 1.0, 0.02),
        ("saves of a minute, failures every four hours", long, daly, 1.0, 0.04),
    ]
    if draw.hidden:
        more = [(float(draw.integer(10, 20)), 3600.0 * draw.integer(100, 200)) for _ in range(3)]
        table.append(("other jobs", more, young, 0.5, 0.02))
    yield from kit.evaluated(
        [
            kit.Prediction(
                NAME, 0, arguments, formula, SLIPS, weight=weight, title=title, tolerance=tolerance,
                ideas=IDEAS,
                otherwise="Add up what the run loses to saves and what it loses to failures, as shares of "
                "its time. At the best interval, the derivative of the sum is zero.",
            )
            for title, arguments, formula, weight, tolerance in table
        ]
    )  # fmt: skip
