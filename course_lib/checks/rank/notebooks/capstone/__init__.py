"""The recipes of notebook 13."""
