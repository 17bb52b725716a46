"""checkpoint: a function's arguments are kept, and the function runs again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course_lib.checks.kit import (
    ANY,
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    at,
    error_kind,
    essential,
    exercise,
    words,
    wrong,
)
from course_lib.checks.notebooks.precision_and_memory.references import REFERENCES

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.checkpointing:checkpoints"
FLOAT = 4  # bytes
EQUAL = 1e-5  # of a gradient's largest element; sums of several terms may be added in another order
STATE = 16_384  # bytes of the random state and of small objects that a call may keep; the state has 5,056
MINE = "Write it yourself: with torch.autograd.Function, or with saved_tensors_hooks."
REFUSED = {
    f"torch.utils.checkpoint:{name}": f"torch.utils.checkpoint is the answer. {MINE}"
    for name in ("checkpoint", "checkpoint_sequential", "CheckpointFunction")
}
GRAPH = "Backward runs without a graph: open one with torch.enable_grad(), or nothing has a gradient."
FIRST = (
    "An autograd.Function whose tensor inputs need no gradient records nothing, and the weights of a first "
    "block get none. Give it one more argument that needs a gradient, an empty tensor."
)
RETURNED = (
    "no gradient for x: the arguments were detached for the second run, so backward has to return their "
    "gradients, one for each argument."
)
DETACHED = "The output was detached, or computed without the Function: return what Function.apply returns."
AGAIN = (
    "another mask: keep the generator's state in forward, and set it before the function runs again: "
    "torch.get_rng_state, torch.set_rng_state."
)
STREAM = (
    "the next dropout of the caller repeats: set the state back to what it was when the second run is over "
    "(torch.random.fork_rng does so)."
)
TWICE = (
    "The weights' gradients are counted twice: backward() adds them to .grad, and something else does, too."
)
DTYPES = (
    "The second run was in float32: backward is outside of autocast. Keep its state in forward, and open it "
    "again."
)
Judge = Callable[["Expected", Any], Finding]


@dataclass(frozen=True)
class Expected:
    """A run of the recipe.

    kept, peak: bytes that are enough; unit: bytes of a block's input; flops: of forward.
    """

    name: str
    kind: str
    sizes: Mapping[str, Any]
    kept: int = 0
    peak: int = 0
    unit: int = 1
    blocks: int = 1
    flops: int = 0

    @property
    def measured(self) -> bool:
        return self.kept > 0 or self.peak > 0

    def instructions(self, seed: int) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind, "sizes": dict(self.sizes), "seed": seed,
            "measured": self.measured,
        }  # fmt: skip

    def enough(self) -> dict[str, float]:
        bytes_of = {f"{self.name}.kept": self.kept, f"{self.name}.peak": self.peak}
        return {name: float(most) for name, most in bytes_of.items() if most}


def runs(draw: Draw) -> dict[str, Expected]:
    rows, width = 8 * draw.integer(3, 9), 8 * draw.integer(3, 9)
    small = {"rows": rows, "width": width}
    many, wide, blocks = 8 * (29, 31, 37)[draw.integer(0, 3)], 128, 3
    unit = FLOAT * many * wide
    deep, layers = 160, 8
    layer = FLOAT * many * deep
    made = [
        Expected("block", "block", small),
        Expected("dropout", "block", {**small, "dropout": 0.3}),
        Expected("stream", "block", {**small, "dropout": 0.5, "layers": 1}),
        Expected("first", "first", small),
        Expected("arguments", "arguments", small),
        Expected("outputs", "outputs", small),
        Expected("autocast", "autocast", small),
        Expected("nested", "nested", small),
        Expected("twice", "twice", small),
        Expected(
            "chain", "chain", {"rows": many, "width": wide, "blocks": blocks},
            kept=blocks * (unit + STATE), unit=unit, blocks=blocks,
        ),
        Expected(
            "deep", "deep", {"rows": many, "width": deep, "blocks": layers},
            peak=4 * layer + STATE, unit=layer, flops=layers * 2 * many * deep * deep,
        ),
    ]  # fmt: skip
    return {run.name: run for run in made}


# ---- lines


def line(title: str, run: Expected, judge: Judge, weight: float = 1.0, aspect: str = "value") -> Line:
    """judge: of (what is right, the reply), if no error was raised."""

    def judge_reply(observed: Observed) -> Finding:
        reply = observed.values[0][run.name]
        if reply.error is not None:
            return raised(*reply.error)
        if reply.misfit:
            said = "checkpoint returns something else than the function does"
            why = "It returns the function's value: a tensor, or a tuple of as many tensors."
            return wrong(Sentence(f"{said}: {reply.misfit}.", f"{said}."), why, cause="misfit")
        if reply.detached:
            why = FIRST if run.kind == "first" else DETACHED
            return wrong("the output knows no graph: backward cannot begin.", why, cause=why)
        return judge(run, reply)

    return Line(title, judge_reply, weight, aspect, enough=run.enough() if aspect == "memory" else {})


def raised(error: str = "", text: str = "", where: str = "") -> Finding:
    if error == "NotImplementedError":
        return wrong("checkpoint is not written yet.", cause="not written")
    if "torch.utils.checkpoint is the answer" in text:
        return wrong(text, cause="refused", misses_point=True)
    said = Sentence(f"checkpoint raised {error}: {text}", f"checkpoint raised {error_kind(error)}.")
    why = ""
    if "does not require grad" in text:
        why = GRAPH
    elif "backward through the graph a second time" in text:
        why = "The arguments still had their graph in the second run: detach them, so that it ends there."
    elif "returned an incorrect number of gradients" in text:
        why = "backward returns a gradient or None for each argument of forward, ctx left out."
    elif "autograd.grad() or when inputs are passed" in text or "appears to not have been used" in text:
        why = (
            "torch.autograd.grad asks for named tensors alone: call torch.autograd.backward, which reaches "
            "the weights, too."
        )
    return wrong(said, at(where) if where else "", why, cause=why or f"{error} {where}")


def values(run: Expected, reply: Any) -> Finding:
    """The outputs and all gradients."""
    if reply.unlike > 0:
        return wrong(
            Sentence(
                f"the outputs are off by {words.number(reply.unlike)}.", "the outputs are not the function's."
            ),
            "Forward runs the function as it is, in the state that it finds.",
        )
    if reply.missing:
        return missing(run, reply)
    if reply.beside:
        names = words.listing(reply.beside)
        return wrong(
            f"{names} has a gradient, and needs none.", "An argument without requires_grad gets None."
        )
    far = [name for name, off in reply.off.items() if off > EQUAL * reply.size.get(name, 0.0)]
    if not far:
        return RIGHT
    name = max(far, key=reply.off.__getitem__)
    off = words.number(reply.off[name])
    if run.kind == "block" and run.sizes.get("dropout"):
        return wrong(
            Sentence(f"gradients differ by {off}.", "gradients differ from those without a checkpoint."),
            AGAIN,
        )
    said = Sentence(
        f"the gradient of {name} differs by {off} from that without a checkpoint.",
        "a gradient differs from that without a checkpoint.",
    )
    return wrong(said, why_off(run, reply))


def missing(run: Expected, reply: Any) -> Finding:
    names = words.listing(reply.missing[:3])
    weights = [name for name in reply.missing if "." in name]
    if run.kind == "first" and weights:
        return wrong(f"{names} have no gradient.", FIRST, cause=FIRST)
    if len(weights) == len(reply.missing):
        why = (
            "A function reaches its weights without having them as arguments: call torch.autograd.backward "
            "on the outputs of the second run, which goes as far as the weights."
        )
        return wrong(f"{names} have no gradient.", why, cause=why)
    if weights:
        return wrong(f"{names} have no gradient.", GRAPH, cause=GRAPH)
    return wrong(RETURNED, cause=RETURNED)


def why_off(run: Expected, reply: Any) -> str:
    if run.kind == "autocast":
        return DTYPES
    weights = {name: share for name, share in reply.factor.items() if "." in name}
    if run.kind != "twice" and weights and all(abs(share - 2) < 0.01 for share in weights.values()):
        return TWICE
    if run.kind == "twice":
        return (
            "Gradients add up: over two uses of a weight, and onto a .grad that is there. Return what comes, "
            "and set nothing."
        )
    return (
        "The second run computes what the first did, and backward goes through its graph from the gradients "
        "of all outputs."
    )


def stream(run: Expected, reply: Any) -> Finding:
    """The caller's random numbers after forward and after backward."""
    if reply.between and reply.after:
        return RIGHT
    if not reply.between:
        return wrong(
            "after forward the caller draws other random numbers than without a checkpoint.",
            "Read the generator's state in forward, and leave it alone.",
        )
    said = "after backward the caller draws other random numbers than without a checkpoint."
    if reply.repeated:
        return wrong(said, STREAM)
    return wrong(said, "Set the generator back to where it was before the second run.")


