"""node_limited: the experts of a token on a few nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.kit import Slip, functions
from course_lib.checks.notebooks.experts.queues import passing
from course_lib.checks.notebooks.experts.references import REFERENCES

NO_LIMIT = "You chose the best experts on any nodes. Keep `limit` nodes first, then choose on them."
TOO_MANY = "A token has experts on more than `limit` nodes."
ZERO = (
    "Experts of other nodes were chosen if scores are below 0. Mask those experts with -inf, because "
    "0 is larger than a score below 0."
)
WHOLE_SUM = "A node was judged by the sum of all its scores, but only its k / limit best scores count."
BEST_ONE = "A node was judged only by its best score, but its k / limit best scores together count."
K_BEST = "A node was judged by its k best scores. Only k / limit of them count."
STRIPED = "Experts were dealt to nodes in turn, e % nodes. Each node holds E / nodes experts in succession."
EQUALLY = (
    "Each of the nodes gave k / limit experts. Those scores decide which nodes are kept, but then the "
    "k best experts on all kept nodes are chosen."
)
ORDER = "A token's experts are the right ones in another order. The best one comes first."
WORST = "The nodes that count least were kept."


def misfit(name: str, came: str) -> str:
    if came.startswith(("float", "bool")):
        return "Return the experts' numbers, and neither their scores nor a mask."
    return "Return the experts of each token, int64, with k columns."


ABOUT = functions.About(
    "node_limited",
    "a loop over the tokens",
    {"experts": "the experts are"},
    misfit=misfit,
    misses=(NO_LIMIT, TOO_MANY),
)


@dataclass(frozen=True, eq=False)
class Limited:
    scores: Tensor  # (T, E)
    k: int
    nodes: int
    limit: int

    @classmethod
    def draw(
        cls, draw: kit.Draw, tokens: int, experts: int, k: int, nodes: int, limit: int, below: float = 0.0
    ) -> Limited:
        """Scores that are 0.05 apart or more; below: taken from all. Usual mistakes make other choices.

        At a limit of 1, of k or of all nodes some of them are right.
        """
        while True:
            levels = draw.normal(tokens, experts).argsort(-1).argsort(-1).double()
            scores = 0.2 * levels + 0.05 * draw.normal(tokens, experts).clamp(-1, 1).double() - below
            limited = cls(scores, k, nodes, limit)
            choices = [limited.right, *limited.mistakes.values()]
            told_apart = {tuple(choice.flatten().tolist()) for choice in choices}
            if limit in (1, k, nodes) or len(told_apart) == len(choices):
                return limited

    @property
    def held(self) -> int:
        return self.scores.shape[1] // self.nodes

    def node_of(self, experts: Tensor) -> Tensor:
        return experts // self.held

    def worth(self, best: int) -> Tensor:
        """(T, nodes): the sum of each node's so many best scores."""
        by_node = self.scores.unflatten(1, (self.nodes, self.held))
        return by_node.sort(-1, descending=True).values[..., :best].sum(-1)

    def on_best(self, worth: Tensor, node: Tensor | None = None) -> Tensor:
        """The k best experts on the nodes that are worth most; node: of each expert."""
        each = torch.arange(self.scores.shape[1])
        node = self.node_of(each) if node is None else node
        kept = torch.zeros_like(worth).scatter(1, worth.topk(self.limit, -1).indices, 1.0).bool()
        return self.scores.where(kept[:, node], -torch.inf).topk(self.k, -1).indices

    @cached_property
    def right(self) -> Tensor:
        return self.on_best(self.worth(self.k // self.limit))

    @cached_property
    def mistakes(self) -> dict[str, Tensor]:
        share = self.k // self.limit
        worth = self.worth(share)
        striped = torch.arange(self.scores.shape[1]) % self.nodes
        in_turn = self.scores.unflatten(1, (self.held, self.nodes)).transpose(1, 2)
        worth_in_turn = in_turn.sort(-1, descending=True).values[..., :share].sum(-1)
        choices = {
            NO_LIMIT: self.scores.topk(self.k, -1).indices,
            WHOLE_SUM: self.on_best(self.worth(self.held)),
            K_BEST: self.on_best(self.worth(self.k)),
            WORST: self.on_best(-worth),
            STRIPED: self.on_best(worth_in_turn, node=striped),
        }
        if share > 1:
            choices |= {BEST_ONE: self.on_best(self.worth(1)), EQUALLY: self.equally(worth, share)}
        return choices

    def equally(self, worth: Tensor, share: int) -> Tensor:
        """k / limit experts of each kept node, best first."""
        rows = []
        for token, scores in enumerate(self.scores):
            nodes = worth[token].topk(self.limit).indices.tolist()
            best = [
                self.held * node + int(expert)
                for node in nodes
                for expert in scores[self.held * node : self.held * (node + 1)].topk(share).indices
            ]
            rows.append(sorted(best, key=lambda expert: -float(scores[expert])))
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.k)

    def slips(self, name: str, came: functions.Tensors) -> list[Slip]:
        experts = came["experts"].long()
        known = {
            says: choice for says, choice in self.mistakes.items() if not torch.equal(choice, self.right)
        }
        return [
            *(Slip(says, lambda choice=choice: {name: choice}) for says, choice in known.items()),
            Slip(EQUALLY, lambda: EQUALLY in known and self.is_same_set(experts, known[EQUALLY])),
            Slip(ZERO, lambda: self.masked_by_zero(experts)),
            Slip(ORDER, lambda: self.is_same_set(experts)),
            Slip(TOO_MANY, lambda: self.most_nodes(experts) > self.limit),
        ]

    def masked_by_zero(self, experts: Tensor) -> bool:
        """Whether these could be the best if other nodes' scores were 0; equal zeros have no order."""
        node = self.node_of(torch.arange(self.scores.shape[1]))
        kept = torch.zeros_like(self.worth(1)).scatter(
            1, self.worth(self.k // self.limit).topk(self.limit, -1).indices, 1.0
        )
        scores = self.scores * kept[:, node]
        best = scores.topk(self.k, -1).values
        return torch.equal(scores.gather(1, experts.clamp(0, scores.shape[1] - 1)), best)

    def most_nodes(self, experts: Tensor) -> int:
        return max((len(set(row)) for row in self.node_of(experts).tolist()), default=0)

    def is_limited(self, experts: Tensor) -> bool:
        """Whether no token has an expert twice or reaches too many nodes, and each has those nodes' best."""
        if any(len(set(row)) < self.k for row in experts.tolist()):
            return False
        node = self.node_of(experts.long())
        reached = torch.zeros_like(self.worth(1)).scatter(1, node.clamp(0, self.nodes - 1), 1.0).bool()
        each = self.node_of(torch.arange(self.scores.shape[1]))
        best = self.scores.where(reached[:, each], -torch.inf).argmax(-1, keepdim=True)
        return self.most_nodes(experts.long()) <= self.limit and bool((experts == best).any(-1).all())

    def is_same_set(self, experts: Tensor, choice: Tensor | None = None) -> bool:
        choice = self.right if choice is None else choice
        return torch.equal(experts.long().sort(-1).values, choice.sort(-1).values)

    def is_sorted(self, experts: Tensor) -> bool:
        scores = self.scores.gather(1, experts.long().clamp(0, self.scores.shape[1] - 1))
        return bool((scores[:, 1:] < scores[:, :-1]).all())

    def call(self, name: str) -> functions.Call:
        return functions.Call(
            name, ABOUT, {"scores": self.scores}, {"experts": self.right},
            kwargs={"k": self.k, "nodes": self.nodes, "limit": self.limit}, outputs=("experts",),
            slips=self.slips,
        )  # fmt: skip


@kit.exercise(
    points=4, objects=("node_limited",), references=REFERENCES, extra=True,
    point="no token on more nodes than the limit",
)  # fmt: skip
def node_limited(draw: kit.Draw) -> Iterator[kit.Case]:
    half, three = Limited.draw(draw, 10, 24, 4, 4, 2), Limited.draw(draw, 6, 40, 6, 5, 3)
    below, free = Limited.draw(draw, 8, 24, 4, 4, 2, below=5.0), Limited.draw(draw, 5, 12, 4, 4, 4)
    calls = {limited: limited.call(name) for limited, name in
             ((half, "half"), (below, "below"), (three, "three"), (free, "free"))}  # fmt: skip

    def line(limited: Limited, passes: Callable[[Tensor], bool], title: str, weight: float) -> kit.Line:
        return passing(calls[limited], ["experts"], lambda came: passes(came["experts"]), title, weight)

    yield functions.function_case(
        "tokens",
        list(calls.values()),
        [
            line(half, half.is_limited, "4 of 24 experts on 2 of 4 nodes: no token on a third", 2),
            line(half, half.is_same_set, "those experts", 1.5),
            line(half, half.is_sorted, "the best first", 1),
            line(below, below.is_same_set, "with scores below 0", 1),
            line(three, three.is_limited, "6 of 40 experts on 3 of 5 nodes: no token on a fourth", 1),
            line(three, three.is_same_set, "those experts", 1.5),
            line(free, free.is_same_set, "on all nodes", 0.5),
            functions.values_line(calls[half], "scores are left alone", [], weight=0.5),
        ],
    )
    if draw.hidden:
        others = {
            "one node": Limited.draw(draw, 8, 12, 3, 4, 1),
            "one expert a node": Limited.draw(draw, 8, 15, 2, 5, 2),
        }
        hidden = {title: each.call(title) for title, each in others.items()}
        lines = [functions.values_line(call, title, weight=0.5, short=True) for title, call in hidden.items()]
        yield functions.function_case("other sizes", list(hidden.values()), lines, hidden=True)
