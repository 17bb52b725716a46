"""Draw the README's figure from a real run: `python tools/readme_figure.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from course_lib import launch
from course_lib.collectives import ring_all_reduce
from course_lib.ledger.watch import Film, contribution, watch
from course_lib.pictures.stepper import stepper

FIGURE = Path(__file__).parent.parent / "docs" / "ring_all_reduce.png"


def watched() -> Film:
    tensor = contribution(4)
    with watch(tensor) as film:
        ring_all_reduce(tensor)
    return film


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    run = launch(watched, world_size=4)
    FIGURE.parent.mkdir(exist_ok=True)
    stepper(run.ledger, run).still().savefig(FIGURE, dpi=110, metadata={"Software": None})
    print(f"{FIGURE.name}: {FIGURE.stat().st_size:,} bytes")
