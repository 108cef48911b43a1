"""`ckpt get`: one value of a checkpoint."""
