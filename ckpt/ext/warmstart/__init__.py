"""`ckpt warmstart`."""
