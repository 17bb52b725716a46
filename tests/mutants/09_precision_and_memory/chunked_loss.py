# %% base: a Function, gradients in forward
class InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunks):
        count = (targets != -100).sum()
        loss = torch.zeros(())
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros(weight.shape)
        begin = 0
        for x, y in zip(hidden.tensor_split(chunks), targets.tensor_split(chunks)):
            logits = (x @ weight.t()).float()
            loss += torch.nn.functional.cross_entropy(logits, y, reduction="sum") / count
            slope = logits.softmax(1)
            valid = y != -100
            slope[torch.arange(len(y)), y.clamp(min=0)] -= 1
            slope = slope * valid[:, None] / count
            grad_hidden[begin : begin + len(x)] = slope.to(x.dtype) @ weight
            grad_weight += slope.t() @ x.float()
            begin += len(x)
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, upstream):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * upstream, grad_weight * upstream, None, None


def chunked_loss(hidden, weight, targets, chunks):
    return InChunks.apply(hidden, weight, targets, chunks)


# %% wrong: the mean of the chunks' means
# is: slip
# says: You took the mean of the chunks' means
# base: a Function, gradients in forward
-        count = (targets != -100).sum()
@@
-            logits = (x @ weight.t()).float()
+            logits = (x @ weight.t()).float()
+            count = (y != -100).sum().clamp(min=1) * chunks


# %% wrong: lost targets count
# is: slip
# says: Targets of -100 were counted
# base: a Function, gradients in forward
-        count = (targets != -100).sum()
+        count = len(targets)


# %% wrong: lost targets are token 0
# is: slip
# says: taken for token 0
# base: a Function, gradients in forward
-        count = (targets != -100).sum()
+        targets = targets.clamp(min=0)
+        count = len(targets)


# %% wrong: the mean of each chunk, also of an empty one
# is: slip
# says: A chunk without a target has no mean
def chunked_loss(hidden, weight, targets, chunks):
    def part(x, weight, y):
        return torch.nn.functional.cross_entropy(x.float() @ weight.t(), y)

    total, wide = torch.zeros(()), weight.float()
    for x, y in zip(hidden.tensor_split(chunks), targets.tensor_split(chunks)):
        total = total + torch.utils.checkpoint.checkpoint(part, x, wide, y, use_reentrant=False)
    return total / chunks


# %% wrong: the sum
# is: slip
# says: You return the sum of the losses
# base: a Function, gradients in forward
-        count = (targets != -100).sum()
+        count = 1


# %% wrong: the weight's gradient is overwritten
# is: slip
# says: last chunk's gradient of the weight
# base: a Function, gradients in forward
-            grad_weight += slope.t() @ x.float()
+            grad_weight = slope.t() @ x.float()


# %% wrong: the upstream gradient is forgotten
# is: slip
# says: right only for an upstream gradient of 1
# base: a Function, gradients in forward
-        return grad_hidden * upstream, grad_weight * upstream, None, None
+        return grad_hidden, grad_weight, None, None


# %% wrong: sums in bfloat16
# is: slip
# says: a sum in bfloat16 stops growing
# base: a Function, gradients in forward
-        grad_weight = torch.zeros(weight.shape)
+        grad_weight = torch.zeros_like(weight)


# %% wrong: lost targets have a gradient
# is: slip
# says: Tokens whose target is -100 have a gradient
# base: a Function, gradients in forward
-            slope = slope * valid[:, None] / count
+            slope = slope / count
@@
-            slope[torch.arange(len(y)), y.clamp(min=0)] -= 1
+            slope[torch.arange(len(y))[valid], y[valid]] -= 1


# %% wrong: the logits are kept
# is: idea
# says: each chunk's logits are kept until backward
def chunked_loss(hidden, weight, targets, chunks):
    total, wide = torch.zeros(()), weight.float()
    for x, y in zip(hidden.tensor_split(chunks), targets.tensor_split(chunks)):
        logits = x.float() @ wide.t()
        total = total + torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    return total / (targets != -100).sum()


# %% wrong: no chunks
# is: idea
# says: The logits of all tokens exist at the same time
def chunked_loss(hidden, weight, targets, chunks):
    return torch.nn.functional.cross_entropy(hidden.float() @ weight.float().t(), targets)


# %% wrong: the loss has the inputs' dtype
# is: form
# says: The loss is a float32 without dimensions
# base: a Function, gradients in forward
-        return loss
+        return loss.to(hidden.dtype)


# %% wrong: lost targets are looked up
# is: slip
# says: leave these targets out
# base: a Function, gradients in forward
-            slope[torch.arange(len(y)), y.clamp(min=0)] -= 1
+            slope[torch.arange(len(y)), y] -= 1


# %% right: a checkpoint for each chunk
def chunked_loss(hidden, weight, targets, chunks):
    def part(x, weight, y):
        return torch.nn.functional.cross_entropy(x.float() @ weight.t(), y, reduction="sum")

    total, wide = torch.zeros(()), weight.float()
    for x, y in zip(hidden.tensor_split(chunks), targets.tensor_split(chunks)):
        total = total + torch.utils.checkpoint.checkpoint(part, x, wide, y, use_reentrant=False)
    return total / (targets != -100).sum()


# %% right: a Function, the softmax by hand
class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunks):
        keep = targets != -100
        n = keep.sum().item()
        total = 0.0
        dh = torch.empty_like(hidden)
        dw = torch.zeros(weight.shape)
        size = -(-len(hidden) // chunks)
        for begin in range(0, len(hidden), size):
            rows = slice(begin, begin + size)
            x, y, k = hidden[rows], targets[rows].clone(), keep[rows]
            y[~k] = 0
            z = x.float() @ weight.float().t()
            z -= z.amax(1, keepdim=True)
            picked = z.gather(1, y[:, None]).squeeze(1)
            z.exp_()
            norm = z.sum(1, keepdim=True)
            total += ((norm.squeeze(1).log() - picked) * k).sum()
            z /= norm
            z.scatter_add_(1, y[:, None], torch.full((len(y), 1), -1.0))
            z *= k[:, None] / n
            dh[rows] = (z @ weight.float()).to(dh.dtype)
            dw += z.t() @ x.float()
        ctx.save_for_backward(dh, dw)
        ctx.dtype = weight.dtype
        return total / n

    @staticmethod
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors
        return dh * g, (dw * g).to(ctx.dtype), None, None


def chunked_loss(hidden, weight, targets, chunks):
    return Rows.apply(hidden, weight, targets, chunks)
