"""The notebooks: built, released, run again."""
