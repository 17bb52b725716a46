"""A run that survives: killed anywhere and called again, it has the losses of an undisturbed run, bitwise."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib import RankError, launch
from course_lib.mesh import Mesh
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.operation import Disk, Folder
from course_lib.planning import Layout
from course_lib.trainer import held_state, load_model, load_run, make_step, save_run, train


def test_a_run_that_is_killed_in_any_step_has_the_losses_of_one_that_is_not(tmp_path: Path) -> None:
    """One process, killed by an exception; a save after every second step."""
    wanted = train(a_small_run, small_batches, 7, tmp_path / "undisturbed", every=2)
    for dies in range(7):
        folder = tmp_path / str(dies)

        def batches(step: int, dies: int = dies) -> tuple[Tensor, Tensor]:
            if step == dies:
                raise KeyboardInterrupt
            return small_batches(step)

        with pytest.raises(KeyboardInterrupt):
            train(a_small_run, batches, 7, folder, every=2)
        asked = []
        losses = train(
            a_small_run, lambda s, to=asked: to.append(s) or small_batches(s), 7, folder, 2
        )
        assert losses == wanted and asked == [*range(dies - dies % 2, 7)]


def a_small_run() -> tuple[Callable[[Tensor, Tensor], float], Callable[[], dict[str, Any]]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    momenta = {name: torch.zeros_like(param) for name, param in model.named_parameters()}

    @torch.enable_grad()
    def step(x: Tensor, y: Tensor) -> float:
        loss = (model(x) - y).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for momentum, param, gradient in zip(
                momenta.values(), model.parameters(), gradients, strict=True
            ):
                momentum.mul_(0.9).add_(gradient)
                param.sub_(0.05 * momentum)
        return loss.item()

    def held() -> dict[str, Any]:
        own = {name: param.detach() for name, param in model.named_parameters()}
        own |= {f"{name}/momentum": momentum for name, momentum in momenta.items()}
        return {name: (value, [(0, size) for size in value.shape]) for name, value in own.items()}

    return step, held


def small_batches(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(5, 4, generator=generator), torch.randn(5, 3, generator=generator)


def test_a_run_that_is_killed_in_any_moment_of_a_save_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation on the folder in turn is the last one before the kill, also those of `tidy`."""
    wanted = train(a_small_run, small_batches, 5, tmp_path / "undisturbed", every=2)
    done = [0, 0]  # operations so far, and before which one the kill comes

    def mortal(name: str) -> Callable[..., None]:
        operation = getattr(Folder, name)

        def die_or_do(self: Folder, *arguments: Any) -> None:
            done[0] += 1
            if done[0] == done[1]:
                raise KeyboardInterrupt
            operation(self, *arguments)

        return die_or_do

    for name in ("write", "sync", "rename", "remove", "sync_folder"):
        monkeypatch.setattr(Folder, name, mortal(name))
    for last in range(1, 500):
        done[:] = 0, last
        folder = tmp_path / str(last)
        try:
            train(a_small_run, small_batches, 5, folder, every=2)
        except KeyboardInterrupt:
            assert train(a_small_run, small_batches, 5, folder, every=2) == wanted
        else:
            break
    assert 40 < last < 499


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path) -> None:
    wanted = train(a_small_run, small_batches, 8, tmp_path / "undisturbed", every=2)
    train(a_small_run, small_batches, 6, tmp_path / "run", every=2)
    piece = next((tmp_path / "run").glob("6.*piece-0"))
    piece.write_bytes(b"\0" * len(piece.read_bytes()))
    with pytest.warns(UserWarning, match=r"checksum is another.*step 6 is not used"):
        assert train(a_small_run, small_batches, 8, tmp_path / "run", every=2) == wanted


