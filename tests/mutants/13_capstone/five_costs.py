# %% wrong: every axis has the whole model
# is: idea
# says: No rank sums the whole model
zero_3_bytes = 6 * 4 * 875_264
tp_bytes = 2 * 3 / 4 * 4 * 875_264
pp_bytes = 4 * 875_264
dp_bytes = 4 * 875_264
held = 875_264


# %% wrong: one microbatch with ZeRO-3
# is: slip
# says: You counted one microbatch
zero_3_bytes = 3 * 3 / 4 * 4 * 875_264
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: two units with ZeRO-3
# is: slip
# says: three units, two gathers and a scatter
zero_3_bytes = 2 * 2 * 3 / 4 * 4 * 875_264
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: a rank's own part travels
# is: slip
# says: A rank's own part does not travel
zero_3_bytes = 2 * 3 * 4 * 875_264
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: the layers alone along tp
# is: slip
# says: You counted only the layers
zero_3_bytes = 15_754_752
tp_bytes = 16 * 3 / 2 * 8 * 128 * 128 * 4
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: forward alone along tp
# is: slip
# says: Backward has as many sums
zero_3_bytes = 15_754_752
tp_bytes = 9 * 3 / 2 * 8 * 128 * 128 * 4
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: a pipeline without chunks
# is: slip
# says: a pipeline without chunks
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 4 * 2 * 128 * 128 * 4
dp_bytes = 934_400
held = 111_424


# %% wrong: two activations and two gradients
# is: slip
# says: no stage before it
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 4 * 4 * 2 * 128 * 128 * 4
dp_bytes = 934_400
held = 111_424


# %% wrong: the whole model over dp
# is: slip
# says: No rank sums the whole model
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 4 * 875_264
held = 111_424


# %% wrong: a quarter of the model
# is: slip
# says: tp does not cut everything
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 875_264
held = 111_424


# %% wrong: all eight ranks sum
# is: slip
# says: Only the 2 ranks of dp
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 2 * 7 / 8 * 4 * 875_264 / 4
held = 111_424


# %% wrong: an eighth of the model
# is: slip
# says: The two stages are not equal
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 875_264 // 8


# %% wrong: a stage without ZeRO
# is: slip
# says: a stage without ZeRO
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 445_696


# %% wrong: the last stage
# is: slip
# says: the last stage
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 107_392


# %% wrong: in MB and MiB
# is: slip
# says: Your number is in MB
zero_3_bytes = 15.75
tp_bytes = 14_174_208 / 2**20
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: in bits
# is: slip
# says: Your number is in bits
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 8 * 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: a text
# is: form
# says: must be a number of bytes
zero_3_bytes = "15.75 MB"
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% right: to the byte
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% right: as arithmetic, without the numbers of the loss
zero_3_bytes = 2 * 3 * (3 / 4) * 4 * 875_264
tp_bytes = 18 * (2 * 3 / 4) * 8 * 128 * 128 * 4
pp_bytes = 4 * 3 * (2 * 128 * 128 * 4)
dp_bytes = 2 * (1 / 2) * 4 * 233_600
held = torch.tensor((2 * 198_272 + 49_152) // 4)


# %% wrong: four microbatches with ZeRO-3
# is: slip
# says: it has two microbatches
zero_3_bytes = 4 * 3 * 3 / 4 * 4 * 875_264
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: elements with ZeRO-3
# is: slip
# says: the 4 bytes of a float32 are missing
zero_3_bytes = 6 * 3 / 4 * 875_264
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: an all-reduce along tp without its factor 2
# is: slip
# says: sends its bytes 2 . 3/4 times
zero_3_bytes = 15_754_752
tp_bytes = 18 * 3 / 4 * 8 * 128 * 128 * 4
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: elements along tp
# is: slip
# says: A float32 has 4 bytes
zero_3_bytes = 15_754_752
tp_bytes = 18 * 3 / 2 * 8 * 128 * 128
pp_bytes = 1_572_864
dp_bytes = 934_400
held = 111_424


# %% wrong: two microbatches along pp
# is: slip
# says: There are four microbatches of 2 rows
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 2 * 3 * 2 * 128 * 128 * 4
dp_bytes = 934_400
held = 111_424


# %% wrong: elements along pp
# is: slip
# says: a float32 has 4 bytes
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 4 * 3 * 2 * 128 * 128
dp_bytes = 934_400
held = 111_424


# %% wrong: an all-reduce over dp without its factor 2
# is: slip
# says: sends its bytes 2 . 1/2 times
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 1 / 2 * 4 * 233_600
held = 111_424


# %% wrong: twice the bytes over dp
# is: slip
# says: sends its bytes 2 . 1/2 times
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 2 * 4 * 233_600
held = 111_424


# %% wrong: elements over dp
# is: slip
# says: Your number is in elements
zero_3_bytes = 15_754_752
tp_bytes = 14_174_208
pp_bytes = 1_572_864
dp_bytes = 2 * 1 / 2 * 233_600
held = 111_424
