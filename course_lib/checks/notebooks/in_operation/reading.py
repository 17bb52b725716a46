"""read_plan: which pieces of which files fill the box that a rank wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from course_lib.checks import kit
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.rank.notebooks.in_operation.planning import Box, Piece, ReadAnswer, ReadInstructions

RECIPE = "course_lib.checks.rank.notebooks.in_operation.planning:read_plans"
NAME = "read_plan"
POINT = "reading what the wanted box and a saved box share, and nothing else"
WHOLE = (
    "Whole saved boxes are read, so a file of 8 TB would travel for a few rows. Read only what the saved "
    "box and the wanted box share."
)
FIRST = "Only one saved box is read, but the wanted box can be spread over several files."
LAST_ONLY = (
    "Only the last dimension was compared, but two boxes meet only if their intervals meet in every "
    "dimension."
)
FIRST_ONLY = (
    "Only the first dimension was compared, but two boxes meet only if their intervals meet in every "
    "dimension."
)
WANTED_GLOBAL = (
    "The place in the wanted box is counted in the whole tensor. Subtract the wanted box's own start."
)
SAVED_GLOBAL = (
    "The place in the saved box is counted in the whole tensor. Subtract the saved box's own start."
)
BOTH_GLOBAL = (
    "Both places are counted in the whole tensor. From each place, subtract the start of the box it is in."
)
EXCHANGED = "The two places are exchanged, because the place in the saved box comes first."
INDEX = (
    "The pieces begin with the numbers of the list's entries. Instead, begin each piece with the saved box's "
    "file."
)
LENGTHS = "The pairs are (start, length), but a box is a list of (start, stop)."
INCLUSIVE = (
    "The stops are one too small, because `stop` is the first index that is not in the box, as in a slice."
)
TOO_LONG = (
    "The stops are one too large, because `stop` is the first index that is not in the box, as in a slice."
)
NOTHING = (
    "Some pieces have no elements, because boxes that only touch share nothing. Keep a piece only if each "
    "of its intervals has start < stop."
)
HOLE = (
    "The saved boxes do not hold everything that is wanted, but no error said so. The missing elements "
    "would keep what was in memory, so count the elements you find, and raise ValueError if some are "
    "missing."
)
SCALAR = (
    "A scalar has no dimension but one element, so its box is the empty list. Read it like any other box."
)
WANTED_FROM_SAVED = (
    "The place in the wanted box is counted from the saved box's start. Subtract the wanted box's start "
    "instead."
)
SAVED_FROM_WANTED = (
    "The place in the saved box is counted from the wanted box's start. Subtract the saved box's start "
    "instead."
)
TWICE = "Every piece comes twice, but each element must be read only once."
NOT_MISSING = "The saved boxes hold all that is wanted here, so nothing is missing."
EMPTY = "A wanted box without elements needs no piece, so return the empty list."
IDEAS = (WHOLE, FIRST, LAST_ONLY, FIRST_ONLY)
Saved = list[tuple[int, Box]]


@dataclass(frozen=True)
class Asked:
    """One call. hole: whether the saved boxes lack something that is wanted."""

    saved: Saved
    wanted: Box
    hole: bool = False

    def __str__(self) -> str:
        return f"{NAME}({self.saved}, {self.wanted})"

    @property
    def right(self) -> list[Piece]:
        return self.plan(lambda box, both: (inside(both, box), inside(both, self.wanted)))

    def plan(self, places: Callable[[Box, Box], tuple[Box, Box]], saved: Saved | None = None) -> list[Piece]:
        """Of each saved box that shares something, its file and two places."""
        pieces = []
        for file, box in self.saved if saved is None else saved:
            both = shared(box, self.wanted)
            if elements(both):
                pieces.append((file, *places(box, both)))
        return pieces

    def box_of(self, file: int) -> Box | None:
        return next((box for number, box in self.saved if number == file), None)


def shared(box: Box, other: Box) -> Box:
    return [(max(a, c), max(min(b, d), max(a, c))) for (a, b), (c, d) in zip(box, other, strict=True)]


def inside(box: Box, outer: Box) -> Box:
    return [(a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True)]


def elements(box: Box) -> int:
    return prod(max(0, stop - start) for start, stop in box)


def shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def mistakes(asked: Asked) -> Iterator[tuple[str, list[Piece]]]:
    """The plans of the usual mistakes, with the sentence of each."""
    saved, wanted = asked.saved, asked.wanted
    right = asked.right

    def whole(box: Box) -> Box:
        return inside(box, box)

    yield WHOLE, asked.plan(lambda box, both: (whole(box), inside(both, wanted)))
    yield WHOLE, asked.plan(lambda box, both: (whole(box), inside(box, wanted)))
    yield WHOLE, asked.plan(lambda box, both: (whole(box), whole(box)))
    yield WHOLE, [(file, whole(box), inside(box, wanted)) for file, box in saved]
    yield WHOLE, [(file, whole(box), whole(box)) for file, box in saved]
    yield FIRST, right[:1]
    yield FIRST, right[-1:]
    yield SAVED_GLOBAL, asked.plan(lambda box, both: (both, inside(both, wanted)))
    yield WANTED_GLOBAL, asked.plan(lambda box, both: (inside(both, box), both))
    yield BOTH_GLOBAL, asked.plan(lambda box, both: (both, both))
    yield WANTED_FROM_SAVED, asked.plan(lambda box, both: (inside(both, box), inside(both, box)))
    yield SAVED_FROM_WANTED, asked.plan(lambda box, both: (inside(both, wanted), inside(both, wanted)))
    yield TWICE, [*right, *right]
    yield EXCHANGED, [(file, there, here) for file, here, there in right]
    yield LENGTHS, [(file, lengths(here), lengths(there)) for file, here, there in right]
    yield INCLUSIVE, [(file, shorter(here), shorter(there)) for file, here, there in right]
    yield TOO_LONG, [(file, longer(here), longer(there)) for file, here, there in right]
    yield TOO_LONG, stretched(asked)
    for says, kept in ((LAST_ONLY, wanted[-1:]), (FIRST_ONLY, wanted[:1])):
        if len(wanted) > 1:
            yield says, one_dimension(asked, -1 if says == LAST_ONLY else 0, kept)


def one_dimension(asked: Asked, at: int, wanted: Box) -> list[Piece]:
    """The plan that takes the saved box's own extent in all dimensions but one."""
    pieces = []
    for file, box in asked.saved:
        (part,) = shared([box[at]], wanted)
        if part[0] < part[1]:
            both = list(box)
            both[at] = part
            pieces.append((file, inside(both, box), inside(both, asked.wanted)))
    return pieces


