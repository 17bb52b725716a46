# %% wrong: nothing wrong with any of them
# is: idea
# says: Look at the rows about memory
suspect_a = ("nothing", 1)
suspect_b = ("nothing", 1)
suspect_c = ("nothing", 1)


# %% wrong: an unusual program is taken for a wrong one
# is: slip
# says: are the two halves of an all-reduce
suspect_a = ("activations", 4)
suspect_b = ("bytes over dp", 2)
suspect_c = ("bytes over dp", 8)


# %% wrong: the factor on two replicas
# is: slip
# says: Here dp has 16 ranks
suspect_a = ("activations", 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 1)


# %% wrong: the number of replicas
# is: slip
# says: and not M
suspect_a = ("activations", 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 16)


# %% wrong: 15 times
# is: slip
# says: It sends 15 M
suspect_a = ("activations", 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 15)


# %% wrong: stage 0 in place of stage 4
# is: slip
# says: Rank 517 is on stage 4
suspect_a = ("activations", 2)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 8)


# %% wrong: all microbatches in place of their share
# is: slip
# says: and 1 would not do
suspect_a = ("activations", 16)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 8)


# %% wrong: factors upside down
# is: slip
# says: upside down
suspect_a = ("activations", 1 / 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 1 / 8)


# %% wrong: two programs are taken for each other
# is: idea
# says: The table has a mark in one of its rows
suspect_a = ("bytes over dp", 8)
suspect_b = ("nothing", 1)
suspect_c = ("activations", 4)


# %% wrong: weights for activations
# is: slip
# says: kept for backward
suspect_a = ("parameters", 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 8)


# %% wrong: a word that is none of the kinds
# is: form
# says: must be a pair
suspect_a = ("memory", 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 8)


# %% wrong: a kind without a factor
# is: form
# says: must be a number
suspect_a = ("activations", None)
suspect_b = "nothing"
suspect_c = ("bytes over dp", 8)


# %% right: as the text has it
suspect_a = ("activations", 4)
suspect_b = ("nothing", 1)
suspect_c = ("bytes over dp", 8)


# %% right: lists, capitals, arithmetic, and no factor for nothing
suspect_a = ["Activations ", 16 / 4]
suspect_b = ["nothing", None]
suspect_c = ("Bytes over dp", torch.tensor(8))
