"""The side that decides: inputs, expectations, lines, weights, and the report.

No file here names an algorithm.

`judge` never unpickles a student's objects. Ranks do (`course_lib.checks.rank.harness`), and answer with
plain data and raw tensors, which lines compare with expectations made in this process. Graded code cannot
read this folder, nor the cases in `course_lib.checks.notebooks`.
"""
