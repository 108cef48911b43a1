"""`ckpt rehome`."""
