"""A wrapper whose replicas are on some ranks only, passed as group=."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.notebooks.data_parallel.replicas import (
    AGAIN,
    SECONDS,
    only_later,
    read_too_early,
    to_float32,
    training,
)

MEMBERS, WORLD = (1, 2), 3  # the group's first rank is not the world's


def in_a_group(draw: kit.Draw, sum_of: str = "bucket", **more: Any) -> kit.Case:
    """Two of three ranks train; the third takes no part. sum_of: see `right_values`; more: `training`."""
    run = training(draw, len(MEMBERS), {"name": "plain", "width": 4}, **more)
    title = f"group {{{', '.join(map(str, MEMBERS))}}} of {WORLD} ranks"
    n = len(MEMBERS)
    mistakes = [*training_runs.common(n), training_runs.whole_world(n, WORLD), read_too_early(n, sum_of)]

    def as_exact(what: str) -> Callable[[kit.Observed], kit.Finding]:
        line = training_runs.same_as_one_process(what, run, title, mistakes=mistakes)

        def judge(observed: kit.Observed) -> kit.Finding:
            finding = line.judge(observed)
            less = not finding.ok and what != "start" and to_float32(run, what, observed)
            return kit.RIGHT if less else finding

        return judge

    same_values = kit.both(*(as_exact(what) for what in ("start", "grad", "param")))

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = same_values(observed)
        if finding.ok or len(finding.sentences) > 1:
            return finding
        if only_later(run, "grad", observed):
            return kit.wrong(*finding.sentences, AGAIN, cause="only later")
        return kit.wrong(*finding.sentences, training_runs.IN_A_GROUP)

    line = kit.Line(title, judge, short=True)
    return training_runs.training_case(
        "replicas", title, run, [line], members=MEMBERS, world_size=WORLD, timeout=SECONDS
    )
