"""Schedules as data: text, refusals and their messages, the clock, the generators, closed forms."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from course_lib import facts
from course_lib.facts.pipeline import SCHEDULES
from course_lib.pipeline import (
    Action,
    Durations,
    Pair,
    Schedule,
    ScheduleError,
    from_text,
    generators,
    peak_activations,
    simulate,
    stage_ranks,
    to_text,
    validate,
    violation,
    weight_versions,
)
from course_lib.pipeline.actions import flat
from course_lib.pipeline.generators import (
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    pipedream,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)


def test_two_microbatches_in_two_stages_by_hand() -> None:
    """GPipe: all forwards, then all backwards. Each rank computes for 6 s and waits for 3 s."""
    schedule = gpipe(2, 2)
    assert to_text(schedule).split() == ["0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"]
    assert simulate(schedule).bubble == [3, 3]


GENERATORS: dict[str, Callable[..., Schedule]] = {
    name: getattr(generators, name) for name in SCHEDULES
}
ON_A_V = ("zero_bubble_v", "dualpipe_v")  # two stages a rank
EACH = [(p, m) for p in range(2, 17) for m in range(p, 65)]


def copies(name: str) -> int:
    return 2 if name == "dualpipe" else 1


def some_sizes(name: str, chance: random.Random) -> tuple[int, ...]:
    """Stages, microbatches and, for the interleaved one, chunks that it takes."""
    p = chance.randrange(1, 8)
    if name == "interleaved_one_f_one_b":
        return p, p * chance.randrange(1, 5), chance.randrange(1, 5)
    if name == "dualpipe":
        p = 2 * chance.randrange(1, 5)
        return p, 2 * chance.randrange(p, 2 * p + 4)
    least = {"zero_bubble_h1": p, "zero_bubble_h2": 2 * p - 1, "dualpipe_v": 2 * p}.get(name, 1)
    return p, chance.randrange(least, least + 20)


# --- text and PyTorch ----------------------------------------------------------------------------


def torch_order(text: str) -> dict[int, list]:
    """The rows as PyTorch's own parser reads them."""
    parse = torch_schedules._Action.from_str
    rows = from_csv(text)
    return {rank: [parse(cell) for cell in row] for rank, row in enumerate(rows)}


def from_csv(text: str) -> list[list[str]]:
    return [row.split(",") for row in text.splitlines()]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_good_comes_back_from_text_and_pleases_pytorch(name, seed):
    chance = random.Random(f"{seed} {name}")
    for _ in range(12):
        sizes = some_sizes(name, chance)
        schedule = GENERATORS[name](*sizes)
        chunks = {"interleaved_one_f_one_b": sizes[-1], "dualpipe": 2}.get(
            name, 1 + (name in ON_A_V)
        )
        stages, microbatches = sizes[0] * chunks, sizes[1]
        assert violation(schedule, stages, microbatches, copies(name)) is None, (sizes, schedule)
        text = to_text(schedule)
        assert from_text(text) == schedule
        # PyTorch counts the microbatches of each stage: with two copies, half of them
        found = torch_schedules._validate_schedule(
            torch_order(text), sizes[0], stages, microbatches // copies(name)
        )
        assert found == stage_ranks(schedule)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "dualpipe"])
