# %% base: what the wrong ones change
def clip_grad_norm(named_parameters, max_norm, mesh, cut, tied):
    first_of_tp = mesh.coordinate.get("tp", 0) == 0
    first_of_pp = mesh.coordinate.get("pp", 0) == 0
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    gradients = []
    for name, param in named_parameters:
        if param.grad is None:
            continue
        gradients.append(param.grad)
        once_on_tp = name in cut or first_of_tp
        once_on_pp = name not in tied or first_of_pp
        if once_on_tp and once_on_pp:
            squares += param.grad.double().pow(2).sum()
    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
    norm = float(squares) ** 0.5
    factor = min(1.0, max_norm / (norm + 1e-6))
    for gradient in gradients:
        gradient *= factor
    return norm


# %% wrong: tied weights count twice
# is: slip
# says: A tied weight is on two stages
# base: what the wrong ones change
-        once_on_pp = name not in tied or first_of_pp
+        once_on_pp = True


# %% wrong: everything over tp and pp
# is: idea
# says: whole on tp are on all of its ranks, so only the first of them counts. A tied weight
# base: what the wrong ones change
-        if once_on_tp and once_on_pp:
-            squares += param.grad.double().pow(2).sum()
+        squares += param.grad.double().pow(2).sum()


# %% wrong: everything over the world
# is: idea
# says: Your norm is over all ranks
# base: what the wrong ones change
-        if once_on_tp and once_on_pp:
-            squares += param.grad.double().pow(2).sum()
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+        squares += param.grad.double().pow(2).sum()
+    dist.all_reduce(squares)


# %% wrong: each rank's own norm, as torch.nn.utils does
# is: idea
# says: ranks 0 and 7 returned norms of their own
def clip_grad_norm(named_parameters, max_norm, mesh, cut, tied):
    params = [param for _, param in named_parameters if param.grad is not None]
    return torch.nn.utils.clip_grad_norm_(params, max_norm).item()


# %% wrong: the norm is right, and each rank clips by its own
# is: slip
# says: all ranks must scale by the same factor
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    own = sum(gradient.square().sum() for gradient in gradients) ** 0.5 if gradients else 1.0
+    factor = min(1.0, float(max_norm / (own + 1e-6)))


# %% wrong: norms are added
# is: slip
# says: Norms do not add up, but their squares do
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
-    norm = float(squares) ** 0.5
+    norms = squares.sqrt()
+    dist.all_reduce(norms, group=mesh.group(("pp", "tp")))
+    norm = norms.item()


# %% wrong: the replicas are added
# is: idea
# says: Ranks of dp and cp hold the same gradients
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares)


# %% wrong: whole parameters count on all ranks of tp
# is: idea
# says: whole on tp are on all of its ranks
# base: what the wrong ones change
-        once_on_tp = name in cut or first_of_tp
+        once_on_tp = True


# %% wrong: only the first stage scales
# is: slip
# says: Only some ranks scaled, while ranks 4 to 7 left
# base: what the wrong ones change
-    for gradient in gradients:
-        gradient *= factor
+    for gradient in gradients if first_of_pp else []:
+        gradient *= factor


# %% wrong: the largest element
# is: idea
# says: (?s)left as they were, because the norm you return is below max_norm
# base: what the wrong ones change
-            squares += param.grad.double().pow(2).sum()
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
-    norm = float(squares) ** 0.5
+            squares = torch.maximum(squares, param.grad.abs().max())
+    dist.all_reduce(squares, op=dist.ReduceOp.MAX, group=mesh.group(("pp", "tp")))
+    norm = squares.item()


# %% wrong: gradients of None are not skipped
# is: form
# says: A parameter without a gradient has `grad` None
# base: what the wrong ones change
-        if param.grad is None:
-            continue


# %% wrong: the stages are not added
# is: idea
# says: so also sum over pp
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares, group=mesh.group("tp"))


# %% wrong: the ranks of tp are not added
# is: idea
# says: so also sum over tp
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares, group=mesh.group("pp"))


# %% wrong: the square of the norm
# is: slip
# says: the square of the right one, so take its root
# base: what the wrong ones change
-    norm = float(squares) ** 0.5
+    norm = squares.item()


# %% wrong: small norms are scaled up
# is: slip
# says: A norm below max_norm stays
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = max_norm / (norm + 1e-6)


