"""The grading of a class: the session, its workers, and their task."""
