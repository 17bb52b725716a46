# %% base: three blocks, mended
import torch.nn.functional as F


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def identity_all_reduce(x, group=None):
    return Enter.apply(x, group)


def all_reduce_identity(x, group=None):
    return Leave.apply(x, group)


def rows_then_columns(x, w1, w2, group=None):
    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
    return F.linear(identity_all_reduce(h, group), w2)


def bias_behind(x, w1, w2, b2, group=None):
    h = F.gelu(F.linear(identity_all_reduce(x, group), w1))
    return all_reduce_identity(F.linear(h, w2), group) + b2


def norm_before(x, scale, w1, w2, group=None):
    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
    h = F.gelu(F.linear(normed, w1))
    return x + all_reduce_identity(F.linear(h, w2), group)


# %% wrong: nothing is mended
# is: idea
# says: gelu.a. . gelu.b. is not
# base: three blocks, mended
-    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
+    h = F.gelu(F.linear(x, w1))
@@
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    return all_reduce_identity(F.linear(h, w2, b2), group)
@@
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
+    normed = F.layer_norm(x, x.shape[-1:], scale)


# %% wrong: gelu of each term
# is: slip
# says: gelu is applied to each rank's own term
# base: three blocks, mended
-    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
+    h = F.gelu(F.linear(x, w1))


# %% wrong: the sum behind gelu
# is: slip
# says: You add up behind gelu
# base: three blocks, mended
-    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
+    h = all_reduce_identity(F.gelu(F.linear(x, w1)), group)


# %% wrong: a bias on every rank
# is: slip
# says: every rank adds it to its term
# base: three blocks, mended
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    return all_reduce_identity(F.linear(h, w2, b2), group)


# %% wrong: a share of the bias on every rank
# is: slip
# says: b2 then gets a share of its gradient
# base: three blocks, mended
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    return all_reduce_identity(F.linear(h, w2, b2 / dist.get_world_size(group)), group)


# %% wrong: the bias on the first rank
# is: slip
# says: The bias is added on some ranks only
# base: three blocks, mended
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    own = b2 if dist.get_rank(group) == 0 else None
+    return all_reduce_identity(F.linear(h, w2, own), group)


# %% wrong: h enters no more
# is: slip
# says: Every rank uses h for its own columns of B
# base: three blocks, mended
-    return F.linear(identity_all_reduce(h, group), w2)
+    return F.linear(h, w2)


# %% wrong: the bias's x enters no more
# is: slip
# says: Every rank uses x for its own hidden features
# base: three blocks, mended
-    h = F.gelu(F.linear(identity_all_reduce(x, group), w1))
+    h = F.gelu(F.linear(x, w1))


# %% wrong: the bias enters
# is: slip
# says: to sum these copies again counts it N times
# base: three blocks, mended
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    return all_reduce_identity(F.linear(h, w2), group) + identity_all_reduce(b2, group)


# %% wrong: no bias
# is: slip
# says: The bias is missing. Add it once
# base: three blocks, mended
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    return all_reduce_identity(F.linear(h, w2), group)


# %% wrong: the norm's output enters by itself
# is: slip
# says: goes back through the norm is this rank's own term
# base: three blocks, mended
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
+    normed = F.layer_norm(x, x.shape[-1:], scale)


# %% wrong: the region begins in front of the norm
# is: slip
# says: The region begins in front of the norm
# base: three blocks, mended
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
+    normed = F.layer_norm(identity_all_reduce(x, group), x.shape[-1:], scale)


# %% wrong: the residual stream enters, too
# is: slip
# says: The residual stream also enters the region
# base: three blocks, mended
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
+    x = identity_all_reduce(x, group)
+    normed = F.layer_norm(x, x.shape[-1:], scale)


# %% wrong: one sum too many in backward
# is: slip
# says: One all-reduce in each direction is enough
# base: three blocks, mended
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
+    scale, x_in = identity_all_reduce(scale, group), identity_all_reduce(x, group)
+    normed = F.layer_norm(x_in, x.shape[-1:], scale)


# %% wrong: an all-reduce that autograd does not see
# is: slip
# says: Autograd does not see what torch.distributed does
# base: three blocks, mended
-    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
+    h = F.linear(x, w1).detach()
+    dist.all_reduce(h, group=group)
+    h = F.gelu(h)


# %% right: in steps of their own
# base: three blocks, mended
-    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
-    return F.linear(identity_all_reduce(h, group), w2)
+    total = all_reduce_identity(x @ w1.T, group)
+    return identity_all_reduce(F.gelu(total), group) @ w2.T
@@
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    y = all_reduce_identity(h @ w2.T, group)
+    return b2 + y


# %% right: the first half enters once
# base: three blocks, mended
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
-    h = F.gelu(F.linear(normed, w1))
+    h = F.gelu(Enter.apply(F.layer_norm(x, x.shape[-1:], scale), group) @ w1.T)


# %% wrong: the group is forgotten
# is: detail
# says: pass group= to every operation
# base: three blocks, mended
-    h = F.gelu(all_reduce_identity(F.linear(x, w1), group))
+    h = F.gelu(all_reduce_identity(F.linear(x, w1)))
@@
-    return all_reduce_identity(F.linear(h, w2), group) + b2
+    return all_reduce_identity(F.linear(h, w2)) + b2
@@
-    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale), group)
+    normed = identity_all_reduce(F.layer_norm(x, x.shape[-1:], scale))
