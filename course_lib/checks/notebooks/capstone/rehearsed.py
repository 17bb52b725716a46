"""dry_step: the student's `make_step` as one rank of 1,024, held against the closed forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.checks.rank.notebooks.capstone.rehearsing import DryInstructions, DryReply
from course_lib.dry.closed import closed_forms, stage_activations
from course_lib.dry.plan import Plan
from course_lib.models import GPTConfig

RECIPE = "course_lib.checks.rank.notebooks.capstone.rehearsing:as_one_rank"
POINT = "a step whose bytes and memory do not grow with the mesh, though eight ranks would not show it"
# The first fake operation and the first optimizer of a process import these, which takes seconds.
IMPORTS = ("torch.fx.experimental.symbolic_shapes", "torch._dynamo")
SIZES = {"pp": 8, "dp": 16, "tp": 8}
CONFIG = GPTConfig(1024, 64, layers=8, heads=16, width=256, tied=False)
COUNT = 8  # microbatches of a replica, of one row each
STOPPED = "stopped"
FEW = 4  # collectives over the replicas: an all-reduce, its halves, or two buckets
NOISE = 4096  # bytes of several losses or counts in one tensor
SECONDS = 90.0  # 3 to 6 on idle cores
WHOLE_SUM = 'Sum only over mesh.group(("dp", "cp")), because ranks of pp and tp hold other parameters.'
NUMBERS = "numbers"  # the name of losses and counts in `by_axis`
FEW_NUMBERS = "An all-reduce of one number adds up the losses of all ranks, as `loss_of_all` does."
CUT_TOKENS = (
    'tp has cut the tokens between the layers, although layout.sequence is False. Pass sequence="keep" to '
    "`mesh_stages` only if it is True."
)
GATHERED = (
    "With n ranks, an all-gather of whole gradients sends n / 2 times as much as an all-reduce, so only "
    "two ranks show no difference. Use an all-reduce, or its halves."
)
EACH_MICROBATCH = "Gradients add up in `.grad`, so sum them once, after the last backward."
EACH_PARAMETER = (
    "Each call costs a latency, although all of them together send no more bytes. Put all gradients into "
    "one row, as `sum_over_replicas` does."
)
ALL_ROWS = (
    "A replica reads its own rows, one of 16 parts of the batch. Then `microbatches_of` cuts them into "
    "layout.microbatches(batch_size) microbatches."
)
ORDER = (
    "All forwards ran before the first backward, but with 1F1B stage i of p begins backward after p - i "
    "forwards at the latest, so it keeps min(m, p - i) microbatches."
)
KEPT = "A tensor that keeps its graph, such as a loss in a list, also keeps the activations, so detach it."
WHOLE_MODEL = (
    "The step still refers to the model from before it was cut, for example as a variable used by the "
    "inner function. Refer only to the stages."
)
OWN_GROUPS = (
    "`dist.new_group` waits for all 1,024 ranks, each time. The mesh has made the groups a step needs, so "
    "use mesh.group(axes)."
)
NO_VALUES = (
    "In a dry run, floats have no values. If a condition on a loss or a gradient has led to this error, "
    "take the condition out of the step."
)
OF_A_CONDITION = re.compile(
    r"\b(ValueError|AssertionError|ArithmeticError|FloatingPointError|RuntimeError)\b"
)
MIDDLE = (
    "This stage is neither the first nor the last of the pipeline, so it has no embedding, no head and no "
    "loss, but it sends both ways. With two stages, there is no such stage."
)


@dataclass(frozen=True)
class Rehearsed:
    """A rank of the mesh, and what it should send and hold."""

    rank: int

    @cached_property
    def plan(self) -> Plan:
        return Plan(SIZES, self.rank, CONFIG, COUNT, 1, torch.float32)

    @property
    def stage(self) -> int:
        return self.plan.coordinate["pp"]

    def says(self, did: str, general: str) -> kit.Sentence:
        """A sentence about the rank; general: without the amounts, which a student's code could choose."""
        return kit.Sentence(f"rank {self.rank}, on stage {self.stage}, {did}.", f"the rank {general}.")

    @cached_property
    def due(self) -> dict[str, float]:
        """Bytes by axis."""
        return closed_forms(self.plan).bytes

    @property
    def weights(self) -> float:
        return closed_forms(self.plan).kinds["weights"]

    @property
    def messages(self) -> int:
        """Sends of a step: activations forward and gradients back."""
        return COUNT * ((self.stage > 0) + (self.stage < SIZES["pp"] - 1))

    @property
    def in_flight(self) -> int:
        return min(COUNT, SIZES["pp"] - self.stage)

    def side(self) -> kit.RankSide:
        instructions = DryInstructions(SIZES, self.rank, asdict(CONFIG), COUNT, most=2 * self.messages)
        return kit.RankSide({}, instructions, {})


