"""The vocabulary's two ends and a whole GPT over ranks: values, training, saved states, PyTorch's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib import device, launch, tensor_parallel
from course_lib.data import batch, library_text
from course_lib.models import GPT, GPTConfig, next_token_loss


def test_a_gpt_cut_over_two_ranks_has_the_loss_and_the_gradient_of_one_process() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=21, context=12, layers=2, heads=2, width=8)).double()
    tokens, targets = torch.randint(21, (2, 3, 12))

    def job() -> tuple[Tensor, Tensor]:
        parallel = tensor_parallel.parallelize_gpt(model)
        loss = tensor_parallel.vocab_parallel_cross_entropy(
            parallel(tokens), targets, vocab_size=21
        )
        loss.backward()
        return loss.detach(), parallel.norm.weight.grad

    ranks = launch(job, world_size=2, backend="gloo")
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    for result in ranks:
        torch.testing.assert_close(result, (loss.detach(), model.norm.weight.grad))


RequireRanks = Callable[[int], None]
SEQUENCES = (None, "keep", "regather")
VOCABULARY, CONTEXT = 50, 24  # 3, 4 and 8 ranks do not divide the vocabulary
SMALL = {"vocab_size": VOCABULARY, "context": CONTEXT, "layers": 2, "heads": 12, "width": 24}
CONFIGS = {
    "GPT-2": GPTConfig(**SMALL),
    "LLaMA": GPTConfig(
        **SMALL, kv_heads=4, mlp="swiglu", hidden=37, norm="rms", positions="rotary",
        bias=False, tied=False,
    ),
    "a norm without bias, one key head": GPTConfig(**SMALL, kv_heads=1, bias=False),
}  # fmt: skip


def same(found: Tensor, wanted: Tensor, *case: object) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=1e-9, atol=1e-11, msg=lambda text: f"{case}, rank {dist.get_rank()}: {text}"
    )  # fmt: skip


def own(x: Tensor, dim: int) -> Tensor:
    return x.tensor_split(dist.get_world_size(), dim)[dist.get_rank()]


# ---- embedding and loss


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(result) if isinstance(one, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return result


def loss_cases(seed: int) -> None:
    """Ignored targets, large logits, masked tokens, any vocabulary, every reduction."""
    n = dist.get_world_size()
    for vocabulary, scale in [(7, 1.0), (2, 1.0), (12 * n, 1000.0), (41, 1e-3)]:
        generator = torch.Generator().manual_seed(seed)
        logits = scale * torch.randn(3, 5, vocabulary, dtype=torch.float64, generator=generator)
        logits = logits.to(device())
        if vocabulary == 41:
            logits[..., 3] = -torch.inf
        target = torch.randint(4, vocabulary, (3, 5), generator=generator) if vocabulary > 4 else (
            torch.randint(0, 2, (3, 5), generator=generator))  # fmt: skip
        target[0, :2] = -100
        target = target.to(device())
        given = None if vocabulary % n == 0 else vocabulary
        for reduction in ("mean", "sum", "none"):
            case = (vocabulary, reduction)
            whole = logits.clone().requires_grad_()
            expected = F.cross_entropy(whole.flatten(0, 1), target.flatten(), reduction=reduction)
            expected = expected.view(3, 5) if reduction == "none" else expected
            weights = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
            weights = weights.to(device())
            (expected * weights).sum().backward()
            part = own(logits, -1).clone().requires_grad_()
            loss = tensor_parallel.vocab_parallel_cross_entropy(
                part, target, vocab_size=given, reduction=reduction
            )
            (loss * weights).sum().backward()
            assert part.grad is not None and whole.grad is not None
            same(loss.detach(), expected.detach(), *case)
            same(part.grad, own(whole.grad, -1), *case)


def embedding_cases(seed: int) -> None:
    n = dist.get_world_size()
    for rows, sequence in [(11, None), (2, None), (11, "keep"), (16, "regather")]:
        with device():  # where the parallel one sends its values when it is made
            torch.manual_seed(seed)
            reference = nn.Embedding(rows, 6).double()
            torch.manual_seed(seed + dist.get_rank())
            embedding = tensor_parallel.VocabParallelEmbedding(rows, 6, sequence=sequence).double()
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, rows, (3, 2 * n), generator=generator).to(device())
        expected, found = reference(tokens), embedding(tokens)
        same(found, own(expected, -2) if sequence else expected, rows, sequence)
        weights = torch.randn(expected.shape, generator=generator.manual_seed(seed)).to(device())
        (expected * weights).sum().backward()
        (found * (own(weights, -2) if sequence else weights)).sum().backward()
        assert embedding.weight.grad is not None and reference.weight.grad is not None
        same(embedding.weight.grad, own(reference.weight.grad, 0), rows, sequence)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_embedding_and_loss_are_the_unsharded_ones(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    require_ranks(world_size)

    def body() -> None:
        loss_cases(seed)
        embedding_cases(seed)

    launch(body, world_size=world_size, backend=backend, timeout=120)


def test_no_rank_holds_the_full_logits(seed: int):
    """The largest tensor of forward and backward is the rank's part; in bf16 the loss is float32's."""

    def body() -> tuple[int, float]:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(6, 5, 400, generator=generator).bfloat16()
        target = torch.randint(0, 400, (6, 5), generator=generator)
        expected = F.cross_entropy(logits.float().flatten(0, 1), target.flatten())
        part = own(logits, -1).clone().requires_grad_()
        with Largest() as largest:
            loss = tensor_parallel.vocab_parallel_cross_entropy(part, target)
            loss.backward()
        assert loss.dtype == torch.float32 and part.grad is not None
        assert part.grad.dtype == torch.bfloat16
        return largest.numel, float((loss - expected).abs())

    for numel, error in launch(body, world_size=4, backend="gloo"):
        assert numel == 6 * 5 * 100
        assert error < 1e-5


def test_the_loss_refuses_what_does_not_fit():
    def body() -> list[str]:
        logits = torch.randn(2, 3, 4 - dist.get_rank())  # parts of 7
        target = torch.zeros(2, 3, dtype=torch.long)
        told = []
        for change in (
            {"target": target[:1]},
            {"vocab_size": 9},
            {"target": target + 7},
            {"target": target - 1},
            {"reduction": "average"},
        ):
            with pytest.raises(ValueError) as error:
                tensor_parallel.vocab_parallel_cross_entropy(
                    **{"logits": logits, "target": target, "vocab_size": 7, **change}
                )
            told.append(str(error.value))
        nothing = tensor_parallel.vocab_parallel_cross_entropy(logits, target - 100, vocab_size=7)
        assert nothing.isnan()  # the mean over no target, as in PyTorch
        return told

    words = [
        "one target for each",
        "it should hold",
        "target 7 lies outside",
        "target -1",
        "'average'",
    ]
    for told in launch(body, world_size=2, backend="gloo"):
        assert all(word in sentence for word, sentence in zip(words, told, strict=True))


# ---- a GPT


def make(config: GPTConfig, seed: int) -> GPT:
    """In float64, its biases and norms moved away from 0 and 1."""
    torch.manual_seed(seed)
    model = GPT(config).double()
    for param in model.parameters():
        param.data += 0.1 * torch.randn_like(param)
    return model.to(device())


def full_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of all parameters as the unsharded model has them."""
    gradients = copy.deepcopy(model)
    for held, param in zip(gradients.parameters(), model.parameters(), strict=True):
        assert param.grad is not None
        held.data = param.grad
    return tensor_parallel.full_state_dict(gradients)