def kept(run: Expected, reply: Any) -> Finding:
    if reply.kept <= run.kept:
        return RIGHT
    each = words.number(round(reply.kept / run.blocks / run.unit, 1))
    return wrong(
        Sentence(
            f"a block's forward kept {each} s·b·h, allowed 1: {words.number(reply.kept)} bytes in all.",
            "forward kept more than the blocks' inputs, 1 s·b·h each.",
        ),
        "Run the function without a graph in forward, and keep its arguments alone.",
        cause="kept",
    )


def peak(run: Expected, reply: Any) -> Finding:
    if reply.peak <= run.peak:
        return RIGHT
    many, most = (words.number(round(nbytes / run.unit, 1)) for nbytes in (reply.peak, run.peak))
    return wrong(
        Sentence(
            f"at one moment of forward {many} s·b·h were alive, {most} are enough: the peak is as without.",
            f"at one moment of forward more than {most} s·b·h were alive: the peak is as without.",
        ),
        "Forward built the graph and threw it away: run the function under torch.no_grad().",
        cause="peak",
    )


def work(run: Expected, reply: Any) -> Finding:
    """One forward, and in backward one more beside backward's two."""
    done, most = list(reply.flops), [run.flops, 3 * run.flops]
    if len(done) < 2:
        return wrong("no backward was seen.", cause=ANY)
    for direction, flops, enough in zip(("forward", "backward"), done, most, strict=True):
        if flops > enough:
            times = words.number(flops / run.flops)
            return wrong(
                f"in {direction} the products took {times} times a forward's FLOPs; "
                f"{enough // run.flops} are enough.",
                "The function runs once in forward and once more in backward.",
            )
    return RIGHT


