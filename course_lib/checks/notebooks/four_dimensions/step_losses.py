"""Lines about the loss that `hybrid_step` returns, and the mistakes that explain it."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.four_dimensions.step_gradients import (
    FLOAT32,
    OF_MICROBATCHES,
    OF_PARTS,
    OF_REPLICAS,
    Gradients,
    factor,
    of_one_process,
)
from course_lib.checks.notebooks.four_dimensions.steps import Steps

DIVIDED = (
    "The factor is the number of targets. If you multiply by it, leave that out, because `run_schedule` "
    "divides the parts by `count` already. If you gave it another `count` and divide the gradients yourself, "
    "divide the losses as well."
)
ONLY_LAST = "but only the last stage knows the loss. Sum over pp, so that all ranks return it."
TERMS_OF_LOSS = "The right loss is a sum over pp, dp and cp, which is divided only by the targets."


def loss_line(steps: Steps, title: str, weight: float = 1) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        for call, wanted in enumerate(steps.right.losses):
            returned = [observed.values[rank].returned[call] for rank in range(observed.world_size)]
            if (form := not_a_number(returned)) is not None:
                return form
            off = [abs(value - wanted) > FLOAT32 * wanted for value in returned]
            if any(off):
                rank = off.index(True)
                got, want = words.apart(float(returned[rank]), wanted)
                fault = f"rank {rank} returned another loss than one process"
                gradients = Gradients(steps, observed)
                why = next(loss_causes(steps, returned, wanted, rank, call, gradients), "")
                return kit.wrong(
                    kit.Sentence(f"{fault}: {got} instead of {want}.", f"{fault}."), why, cause=why
                )
        return kit.RIGHT

    return kit.Line(f"loss: {title}", judge, weight)


def not_a_number(returned: list[Any]) -> kit.Finding | None:
    for rank, value in enumerate(returned):
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            continue
        said = f"on rank {rank} no finite number was returned."
        if value is None:
            return kit.wrong(said, "Is there a `return` at the end?")
        return kit.wrong(said, "Return the loss as a float, the same on all ranks.")
    return None


def loss_causes(
    steps: Steps, returned: list[float], wanted: float, rank: int, call: int, gradients: Gradients
) -> Iterator[str]:
    mesh, of_replicas = steps.mesh, steps.mean_of_replicas.losses[call]
    dp, cp, tp, pp = (mesh.size(axis) for axis in ("dp", "cp", "tp", "pp"))

    def near(value: float, other: float) -> bool:
        return abs(value - other) <= 2 * FLOAT32 * max(abs(other), 1)

    def are(loss: float) -> bool:
        return all(near(value, loss) for value in returned)

    def together(*axes: str) -> bool:
        """Whether the ranks of these axes return terms of the loss, or of it over dp, or of means."""
        totals = [sum(returned[other] for other in mesh.ranks(k, *axes)) for k in range(mesh.n)]
        own = dp * of_replicas if "dp" in axes else of_replicas
        return any(all(near(total, loss) for total in totals) for loss in (wanted, wanted / dp, own))

    last = [mesh.place(k, "pp") == pp - 1 for k in range(mesh.n)]
    if pp > 1 and not any(value for value, is_last in zip(returned, last, strict=True) if not is_last):
        yield f"Rank {rank} returns {returned[rank]}, {ONLY_LAST}"
    often, of_count = gradients.of_another_count()
    if often and are(often * wanted):
        yield of_count
    if tp > 1 and are(tp * wanted):
        of_dp = f" and of dp. Ranks of tp have the loss already. {TERMS_OF_LOSS}"
        of_tp = ". Ranks of tp have the loss already, so sum only over pp, dp and cp."
        yield f"The loss is {tp} times the loss of one process, the size of tp{of_dp if dp == tp else of_tp}"
    for share in (1, dp, 1 / cp):
        if dp > 1 and are(share * of_replicas):
            means = "the mean of the replicas' means" if share == 1 else f"{factor(share)} the mean of means"
            right = gradients.are(lambda *key: gradients.wanted[key])
            yield f"The loss is {means}. {TERMS_OF_LOSS if right else OF_REPLICAS}"
    if are(returned[0]) and not often and near(returned[0] / wanted, steps.targets):
        often = of_one_process(returned[0] / wanted)
        yield f"The loss is {often}, on all ranks. {DIVIDED}"
    if near(returned[0] * round(wanted / (returned[0] or 1)), wanted) and are(returned[0]):
        yield f"The loss is {of_one_process(returned[0] / wanted)}, on all ranks. {TERMS_OF_LOSS}"
    for axes in (("dp",), ("cp",), ("dp", "cp")):
        if mesh.size(*axes) > 1 and together(*axes):
            yield f"Ranks return the loss of their own tokens, so also sum over {' and '.join(axes)}."
    if are(steps.mean_of_microbatches().losses[call]):
        yield OF_MICROBATCHES
    if cp > 1 and are(steps.mean_of_parts().losses[call]):
        yield OF_PARTS
