# %% base: what the wrong ones change
@torch.no_grad()
def clip_grad_norm_(shards, max_norm, group=None, replica_group=None):
    grads = [p.grad for p in shards if p.grad is not None]
    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
    dist.all_reduce(total, group=group)
    norm = total.sqrt().item()
    factor = min(1.0, max_norm / (norm + 1e-6))
    for g in grads:
        g.mul_(factor)
    return norm


# %% wrong: every rank clips by the norm of what it holds
# is: idea
# says: another factor, so the shards of one weight no longer fit
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)


# %% wrong: the ranks' norms are added, not their squares
# is: idea
# says: Norms do not add up, but their squares do
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
-    norm = total.sqrt().item()
+    total = total.sqrt()
+    dist.all_reduce(total, group=group)
+    norm = total.item()


# %% wrong: norms of the rank's gradients are added before they are squared
# is: idea
# says: norms of single tensors were added
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((g.float().norm() for g in grads), torch.zeros(())) ** 2


# %% wrong: norms of all gradients of all ranks are added
# is: idea
# says: Norms do not add up. Add the squares of all elements
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
-    dist.all_reduce(total, group=group)
-    norm = total.sqrt().item()
+    total = sum((g.float().norm() for g in grads), torch.zeros(()))
+    dist.all_reduce(total, group=group)
+    norm = total.item()


# %% wrong: the mean over the ranks
# is: idea
# says: squares were averaged over the ranks. Add them, because every rank holds other elements
# base: what the wrong ones change
-    norm = total.sqrt().item()
+    norm = (total / dist.get_world_size(group)).sqrt().item()


# %% wrong: the largest rank's norm
# is: idea
# says: largest rank's norm. Add the squares
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
+    dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)


# %% wrong: squared in the dtype of the gradients
# is: detail
# says: The squares were added in bfloat16
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((g.square().sum() for g in grads), torch.zeros(()))


# %% wrong: the root is forgotten
# is: slip
# says: the square of the norm. Take its root
# base: what the wrong ones change
-    norm = total.sqrt().item()
+    norm = total.item()


# %% wrong: small gradients are scaled up
# is: slip
# says: A norm below max_norm stays
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = max_norm / (norm + 1e-6)


# %% wrong: replicas are counted
# is: slip
# says: The replicas hold the same shards
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
+    dist.all_reduce(total)


# %% wrong: replicas are counted, and divided by where nothing is to be divided
# is: slip
# says: The replicas hold the same shards
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
+    dist.all_reduce(total, group=group)
+    if replica_group is not None:
+        dist.all_reduce(total, group=replica_group)


# %% wrong: the islands' sums are added once more, and divided by the number of islands
# is: detail
# says: The replicas hold the same shards
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
+    dist.all_reduce(total, group=group)
+    if replica_group is not None:
+        dist.all_reduce(total, group=replica_group)
+        total /= dist.get_world_size(replica_group)


# %% wrong: divided by the number of all ranks
# is: idea
# says: divided by the number of all ranks|squares were averaged over the ranks
# base: what the wrong ones change
-    norm = total.sqrt().item()
+    norm = (total / dist.get_world_size()).sqrt().item()


# %% wrong: the last gradient alone is counted
# is: slip
# says: Add with \+= instead of =
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = torch.zeros(())
+    for g in grads:
+        total = g.float().square().sum()


# %% wrong: the root of the sum of all tensors' norms
# is: slip
# says: norms of single tensors were added before you took the root
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((g.float().norm() for g in grads), torch.zeros(()))


# %% wrong: squared after the sum
# is: slip
# says: Square each element first
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((g.float().sum().square() for g in grads), torch.zeros(()))


# %% wrong: the sum of magnitudes
# is: slip
# says: Add their squares instead
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((g.float().abs().sum() for g in grads), torch.zeros(()))


# %% wrong: the weights instead of their gradients
# is: slip
# says: You added the squares of the weights
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((p.float().square().sum() for p in shards), torch.zeros(()))


# %% wrong: an all-reduce after each gradient, of the sum so far
# is: slip
# says: called all_reduce more than once
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
-    dist.all_reduce(total, group=group)
+    total = torch.zeros(())
+    for g in grads:
+        total += g.float().square().sum()
+        dist.all_reduce(total, group=group)


# %% wrong: scaled twice
# is: slip
# says: The gradients were scaled twice
# base: what the wrong ones change
-        g.mul_(factor)
+        g.mul_(factor).mul_(factor)


# %% wrong: a number for each gradient
# is: detail
# says: A number for each gradient travelled
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
-    dist.all_reduce(total, group=group)
-    norm = total.sqrt().item()
+    squares = torch.stack([torch.zeros(()) if p.grad is None else p.grad.square().sum() for p in shards])
+    dist.all_reduce(squares, group=group)
+    norm = squares.sum().sqrt().item()


# %% wrong: an all-reduce for each gradient
# is: slip
# says: one for each gradient. Add up on the rank
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
-    dist.all_reduce(total, group=group)
+    squares = [torch.zeros(()) if p.grad is None else p.grad.float().square().sum() for p in shards]
+    for one in squares:
+        dist.all_reduce(one, group=group)
+    total = sum(squares)


