"""Experiments on GPUs, rehearsed on the CPU, and their records."""