# %% wrong: new tensors are scaled
# is: slip
# says: at most 1, so scale `grad` itself by it, in place
# base: what the wrong ones change
-        gradient *= factor
+        gradient = gradient * factor


# %% wrong: the weights are scaled
# is: slip
# says: a parameter was changed. Scale its gradient instead
# base: what the wrong ones change
-        gradients.append(param.grad)
+        gradients.append(param.data)


# %% wrong: ranks without gradients stay away
# is: slip
# says: even ranks that have nothing to count
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    if gradients:
+        dist.all_reduce(squares, group=mesh.group(("pp", "tp")))


# %% wrong: the gradients travel
# is: idea
# says: so that no gradients travel
# base: what the wrong ones change
-            squares += param.grad.double().pow(2).sum()
+            squares += param.grad.double().pow(2).sum()
+            whole = [torch.empty_like(param.grad) for _ in range(mesh.size("tp"))]
+            if name in cut:
+                dist.all_gather(whole, param.grad, group=mesh.group("tp"))


# %% wrong: every mesh is taken to have all axes
# is: slip
# says: The mesh has no such axis, so every rank has coordinate 0
# base: what the wrong ones change
-    first_of_tp = mesh.coordinate.get("tp", 0) == 0
-    first_of_pp = mesh.coordinate.get("pp", 0) == 0
+    first_of_tp = mesh.coordinate["tp"] == 0
+    first_of_pp = mesh.coordinate["pp"] == 0


# %% wrong: the factor is upside down, and at most 1
# is: slip
# says: The factor is upside down, because it should be max_norm / norm
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = min(1.0, norm / max_norm)


# %% wrong: the factor is upside down
# is: slip
# says: The factor is upside down, because it should be max_norm / norm
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = norm / max_norm


# %% wrong: the squares are added up in float32
# is: detail
# says: right to about seven digits, so add up the squares in float64
# base: what the wrong ones change
-            squares += param.grad.double().pow(2).sum()
+            squares += param.grad.float().pow(2).sum()


# %% wrong: the replicas are added, in a group of their own
# is: idea
# says: ^Ranks of dp and cp hold the same gradients, so nothing is sent to them
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares, group=mesh.group(("pp", "dp", "tp")))


# %% wrong: each rank scales what it counts
# is: slip
# says: Only the gradients counted by the rank were scaled
# base: what the wrong ones change
-        gradients.append(param.grad)
@@
-            squares += param.grad.double().pow(2).sum()
+            squares += param.grad.double().pow(2).sum()
+            gradients.append(param.grad)


# %% wrong: each parameter is clipped by itself
# is: slip
# says: Parameters of one rank were scaled by unequal factors
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
-    for gradient in gradients:
-        gradient *= factor
+    for gradient in gradients:
+        gradient *= min(1.0, max_norm / (gradient.norm().item() + 1e-6))


# %% wrong: the parts are not scaled
# is: slip
# says: Some gradients were left as they were, such as .* on rank 0
# base: what the wrong ones change
-        gradients.append(param.grad)
+        if name not in cut:
+            gradients.append(param.grad)


# %% wrong: the norm after scaling
# is: slip
# says: Your norm was taken after scaling, so return the norm before scaling
# base: what the wrong ones change
-    return norm
+    return norm * factor


# %% wrong: `cut` is taken for what is whole
# is: slip
# says: `cut` has the names of the parts
# base: what the wrong ones change
-        once_on_tp = name in cut or first_of_tp
+        once_on_tp = name not in cut or first_of_tp


# %% wrong: parts alone count
# is: slip
# says: Some of the parameters that are not in `cut` are missing
# base: what the wrong ones change
-        once_on_tp = name in cut or first_of_tp
+        once_on_tp = name in cut


# %% wrong: the first rank of tp alone counts
# is: slip
# says: Only the first rank of tp counts
# base: what the wrong ones change
-        once_on_tp = name in cut or first_of_tp
+        once_on_tp = first_of_tp


# %% wrong: a tied weight counts nowhere
# is: slip
# says: counts on its first stage, but here it counts on none
# base: what the wrong ones change
-        once_on_pp = name not in tied or first_of_pp
+        once_on_pp = name not in tied


# %% wrong: squares are averaged
# is: slip
# says: The squares of pp and tp were averaged
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    squares /= mesh.size(("pp", "tp"))


