# %% wrong: everything sharded
# is: slip
# says: Your answer is ZeRO-3
answer_1 = 16 * 13 / 16
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: nothing sharded
# is: slip
# says: You counted 16 bytes per parameter, as without sharding
answer_1 = 16 * 13
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: the same values, so the same bytes
# is: slip
# says: Count the bytes of the all-reduce
answer_1 = 37.375
answer_2 = 1
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: everything K times
# is: slip
# says: the parameters are gathered once per step
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 8
answer_4 = 19
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: parts of a GPU
# is: slip
# says: A GPU cannot be divided, so
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 16 * 70 / 60
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: weights only
# is: slip
# says: The weights alone are 140 GB
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 3
answer_5 = "offload"
answer_6 = "autograd"

# %% wrong: shards over one rank
# is: slip
# says: sharding over 1 rank saves nothing
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "stage 3"
answer_6 = "autograd"

# %% wrong: the optimizer holds freed weights
# is: slip
# says: The optimizer knows only the shards
answer_1 = 37.375
answer_2 = 1.5
answer_3 = 4.5
answer_4 = 19
answer_5 = "offload"
answer_6 = "the optimizer"

# %% wrong: left open
# is: form
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
