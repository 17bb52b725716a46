# %% base: what the wrong ones change
from course_lib.trainer import load_run, save_run


def train(make, batches, steps, disk, every):
    step, held = make()
    losses = load_run(disk, held())
    while len(losses) < steps:
        losses.append(step(*batches(len(losses))))
        if len(losses) % every == 0 or len(losses) == steps:
            save_run(disk, losses, held())
    return losses


# %% wrong: nothing is loaded
# is: idea
# says: Load the newest checkpoint right after .make.
# base: what the wrong ones change
-    losses = load_run(disk, held())
+    losses = []


# %% wrong: the loaded losses are not used
# is: idea
# says: the run began with step 0 all the same
# base: what the wrong ones change
-    losses = load_run(disk, held())
+    load_run(disk, held())
+    losses = []


# %% wrong: saved at the end alone
# is: idea
# says: Nothing is saved before the end
# base: what the wrong ones change
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
+    save_run(disk, losses, held())


# %% wrong: nothing is saved
# is: idea
# says: Nothing is saved. Call save_run
# base: what the wrong ones change
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())


# %% wrong: batches are counted from 0 again
# is: slip
# says: the batches were counted from 0 again
# base: what the wrong ones change
-    while len(losses) < steps:
-        losses.append(step(*batches(len(losses))))
+    for number in range(steps - len(losses)):
+        losses.append(step(*batches(number)))


# %% wrong: the losses of earlier calls are lost
# is: slip
# says: The losses of the earlier calls are missing
# base: what the wrong ones change
-    losses = load_run(disk, held())
-    while len(losses) < steps:
-        losses.append(step(*batches(len(losses))))
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
-    return losses
+    losses = load_run(disk, held())
+    start = len(losses)
+    while len(losses) < steps:
+        losses.append(step(*batches(len(losses))))
+        if len(losses) % every == 0 or len(losses) == steps:
+            save_run(disk, losses, held())
+    return losses[start:]


# %% wrong: losses of this call are saved
# is: slip
# says: The losses of the earlier calls are missing
# base: what the wrong ones change
-    losses = load_run(disk, held())
-    while len(losses) < steps:
-        losses.append(step(*batches(len(losses))))
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
-    return losses
+    start, losses = len(load_run(disk, held())), []
+    for number in range(start, steps):
+        losses.append(step(*batches(number)))
+        if (number + 1) % every == 0 or number + 1 == steps:
+            save_run(disk, losses, held())
+    return losses


# %% wrong: steps more, and not until
# is: slip
# says: .steps. counts from the start of the run
# base: what the wrong ones change
-    while len(losses) < steps:
+    for _ in range(steps):


# %% wrong: the last step is not saved
# is: slip
# says: The last step is not saved
# base: what the wrong ones change
-        if len(losses) % every == 0 or len(losses) == steps:
+        if len(losses) % every == 0:


# %% wrong: saved before the step
# is: slip
# says: Before the first step there is nothing to save
# base: what the wrong ones change
-        losses.append(step(*batches(len(losses))))
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
+        if len(losses) % every == 0:
+            save_run(disk, losses, held())
+        losses.append(step(*batches(len(losses))))
+    save_run(disk, losses, held())


# %% wrong: saved after the steps with the numbers 0, 3, 6
# is: slip
# says: so count k . 1 after the step with number k
# base: what the wrong ones change
-        losses.append(step(*batches(len(losses))))
-        if len(losses) % every == 0 or len(losses) == steps:
+        number = len(losses)
+        losses.append(step(*batches(number)))
+        if number % every == 0 or len(losses) == steps:


# %% wrong: the last step is saved twice
# is: detail
# says: Some steps are saved twice
# base: what the wrong ones change
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
+        if len(losses) % every == 0 or len(losses) == steps:
+            save_run(disk, losses, held())
+    save_run(disk, losses, held())


# %% wrong: every step is saved
# is: slip
# says: A save takes time
# base: what the wrong ones change
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
+        save_run(disk, losses, held())


# %% wrong: the pieces of the start are saved
# is: slip
# says: because a step can replace its tensors
# base: what the wrong ones change
-    losses = load_run(disk, held())
+    pieces = held()
+    losses = load_run(disk, pieces)
@@
-            save_run(disk, losses, held())
+            save_run(disk, losses, pieces)


# %% wrong: loaded after the first step
# is: slip
# says: Load it right after .make., before the first step
# base: what the wrong ones change
-    losses = load_run(disk, held())
+    losses = [step(*batches(0))]
+    losses = load_run(disk, held()) or losses


# %% wrong: the run is made for each step
# is: slip
# says: call it once, before the first step
# base: what the wrong ones change
-        losses.append(step(*batches(len(losses))))
+        step, held = make()
+        losses.append(step(*batches(len(losses))))


# %% wrong: rank 0 alone saves
# is: slip
# says: are calls of all ranks
# base: what the wrong ones change
-            save_run(disk, losses, held())
+            if not dist.is_initialized() or dist.get_rank() == 0:
+                save_run(disk, losses, held())


