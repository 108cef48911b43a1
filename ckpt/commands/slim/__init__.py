"""`ckpt slim`."""
