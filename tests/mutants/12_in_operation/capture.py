# %% base: deep copies
import copy


def capture(run):
    return copy.deepcopy(
        {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scheduler": run.scheduler.state_dict(),
            "step": run.step,
            "default": torch.get_rng_state(),
            "own": run.generator.get_state(),
        }
    )


def restore(run, state):
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    run.scheduler.load_state_dict(state["scheduler"])
    run.step = state["step"]
    torch.set_rng_state(state["default"])
    run.generator.set_state(state["own"])


# %% wrong: the model alone
# is: idea
# says: The exercise is about everything that decides the next
def capture(run):
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def restore(run, state):
    run.model.load_state_dict(state)


# %% wrong: the model and the step
# is: idea
# says: The exercise is about everything that decides the next
def capture(run):
    return {"model": {k: v.clone() for k, v in run.model.state_dict().items()}, "step": run.step}


def restore(run, state):
    run.model.load_state_dict(state["model"])
    run.step = state["step"]


# %% wrong: nothing is copied
# is: idea
# says: The state moved on with the run
# base: deep copies
-    return copy.deepcopy(
-        {
+    return dict(
+        {


# %% wrong: nothing is copied, neither here nor there
# is: idea
# says: The state moved on with the run
# base: deep copies
-    return copy.deepcopy(
-        {
+    return dict(
+        {
@@
-    run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
+    run.optimizer.load_state_dict(state["optimizer"])


# %% wrong: the optimizer is forgotten
# is: slip
# says: The optimizer starts again
# base: deep copies
-    run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


# %% wrong: the scheduler is forgotten
# is: slip
# says: The learning rate starts again
# base: deep copies
-    run.scheduler.load_state_dict(state["scheduler"])


# %% wrong: the step is forgotten
# is: slip
# says: reads the rows of another step
# base: deep copies
-    run.step = state["step"]


# %% wrong: the step is one too many
# is: slip
# says: run.step is 4 instead of 3
# base: deep copies
-    run.step = state["step"]
+    run.step = state["step"] + 1


# %% wrong: the default generator is forgotten
# is: slip
# says: Dropout draws from torch's default generator
# base: deep copies
-    torch.set_rng_state(state["default"])


# %% wrong: the default generator is seeded
# is: slip
# says: Dropout draws from torch's default generator
# base: deep copies
-    torch.set_rng_state(state["default"])
+    torch.manual_seed(state["step"])


# %% wrong: the run's generator is forgotten
# is: slip
# says: The run also has its own generator
# base: deep copies
-    run.generator.set_state(state["own"])


# %% wrong: the parameters without the buffers
# is: slip
# says: The parameters are right, but the buffers are not
# base: deep copies
-            "model": run.model.state_dict(),
+            "model": dict(run.model.named_parameters()),
@@
-    run.model.load_state_dict(state["model"])
+    run.model.load_state_dict(state["model"], strict=False)


# %% wrong: the optimizer keeps the state's tensors
# is: detail
# says: An optimizer keeps the tensors it loads
# base: deep copies
-    run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
+    run.optimizer.load_state_dict(state["optimizer"])


# %% wrong: a generator in the state
# is: slip
# says: a value of type Generator in its entry 'own', so it cannot be saved and loaded
# base: deep copies
-            "own": run.generator.get_state(),
+            "own": run.generator.clone_state(),
@@
-    run.generator.set_state(state["own"])
+    run.generator.set_state(state["own"].get_state())


# %% wrong: the run's generator itself in the state
# is: slip
# says: because it holds the run's generator itself
# base: deep copies
-    return copy.deepcopy(
-        {
-            "model": run.model.state_dict(),
-            "optimizer": run.optimizer.state_dict(),
-            "scheduler": run.scheduler.state_dict(),
-            "step": run.step,
-            "default": torch.get_rng_state(),
-            "own": run.generator.get_state(),
-        }
-    )
+    return {
+        "model": copy.deepcopy(run.model.state_dict()),
+        "optimizer": copy.deepcopy(run.optimizer.state_dict()),
+        "scheduler": copy.deepcopy(run.scheduler.state_dict()),
+        "step": run.step,
+        "default": torch.get_rng_state(),
+        "own": run.generator,
+    }
@@
-    run.generator.set_state(state["own"])
+    run.generator.set_state(state["own"].get_state())


# %% wrong: nothing is restored
# is: form
# says: has left `run` as it was
def capture(run):
    return {}


def restore(run, state):
    pass


# %% wrong: the step is a tensor
# is: slip
# says: run.step is a Tensor instead of 3
# base: deep copies
-            "step": run.step,
+            "step": torch.tensor(run.step),


# %% wrong: the step is a text
# is: slip
# says: restore must set it to a number
# base: deep copies
-            "step": run.step,
+            "step": str(run.step),


# %% wrong: restore empties the state
# is: detail
# says: The same state can be restored again
# base: deep copies
-    run.model.load_state_dict(state["model"])
+    run.model.load_state_dict(state.pop("model"))


# %% right: through a file
import io


def capture(run):
    file = io.BytesIO()
    parts = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler")}
    parts |= {"cpu": torch.get_rng_state(), "own": run.generator.get_state(), "step": run.step}
    torch.save(parts, file)
    return {"bytes": torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)}


def restore(run, state):
    parts = torch.load(io.BytesIO(state["bytes"].numpy().tobytes()), weights_only=True)
    for name in ("model", "optimizer", "scheduler"):
        getattr(run, name).load_state_dict(parts[name])
    run.step = parts["step"]
    torch.random.set_rng_state(parts["cpu"])
    run.generator.set_state(parts["own"])


# %% right: tensors cloned one by one
def cloned(part):
    if torch.is_tensor(part):
        return part.clone()
    if isinstance(part, dict):
        return {key: cloned(value) for key, value in part.items()}
    return [cloned(value) for value in part] if isinstance(part, (list, tuple)) else part


def capture(run):
    parts = [run.model, run.optimizer, run.scheduler]
    states = [cloned(part.state_dict()) for part in parts]
    return {"states": states, "step": run.step, "rng": [torch.get_rng_state(), run.generator.get_state()]}


def restore(run, state):
    for part, saved in zip([run.model, run.optimizer, run.scheduler], cloned(state["states"])):
        part.load_state_dict(saved)
    run.step = state["step"]
    torch.set_rng_state(state["rng"][0])
    run.generator.set_state(state["rng"][1])


# %% wrong: the whole run is copied
# is: slip
# says: capture returned Training instead of a dict
import copy


def capture(run):
    return copy.deepcopy(run)


def restore(run, state):
    run.model, run.optimizer, run.scheduler = state.model, state.optimizer, state.scheduler
    run.step, run.generator = state.step, state.generator


# %% wrong: capture returns nothing
# is: form
# says: Does it end in a `return`
# base: deep copies
-    return copy.deepcopy(
-        {
+    state = copy.deepcopy(
+        {


# %% wrong: restore returns a new run
# is: form
# says: its result is not used
import copy


def capture(run):
    return copy.deepcopy({"model": run.model.state_dict(), "step": run.step})


def restore(run, state):
    new = copy.deepcopy(run)
    new.model.load_state_dict(state["model"])
    new.step = state["step"]
    return new


# %% wrong: the generator is replaced by its state
# is: slip
# says: The run also has its own generator
# base: deep copies
-    run.generator.set_state(state["own"])
+    run.generator = state["own"]


# %% wrong: the two generators are exchanged
# is: slip
# says: The run also has its own generator
# base: deep copies
-    torch.set_rng_state(state["default"])
-    run.generator.set_state(state["own"])
+    torch.set_rng_state(state["own"])
+    run.generator.set_state(state["default"])


# %% wrong: the state is in a global
# is: form
# says: The values come from a later capture
import copy

SAVED = {}


def capture(run):
    SAVED.update(
        copy.deepcopy(
            {
                "model": run.model.state_dict(),
                "optimizer": run.optimizer.state_dict(),
                "scheduler": run.scheduler.state_dict(),
                "step": run.step,
                "default": torch.get_rng_state(),
                "own": run.generator.get_state(),
            }
        )
    )
    return {}


def restore(run, state):
    run.model.load_state_dict(SAVED["model"])
    run.optimizer.load_state_dict(copy.deepcopy(SAVED["optimizer"]))
    run.scheduler.load_state_dict(SAVED["scheduler"])
    run.step = SAVED["step"]
    torch.set_rng_state(SAVED["default"])
    run.generator.set_state(SAVED["own"])


# %% wrong: the state is a list
# is: detail
# says: capture returned list instead of a dict
import copy


def capture(run):
    parts = [run.model.state_dict(), run.optimizer.state_dict(), run.scheduler.state_dict()]
    return copy.deepcopy([*parts, run.step, torch.get_rng_state(), run.generator.get_state()])


def restore(run, state):
    model, optimizer, scheduler, run.step, default, own = copy.deepcopy(state)
    run.model.load_state_dict(model)
    run.optimizer.load_state_dict(optimizer)
    run.scheduler.load_state_dict(scheduler)
    torch.set_rng_state(default)
    run.generator.set_state(own)


# %% wrong: the optimizer alone is not copied
# is: slip
# says: The state moved on with the run
# base: deep copies
-    return copy.deepcopy(
-        {
-            "model": run.model.state_dict(),
-            "optimizer": run.optimizer.state_dict(),
-            "scheduler": run.scheduler.state_dict(),
-            "step": run.step,
-            "default": torch.get_rng_state(),
-            "own": run.generator.get_state(),
-        }
-    )
+    return {
+        "model": {name: tensor.clone() for name, tensor in run.model.state_dict().items()},
+        "optimizer": run.optimizer.state_dict(),
+        "scheduler": run.scheduler.state_dict(),
+        "step": run.step,
+        "default": torch.get_rng_state(),
+        "own": run.generator.get_state(),
+    }


# %% wrong: the model is replaced by its state_dict
# is: form
# says: has put something else in the place of the run's model
# base: deep copies
-    run.model.load_state_dict(state["model"])
+    run.model = state["model"]


# %% wrong: numpy arrays
# is: slip
# says: a value of type ndarray in its entry 'default', so it cannot be saved
# base: deep copies
-            "default": torch.get_rng_state(),
+            "default": torch.get_rng_state().numpy(),
@@
-    torch.set_rng_state(state["default"])
+    torch.set_rng_state(torch.from_numpy(state["default"]))