def test_a_finished_run_does_nothing_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    wanted = train(a_small_run, small_batches, 9, tmp_path / "undisturbed", every=4)

    def no_more(step: int) -> tuple[Tensor, Tensor]:
        raise AssertionError(step)

    first = train(a_small_run, small_batches, 5, tmp_path / "run", every=4)
    assert first == wanted[:5] == train(a_small_run, no_more, 5, tmp_path / "run", every=4)
    assert train(a_small_run, no_more, 3, tmp_path / "run", every=4) == wanted[:3]
    assert train(a_small_run, small_batches, 9, tmp_path / "run", every=4) == wanted
    assert train(a_small_run, no_more, 0, tmp_path / "none", every=4) == []
    kept = [name for name in Folder(tmp_path / "run").names() if name.startswith("step-")]
    assert kept == ["step-00000008", "step-00000009"]
    with pytest.raises(ValueError, match="every=0"):
        train(a_small_run, no_more, 5, tmp_path / "none", every=0)


def test_a_disk_in_memory_a_folder_and_a_path_are_all_taken(tmp_path: Path) -> None:
    wanted = train(a_small_run, small_batches, 5, Disk(), every=2)
    assert train(a_small_run, small_batches, 5, str(tmp_path / "path"), every=2) == wanted
    assert train(a_small_run, small_batches, 5, Folder(tmp_path / "folder"), every=2) == wanted
    for saved in (tmp_path / "path", Folder(tmp_path / "path")):
        assert load_run(saved, a_small_run()[1]()) == wanted


def test_a_load_fills_the_tensors_that_it_is_given_and_leaves_them_without_a_checkpoint() -> None:
    disk = Disk()
    step, held = a_small_run()
    fresh = {name: value.clone() for name, (value, _) in held().items()}
    assert load_run(disk, held()) == []
    assert all(torch.equal(value, fresh[name]) for name, (value, _) in held().items())
    losses = [step(*small_batches(0)), step(*small_batches(1))]
    save_run(disk, losses, held())
    trained = {name: value.clone() for name, (value, _) in held().items()}
    again = a_small_run()[1]
    assert load_run(disk, again()) == losses
    assert all(torch.equal(value, trained[name]) for name, (value, _) in again().items())
    with pytest.raises(ValueError, match="it has no another"):
        load_run(disk, {"another": (torch.zeros(1), [(0, 1)])})


# ---- on ranks

CONFIG = GPTConfig(vocab_size=64, context=16, layers=2, heads=2, width=16, tied=False)
ADAMW = torch.optim.AdamW, {"weight_decay": 0.1}
ROWS, STEPS, EVERY = 8, 6, 2
ON_FOUR = {
    "pp 2 tp 2": Layout({"pp": 2, "tp": 2}, 4),
    "dp 2 tp 2, zero-2": Layout({"dp": 2, "tp": 2}, 2, zero=2, sequence=True),
    "pp 2 dp 2, zero-3": Layout({"pp": 2, "dp": 2}, 2, zero=3),
    "dp 2 tp 2, zero-3": Layout({"dp": 2, "tp": 2}, 4, zero=3),
}


