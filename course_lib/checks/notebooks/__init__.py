"""The exercises: a folder for each notebook, named as the notebook is behind its number."""
