# %% base: what the wrong ones change
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.stash = module, optimizer, {}

    def forward(self, microbatch, x):
        weights = {
            n: p.detach().clone().requires_grad_() for n, p in self.module.named_parameters()
        }
        x = x.detach().requires_grad_(x.is_floating_point())
        y = torch.func.functional_call(self.module, weights, (x,))
        self.stash[microbatch] = weights, x, y
        return y.detach()

    def backward(self, microbatch, gradient=None):
        weights, x, y = self.stash.pop(microbatch)
        y.backward(gradient)
        for name, param in self.module.named_parameters():
            param.grad = weights[name].grad
        self.optimizer.step()
        return x.grad


# %% wrong: no versions, forward once more
# is: idea
# says: the gradient of the newest weights, which this microbatch's forward has not seen
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.inputs = module, optimizer, {}

    def forward(self, microbatch, x):
        self.inputs[microbatch] = x
        return self.module(x).detach()

    def backward(self, microbatch, gradient=None):
        x = self.inputs.pop(microbatch).detach()
        if x.is_floating_point():
            x.requires_grad_()
        self.module(x).backward(gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return x.grad


# %% wrong: no versions, the graph kept
# is: form
# says: The optimizer changes weights in place, and a microbatch that is under way still needs
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.kept = module, optimizer, {}

    def forward(self, microbatch, x):
        if x.is_floating_point():
            x.requires_grad_()
        y = self.module(x)
        self.kept[microbatch] = x, y
        return y

    def backward(self, microbatch, gradient=None):
        x, y = self.kept.pop(microbatch)
        y.backward(gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return x.grad


# %% wrong: weights overwritten behind autograd's back
# is: idea
# says: the gradient of the newest weights, which this microbatch's forward has not seen|is wrong
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer = module, optimizer
        self.weights = {
            n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()
        }
        self.kept = {}

    def forward(self, microbatch, x):
        x = x.requires_grad_() if x.is_floating_point() else x
        y = torch.func.functional_call(self.module, self.weights, (x,))
        self.kept[microbatch] = x, y
        return y

    def backward(self, microbatch, gradient=None):
        x, y = self.kept.pop(microbatch)
        y.backward(gradient)
        for name, param in self.module.named_parameters():
            param.grad, self.weights[name].grad = self.weights[name].grad, None
        self.optimizer.step()
        for name, param in self.module.named_parameters():
            self.weights[name].data.copy_(param)
        return x.grad


# %% wrong: every forward with the first weights
# is: idea
# says: Every forward sees the weights that were there at first
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer = module, optimizer
        self.first = {n: p.detach().clone() for n, p in module.named_parameters()}
        self.kept = {}

    def forward(self, microbatch, x):
        weights = {n: p.clone().requires_grad_() for n, p in self.first.items()}
        x = x.detach().requires_grad_(x.is_floating_point())
        y = torch.func.functional_call(self.module, weights, (x,))
        self.kept[microbatch] = weights, x, y
        return y.detach()

    def backward(self, microbatch, gradient=None):
        weights, x, y = self.kept.pop(microbatch)
        y.backward(gradient)
        for name, param in self.module.named_parameters():
            param.grad = weights[name].grad
        self.optimizer.step()
        return x.grad


# %% wrong: the old version is put back, and stays
# is: idea
# says: The step was taken from the weights that this microbatch's forward saw
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.stash = module, optimizer, {}

    def forward(self, microbatch, x):
        self.stash[microbatch] = (
            x,
            {n: p.detach().clone() for n, p in self.module.named_parameters()},
        )
        return self.module(x).detach()

    def backward(self, microbatch, gradient=None):
        x, old = self.stash.pop(microbatch)
        self.module.load_state_dict(old)
        if x.is_floating_point():
            x = x.detach().requires_grad_()
        self.module(x).backward(gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return x.grad


# %% wrong: gradients are never cleared
# is: slip
# says: The gradients of earlier backwards are still there
# base: what the wrong ones change
-            param.grad = weights[name].grad
+            grad = weights[name].grad
+            param.grad = grad if param.grad is None else param.grad + grad


# %% wrong: one step at the end
# is: idea
# says: The weights changed only at the end, as with a flush
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.kept = module, optimizer, {}

    def forward(self, microbatch, x):
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self.module(x)
        self.kept[microbatch] = x, y
        return y.detach()

    def backward(self, microbatch, gradient=None):
        x, y = self.kept.pop(microbatch)
        y.backward(gradient)
        if not self.kept:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return x.grad


# %% wrong: a new optimizer for each version
# is: slip
# says: The optimizer's momentum begins again with each step
# base: what the wrong ones change
-        self.optimizer.step()
+        lr = self.optimizer.param_groups[0]["lr"]
+        torch.optim.SGD(self.module.parameters(), lr=lr, momentum=0.9).step()


# %% wrong: a version for every microbatch, for ever
# is: slip
# says: versions of its weights, but .* under way need as many
class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer = module, optimizer
        self.versions, self.inputs, self.outputs = {}, {}, {}

    def forward(self, microbatch, x):
        weights = {
            n: p.detach().clone().requires_grad_() for n, p in self.module.named_parameters()
        }
        self.versions[microbatch] = weights
        self.inputs[microbatch] = x.detach().requires_grad_(x.is_floating_point())
        self.outputs[microbatch] = torch.func.functional_call(
            self.module, weights, (self.inputs[microbatch],)
        )
        return self.outputs[microbatch].detach()

    def backward(self, microbatch, gradient=None):
        self.outputs[microbatch].backward(gradient)
        for name, param in self.module.named_parameters():
            param.grad = self.versions[microbatch][name].grad
        self.optimizer.step()
        return self.inputs[microbatch].grad


# %% wrong: tokens are asked for a gradient
# is: form
# says: Tokens have no gradient
# base: what the wrong ones change
-        x = x.detach().requires_grad_(x.is_floating_point())
+        x = x.detach().requires_grad_()


# %% wrong: nothing is returned
# is: form
# says: the gradient that backward\(\d\) returns is None
# base: what the wrong ones change
-        x = x.detach().requires_grad_(x.is_floating_point())
@@
-        self.stash[microbatch] = weights, x, y
+        self.stash[microbatch] = weights, y
@@
-        weights, x, y = self.stash.pop(microbatch)
+        weights, y = self.stash.pop(microbatch)
@@
-        return x.grad


# %% wrong: the input is asked for a gradient, and not cut off
# is: form
# says: x comes with the graph of the stage before, so its own grad stays None
# base: what the wrong ones change
-        x = x.detach().requires_grad_(x.is_floating_point())
+        x = x.requires_grad_(x.is_floating_point())


# %% wrong: one version, that of the latest forward
# is: idea
# says: Keep a version for each microbatch in flight
# base: what the wrong ones change
-        weights = {
+        self.weights = weights = {
@@
-            param.grad = weights[name].grad
+            param.grad = self.weights[name].grad


# %% wrong: the step comes before the gradients are handed over
# is: slip
# says: First hand the gradients over, then step
from torch.func import functional_call


class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.kept = module, optimizer, {}

    def forward(self, microbatch, x):
        version = {
            n: p.detach().clone().requires_grad_() for n, p in self.module.named_parameters()
        }
        x = x.detach()
        if x.is_floating_point():
            x.requires_grad_()
        out = functional_call(self.module, version, (x,))
        self.kept[microbatch] = x, out, version
        return out.detach()

    def backward(self, microbatch, gradient=None):
        x, out, version = self.kept.pop(microbatch)
        out.backward(gradient)
        self.optimizer.step()
        for n, p in self.module.named_parameters():
            p.grad = version[n].grad
        return x.grad


# %% wrong: the gradients are never handed over
# is: idea
# says: The weights never change
import copy


class PipeDreamStage:
    def __init__(self, module, optimizer):
        self.net, self.update, self.waiting = module, optimizer, {}

    def forward(self, microbatch, x):
        twin = copy.deepcopy(self.net)
        entry = x.detach().requires_grad_() if x.is_floating_point() else x
        self.waiting[microbatch] = entry, twin(entry)
        return self.waiting[microbatch][1].detach()

    def backward(self, microbatch, gradient=None):
        entry, result = self.waiting.pop(microbatch)
        torch.autograd.backward([result], [gradient])
        self.update.step()
        return entry.grad


# %% right: functional
# base: what the wrong ones change
-        x = x.detach().requires_grad_(x.is_floating_point())
+        x = x.detach()
+        if x.is_floating_point():
+            x.requires_grad_()
@@
+        self.optimizer.zero_grad()
         return x.grad


# %% right: copies of the module
import copy


class PipeDreamStage(torch.nn.Module):
    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer = module, optimizer
        self.under_way = {}
        self.version = copy.deepcopy(module)

    def forward(self, microbatch, x):
        x = x.detach().clone().requires_grad_(x.is_floating_point())
        y = self.version(x)
        self.under_way[microbatch] = (self.version, x, y)
        return y

    def backward(self, microbatch, gradient=None):
        version, x, y = self.under_way.pop(microbatch)
        if gradient is None:
            gradient = torch.ones_like(y)
        version.zero_grad()
        torch.autograd.backward([y], [gradient])
        for new, old in zip(self.module.parameters(), version.parameters()):
            new.grad = old.grad.clone()
        version.zero_grad()
        self.optimizer.step()
        for param in self.module.parameters():
            param.grad = None
        self.version = copy.deepcopy(self.module)
        return x.grad if x.is_floating_point() else None
