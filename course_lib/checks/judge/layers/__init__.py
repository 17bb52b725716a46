"""A layer that several ranks hold together: what is run (`runs`), and what came back against it (`lines`)."""
