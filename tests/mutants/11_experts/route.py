# %% base: by topk
def route(logits, bias=None, *, k):
    probabilities = logits.softmax(-1)
    scores = probabilities if bias is None else probabilities + bias
    experts = scores.topk(k, -1).indices
    weights = probabilities.gather(1, experts)
    if k > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights


# %% wrong: the weights are not divided
# is: slip
# says: do not sum to 1
# base: by topk
-    if k > 1:
-        weights = weights / weights.sum(-1, keepdim=True)


# %% wrong: divided with one expert as well
# is: slip
# says: With k = 1 this weight is 1
# base: by topk
-    if k > 1:
-        weights = weights / weights.sum(-1, keepdim=True)
+    weights = weights / weights.sum(-1, keepdim=True)


# %% wrong: softmax over the top k, with one expert as well
# is: slip
# says: With k = 1 this weight is 1
# base: by topk
-    weights = probabilities.gather(1, experts)
-    if k > 1:
-        weights = weights / weights.sum(-1, keepdim=True)
+    weights = logits.gather(1, experts).softmax(-1)


# %% wrong: the bias is in the weights
# is: slip
# says: The bias is in the weights
# base: by topk
-    weights = probabilities.gather(1, experts)
+    weights = scores.gather(1, experts)


# %% wrong: the bias is added to the logits
# is: slip
# says: The bias was added to the logits
# base: by topk
-    probabilities = logits.softmax(-1)
-    scores = probabilities if bias is None else probabilities + bias
-    experts = scores.topk(k, -1).indices
+    if bias is not None:
+        logits = logits + bias
+    probabilities = logits.softmax(-1)
+    experts = probabilities.topk(k, -1).indices


# %% wrong: the bias is added to the logits for the choice
# is: slip
# says: The bias was added to the logits
# base: by topk
-    scores = probabilities if bias is None else probabilities + bias
+    scores = logits if bias is None else logits + bias


# %% wrong: no bias
# is: slip
# says: chosen without the bias
# base: by topk
-    experts = scores.topk(k, -1).indices
+    experts = probabilities.topk(k, -1).indices


# %% wrong: the bias is subtracted
# is: slip
# says: The bias was subtracted
# base: by topk
-    scores = probabilities if bias is None else probabilities + bias
+    scores = probabilities if bias is None else probabilities - bias


# %% wrong: the largest again and again
# is: slip
# says: goes to the same expert twice
# base: by topk
-    experts = scores.topk(k, -1).indices
+    experts = torch.stack([scores.argmax(-1) for _ in range(k)], -1)


# %% wrong: a chosen expert is excluded with 0
# is: slip
# says: Exclude a chosen expert from the next choice with -inf
# base: by topk
-    experts = scores.topk(k, -1).indices
+    left, columns = scores.detach().clone(), []
+    for _ in range(k):
+        columns.append(left.argmax(-1, keepdim=True))
+        left.scatter_(1, columns[-1], 0.0)
+    experts = torch.cat(columns, -1)


# %% wrong: no gradient
# is: idea
# says: the router never learns. Take the weights from the probabilities
# base: by topk
-    return experts, weights
+    return experts, weights.detach()


# %% wrong: without a graph
# is: idea
# says: the router never learns. Take the weights from the probabilities
@torch.no_grad()
def route(logits, bias=None, *, k):
    p = torch.softmax(logits, dim=-1)
    experts = (p if bias is None else p + bias).argsort(dim=-1, descending=True)[:, :k]
    weights = torch.take_along_dim(p, experts, -1)
    return experts, weights / weights.sum(-1, keepdim=True) if k > 1 else weights


# %% wrong: equal weights
# is: idea
# says: All weights are 1/k
# base: by topk
-    weights = probabilities.gather(1, experts)
-    if k > 1:
-        weights = weights / weights.sum(-1, keepdim=True)
+    weights = torch.full_like(experts, 1, dtype=logits.dtype) / k


# %% wrong: the sum is detached
# is: slip
# says: The sum in the denominator was detached
# base: by topk
-        weights = weights / weights.sum(-1, keepdim=True)
+        weights = weights / weights.detach().sum(-1, keepdim=True)


# %% wrong: softmax over the tokens
# is: idea
# says: The softmax is over the tokens
# base: by topk
-    probabilities = logits.softmax(-1)
+    probabilities = logits.softmax(0)


# %% wrong: the experts in the order of their numbers
# is: slip
# says: the right ones in another order
# base: by topk
-    experts = scores.topk(k, -1).indices
+    experts = scores.topk(k, -1).indices.sort(-1).values


# %% wrong: the smallest
# is: idea
# says: the experts with the smallest scores
# base: by topk
-    experts = scores.topk(k, -1).indices
+    experts = scores.argsort(-1)[:, :k]


