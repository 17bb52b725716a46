"""The engine of the checks: any code that a student hands in ends in a report."""

from __future__ import annotations

import functools
import json
import linecache
import os
import re
import signal
import sys
import threading
import time
import warnings
from dataclasses import replace
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import course_lib
from autograder.course.config import assignments
from course_lib.checks import check, client
from course_lib.checks.judge import judge, replies, traffic, witness
from course_lib.checks.judge.case import (
    RIGHT,
    Case,
    Draw,
    Exercise,
    Finding,
    Line,
    Observed,
    RankSide,
    wrong,
)
from course_lib.checks.judge.conclude import BROKEN, NOT_BEGUN, Judged, conclude
from course_lib.checks.judge.find import find, of_assignment
from course_lib.checks.judge.printed import OUTPUT_LINES
from course_lib.checks.rank import harness
from course_lib.checks.report import Report, ReportLine
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.ledger.rows import REFUSED
from course_lib.runtime import backend, pools
from course_lib.runtime.sandbox.probe import probe
from tests.checks.test_mutants import drawing_once

SHIFT = "00_first_ranks/ring_shift"
RING = "02_collectives/ring_all_reduce"


@pytest.fixture(autouse=True)
def stderr_stays_empty(capfd):
    """nbgrader fails a cell that writes anything to stderr, even a warning."""
    yield
    assert capfd.readouterr().err == ""


@pytest.fixture
def printed(capfd):
    """printed(): the lines printed until now."""

    def read() -> str:
        out, err = capfd.readouterr()
        assert err == ""
        return out

    return read


@pytest.fixture
def runs(monkeypatch):
    """The (headers, buffers) of every run that a check starts."""
    seen = []
    real = judge.run_ranks

    def spy(entry, headers, buffers, **more):
        seen.append((headers, buffers))
        return real(entry, headers, buffers, **more)

    monkeypatch.setattr(judge, "run_ranks", spy)
    return seen


def typed(code: str, name: str):
    """A function as a student types it into a cell."""
    main = ModuleType("__main__")
    vars(main).update(torch=torch, dist=dist)
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(True), "<cell>")
    exec(compile(code, "<cell>", "exec"), vars(main))
    return vars(main)[name]


def shift(before: str = "", after: str = "", result: str = "received"):
    """A right ring_shift with lines put in front of the messages and behind them."""
    body = f"""
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    sent, received = tensor.contiguous(), tensor.contiguous().clone()
    {before or "pass"}
    if n > 1:
        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
    {after or "pass"}
    return {result}
"""
    return typed(body, "ring_shift")


# ---- objects that cannot be judged


def test_a_stub_is_told_in_one_line_and_at_once(runs):
    def ring_shift(tensor, group=None):
        raise NotImplementedError

    report = check(SHIFT, ring_shift)
    assert (report.score, len(report.lines), len(runs)) == (0.0, 1, 1)
    assert report.lines[0].title == "not written yet"


def test_a_notebook_of_stubs_takes_a_moment(runs):
    def stub(*args):
        raise NotImplementedError

    names = [f"02_collectives/{name}" for name in of_assignment("02_collectives")]
    check(names[0], stub)  # starts the preloaded process, which is not to be measured
    began = time.monotonic()
    for name in names:
        exercise = find(name)
        given = (
            [...] * len(exercise.objects) if exercise.constants else [stub] * len(exercise.objects)
        )
        report = check(name, *given)
        assert report.score == 0
        assert "yet" in f"{report.lines[0].title} {report.messages[0]}"
    cases = [list(find(name).cases(Draw(0))) for name in names]
    assert len(runs) == 1 + sum(max(1, sum(case.alone for case in ours)) for ours in cases)
    assert time.monotonic() - began < 20  # about one second on an idle machine


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()
    ring_shift = typed("def ring_shift(tensor, group=None):\n    return lock", "ring_shift")
    ring_shift.__globals__["lock"] = lock
    report = check(SHIFT, ring_shift)
    assert report.score == 0
    assert "'lock'" in report.messages[0] and "cannot be" in report.messages[0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: check("02_collectives/ring_allreduce", print),
            "Did you mean 02_collectives/ring_",
        ),
        (lambda: check("03_nothing/ring", print), "no checks for the assignment '03_nothing'"),
        (lambda: check("", print), "no checks for the assignment"),
        (lambda: check(SHIFT), "takes 1 object"),
        (lambda: check(SHIFT, print, print), "you passed 2"),
        (lambda: check(SHIFT, 7), "must be a function, but you passed an object of type int"),
        (lambda: check(SHIFT, print, cases="all"), '"visible" or "hidden"'),
    ],
)
def test_a_wrong_call_of_check_is_a_sentence(call, says, printed):
    report = call()
    assert report.score == 0
    assert says in " ".join(report.messages)
    assert says.split()[0] in printed()


