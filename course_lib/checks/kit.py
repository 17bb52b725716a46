"""Everything that an exercise is written with.

    a case     Case, Draw, RankSide, Setting, Spec, exercise; side, absent, evaluating: a rank's part
    a line     Line, Observed, Finding, RIGHT, ANY, NEVER_WAITED, ORDER, wrong, usual, essential, telling: a
               judgement, its sentences, and whether the idea is in it
    words      Sentence (told whole, or without hidden values), at, error_in_full, error_kind,
               error_sentence, unstamped, unwritten, words
    values     Slip, close, near, difference, worst: against one process; both, same_bits, left_alone,
               gaps_left_alone, Exact, contributions: of sums that are known to the last bit
    amounts    beyond, asked_early; bytes_line, total_bytes_line, rounds_line, messages_line, only_messages,
               volume_line
    answers    Prediction, evaluated, Keywords, Model, published, entry, place, equal, numeric, call, SIZES:
               functions of numbers; Answer, answers: of a quiz
    frames     functions, layers, meshes, training_runs: functions of tensors, layers on several ranks, the
               groups of a mesh, training runs (modules)

A recipe of an exercise's own, which runs in the ranks, stands in `checks/rank/notebooks/` and imports none of
this: graded code can read that folder.
"""

from course_lib.checks import words
from course_lib.checks.judge import functions, layers, meshes, training_runs
from course_lib.checks.judge.amount import Beyond, beyond
from course_lib.checks.judge.answers import UNANSWERED, Answer, answers
from course_lib.checks.judge.asked import asked_early
from course_lib.checks.judge.build import Argument, absent, evaluating, side
from course_lib.checks.judge.case import (
    ANY,
    EVALUATE,
    MORE,
    NEVER_WAITED,
    ORDER,
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Spec,
    essential,
    exercise,
    telling,
    usual,
    wrong,
)
from course_lib.checks.judge.compare import Slip, close, difference, near, worst
from course_lib.checks.judge.explain import Language, Mistake
from course_lib.checks.judge.faults import unstamped
from course_lib.checks.judge.formulas import (
    SIZES,
    Answered,
    Formula,
    Keywords,
    Misfit,
    Model,
    Prediction,
    call,
    came,
    entry,
    equal,
    evaluated,
    intact,
    judge_prediction,
    judge_values,
    numeric,
    place,
    published,
)
from course_lib.checks.judge.provenance import Origin, Provenance
from course_lib.checks.judge.setting import Setting
from course_lib.checks.judge.traffic import (
    BUILT_IN,
    Hint,
    bytes_line,
    messages_line,
    only_messages,
    rounds_line,
    share_of,
    total_bytes_line,
)
from course_lib.checks.judge.training_runs import volume_line
from course_lib.checks.judge.unwritten import unwritten
from course_lib.checks.judge.values import (
    Exact,
    both,
    contributions,
    gaps_left_alone,
    left_alone,
    rounded,
    same_bits,
)
from course_lib.checks.sentence import Sentence, at, error_in_full, error_kind, error_sentence

__all__ = [
    "ANY",
    "BUILT_IN",
    "EVALUATE",
    "MORE",
    "NEVER_WAITED",
    "ORDER",
    "RIGHT",
    "SIZES",
    "UNANSWERED",
    "Answer",
    "Answered",
    "Argument",
    "Beyond",
    "Case",
    "Draw",
    "Exact",
    "Finding",
    "Formula",
    "Hint",
    "Keywords",
    "Language",
    "Line",
    "Misfit",
    "Mistake",
    "Model",
    "Observed",
    "Origin",
    "Prediction",
    "Provenance",
    "RankSide",
    "Sentence",
    "Setting",
    "Slip",
    "Spec",
    "absent",
    "answers",
    "asked_early",
    "at",
    "beyond",
    "both",
    "bytes_line",
    "call",
    "came",
    "close",
    "contributions",
    "difference",
    "entry",
    "equal",
    "error_in_full",
    "error_kind",
    "error_sentence",
    "essential",
    "evaluated",
    "evaluating",
    "exercise",
    "functions",
    "gaps_left_alone",
    "intact",
    "judge_prediction",
    "judge_values",
    "layers",
    "left_alone",
    "meshes",
    "messages_line",
    "near",
    "numeric",
    "only_messages",
    "place",
    "published",
    "rounded",
    "rounds_line",
    "same_bits",
    "share_of",
    "side",
    "telling",
    "total_bytes_line",
    "training_runs",
    "unstamped",
    "unwritten",
    "usual",
    "volume_line",
    "words",
    "worst",
    "wrong",
]
