"""`ckpt strip`."""