# ---- ranks that fail


def test_a_rank_that_dies_fails_its_case_alone():
    ring_shift = shift(before="import os; n == 4 and rank == 1 and os._exit(3)")
    report = check(SHIFT, ring_shift)
    assert 0 < report.score < 1
    by_title = {line.title: line for line in report.lines}
    assert by_title["3 ranks, 6 elements"].passed
    assert not by_title["4 ranks, 5 elements"].passed
    assert "rank 1 died" in " ".join(report.messages)


def test_a_killed_rank_too():
    ring_shift = shift(before=f"import os; rank or os.kill(os.getpid(), {signal.SIGKILL:d})")
    report = check(SHIFT, ring_shift)
    assert report.score == 0
    assert "SIGKILL" in " ".join(report.messages)


def test_two_deadlocks_end_a_check(runs):
    def ring_shift(tensor, group=None):
        n = dist.get_world_size()
        dist.recv(torch.empty(6), (dist.get_rank() - 1) % n)

    report = check(SHIFT, ring_shift)
    assert report.score == 0
    assert len(runs) == 2
    assert report.lines[-1].note == "(the same cause)"
    assert any("each waiting for the next" in said for said in report.messages)


def test_a_loop_without_end_is_a_time_out(monkeypatch, runs):
    monkeypatch.setattr(judge, "STRIKES", 1)
    monkeypatch.setattr(judge, "find", lambda name: drawing_once(find(name), longer=0.2))
    report = check("00_first_ranks/message_prediction", typed(LOOP, "loop"), typed(LOOP, "loop"))
    assert report.score == 0
    # 2 seconds, unless the machine is busy
    assert re.match(r"not finished after [\d.]+ seconds", report.messages[0])
    assert any("while True" in said for said in report.messages)
    assert len(runs) == 1


LOOP = "def loop(n):\n    while True: n += 1\n"


# ---- cases that need no ranks

PREDICTION = "00_first_ranks/message_prediction"
EXCHANGES = "2 * (n // 2)"
SHIFTS = "n if n > 1 else 0"


def prediction(before: str, answer: str):
    """A function of n with a line in front of its answer."""
    return typed(f"def f(n):\n    import os, sys, time\n    {before}\n    return {answer}\n", "f")


@pytest.fixture
def in_a_sandbox(request, monkeypatch):
    """With the parameter True, the judge runs everything in the strongest sandbox of this machine."""
    if request.param:
        strongest = probe(pools.preloaded())
        judged = functools.partial(judge.judge, sandbox=strongest)
        monkeypatch.setattr(client, "judge", judged)
        pools.end_spares()


@pytest.fixture
def no_filter(monkeypatch):
    """As where the kernel has no filters of system calls: code may start processes."""
    real = judge.run_ranks

    def run(entry, headers, *args, **more):
        return real(entry, [{**one, "filtered": False} for one in headers], *args, **more)

    monkeypatch.setattr(judge, "run_ranks", run)


@pytest.mark.parametrize("in_a_sandbox", [False, True], indirect=True)
@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os._exit(0)", "os._exit(0)"),
        ("os._exit(3)", "os._exit(3)"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("os.fork() or os._exit(0); os._exit(4)", "os._exit(4)"),
    ],
)
def test_a_prediction_that_dies_costs_itself_alone(end, told, in_a_sandbox, no_filter):
    report = check(PREDICTION, prediction(end, EXCHANGES), prediction("pass", SHIFTS))
    assert (report.score, [line.passed for line in report.lines]) == (0.5, [False, True])
    assert told in " ".join(report.messages)
    report = check(PREDICTION, prediction("pass", EXCHANGES), prediction(end, SHIFTS))
    assert (report.score, [line.passed for line in report.lines]) == (0.5, [True, False])


@pytest.mark.parametrize("in_a_sandbox", [False, True], indirect=True)
def test_a_prediction_without_end_costs_itself_alone(monkeypatch, in_a_sandbox):
    real = judge.run_ranks
    monkeypatch.setattr(judge, "run_ranks", lambda *a, **k: real(*a, **{**k, "timeout": 3}))
    report = check(PREDICTION, typed(LOOP, "loop"), prediction("pass", SHIFTS))
    assert [line.passed for line in report.lines] == [False, True]
    assert any("<cell>, line 2" in said for said in report.messages)


