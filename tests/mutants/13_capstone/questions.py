# %% right: as arithmetic
answer_1 = 7 / (256 / 16 + 7)
answer_2 = "b"


# %% right: rounded
answer_1 = 0.304
answer_2 = "b"


# %% wrong: idle over busy
# is: slip
# says: idle time over the busy time
answer_1 = 7 / 16
answer_2 = "b"


# %% wrong: all rows in one replica
# is: slip
# says: reads all 256 rows
answer_1 = 7 / (256 + 7)
answer_2 = "b"


# %% wrong: p idle moments
# is: slip
# says: begins after p - 1 forwards
answer_1 = 8 / 24
answer_2 = "b"


# %% wrong: the busy share
# is: slip
# says: the step in which a stage is busy
answer_1 = 16 / 23
answer_2 = "b"


# %% wrong: replicas as stages
# is: slip
# says: a pipeline over the 16 replicas
answer_1 = 15 / 31
answer_2 = "b"


# %% wrong: ZeRO-3 alone
# is: slip
# says: sends all gradients in each backward
answer_1 = 7 / 23
answer_2 = "a"


# %% wrong: all stages
# is: slip
# says: adds the microbatches up there
answer_1 = 7 / 23
answer_2 = "c"


# %% wrong: no stage
# is: slip
# says: has no whole gradients to add up in
answer_1 = 7 / 23
answer_2 = "d"


# %% wrong: in percent
# is: slip
# says: Your number is in percent
answer_1 = 30.4
answer_2 = "b"