Judge = Callable[[DryReply], kit.Finding]


def line(title: str, judge: Judge, weight: float, first: bool = False) -> kit.Line:
    """A line about the reply of the one rank that ran. The lines do not wait for each other.

    first: the line also judges a step that was ended.
    """

    def of_reply(observed: kit.Observed) -> kit.Finding:
        reply = observed.values[0]
        return judge(reply) if first or not reply.stopped else kit.wrong(cause=STOPPED)

    return kit.Line(title, of_reply, weight)


def wires_line(rank: Rehearsed) -> kit.Line:
    """One pass of the microbatches: activations along pp, the layers' sums along tp."""

    def judge(reply: DryReply) -> kit.Finding:
        if reply.stopped:
            did = f"sent more than {2 * rank.messages} messages along pp, but {rank.messages} are due"
            said = rank.says(f"{did}, so the run was ended", "sent so many messages that the run was ended")
            return kit.wrong(said, ALL_ROWS, cause=STOPPED, misses_point=True)
        for axis in ("pp", "tp"):
            amount, due = reply.bytes.get(axis, 0.0), rank.due[axis]
            if abs(amount - due) > NOISE:
                did = f"sent {words.number(round(amount))} bytes along {axis}, but one pass of its {COUNT} "
                did += f"microbatches sends {words.number(round(due))}"
                general = f"sent {'more' if amount > due else 'fewer'} bytes along {axis} than are due"
                why = "" if amount else "Nothing was sent there at all."
                if axis == "pp" and abs(amount * SIZES["tp"] - due) <= NOISE:
                    why = CUT_TOKENS
                return kit.wrong(rank.says(did, general), why, cause="wires")
        return kit.RIGHT

    return line(f"stage {rank.stage}: bytes along pp and tp", judge, 1, first=True)


def replicas_line(rank: Rehearsed) -> kit.Line:
    """One sum of the gradients over the replicas, by whatever parts."""

    def judge(reply: DryReply) -> kit.Finding:
        amount, due = reply.bytes.get("dp", 0.0), rank.due["dp"]
        if abs(amount - due) <= NOISE:
            return kit.RIGHT
        did = f"sent {words.number(round(amount))} bytes over dp"
        if amount < due:
            others = [axes for axes, nbytes in reply.bytes.items() if "dp" in axes and nbytes > NOISE]
            where = next((axes for axes in others if axes != "dp"), "")
            did += f", but one sum of its gradients sends {words.number(round(due))}"
            did += f", since they were summed over {where}" if where else ""
            said = rank.says(did, "sent fewer bytes over dp than one sum of its gradients")
            return kit.wrong(said, WHOLE_SUM if where else "", cause="axes" if where else "replicas")
        times = words.number(round(amount / due, 2))
        did += f", {times} times the {words.number(round(due))} that are enough"
        said = rank.says(did, "sent more bytes over dp than one sum of its gradients")
        gathers = any(axes == "dp" and op == "all_gather" for axes, op, _ in reply.calls)
        says = GATHERED if gathers else EACH_MICROBATCH if abs(amount / due - COUNT) < 0.1 else ""
        return kit.wrong(said, says, cause="replicas", misses_point=True)

    return line(f"stage {rank.stage}: bytes over the replicas", judge, 1.5)