@pytest.mark.parametrize("what", ["os.fork()", "os.pipe()", "os.execv('/bin/true', ['true'])"])
def test_a_prediction_starts_no_process(what):
    report = check(PREDICTION, prediction(what, EXCHANGES), prediction("pass", SHIFTS))
    assert (report.score, [line.passed for line in report.lines]) == (0.5, [False, True])
    assert "PermissionError" in " ".join(report.messages)


def test_predictions_share_a_process_and_no_memory(tmp_path, runs):
    """Neither a global nor a patched module is found by the next case; the process above is the same."""
    note = f"open('{tmp_path}/seen', 'a').write(f'{{os.getpid()}} {{os.getppid()}}\\n')"
    spoil = f"{note}; sys.seen = True; os.getcwd = None"
    clean = f"{note}; assert not hasattr(sys, 'seen') and os.getcwd"
    assert check(PREDICTION, prediction(spoil, EXCHANGES), prediction(clean, SHIFTS)).score == 1
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    own, above = ({line[k] for line in seen} for k in (0, 1))
    assert (len(runs), len(own), len(above)) == (2, 2, 1)
    assert not any(key[1] == backend.ALONE for key in pools._spares)
    until_gone(int(above.pop()))


def test_what_a_prediction_leaves_running_is_ended_before_the_next(tmp_path, no_filter):
    left = f"""if not os.path.exists('{tmp_path}/left'):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(100)
        open('{tmp_path}/left', 'w').write(str(pid))"""
    gone = f"assert not os.path.exists('/proc/' + open('{tmp_path}/left').read())"
    assert check(PREDICTION, prediction(left, EXCHANGES), prediction(gone, SHIFTS)).score == 1


def test_predictions_have_no_process_group_and_an_empty_ledger(monkeypatch):
    outcomes = []
    real = judge.run_ranks

    def spy(*args, **more):
        outcomes.append(real(*args, **more))
        return outcomes[-1]

    monkeypatch.setattr(judge, "run_ranks", spy)
    group = "import torch.distributed as dist; assert not dist.is_initialized()"
    assert check(PREDICTION, prediction(group, EXCHANGES), prediction(group, SHIFTS)).score == 1
    assert [len(one.ledger.operations(0)) for one in outcomes] == [0, 0]


def test_a_prediction_does_not_import_the_reference_either():
    line = "import course_lib.first_ranks"
    report = check(PREDICTION, prediction(line, EXCHANGES), prediction("pass", SHIFTS))
    assert report.score == 0.5
    assert "write your own" in " ".join(report.messages)


def test_a_case_without_ranks_has_one_side():
    with pytest.raises(ValueError, match="runs alone"):
        Case("two", [RankSide({}, None, {})] * 2, [], alone=True)


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_an_exception_is_told_with_its_line():
    report = check(SHIFT, shift(before="raise ValueError('chunk 3 of 2')"))
    told = " ".join(report.messages)
    assert report.score == 0
    assert "ValueError: chunk 3 of 2" in told
    assert len(report.messages) <= 3  # of equal causes only the first is reported


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "async def ring_shift(tensor, group=None):\n    return tensor",
            "your function is an `async def`",
        ),
        ("def ring_shift(tensor, group=None):\n    yield tensor", "your function is a generator"),
    ],
)
def test_a_function_whose_call_runs_none_of_its_lines_is_named(code, says):
    report = check(SHIFT, typed(code, "ring_shift"))
    assert report.score == 0
    assert says in " ".join(report.messages)


def test_in_hidden_cases_an_exception_keeps_its_text_to_itself():
    ring_shift = shift(before="print(tensor); raise ValueError(str(tensor))")
    report = check(SHIFT, ring_shift, cases="hidden")
    assert "raised ValueError." in " ".join(report.messages)
    assert "tensor(" not in str(report)
    assert "tensor(" in str(check(SHIFT, ring_shift))


def test_in_hidden_cases_a_name_that_is_missing_is_told_if_the_line_has_it():
    told = str(check(SHIFT, shift(before="helper(tensor)"), cases="hidden"))
    assert "raised NameError: name 'helper' is not defined" in told
    secret = "raise NameError(f\"name '{'x' * tensor.numel()}' is not defined\")"
    report = check(SHIFT, shift(before=secret), cases="hidden")
    assert "raised NameError." in " ".join(report.messages) and "xx" not in str(report)


