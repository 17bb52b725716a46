"""Our steps in nbgrader's pipelines: one module for each pipeline."""
