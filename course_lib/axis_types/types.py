"""axis_types: follow a program, forward and backward, and name the line that mixes copies, parts and terms.

A tensor of a parallel program has a meaning that PyTorch does not check. On each axis of the mesh, it is a
copy, a part or a term of a sum (see kinds.py). A sum that is missing, or made twice, changes no shape.
`AxisTypes` sees each operation dispatched by PyTorch, even in backward, since gradients are tensors like any
others. It gives the results the kinds found by a trial on two imaginary ranks (see trials.py), so no table of
rules is needed.

Only the first mistake is kept, and then the types are no longer followed, because after a mistake everything
is wrong.

Limits. The program runs as rank 0, so the types do not see numbers that another rank would have. If a program
takes its own part of a copy, tell the types with `types.set`. If an index depends on the rank, as in a loss
over a cut vocabulary, they stop with a sentence, and `types.trusted` gives the function a signature. A mean
over a part is not a term of a sum, so divide a sum by the count of all ranks. Pipelines, ZeRO and FSDP,
dropout and exchanges between two ranks are refused.

Each kind of operation is tried once, which costs some 10 to 100 microseconds. Use tiny tensors.

Source: the types (replicated, partial, sharded, varying, one for each axis of a mesh) come from
meta-pytorch's spmd_types, which defines a rule for each operation.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.axis_types import lines
from course_lib.axis_types.collectives import Collectives
from course_lib.axis_types.kinds import Kind, NotTyped, P, R, V, checked
from course_lib.axis_types.silent import silent_world
from course_lib.axis_types.storages import Storages, key
from course_lib.axis_types.trials import Mistake, Unclear, plain, tensors, tried
from course_lib.axis_types.trusted import Kinds, believed, forward_replaced

AXES = ("dp", "tp")
COPIES = ("clone", "_to_copy", "lift_fresh_copy", "contiguous")
RANDOM = ("native_dropout", "bernoulli", "bernoulli_", "_fused_dropout", "rrelu_with_noise")
LIKE = ("like", "new_", "zeros", "ones", "empty", "full", "arange", "scalar_tensor")


def axis_types(**sizes: int) -> AxisTypes:
    """A context in which a program is rank 0 of a mesh and its tensors have types.

    sizes: of dp and tp, outermost axis first, such as dp=2, tp=2; at least 2 each.
    Raises ValueError for another axis or size.
    """
    if not sizes:
        raise ValueError("give the axes, such as axis_types(tp=2)")
    for axis, size in sizes.items():
        if axis not in AXES:
            raise ValueError(
                f"axis types follow dp and tp, not {axis}: the ranks of a pipeline run different programs, "
                "and rings and experts exchange tensors between two ranks"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 2:
            raise ValueError(f"{axis}={size!r}: an axis has at least two ranks")
    return AxisTypes(sizes)


class AxisTypes(Collectives, TorchDispatchMode):
    """The types of a program's tensors, and its first mistake.

    finding: the first mistake, a `Finding`, or None. operations, trials: how many were seen and tried.
    """

    def __init__(self, sizes: Mapping[str, int]):
        super().__init__()
        self.sizes, self.axes, self.storages = dict(sizes), tuple(sizes), Storages()
        self.finding: lines.Finding | None = None
        self.operations, self.trials, self.hidden = 0, 0, 0
        self.known: dict[tuple, list[Kind] | Mistake | Unclear] = {}
        self.groups: dict[str, dist.ProcessGroup] = {}
        self.open, self.home = contextlib.ExitStack(), ("", "")

    def __enter__(self) -> AxisTypes:
        asking = sys._getframe(1).f_code
        self.home = asking.co_filename, asking.co_name
        with contextlib.ExitStack() as stack:
            stack.enter_context(silent_world(self.sizes, self))
            stack.enter_context(warnings.catch_warnings())
            for text in ("Anomaly Detection has been enabled", "Error detected in"):
                warnings.filterwarnings("ignore", text, UserWarning)
            stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            super().__enter__()
            stack.push(super().__exit__)
            self.open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.open.__exit__(*error)

    @property
    def looking(self) -> bool:
        """Whether types are followed, which they are not after the first mistake or in a trusted function."""
        return not self.hidden and self.finding is None

    # ---- for programs

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of an axis, to be passed to a program as `group`. The world has all axes."""
        if axis not in self.sizes:
            raise ValueError(f"there are the axes {', '.join(self.axes)}, and not {axis!r}")
        if axis not in self.groups:
            stride = 1
            for inner in reversed(self.axes[self.axes.index(axis) + 1 :]):
                stride *= self.sizes[inner]
            ranks = [stride * place for place in range(self.sizes[axis])]
            self.groups[axis] = cast(dist.ProcessGroup, dist.new_group(ranks))
        return self.groups[axis]

    def set(self, x: Tensor, **kinds: Kind) -> Tensor:
        """Give `x` these kinds; on an axis that is not named it keeps its kind, at first a copy."""
        for axis, kind in self.named(kinds):
            self.storages.set(x, axis, kind.of(x.dim()))
        return x

    def of(self, x: Tensor) -> dict[str, Kind]:
        """The kind of `x` on each axis."""
        return {axis: self.storages.of(x, axis) for axis in self.axes}

    def expect(self, x: Tensor, name: str = "the tensor", **kinds: Kind) -> None:
        """Report a finding if `x` has other kinds than these."""
        for axis, kind in self.named(kinds) if self.looking else ():
            wanted, has = kind.of(x.dim()), self.storages.of(x, axis)
            if has != wanted:
                missing = f" A sum over {axis} is missing." if (has, wanted) == (P, R) else ""
                self.report(
                    f"{name} should be {wanted.words} on {axis}, and is {has.words}.{missing}"
                )

    def trusted(self, function: Callable, *, out: Kinds, **arguments: Kinds) -> Callable:
        """`function` with a signature that is believed, without looking inside.

            loss_of = types.trusted(cross_entropy, logits={"tp": S(-1)}, out={"tp": R})

        out: the kinds of its result, a tensor. arguments: the required kinds of its tensors, by their names.
        If the function is a module, its forward is replaced until the context ends.
        """
        for kinds in (out, *arguments.values()):
            list(self.named(kinds))
        name = getattr(function, "__name__", type(function).__name__)
        if not isinstance(function, nn.Module):
            return believed(self, function, name, arguments, out)
        own, parameters = function.forward, tuple(function.parameters())
        forward = believed(self, own, name, arguments, out, parameters)
        self.open.enter_context(forward_replaced(function, forward))
        return function

    def named(self, kinds: Mapping[str, Kind]) -> Iterator[tuple[str, Kind]]:
        for axis, kind in kinds.items():
            if axis not in self.sizes:
                raise ValueError(f"there are the axes {', '.join(self.axes)}, and not {axis!r}")
            yield axis, checked(kind)

    def report(self, sentence: str, backward: str = "") -> None:
        """Keep the sentence if it is the first. backward: the one for a line in backward, if it differs."""
        if self.finding is None:
            self.finding = lines.finding(sentence, backward or sentence, self.home)

    def __repr__(self) -> str:
        over = ", ".join(f"{axis} {size}" for axis, size in self.sizes.items())
        if self.finding is not None:
            return str(self.finding)
        tried = f"{self.trials} of them were tried"
        return f"No mistake found in {self.operations} operations on {over}. {tried}."

    # ---- for PyTorch, which dispatches operations

    @contextlib.contextmanager
    def not_looking(self) -> Iterator[None]:
        self.hidden += 1
        try:
            yield
        finally:
            self.hidden -= 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.looking:
            return func(*args, **kwargs)
        self.operations += 1
        call, inputs = (func, args, kwargs), tensors((args, kwargs))
        name = known_name(func)
        kinds = {axis: [self.storages.of(x, axis) for x in inputs] for axis in self.axes}
        result = func(*args, **kwargs)
        outputs = tensors(result)
        if name == "copy_":
            self.storages.copy(args[1], args[0], self.axes)
        elif name in COPIES:
            self.storages.copy(inputs[0], outputs[0], self.axes)
        elif not is_view(func, inputs, outputs):
            for axis in self.axes:
                inferred = self.inferred(call, kinds[axis], axis, len(outputs))
                for x, kind in zip(outputs, inferred, strict=True):
                    if x.numel():
                        self.storages.set(x, axis, kind)
        return result

    def inferred(self, call: tuple, kinds: list[Kind], axis: str, count: int) -> list[Kind]:
        """The kinds of an operation's results on an axis."""
        name = call[0]._overloadpacket.__name__
        if all(kind == R for kind in kinds) or any(word in name for word in LIKE):
            return [R] * count
        if moved := moved_kind(name, call[1], kinds):
            return [moved] * count
        if V in kinds:
            return [V] * count
        rest = [x for x in tree_leaves(call[1:]) if not isinstance(x, Tensor)]
        shapes = [(x.shape, x.dtype) for x in tensors(call[1:])]
        signature = (call[0], str(rest), tuple(kinds), tuple(shapes))
        if signature not in self.known:
            self.trials += 1
            try:
                with torch.no_grad():
                    self.known[signature] = tried(call, kinds)
            except (Mistake, Unclear) as error:
                self.known[signature] = error
        known = self.known[signature]
        if isinstance(known, Unclear):
            raise NotTyped(
                f"{plain(call)} looks up whole numbers in a part on {axis}. Which of them belong to this "
                "rank depends on numbers of its own, which the types do not see. Give the function around it "
                "a signature: types.trusted(function, ...)."
            )
        if isinstance(known, Mistake):
            self.report(known.sentence.format(axis=axis), known.backward.format(axis=axis))
            return [V] * count
        return known


