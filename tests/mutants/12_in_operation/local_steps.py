# %% base: parameters as one row
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = torch.cat([p.detach().flatten() for p in trained])
    momentum = torch.zeros_like(start)
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        if step % steps_between == 0 or step == len(batches):
            end = torch.cat([p.detach().flatten() for p in trained])
            gradient = start - end
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size(group)
            momentum = outer_momentum * momentum + gradient
            start = start - outer_lr * (gradient + outer_momentum * momentum)
            torch.nn.utils.vector_to_parameters(start.clone(), trained)


# %% wrong: the outer gradient has the other sign
# is: slip
# says: The outer gradient has the wrong sign
# base: parameters as one row
-            gradient = start - end
+            gradient = end - start


# %% wrong: gradients are averaged in every step
# is: idea
# says: which is data parallelism
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)
        optimizer.step()


# %% wrong: gradients are averaged in a period's last step
# is: idea
# says: Only the gradients of each period's last step were averaged
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(batch).backward()
        if step % steps_between == 0 or step == len(batches):
            zeros = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
            row = torch.cat([each.flatten() for each in zeros])
            dist.all_reduce(row, group=group)
            row /= dist.get_world_size(group)
            for p, part in zip(trained, row.split([p.numel() for p in trained])):
                p.grad = part.view_as(p)
        optimizer.step()


# %% wrong: nothing is sent
# is: idea
# says: because nothing was exchanged
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()


# %% wrong: the sum in place of the mean
# is: slip
# says: Divide it by their number
# base: parameters as one row
-            gradient /= dist.get_world_size(group)


# %% wrong: divided by all ranks
# is: slip
# says: the number of all ranks
# base: parameters as one row
-            gradient /= dist.get_world_size(group)
+            gradient /= dist.get_world_size()


# %% wrong: the group is forgotten
# is: slip
# says: group
# base: parameters as one row
-            dist.all_reduce(gradient, group=group)
+            dist.all_reduce(gradient)


# %% wrong: the outer step goes from the rank's own end
# is: slip
# says: went from the rank's own end
# base: parameters as one row
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            start = end - outer_lr * (gradient + outer_momentum * momentum)


# %% wrong: the last, shorter period is not sent
# is: slip
# says: The last, shorter period was not sent
# base: parameters as one row
-        if step % steps_between == 0 or step == len(batches):
+        if step % steps_between == 0:


# %% wrong: steps are counted from 0
# is: slip
# says: Count finished steps
# base: parameters as one row
-    for step, batch in enumerate(batches, start=1):
+    for step, batch in enumerate(batches):


# %% wrong: steps are counted from 0, and the last one is sent as well
# is: slip
# says: The first period has only one step
# base: parameters as one row
-        if step % steps_between == 0 or step == len(batches):
+        if (step - 1) % steps_between == 0 or step == len(batches):


# %% wrong: the count is ahead by one
# is: slip
# says: The first period is one step too short
# base: parameters as one row
-        if step % steps_between == 0 or step == len(batches):
+        if (step + 1) % steps_between == 0 or step == len(batches):


# %% wrong: the inner optimizer begins anew
# is: slip
# says: The inner optimizer started again
# base: parameters as one row
-            torch.nn.utils.vector_to_parameters(start.clone(), trained)
+            torch.nn.utils.vector_to_parameters(start.clone(), trained)
+            optimizer.state.clear()


# %% wrong: the inner optimizers' states are averaged
# is: idea
# says: states travelled as well
# base: parameters as one row
-            torch.nn.utils.vector_to_parameters(start.clone(), trained)
+            torch.nn.utils.vector_to_parameters(start.clone(), trained)
+            for p in trained:
+                for state in optimizer.state[p].values():
+                    if torch.is_tensor(state) and state.dim():
+                        dist.all_reduce(state, group=group)
+                        state /= dist.get_world_size(group)


# %% wrong: the parameters share memory with the start
# is: slip
# says: The start moved along with the parameters
# base: parameters as one row
-            torch.nn.utils.vector_to_parameters(start.clone(), trained)
+            torch.nn.utils.vector_to_parameters(start, trained)


# %% wrong: the new start does not reach the parameters
# is: slip
# says: was not copied into the parameters
# base: parameters as one row
-            torch.nn.utils.vector_to_parameters(start.clone(), trained)


# %% wrong: movements count from the first start
# is: slip
# says: counted from the very first start
# base: parameters as one row
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
-            torch.nn.utils.vector_to_parameters(start.clone(), trained)
+            new = start - outer_lr * (gradient + outer_momentum * momentum)
+            torch.nn.utils.vector_to_parameters(new, trained)


# %% wrong: no outer momentum
# is: slip
# says: The outer step has no momentum
# base: parameters as one row
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            start = start - outer_lr * gradient


# %% wrong: momentum without Nesterov
# is: slip
# says: without Nesterov's part
# base: parameters as one row
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            start = start - outer_lr * momentum


