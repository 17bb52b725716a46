# %% wrong: one all-reduce a layer, as the lecture says
# is: slip
# says: And backward\?
answer_1 = 1
answer_2 = 0.9235
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.25

# %% wrong: forward alone
# is: slip
# says: You counted one direction
answer_1 = 2
answer_2 = 0.9235
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.25

# %% wrong: the share that computes
# is: slip
# says: the share that computes
answer_1 = 4
answer_2 = 1 - 0.9235
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.25

# %% wrong: NVLink across nodes
# is: slip
# says: joined by the slower link
answer_1 = 4
answer_2 = 0.573
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.25

# %% wrong: FLOPs of all ranks
# is: slip
# says: each rank computes a sixteenth
answer_1 = 4
answer_2 = 0.430
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.25

# %% wrong: one all-reduce forward
# is: slip
# says: after attention and after the MLP
answer_1 = 4
answer_2 = 0.858
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.25

# %% wrong: the bias stands in the way
# is: slip
# says: A bias could be added once
answer_1 = 4
answer_2 = 0.9235
answer_3 = "the bias"
answer_4 = 8
answer_5 = 1.25

# %% wrong: nothing is too large
# is: slip
# says: each is already whole
answer_1 = 4
answer_2 = 0.9235
answer_3 = "the activation function"
answer_4 = 1
answer_5 = 1.25

# %% wrong: once for each matrix
# is: slip
# says: For this MLP's weights, that is one
answer_1 = 4
answer_2 = 0.9235
answer_3 = "the activation function"
answer_4 = 64
answer_5 = 1.25

# %% wrong: the gathered inputs kept
# is: slip
# says: You kept the gathered inputs \("keep"\)
answer_1 = 4
answer_2 = 0.9235
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1

# %% wrong: backward alone
# is: slip
# says: You counted only backward, but
answer_1 = 4
answer_2 = 0.9235
answer_3 = "the activation function"
answer_4 = 8
answer_5 = 1.5

# %% right: computed
answer_1 = 2 * 2
answer_2 = (lambda send, compute: send / (send + compute))(
    2 * 2 * 15 / 16 * 2 * 8192 * 4096 / 50e9, 24 * 8192**2 * 4096 / 16 / 989e12
)
answer_3 = "the activation function"
answer_4 = 8.0
answer_5 = 10 / 8

# %% right: rounded
answer_1 = 4
answer_2 = 0.92
answer_3 = " The activation function "
answer_4 = 8
answer_5 = 1.25
