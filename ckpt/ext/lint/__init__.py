"""`ckpt lint`: a gate for files."""