# %% wrong: the first k
# is: idea
# says: All tokens go to the same experts
# base: by topk
-    experts = scores.topk(k, -1).indices
+    experts = torch.arange(k).expand(len(logits), k)


# %% wrong: weights of logits
# is: slip
# says: The weights are made of logits
# base: by topk
-    weights = probabilities.gather(1, experts)
+    weights = logits.gather(1, experts)


# %% wrong: a second softmax
# is: slip
# says: a softmax of probabilities
# base: by topk
-        weights = weights / weights.sum(-1, keepdim=True)
+        weights = weights.softmax(-1)


# %% wrong: sigmoids
# is: slip
# says: The probabilities are sigmoids
# base: by topk
-    probabilities = logits.softmax(-1)
+    probabilities = logits.sigmoid()


# %% wrong: exponentials of the logits themselves
# is: detail
# says: exp\(1000\) is infinite
# base: by topk
-    probabilities = logits.softmax(-1)
+    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)


# %% wrong: the bias is changed
# is: slip
# says: bias was changed
# base: by topk
-    probabilities = logits.softmax(-1)
+    probabilities = logits.softmax(-1)
+    if bias is not None:
+        with torch.no_grad():
+            bias -= bias.mean()


# %% wrong: weights of all experts
# is: form
# says: both with k columns
# base: by topk
-    return experts, weights
+    return experts, torch.zeros_like(logits).scatter(1, experts, weights)


# %% wrong: weights first
# is: form
# says: Return the experts first
# base: by topk
-    return experts, weights
+    return weights, experts


# %% wrong: sort with an argument in its place
# is: form
# says: Name all arguments of sort
# base: by topk
-    experts = scores.topk(k, -1).indices
+    experts = scores.sort(-1, descending=True, stable=True).indices[:, :k]


# %% wrong: what sort returns is cut
# is: form
# says: sort and topk return values and indices
def route(logits, bias=None, *, k):
    probabilities = logits.softmax(-1)
    scores = probabilities if bias is None else probabilities + bias
    experts = scores.sort(dim=-1, descending=True, stable=True)[:, :k]
    weights = probabilities.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) if k > 1 else weights


# %% wrong: divided by the sum over the tokens
# is: slip
# says: divided by a sum over several tokens
# base: by topk
-        weights = weights / weights.sum(-1, keepdim=True)
+        weights = weights / weights.sum(0, keepdim=True)


# %% wrong: divided by the sum of all weights
# is: slip
# says: divided by a sum over several tokens
# base: by topk
-        weights = weights / weights.sum(-1, keepdim=True)
+        weights = weights / weights.sum()


# %% wrong: rows are gathered
# is: slip
# says: An expert is a column of the probabilities
# base: by topk
-    weights = probabilities.gather(1, experts)
+    weights = probabilities.gather(0, experts)


# %% right: a stable sort
def route(logits, bias=None, *, k):
    p = torch.softmax(logits, -1)
    order = (p.detach() + (0 if bias is None else bias.detach())).sort(
        dim=-1, descending=True, stable=True
    )
    experts = order.indices[:, :k].contiguous()
    picked = torch.take_along_dim(p, experts, 1)
    return experts, picked if k == 1 else picked / picked.sum(1)[:, None]


# %% right: one choice after the other, by one-hot rows
def route(logits, bias=None, *, k):
    p = torch.exp(logits - logits.logsumexp(-1, keepdim=True))
    left = p.detach().clone()
    if bias is not None:
        left += bias.detach()
    experts, weights = [], []
    for _ in range(k):
        best = left.argmax(-1)
        hot = torch.nn.functional.one_hot(best, logits.shape[1])
        experts.append(best)
        weights.append((p * hot).sum(-1))
        left = left.masked_fill(hot.bool(), -torch.inf)
    weights = torch.stack(weights, -1)
    if k > 1:
        weights = torch.nn.functional.normalize(weights, p=1, dim=-1)
    return torch.stack(experts, -1), weights


# %% right: softmax over the chosen logits
def route(logits, bias=None, *, k):
    scores = logits.softmax(-1)
    if bias is not None:
        scores = scores + bias
    _, experts = torch.topk(scores, k)
    if k > 1:
        return experts, logits.gather(-1, experts).softmax(-1)
    return experts, logits.softmax(-1).gather(-1, experts)


# %% right: a loop over the tokens
def route(logits, bias=None, *, k):
    if not len(logits):
        return torch.empty(0, k, dtype=torch.int64), logits[:, :k]
    experts, weights = [], []
    for row in logits:
        p = row.softmax(0)
        score = (p if bias is None else p + bias).tolist()
        experts.append(torch.tensor(sorted(range(len(score)), key=lambda e: -score[e])[:k]))
        w = p[experts[-1]]
        weights.append(w / w.sum() if k > 1 else w)
    return torch.stack(experts), torch.stack(weights)
