"""my_part: the rows of the batch and the positions of the sequence that a rank reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.four_dimensions.meshes import (
    AXES,
    Answers,
    Formula,
    Question,
    Sizes,
    everywhere,
    ints,
    lacking,
    tried,
)
from course_lib.checks.notebooks.four_dimensions.reading_mistakes import (
    APART,
    BACKWARDS,
    DEALT,
    LAST,
    ONE_TOO_FAR,
    PAIR,
    PLACES,
    ROWS,
    SUCCESSION,
    Part,
    Parts,
    axes,
    chunks_apart,
    flat,
    in_succession,
    last_places,
    last_rows,
    one_too_far,
)
from course_lib.checks.notebooks.four_dimensions.references import REFERENCES
from course_lib.mesh.coordinates import axis_ranks, coordinates
from course_lib.mesh.parts import my_part as right_part

NAME = "my_part"
FORM = "a pair: a range of rows, and a list of ranges of positions"
POINT = (
    "dealing the batch (rows to replicas, positions with equal work to ranks of cp, the same to all others)"
)
RANGES = "Give a list of ranges: an early chunk and a late one, or one for the whole sequence."
ONE_RANGE = "With cp = 1 nothing is dealt, so return one range, the whole sequence."
MOST = 1.25  # times the mean work that the busiest rank may have


@dataclass(frozen=True)
class Sheet:
    """A batch of rows x positions on a mesh."""

    sizes: Sizes
    batch_size: int
    seq: int

    @property
    def questions(self) -> list[Question]:
        return everywhere(self.sizes, self.batch_size, self.seq)

    def alike(self, parts: Parts, index: int, *cutting: str) -> list[tuple[int, int]]:
        """Pairs of ranks with equal coordinates on `cutting`, but other rows (0) or positions (1)."""
        first: dict[tuple, int] = {}
        pairs = []
        for rank, part in parts.items():
            key = axes(rank, self.sizes, *cutting)
            other = first.setdefault(key, rank)
            if part[index] != parts[other][index]:
                pairs.append((other, rank))
        return pairs

    def together(self, parts: Parts, index: int, axis: str) -> Counter[int]:
        """How often the ranks along `axis` (each coordinate once) read each row, or position."""
        held = {axes(rank, self.sizes, axis): part[index] for rank, part in reversed(parts.items())}
        return Counter(item for items in held.values() for item in items)


def backwards_part(rank: int, sizes: Sizes, batch_size: int, seq: int) -> tuple[range, list[range]]:
    """The part of a rank that is numbered with the first axis innermost."""
    return right_part(rank, dict(reversed([*sizes.items()])), batch_size, seq)


Look = Callable[[Sheet, Parts], kit.Finding]


class Asked(Answers):
    """The parts of all ranks of all sheets of a case."""

    def __init__(self, sheets: Sequence[Sheet]):
        super().__init__(NAME, 0, right_part, read, FORM)
        self.sheets, self.starts = sheets, []
        for sheet in sheets:
            self.starts.append(len(self.calls))
            self.calls += [question.call(0) for question in sheet.questions]

    def parts(self, observed: kit.Observed, which: int) -> Parts | kit.Finding:
        parts: Parts = {}
        for k, question in enumerate(self.sheets[which].questions):
            answer = observed.answer(self.starts[which] + k)
            if answer.error is not None:
                raised = self.raised(question, *answer.error)
                return self.behind_the_chunks(observed, raised) or raised
            part = read(answer.value)
            if part is None:
                why = "Is there a `return` at its end?" if answer.value is None else ""
                return kit.wrong(f"{NAME} does not give {FORM}.", why, cause="form")
            parts[question.rank] = part
        return parts

    def behind_the_chunks(self, observed: kit.Observed, raised: kit.Finding) -> kit.Finding | None:
        """The finding with the cause if all errors are those of a late chunk 2 cp - r."""
        questions = [question for sheet in self.sheets for question in sheet.questions]
        for k, question in enumerate(questions):
            answer, expected = observed.answer(k), tried(question, one_too_far)
            if answer.error is not None:
                if answer.error[0] != "IndexError" or expected is not None:
                    return None
            elif (part := read(answer.value)) is None or part[1] != expected:
                return None
        return replace(raised, sentences=(*raised.sentences, ONE_TOO_FAR))

    def backwards(self, observed: kit.Observed) -> bool:
        """Whether all answers are right for ranks that are numbered with the first axis innermost."""
        answers = (observed.answer(k) for k in range(len(self.calls)))
        questions = [question for sheet in self.sheets for question in sheet.questions]
        return all(
            answer.error is None and read(answer.value) == flat(q.of(backwards_part))
            for answer, q in zip(answers, questions, strict=True)
        )

    def lacks_axes(self, observed: kit.Observed, which: int) -> bool:
        """Whether the answers for the sheet raised a KeyError about an axis that its mesh lacks."""
        first = self.starts[which]
        errors = (observed.answer(first + k).error for k in range(len(self.sheets[which].questions)))
        missing = set(AXES) - set(self.sheets[which].sizes)
        return all(error is not None and lacking(error[0], error[1]) in missing for error in errors)

    def each(
        self, text: str, look: Look, weight: float = 1, *, of_ranks: bool = False, lenient: bool = False
    ) -> kit.Line:
        """A line that holds for each sheet by itself.

        of_ranks: it is also about the coordinates of the ranks; lenient: meshes without some axis may raise,
        if there are others.
        """

        def judge(observed: kit.Observed) -> kit.Finding:
            if self.backwards(observed):
                return kit.wrong(BACKWARDS, cause=BACKWARDS, misses_point=True) if of_ranks else kit.RIGHT
            which = range(len(self.sheets))
            kept = [k for k in which if not (lenient and self.lacks_axes(observed, k))]
            for k in kept or which:
                parts = self.parts(observed, k)
                finding = parts if isinstance(parts, kit.Finding) else look(self.sheets[k], parts)
                if not finding.ok:
                    return finding
            return kit.RIGHT

        return kit.Line(text, judge, weight)

    def ranges(self, line: kit.Line) -> kit.Line:
        """The line, which also asks for a list of ranges, because the notebook's figures read one.

        Where cp is 1, the list has one range.
        """

        def judge(observed: kit.Observed) -> kit.Finding:
            finding = line.judge(observed)
            if not finding.ok or self.backwards(observed):
                return finding
            for which, sheet in enumerate(self.sheets):
                for k, question in enumerate(sheet.questions, start=self.starts[which]):
                    spans = observed.answer(k).value[1]
                    listed = isinstance(spans, list) and all(ints(span) is not None for span in spans)
                    if listed and (len(spans) == 1 or sheet.sizes.get("cp", 1) > 1):
                        continue
                    fault = (
                        "gives its positions in several ranges, although cp is 1."
                        if listed
                        else "does not give its positions as a list of ranges."
                    )
                    why = ONE_RANGE if listed else RANGES
                    said = kit.Sentence(f"{question.shown(NAME)} {fault}", f"{NAME} {fault}")
                    return kit.wrong(said, why, cause=why)
            return kit.RIGHT

        return replace(line, judge=judge)


ALIKE = (
    "These replicas read the same rows. Their coordinates on dp differ, so take the rows by this coordinate."
)


def why(sheet: Sheet, parts: Parts, index: int, slips: Mapping[str, Formula]) -> str:
    """The mistake that gives every rank's rows (index 0), or positions (index 1)."""
    for says, slip in slips.items():
        if all(parts[q.rank][index] == q.of(slip) for q in sheet.questions):
            return says
    return ""


