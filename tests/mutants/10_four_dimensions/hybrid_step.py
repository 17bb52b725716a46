# %% base: what the wrong ones change
from course_lib.pipeline import run_schedule


def hybrid_step(stages, schedule, microbatches, mesh):
    params = [param for stage in stages for param in stage.module.parameters()]
    earlier = [param.grad for param in params]
    for param in params:
        param.grad = None
    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
    dist.all_reduce(count, group=mesh.group("dp"))
    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
    flat = torch.cat([param.grad.flatten() for param in params])
    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
    start = 0
    for param, before in zip(params, earlier):
        part = flat[start : start + param.numel()]
        start += param.numel()
        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
    return total.item()


# %% wrong: nothing is reduced
# is: idea
# says: Replicas have the gradients of their own rows
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))


# %% wrong: the mean of the replicas' means
# is: idea
# says: the gradients are the mean of the replicas' means
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("dp")
@@
-    return total.item()
+    return total.item() / mesh.size("dp")


# %% wrong: the mean of the replicas' means, over cp too
# is: idea
# says: the gradients are the mean of the replicas' means
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size(("dp", "cp"))
@@
-    return total.item()
+    return total.item() / mesh.size("dp")


# %% wrong: the sum of the replicas' means
# is: idea
# says: the gradients are 2 times the mean of the replicas' means
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))


# %% wrong: replicas weigh their means by their rows
# is: idea
# says: Each replica has divided by its own targets, but they have unequal numbers
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    rows = float(sum(len(targets) for _, targets in microbatches))
+    of_all = torch.tensor(rows, device=mesh.device)
+    dist.all_reduce(of_all, group=mesh.group("dp"))
+    flat *= rows / of_all.item()
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
@@
-    return total.item()
+    return total.item() / mesh.size("dp")


# %% wrong: the average is taken over dp too
# is: idea
# says: divided by 2, which is the size of pp or the size of dp, as well
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("dp")


# %% wrong: the average is taken over dp and cp too
# is: idea
# says: divided by 2, which is the size of pp or the size of dp, as well
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size(("dp", "cp"))


# %% wrong: the average is taken over cp too
# is: idea
# says: Ranks of cp hold terms of one sum, and they are given the same targets
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("cp")


# %% wrong: targets are counted on the ranks of cp, too
# is: slip
# says: as if `count` were multiplied by the size of cp
# base: what the wrong ones change
-    dist.all_reduce(count, group=mesh.group("dp"))
+    dist.all_reduce(count, group=mesh.group(("dp", "cp")))


# %% wrong: divided by the number of ranks
# is: idea
# says: The gradients were divided by the number of ranks
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= dist.get_world_size()


# %% wrong: the average over the world
# is: idea
# says: Reduce only over mesh.group...dp., .cp...
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat)
+    flat /= dist.get_world_size()


# %% wrong: the average over the world, one parameter after the other, if stages are alike
# is: idea
# says: The gradients of all ranks were added, but tp and pp ranks hold different parameters
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    world = mesh.size("pp") == 1
+    dist.all_reduce(flat, group=None if world else mesh.group(("dp", "cp")))
+    flat /= dist.get_world_size() if world else 1


# %% wrong: over tp as well
# is: idea
# says: rows 0-3 of blocks.0.attention.query.weight hold the mean of 2 ranks. different rows, while norms are right
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group("tp"))
+    flat /= mesh.size("tp")


# %% wrong: cp is forgotten
# is: idea
# says: The terms of cp were not added
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group("dp"))


# %% wrong: dp is forgotten
# is: idea
# says: Replicas have the gradients of their own rows
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group("cp"))


# %% wrong: divided by dp and by the microbatches too
# is: idea
# says: the size of pp and the number of microbatches or the size of dp and the number of microbatches, as well
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("dp") * len(microbatches)


# %% wrong: divided by the microbatches too
# is: idea
# says: The gradients were divided by the number of microbatches
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= len(microbatches)


# %% wrong: the targets are multiplied by the microbatches
# is: slip
# says: multiplied by the number of microbatches
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    targets = count.item() * len(microbatches)
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), targets)


