# %% base: without ZeRO
from course_lib.mesh import mesh_stages
from course_lib.mesh.step import microbatches_of, sum_over_replicas, targets_of_all
from course_lib.models import GPT
from course_lib.pipeline import gpipe, one_f_one_b, run_schedule, zero_bubble_h1


def make_step(config, layout, mesh, batch_size, lr, optimizer=(torch.optim.SGD, {"momentum": 0.9})):
    m = layout.microbatches(batch_size)
    schedule = one_f_one_b(layout.pp, m)
    torch.manual_seed(0)
    model = GPT(config).to(mesh.device)
    stages = mesh_stages(model, mesh, schedule)
    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
    steps = optimizer[0](params, lr=lr, **optimizer[1])

    def step(inputs, targets):
        whole = inputs.to(mesh.device), targets.to(mesh.device)
        mine = microbatches_of(whole, m, mesh)
        count = targets_of_all(stages[0], mine, mesh)
        losses = run_schedule(stages, schedule, mine, mesh.group("pp"), count)
        sum_over_replicas(params, mesh, ("dp", "cp"))
        steps.step()
        steps.zero_grad()
        total = sum(losses.values(), torch.zeros((), dtype=torch.float64))
        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
        return float(total)

    step.layout, step.mesh, step.stages, step.optimizer = layout, mesh, stages, steps
    return step


# %% wrong: all forwards before the first backward
# is: idea
# says: All forwards ran before the first backward
# base: without ZeRO
-    schedule = one_f_one_b(layout.pp, m)
+    schedule = gpipe(layout.pp, m)


# %% wrong: whole gradients are gathered and added
# is: idea
# says: an all-gather of whole gradients sends n / 2 times as much
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        n = mesh.size(("dp", "cp"))
+        row = torch.cat([p.grad.flatten() for p in params])
+        rows = row.new_empty(n * row.numel())
+        dist.all_gather_into_tensor(rows, row, group=mesh.group(("dp", "cp")))
+        torch.nn.utils.vector_to_parameters(rows.view(n, -1).sum(0), [p.grad for p in params])


# %% wrong: the gradients are summed after every microbatch
# is: idea
# says: sum them once, after the last backward
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        for _ in mine:
+            sum_over_replicas(params, mesh, ("dp", "cp"))


# %% wrong: every replica computes the whole batch
# is: idea
# says: A replica reads its own rows
# base: without ZeRO
-    m = layout.microbatches(batch_size)
+    m = batch_size // layout.microbatch
@@
-        mine = microbatches_of(whole, m, mesh)
+        mine = list(zip(*(part.split(layout.microbatch) for part in whole)))


# %% wrong: an all-reduce for each parameter
# is: slip
# says: Each call costs a latency
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        for p in params:
+            dist.all_reduce(p.grad, group=mesh.group(("dp", "cp")))


# %% wrong: the sum goes over tp too
# is: slip
# says: ranks of pp and tp hold other parameters
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        sum_over_replicas(params, mesh, ("dp", "cp", "tp"))


# %% wrong: the sum goes over all ranks
# is: slip
# says: ranks of pp and tp hold other parameters
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        for p in params:
+            dist.all_reduce(p.grad)


# %% wrong: groups of its own
# is: slip
# says: waits for all 1,024 ranks, each time
# base: without ZeRO
-    steps = optimizer[0](params, lr=lr, **optimizer[1])
+    steps = optimizer[0](params, lr=lr, **optimizer[1])
+    n, everyone = layout.replicas * layout.tp, range(dist.get_world_size())
+    places = [(i, j) for i in range(layout.pp) for j in range(layout.tp)]
+    rows = [[r for r in everyone if (r // n, r % layout.tp) == place] for place in places]
+    groups = [dist.new_group(row) for row in rows]
+    group = next(made for made, row in zip(groups, rows) if mesh.rank in row)
@@
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        row = torch.cat([p.grad.flatten() for p in params])
+        dist.all_reduce(row, group=group)
+        torch.nn.utils.vector_to_parameters(row, [p.grad for p in params])


# %% wrong: a stage that is not the first has losses
# is: form
# says: neither the first nor the last
# base: without ZeRO
-        total = sum(losses.values(), torch.zeros((), dtype=torch.float64))
+        total = torch.zeros((), dtype=torch.float64)
+        if mesh.coordinate["pp"] > 0:
+            total = torch.stack(list(losses.values())).sum().double()


# %% wrong: a step that stops at a loss which is no number
# is: form
# says: floats have no values
# base: without ZeRO
-        return float(total)
+        if torch.isnan(total):
+            raise ValueError("the run has diverged")
+        return float(total)


# %% wrong: the step keeps the model that was cut
# is: slip
# says: the model from before it was cut
# base: without ZeRO
-        whole = inputs.to(mesh.device), targets.to(mesh.device)
+        model.train()
+        whole = inputs.to(mesh.device), targets.to(mesh.device)


# %% wrong: no sum over the replicas
# is: slip
# says: over dp alone
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))


# %% wrong: tp cuts the tokens of every layout
# is: slip
# says: although layout.sequence is False
# base: without ZeRO
-    stages = mesh_stages(model, mesh, schedule)
+    stages = mesh_stages(model, mesh, schedule, sequence="keep")


# %% wrong: every loss goes to every rank
# is: detail
# says: bytes for losses and numbers of targets
# base: without ZeRO
-        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))
-        return float(total)
+        parts = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
+        dist.all_gather(parts, total)
+        return float(sum(parts)) / layout.tp


# %% right: a reduce-scatter and an all-gather
# base: without ZeRO
-        sum_over_replicas(params, mesh, ("dp", "cp"))
+        n, group = mesh.size(("dp", "cp")), mesh.group(("dp", "cp"))
+        row = torch.cat([p.grad.flatten() for p in params])
+        padded = torch.nn.functional.pad(row, (0, -len(row) % n))
+        part = padded.new_empty(len(padded) // n)
+        dist.reduce_scatter_tensor(part, padded, group=group)
+        dist.all_gather_into_tensor(padded, part, group=group)
+        torch.nn.utils.vector_to_parameters(padded[: len(row)], [p.grad for p in params])


# %% right: notebook 10's step, and a loss of each microbatch on all ranks
from course_lib.mesh import hybrid_step, mesh_stages, parameters
from course_lib.mesh.step import microbatches_of
from course_lib.models import GPT
from course_lib.pipeline import one_f_one_b


def make_step(config, layout, mesh, batch_size, lr, optimizer=(torch.optim.SGD, {"momentum": 0.9})):
    schedule = one_f_one_b(layout.pp, layout.microbatches(batch_size))
    torch.manual_seed(0)
    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule)
    steps = optimizer[0]([p for _, p in parameters(stages)], lr=lr, **optimizer[1])

    def step(inputs, targets):
        mine = microbatches_of((inputs, targets), layout.microbatches(batch_size), mesh)
        loss = hybrid_step(stages, schedule, mine, mesh)
        steps.step()
        steps.zero_grad()
        each = torch.full((len(mine),), float(loss), dtype=torch.float64)
        dist.all_reduce(each, group=mesh.group(("pp", "dp", "cp")))
        return float(loss)

    return step


# %% right: a schedule that splits backward and keeps as little
# base: without ZeRO
-    schedule = one_f_one_b(layout.pp, m)
+    schedule = zero_bubble_h1(layout.pp, m)
