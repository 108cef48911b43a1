"""`ckpt set`: changing or deleting single values inside of a checkpoint."""
