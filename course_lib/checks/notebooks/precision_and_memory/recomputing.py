"""In the judge of `checkpoint`: a run, and what its outputs, gradients and random numbers have to be.

All of them came back as tensors, and are compared with those of a step without a checkpoint that the judge
makes itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.rank.notebooks.precision_and_memory.checkpointed import plain_step
from course_lib.checks.rank.notebooks.precision_and_memory.checkpointing import CheckpointReply, CheckpointRun

ROUNDED = 0.03  # of a gradient's largest element: less is off if numbers have 8 or 11 bits
EQUAL = 3e-5  # of a gradient's largest element; sums of several terms may be added in another order
GRAPH = (
    "Backward runs without a graph, so nothing gets a gradient unless you open one with torch.enable_grad()."
)
FIRST = (
    "An autograd.Function whose tensor inputs need no gradient records nothing, so the weights of a "
    "first block get no gradient. Give the Function one more argument that needs a gradient, such as an "
    "empty tensor."
)
RETURNED = (
    "x has no gradient. After detach() an argument needs none, so call requires_grad_() on each argument "
    "that needed one before. Then return the arguments' gradients from backward, in the order of forward's "
    "arguments."
)
DETACHED = (
    "The output was detached, or computed without the Function. Return the result of Function.apply instead."
)
AGAIN = (
    "The second run drew another mask. Keep the generator's state in forward with torch.get_rng_state, "
    "and set it with torch.set_rng_state before the function runs again."
)
STREAM = (
    "The caller's next dropout repeats. When the second run is over, set the state back to what it was "
    "before (torch.random.fork_rng does so)."
)
TWICE = (
    "The weights' gradients are counted twice. torch.autograd.backward already adds them to .grad, so do not "
    "add them to it or return them as well."
)
ARGUMENT_TWICE = (
    "This gradient is counted twice. The argument was not detached, so torch.autograd.backward already went "
    "on to it, and backward returned its gradient as well."
)
DTYPES = (
    "The second run was in another dtype, because backward is outside of autocast. Keep in forward whether "
    "autocast is on, and its dtype, and enter it again in backward."
)
CASTS = (
    "The gradients are right but for rounding, as if the second run was under autocast although forward was "
    "not. Enter autocast with enabled= as it was in forward."
)
CALLERS = (
    "Without a checkpoint, it needs none. Give the Function one more argument that needs a gradient, such as "
    "an empty tensor, and leave the caller's arguments as they are."
)
WEIGHTS = (
    "A function reaches its weights without having them as arguments. Call torch.autograd.backward on the "
    "outputs of the second run, because it goes as far as the weights."
)
OUTPUT, GRADIENT = "out.", "grad."
Tensors = dict[str, Tensor]
Judge = Callable[["Expected", "Reply"], kit.Finding]


@dataclass(frozen=True)
class Expected:
    """A run of the recipe.

    kept, forward, backward: bytes that are enough; unit: bytes of a block's input; flops: of forward.
    """

    name: str
    kind: str
    sizes: Mapping[str, Any]
    seed: int
    kept: int = 0
    forward: int = 0
    backward: int = 0
    unit: int = 1
    blocks: int = 1
    flops: int = 0

    @cached_property
    def tensors(self) -> Tensors:
        """Those of a step without a checkpoint."""
        return plain_step(self.kind, dict(self.sizes), self.seed)

    def outputs(self) -> dict[str, kit.Spec]:
        return {f"{self.name}.{name}": kit.Spec.of(tensor) for name, tensor in self.tensors.items()}

    def instructions(self) -> CheckpointRun:
        expects = {name: kit.Spec.of(tensor).agreed() for name, tensor in self.tensors.items()}
        return CheckpointRun(self.name, self.kind, dict(self.sizes), self.seed, bool(self.enough()), expects)

    def enough(self) -> dict[str, float]:
        bytes_of = {"kept": self.kept, "forward": self.forward, "backward": self.backward}
        return {f"{self.name}.{key}": float(most) for key, most in bytes_of.items() if most}


@dataclass(frozen=True)
class Reply:
    """The reply to a run: the rank's words about it, and its tensors.

    graphless: whether neither arguments nor weights got a gradient in the first run; weightless: whether
    weights got none there; rounded: whether its gradients there are right but for rounding to 16 bits.
    """

    reported: CheckpointReply
    tensors: Tensors
    graphless: bool
    weightless: bool
    rounded: bool

    def off(self, run: Expected, names: Sequence[str]) -> dict[str, float]:
        """The tensors that differ from those of `run` by more than rounding, and by how much."""
        differences = {}
        for name in names:
            actual, wanted = self.tensors[name].double(), run.tensors[name].double()
            if not kit.close(actual, wanted, EQUAL, least=0.0):
                differences[name] = float((actual - wanted).abs().max().nan_to_num(nan=math.inf))
        return differences


# ---- lines


def line_beside(
    block: Expected, title: str, run: Expected, judge: Judge, weight: float = 1.0, aspect: str = "value"
) -> kit.Line:
    """judge: of (what is right, the reply), if no error was raised. block: the run of two blocks."""

    def judge_reply(observed: kit.Observed) -> kit.Finding:
        prefix = f"{run.name}."
        tensors = {name: observed.tensors[0][prefix + name] for name in run.tensors}
        replies = observed.values[0]
        reply = Reply(
            replies[run.name], tensors, graphless(replies), weightless(replies), rounded(block, observed)
        )
        if reply.reported.error is not None:
            return raised(*reply.reported.error)
        if reply.reported.misfit:
            said = "checkpoint does not return what the function returns"
            why = "checkpoint should return the function's value, a tensor or a tuple of as many tensors."
            return kit.wrong(
                kit.Sentence(f"{said}: {reply.reported.misfit}.", f"{said}."), why, cause="misfit"
            )
        if reply.reported.detached:
            why = FIRST if run.kind == "first" and not replies["block"].detached else DETACHED
            return kit.wrong("the output has no graph, so backward cannot begin.", why, cause=why)
        finding = judge(run, reply)
        if finding.ok and run.kind == "first" and reply.reported.changed:
            name = reply.reported.changed[0]
            return kit.wrong(f"the caller's {name} needs a gradient after the call.", CALLERS, cause=CALLERS)
        return finding

    return kit.Line(title, judge_reply, weight, aspect, enough=run.enough() if aspect == "memory" else {})


def graphless(replies: Mapping[str, CheckpointReply]) -> bool:
    """Whether the two blocks, whose input and weights need a gradient, gave none to either."""
    missing = [name for name in replies["block"].missing if name.startswith(GRADIENT)]
    return {of_weight(name) for name in missing} == {True, False}


def weightless(replies: Mapping[str, CheckpointReply]) -> bool:
    """Whether weights of the two blocks got no gradient, although their input needs one."""
    return any(name.startswith(GRADIENT) and of_weight(name) for name in replies["block"].missing)


def raised(error: str = "", text: str = "", where: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("checkpoint", where)
    if "torch.utils.checkpoint is the answer" in text:
        return kit.wrong(text, cause="refused", misses_point=True)
    said = kit.error_sentence("checkpoint", error, text)
    why = ""
    if "does not require grad" in text:
        why = GRAPH
    elif "backward through the graph a second time" in text:
        why = (
            "The arguments still had their graph in the second run. Detach them so that the graph ends there."
        )
    elif "save_for_backward can only save" in text:
        why = "Give save_for_backward only the tensors, and keep the other arguments on ctx."
    elif "object is not callable" in text or "must be Tensor, not tuple" in text:
        why = (
            "Function.apply takes what forward takes after ctx, one by one and in this order, such as "
            "apply(anchor, function, *args)."
        )
    elif "returned an incorrect number of gradients" in text:
        why = "backward must return a gradient or None for each argument of forward except ctx."
    elif "autograd.grad() or when inputs are passed" in text or "appears to not have been used" in text:
        why = (
            "torch.autograd.grad only reaches the tensors you name. Call torch.autograd.backward "
            "instead, which also reaches the weights."
        )
    return kit.wrong(said, kit.at(where) if where else "", why, cause=why or f"{error} {where}")


def rounded(block: Expected, observed: kit.Observed) -> bool:
    """Whether gradients of the two blocks are off, and all of them by no more than rounding."""
    most = 0.0
    for name, wanted in block.tensors.items():
        if name.startswith(GRADIENT):
            off = (observed.tensors[0][f"{block.name}.{name}"].double() - wanted.double()).abs().max()
            most = max(most, float(off / wanted.double().abs().max()))
    return EQUAL < most < ROUNDED


def of_weight(name: str) -> bool:
    """Whether a gradient's name is that of a weight, such as "layer.weight"; arguments have no dot."""
    return "." in name.removeprefix(GRADIENT)


