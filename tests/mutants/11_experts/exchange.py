# %% wrong: without a backward
# is: idea
# says: an all-to-all has no backward of its own
# base: a Function whose backward is the reverse
-    return Exchange.apply(rows, list(send), list(receive), group)
+    return all_to_all(rows.detach(), send, receive, group)


# %% wrong: a collective on a tensor with a graph
# is: idea
# says: an all-to-all has no backward of its own
# base: a Function whose backward is the reverse
-    return Exchange.apply(rows, list(send), list(receive), group)
+    return all_to_all(rows, send, receive, group)


# %% wrong: all rows to all ranks
# is: idea
# says: the rows for other ranks
def gathered(rows, send, group):
    """All rows, and the numbers that go from each rank to each."""
    n = dist.get_world_size(group)
    mine = torch.tensor(send, device=rows.device)
    counts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(counts, mine, group=group)
    counts = torch.stack(counts)
    longest = int(counts.sum(1).max())
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    everything = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(everything, padded, group=group)
    return everything, counts.tolist()


def picked(rows, send, group):
    rank = dist.get_rank(group)
    everything, counts = gathered(rows, send, group)
    parts = []
    for of_rank, sizes in zip(everything, counts):
        start = sum(sizes[:rank])
        parts.append(of_rank[start : start + sizes[rank]])
    return torch.cat(parts)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.rest = receive, group
        return picked(rows, send, group)

    @staticmethod
    def backward(ctx, grad):
        return picked(grad, *ctx.rest), None, None, None


def exchange(rows, send, receive, group=None):
    return Exchange.apply(rows, send, receive, group)


