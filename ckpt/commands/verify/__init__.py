"""`ckpt verify`."""
