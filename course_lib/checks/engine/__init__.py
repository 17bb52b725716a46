"""The machinery of the checks: cases, ranks, judgement, reports. It names no algorithm.

`check` (in the student's kernel) pickles the student's objects and hands the bytes to `judge`, which
never unpickles them: ranks do (`harness`), and answer with plain data that `judge` compares with
expectations made in its own process.
"""
