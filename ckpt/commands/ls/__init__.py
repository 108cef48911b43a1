"""`ckpt ls`: checkpoints, one row each."""
