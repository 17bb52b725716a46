"""Subcommands of `python -m autograder`, a module each, with `add_parser(commands)` and `run(options)`.

`run` returns the exit code. A command that cannot do its work says why on stderr and returns 2.
"""
