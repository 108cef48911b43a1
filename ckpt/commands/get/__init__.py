"""`ckpt get`."""