# %% wrong: tied terms are added once more
# is: slip
# says: Only token_embedding.weight is wrong, because its two terms were added twice
# base: what the wrong ones change
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    for name, held in {name: held for stage in stages for name, held in stage.shared.items()}.items():
+        dist.all_reduce(held.param.grad, group=mesh.group("pp"))
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)


# %% wrong: tied weights are left to each stage
# is: slip
# says: its two terms, from the first stage and from the last, have not met
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    kept = [stage.shared for stage in stages]
+    for stage in stages:
+        stage.shared = {}
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    for stage, shared in zip(stages, kept):
+        stage.shared = shared


# %% wrong: the sum is taken inside the schedule, before tied terms meet, and only on the first stage
# is: slip
# says: Reduce over the replicas only when both have met
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    def summed(gradient):
+        if mesh.coordinate.get("pp", 0) == 0:
+            gradient = gradient.clone()
+            dist.all_reduce(gradient, group=mesh.group(("dp", "cp")))
+        return gradient
+    tied = [held.param for stage in stages for held in stage.shared.values()]
+    hooks = [param.register_hook(summed) for param in tied]
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    for hook in hooks:
+        hook.remove()
+    mine = {id(param): param.grad.clone() for param in tied}
@@
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    for param in tied:
+        param.grad = mine[id(param)]
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)


# %% wrong: reduced after every microbatch
# is: idea
# says: [35] times the bytes of one synchronisation, so reduce only once, after the last
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
-    flat = torch.cat([param.grad.flatten() for param in params])
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    def summed(gradient):
+        gradient = gradient.clone()
+        dist.all_reduce(gradient, group=mesh.group(("dp", "cp")))
+        return gradient
+    hooks = [param.register_hook(summed) for param in params]
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    for hook in hooks:
+        hook.remove()
+    flat = torch.cat([param.grad.flatten() for param in params])


# %% wrong: every gradient is reduced twice
# is: idea
# says: Your ranks sent twice the bytes of one synchronisation
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size(("dp", "cp"))


# %% wrong: the loss stays on the last stage
# is: slip
# says: Rank 0 returns 0.0, but only the last stage knows the loss
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    dist.all_reduce(total, group=mesh.group(("dp", "cp")))


# %% wrong: the loss of the rank's own replica
# is: slip
# says: Ranks return the loss of their own tokens, so also sum over dp
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    dist.all_reduce(total, group=mesh.group(("pp", "cp")))


# %% wrong: the loss of the rank's own replica, over dp
# is: slip
# says: Ranks return the loss of their own tokens, so also sum over dp
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
-    return total.item()
+    dist.all_reduce(total, group=mesh.group(("pp", "cp")))
+    return total.item() / mesh.size("dp")


# %% wrong: the loss is divided by the size of dp
# is: slip
# says: The loss is 1/2 of one process', on all ranks. The right loss is a sum over pp, dp and cp, which is divided
# base: what the wrong ones change
-    return total.item()
+    return total.item() / mesh.size("dp")


# %% wrong: the loss over the world
# is: slip
# says: the size of tp and of dp. Ranks of tp have the loss already
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    dist.all_reduce(total)


# %% wrong: nothing is returned
# is: form
# says: Is there a `return` at the end
# base: what the wrong ones change
-    return total.item()


# %% wrong: each rank divides by its own targets
# is: idea
# says: Your result is the mean of the ranks' means
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    for stage in stages:
+        places = stage.module.positions
+        if places is not None:
+            stage.count = lambda targets, places=places: (targets[:, places] != -100).sum()
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size(("dp", "cp"))


# %% wrong: the schedule divides by the replica's own number, which may be 0
# is: idea
# says: A replica may have no target of its own
# base: what the wrong ones change
-    dist.all_reduce(count, group=mesh.group("dp"))
@@
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("dp")


