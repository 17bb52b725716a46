"""A class is graded: the session, its workers, and what they do."""
