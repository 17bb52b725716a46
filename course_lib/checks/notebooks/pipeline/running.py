"""run_schedule: a schedule on real ranks, with the gradients of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from course_lib.checks import kit
from course_lib.checks.notebooks.pipeline.references import REFERENCES, SCHEDULES
from course_lib.checks.notebooks.pipeline.running_lines import (
    kept_line,
    messages_line,
    order_line,
    pages_line,
)
from course_lib.checks.notebooks.pipeline.running_sends import sends_line, waits_at_once
from course_lib.checks.notebooks.pipeline.running_values import (
    division_line,
    elsewhere_line,
    gradients_line,
    losses_line,
)
from course_lib.checks.notebooks.pipeline.running_whole import (
    WIDE,
    Row,
    ScheduleRun,
    case,
    microbatches,
    mixed_order,
    wide_microbatches,
)
from course_lib.pipeline import Action
from course_lib.pipeline.generators import gpipe, naive, one_f_one_b

SUB_GROUP = (0, 2)  # of three ranks
POINT = "doing the schedule that is given, in its order and with its memory"
BY_HAND = (
    "PyTorch's schedules and stages send and receive by themselves. But you are to build this yourself, "
    "with isend and irecv."
)
REFUSED = {name: BY_HAND for name in SCHEDULES} | {
    "torch.distributed.pipelining.stage:_PipelineStageBase": BY_HAND
}
NO_GRADIENT = (
    "Is x.grad None? An input from another stage must ask for a gradient before the module sees it: "
    "x.requires_grad_(). The first stage's inputs have none, and no rank waits for one. And x.grad is None "
    "until backward has run through this microbatch's output."
)
OF_THE_GROUP = (
    "Do you count ranks within the group? They differ from the ranks of the world, so use "
    "dist.get_rank(group) and dist.get_world_size(group), with group_src= and group_dst= in addition to "
    "group=."
)
ONE_ORDER = (
    "Sender and receiver must post in one order. Walk through simulate(actions).events, the actions of all "
    "ranks in the order of time, and post the isend or irecv of each message when its action comes, without "
    "waiting. Wait only for the message that the next action needs. If a gradient is never sent, is x.grad "
    "None, because the input was not asked for one (x.requires_grad_())?"
)


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke."""
    if case_of_it.groups and "returned without waiting for" in text:
        return OF_THE_GROUP
    if "got <class 'NoneType'> instead" in text:
        return NO_GRADIENT
    if kind in ("deadlock", "timeout"):
        return ONE_ORDER
    if "two ends of a message differ" in text:
        return (
            "The buffer must fit the message: torch.empty(stage.shape(inputs), dtype=stage.dtype), of the "
            "sender's microbatch. Messages between two ranks come in the order in which they were sent, "
            "so if stages do the microbatches in different orders, post each receive in the sender's "
            "order, as listed in simulate(actions).events."
        )
    if "only Tensors of floating point" in text:
        return "Tokens have no gradient, so the first stage's input needs no requires_grad_()."
    if "backward through the graph a second time" in text:
        return (
            "A microbatch goes backward once. A tensor from another rank is new and cut off from every "
            "graph. Also cut an output off before you keep it to be sent (detach())."
        )
    if "grad can be implicitly created only for scalar" in text:
        return (
            "Only the loss needs no gradient from outside, because every other output gets the gradient the "
            "next stage sends back."
        )
    if "is on the compute graph" in text or "requires grad. Only Tensors" in text:
        return "Send tensors without a graph: output.detach()."
    if "number in this group is one of" in text or "nvalid destination rank" in text:
        return (
            "Is something sent to a rank that does not exist? Before the first stage and behind the last "
            "there is no rank, so look at stage.first and stage.last."
        )
    if "must match the size of tensor" in text or "to match target batch_size" in text:
        return (
            "Is this the tensor of another microbatch? Their sizes differ, so keep what arrives by its kind "
            "and its microbatch."
        )
    if "'NoneType' object has no attribute" in text:
        return NO_GRADIENT
    if "differentiated Tensors" in text:
        return (
            "torch.autograd.grad adds nothing to the parameters' gradients, and tokens have none. "
            "Instead, call torch.autograd.backward(output, gradient), then read x.grad."
        )
    if "does not require grad" in text:
        return (
            "An input from another stage must ask for a gradient, so call x.requires_grad_(). Forward must "
            "also record its graph, so do not run it under torch.no_grad()."
        )
    return ""


def lines(run: ScheduleRun, title: str, weight: float) -> list[kit.Line]:
    """Values, and the order in which they came about: as the stage tells it, and as its messages show it."""
    order = [sends_line(run, "")] if run.pages else [order_line(run, ""), sends_line(run, "")]
    judge = kit.both(*(line.judge for line in order))
    return [
        gradients_line(run, f"{title}: gradients", weight),
        losses_line(run, f"{title}: parts of the loss", weight / 2),
        kit.Line(f"{title}: order of the actions", judge, weight / 2),
    ]


def one_line(run: ScheduleRun, title: str, weight: float) -> kit.Line:
    """The same in one."""
    return kit.Line(title, kit.both(*(line.judge for line in lines(run, title, 1))), weight)