def covering(index: int, axis: str, what: str, slips: Mapping[str, Formula]) -> Look:
    """Each row, or position, is read once along the axis. Fewer missing than parts are a remainder."""

    def look(sheet: Sheet, parts: Parts) -> kit.Finding:
        counts = sheet.together(parts, index, axis)
        whole = range((sheet.batch_size, sheet.seq)[index])
        missing = [item for item in whole if not counts[item]]
        often = [item for item, count in counts.items() if count > 1]
        outside = [item for item in counts if item not in whole]
        if not (missing or often or outside):
            return kit.RIGHT if index else even(sheet, parts)
        state = "is read by none of them" if missing else "is read twice" if often else "does not exist"
        place = (missing or sorted(often) or outside)[0]
        asked = Question(0, sheet.sizes, (sheet.batch_size, sheet.seq)).shown(NAME)
        several = axis_ranks(0, sheet.sizes, (axis,)) if axis in sheet.sizes else [0]
        if len(several) == 1:
            who = "rank 0"
            state = f"is not read by it, although the mesh has no {axis}" if missing else state
        else:
            who = f"{words.ranks(several)}, which differ only in {axis}"
        said = kit.Sentence(
            f"of {who}, {what} {place} {state} in calls such as {asked}.",
            f"of ranks that differ only in {axis}, a {what} {state}.",
        )
        rows = {tuple(parts[rank][0]) for rank in several if rank in parts}
        because = why(sheet, parts, index, slips)
        if not because and index == 0 and len(several) > 1 and len(rows) == 1:
            because = ALIKE
        remainder = len(missing) < (1 + index) * sheet.sizes.get(axis, 1) and not often and not outside
        return kit.wrong(said, because, cause=because, misses_point=not (remainder or because == PAIR))

    return look