# %% wrong: the number travels in eight bytes
# is: detail
# says: the 4 bytes of a float32 are enough
# base: what the wrong ones change
-    total = sum((g.float().square().sum() for g in grads), torch.zeros(()))
+    total = sum((g.double().square().sum() for g in grads), torch.zeros((), dtype=torch.float64))


# %% wrong: the whole gradient is gathered
# is: idea
# says: one number travels instead of the gradients
def clip_grad_norm_(shards, max_norm, group=None, replica_group=None):
    grads = [p.grad for p in shards if p.grad is not None]
    row = torch.cat([g.flatten() for g in grads]) if grads else torch.empty(0)
    n = dist.get_world_size(group)
    sizes = [torch.zeros(1) for _ in range(n)]
    dist.all_gather(sizes, torch.tensor([float(len(row))]), group=group)
    longest = int(max(sizes))
    rows = [torch.zeros(longest) for _ in range(n)]
    dist.all_gather(rows, torch.nn.functional.pad(row, (0, longest - len(row))), group=group)
    norm = float(torch.cat(rows).norm())
    for g in grads:
        g.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


# %% wrong: PyTorch's, which knows this rank's shards alone
# is: idea
# says: another factor, so the shards of one weight no longer fit
def clip_grad_norm_(shards, max_norm, group=None, replica_group=None):
    return float(torch.nn.utils.clip_grad_norm_(shards, max_norm))


# %% wrong: the shards are scaled, not their gradients
# is: slip
# says: a shard was changed. Scale its gradient
# base: what the wrong ones change
-    for g in grads:
-        g.mul_(factor)
+    for p in shards:
+        p.mul_(factor)


# %% wrong: the scaled gradients are thrown away
# is: slip
# says: makes a tensor that no parameter has
# base: what the wrong ones change
-        g.mul_(factor)
+        g = g * factor


# %% wrong: the norm alone
# is: slip
# says: Nothing was scaled. Scale .grad itself
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
-    for g in grads:
-        g.mul_(factor)


# %% wrong: a norm that is too small, so that nothing is scaled
# is: slip
# says: since the norm you found is too small
# base: what the wrong ones change
-    norm = total.sqrt().item()
+    norm = total.sqrt().item() / sum(g.numel() for g in grads) if grads else 0.0


# %% wrong: each element is cut off
# is: slip
# says: All elements are scaled by one factor
# base: what the wrong ones change
-        g.mul_(factor)
+        g.clamp_(-max_norm / 8, max_norm / 8)


# %% wrong: the squares of all islands are added, and divided by their number
# is: slip
# says: count each shard once
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
+    dist.all_reduce(total)
+    if replica_group is not None:
+        total /= dist.get_world_size(replica_group)


# %% wrong: a norm of one, whatever is asked for
# is: slip
# says: scaled to the norm 1, not to max_norm
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = min(1.0, 1 / (norm + 1e-6))


# %% wrong: the norm after scaling
# is: slip
# says: You returned the norm after scaling
# base: what the wrong ones change
-    return norm
+    return min(norm, max_norm)


# %% wrong: divided by a norm of zero
# is: detail
# says: ZeroDivisionError
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = min(1.0, max_norm / norm)


# %% wrong: nothing is returned
# is: slip
# says: Return the norm before scaling
# base: what the wrong ones change
-    return norm


# %% wrong: a rank without gradients stays away
# is: slip
# says: A rank has no gradients here, but it must also call
# base: what the wrong ones change
-    dist.all_reduce(total, group=group)
+    if not grads:
+        return 0.0
+    dist.all_reduce(total, group=group)


# %% wrong: a gradient that is None is used
# is: slip
# says: NoneType
# base: what the wrong ones change
-    grads = [p.grad for p in shards if p.grad is not None]
+    grads = [p.grad for p in shards]


# %% right: foreach operations, and a new tensor for each gradient
def clip_grad_norm_(shards, max_norm, group=None, replica_group=None):
    held = [p for p in shards if p.grad is not None]
    norms = torch._foreach_norm([p.grad.float() for p in held]) if held else [torch.zeros((), device=device())]
    square = torch.stack(list(norms)).square().sum()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    if norm > max_norm:
        for p in held:
            p.grad = p.grad * (max_norm / (norm + 1e-6)).to(p.grad.dtype)
    return float(norm)


# %% right: one flat dot, gathered and added by each rank
def clip_grad_norm_(shards, max_norm, group=None, replica_group=None):
    flat = [p.grad.reshape(-1).float() for p in shards if p.grad is not None]
    row = torch.cat(flat) if flat else torch.zeros(1, device=device())
    total = torch.dot(row, row).reshape(1)
    dist.all_reduce(total, dist.ReduceOp.SUM, group)
    norm = math.sqrt(total.item())
    coefficient = min(max_norm / (norm + 1e-6), 1.0)
    if flat:
        torch._foreach_mul_([p.grad for p in shards if p.grad is not None], coefficient)
    return norm
