"""nbgrader behind one command: build the notebooks, grade submissions, write the results.

`python -m autograder.build` makes the notebooks from their text twins, and the student versions
from the notebooks; `python -m autograder grade` grades a class. nbgrader stays the gradebook and
the format. `autograder/README.md` says what each status in the table means.
"""
