"""Figures, compared by the data in them: the timeline, the matrix, the steps and the stepper."""

from __future__ import annotations

import math
import random
import struct
import time
from itertools import pairwise
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
import torch.distributed as dist
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch

from course_lib import launch
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.steps import Parcel, Steps, steps
from course_lib.ledger.watch import NOWHERE, POSITION, Film, contribution, decode, watch
from course_lib.pictures import colours, marks, steps_figure
from course_lib.pictures.paper import runs
from course_lib.pictures.shown import widget_view
from course_lib.pictures.stepper import Stepper, stepper
from course_lib.pictures.steps_figure import FigureSizes, layout
from tests.ledger.made_ledgers import MadeRun, binomial_broadcast, ring


def collection(figure, gid: str):
    (found,) = [one for one in figure.axes[0].collections if one.get_gid() == gid]
    return found


def boxes(figure, gid: str) -> list[tuple[float, float, int]]:
    """(first, last, rank) of every box of a collection."""
    paths = collection(figure, gid).get_paths()
    ends = [path.get_extents() for path in paths]
    return [(e.x0, e.x1, round((e.y0 + e.y1) / 2)) for e in ends]


def arrows(figure) -> list[FancyArrowPatch]:
    return [one for one in figure.axes[0].patches if one.get_gid() == "message"]


def texts(figure) -> list[str]:
    return [one.get_text() for one in figure.axes[0].texts if one.get_text()]


# --- colours ----------------------------------------------------------------------------------


def lightness(colour: str) -> float:
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_fills_that_meet_differ_in_greyscale() -> None:
    for one, other in zip(colours.RANKS, colours.RANKS[1:], strict=False):
        assert abs(lightness(one) - lightness(other)) > 0.07  # a stripe's place tells the rank too
    schedule = (colours.FORWARD, colours.BACKWARD, colours.WEIGHT_GRADIENT, colours.COMMUNICATION)
    for i, one in enumerate(schedule):
        for other in schedule[i + 1 :]:
            differ = abs(lightness(one) - lightness(other)) > 0.1
            assert differ or colours.HATCHES[one] != colours.HATCHES[other]


def test_every_rank_has_a_look_of_its_own() -> None:
    looks = {(colours.rank_colour(rank), colours.rank_hatch(rank)) for rank in range(16)}
    assert len(looks) == 16


# --- timeline ---------------------------------------------------------------------------------


def two_messages() -> Ledger:
    """Rank 0 sends at 1 ms to 1, which waits from 0 to 3 ms; then 1 sends back, both in 4 to 6 ms."""
    run = MadeRun(2)
    run.add(1, "recv", 0, 8, 0.000, 0.000, 0.003)
    run.add(0, "send", 1, 8, 0.001, 0.002, 0.003)
    run.add(1, "send", 0, 8, 0.004, 0.004, 0.006)
    run.add(0, "recv", 1, 8, 0.004, 0.005, 0.006)
    return run.ledger(ended=0.008)


def test_a_timeline_shows_ranks_blocked_time_and_messages_where_they_were() -> None:
    figure = two_messages().timeline()
    ax = figure.axes[0]
    low, high = ax.get_ylim()
    assert low > high, "rank 0 is on top"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.get_xlabel() == "ms since the first operation"
    assert boxes(figure, "lanes") == [(0, 8, 0), (0, 8, 1)]
    expected = [(2, 3, 0), (5, 6, 0), (0, 3, 1), (4, 6, 1)]
    assert np.allclose(sorted(boxes(figure, "blocked"), key=lambda b: b[2]), expected)
    ends = [one._posA_posB for one in arrows(figure)]  # no public way to read them
    edge = marks.HALF_ROW
    assert np.allclose(ends, [[(1, edge), (3, 1 - edge)], [(4, 1 - edge), (6, edge)]])


def test_a_timeline_titles_itself_and_takes_a_title() -> None:
    assert "2 ranks, 2 messages: 16 B sent" in texts(two_messages().timeline())
    assert "hello" in texts(two_messages().timeline(title="hello"))


