"""zigzag: which rank holds which tokens, so that a causal mask leaves all of them the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.context_parallel.references import REFERENCES

Layout = list[list[range]]
NOBODYS = "is on no rank", "are on no rank"
TWICE = "is held twice, or does not exist", "are held twice, or do not exist"
ALL_RANKS = (
    "No ranks run here, because zigzag returns the layout of all n ranks together. It asks no rank for its "
    "number."
)
MOST = 100_000  # positions in an answer that is looked at
FORM = (
    "Return a list of ranges of positions for each rank, such as [[range(0, 2), range(6, 8)], [range(2, 6)]]."
)


def cut(seq: int, parts: int) -> list[range]:
    """Ranges in succession, the first seq % parts of them one longer."""
    sizes = [seq // parts + (i < seq % parts) for i in range(parts)]
    return [range(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


def pairs(seq: int, n: int) -> Layout:
    chunks = cut(seq, 2 * n)
    return [[chunks[rank], chunks[-1 - rank]] for rank in range(n)]


def floored(seq: int, n: int) -> Layout:
    size = seq // (2 * n)
    return [[range(i * size, (i + 1) * size) for i in (r, 2 * n - 1 - r)] for r in range(n)]


def longer_last(seq: int, n: int) -> Layout:
    layout = floored(seq, n)
    layout[0][1] = range(layout[0][1].start, seq)
    return layout


def rounded_up(seq: int, n: int) -> Layout:
    size = -(-seq // (2 * n))
    chunks = [range(min(i * size, seq), min((i + 1) * size, seq)) for i in range(2 * n)]
    return [[chunks[rank], chunks[-1 - rank]] for rank in range(n)]


UNEVEN = (
    "If 2n does not divide the sequence, the first seq % (2n) chunks are one token longer, as "
    "torch.tensor_split cuts."
)
SLIPS: dict[str, Callable[[int, int], Layout]] = {
    "Each rank has one contiguous part, so the last rank has the most to do. Cut 2n chunks, and give rank "
    "r the r-th and the r-th from the end.": lambda seq, n: [[chunk] for chunk in cut(seq, n)],
    "Each rank has every n-th token, but zigzag gives each rank two chunks of consecutive tokens.": (
        lambda seq, n: [[range(rank, seq, n)] for rank in range(n)]
    ),
    "Rank r has chunks 2r and 2r + 1, so its part is contiguous again. Pair the r-th chunk with the r-th "
    "from the end.": lambda seq, n: [[cut(seq, 2 * n)[2 * r], cut(seq, 2 * n)[2 * r + 1]] for r in range(n)],
    "Rank r has chunks r and n + r, so the last rank still has the most to do. The second must come from "
    "the end, 2n - 1 - r.": lambda seq, n: [[cut(seq, 2 * n)[r], cut(seq, 2 * n)[n + r]] for r in range(n)],
    "You cut only n chunks. Cut 2n, so that each rank has two of its own.": (
        lambda seq, n: [[cut(seq, n)[r], cut(seq, n)[n - 1 - r]] for r in range(n)]
    ),
    f"The last chunk has all remaining tokens. {UNEVEN}": longer_last,
    f"Tokens at the end are on no rank. {UNEVEN}": floored,
    f"The size of a chunk was rounded up, so the last chunks are short. {UNEVEN}": rounded_up,
}


# ---- what came


def read(value: Any) -> Layout | None:
    """The layout that was told (see `harness.plain`), or None."""
    if not isinstance(value, list) or not all(isinstance(held, list) for held in value):
        return None
    layout = [[span(entry) for entry in held] for held in value]
    good = [[chunk for chunk in held if chunk is not None] for held in layout]
    if [len(held) for held in good] != [len(held) for held in layout]:
        return None
    return good if sum(len(chunk) for held in good for chunk in held) <= MOST else None


def span(entry: Any) -> range | None:
    ends = entry.get("range") if isinstance(entry, dict) else None
    if not isinstance(ends, list) or len(ends) != 3 or not all(type(number) is int for number in ends):
        return None
    start, stop, step = ends
    # longer ones have no length in Python
    known = step and all(abs(number) <= MOST for number in ends)
    return range(start, stop, step) if known else None


def held(layout: Layout) -> list[list[int]]:
    """The positions on each rank."""
    return [sorted(position for chunk in spans for position in chunk) for spans in layout]


def judge(
    sizes: Sequence[tuple[int, int]], start: int, others: Sequence[tuple[int, int]]
) -> Callable[[kit.Observed], kit.Finding]:
    """The first call that is wrong, of those from number `start` on, with these sizes.

    others: the sizes of all calls. With few tokens several mistakes look alike: the hint names the one that
    fits most.
    """

    def judged(observed: kit.Observed) -> kit.Finding:
        errors = [observed.answer(start + i).error for i in range(len(sizes))]
        not_written = [error for error in errors if error is not None and error[0] == "NotImplementedError"]
        if len(not_written) == len(sizes):
            return kit.unwritten("zigzag", not_written[0][2])
        read_so_far: list[tuple[int, int, Layout]] = []
        for index, (seq, n) in enumerate(sizes, start=start):
            answer = observed.answer(index)
            if answer.error is not None:
                return raised(seq, n, *answer.error)
            layout = read(answer.value)
            if layout is None or len(layout) != n:
                said = f"zigzag({seq}, {n}) does not return one list of ranges for each rank."
                return kit.wrong(kit.Sentence(said, "zigzag returns no layout."), FORM, cause="form")
            read_so_far.append((seq, n, layout))
        for seq, n, layout in read_so_far:
            if held(layout) != held(pairs(seq, n)):
                return other_tokens(seq, n, layout, usual_slip(observed, others, seq, n, layout))
            if any(not chunk or chunk.step != 1 for spans in layout for chunk in spans):
                return kit.wrong(
                    "some ranges have no tokens, or have gaps.",
                    "Leave out a chunk without tokens, and write a chunk as range(start, stop).",
                    cause="empty",
                )
        return kit.RIGHT

    return judged


def raised(seq: int, n: int, error: str, text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("zigzag", place, "for all sizes")
    hint = ALL_RANKS if "process group" in text else ""
    said = kit.error_sentence("zigzag", error, text, call=f"zigzag({seq}, {n})")
    return kit.wrong(said, kit.at(place), hint, cause=f"raised {place}")


def usual_slip(
    observed: kit.Observed, others: Sequence[tuple[int, int]], seq: int, n: int, layout: Layout
) -> str:
    """The mistake that gives this layout; of several, the one that gives most of what came. "" for none."""
    came = [(size, read(observed.answer(i).value)) for i, size in enumerate(others)]

    def fits(make: Callable[[int, int], Layout]) -> int:
        return sum(answered is not None and held(make(*size)) == held(answered) for size, answered in came)

    hints = [says for says, make in SLIPS.items() if held(make(seq, n)) == held(layout)]
    return max(hints, key=lambda says: fits(SLIPS[says]), default="")


def other_tokens(seq: int, n: int, layout: Layout, says: str) -> kit.Finding:
    """The finding about a rank that holds wrong tokens, with the usual cause."""
    came, right = held(layout), held(pairs(seq, n))
    everything = sorted(position for positions in came for position in positions)
    if everything == list(range(seq)):
        rank = next(r for r in range(n) if came[r] != right[r])
        mistake = f"rank {rank} holds the tokens {listed(came[rank])}, not {listed(right[rank])}"
        general = "some ranks hold other tokens than they should"
    else:
        missing = sorted(set(range(seq)) - set(everything))
        strange = [
            position
            for position, count in Counter(everything).items()
            if count > 1 or not 0 <= position < seq
        ]
        named = missing or sorted(strange)
        singular, plural = NOBODYS if missing else TWICE
        noun = "token" if len(named) == 1 else "tokens"
        mistake = f"{noun} {listed(named)} {words.verb(named, singular, plural)}"
        general = "tokens are left out, held twice, or do not exist"
    said = kit.Sentence(f"with zigzag({seq}, {n}), {mistake}.", f"{general}.")
    return kit.wrong(
        said,
        says or "Each of the 2n chunks belongs to one rank. Rank r has chunks r and 2n - 1 - r.",
        cause=says or mistake,
    )


def listed(positions: list[int]) -> str:
    if not positions:
        return "none"
    runs = words.spans(positions)
    return words.listing(runs if len(runs) < 5 else [*runs[:4], "others"])


@kit.exercise(points=5, objects=("zigzag",), references=REFERENCES)
def zigzag(draw: kit.Draw) -> Iterator[kit.Case]:
    n = draw.integer(5, 8)
    counts = (n, 2, 3, 8)
    fitting = [(2 * count * draw.integer(3, 9), count) for count in counts]
    uneven = [(8 * count + draw.integer(1, 2 * count), count) for count in counts]
    table = [
        ("2n divides the sequence", [(16, 4), *fitting], 2.0, False),
        ("2n does not divide it", [(29, 4), *uneven], 1.5, False),
        # with n or n + 1 tokens, parts in succession are the same
        ("fewer tokens than chunks", [(draw.integer(n + 2, 2 * n), n), (3, 2)], 1.0, False),
        ("1 rank", [(2 * draw.integer(2, 15), 1)], 0.5, True),
    ]
    if draw.hidden:
        table.append(("longer ones", [(draw.integer(500, 900), draw.integer(6, 9))], 0.5, False))
    every = [size for _, sizes, _, _ in table for size in sizes]
    calls: list[list] = []
    lines: list[kit.Line] = []
    for title, sizes, weight, trivial in table:
        lines.append(kit.Line(title, judge(sizes, len(calls), every), weight, trivial=trivial))
        calls += [[0, list(size)] for size in sizes]
    yield kit.Case("layouts", [kit.evaluating(calls)], lines, recipe=kit.EVALUATE, alone=True)
