"""Subcommands of `python -m autograder`, a module each, with `add_parser(commands)` and `run(options)`.

`run` returns the exit code. What cannot be done is said on stderr and is exit code 2.
"""
