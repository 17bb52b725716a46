"""Tests, in folders as the packages: see CONTRIBUTING.md."""
