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


# %% wrong: ZeRO is ignored
# is: idea
# says: Plain data parallelism does this
# base: a page
-    if layout.zero == 3:
-        for stage in stages:
-            stage.module = Zero3Module(stage.module, group=replicas)
@@
-    if layout.zero == 1:
-        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    elif layout.zero == 2:
-        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    else:
-        optimizer = torch.optim.SGD(params, **options)
-    n = layout.replicas if layout.zero else 1
+    optimizer = torch.optim.SGD(params, **options)
+    n = 1
@@
-        if layout.zero == 0:
-            sum_over_replicas(params, mesh, ("dp", "cp"))
+        sum_over_replicas(params, mesh, ("dp", "cp"))


# %% wrong: ZeRO is ignored, and nothing is summed
# is: idea
# says: sent no gradients to its replicas
# base: a page
-    if layout.zero == 3:
-        for stage in stages:
-            stage.module = Zero3Module(stage.module, group=replicas)
@@
-    if layout.zero == 1:
-        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    elif layout.zero == 2:
-        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    else:
-        optimizer = torch.optim.SGD(params, **options)
-    n = layout.replicas if layout.zero else 1
+    optimizer = torch.optim.SGD(params, **options)
+    n = 1


# %% wrong: the mean is not made a sum
# is: slip
# says: ZeRO takes the mean over the n ranks of its group
# base: a page
-    n = layout.replicas if layout.zero else 1
+    n = 1


# %% wrong: n is the size of dp
# is: slip
# says: ZeRO takes the mean over the n ranks of its group
# base: a page
-    n = layout.replicas if layout.zero else 1
+    n = layout.dp if layout.zero else 1


# %% wrong: n is the size of cp
# is: slip
# says: ZeRO takes the mean over the n ranks of its group
# base: a page
-    n = layout.replicas if layout.zero else 1
+    n = layout.cp if layout.zero else 1


# %% wrong: n is the number of all ranks
# is: slip
# says: times one process
# base: a page
-    n = layout.replicas if layout.zero else 1
+    n = dist.get_world_size() if layout.zero else 1


# %% wrong: the loss is not divided by n again
# is: slip
# says: Divide what you return by n
# base: a page
-        return float(total) / n
+        return float(total)


# %% wrong: gradients are multiplied after backward
# is: slip
# says: `grad` is None after it
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
+        count = targets_of_all(stages[0], mine, mesh)
@@
-        optimizer.step()
+        for param in params:
+            if param.grad is not None:
+                param.grad *= n
+        optimizer.step()
@@
-        return float(total) / n
+        return float(total)


# %% wrong: gradients are multiplied after backward, whether there are any or not
# is: form
# says: `grad` can be None after backward
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
+        count = targets_of_all(stages[0], mine, mesh)
@@
-        optimizer.step()
+        for param in params:
+            param.grad *= n
+        optimizer.step()
@@
-        return float(total) / n
+        return float(total)


# %% wrong: terms are made larger twice
# is: slip
# says: make the terms n times as large once, not twice
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
+        count = targets_of_all(stages[0], mine, mesh) / n**2
@@
-        return float(total) / n
+        return float(total) / n**2


# %% wrong: each replica divides by its own targets, and ZeRO takes the mean
# is: slip
# says: Each replica has divided by its own targets
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
-        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
+        losses = run_schedule(stages, schedule, mine, mesh.group("pp"))


# %% wrong: ZeRO over the world
# is: slip
# says: Ranks of tp and pp hold other parameters|other sizes
# base: a page
-            stage.module = Zero3Module(stage.module, group=replicas)
+            stage.module = Zero3Module(stage.module)
@@
-        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
+        optimizer = Zero1Optimizer(params, torch.optim.SGD, **options)
@@
-        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
+        optimizer = Zero2Optimizer(params, torch.optim.SGD, **options)


# %% wrong: ZeRO over dp alone
# is: slip
# says: ZeRO takes the mean|only over dp|sent no gradients
# base: a page
-    replicas = mesh.group(("dp", "cp"))
+    replicas = mesh.group("dp")


# %% wrong: with ZeRO-1 gradients are summed as well, so that the mean is right
# is: slip
# says: ZeRO sums the gradients by itself
# base: a page
-    n = layout.replicas if layout.zero else 1
+    n = layout.replicas if layout.zero > 1 else 1
@@
-        if layout.zero == 0:
+        if layout.zero < 2:
             sum_over_replicas(params, mesh, ("dp", "cp"))


# %% wrong: gradients, and shards of gradients, are summed as well
# is: idea
# says: ZeRO.s own sum was added up once more
# base: a page
-        if layout.zero == 0:
+        if layout.zero != 2:
             sum_over_replicas(params, mesh, ("dp", "cp"))


# %% wrong: stage 1 for all stages
# is: slip
# says: ZeRO-1 sends this much, but the layout has zero=
# base: a page
-    if layout.zero == 3:
-        for stage in stages:
-            stage.module = Zero3Module(stage.module, group=replicas)
@@
-    if layout.zero == 1:
+    if layout.zero:
         optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    elif layout.zero == 2:
-        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)


# %% wrong: stage 2 for stage 1
# is: slip
# says: ZeRO-2 sends this much, but the layout has zero=1
# base: a page
-        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
+        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)


# %% wrong: stage 3 for all stages
# is: slip
# says: ZeRO-3 sends this much, but the layout has zero=
# base: a page
-    if layout.zero == 3:
+    if layout.zero:
@@
-    if layout.zero == 1:
-        optimizer = Zero1Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    elif layout.zero == 2:
-        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
-    else:
-        optimizer = torch.optim.SGD(params, **options)
+    optimizer = torch.optim.SGD(params, **options)


# %% wrong: ZeRO-3's optimizer has the parameters from before
# is: slip
# says: No parameter has moved
# base: a page
-    replicas = mesh.group(("dp", "cp"))
-    if layout.zero == 3:
-        for stage in stages:
-            stage.module = Zero3Module(stage.module, group=replicas)
-    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
+    replicas = mesh.group(("dp", "cp"))
+    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
+    if layout.zero == 3:
+        for stage in stages:
+            stage.module = Zero3Module(stage.module, group=replicas)


# %% wrong: ZeRO-3 before the cut
# is: slip
# says: Cut the model first
# base: a page
-    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)
-
-    replicas = mesh.group(("dp", "cp"))
-    if layout.zero == 3:
-        for stage in stages:
-            stage.module = Zero3Module(stage.module, group=replicas)
+    replicas = mesh.group(("dp", "cp"))
+    model = GPT(config).to(mesh.device)
+    if layout.zero == 3:
+        model = Zero3Module(model, group=replicas)
+    stages = mesh_stages(model, mesh, schedule, sequence=sequence)


# %% wrong: the optimizer before the cut
# is: slip
# says: matrices cut by tp have not moved
# base: a page
-    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)
+    model = GPT(config).to(mesh.device)
+    before = list(model.parameters())
+    stages = mesh_stages(model, mesh, schedule, sequence=sequence)
@@
-        optimizer = Zero2Optimizer(params, torch.optim.SGD, group=replicas, **options)
+        optimizer = Zero2Optimizer(before, torch.optim.SGD, group=replicas, **options)


# %% wrong: an optimizer of ZeRO-1 over ZeRO-3
# is: slip
# says: ZeRO-3.s parameters are shards already
# base: a page
-    if layout.zero == 1:
+    if layout.zero in (1, 3):


# %% wrong: gradients are not cleared
# is: slip
# says: clear them in each step
# base: a page
-        optimizer.zero_grad()


# %% wrong: the loss of the last stage alone
# is: slip
# says: Only the last stage has losses
# base: a page
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
+        dist.all_reduce(total, group=mesh.group(("dp", "cp")))


# %% wrong: no momentum
# is: slip
# says: SGD with momentum 0.9
# base: a page
-    options = {"lr": lr, "momentum": 0.9}
+    options = {"lr": lr}


# %% wrong: hybrid_step, which sums by itself, for all stages
# is: idea
# says: ZeRO sums the gradients by itself|`grad` is None after it|ZeRO.s own sum was added up once more
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


# %% wrong: rows by rank
# is: slip
# says: Only dp cuts the rows of a batch
# base: a page
-        mine = microbatches_of(batch, m, mesh)
+        own = [part.tensor_split(dist.get_world_size())[dist.get_rank()] for part in batch]
+        mine = list(zip(*(part.tensor_split(m) for part in own)))


# %% right: the library's loss is multiplied in the stages
# base: a page
-        count = targets_of_all(stages[0], mine, mesh) / n
+        count = targets_of_all(stages[0], mine, mesh)
@@
-        return float(total) / n
+        return float(total) / n
@@
-    n = layout.replicas if layout.zero else 1
+    n = layout.replicas if layout.zero else 1
+    for stage in stages:
+        stage.loss = lambda logits, targets, loss=stage.loss: n * loss(logits, targets)


# %% right: hooks make the gradients larger
# base: a page
-    n = layout.replicas if layout.zero else 1
+    n = 1
+    of_module = [p for stage in stages for p in stage.module.parameters()]
+    for param in of_module if layout.zero in (1, 2) else ():
+        param.register_hook(lambda grad: grad * layout.replicas)
@@
-        optimizer.step()
+        for param in params if layout.zero == 3 else ():
+            if param.grad is not None:
+                param.grad *= layout.replicas
+        optimizer.step()


# %% right: a larger rate in place of larger terms, as SGD allows
# base: a page
-    options = {"lr": lr, "momentum": 0.9}
+    options = {"lr": lr * (layout.replicas if layout.zero else 1), "momentum": 0.9}
@@
-    n = layout.replicas if layout.zero else 1
+    n = 1


# %% wrong: only .grad is cleared, and ZeRO-2 keeps its sum elsewhere
# is: slip
# says: call the optimizer.s .zero_grad.
# base: a page
-        optimizer.zero_grad()
+        for param in params:
+            param.grad = None