def values(run: Expected, reply: Reply, of: Callable[[str], bool] = bool) -> kit.Finding:
    """The outputs, and the gradients: all, or those `of` a kind."""
    outputs = [name for name in run.tensors if name.startswith(OUTPUT)]
    if off := reply.off(run, outputs):
        return kit.wrong(
            kit.Sentence(
                f"the outputs are off by {words.number(max(off.values()))}.",
                "the outputs differ from the function's outputs.",
            ),
            "Run the function once in forward, with the arguments as they came, and change neither the "
            "random generator nor autocast before it runs.",
        )
    gradients = [name for name in run.tensors if name.startswith(GRADIENT) and of(name)]
    missing = [name.removeprefix(GRADIENT) for name in gradients if name in reply.reported.missing]
    if missing:
        return without_gradient(run, missing, reply)
    off = reply.off(run, gradients)
    return differing(run, reply, off) if off else kit.RIGHT


def of_weights(run: Expected, reply: Reply) -> kit.Finding:
    return values(run, reply, of_weight)


def of_arguments(run: Expected, reply: Reply) -> kit.Finding:
    return values(run, reply, lambda name: not of_weight(name))


def differing(run: Expected, reply: Reply, off: Mapping[str, float]) -> kit.Finding:
    """The gradients `off` are not those without a checkpoint."""
    if run.kind == "block" and GRADIENT + "x" in reply.reported.missing:
        return kit.wrong(RETURNED, cause=RETURNED)
    if reply.rounded and run.kind != "autocast":
        return kit.wrong(CASTS, cause=CASTS) if run.name == "block" else kit.RIGHT
    name = max(off, key=off.__getitem__)
    by = words.number(off[name])
    why = why_off(run, reply, list(off))
    cause = why if why in (TWICE, ARGUMENT_TWICE, WEIGHTS) else ""  # it shows in several runs
    if run.kind == "block" and run.sizes.get("dropout"):
        return kit.wrong(
            kit.Sentence(
                f"gradients differ by {by}.", "gradients differ from the gradients without a checkpoint."
            ),
            why if cause else AGAIN,
            cause=cause,
        )
    said = kit.Sentence(
        f"the gradient of {name.removeprefix(GRADIENT)} differs by {by} from the gradient without a "
        "checkpoint.",
        "a gradient differs from the gradient without a checkpoint.",
    )
    return kit.wrong(said, why, cause=cause)