def test_a_window_shows_a_part_and_a_wrong_one_is_a_sentence() -> None:
    figure = two_messages().timeline(window=(0.0035, 0.007))
    assert len(arrows(figure)) == 1
    assert len(boxes(figure, "blocked")) == 2
    with pytest.raises(ValueError, match="must begin before it ends"):
        two_messages().timeline(window=(2, 1))


def test_a_timeline_can_begin_after_a_barrier() -> None:
    run = MadeRun(2)
    run.one(0, 1)
    run.built_in("barrier", 0)
    run.one(1, 0)
    figure = run.ledger().timeline(after="barrier")
    assert len(arrows(figure)) == 1
    assert boxes(figure, "collectives")[0][1] == pytest.approx(0)
    assert figure.axes[0].get_xlabel().endswith("since the barrier")
    with pytest.raises(ValueError, match="cannot begin after 'all_reduce': no rank has left"):
        run.ledger().timeline(after="all_reduce")


def test_what_nobody_answered_is_marked() -> None:
    run = MadeRun(3)
    run.add(0, "recv", 2, 8, 0.001, 0.001, None)
    run.rows[0][0] = waiting(run.rows[0][0], 0.001)
    run.add(1, "send", 0, 8, 0.002, 0.002, None)
    figure = run.ledger(ended=0.010).timeline()
    assert np.allclose(boxes(figure, "waiting"), [(0, 9, 0)])
    assert figure.axes[0].get_xlim()[1] < 2, "both operations are seen"
    assert "waiting went on until 9 ms" in texts(figure)
    whole = run.ledger(ended=0.010).timeline(window=(0, 0.009))
    assert whole.axes[0].get_xlim()[1] > 9 and "waiting" not in " ".join(texts(whole))
    gids = [line.get_gid() for line in figure.axes[0].lines]
    assert gids.count("lonely recv") == 1 and gids.count("lonely send") == 1
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert {"still so at the end", "never received", "never sent"} <= set(labels)
    assert arrows(figure) == []


def waiting(one, seconds: float):
    """The same operation, in which the rank was blocked when the run ended."""
    import dataclasses

    return dataclasses.replace(one, blocked=seconds, waited=True)


def test_a_collective_is_a_band_over_its_members() -> None:
    run = MadeRun(4)
    run.built_in("all_reduce", 4096, group=(1, 3))
    figure = run.ledger().timeline()
    assert [rank for _, _, rank in boxes(figure, "collectives")] == [1, 3]
    assert "all_reduce 4.1 KB" in texts(figure)


def test_names_of_collectives_never_lie_upon_each_other(seed: int) -> None:
    run, draw = MadeRun(2, seed), random.Random(seed)
    for _ in range(40):  # calls without waiting: many are under way at the same time
        issued, took = draw.uniform(0, 0.01), draw.uniform(0, 0.005)
        for rank in range(2):
            run.add(rank, "all_reduce", None, 4096, issued, issued, issued + took)
    figure = run.ledger().timeline(window=(0.002, 0.012))
    figure.draw_without_rendering()
    ends = [t.get_window_extent() for t in figure.axes[0].texts if t.get_gid() == "collective"]
    ends.sort(key=lambda box: box.x0)
    assert ends, "some are named"
    assert all(one.x1 < other.x0 for one, other in pairwise(ends))
    area = figure.axes[0].get_window_extent()
    assert all(area.x0 <= box.x0 and box.x1 <= area.x1 for box in ends), "and none is cut off"


def test_thousands_of_messages_become_bundles_that_are_counted() -> None:
    ledger = ring(8, rounds=300).ledger()
    figure = ledger.timeline()
    assert arrows(figure) == []
    lines = collection(figure, "bundles")
    assert isinstance(lines, LineCollection)
    drawn = len(lines.get_segments())
    assert 8 <= drawn <= marks.BUNDLES
    assert any(t.startswith(f"2,400 messages, drawn as {drawn} bundles") for t in texts(figure))
    shades = collection(figure, "blocked")
    assert len(shades.get_paths()) == 8 * marks.BINS
    grey = np.asarray(shades.get_facecolor())[:, 0]
    assert grey.min() >= to_rgb(colours.COMMUNICATION)[0] - 1e-9


