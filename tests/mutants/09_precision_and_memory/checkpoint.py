# %% base: a Function, arguments kept
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, function, *args):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.args = [None if torch.is_tensor(arg) else arg for arg in args]
        ctx.places = [place for place, arg in enumerate(args) if torch.is_tensor(arg)]
        ctx.save_for_backward(*[args[place] for place in ctx.places])
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        args = list(ctx.args)
        for place, tensor in zip(ctx.places, ctx.saved_tensors):
            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        enabled, dtype = ctx.autocast
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
            outputs = ctx.function(*args)
        torch.set_rng_state(now)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]
        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
        return None, None, *[arg.grad if torch.is_tensor(arg) else None for arg in args]


def checkpoint(function, *args):
    anchor = torch.zeros(1, requires_grad=True)
    return Recompute.apply(anchor, function, *args)


# %% wrong: no graph in backward
# is: form
# says: Backward runs without a graph
# base: a Function, arguments kept
-        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
+        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
@@
-        pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]
+        pairs = [(y, g) for y, g in zip(outputs, gradients)]


# %% wrong: no graph in backward, and outputs without a graph are left out
# is: form
# says: Backward runs without a graph
# base: a Function, arguments kept
-        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
+        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
@@
-        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
+        if pairs:
+            torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])


# %% wrong: detached arguments need no gradient
# is: slip
# says: so call requires_grad_\(\) on each argument that needed one before
# base: a Function, arguments kept
-            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
+            args[place] = tensor.detach()
@@
-        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
+        if pairs:
+            torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])


# %% wrong: the arguments are not detached
# is: slip
# says: The arguments still had their graph
# base: a Function, arguments kept
-            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
+            args[place] = tensor



# %% wrong: other random numbers
# is: slip
# says: another mask. Keep the generator's state
# base: a Function, arguments kept
-        now = torch.get_rng_state()
-        torch.set_rng_state(ctx.state)
@@
-        torch.set_rng_state(now)


# %% wrong: the caller's random numbers repeat
# is: slip
# says: The caller's next dropout repeats
# base: a Function, arguments kept
-        now = torch.get_rng_state()
@@
-        torch.set_rng_state(now)


# %% wrong: a new seed in forward
# is: slip
# says: Read the generator's state in forward, but do not change it
# base: a Function, arguments kept
-        ctx.state = torch.get_rng_state()
+        torch.manual_seed(0)
+        ctx.state = torch.get_rng_state()


# %% wrong: the graph of the first run is kept
# is: idea
# says: kept 16.1 s.b.h .*, but only 1 is allowed
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, function, *args):
        inputs = [a.detach().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]
        with torch.enable_grad():
            outputs = function(*inputs)
        ctx.inputs = inputs
        ctx.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        detached = tuple(y.detach() for y in ctx.outputs)
        return detached if isinstance(outputs, tuple) else detached[0]

    @staticmethod
    def backward(ctx, *gradients):
        torch.autograd.backward(ctx.outputs, gradients)
        return None, None, *[a.grad if torch.is_tensor(a) else None for a in ctx.inputs]


def checkpoint(function, *args):
    return Recompute.apply(torch.zeros(1, requires_grad=True), function, *args)


# %% wrong: no checkpoint at all
# is: idea
# says: Run the function without a graph in forward
def checkpoint(function, *args):
    return function(*args)


# %% wrong: PyTorch's own
# is: idea
# says: torch.utils.checkpoint is the answer
def checkpoint(function, *args):
    import torch.utils.checkpoint

    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)


# %% wrong: the arguments' gradients are not returned
# is: slip
# says: x has no gradient. .* return the arguments' gradients from backward
# base: a Function, arguments kept
-        return None, None, *[arg.grad if torch.is_tensor(arg) else None for arg in args]
+        return None, None, *[None for arg in args]


# %% wrong: forward builds a graph and throws it away
# is: slip
# says: Forward built the graph and threw it away
# base: a Function, arguments kept
-        return function(*args)
+        with torch.enable_grad():
+            outputs = function(*args)
+        if isinstance(outputs, tuple):
+            return tuple(y.detach() for y in outputs)
+        return outputs.detach()


# %% wrong: the output is detached
# is: form
# says: The output was detached
# base: a Function, arguments kept
-    return Recompute.apply(anchor, function, *args)
+    outputs = Recompute.apply(anchor, function, *args)
+    return tuple(y.detach() for y in outputs) if isinstance(outputs, tuple) else outputs.detach()


# %% wrong: weights are counted twice
# is: slip
# says: The weights' gradients are counted twice
# base: a Function, arguments kept
-        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
-        return None, None, *[arg.grad if torch.is_tensor(arg) else None for arg in args]
+        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs], retain_graph=True)
+        found = [arg.grad if torch.is_tensor(arg) else None for arg in args]
+        found = [None if gradient is None else gradient.clone() for gradient in found]
+        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
+        return None, None, *found


# %% wrong: the second run is in float32
# is: slip
# says: The second run was in another dtype
# base: a Function, arguments kept
-        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
+        with torch.enable_grad():


# %% wrong: the second run has autocast's default dtype
# is: slip
# says: The second run was in another dtype
# base: a Function, arguments kept
-        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
+        with torch.enable_grad(), torch.autocast("cpu", enabled=enabled):


# %% wrong: the second run is under autocast, whatever forward was
# is: slip
# says: as if the second run was under autocast although forward was not
# base: a Function, arguments kept
-        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
+        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype):


