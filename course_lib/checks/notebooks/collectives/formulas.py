"""The costs of the algorithms: formulas that the student writes."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.collectives import slips
from course_lib.checks.notebooks.collectives.slips import DOUBLING, RING
from course_lib.checks.notebooks.collectives.sums import REFERENCE

FORMULAS = (*REFERENCE, "course_lib.facts")
NAMES = ("broadcast", "reduce_scatter", "all_gather", RING, DOUBLING, "all_to_all")


@kit.exercise(points=2, objects=("ring_bytes_sent", "ring_rounds"), references=FORMULAS)
def ring_prediction(draw: kit.Draw) -> Iterator[kit.Case]:
    some = draw.integer(10, 100) * 1000
    sizes = [(4, 4000), (8, 10**9), (2, some), (7, 7 * some), (1, 4000)]
    yield from kit.evaluated(
        [
            kit.Prediction(
                "ring_bytes_sent",
                index=0,
                arguments=sizes,
                formula=lambda n, m: facts.bytes_sent_per_rank(RING, n, m),
                slips=slips.RING_BYTES,
            ),
            kit.Prediction(
                "ring_rounds",
                index=1,
                arguments=[(n,) for n, _ in sizes],
                formula=lambda n: facts.rounds(RING, n),
                slips=slips.RING_ROUNDS,
            ),
        ]
    )


@kit.exercise(
    points=4, objects=("bytes_sent_per_rank", "rounds", "seconds", "crossover"), references=FORMULAS
)
def predictions(draw: kit.Draw) -> Iterator[kit.Case]:
    nbytes = 840_000 * draw.integer(10, 100)
    link = draw.integer(5, 50) * 1e-6, 1 / (draw.integer(5, 50) * 1e9)
    worlds = (8, 5, 2, 6)
    questions = [
        kit.Prediction(
            "bytes_sent_per_rank",
            index=0,
            arguments=[(name, n, nbytes) for n in worlds],
            formula=facts.bytes_sent_per_rank,
            slips=slips.BYTES.get(name, slips.SHARDED_BYTES),
            weight=1 / len(NAMES),
            title=f"bytes_sent_per_rank: {name}",
        )
        for name in NAMES
    ]
    questions += [
        kit.Prediction(
            "rounds",
            index=1,
            arguments=[(name, n) for n in worlds],
            formula=facts.rounds,
            slips=slips.ROUNDS.get(name, slips.SHARDED_ROUNDS),
            weight=1 / len(NAMES),
            title=f"rounds: {name}",
        )
        for name in NAMES
    ]
    questions += [
        kit.Prediction(
            "seconds",
            index=2,
            arguments=[(name, n, nbytes, *link) for name in NAMES for n in (8, 5)],
            formula=facts.seconds,
            slips=slips.SECONDS,
            otherwise="An algorithm takes rounds times alpha plus bytes times beta.",
        ),
        kit.Prediction(
            "crossover",
            index=3,
            arguments=[(n, *link) for n in (8, 16, 5, 2)],
            formula=slips.crossing,
            slips=slips.CROSSOVER,
            otherwise=f"Set seconds({RING!r}, ...) equal to seconds({DOUBLING!r}, ...) and solve for "
            "the bytes.",
        ),
    ]
    yield from kit.evaluated(questions)
