# %% base: what the wrong ones change
from course_lib.pipeline import run_schedule


def hybrid_step(stages, schedule, microbatches, mesh):
    params = [param for stage in stages for param in stage.module.parameters()]
    earlier = [param.grad for param in params]
    for param in params:
        param.grad = None
    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
    flat = torch.cat([param.grad.flatten() for param in params])
    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
    flat /= mesh.size("dp")
    start = 0
    for param, before in zip(params, earlier):
        part = flat[start : start + param.numel()]
        start += param.numel()
        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
    return total.item() / mesh.size("dp")


# %% wrong: nothing is reduced
# says: Replicas have gradients of their own rows: average over dp
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")


# %% wrong: the average is taken over cp too
# says: 1/2 of one process', on every parameter: ranks of cp hold terms of one sum
# base: what the wrong ones change
-    flat /= mesh.size("dp")
+    flat /= mesh.size(("dp", "cp"))


# %% wrong: divided by the number of ranks
# says: are 1/2 of one process', on every parameter. They were divided by the number of ranks
# base: what the wrong ones change
-    flat /= mesh.size("dp")
+    flat /= dist.get_world_size()


# %% wrong: the average over the world
# says: reduce over mesh.group...dp., .cp... alone
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")
+    dist.all_reduce(flat)
+    flat /= dist.get_world_size()


# %% wrong: the average over the world, one parameter after the other, if stages are alike
# says: The gradients of all ranks were added: tp and pp ranks hold different parameters
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")
+    world = mesh.size("pp") == 1
+    dist.all_reduce(flat, group=None if world else mesh.group(("dp", "cp")))
+    flat /= dist.get_world_size() if world else mesh.size("dp")


# %% wrong: the sum over the replicas
# says: 2 times one process', on every parameter. Replicas read different rows
# base: what the wrong ones change
-    flat /= mesh.size("dp")


# %% wrong: over tp as well
# says: rows 0-3 of blocks.0.attention.query.weight hold the mean of 2 ranks' different rows; norms are right
# base: what the wrong ones change
-    flat /= mesh.size("dp")
+    flat /= mesh.size("dp")
+    dist.all_reduce(flat, group=mesh.group("tp"))
+    flat /= mesh.size("tp")


# %% wrong: cp is forgotten
# says: The terms of cp were not added
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group("dp"))


# %% wrong: dp is forgotten
# says: Replicas have gradients of their own rows
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")
+    dist.all_reduce(flat, group=mesh.group("cp"))


# %% wrong: divided by the microbatches too
# says: run_schedule. has divided by the targets of all microbatches
# base: what the wrong ones change
-    flat /= mesh.size("dp")
+    flat /= mesh.size("dp") * len(microbatches)


# %% wrong: tied terms are added once more
# says: token_embedding.weight alone is wrong: its two terms were added twice
# base: what the wrong ones change
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    for name, held in {name: held for stage in stages for name, held in stage.shared.items()}.items():
+        dist.all_reduce(held.param.grad, group=mesh.group("pp"))
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)


# %% wrong: tied weights are left to each stage
# says: its two terms, of the first stage and of the last, have not met
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    kept = [stage.shared for stage in stages]
+    for stage in stages:
+        stage.shared = {}
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    for stage, shared in zip(stages, kept):
+        stage.shared = shared


# %% wrong: the average is taken inside the schedule, before tied terms meet, and only on the first stage
# says: Reduce over the replicas once both have met
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    def averaged(gradient):
+        if mesh.coordinate.get("pp", 0) == 0:
+            gradient = gradient.clone()
+            dist.all_reduce(gradient, group=mesh.group(("dp", "cp")))
+            gradient /= mesh.size("dp")
+        return gradient
+    tied = [held.param for stage in stages for held in stage.shared.values()]
+    hooks = [param.register_hook(averaged) for param in tied]
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    for hook in hooks:
+        hook.remove()
+    mine = {id(param): param.grad.clone() for param in tied}
@@
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    for param in tied:
+        param.grad = mine[id(param)]
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)


# %% wrong: reduced after every microbatch
# says: 4 times the bytes of one synchronisation
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
-    flat = torch.cat([param.grad.flatten() for param in params])
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")
+    def averaged(gradient):
+        gradient = gradient.clone()
+        dist.all_reduce(gradient, group=mesh.group(("dp", "cp")))
+        return gradient / mesh.size("dp")
+    hooks = [param.register_hook(averaged) for param in params]
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    for hook in hooks:
+        hook.remove()
+    flat = torch.cat([param.grad.flatten() for param in params])


