"""Experts against a loop over tokens in float64, PyTorch's grouped product, and DDP with all experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from course_lib import device, experts, fsdp, launch, zero
from course_lib.data_parallel import BucketedDataParallel, NaiveDataParallel
from course_lib.facts.experts import DEEPSEEK_V3, MIXTRAL_8X7B, all_to_all_bytes, nodes_touched
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.precision import LossScaler


def test_experts_on_two_ranks_are_those_of_one_process() -> None:
    torch.manual_seed(0)
    x, router = torch.randn(6, 4).double(), torch.randn(4, 4).double()
    w1, w3, w2 = (torch.randn(4, *shape).double() for shape in ((3, 4), (3, 4), (4, 3)))

    def job() -> Tensor:
        rank = dist.get_rank()
        mine = x[3 * rank : 3 * rank + 3]  # its own tokens, and its own experts
        chosen, weights = experts.route(mine @ router.T, k=2)
        own = [w[2 * rank : 2 * rank + 2] for w in (w1, w3, w2)]
        return experts.expert_parallel_moe(mine, chosen, weights, own[0], own[1], own[2])

    found = torch.cat(list(launch(job, world_size=2, backend="gloo")))
    for token, y in zip(x, found, strict=True):
        probabilities = (router @ token).softmax(0)
        first, second = probabilities.argsort(descending=True)[:2].tolist()
        wanted = sum(
            probabilities[e] * (w2[e] @ (F.silu(w1[e] @ token) * (w3[e] @ token)))
            for e in (first, second)
        )
        torch.testing.assert_close(y, wanted / (probabilities[first] + probabilities[second]))


# ---- routing


def loop_route(logits: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    chosen, weights = [], []
    for row in logits:
        p = row.softmax(0)
        biased = (p if bias is None else p + bias).tolist()
        best = sorted(range(len(biased)), key=lambda e: (-biased[e], e))[:k]
        chosen.append(torch.tensor(best, dtype=torch.int64))
        weights.append(p[best] / p[best].sum() if k > 1 else p[best])
    return torch.stack(chosen), torch.stack(weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("k", [1, 2, 4, 5])
@pytest.mark.parametrize("biased", [False, True])
def test_route_is_the_loop_over_tokens(seed: int, dtype: torch.dtype, k: int, biased: bool) -> None:
    torch.manual_seed(seed)
    logits = (3 * torch.randn(23, 5)).to(dtype).requires_grad_()
    bias = torch.randn(5).to(dtype) if biased else None
    before = logits.detach().clone(), None if bias is None else bias.clone()
    found, wanted = experts.route(logits, bias, k=k), loop_route(logits, bias, k)
    assert torch.equal(found[0], wanted[0]) and found[0].dtype == torch.int64
    torch.testing.assert_close(found[1], wanted[1])
    g = torch.randn_like(found[1])
    gradients = [
        torch.autograd.grad(w, logits, g, retain_graph=True)[0] for w in (found[1], wanted[1])
    ]
    torch.testing.assert_close(*gradients)
    assert torch.equal(logits.detach(), before[0])
    assert bias is None or (before[1] is not None and torch.equal(bias, before[1]))


def test_equal_scores_go_to_the_lower_expert_and_no_token_is_no_error() -> None:
    chosen, weights = experts.route(torch.zeros(3, 6), k=2)
    assert chosen.tolist() == [[0, 1]] * 3 and weights.tolist() == [[0.5, 0.5]] * 3
    chosen, weights = experts.route(torch.zeros(0, 6), k=2)
    assert chosen.shape == weights.shape == (0, 2)


def test_a_single_expert_is_weighted_by_its_probability_and_so_the_router_learns() -> None:
    logits = torch.randn(4, 3).double().requires_grad_()
    _, weights = experts.route(logits, k=1)
    torch.testing.assert_close(weights[:, 0], logits.softmax(-1).amax(-1))
    weights.sum().backward()
    assert logits.grad is not None and bool(logits.grad.abs().sum() > 0.01)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((torch.zeros(3), None, 1), "logits must be"),
        ((torch.zeros(3, 2), torch.zeros(3), 1), "bias must be"),
        ((torch.zeros(3, 2), None, 3), "k=3"),
        ((torch.zeros(3, 2), None, 0), "k=0"),
    ],
)
def test_route_refuses(arguments: tuple[Tensor, Tensor | None, int], says: str) -> None:
    logits, bias, k = arguments
    with pytest.raises(ValueError, match=says):
        experts.route(logits, bias, k=k)


# ---- one rank


def drawn(
    tokens: int, count: int, k: int, seed: int, width: int = 6, hidden: int = 5
) -> tuple[Tensor, ...]:
    """x, experts, weights, w1, w3, w2 in float64; some experts are popular and one may have no token."""
    torch.manual_seed(seed)
    logits = torch.randn(tokens, count).double() + 2 * torch.randn(count).double()
    chosen, weights = experts.route(logits, k=k)
    w1, w3, w2 = (
        torch.randn(count, *shape).double()
        for shape in ((hidden, width), (hidden, width), (width, hidden))
    )
    return torch.randn(tokens, width).double(), chosen, weights.detach(), w1, w3, w2


def token_loop(
    x: Tensor, chosen: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor
) -> Tensor:
    rows = []
    for t, token in enumerate(x):
        row = torch.zeros_like(token)
        for e, weight in zip(chosen[t].tolist(), weights[t], strict=True):
            row = row + weight * (w2[e] @ (F.silu(w1[e] @ token) * (w3[e] @ token)))
        rows.append(row)
    return torch.stack(rows) if rows else x * 0


def values_and_gradients(
    function: Callable[..., Tensor], arguments: Sequence[Tensor], grad: Tensor
) -> list[Tensor]:
    """The output, then the gradients of x, weights, w1, w3 and w2."""
    leaves = [a.clone().requires_grad_(a.is_floating_point()) for a in arguments]
    y = function(*leaves)
    y.backward(grad)
    gradients = [leaf.grad for leaf in leaves if leaf.requires_grad]
    return [y.detach(), *(g for g in gradients if g is not None)]


@pytest.mark.parametrize(
    ("tokens", "count", "k"), [(17, 4, 2), (1, 3, 1), (0, 4, 2), (9, 5, 5), (30, 8, 1)]
)
def test_moe_is_the_loop_over_tokens(tokens: int, count: int, k: int, seed: int) -> None:
    arguments = drawn(tokens, count, k, seed)
    grad = torch.randn_like(arguments[0])
    found = values_and_gradients(experts.moe, arguments, grad)
    assert len(found) == 6  # an expert without tokens has a gradient of zeros, not None
    if tokens:
        for ours, wanted in zip(
            found, values_and_gradients(token_loop, arguments, grad), strict=True
        ):
            torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no F.grouped_mm")
def test_moe_is_pytorchs_grouped_product(seed: int) -> None:
    arguments = drawn(40, 4, 2, seed, width=16, hidden=32)
    x, chosen, weights, w1, w3, w2 = (a.float() if a.is_floating_point() else a for a in arguments)
    order = chosen.flatten().argsort(stable=True)
    ends = chosen.flatten().bincount(minlength=4).cumsum(0).to(torch.int32)
    rows = x[order // 2]
    gate, up = (F.grouped_mm(rows, w.transpose(1, 2), offs=ends) for w in (w1, w3))
    out = (
        F.grouped_mm(F.silu(gate) * up, w2.transpose(1, 2), offs=ends)
        * weights.flatten()[order, None]
    )
    wanted = torch.zeros_like(x).index_add(0, order // 2, out)
    torch.testing.assert_close(
        experts.moe(x, chosen, weights, w1, w3, w2), wanted, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: torch.zeros(2, 3, 6)}, "x must be"),
        ({1: torch.zeros(4, 2, dtype=torch.int64)}, "experts and weights must be"),
        ({3: torch.zeros(4, 5)}, "w1 and w3 must be"),
        ({5: torch.zeros(4, 5, 6)}, "w1 and w3 must be"),
        ({0: torch.zeros(5, 7)}, "x has 7 numbers"),
    ],
)
def test_moe_refuses_shapes_that_do_not_belong_together(
    change: dict[int, Tensor], says: str
) -> None:
    arguments = list(drawn(5, 4, 2, 0))
    for place, tensor in change.items():
        arguments[place] = tensor
    with pytest.raises(ValueError, match=says):
        experts.moe(*arguments)


# ---- many ranks


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("k", [1, 2])
def test_many_ranks_are_one_rank(n: int, k: int, seed: int, backend: str) -> None:
    """Ranks have unequally many tokens, the second none; and every byte is that of the closed form."""
    sizes = [0 if rank == 1 else 4 + 3 * rank for rank in range(n)]
    x, chosen, weights, *matrices = drawn(sum(sizes), 2 * n, k, seed)
    grad = torch.randn_like(x)
    counts = [part.flatten().bincount(minlength=2 * n).tolist() for part in chosen.split(sizes)]

    def job() -> list[Tensor]:
        rank, where = dist.get_rank(), device()
        tokens = [whole.split(sizes)[rank].to(where) for whole in (x, chosen, weights, grad)]
        own = [w.chunk(n)[rank].to(where) for w in matrices]
        found = values_and_gradients(experts.expert_parallel_moe, [*tokens[:3], *own], tokens[3])
        return [tensor.cpu() for tensor in found]

    run = launch(job, world_size=n, backend=backend)
    wanted = values_and_gradients(experts.moe, [x, chosen, weights, *matrices], grad)
    for place, whole in enumerate(wanted):  # the gradients of experts are complete on their ranks
        found = torch.cat([results[place] for results in run])
        torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-12)
    for rank in range(n):
        told = 8 * 2 * (n - 1)  # the counts: two experts of each other rank
        assert run.ledger.bytes_sent(rank) == all_to_all_bytes(counts, rank, 6, 8) + told


def test_a_sub_group_counts_its_own_ranks(seed: int, cpu_backend: str) -> None:
    x, chosen, weights, *matrices = drawn(8, 4, 2, seed)

    def job() -> Tensor | None:
        pair: Any = dist.new_group([1, 3])
        if dist.get_rank() not in (1, 3):
            return None
        rank = dist.get_rank(pair)
        own: list[Any] = [whole.chunk(2)[rank] for whole in (x, chosen, weights, *matrices)]
        return experts.expert_parallel_moe(*own, group=pair)

    run = launch(job, world_size=4, backend=cpu_backend)
    torch.testing.assert_close(
        torch.cat([run[1], run[3]]),
        experts.moe(x, chosen, weights, *matrices),
        rtol=1e-10,
        atol=1e-12,
    )


def test_exchange_has_a_backward_and_refuses_wrong_sizes(cpu_backend: str) -> None:
    rows = [[1, 2, 0], [3, 0, 1], [0, 0, 2]]

    def job() -> tuple[Tensor, Tensor]:
        rank = dist.get_rank()
        send, receive = rows[rank], [row[rank] for row in rows]
        x = torch.full((sum(send), 2), float(rank)).requires_grad_()
        with pytest.raises(ValueError, match="send and receive have 1 and 3 numbers"):
            experts.exchange(x, [1], receive)
        with pytest.raises(ValueError, match="send sums to"):
            experts.exchange(x, [9, 9, 9], receive)
        came = experts.exchange(x, send, receive)
        came.backward(came.detach() + 10 * rank)  # the gradient tells who sent it, and where it was
        assert x.grad is not None
        return came.detach()[:, 0], x.grad[:, 0]

    for rank, (came, grad) in enumerate(launch(job, world_size=3, backend=cpu_backend)):
        assert came.tolist() == [float(k) for k in range(3) for _ in range(rows[k][rank])]
        assert grad.tolist() == [rank + 10.0 * k for k in range(3) for _ in range(rows[rank][k])]


# ---- balance


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_ranks_shares_are_the_loss_of_the_batch(n: int, seed: int, backend: str) -> None:
    torch.manual_seed(seed)
    sizes = [0 if rank == 1 else 5 + rank for rank in range(n)]
    logits = torch.randn(sum(sizes), 8).double()

    def loss(logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.clone().requires_grad_()
        value = experts.load_balancing_loss(logits, experts.route(logits, k=2)[0])
        value.backward()
        assert logits.grad is not None
        return value.detach().cpu(), logits.grad.cpu()

    def job() -> tuple[Tensor, Tensor]:
        return loss(logits.split(sizes)[dist.get_rank()].to(device()))

    run = launch(job, world_size=n, backend=backend)
    f = experts.route(logits, k=2)[0].flatten().bincount(minlength=8) / (2 * len(logits))
    whole = logits.clone().requires_grad_()
    wanted = 8 * (f * whole.softmax(-1).mean(0)).sum()
    wanted.backward()
    torch.testing.assert_close(sum(value for value, _ in run), wanted.detach())
    torch.testing.assert_close(torch.cat([grad for _, grad in run]), whole.grad)
    if n > 1:
        assert [run.ledger.bytes_sent(rank) for rank in range(n)] == [2 * (n - 1) / n * 8 * 8] * n


def test_the_loss_is_1_if_uniform_and_e_over_k_if_collapsed() -> None:
    def job() -> tuple[float, float]:
        uniform = torch.eye(8).repeat(2, 1).double() * 1e-9
        chosen = torch.arange(16).view(16, 1) % 8
        popular = torch.zeros(16, 8).double()
        popular[:, :2] = 50.0
        collapsed = experts.route(popular, k=2)[0]
        return (
            float(experts.load_balancing_loss(uniform, chosen)),
            float(experts.load_balancing_loss(popular, collapsed)),
        )

    (found,) = launch(job, world_size=1, backend="gloo")
    assert found == pytest.approx((1.0, 4.0))


@pytest.mark.parametrize("n", [1, 3])
def test_the_bias_follows_the_counts_of_all_ranks(n: int, backend: str) -> None:
    def job() -> list[float]:
        bias = torch.tensor([0.0, 0.5, 0.0, 0.0], device=device())
        counts = torch.tensor([4, 0, 2, 2], device=device()) * (dist.get_rank() + 1)
        new = experts.update_bias(bias, counts, speed=0.25)
        assert bias.tolist() == [0.0, 0.5, 0.0, 0.0] and counts[1] == 0
        return new.tolist()

    assert list(launch(job, world_size=n, backend=backend)) == [[-0.25, 0.75, 0.0, 0.0]] * n


def test_the_added_loss_has_its_gradient_and_leaves_the_output() -> None:
    y, a = torch.ones(2).requires_grad_(), torch.tensor(3.0).requires_grad_()
    out = experts.AddLoss.apply(y, a.square(), 0.5)
    assert torch.equal(out, y)
    (2 * out).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [2.0, 2.0]
    assert a.grad is not None and float(a.grad) == 3.0


@pytest.mark.parametrize("ours", [True, False])
def test_under_a_scaler_the_added_loss_is_scaled_like_the_models(ours: bool, seed: int) -> None:
    """For the course's scaler and PyTorch's: gradients after unscaling are those without one."""

    def gradients(scale: float) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        layer = experts.MoE(8, 6, experts=4, k=2, group=dist.group.WORLD, balance=0.3)
        optimizer = torch.optim.SGD(layer.parameters())
        loss = layer(torch.randn(10, 8)).square().sum()
        scaler = LossScaler(scale) if ours else torch.amp.GradScaler("cpu", init_scale=scale)
        scaled = scaler.scale_loss(loss) if isinstance(scaler, LossScaler) else scaler.scale(loss)
        experts.AddLoss.loss_scale = scale
        scaled.backward()
        scaler.unscale_(optimizer)
        experts.AddLoss.loss_scale = 1.0
        return {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}

    def job() -> None:
        wanted, found = gradients(1.0), gradients(1024.0)
        assert found.keys() == wanted.keys() == {"router", "w1", "w3", "w2"}
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)

    launch(job, world_size=2, backend="gloo")


WRAPPERS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "naive": lambda model, group: NaiveDataParallel(model, group),
    "buckets": lambda model, group: BucketedDataParallel(model, group=group),
    "zero 1": lambda model, group: zero.Zero1Optimizer(
        model.parameters(), torch.optim.AdamW, group=group
    ),
    "zero 3": lambda model, group: zero.Zero3Module(model, group=group),
    "fsdp": lambda model, group: fsdp.PrefetchedModule(model, group=group),
}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_with_one_group_refuses_experts_that_are_shared_out(wrap: str) -> None:
    """Over all ranks rank 0's experts would be written over the others'. Over dp the router would not be
    summed over ep, and the mean over dp would be ep times too large for experts.
    """

    def job() -> None:
        rank = dist.get_rank()
        ep: Any = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
        model = experts.expert_gpt(GPT(GPTConfig(context=4, layers=1, heads=2, width=8)), 4, 2, ep)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for group in (None, dp):
            with pytest.raises(ValueError, match="holds experts of this rank alone"):
                WRAPPERS[wrap](model, group)
        assert all(map(torch.equal, model.parameters(), before))
        whole = experts.expert_gpt(GPT(GPTConfig(context=4, layers=1, heads=2, width=8)), 4, 2)
        WRAPPERS[wrap](whole, dp)  # all experts on each rank are replicas like others

    launch(job, world_size=4, backend="gloo")


def test_max_violation() -> None:
    assert experts.max_violation(torch.tensor([2, 2, 2])) == 0
    assert experts.max_violation(torch.tensor([8, 8, 0, 0, 0, 0, 0, 0])) == 3
    assert experts.max_violation(torch.zeros(4)) == 0


# ---- queues and nodes


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_queue_is_that_of_a_loop(k: int, seed: int) -> None:
    torch.manual_seed(seed)
    chosen, _ = experts.route(torch.randn(19, 4), k=k)
    found, keep = experts.queue(chosen, 4, places=5)
    waiting = [0] * 4
    for choice in range(k):
        for token in range(19):
            expert = int(chosen[token, choice])
            assert found[token, choice] == waiting[expert]
            waiting[expert] += 1
    assert torch.equal(keep, found < 5)


def test_capacity_is_rounded_up() -> None:
    assert [experts.capacity(64, 8, 2, factor) for factor in (1.0, 1.25, 1.26)] == [16, 20, 21]


def test_a_limit_of_nodes_is_kept(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(50, 16)
    chosen = experts.node_limited(scores, k=4, nodes=4, limit=2)
    for row, picked in zip(scores.tolist(), chosen.tolist(), strict=True):
        worth = [sum(sorted(row[4 * node : 4 * node + 4])[-2:]) for node in range(4)]
        best = sorted(range(4), key=lambda node: -worth[node])[:2]
        inside = [e for e in range(16) if e // 4 in best]
        assert picked == sorted(inside, key=lambda e: -row[e])[:4]
    with pytest.raises(ValueError, match="cannot be chosen on 3 of 4 nodes"):
        experts.node_limited(scores, k=4, nodes=4, limit=3)


# ---- a layer and a model


CONFIG = GPTConfig(vocab_size=16, context=8, width=8, layers=2, heads=2)


def test_a_gpt_with_experts_on_many_ranks_is_that_of_ddp_with_all_on_each(seed: int) -> None:
    """The loss is the sum of shares, and DDP averages: so there each rank's loss is n times its share."""
    torch.manual_seed(seed)
    tokens = torch.randint(16, (4, 9))

    def gradients(shared: bool) -> dict[str, Tensor]:
        rank, n = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(seed)
        group = dist.group.WORLD if shared else None
        model = experts.expert_gpt(
            GPT(CONFIG),
            4,
            2,
            group,
            balance=0.1 if shared else 0.1 * n,
            tokens_group=dist.group.WORLD,
        ).double()
        wrapped: nn.Module = model if shared else DistributedDataParallel(model)
        rows = tokens.tensor_split(n)[rank]
        loss = next_token_loss(wrapped(rows[:, :-1]), rows[:, 1:], reduction="sum") / (4 * 8)
        (loss if shared else n * loss).backward()
        found: dict[str, Tensor] = {}
        for name, param in model.named_parameters():
            assert param.grad is not None, name
            grad = param.grad
            if shared and name.rpartition(".")[2] in experts.MoE.apart:
                parts = [torch.empty_like(grad) for _ in range(n)]
                dist.all_gather(parts, grad.contiguous())
                grad = torch.cat(parts)
            elif shared:
                dist.all_reduce(grad)
            found[name] = grad
        return found

    def job() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return gradients(True), gradients(False)

    for ours, theirs in launch(job, world_size=2, backend="gloo"):
        assert ours.keys() == theirs.keys()
        for name, wanted in theirs.items():
            torch.testing.assert_close(ours[name], wanted, rtol=1e-9, atol=1e-12)


