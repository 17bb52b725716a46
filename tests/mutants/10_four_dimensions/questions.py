# %% wrong: tp 16 as in a node of 8
# is: slip
# says: Two nodes hold 16 ranks
answer_1 = 0.4146
answer_2 = 8
answer_3 = 16
answer_4 = 15 / 16
answer_5 = "few keys"

# %% wrong: one ring over the network
# is: slip
# says: one ring through one card
answer_1 = 5.139
answer_2 = 8
answer_3 = 16
answer_4 = 15 / 16
answer_5 = "few keys"

# %% wrong: NVLink sends 600 one way
# is: slip
# says: a ring sends 300 each way
answer_1 = 0.5737
answer_2 = 8
answer_3 = 16
answer_4 = 15 / 16
answer_5 = "few keys"

# %% wrong: the dp that was printed
# is: slip
# says: 8 x 16 x 16 x 4 ranks are 8,192
answer_1 = 0.7572
answer_2 = 4
answer_3 = 16
answer_4 = 15 / 16
answer_5 = "few keys"

# %% wrong: all sequences on one pipeline
# is: slip
# says: dp = 128 pipelines share it
answer_1 = 0.7572
answer_2 = 8
answer_3 = 2048
answer_4 = 15 / 16
answer_5 = "few keys"

# %% wrong: the bubble of the whole step
# is: slip
# says: the share of the whole step
answer_1 = 0.7572
answer_2 = 8
answer_3 = 16
answer_4 = 15 / 31
answer_5 = "few keys"

# %% wrong: cp on NVLink
# is: slip
# says: tp = 8 fills the node
answer_1 = 0.7572
answer_2 = 8
answer_3 = 16
answer_4 = 15 / 16
answer_5 = "nvlink"

# %% wrong: nothing is answered
# is: form
# says: answer_1 is not answered yet
answer_1 = answer_2 = answer_3 = answer_4 = answer_5 = ...

# %% right: computed
fast, card, stream = 0.8 * 300e9, 0.8 * 25e9, 2 * 2048 * 12288
inside = 14 * 3.4e-6 + 2 * 7 / 8 * stream / fast
answer_1 = 1e3 * (inside + 2 * 14e-6 + stream / 8 / card)
answer_2 = 16_384 // (8 * 16 * 16)
answer_3 = 16 * 2**20 / 8192 / 128
answer_4 = (16 - 1) / answer_3
answer_5 = "few keys"

# %% right: rounded
answer_1 = 0.76
answer_2 = 8.0
answer_3 = 16
answer_4 = 0.94
answer_5 = " Few keys "
