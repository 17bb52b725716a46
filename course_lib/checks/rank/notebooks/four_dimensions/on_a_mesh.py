"""Recipes (see `harness`) that call a student's function on a mesh, with groups that the case has made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.harness import plain
from course_lib.checks.rank.meshes import MeshInstructions, mesh_of
from course_lib.checks.rank.watching import begun_and_waited
from course_lib.checks.wire import Count
from course_lib.mesh.stages import mesh_stages, parameters
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline.generators import interleaved_one_f_one_b, one_f_one_b
from course_lib.runtime.backend import device

_full_like, _plain, _begun = torch.full_like, plain, begun_and_waited
_mesh_stages, _parameters = mesh_stages, parameters
_schedule, _interleaved = one_f_one_b, interleaved_one_f_one_b
_GPT, _GPTConfig, _mesh_of = GPT, GPTConfig, mesh_of
WEIGHT = 7.0  # of all parameters in `norms`: it must stay


@dataclass(frozen=True)
class AgreedInstructions(MeshInstructions):
    """Calls on a mesh, and what is expected of this rank.

    expects       {name: [dtype, shape]} of the tensors in the reply
    times         how often the function is called
    """

    expects: Expects
    times: int = 1


@dataclass(frozen=True)
class StepInstructions(AgreedInstructions):
    """The tensors of call 0 are "0.x.0", "0.t.0" and so on.

    config        sizes of the GPT, and "seed", from which all ranks draw the same one
    count         microbatches of a call
    chunks        stages of a rank
    sequence      None, "keep" or "regather": whether tp cuts the tokens between layers
    """

    config: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    chunks: int = 1
    sequence: Literal["keep", "regather"] | None = None


@dataclass(frozen=True)
class NormInstructions(AgreedInstructions):
    """named: names of the parameters in their order; a gradient is the tensor of that name, if there is one;
    cut, tied: names; max_norm: a number.
    """

    named: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    max_norm: float = 0.0


@dataclass
class MeshReply:
    """begun: operations begun before the first call, and after each; returned: the results of the calls.

    misfits: {name: text} of a tensor that came in another shape or not at all, with zeros in its place.
    """

    begun: list[Count] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)

    def complete(self, instructions: AgreedInstructions) -> bool:
        """Whether there is a result of each call."""
        calls = instructions.times
        return (len(self.returned), len(self.begun)) == (calls, calls + 1)


def steps(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: StepInstructions
) -> tuple[MeshReply, dict[str, Any]]:
    """`hybrid_step(stages, schedule, microbatches, mesh)`, as often as asked; gradients add up."""
    mesh, count = _mesh_of(instructions, groups), instructions.count
    pp, chunks = mesh.size("pp"), instructions.chunks
    schedule = _schedule(pp, count) if chunks == 1 else _interleaved(pp, count, chunks)
    stages = _mesh_stages(
        drawn(instructions.config), mesh, schedule,
        seq=tensors["0.x.0"].shape[1], sequence=instructions.sequence,
    )  # fmt: skip
    named, report = _parameters(stages), MeshReply([_begun()[0]])
    for call in range(instructions.times):
        batch = [(tensors[f"{call}.x.{k}"], tensors[f"{call}.t.{k}"]) for k in range(count)]
        report.returned.append(_plain(objects[0](stages, schedule, batch, mesh)))
        report.begun.append(_begun()[0])
    return report, agreed({name: param.grad for name, param in named}, instructions, report)


def drawn(config: dict) -> GPT:
    """The model in float64; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        model = _GPT(_GPTConfig(**{name: value for name, value in config.items() if name != "seed"}))
    return model.double().to(device())


def norms(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: NormInstructions
) -> tuple[MeshReply, dict[str, Any]]:
    """`clip_grad_norm(named_parameters, max_norm, mesh, cut, tied)` of gradients that are given."""
    mesh, named = _mesh_of(instructions, groups), []
    for name in instructions.named:
        gradient = tensors.get(name)
        size = gradient if gradient is not None else frozen.zeros(3, dtype=torch.float64, device=device())
        param = frozen.Parameter(_full_like(size, WEIGHT))
        param.grad = None if gradient is None else frozen.clone(gradient)
        named.append((name, param))
    report = MeshReply([_begun()[0]])
    cut, tied = set(instructions.cut), set(instructions.tied)
    report.returned.append(_plain(objects[0](list(named), instructions.max_norm, mesh, cut, tied)))
    report.begun.append(_begun()[0])
    results = {name: param.grad for name, param in named}
    results |= {f"weight.{name}": param for name, param in named}
    return report, agreed(results, instructions, report)


def agreed(
    results: dict[str, Any], instructions: AgreedInstructions, report: MeshReply
) -> dict[str, torch.Tensor]:
    """The tensors of the reply, all of them in the shape that was agreed."""
    return as_agreed(results, instructions.expects, report.misfits, named=kind_of)


def kind_of(value: Any) -> str:
    return "None" if value is None else type(value).__name__
