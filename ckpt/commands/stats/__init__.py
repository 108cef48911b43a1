"""`ckpt stats`: the numbers of tensors, and dead channels."""
