"""What decides: inputs, expectations, lines, weights, and the report. No file here names an algorithm.

`judge` never unpickles what a student handed in. Ranks do (`course_lib.checks.rank.harness`), and answer with
plain data and raw tensors that lines compare with expectations made in this process. Graded code cannot read
this folder, nor the cases in `course_lib.checks.notebooks`.
"""
