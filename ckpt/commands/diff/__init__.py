"""`ckpt diff`: two checkpoints, compared."""
