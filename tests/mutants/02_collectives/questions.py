# %% wrong: the tensor once
# is: slip
# says: counts the tensor once
answer_1 = 70 / 50
answer_2 = "latency"
answer_3 = 8
answer_4 = 70

# %% wrong: one phase
# is: slip
# says: the time of one phase
answer_1 = 63 / 64 * 70 / 50
answer_2 = "latency"
answer_3 = 8
answer_4 = 70

# %% wrong: both directions counted
# is: slip
# says: sends and receives at the same time
answer_1 = 2 * 63 / 64 * 70 / 25
answer_2 = "latency"
answer_3 = 8
answer_4 = 70

# %% wrong: bandwidth for 10 MB
# is: slip
# says: 1,022 rounds
answer_1 = 2 * 63 / 64 * 70 / 50
answer_2 = "bandwidth"
answer_3 = 8
answer_4 = 70

# %% wrong: divided by one phase
# is: slip
# says: there are two phases
answer_1 = 2 * 63 / 64 * 70 / 50
answer_2 = "latency"
answer_3 = 16
answer_4 = 70

# %% wrong: the algorithm bandwidth
# is: slip
# says: is the algorithm bandwidth
answer_1 = 2 * 63 / 64 * 70 / 50
answer_2 = "latency"
answer_3 = 8
answer_4 = 4 / 0.1

# %% wrong: the factor is two
# is: slip
# says: not by 2
answer_1 = 2 * 63 / 64 * 70 / 50
answer_2 = "latency"
answer_3 = 15
answer_4 = 2 * 4 / 0.1

# %% wrong: left open
# is: form
# says: answer_3 is not answered yet
answer_1 = 2 * 63 / 64 * 70 / 50
answer_2 = ""
answer_3 = ...
answer_4 = None

# %% right: computed step by step
n, gigabytes, link = 64, 70, 50
answer_1 = 2 * (n - 1) * (gigabytes / n) / link
answer_2 = "Latency"
answer_3 = 15 / (2 * 15 / 16)
answer_4 = (4 / 0.1) * 2 * 7 / 8

# %% right: rounded
answer_1 = 2.76
answer_2 = "latency"
answer_3 = 8.0
answer_4 = torch.tensor([70.0])