def gpt_case(name: str, sequence: str | None, seed: int) -> None:
    config = CONFIGS[name]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, VOCABULARY, (2, 2, CONTEXT), generator=generator)
    tokens, targets = drawn.to(device())
    targets[0, :5] = -100
    reference = make(config, seed)
    model = tensor_parallel.parallelize_gpt(make(config, seed + dist.get_rank()), sequence=sequence)
    expected = next_token_loss(reference(tokens), targets)
    expected.backward()
    logits = model(tokens)
    loss = tensor_parallel.vocab_parallel_cross_entropy(logits, targets, vocab_size=VOCABULARY)
    loss.backward()
    same(loss, expected, name, sequence)
    found = full_gradients(model)
    for key, param in reference.named_parameters():
        assert param.grad is not None
        same(found[key], param.grad, name, sequence, key)
    state = tensor_parallel.full_state_dict(model)
    assert state.keys() == reference.state_dict().keys()
    for key, value in reference.state_dict().items():
        assert torch.equal(state[key], value), (name, key)
    if config.tied:
        assert model.head.weight is model.token_embedding.weight
    with pytest.raises(ValueError, match="parallel layers already"):
        tensor_parallel.parallelize_gpt(model)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_gpt_is_that_of_one_process(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """Loss, every gradient and the state dict; the group's first rank's weights count."""
    require_ranks(world_size)

    def body() -> None:
        for name, config in CONFIGS.items():
            if config.key_value_heads % world_size and world_size % config.key_value_heads:
                continue
            for sequence in SEQUENCES:
                gpt_case(name, sequence, seed)

    launch(body, world_size=world_size, backend=backend, timeout=240)


def test_four_ranks_save_what_two_and_one_load(seed: int):
    config = CONFIGS["LLaMA"]

    def save() -> dict[str, Tensor]:
        model = tensor_parallel.parallelize_gpt(make(config, seed).eval(), sequence="keep")
        assert not any(module.training for module in model.modules())
        return tensor_parallel.full_state_dict(model)

    def load(state: dict[str, Tensor]) -> Tensor:
        model = tensor_parallel.parallelize_gpt(make(config, seed + 1))
        tensor_parallel.load_full_state_dict(model, state)
        with pytest.raises(ValueError, match="has shape"):
            tensor_parallel.load_full_state_dict(
                model, {**state, "head.weight": state["head.weight"][:VOCABULARY - 1]}
            )  # fmt: skip
        with pytest.raises(RuntimeError, match="Missing key"):
            tensor_parallel.load_full_state_dict(model, {"head.weight": state["head.weight"]})
        return model(torch.arange(CONTEXT)[None])

    state = launch(save, world_size=4, backend="gloo")[2]
    reference = make(config, seed)
    expected = reference(torch.arange(CONTEXT)[None])
    parts = launch(load, state, world_size=2, backend="gloo")
    torch.testing.assert_close(torch.cat(list(parts), -1), expected, rtol=1e-10, atol=1e-10)
    other = make(config, seed + 1)
    other.load_state_dict(state)
    assert torch.equal(other(torch.arange(CONTEXT)[None]), expected)


def test_dropout_leaves_the_stream_equal_on_all_ranks(seed: int):
    """Whole sequences: the same masks on every rank. Parts: every rank has masks of its own."""

    def body() -> dict[str | None, Tensor]:
        config = GPTConfig(**SMALL, dropout=0.5)
        seen = {}
        for sequence in (None, "keep"):
            torch.manual_seed(seed + dist.get_rank())
            model = tensor_parallel.parallelize_gpt(GPT(config), sequence=sequence)
            tokens = torch.zeros(2, CONTEXT, dtype=torch.long)
            if model.position_embedding is not None:
                nn.init.zeros_(model.position_embedding.weight)  # all tokens are alike
            seen[sequence] = model.embed(tokens, torch.arange(CONTEXT))
            for block in model.blocks:
                seen[sequence] = block(seen[sequence], torch.arange(CONTEXT))
            first = model.embed(tokens, torch.arange(CONTEXT))
            seen["zeros", sequence] = first == 0
        return seen

    first, second = launch(body, world_size=2, backend="gloo")
    assert torch.equal(first[None], second[None])
    assert torch.equal(first["zeros", None], second["zeros", None])
    assert not torch.equal(first["zeros", "keep"], second["zeros", "keep"])


@pytest.mark.parametrize("world_size", [2, 4])
def test_fifty_steps_lose_what_one_rank_loses(world_size: int):
    """In float32, within 1e-4, on the standard library's text. SGD shows a wrong scale of gradients.

    AdamW at 1e-3: at 3e-3 it makes 1e-4 of rounding alone, between float32 and float64 on one rank.
    """
    config = GPTConfig(context=32, layers=2, heads=4, kv_heads=2, width=32, positions="rotary")

    def train(model: Any, optimizer: str, parallel: bool) -> list[float]:
        text, losses = library_text(), []
        made = (
            torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
            if optimizer == "SGD"
            else torch.optim.AdamW(model.parameters(), lr=1e-3)
        )
        for step in range(50):
            inputs, targets = batch(text, step, batch_size=4, length=32)
            made.zero_grad()
            if parallel:
                loss = tensor_parallel.vocab_parallel_cross_entropy(
                    model(inputs), targets, vocab_size=256
                )
            else:
                loss = next_token_loss(model(inputs), targets)
            loss.backward()
            made.step()
            losses.append(loss.item())
        return losses

    def body() -> dict[tuple, list[float]]:
        found = {}
        for optimizer, sequence in cases:
            torch.manual_seed(0)
            model = tensor_parallel.parallelize_gpt(GPT(config), sequence=sequence)
            found[optimizer, sequence] = train(model, optimizer, True)
        return found

    def alone() -> dict[str, list[float]]:
        losses = {}
        for optimizer in {optimizer for optimizer, _ in cases}:
            torch.manual_seed(0)
            losses[optimizer] = train(GPT(config), optimizer, False)
        return losses

    cases = {
        2: [("SGD", None), ("SGD", "regather")],
        4: [("SGD", "keep"), ("AdamW", None)],
    }[world_size]
    (wanted,) = launch(alone, world_size=1, backend="gloo")  # there one thread, as the ranks
    assert all(losses[-1] < losses[0] - 1.5 for losses in wanted.values())
    for results in launch(body, world_size=world_size, backend="gloo", timeout=300):
        for (optimizer, sequence), losses in results.items():
            difference = max(abs(a - b) for a, b in zip(losses, wanted[optimizer], strict=True))
            assert difference < 1e-4, (optimizer, sequence, difference)


# ---- PyTorch's own


def theirs(model: GPT, sequence: bool) -> GPT:
    """The same model by `parallelize_module`, with whole sequences or with parts of them."""
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    stream = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        plan |= {"norm": SequenceParallel()}
        plan["head"] = ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        )
    for i in range(len(model.blocks)):
        block: dict[str, Any] = {
            "attention": PrepareModuleInput(
                input_layouts=(stream, None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=stream),
            "mlp": PrepareModuleInput(
                input_layouts=(stream,), desired_input_layouts=(Replicate(),)
            ),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=stream),
        }
        if sequence:
            block |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        plan |= {f"blocks.{i}.{name}": style for name, style in block.items()}
    return parallelize_module(model, mesh, plan)


