"""Ranks: started, watched, explained, ended."""
