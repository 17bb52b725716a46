"""Units that a prefetched module leaves whole, and shards that its parameters() does not give.

Such a unit is not gathered before it is used again, so that a rank computes with old weights after the next
step. A shard that is not given is never trained. Both show in values, too, and are the cause that is told.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.zero.runs import FROZEN, MIXED, START, carried

LAST_STEPS = (
    "Call every function that reduce() has returned, before the next reduce() or at the end of backward. "
    "Otherwise a unit's gradient comes a step late, or never."
)
OLD_WEIGHTS = "A unit that stays whole is not gathered again, and keeps its old weights after the next step."
NO_GRAPH = (
    "If the output of the module does not require a gradient, no backward comes, so free all units "
    "when its forward is over, including the root."
)
KEPT_LAST = "Keep the last block only if its output requires a gradient, because otherwise no backward comes."
AFTER_BACKWARD = "Free a unit when its gradients are ready, and the root when backward is over."
COPIES = (
    "It gives copies, but reduce() adds the mean to the gradient of unit.shard, so return unit.shard "
    "itself, the same tensor at every call."
)
NO_GRAPH_BEHIND = "The output of forward has lost its graph. Was it detached, or made under no_grad()?"
UNREACHED = f"{kit.ORDER} no graph"  # the cause of a backward that reached no block
NOT_REDUCED = (
    "Call reduce() of every unit whose gradients are ready, because it adds their mean to unit.shard.grad."
)
OTHER_WEIGHTS = (  # Unit has given all ranks the same shards, and no optimizer has the frozen ones
    "A module computed with other weights than the shards hold. Call wait() for a unit before its "
    "weights are used, also for the root, and let every rank ask for the units in the same order."
)
AFTER_ERROR = "Free all units when forward raises an error, and raise the error again (try, except)."


def evaluations(training: Training) -> int:
    """How many forwards without a graph a run has: of those that give values, and those between."""
    steps = len(training.steps[0])
    values = steps if "params" in training.tell else "end" in training.tell
    return ("start" in training.tell) + values + len(training.more.get("evaluating", ()))


def stayed(observed: kit.Observed, training: Training) -> kit.Finding | None:
    """The finding if a unit was whole after a backward, or a forward without one; None if none was."""
    depth, failures = len(training.built().blocks), 2 * len(training.more.get("raising", ()))
    for rank in training_runs.members(observed):
        reply = observed.values[rank]
        done = (len(reply.left), len(reply.failed), len(reply.on_their_way), len(reply.ended))
        if done != (evaluations(training), failures, failures, len(training.steps[0])):
            return kit.wrong(f"rank {rank} did not run all forwards that were asked for.", cause="forwards")
        if whole := {k for unit in reply.ended for k in unit}:
            said = f"after a backward {named(whole, depth)} whole on rank {rank}."
            return kit.wrong(said, AFTER_BACKWARD, cause="left after backward")
        if whole := left_by_errors(observed, training, rank):
            said = f"after a forward that raised an error {named(whole, depth)} whole on rank {rank}."
            return kit.wrong(said, AFTER_ERROR, cause="left after an error")
        if reply.swallowed:
            return kit.wrong(
                f"a block raised an error in forward, and the module's forward did not, on rank {rank}.",
                AFTER_ERROR,
                cause="swallowed",
            )
        if whole := {k for unit in reply.left for k in unit}:
            said = f"after a forward without a graph {named(whole, depth)} whole on rank {rank}."
            why = KEPT_LAST if whole == {depth - 1} else NO_GRAPH
            return kit.wrong(said, why, cause="left")
    return None


def left_by_errors(observed: kit.Observed, training: Training, rank: int) -> set[int]:
    """Units that were whole after a forward that raised an error, and more than the gathers in flight have.

    A gather in flight may end at the next forward, since a wait for it after an error might never return.
    """
    model, reply, left = training.built(), observed.values[rank], set[int]()
    sizes = [nbytes(block, training) for block in model.blocks]
    sizes.append(nbytes(model, training) - sum(sizes))  # the root's
    for units, places in zip(reply.failed, reply.on_their_way, strict=True):
        coming = [operation for at, operation in enumerate(observed.operations[rank]) if at in places]
        in_flight = sum(operation.nbytes for operation in coming if operation.op == "all_gather")
        left |= {k for k in units if sum(sizes[unit] for unit in units) > in_flight}
    return left


def nbytes(module: nn.Module, training: Training) -> int:
    return sum(p.numel() for p in module.parameters()) * training.dtype.itemsize


def named(whole: set[int], depth: int) -> str:
    """Words for the units that were whole, of which number `depth` is the root."""
    blocks = sorted(whole - {depth})
    units = ([words.which("block", blocks)] if blocks else []) + (["the root"] if depth in whole else [])
    return f"{' and '.join(units)} {'was' if len(whole) == 1 else 'were'}"


def not_shards(observed: kit.Observed) -> kit.Finding | None:
    """The finding if parameters() gives the model's own tensors; None if it gives others."""
    for rank in training_runs.members(observed):
        if own := observed.values[rank].own:
            return kit.wrong(
                f"parameters() gives {words.counted(own, 'tensor')} of the model itself on rank "
                f"{rank}, instead of the shards.",
                "The optimizer steps on the shards, so return unit.shard of every unit.",
                cause="not shards",
            )
    return None


