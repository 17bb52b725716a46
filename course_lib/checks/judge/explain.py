"""From decoded pieces to sentences: "elements 8 and 9 still hold each rank's own value"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.checks import words
from course_lib.checks.judge.case import Finding, usual, wrong
from course_lib.checks.judge.provenance import Piece

TOLD = 2  # kinds of mistake that a line tells at most


@dataclass(frozen=True)
class Language:
    """How an exercise speaks of its values.

    size: elements of a result; ranks: the global ranks, in the order of sources; summed: how many
    sources a complete sum takes; chunks: (first, last + 1) of each chunk of the positions, or empty;
    expected: a name for the right value, such as "the sum"; source: index -> a name for one source's value;
    belongs: for copies: (rank, element) -> a name for the right value, such as "rank 2's"; chunk_name: index
    of a chunk -> its name; homes: rank -> the position that each element should hold, when these differ.
    """

    size: int
    ranks: Sequence[int]
    summed: int
    chunks: Sequence[tuple[int, int]] = ()
    expected: str = "the sum"
    source: Callable[[int], str] | None = None
    belongs: Callable[[int, int], str] | None = None
    chunk_name: Callable[[int], str] | None = None
    homes: dict[int, np.ndarray] | None = None

    def whose(self, source: int) -> str:
        """ "rank 2's", or the name of a source that is not a rank."""
        if self.source is not None:
            return self.source(source)
        return f"rank {self.ranks[source]}'s"

    def values(self, sources: Sequence[int]) -> str:
        """ "rank 0's and rank 1's values"."""
        return f"{words.listing(map(self.whose, sources))} value{'s' * (len(sources) > 1)}"

    def position(self, rank: int, element: int) -> int:
        """The position of the contributions that this element should hold."""
        return element if self.homes is None else int(self.homes[rank][element])

    def chunk(self, first: int, last: int) -> int | None:
        """The chunk in which both positions lie, if there is one."""
        inside = (k for k, (low, high) in enumerate(self.chunks) if low <= first and last < high)
        return next(inside, None)


@dataclass(frozen=True)
class Mistake:
    """The same mistake on one or several ranks: a sign that exercises match, and words for it.

    signs: "own", "copy", "partial", "twice", "times", "mean", "moved", "moved_copy", "zero", "old",
    "nan", "unknown".
    """

    sign: str
    detail: str
    elements: tuple[int, ...]
    ranks: tuple[int, ...]
    pieces: tuple[Piece, ...]


def mistakes(pieces: Sequence[Piece], language: Language, all_ranks: Sequence[int]) -> list[Mistake]:
    """Pieces of all ranks, those that are alike joined, the most widespread first."""
    joined: dict[tuple[str, str, tuple[int, ...]], list[Piece]] = defaultdict(list)
    for piece in [part for whole in pieces for part in by_chunk(whole, language)]:
        sign, detail = describe(piece, language)
        joined[sign, detail, piece.elements].append(piece)
    all_mistakes = [
        Mistake(sign, detail, elements, tuple(sorted({p.rank for p in group})), tuple(group))
        for (sign, detail, elements), group in joined.items()
    ]
    all_mistakes.sort(
        key=lambda m: (m.sign == "unknown", -len(m.elements) * len(m.ranks), m.ranks, m.elements)
    )
    return all_mistakes


def by_chunk(piece: Piece, language: Language) -> list[Piece]:
    """A piece that came from other positions, cut where a new chunk begins."""
    if not piece.origin.offset or not language.chunks:
        return [piece]
    parts: dict[tuple, list[int]] = defaultdict(list)
    for element in piece.elements:
        here = language.position(piece.rank, element)
        there = here + piece.origin.offset
        parts[language.chunk(here, here), language.chunk(there, there)].append(element)
    return [Piece(piece.rank, tuple(elements), piece.origin) for elements in parts.values()]


def describe(piece: Piece, language: Language) -> tuple[str, str]:
    """(sign, words for the values) of one piece."""
    origin = piece.origin
    if origin.kind == "nan":
        return "nan", "NaN, which comes from memory that was never written or from 0/0"
    if origin.kind == "zero":
        return "zero", "0"
    if origin.kind == "mean":
        return "mean", f"{language.expected} divided by {language.summed}"
    if origin.kind == "unknown":
        return "unknown", "numbers that are not a sum of the ranks' values"
    used = [s for s, count in enumerate(origin.counts) if count]
    own = language.ranks.index(piece.rank) if piece.rank in language.ranks else -1
    if any(s >= language.summed for s in used):
        return old_content(piece, language)
    if origin.offset:
        return moved(piece, language, used)
    if used == [own] and origin.counts[own] == 1:
        return "own", "the rank's own value"
    if len(used) == 1 and origin.counts[used[0]] == 1:
        return "copy", f"{language.values(used)} alone"
    if len(set(origin.counts[: language.summed])) == 1:
        often = f"{origin.counts[0]} times " if origin.counts[0] > 1 else ""
        return "times", f"{often}{language.expected}"
    return counted(origin.counts[: language.summed], language)


def counted(counts: Sequence[int], language: Language) -> tuple[str, str]:
    """Sources that count too often, and those that never do."""
    never = [s for s, count in enumerate(counts) if count == 0]
    often = [s for s, count in enumerate(counts) if count > 1]
    if not often:
        once = [s for s, count in enumerate(counts) if count == 1]
        are = words.verb(never, "is", "are")
        missing = words.listing(map(language.whose, never))
        return "partial", f"only {language.values(once)}, while {missing} {are} missing"
    phrases = [f"{language.whose(s)} value {words.times(counts[s])}" for s in often]
    if never:
        phrases.append(f"{words.listing(map(language.whose, never))} never")
    return "twice", words.listing(phrases)


def old_content(piece: Piece, language: Language) -> tuple[str, str]:
    counts = piece.origin.counts
    if not any(counts[: language.summed]):
        return "old", "the content from before the call, because nothing was written there"
    if all(c == 1 for c in counts[: language.summed]):
        return "old", f"{language.expected} added to the content from before the call"
    return "old", "a sum that includes the content from before the call"


def moved(piece: Piece, language: Language, used: list[int]) -> tuple[str, str]:
    """A value from another position: by chunk if the whole piece lies in one."""
    first, last = (
        language.position(piece.rank, e) + piece.origin.offset
        for e in (piece.elements[0], piece.elements[-1])
    )
    whole = len(used) == language.summed
    what = language.expected if whole else language.values(used)
    sign = "moved" if whole else "moved_copy"
    there = language.chunk(first, last)
    if there is not None and language.chunk_name is not None:
        return sign, language.chunk_name(there)
    if there is not None:
        return sign, f"{what} of chunk {there}"
    return sign, f"{what} of {words.which('element', range(first, last + 1))}"


def where(mistake: Mistake, language: Language) -> str:
    """ "elements 8 and 9", "chunk 2 (element 4)", "all 10 elements"."""
    elements = mistake.elements
    if len(elements) == language.size and language.size > 1:
        return f"all {words.counted(language.size, 'element')}"
    chunk = None if language.homes is not None else language.chunk(elements[0], elements[-1])
    if chunk is not None and elements == tuple(range(*language.chunks[chunk])):
        return f"chunk {chunk} ({words.which('element', elements)})"
    return words.which("element", elements)


def holds(place: str, singular: str = "holds", plural: str = "hold") -> str:
    return plural if place.startswith(("all", "elements")) else singular


def sentence(mistake: Mistake, language: Language, all_ranks: Sequence[int]) -> str:
    """One sentence about a mistake."""
    place = where(mistake, language)
    hold = holds(place)
    everywhere = set(mistake.ranks) == set(all_ranks) and len(all_ranks) > 1
    if language.belongs is not None:
        return copied(mistake, language, place, language.belongs)
    if mistake.sign == "own" and everywhere:
        them = "them" if hold == "hold" else "it"
        return f"{place} still {hold} each rank's own value, because nothing was added to {them}."
    who = "on every rank" if everywhere else f"on {words.ranks(mistake.ranks)}"
    still = "still " if mistake.sign == "own" else ""
    return f"{who}, {place} {still}{hold} {mistake.detail}."


def copied(mistake: Mistake, language: Language, place: str, belongs: Callable[[int, int], str]) -> str:
    """A result that should be copies: the value found, and the value that belongs there."""
    rank, element = mistake.ranks[0], mistake.elements[0]
    more = f" (likewise on {words.ranks(mistake.ranks[1:])})" if len(mistake.ranks) > 1 else ""
    said = f"on rank {rank}, {place} {holds(place)} {mistake.detail.removesuffix(' alone')}"
    if mistake.sign in ("old", "nan"):
        return f"{said}{more}."
    right = belongs(rank, element)
    belong = holds(place, "belongs", "belong") if right.endswith("'s") else "belongs"
    return f"{said}, where {right} {belong}{more}."


def finding(
    pieces: Sequence[Piece],
    language: Language,
    all_ranks: Sequence[int],
    hint: Callable[[list[Mistake]], str] | None = None,
) -> Finding:
    """The finding for wrong pieces: the observation, then its usual cause."""
    all_mistakes = mistakes(pieces, language, all_ranks)
    said = [sentence(mistake, language, all_ranks) for mistake in pick(all_mistakes)]
    cause = usual(hint, all_mistakes)
    return wrong(*said, cause, cause=cause or all_mistakes[0].sign)


def pick(all_mistakes: list[Mistake]) -> list[Mistake]:
    """The first mistakes, one of each sign."""
    chosen: list[Mistake] = []
    for mistake in all_mistakes:
        if all(mistake.sign != other.sign for other in chosen):
            chosen.append(mistake)
    return chosen[:TOLD]
