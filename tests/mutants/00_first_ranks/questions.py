# %% wrong: the latency left out
# is: slip
# says: The latency was left out
answer_1 = 1e6 / 10e9
answer_2 = 200_000
answer_3 = "wait"

# %% wrong: in microseconds
# is: slip
# says: is in microseconds
answer_1 = 20 + 100
answer_2 = 200_000
answer_3 = "wait"

# %% wrong: bits for bytes
# is: slip
# says: bytes, not bits
answer_1 = 20e-6 + 8 * 1e6 / 10e9
answer_2 = 20e-6 * 10e9 / 8
answer_3 = "wait"

# %% wrong: the second in kilobytes
# is: slip
# says: is in kB
answer_1 = 1.2e-4
answer_2 = 200
answer_3 = "wait"

# %% wrong: divided where it is multiplied
# is: slip
# says: divided instead of multiplying
answer_1 = 1.2e-4
answer_2 = 10e9 / 20e-6
answer_3 = "wait"

# %% wrong: the others raise too
# is: slip
# says: Nothing tells the other ranks
answer_1 = 1.2e-4
answer_2 = 200_000
answer_3 = "raise"

# %% wrong: the others return
# is: slip
# says: one never will
answer_1 = 1.2e-4
answer_2 = 200_000
answer_3 = "return"

# %% wrong: not answered
# is: form
# says: answer_2 is not answered yet
answer_1 = 1.2e-4
answer_2 = ...
answer_3 = "wait"

# %% right: computed
alpha, bandwidth = 20e-6, 10e9
answer_1 = alpha + 10**6 / bandwidth
answer_2 = alpha * bandwidth
answer_3 = "wait"

# %% right: a tensor and a spare space
answer_1 = torch.tensor(0.00012)
answer_2 = 2e5
answer_3 = " Wait"
