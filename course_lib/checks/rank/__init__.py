"""The part of the checks that runs in ranks; graded code can read nothing else of them.

`harness` drives a student's objects by a recipe: `functions`, `layers` and `training` here, parts for one
notebook alone in `notebooks`. Recipes count, measure and describe; they decide nothing, and hold no expected
value. No file but those in `notebooks` names an algorithm.
"""