def test_pytorchs_runtime_loads_the_rows_and_finds_its_sends_and_receives(name, seed, tmp_path):
    """Its own lowering and its own simulation of messages; DualPipe has two chains, and it knows of one."""
    sizes = some_sizes(name, random.Random(f"{seed} {name}"))
    schedule = GENERATORS[name](*sizes)
    file = tmp_path / "schedule.csv"
    file.write_text(to_text(schedule))
    runtime = object.__new__(torch_schedules._PipelineScheduleRuntime)  # without ranks and stages
    runtime.pipeline_order = {}
    runtime.pp_group_size, runtime._n_microbatches = sizes[:2]
    runtime._num_stages = len(stage_ranks(schedule))
    runtime._stages, runtime._defer_pp_recv = [], False
    runtime._load_csv(str(file))
    assert [list(map(str, row)) for row in runtime.pipeline_order.values()] == from_csv(
        to_text(schedule)
    )
    ranks = stage_ranks(schedule)
    apart = sum(ranks[stage] != ranks[stage + 1] for stage in range(len(ranks) - 1))
    lowered = {
        rank: [one for one in row if "SHARD" not in str(one) and "REDUCE" not in str(one)]
        for rank, row in runtime.pipeline_order_with_comms.items()
    }
    text = str(lowered)
    for kind in ("SEND_F", "RECV_F", "SEND_B", "RECV_B"):
        assert text.count(kind) == apart * sizes[1]
    if name != "dualpipe_v":  # its simulation knows no pairs
        assert torch_schedules._simulate_comms_compute(lowered, ranks.__getitem__, len(ranks))


def theirs(kind: type, stages: int, microbatches: int, chunks: int) -> list[list[str]]:
    """The rows of one of PyTorch's schedules, without its pauses."""
    made = object.__new__(kind)
    made.pp_group_size, made._n_microbatches = stages, microbatches
    made._num_stages = made.num_stages = stages * chunks
    made.n_local_stages = chunks
    made.microbatches_per_round = stages
    made.number_of_rounds = microbatches // stages
    rows = [made._calculate_single_rank_operations(rank) for rank in range(stages)]
    return [[str(one) for one in row if one is not None] for row in rows]


@pytest.mark.parametrize(
    ("ours", "kind", "chunks"),
    [
        (interleaved_one_f_one_b, torch_schedules.ScheduleInterleaved1F1B, 2),
        (interleaved_one_f_one_b, torch_schedules.ScheduleInterleaved1F1B, 3),
        (zero_bubble_v, torch_schedules.ScheduleZBVZeroBubble, 2),
        (dualpipe_v, torch_schedules.ScheduleDualPipeV, 2),
    ],
)
@pytest.mark.parametrize(("stages", "rounds"), [(2, 2), (3, 4), (4, 2), (6, 3)])
def test_the_order_is_that_of_pytorch(ours, kind, chunks, stages, rounds):
    microbatches = stages * rounds
    arguments = (chunks,) if ours is interleaved_one_f_one_b else ()
    rows = from_csv(to_text(ours(stages, microbatches, *arguments)))
    expected = theirs(kind, stages, microbatches, chunks)
    if ours is zero_bubble_v:  # any W may fill a gap: no action waits for it
        for row in (*rows, *expected):
            row[:] = ["W" if "W" in cell else cell for cell in row]
    assert rows == expected


def test_pauses_and_blanks_are_left_out_and_other_cells_refused():
    assert from_text("0F0, ,0B0\n,1F0,1B0\n") == [
        [Action(0, "F", 0), Action(0, "B", 0)],
        [Action(1, "F", 0), Action(1, "B", 0)],
    ]
    pair = Pair(Action(0, "F", 3), Action(7, "B", 1))
    assert from_text("( 0F3 ; 7B1 )OVERLAP_F_B") == [[pair]]
    assert str(pair) == "(0F3;7B1)OVERLAP_F_B"
    for cell in ("0SEND_F1", "0X1", "F0", "0F", "(0F1)OVERLAP_F_B", "(0F1;1B0)"):
        with pytest.raises(ValueError, match=r"row 1: .* is not an action\. Write stage"):
            from_text(f"0F0\n{cell}\n")


# --- what is refused -----------------------------------------------------------------------------


def test_a_forgotten_return_and_a_flat_list_are_named() -> None:
    flat = [Action(0, "F", 0), Action(0, "B", 0)]
    assert violation(None) == "the schedule is None: is there a `return`?"
    assert violation(flat) == f"rank 0: {flat[0]!r} is not a list of actions"  # pyright: ignore[reportArgumentType]