# %% wrong: a save in finally
# is: slip
# says: The save came after the kill
# base: what the wrong ones change
-    while len(losses) < steps:
-        losses.append(step(*batches(len(losses))))
-        if len(losses) % every == 0 or len(losses) == steps:
-            save_run(disk, losses, held())
+    try:
+        while len(losses) < steps:
+            losses.append(step(*batches(len(losses))))
+            if len(losses) % every == 0 and len(losses) < steps:
+                save_run(disk, losses, held())
+    finally:
+        if len(losses):
+            save_run(disk, losses, held())


# %% wrong: the kill is caught, and the step done once more
# is: slip
# says: runs no .except. and no .finally.
# base: what the wrong ones change
-        losses.append(step(*batches(len(losses))))
+        try:
+            losses.append(step(*batches(len(losses))))
+        except BaseException:
+            continue


# %% wrong: it starts itself again
# is: slip
# says: cannot start itself again
from course_lib.trainer import load_run, save_run


def train(make, batches, steps, disk, every):
    while True:
        try:
            step, held = make()
            losses = load_run(disk, held())
            while len(losses) < steps:
                losses.append(step(*batches(len(losses))))
                if len(losses) % every == 0 or len(losses) == steps:
                    save_run(disk, losses, held())
            return losses
        except BaseException:
            pass


# %% wrong: held instead of what it returns
# is: form
# says: .held. is a function
# base: what the wrong ones change
-    losses = load_run(disk, held())
+    losses = load_run(disk, held)


# %% wrong: no return
# is: form
# says: is there a .return.
# base: what the wrong ones change
-    return losses
+    print(losses)


# %% wrong: the number of steps is returned
# is: form
# says: returned a int
# base: what the wrong ones change
-    return losses
+    return len(losses)


# %% wrong: if in place of while
# is: form
# says: The steps ended too early
# base: what the wrong ones change
-    while len(losses) < steps:
+    if len(losses) < steps:


# %% right: a loop over numbers
from course_lib.trainer import load_run, save_run


def train(make, batches, steps, disk, every):
    step, held = make()
    losses = load_run(disk, held())
    for number in range(len(losses), steps):
        inputs, targets = batches(number)
        loss = step(inputs, targets)
        losses = [*losses, loss]
        finished = number + 1
        if finished == steps or not finished % every:
            save_run(disk, losses, held())
    return losses


# %% right: from save to save
from course_lib.trainer import load_run, save_run


def train(make, batches, steps, disk, every):
    step, held = make()
    losses = load_run(disk, held())
    while len(losses) < steps:
        until = min(steps, (len(losses) // every + 1) * every)
        losses += [step(*batches(number)) for number in range(len(losses), until)]
        save_run(disk, losses, held())
    return losses


# %% right: the batch of the next step is made beside the save
from course_lib import trainer


def train(make, batches, steps, disk, every):
    step, held = make()
    losses = list(trainer.load_run(disk, held()))
    first = len(losses)
    for finished in range(first + 1, steps + 1):
        losses.append(step(*batches(finished - 1)))
        due = finished % every == 0 or finished == steps
        if due:
            trainer.save_run(disk, tuple(losses), held())
    return losses


# %% wrong: the state is kept in a global
# is: idea
# says: A killed process loses its memory
from course_lib.trainer import save_run

KEPT = {}


def train(make, batches, steps, disk, every):
    step, held = make()
    losses = []
    if KEPT and disk.names():
        losses = list(KEPT["losses"])
        for name, (tensor, _) in held().items():
            tensor.copy_(KEPT["pieces"][name])
    while len(losses) < steps:
        losses.append(step(*batches(len(losses))))
        if len(losses) % every == 0 or len(losses) == steps:
            save_run(disk, losses, held())
            KEPT["losses"] = list(losses)
            KEPT["pieces"] = {name: tensor.clone() for name, (tensor, _) in held().items()}
    return losses


# %% wrong: the checkpoint is loaded before there is a run
# is: slip
# says: give it the pieces .held... returns
# base: what the wrong ones change
-    step, held = make()
-    losses = load_run(disk, held())
+    losses = load_run(disk, {})
+    step, held = make()


# %% wrong: one step too many
# is: slip
# says: One step was too many
# base: what the wrong ones change
-    while len(losses) < steps:
+    while len(losses) <= steps:


# %% wrong: the batch as one argument
# is: form
# says: hand them to .step. as two arguments
# base: what the wrong ones change
-        losses.append(step(*batches(len(losses))))
+        losses.append(step(batches(len(losses))))


# %% wrong: the arguments of save_run exchanged
# is: form
# says: in the order save_run
# base: what the wrong ones change
-            save_run(disk, losses, held())
+            save_run(disk, held(), losses)


# %% wrong: saves are counted from the call
# is: slip
# says: not those since the call began
# base: what the wrong ones change
+    loaded = len(losses)
     while len(losses) < steps:
@@
-        if len(losses) % every == 0 or len(losses) == steps:
+        if (len(losses) - loaded) % every == 0 or len(losses) == steps:
