# %% base: what the wrong ones change
class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000, group=None):
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.group = group
        self.good, self.found = 0, None

    def scale_loss(self, loss):
        return loss * self.scale

    def unscale_(self, optimizer):
        if self.found is not None:
            raise RuntimeError("unscale_ is called once a step")
        bad = torch.zeros(1)
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                param.grad /= self.scale
                if not param.grad.isfinite().all():
                    bad.fill_(1)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
        self.found = bad.item() > 0

    def step(self, optimizer):
        if self.found is None:
            self.unscale_(optimizer)
        if not self.found:
            optimizer.step()
        return not self.found

    def update(self):
        if self.found:
            self.scale *= self.backoff
            self.good = 0
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale *= self.growth
                self.good = 0
        self.found = None


# %% wrong: each rank decides alone
# is: idea
# says: The scaler decided from the rank's own gradients
# base: what the wrong ones change
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)


# %% wrong: the findings are averaged and rounded
# is: idea
# says: One rank's infinity was outvoted
# base: what the wrong ones change
-        self.found = bad.item() > 0
+        self.found = round(bad.item() / dist.get_world_size(self.group)) > 0
@@
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        dist.all_reduce(bad, group=self.group)


# %% wrong: the least of the findings
# is: idea
# says: neither a MIN nor a mean
# base: what the wrong ones change
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        dist.all_reduce(bad, op=dist.ReduceOp.MIN, group=self.group)


# %% wrong: exactly one finding counts
# is: slip
# says: Two ranks found an infinity
# base: what the wrong ones change
-        self.found = bad.item() > 0
+        self.found = bad.item() == 1
@@
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        dist.all_reduce(bad, group=self.group)


# %% wrong: the count is never reset
# is: slip
# says: not reset by growth
# base: what the wrong ones change
-            self.scale *= self.backoff
-            self.good = 0
+            self.scale *= self.backoff
@@
-            if self.good == self.interval:
-                self.scale *= self.growth
-                self.good = 0
+            if self.good >= self.interval:
+                self.scale *= self.growth


# %% wrong: the first rank decides
# is: idea
# says: The first rank's finding decided for all
# base: what the wrong ones change
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        first = 0 if self.group is None else dist.get_process_group_ranks(self.group)[0]
+        dist.broadcast(bad, first, group=self.group)


# %% wrong: the group is forgotten
# is: slip
# says: An infinity outside of `group` counted
# base: what the wrong ones change
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        dist.all_reduce(bad, op=dist.ReduceOp.MAX)


# %% wrong: the scale is not divided out
# is: slip
# says: gradients are 65,536 times too large, and so is a step of SGD
# base: what the wrong ones change
-                param.grad /= self.scale


# %% wrong: step divides once more
# is: slip
# says: After unscale_, the step divided by the scale once more
# base: what the wrong ones change
-        if not self.found:
-            optimizer.step()
+        elif not self.found:
+            for group in optimizer.param_groups:
+                for param in group["params"]:
+                    if param.grad is not None:
+                        param.grad /= self.scale
+        if not self.found:
+            optimizer.step()


# %% wrong: a caller who does not unscale
# is: slip
# says: Without a call of unscale_, nothing was divided
# base: what the wrong ones change
-        if self.found is None:
-            self.unscale_(optimizer)
-        if not self.found:
-            optimizer.step()
+        if self.found is None:
+            scale, self.scale = self.scale, 1.0
+            self.unscale_(optimizer)
+            self.scale = scale
+        if not self.found:
+            optimizer.step()


# %% wrong: one skip, two backoffs
# is: slip
# says: the scale fell twice
# base: what the wrong ones change
-        if not self.found:
-            optimizer.step()
-        return not self.found
+        if not self.found:
+            optimizer.step()
+        else:
+            self.scale *= self.backoff
+        return not self.found


# %% wrong: growth after interval + 1
# is: slip
# says: grows one step too late
# base: what the wrong ones change
-            self.good += 1
-            if self.good == self.interval:
-                self.scale *= self.growth
-                self.good = 0
+            if self.good == self.interval:
+                self.scale *= self.growth
+                self.good = -1
+            self.good += 1


