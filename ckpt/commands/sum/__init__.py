"""`ckpt sum`."""
