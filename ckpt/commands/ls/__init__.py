"""`ckpt ls`."""
