"""Feedback on hidden cases: it names the kind of a mistake and quotes nothing that a student's code fills."""

from __future__ import annotations

import json
import linecache
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from autograder.report.disclosure import disclosed
from autograder.sample.mutants import read_mutants
from course_lib.checks.judge import faults
from course_lib.checks.judge.answers import Answer, judge_answer
from course_lib.checks.judge.case import Case, Draw, Finding, Observed, RankSide
from course_lib.checks.judge.conclude import one_place
from course_lib.checks.judge.find import find
from course_lib.checks.judge.formulas import Prediction, judge_prediction
from course_lib.checks.judge.judge import judge
from course_lib.checks.judge.replies import misfit
from course_lib.checks.judge.traffic import used
from course_lib.checks.judge.values import rounded
from course_lib.checks.notebooks.first_ranks.greeting import said_hello
from course_lib.checks.notebooks.first_ranks.repairs import collected, mean_judge
from course_lib.checks.rank import harness
from course_lib.checks.report import Report, ReportLine
from course_lib.checks.sentence import OWN_ERROR, Sentence, at, general
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.runtime import wire
from course_lib.runtime.diagnosis import Failure, RankReport
from tests.checks.test_mutants import FILES
from tests.checks.test_mutants import judged as judged_mutant


def judged(exercise: str, *objects: object, cases: str = "hidden", seed: int = 7) -> dict:
    return judge(f"00_first_ranks/{exercise}", wire.dumps(objects), seed, cases)


def texts(report: dict) -> str:
    return "\n".join(
        text
        for row in disclosed(report)
        for text in (row.title, row.note, *row.sentences, *row.output)
    )


def test_arguments_and_right_values_are_not_told() -> None:
    one_more = judged("message_prediction", lambda n: n + 1, lambda n: n)
    assert re.search(r"exchange_messages\(\d", str(one_more)), "the judge tells them"
    assert "exchange_messages gives a wrong number for some arguments" in texts(one_more)
    assert not re.search(r"\(\d|is right|gives -?\d", texts(one_more))


def test_an_exception_cannot_carry_inputs_out() -> None:
    def by_text(n: int) -> int:
        raise ValueError(f"secret {n}")

    def by_type(n: int) -> int:
        raise type(f"Secret{n}", (Exception,), {})()

    report = judged("message_prediction", by_text, by_type)
    assert "secret" in str(report).lower(), "the judge quotes them"
    assert "exchange_messages raised ValueError." in texts(report)
    assert f"ring_shift_messages raised {OWN_ERROR}." in texts(report)
    assert "secret" not in texts(report).lower()


def test_a_returned_text_cannot_carry_inputs_out() -> None:
    report = judged(
        "message_prediction", lambda n: f"secret {n}", lambda n: type(f"Secret{n}", (), {})()
    )
    assert "secret" in str(report).lower()
    assert "exchange_messages gives no number for some arguments." in texts(report)
    assert "secret" not in texts(report).lower()


def test_ranks_cannot_carry_inputs_out() -> None:
    def as_type(tensor, group=None):
        return type("Secret", (), {})()

    def as_exception(tensor, group=None):
        print("secret", tensor)
        raise type("Secret", (Exception,), {})(str(tensor))

    for function, words in ((as_type, "returned something else"), (as_exception, OWN_ERROR)):
        report = judged("ring_shift", function)
        assert words in texts(report) and "secret" not in texts(report).lower(), texts(report)


def test_the_mean_of_hidden_values_is_not_told() -> None:
    def doubled(values):
        import torch

        return values.mean() * 3 if len(values) else torch.zeros(())

    report = judged("global_mean", doubled)
    assert ", not " in str(report) and "the mean on rank" in texts(report)
    assert not re.search(r"the mean on rank \d is [\d.]", texts(report))


def test_visible_cases_are_told_in_full() -> None:
    report = judged("message_prediction", lambda n: n + 1, lambda n: n, cases="visible")
    said = [text for line in report["lines"] for text in line["sentences"]]
    assert [text for row in disclosed(report) for text in row.sentences] == said


# Whatever a student's code could have filled holds this word or this number.
SECRET, NUMBER = "secret", 73_519
LINE = f"Cell In[5], line 3: {SECRET}({NUMBER})"
linecache.cache["Cell In[5]"] = (0, None, ["x = 1\n"] * 3, "Cell In[5]")


def reported(**fields) -> RankReport:
    return RankReport(**{"line": LINE, **fields})


def failure(kind: str, headline: str = "deadlock: 0 -> 1 -> 0", **ranks: RankReport) -> Failure:
    reports = {int(name[1:]): one for name, one in ranks.items()}
    late = "not finished after 2 seconds." if kind == "timeout" else ""
    return Failure(kind, headline, f"{headline}\nPost the two together.", reports, late=late)


