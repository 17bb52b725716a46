"""all_to_all_bytes: the bytes of rows that a rank sends for a layer, from the numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.experts.references import REFERENCES

Counts = list[list[int]]  # [rank][expert]: rows
HALF = 2  # bytes of a number in 16 bits


def right(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    return facts.all_to_all_bytes(counts, rank, width, itemsize)


def between(counts: Counts) -> Counts:
    """Rows from each rank to each."""
    n, held = len(counts), len(counts[0]) // len(counts)
    return [[sum(row[held * to : held * (to + 1)]) for to in range(n)] for row in counts]


def rows(goes: float, comes: float, own: float = 0, itemsize: int = 0) -> kit.Formula:
    """So many times the rank's row, its column, and its own part; itemsize: instead of the one asked for."""

    def formula(counts: Counts, rank: int, width: int, size: int = HALF) -> float:
        matrix = between(counts)
        kept = matrix[rank][rank]
        row, column = sum(matrix[rank]) - kept, sum(source[rank] for source in matrix) - kept
        return (goes * row + comes * column + own * kept) * width * (itemsize or size)

    return formula


def of_all(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    return sum(right(counts, other, width, itemsize) for other in range(len(counts)))


def mean(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    """(n-1)/n of the mean number of rows, four times."""
    n = len(counts)
    return 4 * (n - 1) / n * sum(map(sum, counts)) / n * width * itemsize


def spread_evenly(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    """(n-1)/n of the rank's own rows, four times."""
    return 4 * (len(counts) - 1) / len(counts) * sum(counts[rank]) * width * itemsize


def with_counts(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    beside = 8 * len(counts[0]) * (len(counts) - 1) / len(counts)
    return right(counts, rank, width, itemsize) + beside


def with_all_counts(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    return right(counts, rank, width, itemsize) + 8 * len(counts[0])


def striped(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    n = len(counts)
    return right([[sum(row[to::n]) for to in range(n)] for row in counts], rank, width, itemsize)


def one_expert_a_rank(counts: Counts, rank: int, width: int, itemsize: int = HALF) -> float:
    """The matrix taken as if its columns were ranks."""
    row, column = sum(counts[rank]) - counts[rank][rank], sum(source[rank] for source in counts)
    return 2 * (row + column - counts[rank][rank]) * width * itemsize


ROW = (
    "The answer is four times the rank's row. Results go back to the ranks that sent the rows, so the "
    "rank's column decides how many results it sends."
)
COLUMN = (
    "The answer is four times the rank's column. It also sends its own rows, which are its row, "
    "because they come back as results from other ranks."
)
ALL_ROWS = (
    "The answer is four times all rows of the rank. But its own part is not sent, and it sends results for "
    "the rows that came, which are its column."
)
MEAN = "The answer holds for a uniform router. Look at the counts of this rank, and at the counts for it."
MEAN_OF_ALL = f"{MEAN} "
IDEAS = (ROW, COLUMN, ALL_ROWS, MEAN, MEAN_OF_ALL)  # those that miss the point
SLIPS: Mapping[str, kit.Formula] = {
    ROW: rows(4, 0),
    COLUMN: rows(0, 4),
    MEAN: spread_evenly,
    MEAN_OF_ALL: mean,
    "The rank's own part is counted, but it is not sent, so leave out the diagonal.": rows(2, 2, own=4),
    "The rank's own part is counted, but it is not sent. This part is in its row and in its column.": (
        rows(2, 2, own=2)
    ),
    ALL_ROWS: rows(4, 0, own=4),
    (
        "The answer is only forward. Backward sends as many rows again, because results and rows both "
        "have gradients."
    ): (rows(1, 1)),
    "The answer is only dispatch in forward. But the results come back, and backward sends both again.": (
        rows(1, 0)
    ),
    (
        "The answer is only dispatch. But combine sends the results of the rows that came, the rank's column."
    ): (rows(2, 0)),
    "The answer is only combine. But dispatch sends the rank's own rows for experts of other ranks.": rows(
        0, 2
    ),
    "Backward sends as many rows as forward, and not twice as many.": rows(3, 3),
    "The answer is the sum over all ranks. One rank's bytes are asked for.": of_all,
    "Do not include the counts themselves, because only rows are asked for.": with_counts,
    "Do not include the counts themselves, because only rows are asked for. ": with_all_counts,
    "Rows that come to the rank are counted as well. The bytes that it sends are asked for.": rows(4, 4),
    "Rank r holds E / n experts in succession, and not every n-th.": striped,
    "A rank holds E / n experts, so add up the rows for all of them.": one_expert_a_rank,
    "A number has itemsize bytes, by default two.": rows(2, 2, itemsize=1),
    "A number has itemsize bytes, and not always two.": rows(2, 2, itemsize=2),
    "A number has itemsize bytes, and not always four.": rows(2, 2, itemsize=4),
    "A row has `width` numbers.": lambda counts, rank, width, itemsize=HALF: right(counts, rank, 1, itemsize),
}


def drawn(draw: kit.Draw, n: int, experts: int, popular: int) -> Counts:
    """Some rows from each rank for each expert, more for a popular one, and most for a rank's own ones.

    So neither a mistake in the rank's own part nor the mean can be right by chance.
    """
    held = experts // n
    return [
        [
            draw.integer(1, 9) + 3 * rank + 20 * (e == popular) + 40 * (e // held == rank)
            for e in range(experts)
        ]
        for rank in range(n)
    ]


@kit.exercise(
    points=6,
    objects=("all_to_all_bytes",),
    references=REFERENCES,
    point="the rows that leave a rank, and the results of those that came to it, forward and backward",
)
def all_to_all_bytes(draw: kit.Draw) -> Iterator[kit.Case]:
    width = 64 * draw.integer(2, 9)
    pair, popular = drawn(draw, 2, 2, 1), drawn(draw, 4, 4, 2)
    several = drawn(draw, 3, 6, 3)
    table = [
        ("2 ranks, one expert each", [(pair, 0, width), (pair, 1, width)], 1.5),
        ("4 ranks, one expert each", [(popular, rank, width) for rank in range(4)], 1.5),
        ("several experts a rank", [*((several, r, width) for r in range(3)), ([[3, 4]], 0, width)], 2.0),
        ("other numbers of bytes", [(several, 2, width, 4), *((pair, r, width, 8) for r in (0, 1))], 1.0),
    ]
    if draw.hidden:
        large = drawn(draw, 8, 16, 5)
        table.append(("8 ranks", [(large, rank, 4096) for rank in (0, 2, 7)], 0.5))
    yield from kit.evaluated(
        [
            kit.Prediction(
                "all_to_all_bytes", 0, arguments, right, SLIPS, weight=weight, title=title, ideas=IDEAS,
                otherwise="In forward, a rank sends its row, and as many results as its column has. "
                          "In backward, it sends as much again. Each row has width numbers of "
                          "itemsize bytes.",
            )
            for title, arguments, weight in table
        ]
    )  # fmt: skip
