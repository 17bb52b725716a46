"""A layer that several ranks hold together: its runs (`runs`), and lines about their replies (`lines`)."""
