# %% wrong: everything sharded
# says: That is ZeRO-3
answer_1 = 16 * 13 / 16
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: nothing sharded
# says: That is without sharding
answer_1 = 16 * 13
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: the same values, so the same bytes
# says: count the bytes of the all-reduce
answer_1 = 37.375
answer_2 = 1
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: everything K times
# says: the parameters are gathered once a step
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 8
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: parts of a GPU
# says: GPUs are whole
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 16 * 70 / 60
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: weights only
# says: The weights alone are 140 GB
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 3
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: shards over one rank
# says: sharding over 1 rank saves nothing
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "stage 3"
answer_6 = "autograd"

# %% wrong: the optimizer holds freed weights
# says: The optimizer knows the shards alone
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "the optimizer"

# %% wrong: left open
# says: answer_3 is not answered yet
answer_1 = 37.375
answer_2 = 1.5
answer_3 = ...
answer_4 = 19
answer_5 = "offload"
answer_6 = ""

# %% right: computed
answer_1 = 2 * 13 + 14 * 13 / 16
answer_2 = 3 / 2
answer_3 = (8 + 1) / 2
answer_4 = -(-16 * 70 // 60)
answer_5 = "offload"
answer_6 = "autograd"

# %% right: rounded, in capitals
answer_1 = 37.4
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "Offload"
answer_6 = "Autograd"
