"""`ckpt stats`."""
