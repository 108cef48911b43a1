"""`ckpt inspect` and `ckpt get`."""
