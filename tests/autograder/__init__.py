"""Grading, from a folder of submissions to grades."""