# %% wrong: every gradient is reduced twice
# says: That is twice the bytes of one synchronisation
# base: what the wrong ones change
-    flat /= mesh.size("dp")
+    flat /= mesh.size("dp")
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size(("dp", "cp"))


# %% wrong: the loss stays on the last stage
# says: Rank 0 returns 0.0: only the last stage knows the loss
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    dist.all_reduce(total, group=mesh.group(("dp", "cp")))


# %% wrong: the loss of the rank's own replica
# says: That is the loss of a rank's own replica
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
-    return total.item() / mesh.size("dp")
+    dist.all_reduce(total, group=mesh.group(("pp", "cp")))
+    return total.item()


# %% wrong: the loss over the world
# says: Each rank of tp has the loss already
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    dist.all_reduce(total)


# %% wrong: nothing is returned
# says: Is there a `return` at the end
# base: what the wrong ones change
-    return total.item() / mesh.size("dp")


# %% wrong: over cp a mean of means
# says: That is a mean of means over cp
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    for stage in stages:
+        places = stage.module.positions
+        if places is not None:
+            stage.count = lambda targets, places=places: (targets[:, places] != -100).sum()
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
-    flat /= mesh.size("dp")
+    flat /= mesh.size(("dp", "cp"))


# %% wrong: over microbatches a mean of means
# says: the mean of the microbatches' means: they have unequal numbers of targets
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
+    one = [[action for action in row if action.microbatch == 0] for row in schedule]
+    losses = {}
+    for number, microbatch in enumerate(microbatches):
+        losses[number] = run_schedule(stages, one, [microbatch], mesh.group("pp")).get(0, 0.0)
@@
-    flat /= mesh.size("dp")
+    flat /= mesh.size("dp") * len(microbatches)


# %% wrong: replicas count by their targets
# says: That is the mean over all targets of the batch
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")
+    count = float(sum((targets != -100).sum() for _, targets in microbatches))
+    counts = torch.tensor(count, dtype=torch.float64, device=mesh.device)
+    dist.all_reduce(counts, group=mesh.group("dp"))
+    flat *= count / counts
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))


# %% wrong: the order of the groups depends on the rank
# says: Ranks met their groups in an order that depends on the rank
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    axes = ["dp", "cp"] if dist.get_rank() in (0, 3) else ["cp", "dp"]
+    for axis in axes:
+        dist.all_reduce(flat, group=mesh.group(axis))


# %% wrong: only ranks with a loss take part in its sum
# says: Ranks met their groups in an order that depends on the rank
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    if losses:
+        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))


# %% wrong: gradients of the call before are forgotten
# says: The gradients of the call before are gone
# base: what the wrong ones change
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+        param.grad = part.view_as(param)


# %% wrong: gradients of the call before are reduced again
# says: were summed over cp once more
# base: what the wrong ones change
-    for param in params:
-        param.grad = None
@@
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+        param.grad = part.view_as(param)


# %% right: first over cp, then over dp, one parameter after the other
from course_lib.pipeline import run_schedule


def hybrid_step(stages, schedule, microbatches, mesh):
    named = {name: p for stage in stages for name, p in stage.module.parameter_names().items()}
    before = {name: param.grad for name, param in named.items()}
    for param in named.values():
        param.grad = None
    parts = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
    for name, param in named.items():
        dist.all_reduce(param.grad, group=mesh.group("cp"))
        dist.all_reduce(param.grad, group=mesh.group("dp"))
        param.grad /= mesh.size("dp")
        if before[name] is not None:
            param.grad += before[name]
    loss = torch.stack([*parts.values(), torch.zeros((), dtype=torch.float64, device=mesh.device)]).sum()
    for axis in ("pp", "cp", "dp"):
        dist.all_reduce(loss, group=mesh.group(axis))
    return float(loss) / mesh.size("dp")


# %% right: a reduce-scatter and an all-gather over the replicas
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
-    flat /= mesh.size("dp")
+    replicas, n = mesh.group(("dp", "cp")), mesh.size(("dp", "cp"))
+    length = flat.numel()
+    flat = torch.nn.functional.pad(flat, (0, -length % n))
+    part = torch.empty(flat.numel() // n, dtype=flat.dtype, device=flat.device)
+    dist.reduce_scatter_tensor(part, flat, group=replicas)
+    part /= mesh.size("dp")
+    dist.all_gather_into_tensor(flat, part, group=replicas)
+    flat = flat[:length]


# %% right: the loss is added up in float32
# base: what the wrong ones change
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float32, device=mesh.device)
