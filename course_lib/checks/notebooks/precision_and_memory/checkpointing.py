"""checkpoint: a function's arguments are kept, and the function runs again in backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.precision_and_memory.recomputing import (
    Expected,
    Judge,
    Reply,
    line_beside,
    of_arguments,
    of_weights,
    stream,
    values,
)
from course_lib.checks.notebooks.precision_and_memory.references import REFERENCES
from course_lib.checks.rank.notebooks.precision_and_memory.checkpointing import CheckpointInstructions

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.checkpointing:checkpoints"
FLOAT = 4  # bytes
BLOCK_PARAMETERS = 13  # of a block, in width², biases and norms included
INSIDE = 18.5  # inputs of a block, s·b·h: all that backward of one block takes
STATE = 16_384  # bytes of the random state and of small objects that a call may keep; the state has 5,056
AGAIN = 2.9  # times the FLOPs of a forward: two in any backward, and one of the second run
MINE = "Write it yourself, with torch.autograd.Function or with saved_tensors_hooks."
REFUSED = {
    f"torch.utils.checkpoint:{name}": f"torch.utils.checkpoint is the answer. {MINE}"
    for name in ("checkpoint", "checkpoint_sequential", "CheckpointFunction")
}
UNCOUNTED = "the bytes of this run were not counted."
INSIDES = (
    "The second run's graph goes on above the block, or it is kept. Detach the arguments so that "
    "backward ends there, and keep no reference to the graph."
)


def runs(draw: kit.Draw) -> dict[str, Expected]:
    rows, width = 8 * draw.integer(3, 9), 8 * draw.integer(3, 9)
    small = {"rows": rows, "width": width}
    many, wide, blocks = 8 * (29, 31, 37)[draw.integer(0, 3)], 128, 3
    unit = FLOAT * many * wide
    deep, layers = 160, 8
    layer = FLOAT * many * deep
    gradients = blocks * FLOAT * BLOCK_PARAMETERS * wide * wide

    def run(name: str, kind: str, sizes: Mapping[str, Any], **more: int) -> Expected:
        return Expected(name, kind, sizes, draw.integer(0, 1 << 30), **more)

    made = [
        run("block", "block", small),
        run("dropout", "block", {**small, "dropout": 0.3}),
        run("stream", "block", {**small, "dropout": 0.5, "layers": 1}),
        run("first", "first", small),
        run("arguments", "arguments", small),
        run("outputs", "outputs", small),
        run("autocast", "autocast", small),
        run("nested", "nested", small),
        run("twice", "twice", small),
        run(
            "chain", "chain", {"rows": many, "width": wide, "blocks": blocks}, unit=unit, blocks=blocks,
            kept=blocks * (unit + STATE), backward=int((blocks + INSIDE) * unit) + gradients,
        ),
        run(
            "deep", "deep", {"rows": many, "width": deep, "blocks": layers},
            kept=2 * layer + STATE, forward=4 * layer + STATE, unit=layer,
            flops=layers * 2 * many * deep * deep,
        ),
    ]  # fmt: skip
    return {run.name: run for run in made}


# ---- memory and work, of a step whose tensors are right


def counted(judge: Judge) -> Judge:
    """`judge`, if the run's own outputs and gradients are right."""

    def judge_counted(run: Expected, reply: Reply) -> kit.Finding:
        finding = values(run, reply)
        return judge(run, reply) if finding.ok else finding

    return judge_counted


def kept(run: Expected, reply: Reply) -> kit.Finding:
    nbytes = reply.reported.kept
    if nbytes is None:
        return kit.wrong(UNCOUNTED, cause=kit.ANY)
    if nbytes <= run.kept:
        return kit.RIGHT
    each = words.number(round(nbytes / run.blocks / run.unit, 1))
    return kit.wrong(
        kit.Sentence(
            f"a block's forward kept {each} s·b·h ({words.number(nbytes)} bytes in all), but only 1 is "
            "allowed.",
            "forward kept more than the blocks' inputs of 1 s·b·h each.",
        ),
        "Run the function without a graph in forward, and keep only its arguments.",
        cause="kept",
    )


def keeps_more(run: Expected, reply: Reply) -> bool:
    return reply.reported.kept is not None and reply.reported.kept > run.kept


