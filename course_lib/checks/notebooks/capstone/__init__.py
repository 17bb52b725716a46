"""The checks of notebook 13: one model in every layout."""
