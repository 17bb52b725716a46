"""Recipes of notebook 09."""