def peak_of_forward(run: Expected, reply: Reply) -> kit.Finding:
    if reply.reported.forward is None:
        return kit.wrong(UNCOUNTED, cause=kit.ANY)
    if keeps_more(run, reply):
        return kit.wrong("at one moment of forward, as much was alive as without a checkpoint.", cause="kept")
    if reply.reported.forward <= run.forward:
        return kit.RIGHT
    many, most = (
        words.number(round(nbytes / run.unit, 1)) for nbytes in (reply.reported.forward, run.forward)
    )
    return kit.wrong(
        kit.Sentence(
            f"at one moment of forward, {many} s·b·h were alive although {most} are enough, so the peak "
            "is as high as without a checkpoint.",
            f"at one moment of forward, more than {most} s·b·h were alive, so the peak is as high as "
            "without a checkpoint.",
        ),
        "Forward built the graph and threw it away. Run the function under torch.no_grad() instead.",
        cause="peak",
    )


def peak_of_backward(run: Expected, reply: Reply) -> kit.Finding:
    """At one time the inputs, the inside of one block, and the weights' gradients."""
    if reply.reported.backward is None:
        return kit.wrong(UNCOUNTED, cause=kit.ANY)
    if keeps_more(run, reply):
        return kit.wrong(
            "at one moment of backward, as much was alive as without a checkpoint.", cause="kept"
        )
    if reply.reported.backward <= run.backward:
        return kit.RIGHT
    many, most = (
        words.number(round(nbytes / run.unit, 1)) for nbytes in (reply.reported.backward, run.backward)
    )
    return kit.wrong(
        kit.Sentence(
            f"at one moment of backward, {many} s·b·h were alive although {most} are enough, because the "
            "insides of several blocks existed at the same time.",
            f"at one moment of backward, more than {most} s·b·h were alive, because the insides of "
            "several blocks existed at the same time.",
        ),
        INSIDES,
        cause="peak of backward",
    )


def work(run: Expected, reply: Reply) -> kit.Finding:
    """One forward, and in backward one more beside backward's two, neither more nor less."""
    done, most = list(reply.reported.flops), [run.flops, 3 * run.flops]
    if len(done) < 2:
        return kit.wrong("no backward was seen.", cause=kit.ANY)
    for direction, flops, enough in zip(("forward", "backward"), done, most, strict=True):
        if flops > enough:
            times = words.number(flops / run.flops)
            return kit.wrong(
                f"in {direction}, the products took {times} times the FLOPs of a forward, but need only "
                f"{enough // run.flops}.",
                "The function should run once in forward and once more in backward.",
            )
    if done[1] < AGAIN * run.flops:
        return kit.wrong(
            f"in backward, the products took {words.number(done[1] / run.flops)} times the FLOPs of a "
            "forward instead of 3.",
            "The function did not run again, so its inside was kept, in tensors or in another form.",
            misses_point=True,
        )
    return kit.RIGHT


@kit.exercise(
    points=10,
    objects=("checkpoint",),
    references=REFERENCES,
    refused=REFUSED,
    point="keeping only the arguments instead of everything inside",
    besides="the gradients that autograd gives without it",
)
def checkpoint(draw: kit.Draw) -> Iterator[kit.Case]:
    """Small functions in which each mistake shows, blocks whose kept bytes count, and a deep function."""
    made = runs(draw)
    line = partial(line_beside, made["block"])
    lines = [
        line("two blocks: the input's gradient", made["block"], of_arguments, 0.5),
        line("two blocks: the weights' gradients", made["block"], of_weights, 0.5),
        line("dropout: the same masks again", made["dropout"], values),
        line("the caller's random numbers", made["stream"], stream),
        line("a first block: the input needs no gradient", made["first"], of_weights),
        line("arguments of all kinds", made["arguments"], of_arguments),
        line("three outputs, one in no loss", made["outputs"], of_weights, 0.5),
        line("autocast around forward", made["autocast"], of_weights),
        line("a checkpoint in a checkpoint", made["nested"], of_arguments, 0.5),
        line("a block that is used twice", made["twice"], values, 0.5),
        line("FLOPs: one forward more", made["deep"], counted(work), 1.0, "communication"),
        kit.essential(line("kept: the blocks' inputs", made["chain"], counted(kept), 1.5, "memory")),
        line("the peak of forward", made["deep"], counted(peak_of_forward), 1.0, "memory"),
        kit.essential(line("the peak of backward", made["chain"], counted(peak_of_backward), 1.0, "memory")),
    ]
    instructions = CheckpointInstructions([run.instructions() for run in made.values()])
    outputs = {name: spec for run in made.values() for name, spec in run.outputs().items()}
    yield kit.Case("checkpoint", [kit.RankSide({}, instructions, outputs)], lines, recipe=RECIPE, alone=True)
