# %% wrong: nothing is done
# is: form
# says: linear.weight has no gradient|embedding.weight has no gradient
def run_schedule(stage, actions, microbatches, group=None):
    return {}


# %% wrong: each microbatch is divided by its own count
# is: slip
# says: divided by its own number of targets
# base: receives by name, sends in passing
-                y = stage.loss(y, targets) / count
+                y = stage.loss(y, targets) / stage.count(targets)


# %% wrong: the mean of means
# is: slip
# says: the mean of the microbatches' means
# base: receives by name, sends in passing
-                y = stage.loss(y, targets) / count
+                y = stage.loss(y, targets) / stage.count(targets) / len(microbatches)


# %% wrong: the sum of all losses
# is: slip
# says: summed up, not averaged
# base: receives by name, sends in passing
-                y = stage.loss(y, targets) / count
+                y = stage.loss(y, targets)


# %% wrong: divided by the microbatches once more
# is: slip
# says: do not also divide by the number of microbatches
# base: receives by name, sends in passing
-                y = stage.loss(y, targets) / count
+                y = stage.loss(y, targets) / count / len(microbatches)


# %% wrong: targets that do not count are counted
# is: detail
# says: Targets that do not count
# base: receives by name, sends in passing
-    count = sum(int(stage.count(targets)) for _, targets in microbatches)
+    count = sum(targets.numel() for _, targets in microbatches)


# %% wrong: GPipe, whatever the schedule says
# is: idea
# says: All forwards came first, so this is GPipe
# base: receives by name, sends in passing
-    for action in actions[rank]:
+    for action in sorted(actions[rank], key=lambda one: one.kind == "B"):


# %% wrong: the gradients are zeros
# is: slip
# says: No gradient came back to this stage
# base: receives by name, sends in passing
-                gradient = torch.empty_like(y)
-                dist.recv(gradient, src=world(rank + 1), group=group, tag=2 * k + 1)
+                gradient = torch.zeros_like(y)
+                dist.recv(torch.empty_like(y), src=world(rank + 1), group=group, tag=2 * k + 1)


# %% wrong: old gradients are cleared
# is: slip
# says: were there before are gone
# base: receives by name, sends in passing
     count = sum(int(stage.count(targets)) for _, targets in microbatches)
+    stage.module.zero_grad()


# %% wrong: only the last microbatch counts
# is: slip
# says: Only microbatch \d counts
# base: receives by name, sends in passing
             x, y = kept.pop(k)
+            stage.module.zero_grad()


# %% wrong: graphs are kept to the end
# is: idea
# says: keeps .* bytes for backward
# base: receives by name, sends in passing
-            x, y = kept.pop(k)
+            x, y = kept[k]
@@
-                y.backward()
+                y.backward(retain_graph=True)
@@
-                y.backward(gradient)
+                y.backward(gradient, retain_graph=True)


# %% wrong: what came in is kept to the end
# is: idea
# says: microbatches' worth
# base: receives by name, sends in passing
-            x, y = kept.pop(k)
+            x, y = kept[k]


# %% wrong: copies of what came in and went out are kept to the end
# is: slip
# says: as the kernel counts its pages
# base: receives by name, sends in passing
     kept, works, losses = {}, [], {}
+    history = []
@@
             y = stage.module(x)
+            history.append((x.detach().clone(), y.detach().clone()))


# %% wrong: gradients that arrived and those that were sent are kept for a look afterwards
# is: slip
# says: as the kernel counts its pages
# base: receives by name, sends in passing
     kept, works, losses = {}, [], {}
+    gradients = {}
@@
                 dist.recv(gradient, src=world(rank + 1), group=group, tag=2 * k + 1)