def even(sheet: Sheet, parts: Parts) -> kit.Finding:
    """No replica reads two rows more than another."""
    counts = sorted({len(rows) for rows, _ in parts.values()})
    if counts[-1] - counts[0] <= 1:
        return kit.RIGHT
    asked = Question(0, sheet.sizes, (sheet.batch_size, sheet.seq)).shown(NAME)
    said = kit.Sentence(
        f"one replica reads {counts[0]} rows but another reads {counts[-1]}, in calls such as {asked}.",
        "one replica reads more rows than another.",
    )
    return kit.wrong(said, why(sheet, parts, 0, {LAST: last_rows}), cause="even")


def same(index: int, what: str, cutting: tuple[str, ...], slips: Mapping[str, Formula]) -> Look:
    def look(sheet: Sheet, parts: Parts) -> kit.Finding:
        pairs = sheet.alike(parts, index, *cutting)
        if not pairs:
            return kit.RIGHT
        first, other = pairs[0]
        differ = [
            a for a in sheet.sizes if coordinates(first, sheet.sizes)[a] != coordinates(other, sheet.sizes)[a]
        ]
        said = kit.Sentence(
            f"ranks {first} and {other} read different {what}, although they differ only in "
            f"{' and '.join(differ)}.",
            f"ranks that differ only in {' and '.join(differ)} read different {what}.",
        )
        because = why(sheet, parts, index, slips)
        return kit.wrong(said, because, cause=because, misses_point=True)

    return look


def equal_work(sheet: Sheet, parts: Parts) -> kit.Finding:
    n = sheet.sizes.get("cp", 1)
    held = {axes(rank, sheet.sizes, "cp")[0]: places for rank, (_, places) in parts.items()}
    work = [sum(at + 1 for at in places) for places in held.values()]
    busiest = max(work) * n / max(1, sum(work))
    if busiest <= MOST:
        return kit.RIGHT
    fault = f"the busiest rank of cp has {busiest:.2f} times the mean work under a causal mask."
    because, remainder = "", False
    if why(sheet, parts, 1, {SUCCESSION: in_succession}):
        because = (
            f"{SUCCESSION}With {n} ranks the last has nearly 2 - 1/{n} = {2 - 1 / n:.2f} times the mean."
        )
    elif why(sheet, parts, 1, {LAST: last_places}):
        because, remainder = LAST, True
    else:
        because = why(sheet, parts, 1, {APART: chunks_apart})
    general = "the ranks of cp have unequal work under a causal mask."
    return kit.wrong(
        kit.Sentence(fault, general),
        because and kit.Sentence(because, because.partition("With")[0].strip()),
        cause="work",
        misses_point=not remainder,
    )