# %% wrong: the count goes on over a skip
# is: slip
# says: not reset by a skip
# base: what the wrong ones change
-            self.scale *= self.backoff
-            self.good = 0
+            self.scale *= self.backoff


# %% wrong: the count goes on over a growth
# is: slip
# says: not reset by growth
# base: what the wrong ones change
-            if self.good == self.interval:
-                self.scale *= self.growth
-                self.good = 0
+            if self.good >= self.interval:
+                self.scale *= self.growth


# %% wrong: skipped steps count as good ones
# is: slip
# says: A skipped step was counted as a good one
# base: what the wrong ones change
-            self.scale *= self.backoff
-            self.good = 0
-        else:
-            self.good += 1
-            if self.good == self.interval:
-                self.scale *= self.growth
-                self.good = 0
+            self.scale *= self.backoff
+        self.good += 1
+        if self.good == self.interval:
+            self.scale *= self.growth
+            self.good = 0


# %% wrong: a comparison that NaN never fulfils
# is: slip
# says: every comparison with NaN is false
# base: what the wrong ones change
-                if not param.grad.isfinite().all():
+                if (param.grad.abs() > torch.finfo(param.grad.dtype).max).any():


# %% wrong: minus infinity is not seen
# is: slip
# says: -inf was not seen
# base: what the wrong ones change
-                if not param.grad.isfinite().all():
+                if ((param.grad == math.inf) | param.grad.isnan()).any():


# %% wrong: the last parameter's finding overwrites the others
# is: slip
# says: Only the last parameter decided
# base: what the wrong ones change
-                if not param.grad.isfinite().all():
-                    bad.fill_(1)
+                bad.fill_(not param.grad.isfinite().all())


# %% wrong: a bound as if numbers were stored in fp16
# is: slip
# says: Large gradients that are finite were taken for an infinity
# base: what the wrong ones change
-                if not param.grad.isfinite().all():
+                if not bool((param.grad.abs() <= 65504).all()):


# %% wrong: a sum stands for its elements
# is: detail
# says: Large gradients that are finite were taken for an infinity
# base: what the wrong ones change
-                param.grad /= self.scale
-                if not param.grad.isfinite().all():
-                    bad.fill_(1)
+                if not param.grad.sum().isfinite():
+                    bad.fill_(1)
+                param.grad /= self.scale


# %% wrong: the first group of parameters alone
# is: slip
# says: first group of parameters was looked at
# base: what the wrong ones change
-                if not param.grad.isfinite().all():
+                if group is optimizer.param_groups[0] and not param.grad.isfinite().all():


# %% wrong: the gradient is zeroed, and the step taken
# is: idea
# says: momentum moved the weights
# base: what the wrong ones change
-        if not self.found:
-            optimizer.step()
-        return not self.found
+        if self.found:
+            for group in optimizer.param_groups:
+                for param in group["params"]:
+                    if param.grad is not None:
+                        param.grad.zero_()
+        optimizer.step()
+        return not self.found


# %% wrong: the bad gradients alone are left out
# is: idea
# says: Parameters with finite gradients moved
# base: what the wrong ones change
-        if not self.found:
-            optimizer.step()
-        return not self.found
+        for group in optimizer.param_groups:
+            for param in group["params"]:
+                if param.grad is not None and not param.grad.isfinite().all():
+                    param.grad = None
+        optimizer.step()
+        return not self.found


# %% wrong: the step is taken all the same
# is: idea
# says: The step was taken although a gradient was infinite or NaN
# base: what the wrong ones change
-        if not self.found:
-            optimizer.step()
-        return not self.found
+        optimizer.step()
+        return not self.found


# %% wrong: backoff is one over growth
# is: slip
# says: `backoff` is a factor of its own
# base: what the wrong ones change
-            self.scale *= self.backoff
+            self.scale /= self.growth


# %% wrong: the scale stays
# is: slip
# says: the next one overflows again
# base: what the wrong ones change
-            self.scale *= self.backoff


# %% wrong: a second unscale_ divides again
# is: slip
# says: A second unscale_ before update divides by the scale again
# base: what the wrong ones change
-        if self.found is not None:
-            raise RuntimeError("unscale_ is called once a step")


