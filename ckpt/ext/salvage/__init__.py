"""`ckpt salvage`."""
