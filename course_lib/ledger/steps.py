"""An algorithm as a sequence of steps: the state before, the messages of a round, the state after.

The rounds come from the ledger; the states and the contents of the messages come from the ranks' films (see
`watch`). Without films there are only the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.ledger.ledger import Ledger
from course_lib.ledger.matching import Collective, Message
from course_lib.ledger.rounds import Round
from course_lib.ledger.watch import NOWHERE, Film, decode


@dataclass(frozen=True)
class Parcel:
    """A message and its contents.

    counts: (elements, world_size), how often each rank's contribution is in each element, or None
        if there is no film of it. elements: which element of the contribution each of them is.
    """

    src: int
    dst: int
    nbytes: int
    counts: np.ndarray | None = None
    elements: np.ndarray | None = None


@dataclass
class Step:
    """One round: its messages, and the built-in collectives called in it."""

    parcels: list[Parcel]
    collectives: list[Collective] = field(default_factory=list)


@dataclass
class Steps:
    """All steps of a run.

    names: watched tensors with their number of elements.
    counts: uint8, (len(steps) + 1, world_size, elements, world_size): [k, r, e, s] says how often
        rank r's element e holds rank s's contribution after k rounds.
    elements: int64, (len(steps) + 1, world_size, elements): which element it is a contribution of.
    """

    world_size: int
    names: list[tuple[str, int]]
    counts: np.ndarray
    elements: np.ndarray
    steps: list[Step]

    def __len__(self) -> int:
        return len(self.steps)


def steps(ledger: Ledger, states: Sequence[Film] | np.ndarray | None = None) -> Steps:
    """Put a run together.

    states: the ranks' films, in the order of ranks; or counts of your own, (rounds + 1, world_size,
    elements, world_size); or None for only the messages.
    """
    n = ledger.world_size
    rounds = ledger.rounds()
    if states is None:
        return Steps(n, [], *_no_states(len(rounds), n), _steps(rounds, {}, n))
    if isinstance(states, np.ndarray):
        counts = _checked_counts(states, len(rounds), n)
        own = np.broadcast_to(np.arange(counts.shape[2]), counts.shape[:3]).copy()
        return Steps(n, [("", counts.shape[2])], counts, own, _steps(rounds, {}, n))
    films = _checked_films(list(states), n)
    rounds = _filmed(rounds, films)
    number_of = {
        (operation.rank, operation.index): r.number for r in rounds for operation in _arrivals(r)
    }
    all_of = {
        (operation.rank, operation.index): r.number for r in rounds for operation in _operations(r)
    }
    codes = np.array(
        [
            [_after(film, k, len(rounds), number_of, all_of) for film in films]
            for k in range(len(rounds) + 1)
        ]
    )
    counts, elements = decode(codes, n)
    carried = {(film.rank, index): codes for film in films for index, codes in film.carried.items()}
    return Steps(n, films[0].names, counts, elements, _steps(rounds, carried, n))


def _no_states(rounds: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((rounds + 1, n, 0, n), np.uint8), np.full((rounds + 1, n, 0), NOWHERE)


def _checked_counts(counts: np.ndarray, rounds: int, n: int) -> np.ndarray:
    if counts.ndim != 4 or (counts.shape[0], counts.shape[1], counts.shape[3]) != (
        rounds + 1,
        n,
        n,
    ):
        raise ValueError(
            f"states should be counts of shape (rounds + 1, world_size, elements, world_size) = "
            f"({rounds + 1}, {n}, elements, {n}) for this ledger, but they are {counts.shape}."
        )
    return counts.astype(np.uint8)


def _checked_films(films: list[Film], n: int) -> list[Film]:
    if len(films) != n or any(not isinstance(film, Film) for film in films):
        kinds = sorted({type(film).__name__ for film in films})
        raise ValueError(
            f"one film from each of the {n} ranks is needed, but there are {len(films)} objects of "
            f"type {', '.join(kinds)}. Let the launched function end with `return film`."
        )
    if any(film.names != films[0].names for film in films):
        raise ValueError(
            "the ranks watched different tensors: "
            + "; ".join(f"rank {film.rank}: {film.names}" for film in films)
            + ". Watch tensors of the same names and sizes on every rank."
        )
    return films


def _filmed(rounds: Sequence[Round], films: Sequence[Film]) -> list[Round]:
    """The part of the rounds that happened while the films ran, numbered from 1."""
    filmed = {(film.rank, index) for film in films for _, index in film.events}

    def on_film(operation) -> bool:
        return (operation.rank, operation.index) in filmed

    kept = [
        Round(
            round_.number,
            [m for m in round_.messages if on_film(m.send) or on_film(m.recv)],
            [c for c in round_.collectives if any(map(on_film, c.calls.values()))],
        )
        for round_ in rounds
    ]
    kept = [round_ for round_ in kept if round_.messages or round_.collectives]
    return [Round(k, round_.messages, round_.collectives) for k, round_ in enumerate(kept, start=1)]


def _arrivals(round_: Round) -> list:
    """The operations of a round that bring something to their rank."""
    return [message.recv for message in round_.messages] + _calls(round_)


def _operations(round_: Round) -> list:
    return [op for m in round_.messages for op in (m.send, m.recv)] + _calls(round_)


def _calls(round_: Round) -> list:
    return [call for collective in round_.collectives for call in collective.calls.values()]


def _after(
    film: Film, k: int, rounds: int, arrival: dict[tuple, int], any_of: dict[tuple, int]
) -> np.ndarray:
    """The state of a rank after round k, when it turns to a later round.

    This is its state after the last arrival of rounds up to k, the waits for sends that follow the arrival
    immediately, and the computation after them.
    """
    if k == rounds:
        return film.states[-1]
    place = 0
    for i, (event, index) in enumerate(film.events):
        if event == "done" and arrival.get((film.rank, index), rounds + 1) <= k:
            place = i + 1
    while place and place < len(film.events):
        event, index = film.events[place]
        if event != "done" or any_of.get((film.rank, index), 0) > k:
            break
        place += 1
    return film.states[place]


def _steps(rounds: Sequence[Round], carried: dict[tuple, np.ndarray], n: int) -> list[Step]:
    return [
        Step([_parcel(m, carried, n) for m in round_.messages], round_.collectives)
        for round_ in rounds
    ]


def _parcel(message: Message, carried: dict[tuple, np.ndarray], n: int) -> Parcel:
    codes = carried.get((message.src, message.send.index))
    if codes is None:
        return Parcel(message.src, message.dst, message.nbytes)
    counts, elements = decode(codes, n)
    return Parcel(message.src, message.dst, message.nbytes, counts, elements)
