"""`ckpt inspect`."""
