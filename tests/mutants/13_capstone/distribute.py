# %% base: both classes
def distribute(model, how):
    if how == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


# %% wrong: the model alone is sharded
# is: idea
# says: parameters at the same time, but a block has
# base: both classes
-        for block in model.blocks:
-            fully_shard(block)


# %% wrong: all blocks are one unit
# is: idea
# says: shard each block first
# base: both classes
-        for block in model.blocks:
-            fully_shard(block)
+        fully_shard(list(model.blocks))


# %% wrong: blocks stay whole after forward
# is: idea
# says: Blocks stayed whole after their forward
# base: both classes
-            fully_shard(block)
+            fully_shard(block, reshard_after_forward=False)


# %% wrong: DDP for fsdp
# is: idea
# says: With "fsdp" a rank keeps 1/n of each parameter
def distribute(model, how):
    if how == "one":
        return model
    return torch.nn.parallel.DistributedDataParallel(model)


# %% wrong: nothing is done
# is: idea
# says: Each rank trained the model it made itself
def distribute(model, how):
    return model


# %% wrong: fsdp does nothing
# is: idea
# says: Each rank trained its own copy, and the gradients never met
def distribute(model, how):
    return torch.nn.parallel.DistributedDataParallel(model) if how == "ddp" else model


# %% wrong: the blocks alone are sharded
# is: slip
# says: each rank trained its own embedding and head
# base: both classes
-        fully_shard(model)


# %% wrong: the model first, then its blocks
# is: form
# says: Shard from the inside out
# base: both classes
-        for block in model.blocks:
-            fully_shard(block)
         fully_shard(model)
+        for block in model.blocks:
+            fully_shard(block)


# %% wrong: the list of blocks is sharded
# is: form
# says: A list of blocks has no forward
# base: both classes
-        for block in model.blocks:
-            fully_shard(block)
+        fully_shard(model.blocks)


# %% wrong: DataParallel
# is: slip
# says: knows no other ranks
# base: both classes
-        from torch.nn.parallel import DistributedDataParallel
-
-        return DistributedDataParallel(model)
+        return torch.nn.DataParallel(model)


# %% wrong: the module inside DDP
# is: slip
# says: the gradients never met
# base: both classes
-        return DistributedDataParallel(model)
+        return DistributedDataParallel(model).module


# %% wrong: hooks that average, and no broadcast
# is: slip
# says: the ranks began with different models
# base: both classes
-        from torch.nn.parallel import DistributedDataParallel
-
-        return DistributedDataParallel(model)
+        def average(param):
+            dist.all_reduce(param.grad)
+            param.grad /= dist.get_world_size()
+
+        for param in model.parameters():
+            param.register_post_accumulate_grad_hook(average)


# %% wrong: a broadcast, and hooks that add
# is: slip
# says: The gradients of the ranks were added
# base: both classes
-        from torch.nn.parallel import DistributedDataParallel
-
-        return DistributedDataParallel(model)
+        for param in model.parameters():
+            dist.broadcast(param.data, 0)
+            param.register_post_accumulate_grad_hook(lambda param: dist.all_reduce(param.grad))


# %% wrong: the gradients of DDP are divided once more
# is: slip
# says: The class has divided by the number of ranks already
# base: both classes
-        return DistributedDataParallel(model)
+        for param in model.parameters():
+            param.register_hook(lambda grad: grad / dist.get_world_size())
+        return DistributedDataParallel(model)


# %% wrong: fully_shard for ddp
# is: slip
# says: With "ddp" each rank has the whole model
def distribute(model, how):
    from torch.distributed.fsdp import fully_shard

    if how == "one":
        return model
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


# %% wrong: fsdp returns nothing
# is: form
# says: `fully_shard` changes the model in place
def distribute(model, how):
    if how == "one":
        return model
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


# %% wrong: device_ids on the CPU
# is: form
# says: Leave `device_ids` out
# base: both classes
-        return DistributedDataParallel(model)
+        return DistributedDataParallel(model, device_ids=[dist.get_rank()])


# %% wrong: a group for each rank
# is: form
# says: A new process group opens sockets
# base: both classes
-        return DistributedDataParallel(model)
+        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
+        return DistributedDataParallel(model, process_group=groups[dist.get_rank()])


# %% right: a mesh of all ranks
# base: both classes
-        for block in model.blocks:
-            fully_shard(block)
-        fully_shard(model)
+        from torch.distributed.device_mesh import init_device_mesh
+
+        mesh = init_device_mesh(device().type, (dist.get_world_size(),))
+        for block in model.blocks:
+            fully_shard(block, mesh=mesh)
+        fully_shard(model, mesh=mesh)


# %% right: the last block stays, since backward begins with it
# base: both classes
-            fully_shard(block)
+            fully_shard(block, reshard_after_forward=block is not model.blocks[-1])


# %% right: embedding and head are units of their own
# base: both classes
-        fully_shard(model)
+        fully_shard(model.token_embedding)
+        fully_shard([model.norm, model.head])
+        fully_shard(model)


# %% right: finer units, and DDP with options
# base: both classes
-        return DistributedDataParallel(model)
+        return DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
@@
-            fully_shard(block)
+            fully_shard(block.attention)
+            fully_shard(block.mlp)
+            fully_shard(block)


# %% right: FSDP of the first kind, with a policy
# base: both classes
-        from torch.distributed.fsdp import fully_shard
-
-        for block in model.blocks:
-            fully_shard(block)
-        fully_shard(model)
+        from torch.distributed.fsdp import FullyShardedDataParallel
+        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
+
+        policy = ModuleWrapPolicy({type(model.blocks[0])})
+        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device())
