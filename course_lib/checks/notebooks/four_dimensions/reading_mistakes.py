"""Mistakes of `my_part`, as (rank, sizes, batch_size, seq) -> (rows, positions), and a sentence for each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from course_lib.checks.notebooks.four_dimensions.meshes import Formula, Sizes
from course_lib.mesh.coordinates import coordinates
from course_lib.mesh.parts import cut

Part = tuple[list[int], list[int]]
Parts = dict[int, Part]
TP_ROWS = (
    "Ranks 0 and 1 share every layer (tp) but read different rows. So their activations are of different "
    "samples, and the sums over tp mix them."
)
PP_ROWS = (
    "Stages of one pipeline read different rows, although the samples of the first stage pass through all "
    "others."
)
CP_ROWS = "cp cuts the sequence of the rows that all of its ranks read, but it does not cut rows."
BACKWARDS = (
    "ranks are numbered with the first axis innermost, but the last one varies fastest, see section 1."
)
STRIDED = "The rows are dealt in turn, but replica r of dp reads one block of rows that follow each other."
STRIPES = "The positions are dealt in turn, but a chunk is a block of positions that follow each other."
DROPPED = "The remainder is dropped, but of 11 rows on 2 replicas the first reads 6 and the other one 5."
WORLD = (
    "The batch is divided by the number of ranks. But only dp multiplies samples, while tp, pp and cp share "
    "them."
)
LAST = "The last part gets the whole remainder, but the first parts should be one longer each."
ENDS = "The remainder goes to the last parts, but the first parts should be one longer each."
LARGER = (
    "The last parts are shorter by more than one, as `torch.chunk` cuts, but `torch.tensor_split` cuts "
    "evenly."
)
PAIR = "A pair of numbers was read as two rows, or positions, so give range(start, stop)."
APART = (
    "Chunks r and r + cp are a pair here, but the zigzag pairs r with 2 cp - 1 - r, so that all have equal "
    "work."
)
ONE_TOO_FAR = (
    "Chunk r is paired with chunk 2 cp - r, but chunks are counted from 0. So the last one is 2 cp - 1, and "
    "the late chunk is 2 cp - 1 - r."
)
LATE_FIRST = "The early chunk comes first, then the late one."
SUCCESSION = (
    "The positions follow each other, but under a causal mask late tokens cost more than early ones. "
)


def split(length: int, n: int, place: int) -> list[int]:
    return list(cut(length, n)[place])


def flat(part: tuple[range, Sequence[range]]) -> Part:
    rows, spans = part
    return list(rows), [at for span in spans for at in span]


def axes(rank: int, sizes: Sizes, *names: str) -> tuple[int, int]:
    """(coordinate, size) of the rank in the flattened group of these axes."""
    own, place, size = coordinates(rank, sizes), 0, 1
    for name in names:
        place, size = place * sizes.get(name, 1) + own.get(name, 0), size * sizes.get(name, 1)
    return place, size


def rows_over(*names: str) -> Formula:
    def formula(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
        place, size = axes(rank, sizes, *names)
        return split(batch_size, size, place)

    return formula


def by_rank(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    return split(batch_size, prod(sizes.values()), rank)


def dropped_rows(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "dp")
    each = batch_size // size
    return list(range(place * each, (place + 1) * each))


def last_rows(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "dp")
    return list(remainder_last(batch_size, size, place))


def remainder_last(length: int, n: int, place: int) -> range:
    each = length // n
    return range(place * each, length if place == n - 1 else (place + 1) * each)


def longer_at_the_end(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "dp")
    backwards = split(batch_size, size, size - 1 - place)
    return [batch_size - 1 - row for row in reversed(backwards)]


def rounded_up(length: int, n: int, place: int) -> range:
    """As `torch.chunk` cuts."""
    each = -(-length // n)
    return range(min(length, place * each), min(length, (place + 1) * each))


def larger_rows(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "dp")
    return list(rounded_up(batch_size, size, place))


def strided_rows(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "dp")
    return list(range(place, batch_size, size))


def striped_places(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    return list(range(place, seq, size))


def over_the_world(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, _ = axes(rank, sizes, "dp")
    each = batch_size // prod(sizes.values())
    return list(range(place * each, (place + 1) * each))


def all_places(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    return list(range(seq))


def in_succession(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    return split(seq, size, place)


def dropped_places(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    each = seq // (2 * size)
    early, late = place * each, (2 * size - 1 - place) * each
    return [*range(early, early + each), *range(late, late + each)]


def last_places(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    early, late = (remainder_last(seq, 2 * size, k) for k in (place, 2 * size - 1 - place))
    return [*early, *late]


def larger_places(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    return [*rounded_up(seq, 2 * size, place), *rounded_up(seq, 2 * size, 2 * size - 1 - place)]


def chunks_apart(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    return [*split(seq, 2 * size, place), *split(seq, 2 * size, place + size)]


def chunks_of_cp(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    return [*split(seq, size, place), *split(seq, size, size - 1 - place)]


def one_too_far(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    """Chunk 2 cp - r as the late one. With r = 0 it lies behind the sequence, so Python has an error."""
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    chunks = [split(seq, 2 * size, k) for k in range(2 * size)]
    return [*chunks[place], *chunks[2 * size - place]]


def from_the_end(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    """Chunk -r of a list as the late one, which is chunk 0 again if r = 0."""
    place, size = axes(rank, sizes, "cp")
    return one_too_far(rank, sizes, batch_size, seq) if place or size == 1 else 2 * split(seq, 2 * size, 0)


def behind_the_end(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    """Chunk 2 cp - r, computed without a list of chunks of equal length."""
    place, size = axes(rank, sizes, "cp")
    each = seq // (2 * size)
    if size == 1:
        return list(range(seq))
    return [n * each + k for n in (place, 2 * size - place) for k in range(each)]


def late_first(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    if size == 1:
        return list(range(seq))
    return [*split(seq, 2 * size, 2 * size - 1 - place), *split(seq, 2 * size, place)]


def early_chunks(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    return split(seq, 2 * size, place) if size > 1 else list(range(seq))


def cut_by_tp(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "tp")
    return split(seq, size, place)


def ends_of_rows(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "dp")
    own = cut(batch_size, size)[place]
    return [own.start, own.stop]


def ends_of_places(rank: int, sizes: Sizes, batch_size: int, seq: int) -> list[int]:
    place, size = axes(rank, sizes, "cp")
    chunks = cut(seq, 2 * size)
    spans = [chunks[place], chunks[2 * size - 1 - place]] if size > 1 else [range(seq)]
    return [end for span in spans for end in (span.start, span.stop)]


ROWS: dict[str, Formula] = {
    PAIR: ends_of_rows,
    TP_ROWS: by_rank,
    f"{TP_ROWS} ": rows_over("dp", "tp"),
    PP_ROWS: rows_over("pp", "dp"),
    f"{PP_ROWS} ": rows_over("dp", "pp"),
    CP_ROWS: rows_over("dp", "cp"),
    WORLD: over_the_world,
    DROPPED: dropped_rows,
    "dp cuts the rows, so each replica of the model reads samples of its own.": rows_over(),
}
DEALT: tuple[dict[str, Formula], dict[str, Formula]] = (
    {STRIDED: strided_rows, ENDS: longer_at_the_end, LAST: last_rows, LARGER: larger_rows},
    {STRIPES: striped_places, LATE_FIRST: late_first, LAST: last_places, LARGER: larger_places,
     APART: chunks_apart},
)  # fmt: skip
PLACES: dict[str, Formula] = {
    PAIR: ends_of_places,
    "cp cuts the sequence, so its ranks read different positions, but here all of them read every "
    "one.": all_places,
    "The remainder is dropped. If 2 cp does not divide the sequence, the first chunks are one token "
    "longer.": (dropped_places),
    ONE_TOO_FAR: from_the_end,
    f"{ONE_TOO_FAR} ": behind_the_end,
    "The late chunk is missing, but chunk r is paired with the r-th from the end.": early_chunks,
    "The sequence is cut into cp chunks, but each rank needs an early and a late one, so cut it into 2 "
    "cp.": chunks_of_cp,
    "tp cuts no positions, because its ranks share every layer, so they need the same input.": cut_by_tp,
}