WRONG = [
    ("", "the schedule is empty: no rank does anything"),
    (
        "0F0,0B0\n1B0,1F0",
        "rank 1, action 0 (1B0): it needs 1F0, which rank 1 does only later, as its action 1",
    ),
    ("0F0,0B0\n1B0", "rank 1, action 0 (1B0): it needs 1F0, which rank 1 never does"),
    (
        "0F0,0F0,0B0\n1F0,1B0",
        "rank 0, action 1 (0F0): rank 0 did 0F0 before, as its action 0. A microbatch goes through a stage "
        "forward once and backward once",
    ),
    (
        "0F0,0W0,0I0\n1F0,1B0",
        "rank 0, action 1 (0W0): it needs 0I0, which rank 0 does only later, as its action 2",
    ),
    (
        "0F0,0I0,0B0\n1F0,1B0",
        "rank 0, action 2 (0B0): 0I0 was done before. A backward is either whole (B) or in halves (I, W)",
    ),
    (
        "0F0,0B0,0W0\n1F0,1B0",
        "rank 0, action 2 (0W0): 0B0 was done before. A backward is either whole (B) or in halves (I, W)",
    ),
    (
        "0F0,0B0,1F1\n1F0,1B0",
        "rank 1, action 0 (1F0): stage 1 lives on rank 0, which does 1F1. All of a stage's actions belong to "
        "the rank that holds its weights",
    ),
    ("0F0,0I0\n1F0,1B0", "rank 0 holds stage 0 and never does 0W0, the weight-gradient half of the backward "
     "of microbatch 0"),
    (
        "0F0,0B0\n1F0,1I0",
        "rank 1 holds stage 1 and never does 1W0, the weight-gradient half of the backward of microbatch 0",
    ),
    ("0F0,0B0\n\n", "rank 1 does nothing: its list is empty, and it holds no stage"),
    (
        "0F0,0B0\n1F0",
        "rank 1 holds stage 1 and never does 1B0, which rank 0 needs for its action 1 (0B0)",
    ),
    (
        "0F0,0B0,0B1\n1F0,1B0,1F1,1B1",
        "rank 0, action 2 (0B1): it needs 0F1, which rank 0 never does",
    ),
    (
        "0F0,0B0\n1F0,1B0,1F1,1B1",
        "rank 0 holds stage 0 and never does 0F1, which rank 1 needs for its action 2 (1F1)",
    ),
    (
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
        "deadlock: rank 0 waits in its action 1 (0B0) for 1B0, action 2 of rank 1, which comes after 1F1; "
        "rank 1 waits in its action 1 (1F1) for 0F1, action 2 of rank 0, which comes after 0B0",
    ),
    (
        "0F0,0B0,1F0,1B0",
        "deadlock: rank 0 waits in its action 1 (0B0) for 1B0, action 3 of rank 0, which comes after 0B0",
    ),
    (
        "0F0,2F0,0B0,2B0\n1F0,3F0,1B0,3B0",
        "deadlock: rank 0 waits in its action 2 (0B0) for 1B0, action 2 of rank 1, where rank 1 waits "
        "itself; rank 1 waits in its action 2 (1B0) for 2B0, action 3 of rank 0, which comes after 0B0",
    ),
    (
        "(0F0;0B0)OVERLAP_F_B",
        "rank 0, action 0: (0F0;0B0)OVERLAP_F_B would do a forward and its own backward at once",
    ),
    (
        "0F0,(0B0;0F1)OVERLAP_F_B",
        "rank 0, action 1: (0B0;0F1)OVERLAP_F_B must pair a forward F with a whole backward B",
    ),
    (
        "0F0,(0F1;1B0)OVERLAP_F_B,1F0",
        "rank 0, action 1 (1B0): it needs 1F0, which rank 0 does only later, as its action 2",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_the_first_violation_is_a_sentence(text, sentence):
    schedule = from_text(text)
    assert violation(schedule) == sentence
    for refuse in (validate, simulate):
        with pytest.raises(ScheduleError) as error:
            refuse(schedule)
        assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ([["0F0"]], "rank 0, action 0: '0F0' is neither an Action nor a Pair"),
        ([[Action(0, "F", 0)], 3], "rank 1: 3 is not a list of actions"),
        ([[Action(0, [], 0)]], "is not an action: its kind must be one of F, B, I, W"),
        ([[None]], "rank 0, action 0: None is neither an Action nor a Pair"),
        ([[Action(0, "X", 0)]], "is not an action: its kind must be one of F, B, I, W"),
        ([[Action(-1, "F", 0)]], "stage -1 of .* must be a whole number from 0 on"),
        ([[Action(0, "F", 0.5)]], "microbatch 0.5 of .* must be a whole number from 0 on"),
    ],
)
def test_what_is_no_action_is_refused(schedule, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        validate(schedule)


def test_sizes_are_held_when_they_are_given():
    schedule = one_f_one_b(3, 4)
    assert violation(schedule, 3, 4) is None
    assert violation(schedule, 4, 4) == (
        "no rank does stage 3: there are 4 stages, and each lives on one rank"
    )
    assert violation(schedule, 2, 4) == ("rank 2, action 0 (2F0): there is no stage 2, only 0 to 1")
    assert violation(schedule, 3, 3) == (
        "rank 0, action 4 (0F3): there is no microbatch 3, only 0 to 2"
    )
    assert "never does 0F4" in str(violation(schedule, 3, 5))
    assert "not shared evenly by 2 copies" in str(violation(schedule, 3, 4, copies=2))
    halves = dualpipe(4, 8)
    assert violation(halves, 8, 8, copies=2) is None
    swapped = [
        [Pair(*(one._replace(microbatch=7 - one.microbatch) for one in entry))
         if isinstance(entry, Pair) else entry._replace(microbatch=7 - entry.microbatch) for entry in row]
        for row in halves
    ]  # fmt: skip
    assert "is of copy 0 of the model, which does microbatches 0 to 3" in str(
        violation(swapped, 8, 8, copies=2)
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_lost_action_is_found(name, seed):
    chance = random.Random(f"{seed} {name}")
    sizes = some_sizes(name, chance)
    schedule = GENERATORS[name](*sizes)
    stages = len(stage_ranks(schedule))
    rank = chance.choice([rank for rank, row in enumerate(schedule) if row])
    lost = chance.randrange(len(schedule[rank]))
    damaged = [list(row) for row in schedule]
    gone = damaged[rank].pop(lost)
    found = violation(damaged, stages, sizes[1], copies(name))
    assert found is not None, (sizes, str(gone))
    assert f"rank {rank}" in found or "no rank does stage" in found


def with_warm_up(stages: int, microbatches: int, rank: int, warm_up: int) -> list:
    """1F1B, but for one rank that runs `warm_up` forwards ahead."""
    rows = list(one_f_one_b(stages, microbatches))
    other = one_f_one_b(rank + 1 + warm_up, microbatches)[rank]
    return [*rows[:rank], other, *rows[rank + 1 :]]


def test_a_warm_up_too_short_waits_and_one_too_long_costs_memory():
    good = one_f_one_b(4, 8)
    assert with_warm_up(4, 8, 1, 2) == good
    short = with_warm_up(4, 8, 1, 1)
    assert violation(short, 4, 8) is None
    assert simulate(short).total > simulate(good).total
    assert str(violation(with_warm_up(4, 8, 1, 0), 4, 8)).startswith("deadlock: rank 1 waits in")
    long = one_f_one_b(5, 8)[:4]  # every rank one forward more ahead
    assert violation(long, 4, 8) is None
    assert peak_activations(good) == [4, 3, 2, 1]
    assert peak_activations(long) == [5, 4, 3, 2]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: naive(0, 1), "stages=0: a pipeline has at least one stage"),
        (lambda: gpipe(2, 0), "microbatches=0: with 2 stages this schedule needs at least 1"),
        (lambda: interleaved_one_f_one_b(4, 6), "at least 4, a multiple of 4"),
        (lambda: interleaved_one_f_one_b(2, 4, 0), "chunks=0: each rank holds at least one"),
        (lambda: zero_bubble_h1(4, 3), "at least 4"),
        (lambda: zero_bubble_h2(4, 6), "at least 7"),
        (lambda: dualpipe(4, 9), "at least 8, a multiple of 2"),
        (lambda: dualpipe(3, 8), "needs an even number"),
        (lambda: dualpipe_v(4, 7), "at least 8"),
    ],
)
def test_generators_say_what_they_need(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


# --- the clock -----------------------------------------------------------------------------------


def test_two_stages_by_hand():
    """F 2, I 3, W 1, a message 10: the second microbatch waits for the first one's gradient."""
    found = simulate(one_f_one_b(2, 2), Durations(2, 3, 1, communication=10))
    assert found.starts == [[0, 2, 28, 34], [12, 14, 18, 20]]
    assert found.ends == [[2, 4, 32, 38], [14, 18, 20, 24]]
    assert found.total == 38
    path = [str(one.action) for one in found.critical_path]
    assert path == ["0F0", "1F0", "1B0", "1F1", "1B1", "0B1"]


def test_waiting_busy_and_fractions():
    found = simulate(gpipe(3, 4), Durations(forward=1, backward=2))
    assert found.total == (4 + 3 - 1) * 3
    assert found.busy == [12, 12, 12]
    assert found.bubble == [6, 6, 6]
    assert found.spans == [18, 15, 12]
    assert found.of_total == pytest.approx(2 / 6)
    assert found.of_ideal == pytest.approx(2 / 4)
    assert found.bubble_rate == pytest.approx(2 / 6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_action_starts_when_its_rank_is_free_and_its_input_there(name, seed):
    """The definition of a run, checked against the run; and the path that bounds it has no gap."""
    chance = random.Random(f"{seed} {name}")
    times = [Fraction(chance.randrange(1, 40), 4) for _ in range(4)]
    communication = Fraction(chance.randrange(0, 9), 3)
    durations = Durations(*times[:3], overlapped=sum(times), communication=communication)
    schedule = GENERATORS[name](*some_sizes(name, chance))
    found = simulate(schedule, durations, copies(name))
    length = len(stage_ranks(schedule)) // copies(name)
    ends = {}
    for event in found.events:
        assert event.end - event.start == durations.of(event.action)
        for one in flat([event.action]):
            ends[one.stage, one.kind.replace("I", "B"), one.microbatch] = event.rank, event.end
    free = [0] * len(schedule)
    for event in found.events:
        ready = [free[event.rank]]
        for stage, kind, k in flat([event.action]):
            source = {"F": stage - 1, "W": None}.get(kind, stage + 1)
            if source is None or source < 0 or {source // length} != {stage // length}:
                continue
            rank, end = ends[source, kind.replace("I", "B"), k]
            ready.append(end + communication * (rank != event.rank))
        assert event.start == max(ready)
        free[event.rank] = event.end
    path = found.critical_path
    assert path[0].start == 0
    assert path[-1].end == found.total
    for one, following in pairwise(path):
        assert following.start - one.end == communication * (one.rank != following.rank)


def test_durations_of_chunks_and_of_whole_backwards():
    whole = Durations(4, 6, 2, communication=3)
    assert whole.of(Action(0, "B", 0)) == 8
    assert whole.of(Pair(Action(0, "F", 1), Action(0, "B", 0))) == 12
    assert whole.split(2) == Durations(2, 3, 1, communication=3)
    assert Durations(backward=5, overlapped=6).split(2) == Durations(0.5, 0.5, 0.5, 2.5, 3)


def test_communication_is_paid_between_ranks_and_not_within():
    """One microbatch crosses the V's 3 borders 4 times, and turns for nothing; rank 3 does a W on the way."""
    one = simulate(zero_bubble_v(4, 1), Durations(1, 1, 1, communication=100))
    assert one.total == 4 * 300 + 16 + 2


def test_peaks_count_what_awaits_w_by_its_share():
    assert peak_activations(zero_bubble_h1(4, 8)) == [4, 3, 2, 1]
    assert peak_activations(zero_bubble_h1(4, 8), weight_share=1) == [4, 4, 4, 4]
    assert peak_activations(zero_bubble_h1(4, 8), weight_share=0.5) == [4, 3.5, 3, 2.5]
    assert peak_activations(gpipe(3, 5), weight_share=1) == [5, 5, 5]


# --- closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["naive", "gpipe", "one_f_one_b", "zero_bubble_h1", "zero_bubble_h2"]
)
def test_bubbles_and_peaks_are_the_closed_forms_for_all_sizes(name, seed):
    """p in 2..16, m in p..64 (from 2p-1 for H2), durations drawn where the formula holds."""
    chance = random.Random(f"{seed} {name}")
    for p, m in EACH:
        if name == "zero_bubble_h2" and m < 2 * p - 1:
            continue
        weight = chance.randrange(1, 5)
        times = chance.randrange(weight, 9), chance.randrange(weight, 9), weight
        schedule = GENERATORS[name](p, m)
        found = simulate(schedule, Durations(*times), checked=True)
        bubble = facts.pipeline_bubble(name, p, m, *times)
        if name == "zero_bubble_h2":
            gaps = [span - busy for span, busy in zip(found.spans, found.busy, strict=True)]
            assert max(gaps) == bubble, (p, m, times)
        else:
            assert set(found.bubble) == {bubble}, (p, m, times)
            assert found.of_ideal == pytest.approx(
                facts.pipeline_bubble_of_ideal(name, p, m, *times)
            )
            assert found.of_total == pytest.approx(
                facts.pipeline_bubble_of_total(name, p, m, *times)
            )
        peaks = [facts.pipeline_activations(name, p, m, rank) for rank in range(p)]
        assert peak_activations(schedule) == peaks, (p, m)


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_interleaving_divides_the_bubble_by_the_chunks_for_all_sizes(chunks, seed):
    """Microbatches in multiples of the stages."""
    name, chance = "interleaved_one_f_one_b", random.Random(f"{seed} {chunks}")
    for p, m in EACH:
        if m % p:
            continue
        times = [chunks * chance.randrange(1, 9) for _ in range(3)]
        schedule = interleaved_one_f_one_b(p, m, chunks)
        found = simulate(schedule, Durations(*times).split(chunks), checked=True)
        assert set(found.bubble) == {facts.pipeline_bubble(name, p, m, *times, chunks=chunks)}
        of_ideal = facts.pipeline_bubble_of_ideal(name, p, m, *times, chunks=chunks)
        assert found.of_ideal == pytest.approx(of_ideal)
        peaks = [facts.pipeline_activations(name, p, m, rank, chunks) for rank in range(p)]
        assert peak_activations(schedule) == peaks, (p, m)


@pytest.mark.parametrize("name", ["zero_bubble_v", "dualpipe", "dualpipe_v"])
def test_schedules_on_two_stages_a_rank(name, seed):
    """p in 2..16, and only some numbers of microbatches, from the least on: these are slow to simulate."""
    chance = random.Random(f"{seed} {name}")
    for p in range(2, 17, 2 if name == "dualpipe" else 1):
        least = 2 * p - (name == "zero_bubble_v")
        for m in {least, least + 2, chance.randrange(least, 65, 2)}:
            forward = 2 * chance.randrange(1, 6)
            weight = (
                forward if name == "zero_bubble_v" else 2 * chance.randrange(1, forward // 2 + 1)
            )
            times = forward, forward, weight
            gain = 2 * chance.randrange(0, 1 + weight // 2) if p % 2 else 0
            block = 2 * forward + weight - gain
            schedule = GENERATORS[name](p, m)
            parts = 1 if name == "dualpipe" else 2
            durations = Durations(*times, overlapped=block).split(parts)
            found = simulate(schedule, durations, copies(name), checked=True)
            idle = found.spans if name == "zero_bubble_v" else [found.total] * p
            bubble = max(span - busy for span, busy in zip(idle, found.busy, strict=True))
            assert bubble == facts.pipeline_bubble(name, p, m, *times, overlapped=block), (
                p,
                m,
                times,
            )
            peaks = [facts.pipeline_activations(name, p, m, rank) for rank in range(p)]
            assert peak_activations(schedule) == peaks, (p, m)


def test_with_fewer_microbatches_than_stages_the_bubble_of_h1_is_out_of_reach(seed):
    """In any order: rank 0 has only its forwards to do until its first I is ready."""
    chance = random.Random(seed)
    p = chance.randrange(2, 8)
    for m in range(1, p):
        for refused in (zero_bubble_h1, partial(facts.pipeline_bubble, "zero_bubble_h1")):
            with pytest.raises(ValueError, match=f"at least {p}"):
                refused(p, m)
        waits = (p + (p - 1)) - m  # until the first I; F = I = W = 1
        assert waits > p - 1, "(p-1)(F+I-W)"
        halves = [
            [
                one._replace(kind=half)
                for one in flat(row)
                for half in ("IW" if one.kind == "B" else "F")
            ]
            for row in one_f_one_b(p, m)
        ]
        found = simulate(halves)
        first = next(
            start for one, start in zip(halves[0], found.starts[0], strict=True) if one.kind == "I"
        )
        assert first >= p + (p - 1)
        assert found.bubble[0] >= waits


def test_where_a_formula_does_not_hold_it_says_so_and_the_clock_shows_why():
    with pytest.raises(ValueError, match="weight no longer than forward and input"):
        facts.pipeline_bubble("zero_bubble_h1", 4, 8, 1, 1, 2)
    late = simulate(zero_bubble_h1(4, 8), Durations(1, 1, 2))
    assert max(late.bubble) > 3 * (1 + 1 - 2)
    with pytest.raises(ValueError, match="forward, input and weight are equal"):
        facts.pipeline_bubble("zero_bubble_v", 4, 8, 3, 2, 1)
    uneven = simulate(zero_bubble_v(4, 8), Durations(3, 2, 1))
    assert max(a - b for a, b in zip(uneven.spans, uneven.busy, strict=True)) > 0
    with pytest.raises(ValueError, match="forward = input >= weight"):
        facts.pipeline_bubble("dualpipe", 8, 16, 2, 3, 1)
    with pytest.raises(ValueError, match="a multiple of 4 microbatches"):
        facts.pipeline_bubble("interleaved_one_f_one_b", 4, 6)
    with pytest.raises(ValueError, match="at least 7 microbatches, not 6"):
        facts.pipeline_activations("zero_bubble_h2", 4, 6, 0)
    with pytest.raises(ValueError, match="even number"):
        facts.pipeline_bubble("dualpipe", 3, 8)
    with pytest.raises(ValueError, match="no schedule is called '1f1b'; known are naive"):
        facts.pipeline_bubble("1f1b", 4, 8)
    with pytest.raises(ValueError, match=r"rank 4 must lie in 0 \.\. 3"):
        facts.pipeline_activations("gpipe", 4, 8, 4)


def test_the_figures_that_the_lectures_confuse():
    """4 stages, 8 microbatches: 3/8 of the ideal time, 3/11 of the total. One at a time: utilisation 1/4."""
    assert facts.pipeline_bubble_of_ideal("gpipe", 4, 8) == pytest.approx(3 / 8)
    assert facts.pipeline_bubble_of_total("gpipe", 4, 8) == pytest.approx(3 / 11)
    assert 1 - facts.pipeline_bubble_of_total("naive", 4, 8) == pytest.approx(1 / 4)
    assert facts.pipeline_bubble("one_f_one_b", 4, 8) == facts.pipeline_bubble("gpipe", 4, 8)
    assert facts.pipeline_bubble("zero_bubble_h1", 4, 8) * 3 == facts.pipeline_bubble("gpipe", 4, 8)
    assert facts.pipeline_activations("one_f_one_b", 4, 8, 0) == 4


def test_an_overlapped_pair_gains_only_as_one_block():
    slow, fast = (simulate(dualpipe(8, 20), Durations(overlapped=block), 2) for block in (3, 2))
    assert set(slow.bubble) == {facts.pipeline_bubble("dualpipe", 8, 20)}
    assert fast.total < slow.total
    assert max(fast.bubble) == facts.pipeline_bubble("dualpipe", 8, 20, overlapped=2)
    assert min(fast.bubble) < max(fast.bubble)


# --- PipeDream -----------------------------------------------------------------------------------


def test_without_flushes_the_bubble_is_paid_once():
    batches, m, p = 5, 8, 4
    flushed = batches * simulate(one_f_one_b(p, m)).total
    streamed = simulate(pipedream(p, batches * m))
    assert set(streamed.bubble) == {facts.pipeline_bubble("pipedream", p, batches * m)}
    assert flushed - streamed.total == (batches - 1) * facts.pipeline_bubble("one_f_one_b", p, m)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 5), (2, 9), (4, 12), (7, 20), (6, 3)])
def test_a_stage_keeps_a_version_for_each_microbatch_in_flight(stages, microbatches):
    versions = weight_versions(pipedream(stages, microbatches))
    for stage in range(stages):
        seen = [versions[Action(stage, "F", k)] for k in range(microbatches)]
        found = [versions[Action(stage, "B", k)] for k in range(microbatches)]
        assert found == list(range(microbatches))
        assert seen == [max(0, k - (stages - 1 - stage)) for k in range(microbatches)]
        kept = max(1 + now - then for now, then in zip(found, seen, strict=True))
        assert kept == facts.pipedream_versions(stages, microbatches, stage)


def test_updates_follow_whole_backwards():
    with pytest.raises(ValueError, match="0I0: updates follow whole backwards"):
        weight_versions(zero_bubble_h1(2, 4))


# --- the tables of the Zero Bubble paper ---------------------------------------------------------

# Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism, ICLR 2024 (arXiv 2401.10241). Table 9: p, m, and
# profiled milliseconds of F, B (here I), W and communication. Table 5: bubble rates of 1F1B, ZB-H1, ZB-H2.
TABLES_9_AND_5 = [
    (8, 24, "18.522 18.086 9.337 0.601", "0.2431 0.1585 0.1083"),
    (8, 32, "18.513 18.086 9.331 0.626", "0.1985 0.1242 0.0837"),
    (8, 64, "18.546 18.097 9.321 0.762", "0.1240 0.0674 0.0444"),
    (8, 24, "29.718 29.444 19.927 0.527", "0.2347 0.1323 0.0698"),
    (8, 32, "29.802 29.428 19.530 0.577", "0.1898 0.1045 0.0559"),
    (8, 64, "29.935 29.621 19.388 0.535", "0.1091 0.0554 0.0294"),
    (16, 48, "11.347 11.248 8.132 0.377", "0.2552 0.1397 0.0672"),
    (16, 64, "11.307 11.254 8.101 0.379", "0.2082 0.1088 0.0516"),
    (16, 128, "11.325 11.308 8.109 0.378", "0.1251 0.0576 0.0266"),
    (32, 96, "10.419 10.207 7.715 0.408", "0.2646 0.1421 0.0641"),
    (32, 128, "10.408 10.204 7.703 0.408", "0.2168 0.1106 0.0490"),
    (32, 256, "10.402 10.248 7.698 0.460", "0.1352 0.0594 0.0257"),
]


@pytest.mark.parametrize(("stages", "microbatches", "times", "rates"), TABLES_9_AND_5)
def test_the_bubble_rates_of_the_zero_bubble_paper(stages, microbatches, times, rates):
    forward, backward, weight, communication = (float(one) for one in times.split())
    durations = Durations(forward, backward, weight, communication=communication)
    found = [
        simulate(generator(stages, microbatches), durations, checked=True).bubble_rate
        for generator in (one_f_one_b, zero_bubble_h1, zero_bubble_h2)
    ]
    assert " ".join(f"{rate:.4f}" for rate in found) == rates
