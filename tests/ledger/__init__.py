"""The record of what ranks send, its figures, and the closed forms."""