def stretched(asked: Asked) -> list[Piece]:
    """The plan in which the shared part itself ends one too late, so boxes that touch share something."""
    pieces = []
    for file, box in asked.saved:
        both = [(max(a, c), min(b, d) + 1) for (a, b), (c, d) in zip(box, asked.wanted, strict=True)]
        if elements(both):
            pieces.append((file, inside(both, box), inside(both, asked.wanted)))
    return pieces


def lengths(box: Box) -> Box:
    return [(start, stop - start) for start, stop in box]


def shorter(box: Box) -> Box:
    return [(start, stop - 1) for start, stop in box]


def longer(box: Box) -> Box:
    return [(start, stop + 1) for start, stop in box]


def same(came: Sequence[Piece], right: Sequence[Piece]) -> bool:
    return sorted(came) == sorted(right)


def with_elements(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in pieces if elements(piece[1]) or elements(piece[2])]


def cells(asked: Asked, piece: Piece, first: bool) -> list[tuple[int, ...]]:
    """The elements of a place, by their indices in the whole tensor."""
    outer = asked.box_of(piece[0]) if first else asked.wanted
    assert outer is not None
    place = piece[1] if first else piece[2]
    return list(product(*(range(a + s, b + s) for (a, b), (s, _) in zip(place, outer, strict=True))))


# ---- lines


