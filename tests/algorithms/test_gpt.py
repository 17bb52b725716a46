"""The GPT against plain compositions of PyTorch, its counts against the formulas, and that it learns."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course_lib import facts
from course_lib.data import batch, library_text
from course_lib.models import GPT, PRESETS, GPTConfig, causal_attention, next_token_loss, rotate


def test_attention_is_a_softmax_over_the_tokens_so_far() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 5, 2, 4, dtype=torch.float64)  # 5 tokens, 2 heads of 4 numbers
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4**0.5
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    wanted = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    torch.testing.assert_close(causal_attention(q, k, v), wanted)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread, as in a rank: threads of two tests side by side only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


GPT2 = GPTConfig(vocab_size=31, context=17, layers=2, heads=3, width=24)
LLAMA = replace(
    GPT2, heads=6, kv_heads=2, mlp="swiglu", norm="rms", positions="rotary", bias=False, tied=False
)
KINDS = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])


def drawn_config(draw: random.Random) -> GPTConfig:
    heads = draw.choice([1, 2, 3, 4, 6])
    return GPTConfig(
        vocab_size=draw.randint(2, 50),
        context=draw.randint(8, 20),
        layers=draw.randint(1, 3),
        heads=heads,
        width=heads * draw.choice([2, 4, 6, 10]),
        kv_heads=draw.choice([None, *(n for n in range(1, heads + 1) if heads % n == 0)]),
        hidden=draw.choice([None, draw.randint(1, 40)]),
        mlp=draw.choice(["gelu", "swiglu"]),
        norm=draw.choice(["layer", "rms"]),
        positions=draw.choice(["learned", "rotary"]),
        bias=draw.random() < 0.5,
        tied=draw.random() < 0.5,
    )


def made(config: GPTConfig, seed: int, **kwargs) -> GPT:
    """A GPT in float64 whose weights show every mistake: biases and norms are drawn too, none is small."""
    torch.manual_seed(seed)
    model = GPT(config, **kwargs).double()
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn_like(param) * 0.3 + (param.dim() == 1) * 0.5)
    return model.eval()


def tokens_for(config: GPTConfig, batch_size: int = 3, seq: int | None = None) -> Tensor:
    return torch.randint(config.vocab_size, (batch_size, seq or config.context))


# ---- values: GPTs written again, with nn.MultiheadAttention and with only products and a softmax


def plain_gpt2(model: GPT, tokens: Tensor) -> Tensor:
    """GPT-2 by `nn.MultiheadAttention` and `nn.functional`."""
    config, weights = model.config, dict(model.named_parameters())
    width, seq = config.width, tokens.shape[1]
    mask = nn.Transformer.generate_square_subsequent_mask(seq, dtype=torch.float64)
    x = weights["token_embedding.weight"][tokens] + weights["position_embedding.weight"][:seq]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    for i in range(config.layers):
        one = f"blocks.{i}"
        of = [f"{one}.attention.{name}" for name in ("query", "key", "value", "out")]
        attention = nn.MultiheadAttention(width, config.heads, batch_first=True).double()
        replaced = {
            "in_proj_weight": torch.cat([weights[f"{name}.weight"] for name in of[:3]]),
            "in_proj_bias": torch.cat([weights[f"{name}.bias"] for name in of[:3]]),
            "out_proj.weight": weights[f"{of[3]}.weight"],
            "out_proj.bias": weights[f"{of[3]}.bias"],
        }
        h = norm(x, f"{one}.attention_norm")
        h, _ = torch.func.functional_call(attention, replaced, (h, h, h), {"attn_mask": mask})
        x = x + h
        h = linear(norm(x, f"{one}.mlp_norm"), f"{one}.mlp.up")
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"{one}.mlp.down")
    return norm(x, "norm") @ weights["token_embedding.weight"].T


def plain_llama(model: GPT, tokens: Tensor) -> Tensor:
    """LLaMA by products and a softmax, one head at a time, positions by complex numbers."""
    config, weights = model.config, dict(model.named_parameters())
    seq, dim = tokens.shape[1], config.head_dim
    frequencies = 10_000.0 ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    turns = torch.polar(
        torch.ones(seq, dim // 2, dtype=torch.float64),
        torch.arange(seq)[:, None] * frequencies,
    )
    x = weights["token_embedding.weight"][tokens]

    def norm(x: Tensor, name: str) -> Tensor:
        return weights[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * turns
        return torch.cat((pairs.real, pairs.imag), -1)

    for i in range(config.layers):
        one = {
            name.removeprefix(f"blocks.{i}."): weight
            for name, weight in weights.items()
            if name.startswith(f"blocks.{i}.")
        }
        h = norm(x, f"blocks.{i}.attention_norm")
        q, k, v = (
            (h @ one[f"attention.{name}.weight"].T).split(dim, -1)
            for name in ("query", "key", "value")
        )
        heads = []
        for head in range(config.heads):
            shared = head // (config.heads // config.key_value_heads)
            scores = turned(q[head]) @ turned(k[shared]).mT / math.sqrt(dim)
            scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -math.inf)
            heads.append(scores.softmax(-1) @ v[shared])
        x = x + torch.cat(heads, -1) @ one["attention.out.weight"].T
        h = norm(x, f"blocks.{i}.mlp_norm")
        gate = h @ one["mlp.gate.weight"].T
        h = gate * torch.sigmoid(gate) * (h @ one["mlp.up.weight"].T)
        x = x + h @ one["mlp.down.weight"].T
    return norm(x, "norm") @ weights["head.weight"].T


@pytest.mark.parametrize(
    ("config", "plain"), [(GPT2, plain_gpt2), (LLAMA, plain_llama)], ids=["gpt2", "llama"]
)
def test_logits_and_gradients_are_those_of_a_plain_composition(config, plain, seed):
    model = made(config, seed)
    tokens = tokens_for(config)
    ours, theirs = model(tokens), plain(model, tokens)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    weights, params = torch.randn_like(ours), list(model.parameters())
    mine = torch.autograd.grad((ours * weights).sum(), params)
    plains = torch.autograd.grad((theirs * weights).sum(), params)
    # Relative to the largest of all: the gradient of a key's bias is 0, as it moves a query's scores alike.
    error = 1e-12 * max(float(gradient.abs().max()) for gradient in plains)
    for (name, _), one, other in zip(model.named_parameters(), mine, plains, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=error, msg=name)


@KINDS
@torch.no_grad()
def test_bfloat16_is_the_same_model(config, seed):
    torch.manual_seed(seed)
    model, tokens = GPT(config), tokens_for(config)
    exact = model(tokens)
    rounded = copy.deepcopy(model).bfloat16()(tokens)
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.double() - exact).abs().max()) < 0.05 * float(exact.abs().max())


# ---- causality and positions


def test_the_future_does_not_reach_the_past_and_the_past_reaches_the_future(seed):
    draw = random.Random(seed)
    for config in (GPT2, LLAMA, *(drawn_config(draw) for _ in range(6))):
        model, tokens = made(config, seed), tokens_for(config, 2)
        for place in range(config.context):
            changed = tokens.clone()
            changed[:, place] = (changed[:, place] + 1) % config.vocab_size
            same = (model(changed) == model(tokens)).all(-1)
            assert same[:, :place].all(), f"token {place} reaches back: {config}"
            assert not same[:, place:].any(), f"token {place} is not seen: {config}"


@KINDS
def test_tokens_in_another_order_with_their_positions_give_the_same(config, seed):
    """As on a rank of context parallelism: the attention knows the tokens' order, the model does not."""
    torch.manual_seed(seed)
    order = torch.randperm(config.context)
    back = order.argsort()

    def in_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_attention(q[:, back], k[:, back], v[:, back])[:, order]

    model, tokens = made(config, seed), tokens_for(config)
    expected = model(tokens)
    for block in model.blocks:
        block.attention.attend = in_order
    torch.testing.assert_close(model(tokens[:, order], order), expected[:, order])
    by_row = model(tokens[:, order], order.expand(len(tokens), -1))
    torch.testing.assert_close(by_row, expected[:, order])


def test_each_row_may_have_positions_of_its_own(seed):
    model, tokens = made(GPT2, seed), tokens_for(GPT2, 2, 5)
    rows = torch.stack([torch.arange(5), torch.arange(5) + 7])
    together = model(tokens, rows)
    for i in range(2):
        torch.testing.assert_close(together[i : i + 1], model(tokens[i : i + 1], rows[i]))
    assert not torch.allclose(together[1], model(tokens)[1])


def test_rotary_positions_count_by_their_differences_alone(seed):
    model, tokens = made(LLAMA, seed), tokens_for(LLAMA, 2, 5)
    there = torch.arange(5)
    torch.testing.assert_close(model(tokens, there + 11), model(tokens, there))
    assert not torch.allclose(model(tokens, there * 3), model(tokens, there))


def test_rotation_is_exact_enough_in_bfloat16():
    """Position 1,001 rounded to bf16 is 1,000: an angle off by a whole radian."""
    x = torch.randn(1, 1, 2, 8)
    place = torch.tensor([1001])
    exact = rotate(x.bfloat16().double(), place)
    rounded = rotate(x.bfloat16(), place)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), exact, rtol=0.01, atol=0.01)


@KINDS
def test_the_attention_is_whatever_is_given(config, seed):
    shapes = []

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shapes.append((tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        return causal_attention(q, k, v)

    tokens = tokens_for(config)
    given, plain = made(config, seed, attention=attention), made(config, seed)
    torch.testing.assert_close(given(tokens), plain(tokens))
    queries = (3, config.context, config.heads, config.head_dim)
    keys = (3, config.context, config.key_value_heads, config.head_dim)
    assert shapes == [(queries, keys, keys)] * config.layers


def test_the_parts_make_the_whole(seed):
    """As stages of a pipeline use them."""
    model, tokens = made(LLAMA, seed), tokens_for(LLAMA)
    places = torch.arange(tokens.shape[1])
    x = model.embed(tokens, places)
    for block in model.blocks:
        x = block(x, places)
    assert torch.equal(model.logits(x), model(tokens))


# ---- weights


def test_a_seed_gives_the_weights():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([param.flatten() for param in GPT(GPT2).parameters()]))
    assert torch.equal(models[0], models[1]) and not torch.equal(models[0], models[2])


@pytest.mark.parametrize("tied", [True, False])
def test_initial_weights_are_gpt2s_and_the_first_loss_is_that_of_a_guess(tied, seed):
    torch.manual_seed(seed)
    model = GPT(replace(PRESETS["0.8M"], tied=tied))
    for name, param in model.state_dict().items():
        if param.dim() == 1:
            assert (param == (0 if name.endswith("bias") else 1)).all(), name
        else:
            adds = name.endswith(("out.weight", "down.weight"))
            assert float(param.std()) == pytest.approx(0.02 / (8**0.5 if adds else 1), rel=0.05), (
                name
            )
    assert (model.head.weight is model.token_embedding.weight) is tied
    tokens = torch.randint(256, (4, 65))
    loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    assert loss.item() == pytest.approx(math.log(256), abs=0.15)


def test_dropout_is_for_training_alone(seed):
    torch.manual_seed(seed)
    model, tokens = GPT(replace(GPT2, dropout=0.5)), tokens_for(GPT2)
    assert not torch.equal(model(tokens), model(tokens))
    x = torch.randn(8, 9, GPT2.width)
    places = torch.arange(9)
    dropped = model.embed(tokens_for(GPT2, 50), torch.arange(GPT2.context)) == 0
    assert float(dropped.float().mean()) == pytest.approx(0.5, abs=0.05)
    kept = (model.blocks[0](x, places) == x).float().mean()  # both branches dropped: one in four
    assert float(kept) == pytest.approx(0.25, abs=0.06)
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_ignored_targets_do_not_count(seed):
    torch.manual_seed(seed)
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    targets[0, 2:] = -100
    mean = -logits.log_softmax(-1).gather(2, targets.clamp(min=0)[..., None])[targets >= 0].mean()
    torch.testing.assert_close(next_token_loss(logits, targets), mean)
    torch.testing.assert_close(next_token_loss(logits, targets, reduction="sum"), 7 * mean)


# ---- counts


def counted(config: GPTConfig) -> int:
    with torch.device("meta"):
        return sum(param.numel() for param in GPT(config).parameters())


def test_the_largest_preset_is_gpt2_small():
    assert counted(PRESETS["124M"]) == 124_439_808 == facts.transformer_parameters(PRESETS["124M"])
    gpt2_xl = replace(PRESETS["124M"], layers=48, heads=25, width=1600)
    assert facts.transformer_parameters(gpt2_xl) == 1_557_611_200


def test_llama2_7b_by_formula():
    """Its configuration as published: 6,738,415,616 parameters."""
    llama = GPTConfig(
        vocab_size=32000,
        context=4096,
        layers=32,
        heads=32,
        width=4096,
        hidden=11008,
        mlp="swiglu",
        norm="rms",
        positions="rotary",
        bias=False,
        tied=False,
    )
    assert facts.transformer_parameters(llama) == 6_738_415_616


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_named_by_their_size(name):
    number = counted(PRESETS[name]) / 1e6
    assert number == pytest.approx(float(name.removesuffix("M")), abs=0.5 if number > 2 else 0.06)
    assert counted(PRESETS[name]) == facts.transformer_parameters(PRESETS[name])


def test_modern_parts_leave_the_sizes():
    modern = PRESETS["3M"].modern()
    assert (modern.mlp, modern.norm, modern.positions, modern.bias) == (
        "swiglu",
        "rms",
        "rotary",
        False,
    )
    assert (modern.layers, modern.width, modern.mlp_width) == (6, 192, 512)
    assert counted(modern) == pytest.approx(counted(PRESETS["3M"]), rel=0.03)


def test_parameters_by_formula_are_those_counted(seed):
    draw = random.Random(seed)
    for _ in range(30):
        config = drawn_config(draw)
        assert facts.transformer_parameters(config) == counted(config), config
        with torch.device("meta"):
            block = GPT(config).blocks[0]
        parts = {"attention": facts.attention_parameters, "mlp": facts.mlp_parameters}
        for part, formula in parts.items():
            size = sum(param.numel() for param in block.get_submodule(part).parameters())
            assert formula(config) == size, (part, config)


def flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_flops_by_formula_are_those_counted(seed):
    """With attention by plain products: PyTorch's counter does not know the fused kernel of the CPU."""
    draw = random.Random(seed)
    for _ in range(10):
        config = drawn_config(draw)
        model, seq = GPT(config), draw.randint(1, config.context)
        tokens = tokens_for(config, draw.randint(1, 3), seq)
        sizes = (config, len(tokens), seq)
        with sdpa_kernel([SDPBackend.MATH]):
            loss = next_token_loss(model(tokens), tokens)
            forward = flops(lambda: model(tokens))  # noqa: B023
            backward = flops(loss.backward)
        assert facts.transformer_flops(*sizes, backward=False) == forward, config
        assert facts.transformer_flops(*sizes) == forward + backward, config


def test_flops_with_blocks_computed_again(seed):
    draw = random.Random(seed)
    config = drawn_config(draw)
    model, tokens = GPT(config), tokens_for(config)

    def step() -> None:
        places = torch.arange(tokens.shape[1])
        x = model.embed(tokens, places)
        for block in model.blocks:
            x = checkpoint(block, x, places, use_reentrant=False)
        next_token_loss(model.logits(x), tokens).backward()

    # By itself PyTorch stops a recomputation as soon as it has what backward needs, one product earlier.
    with sdpa_kernel([SDPBackend.MATH]), set_checkpoint_early_stop(False):
        executed = flops(step)
    assert facts.transformer_flops(config, *tokens.shape, recompute=True) == executed, config


def test_flops_with_attention_computed_again(seed, monkeypatch):
    """Selective recomputation: of each block only the products with the scores run once more."""
    draw = random.Random(seed)
    config = drawn_config(draw)
    model, tokens = GPT(config), tokens_for(config)
    attention = F.scaled_dot_product_attention

    def again(*tensors, **options):
        return checkpoint(attention, *tensors, use_reentrant=False, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", again)
    with sdpa_kernel([SDPBackend.MATH]), set_checkpoint_early_stop(False):
        executed = flops(lambda: next_token_loss(model(tokens), tokens).backward())
    assert facts.transformer_flops(config, *tokens.shape, recompute="selective") == executed, config
    with pytest.raises(ValueError, match="'full' or 'selective', not 'half'"):
        facts.transformer_flops(config, *tokens.shape, recompute="half")


def test_flops_are_those_of_the_papers():
    """72 b s L h^2 (1 + s / 6h + V / 12 L h) for GPT-2's parts, and 96 with recomputation."""
    b, s, L, h, V = 8, 2048, 96, 12288, 51200
    gpt3 = GPTConfig(vocab_size=V, context=s, layers=L, heads=96, width=h)
    model = 72 * b * s * L * h * h * (1 + s / (6 * h) + V / (12 * L * h))
    again = 96 * b * s * L * h * h * (1 + s / (6 * h) + V / (16 * L * h))
    assert facts.transformer_flops(gpt3, b, s) == pytest.approx(model, rel=1e-12)
    assert facts.transformer_flops(gpt3, b, s, recompute=True) == pytest.approx(again, rel=1e-12)
    little = 72 * b * s * L * h * h * (1 + 2 * s / (9 * h) + V / (12 * L * h))
    assert facts.transformer_flops(gpt3, b, s, recompute="selective") == pytest.approx(
        little, rel=1e-12
    )
    assert little / model == pytest.approx(1.009, abs=5e-4)
    rule = facts.six_n_d(facts.matmul_parameters(gpt3), b * s)
    attention = facts.attention_flops(gpt3, b, s)
    assert facts.transformer_flops(gpt3, b, s) - rule == 3 * attention
    assert 3 * attention / rule == pytest.approx(s / (6 * h), rel=0.01)


def test_masked_scores_are_half_of_attention():
    for seq in (1, 2, 1000):
        whole = facts.attention_flops(PRESETS["0.1M"], 3, seq)
        kept = facts.attention_flops(PRESETS["0.1M"], 3, seq, causal=True)
        assert kept / whole == (seq + 1) / (2 * seq)
    less = facts.transformer_flops(PRESETS["0.1M"], 3, 128, causal=True)
    assert less < facts.transformer_flops(PRESETS["0.1M"], 3, 128)


# ---- it learns


def trained(
    model: GPT, data: Callable[[int], tuple[Tensor, Tensor]], steps: int, rate: float = 3e-3
) -> float:
    """The mean loss of the last ten steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        inputs, targets = data(step)
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


@KINDS
def test_it_learns_to_look_back(config, seed):
    """The task: to name the token two places back; without attention or positions it can only be guessed."""
    config = replace(config, vocab_size=8, context=16, layers=1, width=48)

    def recall(step: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(8, (32, 16), generator=torch.Generator().manual_seed(seed + step))
        return tokens, torch.cat((torch.full((32, 2), -100), tokens[:, :-2]), 1)

    def own_value(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)

    torch.manual_seed(seed)
    assert trained(GPT(config), recall, 100) < 0.2
    assert trained(GPT(config, attention=own_value), recall, 30) > 0.95 * math.log(8)


def test_it_learns_text(seed):
    """On text that it has not seen it beats a table of pairs: it uses more than the last byte."""
    torch.manual_seed(seed)
    text, unseen = library_text(), library_text("validation").long()
    pairs = (text[:-1].long() * 256 + text[1:]).bincount(minlength=256**2).view(256, 256) + 0.01
    table = -(pairs / pairs.sum(1, keepdim=True)).log()[unseen[:-1], unseen[1:]].mean()
    model = GPT(PRESETS["0.1M"].modern())

    def data(step: int) -> tuple[Tensor, Tensor]:
        return batch(text, step, batch_size=16, length=64, seed=seed)

    trained(model, data, 250, rate=6e-3)
    inputs, targets = batch(unseen, 0, batch_size=256, length=64)
    with torch.no_grad():
        loss = next_token_loss(model(inputs), targets)
    assert float(loss) < float(table) - 0.05, (float(loss), float(table))


# ---- bad input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"width": 25}, "width=25 cannot be cut into heads=3"),
        ({"kv_heads": 2}, "kv_heads=2 must divide heads=3"),
        ({"kv_heads": 0}, "kv_heads=0 must divide"),
        ({"kv_heads": 6}, "kv_heads=6 must divide"),
        ({"width": 15, "positions": "rotary"}, "15 / 3 = 5 has an odd one"),
        ({"layers": 0}, "layers=0: it must be at least 1"),
        ({"heads": -1}, "heads=-1"),
        ({"hidden": 0}, "hidden=0"),
        ({"mlp": "relu"}, "mlp is gelu or swiglu, not 'relu'"),
        ({"norm": "batch"}, "norm is layer or rms"),
        ({"positions": "none"}, "positions is learned or rotary"),
        ({"dropout": 1.0}, "dropout=1.0 is a probability below 1"),
    ],
)
def test_sizes_that_do_not_fit_get_a_sentence(given, said):
    with pytest.raises(ValueError, match=said):
        replace(GPT2, **given)


@pytest.mark.parametrize(
    ("tokens", "positions", "said"),
    [
        (torch.zeros(1, 18, dtype=torch.long), None, "18 tokens are more than .* context=17"),
        (torch.tensor([[0, 31]]), None, "token 31 lies outside 0 .. 30"),
        (torch.tensor([[-1, 3]]), None, "token -1 lies outside 0 .. 30"),
        (torch.tensor([[0, 3]]), torch.tensor([0, 17]), "position 17 lies outside 0 .. 16"),
        (torch.tensor([[0, 3]]), torch.tensor([0]), "positions must be .* not \\(1,\\)"),
        (torch.tensor([0, 3]), None, "tokens must be \\(batch, seq\\), not \\(2,\\)"),
    ],
)
def test_tokens_that_do_not_fit_get_a_sentence(tokens, positions, said):
    with pytest.raises(ValueError, match=said):
        GPT(GPT2)(tokens, positions)
