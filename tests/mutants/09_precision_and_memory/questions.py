# %% wrong: half a step at 1
# is: slip
# says: Half a step rounds back to 1
answer_1 = 2**-11
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: bfloat16's step
# is: slip
# says: bfloat16's step
answer_1 = 1 / 128
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: an inf cannot be repaired
# is: slip
# says: skips the step and halves the scale
answer_1 = 2**-10
answer_2 = "an inf on one rank"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: no scales
# is: slip
# says: Codes also need scales
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 6
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: a master copy
# is: slip
# says: does without a master copy
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 4 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: the square root
# is: slip
# says: square root of 126
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 11
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: every layer
# is: slip
# says: fewer checkpoints keep less
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 1
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% wrong: data make replicas drift
# is: slip
# says: different data do not matter
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's data"
answer_6 = "a scale for each tile"

# %% wrong: the accumulator replaces the range
# is: slip
# says: This saves the sum's digits
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a float32 accumulator"

# %% right: as arithmetic
answer_1 = 2**-10
answer_2 = "a loss that is not a number"
answer_3 = 2 + 2 + 2 * (1 + 4 / 256)
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% right: as numbers
answer_1 = 1 / 1024
answer_2 = "a loss that is not a number"
answer_3 = 6.03125
answer_4 = 3.0
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"

# %% right: rounded to three digits
answer_1 = 0.000977
answer_2 = "a loss that is not a number"
answer_3 = 6.03
answer_4 = 3
answer_5 = "each rank's generator"
answer_6 = "a scale for each tile"