def test_the_layer_counts_what_it_chose_and_refuses_experts_that_cannot_be_shared() -> None:
    layer = experts.MoE(8, 4, experts=6, k=2)
    y = layer(torch.randn(2, 5, 8))
    assert y.shape == (2, 5, 8) and layer.counts.sum() == 20
    with torch.no_grad():
        layer(torch.randn(3, 8))
    assert layer.counts.sum() == 20

    def job() -> None:
        experts.MoE(8, 4, 5, 2, dist.group.WORLD)

    with pytest.raises(RuntimeError, match="2 ranks do not divide 5 experts"):
        launch(job, world_size=2, backend="gloo")


def test_autocast_and_recomputation_choose_the_same_experts(seed: int) -> None:
    torch.manual_seed(seed)
    layer, x = experts.MoE(16, 8, experts=8, k=2), torch.randn(200, 16)
    counts, outputs = [], []
    for autocast, again in ((False, False), (True, False), (False, True)):
        layer.counts.zero_()
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        counts.append(layer.counts.clone())
        y.float().sum().backward()
        outputs.append([y.float(), layer.router.grad, layer.w1.grad])
        times = layer.counts / counts[-1]  # a forward that is made again may count again
        assert bool((times == times[0]).all()) and times[0] in (1, 1 + again)
    assert torch.equal(counts[0], counts[1]) and torch.equal(counts[0], counts[2])
    torch.testing.assert_close(outputs[2], outputs[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.1, atol=0.02)


# ---- facts


def test_published_parameters() -> None:
    for shape, held, used in ((MIXTRAL_8X7B, 46.70, 12.88), (DEEPSEEK_V3, 671.03, 37.55)):
        assert round(shape.parameters() / 1e9, 2) == held
        assert round(shape.parameters(used=True) / 1e9, 2) == used


def test_the_parameters_are_those_of_the_layer() -> None:
    layer = experts.MoE(4096, 1, experts=8, k=2)  # one number inside an expert: the layer is small
    assert sum(param.numel() for param in layer.parameters()) == 8 * (3 * 4096 * 1 + 4096)


def test_nodes_touched_is_the_mean_of_many_draws(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.rand(4000, 32)
    nodes = scores.topk(4, -1).indices // 8
    seen = sum(len(set(row)) for row in nodes.tolist()) / len(nodes)
    assert nodes_touched(32, 4, 4) == pytest.approx(seen, abs=0.06)
    assert round(nodes_touched(256, 8, 8), 2) == 5.29