# %% wrong: the caller's arguments need a gradient afterwards
# is: slip
# says: needs a gradient after the call
# base: a Function, arguments kept
-    anchor = torch.zeros(1, requires_grad=True)
+    anchor = torch.zeros(1)
+    for arg in args:
+        if torch.is_tensor(arg) and arg.is_floating_point():
+            arg.requires_grad_()


# %% wrong: a first block records nothing
# is: slip
# says: whose tensor inputs need no gradient records nothing
# base: a Function, arguments kept
-    anchor = torch.zeros(1, requires_grad=True)
+    anchor = None


# %% wrong: every argument is taken for a tensor
# is: slip
# says: Give save_for_backward only the tensors
# base: a Function, arguments kept
-        ctx.save_for_backward(*[args[place] for place in ctx.places])
+        ctx.save_for_backward(*[args[place] for place in ctx.places], *[a for a in args if not torch.is_tensor(a)])


# %% wrong: gradients of the arguments alone
# is: slip
# says: reaches its weights without having them as arguments
# base: a Function, arguments kept
-        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
-        return None, None, *[arg.grad if torch.is_tensor(arg) else None for arg in args]
+        wanted = [arg for arg in args if torch.is_tensor(arg) and arg.requires_grad]
+        found = []
+        if wanted:
+            ys, gs = zip(*pairs)
+            found = list(torch.autograd.grad(ys, wanted, gs))
+        return None, None, *[
+            found.pop(0) if torch.is_tensor(arg) and arg.requires_grad else None for arg in args
+        ]


# %% wrong: the first output alone
# is: slip
# says: Backward must begin from the gradients of all outputs
# base: a Function, arguments kept
-        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
+        torch.autograd.backward([y for y, _ in pairs[:1]], [g for _, g in pairs[:1]])


# %% wrong: the function runs twice in backward
# is: slip
# says: once in forward and once more in backward
# base: a Function, arguments kept
-            outputs = ctx.function(*args)
+            ctx.function(*args)
+            torch.set_rng_state(ctx.state)
+            outputs = ctx.function(*args)


# %% wrong: the arguments keep their graph, which is walked in every block's backward
# is: idea
# says: The second run's graph goes on above the block
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, function, *args):
        ctx.function, ctx.args = function, args
        ctx.state = torch.get_rng_state()
        ctx.cast = dict(
            enabled=torch.is_autocast_enabled("cpu"), dtype=torch.get_autocast_dtype("cpu")
        )
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            with torch.autocast("cpu", **ctx.cast):
                outputs = ctx.function(*ctx.args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.autograd.backward(outputs, gradients)
        return (None,) * (2 + len(ctx.args))


def checkpoint(function, *args):
    return Recompute.apply(torch.zeros(1, requires_grad=True), function, *args)


# %% wrong: every second run's graph is kept
# is: idea
# says: or it is kept
# base: a Function, arguments kept
-        pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]
-        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
+        pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]
+        runs.append(outputs)
+        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs], retain_graph=True)
@@
-def checkpoint(function, *args):
+runs = []
+
+
+def checkpoint(function, *args):


# %% right: a Function, the state in a context manager
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, empty, run, *inputs):
        ctx.run = run
        ctx.generator = torch.random.get_rng_state()
        ctx.cast = {"enabled": torch.is_autocast_enabled("cpu"), "dtype": torch.get_autocast_dtype("cpu")}
        ctx.rest = {i: x for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor)}
        ctx.many = len(inputs)
        ctx.save_for_backward(*[x for x in inputs if isinstance(x, torch.Tensor)])
        with torch.no_grad():
            return run(*inputs)

    @staticmethod
    def backward(ctx, *incoming):
        tensors = iter(ctx.saved_tensors)
        inputs = []
        for i in range(ctx.many):
            if i in ctx.rest:
                inputs.append(ctx.rest[i])
                continue
            tensor = next(tensors)
            fresh = tensor.detach()
            fresh.requires_grad = tensor.requires_grad
            inputs.append(fresh)
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(ctx.generator)
            with torch.enable_grad(), torch.autocast("cpu", **ctx.cast):
                made = ctx.run(*inputs)
        made = (made,) if isinstance(made, torch.Tensor) else tuple(made)
        with torch.enable_grad():
            total = sum((y * g).sum() for y, g in zip(made, incoming) if y.requires_grad)
        torch.autograd.backward(total)
        return (None, None) + tuple(getattr(x, "grad", None) for x in inputs)


def checkpoint(function, *args):
    return Again.apply(torch.empty(0, requires_grad=True), function, *args)


# %% right: hooks on what autograd keeps
import itertools


def checkpoint(function, *args):
    if not torch.is_grad_enabled():
        return function(*args)
    state = torch.get_rng_state()
    cast = dict(enabled=torch.is_autocast_enabled("cpu"), dtype=torch.get_autocast_dtype("cpu"))
    tensors = {}
    count = itertools.count()

    def pack(tensor):
        return next(count)

    def unpack(number):
        if number not in tensors:
            fill()
        return tensors.pop(number)

    def fill():
        again = itertools.count()

        def keep(tensor):
            tensors[next(again)] = tensor.detach()
            return tensor.detach()

        fresh = [
            a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in args
        ]
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(state)
            with hooks, torch.autocast("cpu", **cast):
                function(*fresh)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(*args)