def test_grey_columns_hold_the_share_of_blocked_time() -> None:
    run = MadeRun(1)
    for k in range(marks.BINS + 10):  # blocked for half of the time, evenly
        run.add(0, "barrier", None, 0, k * 0.01, k * 0.01, k * 0.01 + 0.005)
    figure = run.ledger(ended=(marks.BINS + 10) * 0.01).timeline()
    grey = np.asarray(collection(figure, "blocked").get_facecolor())[:, 0]
    white_to_full = 1 - to_rgb(colours.COMMUNICATION)[0]
    assert np.mean((1 - grey) / white_to_full) == pytest.approx(0.5, abs=0.02)


def test_figures_leave_pyplot_and_its_settings_alone() -> None:
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    ledger = ring(3).ledger()
    made = [ledger.timeline(), ledger.matrix_figure(), stepper(ledger).still()]
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before
    assert all(figure._repr_png_().startswith(b"\x89PNG") for figure in made)


def test_an_empty_ledger_can_be_drawn() -> None:
    ledger = Ledger(2, [[], []])
    assert boxes(ledger.timeline(), "lanes")[0][2] == 0
    assert ledger.matrix_figure()._repr_png_()
    assert stepper(ledger).still()._repr_png_()


# --- matrix -----------------------------------------------------------------------------------


def test_the_matrix_figure_holds_the_matrix() -> None:
    run = ring(3, 1000)
    run.one(2, 1, 500)
    figure = run.ledger().matrix_figure()
    (image,) = figure.axes[0].images
    assert np.array_equal(image.get_array(), run.ledger().matrix())
    assert sorted(texts(figure)) == ["4 KB", "4 KB", "4 KB", "500 B"]
    assert figure.axes[0].get_ylabel() == "from rank"


def test_a_large_matrix_shows_no_numbers() -> None:
    assert texts(ring(11, rounds=1).ledger().matrix_figure()) == []


# --- codes ------------------------------------------------------------------------------------


def code(rank: int, element: int) -> int:
    return element + (1 << POSITION + 3 * rank)


