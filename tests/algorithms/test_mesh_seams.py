"""The seams between axes: stages whose layers or tokens are cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib import RankError, device, launch, zero
from course_lib.context_parallel import ring_attention, ulysses_attention
from course_lib.mesh import Mesh, cut_names, hybrid_step, mesh_stages, parameters, tied_names
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline import gpt_stages, run_schedule
from course_lib.pipeline.generators import one_f_one_b
from course_lib.pipeline.gpt import GPTStage, balanced, head_share, passed_on

RequireRanks = Callable[[int], None]
CONFIG = GPTConfig(vocab_size=41, context=12, layers=2, heads=2, width=8)


def test_a_stage_takes_the_places_of_its_tokens() -> None:
    """Both ends of a model on tokens 0, 1, 6, 7: as the model computes with these positions."""
    model, places = a_model(), torch.tensor([0, 1, 6, 7])
    tokens = torch.randint(41, (3, 8))
    halves = [GPTStage(model, range(i, i + 1), i == 0, i == 1, positions=places) for i in range(2)]
    out = halves[1](halves[0](tokens))
    assert torch.equal(out, model(tokens[:, places], places))
    assert not torch.allclose(out, model(tokens[:, places]))


def a_model(**changes: object) -> GPT:
    torch.manual_seed(5)
    return GPT(GPTConfig(**{**vars(CONFIG), **changes})).double().to(device())


def test_what_goes_between_stages_has_the_tokens_of_a_part() -> None:
    inputs = torch.empty(3, 12)
    assert passed_on(inputs, width=8) == (3, 12, 8)
    assert passed_on(inputs, width=8, positions=torch.arange(6)) == (3, 6, 8)
    assert passed_on(inputs, width=8, positions=torch.arange(6), sequence=2) == (3, 3, 8)
    with pytest.raises(ValueError, match="12 tokens are more than the model's context=8"):
        passed_on(inputs, width=8, context=8)
    with pytest.raises(ValueError, match="of 12 tokens were given to stages whose ranks share"):
        passed_on(inputs, width=8, positions=torch.arange(4), seq=8)
    with pytest.raises(ValueError, match="6 tokens cannot be cut into 4 equal parts"):
        passed_on(inputs, width=8, positions=torch.arange(6), sequence=4)


def test_the_loss_of_a_part_is_that_of_its_targets_and_the_count_that_of_all() -> None:
    def job() -> tuple[Tensor, Tensor, Tensor]:
        stages = gpt_stages(a_model(), one_f_one_b(1, 1), 0, positions=torch.tensor([0, 1, 6, 7]))
        logits, targets = torch.randn(3, 4, 41).double(), torch.randint(41, (3, 8))
        targets[:, 3:7] = -100
        own = nn.functional.cross_entropy(
            logits.flatten(0, 1), targets[:, [0, 1, 6, 7]].flatten(), reduction="sum"
        )
        return stages[0].loss(logits, targets), own, stages[0].count(targets)

    (loss, own, count), = launch(job, world_size=1)  # fmt: skip
    assert torch.equal(loss, own) and count == 3 * 4


def test_the_ranks_of_tp_cut_the_stack_alike(backend: str, require_ranks: RequireRanks) -> None:
    """193 rows of a head are 97 and 96 on two ranks: by these the one would cut 3 + 1 and the other 2 + 2."""
    require_ranks(4)
    model = a_model(heads=4, layers=4, vocab_size=193, width=16)
    block = sum(param.numel() for param in model.blocks[0].parameters() if param.dim() > 1)
    alone = [balanced(4, 2, rows * 16 / (block / 2)) for rows in (97, 96)]
    assert alone[0] != alone[1]

    def job() -> list[int]:
        mesh = Mesh({"pp": 2, "tp": 2})
        stages = mesh_stages(model.to(device()), mesh, one_f_one_b(2, 2))
        assert isinstance(stages[0].module, GPTStage)
        return [int(name) for name in stages[0].module.blocks]

    wanted = [list(blocks) for blocks in balanced(4, 2, head_share(model))]
    found = launch(job, world_size=4, backend=backend)
    assert list(found) == [wanted[0], wanted[0], wanted[1], wanted[1]]


def test_names_of_what_is_cut_and_of_what_is_tied(
    backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(4)

    def job() -> tuple[set[str], set[str], set[str]]:
        mesh = Mesh({"pp": 2, "tp": 2})
        stages = mesh_stages(a_model(), mesh, one_f_one_b(2, 2))
        return {name for name, _ in parameters(stages)}, cut_names(stages), tied_names(stages)

    first, _, last, _ = launch(job, world_size=4, backend=backend)
    for every, cut, tied in (first, last):
        whole = {
            name for name in every if "norm" in name or name.endswith(("out.bias", "down.bias"))
        }
        assert cut == every - whole - {"position_embedding.weight"}
        assert tied == {"token_embedding.weight"} <= every


def test_a_part_that_several_ranks_hold_is_named_by_the_first(
    backend: str, require_ranks: RequireRanks
) -> None:
    """With one key and value head both ranks of tp hold it, and a norm counts it once."""
    require_ranks(2)

    def job() -> set[str]:
        model = a_model(heads=2, kv_heads=1)
        return cut_names(mesh_stages(model, Mesh({"tp": 2}), one_f_one_b(1, 1)))

    first, second = launch(job, world_size=2, backend=backend)
    shared = {name for name in first if ".key." in name or ".value." in name}
    assert len(shared) == 2 * 2 * 2 and second == first - shared


# ---- what is refused before a model is cut


def no_mask(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, layout: object, group: object
) -> Tensor:
    raise AssertionError("it is never called")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"seq": 13}, "seq=13: the model's context holds 1 to 12 tokens"),
        ({"seq": 0}, "seq=0: the model's context holds 1 to 12 tokens"),
        (
            {"attention": ulysses_attention},
            r"ulysses_attention has no causal mask .* causal=True\)",
        ),
        ({"attention": ring_attention}, r"ring_attention has no causal mask"),
        ({"attention": partial(ulysses_attention, causal=False)}, "has no causal mask"),
        ({"attention": no_mask}, "no_mask has no causal mask"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_it_is_cut(
    arguments: dict[str, Any], says: str
) -> None:
    def job() -> bool:
        model = a_model()
        names = [type(module).__name__ for module in model.modules()]
        with pytest.raises(ValueError, match=says):
            mesh_stages(model, Mesh({"cp": 2}), one_f_one_b(1, 1), **arguments)
        return names == [type(module).__name__ for module in model.modules()]

    assert list(launch(job, world_size=2, backend="gloo")) == [True, True]


def test_sequences_of_another_length_than_the_ranks_share_are_refused(
    backend: str, require_ranks: RequireRanks
) -> None:
    """Longer ones would train on a part of their tokens without a word."""
    require_ranks(2)

    def job() -> list[str]:
        mesh, schedule, said = Mesh({"cp": 2}), one_f_one_b(1, 1), []
        stages = mesh_stages(a_model(), mesh, schedule, seq=8)
        for tokens in (4, 12):
            rows = torch.zeros(1, tokens, dtype=torch.long, device=device())
            with pytest.raises(ValueError, match="share sequences of 8") as error:
                hybrid_step(stages, schedule, [(rows, rows)], mesh)
            said.append(str(error.value))
        return said

    first, second = launch(job, world_size=2, backend=backend)
    assert first == second and "make the stages with seq=12" in first[1]


# ---- ZeRO-3 around a stage


def test_the_blocks_of_a_stage_are_units_of_zero_3(
    backend: str, require_ranks: RequireRanks
) -> None:
    """Elements of a ModuleDict are gathered one by one, and the loss is that of whole parameters."""
    require_ranks(2)

    def job() -> tuple[Tensor, Tensor, int]:
        stage = GPTStage(a_model(tied=False), range(2), True, True)
        tokens = torch.arange(24, device=device()).view(2, 12)
        wanted = stage(tokens).detach()
        wrapped = zero.Zero3Module(stage)
        return wrapped(tokens).detach(), wanted, len(wrapped.units)

    for found, wanted, units in launch(job, world_size=2, backend=backend):
        assert torch.equal(found, wanted) and units == 2 + 1  # two blocks and the rest


def test_weights_that_no_forward_gathers_are_refused_in_a_sentence(
    backend: str, require_ranks: RequireRanks
) -> None:
    """A container never runs: its layers would compute with nan, and the loss would not say why."""
    require_ranks(2)

    def job() -> None:
        stage = GPTStage(a_model(tied=False), range(2), True, True)
        tokens = torch.arange(24, device=device()).view(2, 12)
        zero.Zero3Module(stage, units=[stage.blocks])(tokens)

    said = r"blocks.0.attention_norm computes.*forward of blocks \(ModuleDict\)"
    with pytest.raises(RankError, match=said):
        launch(job, world_size=2, backend=backend)


@pytest.mark.parametrize("tied", [True, False])
def test_shards_of_tied_stages_are_refused(
    tied: bool, backend: str, require_ranks: RequireRanks
) -> None:
    """The two ends cut the one table in different places; with a head of its own all is well."""
    require_ranks(4)

    def job() -> list[float]:
        mesh, schedule = Mesh({"pp": 2, "dp": 2}), one_f_one_b(2, 2)
        stages = mesh_stages(a_model(tied=tied), mesh, schedule)
        stages[0].module = zero.Zero3Module(stages[0].module, group=mesh.group("dp"))
        tokens = torch.arange(24, device=device()).view(2, 12)
        losses = run_schedule(stages, schedule, [(tokens, tokens)] * 2, mesh.group("pp"))
        return [float(loss) for loss in losses.values()]

    if tied:
        with pytest.raises(RankError, match=r"shares token_embedding\.weight with other stages"):
            launch(job, world_size=4, backend=backend)
        return
    tokens = torch.arange(24).view(2, 12)
    wanted = nn.functional.cross_entropy(
        a_model(tied=False)(tokens).flatten(0, 1), tokens.flatten()
    )
    for losses in launch(job, world_size=4, backend=backend)[2:]:
        assert sum(losses) == pytest.approx(wanted.item(), abs=1e-12)