@exercise(
    points=10,
    objects=("checkpoint",),
    references=REFERENCES,
    refused=REFUSED,
    point="keeping the arguments alone, and not what lies inside",
    besides="the gradients that autograd gives without it",
)
def checkpoint(draw: Draw) -> Iterator[Case]:
    """Small functions in which each mistake shows, blocks whose kept bytes count, and a deep function."""
    made = runs(draw)
    lines = [
        line("gradients: two blocks", made["block"], values),
        line("dropout: the same masks again", made["dropout"], values, 1.5),
        line("the caller's random numbers", made["stream"], stream),
        line("a first block: the input needs no gradient", made["first"], values),
        line("arguments of all kinds", made["arguments"], values),
        line("three outputs, one in no loss", made["outputs"], values, 0.5),
        line("autocast around forward", made["autocast"], values),
        line("a checkpoint in a checkpoint", made["nested"], values, 0.5),
        line("a block that is used twice", made["twice"], values, 0.5),
        line("FLOPs: one forward more", made["deep"], work, 1.0, "communication"),
        essential(line("kept: the blocks' inputs", made["chain"], kept, 2.0, "memory")),
        line("the peak of forward", made["deep"], peak, 1.0, "memory"),
    ]
    instructions = {"runs": [run.instructions(draw.integer(0, 1 << 30)) for run in made.values()]}
    yield Case("checkpoint", [RankSide({}, instructions, {})], lines, recipe=RECIPE, alone=True)