def drawn(draw: kit.Draw, name: str, kind: str, actions: Sequence[Row], earlier: bool = False) -> ScheduleRun:
    """A run of these actions, with stages and microbatches that are drawn."""
    count = 1 + max(action.microbatch for action in actions[0])
    run = ScheduleRun(name, kind, draw.integer(1, 1 << 30), actions, microbatches(draw, kind, count))
    if not earlier:
        return run
    before = [
        {name: draw.normal(*p.shape, dtype=p.dtype) for name, p in stage.named_parameters()}
        for stage in run.stages
    ]
    return ScheduleRun(name, kind, run.seed, actions, run.batch, before)


def measured(draw: kit.Draw, name: str, actions: Sequence[Row]) -> ScheduleRun:
    """One with wide activations, of which each rank's process is measured."""
    count = 1 + max(action.microbatch for action in actions[0])
    seed, batch = draw.integer(1, 1 << 30), wide_microbatches(draw, count)
    return ScheduleRun(name, "tokens", seed, actions, batch, width=WIDE, pages=True)


def rows(schedule: Sequence[Sequence]) -> list[list[Action]]:
    return [list(row) for row in schedule]


def backwards_turned(stages: int, count: int) -> list[list[Action]]:
    """GPipe whose backwards come in the reverse order, as the GPipe paper draws them."""
    return [row[:count] + row[: count - 1 : -1] for row in rows(gpipe(stages, count))]


@kit.exercise(
    points=15, objects=("run_schedule",), references=REFERENCES, refused=REFUSED, hint=trouble, point=POINT
)
def run_schedule(draw: kit.Draw) -> Iterator[kit.Case]:
    yield from two_ranks(draw)
    run = drawn(draw, "flush", "tokens", rows(one_f_one_b(4, 6)))
    yield case(
        "4 ranks", [run],
        [
            *lines(run, "1F1B, 4 ranks", 2),
            elsewhere_line(run),
            division_line(run, "1F1B, 4 ranks: the mean over all targets", 4),
            messages_line(run, "1F1B, 4 ranks: messages", 1.5),
            kept_line(run, "1F1B, 4 ranks: kept for backward", 1),
        ],
        remark=waits_at_once(run),
    )  # fmt: skip
    few = drawn(draw, "few", "numbers", rows(one_f_one_b(3, 2)))
    own = drawn(draw, "own", "tokens", mixed_order(draw, 3, 5, overtaking=False))
    yield case(
        "3 ranks",
        [few, own],
        [
            one_line(few, "1F1B, fewer microbatches than stages", 1),
            one_line(own, "an order that you have not seen, 3 ranks", 2),
            messages_line(own, "an order that you have not seen: messages", 0.5),
        ],
    )
    # A case of its own, since messages that overtake each other can end a run that does all else right.
    turned = drawn(draw, "overtaking", "numbers", mixed_order(draw, 3, 5, overtaking=True))
    title = "stages that differ in the order of microbatches"
    yield case("overtaking", [turned], [one_line(turned, title, 1)])
    run = drawn(draw, "group", "tokens", rows(one_f_one_b(2, 3)))
    yield case("sub-group", [run], [one_line(run, "group {0, 2}", 1)], members=SUB_GROUP, world_size=3)
    run = drawn(draw, "alone", "tokens", rows(naive(1, 3)))
    yield case("1 rank", [run], [kit.Line("1 rank", one_line(run, "", 1).judge, 0.5, trivial=True)])
    if draw.hidden:
        yield from more(draw)


def two_ranks(draw: kit.Draw) -> Iterator[kit.Case]:
    """The simplest, gradients that are there already, and the memory of a long batch."""
    first = drawn(draw, "naive", "tokens", rows(naive(2, 3)))
    added = drawn(draw, "gpipe", "numbers", rows(gpipe(2, 4)), earlier=True)
    yield case(
        "2 ranks",
        [first, added],
        [
            one_line(first, "naive, 2 ranks", 1.5),
            division_line(first, "naive, 2 ranks: the mean over all targets", 2),
            one_line(added, "GPipe, 2 ranks, added to gradients that are there", 2),
            messages_line(added, "GPipe, 2 ranks: messages", 0.5),
        ],
    )
    long = drawn(draw, "long", "numbers", rows(one_f_one_b(2, 12)))
    wide = measured(draw, "wide", rows(one_f_one_b(2, 12)))
    title = "1F1B, 2 ranks, 12 microbatches"
    yield case(
        "long",
        [long, wide],
        [
            kit.Line(title, kit.both(one_line(long, "", 1).judge, one_line(wide, "", 1).judge)),
            kept_line(long, "1F1B, 2 ranks: kept for backward", 2),
            pages_line(wide, "1F1B, 2 ranks: memory of the process", 2),
        ],
    )


def more(draw: kit.Draw) -> Iterator[kit.Case]:
    """Other schedules, on more ranks."""
    turned = drawn(draw, "turned", "tokens", backwards_turned(4, 5), earlier=True)
    title = "GPipe, backwards in the reverse order"
    yield case("reverse", [turned], [one_line(turned, title, 2)])
    own = drawn(draw, "own", "numbers", mixed_order(draw, 4, 6, overtaking=True))
    yield case(
        "hidden",
        [own],
        [
            one_line(own, "another order, 4 ranks", 2),
            messages_line(own, "another order, 4 ranks: messages", 0.5),
            kept_line(own, "another order, 4 ranks: kept for backward", 0.5),
        ],
    )
