"""`ckpt inspect`: what a checkpoint holds, and how to load it."""