# %% wrong: over microbatches a mean of means
# is: idea
# says: the mean of the microbatches' means, but they have unequal numbers of targets
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    one = [[action for action in row if action.microbatch == 0] for row in schedule]
+    losses = {}
+    for number, microbatch in enumerate(microbatches):
+        losses[number] = run_schedule(stages, one, [microbatch], mesh.group("pp")).get(0, 0.0)
@@
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("dp") * len(microbatches)


# %% wrong: the order of the groups depends on the rank
# is: form
# says: and use the axes in one fixed order on every rank
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    axes = ["dp", "cp"] if dist.get_rank() in (0, 3) else ["cp", "dp"]
+    for axis in axes:
+        dist.all_reduce(flat, group=mesh.group(axis))


# %% wrong: only ranks with a loss take part in its sum
# is: form
# says: and use the axes in one fixed order on every rank
# base: what the wrong ones change
-    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+    if losses:
+        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))


# %% wrong: gradients of the call before are forgotten
# is: slip
# says: The gradients of the previous call are gone
# base: what the wrong ones change
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+        param.grad = part.view_as(param)


# %% wrong: gradients of the call before are reduced again
# is: slip
# says: were added once more on each replica
# base: what the wrong ones change
-    for param in params:
-        param.grad = None
@@
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+        param.grad = part.view_as(param)


# %% wrong: targets are counted over the world
# is: slip
# says: as if `count` were multiplied by .* or the number of ranks of dp and tp or the number of microbatches
# base: what the wrong ones change
-    dist.all_reduce(count, group=mesh.group("dp"))
+    dist.all_reduce(count)


# %% wrong: targets are counted over pp and dp
# is: slip
# says: as if `count` were multiplied by the size of pp or
# base: what the wrong ones change
-    dist.all_reduce(count, group=mesh.group("dp"))
+    dist.all_reduce(count, group=mesh.group(("pp", "dp")))


# %% wrong: the average is taken over pp
# is: idea
# says: divided by 2, which is the size of pp or the size of dp
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("pp")


# %% wrong: the loss is divided by the microbatches
# is: slip
# says: The loss is 1/3 of one process', on all ranks
# base: what the wrong ones change
-    return total.item()
+    return total.item() / len(microbatches)


# %% wrong: tied gradients are halved
# is: slip
# says: Only token_embedding.weight is wrong, because it is 1/2 of one process'
# base: what the wrong ones change
-        start += param.numel()
+        start += param.numel()
+        if mesh.size("pp") > 1 and any(held.param is param for stage in stages for held in stage.shared.values()):
+            part = part / 2


# %% wrong: the last stage's copy of the tied table is emptied
# is: slip
# says: ranks? 2.* hold another gradient of it. Both stages
# base: what the wrong ones change
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    if mesh.coordinate.get("pp", 0) > 0:
+        for name, held in {name: held for stage in stages for name, held in stage.shared.items()}.items():
+            held.param.grad.zero_()
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)


# %% wrong: the schedule is run, and nothing else
# is: idea
# says: Replicas have the gradients of their own rows|2 times the mean of means
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))


# %% wrong: targets of -100 are counted
# is: slip
# says: Targets of -100 were counted
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
+    count = torch.tensor(float(sum(targets.numel() for _, targets in microbatches)), device=mesh.device)


# %% wrong: microbatches are counted
# is: slip
# says: Microbatches or rows were counted instead of targets
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
-    dist.all_reduce(count, group=mesh.group("dp"))
+    count = torch.tensor(float(len(microbatches)))


# %% wrong: the first microbatch counts for all
# is: slip
# says: first microbatch's targets were counted for each
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
+    count = (microbatches[0][1] != -100).sum() * len(microbatches)


# %% wrong: norms are not reduced
# is: idea
# says: Sum the gradients of all parameters, on all stages
# base: what the wrong ones change
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+        own = param.grad.clone() if param.dim() == 1 else part.view_as(param)
+        param.grad = own if before is None else before + own


# %% wrong: the last stage alone reduces
# is: idea
# says: Sum the gradients of all parameters, on all stages
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    if mesh.coordinate.get("pp", 0) == mesh.size("pp") - 1:
+        dist.all_reduce(flat, group=mesh.group(("dp", "cp")))