def tokens_of(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(
        CONFIG.vocab_size,
        (ROWS, CONFIG.context + 1),
        generator=torch.Generator().manual_seed(step),
    )
    return tokens[:, :-1], tokens[:, 1:]


def maker(layout: Layout) -> Callable[[], Any]:
    def make() -> Any:
        step = make_step(CONFIG, layout, Mesh(layout.sizes), ROWS, 1e-2, optimizer=ADAMW)
        return step, lambda: held_state(step)

    return make


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Each layout of four ranks, without `train`, with it, and interrupted twice; one launch.

    The second interruption comes after a save by a run that was loaded itself. The folder keeps checkpoints.
    """
    folder = tmp_path_factory.mktemp("four")

    def job() -> dict[str, Any]:
        losses = {}
        for name, layout in ON_FOUR.items():
            make = maker(layout)
            step, _ = make()
            wanted = [step(*tokens_of(number)) for number in range(STEPS)]
            undisturbed = train(make, tokens_of, STEPS, folder / name / "undisturbed", EVERY)
            for dies in (3, 4):

                def batches(step: int, dies: int = dies) -> tuple[Tensor, Tensor]:
                    if step == dies:
                        raise InterruptedError
                    return tokens_of(step)

                with pytest.raises(InterruptedError):
                    train(make, batches, STEPS, folder / name / "run", EVERY)
            resumed = train(make, tokens_of, STEPS, folder / name / "run", EVERY)
            losses[name] = wanted, undisturbed, resumed
        make = maker(Layout({"dp": 2, "tp": 2}, 4))  # whole tensors, and the checkpoint has shards
        with pytest.raises(ValueError, match="lacks what a rank wants") as error:
            train(make, tokens_of, STEPS, folder / "dp 2 tp 2, zero-3" / "run", EVERY)
        return losses | {"another layout": str(error.value)}

    (folder / "made").mkdir()
    for name in ON_FOUR:
        (folder / name).mkdir()
    return folder, list(launch(job, world_size=4, backend="gloo", timeout=120))


@pytest.mark.parametrize("name", ON_FOUR)
def test_four_ranks_go_on_to_the_last_bit(name: str, trained: Any) -> None:
    for results in trained[1]:
        wanted, undisturbed, resumed = results[name]
        assert wanted == undisturbed == resumed and len(set(wanted)) == STEPS


def test_the_state_of_another_layout_is_refused(trained: Any) -> None:
    for results in trained[1]:
        assert "it has no " in results["another layout"]


@pytest.mark.parametrize("name", ON_FOUR)
def test_one_process_loads_the_model_that_ranks_have_saved(name: str, trained: Any) -> None:
    """Its loss on rows that no layout matters for is that of one process, trained as long."""
    torch.manual_seed(7)
    model = GPT(CONFIG)
    if name == "dp 2 tp 2, zero-3":
        with pytest.raises(ValueError, match=r"it has no token_embedding\.weight"):
            load_model(trained[0] / name / "run", model)
        return
    assert load_model(trained[0] / name / "run", model) == STEPS
    torch.manual_seed(0)
    wanted = GPT(CONFIG)
    optimizer = torch.optim.AdamW(wanted.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(STEPS):
        inputs, targets = tokens_of(step)
        next_token_loss(wanted(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for (name, ours), theirs in zip(model.named_parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3, msg=name)
    with torch.no_grad():
        inputs, targets = tokens_of(99)
        ours, theirs = (next_token_loss(one(inputs), targets) for one in (model, wanted))
    assert float(ours) == pytest.approx(float(theirs), abs=1e-3)


def test_a_folder_without_a_checkpoint_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        load_model(tmp_path, GPT(CONFIG))


def test_a_rank_that_is_killed_by_the_system_costs_no_loss(tmp_path: Path) -> None:
    """SIGKILL in step 3, of rank 1: the run goes on from step 2, in new processes."""
    layout = Layout({"dp": 2}, 4, zero=1)

    def job(folder: str, dies: int | None) -> list[float]:
        def batches(step: int) -> tuple[Tensor, Tensor]:
            if step == dies and torch.distributed.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return tokens_of(step)

        return train(maker(layout), batches, STEPS, folder, EVERY)

    run = {"world_size": 2, "backend": "gloo"}
    wanted = launch(job, str(tmp_path / "undisturbed"), None, **run)
    with pytest.raises(RankError):
        launch(job, str(tmp_path / "run"), 3, **run)
    assert [name for name in Folder(tmp_path / "run").names() if "step-" in name] == [
        "step-00000002"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(launch(job, str(tmp_path / "run"), None, **run)) == list(wanted)


def test_an_optimizer_whose_states_would_be_left_out_is_refused() -> None:
    def job() -> list[str]:
        layout, said = Layout({"dp": 2}, 4, zero=1), []
        step = make_step(CONFIG, layout, Mesh(layout.sizes), ROWS, 1e-2, optimizer=ADAMW)
        parameters = [param for stage in step.stages for param in stage.module.parameters()]
        for optimizer in (ADAMW, torch.optim.AdamW(parameters)):
            step.optimizer = optimizer
            with pytest.raises(TypeError) as error:
                held_state(step)
            said.append(str(error.value))
        return said

    for pair, whole in launch(job, world_size=2, backend="gloo"):
        assert "is a pair (class, options), and not an optimizer" in pair
        assert "asks for ZeRO-1, but `step.optimizer` (AdamW) holds whole parameters" in whole
