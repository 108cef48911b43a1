"""`ckpt slim`: the weights, and nothing else."""