# %% wrong: a second unscale_ passes in silence
# is: slip
# says: a second unscale_ before update was not refused
# base: what the wrong ones change
-            raise RuntimeError("unscale_ is called once a step")
+            return


# %% wrong: every gradient is all-reduced
# is: slip
# says: whether any is infinite is one number
# base: what the wrong ones change
-        bad = torch.zeros(1)
-        for group in optimizer.param_groups:
-            for param in group["params"]:
-                if param.grad is None:
-                    continue
-                param.grad /= self.scale
-                if not param.grad.isfinite().all():
-                    bad.fill_(1)
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        size = max(sum(p.numel() for p in group["params"]) for group in optimizer.param_groups)
+        bad = torch.zeros(100 * size)
+        for group in optimizer.param_groups:
+            for param in group["params"]:
+                if param.grad is None:
+                    continue
+                param.grad /= self.scale
+                if not param.grad.isfinite().all():
+                    bad.fill_(1)
+        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+        bad = bad.amax()


# %% wrong: an all-reduce for each gradient
# is: slip
# says: You send one message for each gradient
# base: what the wrong ones change
-                if not param.grad.isfinite().all():
-                    bad.fill_(1)
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+                own = torch.ones(1) - param.grad.isfinite().all().float()
+                dist.all_reduce(own, op=dist.ReduceOp.MAX, group=self.group)
+                bad += own


# %% wrong: a rank without gradients leaves
# is: slip
# says: even a rank without gradients
# base: what the wrong ones change
-        bad = torch.zeros(1)
+        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
+        if all(grad is None for grad in grads):
+            self.found = False
+            return
+        bad = torch.zeros(1)


# %% wrong: a parameter without gradient
# is: slip
# says: Pass over parameters without a gradient
# base: what the wrong ones change
-                if param.grad is None:
-                    continue


# %% wrong: step returns nothing
# is: slip
# says: must return True if the step was taken
# base: what the wrong ones change
-        return not self.found


# %% wrong: the loss is scaled in place
# is: slip
# says: scale_loss wrote into the loss
# base: what the wrong ones change
-        return loss * self.scale
+        return loss.mul_(self.scale)


# %% wrong: PyTorch's own
# is: idea
# says: PyTorch's scaler is the answer
class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000, group=None):
        self.scaler = torch.amp.GradScaler("cpu", scale, growth, backoff, interval)

    def scale_loss(self, loss):
        return self.scaler.scale(loss)

    def unscale_(self, optimizer):
        self.scaler.unscale_(optimizer)

    def step(self, optimizer):
        self.scaler.step(optimizer)
        return True

    def update(self):
        self.scaler.update()


# %% right: PyTorch's fused check
class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000, group=None):
        self.value, self.group = torch.tensor(scale), group
        self.factors, self.interval = (growth, backoff), interval
        self.streak = 0
        self.state = "ready"

    def scale_loss(self, loss):
        return loss * self.value

    def unscale_(self, optimizer):
        if self.state != "ready":
            raise RuntimeError("already unscaled")
        grads = [
            p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        found = torch.zeros(1, device=grads[0].device if grads else device())
        if grads:
            inverse = (1 / self.value).to(found.device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        self.state = "bad" if found.item() else "good"

    def step(self, optimizer):
        if self.state == "ready":
            self.unscale_(optimizer)
        if self.state == "good":
            optimizer.step()
            return True
        return False

    def update(self):
        growth, backoff = self.factors
        if self.state == "bad":
            self.value, self.streak = self.value * backoff, 0
        else:
            self.streak += 1
            if self.streak % self.interval == 0:
                self.value = self.value * growth
                self.streak = 0
        self.state = "ready"


# %% right: the number of bad ranks, added
# base: what the wrong ones change
-        bad = torch.zeros(1)
+        bad = torch.zeros((), dtype=torch.int32, device=device())
@@
-                if not param.grad.isfinite().all():
-                    bad.fill_(1)
-        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
+                if (param.grad - param.grad).abs().sum() != 0:  # inf - inf is NaN
+                    bad.fill_(1)
+        dist.all_reduce(bad, group=self.group)


# %% right: one byte from each rank
# base: what the wrong ones change
-        bad = torch.zeros(1)
+        bad = torch.zeros(1, dtype=torch.uint8, device=device())
