"""`ckpt lint`."""