def test_output_of_a_failing_case_is_shown_and_bounded(printed):
    storm = "for i in range(20_000): print('here', i, flush=False)"
    report = check(SHIFT, shift(before=storm, result="received + 1"))
    out = printed()
    assert report.score == 0
    assert re.search(r"\| ranks? [\d to]+ printed: here 19999", out)
    assert out.count("printed:") <= OUTPUT_LINES * len(report.lines)
    assert re.search(r"\| \.\.\. \d+ lines more at least; a launch of your own shows all\.", out)


def test_output_is_told_once_for_all_ranks_cut_visibly_and_not_beside_the_error_it_repeats(printed):
    said = "text = ' '.join(['the', 'chunks', 'do', 'not', 'fit']); print('x' * 200); print(text)"
    check(SHIFT, shift(before=f"{said}; raise ValueError(text)"))
    out = printed()
    assert " ".join(out.split()).count("the chunks do not fit") == 1
    assert re.search(r"\| ranks 0 (and|to) \d printed: x{86} \.\.\.$", out, re.MULTILINE)


def test_a_warning_is_a_sentence_without_its_path_and_its_code(printed):
    check(SHIFT, shift(before="(tensor.clone().requires_grad_() + 1).grad", result="received + 1"))
    sentence = (
        "UserWarning: The .grad attribute of a Tensor that is not a leaf Tensor is being accessed."
    )
    said = [line for line in printed().splitlines() if "printed:" in line]
    assert {line.partition(" printed: ")[2] for line in said} == {sentence}


def test_of_a_crash_in_c_code_its_first_line_and_the_students_are_shown(printed):
    check(SHIFT, shift(before="import ctypes; print('before', flush=True); ctypes.string_at(0)"))
    said = {
        line.partition(" printed: ")[2] for line in printed().splitlines() if " printed: " in line
    }
    first, own = "Fatal Python error: Segmentation fault", r'  File "[^"]+", line \d+ in \w+'
    assert {"before", first} < said and len(said) == 3
    assert re.fullmatch(own, (said - {"before", first}).pop())


def test_output_of_a_right_case_is_not_shown(printed):
    report = check(SHIFT, shift(before="import sys, warnings; print('a'); print('b', file=sys.stderr); "
                                       "warnings.warn('c')"))  # fmt: skip
    assert report.score == 1
    assert "printed" not in printed()


def test_a_warning_in_the_kernel_stays_there():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(SHIFT, shift()).score == 1


# ---- results of a wrong kind


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("None", "ring_shift returned None on rank 0; a tensor float32[6] is expected."),
        ("'done'", "ring_shift returned str"),
        ("received.double()", "ring_shift returned float64[6]"),
        ("received[:-1]", "ring_shift returned float32[5]"),
        ("received.view(1, -1)", "ring_shift returned float32[1, 6]"),
        ("[received]", "ring_shift returned list"),
        ("received * float('nan')", "NaN"),
        ("received + 0.5", "not a sum of the ranks' values"),
        ("received + 2.0 ** 100", "not a sum of the ranks' values"),
    ],
)
def test_a_result_of_another_kind_is_refused(result, says):
    report = check(SHIFT, shift(result=result))
    assert report.score == 0
    assert says in " ".join(report.messages)


def test_an_argument_of_another_size_is_refused():
    report = check("00_first_ranks/exchange", typed("def f(t, group=None): t.resize_(3)", "f"))
    assert report.score == 0
    assert (
        "after the call `tensor` is float32[3] on rank 0; it was float32[6]" in report.messages[0]
    )


FORGED = """
def ring_shift(tensor, group=None):
    import sys
    frame = sys._getframe()
    while frame.f_code.co_name != "run_recipe":
        frame = frame.f_back
    frame.f_globals["_pack"] = lambda kept: {reply}
    return tensor.clone()
"""


@pytest.mark.parametrize(
    "reply",
    [
        "([], [])",
        "([['verdict', 'float32', [1]]], [bytes(4)])",
        "([['result', 'float32', [6]], ['tensor', 'float32', [6]]], [bytes(24), bytes(8)])",
        "([['result', 'object', [6]], ['tensor', 'float32', [6]]], [bytes(24), bytes(24)])",
        "([['result', 'float32', [-6]], ['tensor', 'float32', [6]]], [bytes(24), bytes(24)])",
        "({'passed': True}, [])",
        "([1, 2], [b'', b''])",
    ],
)
def test_a_reply_of_another_form_is_refused(reply):
    report = check(SHIFT, typed(FORGED.format(reply=reply), "ring_shift"))
    assert report.score == 0
    assert "does not have the agreed form" in " ".join(report.messages)