def known_name(func: Any) -> str:
    """The operation's name; raises NotTyped if two ranks cannot be imagined for it."""
    name = func._overloadpacket.__name__
    if func.namespace in ("_c10d_functional", "c10d_functional", "c10d"):
        raise NotTyped(
            f"axis types do not follow functional collectives ({name}): use those of torch.distributed"
        )
    if name in RANDOM:
        raise NotTyped(
            f"axis types do not follow {name}: whether two ranks draw the same numbers depends on their "
            "generators. Set dropout to 0."
        )
    return name


def is_view(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Does the operation only look at memory that has a type already?"""
    if func._schema.is_mutable:
        return False
    known = {key(x) for x in inputs}
    return all(key(x) in known for x in outputs)


def moved_kind(name: str, args: Sequence[Any], kinds: list[Kind]) -> Kind | None:
    """The kind after an operation that only moves a rank's own elements, even along the cut dimension.

    Three matrices stored as one (query, key and value) are cut three times along one dimension. A rank that
    slices and joins along it has parts of several tensors.
    """
    if name == "slice_backward":
        return kinds[0]
    if name == "select_backward":
        dim = args[2] % len(args[1])
        cut = kinds[0].dim
        return kinds[0] if cut is None else Kind("S", cut + (cut >= dim))
    if name == "cat" and kinds[0].dim is not None and set(kinds) == {kinds[0]}:
        dim = args[1] if len(args) > 1 else 0
        return kinds[0] if dim % args[0][0].dim() == kinds[0].dim else None
    return None
