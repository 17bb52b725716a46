"""Judging what runs the stages of a pipeline.

In the ranks: `recipes` (makes this rank's stage, runs a schedule on it) and `watching` (which forward and
backward of the stage came when, and what was kept meanwhile); without ranks `updates` (a stage that is
updated after each backward). In both: `models` (stages, by description).
"""
