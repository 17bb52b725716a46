# %% wrong: all parameters, and forward alone, everywhere
# is: idea
# says: Only forward is counted
gpt3_flops = 1.05e23
gpt3_days = 8.48
llama_65b_mfu = 0.159
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 0.94
mixtral_held = 46.7e9
mixtral_used = 46.7e9
deepseek_tflops = 6213


# %% wrong: forward alone
# is: slip
# says: Only forward is counted
gpt3_flops = 2 * 174.6e9 * 300e9
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: backward alone
# is: slip
# says: Only backward is counted
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 4 * 37e9 * 14.8e12 / (2.664e6 * 3600) / 1e12


# %% wrong: recomputation in MFU
# is: slip
# says: MFU counts only the model's FLOPs
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 8 * 65.2e9 * 380 / 312e12
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: no recomputation in the days
# is: slip
# says: The 140 TFLOP/s count recomputation
gpt3_flops = 3.14e23
gpt3_days = 25.4
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: attention in 6 N
# is: slip
# says: which 6 N leaves out
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.496
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: the sparse peak
# is: slip
# says: for fp8, or for sparse
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 400 / 1979
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: the printed MFU
# is: slip
# says: the paper's rounded number
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.41
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: idle over busy
# is: slip
# says: the step has both
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 16
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: eight times seven
# is: slip
# says: Eight times 7
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 56e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: all experts are used
# is: slip
# says: a token uses two of eight
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 46.7e9
deepseek_tflops = 343


# %% wrong: a quarter is used
# is: slip
# says: Only the experts are chosen
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 46.7e9 / 4
deepseek_tflops = 343


# %% wrong: all parameters of DeepSeek-V3
# is: slip
# says: 671 billion parameters are held
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 6 * 671e9 * 14.8e12 / (2.664e6 * 3600) / 1e12


# %% wrong: hours of all training
# is: slip
# says: include the longer context
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 327.4


# %% wrong: one GPU
# is: slip
# says: there are 2,048
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 42_643
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: a percentage
# is: slip
# says: a share is asked for
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 47.6
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% wrong: unanswered
# is: form
# says: is not answered yet
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = ...


# %% right: rounded as papers are
gpt3_flops = 3.14e23
gpt3_days = 33.9
llama_65b_mfu = 0.476
llama_65b_days = 20.8
llama_405b_mfu = 0.404
llama_405b_idle = 15 / 31
mixtral_held = 46.7e9
mixtral_used = 12.9e9
deepseek_tflops = 343


# %% right: as arithmetic
gpt3_flops = 6 * 175e9 * 300e9
gpt3_days = 8 * 300e9 * 175e9 / (1024 * 140e12) / 86_400
llama_65b_mfu = 6 * 65e9 * 380 / 312e12
llama_65b_days = 1_022_362 / 2048 / 24
llama_405b_mfu = 400 / 989
llama_405b_idle = (16 - 1) / (16 + 16 - 1)
attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
expert = 3 * 4096 * 14_336
mixtral_held = 2 * 32_000 * 4096 + 32 * (attention + 8 * expert)
mixtral_used = 2 * 32_000 * 4096 + 32 * (attention + 2 * expert)
deepseek_tflops = torch.tensor(6 * 37e9 * 14.8e12 / (2.664e6 * 3600) / 1e12)
