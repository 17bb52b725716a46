# %% base: a page
from course_lib.mesh import mesh_stages
from course_lib.mesh.step import microbatches_of, sum_over_replicas, targets_of_all
from course_lib.models import GPT
from course_lib.pipeline import one_f_one_b, run_schedule
from course_lib.pipeline.generators import interleaved_one_f_one_b
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module


def make_step(config, layout, mesh, batch_size, lr):
    m = layout.microbatches(batch_size)
    schedule = one_f_one_b(layout.pp, m)
    if layout.chunks > 1:
        schedule = interleaved_one_f_one_b(layout.pp, m, layout.chunks)
    torch.manual_seed(0)
    sequence = "keep" if layout.sequence else None
    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)

    replicas = mesh.group(("dp", "cp"))
    if layout.zero == 3:
        for stage in stages:
            stage.module = Zero3Module(stage.module, group=replicas)
    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
    options = {"lr": lr, "momentum": 0.9}
    if layout.zero == 1:
        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
    elif layout.zero == 2:
        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
    else:
        optimizer = torch.optim.SGD(params, **options)
    n = layout.replicas if layout.zero else 1

    def step(inputs, targets):
        batch = inputs.to(mesh.device), targets.to(mesh.device)
        mine = microbatches_of(batch, m, mesh)
        count = targets_of_all(stages[0], mine, mesh) / n
        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
        if layout.zero == 0:
            sum_over_replicas(params, mesh, ("dp", "cp"))
        optimizer.step()
        optimizer.zero_grad()
        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
        return float(total) / n

    return step


# %% wrong: no sum over the replicas
# is: idea
# says: sent no gradients to its replicas
# base: a page
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+            pass


# %% wrong: the whole batch on every rank
# is: idea
# says: Every rank has done the work of all. But a replica
# base: a page
-    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)
+    model = GPT(config).to(mesh.device)
+    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
+
+    def alone(inputs, targets):
+        logits = model(inputs.to(mesh.device)).flatten(0, 1)
+        loss = torch.nn.functional.cross_entropy(logits, targets.to(mesh.device).flatten())
+        loss.backward()
+        optimizer.step()
+        optimizer.zero_grad()
+        return float(loss.detach())
+
+    return alone


# %% wrong: cp is forgotten
# is: slip
# says: sum over dp and cp
# base: a page
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+            sum_over_replicas(params, mesh, ("dp",))


# %% wrong: the sum over the world
# is: slip
# says: sum over dp and cp|um gradients only over|Ranks of tp and pp hold other parameters|summed over tp
# base: a page
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                dist.all_reduce(param.grad)


# %% wrong: divided by dp as well
# is: slip
# says: divided by|divide them only by the targets of the batch
# base: a page
             sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                param.grad /= layout.dp


# %% wrong: divided by cp as well
# is: slip
# says: divide them only by the targets of the batch
# base: a page
             sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                param.grad /= layout.cp


# %% wrong: divided by the microbatches as well
# is: slip
# says: is m, the number of microbatches
# base: a page
             sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                param.grad /= m


# %% wrong: the mean of the replicas' means
# is: slip
# says: Each replica has divided by its own targets
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
-        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
+        losses = run_schedule(stages, schedule, mine, mesh.group("pp"))
@@
             sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                param.grad /= layout.dp
@@
-        return float(total) / n
+        return float(total) / layout.dp


# %% wrong: the sum of the replicas' means
# is: slip
# says: Each replica has divided by its own targets
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
-        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
+        losses = run_schedule(stages, schedule, mine, mesh.group("pp"))


# %% wrong: every target is counted
# is: slip
# says: Targets of -100 were counted
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
+        count = targets.numel()


# %% wrong: the mean of the microbatches' means
# is: slip
# says: the mean of the microbatches. means
# base: a page
-        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
+        losses = {}
+        own = sum(int((t != -100).sum()) for _, t in mine)
+        whole = torch.tensor(float(own), device=mesh.device)
+        dist.all_reduce(whole, group=mesh.group("dp"))
+        weighed = []
+        for x, t in mine:
+            here = torch.tensor(float((t != -100).sum()), device=mesh.device)
+            dist.all_reduce(here, group=mesh.group("dp"))
+            weighed.append(float((t != -100).sum()))
+        for k, stage in enumerate(stages):
+            loss = getattr(stage, "plain_loss", stage.loss)
+            stage.plain_loss = loss
+            stage.loss = lambda out, t, loss=loss: loss(out, t) / (t != -100).sum() * count / (m * layout.dp)
+        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)


# %% wrong: the loss of the last stage alone
# is: slip
# says: Only the last stage has losses
# base: a page
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+        dist.all_reduce(total, group=mesh.group(("dp", "cp")))


# %% wrong: the loss of the rank's own tokens
# is: slip
# says: Ranks return only the losses of their own tokens
# base: a page
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+        dist.all_reduce(total, group=mesh.group("pp"))


# %% wrong: the loss over all ranks
# is: slip
# says: Ranks of tp all have the loss
# base: a page
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+        dist.all_reduce(total)


# %% wrong: the mean loss of the replicas
# is: slip
# says: The loss is a sum over pp, dp and cp
# base: a page
-        return float(total) / n
+        return float(total) / layout.replicas


# %% wrong: the loss is divided by the targets once more
# is: slip
# says: are divided by `count` already
# base: a page
-        return float(total) / n
+        return float(total) / count


# %% wrong: the loss after the step
# is: slip
# says: after the optimizer.s step
# base: a page
-        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
+        with torch.no_grad():
+            losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
+        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)


# %% wrong: gradients are not cleared
# is: slip
# says: clear them in each step
# base: a page
-        optimizer.zero_grad()


