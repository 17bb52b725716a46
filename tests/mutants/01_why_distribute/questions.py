# %% wrong: every layer's input
# is: slip
# says: Only every fourth layer keeps its input
answer_1 = 343.6
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: one byte a number
# is: slip
# says: A number in 16 bits has two bytes
answer_1 = 42.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: divided by eight
# is: slip
# says: do not divide a checkpoint, so each keeps all 20 in full
answer_1 = 10.74
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: in bytes
# is: slip
# says: is in bytes, but the question asks for GB
answer_1 = 85.9e9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: at the peak
# is: slip
# says: A GPU reaches 40 % of its peak
answer_1 = 85.9
answer_2 = 2355
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: forward alone
# is: slip
# says: forward and backward are 6
answer_1 = 85.9
answer_2 = 2826
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: the plan's number
# is: slip
# says: is the plan's number
answer_1 = 85.9
answer_2 = 2.5
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: the weights
# is: slip
# says: 7B parameters are 28 GB
answer_1 = 85.9
answer_2 = 942
answer_3 = "the weights"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: the scores
# is: slip
# says: 32 times
answer_1 = 85.9
answer_2 = 942
answer_3 = "one layer's scores"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: attention as large as the MLP
# is: slip
# says: attention with its projections
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 16_384
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: in units of h
# is: slip
# says: in units of h
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 4
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% wrong: replicas save memory
# is: slip
# says: A replica holds all weights
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "memory"
answer_6 = "stage 1, checkpointed"

# %% wrong: replicas save both
# is: slip
# says: each GPU holds as much as a single GPU would
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "both"
answer_6 = "stage 1, checkpointed"

# %% wrong: stage 3
# is: slip
# says: One sequence's activations are 53.7 GB
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 3"

# %% wrong: stage 2
# is: slip
# says: fits, but a cheaper one of the four also does
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 2, checkpointed"

# %% wrong: not answered
# is: form
# says: is not answered yet
answer_1 = 85.9
answer_2 = ...
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% right: as numbers
answer_1 = 85.9
answer_2 = 942
answer_3 = "one activation of the whole batch"
answer_4 = 32_768
answer_5 = "time"
answer_6 = "stage 1, checkpointed"

# %% right: as formulas
answer_1 = 64 * 4096 * 8192 * 2 * 80 / 4 / 1e9
answer_2 = 0.4 * 989e12 / (6 * 70e9)
answer_3 = "one activation of the whole batch"
answer_4 = 4 * 8192
answer_5 = "Time"
answer_6 = "stage 1, checkpointed"
