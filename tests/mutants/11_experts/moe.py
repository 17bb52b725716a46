# %% base: rows sorted by expert
import torch.nn.functional as F


def moe(x, experts, weights, w1, w3, w2):
    k = experts.shape[1]
    order = experts.flatten().argsort(stable=True)
    token = order // k
    counts = experts.flatten().bincount(minlength=len(w1)).tolist()
    rows = x[token]
    out = torch.cat([
        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
        for e, part in enumerate(rows.split(counts))
    ])
    out = out * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, out)


# %% base: a loop over the experts
import torch.nn.functional as F


def moe(x, experts, weights, w1, w3, w2):
    y = torch.zeros_like(x)
    for e in range(len(w1)):
        token, choice = (experts == e).nonzero(as_tuple=True)
        rows = x[token]
        out = (F.silu(rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T
        y = y.index_add(0, token, weights[token, choice, None] * out)
    return y


# %% wrong: every expert computes every token
# is: idea
# says: Every expert computed every token
def moe(x, experts, weights, w1, w3, w2):
    gate, up = (torch.einsum("th,efh->etf", x, w) for w in (w1, w3))
    out = torch.einsum("etf,ehf->teh", torch.nn.functional.silu(gate) * up, w2)
    dense = torch.zeros(len(x), len(w1), dtype=x.dtype).scatter(1, experts, weights)
    return (dense[..., None] * out).sum(1)


# %% wrong: a loop over the experts, each with all tokens
# is: idea
# says: Every expert computed every token
# base: a loop over the experts
-        token, choice = (experts == e).nonzero(as_tuple=True)
-        rows = x[token]
-        out = (F.silu(rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T
-        y = y.index_add(0, token, weights[token, choice, None] * out)
+        out = (F.silu(x @ w1[e].T) * (x @ w3[e].T)) @ w2[e].T
+        y = y + (weights * (experts == e)).sum(1, keepdim=True) * out


# %% wrong: every expert is padded to all tokens
# is: idea
# says: Every expert computed every token, or rows of padding
def moe(x, experts, weights, w1, w3, w2):
    chosen = torch.nn.functional.one_hot(experts, len(w1)).sum(1).T
    rows = chosen[:, :, None].to(x.dtype) * x
    out = torch.bmm(torch.nn.functional.silu(torch.bmm(rows, w1.mT)) * torch.bmm(rows, w3.mT), w2.mT)
    mine = out[experts.T, torch.arange(len(x))]
    return (weights.T[..., None] * mine).sum(0)


# %% wrong: the first expert for all
# is: idea
# says: Every token went through expert 0
def moe(x, experts, weights, w1, w3, w2):
    out = (torch.nn.functional.silu(x @ w1[0].T) * (x @ w3[0].T)) @ w2[0].T
    return out * weights.sum(1, keepdim=True)


# %% wrong: the order is not undone
# is: slip
# says: A token has another token's output
# base: rows sorted by expert
-    out = out * weights.flatten()[order, None]
-    return torch.zeros_like(x).index_add(0, token, out)
+    return (out.view(len(x), k, -1) * weights[..., None]).sum(1)


# %% wrong: the order is not undone, of weighted rows
# is: slip
# says: A token has another token's output
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, out)
+    return out.unflatten(0, (len(x), k)).sum(1)


# %% wrong: weights in the order of the tokens
# is: slip
# says: A row has another row's weight
# base: rows sorted by expert
-    out = out * weights.flatten()[order, None]
+    out = out * weights.flatten()[:, None]


# %% wrong: written in place of added
# is: slip
# says: Only one of a token's k results is left
# base: a loop over the experts
-        y = y.index_add(0, token, weights[token, choice, None] * out)
+        y[token] = weights[token, choice, None] * out


# %% wrong: added by an index with repetitions
# is: slip
# says: Only one of a token's k results is left
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, out)
+    y = torch.zeros_like(x)
+    y[token] += out
+    return y


# %% wrong: the first choice alone
# is: idea
# says: Only one column of
# base: rows sorted by expert
-    k = experts.shape[1]
+    experts, weights, k = experts[:, :1], weights[:, :1], 1


# %% wrong: the weight before the expert
# is: slip
# says: Multiply the expert's output by it
# base: rows sorted by expert
-    rows = x[token]
+    rows = x[token] * weights.flatten()[order, None]
@@
-    out = out * weights.flatten()[order, None]


# %% wrong: without weights
# is: slip
# says: added without their weights
# base: rows sorted by expert
-    out = out * weights.flatten()[order, None]


# %% wrong: weights are divided again
# is: slip
# says: The weights were divided by their sum
# base: rows sorted by expert
-    k = experts.shape[1]
+    k = experts.shape[1]
+    weights = weights / weights.sum(-1, keepdim=True)


# %% wrong: weights without a gradient
# is: slip
# says: A gradient is missing
# base: rows sorted by expert
-    out = out * weights.flatten()[order, None]
+    out = out * weights.detach().flatten()[order, None]


# %% wrong: w1 and w3 are swapped
# is: slip
# says: w1 and w3 are swapped
# base: a loop over the experts
-        out = (F.silu(rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T
+        out = (F.silu(rows @ w3[e].T) * (rows @ w1[e].T)) @ w2[e].T


# %% wrong: no silu
# is: slip
# says: silu is missing
# base: a loop over the experts
-        out = (F.silu(rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T
+        out = ((rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T


# %% wrong: no gate
# is: slip
# says: w3 is missing
# base: a loop over the experts
-        out = (F.silu(rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T
+        out = F.silu(rows @ w1[e].T) @ w2[e].T


# %% wrong: the residual is added
# is: slip
# says: x was added to the output
# base: a loop over the experts
-    y = torch.zeros_like(x)
+    y = x.clone()


# %% wrong: experts without rows lose their numbers
# is: detail
# says: lost its number
# base: rows sorted by expert
-    counts = experts.flatten().bincount(minlength=len(w1)).tolist()
+    counts = experts.unique(return_counts=True)[1].tolist()


# %% wrong: x is changed
# is: slip
# says: x was changed
# base: a loop over the experts
-    return y
+    with torch.no_grad():
+        x += y
+    return y


# %% wrong: numbers of one kind
# is: form
# says: The output has x's shape and dtype|One of the results
# base: a loop over the experts
-    return y
+    return y.float()


# %% wrong: no transpose
# is: form
# says: A row goes through w1.e. as row @ w1.e..T
# base: a loop over the experts
-        out = (F.silu(rows @ w1[e].T) * (rows @ w3[e].T)) @ w2[e].T
+        out = (F.silu(rows @ w1[e]) * (rows @ w3[e])) @ w2[e]


# %% wrong: counts of the first choice
# is: form
# says: The sizes of the parts must sum to the T k rows
# base: rows sorted by expert
-    counts = experts.flatten().bincount(minlength=len(w1)).tolist()
+    counts = experts[:, 0].bincount(minlength=len(w1)).tolist()


# %% wrong: PyTorch's grouped product in float64
# is: form
# says: F.grouped_mm does not take float64
# base: rows sorted by expert
-    out = torch.cat([
-        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
-        for e, part in enumerate(rows.split(counts))
-    ])
+    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
+    gate, up = (F.grouped_mm(rows, w.mT, offs=ends) for w in (w1, w3))
+    out = F.grouped_mm(F.silu(gate) * up, w2.mT, offs=ends)


# %% wrong: silu of the product
# is: slip
# says: silu only of w1 x, then
# base: rows sorted by expert
-        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
+        F.silu((part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T


# %% wrong: both halves through silu
# is: slip
# says: silu only of w1 x, then
# base: rows sorted by expert
-        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
+        (F.silu(part @ w1[e].T) * F.silu(part @ w3[e].T)) @ w2[e].T


# %% wrong: a sum of the halves
# is: slip
# says: silu only of w1 x, then
# base: rows sorted by expert
-        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
+        (F.silu(part @ w1[e].T) + (part @ w3[e].T)) @ w2[e].T


# %% wrong: weights twice
# is: slip
# says: multiplied by their weights twice
# base: rows sorted by expert
-    out = out * weights.flatten()[order, None]
+    out = out * weights.flatten()[order, None] ** 2


# %% wrong: a softmax of the weights
# is: slip
# says: A softmax was taken of the weights
# base: rows sorted by expert
-    out = out * weights.flatten()[order, None]
+    out = out * weights.softmax(1).flatten()[order, None]


# %% wrong: a mean over the k results
# is: slip
# says: The sum was divided by k
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, out)
+    return torch.zeros_like(x).index_add(0, token, out) / k


# %% wrong: the sum is lost
# is: idea
# says: it returns a new tensor
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, out)
+    y = torch.zeros_like(x)
+    y.index_add(0, token, out)
+    return y


# %% wrong: the last expert first
# is: idea
# says: Rows went through other experts than their own
# base: rows sorted by expert
-    order = experts.flatten().argsort(stable=True)
+    order = experts.flatten().argsort(stable=True, descending=True)


# %% wrong: the order of the order
# is: idea
# says: Rows went through other experts than their own
# base: rows sorted by expert
-    order = experts.flatten().argsort(stable=True)
+    order = experts.flatten().argsort(stable=True).argsort()


# %% wrong: rows are not sorted
# is: idea
# says: Rows went through other experts than their own
# base: rows sorted by expert
-    rows = x[token]
+    rows = x.repeat_interleave(k, 0)


# %% wrong: assignments counted by column
# is: idea
# says: Assignment a belongs to token a // k
# base: rows sorted by expert
-    token = order // k
+    token = order % len(x)


# %% wrong: without a graph
# is: slip
# says: A gradient is missing
# base: rows sorted by expert
+@torch.no_grad()
 def moe(x, experts, weights, w1, w3, w2):


# %% wrong: the order in place of the tokens
# is: form
# says: so take the rows from x.order // k.
# base: rows sorted by expert
-    token = order // k
+    token = order


# %% wrong: the experts are sorted token by token
# is: form
# says: Flatten the experts before argsort as well
# base: rows sorted by expert
-    order = experts.flatten().argsort(stable=True)
+    order = experts.argsort(stable=True)


# %% wrong: always two experts
# is: slip
# says: Assignment a belongs to token a // k
# base: rows sorted by expert
-    token = order // k
+    token = order // 2


# %% right: padded to the largest count, with bmm
def moe(x, experts, weights, w1, w3, w2):
    E, k = len(w1), experts.shape[1]
    flat = experts.flatten()
    hot = torch.nn.functional.one_hot(flat, E)
    place = ((hot.cumsum(0) - 1) * hot).sum(1)
    room = max(int(hot.sum(0).max()), 1) if len(flat) else 1
    token = torch.arange(len(x)).repeat_interleave(k)
    boxes = x.new_zeros(E, room, x.shape[1]).index_put((flat, place), x[token])
    inner = torch.nn.functional.silu(torch.bmm(boxes, w1.mT)) * torch.bmm(boxes, w3.mT)
    out = torch.bmm(inner, w2.mT)[flat, place]
    return (out.view(len(x), k, x.shape[1]) * weights[..., None]).sum(1)


# %% right: the inverse of the order
def moe(x, experts, weights, w1, w3, w2):
    silu = torch.nn.functional.silu
    tokens, k = experts.shape
    sorted_experts, order = experts.reshape(-1).sort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    rows = x.repeat_interleave(k, 0)[order]
    parts, start = [], 0
    for e in range(w1.size(0)):
        stop = start + int((sorted_experts == e).sum())
        part = rows[start:stop]
        inner = silu(torch.nn.functional.linear(part, w1[e])) * torch.nn.functional.linear(part, w3[e])
        parts.append(torch.nn.functional.linear(inner, w2[e]))
        start = stop
    y = torch.cat(parts)[back].reshape(tokens, k, x.shape[1])
    return torch.einsum("tk,tkh->th", weights, y)


# %% right: a loop over the choices
def moe(x, experts, weights, w1, w3, w2):
    y = x * 0 + 0 * (w1.sum() + w3.sum() + w2.sum() + weights.sum())
    for j in range(experts.shape[1]):
        for e in experts[:, j].unique().tolist():
            rows = x[experts[:, j] == e]
            inner = (rows @ w1[e].T) * torch.sigmoid(rows @ w1[e].T) * (rows @ w3[e].T)
            at = (experts[:, j] == e).nonzero()[:, 0]
            y = y.index_add(0, at, (inner @ w2[e].T) * weights[at, j].unsqueeze(1))
    return y


# %% right: a loop over the tokens
def moe(x, experts, weights, w1, w3, w2):
    lines = []
    for t in range(len(x)):
        row = torch.zeros_like(x[t])
        for j, e in enumerate(experts[t].tolist()):
            inner = torch.nn.functional.silu(w1[e] @ x[t]) * (w3[e] @ x[t])
            row = row + weights[t, j] * (w2[e] @ inner)
        lines.append(row)
    if not lines:
        return x + 0 * (w1.sum() + w3.sum() + w2.sum() + weights.sum())
    return torch.stack(lines)


# %% wrong: every expert on every token, in NumPy
# is: idea
# says: Products of other libraries
import numpy as np


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        kind = torch.promote_types(a.dtype, torch.float32)
        return torch.from_numpy(a.detach().to(kind).numpy() @ b.detach().to(kind).numpy()).to(a.dtype)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return Product.apply(grad, b.mT), Product.apply(a.mT, grad)


def moe(x, experts, weights, w1, w3, w2):
    dense = torch.zeros(len(x), len(w1), dtype=weights.dtype).scatter_add(1, experts, weights)
    out = torch.zeros_like(x)
    for e in range(len(w1)):
        inner = torch.nn.functional.silu(Product.apply(x, w1[e].T)) * Product.apply(x, w3[e].T)
        out = out + dense[:, e, None] * Product.apply(inner, w2[e].T)
    return out