def pieces_of(asked: Asked, answer: ReadAnswer, anywhere: bool = False) -> list[Piece] | kit.Finding:
    """anywhere: whether a call that asks for nothing special raised the same error."""
    if answer.error is not None:
        error, text, place = answer.error
        if error == "NotImplementedError":
            return kit.unwritten(NAME, place)
        head = f"{asked} raised {kit.error_in_full(error, text)}"
        said = kit.Sentence(f"{head}.", f"{NAME} raised {kit.error_kind(error)}.")
        special = "" if elements(asked.wanted) else EMPTY
        special = special if asked.wanted else SCALAR
        own = error == "ValueError" and "raise " in place
        why = (not anywhere and special) or (NOT_MISSING if own else "")
        return kit.wrong(said, kit.at(place) if place else "", why, cause=f"raised {error} {place} {why}")
    if answer.misfit == "NoneType where a list of pieces belongs":
        return kit.wrong(f"{asked} returns None.", "Does it end in a `return`?", cause="none")
    if answer.misfit or answer.pieces is None:
        said = kit.Sentence(f"{asked} gives {answer.misfit}.", f"{NAME} gives something in another form.")
        form = (
            "A piece is (file, place in the saved box, place in the wanted box), and each place is a list "
            "of pairs."
        )
        return kit.wrong(said, form, cause="form")
    pieces = by_file(asked, answer.pieces)
    for file, here, there in pieces:
        box = asked.box_of(file)
        if box is None:
            said = kit.Sentence(
                f"{asked} reads file {file}, which does not exist.",
                "a piece names a file that does not exist.",
            )
            return kit.wrong(said, cause="file")
        if len(here) != len(box) or len(there) != len(box):
            said = kit.Sentence(
                f"{asked} gives a place that does not have {len(box)} intervals.",
                "a place has the wrong number of intervals.",
            )
            return kit.wrong(said, cause="dimensions")
    return pieces


def by_file(asked: Asked, pieces: list[Piece]) -> list[Piece]:
    """The pieces; where all have the numbers of the list's entries, with the files of these."""
    if not are_entries(asked, pieces):
        return pieces
    return [(asked.saved[entry][0], here, there) for entry, here, there in pieces]


def are_entries(asked: Asked, pieces: Sequence[Piece]) -> bool:
    """No file has the number of an entry, see `read_plan`."""
    return bool(pieces) and all(0 <= file < len(asked.saved) for file, _, _ in pieces)


def share_is_right(asked: Asked, came: Sequence[Piece]) -> bool:
    """Whether each file gives as much as it shares, however its place is written."""
    right = sorted((file, shape(here)) for file, here, _ in asked.right)
    readings = (shape, lambda place: tuple(stop for _, stop in place), lambda place: shape(longer(place)))
    if any(sorted((file, read(here)) for file, here, _ in came) == right for read in readings):
        return True
    cut = [(file, shorter(here)) for file, here, _ in came]
    return sorted((file, shape(here)) for file, here in cut if elements(here)) == right


def files_are_right(asked: Asked, answer: ReadAnswer) -> kit.Finding:
    """Whether pieces begin with a file."""
    came = pieces_of(asked, answer)
    if isinstance(came, kit.Finding):
        return came
    if answer.pieces is None or not are_entries(asked, answer.pieces):
        return kit.RIGHT
    said = kit.Sentence(
        f"{asked} gives a piece of file {answer.pieces[0][0]}, which is not in the list.",
        "a piece names a file that is not in the list.",
    )
    return kit.wrong(said, INDEX)


def saved_is_right(asked: Asked, came: Sequence[Piece]) -> bool:
    pieces = sorted((file, here) for file, here, _ in with_elements(came))
    return pieces == sorted((file, here) for file, here, _ in asked.right)


def wanted_is_right(asked: Asked, came: Sequence[Piece]) -> bool:
    pieces = sorted((file, there) for file, _, there in with_elements(came))
    return pieces == sorted((file, there) for file, _, there in asked.right)


def all_right(asked: Asked, came: Sequence[Piece]) -> bool:
    return fills(asked, came) and not empty_pieces(came)


def fills(asked: Asked, came: Sequence[Piece]) -> bool:
    """Whether the pieces fill the wanted box with its own elements, each once. They may be cut further."""
    filled: list[tuple[int, ...]] = []
    for piece in with_elements(came):
        box = asked.box_of(piece[0])
        if box is None or shape(piece[1]) != shape(piece[2]):
            return False
        if any(not 0 <= a <= b <= stop - start for (a, b), (start, stop) in zip(piece[1], box, strict=True)):
            return False
        source = cells(asked, piece, True)
        if source != cells(asked, piece, False):
            return False
        filled += source
    wanted = list(product(*(range(start, stop) for start, stop in asked.wanted)))
    return sorted(filled) == wanted