def without_gradient(run: Expected, missing: Sequence[str], reply: Reply) -> kit.Finding:
    names = words.listing(missing[:3])
    has = "has" if len(missing) == 1 else "have"
    weights = [name for name in missing if "." in name]
    if reply.graphless:
        return kit.wrong(f"{names} {has} no gradient.", GRAPH, cause=GRAPH)
    if run.kind == "first" and weights and not reply.weightless:
        return kit.wrong(f"{names} {has} no gradient.", FIRST, cause=FIRST)
    if len(weights) == len(missing):
        return kit.wrong(f"{names} {has} no gradient.", WEIGHTS, cause=WEIGHTS)
    if weights:
        return kit.wrong(f"{names} {has} no gradient.", GRAPH, cause=GRAPH)
    return kit.wrong(RETURNED, cause=RETURNED)


def share(actual: Tensor, wanted: Tensor) -> float:
    """How much of `wanted` is in `actual`: 2 if it was counted twice."""
    actual, wanted = actual.double(), wanted.double()
    return float((actual * wanted).sum() / (wanted * wanted).sum().clamp(min=1e-300))


def twice(run: Expected, reply: Reply, off: Sequence[str]) -> str:
    """The sentence if the weights' gradients among `off`, or else the arguments', are doubled; or ""."""
    judged = [name for name in off if of_weight(name)] or off
    shares = [share(reply.tensors[name], run.tensors[name]) for name in judged]
    if run.kind == "twice" or any(abs(part - 2) >= 0.01 for part in shares):
        return ""
    return TWICE if of_weight(judged[0]) else ARGUMENT_TWICE


def why_off(run: Expected, reply: Reply, off: Sequence[str]) -> str:
    if why := twice(run, reply, off):
        return why
    if run.kind == "autocast":
        return DTYPES
    if run.kind == "twice" and reply.weightless:
        return WEIGHTS
    if run.kind == "twice":
        return (
            "The block's weights are used twice, so their two gradients have to add up in .grad. Let "
            "torch.autograd.backward add to .grad, and do not set it yourself."
        )
    if run.kind == "outputs":
        return (
            "Backward must begin from the gradients of all outputs. Pass each output that needs a gradient "
            "to torch.autograd.backward, with the gradient that arrived for it."
        )
    return (
        "The second run must compute exactly what the first run did, from the same arguments, random numbers "
        "and autocast. Then backward must go through its graph."
    )


def stream(run: Expected, reply: Reply) -> kit.Finding:
    """The caller's random numbers after forward and after backward."""
    between, after = (torch.equal(reply.tensors[name], run.tensors[name]) for name in ("between", "after"))
    if between and after:
        return kit.RIGHT
    if not between:
        return kit.wrong(
            "after forward, the caller draws other random numbers than without a checkpoint.",
            "Read the generator's state in forward, but do not change it.",
        )
    said = "after backward, the caller draws other random numbers than without a checkpoint."
    if torch.equal(reply.tensors["after"], reply.tensors["between"]):
        return kit.wrong(said, STREAM)
    return kit.wrong(said, "Set the generator back to where it was before the second run.")
