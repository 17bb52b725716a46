"""In the rank: the most bytes of tensors that were alive at any moment, and how much is multiplied.

Both are seen at each operation of PyTorch's. An operation's own buffers are not seen; its results are,
however briefly any part of the code keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.checks.rank import frozen
from course_lib.checks.rank.counting import dense_parts
from course_lib.checks.rank.memory import Patience

_numel = torch.Tensor.numel
_Ref = StorageWeakRef
# Products of matrices, and the place of the first factor among their arguments.
FIRST_FACTOR = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
FIRST_FACTOR |= {f"{name}_": at for name, at in FIRST_FACTOR.items() if name.startswith(("add", "badd"))}


class Peak(TorchDispatchMode):
    """Within, `highest` is the most bytes alive so far that operations have made, backward's as well.

    apart_from: tensors that were there before. flops: of products of matrices, two for each multiplication.
    Neither counts computations by NumPy or in another thread, where no operation is seen: the process is
    also measured from outside. name: under which `patience` knows how many bytes are enough.
    """

    flops = 0

    def __init__(self, apart_from: Iterable[torch.Tensor], patience: Patience | None = None, name: str = ""):
        super().__init__()
        self.patience, self.name = patience or Patience({}), name
        self.apart = {frozen.untyped_storage(tensor).data_ptr() for tensor in apart_from}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.at_most = self.highest = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: it would import PyTorch's compiler at the first operation, a second or two in every rank."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for result in made if isinstance(made, list | tuple) else [made]:
            if isinstance(result, frozen.Tensor):
                self.add(result)
        kind = func._schema.name.partition("::")[2]
        if kind in FIRST_FACTOR and isinstance(made, frozen.Tensor):
            self.flops += 2 * _numel(made) * args[FIRST_FACTOR[kind]].shape[-1]
        return made

    def add(self, tensor: torch.Tensor) -> None:
        for part in dense_parts(tensor):
            self.add_dense(part)

    def add_dense(self, tensor: torch.Tensor) -> None:
        storage = frozen.untyped_storage(tensor)
        if storage.data_ptr() in self.apart:
            return
        ref = _Ref(storage)  # while it is here, no other piece gets its number
        known = self.alive.get(ref.cdata)
        self.alive[ref.cdata] = ref, storage.nbytes()
        self.at_most += storage.nbytes() - (known[1] if known else 0)
        if self.at_most > self.highest:  # some of the counted tensors may be gone
            self.at_most = self.patience.measured(self.name, self.still_alive)
            self.highest = max(self.highest, self.at_most)

    def still_alive(self) -> int:
        self.alive = {key: piece for key, piece in self.alive.items() if not piece[0].expired()}
        return sum(nbytes for _, nbytes in self.alive.values())

    def start_again(self, name: str = "") -> None:
        """Forget the highest so far, and the products; tensors that are alive still count."""
        self.name = name
        self.highest = self.flops = 0
