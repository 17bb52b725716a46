"""Axis types: is this tensor a copy, a part or a term of a sum, and where does a line mix them up?

types.py        AxisTypes: follows a program, forward and backward. Begin here
trials.py       an operation tried on two imaginary ranks
storages.py     types that follow the memory: views, and parts that are written in place
kinds.py        R, S(dim), P, V, and the sentences about them
collectives.py  how a collective changes kinds
trusted.py      functions that are believed, by their signature
silent.py       process groups whose other ranks answer immediately
lines.py        the line of the program, also in backward

    with axis_types(tp=2) as types:
        types.set(x, tp=R)
        types.set(w1, tp=S(0))
        types.set(w2, tp=S(1))
        y = block(x, w1, w2)
        types.expect(y, tp=R)
    print(types)

The program runs once, in this process, as rank 0 of a mesh that has no other ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .kinds import Kind, NotTyped, P, R, S, V
    from .lines import Finding
    from .types import AxisTypes, axis_types

__getattr__, __dir__, __all__ = exports(__name__)