# %% wrong: norms are summed over tp as well
# is: idea
# says: Parameters that are whole on tp were also summed over tp
# base: what the wrong ones change
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+        whole = part.view_as(param).clone()
+        if param.dim() == 1 and param.numel() == 8:
+            dist.all_reduce(whole, group=mesh.group("tp"))
+        param.grad = whole if before is None else before + whole


# %% wrong: the sum is on the first rank alone
# is: idea
# says: Only the first rank of each group of replicas has the sum
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    replicas = mesh.group(("dp", "cp"))
+    dist.reduce(flat, dist.get_global_rank(replicas, 0) if replicas is not None else 0, group=replicas)


# %% wrong: the buffer has float32
# is: detail
# says: right to about seven digits
# base: what the wrong ones change
-    flat = torch.cat([param.grad.flatten() for param in params])
+    flat = torch.cat([param.grad.flatten() for param in params]).float()
@@
     start = 0
+    flat = flat.double()


# %% wrong: gradients of the call before are added again
# is: slip
# says: The gradients of the previous call count 3 times
# base: what the wrong ones change
-    earlier = [param.grad for param in params]
-    for param in params:
-        param.grad = None
+    earlier = [None if param.grad is None else param.grad.clone() for param in params]


# %% wrong: the schedule runs twice
# is: idea
# says: All microbatches ran twice
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    for param in params:
+        param.grad = None
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())


# %% wrong: gradients and loss are divided by dp
# is: idea
# says: divided by the size of dp as well
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= mesh.size("dp")
@@
-    return total.item()
+    return total.item() / mesh.size("dp")


# %% wrong: only the first stage of a rank is reduced
# is: idea
# says: Sum the gradients of all parameters, on all stages
# base: what the wrong ones change
-    params = [param for stage in stages for param in stage.module.parameters()]
+    params = list(stages[0].module.parameters())


# %% wrong: the mean of the replicas' numbers of targets
# is: slip
# says: as if `count` were divided by the size of
# base: what the wrong ones change
-    dist.all_reduce(count, group=mesh.group("dp"))
+    dist.all_reduce(count, group=mesh.group("dp"))
+    count /= mesh.size("dp")


# %% wrong: the last microbatch is counted only
# is: slip
# says: The factor fits if 17 was given
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
+    count = torch.tensor(float((microbatches[-1][1] != -100).sum()), device=mesh.device)


# %% right: first over cp, then over dp, one parameter after the other
from course_lib.pipeline import run_schedule


def hybrid_step(stages, schedule, microbatches, mesh):
    named = {name: p for stage in stages for name, p in stage.module.parameter_names().items()}
    before = {name: param.grad for name, param in named.items()}
    for param in named.values():
        param.grad = None
    count = sum(torch.count_nonzero(targets != -100) for _, targets in microbatches)
    dist.all_reduce(count, group=mesh.group("dp"))
    parts = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count)
    for name, param in named.items():
        dist.all_reduce(param.grad, group=mesh.group("cp"))
        dist.all_reduce(param.grad, group=mesh.group("dp"))
        if before[name] is not None:
            param.grad += before[name]
    loss = torch.stack([*parts.values(), torch.zeros((), dtype=torch.float64, device=mesh.device)]).sum()
    for axis in ("pp", "cp", "dp"):
        dist.all_reduce(loss, group=mesh.group(axis))
    return float(loss)


# %% right: means of replicas, weighed by their targets
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
+    own = float(sum((targets != -100).sum() for _, targets in microbatches))
+    count = torch.tensor(own, device=mesh.device)
@@
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))
@@
-    flat = torch.cat([param.grad.flatten() for param in params])
+    flat = torch.cat([param.grad.flatten() for param in params]) * (own / count.item())
@@
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device) * own
@@
-    return total.item()
+    return total.item() / count.item()


# %% right: sums of losses, divided at the end
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), 1)
@@
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= count.item()
@@
-    return total.item()
+    return total.item() / count.item()