def test_the_values_are_those_of_parallelize_module(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """ColwiseParallel, RowwiseParallel, SequenceParallel and loss_parallel on the same GPT, in float64."""
    require_ranks(2)
    config = GPTConfig(
        vocab_size=48, context=16, layers=2, heads=4, width=16, positions="rotary", tied=False
    )

    def body() -> dict[bool, float]:
        warnings.simplefilter("ignore")
        generator = torch.Generator().manual_seed(seed)
        tokens, targets = torch.randint(0, 48, (2, 2, 16), generator=generator).to(device())
        errors = {}
        for sequence in (False, True):
            ours = tensor_parallel.parallelize_gpt(
                make(config, seed), sequence="keep" if sequence else None
            )
            loss = tensor_parallel.vocab_parallel_cross_entropy(ours(tokens), targets)
            loss.backward()
            model = theirs(make(config, seed), sequence)
            with loss_parallel():
                logits = model(tokens)
                their_loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
                their_loss.backward()
            assert isinstance(their_loss, DTensor)
            same(loss.detach(), their_loss.full_tensor().detach(), sequence)
            found = full_gradients(ours)
            errors[sequence] = 0.0
            for name, param in model.named_parameters():
                gradient = param.grad
                assert gradient is not None
                whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                errors[sequence] = max(errors[sequence], float((found[name] - whole).abs().max()))
        return errors

    for errors in launch(body, world_size=2, backend=backend, timeout=120):
        assert errors.keys() == {False, True}
        assert max(errors.values()) < 1e-10
