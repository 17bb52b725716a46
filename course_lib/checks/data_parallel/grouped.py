"""A wrapper whose replicas are on some ranks only, passed as group=."""

from __future__ import annotations

from typing import Any

from course_lib.checks.data_parallel.replicas import SECONDS, training
from course_lib.checks.engine.case import Case, Draw, Finding, Line, Observed, wrong
from course_lib.checks.engine.training import lines
from course_lib.checks.engine.values import both

MEMBERS, WORLD = (1, 2), 3  # the group's first rank is not the world's


def in_a_group(draw: Draw, **more: Any) -> Case:
    """Two of three ranks train; the third takes no part. more: as of `training`."""
    run = training(draw, len(MEMBERS), {"name": "plain", "width": 4}, **more)
    title = f"group {{{', '.join(map(str, MEMBERS))}}} of {WORLD} ranks"
    mistakes = [*lines.common(len(MEMBERS)), lines.whole_world(len(MEMBERS), WORLD)]
    given = both(
        *(
            lines.same_as_one_process(what, run, title, mistakes=mistakes).judge
            for what in ("start", "grad", "param")
        )
    )

    def judge(seen: Observed) -> Finding:
        found = given(seen)
        if found.ok or len(found.sentences) > 1:
            return found
        return wrong(*found.sentences, lines.IN_A_GROUP)

    line = Line(title, judge, short=True)
    return lines.case(
        "replicas", title, run, [line], members=MEMBERS, world_size=WORLD, timeout=SECONDS
    )
