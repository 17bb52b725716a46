"""In the ranks of a pipeline's checks: stages by description, and the recipes that run them.

`running` makes the rank's stage and runs a schedule on it, `watching` sees which forward and backward came
when and what was kept meanwhile, `updates` drives a stage that is updated after each backward. `schedules`
and `standing_in` call functions that write schedules and formulas. The judge makes `stages`, too.
"""
