"""The three criteria by which every strategy of the course is judged, measured in the ranks.

A good way to distribute training has little *redundant computation*, a small *peak memory* and little
*communication* (lecture 003). `costs` counts the first two in a rank while a job runs there, the ledger
has counted the third, and `scorecard` puts them side by side:

    def job():
        mine = torch.ones(1_000_000)
        with costs(mine) as cost:
            ring_shift(mine)
        return cost

    scorecard({"ring_shift": launch(job, world_size=4)}, unit=4_000_000)

Both counts are exact and the same in every run, because they come from the operations dispatched by
PyTorch, not from clocks or the operating system. They do not include memory that a backend allocates
inside itself.
"""

from __future__ import annotations

import contextlib
import html
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from course_lib.ledger import wording
from course_lib.ledger.ledger import Ledger

# One operation for each element of the result. Matrix products, convolutions and attention are
# counted by PyTorch's own `flop_registry`: 2 m n k for a product. It lacks products with vectors, products
# that work in place (`_product`), and attention on the CPU (`_attention`).
ELEMENTWISE = {"add", "sub", "mul", "div", "maximum", "minimum", "addcmul", "addcdiv", "lerp"}
REDUCTIONS = {"sum", "mean", "amax", "amin"}  # one for each element that goes in
# Products that the registry lacks, and the place of the first factor among their arguments: two operations
# for each of its elements, as often as the second factor has columns.
FIRST_FACTOR = {"mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "addbmm": 1}
ATTENTION = re.compile(r"_(scaled_dot_product_)?(flash|efficient|cudnn)_attention(_for_cpu)?")


@dataclass
class Costs:
    """The costs of one rank: floating-point operations, and bytes of tensors alive at the worst time."""

    flops: int = 0
    peak_bytes: int = 0


class JobRun(Protocol):
    """The result of `launch`: the ranks' results and the ledger."""

    ledger: Ledger

    def __iter__(self) -> Iterator[Any]: ...


@contextlib.contextmanager
def costs(*resident: torch.Tensor) -> Iterator[Costs]:
    """In a rank: count the operations of the block, and the bytes of tensors alive at the same time.

    resident: tensors that exist already and belong to the job, such as its input. The counts are
    in the yielded `Costs`, during and after the block.
    """
    spent = Costs()
    meter = _Meter(spent)
    for tensor in resident:
        meter.note(tensor)
    with meter:
        yield spent


class _Meter(TorchDispatchMode):
    """Sees every operation that PyTorch dispatches in this thread, forward and backward."""

    def __init__(self, spent: Costs):
        super().__init__()
        self.spent, self.alive = spent, 0
        self.known: dict[int, tuple[weakref.ref, int]] = {}  # storages, and their bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's hook: True would import the compiler at the first operation, 2 s in every rank."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.spent.flops += _flops(func, args, kwargs, result)
        self.look_again()
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.note(value)
        return result

    def note(self, tensor: torch.Tensor) -> None:
        """Count the tensor's memory, once for all views of it, until it is given back."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known[key] = weakref.ref(storage), nbytes
        self.alive += nbytes
        self.spent.peak_bytes = max(self.spent.peak_bytes, self.alive)
        weakref.finalize(storage, self._given_back, key).atexit = False

    def look_again(self) -> None:
        """Recount storages that changed their size without an operation, which is how ZeRO-3 frees a row."""
        for key, (reference, before) in list(self.known.items()):
            storage = reference()
            if storage is not None and storage.nbytes() != before:
                self.known[key] = reference, storage.nbytes()
                self.alive += storage.nbytes() - before
        self.spent.peak_bytes = max(self.spent.peak_bytes, self.alive)

    def _given_back(self, key: int) -> None:
        _, nbytes = self.known.pop(key)
        self.alive -= nbytes


def _flops(func: Any, args: tuple, kwargs: dict, result: Any) -> int:
    """The operations of one call."""
    if products := product_flops(func, args, kwargs, result):
        return products
    name = func._overloadpacket.__name__.removesuffix("_")
    if name in REDUCTIONS and args and isinstance(args[0], torch.Tensor):
        return args[0].numel()
    if name in ELEMENTWISE and isinstance(result, torch.Tensor):
        return result.numel()
    return 0


def product_flops(func: Any, args: tuple, kwargs: dict, result: Any) -> int:
    """The operations of a product or of attention, 0 for any other call; `addmm_` counts like `addmm`."""
    name = func._overloadpacket.__name__.removesuffix("_")
    fused = ATTENTION.match(name)
    if fused and fused[1]:
        return _attention(name, args)
    packet = getattr(torch.ops.aten, name, None) if func.namespace == "aten" else None
    formula = flop_registry.get(packet) or flop_registry.get(func._overloadpacket)
    if formula:
        return int(formula(*args, **kwargs, out_val=result))
    if name in FIRST_FACTOR:
        second = args[FIRST_FACTOR[name] + 1]
        columns = second.shape[-1] if name == "addbmm" else 1
        return 2 * args[FIRST_FACTOR[name]].numel() * columns
    return 0


def _attention(name: str, args: tuple) -> int:
    """Two products forward and four backward, whichever kernel computes them, masked scores included.

    The kernels compute the scores a second time in backward. This fifth product belongs to the kernel and not
    to the strategy, so it is left out, and a step has the same FLOPs with every kernel and on every device,
    namely the FLOPs of `facts.transformer_flops`. PyTorch's registry counts five products on a GPU, and does
    not know the CPU's kernel.
    """
    backward = "backward" in name
    query, key, value = args[1:4] if backward else args[:3]
    return (2 if backward else 1) * sdpa_flop_count(query.shape, key.shape, value.shape)


@dataclass(frozen=True)
class Row:
    """One strategy: the busiest rank's bytes and peak, the work of all ranks."""

    strategy: str
    ranks: int
    flops: int
    peak_bytes: int
    bytes_sent: float


HEADINGS = ("strategy", "ranks", "computation", "peak memory per rank", "bytes sent per rank")


class Scorecard:
    """Text when printed, a table in a notebook; `rows` holds the data."""

    def __init__(self, rows: Sequence[Row], unit: float, flops_alone: float):
        self.rows, self.unit, self.flops_alone = list(rows), unit, flops_alone

    def cells(self, row: Row) -> tuple[str, ...]:
        return (
            row.strategy,
            str(row.ranks),
            self._computation(row),
            self._bytes(row.peak_bytes),
            self._bytes(row.bytes_sent),
        )

    def _computation(self, row: Row) -> str:
        if not self.flops_alone:
            return f"{row.flops:,} FLOPs" if row.flops else "none"
        return f"{row.flops / self.flops_alone:.3g} x one process"

    def _bytes(self, nbytes: float) -> str:
        return f"{nbytes / self.unit:.4g} M ({wording.size(nbytes)})"

    def notes(self) -> str:
        least = f" M is {wording.size(self.unit)}. Memory and bytes are those of the rank with the most."
        if not self.flops_alone:
            return "Computation: all ranks together." + least
        alone = wording.exact(self.flops_alone)
        return f"Computation: all ranks together over the {alone} FLOPs of one process." + least

    def __str__(self) -> str:
        lines = [HEADINGS, *(self.cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        texts.insert(1, "-" * max(map(len, texts)))
        return "\n".join([*texts, self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def line(tag: str, cells: Sequence[str]) -> str:
            made = (f'<{tag} style="text-align:left">{html.escape(c)}</{tag}>' for c in cells)
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(line("td", self.cells(row)) for row in self.rows)
        head = line("th", HEADINGS)
        table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        return f"<div>{table}<p><small>{html.escape(self.notes())}</small></p></div>"


def scorecard(runs: Mapping[str, JobRun], *, unit: float, flops_alone: float = 0) -> Scorecard:
    """The three criteria for several runs whose ranks each returned their `costs`.

    runs: by the strategy's name, the result of `launch`. unit: bytes of the job's tensor, called M.
    flops_alone: FLOPs one process needs for the same job; 0 if the job computes nothing.
    ValueError if a rank returned something else.
    """
    return Scorecard([_row(name, run) for name, run in runs.items()], unit, flops_alone)


def _row(name: str, run: JobRun) -> Row:
    spent = list(run)
    for rank, cost in enumerate(spent):
        if not isinstance(cost, Costs):
            raise ValueError(
                f"rank {rank} of {name!r} returned {cost!r:.60}; the job must return what `costs` "
                "yields: `with costs(mine) as cost: ...` and `return cost`."
            )
    ledger = run.ledger
    return Row(
        strategy=name,
        ranks=ledger.world_size,
        flops=sum(cost.flops for cost in spent),
        peak_bytes=max(cost.peak_bytes for cost in spent),
        bytes_sent=max(ledger.bytes_sent(rank) for rank in range(ledger.world_size)),
    )
