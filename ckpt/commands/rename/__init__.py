"""`ckpt rename`."""
