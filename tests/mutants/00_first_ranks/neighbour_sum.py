# %% wrong: as it was, everybody receives first
# is: idea
# says: post all four messages together
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    dist.recv(from_left, left)
    dist.recv(from_right, right)
    dist.send(tensor, right)
    dist.send(tensor, left)
    return from_left + tensor + from_right


# %% wrong: everybody sends first
# is: slip
# says: post all four messages together
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    dist.send(tensor, right)
    dist.send(tensor, left)
    dist.recv(from_left, left)
    dist.recv(from_right, right)
    return from_left + tensor + from_right


# %% wrong: its own values left out
# is: slip
# says: the rank's own among them
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    sends = [dist.isend(tensor, right), dist.isend(tensor, left)]
    dist.recv(from_left, left)
    dist.recv(from_right, right)
    for handle in sends:
        handle.wait()
    return from_left + from_right


# %% wrong: one neighbour only
# is: slip
# says: The sum takes three values
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    from_left = torch.empty_like(tensor)
    handle = dist.isend(tensor, (rank + 1) % n)
    dist.recv(from_left, (rank - 1) % n)
    handle.wait()
    return from_left + tensor


# %% wrong: one buffer for both neighbours
# is: slip
# says: Two receives need two buffers
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    buffer = torch.empty_like(tensor)
    sends = [dist.isend(tensor, right), dist.isend(tensor, left)]
    dist.recv(buffer, left)
    dist.recv(buffer, right)
    for handle in sends:
        handle.wait()
    return buffer + tensor + buffer


# %% wrong: added into the tensor that is being sent
# is: slip
# says: was changed before wait|left alone
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    buffer = torch.empty_like(tensor)
    sends = [dist.isend(tensor, right), dist.isend(tensor, left)]
    dist.recv(buffer, left)
    tensor += buffer
    dist.recv(buffer, right)
    tensor += buffer
    for handle in sends:
        handle.wait()
    return tensor


# %% wrong: an all-reduce is another sum
# is: idea
# says: dist.all_reduce was called
def neighbour_sum(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result


# %% wrong: nobody waits for the sends
# is: slip
# says: returned without waiting for
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    dist.isend(tensor, right)
    dist.isend(tensor, left)
    dist.recv(from_left, left)
    dist.recv(from_right, right)
    return from_left + tensor + from_right


# %% wrong: the mean of the three
# is: slip
# says: return the plain sum
# base: all four posted together
-    return from_left + tensor + from_right
+    return (from_left + tensor + from_right) / 3


# %% wrong: added into the argument, after all waits
# is: slip
# says: left alone
# base: all four posted together
-    return from_left + tensor + from_right
+    tensor += from_left + from_right
+    return tensor


# %% wrong: both receives are from the left
# is: form
# says: all four messages must begin
# base: all four posted together
-        dist.P2POp(dist.irecv, from_right, right),
+        dist.P2POp(dist.irecv, from_right, left),



# %% right: all four posted together
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    messages = [
        dist.P2POp(dist.irecv, from_left, left),
        dist.P2POp(dist.irecv, from_right, right),
        dist.P2POp(dist.isend, tensor, right),
        dist.P2POp(dist.isend, tensor, left),
    ]
    for handle in dist.batch_isend_irecv(messages):
        handle.wait()
    return from_left + tensor + from_right


# %% right: sends begun first, one direction after the other
# on NCCL: so this run can hang there
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = tensor.clone()
    for step in (1, -1):
        buffer = torch.empty_like(tensor)
        handle = dist.isend(tensor, (rank + step) % n)
        dist.recv(buffer, (rank - step) % n)
        handle.wait()
        total += buffer
    return total
