"""Watch the contents of tensors and messages while an algorithm runs.

The values encode where they come from. `contribution(4)` gives rank r four integers that say "rank r,
element 0" to "rank r, element 3". However they are copied and added on the way, any sum of them can be
decoded. It shows whose contributions it holds, how often, and of which element. In a rank:

    tensor = contribution(4)
    with watch(tensor) as film:          # or watch(input=tensor, output=other)
        ring_all_reduce(tensor)
    return film

The algorithm is not changed. A film is small, and the launching process puts the ranks' films together
(`course_lib.ledger.steps`, shown by `stepper`).

The code is a number in base 2^DIGIT above POSITION bits. Digit r counts rank r's contributions, and the
low bits add up the element numbers. Their sum divided by the number of contributions is the element,
provided that all contributions are of the same element.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from course_lib.ledger.recorder import observe

DIGIT = 3  # bits that count one rank's contributions: up to 7
MOST_RANKS = 16
POSITION = 63 - DIGIT * MOST_RANKS  # bits for the sum of element numbers
MOST_ELEMENTS = 256
NOWHERE = -1  # the element of an empty place, or of a sum of different elements


def contribution(numel: int, first: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """This rank's coded contribution: int64, (numel,), elements `first` to `first + numel - 1`.

    A sum of contributions can be decoded if it holds each rank at most 7 times.
    """
    if first + numel > MOST_ELEMENTS or dist.get_world_size() > MOST_RANKS:
        raise ValueError(
            f"contributions are told apart up to {MOST_RANKS} ranks and {MOST_ELEMENTS} elements, "
            f"but this is element {first + numel - 1} of {dist.get_world_size()} ranks. "
            "Watch a smaller run."
        )
    position = torch.arange(first, first + numel, dtype=torch.int64)
    return (position + (1 << POSITION + DIGIT * dist.get_rank())).to(device)


def decode(codes: np.ndarray, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """(counts, elements) of coded values of any shape.

    counts: uint8, codes.shape + (world_size,): how often each rank's contribution is in the value.
    elements: int64, codes.shape: of which element, or NOWHERE.
    """
    codes = np.asarray(codes, dtype=np.int64)
    digits = codes[..., None] >> (POSITION + DIGIT * np.arange(world_size))
    counts = (digits & ((1 << DIGIT) - 1)).astype(np.uint8)
    number = counts.sum(axis=-1, dtype=np.int64)
    total = codes & ((1 << POSITION) - 1)
    known = (number > 0) & (total % np.maximum(number, 1) == 0)
    return counts, np.where(known, total // np.maximum(number, 1), NOWHERE)


@dataclass
class Film:
    """The contents of one rank's watched tensors and of its messages, operation by operation.

    names: the watched tensors' names with their number of elements.
    events: ("issue" or "done", index of the operation in the rank's ledger), in order.
    states: int64 codes, one array of all watched elements for each event, as they were just before
        it (without messages for which the rank had not yet waited), and one for the end.
    carried: int64 codes held by each message, by the index of its send.
    """

    rank: int
    world_size: int
    names: list[tuple[str, int]]
    events: list[tuple[str, int]] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    carried: dict[int, np.ndarray] = field(default_factory=dict)


@contextlib.contextmanager
def watch(*tensors: torch.Tensor, **named: torch.Tensor) -> Iterator[Film]:
    """In a rank: film tensors of coded integers (see `contribution`) while the block runs.

    An output that is still empty should hold zeros. Every rank watches tensors of the same sizes.
    """
    watched = {f"{'tensor'}{i or ''}": tensor for i, tensor in enumerate(tensors)} | named
    for name, tensor in watched.items():
        if tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(
                f"watch() reads contiguous tensors of coded int64 values, but {name} is "
                f"{str(tensor.dtype)[6:]} with strides {tensor.stride()}. "
                "Make it with contribution()."
            )
    names = [(name, tensor.numel()) for name, tensor in watched.items()]
    film = Film(dist.get_rank(), dist.get_world_size(), names)
    camera = _Camera(film, list(watched.values()))
    with observe(camera.shoot):
        yield film
    camera.under_way.clear()
    film.states.append(camera.state())


class _Camera:
    """Fills a film.

    A receive under way can write into its tensor at any moment. In the film, this tensor keeps its old values
    until the receive is done, so that a film is the same in every run.
    """

    def __init__(self, film: Film, tensors: list[torch.Tensor]):
        self.film, self.tensors = film, tensors
        starts = [np.int64(t.data_ptr()) + t.element_size() * np.arange(t.numel()) for t in tensors]
        self.addresses = np.concatenate(starts) if starts else np.empty(0, np.int64)
        self.under_way: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def shoot(self, event: str, index: int, tensor: torch.Tensor | None = None) -> None:
        film = self.film
        state = self.state()
        film.events.append((event, index))
        film.states.append(state)
        if event == "done":
            self.under_way.pop(index, None)
        elif tensor is not None:
            self._note(index, tensor, state)

    def _note(self, index: int, tensor: torch.Tensor, state: np.ndarray) -> None:
        """Remember the contents of a send, and the memory into which a receive can write."""
        if tensor.dtype == torch.int64:
            self.film.carried[index] = _values(tensor)
        start = tensor.data_ptr()
        inside = (self.addresses >= start) & (
            self.addresses < start + tensor.numel() * tensor.element_size()
        )
        if inside.any():
            self.under_way[index] = (inside, state[inside])

    def state(self) -> np.ndarray:
        parts = [_values(tensor) for tensor in self.tensors]
        state = np.concatenate(parts) if parts else np.empty(0, np.int64)
        for inside, old in self.under_way.values():
            state[inside] = old
        return state


def _values(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().reshape(-1).cpu().numpy().copy()
