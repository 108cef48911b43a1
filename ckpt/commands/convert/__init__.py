"""`ckpt convert`."""