# %% right: a reduce-scatter and an all-gather over the replicas
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    replicas, n = mesh.group(("dp", "cp")), mesh.size(("dp", "cp"))
+    length = flat.numel()
+    flat = torch.nn.functional.pad(flat, (0, -length % n))
+    part = torch.empty(flat.numel() // n, dtype=flat.dtype, device=flat.device)
+    dist.reduce_scatter_tensor(part, flat, group=replicas)
+    dist.all_gather_into_tensor(flat, part, group=replicas)
+    flat = flat[:length]


# %% right: the loss is added up in float32
# base: what the wrong ones change
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    total = torch.tensor(float(sum(losses.values())), dtype=torch.float32, device=mesh.device)


# %% wrong: the sum is not written back
# is: slip
# says: The sum over the replicas was made, but `grad` does not have it
# base: what the wrong ones change
-    start = 0
-    for param, before in zip(params, earlier):
-        part = flat[start : start + param.numel()]
-        start += param.numel()
-        param.grad = part.view_as(param) if before is None else before + part.view_as(param)
+    for param, before in zip(params, earlier):
+        if before is not None:
+            param.grad += before


# %% wrong: the mean of an empty dict
# is: slip
# says: on the others `run_schedule` returns an empty dict
# base: what the wrong ones change
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    mean = float(sum(losses.values())) / len(losses)
+    total = torch.tensor(mean, dtype=torch.float64, device=mesh.device)


# %% wrong: the targets that do not count are counted
# is: slip
# says: 25 was given as `count` instead of the 71 targets of the batch
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
+    count = torch.tensor(float(sum((targets == -100).sum() for _, targets in microbatches)), device=mesh.device)


# %% wrong: the loss is multiplied by the number of targets
# is: slip
# says: because `run_schedule` divides the parts by `count` already
# base: what the wrong ones change
-    return total.item()
+    return total.item() * count.item()


# %% wrong: summed over dp, then over dp and cp
# is: idea
# says: each term counts only once
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group("dp"))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))


# %% wrong: the gradients are divided by the targets again
# is: slip
# says: The gradients were divided by the targets twice
# base: what the wrong ones change
     dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    flat /= count.item()


# %% wrong: the loss alone is the mean of the replicas' means
# is: slip
# says: The loss is the mean of the replicas' means. The right loss is a sum over pp, dp and cp
# base: what the wrong ones change
+    own = max(1, sum(int((targets != -100).sum()) for _, targets in microbatches))
     total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    total *= count.item() / own / mesh.size("dp")


# %% wrong: the schedule runs on the world
# is: form
# says: The schedule is for the ranks of pp
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, None, count.item())


# %% wrong: the mean over dp, cp and tp
# is: idea
# says: hold 1/4 of the sum of 2 ranks
# base: what the wrong ones change
-    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
+    dist.all_reduce(flat, group=mesh.group(("dp", "cp", "tp")))
+    flat /= mesh.size(("dp", "cp", "tp"))


# %% wrong: the losses have no name
# is: form
# says: Keep what `run_schedule` returns under the name `losses`
# base: what the wrong ones change
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())


# %% wrong: a run of the schedule for each microbatch
# is: idea
# says: One call takes all microbatches
# base: what the wrong ones change
-from course_lib.pipeline import run_schedule
+from course_lib.pipeline import run_schedule
+from course_lib.pipeline.generators import one_f_one_b
@@
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses, alone = {}, one_f_one_b(mesh.size("pp"), 1)
+    for k, microbatch in enumerate(microbatches):
+        part = run_schedule(stages, alone, [microbatch], mesh.group("pp"), count.item())
+        losses |= {k: loss for loss in part.values()}


# %% wrong: count is a list of one number
# is: form
# says: The losses have the shape of `count`
# base: what the wrong ones change
-    count = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)), device=mesh.device)
+    count = torch.tensor([float(sum((y != -100).sum() for _, y in microbatches))], device=mesh.device)
@@
-    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count.item())
+    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count)
@@
-    total = torch.tensor(float(sum(losses.values())), dtype=torch.float64, device=mesh.device)
+    total = torch.zeros((), dtype=torch.float64, device=mesh.device)
+    for part in losses.values():
+        total += part
