"""The parts of a check: exercises, cases, lines, findings.

An exercise is a function that yields cases:

    @exercise(points=2, objects=("ring_shift",), references=("course_lib.first_ranks",))
    def ring_shift(draw: Draw) -> Iterator[Case]: ...

A case is one run on some ranks: a recipe that drives the student's objects there, inputs for each rank,
the tensors that may come back, and the lines of the table that are judged from that one run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.runtime.moments import Progress

CALL = "course_lib.checks.rank.harness:call"
EVALUATE = "course_lib.checks.rank.harness:evaluate"
SECONDS = 10.0


@dataclass(frozen=True)
class Finding:
    """A judge's verdict on one line.

    sentences: the observation, then its usual cause; of a line that passed, a remark; those that quote
    something are marked, see `course_lib.checks.sentence`. cause: equal for lines that fail for the
    same reason, so that only the first tells it; title: shown instead of the line's own title.
    misses_point: the solution lacks the point of the exercise, see `Exercise.point`.
    raised: the call raised, so that there is nothing to judge.
    """

    ok: bool
    sentences: tuple[str, ...] = ()
    cause: str = ""
    title: str = ""
    misses_point: bool = False
    raised: bool = False


RIGHT = Finding(True)
MORE = -1.0  # see `Line.shows`
ANY = "*"  # no cause of its own: never told beside another
NEVER_WAITED = "never waited"  # begins the cause of a finding on messages that were not waited for
ORDER = "order of messages"  # begins the cause of a finding on it, which holds whatever tensors hold
CHANGED = " changed"  # ends the cause of a finding on an argument that was not left alone


FIGURES = re.compile(r"\d[\d,._]*")


def wrong(*sentences: str, cause: str = "", title: str = "", misses_point: bool = False) -> Finding:
    """Without `cause`, findings with equal advice share one if what was seen differs only in figures."""
    said = tuple(sentence for sentence in sentences if sentence)
    if not cause and len(said) > 1:
        cause = " ".join([FIGURES.sub("0", said[0]), *said[1:]])
    return Finding(False, said, cause or " ".join(said), title, misses_point)


hints_may_fail = True  # and judges, see `guarded`; False in the tests


def usual(hint: Callable[..., str] | None, *args: object) -> str:
    """The hint's sentence on the usual cause, or "".

    It is a courtesy, made from whatever a student's code left behind: a mistake in it must not cost
    the verdict.
    """
    try:
        return hint(*args) if hint else ""
    except Exception:
        if not hints_may_fail:
            raise
        return ""


@dataclass(frozen=True)
class Spec:
    """A tensor that a rank must hand back; no other dtype or shape is accepted."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Spec:
        return cls(tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        return f"{str(self.dtype)[6:]}{list(self.shape)}"

    def agreed(self) -> list[Any]:
        """[dtype, shape], as a rank is told which tensor is expected."""
        return [str(self.dtype)[6:], list(self.shape)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class RankSide:
    """One rank's part of a case.

    inputs: tensors by name; instructions: of the recipe's type, None if this rank takes no part; outputs: the
    tensors that it hands back.
    """

    inputs: dict[str, torch.Tensor]
    instructions: Any
    outputs: dict[str, Spec]


@dataclass(frozen=True)
class Observed:
    """The replies of the ranks of one case, checked for form.

    held: bytes that each rank was measured to hold at its moments, from outside, see
    `course_lib.runtime.moments`; rose: how many more these were at any time since the moment before;
    progress: how far each rank was at these moments, from outside, too.
    """

    case: Case
    tensors: list[dict[str, torch.Tensor]]
    values: list[Any]
    ledger: Ledger
    operations: list[list[Operation]]
    held: list[dict[str, list[int]]] = field(default_factory=list)
    rose: list[dict[str, list[int]]] = field(default_factory=list)
    progress: list[dict[str, list[Progress]]] = field(default_factory=list)

    @property
    def world_size(self) -> int:
        return self.case.world_size

    def answer(self, index: int) -> Any:
        """The `rank.harness.Answer` to call number `index`, of a recipe that makes calls."""
        return self.values[0].answers[index]


@dataclass(frozen=True)
class Line:
    """One row of the table.

    aspect: value, shape, communication or memory; lines of communication and memory count only when the
    value lines of the same run are right. trivial: a function that does nothing passes it, too (one rank, no
    elements); it counts only when another value is right. short: may share a row. enough: for a line of
    memory, how many bytes are enough, by the name of the recipe's measurement; one number for each of the
    ranks that take part, in their order, or one for all. shows: of a line that tells whether a solution has
    the exercise's point though its values are wrong, how much of it a run had, from 0 to 1, such as the
    share of the messages due; MORE if it sent more than that. part: of the point, where several lines show
    one each and all of them are needed.
    """

    title: str
    judge: Callable[[Observed], Finding]
    weight: float = 1.0
    aspect: str = "value"
    trivial: bool = False
    short: bool = False
    enough: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    shows: Callable[[Observed], float] | None = None
    part: str = ""


def essential(line: Line) -> Line:
    """The line; a solution that fails it misses the exercise's point."""

    def judge(observed: Observed) -> Finding:
        finding = line.judge(observed)
        return finding if finding.ok else replace(finding, misses_point=True)

    return replace(line, judge=judge)


def telling(line: Line) -> Line:
    """The line; by passing it, a solution shows that it has the exercise's point though its values are wrong.

    Not for a line that a solution passes which does nothing.
    """
    return replace(line, shows=lambda observed: float(line.judge(observed).ok))


@dataclass(frozen=True)
class Case:
    """One run.

    forbidden: operations that turn every line of the run wrong, see `traffic.BUILT_IN`.
    alone: it needs no ranks; a process without a process group runs it.
    on_cpu: it is about the host, its memory or its generator; ranks run there even if there are GPUs.
    needed: bytes of messages that any algorithm needs for the result, of all ranks together: right values
    with fewer came another way, and turn every line of the run wrong.
    imports: modules that every rank needs, and that take long to import.
    moments: names of those at which a rank is measured from outside, see `course_lib.runtime.moments`.
    room: bytes that libraries and a student's objects may take before a base, see there.
    unrecorded: bytes of each tensor that the recipe itself sums over all ranks, beside the record.
    remark: makes further sentences about a run that was right, which cost no points, see `remarks`.
    proves: a part of the exercise's point that only this run can show, or only those with the same part: a
    solution that lets none of them be judged keeps no more than one that misses the point.
    """

    title: str
    sides: list[RankSide]
    lines: list[Line]
    recipe: str = CALL
    groups: list[list[int]] = field(default_factory=list)
    forbidden: frozenset[str] = frozenset()
    needed: int = 0
    timeout: float = SECONDS
    hidden: bool = False
    alone: bool = False
    on_cpu: bool = False
    imports: tuple[str, ...] = ()
    unrecorded: tuple[int, ...] = ()
    moments: tuple[str, ...] = ()
    room: int = 0
    remark: Callable[[Observed], Sequence[str]] | None = None
    proves: str = ""

    def __post_init__(self) -> None:
        if self.alone and (self.world_size != 1 or self.groups):
            raise ValueError(
                f"the case {self.title!r} runs alone: it must have one side and no groups, "
                f"not {self.world_size} and {len(self.groups)}"
            )

    @property
    def world_size(self) -> int:
        return len(self.sides)

    def enough(self, rank: int) -> dict[str, float]:
        """Bytes that are enough on a rank, by the names of its recipe's measurements; see `rank.memory`."""
        ranks = self.groups[0] if self.groups else range(self.world_size)
        if rank not in ranks:
            return {}
        place, bounds = ranks.index(rank), dict[str, float]()
        for name, most in (bound for line in self.lines for bound in line.enough.items()):
            own = most[place] if isinstance(most, Sequence) else most
            bounds[name] = min(own, bounds.get(name, math.inf))
        return bounds


class Draw:
    """The source of a check's inputs: the same seed draws the same. `hidden`: the exercise adds cases."""

    def __init__(self, seed: int, hidden: bool = False):
        self.hidden = hidden
        self.generator = torch.Generator().manual_seed(seed)

    def integer(self, low: int, high: int) -> int:
        """A number in low .. high - 1."""
        return int(torch.randint(low, high, (), generator=self.generator))

    def choice(self, options: Sequence):
        return options[self.integer(0, len(options))]

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=dtype)

    def distinct(self, *shape: int, low: int = 1, high: int = 1 << 20) -> torch.Tensor:
        """Distinct random integers in low .. high - 1, as int64: a wrong sum of them can be decoded."""
        count = int(torch.Size(shape).numel())
        if count * 4 > high - low:
            picked = torch.randperm(high - low, generator=self.generator)[:count]
        else:
            picked = torch.empty(0, dtype=torch.int64)
            while len(picked) < count:
                more = torch.randint(high - low, (count,), generator=self.generator)
                picked = torch.unique(torch.cat([picked, more]))
            picked = picked[torch.randperm(len(picked), generator=self.generator)[:count]]
        return (picked + low).reshape(shape)


@dataclass(frozen=True)
class Exercise:
    """An exercise of a notebook.

    objects: the names that `check` takes, in order; references: modules that a student's object may
    not import; hint: (case, kind of failure, its text) -> a sentence on the usual cause, or "".
    point: the aim of the exercise, such as "holding less", if a solution without it could be right in
    all else: a finding that misses it leaves at most half of the points.
    besides: the merit of a solution that misses the point, such as "a schedule that can be done". If it is
    given, such a solution keeps at most a quarter and not half.
    refused: PyTorch's classes that would do the work, see `refusing`, each with the sentence that says so.
    """

    name: str
    points: float
    objects: tuple[str, ...]
    cases: Callable[[Draw], Iterator[Case]]
    references: tuple[str, ...] = ()
    extra: bool = False
    constants: bool = False
    hint: Callable[[Case, str, str], str] | None = None
    point: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    besides: str = ""


def exercise(
    *,
    points: float,
    objects: Sequence[str],
    references: Sequence[str] = (),
    extra: bool = False,
    constants: bool = False,
    hint: Callable[[Case, str, str], str] | None = None,
    point: str = "",
    refused: dict[str, str] | None = None,
    besides: str = "",
) -> Callable[[Callable[[Draw], Iterator[Case]]], Exercise]:
    """Make a function that yields cases an exercise of its notebook's module, under the same name.

    extra: extra credit; constants: the objects are values (answers), not functions. The rest: see `Exercise`.
    """

    def register(cases: Callable[[Draw], Iterator[Case]]) -> Exercise:
        name = cases.__name__
        return Exercise(
            name, points, tuple(objects), cases, tuple(references), extra, constants, hint, point,
            refused or {}, besides,
        )  # fmt: skip

    return register


def exercises(module: ModuleType) -> dict[str, Exercise]:
    """The exercises of a notebook's module, by name: all that it exports, in the order of the notebook."""
    values = (vars(module)[name] for name in getattr(module, "__all__", vars(module)))
    return {value.name: value for value in values if isinstance(value, Exercise)}
