# %% right: by masks
import torch


def node_limited(scores, *, k, nodes, limit):
    by_node = scores.view(len(scores), nodes, -1)
    worth = by_node.topk(k // limit).values.sum(-1)
    kept = worth.topk(limit).indices
    mask = torch.zeros(len(scores), nodes, dtype=torch.bool).scatter(1, kept, True)
    masked = by_node.masked_fill(~mask[..., None], float("-inf")).flatten(1)
    return masked.topk(k).indices


# %% right: by a loop over the tokens
import torch


def node_limited(scores, *, k, nodes, limit):
    held = scores.shape[1] // nodes
    rows = []
    for row in scores.tolist():
        worth = [
            sum(sorted(row[held * n : held * (n + 1)])[-(k // limit) :]) for n in range(nodes)
        ]
        kept = sorted(range(nodes), key=lambda n: -worth[n])[:limit]
        allowed = [e for e in range(len(row)) if e // held in kept]
        rows.append(sorted(allowed, key=lambda e: -row[e])[:k])
    return torch.tensor(rows, dtype=torch.int64).view(-1, k)


# %% wrong: no limit
# is: idea
# says: You chose the best experts on any nodes
def node_limited(scores, *, k, nodes, limit):
    return scores.topk(k).indices


# %% wrong: the whole sum of a node
# is: slip
# says: by the sum of all its scores
# base: by masks
-    worth = by_node.topk(k // limit).values.sum(-1)
+    worth = by_node.sum(-1)


# %% wrong: the best score of a node
# is: slip
# says: by its best score, but
# base: by masks
-    worth = by_node.topk(k // limit).values.sum(-1)
+    worth = by_node.amax(-1)


# %% wrong: the k best scores of a node
# is: slip
# says: Only k / limit of them count
# base: by masks
-    worth = by_node.topk(k // limit).values.sum(-1)
+    worth = by_node.topk(min(k, by_node.shape[2])).values.sum(-1)


# %% wrong: masked by zero
# is: slip
# says: Mask those experts with -inf
# base: by masks
-    masked = by_node.masked_fill(~mask[..., None], float("-inf")).flatten(1)
+    masked = by_node.masked_fill(~mask[..., None], 0.0).flatten(1)


# %% wrong: experts dealt in turn
# is: slip
# says: in succession
# base: by masks
-    by_node = scores.view(len(scores), nodes, -1)
+    by_node = scores.unflatten(1, (-1, nodes)).transpose(1, 2)
@@
-    masked = by_node.masked_fill(~mask[..., None], float("-inf")).flatten(1)
+    masked = by_node.masked_fill(~mask[..., None], float("-inf")).transpose(1, 2).flatten(1)


# %% wrong: as many experts of each node
# is: slip
# says: Each of the nodes gave k / limit experts
# base: by masks
-    masked = by_node.masked_fill(~mask[..., None], float("-inf")).flatten(1)
-    return masked.topk(k).indices
+    held = by_node.shape[2]
+    each = by_node.topk(k // limit).indices + held * torch.arange(nodes)[:, None]
+    chosen = each[mask].view(len(scores), k)
+    best = scores.gather(1, chosen).argsort(dim=1, descending=True)
+    return chosen.gather(1, best)


# %% wrong: as many experts of each node, node by node
# is: slip
# says: Each of the nodes gave k / limit experts
# base: by masks
-    masked = by_node.masked_fill(~mask[..., None], float("-inf")).flatten(1)
-    return masked.topk(k).indices
+    held = by_node.shape[2]
+    each = by_node.topk(k // limit).indices + held * torch.arange(nodes)[:, None]
+    return each[mask].view(len(scores), k)


# %% wrong: in the order of their numbers
# is: slip
# says: in another order
# base: by masks
-    return masked.topk(k).indices
+    return masked.topk(k).indices.sort(-1).values


# %% wrong: the worst nodes
# is: slip
# says: The nodes that count least
# base: by masks
-    kept = worth.topk(limit).indices
+    kept = worth.topk(limit, largest=False).indices


# %% wrong: top k first, cut afterwards
# is: slip
# says: not what a loop over the tokens gives
# base: by masks
-    kept = worth.topk(limit).indices
+    held = by_node.shape[2]
+    best = scores.topk(k).indices // held
+    kept = best[:, :limit]


# %% wrong: the scores in place of the experts
# is: form
# says: Return the experts' numbers
# base: by masks
-    return masked.topk(k).indices
+    return masked.topk(k).values
