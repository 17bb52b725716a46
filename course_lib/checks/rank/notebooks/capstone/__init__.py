"""The recipes of notebook 12."""