WAITING = f"recv(src=1, tag={NUMBER}) float32[{NUMBER}]"
FAILURES = {
    "is in recv, waits for rank 1, at Cell In[5], line 3": failure(
        "deadlock",
        r0=reported(state="waiting", operation=WAITING, waits_for=[1]),
        r1=reported(state="waiting", operation=WAITING, waits_for=[0], line=f"{SECRET}.py, line 3"),
    ),
    "rank 0 computes": failure("timeout", r0=reported(state="running")),
    "rank 0 died: it called os._exit, or a library did.": failure(
        "died",
        f"rank 0 died: it called os._exit({NUMBER}), or a library did.",
        r0=reported(
            state="died",
            operation=f"in {WAITING}",
            how=f"it called os._exit({NUMBER}), or a library did",
        ),
    ),
    "rank 0 was after send, at Cell In[5], line 3": failure(
        "died",
        "rank 0 died: killed by SIGKILL.",
        r0=reported(state="died", operation=f"after send(dst={NUMBER})", how="killed by SIGKILL"),
    ),
    "ranks 0 and 1 were before their first communication": failure(
        "died",
        "ranks 0 and 1 died: killed by SIGKILL.",
        **{
            name: RankReport(
                "died", operation="before its first communication", how="killed by SIGKILL"
            )
            for name in ("r0", "r1")
        },
    ),
    "rank 0 raised ValueError.": failure(
        "error", SECRET, r0=reported(state="raised", error_type="ValueError", error_text=SECRET)
    ),
    f"rank 1 raised {OWN_ERROR}.": failure(
        "error", SECRET, r1=reported(state="raised", error_type=f"Secret{NUMBER}")
    ),
}


def seen_of(value: object, tensor: torch.Tensor | None = None) -> Observed:
    """Observations of one rank: `value` is its answer to every call, `tensor` its result."""
    case = Case("1 rank", [RankSide({}, None, {})], [])
    values = SimpleNamespace(answers=[harness.Answer(value)] * 3, result=value)
    tensors = {"result": torch.zeros(()) if tensor is None else tensor}
    return Observed(case, [tensors], [values], Ledger(1, [[]]), [[]])


def raising() -> Observed:
    seen = seen_of(None)
    error = harness.Answer(error=(f"Secret{NUMBER}", SECRET, LINE))
    seen.values[0].answers = [error] * 3
    return seen


def called(op: str, line: str) -> Finding:
    one = Operation(0, 0, op, None, (0,), 0, "", (), 0, 0.0, 0.0, 0.0, 0.0, True, line, SECRET)
    found = used([[one]], frozenset({op}))
    assert found is not None
    return found


def findings() -> Iterator[tuple[str, Finding]]:
    """For each place where sentences quote something: (the kind of mistake, what is found)."""
    quiz = Prediction("f", 0, [(NUMBER,)], lambda n: n / 7, slips={"One too many.": lambda n: n})
    number = judge_prediction(quiz, 0)
    for value in (SECRET, {"other": SECRET}, [NUMBER], {"tensor": [NUMBER, 1]}):
        yield "f gives no number for some arguments.", number(seen_of(value))
    yield f"f raised {OWN_ERROR}. at Cell In[5], line 3", number(raising())
    yield "f gives a wrong number for some arguments.", number(seen_of(NUMBER / 2))
    yield "for some arguments: 7 times the right value. One too many.", number(seen_of(NUMBER))
    exercise = find("00_first_ranks/ring_shift")
    for name, kind in (("result", "ring_shift returned something else"), ("tensor", "`tensor` is")):
        yield kind, misfit(exercise, 1, name, f"float32[{NUMBER}]", "float32[3]")
    right = torch.zeros(2, dtype=torch.float64)
    off = seen_of(None, torch.tensor([0, NUMBER]))
    yield "off by more than rounding explains", rounded("result", [0], right, right + 1e-6)(off)
    yield (
        "dist.all_reduce was called, at Cell In[5], line 3",
        called("all_reduce", "Cell In[5], line 3"),
    )
    yield "a process group of your own", called("new_group", f"{SECRET}.py, line 3")
    for right in (3.0, ("yes",)):
        asked = judge_answer(Answer("answer_1", right, options=("yes", "no")), 0)
        yield "answer_1 must be", asked(seen_of(f"{SECRET} {NUMBER}"))
    yield "hello() returned something else", said_hello(0)(seen_of(SECRET))
    yield "but hello() does not give that", said_hello(0)(seen_of([SECRET, NUMBER, SECRET]))
    wanted = torch.arange(4.0)
    for value in (SECRET, {"other": SECRET}, {"tensor": [NUMBER], "shape": NUMBER}):
        yield "did not return a tensor with all results", collected(wanted, (2, 2))(seen_of(value))
    many = {"tensor": [NUMBER] * 5, "shape": [5]}
    yield "more numbers than were computed, and some", collected(wanted, (2, 2))(seen_of(many))
    mean = mean_judge([torch.tensor([float(NUMBER)])])
    yield "the mean on rank 0 is wrong.", mean(seen_of(None, torch.tensor(NUMBER + 3.0)))


