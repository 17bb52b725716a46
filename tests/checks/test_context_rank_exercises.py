"""The checks of ring_attention and ulysses_attention: the library passes, what is expected is right."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from autograder.sample.mutants import read_mutants
from course_lib import launch
from course_lib.checks.judge.case import Draw
from course_lib.checks.judge.compare import close
from course_lib.checks.notebooks.context_parallel.ring_slips import (
    backward_slips,
    forward_slips,
    lse_slips,
)
from course_lib.checks.notebooks.context_parallel.ring_traffic import TOO_MANY, WIDE, seen_flops
from course_lib.checks.notebooks.context_parallel.ring_whole import Spread
from course_lib.checks.rank.notebooks.context_parallel.work import Work
from course_lib.context_parallel.balanced import zigzag
from tests.checks.test_mutants import judged as judged_mutant

ASSIGNMENT = "08_context_parallel"
MUTANTS = Path(__file__).parents[1] / "mutants" / ASSIGNMENT


@pytest.mark.parametrize(
    ("exercise", "title"),
    [
        ("ring_forward", "keys of all ranks in a list, and attention at once"),
        ("ring_attention", "keeps what came by"),
        ("ring_attention", "keys of all ranks in a list, and autograd for the rest"),
        ("ulysses_attention", "all scores at once"),
    ],
)
def test_right_values_that_miss_the_point_are_half_at_most(
    exercise: str, title: str, seed: int
) -> None:
    (mutant,) = (one for one in read_mutants(MUTANTS / f"{exercise}.py") if one.title == title)
    report, printed = judged_mutant(f"{ASSIGNMENT}/{exercise}", mutant, seed, whole=True)
    assert 0 < report.score <= 0.5, printed


# ---- messages


def messages(exercise: str, title: str, seed: int) -> str:
    """All messages on a wrong solution."""
    (mutant,) = (one for one in read_mutants(MUTANTS / f"{exercise}.py") if one.title == title)
    report, _ = judged_mutant(f"{ASSIGNMENT}/{exercise}", mutant, seed, whole=True)
    return " ".join(report.messages)


def test_one_transfer_too_many_is_not_taken_for_wide_keys(seed: int) -> None:
    """4/3 of the bytes are a transfer more, twice the bytes are float32."""
    said = messages("ring_forward", "a transfer after the last step", seed)
    assert TOO_MANY in said and WIDE not in said
    said = messages("ring_forward", "keys sent in float32, whatever came", seed)
    assert WIDE in said and TOO_MANY not in said


@pytest.mark.parametrize(
    ("exercise", "title"),
    [
        ("ulysses_attention", "an error in backward"),
        ("ring_attention", "an output that is wrong already"),
    ],
)
def test_a_mistake_is_told_of_its_own_direction(exercise: str, title: str, seed: int) -> None:
    (mutant,) = (one for one in read_mutants(MUTANTS / f"{exercise}.py") if one.title == title)
    report, printed = judged_mutant(f"{ASSIGNMENT}/{exercise}", mutant, seed, whole=True)
    ways = {line.title.rpartition(": ")[2]: line.passed for line in report.lines}
    assert ways.get("forward", True) and not ways["backward"], printed
    assert "gloo has no all-to-all" not in printed


# ---- expected values


@pytest.mark.parametrize("n", [2, 3, 4])
def test_blocks_merged_by_their_logarithms_are_the_whole(n: int, seed: int) -> None:
    spread = Spread.draw(Draw(seed), n, 4 * n, causal=True, layout=zigzag(4 * n, n))
    for k in range(n):
        outs, lses = map(torch.stack, spread.blocks(k))
        merged = ((lses - lses.logsumexp(0)).exp() * outs).sum(0)
        assert close(merged, spread.part(spread.whole.y, k))


@pytest.mark.parametrize("causal", [False, True])
def test_what_mistakes_give_is_wrong(causal: bool, seed: int) -> None:
    """A hint that also fits right results would be given for other mistakes; the last rank shows all."""
    spread = Spread.draw(Draw(seed), 3, 12, heads=4, causal=causal, layout=zigzag(12, 3))
    results = spread.wanted
    for mistakes, wanted in (
        (forward_slips(spread) + backward_slips(spread), results),
        (lse_slips(spread), {"y": spread.whole.lse}),
    ):
        ranks = [spread.parts(wanted, k) for k in range(3)]
        for mistake in mistakes:
            right = [
                all(close(tensor, ranks[k][name]) for name, tensor in mistake.gives(k).items())
                for k in range(3)
            ]
            assert not all(right), mistake.says


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_under_zigzag_all_ranks_have_the_same_blocks_to_compute(n: int, seed: int) -> None:
    """In succession rank r has r + 1 squares of c; in zigzag each 2n + 1 of c / 2."""
    c, features = 4, 2 * 8
    in_succession = Spread.draw(Draw(seed), n, c * n, causal=True, heads=2, head_dim=8)
    paired = replace(in_succession, layout=zigzag(c * n, n), passed=True)
    for k in range(n):
        assert seen_flops(in_succession, k) == features * c**2 * (k + 1)
        assert seen_flops(paired, k) == features * (c // 2) ** 2 * (2 * n + 1)


# ---- watched operations


def flops(seed: int) -> list[int]:
    """FLOPs of products written in several ways."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(2, 3, 4, generator=generator) for _ in range(2))
    found = []
    for way in (
        lambda: a @ b.mT,
        lambda: torch.einsum("bid,bjd->bij", a, b),
        lambda: torch.addmm(a[0, :, :3], a[0], b[0].T),
        lambda: torch.baddbmm(torch.zeros(2, 3, 3), a, b.mT),
        lambda: torch.zeros(3, 3).addmm_(a[0], b[0].T),
        lambda: torch.zeros(2, 3, 3).baddbmm_(a, b.mT),
    ):
        with Work([a, b]) as work:
            way()
        found.append(work.done().flops)
    return found


def test_flops_of_products_are_counted_however_they_are_written(seed: int) -> None:
    one = 2 * 3 * 3 * 4
    assert launch(flops, seed, world_size=1)[0] == [2 * one, 2 * one, one, 2 * one, one, 2 * one]


def under_way(late: bool, worth: int) -> int:
    """Bytes that came to this rank while it multiplied; `worth`: the FLOPs of a product that counts."""
    rank, x = dist.get_rank(), torch.ones(6)
    got, square = torch.empty(6), torch.ones(3, 3)
    with Work([x, square], worth) as work:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        )
        if late:
            torch.mm(square, square)
        for one in works:
            one.wait()
        if not late:
            torch.mm(square, square)
    return work.done().under_way


@pytest.mark.parametrize(
    ("late", "worth", "nbytes"), [(True, 54, 24), (True, 55, 0), (False, 0, 0)]
)
def test_a_message_is_under_way_until_it_is_waited_for(late: bool, worth: int, nbytes: int) -> None:
    """A product of fewer FLOPs, 2 x 3 x 3 x 3 here, hides no message."""
    assert list(launch(under_way, late, worth, world_size=2)) == [nbytes, nbytes]


WATCHING = """
import sys, torch
from course_lib.checks.rank.peak import Peak
x = torch.ones(3, 4)
with Peak([x]) as peak:
    (x * 2).sum()
print(peak.highest, [name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_who_watches_operations_imports_no_compiler() -> None:
    """The compiler's import takes a second or two, and PyTorch would do it at the first operation."""
    ran = subprocess.run([sys.executable, "-c", WATCHING], capture_output=True, text=True)
    assert ran.stdout == "52 []\n", ran.stderr