def calls_line(rank: Rehearsed) -> kit.Line:
    """Few collectives over the replicas, and no group but the mesh's."""

    def judge(reply: DryReply) -> kit.Finding:
        made = sum(n for _, op, n in (*reply.setup_calls, *reply.calls) if op == "new_group")
        if made:
            said = rank.says(
                f"made {words.counted(made, 'group')} in addition to the mesh's", "made groups of its own"
            )
            return kit.wrong(said, OWN_GROUPS, cause="groups")
        others = {axes: nbytes for axes, nbytes in reply.bytes.items() if axes not in ("pp", "dp", "tp")}
        axes = max(others, key=lambda each: others[each], default="")
        if axes == NUMBERS and others[axes] > NOISE:
            did = f"sent {words.number(round(others[axes]))} bytes for losses and numbers of targets"
            said = rank.says(did, "sent many bytes for losses and numbers of targets")
            return kit.wrong(said, FEW_NUMBERS, cause="numbers")
        if axes and others[axes] > NOISE:
            did = f"sent {words.number(round(others[axes]))} bytes over {axes}"
            said = rank.says(did, "sent bytes over a group other than pp, dp and tp")
            return kit.wrong(said, WHOLE_SUM, cause="axes")
        count = sum(n for axes, _, n in reply.calls if axes == "dp")
        if count > FEW:
            did = f"called {count} collectives over dp, but one is enough"
            said = rank.says(did, "called many collectives over dp, but one is enough")
            each = count > 2 * COUNT or count % COUNT
            return kit.wrong(said, EACH_PARAMETER if each else EACH_MICROBATCH, cause="calls")
        if not count:
            did = "called no collective over dp alone"
            return kit.wrong(rank.says(did, did), WHOLE_SUM, cause="axes")
        return kit.RIGHT

    return line(f"stage {rank.stage}: one sum over the replicas, no other axis", judge, 0.5)


def weights_line(rank: Rehearsed) -> kit.Line:
    def judge(reply: DryReply) -> kit.Finding:
        amount = reply.kinds.get("weights", 0)
        if amount == rank.weights:
            return kit.RIGHT
        did = f"holds {words.number(amount)} bytes of parameters, but its part of the model has "
        said = rank.says(
            f"{did}{words.number(rank.weights)}", "holds other parameters than its part of the model"
        )
        return kit.wrong(said, WHOLE_MODEL if amount > rank.weights else "", cause="weights")

    return line(f"stage {rank.stage}: parameters", judge, 0.5)


def kept_line(rank: Rehearsed) -> kit.Line:
    """Activations for backward: no more than 1F1B keeps. The ends keep a little for embedding or head."""

    def judge(reply: DryReply) -> kit.Finding:
        each, amount = stage_activations(rank.plan), reply.kinds.get("activations", 0)
        if each / 20 < amount < (rank.in_flight + 0.5) * each:  # recomputation may keep less
            return kit.RIGHT
        if amount < each:
            did = "keeps no activations for backward"
            return kit.wrong(rank.says(did, did), cause="kept")
        did = f"keeps the activations of {words.number(round(amount / each, 1))} microbatches for backward, "
        said = rank.says(
            f"{did}but {rank.in_flight} are enough", "keeps more microbatches for backward than it needs"
        )
        says = ORDER if abs(amount / each - COUNT) < 0.5 else KEPT
        return kit.wrong(said, says, cause="kept", misses_point=True)

    weight = 0.5 if rank.in_flight == COUNT else 1.5  # a stage that may keep all shows nothing of the order
    return line(f"stage {rank.stage}: activations kept for backward", judge, weight)


def case(draw: kit.Draw, stage: int, hidden: bool = False) -> kit.Case:
    of_a_stage = SIZES["dp"] * SIZES["tp"]
    rank = Rehearsed(stage * of_a_stage + draw.integer(0, of_a_stage))
    parts = (wires_line, replicas_line, calls_line, weights_line, kept_line)
    return kit.Case(
        f"stage {stage}", [rank.side()], [part(rank) for part in parts], recipe=RECIPE, alone=True,
        imports=IMPORTS, timeout=SECONDS, hidden=hidden,
    )  # fmt: skip


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "error" and case.title == "stage 3":
        return MIDDLE
    return NO_VALUES if kind == "error" and OF_A_CONDITION.search(text) else ""


@kit.exercise(points=4, objects=("make_step",), references=REFERENCES, hint=trouble, point=POINT)
def dry_step(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, 0)
    yield case(draw, 3)
    if draw.hidden:
        yield case(draw, 7)