def in_blocks(*before: Look) -> Look:
    """Rows in succession and positions as a zigzag; of parts that fail a line before, nothing new is said."""

    def look(sheet: Sheet, parts: Parts) -> kit.Finding:
        expected = {q.rank: flat(q.of(right_part)) for q in sheet.questions}
        off = [rank for rank, part in parts.items() if part != expected[rank]]
        if not off:
            return kit.RIGHT
        if not all(line(sheet, parts).ok for line in before):
            return kit.wrong(cause=kit.ANY)
        index = 0 if parts[off[0]][0] != expected[off[0]][0] else 1
        what = ("rows", "positions")[index]
        got, wanted = parts[off[0]][index], expected[off[0]][index]
        asked = Question(off[0], sheet.sizes, (sheet.batch_size, sheet.seq)).shown(NAME)
        at = next((k for k, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), -1)
        if at < 0:
            differ = f"has {len(got)} {what}, not {len(wanted)}"
        else:
            differ = f"has {what} {got[at : at + 3]} instead of {wanted[at : at + 3]}"
        said = kit.Sentence(
            f"{what} are dealt in another order, because {asked} {differ}.",
            f"{what} are dealt in another order than the text asks for.",
        )
        return kit.wrong(said, why(sheet, parts, index, DEALT[index]), cause="blocks")

    return look


@kit.exercise(points=5, objects=(NAME,), references=REFERENCES, point=POINT)
def my_part(draw: kit.Draw) -> Iterator[kit.Case]:
    sheets = [
        Sheet({"pp": 2, "dp": 2, "tp": 2}, 16, 16),
        Sheet({"dp": 2, "cp": 2, "tp": 2}, 11, 16),
        Sheet({"pp": 2, "tp": 2}, 3, 8),
        Sheet({"pp": 2, "dp": 3, "cp": 4, "tp": 1}, 3 * draw.integer(3, 6) + 2, 8 * draw.integer(4, 8) + 5),
    ]
    if draw.hidden:
        sheets += [
            Sheet({"cp": 3, "dp": 2, "pp": 2}, 7 + draw.integer(0, 6), 6 * draw.integer(6, 9) + 1),
            Sheet({"dp": 4, "tp": 2}, 9 + draw.integer(0, 6), 24),
            Sheet({"pp": 16, "dp": 8, "tp": 8}, 64, 8),
        ]
    asked = Asked(sheets)
    rows, samples = covering(0, "dp", "row", ROWS), same(0, "rows", ("dp",), ROWS)
    places, sequences = covering(1, "cp", "position", PLACES), same(1, "positions", ("cp",), PLACES)
    blocks = in_blocks(rows, samples, places, sequences, equal_work)
    lines = [
        asked.each("rows: each once over dp", rows, 2),
        asked.each("rows: the same on tp, pp and cp", samples, 2, of_ranks=True, lenient=True),
        asked.each("positions: each once over cp", places, 2, lenient=True),
        asked.each("positions: the same on tp, pp and dp", sequences, 1, of_ranks=True, lenient=True),
        asked.each("positions: equal work over cp", equal_work, 2, lenient=True),
        asked.ranges(asked.each("rows in succession, positions as a zigzag", blocks, 1)),
    ]
    sides = [kit.evaluating(asked.calls)]
    yield kit.Case("parts", sides, lines, recipe=kit.SIZES, alone=True)


def read(value: Any) -> Part | None:
    """(rows, positions) as lists, from ranges, lists and tensors that came back as plain data."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    rows, spans = ints(value[0]), value[1]
    if rows is None:
        return None
    places = ints(spans)
    if places is not None:  # one range, or the positions themselves
        return rows, places
    if not isinstance(spans, list):
        return None
    parts = [ints(span) for span in spans]
    if any(part is None for part in parts):
        return None
    return rows, [at for part in parts for at in part or []]