# %% wrong: gradients are cleared before the step
# is: slip
# says: No parameter has moved
# base: a page
-        optimizer.step()
-        optimizer.zero_grad()
+        optimizer.zero_grad()
+        optimizer.step()


# %% wrong: no optimizer's step
# is: slip
# says: No parameter has moved
# base: a page
-        optimizer.step()


# %% wrong: the optimizer before the cut
# is: slip
# says: matrices cut by tp have not moved
# base: a page
-    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)
+    model = GPT(config).to(mesh.device)
+    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
+    stages = mesh_stages(model, mesh, schedule, sequence=sequence)
@@
-    else:
-        optimizer = torch.optim.SGD(params, **options)


# %% wrong: no momentum
# is: slip
# says: SGD with momentum 0.9
# base: a page
-    options = {"lr": lr, "momentum": 0.9}
+    options = {"lr": lr}


# %% wrong: the model has no seed
# is: slip
# says: not drawn after `torch.manual_seed.0.`
# base: a page
-    torch.manual_seed(0)


# %% wrong: rows by rank
# is: slip
# says: Only dp cuts the rows of a batch
# base: a page
-        mine = microbatches_of(batch, m, mesh)
+        own = [part.tensor_split(dist.get_world_size())[dist.get_rank()] for part in batch]
+        mine = list(zip(*(part.tensor_split(m) for part in own)))


# %% wrong: microbatches of the whole batch
# is: idea
# says: Each replica has read the rows of all replicas
# base: a page
-        mine = microbatches_of(batch, m, mesh)
+        mine = list(zip(*(part.tensor_split(m) for part in batch)))


# %% wrong: no interleaving
# is: slip
# says: make the interleaved schedule
# base: a page
-    if layout.chunks > 1:
-        schedule = interleaved_one_f_one_b(layout.pp, m, layout.chunks)


# %% wrong: no sequence parallelism
# is: slip
# says: hand `sequence="keep"` to `mesh_stages`
# base: a page
-    sequence = "keep" if layout.sequence else None
+    sequence = None


# %% wrong: tokens are gathered again in backward
# is: detail
# says: sequence="regather"
# base: a page
-    sequence = "keep" if layout.sequence else None
+    sequence = "regather" if layout.sequence else None


# %% wrong: microbatches of one row
# is: slip
# says: m is layout.microbatches.batch_size.
# base: a page
-    m = layout.microbatches(batch_size)
+    m = batch_size // layout.dp


# %% wrong: the schedule's group is forgotten
# is: slip
# says: give `run_schedule` their group
# base: a page
-        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
+        losses = run_schedule(stages, schedule, mine, None, count)


# %% wrong: the stages without losses have nothing to add
# is: slip
# says: on the other stages `run_schedule` returns an empty dict
# base: a page
-        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
+        total = torch.stack(list(losses.values())).sum()


# %% wrong: two sums of the gradients
# is: slip
# says: Each term counts once
# base: a page
             sum_over_replicas(params, mesh, ("dp", "cp"))
+            sum_over_replicas(params, mesh, ("dp", "cp"))


# %% wrong: the function is not returned
# is: form
# says: Is there a `return step` at the end
# base: a page
-    return step


# %% wrong: the loss is not returned
# is: form
# says: Is there a `return` at the end of the step
# base: a page
-        return float(total) / n


# %% wrong: a rate of its own
# is: slip
# says: rate is the argument `lr`
# base: a page
-    options = {"lr": lr, "momentum": 0.9}
+    options = {"lr": 0.1, "momentum": 0.9}


# %% wrong: gradients are added in float32
# is: detail
# says: right to only about seven digits|travelled in float32
# base: a page
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                total = param.grad.float()
+                dist.all_reduce(total, group=mesh.group(("dp", "cp")))
+                param.grad = total.double()


# %% right: hybrid_step of notebook 10
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
-        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
-        if layout.zero == 0:
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+        loss = hybrid_step(stages, schedule, mine, mesh)
@@
-        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
-        return float(total) / n
+        return loss
@@
-from course_lib.mesh import mesh_stages
+from course_lib.mesh import hybrid_step, mesh_stages


# %% right: one sum over dp, then one over cp, parameter by parameter
# base: a page
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+            for param in params:
+                dist.all_reduce(param.grad, group=mesh.group("dp"))
+                dist.all_reduce(param.grad, group=mesh.group("cp"))


# %% right: the last stage broadcasts the loss
# base: a page
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
-        return float(total) / n
+        dist.broadcast(total, mesh.ranks("pp")[-1], group=mesh.group("pp"))
+        for axis in ("cp", "dp"):
+            dist.all_reduce(total, group=mesh.group(axis))
+        return total / n


# %% right: rows and targets by hand
# base: a page
-        mine = microbatches_of(batch, m, mesh)
-        count = targets_of_all(stages[0], mine, mesh) / n
+        rows = batch_size // layout.dp
+        begin = mesh.coordinate.get("dp", 0) * rows
+        own = (part[begin : begin + rows].split(layout.microbatch) for part in batch)
+        mine = list(zip(*own))
+        count = int((targets != -100).sum())


# %% right: the loss in float32, made once more on the other ranks
# base: a page
-        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
+        total = torch.tensor(float(sum(losses.values())), dtype=torch.float32, device=mesh.device)


# %% wrong: the keys of the losses are added up
# is: slip
# says: sum.losses. adds up its keys
# base: a page
-        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
+        total = torch.tensor(float(sum(losses)), dtype=torch.float64)


# %% wrong: another name than the stub's last line reads
# is: form
# says: The stub.s last lines read
# base: a page
-    def step(inputs, targets):
+    def one_step(inputs, targets):
