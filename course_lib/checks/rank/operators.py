"""In the rank: operators of PyTorch's that would do an exercise's work fail while it is checked."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

_Library = torch.library.Library
PREFIX = "aten::"
# Asked for once, by the process that forks the ranks: it takes milliseconds.
KNOWN = [
    name.removeprefix(PREFIX) for name in torch._C._dispatch_get_all_op_names() if name.startswith(PREFIX)
]
SILENTLY = (  # PyTorch 2.6 warns of every kernel that is replaced
    {"allow_override": True} if "allow_override" in inspect.signature(_Library.impl).parameters else {}
)


@contextmanager
def without_operators(refused: Iterable[Iterable[str]]) -> Iterator[None]:
    """Within, operators of PyTorch's raise RuntimeError, called from any place, by any name, in any thread.

    refused: (part of the operators' names, the error's text). Their kernels are replaced, for the CPU and
    for a GPU; afterwards they are as they were.
    """
    library = _Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, says in named(refused).items():
                for key in ("CPU", "CUDA"):
                    library.impl(name, refusing(says), key, **SILENTLY)
        yield
    finally:  # ranks are kept under NCCL, for other exercises
        library._destroy()


def named(refused: Iterable[Iterable[str]]) -> dict[str, str]:
    """{operator's name: the error's text}: each name stands there once, however many parts are in it."""
    texts: dict[str, str] = {}
    for part, says in refused:
        texts |= {name: says for name in KNOWN if part in name and name not in texts}
    return texts


def refusing(says: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(says)

    return refuse
