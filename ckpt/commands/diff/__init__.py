"""`ckpt diff`."""
