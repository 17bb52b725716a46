"""In the ranks: units and sharded modules, states in mapped files, functions of lists of tensors."""