def test_any_sum_of_contributions_can_be_decoded(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        n = chance.randrange(1, 17)
        element = chance.randrange(256)
        counts = [chance.randrange(8) for _ in range(n)]
        value = sum(number * code(rank, element) for rank, number in enumerate(counts))
        found, place = decode(np.array([value]), n)
        assert found[0].tolist() == counts
        assert place[0] == (element if any(counts) else NOWHERE)


def test_a_sum_of_different_elements_has_no_element() -> None:
    counts, element = decode(np.array([code(0, 1) + code(1, 2)]), 2)
    assert counts.tolist() == [[1, 1]] and element.tolist() == [NOWHERE]


# --- films of real runs -----------------------------------------------------------------------


def exchange(*pairs: tuple) -> None:
    ops = [dist.P2POp(*pair) for pair in pairs]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def ring_all_reduce(tensor: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    right, left = (rank + 1) % n, (rank - 1) % n
    for k in range(n - 1):
        mine = chunks[(rank - k - 1) % n]
        came = torch.empty_like(mine)
        exchange((dist.isend, chunks[(rank - k) % n], right), (dist.irecv, came, left))
        mine += came
    for k in range(n - 1):
        out, into = chunks[(rank + 1 - k) % n], chunks[(rank - k) % n]
        exchange((dist.isend, out, right), (dist.irecv, into, left))


def ring_reduce_scatter(output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Sums in a buffer that no film watches."""
    rank, n = dist.get_rank(), dist.get_world_size()
    held = [chunk.clone() for chunk in tensor.chunk(n)]
    for k in range(n - 1):
        out, into = (rank - k - 1) % n, (rank - k - 2) % n
        came = torch.empty_like(output)
        exchange((dist.isend, held[out], (rank + 1) % n), (dist.irecv, came, (rank - 1) % n))
        held[into] += came
    output.copy_(held[rank])


def tree_broadcast(tensor: torch.Tensor) -> None:
    rank, n, reach = dist.get_rank(), dist.get_world_size(), 1
    while reach < n:
        if rank < reach and rank + reach < n:
            dist.send(tensor, rank + reach)
        elif reach <= rank < 2 * reach:
            dist.recv(tensor, rank - reach)
        reach *= 2


def doubling(tensor: torch.Tensor) -> None:
    rank, n, distance = dist.get_rank(), dist.get_world_size(), 1
    while distance < n:
        came = torch.empty_like(tensor)
        exchange((dist.isend, tensor, rank ^ distance), (dist.irecv, came, rank ^ distance))
        tensor += came
        distance *= 2


def all_to_all(output: torch.Tensor, tensor: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    output[rank] = tensor[rank]
    for k in range(1, n):
        to, source = (rank + k) % n, (rank - k) % n
        exchange(
            (dist.isend, tensor[to : to + 1], to), (dist.irecv, output[source : source + 1], source)
        )


def filmed(algorithm, elements: int) -> Film:
    tensor = contribution(elements)
    with watch(tensor) as film:
        algorithm(tensor)
    return film


def filmed_pair(algorithm, inputs: int, outputs: int) -> Film:
    tensor, output = contribution(inputs), torch.zeros(outputs, dtype=torch.int64)
    with watch(input=tensor, output=output) as film:
        algorithm(output, tensor)
    return film


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_film_of_a_ring_all_reduce(n: int) -> None:
    run = launch(filmed, ring_all_reduce, n, world_size=n)
    film = steps(run.ledger, run)
    assert len(film) == 2 * (n - 1)
    assert film.counts.shape == (2 * n - 1, n, n, n)
    assert (film.elements == np.arange(n)).all()
    for k in range(n):  # after k rounds rank r holds in chunk r - k what the k ranks before r added
        for rank in range(n):
            held = film.counts[k, rank, (rank - k) % n]
            assert sorted(np.flatnonzero(held)) == sorted((rank - j) % n for j in range(k + 1))
    assert (film.counts[-1] == 1).all()
    assert film.counts[0].sum() == n * n
    for k, step in enumerate(film.steps):
        for parcel in step.parcels:
            assert parcel.dst == (parcel.src + 1) % n
            assert np.array_equal(parcel.counts, film.counts[k, parcel.src, parcel.elements])


def test_a_film_is_the_same_in_every_run() -> None:
    one, other = (launch(filmed, ring_all_reduce, 5, world_size=3) for _ in range(2))
    first, second = steps(one.ledger, one), steps(other.ledger, other)
    assert np.array_equal(first.counts, second.counts)
    assert np.array_equal(first.elements, second.elements)


def test_partial_sums_in_private_buffers_are_seen_on_the_way() -> None:
    run = launch(filmed_pair, ring_reduce_scatter, 4, 1, world_size=4)
    film = steps(run.ledger, run)
    assert film.names == [("input", 4), ("output", 1)]
    assert [[int(p.counts.sum()) for p in s.parcels] for s in film.steps] == [
        [k] * 4 for k in (1, 2, 3)
    ]
    assert (film.counts[:3, :, 4] == 0).all() and (film.counts[3, :, 4] == 1).all()
    assert film.elements[3, :, 4].tolist() == [0, 1, 2, 3]
    assert [block.fixed for block in steps_figure.blocks_of(film)] == [True, False]


def test_the_film_of_a_tree() -> None:
    run = launch(filmed, tree_broadcast, 2, world_size=5)
    film = steps(run.ledger, run)
    assert [[(p.src, p.dst) for p in step.parcels] for step in film.steps] == [
        [(0, 1)], [(0, 2), (1, 3)], [(0, 4)],
    ]  # fmt: skip
    reached = [[int(rank) for rank in np.flatnonzero(state[:, 0, 0])] for state in film.counts]
    assert reached == [[0], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_the_film_of_recursive_doubling() -> None:
    run = launch(filmed, doubling, 1, world_size=4)
    film = steps(run.ledger, run)
    assert film.counts.sum(axis=(2, 3)).tolist() == [[1] * 4, [2] * 4, [4] * 4]


def test_the_film_of_an_all_to_all_tells_elements_apart() -> None:
    run = launch(filmed_pair, all_to_all, 3, 3, world_size=3)
    film = steps(run.ledger, run)
    for rank in range(3):
        assert film.elements[-1, rank, 3:].tolist() == [rank] * 3
        assert np.array_equal(film.counts[-1, rank, 3:], np.eye(3))


def ahead(tensor: torch.Tensor) -> None:
    """Receives whose messages have arrived long before the rank waits for them."""
    other = 1 - dist.get_rank()
    receives = [dist.irecv(tensor[k : k + 1], other) for k in (0, 1)]
    for send in [dist.isend(tensor[2 + k : 3 + k], other) for k in (0, 1)]:
        send.wait()
    dist.barrier()
    time.sleep(0.1)
    dist.barrier()
    for receive in receives:
        receive.wait()


def test_what_a_receive_under_way_brings_is_not_seen_before_its_wait() -> None:
    for film in launch(filmed, ahead, 4, world_size=2):
        _, elements = decode(np.array(film.states), 2)
        done = [index for event, index in film.events if event == "done" and index < 2]
        assert done == [0, 1]
        last, last_but_one = film.events.index(("done", 1)), film.events.index(("done", 0))
        assert (elements[: last_but_one + 1] == [0, 1, 2, 3]).all()
        assert (elements[last_but_one + 1 : last + 1] == [2, 1, 2, 3]).all()
        assert (elements[last + 1 :] == [2, 3, 2, 3]).all()


def test_only_what_was_filmed_is_shown() -> None:
    def body() -> Film:
        dist.barrier()
        ring_all_reduce(torch.ones(8))
        film = filmed(doubling, 1)
        ring_all_reduce(torch.ones(8))
        return film

    run = launch(body, world_size=2)
    film = steps(run.ledger, run)
    assert len(run.ledger.rounds()) == 5 and len(film) == 1
    assert (film.counts[-1] == 1).all()


def test_watching_something_else_is_a_sentence() -> None:
    def body() -> list[str]:
        said = []
        for tensor in (torch.ones(3), torch.zeros(4, 4, dtype=torch.int64).t()):
            try:
                with watch(output=tensor):
                    pass
            except ValueError as error:
                said.append(str(error))
        try:
            contribution(257)
        except ValueError as error:
            said.append(str(error))
        return said

    (said,) = launch(body, world_size=1)
    assert "output is float32" in said[0] and "contribution()" in said[0]
    assert "strides (1, 4)" in said[1]
    assert "up to 16 ranks and 256 elements, but this is element 256 of 1 ranks" in said[2]


def test_wrong_films_and_states_are_sentences() -> None:
    ledger = ring(3).ledger()
    with pytest.raises(ValueError, match=r"one film from each of the 3 ranks is .* `return film`"):
        steps(ledger, [None, None, None])  # type: ignore[list-item]
    with pytest.raises(
        ValueError, match=r"\(5, 3, elements, 3\) for this ledger, but they are \(2, 2\)"
    ):
        steps(ledger, np.zeros((2, 2)))
    films = [Film(rank, 3, [("a", rank)]) for rank in range(3)]
    with pytest.raises(ValueError, match=r"different tensors: rank 0: \[\('a', 0\)\]"):
        steps(ledger, films)


def test_own_counts_can_be_shown() -> None:
    counts = np.ones((5, 3, 2, 3), int)
    film = steps(ring(3).ledger(), counts)
    assert np.array_equal(film.counts, counts)
    assert len(arrows(stepper(ring(3).ledger(), counts).frame(2))) == 3


# --- pictures of steps ------------------------------------------------------------------------


def made_film(n: int, cells: int, rounds: int, seed: int, most: int = 1) -> Steps:
    """Random contents, ring messages."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, most + 1, (rounds + 1, n, cells, n)).astype(np.uint8)
    elements = np.broadcast_to(np.arange(cells), counts.shape[:3]).copy()
    plain = steps(ring(n, rounds=rounds).ledger())
    return Steps(n, [("", cells)], counts, elements, plain.steps)


@pytest.mark.parametrize("n", [2, 4, 5, 8, 16])
@pytest.mark.parametrize("cells", [1, 3, 8, 16])
@pytest.mark.parametrize("rounds", [1, 2, 6, 14])
def test_strips_fit_the_page(n: int, cells: int, rounds: int, seed: int) -> None:
    sizes: FigureSizes = layout(made_film(n, cells, rounds, seed), rounds)
    assert sizes.width <= steps_figure.WIDTH + 1e-6
    assert 1 <= sizes.rounds <= rounds
    strips = math.ceil(rounds / sizes.rounds)
    assert sizes.rounds * strips - rounds < strips, "the strips share the rounds evenly"


def test_too_many_elements_are_a_sentence(seed: int) -> None:
    with pytest.raises(ValueError, match="60 elements are too many to be drawn side by side"):
        layout(made_film(4, 60, 1, seed), 1)


def test_a_still_shows_all_rounds(seed: int) -> None:
    figure = steps_figure.still(made_film(4, 4, 6, seed), "a title")
    shown = texts(figure)
    assert [f"round {k}" for k in range(1, 7)] == [t for t in shown if t.startswith("round ")]
    assert "a title" in shown and "contribution of rank" in shown
    assert len(arrows(figure)) == 24
    assert not any("not shown" in t for t in shown)


def test_a_still_of_very_many_rounds_shows_both_ends_and_says_so(seed: int) -> None:
    figure = steps_figure.still(made_film(8, 8, 60, seed))
    shown = texts(figure)
    numbers = [int(t.split()[1]) for t in shown if t.startswith("round ")]
    (note,) = [t for t in shown if "not shown" in t]
    first, last = (int(word) for word in note.split() if word.isdigit())
    assert sorted({*numbers, *range(first, last + 1)}) == list(range(1, 61))
    assert 1 in numbers and 60 in numbers
    assert figure.get_figheight() < 15


def fills(figure, colour: str) -> int:
    wanted = [one for one in figure.axes[0].collections if isinstance(one, PolyCollection)]
    return sum(
        len(one.get_paths())
        for one in wanted
        if len(one.get_facecolor()) and np.allclose(one.get_facecolor()[0][:3], to_rgb(colour))
    )


def test_every_contribution_is_a_stripe_of_its_ranks_colour(seed: int) -> None:
    film = made_film(4, 4, 3, seed)
    figure = steps_figure.still(film)
    for rank in range(4):
        legend = 1
        assert fills(figure, colours.rank_colour(rank)) == film.counts[..., rank].sum() + legend


def test_a_contribution_that_is_there_twice_is_marked() -> None:
    film = made_film(2, 1, 1, 0)
    film.counts[...] = 1
    film.counts[1, 0, 0, 1] = 2
    assert [t for t in texts(steps_figure.frame(film, 1)) if "×" in t and "B" not in t] == ["2×"]


def test_copies_wear_their_colour_and_narrow_cells_become_gauges(seed: int) -> None:
    copies = made_film(3, 3, 2, seed)
    copies.counts[...] = 0
    copies.counts[..., 1] = 1
    assert layout(copies, 2).style == "copies"
    assert fills(steps_figure.still(copies), colours.tint(colours.rank_colour(1))) == 3 * 3 * 3
    narrow = made_film(8, 8, 6, seed)
    assert layout(narrow, 6).style == "gauge"
    assert any("filled as far as" in t for t in texts(steps_figure.still(narrow)))
    assert layout(narrow, 1).style == "sums"


def test_what_changed_has_a_dark_frame() -> None:
    film = made_film(2, 4, 1, 0)
    film.counts[...] = 1
    film.counts[0, 1, 1:3, 0] = 0
    frames = [
        one for one in steps_figure.frame(film, 1).axes[0].collections
        if len(one.get_edgecolor()) and one.get_linewidth()[0] == 1.6
    ]  # fmt: skip
    (dark,) = frames
    (path,) = dark.get_paths()  # two cells side by side share one frame
    extents = path.get_extents()
    cell = layout(film, 1).cell
    assert extents.width == pytest.approx(2 * cell - 0.024)


def test_elements_in_a_message_are_named_by_runs() -> None:
    counts = np.array([[1, 0], [1, 0], [1, 1], [1, 0]])
    parcel = Parcel(0, 1, 32, counts, np.array([4, 5, 6, 2]))
    assert [(name, held.tolist()) for name, held in runs(parcel)] == [
        ("4-5", [1, 0]), ("6", [1, 1]), ("2", [1, 0]),
    ]  # fmt: skip


def test_messages_alone_can_be_stepped_through() -> None:
    run = binomial_broadcast(4)
    run.built_in("all_reduce", 8)
    figure = stepper(run.ledger()).still()
    assert len(arrows(figure)) == 3
    assert "all_reduce" in texts(figure)
    assert "contribution of rank" not in texts(figure)


# --- the stepper ------------------------------------------------------------------------------


def png_size(value: bytes | memoryview) -> tuple[int, int]:
    data = bytes(value)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


@pytest.fixture
def made_stepper(seed: int) -> Stepper:
    return Stepper(made_film(3, 3, 4, seed), "made")


def test_the_widget_has_a_picture_for_the_start_and_for_every_round(made_stepper: Stepper) -> None:
    box = made_stepper.widget()
    controls, shown = box.children
    play, slider = controls.children
    assert (slider.min, slider.max, play.max) == (0, 4, 4)
    assert len({png_size(image.value) for image in shown.children}) == 1
    assert len({bytes(image.value) for image in shown.children}) == 5


def test_without_stacked_pictures_the_kernel_changes_the_picture(
    made_stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ipywidgets

    monkeypatch.delattr(ipywidgets, "Stack")
    controls, image = made_stepper.widget().children
    before = bytes(image.value)
    controls.children[1].value = 3
    assert bytes(image.value) != before and png_size(image.value) == png_size(before)


def test_very_many_rounds_are_cut_and_it_says_so(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course_lib.pictures.stepper.MOST_FRAMES", 5)
    long = Stepper(made_film(2, 1, 8, seed))
    controls = long.widget().children[0].children
    assert controls[1].max == 5
    assert controls[2].value == "the first 5 of 8 rounds"


def test_without_a_kernel_there_is_a_still_picture_and_text(made_stepper: Stepper) -> None:
    bundle = made_stepper._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    assert bundle["text/plain"] == "Stepper(made: 3 ranks, 4 rounds)"


VIEW = "application/vnd.jupyter.widget-view+json"


def test_a_widget_that_can_be_asked_says_itself_how_it_is_shown() -> None:
    """ipywidgets 8."""
    view = {"version_major": 3, "version_minor": 1, "model_id": "abc"}
    widget = SimpleNamespace(
        _repr_mimebundle_=lambda: {"text/plain": "VBox()", VIEW: view}, model_id="another"
    )
    assert widget_view(widget) == {VIEW: view}


def test_a_widget_that_cannot_be_asked_is_shown_by_its_model(made_stepper: Stepper) -> None:
    """ipywidgets 7 displays a widget and returns nothing."""
    widget = SimpleNamespace(_ipython_display_=None, model_id="abc", _view_name="VBoxView")
    view = {VIEW: {"version_major": 2, "version_minor": 0, "model_id": "abc"}}
    assert widget_view(widget) == view
    here = made_stepper.widget()
    assert widget_view(here) == widget_view(SimpleNamespace(model_id=here.model_id)), (
        "the protocol of ipywidgets 7 is that of the version that is installed"
    )


def test_a_round_that_is_not_there_is_a_sentence(made_stepper: Stepper) -> None:
    with pytest.raises(ValueError, match=r"there is no round 5: this run had 4\."):
        made_stepper.frame(5)


NOTEBOOK = """
import numpy as np
from tests.ledger.made_ledgers import ring
from course_lib.pictures.stepper import stepper
stepper(ring(2).ledger(), np.ones((3, 2, 2, 2), int), "made")
"""


@pytest.mark.parametrize("still_alone", [False, True])
def test_a_notebook_keeps_the_widget_and_a_still_picture(
    still_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    monkeypatch.setenv("COURSE_STILL", "1" if still_alone else "0")
    setup = f"import sys; sys.path[:0] = {[*map(str, paths())]!r}"
    cells = [nbformat.v4.new_code_cell(setup), nbformat.v4.new_code_cell(NOTEBOOK)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[1].outputs
    assert {"image/png", "text/plain"} <= set(output.data)
    assert ("application/vnd.jupyter.widget-view+json" in output.data) == (not still_alone)
    notebook.metadata.pop("widgets", None)  # as on a page that cannot show widgets
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert "data:image/png;base64," in page


def paths() -> list:
    from pathlib import Path

    here = Path(__file__).resolve().parent
    return [here.parents[1]]
