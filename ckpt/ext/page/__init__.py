"""`ckpt report`: checkpoints as one page of HTML."""