def twice(observed: kit.Observed) -> kit.Finding | None:
    """The finding if parameters() gives a tensor more than once; None if it does not."""
    for rank in training_runs.members(observed):
        if more := observed.values[rank].twice:
            return kit.wrong(
                f"parameters() gives {words.counted(more, 'tensor')} more than once on rank {rank}.",
                "Give the shard of each unit once, because a block that is in the list twice has one unit.",
                cause="twice",
            )
    return None


def copies(observed: kit.Observed) -> kit.Finding:
    """Wrong if parameters() gives tensors without a gradient after a backward."""
    for rank in training_runs.members(observed):
        if observed.values[rank].with_gradient:
            continue
        said = f"no tensor of parameters() had a gradient after the first backward on rank {rank}"
        if any(operation.op == "reduce_scatter" for operation in observed.operations[rank]):
            return kit.wrong(f"{said}, although gradients were reduced.", COPIES, cause="copies")
        if not any(mark.kind == "B" for step in observed.values[rank].marks for mark in step):
            return kit.wrong(f"backward reached no block on rank {rank}.", NO_GRAPH_BEHIND, cause=UNREACHED)
        return kit.wrong(f"{said}, and none was reduced.", NOT_REDUCED, cause="not reduced")
    return kit.RIGHT


def shards_line(training: Training, title: str, weight: float) -> kit.Line:
    """The ranks' parameters() have together a part of every parameter, frozen ones too."""
    whole = sum(p.numel() for p in training.built().parameters())

    def judge(observed: kit.Observed) -> kit.Finding:
        if finding := not_shards(observed) or twice(observed):
            return finding
        got = sum(observed.values[rank].elements for rank in training_runs.members(observed))
        if got >= whole:
            return kit.RIGHT
        return kit.wrong(
            f"parameters() has {words.number(got)} elements on all ranks together; the model has "
            f"{words.number(whole)}.",
            "It must give the shards of all units, including the root and frozen parameters.",
            cause="shards",
        )

    return kit.Line(title, judge, weight)


def with_causes(line: kit.Line, training: Training) -> kit.Line:
    """The line on values. If these are not a usual mistake's, it says what else was wrong in the run."""
    usual = [*training_runs.common(training.world_size), carried("the shards' gradients")]
    named_by_values = {mistake.says for mistake in usual}

    def old_weights(observed: kit.Observed) -> kit.Finding:
        """Units that stayed whole, which is the cause of wrong values only if they were used again."""
        finding = stayed(observed, training)
        return replace(finding, sentences=(*finding.sentences, OLD_WEIGHTS)) if finding else kit.RIGHT

    others = (shards_line(training, "", 0).judge, copies, last_waited, old_weights)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        if finding.ok or {str(said) for said in finding.sentences[1:]} & named_by_values:
            return finding
        finding = next((cause for look in others if not (cause := look(observed)).ok), finding)
        said = [OTHER_WEIGHTS if str(text) in (START, MIXED, FROZEN) else text for text in finding.sentences]
        return replace(finding, sentences=tuple(said))

    return replace(line, judge=judge)


def last_waited(observed: kit.Observed) -> kit.Finding:
    """Wrong if a reduction was in flight after a backward, or a gather."""
    for rank in training_runs.members(observed):
        operations = observed.operations[rank]
        for number, after in enumerate(observed.values[rank].after):
            kinds = {operations[at].op for at in after if at < len(operations)}
            for kind in ("reduce_scatter", "all_gather"):
                if kind in kinds:
                    return not_waited(rank, number, kind)
    return kit.RIGHT


def not_waited(rank: int, step: int, kind: str) -> kit.Finding:
    why = (
        LAST_STEPS
        if kind == "reduce_scatter"
        else "Wait for every gather that you begin, also for one that no block needs."
    )
    return kit.wrong(
        f"after the backward of step {step + 1} rank {rank} had not waited for a message that it had begun, "
        f"{kind}.",
        why,
        cause=f"{kit.NEVER_WAITED} {kind}",
    )
