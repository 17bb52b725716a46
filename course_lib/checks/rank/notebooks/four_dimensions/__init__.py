"""Recipes of notebook 10."""
