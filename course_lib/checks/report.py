"""The result of a check: lines, a score, and how they are printed. Plain data, JSON both ways."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from course_lib.checks.colour import coloured
from course_lib.checks.sentence import general
from course_lib.checks.words import number

ASPECTS = ("value", "shape", "communication", "memory")
WIDTH = 62  # column in which the points stand
SAME = "(the same cause)"
WAITS = "(counts once the values are right)"
WAITS_FOR_OTHERS = "(counts once the lines above are right)"  # if some values are right, and others are not


@dataclass
class ReportLine:
    """One judged line of the table.

    judged: False for a line of a run that broke off, or that waits for others: it was not looked at.
    note: a remark on the line itself, such as "(the same cause)"; sentences: the observation and its usual
    cause; general: the same in words that a hidden case may show ("" for a sentence that it may not show at
    all; None in a report from before there were such words); output: lines that the ranks printed.
    """

    title: str
    passed: bool
    aspect: str = "value"
    weight: float = 1.0
    short: bool = False
    hidden: bool = False
    note: str = ""
    sentences: list[str] = field(default_factory=list)
    general: list[str] | None = None
    output: list[str] = field(default_factory=list)
    judged: bool = True

    @property
    def sign(self) -> str:
        return "✓" if self.passed else "✗" if self.judged else "-"

    def say(self, sentences: Iterable[str]) -> None:
        """Take in a finding's sentences, in full and in general words."""
        all_sentences = list(sentences)
        self.sentences = [str(sentence) for sentence in all_sentences]
        self.general = [general(sentence) for sentence in all_sentences]


@dataclass
class Report:
    """The value of `check`: `report.score` in 0..1, `report.points(12)` for nbgrader.

    tampered: the ranks' record and the bytes on the network contradict each other.
    limit: the resource that a case used up, "memory", "disk", "processes" or "files"; "" if none.
    extra: the points are extra credit.
    by_chance: a time limit was over, or a rank was killed: on a machine that is less busy the result may
        differ.
    failures: the tracebacks of judges that failed on an answer; such a line is wrong.
    """

    name: str
    score: float
    lines: list[ReportLine]
    possible: float = 1.0
    seed: int = 0
    cases: str = "visible"
    tampered: bool = False
    limit: str = ""
    extra: bool = False
    by_chance: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.score == 1.0

    @property
    def messages(self) -> list[str]:
        """Every sentence of every failing line."""
        return [sentence for line in self.lines if not line.passed for sentence in line.sentences]

    def points(self, maximum: float) -> float:
        """The share of `maximum` that was earned, to a tenth of a point; all of it only for all."""
        earned = round(self.score * maximum, 1)
        return float(maximum) if self.passed else min(earned, round(maximum - 0.1, 1))

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(data: dict) -> Report:
        lines = [ReportLine(**line) for line in data["lines"]]
        return Report(**{**data, "lines": lines})

    def __repr__(self) -> str:
        done = sum(line.passed for line in self.lines)
        return f"<Report {self.name}: score {self.score:.3f}, {done} of {len(self.lines)} lines>"

    def __str__(self) -> str:
        title = self.name.rpartition("/")[2] + (" (extra credit)" if self.extra else "")
        earned = f"{self.points(self.possible):.1f} of {number(self.possible)}"
        rows = [f"{title:<{WIDTH}}{earned}"]
        for aspect in ASPECTS:
            rows += table([line for line in self.lines if line.aspect == aspect])
        if not self.passed and self.seed >= 0:
            rows.append(f"  the same inputs again: check(..., seed={self.seed})")
        return "\n".join(rows)

    def shown(self) -> str:
        """The table as it is printed: where the output shows colours, the eye finds what failed."""
        head, *rows = str(self).split("\n")
        return "\n".join([coloured(head, "bold"), *map(_marked, rows)])


def _marked(row: str) -> str:
    """A row of the table with its signs in colour; sentences and what ranks printed stand further right."""
    if row.startswith("  ✗"):
        return coloured(row, "red")
    return row.replace("✓", coloured("✓", "green")) if row.startswith("  ✓") else row


def table(lines: list[ReportLine]) -> list[str]:
    """Rows of one aspect; passing lines that are marked short share a row."""
    rows: list[str] = []
    open_row = False
    for line in lines:
        text = f"{line.sign} {line.title}"
        joins = line.passed and line.short
        if joins and open_row and len(rows[-1]) + len(text) < 90:
            rows[-1] += f" · {text}"
        else:
            rows.append(f"  {text:<44}  {line.note}".rstrip() if line.note else f"  {text}")
        open_row = joins
        rows += [row for sentence in line.sentences for row in wrapped(sentence)]
        rows += [f"      | {text}" for text in line.output]
    return rows


def wrapped(sentence: str) -> list[str]:
    """A sentence below its line, at most 96 columns wide."""
    return textwrap.wrap(
        " ".join(sentence.split()),
        96,
        initial_indent=" " * 6,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )


def refusal(
    name: str,
    *sentences: str,
    possible: float = 1.0,
    title: str = "",
    cases: str = "visible",
    extra: bool = False,
) -> Report:
    """A report without a run: the sentences say why the objects cannot be judged."""
    line = ReportLine(title or "nothing could be checked", False)
    line.say(sentences)
    return Report(name, 0.0, [line], possible=possible, seed=-1, cases=cases, extra=extra)