+                gradients["from", k] = gradient
@@
-            if not stage.first:
-                works.append(
+            if not stage.first:
+                gradients["to", k] = x.grad.clone()
+                works.append(


# %% wrong: one backward through the sum of all losses
# is: idea
# says: All forwards came first|does all microbatches at once
def run_schedule(stage, actions, microbatches, group=None):
    me = dist.get_rank(group)
    peer = [r if group is None else dist.get_global_rank(group, r) for r in range(len(actions))]
    terms = sum(int(stage.count(t)) for _, t in microbatches)
    inputs, outputs, losses, pending = {}, {}, {}, []
    for _, kind, k in actions[me]:
        if kind != "F":
            continue
        inputs[k] = microbatches[k][0]
        if me > 0:
            inputs[k] = torch.zeros(tuple(stage.shape(microbatches[k][0])), dtype=stage.dtype)
            dist.recv(inputs[k], peer[me - 1], group=group, tag=k)
            inputs[k].requires_grad_(True)
        outputs[k] = stage.module(inputs[k])
        if me + 1 < len(actions):
            pending.append(dist.isend(outputs[k].detach(), peer[me + 1], group=group, tag=k))
        else:
            losses[k] = stage.loss(outputs[k], microbatches[k][1]) / terms
    if me + 1 == len(actions):
        sum(losses.values()).backward()
    for _, kind, k in actions[me]:
        if kind == "B" and me + 1 < len(actions):
            back = torch.zeros_like(outputs[k])
            dist.recv(back, peer[me + 1], group=group, tag=k)
            torch.autograd.backward(outputs[k], back)
        if kind == "B" and me > 0:
            pending.append(dist.isend(inputs[k].grad, peer[me - 1], group=group, tag=k))
    for one in pending:
        one.wait()
    return {k: one.detach() for k, one in losses.items()}


# %% wrong: sends wait for their receiver
# is: form
# says: waits for
def run_schedule(stage, actions, microbatches, group=None):
    rank, last = dist.get_rank(group), len(actions) - 1
    translate = (lambda r: r) if group is None else (lambda r: dist.get_global_rank(group, r))
    total = int(sum(stage.count(targets) for _, targets in microbatches))
    state, losses = {}, {}

    def fresh(k):
        return torch.empty(stage.shape(microbatches[k][0]), dtype=stage.dtype)

    for action in actions[rank]:
        k = action.microbatch
        if action.kind == "B":
            x, y = state.pop(k)
            grad = None
            if rank < last:
                grad = fresh(k)
                dist.recv(grad, translate(rank + 1), group=group)
            y.backward(grad)
            if rank:
                dist.send(x.grad, translate(rank - 1), group=group)
            continue
        if rank:
            x = fresh(k)
            dist.recv(x, translate(rank - 1), group=group)
            x.requires_grad_()
        else:
            x = microbatches[k][0]
        y = stage.module(x)
        if rank == last:
            y = stage.loss(y, microbatches[k][1]) / total
            losses[k] = y.item()
        state[k] = (x, y)
        if rank < last:
            dist.send(y.detach(), translate(rank + 1), group=group)
    return losses


# %% wrong: messages without names, received in one's own order
# is: form
# says: come in the order in which they were sent
# base: receives by name, sends in passing
-                dist.recv(x, src=world(rank - 1), group=group, tag=2 * k)
+                dist.recv(x, src=world(rank - 1), group=group)
@@
-                works.append((dist.isend(out, world(rank + 1), group=group, tag=2 * k), out))
+                works.append((dist.isend(out, world(rank + 1), group=group), out))
@@
-                dist.recv(gradient, src=world(rank + 1), group=group, tag=2 * k + 1)
+                dist.recv(gradient, src=world(rank + 1), group=group)
@@
-                works.append(
-                    (dist.isend(x.grad, world(rank - 1), group=group, tag=2 * k + 1), x.grad)
-                )
+                works.append((dist.isend(x.grad, world(rank - 1), group=group), x.grad))


# %% wrong: the last stage is off by one
# is: form
# says: Is something sent to a rank that does not exist
# base: receives by name, sends in passing
             y = stage.module(x)
-            if stage.last:
+            if stage.index == stage.length:


# %% wrong: outputs go to every rank
# is: form
# says: They are not neighbours
# base: receives by name, sends in passing
-                dist.recv(x, src=world(rank - 1), group=group, tag=2 * k)
+                for other in range(rank):
+                    dist.recv(x, src=world(other), group=group, tag=2 * k)
@@
-                works.append((dist.isend(out, world(rank + 1), group=group, tag=2 * k), out))
+                for other in range(len(actions)):
+                    if other > rank:
+                        works.append((dist.isend(out, world(other), group=group, tag=2 * k), out))


# %% wrong: outputs are broadcast
# is: form
# says: dist.broadcast was called
def run_schedule(stage, actions, microbatches, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    count = sum(stage.count(t) for _, t in microbatches)
    losses = {}
    for k, (x, t) in enumerate(microbatches):
        acts = [torch.empty(stage.shape(x), dtype=stage.dtype) for _ in range(size - 1)]
        for i in range(size - 1):
            if i == rank:
                mine = x if i == 0 else acts[i - 1].requires_grad_()
                y = stage.module(mine)
                acts[i] = y.detach().clone()
            src = i if group is None else dist.get_global_rank(group, i)
            dist.broadcast(acts[i], src, group=group)
        if rank == size - 1:
            mine = acts[-1].requires_grad_() if acts else x
            y = stage.loss(stage.module(mine), t) / count
            losses[k] = y.detach()
        for i in range(size - 1, 0, -1):
            grad = torch.empty_like(acts[i - 1])
            if i == rank:
                y.backward() if i == size - 1 else y.backward(held)
                grad = mine.grad
            src = i if group is None else dist.get_global_rank(group, i)
            dist.broadcast(grad, src, group=group)
            held = grad
        if rank == 0:
            y.backward() if size == 1 else y.backward(held)
    return losses


# %% wrong: every rank runs the whole model
# is: idea
# says: was called
import copy


def run_schedule(stage, actions, microbatches, group=None):
    parts = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, stage.module.state_dict(), group=group)
    whole = copy.deepcopy(parts)
    total = sum(stage.count(targets) for _, targets in microbatches)
    for inputs, targets in microbatches:
        x = inputs
        for part in whole:
            x = part["inner.linear.weight"] @ x
        (stage.loss(x, targets) / total).backward()
    return {}


# %% wrong: buffers of the default dtype
# is: form
# says: stage.shape\(inputs\), dtype=stage.dtype
# base: receives by name, sends in passing
-                x = torch.empty(stage.shape(inputs), dtype=stage.dtype, device=inputs.device)
+                x = torch.empty(stage.shape(inputs))


# %% wrong: tokens are asked for a gradient
# is: form
# says: Tokens have no gradient
# base: receives by name, sends in passing
-            x = inputs
+            x = inputs.requires_grad_()


# %% wrong: what comes in asks for no gradient
# is: form
# says: has no gradient|waits for|requires_grad_|Module|NoneType
# base: receives by name, sends in passing
-                x.requires_grad_()


# %% wrong: ranks of the group are taken for those of the world
# is: form
# says: not in the group|get_global_rank
# base: receives by name, sends in passing
-        return other if group is None else dist.get_global_rank(group, other)
+        return other


# %% wrong: shapes are sent first
# is: slip
# says: shapes from stage.shape
# base: receives by name, sends in passing
-                x = torch.empty(stage.shape(inputs), dtype=stage.dtype, device=inputs.device)
+                size = torch.empty(
+                    inputs.dim() + (stage.shape(inputs)[:-1] == inputs.shape), dtype=torch.int64
+                )
+                dist.recv(size, src=world(rank - 1), group=group, tag=1000 + k)
+                x = torch.empty(tuple(size.tolist()), dtype=stage.dtype)
@@
                 out = y.detach()
+                size = torch.tensor(out.shape)
+                works.append((dist.isend(size, world(rank + 1), group=group, tag=1000 + k), size))


# %% wrong: PyTorch's own stages
# is: form
# says: PyTorch's schedules and stages send and receive by themselves
def run_schedule(stage, actions, microbatches, group=None):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    made = PipelineStage(stage.module, stage.index, stage.length, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(made, len(microbatches), loss_fn=stage.loss)
    inputs, targets = (torch.cat(part) for part in zip(*microbatches))
    losses = []
    schedule.step(*([inputs] if stage.first else []), target=targets, losses=losses)
    return dict(enumerate(losses)) if stage.last else {}


# %% wrong: the whole loss in one
# is: form
# says: for each microbatch|part of the loss|parts of the loss
# base: receives by name, sends in passing
-    return losses
+    return {0: sum(losses.values())} if stage.last else {}


# %% wrong: None on the other ranks
# is: detail
# says: must return an empty dict
# base: receives by name, sends in passing
-    return losses
+    return losses if stage.last else None


# %% wrong: a barrier behind the messages
# is: slip
# says: Wait only for handles
from course_lib.pipeline import simulate


def run_schedule(stage, actions, microbatches, group=None):
    place, total = dist.get_rank(group), 0
    for _, targets in microbatches:
        total += stage.count(targets)
    parts, given, graphs = {}, {}, {}

    def passed(kind, k):
        if kind == "B":
            entered, left = graphs.pop(k)
            torch.autograd.backward(left, given.pop("B%d" % k, None))
            return None if stage.first else entered.grad
        entered = microbatches[k][0] if stage.first else given.pop("F%d" % k).requires_grad_()
        left = stage.module(entered)
        if stage.last:
            left = stage.loss(left, microbatches[k][1]).div(total)
            parts[k] = left.item()
        graphs[k] = entered, left
        return None if stage.last else left.detach()

    for event in simulate(actions).events:
        beside = event.rank - 1 + 2 * (event.action.kind == "F")
        if event.rank == place:
            result = passed(event.action.kind, event.action.microbatch)
            if result is not None:
                dist.send(result, group=group, group_dst=beside)
            result = None
        if beside == place:
            shape = stage.shape(microbatches[event.action.microbatch][0])
            name = event.action.kind + str(event.action.microbatch)
            given[name] = torch.empty(shape, dtype=stage.dtype)
            dist.recv(given[name], group=group, group_src=event.rank)
    dist.barrier(group=group)
    return parts


# %% wrong: what comes in is asked for no gradient, and none is sent
# is: form
# says: is x.grad None
from course_lib.pipeline import simulate


def run_schedule(stage, actions, microbatches, group=None):
    targets_in_all = sum(stage.count(one) for _, one in microbatches)
    mine, taken, outputs, of_loss = dist.get_rank(group), {}, {}, {}
    for rank, (_, kind, k), *_ in simulate(actions).events:
        to = rank + 1 if kind == "F" else rank - 1
        if to == mine:
            taken[kind, k] = torch.empty(stage.shape(microbatches[k][0]), dtype=stage.dtype)
            dist.recv(taken[kind, k], group=group, group_src=rank)
        if rank != mine:
            continue
        if kind == "F":
            outputs[k] = stage.module(microbatches[k][0] if stage.first else taken["F", k])
            sent = outputs[k].detach()
            if stage.last:
                outputs[k] = stage.loss(outputs[k], microbatches[k][1]) / targets_in_all
                of_loss[k], sent = outputs[k].detach(), None
        else:
            outputs.pop(k).backward(taken.pop(("B", k), None))
            sent = taken["F", k].grad if ("F", k) in taken else None
        if sent is not None:
            dist.send(sent, group=group, group_dst=to)
    return of_loss


# %% right: receives by name, sends in passing
# on NCCL: so this run can hang there
def run_schedule(stage, actions, microbatches, group=None):
    rank = dist.get_rank(group)
    count = sum(int(stage.count(targets)) for _, targets in microbatches)
    kept, works, losses = {}, [], {}

    def world(other):
        return other if group is None else dist.get_global_rank(group, other)

    for action in actions[rank]:
        k = action.microbatch
        inputs, targets = microbatches[k]
        if action.kind == "F":
            x = inputs
            if not stage.first:
                x = torch.empty(stage.shape(inputs), dtype=stage.dtype, device=inputs.device)
                dist.recv(x, src=world(rank - 1), group=group, tag=2 * k)
                x.requires_grad_()
            y = stage.module(x)
            if stage.last:
                y = stage.loss(y, targets) / count
                losses[k] = y.detach()
            else:
                out = y.detach()
                works.append((dist.isend(out, world(rank + 1), group=group, tag=2 * k), out))
            kept[k] = x, y
        else:
            x, y = kept.pop(k)
            if stage.last:
                y.backward()
            else:
                gradient = torch.empty_like(y)
                dist.recv(gradient, src=world(rank + 1), group=group, tag=2 * k + 1)
                y.backward(gradient)
            if not stage.first:
                works.append(
                    (dist.isend(x.grad, world(rank - 1), group=group, tag=2 * k + 1), x.grad)
                )
    for work, _ in works:
        work.wait()
    return losses


# %% right: one line of events for all ranks
from course_lib.pipeline import simulate


class Mail:
    def __init__(self, stage, batch, group):
        self.stage, self.batch, self.group = stage, batch, group
        self.coming, self.going = {}, []

    def peer(self, rank):
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def send(self, tensor, to):
        self.going = [pair for pair in self.going if not pair[1].is_completed()]
        self.going.append((tensor, dist.isend(tensor, self.peer(to), group=self.group)))

    def expect(self, kind, k, source):
        shape = self.stage.shape(self.batch[k][0])
        buffer = torch.empty(shape, dtype=self.stage.dtype, device=device())
        work = dist.irecv(buffer, self.peer(source), group=self.group)
        self.coming[kind, k] = buffer, work

    def get(self, kind, k):
        buffer, work = self.coming.pop((kind, k))
        work.wait()
        return buffer


def run_schedule(stage, actions, microbatches, group=None):
    rank = dist.get_rank(group)
    mail, alive, parts = Mail(stage, microbatches, group), {}, {}
    norm = 1 / float(sum(stage.count(y) for _, y in microbatches))
    for event in simulate(actions).events:
        where, kind, k = event.action
        towards = where + 1 if kind == "F" else where - 1
        if not 0 <= towards < len(actions):
            towards = None
        if towards == rank:
            mail.expect(kind, k, where)
        if where != rank:
            continue
        if kind == "F":
            x = microbatches[k][0] if stage.first else mail.get("F", k).requires_grad_()
            out = stage.module(x)
            if stage.last:
                out = norm * stage.loss(out, microbatches[k][1])
                parts[k] = float(out)
            alive[k] = (x, out)
            made = out.detach()
            del out
        else:
            x, out = alive.pop(k)
            torch.autograd.backward([out], None if stage.last else [mail.get("B", k)])
            made = x.grad
            del out
        if towards is not None:
            mail.send(made, towards)
        del x
    for _, work in mail.going:
        work.wait()
    return parts


# %% right: all receives posted at first, in the sender's order
# on NCCL: so this run can hang there
from collections import deque


def run_schedule(stage, actions, microbatches, group=None):
    me, p = dist.get_rank(group), len(actions)
    to_world = dist.get_process_group_ranks(group or dist.group.WORLD)
    total = torch.stack([stage.count(t) for _, t in microbatches]).sum()
    boxes = {}
    for other, kind in ((me - 1, "F"), (me + 1, "B")):
        if 0 <= other < p:
            for act in actions[other]:
                if act.kind == kind:
                    room = torch.zeros(
                        stage.shape(microbatches[act.microbatch][0]),
                        dtype=stage.dtype,
                        device=device(),
                    )
                    boxes[kind, act.microbatch] = (
                        room,
                        dist.irecv(room, to_world[other], group=group),
                    )
    out, result, graphs = deque(), {}, {}

    def post(tensor, other):
        out.append((dist.isend(tensor.contiguous(), to_world[other], group=group), tensor))

    def forward(k):
        x, t = microbatches[k]
        if ("F", k) in boxes:
            x, handle = boxes.pop(("F", k))
            handle.wait()
            x.requires_grad = True
        y = stage.module(x)
        if me == p - 1:
            y = stage.loss(y, t).div(total)
            result[k] = y.clone().detach()
        else:
            post(y.detach(), me + 1)
        graphs[k] = x, y

    def backward(k):
        x, y = graphs.pop(k)
        if ("B", k) in boxes:
            gradient, handle = boxes.pop(("B", k))
            handle.wait()
            y.backward(gradient)
        else:
            y.backward()
        if me:
            post(x.grad, me - 1)

    for act in actions[me]:
        {"F": forward, "B": backward}[act.kind](act.microbatch)
    while out:
        out.popleft()[0].wait()
    return result


# %% right: batches that look ahead
# on NCCL: NCCL has no tags
def run_schedule(stage, actions, microbatches, group=None):
    mine = actions[dist.get_rank(group)]
    i = dist.get_rank(group)
    denominator = sum(int(stage.count(y)) for _, y in microbatches)
    buffers, sends, saved, losses = {}, [], {}, {}

    def source(action):
        if action.kind == "F":
            return None if stage.first else i - 1
        return None if stage.last else i + 1

    def exchange(done, result, upcoming):
        ops, receives = [], 0
        if upcoming is not None and source(upcoming) is not None:
            x, _ = microbatches[upcoming.microbatch]
            room = torch.empty(tuple(stage.shape(x)), dtype=stage.dtype, device=x.device)
            tag = upcoming.microbatch + 1000 * (upcoming.kind == "B")
            ops.append(
                dist.P2POp(dist.irecv, room, group=group, group_peer=source(upcoming), tag=tag)
            )
            receives = 1
        if result is not None:
            to = i + 1 if done.kind == "F" else i - 1
            tag = done.microbatch + 1000 * (done.kind == "B")
            ops.append(dist.P2POp(dist.isend, result, group=group, group_peer=to, tag=tag))
        works = dist.batch_isend_irecv(ops) if ops else []
        sends.extend((work, result) for work in works[receives:])
        if receives:
            buffers[upcoming] = room, works[0]

    exchange(None, None, mine[0])
    for action, upcoming in zip(mine, [*mine[1:], None]):
        k = action.microbatch
        came = None
        if action in buffers:
            came, work = buffers.pop(action)
            work.wait()
        result = None
        if action.kind == "F":
            x = microbatches[k][0] if came is None else came.requires_grad_(True)
            y = stage.module(x)
            if stage.last:
                y = stage.loss(y, microbatches[k][1]) / denominator
                losses[k] = y.detach()
            else:
                result = y.detach()
            saved[k] = x, y
        else:
            x, y = saved.pop(k)
            y.backward(came)
            result = x.grad if i else None
        exchange(action, result, upcoming)
    for work, _ in sends:
        work.wait()
    return losses


# %% right: send and receive where the event of it stands
# on NCCL: let a rank compute only when its message is through
from course_lib.pipeline import simulate


def run_schedule(stage, actions, microbatches, group=None):
    rank, ranks = dist.get_rank(group), range(len(actions))
    count = sum(int(stage.count(targets)) for _, targets in microbatches)
    came, kept, losses = {}, {}, {}
    for event in simulate(actions).events:
        _, kind, k = event.action
        to = event.rank + (1 if kind == "F" else -1)
        inputs, targets = microbatches[k]
        if event.rank == rank:
            if kind == "F":
                x = inputs if stage.first else came.pop((kind, k)).requires_grad_()
                y = stage.module(x)
                if stage.last:
                    y = stage.loss(y, targets) / count
                    losses[k] = y.detach()
                kept[k], message = (x, y), y.detach()
            else:
                x, y = kept.pop(k)
                y.backward(None if stage.last else came.pop((kind, k)))
                message = x.grad
            if to in ranks:
                dist.send(message, group=group, group_dst=to)
            del x, y, message
        elif to == rank:
            came[kind, k] = torch.empty(
                stage.shape(inputs), dtype=stage.dtype, device=device()
            )
            dist.recv(came[kind, k], group=group, group_src=event.rank)
    return losses