def quotes(text: str) -> bool:
    return SECRET in text.lower() or str(NUMBER) in re.sub(r"[,_]|\.0\b", "", text)


@pytest.mark.parametrize("kind", FAILURES)
def test_a_run_that_broke_is_told_without_what_the_ranks_could_write(kind: str) -> None:
    exercise, case = find("00_first_ranks/global_mean"), Case("1 rank", [], [])
    finding = faults.finding(exercise, case, FAILURES[kind], hidden=True)
    said = " ".join(map(general, finding.sentences))
    assert kind in said and not quotes(said)


def test_every_sentence_that_quotes_something_has_general_words() -> None:
    for kind, finding in findings():
        assert any(general(said) != said for said in finding.sentences), finding
        said = " ".join(map(general, finding.sentences))
        assert kind in said and not quotes(said), (kind, said)


def test_a_report_keeps_the_general_words_in_its_file() -> None:
    line = ReportLine("4 ranks", False, hidden=True)
    line.say([Sentence("f(17) is wrong", "f is wrong"), Sentence("at secret"), "a hint"])
    report = json.loads(json.dumps(Report("x", 0.0, [line]).to_json()))
    assert [row.sentences for row in disclosed(report)] == [["f is wrong", "a hint"]]
    assert Report.from_json(report).lines[0].sentences == ["f(17) is wrong", "at secret", "a hint"]
    del report["lines"][0]["general"]  # as older graders wrote it
    assert [row.sentences for row in disclosed(report)] == [[]]
    report["lines"][0]["hidden"] = False
    assert disclosed(report)[0].sentences == ["f(17) is wrong", "at secret", "a hint"]


def inputs_of(name: str, seed: int) -> set[str]:
    """Every number of five digits and more that a check's ranks are given, as its digits."""
    numbers: set[float] = set()
    for case in find(name).cases(Draw(seed, hidden=True)):
        for side in case.sides:
            numbers |= {x for one in side.inputs.values() for x in one.flatten().tolist()}
    return {
        str(int(number)) for number in numbers if math.isfinite(number) and abs(number) >= 10_000
    }


def test_mutants_hidden_reports_tell_no_inputs(seed: int) -> None:
    """All mutants that need one process, and a few of the others."""
    chance = random.Random(seed)
    cheap = [file for file in FILES if "prediction" in file.stem]
    picked = [(file, one) for file in cheap for one in read_mutants(file) if not one.right]
    for file in chance.sample([one for one in FILES if one not in cheap], 3):
        picked.append((file, chance.choice([one for one in read_mutants(file) if not one.right])))
    for file, mutant in picked:
        name = f"{file.parent.name}/{file.stem}"
        report = judged_mutant(name, replace(mutant, right=True), seed)[0]  # right: on hidden cases
        said = texts(report.to_json())
        digits = set(re.findall(r"\d{5,}", re.sub(r"(?<=\d)[,_](?=\d)", "", said)))
        assert not digits & inputs_of(name, seed), (mutant.title, said)
        assert not re.search(r"\b[a-z]\w+\(-?\d.*\) (gives|raised)", said), (mutant.title, said)
        failed = [row for row in disclosed(report.to_json()) if not row.passed]
        assert failed and any(row.sentences for row in failed), "the kind of the mistake is told"


def test_a_line_that_the_cell_does_not_have_says_nothing() -> None:
    """Code names its own places: `compile("\\n" * 27306 + "1 / 0", "Cell In[5]", "exec")`."""
    for place in ("Cell In[5], line 27307", "line 27307", "Cell In[6], line 1"):
        assert general(at(f"{place}: 1 / 0", "f raised ValueError.")) == "f raised ValueError."
    assert general(at("line 2: x = 1")) == "at line 2"


def test_a_hidden_case_tells_one_place() -> None:
    said = [
        "rank 0 computes, at Cell In[5], line 1",
        "at Cell In[5], line 2",
        "f raised, at line 3",
    ]
    places = set[int]()
    assert one_place(said, 1, places) == [said[0], "", "f raised"]
    assert one_place(said[1:], 1, places) == ["", "f raised"]
    assert one_place(said[1:], 2, places) == [said[1], "f raised"]
