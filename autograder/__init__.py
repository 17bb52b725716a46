"""nbgrader behind one command: build the notebooks, grade submissions, write the results.

`python -m autograder build` makes the notebooks from their text twins, and the student versions
from the notebooks; `python -m autograder grade` grades a class. nbgrader stays the gradebook and
the format. `autograder/README.md` says what each status in the table means.
"""

import sys

# jsonschema looks for this package, to check addresses of a format ("iri") that no notebook's schema has.
# It builds a parser as it is imported, which takes two seconds: with None there, it counts as not installed.
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]