# %% wrong: the average of the ends
# is: slip
# says: without outer_lr and outer_momentum
# base: parameters as one row
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            start = start - gradient


# %% wrong: the outer momentum begins anew in each period
# is: slip
# says: The outer momentum starts from zero
# base: parameters as one row
-            momentum = outer_momentum * momentum + gradient
+            momentum = gradient


# %% wrong: gradients add up
# is: slip
# says: Gradients of earlier steps were added
# base: parameters as one row
-        optimizer.zero_grad()


# %% wrong: every parameter by itself
# is: detail
# says: Each parameter travelled separately
# base: parameters as one row
-            dist.all_reduce(gradient, group=group)
+            for part in gradient.split([p.numel() for p in trained]):
+                dist.all_reduce(part, group=group)


# %% wrong: frozen parameters travel
# is: detail
# says: Frozen parameters travelled
# base: parameters as one row
-    trained = [p for p in model.parameters() if p.requires_grad]
+    trained = list(model.parameters())


# %% wrong: parameters without a gradient are left out
# is: slip
# says: has no gradient here in some steps of some ranks
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = {p: p.detach().clone() for p in trained}
    momentum = {p: torch.zeros_like(p) for p in trained}
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        if step % steps_between == 0 or step == len(batches):
            moved = [p for p in trained if p.grad is not None]
            row = torch.cat([(start[p] - p.detach()).flatten() for p in moved])
            dist.all_reduce(row, group=group)
            row /= dist.get_world_size(group)
            for p, part in zip(moved, row.split([p.numel() for p in moved])):
                gradient = part.view_as(p)
                momentum[p] = outer_momentum * momentum[p] + gradient
                start[p] = start[p] - outer_lr * (gradient + outer_momentum * momentum[p])
                p.data.copy_(start[p])


# %% wrong: SGD with Nesterov and without momentum
# is: form
# says: refuses nesterov=True if the momentum is zero
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(trained).detach())
    outer = torch.optim.SGD([start], lr=outer_lr, momentum=outer_momentum, nesterov=True)
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        if step % steps_between == 0 or step == len(batches):
            start.grad = start.detach() - torch.nn.utils.parameters_to_vector(trained).detach()
            dist.all_reduce(start.grad, group=group)
            start.grad /= dist.get_world_size(group)
            outer.step()
            torch.nn.utils.vector_to_parameters(start.detach().clone(), trained)


# %% wrong: nothing is trained
# is: form
# says: The parameters have not changed since the start
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    pass


# %% right: torch's SGD takes the outer step
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(trained).detach())
    nesterov = outer_momentum > 0
    outer = torch.optim.SGD([start], lr=outer_lr, momentum=outer_momentum, nesterov=nesterov)
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        if step % steps_between == 0 or step == len(batches):
            start.grad = start.detach() - torch.nn.utils.parameters_to_vector(trained).detach()
            dist.all_reduce(start.grad, group=group)
            start.grad /= dist.get_world_size(group)
            outer.step()
            torch.nn.utils.vector_to_parameters(start.detach().clone(), trained)


# %% right: the ends are averaged, period by period
@torch.no_grad()
def local_steps(model, optimizer, batches, steps_between, outer_lr, outer_momentum, group=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in trained]
    starts = [p.clone() for p in trained]
    momenta = [torch.zeros_like(p) for p in trained]
    for first in range(0, len(batches), steps_between):
        for batch in batches[first : first + steps_between]:
            optimizer.zero_grad(set_to_none=False)
            with torch.enable_grad():
                model(batch).backward()
            optimizer.step()
        mean = torch.cat([p.reshape(-1) for p in trained]) / dist.get_world_size(group)
        dist.all_reduce(mean, group=group)
        for p, start, momentum, end in zip(trained, starts, momenta, mean.split(sizes)):
            gradient = start - end.view_as(p)
            momentum.mul_(outer_momentum).add_(gradient)
            start.sub_(gradient + outer_momentum * momentum, alpha=outer_lr)
            p.copy_(start)


# %% wrong: momentum without this period's gradient
# is: slip
# says: with an m that already includes g
# base: parameters as one row
-            momentum = outer_momentum * momentum + gradient
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            momentum = outer_momentum * momentum + gradient


# %% wrong: outer_lr and outer_momentum exchanged
# is: slip
# says: take the outer step with outer_lr
# base: parameters as one row
-            momentum = outer_momentum * momentum + gradient
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            momentum = outer_lr * momentum + gradient
+            start = start - outer_momentum * (gradient + outer_lr * momentum)


# %% wrong: the gradient is added
# is: slip
# says: The outer gradient has the wrong sign
# base: parameters as one row
-            start = start - outer_lr * (gradient + outer_momentum * momentum)
+            start = start + outer_lr * (gradient + outer_momentum * momentum)


# %% wrong: so many periods
# is: idea
# says: The ranks averaged in every step
# base: parameters as one row
-        if step % steps_between == 0 or step == len(batches):
+        if step % (len(batches) // steps_between) == 0 or step == len(batches):
