"""What only checkpoints in folders ask for: what taking a state dict apart changes, and what is left of an incomplete one."""
