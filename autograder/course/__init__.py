"""Assignments: their sources, and the student versions."""
