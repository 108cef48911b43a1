"""`ckpt average`."""
