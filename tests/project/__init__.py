"""The repository itself: pages, packages, set-up, style, hosts."""
