"""The diagnoses of the lab's eight programs, and the questions of notebook 00."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib.checks import kit, words
from course_lib.checks.notebooks.first_ranks.references import REFERENCE

WAITS = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 1, 2: 1}}
REMEDIES = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}
OPTIONS = (*REMEDIES.values(), "a longer time limit")  # the last one cures nothing here
LOOK = {
    "average": "In the diagnosis, compare the calls of all ranks.",
    "hand_over": "Compare the two ends in the diagnosis, the tensor sent and the buffer that receives it.",
    "columns": "The diagnosis gives the tensor's shape and strides. Are its elements in one row in memory?",
    "relay": "The diagnosis says when the tensor was changed.",
    "farewell": "The function returned. How does the rank know that its message has left?",
}


@kit.exercise(points=1, objects=("waits_for", "remedies"), references=REFERENCE, constants=True)
def diagnoses(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = [kit.Line(f"waiting ranks: {program}", judge_waits(program), weight=2) for program in WAITS]
    lines += [kit.Line(f"remedy: {program}", judge_remedy(program)) for program in REMEDIES]
    sides = [kit.evaluating([[0, None], [1, None]])]
    yield kit.Case("diagnoses", sides, lines, recipe=kit.EVALUATE, alone=True)


def as_dict(value: object) -> dict | None:
    """A dict that came back as {"dict": [[key, value], ...]} (see `harness.plain`), or None."""
    pairs = value.get("dict") if isinstance(value, dict) else None
    if not isinstance(pairs, list):
        return None
    return {key: item for key, item in pairs if isinstance(key, str | int)}


def judge_waits(program: str) -> Callable[[kit.Observed], kit.Finding]:
    right = WAITS[program]

    def judge(observed: kit.Observed) -> kit.Finding:
        answer = as_dict(observed.answer(0).value)
        if answer is None:
            return kit.wrong(
                "waits_for must be a dict: program -> {rank: the rank it waits for}.", cause="form"
            )
        said = answer.get(program)
        mine = as_dict(said)
        if mine is None and said not in kit.UNANSWERED:
            form = f"waits_for[{program!r}] must be a dict."
            return kit.wrong(form, "Write {rank: the rank it waits for}.", cause="form")
        if not mine or any(rank in kit.UNANSWERED for rank in mine.values()):
            return kit.wrong(f"waits_for[{program!r}] is not answered yet.")
        mine = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in mine.items()}
        if mine == right:
            return kit.RIGHT
        disagrees = f"waits_for[{program!r}] does not agree with the diagnosis."
        return kit.wrong(disagrees, waits_hint(mine, right))

    return judge


def waits_hint(mine: dict, right: dict) -> str:
    if any(isinstance(rank, list) for rank in mine.values()):
        return "A rank is in one call at a time, so name the one rank that it waits for, as in {0: 1}."
    if not all(isinstance(rank, int) for rank in (*mine, *mine.values())):
        return "The keys are ranks, and so are the values. Write numbers, not texts."
    if {waited: rank for rank, waited in mine.items()} == right:
        return (
            "Your dict is turned around. The key is the rank that waits, and the value is the rank it "
            "waits for."
        )
    if done := sorted(set(mine) - set(right)):
        do = words.verb(done, "does", "do")
        it = words.verb(done, "it", "they")
        return f"{words.ranks(done).capitalize()} {do} not wait. The diagnosis says how {it} ended."
    if missing := sorted(set(right) - set(mine)):
        return f"{words.ranks(missing).capitalize()} also {words.verb(missing, 'waits', 'wait')}."
    off = next(rank for rank in sorted(right) if mine[rank] != right[rank])
    return (
        f"Read again in which operation rank {off} is, and which rank's part is missing there. Look for "
        "`src` of a receive, or for the rank that did not call."
    )


def judge_remedy(program: str) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        answer = as_dict(observed.answer(1).value)
        if answer is None:
            return kit.wrong("remedies must be a dict: program -> remedy.", cause="form")
        mine = answer.get(program)
        if mine in kit.UNANSWERED:
            return kit.wrong(f"remedies[{program!r}] is not answered yet.")
        mine = mine.strip().lower() if isinstance(mine, str) else mine
        if mine not in OPTIONS:
            options = "; ".join(sorted(OPTIONS))
            return kit.wrong(f"remedies[{program!r}] must be one of: {options}.", cause="options")
        if mine == REMEDIES[program]:
            return kit.RIGHT
        return kit.wrong(f"{mine!r} would not cure {program!r}.", LOOK[program])

    return judge


# ---- questions: a link with alpha = 20 us and 10 GB/s

BITS = "10 GB/s are bytes, not bits, so there is no factor of 8."
UPSIDE_DOWN = "You divided instead of multiplying: bytes = alpha * bandwidth."

ONE_MESSAGE = {
    1e-4: "The latency was left out. alpha is paid once per message.",
    2e-5: "Your answer is only alpha, but a million bytes also need time.",
    120: "Your answer is in microseconds, but the question asks for seconds.",
    0.12: "Your answer is in milliseconds, but the question asks for seconds.",
    8.2e-4: BITS,
    8e-4: BITS,
    20.0001: "alpha is in microseconds, so it is 20e-6 seconds.",
    2e-3: "Add the two times, alpha + bytes / bandwidth.",
}
EQUAL_SHARES = {
    0.2: "Your answer is in MB, but the question asks for bytes.",
    200: "Your answer is in kB, but the question asks for bytes.",
    25_000: BITS,
    1_600_000: BITS,
    1e6: "Your answer is the message of the first question. Solve alpha = bytes / bandwidth for the bytes.",
    5e14: UPSIDE_DOWN,
    2e-15: UPSIDE_DOWN,
    1_200_000: "Only alpha has to equal the time of the bytes, so solve alpha = bytes / bandwidth.",
}
AFTER_A_RAISE = {
    "raise": "Nothing tells the other ranks, since a collective only knows that a part has not arrived yet.",
    "return": "A collective returns when every member's part has arrived, but one never will.",
}


@kit.exercise(points=1, objects=("answer_1", "answer_2", "answer_3"), references=REFERENCE, constants=True)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1",
                20e-6 + 1e6 / 10e9,
                slips=ONE_MESSAGE,
                unit="seconds",
                otherwise="A message takes alpha + bytes / bandwidth.",
            ),
            kit.Answer(
                "answer_2",
                20e-6 * 10e9,
                slips=EQUAL_SHARES,
                unit="bytes",
                otherwise="Solve alpha = bytes / bandwidth for the bytes.",
            ),
            kit.Answer("answer_3", ("wait",), slips=AFTER_A_RAISE, options=("raise", "return", "wait")),
        ]
    )
