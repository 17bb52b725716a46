"""Points mean the idea: the policy of docs/points.md on wrong answers, over all exercises.

Each wrong cell of `tests/mutants/` says what it gets wrong (`# is:`), and `scores.json` beside it how much
it keeps.
"""

from __future__ import annotations

import pytest

from autograder.sample.mutants import read_mutants
from tests.checks import scores

FILES = scores.files([])
HALF = 0.5


@pytest.mark.parametrize("file", FILES, ids=scores.name_of)
def test_every_wrong_answer_says_what_it_gets_wrong_and_has_a_score(file) -> None:
    wrong = [cell for cell in read_mutants(file) if not cell.right]
    assert not [cell.title for cell in wrong if not cell.misses], "`# is:` is missing"
    titles = {one.mutant.title for one in scores.scored(file)}
    stored = set(scores.stored(file.parent.name).get(file.stem, ()))
    assert titles == stored == {cell.title for cell in wrong}, (
        f"scores.json has other answers: python -m tests.checks.scores write {scores.name_of(file)}"
    )


@pytest.mark.parametrize("file", FILES, ids=scores.name_of)
def test_missing_the_idea_costs_half_and_nothing_else_costs_more(file) -> None:
    answers = scores.scored(file)
    ideas = [one for one in answers if one.mutant.misses == "idea"]
    most = max((one.score for one in ideas), default=0.0)
    faults = [f"misses the idea: {one}" for one in map(say, ideas[:1]) if most > HALF]
    for one in answers:
        if one.mutant.misses in ("slip", "detail") and one.score < most:
            faults.append(f"{say(one)}, and {say(ideas[0])}, which misses the idea")
        if one.mutant.misses == "detail" and one.score < HALF:
            faults.append(f"{say(one)}, and is right but for a detail")
    assert not faults, "\n".join(faults)


def say(one: scores.Scored) -> str:
    return f"{one.mutant.title!r} keeps {one.score:.3f}"


def test_a_word_that_names_no_exercise_is_refused() -> None:
    with pytest.raises(SystemExit, match="is called step_tiem"):
        scores.files(["clip_grad_norm", "step_tiem"])
    with pytest.raises(SystemExit):
        scores.files(["clip"])  # a part of a name does not count
    assert {file.parent.name for file in scores.files(["05_fsdp"])} == {"05_fsdp"}
    assert len(scores.files([])) == len(FILES)