# %% wrong: each rank broadcasts its rows
# is: idea
# says: the rows for other ranks
class Exchange(torch.autograd.Function):
    @staticmethod
    def go(rows, send, receive, group):
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        parts = []
        for source in range(n):
            sizes = torch.tensor(send, device=rows.device)
            dist.broadcast(sizes, group_src=source, group=group)
            of_source = rows.contiguous() if source == rank else rows.new_empty(int(sizes.sum()), rows.shape[1])
            dist.broadcast(of_source, group_src=source, group=group)
            parts.append(of_source.split(sizes.tolist())[rank])
        return torch.cat(parts)

    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.rest = receive, send, group
        return Exchange.go(rows, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return Exchange.go(grad, *ctx.rest), None, None, None


def exchange(rows, send, receive, group=None):
    return Exchange.apply(rows, send, receive, group)


# %% wrong: backward with forward's splits
# is: slip
# says: In backward the two lists change places
# base: a Function whose backward is the reverse
-        ctx.back = receive, send, group
+        ctx.back = send, receive, group


# %% wrong: the lists change places forward
# is: form
# says: Input splits say how many rows go to each rank
# base: a Function whose backward is the reverse
-    return Exchange.apply(rows, list(send), list(receive), group)
+    return Exchange.apply(rows, list(receive), list(send), group)


# %% wrong: the output has as many rows as the input
# is: form
# says: Output splits say how many rows come from each rank
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
+    came = torch.empty_like(rows)


# %% wrong: parts padded to the largest
# is: slip
# says: rows of padding do not have to travel
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
-    return came
+    n = len(send)
+    most = torch.tensor([max(send)], device=rows.device)
+    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
+    padded = rows.new_zeros(n, int(most), *rows.shape[1:])
+    for place, part in zip(padded, rows.split(send)):
+        place[: len(part)] = part
+    came = torch.empty_like(padded)
+    dist.all_to_all_single(came, padded, group=group)
+    return torch.cat([part[:size] for part, size in zip(came, receive)])


# %% wrong: gradients as a mean
# is: slip
# says: so nothing is averaged
# base: a Function whose backward is the reverse
-        return all_to_all(grad, *ctx.back), None, None, None
+        grad = all_to_all(grad, *ctx.back)
+        return grad / dist.get_world_size(ctx.back[2]), None, None, None


# %% wrong: the own part first
# is: slip
# says: whichever arrived first
# base: sends and receives in one batch
-    return torch.cat(parts)
+    return torch.cat([parts[me], *parts[:me], *parts[me + 1 :]])


# %% wrong: the own part is not copied
# is: slip
# says: the rank's own part is missing|The rank's own part is missing
# base: sends and receives in one batch
-            parts[i].copy_(outgoing[i])
+            parts[i].zero_()


# %% wrong: the parts go back in another order
# is: slip
# says: Gradients that come from rank i belong to the rows
# base: sends and receives in one batch
-        return across(grad, *ctx.back), None, None, None
+        receive, send, group = ctx.back
+        return torch.cat(across(grad, receive, send, group).split(send)[::-1]), None, None, None


# %% wrong: a rank without rows returns early
# is: slip
# says: must also call the exchange, because
# base: a Function whose backward is the reverse
-    return Exchange.apply(rows, list(send), list(receive), group)
+    if len(rows) == 0:
+        return rows.new_zeros(sum(receive), *rows.shape[1:])
+    return Exchange.apply(rows, list(send), list(receive), group)


# %% wrong: all ranks, whatever the group
# is: slip
# says: Do you pass the group everywhere
# base: a Function whose backward is the reverse
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
+    dist.all_to_all_single(came, rows.contiguous(), receive, send)


# %% wrong: a list of tensors
# is: form
# says: cuts one tensor by its split sizes
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
-    return came
+    parts = [rows.new_empty(size, *rows.shape[1:]) for size in receive]
+    dist.all_to_all(parts, list(rows.contiguous().split(send)), group=group)
+    return torch.cat(parts)


# %% wrong: the rows are written over
# is: slip
# says: write into your own tensor
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
-    return came
+    came = rows.new_empty(sum(receive), *rows.shape[1:])
+    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
+    with torch.no_grad():
+        rows.zero_()
+    return came


# %% wrong: a gradient for each argument is missing
# is: slip
# says: None for each other argument of forward
# base: a Function whose backward is the reverse
-        return all_to_all(grad, *ctx.back), None, None, None
+        return all_to_all(grad, *ctx.back)


# %% wrong: PyTorch's function with a backward
# is: form
# says: Write a torch.autograd.Function with a backward
import torch.distributed.nn.functional as differentiated


def exchange(rows, send, receive, group=None):
    came = rows.new_empty(sum(receive), *rows.shape[1:])
    group = group or dist.group.WORLD
    return differentiated.all_to_all_single(came, rows, receive, send, group=group)


# %% wrong: ours by reference
# is: form
# says: write your own
from course_lib.experts.all_to_all import exchange


# %% wrong: all rows to all ranks, as objects
# is: idea
# says: the rows for other ranks
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.back = receive, send, group
        return gathered(rows, send, group)

    @staticmethod
    def backward(ctx, grad):
        receive, _, group = ctx.back
        return gathered(grad, receive, group), None, None, None


def gathered(rows, send, group):
    everything = [None] * dist.get_world_size(group)
    dist.all_gather_object(everything, rows.split(send), group=group)
    return torch.cat([parts[dist.get_rank(group)] for parts in everything])


def exchange(rows, send, receive, group=None):
    return Exchange.apply(rows, send, receive, group)


# %% wrong: backward gives zeros
# is: idea
# says: The gradients are zeros
# base: a Function whose backward is the reverse
-        return all_to_all(grad, *ctx.back), None, None, None
+        return grad.new_zeros(sum(ctx.back[1]), *grad.shape[1:]), None, None, None


# %% wrong: without split sizes
# is: form
# says: Without split sizes every rank gets an equal part
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
+    came = torch.empty_like(rows)
+    dist.all_to_all_single(came, rows.contiguous(), group=group)


# %% wrong: room for one number a row
# is: form
# says: rows have the shape of the rows that are sent
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
+    came = rows.new_empty(sum(receive))


# %% wrong: the dtype is the default
# is: detail
# says: with the dtype of the tensor that is sent
# base: a Function whose backward is the reverse
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
+    came = torch.empty(sum(receive), *rows.shape[1:])


# %% wrong: lists are saved as tensors are
# is: form
# says: save_for_backward keeps tensors
# base: a Function whose backward is the reverse
-        ctx.back = receive, send, group
+        ctx.save_for_backward(receive, send, group)


# %% wrong: a Function that is not applied
# is: form
# says: Call your Function by its `apply`
# base: a Function whose backward is the reverse
-    return Exchange.apply(rows, list(send), list(receive), group)
+    return Exchange(rows, list(send), list(receive), group)


# %% wrong: forward of a Function, called as a method
# is: idea
# says: and call it by its `apply`
# base: a Function whose backward is the reverse
-    return Exchange.apply(rows, list(send), list(receive), group)
+    return Exchange.forward(Exchange(), rows.detach(), list(send), list(receive), group)


# %% wrong: gradients stay where they are
# is: idea
# says: so exchange the gradients as well
# base: a Function whose backward is the reverse
-        return all_to_all(grad, *ctx.back), None, None, None
+        return grad, None, None, None


# %% right: a Function whose backward is the reverse
def all_to_all(rows, send, receive, group):
    came = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
    return came


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.back = receive, send, group
        return all_to_all(rows, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return all_to_all(grad, *ctx.back), None, None, None


def exchange(rows, send, receive, group=None):
    return Exchange.apply(rows, list(send), list(receive), group)


# %% right: sends and receives in one batch
def across(rows, send, receive, group):
    me = dist.get_rank(group)
    outgoing = rows.contiguous().split(send)
    parts = [rows.new_empty(size, *rows.shape[1:]) for size in receive]
    batch = []
    for i in range(len(send)):
        if i == me:
            parts[i].copy_(outgoing[i])
            continue
        if send[i]:
            batch.append(dist.P2POp(dist.isend, outgoing[i], group=group, group_peer=i))
        if receive[i]:
            batch.append(dist.P2POp(dist.irecv, parts[i], group=group, group_peer=i))
    if batch:
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    return torch.cat(parts)


class Across(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.back = receive, send, group
        return across(rows, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return across(grad, *ctx.back), None, None, None


def exchange(rows, send, receive, group=None):
    return Across.apply(rows, send, receive, group)


# %% right: backward calls the function again
class Again(torch.autograd.Function):
    @staticmethod
    def forward(rows, send, receive, group):
        came = rows.new_zeros(sum(receive), rows.shape[1])
        dist.all_to_all_single(came, rows.contiguous(), receive, send, group, async_op=True).wait()
        return came

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.send, ctx.receive, ctx.group = inputs[1:]

    @staticmethod
    def backward(ctx, grad):
        return exchange(grad, ctx.receive, ctx.send, ctx.group), None, None, None


def exchange(rows, send, receive, group=None):
    return Again.apply(rows, send, receive, group)


# %% right: a hook in place of a Function
def exchange(rows, send, receive, group=None):
    def there(x, out_of, into):
        y = x.new_empty(sum(into), x.shape[1])
        dist.all_to_all_single(y, x.detach().contiguous(), into, out_of, group=group)
        return y

    came = there(rows, send, receive).requires_grad_()
    if not torch.is_grad_enabled():
        return came

    class Link(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, rows):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return None, there(grad, receive, send)

    return Link.apply(came.detach(), rows)
