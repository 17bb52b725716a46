"""suspects: three programs that train alike on eight ranks. What would they cost on 1,024?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.references import REFERENCES

NOTHING = "nothing"
KINDS = ("bytes over dp", "bytes along tp", "bytes along pp", "parameters", "activations", NOTHING)
RANK, COUNT = 517, 16  # as in the notebook's dry runs
STAGES, REPLICAS, STAGE = 8, 16, 4
# verdict_a is about suspect_a of `course_lib.trainer`, and so on.
RIGHT: Mapping[str, tuple[str, float]] = {
    "verdict_a": ("activations", COUNT / min(COUNT, STAGES - STAGE)),
    "verdict_b": (NOTHING, 1.0),
    "verdict_c": ("bytes over dp", REPLICAS / 2),
}
MARKED = (
    "One row of the table has a mark, because the dry run and the closed form differ there. Name that row."
)
SAYS: Mapping[str, Mapping[str, str]] = {
    "verdict_a": {
        NOTHING: "The program's bytes are right on every axis, so look at the rows about memory.",
        "parameters": "Weights and gradients agree with the closed form, so look at what is kept for "
        "backward.",
    },
    "verdict_b": {
        "bytes over dp": "The program makes two calls while another makes one. Compare the bytes, because "
        "a reduce-scatter and an all-gather are the two halves of an all-reduce."
    },
    "verdict_c": {
        NOTHING: "On two replicas, an all-gather costs as much as an all-reduce, so look at 16 replicas.",
        "bytes along tp": "The program's bytes along tp agree with the closed form.",
        "activations": "The program keeps as many microbatches as 1F1B does, so look at what it sends.",
    },
}
OF_NONE = "No row of this program's table has a mark. A program can be unusual without being wrong."
FACTORS: Mapping[str, Mapping[float, str]] = {
    "verdict_a": {
        2: "Your factor is right for stage 0, which may keep min(16, 8) = 8 microbatches, but rank 517 is "
        "on stage 4.",
        16: "The program keeps 16 microbatches, but 1 would not do, since stage i of p needs min(m, p - i) "
        "of them.",
        12: "Your number is a difference, but the question is how many times as much.",
        1 / 4: "Your factor is upside down, so divide by what is needed.",
        8: "You gave the number of stages. Compare two rows of the table instead.",
    },
    "verdict_c": {
        16: "An all-reduce sends 2 (n - 1) / n M, not M, so divide the two numbers in the table.",
        15: "The program sends 15 M, while an all-reduce sends 2 * 15 / 16 M. Divide the two numbers in "
        "the table.",
        1: "Your factor is right on two replicas, but here dp has 16 ranks.",
        1 / 8: "Your factor is upside down, so divide by what is needed.",
        512: "Not all 1,024 ranks meet there, because only the 16 ranks of dp hold the same parameters.",
    },
}


def read(answer: object) -> tuple[str, float | None] | None:
    """(kind, factor) of an answer, or None if it is not a pair with a kind of the list."""
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[0], str):
        return None
    kind = answer[0].strip().lower()
    return (kind, kit.numeric(answer[1])) if kind in KINDS else None


def misfit(name: str, answer: object) -> kit.Finding | None:
    if answer in kit.UNANSWERED:
        return kit.wrong(f"{name} is not answered yet.", cause=f"{name} unanswered")
    if read(answer) is None:
        kinds = words.listing(map(repr, KINDS), "or")
        return kit.wrong(
            f"{name} must be a pair (kind, factor), whose kind is {kinds}.", cause=f"{name} form"
        )
    return None


def kind_line(name: str, index: int) -> kit.Line:
    right, _ = RIGHT[name]

    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index).value
        if finding := misfit(name, answer):
            return finding
        said, factor = read(answer) or ("", None)
        if said == right == NOTHING and factor is not None and not kit.equal(factor, 1.0, 0.02):
            return kit.wrong(f"{said!r} is right for {name}, but then the factor is 1.")
        if said == right:
            return kit.RIGHT
        why = SAYS[name].get(said) or (OF_NONE if right == NOTHING else MARKED)
        return kit.wrong(f"{said!r} is not right for {name}.", why)

    return kit.Line(f"{name}: too much of what", judge, 1)


def factor_line(name: str, index: int) -> kit.Line:
    kind, right = RIGHT[name]

    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index).value
        if finding := misfit(name, answer):
            return finding
        said, factor = read(answer) or ("", None)
        if said != kind:
            return kit.wrong(f"the factor of {name} counts only if the kind is right.", cause=f"{name} kind")
        if factor is None:
            return kit.wrong(f"the factor of {name} must be a number.")
        if kit.equal(factor, right, 0.02):
            return kit.RIGHT
        slips = FACTORS[name].items()
        why = next((says for value, says in slips if kit.equal(factor, value, 0.02)), "")
        return kit.wrong(
            f"{said!r} is right for {name}, but a factor of {words.number(factor)} is not.",
            why or "For rank 517, divide the number of the dry run by the number of the closed form.",
        )

    return kit.Line(f"{name}: how many times", judge, 1)


@kit.exercise(points=5, objects=tuple(RIGHT), references=REFERENCES, constants=True)
def suspects(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = []
    for index, (name, (kind, _)) in enumerate(RIGHT.items()):
        lines.append(kind_line(name, index))
        lines += [factor_line(name, index)] * (kind != NOTHING)
    sides = [kit.evaluating([[index, None] for index in range(len(RIGHT))])]
    yield kit.Case("answers", sides, lines, recipe=kit.EVALUATE, alone=True)