def empty_pieces(came: Sequence[Piece]) -> bool:
    return len(with_elements(came)) < len(came)


Passes = Callable[[Asked, Sequence[Piece]], bool]
Row = tuple[list[Asked], Passes | None, str, float]


def explanation(calls: Sequence[Asked], answers: Sequence[ReadAnswer]) -> str:
    """The mistake that gives all plans that came, the right ones, too; or all wrong ones; or ""."""
    pairs = [(asked, pieces_of(asked, answer)) for asked, answer in zip(calls, answers, strict=True)]
    readable = [
        (asked, with_elements(came)) for asked, came in pairs if isinstance(came, list) and not asked.hole
    ]
    off = [(asked, came) for asked, came in readable if not fills(asked, came)]
    names = list(dict.fromkeys(says for asked, _ in readable for says, _ in mistakes(asked)))
    for among in (readable, off):
        for name in names:
            if off and all(gives(name, asked, came) for asked, came in among):
                return name
    return ""


def gives(name: str, asked: Asked, came: Sequence[Piece]) -> bool:
    """Whether the mistake gives this plan; one that needs more dimensions gives the right one."""
    plans = [with_elements(plan) for says, plan in mistakes(asked) if says == name] or [asked.right]
    return any(same(came, plan) for plan in plans)


def judged(
    asked: Asked, answer: ReadAnswer, passes: Passes, explained: Callable[[], str], anywhere: bool
) -> kit.Finding:
    if asked.hole:
        return judged_hole(asked, answer)
    came = pieces_of(asked, answer, anywhere)
    if isinstance(came, kit.Finding):
        return came
    if fills(asked, came):
        if passes is not all_right or not empty_pieces(came):
            return kit.RIGHT
        said = kit.Sentence(f"{asked} gives a piece without elements.", "a piece has no elements.")
        return kit.wrong(said, EMPTY if not elements(asked.wanted) else NOTHING)
    if passes(asked, came):
        return kit.RIGHT
    if not asked.wanted and not came:
        return kit.wrong(kit.Sentence(f"{asked} gives no piece.", "a scalar is not read."), SCALAR)
    clean, says = with_elements(came), explained()
    if not says and len(clean) < len(asked.right) and all(piece in asked.right for piece in clean):
        says = FIRST
    said = kit.Sentence(
        f"{asked} gives {as_text(came)}, but {as_text(asked.right)} is right.",
        f"{NAME} does not give the right pieces.",
    )
    return kit.wrong(said, says, cause=says, misses_point=says in IDEAS)


def judged_hole(asked: Asked, answer: ReadAnswer) -> kit.Finding:
    if answer.error is not None and answer.error[0] == "ValueError":
        return kit.RIGHT
    if answer.error is not None:
        error, text, place = answer.error
        if error == "NotImplementedError":
            return kit.unwritten(NAME, place)
        head = f"{asked} raised {kit.error_in_full(error, text)}"
        said = kit.Sentence(f"{head}.", f"{NAME} raised {kit.error_kind(error)}.")
        return kit.wrong(said, "Raise a ValueError instead.", kit.at(place) if place else "")
    return kit.wrong(kit.Sentence(f"{asked} raised no error.", "a missing element raised no error."), HOLE)


def as_text(pieces: Sequence[Piece]) -> str:
    shown = ", ".join(str(piece) for piece in sorted(pieces)[:2])
    return f"[{shown}{', ...' if len(pieces) > 2 else ''}]"


