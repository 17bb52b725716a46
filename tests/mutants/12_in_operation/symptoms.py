# %% wrong: one of two busy ranks as a straggler
# is: slip
# says: neither is last in its own group
run_a = ("straggler", 0)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: waiting as bandwidth
# is: slip
# says: no faster network
run_a = ("bandwidth", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: unequal work on one rank
# is: slip
# says: write None as the rank
run_a = ("unequal work", 3)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: starts as bytes
# is: slip
# says: most of the time goes into starting messages
run_a = ("unequal work", None)
run_b = ("bandwidth", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: latency of one rank
# is: slip
# says: write None as the rank
run_a = ("unequal work", None)
run_b = ("latency", 0)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: a late input as a straggler
# is: slip
# says: its chip is healthy
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("straggler", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: input of the rank that waits
# is: slip
# says: A rank that waits is early
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 4)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: a cause in a healthy run
# is: slip
# says: this does not make it a cause
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("bandwidth", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: a straggler in a healthy run
# is: slip
# says: Some share is always the largest
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("straggler", 7)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: a straggler as bandwidth
# is: slip
# says: no faster network
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("bandwidth", None)
run_f = ("memory", 4)


# %% wrong: the rank that waits most
# is: slip
# says: Name the rank the others wait for
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 3)
run_f = ("memory", 4)


# %% wrong: a straggler without its rank
# is: slip
# says: Name it
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", None)
run_f = ("memory", 4)


# %% wrong: a straggler as unequal work
# is: slip
# says: last among ranks that do
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("unequal work", 6)
run_f = ("memory", 4)


# %% wrong: a straggler as a bubble
# is: slip
# says: is 0 in this run
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("bubble", None)
run_f = ("memory", 4)


# %% wrong: memory is overlooked
# is: slip
# says: the first to run out of memory
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("healthy", None)


# %% wrong: memory of another rank
# is: slip
# says: whose row differs
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 3)


# %% wrong: a word that is none of the kinds
# is: form
# says: must be 'straggler'
run_a = ("unequal work", None)
run_b = ("network", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: a kind without a rank
# is: form
# says: must be a pair
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = "healthy"
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: late input where none is late
# is: slip
# says: `data` is at most 0.2 % of the step
run_a = ("data", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: memory where there is enough
# is: slip
# says: The fullest rank has 59 of 80 GB
run_a = ("unequal work", None)
run_b = ("memory", 0)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% wrong: a straggler where no rank is late
# is: slip
# says: no rank is last more often than chance explains
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("straggler", 4)


# %% right: as the text has it
run_a = ("unequal work", None)
run_b = ("latency", None)
run_c = ("data", 3)
run_d = ("healthy", None)
run_e = ("straggler", 6)
run_f = ("memory", 4)


# %% right: lists, capitals and a number of another type
run_a = ["Unequal work", None]
run_b = ("LATENCY", None)
run_c = ("data", 3.0)
run_d = ("healthy ", None)
run_e = ["straggler", torch.tensor(6)]
run_f = ("memory", 2 + 2)
