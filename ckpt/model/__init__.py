"""The model of a checkpoint: nodes, tensors and places, names, limits and errors."""
