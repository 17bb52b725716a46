"""The kinds: a rank can hold a copy, a part or a term of a tensor, along one axis of the mesh.

    R        a copy: replicated, the tensor of one process
    S(dim)   a part: sharded, the ranks' tensors one after the other along `dim`
    P        a term: partial, the sum of the ranks' tensors is the tensor of one process
    V        it varies from rank to rank, and no more is known

The letters are taken from DTensor's placements (Replicate, Shard, Partial), and V is varying. M, a term of a
maximum, is used only inside the library.
"""

from __future__ import annotations

from dataclasses import dataclass

WORDS = {
    "R": "a copy",
    "S": "a part along dimension {}",
    "P": "a term of a sum",
    "V": "different on each rank",
    "M": "a term of a maximum",
}


@dataclass(frozen=True)
class Kind:
    """A letter, and for S the dimension that is cut."""

    letter: str
    dim: int | None = None

    @property
    def words(self) -> str:
        return WORDS[self.letter].format(self.dim)

    def of(self, dims: int) -> Kind:
        """The kind for a tensor with this many dimensions, so S(-1) becomes S(dims - 1)."""
        if self.dim is None:
            return self
        if not -dims <= self.dim < dims:
            raise ValueError(f"S({self.dim}) needs that dimension, and the tensor has {dims}")
        return Kind(self.letter, self.dim % dims)

    def __repr__(self) -> str:
        return self.letter if self.dim is None else f"{self.letter}({self.dim})"


R, P, V, M = Kind("R"), Kind("P"), Kind("V"), Kind("M")


def S(dim: int) -> Kind:
    """A part along `dim`, which can be negative."""
    return Kind("S", dim)


class NotTyped(RuntimeError):
    """The program does something that axis types do not follow. The message says what to do."""


def checked(kind: object) -> Kind:
    if not isinstance(kind, Kind):
        raise TypeError(f"a type is R, P, V or S(dim), such as S(0), and not {kind!r}")
    return kind
