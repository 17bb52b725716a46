"""Everything a run has to remember to continue as if it had never stopped, to the last bit.

    model            parameters and buffers
    optimizer        its moments, and how many steps they have seen
    scheduler        how far the learning rate has got
    scaler           the loss scale, and the steps since it changed
    step             the position in the data, because `course_lib.data.batch` draws a step's rows from it
    generators       torch's default one for the CPU, from which dropout draws; the run's own; those of GPUs
                     if CUDA is in use

A state is a photograph, but `state_dict` is not. Its tensors are the ones the next step changes, so the file
of step 3 would hold the values of step 5. The optimizer is worse, because it keeps the tensors it loads. So a
second `restore` from the same state would continue from where the first run has got to. This is why both
directions copy.

Each rank has its own generators, so a job has one state per rank. Everything in a state is a tensor, a
number, a string, or a list or dict of them, so `torch.load` reads it with weights_only=True, which runs no
code from the file.

Cost: one copy of all states, which takes 12 bytes per parameter for AdamW in float32.

Sources: PyTorch's notes on reproducibility; `torch.optim.Optimizer.load_state_dict`, whose tensors are not
copied if dtype and device fit (`_process_value_according_to_param_policy`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PARTS = ("model", "optimizer", "scheduler", "scaler")


def capture(run: Any) -> dict[str, Any]:
    """The state of `run`, as it is now. It does not change when the run continues.

    run: a `Training`, or an object with its attributes; `scheduler`, `scaler` and `generator` can be missing.
    """
    state: dict[str, Any] = {"step": run.step, "cpu": torch.get_rng_state()}
    for name in PARTS:
        part = getattr(run, name, None)
        if part is not None:
            state[name] = copied(part.state_dict())
    if getattr(run, "generator", None) is not None:
        state["generator"] = run.generator.get_state()
    if torch.cuda.is_initialized():
        state["gpus"] = torch.cuda.get_rng_state_all()
    return state


def restore(run: Any, state: dict[str, Any]) -> None:
    """Make `run` what it was at `capture`, and also torch's default generator. `state` stays as it is.

    Raises ValueError, before anything changes, if the run has a part that the state lacks, or the other way
    around, because then one of the two belongs to another program.
    """
    parts = (*PARTS, "generator")
    has = {name for name in parts if getattr(run, name, None) is not None}
    saved = state.keys() & set(parts)
    if has != saved:
        raise ValueError(
            f"the run has {sorted(has)}, and the state is of a run with {sorted(saved)}"
        )
    for name in saved - {"generator"}:
        getattr(run, name).load_state_dict(copied(state[name]))
    if "generator" in saved:
        run.generator.set_state(state["generator"])
    if "gpus" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state_all(state["gpus"])
    torch.set_rng_state(state["cpu"])
    run.step = state["step"]


def copied(value: Any) -> Any:
    """New tensors, dicts, lists and tuples, of plain types; numbers and strings as they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(part) for part in value)
    return value
