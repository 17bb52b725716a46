"""The records of a class: results, the table, nbgrader's gradebook."""
