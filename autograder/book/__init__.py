"""What is kept of a class: results, the table, nbgrader's gradebook."""
