"""Both ends of the pipe to the process in which a submission's cells run."""