def grid(shape: Sequence[int], cuts: Sequence[int], files: Sequence[int]) -> Saved:
    """A tensor cut into equal parts in each dimension, as far as they are; a file for each."""
    axes = []
    for size, parts in zip(shape, cuts, strict=True):
        step = -(-size // parts)
        axes.append([(min(k * step, size), min((k + 1) * step, size)) for k in range(parts)])
    return [(file, list(box)) for file, box in zip(files, product(*axes), strict=True)]


@kit.exercise(points=10, objects=(NAME,), references=REFERENCES, point=POINT)
def read_plan(draw: kit.Draw) -> Iterator[kit.Case]:
    a, b = draw.integer(2, 5), draw.integer(2, 4)
    rows, columns = 6 * b, 4 * a
    numbers = [int(k) for k in draw.distinct(12, low=20, high=99)]
    in_two = grid((rows, columns), (1, 2), numbers[:2])
    whole = grid((rows, columns), (1, 1), numbers[2:3])
    flat = grid((12 * a,), (4,), numbers[3:7])
    thirds = [box for _, box in grid((rows, columns), (3, 1), range(3))]
    quarters = [box for _, box in grid((rows, columns), (1, 4), range(4))]
    together = [Asked(in_two, [(0, rows), (0, columns)])]
    apart = [Asked(whole, quarters[1]), Asked(in_two, quarters[2])]
    turned = [Asked(in_two, thirds[1]), Asked(in_two, thirds[2])]
    shards = [Asked(flat, box) for _, box in grid((12 * a,), (3,), range(3))]
    scalar = [Asked([(numbers[7], [])], [])]
    nothing = [Asked(flat, [(3, 3)]), Asked(in_two, [(2, 2), (0, columns)])]
    shards.append(Asked(flat, [(0, 6 * a)]))
    hole = [Asked([flat[0], flat[2], flat[3]], [(0, 12 * a)], hole=True)]
    hole += [Asked(in_two[:1], [(0, 2), (columns // 2 - 1, columns // 2 + 1)], hole=True)]
    both = [*apart, *turned]
    lines: list[Row] = [
        (together, all_right, "columns of 2 ranks, wanted whole", 1.0),
        (together, None, "the files", 0.5),
        (apart, share_is_right, "1 of 4 parts: how much is read, of which file", 1.5),
        (turned, share_is_right, "columns of 2 ranks, wanted as rows of 3: how much, of which file", 2.0),
        (both, saved_is_right, "its place in the saved box", 1.5),
        (both, wanted_is_right, "its place in the wanted box", 1.5),
        (shards, all_right, "4 flat shards, wanted as 3 and as 2", 1.5),
        (hole, all_right, "something is missing: ValueError", 1.5),
        (scalar, all_right, "a scalar", 0.5),
        (nothing, all_right, "nothing is wanted", 0.5),
    ]
    yield case("plans", lines)
    if draw.hidden:
        cubes = grid((4, 6, 2 * b), (2, 3, 2), numbers)
        cube = [
            Asked(cubes, [(1, 3), (1, 5), (0, b + 1)]),
            Asked(cubes, [(3, 4), (5, 6), (2 * b - 1, 2 * b)]),
        ]
        uneven = grid((7,), (5,), numbers[:5])  # the last has no element
        ends = [Asked(uneven, [(1, 7)]), Asked(uneven, [(6, 7)])]
        lines = [
            (cube, all_right, "three dimensions", 1.0),
            (ends, all_right, "a file without elements", 0.5),
        ]
        yield case("other plans", lines, hidden=True)


def is_ordinary(asked: Asked) -> bool:
    """Whether it asks for elements, and all of them are there."""
    return bool(asked.wanted) and elements(asked.wanted) > 0 and not asked.hole


def case(title: str, rows: Sequence[Row], hidden: bool = False) -> kit.Case:
    """The lines of these calls; each call is made once. Without a test a line judges the files."""
    calls = list[Asked]()
    for asked, *_ in rows:
        calls += [call for call in asked if all(call is not other for other in calls)]

    def line(asked: list[Asked], passes: Passes | None, title: str, weight: float) -> kit.Line:
        places = [next(k for k, other in enumerate(calls) if other is call) for call in asked]

        def judge(observed: kit.Observed) -> kit.Finding:
            answers = observed.values[0].answers
            if passes is None:
                findings = (files_are_right(calls[k], answers[k]) for k in places)
            else:
                usual = [answers[k].error for k, call in enumerate(calls) if is_ordinary(call)]
                asked_here = ((calls[k], answers[k]) for k in places)
                findings = (
                    judged(call, answer, passes, lambda: explanation(calls, answers), answer.error in usual)
                    for call, answer in asked_here
                )
            return next((finding for finding in findings if not finding.ok), kit.RIGHT)

        made = kit.Line(title, judge, weight)
        return kit.telling(made) if passes is share_is_right and len(asked) > 1 else made

    lines = [line(*row) for row in rows]
    instructions = ReadInstructions([(call.saved, call.wanted) for call in calls])
    sides = [kit.RankSide({}, instructions, {})]
    return kit.Case(title, sides, lines, recipe=RECIPE, alone=True, hidden=hidden)