# %% wrong: magnitudes are added
# is: slip
# says: Your norm is the sum of magnitudes
# base: what the wrong ones change
-            squares += param.grad.double().pow(2).sum()
+            squares += param.grad.double().abs().sum()
@@
-    norm = float(squares) ** 0.5
+    norm = float(squares)


# %% right: one sum over tp, then one over pp
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares, group=mesh.group("tp"))
+    dist.all_reduce(squares, group=mesh.group("pp"))


# %% right: norms of parts, by PyTorch, combined
def clip_grad_norm(named_parameters, max_norm, mesh, cut, tied):
    held = {name: param.grad for name, param in named_parameters if param.grad is not None}
    if mesh.coordinate.get("pp", 0) > 0:
        counted = {name: gradient for name, gradient in held.items() if name not in tied}
    else:
        counted = held
    parts = [gradient for name, gradient in counted.items() if name in cut]
    wholes = [gradient for name, gradient in counted.items() if name not in cut]
    pair = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    for place, tensors in enumerate((parts, wholes)):
        if tensors:
            pair[place] = torch.nn.utils.get_total_norm(tensors) ** 2
    pair[1] /= mesh.size("tp")
    dist.all_reduce(pair, group=mesh.group(("pp", "tp")))
    norm = pair.sum().sqrt().item()
    if norm > max_norm:
        for gradient in held.values():
            gradient *= max_norm / (norm + 1e-6)
    return norm


# %% right: one vector with the square of every parameter's pieces
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    row = torch.zeros(mesh.size(("pp", "tp")), dtype=torch.float64, device=mesh.device)
+    row[dist.get_rank(mesh.group(("pp", "tp")))] = squares
+    dist.all_reduce(row, group=mesh.group(("pp", "tp")))
+    squares = row.sum()


# %% wrong: the sum is on the first rank alone
# is: slip
# says: Only the first rank of the group has the sum
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    both = mesh.group(("pp", "tp"))
+    dist.reduce(squares, 0 if both is None else dist.get_global_rank(both, 0), group=both)


# %% wrong: the factor is max_norm
# is: slip
# says: The factor is max_norm itself
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = max_norm if norm > max_norm else 1.0


# %% wrong: the factor is one over the norm
# is: slip
# says: The factor is 1 / norm
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = 1 / (norm + 1e-6) if norm > max_norm else 1.0


# %% wrong: the factor is a root
# is: slip
# says: All gradients were multiplied by 0\.\d{4}, but the factor is 0\.\d\.
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = min(1.0, max_norm / (norm + 1e-6)) ** 0.5


# %% wrong: squares are averaged over tp
# is: slip
# says: The squares were averaged over tp
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
+    squares /= mesh.size("tp")


# %% wrong: norms are added in place of squares
# is: slip
# says: Norms do not add up, but their squares do
# base: what the wrong ones change
-            squares += param.grad.double().pow(2).sum()
+            squares += param.grad.norm()


# %% wrong: a rank may have no squares to stack
# is: form
# says: A rank may have nothing to count
# base: what the wrong ones change
+    counted = []
     for name, param in named_parameters:
@@
-            squares += param.grad.double().pow(2).sum()
+            counted.append(param.grad.double().pow(2).sum())
+    squares = torch.stack(counted).sum()


# %% wrong: the factor has the square of the norm
# is: slip
# says: Your factor is max_norm over another norm. Your norm is the square
# base: what the wrong ones change
-    factor = min(1.0, max_norm / (norm + 1e-6))
+    factor = min(1.0, max_norm / (norm**2 + 1e-6))


# %% wrong: the norms of all parameters on all ranks of tp and pp are added
# is: slip
# says: Norms do not add up, but their squares do
# base: what the wrong ones change
-        if once_on_tp and once_on_pp:
-            squares += param.grad.double().pow(2).sum()
+        squares += param.grad.double().norm()
@@
-    norm = float(squares) ** 0.5
+    norm = float(squares)


# %% wrong: the root is taken twice
# is: slip
# says: Your norm is the root of the right one
# base: what the wrong ones change
-    norm = float(squares) ** 0.5
+    norm = float(squares) ** 0.25


# %% wrong: nothing is added up
# is: form
# says: The norm is 0 on all ranks
# base: what the wrong ones change
-    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))
-    norm = float(squares) ** 0.5
+    norm = 0.0
