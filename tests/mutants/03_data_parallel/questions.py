# %% wrong: all of it is exposed
# is: slip
# says: most of it passes while backward runs
answer_1 = 2 * 7 / 8 * 14 / 50
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 3
answer_5 = 50


# %% wrong: nothing is exposed
# is: slip
# says: exposed in any case
answer_1 = 0.0
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 3
answer_5 = 50


# %% wrong: once the gradients
# is: slip
# says: not 14 GB
answer_1 = 14 / 50 / 20
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 3
answer_5 = 50


# %% wrong: efficiency without overlap
# is: slip
# says: assumes no overlap
answer_1 = 2 * 7 / 8 * 14 / 50 / 20
answer_2 = 1.5 / 3.95
answer_3 = "SGD"
answer_4 = 3
answer_5 = 50


# %% wrong: AdamW shows it
# is: slip
# says: the factor cancels
answer_1 = 2 * 7 / 8 * 14 / 50 / 20
answer_2 = 0.5
answer_3 = "AdamW"
answer_4 = 3
answer_5 = 50


# %% wrong: the mean of means
# is: slip
# says: the mean of the two means
answer_1 = 2 * 7 / 8 * 14 / 50 / 20
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 4
answer_5 = 50


# %% wrong: 100 ranks
# is: slip
# says: is for 1 %
answer_1 = 2 * 7 / 8 * 14 / 50 / 20
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 3
answer_5 = 100


# %% wrong: not answered
# is: form
# says: not answered yet
answer_1 = 2 * 7 / 8 * 14 / 50 / 20
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 3
answer_5 = ...


# %% right: as it stands
answer_1 = 2 * 7 / 8 * 14 / 50 / 20
answer_2 = 0.5
answer_3 = "SGD"
answer_4 = 3
answer_5 = 50


# %% right: as arithmetic
sent = 14 * 2 * (1 - 1 / 8)
answer_1, answer_3 = sent / 50 / 20, "SGD"
exposed = max(sent / 10 - 0.95, 0)
answer_2, answer_5 = 1.5 / (1.5 + exposed), 1 / 0.02
answer_4 = sum(count * loss for count, loss in ((30, 2), (10, 6))) / (30 + 10)