@pytest.mark.parametrize(
    "values", ["7", "None", "{'answers': 7}", "{'answers': [7, 8]}", "{'answers': [{'error': 5}]}"]
)
def test_forged_answers_are_refused(values):
    forged = typed(
        f"""
def forged(n):
    import sys
    frame = sys._getframe()
    while frame.f_code.co_name != "run_recipe":
        frame = frame.f_back
    frame.f_globals["plain"] = lambda *a: {values}
    return 1
""",
        "forged",
    )
    report = check("00_first_ranks/message_prediction", forged, forged)
    assert report.score == 0 and report.messages


# ---- judge and rank are apart


def test_the_judge_never_unpickles_what_it_is_given():
    class Bomb:
        def __reduce__(self):
            return setattr, (sys, "unpickled_in", os.getpid())

    ring_shift = shift()
    ring_shift.__globals__["bomb"] = Bomb()
    ring_shift.__code__ = typed(
        "def ring_shift(tensor, group=None):\n    bomb\n    return tensor", "ring_shift"
    ).__code__
    assert check(SHIFT, ring_shift).score < 1
    assert not hasattr(sys, "unpickled_in")


def test_a_rank_holds_its_own_inputs_and_nothing_else(runs):
    assert check(SHIFT, shift(), seed=77).score == 1
    for headers, buffers in runs:
        inputs = []
        for header, own in zip(headers, buffers, strict=True):
            assert set(header) == {
                "recipe", "payload", "tensors", "groups", "references", "refused", "filtered", "instructions"
            }  # fmt: skip
            assert json.dumps(header).find("77") < 0
            inputs += [bytes(one) for one in own[header["payload"] :]]
        assert len(inputs) <= len(headers)
        assert len(set(inputs)) == len(inputs)


IMPORTS = [
    "from course_lib.first_ranks import ring_shift as solved",
    "from course_lib import first_ranks; solved = first_ranks.ring_shift",
    "import course_lib.first_ranks as m; solved = m.ring_shift",
    "import importlib; solved = importlib.import_module('course_lib.first_ranks').ring_shift",
    "solved = __import__('course_lib.first_ranks').first_ranks.ring_shift",
]


@pytest.mark.parametrize("line", IMPORTS)
def test_the_reference_is_not_to_be_imported(line):
    code = f"def ring_shift(tensor, group=None):\n    {line}\n    return solved(tensor, group)"
    report = check(SHIFT, typed(code, "ring_shift"))
    assert report.score == 0
    assert "write your own" in " ".join(report.messages)


def test_the_reference_by_its_name_is_not_the_students():
    from course_lib.first_ranks import ring_shift

    report = check(SHIFT, ring_shift)
    assert report.score == 0
    assert "write your own" in " ".join(report.messages)


def test_imports_are_free_again_afterwards():
    names = ("course_lib.first_ranks",)
    before = list(sys.meta_path)
    with harness.own_work(names), pytest.raises(ImportError, match="write your own"):
        __import__(names[0])
    assert sys.meta_path == before
    assert __import__(names[0])


def test_equal_seeds_draw_equal_inputs_and_others_do_not(runs):
    def inputs(seed: int) -> list[bytes]:
        runs.clear()
        check(SHIFT, shift(), seed=seed)
        return [
            bytes(one) for headers, buffers in runs for h, own in zip(headers, buffers, strict=True)
            for one in own[h["payload"] :]
        ]  # fmt: skip

    first = inputs(5)
    assert first == inputs(5)
    assert first != inputs(6)
    report = check(SHIFT, shift(result="received + 1"))
    assert f"seed={report.seed}" in str(report)
    assert report.seed != check(SHIFT, shift(result="received + 1")).seed


# ---- what counts


def test_doing_nothing_earns_nothing():
    report = check(RING, typed("def ring_all_reduce(tensor, group=None): pass", "ring_all_reduce"))
    assert report.score == 0
    notes = {line.title: line.note for line in report.lines}
    assert notes["1 rank"] == "(counts once another value is right)"
    assert notes["bytes sent"] == "(counts once the values are right)"


def test_a_group_that_the_check_made_is_not_the_students():
    report = check(SHIFT, shift())
    assert report.score == 1
    report = check(SHIFT, shift(before="dist.new_group([0])"))
    assert report.score == 0
    assert "process group of your own" in report.messages[0]


