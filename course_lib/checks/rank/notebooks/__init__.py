"""Recipes that serve one notebook each, in a folder of the notebook's topic."""
