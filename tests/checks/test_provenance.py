"""Wrong values are traced back to the contributions in them, and a sentence names these."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from course_lib.checks import words
from course_lib.checks.judge.case import Draw
from course_lib.checks.judge.explain import Language, finding, mistakes
from course_lib.checks.judge.provenance import Provenance


class Made:
    """Contributions of n ranks, `numel` elements each, and results made wrong on purpose."""

    def __init__(self, seed: int, n: int, numel: int):
        self.n, self.numel = n, numel
        self.values = Draw(seed).distinct(n, numel).to(torch.float64)
        self.total = self.values.sum(0)
        self.known = Provenance(self.values.numpy())
        chunks = (
            [(k * numel // n, (k + 1) * numel // n) for k in range(n)] if numel % n == 0 else []
        )
        self.language = Language(numel, range(n), summed=n, chunks=chunks)

    def decode(self, rank: int, result: torch.Tensor):
        return self.known.decode(rank, result, self.total, np.arange(self.numel))

    def said(self, results: dict[int, torch.Tensor]) -> list[str]:
        pieces = [piece for rank, result in results.items() for piece in self.decode(rank, result)]
        return list(finding(pieces, self.language, list(results)).sentences)


WORLDS = [2, 3, 4, 5, 8]


@pytest.fixture(params=WORLDS)
def made(request, seed) -> Made:
    return Made(seed, request.param, 6 * request.param + 1)


def test_a_right_sum_has_no_pieces(made):
    assert made.decode(0, made.total) == []


def test_counts_are_found_for_every_mixture(made, seed):
    rng = random.Random(seed)
    for _ in range(20):
        counts = [rng.randrange(3) for _ in range(made.n)]
        if counts == [1] * made.n or not any(counts):
            continue
        result = (torch.tensor(counts, dtype=torch.float64) @ made.values).contiguous()
        (piece,) = made.decode(0, result)
        assert piece.origin.counts == tuple(counts)
        assert piece.elements == tuple(range(made.numel))


def test_moved_sums_and_values_are_found(made):
    shifted = made.total.roll(2)
    pieces = made.decode(0, shifted)
    assert {piece.origin.offset for piece in pieces} <= {-2, made.numel - 2}
    assert {piece.origin.counts for piece in pieces} == {(1,) * made.n}
    (piece,) = made.decode(0, torch.cat([made.total[:-1], made.values[1, :1]]))
    assert piece.elements == (made.numel - 1,)
    assert piece.origin.offset == 1 - made.numel
    assert piece.origin.counts.index(1) == 1 and sum(piece.origin.counts) == 1


@pytest.mark.parametrize("factor", [2, 3, 8, 17])
def test_a_sum_that_was_added_up_again_is_found(made, factor):
    (piece,) = made.decode(0, factor * made.total)
    assert piece.origin.counts == (factor,) * made.n


@pytest.mark.parametrize(
    ("value", "kind"),
    [(0.0, "zero"), (float("nan"), "nan"), (float("inf"), "unknown"), (0.25, "unknown"), (-1e300, "unknown")],
)  # fmt: skip
def test_values_without_origin(made, value, kind):
    result = made.total.clone()
    result[3] = value
    (piece,) = made.decode(0, result)
    assert (piece.origin.kind, piece.elements) == (kind, (3,))


def test_a_mean_is_no_sum(made):
    (piece,) = made.decode(0, made.total / made.n)
    assert piece.origin.kind == "mean"


def test_what_an_output_held_before_is_a_source_of_its_own(seed):
    made = Made(seed, 4, 9)
    old = torch.full((1, 9), -3.0, dtype=torch.float64)
    known = Provenance(torch.cat([made.values, old]).numpy(), summed=4)
    home = np.arange(9)
    (piece,) = known.decode(0, made.total - 3, made.total, home)
    assert piece.origin.counts == (1, 1, 1, 1, 1)
    (piece,) = known.decode(0, old[0], made.total, home)
    assert piece.origin.counts == (0, 0, 0, 0, 1)


def test_large_results_are_decoded_quickly(seed):
    made = Made(seed, 8, 100_000)
    result = made.total.clone()
    result[50_000:] = made.values[3, 50_000:]
    pieces = made.decode(3, result)
    assert [piece.origin.counts for piece in pieces] == [(0, 0, 0, 1, 0, 0, 0, 0)]


def test_the_remainder_is_told_as_agreed(seed):
    made = Made(seed, 4, 10)
    results = {rank: torch.cat([made.total[:8], made.values[rank, 8:]]) for rank in range(4)}
    assert made.said(results) == [
        "elements 8 and 9 still hold each rank's own value, because nothing was added to them."
    ]


def test_one_value_twice_and_one_never_is_told_as_agreed(seed):
    made = Made(seed, 4, 10)
    result = made.total.clone()
    result[5] += made.values[2, 5] - made.values[3, 5]
    assert made.said({0: made.total, 1: result}) == [
        "on rank 1, element 5 holds rank 2's value twice and rank 3's never."
    ]


def test_a_chunk_in_the_wrong_place_is_told_by_its_number(seed):
    made = Made(seed, 4, 8)
    result = made.total.clone()
    result[4:6] = made.total[2:4]
    assert made.said({0: result}) == [
        "on rank 0, chunk 2 (elements 4 and 5) holds the sum of chunk 1."
    ]


def test_alike_mistakes_of_several_ranks_are_one(seed):
    made = Made(seed, 3, 6)
    without = made.values[0] + made.values[1]
    pieces = [piece for rank in range(3) for piece in made.decode(rank, without)]
    (one,) = mistakes(pieces, made.language, range(3))
    assert (one.sign, one.ranks) == ("partial", (0, 1, 2))
    assert made.said({rank: without for rank in range(3)}) == [
        "on every rank, all 6 elements hold only rank 0's and rank 1's values, while rank 2's is missing."
    ]


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([5], "element 5"),
        ([8, 9], "elements 8 and 9"),
        ([0, 1, 2, 3], "elements 0 to 3"),
        ([0, 1, 2, 7], "elements 0 to 2 and 7"),
        ([1000, 1001, 1002], "elements 1,000 to 1,002"),
        ([0, 2, 4, 6, 8, 10], "elements 0, 2, 4 and others (6 in all)"),
    ],
)
def test_indices_in_words(indices, text):
    assert words.which("element", indices) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1000, "1,000"), (25_000.000000000004, "25,000"),
     (1.75, "1.75"), (2.0, "2"), (1e-5, "1e-05"), (0, "0"), (123456.7, "123,456.7"),
     (1 / 3, "0.3333"), (-5, "-5")],
)  # fmt: skip
def test_numbers_in_words(value, text):
    assert words.number(value) == text


def test_counted_and_listed_words():
    assert words.counted(1, "element") == "1 element"
    assert words.counted(0, "element") == "0 elements"
    assert words.counted(2, "copy") == "2 copies"
    assert words.listing([1, 2, 3]) == "1, 2 and 3"
    assert words.listing(["a", "b"], "or") == "a or b"
    assert words.ranks([2, 0, 1]) == "ranks 0 to 2"
    assert words.times(2) == "twice" and words.times(5) == "5 times"