def test_functions_that_are_not_written_cost_only_themselves():
    report = check(
        "00_first_ranks/message_prediction",
        lambda n: 2 * (n // 2),
        typed("def f(n): raise NotImplementedError", "f"),
    )
    assert report.score == 0.5
    assert report.messages == ["ring_shift_messages is not written yet."]


CALLS_A_STUB = """
def others(n):
    raise NotImplementedError

def f(n):
    return 2 * others(n)
"""


def test_a_stub_that_a_function_calls_is_named():
    report = check(
        "00_first_ranks/message_prediction",
        lambda n: 2 * (n // 2),
        typed(CALLS_A_STUB, "f"),
    )
    assert report.messages == ["`ring_shift_messages` calls `others`, which is not written yet."]
    (line,) = [line for line in report.lines if not line.passed]
    assert line.general == ["`ring_shift_messages` calls a function that is not written yet."]


def test_a_stub_that_a_rank_calls_is_named(runs):
    def others(tensor):
        raise NotImplementedError

    def ring_shift(tensor, group=None):
        return others(tensor)

    report = check(SHIFT, ring_shift)
    assert (report.score, len(report.lines), len(runs)) == (0.0, 1, 1)
    assert report.messages == ["`ring_shift` calls `others`, which is not written yet."]
    assert report.lines[0].general == ["`ring_shift` calls a function that is not written yet."]


# ---- reports


def report_of(*passed: bool) -> Report:
    lines = [ReportLine(f"line {k}", ok) for k, ok in enumerate(passed)]
    return Report("00_first_ranks/x", sum(passed) / len(passed), lines, possible=10, seed=3)


def test_points_are_rounded_and_full_points_are_for_all():
    assert report_of(True, True).points(12) == 12.0
    assert report_of(True, False).points(5) == 2.5
    assert report_of(True, True, False).points(1) == 0.7
    nearly = Report("x", 0.999, [ReportLine("a", True)] * 999 + [ReportLine("b", False)])
    assert nearly.points(10) == 9.9
    assert Report("x", 0.0, []).points(3) == 0.0


def test_a_report_goes_through_json():
    report = check(SHIFT, shift(result="received + 1"), seed=11)
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert again == report
    assert str(again) == str(report)
    assert (report.name, report.seed, report.cases) == (SHIFT, 11, "visible")


TABLE = """\
ring_all_reduce                                               8.0 of 12
  ✓ sum, 2 ranks, 8 elements
  ✗ sum, 4 ranks, 10 elements
      elements 8 and 9 still hold each rank's own value, because nothing was added to them.
      They are the remainder of 10 / 4: your chunks cover 8 elements.
  ✗ sum, 3 ranks, 2 elements                    (the same cause)
  ✓ bfloat16 · ✓ non-contiguous · ✓ sub-group {1, 3}
  ✓ bytes sent: 6,000 of at least 6,000 per rank
  the same inputs again: check(..., seed=9)"""


def test_the_table_reads_as_agreed():
    seen = "elements 8 and 9 still hold each rank's own value, because nothing was added to them."
    cause = "They are the remainder of 10 / 4: your chunks cover 8 elements."
    lines = [
        ReportLine("sum, 2 ranks, 8 elements", True),
        ReportLine("bytes sent: 6,000 of at least 6,000 per rank", True, "communication"),
        ReportLine("sum, 4 ranks, 10 elements", False, "shape", sentences=[seen, cause]),
        ReportLine("sum, 3 ranks, 2 elements", False, "shape", note="(the same cause)"),
        ReportLine("bfloat16", True, "shape", short=True),
        ReportLine("non-contiguous", True, "shape", short=True),
        ReportLine("sub-group {1, 3}", True, "shape", short=True),
    ]
    assert str(Report(RING, 8 / 12, lines, possible=12, seed=9)) == TABLE


def unjudged(titles: str, finding: Finding, why: str, aspect: str = "value") -> list[Judged]:
    lines = [Line(title, lambda seen: RIGHT, 2.0, aspect) for title in titles]
    return judge.unjudged(Case("a run", [], lines), finding, why)


FOLDED = """\
ring_attention                                                1.6 of 10
  ✗ a
      deadlock: 0 -> 1 -> 0
  - 5 other cases were not judged               (the same cause)
      2 runs were not begun, because a check ends after two deadlocks or time-outs.
  ✗ i
      rank 1 raised ValueError.
  - j                                           (the same cause)
  ✓ b"""


def test_what_nobody_looked_at_for_one_reason_is_one_line():
    """If the cases are few, the line names them; it has the points of all."""
    stuck, raised = wrong("deadlock: 0 -> 1 -> 0"), wrong("rank 1 raised ValueError.")
    judged = [
        *unjudged("ac", stuck, BROKEN),
        *unjudged("d", stuck, BROKEN, "memory"),
        Judged(Case("right", [], []), Line("b", lambda seen: RIGHT, 3.0, "communication"), RIGHT),
        *unjudged("fg", stuck, NOT_BEGUN),
        *unjudged("h", stuck, NOT_BEGUN, "memory"),
        *unjudged("ij", raised, BROKEN),
    ]
    exercise = Exercise("ring_attention", 10, (), lambda draw: iter(()))
    report = conclude("08/ring_attention", exercise, judged, -1, "visible")
    assert str(report) == FOLDED
    assert report.score == pytest.approx(3 / (3 + 8 * 2.0), abs=1e-6)
    assert sum(line.weight for line in report.lines) == sum(one.line.weight for one in judged)
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_calls_that_all_raised_are_one_line_too():
    """All calls were made and gave nothing to judge; cases with wrong values keep their titles."""
    raised = replace(wrong("f raised ValueError."), raised=True)
    off = wrong("the sum is off.")
    judged = [
        Judged(Case("calls", [], []), Line(title, lambda seen: RIGHT), finding)
        for finding, titles in ((raised, "abcdef"), (off, "ghijkl"))
        for title in titles
    ]
    exercise = Exercise("f", 10, (), lambda draw: iter(()))
    report = conclude("08/f", exercise, judged, -1, "visible")
    titles = [line.title for line in report.lines]
    assert titles == ["a", "5 other cases were not judged", *"ghijkl"]


def test_a_right_solution_prints_the_same_every_time():
    assert str(check(SHIFT, shift())) == str(check(SHIFT, shift()))


def test_no_row_is_wider_than_a_notebook():
    report = check(SHIFT, shift(before="raise ValueError('a long text ' * 40)"))
    assert max(map(len, str(report).splitlines())) < 100


# ---- exercises


@pytest.mark.parametrize("assignment", assignments())
def test_hidden_cases_are_the_visible_ones_and_more(assignment, seed):
    for name, one in of_assignment(assignment).items():
        assert name == one.name
        visible = [case.title for case in one.cases(Draw(seed))]
        hidden = [case.title for case in one.cases(Draw(seed, hidden=True))]
        assert set(visible) <= set(hidden), name


def test_checks_need_no_gpu_and_no_reference_in_this_process():
    code = (
        "import sys, course_lib.checks.notebooks.collectives, course_lib.checks.notebooks.first_ranks; "
        "loaded = {'course_lib.collectives', 'course_lib.first_ranks'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
    assert course_lib.check is check


def test_right_values_without_messages_earn_nothing() -> None:
    """The real group behind the recorder leaves no row: a message that was not sent cannot have arrived."""

    def ring_all_reduce(tensor, group=None):
        buffer = tensor.contiguous()
        inner = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
        inner.allreduce([buffer]).wait()  # pyright: ignore[reportAttributeAccessIssue]
        tensor.copy_(buffer)

    report = check(RING, ring_all_reduce, cases="hidden")
    assert report.score == 0.0


@pytest.mark.parametrize("value", ["x" * 5000, [0] * 5000, 1 << 5000, {"x" * 5000: 1}])
def test_what_a_rank_sends_in_a_recipes_name_is_bounded(value) -> None:
    assert replies.plain_data({"answers": [{"value": 1.5}, None, True, 1 << 60]})
    with pytest.raises(ValueError):
        replies.plain_data({"answers": [value]})


def test_what_a_rank_sends_in_a_recipes_name_is_not_deep() -> None:
    deep: list = []
    for _ in range(50):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        replies.plain_data(deep)


def ledger_of(*sent: int) -> Ledger:
    """A ledger of one rank that sent messages of these sizes, and one that received them."""
    sends = [operation(0, "send", 1, nbytes, k) for k, nbytes in enumerate(sent)]
    received = [operation(1, "recv", 0, nbytes, k) for k, nbytes in enumerate(sent)]
    return Ledger(2, [sends, received])


def operation(rank: int, op: str, peer: int, nbytes: int, index: int) -> Operation:
    return Operation(
        rank=rank, index=index, op=op, peer=peer, group=(0, 1), tag=0, dtype="uint8", shape=(nbytes,),
        nbytes=nbytes, bytes_sent=nbytes, issued=0.0, blocked=0.0, completed=0.0, waited=True,
        line="", source="",
    )  # fmt: skip


@pytest.mark.parametrize(
    "on_the_wire, said",
    [(None, None), (10_000, None), (10_900, None), (13_000, None), (9_999, "only 9,999 went over"),
     (30_000, "Something else was sent besides")],
)  # fmt: skip
def test_a_record_that_the_network_contradicts(on_the_wire, said) -> None:
    found = witness.contradicted(ledger_of(4_000, 6_000), on_the_wire)
    assert (found is None) == (said is None)
    if found is not None:
        assert said in " ".join(found.sentences)


def test_a_message_counts_when_it_was_waited_for_and_received() -> None:
    """The network's count does not matter: other bytes may have been sent in their place."""
    sends, received = (ledger_of(4_000, 6_000).operations(rank) for rank in range(2))
    unwaited = [sends[0], replace(sends[1], waited=False)]
    for ledger in (Ledger(2, [sends, received[:1]]), Ledger(2, [unwaited, received])):
        found = witness.contradicted(ledger, 10_000)
        assert found is not None and "does not show that 1 message left" in found.sentences[0]


@pytest.mark.parametrize("tag, told", [(0, True), (REFUSED, False)])
def test_a_call_that_raised_is_not_told_as_one_that_was_never_waited_for(tag, told) -> None:
    begun = operation(0, "reduce_scatter", 1, 8, 0)
    begun = replace(begun, peer=None, tag=tag, waited=False, completed=None)
    observed = Observed(
        Case("one", [RankSide({}, None, {})], []), [], [], Ledger(1, [[begun]]), [[begun]]
    )
    said = traffic.raced(wrong("the mean is wrong."), observed).sentences
    assert ("never waited for it" in " ".join(said)) == told


def test_a_function_is_evaluated_with_keyword_arguments() -> None:
    calls = [[0, [7], {"base": 3}], [0, [7]], [1, None], [0, [], {"other": 1}]]
    instructions = harness.EvaluateInstructions(calls)
    values, _ = harness.evaluate([lambda n, base=10: n * base, 4], {}, [], instructions)
    assert [answer.value for answer in values.answers] == [21, 70, 4, None]
    assert values.answers[3].error is not None and values.answers[3].error[0] == "TypeError"


def test_a_function_that_was_not_called_is_met_with_its_parentheses():
    cell = (
        "import torch.distributed as dist\n"
        "def hello(): return dist.get_rank, dist.get_world_size, 'cpu'"
    )
    said = " ".join(check("00_first_ranks/hello", typed(cell, "hello")).messages)
    assert "gives a value of type function as the rank of rank 0" in said and "{" not in said
    assert "parentheses are missing. Write dist.get_rank()." in said
    assert "parentheses are missing. Write dist.get_world_size()." in said


ONLY_DESCRIBED = """
import torch
import torch.distributed as dist
def {name}(tensor, group=None):
    got = torch.zeros_like(tensor)
    dist.P2POp(dist.isend, tensor, group=group, group_peer=0)
    dist.P2POp(dist.irecv, got, group=group, group_peer=0)
    {end}
"""


@pytest.mark.parametrize(
    ("name", "end"), [("exchange", "tensor.copy_(got)"), ("ring_shift", "return got")]
)
def test_a_message_that_was_only_described_is_said_not_to_be_begun(name, end):
    cell = ONLY_DESCRIBED.format(name=name, end=end)
    said = " ".join(check(f"00_first_ranks/{name}", typed(cell, name)).messages)
    assert "No rank has sent anything. A P2POp only describes a message" in said
    assert "Call wait()" not in said


def test_a_long_text_of_an_error_ends_after_a_word():
    long = "word " * 100
    place = harness.describe(ValueError(long))
    assert place[1].endswith("word ...") and len(place[1]) <= 300
    assert harness.describe(ValueError("x" * 400))[1] == "x" * 297 + " ..."
    assert harness.describe(ValueError("short"))[1] == "short"


BEHIND_GIVEN_CODE = """
def ring_forward(*args, **kwargs):
    raise NotImplementedError()


def ring_output(*args, **kwargs):
    return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    return ring_forward(*args, **kwargs)[1]
"""


def test_the_exercise_itself_is_not_called_a_function_that_is_not_written():
    """Its check takes two given functions that call it."""
    objects = [typed(BEHIND_GIVEN_CODE, name) for name in ("ring_output", "ring_lse")]
    report = check("08_context_parallel/ring_forward", *objects)
    assert [line.title for line in report.lines] == ["not written yet"]
    assert "which is not written yet" not in " ".join(report.messages)


def test_a_device_is_told_apart_from_ranks_that_are_swapped():
    """One mistake beside another is not its cause."""
    cell = (
        "import os\nimport torch.distributed as dist\n"
        "def hello(): return dist.get_world_size(), dist.get_rank(), os.getpid()"
    )
    said = " ".join(check("00_first_ranks/hello", typed(cell, "hello")).messages)
    assert said.count("are swapped") == 2 and "Ask course_lib.device()" in said
