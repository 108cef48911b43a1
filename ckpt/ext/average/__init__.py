"""`ckpt average`: the mean of models."""
